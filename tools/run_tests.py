# SPDX-License-Identifier: Apache-2.0
"""Run the tests in two passes: most in parallel workers, then those that need a quiet machine, two at a time.

    python tools/run_tests.py [ARGUMENT OF PYTEST ...]

tests/support/parallel_tests.py assigns tests to passes. The second pass runs even if the first one failed, unless it
was interrupted. The exit status is that of the first pass that failed. A pass without tests is not a failure if the
other pass has tests. The last line has the totals of both passes, in pytest's format.

Tests of real brokers depend on time, and one of 20,000 may fail because the machine was busy. If a run of all tests
has at most MOST_REPEATED failures, these tests run once more, one after the other with nothing else. If one fails
again, the run has failed. Otherwise they are named as UNSTABLE, below their first failures, and count as passed.
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
from typing import Any

#: A worker may start brokers and Spark. It waits for more than half of the time, so that two keep a processor busy.
WORKERS_PER_PROCESSOR, MOST_WORKERS = 2, 4
#: Tests of time: one for each processor, which it shares only with the broker that it waits for.
MOST_QUIET_WORKERS = 2
FAILED, INTERRUPTED, NO_TESTS = 1, 2, 5
#: More failures than this have a common cause, which is not the time.
MOST_REPEATED = 3
#: The outcomes in pytest's order and spelling.
OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")


def main(arguments: Sequence[str]) -> int:
    """Run both passes and return the exit status."""
    began = time.monotonic()
    processors = os.cpu_count() or 1
    parallel, quiet = min(WORKERS_PER_PROCESSOR * processors, MOST_WORKERS), min(processors, MOST_QUIET_WORKERS)
    passes = {"parallel": parallel, "quiet": quiet}
    statuses: list[int] = []
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for name, workers in passes.items():
        split = ("-n", str(workers), "--dist", "loadgroup")
        status, results = run_pytest([*split, *arguments], {"KCODEC_TESTS": name})
        statuses.append(status)
        counts.update(results["counts"])
        failed += dict.fromkeys(results["failed"])
        if status == INTERRUPTED:
            break
    if not arguments and failed and len(failed) <= MOST_REPEATED and {*statuses} <= {0, FAILED, NO_TESTS}:
        print(f"{len(failed)} failed; once more, alone:", flush=True)
        status, _ = run_pytest(failed, {})
        if status == 0:
            for test in failed:
                print(f"UNSTABLE {test}: passed alone, after the failure that is shown above")
            counts["passed"] += len(failed)
            counts["failed"] = counts["error"] = 0
            statuses = [0]
    counts.pop("deselected", None)  # each pass deselects the tests of the other
    print(closing_line(counts, time.monotonic() - began))
    return exit_status(statuses)


def run_pytest(arguments: Sequence[str], variables: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Run pytest. Return its exit status, the numbers of its outcomes and the tests that failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        environment = {**os.environ, **variables, "KCODEC_TEST_RESULTS": str(results)}
        # Without the cache, each worker and each process of a test would compile all its modules itself.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        status = subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode
        if not results.is_file():
            return status, {"counts": {}, "failed": []}
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return status, found


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
