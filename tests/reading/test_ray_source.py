# SPDX-License-Identifier: Apache-2.0
"""kcodec.ray with stand-ins for Ray's classes. tests/prove/prove_bounded_reads.py runs it with Ray."""

from __future__ import annotations

import importlib
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kcodec
from kcodec.broker import Broker
from kcodec.client import Admin, Producer
from kcodec.errors import BrokerError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka


class Task:
    def __init__(self, read: Any, metadata: Any, schema: Any, per_task_row_limit: int | None) -> None:
        self.read, self.metadata, self.schema, self.limit = read, metadata, schema, per_task_row_limit


@pytest.fixture
def source_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """kcodec.ray, imported with the stand-ins."""
    values: dict[str, dict[str, Any]] = {
        "ray": {},
        "ray.data": {"Datasource": object},
        "ray.data.block": {"BlockMetadata": SimpleNamespace},
        "ray.data.datasource": {"ReadTask": Task},
    }
    for name, members in values.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kcodec.ray", raising=False)
    yield importlib.import_module("kcodec.ray")
    sys.modules.pop("kcodec.ray", None)


def test_without_ray_the_import_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "kcodec.ray", raising=False)
    with pytest.raises(ImportError, match=r"kcodec.ray needs Ray Data .*pip install 'ray\[data\]'"):
        importlib.import_module("kcodec.ray")


def test_large_ranges_are_divided_and_empty_ones_left_out(source_module: Any) -> None:
    given = [kcodec.OffsetRange("orders", 0, 5, 45_005), kcodec.OffsetRange("orders", 1, 7, 7)]
    assert [(one.start, one.end) for one in source_module.divided(given, 3)] == [
        (5, 15_005),
        (15_005, 30_005),
        (30_005, 45_005),
    ]
    assert len(source_module.divided(given, 100)) == 5  # at least 10,000 offsets each
    assert source_module.divided(given, -1) == given[:1]


def test_the_tasks_read_the_frozen_ranges(
    source_module: Any, apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has one range, also in the middle of a transaction; later records do not belong to it."""
    monkeypatch.setattr(source_module, "MIN_TASK_OFFSETS", 4)
    topic, servers = apache_kafka.create_topic(partitions=1), apache_kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        with producer.transaction() as transaction:
            for number in range(8):
                transaction.send(topic, b"%d" % number, headers=[("h", b"1"), ("h", b"2")])
        source = source_module.KafkaDatasource(topic, bootstrap_servers=servers, end=9)
        with producer.transaction() as transaction:
            transaction.send(topic, b"later")
    tasks = source.get_read_tasks(parallelism=8, per_task_row_limit=5)
    assert [task.metadata.input_files for task in tasks] == [
        [f"{topic}-0 [{at}, {min(at + 4, 9)})"] for at in (0, 4, 8)
    ]
    assert servers not in repr([task.read for task in tasks])  # nor does it show a password
    reads = pickle.loads(pickle.dumps([task.read for task in tasks]))
    rows = [row for read in reads for table in read() for row in table.to_pylist()]
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(8)]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
    assert source.estimate_inmemory_data_size() is None and tasks[0].limit == 5


def test_a_repeated_task_does_not_read_another_topic_of_the_same_name(
    source_module: Any, kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was deleted and created again after the source was created, and has the offsets of the range, too."""
    monkeypatch.setattr(source_module, "MIN_TASK_OFFSETS", 2)
    servers = kcodec_broker.bootstrap_servers
    kcodec_broker.create_topic("orders", 1)
    kcodec_broker.seed("orders", [b"old"] * 4)
    source = source_module.KafkaDatasource("orders", bootstrap_servers=servers)
    tasks = source.get_read_tasks(parallelism=2)
    assert len(tasks) == 2
    assert [row["value"] for table in tasks[0].read() for row in table.to_pylist()] == [b"old"] * 2
    with Admin(bootstrap_servers=servers) as admin:
        assert {each.topic_id for each in source.ranges} == {admin.describe_topics(["orders"])["orders"].topic_id}
        admin.delete_topics(["orders"])
        admin.create_topics(["orders"])
    kcodec_broker.seed("orders", [b"new"] * 4)
    for task in tasks:
        with pytest.raises(BrokerError, match="was deleted and created again") as caught:
            list(task.read())
        assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_missing_topic_and_an_unknown_option_are_errors_of_the_source(
    source_module: Any, kcodec_broker: Broker
) -> None:
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "unknown_topic_timeout_ms": 100}
    with pytest.raises(BrokerError) as caught:
        source_module.KafkaDatasource("orders", **options)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(TypeError, match="isolation_levle"):
        source_module.KafkaDatasource("orders", **options, isolation_levle="read_committed")
    assert source_module.KafkaDatasource([], **options).ranges == ()


def test_a_topic_that_is_named_twice_is_read_once(source_module: Any, kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", 2)
    source = source_module.KafkaDatasource(["orders", "orders"], bootstrap_servers=kcodec_broker.bootstrap_servers)
    assert [(one.topic, one.partition) for one in source.ranges] == [("orders", 0), ("orders", 1)]
    with pytest.raises(TypeError, match="topics: expected str or a list of them, got 5"):
        source_module.KafkaDatasource(5, bootstrap_servers=kcodec_broker.bootstrap_servers)


@pytest.mark.parametrize("name", ["key_deserializer", "value_deserializer"])
def test_a_deserializer_is_refused_as_the_dataset_has_bytes(source_module: Any, name: str) -> None:
    """The dataset would contain the bytes, as a deserializer applies to the rows of `read_topic` only."""
    with pytest.raises(TypeError, match=f"KafkaDatasource has no option '{name}'.*map"):
        source_module.KafkaDatasource("orders", bootstrap_servers="127.0.0.1:1", **{name: bytes.decode})


def test_a_topic_without_records_has_a_task_with_the_columns(source_module: Any, kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", 2)
    source = source_module.KafkaDatasource("orders", bootstrap_servers=kcodec_broker.bootstrap_servers)
    (task,) = source.get_read_tasks(parallelism=8)
    assert list(task.read()) == []
    assert task.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_the_columns_of_framed_records_include_the_schema_ids(source_module: Any, kcodec_broker: Broker) -> None:
    kcodec_broker.create_topic("orders", 1)
    kcodec_broker.seed("orders", [b"\0\0\0\0\x07payload"])
    source = source_module.KafkaDatasource(
        "orders", bootstrap_servers=kcodec_broker.bootstrap_servers, framing="confluent"
    )
    (task,) = source.get_read_tasks(parallelism=1)
    (row,) = [row for table in task.read() for row in table.to_pylist()]
    assert (row["value_schema_id"], row["value"]) == (7, b"payload")
    assert task.schema.names[-2:] == ["key_schema_id", "value_schema_id"]
