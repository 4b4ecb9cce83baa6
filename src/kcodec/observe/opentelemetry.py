# SPDX-License-Identifier: Apache-2.0
"""Metrics and traces for OpenTelemetry: needs the package opentelemetry-api (extra `otel`).

Spans continue the trace of the producer in the consumer: the headers `traceparent` and `tracestate` of a record hold
the context (W3C Trace Context). Names and attributes follow the semantic conventions of messaging systems.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kcodec
from kcodec.observe.names import metric_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Span, TracerProvider

    from kcodec import Record
    from kcodec.client import Delivery, Producer, aio

MISSING = "{} needs the package opentelemetry-api: pip install opentelemetry-api"


class _Instruments:
    """The instruments of one meter provider. A meter reports only one observable counter of a name, so all objects with
    this provider share them."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        #: Protects `sums`. The meter calls the readers of counters while it holds its own lock, which it also takes to
        #: create an instrument. Therefore, no instrument is created under this lock, and no reader takes
        #: `creation_lock`.
        self.lock = threading.Lock()
        self.creation_lock = threading.Lock()
        self.by_name: dict[str, Any] = {}
        #: Counter -> its labels -> its sum. The meter reads the sums: a call of its counters takes ten times as long.
        self.sums: dict[str, dict[tuple[tuple[str, object], ...], int]] = {}


class _GlobalProvider:
    """Key of the instruments of the global meter provider. Before a program sets a provider, the API returns a proxy.
    The instruments of the proxy later belong to the provider that was set."""


_GLOBAL = _GlobalProvider()
#: Meter provider -> its instruments.
_INSTRUMENTS: weakref.WeakKeyDictionary[MeterProvider | _GlobalProvider, _Instruments] = weakref.WeakKeyDictionary()
_INSTRUMENTS_LOCK = threading.Lock()


class OpenTelemetryMetrics:
    """Reports the metrics of clients to a meter of OpenTelemetry.

    The names are those of docs/logging.md with the prefix `kcodec.`: counters, histograms in seconds and gauges.
    Clients can share an object, or have objects with the same meter provider: their counters and histograms add up, and
    a gauge without labels has the value of the client that reported last.

    meter_provider: None for the global one.

    Raise ImportError without opentelemetry-api.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry.metrics import Observation, get_meter_provider
        except ImportError as error:
            raise ImportError(MISSING.format("OpenTelemetryMetrics")) from error
        global_provider = get_meter_provider()
        provider = global_provider if meter_provider is None else meter_provider
        self._observation = Observation
        with _INSTRUMENTS_LOCK:
            # A program may have passed the provider to an earlier object, before it set it as the global one.
            found = (_INSTRUMENTS.get(_GLOBAL) if provider is global_provider else None) or _INSTRUMENTS.get(provider)
            if found is None:
                found = _Instruments(provider.get_meter("kcodec", kcodec.__version__))
                _INSTRUMENTS[_GLOBAL if provider is global_provider else provider] = found
        self._instruments = found

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Count `value` more events of the counter `name`."""
        key = tuple(labels.items())
        with self._instruments.lock:
            sums = self._instruments.sums.get(name)
            if sums is not None:
                sums[key] = sums.get(key, 0) + value
                return
            self._instruments.sums[name] = {key: value}
        self._instrument("count", name, labels)

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Record the duration of an operation under `name`."""
        self._instrument("latency", name, labels).record(seconds, _attributes(labels))

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Set the gauge `name` to `value`."""
        self._instrument("gauge", name, labels).set(value, _attributes(labels))

    def _instrument(self, kind: str, name: str, labels: dict[str, object]) -> Any:
        instruments = self._instruments
        found = instruments.by_name.get(name)
        if found is None:
            with instruments.creation_lock:
                found = instruments.by_name.get(name)  # another thread may have created it
                if found is None:
                    found = instruments.by_name[name] = self._made(kind, name, labels)
        return found

    def _made(self, kind: str, name: str, labels: dict[str, object]) -> Any:
        text, whole, meter = metric_of(name, kind, labels).text, f"kcodec.{name}", self._instruments.meter
        if kind == "count":
            return meter.create_observable_counter(whole, [self._reader(name)], description=text)
        if kind == "gauge":
            return meter.create_gauge(whole, description=text)
        return meter.create_histogram(whole, unit="s", description=text)

    def _reader(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        """Return the function with which the meter reads a counter."""
        instruments, observation = self._instruments, self._observation

        def read(options: CallbackOptions) -> list[Observation]:
            with instruments.lock:
                sums = list(instruments.sums[name].items())
            return [observation(total, _attributes(dict(labels))) for labels, total in sums]

        return read


def _attributes(labels: dict[str, object]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in labels.items()
    }


class Tracing:
    """Spans for records that are sent and processed.

        tracing = Tracing()
        tracing.send(producer, "orders", b"value")           # a span that ends with the delivery
        for record in consumer.poll():
            with tracing.process(record):                    # a span in the trace of the producer
                ...

    tracer_provider: None for the global one.

    Raise ImportError without opentelemetry-api.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise ImportError(MISSING.format("Tracing")) from error
        self._trace = trace
        self._tracer = trace.get_tracer("kcodec", kcodec.__version__, tracer_provider)
        self._propagator = tracecontext.TraceContextTextMapPropagator()

    def send(self, producer: Producer, topic: str, value: Any = None, *, headers: Any = (), **more: Any) -> Delivery:
        """Send a record with `producer.send` and a span around it, which ends when the record has been delivered.

        topic, value, headers, more: as in `producer.send`. Return its Delivery. Raise what `producer.send` raises.
        """
        span, pairs = self._begin(topic, headers)
        try:
            delivery = producer.send(topic, value, headers=pairs, **more)
        except BaseException as error:
            self._failed(span, error)
            raise
        delivery.add_done_callback(lambda done: self._ended(span, done))
        return delivery

    async def send_async(
        self, producer: aio.Producer, topic: str, value: Any = None, *, headers: Any = (), **more: Any
    ) -> aio.Delivery:
        """As `send`, with a `producer` of the asyncio API: `topic`, `value`, `headers` and `more` as in its `send`."""
        span, pairs = self._begin(topic, headers)
        try:
            delivery = await producer.send(topic, value, headers=pairs, **more)
        except BaseException as error:
            self._failed(span, error)
            raise
        delivery.add_done_callback(lambda done: self._ended(span, done))
        return delivery

    @contextmanager
    def process(self, record: Record) -> Iterator[Span]:
        """Run a block in a span that continues the trace of the producer. An exception of the block is noted in it."""
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        kind = self._trace.SpanKind.CONSUMER
        with self._tracer.start_as_current_span(
            f"process {record.topic}", self.context_of(record), kind, attributes
        ) as span:
            yield span

    def context_of(self, record: Record) -> Context:
        """Return the context in the headers of a record; without one, that of the caller."""
        fields = {name: value.decode("ascii", "replace") for name, value in record.headers or () if value is not None}
        return self._propagator.extract(fields)

    def _begin(self, topic: str, headers: Any) -> tuple[Span, list[tuple[str, bytes | None]]]:
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        span = self._tracer.start_span(f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes)
        fields: dict[str, str] = {}
        try:
            self._propagator.inject(fields, self._trace.set_span_in_context(span))
            given = list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())
            kept = [(name, value) for name, value in given if name not in fields]
        except BaseException as error:  # headers that are not pairs
            self._failed(span, error)
            raise
        return span, [*kept, *((name, value.encode("ascii")) for name, value in fields.items())]

    def _ended(self, span: Span, delivery: Any) -> None:
        error = delivery.exception()
        if error is not None:
            self._failed(span, error)
            return
        written = delivery.result()
        span.set_attribute("messaging.destination.partition.id", str(written.partition))
        span.set_attribute("messaging.kafka.offset", written.offset)
        span.end()

    def _failed(self, span: Span, error: BaseException) -> None:
        span.record_exception(error)
        span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
        span.end()
