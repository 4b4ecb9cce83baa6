# SPDX-License-Identifier: Apache-2.0
"""Batches of about 100 KiB that compress badly, so that decoding them in threads is worth while."""

from __future__ import annotations

import random
import struct
from functools import cache

from batch_writer import RecordSpec, build_batch, end_transaction_marker

RECORDS_IN_A_BATCH = 150


@cache
def template(codec: str, seed: int = 0) -> bytes:
    """A batch of about 100 KiB that compresses badly, so that threads pay in every codec."""
    chooser = random.Random(seed)
    noise = chooser.randbytes(40_000)
    records = []
    for at in range(RECORDS_IN_A_BATCH):
        begin = chooser.randrange(39_000)
        value = None if at % 40 == 7 else noise[begin : begin + chooser.randint(700, 1000)]
        records.append(RecordSpec(key=b"key-%d" % at, value=value, headers=((b"h", b"%d" % at),) if at % 3 else ()))
    return build_batch(
        records, compression=codec, is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
    )


def blob(codec: str, batches: int = 40, seed: int = 0) -> bytes:
    """Return the batch repeated at rising offsets (which the CRC does not cover), and a COMMIT marker."""
    one = template(codec, seed)
    offsets = range(0, batches * RECORDS_IN_A_BATCH, RECORDS_IN_A_BATCH)
    data = b"".join(struct.pack(">q", offset) + one[8:] for offset in offsets)
    return data + end_transaction_marker(1, producer_id=1, base_offset=batches * RECORDS_IN_A_BATCH)
