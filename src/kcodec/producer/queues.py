# SPDX-License-Identifier: Apache-2.0
"""What the accumulator and the sender know of a topic and of each of its partitions. User threads touch `open`,
`batches` and the waiting records, under the accumulator's lock; the rest belongs to the loop's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.identity import NO_PRODUCER
from kcodec.producer.partitioner import StickyPartition

if TYPE_CHECKING:
    import uuid

    from typing_extensions import Buffer


class PartitionQueue:
    """The batches of one partition that are not in flight, oldest first, and what the sender knows of the partition.

    open:          the last batch, if records may still be appended to it.
    in_flight:     batches whose request is under way, oldest first.
    identity, next_sequence:  what the next batch is numbered with; meaningless without an identity.
    is_proved:     a batch was acknowledged since the identity, the leader or the topic changed, and nothing failed
                   since: only then may a second batch follow before the first one's answer (shared-transaction rule 3).
    must_renumber: nothing is sent before nothing is in flight; then the kept batches get new numbers. Either because
                   the identity must change (bump_from is the old one), or because a batch that was certainly not
                   written failed, so that those behind it begin at its rollback_sequence.
    probe, refused: the batch that goes next although others stand before it, and those that were refused before it
                   (`kcodec.producer.sequence_probe`).
    node:          where its last batch went.
    """

    __slots__ = (
        "batches", "bump_from", "identity", "in_flight", "is_proved", "must_renumber", "next_order", "next_sequence",
        "node", "open", "partition", "probe", "refused", "rollback_sequence", "topic_id",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.next_order = 0
        self.in_flight: list[ProducerBatch] = []
        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.next_sequence = 0
        self.is_proved = False
        self.must_renumber = False
        self.bump_from: ProducerIdAndEpoch | None = None
        self.rollback_sequence = -1
        self.probe: ProducerBatch | None = None
        self.refused: list[ProducerBatch] = []
        self.node: int | None = None
        self.topic_id: uuid.UUID | None = None

    @property
    def next_batch(self) -> ProducerBatch:
        """What goes out next; there must be a batch."""
        return self.batches[0] if self.probe is None else self.probe

    def forget_probe(self) -> None:
        """What was found out does not hold any more: another leader, another topic, another identity."""
        self.probe, self.refused = None, []

    def put_back(self, batch: ProducerBatch) -> None:
        """A batch to be sent again takes its old place."""
        at = 0
        while at < len(self.batches) and self.batches[at].order < batch.order:
            at += 1
        self.batches.insert(at, batch)


class TopicBuffer:
    """A topic's queues by partition number, none before its metadata is known, and the records that wait for that."""

    __slots__ = ("has_leader", "is_asked_for", "queues", "sticky", "sticky_queue", "topic", "waiting")

    def __init__(self, topic: str, sticky: StickyPartition) -> None:
        self.topic = topic
        self.queues: list[PartitionQueue] = []
        self.has_leader: Sequence[bool] = ()
        self.sticky = sticky
        self.sticky_queue: PartitionQueue  # there is one as soon as there are queues
        self.waiting: deque[WaitingRecord] = deque()
        self.is_asked_for = False

    def change_sticky(self) -> None:
        """Draw the next partition for records without a key."""
        self.sticky.change([len(queue.batches) for queue in self.queues], self.has_leader)
        self.sticky_queue = self.queues[self.sticky.partition]


class WaitingRecord(NamedTuple):
    """A record whose topic's metadata is awaited; `holder` stands in for its batch."""

    holder: ProducerBatch
    key: Buffer | None
    value: Buffer | None
    headers: Any
    partition: int | None
    timestamp: int
