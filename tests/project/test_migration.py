# SPDX-License-Identifier: Apache-2.0
"""docs/migration.md: every name it has is there, the defaults are as it says, keys go where it says."""

from __future__ import annotations

import inspect
import re
import zlib
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from kcodec.client import Consumer, Producer, aio
from kcodec.consumer.options import ConsumerConfig
from kcodec.producer.options import DEFAULT_DELIVERY_TIMEOUT_MS, ProducerConfig
from kcodec.testing.kafka import ApacheKafka

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "migration.md").read_text(encoding="utf-8")
Row = list[str]


def table(heading: str) -> list[Row]:
    """The rows of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def names(cell: str) -> list[str]:
    """The methods that a cell names."""
    return re.findall(r"`([a-z]+(?:_[a-z]+)*)`", cell)


CLIENTS: dict[str, list[type]] = {
    "Consumer": [aiokafka.AIOKafkaConsumer, kafka.KafkaConsumer, confluent_kafka.Consumer, Consumer],
    "Producer": [aiokafka.AIOKafkaProducer, kafka.KafkaProducer, confluent_kafka.Producer, Producer],
}
# Parameters, options, attributes of records and methods of the other kind of client.
OTHERS = {
    *("on_assign", "on_revoke", "on_lost", "on_assigned", "on_revoked", "topic", "partition", "next_offset", "remedy"),
    *("group_metadata", "consumer_group_metadata", "on_delivery", "max_block_ms"),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_call_that_is_named_is_there(kind: str) -> None:
    rows = table(kind)
    assert len(rows) > 7
    found = 0
    for row in rows:
        for client, cell in zip(CLIENTS[kind], row, strict=True):
            for name in names(cell):
                assert hasattr(client, name) or name in OTHERS, (client, name)
                found += hasattr(client, name)
    assert found > 40
    ours = [name for row in rows for name in names(row[3]) if name not in OTHERS]
    assert all(hasattr(getattr(aio, kind), name) for name in ours)


def shown(value: Any) -> set[str]:
    """A default as the page writes it."""
    if isinstance(value, tuple | list):
        return {one.name if hasattr(one, "name") else one for one in value}
    return {getattr(value, "name", str(value)).lower() if hasattr(value, "name") else str(value)}


def test_the_defaults_are_those() -> None:
    theirs = {
        **{name: one.default for name, one in inspect.signature(aiokafka.AIOKafkaProducer.__init__).parameters.items()},
        **{name: one.default for name, one in inspect.signature(aiokafka.AIOKafkaConsumer.__init__).parameters.items()},
    }
    others = {**kafka.KafkaProducer.DEFAULT_CONFIG, **kafka.KafkaConsumer.DEFAULT_CONFIG}
    ours = {**vars(ProducerConfig()), **vars(ConsumerConfig())}
    checked = 0
    for option, of_aiokafka, of_kafka_python, _, of_kcodec in table("Defaults that differ"):
        if option.startswith("`") and of_aiokafka.startswith("`"):
            name = option.strip("`")
            for source, cell in ((theirs, of_aiokafka), (others, of_kafka_python), (ours, of_kcodec)):
                assert shown(source[name]) == {one.strip("` ") for one in cell.split(",")}, name
                checked += 1
    assert checked == 7 * 3
    assert (others["acks"], ours["acks"]) == (-1, "all")
    rows = {row[0]: row[1:] for row in table("Defaults that differ")}
    limits = [others["delivery_timeout_ms"], DEFAULT_DELIVERY_TIMEOUT_MS]
    assert rows["`delivery_timeout_ms`"][1::2] == [f"`{limit}`" for limit in limits]
    assert theirs["request_timeout_ms"] == 40_000
    name = "allow_auto_create_topics"
    assert rows[f"`{name}` of consumers"][1::2] == [f"`{others[name]}`", f"`{ours[name]}`"]


def test_keys_of_confluent_kafka_are_elsewhere_without_its_option(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=12)
    keys = [b"key-%d" % number for number in range(40)]
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        ours = [one.result(20).partition for one in [producer.send(topic, b"", key=key) for key in keys]]
    default, reported = (
        partitions_of(apache_kafka, topic, keys, **options) for options in ({}, {"partitioner": "murmur2_random"})
    )
    assert reported == ours
    assert default == [zlib.crc32(key) % 12 for key in keys] != ours


def partitions_of(kafka: ApacheKafka, topic: str, keys: list[bytes], **options: str) -> list[int]:
    found: dict[bytes, int] = {}

    def note(_: object, message: Any) -> None:
        found[message.key()] = message.partition()

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, **options})
    for key in keys:
        producer.produce(topic, key=key, on_delivery=note)
    assert producer.flush(20) == 0
    return [found[key] for key in keys]
