# SPDX-License-Identifier: Apache-2.0
"""The calls of a consumer that concern offsets: positions, the bounds of the log, and the offsets of the group.

The flows are methods of the public classes. A `timeout` is in seconds; None means default_api_timeout_ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcodec._fast import Record
from kcodec.arguments import by_partition, check_seconds, partitions_in, partitions_of
from kcodec.cluster.list_offsets import ListedOffset, list_offsets
from kcodec.cluster.metadata import Cluster
from kcodec.consumer import lag as lags
from kcodec.consumer.assignment import AWAITED, Assignment
from kcodec.consumer.callbacks import CallbackQueue
from kcodec.consumer.commits import Commits
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.lag import PartitionLag
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.waiting_report import WaitingReport
from kcodec.errors import AuthenticationError, DeliveryTimeoutError
from kcodec.flow import Flow, wait
from kcodec.integers import as_integer, shown
from kcodec.offsets import OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.quantities import seconds_text
from kcodec.timestamps import warn_of_unit

Partitions = Iterable[TopicPartition]


def _after(record: Record) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset after a record of this consumer. Raise ValueError for a record of unknown origin."""
    if record.topic is None or record.partition is None:
        raise ValueError(
            "store_offsets needs a record that a consumer has returned: this one has no topic or partition"
        )
    epoch = -1 if record.leader_epoch is None else record.leader_epoch
    return {TopicPartition(record.topic, record.partition): OffsetAndMetadata(record.offset + 1, "", epoch)}


class OffsetCalls:
    """See the module.

    check_open:   Raises an error once the consumer is closed.
    raise_errors: Raises errors of the loop or the group.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        fetcher: Fetcher,
        commits: Commits,
        committed_offsets: CommittedOffsets | None,
        settings: ConsumerSettings,
        *,
        callbacks: CallbackQueue,
        report: WaitingReport,
        check_open: Callable[[], None],
        raise_errors: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._fetcher = fetcher
        self._commits = commits
        self._committed_offsets = committed_offsets
        self._settings = settings
        self._callbacks = callbacks
        self._report = report
        self._check_open = check_open
        self._raise_errors = raise_errors

    def _seconds(self, timeout: float | None) -> float:
        check_seconds(timeout, "the consumer")
        return self._settings.default_api_timeout if timeout is None else timeout

    def position(self, partition: TopicPartition, timeout: float | None = None) -> Flow[int]:
        """Return the next offset to read. Wait while it is looked up. The position moves past markers and aborted
        records.

        timeout: Seconds. None: default_api_timeout_ms.

        Raise ValueError if the partition is not assigned, and DeliveryTimeoutError at the timeout. Raise the error of
        the partition if it cannot be read.
        """
        (name,), seconds = partitions_of([partition], "partition"), self._seconds(timeout)
        return (yield from self._found(name, self._cluster.clock() + seconds, seconds)).offset

    def positions(
        self, partitions: Partitions | None = None, timeout: float | None = None
    ) -> Flow[dict[TopicPartition, OffsetAndMetadata]]:
        """Return the next offset to read of each partition, with the leader epoch of the record before it and the id of
        the topic. Wait while they are looked up, and until the metadata contains the topics.

        partitions: Assigned partitions. None: all assigned partitions.
        timeout:    Seconds. None: default_api_timeout_ms.

        Use this to keep positions in your own database. Pass each of them to `seek` later: the consumer then detects
        whether the topic was deleted and created again in the meantime. Without `topic_id`, it would use the position
        for the new topic, and skip records. `topic_id` is None if the brokers have no topic ids (before Kafka 2.8).

        Raise ValueError if a partition is not assigned, and DeliveryTimeoutError at the timeout. Raise the error of a
        partition that cannot be read.
        """
        names = list(self._assignment.partitions) if partitions is None else partitions_of(partitions)
        seconds = self._seconds(timeout)
        deadline = self._cluster.clock() + seconds
        found = {}
        for name in names:
            while not self._cluster.partitions(name.topic):
                yield from self._cluster.ensure_topic(name.topic, max(deadline - self._cluster.clock(), 0.0))
            found[name] = yield from self._found(name, deadline, seconds)
        return found

    def _found(self, name: TopicPartition, deadline: float, seconds: float) -> Flow[OffsetAndMetadata]:
        """Return the position in a partition. Wait while it is looked up."""
        while True:
            self._raise_errors()
            state = self._assignment.state(name)
            if state.error is not None and not state.is_error_passing:
                raise state.error.with_traceback(None)
            if isinstance(state.error, AuthenticationError):
                self._fetcher.buffer.raise_passing(state)
            with self._assignment.lock:
                here = state.log_position
                if here is not None and state.awaiting is None:
                    if state.topic_id is None:
                        state.topic_id = self._cluster.topic_id(name.topic)
                    return OffsetAndMetadata(here.offset, "", here.leader_epoch, state.topic_id)
            left = deadline - self._cluster.clock()
            if left <= 0:
                late = (
                    f"{name} has no position after {seconds_text(seconds)}: the consumer still waits for "
                    f"{AWAITED.get(state.awaiting, 'its first offset')}"
                )
                cause = self._report.cause_of(name)
                raise DeliveryTimeoutError(f"{late}; {cause}" if cause else late)
            yield from wait(self._fetcher.arrived, left)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Flow[None]:
        """Continue at this offset at the next poll. Raise ValueError if the partition is not assigned.

        If the offset has a `topic_id` (`positions`), and the topic was deleted and created again since, the consumer
        reads the new topic from its first record, and logs a warning. With auto_offset_reset="none", `poll` raises
        OffsetOutOfRangeError instead.
        """
        yield from ()
        ((name, target),) = check_offsets({partition: offset}).items()
        self._assignment.seek(name, target.offset, target.leader_epoch, target.topic_id)
        self._fetcher.drop([name])

    def seek_to_beginning(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Flow[None]:
        """Continue at the first offset of these partitions, or of all assigned ones if none is named.

        Raise ValueError if one of the partitions is not assigned, or if no partition is assigned. With a subscription,
        call this in `on_assigned`, because partitions are assigned within `poll`.
        """
        yield from ()
        self._seek_to(partitions, "earliest", "seek_to_beginning")

    def seek_to_end(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Flow[None]:
        """Continue at the end of these partitions, or of all assigned ones if none is named. With read_committed, the
        end is the last stable offset. Raise ValueError as `seek_to_beginning` does."""
        yield from ()
        self._seek_to(partitions, "latest", "seek_to_end")

    def _seek_to(self, partitions: tuple[TopicPartition | Iterable[TopicPartition], ...], to: str, name: str) -> None:
        chosen = partitions_in(partitions) if partitions else list(self._assignment.partitions)
        if partitions and not chosen:  # an empty list
            return
        if not chosen and not self._callbacks.is_calling:  # on_assigned may have got nothing
            raise ValueError(
                f"{name}() cannot move anything: no partition is assigned to this consumer yet; a subscription gets "
                "its partitions within poll(), so call it in on_assigned"
            )
        for partition in chosen:
            self._assignment.reset(partition, to)
        self._fetcher.drop(chosen)

    def beginning_offsets(
        self, partitions: Partitions, timeout: float | None = None
    ) -> Flow[dict[TopicPartition, int]]:
        """Return the first offset of each partition. Raise BrokerError, or DeliveryTimeoutError at the timeout."""
        return (yield from self._end_of(partitions, "earliest", timeout))

    def end_offsets(self, partitions: Partitions, timeout: float | None = None) -> Flow[dict[TopicPartition, int]]:
        """Return the offset after the last record of each partition that this consumer can read. It is the last stable
        offset under read_committed, and otherwise the high watermark.

        Raise BrokerError, or DeliveryTimeoutError at the timeout.
        """
        return (yield from self._end_of(partitions, "latest", timeout))

    def _end_of(self, partitions: Partitions, end: str, timeout: float | None) -> Flow[dict[TopicPartition, int]]:
        found = yield from self._list_offsets(dict.fromkeys(partitions_of(partitions), end), timeout)
        return {partition: listed.offset for partition, listed in found.items()}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> Flow[dict[TopicPartition, ListedOffset | None]]:
        """Return the offset of the first record at or after a time. The value of a partition without such a record is
        None.

        timestamps: Time of each partition, in ms since 1970, at least 0.

        Raise ValueError if a time is invalid. Raise BrokerError, or DeliveryTimeoutError at the timeout.
        """
        given = by_partition(timestamps, "timestamps", "ms since 1970")
        for partition, timestamp in given.items():
            number = as_integer(timestamp)
            if number is None or number < 0:
                hint = "; pass int(when.timestamp() * 1000)" if hasattr(timestamp, "timestamp") else ""
                raise ValueError(
                    f"timestamps[{partition}] must be an int of 0 or more, in ms since 1970, not {shown(timestamp)}"
                    f"{hint}"
                )
            warn_of_unit(f"timestamps[{partition}]", number)
        found = yield from self._list_offsets({**given}, timeout)
        return {partition: listed if listed.offset >= 0 else None for partition, listed in found.items()}

    def _list_offsets(
        self, specs: dict[TopicPartition, str | int], timeout: float | None
    ) -> Flow[dict[TopicPartition, ListedOffset]]:
        return list_offsets(self._cluster, specs, self._settings.isolation_level, self._seconds(timeout))

    def lag(self, timeout: float | None = None) -> Flow[dict[TopicPartition, PartitionLag]]:
        """Return the lag of this consumer in each assigned partition, up to the end of the log and up to the last
        stable offset. It contains the transaction that blocks the last stable offset.

        Raise BrokerError, or DeliveryTimeoutError at the timeout.
        """
        return lags.lag(self._cluster, self._assignment, self._settings.group_id, self._seconds(timeout))

    def partitions_for(self, topic: str, timeout: float | None = None) -> Flow[int]:
        """Return the number of partitions of a topic. Raise BrokerError, or DeliveryTimeoutError at the timeout."""
        found = yield from self._cluster.ensure_topic(topic, self._seconds(timeout))
        return len(found.partitions)

    # The group's offsets

    def committed(
        self, partitions: Partitions, timeout: float | None = None
    ) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Return the committed offsets of the group. The value of a partition without one is None. Wait for offsets of
        an open transaction (RequireStable, KIP-447).

        Raise ValueError without a group, and DeliveryTimeoutError at the timeout. Raise AuthorizationError without the
        permission, and BrokerError.
        """
        offsets = self.need_group("committed")
        # The request does not name the member. A member that is no longer in the group, and whose transaction was
        # refused for this reason, also needs its committed offsets.
        return (yield from offsets.fetch(partitions_of(partitions), self._seconds(timeout)))

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float | None = None
    ) -> Flow[None]:
        """Commit these offsets, or the positions of all assigned partitions: the next offsets to read, not those of the
        last records. With enable_auto_offset_store=False, commit the stored offsets instead of the positions. Wait for
        the response.

        Raise ValueError without a group. Raise BrokerError if a rebalance revoked the partitions (ILLEGAL_GENERATION,
        UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, STALE_MEMBER_EPOCH); it names the partition if one
        was rejected. Raise DeliveryTimeoutError at the timeout, and AuthorizationError without the permission. If there
        is nothing to commit because the member has failed, raise its error.
        """
        given = self._commits.requested() if offsets is None else check_offsets(offsets)
        if not given:
            self._raise_errors()
        yield from self._commits.commit_in_turn(given, self._seconds(timeout))

    def store_offsets(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record) -> None:
        """Any thread: store offsets, or the offset after a record, for the next commit.

        Raise ValueError without a group, if enable_auto_offset_store is True, and if a partition is not assigned.
        """
        if self._settings.enable_auto_offset_store:
            raise ValueError(
                "store_offsets needs a consumer with enable_auto_offset_store=False, which commits stored offsets only"
            )
        self.need_group("store_offsets")
        self._check_open()
        self._assignment.store(check_offsets(_after(offsets) if isinstance(offsets, Record) else offsets))

    def need_group(self, what: str) -> CommittedOffsets:
        """Raise ValueError without a group."""
        self._settings.need_group(what)
        assert self._committed_offsets is not None
        return self._committed_offsets
