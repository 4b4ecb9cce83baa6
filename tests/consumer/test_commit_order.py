# SPDX-License-Identifier: Apache-2.0
"""The order of commits in the background and of commits that their caller waits for, in virtual time.

A coordinator that takes the commits of a script responds after some milliseconds, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from unnarrowed import unnarrowed

from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.commits import REPEAT_SECONDS, REVOCATION_SECONDS, Commits
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError, DeliveryTimeoutError
from kcodec.flow import Flow, Task, sleep
from kcodec.network.scheduler import Scheduler
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def at(*offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset) for partition, offset in zip((HERE, THERE), offsets, strict=False)}


class World:
    """The commits of one consumer. seconds: until the coordinator responds. sent, epochs: the offsets and the member
    epoch of each request. The coordinator rejects an epoch that is not that of the member when it responds.

    What a consumer posts runs after the flows that are ready, as it does in the event loop of asyncio."""

    def __init__(self, *, seconds: float = 0.005, **settings: Any) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.sent: list[dict[int, int]] = []
        self.topic_ids: list[dict[int, UUID]] = []
        self.obsolete: set[TopicPartition] = set()
        self.epochs: list[int] = []
        self.on_commit: Callable[[], None] = lambda: None
        self.posted: deque[Callable[[], None]] = deque()
        network: Any = None
        self.scheduler = Scheduler(lambda: self.now, network)
        self.assignment = Assignment(nullcontext(), self.posted.append)
        options = ConsumerSettings(**{"group_id": "billing", "enable_auto_commit": False, **settings})
        offsets: Any = self
        unused: Any = None
        self.member = ConsumerGroupMetadata("billing")
        self.commits = Commits(
            *(offsets, self.assignment, unused, options, lambda: self.now, lambda: self.member),
            lambda state: state.topic_partition in self.obsolete,
        )
        self.scheduler.spawn(self.commits.run(), "commits")
        self.turn()

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: Any,
        timeout: float,
        limit: float,
        topic_ids: Mapping[TopicPartition, UUID],
    ) -> Flow[None]:
        """In place of `CommittedOffsets`."""
        self.on_commit()
        while True:
            identity = member() if callable(member) else member
            self.topic_ids.append({partition.partition: found for partition, found in topic_ids.items()})
            self.epochs.append(identity.generation_id)
            self.sent.append({partition.partition: one.offset for partition, one in offsets.items()})
            yield from sleep(min(self.seconds, timeout))
            if timeout < self.seconds:
                raise DeliveryTimeoutError("no response")
            if identity == self.member:
                return
            if not callable(member) or member() == identity:
                raise broker_error(ErrorCode.STALE_MEMBER_EPOCH, "commit")

    def begin(self, flow: Flow[Any]) -> Task[Any]:
        task = self.scheduler.spawn(flow, "call")
        task.when_done(lambda _: None)
        self.turn()
        return task

    def turn(self) -> None:
        self.scheduler.run_ready()
        while self.posted:
            self.posted.popleft()()
            self.scheduler.run_ready()

    def until(self, when: float) -> None:
        self.turn()
        while (due := self.scheduler.next_wakeup()) is not None and due <= when:
            self.now = max(due, self.now)
            self.turn()
        self.now = when

    def put(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """As `commit_async`."""
        self.commits.put(offsets, None, is_forced=True)


def test_a_commit_does_not_overtake_the_background_commits_before_it() -> None:
    """In an event loop it was sent first, and then the older offset replaced the newer one."""
    world = World()
    world.put(at(5))
    task = world.begin(world.commits.commit_in_turn(at(10), 30.0))
    world.until(1.0)
    assert task.done and task.error is None and world.sent == [{0: 5}, {0: 10}]


def test_a_background_commit_does_not_overtake_a_commit_that_waits_for_its_turn() -> None:
    world = World()
    world.put(at(5))
    task = world.begin(world.commits.commit_in_turn(at(10), 30.0))
    world.put(at(20))
    world.until(1.0)
    assert task.done and world.sent == [{0: 5}, {0: 10}, {0: 20}]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_commit_gives_its_turn_up_within_its_timeout(is_cancelled: bool) -> None:
    world = World(seconds=100.0)
    world.put(at(5))
    task = world.begin(world.commits.commit_in_turn(at(10), 2.0))
    world.put(at(20))
    world.until(1.0)
    if is_cancelled:
        task.cancel()
    world.until(1.999)
    assert task.done is is_cancelled
    world.until(2.0)
    assert task.done
    if not is_cancelled:
        assert isinstance(task.error, DeliveryTimeoutError)
        assert "the previous commit got no response within 2 s" in str(task.error)
    world.seconds = 0.005
    world.until(200.0)
    assert world.sent == [{0: 5}, {0: 20}]


def test_a_commit_in_turn_that_is_cancelled_lets_the_next_one_begin() -> None:
    world = World()
    world.put(at(5))
    task = world.begin(world.commits.commit_in_turn(at(10), 30.0))
    world.put(at(20))
    world.until(0.007)
    assert world.sent == [{0: 5}, {0: 10}]
    task.cancel()
    world.until(1.0)
    assert world.sent == [{0: 5}, {0: 10}, {0: 20}]


def test_a_commit_that_waits_for_its_turn_ends_when_the_consumer_does() -> None:
    world = World(seconds=100.0)
    world.put(at(5))
    task = world.begin(world.commits.commit_in_turn(at(10), 50.0))
    world.until(1.0)
    world.commits._current = None  # its flow is cancelled
    world.commits._commit_lock.release()
    world.seconds = 0.005
    world.commits.end()
    world.until(2.0)
    assert task.done


def test_a_drain_waits_only_for_what_was_requested_before_it() -> None:
    """Each revocation took up to 20 seconds if the application commits all the time."""
    world = World()

    def commit_steadily() -> Flow[None]:
        for offset in range(100_000):
            world.put(at(offset))
            yield from sleep(0.002)

    application = world.begin(commit_steadily())
    world.until(1.0)
    drain = world.begin(world.commits.drain())
    world.until(1.02)
    assert drain.done
    drain = world.begin(world.commits.drain_first(world.now + 1.0))
    world.until(1.04)
    assert drain.done and not application.done


def test_a_revocation_commits_between_steady_background_commits() -> None:
    world = World(enable_auto_commit=True)
    world.assignment.add([HERE])
    world.assignment.seek(HERE, 7)

    def commit_steadily() -> Flow[None]:
        for offset in range(100_000):
            world.put({THERE: OffsetAndMetadata(offset)})
            yield from sleep(0.002)

    world.begin(commit_steadily())
    world.until(1.0)
    revocation = world.begin(world.commits.commit_before_revocation([HERE]))
    world.until(1.1)
    assert revocation.done and {0: 7} in world.sent


def test_a_drain_waits_for_what_is_queued_and_under_way() -> None:
    world = World(seconds=0.5)
    for offset in range(2):
        world.commits.put({HERE: OffsetAndMetadata(offset)}, None, is_forced=True)
        world.turn()
    drain = world.begin(world.commits.drain())
    world.until(0.9)
    assert not drain.done
    world.until(1.0)
    assert len(world.sent) == 2


def test_a_drain_waits_for_what_was_ahead_of_a_commit_that_was_given_up() -> None:
    world = World(seconds=1.0)
    world.put(at(5))
    given_up = world.begin(world.commits.commit_in_turn(at(4), 0.2))
    world.until(0.5)
    assert isinstance(given_up.error, DeliveryTimeoutError)
    drain = world.begin(world.commits.drain())
    world.until(0.9)
    assert not drain.done
    world.until(1.1)
    assert unnarrowed(drain).done and world.sent == [{0: 5}]


def test_a_drain_ends_after_ten_seconds() -> None:
    world = World(seconds=1000.0, default_api_timeout=500.0)
    world.put(at(1))
    drain = world.begin(world.commits.drain())
    world.until(REVOCATION_SECONDS - 0.01)
    assert not drain.done
    world.until(REVOCATION_SECONDS)
    assert drain.done


def test_a_merged_commit_forgets_the_state_of_a_revoked_partition() -> None:
    """The newer request names a partition that was not assigned: the application may commit it all the same."""
    world = World(seconds=0.5)
    world.put(at(1))
    world.turn()  # under way
    world.assignment.add([THERE])
    world.put({THERE: OffsetAndMetadata(3)})
    world.assignment.remove([THERE])
    world.put({THERE: OffsetAndMetadata(9)})
    world.until(5.0)
    assert world.sent == [{0: 1}, {1: 9}]


OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)


def read_to(world: World, offset: int, *, is_completed: bool = False) -> PartitionState:
    """Read the partition from offset 3 on. The records are not completed."""
    world.assignment.seek(HERE, 3)
    state = world.assignment.partitions[HERE]
    if not is_completed:
        state.note_delivery()
    state.position = offset
    return state


def with_old_topic(**settings: Any) -> World:
    world = World(seconds=0.5, **settings)
    world.assignment.add([HERE])
    world.assignment.partitions[HERE].topic_id = OLD_ID
    return world


@pytest.mark.parametrize("is_background", [False, True])
def test_a_commit_in_flight_completes_no_records_of_a_new_topic(is_background: bool) -> None:
    """The topic is deleted and created again while the coordinator handles the commit."""
    world = with_old_topic()
    state = read_to(world, 5)
    if is_background:
        world.put(at(5))
        world.turn()
    else:
        world.begin(world.commits.commit_in_turn(at(5), 30.0))
    assert world.sent == [{0: 5}]
    world.assignment.begin_again(state, NEW_ID)
    new = read_to(world, 8)
    world.until(1.0)
    assert new.completed_position is not None and new.completed_position.offset == 3


def test_an_offset_of_a_new_topic_is_committed_after_the_same_offset_of_the_old_one() -> None:
    """The commit of the old topic was in flight when reading began again."""
    world = with_old_topic(enable_auto_commit=True)
    state = read_to(world, 5)
    world.begin(world.commits.commit_in_turn(at(5), 30.0))
    world.commits.forget()
    world.assignment.begin_again(state, NEW_ID)
    world.until(1.0)
    read_to(world, 5, is_completed=True)
    world.begin(world.commits.commit_before_revocation([HERE]))
    world.until(2.0)
    assert world.sent == [{0: 5}, {0: 5}] and world.topic_ids == [{0: OLD_ID}, {0: NEW_ID}]


def test_a_commit_that_waits_for_its_turn_is_not_sent_for_another_topic() -> None:
    """The metadata contains another topic of the same name when the turn of the commit comes."""
    world = with_old_topic()
    state = read_to(world, 5)
    world.put({THERE: OffsetAndMetadata(1)})
    late = world.begin(world.commits.commit_in_turn(at(5), 30.0))
    world.assignment.begin_again(state, NEW_ID)
    world.until(2.0)
    assert world.sent == [{1: 1}]
    assert isinstance(late.error, BrokerError) and "the commit of orders-0 was not sent" in str(late.error)


def test_a_queued_automatic_commit_leaves_out_a_topic_that_was_replaced() -> None:
    world = with_old_topic(enable_auto_commit=True, auto_commit_interval=1.0)
    read_to(world, 5, is_completed=True)
    world.put({THERE: OffsetAndMetadata(1)})
    world.turn()
    world.commits.note_poll(0.0)
    world.commits.note_poll(1.0)
    world.obsolete.add(HERE)
    world.until(5.0)
    assert world.sent == [{1: 1}]


def poll_steadily(world: World) -> Flow[None]:
    """Request records, or wait for them, without an end."""
    while True:
        world.commits.note_poll(world.now)
        yield from sleep(0.25)


@pytest.mark.parametrize("seconds", [1.0, 5.0, 29.0, 40.0])
@pytest.mark.parametrize("is_added", [False, True])
def test_unchanged_offsets_that_may_expire_are_committed_again(seconds: float, is_added: bool) -> None:
    """A broker may delete committed offsets after one minute, unless a member is subscribed to their topic. A consumer
    without membership, or with partitions that the application has added, therefore repeats them in time."""
    world = World(enable_auto_commit=True, auto_commit_interval=seconds)
    if is_added:
        world.member = ConsumerGroupMetadata("billing", 7, "m")
    world.assignment.add([HERE], is_added=is_added)
    world.assignment.seek(HERE, 7)
    times: list[float] = []
    world.on_commit = lambda: times.append(world.now)
    world.begin(poll_steadily(world))
    world.until(600.0)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= REPEAT_SECONDS and max(gaps) < 60.0
    assert world.sent == [{0: 7}] * len(times)


def test_unchanged_offsets_of_a_member_are_not_committed_again() -> None:
    world = World(enable_auto_commit=True, auto_commit_interval=5.0)
    world.member = ConsumerGroupMetadata("billing", 7, "m")
    world.assignment.add([HERE])
    world.assignment.seek(HERE, 7)
    world.begin(poll_steadily(world))
    world.until(600.0)
    assert world.sent == [{0: 7}]


def test_unchanged_offsets_are_not_committed_without_requests_for_records() -> None:
    """The offsets of an application that hangs may expire."""
    world = World(enable_auto_commit=True, auto_commit_interval=5.0)
    world.assignment.add([HERE])
    world.assignment.seek(HERE, 7)
    application = world.begin(poll_steadily(world))
    world.until(20.0)
    application.cancel()
    world.until(600.0)
    assert world.sent == [{0: 7}]


# Revocations, and commits whose caller waits for them


def test_a_revocation_waits_for_a_commit_without_others_before_it() -> None:
    """It did not, so that the commit of another thread or task arrived after the partition had its next owner."""
    world = World(seconds=0.5)
    commit = world.begin(world.commits.commit_in_turn(at(5), 30.0))
    revocation = world.begin(world.commits.commit_before_revocation([HERE]))
    world.until(0.4)
    assert not commit.done and not revocation.done
    world.until(0.5)
    assert unnarrowed(commit).done and commit.error is None and unnarrowed(revocation).done


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_revocation_waits_no_longer_for_a_commit_that_was_given_up(is_cancelled: bool) -> None:
    world = World(seconds=100.0)
    commit = world.begin(world.commits.commit_in_turn(at(5), 2.0))
    revocation = world.begin(world.commits.commit_before_revocation([HERE]))
    world.until(1.0)
    assert not revocation.done
    if is_cancelled:
        commit.cancel()
    world.until(1.0 if is_cancelled else 2.0)
    assert unnarrowed(revocation).done and world.sent == [{0: 5}]


def test_a_second_commit_waits_for_the_first_one() -> None:
    world = World()
    tasks = [world.begin(world.commits.commit_in_turn(at(offset), 30.0)) for offset in (5, 10, 15)]
    world.put(at(20))
    world.until(1.0)
    assert [task.error for task in tasks] == [None] * 3
    assert world.sent == [{0: 5}, {0: 10}, {0: 15}, {0: 20}]


def revoke_late(world: World, *revoked: TopicPartition) -> Flow[None]:
    """A revocation that gives up waiting for commits. The member then has another epoch."""
    yield from world.commits.commit_before_revocation(revoked)
    world.assignment.remove(revoked)
    world.member = ConsumerGroupMetadata("billing", 8, "m")


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_commit_of_a_revoked_partition_is_not_repeated(is_direct: bool, is_revoked: bool) -> None:
    """A repeat with the next member epoch would replace the offset that the next owner has committed."""
    world = World(seconds=REVOCATION_SECONDS + 1, default_api_timeout=60.0, group_protocol="consumer")
    world.member = ConsumerGroupMetadata("billing", 7, "m")
    world.assignment.add([HERE, THERE])
    if is_direct:
        commit = world.begin(world.commits.commit_in_turn(at(5), 60.0))
    else:
        world.put(at(5))
        world.turn()
    world.begin(revoke_late(world, HERE if is_revoked else THERE))
    world.until(60.0)
    assert world.epochs == ([7] if is_revoked else [7, 8])
    if is_direct and is_revoked:
        assert isinstance(commit.error, BrokerError) and commit.error.code == ErrorCode.STALE_MEMBER_EPOCH


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_commit_whose_partition_is_revoked_before_its_turn_fails(group_protocol: str) -> None:
    """It was sent as a member of the next generation, which may not own the partition. Other partitions of the same
    call are committed."""
    world = World(seconds=REVOCATION_SECONDS + 1, default_api_timeout=60.0, group_protocol=group_protocol)
    world.member = ConsumerGroupMetadata("billing", 7, "m")
    world.assignment.add([HERE, THERE])
    world.put({TopicPartition("bills", 3): OffsetAndMetadata(1)})
    commit = world.begin(world.commits.commit_in_turn(at(5, 6), 60.0))
    world.put(at(7, 8))
    world.begin(revoke_late(world, HERE))
    world.until(REVOCATION_SECONDS)
    world.seconds = 0.005
    world.until(60.0)
    assert world.sent[-2:] == [{1: 6}, {1: 8}]
    assert isinstance(commit.error, BrokerError) and commit.error.code == ErrorCode.ILLEGAL_GENERATION
    assert "the commit of orders-0 was not sent" in str(commit.error)
