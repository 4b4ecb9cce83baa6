# SPDX-License-Identifier: Apache-2.0
"""land: topics of a real Apache Kafka to Parquet files by tasks of a local Spark, each record once."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest
from log_messages import messages
from pyarrow import fs, parquet

import kcodec
from kcodec import TopicPartition
from kcodec.client import Admin, NewTopic, Producer
from kcodec.spark import DataLossError, LandedFile, LandingError, land, landing_folder, landings, offsets_of_checkpoint
from kcodec.spark.landing_folder import LandingFolder, Manifest, StagedFile
from kcodec.spark.planner import StreamOffsets
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("functions_by_value")]
Position = tuple[str, int, int, bytes]


@pytest.fixture(scope="module")
def servers(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap_servers


@pytest.fixture
def topic(apache_kafka: ApacheKafka, servers: str) -> str:
    """Three partitions with 200 records each."""
    name = apache_kafka.create_topic(partitions=3)
    fill(servers, name, 600)
    return name


def fill(servers: str, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            headers = {"n": b"%d" % number} if number % 4 else None
            producer.send(topic, b"value %d" % number, key=b"%d" % (number % 7), partition=number % 3, headers=headers)


def consumed(servers: str, topic: str, level: Any = "read_uncommitted") -> list[Position]:
    with kcodec.read_topic(topic, bootstrap_servers=servers, isolation_level=level) as records:
        rows = [
            (topic, int(str(each.partition)), each.offset, each.value or b"") for b in records for each in b.records()
        ]
    return sorted(rows)


def rows_in(table: pa.Table) -> list[Position]:
    names = ("topic", "partition", "offset", "value")
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def visible(path: Path) -> list[Position]:
    """What pyarrow finds in a folder, which it is told nothing about."""
    return rows_in(pyarrow.dataset.dataset(path, format="parquet").to_table())


def staged(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "_landings").glob("*-*"))


def test_every_reader_sees_the_records_of_the_topic(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """Spark, pyarrow, DuckDB and polars, by the folder alone; rows and schema are those of map_batches."""
    import duckdb
    import polars

    landing = land(spark, topic, tmp_path, bootstrap_servers=servers, includeHeaders=True)
    expected = consumed(servers, topic)
    assert (landing.rows, landing.number, len(landing.files)) == (600, 1, 3)
    assert landing.offsets == {TopicPartition(topic, number): 200 for number in range(3)}
    assert landing.bytes == sum(Path(path).stat().st_size for path in landing.paths)
    assert landings(tmp_path) == [landing]
    from kcodec.spark import map_batches, schema

    read = spark.read.parquet(str(tmp_path))
    records = map_batches(
        spark,
        topic,
        lambda batches: batches,
        schema(include_headers=True),
        bootstrap_servers=servers,
        includeHeaders=True,
    )
    assert read.schema == schema(include_headers=True)
    order = ("partition", "offset")
    assert read.orderBy(*order).collect() == records.orderBy(*order).collect()
    assert visible(tmp_path) == expected
    found = duckdb.sql(f"select count(*) from read_parquet('{tmp_path}/**/*.parquet')")
    assert found is not None
    assert found.fetchall() == [(600,)]
    assert polars.scan_parquet(f"{tmp_path}/**/*.parquet").select(polars.len()).collect().item() == 600
    used = parquet.ParquetFile(landing.paths[0]).metadata.row_group(0).column(1)
    assert (used.path_in_schema, used.compression) == ("value", "ZSTD")


def test_the_next_call_continues_behind_the_last(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    first = land(spark, topic, tmp_path, bootstrap_servers=servers, maxOffsetsPerTrigger=90)
    assert 0 < first.rows <= 90
    while land(spark, topic, tmp_path, bootstrap_servers=servers, maxOffsetsPerTrigger=300).files:
        pass
    assert visible(tmp_path) == consumed(servers, topic)
    assert not land(spark, topic, tmp_path, bootstrap_servers=servers).files
    fill(servers, topic, 30)
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_partitions({topic: 4})
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"in a new partition", partition=3)
    # Offsets where to start hold for the first landing only, as for a streaming query of Spark.
    starting = {topic: {"0": 0, "1": 0, "2": 0, "3": 0}}
    more = land(spark, topic, tmp_path, bootstrap_servers=servers, startingOffsets=starting)
    assert (more.rows, more.number) == (31, len(landings(tmp_path)))
    assert visible(tmp_path) == consumed(servers, topic)
    ending = {topic: {"0": 10, "1": 0, "2": 0, "3": 0}}
    again = land(spark, topic, tmp_path, bootstrap_servers=servers, resume=False, endingOffsets=ending)
    assert (again.rows, again.offsets) == (10, more.offsets)
    assert len(visible(tmp_path)) == 631 + 10
    assert not land(spark, topic, tmp_path, bootstrap_servers=servers).files


def test_transactions_markers_and_isolation_levels(
    spark: SparkSession, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    servers, topic = apache_kafka.bootstrap_servers, apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=servers, transactional_id=f"land-{topic}") as producer:
        for number in range(4):
            with producer.transaction() as transaction:
                for index in range(10):
                    transaction.send(topic, b"%d-%d" % (number, index)).result()
                if number % 2:
                    transaction.abort()
    for level, rows in (("read_committed", 20), ("read_uncommitted", 40)):
        path = tmp_path / level
        assert land(spark, topic, path, bootstrap_servers=servers, isolation_level=level).rows == rows
        assert visible(path) == consumed(servers, topic, level)
    path = tmp_path / "read_committed"
    with (
        Producer(bootstrap_servers=servers, transactional_id=f"land-{topic}") as producer,
        producer.transaction() as transaction,
    ):
        transaction.send(topic, b"aborted").result()
        transaction.abort()
    markers = land(spark, topic, path, bootstrap_servers=servers, isolation_level="read_committed")
    assert (markers.number, markers.rows, markers.files) == (2, 0, ())
    assert markers.offsets == {TopicPartition(topic, 0): 46}


def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([batch["offset"], pc.binary_length(batch["value"])], names=["offset", "length"])


def test_a_function_columns_folders_and_file_sizes(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"bootstrap_servers": servers, "minPartitions": 5}
    land(spark, topic, tmp_path / "f", function=lengths, columns=["offset", "value"], **options)
    table = pyarrow.dataset.dataset(tmp_path / "f").to_table()
    assert table.schema.names == ["offset", "length"]
    assert sorted(table["length"].to_pylist()) == sorted(len(each[3]) for each in consumed(servers, topic))
    by = land(
        spark,
        topic,
        tmp_path / "by",
        partition_by=["topic", "partition"],
        columns=["key", "topic", "partition"],
        **options,
    )
    assert all(file.path.startswith(f"topic={topic}/partition={file.partition}/") for file in by.files)
    assert parquet.read_schema(by.paths[0]).names == ["key"]
    counts = spark.read.parquet(str(tmp_path / "by")).groupBy("topic", "partition").count().collect()
    assert sorted((row.topic, row.partition, row["count"]) for row in counts) == [(topic, n, 200) for n in range(3)]
    fill(servers, topic, 9)  # one batch more in each partition, of which the last task writes one more file
    small = land(
        spark,
        topic,
        tmp_path / "small",
        row_group_bytes=1,
        max_file_bytes=1,
        compression="snappy",
        max_partition_fetch_bytes=2000,
        **options,
    )
    assert len(small.files) == 6 + 3
    assert visible(tmp_path / "small") == consumed(servers, topic)


def raise_once(path: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not os.path.exists(path):  # noqa: PTH110, by value in a worker
            with open(path, "w"):  # noqa: PTH123
                pass
            raise RuntimeError("broken in the middle")

    return function


def test_a_failed_function_leaves_nothing_behind(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    path = tmp_path / "land"
    function = raise_once(str(tmp_path / "raised"))
    with pytest.raises(PythonException, match="broken in the middle"):
        land(spark, topic, path, function=function, bootstrap_servers=servers)
    assert (staged(path), landings(path)) == ([], [])
    assert not [*path.rglob("*.parquet")]
    assert land(spark, topic, path, function=function, bootstrap_servers=servers).rows == 600


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batches: ({"value": 1} for _ in batches), r"yielded dict: expected pyarrow.RecordBatch"),
        (
            lambda batches: (
                pa.record_batch([batch[name]], names=[name]) for batch in batches for name in ("key", "value")
            ),
            "the function yielded a batch with the columns value binary, after one with key binary",
        ),
        (
            lambda batches: (
                pa.record_batch([batch["value"]], names=["n" + str(batch["partition"][0])]) for batch in batches
            ),
            "the function yielded the columns n0 binary in one task and n1 binary in another",
        ),
    ],
)
def test_a_function_that_yields_something_else(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, function: Any, text: str
) -> None:
    from pyspark.errors import PythonException

    with pytest.raises((PythonException, ValueError), match=text):
        land(spark, topic, tmp_path, function=function, bootstrap_servers=servers)
    assert (staged(tmp_path), landings(tmp_path)) == ([], [])


def test_deleted_records_are_an_error_or_logged(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    land(spark, topic, tmp_path, bootstrap_servers=servers, maxOffsetsPerTrigger=90)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 100})
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 30 to 99 cannot be read"):
        land(spark, topic, tmp_path, bootstrap_servers=servers)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        landing = land(spark, topic, tmp_path, bootstrap_servers=servers, failOnDataLoss=False)
    assert (landing.rows, landing.lost_offsets) == (440, 70)
    assert f"{topic}-0 [30, 200): 70 offsets were not in the log" in messages(caplog)
    assert landings(tmp_path)[-1] == landing


@pytest.mark.parametrize("resume", [True, False])
def test_a_topic_that_was_created_again_is_an_error(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, topic: str, tmp_path: Path, resume: bool
) -> None:
    land(spark, topic, tmp_path, bootstrap_servers=servers, resume=resume)
    manifest = tmp_path / "_landings" / "000000000001.json"
    value = json.loads(manifest.read_text())
    assert value["offsets"][topic].keys() == {"id", "0", "1", "2"}
    value["offsets"][topic]["id"] = "MkU3OEVBNTcwNTJENDM2Qg"
    manifest.write_text(json.dumps(value))
    with pytest.raises(DataLossError, match="was deleted and created again"):
        land(spark, topic, tmp_path, bootstrap_servers=servers)


def test_records_of_a_topic_that_was_created_again_land_once(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With resume=False, too: the position of the deleted topic is replaced, although it is a higher offset."""
    land(spark, topic, tmp_path, bootstrap_servers=servers)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 3)])
    fill(servers, topic, 9)
    with pytest.raises(DataLossError, match=rf"{topic}-0: offsets from 200 on .*was deleted and created again"):
        land(spark, topic, tmp_path, bootstrap_servers=servers, resume=False)
    lossy: dict[str, Any] = {"bootstrap_servers": servers, "failOnDataLoss": False}
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        again = land(spark, topic, tmp_path, resume=False, **lossy)
    assert f"{topic}-0: offsets from 200 on cannot be read: the topic was deleted" in messages(caplog)
    assert (again.rows, set(again.offsets.values())) == (9, {3})
    assert not land(spark, topic, tmp_path, bootstrap_servers=servers).files
    fill(servers, topic, 3)
    assert land(spark, topic, tmp_path, bootstrap_servers=servers).rows == 3


def test_a_gap_in_a_topic_that_was_created_again_is_left_to_the_next_call(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    land(spark, topic, tmp_path, bootstrap_servers=servers)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 3)])
    fill(servers, topic, 9)
    lossy: dict[str, Any] = {"bootstrap_servers": servers, "failOnDataLoss": False}
    start = {topic: {"0": 2, "1": 0, "2": 1}}
    again = land(spark, topic, tmp_path, resume=False, startingOffsets=start, **lossy)
    assert (again.rows, again.offsets) == (6, {TopicPartition(topic, 1): 3})
    assert land(spark, topic, tmp_path, bootstrap_servers=servers).rows == 6


def test_a_gap_before_a_batch_is_left_to_the_next_call(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """resume=False reads offsets behind the position, which the next call reads again rather than lose the gap."""
    land(spark, topic, tmp_path, bootstrap_servers=servers, maxOffsetsPerTrigger=300)
    start = {topic: {"0": 50, "1": 100, "2": 150}}
    behind = land(spark, topic, tmp_path, bootstrap_servers=servers, resume=False, startingOffsets=start)
    assert behind.offsets == {TopicPartition(topic, number): end for number, end in enumerate((200, 200, 100))}
    land(spark, topic, tmp_path, bootstrap_servers=servers)
    assert sorted(set(visible(tmp_path))) == consumed(servers, topic)


def test_every_new_folder_is_on_the_disk_before_the_staging_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LandingFolder(tmp_path / "orders")
    run = folder.begin(None)
    Path(folder.staging(run), "one").write_bytes(b"four")
    file = LandedFile("topic=a/partition=0/1.parquet", 1, 4, "a", 0, 0, 1)
    manifest = Manifest(1, run, "", (StagedFile("one", file),), StreamOffsets({}), "", 0, 0)
    folder.commit(manifest)
    synced = []
    monkeypatch.setattr(landing_folder, "sync", lambda path: synced.append((path, Path(folder.staging(run)).exists())))
    folder.publish(manifest)
    names = ("orders/topic=a/partition=0", "orders/topic=a", "orders")
    assert synced == [(str(tmp_path / name), True) for name in names]


def test_the_second_of_two_calls_at_once_is_discarded(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """The first call is at work in the function of the second."""
    folder = LandingFolder(tmp_path)
    first = land(spark, topic, tmp_path, bootstrap_servers=servers, maxOffsetsPerTrigger=90)
    last = folder.recover()
    assert last is not None
    slow = folder.begin(last)
    second = land(spark, topic, tmp_path, bootstrap_servers=servers)
    late = replace(last, number=2, run=slow, files=())
    with pytest.raises(LandingError, match="another run has committed landing 2 in the meantime"):
        folder.commit(late)
    assert landings(tmp_path) == [first, second]
    assert visible(tmp_path) == consumed(servers, topic)


def test_old_manifests_can_be_deleted(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """`land` needs only the last one."""
    options: dict[str, Any] = {"bootstrap_servers": servers, "maxOffsetsPerTrigger": 100}
    first, second = (land(spark, topic, str(tmp_path), **options) for _ in range(2))
    manifests = sorted((tmp_path / "_landings").glob("*.json"))
    assert len(manifests) == 2
    manifests[0].unlink()
    third = land(spark, topic, str(tmp_path), **options)
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert [each.number for each in landings(str(tmp_path))] == [2, 3]
    rows = spark.read.parquet(str(tmp_path)).select("partition", "offset").collect()
    assert len(rows) == len(set(rows)) == first.rows + second.rows + third.rows


def test_a_filesystem_of_pyarrow(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """Without hard links, as an object store: the same steps by its own operations."""
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    for _ in range(2):
        land(spark, topic, "orders", filesystem=inner, bootstrap_servers=servers, maxOffsetsPerTrigger=300)
    assert len(landings("orders", filesystem=inner)) == 2
    assert visible(tmp_path / "orders") == consumed(servers, topic)


def test_topics_of_one_folder_keep_their_positions(
    spark: SparkSession, apache_kafka: ApacheKafka, servers: str, topic: str, tmp_path: Path
) -> None:
    """A start at "latest" is remembered although there is nothing to land yet."""
    late = apache_kafka.create_topic(partitions=3)
    fill(servers, late, 30)
    first = land(spark, late, tmp_path, bootstrap_servers=servers, startingOffsets="latest")
    assert (first.number, first.rows) == (1, 0)
    assert land(spark, late, tmp_path, bootstrap_servers=servers, startingOffsets="latest").number is None
    land(spark, topic, tmp_path, bootstrap_servers=servers)
    fill(servers, late, 6)
    more = land(spark, late, tmp_path, bootstrap_servers=servers)
    assert (more.rows, len(more.offsets)) == (6, 6)
    assert not land(spark, f"{topic},{late}", tmp_path, bootstrap_servers=servers).files
    assert len(visible(tmp_path)) == 606


def test_a_file_system_without_hard_links(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    assert land(spark, topic, tmp_path, bootstrap_servers=servers).rows == 600
    assert len(visible(tmp_path)) == 600


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "orc"}, "format is 'orc': expected 'parquet'"),
        ({"partition_by": ["topics"]}, r"partition_by names 'topics' \(did you mean 'topic'\?\)"),
        ({"partition_by": "topic", "columns": ["topic"]}, "partition_by leaves out of the files"),
        ({"columns": ["vale"]}, r"unknown column 'vale' \(did you mean 'value'\?\)"),
        ({"maxOffsetsPerTrigger": 0}, "option 'maxOffsetsPerTrigger' is '0'"),
        ({"endingOffsets": "latest"}, "option 'endingOffsets' needs resume=False"),
        ({"resume": False, "startingOffsets": "latest"}, "cannot be latest"),
        ({"max_file_bytes": "1g"}, "max_file_bytes is '1g'"),
        ({"compression": "zst"}, "compression is 'zst'"),
        ({"max_filebytes": 5}, "unknown option 'max_filebytes'"),
        ({"minOffsetsPerTrigger": 5}, r"option 'minOffsetsPerTrigger' has no meaning for land\(\)"),
        ({"resume": False, "maxtriggerdelay": "1h"}, r"option 'maxtriggerdelay' has no meaning for land\(\)"),
        ({"value_deserializer": bytes.upper}, "option 'value_deserializer' has no meaning here: values are binary"),
    ],
)
def test_arguments_that_are_invalid(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    nothing: Any = None
    with pytest.raises(ValueError, match=text):
        land(nothing, "orders", tmp_path / "land", bootstrap_servers="localhost:1", **options)
    assert not (tmp_path / "land").exists()


@pytest.mark.parametrize("path", ["dbfs:/data/orders", "s3:/bucket/orders", "hdfs:/orders"])
def test_an_address_without_a_host_is_not_a_local_path(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"path is '{path}': the scheme '.*' is not supported without '//'; pass a local path"
    for call in (landings, offsets_of_checkpoint):
        with pytest.raises(ValueError, match=text):
            call(path)
    (tmp_path / "c:").mkdir()
    assert landings("c:/orders") == []


def test_a_manifest_that_is_corrupt_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "_landings").mkdir()
    (tmp_path / "_landings" / "000000000001.json").write_text('{"v": 2}')
    with pytest.raises(
        LandingError, match=r"not a valid manifest of a landing .ValueError: version 2: expected version 1"
    ):
        landings(tmp_path)


def test_killed_runs_lose_and_double_nothing(servers: str, topic: str, tmp_path: Path) -> None:
    """SIGKILL before random lines of `land`; tests/prove/prove_landings.py kills whole Sparks."""
    script = Path(__file__).parent.parent / "support" / "landing_kills.py"
    command = [sys.executable, str(script), servers, topic, str(tmp_path), "--kills", "8"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == 8
    assert visible(tmp_path / "land") == consumed(servers, topic)
    assert staged(tmp_path / "land") == []
