# SPDX-License-Identifier: Apache-2.0
"""Detects that a topic was deleted and created again. The consumer then reads the new topic from its first offset. If
it kept its position, it would skip records of the new topic without an error.

A broker with older metadata can respond with a former id of the topic. A new id is therefore accepted only if the
metadata contains no other id for CONFIRMATION_SECONDS, and if a response after this time contains the new id again.
Until then, the partitions are suspended. An id that the topic had while a partition was assigned does not count as new.
An id that the application passes to `seek` is compared in the same way. Until the metadata contains the topic, its
partition is suspended.
If the metadata lacks the topic meanwhile, the partitions are not suspended, and CONFIRMATION_SECONDS begin again later.

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

    `look` compares the id in the metadata with the id of the topic to which a position belongs:

        the metadata has no id      The partition is read, if possible: the topic is missing, or brokers have no ids.
        the position has no id      The position gets the id of the metadata, and the partition is read.
        the same id, or a former id The partition is read.
        another id                  The partition is suspended. When the id is confirmed, reading begins again.

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
        #: The new ids of those topics that have suspended partitions.
        self._new: dict[str, _NewId] = {}

    def look(self) -> float | None:
        """Compare the ids with those in the metadata. Return the number of seconds after which to call this again even
        if nothing changes. None: call it again only after a change."""
        self._note_cluster()
        replaced = self._compare()
        self._new = {topic: self._new_id(topic) for topic in replaced}
        begun = []
        for topic, states in replaced.items():
            found = self._new[topic]
            if not self._is_confirmed(topic, found):
                for state in states:
                    self._suspend(state, True)
                continue
            del self._new[topic]
            for state in states:
                self._begin_again(state, found.topic_id)
                begun.append(state.topic_partition)
        if begun:
            self._on_new_topic(begun)
        return self._pause()

    def _note_cluster(self) -> None:
        """Forget all ids if the client has moved to another cluster."""
        before, self._cluster_id = self._cluster_id, self._cluster.cluster_id
        if before is not None and before != self._cluster_id:
            self._known.forget_ids()
            for state in self._assignment.partitions.values():
                state.topic_id, state.is_id_given, state.former_topic_ids = None, False, frozenset()

    def _compare(self) -> dict[str, list[PartitionState]]:
        """Return the partitions of each topic that has another id in the metadata. The others are read."""
        replaced: dict[str, list[PartitionState]] = {}
        cluster = self._cluster
        is_newer, self._updates = cluster.updates != self._updates, cluster.updates
        for partition, state in self._assignment.partitions.items():
            if state.topic_id is not None and not state.is_id_given and not is_newer and not self._new:
                continue
            topic_id = cluster.topic_id(partition.topic)
            if state.is_id_given:
                if not cluster.partitions(partition.topic):
                    continue  # the metadata does not contain the topic yet
                if topic_id is None:  # the brokers have no topic ids
                    state.topic_id = None
                state.is_id_given = state.topic_id != topic_id
            if topic_id is not None and (state.topic_id is None or state.is_skipped):
                state.topic_id = topic_id
            if state.is_of_other_topic(topic_id):
                replaced.setdefault(partition.topic, []).append(state)
            else:
                self._suspend(state, False)
        return replaced

    def _new_id(self, topic: str) -> _NewId:
        """Return the new id of a topic, with the time at which it was found if it is known already."""
        topic_id, found = self._cluster.topic_id(topic), self._new.get(topic)
        assert topic_id is not None
        return found if found is not None and found.topic_id == topic_id else _NewId(topic_id, self._cluster.clock())

    def _is_confirmed(self, topic: str, found: _NewId) -> bool:
        if self._cluster.clock() < found.since + CONFIRMATION_SECONDS:
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
