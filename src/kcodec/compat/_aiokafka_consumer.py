# SPDX-License-Identifier: Apache-2.0
"""aiokafka.AIOKafkaConsumer on kcodec's asyncio consumer. `_aiokafka_served` has its background work.

As in aiokafka, rebalances, automatic commits and calls of listeners continue between two calls of the program.
"""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

import aiokafka
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import ConsumerStoppedError, IllegalOperation, IllegalStateError, KafkaConnectionError
from aiokafka.structs import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from aiokafka.util import commit_structure_validate, get_running_loop

from kcodec import errors
from kcodec.compat._aiokafka_cluster import ClientView
from kcodec.compat._aiokafka_errors import MissingAttributes, as_aiokafka_errors, commit_error
from kcodec.compat._aiokafka_options import assignor_names, client_options, event_loop
from kcodec.compat._aiokafka_records import Deserializers, Rows
from kcodec.compat._aiokafka_served import ServedConsumer, places
from kcodec.offsets import OffsetAndMetadata as Committed
from kcodec.offsets import TopicPartition as Place

#: Maximum number of records that getmany() returns without max_records. Longer lists take more time for each record.
MOST_RECORDS = 1_000


class AIOKafkaConsumer(MissingAttributes):
    """aiokafka.AIOKafkaConsumer on kcodec, with its parameters, methods, records and exceptions.

    docs/compat-aiokafka.md lists the differences. Without a group_id, `subscribe` assigns all partitions of the topics.
    """

    _closed: bool | None = None

    def __init__(
        self,
        *topics: str,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Iterable[str] = "localhost",
        client_id: str = "aiokafka-" + aiokafka.__version__,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        fetch_max_wait_ms: float = 500,
        fetch_max_bytes: int = 52428800,
        fetch_min_bytes: int = 1,
        max_partition_fetch_bytes: int = 1 * 1024 * 1024,
        request_timeout_ms: float = 40 * 1000,
        retry_backoff_ms: float = 100,
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: float = 5000,
        check_crcs: bool = True,
        metadata_max_age_ms: float = 5 * 60 * 1000,
        partition_assignment_strategy: Iterable[Any] = (RoundRobinPartitionAssignor,),
        max_poll_interval_ms: float = 300000,
        rebalance_timeout_ms: float | None = None,
        session_timeout_ms: float = 10000,
        heartbeat_interval_ms: float = 3000,
        consumer_timeout_ms: float = 200,
        max_poll_records: int | None = None,
        ssl_context: Any = None,
        security_protocol: str = "PLAINTEXT",
        api_version: Any = None,
        exclude_internal_topics: bool = True,
        connections_max_idle_ms: float | None = 540000,
        isolation_level: str = "read_uncommitted",
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
        client_rack: str | None = None,
    ) -> None:
        self._loop = event_loop(loop, api_version)
        _check_count(max_poll_records, "max_poll_records", "should be positive Integer")
        if isolation_level not in {"read_committed", "read_uncommitted"}:
            raise ValueError(f"Incorrect isolation level {isolation_level}")
        self._named = (bootstrap_servers, client_id)
        self._group_id = group_id
        self._max_poll_records = max_poll_records
        self._request_seconds = request_timeout_ms / 1000
        self._deserializers = Deserializers(key_deserializer, value_deserializer)
        self._options: dict[str, Any] = dict(
            **client_options(
                bootstrap_servers=bootstrap_servers,
                client_id=client_id,
                metadata_max_age_ms=metadata_max_age_ms,
                request_timeout_ms=request_timeout_ms,
                retry_backoff_ms=retry_backoff_ms,
                connections_max_idle_ms=connections_max_idle_ms,
                security_protocol=security_protocol,
                ssl_context=ssl_context,
                sasl_mechanism=sasl_mechanism,
                sasl_plain_username=sasl_plain_username,
                sasl_plain_password=sasl_plain_password,
                sasl_kerberos_service_name=sasl_kerberos_service_name,
                sasl_kerberos_domain_name=sasl_kerberos_domain_name,
                sasl_oauth_token_provider=sasl_oauth_token_provider,
                loop=self._loop,
            ),
            group_id=group_id,
            group_instance_id=group_instance_id,
            key_deserializer=self._deserializers.sized_key,
            value_deserializer=self._deserializers.sized_value,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            fetch_min_bytes=fetch_min_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            check_crcs=check_crcs,
            partition_assignment_strategy=assignor_names(partition_assignment_strategy),
            max_poll_interval_ms=max_poll_interval_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            exclude_internal_topics=exclude_internal_topics,
            isolation_level=isolation_level,
            client_rack=client_rack or "",
        )
        self._open_kcodec()
        self._is_started = False
        self._closed = False
        #: The states of the assigned partitions at the time at which the consumer was stopped.
        self._at_stop: dict[Place, Any] = {}
        if topics:
            self.subscribe(topics)

    def _open_kcodec(self) -> None:
        self._kcodec = ServedConsumer(**self._options)
        self._client = ClientView(self._kcodec, *self._named)

    def __del__(self) -> None:
        if self._closed is False and self._is_started:
            warnings.warn(f"Unclosed AIOKafkaConsumer {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._loop.call_exception_handler({"consumer": self, "message": "Unclosed AIOKafkaConsumer"})
            self._kcodec.abandon()

    # Beginning and end

    def _need_started(self, call: str) -> None:
        """Raise IllegalStateError before `start`, which connects the consumer."""
        if not self._is_started and not self._closed:
            raise IllegalStateError(
                f"{call}() was called before start(): call `await consumer.start()` first, or use `async with consumer`"
            )

    async def start(self) -> None:
        """Connect, and wait until the group has assigned partitions, if topics are subscribed to.

        Raise KafkaConnectionError if no broker can be reached. Raise UnknownTopicOrPartitionError if a topic does not
        exist.
        """
        assert self._loop is get_running_loop(), "Please create objects with the same loop as running with"
        assert not self._is_started, "Did you call `start` twice?"
        with as_aiokafka_errors():
            try:
                await self._kcodec.connect(self._request_seconds)
            except BaseException:
                failed = self._kcodec
                self._open_kcodec()  # start() may be called again
                self._kcodec.take_over(failed)
                raise
            self._is_started = True
            await self._kcodec.begin()

    async def stop(self) -> None:
        """Commit if commits are automatic, leave the group, and close the connections."""
        await self._stop(None)

    async def _stop(self, error: BaseException | None) -> None:
        if not self._closed:
            self._at_stop = {one: self._kcodec.state_of(one) for one in self._kcodec.known_assignment()}
            self._closed = True
            with as_aiokafka_errors():
                await self._kcodec.end(error)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException as error:
            if self._is_started:  # no block will stop the consumer
                try:
                    await self._stop(error)
                except Exception as failed:  # noqa: BLE001  `error` is raised, as it matters more
                    error.add_note(f"stopping the consumer failed, too: {failed}")
            raise
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        await self._stop(error)

    # What is read

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to the topics whose names begin with a match of a pattern.

        listener: Object whose methods are called with the revoked and assigned partitions, in the background.
        """
        if not (topics or pattern):
            raise TypeError("You should provide either `topics` or `pattern`")
        if topics and pattern:
            raise TypeError("You can't provide both `topics` and `pattern`")
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise TypeError("listener should be an instance of ConsumerRebalanceListener")
        if pattern is None and not isinstance(topics, tuple | set | list):
            raise TypeError("Topics should be list of strings")
        if pattern is not None:
            try:
                pattern = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a valid pattern: {error}") from error
        if self._kcodec.is_manual:
            raise IllegalStateError("Subscription to topics, partitions and pattern are mutually exclusive")
        self._kcodec.follow(frozenset(topics), pattern, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without an assignment by the group."""
        if self._kcodec.is_subscribed:
            raise IllegalStateError("Subscription to topics, partitions and pattern are mutually exclusive")
        self._kcodec.assign_now(places(partitions))

    def unsubscribe(self) -> None:
        """End the subscription or the assignment. Leave the group in the background."""
        self._kcodec.unfollow()

    def subscription(self) -> frozenset[str]:
        """Return the names of the subscribed topics, or of the topics that the pattern matches."""
        return self._kcodec.followed_topics()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions. After `stop`, return the partitions that were assigned at that time."""
        return frozenset(TopicPartition(*one) for one in (self._at_stop or self._kcodec.assignment()))

    async def topics(self) -> set[str]:
        """Return the names of all topics except internal ones."""
        self._need_started("topics")
        with as_aiokafka_errors():
            await self._kcodec.learn_all_topics(self._request_seconds)
        return self._client.cluster.topics()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic, or None if the topic is not known."""
        return self._client.cluster.partitions_for_topic(topic)

    # Records

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        """Wait for one record and return it. If partitions are given, it belongs to one of them."""
        if not partitions:
            record = self._kcodec.next_delivered()
            if record is not None and not self._closed:
                return self._deserializers.record(record)
        return await self._getone(_checked(partitions))

    async def _getone(self, partitions: tuple[TopicPartition, ...]) -> ConsumerRecord[Any, Any]:
        self._need_started("getone")
        only = frozenset(map(_place, partitions)) if partitions else None
        with as_aiokafka_errors():
            while not self._closed:
                record = await self._kcodec.next_record(only)
                if record is not None:
                    return self._deserializers.record(record)
        raise ConsumerStoppedError

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """Return fetched records by partition. If there are none, wait up to `timeout_ms`.

        max_records: Maximum number of records. The default is max_poll_records, or 1,000.
        """
        _checked(partitions)
        if self._closed:
            raise ConsumerStoppedError
        self._need_started("getmany")
        _check_count(max_records, "max_records", "must be a positive Integer")
        only = frozenset(map(_place, partitions)) if partitions else None
        left = max_records or self._max_poll_records or MOST_RECORDS
        found: Rows = {}
        with as_aiokafka_errors():
            has_records = await self._kcodec.next_records(only, timeout_ms / 1000)
            while has_records and left > 0:
                records = self._kcodec.take_chunk(left, only, not found)
                self._deserializers.add(records, found)
                left -= len(records)
                has_records = bool(records)
        return found

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[Any, Any]]:
        if self._closed:
            raise ConsumerStoppedError
        return self

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        try:
            return await self.getone()
        except ConsumerStoppedError:
            raise StopAsyncIteration from None

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`."""
        self._pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._pause(partitions, False)

    def _pause(self, partitions: tuple[TopicPartition, ...], is_paused: bool) -> None:
        if not all(isinstance(one, TopicPartition) for one in partitions):
            raise TypeError("partitions must be TopicPartition namedtuples")
        self._need_assigned(partitions)
        self._kcodec.pause_now(places(partitions), is_paused)

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that `pause` has paused."""
        return {TopicPartition(*one) for one in self._kcodec.paused()}

    # Positions

    def _need_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = {TopicPartition(*one) for one in partitions if _place(one) not in self._kcodec.assignment()}
        if len(missing) == 1:
            raise IllegalStateError(f"Partition {missing.pop()} is not assigned")
        if missing:
            raise IllegalStateError(f"Partitions {missing} are not assigned")

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record. Raise IllegalStateError if the partition is not assigned.

        After `stop`, return the position at that time.
        """
        stopped = self._at_stop.get(_place(partition))
        if stopped is not None and stopped.position is not None:
            return int(stopped.position)
        while True:
            self._need_assigned([partition])
            self._need_started("position")
            await self._kcodec.until_left()
            rebalances = self._kcodec.rebalances
            known = self._kcodec.state_of(_place(partition))
            if known.position is not None and known.awaiting is None:
                return int(known.position)
            try:
                with as_aiokafka_errors():
                    return await self._kcodec.position(_place(partition))
            except ValueError:  # it was revoked meanwhile, and may be assigned again
                with as_aiokafka_errors():
                    await self._kcodec.until_rebalanced(rebalances)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset. Raise ValueError if the offset is negative, and IllegalStateError if the partition is
        not assigned."""
        if not isinstance(offset, int) or offset < 0:
            raise ValueError("Offset must be a positive integer")
        self._need_assigned([partition])
        self._kcodec.seek_now(_place(partition), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Continue at the first offset of these partitions, or of all partitions. Return whether the offsets were
        found."""
        return await self._seek_to("seek_to_beginning", partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Continue at the end of these partitions, or of all partitions. Return whether the offsets were found."""
        return await self._seek_to("seek_to_end", partitions)

    def _chosen(self, partitions: tuple[TopicPartition, ...]) -> Iterable[TopicPartition]:
        if not all(isinstance(one, TopicPartition) for one in partitions):
            raise TypeError("partitions must be TopicPartition instances")
        if partitions:
            self._need_assigned(partitions)
            return partitions
        found = self.assignment()
        assert found, "No partitions are currently assigned"
        return found

    async def _seek_to(self, call: str, partitions: tuple[TopicPartition, ...]) -> bool:
        chosen = places(self._chosen(partitions))
        self._need_started(call)
        with as_aiokafka_errors():
            await getattr(self._kcodec, call)(*chosen)
            for one in chosen:
                try:
                    await self._kcodec.position(one, self._request_seconds)
                except (ValueError, errors.DeliveryTimeoutError):
                    return False
        return True

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Continue at the committed offsets of these partitions, or of all partitions. Return these offsets."""
        found = {}
        for one in self._chosen(partitions):
            found[one] = offset = await self.committed(one)
            if offset and offset > 0:
                self.seek(one, offset)
        return found

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last fetch response, or None before the first response."""
        return self._known(partition, "high_watermark")

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the last stable offset of the last fetch response, or None before the first response."""
        return self._known(partition, "last_stable_offset")

    def _known(self, partition: TopicPartition, name: str) -> int | None:
        stopped = self._at_stop.get(_place(partition))
        found: int = getattr(stopped or self._kcodec.state_of(self._assigned(partition)), name)
        return found if found >= 0 else None

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return the time of the last fetch response in ms since 1970, or None before the first response."""
        seconds = self._kcodec.seconds_since_fetch(self._assigned(partition))
        return None if seconds is None else int((time.time() - seconds) * 1000)

    def _assigned(self, partition: TopicPartition) -> Place:
        assert _place(partition) in self._kcodec.assignment(), "Partition is not assigned"
        return _place(partition)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        self._need_started("beginning_offsets")
        with as_aiokafka_errors():
            found = await self._kcodec.beginning_offsets(places(partitions), self._request_seconds)
        return {TopicPartition(*one): offset for one, offset in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition. It is the last stable offset with read_committed, and otherwise the high
        watermark."""
        self._need_started("end_offsets")
        with as_aiokafka_errors():
            found = await self._kcodec.end_offsets(places(partitions), self._request_seconds)
        return {TopicPartition(*one): offset for one, offset in found.items()}

    async def offsets_for_times(
        self, timestamps: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset and timestamp of the first record at or after a time, or None if there is no such
        record."""
        wanted = {}
        for one, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(
                    f"The target time for partition {one} is {timestamp}. The target time cannot be negative."
                )
            wanted[_place(one)] = int(timestamp)
        self._need_started("offsets_for_times")
        with as_aiokafka_errors():
            found = await self._kcodec.offsets_for_times(wanted, self._request_seconds)
        return {
            TopicPartition(*one): None if listed is None else OffsetAndTimestamp(listed.offset, listed.timestamp)
            for one, listed in found.items()
        }

    # The group's offsets

    async def commit(self, offsets: dict[TopicPartition, Any] | None = None) -> None:
        """Commit offsets (numbers, or pairs of a number and a text). Without offsets, commit the positions of all
        partitions."""
        if self._group_id is None:
            raise IllegalOperation("Requires group_id")
        if not self._kcodec.is_subscribed and not self._kcodec.is_manual:
            raise IllegalStateError("Not subscribed to any topics")
        if self._closed:
            raise KafkaConnectionError("the consumer is stopped, and has left its group: call commit() before stop()")
        if not self._kcodec.assignment() and not self._kcodec.is_manual:
            raise IllegalStateError("No partitions assigned")
        given = None
        if offsets is not None:
            checked = commit_structure_validate(offsets)
            self._need_assigned(checked)
            given = {_place(one): Committed(*value) for one, value in checked.items()}
        self._need_started("commit")
        try:
            await self._kcodec.commit(given)
        except errors.KcodecError as error:
            raise commit_error(error) from error

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of the group, or None if the group has no committed offset."""
        if self._group_id is None:
            raise IllegalOperation("Requires group_id")
        self._need_started("committed")
        with as_aiokafka_errors():
            found = (await self._kcodec.committed([_place(partition)]))[_place(partition)]
        return None if found is None else found.offset

    # Names that frameworks read

    @property
    def _coordinator(self) -> Any:
        return self._kcodec.group_view()

    @property
    def _subscription(self) -> Any:
        return self._kcodec.group_view()


def _place(partition: TopicPartition) -> Place:
    return Place(partition.topic, partition.partition)


def _checked(partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
    assert all(isinstance(one, TopicPartition) for one in partitions)
    return partitions


def _check_count(count: int | None, name: str, expected: str) -> None:
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ValueError(f"`{name}` {expected}")
