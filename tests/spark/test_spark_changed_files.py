# SPDX-License-Identifier: Apache-2.0
"""Segments that are compacted, merged, deleted or truncated after a query over files was planned, and before a task
reads them.

A result must not be partial without an error. Only records that compaction has removed may be missing.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from log_builder import LogBuilder
from log_messages import messages
from pyspark.errors import PySparkException

from kcodec import log as logs
from kcodec.errors import DecodeError, TruncatedError
from kcodec.limits import DecodeLimits
from kcodec.log import partition, storage
from kcodec.log.chunks import ByteRange
from kcodec.log.growth import GrowingLog
from kcodec.log.segment import Segment
from kcodec.log.timeline import Timeline, walk_segments
from kcodec.offsets import TopicPartition
from kcodec.spark import file_ranges
from kcodec.spark.columns import default_columns
from kcodec.spark.file_options import parse_options
from kcodec.spark.file_ranges import RangeOptions, Task
from kcodec.spark.file_stream import FileStream, FileStreamOptions
from kcodec.spark.planner import DataLossError
from kcodec.spark.stream_readers import FileQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Base offsets of the segments. Each batch has 5 records, and each segment 20 offsets. The last segment is active.
BASES = (0, 20, 40, 60)
END = 80
LEVELS = ["read_uncommitted", "read_committed"]
#: The errors of batch queries and of streams.
LOST = (FileNotFoundError, DataLossError)
Read = Callable[[], list[int]]


def data(base: int, *, kept: range = range(0)) -> bytes:
    """Return the batches of a segment. kept: Offsets in it whose batches compaction has left; empty: all batches."""
    builder = LogBuilder(base)
    for first in range(base, base + 20, 5):
        if not kept or first in kept:
            builder.plain(5)
        else:
            builder.gap(5)
    return builder.data


def name(base: int, suffix: str = "") -> str:
    return f"{base:020}.log{suffix}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of the partition t-0."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    for base in BASES:
        (folder / name(base)).write_bytes(data(base))
    return folder


def clean(path: Path, cleaned: bytes, *bases: int) -> None:
    """Replace segments by one, as the log cleaner does: the old ones are renamed, and deleted later."""
    new = path / name(bases[0], ".swap")
    new.write_bytes(cleaned)
    for base in bases:
        (path / name(base)).rename(path / name(base, ".deleted"))
    new.rename(path / name(bases[0]))


def planned(path: Path | str, level: str, **options: str) -> Read:
    """Plan a batch query, and return the function that reads the offsets of all tasks."""
    given = parse_options({"path": str(path), "kafka.isolation.level": level, **options})
    reading = RangeOptions(tuple(default_columns(False, False)), given.isolation_level, on_error=given.on_error)
    tasks = file_ranges.plan_tasks(given, reading)
    return lambda: [
        offset
        for task in tasks
        for batch in file_ranges.read_ranges(task, reading)
        for offset in batch.column("offset").to_pylist()
    ]


class Stream:
    """One micro-batch of a stream, which is planned and not read yet."""

    def __init__(self, path: Path, level: str, **options: str) -> None:
        given = {"path": str(path), "startingOffsets": "earliest", "kafka.isolation.level": level, **options}
        self._query = FileQuery(FileStreamOptions.of(given, default_columns(False, False)))
        driver = self._query.driver()
        start = driver.initial_offset()
        self.tasks: list[Task] = driver.tasks(start, driver.latest_offset(start))

    def __call__(self) -> list[int]:
        batches = (batch for task in self.tasks for batch in self._query.read(task))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


#: A size that is smaller than a segment, so that a segment is read in several ranges.
SMALL = {"splitBytes": "250"}
PLANS: dict[str, Callable[[Path, str], Read]] = {
    "batch": lambda path, level: planned(path, level),
    "batch with small ranges": lambda path, level: planned(path, level, **SMALL),
    "batch of named files": lambda path, level: planned(path / "*.log", level),
    "permissive batch": lambda path, level: planned(path, level, mode="permissive"),
    "stream": lambda path, level: Stream(path, level),
    "stream with small ranges": lambda path, level: Stream(path, level, **SMALL),
}
of_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
of_levels = pytest.mark.parametrize("level", LEVELS)


@of_levels
@of_plans
def test_without_a_change_all_offsets_are_read(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    assert plan(path, level)() == [*range(END)]


@of_levels
@of_plans
def test_a_compacted_segment_is_read_by_offset(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    """The batches that are left are at other positions than in the planned ranges."""
    read = plan(path, level)
    clean(path, data(20, kept=range(30, 40)), 20)
    assert read() == [*range(20), *range(30, END)]


@of_levels
@of_plans
def test_merged_segments_are_read_once(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    """The new segment begins with as many bytes as the first old one had, at the end of which there is a batch."""
    read = plan(path, level)
    clean(path, data(0, kept=range(10)) + data(20), 0, 20)
    assert read() == [*range(10), *range(20, END)]


@of_levels
@of_plans
def test_three_segments_are_merged(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    read = plan(path, level)
    clean(path, data(0, kept=range(5)) + data(20, kept=range(35, 40)) + data(40), 0, 20, 40)
    assert read() == [*range(5), *range(35, END)]


@of_levels
def test_a_merge_of_too_many_segments_is_an_error(path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task does not know the earlier version of the segment into which its segment was merged."""
    monkeypatch.setattr(file_ranges, "PREVIOUS_SEGMENTS", 1)
    read = planned(path, level)
    clean(path, data(0) + data(20) + data(40), 0, 20, 40)
    with pytest.raises(FileNotFoundError, match=r"40\.log.*from offset 40 on.*call load\(\)"):
        read()


@of_levels
@of_plans
@pytest.mark.parametrize("base", BASES)
def test_a_deleted_segment_is_an_error(path: Path, plan: Callable[[Path, str], Read], level: str, base: int) -> None:
    read = plan(path, level)
    (path / name(base)).unlink()
    with pytest.raises(LOST) as caught:
        read()
    text = str(caught.value)
    assert str(path / name(base)) in text
    assert f"from offset {base} on" in text or f"t-0: offsets {base} to " in text
    assert "call load()" in text or ". To continue with the remaining offsets" in text


@of_levels
@of_plans
def test_segments_deleted_by_retention_are_an_error(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    read = plan(path, level)
    for base in (0, 20):
        (path / name(base)).rename(path / name(base, ".deleted"))
    with pytest.raises(LOST, match=r"t-0 .*from offset 0 on|t-0: offsets 0 to "):
        read()


@of_levels
@of_plans
def test_a_truncated_log_is_an_error(path: Path, plan: Callable[[Path, str], Read], level: str) -> None:
    """A replica truncates a segment and deletes the segments after it."""
    read = plan(path, level)
    (path / name(60)).unlink()
    (path / name(40)).unlink()
    os.truncate(path / name(20), len(data(20)) // 2)
    with pytest.raises((TruncatedError, FileNotFoundError), match=r"20\.log|40\.log"):
        read()


def test_a_truncated_single_segment_is_an_error(tmp_path: Path) -> None:
    """Such a segment is read without a walk over its headers."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    file = folder / name(0)
    file.write_bytes(data(0))
    read = planned(folder, LEVELS[0])
    os.truncate(file, len(data(0)) // 2)
    with pytest.raises(TruncatedError, match="became shorter"):
        read()


@of_levels
def test_a_stream_without_fail_on_data_loss_logs_what_is_lost(
    path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    read = Stream(path, level, failOnDataLoss="false")
    (path / name(0)).unlink()
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert read() == [*range(20, END)]
    assert "t-0: offsets 0 to 19 cannot be read" in messages(caplog)
    assert "lost_offsets=20" in messages(caplog)


@of_levels
def test_a_stream_without_fail_on_data_loss_reads_compacted_segments(path: Path, level: str) -> None:
    read = Stream(path, level, failOnDataLoss="false")
    clean(path, data(0, kept=range(10)) + data(20), 0, 20)
    assert read() == [*range(10), *range(20, END)]


@of_levels
@pytest.mark.parametrize("numbers", [{"device": -1}, {"device": -1, "number": -1}], ids=["device", "device and inode"])
def test_another_machine_reads_the_planned_positions(
    path: Path, level: str, numbers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared file system has other device numbers on another machine. Looking up offsets would be slower."""
    read = Stream(path, level, **SMALL)
    for number, task in enumerate(read.tasks):
        ranges = []
        for each in task:
            assert each.byte_range.version is not None
            version = each.byte_range.version._replace(**numbers)
            ranges.append(replace(each, byte_range=replace(each.byte_range, version=version)))
        read.tasks[number] = tuple(ranges)

    def unexpected(each: file_ranges.FileRange, *_: object) -> None:
        raise AssertionError(f"{each.byte_range.path} is considered replaced")

    monkeypatch.setattr(file_ranges, "_read_again", unexpected)
    assert read() == [*range(END)]


def test_segments_of_another_machine_may_be_merged(path: Path) -> None:
    """The version of the segment before a missing one shows that both were merged, or that one was deleted."""
    read = Stream(path, LEVELS[0])
    for number, task in enumerate(read.tasks):
        ranges = []
        for each in task:
            versions = [one.version._replace(device=-1) for one in each.previous if one.version is not None]
            previous = (replace(one, version=version) for one, version in zip(each.previous, versions, strict=True))
            ranges.append(replace(each, previous=tuple(previous)))
        read.tasks[number] = tuple(ranges)
    (path / name(20)).rename(path / name(20, ".deleted"))
    with pytest.raises(DataLossError, match="t-0: offsets 20 to 39 cannot be read"):
        read()
    clean(path, data(0) + data(20, kept=range(30, 40)), 0)
    assert read() == [*range(20), *range(30, END)]


class Growing:
    """A stream over a partition directory that changes between its looks at it."""

    def __init__(self, path: Path, level: str = LEVELS[0], **options: str) -> None:
        given = {"path": str(path), "startingOffsets": "earliest", "kafka.isolation.level": level, **options}
        self.query = FileQuery(FileStreamOptions.of(given, default_columns(False, False)))
        self.driver = self.query.driver()
        self.position = self.driver.initial_offset()

    def plan(self) -> list[Task]:
        """Return the tasks of the next micro-batch."""
        start, self.position = self.position, self.driver.latest_offset(self.position)
        return list(self.driver.tasks(start, self.position))

    def read(self, tasks: list[Task]) -> list[int]:
        batches = (batch for task in tasks for batch in self.query.read(task))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """The directory of the partition t-0, whose active segment 40 is half full."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    for base in (0, 20, 40):
        (folder / name(base)).write_bytes(data(base))
    os.truncate(folder / name(40), len(data(40)) // 2)
    return folder


def grow(path: Path) -> None:
    """Fill segment 40, and create the segments 60 and 80. The file system's clock ticks in between."""
    time.sleep(0.06)
    half = len(data(40)) // 2
    with (path / name(40)).open("ab") as file:
        file.write(data(40)[half:])
    for base in (60, 80):
        (path / name(base)).write_bytes(data(base))


def test_appends_with_coarse_times_are_no_replacements(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems store the time of a change in whole seconds. An append in the second in which the stream has
    first looked at the file seems to be older than this look. Later appends do not."""
    exact = storage._version_of

    def coarse(found: os.stat_result) -> storage.FileVersion | None:
        version = exact(found)
        return version and version._replace(modified_ns=version.modified_ns // 10**9 * 10**9)

    reopened: list[object] = []
    reopen = FileStream._reopen

    def counted(stream: FileStream, partition: TopicPartition, offset: int) -> None:
        reopened.append(partition)
        reopen(stream, partition, offset)

    monkeypatch.setattr(storage, "_version_of", coarse)
    monkeypatch.setattr(FileStream, "_reopen", counted)
    stream, found = Growing(growing), []
    found += stream.read(stream.plan())
    quarter = len(data(40)) // 4
    for base, starts in ((40, (2, 3)), (60, (0,)), (60, (1, 2, 3))):
        time.sleep(1.0 - time.time() % 1.0 + 0.02)  # until the next second begins
        for start in starts:
            with (growing / name(base)).open("ab") as file:
                file.write(data(base)[start * quarter : (start + 1) * quarter])
            found += stream.read(stream.plan())
            time.sleep(0.1)
    assert found == [*range(80)]
    assert not reopened


@of_levels
@pytest.mark.parametrize("is_consumed", [False, True], ids=["one micro-batch", "two micro-batches"])
def test_a_segment_that_grew_was_not_merged(growing: Path, level: str, is_consumed: bool) -> None:
    """The file after it was deleted. Its data is not in the file that grew."""
    stream = Growing(growing, level)
    if is_consumed:
        assert stream.read(stream.plan()) == [*range(50)]
    else:
        stream.driver.latest_offset(stream.position)
    grow(growing)
    tasks = stream.plan()
    (growing / name(60)).unlink()
    with pytest.raises(DataLossError, match="t-0: offsets 60 to 79 cannot be read"):
        stream.read(tasks)


@of_levels
def test_a_segment_that_grew_may_be_merged_later(growing: Path, level: str) -> None:
    stream = Growing(growing, level)
    assert stream.read(stream.plan()) == [*range(50)]
    grow(growing)
    tasks = stream.plan()
    clean(growing, data(40) + data(60, kept=range(70, 80)), 40, 60)
    assert stream.read(tasks) == [*range(50, 60), *range(70, 100)]


def test_a_segment_that_was_compacted_alone_was_not_merged(growing: Path) -> None:
    """Segment 40 was compacted before the micro-batch was planned, and segment 60 was deleted after it."""
    grow(growing)
    stream = Growing(growing, startingOffsets='{"t": {"0": 60}}')
    stream.driver.latest_offset(stream.position)
    clean(growing, data(40, kept=range(40, 50)), 40)
    tasks = stream.plan()
    (growing / name(60)).unlink()
    with pytest.raises(DataLossError, match="t-0: offsets 60 to 79 cannot be read"):
        stream.read(tasks)


def test_a_stream_that_starts_in_a_segment_reads_it_merged(growing: Path) -> None:
    """The segments before the first segment of the stream show that it was merged into one of them."""
    grow(growing)
    stream = Growing(growing, startingOffsets='{"t": {"0": 65}}')
    tasks = stream.plan()
    clean(growing, data(20) + data(40) + data(60), 20, 40, 60)
    assert stream.read(tasks) == [*range(65, 100)]


def test_a_restarted_stream_reads_its_first_segment_merged(growing: Path) -> None:
    """After a restart, the walk begins in this segment. The segments before it are not walked."""
    grow(growing)
    position = Growing(growing, startingOffsets='{"t": {"0": 65}}').position
    stream = Growing(growing)
    stream.driver, stream.position = stream.query.driver(), position
    tasks = stream.plan()
    clean(growing, data(20) + data(40) + data(60), 20, 40, 60)
    assert stream.read(tasks) == [*range(65, 100)]


def test_a_replacement_during_the_walk_is_noticed(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log cleaner replaces a segment after its headers were read, and before the stream notes the walked range."""
    grow(growing)
    step = GrowingLog.step
    steps: list[bool] = []

    def replacing(log: GrowingLog) -> bool:
        is_more = step(log)
        if not steps:
            clean(growing, data(0, kept=range(10)), 0)
        steps.append(is_more)
        return is_more

    monkeypatch.setattr(GrowingLog, "step", replacing)
    stream = Growing(growing)
    tasks = stream.plan()
    assert steps
    assert stream.read(tasks) == [*range(10), *range(20, 100)]


@pytest.mark.parametrize("mode", ["failfast", "permissive"])
@pytest.mark.parametrize("named", ["file", "directory"])
def test_a_replaced_last_segment_ends_where_the_next_one_begins(tmp_path: Path, mode: str, named: str) -> None:
    """The end of such a range is not known when it is planned, because its headers are not walked."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / name(60)).write_bytes(data(60))
    read = planned(folder / name(60) if named == "file" else folder, LEVELS[0], mode=mode)
    (folder / name(80)).write_bytes(data(80))
    clean(folder, data(60, kept=range(70, 80)), 60)
    assert read() == [*range(70, 80)]


def test_only_replaced_segments_are_walked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mode=permissive, the search for an offset reads all headers of the segments that contain the range."""
    read = planned(path, LEVELS[0], mode="permissive")
    clean(path, data(20, kept=range(30, 40)), 20)
    walked: list[str] = []

    def noting(segments: Sequence[Segment], limits: DecodeLimits, on_error: str = "raise") -> Timeline:
        walked.extend(Path(segment.path).name for segment in segments)
        return walk_segments(segments, limits, on_error)

    monkeypatch.setattr(partition, "walk_segments", noting)
    assert read() == [*range(20), *range(30, END)]
    assert walked == [name(20)]


@of_plans
def test_a_missing_directory_of_an_executor_is_named(path: Path, plan: Callable[[Path, str], Read]) -> None:
    """The driver may have planned the read on another machine, whose file system the executor does not share."""
    logs_directory = path.parent / "logs"
    logs_directory.mkdir()
    moved = path.rename(logs_directory / "t-0")
    read = plan(moved, LEVELS[0])
    logs_directory.rename(path.parent / "others")
    expected = f"the directory {logs_directory} does not exist on this executor; the path must be the same"
    with pytest.raises(FileNotFoundError, match=expected) as caught:
        read()
    assert "deleted" not in str(caught.value)


@of_plans
def test_the_directory_of_a_deleted_partition_is_an_error(path: Path, plan: Callable[[Path, str], Read]) -> None:
    """Kafka renames it."""
    read = plan(path, LEVELS[0])
    path.rename(path.with_name("t-0.6f1ed4b3-delete"))
    with pytest.raises(LOST, match=r"t-0 .*from offset 0 on|t-0: offsets 0 to "):
        read()


def test_a_stream_may_leave_out_a_deleted_partition(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(path, LEVELS[0], failOnDataLoss="false")
    path.rename(path.with_name("t-0.6f1ed4b3-delete"))
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert stream() == []
    assert f"t-0: offsets 0 to {BASES[1] - 1} cannot be read" in messages(caplog)


def test_lost_offsets_begin_after_the_returned_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first segment of a range that was looked up again is read, and the second one is deleted before that."""
    found = [
        ByteRange(str(path / name(base)), 0, len(LogBuilder(base).plain(5).plain(5).data), base, False)
        for base in (0, 10)
    ]
    stream = Stream(path, LEVELS[0], failOnDataLoss="false")
    clean(path, data(0), 0)
    monkeypatch.setattr(logs.Log, "ranges_again", lambda *_: found)
    with caplog.at_level(logging.WARNING, "kcodec.spark"):
        assert stream() == [*range(10), *range(20, END)]
    assert "t-0: offsets 10 to 19 cannot be read" in messages(caplog)
    assert "lost_offsets=10" in messages(caplog)


def test_the_error_of_a_deleted_segment_can_be_pickled(path: Path) -> None:
    read = planned(path, LEVELS[0])
    (path / name(0)).unlink()
    with pytest.raises(file_ranges.DeletedSegmentError) as caught:
        read()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error)) == (file_ranges.DeletedSegmentError, str(caught.value))
    assert (error.first_offset, error.next_offset) == (0, 20)


def test_a_truncated_log_names_the_deleted_segment(path: Path) -> None:
    """The segment that is now the last one was replaced, too."""
    read = planned(path, LEVELS[0])
    clean(path, data(20), 20)
    for base in (40, 60):
        (path / name(base)).unlink()
    with pytest.raises(DecodeError, match=r"40\.log was deleted; .*in Spark, call load\(\) again"):
        read()


@pytest.mark.spark
def test_spark_shows_which_file_was_deleted(spark: SparkSession, path: Path) -> None:
    """Spark plans a DataFrame once, so that its second action reads the files of the first one."""
    frame = spark.read.format("kcodec").load(str(path))
    assert frame.count() == END
    clean(path, data(20, kept=range(30, 40)), 20)
    assert frame.count() == END - 10
    (path / name(0)).unlink()
    with pytest.raises(PySparkException, match=r"0000\.log.* was deleted .*call load\(\) or"):
        frame.count()
