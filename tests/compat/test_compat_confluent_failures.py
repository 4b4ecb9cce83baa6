# SPDX-License-Identifier: Apache-2.0
"""Programs that fail with the clients of kcodec.compat.confluent: callbacks that raise, Ctrl-C, forgotten clients."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import signal
import threading
import time
import weakref
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException
from interrupted_calls import interrupted

from kcodec.broker import Broker
from kcodec.compat._confluent_events import Events
from kcodec.compat.confluent import AdminClient, Consumer, Producer
from kcodec.offsets import TopicPartition

SECONDS = 15.0


def make_consumer(servers: str, topic: str, **callbacks: Any) -> Any:
    settings = {"bootstrap.servers": servers, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
    return Consumer({**settings, **callbacks})


def fill(servers: str, topic: str, count: int) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(count):
            producer.produce(topic, b"%d" % number)


def offsets(messages: list[Any]) -> list[int]:
    return [one.offset() for one in messages]


def wait_until_in_flight(producer: Any) -> None:
    end = time.monotonic() + SECONDS
    while not producer._kcodec.has_in_flight:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_abort_reports_the_error_of_a_record_that_a_broker_rejects(kcodec_broker: Broker) -> None:
    """The record is in flight when the abort begins. It was reported as purged, as was every record meanwhile."""
    topic = kcodec_broker.create_topic(partitions=1)
    settings = {"bootstrap.servers": kcodec_broker.bootstrap_servers, "transactional.id": topic}
    reports: dict[bytes, int] = {}
    with Producer({**settings, "batch.size": 1}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        kcodec_broker.faults.add("Produce", topic=topic, delay_ms=500, error="MESSAGE_TOO_LARGE")
        for value in (b"in flight", b"buffered"):
            producer.produce(topic, value, callback=lambda error, one: reports.update({one.value(): error.code()}))
            wait_until_in_flight(producer)
        producer.abort_transaction()
        assert reports == {b"in flight": KafkaError.MSG_SIZE_TOO_LARGE, b"buffered": KafkaError._PURGE_QUEUE}
        kcodec_broker.faults.clear()
        producer.begin_transaction()
        producer.produce(topic, b"later")
        producer.commit_transaction()


def test_a_purge_reports_whether_each_record_was_in_flight(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    reports: dict[bytes, int] = {}
    kcodec_broker.faults.add("Produce", topic=topic, delay_ms=1000)
    with Producer({"bootstrap.servers": kcodec_broker.bootstrap_servers, "batch.size": 1}) as producer:
        for value in (b"in flight", b"buffered"):
            producer.produce(topic, value, callback=lambda error, one: reports.update({one.value(): error.code()}))
            wait_until_in_flight(producer)
        producer.purge()
        producer.poll(0)
        assert reports == {b"in flight": KafkaError._PURGE_INFLIGHT, b"buffered": KafkaError._PURGE_QUEUE}


@pytest.mark.parametrize("end", ["close", "with"])
def test_close_calls_each_callback_and_raises_the_first_error(
    servers: str, topic: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def report(_: Any, message: Any) -> None:
        called.append(message.offset())
        raise ValueError(f"callback {len(called)}")

    producer = Producer({"bootstrap.servers": servers})
    for _ in range(3):
        producer.produce(topic, b"v", callback=report)
    with pytest.raises(ValueError, match="callback 1"):
        if end == "close":
            producer.close()
        else:
            producer.__exit__(None, None, None)
    assert called == [0, 1, 2]
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["callback 2", "callback 3"]
    assert producer.close() is True
    for call in (lambda: producer.produce(topic, b"v"), lambda: producer.poll(0), lambda: producer.flush(0)):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


@pytest.mark.parametrize("facade", [True, False])
def test_close_sends_the_records_of_callbacks(servers: str, topic: str, facade: bool) -> None:
    """As confluent-kafka: a callback may send a reply, or the record again."""
    called: list[int] = []

    def send_another(error: Any, message: Any) -> None:
        assert error is None
        called.append(message.offset())
        if len(called) < 3:
            producer.produce(topic, b"v", callback=send_another)

    with (Producer if facade else confluent_kafka.Producer)({"bootstrap.servers": servers}) as producer:
        producer.produce(topic, b"v", callback=send_another)
    assert called == [0, 1, 2]


def test_close_refuses_the_records_of_other_threads(servers: str, topic: str) -> None:
    """Otherwise it would not end while they produce. Each record that was accepted is reported."""
    accepted, reported = itertools.count(), itertools.count()
    producer = Producer({"bootstrap.servers": servers})

    def program() -> None:
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            while True:
                try:
                    producer.produce(topic, b"v", callback=lambda error, message: next(reported))
                    next(accepted)
                except BufferError:
                    time.sleep(0.01)

    thread = threading.Thread(target=program)
    thread.start()
    time.sleep(0.05)
    producer.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert next(accepted) == next(reported) > 0


def test_flush_keeps_callbacks_for_later_calls(servers: str, topic: str) -> None:
    called: list[int] = []

    def report(_: Any, message: Any) -> None:
        called.append(message.offset())
        if len(called) == 1:
            raise ValueError("of the program")

    with Producer({"bootstrap.servers": servers}) as producer:
        for _ in range(3):
            producer.produce(topic, b"v", callback=report)
        with pytest.raises(ValueError, match="of the program"):
            producer.flush(SECONDS)
        assert producer.flush(SECONDS) == 0
    assert called == [0, 1, 2]


def test_an_unrelated_error_of_produce_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a signal handler, while `produce` waits."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"})
    error = ValueError("of the program")

    def interrupted(*_: Any) -> None:
        raise error

    monkeypatch.setattr(producer._kcodec, "send", interrupted)
    with pytest.raises(ValueError, match="of the program") as raised:
        producer.produce("topic", "not bytes")
    assert raised.value is error
    with pytest.raises(KafkaException, match="at most 32767 bytes"):
        producer.produce("x" * 40_000, b"v")
    monkeypatch.undo()
    producer.close()


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_an_error_of_a_rebalance_callback_is_raised_unchanged(servers: str, topic: str, end: str) -> None:
    fill(servers, topic, 1)
    error = ValueError("of the program")

    def fail(*_: Any) -> None:
        raise error

    consumer = make_consumer(servers, topic)
    consumer.subscribe([topic], on_revoke=fail)
    assert offsets([consumer.poll(SECONDS)]) == [0]
    with pytest.raises(ValueError, match="of the program") as raised:
        getattr(consumer, end)()
    assert raised.value is error
    if end == "unsubscribe":
        assert consumer.poll(0) is None
        consumer.subscribe([topic])  # without the callback
        consumer.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


@pytest.mark.parametrize("end", ["close", "unsubscribe", "poll"])
def test_close_in_a_rebalance_callback_ends_the_consumer_after_it(servers: str, topic: str, end: str) -> None:
    """The group waits for the callback, so a close in it waited for itself, until a time limit. With librdkafka, it
    never returns. poll: the callback runs as another member joins, which then gets the partitions."""
    fill(servers, topic, 1)
    calls: list[float] = []

    def on_revoke(consumer: Any, _: Any) -> None:
        begun = time.monotonic()
        consumer.close()
        calls.append(time.monotonic() - begun)

    consumer = make_consumer(servers, topic, **{"heartbeat.interval.ms": 200})
    consumer.subscribe([topic], on_revoke=on_revoke)
    assert offsets([consumer.poll(SECONDS)]) == [0]
    if end == "poll":
        with make_consumer(servers, topic) as second:
            second.subscribe([topic])
            deadline = time.monotonic() + SECONDS
            while not calls:
                assert consumer.poll(0.1) is None and time.monotonic() < deadline
                second.poll(0.1)
            while len(second.assignment()) < 1:
                assert time.monotonic() < deadline
                second.poll(0.1)
    else:
        getattr(consumer, end)()
    assert len(calls) == 1 and calls[0] < 1
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


def test_close_calls_on_commit_of_each_commit(servers: str, topic: str) -> None:
    fill(servers, topic, 1)
    calls: list[Any] = []

    def committed(error: Any, places: list[Any]) -> None:
        calls.append(places)
        raise KeyError(len(calls))

    others = set(threading.enumerate())
    consumer = make_consumer(servers, topic, on_commit=committed, **{"enable.auto.commit": False})
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS)
    for _ in range(2):
        consumer.commit(message)
    with pytest.raises(KeyError):
        consumer.close()
    consumer.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)
    assert {one for one in threading.enumerate() if one.name == "kcodec-client"} <= others


def test_an_interrupted_consume_loses_no_message(servers: str, topic: str) -> None:
    """The next call returns its messages again, and a commit does not include them."""
    fill(servers, topic, 8)
    consumer = make_consumer(servers, topic, **{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert offsets(consumer.consume(3, SECONDS)) == [0, 1, 2]
    timer = threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        consumer.consume(100, SECONDS)
    timer.join()
    (committed,) = consumer.commit(asynchronous=False)
    assert committed.offset == 3
    assert offsets(consumer.consume(5, SECONDS)) == [3, 4, 5, 6, 7]
    consumer.close()


def test_a_callback_that_fails_in_consume_loses_no_message(servers: str, topic: str) -> None:
    """Also not for the next member: automatic commits do not include messages that were not returned."""
    fill(servers, topic, 5)
    calls = itertools.count(1)

    def statistics(_: str) -> None:
        if next(calls) == 3:
            raise ValueError("of the program")

    consumer = make_consumer(servers, topic, stats_cb=statistics, **{"statistics.interval.ms": 200})
    consumer.subscribe([topic])
    with pytest.raises(ValueError, match="of the program"):
        consumer.consume(100, SECONDS)
    consumer.close()
    with make_consumer(servers, topic) as second:
        second.subscribe([topic])
        assert offsets(second.consume(5, SECONDS)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("callback", ["function", "method"])
def test_a_forgotten_producer_is_collected(servers: str, topic: str, callback: str) -> None:
    """Also with reports that no call of poll() has taken, whose callback leads back to the producer."""

    class Program:
        def __init__(self) -> None:
            self.producer = Producer({"bootstrap.servers": servers})

        def report(self, error: Any, message: Any) -> None:
            raise AssertionError("nothing polls")

    def begin() -> weakref.ref[Any]:
        program = Program()
        function = program.report if callback == "method" else lambda error, message: None
        program.producer.produce(topic, b"v", callback=function)
        while program.producer._events.is_empty:
            time.sleep(0.01)
        return weakref.ref(program.producer)

    found = begin()
    deadline = time.monotonic() + SECONDS
    while found() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert found() is None


@pytest.mark.parametrize("callback", ["none", "method"])
def test_a_forgotten_consumer_leaves_its_group(servers: str, topic: str, callback: str) -> None:
    """The next member need not wait until the session of the first one ends."""
    fill(servers, topic, 1)

    class Program:
        def __init__(self) -> None:
            self.consumer = make_consumer(servers, topic, **{"enable.auto.commit": False})
            callbacks = {} if callback == "none" else {"on_assign": self.report, "on_revoke": self.report}
            self.consumer.subscribe([topic], **callbacks)
            assert offsets([self.consumer.poll(SECONDS)]) == [0]

        def report(self, consumer: Any, partitions: Any) -> None:
            assert consumer is self.consumer

    found = weakref.ref(Program().consumer)
    gc.collect()
    assert found() is None
    with make_consumer(servers, topic) as second:
        second.subscribe([topic])
        assert offsets([second.poll(SECONDS)]) == [0]


def test_produce_after_close_inside_of_an_argument_is_refused(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"v")
    producer.flush(SECONDS)

    class Closing(dict[str, bytes]):
        def items(self) -> Any:
            producer.close()
            return [("name", b"value")]

    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(topic, b"v", headers=Closing(name=b"value"))


def test_a_wrong_value_names_the_argument(servers: str, topic: str) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for name in ("value", "key"):
            wrong: dict[str, Any] = {name: 1}
            with pytest.raises(TypeError, match=f"^{name} must be bytes, str or None, not int"):
                producer.produce(topic, **wrong)
        assert len(producer) == 0


def test_a_mistyped_setting_is_named_as_it_is_written(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for wrong, meant in (
        ("bootstrap.server", "bootstrap.servers"),
        ("compresion.type", "compression.type"),
        ("queue.buffering.max.mesages", "queue.buffering.max.messages"),
    ):
        with pytest.raises(KafkaException) as raised:
            Producer({"bootstrap.servers": servers, wrong: "1"})
        assert f"did you mean '{meant}'?" in raised.value.args[0].str()


def test_an_error_of_one_record_names_no_row(servers: str, topic: str) -> None:
    """Also if the topic is not known yet, so that the record waits for its partition."""
    with Producer({"bootstrap.servers": servers}) as producer:
        for _ in range(2):
            with pytest.raises(KafkaException) as raised:
                producer.produce(topic, b"v", timestamp=-5)
            assert raised.value.args[0].str().startswith("timestamp -5 is below -1")
            producer.produce(topic, b"v")
            assert producer.flush(SECONDS) == 0


@pytest.mark.parametrize("facade", [True, False])
def test_a_record_for_an_unknown_partition_has_its_code(servers: str, topic: str, facade: bool) -> None:
    """Also if the topic is not known yet, so that the callback gets the error."""
    reports: list[Any] = []
    producer = (Producer if facade else confluent_kafka.Producer)({"bootstrap.servers": servers})
    producer.produce(topic, b"v", partition=99, callback=lambda error, message: reports.append((error, message)))
    assert producer.flush(SECONDS) == 0
    ((error, message),) = reports
    assert error.code() == message.error().code() == KafkaError._UNKNOWN_PARTITION
    assert message.latency() > 0


@pytest.mark.parametrize("facade", [True, False])
def test_the_state_unknown_selects_no_group(servers: str, topic: str, facade: bool) -> None:
    fill(servers, topic, 1)
    with make_consumer(servers, topic) as consumer:
        consumer.subscribe([topic])
        assert consumer.poll(SECONDS) is not None
    client: Any = (AdminClient if facade else confluent_kafka.admin.AdminClient)({"bootstrap.servers": servers})
    unknown, empty = ConsumerGroupState.UNKNOWN, ConsumerGroupState.EMPTY
    for states, expected in (({unknown}, False), ({empty}, True), ({unknown, empty}, True)):
        listed = client.list_consumer_groups(states=states).result(SECONDS).valid
        assert (f"g-{topic}" in {one.group_id for one in listed}) is expected
    with pytest.raises(ValueError, match="UNKNOWN type is not allowed"):
        client.list_consumer_groups(types={ConsumerGroupType.UNKNOWN})


def test_an_interrupted_wait_for_events_does_not_stop_the_thread_that_adds_them() -> None:
    for at in itertools.count():
        events = Events()
        waiting = events._waiting
        is_interrupted = interrupted(functools.partial(waiting.wait, 0.001), at)
        thread = threading.Thread(target=events.add, args=(int,), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"at {at}"
        assert waiting.serve_within(1.0, lambda: None) == 1
        if not is_interrupted:
            break
    assert at > 3


def test_an_event_wakes_all_threads_that_wait() -> None:
    events = Events()
    began = time.monotonic()
    threads = [threading.Thread(target=events._waiting.wait, args=(30.0,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    while len(events._waiting._locks) < len(threads):
        assert time.monotonic() - began < 10
        time.sleep(0.001)
    events.add(int)
    for thread in threads:
        thread.join(10)
    assert time.monotonic() - began < 10 and not events._waiting._locks


def test_refused_logins_are_retried_and_reported_to_error_cb() -> None:
    """As librdkafka does, from the first login on, until message.timeout.ms."""
    reported: list[Any] = []
    delivered: list[Any] = []
    with Broker(sasl_mechanisms=["PLAIN"], users={"alice": "new", "kcodec": "x"}) as broker:
        broker.create_topic("orders", partitions=1)  # otherwise the consumer may report that it does not exist
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "old",
            "error_cb": reported.append,
        }
        producer = Producer(settings)
        consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        producer.produce("orders", b"x", on_delivery=lambda error, message: delivered.append(error))
        end = time.monotonic() + SECONDS
        while [one.code() for one in reported].count(KafkaError._AUTHENTICATION) < 2:
            assert time.monotonic() < end
            producer.poll(0.05)
            message = consumer.poll(0.05)
            assert message is None
        assert not delivered
        producer.set_sasl_credentials("alice", "new")
        consumer.set_sasl_credentials("alice", "new")
        assert producer.flush(SECONDS) == 0 and delivered == [None]
        read: list[Any] = []
        while not read:
            assert time.monotonic() < end
            read += consumer.consume(1, 0.1)
        assert read[0].error() is None and read[0].value() == b"x"
        consumer.close()
        producer.close()


def test_a_record_of_a_refused_producer_times_out() -> None:
    reports: list[Any] = []
    with Broker(sasl_mechanisms=["PLAIN"], users={"alice": "new", "kcodec": "x"}) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "old",
            "message.timeout.ms": 1500,
        }
        with Producer(settings) as producer:
            producer.produce("orders", b"x", on_delivery=lambda error, message: reports.append(error))
            assert producer.flush(SECONDS) == 0
    (error,) = reports
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert "Invalid username or password" in error.str()


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_partition_that_is_revoked_within_pause_or_resume_is_ignored(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A rebalance in the background may revoke the partition after the look at the assignment."""
    topic = kcodec_broker.create_topic(partitions=1)
    place, assigned = TopicPartition(topic, 0), [frozenset({TopicPartition(topic, 0)})]
    consumer = make_consumer(kcodec_broker.bootstrap_servers, topic)
    monkeypatch.setattr(consumer._open(), "assignment", lambda: assigned.pop() if assigned else frozenset())
    call = getattr(consumer, name)
    call([confluent_kafka.TopicPartition(topic, 0)])
    assert not assigned  # it was tried, and is not assigned
    assigned += [frozenset({place})] * 2
    with pytest.raises(ValueError, match="is not assigned"):
        call([confluent_kafka.TopicPartition(topic, 0)])
    consumer.close()
