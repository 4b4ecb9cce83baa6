# SPDX-License-Identifier: Apache-2.0
"""An archive of Spark's classes (CDS), with which a Spark takes half of the processor time to start.

The archive is created once for each Java and pyspark, in .cache, by a Spark that runs a few queries and ends. A JVM
maps it only if its class path begins with that of this Spark; otherwise it loads the classes from the jars, silently.
So jars that a test adds must follow those of Spark: SPARK_DIST_CLASSPATH does this, spark.driver.extraClassPath does
not.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kcodec.testing.java import cache_directory
from kcodec.testing.node import JVM_OPTIONS

SECONDS = 240.0
#: A Spark of the tests ends before the second compiler of its JVM has paid off: without it, and with one thread for the
#: garbage, Spark takes a third less of processor time. Without the archive, no warning must appear in the output.
OPTIONS = (*JVM_OPTIONS, "-Xlog:cds*=off")


def use_options() -> None:
    """Pass OPTIONS to each Spark that this process and its children start, with the archive if it exists."""
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(JVM_OPTIONS)  # of the JVM that only builds the command
    archive = archive_path() if "JAVA_HOME" in os.environ else None
    found = [f"-XX:SharedArchiveFile={archive}"] if archive is not None and archive.is_file() else []
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*OPTIONS, *found])


def archive_path() -> Path:
    """Return the path of the archive for the Java of $JAVA_HOME and the installed pyspark."""
    java = Path(os.environ["JAVA_HOME"]).resolve()
    release = java / "release"
    spec = importlib.util.find_spec("pyspark")
    parts = [str(java), release.read_text("utf-8") if release.is_file() else "", str(spec.origin if spec else None)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return cache_directory() / f"spark-{importlib.metadata.version('pyspark')}-{digest}.jsa"


def ensure_archive() -> None:
    """Create the archive if it does not exist. An empty file means that this Java cannot create one."""
    archive = archive_path()
    if archive.is_file():
        return
    with archive.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        with tempfile.TemporaryDirectory(prefix="kcodec-classes-", dir=archive.parent) as scratch:
            made = Path(scratch, archive.name)
            options = " ".join([*OPTIONS, f"-XX:ArchiveClassesAtExit={made}"])
            environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
            command = [sys.executable, __file__, scratch]
            done = subprocess.run(
                command, env=environment, cwd=scratch, capture_output=True, text=True, check=False, timeout=SECONDS
            )
            if done.returncode:
                raise RuntimeError(f"no archive of Spark's classes was created:\n{done.stderr[-4000:]}")
            made.touch()
            made.replace(archive)


def load_classes(folder: str) -> None:
    """Run queries of the kinds that the tests run, so that their classes are in the archive, and end Spark."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("classes")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.range(100).selectExpr("id", "id % 3 AS third", "CAST(CAST(id AS STRING) AS BINARY) AS value")
    rows.groupBy("third").count().orderBy("third").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
    spark.read.parquet(f"{folder}/rows").toPandas()
    spark.createDataFrame([(1, b"a"), (2, b"b")], "number long, value binary").repartition(2).collect()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows").mapInArrow(lambda each: each, rows.schema)
    writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.foreachBatch(lambda frame, _: frame.write.parquet(f"{folder}/copy")).start().awaitTermination()
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    process.stdin.close()  # the JVM ends, and writes the archive
    process.wait(SECONDS)


if __name__ == "__main__":
    load_classes(sys.argv[1])
