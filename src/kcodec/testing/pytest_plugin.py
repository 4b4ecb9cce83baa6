# SPDX-License-Identifier: Apache-2.0
"""Fixtures with a real Apache Kafka; in a conftest.py: ``pytest_plugins = ["kcodec.testing.pytest_plugin"]``.

    def test_something(apache_kafka):                   # one node for the whole run, transaction version 2
        topic = apache_kafka.create_topic(partitions=3) # a name of its own: all tests share the broker

    def test_something_else(apache_kafka_factory):      # brokers of one's own, to kill or to configure
        kafka = apache_kafka_factory(nodes=3)

A broker that cannot be had is an error of the test that wants it, never a skip. When a test fails, its report shows the
end of the log of each broker that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from kcodec.testing.kafka import ApacheKafka

__all__ = ["KafkaFactory", "apache_kafka", "apache_kafka_factory"]

# Takes what ApacheKafka takes.
KafkaFactory = Callable[..., ApacheKafka]

# All, for their logs; and of these, in the order of their start, what the factory made.
_STARTED: list[ApacheKafka] = []
_MADE: list[ApacheKafka] = []
_IN_TEST: pytest.StashKey[int] = pytest.StashKey()


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """One node of the newest Kafka for all tests of a run. Nobody kills, pauses or configures it."""
    with ApacheKafka() as kafka:
        _STARTED.append(kafka)
        yield kafka
        _STARTED.remove(kafka)


@pytest.fixture(scope="session")
def apache_kafka_factory() -> Iterator[KafkaFactory]:
    """A function that starts a Kafka; it takes what ApacheKafka takes.

    What a test starts ends with that test; what a fixture starts ends with `close()`, or else with the run.
    """

    def start(version: str | None = None, **options: Any) -> ApacheKafka:
        kafka = ApacheKafka(**options) if version is None else ApacheKafka(version, **options)
        kafka.start()
        _MADE.append(kafka)
        _STARTED.append(kafka)
        return kafka

    yield start
    _close(0)


def _close(begun: int) -> None:
    """End what the factory made after so many."""
    for kafka in _MADE[begun:]:
        kafka.close()
        _STARTED.remove(kafka)
    del _MADE[begun:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Notes which brokers are the test's own."""
    item.stash[_IN_TEST] = len(_MADE)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the brokers' last words to a failure, then ends the brokers of the test."""
    report = yield
    if report.failed:
        report.sections += [("Kafka", kafka.log_tail()) for kafka in _STARTED if kafka.nodes]
    if call.when == "call":
        _close(item.stash[_IN_TEST])
    return report
