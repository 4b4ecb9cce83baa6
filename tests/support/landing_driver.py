# SPDX-License-Identifier: Apache-2.0
"""A driver that lands a topic in a loop until a file tells it to end:  landing_driver.py SERVERS TOPIC FOLDER STOP

Prints "landed ROWS" for each call. When STOP exists it lands the remaining records. Tasks may fail three times
(local[2,4]).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from kcodec.spark import land


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sleep for each batch, so that tasks are killed in the middle of a file."""
    for batch in batches:
        time.sleep(0.05)
        yield batch


def main(servers: str, topic: str, folder: str, stop: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("landings")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    while True:
        is_last = Path(stop).exists()
        landing = land(
            spark,
            topic,
            folder,
            function=slowly,
            row_group_bytes=20_000,
            max_file_bytes=30_000,
            minPartitions=6,
            bootstrap_servers=servers,
            isolation_level="read_committed",
            max_partition_fetch_bytes=20_000,
        )
        print(f"landed {landing.rows}", flush=True)
        if is_last and landing.number is None:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
