# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn``: show the transactions in files, or with -b those of a cluster (txn_broker.py)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import kcodec
from kcodec.cli import txn_broker
from kcodec.cli.brokers import add_broker_options, refuse_broker_options
from kcodec.cli.formats import timestamp_of
from kcodec.cli.output import ExitStatus, Output, text_of
from kcodec.cli.parser import Example, Parser, UsageError, nearest
from kcodec.cli.render import Cell, attributes, counted, duration_text, now_ms, write_items
from kcodec.cli.sinks import UnbufferedFile, atomic_file, copy_of_stdout
from kcodec.cli.timeline import draw
from kcodec.cli.txn_sinks import SinkBatch, say_sinks, sink_fields, sinks_of_directory
from kcodec.errors import DecodeError
from kcodec.log import Log, LogDirectory, PartitionTransaction, TransactionState, partition_transactions

#: End of the error about `--svg -`.
FOR_STDOUT = "; to write the picture to stdout, use --svg /dev/stdout"
DESCRIPTION = (
    "Shows which transactions are open, which of them blocks the last stable offset, and the command that ends this "
    "transaction. read_committed consumers wait until it ends. For files (partition directories, segments, a log "
    "directory), list prints the transactions, and timeline draws them: offsets from left to right, with one line for "
    "each producer. With --svg FILE, timeline writes a picture for a web page. With -b, the command works with a "
    "cluster. list: prints the transactional ids. describe ID...: prints the state of these ids. find-hanging: finds "
    "transactions that no coordinator will end (KIP-664), also in internal topics. strays: finds open transactions "
    "without writes, for example after the owner of a shared handle failed. abort: aborts the transaction of an ID "
    "and fences its producers, or aborts a hanging transaction by --topic, --partition and --start-offset."
)
EXAMPLES = (
    Example("all transactions of a partition", "kcodec txn list orders-0"),
    Example("the same as a timeline for a web page", "kcodec txn timeline orders-0 --svg orders-0.svg"),
    Example("hanging transactions of a cluster", "kcodec txn find-hanging -b localhost:9092"),
)
TEXT_WIDTH, SVG_WIDTH = 100, 960
OF_FILES = ("list", "timeline")
ACTIONS = (*OF_FILES, *(action for action in txn_broker.ACTIONS if action != "list"))

STATES = ("open", "committed", "aborted")
COLUMNS = (
    *("partition", "producer", "state", "first_offset", "last_offset", "marker_offset", "age", "transactional_id"),
    "note",
)
MEANINGS = {"open": "notable", "committed": "good", "aborted": "bad"}


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("txn", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument("names", nargs="*", metavar="FILE|ID", help="files; with -b transactional ids")
    add_broker_options(found, is_required=False)
    found.add_json()
    found.add_argument(
        "--state",
        action="append",
        metavar="STATE",
        help="list: only this state: open, committed or aborted; with -b Ongoing ...",
    )
    found.add_argument("--now", metavar="TIME", help="compute ages for this time (default: now)")
    found.add_argument(
        "--width",
        type=int,
        metavar="N",
        help=f"timeline: width in characters (default: {TEXT_WIDTH}), with --svg in pixels (default: {SVG_WIDTH})",
    )
    found.add_argument("--svg", metavar="FILE", help="timeline: write the picture of one partition as SVG to FILE")
    txn_broker.add_options(found)
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the action. Return FINDINGS if a transaction is hanging or abandoned, or if a file could not be read."""
    if options.bootstrap_server is not None:
        if options.action not in txn_broker.ACTIONS:
            raise UsageError(f"{options.action} is for files: omit -b, or name a partition directory")
        return txn_broker.run(options, output)
    if options.action not in OF_FILES:
        raise UsageError(f"{options.action} needs a broker: pass -b HOST:PORT")
    if not options.names:
        raise UsageError("the following arguments are required: FILE, or -b HOST:PORT (see kcodec txn --help)")
    return _of_files(options, output)


def _of_files(options: argparse.Namespace, output: Output) -> ExitStatus:
    """List or draw the transactions of every named log. Return FINDINGS if one could not be read."""
    refuse_broker_options(options, **{"--longer-than": options.longer_than, "--pattern": options.pattern})
    for state in options.state or ():
        if state not in STATES:
            raise UsageError(f"argument --state: invalid choice: {state!r}{nearest(state, STATES)}")
    if options.svg is not None:
        return _write_svg(options, output)
    return _draw(options, output) if options.action == "timeline" else _list(options, output)


def _draw(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Draw the transactions of every log."""
    problems: list[Exception] = []
    for number, (log, directory) in enumerate(_logs(options.names, problems)):
        output.write(b"\n" if number else b"")
        try:
            draw(log, TEXT_WIDTH if options.width is None else options.width, output)
        except (FileNotFoundError, DecodeError) as error:  # a BrokenPipeError is about the output
            if directory is None:
                raise
            problems.append(error)
    return _reported(problems, output)


def _reported(problems: list[Exception], output: Output) -> ExitStatus:
    """Report the partitions that could not be read."""
    output.flush()
    for problem in problems:
        output.say(f"kcodec: {text_of(problem)}")
    return ExitStatus.FINDINGS if problems else ExitStatus.OK


def _write_svg(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Write the picture of the named partition to the file of --svg."""
    problems: list[Exception] = []
    logs = [log for log, _ in _logs(options.names, problems)]
    if problems:
        raise problems[0]
    if len(logs) != 1:
        raise UsageError(f"--svg takes one partition, got {len(logs)}; name a partition directory")
    width = SVG_WIDTH if options.width is None else options.width
    timeline = logs[0].timeline()  # a DecodeError, which is a ValueError, is not about --width
    try:
        picture = timeline.to_svg(width=width)
    except ValueError as error:
        raise UsageError(f"--width: {error}") from error
    path = Path(options.svg)
    data = picture.encode()
    is_special = path.exists() and not (path.is_file() or path.is_dir())  # such as a pipe, which is not replaced
    if is_special:
        stdout = copy_of_stdout(path)
        opened: AbstractContextManager[UnbufferedFile] = UnbufferedFile(path if stdout is None else stdout, path)
    else:
        opened = atomic_file(path, FOR_STDOUT)
    with opened as file:
        file.write(data)
    output.say(f"{path}: {counted(len(timeline.transactions), 'transaction')}, {len(data):,} bytes")
    return ExitStatus.OK


def _logs(files: list[str], problems: list[Exception]) -> Iterator[tuple[Log, LogDirectory | None]]:
    """Yield each log with its log directory, or with None if the log itself was named. If a partition of a log
    directory cannot be opened, add the error to `problems`."""
    for file in files:
        opened = kcodec.open(file)
        if not isinstance(opened, LogDirectory):
            yield opened, None
            continue
        for name in opened:
            try:
                log = opened[name]
            except (OSError, DecodeError) as error:
                problems.append(error)
                continue
            yield log, opened


def _list(options: argparse.Namespace, output: Output) -> ExitStatus:
    # Ages are computed after a record is read, because a running broker appends records meanwhile.
    fixed = None if options.now is None else timestamp_of(options.now)
    clock = now_ms if fixed is None else lambda: fixed
    blocking: list[PartitionTransaction] = []
    problems: list[Exception] = []
    sinks: dict[str, SinkBatch] = {}
    listed: set[str | None] = set()

    def found() -> Iterator[PartitionTransaction]:
        """Yield the requested transactions. If a partition cannot be read, skip it and keep its error."""
        states = tuple(options.state) if options.state else None
        known: dict[str, _Coordinators] = {}
        for log, directory in _logs(options.names, problems):
            if directory is not None and directory.path not in known:
                known[directory.path] = _Coordinators.of(directory, problems)
                sinks.update(sinks_of_directory(directory))
            coordinators = _Coordinators() if directory is None else known[directory.path]
            try:
                for one in coordinators.transactions(log, states):
                    if one.holds_last_stable_offset or one.is_hanging:
                        blocking.append(one)
                    listed.add(one.transactional_id)
                    yield one
            except DecodeError as error:
                problems.append(error)
            except OSError as error:
                if directory is None:
                    raise
                problems.append(error)

    write_items(output, found(), COLUMNS, partial(_row, clock), partial(_fields, clock, sinks), as_json=options.json)
    output.flush()
    if not options.json:
        say_sinks((sink for name, sink in sinks.items() if name in listed), output)
    for one in blocking:
        output.say(_advice(one, clock()))
    is_hanging = any(one.is_hanging for one in blocking)
    return max(_reported(problems, output), ExitStatus.FINDINGS if is_hanging else ExitStatus.OK)


@dataclasses.dataclass(frozen=True)
class _Coordinators:
    """What the coordinators have recorded in a log directory.

    directory:   The log directory; None for a partition alone.
    is_complete: Whether all of their records could be read. If not, a corrupt record may show that a transaction does
                 not hang.
    """

    directory: LogDirectory | None = None
    states: tuple[TransactionState, ...] = ()
    is_complete: bool = True

    @classmethod
    def of(cls, directory: LogDirectory, problems: list[Exception]) -> _Coordinators:
        """Read the records. If a batch is corrupt, skip it and add the error to `problems`."""
        try:
            return cls(directory, tuple(directory.transaction_states().values()))
        except DecodeError as error:
            problems.append(error)
            states = tuple(directory.transaction_states(on_error="skip").values())
            return cls(directory, states, is_complete=False)

    def transactions(self, log: Log, states: tuple[str, ...] | None) -> list[PartitionTransaction]:
        """Return the transactions of a log in these states."""
        found = partition_transactions(log, self.states, states)
        if not any(one.is_hanging for one in found):
            return found
        hanging = self._still_hanging(log) if self.is_complete else set()
        unproven = False if self.is_complete else None
        return [
            one
            if not one.is_hanging or one.transaction.first_offset in hanging
            else dataclasses.replace(one, is_hanging=unproven)
            for one in found
        ]

    def _still_hanging(self, log: Log) -> set[int | None]:
        """Read the records again, and return the first offsets of the transactions that still seem to hang.

        A running broker may have begun a transaction after the first read, and may have ended it since.
        """
        assert self.directory is not None
        states = self.directory.transaction_states(on_error="stop").values()
        return {one.transaction.first_offset for one in partition_transactions(log, states) if one.is_hanging}


def _place(one: PartitionTransaction) -> str | None:
    return None if one.topic is None else f"{one.topic}-{one.partition}"


def _fields(clock: Callable[[], int], sinks: Mapping[str, SinkBatch], one: PartitionTransaction) -> dict[str, Any]:
    """Return the fields of a transaction for JSON, in this order."""
    of_offsets = "producer_id producer_epoch state first_offset last_offset marker_offset"
    of_times = "first_timestamp marker_timestamp coordinator_epoch"
    return {
        **attributes(one, "topic partition"),
        **attributes(one.transaction, f"{of_offsets} {of_times}"),
        "age_ms": one.age_ms(clock()),
        **attributes(one, "transactional_id holds_last_stable_offset is_hanging abort_command"),
        **sink_fields(sinks, one.transactional_id),
    }


def _row(clock: Callable[[], int], one: PartitionTransaction) -> list[Any]:
    own = one.transaction
    notes = ["holds last_stable_offset"] if one.holds_last_stable_offset else []
    notes += ["hanging: no producer will end it"] if one.is_hanging else []
    return [
        _place(one),
        f"{own.producer_id}/{own.producer_epoch}",
        Cell(own.state, MEANINGS[own.state]),
        own.first_offset,
        own.last_offset,
        own.marker_offset,
        duration_text(one.age_ms(clock())),
        one.transactional_id,
        Cell(", ".join(notes), "notable"),
    ]


def _advice(one: PartitionTransaction, now: int) -> str:
    own = one.transaction
    what = [f"producer {own.producer_id}/{own.producer_epoch}"]
    if one.transactional_id is not None:
        what.append(f"(transactional id {one.transactional_id})")
    if one.holds_last_stable_offset:
        what.append(f"holds the last stable offset at {own.first_offset},")
    what.append(f"open for {duration_text(one.age_ms(now))}")
    ending = "" if one.abort_command is None else f"; if no producer will end it: {one.abort_command}"
    return f"{_place(one) or 'this log'}: {' '.join(what)}{ending}"
