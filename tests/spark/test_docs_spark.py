# SPDX-License-Identifier: Apache-2.0
"""The Spark examples of the README, of docs/get-started and of the Spark pages run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kcodec
from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.spark


def test_spark_examples_for_new_users_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log directory with the topic of the page is read, and its record is shown."""
    for partition in range(3):
        folder = tmp_path / f"greetings-{partition}"
        folder.mkdir()
        rows = [(b"first", b"hello")] if partition == 1 else []
        (folder / f"{0:020}.log").write_bytes(bytes(kcodec.encode(rows, timestamp=0)))
    monkeypatch.setenv("LOG_DIRECTORY", str(tmp_path))
    page = (ROOT / "docs" / "get-started" / "first-dataframe.md").read_text(encoding="utf-8")
    (example,) = (text for text in BLOCK.findall(page) if "pyspark" in text)
    exec(compile(example, "first-dataframe.md", "exec"), {})
    assert "|        1|     0|hello|" in capsys.readouterr().out

    readme = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (example,) = (text for text in readme if "spark.read" in text)
    exec(compile(example, "README.md", "exec"), {"spark": spark, "path": str(tmp_path / "greetings-1")})
    assert "|     0|" in capsys.readouterr().out


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """A log directory with one partition of a topic."""
    folder = tmp_path / "kafka" / "orders-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").write_bytes(bytes(kcodec.encode([(b"a", b"1"), (b"b", b"2")], timestamp=0)))
    return folder.parent


@pytest.mark.parametrize("page", ["spark.md", "spark-reading.md", "spark-writing.md", "spark-files.md"])
def test_the_examples_of_the_spark_pages_run(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    tmp_path: Path,
    log_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
) -> None:
    """In their order, on a real broker; topics, folders and the checkpoint of Spark's own source are temporary ones."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    servers, orders = apache_kafka.bootstrap_servers, apache_kafka.create_topic(partitions=2)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(4):
            producer.send(orders, b"%d" % number, partition=number % 2)
    copy = apache_kafka.create_topic(partitions=2)
    names: dict[str, Any] = {"spark": spark, "record_set": (log_folder / "orders-0" / f"{0:020}.log").read_bytes()}
    names["df"] = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    replaced = {
        '"localhost:9092"': repr(servers),
        "'localhost:9092'": f"'{servers}'",
        "'subscribe' 'orders'": f"'subscribe' '{orders}'",
        '"orders"': repr(orders),
        '"orders-copy"': repr(copy),
        '"orders-out"': repr(copy),
        '-orders"': f'-orders-{copy}"',
        '"/var/lib/kafka': f'"{log_folder}',
        '"/checkpoints': f'"{tmp_path}/checkpoints',
        '"/data': f'"{tmp_path}/data',
    }
    if page == "spark-reading.md":
        theirs = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        query = theirs.option("subscribe", orders).option("startingOffsets", "earliest").load().writeStream
        query = query.format("noop").option("checkpointLocation", f"{tmp_path}/checkpoints/orders")
        assert query.trigger(availableNow=True).start().awaitTermination(120)
    try:
        for number, example in enumerate(BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))):
            for text, ours in replaced.items():
                example = example.replace(text, ours)
            exec(compile(example, f"{page}, example {number}", "exec"), names)
    finally:
        for active in spark.streams.active:
            active.stop()
        spark.sql("DROP TABLE IF EXISTS orders_of_kafka")
    if page == "spark.md":
        assert names["landing"].rows == names["orders"].count() == 4
        assert spark.read.parquet(f"{tmp_path}/data/order-values").count() == 4
        reader = spark.read.format("kcodec").option("kafka.bootstrap.servers", servers)
        copied = reader.option("kafka.isolation.level", "read_committed").option("subscribe", copy).load()
        assert sorted(bytes(row.value) for row in copied.collect()) == [b"0", b"1", b"2", b"3"]
    elif page == "spark-reading.md":
        assert names["found"].count() == names["landing"].rows == 4
        assert names["offsets"] == f'{{"{orders}":{{"0":2,"1":2}}}}'
    elif page == "spark-writing.md":
        assert names["result"].rows == 10
    else:
        assert names["df"].count() == spark.read.parquet(f"{tmp_path}/data/order-files").count() == 2
