# SPDX-License-Identifier: Apache-2.0
"""Fixtures with a real Apache Kafka; in a conftest.py: ``pytest_plugins = ["kcodec.testing.pytest_plugin"]``.

    def test_something(apache_kafka):                   # one node for the whole run, transaction version 2
        topic = apache_kafka.create_topic(partitions=3) # with a unique name: all tests share the broker

    def test_something_else(apache_kafka_factory):      # separate brokers, to kill or to configure
        kafka = apache_kafka_factory(nodes=3)

    def test_without_java(kcodec_broker):               # the embedded broker, a new one for each test
        topic = kcodec_broker.create_topic(partitions=3)

`pytest --kafka-version 4.3.1` runs the same tests with another Kafka.

If a broker is not available, the test that needs it fails and is never skipped. When a test fails, its report shows the
end of the log of each running broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

__all__ = ["KafkaFactory", "apache_kafka", "apache_kafka_factory", "kcodec_broker"]

# A function with the arguments of ApacheKafka.
KafkaFactory = Callable[..., ApacheKafka]

# All brokers, for their logs; and those of the factory, in the order of their start.
_STARTED: list[ApacheKafka] = []
_MADE: list[ApacheKafka] = []
_IN_TEST: pytest.StashKey[int] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects the version of Kafka."""
    parser.getgroup("kcodec").addoption(
        "--kafka-version",
        default=KAFKA_VERSION,
        metavar="VERSION",
        help="version of Kafka that apache_kafka and apache_kafka_factory start (default: %(default)s)",
    )


@pytest.fixture(scope="session")
def apache_kafka(pytestconfig: pytest.Config) -> Iterator[ApacheKafka]:
    """One node of Kafka for all tests of a run. Tests must not kill, pause or configure it.

    pytestconfig: has the option --kafka-version.
    """
    with ApacheKafka(str(pytestconfig.getoption("--kafka-version", KAFKA_VERSION))) as kafka:
        _STARTED.append(kafka)
        yield kafka
        _STARTED.remove(kafka)


@pytest.fixture
def kcodec_broker() -> Iterator[Broker]:
    """The embedded broker, started for the test: no Java, and nothing in it from other tests."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def apache_kafka_factory(pytestconfig: pytest.Config) -> Iterator[KafkaFactory]:
    """A function that starts a Kafka, with the arguments of ApacheKafka.

    A Kafka that a test starts ends with that test; one that a fixture starts ends with `close()`, or with the run.

    pytestconfig: has the option --kafka-version, the default of the argument `version`.
    """

    default = str(pytestconfig.getoption("--kafka-version", KAFKA_VERSION))

    def start(version: str | None = None, **options: Any) -> ApacheKafka:
        kafka = ApacheKafka(default if version is None else version, **options)
        kafka.start()
        _MADE.append(kafka)
        _STARTED.append(kafka)
        return kafka

    yield start
    _close(0)


def _close(begun: int) -> None:
    """End the Kafkas that the factory made after the first `begun`."""
    for kafka in _MADE[begun:]:
        kafka.close()
        _STARTED.remove(kafka)
    del _MADE[begun:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note which brokers belong to the test."""
    item.stash[_IN_TEST] = len(_MADE)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the brokers' logs to a failure, then end the brokers of the test."""
    report = yield
    if report.failed:
        report.sections += [("Kafka", kafka.log_tail()) for kafka in _STARTED if kafka.nodes]
    if call.when == "call":
        _close(item.stash[_IN_TEST])
    return report
