# SPDX-License-Identifier: Apache-2.0
"""examples/, run on a real Apache Kafka and a local Spark."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

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
    """Tombstones have no value, so they get no score."""
    module = example("score_topic")
    model = module.Model([0.02, -0.3], -1.0)
    deleted = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        for topic in (payments, payments, deleted):
            producer.send(topic, None, key=b"k", partition=0)
    assert module.scores(spark, apache_kafka.bootstrap_servers, deleted, model).collect() == []
    rows = module.scores(spark, apache_kafka.bootstrap_servers, payments, model).collect()
    numbers = [row.offset * 2 + row.partition for row in rows]
    assert sorted(numbers) == list(range(100))
    features = np.array([[number * 2.5, number % 24] for number in numbers])
    assert np.allclose([row.score for row in rows], 1 / (1 + np.exp(-(features @ [0.02, -0.3] - 1.0))))
