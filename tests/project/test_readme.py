# SPDX-License-Identifier: Apache-2.0
"""The README's examples run as they stand: those without a broker, and those with one on a real Apache Kafka."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pyarrow
import pytest
from opened_logs import open_log

from kcodec.testing.kafka import ApacheKafka

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def examples_of(section: str) -> list[str]:
    """The Python blocks below a heading."""
    _before, found, rest = README.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert found, f"the README has no section {section!r}"
    return re.findall(r"^```python\n(.*?)^```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("section", ["Records to bytes"])
def test_examples_run(section: str) -> None:
    examples = examples_of(section)
    assert examples and all("assert" in example for example in examples)
    for example in examples:
        exec(compile(example, f"README.md, {section}", "exec"), {"pyarrow": pyarrow})


def test_examples_with_a_broker_run(apache_kafka: ApacheKafka) -> None:
    (example,) = examples_of("Records to Kafka")
    names = {"pyarrow": pyarrow, "servers": apache_kafka.bootstrap_servers}
    exec(compile(example, "README.md, Records to Kafka", "exec"), names)
    deadline = time.monotonic() + 20
    # the commit is answered before the last partition has its marker
    while len(values := committed_values(apache_kafka)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sorted(value or b"" for value in values) == [b"1", b"17.50", b"2", b"9.90"]
    apache_kafka.create_topic("vat")
    (example,) = examples_of("From Kafka to Kafka")
    exec(compile(example, "README.md, From Kafka to Kafka", "exec"), names)
    assert {record.value for record in names["records"]} <= set(values)


def committed_values(kafka: ApacheKafka) -> list[bytes | None]:
    logs = [open_log(kafka.node(1).log_directory / f"invoices-{partition}") for partition in range(3)]
    return [record.value for log in logs for record in log.records("read_committed")]
