# SPDX-License-Identifier: Apache-2.0
"""Transactions that no producer owns, and a job's progress in them, against a scripted coordinator in virtual time.

Real brokers and killed processes are in test_shared_transactions.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from transaction_script import CUT, HANG, LOST, ORDERS, REFUSED, Action, World

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionStateError,
    UnknownOutcomeError,
)
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.session.shared_transactions import SharedTransactionFlows
from kcodec.transactions.handle import TransactionHandle, WriterReceipt
from kcodec.transactions.requests import PASSING
from kcodec.transactions.shared import begin_shared

FIRST, SECOND = ORDERS, TopicPartition("orders", 1)
RECEIPTS = [WriterReceipt({FIRST: (3, 2)}), WriterReceipt({SECOND: (0, -1)})]
INTERRUPTIONS = (CUT, LOST, REFUSED)
RETRIED = [*sorted(PASSING), *INTERRUPTIONS]
SECONDS = 30.0


def begin(world: World, *partitions: TopicPartition, timeout: float = SECONDS) -> TransactionHandle:
    flow = begin_shared(world.cluster, "orders", partitions, 60_000, world.now + timeout)
    handle = world.run(flow)
    assert isinstance(handle, TransactionHandle)
    return handle


def flows(world: World, progress_partition: TopicPartition | None = None) -> SharedTransactionFlows:
    return SharedTransactionFlows(world.cluster, "orders", "progress", 60_000, progress_partition, lambda: world.now)


def requests(world: World, api: str) -> list[Any]:
    return [one.request for one in world.asked if one.api == api]


# -------------------------------------------------------------------------------------------------- begin_transaction


def test_the_new_flow_begins_with_init_producer_id_alone() -> None:
    world = World(2)
    assert begin(world, FIRST, SECOND) == TransactionHandle("orders", 7, 0, 2)
    assert world.apis() == ["InitProducerId"]
    assert world.asked[0].api == "FindCoordinator"
    (request,) = requests(world, "InitProducerId")
    assert (request.producer_id, request.producer_epoch, request.transaction_timeout_ms) == (-1, -1, 60_000)


@pytest.mark.parametrize("version", [0, 1])
def test_the_old_flow_adds_all_partitions_up_front(version: int) -> None:
    world = World(version)
    handle = begin(world, SECOND, FIRST, FIRST)
    assert handle == TransactionHandle("orders", 7, 0, version)
    assert world.apis() == ["InitProducerId", "AddPartitionsToTxn"]
    (request,) = requests(world, "AddPartitionsToTxn")
    assert [(topic.name, topic.partitions) for topic in request.v3_and_below_topics] == [("orders", [0, 1])]


def test_the_old_flow_refuses_a_begin_without_partitions() -> None:
    world = World(1)
    with pytest.raises(TransactionStateError, match=r"transaction\.version .* is 1: below 2, pass all partitions"):
        begin(world)
    assert "AddPartitionsToTxn" not in world.apis()


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn"])
@pytest.mark.parametrize("action", RETRIED)
def test_a_begin_repeats_what_passes(api: str, action: Action) -> None:
    world = World(1)
    world.plan(api, action, action)
    assert begin(world, FIRST).producer_id == 7
    assert len(requests(world, api)) == (1 if action == REFUSED else 3)


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn"])
def test_a_begin_without_a_response_ends_at_its_deadline(api: str) -> None:
    world = World(1)
    world.plan(api, *[HANG] * 10)
    started = world.now
    with pytest.raises(DeliveryTimeoutError, match=api):
        begin(world, FIRST, timeout=7.0)
    assert world.now - started <= 7.0
    world.plans.clear()
    assert begin(world, FIRST).producer_id == 7


@pytest.mark.parametrize(
    ("api", "code", "kind"),
    [
        ("FindCoordinator", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError),
        ("InitProducerId", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError),
        ("InitProducerId", ErrorCode.INVALID_TRANSACTION_TIMEOUT, FatalTransactionError),
        ("AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationError),
        ("AddPartitionsToTxn", ErrorCode.PRODUCER_FENCED, ProducerFencedError),
        ("AddPartitionsToTxn", ErrorCode.TRANSACTION_ABORTABLE, AbortableTransactionError),
    ],
)
def test_a_begin_raises_what_does_not_pass(api: str, code: ErrorCode, kind: type[BrokerError]) -> None:
    world = World(1)
    world.plan(api, code)
    with pytest.raises(kind) as raised:
        begin(world, FIRST)
    assert (raised.value.code, raised.value.name) == (code, code.name)


# ------------------------------------------------------------------------------------------------- SharedTransactions


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_reads_and_writes_the_progress(version: int) -> None:
    world = World(version)
    shared = flows(world)
    handle, progress = world.run(shared.begin([FIRST, SECOND], SECONDS))
    assert progress is None
    add = ["AddPartitionsToTxn"] if version < 2 else []
    assert world.apis() == ["InitProducerId", *add, "OffsetFetch"]
    (fetched,) = requests(world, "OffsetFetch")
    assert (fetched.require_stable, fetched.groups[0].group_id) == (True, "progress")
    del world.asked[:]
    world.run(shared.commit(handle, RECEIPTS, OffsetAndMetadata(1, '{"rows":3}'), SECONDS))
    offsets = ["AddOffsetsToTxn", "TxnOffsetCommit"] if version < 2 else ["TxnOffsetCommit"]
    assert world.apis() == ["DescribeTransactions", *offsets, "EndTxn"]
    (committed,) = requests(world, "TxnOffsetCommit")
    assert (committed.group_id, committed.generation_id_or_member_epoch, committed.member_id) == ("progress", -1, "")
    (topic,) = committed.topics
    assert [(topic.name, one.partition_index, one.committed_offset) for one in topic.partitions] == [("orders", 0, 1)]
    handle, progress = world.run(shared.begin([FIRST, SECOND], SECONDS))
    assert progress == OffsetAndMetadata(1, '{"rows":3}')


@pytest.mark.parametrize(("version", "epoch"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_later_begin_expects_the_epoch_of_the_last_end(version: int, epoch: int, is_commit: bool) -> None:
    """So it fails once another process has taken the id over; the first begin takes it over itself."""
    world = World(version)
    shared = flows(world)
    handle, _ = world.run(shared.begin([FIRST], SECONDS))
    world.run(
        shared.commit(handle, [WriterReceipt({FIRST: (0, -1)})], 1, SECONDS)
        if is_commit
        else shared.abort(handle, SECONDS)
    )
    world.run(shared.begin([FIRST], SECONDS))
    first, second = requests(world, "InitProducerId")
    assert (first.producer_id, first.producer_epoch) == (-1, -1)
    assert (second.producer_id, second.producer_epoch) == (7, epoch)


def test_a_begin_after_a_take_over_raises_fenced_every_time() -> None:
    world = World(2)
    shared = flows(world)
    world.run(shared.begin([FIRST], SECONDS))
    world.plan("InitProducerId", ErrorCode.PRODUCER_FENCED)
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match="'orders' took over"):
            world.run(shared.begin([FIRST], SECONDS))
    assert world.apis("DescribeTransactions") == ["InitProducerId", "OffsetFetch", "InitProducerId"]


@pytest.mark.parametrize("is_done", [True, False])
def test_progress_has_the_outcome_of_a_lost_commit(is_done: bool) -> None:
    """EndTxn was carried out and its responses were lost, or it never arrived."""
    world = World(2)
    shared = flows(world)
    handle, _ = world.run(shared.begin([FIRST], SECONDS))
    world.plan("EndTxn", *[CUT if is_done else LOST] * 100)
    with pytest.raises(UnknownOutcomeError):
        world.run(shared.commit(handle, [WriterReceipt({FIRST: (3, 2)})], 1, 5.0))
    world.plans.clear()
    _, progress = world.run(shared.begin([FIRST], SECONDS))
    assert progress == (OffsetAndMetadata(1) if is_done else None)


@pytest.mark.parametrize("action", RETRIED)
def test_the_progress_is_asked_for_until_it_is_final(action: Action) -> None:
    """UNSTABLE_OFFSET_COMMIT among them: the markers of the last commit are not written yet."""
    world = World(2)
    world.coordinator.committed[FIRST] = 4, "text"
    world.plan("OffsetFetch", action, action)
    _, progress = world.run(flows(world).begin([FIRST], SECONDS))
    assert progress == OffsetAndMetadata(4, "text")


def test_progress_that_stays_unstable_ends_at_the_deadline() -> None:
    world = World(2)
    world.plan("OffsetFetch", *[ErrorCode.UNSTABLE_OFFSET_COMMIT] * 1000)
    started = world.now
    with pytest.raises(DeliveryTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        world.run(flows(world).begin([FIRST], 6.0))
    assert world.now - started <= 6.0


def test_a_group_that_may_not_be_read_is_named() -> None:
    world = World(2)
    world.plan("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError) as raised:
        world.run(flows(world).begin([FIRST], SECONDS))
    assert raised.value.resource == "progress"


def test_progress_is_kept_for_a_named_partition() -> None:
    world = World(2)
    elsewhere = TopicPartition("progress-of-jobs", 3)
    shared = flows(world, elsewhere)
    handle, _ = world.run(shared.begin([FIRST, TopicPartition("payments", 0)], SECONDS))
    world.run(shared.commit(handle, [], 9, SECONDS))
    assert world.coordinator.committed == {elsewhere: (9, "")}


@pytest.mark.parametrize("partitions", [[], [FIRST, TopicPartition("payments", 0)]])
def test_an_ambiguous_progress_partition_is_refused(partitions: list[TopicPartition]) -> None:
    world = World(2)
    with pytest.raises(ValueError, match="progress_partition="):
        world.run(flows(world).begin(partitions, SECONDS))
    assert world.asked == []


def test_a_handle_of_another_id_is_refused() -> None:
    world = World(2)
    shared = flows(world, FIRST)
    other = TransactionHandle("payments", 7, 0, 2)
    for flow in (shared.commit(other, [], 1, SECONDS), shared.abort(other, SECONDS)):
        with pytest.raises(ValueError, match="'payments', not of 'orders'"):
            world.run(flow)
    with pytest.raises(ValueError, match=r"the progress partition is unknown, because begin\(\) was not called here"):
        world.run(flows(world).commit(TransactionHandle("orders", 7, 0, 2), [], 1, SECONDS))
