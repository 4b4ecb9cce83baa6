# SPDX-License-Identifier: Apache-2.0
"""The log of one partition on disk: a segment, or all segments of a partition directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kcodec._fast import FRAMING_COLUMNS, AbortedTransactions, Record
from kcodec.arguments import suggesting
from kcodec.errors import DecodeError, TruncatedError
from kcodec.integers import INT64_MAX, INT64_MIN, checked_integer
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
from kcodec.log.salvage import Loss, ResumePositions
from kcodec.log.seek import START, IndexDisagreesError, SegmentPosition, find_by_index, find_by_walk, position_of_offset
from kcodec.log.segment import ZEROS, Segment, Tail, base_offset_of, data_end, walk_headers
from kcodec.log.splits import DEFAULT_SPLIT_BYTES, Split, cut_segments, tail_between
from kcodec.log.storage import FileVersion, Storage, is_other_file
from kcodec.log.swaps import stable_segments
from kcodec.log.timeline import Timeline, Transaction, Verdict, WalkedSegment, walk_segments
from kcodec.timestamps import warn_of_unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.log.check.findings import Finding
    from kcodec.log.snapshots import ProducerState
    from kcodec.log.timeline_picture import TimelinePicture


#: Number of times in a row that the segments are listed again before a read gives up.
MAX_LISTINGS = 5
Result = TypeVar("Result")


class Log:
    """The log of a partition: one segment, or all segments of its directory.

    Created by ``kcodec.open``. It keeps no file open and can be pickled. path: the file or directory; topic and
    partition: None if unknown; segments: in order of offsets; further attributes are the options of open():
    high_watermark, check_crcs, limits.

    Reading advances a position as Java's consumer does: records below the log start are left out, and no offset is
    returned twice. The end markers in all segments determine the outcome of transactions. The headers of all batches
    are read when this is first needed, and again if batches were appended to the last segment since. The log does not
    include segments that a broker creates later: open the log again, or use follow=True. If the log cleaner replaces
    local files while they are read, the segments are listed again, and reading continues with the next offset.
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
        if high_watermark is not None:
            high_watermark = checked_integer("high_watermark", high_watermark, 0, expected="an offset or None")
        self.path = path
        self.segments = tuple(segments)
        self.topic = topic
        self.partition = partition
        self._given_high_watermark = high_watermark
        self._check_crcs = check_crcs
        self._limits = limits
        self._timelines: dict[str, tuple[Timeline, int]] = {}  # and sizes of the last segment before the walk
        self._log_start_offset: int | None = None

    def __repr__(self) -> str:
        name = self.path if self.topic is None else f"{self.topic}-{self.partition}"
        return f"<Log {name}: {len(self.segments)} segments, {self.size_in_bytes} bytes>"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_timelines": {}}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("topics", "values", "items", "keys"):
                text = (
                    f"a Log is one partition and has no {name}: use log.topic and log.partition, or open the log "
                    "directory, which contains the directories of all partitions"
                )
            raise AttributeError(text, name=name, obj=self)

    @property
    def storage(self) -> Storage:
        """The storage of the files."""
        return self.segments[0].storage

    # Offsets

    @property
    def size_in_bytes(self) -> int:
        """Current size of all segments in bytes."""
        return self._relisting(lambda: sum(segment.size_in_bytes for segment in self.segments))

    @property
    def log_start_offset(self) -> int:
        """First offset that is read: from log-start-offset-checkpoint, else of the first segment."""
        if self._log_start_offset is None:
            base, recorded = self.segments[0].base_offset, None
            if base is not None and self.topic is not None and self.partition is not None:
                directory = self.storage.parent(self.segments[0].path)
                recorded = log_start_offset(self.storage.parent(directory), self.topic, self.partition, self.storage)
            if base is None:
                base = self._first_base_offset()
            self._log_start_offset = base if recorded is None else max(base, recorded)
        return self._log_start_offset

    def _first_base_offset(self) -> int:
        """Return the base offset of the first batch; 0 if none can be read, which a later read reports."""
        with self.segments[0].open() as file:
            try:
                batch = next(walk_headers(file, 0, file.size(), self._limits), None)
                return 0 if batch is None else batch.base_offset
            except DecodeError:
                return 0

    @property
    def log_end_offset(self) -> int:
        """Offset after the last valid batch."""
        return self._log_end_offset(self._timeline())

    @property
    def high_watermark(self) -> int:
        """High watermark given to open(), else the log end offset. Later records are ignored."""
        given = self._given_high_watermark
        return self.log_end_offset if given is None else given

    @property
    def last_stable_offset(self) -> int:
        """Offset where read_committed ends: the high watermark, or the first offset of an open transaction below it."""
        limit = self.verdict().limit
        return self.high_watermark if limit is None else limit

    def end_offset(self, isolation_level: str = "read_uncommitted", on_error: str = "raise") -> int:
        """Return the offset at which reading ends.

        isolation_level: "read_uncommitted" returns the high watermark, "read_committed" the last stable offset.
        on_error: If a batch is corrupt, "raise" raises DecodeError, "skip" returns the end of the data that can be
                  read, and "stop" returns the end of the data before the corruption.
        """
        timeline, given = self._timeline(on_error), self._given_high_watermark
        end = self._log_end_offset(timeline) if given is None else given
        limit = self._verdict(isolation_level, timeline).limit
        return end if limit is None else limit

    @property
    def tail(self) -> Tail | None:
        """Invalid data after the last batch of the active segment: (position, remaining_bytes, reason), or None."""
        return self._timeline().segments[-1].tail

    @property
    def transactions(self) -> list[Transaction]:
        """All transactions with data or a marker in the log, in order of their first offset."""
        return list(self._timeline().transactions)

    @property
    def holding_transaction(self) -> Transaction | None:
        """The transaction that blocks the last stable offset; None if that has reached the high watermark."""
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
        """Return transactions and holding_transaction. With on_error "stop" or "skip", return those that corruption
        does not hide."""
        timeline, given = self._timeline(on_error), self._given_high_watermark
        end = self._log_end_offset(timeline) if given is None else given
        limit = timeline.verdict(end, self.log_start_offset).limit
        waiting = (one for one in timeline.transactions if one.marker_offset is None or one.marker_offset >= end)
        holding = (one for one in waiting if limit is not None and one.first_offset == limit < end)
        return list(timeline.transactions), next(holding, None)

    @property
    def producer_states(self) -> tuple[ProducerState, ...]:
        """Return the state of each producer at the end of the log, by producer id.

        It is computed from the newest ``.snapshot`` that agrees with the log, and the batches after it. Without such a
        snapshot it is computed from all batches, and producers whose batches were deleted are missing.
        """
        from kcodec.log.producers import producer_states

        return self._relisting(lambda: producer_states(self.segments, self.log_end_offset, self._limits))

    def offset_for_timestamp(self, timestamp: int, *, use_index: bool = True, on_error: str = "raise") -> int | None:
        """Return the offset of the first record with a timestamp (ms) at or above `timestamp`; None without such a
        record.

        The result is that of ListOffsets (FileRecords.searchForTimestamp): in order of offsets, whatever the order of
        timestamps, control records included, between log start and high watermark.

        use_index: Look the timestamp up in each segment's time index, whose entries are verified. False: read all
        headers.
        on_error:  "skip" leaves out corrupt batches, "stop" searches the data before them; both read all headers.
        """
        timestamp = checked_integer(
            "timestamp", timestamp, INT64_MIN, INT64_MAX, expected="an int, in milliseconds since 1970"
        )
        warn_of_unit("timestamp", timestamp)
        return self._relisting(partial(self._offset_for_timestamp, timestamp, use_index, on_error))

    def _offset_for_timestamp(self, timestamp: int, use_index: bool, on_error: str) -> int | None:
        start = self.log_start_offset
        use_index = use_index and on_error == "raise"
        if use_index and self._check_crcs and self._kept_timeline("raise") is None:
            try:
                return self._below_high_watermark(find_by_index(self.segments, timestamp, start, self._limits))
            except (IndexDisagreesError, DecodeError):
                self._timeline()  # resolves the transactions, or raises the error
        timeline, skip = self._timeline(on_error), on_error != "raise"
        walked = find_by_walk(timeline, timestamp, start, self._limits, check_crcs=self._check_crcs, skip_corrupt=skip)
        return self._below_high_watermark(walked)

    def _below_high_watermark(self, offset: int | None) -> int | None:
        given = self._given_high_watermark
        return offset if offset is None or given is None or offset < given else None

    def check(self, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
        """Check the files of the log, and return findings with remedies; empty if nothing is wrong.

        Every byte is read, with constant memory; in a partition directory the other files are checked, too.
        ``findings`` yields the same as they are found.

        progress: Called with the number of bytes done and in total.
        """
        return list(self.findings(progress))

    def findings(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Finding]:
        """Yield the findings of ``check`` as they are found."""
        is_directory = self.path != self.segments[0].path
        from kcodec.log.check import LogCheck

        return LogCheck(self.segments, self._limits, progress, is_directory=is_directory).findings()

    # Reading

    @property
    def batches(self) -> Batches:
        """Return the headers of all batches, read as they are requested; each can read its records."""
        return Batches(self.segments, self._limits)

    @suggesting
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
        """Yield the records with offsets in [start_offset, end_offset), in order, with constant memory.

        isolation_level, control_records, framing: As in ``kcodec.decode``.
        on_error: "raise"; "stop" ends at corruption; "skip" leaves corrupt data out and continues at the next batch
                  that can be verified: after the corrupt batch, at the next position in ``.index``, or in the next
                  segment. (`losses` of the chunks of ``to_arrow`` describes each loss.)
        follow, poll_interval, timeout, stop: As in ``to_arrow``.
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

    @suggesting
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
        """Return the records as a stream of Arrow batches of at most max_rows rows and about 32 MB.

        The arguments are those of ``records``, and:

        columns:       Names from ``kcodec.COLUMNS``. The default, offset, timestamp, key, value and headers, does not
                       contain the partition, as a log is one: add "topic" and "partition" to combine several logs.
        framing:       As in ``kcodec.decode``; key_schema_id and value_schema_id are then among the default columns.
        threads:       Number of threads that read ranges of about 2 MB, after a walk over the headers. The records and
                       their order do not depend on it; batches may be smaller. Several threads pay off for compressed
                       or large batches; for small uncompressed batches one thread is faster.
        follow:        Continue with records that a broker appends, across new segments. The stream ends only at
                       end_offset, or by `timeout` or `stop`. Under read_committed, records of open transactions are
                       held back. The files do not say which records the replicas have. It needs one thread,
                       on_error="raise" and no high_watermark.
        poll_interval: Seconds between two polls of the log.
        timeout:       End after this number of seconds without a record; 0: at the end of the log; None: never.
        stop:          A callable that returns True, or an Event that is set, to end the stream.

        Files are read as the stream is consumed. Raise ValueError for an unknown column or option, DecodeError, with
        file and position, after the records before the corruption, or if the log is truncated while it is followed, and
        FileNotFoundError if data that was not read yet is deleted.
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
        threads = checked_integer("threads", threads, 1)
        following = FollowOptions(poll_interval, timeout, stop)
        if follow:
            if threads > 1 or on_error != "raise" or self._given_high_watermark is not None:
                raise ValueError(
                    "follow=True needs threads=1, on_error='raise' and a log that was opened without high_watermark"
                )
            return RecordsStream(partial(self._follow, following), options)
        if (timeout, stop) != (None, None):
            raise ValueError("timeout and stop need follow=True")
        return RecordsStream(partial(self._read, threads), options)

    def _read(self, threads: int, options: StreamOptions) -> Chunks:
        plan = self._plan if threads == 1 else self._plan_parallel
        ranges, verdict, timeline = self._relisting(partial(plan, options))
        error, tail = _walk_error(timeline, options), _tail_loss(timeline, options)
        again = partial(self._read_again, threads, options)
        return Chunks(ranges, verdict, options, threads=threads, walk_error=error, tail_loss=tail, again=again)

    def _read_again(self, threads: int, options: StreamOptions, path: str, position: int, attempts: int) -> Chunks:
        """Return the chunks from an offset on after the file at `path` was replaced or removed."""
        self._list_again(path)
        if attempts >= MAX_LISTINGS:
            self._ignore_versions()
        return self._read(threads, replace(options, start_offset=position))

    def ranges_again(self, path: str, options: StreamOptions, attempts: int) -> list[ByteRange]:
        """Return the byte ranges to read after the file at `path` was replaced or removed. The caller knows the outcome
        of transactions.

        The last segment of this log is the one whose offsets are read. Without an end offset, the ranges end where the
        segment after it begins now. attempts: Number of calls for the same offset before. Raise FileNotFoundError if
        the data was deleted, or if it is not certain that it was not, and DecodeError if the log was truncated.
        """
        base = self.segments[-1].base_offset
        self._list_again(path, is_certain=True)
        last = self.segments[-1]
        if last.path != path and (last.base_offset or 0) < base_offset_of(path):
            # The log cleaner merges no segment into the active one.
            raise DecodeError(
                f"the log was truncated while it was read: {last.path} is now the last segment, and {path} was "
                "deleted; open the log again (in Spark, call load() again) to read the remaining data",
                position=last.size_in_bytes,
                path=last.path,
            )
        if attempts >= MAX_LISTINGS:
            self._ignore_versions()
        if options.end_offset is None and base is not None:
            later = (segment.base_offset or 0 for segment in self.segments)
            options = replace(options, end_offset=min((each for each in later if each > base), default=None))
        options = replace(options, isolation_level="read_uncommitted")
        return self._relisting(partial(self._overlapping_ranges, options), is_certain=True)

    def _overlapping_ranges(self, options: StreamOptions) -> list[ByteRange]:
        """Return the byte ranges to read. Walk only the segments that contain requested offsets."""
        start, end = options.start_offset or 0, options.end_offset
        followings = [*(segment.base_offset or 0 for segment in self.segments[1:]), None]
        found = [
            (segment, following)
            for segment, following in zip(self.segments, followings, strict=True)
            if (following is None or following > start) and (end is None or (segment.base_offset or 0) < end)
        ]
        if not found:
            return []
        segments, below = [segment for segment, _ in found], found[-1][1]
        walked = None
        if self._is_walked(options):
            walked = walk_segments(segments, self._limits, options.on_error).segments
        return list(self._byte_ranges(options, segments, walked, below))

    def _ignore_versions(self) -> None:
        """Read the files as they are, because the storage numbers a file again each time."""
        self.segments = tuple(replace(segment, version=None) for segment in self.segments)

    def _plan_parallel(self, options: StreamOptions) -> tuple[list[ByteRange], Verdict, Timeline | None]:
        start, end = max(self.log_start_offset, options.start_offset or 0), options.end_offset
        timeline = self._timeline(options.on_error)
        splits = cut_segments(timeline.segments, self.storage.range_bytes, None, start, end)
        versions = {walked.segment.path: walked.segment.version for walked in timeline.segments}
        ranges = [replace(split.byte_range, version=versions[split.path]) for split in splits]
        return ranges, self._verdict(options.isolation_level, timeline), timeline

    def _follow(self, follow: FollowOptions, options: StreamOptions) -> Chunks:
        from kcodec.log.follow import follow_segments

        return follow_segments(self.path, self.segments, options, follow, self.log_start_offset)

    def _plan(self, options: StreamOptions) -> tuple[list[ByteRange], Verdict, Timeline | None]:
        timeline = self._timeline(options.on_error) if self._is_walked(options) else None
        walked = None if timeline is None else timeline.segments
        segments = self.segments if walked is None else [each.segment for each in walked]
        ranges = list(self._byte_ranges(options, segments, walked))
        return ranges, self._verdict(options.isolation_level, timeline), timeline

    def _is_walked(self, options: StreamOptions) -> bool:
        """Return whether the headers are read before the records."""
        # A corrupt base offset misleads the search for an offset.
        is_searched = options.on_error == "skip" and options.start_offset is not None
        return options.isolation_level == "read_committed" or not self._check_crcs or is_searched

    def _byte_ranges(
        self,
        options: StreamOptions,
        segments: Sequence[Segment],
        walked: Sequence[WalkedSegment] | None,
        below: int | None = None,
    ) -> Iterator[ByteRange]:
        """Yield the byte ranges to read: whole segments, without those that are outside the range according to their
        names.

        walked: The result of a walk over the segments; None without a walk. below: The base offset of the segment after
        them; None for the end of the log.
        """
        start = max(self.log_start_offset, options.start_offset or 0)
        for index, segment in enumerate(segments):
            following = segments[index + 1].base_offset if index + 1 < len(segments) else below
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
            known_end = data_end(segment) if end is None and segment.version is not None else 0
            place_of = segment.path, place.position, end, place.first_offset, rising, storage, following
            yield ByteRange(*place_of, version=segment.version, known_end=known_end)

    # Segments that are replaced

    def _relisting(self, call: Callable[[], Result], *, is_certain: bool = False) -> Result:
        """Return the result of `call`. If the log cleaner has removed a segment since it was listed, list the segments
        again, and repeat the call. is_certain: As in `_list_again`."""
        for _ in range(MAX_LISTINGS):
            try:
                return call()
            except FileNotFoundError:
                missing = next((one.path for one in self.segments if not self.storage.is_file(one.path)), None)
                if missing is None:  # a file was renamed to this path in the meantime
                    continue
                self._list_again(missing, is_certain=is_certain)
        return call()

    def _list_again(self, path: str, *, is_certain: bool = False) -> None:
        """List the segments again after the file at `path` was replaced or removed.

        Raise FileNotFoundError if its data was deleted. The log cleaner merges a segment that it removes into a
        segment before it, which is then another file. Raise TruncatedError if the segment before it is the same file,
        but shorter: a replica that truncates its log also deletes the later segments.

        is_certain: Whether it must be certain that the segment before it is another file. Otherwise it is enough that
        its version is new.
        """
        before = {segment.path: segment.version for segment in self.segments}
        if self.path == self.segments[0].path:  # only this file
            entry = self.storage.entry(self.path)
            found = [] if entry is None else [replace(self.segments[0], version=entry.version)]
        else:
            found = stable_segments(self.storage, self.path, self._limits)
        base = base_offset_of(path)
        reaching = [segment for segment in found if (segment.base_offset or 0) <= base]
        last = reaching[-1] if reaching else None
        is_deleted = last is None
        if last is not None and last.path != path and last.base_offset != base:
            known = before.get(last.path)
            _check_not_truncated(last.path, known, last.version)
            is_merged = is_other_file if is_certain else _is_merged
            is_deleted = not is_merged(known, last.version)
        if is_deleted:
            raise FileNotFoundError(
                f"{path}: the segment was deleted while the log was read, and its data from offset {base} on was not "
                "read; open the log again to continue with the remaining data"
            )
        self.segments, self._timelines = tuple(found), {}

    # Transactions

    def verdict(self, isolation_level: str = "read_committed", on_error: str = "raise") -> Verdict:
        """Return the information about the rest of this log that ``read_split`` needs, for example in another process.

        isolation_level: As in ``records``.
        on_error: "skip" finds the outcome of transactions across corruption where it is certain, "stop" before it.
        """
        timeline = None if isolation_level == "read_uncommitted" else self._timeline(on_error)
        return self._verdict(isolation_level, timeline)

    def _verdict(self, isolation_level: str, timeline: Timeline | None) -> Verdict:
        """Return the same according to a timeline, which read_uncommitted does not need."""
        start = self.log_start_offset
        if timeline is None or isolation_level == "read_uncommitted":
            return Verdict(AbortedTransactions(), self._given_high_watermark, start)
        given = self._given_high_watermark
        return timeline.verdict(self._log_end_offset(timeline) if given is None else given, start)

    def splits(
        self,
        max_bytes: int = DEFAULT_SPLIT_BYTES,
        start_offset: int | None = None,
        end_offset: int | None = None,
        on_error: str = "raise",
    ) -> list[Split]:
        """Return ranges of whole batches of at most max_bytes; those outside [start_offset, end_offset) are left out.

        on_error: As in ``verdict``. A larger batch is a range alone. The headers are read once, for this and for the
        outcome of transactions.
        """
        max_bytes = checked_integer("max_bytes", max_bytes, 1)
        start = max(self.log_start_offset, start_offset or 0)
        timeline = self._timeline(on_error)
        splits = list(cut_segments(timeline.segments, max_bytes, self._limits, start, end_offset))
        tail = _tail_of(timeline)
        if tail is None or (end_offset is not None and end_offset <= tail.first_offset):
            return splits
        if not splits and on_error == "skip":  # the log has only a torn tail
            offset, storage = tail.first_offset, self.storage
            splits.append(Split(tail.path, tail.position, tail.position, offset, offset, -1, True, storage))
        return [*splits[:-1], *(replace(last, tail=tail) for last in splits[-1:])]

    def _timeline(self, on_error: str = "raise") -> Timeline:
        check_on_error(on_error)
        timeline = self._kept_timeline(on_error)
        if timeline is None:
            timeline, size = self._relisting(partial(self._walked, on_error))
            self._timelines[on_error] = timeline, size
        return timeline

    def _walked(self, on_error: str) -> tuple[Timeline, int]:
        """Return the result of a walk, and the size of the last segment before it."""
        segments = self.segments
        with segments[-1].open() as file:  # not every filesystem reports the size of a file that is not open
            size = file.size()
        return walk_segments(segments, self._limits, on_error), size

    def _kept_timeline(self, on_error: str) -> Timeline | None:
        """Return the result of an earlier walk; None if this is the first one, or if batches were appended since.

        In a preallocated file, an appended batch does not change the size. It is then at the former end of the data.
        """
        if on_error not in self._timelines:
            return None
        timeline, size = self._timelines[on_error]
        segment, tail = self.segments[-1], timeline.segments[-1].tail
        try:
            with segment.open() as file:
                if file.size() != size:
                    return None
                positions = ResumePositions(file, self._limits)
                is_appended = tail is not None and positions.intact(tail.position, size) is not None
        except FileNotFoundError:  # nothing more can be read
            return timeline
        return None if is_appended else timeline

    def _log_end_offset(self, timeline: Timeline) -> int:
        """Return the end of the log; a segment without batches begins there."""
        ends = [timeline.next_offset, self.segments[-1].base_offset if timeline.error is None else None]
        return max((end for end in ends if end is not None), default=0)


def _walk_error(timeline: Timeline | None, options: StreamOptions) -> DecodeError | None:
    """Return the corruption that ends reading with on_error="stop"; None if all requested offsets are before it."""
    if timeline is None or timeline.error is None or options.on_error != "stop":
        return None
    end, walked = options.end_offset, timeline.next_offset
    return None if end is not None and walked is not None and end <= walked else timeline.error


def _tail_loss(timeline: Timeline | None, options: StreamOptions) -> Loss | None:
    """Return the loss of a torn tail before which a walk has ended; None if no requested offset can be in it."""
    return None if timeline is None else tail_between(_tail_of(timeline), options)


def _is_merged(before: FileVersion | None, version: FileVersion | None) -> bool:
    """Return whether a file may have replaced the segment that had the version `before`, so that it may contain the
    data of the segment after it. A storage without versions cannot show this. A changed file counts, too."""
    return version is not None and not version.is_same(before)


def _check_not_truncated(path: str, before: FileVersion | None, version: FileVersion | None) -> None:
    """Raise TruncatedError if a file was truncated since it had the version `before`. It is the same file, so the log
    cleaner has not replaced it. A file that has grown again could be another file with the same number."""
    if before is None or version is None or before.is_replaced_by(version) or version.size >= before.size:
        return
    raise TruncatedError(
        f"the log was truncated while it was read: the segment has {version.size} bytes now, and had {before.size}, "
        "and the segments after it were deleted; open the log again (in Spark, call load() again) to read the "
        "remaining data",
        needed=before.size,
        available=version.size,
        position=version.size,
        path=path,
    )


def _tail_of(timeline: Timeline) -> Loss | None:
    """Return the loss of the torn tail before which a walk has ended; None if there is no torn tail."""
    walked, first = timeline.segments[-1], timeline.next_offset or 0
    tail = walked.tail
    if tail is None or tail.reason == ZEROS:
        return None
    return Loss(walked.segment.path, tail.position, tail.position + tail.remaining_bytes, first, None, tail.reason)
