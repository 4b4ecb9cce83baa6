# SPDX-License-Identifier: Apache-2.0
"""Reads that ``format("kcodec")`` must refuse: offsets that the log does not hold, writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import kcodec
from kcodec.spark import file_ranges
from kcodec.spark.columns import default_columns
from kcodec.spark.file_options import parse_options
from kcodec.spark.file_ranges import RangeOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, MIDDLE, END = 40, 70, 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The partition t-0 with offsets 40 to 99 in two segments."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    for base, end in ((FIRST, MIDDLE), (MIDDLE, END)):
        batches = [kcodec.encode([(None, b"v")] * 10, base_offset=at, timestamp=5) for at in range(base, end, 10)]
        (folder / f"{base:020}.log").write_bytes(b"".join(bytes(batch) for batch in batches))
    return folder


def rows(path: Path | str, **options: Any) -> list[int]:
    """The offsets that the tasks of a read give, planned and read as Spark has it done."""
    each = {name: json.dumps({"t": {"0": value}}) if "Offsets" in name else value for name, value in options.items()}
    given = parse_options({"path": str(path), **each})
    reading = RangeOptions(tuple(default_columns(False, False)), given.isolation_level, on_error=given.on_error)
    found = []
    for task in file_ranges.plan_tasks(given, reading):
        for batch in file_ranges.read_ranges(task, reading):
            found += batch.column("offset").to_pylist()
    return found


BEYOND = [
    ({"startingOffsets": 500}, "'startingOffsets': the start offset 500 of t-0 .* holds offsets 40 to 99; .* -2 for"),
    ({"startingOffsets": 101}, "the start offset 101 of t-0 .* give an offset from 40 to 100"),
    ({"startingOffsets": 39}, "the start offset 39 of t-0 is outside of the log, which begins at offset 40"),
    ({"endingOffsets": 101}, "'endingOffsets': the end offset 101 of t-0 .* holds offsets 40 to 99; .* -1 for"),
    ({"endingOffsets": 3}, "the end offset 3 of t-0 .* begins at offset 40"),
    ({"startingOffsets": 50, "endingOffsets": 1000}, "the end offset 1000 of t-0"),
]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("named", ["", "*.log", "*70.log"], ids=["directory", "files", "last file"])
@pytest.mark.parametrize(("options", "message"), BEYOND)
def test_offsets_outside_of_the_log_fail_the_read(
    path: Path, named: str, level: str, options: dict[str, int], message: str
) -> None:
    if named == "*70.log":  # the file alone is the log then
        message = message.replace("40", "70").replace("the end offset 1000", "the start offset 50")
    with pytest.raises(ValueError, match=message):
        rows(path / named, **options, **{"kafka.isolation.level": level})


@pytest.mark.parametrize("named", ["", "*.log"], ids=["directory", "files"])
@pytest.mark.parametrize(
    ("start", "end"), [(40, 100), (40, 40), (100, 100), (-2, 41), (99, -1), (69, 71), (75, 100), (100, -1)]
)
def test_offsets_inside_of_the_log_are_read(path: Path, named: str, start: int, end: int) -> None:
    first, last = (FIRST if start == -2 else start), (END if end == -1 else end)
    assert rows(path / named, startingOffsets=start, endingOffsets=end) == [*range(first, last)]


def test_a_deleted_beginning_counts_as_outside_of_the_log(path: Path) -> None:
    (path.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 55\n")
    assert rows(path, startingOffsets=55) == [*range(55, 100)]
    with pytest.raises(ValueError, match="the start offset 54 of t-0 is outside of the log, which begins at offset 55"):
        rows(path, startingOffsets=54)


@pytest.mark.spark
def test_spark_shows_which_offset_is_outside_of_the_log(spark: SparkSession, path: Path) -> None:
    loaded = spark.read.format("kcodec").option("startingOffsets", '{"t":{"0":500}}').load(str(path))
    with pytest.raises(PySparkException, match="the start offset 500 of t-0 is outside of the log"):
        loaded.collect()
