# SPDX-License-Identifier: Apache-2.0
"""``kcodec dump``: what a file of a log directory holds, whatever its suffix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kcodec.cli import dump_directory, dump_files, dump_segment
from kcodec.cli.output import Output
from kcodec.cli.parser import CommandError, Example, Parser, offset_range
from kcodec.cli.places import Place, is_log_directory, places
from kcodec.cli.status import ExitStatus

TOLD = (
    "Shows what files of a Kafka log directory hold: the batches of segments (.log, .checkpoint), with --records their "
    "records, too; the entries of indexes (.index, .timeindex, .txnindex), of producer snapshots (.snapshot), and of "
    "the text files (leader-epoch-checkpoint, partition.metadata, *-checkpoint, meta.properties). A partition "
    "directory stands for its segments; of a log directory the partitions are listed. Every CRC is checked; a corrupt "
    "batch is shown, reported on stderr, and skipped."
)
EXAMPLES = (
    Example("the batches of a partition", "kcodec dump orders-0"),
    Example("two records, as JSON", "kcodec dump --records --json --offsets 0:2 orders-0/00000000000000000000.log"),
    Example("who was producing when the segment rolled", "kcodec dump orders-0/00000000000000000042.snapshot"),
)


def parser() -> Parser:
    """The options of the command."""
    found = Parser("dump", TOLD, EXAMPLES)
    found.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file or directory")
    found.add_argument("-r", "--records", action="store_true", help="the records below each batch")
    found.add_argument("-J", "--json", action="store_true", help="one JSON object a line instead of a table")
    found.add_argument(
        "--offsets", type=offset_range, default=(None, None), metavar="A:B", help="offsets from A on and below B"
    )
    found.add_argument("--threads", type=int, default=2, metavar="N", help="threads that decode (default: %(default)s)")
    return found


def run(arguments: Sequence[str], output: Output) -> ExitStatus:
    """Dump every file named; FINDINGS if one is damaged, ERROR if one cannot be read."""
    options = parser().parse(arguments, output)
    if options is None:
        return ExitStatus.OK
    if options.threads < 1:
        raise CommandError(f"--threads must be at least 1, not {options.threads}")
    status = ExitStatus.OK
    for file in options.files:
        if is_log_directory(file):
            return dump_directory.dump(options, output)
    found = [place for file in options.files for place in places(file)]
    for number, place in enumerate(found):
        if len(found) > 1 and not options.json:
            output.write(f"{'' if number == 0 else chr(10)}{place.path}\n".encode("utf-8", "surrogateescape"))
        status = max(status, _dump(place, options, output))
    return status


def _dump(place: Place, options: argparse.Namespace, output: Output) -> ExitStatus:
    if place.kind in ("log", "checkpoint"):
        return dump_segment.dump(place, options, output)
    if options.records:
        raise CommandError(f"{place.path}: files of kind {place.kind} hold no records: leave --records away")
    return dump_files.dump(place, options, output)
