# SPDX-License-Identifier: Apache-2.0
"""The cold start: CPU of a Python that imports Producer, Consumer and Admin, for kcodec and other clients.

    python benchmarks/bench_import.py [--rounds 21] [--wheel FILE | --editable] [--json FILE]

Each slice is a new interpreter, and its CPU is user and system time of the whole process. `python -c pass` is measured
as well, to be subtracted. --wheel installs a wheel (`make wheel` builds one) and the other clients into a new virtual
environment, as a user does, and measures there. Without it kcodec is imported from a copy of the checkout with
bytecode; --editable imports the checkout itself, without bytecode if PYTHONDONTWRITEBYTECODE is set. The other rows of
kcodec create a client, too, which imports the network and what that client needs, and connects to no broker.

The bar is 75 ms for `from kcodec.client import Producer, Consumer, Admin`. The exit code is 0 if it is missed.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import measure
from measure import Bar

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kcodec"
BAR_MS = 75.0
RESULTS = Path(__file__).resolve().parent / "results" / "import.json"
PEERS = ("confluent-kafka", "aiokafka")
UNUSED = "bootstrap_servers='127.0.0.1:1'"
PROGRAMS = {
    "python": "pass",
    "kcodec": "from kcodec.client import Producer, Consumer, Admin",
    "confluent-kafka": (
        "from confluent_kafka import Producer, Consumer\nfrom confluent_kafka.admin import AdminClient as Admin"
    ),
    "aiokafka": (
        "from aiokafka import AIOKafkaProducer, AIOKafkaConsumer\nfrom aiokafka.admin import AIOKafkaAdminClient"
    ),
    "kcodec, a producer": f"from kcodec.client import Producer\nProducer({UNUSED}).close()",
    "kcodec, a consumer": f"from kcodec.client import Consumer\nConsumer({UNUSED}, group_id='g').close()",
    "kcodec, an admin": f"from kcodec.client import Admin\nAdmin({UNUSED}).close()",
}


def cpu_ms(python: str, program: str, environment: dict[str, str]) -> dict[str, float]:
    """Milliseconds of CPU of a new interpreter that runs the program."""
    process = os.posix_spawn(python, [python, "-c", program], environment)
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"the program failed: {program}")
    return {"cpu": (used.ru_utime + used.ru_stime) * 1000}


def copied(folder: Path) -> tuple[str, dict[str, str]]:
    """The interpreter and the environment in which kcodec is imported from a copy with bytecode."""
    shutil.copytree(SOURCE, folder / "kcodec", ignore=shutil.ignore_patterns("*.pyx", "*.c", "__pycache__"))
    compileall.compile_dir(folder, quiet=1)
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return sys.executable, {**os.environ, "PYTHONPATH": paths}


def installed(wheel: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """The interpreter of a new virtual environment with a wheel and the other clients, and its environment."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    peers = [f"{name}=={importlib.metadata.version(name)}" for name in PEERS]
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel), *peers], check=True
    )
    return python, {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def measured(rounds: int, python: str, environment: dict[str, str]) -> list[measure.Row]:
    """The rows: kcodec and its bar, kcodec compared with each other client, and each program by itself."""
    slices = {name: functools.partial(cpu_ms, python, program, environment) for name, program in PROGRAMS.items()}
    found = measure.take_turns(slices, rounds, warm_up=1)
    what, unit = "import Producer, Consumer and Admin", "ms"
    rows = [measure.compare(found, "cpu", "kcodec", case=what, unit=unit, bar=Bar(BAR_MS))]
    rows += [measure.compare(found, "cpu", "kcodec", peer, case=what, unit=unit) for peer in PEERS]
    rows += [measure.compare(found, "cpu", peer, case=what, unit=unit) for peer in PEERS]
    rows.append(measure.compare(found, "cpu", "python", case="start of the interpreter", unit=unit))
    for name in ("kcodec, a producer", "kcodec, a consumer", "kcodec, an admin"):
        rows.append(measure.compare(found, "cpu", name, case="import and create a client", unit=unit))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="measured runs of each program (default: %(default)s)")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="install this wheel into a new environment")
    parser.add_argument("--editable", action="store_true", help="import the checkout itself")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"such as {RESULTS}")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be above 0")
    if given.wheel is not None and (given.editable or not given.wheel.is_file()):
        parser.error(f"--wheel must be a file, without --editable, got {given.wheel}; `make wheel` builds one in dist/")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as name:
        if given.wheel is not None:
            way, (python, environment) = "an installed wheel", installed(given.wheel, Path(name))
        elif given.editable:
            way, python, environment = "the checkout", sys.executable, dict(os.environ)
        else:
            way, (python, environment) = "a copy of the checkout", copied(Path(name))
        rows = measured(given.rounds, python, environment)
    measure.print_comparisons(f"CPU of a process, kcodec from {way}", rows)
    measure.save(given.json, {"import": rows}, {"rounds": given.rounds, "kcodec_from": way}, load, unit="ms")


if __name__ == "__main__":
    main()
