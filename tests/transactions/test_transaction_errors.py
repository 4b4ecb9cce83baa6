# SPDX-License-Identifier: Apache-2.0
"""Errors of a transaction by a scripted coordinator, in virtual time: which exception, what about, and what goes on."""

from __future__ import annotations

from typing import Any

import pytest
from transaction_script import (
    BOTH,
    GROUP,
    OFFSETS,
    ORDERS,
    World,
    begun,
    make_manager,
    write,
)

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    ProducerFencedError,
    TransactionTimedOutError,
)
from kcodec.offsets import TopicPartition
from kcodec.producer.identity import IDENTITY_ERRORS, BatchDisposition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.transactions.requests import worst_result
from kcodec.transactions.state import State

# ------------------------------------------------------------------------------------------------------------- errors


@BOTH
@pytest.mark.parametrize(
    "error", [broker_error(ErrorCode.MESSAGE_TOO_LARGE, "Produce"), DeliveryTimeoutError("orders-0: late"), None]
)
def test_a_failed_record_blocks_the_commit_and_an_abort_goes_on(version: int, error: BaseException | None) -> None:
    world = World(version)
    manager = begun(world)
    failed = error or broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Produce to orders-0", resource="orders")
    manager.identity.on_failure(ORDERS, failed, possibly_written=True)
    assert isinstance(manager.context.records.refusal, BrokerError)  # type: ignore[union-attr]
    with pytest.raises(AbortableTransactionError if error else AuthorizationError, match="orders-0") as raised:
        world.run(manager.commit())
    assert raised.value.resource == (ORDERS if error else "orders")
    assert "EndTxn" not in world.apis()
    world.run(manager.abort())
    world.run(manager.begin())
    if not write(world, manager):
        world.pass_time(0.1)
        assert write(world, manager)
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
    error: Any = raised.value
    assert error.resource == resource
    if code != 53:
        with pytest.raises(kind):
            world.run(manager.commit())
        world.run(manager.abort())
        world.run(manager.begin())


NONE, SKIPPED, DENIED = ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
CONCURRENT, UNKNOWN = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((NONE, NONE), NONE),
        ((SKIPPED, SKIPPED), SKIPPED),
        ((SKIPPED, DENIED), DENIED),
        ((DENIED, SKIPPED), DENIED),
        ((CONCURRENT, DENIED), DENIED),
        ((DENIED, UNKNOWN), DENIED),
        ((SKIPPED, CONCURRENT), CONCURRENT),
    ],
)
def test_of_several_answers_the_one_that_says_most_counts(codes: tuple[int, ...], worst: int) -> None:
    results = [(code, TopicPartition("orders", number)) for number, code in enumerate(codes)]
    assert worst_result(results)[0] == worst


@BOTH
def test_an_answer_that_leaves_something_out_is_no_success(version: int) -> None:
    def empty(answer: Any) -> Any:
        answer.topics.clear()
        return answer

    world = World(version)
    manager = begun(world)
    world.plan("TxnOffsetCommit", empty)
    with pytest.raises(DecodeError, match="has no result for"):
        world.run(manager.send_offsets(OFFSETS, GROUP))
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    world.run(manager.abort())


@pytest.mark.parametrize(
    ("code", "resource"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders"),
        (ErrorCode.TRANSACTION_ABORTABLE, ORDERS),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ORDERS),
    ],
)
def test_a_partition_that_is_refused_ends_the_transaction(code: int, resource: object) -> None:
    world = World(1)
    world.plan("AddPartitionsToTxn", code)
    manager = make_manager(world)
    world.run(manager.begin())
    assert not manager.identity.may_send(ORDERS)
    world.pass_time(0.1)
    refusal = manager.identity.refuses()
    assert isinstance(refusal, BrokerError)
    assert (refusal.code, refusal.resource) == (code, resource)
    world.run(manager.abort())
    assert manager.state in {State.READY, State.UNINITIALIZED}


@BOTH
def test_transaction_abortable_of_a_commit_keeps_the_producer(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    world.run(manager.abort())
    world.run(manager.begin())
    assert manager.open is not None
    assert manager.open.committed is None


def test_abort_after_a_fatal_error_raises_it_again() -> None:
    world = World()
    manager = begun(world)
    world.plan("EndTxn", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError):
        world.run(manager.commit())
    for call in (manager.abort, manager.begin, manager.commit, manager.initialize):
        with pytest.raises(AuthorizationError):
            world.run(call())


# ------------------------------------------------------------------------------------------------ fenced or timed out


def aborted_by_coordinator(world: World) -> None:
    world.coordinator.state, world.coordinator.epoch = "CompleteAbort", world.coordinator.epoch + 1


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_batch_with_an_old_epoch_waits_until_it_is_known_why(version: int, code: int) -> None:
    world = World(version)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    assert manager.identity.on_error_code(ORDERS, code) is BatchDisposition.RETRY
    assert not manager.identity.may_send(ORDERS)
    world.pass_time(0.1)
    refusal = manager.identity.refuses()
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
    manager.identity.on_error_code(ORDERS, ErrorCode.INVALID_PRODUCER_EPOCH)
    world.pass_time(0.1)
    for call in (manager.commit, manager.abort, manager.begin):
        with pytest.raises(ProducerFencedError, match=r"transactional_id 'orders'[\s\S]*belongs to one live instance"):
            world.run(call())
    assert "InitProducerId" not in world.apis()[1:], "it must not fence the other in turn"


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.PRODUCER_FENCED), (2, ErrorCode.INVALID_TXN_STATE)])
def test_a_commit_after_the_time_is_over_says_so(version: int, code: int) -> None:
    world = World(version)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    world.plan("EndTxn", code, *([ErrorCode.PRODUCER_FENCED] if version == 1 else []))
    with pytest.raises(TransactionTimedOutError):
        world.run(manager.commit())
    world.run(manager.abort())
    assert manager.open is not None
    assert manager.open.committed is False
    world.run(manager.begin())


def test_old_flow_after_a_timeout_init_names_the_coordinators_epoch() -> None:
    """Seen on 4.3.1 at transaction version 0: InitProducerId with the old epoch is refused (90), with the next one not;
    naming it, and not -1, fences nobody who took over meanwhile."""
    world = World(1)
    manager = begun(world, transaction_timeout_ms=10_000)
    world.now += 11.0
    aborted_by_coordinator(world)
    world.plan("EndTxn", ErrorCode.PRODUCER_FENCED)
    world.run(manager.abort())
    world.plan("InitProducerId", ErrorCode.PRODUCER_FENCED)
    world.run(manager.begin())
    named = [one.request.producer_epoch for one in world.asked if one.api == "InitProducerId"]
    assert named == [-1, 0, 1]


def test_a_new_epoch_that_another_instance_has_taken_is_fenced() -> None:
    world = World(1)
    manager = begun(world)
    manager.identity.on_no_response("Produce")
    world.run(manager.commit())
    world.coordinator.epoch += 2
    world.plan("InitProducerId", ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError):
        world.run(manager.begin())


def test_without_describe_transactions_time_alone_decides() -> None:
    """A broker before 3.0, or one that does not permit it."""
    for waited, kind in ((11.0, TransactionTimedOutError), (1.0, ProducerFencedError)):
        world = World(2)
        manager = begun(world, transaction_timeout_ms=10_000)
        world.now += waited
        world.plan("DescribeTransactions", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        manager.identity.on_error_code(ORDERS, ErrorCode.INVALID_PRODUCER_EPOCH)
        world.pass_time(0.1)
        assert isinstance(manager.identity.refuses(), kind)


@pytest.mark.parametrize("code", sorted(IDENTITY_ERRORS))
def test_an_identity_error_ends_the_use_of_an_old_epoch(code: ErrorCode) -> None:
    """Old flow: after an error about the producer, Kafka's TransactionManager bumps the epoch before the next
    transaction, except after a fatal error (maybeTransitionToErrorState), which a missing permission is."""
    manager = begun(World(1))
    manager.identity.on_failure(ORDERS, broker_error(code, "Produce", resource=ORDERS), possibly_written=False)
    is_fatal = code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (manager.state is State.FATAL_ERROR) is is_fatal
    assert manager.context.is_epoch_spent is not is_fatal


def test_an_error_about_records_leaves_an_old_epoch_usable() -> None:
    manager = begun(World(1))
    failed = broker_error(ErrorCode.INVALID_RECORD, "Produce", resource=ORDERS)
    manager.identity.on_failure(ORDERS, failed, possibly_written=False)
    assert (manager.state, manager.context.is_epoch_spent) == (State.ABORTABLE_ERROR, False)
