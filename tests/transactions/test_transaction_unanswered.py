# SPDX-License-Identifier: Apache-2.0
"""Requests of a transaction that nobody answers, or not yet: what is repeated, and what is said when time is over. By a
scripted coordinator, in virtual time.
"""

from __future__ import annotations

import itertools

import pytest
from transaction_script import (
    BOTH,
    CUT,
    GROUP,
    HANG,
    LOST,
    OFFSETS,
    REFUSED,
    Action,
    World,
    begun,
    make_manager,
)
from unnarrowed import unnarrowed

from kcodec.errors import (
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    FatalTransactionError,
    TransactionStateError,
    UnknownOutcomeError,
)
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.state import State

# ----------------------------------------------------------------------------------------------------- InitProducerId


@pytest.mark.parametrize("action", [51, 14, 15, 16, 7, CUT, LOST, REFUSED])
def test_what_passes_is_repeated(action: Action) -> None:
    world = World()
    world.plan("InitProducerId", action, action)
    manager = make_manager(world)
    world.run(manager.initialize())
    assert manager.state is State.READY


def test_concurrent_transactions_are_retried_with_growing_pauses() -> None:
    world = World()
    world.plan("InitProducerId", *[ErrorCode.CONCURRENT_TRANSACTIONS] * 8)
    world.run(make_manager(world).initialize())
    times = [one.time for one in world.asked if one.api == "InitProducerId"]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert 0.015 < pauses[0] < 0.03
    assert pauses[-1] > 5 * pauses[0]


def test_init_that_never_succeeds_can_be_called_again() -> None:
    world = World()
    world.plan("InitProducerId", *[ErrorCode.CONCURRENT_TRANSACTIONS] * 100)
    manager = make_manager(world)
    start = world.now
    with pytest.raises(DeliveryTimeoutError, match="CONCURRENT_TRANSACTIONS"):
        world.run(manager.initialize(2.0))
    assert world.now - start <= 2.0
    assert unnarrowed(manager.state) is State.UNINITIALIZED
    world.plans.clear()
    world.run(manager.initialize())
    assert manager.state is State.READY


def test_a_refused_timeout_is_said_in_words() -> None:
    world = World()
    world.plan("InitProducerId", ErrorCode.INVALID_TRANSACTION_TIMEOUT)
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
def test_old_flow_a_request_without_response_spends_the_epoch(version: int, api: str) -> None:
    """Its repeat was answered, its first copy may still arrive: inside the next transaction of the same epoch."""
    world = World(version)
    world.plan(api, CUT)
    manager = begun(world)
    if api == "Produce":
        manager.identity.on_no_response("Produce")
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
    with pytest.raises(TransactionStateError, match="commit_transaction sends it again"):
        world.run(manager.abort())
    world.plans.clear()
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"
    named = world.asked[-1].request
    assert (named.producer_id, named.producer_epoch) == (7, 0), "the epoch that we had, so that nobody else is fenced"


def test_after_an_unknown_outcome_the_same_end_can_be_repeated() -> None:
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
def test_a_repeat_without_a_connection_is_still_unknown(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[CUT] * 1000)
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(2.0))
    world.plans["EndTxn"] = [REFUSED] * 1000
    with pytest.raises(UnknownOutcomeError):
        world.run(manager.commit(2.0))
    assert manager.state is State.UNKNOWN_OUTCOME


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_fenced_after_an_unanswered_commit_is_an_unknown_outcome(code: int) -> None:
    """The first copy may have committed before the other instance took over: nobody may call it aborted."""
    world = World(1)
    manager = begun(world)
    world.plan("EndTxn", LOST, code)
    world.coordinator.epoch += 2
    with pytest.raises(UnknownOutcomeError, match="may have been committed"):
        world.run(manager.commit())
    assert manager.open is not None
    assert manager.open.committed is None
    with pytest.raises(BrokerError) as raised:
        world.run(manager.begin())
    assert raised.value.code == code


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED]
)
def test_a_commit_refused_after_no_response_is_unknown_not_fatal(code: int) -> None:
    """Its time-out, say, was quicker than the last copy: nobody has taken over, so InitProducerId gives a new epoch."""
    world = World(1)
    manager = begun(world)
    world.plan("EndTxn", LOST, code)
    with pytest.raises(UnknownOutcomeError, match="may have been committed"):
        world.run(manager.commit())
    assert manager.open is not None
    assert manager.open.committed is None
    assert manager.state is State.UNKNOWN_OUTCOME
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"


@BOTH
def test_an_abort_without_response_can_be_repeated(version: int) -> None:
    """The remedy of the error is "retry", as in Java. The repeated abort ends the transaction if it is still open."""
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[LOST] * 20)
    world.plan("InitProducerId", *[LOST] * 20)
    for _ in range(2):
        with pytest.raises(DeliveryTimeoutError) as raised:
            world.run(manager.abort(2.0))
        assert (raised.value.remedy, manager.state) == ("retry", State.UNINITIALIZED)
    world.plans.clear()
    world.run(manager.abort(2.0))
    assert (manager.state, world.coordinator.state) == (State.READY, "Empty")
    with pytest.raises(TransactionStateError):
        world.run(manager.abort())
    world.run(manager.begin())


def test_a_timeout_of_a_wrong_type_changes_no_state() -> None:
    """Otherwise each later call would raise TransactionStateError, because an initialization seems to be under way."""
    manager = make_manager(world := World())
    with pytest.raises(TypeError):
        world.run(manager.initialize("5"))  # type: ignore[arg-type]
    world.run(manager.initialize(5.0))


@BOTH
def test_an_abort_without_response_says_nothing_is_committed(version: int) -> None:
    world = World(version)
    manager = begun(world)
    world.plan("EndTxn", *[HANG] * 100)
    with pytest.raises(DeliveryTimeoutError, match="The transaction will not be committed"):
        world.run(manager.abort(12.0))
    assert manager.open is not None
    assert manager.open.committed is False
    world.plans.clear()
    world.run(manager.begin())
    assert world.apis()[-1] == "InitProducerId"


def test_end_txn_waits_for_records_until_its_deadline() -> None:
    world = World()
    manager = begun(world)
    manager.context.records.pending = 1  # type: ignore[union-attr]
    with pytest.raises(DeliveryTimeoutError):
        world.run(manager.commit(3.0))
    assert "EndTxn" not in world.apis()
    assert unnarrowed(manager.state) is State.ABORTABLE_ERROR
    manager.context.records.end()  # type: ignore[union-attr]
    world.run(manager.abort())
    assert manager.state is State.READY


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_commit_that_is_given_up_reports_its_outcome(is_sent: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Cancelled before EndTxn was sent it is not committed. After that the outcome is unknown, and a warning says so,
    as Ctrl-C does not show that it came during a commit."""
    world = World()
    manager = begun(world)
    world.plan("EndTxn", HANG)
    manager.context.records.pending = 0 if is_sent else 1  # type: ignore[union-attr]
    task = world.spawn(manager.commit())
    task.cancel()
    assert manager.state is (State.UNKNOWN_OUTCOME if is_sent else State.ABORTABLE_ERROR)
    logged = [one.getMessage() for one in caplog.records if "outcome is unknown" in one.getMessage()]
    assert len(logged) == int(is_sent)
