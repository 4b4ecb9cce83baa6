# SPDX-License-Identifier: Apache-2.0
"""The methods of confluent_kafka.Consumer on a consumer of kcodec.

Callbacks are called inside `poll`, `consume`, `unsubscribe` and `close`, on the thread that calls these methods.
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

from kcodec import errors
from kcodec._fast import MessageFeed, poll_message
from kcodec.compat._confluent_cluster import ClusterReader
from kcodec.compat._confluent_errors import (
    as_kafka_exceptions,
    as_unknown_partition,
    check_timeout,
    kafka_error,
    local_error,
    place_of,
    seconds,
)
from kcodec.compat._confluent_events import Events, Observer, serve_all
from kcodec.compat._confluent_feeding import FeedingConsumer
from kcodec.compat._confluent_options import settings_of
from kcodec.compat._confluent_places import Offsets, checked_places, offset_after, offsets_of, places_of
from kcodec.compat._confluent_problems import ConsumerProblems
from kcodec.compat._confluent_reached import ReachedOffsets
from kcodec.compat._patches import compiled_class, derived_from
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

#: Maximum duration of one wait of a poll. It is shorter with enable.partition.eof.
STEP_SECONDS, EOF_STEP_SECONDS = 0.2, 0.05
MAX_MESSAGES = 1_000_000
#: Maximum time for a consumer that was deleted without `close` to leave its group.
DELETED_SECONDS = 3.0


@derived_from(compiled_class(cimpl.Consumer, "cimpl"))
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
        self._cluster = ClusterReader(settings.options, self._observer)
        self._is_subscribed = False
        #: "assign" or "revoke" while a rebalance callback of this kind runs.
        self._rebalance: str | None = None
        self._rebalancing: frozenset[TopicPartition] = frozenset()
        #: Whether a rebalance callback has called `close`.
        self._is_close_requested = False
        #: Whether `close` is in progress. It revokes all partitions, even if its callbacks assign some.
        self._is_closing = False
        #: Whether the last rebalance callback was on_revoke.
        self._has_revoked = False
        #: The last exception of a rebalance callback.
        self._raised: BaseException | None = None
        #: The callbacks of `subscribe` by name.
        self._functions: dict[str, Callable[..., Any] | None] = {}
        self._reached = ReachedOffsets(stores=settings.options.get("enable_auto_offset_store", True))
        is_committed_only = str(settings.options.get("isolation_level", "read_committed")) == "read_committed"
        self._problems = ConsumerProblems(self._reached, is_committed_only=is_committed_only)
        self._assigned: dict[TopicPartition, int] = {}
        with as_kafka_exceptions(), settings.naming():
            self._kcodec = FeedingConsumer(**settings.options)
        self._feed = MessageFeed(self._events, self._reached.delivered)
        if settings.error_cb is not None:
            self._cluster.connect()

    def _open(self) -> FeedingConsumer:
        if self._kcodec is None:
            raise RuntimeError("Consumer closed")
        return self._kcodec

    def _handle(self) -> FeedingConsumer:
        """Return the consumer, for methods that all clients of confluent_kafka have. Raise RuntimeError if it is
        closed."""
        if self._kcodec is None:
            raise RuntimeError("Handle has been closed")
        return self._kcodec

    # What is read

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[..., Any] | None = None,
        on_revoke: Callable[..., Any] | None = None,
        on_lost: Callable[..., Any] | None = None,
    ) -> None:
        """Subscribe to topics. A name that begins with ^ is a regular expression.

        on_assign, on_revoke, on_lost: Callbacks that are called with this consumer and the partitions.

        Raise TypeError if an argument has a wrong type, and KafkaException if the topics are invalid.
        """
        consumer = self._open()
        if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
            raise TypeError("expected list of topic unicode strings")
        for name, function in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} expects a callable")
        self._check_topics(topics)
        if not self._is_subscribed and consumer.assignment():
            self.unassign()
        self._problems.topics.subscribe([] if self._is_of_consumer_protocol else topics)
        callbacks: dict[str, Any] = {
            "on_assigned": self._called("on_assign", on_assign),
            "on_revoked": self._called("on_revoke", on_revoke),
            "on_lost": self._called("on_lost", on_revoke if on_lost is None else on_lost),
        }
        with as_kafka_exceptions(self._is_of_callback):
            if any(one.startswith("^") for one in topics):
                consumer.subscribe(pattern=self._pattern(topics), **callbacks)
            else:
                consumer.subscribe(topics, **callbacks)
        self._is_subscribed = True

    def _check_topics(self, topics: list[str]) -> None:
        """Raise KafkaException if `topics` is empty or a pattern is invalid. In the consumer protocol, the group
        coordinator checks patterns."""
        if not topics:
            raise local_error(
                KafkaError._INVALID_ARG, "subscribe: topics must not be empty; unsubscribe() ends a subscription"
            )
        for one in topics:
            if one.startswith("^") and not self._is_of_consumer_protocol:
                try:
                    re.compile(one)
                except re.error as error:
                    text = f"subscribe: {one!r} is not a valid regular expression: {error}"
                    raise local_error(KafkaError._INVALID_ARG, text) from error

    def _pattern(self, topics: list[str]) -> str:
        """Return one expression that matches whole names. The expressions of librdkafka match the beginning of a
        name."""
        rest = "" if self._is_of_consumer_protocol else ".*"
        return "|".join(f"(?:{one}){rest}" if one.startswith("^") else re.escape(one) for one in topics)

    def _called(self, name: str, function: Callable[..., Any] | None) -> Callable[[frozenset[TopicPartition]], None]:
        """Return the function that kcodec calls in a rebalance. The I/O thread has a reference to it, so it refers to
        this consumer weakly. A consumer that the program no longer uses is then collected, and leaves its group."""
        self._functions[name] = function
        weak = weakref.ref(self)

        def call(partitions: frozenset[TopicPartition]) -> None:
            consumer = weak()
            if consumer is not None:
                consumer._call_back(name, partitions)

        return call

    def _call_back(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        has_revoked, self._has_revoked = self._has_revoked, name == "on_revoke"
        if name == "on_assign" and not (partitions or has_revoked) and self._is_of_consumer_protocol:
            return  # librdkafka reports nothing here, because the member keeps its partitions, or has none yet
        kind, function = "assign" if name == "on_assign" else "revoke", self._functions[name]
        if kind == "assign":
            if self._assigned and not self._is_cooperative:  # the program has assigned them before the group
                self._open().replace_assignment(partitions)
                self._forget(list(self._assigned))
            self._assigned.update(dict.fromkeys(partitions, OFFSET_STORED))
        else:
            # As in librdkafka, `consume` drops the messages of revoked partitions that it has taken. Their next owner,
            # which may be this consumer, gets these messages.
            self._feed.note_last()
            self._reached.drop_taken(partitions if self._is_cooperative else partitions | self._assigned.keys())
        self._rebalance, self._rebalancing = kind, partitions
        try:
            if function is not None:
                function(self, [Place(*one) for one in sorted(partitions)])
        except BaseException as error:
            self._raised = error
            raise
        finally:
            self._rebalance, self._rebalancing = None, frozenset()
            if kind == "revoke":
                self._forget(partitions if self._is_cooperative else list(self._assigned))
                if not self._is_cooperative and self._kcodec is not None:
                    self._kcodec.drop_added()

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.note_last()
        gone = list(partitions)
        self._reached.forget(gone)
        for one in gone:
            self._assigned.pop(one, None)

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
            self._has_revoked = False
            self._close_if_requested()

    def _is_of_callback(self, error: BaseException) -> bool:
        """Return whether a rebalance callback has raised this error."""
        return error is self._raised

    def assign(self, partitions: list[Any]) -> None:
        """Read exactly these partitions, each from its offset. The offset is a number, OFFSET_BEGINNING or OFFSET_END.
        OFFSET_STORED and OFFSET_INVALID stand for the committed offset.

        After `subscribe`, this call is possible with the eager rebalance protocol, and its effect lasts until the next
        rebalance. In a callback of `close`, it has no effect. Raise KafkaException if the call is not possible.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        if self._is_closing:
            return
        if self._is_subscribed:
            self._need_rebalances("assign", are_incremental=False)
            if self._rebalance == "revoke" and wanted:
                raise local_error(KafkaError._STATE, "assign() is not possible in on_revoke: call it in on_assign")
            if self._rebalance != "revoke":
                self._replace(wanted)
            return
        with as_kafka_exceptions():
            if any(one in self._assigned for one in wanted):
                consumer.assign([])  # the consumer then begins at the given offsets, and not at its positions
            self._forget(list(self._assigned))
            consumer.assign(wanted)
            self._begin_at(wanted)

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Read these partitions in addition to the assigned ones.

        After `subscribe`, this call is possible with the cooperative rebalance protocol. In on_assign, it also sets
        the offsets of the partitions that are being assigned. No rebalance revokes partitions that the group has not
        assigned. In a callback of `close`, this call has no effect. Raise KafkaException if the call is not possible.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        if self._is_closing:
            return
        if self._is_subscribed:
            self._need_rebalances("incremental_assign", are_incremental=True)
        given = self._rebalancing if self._rebalance == "assign" else frozenset()
        read = consumer.assignment()
        known = (read if self._is_subscribed else self._assigned.keys()) & wanted.keys() - given
        if known:
            raise local_error(KafkaError._CONFLICT, f"{min(known)} can't be added: it is assigned already")
        if self._rebalance == "assign":
            # Partitions that are not named here are not read, unless a later call in the same callback adds them.
            self._rebalancing = given - wanted.keys()
        with as_kafka_exceptions():
            if not self._is_subscribed:
                consumer.incremental_assign(wanted)
            else:
                chosen = read - given | wanted.keys()
                if chosen != read:
                    consumer.replace_assignment(chosen, read & chosen)
            self._begin_at(wanted)

    @property
    def _is_cooperative(self) -> bool:
        """Whether rebalances are incremental."""
        strategies = str(self._settings.options.get("partition_assignment_strategy", ""))
        return self._is_of_consumer_protocol or "cooperative" in strategies

    @property
    def _is_of_consumer_protocol(self) -> bool:
        return bool(self._settings.options.get("group_protocol") == "consumer")

    def _need_rebalances(self, call: str, *, are_incremental: bool) -> None:
        """Raise KafkaException (_STATE) if the rebalance protocol does not allow this call after `subscribe`."""
        if self._is_cooperative == are_incremental:
            return
        if are_incremental:
            remedy = "use assign(), or set partition.assignment.strategy=cooperative-sticky or group.protocol=consumer"
        else:
            remedy = "use incremental_assign() and incremental_unassign()"
        protocol = "eager" if are_incremental else "cooperative"
        text = f"{call}() is not possible with the {protocol} rebalance protocol of this consumer: {remedy}"
        raise local_error(KafkaError._STATE, text)

    def _replace(self, wanted: dict[TopicPartition, Any]) -> None:
        """Read exactly these partitions after `subscribe`, until the next rebalance."""
        consumer = self._open()
        with as_kafka_exceptions():
            if self._rebalance != "assign" or not wanted or self._rebalancing ^ wanted.keys():
                consumer.replace_assignment(wanted)
            if self._rebalance == "assign":
                self._rebalancing = frozenset()  # a later call in this callback replaces this assignment
            self._forget(list(self._assigned))
            self._begin_at(wanted)

    def _begin_at(self, wanted: dict[TopicPartition, Any]) -> None:
        for partition, place in wanted.items():
            self._forget([partition])
            self._assigned[partition] = OFFSET_STORED if place.offset == OFFSET_INVALID else place.offset
            if place.offset not in {OFFSET_STORED, OFFSET_INVALID}:
                self._seek(partition, place)

    def _reset_place(self, place: Any) -> Any:
        """Return the place at which auto.offset.reset continues. Raise KafkaException (_AUTO_OFFSET_RESET) if the
        setting is `error`."""
        reset = self._settings.options.get("auto_offset_reset", "latest")
        offsets = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
        if reset not in offsets:
            text = f"{place.topic}-{place.partition}: the offset is not set, and auto.offset.reset does not choose one"
            raise local_error(KafkaError._AUTO_OFFSET_RESET, text)
        return Place(place.topic, place.partition, offsets[reset])

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
        """Stop reading the assigned partitions. In on_revoke, this has no effect, because they are revoked anyway."""
        self.assign([])

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Stop reading these partitions. In on_revoke, this has no effect on partitions that are revoked anyway."""
        consumer, gone = self._open(), frozenset(checked_places(partitions))
        if self._is_closing:
            return
        if self._is_subscribed:
            self._need_rebalances("incremental_unassign", are_incremental=True)
            read = consumer.assignment()
            if self._rebalance == "revoke":
                gone = gone - self._rebalancing
            if gone - read:
                raise local_error(KafkaError._INVALID_ARG, f"{min(gone - read)} can't be removed: it is not assigned")
            with as_kafka_exceptions():
                consumer.replace_assignment(read - gone, read - gone)
            self._forget(gone)
            return
        if not self._assigned:
            raise local_error(KafkaError._INVALID_ARG, "Can't subtract from empty assignment")
        with as_kafka_exceptions():
            consumer.incremental_unassign(gone)
        self._forget(gone)

    def assignment(self) -> list[Any]:
        """Return the assigned partitions with the offsets at which they were assigned."""
        found = self._open().assignment()
        return [Place(*one, self._assigned.get(one, OFFSET_INVALID)) for one in sorted(found)]

    # Records

    poll = poll_message

    def _poll(self, timeout: float) -> Any:
        """Wait for a message that was not immediately available to the compiled `poll`, and return it. Return None
        after the timeout. If an interruption, such as Ctrl-C, keeps the message from the program, the next call returns
        it."""
        self._open()
        check_timeout(timeout)
        deadline = None if timeout < 0 else time.monotonic() + timeout
        found: list[Any] = []
        stored = dict(self._reached.stored)
        try:
            return found[0] if self._add_next(found, deadline) else None
        except BaseException:
            self._give_back(found, stored)
            raise

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to num_messages messages. Return fewer messages after `timeout` seconds. A negative timeout means
        no limit.

        If a rebalance during the call revokes partitions, their messages are not returned. If Ctrl-C or an exception of
        a callback interrupts the call, the next call returns its messages. Raise ValueError if num_messages is
        not between 0 and 1,000,000.
        """
        consumer = self._open()
        if not hasattr(num_messages, "__index__"):
            raise TypeError(f"num_messages must be int, not {type(num_messages).__name__}")
        check_timeout(timeout)
        if not 0 <= num_messages <= MAX_MESSAGES:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        deadline = None if timeout < 0 else time.monotonic() + timeout
        found: list[Any] = []
        self._feed.note_last()
        stored = dict(self._reached.stored)
        try:
            with self._reached.taking(found):
                with consumer.several_requests():
                    self._feed.take_into(found, num_messages)
                    while len(found) < num_messages and self._add_next(found, deadline):
                        self._feed.take_into(found, num_messages)
                self._feed.note_last()
        except BaseException:
            self._give_back(found, stored)
            raise
        return found

    def _give_back(self, messages: list[Any], stored: Offsets) -> None:
        """Continue at the first of these messages, because the program did not get them.

        stored: Offsets to commit as they were before the call.
        """
        if self._kcodec is None:
            return
        first: dict[TopicPartition, Any] = {}
        for one in messages:
            if one.error() is None:
                first.setdefault(TopicPartition(one.topic(), one.partition()), one)
        self._feed.note_last()
        for name in first.keys() & self._kcodec.assignment():
            self.seek(Place(*name, first[name].offset()))
            self._reached.stored.pop(name, None)
            if name in stored:
                self._reached.stored[name] = stored[name]

    def _add_next(self, found: list[Any], deadline: float | None) -> bool:
        """Append the next message, or a message with an error. Return False if no message arrives before the
        deadline."""
        consumer, events, feed = self._open(), self._events, self._feed
        longest = EOF_STEP_SECONDS if self._settings.reports_eof else STEP_SECONDS
        while True:
            self._observer.report_statistics(0)
            if not events.is_empty:
                events.serve()
                consumer = self._open()  # a callback may have closed the consumer
            wanted = len(found) + 1
            feed.take_into(found, wanted)
            if len(found) == wanted:
                return True
            left = longest if deadline is None else min(max(deadline - time.monotonic(), 0.0), longest)
            if not self._is_subscribed and not self._assigned:
                events.wait(left)
            else:
                feed.note_last()
                if self._is_subscribed and (problem := self._problems.of_subscription(consumer)) is not None:
                    found.append(problem)
                    return True
                delivery = None
                try:
                    delivery = consumer.request(left)
                except errors.KcodecError as error:
                    if (problem := self._problems.of_error(error)) is not None:
                        found.append(problem)
                        return True
                    events.wait(left)
                finally:
                    self._close_if_requested()
                if self._kcodec is None:
                    return False
                if delivery is not None:
                    feed.delivery = delivery
                    continue
                if self._settings.reports_eof and (end := self._problems.end_of_partition(consumer)) is not None:
                    found.append(end)
                    return True
            if deadline is not None and time.monotonic() >= deadline:
                self._observer.report_statistics(0)
                events.serve()
                return False

    def _pass_markers(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Move positions past markers and aborted records that follow the last messages."""
        consumer = self._open()
        self._feed.note_last()
        self._reached.passed(consumer.passed(partitions))

    # Positions

    def seek(self, partition: Any) -> None:
        """Continue at the offset of a TopicPartition. OFFSET_INVALID, which `committed` returns for a partition without
        a committed offset, stands for auto.offset.reset. Raise KafkaException (_STATE) if the partition is not
        assigned."""
        consumer = self._open()
        ((name, place),) = checked_places([partition]).items()
        if name not in consumer.assignment():
            raise local_error(
                KafkaError._STATE,
                f"Failed to seek to offset {place.offset}: Local: Erroneous state: {name} is not assigned",
            )
        with as_kafka_exceptions():
            self._seek(name, self._reset_place(place) if place.offset == OFFSET_INVALID else place)
        self._feed.note_last()
        self._reached.sought(name)

    def pause(self, partitions: list[Any]) -> None:
        """Stop the delivery of these partitions. Partitions that are not assigned are ignored, as in librdkafka."""
        self._for_assigned(self._open().pause, partitions)

    def resume(self, partitions: list[Any]) -> None:
        """Deliver these partitions again. Partitions that are not assigned are ignored, as in librdkafka."""
        self._for_assigned(self._open().resume, partitions)

    def _for_assigned(self, call: Callable[[TopicPartition], None], partitions: list[Any]) -> None:
        assignment = self._open().assignment
        for place in checked_places(partitions):
            if place in assignment():
                try:
                    call(place)
                except ValueError:
                    if place in assignment():  # otherwise a rebalance has revoked it meanwhile
                        raise

    def position(self, partitions: list[Any]) -> list[Any]:
        """Return the offsets after the last messages, and after the markers that a later `poll` has passed. The offset
        is OFFSET_INVALID before the first message."""
        wanted = checked_places(partitions)
        self._pass_markers(wanted)
        return [place_of(one, self._reached.positions.get(one)) for one in wanted]

    def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> tuple[int, int]:
        """Return the first offset and the end of a partition. They are requested from its leader.

        With read_committed, the end is the last stable offset, as with librdkafka.

        timeout: Maximum time of each of the two requests, in seconds. Negative: the default of kcodec, 60 seconds.
        cached: Whether to return the log start offset and the high watermark of the last Fetch response instead,
            without a request. They are OFFSET_INVALID if they are unknown.

        Raise KafkaException if the request fails.
        """
        consumer = self._open()
        (name,) = checked_places([partition])
        if cached:
            return consumer.last_watermarks(name)
        limit = seconds(timeout)
        with as_kafka_exceptions(), as_unknown_partition():
            first = consumer.beginning_offsets([name], limit)
            return first[name], consumer.end_offsets([name], limit)[name]

    def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        """Return the first offsets at or after some times. The offset of each partition is the time, in ms since 1970.

        If the time is OFFSET_END or OFFSET_BEGINNING, the end or the first offset of the partition is looked up. The
        result is OFFSET_END if no record has this timestamp or a later one. Raise KafkaException if the request fails.
        """
        consumer, wanted = self._open(), checked_places(partitions)
        if not wanted:
            raise local_error(KafkaError._INVALID_ARG, "offsets_for_times() needs at least one partition, got none")
        ends = [name for name, one in wanted.items() if one.offset == OFFSET_END]
        starts = [name for name, one in wanted.items() if one.offset == OFFSET_BEGINNING]
        times = {name: one.offset for name, one in wanted.items() if one.offset not in {OFFSET_END, OFFSET_BEGINNING}}
        limit = seconds(timeout)
        with as_kafka_exceptions(), as_unknown_partition():
            found: dict[TopicPartition, Any] = {}
            for bounds in (consumer.end_offsets(ends, limit), consumer.beginning_offsets(starts, limit)):
                found |= {name: OffsetAndMetadata(offset) for name, offset in bounds.items()}
            for name, record in (consumer.offsets_for_times(times, limit) if times else {}).items():
                epoch = None if record is None else record.leader_epoch
                offset = OFFSET_END if record is None else record.offset
                found[name] = OffsetAndMetadata(offset, "", -1 if epoch is None else epoch)
        return [place_of(name, found[name]) for name in wanted]

    # Commits

    def commit(
        self,
        message: Message | None = None,
        offsets: list[Any] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[Any] | None:
        """Commit the offset after a message, or the given offsets. Without both, commit the offsets that were delivered
        or stored since the last commit.

        asynchronous: Whether to return None immediately. A later `poll` then calls on_commit of the configuration. With
            False, wait for the response and return the committed offsets.

        Raise KafkaException (_NO_OFFSET) if there is nothing to commit, and KafkaException for the errors of the group.
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
                missed = [place_of(one, None) for one in sorted(consumer.assignment())]
                self._events.add(lambda: self._report_commit(missed, missing))
            return None
        if asynchronous:
            with as_kafka_exceptions():
                consumer.commit_async(wanted, self._committed)
            return None
        with as_kafka_exceptions():
            consumer.commit(wanted)
        self._reached.committed(wanted)
        others: set[TopicPartition] = set()
        if message is None and offsets is None:
            others = self._assigned.keys() - wanted.keys()
        return sorted([*places_of(wanted), *(place_of(one, None) for one in others)])

    def _to_commit(self, message: Message | None, offsets: list[Any] | None) -> Offsets:
        self._feed.note_last()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            if not isinstance(message, Message):
                raise TypeError(f"message must be a confluent_kafka.Message, not {type(message).__name__}")
            return offset_after(message)
        if offsets is not None:
            return offsets_of(offsets)
        self._pass_markers()
        return dict(self._reached.stored)

    def _committed(self, offsets: Offsets, error: BaseException | None) -> None:
        if error is None:  # otherwise a later commit can include the offsets
            self._reached.committed(offsets)
        self._report_commit(places_of(offsets), None if error is None else kafka_error(error))

    def _report_commit(self, places: list[Any], error: KafkaError | None) -> None:
        if self._settings.on_commit is not None:
            self._settings.on_commit(error, places)

    def store_offsets(self, message: Message | None = None, offsets: list[Any] | None = None) -> None:
        """Store offsets for the next commit. enable.auto.offset.store must be false.

        Raise KafkaException (_INVALID_ARG) without that setting, and KafkaException (_STATE) if a partition is not
        assigned.
        """
        consumer = self._open()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is None and offsets is None:
            raise ValueError("expected either message or offsets")
        wanted = offset_after(message) if message is not None else offsets_of(offsets or [])
        if self._reached.stores:
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
        self._reached.stored.update(wanted)

    def committed(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        """Return the committed offsets of the group. The offset is OFFSET_INVALID for a partition without a committed
        offset. Raise KafkaException if the request fails."""
        consumer, wanted, limit = self._open(), checked_places(partitions), seconds(timeout)
        with as_kafka_exceptions():
            found = consumer.committed(list(wanted), limit)
        return [place_of(name, found[name]) for name in wanted]

    # The group and the cluster

    def memberid(self) -> str | None:
        """Return the id of the member of the group.

        With group.protocol=classic, the result is None before the member has joined. With group.protocol=consumer, the
        client chooses the id.
        """
        return self._open().member_id() or None

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Return the metadata of the group, for send_offsets_to_transaction() of a producer of
        kcodec.compat.confluent."""
        return self._open().group_metadata()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a ClusterMetadata of one topic or of all topics. Raise KafkaException if it cannot be read."""
        self._handle()
        return self._cluster.list_topics(topic, timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """Return the id of the cluster. Raise KafkaException if it cannot be read."""
        self._handle()
        return self._cluster.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate later connections with this user name and password. Raise TypeError unless both are str."""
        self._cluster.set_credentials(username, password, self._handle())

    def close(self) -> None:
        """Commit if automatic commits are enabled, call on_revoke, leave the group, and close the connections.

        In a rebalance callback, the consumer is closed only after the call that runs the callback, because the group
        waits for that call.
        """
        consumer = self._kcodec
        if consumer is None:
            return
        if self._rebalance is not None:
            self._is_close_requested = True
            return
        self._observer.close()
        self._is_closing = True
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
        if consumer is not None and not sys.is_finalizing():  # as in librdkafka, the consumer leaves its group
            with contextlib.suppress(RuntimeError, errors.KcodecError):  # on the I/O thread, or without a broker
                consumer.close(DELETED_SECONDS)
            self._cluster.close()


class ConfluentConsumer(ConsumerMethods):
    """confluent_kafka.Consumer on kcodec's consumer, with its methods, configuration names, errors and callbacks."""


class DeserializingConsumer(confluent_kafka.DeserializingConsumer, ConsumerMethods):  # type: ignore[misc]
    """confluent_kafka.DeserializingConsumer on kcodec's consumer."""
