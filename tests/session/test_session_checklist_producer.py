# SPDX-License-Identifier: Apache-2.0
"""What a group transact session must do, point by point (C15 to C22: the producer's side), against a
scripted coordinator in virtual time. The same points against real brokers: test_session_broker.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from session_script import IN, OUT, Script, SessionWorld
from transaction_script import CUT, LOST

from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    ProducerFencedError,
    UnknownOutcomeError,
)
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import transactions
from kcodec.transactions.errors import failure


def requests(script: Script, api: str) -> list[object]:
    """Those of an API, in order."""
    return [one.request for one in script.world.asked if one.api == api]


# ------------------------------------------------------------------------------------------------------------ C15, C16


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_c15_c16_an_idle_transaction_sends_nothing(version: int, is_commit: bool) -> None:
    script = Script(SessionWorld(version))
    for _ in range(2):
        block = script.begin()
        assert not script.read(IN[0], 0)
        script.end(block, is_commit=is_commit)
        assert block.committed is is_commit
    assert script.wire("flush") == ["InitProducerId"]


def test_c15_in_the_new_flow_every_transaction_that_was_tried_takes_an_endtxn() -> None:
    script = Script(SessionWorld(2))
    block = script.begin()
    assert script.manager.identity.may_send(OUT), "the batch goes out"
    script.manager.identity.on_failure(OUT, failure("Produce", 87, "Produce").error, possibly_written=False)
    with pytest.raises(AbortableTransactionError):
        script.end(block)
    assert script.wire()[-1] == "EndTxn"
    assert block.committed is False


def test_c16_in_the_old_flow_a_transaction_that_only_read_nothing_takes_none() -> None:
    """The coordinator would answer INVALID_TXN_STATE."""
    script = Script(SessionWorld(0))
    script.end(script.worked())
    before = script.wire().count("EndTxn")
    block = script.begin()
    script.end(block)
    assert block.committed
    assert script.wire().count("EndTxn") == before == 1


# ------------------------------------------------------------------------------------------------------------ C17, C18


def test_c17_what_follows_endtxn_carries_the_epoch_that_it_gave() -> None:
    script = Script(SessionWorld(2))
    for _ in range(3):
        script.end(script.worked())
    epochs = [(one.producer_id, one.producer_epoch) for one in requests(script, "TxnOffsetCommit")]  # type: ignore[attr-defined]
    assert epochs == [(7, 0), (7, 1), (7, 2)]


def test_c18_endtxn_may_bring_another_producer_id() -> None:
    script = Script(SessionWorld(2))

    def rolled_over(answer: transactions.EndTxnResponse) -> transactions.EndTxnResponse:
        script.world.coordinator.producer_id, script.world.coordinator.epoch = 8, 0
        answer.producer_id, answer.producer_epoch = 8, 0
        return answer

    script.plan("EndTxn", rolled_over)
    for _ in range(2):
        script.end(script.worked())
    assert script.manager.context.producer == ProducerIdAndEpoch(8, 1)
    last = requests(script, "TxnOffsetCommit")[-1]
    assert (last.producer_id, last.producer_epoch) == (8, 0)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------ C19, C20


@pytest.mark.parametrize("version", [0, 2])
def test_c19_a_failed_record_blocks_the_commit_and_says_which_partition(version: int) -> None:
    script = Script(SessionWorld(version))
    block = script.worked()
    script.manager.identity.on_failure(OUT, DeliveryTimeoutError("too late", possibly_sent=True), possibly_written=True)
    with pytest.raises(AbortableTransactionError, match="out-0") as raised:
        script.end(block)
    assert raised.value.resource == OUT
    assert "TxnOffsetCommit" not in script.wire()
    assert block.committed is False
    assert script.consumer.positions()[IN[0]] == 10
    again = script.worked()
    script.end(again)
    assert again.committed


def test_c19_one_that_fails_while_the_end_flushes_does_so_too() -> None:
    script = Script()
    block = script.worked()
    script.buffer.pending = 1
    task = script.ending(block)
    script.world.pass_time(0.5)
    script.manager.identity.on_failure(OUT, failure("Produce", 87, "Produce").error, possibly_written=False)
    script.buffer.end()
    script.world.pass_time(1.0)
    assert isinstance(task.error, AbortableTransactionError)
    assert "TxnOffsetCommit" not in script.wire()


@pytest.mark.parametrize(
    ("version", "api"),
    [
        (0, "AddPartitionsToTxn"),
        (0, "AddOffsetsToTxn"),
        (0, "TxnOffsetCommit"),
        (0, "EndTxn"),
        (0, "Produce"),
        (2, "TxnOffsetCommit"),
        (2, "EndTxn"),
        (2, "Produce"),
    ],
)
def test_c20_transaction_abortable_of_any_request_leaves_a_usable_session(version: int, api: str) -> None:
    script = Script(SessionWorld(version))
    block = script.begin()
    script.read()
    script.plan(api, ErrorCode.TRANSACTION_ABORTABLE)
    if api == "AddPartitionsToTxn":
        assert not script.manager.identity.may_send(OUT)
        script.world.pass_time(0.5)
    else:
        script.write()
    if api == "Produce":
        script.manager.identity.on_failure(OUT, failure("Produce", 120, "Produce").error, possibly_written=False)
    with pytest.raises(AbortableTransactionError) as raised:
        script.end(block)
    assert raised.value.name == "TRANSACTION_ABORTABLE"
    assert block.committed is False
    assert script.consumer.positions()[IN[0]] == 10
    again = script.worked()
    script.end(again)
    assert again.committed


def test_c20_during_a_rebalance_it_is_not_reported() -> None:
    script = Script()
    block = script.worked()
    script.lose(IN[0])
    script.world.pass_time(0.1)
    script.manager.identity.on_failure(OUT, failure("Produce", 120, "Produce").error, possibly_written=False)
    script.end(block)
    assert block.committed is False


def test_c20_an_error_that_comes_after_the_loss_is_not_raised_either() -> None:
    script = Script()
    block = script.worked()
    script.plan("TxnOffsetCommit", *[LOST] * 100)
    task = script.ending(block, timeout=2.0)
    script.world.pass_time(1.0)
    script.lose(IN[0])
    script.world.pass_time(20.0)
    assert task.done
    assert task.error is None
    assert block.committed is False


# ------------------------------------------------------------------------------------------------------------ C21, C22


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
@pytest.mark.parametrize("api", ["TxnOffsetCommit", "EndTxn"])
@pytest.mark.parametrize("version", [0, 2])
def test_c21_being_fenced_is_terminal_and_said_at_every_call_after(version: int, api: str, code: int) -> None:
    script = Script(SessionWorld(version))
    block = script.worked()
    script.plan(api, code)
    script.world.coordinator.epoch += 2  # another instance took over
    with pytest.raises(ProducerFencedError):
        script.end(block)
    assert block.committed is False
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match="took over") as raised:
            script.begin()
        assert raised.value.remedy in ("recreate", "stop")


def test_c21_in_a_rebalance_too() -> None:
    script = Script()
    block = script.worked()
    script.lose(IN[0])
    script.world.pass_time(0.1)
    script.world.coordinator.epoch += 2
    script.plan("EndTxn", ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError):
        script.end(block)
    assert block.committed is False
    assert script.session.block is None


def test_c21_after_an_unanswered_commit_the_outcome_stays_unknown() -> None:
    """Another producer took the id over after the copy of EndTxn that got no response."""
    script = Script()
    block = script.worked()

    def taken_over(answer: Any) -> Any:
        script.world.coordinator.epoch, script.world.coordinator.state = 5, "Empty"
        answer.error_code = ErrorCode.PRODUCER_FENCED
        return answer

    script.plan("EndTxn", CUT, taken_over)
    with pytest.raises(UnknownOutcomeError):
        script.end(block)
    assert block.committed is None
    with pytest.raises(ProducerFencedError):
        script.begin()


@pytest.mark.parametrize("version", [0, 2])
def test_c21_a_time_out_after_an_unanswered_commit_leaves_the_session_usable(version: int) -> None:
    """A copy of EndTxn came late, when the coordinator had aborted what was over its time: nobody else has the id."""
    script = Script(SessionWorld(version))
    block = script.worked()
    script.world.pass_time(6.0)
    script.world.coordinator.epoch += 1
    script.world.coordinator.state = "CompleteAbort"
    script.plan("EndTxn", LOST, ErrorCode.PRODUCER_FENCED)
    with pytest.raises(UnknownOutcomeError, match="open for longer than"):
        script.end(block)
    assert block.committed is None
    again = script.worked()
    script.end(again)
    assert again.committed


def test_c22_who_takes_over_waits_until_the_others_transaction_is_aborted() -> None:
    script = Script()
    script.plan(
        "InitProducerId",
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
    block = script.worked()
    script.end(block)
    assert block.committed
    assert script.wire().count("InitProducerId") == 4
