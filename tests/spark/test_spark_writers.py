# SPDX-License-Identifier: Apache-2.0
"""write.format("kcodec"): rows to topics of a real Apache Kafka, compared with those of Spark's own sink."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from log_messages import messages

import kcodec
from kcodec import partition_for
from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic
from kcodec.errors import KcodecError
from kcodec.spark import writers
from kcodec.spark.sink_columns import SinkColumns
from kcodec.spark.source import KcodecDataSource
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("functions_by_value")]
HEADERS = "array<struct<key:string,value:binary>>"
# Every third row without a key, every fourth with a partition, NULL and empty values, no, empty and several headers.
ROWS = f"""
    if(id % 3 = 0, null, cast(id as string)) as key,
    case when id % 7 = 0 then null when id % 7 = 1 then '' else repeat(cast(id as string), 3) end as value,
    if(id % 4 = 0, cast(id % 3 as int), null) as partition,
    case id % 5 when 0 then null when 1 then cast(array() as {HEADERS})
                else cast(array(struct('a', encode(id, 'utf-8')), struct('a', null)) as {HEADERS}) end as headers
"""
ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUE = SinkColumns((("value", 0),), "t", ())


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture
def batches() -> Iterable[pa.RecordBatch]:
    return [pa.record_batch({"value": [b"%d" % row for row in range(start, start + 100)]}) for start in (0, 100, 200)]


def stored(spark: SparkSession, servers: str, topics: Iterable[str]) -> DataFrame:
    """What Spark's own source reads, topics named by their number; the partition where the row decides it."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": ",".join(topics), "includeHeaders": "true"}
    names = "case topic " + " ".join(f"when '{topic}' then {number}" for number, topic in enumerate(topics)) + " end"
    partition = "if(key is not null, partition, null)"
    return (
        spark.read.format("kafka")
        .options(**options)
        .load()
        .selectExpr(f"{names} as topic", "key", "value", "headers", f"{partition} as partition")
    )


def values_of(servers: str, topic: str) -> Counter[bytes | None]:
    with kcodec.read_topic(topic, bootstrap_servers=servers) as records:
        return Counter(record.value for batch in records for record in batch.records())


def assert_same(found: DataFrame, expected: DataFrame, count: int) -> None:
    """Compare sorted lists. Two calls of `exceptAll` check the same, but take ten times as long."""
    rows, others = (sorted(map(repr, frame.collect())) for frame in (found, expected))
    assert len(rows) == count
    assert rows == others


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_rows_are_those_that_sparks_own_sink_writes(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, kind: str
) -> None:
    rows = spark.sql(f"select {ROWS}, id % 2 as number from range(0, 3000, 1, 2)")
    rows = rows.withColumn("key", rows.key.cast(kind)).withColumn("value", rows.value.cast(kind))
    read: dict[str, DataFrame] = {}
    for sink in ("kafka", "kcodec"):
        topics = [apache_kafka.create_topic(partitions=3) for _ in range(2)]
        named = rows.selectExpr("*", f"if(number = 0, '{topics[0]}', '{topics[1]}') as topic")
        written = named.write.format(sink).mode("append").option("kafka.bootstrap.servers", servers)
        written.save()
        read[sink] = stored(spark, servers, topics)
    assert_same(read["kcodec"], read["kafka"], 3000)


def test_the_option_topic_overrides_the_column(spark: SparkSession, apache_kafka: ApacheKafka, servers: str) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    rows = spark.sql("select cast(id as string) as value, 'nowhere' as topic, id as offset from range(100)")
    rows.write.format("kcodec").mode("append").option("kafka.bootstrap.servers", servers).option("TOPIC", topic).save()
    assert values_of(servers, topic) == Counter(b"%d" % number for number in range(100))


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_streams_write_what_sparks_own_sink_writes(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, tmp_path: Path, mode: str
) -> None:
    """Two micro-batches each, the query restarted between them; complete sends all rows again with each."""
    topics = {sink: apache_kafka.create_topic(partitions=3) for sink in ("kafka", "kcodec")}
    for start in (0, 200):
        spark.range(start, start + 200).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        for sink, topic in topics.items():
            found = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
            rows = found.selectExpr("cast(id as string) as key", "cast(id as string) as value")
            if mode == "complete":
                rows = found.groupBy((found.id % 10).alias("n")).count().selectExpr("concat(n, ':', count) as value")
            query = (
                rows.writeStream.format(sink)
                .outputMode(mode)
                .queryName(f"{sink}-{mode}")
                .option("kafka.bootstrap.servers", servers)
                .option("topic", topic)
                .option("checkpointLocation", str(tmp_path / sink))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
    read = {sink: stored(spark, servers, [topic]) for sink, topic in topics.items()}
    assert_same(read["kcodec"], read["kafka"], 400 if mode == "append" else 20)


class DyingWriter(writers.KcodecWriter):
    """Its worker is killed in partition 1, after two batches were acknowledged, unless the file of `spared` exists."""

    spared = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> writers.WrittenRows:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None or context.partitionId() != 1 or Path(self.spared).exists():
            return super().write(iterator)
        for _ in range(2):
            writers.write_rows([next(iterator)], self._columns, self._sink.producer)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")


class DyingSink(KcodecDataSource):
    """format("dying"): its option `spared` is the name of the file."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: Any, overwrite: bool) -> DyingWriter:
        options = dict(self.options)
        spared = options.pop("spared")
        sink = writers.WriteOptions.of(options)
        dying = DyingWriter(sink, SinkColumns.of(schema, sink.topic))
        dying.spared = spared
        return dying


def test_a_killed_worker_fails_the_job_and_a_second_run_loses_nothing(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, tmp_path: Path
) -> None:
    from py4j.protocol import Py4JJavaError

    topic = apache_kafka.create_topic(partitions=2)
    spark.dataSource.register(DyingSink)
    rows = spark.range(0, 60_000, 1, 2).selectExpr("cast(id as string) as value")
    written = rows.write.format("dying").mode("append").option("kafka.bootstrap.servers", servers)
    written = written.option("topic", topic).option("spared", str(tmp_path / "spared"))
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        written.save()
    (tmp_path / "spared").touch()
    written.save()
    found = values_of(servers, topic)
    assert set(found) == {b"%d" % number for number in range(60_000)}
    # What the killed worker had sent is there twice; so may be the rows of the task that had no part in it.
    assert all(found[b"%d" % number] == 2 for number in range(30_000, 50_000))
    assert all(found[b"%d" % number] == 1 for number in range(50_000, 60_000))


def test_commit_and_abort_log_and_touch_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """They run in another process than the planning, and abort may be called after a commit."""
    sink = writers.WriteOptions.of({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    writer = writers.KcodecWriter(sink, VALUE)
    with caplog.at_level(logging.INFO, "kcodec.spark"):
        writer.commit([writers.WrittenRows(3), writers.WrittenRows(4)])
        writer.abort([writers.WrittenRows(3), None])
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "7 rows of 2 tasks are written" in messages(caplog)
    assert "3 rows of 1 tasks that succeeded" in messages(caplog)


def test_modes_that_replace_rows_are_refused(spark: SparkSession) -> None:
    """Overwrite by us; ignore, and errorifexists, which is Spark's default, by Spark for every Python source."""
    from pyspark.errors import AnalysisException

    texts = {"overwrite": 'mode\\("overwrite"\\) is not possible', "ignore": "Ignore", "errorifexists": "ErrorIfExists"}
    for mode, text in texts.items():
        written = spark.range(1).selectExpr("'x' as value").write.format("kcodec").mode(mode)
        with pytest.raises(AnalysisException, match=text):
            written.option("kafka.bootstrap.servers", "127.0.0.1:1").option("topic", "t").save()


# One task, without Spark


def test_one_producer_serves_the_tasks_of_a_process(
    apache_kafka: ApacheKafka, servers: str, batches: list[pa.RecordBatch]
) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    columns = SinkColumns((("value", 0),), topic, ())
    kept = writers._producers._idle
    writers._producers._forget()
    try:
        options = {"bootstrap_servers": servers, "client_id": "kept"}
        for _ in range(3):
            assert writers.write_rows(batches, columns, options) == 300
        ((_, producer),) = writers._producers._idle
        writers.write_rows(batches, columns, {**options, "compression_type": "lz4"})
        assert [one.producer is producer for one in writers._producers._idle] == [True, False]
        too_many = [pa.record_batch({"value": [b"x" * 2_000_000]})]
        with pytest.raises(KcodecError, match="max_request_size"):
            writers.write_rows(too_many, columns, options)
        assert producer not in [one.producer for one in writers._producers._idle]
        for number in range(writers.MOST_IDLE + 2):
            writers.write_rows(batches[:1], columns, {**options, "client_id": f"c{number}"})
        assert len(writers._producers._idle) == writers.MOST_IDLE
        child = os.fork()
        if not child:
            os._exit(len(writers._producers._idle))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for one in writers._producers._idle:
            one.producer.close()
        writers._producers._idle = kept
    assert sum(values_of(servers, topic).values()) == 4 * 300 + 600


def test_rows_reach_a_partition_that_was_added_between_two_tasks(apache_kafka: ApacheKafka, servers: str) -> None:
    """The producer that the first task leaves behind knows the metadata from before."""
    topic = apache_kafka.create_topic(partitions=2)
    columns = SinkColumns((("value", 0), ("partition", 1)), topic, ())
    options = {"bootstrap_servers": servers, "client_id": "grown"}
    batches = [pa.record_batch({"value": [b"0", b"1"], "partition": pa.array([0, 1], "int32")})]
    assert writers.write_rows(batches, columns, options) == 2
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_partitions({topic: 3})
    batches.append(pa.record_batch({"value": [b"2"], "partition": pa.array([2], "int32")}))
    assert writers.write_rows(batches, columns, options) == 3
    assert values_of(servers, topic) == {b"0": 2, b"1": 2, b"2": 1}


def test_rows_reach_a_partition_that_was_added_during_a_task(apache_kafka: ApacheKafka, servers: str) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    columns = SinkColumns((("value", 0), ("partition", 1)), topic, ())

    def batches() -> Iterator[pa.RecordBatch]:
        for partition in range(3):
            if partition == 1:
                with Admin(bootstrap_servers=servers) as admin:
                    admin.create_partitions({topic: 3})
            yield pa.record_batch({"value": [b"%d" % partition], "partition": pa.array([partition], "int32")})

    assert writers.write_rows(batches(), columns, {"bootstrap_servers": servers, "client_id": "growing"}) == 3
    assert values_of(servers, topic) == {b"0": 1, b"1": 1, b"2": 1}


@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_of_a_later_task_go_to_a_topic_that_was_created_again(kcodec_broker: Broker, partitions: int) -> None:
    """The producer that the first task leaves behind knows the metadata of the deleted topic. With fewer partitions, it
    would fail the task; with more partitions, it would choose partitions by keys as if there were three."""
    topic, servers = kcodec_broker.create_topic(partitions=3), kcodec_broker.bootstrap_servers
    columns = SinkColumns((("key", 0), ("value", 0)), topic, ())
    options = {"bootstrap_servers": servers, "client_id": f"again-{partitions}"}
    keys = [b"%d" % number for number in range(100)]
    batches = [pa.record_batch({"key": keys})]
    assert writers.write_rows(batches, columns, options) == 100
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, num_partitions=partitions)])
    assert writers.write_rows(batches, columns, options) == 100
    with kcodec.read_topic(topic, bootstrap_servers=servers) as records:
        found = {record.key: batch.partition for batch in records for record in batch.records()}
    assert found == dict(zip(keys, partition_for(keys, partitions), strict=True))


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            {"value": [b"a", b"b"], "partition": pa.array([0, 7], "int32")},
            r"row 301, topic '.*': partition 7 does not exist: .*; drop the column 'partition' to let the key choose$",
        ),
        (
            {"value": [b"a", b"x" * 2_000_000]},
            r"row 301, topic '.*': the record takes 2000\d+ bytes, above max",
        ),
        ({"value": [b"a"], "headers": pa.array([[(None, b"x")]], ARROW_HEADERS)}, "row 300, .*: headers.key is null"),
    ],
)
def test_a_row_that_makes_no_record_is_named(
    apache_kafka: ApacheKafka, servers: str, batches: list[pa.RecordBatch], batch: dict[str, Any], text: str
) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    last = pa.record_batch(batch)
    columns = SinkColumns(tuple((name, number) for number, name in enumerate(batch)), topic, ())
    nulls = {field.name: pa.nulls(100, field.type) for field in last.schema}
    padded = [pa.record_batch({**nulls, "value": each["value"]}) for each in batches]
    with pytest.raises(KcodecError, match=f"outside of a task, {text}"):
        writers.write_rows([*padded, last], columns, {"bootstrap_servers": servers})


def test_a_row_without_a_topic_is_named_with_its_number_in_the_task(servers: str, apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    columns = SinkColumns((("value", 0), ("topic", 1)), None, ())
    batches = [pa.record_batch({"v": ["a", "b"], "t": pa.array(names)}) for names in ([topic, topic], [topic, None])]
    with pytest.raises(KcodecError, match="row 3: column 'topic' is NULL; set the option 'topic'"):
        writers.write_rows(batches, columns, {"bootstrap_servers": servers})


def test_a_batch_that_brokers_refuse_fails_the_task(
    apache_kafka: ApacheKafka, servers: str, batches: list[pa.RecordBatch]
) -> None:
    topic = apache_kafka.create_topic(partitions=1, max_message_bytes=1000)
    columns = SinkColumns((("value", 0),), topic, ())
    large = pa.record_batch({"value": [b"x" * 5000]})
    with pytest.raises(KcodecError, match=r"rows 300 to 300, topic '.*MESSAGE_TOO_LARGE"):
        writers.write_rows([*batches, large], columns, {"bootstrap_servers": servers})
    assert sum(values_of(servers, topic).values()) == 300


def test_brokers_that_are_away_fail_the_task_in_time(batches: list[pa.RecordBatch]) -> None:
    options = {"bootstrap_servers": "127.0.0.1:1", "max_block_ms": 300}
    with pytest.raises(KcodecError, match=r"rows 0 to 99, topic .t.: .*127.0.0.1:1: no connection: Connection refused"):
        writers.write_rows(batches, VALUE, options)


def test_a_task_without_rows_needs_no_broker() -> None:
    assert writers.write_rows([], VALUE, {"bootstrap_servers": "127.0.0.1:1"}) == 0


def test_an_error_of_the_input_is_raised_as_it_is(servers: str, apache_kafka: ApacheKafka) -> None:
    columns = SinkColumns((("value", 0),), apache_kafka.create_topic(partitions=1), ())

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"x"]})
        raise ZeroDivisionError("in the plan before")

    with pytest.raises(ZeroDivisionError, match="in the plan before"):
        writers.write_rows(failing(), columns, {"bootstrap_servers": servers})


# Options


SERVERS = {"kafka.bootstrap.servers": "b:9092", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "t"}, "option 'kafka.bootstrap.servers' is missing"),
        ({**SERVERS, "topc": "x"}, r"unknown option 'topc' \(did you mean 'topic'\?\)"),
        ({**SERVERS, "kafka.linger": "5"}, r"unknown option 'kafka.linger' \(did you mean 'kafka.linger.ms'\?\)"),
        (
            {**SERVERS, "kafka.metric.reporters": "x"},
            "'kafka.metric.reporters' has no counterpart in kcodec: leave it out$",
        ),
        ({**SERVERS, "kafka.send.buffer.bytes": "1"}, "'kafka.send.buffer.bytes' has no counterpart in kcodec: the"),
        ({**SERVERS, "kafka.fetch.min.bytes": "1"}, "option 'kafka.fetch.min.bytes' is for reading: leave it out$"),
        (
            {**SERVERS, "kafka.metrics": "x"},
            "'kafka.metrics' is a Python object in kcodec, which Spark cannot pass: leave",
        ),
        ({**SERVERS, "kafka.queue.buffering.max.messages": "1"}, "kafka.buffer.memory bounds the bytes of the buffer$"),
        ({**SERVERS, "kafka.client.rack": "a"}, "option 'kafka.client.rack' is for reading: leave it out$"),
        ({**SERVERS, "kafka.sasl.login.callback.handler.class": "x"}, "has no meaning here: kcodec.token.provider"),
        ({}, "the writer has no options: a table of kcodec can only be read"),
        ({**SERVERS, "path": "/x"}, "option 'path' is for reading: set the option 'topic' to write to a topic"),
        ({**SERVERS, "subscribe": "x"}, "option 'subscribe' is for reading"),
        ({**SERVERS, "includeHeaders": "true"}, "option 'includeHeaders' is for reading: leave it out$"),
        ({**SERVERS, "failOnDataLoss": "true"}, "option 'failOnDataLoss' is for reading"),
        ({**SERVERS, "kafka.isolation.level": "x"}, "option 'kafka.isolation.level' is for reading"),
        (
            {**SERVERS, "delivery": "exactly_once"},
            r"expected at_least_once, .* call kcodec\.spark\.exactly_once instead",
        ),
        ({**SERVERS, "delivery": "twice"}, "option 'delivery' is 'twice': expected at_least_once"),
        ({**SERVERS, "kafka.acks": "1"}, "option 'kafka.acks' is 1: expected all"),
        ({**SERVERS, "kafka.transactional.id": "x"}, "is for transactions: call kcodec.spark.exactly_once"),
        ({**SERVERS, "kafka.key.serializer": "x"}, "key and value are written as they are"),
        ({**SERVERS, "kafka.partitioner.class": "x"}, "has no meaning here: a column partition"),
        ({**SERVERS, "kafka.compression.type": "lzma"}, "compression_type must be one of none, gzip"),
        ({**SERVERS, "kafka.linger.ms": "soon"}, "linger.ms must be a number"),
        ({**SERVERS, "kafka.delivery.timeout.ms": "5"}, "delivery_timeout_ms"),
        ({**SERVERS, "kcodec.token.provider": "module"}, "token.provider': expected module:function"),
    ],
)
def test_options_that_are_not_those_of_a_sink(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        writers.WriteOptions.of(options)


def test_options_in_both_spellings() -> None:
    options = {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.acks": "all",
        "compression_type": "lz4",
        "kafka.sasl.jaas.config": 'x required username="u" password="hush";',
        "checkpointLocation": "/x",
        "queryName": "q",
        "Delivery": "AT_LEAST_ONCE",
    }
    sink = writers.WriteOptions.of(options)
    assert sink.topic is None
    assert sink.producer == {
        "bootstrap_servers": "b:9092",
        "acks": "all",
        "compression_type": "lz4",
        "sasl_plain_username": "u",
        "sasl_plain_password": "hush",
    }
    assert "hush" not in repr(sink)


def test_streams_before_spark_41_are_refused(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setattr(writers, "StreamArrowWriter", object)
    with pytest.raises(NotImplementedError, match=r"needs Spark 4\.1 or newer; on Spark 4\.0 write each batch with"):
        writers.stream_writer(SERVERS, spark.sql("select 'x' as value").schema)
