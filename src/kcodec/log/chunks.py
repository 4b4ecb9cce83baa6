# SPDX-License-Identifier: Apache-2.0
"""Records of segments with constant memory: byte ranges of files are decoded into chunks of columns.

A position advances as in Java's consumer (CompletedFetch). It begins at the log start or start_offset. Each record and
each batch advances it. Records below it are left out, so that no offset is returned twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from kcodec import _fast
from kcodec._fast import Counts, DecodedRecords, Decoder, header_at
from kcodec.errors import DecodeError
from kcodec.limits import DEFAULT_LIMITS, DecodeLimits
from kcodec.log.salvage import BatchWindow, Loss, ResumePositions, batches_in_order, read_batches
from kcodec.log.segment import (
    BATCH_OVERHEAD,
    LOWEST_OFFSET,
    Tail,
    base_offset_of,
    cut_error,
    is_zeros,
    stored_offset,
    tail_at_end,
    tail_of_cut,
    tail_of_refused,
)
from kcodec.log.storage import LOCAL, FileVersion, Storage
from kcodec.log.timeline import HIGHEST_OFFSET, Verdict
from kcodec.log.windows import WINDOW_BYTES, SegmentFile, WindowBuffer

DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
MAX_ROWS = 65_536
# The size of the first window if the first records must be available early. It has at least one batch.
PROMPT_BYTES = 64 << 10
ON_ERROR = ("raise", "stop", "skip")
# The options of StreamOptions that a Decoder takes as they are.
DECODER_OPTIONS = (
    *("columns", "isolation_level", "control_records", "check_crcs", "limits", "binary_type", "max_rows", "topic"),
    *("partition", "spark_layout", "framing"),
)


def check_on_error(on_error: str) -> None:
    """Raise ValueError if on_error is invalid."""
    if on_error not in ON_ERROR:
        raise ValueError(f"unknown on_error {on_error!r}; possible: {', '.join(ON_ERROR)}")


class Anchor(NamedTuple):
    """A batch by its position, its end and its header. If the file has another batch there, no position in it is
    known."""

    position: int
    end: int
    header: bytes

    @classmethod
    def of(cls, file: SegmentFile, position: int, end: int) -> Anchor:
        """Return the anchor of the batch [position, end)."""
        return cls(position, end, bytes(file.read(position, min(BATCH_OVERHEAD, end - position))))

    def is_in(self, file: SegmentFile) -> bool:
        """Return whether the file contains the batch."""
        return file.size() >= self.end and bytes(file.read(self.position, len(self.header))) == self.header


class SegmentReplacedError(Exception):
    """The file at this path does not contain the anchor of a byte range, or is another file, or does not exist.
    Internal."""


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, end) of one file, both at batch boundaries; end is None if the range ends with the file.

    first_offset: Position of a consumer at the beginning.
    is_rising:    Whether base offsets must increase, as in all segments except the active one.
    below_offset: First offset after the range; None if it is unknown.
    anchor:       A batch that the file must contain, if it may be replaced; None to read the file as it is.
    version:      Version of the file when it was listed, if it may be replaced; None to read the file as it is.
    known_end:    Size of the file when the reading began, if the range ends with the file and all these bytes are data.
    """

    path: str
    start: int
    end: int | None
    first_offset: int
    is_rising: bool
    storage: Storage = field(default=LOCAL, repr=False)
    below_offset: int | None = None
    anchor: Anchor | None = None
    version: FileVersion | None = field(default=None, repr=False, compare=False)
    known_end: int = 0

    def end_in(self, file: SegmentFile) -> int:
        """Return the position at which reading ends. If the file was truncated since the reading began, it is after the
        end of the file, so that a read raises TruncatedError."""
        return max(file.size(), self.known_end) if self.end is None else self.end

    def open(self, *, fresh: bool, buffer: WindowBuffer) -> SegmentFile:
        """Return the file. Raise SegmentReplacedError if it was replaced or removed since it was listed."""
        try:
            file = SegmentFile(self.path, self.storage, fresh=fresh, buffer=buffer, likely_end=self.end)
        except FileNotFoundError as error:
            if self.version is None:
                raise
            raise SegmentReplacedError(self.path) from error
        found = None if self.version is None else file.version()
        if self.version is not None and found is not None and self.version.is_replaced_by(found):
            with file:
                raise SegmentReplacedError(self.path)
        return file

    @property
    def may_be_torn(self) -> bool:
        """Whether an incomplete or corrupt batch at its end may be the last append of a broker."""
        return self.end is None and not self.is_rising


@dataclass(frozen=True)
class StreamOptions:
    """Options for reading ranges: those of ``kcodec.decode``, and options of streams. Raise ValueError for unknown
    ones.

    is_prompt: The first chunk of a range has few records, so that it is available early.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    isolation_level: str = "read_uncommitted"
    start_offset: int | None = None
    end_offset: int | None = None
    control_records: str = "skip"
    on_error: str = "raise"
    check_crcs: bool = True
    limits: DecodeLimits = DEFAULT_LIMITS
    binary_type: str = "binary"
    max_rows: int = MAX_ROWS
    topic: str | None = None
    partition: int | None = None
    spark_layout: bool = False
    framing: str | None = None
    is_prompt: bool = False

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        self.decoder("", _NOTHING, None, None)

    def decoder(self, path: str, verdict: Verdict, position: int | None, above_offset: int | None) -> Decoder:
        """Return a decoder for one file, from this position on."""
        is_committed = self.isolation_level == "read_committed"
        return Decoder(
            **{name: getattr(self, name) for name in DECODER_OPTIONS},
            aborted_transactions=verdict.aborted_transactions if is_committed else None,
            last_stable_offset=verdict.limit if is_committed else None,
            start_offset=position,
            end_offset=self.end_offset if is_committed else _least(self.end_offset, verdict.limit),
            path=path,
            keep_position=True,
            above_offset=above_offset,
        )


_NOTHING = Verdict(_fast.AbortedTransactions(), None, 0)


def _least(one: int | None, other: int | None) -> int | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)


class ChunkReader(Protocol):
    """A source of chunks, with its counts so far."""

    error: DecodeError | None
    is_ended: bool

    @property
    def losses(self) -> Sequence[Loss]:
        """The losses so far."""
        ...

    @property
    def counts(self) -> Counts:
        """Counts of what has been read so far."""
        ...

    @property
    def position(self) -> int:
        """Offset after the batches whose records were returned."""
        ...

    def chunks(self) -> Iterator[DecodedRecords]:
        """Return every chunk; to be called once."""
        ...


@dataclass
class _Before:
    """What was read before files were replaced. `attempts` is the number of times in a row that nothing was read from
    `position` on."""

    counts: Counts = field(default_factory=Counts)
    error: DecodeError | None = None
    losses: list[Loss] = field(default_factory=list)
    position: int = -1
    attempts: int = 0


class Chunks(Iterator[DecodedRecords]):
    """An iterator over chunks, DecodedRecords of at most max_rows rows and about 32 MB.

    verdict: The outcome of transactions. options: As in ``Log.to_arrow``. walk_error: The corruption before which the
    ranges end, with on_error="stop". tail_loss: The torn tail before which the ranges end, with on_error="skip".
    again: Returns the chunks from an offset on after a file was replaced or removed. Its arguments are the path of the
    file, the offset, and the number of calls for this offset before. None if the files stay.

    With several threads ranges are read in parallel and returned in order. The records before a corrupt batch are
    returned before its error is raised. Files and threads are released at the end, by close(), and when the iterator is
    deleted.
    """

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        verdict: Verdict,
        options: StreamOptions,
        *,
        threads: int = 1,
        walk_error: DecodeError | None = None,
        tail_loss: Loss | None = None,
        again: Callable[[str, int, int], Chunks] | None = None,
    ) -> None:
        self._reading: ChunkReader = SequentialReader(ranges, verdict, options)
        if threads > 1:
            from kcodec.log.parallel import ParallelReader

            self._reading = ParallelReader(ranges, verdict, options, threads)
        self._walk_error = walk_error
        self._tail_loss = tail_loss
        self._is_read = False
        self._again = again
        self._before = _Before()
        # The generator has no reference to this object, so dropping the object ends the reading immediately.
        self._chunks = self._reading.chunks()

    @classmethod
    def of(cls, reading: ChunkReader) -> Chunks:
        """Return the chunks of a ChunkReader."""
        chunks = cls.__new__(cls)
        chunks._reading = reading
        chunks._walk_error, chunks._tail_loss, chunks._is_read = None, None, False
        chunks._again, chunks._before = None, _Before()
        chunks._chunks = reading.chunks()
        return chunks

    def __next__(self) -> DecodedRecords:
        while True:
            try:
                return next(self._chunks)
            except StopIteration:
                self._is_read = True
                raise
            except SegmentReplacedError as replaced:
                path, again = str(replaced), self._again
            assert again is not None
            self._continue(again, path)

    def _continue(self, again: Callable[[str, int, int], Chunks], path: str) -> None:
        """Continue in the files that have replaced the file at `path`. All data in files before it has been read."""
        before, position = self._before, max(self._reading.position, base_offset_of(path))
        before.attempts = before.attempts + 1 if position == before.position else 0
        other = again(path, position, before.attempts)
        before.error = before.error or self._reading.error
        before.losses += self._reading.losses
        before.counts, before.position = sum_of_counts(before.counts, self._reading.counts), position
        self._reading, self._chunks = other._reading, other._chunks
        self._walk_error, self._tail_loss, self._again = other._walk_error, other._tail_loss, other._again

    @property
    def counts(self) -> Counts:
        """Counts of what has been read so far."""
        return sum_of_counts(self._before.counts, self._reading.counts)

    @property
    def position(self) -> int:
        """Offset after the batches that have been read so far."""
        return max(self._before.position, self._reading.position)

    @property
    def error(self) -> DecodeError | None:
        """The first error that was skipped, or that ended reading, with on_error "skip" or "stop"."""
        return self._before.error or self._reading.error or (self._walk_error if self._is_read else None)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses so far with on_error="skip", in order: positions and offsets of skipped bytes."""
        tail = [] if self._tail_loss is None or not self._is_read else [self._tail_loss]
        return (*self._before.losses, *self._reading.losses, *tail)

    def close(self) -> None:
        """Stop reading, and release files and threads."""
        if isinstance(self._chunks, Generator):
            self._chunks.close()


class SequentialReader:
    """Reads one range after another, on the caller's thread."""

    error: DecodeError | None

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        verdict: Verdict,
        options: StreamOptions,
        buffer: WindowBuffer | None = None,
    ) -> None:
        self._buffer = buffer or WindowBuffer()
        self.error = None
        self.is_ended = False
        self.losses: list[Loss] = []
        self._counts = Counts()
        self._decoder: Decoder | None = None
        self._byte_ranges = ranges
        self._verdict = verdict
        self._options = options
        start = verdict.log_start_offset
        self._position = start if options.start_offset is None else max(start, options.start_offset)
        self._requested = self._position
        self._last_offset = LOWEST_OFFSET

    @property
    def counts(self) -> Counts:
        """Counts of what has been read so far."""
        return self._counts if self._decoder is None else sum_of_counts(self._counts, self._decoder.counts)

    @property
    def position(self) -> int:
        """Offset after the batches that were read."""
        return self._position

    def pending(self) -> Iterator[DecodedRecords]:
        """Return the rest of the records that were decoded before `chunks` raised an error."""
        if self._decoder is not None:
            yield from self._decoder.take(flush=True)

    def chunks(self) -> Iterator[DecodedRecords]:
        """Return every chunk; to be called once."""
        for byte_range in self._byte_ranges:
            self._position = max(self._position, byte_range.first_offset)
            self._last_offset = max(self._last_offset, byte_range.first_offset - 1)
            fresh = self._options.binary_type == "binary_view"
            with byte_range.open(fresh=fresh, buffer=self._buffer) as file:
                if byte_range.anchor is not None and not byte_range.anchor.is_in(file):
                    raise SegmentReplacedError(byte_range.path)
                above = self._last_offset if byte_range.is_rising else None
                self._decoder = self._options.decoder(byte_range.path, self._verdict, self._position, above)
                read = self._salvage if self._options.on_error == "skip" else self._read
                yield from read(byte_range, file, self._decoder)
                self._counts, self._decoder = self.counts, None
            if self._is_done():
                return

    def _is_done(self) -> bool:
        """Return whether corruption that was not skipped has ended the reading, or the end offset has been reached."""
        end_offset = self._options.end_offset
        return self.is_ended or (end_offset is not None and self._position >= end_offset)

    def _read(self, byte_range: ByteRange, file: SegmentFile, decoder: Decoder) -> Iterator[DecodedRecords]:
        position, needed = byte_range.start, 0
        end = byte_range.end_in(file)
        rest = memoryview(b"")  # the rest of the window after a finished chunk
        while position < end and not self._is_done():
            is_first = self._options.is_prompt and position == byte_range.start
            wanted = max(PROMPT_BYTES if is_first else WINDOW_BYTES, needed)
            window = rest or file.read(position, min(wanted, end - position))
            rest, corruption = memoryview(b""), None
            try:
                consumed = decoder.feed(window, position)
                behind = position + consumed
                needed = decoder.bytes_needed
                if not needed:
                    rest = window[consumed:]
            except DecodeError as error:
                corruption = error
                behind = position if error.position is None else error.position
            self._move_on(decoder, window, position, behind)
            yield from decoder.take(flush=is_first or corruption is not None)
            position = behind
            if corruption is not None:
                position, needed = self._behind_corruption(byte_range, file, corruption, end), 0
            elif position < end and position + needed > end:
                grown = byte_range.end_in(file)
                if grown <= end:
                    yield from decoder.take(flush=True)
                    self._check_end(byte_range, file, position, end)
                    break
                end = grown
        yield from decoder.take(flush=True)
        if byte_range.is_rising and position == end == file.size() and not self._is_done():
            self._check_complete(file, end)

    def _check_complete(self, file: SegmentFile, end: int) -> None:
        """Determine whether a closed segment that ends at a batch boundary was cut there."""
        try:
            ResumePositions(file, self._options.limits).ensure_complete(end, self._last_offset)
        except DecodeError as corruption:
            self._stop_at(corruption)

    def _move_on(self, decoder: Decoder, window: memoryview, start: int, behind: int) -> None:
        """Note that the complete batches of the window, up to the position `behind`, have been walked."""
        if decoder.next_offset is not None:
            self._position = max(self._position, decoder.next_offset)
            self._last_offset = max(self._last_offset, decoder.next_offset - 1)
        if self._verdict.unsettled and self._options.isolation_level == "read_committed":
            undecided = _unsettled_records(window[: behind - start], start, self._verdict, self._options)
            self._counts = sum_of_counts(self._counts, Counts(aborted=-undecided, undecided=undecided))

    def _check_end(self, byte_range: ByteRange, file: SegmentFile, position: int, end: int) -> None:
        """Determine whether a batch that is cut off by the end is a torn tail or corruption."""
        try:
            tail_at_end(file, position, end, self._last_offset, self._options.limits, is_active=byte_range.may_be_torn)
        except DecodeError as corruption:
            self._stop_at(corruption)

    def _stop_at(self, corruption: DecodeError) -> None:
        if self._options.on_error == "raise":
            raise corruption
        self.error = self.error or corruption
        self.is_ended = True

    def _behind_corruption(self, byte_range: ByteRange, file: SegmentFile, error: DecodeError, end: int) -> int:
        """Return `end` after a torn tail. Stop at corruption."""
        options = self._options
        try:
            active, check_crcs = byte_range.may_be_torn, options.check_crcs
            tail_of_refused(
                file, error, end, self._last_offset, options.limits, is_active=active, check_crcs=check_crcs
            )
        except DecodeError as corruption:
            self._stop_at(corruption)
        return end

    # on_error="skip"

    def _salvage(self, byte_range: ByteRange, file: SegmentFile, decoder: Decoder) -> Iterator[DecodedRecords]:
        """Read all data that is not corrupt. Corruption is skipped and noted in `losses`, and reading continues."""
        positions = ResumePositions(file, self._options.limits)
        position = byte_range.start
        end = byte_range.end_in(file)
        while position < end and not self._is_done():
            is_first = self._options.is_prompt and position == byte_range.start
            size = PROMPT_BYTES if is_first else WINDOW_BYTES
            window = read_batches(file, position, end, size, self._options.limits)
            count, corruption = self._in_order(window, byte_range, positions, end)
            if count:
                behind = window.batches[count - 1].position + window.batches[count - 1].size_in_bytes
                rest = window.data[: behind - position]
                while rest and corruption is None:
                    try:
                        ahead = position + decoder.feed(rest, position)
                    except DecodeError as error:
                        corruption = error
                        ahead = position if error.position is None else error.position
                    self._move_on(decoder, rest, position, ahead)
                    yield from decoder.take(flush=is_first or corruption is not None)
                    rest, position = rest[ahead - position :], ahead
                if corruption is None:
                    continue
            elif corruption is None:
                grown = byte_range.end_in(file)
                if grown > end:
                    end = grown
                    continue
            yield from decoder.take(flush=True)
            position = self._behind_loss(byte_range, file, positions, position, end, corruption)
        yield from decoder.take(flush=True)
        if end == file.size() and not self._is_done():
            self._note_missing(byte_range, positions, end)

    def _in_order(
        self, window: BatchWindow, byte_range: ByteRange, positions: ResumePositions, end: int
    ) -> tuple[int, DecodeError | None]:
        """Return the number of batches of a window that can be decoded. If it is 0, also return the error; None if the
        batch is cut off."""
        if not window.batches:
            return 0, window.failure
        headers = window.batches if window.following is None else [*window.batches, window.following]
        count = batches_in_order(headers, self._last_offset, byte_range.below_offset, positions, end)
        if count:
            return min(count, len(window.batches)), None
        base, last = stored_offset(headers[0]), self._last_offset
        reason = f"base_offset {base} is not above {last}, the last offset before it"
        if base > last:
            reason = f"base_offset {base} is above the offsets of the next batch"
        return 0, DecodeError(reason, position=headers[0].position, base_offset=base, path=byte_range.path)

    def _note_missing(self, byte_range: ByteRange, positions: ResumePositions, end: int) -> None:
        """Note the loss of the batches after the end of a segment that was cut between two batches."""
        if self.losses and (self.losses[-1].path, self.losses[-1].end_position) == (byte_range.path, end):
            return
        if not positions.are_after(end):
            return
        reason = "the segment ends before positions in its index"
        first = max(self._position, self._last_offset + 1)
        self.losses.append(Loss(byte_range.path, end, end, first, byte_range.below_offset, reason))
        self._counts = sum_of_counts(self._counts, Counts(skipped_batches=1))

    def _behind_loss(
        self,
        byte_range: ByteRange,
        file: SegmentFile,
        positions: ResumePositions,
        position: int,
        end: int,
        error: DecodeError | None,
    ) -> int:
        """Note the loss of the batch at `position`, and of the data that must be skipped with it. Return where reading
        continues.

        error: Error of the batch; None if it is cut off by the end.
        """
        limits, above, torn = self._options.limits, self._last_offset, byte_range.may_be_torn
        if torn and is_zeros(file, position, end) and not positions.are_after(position):
            return end
        found = positions.behind(position, end, above)
        behind, offset = (end, byte_range.below_offset) if found is None else found
        if found is None and end < file.size():
            after = positions.offset_at(end, file.size())
            offset = offset if after is None or after <= above else after
        is_before = offset is not None and (offset < self._requested or offset == self._options.start_offset)
        if is_before and offset is not None and above < offset:
            return behind  # all offsets of the lost data are below the requested ones
        first = max(self._position, above + 1) if above > LOWEST_OFFSET else max(self._position, 0)
        is_tail = torn and found is None
        tail: Tail | None
        try:
            if error is not None:
                check_crcs = self._options.check_crcs
                tail = tail_of_refused(file, error, end, above, limits, is_active=is_tail, check_crcs=check_crcs)
            elif is_tail:
                tail = tail_of_cut(file, position, end, above, limits)
            else:
                raise cut_error(file, position, end)
            if tail is not None:
                self.losses.append(Loss(file.path, position, behind, first, offset, tail.reason))
        except DecodeError as corruption:
            self.error = self.error or corruption
            self._counts = sum_of_counts(self._counts, Counts(batches=1, skipped_batches=1))
            self.losses.append(Loss(file.path, position, behind, first, offset, corruption.reason))
        return behind


def _unsettled_records(window: memoryview, start: int, verdict: Verdict, options: StreamOptions) -> int:
    """Return the number of records that the decoder counts as aborted although their outcome is unknown; see
    Verdict.unsettled."""
    at = count = 0
    first = max(verdict.log_start_offset, options.start_offset or 0)
    end = HIGHEST_OFFSET if options.end_offset is None else options.end_offset
    limit = HIGHEST_OFFSET if verdict.limit is None else verdict.limit
    while at < len(window):
        batch = header_at(window[at:], start + at, None, options.limits)
        if batch is None:
            break
        at += batch.size_in_bytes
        if batch.records_count is None or not batch.is_transactional or batch.is_control_batch:
            continue  # magic 0 and 1 know no transactions
        is_wanted = batch.base_offset < min(limit, end) and batch.last_offset >= first
        if is_wanted and any(
            batch.producer_id == producer_id and begun <= batch.last_offset and batch.base_offset <= ended
            for producer_id, begun, ended in verdict.unsettled
        ):
            count += batch.records_count
    return count


def sum_of_counts(one: Counts, other: Counts) -> Counts:
    """Return the sum of both, field by field."""
    return Counts(*(a + b for a, b in zip(one, other, strict=True)))


class RecordsStream:
    """Records of a log as a stream of Arrow batches, read as its consumer requests, with constant memory.

    Pass it to any library that accepts ``__arrow_c_stream__`` (``pyarrow.RecordBatchReader.from_stream(stream)``,
    polars, duckdb), or iterate over it for chunks of DecodedRecords. Each use reads the log again.

    Log.to_arrow() creates it, with the function that begins to read and its options.
    """

    def __init__(self, read: Callable[[StreamOptions], Chunks], options: StreamOptions) -> None:
        self._read = read
        self._options = options

    @property
    def schema(self) -> _fast.ColumnsSchema:
        """Schema for Arrow libraries, with ``__arrow_c_schema__``."""
        options = self._options
        return _fast.schema_of(options.columns, options.binary_type, options.spark_layout, options.framing)

    def __iter__(self) -> Chunks:
        return self._read(self._options)

    def promptly(self) -> Chunks:
        """Return chunks, the first of which is small and available early."""
        return self._read(replace(self._options, is_prompt=True))

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        options = self._options
        layout = (options.spark_layout, options.framing)
        return _fast.stream_capsule(options.columns, options.binary_type, iter(self), *layout)

    def __repr__(self) -> str:
        return f"<RecordsStream {', '.join(self._options.columns)}; {self._options.isolation_level}>"
