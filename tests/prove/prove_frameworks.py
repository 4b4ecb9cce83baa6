# SPDX-License-Identifier: Apache-2.0
"""Frameworks on the facades of kcodec.compat: a program for each, and the tests of kombu's transport for Kafka.

    python tests/prove/prove_frameworks.py [--only NAME] [--kombu PATH] [--results FOLDER]

requirements/frameworks.txt is installed into a virtual environment of its own. A program of each framework (Celery,
streamz, bytewax, kstreams, taskiq-aio-kafka) runs on the embedded broker, first with the original client, which it must
find, and then with the facade. PATH is a checkout of kombu: its t/integration/test_kafka.py runs with both. A test
that passes with confluent-kafka only is an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from framework_tests import Framework, Results, command_line, compare
from original_clients import FOUND_AIOKAFKA, FOUND_LIBRDKAFKA, INSTALLS, ORIGINAL_FOUND

from kcodec.broker import Broker

FRAMEWORKS = Framework("frameworks", "the frameworks")
#: kombu's tests use this address.
PORT = 9092
WAIT_FOR = """
import time


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


"""
CELERY = """
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Connection

address, done = f"confluentkafka://{sys.argv[1]}", []
application = Celery("shop", broker=address, broker_transport_options={"wait_time_seconds": 1})


@application.task
def add(one, other):
    done.append(one + other)


with start_worker(application, pool="solo", perform_ping_check=False, shutdown_timeout=30):
    for number in range(5):
        add.delay(number, number)
    wait_for(lambda: len(done) == 5)
    is_original = found_original()
assert sorted(done) == [0, 2, 4, 6, 8], done
with Connection(address, transport_options={"wait_time_seconds": 5}) as connection:
    queue = connection.SimpleQueue("orders")
    queue.put({"amount": 1})
    message = queue.get(timeout=30)
    message.requeue()  # the group has no committed offset yet
    again = queue.get(timeout=30)
    again.ack()
    assert message.payload == again.payload == {"amount": 1}
    queue.close()
sys.exit(7 if is_original else 0)
"""
STREAMZ = """
import confluent_kafka
from streamz import Stream

producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1]})
for number in range(10):
    producer.produce("orders", b"%d" % number)
assert producer.flush(30) == 0
settings = {"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest"}
source = Stream.from_kafka_batched("orders", settings, poll_interval="0.2s", max_batch_size=4, asynchronous=False)
batches = source.sink_to_list()
source.start()
wait_for(lambda: sum(map(len, batches)) == 10)
is_original = found_original()
source.stop()
assert [value for batch in batches for value in batch] == [b"%d" % number for number in range(10)], batches
stream = Stream(asynchronous=False)
sink = stream.to_kafka("copies", {"bootstrap.servers": sys.argv[1]})
for number in range(3):
    stream.emit(b"%d" % number)
sink.flush()
consumer = confluent_kafka.Consumer({**settings, "group.id": "h"})
consumer.subscribe(["copies"])
found = [message.value() for message in consumer.consume(3, 30)]
consumer.close()
assert found == [b"0", b"1", b"2"], found
sys.exit(7 if is_original else 0)
"""
BYTEWAX = """
import confluent_kafka
from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, run_main

originals, copied = [], []
producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1]})
for topic in ("orders", "copies"):
    producer.produce(topic, b"0", b"k")
for number in range(1, 10):
    producer.produce("orders", b"%d" % number, b"k")
assert producer.flush(30) == 0


def copy(record):
    originals.append(found_original())
    return KafkaSinkMessage(record.key, record.value + b"!", headers=[("a", b"b")])


flow = Dataflow("copy")
source = KafkaSource([sys.argv[1]], ["orders"], tail=False, starting_offset=confluent_kafka.OFFSET_BEGINNING)
op.output("out", op.map("map", op.input("in", flow, source), copy), KafkaSink([sys.argv[1]], "copies"))
run_main(flow)
flow = Dataflow("read")
stream = kop.input("in", flow, brokers=[sys.argv[1]], topics=["copies"], tail=False, batch_size=3)
op.output("out", stream.oks, TestingSink(copied))
run_main(flow)
assert [one.value for one in copied] == [b"0", *(b"%d!" % number for number in range(10))], copied
assert copied[1].headers == [("a", b"b")] and copied[-1].offset == 10, copied
sys.exit(7 if any(originals) else 0)
"""
WAIT_FOR_ASYNC = """
async def wait_for(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


"""
KSTREAMS = """
import kstreams

engine = kstreams.create_engine(title="shop", backend=kstreams.backends.Kafka(bootstrap_servers=[sys.argv[1]]))
read, copied = [], []


@engine.stream("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
async def copy(record: kstreams.ConsumerRecord, stream: kstreams.Stream, send: kstreams.types.Send):
    read.append(record.value)
    await send("copies", value=record.value + b"!", headers={"a": "b"})
    await stream.commit()


@engine.stream("copies", group_id="h", auto_offset_reset="earliest")
async def note(record: kstreams.ConsumerRecord):
    copied.append((record.value, record.headers))


async def main():
    await engine.start()
    for number in range(3):
        metadata = await engine.send("orders", value=b"%d" % number, key="k")
        assert metadata.offset == number
    await wait_for(lambda: len(copied) == 3)
    await engine.stop()


asyncio.run(main())
assert read == [b"0", b"1", b"2"], read
assert copied == [(b"%d!" % number, (("a", b"b"),)) for number in range(3)], copied
sys.exit(7 if found_original() else 0)
"""
TASKIQ = """
from taskiq.receiver import Receiver
from taskiq_aio_kafka import AioKafkaBroker

broker, done = AioKafkaBroker(bootstrap_servers=sys.argv[1]), []


@broker.task
async def add(one: int, other: int) -> None:
    done.append(one + other)


async def main():
    broker.is_worker_process = True
    await broker.startup()
    receiver = Receiver(broker)

    async def work():
        async for message in broker.listen():
            await receiver.callback(message)

    worker = asyncio.create_task(work())
    await asyncio.sleep(2)  # a new group begins at the end of the topic
    for number in range(3):
        await add.kiq(number, number)
    await wait_for(lambda: len(done) == 3)
    worker.cancel()
    await broker.shutdown()


asyncio.run(main())
assert sorted(done) == [0, 2, 4], done
sys.exit(7 if found_original() else 0)
"""
#: Name of a package -> the package of the original client, and the program.
PROGRAMS = {
    "celery": ("confluent-kafka", FOUND_LIBRDKAFKA + WAIT_FOR + CELERY),
    "streamz": ("confluent-kafka", FOUND_LIBRDKAFKA + WAIT_FOR + STREAMZ),
    "bytewax": ("confluent-kafka", FOUND_LIBRDKAFKA + BYTEWAX),
    "kstreams": ("aiokafka", FOUND_AIOKAFKA + WAIT_FOR_ASYNC + KSTREAMS),
    "taskiq-aio-kafka": ("aiokafka", FOUND_AIOKAFKA + WAIT_FOR_ASYNC + TASKIQ),
}


def run_kombu_tests(checkout: Path, with_facade: bool) -> Results:
    """Run the tests of kombu's transport with the facade or without it."""
    with tempfile.TemporaryDirectory() as name, Broker(port=PORT):
        folder = Path(name)
        shutil.copytree(checkout / "t", folder / "t")
        arguments = ["t/integration/test_kafka.py", "--timeout=60", "-o", "python_classes=test_*"]
        log = f"tests-kombu-{'kcodec' if with_facade else 'own'}.log"
        return FRAMEWORKS.run_tests(folder, arguments, INSTALLS["confluent-kafka"] if with_facade else None, {}, log)


def main() -> int:
    """Run the programs, and the tests of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PROGRAMS), help="the program of one framework")
    parser.add_argument("--kombu", type=Path, help="a checkout of kombu")
    parser.add_argument("--results", type=Path, help="the folder into which the report of the tests is written")
    options = parser.parse_args()
    is_good = True
    for name, (client, program) in PROGRAMS.items():
        if options.only in (None, name):
            title = f"{name} {FRAMEWORKS.version_of(name)}"
            is_good = FRAMEWORKS.run_program(program, f"{title} with the original client", ORIGINAL_FOUND) and is_good
            is_good = FRAMEWORKS.run_program(INSTALLS[client] + program, f"{title} on the facade") and is_good
    if options.kombu is not None:
        checkout = options.kombu.resolve()
        installed = FRAMEWORKS.version_of("kombu")
        what = f"t/integration/test_kafka.py of a checkout of kombu, kombu {installed}, embedded broker"
        original = f"confluent-kafka {FRAMEWORKS.version_of('confluent-kafka')}"
        lines, is_equal = compare(what, original, lambda with_facade: run_kombu_tests(checkout, with_facade), {})
        is_good = is_good and is_equal
        print("\n".join(lines))
        if options.results is not None:
            ran = command_line("tests/prove/prove_frameworks.py", ["--kombu", "CHECKOUT"]).strip()
            (options.results / "kombu.txt").write_text("\n".join([ran, *lines, ""]), "utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
