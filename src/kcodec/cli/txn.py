# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn``: the transactions of logs (KIP-664's questions, from files), as a list or as a picture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import kcodec
from kcodec.cli.formats import timestamp_of
from kcodec.cli.output import Output
from kcodec.cli.parser import Example, Parser, UsageError, nearest
from kcodec.cli.render import Cell, duration_text, json_line, write_table
from kcodec.cli.status import ExitStatus
from kcodec.cli.timeline import draw
from kcodec.errors import DecodeError
from kcodec.log import Log, LogDirectory, PartitionTransaction, TransactionState, partition_transactions

TOLD = (
    "The transactions in partition directories, segments or a whole log directory. list: each with its state, offsets "
    "and age, and which one holds the last stable offset back, so that read_committed consumers wait for it; with the "
    "command that ends it. timeline: the same as a picture, offsets from left to right, a line for each producer. In a "
    "log directory the coordinator's own records tell transactional ids, and which transactions nobody will end."
)
EXAMPLES = (
    Example("all transactions of a partition", "kcodec txn list orders-0"),
    Example("what was aborted, as JSON", "kcodec txn list --state aborted --json orders-0"),
    Example("a picture of them", "kcodec txn timeline orders-0"),
)
ACTIONS = ("list", "timeline")
STATES = ("open", "committed", "aborted")
COLUMNS = (
    "partition",
    "producer",
    "state",
    "first_offset",
    "last_offset",
    "marker_offset",
    "age",
    "transactional_id",
    "note",
)
MEANINGS = {"open": "notable", "committed": "good", "aborted": "bad"}


def parser() -> Parser:
    """The options of the command."""
    found = Parser("txn", TOLD, EXAMPLES)
    found.add_argument("action", metavar="list|timeline", help="what to show")
    found.add_argument("files", nargs="+", metavar="FILE", help="a segment, partition directory or log directory")
    found.add_argument("-J", "--json", action="store_true", help="one JSON object a line")
    found.add_argument("--state", choices=STATES, action="append", help="only these; may be given more than once")
    found.add_argument("--now", metavar="TIME", help="the time that ages are counted to (default: this machine's)")
    found.add_argument("--width", type=int, default=100, metavar="N", help="of the picture (default: %(default)s)")
    return found


def run(arguments: Sequence[str], output: Output) -> ExitStatus:
    """List or draw the transactions of every log named; FINDINGS where one could not be read."""
    options = parser().parse(arguments, output)
    if options is None:
        return ExitStatus.OK
    if options.action not in ACTIONS:
        raise UsageError(f"unknown action {options.action!r}{nearest(options.action, ACTIONS)} (see kcodec txn --help)")
    if options.action == "timeline":
        for number, log in enumerate(_logs(options.files)):
            output.write(b"\n" if number else b"")
            draw(log, options.width, output)
        return ExitStatus.OK
    return _list(options, output)


def _logs(files: list[str]) -> Iterator[Log]:
    for file in files:
        opened = kcodec.open(file)
        if isinstance(opened, LogDirectory):
            yield from opened.values()
        else:
            yield opened


def _found(options: argparse.Namespace, problems: list[DecodeError]) -> Iterator[PartitionTransaction]:
    """The transactions asked for; a partition that cannot be read is passed over, and its problem noted."""
    states = tuple(options.state) if options.state else None
    for file in options.files:
        opened, noted = kcodec.open(file), list[TransactionState]()
        if isinstance(opened, LogDirectory):
            noted = list(opened.transaction_states(on_error="stop").values())
        for log in opened.values() if isinstance(opened, LogDirectory) else [opened]:
            try:
                yield from partition_transactions(log, noted, states)
            except DecodeError as error:
                problems.append(error)


# --------------------------------------------------------------------------------------------------------------- list


def _list(options: argparse.Namespace, output: Output) -> ExitStatus:
    now = int(time.time() * 1000) if options.now is None else timestamp_of(options.now)
    holding: list[PartitionTransaction] = []
    problems: list[DecodeError] = []

    def noted() -> Iterator[PartitionTransaction]:
        for one in _found(options, problems):
            if one.holds_last_stable_offset or one.is_hanging:
                holding.append(one)
            yield one

    if options.json:
        for one in noted():
            output.write(json_line(_fields(one, now)))
    else:
        write_table(output, COLUMNS, (_row(one, now) for one in noted()))
    output.flush()
    for one in holding:
        output.say(_advice(one, now))
    for problem in problems:
        output.say(f"kcodec: {problem}")
    return ExitStatus.FINDINGS if problems else ExitStatus.OK


def _place(one: PartitionTransaction) -> str | None:
    return None if one.topic is None else f"{one.topic}-{one.partition}"


def _fields(one: PartitionTransaction, now: int) -> dict[str, Any]:
    """The keys of a transaction as JSON, in this order."""
    own = one.transaction
    return {
        "topic": one.topic,
        "partition": one.partition,
        "producer_id": own.producer_id,
        "producer_epoch": own.producer_epoch,
        "state": own.state,
        "first_offset": own.first_offset,
        "last_offset": own.last_offset,
        "marker_offset": own.marker_offset,
        "first_timestamp": own.first_timestamp,
        "marker_timestamp": own.marker_timestamp,
        "coordinator_epoch": own.coordinator_epoch,
        "age_ms": one.age_ms(now),
        "transactional_id": one.transactional_id,
        "holds_last_stable_offset": one.holds_last_stable_offset,
        "is_hanging": one.is_hanging,
        "abort_command": one.abort_command,
    }


def _row(one: PartitionTransaction, now: int) -> list[Any]:
    own = one.transaction
    notes = ["holds last_stable_offset"] if one.holds_last_stable_offset else []
    notes += ["hanging: nobody will end it"] if one.is_hanging else []
    return [
        _place(one),
        f"{own.producer_id}/{own.producer_epoch}",
        Cell(own.state, MEANINGS[own.state]),
        own.first_offset,
        own.last_offset,
        own.marker_offset,
        duration_text(one.age_ms(now)),
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
    ending = "" if one.abort_command is None else f"; if nobody will end it: {one.abort_command}"
    return f"{_place(one) or 'this log'}: {' '.join(what)}{ending}"
