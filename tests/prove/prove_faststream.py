# SPDX-License-Identifier: Apache-2.0
"""FastStream on kcodec.compat.aiokafka and kcodec.compat.confluent: small programs, and FastStream's own tests.

    python tests/prove/prove_faststream.py [--checkout PATH] [--only aiokafka|confluent] [--results FOLDER]

requirements/faststream.txt is installed into a virtual environment of its own. With each facade, a program subscribes,
publishes a reply for each message and publishes a batch; aiokafka must open no connection, and librdkafka run no
thread. PATH is a checkout of FastStream's repository at the installed version: its tests/brokers/kafka and
tests/brokers/confluent run on the embedded broker, first with the original client and then with the facade. A test that
passes with the former only is an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from framework_tests import Framework, Results, command_line, compare
from original_clients import FOUND_AIOKAFKA, FOUND_LIBRDKAFKA, INSTALLS, ORIGINAL_FOUND

from kcodec.broker import Broker

FASTSTREAM = Framework("faststream", "FastStream")
#: FastStream's tests use this address.
PORT = 9092
#: It imports FastStream's brokers for other systems.
LEFT_OUT = "test_misconfigure.py"
#: Follows the definition of found_original() and the import of FastStream's KafkaBroker.
PROGRAM = """
import asyncio

broker = KafkaBroker(sys.argv[1])
replies, batches, originals, done = [], [], [], asyncio.Event()


@broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
@broker.publisher("replies")
async def bill(order: dict) -> dict:
    originals.append(found_original())
    return {"paid": order["amount"] * 2}


@broker.subscriber("replies", group_id="replies", auto_offset_reset="earliest")
async def note(reply: dict) -> None:
    replies.append(reply["paid"])
    if len(replies) == 5 and len(batches) == 3:
        done.set()


@broker.subscriber("many", group_id="many", batch=True, auto_offset_reset="earliest")
async def note_many(found: list[int]) -> None:
    batches.extend(found)
    if len(replies) == 5 and len(batches) == 3:
        done.set()


async def main() -> None:
    async with broker:
        await broker.start()
        assert await broker.ping(5.0)
        await broker.publish_batch(1, 2, 3, topic="many")
        for amount in range(5):
            await broker.publish({"amount": amount}, "orders", key=b"k")
        await asyncio.wait_for(done.wait(), 30)
    assert replies == [0, 2, 4, 6, 8], replies
    assert batches == [1, 2, 3], batches
    if any(originals):
        raise SystemExit(7)


asyncio.run(main())
"""


@dataclass(frozen=True)
class Client:
    """A client that FastStream can use. found: defines found_original(); folder: of FastStream's tests with it; marker:
    of these tests, and the name of FastStream's module for the client."""

    name: str
    package: str
    found: str
    folder: str
    marker: str
    #: Name of a test that passes with the original client only -> the reason.
    known: dict[str, str] = field(default_factory=dict)

    def run_program(self) -> bool:
        """Run the program with the facade, and without it: then it must find the original client."""
        program = f"{self.found}from faststream.{self.marker} import KafkaBroker\n{PROGRAM}"
        what = f"a program of FastStream with {self.package}"
        is_found = FASTSTREAM.run_program(program, f"{what} finds it", ORIGINAL_FOUND)
        return FASTSTREAM.run_program(INSTALLS[self.package] + program, f"{what} on the facade") and is_found

    def run_tests(self, checkout: Path, *, with_facade: bool) -> Results:
        """Run FastStream's tests with the facade or without it."""
        with tempfile.TemporaryDirectory() as name, Broker(port=PORT):
            folder = Path(name)
            shutil.copytree(checkout / "tests", folder / "tests")
            shutil.copy(checkout / "pyproject.toml", folder)
            arguments = [self.folder, "-m", self.marker, "--timeout=60", f"--ignore={self.folder}/{LEFT_OUT}"]
            log = f"tests-{self.name}-{'kcodec' if with_facade else 'own'}.log"
            facade = INSTALLS[self.package] if with_facade else None
            return FASTSTREAM.run_tests(folder, arguments, facade, {}, log)

    def compare(self, checkout: Path) -> tuple[list[str], bool]:
        """Run the tests with both clients; return the lines of the report, and whether they pass alike."""
        what = f"{self.folder} of FastStream {FASTSTREAM.version_of('faststream')}, embedded broker"
        original = f"{self.package} {FASTSTREAM.version_of(self.package)}"
        lines, is_equal = compare(
            what, original, lambda with_facade: self.run_tests(checkout, with_facade=with_facade), self.known
        )
        return [*lines, f"  left out: {LEFT_OUT}, which imports FastStream's brokers for other systems"], is_equal


CLIENTS = {
    "aiokafka": Client(
        "aiokafka",
        "aiokafka",
        FOUND_AIOKAFKA,
        "tests/brokers/kafka",
        "kafka",
        {
            "tests.brokers.kafka.test_consume.TestConsume::test_concurrent_consume": (
                "stops the consumer after five sends, and expects that it has read two of the records by then; may fail"
                " on a busy machine"
            )
        },
    ),
    "confluent": Client(
        "confluent",
        "confluent-kafka",
        FOUND_LIBRDKAFKA,
        "tests/brokers/confluent",
        "confluent",
    ),
}


def main() -> int:
    """Run the programs, and the tests of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="FastStream's repository at the tag of the installed version")
    parser.add_argument("--only", choices=list(CLIENTS), help="one of the clients")
    parser.add_argument("--results", type=Path, help="the folder into which the reports of the tests are written")
    options = parser.parse_args()
    is_good = True
    for client in CLIENTS.values():
        if options.only not in (None, client.name):
            continue
        is_good = client.run_program() and is_good
        if options.checkout is not None:
            lines, is_equal = client.compare(options.checkout.resolve())
            is_good = is_good and is_equal
            print("\n".join(lines), flush=True)
            if options.results is not None:
                report = options.results / f"faststream-{client.name}.txt"
                given = ["--checkout", "CHECKOUT", "--only", client.name]
                ran = command_line("tests/prove/prove_faststream.py", given).strip()
                report.write_text("\n".join([ran, *lines, ""]), "utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
