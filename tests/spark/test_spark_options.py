# SPDX-License-Identifier: Apache-2.0
"""Options, columns, paths and filters of the Spark source; a Spark only where its DDL is parsed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

import kcodec
from kcodec import TopicPartition
from kcodec.spark import columns
from kcodec.spark.file_options import FOREIGN_OPTIONS, parse_options
from kcodec.spark.offset_options import OffsetLimit
from kcodec.spark.paths import FoundPartition, find_partitions

EACH = '{"orders":{"0":23,"1":45}}'


def parsed(**options: str) -> Any:
    return parse_options({"path": "x", **options})


def test_defaults_are_those_of_sparks_own_source() -> None:
    options = parsed()
    assert options.isolation_level == "read_uncommitted"
    assert (options.starting, options.ending) == (OffsetLimit("earliest"), OffsetLimit("latest"))
    assert (options.include_headers, options.on_error) == (False, "raise")
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_and_words_may_be_in_any_case() -> None:
    options = parse_options({"PATH": "x", "includeheaders": "TRUE", "KAFKA.isolation.LEVEL": "READ_COMMITTED"})
    assert (options.include_headers, options.isolation_level) == (True, "read_committed")
    assert parsed(mode="PERMISSIVE").on_error == "skip"
    assert parsed(MODE="FailFast").on_error == "raise"


def test_several_paths_come_as_json() -> None:
    assert parse_options({"paths": '["a", "b"]'}).paths == ("a", "b")
    with pytest.raises(ValueError, match="no path is given"):
        parse_options({"paths": "[]"})


@pytest.mark.parametrize("name", [*FOREIGN_OPTIONS, "GROUPIDPREFIX", "failondataloss"])
def test_an_option_that_sparks_source_owns_is_named_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=rf"(?i)option '{name}' of Spark's Kafka source has no meaning here: \w"):
        parsed(**{name: "1"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"kafka.max.poll.records": "1"},
            "'kafka.max.poll.records' has no meaning here: the query reads files and uses no Kafka client",
        ),
        ({"kafka.isolation.levle": "x"}, "did you mean 'kafka.isolation.level'"),
        ({"includeHeader": "true"}, "unknown option 'includeHeader' .did you mean 'includeHeaders'"),
        ({"quux": "1"}, "unknown option 'quux'$"),
        ({"includeHeaders": "yes"}, "'includeHeaders' is 'yes': expected true or false"),
        ({"minPartitions": "0"}, "'minPartitions' is '0': expected a whole number of at least 1"),
        ({"splitBytes": "64MB"}, "'splitBytes' is '64MB'"),
        ({"mode": "dropmalformed"}, "expected failfast or permissive"),
        ({"kafka.isolation.level": "committed"}, "did you mean 'read_committed'"),
        ({"startingOffsets": "latest"}, "'startingOffsets' is 'latest': .* expected 'earliest', or JSON like .*:-2}}$"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is 'earliest': .* expected 'latest', or JSON like .*:-1}}$"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "of a-0 cannot be latest .* expected 0 or more, or -2 for earliest"),
        (
            {"endingOffsets": '{"a":{"0":-2}}'},
            "of a-0 cannot be earliest .* expected 0 or more, or -1 for latest",
        ),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "the offset of a-0 is -3; expected 0 or more, or -2 for earliest$"),
        ({"startingOffsets": '{"a":{"0":"5"}}'}, "expected JSON like"),
        ({"startingOffsets": '{"a":[1]}'}, "expected JSON like"),
        ({"startingOffsets": "5"}, "expected JSON like"),
        ({"startingOffsets": "earlyest"}, "expected 'earliest' or JSON like .* did you mean 'earliest'"),
        ({"startingTimestamp": "2026-01-01"}, "'startingTimestamp' is '2026-01-01': expected milliseconds"),
        ({"startingTimestamp": "-1"}, "'startingTimestamp' is '-1': .* a whole number of at least 0"),
        ({"endingTimestamp": "-2"}, "'endingTimestamp' is '-2': .* a whole number of at least 0"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "expected error or latest"),
        ({"startingOffsetsByTimestampStrategy": "lattest"}, "expected error or latest .did you mean 'latest'"),
        ({"partition": "-1"}, "'partition' is '-1'"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parsed(**options)


def _struct(ddl: str) -> types.StructType:
    found = types.StructType.fromDDL(ddl)
    assert isinstance(found, types.StructType)
    return found


def test_limits_of_offsets_and_timestamps() -> None:
    each = {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): 45}
    assert parsed(startingOffsets=EACH).starting == OffsetLimit("offsets", "startingOffsets", each)
    by_timestamp = parsed(endingOffsetsByTimestamp=EACH).ending
    assert by_timestamp == OffsetLimit("timestamps", "endingOffsetsByTimestamp", each)
    starting = parsed(startingTimestamp="7", startingOffsetsByTimestampStrategy="LATEST").starting
    assert starting == OffsetLimit("timestamps", "startingTimestamp", timestamp=7, strategy="latest")
    assert parsed(startingOffsets="Earliest").starting.kind == "earliest"
    assert parsed(endingOffsets="latest").ending.kind == "latest"


def test_precedence_is_that_of_sparks_source() -> None:
    options = {"startingOffsets": EACH, "startingOffsetsByTimestamp": EACH, "startingTimestamp": "7"}
    assert parsed(**options).starting.option == "startingTimestamp"
    del options["startingTimestamp"]
    assert parsed(**options).starting.option == "startingOffsetsByTimestamp"


@pytest.mark.usefixtures("spark")
def test_columns_are_those_of_sparks_own_source_in_its_order() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert kcodec.spark.schema().names == names
    assert kcodec.spark.schema(include_headers=True).names == [*names, "headers"]
    every = kcodec.spark.schema(include_headers=True, include_batch_meta=True)
    assert every == types.StructType.fromDDL(columns.ddl(columns.ALL_COLUMNS))
    assert all(field.nullable for field in every.fields)
    assert columns.arrow_schema(columns.ALL_COLUMNS).equals(to_arrow_schema(every, timezone="UTC"))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("valeu binary", "unknown column 'valeu' .did you mean 'value'"),
        ("value string", "column 'value' is binary, not string"),
        ("offset bigint not null", "leave NOT NULL out"),
        ("headers map<string,binary>", "column 'headers' is array<struct<key:string,value:binary>>"),
        ("timestamp_type int", "did you mean 'timestampType'"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(ddl: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        columns.columns_of_schema(_struct(ddl))


@pytest.mark.usefixtures("spark")
def test_a_schema_chooses_and_orders_columns() -> None:
    chosen = columns.columns_of_schema(_struct("offset bigint, isTransactional boolean, key binary"))
    assert [column.column for column in chosen] == ["offset", "is_transactional", "key"]
    with pytest.raises(ValueError, match="requested twice"):
        columns.columns_named(["offset", "offset"])


def make_logs(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory of a broker, as it looks on disk."""
    segments = [f"{base:020d}.log" for base in (0, 40)]
    for name in ("orders-0", "orders-1", "pay-ments-10", "__consumer_offsets-3", "old-0.0a1b-delete", ".hidden-0"):
        make_logs(tmp_path / name, *segments)
    make_logs(tmp_path / "orders-0", f"{0:020d}.index", f"{40:020d}.snapshot", "leader-epoch-checkpoint", ".tmp.log")
    make_logs(tmp_path, "replication-offset-checkpoint", "meta.properties", "empty-0/leader-epoch-checkpoint")
    return tmp_path


def found(logs: Path, *patterns: str) -> list[tuple[str, list[int] | None]]:
    """Where each partition lies below `logs`, and the base offsets of the segments asked for."""
    return [
        (
            str(Path(partition.path).relative_to(logs)),
            None if partition.segments is None else sorted(int(name[:20]) for name in partition.segments),
        )
        for partition in find_partitions([str(logs / pattern) for pattern in patterns])
    ]


def test_paths(logs: Path) -> None:
    everything = [("orders-0", None), ("orders-1", None), ("pay-ments-10", None)]
    assert found(logs, "") == everything
    assert found(logs, "*") == [("__consumer_offsets-3", None), ("old-0.0a1b-delete", None), *everything]
    assert found(logs, "orders-*") == everything[:2]
    assert found(logs, "__consumer_offsets-3") == [("__consumer_offsets-3", None)]
    assert found(logs, f"orders-0/{40:020d}.log") == [("orders-0", [40])]
    assert found(logs, "orders-0/*") == [("orders-0", [0, 40])]
    assert found(logs, f"orders-*/{40:020d}.log", "orders-1") == [("orders-0", [40]), ("orders-1", None)]
    assert found(logs, "orders-1/../orders-0", "orders-0") == [("orders-0", None)]


def test_files_that_are_not_named_as_segments_stand_for_themselves(logs: Path) -> None:
    make_logs(logs / "copies", "a.log", "b.log")
    assert found(logs, "copies/*.log") == [("copies/a.log", None), ("copies/b.log", None)]


def test_an_address_of_a_local_file_is_a_path(logs: Path) -> None:
    assert find_partitions([f"file://{logs}/orders-0"]) == [FoundPartition(str(logs / "orders-0"))]
    make_logs(logs / "with space-0", f"{0:020d}.log")
    assert find_partitions([f"file:{logs}/with%20space-0"]) == [FoundPartition(str(logs / "with space-0"))]


def test_paths_without_anything_to_read(logs: Path) -> None:
    for pattern in ("missing-0", "missing-*", "empty-0"):
        with pytest.raises(FileNotFoundError, match=r"no \.log file and no partition directory"):
            find_partitions([str(logs / pattern)])
    with pytest.raises(ValueError, match="not a segment"):
        find_partitions([str(logs / "meta.properties")])
    with pytest.raises(ValueError, match="s3: is not supported"):
        find_partitions(["s3://bucket/orders-0"])
