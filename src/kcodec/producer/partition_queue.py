# SPDX-License-Identifier: Apache-2.0
"""The batches of one partition that are not in flight, the sender's state of the partition, and the sequence probe.

A broker recognizes a repeat of any of the last five batches of a producer in a partition. After a restart, it
recognizes only a repeat of the last batch, because its log contains no more. If several batches were written without a
response, the broker then responds to a repeat of the earliest batch with OUT_OF_ORDER_SEQUENCE_NUMBER. This error also
means that an earlier batch is missing. Java's producer bumps the epoch after this error, and writes all of these
batches a second time. The sequence probe finds out which of them were written.

The batches that may be written are sent again one by one, from the last one backwards, with the same numbers and bytes.
Sequence numbers are contiguous. The first batch that the broker accepts is therefore the last one that was written, or
the one after it, and all earlier batches are in the log. If all batches are rejected, none was written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kcodec._fast import PartitionSlot
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.identity import NO_PRODUCER

if TYPE_CHECKING:
    import uuid


@dataclass(eq=False, slots=True)
class PartitionQueue(PartitionSlot):
    """The batches of a partition, oldest first.

    User threads use `open` and `batches`, under the accumulator's lock. All other attributes belong to the I/O thread.

    open:          The last batch, if records may still be appended to it.
    grown_bytes:   Bytes by which `batches` may exceed `batch_size`.
    in_flight:     Batches whose request is in flight, oldest first.
    identity, next_sequence: Numbers of the next batch; meaningless without an identity.
    is_proved:     Whether a batch was acknowledged since the identity, the leader or the topic changed, and nothing has
                   failed since. Only then may a second batch be sent before the response to the first one.
    must_renumber: Whether the kept batches get new numbers as soon as no request is in flight; until then, nothing is
                   sent. Either the identity must change (`bump_from` is the old one), or a batch failed that was
                   certainly not written, so that later batches begin at its `rollback_sequence`.
    lost:          Identity and order of the last batch that failed although it may still be written.
    probe, refused: The batch that a probe sends next, although it is not the first one, and the batches refused before.
    node:          The broker to which its last batch was sent.
    """

    partition: TopicPartition
    batches: deque[ProducerBatch] = field(default_factory=deque)
    next_order: int = 0
    grown_bytes: int = 0
    in_flight: list[ProducerBatch] = field(default_factory=list)
    identity: ProducerIdAndEpoch = NO_PRODUCER
    next_sequence: int = 0
    is_proved: bool = False
    must_renumber: bool = False
    bump_from: ProducerIdAndEpoch | None = None
    rollback_sequence: int = -1
    lost: tuple[ProducerIdAndEpoch, tuple[int, ...]] | None = None
    probe: ProducerBatch | None = None
    refused: list[ProducerBatch] = field(default_factory=list)
    node: int | None = None
    topic_id: uuid.UUID | None = None

    @property
    def next_batch(self) -> ProducerBatch:
        """The next batch to send; there must be one."""
        return self.batches[0] if self.probe is None else self.probe

    def put_back(self, batch: ProducerBatch) -> None:
        """Return a batch to its position in the queue, to be sent again."""
        at = 0
        while at < len(self.batches) and self.batches[at].order < batch.order:
            at += 1
        self.batches.insert(at, batch)

    def note_lost(self, batch: ProducerBatch) -> None:
        """Note a batch that failed although it may still be written, so that its sequence numbers are not used
        again."""
        if not self.is_before_lost(batch):
            self.lost = batch.identity, batch.order

    def is_before_lost(self, batch: ProducerBatch) -> bool:
        """Return whether such a batch with the same identity follows this one."""
        return self.lost is not None and self.lost[0] == batch.identity and batch.order < self.lost[1]

    # The sequence probe

    def begin_probe(self, first: ProducerBatch) -> bool:
        """Start a probe. `first` is the earliest unfinished batch, which may be written and was rejected as out of
        order. Return whether there is a later batch for the probe."""
        self.refused = [first]
        return self.lower_probe()

    def lower_probe(self) -> bool:
        """Select the last batch that may be written and was not rejected yet. Return False if nothing was written."""
        first = self.refused[0]
        self.probe = next(
            (
                batch
                for batch in reversed(self.batches)
                if batch.uncertain
                and batch.is_numbered
                and batch.identity == first.identity
                and batch.order > first.order
                and batch not in self.refused
            ),
            None,
        )
        return self.probe is not None

    def forget_probe(self) -> None:
        """Discard the results of the probe: the leader, the topic or the identity has changed."""
        self.probe, self.refused = None, []

    def take_proved(self, written: ProducerBatch) -> list[ProducerBatch]:
        """Remove the batches before an acknowledged batch that may be written. They are written, because a broker that
        knows the producer accepts no batch after a gap. The caller holds the lock.

        If one of them was certainly not written, the broker had lost the state of the producer and accepted the batch
        as the first one. Nothing is proved then.
        """
        earlier = [
            batch
            for batch in self.batches
            if batch.is_numbered and batch.identity == written.identity and batch.order < written.order
        ]
        if not all(batch.uncertain for batch in earlier):
            return []
        for batch in earlier:
            self.batches.remove(batch)
        return earlier
