# SPDX-License-Identifier: Apache-2.0
"""Run the tests in two passes: most in parallel workers, then those that need a quiet machine, two at a time.

    python tools/run_tests.py [ARGUMENT OF PYTEST ...]

tests/support/parallel_tests.py assigns tests to passes. The second pass runs even if the first one failed, unless it
was interrupted. The exit status is that of the first pass that failed. A pass without tests is not a failure if the
other pass has tests. The last line has the totals of both passes, in pytest's format.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

#: Each worker may start a broker and Spark, for which it waits half of the time.
MOST_WORKERS = 4
#: Tests of time: one for each processor, which it shares only with the broker that it waits for.
MOST_QUIET_WORKERS = 2
INTERRUPTED, NO_TESTS = 2, 5
#: The outcomes in pytest's order and spelling.
OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")


def main(arguments: Sequence[str]) -> int:
    """Run both passes and return the exit status."""
    began = time.monotonic()
    processors = os.cpu_count() or 1
    passes = {"parallel": min(processors + 1, MOST_WORKERS), "quiet": min(processors, MOST_QUIET_WORKERS)}
    statuses: list[int] = []
    counts: Counter[str] = Counter()
    for name, workers in passes.items():
        with tempfile.TemporaryDirectory() as folder:
            counted = Path(folder, "counts")
            environment = {**os.environ, "KCODEC_TESTS": name, "KCODEC_TEST_COUNTS": str(counted)}
            # Without the cache, each worker and each process of a test would compile all its modules itself.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "loadgroup", *arguments]
            statuses.append(subprocess.run(command, env=environment, check=False).returncode)
            if counted.is_file():
                counts.update(json.loads(counted.read_text(encoding="utf-8")))
        if statuses[-1] == INTERRUPTED:
            break
    counts.pop("deselected", None)  # each pass deselects the tests of the other
    print(closing_line(counts, time.monotonic() - began))
    return exit_status(statuses)


def exit_status(statuses: Sequence[int]) -> int:
    """Return one exit status for all passes."""
    failed = [status for status in statuses if status not in (0, NO_TESTS)]
    return failed[0] if failed else min(statuses)


def closing_line(counts: Counter[str], seconds: float) -> str:
    """Return the outcomes of all passes as pytest writes those of one."""
    parts = [f"{counts[name]} {name}" for name in OUTCOMES if counts[name]] or ["no tests ran"]
    return f" {', '.join(parts)} in {seconds:.2f}s (both passes) ".center(80, "=")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
