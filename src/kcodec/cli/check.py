# SPDX-License-Identifier: Apache-2.0
"""``kcodec check``: report what is wrong with files of a log directory, and the remedy of each finding."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kcodec
from kcodec.cli.output import ExitStatus, Output, Progress, text_of
from kcodec.cli.parser import Example, Parser
from kcodec.cli.render import coloured, counted, json_line
from kcodec.errors import DecodeError
from kcodec.log import Finding, LogDirectory
from kcodec.log.check import TEXT_FILES, file_findings

DESCRIPTION = (
    "Reads all data and reports what is wrong. The command checks checksums (the package crc32c confirms a wrong "
    "one), lengths, records, the order of offsets, the sequence numbers of producers, incomplete batches, and "
    "transactions. It also checks whether indexes, snapshots and checkpoints agree with the log. Each finding names "
    "its remedy. The exit status is 1 if there are errors or warnings, and 0 if there are only notices. FILE is a "
    "single file, a partition directory, or a log directory."
)
EXAMPLES = (
    Example("a partition with all its files", "kcodec check orders-0"),
    Example("errors only, as JSON", "kcodec check --json --severity error orders-0"),
    Example("a single file", "kcodec check orders-0/00000000000000000058.txnindex"),
)
SEVERITIES = ("notice", "warning", "error")
MEANINGS = {"error": "bad", "warning": "notable", "notice": "quiet"}


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("check", DESCRIPTION, EXAMPLES)
    found.add_argument("files", nargs="+", metavar="FILE", help="a file, partition directory or log directory")
    found.add_json()
    found.add_argument(
        "--severity",
        choices=SEVERITIES,
        default="notice",
        help="print findings of this severity and above (default: %(default)s)",
    )
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Check every file. Return FINDINGS for any error or warning, printed or not, and for a partition of a log
    directory that cannot be read."""
    counts: Counter[str] = Counter()
    unread: list[str] = []
    for file in options.files:
        for finding in _findings(file, output, unread):
            counts[finding.severity] += 1
            if SEVERITIES.index(finding.severity) >= SEVERITIES.index(options.severity):
                _write(finding, output, as_json=options.json)
    output.flush()
    for text in unread:
        output.say(f"kcodec: {text}")
    totals = [counted(counts[name], name) for name in reversed(SEVERITIES) if counts[name]]
    totals += [f"{counted(len(unread), 'partition')} not checked"] if unread else []
    output.say(f"{', '.join(map(str, options.files))}: {', '.join(totals) or 'nothing found'}")
    return ExitStatus.FINDINGS if counts["error"] or counts["warning"] or unread else ExitStatus.OK


def _findings(file: str, output: Output, unread: list[str]) -> Iterator[Finding]:
    """Yield the findings at a path, as they are found. Add the reason to `unread` for each partition of a log directory
    that cannot be read, for example because the broker has deleted it."""
    progress = Progress(output, "checking")
    if Path(file).is_file():
        yield from file_findings(file, progress=progress)
    else:
        opened = kcodec.open(file)
        if isinstance(opened, LogDirectory):
            for name in sorted(TEXT_FILES):
                if Path(file, name).is_file():
                    yield from file_findings(Path(file, name))
            for name in opened:
                try:
                    yield from opened[name].findings(Progress(output, name))
                except (OSError, DecodeError) as error:
                    unread.append(text_of(error))
        else:
            yield from opened.findings(progress)
    progress.end()


def _write(finding: Finding, output: Output, *, as_json: bool) -> None:
    if as_json:
        output.write(json_line(dataclasses.asdict(finding)))
        return
    severity = coloured(finding.severity, MEANINGS[finding.severity], output)
    output.write(f"{severity}: {finding}\n    to do: {finding.remedy}\n".encode("utf-8", "surrogateescape"))
