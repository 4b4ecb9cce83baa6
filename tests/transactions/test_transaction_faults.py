# SPDX-License-Identifier: Apache-2.0
"""A fault at each wire step of a transaction, in both flows and both APIs; prove_transaction_faults.py runs all.

Here eight to eleven of each flow, with one API each: a sample that is not chosen by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from transaction_fault_cases import Case, cases, run_cases

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.pytest_plugin import KafkaFactory

LONG = os.environ.get("KCODEC_PROFILE") == "long"
# Every so many of the list.
EVERY = 22


def some(transaction_version: int, first: int) -> list[Case]:
    return list(cases(transaction_version))[first::EVERY]


@pytest.fixture(scope="module")
def old_kafka(apache_kafka_factory: KafkaFactory) -> Iterator[ApacheKafka]:
    with apache_kafka_factory(transaction_version=0) as kafka:
        yield kafka


def check(chosen: list[Case], api_name: str, kafka: ApacheKafka) -> None:
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        ended, findings = run_cases(chosen, api_name, kafka, proxy)
        spoken = proxy.versions("EndTxn")
    faults = [f"{one.case.name}: {fault}" for one in ended for fault in one.faults]
    assert not faults, "\n".join(faults)
    assert findings.faults == 0, (findings.line(), findings.examples)
    assert spoken == ({4} if kafka.transaction_version == 0 else {5})


@pytest.mark.parametrize(("api_name", "first"), [("blocking", 0), ("asyncio", 1)] if LONG else [("asyncio", 1)])
def test_faults_in_the_new_flow(apache_kafka: ApacheKafka, api_name: str, first: int) -> None:
    check(some(2, first), api_name, apache_kafka)


@pytest.mark.parametrize(("api_name", "first"), [("blocking", 2), ("asyncio", 3)] if LONG else [("blocking", 2)])
def test_faults_in_the_old_flow(old_kafka: ApacheKafka, api_name: str, first: int) -> None:
    check(some(0, first), api_name, old_kafka)
