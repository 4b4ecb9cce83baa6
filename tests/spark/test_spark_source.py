# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("kcodec")`` on a real Spark: rows are those Kafka's own consumer delivered."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from golden_data import Partition, partitions
from golden_data import copies as copies_of
from log_messages import messages
from opened_logs import open_log
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions
from pyspark.sql.types import StructType
from spark_truth import batch_positions, by_partition, consumed, differences, golden, repeated, write_log

import kcodec
from kcodec.spark.columns import ALL_COLUMNS, arrow_schema
from kcodec.spark.source import KcodecDataSource
from kcodec.spark.trigger_limits import LIMIT_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
LEVELS = ["read_uncommitted", "read_committed"]
INTERNAL = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")


def load(spark: SparkSession, path: Path | str | list[str], **options: Any) -> DataFrame:
    named = {name.replace("isolation_level", "kafka.isolation.level"): str(value) for name, value in options.items()}
    return spark.read.format("kcodec").options(**named).load(path if isinstance(path, list) else str(path))


def readable(cluster: str) -> list[Partition]:
    """The partitions that kcodec reads by now and that a consumer read."""
    return [
        each
        for each in partitions()
        if each.cluster == cluster and each.topic not in INTERNAL and each.consumed(LEVELS[0]) is not None
    ]


@pytest.mark.parametrize("cluster", ["tv0", "tv2"])
@pytest.mark.parametrize("isolation_level", LEVELS)
def test_every_partition_gives_what_kafkas_consumer_delivered(
    spark: SparkSession, cluster: str, isolation_level: str
) -> None:
    wanted = readable(cluster)
    paths = [str(each.path) for each in wanted]
    loaded = load(spark, paths, includeHeaders=True, isolation_level=isolation_level)
    rows = by_partition(loaded.collect())
    wrong = [
        difference
        for each in wanted
        for difference in differences(rows.get((each.topic, each.partition), []), consumed(each, isolation_level), each)
    ]
    assert wrong == []
    assert set(rows) <= {(each.topic, each.partition) for each in wanted}


def test_schema_and_null_rules(spark: SparkSession) -> None:
    path = golden("edge-java-none-0").path
    assert load(spark, path).schema == kcodec.spark.schema()
    assert load(spark, path, INCLUDEHEADERS="True").schema == kcodec.spark.schema(include_headers=True)
    headers = [row.headers for row in load(spark, path, includeHeaders=True).collect()]
    assert None in headers
    assert [] not in headers


def test_two_records_with_one_offset_give_one_row(spark: SparkSession) -> None:
    partition = golden("raw-refused-0")
    assert len(kcodec.decode(partition.log)) == 7
    rows = load(spark, partition.path, includeHeaders=True).collect()
    assert [row.offset for row in rows] == [0, 2, 3, 4, 5, 6]
    assert differences(rows, consumed(partition, LEVELS[0]), partition) == []
    only_values = load_schema(spark, partition.path, "value binary")
    assert len(only_values.collect()) == 6


def load_schema(spark: SparkSession, path: Path, ddl: str, **options: str) -> DataFrame:
    return spark.read.format("kcodec").schema(ddl).options(**options).load(str(path))


def test_batch_meta(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    reported = {
        record["offset"]: (
            batch["producerId"],
            batch["producerEpoch"],
            record["sequence"],
            batch["partitionLeaderEpoch"],
            batch["baseOffset"],
            batch["isTransactional"],
        )
        for batch in partition.batches
        for record in batch["records"]
        if not batch["isControl"]
    }
    names = ["producerId", "producerEpoch", "sequence", "leaderEpoch", "baseOffset", "isTransactional"]
    loaded = load(spark, partition.path, includeBatchMeta=True)
    assert loaded.columns == [*kcodec.spark.schema().names, *names]
    assert {row.offset: tuple(row[name] for name in names) for row in loaded.collect()} == reported


def test_a_schema_of_the_user_chooses_columns(spark: SparkSession) -> None:
    partition = golden("txn-java-0")
    chosen = load_schema(spark, partition.path, "offset bigint, headers array<struct<key:string,value:binary>>")
    every = load(spark, partition.path, includeHeaders=True)
    assert chosen.collect() == every.select("offset", "headers").collect()
    with pytest.raises(PySparkException, match="column 'value' is binary, not string"):
        load_schema(spark, partition.path, "value string").collect()


def test_single_segments_are_resolved_with_their_neighbours(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    truth = consumed(partition, "read_committed")
    rows = []
    for segment in partition.segments:
        rows += load(spark, segment, includeHeaders=True, isolation_level="read_committed").collect()
    assert differences(rows, truth, partition) == []


def test_a_segment_read_uncommitted_asks_for_no_other(spark: SparkSession, tmp_path: Path) -> None:
    partition = golden("txn-mixed-0")
    folder = Path(shutil.copytree(partition.path, tmp_path / partition.name))
    wanted, other = partition.segments[1].name, partition.segments[3].name
    data = bytearray((folder / other).read_bytes())
    data[16] = 9
    (folder / other).write_bytes(data)
    reported = [each["offset"] for each in consumed(partition, LEVELS[0])]
    expected = [offset for offset in reported if int(wanted[:20]) <= offset < int(partition.segments[2].name[:20])]
    assert offsets_of(load(spark, folder / wanted)) == expected
    with pytest.raises(PySparkException, match="magic 9"):
        load(spark, folder / wanted, isolation_level="read_committed").collect()


def test_globs_and_folders(spark: SparkSession, tmp_path: Path) -> None:
    mixed = [golden("txn-mixed-0"), golden("txn-mixed-1")]
    counts = {(each.topic, each.partition): len(consumed(each, LEVELS[0])) for each in mixed}
    for each in mixed:
        shutil.copytree(each.path, tmp_path / each.name)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for pattern in ("", "txn-mixed-*", "txn-mixed-?/*.log", "txn-mixed-[01]/0*"):
        rows = by_partition(load(spark, tmp_path / pattern).collect())
        assert {key: len(found) for key, found in rows.items()} == counts


def offsets_of(loaded: DataFrame) -> list[int]:
    return [row.offset for row in loaded.select("offset").collect()]


def test_offsets_and_timestamps_bound_the_read(spark: SparkSession) -> None:
    partition = golden("ts-java-0")
    truth = consumed(partition, LEVELS[0])
    every = [reported["offset"] for reported in truth]

    def each(low: int) -> str:
        return json.dumps({partition.topic: {str(partition.partition): low}})

    path = partition.path
    assert offsets_of(load(spark, path, startingOffsets=each(5), endingOffsets=each(9))) == [5, 6, 7, 8]
    assert offsets_of(load(spark, path, startingOffsets=each(-2), endingOffsets=each(-1))) == every
    assert offsets_of(load(spark, path, startingOffsets="earliest", endingOffsets="latest")) == every
    time = truth[20]["timestamp"]
    first = next(reported["offset"] for reported in truth if reported["timestamp"] >= time)
    after = [offset for offset in every if offset >= first]
    before = [offset for offset in every if offset < first]
    assert offsets_of(load(spark, path, startingTimestamp=time)) == after
    assert offsets_of(load(spark, path, startingOffsetsByTimestamp=each(time))) == after
    assert offsets_of(load(spark, path, endingTimestamp=time)) == before
    assert offsets_of(load(spark, path, endingOffsetsByTimestamp=each(time))) == before
    latest = max(reported["timestamp"] for reported in truth) + 1
    assert offsets_of(load(spark, path, endingTimestamp=latest)) == every
    with pytest.raises(PySparkException, match=f"no record of timestamp {latest} or later"):
        load(spark, path, startingTimestamp=latest).collect()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert offsets_of(load(spark, path, startingTimestamp=latest, **strategy)) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingOffsets": '{"other":{"0":1}}'},
            "'startingOffsets' names other-0, which is not among the partitions",
        ),
        ({"startingOffsets": '{"txn-mixed":{"1":1}}'}, "txn-mixed-1, which is not among the partitions"),
        ({"startingOffsets": '{"txn-mixed":{}}'}, "'startingOffsets' does not name txn-mixed-0"),
        (
            {"startingOffsets": '{"txn-mixed":{"0":10}}', "endingOffsets": '{"txn-mixed":{"0":5}}'},
            "offset 10 is greater than the end offset 5 for txn-mixed-0",
        ),
        ({"subscribe": "txn-mixed"}, "'subscribe' is for reading topics from brokers, and a path is given as well"),
        ({"kafka.bootstrap.servers": "x:9092"}, "is for reading topics from brokers, and a path is given as well"),
        ({"includeHeader": "true"}, "did you mean 'includeHeaders'"),
    ],
)
def test_wrong_options_are_reported(spark: SparkSession, options: dict[str, str], text: str) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=text):
        load(spark, golden("txn-mixed-0").path, **options).collect()


def test_topic_and_partition_come_from_options_without_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    source = golden("plain-java-zstd-0")
    path = write_log(tmp_path / "segments", {0: source.log})
    assert {(row.topic, row.partition) for row in load(spark, path).collect()} == {(None, None)}
    reported = {(row.topic, row.partition) for row in load(spark, path, topic="orders", partition=7).collect()}
    assert reported == {("orders", 7)}
    bounded = load(spark, path, topic="orders", partition=7, startingOffsets='{"orders":{"7":3}}')
    assert min(offsets_of(bounded)) == 3


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of three segments and some thousand batches with transactions of several producers in between."""
    data = repeated(golden("txn-mixed-0").log, 30)
    positions = batch_positions(data)
    thirds = [positions[len(positions) * i // 3] for i in range(3)] + [len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(thirds)]
    folder = tmp_path_factory.mktemp("long") / "orders-3"
    return write_log(folder, {int.from_bytes(piece[:8], "big"): piece for piece in pieces})


@pytest.mark.parametrize("isolation_level", LEVELS)
def test_splits_give_what_one_task_gives(spark: SparkSession, long_log: Path, isolation_level: str) -> None:
    whole = load(spark, long_log, isolation_level=isolation_level)
    split = load(spark, long_log, isolation_level=isolation_level, splitBytes=20_000)
    assert whole.rdd.getNumPartitions() == 1
    assert split.rdd.getNumPartitions() >= 20
    assert load(spark, long_log, minPartitions=5).rdd.getNumPartitions() >= 5
    rows = whole.collect()
    assert len(rows) == 30 * len(consumed(golden("txn-mixed-0"), isolation_level))
    assert split.orderBy("offset").collect() == rows


def test_input_partitions_are_small_and_pickle(long_log: Path) -> None:
    options = {"path": str(long_log), "kafka.isolation.level": "read_committed", "splitBytes": "20000"}
    source = KcodecDataSource(options)
    reader = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source)).reader(kcodec.spark.schema())))
    planned = [pickle.dumps(partition) for partition in reader.partitions()]
    assert len(planned) >= 20
    assert max(map(len, planned)) < 4096
    rows = sum(batch.num_rows for data in planned for batch in reader.read(pickle.loads(data)))
    assert rows == 30 * len(consumed(golden("txn-mixed-0"), "read_committed"))


def test_batches_have_exactly_the_schema_spark_compares_with(long_log: Path) -> None:
    schema = kcodec.spark.schema(include_headers=True, include_batch_meta=True)
    reader: Any = KcodecDataSource({"path": str(long_log)}).reader(schema)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            batch.validate(full=True)
            assert batch.schema.equals(arrow_schema(ALL_COLUMNS))
            assert batch.num_rows <= 65_536


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushdown")
def test_pushdown_loses_no_row_of_a_dataframe_that_is_used_twice(spark: SparkSession, long_log: Path) -> None:
    """Spark reads all uses of a DataFrame with the filters of one, so kcodec leaves nothing out because of filters."""
    pushed = load(spark, long_log, pushdown=True, isolation_level="read_committed")
    every = load(spark, long_log, isolation_level="read_committed").count()
    low, high = pushed.where("offset < 1000"), pushed.where("offset >= 1000")
    assert low.union(high).count() == every
    assert 0 < low.count() < every == pushed.count()
    assert pushed.where("topic IN ('other', 'another')").count() == 0
    (row,) = pushed.limit(1).collect()
    assert pushed.where(f"topic IN ('other', '{row.topic}')").count() == every


def test_pushdown_logs_that_it_has_no_effect(long_log: Path, caplog: pytest.LogCaptureFixture) -> None:
    KcodecDataSource({"path": str(long_log), "pushdown": "true"}).reader(kcodec.spark.schema())
    (warning,) = [record.getMessage() for record in caplog.records if "pushdown" in record.getMessage()]
    assert "has no effect any more" in warning and "startingOffsets" in warning
    caplog.clear()
    KcodecDataSource({"path": str(long_log), "pushdown": "false"}).reader(kcodec.spark.schema())
    assert not caplog.records


def test_pushdown_of_a_stream_of_files_is_checked(long_log: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"path": str(long_log.parent), "pushdown": "true"}
    KcodecDataSource(options).streamReader(kcodec.spark.schema())
    assert "option 'pushdown' has no effect any more" in caplog.text
    failed = KcodecDataSource({**options, "pushdown": "maybe"}).streamReader(kcodec.spark.schema())
    with pytest.raises(ValueError, match="option 'pushdown' is 'maybe': expected true or false"):
        failed.initialOffset()


def damaged(folder: Path, batch: int) -> tuple[Path, int, int]:
    """A copy of a log with a flipped bit in the records of a batch; where that batch begins, and its base offset."""
    data = bytearray(golden("plain-java-none-0").log)
    position = batch_positions(data)[batch]
    data[position + 70] ^= 1
    return write_log(folder, {0: bytes(data)}), position, int.from_bytes(data[position : position + 8], "big")


def test_corruption_fails_the_task_with_the_errors_text(spark: SparkSession, tmp_path: Path) -> None:
    path, position, base_offset = damaged(tmp_path / "orders-0", 1)
    text = rf"{base_offset:020d}|batch at byte {position} \(base_offset {base_offset}\): .*[Cc][Rr][Cc]"
    for options in ({}, {"mode": "FAILFAST"}):
        with pytest.raises(PySparkException, match=text):
            load(spark, path, **options).collect()


def test_permissive_skips_corruption_and_logs_it(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _, base_offset = damaged(tmp_path / "orders-0", 1)
    source = golden("plain-java-none-0")
    bad = next(batch for batch in source.batches if batch["baseOffset"] == base_offset)
    expected = [reported["offset"] for reported in consumed(source, LEVELS[0])]
    expected = [offset for offset in expected if not base_offset <= offset <= bad["lastOffset"]]
    assert offsets_of(load(spark, path, mode="permissive")) == expected
    reader: Any = KcodecDataSource({"path": str(path), "mode": "permissive"}).reader(kcodec.spark.schema())
    with caplog.at_level(logging.WARNING, logger="kcodec.spark"):
        assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == len(expected)
    assert "1 corrupt batches were skipped" in messages(caplog)


@pytest.mark.parametrize("split_bytes", ["134217728", "3000"])
def test_copies_of_a_running_and_of_a_killed_broker(split_bytes: str) -> None:
    copies = [each for kind in ("live", "killed") for each in copies_of(kind) if each.magics == {2}]
    assert copies
    for each in copies:
        data = [batch for batch in each.batches if not batch["isControl"]]
        reported = [record["offset"] for batch in data for record in batch["records"]]
        committed = [record.offset for record in open_log(str(each.path)).records("read_committed")]
        for isolation_level, expected in zip(LEVELS, (reported, committed), strict=True):
            options = {"path": str(each.path), "kafka.isolation.level": isolation_level, "splitBytes": split_bytes}
            assert offsets_read(options) == expected, f"{each} {isolation_level}"


def test_a_torn_tail_ends_the_data(tmp_path: Path) -> None:
    data = golden("plain-java-none-0").log
    last = batch_positions(data)[-2]
    whole = [record.offset for record in kcodec.decode(data).records()]
    before = [record.offset for record in kcodec.decode(data[:last]).records()]
    for torn, expected in ((data[:-5], before), (data + bytes(1000), whole), (data, whole)):
        path = write_log(tmp_path / f"orders-{len(torn)}", {0: torn})
        for isolation_level in LEVELS:
            assert offsets_read({"path": str(path), "kafka.isolation.level": isolation_level}) == expected


def offsets_read(options: dict[str, str]) -> list[int]:
    """The offsets that planning and reading in this process give."""
    reader: Any = KcodecDataSource(options).reader(kcodec.spark.schema())
    return [
        offset for part in reader.partitions() for batch in reader.read(part) for offset in batch["offset"].to_pylist()
    ]


def test_undecided_records_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    partition = golden("txn-open-0")
    options = {"path": str(partition.path), "kafka.isolation.level": "read_committed"}
    reader: Any = KcodecDataSource(options).reader(kcodec.spark.schema())
    with caplog.at_level(logging.WARNING, logger="kcodec.spark"):
        rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    assert rows == len(consumed(partition, "read_committed"))
    assert "records of open transactions were left out" in messages(caplog)


def test_the_module_spark_looks_for_imports_nothing_and_never_raises() -> None:
    """Where kcodec cannot be loaded, the source says why when it is used; without it, Spark names no reason."""
    script = """if True:
        import sys
        import pyspark_kcodec
        assert not {"kcodec", "pyspark", "pyarrow"} & set(sys.modules), sorted(sys.modules)
        sys.modules["kcodec.spark.source"] = None
        assert pyspark_kcodec.DefaultSource.name() == "kcodec"
        try:
            pyspark_kcodec.DefaultSource({})
        except RuntimeError as error:
            assert f"cannot be loaded by {sys.executable}, the Python of Spark: " in str(error), error
        else:
            raise AssertionError("a source that cannot be loaded was created")
        sys.modules["pyspark.sql.datasource"] = None
        assert not hasattr(pyspark_kcodec, "DefaultSource")
        del sys.modules["pyspark.sql.datasource"], sys.modules["kcodec.spark.source"]
        assert pyspark_kcodec.DefaultSource.name() == "kcodec"
        assert not hasattr(pyspark_kcodec, "Other")
    """
    subprocess.run([sys.executable, "-c", script], check=True)


def test_sql_can_use_it(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    options = f"path '{partition.path}', kafka.isolation.level 'read_committed'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW mixed USING kcodec OPTIONS ({options})")
    (counted,) = spark.sql("SELECT count(*) AS n FROM mixed").collect()
    assert counted.n == len(consumed(partition, "read_committed"))
    lengths = load(spark, partition.path).select(functions.length("value").alias("n")).collect()
    assert len(lengths) == len(consumed(partition, LEVELS[0]))


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    name = "kcodec_table"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize(
    "place",
    ["LOCATION '{path}'", "OPTIONS (path '{path}', Mode 'permissive') COMMENT 'orders' TBLPROPERTIES ('a'='b')"],
)
def test_a_table_is_created_and_read(spark: SparkSession, table: str, place: str) -> None:
    """Spark passes owner, provider, location and all properties when it creates the table, nothing when it reads it."""
    partition = golden("txn-mixed-0")
    spark.sql(f"CREATE TABLE {table} USING kcodec {place.format(path=partition.path)}")
    offsets = [row.offset for row in spark.sql(f"SELECT offset FROM {table} ORDER BY offset").collect()]
    assert offsets == [reported["offset"] for reported in consumed(partition, LEVELS[0])]


def test_a_table_keeps_its_options(spark: SparkSession, table: str) -> None:
    partition = golden("txn-mixed-0")
    options = f"path '{partition.path}', kafka.isolation.level 'read_committed', includeHeaders 'true'"
    spark.sql(f"CREATE TABLE {table} USING kcodec OPTIONS ({options})")
    rows = spark.table(table).orderBy("offset").collect()
    assert differences(rows, consumed(partition, "read_committed"), partition) == []


def test_an_error_says_that_a_table_is_only_read(spark: SparkSession, table: str) -> None:
    """Spark passes none of its options to a writer."""
    text = r"a table of kcodec can only be read; to write to a topic, use df.write.format"
    with pytest.raises(PySparkException, match=text):
        spark.sql(f"CREATE TABLE {table} USING kcodec OPTIONS ('kafka.bootstrap.servers' 'b:1', 'topic' 't')")
    spark.sql(f"CREATE TABLE {table} USING kcodec LOCATION '{golden('txn-mixed-0').path}'")
    with pytest.raises(PySparkException, match=text):
        spark.table(table).write.insertInto(table)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.sasl.plain.password", "s3cret"),
        ("SASL_PLAIN_PASSWORD", "s3cret"),
        ("kafka.ssl.key.password", "s3cret"),
        ("kafka.sasl.oauthbearer.client.credentials.client.secret", "s3cret"),
        ("kafka.sasl.jaas.config", 'a.ScramLoginModule required username="u" password="s3cret";'),
    ],
)
def test_a_table_has_no_option_that_is_a_secret(name: str, value: str) -> None:
    """Spark copies the metadata of a table's first column, which has the options, into Parquet files."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", name: value}
    with pytest.raises(ValueError, match=f"a table must not have the option '{name}'.*kcodec.token.provider") as caught:
        table_schema(given)
    assert "s3cret" not in str(caught.value)
    assert "value" in KcodecDataSource(given).schema().names


def test_a_table_has_options_of_a_login_without_a_secret() -> None:
    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.jaas.config": "x.Krb5LoginModule required useTicketCache=true;",
        "kcodec.token.provider": "secrets_of_job:kafka",
    }
    assert json.loads(table_schema(given).fields[0].metadata["kcodec.options"]) == given


def table_schema(given: dict[str, str]) -> StructType:
    """The columns of a table that is created with these options."""
    properties = {f"option.{name}": value for name, value in given.items()}
    return KcodecDataSource({"owner": "u", "provider": "kcodec", **properties}).schema()


def test_a_table_over_files_names_their_topic(spark: SparkSession, table: str, tmp_path: Path) -> None:
    copied = shutil.copy(golden("txn-mixed-0").segments[0], tmp_path / "copy.log")
    spark.sql(f"CREATE TABLE {table} USING kcodec OPTIONS (path '{copied}', Topic 'orders', partition '3')")
    assert {(row.topic, row.partition) for row in spark.table(table).collect()} == {("orders", 3)}


@pytest.mark.usefixtures("spark")
def test_limits_of_streams_in_queries_over_files(caplog: pytest.LogCaptureFixture) -> None:
    """It is not known yet whether a query is a stream when Spark requests its columns."""
    given = {"path": str(golden("txn-mixed-0").path), **dict.fromkeys(LIMIT_OPTIONS, "10")}
    source = KcodecDataSource(given)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        schema = source.schema()
        source.streamReader(schema)
        assert messages(caplog) == ""
        source.reader(schema)
    assert messages(caplog).splitlines() == [f"option {name} is ignored in batch queries" for name in LIMIT_OPTIONS]


def test_a_table_with_a_list_of_columns_names_the_remedy(spark: SparkSession, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (value binary) USING kcodec LOCATION '{golden('txn-mixed-0').path}'")
    with pytest.raises(PySparkException, match=r"no path is given.*no list of columns"):
        spark.table(table).collect()


def test_a_schema_names_columns_in_any_case(spark: SparkSession) -> None:
    partition = golden("txn-mixed-0")
    loaded = spark.read.format("kcodec").schema("VALUE binary, OffSet bigint").load(str(partition.path))
    assert loaded.columns == ["VALUE", "OffSet"]
    assert [row.OffSet for row in loaded.collect()] == [
        reported["offset"] for reported in consumed(partition, LEVELS[0])
    ]


@pytest.mark.parametrize("isolation_level", LEVELS)
def test_an_empty_schema_counts_and_decodes_no_column(spark: SparkSession, isolation_level: str) -> None:
    partition = golden("txn-mixed-0")
    reader = spark.read.format("kcodec").option("kafka.isolation.level", isolation_level).schema(StructType([]))
    assert reader.load(str(partition.path)).count() == len(consumed(partition, isolation_level))


def test_globs_may_have_braces(spark: SparkSession, tmp_path: Path) -> None:
    mixed = [golden("txn-mixed-0"), golden("txn-mixed-1")]
    for each in mixed:
        shutil.copytree(each.path, tmp_path / each.name)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    count = sum(len(consumed(each, LEVELS[0])) for each in mixed)
    for pattern in ("txn-mixed-{0,1}", "{txn-mixed-0,txn-{mixed,other}-1}/*.log", "txn-{mixed}-*"):
        assert load(spark, tmp_path / pattern).count() == count
    assert load(spark, tmp_path / "txn-mixed-{1,2}").count() == len(consumed(mixed[1], LEVELS[0]))


def test_options_of_a_stream_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """As Spark's own source does in a batch query."""
    path = str(golden("txn-mixed-0").path)
    options = {"path": path, "maxoffsetspertrigger": "10", "minOffsetsPerTrigger": "x", "maxTriggerDelay": "1s"}
    with caplog.at_level(logging.WARNING, logger="kcodec.spark"):
        assert offsets_read(options) == offsets_read({"path": path})
    assert "option maxOffsetsPerTrigger is ignored in batch queries" in messages(caplog)
