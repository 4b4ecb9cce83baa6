# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: the offsets of share groups (KIP-932). Brokers store the state of each record for these groups. A
share group therefore has a start offset for each partition instead of a committed offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kcodec.admin.checks import check_group_id
from kcodec.arguments import partitions_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, by_topic, request_items
from kcodec.cluster.retry_routes import CoordinatorOf
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode, broker_error


@dataclass(frozen=True)
class ShareGroupOffset:
    """The position of a share group in a partition.

    start_offset: The first offset that is not yet acknowledged or archived.
    leader_epoch: Epoch of the leader that has reported it; None if it is unknown.
    lag: Number of records that are not yet acknowledged or archived; None if it is unknown (Kafka before 4.2).
    """

    start_offset: int
    leader_epoch: int | None
    lag: int | None


def list_share_group_offsets(
    context: CallContext,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, ShareGroupOffset | None]]:
    """Return the start offsets of a share group. The value of a partition is None if the group has no start offset
    there yet.

    group_id: Name of the group.
    partitions: Partitions to return. None: all partitions in which the group has an offset.

    A group that does not exist, or has another type, has no offsets. Raise UnsupportedError before Kafka 4.1. Raise
    BrokerError, or AuthorizationError without the permission.
    """
    check_group_id(group_id)
    topics = None
    if partitions is not None:
        topics = [
            messages.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions_of(partitions)).items()
        ]
    group = messages.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
    handler: ApiHandler[str, dict[TopicPartition, ShareGroupOffset | None]] = ApiHandler(
        "list offsets of share group",
        CoordinatorOf(context.cluster, "group", group_id),
        lambda items, until: messages.DescribeShareGroupOffsetsRequest(groups=[group]),
        _offsets,
    )
    outcome = yield from request_items(context, [group_id], handler, context.deadline(timeout))
    return outcome.value()[group_id]


def _offsets(response: Any, items: list[str]) -> Iterator[tuple[str, ItemResult]]:
    for group in response.groups:
        found: dict[TopicPartition, ShareGroupOffset | None] = {}
        for topic in group.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.topic_name, one.partition_index)
                if one.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    doing = f"list offset of share group {group.group_id!r} in {partition}"
                    raise broker_error(one.error_code, doing, message=one.error_message)
                found[partition] = _offset(one)
        yield group.group_id, ItemResult(group.error_code, found, group.error_message)


def _offset(one: Any) -> ShareGroupOffset | None:
    if one.error_code or one.start_offset < 0:
        return None
    epoch, lag = (None if value < 0 else value for value in (one.leader_epoch, one.lag))
    return ShareGroupOffset(one.start_offset, epoch, lag)
