# SPDX-License-Identifier: Apache-2.0
"""Quix Streams on kcodec.compat.confluent: a small program, and the tests of Quix Streams.

    python tests/prove/prove_quixstreams.py [--checkout PATH] [--client NAME] [--results FOLDER]

requirements/quixstreams.txt is installed into a virtual environment of its own, as Quix Streams needs confluent-kafka
below 2.12. The program counts words with a state and exactly-once processing, with install(); librdkafka must run
no thread. PATH is a checkout of the repository of Quix Streams at the tag of the installed version: its tests run on
embedded brokers, first with confluent-kafka's own clients and then with the facade. Only the fixtures that start
containers are replaced. `--client confluent` or `--client kcodec` runs the tests with one of the clients, and compares
them with the last run with the other; `none` compares the last runs. A test that passes with the former only is an
error, unless KNOWN has its reason.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from framework_tests import Framework, Results, command_line, compare
from original_clients import FOUND_LIBRDKAFKA, INSTALLS, ORIGINAL_FOUND

from kcodec.broker import Broker

QUIX = Framework("quixstreams", "Quix Streams")
INSTALL = INSTALLS["confluent-kafka"]
#: Their fixtures start containers with the package testcontainers. The second broker is for their source from Kafka.
CONFTEST = """
import itertools as _itertools
import os as _os

import testcontainers.postgres as _postgres

_FIRST, _SECOND = _os.environ["BROKERS"].split(",")
_ADDRESSES = _itertools.chain([_FIRST], _itertools.repeat(_SECOND))


@pytest.fixture(scope="session")
def kafka_container_factory():
    def factory():
        address = next(_ADDRESSES)
        yield KafkaContainer(broker_address=address, internal_broker_address=address)

    return factory


@pytest.fixture(scope="session")
def schema_registry_container():
    pytest.skip("needs Schema Registry")


def _no_container(*given, **named):
    pytest.skip("needs a container with PostgreSQL")


_postgres.PostgresContainer.__init__ = _no_container
"""
#: Follows the definition of found_original().
PROGRAM = """
import json
import tempfile

from confluent_kafka import Consumer, Producer
from quixstreams import Application

address, words = sys.argv[1], "to be or not to be".split()
originals = []
producer = Producer({"bootstrap.servers": address})
for word in words:
    producer.produce("words", json.dumps({"word": word}).encode(), word.encode())
assert producer.flush(30) == 0
application = Application(
    broker_address=address,
    consumer_group="counters",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    state_dir=tempfile.mkdtemp(),
)
frame = application.dataframe(application.topic("words"))


def count(row, state):
    originals.append(found_original())
    state.set("count", state.get("count", 0) + 1)
    return {"count": state.get("count")}


frame.apply(count, stateful=True).to_topic(application.topic("counts"))
application.run(count=len(words), timeout=60)

consumer = Consumer(
    {
        "bootstrap.servers": address,
        "group.id": "reader",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
)
consumer.subscribe(["counts"])
found = {}
for _ in words:
    message = consumer.poll(30)
    assert message is not None and message.error() is None, message
    found[message.key().decode()] = json.loads(message.value())["count"]
consumer.close()
assert found == {"to": 2, "be": 2, "or": 1, "not": 1}, found
sys.exit(7 if any(originals) else 0)
"""
SOURCE_MANAGER = "tests.test_quixstreams.test_sources.test_base.test_manager.TestSourceManager::"
#: Test that passes with confluent-kafka only, or with neither client -> the reason. No Kafka client takes part in them.
KNOWN: dict[str, str] = {
    **{
        f"{SOURCE_MANAGER}test_raise_for_error[{is_pickled}-{when}]": (
            "waits one second for the start of a process; fails with both clients on a busy machine"
        )
        for is_pickled in (True, False)
        for when in ("run-0", "cleanup-0", "stop--9")
    },
    f"{SOURCE_MANAGER}test_is_alives_kill_source": (
        "expects that a killed process has ended after 10 ms; may fail on a busy machine"
    ),
}
LOGS = {False: "tests-confluent.log", True: "tests-kcodec.log"}


def run_tests(checkout: Path, select: str | None = None, *, with_facade: bool) -> Results:
    """Run the tests of Quix Streams with the facade or without it."""
    with tempfile.TemporaryDirectory() as name, Broker(node_id=0) as first, Broker(node_id=0) as second:
        folder = Path(name)
        shutil.copytree(checkout / "tests", folder / "tests")
        shutil.copy(checkout / "pyproject.toml", folder)
        with (folder / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
            conftest.write(CONFTEST)
        # Most of the time they wait. Their options for the console would write every line of their logs.
        arguments = ["tests", "--timeout=60", "-n", "4", "-o", "log_cli=false", *(["-k", select] if select else [])]
        variables = {"BROKERS": f"{first.bootstrap_servers},{second.bootstrap_servers}"}
        return QUIX.run_tests(folder, arguments, INSTALL if with_facade else None, variables, LOGS[with_facade])


def main() -> int:
    """Run the program, and the tests of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="the repository of Quix Streams at the tag of its version")
    parser.add_argument("--client", choices=["confluent", "kcodec", "none"], help="run only with this client")
    parser.add_argument("--results", type=Path, help="the folder into which the report of the tests is written")
    options = parser.parse_args()
    what = "a program of Quix Streams with confluent-kafka"
    is_found = QUIX.run_program(FOUND_LIBRDKAFKA + PROGRAM, f"{what} finds it", ORIGINAL_FOUND)
    is_good = QUIX.run_program(INSTALL + FOUND_LIBRDKAFKA + PROGRAM, f"{what} on the facade") and is_found
    if options.checkout is not None:
        versions = {name: QUIX.version_of(name) for name in ("quixstreams", "confluent-kafka")}
        what = f"tests of Quix Streams {versions['quixstreams']}, embedded broker"
        client = f"confluent-kafka {versions['confluent-kafka']}"
        checkout = options.checkout.resolve()

        def results(with_facade: bool) -> Results:
            name = "kcodec" if with_facade else "confluent"
            if options.client in (None, name):
                return run_tests(checkout, with_facade=with_facade)
            return QUIX.stored(LOGS[with_facade])

        lines, is_equal = compare(what, client, results, KNOWN)
        is_good = is_good and is_equal
        print("\n".join(lines))
        if options.results is not None:
            given = ["--checkout", "CHECKOUT", *(["--client", options.client] if options.client else [])]
            ran = command_line("tests/prove/prove_quixstreams.py", given).strip()
            (options.results / "quixstreams.txt").write_text("\n".join([ran, *lines, ""]), "utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
