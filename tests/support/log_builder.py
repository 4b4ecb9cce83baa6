# SPDX-License-Identifier: Apache-2.0
"""Builds a log of transactional batches and markers at rising offsets."""

from __future__ import annotations

from typing import Any

from batch_writer import RecordSpec, build_batch, end_transaction_marker

ABORT, COMMIT = 0, 1


class LogBuilder:
    """Batches at rising offsets; the value of each record is its offset as text."""

    def __init__(self, base_offset: int = 0) -> None:
        self.data = b""
        self.next_offset = base_offset

    def _add(self, batch: bytes, offsets: int) -> LogBuilder:
        self.data += batch
        self.next_offset += offsets
        return self

    def write(self, producer_id: int, records: int = 1, *, is_transactional: bool = True, **header: Any) -> LogBuilder:
        specs = [RecordSpec(value=str(self.next_offset + at).encode()) for at in range(records)]
        header = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, **header}
        return self._add(
            build_batch(specs, base_offset=self.next_offset, is_transactional=is_transactional, **header), records
        )

    def plain(self, records: int = 1) -> LogBuilder:
        return self.write(-1, records, is_transactional=False, producer_epoch=-1, base_sequence=-1)

    def end(self, producer_id: int, control_type: int) -> LogBuilder:
        marker = end_transaction_marker(control_type, producer_id=producer_id, base_offset=self.next_offset)
        return self._add(marker, 1)

    def commit(self, producer_id: int) -> LogBuilder:
        return self.end(producer_id, COMMIT)

    def abort(self, producer_id: int) -> LogBuilder:
        return self.end(producer_id, ABORT)

    def gap(self, offsets: int) -> LogBuilder:
        return self._add(b"", offsets)

    def add(self, batch: bytes, offsets: int = 1) -> LogBuilder:
        return self._add(batch, offsets)
