# SPDX-License-Identifier: Apache-2.0
"""Detects that a topic was deleted and created again. The consumer then reads the new topic from its first offset. If
it kept its position, it would skip records of the new topic without an error.

A broker with older metadata can respond with a former id of the topic. A new id is therefore accepted only if the
metadata contains no other id for CONFIRMATION_SECONDS, and if a response after this time contains the new id again.
Until then, the partitions are suspended. An id that the topic had while a partition was assigned does not count as new.

After the client has moved to another cluster, the ids are not compared. In the other cluster, a topic has another id
even if its records are copies. Brokers before Kafka 2.8 have no topic ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.errors import OffsetOutOfRangeError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode

log = logging.getLogger("kcodec.consumer")
#: Time during which the metadata must contain only the new id of a topic.
CONFIRMATION_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _NewId:
    """A new id of a topic that is not confirmed yet.

    since:   Time at which the id was first found in the metadata.
    updates: Value of `Cluster.updates` after CONFIRMATION_SECONDS. A later response confirms the id. None until then.
    """

    topic_id: UUID
    since: float
    updates: int | None = None


class TopicIds:
    """The ids of the topics that one consumer reads.

    can_fail:     Whether `poll` raises an error for a new topic, as with auto_offset_reset="none".
    on_new_topic: Called with the partitions whose topic was deleted and created again.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        known: KnownPartitions,
        *,
        can_fail: bool,
        on_new_topic: Callable[[list[TopicPartition]], None],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._known = known
        self._can_fail = can_fail
        self._on_new_topic = on_new_topic
        self._cluster_id: str | None = None
        self._updates = -1
        self._new: dict[str, _NewId] = {}

    def look(self) -> float | None:
        """Compare the ids with those in the metadata. Return the number of seconds after which to call this again even
        if nothing changes. None: call it again only after a change."""
        cluster = self._cluster
        is_newer, self._updates = cluster.updates != self._updates, cluster.updates
        is_other_cluster = self._cluster_id is not None and cluster.cluster_id != self._cluster_id
        self._cluster_id = cluster.cluster_id
        confirmed: dict[str, bool] = {}
        begun = []
        for partition, state in list(self._assignment.partitions.items()):
            topic = partition.topic
            if state.topic_ids and not is_newer and topic not in self._new:
                continue
            topic_id = cluster.topic_id(topic)
            if topic_id is None:
                continue
            if not state.topic_ids or is_other_cluster:
                state.topic_ids |= {topic_id}
                self._known.ids[topic] = topic_id
            if topic_id in state.topic_ids:
                self._new.pop(topic, None)
                self._suspend(state, False)
                continue
            if topic not in confirmed:
                confirmed[topic] = self._is_confirmed(topic, topic_id)
            if not confirmed[topic]:
                self._suspend(state, True)
                continue
            self._known.ids[topic] = topic_id
            self._begin_again(state, topic_id)
            begun.append(partition)
        for topic, is_confirmed in confirmed.items():
            if is_confirmed:
                del self._new[topic]
        if begun:
            self._on_new_topic(begun)
        return self._pause()

    def _is_confirmed(self, topic: str, topic_id: UUID) -> bool:
        now, found = self._cluster.clock(), self._new.get(topic)
        if found is None or found.topic_id != topic_id:
            found = self._new[topic] = _NewId(topic_id, now)
        if now < found.since + CONFIRMATION_SECONDS:
            return False
        if found.updates is None:
            found.updates = self._cluster.updates
            self._cluster.request_update(f"topic {topic} has another id")
        return self._cluster.updates > found.updates

    def _pause(self) -> float | None:
        """Return the number of seconds until the first of the new ids has been known for CONFIRMATION_SECONDS. None: no
        new id waits for this time. After this time, the next metadata response decides."""
        waiting = [found.since for found in self._new.values() if found.updates is None]
        return max(min(waiting) + CONFIRMATION_SECONDS - self._cluster.clock(), 0.0) if waiting else None

    def _suspend(self, state: PartitionState, is_suspended: bool) -> None:
        if state.is_suspended is not is_suspended:
            self._assignment.suspend(state, is_suspended)

    def _begin_again(self, state: PartitionState, topic_id: UUID) -> None:
        partition, position = state.topic_partition, state.position
        if not self._can_fail:
            log.warning(
                "%s: the topic was deleted and created again. Reading continues at the first offset of the new topic; "
                "the position was %s",
                partition,
                "unknown" if position is None else position,
            )
        self._assignment.begin_again(state, topic_id, _new_topic_error(partition, position) if self._can_fail else None)


def _new_topic_error(partition: TopicPartition, position: int | None) -> OffsetOutOfRangeError:
    """Return the error for auto_offset_reset "none" if a topic was deleted and created again."""
    return OffsetOutOfRangeError(
        f"{partition}: the topic was deleted and created again, so the position "
        f'{"" if position is None else f"{position} "}is a position in another log. auto_offset_reset is "none": '
        "seek to the offset to continue at",
        partition=partition,
        position=-1 if position is None else position,
        name=ErrorCode.OFFSET_OUT_OF_RANGE.name,
        remedy="stop",
    )
