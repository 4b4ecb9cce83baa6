# SPDX-License-Identifier: Apache-2.0
"""The metrics of a client, reported to an object of the application (`metrics=`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kcodec.flow import Flow, keep_running, sleep
from kcodec.network.callbacks import CALLBACK_ERRORS

log = logging.getLogger("kcodec.client")
#: Interval between two values of a gauge, and between two reports of a tally.
GAUGE_SECONDS = 1.0
#: Reports the value of a gauge: gauge(name, value, **labels).
Gauge = Callable[..., None]


class Tally:
    """The events of a frequent counter since its last report. A call of the application's object for each event would
    take a noticeable part of the time of a poll."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics(Protocol):
    """The interface of an object passed as `metrics=`. Its methods are called on the client's I/O thread (asyncio: in
    its event loop) and must be quick. An exception that a method raises is logged once for each method, and ignored.

    Names are dotted, such as ``request.sent``, ``producer.records`` and ``consumer.fetched_bytes``; latencies are in
    seconds: ``request``, ``throttle``, ``producer.delivery``. Labels are Kafka's names (``api="ProduceRequest"``,
    ``node=1``); none of them contains a secret or a record. The counters of requests, bytes, polled records and
    rebalances are added up and passed once a second, and when the client is closed.

    An object may also have a method ``gauge(name, value, **labels)``. It is called once a second with values that go
    up and down: ``requests.in_flight``, ``producer.buffered_bytes``, ``producer.unfinished_batches``,
    ``consumer.buffered_bytes``, ``consumer.assigned_partitions``, ``consumer.lag``, ``consumer.seconds_since_poll``.
    docs/logging.md describes all names.
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
        self._tallies: dict[tuple[object, ...], tuple[Tally, str, dict[str, object]]] = {}

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """See Metrics."""
        try:
            self._metrics.count(name, value, **labels)
        except CALLBACK_ERRORS as error:
            self._log_once("count", error)

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """See Metrics."""
        try:
            self._metrics.latency(name, seconds, **labels)
        except CALLBACK_ERRORS as error:
            self._log_once("latency", error)

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Report the value of a gauge, if the application's object has the method `gauge`."""
        try:
            self._metrics.gauge(name, value, **labels)  # type: ignore[attr-defined]
        except CALLBACK_ERRORS as error:
            self._log_once("gauge", error)

    def tally(self, name: str, labels: dict[str, object]) -> Tally:
        """Return the tally of a counter with these labels."""
        return self._tallies.setdefault((name, *labels.values()), (Tally(), name, labels))[0]

    def report_tallies(self) -> None:
        """Count the events of all tallies since the last call."""
        for tally, name, labels in list(self._tallies.values()):
            if tally.value:
                value, tally.value = tally.value, 0
                self.count(name, value, **labels)

    @property
    def has_gauges(self) -> bool:
        """Whether the application's object has the method `gauge`."""
        return callable(getattr(self._metrics, "gauge", None))

    def _log_once(self, method: str, error: BaseException) -> None:
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
    if isinstance(metrics, type):
        raise TypeError(f"metrics: expected an object, got the class {metrics.__name__}; pass {metrics.__name__}()")
    for method in ("count", "latency"):
        if not callable(getattr(metrics, method, None)):
            what = f"{type(metrics).__name__} has no method {method!r}"
            raise TypeError(
                f"metrics: {what}; expected an object with the methods count and latency (kcodec.client.Metrics)"
            )
    return _GuardedMetrics(metrics)


def are_ignored(metrics: Metrics) -> bool:
    """Return whether nothing observes these metrics, so that the calls can be left out."""
    return type(metrics) is NoMetrics


def gauge_of(metrics: Metrics) -> Gauge | None:
    """Return the function that reports gauges; None if the application's object does not have it."""
    return metrics.gauge if isinstance(metrics, _GuardedMetrics) and metrics.has_gauges else None


def tally_of(metrics: Metrics, name: str, **labels: object) -> Tally:
    """Return the tally of a frequent counter. Without metrics, the tally is not reported."""
    return metrics.tally(name, labels) if isinstance(metrics, _GuardedMetrics) else Tally()


class ConnectionMetrics:
    """What one connection reports of its requests."""

    def __init__(self, metrics: Metrics, node_id: int) -> None:
        self._metrics = metrics
        self._node_id = node_id
        self._bytes_sent = tally_of(metrics, "bytes.sent", node=node_id)
        self._bytes_received = tally_of(metrics, "bytes.received", node=node_id)
        self._requests_sent: dict[type, Tally] = {}

    def sent(self, kind: type) -> None:
        """Count a request of this class."""
        found = self._requests_sent.get(kind)
        if found is None:
            found = tally_of(self._metrics, "request.sent", api=kind.__name__, node=self._node_id)
            self._requests_sent[kind] = found
        found.value += 1

    def wrote(self, count: int) -> None:
        """Count bytes that are sent."""
        self._bytes_sent.value += count

    def received(self, count: int) -> None:
        """Count bytes that were received."""
        self._bytes_received.value += count

    def responded(self, kind: type, seconds: float, throttle: float) -> None:
        """Record the duration of a request until its response, and the throttle time that the response names."""
        self._metrics.latency("request", seconds, api=kind.__name__)
        if kind.__name__ == "MetadataRequest":
            self._metrics.count("metadata.refreshed")
        if throttle > 0:
            self._metrics.latency("throttle", throttle, api=kind.__name__)

    def failed(self, kind: type) -> None:
        """Count a request that got no response."""
        self._metrics.count("request.failed", api=kind.__name__, node=self._node_id)

    def authenticated(self) -> None:
        """Count a login."""
        self._metrics.count("connection.authenticated", node=self._node_id)


def report_tallies(metrics: Metrics) -> None:
    """Pass the counts of all tallies to the application's object."""
    if isinstance(metrics, _GuardedMetrics):
        metrics.report_tallies()


def report_gauges(metrics: Metrics, report: Callable[[Gauge], None]) -> Flow[None]:
    """Call `report` every GAUGE_SECONDS, if the application has passed an object; an object without the method `gauge`
    gets only the counts that `report` makes."""
    if isinstance(metrics, _GuardedMetrics):
        gauge = gauge_of(metrics) or _no_gauge
        try:
            yield from keep_running(lambda: _report_every_second(gauge, report), "report of gauges")
        finally:
            report(gauge)  # the last values before the client is closed


def _report_every_second(gauge: Gauge, report: Callable[[Gauge], None]) -> Flow[None]:
    while True:
        report(gauge)
        yield from sleep(GAUGE_SECONDS)


def _no_gauge(name: str, value: float, **labels: object) -> None:
    """Do nothing."""
