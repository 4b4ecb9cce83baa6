# SPDX-License-Identifier: Apache-2.0
"""The driver's part of a streaming query over topics: positions, the size of micro-batches, and their ranges.

It knows brokers and not Spark: positions come and go as the JSON objects of Spark's checkpoint,
``{"v":1,"orders":{"id":"<topic id>","0":23}}``. One object lives as long as the query, with one client.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import kcodec
from kcodec.client import Admin
from kcodec.errors import AdminError, BrokerError, KcodecError
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.spark import planner
from kcodec.spark.planner import DataLoss, DataLossError, StreamOffsets
from kcodec.spark.topics import TopicSource, find_topics, list_offsets, offsets_at
from kcodec.spark.trigger_limits import TriggerControl

logger = logging.getLogger("kcodec.spark")
#: Topics, partitions and the starts of logs are looked up again after this time.
METADATA_SECONDS = 1.0
#: The same while a topic is missing, as brokers are given two seconds to know it.
MISSING_SECONDS = 10.0
COMMIT_SECONDS = 5.0
#: A leader that has just been elected may know a lower end than the one before it.
END_ATTEMPTS = 5
END_PAUSE_SECONDS = 0.3
#: Bytes of one partition that are read to estimate the size of its offsets.
SAMPLE_BYTES = 64 * 1024
GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass
class _Topics:
    """What the cluster has of the topics of the query. missing: topics of the position that do not exist."""

    partitions: list[TopicPartition]
    ids: dict[str, str]
    earliest: dict[TopicPartition, int]
    missing: set[str]
    at: float

    def is_current(self, now: float) -> bool:
        return now - self.at < (MISSING_SECONDS if self.missing else METADATA_SECONDS)


class TopicStream:
    """The position and the plans of one streaming query.

    source: its options (`TopicSource.of(options, is_stream=True)`). clock: seconds, for maxTriggerDelay.

    The methods are those of Spark's stream readers: `initial_offset`, `latest_offset`, `prepare_for_available_now`,
    `ranges`, `commit`, `report`, `close`. They raise what brokers respond, at the latest after
    kafka.default.api.timeout.ms, and DataLossError where offsets are lost and failOnDataLoss is true.
    """

    def __init__(self, source: TopicSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._control = TriggerControl(source.limits, self._sampled_bytes, clock)
        self._client: Admin | None = None
        self._topics: _Topics | None = None
        self._frozen: dict[TopicPartition, int] | None = None
        self._latest: StreamOffsets | None = None
        self._position: StreamOffsets | None = None
        self._bytes_per_offset: dict[TopicPartition, float] = {}
        self._reported: set[DataLoss] = set()

    # ------------------------------------------------------------------------------------------------------- positions

    def initial_offset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts (startingOffsets and the like)."""
        self._topics = None
        topics = self._look(None)
        latest = {**self._list(topics.partitions, "latest"), **(self._frozen or {})}
        limit, level = self._source.starting(), self._source.isolation_level
        times = offsets_at(self._admin, limit, topics.partitions, level)
        offsets = planner.resolve_offsets(limit, topics.partitions, topics.earliest, latest, times, is_start=True)
        position = StreamOffsets(offsets, topics.ids)
        losses = self._losses(position, *self._look_at_ends(position))
        self._raise_if_lost(losses)
        self._log(losses)
        self._position = position
        return position.to_dict()

    def latest_offset(self, start: Mapping[str, Any] | None, *, is_limited: bool = True) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` if there is nothing new, or not enough of it.

        start: the end of the one before. None: Spark does not pass it (4.0 and 4.1), so that it is the end that was
        returned or planned last. In a query that was just restarted there is none, and the batch has no limit.
        is_limited: False for the read limit ReadAllAvailable, which overrides all options.
        """
        position = self._position if start is None else StreamOffsets.from_dict(start)
        topics, ends = self._look_at_ends(position)
        if position is not None:
            losses = self._losses(position, topics, ends)
            self._raise_if_lost(losses)
            self._log([loss for loss in losses if loss.partition.topic in topics.missing])
        latest = self._latest = StreamOffsets(ends, self._ids(position, topics))
        if position is not None and is_limited:
            latest = self._limited(position, latest, topics)
        self._position = latest
        return latest.to_dict()

    def prepare_for_available_now(self) -> None:
        """Remember the ends of the logs: with Trigger.AvailableNow the query reads up to them."""
        topics = self._look(None, may_miss=not self._source.fails_on_data_loss)
        self._frozen = self._list(topics.partitions, "latest")

    def report(self) -> dict[str, Any] | None:
        """Return the ends of the logs as of the last `latest_offset`, whatever the limits: the lag is up to there."""
        return None if self._latest is None else self._latest.to_dict()

    # ---------------------------------------------------------------------------------------------------------- ranges

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """Return the range of each task of the micro-batch between two positions; the same ones if it is replayed.

        A partition that is only in `end`, or whose topic was created again, begins at its earliest offset.
        """
        first, last = StreamOffsets.from_dict(start), StreamOffsets.from_dict(end)
        kept = {
            partition: offset
            for partition, offset in first.offsets.items()
            if first.topic_ids.get(partition.topic) == last.topic_ids.get(partition.topic)
        }
        losses = [
            DataLoss(partition, offset, None, self._why_gone(partition.topic, first, last))
            for partition, offset in first.offsets.items()
            if partition not in last.offsets or partition not in kept
        ]
        for partition, offset in last.offsets.items():
            if offset < kept.get(partition, 0):
                reason = f"the log ends at {offset}: it was truncated, or the offsets are those of another topic"
                losses.append(DataLoss(partition, offset, kept[partition], reason))
        starts, more = planner.start_new_partitions(kept, last.offsets, self._starts_of_new(kept, last))
        losses += more
        self._raise_if_lost(losses)
        self._log(losses)
        self._position = last
        ids = {topic: _uuid(text) for topic, text in last.topic_ids.items()}
        found = [
            OffsetRange(*partition, starts[partition], offset, topic_id=ids.get(partition.topic))
            for partition, offset in sorted(last.offsets.items())
            if offset > starts[partition]
        ]
        tasks = self._source.cut(found)
        latest = last if self._latest is None else self._latest
        lag = sum(max(offset - last.offsets.get(each, offset), 0) for each, offset in latest.offsets.items())
        logger.info("batch tasks=%d offsets=%d lag=%d", len(tasks), sum(each.size for each in found), lag)
        return tasks

    def _starts_of_new(self, kept: planner.PartitionOffsets, last: StreamOffsets) -> dict[TopicPartition, int]:
        new = [partition for partition in last.offsets if partition not in kept]
        try:
            return self._list(new, "earliest") if new else {}
        except BrokerError as error:
            if error.code not in GONE or self._source.fails_on_data_loss:
                raise
            return dict.fromkeys(new, 0)  # the tasks count what is not there

    def _why_gone(self, topic: str, first: StreamOffsets, last: StreamOffsets) -> str:
        before, after = first.topic_ids.get(topic), last.topic_ids.get(topic)
        if before != after and after is not None:
            return f"the topic was deleted and created again (its id was {before} and is {after})"
        return "the query does not read the partition any more"

    # ------------------------------------------------------------------------------------------------ commit and close

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the offsets for `kafka.group.id`, if it is given, for tools that show lag. An error is only logged."""
        group = self._source.group_id
        if group is None:
            return
        position = StreamOffsets.from_dict(end)
        try:
            self._admin.alter_group_offsets(group, position.offsets, timeout=COMMIT_SECONDS)
        except KcodecError as error:
            logger.warning("offsets were not committed for the group %s, which only tools read: %s", group, error)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --------------------------------------------------------------------------------------------------------- lookups

    @property
    def _admin(self) -> Admin:
        if self._client is None:
            self._client = self._source.admin()
        return self._client

    def _list(self, partitions: Iterable[TopicPartition], spec: str, level: Any = None) -> dict[TopicPartition, int]:
        wanted: dict[TopicPartition, str | int] = dict.fromkeys(partitions, spec)
        return list_offsets(self._admin, wanted, level or self._source.isolation_level) if wanted else {}

    def _look(self, position: StreamOffsets | None, *, may_miss: bool = False) -> _Topics:
        """The topics of the query, at most METADATA_SECONDS old. may_miss: topics that do not exist are no error."""
        now = self._clock()
        if self._topics is None or not self._topics.is_current(now):
            self._topics = self._looked_up(position, now, may_miss)
        return self._topics

    def _looked_up(self, position: StreamOffsets | None, now: float, may_miss: bool) -> _Topics:
        wanted = self._source.topics()
        known = set() if position is None else {partition.topic for partition in position.offsets}
        try:
            ids, counts = find_topics(self._admin, wanted)
        except (BrokerError, AdminError) as error:
            named = set(wanted.subscribe or (partition.topic for partition in wanted.assign))
            gone = _missing(error, named)
            if gone is None or not (may_miss or gone <= known):
                raise
            left = named - gone
            ids, counts = find_topics(self._admin, planner.SourceTopics(subscribe=tuple(left))) if left else ({}, {})
        partitions = [
            each
            for each in wanted.partitions(counts)
            if each.partition < counts.get(each.topic, 0) or (position is None and not may_miss)
        ]
        read = {partition.topic for partition in partitions}
        missing = {topic for topic in known - set(counts) if self._is_wanted(wanted, topic)}
        texts = {topic: _id_text(topic_id) for topic, topic_id in ids.items() if topic in read and topic_id is not None}
        return _Topics(partitions, texts, self._list(partitions, "earliest"), missing, now)

    @staticmethod
    def _is_wanted(wanted: planner.SourceTopics, topic: str) -> bool:
        partitions = wanted.partitions({topic: 1})
        return any(partition.topic == topic for partition in partitions)

    def _ids(self, position: StreamOffsets | None, topics: _Topics) -> dict[str, str]:
        before = {} if position is None else position.topic_ids
        return {**{topic: before[topic] for topic in topics.missing if topic in before}, **topics.ids}

    def _look_at_ends(self, position: StreamOffsets | None) -> tuple[_Topics, dict[TopicPartition, int]]:
        """The topics, and up to where their partitions can be read."""
        topics = self._look(position)
        try:
            ends = self._list(topics.partitions, "latest")
        except BrokerError as error:
            if error.code not in GONE:
                raise
            self._topics = None
            topics = self._look(position)
            ends = self._list(topics.partitions, "latest")
        return topics, ends if position is None else self._ends(position, topics, ends)

    def _ends(
        self, position: StreamOffsets, topics: _Topics, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The ends, which are not below the position where the logs reach it."""
        kept = {
            partition: offset
            for partition, offset in position.offsets.items()
            if self._is_same_topic(partition.topic, position, topics)
        }
        for attempt in range(END_ATTEMPTS):
            below = [partition for partition, end in ends.items() if end < kept.get(partition, 0)]
            if not below:
                break
            # Under read_committed an open transaction may hold back the end; the high watermark is what counts.
            written = self._list(below, "latest", "read_uncommitted")
            ends |= {each: kept[each] for each, offset in written.items() if offset >= kept[each]}
            if any(ends[each] < kept[each] for each in below) and attempt + 1 < END_ATTEMPTS:
                time.sleep(END_PAUSE_SECONDS)
                ends |= self._list(below, "latest")
        if self._frozen is not None:
            ends = {
                partition: max(min(self._frozen.get(partition, 0), end), min(kept.get(partition, 0), end))
                for partition, end in ends.items()
                if partition in self._frozen or partition in kept
            }
        missing = {each: offset for each, offset in position.offsets.items() if each.topic in topics.missing}
        return {**missing, **ends}

    @staticmethod
    def _is_same_topic(topic: str, position: StreamOffsets, topics: _Topics) -> bool:
        before, now = position.topic_ids.get(topic), topics.ids.get(topic)
        return before is None or now is None or before == now

    # ------------------------------------------------------------------------------------------------------------ loss

    def _losses(self, position: StreamOffsets, topics: _Topics, ends: planner.PartitionOffsets) -> list[DataLoss]:
        """What of the position cannot be read any more."""
        wanted = self._source.topics()
        ranges = [
            OffsetRange(*partition, offset, max(offset, ends.get(partition, 0)))
            for partition, offset in sorted(position.offsets.items())
            if self._is_wanted(wanted, partition.topic) or partition in wanted.assign
        ]
        latest = {partition: ends[partition] for partition in topics.partitions if partition in ends}
        _, losses = planner.find_losses(
            ranges, topics.earliest, latest, expected_ids=position.topic_ids, found_ids=topics.ids
        )
        dropped = [
            DataLoss(partition, offset, None, "the query does not read the topic any more")
            for partition, offset in position.offsets.items()
            if not self._is_wanted(wanted, partition.topic)
        ]
        return [*losses, *dropped]

    def _raise_if_lost(self, losses: list[DataLoss]) -> None:
        if losses and self._source.fails_on_data_loss:
            raise DataLossError(losses)

    def _log(self, losses: Iterable[DataLoss]) -> None:
        """Log each loss once."""
        for loss in losses:
            if loss not in self._reported:
                self._reported.add(loss)
                logger.warning("%s", loss)

    # ---------------------------------------------------------------------------------------------------------- limits

    def _limited(self, position: StreamOffsets, latest: StreamOffsets, topics: _Topics) -> StreamOffsets:
        kept = {
            partition: offset
            for partition, offset in position.offsets.items()
            if self._is_same_topic(partition.topic, position, topics)
        }
        starts, _ = planner.start_new_partitions(
            kept, latest.offsets, {**dict.fromkeys(latest.offsets, 0), **topics.earliest}
        )
        ends = self._control.end(starts, latest.offsets, may_delay=self._frozen is None)
        if all(ends[partition] == starts[partition] for partition in ends) and kept == position.offsets:
            return position
        return StreamOffsets(ends, latest.topic_ids)

    def _sampled_bytes(
        self, start: planner.PartitionOffsets, end: planner.PartitionOffsets
    ) -> Mapping[TopicPartition, float]:
        """The bytes of keys, values and headers of an offset, by the first records of each partition's backlog."""
        import pyarrow as pa

        backlog = [OffsetRange(*each, start[each], end[each]) for each in sorted(end) if end[each] > start[each]]
        reading = {
            **self._source.reading,
            "columns": ["topic", "partition", "offset", "key", "value", "headers"],
            "max_partition_fetch_bytes": SAMPLE_BYTES,
            "fetch_ahead_max_bytes": SAMPLE_BYTES,
        }
        left = {each.topic_partition for each in backlog}
        with kcodec.read_ranges(backlog, spark_layout=True, on_missing="skip", **reading) as records:
            for chunk in records:
                rows = pa.record_batch(chunk)
                if not rows.num_rows:
                    continue
                partition = TopicPartition(rows["topic"][0].as_py(), rows["partition"][0].as_py())
                if partition in left:
                    left.discard(partition)
                    size = sum(rows[name].nbytes for name in ("key", "value", "headers"))
                    offsets = rows["offset"][rows.num_rows - 1].as_py() + 1 - start[partition]
                    before = self._bytes_per_offset.get(partition)
                    estimate = planner.updated_bytes_per_offset(before, size, offsets)
                    if estimate is not None:
                        self._bytes_per_offset[partition] = estimate
                if not left:
                    break
        return self._bytes_per_offset


def _missing(error: BrokerError | AdminError, named: set[str]) -> set[str] | None:
    """The topics that do not exist, if that is all that the error says."""
    errors = error.errors if isinstance(error, AdminError) else {next(iter(named)): error}
    gone = {topic for topic, one in errors.items() if isinstance(one, BrokerError) and one.code in GONE}
    return gone if gone and len(gone) == len(errors) else None


def _id_text(topic_id: UUID) -> str:
    """An id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def _uuid(text: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    return None
