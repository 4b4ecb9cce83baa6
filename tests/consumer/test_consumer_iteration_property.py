# SPDX-License-Identifier: Apache-2.0
"""Random histories of a consumer against a model: loops that are left, polls, columns, seeks, pauses, commits, failures
and rebalances, for both public consumers and both group protocols.

Records of each partition come in order, and none is skipped or repeated. A requested commit carries exactly the
positions; an automatic one never more than what was completed.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from random import Random
from typing import Any

import pytest
from iteration_script import APIS, ONE, THREE, TWO, ConsumerClient, IterationWorld

from kcodec import TopicPartition

SEEDS = 80 if os.environ.get("KCODEC_PROFILE", "short") == "short" else 3000
STEPS = 40
PARTITIONS = (ONE, TWO, THREE)


class Model:
    """What one consumer should do. Positions are indexes into `records`, the offsets a read_committed consumer sees.

    given:     partitions of which the last request delivered records.
    completed: the position up to which the application has processed each partition.
    highest:   the highest completed position there was: no automatic commit is above it.
    """

    def __init__(self, records: dict[TopicPartition, list[int]]) -> None:
        self.records = records
        self.position: dict[TopicPartition, int] = {}
        self.completed: dict[TopicPartition, int] = {}
        self.highest: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.held_back: set[TopicPartition] = set()
        self.given: set[TopicPartition] = set()

    def index(self, partition: TopicPartition, offset: int) -> int:
        """The position of an offset: that of the first record at it or after it."""
        return bisect_left(self.records[partition], offset)

    def assign(self, partition: TopicPartition, offset: int) -> None:
        self.position[partition] = self.completed[partition] = self.index(partition, offset)
        self.highest[partition] = max(self.highest.get(partition, 0), self.position[partition])

    def remove(self, partition: TopicPartition) -> None:
        for known in (self.position, self.completed):
            del known[partition]
        self.paused.discard(partition)
        self.held_back.discard(partition)
        self.given.discard(partition)

    def left(self) -> int:
        """The number of records that can be delivered now."""
        return sum(
            len(self.records[partition]) - position
            for partition, position in self.position.items()
            if partition not in self.paused | self.held_back
        )

    def complete(self) -> None:
        """Records are requested, or committed, or the consumer closes."""
        self.completed = dict(self.position)
        for partition, position in self.completed.items():
            self.highest[partition] = max(self.highest[partition], position)
        self.given.clear()

    def deliver(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.position and partition not in self.paused | self.held_back, f"{partition} is not read"
        assert offset == self.records[partition][self.position[partition]]
        self.position[partition] += 1
        self.given.add(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.position[partition] = self.index(partition, offset)
        if partition not in self.given:
            self.completed[partition] = self.position[partition]
            self.highest[partition] = max(self.highest[partition], self.position[partition])

    def fail(self) -> None:
        """An exception ends the block: the records of the last request are not completed."""
        self.completed = {each: min(at, self.position[each]) for each, at in self.completed.items()}


class History:
    """One random history; `steps` says what was done."""

    def __init__(self, world: IterationWorld, client: str, protocol: str, seed: int) -> None:
        self.world = world
        self.random = random = Random(seed)
        self.api_name = client
        self.is_automatic = random.random() < 0.7
        self.options: dict[str, Any] = {
            "group_protocol": protocol,
            "enable_auto_commit": self.is_automatic,
            "auto_commit_interval_ms": random.choice([1, 30, 5000]),
            "max_poll_records": random.choice([1, 7, 50, 500]),
        }
        self.steps: list[Any] = [self.options]
        world.batches = random.choice([1, 2, 5])
        self.records = {partition: self._fill(partition) for partition in PARTITIONS}
        self.wrong: list[str] = []
        self.is_requested = False
        world.on_commit = self.check_commit
        self._open()

    def _fill(self, partition: TopicPartition) -> list[int]:
        """A log of plain batches and of transactions that commit or abort, interleaved; offsets of what is visible."""
        random, log = self.random, self.world.fill(partition, 0)
        for _ in range(random.randrange(5, 15)):
            log.epoch += random.random() < 0.2
            producer = random.choice([-1, -1, 5, 6])
            log.append(*(b"v" for _ in range(random.randrange(1, 12))), producer_id=producer)
            if log.open and random.random() < 0.7:
                log.finish(random.choice(list(log.open)), random.random() < 0.5)
        for producer in list(log.open):
            log.finish(producer, random.random() < 0.5)
        return [offset for offset, _ in log.expected(0, log.end)]

    def _open(self) -> None:
        self.model = Model(self.records)
        self.client: ConsumerClient = self.world.open(self.api_name, **self.options)
        self.iterators: list[Any] = []
        for partition in self.random.sample(PARTITIONS, self.random.randrange(1, 4)):
            self.do_give(partition)

    def check_commit(self, offsets: dict[TopicPartition, int]) -> None:
        """On the thread of the consumer: what fails is kept for `run`."""
        if self.is_requested:
            return
        for partition, offset in offsets.items():
            found, highest = self.model.index(partition, offset), self.model.highest.get(partition, 0)
            if found > highest:
                self.wrong.append(f"committed {offset} of {partition}, completed up to index {highest}, not {found}")

    def run(self) -> None:
        try:
            for _ in range(STEPS):
                name = self.random.choice(WEIGHTED)
                getattr(self, f"step_{name}")()
                assert not self.wrong, self.wrong
            self.end(is_failed=False)
            assert not self.wrong, self.wrong
        except BaseException as error:
            error.add_note("\n".join(map(str, self.steps)))
            raise

    def note(self, *step: Any) -> None:
        self.steps.append(step)

    def any_assigned(self) -> TopicPartition | None:
        return self.random.choice(sorted(self.model.position)) if self.model.position else None

    # Reading

    def step_loop(self) -> None:
        """`for record in consumer`, left after some records, its generator dropped or kept."""
        count = min(self.random.choice([1, 2, 5, 30]), self.model.left())
        iterator = self.client.iterate()
        self.note("loop", count)
        for _ in range(count):
            self.next(iterator)
        if self.random.random() < 0.5:
            self.iterators.append(iterator)

    def step_old_loop(self) -> None:
        """A loop that was left, or comes in turns with others, goes on."""
        if self.iterators and self.model.left():
            self.note("old loop")
            self.next(self.random.choice(self.iterators))

    def next(self, iterator: Any) -> None:
        self.model.complete()
        record = self.client.next(iterator)
        self.note("record", record.partition, record.offset)
        self.model.deliver(TopicPartition(record.topic, record.partition), record.offset)

    def step_poll(self) -> None:
        self.model.complete()
        left = self.model.left()
        records = self.client.do("poll", 5.0 if left else 0.0)
        self.note("poll", [(record.partition, record.offset) for record in records])
        assert bool(records) == bool(left) and len(records) <= self.options["max_poll_records"]
        for record in records:
            self.model.deliver(TopicPartition(record.topic, record.partition), record.offset)

    def step_poll_arrow(self) -> None:
        self.model.complete()
        left = self.model.left()
        found = self.client.do("poll_arrow", 5.0 if left else 0.0)
        rows = list(zip(found.column("partition"), found.column("offset"), strict=True))
        self.note("poll_arrow", rows)
        assert bool(rows) == bool(left)
        for partition, offset in rows:
            self.model.deliver(TopicPartition("orders", partition), offset)

    # Moving

    def step_seek(self) -> None:
        if (partition := self.any_assigned()) is not None:
            offset = self.random.randrange(self.world.logs[partition].end + 1)
            self.note("seek", partition, offset)
            self.client.do("seek", partition, offset)
            self.model.seek(partition, offset)

    def step_pause(self) -> None:
        if (partition := self.any_assigned()) is not None:
            self.note("pause", partition)
            self.client.do("pause", partition)
            self.model.paused.add(partition)

    def step_resume(self) -> None:
        if self.model.paused:
            partition = self.random.choice(sorted(self.model.paused))
            self.note("resume", partition)
            self.client.do("resume", partition)
            self.model.paused.discard(partition)

    def step_position(self) -> None:
        if (partition := self.any_assigned()) is not None:
            found = self.client.do("position", partition)
            assert self.model.index(partition, found) == self.model.position[partition], (partition, found)

    def step_commit(self) -> None:
        self.note("commit")
        self.is_requested = True
        self.client.do("commit")
        self.is_requested = False
        stored = {each: self.model.index(each, self.world.stored[each]) for each in self.model.position}
        assert stored == self.model.position
        self.model.complete()

    # Rebalances

    def do_give(self, partition: TopicPartition) -> None:
        self.note("give", partition, self.world.stored.get(partition, 0))
        self.world.give(self.client, partition)
        self.model.assign(partition, self.world.stored.get(partition, 0))

    def step_give(self) -> None:
        if free := [each for each in PARTITIONS if each not in self.model.position]:
            self.do_give(self.random.choice(free))

    def step_revoke(self) -> None:
        if (partition := self.any_assigned()) is not None:
            self.note("revoke", partition)
            self.taken_away("revoke", partition)

    def step_lose(self) -> None:
        if (partition := self.any_assigned()) is not None:
            self.note("lose", partition)
            self.taken_away("lose", partition)

    def taken_away(self, how: str, partition: TopicPartition) -> None:
        """The rebalance waits for the next request, which may be that of a loop."""
        done = self.client.flow(getattr(self.world.handler(self.client), how)([partition]))
        self.client.wait(0.002)
        self.model.held_back.add(partition)  # a loop must not wait for records of this one alone
        others = self.model.left()
        if how == "revoke":
            self.model.held_back.discard(partition)
        if others and self.random.random() < 0.5:
            self.next(self.client.iterate())
        while not done.done:
            self.model.complete()
            for record in self.client.do("poll", 0.0):
                self.note("polled", record.partition, record.offset)
                self.model.deliver(TopicPartition(record.topic, record.partition), record.offset)
            self.client.wait(0.001)
        assert done.error is None and partition not in self.client.do("assignment")
        if self.is_automatic and how == "revoke":
            assert self.model.index(partition, self.world.stored[partition]) == self.model.position[partition]
        self.model.remove(partition)

    # The end

    def step_fail(self) -> None:
        self.end(is_failed=True)
        self._open()

    def step_close(self) -> None:
        self.end(is_failed=False)
        self._open()

    def end(self, *, is_failed: bool) -> None:
        self.note("fail" if is_failed else "close")
        if is_failed:
            self.model.fail()
        else:
            self.model.complete()
        self.client.leave(ValueError("a record cannot be processed") if is_failed else None)
        if self.is_automatic:
            for partition, completed in self.model.completed.items():
                stored = self.world.stored.get(partition, 0)
                assert self.model.index(partition, stored) == completed, (partition, stored, completed)
        if self.random.random() < 0.5:
            self.iterators.clear()


WEIGHTS = {
    "loop": 8,
    "old_loop": 8,
    "poll": 4,
    "poll_arrow": 4,
    "seek": 3,
    "pause": 2,
    "resume": 3,
    "position": 3,
    "commit": 3,
    "give": 3,
    "revoke": 1,
    "lose": 1,
    "fail": 1,
    "close": 1,
}
WEIGHTED = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("client", APIS)
def test_random_histories_lose_and_commit_nothing_early(
    client: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            world = IterationWorld(patch)
            try:
                History(world, client, protocol, seed).run()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
            finally:
                world.close()
