# SPDX-License-Identifier: Apache-2.0
"""AddPartitionsToTxn: below transaction version 2 it comes before a transaction's first write to a partition.

Versions above 3 are between brokers. One partition that is refused lets the broker leave the others alone (55
OPERATION_NOT_ATTEMPTED): they are asked for again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ProducerIdAndEpoch
from kcodec.errors import DecodeError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.transactions.errors import Failed, failure
from kcodec.transactions.requests import OWN_CONCURRENT_BACKOFF, PASSING, CoordinatorCall

OPERATION_NOT_ATTEMPTED = 55
HIGHEST_CLIENT_VERSION = 3


def add_partitions(
    cluster: Cluster,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    deadline: float,
    *,
    on_unanswered: Callable[[], None],
    is_over: Callable[[], bool] = lambda: False,
) -> Flow[None]:
    """Add all of them. Raises Failed (resource: the partition, or the topic for a missing permission),
    DeliveryTimeoutError, DecodeError for an answer that leaves some out; whatever `is_over` stops."""
    doing = f"AddPartitionsToTxn of {transactional_id!r}"
    asked = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_unanswered=on_unanswered,
        is_over=is_over,
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    wanted = set(partitions)
    request = _request(transactional_id, producer, wanted)
    reply = yield from asked.ask(request, _first_error, highest=HIGHEST_CLIENT_VERSION)
    code, partition = _worst(reply.message)
    if code:
        raise refused(code, doing, transactional_id, partition)
    told = reply.message.results_by_topic_v3_and_below
    if missing := wanted - {
        (topic.name, each.partition_index) for topic in told for each in topic.results_by_partition
    }:
        raise DecodeError(f"{doing}: the response has no result for {min(missing)}")


def refused(code: int, doing: str, transactional_id: str, partition: TopicPartition | None) -> Failed:
    """The error of one partition."""
    resource: object = partition or transactional_id
    if code == 53:
        resource = transactional_id
    elif code == 29 and partition is not None:
        resource = partition.topic
    return failure("AddPartitionsToTxn", code, doing, resource=resource)


def _request(transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> Any:
    from kcodec.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic

    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
    )


def _worst(message: Any) -> tuple[int, TopicPartition | None]:
    """The first code that says something: one that passes, or 55, only if there is no other."""
    worst: tuple[int, TopicPartition | None] = 0, None
    for topic in message.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            code = result.partition_error_code
            says_little = worst[0] == OPERATION_NOT_ATTEMPTED or (worst[0] in PASSING and code not in PASSING)
            if code and (not worst[0] or (says_little and code != OPERATION_NOT_ATTEMPTED)):
                worst = code, TopicPartition(topic.name, result.partition_index)
    return worst


def _first_error(message: Any) -> int:
    return _worst(message)[0]
