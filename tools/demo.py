# SPDX-License-Identifier: Apache-2.0
"""`make demo`: install what the demo takes, step by step, and run each part of it as soon as it can run.

Usage: python tools/demo.py [--quick] [--kafka]

    --quick  leaves Spark and Java out
    --kafka  adds a copy on a real Apache Kafka whose processes are killed

It runs on the machine's own Python. The extension is compiled while pip downloads, and Spark is downloaded while
records are shown. Each step is printed with the time since the start; the last line has the megabytes downloaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ".venv"
BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


class Step:
    """A target of the Makefile that is made on a thread of its own; `wait` ends the demo if it failed."""

    def __init__(self, what: str, *targets: str) -> None:
        self._what = what
        self._targets = targets
        self._status = 0
        self._output = ""
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        say(f"{what} ...")
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        command = [os.environ.get("MAKE", "make"), "--no-print-directory", *self._targets]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._status, self._output, self._seconds = done.returncode, done.stdout, time.monotonic() - began

    def wait(self) -> None:
        """Wait for its end. Print what it took, or its output if it failed."""
        self._thread.join()
        if self._status:
            print(self._output, file=sys.stderr)
            sys.exit(f"{self._what}: failed; `make {' '.join(self._targets)}` repeats it")
        say(f"{self._what}: done in {self._seconds:.1f} s")


def show(*parts: str) -> None:
    """Run parts of examples/demo.py; their failure is ours."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(CACHE / "java"),
        "PYSPARK_PYTHON": str(ROOT / VENV / "bin" / "python"),
    }
    done = subprocess.run([ROOT / VENV / "bin" / "python", "examples/demo.py", *parts], cwd=ROOT, env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def downloaded() -> int:
    """Bytes in the caches of pip and Ivy: what they gain is what was downloaded."""
    folders = [Path(os.environ.get("PIP_CACHE_DIR", CACHE / "pip")), CACHE / "ivy"]
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Run the steps; exit with 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without Spark and Java")
    parser.add_argument("--kafka", action="store_true", help="with a copy on a real Kafka under kills; takes Java")
    options = parser.parse_args()
    before = downloaded()
    Step("a virtual environment with setuptools and Cython", f"{VENV}/.build-tools").wait()
    compiled = Step("the C extension is compiled", "extension")
    libraries = Step("pyarrow and the codecs are downloaded", f"{VENV}/.demo")
    libraries.wait()
    compiled.wait()
    Step("kcodec is installed into the virtual environment", f"{VENV}/.installed").wait()
    # Ivy, which fetches Kafka's jars, comes with Spark.
    needs_spark = options.kafka or not options.quick
    spark = Step("Spark is downloaded, meanwhile", f"{VENV}/.demo-spark") if needs_spark else None
    say("records and Arrow, out of the bytes of a real broker")
    show("records")
    say("records were shown")
    if spark is not None:
        spark.wait()
        Step("a Java for Spark", "java").wait()
    if not options.quick:
        show("spark")
    if options.kafka:
        Step("Kafka's jars are downloaded", "broker-jars").wait()
        show("kafka")
    say(f"the end; {(downloaded() - before) / 1e6:.0f} MB were downloaded")
    print("\nNEXT  point kcodec.open() at a partition directory of yours; options of the Spark source: docs/spark.md")
    print(
        '      make quick (checks without Java)   make test (everything a change must pass)   make demo ARGS="--kafka"'
    )


if __name__ == "__main__":
    main()
