# SPDX-License-Identifier: Apache-2.0
"""What a member of a classic group wants to read, and what of it metadata shows (Kafka: ConsumerCoordinator).

A pattern is matched here against the names of all topics that the brokers show, whole, as in Java. The leader of the
group also watches the topics of the others: once their partitions are other than those it gave out, all must rejoin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kcodec.cluster.metadata import LASTING_TOPIC_ERRORS, Cluster
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError
from kcodec.flow import Flow, wait
from kcodec.protocol.error_codes import ErrorCode, broker_error

#: Ask for metadata of our topics at least so often: the cluster forgets what nobody asks for.
REMIND_SECONDS = 60.0
#: A topic that is refused is asked about again after so long.
REFUSED_SECONDS = 2.0
UNSEEN = LASTING_TOPIC_ERRORS | {ErrorCode.LEADER_NOT_AVAILABLE}

Snapshot = dict[str, dict[int, frozenset[str]]]


class GroupTopics:
    """topics: what we want by name, or what the pattern matches; pattern: or None. group: what all members want, as the
    leader knows; assigned_from: what the leader gave out."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self.cluster = cluster
        self.has_internal = not settings.exclude_internal_topics
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.group: frozenset[str] = frozenset()
        self.assigned_from: Snapshot | None = None
        self._from_leader: frozenset[str] = frozenset()
        self._from_leader_at = 0

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Raises ValueError for a pattern that is no regular expression."""
        try:
            self.pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        self.topics, self._from_leader = frozenset(topics), frozenset()
        self.cluster.needs_all_topics = pattern is not None
        if pattern is not None:
            self.cluster.request_update("a pattern is subscribed to")
        self.take_up_metadata()

    @property
    def is_subscribed(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.topics) or self.pattern is not None

    def accepts(self, topic: str) -> bool:
        """Whether a partition of this topic may be assigned to us."""
        return topic in self.topics or (self.pattern is not None and self.pattern.fullmatch(topic) is not None)

    def take_up_metadata(self) -> None:
        """Metadata came, or time passed: match the pattern again, and remind the cluster of what we want."""
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
        """The leader knows topics that match the pattern and that we have not heard of yet: they are ours as well.
        The topics that we joined with, and these."""
        new = frozenset(assigned) - self.topics
        if self.pattern is None or not new:
            return joined
        self._from_leader, self._from_leader_at = self._from_leader | new, self.cluster.updates_of_all
        self.topics |= new
        self.cluster.request_update("the leader knows more topics")
        return (joined or frozenset()) | new

    def refusal(self) -> BrokerError | None:
        """Why a topic that we want by name cannot be had; it may be allowed, or come, one day."""
        for name in self.topics if self.pattern is None else ():
            topic = self.cluster.topics.get(name)
            if topic is not None and topic.error in LASTING_TOPIC_ERRORS:
                return broker_error(topic.error, f"Metadata of topic {name!r}, subscribed to", resource=name)
        return None

    def has_changed(self) -> bool:
        """Whether the partitions are other than those the leader gave out. Never on another member than the leader."""
        return self.assigned_from is not None and self.snapshot(self.group) != self.assigned_from

    def snapshot(self, names: Iterable[str]) -> Snapshot:
        """The partitions of topics as far as they are there, each with the racks of its replicas."""
        found: Snapshot = {}
        for name in names:
            topic = self.cluster.topics.get(name)
            if topic is not None and topic.error in UNSEEN and self.assigned_from is not None:
                # It is there, but not for us at the moment.
                found[name] = self.assigned_from.get(name, {})
            elif topic is not None and topic.partitions:
                found[name] = {number: self._racks(part.replicas) for number, part in topic.partitions.items()}
        return {name: parts for name, parts in found.items() if parts}

    def _racks(self, replicas: Iterable[int]) -> frozenset[str]:
        brokers = (self.cluster.brokers.get(node) for node in replicas)
        return frozenset(broker.rack for broker in brokers if broker is not None and broker.rack)

    def watch_group(self, topics: Iterable[str], timeout: float) -> Flow[Snapshot]:
        """As the leader: what there is of all members' topics, to give out; from now on changes of it are noticed.

        A topic that nobody has asked the brokers about yet is waited for, up to `timeout` seconds.
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
            return self.cluster.updates_of_all == 0
        return topic.error == ErrorCode.LEADER_NOT_AVAILABLE

    def wait_for_all(self, timeout: float) -> Flow[bool]:
        """With a pattern: whether the names of all topics are known, waited for up to `timeout` seconds."""
        deadline = self.cluster.clock() + timeout
        while self.pattern is not None and self.cluster.updates_of_all == 0:
            left = deadline - self.cluster.clock()
            if left <= 0:
                return False
            yield from wait(self.cluster.changed, left)
        self.take_up_metadata()
        return True

    def forget_group(self) -> None:
        """Not the leader (any more)."""
        self.group, self.assigned_from = frozenset(), None
