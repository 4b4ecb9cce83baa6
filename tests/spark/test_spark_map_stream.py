# SPDX-License-Identifier: Apache-2.0
"""map_batches(streaming=True): micro-batches of a real Apache Kafka through Python functions in a local Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kcodec
from kcodec import TopicPartition
from kcodec.client import Admin, Producer
from kcodec.spark import map_batches
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("functions_by_value")]
Position = tuple[str, int, int, bytes]
POSITIONS = "topic string, partition int, offset bigint, value binary"
NAMES = ("topic", "partition", "offset", "value")
TIMEOUT = 120


def positions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["topic", "partition", "offset", "value"])


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture
def topic(apache_kafka: ApacheKafka, servers: str) -> str:
    """Three partitions with 100 records each, of which a third is aborted."""
    name = apache_kafka.create_topic(partitions=3)
    with Producer(bootstrap_servers=servers, transactional_id=f"fill-{name}") as producer:
        for number in range(3):
            with producer.transaction() as transaction:
                sent = [transaction.send(name, b"%d-%d" % (number, each), partition=each % 3) for each in range(99)]
                for delivery in sent:
                    delivery.result()
                if number == 1:
                    transaction.abort()
    return name


def send(servers: str, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for each in range(count):
            producer.send(topic, b"more-%d" % each, partition=each % 3)


def consumed(servers: str, topic: str) -> list[Position]:
    with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level="read_committed") as records:
        return sorted(
            (topic, int(str(each.partition)), each.offset, each.value or b"")
            for batch in records
            for each in batch.records()
        )


def stream(spark: SparkSession, servers: str, topic: str, **options: Any) -> DataFrame:
    given = {"bootstrap_servers": servers, "isolation_level": "read_committed", "startingOffsets": "earliest"}
    return map_batches(spark, topic, positions, POSITIONS, streaming=True, **{**given, **options})


class Kept:
    """What foreachBatch was given: the rows of each batch, by its number; a replayed batch replaces the first one."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Position]] = {}
        self.fails_in: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect())
        self.batches[number] = rows
        if number == self.fails_in:
            raise RuntimeError("stopped before the commit")

    @property
    def rows(self) -> list[Position]:
        return sorted(row for rows in self.batches.values() for row in rows)


def run_available(frame: DataFrame, kept: Kept, checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(kept).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT)
    return query


def test_a_stream_delivers_each_record_once(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """AvailableNow with limits, a batch that fails behind the function and is replayed, and a restart."""
    from pyspark.errors import StreamingQueryException

    kept, checkpoint = Kept(), tmp_path / "checkpoint"
    kept.fails_in = 1
    with pytest.raises(StreamingQueryException, match="stopped before the commit"):
        run_available(stream(spark, servers, topic, maxOffsetsPerTrigger=120), kept, checkpoint)
    failed, kept.fails_in = kept.batches.pop(1), None
    query = run_available(stream(spark, servers, topic, maxOffsetsPerTrigger=120), kept, checkpoint)
    assert kept.batches[1] == failed
    assert len(kept.batches) == len(list((checkpoint / "commits").glob("[0-9]*"))) >= 3
    assert kept.rows == consumed(servers, topic)
    progress = json.loads(query.lastProgress.json)  # type: ignore[union-attr]
    assert progress["sources"][0]["endOffset"][topic]["0"] == 102
    send(servers, topic, 30)
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_partitions({topic: 4})
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"in a new partition", partition=3)
    run_available(stream(spark, servers, topic), kept, checkpoint)
    assert kept.rows == consumed(servers, topic)


def test_a_running_query_writes_files_of_any_sink(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    writer = stream(spark, servers, topic, minPartitions=6).writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "files"))
    try:
        for count in (10, 20):
            send(servers, topic, count)
            query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "files")).collect()
    assert sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in rows) == consumed(servers, topic)


def test_deleted_records_end_the_query(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    kept = Kept()
    run_available(stream(spark, servers, topic), kept, tmp_path)
    send(servers, topic, 30)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 105})
    with pytest.raises(StreamingQueryException, match=f"{topic}-0: offsets 102 to 104 cannot be read"):
        run_available(stream(spark, servers, topic), kept, tmp_path)
    run_available(stream(spark, servers, topic, failOnDataLoss=False), kept, tmp_path)
    assert len(kept.rows) == 198 + 30 - 3


def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            raise KeyError(f"no column price in {batch.num_rows} rows")
        yield batch


def test_an_error_of_the_function_ends_the_query(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    options: dict[str, Any] = {"bootstrap_servers": servers, "startingOffsets": "earliest", "client_id": "hush-hush"}
    frame = map_batches(spark, topic, fail, POSITIONS, streaming=True, **options)
    with pytest.raises(StreamingQueryException, match="no column price in") as raised:
        run_available(frame, Kept(), tmp_path)
    assert "hush-hush" not in str(raised.value)
    assert all("hush-hush" not in path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file())


def test_options_of_a_batch_are_refused_in_a_stream(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="option 'endingOffsets': a stream has no end"):
        stream(spark, "localhost:1", "orders", endingOffsets="latest")
