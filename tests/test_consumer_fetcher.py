# SPDX-License-Identifier: Apache-2.0
"""The fetcher on scripted brokers: sessions, what is asked of whom, fetching ahead, every error code.

Scenarios of Kafka's FetcherTest, FetchSessionHandlerTest and FetchRequestManagerTest. Damage: test_consumer_damage.py.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from fetch_script import FetchLog, FetchScript, error
from test_isolation import LogBuilder

from kcodec import AuthorizationError, BrokerError, TopicPartition, TransportError
from kcodec.consumer.assignment import RESET, VALIDATION
from kcodec.errors import AuthenticationError, LimitExceededError
from kcodec.protocol.messages.fetch import (
    FetchEpochEndOffset,
    FetchLeaderIdAndEpoch,
    FetchNodeEndpoint,
    FetchPartition,
    FetchPartitionData,
)

ORDERS = TopicPartition("orders", 0)


def numbered(log: FetchLog, count: int, start: int = 0, per_batch: int = 5) -> list[bytes]:
    """Appends records with their numbers as values."""
    every = [b"%d" % number for number in range(start, start + count)]
    for at in range(0, count, per_batch):
        log.append_values(*every[at : at + per_batch])
    return every


def test_records_of_several_partitions_at_several_brokers_come_in_order() -> None:
    world = FetchScript(nodes=3)
    world.log(partitions=6)
    expected = {n: numbered(log, 20, start=100 * n) for n, log in enumerate(world.logs())}
    world.assign(*(("orders", n) for n in range(6)))
    found: dict[int | None, list[bytes | None]] = {n: [] for n in range(6)}
    until = world.now + 2
    while world.now < until:
        for record in world.fetcher.take(7):
            assert record.topic == "orders" and record.leader_epoch == 0
            found[record.partition].append(record.value)
        world.run(0.01)
    assert found == expected
    assert {node for _, node, _, _ in world.fetches} == {1, 2, 3}
    assert all(world.state("orders", n).position == 20 for n in range(6))


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_is_spoken(version: int) -> None:
    world = FetchScript(version=version)
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    assert world.drain() == expected
    more = numbered(world.logs()[0], 10, start=10)
    assert world.drain() == more
    assert {told for _, _, told, _ in world.fetches} == {version}
    request = world.fetches[-1][3]
    assert request.isolation_level == 1
    assert (request.session_id != 0) is (version >= 7)


def test_a_session_names_only_what_changed() -> None:
    world = FetchScript()
    world.log(partitions=3)
    numbered(world.logs()[1], 5)
    world.assign(*(("orders", n) for n in range(3)))
    assert len(world.drain(1.0)) == 5
    assert world.asked[0] == {TopicPartition("orders", n): 0 for n in range(3)}
    assert world.fetches[0][3].session_epoch == 0
    assert world.asked[1] == {TopicPartition("orders", 1): 5}
    assert world.asked[2:] == [{}] * len(world.asked[2:])
    epochs = [request.session_epoch for _, _, _, request in world.fetches]
    assert epochs == list(range(len(epochs)))
    world.assignment.pause([TopicPartition("orders", 2)], True)
    world.run(0.5)
    (forgotten,) = [
        request.forgotten_topics_data for _, _, _, request in world.fetches if request.forgotten_topics_data
    ]
    assert [topic.partitions for topic in forgotten] == [[2]]
    world.assignment.pause([TopicPartition("orders", 2)], False)
    world.run(0.5)
    assert {TopicPartition("orders", 2): 0} in world.asked[3:]


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_session_that_the_broker_lost_is_begun_anew_at_once(code: int) -> None:
    world = FetchScript()
    log = world.log()
    numbered(log, 5)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 5
    before = len(world.fetches)
    world.refusals.append(code)
    numbered(log, 5, start=5)
    assert len(world.drain(0.5)) == 5
    full = [request for _, _, _, request in world.fetches[before:] if request.session_epoch == 0]
    assert len(full) == 1 and len(full[0].topics) == 1
    assert (full[0].session_id == 0) is (code == 70)


def test_a_broker_without_sessions_is_asked_for_everything_each_time() -> None:
    world = FetchScript()
    world.has_sessions = False
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    assert world.drain(0.5) == expected
    assert {request.session_epoch for _, _, _, request in world.fetches} == {0}
    assert all(len(named) == 1 for named in world.asked)


def test_an_answer_with_a_partition_that_nobody_asked_for_is_not_used() -> None:
    world = FetchScript()
    expected = numbered(world.log(partitions=2), 10)
    edited = []

    def edit(message: Any) -> None:
        if not edited:
            edited.append(message)
            message.responses[0].partitions.append(FetchPartitionData(partition_index=1, high_watermark=0, records=b""))

    world.edit = edit
    world.assign(ORDERS)
    assert world.drain(1.0) == expected
    assert [request.session_epoch for _, _, _, request in world.fetches][:2] == [0, 0]


def test_topics_without_ids_are_asked_for_by_name() -> None:
    world = FetchScript()
    world.has_topic_ids = False
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    assert world.drain(0.5) == expected
    assert {version for _, _, version, _ in world.fetches} == {12}


def test_a_topic_that_was_made_anew_is_read_by_its_new_id() -> None:
    world = FetchScript()
    numbered(world.log(), 5)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 5
    old = world.topics["orders"][0]
    expected = numbered(world.log(), 10, start=50)
    world.cut(1)  # the broker was restarted, and its sessions are gone
    world.sessions.clear()
    assert world.drain(2.0) == expected[5:]
    ids = [topic.topic_id for _, _, _, request in world.fetches for topic in request.topics]
    assert ids[0] == old and ids[-1] == world.topics["orders"][0] != old


# Fetching ahead


def test_one_answer_is_fetched_ahead_and_no_more() -> None:
    world = FetchScript(max_partition_fetch_bytes=200)
    expected = numbered(world.log(), 100)
    world.assign(ORDERS)
    world.run(3.0)
    before = len(world.fetches)
    assert 2 <= before <= 3
    world.run(3.0)
    assert len(world.fetches) == before
    assert world.drain() == expected


def test_a_broker_is_not_asked_while_one_of_its_partitions_is_full() -> None:
    world = FetchScript(max_partition_fetch_bytes=200)
    world.log(partitions=2)
    numbered(world.logs()[0], 100)
    world.assign(("orders", 0), ("orders", 1))
    world.run(1.0)
    before = len(world.fetches)
    world.run(1.0)
    assert len(world.fetches) == before
    world.fetcher.take(500)
    world.run(0.05)
    assert len(world.fetches) > before
    assert all(len(request.forgotten_topics_data) == 0 for _, _, _, request in world.fetches)


def test_what_is_fetched_ahead_is_bounded() -> None:
    world = FetchScript(max_partition_fetch_bytes=10_000, fetch_ahead_max_bytes=30_000)
    world.log(partitions=10)
    for log in world.logs():
        for _ in range(20):
            log.append_values(b"v" * 9000)
    world.assign(*(("orders", n) for n in range(10)))
    world.run(2.0)
    assert all(request.max_bytes <= 30_000 for _, _, _, request in world.fetches)
    asked = len(world.fetches)
    assert len(world.drain(10.0)) == 200
    assert len(world.fetches) > asked


def test_a_paused_partition_keeps_what_was_fetched_and_holds_no_other_up() -> None:
    world = FetchScript(max_partition_fetch_bytes=2000, fetch_ahead_max_bytes=3000)
    world.log(partitions=2)
    first = [numbered(log, 60, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(("orders", 0), ("orders", 1))
    world.run(0.5)
    world.assignment.pause([ORDERS], True)
    assert world.drain() == first[1]
    before = world.asked
    world.assignment.pause([ORDERS], False)
    assert world.fetcher.take(3) != []
    assert world.asked == before
    assert len(world.drain()) == 57


def test_a_seek_drops_what_was_fetched_and_what_is_on_its_way() -> None:
    world = FetchScript(max_partition_fetch_bytes=200)
    numbered(world.log(), 50)
    world.assign(ORDERS)
    world.run(0.5)
    assert len(world.fetcher.take(3)) == 3
    world.assignment.seek(ORDERS, 40)
    assert world.fetcher.take(500) == []
    assert world.drain() == [b"%d" % number for number in range(40, 50)]
    world.assignment.seek(ORDERS, 20)
    world.run(0.003)  # asked, not answered
    world.assignment.seek(ORDERS, 45)
    assert world.drain() == [b"%d" % number for number in range(45, 50)]


def test_what_is_revoked_or_removed_is_not_given_out() -> None:
    world = FetchScript()
    numbered(world.log(), 50)
    world.assign(ORDERS)
    world.run(0.5)
    assert len(world.fetcher.take(3)) == 3
    world.assignment.set_revoking([ORDERS])
    assert world.fetcher.take(500) == []
    assert world.state().position == 3
    world.assignment.set_revoking([ORDERS], False)
    assert len(world.drain()) == 47
    world.assignment.seek(ORDERS, 0)
    world.run(0.5)
    world.assignment.remove([ORDERS])
    assert world.fetcher.take(500) == []
    assert not world.fetcher.has_ready


def test_drop_forgets_and_fetches_again() -> None:
    world = FetchScript()
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    world.run(0.5)
    assert world.fetcher.has_ready
    world.fetcher.drop([ORDERS])
    assert not world.fetcher.has_ready
    assert world.drain() == expected


def test_positions_pass_aborted_records_and_markers() -> None:
    world = FetchScript()
    log = world.log()
    built = LogBuilder().write(1, 3).abort(1).write(2, 2).commit(2)
    log.add(built.data, built.next_offset)
    log.aborted = [(1, 0)]
    world.assign(ORDERS)
    assert world.drain() == [b"4", b"5"]
    assert world.state().position == 7
    assert world.state().last_stable_offset == 7
    only = LogBuilder(7).write(1, 5).abort(1)
    log.add(only.data, 6)
    log.aborted = [(1, 7)]
    assert world.drain() == []
    assert world.state().position == 13


def test_arrow_batches_are_of_one_partition_each_and_never_empty() -> None:
    world = FetchScript(columns=("partition", "offset", "value"))
    world.log(partitions=2)
    expected = [numbered(log, 10, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(("orders", 0), ("orders", 1))
    world.run(0.5)
    found = [world.fetcher.take_arrow() for _ in range(2)]
    assert sorted(list(one.column("value")) for one in found) == expected
    assert all(len(set(one.column("partition"))) == 1 for one in found)
    nothing = world.fetcher.take_arrow()
    assert len(nothing) == 0 and nothing.columns == ("partition", "offset", "value")


# Replicas and leaders


def test_the_preferred_replica_is_read_from_and_left_when_it_fails() -> None:
    world = FetchScript(nodes=2, client_rack="b", metadata_max_age=20.0)
    log = world.log()
    numbered(log, 10)

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        if node == 1 and is_preferring:
            return error(partition, 0, preferred_read_replica=2, high_watermark=log.end)
        return world._read(1, partition, asked)

    is_preferring = True
    world.data_of = data_of
    world.assign(ORDERS)
    assert len(world.drain(1.0)) == 10
    assert [node for _, node, _, _ in world.fetches][:2] == [1, 2]
    assert {node for _, node, _, _ in world.fetches[1:]} == {2}
    assert world.fetches[0][3].rack_id == "b"
    is_preferring = False
    world.unreachable.add(2)
    numbered(log, 10, start=10)
    assert len(world.drain(5.0)) == 10
    assert world.fetches[-1][1] == 1
    is_preferring, world.unreachable = True, set()
    world.run(5.0)
    assert world.fetches[-1][1] == 2
    before = len(world.fetches)
    world.run(25.0)  # the preference ends, and the leader says it again
    assert 1 in {node for _, node, _, _ in world.fetches[before:]}


def test_a_follower_that_lacks_the_offset_sends_us_to_the_leader() -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    asked_leader = []

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        if node == 2:
            return error(partition, 1)
        asked_leader.append(asked)
        if len(asked_leader) == 1:
            return error(partition, 0, preferred_read_replica=2, high_watermark=log.end)
        return None

    world.data_of = data_of
    world.assign(ORDERS)
    assert len(world.drain(2.0)) == 10
    assert world.state().awaiting is None


@pytest.mark.parametrize("code", [6, 74])
def test_a_leader_named_in_the_answer_is_asked_at_once(code: int) -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    world.move_leader(log, 2)
    numbered(log, 10, start=10)
    world.metadata_error["orders"] = 5  # metadata is of no help

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        hint = FetchLeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        return error(partition, code, current_leader=hint) if node == 1 else None

    world.data_of = data_of
    world.edit = lambda message: message.node_endpoints.append(FetchNodeEndpoint(node_id=2, host="broker2", port=9092))
    assert len(world.drain(0.5)) == 10
    assert world.fetches[-1][1] == 2


def test_without_a_hint_metadata_finds_the_new_leader() -> None:
    world = FetchScript(nodes=2)
    log = world.log()
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    world.move_leader(log, 2)
    numbered(log, 10, start=10)
    assert len(world.drain(2.0)) == 10


def test_epochs_are_told_and_a_log_that_parts_from_what_was_read_is_validated() -> None:
    world = FetchScript()
    log = world.log()
    log.leader_epoch = 3
    numbered(log, 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    (asked,) = [part for _, _, _, request in world.fetches for topic in request.topics for part in topic.partitions][1:]
    assert (asked.current_leader_epoch, asked.last_fetched_epoch) == (3, 3)
    diverging = FetchEpochEndOffset(epoch=2, end_offset=7)
    world.data_of = lambda node, partition, asked: error(partition, 0, diverging_epoch=diverging, high_watermark=20)
    world.run(1.0)
    assert world.state().awaiting == VALIDATION
    assert world.state().position == 10


# Errors


@pytest.mark.parametrize("code", [3, 5, 6, 9, 13, 56, 74, 100, 103, -1, 7, 75, 78])
def test_errors_that_pass_are_waited_out(code: int) -> None:
    world = FetchScript()
    expected = numbered(world.log(), 10)
    told = []

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        told.append(world.now)
        return error(partition, code) if len(told) <= 4 else None

    world.data_of = data_of
    updates = world.cluster.updates
    world.assign(ORDERS)
    assert world.drain(3.0) == expected
    assert all(later - earlier >= 0.09 for earlier, later in pairwise(told[:5]))
    if code in (3, 5, 6, 9, 13, 56, 74, 100, 103):
        assert world.cluster.updates > updates + 1


def test_an_error_of_the_server_that_does_not_pass_is_raised_now_and_then() -> None:
    world = FetchScript(request_timeout=2.0)
    numbered(world.log(), 10)
    world.data_of = lambda node, partition, asked: error(partition, -1)
    world.assign(ORDERS)
    raised = 0
    for _ in range(100):
        world.run(0.1)
        try:
            assert world.fetcher.take(10) == []
        except BrokerError as failure:
            assert failure.code == -1 and failure.resource == ORDERS
            raised += 1
    assert 3 <= raised <= 5
    world.data_of = lambda *_: None
    assert len(world.drain(3.0)) == 10


@pytest.mark.parametrize("code", [29, 35, 76, 87, 1000])
def test_errors_that_nothing_cures_are_raised_and_reading_goes_on_where_they_end(code: int) -> None:
    world = FetchScript()
    numbered(world.log(), 10)
    world.data_of = lambda node, partition, asked: error(partition, code)
    world.assign(ORDERS)
    world.run(0.5)
    kind = AuthorizationError if code == 29 else BrokerError
    with pytest.raises(kind) as raised:
        world.fetcher.take(10)
    assert raised.value.code == code
    assert raised.value.resource == ("orders" if code == 29 else ORDERS)
    world.data_of = lambda *_: None
    world.run(0.5)
    found = 0
    for _ in range(3):
        try:
            found += len(world.fetcher.take(10))
        except kind:
            continue
    assert found == 10


@pytest.mark.parametrize("has_records", [False, True])
def test_an_offset_out_of_range_is_reset_once_the_records_before_it_are_taken(has_records: bool) -> None:
    world = FetchScript()
    log = world.log()
    if has_records:
        numbered(log, 10)
    world.assign(ORDERS)
    if has_records:
        world.data_of = lambda node, partition, asked: error(partition, 1) if asked.fetch_offset == 10 else None
        assert len(world.poll()) == 10
        world.run(0.5)
    else:
        world.data_of = lambda node, partition, asked: error(partition, 1)
        assert world.poll() == []
    state = world.state()
    assert (state.awaiting, state.reset_to) == (RESET, None)
    assert state.position == (10 if has_records else 0)


def test_a_broker_that_does_not_answer_is_tried_again_and_others_go_on() -> None:
    world = FetchScript(nodes=2)
    world.log(partitions=2)
    expected = [numbered(log, 10, start=100 * n) for n, log in enumerate(world.logs())]
    world.unreachable.add(1)
    world.assign(("orders", 0), ("orders", 1))
    assert world.drain(2.0) == expected[1]
    world.unreachable.clear()
    assert world.drain(5.0) == expected[0]


def test_a_refused_login_is_raised() -> None:
    world = FetchScript()
    numbered(world.log(), 10)
    world.call_errors = [AuthenticationError("the password is wrong")]
    world.assign(ORDERS)
    world.run(0.5)
    with pytest.raises(AuthenticationError, match="wrong"):
        world.fetcher.take(1)
    assert len(world.drain(2.0)) == 10


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_answer_above_max_response_bytes_is_an_error_of_the_partition_it_is_about(partitions: int) -> None:
    world = FetchScript()
    world.log(partitions=partitions)
    for n, log in enumerate(world.logs()):
        numbered(log, 10, start=100 * n)
    usual = world.start_call
    is_fixed = False

    def start_call(call: Any, done: Any) -> Any:
        if not is_fixed and call.kind.__name__ == "FetchRequest" and call.node > 0:
            wanted = call.request.build(18)
            if any(part.partition == 0 for topic in wanted.topics for part in topic.partitions):
                limit = LimitExceededError(
                    "a frame of 900 bytes, more than max_response_bytes=500",
                    limit="max_response_bytes",
                    value=500,
                    claimed=900,
                )
                failure = TransportError("broker 1: " + str(limit), possibly_sent=True)
                failure.__cause__ = limit
                world.scheduler.call_soon(lambda: done(None, failure))
                return lambda: None
        return usual(call, done)

    world.start_call = start_call  # type: ignore[method-assign]
    world.assign(*(("orders", n) for n in range(partitions)))
    found: list[Any] = []
    for _ in range(300):
        world.run(0.02)
        try:
            found += world.fetcher.take(100)
        except LimitExceededError as failure:
            raised = failure
    assert raised.limit == "max_response_bytes"
    assert raised.topic_partition == ORDERS and raised.next_offset == 1
    assert "orders-0" in str(raised) and "max_response_bytes=500" in str(raised)
    is_fixed = True
    world.assignment.seek(ORDERS, 0)
    for _ in range(100):
        world.run(0.02)
        found += world.fetcher.take(100)
    assert len(found) == 10 * partitions


def test_a_batch_above_max_partition_fetch_bytes_is_read() -> None:
    world = FetchScript(max_partition_fetch_bytes=100)
    log = world.log()
    log.append_values(b"x" * 5000).append_values(b"small")
    world.assign(ORDERS)
    assert [len(value or b"") for value in world.drain()] == [5000, 5]


def test_a_broker_that_cuts_the_first_batch_is_asked_for_more() -> None:
    world = FetchScript(max_partition_fetch_bytes=100)
    log = world.log()
    log.append_values(b"x" * 5000)

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData:
        data = world._read(node, partition, asked)
        data.records = bytes(data.records or b"")[: asked.partition_max_bytes]
        return data

    world.data_of = data_of
    world.assign(ORDERS)
    assert [len(value or b"") for value in world.drain()] == [5000]


def test_the_sessions_are_ended_at_the_end() -> None:
    world = FetchScript()
    numbered(world.log(), 10)
    world.assign(ORDERS)
    assert len(world.drain(0.5)) == 10
    world.task.cancel()
    world.run_flow(world.fetcher.close(1.0))
    last = world.fetches[-1][3]
    assert (last.session_epoch, last.session_id != 0) == (-1, True)
    assert not world.sessions


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_record_comes_once_and_in_order(seed: int) -> None:
    """Leaders move, brokers go and come back, answers are errors or cut; pauses; portions of any size."""
    rng = random.Random(seed)
    world = FetchScript(nodes=3, seed=seed, request_timeout=5.0, max_partition_fetch_bytes=rng.choice([200, 1000]))
    world.log(partitions=4)
    expected: dict[int | None, list[bytes]] = {n: [] for n in range(4)}
    found: dict[int | None, list[bytes | None]] = {n: [] for n in range(4)}
    trouble = 0.15

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData | None:
        if rng.random() < trouble:
            return error(partition, rng.choice([3, 5, 6, 9, 56, 74, 75, 78, -1, 100]))
        return None

    world.data_of = data_of
    world.assign(*(("orders", n) for n in range(4)))
    for step in range(400):
        kind = rng.random()
        number = rng.randrange(4)
        log = world.logs()[number]
        if step > 330:
            trouble = 0.0
            world.unreachable.clear()
            world.assignment.pause([TopicPartition("orders", n) for n in range(4)], False)
        elif kind < 0.5:
            expected[number] += numbered(log, rng.randint(1, 12), start=len(expected[number]))
        elif kind < 0.6:
            world.move_leader(log, rng.randint(1, 3))
        elif kind < 0.65:
            world.unreachable = {rng.randint(1, 3)} if rng.random() < 0.5 else set()
        elif kind < 0.7:
            world.cut(rng.randint(1, 3))
        elif kind < 0.75:
            world.refusals.append(rng.choice([70, 71]))
        elif kind < 0.85:
            world.assignment.pause([TopicPartition("orders", number)], rng.random() < 0.5)
        world.run(rng.choice([0.005, 0.05, 0.2]))
        for record in world.fetcher.take(rng.choice([1, 5, 500])):
            found[record.partition].append(record.value)
    for _ in range(200):
        world.run(0.05)
        for record in world.fetcher.take(500):
            found[record.partition].append(record.value)
    assert found == expected
