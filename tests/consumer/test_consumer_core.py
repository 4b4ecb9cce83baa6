# SPDX-License-Identifier: Apache-2.0
"""What a consumer tells its application, and when: rebalances, commits, errors; with a scripted membership and fetcher,
under both APIs. What brokers say to all of it is in test_consumer_broker.py."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_runs import AtZero, Fetched, Loop, Member, Offsets, Threads

import kcodec.consumer.group.classic.membership
from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import Consumer
from kcodec.consumer import core as consumer_core
from kcodec.errors import BrokerError, TransportError
from kcodec.flow import CancelledFlow, Flow, Signal, wait
from kcodec.protocol.error_codes import broker_error

ONE, TWO, THREE = (TopicPartition("orders", number) for number in range(3))


Make = Callable[..., Threads]


@pytest.fixture(params=[Threads, Loop], ids=["thread", "asyncio"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(consumer_core, "Fetcher", Fetched)
    monkeypatch.setattr(consumer_core, "CommittedOffsets", Offsets)
    monkeypatch.setattr(consumer_core, "Positions", AtZero)
    monkeypatch.setattr(kcodec.consumer.group.classic.membership, "ClassicMembership", Member)
    made: list[Threads] = []

    def make(**options: Any) -> Threads:
        made.append(request.param(**{"group_id": "billing", **options}))
        return made[-1]

    Member.made.clear()
    yield make
    for client in made:
        client.end()


def subscribed(client: Threads, **callbacks: Any) -> Member:
    client.do("subscribe", ["orders"], **callbacks)
    return Member.made[-1]


def given(client: Threads, *partitions: TopicPartition) -> Member:
    """A consumer that owns these, told."""
    member = subscribed(client)
    client.flow(member.handler.assign(partitions, partitions))
    client.do("poll", 0.0)
    return member


def test_a_revocation_waits_for_the_next_poll_and_commits_what_was_polled_before(make: Make) -> None:
    client = make()
    member = given(client, ONE, TWO)
    client.consumer._core.fetcher.ready = [(ONE, 4), (TWO, 9)]
    assert len(client.do("poll", 1.0)) == 2
    commits = client.consumer._core.committed_offsets.commits
    reported = client.flow(member.handler.revoke([ONE]))
    client.wait(0.05)
    assert not reported.done and commits == [] and client.do("assignment") == {ONE, TWO}
    client.do("poll", 0.0)
    client.wait(0.02)
    assert reported.done and commits == [{ONE: 5}] and client.do("assignment") == {TWO}


def test_callbacks_run_in_order_within_poll_and_may_use_the_consumer(make: Make) -> None:
    client = make(enable_auto_commit=False)
    reported: list[Any] = []
    is_aio = isinstance(client, Loop)
    where: list[Any] = []

    def note(what: str) -> Any:
        def sync(partitions: frozenset[TopicPartition]) -> None:
            where.append(threading.get_ident())
            reported.append((what, partitions, client.consumer.assignment()))
            if what != "lost":
                client.consumer.commit({ONE: 7})

        async def awaited(partitions: frozenset[TopicPartition]) -> None:
            where.append(threading.get_ident())
            reported.append((what, partitions, client.consumer.assignment()))
            if what != "lost":
                await client.consumer.commit({ONE: 7})

        return awaited if is_aio else sync

    member = subscribed(client, on_revoked=note("revoked"), on_assigned=note("assigned"), on_lost=note("lost"))

    def story() -> Flow[None]:
        yield from member.handler.assign([ONE, TWO], [ONE, TWO])
        yield from member.handler.revoke([TWO])
        yield from member.handler.assign([], [ONE])
        yield from member.handler.lose([ONE])

    done = client.flow(story())
    client.do("poll", 0.3)
    assert done.done and done.error is None
    assert reported == [
        ("assigned", {ONE, TWO}, {ONE, TWO}),
        ("revoked", {TWO}, {ONE, TWO}),  # while it is told they are still there, to be committed
        ("assigned", frozenset(), {ONE}),
        ("lost", {ONE}, frozenset()),
    ]
    assert set(where) == {threading.get_ident()}
    assert client.consumer._core.committed_offsets.commits == [{ONE: 7}] * 3


def test_nothing_is_delivered_before_on_assigned_has_returned_nor_while_it_is_revoked(make: Make) -> None:
    client = make(enable_auto_commit=False)
    seen: list[bool] = []
    fetcher = client.consumer._core.fetcher

    def look(partitions: frozenset[TopicPartition]) -> None:
        fetcher.ready = [(each, 0) for each in partitions]
        seen.append(fetcher.buffer.has_ready)

    member = subscribed(client, on_assigned=look, on_revoked=look)
    client.flow(member.handler.assign([ONE], [ONE]))
    assert client.do("poll", 1.0) == [(ONE, 0)]
    client.flow(member.handler.revoke([ONE]))
    assert client.do("poll", 0.05) == []
    assert seen == [False, False]


def test_an_error_of_a_callback_is_raised_by_poll_and_the_rebalance_goes_on(make: Make) -> None:
    client = make(enable_auto_commit=False)

    def refuse(partitions: frozenset[TopicPartition]) -> None:
        raise LookupError("no room for these")

    member = subscribed(client, on_assigned=refuse)
    done = client.flow(member.handler.assign([ONE], [ONE]))
    with pytest.raises(LookupError, match="no room"):
        client.do("poll", 1.0)
    client.do("poll", 0.0)
    client.wait(0.02)
    assert done.done and client.do("assignment") == {ONE}


def test_without_on_lost_on_revoked_is_called(make: Make) -> None:
    client = make()
    reported: list[Any] = []
    member = subscribed(client, on_revoked=reported.append)
    client.flow(member.handler.assign([ONE], [ONE]))
    client.flow(member.handler.lose([ONE]))
    client.do("poll", 0.1)
    assert reported == [{ONE}] and client.consumer._core.committed_offsets.commits == []


def test_automatic_commits_carry_positions_and_none_is_repeated(make: Make) -> None:
    """Within a short time; see `REPEAT_SECONDS` of `kcodec.consumer.commits`."""
    client = make(auto_commit_interval_ms=20)
    given(client, ONE)
    core = client.consumer._core
    core.fetcher.ready = [(ONE, 41)]
    client.do("poll", 1.0)
    for _ in range(5):
        client.do("poll", 0.03)
    assert core.committed_offsets.commits == [{ONE: 42}] or core.committed_offsets.commits == [{ONE: 0}, {ONE: 42}]


def test_a_failed_automatic_commit_is_tried_again_and_not_raised(make: Make) -> None:
    client = make(auto_commit_interval_ms=10)
    given(client, ONE)
    core = client.consumer._core
    core.committed_offsets.failing = broker_error(27, "OffsetCommit")
    for _ in range(6):
        client.do("poll", 0.02)
    assert core.committed_offsets.commits == [{ONE: 0}]


def test_commits_in_the_background_keep_their_order_and_tell_within_poll(make: Make) -> None:
    client = make(enable_auto_commit=False)
    given(client, ONE)
    core = client.consumer._core
    reported: list[Any] = []
    client.do("commit_async", {ONE: 3}, lambda offsets, error: reported.append((offsets[ONE].offset, error)))
    client.wait(0.02)  # else both are one commit
    core.committed_offsets.failing = broker_error(22, "OffsetCommit")
    client.do("commit_async", {ONE: 4}, lambda offsets, error: reported.append((offsets[ONE].offset, error)))
    client.wait(0.05)
    assert reported == []
    client.do("poll", 0.0)
    client.do("poll", 0.0)
    assert [offset for offset, _ in reported] == [3, 4]
    codes = [getattr(error, "code", None) for _, error in reported]
    assert sorted(codes, key=str) == [22, None]


def test_commit_directly_after_commit_async_is_sent_after_it(make: Make) -> None:
    """In asyncio it was sent before, so that the older offset replaced the newer one."""
    client = make(enable_auto_commit=False)
    given(client, ONE)
    if isinstance(client, Loop):

        async def commit_twice() -> None:
            await client.consumer.commit_async({ONE: 5})
            await client.consumer.commit({ONE: 10})

        client.loop.run_until_complete(commit_twice())
    else:
        client.consumer.commit_async({ONE: 5})
        client.consumer.commit({ONE: 10})
    client.wait(0.02)
    assert client.consumer._core.committed_offsets.commits == [{ONE: 5}, {ONE: 10}]


def test_close_commits_calls_back_leaves_and_is_idempotent(make: Make) -> None:
    client = make()
    reported: list[Any] = []
    member = subscribed(client, on_revoked=reported.append)
    client.flow(member.handler.assign([ONE], [ONE]))
    client.do("poll", 0.05)
    client.do("close")
    assert reported == [{ONE}]
    assert client.consumer._core.committed_offsets.commits == [{ONE: 0}]
    assert member.left == ["the consumer is closed"]
    client.do("close")
    assert member.left == ["the consumer is closed"]
    with pytest.raises(TransportError, match="closed"):
        client.do("poll", 0.0)


def test_one_that_leaves_commits_when_its_own_rejoin_is_over(make: Make) -> None:
    """A generation that ends between the commit's sending and its arrival would have it refused (22)."""
    client = make()
    member = given(client, ONE)
    commits = client.consumer._core.committed_offsets.commits

    def rejoin() -> Flow[None]:
        yield from member.group_lock.acquire()
        yield from wait(Signal(), 0.1)
        assert commits == []
        member.group_lock.release()

    done = client.flow(rejoin())
    client.do("unsubscribe")
    assert done.done and done.error is None
    assert commits == [{ONE: 0}] and not member.group_lock.is_held


def test_a_close_that_is_given_up_gives_up_quietly(make: Make) -> None:
    """Cancelled while a revocation waits: nothing more is waited for, all is let go of."""
    client = make(enable_auto_commit=False)
    member = given(client, ONE)
    core = client.consumer._core
    task = client.flow(core.selection.unsubscribe(5.0))  # waits for a poll
    client.wait(0.05)
    assert not task.done

    def give_up() -> Flow[None]:
        task.cancel()
        yield from ()

    done = client.flow(give_up())
    client.wait(0.02)
    assert done.error is None and isinstance(task.error, CancelledFlow)
    assert core.selection.membership is None and member.left == [] and not member.group_lock.is_held
    assert client.do("assignment") == frozenset()


def test_a_poll_that_is_interrupted_loses_no_notice(make: Make) -> None:
    """Between the flow's end and the caller: it is told by the next poll."""
    client = make()
    reported: list[Any] = []
    member = subscribed(client, on_assigned=reported.append)
    done = client.flow(member.handler.assign([ONE], [ONE]))
    core = client.consumer._core
    first = client.flow(core.wait_for_work(1.0))  # the wait of before has ended
    client.wait(0.02)
    assert first.done and first.result is not None and reported == []
    client.do("poll", 0.05)
    client.wait(0.02)
    assert reported == [{ONE}] and done.done


def test_what_was_lost_is_not_committed_by_what_was_queued(make: Make) -> None:
    """A later generation must not carry the offsets of an earlier one."""
    client = make(enable_auto_commit=False)
    member = given(client, ONE, TWO)
    core = client.consumer._core

    def queued() -> Flow[None]:
        yield from core.commits._commit_lock.acquire()  # a commit before it is not answered yet
        core.commits.put({ONE: OffsetAndMetadata(5), TWO: OffsetAndMetadata(6)}, None, is_forced=True)
        core.commits.put({ONE: OffsetAndMetadata(7)}, None, is_forced=True)
        core.selection.remove([ONE])
        core.commits._commit_lock.release()

    client.flow(queued())
    client.wait(0.05)
    assert core.committed_offsets.commits == [{TWO: 6}] and member.error is None


def test_unsubscribe_gives_everything_away_and_assign_is_possible_then(make: Make) -> None:
    client = make()
    member = given(client, ONE, TWO)
    with pytest.raises(ValueError, match="assign is not possible after subscribe"):
        client.do("assign", [THREE])
    client.do("unsubscribe")
    assert client.do("assignment") == frozenset() and member.left == ["the consumer unsubscribed"]
    client.do("assign", [THREE])
    assert client.do("assignment") == {THREE}
    with pytest.raises(ValueError, match="subscribe is not possible after assign"):
        client.do("subscribe", ["orders"])


@pytest.mark.parametrize("is_leaving", [False, True], ids=["revoking", "leaving"])
def test_a_subscription_during_an_interrupted_unsubscribe_stays(make: Make, is_leaving: bool) -> None:
    """The flow of `unsubscribe` continues when its caller is interrupted. Its end must not end the next member, nor
    remove the partitions of that one."""
    client = make(enable_auto_commit=False)
    old = given(client, ONE)
    core = client.consumer._core
    may_continue = Signal()

    def wait_before_leaving(timeout: float, reason: str) -> Flow[None]:
        yield from wait(may_continue)
        old.left.append(reason)

    if is_leaving:
        old.leave = wait_before_leaving  # type: ignore[method-assign]
    task = client.flow(core.selection.unsubscribe(5.0))
    if is_leaving:
        client.flow(core.wait_for_work(0.0))  # a poll, for the revocation
        client.wait(0.02)
    client.do("subscribe", ["payments"])
    if not is_leaving:
        client.flow(core.wait_for_work(0.0))
        client.wait(0.02)
    new = core.selection.membership
    assert new is Member.made[-1] is not old and new.wanted == ({"payments"}, None)
    if is_leaving:
        client.flow(new.handler.assign([TWO], [TWO]))
        assert not task.done

    def go_on() -> Flow[None]:
        yield from ()
        may_continue.set()

    client.flow(go_on())
    client.wait(0.02)
    assert task.done and task.error is None and old.left == ["the consumer unsubscribed"]
    assert core.selection.membership is new and not any(one.done for one in core.selection.membership_tasks)
    assert client.do("subscription") == {"payments"}
    assert client.do("assignment") == ({TWO} if is_leaving else frozenset())


def test_two_interrupted_unsubscribes_leave_one_member(make: Make) -> None:
    """The end of the second one must not end the member that the last subscription has begun."""
    client = make(enable_auto_commit=False)
    old = given(client, ONE)
    core, made = client.consumer._core, len(Member.made)
    tasks = []
    for _ in range(2):
        tasks.append(client.flow(core.selection.unsubscribe(5.0)))
        client.do("subscribe", ["payments"])
    deadline = time.monotonic() + 10
    while not all(task.done for task in tasks) and time.monotonic() < deadline:
        client.flow(core.wait_for_work(0.0))  # a poll, for the revocation
        client.wait(0.02)
    assert [(task.done, task.error) for task in tasks] == [(True, None)] * 2
    assert len(Member.made) == made + 1
    assert core.selection.membership is Member.made[-1] is not old
    assert Member.made[-1].wanted == ({"payments"}, None)
    assert len(core.selection.membership_tasks) == 2 and not any(one.done for one in core.selection.membership_tasks)
    assert client.do("subscription") == {"payments"}


def test_more_partitions_during_an_interrupted_unsubscribe_replace_the_old_ones(make: Make) -> None:
    client = make()
    core = client.consumer._core
    client.do("assign", [ONE, TWO])
    may_continue = Signal()

    def wait_before_the_end(*unused: Any) -> Flow[None]:
        yield from wait(may_continue)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core.commits, "drain", wait_before_the_end)
        task = client.flow(core.selection.unsubscribe(5.0))
        client.wait(0.02)
    client.do("incremental_assign", [TWO, THREE])

    def go_on() -> Flow[None]:
        yield from ()
        may_continue.set()

    client.flow(go_on())
    client.wait(0.02)
    assert task.done and client.do("assignment") == {TWO, THREE}
    client.do("incremental_assign", [ONE])
    assert client.do("assignment") == {ONE, TWO, THREE}


def test_an_interrupted_incremental_assign_completes_an_interrupted_unsubscribe(make: Make) -> None:
    client = make()
    core = client.consumer._core
    client.do("assign", [ONE, TWO])
    core.selection._going = frozenset({ONE, TWO})  # as `unsubscribe` sets it

    def wait_forever(*unused: Any) -> Flow[None]:
        yield from wait(Signal())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core.commits, "commit_before_revocation", wait_forever)
        task = client.flow(core.selection.incremental_assign([TWO, THREE]))
        client.wait(0.02)
    assert not task.done

    def cancel() -> Flow[None]:
        yield from ()
        task.cancel()

    client.flow(cancel())
    client.wait(0.02)
    assert client.do("assignment") == {TWO, THREE}


def test_an_assignment_during_an_interrupted_unsubscribe_stays(make: Make) -> None:
    client = make(enable_auto_commit=False)
    member = given(client, ONE)
    may_continue = Signal()

    def wait_before_leaving(timeout: float, reason: str) -> Flow[None]:
        yield from wait(may_continue)

    member.leave = wait_before_leaving  # type: ignore[method-assign]
    core = client.consumer._core
    task = client.flow(core.selection.unsubscribe(5.0))
    client.flow(core.wait_for_work(0.0))
    client.wait(0.02)
    client.do("assign", [THREE])

    def go_on() -> Flow[None]:
        yield from ()
        may_continue.set()

    client.flow(go_on())
    client.wait(0.02)
    assert task.done and client.do("assignment") == {THREE}


def test_one_that_left_goes_on_being_who_it_was_until_it_assigns_by_hand(make: Make) -> None:
    """A coordinator takes the offsets of nobody (generation -1) also in a group that has members: no zombie may pass
    for that."""
    client = make()
    given(client, ONE)
    client.do("unsubscribe")
    assert client.do("group_metadata") == ConsumerGroupMetadata("billing", 7, "m")
    client.do("assign", [THREE])
    assert client.do("group_metadata") == ConsumerGroupMetadata("billing")


def test_a_second_revocation_ends_when_the_first_has(make: Make) -> None:
    """A rebalance must not rejoin before the commit of a revocation that somebody else began."""
    client = make(enable_auto_commit=False)
    reported: list[Any] = []
    member = subscribed(client, on_revoked=reported.append)
    client.flow(member.handler.assign([ONE], [ONE]))
    client.do("poll", 0.0)
    handler = member.handler
    handler._polls._count += 1  # in a poll that tells nothing
    try:
        both = [client.flow(handler.revoke([ONE])) for _ in range(2)]
        client.wait(0.05)
        assert [one.done for one in both] == [False, False]
    finally:
        handler._polls._count -= 1
    client.do("poll", 0.0)
    client.wait(0.02)
    assert [one.done for one in both] == [True, True] and reported == [{ONE}]


def test_what_the_group_met_is_raised_by_poll_even_while_it_waits(make: Make) -> None:
    client = make()
    member = given(client, ONE)

    def refused() -> Flow[None]:
        yield from wait(Signal(), 0.05)
        member.error = broker_error(82, "Heartbeat of billing", resource="billing")
        member.changed.set()

    client.flow(refused())
    with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
        client.do("poll", 10.0)


def test_a_part_that_fails_is_raised_not_silent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Fetched) -> Flow[None]:
        yield from wait(Signal(), 0.02)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Fetched, "run", broken)
    client = make()
    client.do("assign", [ONE])
    with pytest.raises(TransportError, match="a bug"):
        client.do("poll", 10.0)


def test_one_polls_at_a_time(make: Make) -> None:
    client = make()
    failed: list[str] = []

    def poll_again(partitions: frozenset[TopicPartition]) -> Any:
        if isinstance(client, Loop):

            async def awaited() -> None:
                with pytest.raises(RuntimeError, match="already running") as error:
                    await client.consumer.poll(0.0)
                failed.append(str(error.value))

            return awaited()
        with pytest.raises(RuntimeError, match="already running") as error:
            client.consumer.poll(0.0)
        failed.append(str(error.value))
        return None

    member = subscribed(client, on_assigned=poll_again)
    client.flow(member.handler.assign([ONE], [ONE]))
    client.do("poll", 0.05)
    assert len(failed) == 1


def test_pause_keeps_records_and_seek_drops_them(make: Make) -> None:
    client = make()
    given(client, ONE, TWO)
    client.do("pause", ONE)
    assert client.do("paused") == {ONE}
    client.consumer._core.fetcher.ready = [(ONE, 0), (TWO, 0)]
    assert client.do("poll", 0.05) == [(TWO, 0)]
    client.do("resume", ONE)
    assert client.do("poll", 0.05) == [(ONE, 0)]
    client.consumer._core.fetcher.ready = [(ONE, 1), (TWO, 1)]
    client.do("seek", ONE, 100)
    assert client.do("poll", 0.05) == [(TWO, 1)]
    assert client.do("position", ONE) == 100


@pytest.mark.parametrize(
    ("call", "arguments", "kind", "text"),
    [
        ("subscribe", ([],), ValueError, "empty"),
        ("subscribe", (), ValueError, "neither topics= nor pattern= is given"),
        ("subscribe", ([""],), TypeError, "must not be empty|expected str"),
        ("assign", (["orders"],), TypeError, "expected TopicPartition"),
        ("seek", (ONE, 5), ValueError, "not assigned"),
        ("seek", (ONE, -1), ValueError, "expected an offset of 0 or more, got -1"),
        ("pause", (ONE,), ValueError, "not assigned"),
        ("position", (ONE,), ValueError, "not assigned"),
        ("offsets_for_times", ({ONE: -5},), ValueError, "must be an int of 0 or more, in ms"),
        ("enforce_rebalance", (), ValueError, "needs a subscription"),
    ],
)
def test_wrong_calls_say_so(make: Make, call: str, arguments: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make().do(call, *arguments)


@pytest.mark.parametrize("call", ["commit", "commit_async", "group_metadata"])
def test_what_needs_a_group_says_so(make: Make, call: str) -> None:
    with pytest.raises(ValueError, match="with group_id="):
        make(group_id=None).do(call)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auto_offset_reset": "newest"}, "earliest, latest, none"),
        ({"auto_offset_reset": "by_duration:PT"}, "ISO 8601"),
        ({"isolation_level": "committed"}, "read_committed"),
        ({"partition_assignment_strategy": "stick"}, "cooperative-sticky"),
        ({"columns": ["ofset"]}, "ofset"),
        ({"heartbeat_interval_ms": 50_000}, "must be less than session_timeout_ms"),
        ({"group_protocol": "new"}, "classic, consumer"),
        ({"group_protocol": "consumer", "session_timeout_ms": 9000}, "consumer.session.timeout.ms"),
        ({"group_protocol": "consumer", "heartbeat_interval_ms": 9}, "consumer.heartbeat.interval.ms"),
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, "group_remote_assignor"),
        ({"group_remote_assignor": "uniform"}, "no effect"),
        ({"max_poll_records": 0}, "at least 1"),
        ({"group_id": None, "group_instance_id": "a"}, "requires group_id"),
    ],
)
def test_impossible_options_say_so(make: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Consumer(bootstrap_servers="127.0.0.1:1", **{"group_id": "billing", **options})


def test_an_unknown_option_has_a_suggestion(make: Make) -> None:
    with pytest.raises(TypeError, match="did you mean 'max_poll_records'"):
        make(max_pol_records=1)


def test_a_consumer_that_is_dropped_says_so_and_ends(make: Make) -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    io_loop = consumer._io_loop
    consumer.pause()  # the loop runs
    thread = io_loop._thread
    with pytest.warns(ResourceWarning, match="was not closed"):
        del consumer
        gc.collect()
    assert thread is not None
    thread.join(30.0)
    assert not thread.is_alive()
