# SPDX-License-Identifier: Apache-2.0
"""`TopicIds` and `KnownPartitions`: another id of a topic counts only if the metadata has it for some time, and offsets
stay with the topic to which they belong."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from uuid import UUID, uuid4

import pytest

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.cluster.values import Partition, Topic
from kcodec.consumer import known_partitions
from kcodec.consumer.assignment import RESET, Assignment, PartitionState
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.topic_ids import CONFIRMATION_SECONDS, TopicIds
from kcodec.errors import OffsetOutOfRangeError

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class ScriptedMetadata:
    """The part of a cluster that `TopicIds` uses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.updates = self.requested = 0
        self.cluster_id = "a"
        self.topics: dict[str, Any] = {}
        self.id: UUID | None = uuid4()

    def clock(self) -> float:
        return self.now

    def topic_id(self, topic: str) -> UUID | None:
        return self.id

    def request_update(self, reason: str) -> None:
        self.requested += 1


class World:
    """A consumer that reads two partitions, at offset 3."""

    def __init__(self, can_fail: bool = False) -> None:
        metadata: Any = ScriptedMetadata()
        self.metadata: ScriptedMetadata = metadata
        self.assignment = Assignment(nullcontext(), lambda action: action())
        self.begun: list[TopicPartition] = []
        self.known = KnownPartitions(metadata, self.assignment)
        self.ids = TopicIds(metadata, self.assignment, self.known, can_fail=can_fail, on_new_topic=self.begun.extend)
        self.assignment.add([FIRST, SECOND])
        for partition in (FIRST, SECOND):
            self.assignment.seek(partition, 3)
        self.respond()

    def respond(self, topic_id: UUID | None = None, seconds: float = 0.0) -> float | None:
        """Receive metadata, after some time."""
        self.metadata.now += seconds
        self.metadata.updates += 1
        self.metadata.id = topic_id or self.metadata.id
        return self.ids.look()

    def confirm(self, topic_id: UUID) -> None:
        """Receive metadata with a new id until it is confirmed."""
        for seconds in (0.0, CONFIRMATION_SECONDS, 0.1):
            self.respond(topic_id, seconds)

    def state(self, partition: TopicPartition = FIRST) -> PartitionState:
        return self.assignment.partitions[partition]

    def commit(self, offset: int, partition: TopicPartition = FIRST) -> None:
        self.known.note_commit({partition: OffsetAndMetadata(offset)}, self.assignment.states([partition]))

    def assign_again(self, partition: TopicPartition = FIRST) -> PartitionState:
        """Take the partition away, and assign it again."""
        self.assignment.remove([partition])
        self.assignment.add([partition])
        self.ids.look()
        return self.state(partition)

    def fetchable(self) -> list[bool]:
        return [self.assignment.partitions[one].is_fetchable for one in (FIRST, SECOND)]


def test_a_single_response_with_another_id_changes_nothing() -> None:
    world = World()
    known = world.metadata.id
    assert world.respond(uuid4()) == CONFIRMATION_SECONDS
    assert world.fetchable() == [False, False]
    assert world.respond(known, 0.3) is None
    assert world.fetchable() == [True, True] and not world.begun
    assert world.respond(known, 10.0) is None
    assert [state.position for state in world.assignment.partitions.values()] == [3, 3]


def test_an_id_that_stays_is_that_of_a_new_topic() -> None:
    world = World()
    new = uuid4()
    world.respond(new)
    world.metadata.now += CONFIRMATION_SECONDS
    assert world.ids.look() is None and world.metadata.requested == 1
    assert not world.begun  # the next response decides
    world.respond()
    assert world.begun == [FIRST, SECOND]
    assert {(state.awaiting, state.reset_to, state.position) for state in world.assignment.partitions.values()} == {
        (RESET, "earliest", None)
    }
    assert world.respond(None, 5.0) is None and len(world.begun) == 2


def test_ids_that_change_again_begin_to_count_again() -> None:
    world = World()
    world.respond(uuid4())
    world.respond(uuid4(), CONFIRMATION_SECONDS / 2)
    world.respond(None, CONFIRMATION_SECONDS * 0.75)
    assert not world.begun
    world.respond(None, CONFIRMATION_SECONDS / 2)
    world.respond()
    assert world.begun == [FIRST, SECOND]


def test_a_former_id_is_not_a_new_one() -> None:
    world = World()
    old, new = world.metadata.id, uuid4()
    for seconds in (0.0, CONFIRMATION_SECONDS, 0.1):
        world.respond(new, seconds)
    assert len(world.begun) == 2
    for seconds in (0.0, CONFIRMATION_SECONDS, CONFIRMATION_SECONDS):
        world.respond(old, seconds)
    assert len(world.begun) == 2


def test_another_cluster_has_other_ids() -> None:
    """Copies of the records have the same offsets there."""
    world = World()
    world.metadata.cluster_id = "b"
    for _ in range(3):
        world.respond(uuid4() if world.metadata.cluster_id is None else None, CONFIRMATION_SECONDS)
    other = uuid4()
    world.metadata.cluster_id = "c"
    for seconds in (0.0, CONFIRMATION_SECONDS, CONFIRMATION_SECONDS):
        world.respond(other, seconds)
    assert not world.begun and world.fetchable() == [True, True]


def test_without_a_reset_a_new_topic_is_an_error_without_a_position() -> None:
    """Otherwise the position would be committed for the new topic."""
    world = World(can_fail=True)
    new = uuid4()
    for seconds in (0.0, CONFIRMATION_SECONDS, 0.1):
        world.respond(new, seconds)
    state = world.assignment.partitions[FIRST]
    assert isinstance(state.error, OffsetOutOfRangeError) and state.position is None
    assert not world.assignment.consumed() and not world.assignment.completed()
    with pytest.raises(OffsetOutOfRangeError, match="so the position 3 is a position in another log"):
        raise state.error


def test_partitions_that_are_no_longer_assigned_end_the_wait() -> None:
    """Otherwise the flow of the positions would call `look` again and again without a pause."""
    world = World()
    assert world.respond(uuid4()) == CONFIRMATION_SECONDS
    world.assignment.remove([FIRST, SECOND])
    world.metadata.now += 2 * CONFIRMATION_SECONDS
    assert world.ids.look() is None


def test_a_topic_that_is_missing_in_the_metadata_ends_the_wait() -> None:
    """The new id must then stay for the whole time again. A missing topic is not fetched, as it has no leaders."""
    world = World()
    new = uuid4()
    assert world.respond(new) == CONFIRMATION_SECONDS
    world.metadata.id = None
    assert world.respond(None, 2 * CONFIRMATION_SECONDS) is None and world.fetchable() == [True, True]
    assert world.respond(new) == CONFIRMATION_SECONDS and world.fetchable() == [False, False]
    world.confirm(new)
    assert world.begun == [FIRST, SECOND]


@pytest.mark.parametrize("has_passed", [False, True])
def test_a_partition_that_is_added_does_not_delay_the_confirmation(has_passed: bool) -> None:
    """The added partition has the new id at once."""
    world = World()
    world.assignment.remove([SECOND])
    new = uuid4()
    world.respond(new)
    if has_passed:
        world.metadata.now += CONFIRMATION_SECONDS
        world.ids.look()
    world.assignment.add([SECOND])
    world.respond()
    for _ in range(2):
        world.respond(None, CONFIRMATION_SECONDS)
    assert world.begun == [FIRST] and world.state(SECOND).topic_id == new
    assert not world.state(FIRST).is_suspended and not world.state(SECOND).is_suspended


def test_another_cluster_may_lack_the_topic_at_first() -> None:
    world = World()
    world.metadata.cluster_id, world.metadata.id = "b", None
    world.respond()
    world.confirm(uuid4())
    assert not world.begun and world.fetchable() == [True, True]


def test_a_skipped_partition_stays_skipped_when_its_topic_is_created_again() -> None:
    world = World()
    world.assignment.remove([SECOND])
    world.assignment.add([SECOND])
    world.assignment.skip([SECOND])
    world.ids.look()
    world.confirm(uuid4())
    assert world.begun == [FIRST]
    assert world.state(SECOND).is_skipped and world.state(SECOND).awaiting is None


def test_a_commit_during_the_confirmation_is_that_of_the_old_topic() -> None:
    """The position belongs to the old topic, although the metadata contains the new one."""
    world = World()
    new = uuid4()
    world.respond(new)
    world.commit(3)
    world.confirm(new)
    assert world.known.is_of_old_topic(world.assign_again(), 3)


def test_a_commit_while_the_topic_is_missing_is_that_of_the_old_topic() -> None:
    world = World()
    world.metadata.id = None
    world.respond()
    world.commit(3)
    world.respond(uuid4())
    assert world.known.is_of_old_topic(world.assign_again(), 3)


def test_a_commit_of_the_new_topic_is_not_considered_old() -> None:
    """This also holds if a broker with older metadata then responds with the former id."""
    world = World()
    old, new = world.metadata.id, uuid4()
    world.commit(3)
    world.confirm(new)
    world.commit(3)
    assert not world.known.is_of_old_topic(world.state(), 3)
    world.respond(old)
    assert not world.known.is_of_old_topic(world.state(), 3)


def test_a_commit_in_one_cluster_is_not_compared_with_topics_of_another() -> None:
    world = World()
    world.commit(3)
    world.metadata.cluster_id = "b"
    world.respond(uuid4())
    assert not world.known.is_of_old_topic(world.assign_again(), 3)


def test_the_number_of_remembered_commits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest commits remain, and those of assigned partitions."""
    monkeypatch.setattr(known_partitions, "MAX_REMEMBERED", 10)
    world = World()
    world.commit(3)
    others = [TopicPartition(f"topic-{number}", 0) for number in range(100)]
    for other in others:
        world.commit(1, other)
    found = world.known._commits
    assert {FIRST, *others[-10:]} <= found.keys() and len(found) <= 10 + len(world.assignment.partitions)
    world.respond(uuid4())
    assert world.known.is_of_old_topic(world.assign_again(), 3)
    world.assignment.add(others[-1:])
    world.ids.look()
    assert world.known.is_of_old_topic(world.state(others[-1]), 1)


def test_the_number_of_remembered_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics come and go. A topic that was deleted a short time ago is still known."""
    monkeypatch.setattr(known_partitions, "MAX_REMEMBERED", 10)
    metadata: Any = ScriptedMetadata()
    metadata.needs_all_topics, metadata.updates_of_all = False, 0
    known = KnownPartitions(metadata, Assignment(nullcontext(), lambda action: action()))
    for number in range(100):
        metadata.topics = {f"topic-{number}": Topic(f"topic-{number}", partitions={0: Partition(1, 0)})}
        known.note([])
    assert known._topics is not None and len(known._topics) <= 10 + 1
    metadata.id = uuid4()
    assert known.is_new(TopicPartition("topic-95", 0))
