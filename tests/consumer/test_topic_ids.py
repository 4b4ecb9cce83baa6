# SPDX-License-Identifier: Apache-2.0
"""`TopicIds`: another id of a topic counts only if the metadata has it for some time."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from uuid import UUID, uuid4

import pytest

from kcodec import TopicPartition
from kcodec.consumer.assignment import RESET, Assignment
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
        known = KnownPartitions(metadata)
        self.ids = TopicIds(metadata, self.assignment, known, can_fail=can_fail, on_new_topic=self.begun.extend)
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
