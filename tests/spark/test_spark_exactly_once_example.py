# SPDX-License-Identifier: Apache-2.0
"""examples/spark_exactly_once.py: Kafka to Kafka by Spark's own source and our sink, each record once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kcodec
from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def test_a_topic_is_copied_exactly_once(
    spark: SparkSession, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted records of the source are not copied; a second run copies what is new."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from spark_exactly_once import copy_topic

    servers = apache_kafka.bootstrap_servers
    source, target = (apache_kafka.create_topic(partitions=2) for _ in range(2))
    expected: list[bytes] = []
    with Producer(bootstrap_servers=servers, transactional_id=f"to-{source}") as producer:
        for run in range(2):
            for is_committed in (True, False):
                with producer.transaction() as transaction:
                    for number in range(10):
                        transaction.send(source, b"order %d-%d" % (run, number), key=b"%d" % number)
                    if not is_committed:
                        transaction.abort()
            copy_topic(spark, servers, source, target, str(tmp_path / "checkpoint"), once=True).awaitTermination()
            expected += [b"ORDER %d-%d" % (run, number) for number in range(10)]
            with kcodec.read_topic(target, bootstrap_servers=servers, isolation_level="read_committed") as records:
                found = sorted(record.value or b"" for batch in records for record in batch.records())
            assert found == sorted(expected)
    del sys.modules["spark_exactly_once"]
