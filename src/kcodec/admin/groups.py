# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kcodec.admin.checks import check_group_id
from kcodec.admin.security import AclOperation, operations_of
from kcodec.arguments import names_of, partitions_of
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    Deadline,
    ItemResult,
    by_topic,
    entries,
    partition_codes,
    request_items,
    results,
    whole,
)
from kcodec.cluster.retry_routes import CoordinatorOf, EachBroker, EachCoordinator
from kcodec.consumer.committed_offsets import ALL, STABLE_VERSION, offset_commit_handler, offset_fetch_handler, value_of
from kcodec.consumer.group.classic.consumer_protocol import PROTOCOL_TYPE, read_assignment
from kcodec.consumer.lag import PartitionLag, partition_lags
from kcodec.errors import DecodeError, TransportError, UnsupportedError
from kcodec.flow import Flow
from kcodec.offsets import OffsetAndMetadata, TopicPartition, check_offsets
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode, broker_error

#: Names of the group states and group types of Kafka (GroupState, GroupType).
GROUP_STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Empty",
    "Dead",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Unknown",
)
GROUP_TYPES = ("classic", "consumer", "share", "streams")


@dataclass(frozen=True)
class GroupListing:
    """A group in the result of `list_groups`.

    group_id: Name of the group.
    protocol_type: Type of its protocol. It is "consumer" for consumers. Other clients, such as Kafka Connect, have
        other types.
    state: State of the group, such as "Stable" or "Empty"; None from brokers before 2.6.
    type: "classic", "consumer", "share" or "streams"; None from brokers before 3.7.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True)
class GroupMember:
    """A member of a group.

    member_id: Id of the member.
    group_instance_id: Its group_instance_id if it is a static member (KIP-345), otherwise None.
    client_id: The client_id of its client.
    client_host: Address of its client, as the broker sees it.
    partitions: Its assignment. Several members of a share group can have the same partition. For a member of a streams
        group, these are the partitions of the source topics of its active tasks.
    metadata, assignment: Bytes of the classic protocol; empty in other groups.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...] = ()
    metadata: bytes = field(default=b"", repr=False)
    assignment: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class GroupDescription:
    """The description of a group.

    group_id: Name of the group.
    state: State of the group, such as "Stable"; "Dead" if the group does not exist.
    protocol_type: Type of the protocol of a classic group, "consumer" for consumers; otherwise the same as `type`.
    protocol: Name of its assignor; "" for a streams group.
    members: The members of the group.
    type: "classic", "consumer" (KIP-848), "share" (KIP-932) or "streams" (KIP-1071).
    authorized_operations: The operations that the client may do; None unless they were requested.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    type: str = "classic"
    authorized_operations: frozenset[AclOperation] | None = None


def list_groups(
    context: CallContext, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout: float | None = None
) -> Flow[dict[str, GroupListing]]:
    """Return the groups of all brokers by id. With `states` or `types`, return only groups with these states and types.

    states: Names from GROUP_STATES, in upper or lower case. Empty: all states.
    types: Names from GROUP_TYPES, in upper or lower case. Empty: all types.

    Raise ValueError if a state or a type is unknown. Raise AdminError if a broker did not respond. Its `results`
    contain the lists of the other brokers by broker id. If the cluster has only one broker, raise the error itself.
    """
    requested, kinds = _known(states, GROUP_STATES, "states"), _known(types, GROUP_TYPES, "types")
    deadline = context.deadline(timeout)
    yield from context.cluster.refresh(context.call_timeout(deadline))
    handler: ApiHandler[int, list[GroupListing]] = ApiHandler(
        "list groups of broker",
        EachBroker(),
        lambda brokers, until: messages.ListGroupsRequest(states_filter=requested, types_filter=kinds),
        lambda response, brokers: whole(response, brokers, _listings),
        lowest=5 if kinds else 4 if requested else 0,
    )
    outcome = yield from request_items(context, context.cluster.brokers, handler, deadline)
    return by_group_id(outcome.value())


def by_group_id(lists: Mapping[int, list[GroupListing]]) -> dict[str, GroupListing]:
    """Return the groups in the lists of brokers by id, in the order of the ids."""
    found = [listing for listings in lists.values() for listing in listings]
    return {listing.group_id: listing for listing in sorted(found, key=lambda listing: listing.group_id)}


def _known(given: Iterable[str], known: tuple[str, ...], parameter: str) -> list[str]:
    """Return the names with the case that brokers use. Raise ValueError if a name is unknown. For an unknown name, a
    broker would return no groups and no error. Older brokers (Kafka 3.6) do the same for a name with another case."""
    found, written = [], {name.lower(): name for name in known}
    for name in names_of(given, parameter):
        if name.lower() not in written:
            raise ValueError(f"{parameter}: expected one or more of {', '.join(known)}, got {name!r}")
        found.append(written[name.lower()])
    return found


def _listings(response: Any) -> list[GroupListing]:
    return [
        GroupListing(group.group_id, group.protocol_type, group.group_state or None, group.group_type or None)
        for group in response.groups
    ]


def describe_groups(
    context: CallContext,
    group_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    timeout: float | None = None,
) -> Flow[dict[str, GroupDescription]]:
    """Describe groups of every type: classic, consumer (KIP-848), share (KIP-932) and streams (KIP-1071).

    group_ids: Names of the groups.
    include_authorized_operations: Whether to return the operations that the client may do on the groups, too.

    Raise BrokerError (GROUP_ID_NOT_FOUND) if a group does not exist. Before Kafka 4.0, the result has the state "Dead"
    instead. Raise AuthorizationError without DESCRIBE on the group. For several groups, an AdminError contains the
    errors.
    """
    requested, deadline = names_of(group_ids, "group_ids"), context.deadline(timeout)
    more = include_authorized_operations
    outcome = yield from request_items(context, requested, _description(context, "classic", more), deadline)
    for kind in ("consumer", "share", "streams"):
        others = [
            name for name, error in outcome.errors.items() if getattr(error, "code", 0) == ErrorCode.GROUP_ID_NOT_FOUND
        ]
        if others:  # they may have another type, which the broker may not support
            found = yield from request_items(context, others, _description(context, kind, more), deadline)
            outcome.results |= found.results
            outcome.errors = {name: error for name, error in outcome.errors.items() if name not in found.results}
            # Without a response, it is unknown whether the group exists.
            outcome.errors |= {name: error for name, error in found.errors.items() if isinstance(error, TransportError)}
    return {name: outcome.value()[name] for name in requested}


def _description(context: CallContext, kind: str, with_operations: bool = False) -> ApiHandler[str, GroupDescription]:
    """Return the handler for the description of groups of one type."""
    request, read = _TYPES[kind]

    def described(group: Any) -> GroupDescription:
        return replace(read(group), authorized_operations=operations_of(group.authorized_operations))

    return ApiHandler(
        "describe group",
        EachCoordinator(context.cluster, "group"),
        lambda groups, until: request(groups, with_operations),
        lambda response, groups: entries(response.groups, "group_id", described),
    )


def _member(member: Any, partitions: Iterable[TopicPartition], **classic: bytes) -> GroupMember:
    """Return a member of a group of any type.

    classic: Metadata and assignment of the member in the classic protocol.
    """
    instance_id = getattr(member, "group_instance_id", getattr(member, "instance_id", None))
    return GroupMember(
        member.member_id, instance_id, member.client_id, member.client_host, tuple(partitions), **classic
    )


def _consumer_group(group: Any, kind: str = "consumer") -> GroupDescription:
    members = tuple(_member(member, _partitions(member.assignment)) for member in group.members)
    return GroupDescription(group.group_id, group.group_state, kind, group.assignor_name, members, kind)


def _share_group(group: Any) -> GroupDescription:
    return _consumer_group(group, "share")


def _streams_group(group: Any) -> GroupDescription:
    """Return a streams group. A task of a subtopology reads one partition of each source topic, the one with the number
    of the task."""
    subtopologies = (
        {} if group.topology is None else {one.subtopology_id: one for one in group.topology.subtopologies or ()}
    )

    def partitions(member: Any) -> Iterator[TopicPartition]:
        for task in member.assignment.active_tasks:
            subtopology = subtopologies.get(task.subtopology_id)
            if subtopology is not None:
                topics = [*subtopology.source_topics, *(one.name for one in subtopology.repartition_source_topics)]
                yield from (TopicPartition(topic, number) for topic in topics for number in task.partitions)

    members = tuple(_member(member, partitions(member)) for member in group.members)
    return GroupDescription(group.group_id, group.group_state, "streams", "", members, "streams")


def _partitions(assignment: Any) -> list[TopicPartition]:
    return [
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    ]


def _group(group: Any) -> GroupDescription:
    members = tuple(
        _member(
            member,
            _assigned(group.protocol_type, bytes(member.member_assignment)),
            metadata=bytes(member.member_metadata),
            assignment=bytes(member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(group.group_id, group.group_state, group.protocol_type, group.protocol_data, members)


def _group_request(request: Callable[..., Any], groups: list[str], more: bool) -> Any:
    return request(group_ids=groups, include_authorized_operations=more)


#: For each type of group, the function that returns the request, and the function that reads a group of the response.
_TYPES: dict[str, tuple[Callable[[list[str], bool], Any], Callable[[Any], GroupDescription]]] = {
    "classic": (
        lambda groups, more: messages.DescribeGroupsRequest(groups=groups, include_authorized_operations=more),
        _group,
    ),
    **{
        kind: (partial(_group_request, request), read)
        for kind, request, read in (
            ("consumer", messages.ConsumerGroupDescribeRequest, _consumer_group),
            ("share", messages.ShareGroupDescribeRequest, _share_group),
            ("streams", messages.StreamsGroupDescribeRequest, _streams_group),
        )
    },
}


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the assignment of a member of a classic consumer group. It is empty while the group rebalances. It is also
    empty if it cannot be read, because brokers do not check assignments."""
    if protocol_type != PROTOCOL_TYPE or not assignment:
        return ()
    try:
        return tuple(read_assignment(assignment))
    except DecodeError:
        return ()


def delete_groups(
    context: CallContext, group_ids: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, None]]:
    """Delete groups that have no members, and the committed offsets of these groups.

    group_ids: Names of the groups.

    A request whose response is lost is repeated. If a group then does not exist, the call has succeeded.

    Raise BrokerError (NON_EMPTY_GROUP) if a group has members, and BrokerError (GROUP_ID_NOT_FOUND) if it does not
    exist. Raise AuthorizationError without DELETE on the group. For several groups, an AdminError contains the errors.
    """
    handler: ApiHandler[str, None] = ApiHandler(
        "delete group",
        EachCoordinator(context.cluster, "group"),
        lambda groups, until: messages.DeleteGroupsRequest(groups_names=groups),
        lambda response, groups: entries(response.results, "group_id"),
        is_reached=lambda group, code: code == ErrorCode.GROUP_ID_NOT_FOUND,
    )
    return results(context, names_of(group_ids, "group_ids"), handler, timeout)


def list_group_offsets(
    context: CallContext,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the committed offsets of a group. The offset of a partition is None if none was committed.

    group_id: Name of the group.
    partitions: Partitions to return. None: all partitions with a committed offset.
    require_stable: Whether to wait for offsets that an open transaction commits (KIP-447). Without it, a coordinator
        that has just moved to another broker may return an older offset for a moment. If `partitions` is None, a
        partition whose first offset is in an open transaction is left out: name the partitions to wait for it.

    Raise UnsupportedError if the group is a share group, because these groups do not commit offsets. Raise BrokerError,
    or AuthorizationError without DESCRIBE on the group.
    """
    check_group_id(group_id)
    deadline = context.deadline(timeout)
    requested = [ALL] if partitions is None else partitions_of(partitions)
    lowest = STABLE_VERSION if require_stable else 1
    handler = offset_fetch_handler(context.cluster, group_id, requested, require_stable=require_stable, lowest=lowest)
    outcome = yield from request_items(context, requested, handler, deadline)
    known: dict[TopicPartition, Any] = value_of(outcome, group_id)
    found: dict[TopicPartition, Any] = known[ALL] if partitions is None else known
    if not require_stable:
        missing = [one for one in requested if not known[one]]
        found |= yield from _confirmed_offsets(context, group_id, missing, deadline)
    if not any(found.values()):
        yield from _refuse_share_group(context, group_id, deadline)
    return found


def _confirmed_offsets(
    context: CallContext, group_id: str, missing: list[TopicPartition], deadline: Deadline
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the offsets that the first response did not contain.

    missing: Partitions without an offset, or ALL.

    A coordinator returns the offsets below its high watermark, without an error. The high watermark of a new leader of
    __consumer_offsets may at first be below the offsets that it has loaded. A request with RequireStable waits for
    these offsets (Kafka: GroupCoordinatorService.fetchOffsets). UNSTABLE_OFFSET_COMMIT is no reason to wait here,
    because an offset of an open transaction is not committed.
    """
    if not missing:
        return {}
    handler = offset_fetch_handler(context.cluster, group_id, missing)
    handler = replace(handler, final=frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT}))
    outcome = yield from request_items(context, missing, handler, deadline)
    outcome.errors = {
        one: error
        for one, error in outcome.errors.items()
        if getattr(error, "code", 0) != ErrorCode.UNSTABLE_OFFSET_COMMIT
    }
    known: dict[TopicPartition, Any] = value_of(outcome, group_id)
    return known.get(ALL, {}) if missing == [ALL] else known


def _refuse_share_group(context: CallContext, group_id: str, deadline: Deadline) -> Flow[None]:
    """Raise UnsupportedError if a group without committed offsets is a share group. For a share group, brokers return
    no offsets and no error."""
    outcome = yield from request_items(context, [group_id], _description(context, "share"), deadline)
    if outcome.results:
        raise UnsupportedError(
            f"group {group_id!r} is a share group, which does not commit offsets: brokers keep the state of each "
            "record for it; call list_share_group_offsets for its start offsets"
        )


def _check_group(context: CallContext, group_id: str, deadline: Deadline) -> Flow[None]:
    """Raise BrokerError (GROUP_ID_NOT_FOUND) if a group does not exist. For such a group, brokers return no offsets and
    no error. Before Kafka 4.0, they describe it as dead. Raise another error if the group may exist."""
    described = yield from describe_groups(context, [group_id], timeout=deadline.remaining)
    if described[group_id].state != "Dead":
        return
    # These brokers also describe groups of the consumer protocol as dead if they are requested as classic groups.
    found = yield from request_items(context, [group_id], _description(context, "consumer"), deadline)
    error = found.errors.get(group_id)
    if error is None:
        return
    # A broker that does not support the consumer protocol has no group of this type.
    missing = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
    if isinstance(error, UnsupportedError) or getattr(error, "code", None) in missing:
        raise broker_error(ErrorCode.GROUP_ID_NOT_FOUND, f"describe group {group_id!r}", resource=group_id)
    raise error


def describe_group_lag(
    context: CallContext,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, PartitionLag]]:
    """Return the lag of a group, and the open transactions that block the last stable offset.

    group_id: Name of the group.
    partitions: Partitions to return. None: all partitions in which the group has a committed offset.

    Raise BrokerError (GROUP_ID_NOT_FOUND) if the group does not exist. Raise AuthorizationError without the permission,
    and UnsupportedError if the group is a share group. For several partitions, an AdminError contains the errors.
    """
    deadline = context.deadline(timeout)
    committed = yield from list_group_offsets(context, group_id, partitions, timeout=deadline.remaining)
    if not any(committed.values()):
        yield from _check_group(context, group_id, deadline)
    outcome = yield from partition_lags(context, dict.fromkeys(committed), committed, deadline)
    return outcome.value()


def alter_group_offsets(
    context: CallContext,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, None]]:
    """Commit offsets for a group that has no members. A number is an offset without metadata.

    group_id: Name of the group. The group is created if it does not exist.
    offsets: Next offset to read, for each partition.

    Raise ValueError if an offset is negative, because a consumer would take -1 as no offset. Raise TypeError if it is
    not a number. Raise BrokerError (UNKNOWN_MEMBER_ID) if the group has members. Raise AuthorizationError without the
    permission. For several partitions, an AdminError contains the errors.
    """
    check_group_id(group_id)
    given = check_offsets(offsets)
    return results(context, given, offset_commit_handler(context.cluster, group_id, given), timeout)


def delete_group_offsets(
    context: CallContext, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
) -> Flow[dict[TopicPartition, None]]:
    """Delete committed offsets of topics that the group does not subscribe to (KIP-496).

    group_id: Name of the group.
    partitions: Partitions whose offsets are deleted.

    Raise BrokerError (GROUP_SUBSCRIBED_TO_TOPIC) if the group subscribes to the topic, and BrokerError
    (GROUP_ID_NOT_FOUND) if the group does not exist. Raise AuthorizationError without the permission. For several
    partitions, an AdminError contains the errors.
    """
    check_group_id(group_id)
    handler: ApiHandler[TopicPartition, None] = ApiHandler(
        f"delete offset of group {group_id!r} in",
        CoordinatorOf(context.cluster, "group", group_id),
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
            ((partition, ItemResult(response.error_code)) for partition in some)
            if response.error_code
            else partition_codes(response, some)
        ),
        # A group without members and offsets does not exist any more.
        is_reached=lambda partition, code: code == ErrorCode.GROUP_ID_NOT_FOUND,
    )
    return results(context, partitions_of(partitions), handler, timeout)
