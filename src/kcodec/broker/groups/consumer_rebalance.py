# SPDX-License-Identifier: Apache-2.0
"""The steps that requests of both protocols share in a group of the consumer protocol (KIP-848).

A request of a member can cause records for a changed subscription, for the next epoch of the group, for the target
assignment, and for the next step of the member towards it. These records are appended as one batch. They are applied as
in a replay of the log, so the state in memory is the same as in the log. If the last member of the consumer protocol is
removed, and group_consumer_migration_policy allows it, the group becomes a classic group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kcodec.broker.api import ApiError, RequestContext
from kcodec.broker.authorizer.acls import Operation, ResourceType
from kcodec.broker.groups.classic_group import ClassicGroup
from kcodec.broker.groups.consumer_group import ConsumerGroup, ConsumerMember, MemberState
from kcodec.broker.groups.conversion import to_classic_group
from kcodec.broker.groups.group_log import (
    GroupRecord,
    Target,
    group_epoch_record,
    member_tombstones,
    pattern_record,
    pattern_tombstone,
    target_epoch_record,
    target_record,
)
from kcodec.broker.groups.reconciliation import Reported, reconcile
from kcodec.broker.groups.server_assignors import SERVER_ASSIGNORS, AssignedMember
from kcodec.broker.groups.table import GroupTable
from kcodec.broker.groups.topic_patterns import matching_topics
from kcodec.broker.internal_topics import hash_map_order
from kcodec.protocol.error_codes import ErrorCode

DEFAULT_SERVER_ASSIGNOR = "uniform"


def preferred_assignor(members: Iterable[ConsumerMember]) -> str:
    """Return the assignor that most members have selected. If it changes, the group begins a new epoch."""
    votes = [one.server_assignor for one in members if one.server_assignor is not None]
    return max(votes, key=votes.count) if votes else DEFAULT_SERVER_ASSIGNOR


def metadata_hash(topics: Mapping[str, int]) -> int:
    """Return a 64-bit hash of the subscribed topics and their numbers of partitions. Return 0 if there are no topics.

    Kafka computes another value. A Kafka broker that reads this log therefore begins one additional epoch.
    """
    if not topics:
        return 0
    text = "\0".join(f"{name}\0{count}" for name, count in sorted(topics.items()))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def _described(context: RequestContext, names: list[str]) -> list[str]:
    """Return the names of the topics that the client may describe."""
    client, authorizer = context.connection, context.connection.authorizer
    if authorizer is None:
        return names
    return [one for one in names if authorizer.allows(client, Operation.DESCRIBE, ResourceType.TOPIC, one)]


@dataclass(slots=True, eq=False)
class MemberUpdate:
    """The changes that a request of a member makes to a group.

    group:   The group before the request.
    before:  The member before the request. A new member has no subscription.
    after:   The member with the subscription of the request.
    records: The records of the request so far. They are not in the log yet.
    """

    group: ConsumerGroup
    before: ConsumerMember
    after: ConsumerMember
    records: list[GroupRecord] = field(default_factory=list)

    def subscribe(self, after: ConsumerMember) -> None:
        """Set `after`. If the subscription has changed or the member is new, add its record."""
        self.after = after
        if after != self.before or after.member_id not in self.group.members:
            self.records.append(after.subscription_record(self.group.group_id))

    @property
    def members(self) -> dict[str, ConsumerMember]:
        """The members of the group after the request."""
        instance_id = self.after.instance_id
        others = {
            key: one
            for key, one in self.group.members.items()
            if one.instance_id is None or one.instance_id != instance_id
        }
        return others | {self.after.member_id: self.after}


class ConsumerRebalance:
    """Epochs, target assignments, timers and the removal of members.

    adopt: Function that the coordinator sets. It is called with a group that has become a classic group, and with
           whether the group must rebalance.
    """

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._settings = table.settings
        self.adopt: Callable[[ClassicGroup, bool], None] = lambda group, rebalances: None

    # Members

    def check_size(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raise ApiError (GROUP_MAX_SIZE_REACHED) if the member is new and the group is full."""
        largest = self._settings.group_consumer_max_size
        is_known = member_id in group.members or group.static_member(instance_id) is not None
        if len(group.members) >= largest and not is_known:
            text = f"The consumer group has reached its maximum capacity of {largest} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def replace_static(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, records: list[GroupRecord]
    ) -> MemberUpdate:
        """Return the update of a static member that joins again with a new member id.

        records: Earlier records of the request.
        """
        new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        replacement = [
            *member_tombstones(group.group_id, old.member_id),
            new.subscription_record(group.group_id),
            target_record(group.group_id, member_id, group.target.get(old.member_id, {})),
            new.current_record(group.group_id),
        ]
        replaced = group.copy()
        for record in replacement:
            replaced.apply(record.key, record.value)
        return MemberUpdate(replaced, new, new, records + replacement)

    # Epochs and targets

    def next_epoch(self, context: RequestContext, update: MemberUpdate, *, is_classic: bool = False) -> int:
        """Return the epoch of the group after the request. If subscriptions, topics or the assignor have changed, this
        is the next epoch, and its record is added to the update.

        is_classic: Whether the request is a JoinGroup. If such a request replaces a regular expression, a new epoch
                    begins even if the expression was not resolved yet.
        """
        group, member, updated, members = update.group, update.before, update.after, update.members
        assignors = [preferred_assignor(found.values()) for found in (group.members, members)]
        needs_epoch = updated.topics != member.topics or assignors[0] != assignors[1]
        if updated.pattern != member.pattern:
            update.records += self._drop_patterns(group, members)
            needs_epoch |= is_classic or updated.pattern in group.patterns or member.pattern in group.patterns
        if any(one.pattern for one in members.values()):
            names = {topic.name for topic in self._table.host.topics}
            if updated.pattern not in {"", *group.patterns} or names != group.matched_names:
                self._table.host.clock.call_later(0, lambda: self.resolve_patterns(group.group_id, context))
        known_hash = self.metadata_hash(group, members.values())
        if not needs_epoch and known_hash == group.metadata_hash:
            return group.epoch
        update.records.append(group_epoch_record(group.group_id, group.epoch + 1, known_hash))
        return group.epoch + 1

    def metadata_hash(self, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> int:
        """Return the hash of the topics that these members subscribe to."""
        names = frozenset().union(*(group.topics_of(one) for one in members))
        found = ((name, self._table.host.topics.get(name)) for name in names)
        return metadata_hash({name: len(topic.partitions) for name, topic in found if topic is not None})

    def advance(self, update: MemberUpdate, epoch: int, reported: Reported) -> ConsumerMember:
        """Return the member after its next step towards the target assignment. If the epoch of the group has no target
        assignment yet, and the interval between two assignments has passed, compute the target assignment first."""
        group, updated = update.group, update.after
        target_epoch, target = group.assignment_epoch, self.target(update)
        interval = self._table.group_setting(group.group_id, "consumer.assignment.interval.ms")
        waited = self._table.now_ms() - group.assigned_ms  # negative if the clock of the machine was set back
        is_due = not 0 <= waited < interval
        if epoch > target_epoch and is_due:
            target_epoch = epoch
            target = self._assign(update, epoch)[updated.member_id]
        return self.step(update, target_epoch, target, reported)

    @staticmethod
    def target(update: MemberUpdate) -> Target:
        """Return the current target assignment of the member.

        Kafka looks up the target of a static member by its instance id. A known member that sends an instance id for
        the first time therefore gets no partitions until the next assignment (ModernGroup.targetAssignment).
        """
        instance_id = update.after.instance_id
        if instance_id is not None and instance_id not in update.group.static_members:
            return {}
        return update.group.target.get(update.before.member_id, {})

    @staticmethod
    def step(update: MemberUpdate, target_epoch: int, target: Target, reported: Reported) -> ConsumerMember:
        """Return the member after its next step towards this target assignment."""
        group, updated = update.group, update.after
        if updated.is_reconciled_to(target_epoch):
            return updated
        taken = group.taken_partitions(updated.member_id)
        reconciled = reconcile(updated, target_epoch, target, taken, reported)
        if reconciled != updated:
            update.records.append(reconciled.current_record(group.group_id))
        return reconciled

    def _assign(self, update: MemberUpdate, epoch: int) -> dict[str, Target]:
        """Return the new target assignment, and add the records of its changes to the update."""
        group, members = update.group, update.members
        topics = {name: self._table.host.topics.get(name) for one in members.values() for name in group.topics_of(one)}
        ids = {name: topic.id for name, topic in topics.items() if topic is not None}
        counts = {topic.id: len(topic.partitions) for topic in topics.values() if topic is not None}
        assigned = [
            AssignedMember(
                one.member_id,
                one.instance_id,
                frozenset(ids[topic] for topic in group.topics_of(one) if topic in ids),
                group.target.get(one.member_id, {}),
            )
            for one in members.values()
        ]
        targets = SERVER_ASSIGNORS[preferred_assignor(members.values())](assigned, counts)
        for member_id in hash_map_order(targets):
            target = targets[member_id]
            if group.target.get(member_id) != target:
                update.records.append(target_record(group.group_id, member_id, target))
        update.records.append(target_epoch_record(group.group_id, epoch, self._table.now_ms()))
        return targets

    # Regular expressions

    def resolve_patterns(self, group_id: str, context: RequestContext) -> None:
        """Match the regular expressions of a group with the topics. Begin an epoch if the result has changed.

        As in Kafka, the matching topics include only those that the client of the request may describe.
        """
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        names = frozenset(topic.name for topic in self._table.host.topics)
        now_ms = self._table.now_ms()
        records = [
            pattern_record(group_id, pattern, found, now_ms)
            for pattern in sorted({member.pattern for member in group.members.values()} - {""})
            for found in [_described(context, matching_topics(pattern, names))]
            if group.patterns.get(pattern) != frozenset(found)
        ]
        before = {member_id: group.topics_of(member) for member_id, member in group.members.items()}
        self._table.commit(group_id, records)
        group.matched_names = names  # only after the write: if it fails, the next heartbeat tries again
        if before != {member_id: group.topics_of(member) for member_id, member in group.members.items()}:
            known_hash = self.metadata_hash(group, group.members.values())
            self._table.commit(group_id, [group_epoch_record(group_id, group.epoch + 1, known_hash)])

    def _drop_patterns(self, group: ConsumerGroup, members: Mapping[str, ConsumerMember]) -> list[GroupRecord]:
        used = {member.pattern for member in members.values()}
        return [pattern_tombstone(group.group_id, pattern) for pattern in sorted(set(group.patterns) - used)]

    # Removal

    def remove(self, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> None:
        """Remove members. Then begin an epoch without them, or convert the group to a classic group."""
        gone = dict.fromkeys(member.member_id for member in members)
        left = {key: one for key, one in group.members.items() if key not in gone}
        if not gone:
            return
        if left and self.can_downgrade(left.values()):
            self.downgrade(group, left.values(), [], rebalances=True)
            return
        records = [record for member_id in gone for record in member_tombstones(group.group_id, member_id)]
        records += self._drop_patterns(group, left)
        known_hash = self.metadata_hash(group, left.values())
        records.append(group_epoch_record(group.group_id, group.epoch + 1, known_hash))
        if not left:  # nothing is left to assign (Kafka 4.4)
            records.append(target_epoch_record(group.group_id, group.epoch + 1, 0))
        for member_id in gone:
            self.cancel_timers(group.group_id, member_id)
        self._table.commit(group.group_id, records)

    def can_downgrade(self, members: Iterable[ConsumerMember]) -> bool:
        """Return whether a group that has only these members becomes a classic group."""
        remaining = list(members)
        return (
            self._settings.group_consumer_migration_policy in ("bidirectional", "downgrade")
            and all(member.classic is not None for member in remaining)
            and len(remaining) <= self._settings.group_max_size
        )

    def downgrade(
        self,
        group: ConsumerGroup,
        members: Iterable[ConsumerMember],
        records: list[GroupRecord],
        *,
        rebalances: bool,
    ) -> None:
        """Convert a group to a classic group with these members. Write the records of the request first.

        As in Kafka, timers are not cancelled. If the group is converted back before a timer expires, the timer has an
        effect again.
        """
        topics = self._table.host.topics
        classic = to_classic_group(group, members, self._table.now_ms(), topics)
        self._table.write(group.group_id, [*records, *group.tombstones(), classic.record()])
        self._table.groups[group.group_id] = classic
        self.adopt(classic, rebalances)

    # Timers

    def start_sessions(self, group: ConsumerGroup) -> None:
        """Start the sessions of the members of a group that was read from the log."""
        for member in group.members.values():
            self.start_session(group.group_id, member.member_id)
            self.watch_revocation(group.group_id, member)

    def start_session(self, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
        """Start the session timeout of a member again. The default is the session timeout of the consumer protocol."""
        if timeout_ms is None:
            timeout_ms = self._table.group_setting(group_id, "consumer.session.timeout.ms")
        self.start_timer("session", group_id, member_id, timeout_ms)

    def watch_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """If the member has to revoke partitions, remove it unless it does so within its rebalance timeout."""
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self.start_timer("rebalance", group_id, member.member_id, member.rebalance_timeout_ms, epoch=member.epoch)
        else:
            self.cancel_timer("rebalance", group_id, member.member_id)

    def start_timer(
        self, kind: str, group_id: str, member_id: str, timeout_ms: float, *, epoch: int | None = None
    ) -> None:
        """Start a timer that removes a member when it expires. With `epoch`, the member is removed only if it still has
        this epoch."""

        def fence() -> None:
            group = self._table.groups.get(group_id)
            member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
            if isinstance(group, ConsumerGroup) and member is not None and epoch in (None, member.epoch):
                self.remove(group, [member])

        self._table.start_timer((kind, group_id, member_id), timeout_ms, fence)

    def has_timer(self, kind: str, group_id: str, member_id: str) -> bool:
        """Return whether a timer of a member exists."""
        return self._table.has_timer((kind, group_id, member_id))

    def cancel_timer(self, kind: str, group_id: str, member_id: str) -> None:
        """Cancel a timer of a member, if it exists."""
        self._table.cancel_timer((kind, group_id, member_id))

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        """Cancel all timers of a member, with those of a classic member (join, sync)."""
        for kind in ("session", "rebalance", "join", "sync"):
            self.cancel_timer(kind, group_id, member_id)
