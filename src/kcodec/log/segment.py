# SPDX-License-Identifier: Apache-2.0
"""One segment file: its headers, and the end of its data.

A broker that dies can leave the last append of the active segment torn: a batch that the end of the file cuts, zeros up
to the end of a preallocated file, or a last batch whose pages were not all written (a wrong CRC). These end the data
and are reported as a Tail. Everything else, and any of these in an earlier segment, is corruption and raises an error.
Kafka itself truncates the log at the first unreadable batch (LogSegment.recover) and loses the batches after it; here
an incomplete batch followed by a valid one is corruption, too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kcodec._fast import RecordBatch, crc32c, find_provable, header_at
from kcodec.errors import CorruptBatchError, DecodeError, TruncatedError
from kcodec.limits import DecodeLimits
from kcodec.log.storage import LOCAL, FileVersion, Storage
from kcodec.log.windows import WINDOW_BYTES, HeaderWindows, SegmentFile

SEGMENT_NAME = re.compile(r"(\d{20})\.log")
BATCH_OVERHEAD = 61
LOG_OVERHEAD = 12
LEAST_BATCH_LENGTH = 14
LEAST_BATCH = LOG_OVERHEAD + LEAST_BATCH_LENGTH
CRC_FROM = 21
# Of magic 0 and 1: a CRC-32 of other bytes, and no zstd.
LEGACY_CRC_FROM = 16
HIGHEST_COMPRESSION_ID = 4
LEGACY_HIGHEST_COMPRESSION_ID = 3
LOWEST_OFFSET = -(1 << 63)
# The search for a valid batch after an incomplete one checks the CRC of at most this multiple of max_batch_bytes.
SEARCH_BATCHES = 4


@dataclass(frozen=True)
class Segment:
    """A ``.log`` file of a partition.

    base_offset: From its name; None for another name.
    is_active:   Whether it is the last segment, whose tail may be torn.
    storage:     The storage of its path.
    version:     Version of the file when it was listed; None if it is unknown.
    """

    path: str
    base_offset: int | None
    is_active: bool
    storage: Storage = field(default=LOCAL, repr=False)
    version: FileVersion | None = field(default=None, repr=False, compare=False)

    @property
    def size_in_bytes(self) -> int:
        """Bytes in the file now."""
        return self.storage.size(self.path)

    def beside(self, suffix: str) -> str:
        """Return the path of an index by its suffix: ``.index``, ``.timeindex`` or ``.txnindex``, or with ``.swap``."""
        stem, _, rest = self.path.rpartition(".log")
        return (stem or self.path) + suffix + rest

    def open(self, likely_end: int | None = None) -> SegmentFile:
        """Return the file, for a ``with`` block. `likely_end` is a hint for object stores: the position at which
        reading will end."""
        return SegmentFile(self.path, self.storage, likely_end=likely_end)


def data_end(segment: Segment) -> int:
    """Return the size of a segment to which a broker may append; 0 if the file is preallocated. The broker cuts off the
    zeros at the end of such a file when it closes the file."""
    with segment.open() as file:
        size = file.size()
        begin = max(size - BATCH_OVERHEAD, 0)
        return 0 if is_zeros(file, begin, size) else size


def base_offset_of(path: str) -> int:
    """Return the base offset in the name of a segment, or of a ``.swap`` file; 0 for another name."""
    found = re.search(r"(\d{20})\.log(\.swap)?$", path)
    return int(found[1]) if found else 0


def is_last_segment(path: str, storage: Storage = LOCAL) -> bool:
    """Return whether the directory has no later segment. This also works for a name that is not that of a segment."""
    own = SEGMENT_NAME.fullmatch(storage.name(path))
    if own is None:
        return True
    try:
        entries = storage.list(storage.parent(path))
    except FileNotFoundError:  # a storage without listings
        return True
    names = (SEGMENT_NAME.fullmatch(entry.name) for entry in entries if not entry.is_directory)
    return all(int(name[1]) <= int(own[1]) for name in names if name)


#: The reason of a tail begins with this if its batch is complete.
WRONG_CRC = "the last batch has a wrong CRC"
#: The reason of a tail that contains no batch. A preallocated file has such a tail.
ZEROS = "zeros to the end of the file"


class Tail(NamedTuple):
    """Data after the last valid batch: its position, its size (remaining_bytes), and the reason why it is invalid."""

    position: int
    remaining_bytes: int
    reason: str

    @property
    def has_wrong_crc(self) -> bool:
        """Whether the tail begins with a complete batch that has a wrong CRC. Otherwise the batch is incomplete, or the
        tail consists of zeros."""
        return self.reason.startswith(WRONG_CRC)


# Headers


def walk_headers(file: SegmentFile, start: int, end: int, limits: DecodeLimits) -> Iterator[RecordBatch]:
    """Yield the headers in [start, end), each with a loader for the bytes of its batch. Stop before a batch that `end`
    cuts off."""
    windows = HeaderWindows(file, end)
    position = begin = start
    window = memoryview(b"")
    while position + LEAST_BATCH <= end:
        needed = min(BATCH_OVERHEAD, end - position)
        if position + needed > begin + len(window):
            window, begin = windows.at(position, needed), position
        batch = header_at(window[position - begin :], position, file.path, limits)
        if batch is None or position + batch.size_in_bytes > end:
            return
        header = bytes(window[position - begin :][: min(BATCH_OVERHEAD, batch.size_in_bytes)])
        position += batch.size_in_bytes
        yield batch._with_loader(_Loader(file.path, batch.position, batch.size_in_bytes, header, file.storage))


@dataclass(frozen=True)
class _Loader:
    """Reads a batch when its bytes are requested, and makes sure that it is still the one whose header was read."""

    path: str
    position: int
    size: int
    header: bytes
    storage: Storage

    def __call__(self) -> bytes:
        with SegmentFile(self.path, self.storage, fresh=True, likely_end=self.position + self.size) as file:
            data = bytes(file.read(self.position, self.size))
        if not data.startswith(self.header):
            reason = (
                "the file changed after its headers were read: another batch is at this position now; open the "
                "log again"
            )
            raise DecodeError(reason, position=self.position, path=self.path)
        return data


def batch_at(file: SegmentFile, position: int, end: int, limits: DecodeLimits) -> RecordBatch | None:
    """Return the batch at `position`; None if `end` cuts it off. Raise DecodeError if there is no valid header."""
    window = file.read(position, min(BATCH_OVERHEAD, end - position))
    batch = header_at(window, position, file.path, limits)
    return None if batch is None or position + batch.size_in_bytes > end else batch


def computed_crc(file: SegmentFile, batch: RecordBatch) -> int:
    """Return the CRC of a batch's bytes, CRC-32C or of magic 0 and 1 CRC-32, window by window."""
    crc, end = 0, batch.position + batch.size_in_bytes
    checksum, begin = (zlib.crc32, LEGACY_CRC_FROM) if batch.magic < 2 else (crc32c, CRC_FROM)
    position = batch.position + begin
    while position < end:
        window = file.read(position, min(WINDOW_BYTES, end - position))
        crc = checksum(window, crc)
        position += len(window)
    return crc


def stored_offset(batch: RecordBatch) -> int:
    """Return the offset in its header: the base offset, or for magic 0 and 1 the last offset."""
    return batch.last_offset if batch.magic < 2 else batch.base_offset


def least_offset(batch: RecordBatch) -> int:
    """Return its lowest possible offset; 0 for compressed messages of magic 0 or 1, whose header has only the last
    offset."""
    return 0 if batch.magic < 2 and batch.compression else batch.base_offset


def records_in(batch: RecordBatch) -> int:
    """Return its records_count. Batches of magic 0 and 1 are decompressed for this. Raise DecodeError if this fails."""
    return len(batch.decode(columns=("offset",))) if batch.records_count is None else batch.records_count


def has_plausible_fields(batch: RecordBatch) -> bool:
    """Return whether codec, last_offset_delta and records_count are possible values of a batch."""
    if batch.records_count is None:
        return int(batch.compression) <= LEGACY_HIGHEST_COMPRESSION_ID
    return (
        int(batch.compression) <= HIGHEST_COMPRESSION_ID and batch.last_offset_delta >= 0 and batch.records_count >= 0
    )


def provable_behind(file: SegmentFile, position: int, end: int, above: int, limits: DecodeLimits) -> int | None:
    """Return the position to which the length of the corrupt batch at `position` leads, if a credible batch is
    there."""
    if end - position < LOG_OVERHEAD:
        return None
    length = int.from_bytes(file.read(position, LOG_OVERHEAD)[8:], "big", signed=True)
    behind = position + LOG_OVERHEAD + length
    if length < LEAST_BATCH_LENGTH or behind >= end:
        return None
    try:
        batch = batch_at(file, behind, end, limits)
    except DecodeError:
        return None
    if batch is None or stored_offset(batch) <= above or not has_plausible_fields(batch):
        return None
    return behind if computed_crc(file, batch) == batch.crc else None


# Tail


def _needed_at(file: SegmentFile, position: int, end: int) -> int:
    """Return the size of the incomplete batch at `position`, as far as it is known."""
    if end - position < LOG_OVERHEAD:
        return BATCH_OVERHEAD
    length = int.from_bytes(file.read(position, LOG_OVERHEAD)[8:], "big", signed=True)
    return LOG_OVERHEAD + length if length >= LEAST_BATCH_LENGTH else BATCH_OVERHEAD


def cut_error(file: SegmentFile, position: int, end: int) -> TruncatedError:
    """Return the error of a batch that is cut off by the end of a segment that must not end in this way."""
    needed = _needed_at(file, position, end)
    return TruncatedError(
        f"the batch extends beyond the end of the segment: it has {needed} bytes, but {end - position} are available",
        needed=needed,
        available=end - position,
        position=position,
        path=file.path,
    )


def tail_of_cut(file: SegmentFile, position: int, end: int, above: int, limits: DecodeLimits) -> Tail | None:
    """Return the tail that begins at `position`, where no complete batch begins; None if there are no bytes.

    position: Position after the last complete batch.
    above:    Last offset before it.

    Raise DecodeError if a valid batch follows.
    """
    if position == end:
        return None
    remaining = end - position
    if is_zeros(file, position, end):
        return Tail(position, remaining, ZEROS)
    rest = file.read(position, remaining)
    budget = SEARCH_BATCHES * limits.max_batch_bytes
    found = find_provable(rest[1:], above, limits, budget)
    if found != -1:
        what = (
            f"a valid batch follows at byte {position + 1 + found}"
            if found >= 0
            else f"a search of {budget} bytes could not exclude that a valid batch follows"
        )
        reason = f"the batch extends beyond the end of the file, but {what}: the batch is corrupt, not incomplete"
        raise DecodeError(reason, position=position, path=file.path)
    needed = _needed_at(file, position, end)
    return Tail(position, remaining, f"the last batch is incomplete: {remaining} of {needed} bytes are available")


def tail_of_refused(
    file: SegmentFile,
    error: DecodeError,
    end: int,
    above: int,
    limits: DecodeLimits,
    *,
    is_active: bool,
    check_crcs: bool = True,
) -> Tail:
    """Return the tail if a refused batch is a torn tail. Raise the error if it is corruption.

    If CRCs are verified, a wrong CRC is the error, because it explains all other findings in the batch.
    """
    position = error.position
    if position is None:
        raise error
    if is_active and is_zeros(file, position, end):
        return Tail(position, end - position, ZEROS)
    try:
        batch = batch_at(file, position, end, limits)
    except DecodeError:
        raise error from None
    if batch is None:
        raise error
    computed = computed_crc(file, batch)
    if computed == batch.crc:
        raise error
    if check_crcs and not isinstance(error, CorruptBatchError):
        reason = f"the stored CRC {batch.crc:#010x} does not match the CRC of the bytes, {computed:#010x}"
        place = {"position": position, "base_offset": stored_offset(batch), "path": file.path}
        error = CorruptBatchError(reason, stored_crc=batch.crc, computed_crc=computed, **place)
    behind = position + batch.size_in_bytes
    if not is_active or not _is_torn_behind(file, behind, end, above, limits):
        error.next_offset = _offset_behind(file, batch, end, above, limits)
        raise error
    return Tail(position, end - position, f"{WRONG_CRC}: {error.reason}")


def _is_torn_behind(file: SegmentFile, behind: int, end: int, above: int, limits: DecodeLimits) -> bool:
    """Return whether only a torn tail follows a batch with a wrong CRC, so that it is the last complete batch."""
    if behind == end or is_zeros(file, behind, end):
        return True
    try:
        return batch_at(file, behind, end, limits) is None and tail_of_cut(file, behind, end, above, limits) is not None
    except DecodeError:
        return False


def _offset_behind(file: SegmentFile, batch: RecordBatch, end: int, above: int, limits: DecodeLimits) -> int | None:
    """Return the next_offset of the error for a wrong CRC: last_offset + 1 if the header is plausible and the next one
    agrees. above: the last offset before the batch."""
    if not has_plausible_fields(batch) or batch.last_offset <= above:
        return None
    try:
        following = batch_at(file, batch.position + batch.size_in_bytes, end, limits)
    except DecodeError:
        return None
    is_known = batch.magic == 2 or batch.compression == 0 or batch.last_offset != 0
    return batch.next_offset if is_known and following and stored_offset(following) > batch.last_offset else None


def tail_at_end(
    file: SegmentFile,
    position: int,
    end: int,
    above: int,
    limits: DecodeLimits,
    *,
    is_active: bool,
    refused: DecodeError | None = None,
) -> Tail | None:
    """Return the torn tail at which a walk ended, or None at the end of the file.

    refused: Error of the batch at `position`; None if the end of the file cuts it off.

    Raise DecodeError for corruption, which is everything except a torn tail of the active segment.
    """
    if refused is not None:
        return tail_of_refused(file, refused, end, above, limits, is_active=is_active)
    if is_active:
        return tail_of_cut(file, position, end, above, limits)
    if position != end:
        raise cut_error(file, position, end)
    return None


def overlap(name: str, last_offset: int, base_offset: int) -> str:
    """Return the error for a segment that begins before another one ends."""
    return (
        f"the segment begins at offset {base_offset}, but the segment before it, {name}, has offsets up to "
        f"{last_offset}: one of the two files does not belong to this log; open each file separately to see which"
    )


def is_zeros(file: SegmentFile, position: int, end: int) -> bool:
    """Return whether all bytes in [position, end) are zeros."""
    while position < end:
        window = file.read(position, min(WINDOW_BYTES, end - position))
        if bytes(window).strip(b"\0"):
            return False
        position += len(window)
    return True
