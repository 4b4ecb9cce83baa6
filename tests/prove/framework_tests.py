# SPDX-License-Identifier: Apache-2.0
"""Frameworks in virtual environments of their own, and their tests with two Kafka clients: what the proofs share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

from peer_clients import FAILED, PASSED, SKIPPED, Result, junit_results  # noqa: E402
from peer_reports import command_line as command_line  # noqa: E402

from kcodec.broker import Broker  # noqa: E402

PROGRAM_SECONDS = 120.0
TESTS_SECONDS = 1800.0
#: Test -> result.
Results = dict[str, Result]


@dataclass(frozen=True)
class Framework:
    """A framework. name: of its file in requirements/ and of its virtual environment in .cache/; title: for people."""

    name: str
    title: str

    @property
    def folder(self) -> Path:
        """The virtual environment."""
        return ROOT / ".cache" / self.name

    def python(self) -> Path:
        """Return the Python of the virtual environment, which is created if the file of requirements is newer."""
        found, stamp = self.folder / "bin" / "python", self.folder / "installed"
        requirements = ROOT / "requirements" / f"{self.name}.txt"
        if not stamp.exists() or stamp.stat().st_mtime < requirements.stat().st_mtime:
            venv.create(self.folder, with_pip=True, clear=True)
            options = ["--quiet", "--require-hashes", "--no-deps", "--requirement", str(requirements)]
            subprocess.run([found, "-m", "pip", "install", *options], check=True)
            stamp.touch()
        return found

    def version_of(self, package: str) -> str:
        """Return the installed version of a package."""
        program = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
        done = subprocess.run([self.python(), "-c", program], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def run_program(self, text: str, what: str, status: int = 0) -> bool:
        """Run a program with the address of an embedded broker; print and return whether it exits as expected."""
        with tempfile.TemporaryDirectory() as name, Broker() as broker:
            path = Path(name) / "program.py"
            path.write_text(text, "utf-8")
            command = [str(self.python()), str(path), broker.bootstrap_servers]
            found = run_group(command, Path(name), environment(), PROGRAM_SECONDS, None)
        print(f"{what}: {'passed' if found == status else f'failed, exit status {found}'}", flush=True)
        return found == status

    def run_tests(
        self, folder: Path, arguments: Sequence[str], facade: str | None, variables: Mapping[str, str], log: str
    ) -> Results:
        """Run tests that were copied into a folder; return the results. Raise SystemExit if none ran.

        facade: Statements that put kcodec behind the client's classes, or None. log: name of the file of the output.
        """
        plugins = []
        if facade is not None:
            (folder / "install_facade.py").write_text(facade, "utf-8")
            plugins = ["-p", "install_facade"]
        report = folder / "report.xml"
        command = [str(self.python()), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        output = self.folder / log
        run_group([*command, *plugins, *arguments], folder, {**environment(folder), **variables}, TESTS_SECONDS, output)
        if not report.exists():
            raise SystemExit(f"no test of {self.title} ran, or not all of them in {TESTS_SECONDS:.0f} s; see {output}")
        shutil.copy(report, output.with_suffix(".xml"))
        return self.stored(log)

    def stored(self, log: str) -> Results:
        """Return the results of the last run with this name. Raise SystemExit if there was none."""
        report = (self.folder / log).with_suffix(".xml")
        if not report.exists():
            raise SystemExit(f"{report} is missing: run the tests of {self.title} with this client first")
        return {result.test: result for result in junit_results(report)}


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that finds kcodec."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *map(str, folders)])}


def run_group(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], limit: float, output: Path | None
) -> int:
    """Run a command with a time limit, and stop every process that it has left. Return its status, -1 at the limit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes are stopped then, too
    with contextlib.ExitStack() as stack:
        file = None if output is None else stack.enter_context(output.open("w", encoding="utf-8"))
        process = subprocess.Popen(
            command, cwd=folder, env=dict(variables), stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def compare(
    what: str, original: str, run: Callable[[bool], Results], known: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Run tests with the original client and with kcodec; return the lines of a report, and if no loss is unexplained.

    run:   Runs the tests with the facade or without it.
    known: Name of a test that passes with the original client only, or with neither -> the reason.
    """
    lines, found = [], {}
    for name in (original, "kcodec"):
        found[name] = one = run(name == "kcodec")
        counts = Counter(result.status for result in one.values())
        totals = ", ".join(f"{counts[status]} {status}" for status in (PASSED, FAILED, SKIPPED))
        lines.append(f"{what}, {name} client: {totals}")
        print(lines[-1], flush=True)
    before, after = found[original], found["kcodec"]
    is_good = True
    for test, result in sorted(before.items()):
        other = after.get(test, Result(test, FAILED, "did not run"))
        if result.status == PASSED and other.status != PASSED:
            reason = known.get(test)
            is_good = is_good and reason is not None
            lines.append(f"  passes only with {original}: {test}: {reason or 'UNEXPECTED: ' + other.message}")
        elif result.status != PASSED and other.status == PASSED:
            lines.append(f"  passes only with kcodec: {test}: {result.status} with {original}, {result.message}")
        elif result.status == FAILED:
            lines.append(f"  fails with both: {test}: {known.get(test) or result.message}")
    reasons = Counter(result.message for result in before.values() if result.status == SKIPPED)
    lines += [f"  skipped with both: {number}, {reason}" for reason, number in sorted(reasons.items())]
    return lines, is_good
