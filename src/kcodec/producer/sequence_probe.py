# SPDX-License-Identifier: Apache-2.0
"""Finding out how much was written, from a broker that forgot: it answers 45 to a repeat of what it has.

A broker recognises a repeat of any of a producer's last five batches in a partition; one that was restarted only of the
last, as its log tells no more. So with several batches written and unanswered, a repeat of the earliest is answered
OUT_OF_ORDER_SEQUENCE_NUMBER, which also means "something before it is missing". Raising the epoch on that, as Java's
producer does, writes all of them a second time.

Sequences are contiguous, so one answer tells the two apart: the batches that may be written are sent again from the
last one downwards, alone, with the numbers and bytes they had. The first that is not refused is the last one written,
or the one after it, and all before it are in the log. If all are refused, none of them is.
"""

from __future__ import annotations

from kcodec.producer.batch import ProducerBatch
from kcodec.producer.queues import PartitionQueue


def begin_probe(queue: PartitionQueue, first: ProducerBatch) -> bool:
    """`first`, the earliest unsettled batch, may be written and was refused with 45. Whether one behind it can tell."""
    queue.refused = [first]
    return lower_probe(queue)


def lower_probe(queue: PartitionQueue) -> bool:
    """Turn to the last batch that may be written and was not refused yet; False: there is none, nothing was written."""
    first = queue.refused[0]
    queue.probe = next(
        (
            batch
            for batch in reversed(queue.batches)
            if batch.uncertain
            and batch.is_numbered
            and batch.identity == first.identity
            and batch.order > first.order
            and batch not in queue.refused
        ),
        None,
    )
    return queue.probe is not None


def take_proved(queue: PartitionQueue, written: ProducerBatch) -> list[ProducerBatch]:
    """A batch was acknowledged: those before it that may be written are, as no broker that knows the producer takes
    one behind a gap; they are taken out of the queue. Under the lock.

    One that certainly was not written among them says that the broker had forgotten the producer and took the batch as
    its first: then nothing is proved.
    """
    earlier = [
        batch
        for batch in queue.batches
        if batch.is_numbered and batch.identity == written.identity and batch.order < written.order
    ]
    if not all(batch.uncertain for batch in earlier):
        return []
    for batch in earlier:
        queue.batches.remove(batch)
    return earlier
