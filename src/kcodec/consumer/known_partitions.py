# SPDX-License-Identifier: Apache-2.0
"""The partitions that existed when a consumer began to read its subscription.

With auto_offset_reset="latest", a consumer begins to read a partition without a committed offset at the end of its log.
A partition that was created later contains only newer records, and the consumer finds it with its next metadata. If
the consumer began at the end of the log, it would skip the records that were written before it found the partition. It
therefore begins at the first record. KIP-1327 describes how Java's consumer loses these records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import PartitionState
from kcodec.offsets import HIGHEST_PARTITION, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode


class _KnownTopic(NamedTuple):
    """A topic.

    topic_id:   Id of the topic, or None if it is unknown.
    partitions: Number of partitions, or 0 if the topic did not exist.
    """

    topic_id: UUID | None
    partitions: int


class KnownPartitions:
    """The topics and partitions that one consumer has found since it subscribed.

    ids: The last known id of each topic from which it has read.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: dict[str, _KnownTopic] | None = None
        #: Whether all topics of the cluster are in `_topics`.
        self._are_all = False
        self.ids: dict[str, UUID] = {}
        #: The last offset that this consumer has committed in a partition, and the id of its topic.
        self._commits: dict[TopicPartition, tuple[int, UUID]] = {}

    def forget(self) -> None:
        """Begin again, for another subscription."""
        self._topics = None

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
        if is_first:
            for name in existing - self._topics.keys():
                self._topics[name] = _KnownTopic(None, HIGHEST_PARTITION + 1)

    def note_commit(self, offsets: Iterable[tuple[TopicPartition, OffsetAndMetadata]]) -> None:
        """Remember offsets that are about to be committed. Brokers store an offset by the name of the topic, even if
        the topic was deleted and created again a moment before."""
        for partition, committed in offsets:
            topic_id = self._cluster.topic_id(partition.topic) or self.ids.get(partition.topic)
            if topic_id is not None:
                self._commits[partition] = committed.offset, topic_id

    def is_of_old_topic(self, partition: TopicPartition, committed: int) -> bool:
        """Return whether this consumer committed the offset for a topic that has been deleted since then."""
        offset, topic_id = self._commits.get(partition, (-1, None))
        present = self._cluster.topic_id(partition.topic)
        return offset == committed and present is not None and topic_id != present

    def is_replaced(self, state: PartitionState) -> bool:
        """Any thread: return whether the position of a partition is that of a topic in whose place another one is."""
        topic_id = self._cluster.topic_id(state.topic_partition.topic)
        return bool(state.topic_ids) and topic_id is not None and topic_id not in state.topic_ids

    def is_obsolete(self, state: PartitionState) -> bool:
        """Any thread: return whether the topic of a partition has been replaced, or is missing in the metadata.

        A topic can also be missing for a moment, in the metadata of a broker that has just started. This is therefore
        only for commits that can be left out, which are the automatic ones.
        """
        topic = self._cluster.topics.get(state.topic_partition.topic)
        is_missing = topic is not None and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return is_missing or self.is_replaced(state)

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
