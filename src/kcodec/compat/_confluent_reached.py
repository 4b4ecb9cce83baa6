# SPDX-License-Identifier: Apache-2.0
"""The offsets that the consumer of kcodec.compat.confluent has reached in each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

from kcodec import Record
from kcodec.compat._confluent_places import Offsets
from kcodec.offsets import OffsetAndMetadata, TopicPartition


class ReachedOffsets:
    """The offsets after the messages of one consumer.

    While `consume` collects messages, they do not count yet, because the program does not have them.

    stores:    Whether a returned message is included in the next commit without arguments.
    stored:    The offsets for the next commit without arguments.
    positions: The offsets after the last messages, and after the markers that a later `poll` has passed.
    ends:      The end of each partition that was reported last (_PARTITION_EOF).
    """

    def __init__(self, *, stores: bool) -> None:
        self.stores = stores
        self.stored: Offsets = {}
        self.positions: Offsets = {}
        self.ends: dict[TopicPartition, int] = {}
        #: During `consume`: the messages that it has taken, and the offsets after them.
        self._taken: tuple[list[Any], Offsets] | None = None

    def delivered(self, record: Record) -> None:
        """Note the last record of a partition that was returned to the program, or that `consume` has taken."""
        partition = TopicPartition(record.topic, record.partition)  # type: ignore[arg-type]
        epoch = record.leader_epoch
        reached = OffsetAndMetadata(record.offset + 1, "", -1 if epoch is None else epoch)
        if self._taken is not None:
            self._taken[1][partition] = reached
        else:
            self._move(partition, reached)

    def passed(self, markers: Offsets) -> None:
        """Move positions past markers and aborted records that follow the last messages. As with librdkafka, the
        offsets for the next commit without arguments also move."""
        for partition, reached in markers.items():
            known = self.positions.get(partition)
            if known is None or reached.offset > known.offset:
                self._move(partition, reached)

    def _move(self, partition: TopicPartition, reached: OffsetAndMetadata) -> None:
        self.positions[partition] = reached
        if self.stores:
            self.stored[partition] = reached

    @contextmanager
    def taking(self, messages: list[Any]) -> Iterator[None]:
        """Let the messages that are appended to this list count at the end of the block, unless an exception ends
        it."""
        self._taken = messages, {}
        try:
            yield
            taken = self._taken[1]
        finally:
            self._taken = None
        for partition, reached in taken.items():
            self._move(partition, reached)

    def drop_taken(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Drop the messages of these partitions that `consume` has taken."""
        if self._taken is None:
            return
        messages, offsets = self._taken
        messages[:] = [one for one in messages if (one.topic(), one.partition()) not in partitions]
        for one in partitions:
            offsets.pop(one, None)

    def sought(self, partition: TopicPartition) -> None:
        """Note that the consumer continues at another offset. What is stored for the next commit stays."""
        self.positions.pop(partition, None)
        self.ends.pop(partition, None)
        if self._taken is not None:
            self._taken[1].pop(partition, None)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all offsets of these partitions."""
        for one in partitions:
            self.stored.pop(one, None)
            self.sought(one)

    def committed(self, offsets: Offsets) -> None:
        """Leave these offsets out of the next commit, unless the consumer has moved since."""
        for partition, offset in offsets.items():
            if self.stored.get(partition) == offset:
                del self.stored[partition]
