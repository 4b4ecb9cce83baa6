# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcodec.arguments import names_of, partitions_of
from kcodec.consumer.committed_offsets import ALL, STABLE_VERSION, commit_question, fetch_question, value_of
from kcodec.consumer.lag import PartitionLag, partition_lags
from kcodec.consumer.member_protocol import PROTOCOL_TYPE, read_assignment
from kcodec.errors import DecodeError
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.flow import Flow
from kcodec.txn.routes import Broker, Coordinator, CoordinatorOf
from kcodec.txn.settle import Answer, Asking, Question, by_topic, partition_codes, settle

GROUP_ID_NOT_FOUND = 69


@dataclass(frozen=True)
class GroupListing:
    """A group by id. state, type: None from brokers that do not tell (before 2.6, 3.7)."""

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True)
class GroupMember:
    """A member. partitions: what it reads. metadata, assignment: bytes of the classic protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...] = ()
    metadata: bytes = field(default=b"", repr=False)
    assignment: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class GroupDescription:
    """A group. state "Dead": there is none. type: "classic", or "consumer" (KIP-848). protocol: its assignor."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    type: str = "classic"


def list_groups(
    asking: Asking, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout: float | None = None
) -> Flow[dict[str, GroupListing]]:
    """The groups of all brokers, by id. states, types: only these ("Stable", "Empty"; "classic", "consumer").

    Raises AdminError where not all brokers answered; its `results` hold the lists of the others by broker id.
    """
    deadline = asking.deadline(timeout)
    yield from asking.cluster.refresh(asking.call_timeout(deadline))
    wanted, kinds = names_of(states, "states"), names_of(types, "types")
    question: Question[int, list[GroupListing]] = Question(
        "list groups of broker",
        Broker(),
        lambda brokers, until: messages.ListGroupsRequest(states_filter=wanted, types_filter=kinds),
        lambda response, brokers: [(brokers[0], Answer(response.error_code, _listings(response)))],
        lowest=5 if kinds else 4 if wanted else 0,
    )
    outcome = yield from settle(asking, asking.cluster.brokers, question, deadline)
    found = [listing for listings in outcome.value().values() for listing in listings]
    return {listing.group_id: listing for listing in sorted(found, key=lambda listing: listing.group_id)}


def _listings(response: Any) -> list[GroupListing]:
    return [
        GroupListing(group.group_id, group.protocol_type, group.group_state or None, group.group_type or None)
        for group in response.groups
    ]


def describe_groups(
    asking: Asking, group_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, GroupDescription]]:
    """State and members of groups, of the classic protocol and of that of KIP-848; before Kafka 4.0 a group that is not
    there has the state "Dead".

    Raises BrokerError (from Kafka 4.0 on GROUP_ID_NOT_FOUND), AuthorizationError; AdminError for several.
    """
    wanted, deadline = names_of(group_ids, "group_ids"), asking.deadline(timeout)
    classic: Question[str, GroupDescription] = Question(
        "describe group",
        Coordinator(asking.cluster, "group"),
        lambda groups, until: messages.DescribeGroupsRequest(groups=groups),
        lambda response, groups: (
            (group.group_id, Answer(group.error_code, _group(group), group.error_message)) for group in response.groups
        ),
    )
    outcome = yield from settle(asking, wanted, classic, deadline)
    others = [group_id for group_id, error in outcome.errors.items() if getattr(error, "code", 0) == GROUP_ID_NOT_FOUND]
    if others:
        consumer: Question[str, GroupDescription] = Question(
            "describe group",
            Coordinator(asking.cluster, "group"),
            lambda groups, until: messages.ConsumerGroupDescribeRequest(group_ids=groups),
            lambda response, groups: (
                (group.group_id, Answer(group.error_code, _consumer_group(group), group.error_message))
                for group in response.groups
            ),
        )
        found = yield from settle(asking, others, consumer, deadline)
        outcome.results |= found.results
        outcome.errors = {name: error for name, error in outcome.errors.items() if name not in found.results}
    return {name: outcome.value()[name] for name in wanted}


def _consumer_group(group: Any) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for member in group.members
    )
    return GroupDescription(group.group_id, group.group_state, "consumer", group.assignor_name, members, "consumer")


def _group(group: Any) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(group.protocol_type, bytes(member.member_assignment)),
            metadata=bytes(member.member_metadata),
            assignment=bytes(member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(group.group_id, group.group_state, group.protocol_type, group.protocol_data, members)


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """What a member of a classic group of consumers reads; none while the group rebalances, or where that cannot be
    read: what leaders give their members is no business of the broker."""
    if protocol_type != PROTOCOL_TYPE or not assignment:
        return ()
    try:
        return tuple(read_assignment(assignment))
    except DecodeError:
        return ()


def delete_groups(asking: Asking, group_ids: Iterable[str], *, timeout: float | None = None) -> Flow[dict[str, None]]:
    """Delete groups without members, with their offsets.

    Raises BrokerError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, AuthorizationError; AdminError for several.
    """
    question: Question[str, None] = Question(
        "delete group",
        Coordinator(asking.cluster, "group"),
        lambda groups, until: messages.DeleteGroupsRequest(groups_names=groups),
        lambda response, groups: ((result.group_id, Answer(result.error_code)) for result in response.results),
    )
    outcome = yield from settle(asking, names_of(group_ids, "group_ids"), question, asking.deadline(timeout))
    return outcome.value()


def list_group_offsets(
    asking: Asking,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """The offsets a group has committed; None where it has none. partitions: None for all that have one.

    require_stable: wait for offsets that an open transaction is about to commit (KIP-447).
    """
    wanted = [ALL] if partitions is None else partitions_of(partitions)
    lowest = STABLE_VERSION if require_stable else 1
    question = fetch_question(asking.cluster, group_id, wanted, require_stable=require_stable, lowest=lowest)
    outcome = yield from settle(asking, wanted, question, asking.deadline(timeout))
    found: dict[TopicPartition, Any] = value_of(outcome, group_id)
    return found[ALL] if partitions is None else found


def describe_group_lag(
    asking: Asking, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
) -> Flow[dict[TopicPartition, PartitionLag]]:
    """How far a group's committed offsets are behind, and which transaction holds a last stable offset back.

    partitions: None for all that the group has an offset in. Raises BrokerError, AuthorizationError; AdminError where
    several partitions were asked for.
    """
    deadline = asking.deadline(timeout)
    committed = yield from list_group_offsets(asking, group_id, partitions, timeout=deadline.remaining)
    outcome = yield from partition_lags(asking, dict.fromkeys(committed), committed, deadline)
    return outcome.value()


def alter_group_offsets(
    asking: Asking,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, None]]:
    """Commit offsets for a group that has no members; a number is an offset without metadata.

    Raises BrokerError: UNKNOWN_MEMBER_ID while the group has members, AuthorizationError ...; AdminError for several.
    """
    given = {
        partition: value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        for partition, value in offsets.items()
    }

    question = commit_question(asking.cluster, group_id, given)
    outcome = yield from settle(asking, given, question, asking.deadline(timeout))
    return outcome.value()


def delete_group_offsets(
    asking: Asking, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
) -> Flow[dict[TopicPartition, None]]:
    """Forget committed offsets of topics that the group does not subscribe to (KIP-496).

    Raises BrokerError: GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND, AuthorizationError ...
    """
    question: Question[TopicPartition, None] = Question(
        f"delete offset of group {group_id!r} in",
        CoordinatorOf(asking.cluster, "group", group_id),
        lambda some, until: messages.OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                messages.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[messages.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
                )
                for topic, numbers in by_topic(some).items()
            ],
        ),
        lambda response, some: (
            ((partition, Answer(response.error_code)) for partition in some)
            if response.error_code
            else partition_codes(response, some)
        ),
    )
    outcome = yield from settle(asking, partitions_of(partitions), question, asking.deadline(timeout))
    return outcome.value()
