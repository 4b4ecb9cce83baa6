# SPDX-License-Identifier: Apache-2.0
"""Kafka to Kafka with Spark, exactly once: rows of one topic, changed by SQL, in another topic.

    export PYSPARK_PYTHON=$(which python)       # the Python that has kcodec, also on executors
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 examples/spark_exactly_once.py \\
        localhost:9092 orders orders-upper /checkpoints/orders-upper

Replace 4.3.0 by the version of your Spark. The source is Spark's own. Kill the driver, a worker or an executor at any
time, and start the program again with the same checkpoint: a read_committed consumer of the target sees each row of the
source once. With --once the program ends when it has caught up.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from kcodec.spark import exactly_once

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def copy_topic(
    spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, *, once: bool
) -> StreamingQuery:
    """Start the query. Each batch is at most 100,000 records: it must be written within the transaction timeout."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
        .selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    )
    # One name for one query: the transactional id, and the group that has the number of the last batch.
    writer = exactly_once(rows, topic=target, application=f"copy-{target}", bootstrap_servers=servers)
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
    return trigger.option("checkpointLocation", checkpoint).start()


def main() -> None:
    """Copy until the query ends."""
    parser = argparse.ArgumentParser(description="Kafka to Kafka, exactly once")
    for name in ("servers", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--once", action="store_true", help="end when everything is copied")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("copy, exactly once").getOrCreate()
    copy_topic(spark, **vars(arguments)).awaitTermination()


if __name__ == "__main__":
    main()
