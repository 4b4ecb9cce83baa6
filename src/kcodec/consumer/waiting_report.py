# SPDX-License-Identifier: Apache-2.0
"""Warnings that say why a consumer receives nothing.

A consumer waits for events that may still occur: a broker starts, a topic is created, a coordinator moves. With a wrong
host, a misspelled topic or a partition that does not exist, it would wait forever without a message. A problem that
prevents reading for longer than WARN_AFTER_SECONDS is therefore logged at WARNING, with the address, topic or partition
and the last cause. The warning is repeated after REPEAT_SECONDS, and then after intervals that double up to
LONGEST_REPEAT_SECONDS. The end of a logged problem is logged at INFO.

Errors that `poll` raises are not logged here. For transactions that block records, see `kcodec.consumer.held_back`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.group.rebalance import Membership, Subscription
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.flow import Flow, sleep
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, error_code
from kcodec.quantities import count_text

log = logging.getLogger("kcodec.consumer")
#: A problem is logged when it has lasted for this time; with LOOK_SECONDS added, the first warning comes within five
#: seconds.
WARN_AFTER_SECONDS: Final = 4.0
#: At the close of the consumer, a problem is logged when it has lasted for this time.
WARN_AT_END_SECONDS: Final = 1.0
#: Interval at which the state of the consumer is checked.
LOOK_SECONDS: Final = 0.5
#: Time from the first warning to the second; each further interval is twice as long ...
REPEAT_SECONDS: Final = 10.0
#: ... up to this one.
LONGEST_REPEAT_SECONDS: Final = 300.0
#: Partitions that one warning names.
MAX_NAMED_PARTITIONS: Final = 5

#: What a problem is about: its kind, and the topic or broker.
Key = tuple[str, str | int]


@dataclass(slots=True)
class _Problem:
    """One problem: its begin, the time of its next warning, and the interval after that."""

    since: float
    next_at: float
    interval: float = REPEAT_SECONDS
    was_logged: bool = False


class _Found(NamedTuple):
    """A current problem. `what` is the sentence up to the duration; `hint` has the sentences after it."""

    what: str
    hint: str


class WaitingReport:
    """The warnings of one consumer; see the module. They are made on the I/O thread or event loop.

    subscription, membership: Return the current subscription and group member.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        fetcher: Fetcher,
        positions: Positions,
        settings: ConsumerSettings,
        *,
        subscription: Callable[[], Subscription],
        membership: Callable[[], Membership | None],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._fetcher = fetcher
        self._positions = positions
        self._settings = settings
        self._subscription = subscription
        self._membership = membership
        self._known: dict[Key, _Problem] = {}

    def run(self) -> Flow[None]:
        """Check and log until the consumer is closed."""
        while True:
            yield from sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Log the warnings that are due."""
        now = self._cluster.clock()
        found = dict(self._found())
        for key in self._known.keys() - found.keys():
            if self._known.pop(key).was_logged:
                log.info("%s: recovered: %s %s", self._name, *key)
        for key, one in found.items():
            problem = self._known.setdefault(key, _Problem(now, now + WARN_AFTER_SECONDS))
            if now >= problem.next_at:
                log.warning("%s: %s for %.0f s%s", self._name, one.what, now - problem.since, one.hint)
                problem.was_logged = True
                problem.next_at, problem.interval = now + problem.interval, problem.interval * 2
                problem.interval = min(problem.interval, LONGEST_REPEAT_SECONDS)

    def end(self) -> None:
        """At the close, log the problems that were not logged yet, so that a program that polls once and ends shows why
        it got nothing. Leave out problems of the group, because a rebalance may last a few seconds."""
        self.look()
        now = self._cluster.clock()
        for key, one in dict(self._found()).items():
            problem = self._known[key]
            if key[0] != "group" and not problem.was_logged and now - problem.since >= WARN_AT_END_SECONDS:
                log.warning("%s: %s for %.0f s%s", self._name, one.what, now - problem.since, one.hint)

    def cause_of(self, partition: TopicPartition) -> str:
        """Return why a partition has no position or no records at the moment; "" if the cause is unknown."""
        return "; ".join(
            found.what + found.hint
            for key, found in self._found()
            if key[0] in ("brokers", "group") or key[1] == partition.topic
        )

    def problems(self) -> Iterator[tuple[Key, str]]:
        """Yield the current problems and what is known about each."""
        return ((key, found.what + found.hint) for key, found in self._found())

    @property
    def _name(self) -> str:
        settings = self._settings
        group = f" of group {settings.group_id!r}" if settings.group_id is not None else ""
        return f"consumer {settings.client_id!r}{group}"

    def _found(self) -> Iterator[tuple[Key, _Found]]:
        """Yield the current problems."""
        if self._membership() is None and not self._assignment.partitions:
            return  # the application has not requested anything to read
        cluster = self._cluster
        if cluster.last_error is not None or not cluster.updates:
            yield ("brokers", self._settings.bootstrap_servers), self._brokers()
            if not cluster.updates:
                return  # nothing else can be known
        yield from self._subscribed()
        yield from self._group()
        yield from self._partitions()

    def _brokers(self) -> _Found:
        cluster = self._cluster
        cause = cluster.last_error or "no response to any request so far"
        addresses = f"bootstrap_servers={self._settings.bootstrap_servers!r}"
        if cluster.updates:
            return _Found(f"no broker of the cluster of {addresses} has responded", f"; last cause: {cause}")
        return _Found(
            f"no broker has responded at {addresses}",
            f"; last cause: {cause}. The consumer retries; check the host, the port and security_protocol",
        )

    # Topics

    def _subscribed(self) -> Iterator[tuple[Key, _Found]]:
        """Yield topics that do not exist or are unavailable, and a pattern that matches no topic."""
        cluster, subscription = self._cluster, self._subscription()
        for topic in sorted(subscription.topics | {each.topic for each in self._assignment.partitions}):
            code = self._topic_code(topic)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                hint = "; last cause: UNKNOWN_TOPIC_OR_PARTITION. The topic is read once it exists; check its name"
                yield ("topic", topic), _Found(f"topic {topic!r} has not existed", hint)
            elif code:
                row = error_code(code)
                hint = f"; last cause: {row.name}, {row.text}"
                yield ("topic", topic), _Found(f"topic {topic!r} has been unavailable", hint)
        pattern, is_matched_here = subscription.pattern, self._settings.group_protocol == "classic"
        if pattern is not None and is_matched_here and cluster.updates_of_all:
            matches = re.compile(pattern).fullmatch
            if not any(matches(name) for name, topic in cluster.topics.items() if topic.partitions):
                hint = "; a pattern must match the whole name of a topic that this user may describe"
                yield ("pattern", pattern), _Found(f"pattern {pattern!r} has matched no topic", hint)

    def _topic_code(self, topic: str) -> int:
        """Return the error of a topic in the metadata; NONE if it exists."""
        found = self._cluster.topics.get(topic)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return found.error or (ErrorCode.NONE if found.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # The group

    def _group(self) -> Iterator[tuple[Key, _Found]]:
        membership, group_id = self._membership(), self._settings.group_id
        if membership is None or group_id is None or membership.error is not None or membership.is_stable:
            return
        cause = self._cluster.coordinators.errors.get(("group", group_id)) or membership.last_error
        what = "the consumer has not been a stable member of the group"
        if cause is not None:
            yield ("group", group_id), _Found(what, f"; last cause: {cause}")
        elif membership.waits_for_others:
            hint = (
                "; the coordinator waits for another member. A member that ended without leaving the group delays the "
                "others until its session timeout, and a member that does not poll until its max_poll_interval_ms"
            )
            yield ("group", group_id), _Found(what, hint)

    # Partitions

    def _partitions(self) -> Iterator[tuple[Key, _Found]]:
        """Yield assigned partitions that cannot be read. Partitions of a topic with the same problem are combined."""
        codes: dict[str, int] = {}
        states = []
        for (topic, _), state in list(self._assignment.partitions.items()):
            if topic not in codes:
                codes[topic] = self._topic_code(topic)
            if state.error is None and not state.is_revoking and not codes[topic]:
                states.append(state)
        for kind, problem in (
            ("partition", self._missing),
            ("leader", self._without_leader),
            ("position", self._without_position),
            ("fetch", self._not_fetched),
        ):
            found = [(state.topic_partition, one) for state in states if (one := problem(state)) is not None]
            yield from self._by_topic(kind, found)

    def _by_topic(self, kind: str, found: list[tuple[TopicPartition, _Found]]) -> Iterator[tuple[Key, _Found]]:
        topics: dict[str, list[tuple[TopicPartition, _Found]]] = {}
        for partition, one in sorted(found, key=itemgetter(0)):
            topics.setdefault(partition.topic, []).append((partition, one))
        for topic, some in topics.items():
            named = ", ".join(str(partition) for partition, _ in some[:MAX_NAMED_PARTITIONS])
            more = f" and {len(some) - MAX_NAMED_PARTITIONS} more" if len(some) > MAX_NAMED_PARTITIONS else ""
            what, hint = some[0][1]
            yield (kind, topic), _Found(f"{named}{more} {what}", hint)

    def _missing(self, state: PartitionState) -> _Found | None:
        there = self._cluster.topics[state.topic_partition.topic].partitions
        if state.topic_partition.partition in there:
            return None
        hint = (
            f"; last cause: UNKNOWN_TOPIC_OR_PARTITION, the topic has {count_text(len(there), 'partition')}, "
            "numbered from 0"
        )
        return _Found("cannot be read, as the partition has not existed", hint)

    def _without_leader(self, state: PartitionState) -> _Found | None:
        topic, number = state.topic_partition
        known = self._cluster.topics[topic].partitions.get(number)
        if known is None or known.leader >= 0:
            return None
        return _Found("cannot be read, as there has been no leader", "; last cause: LEADER_NOT_AVAILABLE")

    def _without_position(self, state: PartitionState) -> _Found | None:
        if state.awaiting is None:
            return None
        partition = state.topic_partition
        cause = self._positions.causes.get(partition)
        if cause is None or self._cluster.leader(*partition) is None:
            return None
        if getattr(cause, "code", 0) == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return None
        return _Found(f"has had no position (it waits for: {state.awaiting})", f"; last cause: {cause}")

    def _not_fetched(self, state: PartitionState) -> _Found | None:
        cause = self._fetcher.cause_of(state) if state.is_fetchable else ""
        return _Found("could not be fetched", f"; last cause: {cause}") if cause else None
