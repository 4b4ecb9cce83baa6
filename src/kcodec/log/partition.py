# SPDX-License-Identifier: Apache-2.0
"""One partition's log on disk: a segment, or all segments of a partition directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kcodec._fast import FRAMING_COLUMNS, AbortedTransactions, Record
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.batches import Batches
from kcodec.log.checkpoints import log_start_offset
from kcodec.log.chunks import (
    DEFAULT_COLUMNS,
    MAX_ROWS,
    ByteRange,
    Chunks,
    RecordsStream,
    StreamOptions,
    check_on_error,
)
from kcodec.log.follow import POLL_INTERVAL, FollowOptions, Stop
from kcodec.log.seek import START, IndexDisagreesError, SegmentPosition, find_by_index, find_by_walk, position_of_offset
from kcodec.log.segment import Segment, Tail, walk_headers
from kcodec.log.splits import DEFAULT_SPLIT_BYTES, Split, cut_segment
from kcodec.log.storage import Storage
from kcodec.log.timeline import Timeline, Transaction, Verdict, walk_segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.log.check.findings import Finding
    from kcodec.log.snapshots import ProducerState
    from kcodec.log.timeline_picture import TimelinePicture


class Log:
    """A partition's log: one segment, or all in its directory. Made by ``kcodec.open``; keeps no file open; pickles.

    path; topic and partition (None where it is not known); segments, in order of offsets; the options it was opened
    with. Reading keeps a position as Java's consumer does: nothing below the log start, no offset twice. Transactions
    are resolved by the end markers in all its segments, found by one walk over headers when first requested.
    """

    def __init__(
        self,
        path: str,
        segments: Iterable[Segment],
        *,
        topic: str | None,
        partition: int | None,
        high_watermark: int | None,
        check_crcs: bool,
        limits: DecodeLimits,
    ) -> None:
        if high_watermark is not None and high_watermark < 0:
            raise ValueError(f"high_watermark must be an offset, not {high_watermark}")
        self.path = path
        self.segments = tuple(segments)
        self.topic = topic
        self.partition = partition
        self._given_high_watermark = high_watermark
        self._check_crcs = check_crcs
        self._limits = limits
        self._timelines: dict[str, Timeline] = {}
        self._log_start_offset: int | None = None

    def __repr__(self) -> str:
        name = self.path if self.topic is None else f"{self.topic}-{self.partition}"
        return f"<Log {name}: {len(self.segments)} segments, {self.size_in_bytes} bytes>"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_timelines": {}}

    @property
    def storage(self) -> Storage:
        """Where its files lie."""
        return self.segments[0].storage

    # ------------------------------------------------------------------------------------------------------- offsets

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments now."""
        return sum(segment.size_in_bytes for segment in self.segments)

    @property
    def log_start_offset(self) -> int:
        """Records below it do not count: from log-start-offset-checkpoint, else where the first segment begins."""
        if self._log_start_offset is None:
            base, told = self.segments[0].base_offset, None
            if base is not None and self.topic is not None and self.partition is not None:
                directory = self.storage.parent(self.segments[0].path)
                told = log_start_offset(self.storage.parent(directory), self.topic, self.partition, self.storage)
            if base is None:
                base = self._first_base_offset()
            self._log_start_offset = base if told is None else max(base, told)
        return self._log_start_offset

    def _first_base_offset(self) -> int:
        """Of the first batch; 0 where none can be read, which is for a reading to complain of."""
        with self.segments[0].open() as file:
            try:
                batch = next(walk_headers(file, 0, file.size(), self._limits), None)
                return 0 if batch is None else batch.base_offset
            except DecodeError:
                return 0

    @property
    def log_end_offset(self) -> int:
        """Behind the last batch that counts."""
        return self._log_end_offset(self._timeline())

    @property
    def high_watermark(self) -> int:
        """As given to open(), else the log end, as nothing on disk says what followers had. Records from it on do not
        count."""
        given = self._given_high_watermark
        return self.log_end_offset if given is None else given

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends: the high watermark, or below it the first offset of an unresolved transaction."""
        limit = self.verdict().limit
        return self.high_watermark if limit is None else limit

    @property
    def tail(self) -> Tail | None:
        """What a dying broker left behind the last batch of the active segment: (position, remaining_bytes, reason)."""
        return self._timeline().segments[-1].tail

    @property
    def transactions(self) -> list[Transaction]:
        """Every transaction of which there is data or a marker, by the offset where it begins."""
        return list(self._timeline().transactions)

    @property
    def holding_transaction(self) -> Transaction | None:
        """The transaction that last_stable_offset waits for; None where it has reached the high watermark."""
        return self.settled()[1]

    def timeline(self) -> TimelinePicture:
        """Return the transactions of this partition as a picture, which has `to_svg`; notebooks show it.

        Raise DecodeError if a batch is corrupt.
        """
        from kcodec.log.timeline_picture import TimelinePicture

        name = self.path if self.topic is None else f"{self.topic}-{self.partition}"
        transactions, holding = self.settled()
        start, stable, end = self.log_start_offset, self.last_stable_offset, self.high_watermark
        return TimelinePicture(name, transactions, start, stable, end, holding)

    def settled(self, on_error: str = "raise") -> tuple[list[Transaction], Transaction | None]:
        """transactions and holding_transaction, with "stop" or "skip" those that corruption does not hide."""
        timeline, given = self._timeline(on_error), self._given_high_watermark
        end = self._log_end_offset(timeline) if given is None else given
        limit = timeline.verdict(end, self.log_start_offset).limit
        waiting = (one for one in timeline.transactions if one.marker_offset is None or one.marker_offset >= end)
        holding = (one for one in waiting if limit is not None and one.first_offset == limit < end)
        return list(timeline.transactions), next(holding, None)

    @property
    def producer_states(self) -> tuple[ProducerState, ...]:
        """What a broker knows of each producer at the log's end, by producer id.

        From the newest ``.snapshot`` whose producers the log bears out, and the batches behind it; without one from all
        batches, where nothing is known of a producer whose batches were deleted.
        """
        from kcodec.log.producers import producer_states

        return producer_states(self.segments, self.log_end_offset, self._limits)

    def offset_for_timestamp(self, timestamp: int, *, use_index: bool = True, on_error: str = "raise") -> int | None:
        """The offset of the first record whose timestamp in ms is at or above this one; None if there is none.

        As ListOffsets responds (FileRecords.searchForTimestamp): in order of offsets, whatever the order of timestamps,
        control records included, between log start and high watermark. use_index: look it up in each segment's time
        index, which is believed where the log bears out the entries used; False: walk all headers, once a Log.
        on_error: "skip" passes over what is corrupt, "stop" looks at what is before it; both walk all headers.
        """
        start = self.log_start_offset
        use_index = use_index and on_error == "raise"
        if use_index and self._check_crcs and "raise" not in self._timelines:
            try:
                return self._below_high_watermark(find_by_index(self.segments, timestamp, start, self._limits))
            except (IndexDisagreesError, DecodeError):
                self._timeline()  # settles it, or says what is wrong
        timeline, skip = self._timeline(on_error), on_error != "raise"
        walked = find_by_walk(timeline, timestamp, start, self._limits, check_crcs=self._check_crcs, skip_corrupt=skip)
        return self._below_high_watermark(walked)

    def _below_high_watermark(self, offset: int | None) -> int | None:
        given = self._given_high_watermark
        return offset if offset is None or given is None or offset < given else None

    def check(self, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
        """What is wrong with its files, and what an operator should do about each; empty for a log that is in order.

        Every byte is read, at constant memory; for a whole directory what is next to the segments, too. progress: is
        called with the bytes done and the bytes in all. ``findings`` gives the same as they are found.
        """
        return list(self.findings(progress))

    def findings(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Finding]:
        """The findings of ``check``, as they are found."""
        is_directory = self.path != self.segments[0].path
        from kcodec.log.check import LogCheck

        return LogCheck(self.segments, self._limits, progress, is_directory=is_directory).findings()

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def batches(self) -> Batches:
        """The headers of all batches, walked as they are requested; each brings its records when asked."""
        return Batches(self.segments, self._limits)

    def records(
        self,
        isolation_level: str = "read_uncommitted",
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        control_records: str = "skip",
        on_error: str = "raise",
        framing: str | None = None,
        follow: bool = False,
        poll_interval: float = POLL_INTERVAL,
        timeout: float | None = None,
        stop: Stop | None = None,
    ) -> Iterator[Record]:
        """The records with offsets in [start_offset, end_offset), in order, at constant memory.

        isolation_level, control_records, framing: as of ``kcodec.decode``. on_error: "raise"; "stop" ends at
        corruption; "skip" leaves out what is corrupt and continues where a batch can be proved: behind the corrupt
        batch, at the next position of ``.index``, or at the next segment (`losses` of the chunks of ``to_arrow`` names
        each loss). follow, poll_interval, timeout, stop: as of ``to_arrow``.
        """
        stream = self.to_arrow(
            isolation_level=isolation_level,
            start_offset=start_offset,
            end_offset=end_offset,
            control_records=control_records,
            on_error=on_error,
            framing=framing,
            follow=follow,
            poll_interval=poll_interval,
            timeout=timeout,
            stop=stop,
        )
        chunks = stream.promptly()
        return (record for decoded in chunks for record in decoded.records())

    def to_arrow(
        self,
        columns: Iterable[str] = DEFAULT_COLUMNS,
        isolation_level: str = "read_uncommitted",
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        control_records: str = "skip",
        max_rows: int = MAX_ROWS,
        binary_type: str = "binary",
        threads: int = 1,
        on_error: str = "raise",
        framing: str | None = None,
        follow: bool = False,
        poll_interval: float = POLL_INTERVAL,
        timeout: float | None = None,
        stop: Stop | None = None,
    ) -> RecordsStream:
        """The same records as a stream of Arrow batches of at most max_rows rows or about 32 MB.

        columns: names out of ``kcodec.COLUMNS``, topic and partition too. ValueError for an unknown column or option.
        framing: as of ``kcodec.decode``; key_schema_id and value_schema_id come with the default columns.
        Files are read as the stream is drawn; a DecodeError names file and position, and what came before it has come.
        threads: ranges of about 2 MB side by side, after a walk over headers; records and their order are the same, the
        batches may be smaller. It pays for compressed or large batches; tiny plain ones are quicker on one thread.
        follow: go on with what a broker appends, over new segments, and never end by itself but at end_offset. Looks
        again every poll_interval seconds; ends after `timeout` seconds without a record (0: at the log's end), and when
        ``stop()`` says True or the Event `stop` is set. What is not there in full yet is waited for; read_committed
        holds back what is not resolved yet; what replicas have is not known, as nothing on disk says it.
        FileNotFoundError if what was not read is deleted meanwhile, DecodeError if the log is truncated. It takes one
        thread, on_error="raise" and no high_watermark: ValueError.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns must be a sequence of names, not the string {columns!r}")
        if framing is not None and columns is DEFAULT_COLUMNS:
            columns = DEFAULT_COLUMNS + FRAMING_COLUMNS
        options = StreamOptions(
            columns=tuple(columns),
            isolation_level=isolation_level,
            start_offset=start_offset,
            end_offset=end_offset,
            control_records=control_records,
            on_error=on_error,
            check_crcs=self._check_crcs,
            limits=self._limits,
            binary_type=binary_type,
            framing=framing,
            max_rows=max_rows,
            topic=self.topic,
            partition=self.partition,
        )
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        following = FollowOptions(poll_interval, timeout, stop)
        if follow:
            if threads > 1 or on_error != "raise" or self._given_high_watermark is not None:
                raise ValueError("follow takes one thread, on_error='raise' and a log opened without high_watermark")
            return RecordsStream(partial(self._follow, following), options)
        if (timeout, stop) != (None, None):
            raise ValueError("timeout and stop are for follow=True")
        return RecordsStream(self._read if threads == 1 else partial(self._read_parallel, threads), options)

    def _read_parallel(self, threads: int, options: StreamOptions) -> Chunks:
        start, end = max(self.log_start_offset, options.start_offset or 0), options.end_offset
        splits = [
            split
            for walked in self._timeline(options.on_error).segments
            for split in cut_segment(walked, self.storage.range_bytes, None)
            if split.next_offset > start and (end is None or split.first_offset < end)
        ]
        verdict = self.verdict(options.isolation_level, options.on_error)
        return Chunks([split.byte_range for split in splits], verdict, options, threads=threads)

    def _follow(self, follow: FollowOptions, options: StreamOptions) -> Chunks:
        from kcodec.log.follow import follow_segments

        return follow_segments(self.path, self.segments, options, follow, self.log_start_offset)

    def _read(self, options: StreamOptions) -> Chunks:
        ranges = list(self._byte_ranges(options))
        verdict = self.verdict(options.isolation_level, options.on_error)
        return Chunks(ranges, verdict, options)

    def _byte_ranges(self, options: StreamOptions) -> Iterator[ByteRange]:
        """What to read: whole segments, but for those whose names say that they lie outside the range."""
        start = max(self.log_start_offset, options.start_offset or 0)
        is_walked = options.isolation_level == "read_committed" or not self._check_crcs
        walked = self._timeline(options.on_error).segments if is_walked else None
        for index, segment in enumerate(self.segments):
            following = self.segments[index + 1].base_offset if index + 1 < len(self.segments) else None
            if following is not None and following <= start:
                continue
            base = segment.base_offset or 0
            if options.end_offset is not None and base >= options.end_offset:
                return
            end = segment.size_in_bytes if not segment.is_active else None
            place = START
            if walked is not None:
                end, place = walked[index].end, SegmentPosition(*walked[index].reaching(start))
            elif start > base:
                place = position_of_offset(segment, start, self._limits)
            rising, storage = not segment.is_active, segment.storage
            yield ByteRange(segment.path, place.position, end, place.first_offset, rising, storage, following)

    # ---------------------------------------------------------------------------------------------------- transactions

    def verdict(self, isolation_level: str = "read_committed", on_error: str = "raise") -> Verdict:
        """What a reader of any part of this log has to know of the rest: for ``read_split``, elsewhere.

        on_error: "skip" resolves what can be resolved across corruption, "stop" what is before it.
        """
        start = self.log_start_offset
        if isolation_level == "read_uncommitted":
            return Verdict(AbortedTransactions(), self._given_high_watermark, start)
        timeline = self._timeline(on_error)
        given = self._given_high_watermark
        return timeline.verdict(self._log_end_offset(timeline) if given is None else given, start)

    def splits(
        self,
        max_bytes: int = DEFAULT_SPLIT_BYTES,
        start_offset: int | None = None,
        end_offset: int | None = None,
        on_error: str = "raise",
    ) -> list[Split]:
        """Ranges of whole batches of at most max_bytes, those outside [start_offset, end_offset) left out.

        A batch that is larger is a range of its own. One walk over headers, the same that resolves transactions.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        start = max(self.log_start_offset, start_offset or 0)
        return [
            split
            for walked in self._timeline(on_error).segments
            for split in cut_segment(walked, max_bytes, self._limits)
            if split.next_offset > start and (end_offset is None or split.first_offset < end_offset)
        ]

    def _timeline(self, on_error: str = "raise") -> Timeline:
        check_on_error(on_error)
        if on_error not in self._timelines:
            self._timelines[on_error] = walk_segments(self.segments, self._limits, on_error)
        return self._timelines[on_error]

    def _log_end_offset(self, timeline: Timeline) -> int:
        """A segment without batches begins where the log ends."""
        ends = [timeline.next_offset, self.segments[-1].base_offset if timeline.error is None else None]
        return max((end for end in ends if end is not None), default=0)
