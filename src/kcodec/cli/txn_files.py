# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn`` of files: the transactions of logs (KIP-664's questions), as a list or as a picture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import kcodec
from kcodec.cli.formats import timestamp_of
from kcodec.cli.output import Output
from kcodec.cli.parser import UsageError, nearest
from kcodec.cli.render import Cell, duration_text, json_line, write_table
from kcodec.cli.status import ExitStatus
from kcodec.cli.timeline import draw
from kcodec.errors import DecodeError
from kcodec.log import Log, LogDirectory, PartitionTransaction, TransactionState, partition_transactions

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


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """List or draw the transactions of every log named; FINDINGS where one could not be read."""
    for state in options.state or ():
        if state not in STATES:
            raise UsageError(f"argument --state: invalid choice: {state!r}{nearest(state, STATES)}")
    if options.action == "timeline":
        for number, log in enumerate(_logs(options.names)):
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
    for file in options.names:
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
    notes += ["hanging: no producer will end it"] if one.is_hanging else []
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
    ending = "" if one.abort_command is None else f"; if no producer will end it: {one.abort_command}"
    return f"{_place(one) or 'this log'}: {' '.join(what)}{ending}"
