# SPDX-License-Identifier: Apache-2.0
"""kcodec.compat.confluent against confluent_kafka: the same programs with both on a real broker return the same values,
errors and callbacks, in the same order. Where the facade differs, docs/compat-confluent.md says so.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as Place
from confluent_kafka.serialization import StringDeserializer, StringSerializer

import kcodec.compat.confluent as facade
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic
from kcodec.client.properties import DOTTED_IN_LIBRDKAFKA, librdkafka_names
from kcodec.compat import _confluent_messages
from kcodec.compat._confluent_options import (
    ACCEPTED,
    DEFAULT_FETCH_WAIT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    Settings,
    settings_of,
)
from kcodec.consumer.options import ConsumerConfig
from kcodec.network.options import ClientConfig
from kcodec.testing.kafka import ApacheKafka

NOWHERE = "127.0.0.1:1"
admin: Any = confluent_kafka.admin
SECONDS = 15.0


class Kit(NamedTuple):
    """The classes of one of the two, and the address of the broker."""

    producer: Any
    consumer: Any
    admin: Any
    serializing: Any
    deserializing: Any
    servers: str

    def make_producer(self, **settings: Any) -> Any:
        return self.producer({"bootstrap.servers": self.servers, "linger.ms": 5, **_dotted(settings)})

    def make_consumer(self, group: str, **settings: Any) -> Any:
        given = {"bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest"}
        return self.consumer({**given, "enable.auto.commit": False, **_dotted(settings)})

    def fill(self, topic: str, count: int = 3) -> None:
        producer = self.make_producer()
        for number in range(count):
            producer.produce(topic, f"v{number}", key="k", partition=0)
        assert producer.flush(SECONDS) == 0
        producer.close()


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    callbacks = {"on_commit", "error_cb", "stats_cb", "on_delivery", "log_level"}
    return {name if name in callbacks else name.replace("_", "."): value for name, value in settings.items()}


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of its error and its code; texts differ."""
    try:
        return call()
    except KafkaException as error:
        return error_of(error.args[0])
    except (RuntimeError, TypeError, ValueError, BufferError) as error:
        return type(error).__name__


def error_of(error: Any) -> Any:
    return None if error is None else (error.name(), error.code(), error.fatal())


def places(found: list[Any]) -> list[Any]:
    return sorted((one.partition, one.offset) for one in found)


def message_of(message: Any) -> Any:
    kind, stamp = message.timestamp()
    if message.error() is not None:
        return message.partition(), message.offset(), error_of(message.error()), type(message.value())
    return (
        *(message.partition(), message.offset(), message.key(), message.value(), message.headers()),
        *(kind, stamp if stamp < 1_700_000_000_001 else "now"),
        *(message.leader_epoch(), len(message)),
    )


def read(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            found.append(message_of(message))
    return found


# The programs. Each gets a new topic with two partitions, and returns what is compared.


def reports_deliveries(kit: Kit, topic: str) -> Any:
    reports: list[Any] = []

    def report(error: Any, message: Any) -> None:
        at = message.offset(), message.partition(), message.key(), message.value(), message.headers()
        reports.append((error_of(error), *at, message.timestamp()[0], message.latency() >= 0))

    producer = kit.make_producer()
    for number in range(3):
        producer.produce(topic, f"v{number}", key=b"k", partition=0, headers={"h": "x"}, callback=report)
    producer.produce(topic, partition=1, timestamp=1_700_000_000_000, headers=[("a", None)], on_delivery=report)
    before = len(producer), bool(producer), list(reports)
    left = producer.flush(SECONDS)
    reports.sort(key=repr)
    batch = [{"value": b"1", "key": "a"}, {"value": "2"}]
    counted = producer.produce_batch(topic, batch, partition=1), producer.flush(SECONDS), len(producer)
    return before, left, reports, counted, producer.close(), len(producer), outcome(lambda: producer.produce(topic))


def raises_the_error_of_a_callback(kit: Kit, topic: str) -> Any:
    def fail(error: Any, message: Any) -> None:
        raise ValueError("callback")

    producer = kit.make_producer()
    producer.produce(topic, b"v", callback=fail)
    found = outcome(lambda: producer.flush(SECONDS))
    return found, producer.flush(SECONDS), producer.close()


def refuses_records(kit: Kit, topic: str) -> Any:
    producer = kit.make_producer(linger_ms=5000, queue_buffering_max_messages=2)
    producer.list_topics(topic, 10)
    found = [
        outcome(lambda: producer.produce(topic, 5)),
        outcome(lambda: producer.produce(None)),
        outcome(lambda: producer.produce(topic, headers=[("a", 5)])),
        outcome(lambda: producer.produce(topic, b"x" * 2_000_000)),
        outcome(producer.begin_transaction),
    ]
    for _ in range(3):
        found.append(outcome(lambda: producer.produce(topic, b"v", partition=0)))
    return found, len(producer), producer.flush(SECONDS), outcome(lambda: producer.produce(topic, b"v", partition=9))


def reads_with_a_group(kit: Kit, topic: str) -> Any:
    kit.fill(topic)
    seen: list[Any] = []
    consumer = kit.make_consumer(topic, enable_partition_eof=True)

    def assigned(given: Any, partitions: list[Any]) -> None:
        seen.append(("assigned", given is consumer, places(partitions)))

    def revoked(given: Any, partitions: list[Any]) -> None:
        seen.append(("revoked", given is consumer, places(partitions)))

    empty = consumer.memberid(), consumer.assignment(), consumer.poll(0), consumer.consume(2, 0)
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    records = sorted(read(consumer, 5), key=repr)  # three records and two ends
    both = [Place(topic, 0), Place(topic, 1)]
    state = [
        places(consumer.position(both)),
        outcome(lambda: places(consumer.commit(asynchronous=False))),
        outcome(lambda: consumer.commit(asynchronous=False)),
        places(consumer.committed(both)),
        consumer.get_watermark_offsets(both[0]),
        places(consumer.offsets_for_times([Place(topic, 0, 0), Place(topic, 1, 1_900_000_000_000)])),
        places(consumer.assignment()),
        isinstance(consumer.memberid(), str),
    ]
    consumer.pause(both)
    consumer.seek(Place(topic, 0, 1))
    paused = consumer.poll(0.3)
    consumer.resume(both[:1])  # the other one could report its end again
    again = read(consumer, 2)
    consumer.close()
    ended = consumer.close(), outcome(lambda: consumer.poll(0)), outcome(consumer.assignment)
    return empty, records, state, paused, again, ended, seen


def reads_assigned_partitions(kit: Kit, topic: str) -> Any:
    kit.fill(topic, 4)
    consumer = kit.make_consumer(topic)
    found = [outcome(lambda: consumer.incremental_unassign([Place(topic, 0)])), outcome(lambda: consumer.assign(["x"]))]
    consumer.assign([Place(topic, 0, 2)])
    found += [places(consumer.assignment()), places(consumer.position([Place(topic, 0)])), read(consumer, 2)]
    consumer.assign([Place(topic, 0, OFFSET_BEGINNING)])
    found += [[message_of(one) for one in consumer.consume(3, 5)], outcome(lambda: consumer.consume(-1))]
    consumer.incremental_assign([Place(topic, 1, OFFSET_END)])
    consumer.incremental_unassign([Place(topic, 0)])
    found += [[one.partition for one in consumer.assignment()], consumer.poll(0.3)]
    consumer.unassign()
    found += [consumer.assignment(), consumer.poll(0), outcome(lambda: consumer.seek(Place(topic, 0, 1)))]
    consumer.close()
    return found


def sets_offsets_in_on_assign(kit: Kit, topic: str) -> Any:
    kit.fill(topic)

    def assigned(consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            one.offset = 2 if one.partition == 0 else OFFSET_END
        consumer.assign(partitions)

    with kit.make_consumer(topic) as consumer:
        consumer.subscribe([f"^{topic[:-1]}"], on_assign=assigned)
        return read(consumer, 1), places(consumer.assignment())


def commits_stored_offsets(kit: Kit, topic: str) -> Any:
    kit.fill(topic)
    commits: list[Any] = []

    def committed(error: Any, partitions: list[Any]) -> None:
        commits.append((error_of(error), places(partitions)))

    consumer = kit.make_consumer(topic, enable_auto_offset_store=False, on_commit=committed)
    consumer.assign([Place(topic, 0)])
    message = consumer.poll(SECONDS)
    found = [
        outcome(lambda: consumer.commit(asynchronous=False)),
        outcome(consumer.store_offsets),
        outcome(lambda: consumer.store_offsets(offsets=[Place(topic, 1, 5)])),
        outcome(lambda: consumer.store_offsets(message)),
        outcome(lambda: places(consumer.commit(asynchronous=False))),
        outcome(lambda: consumer.commit(offsets=[Place(topic, 0, 2, metadata="note")])),
        outcome(lambda: consumer.commit(message=message, offsets=[])),
    ]
    deadline = time.monotonic() + SECONDS
    while not commits and time.monotonic() < deadline:
        consumer.poll(0.1)
    found.append([(one.offset, one.metadata) for one in consumer.committed([Place(topic, 0)])])
    consumer.close()
    with kit.make_consumer("other") as storing:
        found.append(outcome(lambda: storing.store_offsets(offsets=[Place(topic, 0, 1)])))
    return found, sorted(commits, key=repr)


def writes_transactions(kit: Kit, topic: str) -> Any:
    reports: list[Any] = []
    producer = kit.make_producer(transactional_id=topic)

    def produce(value: bytes) -> Any:
        report = lambda error, message: reports.append((error_of(error), message.offset(), message.value()))  # noqa: E731
        return outcome(lambda: producer.produce(topic, value, partition=0, callback=report))

    with kit.make_consumer(topic) as consumer:
        consumer.assign([Place(topic, 0)])
        found = [outcome(producer.begin_transaction), outcome(producer.init_transactions)]
        found += [outcome(producer.begin_transaction), produce(b"1"), produce(b"2")]
        metadata = consumer.consumer_group_metadata()
        found.append(outcome(lambda: producer.send_offsets_to_transaction([Place(topic, 1, 7)], metadata)))
        found += [outcome(producer.commit_transaction), len(producer), list(reports)]
        found += [outcome(producer.begin_transaction), produce(b"aborted"), outcome(producer.abort_transaction)]
        found += [reports[2:], outcome(producer.commit_transaction)]
        found += [outcome(producer.begin_transaction), produce(b"3"), outcome(producer.commit_transaction)]
        found += [[one[3] for one in read(consumer, 3)], places(consumer.committed([Place(topic, 1)]))]
    fencing = kit.make_producer(transactional_id=topic)
    fencing.init_transactions()
    found += [outcome(producer.begin_transaction), produce(b"fenced"), outcome(producer.commit_transaction)]
    fencing.close()
    return found


def administers(kit: Kit, topic: str) -> Any:
    kit.fill(topic)
    client = kit.admin({"bootstrap.servers": kit.servers})

    def results(futures: dict[Any, Any]) -> list[Any]:
        return [outcome(future.result) for future in futures.values()]

    with kit.make_consumer(topic) as consumer:
        consumer.commit(offsets=[Place(topic, 0, 2)], asynchronous=False)
    group = ConsumerGroupTopicPartitions(topic)
    resource = admin.ConfigResource("topic", topic)
    change = admin.ConfigEntry("retention.ms", "86400000", incremental_operation=admin.AlterConfigOpType.SET)
    changed = admin.ConfigResource("topic", topic, incremental_configs=[change])
    spec, ends = admin.OffsetSpec, Place(topic, 0)
    found: list[Any] = [
        results(client.create_topics([admin.NewTopic(topic, 1, 1), admin.NewTopic(f"{topic}-2", 1, 1)]))
    ]
    found.append(
        results(client.create_partitions([admin.NewPartitions(topic, 3), admin.NewPartitions("no-such-topic", 3)]))
    )
    found.append(results(client.incremental_alter_configs([changed])))
    deadline, settings = time.monotonic() + SECONDS, None
    while settings is None or settings["retention.ms"].value == "-1":  # until the broker has learned of the change
        assert time.monotonic() < deadline
        (settings,) = results(client.describe_configs([resource]))
    found.append([(settings[name].value, settings[name].source) for name in ("retention.ms", "cleanup.policy")])
    (described,) = results(client.describe_consumer_groups([topic]))
    found.append((described.state, described.type, described.is_simple_consumer_group, described.members))
    (listed,) = (one for one in client.list_consumer_groups().result().valid if one.group_id == topic)
    found.append((listed.state, listed.type, listed.is_simple_consumer_group))
    found.append([places(one.topic_partitions) for one in results(client.list_consumer_group_offsets([group]))])
    offsets = client.list_offsets({ends: spec.latest(), Place(topic, 1): spec.earliest()})
    found.append([one.offset for one in results(offsets)])
    found.append([one.low_watermark for one in results(client.delete_records([Place(topic, 0, 1)]))])
    metadata = client.list_topics(topic, 10)
    one = metadata.topics[topic]
    found.append((sorted(one.partitions), one.partitions[0].leader, one.partitions[0].isrs, one.error))
    found.append(list(metadata.brokers))
    (topics,) = results(client.describe_topics(confluent_kafka.TopicCollection([topic])))
    found.append([(one.id, one.leader.id, [node.id for node in one.isr]) for one in topics.partitions])
    found.append((str(topics.topic_id) != "", len(client.describe_cluster().result().nodes)))
    found.append(results(client.delete_consumer_groups([topic, "no-such-group"])))
    found.append(results(client.delete_topics([f"{topic}-2", "no-such-topic"])))
    return found


def serializes(kit: Kit, topic: str) -> Any:
    reports: list[Any] = []
    both = {"key.serializer": StringSerializer(), "value.serializer": StringSerializer()}
    producer = kit.serializing({"bootstrap.servers": kit.servers, **both})
    producer.produce(topic, "kö", "v", on_delivery=lambda error, message: reports.append((error, message.offset())))
    left = producer.flush(SECONDS)
    given = {"bootstrap.servers": kit.servers, "group.id": topic, "auto.offset.reset": "earliest"}
    with kit.deserializing({**given, "value.deserializer": StringDeserializer()}) as consumer:
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        return left, reports, message.key(), message.value(), producer.close()


PROGRAMS: list[Callable[[Kit, str], Any]] = [
    *(reports_deliveries, raises_the_error_of_a_callback, refuses_records, reads_with_a_group),
    *(reads_assigned_partitions, sets_offsets_in_on_assign, commits_stored_offsets, writes_transactions),
    *(administers, serializes),
]


def original(servers: str) -> Kit:
    package = confluent_kafka
    deserializing = package.DeserializingConsumer
    return Kit(
        package.Producer, package.Consumer, admin.AdminClient, package.SerializingProducer, deserializing, servers
    )


def ours(servers: str) -> Kit:
    of = facade
    return Kit(of.Producer, of.Consumer, of.AdminClient, of.SerializingProducer, of.DeserializingConsumer, servers)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_returns_the_same(program: Callable[[Kit, str], Any], apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    expected = program(original(servers), apache_kafka.create_topic(partitions=2))
    assert program(ours(servers), apache_kafka.create_topic(partitions=2)) == expected


# Without a broker


@pytest.fixture(params=[original, ours], ids=["confluent", "kcodec"])
def unreachable(request: pytest.FixtureRequest) -> Kit:
    found: Kit = request.param(NOWHERE)
    return found


def test_invalid_configurations_raise_the_same(unreachable: Kit) -> None:
    kit = unreachable
    invalid = ("_INVALID_ARG", -186, False)
    assert outcome(lambda: kit.consumer({})) == "ValueError"
    assert outcome(lambda: kit.consumer()) == "TypeError"
    assert outcome(lambda: kit.make_consumer("g", foo_bar=1)) == invalid
    assert outcome(lambda: kit.make_producer(message_timeout_ms="soon")) == invalid
    assert outcome(lambda: kit.make_producer(acks="seven")) == invalid
    with kit.make_consumer("g") as consumer:
        assert outcome(lambda: consumer.subscribe("topic")) == "TypeError"
        assert outcome(lambda: consumer.subscribe(["topic"], on_assign=3)) == "TypeError"
    with pytest.raises(KafkaException, match=r"foo\.bar"):
        kit.producer({"bootstrap.servers": NOWHERE}, **{"foo.bar": 1})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"auto.offset.reset": "erliest"}, "auto.offset.reset must be one of earliest"),
        ({"session.timeout.ms": -5}, "session.timeout.ms must be a number of at least 1, not -5"),
        ({"auto.offset.reset": "session_timeout_ms"}, "not 'session_timeout_ms'"),
        ({"auto.offset.reset": "it's linger_ms"}, 'not "it\'s linger_ms"'),
        ({"partitioner": "murmur"}, '"partitioner": murmur'),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"},
            "sasl.username is missing; sasl.mechanisms=",
        ),
    ],
)
def test_errors_have_the_names_of_the_settings(settings: dict[str, Any], text: str) -> None:
    """They had the names of kcodec's options, which the program does not contain."""
    with pytest.raises(KafkaException) as caught:
        ours(NOWHERE).consumer({"bootstrap.servers": NOWHERE, "group.id": "g", **settings})
    assert text in caught.value.args[0].str()
    with pytest.raises(KafkaException, match=r"message\.timeout\.ms must be a number of at least 1, not -3"):
        ours(NOWHERE).producer({"bootstrap.servers": NOWHERE, "message.timeout.ms": -3})


def test_errors_prefer_the_names_that_programs_use() -> None:
    """librdkafka has two names for some options. Errors had names such as queue.buffering.max.ms."""
    text = "the broker's linger_ms, the clients' bootstrap_servers, sasl_plain_username of 'linger_ms', retry"
    assert Settings().with_names(text) == (
        "the broker's linger.ms, the clients' bootstrap.servers, sasl.username of 'linger_ms', retry"
    )
    values = {"bootstrap_servers": NOWHERE, "compression_type": "lz4", "sasl_mechanism": "PLAIN"}
    for option in sorted(DOTTED_IN_LIBRDKAFKA):
        name = librdkafka_names()[option]
        assert name == option.replace("_", ".")
        confluent_kafka.Producer({name: values.get(option, 1), "log_level": 0})  # which refuses unknown names


def test_a_name_that_no_topic_can_have_is_refused(unreachable: Kit) -> None:
    producer = unreachable.make_producer()
    assert outcome(lambda: producer.produce("x" * 40_000, b"v")) == ("_INVALID_ARG", -186, False)


def test_no_bootstrap_servers_never_connects(unreachable: Kit) -> None:
    reports: list[Any] = []
    producer = unreachable.producer({"default.topic.config": {"message.timeout.ms": 50}})
    producer.produce("topic", "value", on_delivery=lambda error, message: reports.append(error))
    assert producer.flush(10) == 0
    assert [error.code() for error in reports] == [KafkaError._MSG_TIMED_OUT]
    assert "Message timed out" in reports[0].str()
    with pytest.raises(TypeError):
        producer.produce("topic", "value", headers=["malformed"])
    with pytest.raises(TypeError, match="Message value at index 0 must be bytes or str"):
        producer.produce_batch("topic", [{"value": 1}])
    with unreachable.consumer({"group.id": "group"}) as consumer:
        consumer.subscribe(["topic"])
        assert consumer.poll(0.01) is None
        consumer.commit(message=confluent_kafka.Message(topic="topic", partition=0))


def test_purge_reports_each_record(unreachable: Kit) -> None:
    reports: list[Any] = []
    producer = unreachable.make_producer()
    for _ in range(2):
        producer.produce("topic", b"v", on_delivery=lambda error, message: reports.append(error.code()))
    assert producer.flush(0.05) == 2
    producer.purge()
    producer.flush(1)
    assert (reports, len(producer)) == ([KafkaError._PURGE_QUEUE] * 2, 0)
    producer.close()


def test_records_time_out_with_the_same_error(unreachable: Kit) -> None:
    reports: list[Any] = []
    producer = unreachable.make_producer(message_timeout_ms=300)
    producer.produce("topic", b"v", on_delivery=lambda error, message: reports.append(error_of(error)))
    assert producer.flush(SECONDS) == 0
    assert reports == [("_MSG_TIMED_OUT", -192, False)]
    producer.close()


def test_error_and_statistics_callbacks_run_in_poll(unreachable: Kit) -> None:
    errors: list[Any] = []
    statistics: list[Any] = []
    settings = {"error_cb": errors.append, "stats_cb": statistics.append, "statistics_interval_ms": 200}
    consumer = unreachable.make_consumer("group", **settings)
    consumer.assign([Place("topic", 0)])
    time.sleep(0.5)
    assert not errors
    assert not statistics
    deadline = time.monotonic() + SECONDS
    while not (errors and statistics) and time.monotonic() < deadline:
        consumer.poll(0.1)
    consumer.close()
    assert errors[0].code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    assert {"name", "client_id", "type", "ts", "time", "msg_cnt", "topics"} <= json.loads(statistics[0]).keys()
    assert json.loads(statistics[0])["type"] == "consumer"


def test_the_page_lists_the_settings_without_effect() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat-confluent.md").read_text(encoding="utf-8")
    (line,) = (one for one in page.splitlines() if one.startswith("`api.version.fallback.ms`"))
    assert line == ", ".join(f"`{name}`" for name in sorted(ACCEPTED))
    kit = ours(NOWHERE)
    kit.make_producer(**dict.fromkeys(sorted(ACCEPTED), 1)).close()
    with pytest.raises(KafkaException, match=r"offset\.store\.method must be 'broker'"):
        kit.make_producer(offset_store_method="file")


def test_the_interval_of_metadata_requests_is_set() -> None:
    name = "topic.metadata.refresh.interval.ms"
    assert settings_of("consumer", ({name: 3000},), {}).options["metadata_max_age_ms"] == 3000
    assert "metadata_max_age_ms" not in settings_of("consumer", ({name: -1},), {}).options


@pytest.mark.parametrize(
    ("first", "second", "option"),
    [
        ("request.timeout.ms", "socket.timeout.ms", "request_timeout_ms"),
        ("metadata.max.age.ms", "topic.metadata.refresh.interval.ms", "metadata_max_age_ms"),
    ],
)
def test_two_settings_with_one_option_have_an_order(
    first: str, second: str, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka has two settings. Their order in the dictionary has no effect."""
    for config in ({first: 5000, second: 60000}, {second: 60000, first: 5000}):
        caplog.clear()
        assert settings_of("producer", (config,), {}).options[option] == 60000
        assert f"{first} has no effect, as kcodec has one option for it and for {second}" in caplog.text
    assert settings_of("producer", ({first: 5000},), {}).options[option] == 5000


def test_the_timeout_of_a_fetch_includes_its_wait(caplog: pytest.LogCaptureFixture) -> None:
    """As in librdkafka, which also logs a warning."""
    config = {"socket.timeout.ms": 1000, "fetch.wait.max.ms": 5000}
    assert settings_of("consumer", (config,), {}).options["request_timeout_ms"] == 6000
    assert "socket.timeout.ms (1000) should be greater than fetch.wait.max.ms (5000)" in caplog.text
    defaults = ConsumerConfig.fetch_max_wait_ms, ClientConfig.request_timeout_ms
    assert defaults == (DEFAULT_FETCH_WAIT_MS, DEFAULT_REQUEST_TIMEOUT_MS)


@pytest.mark.parametrize(("codec", "level"), [("snappy", 0), ("lz4", 0), ("snappy", -1), ("lz4", -1), ("gzip", -1)])
def test_the_default_levels_of_librdkafka_are_accepted(codec: str, level: int) -> None:
    options = settings_of("producer", ({"compression.type": codec, "compression.level": level},), {}).options
    assert options.get("compression_level") is None


# Messages and reports of the compiled core


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def test_a_message_is_one_of_confluent_kafka(embedded: str) -> None:
    kit = ours(embedded)
    producer = kit.make_producer()
    producer.produce("messages", "v", key="k", headers=[("a", "1"), ("a", None)], timestamp=1_700_000_000_000)
    producer.produce("messages", None)
    assert producer.flush(SECONDS) == 0
    with kit.make_consumer("messages") as consumer:
        consumer.assign([Place("messages", 0)])
        message, empty = consumer.consume(2, SECONDS)
    assert isinstance(message, confluent_kafka.Message)
    expected = confluent_kafka.Message(
        topic="messages",
        partition=0,
        offset=0,
        key=b"k",
        value=b"v",
        headers=[("a", b"1"), ("a", None)],
        timestamp=(confluent_kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_000),
        leader_epoch=0,
    )
    methods = [name for name in dir(expected) if not name.startswith("_")]
    assert sorted(methods) == sorted(name for name in dir(message) if not name.startswith("_"))
    getters = [name for name in methods if not name.startswith("set_")]
    assert {name: getattr(message, name)() for name in getters} == {name: getattr(expected, name)() for name in getters}
    assert message == expected
    copied = pickle.loads(pickle.dumps(message))
    assert type(copied) is confluent_kafka.Message
    assert copied == expected
    assert message.headers() is message.headers()
    assert (len(message), bool(empty), empty.headers()) == (1, False, None)
    for name in ("headers", "value", "key", "topic", "error"):
        getattr(message, f"set_{name}")("new")
        assert getattr(message, name)() == "new"


@pytest.mark.parametrize("is_own", [True, False], ids=["current", "before-2.12"])
def test_an_error_without_an_offset_is_a_message(embedded: str, monkeypatch: pytest.MonkeyPatch, is_own: bool) -> None:
    """Programs can't create messages of confluent-kafka before 2.12."""
    monkeypatch.setattr(_confluent_messages, "_IS_OWN", is_own)
    kit = ours(embedded)
    with kit.make_producer() as producer:
        producer.produce("no-offsets", "v")
        assert producer.flush(SECONDS) == 0
    with kit.make_consumer("no-offsets", auto_offset_reset="error") as consumer:
        consumer.subscribe(["no-offsets"])
        message = consumer.poll(SECONDS)
    assert isinstance(message, confluent_kafka.Message)
    assert (message.topic(), message.partition(), message.offset()) == ("no-offsets", 0, None)
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert message.value() == error.str().encode()


def test_keys_choose_the_partitions_of_librdkafka(embedded: str) -> None:
    """CRC-32 of the key, as both partitioners of librdkafka that are named consistent; an empty key is no key."""
    kit = ours(embedded)
    with Admin(bootstrap_servers=embedded) as client:
        client.create_topics([NewTopic("keys", 7, 1)])
    producer, found = kit.make_producer(), {}
    keys = [b"%d" % number for number in range(50)]

    def report(error: Any, message: Any) -> None:
        found[message.key()] = message.partition()

    for _ in range(2):  # the first ones before the partitions of the topic are known
        found.clear()
        for key in [*keys, b""]:
            producer.produce("keys", b"v", key=key, on_delivery=report)
        assert producer.flush(SECONDS) == 0
        assert {key: found[key] for key in keys} == {key: crc32(key) % 7 for key in keys}
        assert found[b""] in range(7)
    producer.close()


def test_failed_records_without_a_callback_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    producer = ours(NOWHERE).make_producer(message_timeout_ms=200)
    for _ in range(3):
        producer.produce("lost", b"v")
    assert producer.flush(SECONDS) == 0
    producer.close()
    assert [one.message for one in caplog.records if "without a callback have failed" in one.message]


def test_records_that_the_program_discards_are_not_logged(embedded: str, caplog: pytest.LogCaptureFixture) -> None:
    """A warning about lost records would be a false alarm, as the program has called abort_transaction or purge."""
    producer = ours(embedded).make_producer(transactional_id="discarding", linger_ms=60_000)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("discarded", b"v")
    producer.abort_transaction(SECONDS)
    producer.close()
    other = ours(NOWHERE).make_producer(message_timeout_ms=60_000)
    other.produce("discarded", b"v")
    other.purge()
    assert other.flush(SECONDS) == 0
    other.close()
    assert [one.message for one in caplog.records if "without a callback" in one.message] == []


def test_the_queue_is_full_until_reports_are_polled(embedded: str) -> None:
    reports: list[Any] = []
    producer = ours(embedded).make_producer(queue_buffering_max_messages=3)
    for _ in range(3):
        producer.produce("full", b"v", on_delivery=lambda error, message: reports.append(error))
    with pytest.raises(BufferError):
        producer.produce("full", b"v")
    assert producer.poll(SECONDS) > 0
    while len(producer):
        producer.poll(0.1)
    assert reports == [None] * 3
    producer.produce("full", b"v")
    assert (len(producer), producer.poll(SECONDS), len(producer)) == (1, 1, 0)
    producer.close()


def test_reports_of_a_split_batch_have_the_offsets_of_records(embedded: str) -> None:
    """A broker that refuses a batch as too large gets its records in smaller batches."""
    with Admin(bootstrap_servers=embedded) as client:
        client.create_topics([NewTopic("split", 1, 1, {"max.message.bytes": "2000"})])
    reports: list[Any] = []
    producer = ours(embedded).make_producer(linger_ms=200)
    for number in range(40):
        producer.produce(
            "split",
            b"%d" % number + b"x" * 200,
            on_delivery=lambda error, message: reports.append((error, message.offset(), message.value()[:2])),
        )
    assert producer.flush(SECONDS) == 0
    producer.close()
    assert reports == [(None, number, (b"%d" % number + b"x")[:2]) for number in range(40)]


# Administration on the embedded broker


def test_administration_of_permissions_and_settings(embedded: str) -> None:
    client = ours(embedded).admin({"bootstrap.servers": embedded, "socket.timeout.ms": 10_000})
    (future,) = client.create_topics([admin.NewTopic("settings", 1, 1)]).values()
    future.result()
    resource = admin.ConfigResource("topic", "settings", set_config={"retention.ms": "1000", "segment.ms": "2000"})
    (future,) = client.alter_configs([resource]).values()
    future.result()
    resource = admin.ConfigResource("topic", "settings", set_config={"retention.ms": 3000})
    (future,) = client.alter_configs([resource]).values()
    future.result()
    (future,) = client.describe_configs([resource]).values()
    settings = future.result()
    default = admin.ConfigSource.DEFAULT_CONFIG.value
    assert (settings["retention.ms"].value, settings["segment.ms"].source) == ("3000", default)
    more = admin.NewPartitions("settings", 3, replica_assignment=[[1], [1]])
    (future,) = client.create_partitions([more], validate_only=False).values()
    assert outcome(future.result) is None
    (future,) = client.describe_topics(
        confluent_kafka.TopicCollection(["settings"]), include_authorized_operations=True
    ).values()
    assert len(future.result().partitions) == 3
    with pytest.raises(ValueError, match="negative"):
        client.describe_cluster(request_timeout=-5)
    with pytest.raises(TypeError, match="validate_only"):
        client.create_partitions([more], validate_only="maybe")


# Installation


@pytest.fixture
def installed() -> Iterator[None]:
    facade.install()
    yield
    facade.uninstall()


def test_install_replaces_the_clients_everywhere(installed: None) -> None:
    facade.install()
    assert facade.installed()
    kit = original(NOWHERE)
    assert (kit.producer, kit.consumer) == (facade.Producer, facade.Consumer)
    assert kit.producer is confluent_kafka.cimpl.Producer
    assert issubclass(confluent_kafka.SerializingProducer, facade.Producer.__bases__[0])
    client = admin.AdminClient({"bootstrap.servers": NOWHERE})
    with pytest.raises(RuntimeError, match="closed"):  # librdkafka was never started
        facade.AdminClient.__mro__[-2].list_topics(client)


def test_installed_clients_run_a_program(installed: None, apache_kafka: ApacheKafka) -> None:
    kit = original(apache_kafka.bootstrap_servers)
    assert kit.producer is facade.Producer
    left, reports, key, value, closed = serializes(kit, apache_kafka.create_topic(partitions=2))
    assert (left, reports, key, value, closed) == (0, [(None, 0)], "kö".encode(), "v", True)


def test_uninstall_restores_the_clients() -> None:
    bases = confluent_kafka.SerializingProducer.__bases__
    before = confluent_kafka.Producer, confluent_kafka.Consumer, admin.AdminClient.__bases__
    facade.install()
    facade.uninstall()
    assert not facade.installed()
    assert (confluent_kafka.Producer, confluent_kafka.Consumer, admin.AdminClient.__bases__) == before
    assert confluent_kafka.SerializingProducer.__bases__ == bases


class Wrapper:
    """A wrapper around a method that can be changed, as those of wrapt, with which instrumentations trace a class."""

    def __init__(self, wrapped: Any, method: str, calls: list[str]) -> None:
        self.__wrapped__, self._method = wrapped, method
        self._self_wrapper = calls

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        self._self_wrapper.append(f"{type(instance).__name__}.{self._method}")
        return self.__wrapped__.__get__(instance, owner)


def traced_by_subclass(base: Any, method: str, calls: list[str]) -> Any:
    """Return a class with a method that calls that of the base, as OpenTelemetry does."""

    def called(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(f"{type(self).__name__}.{method}")
        return getattr(super(traced, self), method)(*given, **named)

    traced = type("Traced", (base,), {method: called})
    return traced


def traced_by_wrapper(base: Any, method: str, calls: list[str]) -> Any:
    """Return a class with a wrapper around the inherited method, as ddtrace and New Relic do."""
    return type("Traced", (base,), {method: Wrapper(getattr(base, method), method, calls)})


@pytest.mark.parametrize("traced", [traced_by_subclass, traced_by_wrapper])
@pytest.mark.parametrize("place", [confluent_kafka, confluent_kafka.cimpl], ids=["package", "compiled module"])
def test_install_keeps_an_instrumentation(
    monkeypatch: pytest.MonkeyPatch, apache_kafka: ApacheKafka, traced: Any, place: Any
) -> None:
    """The classes that an instrumentation has put in the place of confluent_kafka's use the clients of kcodec."""
    calls: list[str] = []
    names = {"Producer": "produce", "Consumer": "poll"}
    before = {name: getattr(confluent_kafka, name) for name in names}
    classes = {name: traced(before[name], method, calls) for name, method in names.items()}
    for name, made in classes.items():
        monkeypatch.setattr(confluent_kafka, name, made)
        monkeypatch.setattr(place, name, made)
    topic, settings = apache_kafka.create_topic(), {"bootstrap.servers": apache_kafka.bootstrap_servers}
    facade.install()
    try:
        producer = confluent_kafka.Producer(settings)
        producer.produce(topic, b"v")
        assert producer.flush(SECONDS) == 0
        group = {"group.id": topic, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**settings, **group})
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        assert message is not None and message.value() == b"v"
        consumer.close()
        for client, own in ((producer, facade.Producer), (consumer, facade.Consumer)):
            assert isinstance(client, own.__mro__[1])
    finally:
        facade.uninstall()
    assert calls == ["Traced.produce", "Traced.poll"]
    assert {name: made.__bases__ for name, made in classes.items()} == {name: (one,) for name, one in before.items()}
    assert {name: getattr(confluent_kafka, name) for name in names} == classes
    if traced is traced_by_wrapper:
        assert vars(classes["Producer"])["produce"].__wrapped__ is before["Producer"].produce
