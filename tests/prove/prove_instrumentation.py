# SPDX-License-Identifier: Apache-2.0
"""Instrumentations on the facades of kcodec.compat: programs with three tracers, and the tests of OpenTelemetry.

    python tests/prove/prove_instrumentation.py [--checkout PATH] [--results FOLDER]

requirements/instrumentation.txt is installed into a virtual environment of its own. Each program produces and consumes
on the embedded broker with OpenTelemetry, ddtrace or New Relic, and checks the spans and the headers of the records. It
runs with the original client, with install() before the instrumentation, and with install() after it, which is what
happens if a command such as opentelemetry-instrument applies the instrumentation. New Relic has to be initialized
before confluent_kafka is imported, so its program runs only with the latter. PATH is a checkout of
opentelemetry-python-contrib: the tests of its three instrumentations run with the original client and with the facade.
A test that passes with the former only is an error, unless KNOWN has its reason.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from framework_tests import Framework, Results, command_line, compare
from original_clients import FOUND_AIOKAFKA, FOUND_LIBRDKAFKA, INSTALLS, ORIGINAL_FOUND

TRACERS = Framework("instrumentation", "the instrumentations")
#: These lines of a program are replaced by the installation of the facade.
FIRST, LATE = "# The facade is installed first.\n", "# The facade is installed late.\n"
OPENTELEMETRY = """
import sys

# The facade is installed first.
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


def spans():
    return [(one.name, one.kind.name, dict(one.attributes)) for one in exporter.get_finished_spans()]


def header_of(span):
    return "00-%032x-%016x-03" % (span.context.trace_id, span.context.span_id)


"""
OPENTELEMETRY_CONFLUENT = (
    OPENTELEMETRY
    + FOUND_LIBRDKAFKA
    + """
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor

ConfluentKafkaInstrumentor().instrument(tracer_provider=provider)
# The facade is installed late.
import confluent_kafka

settings = {"bootstrap.servers": sys.argv[1]}
producer = confluent_kafka.Producer(settings)
producer.produce("orders", b"1", key=b"k")
producer.produce("orders", value=b"2", headers=[("a", b"b")])
assert producer.flush(30) == 0
consumer = confluent_kafka.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
message = consumer.poll(30)
(other,) = consumer.consume(1, 30)
is_original = found_original()
consumer.close()
sent = [header_of(one) for one in exporter.get_finished_spans()[:2]]
assert [message.headers(), other.headers()] == [
    [("traceparent", sent[0].encode())],
    [("a", b"b"), ("traceparent", sent[1].encode())],
], (message.headers(), other.headers(), sent)
names = [found[:2] for found in spans()]
assert names == [
    ("orders send", "PRODUCER"),
    ("orders send", "PRODUCER"),
    ("recv", "CONSUMER"),
    ("orders process", "CONSUMER"),
    ("recv", "CONSUMER"),
    ("orders process", "CONSUMER"),
], names
processed = [one for one in exporter.get_finished_spans() if one.name == "orders process"]
assert processed[0].attributes["messaging.message.id"] == "orders.0.0"
assert [len(one.links) for one in processed] == [1, 1]
assert all(one.attributes["server.address"] == "127.0.0.1" for one in processed)
sys.exit(7 if is_original else 0)
"""
)
OPENTELEMETRY_AIOKAFKA = (
    OPENTELEMETRY
    + FOUND_AIOKAFKA
    + """
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor

AIOKafkaInstrumentor().instrument(tracer_provider=provider)
# The facade is installed late.
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], client_id="shop", key_serializer=str.encode) as producer:
        await producer.send_and_wait("orders", b"1", "k")
        await producer.send_and_wait("orders", b"2", "k", headers=[("a", b"b")])
    given = {"bootstrap_servers": [sys.argv[1]], "client_id": "bill", "group_id": "g", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("orders", **given) as consumer:
        async for record in consumer:
            break
        others = await consumer.getmany(timeout_ms=10_000)
    ((other,),) = others.values()
    return record, other


record, other = asyncio.run(asyncio.wait_for(main(), 60))
sent = [header_of(one) for one in exporter.get_finished_spans()[:2]]
assert record.headers == (("traceparent", sent[0].encode()),), record.headers
assert other.headers == (("a", b"b"), ("traceparent", sent[1].encode())), other.headers
found = spans()
assert [one[:2] for one in found] == [("orders send", "PRODUCER")] * 2 + [("orders receive", "CONSUMER")] * 4, found
assert found[0][2] == {
    "messaging.system": "kafka",
    "server.address": '"%s"' % sys.argv[1],
    "messaging.client.id": "shop",
    "messaging.destination.name": "orders",
    "messaging.destination.partition.id": "0",
    "messaging.kafka.message.key": "k",
    "messaging.operation.name": "send",
    "messaging.operation.type": "publish",
}, found[0]
assert found[2][2] == {
    "messaging.system": "kafka",
    "server.address": '["%s"]' % sys.argv[1],
    "messaging.client.id": "bill",
    "messaging.destination.name": "orders",
    "messaging.destination.partition.id": "0",
    "messaging.kafka.message.key": "k",
    "messaging.consumer.group.name": "g",
    "messaging.operation.name": "receive",
    "messaging.operation.type": "receive",
    "messaging.kafka.message.offset": 0,
    "messaging.message.id": "orders.0.0",
}, found[2]
received = exporter.get_finished_spans()[2]
assert received.parent.span_id == exporter.get_finished_spans()[0].context.span_id
sys.exit(7 if found_original() else 0)
"""
)
OPENTELEMETRY_KAFKA_PYTHON = (
    OPENTELEMETRY
    + """
from opentelemetry.instrumentation.kafka import KafkaInstrumentor

KafkaInstrumentor().instrument(tracer_provider=provider)
# The facade is installed late.
from kafka import KafkaConsumer, KafkaProducer
from kafka.record.memory_records import MemoryRecords

producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.send("orders", b"1", key=b"k").get(30)
producer.close()
consumer = KafkaConsumer("orders", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest")
record = next(consumer)
consumer.close()
first, second = exporter.get_finished_spans()
assert list(record.headers) == [("traceparent", header_of(first).encode())], record.headers
assert [one[:2] for one in spans()] == [("orders send", "PRODUCER"), ("orders receive", "CONSUMER")]
assert second.parent.span_id == first.context.span_id
sys.exit(0 if MemoryRecords.__module__.startswith("kcodec.") else 7)
"""
)
DDTRACE = """
import os

os.environ.update(
    DD_KAFKA_PROPAGATION_ENABLED="true",
    DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
    DD_REMOTE_CONFIGURATION_ENABLED="false",
)
# The facade is installed first.
import ddtrace
from ddtrace.trace import TraceFilter, tracer

spans = []


class Recorder(TraceFilter):
    def process_trace(self, trace):
        spans.extend((one.name, one.get_tag("kafka.topic") or one.get_tag("topic")) for one in trace)


tracer.configure(trace_processors=[Recorder()])
"""
DDTRACE_CONFLUENT = (
    DDTRACE
    + FOUND_LIBRDKAFKA
    + """
ddtrace.patch(kafka=True)
import confluent_kafka

# The facade is installed late.
from confluent_kafka import Consumer, DeserializingConsumer, Producer, SerializingProducer
from confluent_kafka.serialization import StringDeserializer, StringSerializer

settings = {"bootstrap.servers": sys.argv[1]}
group = {**settings, "group.id": "g", "auto.offset.reset": "earliest"}
producer = Producer(settings)
producer.produce("orders", b"1", key=b"k")
assert producer.flush(30) == 0
producer = SerializingProducer({**settings, "value.serializer": StringSerializer()})
producer.produce("orders", value="2")
assert producer.flush(30) == 0
with Consumer(group) as consumer:
    consumer.subscribe(["orders"])
    found = [consumer.poll(30), *consumer.consume(1, 30)]
    consumer.commit(asynchronous=False)
    is_original = found_original()
consumer = DeserializingConsumer({**group, "group.id": "h", "value.deserializer": StringDeserializer()})
consumer.subscribe(["orders"])
found.append(consumer.poll(30))
consumer.close()
assert [one.value() for one in found] == [b"1", b"2", "1"], found
assert all("x-datadog-trace-id" in dict(one.headers()) for one in found), [one.headers() for one in found]
tracer.flush()
assert [one[0] for one in spans] == ["kafka.produce"] * 2 + ["kafka.consume"] * 3, spans
sys.exit(7 if is_original else 0)
"""
)
DDTRACE_AIOKAFKA = (
    DDTRACE
    + FOUND_AIOKAFKA
    + """
ddtrace.patch(aiokafka=True)
# The facade is installed late.
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send_and_wait("orders", b"1", b"k")
    given = {"bootstrap_servers": sys.argv[1], "group_id": "g", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("orders", **given) as consumer:
        return await consumer.getone()


record = asyncio.run(asyncio.wait_for(main(), 60))
assert "x-datadog-trace-id" in dict(record.headers), record.headers
tracer.flush()
assert [one[0] for one in spans] == ["kafka.produce", "kafka.consume"], spans
sys.exit(7 if found_original() else 0)
"""
)
NEW_RELIC = (
    """
import os

os.environ.update(NEW_RELIC_DEVELOPER_MODE="true", NEW_RELIC_LICENSE_KEY="0" * 40, NEW_RELIC_APP_NAME="shop")
os.environ.update(NEW_RELIC_LOG=os.devnull)
import newrelic.agent

newrelic.agent.initialize()
"""
    + FOUND_LIBRDKAFKA
    + """
# The facade is installed late.
from confluent_kafka import Consumer, DeserializingConsumer, Producer
from confluent_kafka.serialization import StringDeserializer

newrelic.agent.register_application(timeout=5)
settings = {"bootstrap.servers": sys.argv[1]}
group = {**settings, "group.id": "g", "auto.offset.reset": "earliest"}


@newrelic.agent.background_task()
def produce():
    producer = Producer(settings)
    producer.produce("orders", b"1", key=b"k")
    assert producer.flush(30) == 0


produce()
for kind, own in ((Consumer, {}), (DeserializingConsumer, {"value.deserializer": StringDeserializer()})):
    consumer = kind({**group, **own, "group.id": kind.__name__})
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert "traceparent" in dict(message.headers()), message.headers()
    assert newrelic.agent.current_transaction() is not None
    is_original = found_original()
    assert consumer.poll(0.1) is None
    assert newrelic.agent.current_transaction() is None
    consumer.close()
sys.exit(7 if is_original else 0)
"""
)
#: The tests replace private attributes of AIOKafkaProducer and AIOKafkaConsumer.
MOCKS = "replaces `_message_accumulator`, `_sender` or `_fetcher` of aiokafka's client"
AIOKAFKA_TESTS = "tests.test_instrumentation.TestAIOKafkaInstrumentation::test_"
KNOWN = {
    f"{AIOKAFKA_TESTS}{name}": MOCKS
    for name in (
        *("getmany", "getone", "getone_baggage", "getone_consume_hook"),
        *("send", "send_and_wait", "send_baggage", "send_produce_hook"),
    )
}


@dataclass(frozen=True)
class Tracer:
    """A tracer with one of the clients, and a program that checks its spans."""

    name: str
    package: str
    client: str
    program: str

    def run(self) -> bool:
        """Run the program with the original client, and with the facade installed first and late."""
        install, title = INSTALLS[self.client], f"{self.name} {TRACERS.version_of(self.package)}, {self.client}"
        is_good = TRACERS.run_program(self.program, f"{title}: a program finds it", ORIGINAL_FOUND)
        for marker, when in ((FIRST, "before"), (LATE, "after")):
            if marker in self.program:
                what = f"{title}: install() {when} the instrumentation"
                is_good = TRACERS.run_program(self.program.replace(marker, install), what) and is_good
        return is_good


CONTRIB = "opentelemetry-instrumentation-"
PROGRAMS = (
    Tracer("OpenTelemetry", f"{CONTRIB}confluent-kafka", "confluent-kafka", OPENTELEMETRY_CONFLUENT),
    Tracer("OpenTelemetry", f"{CONTRIB}aiokafka", "aiokafka", OPENTELEMETRY_AIOKAFKA),
    Tracer("OpenTelemetry", f"{CONTRIB}kafka-python", "kafka-python", OPENTELEMETRY_KAFKA_PYTHON),
    Tracer("ddtrace", "ddtrace", "confluent-kafka", DDTRACE_CONFLUENT),
    Tracer("ddtrace", "ddtrace", "aiokafka", DDTRACE_AIOKAFKA),
    Tracer("New Relic", "newrelic", "confluent-kafka", NEW_RELIC),
)


def run_tests(checkout: Path, client: str, with_facade: bool) -> Results:
    """Run OpenTelemetry's tests of one instrumentation with the facade or without it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(checkout / "instrumentation" / f"{CONTRIB}{client}" / "tests", folder / "tests")
        log = f"tests-{client}-{'kcodec' if with_facade else 'own'}.log"
        facade = INSTALLS[client] if with_facade else None
        return TRACERS.run_tests(folder, ["tests", "--timeout=60"], facade, {}, log)


def main() -> int:
    """Run the programs, and the tests of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="a checkout of opentelemetry-python-contrib")
    parser.add_argument("--results", type=Path, help="the folder into which the report of the tests is written")
    options = parser.parse_args()
    is_good = True
    for tracer in PROGRAMS:
        is_good = tracer.run() and is_good
    if options.checkout is not None:
        report = []
        for client in INSTALLS:
            what, original = f"tests of {CONTRIB}{client}", f"{client} {TRACERS.version_of(client)}"
            run = partial(run_tests, options.checkout.resolve(), client)
            lines, is_equal = compare(what, original, run, KNOWN)
            report += lines
            is_good = is_good and is_equal
        print("\n".join(report))
        if options.results is not None:
            ran = command_line("tests/prove/prove_instrumentation.py", ["--checkout", "CHECKOUT"]).strip()
            (options.results / "instrumentation.txt").write_text("\n".join([ran, *report, ""]), "utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
