# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/get-started/first-dataframe.md that read and write topics in Spark, on a real broker."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kcodec
from kcodec.client import Admin, NewTopic, Producer
from kcodec.testing.kafka import ApacheKafka

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "get-started" / "first-dataframe.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.spark


def test_get_started_copies_a_topic_in_spark_once(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The batch query shows the record, and the stream writes it to the other topic once."""
    source = f"greetings-{uuid.uuid4().hex[:8]}"
    target = f"copied-{source}"
    servers = apache_kafka.bootstrap_servers
    monkeypatch.setenv("SERVERS", servers)
    monkeypatch.chdir(tmp_path)
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=3) for topic in (source, target)])
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(source, b"hello", key=b"first").result(30)
    text = PAGE.read_text(encoding="utf-8").replace('"greetings', f'"{source}')
    text = text.replace("copied-greetings", target).replace("copy-greetings", f"copy-{source}")
    batch, stream = (block for block in BLOCK.findall(text) if "spark." in block and "pyspark" not in block)
    names: dict[str, object] = {"os": os, "spark": spark}
    exec(compile(batch, PAGE.name, "exec"), names)
    assert "|        1|     0|hello|" in capsys.readouterr().out
    exec(compile(stream, PAGE.name, "exec"), names)
    with kcodec.read_topic(target, bootstrap_servers=servers) as records:
        assert [record.value for decoded in records for record in decoded.records()] == [b"hello"]
