# SPDX-License-Identifier: Apache-2.0
"""Each test runs with the clients of confluent_kafka and with those of kcodec.compat.confluent, on one embedded broker:
positions after markers, topics that do not exist, late polls, partitions that the program adds, and transactions that
time out.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    admin,
)
from confluent_kafka import TopicPartition as Place

import kcodec.compat.confluent as facade
from kcodec.broker import Broker
from kcodec.client import Admin

SECONDS = 15.0
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(transaction_timeout_scan_ms=50, group_min_session_timeout_ms=100) as found:
        yield found


@pytest.fixture(params=[confluent_kafka, facade], ids=["confluent", "kcodec"])
def clients(request: pytest.FixtureRequest) -> Any:
    """The module with the classes Producer and Consumer."""
    return request.param


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


def make_consumer(clients: Any, broker: Broker, group: str, on_commit: Any = None, **settings: Any) -> Any:
    given: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    named = {name.replace("_", "."): value for name, value in settings.items()}
    given |= {"auto.offset.reset": "earliest", "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 300}
    return clients.Consumer({**given, **named}, **({} if on_commit is None else {"on_commit": on_commit}))


def make_producer(clients: Any, broker: Broker, **settings: Any) -> Any:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return clients.Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, **named})


def write_transactions(broker: Broker, topic: str, *are_committed: bool) -> None:
    """Write transactions of two records each to partition 0: with its marker, each takes three offsets."""
    producer = make_producer(facade, broker, transactional_id=topic)
    producer.init_transactions()
    for is_committed in are_committed:
        producer.begin_transaction()
        for number in range(2):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(SECONDS) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    producer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline


def next_message(consumer: Any) -> Any:
    message = consumer.poll(SECONDS)
    assert message is not None
    return message


def code_of(call: Callable[[], Any]) -> Any:
    """Return the name of the error of a call, and whether it is fatal, retriable, or requires an abort."""
    with pytest.raises(KafkaException) as raised:
        call()
    error = raised.value.args[0]
    return error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()


def test_a_position_passes_markers_in_a_later_poll(clients: Any, broker: Broker, topic: str) -> None:
    """Commits without arguments include the markers, so that the group has no lag."""
    write_transactions(broker, topic, True, False)
    place = Place(topic, 0)
    consumer = make_consumer(clients, broker, topic)
    consumer.assign([Place(topic, 0, 0)])
    assert [next_message(consumer).offset() for _ in range(2)] == [0, 1]

    def position() -> int:
        return int(consumer.position([place])[0].offset)

    assert position() == 2
    (committed,) = consumer.commit(asynchronous=False)
    assert committed.offset == 2
    wait_until(lambda: consumer.poll(0.1) is None and position() == 6)
    (committed,) = consumer.commit(asynchronous=False)
    assert committed.offset == 6
    assert code_of(lambda: consumer.commit(asynchronous=False))[0] == "_NO_OFFSET"
    consumer.seek(Place(topic, 0, 1))
    assert position() == OFFSET_INVALID
    assert (next_message(consumer).offset(), position()) == (1, 2)
    consumer.close()


def test_a_position_passes_markers_without_records(clients: Any, broker: Broker, topic: str) -> None:
    """As the recovery of a state store needs it, whose log ends with an aborted transaction."""
    write_transactions(broker, topic, True, False)
    with make_consumer(clients, broker, topic) as consumer:
        consumer.assign([Place(topic, 0, 2), Place(topic, 1, 0)])
        wait_until(lambda: consumer.poll(0.1) is None and consumer.position([Place(topic, 0)])[0].offset == 6)
        assert consumer.position([Place(topic, 1)])[0].offset == OFFSET_INVALID


def test_consume_moves_the_position_past_markers(clients: Any, broker: Broker, topic: str) -> None:
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic) as consumer:
        consumer.assign([Place(topic, 0, 0)])
        assert [one.offset() for one in consumer.consume(2, SECONDS)] == [0, 1]
        wait_until(lambda: not consumer.consume(2, 0.1) and consumer.position([Place(topic, 0)])[0].offset == 3)


def test_a_missing_topic_is_reported_once(clients: Any, broker: Broker, topic: str) -> None:
    missing = f"{topic}-missing"
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([missing, topic])
        found = [next_message(consumer) for _ in range(3)]
        failed = [one for one in found if one.error() is not None]
        assert [one.error().code() for one in failed] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
        assert (failed[0].topic(), failed[0].partition(), failed[0].offset()) == (missing, 0, None)
        assert failed[0].value() == failed[0].error().str().encode()
        assert consumer.poll(0.7) is None  # two requests for metadata later
        broker.create_topic(missing)
        write_transactions(broker, missing, True)
        wait_until(lambda: next_message(consumer).topic() == missing)


def test_a_pattern_without_a_topic_is_reported(clients: Any, broker: Broker, topic: str) -> None:
    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([f"^{topic}-none", topic])
        message = next_message(consumer)
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert message.topic() == f"^{topic}-none"
        assert consumer.poll(0.5) is None


def test_a_late_poll_is_reported_before_the_rebalance(clients: Any, broker: Broker, topic: str) -> None:
    write_transactions(broker, topic, True)
    calls: list[str] = []
    times = {"session_timeout_ms": 600, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 600}
    with make_consumer(clients, broker, topic, **times) as consumer:
        consumer.subscribe(
            [topic], on_assign=lambda *_: calls.append("assigned"), on_lost=lambda *_: calls.append("lost")
        )
        assert next_message(consumer).offset() == 0
        time.sleep(1.2)
        message = next_message(consumer)
        assert message.error().code() == KafkaError._MAX_POLL_EXCEEDED
        assert (message.topic(), message.partition(), message.offset(), calls) == (None, 0, None, ["assigned"])
        assert next_message(consumer).offset() == 0
        assert calls == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_forgotten_client_with_callbacks_is_collected(clients: Any, broker: Broker, topic: str, kind: str) -> None:
    """Callbacks of the configuration that lead back to the client do not keep it."""

    class Program:
        def __init__(self) -> None:
            settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "statistics.interval.ms": 100}
            settings |= {"error_cb": self.report, "stats_cb": self.report}
            if kind == "producer":
                self.client = clients.Producer({**settings, "on_delivery": self.report})
            else:
                self.client = clients.Consumer({**settings, "group.id": topic, "on_commit": self.report})
            self.calls = 0

        def report(self, *_: Any) -> None:
            self.calls += 1

    def begin() -> weakref.ref[Any]:
        program = Program()
        deadline = time.monotonic() + SECONDS
        while not program.calls:
            assert time.monotonic() < deadline
            program.client.poll(0.1)
        return weakref.ref(program)

    found, deadline = begin(), time.monotonic() + SECONDS
    while found() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert found() is None


def test_partitions_are_added_to_those_of_the_group(clients: Any, broker: Broker, topic: str) -> None:
    """The group does not know of them: a rebalance leaves them, and they are paused and committed as others."""
    other = broker.create_topic(partitions=2)
    write_transactions(broker, other, True)
    strategy = {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 200}
    added, assigned = Place(other, 0, 1), [Place(topic, 0), Place(topic, 1)]

    def places(consumer: Any) -> list[Any]:
        return sorted((one.topic, one.partition) for one in consumer.assignment())

    with make_consumer(clients, broker, topic, **strategy) as first:
        first.subscribe([topic])
        wait_until(lambda: first.poll(0.1) is None and len(places(first)) == 2)
        first.incremental_assign([added])
        assert code_of(lambda: first.incremental_assign([added]))[0] == "_CONFLICT"
        assert places(first) == sorted([(topic, 0), (topic, 1), (other, 0)])
        assert next_message(first).offset() == 1
        assert [one.offset for one in first.commit(asynchronous=False) if one.topic == other] == [2]
        with make_consumer(clients, broker, topic, **strategy) as second:
            second.subscribe([topic])
            wait_until(lambda: first.poll(0.1) is second.poll(0.1) is None and len(places(second)) == 1)
            assert len(places(first)) == 2
            assert (other, 0) in places(first)
            assert (other, 0) not in places(second)
        wait_until(lambda: first.poll(0.1) is None and len(places(first)) == 3)
        first.incremental_unassign([added])
        assert places(first) == sorted((one.topic, one.partition) for one in assigned)
        first.incremental_assign([added])
        first.unsubscribe()


def test_a_callback_adds_partitions_of_other_topics(clients: Any, broker: Broker, topic: str) -> None:
    other = broker.create_topic(partitions=2)
    write_transactions(broker, other, True)

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign([*partitions, Place(other, 0, 1)])

    with make_consumer(clients, broker, topic, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        message = next_message(consumer)
        assert (message.topic(), message.offset()) == (other, 1)
        assert len(consumer.assignment()) == 3


def test_incremental_assign_needs_incremental_rebalances(clients: Any, broker: Broker, topic: str) -> None:
    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
        assert code_of(lambda: consumer.incremental_assign([Place("another", 0)]))[0] == "_STATE"


def read_places(consumer: Any, count: int) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of `count` messages, sorted, and check that no other message follows."""
    found: list[tuple[str, int, int]] = []

    def has_read() -> bool:
        if (message := consumer.poll(0.1)) is not None:
            found.append((message.topic(), message.partition(), message.offset()))
        return len(found) >= count

    wait_until(has_read)
    assert consumer.poll(0.5) is None
    return sorted(found)


def assigned_places(consumer: Any) -> list[tuple[str, int, int]]:
    return sorted((one.topic, one.partition, one.offset) for one in consumer.assignment())


def test_a_member_assigns_other_partitions_at_any_time(clients: Any, broker: Broker, topic: str) -> None:
    """Until the next rebalance, which gives it those of the group from their committed offsets on."""
    other = broker.create_topic()
    with make_producer(clients, broker) as producer:
        for name, partition in ((topic, 0), (topic, 1), (other, 0)):
            for _ in range(3):
                producer.produce(name, b"v", partition=partition)
        assert producer.flush(SECONDS) == 0
    revoked: list[list[int]] = []
    with make_consumer(clients, broker, topic, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([topic], on_revoke=lambda _, places: revoked.append([one.partition for one in places]))
        assert len(read_places(consumer, 6)) == 6
        consumer.assign([Place(topic, 0, 1), Place(other, 0)])
        assert assigned_places(consumer) == sorted([(topic, 0, 1), (other, 0, OFFSET_STORED)])
        wanted = [(topic, 0, 1), (topic, 0, 2), *((other, 0, one) for one in range(3))]
        assert read_places(consumer, 5) == sorted(wanted)
        committed = consumer.commit(asynchronous=False)
        assert sorted((one.topic, one.offset) for one in committed) == sorted([(topic, 3), (other, 3)])
        consumer.unassign()
        assert (assigned_places(consumer), consumer.poll(0.3)) == ([], None)
        consumer.assign([Place(topic, 1, 2), Place(other, 0, 2)])
        assert read_places(consumer, 2) == sorted([(topic, 1, 2), (other, 0, 2)])
        with make_consumer(clients, broker, topic, heartbeat_interval_ms=200) as second:
            second.subscribe([topic])

            def have_joined() -> bool:
                is_idle = consumer.poll(0.1) is second.poll(0.1) is None
                places = [(name, offset) for name, _, offset in assigned_places(consumer)]
                return is_idle and len(second.assignment()) == 1 and places == [(topic, OFFSET_STORED)]

            wait_until(have_joined)
            assert revoked == [[0, 1]]


def test_on_assign_may_choose_other_partitions(clients: Any, broker: Broker, topic: str) -> None:
    other = broker.create_topic()
    write_transactions(broker, topic, True)
    write_transactions(broker, other, True)
    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic], on_assign=lambda one, _: one.assign([Place(topic, 0, 1), Place(other, 0, 0)]))
        assert read_places(consumer, 3) == sorted([(topic, 0, 1), (other, 0, 0), (other, 0, 1)])
        assert len(assigned_places(consumer)) == 2


def test_on_assign_may_add_some_of_the_assigned_partitions(clients: Any, broker: Broker, topic: str) -> None:
    """With the cooperative protocol, partitions that no call of the callback adds are not read."""
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic], on_assign=lambda one, _: one.incremental_assign([Place(topic, 0, 1)]))
        assert read_places(consumer, 1) == [(topic, 0, 1)]
        assert [place[1] for place in assigned_places(consumer)] == [0]

    def add_both(one: Any, _: Any) -> None:
        one.incremental_assign([Place(topic, 1)])
        one.incremental_assign([Place(topic, 0, 1)])

    with make_consumer(clients, broker, f"{topic}-2", partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic], on_assign=add_both)
        assert read_places(consumer, 1) == [(topic, 0, 1)]
        assert [place[1] for place in assigned_places(consumer)] == [0, 1]


@pytest.mark.parametrize("first", ["none", "another"])
def test_the_last_assignment_of_on_assign_counts(clients: Any, broker: Broker, topic: str, first: str) -> None:
    """After `unassign`, or `assign` of other partitions, all partitions can be assigned."""
    write_transactions(broker, topic, True)

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        if first == "none":
            consumer.unassign()
        else:
            consumer.assign([Place(topic, 1)])
        consumer.assign(partitions)

    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        assert read_places(consumer, 2) == [(topic, 0, 0), (topic, 0, 1)]
        assert [one[1] for one in assigned_places(consumer)] == [0, 1]


def test_a_second_assignment_keeps_no_offset_of_the_first(clients: Any, broker: Broker, topic: str) -> None:
    write_transactions(broker, topic, True)
    places = [Place(topic, 0), Place(topic, 1)]

    def assigned(consumer: Any, _: list[Any]) -> None:
        consumer.assign([Place(topic, 0, 1), Place(topic, 1)])
        consumer.assign(places)

    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        assert read_places(consumer, 2) == [(topic, 0, 0), (topic, 0, 1)]
        consumer.assign([Place(topic, 0, 1), Place(topic, 1)])
        consumer.assign(places)
        assert read_places(consumer, 2) == [(topic, 0, 0), (topic, 0, 1)]
        consumer.unsubscribe()
    with make_consumer(clients, broker, f"{topic}-manual") as consumer:
        consumer.assign([Place(topic, 0, 1)])
        consumer.assign([Place(topic, 0)])
        assert read_places(consumer, 2) == [(topic, 0, 0), (topic, 0, 1)]


def test_a_refused_assignment_in_on_assign_changes_nothing(clients: Any, broker: Broker, topic: str) -> None:
    other = broker.create_topic(partitions=1)
    write_transactions(broker, topic, True)
    codes: list[Any] = []

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        codes.append(code_of(lambda: consumer.incremental_assign([Place(topic, 0), Place(other, 0)]))[0])
        consumer.incremental_assign([Place(topic, 0, 1), Place(topic, 1)])

    with make_consumer(clients, broker, topic, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        consumer.incremental_assign([Place(other, 0)])
        assert read_places(consumer, 1) == [(topic, 0, 1)]
        assert codes == ["_CONFLICT"]
        assert [one[:2] for one in assigned_places(consumer)] == sorted([(topic, 0), (topic, 1), (other, 0)])


@pytest.mark.parametrize("kind", ["eager", "cooperative", "consumer"])
def test_close_accepts_any_assignment_in_on_revoke(clients: Any, broker: Broker, topic: str, kind: str) -> None:
    """The consumer gives its partitions up in any case."""
    calls: list[str] = []

    def revoked(consumer: Any, partitions: list[Any]) -> None:
        for call in (consumer.assign, consumer.incremental_assign, consumer.incremental_unassign):
            call(partitions)
        consumer.unassign()
        calls.append("revoked")

    settings: dict[str, Any] = {
        "eager": {},
        "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
        "consumer": {"group_protocol": "consumer"},
    }[kind]
    consumer = make_consumer(clients, broker, topic, **settings)
    consumer.subscribe([topic], on_revoke=revoked)
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    consumer.close()
    assert calls == ["revoked"]


def test_an_assignment_before_the_first_rebalance_is_replaced(clients: Any, broker: Broker, topic: str) -> None:
    other = broker.create_topic()
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic])
        consumer.assign([Place(topic, 0, 1), Place(other, 0)])
        assert assigned_places(consumer) == sorted([(topic, 0, 1), (other, 0, OFFSET_STORED)])
        wait_until(lambda: (consumer.poll(0.1), len(assigned_places(consumer)))[1] == 2 and not others(consumer, other))
        assert assigned_places(consumer) == [(topic, 0, OFFSET_STORED), (topic, 1, OFFSET_STORED)]


def others(consumer: Any, topic: str) -> list[Any]:
    return [one for one in consumer.assignment() if one.topic == topic]


def test_a_member_unassigns_partitions_of_its_group(clients: Any, broker: Broker, topic: str) -> None:
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic])
        assert read_places(consumer, 2) == [(topic, 0, 0), (topic, 0, 1)]
        consumer.incremental_unassign([Place(topic, 0)])
        assert [one[1] for one in assigned_places(consumer)] == [1]
        assert code_of(lambda: consumer.seek(Place(topic, 0, 0)))[0] == "_STATE"
        assert code_of(lambda: consumer.incremental_unassign([Place(topic, 0)]))[0] == "_INVALID_ARG"
        consumer.incremental_assign([Place(topic, 0, 1)])
        assert read_places(consumer, 1) == [(topic, 0, 1)]
        for call in (lambda: consumer.assign([Place(topic, 0)]), consumer.unassign):
            assert code_of(call)[0] == "_STATE"


def test_on_assign_may_seek_after_it_has_assigned(clients: Any, broker: Broker, topic: str) -> None:
    """As Quix Streams does. The call committed() gives librdkafka the time to begin, before which it refuses seek()."""
    write_transactions(broker, topic, True)

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.committed(partitions, SECONDS)
        wait_until(lambda: is_sought(consumer))

    def is_sought(consumer: Any) -> bool:
        try:
            consumer.seek(Place(topic, 0, 1))
        except KafkaException as error:
            assert clients is confluent_kafka and error.args[0].code() == KafkaError._STATE
            return False
        return True

    with make_consumer(clients, broker, topic) as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        assert next_message(consumer).offset() == 1


def test_metadata_of_offsets_is_read_as_it_was_committed(broker: Broker, topic: str) -> None:
    """Also by the other client, in both directions."""
    for writer, reader in itertools.product([confluent_kafka, facade], repeat=2):
        with make_consumer(writer, broker, topic) as first, make_consumer(reader, broker, topic) as second:
            for number, metadata in enumerate((None, "", "text", "\u20ac")):
                place = Place(topic, 0, number) if metadata is None else Place(topic, 0, number, metadata)
                first.commit(offsets=[place], asynchronous=False)
                (found,) = second.committed([Place(topic, 0)], SECONDS)
                assert (found.offset, found.metadata) == (number, metadata)


def test_a_partition_without_a_position_is_reported_once(clients: Any, broker: Broker) -> None:
    """The partitions that have a position are read."""
    topic = broker.create_topic(partitions=3)
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic, auto_offset_reset="error") as consumer:
        consumer.commit(offsets=[Place(topic, 0, 0)], asynchronous=False)
        consumer.subscribe([topic])
        found = [next_message(consumer) for _ in range(4)]
        assert sorted(one.partition() for one in found if one.error()) == [1, 2]
        assert {one.error().code() for one in found if one.error()} == {KafkaError._AUTO_OFFSET_RESET}
        assert [one.offset() for one in found if not one.error()] == [0, 1]
        assert consumer.poll(0.5) is None
        consumer.assign([Place(topic, 0, 1), Place(topic, 2, 7)])
        found = [next_message(consumer) for _ in range(2)]
        assert sorted(one.error().code() if one.error() else one.offset() for one in found) == [
            KafkaError._AUTO_OFFSET_RESET,
            1,
        ]
        assert consumer.poll(0.5) is None


def test_positions_and_looked_up_offsets_have_leader_epochs(clients: Any, broker: Broker, topic: str) -> None:
    write_transactions(broker, topic, True)

    def look_up(*times: int) -> list[tuple[int, int | None]]:
        found = consumer.offsets_for_times([Place(topic, 0, one) for one in times], SECONDS)
        return [(one.offset, one.leader_epoch) for one in found]

    with make_consumer(clients, broker, topic) as consumer:
        consumer.assign([Place(topic, 0, 0)])
        assert [next_message(consumer).offset() for _ in range(2)] == [0, 1]
        (position,) = consumer.position([Place(topic, 0)])
        assert (position.offset, position.leader_epoch) == (2, 0)
        assert look_up(0) == [(0, 0)]
        assert look_up(1 << 50) == [(OFFSET_END, None)]
        assert [look_up(one)[0][0] for one in (OFFSET_END, OFFSET_BEGINNING)] == [3, 0]
        assert code_of(lambda: consumer.offsets_for_times([], SECONDS))[0] == "_INVALID_ARG"
        missing = Place(topic, 9, 0)
        assert code_of(lambda: consumer.offsets_for_times([missing], SECONDS))[0] == "_UNKNOWN_PARTITION"
        assert code_of(lambda: consumer.get_watermark_offsets(missing, SECONDS))[0] == "_UNKNOWN_PARTITION"


def test_cached_watermarks_are_those_of_the_last_fetch(clients: Any, broker: Broker, topic: str) -> None:
    """The high watermark is among them, also of a consumer that reads up to the last stable offset."""
    write_transactions(broker, topic, True)
    with make_consumer(clients, broker, topic) as consumer:

        def cached(partition: int) -> tuple[int, int]:
            return tuple(consumer.get_watermark_offsets(Place(topic, partition), cached=True))

        assert cached(0) == cached(9) == (OFFSET_INVALID, OFFSET_INVALID)
        consumer.assign([Place(topic, 0, 0)])
        assert next_message(consumer).offset() == 0
        assert cached(0) == (0, 3)
        producer = make_producer(facade, broker, transactional_id=topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(SECONDS) == 0
        wait_until(lambda: (consumer.poll(0.1), cached(0))[1] == (0, 4))
        assert consumer.get_watermark_offsets(Place(topic, 0), SECONDS) == (0, 3)
        producer.abort_transaction()
        producer.close()


def test_a_lasting_error_of_the_group_is_returned_each_second(clients: Any, broker: Broker, topic: str) -> None:
    """A program that logs errors and continues does not run in a busy loop."""
    times = {"session_timeout_ms": 90, "heartbeat_interval_ms": 30}
    with make_consumer(clients, broker, topic, **times) as consumer:
        consumer.subscribe([topic])
        message = next_message(consumer)
        assert message.error().code() == KafkaError.INVALID_SESSION_TIMEOUT
        assert (message.topic(), message.partition(), message.offset()) == (None, 0, None)
        ended, count = time.monotonic() + 2.5, 0
        while time.monotonic() < ended:
            count += consumer.poll(0.1) is not None
        assert 1 <= count <= 15


def test_a_commit_without_offsets_names_the_partitions(clients: Any, broker: Broker, topic: str) -> None:
    reports: list[Any] = []
    consumer = make_consumer(clients, broker, topic, on_commit=lambda *given: reports.append(given))
    consumer.assign([Place(topic, 0), Place(topic, 1)])
    consumer.commit()
    wait_until(lambda: consumer.poll(0.1) is None and bool(reports))
    ((error, places),) = reports
    assert error.code() == KafkaError._NO_OFFSET
    assert [(one.partition, one.offset) for one in places] == [(0, OFFSET_INVALID), (1, OFFSET_INVALID)]
    with pytest.raises(TypeError, match="Message"):
        consumer.commit(message="text")
    consumer.close()
    for call in (consumer.cluster_id, consumer.list_topics, lambda: consumer.set_sasl_credentials("user", "password")):
        with pytest.raises(RuntimeError, match="Handle has been closed"):
            call()


@pytest.mark.parametrize("call", ["commit", "offsets"])
def test_a_transaction_that_timed_out_is_a_fatal_error(clients: Any, broker: Broker, topic: str, call: str) -> None:
    producer = make_producer(clients, broker, transactional_id=topic, transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(SECONDS) == 0
    with make_consumer(clients, broker, topic) as consumer:

        def has_ended() -> bool:
            time.sleep(0.05)
            return bool(consumer.get_watermark_offsets(Place(topic, 0), SECONDS)[1] == 2)

        wait_until(has_ended)
        fenced = ("_FENCED", True, False, False)
        if call == "commit":
            assert code_of(producer.commit_transaction) == fenced
        else:
            metadata = consumer.consumer_group_metadata()
            offsets = [Place(topic, 1, 7)]
            assert code_of(lambda: producer.send_offsets_to_transaction(offsets, metadata)) == fenced
    assert code_of(producer.begin_transaction) == fenced
    assert code_of(producer.abort_transaction) == fenced
    following = make_producer(clients, broker, transactional_id=topic)
    following.init_transactions()
    following.close()
    with contextlib.suppress(KafkaException):  # librdkafka reports the fatal error once more
        producer.close()


@pytest.mark.parametrize("client", [admin.AdminClient, facade.AdminClient], ids=["confluent", "kcodec"])
def test_an_admin_client_reports_failed_connections(client: Any) -> None:
    codes: list[int] = []
    settings = {"bootstrap.servers": "127.0.0.1:1", "error_cb": lambda error: codes.append(error.code())}
    found = client(settings)
    gc.collect()
    wait_until(lambda: (found.poll(0.1), codes.count(KafkaError._TRANSPORT))[1] >= 2)
    assert KafkaError._ALL_BROKERS_DOWN in codes


def test_statistics_that_become_due_in_a_poll_are_reported_by_it(clients: Any) -> None:
    """Also without a broker, where nothing else ends a step of the poll."""
    found: list[str] = []
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "statistics"}
    with clients.Consumer({**given, "statistics.interval.ms": 100, "stats_cb": found.append}) as consumer:
        consumer.subscribe(["topic"])
        consumer.poll(0.19)
        assert found


def test_a_client_that_was_not_created_is_closed(clients: Any) -> None:
    class ConsumerOfProgram(clients.Consumer):  # type: ignore[misc]
        def __init__(self) -> None:
            """Forget to create the consumer."""

    class ProducerOfProgram(clients.Producer):  # type: ignore[misc]
        def __init__(self) -> None:
            """Forget to create the producer."""

    consumer, producer, place = ConsumerOfProgram(), ProducerOfProgram(), Place("topic", 0, 0)
    calls: dict[str, tuple[Any, ...]] = dict.fromkeys(("unsubscribe", "poll", "consume", "unassign", "assignment"), ())
    calls |= {"subscribe": (["topic"],), "commit": (), "seek": (place,), "store_offsets": (None, [place])}
    calls |= dict.fromkeys(("assign", "committed", "position", "pause", "resume", "offsets_for_times"), ([place],))
    for name, arguments in calls.items():
        with pytest.raises(RuntimeError, match="Consumer closed"):
            getattr(consumer, name)(*arguments)
    consumer.close()
    calls = dict.fromkeys(("poll", "flush", "purge", "init_transactions", "begin_transaction"), ())
    calls |= dict.fromkeys(("commit_transaction", "abort_transaction"), ())
    calls |= {"produce": ("topic", b"value"), "produce_batch": ("topic", [{"value": b"value"}])}
    for name, arguments in calls.items():
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            getattr(producer, name)(*arguments)
    assert len(producer) == 0


def test_all_topics_are_listed_while_some_are_deleted(clients: Any, broker: Broker, topic: str) -> None:
    """The list has the topics of one moment, each with its partitions and without an error."""
    client, is_over = admin_client(clients, broker), threading.Event()

    def create_and_delete() -> None:
        with Admin(**broker.client_options()) as other:
            while not is_over.is_set():
                other.delete_topics([broker.create_topic(partitions=2)])

    changes = threading.Thread(target=create_and_delete)
    changes.start()
    try:
        begun, listed = time.monotonic(), [client.list_topics(timeout=SECONDS).topics for _ in range(20)]
        assert time.monotonic() - begun < SECONDS
    finally:
        is_over.set()
        changes.join()
    for topics in listed:
        assert topic in topics
        assert {name: one.error for name, one in topics.items() if one.error is not None or not one.partitions} == {}


def admin_client(clients: Any, broker: Broker) -> Any:
    """Return an AdminClient of one of the modules."""
    module = admin if clients is confluent_kafka else clients
    return module.AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def test_leaders_of_all_partitions_are_elected(broker: Broker, topic: str) -> None:
    """Also those of internal topics. librdkafka sends no partitions then, and the broker takes all."""
    with make_consumer(facade, broker, topic) as consumer:
        consumer.commit(offsets=[Place(topic, 0, 0)], asynchronous=False)
    client = admin_client(facade, broker)
    rules = [broker.faults.add("ElectLeaders", topic=one, error="TOPIC_AUTHORIZATION_FAILED") for one in INTERNAL]
    try:
        found = client.elect_leaders(confluent_kafka.ElectionType.PREFERRED, None).result(SECONDS)
    finally:
        for rule in rules:
            broker.faults.remove(rule)
    assert {(one.topic, one.partition) for one in found} >= {(INTERNAL[0], number) for number in range(50)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_id_of_a_member_is_known(clients: Any, broker: Broker, topic: str, protocol: str) -> None:
    """In the consumer protocol the client chooses it, and a program can log it before the member joins (KIP-1082)."""
    consumer = make_consumer(clients, broker, topic, group_protocol=protocol)
    before = consumer.memberid()
    assert before == consumer.memberid()
    assert (before is None) == (protocol == "classic")
    consumer.subscribe([topic])
    if protocol == "consumer":
        assert consumer.memberid() == before
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    assert isinstance(consumer.memberid(), str)
    assert protocol == "classic" or consumer.memberid() == before
    client = admin_client(clients, broker)
    (group,) = client.describe_consumer_groups([topic]).values()
    assert [member.member_id for member in group.result(SECONDS).members] == [consumer.memberid()]
    consumer.close()


def test_members_of_the_consumer_protocol_share_partitions(clients: Any, broker: Broker, topic: str) -> None:
    """Partitions are revoked and assigned one by one, and each record is read once. After each on_revoke of a member
    that stays in the group, on_assign is called, also without partitions."""
    begun: list[tuple[str, list[int]]] = []
    joined: list[tuple[str, list[int]]] = []

    def subscribe(seen: list[tuple[str, list[int]]]) -> Any:
        consumer = make_consumer(clients, broker, topic, group_protocol="consumer")
        consumer.subscribe([topic], **noted_calls(seen))
        return consumer

    first = subscribe(begun)
    wait_until(lambda: first.poll(0.1) is None and len(first.assignment()) == 2)
    second = subscribe(joined)
    wait_until(lambda: first.poll(0.1) is second.poll(0.1) is None and bool(joined) and len(begun) == 3)
    (kept,), (moved,) = ([one.partition for one in consumer.assignment()] for consumer in (first, second))
    assert begun == [("assign", [0, 1]), ("revoke", [moved]), ("assign", [])]
    assert joined == [("assign", [moved])]
    producer = make_producer(clients, broker)
    for partition in (0, 1):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(SECONDS) == 0
    assert [next_message(consumer).partition() for consumer in (first, second)] == [kept, moved]
    for consumer in (first, second):
        consumer.commit(asynchronous=False)
    second.close()
    assert joined[1:] == [("revoke", [moved])]
    wait_until(lambda: first.poll(0.1) is None and len(first.assignment()) == 2 and len(begun) == 4)
    assert first.poll(0.3) is None
    first.close()
    assert begun[3:] == [("assign", [moved]), ("revoke", [0, 1])]


@pytest.mark.parametrize("has_on_lost", [True, False])
def test_no_partitions_are_assigned_just_after_a_loss(
    clients: Any, broker: Broker, topic: str, has_on_lost: bool
) -> None:
    """In the consumer protocol, the first response to a member that joins may have no partitions."""
    seen: list[tuple[str, list[int]]] = []
    calls = noted_calls(seen)
    if not has_on_lost:
        del calls["on_lost"]
    with make_consumer(clients, broker, topic, group_protocol="consumer") as consumer:
        consumer.subscribe([topic], **calls)
        wait_until(lambda: consumer.poll(0.1) is None and bool(seen))
        rule = broker.faults.add("ConsumerGroupHeartbeat", error="UNKNOWN_MEMBER_ID", count=1)
        wait_until(lambda: (consumer.poll(0.1), len(seen))[1] == 3)
        broker.faults.remove(rule)
        assert consumer.poll(0.3) is None
    what = "lost" if has_on_lost else "revoke"
    assert seen == [("assign", [0, 1]), (what, [0, 1]), ("assign", [0, 1]), ("revoke", [0, 1])]


def noted_calls(seen: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """Return callbacks that note their partitions."""

    def noted(what: str) -> Callable[[Any, list[Any]], None]:
        return lambda _, partitions: seen.append((what, sorted(one.partition for one in partitions)))

    return {f"on_{what}": noted(what) for what in ("assign", "revoke", "lost")}


def test_callbacks_assign_incrementally_in_the_consumer_protocol(clients: Any, broker: Broker, topic: str) -> None:
    """`assign` and `unassign` are refused, as in the cooperative mode of the classic protocol."""
    found: list[Any] = []

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        found.append(code_of(lambda: consumer.assign(partitions))[0])
        consumer.incremental_assign([Place(one.topic, one.partition, 1) for one in partitions])

    def revoked(consumer: Any, partitions: list[Any]) -> None:
        found.append(code_of(consumer.unassign)[0])
        consumer.incremental_unassign(partitions)

    producer = make_producer(clients, broker)
    for number in range(2):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = make_consumer(clients, broker, topic, group_protocol="consumer")
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    assert next_message(consumer).offset() == 1
    consumer.unsubscribe()
    wait_until(lambda: consumer.poll(0.1) is None and len(found) == 2)
    consumer.close()
    assert found == ["_STATE", "_STATE"]


def test_subscriptions_without_valid_topics_are_refused(clients: Any, broker: Broker, topic: str) -> None:
    with contextlib.closing(make_consumer(clients, broker, topic)) as consumer:
        for topics in ([], ["^("], [topic, "^["]):
            assert code_of(partial(consumer.subscribe, topics))[0] == "_INVALID_ARG"


def test_an_invalid_pattern_is_named(broker: Broker, topic: str) -> None:
    with (
        contextlib.closing(make_consumer(facade, broker, topic)) as consumer,
        pytest.raises(KafkaException, match=r"'\^\(' is not a valid regular expression"),
    ):
        consumer.subscribe(["^("])


def test_arguments_of_a_wrong_type_raise_a_type_error(clients: Any, broker: Broker, topic: str) -> None:
    producer = make_producer(clients, broker)
    with contextlib.closing(make_consumer(clients, broker, topic)) as consumer:
        calls: dict[str, list[Callable[[], Any]]] = {
            "timeout": [
                lambda: consumer.poll("1"),
                lambda: consumer.consume(1, "1"),
                lambda: consumer.committed([Place(topic, 0)], "1"),
                lambda: producer.poll("1"),
                lambda: producer.flush("5"),
                lambda: producer.flush(None),
            ],
            "num_messages": [lambda: consumer.consume("1")],
            "partitions": [lambda: consumer.committed(None), lambda: consumer.assign(None)],
            "offsets": [lambda: consumer.commit(offsets=5)],
            "partition": [partial(producer.produce, topic, b"x", partition=value) for value in ("0", 1.0)],
            "timestamp": [partial(producer.produce, topic, b"x", timestamp=value) for value in ("now", 1.5)],
        }
        for name, group in calls.items():
            for call in group:
                with pytest.raises(TypeError, match=f"^{name} must be " if clients is facade else None):
                    call()
    assert producer.flush(SECONDS) == 0


def test_a_report_names_the_partition_that_was_given(clients: Any, broker: Broker, topic: str) -> None:
    """Also if the record fails before the producer knows the partitions, so that a callback can send it again."""
    reports: list[Any] = []

    def report(error: Any, message: Any) -> None:
        reports.append((error.name(), message.partition(), message.value()))

    producer = make_producer(clients, broker)
    producer.produce(topic, b"1", partition=7, callback=report)
    assert producer.flush(SECONDS) == 0
    nowhere = clients.Producer({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300, "linger.ms": 0})
    nowhere.produce(topic, b"2", partition=1, on_delivery=report)
    nowhere.produce(topic, b"3", on_delivery=report)
    assert nowhere.flush(SECONDS) == 0
    assert sorted(reports, key=lambda one: one[2]) == [
        ("_UNKNOWN_PARTITION", 7, b"1"),
        ("_MSG_TIMED_OUT", 1, b"2"),
        ("_MSG_TIMED_OUT", None, b"3"),
    ]


@pytest.mark.parametrize("client", [admin.AdminClient, facade.AdminClient], ids=["confluent", "kcodec"])
def test_a_group_that_does_not_exist_is_described_as_dead(client: Any, broker: Broker) -> None:
    found = client({"bootstrap.servers": broker.bootstrap_servers})
    groups = {name: future.result(SECONDS) for name, future in found.describe_consumer_groups(["none", "no"]).items()}
    assert groups.keys() == {"none", "no"}
    for name, group in groups.items():
        assert (group.group_id, group.state, group.members) == (name, confluent_kafka.ConsumerGroupState.DEAD, [])
        assert (group.is_simple_consumer_group, group.partition_assignor) == (True, "")
        assert group.type is confluent_kafka.ConsumerGroupType.CLASSIC


@pytest.mark.parametrize(("reset", "value"), [("earliest", b"0"), ("beginning", b"0"), ("latest", b"new")])
def test_a_seek_without_an_offset_uses_auto_offset_reset(
    clients: Any, broker: Broker, topic: str, reset: str, value: bytes
) -> None:
    """The transport of kombu passes the result of `committed`, whose offset may be OFFSET_INVALID."""
    producer = make_producer(clients, broker)
    for number in range(3):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = make_consumer(clients, broker, topic, auto_offset_reset=reset)
    consumer.assign([Place(topic, 0, 1)])
    assert next_message(consumer).value() == b"1"
    (committed,) = consumer.committed([Place(topic, 0)], SECONDS)
    assert committed.offset == OFFSET_INVALID
    consumer.seek(committed)
    if value == b"new":
        assert consumer.poll(1) is None
        producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS) == 0
    assert next_message(consumer).value() == value
    consumer.close()


def test_a_seek_without_an_offset_and_reset_is_an_error(broker: Broker, topic: str) -> None:
    """librdkafka reports the error in the next `poll`."""
    consumer = make_consumer(facade, broker, topic, auto_offset_reset="error")
    consumer.assign([Place(topic, 0, 0)])
    assert code_of(lambda: consumer.seek(Place(topic, 0, OFFSET_INVALID)))[0] == "_AUTO_OFFSET_RESET"
    consumer.close()
