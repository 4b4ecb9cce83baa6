# SPDX-License-Identifier: Apache-2.0
"""Use kcodec in a Spark whose workers run another Python; print the error of each call as JSON.

Usage: python spark_without_kcodec.py WORKER_PYTHON BOOTSTRAP_SERVERS TOPIC FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import kcodec.spark


def main() -> None:
    python, servers, topic, folder = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)  # Spark would look for data sources with it
    builder = SparkSession.builder.master("local[1]").appName("kcodec without kcodec")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    calls: dict[str, Callable[[], Any]] = {
        "load": lambda: spark.read.format("kcodec").load(folder).collect(),
        "decode_in_arrow": lambda: kcodec.spark.decode_in_arrow(
            spark.createDataFrame([(bytearray(kcodec.encode_batch([(None, b"1")], timestamp=0)),)], "value binary")
        ).collect(),
        "map_batches": lambda: kcodec.spark.map_batches(
            spark, topic, unchanged, kcodec.spark.schema(), bootstrap_servers=servers
        ).collect(),
        "exactly_once": lambda: kcodec.spark.exactly_once(
            spark.createDataFrame([("1",)], "value string"),
            topic=topic,
            application="without-kcodec",
            bootstrap_servers=servers,
            version=1,
            attempts=1,
        ),
    }
    errors = {}
    try:
        for name, call in calls.items():
            try:
                call()
                errors[name] = ""
            except Exception as error:  # noqa: BLE001  # reported
                errors[name] = str(error)
    finally:
        spark.stop()
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
