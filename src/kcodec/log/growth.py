# SPDX-License-Identifier: Apache-2.0
"""A log that grows while it is read: complete batches as they appear, from segment to segment.

A broker appends to the last segment only, and rolls to a new one named for the next offset. In the last segment an
incomplete batch, zeros (a preallocated file) or a last batch with a wrong CRC therefore mean "not yet"; in other
segments they are corruption. Meanwhile the broker deletes old segments (retention), replaces closed ones by smaller
ones (compaction), and may truncate the last one when it follows another leader. A position is therefore remembered
together with the last batch before it. If the file does not contain that batch, the position is looked up again by its
offset. The byte ranges that were walked and not read yet are remembered and looked up again in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kcodec._fast import TransactionScanner
from kcodec.errors import DecodeError, TruncatedError
from kcodec.limits import DecodeLimits
from kcodec.log.chunks import Anchor, SegmentReplacedError
from kcodec.log.salvage import ResumePositions
from kcodec.log.seek import SegmentPosition, position_in, position_of_offset, walk_to
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    LEAST_BATCH,
    Segment,
    batch_at,
    computed_crc,
    cut_error,
    is_zeros,
    tail_of_refused,
    walk_headers,
)
from kcodec.log.storage import Entry, FileObject, FileVersion, is_other_file
from kcodec.log.swaps import Swaps
from kcodec.log.windows import HeaderWindows, SegmentFile

# Walked at a time before it is given out; what is known of its transactions is then forgotten.
STEP_BYTES = 32 << 20


@dataclass
class Walked:
    """Complete batches of a segment that were walked and not read yet: bytes [start, end), offsets [first_offset,
    next_offset).

    anchor:   The last batch of the range when it was walked. It stays the same if the beginning of the range is read.
    version:  Version of the open file when the end of the range was walked; None if the storage does not report it.
    is_again: Whether the range was looked up again in a segment that replaced the walked one, so that positions of the
              scanner are not positions in it.
    """

    segment: Segment
    start: int
    end: int
    first_offset: int
    next_offset: int
    anchor: Anchor | None
    is_again: bool = False
    version: FileVersion | None = None

    def is_intact(self) -> bool:
        """Return whether the file still contains the range."""
        try:
            with self.segment.open() as file:
                return self.anchor is None or self.anchor.is_in(file)
        except FileNotFoundError:
            return False

    def position_of(self, offset: int, limits: DecodeLimits) -> int:
        """Return the position of an offset. Raise SegmentReplacedError or FileNotFoundError if the file was
        replaced."""
        with self.segment.open() as file:
            if self.anchor is not None and not self.anchor.is_in(file):
                raise SegmentReplacedError(self.segment.path)
            return walk_to(file, SegmentPosition(self.start, self.first_offset), offset, limits).position


class _Look(NamedTuple):
    """The existing segments, in order, with their sizes."""

    segments: list[tuple[Segment, int]]
    is_swapping: bool

    @property
    def paths(self) -> list[str]:
        return [segment.path for segment, _ in self.segments]


class _Stuck(NamedTuple):
    """The position at which the walk of the last segment waits, the number of looks at it, and the last finding for the
    batch there.

    The check of a batch may read all zeros of a preallocated file. It is therefore made only at the 1st, 2nd, 4th, 8th
    ... look, and at the look after corruption was found, because the batch may have been written during the check.
    """

    path: str
    position: int
    looks: int = 0
    corruption: DecodeError | None = None

    def again(self, path: str, position: int) -> _Stuck:
        is_same = (path, position) == self[:2]
        return self._replace(looks=self.looks + 1) if is_same else _Stuck(path, position, 1)

    @property
    def is_check_due(self) -> bool:
        return self.corruption is not None or self.looks & (self.looks - 1) == 0


class GrowingLog:
    """The walk. `scanner` has the transactions, and `walked` the ranges to read. The reader takes from both.

    segment:     Segment at which to begin, at its first byte or at the position of `begin_at`.
    is_alone:    Whether to follow only this file, and not its directory.
    next_offset: Offset after the last walked batch.
    corruption:  Corruption that was found in a closed segment, or twice in a row in the last segment.
    is_complete: Whether a file that is followed alone was rolled and has been walked to its end.
    """

    # Private names: _segment, _position: where the walk is; _anchor: byte and header of the last batch before it in
    # this segment; _is_ordered: whether the batch there must lie above next_offset; _is_changing: whether files were
    # renamed or removed during the last step.

    def __init__(self, directory: str, segment: Segment, limits: DecodeLimits, *, is_alone: bool) -> None:
        self.scanner = TransactionScanner(limits=limits, path=segment.path)
        self.walked: list[Walked] = []
        self.next_offset = segment.base_offset or 0
        self.corruption: DecodeError | None = None
        self.is_complete = False
        self._stuck = _Stuck("", -1)
        self._is_changing = False
        self._swaps = Swaps(segment.storage, directory, limits, is_alone=is_alone)
        self._is_ordered = False
        self._anchor: Anchor | None = None
        self._position = 0
        self._segment = segment
        self._limits = limits
        self._is_alone = is_alone
        self._storage = segment.storage
        self._directory = directory

    def begin_at(self, position: int, first_offset: int) -> None:
        """Begin at a batch boundary of the first segment. All offsets before it are below `first_offset`."""
        self._position, self.next_offset = position, max(self.next_offset, first_offset)

    @property
    def is_suspect(self) -> bool:
        """Whether the next look may find more without a new batch: the last one refused a batch that may be
        incompletely written, or saw a directory in which segments are being replaced."""
        return self._is_changing or (self._stuck.corruption is not None and self.corruption is None)

    def step(self) -> bool:
        """Walk appended batches, at most about STEP_BYTES. Return True if there is more to walk immediately.

        Raise FileNotFoundError if batches were deleted before they were walked, and TruncatedError or DecodeError if
        the log was truncated below the walked batches.
        """
        look, self._is_changing = self._look(), False
        here = next((at for at, path in enumerate(look.paths) if path == self._segment.path), None)
        if here is None:
            return self._relocate(look)
        segment, size = look.segments[here]
        is_last = here == len(look.segments) - 1
        if is_last and size == self._position:
            return False
        try:
            file = segment.open(likely_end=self._position + STEP_BYTES)
        except FileNotFoundError:
            self._is_changing = True
            return False  # it was removed after the listing; the next look shows the reason
        with file:
            end = file.size()
            if not self._is_anchor_there(file, end):
                if is_last:
                    raise self._truncated(end)
                return self._relocate(look)
            if is_last:
                return self._walk_last(file, end)
            if self._walk_closed(file, end):
                return True
        return self.corruption is None and self._go_on(look, here + 1)

    # Segments

    def _look(self) -> _Look:
        own = self._segment
        if isinstance(self._storage, FileObject) or (self._is_alone and own.base_offset is None):
            return _Look([(own, self._storage.size(own.path))], False)
        listed = {entry.name: entry for entry in self._listed()}
        found = self._swaps.segments(listed)
        if self._is_alone and not found:
            return _Look([(own, self._storage.size(own.path))], False)
        segments = []
        for base, name in found:
            path = own.path if self._storage.name(own.path) == name else self._storage.join(self._directory, name)
            is_last = base == found[-1].base_offset
            segments.append((Segment(path, base, is_last, self._storage), listed[name].size_in_bytes))
        return _Look(segments, self._swaps.is_swapping)

    def _listed(self) -> list[Entry]:
        try:
            return self._storage.list(self._directory)
        except FileNotFoundError as error:
            if self._is_alone:
                return []  # a storage without listings
            text = f"{self._directory}: the partition's directory was deleted while it was followed"
            raise FileNotFoundError(text) from error

    def _is_stable(self, look: _Look) -> bool:
        """Return whether a second listing is equal, because a listing while files are renamed may lack a file."""
        self._swaps.wait()
        self._is_changing = look.is_swapping or self._look().paths != look.paths
        return not self._is_changing

    def _go_on(self, look: _Look, following: int) -> bool:
        """Continue with the segment after a closed one. The cleaner may have left a gap of offsets."""
        if self._is_alone:
            self.is_complete = True
            return False
        segment = look.segments[following][0]
        base = segment.base_offset or 0
        if base > self.next_offset and not self._is_stable(look):
            return False
        self.next_offset = max(self.next_offset, base)
        self._move_to(segment, 0)
        self._is_ordered = True
        return True

    def _move_to(self, segment: Segment, position: int) -> None:
        self._segment, self._position, self._anchor = segment, position, None
        self._is_ordered = False
        self.scanner.path = segment.path

    def _relocate(self, look: _Look) -> bool:
        """Find the position by its offset after its segment was removed. Raise FileNotFoundError if the offset was
        deleted."""
        if not self._is_stable(look):
            return False
        reaching = self._reaching(look, self.next_offset)
        if not reaching:
            text = f"its batches from offset {self.next_offset} on were not read"
            raise self._deleted(look, self._segment.path, text)
        segment = reaching[0]
        try:
            position, next_offset = self._place_in(segment)
        except FileNotFoundError:
            self._is_changing = True
            return False  # gone since it was listed
        if segment.path == look.paths[-1] and next_offset < self.next_offset:
            raise self._truncated(position, next_offset)
        self._move_to(segment, position)
        return True

    def _place_in(self, segment: Segment) -> tuple[int, int]:
        """Return the position of the first batch at or above next_offset, and the offset after the batch before it."""
        place = position_of_offset(segment, self.next_offset, self._limits)
        with segment.open() as file:
            try:
                batch = batch_at(file, place.position, file.size(), self._limits)
            except DecodeError:  # the walk reports it
                batch = None
        is_there = batch is not None and batch.next_offset > self.next_offset
        return place.position, self.next_offset if is_there else max(place.first_offset, segment.base_offset or 0)

    def _reaching(self, look: _Look, offset: int) -> list[Segment]:
        """Return the segments from the one that contains `offset` on; none if this one was deleted."""
        own = self._segment.path
        segments = [segment for segment, _ in look.segments if not self._is_alone or segment.path == own]
        below = sum((segment.base_offset or 0) <= offset for segment in segments)
        return segments[below - 1 :] if below else []

    def walk_again(self, position: int) -> bool:
        """Look the walked batches from offset `position` on up again after files that contain them were replaced or
        removed. Return False if this is not possible yet.

        Transactions are not resolved again, because the scanner has walked these batches. Raise FileNotFoundError if
        the batch at `position` was deleted, and DecodeError if the log was truncated below the walked batches.
        """
        look = self._look()
        if not self._is_stable(look):
            return False
        stale = next((at for at, each in enumerate(self.walked) if each.is_intact()), len(self.walked))
        if stale == 0:
            return False  # the files are complete again
        until = self.walked[stale].first_offset if stale < len(self.walked) else self.next_offset
        reaching = self._reaching(look, position)
        if not reaching:
            path, text = self.walked[0].segment.path, f"the records from offset {position} on were not read"
            raise self._deleted(look, path, text)
        try:
            self.walked[:stale] = self._ranges(reaching, position, until, look.paths[-1])
        except FileNotFoundError:
            self._is_changing = True
            return False  # removed since the listing
        return True

    def _ranges(self, segments: list[Segment], position: int, until: int, last_path: str) -> list[Walked]:
        """Return the ranges of these segments that contain the offsets [position, until)."""
        found = []
        first = position
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            base = until if following is None else following.base_offset or 0
            with segment.open() as file:
                start = end = position_in(file, segment, first, self._limits).position
                last, reached, size = None, first, file.size()
                try:
                    for batch in walk_headers(file, start, size, self._limits):
                        if batch.last_offset >= until:
                            break
                        end, reached = batch.position + batch.size_in_bytes, batch.next_offset
                        last = batch.position, end
                    else:
                        # The reader reports a batch that is cut off.
                        end = end if segment.path == last_path else size
                except DecodeError:
                    end = size  # the reader reports the corruption
                anchor = None if last is None else Anchor.of(file, *last)
            if segment.path == last_path and reached < until:
                raise self._truncated(end, reached)
            behind = min(max(base, reached), until)
            if end > start:
                found.append(Walked(segment, start, end, first, behind, anchor, is_again=True))
            first = max(first, behind)
            if first >= until:
                break
        return found

    def _deleted(self, look: _Look, path: str, text: str) -> FileNotFoundError:
        first = look.segments[0][0].base_offset if look.segments else None
        there = "no segment is left" if first is None or self._is_alone else f"the log now begins at offset {first}"
        return FileNotFoundError(
            f"{path}: the segment was deleted while the log was followed, and {text}; {there}; open the log again to "
            "continue with the remaining data"
        )

    def _truncated(self, end: int, next_offset: int | None = None) -> DecodeError:
        path, position = self._segment.path, self._position
        what = f"the log was truncated while it was followed: batches below offset {self.next_offset} were read"
        remedy = "records that were read may not be in the log anymore; open the log again"
        if next_offset is not None:
            return DecodeError(f"{what}, but the log now ends at offset {next_offset}; {remedy}", path=path)
        if end < position:
            reason = f"{what}, up to byte {position}, but the file now ends at byte {end}; {remedy}"
            return TruncatedError(reason, needed=position, available=end, position=end, path=path)
        anchor = position if self._anchor is None else self._anchor[0]
        return DecodeError(f"{what}, but now another batch is at this position; {remedy}", position=anchor, path=path)

    def _is_anchor_there(self, file: SegmentFile, end: int) -> bool:
        """Return whether the file still contains the last walked batch."""
        return end >= self._position and (self._anchor is None or self._anchor.is_in(file))

    # Walk

    def _walk_closed(self, file: SegmentFile, end: int) -> bool:
        """Walk a segment to which nothing more is appended. Return True if there is more of it. Set `corruption`."""
        is_ordered = self._is_ordered or self._anchor is not None
        self.scanner.above_offset = self.next_offset - 1 if is_ordered else None
        begin = self._position
        try:
            self._walk(file, end)
            if self._position - begin < STEP_BYTES and self._position != end:
                raise cut_error(file, self._position, end)
            if self._position == end:
                ResumePositions(file, self._limits).ensure_complete(end, self.next_offset - 1)
        except DecodeError as error:
            self.corruption = self._corruption_of(file, error, end, is_last=False)
            return False
        return self._position < end

    def _walk_last(self, file: SegmentFile, end: int) -> bool:
        """Walk the complete batches of the segment to which a broker appends. Return True if there is more.

        A batch is complete if something is written after it, or if its CRC is valid. Near the end, a second scanner
        looks ahead, because the first one cannot undo a batch.
        """
        self.scanner.above_offset = None
        written, begin = self._position + 2 * STEP_BYTES, self._position
        if end > written + BATCH_OVERHEAD and not is_zeros(file, written, written + BATCH_OVERHEAD):
            try:
                self._walk(file, written)
            except DecodeError as error:
                return self._stay(file, end, error)
            if self._position > begin:
                return True
        probe, is_more = TransactionScanner(limits=self._limits, path=file.path), False
        ahead, refused = self._position, None
        try:
            for ahead in _places(probe, file, self._position, end):
                is_more = ahead - self._position >= STEP_BYTES
        except DecodeError as error:
            ahead, refused, is_more = ahead if error.position is None else error.position, error, False
        if probe.last_position >= self._position:
            batch = batch_at(file, probe.last_position, ahead, self._limits)
            if batch is not None and (computed := computed_crc(file, batch)) != batch.crc:
                reason = f"the stored CRC {batch.crc:#010x} does not match the CRC of the bytes, {computed:#010x}"
                ahead, refused = batch.position, DecodeError(reason, position=batch.position, path=file.path)
                is_more = False
        if ahead > self._position:
            self._walk(file, ahead)
        return is_more or self._stay(file, end, refused)

    def _stay(self, file: SegmentFile, end: int, refused: DecodeError | None) -> bool:
        """Stop the walk for now. Set `corruption` if a refused batch is also corrupt at the second look."""
        self._stuck = self._stuck.again(file.path, self._position)
        if refused is None:
            self._stuck = self._stuck._replace(corruption=None)
        elif self._stuck.is_check_due:
            corruption = self._corruption_of(file, refused, end, is_last=True)
            self.corruption = corruption if self._stuck.corruption is not None else None
            self._stuck = self._stuck._replace(corruption=corruption)
        return False

    def _walk(self, file: SegmentFile, end: int) -> None:
        """Walk up to `end`, for one step, or to the last complete batch."""
        try:
            for position in _places(self.scanner, file, self._position, end):
                self._note(file, position)
        except DecodeError as error:
            if error.position is not None:
                self._note(file, error.position)
            raise

    def _note(self, file: SegmentFile, end: int) -> None:
        """Note that the complete batches up to the position `end` have been walked."""
        start, self._position = self._position, end
        if end <= start or self.scanner.last_offset is None:
            return
        first, self.next_offset = self.next_offset, max(self.next_offset, self.scanner.last_offset + 1)
        walked_before, self._anchor = self._anchor, Anchor.of(file, self.scanner.last_position, end)
        before = self.walked[-1] if self.walked else None
        is_next = before is not None and before.segment.path == file.path and before.end == start
        version = file.version()
        # After the file was replaced, the walk has no anchor, and the range before is not a range of this file.
        is_other = before is not None and is_other_file(before.version, version)
        if before is not None and is_next and not is_other and before.anchor == walked_before:
            before.end, before.next_offset, before.anchor = end, self.next_offset, self._anchor
            before.version = version
        else:
            bounds = start, end, first, self.next_offset
            self.walked.append(Walked(self._segment, *bounds, self._anchor, version=version))

    def _corruption_of(self, file: SegmentFile, error: DecodeError, end: int, *, is_last: bool) -> DecodeError | None:
        """Return the error of a refused batch, or None if it is not complete yet.

        In a preallocated file, an incomplete batch may be a part of its header, followed by zeros.
        """
        behind = end if error.position is None else error.position + BATCH_OVERHEAD
        if is_last and behind < end and is_zeros(file, behind, end):
            return None
        try:
            tail_of_refused(file, error, end, self.next_offset - 1, self._limits, is_active=is_last)
        except DecodeError as corruption:
            return corruption
        return None


def _places(scanner: TransactionScanner, file: SegmentFile, position: int, end: int) -> Iterator[int]:
    """Walk from `position`, and yield the position after each window, for one step or to the last complete batch.

    For a batch whose size is unknown, the size of a header of magic 2 is requested, or the rest of the file, because a
    batch of magic 0 or 1 may be shorter.
    """
    windows = HeaderWindows(file, end)
    begin, needed = position, BATCH_OVERHEAD
    while position - begin < STEP_BYTES and position + LEAST_BATCH <= end:
        offered = min(needed, end - position)
        window = windows.at(position, offered)[: max(offered, STEP_BYTES)]
        ahead, needed = scanner.feed(window, position, end)
        is_cut = position + needed > end if ahead == position else needed > BATCH_OVERHEAD and ahead + needed > end
        if ahead > position:
            yield ahead
        elif needed <= offered:
            return
        if is_cut:
            return
        position = ahead
