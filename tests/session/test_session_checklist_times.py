# SPDX-License-Identifier: Apache-2.0
"""What a group transact session must do, point by point (C23 to C26: times and levels, and beyond), against a
scripted coordinator in virtual time. The same points against real brokers: test_session_broker.py.
"""

from __future__ import annotations

import pytest
from session_script import GROUP, IN, Script, SessionWorld
from transaction_script import CUT, HANG, LOST, REFUSED
from unnarrowed import unnarrowed

from kcodec.cluster.metadata import FinalizedFeatures
from kcodec.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    TransactionStateError,
    UnknownOutcomeError,
)
from kcodec.protocol.error_codes import ErrorCode
from kcodec.session.safety import SessionTimes, check_times, has_kip447

# ------------------------------------------------------------------------------------------------------------ C23, C24


def test_generations_follow_from_the_versions_of_the_coordinator() -> None:
    """While the coordinator is not known, all brokers met so far must offer them."""
    world = SessionWorld()
    cluster = world.cluster
    assert has_kip447(cluster, GROUP)
    cluster.versions[2] = SessionWorld(has_kip447=False).cluster.versions[1]
    assert not has_kip447(cluster, GROUP), "one of the brokers is too old, and may be the coordinator"
    assert world.run(cluster.coordinators.find("group", GROUP, 5.0)) == 1
    assert has_kip447(cluster, GROUP)
    cluster.versions.clear()
    assert not has_kip447(cluster, GROUP)


def test_c23_times_that_are_not_safe_without_kip447_are_refused() -> None:
    script = Script(SessionWorld(0, has_kip447=False), times=SessionTimes(session=45.0, request=30.0))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"session_timeout_ms=45000.*scan interval \(10000\).*= 45000"):
            script.begin()
    assert script.session.block is None
    assert "EndTxn" not in script.wire()


@pytest.mark.parametrize(
    ("transaction", "scan", "request_", "session", "is_safe"),
    [
        (5.0, 10.0, 5.0, 20.001, True),
        (5.0, 10.0, 5.0, 20.0, False),  # equal is too late
        (5.0, 0.5, 5.0, 20.0, True),  # a broker that scans more often
        (40.0, 10.0, 30.0, 45.0, False),  # the defaults are not for old brokers
        (44.0, 0.0, 0.5, 45.0, True),
        (44.0, 10.0, 0.5, 45.0, False),  # the scan interval matters
    ],
)
def test_c23_the_sum_counts(transaction: float, scan: float, request_: float, session: float, is_safe: bool) -> None:
    times = SessionTimes(session=session, request=request_, scan=scan)
    if is_safe:
        check_times(times, transaction)
    else:
        with pytest.raises(ValueError, match="session_timeout_ms"):
            check_times(times, transaction)


def test_c23_a_session_time_out_of_the_brokers_that_is_not_known_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_times(SessionTimes(session=None, request=30.0), 40.0)
    assert "could not be read" in caplog.text


def test_c23_with_kip447_no_time_out_is_refused() -> None:
    script = Script(times=SessionTimes(session=6.0, request=30.0))
    script.end(script.worked())


def test_c23_a_coordinator_that_turns_out_to_be_older_is_looked_at_again() -> None:
    """Its group moved, in a cluster of brokers of two versions."""
    script = Script(times=SessionTimes(session=20.0, request=30.0))
    script.end(script.worked())
    block = script.worked()
    script.world.cluster.versions[1] = SessionWorld(0, has_kip447=False).cluster.versions[1]
    with pytest.raises(ValueError, match="is not safe with this broker"):
        script.end(block)
    assert block.committed is False
    assert script.wire()[-1] == "EndTxn"


@pytest.mark.parametrize("fault", [HANG, LOST, REFUSED, 51, 14])
def test_c24_begin_has_a_deadline(fault: str | int) -> None:
    script = Script()
    script.plan("InitProducerId", *[fault] * 500)
    begin = script.world.now
    with pytest.raises(DeliveryTimeoutError):
        script.begin(timeout=3.0)
    assert script.world.now - begin <= 3.1
    script.world.plans.clear()
    script.end(script.worked())


def test_c24_the_pause_after_aborts_in_a_row_is_part_of_it() -> None:
    """Before, InitProducerId got the whole timeout after the pause."""
    script = Script()
    script.plan("InitProducerId", *[HANG] * 10)
    script.session._not_before = script.world.now + 2.0
    begin = script.world.now
    with pytest.raises(DeliveryTimeoutError):
        script.begin(timeout=3.0)
    assert script.world.now - begin <= 3.1


def test_c24_the_wait_for_committed_offsets_is_part_of_it() -> None:
    script = Script()
    block = script.worked()
    script.plan("EndTxn", *[CUT] * 100)
    with pytest.raises(UnknownOutcomeError):
        script.end(block, timeout=2.0)
    script.world.plans.clear()
    script.plan("OffsetFetch", HANG)
    begin = script.world.now
    with pytest.raises(Exception, match="no answer"):
        script.begin(timeout=2.0)
    assert script.world.now - begin < 2.2
    assert script.session.block is None
    script.begin()
    assert script.consumer.positions()[IN[0]] == 15


# ------------------------------------------------------------------------------------------------------- C25, C26, C27


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
def test_c25_what_passes_of_initproducerid_never_surfaces(code: int) -> None:
    script = Script()
    script.plan("InitProducerId", code, code, code)
    block = script.worked()
    script.end(block)
    assert block.committed


def test_c26_the_level_may_rise_and_fall_between_transactions() -> None:
    script = Script(SessionWorld(0))
    spoken = []
    for level in (0, 2, 2, 1, 1, 2):
        script.world.cluster.features = FinalizedFeatures(levels={"transaction.version": level})
        block = script.worked()
        before = len(script.world.asked)
        script.end(block)
        assert block.committed
        spoken.append({one.version for one in script.world.asked[before:] if one.api == "EndTxn"}.pop())
    assert [5 if version == 5 else 4 for version in spoken] == [4, 5, 5, 4, 4, 5]
    assert script.wire().count("InitProducerId") == 4, "the first, and one for each change"


def test_c26_one_that_is_open_while_it_falls_aborts() -> None:
    script = Script(SessionWorld(2))
    block = script.worked()
    script.world.cluster.features = FinalizedFeatures(levels={"transaction.version": 1})
    with pytest.raises(AbortableTransactionError, match="lowered"):
        script.end(block)
    assert block.committed is False
    again = script.worked()
    script.end(again)
    assert again.committed


def test_only_one_transaction_at_a_time() -> None:
    script = Script()
    block = script.begin()
    with pytest.raises(TransactionStateError, match="is open"):
        script.begin()
    script.end(block)
    for _ in range(2):
        script.end(block)
        with pytest.raises(TransactionStateError, match="was committed: send"):
            block.check_open("send")


def test_a_begin_without_response_is_in_nothings_way() -> None:
    """Its caller was interrupted when it had just begun."""
    script = Script()
    block = script.world.run(script.session.begin(None, lambda: True))
    following = script.begin()
    assert following is not block
    script.end(following)
    assert following.committed


@pytest.mark.parametrize("moment", ["flush", "EndTxn"])
def test_an_abort_that_is_given_up_is_no_commit(moment: str) -> None:
    script = Script()
    block = script.worked()
    if moment == "flush":
        script.buffer.pending = 1
    script.plan("EndTxn", HANG)
    task = script.ending(block, is_commit=False)
    task.when_done(lambda _: None)
    script.world.pass_time(0.5)
    task.cancel()
    assert block.committed is False
    assert script.consumer.positions()[IN[0]] == 10
    script.buffer.end(script.buffer.pending)
    again = script.worked()
    script.end(again)
    assert again.committed


def test_a_poll_that_waits_for_a_rebalance_counts_as_a_poll_all_the_time() -> None:
    script = Script()
    block = script.begin()
    script.membership.is_stable = False
    script.world.run(script.session.until_polled())
    begin = script.world.now
    assert script.world.run(script.session.wait_for_work(5.0)) is None
    assert script.world.now - begin == pytest.approx(5.0)
    assert script.consumer.polls >= 4
    script.end(block)


def test_a_member_that_left_unpolled_stays_away_until_a_poll() -> None:
    script = Script()
    block = script.worked()
    script.world.pass_time(script.session.times.max_poll_interval + 1.0)
    script.lose(*IN)  # what the membership does then
    rejoin = script.world.spawn(script.session.until_polled())
    script.world.pass_time(5.0)
    assert not unnarrowed(rejoin.done)
    script.end(block)
    assert block.committed is False
    script.world.pass_time(5.0)
    assert not unnarrowed(rejoin.done), "between transactions nobody polls either"
    following = script.begin()
    script.membership.is_stable = False
    assert not script.session.may_take(following)
    script.world.run(script.session.wait_for_work(1.0))
    assert rejoin.done
    script.end(following)


def test_a_session_that_is_not_polled_can_be_closed() -> None:
    script = Script()
    script.world.pass_time(script.session.times.max_poll_interval + 1.0)
    script.session.is_closing = True
    assert script.revoke().done
