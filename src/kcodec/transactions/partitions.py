# SPDX-License-Identifier: Apache-2.0
"""AddPartitionsToTxn: below transaction version 2 it precedes a transaction's first write to a partition.

Only brokers use versions above 3. If one partition is rejected, the broker does not add the others
(OPERATION_NOT_ATTEMPTED), and they are requested again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import DecodeError
from kcodec.flow import Flow
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import failure
from kcodec.transactions.requests import OWN_CONCURRENT_BACKOFF, CoordinatorCall, worst_result

HIGHEST_CLIENT_VERSION = 3


def add_partitions(
    cluster: Cluster,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    deadline: float,
    *,
    on_no_response: Callable[[], None],
    is_over: Callable[[], bool],
) -> Flow[None]:
    """Add these partitions to the transaction. Raise Failed (resource: the partition, or the topic for a missing
    permission),
    DeliveryTimeoutError, DecodeError for an incomplete response, and the last error if `is_over`."""
    doing = f"AddPartitionsToTxn of {transactional_id!r}"
    coordinator = CoordinatorCall(
        cluster,
        "transaction",
        transactional_id,
        doing,
        deadline,
        on_no_response=on_no_response,
        is_over=is_over,
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    requested = set(partitions)
    request = _request(transactional_id, producer, requested)
    reply = yield from coordinator.send(
        request, lambda message: worst_result(_results(message))[0], highest=HIGHEST_CLIENT_VERSION
    )
    results = list(_results(reply.message))
    code, partition = worst_result(results)
    if code:
        resources: dict[int, object] = {
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactional_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED: partition and partition.topic,
        }
        raise failure("AddPartitionsToTxn", code, doing, resource=resources.get(code) or partition)
    if missing := requested - {partition for _, partition in results}:
        raise DecodeError(f"{doing}: the response has no result for {min(missing)}")


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


def _results(message: Any) -> Iterator[tuple[int, TopicPartition]]:
    for topic in message.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            yield result.partition_error_code, TopicPartition(topic.name, result.partition_index)
