# SPDX-License-Identifier: Apache-2.0
"""Truncated logs (KIP-320), against scripted leaders in virtual time: Java's rules of OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest
from position_script import Log, PositionScript

from kcodec import LogTruncationError, OffsetAndMetadata, OffsetOutOfRangeError, TopicPartition
from kcodec.errors import AuthorizationError
from kcodec.protocol.error_codes import ErrorCode

A = TopicPartition("orders", 0)


def reading(policy: str, *, at: int = 20, **log: Any) -> tuple[PositionScript, Log]:
    """A consumer that has read up to `at`, in leader epoch 3, from broker 1; then broker 2 leads in epoch 4."""
    world = PositionScript(group=None, auto_offset_reset=policy)
    found = world.log(A, leader=1, epoch=3, end=30, epochs={3: 30})
    world.assign(A)
    world.assignment.seek(A, 0)
    world.pass_time(1.0)
    state = world.state(A)
    state.position, state.position_epoch = at, 3  # as the fetcher does when records are taken
    for name, value in log.items():
        setattr(found, name, value)
    world.move(A, 2, 4)
    return world, found


def epochs_asked(world: PositionScript) -> list[tuple[int, int, int]]:
    return [
        (request.replica_id, part.current_leader_epoch, part.leader_epoch)
        for request in world.requests
        if type(request).__name__ == "OffsetForLeaderEpochRequest"
        for topic in request.topics
        for part in topic.partitions
    ]


def test_a_position_that_stands_is_read_on_and_asked_about_once_a_leader() -> None:
    world, _ = reading("none", epochs={3: 25, 4: 40})
    version = world.state(A).version
    world.pass_time(5.0)
    assert world.at(A) == 20 and world.state(A).is_fetchable and world.state(A).version == version
    assert epochs_asked(world) == [(-1, 4, 3)]
    world.cluster.request_update("nothing new")
    world.pass_time(5.0)
    assert len(epochs_asked(world)) == 1
    world.move(A, 1, 5)
    world.pass_time(5.0)
    assert epochs_asked(world)[1:] == [(-1, 5, 3)]


def test_it_is_not_fetched_before_the_leader_has_answered() -> None:
    world, _ = reading("none", epochs={3: 25})
    world.code_of = lambda api, node, partition: ErrorCode.OFFSET_NOT_AVAILABLE if world.now < 30.0 else 0
    world.pass_time(20.0)
    assert world.state(A).awaiting == "validation" and not world.state(A).is_fetchable
    world.run_until_idle()
    assert world.state(A).is_fetchable


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_with_a_policy_reading_goes_on_where_the_logs_differ(policy: str) -> None:
    world, _ = reading(policy, epochs={3: 15, 4: 40})
    version = world.state(A).version
    world.pass_time(5.0)
    state = world.state(A)
    assert (world.at(A), state.position_epoch) == (15, 3)
    assert state.version != version, "what was fetched of the old log is dropped"
    assert len(epochs_asked(world)) == 1


def test_an_epoch_that_the_leader_never_had_ends_with_the_one_before() -> None:
    world, _ = reading("earliest", epochs={1: 9, 4: 40})
    world.pass_time(5.0)
    assert (world.at(A), world.state(A).position_epoch) == (9, 1)


def test_a_leader_that_cannot_tell_means_a_reset() -> None:
    world, _ = reading("earliest", epochs={}, start=2)
    world.pass_time(5.0)
    assert world.at(A) == 2


def test_with_none_the_error_names_all_there_is_to_know() -> None:
    world, _ = reading("none", epochs={1: 9, 4: 40})
    world.pass_time(5.0)
    error = world.state(A).error
    assert isinstance(error, LogTruncationError) and isinstance(error, OffsetOutOfRangeError)
    assert (error.partition, error.position, error.position_epoch) == (A, 20, 3)
    assert (error.divergent_offset, error.divergent_epoch, error.code) == (9, 1, 1)
    assert "records below the position 20, read in leader epoch 3, are no longer in it" in str(error)
    assert "up to offset 9 (leader epoch 1)" in str(error) and "seek" in str(error)
    world.assignment.seek(A, error.divergent_offset, error.divergent_epoch)
    world.run_until_idle()
    assert world.at(A) == 9 and world.state(A).is_fetchable


def test_with_none_and_a_leader_that_cannot_tell_the_error_says_so() -> None:
    world, _ = reading("none", epochs={})
    world.pass_time(5.0)
    error = world.state(A).error
    assert isinstance(error, LogTruncationError)
    assert (error.divergent_offset, error.divergent_epoch) == (-1, -1)
    assert "does not know up to which offset" in str(error)


@pytest.mark.parametrize(("epochs", "after"), [({3: 15, 4: 40}, 15), ({}, 30)])
def test_a_session_gets_the_position_before_and_after(epochs: dict[int, int], after: int) -> None:
    """Whether the leader knows the epoch or not. A position that the application has reset is not reported."""
    world, _ = reading("latest", epochs=epochs)
    resets: list[tuple[int, int]] = []
    world.assignment.on_reset = lambda state, before, now: resets.append((before, now))
    world.pass_time(5.0)
    assert world.at(A) == after
    assert resets == [(20, after)]
    world.assignment.reset(A, "earliest")
    world.pass_time(5.0)
    assert len(resets) == 1


def test_a_committed_offset_is_validated_by_its_leader_epoch() -> None:
    world = PositionScript(auto_offset_reset="earliest")
    world.log(A, epoch=4, epochs={3: 15, 4: 40})
    world.offsets[A] = OffsetAndMetadata(20, leader_epoch=3)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 15 and epochs_asked(world) == [(-1, 4, 3)]


def test_a_committed_offset_without_an_epoch_is_not() -> None:
    world = PositionScript(auto_offset_reset="earliest")
    world.log(A, epoch=4, epochs={4: 40})
    world.offsets[A] = OffsetAndMetadata(20)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 20 and epochs_asked(world) == []


def test_a_seek_with_an_epoch_is_validated() -> None:
    world = PositionScript(group=None, auto_offset_reset="earliest")
    world.log(A, epoch=4, epochs={3: 15, 4: 40})
    world.assign(A)
    world.assignment.seek(A, 20, 3)
    assert not world.state(A).is_fetchable
    world.run_until_idle()
    assert world.at(A) == 15


def test_a_late_answer_does_not_undo_a_seek() -> None:
    world, _ = reading("earliest", epochs={1: 9})
    world.latency = 3.0
    world.pass_time(4.0)
    assert epochs_asked(world)
    world.assignment.seek(A, 25)
    world.pass_time(20.0)
    assert world.at(A) == 25


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_rewind_outlives_a_load_that_was_in_flight(policy: str) -> None:
    """The leader moves, an OffsetForLeaderEpoch request is under way, and a session rewinds to where its transaction
    began, of the same epoch. The late response is about the position before: nothing of it may be taken."""
    world, log = reading(policy, at=20, epochs={3: 15, 4: 40})
    world.latency = 3.0
    world.pass_time(4.0)
    assert epochs_asked(world)
    world.move(A, 1, 5)
    world.assignment.seek(A, 10, 3)
    world.latency = 0.01
    log.epochs = {3: 15, 5: 40}
    world.pass_time(20.0)
    assert world.at(A) == 10 and world.state(A).error is None
    assert epochs_asked(world)[-1] == (-1, 5, 3), "the new leader has confirmed it"


def test_a_rewind_outlives_a_reset_that_was_in_flight() -> None:
    """The same with ListOffsets, which the former leader answers late."""
    world, _ = reading("latest", at=20, epochs={3: 25, 4: 40})
    world.run_until_idle()
    world.latency = 3.0
    world.out_of_range(A)
    world.pass_time(1.0)
    world.move(A, 1, 5)
    world.assignment.seek(A, 10, 3)
    world.pass_time(20.0)
    assert world.at(A) == 10


def test_a_position_that_moved_while_the_answer_came_is_asked_about_again() -> None:
    world, _ = reading("earliest", epochs={3: 22})
    world.latency = 3.0
    world.pass_time(4.0)
    assert epochs_asked(world)
    world.state(A).position = 24  # records fetched before were taken
    world.latency = 0.01
    world.run_until_idle()
    assert world.at(A) == 22 and len(epochs_asked(world)) == 2


def test_a_leader_that_has_moved_on_is_asked_with_its_epoch() -> None:
    world, _ = reading("none", epochs={3: 25})

    def code_of(api: str, node: int, partition: TopicPartition) -> int:
        world.epochs[A] = 6  # elected again before it is asked: our epoch 4 is refused (74)
        return 0

    world.code_of = code_of
    world.pass_time(5.0)
    assert world.at(A) == 20
    assert [asked[1] for asked in epochs_asked(world)][-1] == 6


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_brokers_that_have_no_epochs_or_no_such_request_are_believed(policy: str) -> None:
    world, _ = reading(policy)
    world.highest["OffsetForLeaderEpoch"] = 1
    world.pass_time(5.0)
    assert world.at(A) == 20 and world.state(A).is_fetchable
    world = PositionScript(auto_offset_reset=policy)
    world.log(A, epoch=-1)
    world.offsets[A] = OffsetAndMetadata(20, leader_epoch=3)
    world.assign(A)
    world.run_until_idle()
    assert world.at(A) == 20 and epochs_asked(world) == []


def test_version_2_wants_a_right_on_the_cluster_without_it_the_position_stands() -> None:
    world, _ = reading("none", epochs={3: 1})
    world.highest["OffsetForLeaderEpoch"] = 2
    world.code_of = lambda api, node, partition: 31
    world.pass_time(5.0)
    assert world.at(A) == 20 and world.state(A).is_fetchable


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
def test_what_passes_is_asked_again(code: int) -> None:
    world, _ = reading("none", epochs={3: 25})
    world.code_of = lambda api, node, partition: code if world.now < 90.0 else 0
    world.pass_time(89.0)
    assert world.state(A).awaiting == "validation"
    world.run_until_idle(20.0)
    assert world.at(A) == 20


def test_a_missing_permission_is_an_error() -> None:
    world, _ = reading("none", epochs={3: 25})
    world.code_of = lambda api, node, partition: 29
    world.pass_time(5.0)
    assert isinstance(world.state(A).error, AuthorizationError)


def test_a_paused_partition_is_validated_too() -> None:
    world, _ = reading("earliest", epochs={3: 15})
    world.assignment.pause([A], True)
    world.pass_time(5.0)
    assert world.at(A) == 15
