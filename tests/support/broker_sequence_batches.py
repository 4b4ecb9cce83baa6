# SPDX-License-Identifier: Apache-2.0
"""The batches that a random sequence produces: valid ones, and ones that a leader rejects."""

from __future__ import annotations

from typing import Any

from broker_targets import Identity

import kcodec
from kcodec._fast import crc32c

#: The bytes of a batch that the variants change: the CRC and the number of records.
_CRC, _COUNT, _MAGIC = slice(17, 21), slice(57, 61), 16
_FAR_MS = 10 * 365 * 86_400_000


def produced(who: Identity, part: dict[str, Any], now_ms: int) -> bytes | None:
    """Return the bytes of one partition of a produce request.

    part: sequence, count, size, transactional, and optionally codec, time ("fixed", "now" or "far") and defect.
    """
    defect = part.get("defect")
    if defect == "null":
        return None
    sequence, count = part["sequence"], part["count"]
    base = {"fixed": 1000 + sequence % 1000, "now": now_ms, "far": now_ms + _FAR_MS}[part.get("time", "fixed")]
    key = None if defect == "no key" else b"k"
    records = [
        (key, bytes([65 + index]) * part["size"], (), base + (index if base < now_ms else 0)) for index in range(count)
    ]
    batch = bytearray(
        kcodec.encode(
            records,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
            is_transactional=part["transactional"],
            compression=part.get("codec", "none"),
        )
    )
    if defect == "crc":
        batch[_CRC] = bytes(4)
    if defect == "count":
        batch[_COUNT] = (count + 1).to_bytes(4, "big")
        batch[_CRC] = crc32c(bytes(batch[_CRC.stop :])).to_bytes(4, "big")
    if defect == "magic":
        batch[_MAGIC] = 9
    if defect == "two":
        batch = batch + batch
    if defect == "cut":
        batch = batch[:-5]
    return bytes(batch)
