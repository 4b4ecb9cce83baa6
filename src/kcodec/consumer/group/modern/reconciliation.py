# SPDX-License-Identifier: Apache-2.0
"""Reconciles the partitions of a member with its target assignment (KIP-848; Kafka: AbstractMembershipManager).

It takes one step at a time, and is the only code that waits for the consumer (`RebalanceHandler`). It first revokes
partitions, and acknowledges this immediately, because other members wait for them. Then it adds new partitions. It
adopts a newer target when the current step is complete. It adds partitions later if the name of their topic is still
unknown. While a step waits for the application, heartbeats continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.group.modern.heartbeat import TopicIdPartitions
from kcodec.consumer.group.rebalance import RebalanceHandler
from kcodec.errors import TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, Signal, call, wait
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

log = logging.getLogger("kcodec.consumer")
#: The first version of Metadata that finds a topic by its id alone.
BY_ID_VERSION = 12
NOTHING: TopicIdPartitions = frozenset()


class TopicNames:
    """The names of topics that are known by their ids (KIP-516): from the client's metadata, or requested by id.

    With a subscription by pattern, no other code requests these topics. The response also contains their leaders. The
    names are kept, because the metadata may drop topics, or not have them yet.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names: dict[UUID, str] = {}

    def name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, None while it is unknown."""
        return self._names.get(topic_id)

    def keep(self, topic_ids: Iterable[UUID]) -> None:
        """Forget all others."""
        self._names = {topic_id: self._names[topic_id] for topic_id in topic_ids if topic_id in self._names}

    def learn(self, topic_ids: Iterable[UUID]) -> Flow[bool]:
        """Look up the names of these ids, with at most one request. Return whether all names are known. Do not raise if
        the broker does not respond."""
        missing = self._learn_from_metadata(topic_ids)
        if missing:
            yield from self._request(missing)
            missing = self._learn_from_metadata(missing)
        return not missing

    def _learn_from_metadata(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Return the ids whose names are still unknown."""
        missing = {topic_id for topic_id in topic_ids if topic_id not in self._names}
        if missing:
            for topic in self._cluster.topics.values():
                if topic.topic_id in missing and not topic.error:
                    self._names[topic.topic_id] = topic.name
                    missing.discard(topic.topic_id)
        self._cluster.add_topics(self._names[one] for one in topic_ids if one in self._names)
        return missing

    def _request(self, missing: Iterable[UUID]) -> Flow[None]:
        topics = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(missing)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        try:
            reply = yield from call(ANY_NODE, request, timeout=self._cluster.times.request, lowest=BY_ID_VERSION)
        except (TransportError, UnsupportedError) as error:
            log.info("the names of %d topic ids could not be fetched: %s", len(topics), error)
            self._cluster.request_update("topics of an assignment are not known")
            return
        self._cluster.apply(reply)


class Release(Enum):
    """The reason why all partitions are released.

    LOST:    The group has removed this member.
    STALE:   The member has left, because the application did not poll. It joins again at the next poll.
    REVOKED: The member is about to leave.
    """

    LOST = "lost"
    STALE = "stale"
    REVOKED = "revoked"


class Reconciliation:
    """See the module.

    on_ack:      Called when a heartbeat with the owned partitions must be sent.
    on_released: Called after `release`, when no partition is owned any more.
    on_error:    Called with an error of the consumer. The step counts as complete.
    owned:       The reconciled partitions.
    version:     Number that changes with each new target.
    """

    def __init__(
        self,
        cluster: Cluster,
        handler: RebalanceHandler,
        backoff: Callable[[int, float], float],
        *,
        on_ack: Callable[[], None],
        on_released: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.owned = NOTHING
        self.version = 0
        self._handler = handler
        self._backoff = backoff
        self._random = cluster.random
        self._on_ack, self._on_released, self._on_error = on_ack, on_released, on_error
        self._names = TopicNames(cluster)
        self._target: TopicIdPartitions | None = None
        self._done_version = 0
        self._release: Release | None = None
        self._attempt = 0
        self._work = Signal()

    @property
    def is_done(self) -> bool:
        """Whether the target is reached; also true without a target."""
        return self._release is None and self._done_version == self.version

    @property
    def is_taking_away(self) -> bool:
        """Whether an owned partition is to be revoked."""
        return self._release is not None or (self._target is not None and not self.owned <= self._target)

    def aim(self, partitions: TopicIdPartitions) -> None:
        """Set the target assignment."""
        if self._release is None and partitions != self._target:
            self._target = partitions
            self.version += 1
            self._attempt = 0
            self._work.set()

    def release(self, release: Release) -> None:
        """Release all partitions after the current step."""
        self._target = None
        self._release = release
        self._work.set()

    def run(self) -> Flow[None]:
        """Reconcile until the flow is cancelled."""
        while True:
            if self._release is not None:
                yield from self._give_all_up(self._release)
            elif self._target is not None and self._done_version != self.version:
                yield from self._step(self._target, self.version)
            else:
                yield from wait(self._work)

    def _step(self, target: TopicIdPartitions, version: int) -> Flow[None]:
        revoked = self.owned - target
        if revoked:
            yield from self._run_step(self._handler.revoke(self._named(revoked)))
            if self._is_over():
                return
            self.owned -= revoked
            self._on_ack()
        is_complete = yield from self._names.learn({topic_id for topic_id, _ in target})
        if self._is_over() or self.version != version:
            return
        known = frozenset(one for one in target if self._names.name(one[0]) is not None)
        added = known - self.owned
        if added or revoked or is_complete:
            yield from self._run_step(self._handler.assign(self._named(added), self._named(known)))
            if self._is_over():
                return
            self.owned = known
            if is_complete:
                self._done_version = version
                self._names.keep({topic_id for topic_id, _ in target})
            self._on_ack()
        elif self.version == version:
            yield from wait(self._work, self._backoff(self._attempt, self._random.random()))
            self._attempt += 1

    def _is_over(self) -> bool:
        """Return whether the current step must stop, as all partitions are to be released."""
        return self._release is not None

    def _give_all_up(self, release: Release) -> Flow[None]:
        owned = self._handler.owned
        if owned and release is Release.REVOKED:
            yield from self._run_step(self._handler.revoke(sorted(owned)))
        owned = self._handler.owned
        if owned and self._release is not Release.REVOKED:
            yield from self._run_step(self._handler.lose(sorted(owned)))
        if self._release is Release.STALE:
            yield from self._run_step(self._handler.until_polled())
        self.owned, self._target = NOTHING, None
        self._done_version = self.version
        self._names.keep(())
        self._release = None
        self._on_released()

    def _named(self, partitions: TopicIdPartitions) -> list[TopicPartition]:
        names = ((self._names.name(topic_id), partition) for topic_id, partition in partitions)
        return sorted(TopicPartition(name, partition) for name, partition in names if name is not None)

    def _run_step(self, flow: Flow[None]) -> Flow[None]:
        """Run a step of the consumer. Its error must not stop the member, because the group would wait for it."""
        try:
            yield from flow
        except Exception as error:
            log.error("a step of a rebalance failed and counts as done: %s", error, exc_info=error)
            self._on_error(error)
