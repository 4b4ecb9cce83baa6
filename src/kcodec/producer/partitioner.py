# SPDX-License-Identifier: Apache-2.0
"""The partitions of a topic and the choice of one for a record, as in Java's producer (BuiltInPartitioner; KIP-480,
KIP-794).

A record with a key goes to the partition that murmur2 of the key selects. Records without a key go to one partition
until it has received `batch_size` bytes, so that batches fill up. The next partition is drawn at random, weighted by
queue length if adaptive partitioning is on, and never one without a leader while another has one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec._fast import partition_for
from kcodec.errors import EncodeError
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.partition_queue import PartitionQueue

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kcodec.producer.options import ProducerSettings


def draw_partition(queue_sizes: Sequence[int], available: Sequence[int], random: Callable[[], float]) -> int:
    """Draw a partition from `available` (numbers of partitions), weighted by the length of its queue.

    queue_sizes: waiting batches, one entry for each of `available`. The weight of a partition is the longest queue plus
    one, minus its own (BuiltInPartitioner.updatePartitionLoadStats).
    """
    longest = max(queue_sizes)
    weights = list(accumulate(longest + 1 - size for size in queue_sizes))
    return available[min(bisect_right(weights, random() * weights[-1]), len(available) - 1)]


class WaitingRecord(NamedTuple):
    """A record whose topic's metadata is not known yet; `placeholder` represents its batch."""

    placeholder: ProducerBatch
    key: Buffer | None
    value: Buffer | None
    headers: Any
    partition: int | None
    timestamp: int


class TopicBuffer:
    """A topic's queues by partition number, empty before its metadata is known, and the records that wait for it.

    sticky_queue: the current partition of records without a key; it exists as soon as there are queues.
    is_requested: whether the sender requested the metadata.
    random: 0 <= random() < 1. Used under the accumulator's lock.
    """

    __slots__ = (
        "_ignore_keys", "_is_adaptive", "_random", "_sticky_bytes", "_sticky_limit", "has_leader", "is_requested",
        "queues", "sticky_queue", "topic", "waiting",
    )  # fmt: skip

    def __init__(self, topic: str, settings: ProducerSettings, random: Callable[[], float]) -> None:
        self.topic = topic
        self.queues: list[PartitionQueue] = []
        self.has_leader: Sequence[bool] = ()
        self.sticky_queue: PartitionQueue
        self.waiting: deque[WaitingRecord] = deque()
        self.is_requested = False
        self._ignore_keys = settings.ignore_keys
        self._is_adaptive = settings.adaptive_partitioning
        self._random = random
        self._sticky_bytes = 0
        self._sticky_limit = max(settings.batch_size, 1)

    def update(self, has_leader: Sequence[bool]) -> None:
        """Apply the topic's metadata, one entry for each partition.

        Fewer partitions than before belong to another topic of this name; batches for a partition that no longer exists
        end at their deadline.
        """
        is_new = not self.queues
        self.has_leader = has_leader
        del self.queues[len(has_leader) :]
        for number in range(len(self.queues), len(has_leader)):
            self.queues.append(PartitionQueue(TopicPartition(self.topic, number)))
        if self.queues and (is_new or self.sticky_queue.partition.partition >= len(self.queues)):
            self._change_sticky()

    def queue_for(self, key: Buffer | None, partition: int | None) -> PartitionQueue:
        """Return the queue that a record goes to. Raise EncodeError if the topic does not have the partition."""
        if partition is None:
            if key is not None and not self._ignore_keys:
                return self.queues[partition_for((key,), len(self.queues))[0]]  # type: ignore[index]
            return self.sticky_queue
        count = len(self.queues)
        if 0 <= partition < count:
            return self.queues[partition]
        reason = f"topic {self.topic!r}: partition must be between 0 and {count - 1}"
        raise EncodeError(
            f"{reason}, not {partition!r}; omit it to let the key decide", field="partition", value=partition
        )

    def batch_closed(self, queue: PartitionQueue, produced: int) -> None:
        """Note that a batch of this size accepts no more records; choose another sticky partition if it is time."""
        if queue is self.sticky_queue:
            self._sticky_bytes += produced
            if self._sticky_bytes >= self._sticky_limit and self.queues:
                self._change_sticky()

    def _change_sticky(self) -> None:
        """Draw the next partition for records without a key."""
        available = [number for number, led in enumerate(self.has_leader) if led] or list(range(len(self.has_leader)))
        sizes = [len(self.queues[number].batches) if self._is_adaptive else 0 for number in available]
        self._sticky_bytes = 0
        self.sticky_queue = self.queues[draw_partition(sizes, available, self._random)]
