# SPDX-License-Identifier: Apache-2.0
"""The committed offsets of all groups, and the pending offsets of open transactions (Kafka: OffsetMetadataManager).

An offset of a transaction is pending until the marker of its producer is written. COMMIT applies the offset, unless a
later record of the log has already been applied for the same partition. ABORT drops it. A tombstone removes committed
and pending offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kcodec.broker.groups.group_log import GroupRecord, offset_tombstone
from kcodec.protocol.messages.records import OffsetCommitKey, OffsetCommitValue

PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A committed offset.

    expire_timestamp: -1 if the retention of the broker applies.
    record_offset:    Offset of its record in the log.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    record_offset: int


class OffsetStore:
    """The offsets by group and partition."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[PartitionKey, StoredOffset]] = {}
        # Producer id -> group -> partition.
        self._pending: dict[int, dict[str, dict[PartitionKey, StoredOffset]]] = {}

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None, offset: int, producer_id: int) -> None:
        """Apply a record of the log."""
        partition = key.topic, key.partition
        if value is None:
            committed = self.committed.get(key.group, {})
            committed.pop(partition, None)
            if not committed:
                self.committed.pop(key.group, None)
            for pending in self._pending.values():
                pending.get(key.group, {}).pop(partition, None)
            return
        stored = StoredOffset(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, offset
        )
        groups = self.committed if producer_id < 0 else self._pending.setdefault(producer_id, {})
        groups.setdefault(key.group, {})[partition] = stored

    def end_transaction(self, producer_id: int, *, is_commit: bool, concerns: Callable[[str], bool]) -> None:
        """Apply or drop the pending offsets of a producer, for the groups that belong to the partition of the
        marker."""
        pending = self._pending.get(producer_id, {})
        for group_id in [name for name in pending if concerns(name)]:
            for partition, stored in pending.pop(group_id).items():
                known = self.committed.get(group_id, {}).get(partition)
                if is_commit and (known is None or stored.record_offset > known.record_offset):
                    self.committed.setdefault(group_id, {})[partition] = stored
        if not pending:
            self._pending.pop(producer_id, None)

    def is_pending(self, group_id: str, partition: PartitionKey) -> bool:
        """Return whether an open transaction has an offset for a partition."""
        return any(partition in groups.get(group_id, {}) for groups in self._pending.values())

    def has_open_transaction(self, group_id: str) -> bool:
        """Return whether an open transaction contains offsets of a group."""
        return any(group_id in groups for groups in self._pending.values())

    def tombstones(self, group_id: str, partitions: Iterator[PartitionKey]) -> list[GroupRecord]:
        """Return the records that remove the offsets of these partitions, as far as they exist: first the committed
        offsets."""
        known = self.committed.get(group_id, {})
        return [
            offset_tombstone(group_id, topic, number)
            for topic, number in sorted(partitions, key=lambda one: (one not in known, one))
            if (topic, number) in known or self.is_pending(group_id, (topic, number))
        ]

    def all_partitions(self, group_id: str) -> Iterator[PartitionKey]:
        """Iterate over the partitions of a group with committed or pending offsets."""
        pending = [groups.get(group_id, {}) for groups in self._pending.values()]
        yield from dict.fromkeys(key for keys in (self.committed.get(group_id, {}), *pending) for key in keys)

    def group_ids(self) -> list[str]:
        """Return the groups with committed or pending offsets."""
        pending = (group_id for groups in self._pending.values() for group_id in groups)
        return list(dict.fromkeys((*self.committed, *pending)))

    def forget(self) -> None:
        """Forget all offsets."""
        self.committed.clear()
        self._pending.clear()
