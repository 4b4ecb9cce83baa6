# SPDX-License-Identifier: Apache-2.0
"""`for record in consumer` and `async for`: the position moves record by record, nothing that a loop left is skipped,
and automatic commits carry only what was completed. What `poll` commits when its block fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_runs import Member
from iteration_script import APIS, ONE, THREE, TWO, ConsumerClient, IterationLoop, IterationWorld

from kcodec import TopicPartition
from kcodec.errors import CorruptBatchError, TransportError
from kcodec.flow import Flow, sleep


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[IterationWorld]:
    made = IterationWorld(monkeypatch)
    made.fill(ONE, 1000)
    yield made
    made.close()


@pytest.fixture(params=list(APIS))
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def failed(client: ConsumerClient) -> None:
    """The block of the consumer ends with an exception."""
    client.leave(ValueError("record 3 cannot be processed"))


# What is delivered


def test_a_second_loop_continues_after_the_first(world: IterationWorld, client: str) -> None:
    consumer = world.assigned(client, ONE)
    assert offsets(consumer.take(3)) == [0, 1, 2]
    assert offsets(consumer.take(3)) == [3, 4, 5]


@pytest.mark.parametrize("left", [1, 3, 499, 500, 501])
def test_poll_starts_with_what_a_loop_left(world: IterationWorld, client: str, left: int) -> None:
    consumer = world.assigned(client, ONE)
    consumer.take(left)
    found: list[int] = []
    while len(found) < 1000 - left:
        polled = offsets(consumer.do("poll", 1.0))
        assert 0 < len(polled) <= 500
        found += polled
    assert found == list(range(left, 1000))


@pytest.mark.parametrize("left", [1, 3, 199, 300, 501])
def test_poll_arrow_starts_with_what_a_loop_left(world: IterationWorld, client: str, left: int) -> None:
    consumer = world.assigned(client, ONE)
    consumer.take(left)
    found: list[int] = []
    while len(found) < 1000 - left:
        polled = list(consumer.do("poll_arrow", 1.0).column("offset"))
        assert polled
        found += polled
    assert found == list(range(left, 1000))


def test_a_loop_starts_with_what_poll_arrow_left(world: IterationWorld, client: str) -> None:
    consumer = world.assigned(client, ONE)
    consumer.take(5)
    found = list(consumer.do("poll_arrow", 1.0).column("offset"))
    assert offsets(consumer.take(2)) == [found[-1] + 1, found[-1] + 2]


def test_two_iterators_share_the_records(world: IterationWorld, client: str) -> None:
    """Also where a poll and a seek come between: neither iterator keeps records of its own."""
    consumer = world.assigned(client, ONE)
    one, two = consumer.iterate(), consumer.iterate()
    found = [consumer.next(each).offset for each in (one, two, one, one, two)]
    assert found == [0, 1, 2, 3, 4]
    assert offsets(consumer.do("poll", 1.0))[0] == 5
    first = consumer.next(one).offset
    assert consumer.next(two).offset == first + 1
    consumer.do("seek", ONE, 900)
    assert [consumer.next(each).offset for each in (two, one, two)] == [900, 901, 902]


def test_seek_in_a_loop_applies_to_the_next_record(world: IterationWorld, client: str) -> None:
    consumer = world.assigned(client, ONE)
    records = consumer.iterate()
    found = [consumer.next(records).offset for _ in range(3)]
    consumer.do("seek", ONE, 900)
    found += [consumer.next(records).offset for _ in range(3)]
    assert found == [0, 1, 2, 900, 901, 902]


def test_seek_to_the_beginning_in_a_loop_applies_at_once(world: IterationWorld, client: str) -> None:
    consumer = world.assigned(client, ONE)
    records = consumer.iterate()
    found = [consumer.next(records).offset for _ in range(3)]
    consumer.do("seek_to_beginning", ONE)
    found += [consumer.next(records).offset for _ in range(2)]
    assert found == [0, 1, 2, 0, 1]


def test_pause_in_a_loop_applies_to_the_next_record(world: IterationWorld, client: str) -> None:
    """What was paused comes again, in order, after resume."""
    world.fill(TWO, 100)
    consumer = world.assigned(client, ONE, TWO)
    records = consumer.iterate()
    first = consumer.next(records)
    mine = TopicPartition(first.topic, first.partition)
    other = TWO if mine == ONE else ONE
    consumer.do("pause", mine)
    assert [(record.partition, record.offset) for record in consumer.take(3)] == [
        (other.partition, n) for n in range(3)
    ]
    consumer.do("pause", other)
    consumer.do("resume", mine)
    found = [consumer.next(records) for _ in range(3)]
    assert [(record.partition, record.offset) for record in found] == [(mine.partition, n) for n in (1, 2, 3)]


def test_a_paused_loop_delivers_nothing(world: IterationWorld, client: str) -> None:
    consumer = world.assigned(client, ONE)
    consumer.take(3)
    consumer.do("pause", ONE)
    assert consumer.do("poll", 0.02) == []
    assert len(consumer.do("poll_arrow", 0.02)) == 0
    consumer.do("resume", ONE)
    assert offsets(consumer.take(2)) == [3, 4]


@pytest.mark.parametrize("how", ["revoke", "lose"])
def test_a_revoked_partition_delivers_nothing_more(world: IterationWorld, client: str, how: str) -> None:
    """The rebalance goes on at the next record, not after the records that were decoded with the current one."""
    world.fill(TWO, 1000)
    consumer = world.open(client, ONE, TWO)
    records = consumer.iterate()
    first = consumer.next(records)
    mine = TopicPartition(first.topic, first.partition)
    done = consumer.flow(getattr(world.handler(consumer), how)([mine]))
    consumer.wait(0.02)
    found = [consumer.next(records) for _ in range(20)]
    consumer.wait(0.02)
    assert done.done and done.error is None
    assert {record.partition for record in found} == {1 - mine.partition}
    assert world.stored.get(mine) == (1 if how == "revoke" else None)


def test_assign_in_a_loop_applies_to_the_next_record(world: IterationWorld, client: str) -> None:
    world.fill(TWO, 10)
    consumer = world.assigned(client, ONE)
    records = consumer.iterate()
    consumer.next(records)
    consumer.do("assign", [TWO])
    assert [(consumer.next(records).partition, at) for at in range(3)] == [(1, 0), (1, 1), (1, 2)]
    consumer.do("assign", [ONE])
    assert offsets(consumer.take(2)) == [0, 1]


def test_unsubscribe_in_a_loop_applies_to_the_next_record(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE)
    records = consumer.iterate()
    for _ in range(4):
        consumer.next(records)
    consumer.do("unsubscribe")
    assert world.stored == {ONE: 3}  # the record at 3 was not completed
    world.fill(TWO, 5)
    consumer.do("assign", [TWO])
    assert consumer.next(records).partition == 1


def test_a_closed_consumer_delivers_nothing_more(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE)
    records = consumer.iterate()
    consumer.next(records)
    consumer.do("close")
    with pytest.raises(TransportError, match="closed"):
        consumer.next(records)
    assert world.stored == {ONE: 1}


def test_an_error_comes_after_the_records_before_it(world: IterationWorld, client: str) -> None:
    """The loop goes on after a seek behind the corrupt batch; poll_arrow and poll see the same."""
    batch = world.logs[ONE].batches[1]
    batch.data = batch.data[:70] + bytes([batch.data[70] ^ 1]) + batch.data[71:]
    consumer = world.assigned(client, ONE)
    assert offsets(consumer.take(100)) == list(range(100))
    with pytest.raises(CorruptBatchError) as error:
        consumer.take(1)
    assert error.value.next_offset == 200
    with pytest.raises(CorruptBatchError):
        consumer.take(1)
    consumer.do("seek", ONE, error.value.next_offset)
    assert offsets(consumer.take(2)) == [200, 201]


def test_an_interrupted_poll_loses_no_records(
    world: IterationWorld, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the records were taken, before the application got them."""
    consumer = world.assigned(client, ONE)
    core = consumer.consumer._core
    consumer.take(3)
    for call, taker in (("poll", "take"), ("poll_arrow", "take_arrow"), ("poll", "take")):
        take = getattr(core, taker)

        def interrupted(*given: Any, take: Any = take) -> Any:
            take(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(core, taker, interrupted)
            consumer.do(call, 1.0)
    assert consumer.do("position", ONE) == 3
    found = offsets(consumer.do("poll", 1.0))
    assert found == list(range(3, 3 + len(found))) and found
    assert consumer.do("position", ONE) == 3 + len(found)


# What is committed


def test_commit_in_a_loop_includes_the_current_record(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE, enable_auto_commit=False)
    records = consumer.iterate()
    for offset in range(5):
        assert consumer.next(records).offset == offset
        consumer.do("commit")
        assert world.stored == {ONE: offset + 1} and consumer.do("position", ONE) == offset + 1
    consumer.do("commit_async")
    consumer.wait(0.02)
    failed(consumer)
    assert world.commits[-1] == {ONE: 5}


def test_a_failed_loop_commits_only_completed_records(world: IterationWorld, client: str) -> None:
    """The exception is raised while record 3 is processed; the next consumer begins with it."""
    consumer = world.open(client, ONE)
    records = consumer.iterate()
    for offset in range(4):
        assert consumer.next(records).offset == offset
    failed(consumer)
    assert world.stored == {ONE: 3}
    assert offsets(world.open(client, ONE).take(2)) == [3, 4]


def test_a_loop_that_ends_well_commits_its_last_record(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE)
    consumer.take(4)
    consumer.leave()
    assert world.stored == {ONE: 4}


def test_a_failed_loop_at_the_end_of_a_chunk(world: IterationWorld, client: str) -> None:
    """The last record of those that were decoded together is not completed either."""
    consumer = world.open(client, ONE, max_poll_records=10)
    consumer.take(10)
    failed(consumer)
    assert world.stored == {ONE: 9}


def test_a_failed_block_does_not_commit_its_last_poll(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE, max_poll_records=100)
    for _ in range(3):
        consumer.do("poll", 1.0)
    failed(consumer)
    assert world.stored == {ONE: 200}
    again = world.open(client, ONE, max_poll_records=100)
    assert offsets(again.do("poll", 1.0))[0] == 200
    again.leave(KeyboardInterrupt())
    assert world.stored == {ONE: 200}


def test_a_failed_block_does_not_commit_its_last_table(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE)
    done = len(consumer.do("poll_arrow", 1.0))
    consumer.do("poll_arrow", 1.0)
    failed(consumer)
    assert world.stored == {ONE: done}


def test_a_poll_completes_what_a_loop_delivered(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE)
    consumer.take(4)
    consumer.do("poll", 1.0)
    failed(consumer)
    assert world.stored == {ONE: 4}


def test_close_commits_the_last_poll(world: IterationWorld, client: str) -> None:
    consumer = world.open(client, ONE, max_poll_records=100)
    consumer.do("poll", 1.0)
    consumer.do("close")
    assert world.stored == {ONE: 100}


def test_what_was_committed_is_completed(world: IterationWorld, client: str) -> None:
    """An automatic commit does not go back behind an explicit one."""
    consumer = world.open(client, ONE)
    consumer.take(4)
    consumer.do("commit")
    failed(consumer)
    assert world.stored == {ONE: 4}
    consumer = world.open(client, ONE, max_poll_records=100)
    consumer.do("poll", 1.0)
    consumer.do("commit", {ONE: 50})
    failed(consumer)
    assert world.stored == {ONE: 50}


def test_a_commit_in_on_revoked_excludes_failed_records(world: IterationWorld, client: str) -> None:
    """`on_revoked=lambda partitions: consumer.commit()` runs when the failed block closes the consumer."""
    consumer = world.open(client, enable_auto_commit=False)
    consumer.do("subscribe", ["orders"], on_revoked=lambda partitions: consumer.consumer.commit())
    world.give(consumer, ONE)
    consumer.take(4)
    failed(consumer)
    assert world.stored == {ONE: 3}


def test_seek_back_after_a_failure_is_committed(world: IterationWorld, client: str) -> None:
    """Of a position behind and one ahead of what was completed, the lower one is committed."""
    for target, committed in ((2, 2), (900, 9)):
        world.stored.clear()
        consumer = world.open(client, ONE)
        consumer.take(10)
        consumer.do("seek", ONE, target)
        failed(consumer)
        assert world.stored == {ONE: committed}


def test_automatic_commits_go_on_within_a_chunk(world: IterationWorld, client: str) -> None:
    """Every commit carries completed records only, and the first does not wait for the end of the 500."""
    completed = 0
    ahead: list[Any] = []

    def check(offsets: dict[TopicPartition, int]) -> None:
        if offsets[ONE] > completed:
            ahead.append((offsets, completed))

    world.on_commit = check
    consumer = world.open(client, ONE, auto_commit_interval_ms=20)
    records = consumer.iterate()
    for offset in range(30):
        completed = offset
        consumer.next(records)
        consumer.wait(0.005)
    assert len(world.commits) >= 2 and not ahead
    assert 0 < world.commits[-1][ONE] < 30


def read_next(consumer: ConsumerClient, call: str, records: Any) -> list[int]:
    """Request records without a limit of time."""
    if call == "loop":
        return [consumer.next(records).offset]
    found = consumer.do(call, None if call == "poll_one" else 3600)
    return offsets(found if call == "poll" else [found])


@pytest.mark.parametrize("call", ["loop", "poll_one", "poll"])
def test_automatic_commits_go_on_while_a_call_waits(world: IterationWorld, client: str, call: str) -> None:
    """They include the records before the call, and not those that it returns. Before, a killed consumer read records
    again, or lost those that were written until its restart (auto_offset_reset="latest")."""
    world.fill(TWO, 3)
    consumer = world.open(client, TWO, auto_commit_interval_ms=300)
    core = consumer.consumer._core
    records = consumer.iterate()
    found: list[int] = []
    while len(found) < 3:
        found += read_next(consumer, call, records)

    def append_later() -> Flow[None]:
        yield from sleep(0.8)  # the interval has passed twice
        stored.append(world.stored.get(TWO))
        world.fill(TWO, 1)
        core.assignment.changed.set()

    stored: list[int | None] = []
    consumer.flow(append_later())
    assert read_next(consumer, call, records) == [3]
    assert stored == [3]
    consumer.wait(0.4)
    assert world.stored == {TWO: 3} and world.commits.count({TWO: 3}) == 1  # equal offsets are not committed again


def test_a_call_that_waits_with_a_commit_interval_of_0_does_not_spin(
    world: IterationWorld, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(TWO, 1)
    consumer = world.open(client, TWO, auto_commit_interval_ms=0)
    consumer.do("poll", 1.0)
    core = consumer.consumer._core
    times: list[float] = []
    monkeypatch.setattr(core, "note_request", lambda: times.append(core.clock()))
    assert consumer.do("poll", 0.3) == []
    assert 1 < len(times) < 40


def test_a_slow_loop_stays_in_the_group(world: IterationWorld, client: str) -> None:
    """Each requested record counts as a poll for max_poll_interval_ms."""
    consumer = world.open(client, ONE, max_poll_interval_ms=300, enable_auto_commit=False)
    member = Member.made[-1]
    records = consumer.iterate()
    consumer.next(records)
    longest = 0.0
    for _ in range(20):
        consumer.next(records)
        consumer.wait(0.04)
        longest = max(longest, time.monotonic() - member.polled)
    assert longest < 0.3


def test_a_seek_by_another_thread_applies_to_the_loop(world: IterationWorld) -> None:
    consumer = world.assigned("thread", ONE)
    found: list[int] = []
    for record in consumer.consumer:
        found.append(record.offset)
        if record.offset == 2:
            other = threading.Thread(target=consumer.consumer.seek, args=(ONE, 500))
            other.start()
            other.join()
        if len(found) == 5:
            break
    assert found == [0, 1, 2, 500, 501]


# asyncio


def test_a_cancelled_loop_loses_no_record(world: IterationWorld) -> None:
    """Cancelled while it waits for a record, and while it processes one."""
    world.logs.clear()
    world.fill(ONE, 2)
    client = world.assigned("asyncio", ONE)
    assert isinstance(client, IterationLoop)
    found: list[int] = []

    async def read() -> None:
        async for record in client.consumer:
            found.append(record.offset)
            await asyncio.sleep(0.01 if record.offset < 3 else 10.0)

    async def story() -> None:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.1)
        task.cancel()  # it waits
        await asyncio.wait([task])
        world.fill(ONE, 5)
        client.consumer._core.assignment.poke()
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.1)
        task.cancel()  # it is processing 3
        await asyncio.wait([task])
        async for record in client.consumer:
            found.append(record.offset)
            if record.offset == 6:
                break

    client.loop.run_until_complete(story())
    assert found == [0, 1, 2, 3, 4, 5, 6]


def test_a_loop_without_awaits_lets_others_run(world: IterationWorld) -> None:
    """The heartbeats of the consumer among them: records that are here do not suspend the task by themselves."""
    client = world.assigned("asyncio", ONE, max_poll_records=10)
    assert isinstance(client, IterationLoop)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def story() -> int:
        task = asyncio.ensure_future(others())
        await client.consumer.poll(1.0)
        before, read = turns, 0
        async for _ in client.consumer:
            time.sleep(0.001)
            read += 1
            if read == 250:
                break
        task.cancel()
        return turns - before

    assert client.loop.run_until_complete(story()) >= 2


def test_wait_for_and_aclosing_lose_no_record(world: IterationWorld) -> None:
    """`asyncio.wait_for(anext(records))` awaits in a task of its own, which begins later; a seek may come between."""
    client = world.assigned("asyncio", ONE)
    assert isinstance(client, IterationLoop)

    async def story() -> list[int | None]:
        records = aiter(client.consumer)
        found = []
        for _ in range(3):
            found.append((await asyncio.wait_for(anext(records), 5.0)).offset)
        unused = anext(records)
        await client.consumer.seek(ONE, 700)
        found.append((await unused).offset)
        async with contextlib.aclosing(records):
            found.append((await anext(records)).offset)
        return [*found, (await anext(records)).offset]

    assert client.loop.run_until_complete(story()) == [0, 1, 2, 700, 701, 702]


@pytest.mark.parametrize("call", ["poll", "iterate"])
def test_two_tasks_cannot_request_records_at_once(world: IterationWorld, call: str) -> None:
    world.logs[THREE] = world.fill(THREE, 0)
    client = world.assigned("asyncio", THREE)
    assert isinstance(client, IterationLoop)

    async def one() -> Any:
        if call == "poll":
            return await client.consumer.poll(0.3)
        return await asyncio.wait_for(anext(aiter(client.consumer)), 0.3)

    async def story() -> list[Any]:
        return [*await asyncio.gather(one(), one(), return_exceptions=True)]

    first, second = client.loop.run_until_complete(story())
    assert isinstance(second, RuntimeError) and "one task polls" in str(second)
    assert first == [] or isinstance(first, TimeoutError)


def test_an_iterator_goes_on_after_an_error(world: IterationWorld, client: str) -> None:
    """Unlike a generator, which an exception ends."""
    consumer = world.assigned(client, ONE)
    records = consumer.iterate()
    found = [consumer.next(records).offset]
    consumer.flow(_raise_later(consumer.consumer._core))
    consumer.wait(0.02)
    with pytest.raises(LookupError):
        while len(found) < 1000:
            found.append(consumer.next(records).offset)
    found += [consumer.next(records).offset for _ in range(3)]
    assert found == list(range(len(found)))


def _raise_later(core: Any) -> Any:
    """An error of a broker, which is raised once by the next request."""
    core.fetcher.buffer.passing.append(LookupError("not now"))
    yield from ()


def test_a_traceback_that_holds_the_loop_changes_nothing(world: IterationWorld, client: str) -> None:
    """The frame of the iteration is alive while the consumer closes, as an exception's traceback keeps it."""
    consumer = world.open(client, ONE)
    kept = consumer.iterate()
    for _ in range(4):
        consumer.next(kept)
    failed(consumer)
    assert world.stored == {ONE: 3}
    with pytest.raises(TransportError, match="closed"):
        consumer.next(kept)
