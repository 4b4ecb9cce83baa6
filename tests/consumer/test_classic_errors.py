# SPDX-License-Identifier: Apache-2.0
"""Each error code of JoinGroup, SyncGroup and Heartbeat, at the first join and while partitions are owned; answers that
do not come, that cannot be read, or that are not for us. Whatever happens, the gate is free afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_group import Fault, GroupClient, GroupWorld

from kcodec.errors import AuthorizationError, BrokerError, DecodeError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

ALL = [TopicPartition("t", number) for number in range(4)]
#: Code -> (is the old member id kept, are partitions lost): what passes.
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (True, False),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (True, False),
    ErrorCode.NOT_COORDINATOR: (True, False),
    ErrorCode.ILLEGAL_GENERATION: (True, True),
    ErrorCode.UNKNOWN_MEMBER_ID: (False, True),
}
PASSING |= {ErrorCode(code): (True, False) for code in (27, 7, 84)}
FATAL = [
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    999,
]
STICKY = ("cooperative-sticky",)


def once(kind: type, **fault: Any) -> Callable[[str, Any], Fault]:
    """The next request of a kind meets this."""
    left = [Fault(**fault)]
    return lambda client, request: left.pop() if left and type(request) is kind else Fault()


def member(world: GroupWorld, *, has_joined: bool, **settings: Any) -> GroupClient:
    settings.setdefault("partition_assignment_strategy", STICKY)
    one = world.client("a", **settings)
    if has_joined:
        world.run_until_stable()
    return one


def fail_next(world: GroupWorld, one: GroupClient, kind: type, has_joined: bool, **fault: Any) -> None:
    world.faults = once(kind, **fault)
    if has_joined and kind is not HeartbeatRequest:
        one.membership.request_rejoin("a test")


@pytest.mark.parametrize("has_joined", [False, True], ids=["first", "owning"])
@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest])
@pytest.mark.parametrize("code", PASSING)
def test_what_passes_is_joined_through(kind: type, code: ErrorCode, has_joined: bool) -> None:
    world = GroupWorld()
    one = member(world, has_joined=has_joined)
    old, found = one.membership.member.generation.member_id, one.finds
    fail_next(world, one, kind, has_joined, code=code)
    world.run(0.5)
    world.run_until_stable()
    assert not one.membership.group_lock.is_held
    keeps_id, is_lost = PASSING[code]
    assert one.reported("lose") == ([ALL] if is_lost and has_joined else [])
    if has_joined:
        assert (one.membership.member.generation.member_id == old) == keeps_id
        assert one.reported("revoke") == []
    assert (one.finds > max(found, 1)) == (code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR))


def test_a_coordinator_that_gives_out_ids_without_end_is_not_asked_without_a_pause() -> None:
    world = GroupWorld()
    world.faults = lambda client, request: Fault(code=ErrorCode.MEMBER_ID_REQUIRED)
    one = member(world, has_joined=False)
    world.run(5)
    assert len(world.sent(JoinGroupRequest)) <= 2 * (1 + 5 / 0.05)  # two between pauses
    world.faults = lambda client, request: Fault()
    world.run_until_stable()
    assert one.has == set(ALL)


@pytest.mark.parametrize("has_joined", [False, True], ids=["first", "owning"])
@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest])
@pytest.mark.parametrize("code", FATAL)
def test_what_does_not_pass_is_an_error_of_poll(kind: type, code: int, has_joined: bool) -> None:
    world = GroupWorld()
    one = member(world, has_joined=has_joined)
    fail_next(world, one, kind, has_joined, code=code)
    world.run(1)
    error = one.membership.error
    assert isinstance(error, BrokerError)
    assert error.code == code
    assert "'g'" in str(error)
    assert isinstance(error, AuthorizationError) == (code == ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert not one.membership.group_lock.is_held
    assert one.reported("lose") == ([ALL] if has_joined else [])
    sent = len(world.requests)
    world.run(30)
    assert len(world.requests) == sent
    one.membership.subscribe(["t"])
    world.run_until_stable()
    assert one.membership.error is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
    ],
)
def test_heartbeats_go_on_after_an_error_that_says_nothing_of_us(code: int) -> None:
    world = GroupWorld()
    one = member(world, has_joined=True)
    found = one.finds
    fail_next(world, one, HeartbeatRequest, True, code=code)
    world.run(3)
    assert len(world.sent(HeartbeatRequest)) >= 3
    assert one.events == [("assign", ALL)]
    assert (one.finds > found) == (code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR))


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_heartbeat_that_says_we_are_out_loses_partitions_at_once_and_joins_again(code: int) -> None:
    world = GroupWorld()
    one = member(world, has_joined=True)
    one.is_polling = False
    old = one.membership.member.generation.member_id
    fail_next(world, one, HeartbeatRequest, True, code=code)
    world.run(1.5)
    assert one.reported("lose") == [ALL]
    world.run_until_stable()
    assert (one.membership.member.generation.member_id == old) == (code == ErrorCode.ILLEGAL_GENERATION)


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.FENCED_INSTANCE_ID])
def test_a_heartbeat_that_ends_it_all(code: int) -> None:
    world = GroupWorld()
    one = member(world, has_joined=True)
    fail_next(world, one, HeartbeatRequest, True, code=code)
    world.run(1.5)
    assert isinstance(one.membership.error, BrokerError)
    assert one.membership.error.code == code
    assert one.reported("lose") == [ALL]


@pytest.mark.parametrize("has_joined", [False, True], ids=["first", "owning"])
@pytest.mark.parametrize("way", ["is_lost", "is_answer_lost", "cuts"])
@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest])
def test_answers_that_do_not_come(kind: type, way: str, has_joined: bool) -> None:
    world = GroupWorld()
    one = member(world, has_joined=has_joined, max_poll_interval=4.0, session_timeout=30.0)
    fail_next(world, one, kind, has_joined, **{way: True})
    world.run(0.3)
    world.run_until_stable()
    assert not one.membership.group_lock.is_held
    assert one.membership.error is None


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]
)
def test_a_coordinator_that_is_not_there_yet_is_waited_for(code: int) -> None:
    world = GroupWorld()
    world.find_codes = [code, code]
    member(world, has_joined=True)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_group_without_permission_is_an_error_of_poll(code: int) -> None:
    world = GroupWorld()
    world.find_codes = [code]
    one = member(world, has_joined=False)
    world.run(1)
    assert isinstance(one.membership.error, BrokerError)
    assert one.membership.error.code == code


def test_a_coordinator_that_is_lost_for_a_session_costs_the_partitions() -> None:
    """The join that was under way is what fails; nobody sends heartbeats meanwhile."""
    world = GroupWorld()
    one = member(world, has_joined=True, session_timeout=6.0, max_poll_interval=1.0)
    world.faults = lambda client, request: Fault(cuts=True, is_answer_lost=True)
    one.membership.request_rejoin("a test")
    world.run(3)
    assert one.events == [("assign", ALL)]
    world.run(6)
    assert one.reported("lose") == [ALL]
    world.faults = lambda client, request: Fault()
    world.run_until_stable()


@pytest.mark.parametrize(("field", "value"), [("protocol_type", "connect"), ("protocol_name", "unheard of")])
@pytest.mark.parametrize("what", ["joined", "synced"])
def test_an_answer_of_another_protocol_is_not_taken(what: str, field: str, value: str) -> None:
    world = GroupWorld()
    one = member(world, has_joined=False)
    world.rewrite[JoinGroupRequest if what == "joined" else SyncGroupRequest] = {field: value}
    world.run(1)
    assert isinstance(one.membership.error, BrokerError)
    assert one.membership.error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert value in str(one.membership.error)
    assert not one.membership.group_lock.is_held


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00", b"\x00\x01\x00\x00\x00\x07ab"])
def test_an_assignment_that_cannot_be_read_is_an_error_of_poll(data: bytes) -> None:
    world = GroupWorld()
    one = member(world, has_joined=False)
    world.rewrite[SyncGroupRequest] = {"assignment": data}
    world.run(1)
    assert isinstance(one.membership.error, DecodeError)
    assert not one.membership.group_lock.is_held


def test_a_member_that_talks_nonsense_is_named_by_the_leader() -> None:
    world = GroupWorld()
    one = member(world, has_joined=False)
    world.spoil_metadata = b"\x00\x00\xff"
    world.run(1)
    assert isinstance(one.membership.error, DecodeError)
    assert "member-1" in str(one.membership.error)


def test_an_assignment_of_what_we_do_not_want_is_not_taken() -> None:
    """As after a change of the subscription that the leader did not know: we join again."""
    from kcodec.consumer.group.classic.consumer_protocol import write_assignment

    world = GroupWorld()
    one = member(world, has_joined=False)
    world.rewrite[SyncGroupRequest] = {"assignment": write_assignment([TopicPartition("other", 0)])}
    world.run_until(lambda: len(world.sent(SyncGroupRequest)) == 1)
    world.run(0.1)
    world.rewrite.clear()
    world.run_until_stable()
    assert TopicPartition("other", 0) not in one.has


def test_an_answer_that_comes_when_we_are_out_already_changes_nothing() -> None:
    """SyncGroup is under way when a heartbeat says that this generation is over: both orders of the two answers."""
    for delay in (0.5, 3.0):
        world = GroupWorld()
        one = member(world, has_joined=False)
        left = [True]

        def faults(client: str, request: Any, delay: float = delay, left: list[bool] = left) -> Fault:
            if type(request) is SyncGroupRequest and left:
                return Fault(delay=delay)
            if type(request) is HeartbeatRequest and left:
                left.clear()
                return Fault(code=ErrorCode.UNKNOWN_MEMBER_ID)
            return Fault()

        world.faults = faults
        world.run(5)
        world.run_until_stable()
        assert one.has == set(ALL)
        assert not one.membership.group_lock.is_held


def test_a_refused_session_timeout_names_the_broker_settings() -> None:
    world = GroupWorld()
    world.faults = once(JoinGroupRequest, code=ErrorCode.INVALID_SESSION_TIMEOUT)
    one = member(world, has_joined=False, session_timeout=0.1, heartbeat_interval=0.03)
    world.run(1)
    assert str(one.membership.error) == (
        "JoinGroup of group 'g': session_timeout_ms=100 is outside the range that the broker allows: its settings "
        "group.min.session.timeout.ms and group.max.session.timeout.ms [INVALID_SESSION_TIMEOUT, 26; remedy: stop]"
    )
