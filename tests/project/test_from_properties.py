# SPDX-License-Identifier: Apache-2.0
"""`from_properties`: the names and values of Java and librdkafka, files, and what is refused, without secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kcodec.client import Admin, Consumer, GroupTransactSession, Producer, aio
from kcodec.client.properties import options_from_properties, properties_of_file
from kcodec.testing.kafka import ApacheKafka

SECRET = "hunter2"
BOOTSTRAP = {"bootstrap.servers": "localhost:1"}


@pytest.mark.parametrize(
    ("client", "properties", "options"),
    [
        ("producer", {"metadata.broker.list": "h:1"}, {"bootstrap_servers": "h:1"}),
        ("producer", {"queue.buffering.max.ms": "7", "linger.ms": 7}, {"linger_ms": 7}),
        ("producer", {"queue.buffering.max.kbytes": 32}, {"buffer_memory": 32768}),
        ("consumer", {"queued.max.messages.kbytes": "1"}, {"fetch_ahead_max_bytes": 1024}),
        ("producer", {"compression.codec": "LZ4"}, {"compression_type": "lz4"}),
        ("producer", {"acks": 1, "enable.idempotence": False}, {"acks": 1, "enable_idempotence": False}),
        ("producer", {"partitioner": "consistent_random"}, {"partitioner": "consistent_random"}),
        (
            "producer",
            {"partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner"},
            ValueError("partitioner.class names the class"),
        ),
        (
            "producer",
            {"value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer"},
            {"value_serializer": None},
        ),
        ("consumer", {"auto.offset.reset": "smallest"}, {"auto_offset_reset": "earliest"}),
        ("consumer", {"enable.auto.offset.store": "false"}, {"enable_auto_offset_store": False}),
        (
            "consumer",
            {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.StickyAssignor, range"},
            {"partition_assignment_strategy": ("sticky", "range")},
        ),
        ("Admin", {"security.protocol": "sasl_ssl"}, {"security_protocol": "SASL_SSL"}),
        ("Admin", {"enable.ssl.certificate.verification": "true"}, {}),
        ("Admin", {"enable.ssl.certificate.verification": False}, ValueError("pass an ssl_context=")),
        ("Admin", {"sasl.username": "me", "sasl.password": SECRET}, None),
        ("session", {"group.id": "g", "transactional.id": "t"}, {"group_id": "g", "transactional_id": "t"}),
        (
            "consumer",
            {"sasl.jaas.config": f'x required username="me" password="{SECRET}";', "sasl.username": "you"},
            ValueError("sasl.jaas.config and sasl.username both set sasl_plain_username, to different values"),
        ),
        ("producer", {"compression.level": "-1", "compression.type": "lz4"}, None),
        ("producer", {"compression.level": "-1"}, {"compression_level": None}),
        ("producer", {"compression.level": -1}, {"compression_level": None}),
        ("producer", {"compression_level": -1}, {"compression_level": -1}),  # a level of zstd
        ("Admin", {"connections.max.idle.ms": "0"}, {"connections_max_idle_ms": 2**31 - 1}),
        ("consumer", {"connections.max.idle.ms": -1}, {"connections_max_idle_ms": 2**31 - 1}),
        ("producer", {"connections.max.idle.ms": 1}, {"connections_max_idle_ms": 1}),
        (
            "producer",
            {"request.timeout.ms": 5000, "socket.timeout.ms": 60000},
            ValueError("request.timeout.ms and socket.timeout.ms both set request_timeout_ms, to different values"),
        ),
        ("producer", {"linger.ms": "soon"}, ValueError("linger.ms must be a number")),
        ("producer", {"linger.ms": "nan"}, ValueError("linger.ms must be a number")),
        ("producer", {"queue.buffering.max.kbytes": "inf"}, ValueError("queue.buffering.max.kbytes must be a number")),
    ],
)
def test_properties_become_options(client: str, properties: dict[str, Any], options: Any) -> None:
    if isinstance(options, ValueError):
        with pytest.raises(ValueError) as caught:
            options_from_properties(properties, client)
        assert str(options) in str(caught.value) and SECRET not in str(caught.value)
    else:
        found = options_from_properties(properties, client)
        assert options is None or found == options


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_clients_accept_the_markers_of_others(codec: str) -> None:
    """They mean the default level of the codec, and no limit for idle connections."""
    properties = {**BOOTSTRAP, "compression.level": "-1", "connections.max.idle.ms": "0", "compression.type": codec}
    Producer.from_properties(properties).close()


def test_java_serializers_convert_values() -> None:
    serialization = "org.apache.kafka.common.serialization"
    found = options_from_properties(
        {"key.serializer": f"{serialization}.StringSerializer", "value.serializer": f"{serialization}.LongSerializer"},
        "producer",
    )
    assert (found["key_serializer"]("é"), found["key_serializer"](None)) == ("é".encode(), None)
    assert found["value_serializer"](-2) == b"\xff" * 7 + b"\xfe"
    found = options_from_properties({"value.deserializer": f"{serialization}.LongDeserializer"}, "consumer")
    assert found["value_deserializer"](b"\xff" * 7 + b"\xfe") == -2
    with pytest.raises(
        ValueError, match=r"names the class io\.confluent\.KafkaAvroSerializer, which kcodec does not have"
    ):
        options_from_properties({"value.serializer": "io.confluent.KafkaAvroSerializer"}, "producer")


def test_every_name_that_cannot_be_used_is_explained() -> None:
    """All of them in one error, without any value."""
    with pytest.raises(TypeError) as caught:
        Producer.from_properties(
            {
                **BOOTSTRAP,
                "compresion.type": "lz4",
                "statistics.interval.ms": 1000,
                "group.id": "billing",
                "no.such.thing": SECRET,
            }
        )
    assert str(caught.value) == (
        "a producer has no option 'compresion.type'; did you mean 'compression_type'?; and no option "
        "'statistics.interval.ms': pass an object as metrics=, which is called with counts and latencies; and no "
        "option 'group.id': it is an option of a consumer; remove it, or pass the other properties alone; and no "
        "option 'no.such.thing'"
    )


def test_a_file_may_have_properties_of_other_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are logged by name, as by Java's clients and librdkafka, and have no effect; other names are errors."""
    file = tmp_path / "shared.properties"
    file.write_text(f"bootstrap.servers=localhost:1\ngroup.id={SECRET}\nlinger.ms=7\nisolation.level=read_committed\n")
    assert options_from_properties(file, "producer") == {"bootstrap_servers": "localhost:1", "linger_ms": 7}
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: {name} has no effect on a producer, as it is an option of a consumer; to avoid this warning, use a "
        "file without it"
        for name in ("group.id", "isolation.level")
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    caplog.clear()
    assert options_from_properties(file, "session").keys() >= {"group_id", "linger_ms"} and not caplog.records
    file.write_text(f"compresion.type={SECRET}\nno.such.thing={SECRET}\n")
    with pytest.raises(TypeError) as caught:
        Producer.from_properties(file)
    assert str(caught.value) == (
        f"{file}: a producer has no option 'compresion.type'; did you mean 'compression_type'?; and no option "
        "'no.such.thing'; remove it from the file"
    )
    file.write_text(f"linger.ms={SECRET}")
    with pytest.raises(ValueError, match=r"shared\.properties: linger\.ms must be a number"):
        Producer.from_properties(file)


def test_secrets_are_never_in_errors() -> None:
    options = {**BOOTSTRAP, "sasl.mechanism": "PLAIN", "sasl.password": SECRET, "security.protocol": "SASL_SSL"}
    for client in (Producer, Consumer, Admin):
        for more in ({"sasl.user": "me"}, {"ssl.ca.location": "/no/such/file"}, {"sasl.mechanism": "PLAN"}):
            with pytest.raises((TypeError, ValueError, OSError)) as caught:
                client.from_properties({**options, **more})
            assert SECRET not in str(caught.value)


def test_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# comment\n! another\n\nbootstrap.servers = h\\:1,\\\n    h:2\nlinger.ms:5\n  client.id  a b\\\\c \n"
        "sasl.username=\\u0041=b\nsasl.password=a\u2028b\x0cc\x85\nempty\nno.value=\n",
        encoding="utf-8",
    )
    assert properties_of_file(file) == {
        "bootstrap.servers": "h:1,h:2",
        "linger.ms": "5",
        "client.id": "a b\\c ",
        "sasl.username": "A=b",
        "sasl.password": "a\u2028b\x0cc\x85",
        "empty": "",
        "no.value": "",
    }
    with pytest.raises(FileNotFoundError):
        Producer.from_properties(tmp_path / "none.properties")


def test_every_client_is_made_from_properties(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The same names as those of confluent-kafka, in a mapping or a file; keyword arguments override them."""
    topic = apache_kafka.create_topic(partitions=1)
    common = {"bootstrap.servers": apache_kafka.bootstrap_servers, "client.id": "from-properties"}
    file = tmp_path / "producer.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in {**common, "linger.ms": 1}.items()))
    consuming = {**common, "group.id": topic, "auto.offset.reset": "smallest", "enable.auto.commit": False}
    theirs = confluent_kafka.Consumer(consuming)
    theirs.close()
    with Producer.from_properties(file, linger_ms=0) as producer:
        producer.send_and_wait(topic, b"1")
        assert producer._options.linger_ms == 0
    with Consumer.from_properties(consuming) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in consumer.poll(20.0)] == [b"1"]
    with Admin.from_properties(common) as admin:
        assert topic in {one.name for one in admin.list_topics().values()}
    moving = {**consuming, "transactional.id": topic}
    with GroupTransactSession.from_properties(moving, topics=[topic]) as session, session.transaction() as txn:
        assert [record.value for record in txn.poll(20.0)] == [b"1"]

    async def run() -> None:
        async with aio.Producer.from_properties(str(file)) as producer:
            await producer.send_and_wait(topic, b"2")
        async with aio.Consumer.from_properties({**consuming, "group.id": None}, auto_offset_reset="latest") as reader:
            await reader.assign([(topic, 0)])  # type: ignore[list-item]
            await reader.seek_to_beginning()
            assert len(await reader.poll(20.0)) == 2
        async with aio.Admin.from_properties(common) as admin:
            assert await admin.list_topics()
        async with aio.GroupTransactSession.from_properties(moving, topics=[topic]):
            pass

    asyncio.run(run())
