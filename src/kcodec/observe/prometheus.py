# SPDX-License-Identifier: Apache-2.0
"""The metrics of clients for Prometheus: needs the package prometheus-client (extra `prometheus`)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kcodec.observe.names import metric_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Upper bounds of the buckets of durations, in seconds: from a request on the same host to `delivery_timeout_ms`.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class _Registered:
    """The metrics with one prefix in one registry. prometheus-client registers a name only once, so all objects with
    this registry and this prefix share them."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.lock = threading.Lock()
        self.metrics: dict[str, tuple[tuple[str, ...], Any]] = {}
        #: The metric with its labels, as prometheus-client looks them up slowly.
        self.children: dict[tuple[str, tuple[object, ...]], Any] = {}


#: Registry -> prefix -> its metrics.
_REGISTERED: weakref.WeakKeyDictionary[CollectorRegistry, dict[str, _Registered]] = weakref.WeakKeyDictionary()
_REGISTERED_LOCK = threading.Lock()


class PrometheusMetrics:
    """Reports the metrics of clients to a registry of prometheus-client.

        metrics = PrometheusMetrics()
        consumer = Consumer(bootstrap_servers="localhost:9092", group_id="billing", metrics=metrics)
        prometheus_client.start_http_server(9100)

    The names are those of docs/logging.md with underscores: `kcodec_producer_records_total`, `kcodec_request_seconds`
    (a histogram), `kcodec_consumer_lag` (a gauge). Clients can share an object, or have objects with the same registry
    and the same prefix: their counters and histograms add up, and a gauge without labels has the value of the client
    that reported last. For separate values, create an object with its own prefix or registry for each client.

    registry: where the metrics are registered; None for the default registry of prometheus-client.
    prefix: Prefix of the names.
    buckets: upper bounds of the buckets of durations, in seconds.

    Raise ImportError without prometheus-client. Raise ValueError if an earlier object with the same registry and prefix
    has other buckets.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        prefix: str = "kcodec",
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ImportError(
                "PrometheusMetrics needs the package prometheus-client: pip install prometheus-client"
            ) from error
        if registry is not None and not isinstance(registry, prometheus_client.CollectorRegistry):
            raise TypeError(f"registry must be a CollectorRegistry or None, got {registry!r}")
        self._library = prometheus_client
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._prefix = prefix
        given = tuple(buckets)
        with _REGISTERED_LOCK:
            registered = _REGISTERED.setdefault(self._registry, {}).setdefault(prefix, _Registered(given))
        if registered.buckets != given:
            raise ValueError(
                f"buckets: the metrics with the prefix {prefix!r} in this registry have the buckets "
                f"{registered.buckets}, not {given}; pass another prefix or registry"
            )
        with registered.lock:
            for _, metric in registered.metrics.values():
                # A program may have unregistered it. ValueError: it is still in the registry.
                with suppress(ValueError):
                    self._registry.register(metric)
        self._registered = registered

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Count `value` more events of the counter `name`."""
        self._child("count", name, labels).inc(value)

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Record the duration of an operation under `name`."""
        self._child("latency", name, labels).observe(seconds)

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Set the gauge `name` to `value`."""
        self._child("gauge", name, labels).set(value)

    def _child(self, kind: str, name: str, labels: dict[str, object]) -> Any:
        key, registered = (name, tuple(labels.values())), self._registered
        child = registered.children.get(key)
        if child is None:
            with registered.lock:
                names, metric = registered.metrics.get(name) or self._made(kind, name, labels)
                child = metric.labels(*(str(labels.get(one, "")) for one in names)) if names else metric
                registered.children[key] = child
        return child

    def _made(self, kind: str, name: str, labels: dict[str, object]) -> tuple[tuple[str, ...], Any]:
        described, library = metric_of(name, kind, labels), self._library
        plain = f"{self._prefix}_{name.replace('.', '_')}"
        options: dict[str, Any] = {"labelnames": described.labels, "registry": self._registry}
        metric: Any
        if kind == "count":
            metric = library.Counter(plain, described.text, **options)
        elif kind == "gauge":
            metric = library.Gauge(plain, described.text, **options)
        else:
            metric = library.Histogram(f"{plain}_seconds", described.text, buckets=self._registered.buckets, **options)
        self._registered.metrics[name] = (described.labels, metric)
        return self._registered.metrics[name]
