# SPDX-License-Identifier: Apache-2.0
"""FastStream on kcodec.compat.aiokafka: a small program, and FastStream's own tests of its aiokafka broker.

    python tests/prove/prove_faststream.py [--checkout PATH] [--write FILE]

requirements/faststream.txt is installed into a virtual environment of its own. The program subscribes, publishes a
reply for each message and publishes a batch, with install(clients=True); aiokafka's own client must open no connection.
PATH is a checkout of FastStream's repository at the installed version: its tests/brokers/kafka then run on the embedded
broker, first with aiokafka's own client and then with the facade. A test that passes with the former only is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

from kcodec.broker import Broker

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".cache" / "faststream"
REQUIREMENTS = ROOT / "requirements" / "faststream.txt"
SECONDS = 900.0
#: FastStream's tests use this address.
PORT = 9092
INSTALL = "import kcodec.compat.aiokafka\n\nkcodec.compat.aiokafka.install(clients=True)\n"
#: It imports FastStream's brokers for other systems.
LEFT_OUT = "test_misconfigure.py"
PROGRAM = """
import asyncio
import sys

import kcodec.compat.aiokafka

kcodec.compat.aiokafka.install(clients=True)

import aiokafka.conn
from faststream.kafka import KafkaBroker


def refuse(*given, **named):
    raise SystemExit("aiokafka's own client opens a connection")


aiokafka.conn.AIOKafkaConnection.__init__ = refuse
broker = KafkaBroker(sys.argv[1])
replies, batches, done = [], [], asyncio.Event()


@broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
@broker.publisher("replies")
async def bill(order: dict) -> dict:
    return {"paid": order["amount"] * 2}


@broker.subscriber("replies", auto_offset_reset="earliest")
async def note(reply: dict) -> None:
    replies.append(reply["paid"])
    if len(replies) == 5 and batches:
        done.set()


@broker.subscriber("many", batch=True, auto_offset_reset="earliest")
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


asyncio.run(main())
"""


def python() -> Path:
    """Return the Python of the virtual environment, which is created if requirements/faststream.txt is newer."""
    found, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    if not stamp.exists() or stamp.stat().st_mtime < REQUIREMENTS.stat().st_mtime:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        options = ["--quiet", "--require-hashes", "--no-deps", "--requirement", str(REQUIREMENTS)]
        subprocess.run([found, "-m", "pip", "install", *options], check=True)
        stamp.touch()
    return found


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that finds kcodec."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *map(str, folders)])}


def run_program() -> bool:
    """Run the small program on the embedded broker."""
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM, "utf-8")
        command = [str(python()), str(path), broker.bootstrap_servers]
        done = subprocess.run(command, env=environment(), timeout=120, check=False)
    print(f"a program of FastStream on the facade: {'failed' if done.returncode else 'passed'}", flush=True)
    return done.returncode == 0


def run_tests(checkout: Path, *, with_facade: bool) -> dict[str, str]:
    """Run FastStream's tests; return "passed", "failed" or "skipped" by name."""
    with tempfile.TemporaryDirectory() as name, Broker(port=PORT):
        folder = Path(name)
        shutil.copytree(checkout / "tests", folder / "tests")
        shutil.copy(checkout / "pyproject.toml", folder)
        (folder / "install_facade.py").write_text(INSTALL, "utf-8")
        report = folder / "report.xml"
        command = [str(python()), "-m", "pytest", "tests/brokers/kafka", "-q", "-m", "kafka", "-p", "no:cacheprovider"]
        command += ["--timeout=60", f"--junitxml={report}", f"--ignore=tests/brokers/kafka/{LEFT_OUT}"]
        command += ["-p", "install_facade"] if with_facade else []
        log = ENVIRONMENT / f"tests-{'kcodec' if with_facade else 'aiokafka'}.log"
        with log.open("w", encoding="utf-8") as output:
            subprocess.run(
                command,
                cwd=folder,
                env=environment(folder),
                timeout=SECONDS,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not report.exists():
            raise SystemExit(f"no test of FastStream ran; see {log}")
        return results(report)


def results(report: Path) -> dict[str, str]:
    """Return the results of a report of pytest."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        status = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = status
    return found


def compare(checkout: Path) -> tuple[list[str], bool]:
    """Run the tests with both clients; return the lines of the report, and whether they pass alike."""
    lines, found = [], {}
    for name in ("aiokafka", "kcodec"):
        found[name] = one = run_tests(checkout, with_facade=name == "kcodec")
        counts = ", ".join(f"{list(one.values()).count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
        lines.append(f"FastStream's tests/brokers/kafka, {name} client, embedded broker: {counts}")
    passed = sorted(name for name, status in found["aiokafka"].items() if status == "passed")
    lost = [name for name in passed if found["kcodec"].get(name) != "passed"]
    lines += [f"  only with aiokafka: {name}" for name in lost]
    lines += [f"  fails with both: {name}" for name, status in found["aiokafka"].items() if status == "failed"]
    lines.append(f"  left out: {LEFT_OUT}, which imports FastStream's brokers for other systems")
    return lines, not lost


def main() -> int:
    """Run the program, and the tests of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="FastStream's repository at the tag of the installed version")
    parser.add_argument("--write", type=Path, help="write the report of the tests to a file")
    options = parser.parse_args()
    is_good = run_program()
    if options.checkout is not None:
        lines, is_equal = compare(options.checkout.resolve())
        is_good = is_good and is_equal
        print("\n".join(lines))
        if options.write is not None:
            options.write.write_text("\n".join([*lines, ""]), "utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
