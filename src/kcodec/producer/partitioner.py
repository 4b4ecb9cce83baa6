# SPDX-License-Identifier: Apache-2.0
"""The partitions of a topic and the choice of one for a record, as in Java's producer (BuiltInPartitioner; KIP-480,
KIP-794).

A record with a key goes to the partition that murmur2 of the key selects; `key_hashes` has the other choices. Records
without a key go to one partition until it has received `batch_size` bytes, so that batches fill up. The next partition
is drawn at random, weighted by queue length if adaptive partitioning is on, and never one without a leader while
another has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec._fast import TopicSlot, partition_for
from kcodec.errors import EncodeError
from kcodec.integers import shown
from kcodec.offsets import TopicPartition
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.key_hashes import key_partition_of
from kcodec.producer.partition_queue import PartitionQueue

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kcodec.producer.options import ProducerSettings


def draw_partition(queue_sizes: Sequence[int], available: Sequence[int], random: Callable[[], float]) -> int:
    """Draw a partition from `available` (numbers of partitions), weighted by the length of its queue.

    queue_sizes: Number of waiting batches for each item of `available`. A larger batch counts as several of
    `batch_size`.

    The weight of a partition is the length of the longest queue plus one, minus the length of its own queue
    (BuiltInPartitioner.updatePartitionLoadStats).
    """
    most = max(queue_sizes) + 1
    left = random() * (most * len(queue_sizes) - sum(queue_sizes))
    for number, size in zip(available, queue_sizes, strict=True):
        left -= most - size
        if left < 0:
            return number
    return available[-1]


class WaitingRecord(NamedTuple):
    """A record whose topic's metadata is not known yet; `placeholder` represents its batch."""

    placeholder: ProducerBatch
    key: Buffer | None
    value: Buffer | None
    headers: Any
    partition: int | None
    timestamp: int


class TopicBuffer(TopicSlot):
    """A topic's queues by partition number, empty before its metadata is known, and the records that wait for it.

    It is used under the accumulator's lock.

    sticky_queue: Queue of the current partition for records without a key; None before there are queues.
    is_requested: Whether the sender has requested the metadata.
    most_bytes:   Maximum size before compression to which a batch may grow: less than the size that the topic
                  has refused.
    available:    Partitions that have a leader, or all partitions if none has.
    random:       Function that returns a random number from 0 to below 1.
    """

    __slots__ = (
        "_ignore_keys", "_is_adaptive", "_key_partition", "_known_queues", "_random", "_sticky_bytes", "_sticky_limit",
        "available", "is_requested", "most_bytes", "topic", "waiting",
    )  # fmt: skip

    queues: list[PartitionQueue]
    sticky_queue: PartitionQueue

    def __init__(self, topic: str, settings: ProducerSettings, random: Callable[[], float]) -> None:
        self.topic = topic
        self.waiting: deque[WaitingRecord] = deque()
        self.is_requested = False
        # Records that do not compress become larger by their codec, and brokers by default take what a request holds.
        self.most_bytes = settings.max_request_size - settings.max_request_size // 64
        self.available: list[int] = []
        #: The queues of all partitions that the topic has had.
        self._known_queues: list[PartitionQueue] = []
        self._ignore_keys = settings.ignore_keys
        self._key_partition = key_partition_of(settings.partitioner)
        self._is_adaptive = settings.adaptive_partitioning
        self._random = random
        self._sticky_bytes = 0
        self._sticky_limit = max(settings.batch_size, 1)

    def update(self, has_leader: Sequence[bool]) -> None:
        """Apply the topic's metadata, one entry for each partition.

        If there are fewer partitions than before, the topic was created again, or the broker lags behind. The sender
        decides which (`Sender.take_up_metadata`). If the partition exists again later, its sequence numbers continue.
        With numbers from 0 on, a broker would take the first batches for repeats, acknowledge them, and not write them.
        """
        is_new = not self.queues
        self.available = [number for number, led in enumerate(has_leader) if led] or list(range(len(has_leader)))
        for number in range(len(self._known_queues), len(has_leader)):
            self._known_queues.append(PartitionQueue(TopicPartition(self.topic, number)))
        self.queues[:] = self._known_queues[: len(has_leader)]
        if self.queues and (is_new or self.sticky_queue.partition.partition >= len(self.queues)):
            self._change_sticky()

    @property
    def missing_queues(self) -> list[PartitionQueue]:
        """The queues of partitions that the topic had before, and that the metadata does not contain now."""
        return self._known_queues[len(self.queues) :]

    def queue_for(self, key: Buffer | None, partition: int | None) -> PartitionQueue:
        """Return the queue for a record. Raise EncodeError if the topic does not have the partition, or if the
        key is needed for the choice and is invalid."""
        if partition is None and self._key_partition is not None:
            partition = self._key_partition(key, len(self.queues))
            if partition is None:
                return self.sticky_queue
        if partition is None:
            if key is not None and not self._ignore_keys:
                try:
                    number = partition_for((key,), len(self.queues))[0]
                except (TypeError, EncodeError):
                    raise _invalid_key(key) from None
                return self.queues[number]  # type: ignore[index]
            return self.sticky_queue
        count = len(self.queues)
        if 0 <= partition < count:
            return self.queues[partition]
        reason = f"topic {self.topic!r}: partition must be between 0 and {count - 1}"
        again = ", or send it again if the partition was just added" if partition >= 0 else ""
        raise EncodeError(
            f"{reason}, not {shown(partition)}; omit it to let the key decide{again}",
            field="partition",
            value=partition,
        )

    def batch_filled(self, queue: PartitionQueue, produced: int) -> None:
        """Count bytes of a batch of the partition. Choose another sticky partition if it has received enough."""
        if queue is self.sticky_queue:
            self._sticky_bytes += produced
            if self._sticky_bytes >= self._sticky_limit and self.queues:
                self._change_sticky()

    def _change_sticky(self) -> None:
        """Draw the next partition for records without a key."""
        available, limit = self.available, self._sticky_limit
        sizes = [
            len(queue.batches) + queue.grown_bytes // limit if self._is_adaptive else 0
            for queue in map(self.queues.__getitem__, available)
        ]
        self._sticky_bytes = 0
        self.sticky_queue = self.queues[draw_partition(sizes, available, self._random)]


def _invalid_key(key: object) -> EncodeError:
    """Return the error that the encoder raises for an invalid key."""
    advice = ": encode it, as by .encode()" if isinstance(key, str) else ""
    reason = f"key must be bytes or None, not {type(key).__name__}{advice}"
    if isinstance(key, memoryview):
        reason = "key must be a contiguous memoryview that is not released: pass a copy, bytes(...)"
    return EncodeError(reason, field="key", value=key)
