# SPDX-License-Identifier: Apache-2.0
"""The flows of transactions against a scripted coordinator, in virtual time: what is sent, and what is left.

Errors are in test_transaction_errors.py, lost answers in test_transaction_unanswered.py, what a real broker answers in
test_transactions.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from transaction_script import (
    BOTH,
    CUT,
    GROUP,
    HANG,
    OFFSETS,
    ORDERS,
    Action,
    World,
    begun,
    make_manager,
)
from unnarrowed import unnarrowed

from kcodec.cluster.metadata import FinalizedFeatures
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.cluster.values import NO_UUID, Topic
from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    DeliveryTimeoutError,
    ProducerFencedError,
    TransactionStateError,
    UnsupportedError,
)
from kcodec.flow import Flow
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.transactions import completion
from kcodec.transactions.commit_result import CommitResult
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.markers import MOST_SKIPPED, NEEDLESS_PROBES, PROBE_SECONDS, SKIPPED_PROBES
from kcodec.transactions.state import State

# --------------------------------------------------------------------------------------------------- the plain course


def test_the_new_flow_takes_the_next_epoch_from_end_txn() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "EndTxn"]
    assert world.asked[-1].version == 5
    assert manager.context.producer == ProducerIdAndEpoch(7, 1)
    world.run(manager.begin())
    assert manager.identity.current == (7, 1)
    assert world.apis() == ["InitProducerId", "EndTxn"]


@pytest.mark.parametrize("version", [0, 1])
def test_the_old_flow_adds_partitions_first_and_keeps_the_epoch(version: int) -> None:
    world = World(version)
    manager = begun(world)
    assert manager.identity.produce_highest_version() == 11
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "AddPartitionsToTxn", "EndTxn"]
    assert [one.version for one in world.asked if one.api != "FindCoordinator"] == [5, 3, 4]
    world.run(manager.begin())
    assert manager.identity.current == (7, 0)
    assert world.apis()[3:] == []


def test_find_coordinator_comes_first_and_is_remembered() -> None:
    world = World()
    manager = begun(world)
    world.run(manager.commit())
    assert [one.api for one in world.asked] == ["FindCoordinator", "InitProducerId", "EndTxn"]


def test_partitions_wanted_together_are_added_together() -> None:
    world = World(1)
    manager = make_manager(world)
    world.run(manager.begin())
    for partition in range(3):
        assert not manager.identity.may_send(TopicPartition("orders", partition))
    world.pass_time(0.1)
    assert all(manager.identity.may_send(TopicPartition("orders", partition)) for partition in range(3))
    added = [one.request.v3_and_below_topics for one in world.asked if one.api == "AddPartitionsToTxn"]
    assert [[topic.partitions for topic in topics] for topics in added] == [[[0, 1, 2]]]


@BOTH
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_empty_transaction_sends_nothing(version: int, end: str) -> None:
    world = World(version)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    world.run(getattr(manager, end)())
    assert world.apis() == ["InitProducerId"]
    assert transaction.committed is (end == "commit")


def test_new_flow_a_record_only_attempted_takes_an_end_txn() -> None:
    """The broker adds the partition before it appends: without EndTxn the transaction would stay open (C15)."""
    world = World(2)
    manager = make_manager(world)
    world.run(manager.begin())
    assert manager.identity.may_send(ORDERS)
    manager.identity.on_failure(
        ORDERS, broker_error(ErrorCode.MESSAGE_TOO_LARGE, "Produce", resource=ORDERS), possibly_written=False
    )
    world.run(manager.abort())
    assert world.apis() == ["InitProducerId", "EndTxn"]


def test_new_flow_records_wait_for_the_previous_markers() -> None:
    """A leader that meets them waits 20 ms before it looks again: we look sooner, and not when it is long ago."""
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.coordinator.state = "PrepareCommit"
    world.run(manager.begin())
    assert not manager.identity.may_send(ORDERS)
    world.pass_time(0.006)
    assert not manager.identity.may_send(ORDERS)
    world.coordinator.state = "CompleteCommit"
    world.pass_time(0.006)
    assert manager.identity.may_send(ORDERS)
    asked = world.apis().count("DescribeTransactions")
    assert 2 <= asked <= 7


def test_markers_are_probed_before_the_next_records_come() -> None:
    """Where one transaction follows another at once: the response is there when the records are."""
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.run(manager.begin())
    assert not manager.identity.may_send(ORDERS)
    world.pass_time(0.01)
    assert manager.identity.may_send(ORDERS)
    manager.identity.on_success(ORDERS, 1, 0)
    asked = world.apis().count("DescribeTransactions")
    world.run(manager.commit())
    world.pass_time(PROBE_SECONDS / 2)
    assert world.apis().count("DescribeTransactions") == asked
    world.pass_time(0.01)
    assert world.apis().count("DescribeTransactions") == asked + 1
    world.run(manager.begin())
    assert manager.identity.may_send(ORDERS)


def test_after_a_pause_markers_are_not_probed_in_advance() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    transact(world, manager)
    asked = []
    for _ in range(3):
        world.pass_time(0.05)
        world.run(manager.begin())
        assert manager.identity.may_send(ORDERS)
        manager.identity.on_success(ORDERS, 1, 0)
        world.run(manager.commit())
        asked.append(world.apis().count("DescribeTransactions"))
    world.pass_time(0.05)
    assert asked[0] == asked[-1] == world.apis().count("DescribeTransactions")


def transact(world: World, manager: TransactionManager, seconds: float = 0.0) -> int:
    """A transaction that follows at once, its first batch taking so long: how often markers were asked about."""
    before = world.apis().count("DescribeTransactions")
    world.run(manager.begin())
    if not manager.identity.may_send(ORDERS):
        world.pass_time(0.01)
        assert manager.identity.may_send(ORDERS)
    world.pass_time(seconds)
    manager.identity.on_success(ORDERS, 1, 0)
    world.run(manager.commit())
    return world.apis().count("DescribeTransactions") - before


def begun_without_probes(world: World) -> TransactionManager:
    """A manager that has found the markers written so often that it skips the next probes."""
    manager = begun(world)
    world.run(manager.commit())
    assert [transact(world, manager) for _ in range(NEEDLESS_PROBES)] == [1] * NEEDLESS_PROBES
    return manager


def test_markers_that_are_always_written_are_probed_rarely() -> None:
    world = World(2)
    manager = begun_without_probes(world)
    assert sum(transact(world, manager) for _ in range(SKIPPED_PROBES)) == 0
    # Each time, twice as many are skipped.
    assert sum(transact(world, manager) for _ in range(MOST_SKIPPED)) <= 5


def test_markers_that_are_not_written_keep_probes_going() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    for number in range(3 * NEEDLESS_PROBES):
        if number % 32 == 0:
            world.coordinator.state = "PrepareCommit"
            world.run(manager.begin())
            assert not manager.identity.may_send(ORDERS)
            world.pass_time(0.002)
            world.coordinator.state = "CompleteCommit"
            world.pass_time(0.01)
            assert manager.identity.may_send(ORDERS)
            manager.identity.on_success(ORDERS, 1, 0)
            world.run(manager.commit())
        else:
            assert transact(world, manager) == 1


def test_a_leader_that_waits_for_markers_ends_skipped_probes() -> None:
    world = World(2)
    manager = begun_without_probes(world)
    assert transact(world, manager) == 0
    transact(world, manager, 0.025)
    assert [transact(world, manager) for _ in range(6)][1:] == [1] * 5


@pytest.mark.parametrize("action", [HANG, 53, CUT])
def test_markers_that_cannot_be_probed_are_not_awaited_long(action: Action) -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.plan("DescribeTransactions", action)
    world.run(manager.begin())
    assert not manager.identity.may_send(ORDERS)
    world.pass_time(0.021)
    assert manager.identity.may_send(ORDERS)
    world.run(manager.commit())
    assert manager.context.now_open.committed is True


@BOTH
def test_offsets_go_with_group_metadata(version: int) -> None:
    world = World(version)
    manager = make_manager(world)
    world.run(manager.begin())
    world.run(manager.send_offsets(OFFSETS, GROUP))
    world.run(manager.send_offsets(OFFSETS, GROUP))
    world.run(manager.commit())
    old = ["AddOffsetsToTxn"] if version == 1 else []
    assert world.apis() == ["InitProducerId", *old, "TxnOffsetCommit", "TxnOffsetCommit", "EndTxn"]
    sent = next(one for one in world.asked if one.api == "TxnOffsetCommit")
    assert sent.version == (5 if version == 2 else 4)
    assert (sent.request.generation_id_or_member_epoch, sent.request.member_id) == (3, "member-1")
    assert sent.request.topics[0].partitions[0].committed_offset == 5


ORDERS_ID, OTHER_ID = UUID(int=1), UUID(int=2)


def test_offsets_of_topics_with_known_ids_name_them_by_id() -> None:
    """From version 6 on (KIP-1319); if the metadata lacks the id of one topic, all are named, up to version 5."""
    world = World(2)
    world.cluster.topics["orders"] = Topic("orders", ORDERS_ID)
    manager = make_manager(world)
    world.run(manager.begin())
    world.run(manager.send_offsets(OFFSETS, GROUP))
    world.run(manager.send_offsets({**OFFSETS, TopicPartition("unknown", 0): OffsetAndMetadata(1)}, GROUP))
    sent = [one for one in world.asked if one.api == "TxnOffsetCommit"]
    assert [one.version for one in sent] == [6, 5]
    assert [topic.topic_id for topic in sent[0].request.topics] == [ORDERS_ID]
    assert {topic.topic_id for topic in sent[1].request.topics} == {NO_UUID}


def test_below_version_2_offsets_name_their_topics() -> None:
    world = World(1)
    world.cluster.topics["orders"] = Topic("orders", ORDERS_ID)
    manager = make_manager(world)
    world.run(manager.begin())
    world.run(manager.send_offsets(OFFSETS, GROUP))
    (sent,) = [one for one in world.asked if one.api == "TxnOffsetCommit"]
    assert (sent.version, sent.request.topics[0].topic_id) == (4, NO_UUID)


def test_an_unknown_topic_id_is_requested_again() -> None:
    """The coordinator learns of a new topic later than this client."""
    world = World(2)
    world.cluster.topics["orders"] = Topic("orders", ORDERS_ID)
    manager = make_manager(world)
    world.run(manager.begin())
    world.plan("TxnOffsetCommit", ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    world.run(manager.send_offsets(OFFSETS, GROUP))
    assert world.apis().count("TxnOffsetCommit") == 3
    assert unnarrowed(world.cluster._is_update_requested) is True
    world.run(manager.commit())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_listed", [True, False])
def test_offsets_of_a_deleted_topic_are_refused_soon(version: int, is_listed: bool) -> None:
    """Without this, the transaction stays open until its timeout, and holds back the readers of its results."""
    world = World(version)
    world.cluster.topics["orders"] = Topic("orders", ORDERS_ID)
    manager = make_manager(world)
    world.run(manager.begin())
    begun = world.now
    code = ErrorCode.UNKNOWN_TOPIC_ID if version == 2 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def deleted(answer: Any) -> Any:
        if is_listed:
            world.cluster.topics["orders"] = Topic("orders", NO_UUID, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            world.cluster.topics.pop("orders", None)
            world.cluster.needs_all_topics, world.cluster.updates_of_all = True, 1
        answer.topics[0].partitions[0].error_code = code
        return answer

    world.plan("TxnOffsetCommit", *[deleted] * 200)
    with pytest.raises(AbortableTransactionError, match="topic 'orders' was deleted, so") as raised:
        world.run(manager.send_offsets(OFFSETS, GROUP))
    assert (raised.value.code, raised.value.resource) == (code, "orders")
    assert 2.0 <= world.now - begun < 5.0
    world.run(manager.abort())


def test_offsets_of_a_topic_that_was_created_again_are_refused() -> None:
    """They are positions in the former topic: committed for the new one, they would skip its records."""
    world = World(2)
    world.cluster.topics["orders"] = Topic("orders", ORDERS_ID)
    manager = make_manager(world)
    world.run(manager.begin())

    def replaced(answer: Any) -> Any:
        world.cluster.topics["orders"] = Topic("orders", OTHER_ID)
        answer.topics[0].partitions[0].error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return answer

    world.plan("TxnOffsetCommit", replaced)
    with pytest.raises(AbortableTransactionError, match="topic 'orders' was deleted and created again") as raised:
        world.run(manager.send_offsets(OFFSETS, GROUP))
    assert (raised.value.code, raised.value.resource) == (ErrorCode.UNKNOWN_TOPIC_ID, "orders")
    world.run(manager.abort())
    world.run(manager.begin())
    world.run(manager.send_offsets(OFFSETS, GROUP))
    assert world.asked[-1].request.topics[0].topic_id == OTHER_ID


@pytest.mark.parametrize("code", [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH])
def test_what_version_6_says_of_the_group_is_abortable(code: ErrorCode) -> None:
    """Up to version 5 both are ILLEGAL_GENERATION."""
    world = World(2)
    manager = begun(world)
    world.plan("TxnOffsetCommit", code)
    with pytest.raises(AbortableTransactionError, match=code.name) as raised:
        world.run(manager.send_offsets(OFFSETS, GROUP))
    assert (raised.value.remedy, raised.value.resource) == ("abort", GROUP.group_id)
    world.run(manager.abort())


def test_no_offsets_are_no_request() -> None:
    world = World()
    manager = make_manager(world)
    world.run(manager.begin())
    world.run(manager.send_offsets({}, GROUP))
    assert world.apis() == ["InitProducerId"]


def test_a_rolled_over_producer_id_is_taken_up() -> None:
    world = World(2)
    manager = begun(world)

    def roll_over(answer: Any) -> Any:
        answer.producer_id, answer.producer_epoch = 8, 0
        return answer

    world.plan("EndTxn", roll_over)
    world.run(manager.commit())
    world.run(manager.begin())
    assert manager.identity.current == (8, 0)


def test_an_upgrade_between_transactions_takes_a_new_epoch() -> None:
    world = World(1)
    manager = begun(world)
    world.run(manager.commit())
    world.cluster.features = FinalizedFeatures(levels={"transaction.version": 2})
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"
    assert manager.open is not None
    assert manager.open.is_new_flow


def test_the_flow_does_not_change_inside_a_transaction() -> None:
    world = World(1)
    manager = begun(world)
    world.cluster.features = FinalizedFeatures(levels={"transaction.version": 2})
    world.run(manager.commit())
    assert world.asked[-1].version == 4


# ------------------------------------------------------------------------------------------------------------ sharing


def test_reading_the_handle_makes_the_end_mandatory() -> None:
    world = World(2)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    handle = manager.handle(transaction)
    assert (handle.transactional_id, handle.producer_id, handle.producer_epoch) == ("orders", 7, 0)
    assert handle.transaction_version == 2
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "EndTxn"]


def test_an_empty_shared_transaction_is_committed_and_spends_epoch() -> None:
    world = World(2)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    manager.handle(transaction)
    world.plan("EndTxn", ErrorCode.INVALID_TXN_STATE)
    world.run(manager.commit())
    assert [one.request.committed for one in world.asked if one.api == "EndTxn"] == [True, False]
    assert transaction.committed is True
    assert manager.context.producer == (7, 1)


def test_in_the_old_flow_the_handle_waits_for_the_partitions() -> None:
    world = World(1)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    with pytest.raises(TransactionStateError, match=r"producer\.transaction\(partitions="):
        manager.handle(transaction)
    world.run(manager.abort())
    transaction = world.run(manager.begin(partitions=[ORDERS, TopicPartition("orders", 1)]))
    assert manager.handle(transaction).transaction_version == 1
    assert world.apis() == ["InitProducerId", "InitProducerId", "AddPartitionsToTxn"], "under an epoch of its own"
    world.run(manager.commit())
    world.run(manager.begin())
    assert world.apis()[3:] == ["EndTxn", "InitProducerId"], "writers may still have requests on their way"


def test_partitions_that_cannot_be_added_leave_nothing_open() -> None:
    world = World(1)
    manager = make_manager(world)
    world.plan("AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError):
        world.run(manager.begin(partitions=[ORDERS]))
    assert manager.state in {State.READY, State.UNINITIALIZED}


# -------------------------------------------------------------------------------------------------------- maintenance


def test_a_transaction_near_its_timeout_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "kcodec.transactions"):
        begun(world, transaction_timeout_ms=10_000)
        world.pass_time(7.9)
        assert not caplog.records
        world.pass_time(1.0)
        assert "80 % of transaction_timeout_ms=10000" in caplog.text
        world.pass_time(5.0)
    assert len(caplog.records) == 1


def test_close_aborts_what_is_open() -> None:
    world = World()
    manager = begun(world)
    world.run(manager.identity.close_flow(5.0))
    assert world.asked[-1].request.committed is False


@BOTH
def test_the_next_begin_resolves_a_block_whose_abort_failed(version: int) -> None:
    """Its user has nothing in hand to abort it with."""
    world = World(version)
    manager = begun(world)
    transaction = manager.context.now_open
    world.plan("EndTxn", *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100)
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.commit(2.0))
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.abort(2.0))
    manager.abandon(transaction)
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.begin(2.0))
    world.plans.clear()
    following = world.run(manager.begin())
    assert following is not transaction
    assert [one.request.committed for one in world.asked if one.api == "EndTxn"][-1] is False
    assert (transaction.committed, following.committed) == (False, None)


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_commit_that_was_never_asked_for_is_no_unknown_outcome(code: int) -> None:
    world = World(2)
    manager = begun(world)
    manager.identity.on_failure(ORDERS, broker_error(code, "Produce", resource="orders"), possibly_written=False)
    assert manager.context.now_open.committed is False


def test_a_lowered_cluster_is_not_sent_the_new_flows_end_txn() -> None:
    """The response to EndTxn v5 below level 2 is UNSUPPORTED_VERSION, and to all that follows CONCURRENT_TRANSACTIONS
    (seen on 4.3.1)."""
    world = World(2)
    manager = begun(world)
    world.cluster.features = FinalizedFeatures(levels={"transaction.version": 1})
    with pytest.raises(AbortableTransactionError, match="lowered"):
        world.run(manager.commit())
    world.run(manager.abort())
    world.run(manager.begin())
    assert world.apis() == ["InitProducerId", "InitProducerId"]


def test_a_lowered_cluster_is_not_sent_a_repeated_abort() -> None:
    """The first EndTxn was sent before the level was lowered, and got no response."""
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", HANG)
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.abort(1.0))
    world.cluster.features = FinalizedFeatures(levels={"transaction.version": 1})
    world.run(manager.identity.close_flow(1.0))
    assert world.apis() == ["InitProducerId", "EndTxn"]


@pytest.mark.parametrize("flow", ["close_flow", "abort_at_once"])
def test_a_repeated_abort_only_logs_its_errors(
    flow: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, so that the close of a session does not replace KeyboardInterrupt."""
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", HANG)
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.abort(1.0))

    def fail(*_: object) -> Flow[None]:
        yield from ()
        raise UnsupportedError("the broker does not support EndTxn")

    monkeypatch.setattr(completion, "end_transaction", fail)
    caplog.set_level(logging.INFO, "kcodec.transactions")
    world.run(getattr(manager.identity, flow)(1.0))
    assert "the open transaction could not be aborted" in caplog.text
    assert "the broker does not support EndTxn" in caplog.text


@pytest.mark.parametrize(
    ("call", "function", "state"),
    [
        ("commit", "commit", State.IN_TRANSACTION),
        ("abort", "abort", State.IN_TRANSACTION),
        ("commit_async", "complete_commit", State.ABORTABLE_ERROR),
    ],
)
def test_an_interruption_before_the_end_is_not_that_of_the_last_end(call: str, function: str, state: State) -> None:
    """Ctrl-C arrives at the first line of the block that handles it. No EndTxn was sent for this transaction."""
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    transaction = world.run(manager.begin())
    manager.context.note_sent(transaction)
    is_entered = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal is_entered
        name = frame.f_code.co_name
        if name == "_interruptible" and event == "return":
            is_entered = True
        elif name == function and event == "line" and is_entered:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace if name in {"_interruptible", function} else None

    arguments = (CommitResult("t", nullcontext(), lambda: None),) if call == "commit_async" else ()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            world.run(getattr(manager, call)(*arguments))
    finally:
        sys.settrace(before)
    assert is_entered
    assert not transaction.is_end_unconfirmed and not transaction.is_commit_unconfirmed
    assert manager.context.state is state
    world.run(manager.abort())
    assert [one.request.committed for one in world.asked if one.api == "EndTxn"] == [True, False]


def test_a_late_copy_of_our_own_init_producer_id_is_thought_of() -> None:
    world = World(2)
    world.plan("InitProducerId", CUT)
    manager = begun(world)
    world.coordinator.epoch += 2
    manager.identity.on_error_code(ORDERS, ErrorCode.INVALID_PRODUCER_EPOCH)
    world.pass_time(0.1)
    error = manager.identity.refuses()
    assert isinstance(error, ProducerFencedError) and error.remedy == "recreate"
    assert "Close this producer and create it again" in str(error)


def test_calls_out_of_order_change_nothing() -> None:
    world = World()
    manager = make_manager(world)
    ends: tuple[Callable[[], Flow[Any]], ...] = (
        manager.commit,
        manager.abort,
        lambda: manager.send_offsets(OFFSETS, GROUP),
    )
    for call in ends:
        with pytest.raises(TransactionStateError, match="begin a transaction first"):
            world.run(call())
    world.run(manager.begin())
    begins: tuple[Callable[[], Flow[Any]], ...] = (manager.begin, manager.initialize)
    for call in begins:
        with pytest.raises(TransactionStateError):
            world.run(call())
    assert manager.state is State.IN_TRANSACTION


def test_sends_are_refused_outside_a_transaction() -> None:
    world = World()
    manager = make_manager(world)
    buffer: Any = manager.context.records
    assert isinstance(buffer.refusal, TransactionStateError)
    world.run(manager.begin())
    assert unnarrowed(buffer.refusal) is None
    world.run(manager.commit())
    assert isinstance(buffer.refusal, TransactionStateError)


def test_the_error_of_a_refused_send_is_kept_until_it_is_raised() -> None:
    """Every transaction passes through states that refuse records, nearly always without a call of `send` in them."""
    world = World()
    manager = begun(world)
    buffer: Any = manager.context.records
    refusals = []
    for _ in range(3):
        world.run(manager.commit())
        refusals.append(buffer.refusal)
        if len(refusals) == 2:
            manager.identity.on_refused(buffer.refusal)
        world.run(manager.begin())
    assert refusals[1] is refusals[0]
    assert refusals[2] is not refusals[0] and refusals[2].args == refusals[0].args
