# SPDX-License-Identifier: Apache-2.0
"""The steps that are specific to an API."""

from __future__ import annotations

from typing import Any

from kcodec.broker.admin.configs import changes_of, check_changes
from kcodec.broker.api import CLOSE, ApiError
from kcodec.broker.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kcodec.broker.authorizer.checked_request import (
    TEXTS,
    CheckedRequest,
    IsHandled,
    Step,
    changed,
    code_only,
    restrict_one,
    whole,
    without_text,
)
from kcodec.broker.error_responses import error_response
from kcodec.broker.produce import first_batch
from kcodec.broker.topics import INTERNAL_TOPICS
from kcodec.broker.transactions.handlers import results_of
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
#: Type of a config resource (topic, broker, broker logger, client metrics, group) -> type of the resource of its ACLs.
_CONFIG_RESOURCES = {2: TOPIC, 4: CLUSTER, 8: CLUSTER, 16: CLUSTER, 32: GROUP}
_COORDINATOR_KEYS = {0: GROUP, 1: TRANSACTIONAL_ID}
_TOPIC_CODE, _CLUSTER_CODE = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC_OPERATIONS, _CLUSTER_OPERATIONS = "topic_authorized_operations", "cluster_authorized_operations"

# Produce and transactions


def transactional_records(call: CheckedRequest) -> Any:
    """If a batch is transactional, check WRITE on the transactional id."""
    request, version = call.request, call.context.api_version
    records = (data.records for topic in request.topic_data for data in topic.partition_data)
    first = (first_batch(one, version)[0] for one in records)
    if any(batch is not None and batch.is_transactional for batch in first):
        name = request.transactional_id
        if name is None or not call.may(Operation.WRITE, TRANSACTIONAL_ID, name):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return error_response(request, version, code) if request.acks else CLOSE
    return call.pass_on()


def init_producer_id(call: CheckedRequest) -> Any:
    """Check WRITE on the transactional id. Without a transactional id, the client needs IDEMPOTENT_WRITE on the
    cluster or WRITE on at least one topic."""
    name, code = call.request.transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if name is None:
        code = _CLUSTER_CODE
        is_allowed = call.may_cluster(Operation.IDEMPOTENT_WRITE) or call.authorizer.allows_any(
            call.context.connection, Operation.WRITE, TOPIC
        )
    else:
        is_allowed = call.may(Operation.WRITE, TRANSACTIONAL_ID, name)
    if is_allowed:
        return call.pass_on()
    return messages.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def add_partitions(call: CheckedRequest) -> Any:
    """Check WRITE on the transactional id and on each topic. If a check fails, no partition is added.

    From version 4 on, only brokers send this request. It requires CLUSTER_ACTION on the cluster.
    """
    request = call.request
    if call.context.api_version >= 4:
        return whole(CLUSTER, Operation.CLUSTER_ACTION, refusal=code_only)(call)
    if not call.may(Operation.WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return call.refuse(TRANSACTIONAL_ID)
    codes = {}
    for topic in request.v3_and_below_topics:
        may_write = topic.name not in INTERNAL_TOPICS and call.may(Operation.WRITE, TOPIC, topic.name)
        for number in topic.partitions:
            is_there = call.host.topics.partition(topic.name, number) is not None
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            codes[topic.name, number] = code if may_write else _TOPIC_CODE
    if _TOPIC_CODE not in codes.values():
        return call.pass_on()
    return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results_of(codes))


def hide_topics(call: CheckedRequest) -> Any:
    """Remove the topics that the client may not describe from the transactions."""

    def change(response: messages.DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics = [one for one in state.topics if call.describes(one.topic)]

    return call.pass_on(change)


# Topics


def metadata(call: CheckedRequest) -> Any:
    """Check DESCRIBE on each topic. For a topic that the request would create, also check CREATE on the cluster or the
    topic."""
    request, settings = call.request, call.host.settings
    wants_all = request.topics is None or (call.context.api_version == 0 and not request.topics)
    creates = request.allow_auto_topic_creation and settings.auto_create_topics
    allowed, refused = [], []
    for one in request.topics or ():
        name = call.name_of(one)
        may_describe = name is None or call.describes(name)
        is_there = name is None or call.host.topics.get(name) is not None
        if may_describe and (is_there or not creates or _may_create(call, name or "")):
            allowed.append(one)
        else:
            is_internal = may_describe and name in INTERNAL_TOPICS
            refused.append(
                messages.MetadataResponseTopic(
                    error_code=_TOPIC_CODE, name=one.name, topic_id=one.topic_id, is_internal=is_internal
                )
            )

    def change(response: messages.MetadataResponse) -> None:
        if wants_all:
            response.topics = [one for one in response.topics if call.describes(one.name)]
        elif not allowed:
            response.topics = []  # for an empty list of names, version 0 returns all topics
        for one in response.topics:
            restrict_one(call, one, _TOPIC_OPERATIONS, TOPIC, one.name or "")
        response.topics += refused
        _restrict_cluster(call, response)

    return call.pass_on(change) if wants_all else call.pass_on(change, topics=allowed)


def _may_create(call: CheckedRequest, topic: str) -> bool:
    return call.may_cluster(Operation.CREATE) or call.may(Operation.CREATE, TOPIC, topic)


def describe_topic_partitions(call: CheckedRequest) -> Any:
    """Check DESCRIBE on each topic. A request for all topics returns only those that the client may describe."""
    request, first = call.request, "" if call.request.cursor is None else call.request.cursor.topic_name
    names = [one.name for one in request.topics] or call.host.topics.names()
    allowed = [name for name in names if call.describes(name)]
    refused = [
        messages.DescribeTopicPartitionsResponseTopic(error_code=_TOPIC_CODE, name=name)
        for name in dict.fromkeys(one.name for one in request.topics)
        if name not in allowed and name >= first
    ]
    if not allowed:  # an empty list would select all topics
        return messages.DescribeTopicPartitionsResponse(topics=refused)

    def change(response: messages.DescribeTopicPartitionsResponse) -> None:
        for one in response.topics:
            restrict_one(call, one, _TOPIC_OPERATIONS, TOPIC, one.name or "")
        response.topics += refused

    return call.pass_on(change, topics=[messages.DescribeTopicPartitionsTopic(name=name) for name in allowed])


def is_named_twice(call: CheckedRequest, one: Any) -> bool:
    """Return whether a request contains the topic of this element more than once."""
    return [other.name for other in call.request.topics].count(one.name) > 1


def cannot_be_created(call: CheckedRequest, one: Any) -> bool:
    """Return whether CreateTopics refuses a topic because of its name, before the permissions are checked."""
    return is_named_twice(call, one) or one.name == CLUSTER_METADATA_TOPIC


def hide_configs(call: CheckedRequest) -> Any:
    """Remove the configurations of a new topic if the client does not have DESCRIBE_CONFIGS on the topic."""

    def change(response: messages.CreateTopicsResponse) -> None:
        for one in response.topics:
            if not one.error_code and not call.may(Operation.DESCRIBE_CONFIGS, TOPIC, one.name):
                one.topic_config_error_code, one.configs = _TOPIC_CODE, []
                one.num_partitions = one.replication_factor = -1

    return call.pass_on(change)


def delete_topics(call: CheckedRequest) -> Any:
    """Check DELETE on the cluster or the topic. Do not disclose which topics exist, or which name a topic id has."""
    if call.may_cluster(Operation.DELETE):
        return call.pass_on()
    field = "topics" if call.context.api_version >= 6 else "topic_names"
    allowed, refused = [], []
    for one in getattr(call.request, field):
        name, has_name = call.name_of(one), getattr(one, "name", one) is not None
        may_describe = name is None or call.describes(name)
        is_there = name is not None and call.host.topics.get(name) is not None
        may_delete = not is_there or call.may(Operation.DELETE, TOPIC, name or "")
        if may_delete and (may_describe or not has_name):
            allowed.append(one)
        else:
            result = messages.DeletableTopicResult(error_code=_TOPIC_CODE, error_message=TEXTS[TOPIC])
            result.name = name if has_name or may_describe else None
            if not has_name:
                result.topic_id = one.topic_id
            refused.append(result)

    def change(response: messages.DeleteTopicsResponse) -> None:
        response.responses += refused

    return call.pass_on(change, **{field: allowed})


# Groups


def find_coordinator(call: CheckedRequest) -> Any:
    """Check DESCRIBE on each group or transactional id."""
    version, request = call.context.api_version, call.request
    kind = _COORDINATOR_KEYS.get(request.key_type if version else 0)
    if kind is None:
        return call.pass_on()
    if version >= 4:
        return call.divide("coordinator_keys", lambda key: None if call.may(Operation.DESCRIBE, kind, key) else kind)
    return call.pass_on() if call.may(Operation.DESCRIBE, kind, request.key) else call.refuse(kind)


def no_join(call: CheckedRequest, code: ErrorCode) -> messages.JoinGroupResponse:
    """Return the response to a JoinGroup of a client without READ on the group."""
    return messages.JoinGroupResponse(error_code=code, protocol_name=None if call.context.api_version >= 7 else "")


def subscription(call: CheckedRequest) -> Any:
    """Check DESCRIBE on each topic that a subscription names."""
    if all(map(call.describes, call.request.subscribed_topic_names or ())):
        return call.pass_on()
    return messages.ConsumerGroupHeartbeatResponse(error_code=_TOPIC_CODE)


def offset_fetch(call: CheckedRequest) -> Any:
    """Check DESCRIBE on each group, and on each topic of a group. A request for all topics of a group returns only
    those that the client may describe."""
    has_groups = call.context.api_version >= 8
    if not has_groups and not call.may(Operation.DESCRIBE, GROUP, call.request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return code_only(call, code) if call.context.api_version >= 2 else without_text(call, code)
    groups = call.request.groups if has_groups else [call.request]
    refused: dict[str, list[Any]] = {}
    allowed = []
    for group in groups:
        if call.may(Operation.DESCRIBE, GROUP, group.group_id):
            topics = [(one, call.name_of(one)) for one in group.topics or ()]
            kept = [one for one, name in topics if name is None or call.describes(name)]
            refused[group.group_id] = [one for one, _ in topics if one not in kept]
            allowed.append(changed(group, topics=None if group.topics is None else kept))

    def add(group: Any, found: Any) -> None:
        if group.topics is None:
            found.topics = [one for one in found.topics if call.describes(one.name)]
        elif refused[group.group_id] and not found.error_code:
            part = changed(group, topics=refused[group.group_id])
            request = messages.OffsetFetchRequest(groups=[part]) if has_groups else part
            error = error_response(request, call.context.api_version, _TOPIC_CODE)
            found.topics += error.groups[0].topics if has_groups else error.topics

    def change(response: messages.OffsetFetchResponse) -> None:
        for group, found in zip(allowed, response.groups if has_groups else [response], strict=True):
            add(group, found)
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        response.groups += [
            messages.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
            for group in groups
            if group.group_id not in refused
        ]

    return call.pass_on(change, groups=allowed) if has_groups else call.pass_on(change, topics=allowed[0].topics)


def hide_members(call: CheckedRequest) -> Any:
    """Replace a group by an error if a member has a partition of a topic that the client may not describe."""

    def change(response: messages.ConsumerGroupDescribeResponse) -> None:
        for number, group in enumerate(response.groups):
            topics = {
                one.topic_name
                for member in group.members
                for assignment in (member.assignment, member.target_assignment)
                for one in assignment.topic_partitions
            }
            if not all(map(call.describes, topics)):
                text = "The group has described topic(s) that the client is not authorized to describe."
                response.groups[number] = messages.DescribedConsumerGroup(
                    group_id=group.group_id, error_code=_TOPIC_CODE, error_message=text
                )

    return call.pass_on(change)


# Configurations and the cluster


def configs(operation: Operation, *, handled: IsHandled | None = None) -> Step:
    """Return a step that checks an operation on the resource of each configuration."""

    def step(call: CheckedRequest) -> Any:
        def refusal_of(one: Any) -> ResourceType | None:
            kind = _CONFIG_RESOURCES.get(one.resource_type)
            if kind is None or (handled is not None and handled(call, one)):
                return None
            name = CLUSTER_NAME if kind is CLUSTER else one.resource_name
            return None if call.may(operation, kind, name) else kind

        # as in Kafka, the error for a change of a broker's configuration has no message
        is_change = operation is Operation.ALTER_CONFIGS
        return call.divide("resources", refusal_of, {**TEXTS, CLUSTER: None} if is_change else TEXTS)

    return step


def is_invalid_change(call: CheckedRequest, one: Any) -> bool:
    """Return whether the handler refuses a change of configurations, whatever the permissions of the client are."""
    try:
        check_changes(changes_of(one))
    except ApiError:
        return True
    keys = [(other.resource_type, other.resource_name) for other in call.request.resources]
    return keys.count((one.resource_type, one.resource_name)) > 1


def cluster_operations(call: CheckedRequest) -> Any:
    """Remove the cluster operations that the client may not perform from the response."""
    return call.pass_on(lambda response: _restrict_cluster(call, response))


def _restrict_cluster(call: CheckedRequest, response: Any) -> None:
    if call.may_cluster(Operation.DESCRIBE):
        restrict_one(call, response, _CLUSTER_OPERATIONS, CLUSTER, CLUSTER_NAME)
    elif getattr(response, _CLUSTER_OPERATIONS) > 0:
        setattr(response, _CLUSTER_OPERATIONS, 0)


def no_replicas(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return the response to AlterReplicaLogDirs of a client without ALTER on the cluster."""
    result = messages.AlterReplicaLogDirPartitionResult
    results = [
        messages.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=[result(partition_index=number, error_code=code) for number in topic.partitions],
        )
        for directory in call.request.dirs
        for topic in directory.topics
    ]
    return messages.AlterReplicaLogDirsResponse(results=results)


def no_users(call: CheckedRequest, code: ErrorCode) -> Any:
    """Return the response to AlterUserScramCredentials of a client without ALTER on the cluster."""
    changes: list[Any] = [*call.request.deletions, *call.request.upsertions]
    names = dict.fromkeys(one.name for one in changes)
    result, text = messages.AlterUserScramCredentialsResult, TEXTS[CLUSTER]
    return messages.AlterUserScramCredentialsResponse(
        results=[result(user=name, error_code=code, error_message=text) for name in names]
    )
