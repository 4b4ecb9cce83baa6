# SPDX-License-Identifier: Apache-2.0
"""The driver's part of a streaming query: positions as JSON, the size of micro-batches, and lost offsets.

`kcodec.spark.topic_stream` and `kcodec.spark.file_stream` determine which offsets exist. This module does not use
Spark. Spark stores the positions in its checkpoint: ``{"v":1,"orders":{"id":"<topic id>","0":23}}``.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.spark import planner
from kcodec.spark.planner import DataLoss, DataLossError, StreamOffsets
from kcodec.spark.trigger_limits import TriggerControl, TriggerLimits

logger = logging.getLogger("kcodec.spark")
#: A topic that does not exist keeps its position for this time, so that it is not read again from its start if it was
#: missing only for a moment. The position contains the time since which the topic is missing, because a query with
#: Trigger.AvailableNow, or a call of `land`, ends sooner.
MISSING_GRACE_SECONDS = 60.0
#: Queries over topics and queries over files have positions of the same form, so a position does not show its source.
OTHER_QUERY = (
    "the query reads none of the partitions of its position. If the checkpoint is that of another query, for example "
    "of a query over topics in place of files, give this query a new checkpoint"
)


@dataclass
class KnownLogs:
    """The logs that a query reads, as of the time `at` of its clock.

    ids:      Known ids by topic.
    earliest: First offset of each log.
    missing:  Topics of the position that do not exist.
    waited:   Whether the lookup has waited for topics that do not exist, so that it should not be repeated soon.
    """

    partitions: list[TopicPartition]
    ids: dict[str, str]
    earliest: dict[TopicPartition, int]
    missing: set[str]
    at: float
    waited: bool = False


class StreamState(ABC):
    """The position and the plans of one streaming query. The methods are those of Spark's stream readers.

    They raise DataLossError if offsets are lost and failOnDataLoss is true. Otherwise each loss is logged once.
    """

    def __init__(
        self,
        limits: TriggerLimits,
        *,
        fails_on_data_loss: bool,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fails_on_data_loss = fails_on_data_loss
        self._clock = clock
        self._wall_clock = wall_clock
        self._control = TriggerControl(limits, self._bytes_per_offset, clock)
        self._frozen: dict[TopicPartition, int] | None = None
        self._latest: StreamOffsets | None = None
        self._initial: StreamOffsets | None = None
        self._position: StreamOffsets | None = None
        self._returned: dict[str, Any] | None = None
        self._refusal: ValueError | None = None
        self._reported: set[DataLoss] = set()

    # Starts, ends and ids of topics

    @abstractmethod
    def _starting(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Return the starting offsets according to the options, and the ids of the topics."""

    @abstractmethod
    def _find_logs_and_ends(self, position: StreamOffsets | None) -> tuple[KnownLogs, dict[TopicPartition, int]]:
        """Return the logs, and the offset up to which each can be read: at least the position, unless it is lost."""

    @abstractmethod
    def _is_requested(self, partition: TopicPartition) -> bool:
        """Return whether the options name a partition."""

    @abstractmethod
    def _bytes_per_offset(
        self, start: planner.PartitionOffsets, end: planner.PartitionOffsets
    ) -> Mapping[TopicPartition, float]:
        """Return the mean size of an offset in each partition that has a backlog, as far as it is known."""

    @abstractmethod
    def _starts_of_new(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the earliest offset of each partition that a query begins to read."""

    # Positions

    def initial_offset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts (startingOffsets and the like), each time the same.

        Spark also requests it after a restart if the first batch is replayed, and the options may be invalid by then,
        as a partition was added or records were deleted. The end of that batch says where it starts. So an error of the
        options is raised only by `latest_offset`, which Spark does not call before that batch.
        """
        if self._initial is None:
            try:
                self._initial = self._position = self._first()
            except ValueError as error:
                self._refusal = error
                return {**StreamOffsets({}).to_dict(), StreamOffsets.REFUSED: str(error)}
        return self._initial.to_dict()

    def _first(self) -> StreamOffsets:
        offsets, ids = self._starting()
        position = StreamOffsets(offsets, ids)
        losses = self._losses(position, *self._find_logs_and_ends(position))
        self._raise_if_lost(losses)
        self._log(losses)
        return position

    def latest_offset(self, start: Mapping[str, Any] | None, *, is_limited: bool = True) -> dict[str, Any]:
        """Return the end of the next micro-batch. Return `start` if there are no new offsets, or not enough.

        start: the end of the one before. None: Spark does not pass it (4.0 and 4.1), so that it is the end that was
        returned or planned last. On a restart, Spark 4.0 and 4.1 first call `partitions(offset, offset)` with the last
        offset of the checkpoint. If no position is known, the query is therefore new.
        is_limited: False for the read limit ReadAllAvailable, which overrides all options.
        """
        if start is None and self._position is None:
            start = self.initial_offset()
            start = start if StreamOffsets.REFUSED in start else None
        if start is not None:
            StreamOffsets.check(start)  # Spark passes the offsets of the checkpoint, which may be of another source
        if start is not None and StreamOffsets.REFUSED in start:
            raise self._refusal or ValueError(start[StreamOffsets.REFUSED])
        position = self._position if start is None else StreamOffsets.from_dict(start)
        logs, ends = self._find_logs_and_ends(position)
        ids = dict(logs.ids)
        kept_topics: dict[str, int] = {}
        if position is not None:
            losses = self._losses(position, logs, ends)
            self._raise_if_lost(losses)
            self._log([loss for loss in losses if loss.partition.topic in logs.missing])
            kept_topics = self._missing_since(position, logs)
            missing = {each: offset for each, offset in position.offsets.items() if each.topic in kept_topics}
            ends = {**missing, **ends}
            ids |= {topic: text for topic, text in position.topic_ids.items() if topic in kept_topics}
        ends = self._up_to_frozen(position, logs, ends)
        latest = self._latest = StreamOffsets(ends, ids, kept_topics)
        if position is not None and is_limited:
            latest = self._limited(position, latest, logs)
        if latest == position and (start is not None or self._returned is not None):
            return dict(start if start is not None else self._returned or {})
        found = latest.to_dict()
        if position is not None and position == self._initial:
            # If the first batch is replayed, Spark requests the start again: "latest" is then another offset.
            found[StreamOffsets.FIRST] = position.to_dict()
        self._position, self._returned = latest, found
        return found

    def _missing_since(self, position: StreamOffsets, logs: KnownLogs) -> dict[str, int]:
        """Return the missing topics that keep their position, each with the time since which it is missing (ms)."""
        now = int(self._wall_clock() * 1000)
        missing = {partition.topic for partition in position.offsets} & logs.missing
        since = {topic: position.missing.get(topic, now) for topic in missing}
        return {topic: when for topic, when in since.items() if now - when < MISSING_GRACE_SECONDS * 1000}

    def _up_to_frozen(
        self, position: StreamOffsets | None, logs: KnownLogs, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """With Trigger.AvailableNow, limit the ends to those stored before. A position beyond them stays unchanged."""
        if self._frozen is None:
            return ends
        kept = {} if position is None else self._kept(position, logs.ids)
        return {
            each: max(min(self._frozen.get(each, 0), end), min(kept.get(each, 0), end))
            for each, end in ends.items()
            if each in self._frozen or each in kept
        }

    def report(self) -> dict[str, Any] | None:
        """Return the ends of the logs at the last `latest_offset`, without limits. The lag is computed from them, so
        that the result contains nothing but offsets and ids of topics."""
        latest = self._latest
        return None if latest is None else StreamOffsets(latest.offsets, latest.topic_ids).to_dict()

    def _limited(self, position: StreamOffsets, latest: StreamOffsets, logs: KnownLogs) -> StreamOffsets:
        """Return the end of the next micro-batch; the position if there is nothing to do.

        A limit does not count lost offsets, because they have no records.
        """
        kept = self._kept(position, latest.topic_ids)
        earliest = {**dict.fromkeys(latest.offsets, 0), **logs.earliest}
        readable = {
            each: max(offset, min(earliest.get(each, 0), latest.offsets.get(each, 0))) for each, offset in kept.items()
        }
        starts, _ = planner.start_new_partitions(readable, latest.offsets, earliest)
        ends = self._control.end(starts, latest.offsets, may_delay=self._frozen is None)
        is_same = kept == position.offsets and kept.keys() <= ends.keys() and position.missing == latest.missing
        if is_same and all(ends[each] == kept.get(each, starts[each]) for each in ends):
            return position
        return StreamOffsets(ends, latest.topic_ids, latest.missing)

    @staticmethod
    def _kept(position: StreamOffsets, ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Return the offsets of a position without those of topics that were created again."""
        kept = {}
        for partition, offset in position.offsets.items():
            before, now = position.topic_ids.get(partition.topic), ids.get(partition.topic)
            if before is None or now is None or before == now:
                kept[partition] = offset
        return kept

    # Ranges

    def _offset_ranges(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> tuple[list[OffsetRange], StreamOffsets]:
        """Return the offsets of the micro-batch between two positions, the same ones if it is replayed; and its end.

        A partition that is only in `end`, or whose topic was created again, begins at its earliest offset.
        """
        for position in (start, end):
            StreamOffsets.check(position)
        began = start if StreamOffsets.FIRST in start else end.get(StreamOffsets.FIRST, start)
        if StreamOffsets.REFUSED in began:  # a first batch whose end does not say where it starts has no records
            began = end
        first, last = StreamOffsets.from_dict(began), StreamOffsets.from_dict(end)
        kept = self._kept(first, last.topic_ids)
        if first == self._initial:  # an end below it is that of a first batch without records, which is replayed
            kept = {partition: min(offset, last.offsets.get(partition, offset)) for partition, offset in kept.items()}
        topics = {partition.topic for partition in last.offsets}
        dropped = first.missing.keys() - topics  # a loss that was accepted when the micro-batch was planned
        self._log(
            DataLoss(each, offset, None, "the topic does not exist any more; its position was given up")
            for each, offset in first.offsets.items()
            if each.topic in dropped
        )
        losses = [
            DataLoss(partition, offset, None, self._why_gone(partition.topic, first, last))
            for partition, offset in first.offsets.items()
            if (partition not in last.offsets or partition not in kept) and partition.topic not in dropped
        ]
        for partition, offset in last.offsets.items():
            if offset < kept.get(partition, 0):
                reason = f"the log ends at {offset}: it was truncated, or the offsets are those of another topic"
                losses.append(DataLoss(partition, offset, kept[partition], reason))
        new = [partition for partition in last.offsets if partition not in kept]
        starts, more = planner.start_new_partitions(kept, last.offsets, self._starts_of_new(new) if new else {})
        losses += more
        self._raise_if_lost(losses)
        self._log(losses)
        self._position, self._returned = last, dict(end)
        found = [
            OffsetRange(*partition, starts[partition], offset)
            for partition, offset in sorted(last.offsets.items())
            if offset > starts[partition]
        ]
        return found, last

    @staticmethod
    def _why_gone(topic: str, first: StreamOffsets, last: StreamOffsets) -> str:
        before, after = first.topic_ids.get(topic), last.topic_ids.get(topic)
        if before != after and after is not None:
            return planner.created_again(before, after)
        return "the query does not read the partition any more"

    def _log_batch(self, tasks: int, found: Iterable[OffsetRange], last: StreamOffsets) -> None:
        """Log one line for each micro-batch; docs/spark-operations.md has its fields."""
        latest = last if self._latest is None else self._latest
        lag = sum(max(offset - last.offsets.get(each, offset), 0) for each, offset in latest.offsets.items())
        fields = {"tasks": tasks, "offsets": sum(each.size for each in found), "lag": lag}
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.info("batch %s", text, extra={"kcodec": fields})

    # Loss

    def _losses(self, position: StreamOffsets, logs: KnownLogs, ends: planner.PartitionOffsets) -> list[DataLoss]:
        """Return the offsets of the position that can no longer be read."""
        ranges = [
            OffsetRange(*partition, offset, max(offset, ends.get(partition, 0)))
            for partition, offset in sorted(position.offsets.items())
            if self._is_requested(partition)
        ]
        latest = {partition: ends[partition] for partition in logs.partitions if partition in ends}
        _, losses = planner.find_losses(
            ranges, logs.earliest, latest, expected_ids=position.topic_ids, found_ids=logs.ids
        )
        dropped = [
            DataLoss(partition, offset, None, "the options of the query do not name the partition any more")
            for partition, offset in position.offsets.items()
            if not self._is_requested(partition)
        ]
        found = [*losses, *dropped]
        if found and not set(position.offsets) & set(logs.partitions):
            found[-1] = replace(found[-1], reason=f"{found[-1].reason}; {OTHER_QUERY}")
        return found

    def _raise_if_lost(self, losses: list[DataLoss]) -> None:
        if losses and self._fails_on_data_loss:
            raise DataLossError(losses)

    def _log(self, losses: Iterable[DataLoss]) -> None:
        """Log each loss once."""
        for loss in losses:
            if loss not in self._reported:
                self._reported.add(loss)
                logger.warning("%s", loss)
