# SPDX-License-Identifier: Apache-2.0
"""The steps of a member from the partitions that it owns to its target assignment (KIP-848; CurrentAssignmentBuilder).

A member first revokes the partitions that it must give up. Only then does it get the epoch of the target assignment. If
another member has not released a partition yet, the member gets this partition later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from kcodec.broker.api import ApiError
from kcodec.broker.groups.consumer_group import ConsumerMember, MemberState
from kcodec.broker.groups.group_log import Owned, Target
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.groups import ConsumerGroupTopicPartitions

#: The partitions that the member reports to own; None if the heartbeat does not contain them.
Reported = Sequence[ConsumerGroupTopicPartitions] | None


def reconcile(
    member: ConsumerMember, target_epoch: int, target: Target, taken: Collection[tuple[UUID, int]], reported: Reported
) -> ConsumerMember:
    """Return the member after its next step.

    taken: Partitions that other members own or have not revoked yet.

    Raise ApiError (FENCED_MEMBER_EPOCH) if the member is in a state that only a newer broker knows.
    """
    if member.state is MemberState.UNKNOWN:
        if reported is None or reported:
            text = "the state of the member is unknown; it must abandon all its partitions and rejoin"
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, text)
        return _next_step(member, target_epoch, target_epoch, target, taken, reported)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(member.revoking, reported):
            return member
    elif member.is_reconciled_to(target_epoch):
        return member
    return _next_step(member, member.epoch, target_epoch, target, taken, reported)


def _still_owns(revoking: Owned, reported: Reported) -> bool:
    if reported is None:
        return True
    return any(number in revoking.get(one.topic_id, {}) for one in reported for number in one.partitions)


def _next_step(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Target,
    taken: Collection[tuple[UUID, int]],
    reported: Reported,
) -> ConsumerMember:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, since in epochs.items():
            place = kept if partition in wanted else revoking
            place.setdefault(topic_id, {})[partition] = since
    if revoking and _still_owns(revoking, reported):
        return _updated(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    has_unreleased = False
    for topic_id, numbers in target.items():
        for partition in sorted(numbers - kept.get(topic_id, {}).keys()):
            if (topic_id, partition) in taken:
                has_unreleased = True
            else:
                kept.setdefault(topic_id, {})[partition] = target_epoch
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return _updated(member, target_epoch, state, kept, {})


def _updated(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Owned, revoking: Owned
) -> ConsumerMember:
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking)
