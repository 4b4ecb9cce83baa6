# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from kcodec.admin.checks import by_name
from kcodec.admin.security import operations_of
from kcodec.admin.values import CreatedTopic, NewTopic, PartitionDescription, TopicDescription, TopicListing
from kcodec.arguments import is_list, items_of, names_of, numbers_of
from kcodec.cluster.retry_driver import (
    UNKNOWN_TOPIC_PATIENCE_SECONDS,
    ApiHandler,
    CallContext,
    Deadline,
    ItemResult,
    entries,
    request_items,
    results,
)
from kcodec.cluster.retry_routes import AnyBroker, Controller
from kcodec.cluster.values import NO_UUID
from kcodec.errors import KcodecError
from kcodec.flow import ANY_NODE, Flow, call
from kcodec.integers import as_integer, shown
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

# Value for the broker's default in CreateTopicsRequest (KIP-464, from version 4 on).
BROKER_DEFAULT = -1
# Maximum time that create_topics waits until a broker reports the new topics with leaders.
LEADER_WAIT_SECONDS = 10.0


def create_topics(
    context: CallContext,
    topics: Iterable[NewTopic | str],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[str, CreatedTopic]]:
    """Create topics (KIP-4), and return when they accept records. A name alone creates a topic with the broker's
    defaults.

    topics: Topics to create.
    validate_only: Whether to check the request without creating a topic.
    timeout: Maximum time in seconds. None: default_api_timeout_ms.

    A request whose response is lost is repeated. If a topic then exists, with the requested numbers of partitions and
    replicas, the call has succeeded.

    After the topics are created, the call waits up to 10 seconds until all partitions have a leader. It then returns
    without an error, even if some have none.

    Raise BrokerError, for example TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG,
    INVALID_TOPIC_EXCEPTION or POLICY_VIOLATION, or AuthorizationError without the permission. For several topics, an
    AdminError contains the errors.
    """
    if isinstance(topics, Mapping):
        raise TypeError(
            "topics must be a list of NewTopic or names, not a mapping, whose values would have no effect: pass "
            "[NewTopic(name, num_partitions=count), ...]"
        )
    given = items_of(topics, (NewTopic, str), "topics")
    requested: dict[str, NewTopic] = {}
    for new in (NewTopic(one) if isinstance(one, str) else one for one in given):
        if requested.setdefault(new.name, new) != new:
            raise ValueError(f"topics: {new.name!r} is named twice, with different values; pass each topic once")
    deadline = context.deadline(timeout)
    needs_defaults = any(
        topic.assignments is None and None in (topic.num_partitions, topic.replication_factor)
        for topic in requested.values()
    )
    handler: ApiHandler[str, CreatedTopic] = ApiHandler(
        "create topic",
        Controller(context.cluster),
        lambda names, until: messages.CreateTopicsRequest(
            topics=[_creatable(requested[name]) for name in names],
            timeout_ms=until.left_ms,
            validate_only=validate_only,
        ),
        lambda response, names: entries(response.topics, "name", _created),
        lowest=4 if needs_defaults else 0,
    )
    outcome = yield from request_items(context, requested, handler, deadline)
    if not validate_only:
        existing = outcome.repeated_with(ErrorCode.TOPIC_ALREADY_EXISTS)
        reached = yield from _reached(
            context, existing, lambda name, topic: _is_as_requested(topic, requested[name]), deadline
        )
        for name, topic in reached.items():
            replicas = len(topic.partitions[0].replicas)
            outcome.succeed(name, CreatedTopic(name, topic.topic_id, len(topic.partitions), replicas))
    if outcome.results and not validate_only:
        yield from _shown(context, list(outcome.results), deadline)
    return outcome.value()


def _reached(
    context: CallContext, names: list[str], is_reached: Callable[[str, TopicDescription], bool], deadline: Deadline
) -> Flow[dict[str, TopicDescription]]:
    """Return the topics whose current state is the requested one, after a repeated request. Some brokers learn of a
    change a little later, so the other topics are described again for a moment."""
    found: dict[str, TopicDescription] = {}
    until = min(deadline.at, context.clock() + UNKNOWN_TOPIC_PATIENCE_SECONDS)
    attempt = 0
    while names:
        outcome = yield from request_items(context, names, _description_handler(4), deadline)
        found |= {name: topic for name, topic in outcome.results.items() if is_reached(name, topic)}
        names = [name for name in names if name not in found]
        if context.clock() >= until:
            break
        if names:
            yield from context.pause(attempt, deadline)
            attempt += 1
    return found


def _is_as_requested(topic: TopicDescription, requested: NewTopic) -> bool:
    """Return whether an existing topic has the requested numbers of partitions and replicas."""
    partitions, replicas = requested.num_partitions, requested.replication_factor
    if requested.assignments is not None:
        partitions = len(requested.assignments)
    return (
        bool(topic.partitions)
        and partitions in (None, len(topic.partitions))
        and all(replicas in (None, len(one.replicas)) for one in topic.partitions)
    )


def _creatable(topic: NewTopic) -> Any:
    has_own = topic.assignments is not None
    if has_own and (topic.num_partitions is not None or topic.replication_factor is not None):
        raise ValueError(
            f"topic {topic.name!r}: assignments exclude num_partitions and replication_factor; pass one or the other"
        )
    return messages.CreatableTopic(
        name=topic.name,
        num_partitions=BROKER_DEFAULT if topic.num_partitions is None else topic.num_partitions,
        replication_factor=BROKER_DEFAULT if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            messages.CreatableReplicaAssignment(
                partition_index=partition,
                broker_ids=numbers_of(brokers, f"NewTopic: assignments of partition {partition} of {topic.name!r}"),
            )
            for partition, brokers in (topic.assignments or {}).items()
        ],
        configs=[messages.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _created(topic: Any) -> CreatedTopic:
    return CreatedTopic(
        topic.name,
        _topic_id(topic),
        None if topic.num_partitions < 0 else topic.num_partitions,
        None if topic.replication_factor < 0 else topic.replication_factor,
        {config.name: config.value for config in topic.configs or ()},
    )


def _topic_id(topic: Any) -> UUID | None:
    return None if topic.topic_id == NO_UUID else topic.topic_id


def _shown(context: CallContext, names: list[str], deadline: Deadline) -> Flow[None]:
    """Wait until a broker reports a leader for each partition. Before that, a producer gets retriable errors."""
    until = min(deadline.at, context.clock() + LEADER_WAIT_SECONDS)
    attempt = 0
    while context.clock() < until:
        request = messages.MetadataRequest(
            topics=[messages.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        try:
            reply = yield from call(ANY_NODE, request, timeout=context.call_timeout(deadline), lowest=4)
        except KcodecError:
            return  # the topics are created, and a producer waits for their leaders itself
        if all(topic.error_code == ErrorCode.NONE and _has_leaders(topic) for topic in reply.message.topics):
            return
        yield from context.pause(attempt, deadline)
        attempt += 1


def _has_leaders(topic: Any) -> bool:
    return bool(topic.partitions) and all(partition.leader_id >= 0 for partition in topic.partitions)


def delete_topics(
    context: CallContext, topics: Iterable[str], *, timeout: float | None = None
) -> Flow[dict[str, None]]:
    """Delete topics by name, with all their records.

    A request whose response is lost is repeated. If a topic then does not exist, the call has succeeded.

    Raise BrokerError, for example UNKNOWN_TOPIC_OR_PARTITION or TOPIC_DELETION_DISABLED, or AuthorizationError without
    the permission. For several topics, an AdminError contains the errors.
    """
    handler: ApiHandler[str, None] = ApiHandler(
        "delete topic",
        Controller(context.cluster),
        lambda names, until: messages.DeleteTopicsRequest(topic_names=names, timeout_ms=until.left_ms),
        lambda response, names: entries(response.responses, "name"),
        is_reached=lambda name, code: code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        highest=5,  # version 6 has topic ids instead of names
    )
    return results(context, names_of(topics, "topics"), handler, timeout)


def create_partitions(
    context: CallContext,
    counts: Mapping[str, int | tuple[int, Sequence[Sequence[int]]]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[str, None]]:
    """Add partitions to topics. A producer can then choose another partition for a key than before.

    counts: For each topic, the new total number of partitions, or a tuple of this number and the broker ids of each new
        partition, with the preferred leader first. Without broker ids, the controller chooses the brokers.
    validate_only: Whether to check the request without a change.

    A request whose response is lost is repeated. If a topic then has the new number of partitions, the call has
    succeeded.

    Raise BrokerError, for example INVALID_PARTITIONS if the number is not larger than the current one, or
    AuthorizationError without the permission. For several topics, an AdminError contains the errors.
    """
    given = by_name(counts, "counts", "number of partitions")
    added = {name: _more_partitions(name, wanted) for name, wanted in given.items()}
    handler: ApiHandler[str, None] = ApiHandler(
        "create partitions of topic",
        Controller(context.cluster),
        lambda names, until: messages.CreatePartitionsRequest(
            topics=[added[name] for name in names],
            timeout_ms=until.left_ms,
            validate_only=validate_only,
        ),
        lambda response, names: entries(response.results, "name"),
    )
    deadline = context.deadline(timeout)
    outcome = yield from request_items(context, added, handler, deadline)
    if not validate_only:
        existing = outcome.repeated_with(ErrorCode.INVALID_PARTITIONS)
        reached = yield from _reached(
            context, existing, lambda name, topic: len(topic.partitions) == added[name].count, deadline
        )
        for name in reached:
            outcome.succeed(name, None)
    return outcome.value()


def _more_partitions(name: str, wanted: Any) -> Any:
    pair = wanted if isinstance(wanted, tuple | list) and len(wanted) == 2 else (wanted, None)
    count = as_integer(pair[0])
    if count is None:
        raise TypeError(
            f"counts: expected the number of partitions of topic {name!r}, or a tuple of this number and the broker "
            f"ids of the new partitions, got {shown(wanted)}"
        )
    brokers: Any = pair[1]
    lists: list[Any] = list(brokers) if is_list(brokers) else []
    if brokers is not None and (not is_list(brokers) or any(as_integer(one) is not None for one in lists)):
        raise TypeError(
            f"counts: expected the broker ids of each new partition of topic {name!r} as a list of lists, got "
            f"{shown(brokers)}"
        )
    assignments = (
        None
        if brokers is None
        else [
            messages.CreatePartitionsAssignment(
                broker_ids=numbers_of(one, f"counts: broker ids of a new partition of topic {name!r}")
            )
            for one in lists
        ]
    )
    return messages.CreatePartitionsTopic(name=name, count=count, assignments=assignments)


def list_topics(
    context: CallContext, *, include_internal: bool = False, timeout: float | None = None
) -> Flow[dict[str, TopicListing]]:
    """Return all topics that the client has the permission to describe, by name.

    include_internal: Whether to return the brokers' internal topics, too, such as `__consumer_offsets`.
    """
    handler: ApiHandler[str, list[TopicListing]] = ApiHandler(
        "list topics of",
        AnyBroker(),
        lambda items, until: messages.MetadataRequest(topics=None, allow_auto_topic_creation=False),
        lambda response, items: [
            (items[0], ItemResult(ErrorCode.NONE, [_listing(topic) for topic in response.topics]))
        ],
        named=str,
        lowest=4,
    )
    found = (yield from results(context, ["the cluster"], handler, timeout))["the cluster"]
    listings = sorted(found, key=lambda listing: listing.name)
    return {listing.name: listing for listing in listings if include_internal or not listing.is_internal}


def _listing(topic: Any) -> TopicListing:
    return TopicListing(topic.name, _topic_id(topic), topic.is_internal, len(topic.partitions))


def describe_topics(
    context: CallContext,
    topics: Iterable[str] | None = None,
    *,
    include_authorized_operations: bool = False,
    timeout: float | None = None,
) -> Flow[dict[str, TopicDescription]]:
    """Return partitions, leaders and replicas of topics. This does not create missing topics.

    topics: Names of the topics. None: all topics that the client has the permission to describe, including internal
        topics.
    include_authorized_operations: Whether to return the operations that the client may do on the topics, too (KIP-430).

    Raise BrokerError (UNKNOWN_TOPIC_OR_PARTITION) if a topic does not exist. The call first retries for two seconds,
    because some brokers learn of a new topic a little later. Raise BrokerError (INVALID_TOPIC_EXCEPTION) if a name is
    invalid, and AuthorizationError without DESCRIBE on the topic. For several topics, an AdminError contains the
    errors.
    """
    lowest = 8 if include_authorized_operations else 4
    if topics is None:
        return _describe_all(context, lowest, include_authorized_operations, timeout)
    handler = _description_handler(lowest, include_authorized_operations)
    return results(context, names_of(topics, "topics"), handler, timeout)


def _description_handler(lowest: int, include_authorized_operations: bool = False) -> ApiHandler[str, TopicDescription]:
    return ApiHandler(
        "describe topic",
        AnyBroker(),
        lambda names, until: messages.MetadataRequest(
            topics=[messages.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=include_authorized_operations,
        ),
        lambda response, names: entries(response.topics, "name", _description),
        lowest=lowest,
    )


def _describe_all(
    context: CallContext, lowest: int, include_authorized_operations: bool, timeout: float | None
) -> Flow[dict[str, TopicDescription]]:
    """Describe all topics with one request. Otherwise, a topic that is deleted meanwhile would cause an error."""
    handler: ApiHandler[str, list[TopicDescription]] = ApiHandler(
        "describe the topics of",
        AnyBroker(),
        lambda items, until: messages.MetadataRequest(
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=include_authorized_operations,
        ),
        lambda response, items: [
            (items[0], ItemResult(ErrorCode.NONE, [_description(topic) for topic in response.topics]))
        ],
        named=str,
        lowest=lowest,
    )
    found = (yield from results(context, ["the cluster"], handler, timeout))["the cluster"]
    return {described.name: described for described in sorted(found, key=lambda described: described.name)}


def _description(topic: Any) -> TopicDescription:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicDescription(
        topic.name,
        _topic_id(topic),
        topic.is_internal,
        tuple(
            PartitionDescription(
                one.partition_index,
                None if one.leader_id < 0 else one.leader_id,
                None if one.leader_epoch < 0 else one.leader_epoch,
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
                tuple(one.offline_replicas),
            )
            for one in partitions
        ),
        operations_of(topic.topic_authorized_operations),
    )
