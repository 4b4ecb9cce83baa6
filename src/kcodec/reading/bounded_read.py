# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of partitions, from one offset to another, without a group: the flows of `read_topic` and
`read_ranges`.

One flow for each partition fetches ahead of the caller. The batch headers of a response determine the next offset. A
request contains one partition and uses no fetch session. `Fetcher` is not used, because its sessions leave out
partitions without changes (KIP-227).

Compaction may have removed the last records of a range. The read concludes this from two successive empty responses of
the leader, if the leader's log extends to the end of the range, and its local log contains the requested offset. Three
kinds of empty responses do not count:

- A leader that prefers another replica for `client_rack` (KIP-392) sends no records. The read continues with that
  replica. After an error or an empty response of the replica, it continues with the leader.
- A broker sends no records if it cannot read them from remote storage in time (KIP-405). The read uses ListOffsets to
  find the start of the local log, and requests offsets before it again.
- A response that names no partition was throttled (KIP-219).

`fetch_ahead_max_bytes` limits the memory of responses that are not taken yet. A request reserves the size of its
response until the response is taken, and waits for its turn if there is no free capacity. A response that declares a
larger size is rejected before it is received, and requested again with this size (brokers return the whole first batch
even if it is larger than `max_partition_fetch_bytes`). One response of any size may always be in flight. The memory
usage therefore does not depend on the length of a topic, the number of its partitions or the data that brokers send.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

from kcodec import _fast
from kcodec.cluster.broker_report import MAX_NAMED_TOPICS, report_brokers
from kcodec.cluster.list_offsets import list_offsets
from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID
from kcodec.constants import IsolationLevel
from kcodec.consumer.fetch_responses import STALE_METADATA
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import (
    AuthenticationError,
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    KcodecError,
    LimitExceededError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TransportError,
    UnsupportedError,
)
from kcodec.flow import ByVersion, Flow, Signal, Task, call, sleep, spawn, wait
from kcodec.offsets import OffsetRange
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.protocol.frame import RESPONSE_LIMIT
from kcodec.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kcodec.quantities import seconds_text
from kcodec.reading.partition_read import FetchedResponse, PartitionRead
from kcodec.reading.preferred_replica import PreferredReplica
from kcodec.reading.response_space import ResponseSpace

log = logging.getLogger("kcodec.reading")
OnMissing = Literal["raise", "skip"]
#: Errors after which another broker may be the leader, or the topic may not exist any more. A bounded read has no
#: position to validate, so UNKNOWN_LEADER_EPOCH is one of them.
NOT_THE_LEADER = STALE_METADATA | {ErrorCode.UNKNOWN_LEADER_EPOCH}
#: Errors of a topic that does not exist.
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
#: Time after which a topic that is missing in the metadata counts as deleted; a broker that has just started may not
#: know it yet.
TOPIC_PATIENCE_SECONDS = 2.0
#: The last version of Fetch with names of topics instead of their ids.
LAST_VERSION_BY_NAME = 12
#: The last version of Fetch without preferred replicas.
LAST_VERSION_OF_LEADERS = 10
#: Maximum size of a response of one partition without its records. Aborted transactions are included.
RESPONSE_OVERHEAD_BYTES = 64 * 1024
#: Maximum pause before a request is repeated.
LONGEST_PAUSE_SECONDS = 0.5


class BoundedRead:
    """Fetches ranges of partitions in parallel. The metadata of their topics must be known.

    ranges:     The ranges; `partitions` has the same order.
    settings:   isolation_level, max_partition_fetch_bytes, fetch_ahead_max_bytes, default_api_timeout (maximum time
                without progress in a partition), client_rack, metadata_max_age (maximum time for which a preferred
                replica is used, or avoided after it failed).
    on_missing: Handling of offsets that are not in the log: "raise" an error with the bounds of the log, or "skip"
                them, with a log message and a count. With None, the bounds were checked before: an offset that is no
                longer in the log is an error, and the read waits for an end that is not written yet.
    is_sample:  Whether the read of each partition ends after its first response.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Iterable[OffsetRange],
        settings: ConsumerSettings,
        on_missing: OnMissing | None = None,
        *,
        is_sample: bool = False,
    ) -> None:
        self.cluster = cluster
        self._is_sample = is_sample
        self.settings = settings
        self.on_missing = on_missing
        size = min(settings.max_partition_fetch_bytes, settings.fetch_max_bytes)
        self.partitions = [
            PartitionRead(
                each,
                PreferredReplica(cluster, settings, each.topic_partition),
                each.topic_id or cluster.topic_id(each.topic),
                size,
                each.topic_id is not None or not on_missing,
            )
            for each in ranges
        ]
        self.bytes_fetched = 0
        #: The tasks of the partitions that are not read to their end.
        self._reading: set[Task[None]] = set()
        self._responses: deque[FetchedResponse] = deque()
        self._arrived = Signal()
        self._error: BaseException | None = None
        self._space = ResponseSpace(settings.fetch_ahead_max_bytes)
        self._tasks: list[Task[None]] = []

    # For the public API

    def start(self) -> Flow[None]:
        """Start to fetch."""
        for partition in self.partitions:
            if partition.fetch_offset < partition.end:
                task = yield from spawn(self._read(partition), f"read of {partition.topic_partition}")
                self._tasks.append(task)
                self._reading.add(task)
                task.when_done(self._ended)
        if self._reading:
            settings = self.settings
            limit = settings.default_api_timeout
            topics = ", ".join(sorted({repr(one.range.topic) for one in self.partitions})[:MAX_NAMED_TOPICS])
            report = report_brokers(
                *(self.cluster, f"read of {topics}", limit, "kcodec.reading"),
                is_over=lambda: not self._reading,
            )
            self._tasks.append((yield from spawn(report, "broker report")))

    def stop(self) -> None:
        """On the I/O loop: stop fetching. `next_response` then raises TransportError if the read was not complete."""
        if self._reading or self._responses:
            self._error = TransportError("the read was closed before it was complete")
        for task in self._tasks:
            task.cancel()
        self._responses.clear()

    def next_response(self) -> Flow[FetchedResponse | None]:
        """Return the next response of any partition; None at the end. Raise the error that ended the read, after all
        earlier responses."""
        while not self._responses:
            if self._error is not None:
                raise self._error
            if not self._reading:
                self._check_corruption()
                return None
            yield from wait(self._arrived)
        response = self._responses.popleft()
        self._space.give(response.size)
        return response

    def _check_corruption(self) -> None:
        """Raise the corruption that stopped the fetching, if the decoder has reached it without raising it."""
        for partition in self.partitions:
            if partition.corruption is not None:
                raise partition.corruption

    # One partition

    def _read(self, partition: PartitionRead) -> Flow[None]:
        self._progressed(partition)
        while partition.fetch_offset < partition.end and partition.corruption is None and self._error is None:
            self.cluster.add_topics([partition.range.topic])
            size = max(partition.fetch_bytes, self._space.large)
            waiting_since = self.cluster.clock()
            yield from self._space.take(size)
            # While this partition waits for its turn, its time limit does not run, because the caller may be slow
            # to take records.
            partition.deadline += self.cluster.clock() - waiting_since
            partition.must_pause = True
            response = yield from self._fetch(partition, size)
            if response is not None:
                response.size = size
                self._responses.append(response)
                self._arrived.set()
                if self._is_sample:
                    break
                continue
            self._space.give(size)
            if partition.must_pause:
                yield from self._pause(partition)

    def _ended(self, task: Task[None]) -> None:
        """Note the end of a partition. An error, also that of a flow that Ctrl-C in asyncio has interrupted, is raised
        to the caller after the records before it."""
        self._error = self._error or task.error
        self._reading.discard(task)
        self._arrived.set()

    def _progressed(self, partition: PartitionRead) -> None:
        partition.deadline = self.cluster.clock() + self.settings.default_api_timeout
        partition.attempt = 0
        partition.unknown_since = partition.last_error = None

    def _fetch(self, partition: PartitionRead, size: int) -> Flow[FetchedResponse | None]:
        """Send one request; return None if it returned nothing."""
        topic, number = partition.topic_partition
        if not self._check_topic(partition):
            return None
        leader = self.cluster.leader(topic, number), self.cluster.leader_epoch(topic, number)
        preferred = partition.preferred
        node = preferred.look()
        node = leader[0] if node is None else node
        if node is None:
            self.cluster.request_update(f"{partition.topic_partition} has no known leader")
            partition.last_error = partition.last_error or self.cluster.no_leader_error(topic, number)
            return None
        timeout = min(self.settings.request_timeout, max(partition.deadline - self.cluster.clock(), 0.0))
        try:
            reply = yield from call(
                node,
                ByVersion(FetchRequest, lambda version: self._request(partition, version)),
                timeout=timeout,
                lowest=4,
                highest=self._highest_version(partition),
                channel="fetch",
                max_response_bytes=size + RESPONSE_OVERHEAD_BYTES,
            )
        except AuthenticationError:
            raise
        except (TransportError, UnsupportedError) as error:
            # The error of a request that the deadline has cut short is less specific than the previous error.
            if partition.last_error is None or timeout >= self.settings.request_timeout:
                partition.last_error = error
            self._not_received(partition, error)
            return None
        found = _of_partition(reply.message, number)
        code = reply.message.error_code or (found.error_code if found is not None else 0)
        if code:
            yield from self._refused(partition, code, reply.message, found)
            return None
        if found is None:  # a throttled response has no partitions (KIP-219); the connection waits by itself
            return None
        return (yield from self._responded(partition, found, leader))

    def _not_received(self, partition: PartitionRead, error: TransportError | UnsupportedError) -> None:
        """Prepare the repetition of a request without a response: with a larger size, or to another broker."""
        cause, preferred = error.__cause__, partition.preferred
        if isinstance(cause, LimitExceededError) and cause.limit == RESPONSE_LIMIT:
            partition.must_pause = self._space.large > 0  # the size may grow each time
            self._space.large = max(self._space.large, cause.claimed)
        elif preferred.node is None:
            self.cluster.forget_leader(*partition.topic_partition)
        else:
            preferred.leave("did not respond to a Fetch")

    def _responded(
        self, partition: PartitionRead, found: Any, leader: tuple[int | None, int]
    ) -> Flow[FetchedResponse | None]:
        """Handle a response without an error code. Return None if it has no records.

        leader: Id and epoch of the leader when the request was sent.
        """
        preferred = partition.preferred
        if found.diverging_epoch.end_offset >= 0:
            if preferred.node is not None:
                preferred.leave()  # the leader's log decides
            else:
                self._diverged(partition, found.diverging_epoch)
            return None
        if not found.records and found.preferred_read_replica >= 0:
            partition.must_pause = preferred.prefer(found.preferred_read_replica)
            return None
        if not found.records and preferred.node is not None:
            # The high watermark of a replica and the start of its local log are not those of the leader.
            preferred.leave()
            partition.must_pause = False
            return None
        is_short = found.high_watermark < partition.end and preferred.node is None
        if self.on_missing and is_short and not partition.is_end_checked:
            # A leader that has just been elected may not know its high watermark yet: ListOffsets waits for it.
            yield from self._check_bounds(partition)
            partition.is_end_checked = True
        if not found.records:
            yield from self._nothing(partition, found, leader)
            return None
        return self._received(partition, found)

    def _highest_version(self, partition: PartitionRead) -> int:
        """Return the highest version of Fetch to use."""
        if partition.preferred.is_redirected and partition.preferred.is_avoided:
            return LAST_VERSION_OF_LEADERS  # brokers do not call a replica selector for it
        return LAST_VERSION_BY_NAME if self.cluster.topic_id(partition.range.topic) is None else 32767

    def _request(self, partition: PartitionRead, version: int) -> FetchRequest:
        topic, number = partition.topic_partition
        requested = FetchPartition(
            partition=number,
            current_leader_epoch=self.cluster.leader_epoch(topic, number),
            fetch_offset=partition.fetch_offset,
            last_fetched_epoch=partition.last_epoch if version >= 12 else -1,
            partition_max_bytes=partition.fetch_bytes,
        )
        return FetchRequest(
            # After an empty response, the broker may wait before it sends another one, because it may need time to get
            # the records from tiered storage.
            max_wait_ms=int(self.settings.fetch_max_wait * 1000) if partition.is_empty_once else 0,
            min_bytes=1,
            max_bytes=partition.fetch_bytes,
            isolation_level=int(self.settings.isolation_level),
            topics=[FetchTopic(topic=topic, topic_id=partition.topic_id or NO_UUID, partitions=[requested])],
            rack_id="" if partition.preferred.is_avoided else self.settings.client_rack,
        )

    def _received(self, partition: PartitionRead, found: Any) -> FetchedResponse | None:
        data = memoryview(found.records)
        self.bytes_fetched += data.nbytes
        self._space.shrink(data.nbytes, partition.fetch_bytes)
        partition.is_empty_once = False
        partition.is_id_certain = True
        offset, epoch, corruption = behind(data)
        if offset is None and corruption is None:  # only an incomplete batch, as from brokers before KIP-74
            if partition.fetch_bytes >= self.settings.fetch_max_bytes:
                raise DecodeError(
                    f"{partition.topic_partition}: the batch at offset {partition.fetch_offset} is larger than "
                    f"fetch_max_bytes ({self.settings.fetch_max_bytes}); increase it",
                )
            partition.fetch_bytes = min(2 * partition.fetch_bytes, self.settings.fetch_max_bytes)
            partition.must_pause = False
            return None
        self._progressed(partition)
        position = partition.fetch_offset
        partition.corruption = corruption
        if offset is not None:
            partition.fetch_offset = max(partition.fetch_offset + 1, offset)
            partition.last_epoch = epoch
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
        return FetchedResponse(partition, position, data, aborted, found.last_stable_offset)

    def _nothing(self, partition: PartitionRead, found: Any, leader: tuple[int | None, int]) -> Flow[None]:
        """Handle an empty response of the leader. If its log extends to the end of the range, and the requested offset
        is in its local log, the read is complete. Otherwise, the records are not written yet, or the leader did not
        get them from remote storage.

        leader: The leader and its epoch when the request was sent.
        """
        limit = found.last_stable_offset if self.settings.is_committed_only else found.high_watermark
        if limit < partition.end:
            partition.is_empty_once = False
            held = ""
            if limit < found.high_watermark:
                held = f" of {found.high_watermark}: an open transaction blocks the records after it"
            partition.last_error = KcodecError(f"the readable records end at {limit}{held}")
            return
        if not partition.is_empty_once:
            partition.is_empty_once = True
            partition.must_pause = False
            return
        local_start = yield from self._local_start(partition)
        if local_start is None:
            return
        if local_start > partition.fetch_offset:
            partition.last_error = KcodecError(
                f"broker {leader[0]} returned no records at this offset, which is in remote storage (the local log "
                f"begins at {local_start}), so its remote read was too slow or was throttled; check the remote "
                "storage, or increase remote.fetch.max.wait.ms or remote.log.manager.fetch.max.bytes.per.second of "
                "the broker"
            )
            return
        topic, number = partition.topic_partition
        # The local log of another leader may begin at another offset.
        if (self.cluster.leader(topic, number), self.cluster.leader_epoch(topic, number)) == leader:
            partition.fetch_offset = partition.end
            partition.must_pause = False

    def _local_start(self, partition: PartitionRead) -> Flow[int | None]:
        """Return the offset at which the leader's local log begins: 0 if the leader has no tiered storage, None if the
        request failed."""
        where = partition.topic_partition
        left = max(partition.deadline - self.cluster.clock(), 0.0)
        try:
            listed = yield from list_offsets(
                self.cluster, {where: "earliest_local"}, IsolationLevel.READ_UNCOMMITTED, left
            )
        except UnsupportedError:
            return 0
        except BrokerError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                return 0
            if error.code not in GONE:
                raise
            self.cluster.forget_leader(*where)  # `_check_topic` decides once there is new metadata
            return None
        except DeliveryTimeoutError as error:
            partition.last_error = error
            return None
        return listed[where].offset

    # What goes wrong

    def _refused(self, partition: PartitionRead, code: int, message: Any, found: Any) -> Flow[None]:
        topic, number = partition.topic_partition
        doing = f"Fetch of {partition.topic_partition} at offset {partition.fetch_offset}"
        error = broker_error(code, doing, resource=partition.topic_partition)
        if partition.preferred.node is not None:
            partition.last_error = error
            partition.must_pause = False
            partition.preferred.leave(f"responded with {error.name}")
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if not self.on_missing:
                raise self._out_of_range(partition)
            partition.last_error = error
            yield from self._check_bounds(partition)
            return
        if code not in NOT_THE_LEADER and not error_code(code).retriable:
            raise error
        partition.last_error = error
        if code in NOT_THE_LEADER:
            leader = found.current_leader if found is not None else None
            self.cluster.learn_brokers(message.node_endpoints)
            self.cluster.forget_leader(topic, number)
            if leader is not None and leader.leader_id >= 0:
                self.cluster.learn_leader(topic, number, leader.leader_id, leader.leader_epoch)

    def _out_of_range(self, partition: PartitionRead) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"{partition.topic_partition}: offset {partition.fetch_offset} is no longer in the log: it was deleted "
            "(retention, DeleteRecords) or truncated while it was read",
            partition=partition.topic_partition,
            position=partition.fetch_offset,
        )

    def _check_bounds(self, partition: PartitionRead) -> Flow[None]:
        """Compare the rest of a range with the bounds of its log. If the log does not contain all of it, raise
        OffsetOutOfRangeError, or skip the missing offsets."""
        where = partition.topic_partition
        bounds = []
        for spec in ("earliest", "latest"):
            try:
                listed = yield from list_offsets(
                    self.cluster, {where: spec}, IsolationLevel.READ_UNCOMMITTED, self.settings.default_api_timeout
                )
            except BrokerError as error:
                if error.code not in GONE:
                    raise
                self.cluster.forget_leader(*where)  # `_check_topic` decides once there is new metadata
                return
            bounds.append(listed[where].offset)
        first, last = bounds
        position, end = partition.fetch_offset, partition.end
        start = min(max(position, first), end)
        if first <= position and end <= last:
            return
        lacking = f"offset {position} is" if not first <= position <= last else f"offsets up to {end} are"
        missing = f"{lacking} not in the log, which has offsets {first} to {last} (exclusive)"
        if self.on_missing == "raise":
            raise OffsetOutOfRangeError(
                f"range {partition.range}: {missing}: records were deleted (retention, DeleteRecords) or the log was "
                'truncated; set on_missing="skip" to read the remaining records',
                partition=where,
                position=position,
                log_start_offset=first,
                log_end_offset=last,
            )
        partition.fetch_offset, partition.end = start, max(start, min(end, last))
        partition.must_pause = False
        self._count_lost(partition, (end - position) - (partition.end - partition.fetch_offset), missing)

    def _count_lost(self, partition: PartitionRead, lost: int, why: str) -> None:
        partition.lost += lost
        log.warning("range %s: %d offsets are lost: %s", partition.range, lost, why)

    def skip_rest(self, partition: PartitionRead, error: BrokerError) -> None:
        """Raise the error of a range whose topic no longer exists, or skip the rest of the range with
        on_missing="skip"."""
        if self.on_missing != "skip":
            raise error
        self._count_lost(partition, partition.end - partition.fetch_offset, str(error))
        partition.fetch_offset = partition.end
        partition.must_pause = False

    def _diverged(self, partition: PartitionRead, diverging: Any) -> None:
        """Handle a log without records of `last_epoch` before the fetch offset: it was truncated, unless that epoch had
        no records. (The epoch of a range may be that of its leader, as ListOffsets returns it.)"""
        if diverging.end_offset >= partition.fetch_offset:
            partition.last_epoch = diverging.epoch
            return
        error = LogTruncationError(
            f"{partition.topic_partition}: a new leader truncated the log at {diverging.end_offset} (epoch "
            f"{diverging.epoch}): the records read from there up to {partition.fetch_offset} are lost",
            partition=partition.topic_partition,
            position=partition.fetch_offset,
            position_epoch=partition.last_epoch,
            divergent_offset=diverging.end_offset,
            divergent_epoch=diverging.epoch,
        )
        if self.on_missing != "skip":
            raise error
        log.warning("range %s: %s; reading continues in the current log", partition.range, error)
        partition.last_epoch = -1
        partition.must_pause = False

    def _check_topic(self, partition: PartitionRead) -> bool:
        """Return whether metadata still has the topic. Raise BrokerError, or skip the range, if the topic no longer
        exists or another topic has its name."""
        topic = partition.range.topic
        found = self.cluster.topics.get(topic)
        if found is None:
            return True
        named = f"range {partition.range}: " if self.on_missing else ""
        is_other = partition.topic_id is not None and found.topic_id not in (NO_UUID, partition.topic_id)
        if not found.error and is_other:
            if not partition.is_id_certain:
                partition.topic_id = found.topic_id
                return True
            doing = f"{named}topic {topic!r} was deleted and created again while it was read"
            error = broker_error(ErrorCode.INCONSISTENT_TOPIC_ID, doing, resource=topic, remedy="stop")
            self.skip_rest(partition, error)
            return False
        if found.error not in GONE:
            partition.unknown_since = None
            return True
        now = self.cluster.clock()
        partition.unknown_since = now if partition.unknown_since is None else partition.unknown_since
        if now - partition.unknown_since < TOPIC_PATIENCE_SECONDS:
            return True
        doing = f"{named}topic {topic!r} was deleted while it was read"
        error = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, doing, resource=topic, remedy="stop")
        self.skip_rest(partition, error)
        return False

    def _pause(self, partition: PartitionRead) -> Flow[None]:
        """Pause before a retry. Raise DeliveryTimeoutError if a partition has made no progress for too long."""
        left = partition.deadline - self.cluster.clock()
        if left <= 0:
            why = f"; last error: {partition.last_error}" if partition.last_error is not None else ""
            raise DeliveryTimeoutError(
                f"{partition.topic_partition}: offset {partition.fetch_offset} (reading up to {partition.end}) could "
                f"not be read within {seconds_text(self.settings.default_api_timeout)}{why}"
            )
        pause = min(self.settings.retry_backoff(partition.attempt, self.cluster.random.random()), LONGEST_PAUSE_SECONDS)
        partition.attempt += 1
        yield from sleep(min(pause, left))


def _of_partition(message: Any, number: int) -> Any:
    for topic in message.responses:
        for found in topic.partitions:
            if found.partition_index == number:
                return found
    return None


def behind(data: memoryview) -> tuple[int | None, int, DecodeError | None]:
    """Return the offset after the last complete batch, its leader epoch, and the error in the header after it.

    Only headers are read. Return None if there is no complete batch.
    """
    found: Any = None
    corruption = None
    try:
        for found in _fast.batches(data):  # noqa: B007  the last one counts
            pass
    except DecodeError as error:
        corruption = error
    if found is None:
        return None, -1, corruption
    return found.last_offset + 1, found.partition_leader_epoch, corruption
