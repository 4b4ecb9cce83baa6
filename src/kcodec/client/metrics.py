# SPDX-License-Identifier: Apache-2.0
"""What a client counts and times, for whoever wants to hear of it (`metrics=`)."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Give an object with these two methods as `metrics=`; they are called on the client's loop and must be quick.

    Names are dotted: ``connection.opened``, ``connection.failed``, ``connection.authenticated``, ``request.sent``,
    ``request.failed``, ``bytes.sent``, ``bytes.received``, ``metadata.refreshed``, ``producer.records``,
    ``producer.retries``, ``consumer.fetched_bytes``, ``consumer.fetch_errors``, ``consumer.fetch_failed``; latencies in
    seconds: ``request``, ``producer.delivery``, ``transaction``. Labels are Kafka's names (``api="Produce"``,
    ``node=1``); none of them holds a secret or a record.
    """

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Something happened, `value` times."""

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Something took so long."""


class NoMetrics:
    """Hears of everything and keeps nothing: the default."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Nothing."""

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Nothing."""
