# SPDX-License-Identifier: Apache-2.0
"""The check of one segment: every CRC and record, and the offsets between batches."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from kcodec._fast import DecodedRecords, RecordBatch, batches, decode
from kcodec.errors import CorruptBatchError, DecodeError, UnsupportedError
from kcodec.limits import DecodeLimits
from kcodec.log.check.findings import Finding, finding
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    CRC_FROM,
    LOWEST_OFFSET,
    Segment,
    Tail,
    provable_behind,
    records_in,
    stored_offset,
    tail_at_end,
    tail_of_refused,
)
from kcodec.log.timeline import HIGHEST_OFFSET
from kcodec.log.windows import WINDOW_BYTES, SegmentFile

# If a window has more records than this, its batches are checked one by one, because each record needs memory (8
# bytes).
MOST_RECORDS = 1 << 20


class CheckedBatch(NamedTuple):
    """A checked batch, whose bytes are valid until the next batch is requested.

    position: Position in the file; that of the header counts from the start of a window.
    is_sound: Whether CRC and records are valid.
    """

    header: RecordBatch
    position: int
    is_sound: bool
    is_last_of_window: bool


class SegmentWalk:
    """The batches of a segment in order, with findings between them.

    above:     Last offset before the segment; at the end, the last offset in it.
    following: First offset of the next segment.
    is_lost:   Whether some bytes so far could not be read as batches, or had a wrong CRC.
    size:      At the end: size in bytes.
    is_whole:  At the end: whether it was read to its end, except for a torn tail.
    has_tail:  At the end: whether it has a torn tail.
    """

    def __init__(self, segment: Segment, above: int, following: int | None, limits: DecodeLimits) -> None:
        self.segment = segment
        self.above = above
        self.size = 0
        self.is_whole = True
        self.is_lost = False
        self._lowest = LOWEST_OFFSET if segment.base_offset is None else segment.base_offset
        self._highest = HIGHEST_OFFSET if following is None else following - 1
        self.has_tail = False
        self._limits = limits

    def batches(self) -> Iterator[CheckedBatch | Finding]:
        """Yield the batches and findings in the order of the file."""
        with self.segment.open() as file:
            self.size = end = file.size()
            position, needed = 0, 0
            while position < end:
                window = file.read(position, min(max(WINDOW_BYTES, needed), end - position))
                passed, corruption = _passed(window, self._limits)
                walked = passed[-1].position + passed[-1].size_in_bytes if passed else 0
                if passed:
                    yield from self._window(file, window[:walked], position, passed, end)
                    if self.has_tail:
                        return
                    position += walked
                if corruption is not None:
                    behind = yield from self._corruption(file, position, corruption, end)
                    if behind is None:
                        return
                    position, needed = behind, 0
                    continue
                needed = _needed(window[walked:])
                if position < end < position + needed:
                    yield from self._cut(file, position, end)
                    return

    # Batches

    def _window(
        self, file: SegmentFile, window: memoryview, start: int, passed: list[RecordBatch], end: int
    ) -> Iterator[CheckedBatch | Finding]:
        """Check adjacent complete batches together. If this finds a problem, check them one by one."""
        # the records of a compressed message of magic 0 or 1 are unknown, so these are checked one by one
        counts = (batch.records_count if batch.magic > 1 else batch.compression and MOST_RECORDS for batch in passed)
        is_sound = sum(count or 0 for count in counts) < MOST_RECORDS
        if is_sound:
            try:
                decoded = decode(window, columns=("offset",), control_records="include", limits=self._limits)
                is_sound = _offsets_rise(decoded, passed)
            except DecodeError:
                is_sound = False
        last = passed[-1]
        for batch in passed:
            position = start + batch.position
            problem = None if is_sound else self._problem(batch, position)
            if problem is not None:
                if problem.code == "bad-crc" and (tail := self._torn(file, batch, position, end)) is not None:
                    yield self._tail(tail)
                    return
                self.is_lost = self.is_lost or problem.code in ("bad-crc", "crc-disagreement", "bad-batch")
                yield problem
            if not max(self._lowest, self.above + 1) <= batch.base_offset or batch.last_offset > self._highest:
                yield from self._order(batch, position)
            self.above = max(self.above, batch.last_offset)
            yield CheckedBatch(batch, position, problem is None or problem.code == "record-offsets", batch is last)

    def _problem(self, batch: RecordBatch, position: int) -> Finding | None:
        """Return the problem of one batch; its CRC is checked first."""
        path, offset = self.segment.path, batch.base_offset
        try:
            batch.ensure_valid()
        except CorruptBatchError as error:
            return _confirmed(batch, error, path, position)
        except DecodeError as error:
            return finding("bad-batch", path, error.reason, position=position, offset=offset)
        try:
            decoded = decode(batch.data, columns=("offset",), control_records="include", limits=self._limits)
        except UnsupportedError as error:
            return finding("unsupported", path, error.reason, position=position, offset=offset)
        except DecodeError as error:
            at = "" if error.record is None else f"record {error.record}: "
            return finding("bad-record", path, at + error.reason, position=position, offset=offset)
        if _offsets_rise(decoded, [batch]):
            return None
        text = f"the offsets of records do not increase within {batch.base_offset}..{batch.last_offset}"
        return finding("record-offsets", path, text, position=position, offset=offset)

    def _order(self, batch: RecordBatch, position: int) -> Iterator[Finding]:
        path, base = self.segment.path, batch.base_offset
        if base <= self.above:
            text = f"the batch begins with offset {base}, but the previous one ends with {self.above}"
            yield finding("offset-order", path, text, position=position, offset=base)
        if base < self._lowest:
            text = f"the batch begins with offset {base}, below {self._lowest} in the segment's name"
            yield finding("overlapping-segments", path, text, position=position, offset=base)
        if batch.last_offset > self._highest:
            text = (
                f"the batch ends with offset {batch.last_offset}, but the next segment begins with {self._highest + 1}"
            )
            yield finding("overlapping-segments", path, text, position=position, offset=base)

    # Corruption

    def _torn(self, file: SegmentFile, batch: RecordBatch, position: int, end: int) -> Tail | None:
        """Return the torn tail if an invalid last batch of the active segment is one. Return None if it is
        corruption."""
        error = CorruptBatchError(
            "the stored CRC does not match the CRC of the bytes",
            stored_crc=batch.crc,
            computed_crc=0,
            position=position,
        )
        try:
            # The batches of the window are still to be checked, so it must not be overwritten.
            other = file.apart()
            return tail_of_refused(other, error, end, self.above, self._limits, is_active=self.segment.is_active)
        except DecodeError:
            return None

    def _tail(self, tail: Tail) -> Finding:
        self.has_tail = True
        text = f"{tail.remaining_bytes} bytes: {tail.reason}"
        return finding("torn-tail", self.segment.path, text, position=tail.position)

    def _corruption(
        self, file: SegmentFile, position: int, error: DecodeError, end: int
    ) -> Generator[Finding, None, int | None]:
        """Handle a position where no batch begins. Return the position at which to continue; None if the rest is
        unknown."""
        error.position = position  # it counted from the window's start
        try:
            yield self._tail(
                tail_of_refused(file, error, end, self.above, self._limits, is_active=self.segment.is_active)
            )
            return None
        except DecodeError as corruption:
            self.is_lost = True
            behind = provable_behind(file, position, end, self.above, self._limits)
            text = corruption.reason
            if behind is None:
                self.is_whole = False
                text += f"; the {end - position} bytes from here on were not checked"
            code = "unsupported" if isinstance(corruption, UnsupportedError) else "bad-batch"
            yield finding(code, self.segment.path, text, position=position)
            return behind

    def _cut(self, file: SegmentFile, position: int, end: int) -> Iterator[Finding]:
        """Yield the finding for a batch that is cut off by the end of the file."""
        try:
            tail = tail_at_end(file, position, end, self.above, self._limits, is_active=self.segment.is_active)
            if tail is not None:
                yield self._tail(tail)
        except DecodeError as corruption:
            self.is_lost, self.is_whole = True, False
            code = "bad-batch" if self.segment.is_active else "cut-batch"
            yield finding(code, self.segment.path, corruption.reason, position=position)


def _passed(window: memoryview, limits: DecodeLimits) -> tuple[list[RecordBatch], DecodeError | None]:
    """Return the complete batches at the start of a window, and the reason why there are no more."""
    passed: list[RecordBatch] = []
    try:
        for batch in batches(window, limits=limits):  # extend() would request the length first, which may raise
            passed.append(batch)
    except DecodeError as error:
        return passed, error
    return passed, None


def _needed(rest: memoryview) -> int:
    """Return the size of a batch that a window cuts off, if its length is in the window."""
    if len(rest) < 12:
        return BATCH_OVERHEAD
    return 12 + int.from_bytes(rest[8:12], "big", signed=True)


def _offsets_rise(decoded: DecodedRecords, passed: list[RecordBatch]) -> bool:
    """Return whether the offsets of records increase within each batch, and are inside its bounds."""
    import numpy

    offsets = numpy.concatenate([chunk.to_numpy("offset") for chunk in decoded.chunks])
    counts = numpy.array([max(0, records_in(batch)) for batch in passed], dtype="i8")
    if len(offsets) != counts.sum():
        return False
    lowest = numpy.array([batch.base_offset for batch in passed], dtype="i8").repeat(counts)
    highest = numpy.array([batch.last_offset for batch in passed], dtype="i8").repeat(counts)
    numbers = numpy.arange(len(passed)).repeat(counts)
    rises = (numpy.diff(offsets) > 0) | (numpy.diff(numbers) > 0)
    return bool(rises.all() and (offsets >= lowest).all() and (offsets <= highest).all())


def _confirmed(batch: RecordBatch, error: CorruptBatchError, path: str, position: int) -> Finding:
    """Return the finding for a wrong CRC, after a check with another implementation."""
    stored, offset = error.stored_crc, stored_offset(batch)
    data = bytes(batch.data)
    if batch.magic < 2:
        other, name = zlib.crc32(data[16:]), "zlib"
    else:
        import crc32c

        other, name = crc32c.crc32c(data[CRC_FROM:]), "the package crc32c"
    if other == stored:
        text = f"kcodec computes crc {error.computed_crc:#010x}, but {name} the stored {stored:#010x}"
        return finding("crc-disagreement", path, text, position=position, offset=offset)
    text = f"crc {stored:#010x} is stored but the {len(data)} bytes have {other:#010x}"
    return finding("bad-crc", path, text, position=position, offset=offset)
