# SPDX-License-Identifier: Apache-2.0
"""Committed offsets and members of each consumer group, from ``__consumer_offsets``.

The rule is that of Kafka's OffsetMetadataManager. A commit inside a transaction is pending until the producer's end
marker: COMMIT applies it, unless a later commit in the log was applied to the same partition; ABORT drops it. A
tombstone removes the committed and the pending offset of its partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kcodec._fast import Record
from kcodec.constants import CONSUMER_OFFSETS_TOPIC, NO_PRODUCER_ID, ControlType
from kcodec.log.internal.records import COORDINATOR_RECORDS, InternalRecord, decode_coordinator_record
from kcodec.log.internal.transactions import logs_of
from kcodec.log.partition import Log
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol.messages.group_records import ConsumerGroupMetadataValue, GroupKey, GroupMemberKey
from kcodec.protocol.messages.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from kcodec.protocol.messages.share_records import ShareGroupMetadataValue
from kcodec.protocol.messages.streams_records import StreamsGroupMetadataValue

COLUMNS = ("offset", "timestamp", "key", "value", "producer_id")
# The records that show the protocol of a group, for the newer protocols, and those that name its members.
GROUP_TYPES = {"ConsumerGroupMetadata": "consumer", "ShareGroupMetadata": "share", "StreamsGroupMetadata": "streams"}
MEMBER_RECORDS = {"ConsumerGroupMemberMetadata", "ShareGroupMemberMetadata", "StreamsGroupMemberMetadata"}


@dataclass(frozen=True)
class CommittedOffset(OffsetAndMetadata):
    """A committed offset as recorded in ``__consumer_offsets``.

    offset, leader_epoch, metadata: As committed.
    commit_timestamp, expire_timestamp: Milliseconds; expire_timestamp is None unless the commit set it (version 1).
    topic_id:      Id of the topic; None if the record has none.
    record_offset: Offset of the record.
    """

    commit_timestamp: int = -1
    expire_timestamp: int | None = None
    record_offset: int = -1

    @classmethod
    def of(cls, value: OffsetCommitValue, record_offset: int) -> CommittedOffset:
        """Return the offset committed by a record. value: The message; offset: the offset of the record."""
        return cls(
            offset=value.offset,
            metadata=value.metadata,
            leader_epoch=value.leader_epoch,
            commit_timestamp=value.commit_timestamp,
            expire_timestamp=None if value.expire_timestamp < 0 else value.expire_timestamp,
            topic_id=value.topic_id if value.topic_id.int else None,
            record_offset=record_offset,
        )


@dataclass(frozen=True)
class PendingOffset:
    """A commit inside an open transaction; until that ends, OffsetFetch responds with UNSTABLE_OFFSET_COMMIT.

    topic_partition: The partition. producer_id: Producer of the transaction. committed: The offset.
    """

    producer_id: int
    topic_partition: TopicPartition
    committed: CommittedOffset


@dataclass(frozen=True)
class GroupOffsets(Mapping[TopicPartition, CommittedOffset]):
    """The committed offsets of a group by partition, in order, and its other state.

    group_id:   Name of the group.
    protocol_type: As members of a classic group have set it ("consumer").
    pending:    Commits of open transactions.
    type:       "classic", "consumer", "share" or "streams"; None if only commits are known.
    generation: Generation of a classic group, epoch of the other types.
    members:    Member ids, in order.

    A group exists from its first record on, even if all its commits were aborted, until a tombstone removes it.
    """

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: tuple[PendingOffset, ...] = ()
    type: str | None = None
    protocol_type: str | None = None
    generation: int | None = None
    members: tuple[str, ...] = ()

    def __getitem__(self, topic_partition: TopicPartition) -> CommittedOffset:
        return self.offsets[topic_partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def __hash__(self) -> int:
        return hash((self.group_id, tuple(self.offsets.items()), self.pending))


@dataclass
class _Group:
    """The state of a group while its records are read. `is_there` means that Kafka would list it."""

    is_there: bool = False
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    type: str | None = None
    protocol_type: str | None = None
    generation: int | None = None
    members: dict[str, None] = field(default_factory=dict)


class _Replay:
    """The records of one partition, in order, as the coordinator replays them."""

    def __init__(self) -> None:
        self.groups: defaultdict[str, _Group] = defaultdict(_Group)
        self.pending: dict[int, dict[tuple[str, TopicPartition], CommittedOffset]] = {}

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply an end marker. Of two commits for a partition, the later one in the log counts, whatever the order of
        the markers."""
        for (group_id, topic_partition), committed in self.pending.pop(producer_id, {}).items():
            offsets = self.groups[group_id].offsets
            known = offsets.get(topic_partition)
            if is_commit and (known is None or committed.record_offset > known.record_offset):
                offsets[topic_partition] = committed

    def apply(self, entry: InternalRecord, record_offset: int, producer_id: int) -> None:
        """Apply one record."""
        if isinstance(entry.key, OffsetCommitKey):
            topic_partition = TopicPartition(entry.key.topic, entry.key.partition)
            if not isinstance(entry.value, OffsetCommitValue):
                self._remove(entry.key.group, topic_partition)
                return
            group = self.groups[entry.key.group]
            group.is_there = True
            committed = CommittedOffset.of(entry.value, record_offset)
            if producer_id == NO_PRODUCER_ID:
                group.offsets[topic_partition] = committed
            else:
                self.pending.setdefault(producer_id, {})[entry.key.group, topic_partition] = committed
        elif isinstance(entry.key, GroupMetadataKey):
            self._describe_classic(entry.key.group, entry.value)
        elif isinstance(entry.key, GroupKey) and entry.type in GROUP_TYPES:
            self._describe(entry.key.group_id, GROUP_TYPES[entry.type], entry.value)
        elif isinstance(entry.key, GroupMemberKey) and entry.type in MEMBER_RECORDS:
            members = self.groups[entry.key.group_id].members
            members.pop(entry.key.member_id, None)
            if entry.value is not None:
                members[entry.key.member_id] = None

    def _remove(self, group_id: str, topic_partition: TopicPartition) -> None:
        self.groups[group_id].offsets.pop(topic_partition, None)
        for pending in self.pending.values():
            pending.pop((group_id, topic_partition), None)

    def _describe_classic(self, group_id: str, value: object) -> None:
        group = self.groups[group_id]
        if isinstance(value, GroupMetadataValue):
            group.type, group.protocol_type, group.generation = "classic", value.protocol_type, value.generation
            group.members, group.is_there = {member.member_id: None for member in value.members}, True
        elif group.type in ("classic", None):
            self.groups[group_id] = _Group(offsets=group.offsets)

    def _describe(self, group_id: str, kind: str, value: object) -> None:
        group = self.groups[group_id]
        if isinstance(value, ConsumerGroupMetadataValue | ShareGroupMetadataValue | StreamsGroupMetadataValue):
            group.type, group.protocol_type, group.generation, group.is_there = kind, kind, value.epoch, True
        elif group.type == kind:
            self.groups[group_id] = _Group(offsets=group.offsets)

    def result(self) -> Iterator[GroupOffsets]:
        """Yield the groups that Kafka would list, by name."""
        pending: dict[str, list[PendingOffset]] = {}
        for producer_id, commits in self.pending.items():
            for (group_id, topic_partition), committed in commits.items():
                pending.setdefault(group_id, []).append(PendingOffset(producer_id, topic_partition, committed))
        for group_id, group in sorted(self.groups.items()):
            own = sorted(pending.get(group_id, ()), key=lambda one: one.committed.record_offset)
            if group.is_there:
                yield GroupOffsets(
                    group_id=group_id,
                    offsets=dict(sorted(group.offsets.items())),
                    pending=tuple(own),
                    type=group.type,
                    protocol_type=group.protocol_type,
                    generation=group.generation,
                    members=tuple(sorted(group.members)),
                )


def group_offsets(logs: Log | Iterable[Log], on_error: str = "raise") -> dict[str, GroupOffsets]:
    """Return the committed offsets of each group in partitions of ``__consumer_offsets``, as OffsetFetch would.

    logs: One partition, or several.

    Records that cannot be read are skipped (``internal_record`` describes them). Raise DecodeError for corruption,
    unless on_error is "stop" or "skip". Raise ValueError for a partition of another topic.
    """
    found: dict[str, GroupOffsets] = {}
    for log in logs_of(logs, CONSUMER_OFFSETS_TOPIC):
        replay = _Replay()
        for record, producer_id in _records_of(log, on_error):
            if record.control_type is None:
                entry = decode_coordinator_record(COORDINATOR_RECORDS[CONSUMER_OFFSETS_TOPIC], record.key, record.value)
                if entry.error is None:
                    replay.apply(entry, record.offset, producer_id)
            elif record.control_type in (ControlType.ABORT, ControlType.COMMIT):
                replay.end_transaction(producer_id, is_commit=record.control_type == ControlType.COMMIT)
        found |= {group.group_id: group for group in replay.result()}
    return found


def _records_of(log: Log, on_error: str) -> Iterator[tuple[Record, int]]:
    """Yield every record, including control records, with the producer id of its batch."""
    for decoded in log.to_arrow(COLUMNS, control_records="include", on_error=on_error):
        yield from zip(decoded.records(), decoded.column("producer_id"), strict=True)
