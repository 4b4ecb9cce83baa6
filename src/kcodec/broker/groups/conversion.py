# SPDX-License-Identifier: Apache-2.0
"""The conversion of groups with members between the classic protocol and the consumer protocol (KIP-848).

If a classic group is converted, its members keep their ids and their partitions. Their member epoch is the generation
of the classic group. If a group of the consumer protocol is converted, its members keep their ids, and the partitions
of each member are those of its target assignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kcodec.broker.api import ApiError
from kcodec.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupMember, ClassicState
from kcodec.broker.groups.consumer_group import ClassicSide, ConsumerGroup, ConsumerMember
from kcodec.broker.groups.embedded_protocol import (
    names_of,
    read_assignment,
    read_subscription,
    target_of,
    write_assignment,
)
from kcodec.broker.groups.group_log import Target
from kcodec.broker.topics import Topics
from kcodec.errors import DecodeError
from kcodec.protocol.error_codes import ErrorCode


def to_consumer_group(classic: ClassicGroup, topics: Topics) -> ConsumerGroup:
    """Return the group of the consumer protocol that replaces a classic group. The caller must set its metadata hash.

    Raise ApiError (GROUP_ID_NOT_FOUND, UNKNOWN_SERVER_ERROR) if a subscription or an assignment cannot be converted.
    """
    group = ConsumerGroup(classic.group_id, epoch=classic.generation, assignment_epoch=classic.generation)
    owned: set[tuple[UUID, int]] = set()
    for member in classic.members.values():
        subscription = member.protocols.get(classic.protocol or "")
        if subscription is None:  # no generation with this member has begun yet
            text = f"member {member.member_id} has no subscription for the assignor {classic.protocol}"
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        try:
            converted, target = _consumer_member(classic, member, subscription, topics)
        except DecodeError as error:
            raise _not_upgraded(classic, f"the embedded consumer protocol is malformed: {error}") from error
        partitions = {(topic_id, number) for topic_id, numbers in target.items() for number in numbers}
        if owned & partitions:
            text = f"two members of group {classic.group_id} own the same partition"
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        owned |= partitions
        group.members[member.member_id], group.target[member.member_id] = converted, target
        if member.instance_id is not None:
            group.static_members[member.instance_id] = member.member_id
    return group


def _consumer_member(
    classic: ClassicGroup, member: ClassicGroupMember, subscription: bytes, topics: Topics
) -> tuple[ConsumerMember, Target]:
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        raise _not_upgraded(classic, "an unsupported custom assignor is in use, whose user data would be lost")
    target = target_of(assignment, topics)
    known = read_subscription(subscription)
    epoch = classic.generation
    converted = ConsumerMember(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=known.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(known.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=epoch,
        previous_epoch=epoch,
        assigned={topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in target.items()},
        classic=ClassicSide(member.session_timeout_ms, tuple(member.protocols.items())),
    )
    return converted, target


def _not_upgraded(classic: ClassicGroup, why: str) -> ApiError:
    text = f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}."
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def to_classic_group(
    group: ConsumerGroup, members: Iterable[ConsumerMember], now_ms: int, topics: Topics
) -> ClassicGroup:
    """Return the stable classic group that replaces a group of the consumer protocol.

    members: The remaining members, which all use the classic protocol.

    Raise ApiError (GROUP_ID_NOT_FOUND) if a subscription is malformed.
    """
    classic = ClassicGroup(group.group_id, ClassicState.STABLE, generation=group.epoch, state_timestamp=now_ms)
    for member in members:
        assert member.classic is not None
        classic.add(
            ClassicGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                CONSUMER_PROTOCOL_TYPE,
                dict(member.classic.protocols),
            )
        )
    classic.protocol = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    try:
        for one in classic.members.values():
            target = names_of(group.target.get(one.member_id, {}), topics)
            one.assignment = write_assignment(target, one.protocols[classic.protocol])
    except DecodeError as error:
        text = f"Cannot downgrade the group {group.group_id}: {error}."
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text) from error
    return classic
