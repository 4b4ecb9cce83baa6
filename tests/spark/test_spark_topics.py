# SPDX-License-Identifier: Apache-2.0
"""``format("kcodec")`` over topics of a real Apache Kafka, batch and streaming; Spark's own connector is the judge."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from log_messages import messages
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from spark_source import JARS

from kcodec import spark as kcodec_spark
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark
LEVELS = ["read_uncommitted", "read_committed"]
CODECS: list[Any] = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka, servers: str) -> str:
    """Three partitions; each codec; keys, values and headers that are NULL or empty; half the transactions aborted."""
    name = apache_kafka.create_topic(partitions=3)
    for codec in CODECS:
        with Producer(
            bootstrap_servers=servers,
            transactional_id=f"{name}-{codec}",
            compression_type=codec,
        ) as producer:
            for number in range(4):
                with producer.transaction() as transaction:
                    sent = [
                        transaction.send(
                            name,
                            [b"%s-%d-%d" % (codec.encode(), number, index), b"", None][index % 7 % 3],
                            key=[None, b"k%d" % index, b""][index % 3],
                            partition=index % 3,
                            headers=[None, {"a": b"x"}, [("b", None), ("b", b"")]][index % 5 % 3],
                        )
                        for index in range(30)
                    ]
                    for delivery in sent:
                        delivery.result()
                    if number % 2:
                        transaction.abort()
    return name


@pytest.fixture
def stopped(spark: SparkSession) -> Iterator[None]:
    """Stop the queries that a test leaves."""
    yield
    for query in spark.streams.active:
        query.stop()


def options_of(servers: str, topic: str, **options: Any) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}


def rows_of(frame: DataFrame) -> list[str]:
    """All rows; equal lists are what exceptAll shows as 0 in both directions, at a tenth of its time."""
    return sorted(map(repr, frame.collect()))


def started(spark: SparkSession, options: dict[str, str], checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """A stream into the table `streamed` in memory."""
    writer = spark.readStream.format("kcodec").options(**options).load().writeStream.format("memory")
    return writer.queryName("streamed").option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def finished(query: StreamingQuery) -> list[Any]:
    """The progress of each batch of a query with AvailableNow."""
    assert query.awaitTermination(180)
    return list(query.recentProgress)


def lag(progress: Any) -> int:
    """As docs/spark-operations.md has it."""
    source = progress["sources"][0]
    ends, latest = (json.loads(source[name]) for name in ("endOffset", "latestOffset"))
    return sum(
        offset - ends.get(topic, {}).get(partition, 0)
        for topic, offsets in latest.items()
        if topic != "v"
        for partition, offset in offsets.items()
        if partition != "id"
    )


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_of_sparks_own_connector(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, level: str, stopped: None
) -> None:
    """In a batch query, and in a stream of several batches."""
    assert list(JARS.glob("spark-sql-kafka-*.jar")), "the jars of Spark's Kafka source are missing: run `make jars`"
    options = options_of(servers, topic, includeHeaders="true", **{"kafka.isolation.level": level})
    theirs = spark.read.format("kafka").options(**options).load()
    ours = spark.read.format("kcodec").options(**options).load()
    assert ours.schema == theirs.schema
    expected = rows_of(theirs)
    assert len(expected) == {"read_uncommitted": 600, "read_committed": 300}[level]
    assert rows_of(ours) == expected
    limited = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"}
    progress = finished(started(spark, limited, tmp_path / "checkpoint", availableNow=True))
    assert rows_of(spark.table("streamed")) == expected
    assert [lag(one) for one in progress] == [660 - 249, 660 - 498, 0]
    assert sum(one["numInputRows"] for one in progress) == len(expected)


def test_columns_that_the_user_chooses(spark: SparkSession, servers: str, topic: str) -> None:
    options = options_of(servers, topic, endingOffsets=json.dumps({topic: {"0": 20, "1": 0, "2": 5}}))
    reader = spark.read.format("kcodec").options(**options)
    whole = {(row.partition, row.offset): row.value for row in reader.load().collect()}
    chosen = reader.schema("VALUE binary, offset bigint, partition int").load()
    assert {(row.partition, row.offset): row.VALUE for row in chosen.collect()} == whole
    assert chosen.columns == ["VALUE", "offset", "partition"]
    assert reader.schema(StructType([])).load().count() == len(whole)
    meta = reader.schema("partition int, offset bigint, isTransactional boolean, leaderEpoch int").load()
    assert {(row.isTransactional, row.leaderEpoch) for row in meta.collect()} == {(True, 0)}
    assert spark.read.format("kcodec").options(**options, includeBatchMeta="true").load().schema == (
        kcodec_spark.schema(include_batch_meta=True)
    )


def test_a_restart_continues_and_a_replay_is_the_same(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, tmp_path: Path
) -> None:
    """The second run begins with a batch that was planned and not committed, as after a crash."""
    topic = apache_kafka.create_topic(partitions=2)
    options = options_of(servers, topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    checkpoint = tmp_path / "checkpoint"
    batches: list[tuple[int, list[tuple[int, int]]]] = []

    def note(frame: DataFrame, number: int) -> None:
        batches.append((number, sorted((row.partition, row.offset) for row in frame.collect())))

    def run() -> None:
        writer = spark.readStream.format("kcodec").options(**options).load().writeStream.foreachBatch(note)
        finished(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())

    with Producer(bootstrap_servers=servers) as producer:
        for index in range(50):
            producer.send(topic, b"x", partition=index % 2)
    run()
    for place in (checkpoint / "commits").glob("*1*"):
        place.unlink()
    with Producer(bootstrap_servers=servers) as producer:
        for index in range(10):
            producer.send(topic, b"y", partition=index % 2)
    run()
    assert [number for number, _ in batches] == [0, 1, 1, 2]
    assert batches[1] == batches[2]
    places = [place for number in (0, 1, 3) for place in batches[number][1]]
    assert sorted(places) == [(partition, offset) for partition in range(2) for offset in range(30)]


def test_aborted_records_alone_never_stall_a_stream(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, tmp_path: Path, stopped: None
) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=servers, transactional_id=f"abort-{topic}") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"x", partition=0).result()
            transaction.abort()
        with producer.transaction() as transaction:
            transaction.send(topic, b"y", partition=0).result()
    committed = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": "1"}
    await_end(servers, topic, 4)
    progress = finished(
        started(spark, options_of(servers, topic, **committed), tmp_path / "checkpoint", availableNow=True)
    )
    assert [one["numInputRows"] for one in progress] == [0, 0, 1, 0]


def await_end(servers: str, topic: str, end: int) -> None:
    """Wait for a marker, which EndTxn does not."""
    with Admin(bootstrap_servers=servers) as admin:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            (found,) = admin.list_offsets({(topic, 0): "latest"}, isolation_level="read_committed").values()  # type: ignore[dict-item]
            if found.offset >= end:
                return
            time.sleep(0.05)


def test_an_empty_topic_waits_and_stops(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, tmp_path: Path, stopped: None
) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    assert spark.read.format("kcodec").options(**options_of(servers, topic)).load().count() == 0
    query = started(spark, options_of(servers, topic), tmp_path / "checkpoint", processingTime="0 seconds")
    wait_until(lambda: bool(query.status["message"] == "Waiting for data to arrive"))
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"x").result()
    wait_until(lambda: spark.table("streamed").count() == 1)
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 10
    assert query.exception() is None


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():  # asked once in each round: a status that was reached may be over the next time
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_broker_that_goes_away_ends_the_query_in_time(
    spark: SparkSession, apache_kafka_factory: Any, tmp_path: Path, stopped: None
) -> None:
    kafka = apache_kafka_factory()
    topic = kafka.create_topic(partitions=1)
    bounded = {"startingOffsets": "earliest", "kafka.default.api.timeout.ms": "4000"}
    options = options_of(kafka.bootstrap_servers, topic, **bounded)
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        producer.send(topic, b"x").result()
    queries = [
        started(spark, options, tmp_path / "one", processingTime="0 seconds"),
        spark.readStream.format("kcodec").options(**{**options, "kafka.default.api.timeout.ms": "60000"}).load()
        .writeStream.format("noop").option("checkpointLocation", str(tmp_path / "two")).start(),
    ]  # fmt: skip
    for query in queries:
        wait_until(lambda query=query: any(one["numInputRows"] for one in query.recentProgress))  # type: ignore[misc]
    kafka.kill()
    begun = time.monotonic()
    with pytest.raises(PySparkException, match=kafka.bootstrap_servers):  # the streams wait for the broker meanwhile
        spark.read.format("kcodec").options(**options).load().count()
    with pytest.raises(PySparkException, match="not finished within 4 s"):
        queries[0].awaitTermination(60)
    queries[1].stop()
    assert time.monotonic() - begun < 45


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "t"}, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "b:1"}, "exactly one of the options assign, subscribe, subscribePattern"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "assign": "{}"}, "found assign, subscribe"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "path": "/x"}, "and a path is given as well"),
        ({}, "no path is given, and no topics"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "startingOfsets": "x"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "kafka.retries": "1"}, "'kafka.retries' is for writing"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "pushdown": "no"}, "option 'pushdown' is 'no'"),
    ],
)
def test_invalid_options_are_errors_of_load(spark: SparkSession, options: dict[str, str], text: str) -> None:
    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match=text):
            reader.format("kcodec").options(**options).load()


def test_a_topic_that_does_not_exist(spark: SparkSession, servers: str, tmp_path: Path, stopped: None) -> None:
    options = options_of(servers, "nowhere")
    query = started(spark, options, tmp_path / "checkpoint", availableNow=True)  # it waits for the topic meanwhile
    with pytest.raises(PySparkException, match="describe topic 'nowhere'"):
        spark.read.format("kcodec").options(**options).load().count()
    with pytest.raises(PySparkException, match="describe topic 'nowhere'"):
        finished(query)


def test_a_table_over_a_topic(spark: SparkSession, servers: str, topic: str) -> None:
    options = f"'kafka.bootstrap.servers' '{servers}', 'subscribe' '{topic}', 'kafka.isolation.level' 'read_committed'"
    spark.sql(f"CREATE TABLE of_topic USING kcodec OPTIONS ({options})")
    try:
        assert spark.sql("SELECT count(*) AS rows FROM of_topic").collect()[0].rows == 300
    finally:
        spark.sql("DROP TABLE of_topic")


def test_options_of_streams_are_ignored_in_batch_queries(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    from kcodec.spark.topic_source import TopicSource

    with caplog.at_level(logging.INFO, "kcodec.spark"):
        source = TopicSource.of(options_of(servers, topic, maxOffsetsPerTrigger="5", **{"kafka.group.id": "g"}))
        rows = sum(batch.num_rows for batch in source.read(source.plan()))
    assert rows == 600
    assert "option maxOffsetsPerTrigger is ignored in batch queries" in messages(caplog)
    assert "option kafka.group.id is ignored in batch queries" in messages(caplog)
    line = next(record for record in caplog.records if record.getMessage().startswith("task "))
    fields = line.kcodec  # type: ignore[attr-defined]
    assert (fields["records"], fields["control"], fields["lost_offsets"]) == (600, 60, 0)
    counts = f"records=600 bytes={fields['bytes']} aborted=0 control=60 skipped_batches=0 lost_offsets=0"
    assert counts in messages(caplog)
