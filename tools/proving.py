# SPDX-License-Identifier: Apache-2.0
"""Functions shared by the parts of tools/prove.py: running and judging a command, building the core."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".cache" / "prove-build"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
SECONDS_IN_A_PART = 4 * 3600


@dataclass
class Outcome:
    """The outcome of a part."""

    name: str
    status: str
    detail: str
    seconds: float = 0.0


@dataclass
class Done:
    """The result of a command: its exit status and the end of its output."""

    status: int
    output: str

    @property
    def last_line(self) -> str:
        """Last line that is not empty."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None, folder: Path = ROOT) -> Done:
    """Run a command with additional environment variables and return its result; its output is not shown.

    PYTHONPATH includes the folders of test helpers.
    """
    variables = {**os.environ, **(environment or {})}
    paths = [variables.get("PYTHONPATH", ""), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "prove")]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=SECONDS_IN_A_PART,
    )
    return Done(done.returncode, done.stdout)


def test_files(names: Sequence[str]) -> list[str]:
    """Return the paths of test modules by their file names. Raise FileNotFoundError for one that does not exist."""
    there = {path.name: str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [name for name in names if name not in there]
    if missing:
        raise FileNotFoundError(f"no test module below tests/ has the name {', '.join(missing)}")
    return [there[name] for name in names]


def judged(done: Done, detail: str | None = None) -> tuple[str, str]:
    """Return (status, detail) for a command that passed if its exit status is 0."""
    if done.status == 0:
        return PASSED, detail or done.last_line
    lines = done.output.splitlines()
    found = [at for at, line in enumerate(lines) if re.search("runtime error|ERROR: .*Sanitizer|^E  ", line)]
    excerpt = [*lines[found[0] : found[0] + 20], "...", *lines[-10:]] if found else lines[-40:]
    return FAILED, "\n".join([f"exit status {done.status}", *excerpt])


def build_with(name: str, environment: dict[str, str]) -> Path | str:
    """Build a copy of the sources with these environment variables. Return the folder to import it from, or an error
    text."""
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in ("src", "setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy(source, folder / part)
    done = run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], environment, folder)
    return folder / "src" if done.status == 0 else f"the build failed\n{done.output[-3000:]}"
