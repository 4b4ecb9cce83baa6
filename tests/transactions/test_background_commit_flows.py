# SPDX-License-Identifier: Apache-2.0
"""commit_transaction_async against a scripted coordinator, in virtual time: what is sent, what waits, what is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from transaction_script import BOTH, CUT, GROUP, HANG, OFFSETS, ORDERS, Buffer, World, begun, write
from unnarrowed import unnarrowed

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    EncodeError,
    KcodecError,
    ProducerFencedError,
    TransactionStateError,
    UnknownOutcomeError,
)
from kcodec.flow import Flow
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.commit_result import CommitResult
from kcodec.transactions.manager import TransactionManager
from kcodec.transactions.state import State


def buffer_of(manager: TransactionManager) -> Buffer:
    """The buffer in place of the producer's core."""
    assert isinstance(manager.context.records, Buffer)
    return manager.context.records


def committing(world: World, manager: TransactionManager, timeout: float | None = None) -> CommitResult:
    """A commit in the background, of which nothing is sent yet."""
    result = CommitResult("orders", nullcontext(), lambda: None)
    buffer_of(manager).pending += 1
    world.run(manager.commit_async(result, timeout))
    assert unnarrowed(manager).state is State.COMMITTING_ASYNC and not result.done()
    return result


def go_on(world: World, manager: TransactionManager) -> None:
    """The records before the commit are acknowledged, and time goes by."""
    buffer_of(manager).end()
    world.pass_time(1.0)


def test_the_next_transaction_gets_its_epoch_after_the_commit() -> None:
    world = World(2)
    manager = begun(world)
    first, result = manager.context.now_open, committing(world, manager)
    following = world.run(manager.begin())
    assert (
        unnarrowed(manager).state is State.BUFFERING
        and buffer_of(manager).is_holding
        and buffer_of(manager).refusal is None
    )
    assert (manager.open, manager.newest) == (first, following)
    go_on(world, manager)
    assert result.done() and result.retrieved() is None
    assert (first.committed, following.committed) == (True, None)
    assert (
        unnarrowed(manager).state is State.IN_TRANSACTION
        and manager.open is following
        and not buffer_of(manager).is_holding
    )
    assert manager.context.now_open.producer == manager.identity.current == ProducerIdAndEpoch(7, 1)
    world.pass_time(0.1)
    assert write(world, manager)
    world.run(manager.commit())
    assert world.apis("DescribeTransactions") == ["InitProducerId", "EndTxn", "EndTxn"]


def test_a_commit_without_a_next_transaction_ends_ready() -> None:
    world = World(2)
    manager = begun(world)
    result = committing(world, manager)
    go_on(world, manager)
    assert result.retrieved() is None and unnarrowed(manager).state is State.READY


def test_one_commit_at_a_time_is_under_way() -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    world.run(manager.begin())
    with pytest.raises(TransactionStateError, match="the previous commit is in progress: wait for its result first"):
        world.run(manager.commit_async(CommitResult("orders", nullcontext(), lambda: None)))
    go_on(world, manager)
    assert unnarrowed(manager).state is State.IN_TRANSACTION


@pytest.mark.parametrize("is_commit", [True, False])
def test_commit_and_abort_wait_for_the_commit_before(is_commit: bool) -> None:
    world = World(2)
    manager = begun(world)
    result = committing(world, manager)
    following = world.run(manager.begin())
    call = world.spawn(manager.commit() if is_commit else manager.abort())
    world.pass_time(0.5)
    assert not call.done and "EndTxn" not in world.apis()
    go_on(world, manager)
    assert unnarrowed(call).done and call.error is None
    assert result.retrieved() is None and following.committed is is_commit


def test_offsets_of_the_next_transaction_wait_for_the_commit() -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    world.run(manager.begin())
    call = world.spawn(manager.send_offsets(OFFSETS, GROUP))
    world.pass_time(0.5)
    assert not call.done
    go_on(world, manager)
    assert call.error is None and world.apis("DescribeTransactions")[-2:] == ["EndTxn", "TxnOffsetCommit"]
    assert world.asked[-1].request.producer_epoch == 1


@pytest.mark.parametrize("end", ["cancelled", "interrupted", "late"])
def test_offsets_that_were_not_sent_prevent_the_commit(end: str) -> None:
    """The call for them ends while it waits for the commit. The commit of its transaction would succeed without the
    offsets."""
    world = World(2)
    manager = begun(world)
    result = committing(world, manager)
    following = world.run(manager.begin())
    task = world.spawn(manager.send_offsets(OFFSETS, GROUP, 1.0))
    if end == "cancelled":
        task.cancel()
        world.pass_time(0.1)
    elif end == "interrupted":
        world.scheduler._suspensions[task].resume(None, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            world.scheduler.run_ready()
    else:
        world.pass_time(2.0)
        assert isinstance(task.error, DeliveryTimeoutError) and task.error.remedy == "abort"
        assert str(task.error).endswith("which needs its outcome; abort the transaction")
    assert task.done and isinstance(buffer_of(manager).refusal, AbortableTransactionError)
    go_on(world, manager)
    assert result.retrieved() is None
    with pytest.raises(AbortableTransactionError, match="offsets of group 'readers' were not accepted"):
        world.run(manager.commit())
    world.run(manager.abort())
    assert following.committed is False and not world.coordinator.committed
    world.run(manager.begin())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_commit_that_waits_for_offsets_fails_with_them(is_async: bool) -> None:
    world = World(2)
    manager = begun(world)
    transaction = manager.context.now_open
    world.plan("TxnOffsetCommit", HANG)
    offsets = world.spawn(manager.send_offsets(OFFSETS, GROUP, 1.0))
    result = CommitResult("orders", nullcontext(), lambda: None)
    commit = world.spawn(manager.commit_async(result) if is_async else manager.commit())
    world.pass_time(10.0)
    assert isinstance(offsets.error, DeliveryTimeoutError) and offsets.error.remedy == "abort"
    error = result.retrieved() if is_async else commit.error
    assert isinstance(error, AbortableTransactionError) and "offsets of group 'readers' were not accepted" in str(error)
    assert "EndTxn" not in world.apis() and transaction.committed is False
    world.run(manager.abort())
    world.run(manager.begin())


def test_a_call_that_waits_too_long_can_be_repeated() -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    world.run(manager.begin())
    with pytest.raises(DeliveryTimeoutError, match="did not end before the timeout of the call") as raised:
        world.run(manager.commit(0.2))
    assert raised.value.remedy == "retry" and unnarrowed(manager).state is State.BUFFERING
    go_on(world, manager)
    world.run(manager.commit())


CALLS: list[Callable[[TransactionManager], Flow[object]]] = [
    lambda manager: manager.commit(),
    lambda manager: manager.send_offsets(OFFSETS, GROUP),
    lambda manager: manager.release(),
]


@BOTH
def test_without_an_outcome_the_next_one_is_discarded(version: int) -> None:
    """Its commit does not repeat the EndTxn of the transaction before: that would report the records as committed."""
    world = World(version, request_timeout=1.0)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 20)
    first, result = manager.context.now_open, committing(world, manager, 3.0)
    following = world.run(manager.begin())
    buffer_of(manager).end()
    world.pass_time(5.0)
    assert unnarrowed(manager).state is State.DISCARDED and isinstance(result.unretrieved, UnknownOutcomeError)
    assert isinstance(manager.identity.refuses(), UnknownOutcomeError) and isinstance(
        buffer_of(manager).refusal, UnknownOutcomeError
    )
    count = world.apis().count("EndTxn")
    for call in CALLS:
        with pytest.raises(UnknownOutcomeError):
            world.run(call(manager))
    with pytest.raises(TransactionStateError, match="abort the transaction first"):
        world.run(manager.begin())
    world.run(manager.abort())
    assert unnarrowed(manager).state is State.UNKNOWN_OUTCOME and world.apis().count("EndTxn") == count
    assert (first.committed, following.committed) == (None, False)
    assert isinstance(buffer_of(manager).dropped, UnknownOutcomeError)
    assert unnarrowed(result).unretrieved is None  # those calls have raised it
    world.plans["EndTxn"].clear()
    world.run(manager.begin())
    assert unnarrowed(manager).state is State.IN_TRANSACTION


def test_an_outcome_that_is_known_can_still_be_repeated() -> None:
    world = World(2, request_timeout=1.0)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 3)
    first, result = manager.context.now_open, committing(world, manager, 2.0)
    buffer_of(manager).end()
    world.pass_time(5.0)
    assert unnarrowed(manager).state is State.UNKNOWN_OUTCOME
    with pytest.raises(UnknownOutcomeError):
        result.outcome()
    world.plans["EndTxn"].clear()
    world.run(manager.commit())
    assert first.committed is True


def test_a_commit_reports_an_unknown_outcome_first() -> None:
    """As at the end of a block: a repetition that succeeds would leave an error for the next begin to raise."""
    world = World(2, request_timeout=1.0)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 3)
    first = manager.context.now_open
    committing(world, manager, 2.0)
    buffer_of(manager).end()
    world.pass_time(5.0)
    count = world.apis().count("EndTxn")
    world.plans["EndTxn"].clear()
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit())
    assert world.apis().count("EndTxn") == count and unnarrowed(manager).state is State.UNKNOWN_OUTCOME
    world.run(manager.commit())
    assert first.committed is True and manager.begin_at_once() is not None


def test_a_failed_commit_fails_the_next_transaction() -> None:
    world = World(2)
    manager = begun(world)
    first, result = manager.context.now_open, committing(world, manager)
    following = world.run(manager.begin())
    error = EncodeError("a record that fails")
    manager.identity.on_failure(ORDERS, error, possibly_written=False)
    assert unnarrowed(manager).state is State.ABORTABLE_ERROR and not buffer_of(manager).is_holding
    go_on(world, manager)
    with pytest.raises(AbortableTransactionError):
        result.outcome()
    for call in CALLS:
        with pytest.raises(AbortableTransactionError):
            world.run(call(manager))
    world.run(manager.abort())
    assert (first.committed, following.committed) == (False, False)
    assert unnarrowed(manager).state is State.READY and world.asked[-1].request.committed is False
    world.run(manager.begin())


def failing(world: World, manager: TransactionManager, timeout: float | None = None) -> CommitResult:
    """A commit in the background that one record has failed, while another is under way."""
    result = committing(world, manager, timeout)
    manager.identity.on_failure(ORDERS, EncodeError("a record that fails"), possibly_written=False)
    return result


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_an_abort_waits_for_a_commit_that_failed(timeout: float | None) -> None:
    """The commit still waits for other records: it finds the state of its failure, not that of the abort."""
    world = World(2)
    manager = begun(world)
    result = failing(world, manager, timeout)
    call = world.spawn(manager.abort())
    world.pass_time(2.0)
    assert not call.done
    go_on(world, manager)
    assert call.error is None and unnarrowed(manager).state is State.READY
    assert isinstance(result.retrieved(), AbortableTransactionError if timeout is None else DeliveryTimeoutError)


def test_the_next_begin_raises_the_error_of_a_commit() -> None:
    world = World(2)
    manager = begun(world)
    failing(world, manager)
    call = world.spawn(manager.begin())
    go_on(world, manager)
    assert isinstance(call.error, AbortableTransactionError) and call.error.remedy == "abort"
    with pytest.raises(TransactionStateError, match="abort the transaction first"):
        world.run(manager.begin())


def test_an_abort_does_not_hide_the_error_of_a_commit() -> None:
    world = World(2)
    manager = begun(world)
    failing(world, manager)
    go_on(world, manager)
    world.run(manager.abort())
    assert manager.begin_at_once() is None
    with pytest.raises(AbortableTransactionError) as raised:
        world.run(manager.begin())
    assert raised.value.remedy == "retry" and "remedy: retry" in str(raised.value)  # nothing is open to abort
    assert manager.begin_at_once() is not None


def test_a_close_does_not_advise_an_abort() -> None:
    """The close has aborted the transaction whose commit failed, and the producer cannot be used any more."""
    world = World(2)
    manager = begun(world)
    failing(world, manager)
    go_on(world, manager)
    world.run(manager.identity.close_flow(5.0))
    error = manager.background.take_unretrieved()
    assert isinstance(error, AbortableTransactionError) and error.remedy == "recreate"


@pytest.mark.parametrize("is_send", [True, False])
def test_an_error_that_a_call_has_raised_is_retrieved(is_send: bool) -> None:
    world = World(2)
    manager = begun(world)
    result = committing(world, manager)
    world.run(manager.begin())
    manager.identity.on_failure(ORDERS, EncodeError("a record that fails"), possibly_written=False)
    go_on(world, manager)
    refusal = buffer_of(manager).refusal
    assert refusal is not None and result.unretrieved is not None
    if is_send:
        manager.identity.on_refused(refusal)
    else:
        with pytest.raises(AbortableTransactionError):
            world.run(manager.commit())
    world.run(manager.abort())
    assert manager.background.take_unretrieved() is None and manager.begin_at_once() is not None


def test_a_begin_waits_for_the_io_thread_to_end_a_commit() -> None:
    """Until the commit has returned, the I/O thread may still announce that no transaction is open."""
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    begun_early: list[object] = []
    refuse = buffer_of(manager).refuse_sends

    def refuse_sends(error: BaseException | None) -> None:
        if unnarrowed(manager).state is State.READY:
            begun_early.append(manager.begin_at_once())
        refuse(error)

    buffer_of(manager).refuse_sends = refuse_sends  # type: ignore[method-assign]
    go_on(world, manager)
    assert begun_early == [None] and manager.begin_at_once() is not None


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_late_rejection_does_not_touch_a_commit(is_begun: bool) -> None:
    """`send_arrow` checks its rows first, so it rejects them also while no transaction takes records."""
    world = World(2)
    manager = begun(world)
    first, result = manager.context.now_open, committing(world, manager)
    if is_begun:
        world.run(manager.begin())
    manager.identity.on_rejected(first, ORDERS, EncodeError("a record that is refused"))
    go_on(world, manager)
    assert result.retrieved() is None and first.committed is True
    assert unnarrowed(manager).state is (State.IN_TRANSACTION if is_begun else State.READY)


def test_a_second_begin_names_the_open_transaction() -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    world.run(manager.begin())
    with pytest.raises(TransactionStateError, match="commit or abort the open transaction first"):
        world.run(manager.begin())
    go_on(world, manager)


def test_a_fenced_commit_ends_the_producer() -> None:
    world = World(2)
    manager = begun(world)
    world.plan("EndTxn", ErrorCode.PRODUCER_FENCED)
    result = committing(world, manager)
    following = world.run(manager.begin())
    world.coordinator.epoch += 1
    go_on(world, manager)
    assert unnarrowed(manager).state is State.FATAL_ERROR and following.committed is False
    for call in (*CALLS, TransactionManager.abort):
        with pytest.raises(ProducerFencedError):
            world.run(call(manager))
    assert isinstance(result.retrieved(), ProducerFencedError)


def test_a_spent_epoch_is_renewed_before_the_next_records() -> None:
    """In the old flow, a copy of EndTxn without a response could end a later transaction of the same epoch."""
    world = World(1)
    manager = begun(world)
    world.plan("EndTxn", CUT)
    result = committing(world, manager)
    following = world.run(manager.begin())
    go_on(world, manager)
    assert result.retrieved() is None and unnarrowed(manager).state is State.IN_TRANSACTION
    assert following.producer == manager.identity.current == ProducerIdAndEpoch(7, 1)
    assert world.apis()[-3:] == ["EndTxn", "EndTxn", "InitProducerId"]


def test_without_a_new_epoch_only_the_next_transaction_fails() -> None:
    world = World(1, request_timeout=1.0)
    manager = begun(world, max_block=3.0)
    world.plan("EndTxn", CUT)
    world.plan("InitProducerId", *[HANG] * 20)
    result = committing(world, manager)
    following = world.run(manager.begin())
    buffer_of(manager).end()
    world.pass_time(10.0)
    assert result.retrieved() is None and unnarrowed(manager).state is State.ABORTABLE_ERROR
    with pytest.raises(DeliveryTimeoutError) as raised:
        world.run(manager.commit())
    assert raised.value.remedy == "abort"
    world.plans["InitProducerId"].clear()
    world.run(manager.abort())
    assert following.committed is False and unnarrowed(manager).state is State.UNINITIALIZED
    world.run(manager.begin())


def test_a_failed_record_of_the_next_one_spares_the_commit() -> None:
    world = World(2)
    manager = begun(world)
    first, result = manager.context.now_open, committing(world, manager)
    following = world.run(manager.begin())
    manager.identity.on_held_failure(ORDERS, EncodeError("a record that fails"))
    assert isinstance(buffer_of(manager).refusal, AbortableTransactionError)
    go_on(world, manager)
    assert result.retrieved() is None and first.committed is True
    with pytest.raises(AbortableTransactionError):
        world.run(manager.commit())
    world.run(manager.abort())
    assert following.committed is False and unnarrowed(manager).state is State.READY


def test_close_waits_for_the_commit_and_aborts_the_next_one() -> None:
    world = World(2)
    manager = begun(world)
    first, result = manager.context.now_open, committing(world, manager)
    following = world.run(manager.begin())
    closing = world.spawn(manager.identity.close_flow(5.0))
    go_on(world, manager)
    assert closing.done and closing.error is None
    assert (result.retrieved(), first.committed, following.committed) == (None, True, False)


def test_a_close_without_time_ends_the_commit_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World(2, request_timeout=20.0)
    manager = begun(world)
    world.plan("EndTxn", HANG)
    result = committing(world, manager)
    buffer_of(manager).end()
    world.run(manager.identity.close_flow(1.0))
    assert isinstance(manager.background.take_unretrieved(), UnknownOutcomeError)
    assert manager.background.take_unretrieved() is None and result.is_retrieved
    assert (
        "the commit in the background failed: the producer was closed during the commit" in caplog.text
    )  # also where no close can raise it


def test_a_close_before_end_txn_names_the_transactional_id() -> None:
    world = World(2)
    manager = begun(world)
    result = committing(world, manager)
    world.run(manager.identity.close_flow(1.0))
    assert str(result.retrieved()) == "the producer was closed before the commit of 'orders' was sent"


def test_a_shared_transaction_is_committed_in_the_foreground() -> None:
    world = World(2)
    manager = begun(world)
    manager.handle(manager.context.now_open)
    with pytest.raises(TransactionStateError, match="use commit_transaction"):
        world.run(manager.commit_async(CommitResult("orders", nullcontext(), lambda: None)))
    world.run(manager.commit())


def test_the_next_transaction_has_no_handle_before_the_commit() -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    following = world.run(manager.begin())
    with pytest.raises(TransactionStateError, match="wait for the result of that commit first"):
        manager.handle(following)
    go_on(world, manager)
    assert manager.handle(following).producer_epoch == 1


@pytest.mark.parametrize("call", ["commit", "abort", "commit_async"])
def test_a_commit_under_way_is_not_ended_twice(call: str) -> None:
    world = World(2)
    manager = begun(world)
    committing(world, manager)
    with pytest.raises(TransactionStateError):
        world.run(
            manager.commit_async(CommitResult("", nullcontext(), lambda: None))
            if "_" in call
            else getattr(manager, call)()
        )
    go_on(world, manager)


def test_a_callback_gets_the_result_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    result = CommitResult("orders", nullcontext(), lambda: None)
    seen: list[CommitResult] = []
    result.add_done_callback(seen.append)
    result.add_done_callback(lambda _: 1 / 0)
    result.finish(KcodecError("no"))
    result.add_done_callback(seen.append)
    assert seen == [result, result] and result.unretrieved is None
    assert "a callback of the commit of 'orders' failed" in caplog.text
    with pytest.raises(KcodecError, match="no"):
        result.outcome()
