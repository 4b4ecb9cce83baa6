# SPDX-License-Identifier: Apache-2.0
"""Result files that consist of reports: a later run of a command replaces its own report and keeps the others.

A report begins with what ran and the counts. Its second line has the command, the date and the versions. Its other
lines are indented, and an empty line ends it. So a file can be written in several runs, for example one for each
client, and always contains the last report of each command.
"""

from __future__ import annotations

import datetime
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from kcodec import __version__

SEPARATOR = ", on "


def command_line(program: str, arguments: Sequence[str]) -> str:
    """Return the indented line about a run: the command, the date, the versions and the machine.

    arguments: Of the command, without paths of this machine.
    """
    command = shlex.join(["python", program, *arguments])
    python = f"{platform.python_implementation()} {platform.python_version()}"
    versions = f"kcodec {__version__}, {python}, {os.cpu_count()} processors"
    return f"  {command}{SEPARATOR}{datetime.date.today()}, {versions}"


def write_report(path: Path, lines: Sequence[str]) -> None:
    """Put a report into a file in place of the last one of the same command, or at the end."""
    reports = path.read_text("utf-8").split("\n\n") if path.exists() else []
    kept = {command_of(report): report.strip("\n") for report in reports if report.strip()}
    report = "\n".join(lines)
    kept[command_of(report)] = report
    path.write_text("\n\n".join(kept.values()) + "\n", "utf-8")


def command_of(report: str) -> str:
    """Return the command of a report."""
    second = report.split("\n", 2)[1:2]
    return second[0].partition(SEPARATOR)[0].strip() if second else ""
