# SPDX-License-Identifier: Apache-2.0
"""What a member of a KIP-848 group does with every error: go on, rejoin, tell, or stop with a text that helps."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_group_script import HEARTBEAT, GroupWorld, joined, make_member, named, orders
from transaction_script import HANG, LOST, REFUSED
from unnarrowed import unnarrowed

from kcodec.consumer.group.dispositions import CONSUMER, CONSUMER_JOIN, GroupDisposition, disposition
from kcodec.consumer.group.modern.membership import ConsumerMemberState
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.errors import AuthenticationError, AuthorizationError, BrokerError, DecodeError, UnsupportedError
from kcodec.flow import Flow, sleep
from kcodec.protocol.error_codes import ERRORS, ErrorCode

PASSES = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
ENDS = [
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.UNSUPPORTED_ASSIGNOR,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
]


def error_of(member: Any) -> BrokerError:
    assert isinstance(member.error, BrokerError)
    return member.error


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_one_that_the_group_dropped_loses_all_and_joins_again(code: int) -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    before = member.group_metadata
    application.delay = lambda: 1.0
    world.plan(HEARTBEAT, code)
    world.pass_time(6.0, until=lambda: application.is_busy)
    assert application.reported[-1] == ("lose", named(orders(0, 1)))
    assert member.state is ConsumerMemberState.RELEASING
    assert member.group_metadata == before  # commits with it are refused, not taken for a stranger's
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.LOST
    world.forget_member()
    world.pass_time(5.0)
    rejoin = next(one for one in world.heartbeats[1:] if one.member_epoch == 0)
    assert rejoin.member_id == member.member_id
    assert (rejoin.topic_partitions, rejoin.subscribed_topic_names) == ([], ["orders"])
    assert application.owned == named(orders(0, 1))
    assert member.error is None


def test_one_that_is_fenced_while_it_revokes_does_not_acknowledge() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    application.delay = lambda: 20.0
    world.set_target(orders(1))
    world.pass_time(6.0)
    assert application.is_busy
    world.forget_member()
    world.plan(HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID)
    sent = len(world.heartbeats)
    world.pass_time(80.0)
    assert [kind for kind, _ in application.reported[1:]] == ["revoke", "lose", "assign"]
    after = [one for one in world.heartbeats[sent:] if one.member_epoch == 0]
    assert len(after) == 1
    assert application.owned == named(orders(1))
    assert member.is_stable


@pytest.mark.parametrize("fault", [*PASSES, LOST, REFUSED, HANG, DecodeError("garbage")], ids=str)
def test_what_passes_is_repeated_in_full_and_nothing_is_given_up(fault: Any) -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    sent = len(world.heartbeats)
    world.plan(HEARTBEAT, fault, fault)
    world.pass_time(30.0)
    full = [one for one in world.heartbeats[sent:] if one.rebalance_timeout_ms != -1]
    assert full
    assert [one.partitions for one in full[-1].topic_partitions] == [[0]]
    assert application.reported == [("assign", named(orders(0)))]
    assert member.is_stable
    assert member.error is None


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_moved_is_looked_for(code: int) -> None:
    world = GroupWorld()
    joined(world, 0)
    asked = sum(one.api == "FindCoordinator" for one in world.asked)
    world.plan(HEARTBEAT, code)
    world.pass_time(6.0)
    assert sum(one.api == "FindCoordinator" for one in world.asked) == asked + 1


def test_repeats_leave_time_between_them() -> None:
    world = GroupWorld()
    joined(world, 0)
    sent = len(world.heartbeats)
    world.plan(HEARTBEAT, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1000)
    world.pass_time(30.0)
    assert 20 < len(world.heartbeats) - sent < 50


@pytest.mark.parametrize("code", ENDS)
def test_a_permanent_error_is_raised_until_the_next_subscribe(code: int) -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    world.plan(HEARTBEAT, code)
    world.pass_time(10.0)
    error = error_of(member)
    assert error.code == code
    assert error.resource == "readers"
    assert "ConsumerGroupHeartbeat of group 'readers'" in str(error)
    assert application.reported[-1] == ("lose", named(orders(0)))
    assert member.state is ConsumerMemberState.FATAL
    sent = len(world.asked)
    world.pass_time(100.0)
    assert len(world.asked) == sent
    assert world.run(member.force_heartbeat(1.0)) is Heartbeat.LOST
    world.forget_member()
    member.subscribe(["orders"])
    assert member.error is None
    world.pass_time(5.0)
    assert application.owned == named(orders(0))


def test_a_broker_without_the_protocol_names_the_other_one() -> None:
    for fault in (35, UnsupportedError("ConsumerGroupHeartbeat: the broker takes no version of it")):
        world = GroupWorld()
        member, _ = make_member(world)
        world.plan(HEARTBEAT, fault)
        member.subscribe(["orders"])
        world.pass_time(5.0)
        error = error_of(member)
        assert error.code == ErrorCode.UNSUPPORTED_VERSION
        assert 'group_protocol="classic"' in str(error)
        assert "Kafka 4.0" in str(error)


def test_a_pattern_that_the_broker_refuses_is_reported() -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    world.plan(HEARTBEAT, UnsupportedError("version 1 is not there"))
    member.subscribe([], "a.*")
    world.pass_time(5.0)
    assert "pattern" in str(error_of(member))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (111, "group.consumer.session.timeout.ms"),
        (112, "group.consumer.assignors"),
        (128, "RE2/J"),
        (81, "group.consumer.max.size"),
        (82, "an operator removed"),
        (69, "group.consumer.migration.policy"),
        (23, "group.consumer.migration.policy"),
    ],
)
def test_texts_say_what_to_do(code: int, remedy: str) -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    world.plan(HEARTBEAT, code)
    member.subscribe(["orders"])
    world.pass_time(5.0)
    error = error_of(member)
    assert remedy in str(error)
    assert "as planned" in str(error)
    assert error.name == ERRORS[code].name


def test_a_missing_permission_on_the_group_is_an_authorization_error() -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    world.plan("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    member.subscribe(["orders"])
    world.pass_time(5.0)
    assert isinstance(member.error, AuthorizationError)
    assert member.error.resource == "readers"
    assert world.heartbeats == []


def test_a_missing_permission_is_reported_until_it_is_granted() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    world.plan(HEARTBEAT, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 4)
    world.pass_time(6.0, until=lambda: member.error is not None)
    assert isinstance(unnarrowed(member.error), AuthorizationError)
    assert member.state is ConsumerMemberState.MEMBER
    world.pass_time(10.0)
    assert member.error is None
    assert application.owned == named(orders(0))


def test_a_refused_login_is_reported_and_not_repeated() -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    world.plan("FindCoordinator", AuthenticationError("wrong password"))
    member.subscribe(["orders"])
    world.pass_time(60.0)
    assert isinstance(member.error, AuthenticationError)
    assert world.asked == []


def test_a_member_begins_again_after_a_refused_login() -> None:
    """The program does not have to call subscribe again."""
    world = GroupWorld()
    member, application = make_member(world)
    world.set_target(orders(0))
    world.plan("FindCoordinator", AuthenticationError("wrong password"))
    member.subscribe(["orders"])
    world.pass_time(5.0)
    assert isinstance(unnarrowed(member.error), AuthenticationError)
    member.retry_login()
    world.pass_time(5.0)
    assert unnarrowed(member.error) is None and application.owned == named(orders(0))
    world.plan(HEARTBEAT, AuthenticationError("wrong password"))
    world.pass_time(10.0)
    assert isinstance(unnarrowed(member.error), AuthenticationError) and not application.owned
    member.retry_login()
    world.pass_time(5.0)
    assert unnarrowed(member.error) is None and application.owned == named(orders(0))


@pytest.mark.parametrize("epoch", [0, -1, -2, -(2**31)])
def test_an_answer_without_an_epoch_is_none(epoch: int) -> None:
    def garbled(answer: Any) -> Any:
        answer.member_epoch = epoch
        return answer

    world = GroupWorld()
    member, application = make_member(world)
    world.set_target(orders(0))
    world.plan(HEARTBEAT, garbled, garbled)
    member.subscribe(["orders"])
    world.pass_time(5.0)
    assert member.group_metadata.generation_id == world.epoch > 0
    assert application.owned == named(orders(0))


def test_few_codes_lose_partitions_and_all_have_a_disposition() -> None:
    found = {code: disposition(CONSUMER, code) for code in ERRORS if code}
    assert {code for code, what in found.items() if what is GroupDisposition.RESET_GENERATION} == {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
    repeated = {code for code, what in found.items() if what is GroupDisposition.RETRY}
    assert all(ERRORS[code].retriable for code in repeated - {ErrorCode.UNKNOWN_SERVER_ERROR})
    assert disposition(CONSUMER, 4711) is GroupDisposition.FATAL
    assert disposition(CONSUMER_JOIN, ErrorCode.GROUP_ID_NOT_FOUND) is GroupDisposition.FATAL


# The heartbeat that is asked for, and the gate


def test_a_forced_heartbeat_goes_out_at_once() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.pass_time(12.0)
    began, sent = world.now, len(world.heartbeats)
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.OK
    assert world.now - began < 0.01
    assert len(world.heartbeats) == sent + 1


def test_a_forced_heartbeat_is_one_sent_after_it_was_asked_for() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.pass_time(30.0, until=lambda: member.group_lock.is_held)
    sent = len(world.heartbeats)
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.OK
    assert len(world.heartbeats) == sent + 1


def test_a_forced_heartbeat_that_brings_another_target_says_so() -> None:
    for target in (orders(1), orders(0, 1), orders()):
        world = GroupWorld()
        member, _ = joined(world, 0)
        world.set_target(target)
        assert world.run(member.force_heartbeat(5.0)) is Heartbeat.REASSIGNED


def test_a_revocation_under_way_is_a_reassignment_and_new_partitions_under_way_are_none() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    application.delay = lambda: 60.0
    world.set_target(orders(0, 1, 2))
    world.pass_time(6.0)
    assert application.is_busy
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.OK
    world.pass_time(100.0)
    world.set_target(orders(1))
    world.pass_time(6.0)
    assert application.is_busy
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.REASSIGNED


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
)
def test_a_forced_heartbeat_that_is_refused_is_lost(code: int) -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, code)
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.LOST


def test_a_forced_heartbeat_without_response_ends_by_its_time() -> None:
    world = GroupWorld(request_timeout=30.0)
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, HANG)
    began = world.now
    assert world.run(member.force_heartbeat(2.0)) is Heartbeat.UNKNOWN
    assert world.now - began == pytest.approx(2.0)


def test_a_forced_heartbeat_gets_over_a_coordinator_that_moves() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, LOST)
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.OK


def test_a_forced_heartbeat_ends_when_the_member_leaves() -> None:
    world = GroupWorld(request_timeout=30.0)
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, HANG)
    task = world.spawn(member.force_heartbeat(20.0))
    world.pass_time(1.0)
    world.spawn(member.leave(0.5, "close"))
    world.pass_time(1.0)
    assert task.done
    assert task.result is Heartbeat.LOST


def test_no_heartbeat_overtakes_a_commit_under_the_gate() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.pass_time(12.0)
    seen: list[int] = []

    def commit() -> Flow[None]:
        assert (yield from member.group_lock.acquire(5.0))
        seen.append(len(world.heartbeats))
        task = world.scheduler.spawn(member.force_heartbeat(20.0), "heartbeat")
        task.when_done(lambda done: seen.append(len(world.heartbeats)))
        for _ in range(10):
            yield from sleep(0.2)
            seen.append(len(world.heartbeats))
        member.group_lock.release()

    world.run(commit())
    assert set(seen) == {seen[0]}
    world.pass_time(0.1)
    assert len(world.heartbeats) == seen[0] + 1


def test_a_gate_that_stays_held_does_not_cost_the_membership() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.run(member.group_lock.acquire(None))
    sent = len(world.heartbeats)
    world.pass_time(60.0)
    assert len(world.heartbeats) - sent > 4
    assert member.group_lock.is_held
