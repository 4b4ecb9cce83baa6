# SPDX-License-Identifier: Apache-2.0
"""Streaming queries over a folder of text files, one batch for each file, for tests of the exactly-once sink.

A batch is planned again with the same file after a restart, as Kafka's source plans the same offsets. Rows are
`<file>-<row>`; they are their keys, too.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcodec.spark import exactly_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 120


class SinkQuery:
    """A query that copies the rows of a folder's files to a topic. options: of exactly_once."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.options = options
        self.files = 0
        (folder / "files").mkdir(parents=True)

    def add(self, rows: int = 20, files: int = 1) -> list[bytes]:
        """Add files, each the next batch; return their rows."""
        found = []
        for _ in range(files):
            lines = [f"{self.files}-{row}" for row in range(rows)]
            hidden = self.folder / "files" / f".{self.files}"
            hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            modified = 1_700_000_000 + self.files  # files are taken in this order
            os.utime(hidden, (modified, modified))
            hidden.rename(self.folder / "files" / f"{self.files:04}.txt")
            self.files += 1
            found += [line.encode() for line in lines]
        return found

    def frame(self) -> DataFrame:
        """The rows, with themselves as keys."""
        read = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "files"))
        return read.selectExpr("value AS key", "value")

    def start(self, change: Callable[[DataFrame], DataFrame] = lambda df: df, **options: Any) -> Any:
        """Start the query over all files that are there."""
        writer = exactly_once(change(self.frame()), **{**self.options, **options})
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda df: df, **options: Any) -> None:
        """Run the query to its end; raise what it ended with."""
        query = self.start(change, **options)
        assert query.awaitTermination(SECONDS), "the query hangs"

    def forget_commit(self, batch: int) -> None:
        """Change the checkpoint to that of a driver that was killed after EndTxn and before Spark's commit log."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()

    def roll_back(self, batch: int) -> None:
        """Change the checkpoint to a copy of it that was made before the batch was planned."""
        for part in ("commits", "offsets", "sources/0"):
            for path in (self.checkpoint / part).iterdir():
                name = path.name.strip(".").split(".")[0]
                if name.isdigit() and int(name) >= batch:
                    path.unlink()

    def delete_checkpoint(self) -> None:
        """Remove it."""
        shutil.rmtree(self.checkpoint)


def failing(flag: Path, fail: Callable[[], None]) -> Callable[[DataFrame], DataFrame]:
    """Return a change of a DataFrame: its tasks call `fail` in the middle of their rows, while the file is there."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if flag.exists():
                fail()
            yield batch.slice(batch.num_rows // 2)

    return lambda df: df.mapInArrow(pass_on, df.schema)


def once(flag: Path, fail: Callable[[], None]) -> Callable[[], None]:
    """Return a function that fails in the first process that calls it."""

    def fail_once() -> None:
        try:
            flag.unlink()
        except FileNotFoundError:
            return
        fail()

    return fail_once


def wait_until(is_true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait, at most for this time."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)
