# SPDX-License-Identifier: Apache-2.0
"""A Spark driver that copies files to a topic, and kills itself at a given step, for tests/prove/prove_spark_sink.py.

    python sink_driver.py '{"folder": ..., "topic": ..., "servers": ..., "die": ["begun", 3], ...}'

sink:      "exactly_once"; "control": the same, without the comparison of batch numbers; "kafka": Spark's own sink.
die:       (step, batch): it kills itself, its JVM and its executors at that step: "started" (the function of
           foreachBatch was called), "begun", "written" (receipts exist, EndTxn is not sent), "committed".
pause:     seconds that a task takes for half of its rows.
master:    of Spark.

Each step is a line on standard output, `STEP BATCH`; `done` is the last one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession

from kcodec.spark import exactly_once, sink_transactions
from kcodec.spark.sink_protocol import Batch, OutputTopic
from kcodec.spark.sink_transactions import SinkTransactions

if TYPE_CHECKING:
    import pyarrow as pa


def session(master: str) -> SparkSession:
    """A session without a user interface, bound to the loopback interface."""
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.driver.memory": "768m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraClassPath": os.environ.get("SINK_JARS", ""),
    }
    builder = SparkSession.builder.master(master).appName("exactly once under faults")
    for name, value in options.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def slowly(pause: float) -> Callable[[DataFrame], DataFrame]:
    """Return a change of a DataFrame by a Python stage, whose worker may be killed."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            time.sleep(pause)
            yield batch.slice(half)

    return lambda df: df.mapInArrow(pass_on, df.schema)


class Steps:
    """Prints each step and dies at one of them."""

    def __init__(self, die: list[Any] | None) -> None:
        self._die = die

    def at(self, step: str, batch: int) -> None:
        """Note a step."""
        print(step, batch, flush=True)
        if self._die is not None and self._die[0] == step and batch >= self._die[1]:
            os.killpg(0, signal.SIGKILL)


class NotedTransactions(SinkTransactions):
    """Notes the steps of each batch."""

    steps: Steps

    def _write(self, batch: Batch, tasks: Any) -> Any:
        self.steps.at("started", batch.number)
        found = super()._write(batch, tasks)
        self.steps.at("skipped" if found.is_skipped else "committed", batch.number)
        return found

    def _begin(self, batch: Batch, topic: OutputTopic) -> Any:
        found = super()._begin(batch, topic)
        self.steps.at("begun", batch.number)
        return found

    def _write_once(self, batch: Batch, tasks: Any, *others: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            receipts = tasks(*arguments)
            self.steps.at("written", batch.number)
            return receipts

        return super()._write_once(batch, noted, *others)


def main(arguments: dict[str, Any]) -> None:
    """Run the query to its end."""
    from kcodec.spark import sink_query

    spark = session(arguments["master"])
    NotedTransactions.steps = Steps(arguments.get("die"))
    mock.patch.object(sink_query, "SinkTransactions", NotedTransactions).start()
    if arguments["sink"] == "control":
        mock.patch.object(sink_transactions, "is_committed", return_value=False).start()
    read = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["folder"])
    # Long enough that the first half of a batch leaves the buffer of a Python worker before the second half is there.
    rows = slowly(arguments["pause"])(read.selectExpr("value AS key", "rpad(value, 1000, ' ') AS value"))
    if arguments["sink"] == "kafka":
        options = {"kafka.bootstrap.servers": arguments["servers"], "topic": arguments["topic"]}
        writer = rows.writeStream.format("kafka").options(**options)
    else:
        writer = exactly_once(
            rows,
            topic=arguments["topic"],
            application=arguments["application"],
            bootstrap_servers=arguments["servers"],
            transaction_timeout_ms=60_000,
            linger_ms=0,
            attempts=10,
            request_timeout_ms=3_000,
            default_api_timeout_ms=20_000,
            progress=arguments.get("progress", "group"),
        )
    query = writer.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001  its text is the result
        print("failed", str(error)[-3000:].replace("\n", " | "), flush=True)
        sys.exit(1)
    print("done 0", flush=True)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    main(json.loads(sys.argv[1]))
