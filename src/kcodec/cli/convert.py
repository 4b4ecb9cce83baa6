# SPDX-License-Identifier: Apache-2.0
"""``kcodec convert``: write records to a file of another format, complete or not at all, with constant memory."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from kcodec import COLUMNS, DecodedRecords
from kcodec.cli.clean_log import CleanOptions, write_clean_log
from kcodec.cli.logs import add_log_options, isolation_of, logs_at, lost_batch, skipped_data
from kcodec.cli.output import ExitStatus, Output, Progress
from kcodec.cli.parser import CommandError, Example, Parser, names, nearest, offset_range
from kcodec.cli.sinks import COMPRESSIONS, FORMATS, SinkOptions, format_of, sink_of
from kcodec.errors import DecodeError
from kcodec.log import Log
from kcodec.log.salvage import Loss

DESCRIPTION = (
    "Writes the records of a log into a Parquet, Arrow, CSV or JSON lines file, or into a cleaned .log file. A "
    "cleaned file keeps all offsets and the bytes of each batch. Only a batch in which --offsets begins or ends is "
    "encoded again. --read-committed leaves out aborted and open transactions. The command writes a temporary file in "
    "the same directory and then renames it, so the output file is either complete or does not appear. An existing "
    "file is replaced. Timestamps are milliseconds in UTC. Keys and values are bytes. CSV and JSON lines show them by "
    "the rules of kcodec.text."
)
EXAMPLES = (
    Example("a partition as Parquet", "kcodec convert orders-0 -o orders.parquet"),
    Example(
        "three columns, committed only",
        "kcodec convert orders-0 --read-committed --columns offset,key,value -o orders.csv",
    ),
    Example("a segment of committed data", "kcodec convert orders-0 --read-committed -o clean.log"),
)
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("convert", DESCRIPTION, EXAMPLES)
    found.add_argument("files", nargs="+", metavar="FILE", help="a segment, partition directory or log directory")
    found.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help=f"the file to write: {', '.join(FORMATS)}"
    )
    found.add_argument("--format", choices=sorted(set(FORMATS.values())), help="format of OUT (default: its suffix)")
    found.add_argument(
        "--columns",
        type=names,
        default=DEFAULT_COLUMNS,
        metavar="A,B,C",
        help=f"of {', '.join(COLUMNS)}; or all (default: {','.join(DEFAULT_COLUMNS)})",
    )
    found.add_argument(
        "--offsets",
        type=offset_range,
        default=(None, None),
        metavar="A:B",
        help="offsets from A up to, but not including, B",
    )
    found.add_argument(
        "--compression", choices=COMPRESSIONS, help="codec of Parquet and Arrow files (default: zstd, none)"
    )
    found.add_argument(
        "--without-markers",
        action="store_true",
        help="for .log files: write committed data as plain batches without end-transaction markers",
    )
    add_log_options(found)
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Convert all named logs into one file. Return FINDINGS if corruption was skipped, or ended the conversion
    ("stop")."""
    kind = options.format or format_of(options.output)
    columns = _columns(options.columns)
    logs = [log for file in options.files for log in logs_at(file, options.topic, options.partition)]
    _check_output(options.output, logs)
    if kind == "log":
        return _clean(logs, options, output)
    if options.without_markers:
        raise CommandError("--without-markers is for .log files: other files contain markers only with --control")
    conversion = _Conversion(logs, options, output)
    wanted = SinkOptions(columns, options.compression, logs[0].to_arrow(columns=columns).schema)

    def write() -> tuple[str, list[DecodeError | Loss]]:
        with sink_of(kind, options.output, wanted) as sink:
            for decoded, log in conversion.chunks(sink.columns):
                sink.write(decoded, log)
        return f"{conversion.records} records", conversion.errors

    return _reported(write, options, output)


def _check_output(path: Path, logs: list[Log]) -> None:
    """Raise CommandError if OUT is a segment of the input."""
    segments = [Path(segment.path) for log in logs for segment in log.segments] if path.is_file() else []
    if any(segment.is_file() and path.samefile(segment) for segment in segments):  # not in an object store
        raise CommandError(f"{path} is a segment of the input, and would be replaced: name another file")


def _reported(
    write: Callable[[], tuple[str, list[DecodeError | Loss]]], options: argparse.Namespace, output: Output
) -> ExitStatus:
    """Write the file, and report the number of written records, or the reason for an error."""
    try:
        written, errors = write()
    except DecodeError as error:
        output.say(f"kcodec: {error}; nothing was written")
        return ExitStatus.FINDINGS
    output.say(f"{options.output}: {written}")
    for skipped in errors:
        output.say(f"kcodec: {skipped}")
    return ExitStatus.FINDINGS if errors else ExitStatus.OK


def _clean(logs: list[Log], options: argparse.Namespace, output: Output) -> ExitStatus:
    """Write a cleaned segment of the log."""
    if len(logs) != 1:
        raise CommandError(f"a .log file holds one partition, but {len(logs)} are named: select one with -t and -p")
    if options.columns is not DEFAULT_COLUMNS or options.compression is not None or options.control:
        raise CommandError(
            "--columns, --compression and --control are not for .log files, which keep batches unchanged"
        )
    if options.without_markers and not options.read_committed:
        raise CommandError("--without-markers needs --read-committed: aborted data would appear committed")
    start, end = options.offsets
    wanted = CleanOptions(start, end, isolation_of(options), not options.without_markers, options.on_error)
    progress = Progress(output, "cleaning")

    lost = lost_batch(logs[0]) if end is None else None

    def write() -> tuple[str, list[DecodeError | Loss]]:
        if lost is not None and options.on_error == "raise":
            raise lost
        try:
            done = write_clean_log(logs[0], options.output, wanted, progress)
        finally:
            progress.end()
        batches = f"{done.whole_batches} batches as they were and {done.rewritten_batches} rewritten"
        return f"{done.records} records, control records included, in {batches}", [
            *done.errors,
            *([] if lost is None else [lost]),
        ]

    return _reported(write, options, output)


def _columns(requested: tuple[str, ...]) -> tuple[str, ...]:
    if requested == ("all",):
        return COLUMNS
    for name in requested:
        if name not in COLUMNS:
            raise CommandError(f"unknown column {name!r}{nearest(name, COLUMNS)}")
        if requested.count(name) > 1:
            raise CommandError(f"column {name!r} is requested twice")
    return requested


class _Conversion:
    """The records of all logs, one log after the other, with the findings."""

    def __init__(self, logs: list[Log], options: argparse.Namespace, output: Output) -> None:
        self.records = 0
        self.errors: list[DecodeError | Loss] = []
        self._logs = logs
        self._options = options
        self._progress = Progress(output, "converting")

    def chunks(self, columns: tuple[str, ...]) -> Iterator[tuple[DecodedRecords, Log]]:
        """Yield chunks in order, each with its log. Raise DecodeError for corruption, unless it is skipped or ends the
        reading."""
        start, end = self._options.offsets
        total = sum(log.size_in_bytes for log in self._logs)
        behind = 0
        for log in self._logs:
            stream = log.to_arrow(
                columns=columns,
                isolation_level=isolation_of(self._options),
                start_offset=start,
                end_offset=end,
                control_records="include" if self._options.control else "skip",
                on_error=self._options.on_error,
            )
            first, span = self._span(log)
            reached = first
            chunks = iter(stream)
            for decoded in chunks:
                yield decoded, log
                self.records += len(decoded)
                reached = decoded.next_offset or reached  # None within a batch, if the offset is not a column
                share = (reached - first) / span if span else 0.0
                self._progress(int(behind + share * log.size_in_bytes), total)
            behind += log.size_in_bytes
            if skipped := skipped_data(chunks):
                self.errors += skipped
            elif end is None and (error := lost_batch(log)) is not None:
                if self._options.on_error == "raise":
                    raise error
                self.errors.append(error)
        self._progress.end()

    def _span(self, log: Log) -> tuple[int, int]:
        """Return the first offset and the number of offsets, for the progress bar; 0 if no bar is shown."""
        if not self._progress.is_shown:
            return 0, 0
        try:
            return log.log_start_offset, log.log_end_offset - log.log_start_offset
        except DecodeError:
            return 0, 0
