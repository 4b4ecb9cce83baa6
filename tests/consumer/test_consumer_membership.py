# SPDX-License-Identifier: Apache-2.0
"""A member of a group of KIP-848 against a scripted coordinator: joins, epochs, reconciliation, leaving."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from consumer_group_script import (
    AUDIT_ID,
    HEARTBEAT,
    ORDERS_ID,
    GroupWorld,
    joined,
    make_member,
    named,
    orders,
)
from transaction_script import CUT, HANG
from unnarrowed import unnarrowed

from kcodec.consumer.group.modern.membership import ConsumerMemberState
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.offsets import ConsumerGroupMetadata
from kcodec.protocol.error_codes import ErrorCode


def test_the_first_heartbeat_says_all_and_the_next_ones_only_what_changed() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0, 1, group_remote_assignor="range", client_rack="r1")
    first, ack, *_ = world.heartbeats
    assert first.member_epoch == 0
    assert first.member_id == member.member_id
    assert len(first.member_id) == 22
    assert first.rebalance_timeout_ms == 300_000
    assert first.subscribed_topic_names == ["orders"]
    assert (first.server_assignor, first.rack_id, first.topic_partitions) == ("range", "r1", [])
    assert first.subscribed_topic_regex is None
    assert ack.member_epoch == world.epoch
    assert [one.partitions for one in ack.topic_partitions] == [[0, 1]]
    assert (ack.rebalance_timeout_ms, ack.subscribed_topic_names, ack.server_assignor) == (-1, None, None)
    world.pass_time(10.0)
    later = world.heartbeats[-1]
    assert (later.topic_partitions, later.subscribed_topic_names, later.rebalance_timeout_ms) == (None, None, -1)


def test_heartbeats_come_at_the_interval_of_the_broker_after_a_few_sooner_ones() -> None:
    world = GroupWorld()
    world.interval_ms = 4000
    joined(world, 0)
    world.pass_time(60.0)
    times = [one.time for one in world.asked if one.api == HEARTBEAT]
    pauses = [after - before for before, after in pairwise(times)]
    assert all(abs(pause - 4.0) < 0.01 for pause in pauses[-5:])
    early = [pause for pause in pauses[1:] if pause < 3.9]
    assert early == sorted(early)
    assert early[0] < 0.25
    assert early[-1] < 0.45
    assert 10 <= len(early) <= 15
    world.interval_ms = 1000
    world.pass_time(20.0)
    times = [one.time for one in world.asked if one.api == HEARTBEAT]
    assert abs(times[-1] - times[-2] - 1.0) < 0.01


def test_an_interval_of_nothing_is_not_believed() -> None:
    world = GroupWorld()
    world.interval_ms = -1
    joined(world, 0)
    before = len(world.heartbeats)
    world.pass_time(10.0)
    assert 10 < len(world.heartbeats) - before < 110


def test_what_goes_is_revoked_and_acknowledged_before_something_new_comes() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    world.set_target(orders(1, 2))
    world.pass_time(6.0)
    assert application.reported[1:] == [
        ("revoke", named(orders(0))),
        ("assign", frozenset()),
        ("assign", named(orders(2))),
    ]
    acknowledged = [one.topic_partitions[0].partitions for one in world.heartbeats if one.topic_partitions]
    assert acknowledged[-2:] == [[1], [1, 2]]
    assert member.is_stable
    assert member.group_metadata == ConsumerGroupMetadata("readers", world.epoch, member.member_id)


def test_what_was_given_up_is_acknowledged_before_the_next_step_is_over() -> None:
    world = GroupWorld()
    _, application = joined(world, 0, 1)
    application.delay = lambda: 1.0 if application.reported[-1][0] == "revoke" else 50.0
    world.set_target(orders(1))
    world.pass_time(10.0)
    assert application.reported[-1][0] == "assign"
    assert application.is_busy
    assert not world.pending


def test_partitions_that_stay_cause_no_callback() -> None:
    world = GroupWorld()
    _, application = joined(world, 0, 1, 2)
    for target in (orders(1, 2), orders(1, 2, 3), orders(2, 3)):
        world.set_target(target)
        world.pass_time(6.0)
    touched = frozenset().union(*(partitions for _, partitions in application.reported[1:]))
    assert touched == named(orders(0, 1, 3))


def test_heartbeats_go_on_while_the_application_takes_its_time() -> None:
    world = GroupWorld()
    _, application = joined(world, 0, 1)
    application.delay = lambda: 100.0
    world.set_target(orders(1))
    world.pass_time(90.0)
    times = [one.time for one in world.asked if one.api == HEARTBEAT]
    assert max(after - before for before, after in pairwise(times)) < 5.1
    assert application.owned == named(orders(0, 1))
    assert world.pending == orders(0)  # nothing was acknowledged that is still read
    world.pass_time(120.0)
    assert application.owned == named(orders(1))
    assert not world.pending


def test_a_newer_target_is_taken_up_when_the_step_before_it_is_over() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    application.delay = lambda: 8.0
    world.set_target(orders(0, 1))
    world.pass_time(6.0)
    assert application.is_busy
    world.set_target(orders(0, 2))
    world.pass_time(60.0)
    assert application.owned == named(orders(0, 2))
    assert member.is_stable


def test_a_higher_epoch_without_a_change_is_in_the_metadata_at_once() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    reported = len(application.reported)
    world.group_epoch = 77
    before = member.group_metadata.generation_id
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.OK
    assert member.group_metadata.generation_id == 77 > before
    assert len(application.reported) == reported


def test_unknown_topics_are_requested_by_id_until_they_exist() -> None:
    world = GroupWorld()
    del world.topics[AUDIT_ID]
    member, application = make_member(world)
    world.set_target(frozenset({(ORDERS_ID, 0), (AUDIT_ID, 0)}))
    member.subscribe([], "orders|audit")
    world.pass_time(10.0)
    assert application.owned == named(orders(0))  # what is known is read already
    assert not unnarrowed(member.is_stable)
    assert 3 < sum(one.api == "Metadata" for one in world.asked) < 60
    world.topics[AUDIT_ID] = "audit"
    world.pass_time(5.0)
    assert application.owned == named(world.target)
    assert member.is_stable
    assert world.cluster.leader("audit", 0) == 1


def test_a_topic_that_was_made_again_is_given_up_and_taken_again() -> None:
    world = GroupWorld()
    _, application = joined(world, 0)
    world.topics[AUDIT_ID] = "orders"
    world.set_target(frozenset({(AUDIT_ID, 0)}))
    world.pass_time(6.0)
    kinds = [kind for kind, partitions in application.reported if partitions]
    assert kinds == ["assign", "revoke", "assign"]
    assert application.owned == named(orders(0))


def test_a_pattern_is_sent_to_the_broker_and_taken_back() -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    member.subscribe([], "ord.*")
    world.pass_time(1.0)
    assert (world.heartbeats[0].subscribed_topic_names, world.heartbeats[0].subscribed_topic_regex) == ([], "ord.*")
    member.subscribe(["audit"])
    world.pass_time(0.1)
    assert (world.heartbeats[-1].subscribed_topic_names, world.heartbeats[-1].subscribed_topic_regex) == (["audit"], "")
    world.pass_time(20.0)
    assert world.heartbeats[-1].subscribed_topic_regex is None


def test_a_join_whose_answer_is_lost_is_repeated_as_the_same_member() -> None:
    world = GroupWorld()
    world.plan(HEARTBEAT, CUT, CUT)
    member, application = joined(world, 0)
    assert [one.member_epoch for one in world.heartbeats[:3]] == [0, 0, 0]
    assert len({one.member_id for one in world.heartbeats}) == 1
    assert application.reported == [("assign", named(orders(0)))]
    assert member.state is ConsumerMemberState.MEMBER


def test_after_a_lost_answer_all_is_said_and_the_epoch_that_came_meanwhile_taken() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    world.set_target(orders(0, 1))
    world.plan(HEARTBEAT, CUT)
    world.pass_time(6.0)
    full = next(one for one in world.heartbeats[2:] if one.rebalance_timeout_ms != -1)
    assert full.subscribed_topic_names == ["orders"]
    assert full.topic_partitions is not None
    assert application.owned == named(orders(0, 1))
    assert not [kind for kind, _ in application.reported if kind == "lose"]
    assert member.group_metadata.generation_id == world.epoch


def test_nothing_subscribed_any_more_is_revoked_and_then_left() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    application.delay = lambda: 3.0
    member.subscribe([])
    world.pass_time(2.0)
    assert world.member_id == member.member_id
    world.pass_time(5.0)
    assert application.reported[-1] == ("revoke", named(orders(0, 1)))
    assert world.heartbeats[-1].member_epoch == -1
    assert world.heartbeats[-1].subscribed_topic_names is None
    assert member.state is ConsumerMemberState.IDLE
    before = len(world.asked)
    world.pass_time(60.0)
    assert len(world.asked) == before
    world.set_target(orders(1))
    member.subscribe(["orders"])
    world.pass_time(20.0)
    assert application.owned == named(orders(1))


def test_a_subscription_that_comes_while_leaving_is_joined_afterwards() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    application.delay = lambda: 1.0
    member.subscribe([])
    world.pass_time(0.5)
    member.subscribe(["audit"])
    world.set_target(frozenset({(AUDIT_ID, 0)}))
    world.pass_time(10.0)
    assert [one.member_epoch for one in world.heartbeats if one.member_epoch <= 0] == [0, -1, 0]
    assert world.heartbeats[-1].member_id == member.member_id
    assert application.owned == named(world.target)


def test_leaving_sends_a_leave_heartbeat_and_ends() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.run(member.leave(5.0, "close"))
    assert world.heartbeats[-1].member_epoch == -1
    assert world.member_id == ""
    world.pass_time(20.0)
    assert world.heartbeats[-1].member_epoch == -1
    assert world.scheduler.tasks == []


def test_a_static_member_that_leaves_says_that_it_comes_again() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0, group_instance_id="one")
    assert {one.instance_id for one in world.heartbeats} == {"one"}
    world.run(member.leave(5.0, "close"))
    assert world.heartbeats[-1].member_epoch == -2
    assert member.group_metadata.group_instance_id == "one"


def test_a_leave_heartbeat_without_response_ends_by_its_time() -> None:
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, *[HANG] * 5)
    began = world.now
    world.run(member.leave(2.0, "close"))
    assert world.now - began < 2.1


def test_a_refused_leave_heartbeat_is_logged_by_the_name_of_its_code(caplog: pytest.LogCaptureFixture) -> None:
    """The logger is that of consumers, as for the classic protocol (docs/logging.md)."""
    world = GroupWorld()
    member, _ = joined(world, 0)
    world.plan(HEARTBEAT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    with caplog.at_level(logging.INFO, "kcodec.consumer"):
        world.run(member.leave(5.0, "close"))
    texts = [one.getMessage() for one in caplog.records if one.name == "kcodec.consumer"]
    assert "group 'readers': the leave heartbeat failed with COORDINATOR_LOAD_IN_PROGRESS" in texts


def test_one_that_never_joined_leaves_without_a_word() -> None:
    world = GroupWorld()
    member, _ = make_member(world)
    assert world.run(member.force_heartbeat(5.0)) is Heartbeat.UNKNOWN
    assert member.group_metadata == ConsumerGroupMetadata("readers")
    world.run(member.leave(5.0, "close"))
    assert world.asked == []


def test_an_application_that_does_not_poll_is_out_until_it_does() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, max_poll_interval=30.0)
    world.pass_time(29.0)
    assert member.state is ConsumerMemberState.MEMBER
    world.pass_time(6.0)
    assert world.heartbeats[-1].member_epoch == -1
    assert application.reported[-1] == ("lose", named(orders(0)))
    assert application.owned == frozenset()
    world.pass_time(100.0)
    assert world.heartbeats[-1].member_epoch == -1
    member.note_poll(world.now)
    application.polled.set()
    world.pass_time(5.0)
    assert application.owned == named(orders(0))


def test_polls_keep_it_in_the_group() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, max_poll_interval=30.0)
    for _ in range(10):
        world.pass_time(20.0)
        member.note_poll(world.now)
    assert member.is_stable
    assert [kind for kind, _ in application.reported] == ["assign"]


def test_a_step_that_raises_is_reported_and_counts_as_done() -> None:
    world = GroupWorld()
    member, application = joined(world, 0, 1)
    application.failure = RuntimeError("callback")
    world.set_target(orders(1))
    world.pass_time(6.0)
    assert isinstance(member.error, RuntimeError)
    assert not world.pending
    assert member.is_stable


def test_a_rejoin_by_request_changes_nothing() -> None:
    world = GroupWorld()
    member, application = joined(world, 0)
    member.request_rejoin("enforce_rebalance")
    world.pass_time(20.0)
    assert member.is_stable
    assert len(application.reported) == 1


def test_member_ids_differ_and_look_like_kafkas() -> None:
    ids = {make_member(GroupWorld(), seed=seed)[0].member_id for seed in range(300)}
    assert len(ids) == 300
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)
