# SPDX-License-Identifier: Apache-2.0
"""Partition directories for the tests of kcodec.log, made of batches by batch_writer.

plain(base_offset, count=3, size=20) -> bytes          one batch without a producer, values of `size` bytes
data(producer_id, base_offset, count=2) -> bytes       one transactional batch
marker(control_type, producer_id, base_offset) -> bytes      0 ABORT, 1 COMMIT
partition(folder, *segments, name="orders-0") -> Path  each segment the list of its batches; named after the first
offsets(log, isolation_level=..., **options) -> list of int
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch, end_transaction_marker

ABORT, COMMIT = 0, 1


def plain(base_offset: int, count: int = 3, size: int = 20, **header: Any) -> bytes:
    records = [RecordSpec(b"%d" % (base_offset + at), b"v" * size) for at in range(count)]
    header = {"base_timestamp": BASE_TIMESTAMP + base_offset, **header}
    return build_batch(records, base_offset=base_offset, **header)


def data(producer_id: int, base_offset: int, count: int = 2, **header: Any) -> bytes:
    producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    return plain(base_offset, count, **producer, **header)


def marker(control_type: int, producer_id: int, base_offset: int) -> bytes:
    return end_transaction_marker(control_type, producer_id=producer_id, base_offset=base_offset)


def partition(folder: Path, *segments: Sequence[bytes], name: str = "orders-0") -> Path:
    directory = folder / name
    directory.mkdir(parents=True)
    base_offset = 0
    for batches in segments:
        if batches:
            base_offset = int.from_bytes(batches[0][:8], "big")
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    return directory


def offsets(log: Any, isolation_level: str = "read_uncommitted", **options: Any) -> list[int]:
    return [record.offset for record in log.records(isolation_level, **options)]
