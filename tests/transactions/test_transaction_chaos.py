# SPDX-License-Identifier: Apache-2.0
"""Exactly once while producer and broker are killed: tests/prove/prove_transactions.py in short."""

from __future__ import annotations

import pytest
from chaos import Report, Story, kill_broker, kill_producer
from java_clients import ConsumedRecord

from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory


@pytest.mark.parametrize(("version", "transaction_version"), [(KAFKA_VERSION, 2), ("3.9.1", 0)])
def test_killed_producers_and_brokers_lose_and_repeat_nothing(
    apache_kafka_factory: KafkaFactory, version: str, transaction_version: int
) -> None:
    kafka = apache_kafka_factory(version, transaction_version=transaction_version, broker_session_timeout_ms=1000)
    report = Story(kafka, count=2000).run([kill_producer] * 3 + [kill_broker])
    assert report.faults() == []
    assert report.aborted_in_log > 0
    assert report.harm == {"kill producer": 3, "kill broker": 1}


def test_the_control_without_transactions_repeats_records(apache_kafka: ApacheKafka) -> None:
    """The proof can fail: an application that sends again what it does not know of writes twice. A run in which all
    kills come between two chunks repeats nothing: about one in eight."""
    duplicates = 0
    for _ in range(6):
        report = Story(apache_kafka, count=3000, transactional=False).run([kill_producer] * 6)
        assert report.lost == 0
        duplicates += report.duplicates
        if duplicates:
            break
    assert duplicates > 0


@pytest.mark.parametrize(
    ("delivered", "faults"),
    [
        ("0a 1a 2b 3b", []),
        ("0a 1a 2b", ["1 lost", "1 torn"]),
        ("0a 1a 2b 3b 2c 3c", ["2 duplicates", "1 out_of_order"]),
        ("0a 1a 2B 3B", ["2 aborted_read"]),
        ("1a 0a 2b 3b", ["1 out_of_order"]),
    ],
)
def test_what_exactly_once_does_not_allow_is_found(delivered: str, faults: list[str]) -> None:
    """Numbers by attempt, in transactions of two; a capital marks data that was to be aborted."""
    records = [
        ConsumedRecord("t", 0, at, 0, None, f"{text[0]} {text[1]} {'A' if text[1].isupper() else 'C'} .".encode(), ())
        for at, text in enumerate(delivered.split())
    ]
    report = Report(count=4, chunk=2)
    report.judge(records, everything=len(records) + 2)
    assert report.faults() == faults
    assert report.aborted_in_log == 2
