# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus and OpenTelemetry, and traces: what their own libraries show while clients work."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, generate_latest
from virtual_broker import RECORDS, TOPIC, virtual_time

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, ClientQuotaEntity, Consumer, GroupTransactSession, Producer, aio
from kcodec.errors import AuthenticationError, KcodecError
from kcodec.observe.names import METRICS
from kcodec.observe.opentelemetry import OpenTelemetryMetrics, Tracing
from kcodec.observe.prometheus import PrometheusMetrics
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.pytest_plugin import KafkaFactory

ROOT = Path(__file__).resolve().parent.parent.parent
#: What needs a failing or throttling broker, or one that authenticates: in test_every_documented_metric_has_a_value.
ELSEWHERE = {
    *("connection.failed", "connection.authenticated", "request.failed", "throttle", "consumer.fetch_failed"),
    *("producer.retries", "producer.failures", "consumer.fetch_errors", "connection.refused"),
}


def work(kafka: Broker, topic: str, **options: Any) -> None:
    """Send and receive ten records, and wait until each gauge was reported."""
    given = {"bootstrap_servers": kafka.bootstrap_servers, **options}
    with Producer(**given) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    with Consumer(group_id=topic, auto_offset_reset="earliest", **given) as consumer:
        consumer.subscribe(topic)
        deadline, count = time.monotonic() + 30, 0
        while count < 10:
            count += len(consumer.poll(1.0))
            assert time.monotonic() < deadline
        consumer.poll(1.2)


def scraped(text: str) -> dict[str, float]:
    """The sum of each sample's values over its labels."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"(?m)^(\w+)(?:\{[^}]*\})? (\S+)$", text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


class Both:
    """Passes everything to PrometheusMetrics and to OpenTelemetryMetrics, and returns what each of them shows."""

    def __init__(self) -> None:
        self.registry, self.reader = CollectorRegistry(), InMemoryMetricReader()
        self._objects = (PrometheusMetrics(self.registry), OpenTelemetryMetrics(MeterProvider([self.reader])))

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        for one in self._objects:
            one.count(name, value, **labels)

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        for one in self._objects:
            one.latency(name, seconds, **labels)

    def gauge(self, name: str, value: float, **labels: object) -> None:
        for one in self._objects:
            one.gauge(name, value, **labels)

    def missing(self, names: dict[str, str]) -> list[str]:
        """The counters and latencies without an event and the gauges without a value, in one of the libraries."""
        found, data = scraped(generate_latest(self.registry).decode()), self.reader.get_metrics_data()
        shown: dict[str, Any] = {}
        for scope in data.resource_metrics[0].scope_metrics if data else ():
            shown |= {one.name: one.data.data_points for one in scope.metrics}
        events: dict[str, list[float | None]] = {
            name: [
                found.get(prometheus_name(name)),
                sum(one.count if kind == "latency" else one.value for one in shown[f"kcodec.{name}"])
                if f"kcodec.{name}" in shown
                else None,
            ]
            for name, kind in names.items()
        }
        return [name for name, both in events.items() if None in both or (names[name] != "gauge" and 0 in both)]


def prometheus_name(name: str) -> str:
    kind = METRICS[name].kind
    return f"kcodec_{name.replace('.', '_')}" + {"count": "_total", "latency": "_seconds_count", "gauge": ""}[kind]


def test_a_registry_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="registry must be a CollectorRegistry or None, got 'x'"):
        PrometheusMetrics("x")  # type: ignore[arg-type]


def test_every_metric_is_scraped_under_load(kcodec_broker: Broker) -> None:
    topic, registry = kcodec_broker.create_topic(partitions=2), CollectorRegistry()
    work(kcodec_broker, topic, metrics=PrometheusMetrics(registry))
    found = scraped(generate_latest(registry).decode())
    assert {prometheus_name(name) for name in METRICS if name not in ELSEWHERE} <= set(found)
    assert found["kcodec_producer_records_total"] == found["kcodec_consumer_records_total"] == 10
    assert found["kcodec_producer_batch_bytes_total"] > 10
    assert found["kcodec_consumer_rebalances_total"] == 1
    assert found["kcodec_consumer_lag"] == found["kcodec_producer_buffered_bytes"] == 0
    assert found["kcodec_request_seconds_count"] > 5


def documented() -> dict[str, str]:
    """Name -> method of each metric in the table of docs/logging.md."""
    page = (ROOT / "docs" / "logging.md").read_text("utf-8")
    return dict(re.findall(r"^\| `([a-z_.]+)` \| `(count|latency|gauge)` \|", page, re.MULTILINE))


def test_each_reported_metric_is_described() -> None:
    """In METRICS, and thus on the page; otherwise the test below would not look for it."""
    call = re.compile(r"\b(?:count|latency|gauge|tally_of)\(\s*(?:[\w.]*metrics,\s*)?\"([a-z_.]+)\"")
    found = {name for path in (ROOT / "src").rglob("*.py") for name in call.findall(path.read_text("utf-8"))}
    assert found == METRICS.keys()


def test_every_documented_metric_has_a_value(apache_kafka_factory: KafkaFactory, kcodec_broker: Broker) -> None:
    """With both libraries, for clients that send, consume and commit transactions: on the embedded broker, also with
    requests that fail, and on Kafka, with logins, a quota and an unreachable broker. The list is that of the page, so
    that a metric that is never reported fails."""
    names, metrics = documented(), Both()
    assert {name: one.kind for name, one in METRICS.items()} == names
    kafka = apache_kafka_factory(sasl=["SCRAM-SHA-256"])
    options: dict[str, Any] = dict(kafka.client_options("alice", "SCRAM-SHA-256"))
    topic = kafka.create_topic(partitions=2)
    slow = ClientQuotaEntity(client_id="slow")
    with Admin(**options) as admin:
        admin.alter_client_quotas({slow: {"producer_byte_rate": 1000.0}})
        while slow not in admin.describe_client_quotas(client_id="slow"):
            time.sleep(0.05)
    given = {**options, "metrics": metrics, "client_id": "slow"}
    given["bootstrap_servers"] = f"127.0.0.1:1,{options['bootstrap_servers']}"
    wrong = {**options, "sasl_plain_password": "wrong", "metrics": metrics}
    with Admin(**wrong) as refused, pytest.raises(AuthenticationError):
        refused.list_topics()
    servers = kcodec_broker.bootstrap_servers
    other = kcodec_broker.create_topic()
    faults = kcodec_broker.faults
    with Producer(**given, linger_ms=0) as producer:
        producer.send(topic, b"x" * 20_000).result(60)
        faults.add("Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, count=1)
        with Producer(bootstrap_servers=servers, metrics=metrics) as retrying:
            retrying.send(other, b"retried").result(30)
            faults.add("Produce", error=ErrorCode.INVALID_RECORD, count=1)
            with pytest.raises(KcodecError):
                retrying.send(other, b"refused").result(30)
        time.sleep(1.1)  # gauges
    session_options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "metrics": metrics,
        "group_id": "s",
        "transactional_id": "s",
    }
    with GroupTransactSession(topics=[other], auto_offset_reset="earliest", **session_options) as session:
        while True:
            with session.transaction() as txn:
                records = txn.poll(timeout=1.0)
                for record in records:
                    txn.send(f"{other}-out", record.value)
            if records:
                break
    faults.add("Fetch", close="before", skip=1, count=1)
    with Consumer(bootstrap_servers=servers, metrics=metrics, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition(other, 0)])
        consumer.seek(TopicPartition(other, 0), 1000)  # OFFSET_OUT_OF_RANGE
        consumer.poll(0.5)
    with Consumer(bootstrap_servers=servers, metrics=metrics, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(other)
        deadline = time.monotonic() + 30
        while True:
            consumer.poll(0.2)
            missing = metrics.missing(names)
            if not missing:
                return
            assert time.monotonic() < deadline, missing


def test_a_class_in_place_of_an_object_is_refused() -> None:
    """Its methods exist, and each call of them would fail; it was only logged."""
    mistaken: Any = PrometheusMetrics
    with pytest.raises(TypeError, match=r"metrics: expected an object, got the class PrometheusMetrics; pass Prometh"):
        Producer(bootstrap_servers="127.0.0.1:1", metrics=mistaken)


def test_an_object_without_gauges_gets_all_counts(kcodec_broker: Broker) -> None:
    """Also those that are added up and passed once a second, and when the client is closed."""
    counts: Counter[str] = Counter()

    class Counts:
        def count(self, name: str, value: int = 1, **labels: object) -> None:
            counts[name] += value

        def latency(self, name: str, seconds: float, **labels: object) -> None:
            counts[name] += 1

    topic = kcodec_broker.create_topic(partitions=1)
    work(kcodec_broker, topic, metrics=Counts())
    assert counts["consumer.records"] == counts["producer.records"] == 10
    assert counts["consumer.rebalances"] == 1
    assert counts["request.sent"] >= counts["request"] > 5
    assert counts["bytes.sent"] > 500 and counts["bytes.received"] > counts["consumer.fetched_bytes"] > 100


def test_the_metrics_of_a_poll_are_passed_once_a_second(kcodec_broker: Broker) -> None:
    """A call of the object for each request would take a noticeable part of a poll."""
    calls: Counter[str] = Counter()

    class Calls:
        def count(self, name: str, value: int = 1, **labels: object) -> None:
            calls[name] += 1

        def latency(self, name: str, seconds: float, **labels: object) -> None:
            calls[name] += 1

    servers, topic = kcodec_broker.bootstrap_servers, kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number).result(30)
    small: dict[str, Any] = {"fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}
    began = time.monotonic()
    with Consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", metrics=Calls(), max_poll_records=1, **small
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while consumer.position(TopicPartition(topic, 0)) < 100:
            consumer.poll(1.0)
    assert calls["request"] > 100
    seconds = time.monotonic() - began
    assert calls["bytes.sent"] <= 2 * (seconds + 2)  # two brokers: the bootstrap server and the leader
    assert calls["consumer.fetched_bytes"] <= seconds + 2


def test_failures_and_throttling_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    with virtual_time() as broker:

        async def program() -> None:
            async with aio.Consumer(
                bootstrap_servers="broker:9092", group_id="billing", auto_offset_reset="earliest", metrics=metrics
            ) as consumer:
                await consumer.subscribe(TOPIC)
                broker.faults = lambda api: ErrorCode.UNKNOWN_SERVER_ERROR if api == "Fetch" else 0
                await consumer.poll(2.0)
                broker.faults = lambda api: 0
                while not await consumer.poll(1.0):
                    pass
                broker.is_down = True
                await consumer.poll(2.0)
            async with aio.Producer(bootstrap_servers="broker:9092", metrics=metrics) as producer:
                broker.is_down = False
                broker.faults = lambda api: ErrorCode.INVALID_RECORD if api == "Produce" else 0
                with pytest.raises(KcodecError):
                    await (await producer.send(TOPIC, b"refused"))

        broker.run(program())
    found = scraped(generate_latest(registry).decode())
    assert found["kcodec_consumer_records_total"] == RECORDS
    for name in ("consumer_fetch_errors", "consumer_fetch_failed", "producer_failures"):
        assert found[f"kcodec_{name}_total"] >= 1, name


def test_the_lag_of_a_lost_partition_becomes_zero(kcodec_broker: Broker) -> None:
    """Otherwise a dashboard would show the last lag for as long as the process runs."""
    lags: list[float] = []

    class Lags:
        def count(self, name: str, value: int = 1, **labels: object) -> None: ...
        def latency(self, name: str, seconds: float, **labels: object) -> None: ...
        def gauge(self, name: str, value: float, **labels: object) -> None:
            if name == "consumer.lag":
                lags.append(value)

    servers, topic = kcodec_broker.bootstrap_servers, kcodec_broker.create_topic()
    with Producer(bootstrap_servers=servers) as producer:
        for _ in range(5):
            producer.send(topic, b"record", partition=0)
    with Consumer(bootstrap_servers=servers, metrics=Lags(), max_poll_records=1) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        deadline = time.monotonic() + 20
        while not consumer.poll(timeout=0.1):
            assert time.monotonic() < deadline
        while not any(lags):  # four records are not polled
            time.sleep(0.05)
            assert time.monotonic() < deadline
        consumer.unsubscribe()
    assert lags[-1] == 0


def test_metrics_go_to_opentelemetry(kcodec_broker: Broker) -> None:
    topic, reader = kcodec_broker.create_topic(partitions=1), InMemoryMetricReader()
    work(kcodec_broker, topic, metrics=OpenTelemetryMetrics(MeterProvider([reader])))
    data: Any = reader.get_metrics_data()
    found = {one.name: one for each in data.resource_metrics[0].scope_metrics for one in each.metrics}
    assert {f"kcodec.{name}" for name in METRICS if name not in ELSEWHERE} <= set(found)
    (records,) = found["kcodec.consumer.records"].data.data_points
    assert records.value == 10
    (lag,) = found["kcodec.consumer.lag"].data.data_points
    assert (lag.value, dict(lag.attributes)) == (0, {"topic": topic, "partition": 0})
    assert found["kcodec.request"].unit == "s"


def traced() -> tuple[Tracing, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


def test_a_trace_goes_from_producer_to_consumer(kcodec_broker: Broker) -> None:
    topic, (tracing, exporter) = kcodec_broker.create_topic(partitions=1), traced()
    servers = kcodec_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        tracing.send(producer, topic, b"1", headers=[("kept", b"yes"), ("traceparent", b"old")]).result(30)
    with Consumer(bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while not (records := consumer.poll(1.0)):
            pass
    (record,) = records
    with pytest.raises(RuntimeError, match="broken"), tracing.process(record):
        raise RuntimeError("broken")
    sent, processed = exporter.get_finished_spans()
    assert (sent.name, sent.kind, processed.kind) == (f"send {topic}", SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.context.trace_id == sent.context.trace_id
    assert processed.parent is not None and processed.parent.span_id == sent.context.span_id
    headers = dict(record.headers)
    assert headers["kept"] == b"yes" and len(record.headers) == 2
    assert (
        headers["traceparent"]
        == f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-{sent.context.trace_flags:02x}".encode()
    )
    assert attributes(sent)["messaging.kafka.offset"] == attributes(processed)["messaging.kafka.offset"] == 0
    assert [event.name for event in processed.events] == ["exception"]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_the_span_of_a_failed_record_says_so() -> None:
    tracing, exporter = traced()
    with (
        Producer(
            bootstrap_servers="127.0.0.1:1",
            max_block_ms=100,
            delivery_timeout_ms=300,
            linger_ms=0,
            request_timeout_ms=200,
        ) as producer,
        pytest.raises(KcodecError),
    ):
        tracing.send(producer, "orders", b"x").result(10)
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


def test_the_span_of_a_record_with_invalid_headers_ends() -> None:
    tracing, exporter = traced()
    with Producer(bootstrap_servers="127.0.0.1:1") as producer, pytest.raises(ValueError, match="not enough values"):
        tracing.send(producer, "orders", b"x", headers=[("name",)])
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok


def test_tracing_in_asyncio() -> None:
    tracing, exporter = traced()
    with virtual_time() as broker:

        async def program() -> None:
            async with aio.Producer(bootstrap_servers="broker:9092") as producer:
                await (await tracing.send_async(producer, TOPIC, b"x", headers={"a": b"b"}))

        broker.run(program())
    (span,) = exporter.get_finished_spans()
    assert span.status.is_ok and span.end_time is not None


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("prometheus", "PrometheusMetrics", "prometheus-client"), ("opentelemetry", "Tracing", "opentelemetry-api")],
)
def test_a_missing_package_is_named(module: str, name: str, package: str) -> None:
    """A module of the package is imported without it; its classes say what to install."""
    program = f"""
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
import kcodec.client
from kcodec.observe.{module} import {name}
try:
    {name}()
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert f"pip install {package}\n" in ran.stdout


def test_the_prometheus_example_is_scraped(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.send(topic, b"1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        str(ROOT / "examples" / "prometheus_metrics.py"),
        kcodec_broker.bootstrap_servers,
        topic,
        str(port),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as example:
        try:
            assert example.stdout is not None
            assert example.stdout.readline() == "0\n"
            deadline = time.monotonic() + 20
            while True:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                    text = page.read().decode()
                if scraped(text).get("kcodec_consumer_records_total") == 1:
                    break
                assert time.monotonic() < deadline, text
                time.sleep(0.2)
            assert f'kcodec_consumer_lag{{partition="0",topic="{topic}"}} 0.0' in text
        finally:
            example.kill()


def test_the_opentelemetry_example_prints_one_trace(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    command = [
        sys.executable,
        str(ROOT / "examples" / "opentelemetry_spans.py"),
        kcodec_broker.bootstrap_servers,
        topic,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(set(re.findall(r'"trace_id": "(\w+)"', ran.stdout))) == 1
    assert "processed 0" in ran.stdout and "kcodec.consumer.records" in ran.stdout


def test_objects_with_the_same_registry_and_prefix_share_their_metrics() -> None:
    """prometheus-client registers a name only once, so the metrics of the second object would otherwise be lost."""
    registry = CollectorRegistry()
    first, second, other = (
        PrometheusMetrics(registry),
        PrometheusMetrics(registry),
        PrometheusMetrics(registry, prefix="other"),
    )
    for metrics in (first, second, other):
        metrics.count("producer.records", 5)
        metrics.latency("request", 0.5, api="FetchRequest")
        metrics.gauge("consumer.lag", 3, topic="orders", partition=1)
    found = scraped(generate_latest(registry).decode())
    assert (found["kcodec_producer_records_total"], found["other_producer_records_total"]) == (10, 5)
    assert (found["kcodec_request_seconds_count"], found["kcodec_consumer_lag"]) == (2, 3)
    with pytest.raises(ValueError, match=r"buckets: the metrics with the prefix 'kcodec' in this registry have the"):
        PrometheusMetrics(registry, buckets=(1.0, 2.0))


def test_metrics_that_were_unregistered_are_registered_again() -> None:
    """Fixtures of tests unregister all collectors of a registry, and the next test creates an object."""
    registry = CollectorRegistry()
    first = PrometheusMetrics(registry)
    first.count("producer.records", 5)
    for collector in list(registry._collector_to_names):
        registry.unregister(collector)
    metrics = PrometheusMetrics(registry)
    PrometheusMetrics(registry)  # which finds the metrics in the registry
    metrics.count("producer.records", 1)
    metrics.latency("request", 0.5, api="FetchRequest")
    found = scraped(generate_latest(registry).decode())
    assert (found["kcodec_producer_records_total"], found["kcodec_request_seconds_count"]) == (6, 1)


def test_objects_with_the_same_meter_provider_share_their_counters() -> None:
    """A meter reports only one observable counter of a name."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for metrics in (OpenTelemetryMetrics(provider), OpenTelemetryMetrics(provider)):
        metrics.count("producer.records", 5)
        metrics.count("request.sent", 2, api="FetchRequest", node=1)
        metrics.latency("request", 0.5, api="FetchRequest")
    found = values(reader)
    assert (found["kcodec.producer.records"], found["kcodec.request.sent"]) == (10, 4)
    other = InMemoryMetricReader()
    OpenTelemetryMetrics(MeterProvider([other])).count("producer.records", 1)
    assert values(other) == {"kcodec.producer.records": 1}


GLOBAL_PROVIDER = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from kcodec.observe.opentelemetry import OpenTelemetryMetrics

reader = InMemoryMetricReader()
provider = MeterProvider([reader])
objects = [OpenTelemetryMetrics({first})]
objects[0].count("producer.records", 1)
metrics.set_meter_provider(provider)
objects += [OpenTelemetryMetrics(), OpenTelemetryMetrics(provider)]
for one in objects:
    one.count("producer.records", 1)
(resource,) = reader.get_metrics_data().resource_metrics
print([point.value for one in resource.scope_metrics[0].metrics for point in one.data.data_points])
"""


@pytest.mark.parametrize("first", ["", "provider"])
def test_objects_share_the_counters_of_the_global_provider(first: str) -> None:
    """Also objects that were created before the program set the provider. A process can set it only once."""
    program = GLOBAL_PROVIDER.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[4]", "")


class LockingMeter:
    """A meter and its provider. As in the SDK, one lock is held while counters are read and while one is created."""

    def __init__(self) -> None:
        self.lock, self.creating = threading.Lock(), threading.Event()
        self.readers: list[Any] = []
        self.read: list[int] = []

    def get_meter(self, name: str, version: str) -> LockingMeter:
        return self

    def create_observable_counter(self, name: str, callbacks: list[Any], description: str) -> object:
        self.creating.set()
        with self.lock:
            self.readers += callbacks
        return object()

    def collect(self, creator: threading.Thread) -> None:
        """Read the counters at the moment when another thread waits to create one."""
        with self.lock:
            self.creating.clear()
            creator.start()
            self.creating.wait(10)
            self.read += [point.value for reader in self.readers for point in reader(None)]


def test_an_export_does_not_wait_for_a_counter_that_is_created() -> None:
    meter: Any = LockingMeter()
    metrics = OpenTelemetryMetrics(meter)
    metrics.count("producer.records", 3)
    creator = threading.Thread(target=metrics.count, args=("consumer.records", 4), daemon=True)
    exporter = threading.Thread(target=meter.collect, args=(creator,), daemon=True)
    exporter.start()
    exporter.join(10)
    assert meter.read == [3]
    creator.join(10)
    assert len(meter.readers) == 2


def values(reader: InMemoryMetricReader) -> dict[str, float]:
    """The sums of the counters."""
    data: Any = reader.get_metrics_data()
    return {
        metric.name: point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }
