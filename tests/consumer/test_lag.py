# SPDX-License-Identifier: Apache-2.0
"""Lag by log end and by last stable offset, and the transaction that holds the latter back, from scripted brokers."""

from __future__ import annotations

from typing import Any

import pytest
from position_script import PositionScript

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.admin import flows
from kcodec.consumer.lag import BlockingTransaction, PartitionLag, lag
from kcodec.errors import AuthorizationError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def world_with(**logs: dict[str, Any]) -> PositionScript:
    world = PositionScript(auto_offset_reset="earliest")
    for number, fields in enumerate(logs.values()):
        world.log(TopicPartition("orders", number), **fields)
    return world


def held(world: PositionScript, *, ids: dict[int, str], codes: dict[str, int] | None = None) -> None:
    """Producers 70 (open at 8) and 71 (open at 6) and 72 (nothing open) in every partition."""
    refused = codes or {}

    def producers(node: int, request: Any) -> Any:
        states = [
            messages.ProducerState(
                producer_id=producer_id, producer_epoch=3, last_timestamp=5000, current_txn_start_offset=start
            )
            for producer_id, start in ((70, 8), (71, 6), (72, -1))
        ]
        return messages.DescribeProducersResponse(
            topics=[
                messages.DescribeProducersTopicResponse(
                    name=topic.name,
                    partitions=[
                        messages.DescribeProducersPartitionResponse(
                            partition_index=number,
                            error_code=refused.get("DescribeProducers", 0),
                            active_producers=[] if "DescribeProducers" in refused else states,
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def listed(node: int, request: Any) -> Any:
        found = [
            messages.ListedTransactionState(transactional_id=name, producer_id=number, transaction_state="Ongoing")
            for number, name in ids.items()
            if node == 2 and number in request.producer_id_filters
        ]
        code = refused.get("ListTransactions", 0)
        return messages.ListTransactionsResponse(error_code=code, transaction_states=[] if code else found)

    def described(node: int, request: Any) -> Any:
        return messages.DescribeTransactionsResponse(
            transaction_states=[
                messages.DescribedTransactionState(
                    error_code=refused.get("DescribeTransactions", 0),
                    transactional_id=name,
                    transaction_state="Ongoing",
                    transaction_start_time_ms=4000,
                    producer_id=71,
                    producer_epoch=3,
                )
                for name in request.transactional_ids
            ]
        )

    world.answers |= {"DescribeProducers": producers, "ListTransactions": listed, "DescribeTransactions": described}


def consumer_lag(world: PositionScript) -> dict[TopicPartition, PartitionLag]:
    return world.run_flow(lag(world.cluster, world.assignment, "g", 30.0))


def test_lag_has_both_ends_and_the_transaction_between_them() -> None:
    world = world_with(a={"end": 12, "stable": 6}, b={"end": 10})
    held(world, ids={71: "copy-1"})
    world.offsets[A] = OffsetAndMetadata(4)
    world.assign(A, B)
    world.run_until_idle()
    world.assignment.seek(A, 5)
    found = consumer_lag(world)
    holder = BlockingTransaction("copy-1", 71, 3, 6, 4000, 5000)
    assert found[A] == PartitionLag(5, 4, 12, 6, holder)
    assert (found[A].lag, found[A].stable_lag) == (7, 1)
    with pytest.warns(DeprecationWarning, match=r"PartitionLag\.holder is deprecated: use blocking_transaction"):
        assert found[A].holder == holder
    with pytest.warns(DeprecationWarning, match="use blocking_transaction_error"):
        assert found[A].holder_unknown is None
    assert found[B] == PartitionLag(0, None, 10, 10)
    assert (found[B].lag, found[B].stable_lag) == (10, 10)
    producers = [request for request in world.requests if type(request).__name__ == "DescribeProducersRequest"]
    assert [topic.partition_indexes for request in producers for topic in request.topics] == [[0]]


def test_what_is_fully_read_has_no_lag_though_its_last_record_is_a_marker() -> None:
    world = world_with(a={"end": 12})
    world.assign(A)
    world.run_until_idle()
    world.assignment.seek(A, 12)
    assert (consumer_lag(world)[A].lag, consumer_lag(world)[A].stable_lag) == (0, 0)
    world.assignment.seek(A, 13)  # read since the ends were asked for
    assert consumer_lag(world)[A].lag == 0


def test_without_position_or_committed_offset_there_is_no_lag_to_tell() -> None:
    world = world_with(a={"end": 12})
    world.code_of = lambda api, node, partition: (
        ErrorCode.UNSTABLE_OFFSET_COMMIT if api == "OffsetFetch" and world.requests[-1].require_stable else 0
    )
    world.assign(A)
    assert consumer_lag(world)[A] == PartitionLag(None, None, 12, 12)
    assert consumer_lag(world)[A].lag is None and consumer_lag(world)[A].stable_lag is None


def test_an_offset_that_a_transaction_is_about_to_commit_is_not_waited_for() -> None:
    world = world_with(a={"end": 12})
    world.offsets[A] = OffsetAndMetadata(4)
    world.code_of = lambda api, node, partition: (
        ErrorCode.UNSTABLE_OFFSET_COMMIT if api == "OffsetFetch" and world.requests[-1].require_stable else 0
    )
    world.assign(A)
    before = world.now
    assert consumer_lag(world)[A].committed == 4
    assert world.now - before < 1.0


@pytest.mark.parametrize(
    ("codes", "ids", "reported"),
    [
        ({}, {}, "no transactional id has this producer id"),
        ({"ListTransactions": 31}, {71: "copy-1"}, "CLUSTER_AUTHORIZATION_FAILED"),
        (
            {"DescribeTransactions": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED},
            {71: "copy-1"},
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        ),
    ],
)
def test_a_blocking_transaction_without_an_id_has_the_reason(
    codes: dict[str, int], ids: dict[int, str], reported: str
) -> None:
    world = world_with(a={"end": 12, "stable": 6})
    held(world, ids=ids, codes=codes)
    world.assign(A)
    found = consumer_lag(world)[A]
    assert found.blocking_transaction is not None and (
        found.blocking_transaction.producer_id,
        found.blocking_transaction.first_offset,
    ) == (71, 6)
    assert found.blocking_transaction.since is None
    assert reported in str(found.blocking_transaction_error)


def test_without_permission_to_describe_producers_the_reason_is_given() -> None:
    world = world_with(a={"end": 12, "stable": 6})
    held(world, ids={}, codes={"DescribeProducers": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    world.assign(A)
    found = consumer_lag(world)[A]
    assert found.blocking_transaction is None and "TOPIC_AUTHORIZATION_FAILED" in str(found.blocking_transaction_error)
    world.highest["DescribeProducers"] = -1
    assert "DescribeProducers" in str(consumer_lag(world)[A].blocking_transaction_error)


def test_a_partition_that_is_not_assigned_is_refused_and_a_missing_permission_raised() -> None:
    world = world_with(a={"end": 12})
    world.assign(A)
    with pytest.raises(ValueError, match="orders-1 is not assigned"):
        world.run_flow(lag(world.cluster, world.assignment, None, 5.0, [B]))
    world.code_of = lambda api, node, partition: 29
    with pytest.raises(AuthorizationError):
        consumer_lag(world)


def test_admin_returns_the_lag_of_a_group() -> None:
    world = world_with(a={"end": 12, "stable": 6}, b={"end": 10})
    held(world, ids={71: "copy-1"})
    world.offsets[A] = OffsetAndMetadata(4)
    found = world.run_flow(flows.describe_group_lag(world.context, "g", [A, B]))
    assert found[A] == PartitionLag(None, 4, 12, 6, BlockingTransaction("copy-1", 71, 3, 6, 4000, 5000))
    assert (found[A].lag, found[A].stable_lag, found[B].lag) == (8, 2, None)
