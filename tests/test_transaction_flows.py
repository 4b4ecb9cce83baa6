# SPDX-License-Identifier: Apache-2.0
"""The flows of transactions against a scripted coordinator, in virtual time: what is sent, what is raised, what is
left. What a real broker answers is in test_transactions.py.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from transaction_script import CUT, HANG, LOST, REFUSED, Action, World, make_manager, write

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionStateError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import broker_error
from kcodec.txn.producer_id import ProducerIdAndEpoch, Verdict
from kcodec.txn.state import State
from kcodec.txn.transaction_manager import TransactionManager
from kcodec.txn.transaction_partitions import _worst as worst_of

ORDERS = TopicPartition("orders", 0)
GROUP = ConsumerGroupMetadata("readers", 3, "member-1")
OFFSETS = {ORDERS: OffsetAndMetadata(5)}
BOTH = pytest.mark.parametrize("version", [1, 2])


def begun(world: World, **options: Any) -> TransactionManager:
    """A manager with an open transaction that has one record written."""
    manager = make_manager(world, **options)
    world.run(manager.begin())
    if not write(world, manager):
        world.pass_time(1.0)
        assert write(world, manager)
    return manager


# ---------------------------------------------------------------------------------------------------- the plain course


def test_the_new_flow_names_no_partitions_and_takes_the_next_epoch_from_end_txn() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "EndTxn"]
    assert world.asked[-1].version == 5
    assert manager.producer == ProducerIdAndEpoch(7, 1)
    world.run(manager.begin())
    assert manager.current == (7, 1)
    assert world.apis() == ["InitProducerId", "EndTxn"]


@pytest.mark.parametrize("version", [0, 1])
def test_the_old_flow_adds_partitions_first_and_keeps_the_epoch(version: int) -> None:
    world = World(version)
    manager = begun(world)
    assert manager.produce_highest_version() == 11
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "AddPartitionsToTxn", "EndTxn"]
    assert [one.version for one in world.asked if one.api != "FindCoordinator"] == [5, 3, 4]
    world.run(manager.begin())
    assert manager.current == (7, 0)
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
        assert not manager.may_send(TopicPartition("orders", partition))
    world.pass_time(0.1)
    assert all(manager.may_send(TopicPartition("orders", partition)) for partition in range(3))
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


def test_in_the_new_flow_a_record_that_was_only_attempted_takes_an_end_txn() -> None:
    """The broker adds the partition before it appends: without EndTxn the transaction would stay open (C15)."""
    world = World(2)
    manager = make_manager(world)
    world.run(manager.begin())
    assert manager.may_send(ORDERS)
    manager.on_failure(ORDERS, broker_error(10, "Produce", resource=ORDERS), possibly_written=False)
    world.run(manager.abort())
    assert world.apis() == ["InitProducerId", "EndTxn"]


def test_in_the_new_flow_records_wait_for_the_markers_of_the_transaction_before() -> None:
    """A leader that meets them waits 20 ms before it looks again: we look sooner, and not when it is long ago."""
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.coordinator.state = "PrepareCommit"
    world.run(manager.begin())
    assert not manager.may_send(ORDERS)
    world.pass_time(0.006)
    assert not manager.may_send(ORDERS)
    world.coordinator.state = "CompleteCommit"
    world.pass_time(0.006)
    assert manager.may_send(ORDERS)
    asked = world.apis().count("DescribeTransactions")
    assert 2 <= asked <= 5
    world.run(manager.commit())
    world.run(manager.begin())
    world.pass_time(0.03)
    assert manager.may_send(ORDERS)
    assert world.apis().count("DescribeTransactions") == asked


def test_after_a_large_transaction_that_followed_at_once_the_question_is_asked_at_once() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.run(manager.begin())
    assert not manager.may_send(ORDERS)
    world.pass_time(0.01)
    for number in range(20):
        assert manager.may_send(ORDERS)
        manager.on_success(ORDERS, 1, number)
    asked = world.apis().count("DescribeTransactions")
    world.run(manager.commit())
    world.pass_time(0.01)
    assert world.apis().count("DescribeTransactions") == asked + 1
    world.run(manager.begin())
    assert manager.may_send(ORDERS)


def transact(world: World, manager: TransactionManager, seconds: float = 0.0) -> int:
    """A transaction that follows at once, its first batch taking so long: how often markers were asked about."""
    before = world.apis().count("DescribeTransactions")
    world.run(manager.begin())
    if not manager.may_send(ORDERS):
        world.pass_time(0.01)
        assert manager.may_send(ORDERS)
    world.pass_time(seconds)
    manager.on_success(ORDERS, 1, 0)
    world.run(manager.commit())
    return world.apis().count("DescribeTransactions") - before


def test_markers_that_are_always_written_are_asked_about_now_and_then_only() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    asked = [transact(world, manager) for _ in range(80)]
    assert asked[:4] == [1, 1, 1, 1]
    assert sum(asked) < 16


def test_a_leader_that_waits_for_markers_brings_the_questions_back() -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    assert sum(transact(world, manager) for _ in range(10)) == 4
    transact(world, manager, 0.025)
    assert [transact(world, manager) for _ in range(2)][-1] == 1


@pytest.mark.parametrize("action", [HANG, 53, CUT])
def test_markers_that_cannot_be_asked_about_are_not_waited_for_long(action: Action) -> None:
    world = World(2)
    manager = begun(world)
    world.run(manager.commit())
    world.plan("DescribeTransactions", action)
    world.run(manager.begin())
    assert not manager.may_send(ORDERS)
    world.pass_time(0.021)
    assert manager.may_send(ORDERS)
    world.run(manager.commit())
    assert manager.now_open.committed is True


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
    assert (sent.request.generation_id, sent.request.member_id) == (3, "member-1")
    assert sent.request.topics[0].partitions[0].committed_offset == 5


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
    assert manager.current == (8, 0)


def test_a_cluster_that_is_upgraded_between_transactions_gets_a_new_epoch_first() -> None:
    world = World(1)
    manager = begun(world)
    world.run(manager.commit())
    world.cluster.finalized_features = {"transaction.version": 2}
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"
    assert manager.open is not None
    assert manager.open.is_new_flow


def test_the_flow_does_not_change_inside_a_transaction() -> None:
    world = World(1)
    manager = begun(world)
    world.cluster.finalized_features = {"transaction.version": 2}
    world.run(manager.commit())
    assert world.asked[-1].version == 4


# ------------------------------------------------------------------------------------------------------ InitProducerId


@pytest.mark.parametrize("action", [51, 14, 15, 16, 7, CUT, LOST, REFUSED])
def test_what_passes_is_repeated(action: Action) -> None:
    world = World()
    world.plan("InitProducerId", action, action)
    manager = make_manager(world)
    world.run(manager.initialize())
    assert manager.state is State.READY


def test_concurrent_transactions_are_waited_for_with_growing_pauses() -> None:
    world = World()
    world.plan("InitProducerId", *[51] * 8)
    world.run(make_manager(world).initialize())
    times = [one.time for one in world.asked if one.api == "InitProducerId"]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert 0.015 < pauses[0] < 0.03
    assert pauses[-1] > 5 * pauses[0]


def test_init_that_never_succeeds_ends_by_its_deadline_and_can_be_called_again() -> None:
    world = World()
    world.plan("InitProducerId", *[51] * 100)
    manager = make_manager(world)
    start = world.now
    with pytest.raises(DeliveryTimeoutError, match="CONCURRENT_TRANSACTIONS"):
        world.run(manager.initialize(2.0))
    assert world.now - start <= 2.0
    assert manager.state is State.UNINITIALIZED
    world.plans.clear()
    world.run(manager.initialize())
    assert manager.state is State.READY


def test_a_refused_timeout_is_said_in_words() -> None:
    world = World()
    world.plan("InitProducerId", 50)
    with pytest.raises(FatalTransactionError, match=r"transaction_timeout_ms=3600000.*transaction\.max\.timeout\.ms"):
        world.run(make_manager(world, transaction_timeout_ms=3_600_000).initialize())


def test_a_missing_permission_names_the_transactional_id() -> None:
    for api, code in (("InitProducerId", 53), ("FindCoordinator", 53)):
        world = World()
        world.plan(api, code)
        manager = make_manager(world)
        with pytest.raises(AuthorizationError) as raised:
            world.run(manager.initialize())
        assert raised.value.resource == "orders"
        assert manager.state is State.FATAL_ERROR


# --------------------------------------------------------------------------------------------------------- unanswered


@pytest.mark.parametrize("action", [CUT, LOST, HANG])
@BOTH
def test_an_unanswered_end_is_repeated_alike(version: int, action: Action) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", action)
    world.run(manager.commit())
    sent = [one.request for one in world.asked if one.api == "EndTxn"]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert manager.open is not None
    assert manager.open.committed is True


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit", "AddOffsetsToTxn", "Produce"])
@BOTH
def test_a_request_left_unanswered_once_spends_the_epoch_in_the_old_flow(version: int, api: str) -> None:
    """Its repeat was answered, its first copy may still arrive: inside the next transaction of the same epoch."""
    world = World(version)
    world.plan(api, CUT)
    manager = begun(world)
    if api == "Produce":
        manager.on_unanswered("Produce")
    world.run(manager.send_offsets(OFFSETS, GROUP))
    world.run(manager.commit())
    before = len(world.asked)
    world.run(manager.begin())
    following = [one.api for one in world.asked[before:] if one.api != "FindCoordinator"]
    assert following == (["InitProducerId"] if version == 1 else [])


def test_a_request_that_was_never_sent_spends_nothing() -> None:
    world = World(1)
    manager = begun(world)
    world.plan("EndTxn", REFUSED)
    world.run(manager.commit())
    world.run(manager.begin())
    assert world.apis().count("InitProducerId") == 1


@BOTH
@pytest.mark.parametrize("action", [CUT, LOST, HANG, -1, 15, 7, 6, 12345])
def test_a_commit_that_stays_unanswered_is_an_unknown_outcome(version: int, action: Action) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[action] * 1000)
    start = world.now
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(12.0))
    assert world.now - start <= 12.0
    assert manager.open is not None
    assert manager.open.committed is None
    assert manager.state is State.UNKNOWN_OUTCOME
    with pytest.raises(TransactionStateError, match="commit_transaction asks once more"):
        world.run(manager.abort())
    world.plans.clear()
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"
    named = world.asked[-1].request
    assert (named.producer_id, named.producer_epoch) == (7, 0), "the epoch that we had, so that nobody else is fenced"


def test_after_an_unknown_outcome_the_same_end_can_be_asked_for_once_more() -> None:
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 3)
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(8.0))
    world.plans.clear()
    world.run(manager.commit())
    assert manager.open is not None
    assert manager.open.committed is True
    assert manager.state is State.READY


@BOTH
def test_once_more_without_a_connection_is_still_unknown_and_never_aborted(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[CUT] * 1000)
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(2.0))
    world.plans["EndTxn"] = [REFUSED] * 1000
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(2.0))
    assert manager.state is State.UNKNOWN_OUTCOME


@pytest.mark.parametrize("code", [47, 90, 49])
def test_fenced_after_an_unanswered_commit_is_an_unknown_outcome(code: int) -> None:
    """The first copy may have committed before the other instance took over: nobody may call it aborted."""
    world = World(1)
    manager = begun(world)
    world.plan("EndTxn", CUT, code)
    with pytest.raises(UnknownOutcomeError, match="may have been committed"):
        world.run(manager.commit())
    assert manager.open is not None
    assert manager.open.committed is None
    with pytest.raises(BrokerError) as raised:
        world.run(manager.begin())
    assert raised.value.code == code


@BOTH
def test_an_abort_that_stays_unanswered_says_that_nothing_is_committed(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 100)
    with pytest.raises(DeliveryTimeoutError, match="Nothing of the transaction will be committed"):
        world.run(manager.abort(12.0))
    assert manager.open is not None
    assert manager.open.committed is False
    world.plans.clear()
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"


def test_end_txn_waits_for_records_and_says_so_when_they_take_too_long() -> None:
    world = World()
    manager = begun(world)
    manager.records.pending = 1  # type: ignore[union-attr]
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.commit(3.0))
    assert "EndTxn" not in world.apis()
    assert manager.state is State.ABORTABLE_ERROR
    manager.records.end()  # type: ignore[union-attr]
    world.run(manager.abort())
    assert manager.state is State.READY


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_commit_that_is_given_up_tells_the_truth(is_sent: bool) -> None:
    """Cancelled before EndTxn was sent it is not committed; after that nobody knows."""
    world = World()
    manager = begun(world)
    world.plan("EndTxn", HANG)
    manager.records.pending = 0 if is_sent else 1  # type: ignore[union-attr]
    task = world.spawn(manager.commit())
    task.cancel()
    assert manager.state is (State.UNKNOWN_OUTCOME if is_sent else State.ABORTABLE_ERROR)


# -------------------------------------------------------------------------------------------------------------- errors


@BOTH
@pytest.mark.parametrize("error", [broker_error(10, "Produce"), DeliveryTimeoutError("orders-0: late"), None])
def test_a_failed_record_blocks_the_commit_and_an_abort_goes_on(version: int, error: BaseException | None) -> None:
    world = World(version)
    manager = begun(world)
    failed = error or broker_error(29, "Produce to orders-0", resource="orders")
    manager.on_failure(ORDERS, failed, possibly_written=True)
    assert isinstance(manager.records.refusal, BrokerError)  # type: ignore[union-attr]
    with pytest.raises(AbortableTransactionError if error else AuthorizationError, match="orders-0") as raised:
        world.run(manager.commit())
    assert raised.value.resource == (ORDERS if error else "orders")
    assert "EndTxn" not in world.apis()
    world.run(manager.abort())
    world.run(manager.begin())
    assert write(world, manager) or world.pass_time(0.1) or write(world, manager)
    world.run(manager.commit())
    assert manager.open is not None
    assert manager.open.committed is True


@pytest.mark.parametrize(
    ("api", "code", "kind", "resource"),
    [
        ("AddOffsetsToTxn", 30, AuthorizationError, "readers"),
        ("AddOffsetsToTxn", 53, AuthorizationError, "orders"),
        ("TxnOffsetCommit", 30, AuthorizationError, "readers"),
        ("TxnOffsetCommit", 29, AuthorizationError, "orders"),
        ("TxnOffsetCommit", 22, AbortableTransactionError, "readers"),
        ("TxnOffsetCommit", 25, AbortableTransactionError, "readers"),
        ("TxnOffsetCommit", 82, AbortableTransactionError, "readers"),
        ("TxnOffsetCommit", 12, AbortableTransactionError, ORDERS),
        ("TxnOffsetCommit", 120, AbortableTransactionError, ORDERS),
        ("AddOffsetsToTxn", 120, AbortableTransactionError, "orders"),
    ],
)
def test_offsets_that_are_refused_say_what_about(api: str, code: int, kind: type, resource: object) -> None:
    world = World(1)
    manager = begun(world)
    world.plan(api, code)
    with pytest.raises(kind) as raised:
        world.run(manager.send_offsets(OFFSETS, GROUP))
    assert raised.value.resource == resource
    if code != 53:
        with pytest.raises(kind):
            world.run(manager.commit())
        world.run(manager.abort())
        world.run(manager.begin())


@pytest.mark.parametrize(
    ("codes", "worst"),
    [((0, 0), 0), ((55, 55), 55), ((55, 29), 29), ((29, 55), 29), ((51, 29), 29), ((29, 3), 29), ((55, 51), 51)],
)
def test_of_several_answers_the_one_that_says_most_counts(codes: tuple[int, ...], worst: int) -> None:
    results = [
        messages.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
        for number, code in enumerate(codes)
    ]
    topic = messages.AddPartitionsToTxnTopicResult(name="orders", results_by_partition=results)
    answer = messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    assert worst_of(answer)[0] == worst


@BOTH
def test_an_answer_that_leaves_something_out_is_no_success(version: int) -> None:
    def empty(answer: Any) -> Any:
        answer.topics.clear()
        return answer

    world = World(version)
    manager = begun(world)
    world.plan("TxnOffsetCommit", empty)
    with pytest.raises(DecodeError, match="says nothing of"):
        world.run(manager.send_offsets(OFFSETS, GROUP))
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    world.run(manager.abort())


@pytest.mark.parametrize(("code", "resource"), [(29, "orders"), (120, ORDERS), (17, ORDERS)])
def test_a_partition_that_is_refused_ends_the_transaction(code: int, resource: object) -> None:
    world = World(1)
    world.plan("AddPartitionsToTxn", code)
    manager = make_manager(world)
    world.run(manager.begin())
    assert not manager.may_send(ORDERS)
    world.pass_time(0.1)
    refusal = manager.refuses()
    assert isinstance(refusal, BrokerError)
    assert (refusal.code, refusal.resource) == (code, resource)
    world.run(manager.abort())
    assert manager.state in {State.READY, State.UNINITIALIZED}


@BOTH
def test_transaction_abortable_from_the_commit_leaves_a_usable_producer(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", 120)
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    world.run(manager.abort())
    world.run(manager.begin())
    assert manager.open is not None
    assert manager.open.committed is None


def test_abort_after_a_fatal_error_raises_it_again() -> None:
    world = World()
    manager = begun(world)
    world.plan("EndTxn", 53)
    with pytest.raises(AuthorizationError):
        world.run(manager.commit())
    for call in (manager.abort, manager.begin, manager.commit, manager.initialize):
        with pytest.raises(AuthorizationError):
            world.run(call())


# ------------------------------------------------------------------------------------------------- fenced or timed out


def aborted_by_coordinator(world: World) -> None:
    world.coordinator.state, world.coordinator.epoch = "CompleteAbort", world.coordinator.epoch + 1


@BOTH
@pytest.mark.parametrize("code", [47, 90])
def test_a_batch_whose_epoch_is_too_old_waits_until_it_is_known_why(version: int, code: int) -> None:
    world = World(version)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    assert manager.on_error_code(ORDERS, code) is Verdict.RETRY
    assert not manager.may_send(ORDERS)
    world.pass_time(0.1)
    refusal = manager.refuses()
    assert isinstance(refusal, TransactionTimedOutError)
    assert "transaction_timeout_ms=10000" in str(refusal)
    world.run(manager.abort())
    world.run(manager.begin())


@BOTH
@pytest.mark.parametrize("epochs", [1, 2])
def test_another_instance_is_named_as_such(version: int, epochs: int) -> None:
    """epochs 1: it is just taking over, and leaves the traces of a time-out; ours was not open for long enough."""
    world = World(version)
    manager = begun(world)
    for _ in range(epochs):
        aborted_by_coordinator(world)
    manager.on_error_code(ORDERS, 47)
    world.pass_time(0.1)
    for call in (manager.commit, manager.abort, manager.begin):
        with pytest.raises(
            ProducerFencedError, match=r"transactional_id 'orders'[\s\S]*One id belongs to one live instance"
        ):
            world.run(call())
    assert "InitProducerId" not in world.apis()[1:], "it must not fence the other in turn"


@pytest.mark.parametrize(("version", "code"), [(1, 90), (2, 48)])
def test_a_commit_after_the_time_is_over_says_so(version: int, code: int) -> None:
    world = World(version)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    world.plan("EndTxn", code, *([90] if version == 1 else []))
    with pytest.raises(TransactionTimedOutError):
        world.run(manager.commit())
    world.run(manager.abort())
    assert manager.open is not None
    assert manager.open.committed is False
    world.run(manager.begin())


def test_in_the_old_flow_a_new_epoch_after_a_time_out_names_the_epoch_that_the_coordinator_has() -> None:
    """Seen on 4.3.1 at transaction version 0: InitProducerId with the old epoch is refused (90), with the next one not;
    naming it, and not -1, fences nobody who took over meanwhile."""
    world = World(1)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    world.plan("EndTxn", 90)
    world.run(manager.abort())
    world.plan("InitProducerId", 90)
    world.run(manager.begin())
    named = [one.request.producer_epoch for one in world.asked if one.api == "InitProducerId"]
    assert named == [-1, 0, 1]


def test_a_new_epoch_that_another_instance_has_taken_is_fenced() -> None:
    world = World(1)
    manager = begun(world)
    manager.on_unanswered("Produce")
    world.run(manager.commit())
    world.coordinator.epoch += 2
    world.plan("InitProducerId", 90)
    with pytest.raises(ProducerFencedError):
        world.run(manager.begin())


def test_without_describe_transactions_time_alone_decides() -> None:
    """A broker before 3.0, or one that does not permit it."""
    for waited, kind in ((11.0, TransactionTimedOutError), (1.0, ProducerFencedError)):
        world = World(2)
        manager = begun(world, transaction_timeout_ms=10_000)
        world.now += waited
        world.plan("DescribeTransactions", 53)
        manager.on_error_code(ORDERS, 47)
        world.pass_time(0.1)
        assert isinstance(manager.refuses(), kind)


# ------------------------------------------------------------------------------------------------------------- sharing


def test_reading_the_handle_makes_the_end_mandatory() -> None:
    world = World(2)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    handle = manager.handle(transaction)
    assert (handle.transactional_id, handle.producer_id, handle.producer_epoch) == ("orders", 7, 0)
    assert handle.transaction_version == 2
    world.run(manager.commit())
    assert world.apis() == ["InitProducerId", "EndTxn"]


def test_a_shared_transaction_that_nobody_wrote_to_is_committed_and_its_epoch_is_over() -> None:
    world = World(2)
    manager = make_manager(world)
    transaction = world.run(manager.begin())
    manager.handle(transaction)
    world.plan("EndTxn", 48)
    world.run(manager.commit())
    assert [one.request.committed for one in world.asked if one.api == "EndTxn"] == [True, False]
    assert transaction.committed is True
    assert manager.producer == (7, 1)


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
    world.plan("AddPartitionsToTxn", 29)
    with pytest.raises(AuthorizationError):
        world.run(manager.begin(partitions=[ORDERS]))
    assert manager.state in {State.READY, State.UNINITIALIZED}


# -------------------------------------------------------------------------------------------------------------- beside


def test_a_transaction_that_comes_near_its_time_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
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
    world.run(manager.close_flow(5.0))
    assert world.asked[-1].request.committed is False


@BOTH
def test_a_block_whose_abort_did_not_succeed_is_settled_by_the_next_begin(version: int) -> None:
    """Its user has nothing in hand to abort it with."""
    world = World(version)
    manager = begun(world)
    transaction = manager.now_open
    world.plan("EndTxn", *[14] * 100)
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


@pytest.mark.parametrize("code", [53, 29])
def test_a_commit_that_was_never_asked_for_is_no_unknown_outcome(code: int) -> None:
    world = World(2)
    manager = begun(world)
    manager.on_failure(ORDERS, broker_error(code, "Produce", resource="orders"), possibly_written=False)
    assert manager.now_open.committed is False


def test_a_cluster_that_is_lowered_inside_a_transaction_is_not_sent_the_end_of_the_new_flow() -> None:
    """One EndTxn v5 below level 2 is answered 35 and wedges the id: all that follows is 51 (seen on 4.3.1)."""
    world = World(2)
    manager = begun(world)
    world.cluster.finalized_features = {"transaction.version": 1}
    with pytest.raises(AbortableTransactionError, match="lowered"):
        world.run(manager.commit())
    world.run(manager.abort())
    world.run(manager.begin())
    assert world.apis() == ["InitProducerId", "InitProducerId"]


def test_a_late_copy_of_our_own_init_producer_id_is_thought_of() -> None:
    world = World(2)
    world.plan("InitProducerId", CUT)
    manager = begun(world)
    world.coordinator.epoch += 2
    manager.on_error_code(ORDERS, 47)
    world.pass_time(0.1)
    assert "Perhaps it was this one" in str(manager.refuses())


def test_calls_out_of_order_change_nothing() -> None:
    world = World()
    manager = make_manager(world)
    for call in (manager.commit, manager.abort, lambda: manager.send_offsets(OFFSETS, GROUP)):
        with pytest.raises(TransactionStateError, match="begin a transaction first"):
            world.run(call())
    world.run(manager.begin())
    for call in (manager.begin, manager.initialize):
        with pytest.raises(TransactionStateError):
            world.run(call())
    assert manager.state is State.IN_TRANSACTION


def test_sends_are_refused_outside_a_transaction() -> None:
    world = World()
    manager = make_manager(world)
    buffer: Any = manager.records
    assert isinstance(buffer.refusal, TransactionStateError)
    world.run(manager.begin())
    assert buffer.refusal is None
    world.run(manager.commit())
    assert isinstance(buffer.refusal, TransactionStateError)
