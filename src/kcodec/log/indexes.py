# SPDX-License-Identifier: Apache-2.0
"""The indexes of a segment: ``.index``, ``.timeindex``, ``.txnindex``. A log can be read without them.

``.index`` (OffsetIndex): int32 relative offset, int32 position: the last offset of an append or a batch, and the
position where it begins; one entry about every 4 KiB (index.interval.bytes). ``.timeindex`` (TimeIndex): int64
timestamp, int32 relative offset: the largest timestamp so far, and the offset of its batch. Offsets are relative to the
one in the file's name. While a broker has these files open, they are preallocated (segment.index.bytes) and end with
zeros. ``.txnindex`` (TransactionIndex, AbortedTxn): int16 version, int64 producer id, first offset, last offset (of the
ABORT marker), last stable offset. It belongs to the segment of the marker, and is missing if the segment has no aborted
transaction, and after log cleaning.

This module returns the contents of the files. seek.py verifies an entry with the log before it is used, and check
compares all entries.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from kcodec.errors import UnsupportedError
from kcodec.log.small_files import PIECE_BYTES, read_whole
from kcodec.log.storage import LOCAL, Storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TRANSACTION_ENTRY = struct.Struct(">hqqqq")
NAMED_OFFSET = re.compile(r"(\d{20})\.")


class OffsetIndexEntry(NamedTuple):
    """An entry of ``.index``: a batch begins at byte `position`, and all batches before it are below `offset`."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """An entry of ``.timeindex``: up to `offset`, no timestamp (ms) is above `timestamp`, which is in the batch at
    `offset`."""

    timestamp: int
    offset: int


class TransactionIndexEntry(NamedTuple):
    """An entry of ``.txnindex``: an aborted transaction.

    version:            0.
    producer_id:        Producer of the transaction.
    first_offset:       Offset of its first record.
    last_offset:        Offset of its marker.
    last_stable_offset: The last stable offset after the marker.
    """

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


Entry = TypeVar("Entry", OffsetIndexEntry, TimeIndexEntry, TransactionIndexEntry)


@dataclass(frozen=True, repr=False)
class _Index(Sequence[Entry], Generic[Entry]):
    """The entries of one index file: a sequence that creates each value when it is requested.

    path:                 The file.
    base_offset:          The offset that offsets in the file are relative to.
    data:                 Bytes of the entries.
    preallocated_entries: Number of zero entries after them.
    remaining_bytes:      Number of bytes of an incomplete last entry.

    Two indexes are equal if their contents are equal, whatever their paths are.
    """

    path: str | None = field(compare=False)
    base_offset: int
    data: bytes
    preallocated_entries: int = 0
    remaining_bytes: int = 0

    LAYOUT: ClassVar[struct.Struct]
    FIELDS: ClassVar[tuple[tuple[str, str, bool], ...]]  # name, type in the file, whether it is a relative offset

    def _entry(self, values: tuple[int, ...]) -> Entry:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.data) // self.LAYOUT.size

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"index {index} is out of range: there are {len(self)} entries")
        return self._entry(self.LAYOUT.unpack_from(self.data, at * self.LAYOUT.size))

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self.LAYOUT.iter_unpack(self.data))

    def to_numpy(self) -> NDArray[Any]:
        """Return a structured numpy array of the entries, with absolute offsets and native byte order."""
        import numpy

        stored = numpy.frombuffer(self.data, dtype=[(name, kind) for name, kind, _ in self.FIELDS])
        names = [(name, "i8" if relative else kind.replace(">", "=")) for name, kind, relative in self.FIELDS]
        found = numpy.empty(len(stored), dtype=names)
        for name, _, relative in self.FIELDS:
            found[name] = stored[name]
            if relative:
                found[name] += self.base_offset
        return found

    def __repr__(self) -> str:
        ends = f", {self[0]} .. {self[-1]}" if len(self) else ""
        rest = f", {self.preallocated_entries} preallocated" if self.preallocated_entries else ""
        cut = f", {self.remaining_bytes} bytes of an incomplete entry" if self.remaining_bytes else ""
        return f"<{type(self).__name__} of {len(self)} entries{ends}{rest}{cut}>"


class OffsetIndex(_Index[OffsetIndexEntry]):
    """An ``.index`` file: a sequence of OffsetIndexEntry(offset, position).

    path: the file; base_offset: what its offsets are relative to; data: the bytes of its entries; preallocated_entries:
    number of zero entries after them; remaining_bytes: number of bytes of an incomplete last entry.
    """

    LAYOUT = OFFSET_ENTRY
    FIELDS = (("offset", ">i4", True), ("position", ">i4", False))

    def _entry(self, values: tuple[int, ...]) -> OffsetIndexEntry:
        return OffsetIndexEntry(self.base_offset + values[0], values[1])


class TimeIndex(_Index[TimeIndexEntry]):
    """A ``.timeindex`` file: a sequence of TimeIndexEntry(timestamp, offset).

    path: the file; base_offset: what its offsets are relative to; data: the bytes of its entries; preallocated_entries:
    number of zero entries after them; remaining_bytes: number of bytes of an incomplete last entry.
    """

    LAYOUT = TIME_ENTRY
    FIELDS = (("timestamp", ">i8", False), ("offset", ">i4", True))

    def _entry(self, values: tuple[int, ...]) -> TimeIndexEntry:
        return TimeIndexEntry(values[0], self.base_offset + values[1])


class TransactionIndex(_Index[TransactionIndexEntry]):
    """A ``.txnindex`` file: a sequence of TransactionIndexEntry, in order of the markers.

    path: the file; base_offset: what its offsets are relative to; data: the bytes of its entries; preallocated_entries:
    number of zero entries after them; remaining_bytes: number of bytes of an incomplete last entry.
    """

    LAYOUT = TRANSACTION_ENTRY
    FIELDS = (
        ("version", ">i2", False),
        ("producer_id", ">i8", False),
        ("first_offset", ">i8", False),
        ("last_offset", ">i8", False),
        ("last_stable_offset", ">i8", False),
    )

    def _entry(self, values: tuple[int, ...]) -> TransactionIndexEntry:
        return TransactionIndexEntry(*values)


def named_offset(path: str | os.PathLike[str]) -> int | None:
    """Return the offset in a file's name (``00000000000000000042.index``), None for another name."""
    match = NAMED_OFFSET.match(PurePath(path).name)
    return int(match[1]) if match else None


def read_offset_index(
    path: str | os.PathLike[str], base_offset: int | None = None, storage: Storage = LOCAL
) -> OffsetIndex:
    """Return the entries of an ``.index`` file.

    path:        The file, in `storage`.
    base_offset: Base offset of the segment; None: the one in the file's name, else 0.
    storage:     Where the file is; by default the local file system.
    """
    data = read_whole(path, storage)
    return OffsetIndex(*_parts(path, base_offset, data, OFFSET_ENTRY, entries_in(data, OFFSET_ENTRY.size)))


def read_time_index(
    path: str | os.PathLike[str], base_offset: int | None = None, storage: Storage = LOCAL
) -> TimeIndex:
    """Return the entries of a ``.timeindex`` file. path, base_offset, storage: as in read_offset_index."""
    data = read_whole(path, storage)
    count = entries_in(data, TIME_ENTRY.size)
    if len(data) == TIME_ENTRY.size:
        count = 1  # timestamp 0 at the segment's first offset; no file is preallocated for one entry
    return TimeIndex(*_parts(path, base_offset, data, TIME_ENTRY, count))


def read_transaction_index(path: str | os.PathLike[str], storage: Storage = LOCAL) -> TransactionIndex:
    """Return the entries of a ``.txnindex`` file. Raise UnsupportedError for a version other than 0.

    path, storage: As in read_offset_index.

    Zeros at the end are counted in `preallocated_entries`, as in the other indexes: an entry has an offset above 0.
    """
    data = read_whole(path, storage)
    size = TRANSACTION_ENTRY.size
    index = TransactionIndex(*_parts(path, None, data, TRANSACTION_ENTRY, entries_in(data, size)))
    # The two bytes of each version, as columns: a loop over the entries would cost more than all else here.
    columns = [index.data[byte::size] for byte in (0, 1)]
    wrong = [len(column) - len(column.lstrip(b"\0")) for column in columns if column.strip(b"\0")]
    if wrong:
        at = min(wrong)
        raise UnsupportedError(
            f"byte {at * size}: entry {at}: version {index[at].version} of an aborted transaction, expected 0",
            path=os.fspath(path),
        )
    return index


def entries_in(data: bytes, size: int) -> int:
    """Return the number of complete entries before the zeros at the end."""
    end = len(data)
    while end > 0:  # in pieces: rstrip of the whole data would copy it
        piece = data[max(end - PIECE_BYTES, 0) : end].rstrip(b"\0")
        end = max(end - PIECE_BYTES, 0)
        if piece:
            end += len(piece)
            break
    return min(-(-end // size), len(data) // size)


def _parts(
    path: str | os.PathLike[str], base_offset: int | None, data: bytes, layout: struct.Struct, count: int
) -> tuple[str, int, bytes, int, int]:
    base = base_offset if base_offset is not None else named_offset(path) or 0
    whole, remaining = divmod(len(data), layout.size)
    return os.fspath(path), base, data[: count * layout.size], whole - count, remaining
