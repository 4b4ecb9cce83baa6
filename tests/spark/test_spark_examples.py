# SPDX-License-Identifier: Apache-2.0
"""examples/ and the examples of docs/spark-reading.md on topics, run on a real Apache Kafka and a local Spark."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent


def example(name: str) -> ModuleType:
    """A module of examples/, which workers are sent by value."""
    from pyspark import cloudpickle

    sys.path.insert(0, str(ROOT / "examples"))
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.pop(0)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


@pytest.fixture
def payments(apache_kafka: ApacheKafka) -> str:
    name = apache_kafka.create_topic(partitions=2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(
                name, json.dumps({"amount": number * 2.5, "hour": number % 24}).encode(), partition=number % 2
            )
    return name


def test_a_topic_to_parquet(spark: SparkSession, apache_kafka: ApacheKafka, payments: str, tmp_path: Path) -> None:
    module = example("topic_to_parquet")
    arguments = (spark, apache_kafka.bootstrap_servers, payments, str(tmp_path))
    assert [landing.rows for landing in module.land_topic(*arguments)] == [100]
    assert module.land_topic(*arguments) == []
    assert spark.read.parquet(str(tmp_path)).count() == 100


def test_a_model_scores_every_record(spark: SparkSession, apache_kafka: ApacheKafka, payments: str) -> None:
    module = example("score_topic")
    model = module.Model([0.02, -0.3], -1.0)
    rows = module.scores(spark, apache_kafka.bootstrap_servers, payments, model).collect()
    numbers = [row.offset * 2 + row.partition for row in rows]
    assert sorted(numbers) == list(range(100))
    features = np.array([[number * 2.5, number % 24] for number in numbers])
    assert np.allclose([row.score for row in rows], 1 / (1 + np.exp(-(features @ [0.02, -0.3] - 1.0))))


def test_the_examples_of_the_page(
    spark: SparkSession, apache_kafka: ApacheKafka, payments: str, tmp_path: Path
) -> None:
    """Of the sections on topics, in their order; folders are temporary ones."""
    page = (ROOT / "docs" / "spark-reading.md").read_text(encoding="utf-8")
    begin, end = (
        page.index("from kcodec.spark import map_batches\n"),
        page.index("## Continue a query"),
    )
    blocks = re.findall(r"^```python\n(.*?)^```", "```python\n" + page[begin:end], re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"spark": spark}
    imports = "import pyarrow as pa\nimport pyarrow.compute as pc\n"
    for block in (imports, *blocks):
        text = block.replace('"localhost:9092"', repr(apache_kafka.bootstrap_servers)).replace(
            '"orders"', repr(payments)
        )
        text = text.replace('"/', f'"{tmp_path}/')
        exec(compile(text, "docs/spark-reading.md", "exec"), names)
    assert names["found"].count() == names["landing"].rows == 100
    assert spark.read.parquet(f"{tmp_path}/data/lengths").count() == 100
    assert names["landings"](tmp_path / "data" / "orders") == [names["landing"]]
