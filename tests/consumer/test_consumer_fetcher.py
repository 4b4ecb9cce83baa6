# SPDX-License-Identifier: Apache-2.0
"""The fetcher on scripted brokers: sessions, fetching ahead, positions, and random histories.

Scenarios of Kafka's FetcherTest and FetchSessionHandlerTest. Errors: test_consumer_fetch_errors.py; damage:
test_consumer_corruption.py.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from fetch_script import FetchScript, error, numbered
from log_builder import LogBuilder
from unnarrowed import unnarrowed

from kcodec import TopicPartition
from kcodec.errors import TransportError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import FetchPartition, FetchPartitionData

ORDERS = TopicPartition("orders", 0)


def test_records_of_several_partitions_at_several_brokers_come_in_order() -> None:
    world = FetchScript(nodes=3)
    world.log(partitions=6)
    expected = {n: numbered(log, 20, start=100 * n) for n, log in enumerate(world.logs())}
    world.assign(*(("orders", n) for n in range(6)))
    found: dict[int | None, list[bytes | None]] = {n: [] for n in range(6)}
    until = world.now + 2
    while world.now < until:
        for record in world.fetcher.buffer.take(7):
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
    assert {reported for _, _, reported, _ in world.fetches} == {version}
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


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_session_that_the_broker_lost_is_begun_again_at_once(code: int) -> None:
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
    assert (full[0].session_id == 0) is (code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def test_what_is_known_of_a_partition_or_a_broker_ends_with_it() -> None:
    """A consumer of many topics, or in a cluster whose brokers are replaced, must not grow."""
    world = FetchScript(nodes=2)
    world.log(partitions=2)
    places = [TopicPartition("orders", number) for number in range(2)]
    world.assign(*places)
    world.run(0.5)
    fetcher = world.fetcher
    known: Any
    for known in (fetcher._responses.larger, fetcher._responses.without_epoch_at, fetcher._planner._requested_aside):
        known.update(dict.fromkeys(places, 7))
    assert fetcher._sessions.keys() == {1, 2}
    world.assignment.remove(places[1:])
    del world.cluster.brokers[2]
    world.run(0.5)
    assert fetcher._responses.larger.keys() | fetcher._responses.without_epoch_at.keys() <= {places[0]}
    assert fetcher._planner._requested_aside.keys() <= {places[0]}
    assert fetcher._sessions.keys() == {1}


def test_a_larger_request_ends_with_the_large_batches() -> None:
    """This broker cuts even the first batch, as brokers before KIP-74 did."""
    world = FetchScript(max_partition_fetch_bytes=1000)
    log = world.log()

    def data_of(node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData:
        data = world._read(node, partition, asked)
        data.records = bytes(data.records or b"")[: asked.partition_max_bytes]
        return data

    world.data_of = data_of
    log.append_values(b"x" * 5000)
    numbered(log, 5)
    world.assign(ORDERS)
    assert len(world.drain()) == 6
    numbered(log, 5, start=5)
    assert len(world.drain()) == 5
    numbered(log, 5, start=10)
    assert len(world.drain()) == 5
    asked = [topic for _, _, _, request in world.fetches for topic in request.topics]
    sizes = [one.partition_max_bytes for topic in asked for one in topic.partitions]
    assert max(sizes) > 5000 and sizes[-1] == 1000, sizes


def test_a_broker_without_sessions_is_asked_for_everything_each_time() -> None:
    world = FetchScript()
    world.has_sessions = False
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    assert world.drain(0.5) == expected
    assert {request.session_epoch for _, _, _, request in world.fetches} == {0}
    assert all(len(named) == 1 for named in world.asked)


def test_an_answer_with_a_partition_that_nothing_asked_for_is_not_used() -> None:
    world = FetchScript()
    expected = numbered(world.log(partitions=2), 10)
    edited: list[Any] = []

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


def test_a_topic_that_was_made_again_is_read_by_its_new_id() -> None:
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


def test_a_position_is_not_used_in_a_newer_topic_of_the_same_name() -> None:
    """The metadata can contain the newer topic before the partition is suspended."""
    world = FetchScript()
    world.log(partitions=2)
    world.assign(ORDERS)
    old = world.topics["orders"][0]
    world.state().topic_id = old
    world.log(partitions=2)
    numbered(world.logs()[0], 10)
    expected = numbered(world.logs()[1], 10)
    world.cluster.request_update("test")
    world.run(0.5)
    world.assignment.add([TopicPartition("orders", 1)])
    world.assignment.seek(TopicPartition("orders", 1), 0)
    world.state("orders", 1).topic_id = world.topics["orders"][0]
    assert world.drain(2.0) == expected and world.state().position == 0
    assert not world.state().error


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
    world.fetcher.buffer.take(500)
    world.run(0.05)
    assert len(world.fetches) > before
    assert all(len(request.forgotten_topics_data) == 0 for _, _, _, request in world.fetches)


@pytest.mark.parametrize("fetch_ahead_max_bytes", [20_000, 64 << 20])
def test_partitions_that_are_not_requested_hold_no_other_up(fetch_ahead_max_bytes: int) -> None:
    """Whether their responses are complete in number, or use the memory for responses. The scripted broker sends up to
    24 kB in one response, even if less is requested."""
    world = FetchScript(max_partition_fetch_bytes=2000, fetch_ahead_max_bytes=fetch_ahead_max_bytes)
    world.log(partitions=12)
    expected = [numbered(log, 100, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(*(("orders", n) for n in range(12)))
    world.run(1.0)
    found: list[Any] = []
    for number in (0, 11, 3):
        only = {TopicPartition("orders", number)}
        world.fetcher.choose(only)
        taken: list[Any] = []
        for _ in range(200):
            taken += [record.value for record in world.fetcher.buffer.take(500, only)]
            world.run(0.02)
            assert world.fetcher.buffer.waiting_bytes(is_aside=True) <= fetch_ahead_max_bytes // 2 + 25_000
        assert taken == expected[number]
        found += taken
    before = len(world.fetches)
    world.run(2.0)
    assert len(world.fetches) - before <= 25, "a broker that has nothing new delays its responses"
    world.fetcher.choose(None)
    found += world.drain(10.0)
    assert sorted(found) == sorted(one for some in expected for one in some)


def test_taking_records_of_many_partitions_does_not_look_at_all_of_them_each_time() -> None:
    """With a topic of 1,500 partitions, looking at each of them after each response took most of the time of poll."""
    world = FetchScript()
    world.log(partitions=300)
    for log in world.logs():
        numbered(log, 2)
    world.assign(*(("orders", n) for n in range(300)))
    world.run(1.0)
    looked_at: list[TopicPartition] = []
    of_cluster = world.cluster.partition

    def count(partition: TopicPartition) -> Any:
        looked_at.append(partition)
        return of_cluster(partition)

    world.cluster.partition = count  # type: ignore[method-assign]
    taken = 0
    while records := world.fetcher.buffer.take(2):
        taken += len(records)
        world.run(0.0)
    assert taken == 600
    assert len(looked_at) <= 300


def test_a_seek_is_not_forgotten_while_another_extra_request_is_under_way() -> None:
    world = FetchScript(fetch_max_wait=5.0, request_timeout=20.0)
    world.log(partitions=2)
    expected = [numbered(log, 50, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(("orders", 0), ("orders", 1))
    assert set(world.drain(1.0)) == {*expected[0], *expected[1]}
    world.assignment.seek(ORDERS, 45)
    world.run(0.0005)
    world.assignment.seek(TopicPartition("orders", 1), 47)
    assert world.poll(seconds=0.1) == expected[0][45:] + expected[1][47:]


@pytest.mark.parametrize("failure", ["partition", "response", "connection"])
def test_an_extra_request_that_fails_is_repeated_after_a_backoff(failure: str) -> None:
    world = FetchScript(fetch_max_wait=30.0, request_timeout=90.0)
    world.log(partitions=2)
    expected = [numbered(log, 50, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(("orders", 0), ("orders", 1))
    assert set(world.drain(1.0)) == {*expected[0], *expected[1]}
    sent = len(world.fetches)
    if failure == "partition":
        errors = iter([error(ORDERS, ErrorCode.KAFKA_STORAGE_ERROR)])
        world.data_of = lambda node, partition, asked: next(errors, None) if asked.fetch_offset == 45 else None
    elif failure == "response":
        world.refusals = [ErrorCode.KAFKA_STORAGE_ERROR]
    else:
        world.call_errors = [TransportError("the connection was closed")]
    world.assignment.seek(ORDERS, 45)
    assert world.poll(seconds=2.0) == expected[0][45:]
    assert len(world.fetches) - sent <= 3


def test_an_extra_request_to_the_former_leader_is_repeated_to_the_new_one() -> None:
    world = FetchScript(nodes=2, fetch_max_wait=30.0, request_timeout=90.0)
    world.log(partitions=2)
    expected = [numbered(log, 50, start=100 * n) for n, log in enumerate(world.logs())]
    world.assign(("orders", 0), ("orders", 1))
    assert set(world.drain(1.0)) == {*expected[0], *expected[1]}
    world.assignment.seek(ORDERS, 49)
    assert world.poll(seconds=1.0) == expected[0][49:]  # offset 50 was requested as well, where there is nothing yet
    world.logs()[0].leader = 2
    world.logs()[0].leader_epoch += 1
    added = numbered(world.logs()[0], 5, start=50)
    world.cluster.request_update("test")
    assert world.poll(seconds=2.0) == added


def test_an_extra_request_that_had_no_space_is_sent_once_there_is_space() -> None:
    world = FetchScript(
        nodes=2, fetch_max_wait=5.0, request_timeout=20.0, fetch_ahead_max_bytes=400_000, fetch_max_bytes=100_000
    )
    world.log(partitions=3)  # the first and the third are at node 1, whose request waits for records
    world.logs()[1].append_values(b"v" * 250_000)
    numbered(world.logs()[2], 5)
    first, _, third = (TopicPartition("orders", n) for n in range(3))
    world.assign(first, ("orders", 1), offset=0)
    world.run(0.5)
    assert world.fetcher.buffer.waiting_bytes() > 200_000
    world.assignment.add([third])
    world.assignment.seek(third, 0)
    world.run(0.5)
    assert third not in {name for asked in world.asked for name in asked}
    assert len(world.fetcher.buffer.take(500)) == 1
    world.run(0.1)
    assert len(world.fetcher.buffer.take(500)) == 5


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
    assert world.fetcher.buffer.take(3) != []
    assert world.asked == before
    assert len(world.drain()) == 57


def test_a_seek_drops_what_was_fetched_and_what_is_on_its_way() -> None:
    world = FetchScript(max_partition_fetch_bytes=200)
    numbered(world.log(), 50)
    world.assign(ORDERS)
    world.run(0.5)
    assert len(world.fetcher.buffer.take(3)) == 3
    world.assignment.seek(ORDERS, 40)
    assert world.fetcher.buffer.take(500) == []
    assert world.drain() == [b"%d" % number for number in range(40, 50)]
    world.assignment.seek(ORDERS, 20)
    world.run(0.003)  # asked, not answered
    world.assignment.seek(ORDERS, 45)
    assert world.drain() == [b"%d" % number for number in range(45, 50)]


def test_a_seek_need_not_wait_for_a_request_that_is_held() -> None:
    world = FetchScript(fetch_max_wait=5.0, request_timeout=20.0)
    world.log(partitions=2)
    expected = numbered(world.log(partitions=2), 50)
    world.assign(ORDERS)
    assert world.drain(1.0) == expected
    world.run(1.0)
    world.assignment.seek(ORDERS, 45)
    assert world.poll(seconds=0.02) == expected[45:]
    assert [request.session_epoch for _, _, _, request in world.fetches][-1] == -1
    numbered(world.logs()[1], 5)
    world.assignment.add([TopicPartition("orders", 1)])
    world.assignment.seek(TopicPartition("orders", 1), 0)
    assert len(world.poll(seconds=0.02)) == 5
    asked = len(world.fetches)
    world.assignment.seek(TopicPartition("orders", 1), 5)  # nothing there: asked once, then by the next whole request
    world.run(1.0)
    assert len(world.fetches) == asked + 1


def test_no_broker_takes_all_the_room() -> None:
    world = FetchScript(nodes=3, fetch_max_wait=1.0, fetch_ahead_max_bytes=3_000_000)
    world.log(partitions=3)
    world.assign(*(("orders", n) for n in range(3)))
    world.run(0.05)
    assert {node for _, node, _, _ in world.fetches} == {1, 2, 3}
    world.run(5.0)
    for log in world.logs():
        numbered(log, 5)
    assert len(world.drain(0.1)) == 15


def test_what_is_revoked_or_removed_is_not_given_out() -> None:
    world = FetchScript()
    numbered(world.log(), 50)
    world.assign(ORDERS)
    world.run(0.5)
    assert len(world.fetcher.buffer.take(3)) == 3
    world.assignment.set_revoking([ORDERS])
    assert world.fetcher.buffer.take(500) == []
    assert world.state().position == 3
    world.state().is_revoking = False
    world.assignment.poke()
    assert len(world.drain()) == 47
    world.assignment.seek(ORDERS, 0)
    world.run(0.5)
    world.assignment.remove([ORDERS])
    assert world.fetcher.buffer.take(500) == []
    assert not world.fetcher.buffer.has_ready


def test_drop_forgets_and_fetches_again() -> None:
    world = FetchScript()
    expected = numbered(world.log(), 10)
    world.assign(ORDERS)
    world.run(0.5)
    assert unnarrowed(world.fetcher.buffer.has_ready)
    world.fetcher.drop([ORDERS])
    assert not world.fetcher.buffer.has_ready
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
    found = [world.fetcher.buffer.take_arrow() for _ in range(2)]
    assert sorted(list(one.column("value")) for one in found) == expected
    assert all(len(set(one.column("partition"))) == 1 for one in found)
    nothing = world.fetcher.buffer.take_arrow()
    assert len(nothing) == 0 and nothing.columns == ("partition", "offset", "value")


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
        for record in world.fetcher.buffer.take(rng.choice([1, 5, 500])):
            found[record.partition].append(record.value)
    for _ in range(200):
        world.run(0.05)
        for record in world.fetcher.buffer.take(500):
            found[record.partition].append(record.value)
    assert found == expected
