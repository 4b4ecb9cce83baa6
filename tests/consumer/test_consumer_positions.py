# SPDX-License-Identifier: Apache-2.0
"""Where a consumer begins and goes on: committed offsets, resets, seeks; late answers; against scripted brokers in
virtual time."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from position_script import WALL, Log, PositionScript

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.cluster.values import Partition
from kcodec.constants import IsolationLevel
from kcodec.consumer.topic_ids import CONFIRMATION_SECONDS
from kcodec.errors import (
    AuthorizationError,
    BrokerError,
    EncodeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kcodec.protocol.error_codes import ErrorCode

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("other", 0)


# ------------------------------------------------------------------------------------------ where to


def test_a_committed_offset_is_where_reading_goes_on_and_others_follow_the_policy() -> None:
    world = PositionScript(auto_offset_reset="earliest")
    world.log(A, start=3), world.log(B, start=4)
    world.offsets[A] = OffsetAndMetadata(7)
    world.assign(A, B)
    world.run_until_idle()
    assert (world.at(A), world.at(B)) == (7, 4)
    assert [api for api, _ in world.asked] == ["OffsetFetch", "ListOffsets"]


def test_an_offset_committed_at_zero_is_not_nothing() -> None:
    world = PositionScript(auto_offset_reset="latest")
    world.log(A, end=10)
    world.offsets[A] = OffsetAndMetadata(0)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 0


@pytest.mark.parametrize(
    ("level", "offset"), [(IsolationLevel.READ_COMMITTED, 8), (IsolationLevel.READ_UNCOMMITTED, 10)]
)
def test_latest_is_the_last_stable_offset_for_readers_of_committed_records(level: IsolationLevel, offset: int) -> None:
    world = PositionScript(group=None, isolation_level=level)
    world.log(A, end=10, stable=8)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == offset


def test_by_duration_begins_so_long_ago_and_at_the_end_where_nothing_is_so_late() -> None:
    world = PositionScript(group=None, auto_offset_reset="by_duration", auto_offset_reset_duration=3600.0)
    world.log(A, times={WALL - 7_200_000: 2, WALL - 3_500_000: 5, WALL: 9})
    world.log(B, end=12, times={WALL - 7_200_000: 2})
    world.assign(A, B)
    world.run_until_idle()
    assert (world.at(A), world.at(B)) == (5, 12)


def test_none_without_a_committed_offset_is_an_error_until_a_seek() -> None:
    world = PositionScript(auto_offset_reset="none")
    world.log(A, start=3), world.log(B)
    world.offsets[B] = OffsetAndMetadata(2)
    world.assign(A, B)
    world.run_until_idle()
    error = world.state(A).error
    assert isinstance(error, NoOffsetForPartitionError) and (error.partition, error.group_id) == (A, "g")
    assert "group 'g' has no committed offset" in str(error) and "seek" in str(error)
    assert world.at(B) == 2
    world.assignment.reset(A, "earliest")
    world.run_until_idle()
    assert world.at(A) == 3 and world.state(A).error is None


def test_seeks_to_the_ends_and_to_a_time() -> None:
    world = PositionScript(group=None)
    world.log(A, start=3, end=10, times={500: 6})
    world.assign(A)
    for to, offset in (("earliest", 3), ("latest", 10), (400, 6), (600, 10)):
        world.assignment.reset(A, to)
        world.run_until_idle()
        assert world.at(A) == offset


def test_out_of_range_follows_the_policy() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3)
    world.assign(A)
    world.assignment.seek(A, 99)
    world.out_of_range(A)
    world.run_until_idle()
    assert world.at(A) == 3


def test_out_of_range_under_none_names_position_start_and_end() -> None:
    world = PositionScript(auto_offset_reset="none")
    world.log(A, start=3, end=10)
    world.assign(A)
    world.assignment.seek(A, 99)
    world.out_of_range(A)
    world.run_until_idle()
    error = world.state(A).error
    assert isinstance(error, OffsetOutOfRangeError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (error.partition, error.position, error.log_start_offset, error.log_end_offset) == (A, 99, 3, 10)
    assert "the position 99 is not in the log, which has offsets 3 to 10" in str(error)


# ------------------------------------------------------------------------------------------ late answers (C11)


def test_c11_a_late_reset_does_not_undo_a_seek() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3)
    world.latency = 5.0
    world.assign(A)
    world.pass_time(7.0)  # the question is under way
    world.assignment.seek(A, 8)
    world.pass_time(30.0)
    assert world.at(A) == 8


def test_c11_a_late_committed_offset_does_not_undo_a_seek() -> None:
    world = PositionScript()
    world.log(A)
    world.offsets[A] = OffsetAndMetadata(2)
    world.latency = 5.0
    world.assign(A)
    world.pass_time(12.0)
    assert ("OffsetFetch", 3) in world.asked
    world.assignment.seek(A, 8)
    world.pass_time(30.0)
    assert world.at(A) == 8


def test_c11_the_later_of_two_seeks_counts_though_its_answer_comes_first() -> None:
    world = PositionScript(group=None)
    world.log(A, start=3, end=10)
    world.assign(A)
    world.run_until_idle()
    world.latency = 5.0
    world.assignment.reset(A, "earliest")
    world.pass_time(1.0)
    world.latency = 0.1
    world.assignment.reset(A, "latest")
    world.pass_time(1.0)
    assert world.at(A) == 10
    world.pass_time(30.0)
    assert world.at(A) == 10


def test_c11_an_answer_for_an_assignment_that_was_taken_and_given_back_is_dropped() -> None:
    world = PositionScript()
    world.log(A)
    world.offsets[A] = OffsetAndMetadata(2)
    world.latency = 5.0
    world.assign(A)
    world.pass_time(12.0)
    world.assignment.remove([A])
    world.offsets[A] = OffsetAndMetadata(6)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 6


# ------------------------------------------------------------------------------------------ brokers that fail


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
def test_what_passes_is_asked_again_without_end(code: int) -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3, epoch=1)
    world.code_of = lambda api, node, partition: code if world.now < 200.0 else 0
    world.assign(A)
    world.run_until_idle(300.0)
    assert world.at(A) == 3 and 200.0 <= world.now < 206.0


def test_a_leader_that_does_not_answer_holds_only_its_own_partitions_back() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, leader=1, start=3), world.log(B, leader=2, start=4)
    world.code_of = lambda api, node, partition: None if node == 1 else 0
    world.assign(A, B)
    world.pass_time(2.0)
    assert world.state(A).position is None and world.at(B) == 4
    world.move(A, 2, -1)
    world.run_until_idle(120.0)
    assert world.at(A) == 3


def test_one_partition_without_a_leader_does_not_hold_others_of_the_broker_back() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3), world.log(B, start=4)
    world.code_of = lambda api, node, partition: (
        ErrorCode.OFFSET_NOT_AVAILABLE if partition == B and world.now < 50.0 else 0
    )
    world.assign(A, B)
    world.pass_time(2.0)
    assert world.at(A) == 3 and world.state(B).position is None
    world.run_until_idle()
    assert world.at(B) == 4


def test_a_missing_permission_is_the_error_of_its_partition_only() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3), world.log(C, start=5)
    world.code_of = lambda api, node, partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED if partition == C else 0
    world.assign(A, C)
    world.run_until_idle()
    assert world.at(A) == 3
    assert isinstance(world.state(C).error, AuthorizationError)
    world.code_of = lambda api, node, partition: 0
    world.pass_time(5.0)
    assert world.at(C) == 5 and world.state(C).error is None, "the permission was given"


@pytest.mark.parametrize("group", ["g", None])
def test_a_request_that_cannot_be_encoded_is_an_error_of_its_partitions(group: str | None) -> None:
    """It was repeated without a pause, so that the I/O thread did nothing else."""
    impossible = TopicPartition("orders", 2**31)
    world = PositionScript(group=group, auto_offset_reset="earliest")
    world.log(A, start=3)
    world.cluster.add_topics(["orders"])
    world.pass_time(1.0)
    world.cluster.topics["orders"].partitions[2**31] = Partition(2, -1)
    began = len(world.versions)
    world.assign(impossible)
    world.pass_time(10.0)
    error = world.state(impossible).error
    assert isinstance(error, EncodeError) and "2147483648" in str(error)
    assert len(world.versions) - began < 10 and not world.task.done
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 3


def test_a_defect_in_a_request_ends_the_flow_once() -> None:
    """The flow of the consumer that runs it then reports the error. The request was repeated without a pause."""
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, start=3)

    def fail(node: int, request: Any) -> Any:
        raise LookupError("a defect")

    world.answers["ListOffsets"] = fail
    world.task.when_done(lambda _: None)
    world.assign(A)
    world.pass_time(10.0)
    assert isinstance(world.task.error, LookupError) and world.asked.count(("ListOffsets", 1)) == 1


def test_a_topic_that_is_not_there_does_not_hold_others_back() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.assign(*(TopicPartition("none", number) for number in range(20)), A)

    def give_a_log() -> None:
        world.log(A, start=3)

    world.scheduler.call_at(2.0, give_a_log)
    world.pass_time(4.0)
    assert world.at(A) == 3


def test_a_missing_permission_on_the_group_is_an_error_and_a_rebalance_is_not() -> None:
    world = PositionScript(auto_offset_reset="earliest")
    world.log(A)
    world.offsets[A] = OffsetAndMetadata(2)
    world.code_of = lambda api, node, partition: (
        ErrorCode.UNKNOWN_MEMBER_ID if api == "OffsetFetch" and world.now < 20.0 else 0
    )
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 2 and 20.0 <= world.now < 23.0
    world.code_of = lambda api, node, partition: ErrorCode.GROUP_AUTHORIZATION_FAILED if api == "OffsetFetch" else 0
    world.assignment.remove([A])
    world.assign(A)
    world.run_until_idle()
    error = world.state(A).error
    assert isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_c10_an_unstable_offset_is_waited_for_as_long_as_it_takes() -> None:
    world = PositionScript(auto_offset_reset="earliest")
    world.log(A), world.log(B)
    world.offsets = {A: OffsetAndMetadata(2), B: OffsetAndMetadata(5)}
    world.code_of = lambda api, node, partition: (
        ErrorCode.UNSTABLE_OFFSET_COMMIT if partition == A and world.now < 150.0 else 0
    )
    world.assign(A, B)
    world.pass_time(2.0)
    assert world.at(B) == 5 and world.state(A).position is None and world.state(A).error is None
    world.run_until_idle(200.0)
    assert world.at(A) == 2 and 150.0 <= world.now < 153.0


def test_seeks_against_a_broker_that_does_not_answer_do_not_pile_up() -> None:
    world = PositionScript(group=None)
    world.log(A)
    world.code_of = lambda api, node, partition: None
    world.assign(A)
    for _ in range(50):
        world.assignment.reset(A, "earliest")
        world.pass_time(0.1)
    assert len(world.asked) <= 8, "four under way before and four after the leader is known"
    world.code_of = lambda api, node, partition: 0
    world.run_until_idle()
    assert world.at(A) == 0


def test_it_ends_when_it_is_cancelled() -> None:
    world = PositionScript(group=None)
    world.log(A)
    world.assign(A)
    world.pass_time(1.0)
    world.task.when_done(lambda _: None)
    world.task.cancel()
    asked = len(world.asked)
    world.assignment.reset(A, "earliest")
    world.pass_time(5.0)
    assert world.task.done and len(world.asked) == asked


def test_by_duration_needs_the_time_of_day() -> None:
    world = PositionScript()
    with pytest.raises(ValueError, match="by_duration"):
        type(world.positions)(
            world.cluster,
            world.assignment,
            None,
            PositionScript(auto_offset_reset="by_duration").positions.settings,
        )


# ------------------------------------------------------------------------------------------ at random


@pytest.mark.parametrize("seed", range(60))
def test_whatever_interleaves_the_last_word_counts(seed: int) -> None:
    """Seeks, resets, assignments, moves of leaders, errors and slow answers in any order: when all is quiet, each
    partition stands where the last thing that was said of it leads, or at a policy's offset."""
    random = Random(seed)
    world = PositionScript(auto_offset_reset=random.choice(["earliest", "latest"]))
    policy = world.positions.settings.auto_offset_reset
    places = [A, B, C]
    expected: dict[TopicPartition, int] = {}
    for number, place in enumerate(places):
        world.log(place, leader=random.randint(1, 3), epoch=0, start=number, end=100 + number, epochs={0: 100 + number})
    ends: dict[str, Any] = {"earliest": lambda at: world.logs[at].start, "latest": lambda at: world.logs[at].end}
    world.code_of = lambda api, node, partition: (
        random.choice([6, 78, 7, None]) if world.now < 60.0 and random.random() < 0.3 else 0
    )
    for _ in range(60):
        world.latency = random.choice([0.01, 0.5, 4.0])
        at, what = random.choice(places), random.random()
        if at not in expected or what < 0.15:
            world.assignment.remove([at])
            if random.random() < 0.5:
                world.offsets[at] = OffsetAndMetadata(random.randint(10, 90), leader_epoch=random.choice([-1, 0]))
            world.assign(at)
            expected[at] = world.offsets[at].offset if at in world.offsets else ends[policy](at)
        elif what < 0.5:
            expected[at] = random.randint(0, 99)
            world.assignment.seek(at, expected[at], random.choice([-1, 0]))
        elif what < 0.8:
            to = random.choice(["earliest", "latest"])
            world.assignment.reset(at, to)
            expected[at] = ends[to](at)
        elif what < 0.9:
            world.move(at, random.randint(1, 3), world.epochs[at] + 1)
        else:
            world.out_of_range(at)
            expected[at] = ends[policy](at)
        world.pass_time(random.choice([0.0, 0.02, 0.3, 2.0]))
    world.run_until_idle(600.0)
    assert {at: world.at(at) for at in expected} == expected


# ------------------------------------------------------------------------------------------------ topic created again


def test_no_position_is_requested_while_a_topic_may_have_been_created_again() -> None:
    """A response about the newer topic must not change the position in the older one."""
    world = PositionScript(group=None, auto_offset_reset="latest")
    world.topic_ids["orders"] = UUID(int=1)
    world.log(A, end=10, epoch=1, epochs={1: 10})
    world.assign(A)
    world.run_until_idle()
    world.assignment.seek(A, 7, 1)
    world.run_until_idle()
    world.topic_ids["orders"] = UUID(int=2)
    world.epochs[A] = 2
    world.logs[A] = Log(end=2, epochs={2: 2})
    world.asked.clear()
    world.cluster.request_update("test")
    world.pass_time(CONFIRMATION_SECONDS / 2)
    assert world.state(A).is_suspended and world.state(A).position == 7 and not world.asked
    world.pass_time(2.0)
    assert world.at(A) == 0 and world.asked == [("ListOffsets", 1)]


def test_positions_wait_without_a_busy_loop_after_a_suspended_partition_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.topic_ids["orders"] = UUID(int=1)
    world.log(A)
    world.assign(A)
    world.run_until_idle()
    world.topic_ids["orders"] = UUID(int=2)
    world.cluster.request_update("test")
    world.pass_time(CONFIRMATION_SECONDS / 2)
    assert world.state(A).is_suspended
    looks = 0
    look = world.positions._topic_ids.look

    def count() -> float | None:
        nonlocal looks
        looks += 1
        assert looks < 100
        return look()

    monkeypatch.setattr(world.positions._topic_ids, "look", count)
    world.assignment.remove([A])
    world.pass_time(CONFIRMATION_SECONDS)
    assert world.positions._pause is None and looks < 100
