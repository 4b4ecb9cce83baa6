# SPDX-License-Identifier: Apache-2.0
"""Result files of tests of other projects: each command has one report, with its date and versions."""

from __future__ import annotations

import datetime
import importlib
import sys
from pathlib import Path

import kcodec

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
peer_reports = importlib.import_module("peer_reports")
sys.path.remove(str(ROOT / "tools"))


def report(client: str, counts: str, *lines: str) -> list[str]:
    """Return the lines of a report as the tools make them."""
    return [f"{client}: {counts}", peer_reports.command_line("tools/run.py", [f"{client}=CHECKOUT"]), *lines]


def test_a_later_run_replaces_the_report_of_its_command(tmp_path: Path) -> None:
    """The reports of other commands stay, in their order."""
    path = tmp_path / "results.txt"
    first, second = report("one", "1 passed, 1 failed", "  failed, a reason:", "    test"), report("two", "3 passed")
    again, third = report("one", "2 passed"), report("three", "1 passed")
    for lines in (first, second, again, third, third):
        peer_reports.write_report(path, lines)
    assert path.read_text("utf-8") == "\n\n".join("\n".join(lines) for lines in (again, second, third)) + "\n"


def test_a_report_names_its_command_and_the_versions() -> None:
    line = peer_reports.command_line("tools/run.py", ["one=CHECKOUT", "-k", "test_a or test_b"])
    assert line.startswith(f"  python tools/run.py one=CHECKOUT -k 'test_a or test_b', on {datetime.date.today()}, ")
    assert f"kcodec {kcodec.__version__}, " in line
