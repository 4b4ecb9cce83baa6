# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: its batches in memory or in a ``.log`` file, and its indexes in Kafka's files.

If the log has a directory, an append is one write to the file, so a killed process loses no acknowledged batch. With
and without a directory, the positions of all batches are in memory, so a read does not search the file. The sparse
offset index is in memory, too, because the aborted transactions in a Fetch response depend on it
(LogSegment.fetchUpperBoundOffset).
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from kcodec.broker.derived_file import DerivedFile
from kcodec.broker.recovery import SEGMENT_FILES
from kcodec.log import TransactionIndexEntry
from kcodec.log.indexes import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY

INDEX_INTERVAL_BYTES = 4096  # index.interval.bytes
#: Entries at the end of an index that Kafka searches first.
WARM_ENTRIES = 8192 // OFFSET_ENTRY.size


class BatchPosition(NamedTuple):
    """The position of a batch in a segment."""

    base_offset: int
    last_offset: int
    position: int
    size: int


class Segment:
    """The batches from `base_offset` on. Only the last segment of a log keeps its file open."""

    def __init__(self, base_offset: int, directory: Path | None, created_ms: int) -> None:
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = 0
        self.max_timestamp, self.max_timestamp_offset = -1, base_offset
        #: max_timestamp of the first batch; None without a batch.
        self.first_timestamp: int | None = None
        self.aborted: list[TransactionIndexEntry] = []
        self._base_offsets, self._last_offsets = array("q"), array("q")
        self._positions, self._timestamps = array("q"), array("q")
        self._index_offsets, self._index_positions = array("q"), array("q")
        self._last_indexed_time = -1
        self._bytes_since_index = 0
        self._chunks: list[bytes] = []
        self._directory = directory
        self._file: int | None = None
        #: Whether a part of a batch may follow the last one, after a failed write.
        self._is_torn = False
        self._derived: dict[str, DerivedFile] = {}
        self._are_derived_written = True
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self.path("txnindex").unlink(missing_ok=True)
            self._file = os.open(self.path("log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            for kind in ("index", "timeindex"):
                self._derive(kind, b"")
            self.write_derived()

    def __len__(self) -> int:
        return len(self._positions)

    def path(self, kind: str) -> Path:
        """Return the path of the file with this ending."""
        assert self._directory is not None
        return self._directory / f"{self.base_offset:020}.{kind}"

    # Appending

    def append(self, data: bytes, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Append a batch. Raise OSError if it cannot be written; the log is then unchanged."""
        if self._directory is None:
            self._chunks.append(data)
        else:
            self._write(self._opened(), data)
        self.add(base_offset, last_offset, max_timestamp, len(data))
        self.write_derived()

    def _write(self, file: int, data: bytes) -> None:
        """Write a batch, or raise OSError. An incompletely written batch is cut off, now or before the next batch."""
        self.cut_torn()
        try:
            written = os.write(file, data)
            while written < len(data):
                written += os.write(file, memoryview(data)[written:])
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):
                os.ftruncate(file, self.size)
                self._is_torn = False
            raise

    def cut_torn(self) -> None:
        """Cut off an incomplete batch after a failed write. Raise OSError if this fails: then no batch and no segment
        may follow."""
        if self._is_torn:
            os.ftruncate(self._opened(), self.size)
            self._is_torn = False

    def add(self, base_offset: int, last_offset: int, max_timestamp: int, size: int) -> None:
        """Store the position of a batch at the end of the file, and its index entries (LogSegment.append)."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, last_offset
        if self._bytes_since_index > INDEX_INTERVAL_BYTES:
            self._index_offsets.append(last_offset)
            self._index_positions.append(self.size)
            self._derive("index", OFFSET_ENTRY.pack(last_offset - self.base_offset, self.size))
            self._index_time()
            self._bytes_since_index = 0
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        self._base_offsets.append(base_offset)
        self._last_offsets.append(last_offset)
        self._positions.append(self.size)
        self._timestamps.append(max_timestamp)
        self.size += size
        self._bytes_since_index += size

    def _index_time(self) -> None:
        if self.max_timestamp > self._last_indexed_time:
            self._last_indexed_time = self.max_timestamp
            entry = TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._derive("timeindex", entry)

    def add_aborted(self, entry: TransactionIndexEntry) -> None:
        """Store an aborted transaction whose marker is in this segment."""
        self.aborted.append(entry)
        self._derive("txnindex", TRANSACTION_ENTRY.pack(*entry))

    def keep_snapshot(self, data: bytes) -> None:
        """Store the snapshot of the producers at the first offset."""
        self._derive("snapshot", data)

    def end(self) -> None:
        """Complete the files of a segment to which nothing more is appended."""
        if len(self):
            self._index_time()

    def _derive(self, kind: str, data: bytes) -> None:
        if self._directory is not None:
            if kind not in self._derived:
                self._derived[kind] = DerivedFile(self.path(kind))
            self._derived[kind].add(data)
            self._are_derived_written = False

    def write_derived(self) -> None:
        """Write the index entries that are not in their files yet. Keep the entries that cannot be written now."""
        if not self._are_derived_written:
            written = [one.write() for one in self._derived.values()]
            self._are_derived_written = all(written)

    def _opened(self) -> int:
        """Return the file, opened again after `close`."""
        if self._file is None:
            self._file = os.open(self.path("log"), os.O_RDWR | os.O_APPEND)
        return self._file

    def close(self) -> None:
        """Close the file. A later read opens it and closes it again; a later append opens it until the next `close`."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def delete(self) -> None:
        """Remove the files."""
        self.close()
        if self._directory is not None:
            self._derived.clear()
            for kind in SEGMENT_FILES:
                self.path(kind).unlink(missing_ok=True)

    # Reading

    def batch_at_or_after(self, offset: int) -> int | None:
        """Return the index of the first batch whose last offset is at least `offset`."""
        number = bisect_left(self._last_offsets, offset)
        return number if number < len(self) else None

    def batch(self, number: int) -> BatchPosition:
        """Return the position of a batch."""
        position = self._positions[number]
        end = self._positions[number + 1] if number + 1 < len(self) else self.size
        return BatchPosition(self._base_offsets[number], self._last_offsets[number], position, end - position)

    def batch_from_time(self, timestamp: int, offset: int) -> int | None:
        """Return the index of the first batch from `offset` on whose largest timestamp is at least this one."""
        for number in range(bisect_left(self._last_offsets, offset), len(self)):
            if self._timestamps[number] >= timestamp:
                return number
        return None

    def position_of(self, offset: int) -> int:
        """Return the position in bytes of the first batch whose last offset is at least `offset`; the size if none
        exists."""
        number = self.batch_at_or_after(offset)
        return self.size if number is None else self._positions[number]

    def read(self, position: int, size: int) -> bytes:
        """Return bytes from the beginning of a batch."""
        if self._directory is not None:
            return self._read_file(position, size)
        number = bisect_left(self._positions, position)
        end = bisect_left(self._positions, position + size)
        if end == number + 1 and len(self._chunks[number]) == size:
            return self._chunks[number]
        return b"".join(self._chunks[number:end])[:size]

    def _read_file(self, position: int, size: int) -> bytes:
        is_closed, file = self._file is None, self._opened()
        try:
            data = os.pread(file, size, position)
            while len(data) < size and (more := os.pread(file, size - len(data), position + len(data))):
                data += more  # Linux reads at most 2 GiB less 4 KiB at once; a segment can be larger
            return data
        finally:
            if is_closed:
                self.close()

    def upper_bound_offset(self, position: int) -> int | None:
        """Return the offset of an index entry from `position` on, as Kafka finds it (OffsetIndex, AbstractIndex).

        Kafka's binary search does not check the last remaining entry. It therefore sometimes misses an entry exactly at
        `position`, and the response lists more aborted transactions than necessary.
        """
        entries, count = self._index_positions, len(self._index_positions)
        if not count:
            return None
        hot = max(0, count - 1 - WARM_ENTRIES)
        if entries[hot] < position:
            low, high = hot, count - 1
        elif entries[0] > position:
            return self._index_offsets[0]
        else:
            low, high = 0, hot
        while low < high:
            middle = (low + high + 1) // 2
            if entries[middle] == position:
                return self._index_offsets[middle]
            if entries[middle] > position:
                high = middle - 1
            else:
                low = middle
        return None if low == count - 1 else self._index_offsets[low + 1]
