# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group inside a transaction: TxnOffsetCommit, and AddOffsetsToTxn before it in the old flow.

They count with the commit, and with the generation: a member that left the group (KIP-447) is refused, and with it the
transaction. From transaction version 2 on TxnOffsetCommit (version 5) adds the group to the transaction by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import DecodeError
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.transactions.errors import Failed, failure
from kcodec.transactions.requests import HIGHEST_VERSION, OWN_CONCURRENT_BACKOFF, PASSING, CoordinatorCall

#: The first version of TxnOffsetCommit that adds the group by itself, and the first that names a generation.
NEW_FLOW_VERSION, GENERATION_VERSION = 5, 3
_AUTHORIZATION_OF_TOPIC, _AUTHORIZATION_OF_GROUP, _AUTHORIZATION_OF_ID = 29, 30, 53

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def check_group_metadata(group: object, stacklevel: int) -> ConsumerGroupMetadata:
    """What a caller gave: ConsumerGroupMetadata, or a group id, of which a warning says what it does not protect."""
    if isinstance(group, str):
        warnings.warn(
            f"offsets of group {group!r} are committed by its id alone: no generation fences them, so after a "
            "rebalance two members may commit for the same partition. Pass the consumer's ConsumerGroupMetadata, "
            "unless its partitions were assigned with assign()",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
        group = ConsumerGroupMetadata(group)
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(f"group_metadata must be a ConsumerGroupMetadata, got {type(group).__name__}")
    if not group.group_id:
        raise ValueError("group_metadata: group_id is empty")
    return group


def add_offsets(
    cluster: Cluster,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group_id: str,
    deadline: float,
    on_unanswered: Callable[[], None],
) -> Flow[None]:
    """AddOffsetsToTxn: the old flow, once a group and transaction. Raises Failed, DeliveryTimeoutError."""
    from kcodec.protocol.messages.transactions import AddOffsetsToTxnRequest

    doing = f"AddOffsetsToTxn of {transactional_id!r} for group {group_id!r}"
    asked = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_unanswered=on_unanswered,
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id=group_id,
    )
    reply = yield from asked.ask(request, lambda message: int(message.error_code))
    code = reply.message.error_code
    if code:
        resource = group_id if code == _AUTHORIZATION_OF_GROUP else transactional_id
        raise failure("AddOffsetsToTxn", code, doing, resource=resource)


def commit_offsets(
    cluster: Cluster,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Offsets,
    group: ConsumerGroupMetadata,
    deadline: float,
    *,
    is_new_flow: bool,
    on_unanswered: Callable[[], None],
    highest_version: int = HIGHEST_VERSION,
) -> Flow[None]:
    """TxnOffsetCommit, asked of the group's coordinator. Raises Failed (resource: group, topic or partition),
    DeliveryTimeoutError, DecodeError for an answer that leaves some out."""
    doing = f"TxnOffsetCommit of {transactional_id!r} for group {group.group_id!r}"
    asked = CoordinatorCall(
        cluster,
        "group",
        group.group_id,
        doing,
        deadline,
        on_unanswered=on_unanswered,
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    needs_generation = group.generation_id >= 0 or group.member_id or group.group_instance_id is not None
    lowest = NEW_FLOW_VERSION if is_new_flow else GENERATION_VERSION if needs_generation else 0
    highest = NEW_FLOW_VERSION if is_new_flow else min(NEW_FLOW_VERSION - 1, highest_version)
    request = _request(transactional_id, producer, offsets, group)
    reply = yield from asked.ask(request, lambda message: _worst(message)[0], lowest=lowest, highest=highest)
    code, partition = _worst(reply.message)
    if code:
        raise _refused(code, doing, transactional_id, group, partition)
    told = reply.message.topics
    if missing := offsets.keys() - {(topic.name, each.partition_index) for topic in told for each in topic.partitions}:
        raise DecodeError(f"{doing}: the response has no result for {min(missing)}")


def _request(
    transactional_id: str, producer: ProducerIdAndEpoch, offsets: Offsets, group: ConsumerGroupMetadata
) -> Any:
    from kcodec.protocol.messages.transactions import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
    )

    topics: dict[str, list[Any]] = {}
    for (topic, partition), found in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                committed_metadata=found.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
    )


def _worst(message: Any) -> tuple[int, TopicPartition | None]:
    """The first code that says something; one that passes only if there is no other."""
    worst: tuple[int, TopicPartition | None] = 0, None
    for topic in message.topics:
        for part in topic.partitions:
            if part.error_code and (not worst[0] or (worst[0] in PASSING and part.error_code not in PASSING)):
                worst = part.error_code, TopicPartition(topic.name, part.partition_index)
    return worst


def _refused(
    code: int, doing: str, transactional_id: str, group: ConsumerGroupMetadata, partition: TopicPartition | None
) -> Failed:
    resource: object = partition
    if code == _AUTHORIZATION_OF_TOPIC and partition is not None:
        resource = partition.topic
    elif code == _AUTHORIZATION_OF_ID:
        resource = transactional_id
    elif code == _AUTHORIZATION_OF_GROUP or code in (22, 25, 27, 82, 110, 113):
        # The generation, the member, the instance: of the group, not of one partition.
        resource = group.group_id
    return failure("TxnOffsetCommit", code, doing, resource=resource)
