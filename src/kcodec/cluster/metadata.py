# SPDX-License-Identifier: Apache-2.0
"""What a client knows of a cluster: brokers, leaders, coordinators and features; and the flows that update it.

The flow `keep_fresh` updates the metadata. Other flows request what they need (`request_update`, `ensure_topic`) and
wait for `changed`. Source: Kafka's Metadata and NetworkClient.DefaultMetadataUpdater; KIP-899 and KIP-1102 for the
return to the bootstrap servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from kcodec.cluster.coordinators import Coordinators
from kcodec.cluster.values import NO_UUID, Broker, ClusterTimes, Partition, Topic
from kcodec.errors import (
    AuthenticationError,
    BrokerError,
    DeliveryTimeoutError,
    KcodecError,
    TransportError,
    UnsupportedError,
)
from kcodec.flow import ANY_NODE, Clock, Flow, Reply, Signal, call, sleep, wait
from kcodec.offsets import TopicPartition, check_topic
from kcodec.protocol.error_codes import ERRORS, ErrorCode, broker_error
from kcodec.protocol.versions import BrokerVersions
from kcodec.quantities import seconds_text

log = logging.getLogger("kcodec.client")
#: A topic error that a retry cannot cure.
LASTING_TOPIC_ERRORS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
#: A topic that no flow has requested for this many seconds is requested no more (Kafka: metadata.max.idle.ms).
TOPIC_IDLE_SECONDS = 300.0


@dataclass(frozen=True)
class FinalizedFeatures:
    """The feature levels of the cluster, by name, as a broker reported them in its response to ApiVersions (KIP-584).

    epoch: Number of the change of these levels; -1 from a broker without features, -2 before any response.
    """

    epoch: int = -2
    levels: Mapping[str, int] = field(default_factory=dict)


class Cluster:
    """The known cluster; see the module. `changed` is set after every metadata response and every new feature level."""

    def __init__(self, clock: Clock, random: Random, times: ClusterTimes) -> None:
        self.clock = clock
        self.random = random
        self.times = times
        #: The addresses that the client was given, for messages.
        self.bootstrap_servers = ""
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.features = FinalizedFeatures()
        self.versions: dict[int, BrokerVersions] = {}
        self.changed = Signal()
        self.allow_auto_topic_creation = True
        self.last_error: BaseException | None = None
        self.updates = 0
        self.failures = 0  # Metadata requests without a response
        self.needs_all_topics = False  # for a subscription to a pattern
        self.updates_of_all = 0
        self._waiting_for_all = 0  # calls of refresh_all
        self._topics_used_at: dict[str, float] = {}
        #: Topics without which a flow cannot continue. A response with all topics does not contain the error of a
        #: missing topic, and the broker does not create it.
        self._awaited_topics: set[str] = set()
        self.coordinators = Coordinators(self)
        self._update_requested = Signal()
        self._topic_added = Signal()
        self._is_update_requested = False
        self._updated_at: float | None = None
        self._requested_since: float | None = None

    # What is known

    @property
    def transaction_version(self) -> int:
        """The finalized level of the feature transaction.version; 0 if the cluster does not have the feature."""
        return self.features.levels.get("transaction.version", 0)

    def note_versions(self, node_id: int, versions: BrokerVersions) -> None:
        """Store the API versions and features of a broker. The features of the highest epoch count."""
        self.versions[node_id] = versions
        if versions.finalized_features_epoch > self.features.epoch:
            self.features = FinalizedFeatures(versions.finalized_features_epoch, dict(versions.finalized_features))
            self.changed.set()

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return the metadata of a partition. Its leader is negative if there is no leader."""
        topic, number = partition
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(number)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader of a partition; None if it is unknown or none exists."""
        found = self.topics.get(topic)
        known = found.partitions.get(partition) if found else None
        return known.leader if known is not None and known.leader >= 0 else None

    def no_leader_error(self, topic: str, partition: int) -> KcodecError:
        """Return the error of a partition for which `leader` returns None."""
        found = self.topics.get(topic)
        known = found.partitions.get(partition) if found else None
        if known is None or not known.replicas or not known.offline_replicas:
            return KcodecError("the partition has no known leader at the moment")
        nodes = [f"{node} (offline)" if node in known.offline_replicas else f"{node}" for node in known.replicas]
        where = f"replicas are on brokers {', '.join(nodes[:-1])} and" if len(nodes) > 1 else "replica is on broker"
        return KcodecError(
            f"the partition has no known leader at the moment; its {where} {nodes[-1]}; start an offline broker"
        )

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of that leader; -1 if it is unknown."""
        found = self.topics.get(topic)
        known = found.partitions.get(partition) if found else None
        return known.leader_epoch if known is not None else -1

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if it is unknown."""
        found = self.topics.get(topic)
        return len(found.partitions) if found and found.partitions else None

    def is_missing(self, topic: str) -> bool:
        """Return whether the metadata shows that a topic does not exist. A list of all topics contains no error of such
        a topic. The metadata of a broker that has just started can also lack an existing topic for a moment."""
        found = self.topics.get(topic)
        if found is None:
            return self.needs_all_topics and self.updates_of_all > 0
        return found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_id(self, topic: str) -> UUID | None:
        """Return the id of a topic; None if it is unknown, or the brokers have no topic ids."""
        found = self.topics.get(topic)
        return found.topic_id if found and found.topic_id != NO_UUID else None

    # What is missed

    def add_topics(self, names: Iterable[str]) -> None:
        """Include these topics in the metadata from now on. Request an update if one of them is new."""
        now = self.clock()
        for name in names:
            if name not in self._topics_used_at:
                self.request_update(f"topic {name} is new")
                self._topic_added.set()
            self._topics_used_at[name] = now

    def request_update(self, reason: str, topic: str | None = None) -> None:
        """Request new metadata soon.

        topic: A topic without which the caller cannot continue. If it is missing, the next update contains its error.
        """
        if topic is not None:
            self._awaited_topics.add(topic)
        if not self._is_update_requested:
            log.debug("metadata is requested: %s", reason)
        self._is_update_requested = True
        self._update_requested.set()

    def forget_leader(self, topic: str, partition: int) -> None:
        """Forget the leader of a partition, which is out of date."""
        found = self.topics.get(topic)
        if found and partition in found.partitions:
            found.partitions[partition].leader = -1
        self.request_update(f"{topic}-{partition} has another leader")

    def learn_leader(self, topic: str, partition: int, leader: int, leader_epoch: int) -> None:
        """Store the leader from a response (current_leader: Produce from version 10, Fetch from version 12). Ignore
        older epochs."""
        found = self.topics.get(topic)
        known = found.partitions.get(partition) if found else None
        if known is not None and leader in self.brokers and leader_epoch > known.leader_epoch:
            known.leader, known.leader_epoch = leader, leader_epoch
            self.changed.set()

    def learn_brokers(self, endpoints: Iterable[Any]) -> None:
        """Store the brokers from such a response (node_endpoints)."""
        for end in endpoints:
            self.brokers[end.node_id] = Broker(end.node_id, end.host, end.port, end.rack)

    # Flows

    def ensure_topic(self, topic: str, timeout: float) -> Flow[Topic]:
        """Wait for the metadata of a topic. Raise BrokerError for a topic that is not available, DeliveryTimeoutError,
        TypeError or ValueError for a name that no request can hold.

        A broker also returns UNKNOWN_TOPIC_OR_PARTITION while it creates a topic, so the wait for an unknown topic ends
        `unknown_topic` seconds after the first such response.
        """
        check_topic(topic, "topic")
        deadline = self.clock() + timeout
        unknown_since: float | None = None
        while True:
            self.add_topics([topic])
            found = self.topics.get(topic)
            if found is not None and found.error in LASTING_TOPIC_ERRORS:
                # The error is not stored, because a permission may be granted or the topic created. The next call
                # requests it again.
                self._topics_used_at.pop(topic, None)
                del self.topics[topic]
                raise broker_error(found.error, f"Metadata of topic {topic!r}", resource=topic)
            if found is not None and not found.error and found.partitions:
                return found
            left = deadline - self.clock()
            if left <= 0:
                raise self._late(f"topic {topic!r} is not in the metadata", topic, timeout)
            if found is not None and found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                unknown_since = self.clock() if unknown_since is None else unknown_since
                left_unknown = unknown_since + self.times.unknown_topic - self.clock()
                if left_unknown <= 0:
                    self._topics_used_at.pop(topic, None)
                    raise self._unknown(topic)
                left = min(left, left_unknown)
            else:
                unknown_since = None
            self.request_update(f"topic {topic} is missing", topic)
            failures = self.failures
            yield from wait(self.changed, left)
            if self.failures != failures and isinstance(self.last_error, AuthenticationError):
                raise self.last_error

    def _unknown(self, topic: str) -> BrokerError:
        return BrokerError(
            f"topic {topic!r} does not exist: brokers have reported it as unknown for unknown_topic_timeout_ms"
            f" ({seconds_text(self.times.unknown_topic)}); create it, or correct its name",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            name=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
            retriable=True,
            remedy="stop",
            resource=topic,
        )

    def _late(self, what: str, topic: str | None, timeout: float) -> BaseException:
        why, error = self.why_missing(topic), self.last_error
        text = f"{what} after {seconds_text(timeout)}" + (f": {why}" if why else "")
        if isinstance(error, TransportError) and not isinstance(error, AuthenticationError) and why == str(error):
            text += "; check that the brokers run, and check bootstrap_servers and security_protocol"
        return DeliveryTimeoutError(text)

    def why_missing(self, topic: str | None) -> str | None:
        """Return why the metadata, of a topic or in general, is missing, if that is known; from any thread."""
        found = self.topics.get(topic) if topic is not None else None
        if found is not None and found.error:
            return ERRORS[found.error].name if found.error in ERRORS else f"error {found.error}"
        if self.last_error is not None:
            return str(self.last_error)
        return "no broker of bootstrap_servers has responded yet" if not self.updates else None

    def refresh(self, timeout: float) -> Flow[None]:
        """Wait for the next response to a Metadata request, which may already be in flight. Raises
        DeliveryTimeoutError, AuthenticationError."""
        deadline = self.clock() + timeout
        before = self.updates
        self.request_update("refresh")
        while self.updates == before:
            left = deadline - self.clock()
            if left <= 0:
                raise self._late("no metadata", None, timeout)
            failures = self.failures
            yield from wait(self.changed, left)
            if self.failures != failures and isinstance(self.last_error, AuthenticationError | UnsupportedError):
                raise self.last_error

    def refresh_all(self, timeout: float) -> Flow[None]:
        """Wait for newer metadata of all topics. Raise the errors of `refresh`."""
        deadline, before = self.clock() + timeout, self.updates_of_all
        self._waiting_for_all += 1
        try:
            while self.updates_of_all == before:
                yield from self.refresh(max(deadline - self.clock(), 0.0))
        finally:
            self._waiting_for_all -= 1

    def keep_fresh(self) -> Flow[None]:
        """Request metadata for as long as the client is open. This is the flow that all others wait for."""
        attempt = gaps = repeats = 0
        while True:
            if not self._is_update_requested:
                age = self.clock() - (self._updated_at or self.clock())
                is_due = not (yield from wait(self._update_requested, max(self.times.metadata_max_age - age, 0.0)))
                repeats = 0 if is_due or not self._is_repetition() else repeats + 1
                if repeats > 1:
                    yield from wait(self._topic_added, self.times.backoff(repeats - 2, self.random.random()))
            self._is_update_requested = False
            before, requested = self.updates, set(self._topics_used_at)
            yield from self._request_metadata()
            if self.updates == before:
                self._is_update_requested = not isinstance(self.last_error, AuthenticationError)
                if not self._is_update_requested:  # the same password fails again, and may lock the account
                    yield from wait(self._update_requested, self.times.metadata_max_age)
                if attempt >= max(len(self.brokers), 1) and not _is_refused(self.last_error):
                    self._rebootstrap("no known broker responds")
                    attempt = 0
                yield from sleep(self.times.backoff(attempt, self.random.random()))
                attempt += 1
            else:
                attempt = 0
                if (
                    self._topics_used_at.keys() - requested
                ):  # requested since then, so not missing: at once, as Java does
                    self._is_update_requested = True
                    continue
                gaps = gaps + 1 if self._has_gaps() else 0
                if gaps:
                    self._is_update_requested = True
                if self._is_update_requested:
                    yield from sleep(self.times.backoff(max(gaps - 1, 0), self.random.random()))

    def _is_repetition(self) -> bool:
        """Return whether an update is requested immediately after another one. A flow may wait for something that no
        response contains, such as a partition that the topic does not have any more."""
        return self._updated_at is not None and self.clock() - self._updated_at < self.times.backoff(0, 0.5)

    def _has_gaps(self) -> bool:
        """Return whether a requested topic, or a leader in it, is still missing."""
        for name in self._topics_used_at:
            found = self.topics.get(name)
            if found is None and self.needs_all_topics:
                continue  # it is gone
            if found is None or (found.error and found.error not in LASTING_TOPIC_ERRORS):
                return True
            if any(part.leader < 0 for part in found.partitions.values()):
                return True
        return False

    def _request_metadata(self) -> Flow[None]:
        """Send one Metadata request. Apply its response, or store the reason of its failure."""
        from kcodec.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        now = self.clock()
        self._requested_since = self._requested_since if self._requested_since is not None else now
        trigger = self.times.rebootstrap_trigger
        if trigger is not None and now - self._requested_since > trigger and self.brokers:
            self._rebootstrap(f"no metadata for {now - self._requested_since:.0f} s")
        self._topics_used_at = {
            name: used for name, used in self._topics_used_at.items() if now - used < TOPIC_IDLE_SECONDS
        }
        self._drop_impossible_topics()
        are_all = self.needs_all_topics or self._waiting_for_all > 0
        awaited, self._awaited_topics = self._awaited_topics & self._topics_used_at.keys(), set()

        def request(names: Iterable[str] | None) -> MetadataRequest:
            topics = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(names)]
            return MetadataRequest(topics=topics, allow_auto_topic_creation=self.allow_auto_topic_creation)

        try:
            everything = request(None if are_all else self._topics_used_at)
            reply = yield from call(ANY_NODE, everything, timeout=self.times.request, lowest=4)
            if are_all and (missing := awaited - {topic.name for topic in reply.message.topics}):
                named = yield from call(ANY_NODE, request(missing), timeout=self.times.request, lowest=4)
                reply.message.topics += named.message.topics
        except KcodecError as error:  # all other flows wait for this one, so it continues after each
            self.last_error = error
            self.failures += 1
            log.info("Metadata failed: %s", error)
            self.changed.set()
            return
        self.apply(reply, are_all)

    def _drop_impossible_topics(self) -> None:
        """Stop requesting names that a request cannot contain. With such a name, no topic would get metadata any
        more."""
        for name in list(self._topics_used_at):
            try:
                check_topic(name, "topic")
            except (TypeError, ValueError) as error:
                del self._topics_used_at[name]
                log.error("metadata of a topic cannot be requested: %s", error)

    def apply(self, reply: Reply, are_all: bool = False) -> None:
        """Apply a MetadataResponse. With `are_all`, it lists all topics, so all other topics no longer exist."""
        message = reply.message
        if message.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap("a broker requested it")
            return
        if not message.brokers:
            self.last_error = TransportError("the Metadata response of a broker lists no brokers")
            self.changed.set()
            return
        self.brokers = {one.node_id: Broker(one.node_id, one.host, one.port, one.rack) for one in message.brokers}
        self.controller_id = message.controller_id
        self.cluster_id = message.cluster_id or self.cluster_id
        # A topic that is not in use is forgotten, as its leaders are not updated any more.
        kept = {topic.name for topic in message.topics}
        if not are_all:
            kept |= self._topics_used_at.keys()
        if not self.topics.keys() <= kept:
            self.topics = {name: topic for name, topic in self.topics.items() if name in kept}
        for found in message.topics:
            if found.name is not None:
                self._apply_topic(found)
        self.updates += 1
        self.updates_of_all += are_all
        self.last_error = None
        self._updated_at = self.clock()
        self._requested_since = None
        self.changed.set()

    def _apply_topic(self, found: Any) -> None:
        old = self.topics.get(found.name)
        is_same = old is not None and old.topic_id == found.topic_id
        topic = Topic(found.name, found.topic_id, found.is_internal, found.error_code)
        for part in found.partitions:
            # The response of a broker that lags behind: an older epoch of the same topic is ignored (KIP-320).
            known = old.partitions.get(part.partition_index) if old is not None and is_same else None
            if known is not None and 0 <= part.leader_epoch < known.leader_epoch:
                topic.partitions[part.partition_index] = known
                continue
            topic.partitions[part.partition_index] = Partition(
                part.leader_id,
                part.leader_epoch,
                tuple(part.replica_nodes),
                tuple(part.offline_replicas),
            )
        if old is not None and is_same and found.topic_id != NO_UUID and not found.error_code:
            # No partition is ever removed from a topic, so a broker that does not list one lags behind, too.
            topic.partitions = {**old.partitions, **topic.partitions}
        self.topics[found.name] = topic

    def rebootstrap(self, reason: str) -> None:
        """Start again from the bootstrap servers, unless `metadata_recovery_strategy` is "none"; request metadata."""
        self._rebootstrap(reason)
        self._update_requested.set()

    def _rebootstrap(self, reason: str) -> None:
        if self.brokers and self.times.rebootstrap_trigger is not None:
            log.warning("starting again from bootstrap_servers: %s", reason)
            self.brokers = {}
            self.coordinators.forget_all()
        self._requested_since = self.clock()
        self._is_update_requested = True


def _is_refused(error: BaseException | None) -> bool:
    """Return whether a broker was reached, but refused the login."""
    return isinstance(error, AuthenticationError) or isinstance(getattr(error, "__cause__", None), AuthenticationError)
