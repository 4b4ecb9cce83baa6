# SPDX-License-Identifier: Apache-2.0
"""`land`: topics of a cluster into Parquet files. Python tasks write the files, and no record passes through the JVM.

The files of one call are committed together, and the next call continues after them. landing_folder.py describes how.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kcodec.spark.batch_functions import Function, options_of_source, results_of
from kcodec.spark.collect import collect_rows
from kcodec.spark.columns import columns_named, suggestion
from kcodec.spark.landing_folder import (
    COUNTS,
    LandedFile,
    Landing,
    LandingError,
    LandingFolder,
    Manifest,
    StagedFile,
    file_path,
    now,
)
from kcodec.spark.parquet_files import MAX_FILE_BYTES, ROW_GROUP_BYTES, ParquetFiles, ParquetSettings, describe
from kcodec.spark.planner import DataLoss, DataLossError, StreamOffsets, created_again
from kcodec.spark.workers import for_workers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kcodec.offsets import OffsetRange
    from kcodec.spark.topic_source import TopicSource

__all__ = ["LandedFile", "Landing", "LandingError", "land", "landings"]
logger = logging.getLogger("kcodec.spark")
FOLDERS = ("topic", "partition")


def land(
    spark: SparkSession,
    source: str | Sequence[str] | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002, as DataFrameWriter.save names it
    function: Function | None = None,
    columns: Sequence[str] | None = None,
    partition_by: Sequence[str] = (),
    resume: bool = True,
    compression: str = "zstd",
    compression_level: int | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    row_group_bytes: int = ROW_GROUP_BYTES,
    parquet_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    **options: Any,
) -> Landing:
    """Write the records of topics to Parquet files in a folder, each record once, and return what was written.

        landing = land(spark, "orders", "/data/orders", bootstrap_servers="localhost:9092")
        landing.rows, landing.files, landing.offsets
        spark.read.parquet("/data/orders")

    Python tasks fetch, decode and write the records. Each task has one range of offsets. Only the names of the files
    and counts return to the driver.

    A call commits all of its files at the same time, when a manifest in ``<path>/_landings`` names them. Then it makes
    them visible: it renames one file after another, so that a reader of the folder may see some files of the landing
    before the others. Files that a failed, repeated or killed task has left never become visible, and a later call
    removes them. The manifest also contains the offsets at which the next call continues. Therefore a loop of calls
    neither loses nor duplicates a record, even if it is killed at any time. If a call is killed while it renames
    committed files, the next call finishes that work. `landings` returns only the complete landings.

    source:            The topics as a list of names or separated by commas, or the options of Spark's own Kafka source
                       (see `map_batches`).
    path:              A folder that the driver and all executors share, or an address that pyarrow resolves
                       (``s3://bucket/orders``). Only one call can write to it at a time. A second call raises
                       LandingError.
    format:            Must be "parquet".
    function:          Function that is applied to the batches of each task, as in `map_batches`. The batches that it
                       yields are written, and must all have the same schema.
    columns:           Columns to read and decode: key, value, topic, partition, offset, timestamp, timestampType,
                       headers, and those that includeBatchMeta adds. None: the first seven of these, and what
                       includeHeaders and includeBatchMeta add.
    partition_by:      "topic", "partition" or both. The files are written into folders such as
                       ``topic=orders/partition=3``, and do not contain these columns.
    resume:            True: continue where the last landing in the folder ended. A loop of calls is then like one
                       streaming query whose checkpoint is the folder. The options are those of streams, and
                       maxOffsetsPerTrigger and maxBytesPerTrigger apply to each call. startingOffsets is "earliest" by
                       default and is used for the first landing. Topics and partitions that are added later begin at
                       their earliest offsets.
                       False: read what the options of a batch query define, even if the folder already contains it.
    compression:       "zstd", "snappy", "gzip", "brotli", "lz4" or "none".
    compression_level: Level of the compression. None: the default of pyarrow.
    max_file_bytes:    Maximum size of a file in bytes. A task begins a new file at the end of a row group, before the
                       file would exceed this size.
    row_group_bytes:   Size of a row group in bytes, as Arrow data before it is encoded. A task keeps one row group in
                       memory.
    parquet_options:   More arguments of ``pyarrow.parquet.ParquetWriter``, for example use_dictionary.
    filesystem:        A ``pyarrow.fs.FileSystem`` or an fsspec file system that contains `path`. It is sent to the
                       tasks.
    options:           More options of Spark's source or of `kcodec.read_ranges`, as for `map_batches`.

    Offsets are resolved when the function is called. The isolation level is read_uncommitted by default, as in Spark's
    source. Use isolation_level="read_committed" to leave out aborted records. Works on Spark 3.5 and later.

    Raise
    - ValueError if an option is unknown or invalid;
    - DataLossError (a ValueError) if offsets are no longer in the log, or if a topic was created again since the last
      call, unless failOnDataLoss is False;
    - LandingError if another call has committed meanwhile, or if the driver does not find the files of the tasks;
    - errors of brokers, and what Spark raises if a task fails.
    """
    from kcodec.spark.topic_source import TopicSource  # which imports the clients

    if format != "parquet":
        raise ValueError(f"format is {format!r}: expected 'parquet'")
    by = _checked_folders(partition_by)
    settings = ParquetSettings(compression, compression_level, max_file_bytes, row_group_bytes, parquet_options or {})
    given = {**options_of_source(source), **options}
    _refuse_waits(given)
    if resume:
        _refuse_ends(given)
        if not any(name.lower().startswith("starting") for name in given):
            given["startingOffsets"] = "earliest"
    topics = TopicSource.of(given, is_stream=resume)
    if columns is not None:
        topics = replace(topics, columns=columns_named([columns] if isinstance(columns, str) else columns))
    if function is None and not {column.name for column in topics.columns} - set(by):
        raise ValueError(
            f"columns has only {', '.join(by)}, which partition_by leaves out of the files: name another one"
        )
    folder = LandingFolder(path, filesystem)
    last = folder.recover()
    before = None if last is None else last.position
    ranges, position = _next(topics, before) if resume else _again(topics, before)
    if not ranges and position == (before or StreamOffsets({})):
        return Landing(folder.path, None, offsets=position.offsets)
    run = folder.begin(last)
    try:
        task = _Task(topics, ranges, function, settings, folder.filesystem, folder.staging(run), by)
        results = _run(spark, task)
        number = int(run.partition("-")[0])
        schema = _common_schema(results)
        files = tuple(_files(number, ranges, results, by))
    except BaseException:
        folder.discard(run)
        raise
    lost, skipped = (sum(int(result[name]) for result in results) for name in COUNTS)
    for each, result in zip(ranges, results, strict=True):
        if result["lost_offsets"] or result["skipped_batches"]:
            log = (each, result["lost_offsets"], result["skipped_batches"])
            logger.warning("%s: %d offsets were not in the log, %d corrupt batches were left out", *log)
    manifest = Manifest(number, run, now(), files, position, schema, lost, skipped)
    try:
        folder.commit(manifest)
    except LandingError:  # It is not committed. After any other error it may be, and the next call finds out.
        folder.discard(run)
        raise
    if last is not None and schema and last.schema and schema != last.schema:
        logger.warning("%s: landing %d has the columns %s, the one before %s", path, number, schema, last.schema)
    folder.publish(manifest)
    folder.sweep(number)
    if topics.group_id is not None:
        _commit(topics, position)
    landing = folder.landing_of(manifest)
    logger.info("%r", landing)
    return landing


def landings(path: str | os.PathLike[str], *, filesystem: Any = None) -> list[Landing]:
    """Return the landings in a folder whose files are all visible, in their order; none if there is no such folder.

        [landing.rows for landing in landings("/data/orders")]
        spark.read.parquet(*[path for landing in landings("/data/orders") for path in landing.paths])

    A reader of the folder itself may see the files of the newest landing one after another, while they are renamed; a
    reader of these files sees whole landings. path, filesystem: as for `land`.

    Raise LandingError if a manifest cannot be read.
    """
    return LandingFolder(path, filesystem).landings()


class _Task:
    """The work of a task."""

    SCHEMA = "task int, result string"

    def __init__(
        self,
        topics: TopicSource,
        ranges: Sequence[OffsetRange],
        function: Function | None,
        settings: ParquetSettings,
        filesystem: Any,
        folder: str,
        by: Sequence[str],
    ) -> None:
        self.topics, self.ranges, self.function, self.settings = topics, ranges, function, settings
        self.filesystem, self.folder, self.by = filesystem, folder, by

    def results(self, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each range of the task."""
        import pyarrow as pa

        for number in (number for batch in tasks for number in batch.column(0).to_pylist()):
            result = json.dumps(self.write(self.ranges[number]))
            yield pa.record_batch([pa.array([number], pa.int32()), pa.array([result])], names=["task", "result"])

    def write(self, each: OffsetRange) -> dict[str, Any]:
        """Write the files of a range. Return their names, rows, bytes and schema."""
        counts = dict.fromkeys(COUNTS, 0)

        def count(lost: int, skipped: int) -> None:
            counts.update({"lost_offsets": lost, "skipped_batches": skipped})

        with ParquetFiles(self.filesystem, self.folder, self.settings, without=self.by) as files:
            batches = self.topics.read([each], count)
            files.write(batches if self.function is None else results_of(self.function, batches))
        schema = "" if files.schema is None or not files.written else describe(files.schema)
        return {"files": [asdict(file) for file in files.written], "schema": schema, **counts}


def _run(spark: SparkSession, task: _Task) -> list[dict[str, Any]]:
    """Return the results of all tasks, in their order."""
    count = len(task.ranges)
    if not count:
        return []

    def run(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task.results(tasks)

    rows = collect_rows(spark.range(0, count, 1, count).mapInArrow(for_workers(run), task.SCHEMA))
    results = {row.task: json.loads(row.result) for row in rows}
    if len(rows) != count or len(results) != count:
        raise LandingError(f"{count} tasks returned {len(rows)} results; expected one result from each task")
    return [results[number] for number in range(count)]


def _next(topics: TopicSource, before: StreamOffsets | None) -> tuple[list[OffsetRange], StreamOffsets]:
    """Return the ranges after a position, and the position at their end. Partitions that the call does not read keep
    their position."""
    from kcodec.spark.topic_stream import TopicStream

    offsets, ids = ({}, {}) if before is None else (before.offsets, before.topic_ids)
    read = {each for each in offsets if topics.topics.includes(each)}
    names = {each.topic for each in read}
    known = StreamOffsets(
        {each: offset for each, offset in offsets.items() if each in read},
        {topic: text for topic, text in ids.items() if topic in names},
        {} if before is None else {topic: when for topic, when in before.missing.items() if topic in names},
    )
    stream = TopicStream(topics)
    try:
        start = known.to_dict() if read else stream.initial_offset()
        end = stream.latest_offset(start)
        ranges, reached = stream.ranges(start, end), StreamOffsets.from_dict(end)
    finally:
        stream.close()
    kept = {each: offset for each, offset in offsets.items() if each not in read}
    kept_ids = {each.topic: ids[each.topic] for each in kept if each.topic in ids}
    missing = {} if before is None else {topic: when for topic, when in before.missing.items() if topic not in names}
    return ranges, StreamOffsets(
        {**kept, **reached.offsets}, {**kept_ids, **reached.topic_ids}, {**missing, **reached.missing}
    )


def _commit(topics: TopicSource, position: StreamOffsets) -> None:
    """Commit a position for kafka.group.id, which tools for lag read."""
    from kcodec.spark.topic_stream import TopicStream

    stream = TopicStream(topics)
    try:
        stream.commit(position.to_dict())
    finally:
        stream.close()


def _again(topics: TopicSource, before: StreamOffsets | None) -> tuple[list[OffsetRange], StreamOffsets]:
    """Return the ranges of a batch query, and the position after these ranges and all earlier landings. A partition
    whose range is empty has a position as well, so that the next call does not read what this one left out.

    The position in a topic that was created again is that of the deleted topic. It is dropped, or DataLossError is
    raised if failOnDataLoss is true.
    """
    from kcodec.spark.topic_stream import id_text

    bounds = topics.bounds()
    offsets, ids = ({}, {}) if before is None else (dict(before.offsets), dict(before.topic_ids))
    found = {each.topic: id_text(each.topic_id) for each in bounds if each.topic_id is not None}
    renewed = {topic for topic, text in found.items() if ids.get(topic, text) != text}
    losses = [
        DataLoss(each, offset, None, created_again(ids[each.topic], found[each.topic]))
        for each, offset in sorted(offsets.items())
        if each.topic in renewed
    ]
    if losses and topics.fails_on_data_loss:
        raise DataLossError(losses)
    for loss in losses:
        logger.warning("%s", loss)
        del offsets[loss.partition]
    known = {each.topic for each in offsets}
    is_whole = topics.starting.kind == "earliest"
    for each in bounds:
        position = offsets.get(each.topic_partition)
        if position is None and each.topic in renewed and each.start > 0 and not is_whole:
            continue  # The next call begins at the earliest offset of the new topic.
        # Offsets between the position and a later start are left to the next call.
        if position is None or each.start <= position:
            offsets[each.topic_partition] = max(each.end, position or 0)
        if each.topic in found and each.topic not in known:
            ids[each.topic] = found[each.topic]
    missing = {} if before is None else {topic: when for topic, when in before.missing.items() if topic not in found}
    return topics.cut(bounds), StreamOffsets(offsets, ids, missing)


def _common_schema(results: Sequence[Mapping[str, Any]]) -> str:
    schemas = sorted({str(result["schema"]) for result in results if result["schema"]})
    if len(schemas) > 1:
        raise ValueError(
            f"the function yielded the columns {schemas[0]} in one task and {schemas[1]} in another: all files of a "
            "landing must have the same schema"
        )
    return schemas[0] if schemas else ""


def _files(
    number: int, ranges: Sequence[OffsetRange], results: Sequence[Mapping[str, Any]], by: Sequence[str]
) -> Iterator[StagedFile]:
    for task, (each, result) in enumerate(zip(ranges, results, strict=True)):
        for part, written in enumerate(result["files"]):
            path = file_path(number, task, part, each.topic, each.partition, each.start, by)
            place = (each.topic, each.partition, each.start, each.end)
            yield StagedFile(written["name"], LandedFile(path, written["rows"], written["bytes"], *place))


def _refuse_waits(given: Mapping[str, Any]) -> None:
    """Raise ValueError for the options by which a stream waits for more records."""
    for name in given:
        if name.lower() in ("minoffsetspertrigger", "maxtriggerdelay"):
            raise ValueError(
                f"option {name!r} has no meaning for land(), which does not wait for records; call land() less often"
            )


def _refuse_ends(given: Mapping[str, Any]) -> None:
    """Raise ValueError for the options of batch queries that say where a call ends."""
    for name in given:
        if name.lower().startswith("ending"):
            raise ValueError(
                f"option {name!r} needs resume=False: a call of land() with resume=True continues after the last "
                "landing and reads to the end of the log, or at most maxOffsetsPerTrigger offsets"
            )


def _checked_folders(partition_by: Sequence[str]) -> tuple[str, ...]:
    by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    for name in by:
        if name not in FOLDERS:
            raise ValueError(
                f"partition_by names {name!r}{suggestion(name, FOLDERS)}: expected topic, partition or both"
            )
    if len(set(by)) != len(by):
        raise ValueError(f"partition_by names a folder twice: {', '.join(by)}")
    return by
