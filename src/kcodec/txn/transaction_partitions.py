# SPDX-License-Identifier: Apache-2.0
"""AddPartitionsToTxn: below transaction version 2 it comes before a transaction's first write to a partition.

Versions above 3 are between brokers. One partition that is refused lets the broker leave the others alone (55
OPERATION_NOT_ATTEMPTED): they are asked for again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kcodec.offsets import TopicPartition
from kcodec.protocol.flow import Flow
from kcodec.txn.cluster import Cluster
from kcodec.txn.coordination import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_GONE,
    OWN_CONCURRENT_BACKOFF,
    PASSING,
    CoordinatorCall,
)
from kcodec.txn.producer_id import ProducerIdAndEpoch
from kcodec.txn.transaction_errors import Failed, failure

OPERATION_NOT_ATTEMPTED = 55
#: 3: the topic was made a moment ago, or is about to be.
UNKNOWN_TOPIC_OR_PARTITION = 3
_REPEATED = PASSING | COORDINATOR_GONE | {CONCURRENT_TRANSACTIONS, UNKNOWN_TOPIC_OR_PARTITION}
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
    DeliveryTimeoutError; whatever `is_over` stops."""
    doing = f"AddPartitionsToTxn of {transactional_id!r}"
    asked = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_unanswered=on_unanswered,
        is_over=is_over,
        also_passing=frozenset({UNKNOWN_TOPIC_OR_PARTITION}),
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    request = _request(transactional_id, producer, partitions)
    reply = yield from asked.ask(request, _first_error, highest=HIGHEST_CLIENT_VERSION)
    code, partition = _worst(reply.message)
    if code:
        raise refused(code, doing, transactional_id, partition)


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
    for topic, partition in sorted(set(partitions)):
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
    )


def _worst(message: Any) -> tuple[int, TopicPartition | None]:
    """The first code that says something; one that passes only if there is no other, 55 never alone."""
    worst: tuple[int, TopicPartition | None] = 0, None
    for topic in message.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            code = result.partition_error_code
            if not code or code == OPERATION_NOT_ATTEMPTED:
                continue
            if not worst[0] or (worst[0] in _REPEATED and code not in _REPEATED):
                worst = code, TopicPartition(topic.name, result.partition_index)
    return worst


def _first_error(message: Any) -> int:
    return _worst(message)[0]
