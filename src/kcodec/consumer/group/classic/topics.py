# SPDX-License-Identifier: Apache-2.0
"""The topics that a classic group member subscribes to, and what the metadata has of them (Kafka: ConsumerCoordinator).

A pattern must match the whole name of a topic, as in Java, and is matched here against all topics that brokers list.
The group's leader also tracks the topics of other members: if their partitions change, all members must join again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kcodec.cluster.metadata import LASTING_TOPIC_ERRORS, Cluster
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError
from kcodec.flow import Flow, wait
from kcodec.protocol.error_codes import ErrorCode, broker_error

#: Maximum interval of metadata requests for our topics: the cluster state forgets topics that are not in use.
REMIND_SECONDS = 60.0
#: Delay before a rejected topic is requested again.
REFUSED_SECONDS = 2.0
UNSEEN = LASTING_TOPIC_ERRORS | {ErrorCode.LEADER_NOT_AVAILABLE}

Snapshot = dict[str, dict[int, frozenset[str]]]


class GroupTopics:
    """The topics of a member.

    topics:        Topics that are subscribed by name, or that match the pattern.
    pattern:       The pattern, or None.
    group:         On the leader: topics of all members.
    assigned_from: On the leader: partitions of these topics at the time of the assignment.
    """

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self.cluster = cluster
        self.has_internal = not settings.exclude_internal_topics
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.group: frozenset[str] = frozenset()
        self.assigned_from: Snapshot | None = None
        #: The update of all topics (`Cluster.updates_of_all`) from which on the pattern can be matched.
        self._first_of_all = 1
        self._from_leader: frozenset[str] = frozenset()
        self._from_leader_at = 0

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Set the subscription. Raise ValueError for an invalid regular expression."""
        try:
            self.pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is not a valid regular expression: {error}") from error
        self.topics, self._from_leader = frozenset(topics), frozenset()
        if pattern is not None and not self.cluster.needs_all_topics:
            self._first_of_all = self.cluster.updates_of_all + 1
        self.cluster.needs_all_topics = pattern is not None
        if pattern is not None:
            self.cluster.request_update("a pattern is subscribed to")
        self.take_up_metadata()

    def end(self) -> None:
        """Stop requesting the metadata of all topics, as the member leaves."""
        self.cluster.needs_all_topics = False

    @property
    def is_subscribed(self) -> bool:
        """Whether there is a subscription."""
        return bool(self.topics) or self.pattern is not None

    def accepts(self, topic: str) -> bool:
        """Return whether a partition of this topic may be assigned to this member."""
        return topic in self.topics or (self.pattern is not None and self.pattern.fullmatch(topic) is not None)

    def take_up_metadata(self) -> None:
        """Match the pattern again after new metadata, and renew the topics in use."""
        if self.pattern is not None:
            if self.cluster.updates_of_all > self._from_leader_at:
                self._from_leader = frozenset()
            self.topics = self._from_leader | frozenset(
                name
                for name, topic in self.cluster.topics.items()
                if topic.partitions and (self.has_internal or not topic.is_internal) and self.pattern.fullmatch(name)
            )
        if topics := self.topics | self.group:
            self.cluster.add_topics(topics)

    def add_from_leader(self, assigned: Iterable[str], joined: frozenset[str] | None) -> frozenset[str] | None:
        """Add topics that match the pattern, and that only the leader has seen so far, to those of the last
        JoinGroup."""
        new = frozenset(assigned) - self.topics
        if self.pattern is None or not new:
            return joined
        self._from_leader, self._from_leader_at = self._from_leader | new, self.cluster.updates_of_all
        self.topics |= new
        self.cluster.request_update("the leader knows more topics")
        return (joined or frozenset()) | new

    def refusal(self) -> BrokerError | None:
        """Return the error of a subscribed topic that is not available. The topic may become available later."""
        for name in self.topics if self.pattern is None else ():
            topic = self.cluster.topics.get(name)
            if topic is not None and topic.error in LASTING_TOPIC_ERRORS:
                return broker_error(topic.error, f"Metadata of topic {name!r}, subscribed to", resource=name)
        return None

    def has_changed(self) -> bool:
        """Return whether the partitions differ from those that the leader assigned. False on other members."""
        return self.assigned_from is not None and self.snapshot(self.group) != self.assigned_from

    def snapshot(self, names: Iterable[str]) -> Snapshot:
        """Return the existing partitions of topics, each with the racks of its replicas."""
        found: Snapshot = {}
        for name in names:
            topic = self.cluster.topics.get(name)
            if topic is not None and topic.error in UNSEEN and self.assigned_from is not None:
                # The topic exists, but is temporarily unavailable.
                found[name] = self.assigned_from.get(name, {})
            elif topic is not None and topic.partitions:
                found[name] = {number: self._racks(part.replicas) for number, part in topic.partitions.items()}
        return {name: parts for name, parts in found.items() if parts}

    def _racks(self, replicas: Iterable[int]) -> frozenset[str]:
        brokers = (self.cluster.brokers.get(node) for node in replicas)
        return frozenset(broker.rack for broker in brokers if broker is not None and broker.rack)

    def watch_group(self, topics: Iterable[str], timeout: float) -> Flow[Snapshot]:
        """As the leader, return the partitions of all members' topics. From now on their changes are tracked.

        Wait for a topic that was never requested before, up to `timeout` seconds.
        """
        self.group, self.assigned_from = frozenset(topics), None
        deadline = self.cluster.clock() + timeout
        self.take_up_metadata()
        while any(self._is_unrequested(name) for name in self.group) and (left := deadline - self.cluster.clock()) > 0:
            self.cluster.request_update("the topics of the group")
            yield from wait(self.cluster.changed, left)
        self.assigned_from = self.snapshot(self.group)
        return self.assigned_from

    def _is_unrequested(self, name: str) -> bool:
        topic = self.cluster.topics.get(name)
        if topic is None:
            return self.pattern is None or self.cluster.updates_of_all < self._first_of_all
        return topic.error == ErrorCode.LEADER_NOT_AVAILABLE

    def wait_for_all(self, timeout: float) -> Flow[bool]:
        """With a pattern, wait up to `timeout` seconds for the names of all topics. Return whether they are known."""
        deadline = self.cluster.clock() + timeout
        while self.pattern is not None and self.cluster.updates_of_all < self._first_of_all:
            left = deadline - self.cluster.clock()
            if left <= 0:
                return False
            yield from wait(self.cluster.changed, left)
        self.take_up_metadata()
        return True

    def forget_group(self) -> None:
        """Stop tracking the group's topics, as this member is not the leader."""
        self.group, self.assigned_from = frozenset(), None
