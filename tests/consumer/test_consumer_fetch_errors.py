# SPDX-License-Identifier: Apache-2.0
"""The fetcher on scripted brokers: which replica is asked, every error code, answers that are too large.

Scenarios of Kafka's FetcherTest and FetchRequestManagerTest.
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from typing import Any

import pytest
from fetch_script import FetchScript, error, numbered

from kcodec import AuthorizationError, BrokerError, TopicPartition, TransportError
from kcodec.consumer.assignment import RESET, VALIDATION
from kcodec.errors import AuthenticationError, LimitExceededError
from kcodec.flow import ByVersion
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import (
    FetchEpochEndOffset,
    FetchLeaderIdAndEpoch,
    FetchNodeEndpoint,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
)

ORDERS = TopicPartition("orders", 0)


# Replicas and leaders


def test_the_preferred_replica_is_read_from_and_left_when_it_fails() -> None:
    world = FetchScript(nodes=2, client_rack="b", metadata_max_age=20.0)
    log = world.log()
    numbered(log, 10)

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        if node == 1 and is_preferring:
            return error(partition, 0, preferred_read_replica=2, high_watermark=log.end)
        return world._read(1, partition, asked)

    is_preferring = True
    world.data_of = data_of
    world.assign(ORDERS)
    assert len(world.drain(1.0)) == 10
    assert [node for _, node, _, _ in world.fetches][:2] == [1, 2]
    assert {node for _, node, _, _ in world.fetches[1:]} == {2}
    assert world.fetches[0][3].rack_id == "b"
    is_preferring = False
    world.unreachable.add(2)
    numbered(log, 10, start=10)
    assert len(world.drain(5.0)) == 10
    assert world.fetches[-1][1] == 1
    is_preferring, world.unreachable = True, set()
    world.run(5.0)
    assert world.fetches[-1][1] == 2
    before = len(world.fetches)
    world.run(25.0)  # the preference ends, and the leader says it again
    assert 1 in {node for _, node, _, _ in world.fetches[before:]}


def test_a_follower_that_lacks_the_offset_sends_us_to_the_leader() -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    asked_leader = []

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        if node == 2:
            return error(partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        asked_leader.append(asked)
        if len(asked_leader) == 1:
            return error(partition, 0, preferred_read_replica=2, high_watermark=log.end)
        return None

    world.data_of = data_of
    world.assign(ORDERS)
    assert len(world.drain(2.0)) == 10
    assert world.state().awaiting is None


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_leader_named_in_the_answer_is_asked_at_once(code: int) -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    world.move_leader(log, 2)
    numbered(log, 10, start=10)
    world.metadata_error["orders"] = 5  # metadata is of no help

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        hint = FetchLeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        return error(partition, code, current_leader=hint) if node == 1 else None

    world.data_of = data_of
    world.edit = lambda message: message.node_endpoints.append(FetchNodeEndpoint(node_id=2, host="broker2", port=9092))
    assert len(world.drain(0.5)) == 10
    assert world.fetches[-1][1] == 2


def test_without_a_hint_metadata_finds_the_new_leader() -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    world.move_leader(log, 2)
    numbered(log, 10, start=10)
    assert len(world.drain(2.0)) == 10


def test_epochs_are_sent_and_a_diverging_log_is_validated() -> None:
    world = FetchScript()
    log = world.log()
    log.leader_epoch = 3
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    (asked,) = [part for _, _, _, request in world.fetches for topic in request.topics for part in topic.partitions][1:]
    assert (asked.current_leader_epoch, asked.last_fetched_epoch) == (3, 3)
    diverging = FetchEpochEndOffset(epoch=2, end_offset=7)
    world.data_of = lambda node, partition, asked: error(partition, 0, diverging_epoch=diverging, high_watermark=20)
    world.run(1.0)
    assert world.state().awaiting == VALIDATION
    assert world.state().position == 10


# Errors


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
def test_errors_that_pass_are_waited_out(code: int) -> None:
    world = FetchScript()
    expected = numbered(world.log(), 10)
    reported = []

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        reported.append(world.now)
        return error(partition, code) if len(reported) <= 4 else None

    world.data_of = data_of
    updates = world.cluster.updates
    world.assign(ORDERS)
    assert world.drain(3.0) == expected
    assert all(later - earlier >= 0.09 for earlier, later in pairwise(reported[:5]))
    if code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ):
        assert world.cluster.updates > updates + 1


def test_an_error_of_the_server_that_does_not_pass_is_raised_now_and_then() -> None:
    world = FetchScript(request_timeout=2.0)
    numbered(world.log(), 10)
    world.data_of = lambda node, partition, asked: error(partition, -1)
    world.assign(ORDERS)
    raised = 0
    for _ in range(100):
        world.run(0.1)
        try:
            assert world.fetcher.buffer.take(10) == []
        except BrokerError as failure:
            assert failure.code == ErrorCode.UNKNOWN_SERVER_ERROR and failure.resource == ORDERS
            raised += 1
    assert 3 <= raised <= 5
    world.data_of = lambda *_: None
    assert len(world.drain(3.0)) == 10


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        1000,
    ],
)
def test_errors_that_nothing_cures_are_raised_and_reading_goes_on_where_they_end(code: int) -> None:
    world = FetchScript()
    numbered(world.log(), 10)
    world.data_of = lambda node, partition, asked: error(partition, code)
    world.assign(ORDERS)
    world.run(0.5)
    kind = AuthorizationError if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else BrokerError
    with pytest.raises(kind) as raised:
        world.fetcher.buffer.take(10)
    assert raised.value.code == code
    assert raised.value.resource == ("orders" if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else ORDERS)
    world.data_of = lambda *_: None
    world.run(0.5)
    found = 0
    for _ in range(3):
        try:
            found += len(world.fetcher.buffer.take(10))
        except kind:
            continue
    assert found == 10


@pytest.mark.parametrize("has_records", [False, True])
def test_an_offset_out_of_range_is_reset_once_the_records_before_it_are_taken(has_records: bool) -> None:
    world = FetchScript()
    log = world.log()
    if has_records:
        numbered(log, 10)
    world.assign(ORDERS)
    if has_records:
        world.data_of = lambda node, partition, asked: (
            error(partition, ErrorCode.OFFSET_OUT_OF_RANGE) if asked.fetch_offset == 10 else None
        )
        assert len(world.poll()) == 10
        world.run(0.5)
    else:
        world.data_of = lambda node, partition, asked: error(partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert world.poll() == []
    state = world.state()
    assert (state.awaiting, state.reset_to) == (RESET, None)
    assert state.position == (10 if has_records else 0)


def test_a_leader_that_knows_no_such_epoch_is_asked_without_it() -> None:
    """As when a log was brought from another cluster: Kafka's Partition.readRecords calls that out of range."""
    world = FetchScript()
    log = world.log()
    expected = [*numbered(log, 10)]
    world.data_of = lambda node, partition, asked: (
        error(partition, ErrorCode.OFFSET_OUT_OF_RANGE) if asked.last_fetched_epoch >= 0 else None
    )
    world.assign(ORDERS)
    assert world.drain(1.0) == expected
    expected = numbered(log, 10, start=10)
    assert world.drain(1.0) == expected
    assert world.state().awaiting is None
    world.data_of = lambda node, partition, asked: error(partition, ErrorCode.OFFSET_OUT_OF_RANGE)
    world.run(1.0)
    assert (world.state().awaiting, world.state().position) == (RESET, 20)


def test_a_broker_that_does_not_answer_is_tried_again_and_others_go_on() -> None:
    world = FetchScript(nodes=2)
    world.log(partitions=2)
    expected = [numbered(log, 10, start=100 * n) for n, log in enumerate(world.logs())]
    world.unreachable.add(1)
    world.assign(("orders", 0), ("orders", 1))
    assert world.drain(2.0) == expected[1]
    world.unreachable.clear()
    assert world.drain(5.0) == expected[0]


def test_a_refused_login_is_raised() -> None:
    world = FetchScript()
    numbered(world.log(), 10)
    world.call_errors = [AuthenticationError("the password is wrong")]
    world.assign(ORDERS)
    world.run(0.5)
    with pytest.raises(AuthenticationError, match="wrong"):
        world.fetcher.buffer.take(1)
    assert len(world.drain(2.0)) == 10


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_answer_above_max_response_bytes_is_an_error_of_the_partition_it_is_about(partitions: int) -> None:
    world = FetchScript()
    world.log(partitions=partitions)
    for n, log in enumerate(world.logs()):
        numbered(log, 10, start=100 * n)
    usual = world.start_call
    is_fixed = False

    def start_call(call: Any, done: Any) -> Any:
        if not is_fixed and call.kind.__name__ == "FetchRequest" and call.node > 0:
            wanted = call.request.build(18)
            if any(part.partition == 0 for topic in wanted.topics for part in topic.partitions):
                limit = LimitExceededError(
                    "a frame of 900 bytes exceeds max_response_bytes=500",
                    limit="max_response_bytes",
                    value=500,
                    claimed=900,
                )
                failure = TransportError("broker 1: " + str(limit), possibly_sent=True)
                failure.__cause__ = limit
                world.scheduler.call_soon(lambda: done(None, failure))
                return lambda: None
            call = copy(call)
            call.request = ByVersion(FetchRequest, lambda version: wanted)
        return usual(call, done)

    world.start_call = start_call  # type: ignore[method-assign]
    world.assign(*(("orders", n) for n in range(partitions)))
    found: list[Any] = []
    for _ in range(300):
        world.run(0.02)
        try:
            found += world.fetcher.buffer.take(100)
        except LimitExceededError as failure:
            raised = failure
    assert raised.limit == "max_response_bytes"
    assert raised.topic_partition == ORDERS and raised.next_offset == 1
    assert "orders-0" in str(raised) and "max_response_bytes=500" in str(raised)
    is_fixed = True
    world.assignment.seek(ORDERS, 0)
    for _ in range(100):
        world.run(0.02)
        found += world.fetcher.buffer.take(100)
    assert len(found) == 10 * partitions


def test_a_batch_above_max_partition_fetch_bytes_is_read() -> None:
    world = FetchScript(max_partition_fetch_bytes=100)
    log = world.log()
    log.append_values(b"x" * 5000).append_values(b"small")
    world.assign(ORDERS)
    assert [len(value or b"") for value in world.drain()] == [5000, 5]


def test_a_broker_that_cuts_the_first_batch_is_asked_for_more() -> None:
    world = FetchScript(max_partition_fetch_bytes=100)
    log = world.log()
    log.append_values(b"x" * 5000)

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData:
        data = world._read(node, partition, asked)
        data.records = bytes(data.records or b"")[: asked.partition_max_bytes]
        return data

    world.data_of = data_of
    world.assign(ORDERS)
    assert [len(value or b"") for value in world.drain()] == [5000]


def test_a_defect_in_a_fetch_ends_the_flow_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer that runs the flow then raises the error. The request was repeated without a pause."""
    world = FetchScript()
    numbered(world.log(), 10)

    def fail(*arguments: Any) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(world.fetcher._responses, "take", fail)
    world.task.when_done(lambda _: None)
    world.assign(ORDERS)
    world.run(5.0)
    assert isinstance(world.task.error, LookupError)
    assert len(world.fetches) == 1
