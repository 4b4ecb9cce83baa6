# SPDX-License-Identifier: Apache-2.0
"""Broker used in the wrong way: arguments, ports, directories, pickling, a fork. Each gets an error at once."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import Field, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import kcodec.broker
from kcodec.broker import Broker, BrokerSettings, EmbeddedBrokerError
from kcodec.client import Producer
from kcodec.errors import DecodeError


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"port": 70_000}, ValueError, "port must be a number between 0 and 65535"),
        ({"port": "9092"}, ValueError, "port must be a number"),
        ({"partitions": 3}, TypeError, "no argument 'partitions': see the fields of BrokerSettings"),
        ({"datadir": "logs"}, TypeError, "no argument 'datadir'; did you mean 'data_dir'?"),
        ({"default_partition": 3}, TypeError, "no argument 'default_partition'; did you mean 'default_partitions'?"),
        ({"transaction_version": 5}, ValueError, "transaction_version must be between 0 and 2, got 5"),
        ({"transaction_version": "2"}, TypeError, "transaction_version must be a number"),
        ({"default_partitions": 0}, ValueError, "default_partitions must be between 1"),
        ({"marker_delay_ms": -1}, ValueError, "marker_delay_ms must be between 0"),
        ({"retention_check_interval_ms": 0}, ValueError, "retention_check_interval_ms must be between 1"),
        ({"max_versions": {"Produce": "9"}}, TypeError, "max_versions must be a dict"),
        ({"max_versions": {"Produce": True}}, TypeError, "max_versions must be a dict"),
        ({"auto_create_topics": "false"}, TypeError, "auto_create_topics must be True or False, got 'false'"),
        ({"verifies_transactions": 0}, TypeError, "verifies_transactions must be True or False, got 0"),
        ({"manual_clock": "false"}, TypeError, "manual_clock must be True or False, got 'false'"),
        ({"seed": "1"}, TypeError, "seed must be a number, got '1'"),
        ({"cluster_id": 5}, TypeError, "cluster_id must be a string, got 5"),
        ({"ssl_certfile": True}, TypeError, "ssl_certfile must be a path or None, got True"),
        ({"ssl_password": b"secret"}, TypeError, "ssl_password must be a string or None, got a value of type bytes"),
        ({"sasl_mechanisms": {"PLAIN"}}, TypeError, "sasl_mechanisms must be a list of names"),
        ({"data_dir": 3}, TypeError, "data_dir must be a path or None, got 3"),
        *(
            ({name: ""}, ValueError, f"{name} must be a path or None, got an empty string")
            for name in ("data_dir", "trace", "ssl_certfile", "ssl_keyfile", "ssl_cafile")
        ),
        ({"start_ms": -5, "manual_clock": True}, ValueError, "start_ms must not be negative, got -5"),
        ({"start_ms": 10**19, "manual_clock": True}, ValueError, "start_ms must be at most 253402300799999"),
        ({"start_ms": 5}, ValueError, "start_ms has no effect without manual_clock=True"),
        ({"start_ms": "0"}, TypeError, "start_ms must be a number of ms or None, got '0'"),
        (
            {"fault_rules": "Produce,drop=after"},
            TypeError,
            "fault_rules must be a list of rules, got 'Produce,drop=aft",
        ),
        ({"fault_rules": [5]}, TypeError, "a fault rule must be a mapping or a string, got 5"),
        ({"fault_rules": ["Produce,when=now"]}, ValueError, "'when=now' in the fault rule .* expected one of topic"),
        ({"host": None}, TypeError, "host must be a string, got None"),
        ({"port": True}, ValueError, "port must be a number"),
        ({"topic_defaults": {"retention.mss": "1"}}, ValueError, "Unknown topic config name: retention.mss"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Broker(**arguments)


@pytest.mark.parametrize("one", fields(BrokerSettings), ids=lambda one: one.name)
def test_every_setting_refuses_another_type(one: Field[Any]) -> None:
    wrong: dict[str, Any] = {one.name: object()}
    with pytest.raises(TypeError, match=f"^{one.name} must be "):
        Broker(**wrong)


@pytest.mark.parametrize("described", [kcodec.broker, Broker], ids=["module", "class"])
def test_examples_of_docstrings_run(described: Any) -> None:
    lines = inspect.cleandoc(described.__doc__).splitlines()
    example = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
    names: dict[str, Any] = {"Broker": Broker}
    exec(example, names)
    assert repr(names["broker"]) == "<Broker stopped>"


def test_failed_start_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = Broker(port=listener.getsockname()[1], data_dir=tmp_path)
        with pytest.raises(OSError, match="address already in use"):
            broker.start()
    with pytest.raises(FileNotFoundError, match="the trace file cannot be opened: No such file or directory"):
        Broker(data_dir=tmp_path, trace=tmp_path / "none" / "trace").start()
    broker.start()
    broker.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == "kcodec-broker"] == []


def test_data_directory_of_apache_kafka_is_refused_and_stays_unchanged(tmp_path: Path) -> None:
    metadata = tmp_path / "__cluster_metadata-0"
    metadata.mkdir()
    for path in (tmp_path / "meta.properties", metadata / f"{5:020}.snapshot", metadata / f"{5:020}.log"):
        path.write_bytes(b"version=1\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"{tmp_path} has meta.properties: it belongs to an Apache Kafka"):
        Broker(data_dir=tmp_path).start()
    assert sorted(tmp_path.rglob("*")) == before


def test_data_directory_has_one_broker_at_a_time(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        with pytest.raises(OSError, match="another broker uses this data directory"):
            Broker(data_dir=tmp_path / ".." / tmp_path.name).start()
        command = [sys.executable, "-m", "kcodec", "broker", "--port", "0", "--data-dir", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (ended.returncode, "another broker uses" in ended.stderr) == (2, True)
        broker.crash()
        broker.start()


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "t-0/leader-epoch-checkpoint"])
def test_corrupt_checkpoint_is_named(tmp_path: Path, name: str) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t", 1)
        broker.seed("t", [(None, b"a")])
    (tmp_path / name).write_text("0\n1\nt 0 three\n")
    with pytest.raises(DecodeError, match=f"{name}: line 3: expected"):
        Broker(data_dir=tmp_path).start()


def test_broker_cannot_be_pickled() -> None:
    with Broker() as broker, pytest.raises(TypeError, match="give its bootstrap_servers"):
        pickle.dumps(broker)


def _use_in_child(broker: Broker, results: Connection) -> None:
    try:
        broker.end_offset("t")
    except EmbeddedBrokerError as error:
        results.send(str(error))
    broker.close()


def test_forked_process_cannot_use_or_stop_the_broker() -> None:
    context = multiprocessing.get_context("fork")
    with Broker() as broker:
        broker.create_topic("t", 1)
        ours, theirs = context.Pipe()
        child = context.Process(target=_use_in_child, args=(broker, theirs))
        child.start()
        assert ours.poll(20)
        assert "from which this process was forked" in ours.recv()
        child.join(20)
        broker.seed("t", [(None, b"a")])
        assert broker.end_offset("t") == 1


def test_address_of_ipv6_is_written_in_brackets() -> None:
    with Broker(host="::1") as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("t", b"v").result(30)
        assert broker.end_offset("t") == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topic": 3}, "topic must be a str or None, got 3"),
        ({"client": b"reader"}, "client must be a str or None, got b'reader'"),
        ({"partition": "0"}, "partition must be an int or None, got '0'"),
        ({"error": 3, "drop": None}, "error must be the name of an error code, got 3"),
        ({"delay_ms": "5"}, "delay_ms must be a number of ms, got '5'"),
        ({"skip": None}, "skip must be an int, got None"),
        ({"count": True}, "count must be an int or None, got True"),
        ({"probability": "0.5"}, "probability must be a number, got '0.5'"),
    ],
)
def test_a_fault_rule_that_matches_nothing_is_refused(fields: dict[str, Any], text: str) -> None:
    """The test of a program would pass without the fault."""
    with Broker() as broker, pytest.raises(TypeError, match=text):
        broker.faults.add("Produce", **{"drop": "after", **fields})


def test_a_negative_partition_to_seed_is_named() -> None:
    with Broker() as broker, pytest.raises(ValueError, match="partition must not be negative, got -1"):
        broker.seed("new", [b"1"], partition=-1)


def test_a_boolean_of_a_topic_may_be_a_bool() -> None:
    """As in Kafka, "True" is "true"."""
    with Broker() as broker:
        broker.create_topic("t", preallocate=True)
        with pytest.raises(EmbeddedBrokerError, match="Invalid value yes for configuration preallocate"):
            broker.create_topic("u", preallocate="yes")


def test_producers_of_a_missing_topic_are_not_expired() -> None:
    with Broker() as broker, pytest.raises(EmbeddedBrokerError, match="topic 'order' does not exist"):
        broker.expire_producers("order")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda broker: broker.clock.advance("x"), "ms must be a number of ms, got 'x'"),
        (lambda broker: broker.create_topic("c", "1"), "partitions must be a number, got '1'"),
        (lambda broker: broker.end_offset("t", "0"), "partition must be a number, got '0'"),
        (lambda broker: broker.seed("t", [b"v"], partition="0"), "partition must be a number, got '0'"),
        (lambda broker: setattr(broker, "marker_delay_ms", "5"), "marker_delay_ms must be a number of ms, got '5'"),
    ],
    ids=["advance", "create_topic", "end_offset", "seed", "marker_delay_ms"],
)
def test_methods_refuse_values_of_another_type(call: Callable[[Broker], object], text: str) -> None:
    with Broker() as broker:
        broker.create_topic("t")
        with pytest.raises(TypeError, match=f"^{text}$"):
            call(broker)


def test_the_wire_log_refuses_an_unknown_api() -> None:
    """An assertion that there are no such requests would pass."""
    with Broker() as broker:
        assert broker.wire_log.requests("Produce") == []
        with pytest.raises(ValueError, match=r"^Kafka has no API 'Produc'; did you mean 'Produce'\?$"):
            broker.wire_log.requests("Produc")


@pytest.mark.parametrize(
    "call",
    [lambda broker: broker.bootstrap_servers, lambda broker: broker.listeners, lambda broker: broker.client_options()],
    ids=["bootstrap_servers", "listeners", "client_options"],
)
def test_a_free_port_is_known_from_the_first_start_on(call: Callable[[Broker], object]) -> None:
    broker = Broker()
    with pytest.raises(EmbeddedBrokerError, match="no port yet: use it in a with statement, or call start"):
        call(broker)
    assert Broker(port=9092).bootstrap_servers == "127.0.0.1:9092"
    with broker:
        found = call(broker)
    assert call(broker) == found


def test_seed_takes_bytes_as_values() -> None:
    with Broker() as broker:
        broker.seed("t", iter([b"a", (b"key", b"b"), {"value": b"c"}]))
        assert [(one.key, one.value) for one in broker.committed("t")] == [(None, b"a"), (b"key", b"b"), (None, b"c")]
        with pytest.raises(EmbeddedBrokerError, match="topic 't' has no partition 7"):
            broker.committed("t", 7)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ({}, {"user": "alice"}, "'alice' has no effect: the PLAINTEXT listener does not use SASL"),
        ({}, {"mechanism": "PLAIN"}, "'PLAIN' has no effect: the PLAINTEXT listener does not use SASL"),
        (
            {"sasl_mechanisms": ["SCRAM-SHA-512"], "users": {"alice": "alice-secret"}},
            {"mechanism": "PLAIN"},
            "mechanism 'PLAIN' is not in the setting sasl_mechanisms",
        ),
    ],
    ids=["user", "mechanism", "other mechanism"],
)
def test_client_options_refuse_a_login_that_cannot_succeed(
    arguments: dict[str, Any], options: dict[str, str], text: str
) -> None:
    with Broker(**arguments) as broker, pytest.raises(EmbeddedBrokerError, match=text):
        broker.client_options(**options)


def test_a_misspelled_fault_rule_gets_a_hint() -> None:
    with Broker() as broker:
        with pytest.raises(ValueError, match="the broker has no API 'produce'; did you mean 'Produce'"):
            broker.faults.add("produce", drop="after")
        with pytest.raises(ValueError, match="'NOT_ENOUGH_REPLICA'; did you mean 'NOT_ENOUGH_REPLICAS'"):
            broker.faults.add("Produce", error="NOT_ENOUGH_REPLICA")
        with pytest.raises(TypeError, match="a fault rule has no field 'topics'; its fields are topic, partition"):
            broker.faults.add("Produce", topics="t")
    with pytest.raises(ValueError, match="APIs that the broker does not have: Fetsch; did you mean 'Fetch'"):
        Broker(max_versions={"Fetsch": 3}).start()


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"cannot listen on 127.0.0.1:{port}: address already in use; choose another host or port"
        with pytest.raises(OSError, match=text):
            Broker(port=port).start()
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0: [Cc]annot assign requested address"):
        Broker(host="192.0.2.1").start()  # an address for documentation, which no machine has
