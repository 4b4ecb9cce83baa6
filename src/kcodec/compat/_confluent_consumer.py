# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.Consumer on a consumer of kcodec.

Callbacks run inside `poll`, `consume`, `unsubscribe` and `close`, in the thread that calls them.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    cimpl,
)
from confluent_kafka import TopicPartition as Place

from kcodec import Record, errors
from kcodec._fast import MessageFeed, poll_message
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    kafka_error,
    local_error,
    not_supported,
    place_of,
    seconds,
)
from kcodec.compat._confluent_events import Events, Observer, serve_all
from kcodec.compat._confluent_feeding import FeedingConsumer
from kcodec.compat._confluent_messages import error_message
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._confluent_places import Offsets, checked_places, offset_after, offsets_of, places_of
from kcodec.compat._confluent_topics import SubscribedTopics
from kcodec.compat._patches import derived_from
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

#: One wait of a poll; with enable.partition.eof it is shorter.
STEP_SECONDS, EOF_STEP_SECONDS = 0.2, 0.05
MAX_MESSAGES = 1_000_000
#: Time to leave the group for a consumer that was deleted and not closed.
DELETED_SECONDS = 3.0


@derived_from(cimpl.Consumer)
class ConsumerMethods:
    """The methods of a consumer. librdkafka's own handle is never opened."""

    _kcodec: FeedingConsumer | None = None
    _feed: MessageFeed = None  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._kcodec = None
        self._settings = settings = settings_of("consumer", arguments, keywords)
        if not settings.options.get("group_id"):
            raise ValueError("Failed to create consumer: group.id must be set")
        self._events = Events()
        self._observer = Observer(settings, self._events, "consumer")
        if self._observer.is_used:
            settings.options["metrics"] = self._observer
        self._stores = settings.options.get("enable_auto_offset_store", True)
        self._cluster = ClusterReader(settings.options, self._observer)
        self._is_subscribed = False
        self._topics = SubscribedTopics()
        #: Whether `poll` has reported that it was called too late, and has not requested records since.
        self._is_late_reported = False
        #: "assign" or "revoke" while such a callback runs.
        self._rebalance: str | None = None
        self._rebalancing: frozenset[TopicPartition] = frozenset()
        #: Whether such a callback has called `close`.
        self._is_close_requested = False
        #: What such a callback has raised last.
        self._raised: BaseException | None = None
        #: The callbacks of `subscribe` by name.
        self._functions: dict[str, Callable[..., Any] | None] = {}
        #: What the next commit without arguments commits.
        self._stored: Offsets = {}
        self._positions: dict[TopicPartition, int] = {}
        self._assigned: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        with as_kafka_exceptions():
            self._kcodec = FeedingConsumer(**settings.options)
        self._feed = MessageFeed(self._events, self._delivered)
        if settings.error_cb is not None:
            self._cluster.connect()

    def _open(self) -> FeedingConsumer:
        if self._kcodec is None:
            raise RuntimeError("Consumer closed")
        return self._kcodec

    # What is read

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[..., Any] | None = None,
        on_revoke: Callable[..., Any] | None = None,
        on_lost: Callable[..., Any] | None = None,
    ) -> None:
        """Subscribe to topics; one that begins with ^ is a regular expression. Raise KafkaException.

        on_assign, on_revoke, on_lost: called with this consumer and the partitions.
        """
        consumer = self._open()
        if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
            raise TypeError("expected list of topic unicode strings")
        for name, function in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} expects a callable")
        if not topics:
            self.unsubscribe()
            return
        if not self._is_subscribed and consumer.assignment():
            self.unassign()
        self._topics.subscribe(topics if self._settings.options.get("group_protocol") != "consumer" else [])
        callbacks: dict[str, Any] = {
            "on_assigned": self._called("on_assign", on_assign),
            "on_revoked": self._called("on_revoke", on_revoke),
            "on_lost": None if on_lost is None else self._called("on_lost", on_lost),
        }
        with as_kafka_exceptions(self._is_of_callback):
            if any(one.startswith("^") for one in topics):
                consumer.subscribe(pattern=self._pattern(topics), **callbacks)
            else:
                consumer.subscribe(topics, **callbacks)
        self._is_subscribed = True

    def _pattern(self, topics: list[str]) -> str:
        """Return one expression that matches the whole names. librdkafka's match the beginning of a name."""
        rest = "" if self._settings.options.get("group_protocol") == "consumer" else ".*"
        return "|".join(f"(?:{one}){rest}" if one.startswith("^") else re.escape(one) for one in topics)

    def _called(self, name: str, function: Callable[..., Any] | None) -> Callable[[frozenset[TopicPartition]], None]:
        """Return what kcodec calls in a rebalance. It refers to this consumer weakly, as the I/O thread refers to it: a
        consumer that the program has forgotten is collected, and leaves its group."""
        self._functions[name] = function
        weak = weakref.ref(self)

        def call(partitions: frozenset[TopicPartition]) -> None:
            consumer = weak()
            if consumer is not None:
                consumer._call_back(name, partitions)

        return call

    def _call_back(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        kind, function = "assign" if name == "on_assign" else "revoke", self._functions[name]
        if kind == "assign":
            self._assigned.update(dict.fromkeys(partitions, OFFSET_STORED))
        self._rebalance, self._rebalancing = kind, partitions
        try:
            if function is not None:
                function(self, [Place(*one) for one in sorted(partitions)])
        except BaseException as error:
            self._raised = error
            raise
        finally:
            self._rebalance = None
            if kind == "revoke":
                self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.note_last()
        for one in partitions:
            for known in (self._stored, self._positions, self._assigned, self._ends):
                known.pop(one, None)

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        consumer = self._open()
        try:
            with as_kafka_exceptions(self._is_of_callback):
                consumer.unsubscribe()
        finally:
            self._is_subscribed = bool(consumer.subscription())
            if not self._is_subscribed:
                self._forget(list(self._assigned))
            self._close_if_requested()

    def _is_of_callback(self, error: BaseException) -> bool:
        """Return whether a callback of a rebalance has raised this error."""
        return error is self._raised

    def assign(self, partitions: list[Any]) -> None:
        """Read exactly these partitions, each from its offset: a number, or OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED
        or OFFSET_INVALID, which is the committed offset. Raise KafkaException.

        In on_assign, set the offsets of assigned partitions.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        if self._is_subscribed:
            self._start_in_callback("assign", wanted)
            return
        with as_kafka_exceptions():
            if any(one in self._assigned for one in wanted):
                consumer.assign([])  # begin at the given offsets, not at the positions
            self._forget(list(self._assigned))
            consumer.assign(wanted)
            self._begin_at(wanted)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Read these partitions in addition. Raise KafkaException.

        In on_assign, set the offsets of assigned partitions. If its rebalances are incremental, a consumer that has
        subscribed can read other partitions, too, which no rebalance revokes.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        if self._is_subscribed:
            if self._rebalance == "assign":
                given = self._rebalancing if self._is_cooperative else wanted.keys()
                self._start_in_callback("incremental_assign", {one: wanted[one] for one in wanted.keys() & given})
                wanted = {one: place for one, place in wanted.items() if one not in given}
            self._add(wanted)
            return
        known = [one for one in wanted if one in self._assigned]
        if known:
            raise local_error(KafkaError._CONFLICT, f"{known[0]} can't be added: it is assigned already")
        with as_kafka_exceptions():
            consumer.incremental_assign(wanted)
            self._begin_at(wanted)

    @property
    def _is_cooperative(self) -> bool:
        """Whether rebalances are incremental."""
        options = self._settings.options
        strategies = str(options.get("partition_assignment_strategy", ""))
        return options.get("group_protocol") == "consumer" or "cooperative" in strategies

    def _add(self, wanted: dict[TopicPartition, Any]) -> None:
        """Read partitions that the group has not assigned, until they are unassigned."""
        consumer = self._open()
        if not wanted:
            return
        if not self._is_cooperative:
            raise local_error(
                KafkaError._STATE,
                "incremental_assign() of a consumer that has subscribed needs"
                " partition.assignment.strategy=cooperative-sticky or group.protocol=consumer",
            )
        known = wanted.keys() & consumer.assignment()
        if known:
            raise local_error(KafkaError._CONFLICT, f"{min(known)} can't be added: it is assigned already")
        with as_kafka_exceptions():
            consumer.add(wanted)
            self._begin_at(wanted)

    def _start_in_callback(self, call: str, wanted: dict[TopicPartition, Any]) -> None:
        if self._rebalance != "assign":
            if self._rebalance == "revoke" and not wanted:
                return
            raise local_error(
                KafkaError._STATE,
                f"{call}() of a consumer that has subscribed is possible in on_assign only; call unsubscribe() first",
            )
        if self._rebalancing ^ wanted.keys():
            raise not_supported(
                f"{call}() of other partitions than the group has assigned", "pass all partitions that on_assign got"
            )
        with as_kafka_exceptions():
            self._begin_at(wanted)

    def _begin_at(self, wanted: dict[TopicPartition, Any]) -> None:
        for partition, place in wanted.items():
            self._forget([partition])
            self._assigned[partition] = place.offset
            if place.offset not in {OFFSET_STORED, OFFSET_INVALID}:
                self._seek(partition, place)

    def _seek(self, partition: TopicPartition, place: Any) -> None:
        consumer = self._open()
        if place.offset == OFFSET_BEGINNING:
            consumer.seek_to_beginning(partition)
        elif place.offset == OFFSET_END:
            consumer.seek_to_end(partition)
        elif place.offset < 0:
            raise ValueError(f"{partition}: kcodec.compat.confluent does not support the offset {place.offset}")
        else:
            epoch = place.leader_epoch
            consumer.seek(partition, OffsetAndMetadata(place.offset, "", -1 if epoch is None else epoch))

    def unassign(self) -> None:
        """Stop reading the assigned partitions. In on_revoke it has no effect, as they are revoked anyway."""
        consumer = self._open()
        if self._is_subscribed:
            self._need_revocation("unassign")
            return
        with as_kafka_exceptions():
            consumer.assign([])
        self._forget(list(self._assigned))

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Stop reading these partitions. In on_revoke it has no effect on those that are revoked anyway."""
        consumer, gone = self._open(), checked_places(partitions)
        if self._is_subscribed:
            added = gone.keys() & consumer.added
            if gone.keys() - added:
                self._need_revocation("incremental_unassign")
            with as_kafka_exceptions():
                consumer.drop(added)
            self._forget(added)
            return
        if not self._assigned:
            raise local_error(KafkaError._INVALID_ARG, "Can't subtract from empty assignment")
        with as_kafka_exceptions():
            consumer.incremental_unassign(gone)
        self._forget(gone)

    def _need_revocation(self, call: str) -> None:
        if self._rebalance is None:
            raise local_error(
                KafkaError._STATE, f"{call}() of a consumer that has subscribed is possible in on_revoke only"
            )

    def assignment(self) -> list[Any]:
        """Return the assigned partitions with the offsets that they were assigned with."""
        found = self._open().assignment()
        return [Place(*one, self._assigned.get(one, OFFSET_INVALID)) for one in sorted(found)]

    # Records

    poll = poll_message

    def _poll(self, timeout: float) -> Any:
        """Return a message that the compiled `poll` has not found at once."""
        return self._next(None if timeout < 0 else time.monotonic() + timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to num_messages messages, fewer after `timeout` seconds. Raise ValueError for a wrong number.

        If Ctrl-C or an exception of a callback interrupts it, the next call returns the messages again.
        """
        self._open()
        if not 0 <= num_messages <= MAX_MESSAGES:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        deadline = None if timeout < 0 else time.monotonic() + timeout
        found: list[Any] = []
        self._feed.note_last()
        stored = dict(self._stored)
        try:
            self._feed.take_into(found, num_messages)
            while len(found) < num_messages and (message := self._next(deadline)) is not None:
                found.append(message)
                self._feed.take_into(found, num_messages)
        except BaseException:
            self._give_back(found, stored)
            raise
        return found

    def _give_back(self, messages: list[Any], stored: Offsets) -> None:
        """Continue at the first of these messages, which the program did not get. stored: offsets before the call."""
        if self._kcodec is None:
            return
        first: dict[TopicPartition, Any] = {}
        for one in messages:
            if one.error() is None:
                first.setdefault(TopicPartition(one.topic(), one.partition()), one)
        self._feed.note_last()
        for name in first.keys() & self._kcodec.assignment():
            self.seek(Place(*name, first[name].offset()))
            self._stored.pop(name, None)
            if name in stored:
                self._stored[name] = stored[name]

    def _next(self, deadline: float | None) -> Any:
        """Return the next message, or the message of an error; None if nothing arrives until the deadline."""
        consumer, events, feed = self._open(), self._events, self._feed
        longest = EOF_STEP_SECONDS if self._settings.reports_eof else STEP_SECONDS
        while True:
            self._observer.report_statistics(0)
            if not events.is_empty:
                events.serve()
                consumer = self._open()  # a callback may have closed it
            if (message := feed.take()) is not None:
                return message
            left = longest if deadline is None else min(max(deadline - time.monotonic(), 0.0), longest)
            if not self._is_subscribed and not self._assigned:
                events.wait(left)
            else:
                feed.note_last()
                if self._is_subscribed and (problem := self._problem(consumer)) is not None:
                    return problem
                try:
                    delivery = consumer.request(left)
                except errors.KcodecError as error:
                    return _failed(error)
                finally:
                    self._close_if_requested()
                if self._kcodec is None:
                    return None
                if delivery is not None:
                    feed.delivery = delivery
                    continue
                if self._settings.reports_eof and (end := self._end_of_partition(consumer)) is not None:
                    return end
            if deadline is not None and time.monotonic() >= deadline:
                events.serve()
                return None

    def _problem(self, consumer: FeedingConsumer) -> Any:
        """Return the message of a late poll or a topic that does not exist, each once; None if nothing is wrong."""
        is_reported, self._is_late_reported = self._is_late_reported, consumer.is_late
        if self._is_late_reported and not is_reported:
            text = (
                "poll() was called later than max.poll.interval.ms after the last call, so the consumer left its group"
            )
            # Without a topic, but with the partition 0, as librdkafka's.
            return error_message(KafkaError(KafkaError._MAX_POLL_EXCEEDED, text), text, partition=0)
        return consumer.missing_topic(self._topics)

    def _delivered(self, record: Record) -> None:
        """Note the last record of a partition that was returned."""
        partition = TopicPartition(record.topic, record.partition)  # type: ignore[arg-type]
        following = record.offset + 1
        epoch = record.leader_epoch
        self._positions[partition] = following
        if self._stores:
            self._stored[partition] = OffsetAndMetadata(following, "", -1 if epoch is None else epoch)

    def _pass_markers(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Move positions past what follows the last messages and is never returned: markers and aborted records. As
        with librdkafka, what the next commit without arguments commits moves along."""
        consumer = self._open()
        self._feed.note_last()
        for partition, reached in consumer.passed(partitions).items():
            if reached.offset > self._positions.get(partition, OFFSET_INVALID):
                self._positions[partition] = reached.offset
                if self._stores:
                    self._stored[partition] = reached

    def _end_of_partition(self, consumer: FeedingConsumer) -> Any:
        """Return the message of a partition whose end was reached (_PARTITION_EOF), once for each end."""
        is_committed = str(self._settings.options.get("isolation_level", "read_committed")) == "read_committed"
        for partition, state in consumer.health().partitions.items():
            lag = state.stable_lag if is_committed and state.stable_lag is not None else state.lag
            position = state.position
            if lag or lag is None or position is None or state.buffered_bytes or self._ends.get(partition) == position:
                continue
            if self._positions.get(partition, position) > position:
                continue  # it was moved, and the position is still the former one
            self._ends[partition] = position
            text = f"the end of {partition} was reached at offset {position}"
            error = KafkaError(KafkaError._PARTITION_EOF, text)
            return error_message(error, text, partition.topic, partition.partition, position)
        return None

    # Positions

    def seek(self, partition: Any) -> None:
        """Continue at the offset of a TopicPartition. Raise KafkaException (_STATE) if it is not assigned."""
        self._open()
        ((name, place),) = checked_places([partition]).items()
        if name not in self._open().assignment():
            raise local_error(
                KafkaError._STATE,
                f"Failed to seek to offset {place.offset}: Local: Erroneous state: {name} is not assigned",
            )
        with as_kafka_exceptions():
            self._seek(name, place)
        self._feed.note_last()
        self._positions.pop(name, None)
        self._ends.pop(name, None)

    def pause(self, partitions: list[Any]) -> None:
        """Stop the delivery of these partitions. One that is not assigned is left out, as by librdkafka."""
        consumer = self._open()
        consumer.pause(*consumer.assignment().intersection(checked_places(partitions)))

    def resume(self, partitions: list[Any]) -> None:
        """Deliver these partitions again. One that is not assigned is left out, as by librdkafka."""
        consumer = self._open()
        consumer.resume(*consumer.assignment().intersection(checked_places(partitions)))

    def position(self, partitions: list[Any]) -> list[Any]:
        """Return the offsets after the last messages, and after the markers that a later `poll` has passed;
        OFFSET_INVALID before the first."""
        wanted = checked_places(partitions)
        self._pass_markers(wanted)
        return [Place(*one, self._positions.get(one, OFFSET_INVALID)) for one in wanted]

    def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> tuple[int, int]:
        """Return the first offset and the end of a partition, from its leader, also if `cached` is set.

        Under read_committed the end is the last stable offset, as with librdkafka. Raise KafkaException.
        """
        consumer = self._open()
        (name,) = checked_places([partition])
        try:
            with as_kafka_exceptions():
                first = consumer.beginning_offsets([name], seconds(timeout))
                return first[name], consumer.end_offsets([name], seconds(timeout))[name]
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise local_error(KafkaError._UNKNOWN_PARTITION, error.args[0].str()) from error
            raise

    def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        """Return the first offsets at or after the times in ms that the partitions have as their offsets.

        The offset is OFFSET_END if no record is that late. Raise KafkaException.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        with as_kafka_exceptions():
            found = consumer.offsets_for_times({name: one.offset for name, one in wanted.items()}, seconds(timeout))
        listed = {name: found[name] for name in wanted}
        return [Place(*name, OFFSET_END if one is None else one.offset) for name, one in listed.items()]

    # Commits

    def commit(
        self,
        message: Message | None = None,
        offsets: list[Any] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[Any] | None:
        """Commit the offset after a message, or offsets, or what was delivered or stored since the last commit.

        asynchronous: return None at once; on_commit of the configuration is called in a later `poll`. Otherwise return
        the committed offsets.

        Raise KafkaException: _NO_OFFSET if there is nothing to commit, and the errors of the group.
        """
        consumer = self._open()
        asynchronous = bool(keywords.pop("async", asynchronous))
        if keywords:
            raise TypeError(f"commit() has no argument {next(iter(keywords))!r}")
        wanted = self._to_commit(message, offsets)
        if not wanted:
            missing = KafkaError(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
            if not asynchronous:
                raise KafkaException(missing)
            if self._settings.on_commit is not None:
                self._events.add(lambda: self._report_commit({}, missing))
            return None
        if asynchronous:
            with as_kafka_exceptions():
                consumer.commit_async(wanted, self._committed)
            self._unstore(wanted)
            return None
        with as_kafka_exceptions():
            consumer.commit(wanted)
        self._unstore(wanted)
        others: set[TopicPartition] = set()
        if message is None and offsets is None:
            others = self._assigned.keys() - wanted.keys()
        return sorted([*places_of(wanted), *(place_of(one, None) for one in others)])

    def _to_commit(self, message: Message | None, offsets: list[Any] | None) -> Offsets:
        self._feed.note_last()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            return offset_after(message)
        if offsets is not None:
            return offsets_of(offsets)
        self._pass_markers()
        return dict(self._stored)

    def _unstore(self, done: Offsets) -> None:
        for name, offset in done.items():
            if self._stored.get(name) == offset:
                del self._stored[name]

    def _committed(self, offsets: Offsets, error: BaseException | None) -> None:
        self._report_commit(offsets, None if error is None else kafka_error(error))

    def _report_commit(self, offsets: Offsets, error: KafkaError | None) -> None:
        if self._settings.on_commit is not None:
            self._settings.on_commit(error, places_of(offsets))

    def store_offsets(self, message: Message | None = None, offsets: list[Any] | None = None) -> None:
        """Store offsets for the next commit; enable.auto.offset.store must be false.

        Raise KafkaException: _INVALID_ARG without that setting, _STATE for a partition that is not assigned.
        """
        consumer = self._open()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is None and offsets is None:
            raise ValueError("expected either message or offsets")
        wanted = offset_after(message) if message is not None else offsets_of(offsets or [])
        if self._stores:
            raise local_error(
                KafkaError._INVALID_ARG, "StoreOffsets failed: enable.auto.offset.store must be false to store offsets"
            )
        assigned = consumer.assignment()
        others = wanted.keys() - assigned
        if others:
            is_known = min(others).topic in {one.topic for one in assigned}
            code = KafkaError._STATE if is_known else KafkaError._UNKNOWN_PARTITION
            raise local_error(code, f"StoreOffsets failed: {min(others)} is not assigned")
        with as_kafka_exceptions():
            consumer.store_offsets(wanted)
        self._stored.update(wanted)

    def committed(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        """Return the committed offsets of the group; OFFSET_INVALID where none is. Raise KafkaException."""
        consumer, wanted = self._open(), checked_places(partitions)
        with as_kafka_exceptions():
            found = consumer.committed(list(wanted), seconds(timeout))
        return [place_of(name, found[name]) for name in wanted]

    # The group and the cluster

    def memberid(self) -> str | None:
        """Return the id of the member of the group; None before it has joined."""
        return self._open().group_metadata().member_id or None

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group's metadata for send_offsets_to_transaction() of a producer of kcodec.compat.confluent."""
        return self._open().group_metadata()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or all. Raise KafkaException."""
        if self._kcodec is None:
            raise RuntimeError("Handle has been closed")
        return self._cluster.list_topics(topic, timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException."""
        self._open()
        return self._cluster.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate later connections with this user name and password. Raise TypeError for other values."""
        self._cluster.set_credentials(username, password, self._open())

    def close(self) -> None:
        """Commit if automatic commits are enabled, call on_revoke, leave the group, and end.

        In a rebalance callback, this happens after the call that runs the callback, because the group waits for it.
        """
        consumer = self._kcodec
        if consumer is None:
            return
        if self._rebalance is not None:
            self._is_close_requested = True
            return
        self._observer.close()
        try:
            with as_kafka_exceptions(self._is_of_callback):
                consumer.close()
        finally:
            self._kcodec = None
            failed: list[Exception] = []
            try:
                serve_all(self._events, failed)
            finally:
                self._cluster.close()
            if failed:
                raise failed[0]

    def _close_if_requested(self) -> None:
        if self._is_close_requested:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        consumer = getattr(self, "_kcodec", None)
        if consumer is not None and not sys.is_finalizing():  # librdkafka leaves the group, too
            with contextlib.suppress(RuntimeError, errors.KcodecError):  # deleted on the I/O thread, or no broker
                consumer.close(DELETED_SECONDS)
            self._cluster.close()


def _failed(error: errors.KcodecError) -> Any:
    """Return the message of an error of a partition or the group; its value is the text, as with librdkafka."""
    place = getattr(error, "topic_partition", None) or getattr(error, "partition", None)
    resource = getattr(error, "resource", None)
    if place is None and isinstance(resource, TopicPartition):
        place = resource
    found = kafka_error(error)
    if place is None:
        return error_message(found, found.str())
    offset = getattr(error, "offset", None)
    return error_message(found, found.str(), place.topic, place.partition, OFFSET_INVALID if offset is None else offset)


class ConfluentConsumer(ConsumerMethods):
    """confluent_kafka.Consumer on kcodec's consumer: its methods, configuration names, errors and callbacks."""


class DeserializingConsumer(confluent_kafka.DeserializingConsumer, ConsumerMethods):  # type: ignore[misc]
    """confluent_kafka.DeserializingConsumer on kcodec's consumer."""
