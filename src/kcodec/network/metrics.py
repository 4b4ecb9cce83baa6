# SPDX-License-Identifier: Apache-2.0
"""The metrics of a client, reported to an object of the application (`metrics=`)."""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger("kcodec.client")


class Metrics(Protocol):
    """The interface of an object passed as `metrics=`. Its methods are called on the client's I/O thread (asyncio: in
    its event loop) and must be quick. An exception that a method raises is logged once for each method, and ignored.

    Names are dotted: ``connection.opened``, ``connection.failed``, ``connection.authenticated``, ``request.sent``,
    ``request.failed``, ``bytes.sent``, ``bytes.received``, ``metadata.refreshed``, ``producer.records``,
    ``producer.retries``, ``consumer.fetched_bytes``, ``consumer.fetch_errors``, ``consumer.fetch_failed``; latencies in
    seconds: ``request``, ``producer.delivery``, ``transaction``. Labels are Kafka's names (``api="Produce"``,
    ``node=1``); none of them contains a secret or a record.
    """

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Count `value` more events of the counter `name`."""

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Record the duration of an operation under `name`."""


class NoMetrics:
    """Ignore everything: the default."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Do nothing."""

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Do nothing."""


class _GuardedMetrics:
    """Calls the application's object. An exception that it raises must not stop the client."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failed: set[str] = set()

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """See Metrics."""
        try:
            self._metrics.count(name, value, **labels)
        except Exception as error:  # noqa: BLE001  the application's code, on our thread
            self._log_once("count", error)

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """See Metrics."""
        try:
            self._metrics.latency(name, seconds, **labels)
        except Exception as error:  # noqa: BLE001  the application's code, on our thread
            self._log_once("latency", error)

    def _log_once(self, method: str, error: Exception) -> None:
        if method not in self._failed:
            self._failed.add(method)
            kind = type(self._metrics).__name__
            log.error("%s.%s of metrics= raised; further errors of it are not logged", kind, method, exc_info=error)


def checked_metrics(metrics: Metrics | None) -> Metrics:
    """Return the object that a client calls for the option `metrics`. Raise TypeError if it lacks a method."""
    if metrics is None:
        return NoMetrics()
    if type(metrics) in {NoMetrics, _GuardedMetrics}:
        return metrics
    for method in ("count", "latency"):
        if not callable(getattr(metrics, method, None)):
            what = f"{type(metrics).__name__} has no method {method!r}"
            raise TypeError(
                f"metrics: {what}; expected an object with the methods count and latency (kcodec.client.Metrics)"
            )
    return _GuardedMetrics(metrics)
