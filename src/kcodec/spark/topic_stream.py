# SPDX-License-Identifier: Apache-2.0
"""The driver's part of a streaming query over topics. This module uses brokers, and not Spark.

One object with one client exists as long as the query runs. Tasks read the ranges with `TopicSource.read`.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kcodec.client.range_sample import sample_ranges
from kcodec.errors import (
    AdminError,
    AuthenticationError,
    BrokerError,
    DeliveryTimeoutError,
    KcodecError,
    RequestTimedOutError,
)
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.spark import offset_options, planner
from kcodec.spark.client_options import has_provider, with_credentials
from kcodec.spark.planner import DataLoss, StreamOffsets
from kcodec.spark.stream_state import KnownLogs, StreamState
from kcodec.spark.topic_source import TopicSource, find_topics, list_offsets, offsets_at

if TYPE_CHECKING:
    from kcodec.client import Admin

logger = logging.getLogger("kcodec.spark")
T = TypeVar("T")
#: Topics, partitions and the starts of logs are looked up again after this time.
METADATA_SECONDS = 1.0
#: The same while a topic of subscribe or assign is missing, because each lookup then waits two seconds for the topic.
MISSING_SECONDS = 10.0
COMMIT_SECONDS = 5.0
#: A leader that has just been elected may know a lower end than the one before it.
END_ATTEMPTS = 5
END_PAUSE_SECONDS = 0.3
#: A topic may be deleted, or created again with fewer partitions, after its partitions were looked up. Brokers do not
#: all know this at once.
LIST_ATTEMPTS = 3
#: Bytes of one partition that are read to estimate the size of its offsets.
SAMPLE_BYTES = 64 * 1024
#: Time after which the size of the offsets of a partition is estimated again.
SAMPLE_SECONDS = 60.0
#: Maximum time to wait for the sample of a partition. A leader that does not respond delays no other partition longer.
SAMPLE_TIMEOUT_MS = 5000
GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicStream(StreamState):
    """The position and the plans of one streaming query over topics.

    source: Options of the query (`TopicSource.of(options, is_stream=True)`).
    clock:  Returns the time in seconds, for maxTriggerDelay.
    wall_clock: Returns the time in seconds since 1970, for topics that are missing.

    The methods are those of Spark's stream readers: `initial_offset`, `latest_offset`, `prepare_for_available_now`,
    `ranges`, `commit`, `report`, `close`. They raise what brokers respond, at the latest after
    kafka.default.api.timeout.ms, and DataLossError where offsets are lost and failOnDataLoss is true.
    """

    def __init__(
        self,
        source: TopicSource,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        fails = source.fails_on_data_loss
        super().__init__(source.limits, fails_on_data_loss=fails, clock=clock, wall_clock=wall_clock)
        self._source = source
        self._client: Admin | None = None
        self._known: KnownLogs | None = None
        self._sizes: dict[TopicPartition, float] = {}
        self._sampled_at: dict[TopicPartition, float] = {}

    def _starting(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        self._known = None
        logs = self._logs(None)
        latest = {**self._list(logs.partitions, "latest"), **(self._frozen or {})}
        limit, level = self._source.starting, self._source.isolation_level
        times = self._request(lambda admin: offsets_at(admin, limit, logs.partitions, level))
        offsets = planner.resolve_offsets(limit, logs.partitions, logs.earliest, latest, times, is_start=True)
        return offsets, logs.ids

    def prepare_for_available_now(self) -> None:
        """Store the ends of the logs, up to which the query reads with Trigger.AvailableNow."""
        _, self._frozen = self._logs_and_ends(None, may_miss=not self._source.fails_on_data_loss)
        self._known = None  # it was looked up without a position, of which topics may be missing

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """Return the range of each task of the micro-batch between two positions. If it is replayed, the ranges are the
        same.

        A partition that is only in `end`, or whose topic was created again, begins at its earliest offset.
        """
        found, last = self._offset_ranges(start, end)
        ids = {topic: _uuid(text) for topic, text in last.topic_ids.items()}
        tasks = self._source.cut([replace(each, topic_id=ids.get(each.topic)) for each in found])
        self._log_batch(len(tasks), found, last)
        return tasks

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[OffsetRange]]:
        """Return what each task of a micro-batch reads, for `TopicSource.read`: one of the ranges."""
        return [[each] for each in self.ranges(start, end)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the offsets for `kafka.group.id`, if it is given, for tools that show lag. An error is only logged."""
        group = self._source.group_id
        if group is None:
            return
        position = StreamOffsets.from_dict(end)
        try:
            self._request(lambda admin: admin.alter_group_offsets(group, position.offsets, timeout=COMMIT_SECONDS))
        except KcodecError as error:
            logger.warning("offsets were not committed for the group %s, which only tools read: %s", group, error)

    def close(self) -> None:
        """Close the connections. Further calls do nothing."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # Requests to brokers

    def _request(self, send: Callable[[Admin], T]) -> T:
        """Return the result of requests. If brokers refuse credentials of a provider, connect with new ones and send
        the requests once more."""
        if self._client is None:
            self._client = self._source.admin()
        try:
            return send(self._client)
        except (AuthenticationError, AdminError) as error:
            if not _is_refusal(error) or not has_provider(self._source.reading):
                raise
            logger.warning(
                "connecting again with new credentials of the provider, because a broker refused the earlier ones: %s",
                error,
            )
            self.close()
            self._client = self._source.admin()
            return send(self._client)

    def _list(self, partitions: Iterable[TopicPartition], spec: str, level: Any = None) -> dict[TopicPartition, int]:
        requested: dict[TopicPartition, str | int] = dict.fromkeys(partitions, spec)
        level = level or self._source.isolation_level
        return self._request(lambda admin: list_offsets(admin, requested, level)) if requested else {}

    def _find(self, requested: offset_options.SourceTopics) -> tuple[dict[str, UUID | None], dict[str, int]]:
        return self._request(lambda admin: find_topics(admin, requested))

    def _logs(self, position: StreamOffsets | None, *, may_miss: bool = False) -> KnownLogs:
        """Return the logs, at most METADATA_SECONDS old. With `may_miss`, missing topics are not an error."""
        now, known = self._clock(), self._known
        if known is None or now - known.at >= (MISSING_SECONDS if known.waited else METADATA_SECONDS):
            known = self._known = self._looked_up(position, now, may_miss)
        return known

    def _looked_up(
        self, position: StreamOffsets | None, now: float, may_miss: bool, attempts: int = LIST_ATTEMPTS
    ) -> KnownLogs:
        requested = self._source.topics
        known = set() if position is None else {partition.topic for partition in position.offsets}
        may_miss = may_miss or (position is not None and not self._source.fails_on_data_loss)
        waited = False
        try:
            ids, counts = self._find(requested)
        except (BrokerError, AdminError) as error:
            named = set(requested.subscribe or (partition.topic for partition in requested.assign))
            gone = _missing(error, named)
            if gone is None or not (may_miss or gone <= known):
                raise
            left, waited = named - gone, True
            ids, counts = self._find(offset_options.SourceTopics(subscribe=tuple(left))) if left else ({}, {})
        partitions = [
            each
            for each in requested.partitions(counts)
            if each.partition < counts.get(each.topic, 0) or (position is None and not may_miss)
        ]
        read = {partition.topic for partition in partitions}
        missing = {topic for topic in known - set(counts) if requested.includes_topic(topic)}
        texts = {topic: id_text(topic_id) for topic, topic_id in ids.items() if topic in read and topic_id is not None}
        try:
            earliest = self._list(partitions, "earliest")
        except (BrokerError, AdminError) as error:
            if not _is_gone(error) or attempts == 1 or (position is None and not may_miss):
                raise
            time.sleep(END_PAUSE_SECONDS)
            return self._looked_up(position, now, may_miss, attempts - 1)
        return KnownLogs(partitions, texts, earliest, missing, now, waited)

    def _is_requested(self, partition: TopicPartition) -> bool:
        return self._source.topics.includes(partition)

    def _find_logs_and_ends(self, position: StreamOffsets | None) -> tuple[KnownLogs, dict[TopicPartition, int]]:
        logs, ends = self._logs_and_ends(position)
        return logs, ends if position is None else self._not_below(position, logs, ends)

    def _logs_and_ends(
        self, position: StreamOffsets | None, *, may_miss: bool = False
    ) -> tuple[KnownLogs, dict[TopicPartition, int]]:
        attempt = 1
        while True:
            logs = self._logs(position, may_miss=may_miss)
            try:
                return logs, self._list(logs.partitions, "latest")
            except (BrokerError, AdminError) as error:
                if not _is_gone(error) or attempt == LIST_ATTEMPTS:
                    raise
                self._known = None
                time.sleep(END_PAUSE_SECONDS * (attempt - 1))
                attempt += 1

    def _not_below(
        self, position: StreamOffsets, logs: KnownLogs, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the ends, which are not below the position if the logs reach it."""
        kept = self._kept(position, logs.ids)
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
        return ends

    def _starts_of_new(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return self._list(partitions, "earliest")
        except (BrokerError, AdminError) as error:
            if not _is_gone(error):
                raise
            gone = set(error.errors) if isinstance(error, AdminError) else set(partitions)
            reason = "the partition was deleted before the query began to read it"
            self._raise_if_lost([DataLoss(partition, 0, None, reason) for partition in sorted(gone)])
            left = [partition for partition in partitions if partition not in gone]
            return {**self._list(left, "earliest"), **dict.fromkeys(gone, 0)}  # the tasks count what is not there

    def _bytes_per_offset(
        self, start: planner.PartitionOffsets, end: planner.PartitionOffsets
    ) -> Mapping[TopicPartition, float]:
        """Return the mean size of an offset, from keys, values and headers of the first records of each partition's
        backlog. About SAMPLE_BYTES of each partition are read, unless this was done in the last SAMPLE_SECONDS.
        Partitions without a record there, and those whose leader does not respond in time, keep their estimate."""
        now = self._clock()
        backlog = [
            OffsetRange(*each, start[each], end[each])
            for each in sorted(end)
            if end[each] > start[each] and now - self._sampled_at.get(each, -SAMPLE_SECONDS) >= SAMPLE_SECONDS
        ]
        if backlog:
            self._sample(backlog)
            self._sampled_at |= dict.fromkeys((each.topic_partition for each in backlog), now)
        return self._sizes

    def _sample(self, backlog: Sequence[OffsetRange]) -> None:
        """Update the estimates of partitions from the beginnings of these ranges."""
        import pyarrow as pa

        start = {each.topic_partition: each.start for each in backlog}
        reading = with_credentials(self._source.reading)
        limit = min(reading.get("default_api_timeout_ms", SAMPLE_TIMEOUT_MS), SAMPLE_TIMEOUT_MS)
        reading |= {
            "columns": ["topic", "partition", "offset", "key", "value", "headers"],
            "default_api_timeout_ms": limit,
        }
        sampled: set[TopicPartition] = set()
        try:
            with sample_ranges(backlog, sample_bytes=SAMPLE_BYTES, **reading) as records:
                for rows in map(pa.record_batch, records):
                    if not rows.num_rows:
                        continue
                    partition = TopicPartition(rows["topic"][0].as_py(), rows["partition"][0].as_py())
                    if partition in sampled:
                        continue
                    sampled.add(partition)
                    size = sum(rows[name].nbytes for name in ("key", "value", "headers"))
                    offsets = rows["offset"][rows.num_rows - 1].as_py() + 1 - start[partition]
                    estimate = planner.updated_bytes_per_offset(self._sizes.get(partition), size, offsets)
                    if estimate is not None:
                        self._sizes[partition] = estimate
        except (DeliveryTimeoutError, RequestTimedOutError) as error:
            logger.warning("option maxBytesPerTrigger: the size of records is only estimated in part: %s", error)


def _is_refusal(error: KcodecError) -> bool:
    """Return whether brokers have refused the credentials of a client."""
    errors = error.errors.values() if isinstance(error, AdminError) else [error]
    return any(isinstance(one, AuthenticationError) for one in errors)


def _is_gone(error: BrokerError | AdminError) -> bool:
    """Return whether an error reports only topics and partitions that do not exist. Calls for several partitions raise
    AdminError."""
    errors = error.errors.values() if isinstance(error, AdminError) else [error]
    return all(isinstance(one, BrokerError) and one.code in GONE for one in errors)


def _missing(error: BrokerError | AdminError, named: set[str]) -> set[str] | None:
    """Return the topics that do not exist, if the error reports nothing else."""
    errors = error.errors if isinstance(error, AdminError) else {next(iter(named)): error}
    gone = {topic for topic, one in errors.items() if isinstance(one, BrokerError) and one.code in GONE}
    return gone if gone and len(gone) == len(errors) else None


def id_text(topic_id: UUID) -> str:
    """Return an id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def _uuid(text: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    return None
