# SPDX-License-Identifier: Apache-2.0
"""Reads and writes topics that require a password or a token, and collects everything that Spark shows or writes.

Usage: python spark_secrets.py FOLDER. FOLDER/cases.json names a topic, and by the name of each case the options for it.
What is seen of them is written to FOLDER/seen.json, by place. Python workers log to this program's output.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kcodec.spark import map_batches


def same(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.select(["value"])


class Look:
    """Runs the same reads and writes with some options, and collects what can be seen of them."""

    def __init__(self, spark: SparkSession, folder: Path, topic: str) -> None:
        self._spark = spark
        self._folder = folder
        self._topic = topic
        self.seen: dict[str, str] = {}
        self.errors: list[str] = []

    def run(self, name: str, options: dict[str, str]) -> None:
        self._spark.sparkContext.setJobDescription(f"case {name}")
        rows = self._spark.range(20).selectExpr("cast(id as string) as value")
        self._attempt(lambda: self._writer(rows.write.mode("append"), options).save())
        rows.write.mode("overwrite").parquet(str(self._folder / "in"))
        stream = self._spark.readStream.schema("value string").parquet(str(self._folder / "in"))
        written = self._writer(stream.writeStream, options).trigger(availableNow=True).queryName(f"q-{name}")
        query = written.option("checkpointLocation", str(self._folder / "checkpoints" / name)).start()
        self._attempt(lambda: query.awaitTermination(120))
        self.seen[f"{name}: streaming query"] = f"{query.recentProgress!r} {query._jsq.explainInternal(True)}"
        self._attempt(lambda: self._read(name, options))
        self._attempt(lambda: self._source(name, options))
        self._attempt(lambda: self._table(name, options))

    def _writer(self, writer: Any, options: dict[str, str]) -> Any:
        return writer.format("kcodec").options(**options).option("topic", self._topic)

    def _read(self, name: str, options: dict[str, str]) -> None:
        found = map_batches(self._spark, {**options, "subscribe": self._topic}, same, "value binary")
        self.seen[f"{name}: plan of map_batches"] = plan(found)
        assert found.count()

    def _source(self, name: str, options: dict[str, str]) -> None:
        """A batch read by the data source, then a stream."""
        given = {**options, "subscribe": self._topic}
        found = self._spark.read.format("kcodec").options(**given).load()
        self.seen[f"{name}: plan of the source"] = plan(found)
        assert found.count()
        stream = self._spark.readStream.format("kcodec").options(**given, startingOffsets="earliest").load()
        folder = str(self._folder / "checkpoints" / f"{name}-source")
        query = (
            stream.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True).start()
        )
        query.awaitTermination(120)
        self.seen[f"{name}: stream of the source"] = f"{query.recentProgress!r} {query._jsq.explainInternal(True)}"

    def _table(self, name: str, options: dict[str, str]) -> None:
        """A table, and the Parquet files and the table that are made from its columns."""
        table = f"secrets_{name.replace(' ', '_')}"
        given = {**options, "subscribe": self._topic}
        listed = ", ".join(f"'{option}' '{value}'" for option, value in given.items())
        self._spark.sql(f"CREATE TABLE {table} USING kcodec OPTIONS ({listed})")
        found = self._spark.table(table).select("key", "topic")  # the first column has the options
        folder = self._folder / "parquet" / table
        found.write.parquet(str(folder))
        found.write.format("parquet").saveAsTable(f"{table}_copy")
        self.seen[f"{name}: plan of a table"] = plan(found)
        self.seen[f"{name}: columns of a table"] = (
            found.schema.json() + self._spark.table(f"{table}_copy").schema.json()
        )
        self.seen[f"{name}: Parquet files of a table"] = files(folder)

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # its text is one of the things to look at
            self.errors.append(f"{error!r} {error}")


def plan(frame: DataFrame) -> str:
    execution = frame._jdf.queryExecution()
    modes = execution.getClass().getClassLoader().loadClass("org.apache.spark.sql.execution.ExtendedMode$")
    return f"{execution.toString()} {execution.explainString(modes.getField('MODULE$').get(None))} {frame!r}"


def ui(spark: SparkSession) -> str:
    context = spark.sparkContext
    address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    pages = [
        f"{address}/{page}" for page in ("sql?details=true&planDescription=true&length=1000", "environment", "jobs")
    ]
    pages.append(f"{context.uiWebUrl}/StreamingQuery/")
    texts = []
    for page in pages:
        with urllib.request.urlopen(page, timeout=60) as answer:
            texts.append(answer.read().decode())
    return "\n".join(texts)


def files(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


def main() -> None:
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    (folder / "events").mkdir()
    (folder / "log4j2.properties").write_text(LOGGING.format(file=folder / "spark.log"))
    options = {
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.maxPlanStringLength": "10000000",
    }
    builder = SparkSession.builder.master("local[2]").appName("secrets")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    look = Look(spark, folder, cases["topic"])
    for name, given in cases["options"].items():
        look.run(name, given)
    look.seen["UI"] = ui(spark)
    look.seen["errors"] = "\n".join(look.errors)
    spark.stop()
    look.seen["event log"] = files(folder / "events")
    look.seen["JVM log"] = (folder / "spark.log").read_text()
    look.seen["checkpoints"] = files(folder / "checkpoints")
    (folder / "seen.json").write_text(json.dumps(look.seen))


if __name__ == "__main__":
    main()
