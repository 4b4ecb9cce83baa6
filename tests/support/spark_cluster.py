# SPDX-License-Identifier: Apache-2.0
"""Reads partitions on a local-cluster, where executors are separate processes, and prints offsets as JSON.

Usage: python spark_cluster.py PATH [PATH ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from pyspark.sql import SparkSession

import kcodec.spark


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
            "spark.local.dir": folder,
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("kcodec local-cluster")
        for name, value in options.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            source = spark.read.format("kcodec").option("kafka.isolation.level", "read_committed").load(sys.argv[1:])
            paths = spark.createDataFrame([(path,) for path in sys.argv[1:]], "path string").repartition(2)
            mapped = kcodec.spark.decode_in_arrow(paths, paths="path", isolation_level="read_committed")
            rows = {
                name: frame.select("topic", "partition", "offset").collect()
                for name, frame in (("source", source), ("mapInArrow", mapped))
            }
            print(json.dumps({name: sorted(map(list, found)) for name, found in rows.items()}))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
