# SPDX-License-Identifier: Apache-2.0
"""The README is short, and its examples run: on bytes and on a real broker here, in Spark in tests/spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import golden_data
import pyarrow

import kcodec
from kcodec.client import Consumer, Producer
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TO_ARROW, SESSION, _SPARK = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    examples = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert [len(example.splitlines()) <= 10 for example in examples] == [True] * 3


def test_figures_are_in_tables_and_charts() -> None:
    """No paragraph has more than two numbers, version numbers included."""
    text = re.sub(r"^```.*?^```|^\|.*?$|`[^`]*`|\([^)]*\)", "", README, flags=re.MULTILINE | re.DOTALL)
    numbers = {paragraph: re.findall(r"\b\d[\d.,]*\b", paragraph) for paragraph in text.split("\n\n")}
    assert [paragraph for paragraph, found in numbers.items() if len(found) > 2] == []


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_bytes_become_arrow() -> None:
    """A log with aborted transactions, as a broker wrote it: the example delivers what Java's consumer does."""
    (part,) = (part for part in golden_data.partitions(magic=2) if part.name == "txn-java-0")
    records = part.consumed("read_committed")
    assert records and len(records) < len(part.consumed("read_uncommitted") or ())
    names: dict[str, Any] = {"fetched": part.log}
    exec(compile(TO_ARROW, "README.md", "exec"), names)
    assert isinstance(names["table"], pyarrow.Table)
    assert names["table"]["offset"].to_pylist() == [record["offset"] for record in records]


def test_a_session_copies_once(apache_kafka: ApacheKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    text = SESSION
    for name in ("invoices", "vat"):
        text = text.replace(f'"{name}"', f'"{apache_kafka.create_topic(partitions=1)}"')
    source, target = (re.findall(pattern, text)[0] for pattern in (r'"topics": \["(.+?)"', r'send\("(.+?)"'))
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(source, b"17.50", key=b"customer-1").result(20)
    exec(compile(text, "README.md", "exec"), {"servers": servers})
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([kcodec.TopicPartition(target, 0)])
        records = consumer.poll(10.0)
    assert [(record.key, record.value) for record in records] == [(b"customer-1", b"17.50")]
