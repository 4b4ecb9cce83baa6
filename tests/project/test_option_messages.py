# SPDX-License-Identifier: Apache-2.0
"""What clients say about options and arguments that are written as in other clients, or not quite right."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from admin_script import AdminScript

import kcodec.log
from kcodec import OffsetOutOfRangeError, TopicPartition
from kcodec.admin import flows
from kcodec.client import Admin, Consumer, GroupTransactSession, Producer, aio, read_ranges, read_topic
from kcodec.constants import IsolationLevel
from kcodec.consumer.options import ConsumerConfig
from kcodec.errors import BrokerError
from kcodec.network.foreign_options import WITHOUT_COUNTERPART
from kcodec.network.option_names import CLOSE
from kcodec.network.options import ClientConfig
from kcodec.options import OptionSet, counterparts, declaration
from kcodec.producer.options import ProducerConfig
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.reading.ranges import TopicRange
from kcodec.security import SECURITY_OPTIONS
from kcodec.security.option_names import SecurityConfig
from kcodec.spark import exactly_once

NOWHERE: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}
CLIENTS: list[Callable[..., Any]] = [
    Producer,
    Consumer,
    Admin,
    GroupTransactSession,
    aio.Producer,
    aio.Consumer,
    aio.Admin,
    aio.GroupTransactSession,
]
NAMES = [f"{client.__module__.split('.')[2]}.{client.__name__}" for client in CLIENTS]


@pytest.mark.parametrize(
    ("servers", "kind", "message"),
    [
        ("kafka://host:9092", ValueError, "kafka://host:9092 is a URL, expected host:port; write 'host:9092'"),
        ("PLAINTEXT://h:1,h2:2", ValueError, "write 'h:1', and select TLS and SASL with security_protocol"),
        (["kafka://me:hunter2@host:9092/x"], ValueError, "kafka://host:9092 is a URL"),
        (("host", 9092), TypeError, r"got \('host', 9092\); write \"host:9092\""),
        ([("host", 9092), ("other", 9093)], TypeError, r"got \('host', 9092\); write \"host:9092\""),
        (9092, TypeError, 'expected "host:port", or a list of these, got 9092'),
        ("host:99999", ValueError, "expected host:port with a port from 1 to 65535, got 'host:99999'"),
        (b"host:9092", TypeError, "or a list of these, got b'host:9092'"),
        (["host:9092", None], TypeError, "got the entry None of type NoneType"),
    ],
)
def test_bootstrap_servers_written_otherwise_are_explained(servers: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match="^bootstrap_servers: .*" + message) as caught:
        Producer(bootstrap_servers=servers)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
def test_a_dict_of_options_is_explained(client: Callable[..., Any]) -> None:
    name = client.__name__
    with pytest.raises(TypeError) as caught:
        client({"metadata.broker.list": "h:1", "sasl.password": "hunter2"})
    assert str(caught.value).startswith(
        f"{name} takes its options as keyword arguments, not as a dict: "
        f"{name}(bootstrap_servers=..., sasl_plain_password=...), or {name}(**options)"
    )
    assert "hunter2" not in str(caught.value)
    with pytest.raises(
        TypeError, match=f'got a positional argument of type str: {name}\\(bootstrap_servers="localhost:9092"'
    ):
        client("localhost:9092")


def test_a_consumer_with_topics_as_arguments_names_subscribe() -> None:
    consumer: Any = Consumer  # the type checkers refuse both calls, too
    with pytest.raises(TypeError, match=r"pass topics to subscribe\(\)$"):
        consumer("orders", bootstrap_servers="localhost:9092")
    with pytest.raises(TypeError, match=r"a consumer has no option 'topics'; pass topics to subscribe\(\)"):
        consumer(topics=["orders"], bootstrap_servers="localhost:9092")


def test_a_consumer_with_a_callback_as_an_option_names_subscribe() -> None:
    consumer: Any = Consumer
    with pytest.raises(TypeError, match=r"no option 'on_revoked'; pass on_assigned, on_revoked and on_lost to subscr"):
        consumer(bootstrap_servers="localhost:9092", on_revoked=print)


def test_a_session_with_a_mistyped_name_of_topics_names_its_option() -> None:
    session: Any = GroupTransactSession
    with pytest.raises(TypeError, match=r"a session has no option 'topic'; did you mean 'topics'\?$"):
        session(bootstrap_servers="localhost:9092", group_id="g", transactional_id="t", topic=["orders"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [("partition", "partitions"), ("strt", "start"), ("start_offset", "start"), ("end_timestamp", "end")],
)
def test_an_unknown_option_of_read_topic_names_its_argument(name: str, meant: str) -> None:
    read: Any = read_topic
    with pytest.raises(TypeError, match=rf"read_topic has no option '{name}'; did you mean '{meant}'\?$"):
        read("orders", bootstrap_servers="localhost:9092", **{name: 0})


def test_an_unknown_option_of_read_ranges_names_its_argument() -> None:
    read: Any = read_ranges
    with pytest.raises(TypeError, match=r"read_ranges has no option 'on_mising'; did you mean 'on_missing'\?$"):
        read([], bootstrap_servers="localhost:9092", on_mising="skip")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ssl_ca_location", "; its name in kcodec is 'ssl_cafile'"),
        ("ssl.ca.location", "; its name in kcodec is 'ssl_cafile'"),
        ("message.timeout.ms", "its name in kcodec is 'delivery_timeout_ms'"),
        ("max.in.flight.requests", "its name in kcodec is 'max_in_flight_requests_per_connection'"),
        ("linger.ms", r"option names have underscores: write linger_ms=\.\.\."),
        ("statistics.interval.ms", ": pass an object as metrics="),
        ("statistics_interval_ms", ": pass an object as metrics="),
        ("broker.version.fallback", ": versions are negotiated with each broker"),
        ("receive_buffer_bytes", ": the operating system chooses the sizes of socket buffers"),
        ("compresion_type", "did you mean 'compression_type'"),
        ("bootstrap_server", "did you mean 'bootstrap_servers'"),
        ("topics", r"; pass topics to subscribe\(\), send\(\) or read_topic\(\)"),
        ("brokers", "did you mean 'bootstrap_servers'"),
        ("servers", "did you mean 'bootstrap_servers'"),
        ("timeout", "did you mean 'request_timeout_ms' or 'delivery_timeout_ms' or 'default_api_timeout_ms'"),
    ],
)
def test_an_unknown_option_is_explained(name: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"a? ?producer has no option '{name}'.*(?:{message})"):
        Producer(**{**NOWHERE, name: 1})


@pytest.mark.parametrize("name", ["colour", "ssl_ca_place", "sasl_region_name", "heartbeat"])
def test_a_name_is_suggested_only_if_it_is_close(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        Producer(**{**NOWHERE, name: 1})
    assert "did you mean" not in str(caught.value)
    assert CLOSE > 0.75


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("group", "'group_id' or 'group_protocol' or 'group_instance_id'"),
        ("auto_commit", "'auto_commit_interval_ms' or 'enable_auto_commit'"),
    ],
)
def test_a_part_of_a_name_leads_to_the_names_that_have_it(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"a consumer has no option '{name}'; did you mean {meant}"):
        Consumer(**{**NOWHERE, name: "billing"})


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
def test_a_serializer_is_a_plain_function(name: str) -> None:
    async def serialize(value: object) -> bytes:
        return b""

    with pytest.raises(TypeError, match=f"{name} must be a function that takes the argument of send, or None, not 5"):
        Producer(**{**NOWHERE, name: 5})
    with pytest.raises(TypeError, match=f"{name} must be a plain function, not the coroutine function"):
        Producer(**{**NOWHERE, name: serialize})


def test_the_names_of_others_lead_to_options_that_exist() -> None:
    known = ClientConfig.names() | ProducerConfig.names() | ConsumerConfig.names() | SECURITY_OPTIONS
    assert set(counterparts().values()) <= known
    assert not counterparts().keys() & known
    assert not WITHOUT_COUNTERPART.keys() & (known | counterparts().keys())


@pytest.mark.parametrize("kind", [ClientConfig, ProducerConfig, ConsumerConfig, SecurityConfig])
def test_the_names_of_librdkafka_are_those_that_it_knows(kind: type[OptionSet]) -> None:
    names = [name for field in kind.fields().values() for name in declaration(field).librdkafka]
    assert names
    for name in names:
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            confluent_kafka.Producer({name: "?", "no.such.option": "1"})
        assert f'No such configuration property: "{name}"' not in str(caught.value)


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
def test_pickling_a_client_is_explained(client: Any) -> None:
    more = {"group_id": "g", "transactional_id": "t", "topics": "x"} if "Session" in client.__name__ else {}

    async def make() -> Any:
        return client(**NOWHERE, **more)

    async def check() -> None:
        made = await make()
        try:
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"^{client.__name__} cannot be pickled or copied"):
                    call(made)
        finally:
            closed = made.close()
            if asyncio.iscoroutine(closed):
                await closed

    asyncio.run(check())


def test_one_partition_can_be_assigned() -> None:
    with Consumer(**NOWHERE) as consumer:
        consumer.assign(TopicPartition("orders", 0))  # type: ignore[arg-type]
        assert consumer.assignment() == {TopicPartition("orders", 0)}
        with pytest.raises(
            TypeError, match=r"expected TopicPartition\(topic, partition\) or a list of them, got 'orders'"
        ):
            consumer.assign("orders")  # type: ignore[arg-type]


def test_a_time_in_the_place_of_an_offset_is_explained() -> None:
    script = AdminScript()
    script.topics["orders"] = {0: 1}

    def offsets(node: int, request: Any) -> Any:
        partition = messages.ListOffsetsPartitionResponse(
            partition_index=0, offset=0 if request.topics[0].partitions[0].timestamp == -2 else 100
        )
        return messages.ListOffsetsResponse(
            topics=[messages.ListOffsetsTopicResponse(name="orders", partitions=[partition])]
        )

    script.answers["ListOffsets"] = offsets
    level = IsolationLevel.READ_COMMITTED
    with pytest.raises(
        OffsetOutOfRangeError, match=r"\(exclusive\); for the time 2026-\S+, pass kcodec.Timestamp\(179"
    ):
        script.run(TopicRange("orders", None, 1795343622051, "latest").resolve(script.context, level))
    with pytest.raises(OffsetOutOfRangeError) as caught:
        script.run(TopicRange("orders", None, 5000, "latest").resolve(script.context, level))
    assert "Timestamp" not in str(caught.value)
    assert kcodec.Timestamp(5).ms == 5


@pytest.mark.parametrize("call", [flows.delete_topics, flows.describe_topics])
def test_a_missing_topic_is_not_to_be_retried(call: Any) -> None:
    script = AdminScript()
    script.topics["orders"] = {0: 1}
    script.answers["DeleteTopics"] = lambda node, request: messages.DeleteTopicsResponse(
        responses=[
            messages.DeletableTopicResult(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for name in request.topic_names
        ]
    )
    with pytest.raises(BrokerError, match="topic 'ghost': the topic or partition does not exist") as caught:
        script.run(call(script.context, ["ghost"]))
    assert (caught.value.code, caught.value.remedy, caught.value.resource) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "stop",
        "ghost",
    )
    assert "yet" not in str(caught.value)


def test_a_misspelled_argument_of_a_log_is_named(tmp_path: Path) -> None:
    """A name that resembles none is Python's own error, as without a suggestion it says all."""
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    log = kcodec.open(tmp_path / "orders-0")
    assert isinstance(log, kcodec.log.Log)
    read: Any
    no_split: Any = None  # the names of the options come first
    for read, what in ((log.to_arrow, r"to_arrow\(\)"), (log.records, r"records\(\)")):
        with pytest.raises(TypeError, match=f"{what} has no option 'isolation_levl'; did you mean 'isolation_level'"):
            read(isolation_levl="read_committed")
        with pytest.raises(TypeError, match="unexpected keyword argument 'quickly'"):
            read(quickly=True)
        with pytest.raises(TypeError, match="unexpected keyword argument 'isolation_lev'"):
            read((), "read_committed", isolation_lev="read_committed")  # which has its value
    with pytest.raises(TypeError, match=r"read_split\(\) has no option 'colums'; did you mean 'columns'"):
        kcodec.log.read_split(no_split, log.verdict(), colums=("offset",))


def test_a_misspelled_argument_that_is_required_is_named() -> None:
    """Python would only report the one that is missing, as the function takes options of any name."""
    write: Any = exactly_once
    with pytest.raises(TypeError, match=r"exactly_once\(\) has no option 'aplication'; did you mean 'application'"):
        write(None, topic="out", bootstrap_servers="localhost:1", aplication="copy")
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'application'"):
        write(None, topic="out", bootstrap_servers="localhost:1", acks="all")


@pytest.mark.parametrize("module", ["kcodec.client", "kcodec.client.aio"])
def test_a_misspelled_argument_of_begin_transaction_is_named(module: str) -> None:
    """The arguments of the function itself are suggested as well as the options of a client."""
    begin = importlib.import_module(module).begin_transaction
    with pytest.raises(TypeError, match="begin_transaction has no option 'partition'; did you mean 'partitions'"):
        called = begin("copy-1", partition=[("orders", 0)], bootstrap_servers="localhost:1")
        asyncio.run(called)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery_timeout_ms": float("nan")}, "delivery_timeout_ms must be a number of at least 1, not nan"),
        ({"linger_ms": float("nan")}, "linger_ms must be a number of at least 0, not nan"),
        ({"batch_size": 1000.0}, "batch_size must be an int, not 1000.0"),
    ],
)
def test_numbers_that_a_client_cannot_use_are_refused(options: dict[str, Any], message: str) -> None:
    """A record with a deadline that is not a number would never end; a size with a fraction ended the I/O thread."""
    with pytest.raises(ValueError, match=message):
        Producer(**NOWHERE, **options)


def test_a_coroutine_function_is_no_deserializer() -> None:
    async def decode(data: bytes) -> str:
        return data.decode()

    with pytest.raises(TypeError, match="value_deserializer must be a plain function, not the coroutine function"):
        aio.Consumer(**NOWHERE, value_deserializer=decode)
