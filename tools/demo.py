# SPDX-License-Identifier: Apache-2.0
"""`make demo`: install what the demo takes, step by step, and run each part of it as soon as it can run.

Usage: python tools/demo.py [--quick] [--kafka]

    --quick  leaves Spark and Java out
    --kafka  runs on an Apache Kafka instead of the embedded broker, and adds a copy by Spark whose workers are killed

It runs on the machine's own Python. The extension is compiled while pip downloads, and Spark is downloaded while the
parts without Spark run. Each step is printed with the time since the start; the last line has the megabytes downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ".venv"
MEGABYTES = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


class Step:
    """A target of the Makefile that is built on a separate thread. `wait` ends the demo if it failed."""

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
        """Wait for the end of the step. Print its duration, or its output if it failed."""
        self._thread.join()
        if self._status:
            print(self._output, file=sys.stderr)
            sys.exit(f"{self._what}: failed; `make {' '.join(self._targets)}` repeats it")
        say(f"{self._what}: done in {self._seconds:.1f} s")


def show(*parts: str) -> None:
    """Run parts of examples/demo.py. Exit if they fail."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(CACHE / "java"),
        "PYSPARK_PYTHON": str(ROOT / VENV / "bin" / "python"),
    }
    done = subprocess.run([ROOT / VENV / "bin" / "python", "examples/demo.py", *parts], cwd=ROOT, env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def downloaded(pip_log: Path) -> float:
    """Return the megabytes that pip downloaded, according to its log, and of the jars that Ivy has downloaded."""
    text = pip_log.read_text("utf-8", "replace") if pip_log.exists() else ""
    sizes = re.findall(r"Downloading \S+ \(([\d.]+) (bytes|kB|MB|GB)\)", text)
    ivy = sum(path.stat().st_size for path in (CACHE / "ivy").rglob("*") if path.is_file())
    return sum(float(size) * MEGABYTES[unit] for size, unit in sizes) + ivy * MEGABYTES["bytes"]


def main() -> None:
    """Run the steps; exit with 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without Spark and Java")
    parser.add_argument("--kafka", action="store_true", help="on an Apache Kafka; needs Java")
    options = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    pip_log = CACHE / "pip-demo.log"
    os.environ["PIP_LOG"] = str(pip_log)  # also used by pip within make, which appends to the log
    before = downloaded(pip_log)
    Step("a virtual environment with setuptools and Cython", f"{VENV}/.build-tools").wait()
    compiled = Step("the C extension is compiled", "extension")
    libraries = Step("pyarrow and the codecs are downloaded", f"{VENV}/.demo")
    libraries.wait()
    compiled.wait()
    Step("kcodec is installed into the virtual environment", f"{VENV}/.installed").wait()
    # Ivy, which fetches Kafka's jars, comes with Spark.
    needs_spark = options.kafka or not options.quick
    spark = Step("Spark is downloaded, meanwhile", f"{VENV}/.demo-spark") if needs_spark else None
    if spark is None:
        show("story", "captures", "copy")
    else:
        # Parts that need neither Java nor Spark run during the download.
        show(*(("captures",) if options.kafka else ("story", "captures", "copy")))
        spark.wait()
        Step("a Java", "java").wait()
        if options.kafka:
            Step("Kafka's jars are downloaded", "broker-jars").wait()
            show("--kafka", "story", "copy", *(() if options.quick else ("spark",)))
        else:
            show("spark")
    say(f"the end; {downloaded(pip_log) - before:.0f} MB were downloaded")
    print("\nNEXT  point kcodec.open() at a partition directory of yours; options of the Spark source: docs/spark.md")
    print(
        '      make quick (checks without Java)   make test (everything a change must pass)   make demo ARGS="--kafka"'
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the status of a program that Ctrl-C has ended
