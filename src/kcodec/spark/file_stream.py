# SPDX-License-Identifier: Apache-2.0
"""The driver's part of a streaming query over log files to which brokers append.

The driver reads the headers of new batches (`kcodec.log.growth`). A batch is part of the stream as soon as all of its
bytes are in the file, so an incomplete batch at the end waits. Under read_committed, a partition is read up to the
first offset of its earliest open transaction, because the files do not contain a last stable offset. The files also do
not show which records have reached all replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kcodec import AbortedTransaction, RecordBatch
from kcodec import log as logs
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.log.chunks import Anchor, ByteRange
from kcodec.log.growth import GrowingLog, Walked
from kcodec.log.seek import START, position_in, position_of_offset
from kcodec.log.segment import batch_at, walk_headers
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.spark import offset_options, planner
from kcodec.spark.columns import SparkColumn
from kcodec.spark.file_options import SourceOptions, parse_options
from kcodec.spark.file_ranges import (
    PREVIOUS_SEGMENTS,
    FileRange,
    RangeOptions,
    Task,
    packed,
    previous_segments,
)
from kcodec.spark.paths import FoundPartition, find_partitions
from kcodec.spark.planner import DataLoss, StreamOffsets
from kcodec.spark.stream_state import KnownLogs, StreamState
from kcodec.spark.trigger_limits import LIMIT_OPTIONS, TriggerLimits

#: Minimum time in seconds between two listings of directories, which find new partitions.
LISTING_SECONDS = 1.0
ABORT = 0
STARTING_OPTIONS = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition"),
    "failOnDataLoss",
)
PLANNING = {name.lower(): name for name in (*STARTING_OPTIONS, *LIMIT_OPTIONS)}


@dataclass(frozen=True)
class FileStreamOptions:
    """The options of a streaming query over files. They can be pickled. `planning` has the options of Spark's source,
    in its spelling."""

    files: SourceOptions
    planning: Mapping[str, str]
    reading: RangeOptions
    limits: TriggerLimits
    fails_on_data_loss: bool

    @classmethod
    def of(cls, given: Mapping[str, str], columns: tuple[SparkColumn, ...]) -> FileStreamOptions:
        """Sort the options. Raise ValueError for an unknown or invalid option."""
        planning = {PLANNING[name.lower()]: value for name, value in given.items() if name.lower() in PLANNING}
        files = parse_options({name: value for name, value in given.items() if name.lower() not in PLANNING})
        if files.on_error == "skip":
            raise ValueError(
                "option 'mode' is 'permissive': a stream over files stops at corruption; read the records after it "
                'with spark.read.format("kcodec") and mode=permissive'
            )
        fails_on_data_loss = offset_options.parse_flag(planning, "failOnDataLoss", True)
        reading = RangeOptions(
            columns, isolation_level=files.isolation_level, check_crcs=files.check_crcs, limits=files.limits
        )
        options = cls(files, planning, reading, TriggerLimits.of(planning), fails_on_data_loss)
        options.starting()
        offset_options.parse_offset_limit(planning, "ending", is_stream=True)
        options.cut([])
        return options

    def starting(self) -> offset_options.OffsetLimit:
        """Return where the query starts."""
        return offset_options.parse_offset_limit(self.planning, "starting", is_stream=True)

    def cut(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges of tasks (minPartitions, maxRecordsPerPartition)."""
        planning = self.planning
        return planner.cut_ranges(
            ranges,
            offset_options.parse_positive(planning, "minPartitions"),
            offset_options.parse_positive(planning, "maxRecordsPerPartition"),
        )


@dataclass(frozen=True)
class LastBatch:
    """The batch that contains the last offset before the position of the query. If the log does not contain it any
    more, the log was truncated below the position.

    position: Position of the query, which is the offset after the last one that it has planned.
    segment:  Its segment, with the version of the file at that time.
    anchor:   Position and header of the batch in the file.
    """

    position: int
    segment: logs.Segment
    anchor: Anchor
    batch: RecordBatch

    @classmethod
    def before(cls, position: int, segment: logs.Segment, limits: DecodeLimits) -> LastBatch | None:
        """Return the batch of a segment that contains the offset before `position`; None if there is no such batch,
        as compaction has removed it, or if the segment does not exist any more."""
        try:
            with segment.open() as file:
                at = position_in(file, segment, position - 1, limits).position
                batch = batch_at(file, at, file.size(), limits)
                if batch is None or not batch.base_offset < position <= batch.next_offset:
                    return None
                seen = replace(segment, version=file.version())
                return cls(position, seen, Anchor.of(file, at, at + batch.size_in_bytes), batch)
        except (FileNotFoundError, DecodeError):  # the walk of the partition reports both
            return None

    def is_in(self, log: Callable[[], logs.Log], limits: DecodeLimits) -> bool:
        """Return whether the log, which `log` opens, contains the batch, perhaps without records that compaction has
        removed.

        Compaction writes another file and keeps the leader epoch of a batch. After a truncation, the next leader has
        written the batches at these offsets, with its own epoch.
        """
        try:
            with self.segment.open() as file:
                if self.anchor.is_in(file):
                    return True
                is_compacted = _is_replaced(self.segment, replace(self.segment, version=file.version()))
        except FileNotFoundError:
            is_compacted = True
        segments = [each for each in log().segments if (each.base_offset or 0) < self.position]
        found = LastBatch.before(self.position, segments[-1], limits) if segments else None
        if found is None:
            return True  # compacted, deleted or truncated, and the offsets of the log show which
        is_same = found.batch.crc == self.batch.crc or is_compacted
        return is_same and found.batch.partition_leader_epoch == self.batch.partition_leader_epoch


class ChangedLogError(Exception):
    """Walked batches no longer exist: segments were deleted, or the log was truncated. Internal."""


class GrowingPartition:
    """The walk of one partition directory: the readable offsets, the positions of their bytes, and the aborted
    transactions."""

    def __init__(self, log: logs.Log, options: FileStreamOptions, start: int | None) -> None:
        self.log = log
        self.start_offset = log.log_start_offset
        self.topic_id = _topic_id(log.path)
        self._options = options
        self._pieces: list[Walked] = []
        self._aborted: list[AbortedTransaction] = []
        self._is_committed = options.reading.isolation_level == "read_committed"
        first, position = log.segments[0], START
        if not self._is_committed and start is not None:  # no transaction to look for below the start
            first = [first, *(each for each in log.segments[1:] if (each.base_offset or 0) <= start)][-1]
            position = position_of_offset(first, start, options.files.limits)
        before = log.segments[: log.segments.index(first)]
        # With their versions. Also the segments before walked ones.
        self._segments: dict[str, logs.Segment] = {segment.path: segment for segment in before[-PREVIOUS_SEGMENTS:]}
        self._growing = GrowingLog(log.path, first, options.files.limits, is_alone=False)
        self._growing.begin_at(position.position, position.first_offset)

    def look(self) -> int:
        """Walk appended batches. Return the offset up to which records can be read.

        Raise DecodeError for corruption, ChangedLogError for truncation and if segments were deleted before their walk.
        """
        growing, is_more = self._growing, True
        while is_more:
            try:
                is_more = growing.step()
            except (FileNotFoundError, DecodeError) as error:
                raise ChangedLogError from error
            for piece in growing.walked:
                self._note(replace(piece.segment, version=piece.version))
                self._pieces.append(piece)
            growing.walked.clear()
            for producer_id, _epoch, first, _last, marker, control_type, *_rest in growing.scanner.finished:
                if self._is_committed and control_type == ABORT and 0 <= first < marker:
                    self._aborted.append(AbortedTransaction(producer_id, first, marker))
            growing.scanner.finished.clear()
        if growing.corruption is not None:
            raise growing.corruption
        return self.end

    def _note(self, walked: logs.Segment) -> None:
        """Note the version of a walked file. If the file has replaced another one, keep the version of the other one,
        because positions in both were walked: the partition is then stale."""
        known = self._segments.get(walked.path)
        is_replaced = known is not None and _is_replaced(known, walked)
        if not is_replaced or all(piece.segment.path != walked.path for piece in self._pieces):
            self._segments[walked.path] = walked if known is None else _first_seen(known, walked)

    @property
    def end(self) -> int:
        """The offset up to which records can be read."""
        opened = self._growing.scanner.open if self._is_committed else []
        return min((entry[2] for entry in opened), default=self._growing.next_offset)

    @property
    def log_end(self) -> int:
        """The offset after the last batch."""
        return self._growing.next_offset

    def last_batch_before(self, position: int) -> LastBatch | None:
        """Return the walked batch that contains the offset before `position`."""
        for piece in self._pieces:
            if piece.first_offset < position <= piece.next_offset:
                return LastBatch.before(position, piece.segment, self._options.files.limits)
        return None

    def bytes_per_offset(self, start: int, end: int) -> float:
        """Return the mean size of an offset in the byte ranges that contain a range of offsets."""
        pieces = [piece for piece in self._pieces if piece.next_offset > start and piece.first_offset < end]
        offsets = sum(piece.next_offset - piece.first_offset for piece in pieces)
        return sum(piece.end - piece.start for piece in pieces) / max(offsets, 1)

    def forget(self, below: int) -> None:
        """Forget offsets that are not read again."""
        self._pieces = [piece for piece in self._pieces if piece.next_offset > below]
        paths = {piece.segment.path for piece in self._pieces}
        known = self._known()
        first = next((at for at, segment in enumerate(known) if segment.path in paths), len(known))
        self._segments = {segment.path: segment for segment in known[max(first - PREVIOUS_SEGMENTS, 0) :]}
        self._aborted = [one for one in self._aborted if one.last_offset is None or one.last_offset >= below]

    def is_stale(self) -> bool:
        """Return whether a walked segment was deleted, or replaced by a compacted one. Note the present versions of the
        other ones.

        The version of a segment is read before that of the segment after it. If the latter exists, the former does not
        contain its data yet, so that only a later version can show that both were merged.
        """
        paths = {piece.segment.path for piece in self._pieces}
        present: dict[str, logs.Segment] = {}
        for segment in self._known():
            entry = segment.storage.entry(segment.path)
            now = None if entry is None else replace(segment, version=entry.version)
            if segment.path in paths and (now is None or _is_replaced(segment, now)):
                return True
            if now is not None:
                present[segment.path] = _first_seen(segment, now)
        self._segments = present
        return False

    def _known(self) -> list[logs.Segment]:
        """Return the segments in order."""
        return sorted(self._segments.values(), key=lambda segment: segment.base_offset or 0)

    def file_ranges(self, requested: OffsetRange) -> Iterator[FileRange]:
        """Yield the byte ranges of complete batches that contain a range of offsets."""
        self._cut(requested.start, lambda batch: batch.next_offset > requested.start)
        self._cut(requested.end, lambda batch: batch.base_offset >= requested.end)
        outcomes = logs.Verdict.of_aborted(self._aborted, self.start_offset)
        earlier = previous_segments(self._known())
        for piece in self._pieces:
            if piece.next_offset > requested.start and piece.first_offset < requested.end:
                segment, first = piece.segment, piece.first_offset
                version = self._segments[segment.path].version
                yield FileRange(
                    ByteRange(segment.path, piece.start, piece.end, first, False, segment.storage, version=version),
                    piece.end - piece.start,
                    outcomes.between(first, piece.next_offset),
                    self.log.topic,
                    self.log.partition,
                    requested.start,
                    requested.end,
                    piece.next_offset,
                    earlier[segment.path],
                )

    def _cut(self, offset: int, is_behind: Callable[[RecordBatch], bool]) -> None:
        """Divide the byte range that contains an offset, before the first batch after the offset."""
        for number, piece in enumerate(self._pieces):
            if not piece.first_offset < offset < piece.next_offset:
                continue
            position, first = piece.start, piece.first_offset
            with piece.segment.open() as file:
                for batch in walk_headers(file, piece.start, piece.end, self._options.files.limits):
                    if is_behind(batch):
                        break
                    position, first = batch.position + batch.size_in_bytes, max(first, batch.next_offset)
            if piece.start < position < piece.end:
                before = replace(piece, end=position, next_offset=first)
                self._pieces[number : number + 1] = [before, replace(piece, start=position, first_offset=first)]
            return


class FileStream(StreamState):
    """The position and the plans of one streaming query over partition directories.

    The methods are those of `TopicStream`, with `tasks` instead of `ranges`. They raise DecodeError for corruption.
    """

    def __init__(self, options: FileStreamOptions, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options.limits, fails_on_data_loss=options.fails_on_data_loss, clock=clock)
        self._options = options
        self._partitions: dict[TopicPartition, GrowingPartition] = {}
        self._listed_at: float | None = None
        self._last_batches: dict[TopicPartition, LastBatch] = {}
        self._overwritten: dict[TopicPartition, DataLoss] = {}

    def _starting(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        self._listed_at = None
        known, latest = self._find_logs_and_ends(None)
        limit = self._options.starting()
        times: dict[TopicPartition, int] = {}
        for partition in known.partitions if limit.kind == "timestamps" else ():
            timestamp = limit.timestamp if limit.each is None else limit.each.get(partition)
            found = None
            if timestamp is not None:
                found = self._partitions[partition].log.offset_for_timestamp(timestamp, use_index=False)
            if found is not None:
                times[partition] = found
        latest |= self._frozen or {}
        offsets = planner.resolve_offsets(limit, known.partitions, known.earliest, latest, times, is_start=True)
        return offsets, known.ids

    def prepare_for_available_now(self) -> None:
        """Store the ends of the logs, up to which the query reads with Trigger.AvailableNow."""
        _, self._frozen = self._find_logs_and_ends(None)

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Task]:
        """Return the ranges for each task of the micro-batch between two positions."""
        self._find_logs_and_ends(StreamOffsets.from_dict(start))
        self._raise_if_lost(list(self._overwritten.values()))
        self._log(self._overwritten.values())
        found, last = self._offset_ranges(start, end)
        for partition, offset in StreamOffsets.from_dict(start).offsets.items():
            if partition in self._partitions:
                self._partitions[partition].forget(offset)
        tasks: list[Task] = []
        for each in self._options.cut(self._readable(found)):
            file_ranges = self._partitions[each.topic_partition].file_ranges(each)
            tasks += packed(file_ranges, self._options.files.split_bytes)
        for each in found:
            self._note_last_batch(each.topic_partition, each.end)
        self._log_batch(len(tasks), found, last)
        return tasks

    def _note_last_batch(self, partition: TopicPartition, position: int) -> None:
        """Note the last batch before the next position of the query."""
        known = self._partitions.get(partition)
        batch = None if known is None else known.last_batch_before(position)
        self._overwritten.pop(partition, None)
        self._last_batches.pop(partition, None)
        if batch is not None:
            self._last_batches[partition] = batch

    def _check_last_batch(self, partition: TopicPartition, position: int) -> None:
        """Note a loss if the last batch before the position of the query was truncated and other batches were written
        in its place. The log can then extend beyond the position, so that its end does not show the truncation."""
        last, known = self._last_batches.get(partition), self._partitions[partition]
        if last is None or last.position != position or position > known.log_end or partition in self._overwritten:
            return
        if not last.is_in(lambda: self._open(known.log.path), self._options.files.limits):
            reason = (
                f"the log was truncated after the query had read it up to offset {position - 1}, and other records, "
                "which the query has not read, were written in its place, perhaps also before these offsets"
            )
            self._overwritten[partition] = DataLoss(partition, last.batch.base_offset, position, reason)

    def _losses(self, position: StreamOffsets, logs: KnownLogs, ends: planner.PartitionOffsets) -> list[DataLoss]:
        return [*super()._losses(position, logs, ends), *self._overwritten.values()]

    def _readable(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that are on disk."""
        for each in ranges:
            partition = self._partitions.get(each.topic_partition)
            if partition is not None and (partition.is_stale() or partition.end < each.end):
                self._reopen(each.topic_partition, each.start)
        earliest = {partition: found.start_offset for partition, found in self._partitions.items()}
        ends = {partition: found.end for partition, found in self._partitions.items()}
        kept, losses = planner.find_losses(ranges, earliest, ends)
        self._raise_if_lost(losses)
        self._log(losses)
        return kept

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing, because files have no consumer groups."""

    def close(self) -> None:
        """Forget the walks. Further calls do nothing."""
        self._partitions.clear()

    # The logs and their offsets

    def _find_logs_and_ends(self, position: StreamOffsets | None) -> tuple[KnownLogs, dict[TopicPartition, int]]:
        now = self._clock()
        offsets = {} if position is None else position.offsets
        if self._listed_at is None or now - self._listed_at >= LISTING_SECONDS:
            self._list(offsets)
            self._listed_at = now
        ends: dict[TopicPartition, int] = {}
        for partition in list(self._partitions):
            ends[partition] = self._end(partition, offsets.get(partition))
        earliest = {partition: found.start_offset for partition, found in self._partitions.items()}
        ids = {each.topic: found.topic_id for each, found in self._partitions.items() if found.topic_id is not None}
        topics = {partition.topic for partition in self._partitions}
        missing = {partition.topic for partition in offsets} - topics
        return KnownLogs(sorted(self._partitions), ids, earliest, missing, now), ends

    def _list(self, offsets: planner.PartitionOffsets) -> None:
        """Find partition directories that are new, were removed, or belong to a topic that was created again."""
        found: dict[TopicPartition, logs.Log] = {}
        for each in self._found():
            if each.segments is not None or not Path(each.path).is_dir():
                raise ValueError(f"{each.path}: a stream reads partition directories, and not single .log files")
            log = self._open(each.path)
            if log.topic is None or log.partition is None:
                raise ValueError(
                    f"{each.path}: the name of the directory is not a topic and a partition, such as orders-0; set the "
                    "options topic and partition"
                )
            partition = TopicPartition(log.topic, log.partition)
            if partition in found:
                raise ValueError(f"{each.path} and {found[partition].path} are both directories of {partition}")
            found[partition] = log
        for partition, log in found.items():
            known = self._partitions.get(partition)
            if known is None or known.log.path != log.path or known.topic_id != _topic_id(log.path):
                self._partitions[partition] = GrowingPartition(log, self._options, offsets.get(partition))
                self._last_batches.pop(partition, None)  # of another topic or directory
            else:
                known.start_offset = log.log_start_offset
        self._partitions = {partition: self._partitions[partition] for partition in found}

    def _found(self) -> list[FoundPartition]:
        try:
            return find_partitions(self._options.files.paths)
        except FileNotFoundError:
            if self._listed_at is None:
                raise
            return []  # they existed before, and the loss is reported by partition

    def _open(self, path: str) -> logs.Log:
        files = self._options.files
        return logs.open_partition(
            path, topic=files.topic, partition=files.partition, check_crcs=files.check_crcs, limits=files.limits
        )

    def _reopen(self, partition: TopicPartition, start: int | None) -> GrowingPartition:
        """Walk a partition again whose segments were deleted, compacted or truncated."""
        opened = GrowingPartition(self._open(self._partitions[partition].log.path), self._options, start)
        self._partitions[partition] = opened
        opened.look()
        return opened

    def _end(self, partition: TopicPartition, start: int | None) -> int:
        """Return the offset up to which a partition can be read. It is not below the position if the log extends to
        it."""
        found = self._partitions[partition]
        log_end, is_changed = found.log_end, False
        try:
            end = found.look()
        except ChangedLogError:
            found, is_changed = self._reopen(partition, start), True
            end = found.end
        if start is not None and (is_changed or found.log_end != log_end):
            self._check_last_batch(partition, start)
        return end if start is None or start > found.log_end else max(start, end)

    def _is_requested(self, partition: TopicPartition) -> bool:
        return True

    def _starts_of_new(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._find_logs_and_ends(None)
        known = {partition: self._partitions[partition] for partition in partitions if partition in self._partitions}
        return {**dict.fromkeys(partitions, 0), **{each: found.start_offset for each, found in known.items()}}

    def _bytes_per_offset(
        self, start: planner.PartitionOffsets, end: planner.PartitionOffsets
    ) -> Mapping[TopicPartition, float]:
        return {
            partition: self._partitions[partition].bytes_per_offset(start[partition], end[partition])
            for partition in end
            if partition in self._partitions and end[partition] > start[partition]
        }


def _is_replaced(before: logs.Segment, now: logs.Segment) -> bool:
    """Return whether another file has the name of a segment. Unknown versions cannot show this."""
    return before.version is not None and now.version is not None and before.version.is_replaced_by(now.version)


def _first_seen(known: logs.Segment, now: logs.Segment) -> logs.Segment:
    """Return a segment with the version of its file now, and the time at which this file was first seen.

    A later time would make an append look like a replacement if the file system stores times in whole seconds, or if
    the clock of a file server is late.
    """
    if known.version is None or now.version is None or known.version[:2] != now.version[:2]:
        return now
    return replace(now, version=now.version._replace(seen_ns=known.version.seen_ns))


def _topic_id(path: str) -> str | None:
    path_of_metadata = Path(path, "partition.metadata")
    return logs.read_partition_metadata(str(path_of_metadata)).topic_id if path_of_metadata.is_file() else None
