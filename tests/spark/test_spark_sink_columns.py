# SPDX-License-Identifier: Apache-2.0
"""The columns of a sink: accepted and refused as by Spark's own KafkaWriter, and given to send_arrow without a copy."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from spark_source import SparkSource

import kcodec
from kcodec.errors import EncodeError
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import table_batches
from kcodec.spark.sink_columns import SinkColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark
HEADERS = "array<struct<key:string,value:binary>>"
# DDL of a schema, and the option topic.
SCHEMAS: list[tuple[str, str | None]] = [
    ("value binary", "t"),
    ("value string", "t"),
    ("value binary", None),
    ("value string, topic string", None),
    ("value binary, topic binary", None),
    ("value binary, topic binary", "t"),
    ("value binary, topic int", " t "),
    ("key binary, value binary", "t"),
    ("key string, value string, topic string, partition int", None),
    ("key string not null, value binary not null", "t"),
    ("key int, value binary", "t"),
    ("key binary", "t"),
    ("Value binary", "t"),
    ("KEY int, value binary", "t"),
    ("value int", "t"),
    ("value struct<a:int>", "t"),
    ("value array<binary>", "t"),
    ("value void", "t"),
    ("value binary, partition int", "t"),
    ("value binary, partition bigint", "t"),
    ("value binary, partition smallint", "t"),
    ("value binary, partition string", "t"),
    (f"value binary, headers {HEADERS}", "t"),
    ("value binary, headers array<struct<KEY:string,Value:binary>>", "t"),
    ("value binary, headers array<struct<key:string not null,value:binary not null>>", "t"),
    ("value binary, headers array<struct<value:binary,key:string>>", "t"),
    ("value binary, headers array<struct<key:binary,value:binary>>", "t"),
    ("value binary, headers array<struct<key:string,value:string>>", "t"),
    ("value binary, headers array<struct<key:string,value:binary,more:int>>", "t"),
    ("value binary, headers array<struct<name:string,value:binary>>", "t"),
    ("value binary, headers map<string,binary>", "t"),
    ("value binary, headers string", "t"),
    ("value string collate UTF8_LCASE", "t"),
    ("key string collate UNICODE, value binary", "t"),
    ("value binary, topic string collate UNICODE", None),
    ("key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp", None),
    ("value binary, other array<int>", "t"),
]


def struct(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ("DATE'2026-01-02' AS value", b"2026-01-02"),
        ("CAST(1.5 AS DECIMAL(10, 2)) AS value", b"1.50"),
        ("struct(1 AS a, 'x' AS b) AS value", b'{"a":1,"b":"x"}'),
        ("array(1, 2) AS value", b"[1,2]"),
        ("map('a', 1) AS value", b'{"a":1}'),
        ("parse_json('[1]') AS value", b"[1]"),
        ("5 AS key", b"5"),
        ("NULL AS key", None),
        ("CAST(3 AS BIGINT) AS partition", 3),
        ("map('a', 'x') AS headers", [("a", b"x")]),
        ("array(struct('a' AS name, 'x' AS text)) AS headers", [("a", b"x")]),
        ("'x' AS headers", [("name", b"x")]),
        ("1 AS topic", "1"),
    ],
)
def test_the_error_of_a_type_names_an_expression_that_converts_it(
    spark: SparkSession, column: str, written: Any
) -> None:
    rows = spark.sql(f"SELECT {column}")
    (name,) = rows.columns
    rows = rows if name == "value" else rows.selectExpr(name, "'v' AS value")
    topic = None if name == "topic" else "t"
    with pytest.raises(ValueError, match="; convert it, for example with ") as caught:
        SinkColumns.of(rows.schema, topic)
    conversion = str(caught.value).partition("with ")[2]
    others = [other for other in rows.columns if other != name]
    converted = rows.selectExpr(f"{conversion} AS {name}", *others)
    SinkColumns.of(converted.schema, topic)
    found = converted.toArrow()[name][0].as_py()
    if name == "headers":
        found = [(header["key"], header["value"]) for header in found]
    assert (found.encode() if name in ("key", "value") and found is not None else found) == written


def test_schemas_are_accepted_as_by_sparks_own_sink(spark: SparkSession) -> None:
    theirs = SparkSource(spark)
    wrong, accepted = [], 0
    for ddl, topic in SCHEMAS:
        try:
            SinkColumns.of(struct(ddl), topic)
            error = None
        except ValueError as refused:
            error = str(refused)
        expected = theirs.refused_by_writer(spark.createDataFrame([], struct(ddl)), topic)
        accepted += expected is None
        if (error is None) != (expected is None):
            wrong.append(f"{ddl}, topic {topic}: {error!r}, and Spark's sink {expected!r}")
    assert not wrong
    assert 15 <= accepted <= len(SCHEMAS) - 15


@pytest.mark.parametrize(
    ("ddl", "topic", "text"),
    [
        ("value binary", None, r"no topic is given: set the option 'topic', or add a column topic \(string\)"),
        ("key binary", "t", "column 'value' is missing; the data has key"),
        ("Value binary", "t", r"'value' is missing \(names are compared exactly: rename 'Value'\)"),
        ("value int", "t", r"column 'value' is int: it must be string or binary; .* with CAST\(value AS STRING\)$"),
        ("value string, headers map<string,binary>", "t", "column 'headers' is map<string,binary>: it must be array<"),
        ("value string, partition bigint", "t", "column 'partition' is bigint: it must be int"),
    ],
)
def test_what_a_refused_schema_says(spark: SparkSession, ddl: str, topic: str | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SinkColumns.of(struct(ddl), topic)


def test_columns_that_are_not_written_are_named(spark: SparkSession) -> None:
    assert SinkColumns.of(struct("a int, value binary, timestamp timestamp"), "t").unused == ("a", "timestamp")
    assert SinkColumns.of(struct("topic int, value binary"), " t ") == SinkColumns((("value", 1),), "t", ("topic",))


def test_rows_of_several_topics_keep_their_order() -> None:
    columns = pickle.loads(pickle.dumps(SinkColumns((("topic", 1), ("value", 0)), None, ())))
    batch = pa.record_batch({"v": [b"%d" % number for number in range(7)], "t": list("abacaba")})
    found = {rows.topic: rows for rows in columns.by_topic(batch)}
    values = {topic: rows.table["value"].to_pylist() for topic, rows in found.items()}
    assert values == {"a": [b"0", b"2", b"4", b"6"], "b": [b"1", b"5"], "c": [b"3"]}
    assert [found["b"].row_in_batch(row) for row in (0, 1)] == [1, 5]
    (whole,) = columns.by_topic(batch.slice(0, 1))
    assert (whole.topic, whole.row_in_batch(0)) == ("a", 0)
    assert not list(columns.by_topic(batch.slice(0, 0)))


def test_a_row_without_a_topic_is_named() -> None:
    columns = SinkColumns((("topic", 1), ("value", 0)), None, ())
    batch = pa.record_batch({"v": [b"x"] * 3, "t": pa.array(["a", None, "b"])})
    with pytest.raises(EncodeError, match="row 1: column 'topic' is NULL; set the option 'topic'"):
        list(columns.by_topic(batch))


@pytest.mark.parametrize("large", [False, True])
def test_batches_of_pyspark_are_what_send_arrow_takes(spark: SparkSession, large: bool) -> None:
    """As PySpark passes them: fields that are not null, large types by spark.sql.execution.arrow.useLargeVarTypes."""
    from pyspark.sql.pandas.types import to_arrow_schema

    ddl = "partition int, key string not null, value binary, headers array<struct<KEY:string not null,VALUE:binary>>"
    schema = struct(f"at timestamp, {ddl}, topic string")
    arrow = to_arrow_schema(schema, timezone="Etc/UTC", prefers_large_types=large)
    headers: list[Any] = [[("a", b"1"), ("a", None)], None, []]
    rows = pa.record_batch(
        [[None] * 3, [0, None, 1], ["k", "l", "m"], [b"1", None, b"3"], headers, ["t"] * 3], schema=arrow
    )
    columns = SinkColumns.of(schema)
    (found,) = columns.by_topic(rows)
    made = table_batches(found.table, 2, ProducerSettings(), 7, None, default_partition=1)
    records = {
        batch.partition: [(one.key, one.value, one.headers) for one in kcodec.decode(batch.data).records()]
        for batch in made
    }
    assert records == {0: [(b"k", b"1", (("a", b"1"), ("a", None)))], 1: [(b"l", None, ()), (b"m", b"3", ())]}
