# SPDX-License-Identifier: Apache-2.0
"""What a group transact session must do, point by point (C1 to C8: the group's side), against a scripted coordinator
in virtual time. The same points against real brokers: test_session_broker.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from session_script import GROUP, IN, Script, SessionWorld
from transaction_script import HANG, LOST
from unnarrowed import unnarrowed

from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.errors import ProducerFencedError, UnknownOutcomeError
from kcodec.flow import Flow
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.versions import BrokerVersions
from kcodec.session.safety import SessionTimes
from kcodec.transactions.state import State

AGED = SessionTimes(session=60.0, request=5.0)


def old_script() -> Script:
    """With a broker before 2.5."""
    return Script(SessionWorld(0, has_kip447=False), times=AGED)


# ------------------------------------------------------------------------------------------------------ C1, C2, C3, C4


@pytest.mark.parametrize("how", ["revoke", "lose"])
def test_c01_partitions_taken_away_in_a_transaction_abort_it_silently(how: str) -> None:
    script = Script()
    block = script.worked()
    script.session._polls = 1  # it polls again
    taken = getattr(script, how)(IN[0])
    script.world.pass_time(0.1)
    script.session._polls = 0
    assert taken.done
    assert "in-0" in (block.failed or "")
    script.write()  # a block that does not know goes on
    script.end(block)
    assert block.committed is False
    assert script.wire()[-2:] == ["flush", "EndTxn"]
    assert script.world.asked[-1].request.committed is False
    assert script.world.committed == dict.fromkeys(IN, 10)
    script.rebalanced()
    again = script.worked(IN[1])
    script.end(again)
    assert again.committed


def test_c01_what_is_revoked_between_transactions_and_nothing_at_all_fail_none() -> None:
    script = Script()
    script.end(script.worked())
    assert script.revoke(IN[0]).done
    script.rebalanced()
    block = script.begin()
    assert script.read(IN[1])
    script.world.run(script.session.revoke([]))
    script.end(block)
    assert block.committed


def test_c01_a_transaction_that_has_not_done_anything_does_not_hold_a_rebalance_back_nor_fail() -> None:
    script = Script()
    block = script.begin()
    assert script.revoke(IN[0]).done
    assert not script.read(IN[1]), "nothing is delivered while a rebalance is under way"
    script.rebalanced()
    assert script.read(IN[1])
    script.end(block)
    assert block.committed
    assert script.world.committed[IN[1]] == 15


@pytest.mark.parametrize("version", [0, 2])
def test_c02_the_order_of_a_commit_on_the_wire(version: int) -> None:
    script = Script(SessionWorld(version))
    block = script.worked()
    before = len(script.wire())
    revoked = []
    script.membership.group_lock.acquire = _noting(script, "gate", script.membership.group_lock.acquire)  # type: ignore[method-assign]
    script.session.end_lock.acquire = _noting(script, "lock", script.session.end_lock.acquire)  # type: ignore[method-assign]
    release = script.session.end_lock.release

    def noted_release() -> None:
        script.world.note("unlock")
        revoked.append(script.consumer.positions())
        release()

    script.session.end_lock.release = noted_release  # type: ignore[method-assign]
    script.end(block)
    offsets = ["AddOffsetsToTxn", "TxnOffsetCommit"] if version == 0 else ["TxnOffsetCommit"]
    # The second flush is the commit's own, and finds nothing.
    assert script.wire()[before:] == ["flush", "gate", *offsets, "Heartbeat", "lock", "flush", "EndTxn", "unlock"]
    assert revoked[0][IN[0]] == 15


def _noting(script: Script, what: str, acquire: Callable[[float | None], Flow[bool]]) -> Callable[..., Flow[bool]]:
    def noted(timeout: float | None = None) -> Flow[bool]:
        script.world.note(what)
        return (yield from acquire(timeout))

    return noted


def test_c03_the_commit_has_generation_member_instance_and_leader_epochs() -> None:
    script = Script()
    script.end(script.worked())
    (asked,) = [one.request for one in script.world.asked if one.api == "TxnOffsetCommit"]
    assert (asked.group_id, asked.generation_id_or_member_epoch, asked.member_id) == (GROUP, 5, "member-1")
    assert asked.group_instance_id == "instance-1"
    ((topic),) = asked.topics
    ((partition),) = topic.partitions
    assert (topic.name, partition.partition_index) == ("in", 0)
    assert (partition.committed_offset, partition.committed_leader_epoch) == (15, 4)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_c03_a_wrong_one_aborts_the_transaction_and_is_not_fatal(version: int, code: int) -> None:
    script = Script(SessionWorld(version))
    block = script.worked()
    script.plan("TxnOffsetCommit", code)
    script.end(block)
    assert block.committed is False
    assert script.consumer.positions()[IN[0]] == 10
    script.world.pass_time(1)
    assert script.membership.beats == 1, "the membership finds out who it is"
    again = script.worked()
    script.end(again)
    assert again.committed


def test_c03_offsets_are_never_committed_without_a_generation() -> None:
    """A member that lost its generation would be taken for somebody who assigns partitions by hand."""
    from kcodec.offsets import ConsumerGroupMetadata

    script = Script()
    block = script.worked()
    script.membership.group_metadata = ConsumerGroupMetadata(GROUP)
    script.end(block)
    assert block.committed is False
    assert "TxnOffsetCommit" not in script.wire()


def test_c04_a_rejoin_and_a_commit_of_offsets_do_not_interleave() -> None:
    script = Script()
    block = script.worked()
    assert script.world.run(script.membership.group_lock.acquire())
    task = script.ending(block)
    script.world.pass_time(1.0)
    assert not unnarrowed(task.done)
    assert "TxnOffsetCommit" not in script.wire()
    script.membership.group_lock.release()
    script.world.pass_time(0.001)
    assert unnarrowed(script.membership.group_lock.is_held), "no JoinGroup is sent until TxnOffsetCommit is answered"
    script.world.pass_time(1.0)
    assert task.done
    assert not script.membership.group_lock.is_held
    assert block.committed


def test_c04_a_rebalance_that_outlasts_the_deadline_of_the_end_aborts_it() -> None:
    script = Script()
    block = script.worked()
    script.world.run(script.membership.group_lock.acquire())
    begin = script.world.now
    script.end(block, timeout=2.0)
    assert script.world.now - begin < 4.5
    assert block.committed is False


# -------------------------------------------------------------------------------------------------------------- C5, C6


def test_c05_what_takes_partitions_away_waits_from_the_lock_to_the_answer_of_endtxn() -> None:
    script = Script()
    block = script.worked()
    script.plan("EndTxn", HANG)
    task = script.ending(block, timeout=20.0)
    script.world.pass_time(1.0)
    assert script.wire()[-1] == "EndTxn"
    lost = script.lose(IN[0])
    script.world.pass_time(1.0)
    assert not unnarrowed(lost.done)
    assert IN[0] in script.consumer.assignment.partitions
    script.world.pass_time(10.0)
    assert task.done
    assert lost.done
    assert block.committed, "EndTxn was repeated"
    assert IN[0] not in script.consumer.assignment.partitions


def test_c05_a_rejoin_waits_for_an_end_that_has_begun() -> None:
    script = Script()
    block = script.worked()
    script.plan("EndTxn", HANG)
    script.ending(block, timeout=20.0)
    script.session._polls = 1  # whoever polls then, it is not for this transaction
    rejoin = script.world.spawn(script.session.until_polled())
    script.world.pass_time(1.0)
    assert not unnarrowed(rejoin.done)
    script.world.pass_time(10.0)
    assert rejoin.done
    assert block.committed


@pytest.mark.parametrize("way", ["fenced", "unknown", "cancelled", "abort cancelled", "aborted", "deadline"])
def test_c05_it_is_released_on_every_way_out(way: str) -> None:
    script = Script()
    block = script.worked()
    plans: dict[str, list[Any]] = {
        "fenced": [90],
        "unknown": [HANG] * 9,
        "aborted": [120],
        "cancelled": [HANG],
        "abort cancelled": [HANG],
    }
    script.plan("EndTxn", *plans.get(way, []))
    if way == "fenced":
        script.world.coordinator.epoch += 2
    if way == "deadline":
        script.plan("TxnOffsetCommit", *[LOST] * 50)
    task = script.ending(block, is_commit=way != "abort cancelled", timeout=3.0)
    task.when_done(lambda _: None)
    if "cancelled" in way:
        script.world.pass_time(1.0)
        task.cancel()
    script.world.pass_time(20.0)
    assert task.done
    assert script.session.block is None
    assert not script.session.end_lock.is_held
    assert not script.membership.group_lock.is_held
    assert script.revoke().done
    if way == "fenced":
        assert isinstance(task.error, ProducerFencedError)
    elif way == "cancelled":
        assert isinstance(task.error, UnknownOutcomeError)
        assert script.manager.state is State.UNKNOWN_OUTCOME
    else:
        assert block.committed is not True


@pytest.mark.parametrize("event", ["reply", "revoke", "lose", "deadline", "cancel"])
def test_c06_the_wait_for_the_heartbeat_ends_with(event: str) -> None:
    script = Script()
    block = script.worked()
    script.plan("Heartbeat", 0 if event == "reply" else HANG)
    task = script.ending(block, timeout=3.0)
    task.when_done(lambda _: None)
    script.world.pass_time(0.5)
    begin = script.world.now
    if event == "lose":
        script.lose(IN[0])
    elif event == "revoke":  # by a member that did not wait for us
        script.world.spawn(script.session._take_away(frozenset(IN), "revoked"))
    elif event == "cancel":
        task.cancel()
    script.world.pass_time(20.0, until=lambda: task.done)
    assert task.done
    assert script.world.now - begin < {"deadline": 3.5}.get(event, 0.1)
    assert bool(block.committed) is (event == "reply")
    assert script.session.block is None


def test_c06_without_a_member_nothing_hangs() -> None:
    """A session that never joined its group has read nothing: no offsets, no heartbeat."""
    script = Script()
    script.consumer.membership = None
    script.consumer.assignment.remove(IN)
    block = script.begin()
    script.write()
    begin = script.world.now
    script.end(block)
    assert block.committed
    assert script.world.now - begin < 0.1
    assert script.membership.beats == 0


# -------------------------------------------------------------------------------------------------------------- C7, C8


@pytest.mark.parametrize("beat", list(Heartbeat))
@pytest.mark.parametrize("has_kip447", [True, False])
def test_c07_a_rebalance_that_has_begun_may_commit_with_kip447_only(has_kip447: bool, beat: Heartbeat) -> None:
    script = Script() if has_kip447 else old_script()
    block = script.worked()
    script.membership.beat = beat
    script.end(block)
    may = {Heartbeat.OK} | ({Heartbeat.REBALANCE_IN_PROGRESS, Heartbeat.REASSIGNED} if has_kip447 else set())
    assert block.committed is (beat in may)
    assert script.consumer.positions()[IN[0]] == (15 if block.committed else 10)


def test_c08_kip447_is_decided_by_the_versions_that_are_offered() -> None:
    assert Script().session.knows_generations
    assert not old_script().session.knows_generations
    for commit, fetch in ((5, 6), (2, 9)):
        script = Script()
        script.world.cluster.versions[1] = BrokerVersions({28: (0, commit), 9: (0, fetch), 12: (0, 4)})
        assert not script.session.knows_generations
    no_versions_known = Script()
    no_versions_known.world.cluster.versions.clear()
    assert not no_versions_known.session.knows_generations


@pytest.mark.parametrize("has_kip447", [True, False])
def test_c08_a_commit_without_offsets_takes_no_longer_than_its_requests(has_kip447: bool) -> None:
    script = Script() if has_kip447 else old_script()
    for _ in range(2):
        block = script.begin()
        script.write()
        begin = script.world.now
        script.end(block)
        assert block.committed
        assert script.world.now - begin == pytest.approx(0.002)  # EndTxn, and nothing else
    begin = script.world.now
    assert script.revoke().done
    assert script.world.now == begin
    assert script.membership.beats == 0
