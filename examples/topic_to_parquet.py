# SPDX-License-Identifier: Apache-2.0
"""A topic as Parquet files, each record once:  python examples/topic_to_parquet.py localhost:9092 orders /data/orders

Start it again, by hand or from a scheduler, and it continues where it ended, also after a crash.
"""

import os
import sys

from pyspark.sql import SparkSession

from kcodec.spark import Landing, land


def land_topic(spark: SparkSession, servers: str, topic: str, path: str) -> list[Landing]:
    """Land everything that is in the topic now. Each call lands at most one million offsets."""
    found: list[Landing] = []
    while True:
        landing = land(
            spark,
            topic,
            path,
            bootstrap_servers=servers,
            isolation_level="read_committed",
            maxOffsetsPerTrigger=1_000_000,
        )
        if landing.number is None:
            return found
        print(landing)
        found.append(landing)


def main(servers: str, topic: str, path: str) -> None:
    # Tasks must run in the Python that has kcodec.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("topic to Parquet").getOrCreate()
    land_topic(spark, servers, topic, path)
    print(spark.read.parquet(path).count(), "records in", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
