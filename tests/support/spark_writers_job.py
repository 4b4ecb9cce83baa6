# SPDX-License-Identifier: Apache-2.0
"""Writes rows to topics while workers are killed and tasks are slow; its Spark runs tasks again, also speculatively.

Usage: python spark_writers_job.py MASTER FOLDER. FOLDER/rounds.json is a list of rounds: sink ("kcodec" or "kafka"),
kind ("batch" or "stream"), fault ("kill task", "kill writers" or "slow"), topic, servers, victim (the partition of
Spark) and after (number of its batches before the fault). Each attempt leaves a file in FOLDER/attempts/<round>.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

JARS = Path(__file__).resolve().parent.parent.parent / ".cache" / "spark-kafka"
PARTITIONS, ROWS = 4, 50_000
SLOW_SECONDS = 2.0
OPTIONS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.task.maxFailures": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraClassPath": f"{JARS}/*",
    "spark.executor.extraClassPath": f"{JARS}/*",
}


def disturbed(
    fault: str, victim: int, after: int, attempts: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of mapInArrow: rows pass through it, until the first attempt of the victim meets its fault."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        Path(attempts, f"{partition}-{attempt}").touch()
        for number, batch in enumerate(batches):
            yield batch
            if (partition, attempt) != (victim, 0):
                continue
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            elif number + 1 == after:
                time.sleep(1.0)  # the writer has sent the batches before this one
                others = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
                for child in others if fault == "kill writers" else []:
                    if int(child) != os.getpid():
                        os.kill(int(child), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    return run


def play(spark: SparkSession, folder: Path, number: int, one: dict[str, Any]) -> None:
    attempts = folder / "attempts" / str(number)
    attempts.mkdir(parents=True)
    ids = folder / "ids"
    if not ids.exists():
        rows = spark.range(0, PARTITIONS * ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as value")
        rows.write.parquet(str(ids))
    run = disturbed(one["fault"], one["victim"], one["after"], str(attempts))
    options = {"kafka.bootstrap.servers": one["servers"], "topic": one["topic"]}
    if one["kind"] == "batch":
        frame: DataFrame = spark.read.parquet(str(ids)).mapInArrow(run, "value string")
        frame.write.format(one["sink"]).mode("append").options(**options).save()
    else:
        stream = spark.readStream.schema("value string").parquet(str(ids)).mapInArrow(run, "value string")
        query = (
            stream.writeStream.format(one["sink"])
            .options(**options, checkpointLocation=str(folder / "checkpoints" / str(number)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main() -> None:
    master, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("writers")
    for name, value in {**OPTIONS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for number, one in enumerate(json.loads((folder / "rounds.json").read_text())):
            play(spark, folder, number, one)
            print(f"round {number} {one['sink']} {one['kind']} {one['fault']}", flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
