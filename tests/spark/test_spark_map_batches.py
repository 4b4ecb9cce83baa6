# SPDX-License-Identifier: Apache-2.0
"""map_batches: topics of a real Apache Kafka through Python functions in a local Spark."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from log_messages import messages
from spark_source import JARS

import kcodec
from kcodec import OffsetRange, TopicPartition
from kcodec.client import Admin, Producer
from kcodec.errors import BrokerError
from kcodec.network.foreign_options import WITHOUT_COUNTERPART
from kcodec.spark import land, map_batches, schema
from kcodec.spark.batch_functions import options_of_source
from kcodec.spark.client_options import why_refused
from kcodec.spark.planner import DataLossError
from kcodec.spark.topic_source import TopicSource
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("functions_by_value")]
Place = tuple[str, int, int]


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["topic", "partition", "offset", "value"])


def workers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The process, the number of clients of these options that it keeps, and the rows of a task."""
    from kcodec.client import range_records

    rows = sum(batch.num_rows for batch in batches)
    kept = sum(each.options.get("client_id") == "reuse" for each in range_records._clients._clients)
    yield pa.record_batch([[os.getpid()], [kept], [rows]], names=["pid", "kept", "rows"])


PLACES = "topic string, partition int, offset bigint, value binary"


def rows_of(spark: SparkSession, source: Any, **options: Any) -> dict[Place, bytes]:
    found = map_batches(spark, source, places, PLACES, **options).collect()
    rows = {(row.topic, row.partition, row.offset): bytes(row.value) for row in found}
    assert len(rows) == len(found)
    return rows


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture(scope="module")
def topics(apache_kafka: ApacheKafka, servers: str) -> list[str]:
    """Two topics of three partitions; every third transaction is aborted, and a record in four has headers."""
    names = [apache_kafka.create_topic(partitions=3) for _ in range(2)]
    with Producer(bootstrap_servers=servers, transactional_id=f"write-{names[0]}") as producer:
        for number in range(6):
            with producer.transaction() as transaction:
                sent = [
                    transaction.send(
                        names[index % 2],
                        b"%d-%d" % (number, index),
                        partition=index // 2 % 3,
                        headers={"n": b"x"} if index % 4 else None,
                    )
                    for index in range(60)
                ]
                for delivery in sent:
                    delivery.result()
                if number % 3 == 2:
                    transaction.abort()
    return names


def expected(servers: str, topics: list[str], level: Any = "read_uncommitted") -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}
    for topic in topics:
        with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=level) as records:
            for record in (record for batch in records for record in batch.records()):
                found[topic, int(str(record.partition)), record.offset] = record.value or b""
    return found


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_all_records_of_topics_pass_through_the_function(
    spark: SparkSession, servers: str, topics: list[str], level: str
) -> None:
    source = {
        "kafka.bootstrap.servers": servers,
        "subscribe": ", ".join(topics),
        "kafka.isolation.level": level,
        "minPartitions": "10",
    }
    found = map_batches(spark, source, places, PLACES)
    assert found.rdd.getNumPartitions() >= 10
    rows = rows_of(spark, source)
    assert rows == expected(servers, topics, level)
    assert len(rows) == {"read_committed": 240, "read_uncommitted": 360}[level]


def test_rows_and_schema_are_those_of_sparks_source(spark: SparkSession, servers: str, topics: list[str]) -> None:
    found = map_batches(
        spark, topics[0], unchanged, schema(include_headers=True), bootstrap_servers=servers, includeHeaders=True
    )
    assert found.schema == schema(include_headers=True)
    rows = {(row.topic, row.partition, row.offset): row for row in found.collect()}
    assert {place: bytes(row.value) for place, row in rows.items()} == expected(servers, topics[:1])
    with kcodec.read_topic(topics[0], bootstrap_servers=servers, isolation_level="read_uncommitted") as records:
        for record in (record for batch in records for record in batch.records()):
            row = rows[topics[0], int(str(record.partition)), record.offset]
            assert int(row.timestamp.timestamp() * 1000 + 0.5) == record.timestamp
            headers = None if row.headers is None else [(each.key, bytes(each.value)) for each in row.headers]
            assert headers == (list(record.headers) or None)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_rows_are_those_of_sparks_own_source(spark: SparkSession, servers: str, topics: list[str], level: str) -> None:
    """With headers and an offset that only a marker has."""
    assert list(JARS.glob("spark-sql-kafka-*.jar")), "the jars of Spark's Kafka source are missing: run `make jars`"
    source = {
        "kafka.bootstrap.servers": servers,
        "subscribe": ",".join(topics),
        "kafka.isolation.level": level,
        "includeHeaders": "true",
        "startingOffsets": json.dumps({topic: {"0": 3, "1": -2, "2": 20} for topic in topics}),
        "minPartitions": "9",
    }
    theirs = spark.read.format("kafka").options(**source).load()
    ours = map_batches(spark, source, unchanged, schema(include_headers=True))
    assert ours.schema == theirs.schema
    assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()
    # Compare sorted lists. Two calls of `exceptAll` check the same, but take ten times as long.
    rows, others = (sorted(map(repr, frame.collect())) for frame in (ours, theirs))
    assert len(others) > 100
    assert rows == others


def test_offsets_times_and_assigned_partitions(spark: SparkSession, servers: str, topics: list[str]) -> None:
    one = topics[0]
    everything = expected(servers, topics)
    assign = {"kafka.bootstrap.servers": servers, "assign": json.dumps({one: [0, 2]})}
    rows = rows_of(spark, assign, startingOffsets={one: {"0": 5, "2": -2}}, endingOffsets={one: {"0": 20, "2": -1}})
    assert rows == {
        place: value
        for place, value in everything.items()
        if place[0] == one and (place[1] == 2 or (place[1] == 0 and 5 <= place[2] < 20))
    }
    assert rows_of(spark, assign, startingTimestamp=1, endingTimestamp=2) == {}
    pattern = {"kafka.bootstrap.servers": servers, "subscribePattern": f"{one}|nothing.*"}
    assert rows_of(spark, pattern) == {place: value for place, value in everything.items() if place[0] == one}
    assert rows_of(spark, {**pattern, "subscribePattern": "nothing.*"}) == {}


def test_a_second_run_reads_the_same_ranges(spark: SparkSession, apache_kafka: ApacheKafka, servers: str) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"first").result()
        found = map_batches(spark, topic, places, PLACES, bootstrap_servers=servers)
        producer.send(topic, b"second").result()
    for _ in range(2):
        assert [bytes(row.value) for row in found.collect()] == [b"first"]


def test_reused_workers_keep_one_client(spark: SparkSession, servers: str, topics: list[str]) -> None:
    """By default PySpark reuses its workers; tasks of several queries then share connections."""
    options: dict[str, Any] = {"bootstrap_servers": servers, "client_id": "reuse"}
    found = []
    for _ in range(3):
        found += map_batches(spark, topics[0], workers, "pid bigint, kept bigint, rows bigint", **options).collect()
    assert sum(row.rows for row in found) == 3 * len(expected(servers, topics[:1]))
    assert len({row.pid for row in found}) < len(found)
    assert {row.kept for row in found} == {1}


def test_deleted_records_fail_or_are_skipped(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.errors import PythonException

    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=servers) as producer:
        for _ in range(10):
            producer.send(topic, b"x")
    source = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    planned = map_batches(spark, source, places, PLACES)
    lenient = map_batches(spark, source, places, PLACES, failOnDataLoss=False)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(PythonException, match=r"\[0, 10\): offset 0 is not in the log, which has offsets 4 to 10"):
        planned.collect()
    assert [row.offset for row in lenient.collect()] == [*range(4, 10)]
    starting = {topic: {"0": 0}}
    with pytest.raises(DataLossError, match="offsets 0 to 3 cannot be read"):
        map_batches(spark, source, places, PLACES, startingOffsets=starting)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        rows = rows_of(spark, source, startingOffsets=starting, failOnDataLoss="false")
    assert [offset for *_, offset in rows] == [*range(4, 10)]
    assert "offsets 0 to 3 cannot be read" in messages(caplog)


def test_a_topic_that_does_not_exist_is_an_error(spark: SparkSession, servers: str) -> None:
    with pytest.raises(BrokerError, match="nowhere"):
        map_batches(spark, "nowhere", places, PLACES, bootstrap_servers=servers)


def swapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["offset", "value", "topic", "partition"])


def returned(batches: Iterator[pa.RecordBatch]) -> Any:
    return sum(batch.num_rows for batch in batches)


def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    yield pa.Table.from_batches(batches)


@pytest.mark.parametrize(
    ("function", "schema", "text"),
    [
        (places, "topic string, place bigint", "yielded the columns topic, partition, offset, value: the schema of"),
        (
            places,
            PLACES.replace("offset bigint", "offset int"),
            "yielded column 'offset' as int64: .* has int, which is int32 in",
        ),
        (places, PLACES.replace("value binary", "value string"), "yielded column 'value' as binary: .* has string"),
        (returned, PLACES, r"returned\(\) returned int: expected an iterator of pyarrow.RecordBatch"),
        (tables, PLACES, r"tables\(\) yielded Table: .* yield the batches of table.to_batches\(\)"),
    ],
)
def test_a_function_that_yields_something_else(
    spark: SparkSession, servers: str, topics: list[str], function: Any, schema: str, text: str
) -> None:
    from pyspark.errors import PythonException

    with pytest.raises(PythonException, match=text):
        map_batches(spark, topics[0], function, schema, bootstrap_servers=servers).collect()


def test_columns_are_taken_by_name(spark: SparkSession, servers: str, topics: list[str]) -> None:
    """Only those that the function takes are decoded."""
    columns = ["value", "offset", "topic", "partition"]
    found = map_batches(spark, topics[0], swapped, PLACES, columns=columns, bootstrap_servers=servers).collect()
    rows = {(row.topic, row.partition, row.offset): bytes(row.value) for row in found}
    assert rows == expected(servers, topics[:1])
    with pytest.raises(ValueError, match=r"unknown column 'vale' \(did you mean 'value'\?\)"):
        map_batches(spark, topics[0], swapped, PLACES, columns=["vale"], bootstrap_servers=servers)
    nothing: Any = None
    with pytest.raises(TypeError, match="function is NoneType"):
        map_batches(spark, topics[0], nothing, PLACES, bootstrap_servers=servers)


def test_no_secret_is_in_the_plan(spark: SparkSession, servers: str, topics: list[str]) -> None:
    found = map_batches(spark, topics[0], places, PLACES, bootstrap_servers=servers, client_id="hush-hush")
    plan = found._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert "hush-hush" not in plan


# Options, without a cluster


SERVERS = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "t"}, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "b:9092"}, "exactly one of the options assign, subscribe, subscribePattern"),
        ({**SERVERS, "startingOfsets": "earliest"}, r"'startingOfsets' \(did you mean 'startingOffsets'\?\)"),
        ({**SERVERS, "kafka.fetch.min.bytes": "5"}, "option 'kafka.fetch.min.bytes' has no meaning here: a task reads"),
        (
            {**SERVERS, "kafka.group.protocol": "consumer"},
            "option 'kafka.group.protocol' has no meaning here: it is for",
        ),
        ({**SERVERS, "maxOffsetsPerTrigger": "x"}, "option 'maxOffsetsPerTrigger' is 'x'"),
        (
            {**SERVERS, "columns": ("key",)},
            "option 'columns' has no meaning here: the argument columns= of map_batches",
        ),
        ({**SERVERS, "on_error": "skip"}, "option 'on_error' has no meaning here: mode=permissive"),
        ({**SERVERS, "on_missing": "skip"}, "option 'on_missing' has no meaning here: failOnDataLoss"),
        ({**SERVERS, "framing": "confluent"}, "option 'framing' has no meaning here: keys and values contain"),
        ({**SERVERS, "binary_type": "binary_view"}, "option 'binary_type' has no meaning here: the types"),
        (
            {**SERVERS, "value_deserializer": bytes},
            "option 'value_deserializer' has no meaning here: values are binary",
        ),
        ({**SERVERS, "kafka.key.deserializer": "x"}, "option 'kafka.key.deserializer' has no meaning here: keys are"),
        ({**SERVERS, "session_timeout_ms": 5}, "option 'session_timeout_ms' has no meaning here: partitions are read"),
        ({**SERVERS, "kafka.sasl.client.callback.handler.class": "x"}, "has no meaning here: kcodec.token.provider"),
        (
            {**SERVERS, "kafka.metrics": "x"},
            "'kafka.metrics' must be a Python object, not the text of an option; pass it",
        ),
        ({**SERVERS, "kafka.limits": "x"}, "not the text of an option; set maxBatchBytes and maxDecompressedBytes"),
        ({**SERVERS, "kafka.retries": "3"}, "option 'kafka.retries' is for writing: leave it out$"),
        ({**SERVERS, "kafka.acks": "all"}, "option 'kafka.acks' is for writing: leave it out$"),
        (
            {**SERVERS, "kafka.receive.buffer.bytes": "65536"},
            "option 'kafka.receive.buffer.bytes' has no counterpart in kcodec: the operating system chooses",
        ),
        (
            {**SERVERS, "kafka.metric.reporters": "x"},
            "option 'kafka.metric.reporters' has no counterpart in kcodec: leave it out$",
        ),
        (
            {**SERVERS, "kafka.ssl.truststore.certificates": "x"},
            "kcodec: write the certificates into a PEM file, and name the file with kafka.ssl.truststore.location$",
        ),
        ({**SERVERS, "kafka.ssl.keystore.key": "x"}, "PEM file, and name the file with kafka.ssl.keystore.location$"),
        (
            {**SERVERS, "kafka.ssl.keystore.certificate.chain": "x"},
            "and name the file with kafka.ssl.keystore.location$",
        ),
        ({**SERVERS, "kafka.sasl.oauthbearer.assertion.file": "x"}, "; kcodec.token.provider names a Python function"),
        ({**SERVERS, "kafka.ssl.provider": "x"}, "in kcodec: TLS is that of Python's ssl module; leave it out$"),
        ({**SERVERS, "kafka.debug": "all"}, "in kcodec: set the level of the logger kcodec, one of Python's loggers$"),
        ({**SERVERS, "kafka.socket.max.fails": "1"}, "no response within kafka.request.timeout.ms$"),
        ({**SERVERS, "kafka.queue.buffering.max.messages": "1"}, "no counterpart in kcodec: leave it out$"),
        (
            {**SERVERS, "kafka.config.providers": "x"},
            "'kafka.config.providers' has no counterpart in kcodec: read files",
        ),
        ({**SERVERS, "max_partition_fetch_byte": 5}, r"\(did you mean 'max_partition_fetch_bytes'\?\)"),
        (
            {**SERVERS, "kafka.isolation.level": "commited"},
            "option 'kafka.isolation.level' must be one of read_uncommitted, read_committed, not 'commited'",
        ),
        ({**SERVERS, "isolation_level": "1"}, "option 'isolation_level' must be one of"),
        (
            {**SERVERS, "kafka.default.api.timeout.ms": "-1"},
            "option 'kafka.default.api.timeout.ms' must be a number of at least 1, not -1",
        ),
        ({**SERVERS, "max.partition.fetch.bytes": "0"}, "option 'max.partition.fetch.bytes' must be a number"),
        ({**SERVERS, "mode": "ignore"}, "option 'mode' is 'ignore'"),
        ({**SERVERS, "failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no': expected true or false"),
        ({**SERVERS, "minPartitions": "0"}, "option 'minPartitions' is '0'"),
        ({**SERVERS, "startingOffsets": "latest"}, "cannot be latest"),
    ],
)
def test_options_that_are_invalid(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TopicSource.of(options)


@pytest.mark.parametrize("is_write", [False, True])
def test_no_error_about_a_foreign_option_names_python(is_write: bool) -> None:
    """A user of Spark has no keyword arguments, and no options with underscores."""
    for option in WITHOUT_COUNTERPART:
        text = why_refused(option, is_write=is_write) or ""
        assert text and not re.search(r"=|\w\(|\b[a-z]+_[a-z]+", text), (option, text)


@pytest.mark.parametrize("source", [["a", "b"], ("a", "b"), {"subscribe": ["a", "b"]}, {"SUBSCRIBE": ("a", "b")}])
def test_topics_may_be_a_list(source: Any) -> None:
    options = options_of_source(source)
    assert TopicSource.of({"bootstrap_servers": "b:1", **options}).topics.subscribe == ("a", "b")


@pytest.mark.parametrize("source", [5, None, {"a", "b"}, [1], b"orders"])
def test_an_error_shows_the_forms_of_topics(source: Any, tmp_path: Path) -> None:
    nothing: Any = None
    text = r"expected names of topics as 'orders,payments' or \['orders', 'payments'\], or a dict of options"
    with pytest.raises(TypeError, match=text):
        map_batches(nothing, source, places, PLACES, bootstrap_servers="b:1")
    with pytest.raises(TypeError, match=text):
        land(nothing, source, tmp_path, bootstrap_servers="b:1")
    with pytest.raises(TypeError, match=r"option 'subscribe' is .*: expected names of topics"):
        TopicSource.of({"bootstrap_servers": "b:1", "subscribe": source})


def test_options_of_both_spellings() -> None:
    source = TopicSource.of(
        {
            "KAFKA.bootstrap.servers": "b:9092",
            "Subscribe": "t",
            "kafka.max.partition.fetch.bytes": "100",
            "check_crcs": False,
            "includeheaders": "TRUE",
            "mode": "PERMISSIVE",
        }
    )
    assert source.reading == {
        "bootstrap_servers": "b:9092",
        "max_partition_fetch_bytes": 100,
        "check_crcs": False,
        "isolation_level": "read_uncommitted",
        "on_error": "skip",
    }
    assert [column.name for column in source.columns][-2:] == ["timestampType", "headers"]
    assert source.planning == {"subscribe": "t"}
    assert OffsetRange("t", 0, 2, 7).size == 5
