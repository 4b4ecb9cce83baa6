# SPDX-License-Identifier: Apache-2.0
"""To which partition a record goes, as Java's producer decides (BuiltInPartitioner; KIP-480, KIP-794).

A record with a key goes where murmur2 of the key says. Records without one stick to one partition until `batch_size`
bytes went there, so that batches fill up; the next one is drawn at random, by how short its queue is where adaptive
partitioning is on, and never one without a leader while another has one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate


def draw_partition(queue_sizes: Sequence[int], available: Sequence[int], random: Callable[[], float]) -> int:
    """A partition out of `available` (numbers of partitions), by how short its queue is.

    queue_sizes: batches that wait, one entry for each of `available`. The likelihood of one is the longest queue plus
    one, less its own (BuiltInPartitioner.updatePartitionLoadStats).
    """
    longest = max(queue_sizes)
    weights = list(accumulate(longest + 1 - size for size in queue_sizes))
    return available[min(bisect_right(weights, random() * weights[-1]), len(available) - 1)]


class StickyPartition:
    """The partition that records without a key go to at the moment.

    batch_size: bytes after which it changes. adaptive: short queues are drawn more often.
    random: 0 <= random() < 1. Not safe for threads: the accumulator asks under its lock.
    """

    __slots__ = ("_adaptive", "_batch_size", "_produced", "_random", "partition")

    def __init__(self, batch_size: int, adaptive: bool, random: Callable[[], float]) -> None:
        self._batch_size = max(batch_size, 1)
        self._adaptive = adaptive
        self._random = random
        self._produced = 0
        self.partition = -1

    def batch_closed(self, partition: int, produced: int) -> bool:
        """A batch was closed with so many bytes; whether it is time for another partition."""
        if partition != self.partition:
            return False
        self._produced += produced
        return self._produced >= self._batch_size

    def change(self, queue_sizes: Sequence[int], has_leader: Sequence[bool]) -> None:
        """Draw the next partition; both arguments hold one entry a partition, queue_sizes the batches that wait."""
        available = [number for number, led in enumerate(has_leader) if led] or list(range(len(has_leader)))
        sizes = [queue_sizes[number] if self._adaptive else 0 for number in available]
        self._produced = 0
        self.partition = draw_partition(sizes, available, self._random)
