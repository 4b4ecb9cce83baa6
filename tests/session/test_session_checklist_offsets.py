# SPDX-License-Identifier: Apache-2.0
"""What a group transact session must do, point by point (C9 to C14: offsets, outcomes), against a scripted coordinator
in virtual time. The same points against real brokers: test_session_broker.py.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from session_script import IN, Script, SessionWorld
from transaction_script import CUT, HANG, LOST

from kcodec.cluster.values import Topic
from kcodec.errors import TransactionStateError, UnknownOutcomeError
from kcodec.flow import Flow
from kcodec.offsets import OffsetAndMetadata
from kcodec.protocol.error_codes import ErrorCode
from kcodec.session.safety import MARKER_WAIT_SECONDS, SessionTimes

AGED = SessionTimes(session=60.0, request=5.0)


def old_script() -> Script:
    """With a broker before 2.5."""
    return Script(SessionWorld(0, has_kip447=False), times=AGED)


# ------------------------------------------------------------------------------------------------------------- C9, C10


def test_c09_before_kip447_only_a_rebalance_waits_after_a_commit() -> None:
    script = old_script()
    block = script.worked()
    begin = script.world.now
    script.end(block)
    committed = script.world.now
    assert committed - begin < 0.02, "the caller is not delayed"
    asked = [one for one in script.world.asked if one.api == "TxnOffsetCommit"]
    assert asked[-1].version <= 2
    assert (asked[-1].request.generation_id_or_member_epoch, asked[-1].request.member_id) == (-1, "")
    revoked = script.revoke(IN[1])
    following = script.begin()
    assert script.world.now - committed < 0.01, "begin does not wait"
    script.write()
    script.world.pass_time(MARKER_WAIT_SECONDS - 0.1)
    assert not revoked.done
    assert not following.failed
    script.end(following)
    assert script.world.now - committed >= MARKER_WAIT_SECONDS, "the next end waits, too"
    script.world.pass_time(1.0)
    assert revoked.done


def test_c09_after_an_abort_nothing_waits() -> None:
    script = old_script()
    block = script.worked()
    script.end(block, is_commit=False)
    assert block.committed is False
    assert script.revoke().done


def test_c09_one_warning_says_that_it_is_a_matter_of_timing(caplog: pytest.LogCaptureFixture) -> None:
    script = old_script()
    for _ in range(3):
        script.end(script.worked())
        script.world.pass_time(1.0)
    assert sum("depends on timing" in record.message for record in caplog.records) == 1


# ------------------------------------------------------------------------------------------------------------ C11, C12


@pytest.mark.parametrize("why", ["asked", "error", "refused"])
def test_c11_an_abort_goes_back_to_where_the_transaction_began_and_drops_what_was_fetched(why: str) -> None:
    script = Script()
    block = script.worked()
    versions = {name: state.version for name, state in script.consumer.assignment.partitions.items()}
    if why == "refused":
        script.plan("TxnOffsetCommit", ErrorCode.ILLEGAL_GENERATION)
    error = RuntimeError("of the block") if why == "error" else None
    script.end(block, is_commit=why == "refused", error=error)
    assert script.consumer.positions() == dict.fromkeys(IN, 10)
    state = script.consumer.assignment.partitions[IN[0]]
    assert state.position_epoch == 3
    assert script.consumer.dropped == [IN[0]], "nothing was read of the other one"
    assert state.version != versions[IN[0]], "a late answer carries another version, and is dropped"


def test_c11_partitions_that_come_while_it_is_open_go_back_as_well() -> None:
    script = Script()
    script.consumer.assignment.remove([IN[1]])
    block = script.worked()
    script.rebalanced(IN[1])
    script.world.pass_time(0.01)
    assert script.read(IN[1], 7)
    script.end(block, is_commit=False)
    assert script.consumer.positions() == dict.fromkeys(IN, 10)


def test_c11_what_was_given_back_is_read_from_where_it_stands_now() -> None:
    """Somebody else had it meanwhile, and has committed."""
    script = Script()
    block = script.worked()
    script.lose(*IN)
    script.world.pass_time(0.1)
    script.world.committed[IN[0]] = 30
    script.rebalanced(*IN)
    assert block.moved(script.consumer.assignment.partitions) == {}
    script.end(block)
    assert script.consumer.positions()[IN[0]] == 30


@pytest.mark.parametrize(
    ("read", "before", "after", "expected"),
    [
        (0, 10, 20, 20),  # nothing was read, and the log begins above the start
        (0, 10, 4, 4),  # nothing was read, and the log ends below the start, or "earliest"
        (5, 15, 20, 20),  # the log begins above what was read
        (5, 15, 12, 10),  # the log ends in what was read
        (5, 15, 4, 4),
    ],
)
def test_c11_an_abort_goes_back_to_a_position_in_the_log(read: int, before: int, after: int, expected: int) -> None:
    """The start itself would be out of range, and auto_offset_reset="latest" would skip records."""
    script = Script()
    block = script.begin()
    if read:
        assert script.read(IN[0], read)
    state = script.consumer.assignment.partitions[IN[0]]
    state.position, state.position_epoch = after, -1
    script.consumer.assignment.on_reset(state, before, after)
    assert block.moved(script.consumer.assignment.partitions)[IN[0]].offset == after, "a commit has the new position"
    script.read(IN[0], 3)
    script.end(block, is_commit=False)
    assert script.consumer.positions()[IN[0]] == expected


def test_c11_a_second_reset_replaces_the_first() -> None:
    script = Script()
    block = script.begin()
    state = script.consumer.assignment.partitions[IN[0]]
    for before, after in ((10, 20), (20, 30)):
        state.position = after
        script.consumer.assignment.on_reset(state, before, after)
    script.read(IN[0], 3)
    script.end(block, is_commit=False)
    assert script.consumer.positions()[IN[0]] == 30


@pytest.mark.parametrize("committed", [10, 23])
def test_c13_an_unknown_outcome_after_a_reset_goes_on_in_the_log(committed: int) -> None:
    """If the transaction was aborted, the committed offset is still the one that is not in the log."""
    script = Script()
    block = script.begin()
    state = script.consumer.assignment.partitions[IN[0]]
    state.position = 20
    script.consumer.assignment.on_reset(state, 10, 20)
    script.read(IN[0], 3)
    script.write()
    script.plan("EndTxn", *[LOST] * 100)
    with pytest.raises(UnknownOutcomeError):
        script.end(block, timeout=2.0)
    script.world.plans.clear()
    script.world.committed[IN[0]] = committed
    script.begin()
    assert script.consumer.positions()[IN[0]] == (20 if committed == 10 else 23)


def test_c11_a_position_that_is_lost_while_it_is_open_aborts() -> None:
    """What was read there could not be committed, so it would be read again."""
    script = Script()
    block = script.worked()
    script.consumer.assignment.reset(IN[0], "earliest")
    script.end(block)
    assert block.committed is False
    assert script.consumer.positions()[IN[0]] == 10


def test_c12_after_a_commit_the_position_is_the_committed_offset() -> None:
    script = Script()
    for end in (15, 20, 25):
        script.end(script.worked())
        assert script.consumer.positions()[IN[0]] == script.world.committed[IN[0]] == end
    assert "OffsetFetch" not in script.wire()


def test_c12_a_rebalance_in_the_session_gives_nothing_twice() -> None:
    script = Script()
    script.end(script.worked())
    assert script.revoke(*IN).done
    script.rebalanced(*IN)
    assert script.consumer.positions()[IN[0]] == 15
    block = script.worked()
    script.end(block)
    assert script.world.committed[IN[0]] == 20


def test_c12_what_is_taken_away_and_given_back_while_it_is_open_is_not_committed() -> None:
    script = Script()
    block = script.worked()
    script.lose(*IN)
    script.world.pass_time(0.1)
    script.rebalanced(*IN)
    assert script.read(IN[0], 2)
    script.end(block)
    assert block.committed is False
    assert script.world.committed[IN[0]] == script.consumer.positions()[IN[0]] == 10


# ------------------------------------------------------------------------------------------------------------ C13, C14


@pytest.mark.parametrize("fault", [CUT, LOST])
@pytest.mark.parametrize("version", [0, 2])
def test_c13_an_unknown_outcome_is_said_and_a_new_epoch_comes_before_anything_else(version: int, fault: str) -> None:
    """CUT: the coordinator has carried it out, LOST: it has not. The committed offsets know."""
    script = Script(SessionWorld(version))
    block = script.worked()
    script.plan("EndTxn", *[fault] * 100)
    with pytest.raises(UnknownOutcomeError):
        script.end(block, timeout=2.0)
    assert block.committed is None
    with pytest.raises(TransactionStateError):
        block.check_open("poll")
    before = len(script.world.asked)
    script.world.plans.clear()
    following = script.begin()
    apis = [one.api for one in script.world.asked[before:] if one.api != "FindCoordinator"]
    assert apis == ["InitProducerId", "OffsetFetch"]
    assert script.consumer.positions()[IN[0]] == (15 if fault == CUT else 10)
    script.end(following)
    assert "EndTxn" not in [one.api for one in script.world.asked[before:]]


def test_c13_a_commit_that_is_given_up_while_it_is_under_way_is_unknown_too() -> None:
    script = Script()
    block = script.worked()
    script.plan("EndTxn", HANG)
    task = script.ending(block)
    task.when_done(lambda _: None)
    script.world.pass_time(1.0)
    task.cancel()
    assert block.committed is None
    assert script.session.is_rewind_due
    script.begin()
    assert script.consumer.positions()[IN[0]] == 15, "the copy that was given up had been carried out"


def test_c13_where_nothing_is_committed_it_goes_on_where_the_transaction_began() -> None:
    """With auto_offset_reset="latest" it must not begin at an end that lies behind what it had read."""
    script = Script()
    block = script.worked()
    script.plan("EndTxn", *[LOST] * 100)
    with pytest.raises(UnknownOutcomeError):
        script.end(block, timeout=2.0)
    script.world.plans.clear()
    found = script.consumer.fetch

    def nothing(partitions: object, timeout: float) -> Flow[Any]:
        yield from found([], timeout)
        return dict.fromkeys(IN)

    script.consumer.fetch = nothing  # type: ignore[method-assign]
    script.begin()
    assert script.consumer.positions()[IN[0]] == 10


@pytest.mark.parametrize("version", [0, 2])
def test_c14_an_unknown_server_error_is_never_a_commit(version: int) -> None:
    script = Script(SessionWorld(version))
    block = script.worked()
    script.plan("EndTxn", *[ErrorCode.UNKNOWN_SERVER_ERROR] * 100)
    with pytest.raises(UnknownOutcomeError):
        script.end(block, timeout=2.0)
    assert block.committed is None


def test_moved_positions_are_committed_also_where_nothing_was_delivered() -> None:
    """Markers and aborted records move a position: committed, the group's lag is 0."""
    script = Script()
    block = script.begin()
    state = script.consumer.assignment.partitions[IN[1]]
    state.position = 12
    assert block.moved(script.consumer.assignment.partitions) == {IN[1]: OffsetAndMetadata(12, "", 3)}
    script.end(block)
    assert script.world.committed[IN[1]] == 12


@pytest.mark.parametrize("begins_again", [False, True])
def test_no_offsets_are_committed_for_a_topic_that_is_replaced_during_the_commit(begins_again: bool) -> None:
    """The metadata contains the new topic while the commit waits for a rebalance."""
    script = Script()
    cluster, assignment = script.world.cluster, script.consumer.assignment
    cluster.topics["in"] = Topic("in", UUID(int=1))
    for state in assignment.partitions.values():
        state.topic_id = UUID(int=1)
    block = script.worked()
    script.world.run(script.membership.group_lock.acquire(1.0))
    ending = script.ending(block)
    script.world.pass_time(0.1)
    cluster.topics["in"] = Topic("in", UUID(int=2))
    if begins_again:
        for state in list(assignment.partitions.values()):
            assignment.begin_again(state, UUID(int=2))
    script.membership.group_lock.release()
    script.world.pass_time(1.0)
    assert ending.done and ending.error is None and block.committed
    assert "TxnOffsetCommit" not in script.wire() and script.world.committed == dict.fromkeys(IN, 10)
