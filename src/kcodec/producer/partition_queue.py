# SPDX-License-Identifier: Apache-2.0
"""The batches of one partition that are not in flight, the sender's state of the partition, and the sequence probe.

The sequence probe finds out how much was written when a broker has lost the state of a producer: it then responds to a
repeat of a written batch with OUT_OF_ORDER_SEQUENCE_NUMBER. A broker recognizes a repeat of any of a producer's last
five batches in a partition; after a restart only of the last one, as its log records no more. So with several batches
written and no response, the response to a repeat of the earliest is that error, which also means "something before it
is missing". Bumping the epoch on it, as Java's producer does, writes all of them a second time.

Sequence numbers are contiguous, so one response distinguishes the two cases: the batches that may be written are sent
again from the last one downwards, alone, with the same numbers and bytes. The first that is not rejected is the last
one written, or the one after it, and all before it are in the log. If all are rejected, none of them is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kcodec._fast import PartitionSlot
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.identity import NO_PRODUCER

if TYPE_CHECKING:
    import uuid


@dataclass(eq=False, slots=True)
class PartitionQueue(PartitionSlot):
    """The batches of a partition, oldest first.

    User threads touch `open` and `batches`, under the accumulator's lock; the rest belongs to the I/O thread.

    open:          the last batch, if records may still be appended to it.
    grown_bytes:   what `batches` may take beyond `batch_size`.
    in_flight:     batches whose request is under way, oldest first.
    identity, next_sequence:  what the next batch is numbered with; meaningless without an identity.
    is_proved:     a batch was acknowledged since the identity, the leader or the topic changed, and nothing failed
                   since: only then may a second batch follow before the response to the first one.
    must_renumber: nothing is sent until nothing is in flight; then the kept batches get new numbers. Either because
                   the identity must change (bump_from is the old one), or because a batch that was certainly not
                   written failed, so that those behind it begin at its rollback_sequence.
    probe, refused: the batch that goes next although others are before it, and those that were refused before it.
    node:          where its last batch went.
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
    probe: ProducerBatch | None = None
    refused: list[ProducerBatch] = field(default_factory=list)
    node: int | None = None
    topic_id: uuid.UUID | None = None

    @property
    def next_batch(self) -> ProducerBatch:
        """The next batch to send; there must be one."""
        return self.batches[0] if self.probe is None else self.probe

    def put_back(self, batch: ProducerBatch) -> None:
        """Put a batch that is to be sent again in its old position."""
        at = 0
        while at < len(self.batches) and self.batches[at].order < batch.order:
            at += 1
        self.batches.insert(at, batch)

    # The sequence probe

    def begin_probe(self, first: ProducerBatch) -> bool:
        """Start a probe after `first`, the earliest unfinished batch, may be written and was rejected as out of order.
        Return whether there is a batch after it to probe with."""
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
        """Remove the batches before an acknowledged one that may be written: they are, as no broker that knows the
        producer accepts a batch after a gap. Under the lock.

        If one of them was certainly not written, the broker had forgotten the producer and accepted the batch as its
        first. Then nothing is proved.
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
