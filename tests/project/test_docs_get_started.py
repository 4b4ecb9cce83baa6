# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/get-started and docs/how-to, done as a reader does them, on a real broker."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from kcodec import TopicPartition
from kcodec.cli import main
from kcodec.client import Consumer, Producer
from kcodec.testing.kafka import ApacheKafka

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = ("greetings", "invoices", "ledger", "receipts", "orders", "shipments", "shop-0", "shipping", "readers")


class Reader:
    """Does what a page says, with topics and ids of its own."""

    def __init__(self, kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = kafka
        self.suffix = uuid.uuid4().hex[:8]
        monkeypatch.setenv("SERVERS", kafka.bootstrap_servers)
        monkeypatch.setenv("LOG_DIRECTORY", str(kafka.node(1).log_directory))

    def own(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def blocks(self, page: str) -> list[tuple[str, str]]:
        """Return the kind and text of each block; names of topics, groups and ids are made unique."""
        found = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
        names = re.compile(rf"(?<![\w-])({'|'.join(NAMES)})(?=[\"'\s-])(?!-[a-z])")
        return [(kind, names.sub(lambda one: self.own(one[1]), text)) for kind, text in found]

    def do(self, page: str) -> None:
        """Run the Python blocks without Spark, and of the shell blocks what `kcodec topics` does."""
        for kind, text in self.blocks(page):
            if kind == "python" and "spark." not in text:
                exec(compile(text, page, "exec"), {"__name__": "__main__"})
            for line in text.splitlines() if kind == "sh" else ():
                if line.startswith("kcodec topics"):
                    assert main(shlex.split(os.path.expandvars(line), comments=True)[1:]) == 0

    def values(self, topic: str, isolation_level: Any = "read_committed") -> list[bytes | None]:
        """Return the values of a topic, in no order."""
        options: Any = {"bootstrap_servers": self.kafka.bootstrap_servers, "auto_offset_reset": "earliest"}
        with Consumer(**options, isolation_level=isolation_level) as consumer:
            partitions = [TopicPartition(self.own(topic), number) for number in range(3)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            found: list[bytes | None] = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [record.value for record in consumer.poll(5.0)]
        return found


def test_get_started(
    apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first message, transaction, session and DataFrame; the Spark examples are run in tests/spark."""
    reader = Reader(apache_kafka, monkeypatch)
    reader.do("get-started/first-message.md")
    assert "read: b'first' b'hello'" in capsys.readouterr().out
    reader.do("get-started/first-transaction.md")
    assert "1 invoice processed" in capsys.readouterr().out
    assert reader.values("invoices") == [b"9.90"]
    assert set(reader.values("invoices", "read_uncommitted")) == {b"5.00", b"9.90"}
    assert reader.values("receipts") == [b"paid 9.90"]
    reader.do("get-started/first-dataframe.md")
    shown = capsys.readouterr().out
    assert 'b"first"' in shown
    assert sum(map(int, re.findall(rf"{reader.own('greetings')}-\d (\d) records", shown))) == 1


@pytest.mark.parametrize("number", [0, 1], ids=["session", "asyncio"])
def test_a_program_that_gets_sigterm_closes(
    apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The programs of the page on shutdown end by themselves, with exit status 0."""
    reader = Reader(apache_kafka, monkeypatch)
    for topic in ("orders", "shipments"):
        apache_kafka.create_topic(reader.own(topic), partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.send(reader.own("orders"), b"one").result(20)
    text = [text for kind, text in reader.blocks("how-to/shutdown.md") if kind == "python"][number]
    program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        out, _ = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, out.splitlines()[-1]) == (0, "closed")
