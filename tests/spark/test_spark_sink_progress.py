# SPDX-License-Identifier: Apache-2.0
"""The exactly-once sink without Spark: the progress of each output topic, the owner of an application, credentials."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_messages import messages

import kcodec
from kcodec import TopicPartition
from kcodec.admin.security import ScramCredentialUpsertion
from kcodec.admin.values import NewTopic
from kcodec.broker import Broker
from kcodec.client import Admin, Producer, TransactionHandle, TransactionWriter, WriterReceipt
from kcodec.errors import AuthenticationError
from kcodec.spark import CheckpointMismatchError
from kcodec.spark.client_options import with_credentials
from kcodec.spark.sink_protocol import VERSIONS, Batch, OutputTopic, SinkProgress, progress_key
from kcodec.spark.sink_transactions import SinkSettings, SinkTransactions
from kcodec.spark.topic_source import TopicSource
from kcodec.spark.topic_stream import TopicStream


class Outputs:
    """Sinks of one broker, each with one partition and one record for a batch."""

    def __init__(self, broker: Broker, client: dict[str, Any] | None = None) -> None:
        self.client = {"bootstrap_servers": broker.bootstrap_servers} if client is None else client
        self._open: list[SinkTransactions] = []

    def sink(self, topic: str, **settings: Any) -> SinkTransactions:
        named = {"application": "copy", **settings}
        self._open.append(SinkTransactions(SinkSettings(topic=topic, client=self.client, **named)))
        return self._open[-1]

    def write(self, sink: SinkTransactions, batch: Batch) -> bool:
        """Write a batch. Return whether it was skipped."""
        topic = sink.settings.topic

        def tasks(handle: TransactionHandle, partitions: int) -> list[WriterReceipt]:
            named = [TopicPartition(topic, 0)]
            with TransactionWriter(handle, named, must_be_first=True, **with_credentials(self.client)) as writer:
                writer.send(topic, b"%d" % batch.number)
            return [writer.receipt]

        return sink.write(batch, tasks).is_skipped

    def rows(self, topic: str) -> int:
        with kcodec.read_topic(topic, isolation_level="read_committed", **self.client) as records:
            return sum(len(batch) for batch in records)

    def create(self, *topics: str) -> None:
        with Admin(**self.client) as admin:
            admin.create_topics([NewTopic(topic, num_partitions=1) for topic in topics])

    def create_again(self, topic: str) -> None:
        with Admin(**self.client) as admin:
            admin.delete_topics([topic])
        self.create(topic)

    def close(self) -> None:
        for sink in self._open:
            sink.close()


@pytest.fixture
def outputs(kcodec_broker: Broker) -> Iterator[Outputs]:
    found = Outputs(kcodec_broker)
    yield found
    found.close()


@pytest.mark.parametrize("progress", ["group", "topic"])
def test_each_topic_of_an_application_has_its_own_versions(outputs: Outputs, progress: str) -> None:
    """As in a function of foreachBatch that writes each batch to two topics."""
    outputs.create("a", "b")
    for version in (1, 2, 2):
        for topic in ("a", "b"):
            sink = outputs.sink(topic, progress=progress)
            outputs.write(sink, Batch(VERSIONS, version))
            sink.close()
    assert (outputs.rows("a"), outputs.rows("b")) == (2, 2)


@pytest.mark.parametrize("progress", ["group", "topic"])
def test_an_output_topic_that_was_created_again_is_refused(outputs: Outputs, progress: str) -> None:
    outputs.create("out")
    sink = outputs.sink("out", progress=progress)
    for number in (0, 1):
        outputs.write(sink, Batch("q", number, f"digest {number}"))
    sink.close()
    outputs.create_again("out")
    for number in (1, 2):
        with pytest.raises(CheckpointMismatchError, match="created again") as caught:
            outputs.write(outputs.sink("out", progress=progress), Batch("q", number, f"digest {number}"))
        assert 'on_new_checkpoint="adopt"' in str(caught.value)
    adopting = outputs.sink("out", progress=progress, on_new_checkpoint="adopt")
    # Spark repeats a batch whose commit it has not recorded. Its rows are not in the new topic.
    assert not outputs.write(adopting, Batch("q", 1, "digest 1"))
    adopting.close()
    assert not outputs.write(outputs.sink("out", progress=progress), Batch("q", 2, "digest 2"))
    assert outputs.rows("out") == 2


def test_the_ids_of_topics_are_compared_if_both_are_known(outputs: Outputs) -> None:
    known = SinkProgress.after(Batch("q", 3), 5, 1, OutputTopic("out", "id"))
    assert SinkProgress.from_json(known.to_json()) == known
    assert (known.topic, known.topic_id) == ("out", "id")
    assert SinkProgress.from_json('{"query": "q", "batch": 3, "rows": 5}') == SinkProgress("q", 3, 5)
    assert progress_key("a", "b") != progress_key("a b", "")


@pytest.mark.parametrize("newcomer", [Batch("newcomer", 0), Batch(VERSIONS, 1)])
def test_an_application_is_not_taken_over_with_another_topic(outputs: Outputs, newcomer: Batch) -> None:
    """The running query of the application continues, because nothing has fenced its producer."""
    outputs.create("orders", "other")
    running = outputs.sink("orders")
    outputs.write(running, Batch("running", 0))
    with pytest.raises(CheckpointMismatchError, match="query running, which has committed batch 0 to topic 'orders'"):
        outputs.write(outputs.sink("other"), newcomer)
    outputs.write(running, Batch("running", 1))
    running.close()
    adopting = outputs.sink("other", on_new_checkpoint="adopt")
    outputs.write(adopting, newcomer)
    adopting.close()
    following = Batch(newcomer.query, newcomer.number + 1)
    assert not outputs.write(outputs.sink("other"), following)  # it has the application now


def test_a_query_does_not_take_over_the_application_of_batch_jobs(outputs: Outputs) -> None:
    outputs.create("a", "b")
    outputs.write(outputs.sink("a"), Batch(VERSIONS, 4))
    with pytest.raises(
        CheckpointMismatchError, match=r"batch jobs .version=., which has committed batch 4 to topic 'a'"
    ):
        outputs.write(outputs.sink("b"), Batch("q", 0))


PROVIDER = """
import pathlib

def password():
    return "app", pathlib.Path(__file__).with_name("password").read_text()
"""


@pytest.fixture
def provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, Path, dict[str, Any]]]:
    """A broker of SCRAM, the file of the password, and the options of a client whose provider reads the file."""
    (tmp_path / "kcodec_test_passwords.py").write_text(PROVIDER)
    (tmp_path / "password").write_text("old")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kcodec_test_passwords", raising=False)
    with Broker(sasl_mechanisms=["SCRAM-SHA-512"], users={"admin": "secret", "app": "old"}) as broker:
        client = {
            "bootstrap_servers": broker.bootstrap_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "kcodec.token.provider": "kcodec_test_passwords:password",
            "connections_max_idle_ms": 200,
        }
        yield broker, tmp_path / "password", client


def rotate(broker: Broker, password: Path | None) -> None:
    """Change the password of the user, and close what is connected with the old one."""
    with Admin(**broker.client_options("admin")) as admin:
        admin.alter_user_scram_credentials([ScramCredentialUpsertion("app", "new")])
    if password is not None:
        password.write_text("new")
    time.sleep(1)  # connections that are not used are closed


def test_a_stream_continues_with_a_new_password(
    provided: tuple[Broker, Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    broker, password, client = provided
    broker.create_topic("t", 1)
    options = {"subscribe": "t", "startingOffsets": "earliest", "kafka.group.id": "lag", **client}
    stream = TopicStream(TopicSource.of(options, is_stream=True))
    start = stream.initial_offset()
    rotate(broker, password)
    with Producer(**broker.client_options("admin")) as producer:
        producer.send("t", b"x").result()
    end = stream.latest_offset(start)
    assert end["t"]["0"] == 1
    assert messages(caplog).count("connecting again with new credentials") == 1
    stream.commit(end)
    stream.close()
    without = {name: value for name, value in options.items() if name != "kcodec.token.provider"}
    wrong = {**without, "sasl_plain_username": "app", "sasl_plain_password": "old"}
    caplog.clear()
    refused = TopicStream(TopicSource.of(wrong, is_stream=True))
    with pytest.raises(AuthenticationError):
        refused.initial_offset()
    refused.close()
    assert "connecting again" not in messages(caplog)


def test_a_sink_continues_with_a_new_password(
    provided: tuple[Broker, Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    broker, password, client = provided
    with Admin(**broker.client_options("admin")) as admin:
        admin.create_topics([NewTopic("out", num_partitions=1)])
    outputs = Outputs(broker, client)
    sink = outputs.sink("out", attempts=1)
    outputs.write(sink, Batch("q", 0))
    rotate(broker, password)
    assert not outputs.write(sink, Batch("q", 1))
    assert "connecting again with new credentials" in messages(caplog)
    outputs.close()


@pytest.mark.parametrize("is_provided", [True, False])
def test_refused_credentials_are_not_tried_again_and_again(
    provided: tuple[Broker, Path, dict[str, Any]], caplog: pytest.LogCaptureFixture, is_provided: bool
) -> None:
    """The provider is called once more; without one, the first refusal is final."""
    broker, _, client = provided
    if not is_provided:
        client.pop("kcodec.token.provider")
        client |= {"sasl_plain_username": "app", "sasl_plain_password": "wrong"}
    rotate(broker, None)
    outputs = Outputs(broker, client)
    with pytest.raises(AuthenticationError):
        outputs.write(outputs.sink("out"), Batch("q", 0))
    assert messages(caplog).count("connecting again with new credentials") == is_provided
    assert "failed and is repeated" not in messages(caplog)
    outputs.close()
