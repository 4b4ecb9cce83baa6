# SPDX-License-Identifier: Apache-2.0
"""Run aiokafka's and kafka-python's own record tests with and without the adapters of kcodec.compat.

    python tools/peer_record_tests.py aiokafka=PATH kafka-python=PATH [--write FILE]

PATH is a checkout of the client's repository at a tag near the installed version (aiokafka v0.14.0, kafka-python
3.0.x). Its tests are copied into a temporary folder and run against the installed package, each client in a separate
process. KNOWN lists the tests that are known to fail with the adapter, with the reason. The exit status is 1 if any
other test passes without the adapter and fails with it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600


@dataclass(frozen=True)
class Peer:
    """A client: the module of its adapter, and the path of its tests."""

    adapter: str
    tests: str


PEERS = {
    "aiokafka": Peer("kcodec.compat.aiokafka", "tests/record"),
    "kafka-python": Peer("kcodec.compat.kafka_python", "test/record"),
}
# Beginning of a test's name -> why it is right that the test fails with the adapter.
KNOWN = {
    "test_default_records.py::test_unavailable_codec": (
        "expects an error where the client's own package for a codec is not installed; kcodec brings its own"
    ),
    "test_legacy_records.py::test_unavailable_codec": (
        "the same for reading magic 0 and 1; writing them stays with the client's own builder"
    ),
}
PLUGIN = "import {module} as adapter\n\nadapter.install()\n"
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) (?:\[\d+\] )?(\S+)")


def outcomes(folder: Path, peer: Peer, with_adapter: bool) -> dict[str, str]:
    """Return the outcome of each test: PASSED, FAILED or ERROR. Skipped tests are left out."""
    plugin = folder / "install_kcodec.py"
    plugin.write_text(PLUGIN.format(module=peer.adapter), "utf-8")
    # --noconftest: their conftest.py needs a broker in a container, and these tests do not use its fixtures.
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--noconftest", "-p", "no:cacheprovider", "--tb=no"]
    command += ["-W", "ignore", *(["-p", plugin.stem] if with_adapter else []), peer.tests]
    paths = [str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    found = {}
    for line in done.stdout.splitlines():
        match = OUTCOME.match(line)
        if match and match[1] != "SKIPPED":
            found[match[2].removeprefix(f"{peer.tests}/")] = match[1]
    if not found:
        raise SystemExit(f"no test of {peer.tests} ran:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def reason(test: str) -> str | None:
    """Return why a test is known to fail with the adapter."""
    return next((why for name, why in KNOWN.items() if test.startswith(name)), None)


def judged(name: str, checkout: Path) -> tuple[list[str], bool]:
    """Return the lines of the report for one client, and whether its results are as expected."""
    peer = PEERS[name]
    if not (checkout / peer.tests).is_dir():
        raise SystemExit(f"{checkout} holds no {peer.tests}: give the checkout of {name}'s repository")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        top = Path(peer.tests).parts[0]
        # Only the tests are copied, not the package next to them, so that the installed package is used.
        shutil.copytree(checkout / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))
        without, ours = (outcomes(folder, peer, with_adapter) for with_adapter in (False, True))
    lines = [f"{name} {importlib.metadata.version(name)}"]
    for title, found in (("without kcodec", without), ("with kcodec", ours)):
        counts = Counter(found.values())
        lines.append(f"  {title:<15} {counts['PASSED']:>4} passed {counts['FAILED'] + counts['ERROR']:>4} failed")
    worse = sorted(test for test, outcome in ours.items() if outcome != "PASSED" and without.get(test) == "PASSED")
    both = sorted(test for test, outcome in ours.items() if outcome != "PASSED" and without.get(test) != "PASSED")
    gone = sorted(set(without) - set(ours))
    lines += [f"  differs: {test}\n           {reason(test) or 'UNEXPECTED'}" for test in worse]
    lines += [f"  fails either way: {test}" for test in both]
    lines += [f"  UNEXPECTED: {test} did not run" for test in gone]
    return lines, not gone and all(reason(test) for test in worse)


def main() -> int:
    """Print the report, and write it to a file if requested."""
    parser = argparse.ArgumentParser(description="other clients' own record tests on kcodec's adapters")
    parser.add_argument("checkouts", nargs="+", metavar="CLIENT=PATH", help=f"{' or '.join(PEERS)}, and its checkout")
    parser.add_argument("--write", type=Path, help="write the report into a file, too")
    arguments = parser.parse_args()
    lines: list[str] = []
    fine = True
    for given in arguments.checkouts:
        name, _, path = given.partition("=")
        if name not in PEERS or not path:
            parser.error(f"{given!r} is no CLIENT=PATH; clients are {', '.join(PEERS)}")
        rows, good = judged(name, Path(path))
        lines += [*rows, ""]
        fine = fine and good
    text = "\n".join(lines)
    print(text, end="")
    if arguments.write:
        arguments.write.write_text(text, "utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
