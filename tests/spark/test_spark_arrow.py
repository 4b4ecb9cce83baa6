# SPDX-License-Identifier: Apache-2.0
"""``decode_in_arrow`` and ``decode_partition``: rows are those Kafka's own consumer delivered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from golden_data import fetched, same_bytes
from log_messages import messages
from pyspark.errors import PySparkException
from spark_truth import batch_positions, by_partition, consumed, differences, golden, write_log

import kcodec
from kcodec.errors import CorruptBatchError
from kcodec.spark import decode_in_arrow, decode_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
LEVELS = ["read_uncommitted", "read_committed"]
NAMES = ["txn-mixed-0", "txn-mixed-1", "txn-open-0", "edge-java-zstd-0", "raw-refused-0", "ts-librdkafka-0"]


def record_sets(spark: SparkSession, *data: bytes | None) -> DataFrame:
    return spark.createDataFrame([(one,) for one in data], "value binary")


def of_paths(spark: SparkSession, *paths: Path) -> DataFrame:
    return spark.createDataFrame([(str(path),) for path in paths], "file string").repartition(3)


@pytest.mark.parametrize("isolation_level", LEVELS)
def test_a_column_of_record_sets(spark: SparkSession, isolation_level: str) -> None:
    for name in ("txn-mixed-0", "txn-open-0", "raw-refused-0"):
        partition = golden(name)
        frame = decode_in_arrow(
            record_sets(spark, partition.log, None),
            topic=partition.topic,
            partition=partition.partition,
            include_headers=True,
            isolation_level=isolation_level,
        )
        assert frame.schema == kcodec.spark.schema(include_headers=True)
        assert differences(frame.collect(), consumed(partition, isolation_level), partition) == []


@pytest.mark.parametrize("isolation_level", LEVELS)
def test_a_column_of_paths_is_resolved_per_directory(spark: SparkSession, isolation_level: str) -> None:
    wanted = [golden(name) for name in NAMES]
    frame = of_paths(spark, *[segment for each in wanted for segment in each.segments])
    decoded = decode_in_arrow(frame, paths="file", include_headers=True, isolation_level=isolation_level)
    rows = by_partition(decoded.orderBy("offset").collect())
    for each in wanted:
        found = rows.get((each.topic, each.partition), [])
        assert differences(found, consumed(each, isolation_level), each) == []


def test_a_directory_among_the_paths_is_read_whole(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    decoded = decode_in_arrow(
        of_paths(spark, partition.path), paths="file", include_headers=True, isolation_level="read_committed"
    )
    assert differences(decoded.collect(), consumed(partition, "read_committed"), partition) == []


def test_fetch_answers_with_their_aborted_list(spark: SparkSession) -> None:
    answers = [each for each in fetched() if each.aborted_transactions and each.magics == {2}]
    assert answers
    for each in answers[:2]:
        options: dict[str, Any] = {"aborted_transactions": list(each.aborted_transactions or ())}
        options |= {"isolation_level": "read_committed", "last_stable_offset": each.last_stable_offset}
        decoded = decode_in_arrow(record_sets(spark, each.data), **options)
        expected = kcodec.decode(each.data, **options)
        assert [row.offset for row in decoded.collect()] == [record.offset for record in expected.records()]


def test_timestamps_are_points_in_time_whatever_timestamp_type_spark_is_set_to(spark: SparkSession) -> None:
    frame = record_sets(spark, golden("txn-java-0").log)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert dict(decode_in_arrow(frame).dtypes)["timestamp"] == "timestamp"
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_columns_are_chosen_in_either_spelling(spark: SparkSession) -> None:
    partition = golden("txn-java-0")
    frame = record_sets(spark, partition.log)
    decoded = decode_in_arrow(frame, columns=["producerId", "is_transactional", "offset", "partition"], partition=4)
    assert decoded.columns == ["producerId", "isTransactional", "offset", "partition"]
    assert {row.partition for row in decoded.collect()} == {4}
    offsets = [row.offset for row in decode_in_arrow(frame, start_offset=5, end_offset=9).collect()]
    assert offsets == [reported["offset"] for reported in consumed(partition, LEVELS[0]) if 5 <= reported["offset"] < 9]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"column": "value", "paths": "value"}, "column and paths exclude each other"),
        ({"isolation": "read_committed"}, "record sets has no option 'isolation'"),
        ({"paths": "value", "aborted_transactions": []}, "files has no option 'aborted_transactions'"),
        ({"binary_type": "binary_view"}, "binary_type must be 'binary'"),
        ({"columns": ["valeu"]}, "unknown column 'valeu' .did you mean 'value'"),
        ({"columns": ["value"], "include_headers": True}, "columns excludes include_headers"),
    ],
)
def test_wrong_arguments_are_reported_at_once(spark: SparkSession, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_in_arrow(record_sets(spark), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"column": "text"}, "column 'text' is of type string: expected binary, .* pass paths='text'"),
        ({"column": "id"}, "column 'id' is of type bigint: expected binary, for the bytes of record batches"),
        ({"paths": "id"}, "column 'id' is of type bigint: expected string, for the paths of files"),
        ({"paths": "value"}, "column 'value' is of type binary: expected string"),
    ],
)
def test_a_column_of_another_type_is_an_error(spark: SparkSession, options: dict[str, Any], text: str) -> None:
    frame = spark.range(1).selectExpr("id", "'abc' as text", "cast('abc' as binary) as value")
    with pytest.raises(TypeError, match=text):
        decode_in_arrow(frame, **options)


def test_corruption_fails_the_task_or_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    source = golden("plain-java-none-0")
    data = bytearray(source.log)
    position = batch_positions(data)[1]
    data[position + 70] ^= 1
    paths = of_paths(spark, write_log(tmp_path / "orders-0", {0: bytes(data)}))
    sets = record_sets(spark, bytes(data))
    ways: tuple[tuple[Callable[..., DataFrame], str, str], ...] = (
        (lambda **options: decode_in_arrow(paths, paths="file", **options), "orders-0/.*", ""),
        (lambda **options: decode_in_arrow(sets, **options), "", "; the record set is in row 0 of the task"),
    )
    for decode, before, after in ways:
        place = rf"batch at byte {position} \(base_offset \d+\): "
        with pytest.raises(PySparkException, match=f"{before}{place}.*{after}"):
            decode().collect()
        skipped = [row.offset for row in decode(on_error="skip").collect()]
        assert 0 < len(skipped) < len(consumed(source, LEVELS[0]))


def test_a_timestamp_beyond_microseconds_is_an_error_that_names_the_offset(spark: SparkSession) -> None:
    import struct

    import crc32c

    data = bytearray(golden("plain-java-none-0").log)
    end = batch_positions(data)[1]
    data = data[:end]
    struct.pack_into(">q", data, 27, 1 << 60)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    with pytest.raises(PySparkException, match=r"offset 0.* microseconds"):
        decode_in_arrow(record_sets(spark, bytes(data))).collect()


def test_decode_partition_gives_tuples_in_sparks_order(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    reported = consumed(partition, "read_committed")
    options: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
    options |= {"include_headers": True, "isolation_level": "read_committed"}
    rdd = spark.sparkContext.parallelize([partition.log], 1).mapPartitions(
        lambda sets: decode_partition(sets, **options)
    )
    frame = spark.createDataFrame(rdd, kcodec.spark.schema(include_headers=True))
    assert differences(frame.collect(), reported, partition) == []


def test_decode_partition_resolves_each_item_by_itself() -> None:
    partition = golden("txn-mixed-0")
    files = list(decode_partition(partition.segments, isolation_level="read_committed"))
    data = [segment.read_bytes() for segment in partition.segments]
    cells = list(decode_partition(data, topic="txn-mixed", partition=0, isolation_level="read_committed"))
    assert files == cells
    assert 0 < len(files) < len(consumed(partition, "read_committed"))
    offsets = [row[4] for row in decode_partition([str(partition.segments[1])])]
    reported = [each for each in consumed(partition, LEVELS[0]) if each["offset"] in offsets]
    assert [each["offset"] for each in reported] == offsets
    keys = [row[0] for row in decode_partition([str(partition.segments[1])])]
    assert all(same_bytes(key, each["key"]) for key, each in zip(keys, reported, strict=True))


def test_what_was_not_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    data = bytearray(golden("plain-java-none-0").log)
    data[batch_positions(data)[1] + 70] ^= 1
    for on_error, text in (
        ("stop", "nothing behind the corruption was read"),
        ("skip", "1 corrupt batches were skipped"),
    ):
        caplog.clear()
        with caplog.at_level("WARNING", logger="kcodec.spark"):
            rows = list(decode_partition([bytes(data)], on_error=on_error))
        assert rows
        assert text in messages(caplog)


def test_decode_partition_checks_its_options() -> None:
    with pytest.raises(ValueError, match="decoding record sets has no option"):
        list(decode_partition([b""], isolation="read_committed"))


def test_decode_partition_skips_none_and_names_the_row_of_an_error() -> None:
    data = golden("plain-java-none-0").log
    given: list[Any] = [None, data, None, bytearray(data), memoryview(data)]
    assert len(list(decode_partition(given))) == 3 * len(list(decode_partition([data])))
    corrupt = bytearray(data)
    corrupt[70] ^= 1
    with pytest.raises(CorruptBatchError, match=r"batch at byte 0 .*; the record set is in row 2 of the task"):
        list(decode_partition([None, data, bytes(corrupt)]))
    with pytest.raises(TypeError, match="row 1 of the task is of type int: expected the bytes of record batches, the"):
        list(decode_partition([None, 5]))  # type: ignore[list-item]
