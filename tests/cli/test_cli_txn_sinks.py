# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn`` shows the last batch of Spark's exactly-once sinks, from brokers and from files of a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cli_runner import run

from kcodec import TopicPartition
from kcodec.cli import ExitStatus
from kcodec.cli.txn_sinks import SinkBatch
from kcodec.client import SharedTransactions, TransactionWriter
from kcodec.offsets import OffsetAndMetadata
from kcodec.testing.kafka import ApacheKafka

QUERY = "5c1d0b5e-0000-4000-8000-d4a7e1f1a001"
TEXT = f"{{}}: exactly-once sink of Spark; batch 7 of query {QUERY} (40 rows) is the last one that it has committed\n"


def metadata(**more: Any) -> str:
    return json.dumps({"query": QUERY, "batch": 7, "rows": 40, **more})


@pytest.fixture(scope="module")
def ids(apache_kafka: ApacheKafka) -> Iterator[tuple[str, str]]:
    """(a sink with batch 7 committed and batch 8 open, a job whose progress has other metadata)."""
    topic = apache_kafka.create_topic(partitions=1)
    sink, job = f"sink-{topic}", f"job-{topic}"
    servers = apache_kafka.bootstrap_servers
    place = TopicPartition(topic, 0)

    def write(transactions: SharedTransactions) -> tuple[Any, Any]:
        handle, _ = transactions.begin([place])
        with TransactionWriter(handle, partitions=[place], bootstrap_servers=servers) as writer:
            writer.send(topic, b"x")
        return handle, writer.receipt

    with SharedTransactions(sink, sink, bootstrap_servers=servers) as ours:
        with SharedTransactions(job, job, bootstrap_servers=servers) as others:
            handle, receipt = write(others)
            others.commit(handle, [receipt], OffsetAndMetadata(8, '{"batch": 7}'))
        handle, receipt = write(ours)
        ours.commit(handle, [receipt], OffsetAndMetadata(8, metadata(offsets="abc", time=5)))
        handle, _ = write(ours)
        yield sink, job
        ours.abort(handle)


@pytest.mark.parametrize("action", ["list", "describe"])
def test_a_cluster_shows_the_last_batch_of_a_sink(apache_kafka: ApacheKafka, ids: tuple[str, str], action: str) -> None:
    words = ["txn", action, "-b", apache_kafka.bootstrap_servers, *(ids if action == "describe" else ())]
    ran = run(*words)
    assert ran.status is ExitStatus.OK
    assert TEXT.format(ids[0]) in ran.err
    assert f"{ids[1]}: exactly" not in ran.err
    shown = {one["transactional_id"]: one for one in map(json.loads, run(*words, "--json").out.splitlines())}
    assert shown[ids[0]]["sink"] == {"application": ids[0], "batch": 7, "rows": 40, "query": QUERY}
    assert shown[ids[0]]["state"] == "Ongoing"
    assert shown[ids[1]]["sink"] is None


def test_files_show_the_last_batch_of_a_sink(apache_kafka: ApacheKafka, ids: tuple[str, str]) -> None:
    ran = run("txn", "list", apache_kafka.log_directory)
    assert ran.status is ExitStatus.OK
    assert ran.err.count(TEXT.format(ids[0])) == 1
    assert f"{ids[1]}: exactly" not in ran.err
    shown = [json.loads(line) for line in run("txn", "list", apache_kafka.log_directory, "--json").out.splitlines()]
    batches = {(one["state"], one["sink"]["batch"]) for one in shown if one["transactional_id"] == ids[0]}
    assert ("open", 7) in batches
    assert {one["sink"] for one in shown if one["transactional_id"] == ids[1]} == {None}


@pytest.mark.parametrize(
    "text", ["", "x", "7", "[]", "null", '{"batch": 7}', '{"query": 1, "batch": 7, "rows": 1}', metadata(batch="7")]
)
def test_other_metadata_are_not_those_of_a_sink(text: str) -> None:
    assert SinkBatch.of("g", [None, OffsetAndMetadata(1, text)]) is None
    assert SinkBatch.of("g", [OffsetAndMetadata(1, text), OffsetAndMetadata(8, metadata())]) == SinkBatch(
        "g", 7, 40, QUERY
    )


def test_brokers_that_do_not_respond_hide_no_transaction(
    apache_kafka: ApacheKafka, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kcodec.client import Admin
    from kcodec.errors import DeliveryTimeoutError

    def fail(*_: object, **__: object) -> None:
        raise DeliveryTimeoutError("no response after 5 s")

    monkeypatch.setattr(Admin, "list_group_offsets", fail)
    ran = run("txn", "describe", "-b", apache_kafka.bootstrap_servers, *ids)
    assert ran.status is ExitStatus.OK
    assert all(name in ran.out for name in ids)
    assert f"{ids[0]}: whether it is a sink of Spark is not known: no response after 5 s" in ran.err
