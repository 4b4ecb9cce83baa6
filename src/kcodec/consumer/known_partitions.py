# SPDX-License-Identifier: Apache-2.0
"""The partitions that existed when a consumer began to read its subscription.

With auto_offset_reset="latest", a consumer begins to read a partition without a committed offset at the end of its log.
All records of a partition that was created later are newer, but the consumer finds the partition only with its next
metadata. If the consumer began at the end of the log, it would skip the records that were written before it found the
partition. It therefore begins at the first record. KIP-1327 describes how Java's consumer skips these records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.offsets import HIGHEST_PARTITION, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode

_K = TypeVar("_K")
#: Maximum number of topics, and of commits, that are remembered although the consumer does not read them.
MAX_REMEMBERED: Final = 10_000


class _KnownTopic(NamedTuple):
    """A topic at the time when the consumer first found it.

    topic_id:   Id of the topic, or None if it is unknown.
    partitions: Number of partitions. It is 0 if the topic did not exist. If the number is unknown, it is so high that
                no partition is considered new.
    """

    topic_id: UUID | None
    partitions: int


class KnownPartitions:
    """The topics and partitions that one consumer has found since it subscribed, and its last commits.

    They are remembered after the consumer has stopped reading a topic, or the topic was deleted, because a topic of the
    same name may be created later. Of these, the oldest are forgotten from MAX_REMEMBERED on.
    """

    def __init__(self, cluster: Cluster, assignment: Assignment) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._topics: dict[str, _KnownTopic] | None = None
        #: Whether all topics of the cluster are in `_topics`.
        self._are_all = False
        #: The last offset that this consumer has committed in a partition, and the id of its topic. The last is the
        #: newest.
        self._commits: dict[TopicPartition, tuple[int, UUID]] = {}

    def forget(self) -> None:
        """Forget the topics and partitions, because another subscription follows."""
        self._topics = None

    def forget_ids(self) -> None:
        """Forget the ids of topics, because the client has moved to another cluster, in which all topics have other
        ids."""
        self._commits.clear()
        if self._topics is not None:
            self._topics = {name: known._replace(topic_id=None) for name, known in self._topics.items()}

    def note(self, assigned: Iterable[TopicPartition]) -> None:
        """Remember the partitions that exist now, unless their topic is known already.

        assigned: Partitions that the group has assigned now. Their topics exist, even if the metadata is older.
        """
        cluster = self._cluster
        existing = {partition.topic for partition in assigned}
        is_first = self._topics is None
        if self._topics is None:
            self._topics = {}
            self._are_all = cluster.needs_all_topics and cluster.updates_of_all > 0
        elif self._are_all:
            return
        for name, topic in cluster.topics.items():
            is_missing = topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in existing
            if name not in self._topics and (topic.partitions or is_missing):
                self._topics[name] = _KnownTopic(cluster.topic_id(name), len(topic.partitions))
        if not self._are_all:
            _forget_oldest(self._topics, cluster.topics)
        if is_first:
            for name in existing - self._topics.keys():
                self._topics[name] = _KnownTopic(None, HIGHEST_PARTITION + 1)

    def note_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], states: Mapping[TopicPartition, PartitionState]
    ) -> None:
        """Remember offsets that are about to be committed. Before OffsetCommit version 10, a request contains only the
        name of the topic. The broker then stores the offset even if it belongs to a former topic of this name.

        states: The states to which the offsets belong. The metadata may already contain the id of a newer topic.
        """
        for partition, committed in offsets.items():
            topic_id = self._id_of(partition, states.get(partition))
            self._commits.pop(partition, None)
            if topic_id is not None:
                self._commits[partition] = committed.offset, topic_id
        _forget_oldest(self._commits, self._assignment.partitions)

    def is_of_old_topic(self, state: PartitionState, committed: int) -> bool:
        """Return whether this consumer committed the offset for a topic that has been deleted since then."""
        offset, topic_id = self._commits.get(state.topic_partition, (-1, None))
        present = self._id_of(state.topic_partition, state)
        return offset == committed and present is not None and topic_id != present

    def _id_of(self, partition: TopicPartition, state: PartitionState | None) -> UUID | None:
        """Return the id of the topic to which the position belongs. Without a position, it is the id in the
        metadata."""
        if state is not None and state.topic_id is not None:
            return state.topic_id
        return self._cluster.topic_id(partition.topic)

    def is_replaced(self, state: PartitionState) -> bool:
        """Any thread: return whether the position of a partition belongs to a former topic of the same name."""
        return state.is_of_other_topic(self._cluster.topic_id(state.topic_partition.topic))

    def is_obsolete(self, state: PartitionState) -> bool:
        """Any thread: return whether the topic of a partition has been replaced, or is missing in the metadata.

        The metadata of a broker that has just started can also lack an existing topic for a moment. Use this method
        therefore only for automatic commits, which may leave out offsets.
        """
        topic = state.topic_partition.topic
        if topic not in self._cluster.topics and state.topic_id is None:
            return False  # the metadata is older than the assignment
        return self._cluster.is_missing(topic) or self.is_replaced(state)

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was created after the consumer began to read its subscription."""
        if self._topics is None:
            return False
        known = self._topics.get(partition.topic)
        if known is None:
            return self._are_all
        topic_id = self._cluster.topic_id(partition.topic)
        is_other = None not in (known.topic_id, topic_id) and known.topic_id != topic_id
        return is_other or partition.partition >= known.partitions


def _forget_oldest(known: dict[_K, Any], read: Collection[_K]) -> None:
    """Remove the oldest entries, so that at most MAX_REMEMBERED are left of those that the consumer does not read."""
    if len(known) > MAX_REMEMBERED + len(read):
        for key in [key for key in known if key not in read][:-MAX_REMEMBERED]:
            del known[key]
