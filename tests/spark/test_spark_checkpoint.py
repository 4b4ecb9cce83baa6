# SPDX-License-Identifier: Apache-2.0
"""``offsets_of_checkpoint``: the position of a query of Spark's own Kafka source, from checkpoints that it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from kcodec.client import Producer
from kcodec.spark import offsets_of_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kcodec.testing.kafka import ApacheKafka

pytestmark = pytest.mark.spark
NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    """A topic of two partitions with ten records each."""
    name = apache_kafka.create_topic(partitions=2)
    send(apache_kafka, name)
    return name


def send(kafka: ApacheKafka, topic: str) -> None:
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2)


@pytest.fixture
def named_sources(spark: SparkSession) -> Iterator[None]:
    """The offset log of version 2, where sources have names."""
    spark.conf.set(NAMED, "true")
    spark.conf.set(FORMAT, "2")
    yield
    spark.conf.unset(NAMED)
    spark.conf.unset(FORMAT)


def run_query(spark: SparkSession, kafka: ApacheKafka, topic: str, checkpoint: Path, name: str | None = None) -> None:
    """Read what is there with Spark's own source, in batches of 8 offsets."""
    reader = spark.readStream if name is None else spark.readStream.name(name)
    reader = (
        reader.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("subscribe", topic)
    )
    loaded = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 8).load()
    writer = loaded.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def test_a_query_is_carried_on_where_it_stopped(
    spark: SparkSession, apache_kafka: ApacheKafka, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_query(spark, apache_kafka, topic, checkpoint)
    offsets = offsets_of_checkpoint(str(checkpoint))
    assert json.loads(offsets) == {topic: {"0": 10, "1": 10}}
    assert offsets_of_checkpoint(f"file:{checkpoint}/") == offsets
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert offsets_of_checkpoint("checkpoint", filesystem=below) == offsets
    send(apache_kafka, topic)
    loaded = spark.read.format("kafka").option("kafka.bootstrap.servers", apache_kafka.bootstrap_servers)
    rest = loaded.option("subscribe", topic).option("startingOffsets", offsets).load()
    assert sorted((row.partition, row.offset) for row in rest.collect()) == [
        (partition, offset) for partition in range(2) for offset in range(10, 20)
    ]


def test_a_batch_that_was_only_begun_is_read_again(
    spark: SparkSession, apache_kafka: ApacheKafka, topic: str, tmp_path: Path
) -> None:
    run_query(spark, apache_kafka, topic, tmp_path)
    last = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdecimal())
    for batch in range(last, -1, -1):
        (tmp_path / "commits" / str(batch)).unlink()
        offsets = json.loads(offsets_of_checkpoint(str(tmp_path)))[topic]
        assert sum(offsets.values()) == 8 * batch
    assert offsets == {"0": 0, "1": 0}  # from sources/0/0


@pytest.mark.usefixtures("named_sources")
def test_sources_with_names_are_found(
    spark: SparkSession, apache_kafka: ApacheKafka, topic: str, tmp_path: Path
) -> None:
    run_query(spark, apache_kafka, topic, tmp_path, "orders_in")
    for source in (None, 0, "orders_in"):
        assert json.loads(offsets_of_checkpoint(str(tmp_path), source=source)) == {topic: {"0": 10, "1": 10}}
    for path in (tmp_path / "commits").iterdir():
        path.unlink()
    assert json.loads(offsets_of_checkpoint(str(tmp_path))) == {topic: {"0": 0, "1": 0}}


def checkpoint(folder: Path, *batches: str) -> str:
    """A checkpoint of committed batches."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for number, text in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    return str(folder)


def test_one_of_several_sources_is_chosen(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 'v1\n{}\n{"a":{"0":5}}\n{"b":{"1":6}}', 'v1\n{}\n{"a":{"0":7}}\n-')
    assert offsets_of_checkpoint(path, source=0) == '{"a":{"0":7}}'
    assert offsets_of_checkpoint(path, source=1) == '{"b":{"1":6}}'
    with pytest.raises(ValueError, match="the query has the sources 0, 1: name one of them by `source`"):
        offsets_of_checkpoint(path)
    with pytest.raises(ValueError, match="the query has no source 2; it has 0, 1"):
        offsets_of_checkpoint(path, source=2)


def test_what_is_not_a_checkpoint_of_kafka_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no batch in 'offsets'"):
        offsets_of_checkpoint(str(tmp_path))
    path = checkpoint(tmp_path, 'v1\n{}\n{"logOffset":3}')
    with pytest.raises(ValueError, match="offsets/0: expected the offsets of a Kafka source, found"):
        offsets_of_checkpoint(path)
    (tmp_path / "offsets" / "0").write_text("v9\n{}\n")
    with pytest.raises(ValueError, match=r"offsets/0: expected version v1 or v2 in its first line, found 'v9'"):
        offsets_of_checkpoint(path)
