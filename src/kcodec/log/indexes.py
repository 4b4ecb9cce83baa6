# SPDX-License-Identifier: Apache-2.0
"""The indexes of a segment: ``.index``, ``.timeindex``, ``.txnindex``. Nothing in them is needed to read a log.

``.index`` (OffsetIndex): int32 relative offset, int32 position: the last offset of an append, or of a batch, and where
it begins; one about every 4 KiB (index.interval.bytes). ``.timeindex`` (TimeIndex): int64 timestamp, int32 relative
offset: the largest timestamp so far and the offset of the batch that holds it. Offsets are relative to the one in the
file's name. While a broker has them open, both are preallocated (segment.index.bytes) and end in zeros.
``.txnindex`` (TransactionIndex, AbortedTxn): int16 version, int64 producer id, first offset, last offset (of the ABORT
marker), last stable offset. It is in the segment of the marker, and is not there where nothing was aborted, nor after
cleaning.

What is read here is what the files say. seek.py believes an entry only once the log bears it out, and check compares
all of them.
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
    """A batch begins at byte `position`; all before it are below `offset`."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """Up to `offset` no timestamp (ms) is above `timestamp`; the batch with that offset holds it."""

    timestamp: int
    offset: int


class TransactionIndexEntry(NamedTuple):
    """An aborted transaction. last_offset: of its marker; last_stable_offset: what it was behind that marker."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


Entry = TypeVar("Entry", OffsetIndexEntry, TimeIndexEntry, TransactionIndexEntry)


@dataclass(frozen=True, repr=False)
class _Index(Sequence[Entry], Generic[Entry]):
    """The entries of one index file: a sequence over its bytes, made into values as they are requested.

    path; base_offset: what offsets in it are relative to; data: the bytes of the entries; preallocated_entries: zeros
    behind them; remaining_bytes: of a last entry that is cut. Equal where the contents are, whatever the path.
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
            raise IndexError(f"entry {index} of {len(self)}")
        return self._entry(self.LAYOUT.unpack_from(self.data, at * self.LAYOUT.size))

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self.LAYOUT.iter_unpack(self.data))

    def to_numpy(self) -> NDArray[Any]:
        """A structured array with the fields of an entry, offsets absolute, in the machine's byte order."""
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
        cut = f", {self.remaining_bytes} bytes of a cut entry" if self.remaining_bytes else ""
        return f"<{type(self).__name__} of {len(self)} entries{ends}{rest}{cut}>"


class OffsetIndex(_Index[OffsetIndexEntry]):
    """An ``.index`` file: OffsetIndexEntry(offset, position)."""

    LAYOUT = OFFSET_ENTRY
    FIELDS = (("offset", ">i4", True), ("position", ">i4", False))

    def _entry(self, values: tuple[int, ...]) -> OffsetIndexEntry:
        return OffsetIndexEntry(self.base_offset + values[0], values[1])


class TimeIndex(_Index[TimeIndexEntry]):
    """A ``.timeindex`` file: TimeIndexEntry(timestamp, offset)."""

    LAYOUT = TIME_ENTRY
    FIELDS = (("timestamp", ">i8", False), ("offset", ">i4", True))

    def _entry(self, values: tuple[int, ...]) -> TimeIndexEntry:
        return TimeIndexEntry(values[0], self.base_offset + values[1])


class TransactionIndex(_Index[TransactionIndexEntry]):
    """A ``.txnindex`` file: TransactionIndexEntry, in order of markers."""

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
    """The offset in a file's name (``00000000000000000042.index``), None for another name."""
    match = NAMED_OFFSET.match(PurePath(path).name)
    return int(match[1]) if match else None


def read_offset_index(
    path: str | os.PathLike[str], base_offset: int | None = None, storage: Storage = LOCAL
) -> OffsetIndex:
    """The entries of an ``.index`` file. base_offset: of the segment, else the one in the file's name, else 0."""
    data = read_whole(path, storage)
    return OffsetIndex(*_parts(path, base_offset, data, OFFSET_ENTRY, entries_in(data, OFFSET_ENTRY.size)))


def read_time_index(
    path: str | os.PathLike[str], base_offset: int | None = None, storage: Storage = LOCAL
) -> TimeIndex:
    """The entries of a ``.timeindex`` file, as read_offset_index."""
    data = read_whole(path, storage)
    count = entries_in(data, TIME_ENTRY.size)
    if len(data) == TIME_ENTRY.size:
        count = 1  # timestamp 0 at the segment's first offset; no file is preallocated for one entry
    return TimeIndex(*_parts(path, base_offset, data, TIME_ENTRY, count))


def read_transaction_index(path: str | os.PathLike[str], storage: Storage = LOCAL) -> TransactionIndex:
    """Return the entries of a ``.txnindex`` file. Raise UnsupportedError for a version other than 0.

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
    """How many whole entries come before the zeros at the end."""
    end = len(data)
    while end > 0:  # by pieces: rstrip of all would copy what is left
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
