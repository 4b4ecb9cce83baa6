# SPDX-License-Identifier: Apache-2.0
"""``kcodec txn`` with -b: transactions as coordinators and partition leaders report them (KIP-664)."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import make_admin, needs_names, partial_results, refuse_names, say_errors
from kcodec.cli.formats import timestamp_of
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, UsageError, nearest, number, standard_input, text_of_file
from kcodec.cli.render import Cell, attributes, counted, duration_text, now_ms, time_text, write_items
from kcodec.cli.txn_sinks import SinkBatch, say_sinks, sink_fields, sinks_of
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec.admin.open_transactions import AbandonedTransaction, HangingTransaction
    from kcodec.admin.transactions import ProducerState, TransactionDescription
    from kcodec.client import Admin

MEANINGS = {
    "Ongoing": "notable",
    "CompleteCommit": "good",
    "CompleteAbort": "bad",
    "PrepareCommit": "notable",
    "PrepareAbort": "notable",
}
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
MINUTE_MS = 60_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that need -b."""
    group = parser.add_argument_group("with -b")
    group.add_argument("-t", "--topic", metavar="TOPIC", help="find-hanging, abort: the topic")
    group.add_argument("-p", "--partition", type=int, metavar="N", help="find-hanging, abort: the partition")
    group.add_argument(
        "--broker-id", type=int, metavar="ID", help="find-hanging: partitions with a replica on this broker"
    )
    group.add_argument(
        "--max-transaction-timeout",
        type=number,
        metavar="MINUTES",
        help="find-hanging: minimum age (default: the longest transaction timeout that brokers allow)",
    )
    group.add_argument("--start-offset", type=int, metavar="N", help="abort: first offset of the transaction")
    for name in ("producer-id", "producer-epoch", "coordinator-epoch"):
        group.add_argument(
            f"--{name}",
            type=int,
            metavar="N",
            help="abort: with brokers before 2.8, give all three numbers instead of --start-offset",
        )
    group.add_argument(
        "--force", action="store_true", help="abort: even if its coordinator still manages the transaction"
    )
    group.add_argument(
        "--idle", type=number, default=60.0, metavar="SECONDS", help="strays: seconds without a write (default: 60)"
    )
    group.add_argument(
        "--handles",
        metavar="FILE",
        help="strays: only transactions of these handles, one JSON object per line; -: stdin",
    )
    group.add_argument(
        "--longer-than",
        type=number,
        metavar="SECONDS",
        help="list: only transactions open for at least this duration (Kafka 3.8)",
    )
    group.add_argument(
        "--pattern", metavar="REGEX", help="list: only ids that match this regular expression as a whole (Kafka 4.1)"
    )


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Do the action."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _now(options: argparse.Namespace) -> int | None:
    return None if options.now is None else timestamp_of(options.now)


# List and describe


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec.admin.transactions import TRANSACTION_STATES, by_transactional_id
    from kcodec.errors import AdminError

    refuse_names(options.names, "list", "to show one transactional id, use kcodec txn describe")
    for state in options.state or ():
        if state not in TRANSACTION_STATES:
            raise UsageError(f"unknown state {state!r}{nearest(state, TRANSACTION_STATES)}")
    longest = options.longer_than
    try:
        found = admin.list_transactions(
            states=options.state or (),
            min_duration_ms=None if longest is None else int(longest * 1000),
            transactional_id_pattern=options.pattern,
        )
        status = ExitStatus.OK
    except AdminError as error:  # some brokers did not respond: show the results of the others, and the errors
        found, status = by_transactional_id(error.results), say_errors(error.errors, output)
    columns = ("transactional_id", "state", "producer_id", "coordinator")
    sinks = sinks_of(admin, found, output)
    write_items(output, found.values(), columns, _listing_row, partial(_listing_fields, sinks), as_json=options.json)
    if not options.json:
        say_sinks(sinks.values(), output)
    return status


def _listing_row(one: Any) -> list[Any]:
    return [one.transactional_id, _state_cell(one.state), one.producer_id, one.coordinator]


def _listing_fields(sinks: Mapping[str, SinkBatch], one: Any) -> dict[str, Any]:
    names = "transactional_id state producer_id coordinator"
    return {**attributes(one, names), **sink_fields(sinks, one.transactional_id)}


def _state_cell(state: str) -> Cell:
    return Cell(state, MEANINGS.get(state, ""))


def _describe(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    needs_names(options.names, "a transactional ID", "describe")
    found, status = partial_results(lambda: admin.describe_transactions(options.names), output)
    now = _now(options) or now_ms()
    columns = ("transactional_id", "state", "producer", "timeout", "age", "partitions")
    sinks = sinks_of(admin, found, output)
    row, fields = partial(_transaction_row, now), partial(_transaction_fields, now, sinks)
    write_items(output, found.values(), columns, row, fields, as_json=options.json)
    if not options.json:
        say_sinks(sinks.values(), output)
    return status


def _transaction_fields(now: int, sinks: Mapping[str, SinkBatch], one: TransactionDescription) -> dict[str, Any]:
    return {
        **attributes(one, "transactional_id state producer_id producer_epoch transaction_timeout_ms start_timestamp"),
        "age_ms": None if one.start_timestamp is None else now - one.start_timestamp,
        "partitions": [partition._asdict() for partition in one.partitions],
        **sink_fields(sinks, one.transactional_id),
    }


def _transaction_row(now: int, one: TransactionDescription) -> list[Any]:
    return [
        one.transactional_id,
        _state_cell(one.state),
        f"{one.producer_id}/{one.producer_epoch}",
        duration_text(one.transaction_timeout_ms),
        None if one.start_timestamp is None else duration_text(now - one.start_timestamp),
        ", ".join(map(str, one.partitions)) or None,
    ]


# Hanging transactions


def _find_hanging(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.names, "find-hanging", "to search one topic, pass -t TOPIC")
    if options.partition is not None and options.topic is None:
        raise UsageError("--partition needs --topic")
    longest = options.max_transaction_timeout
    found = admin.find_hanging_transactions(
        topics=None if options.topic is None else [options.topic],
        partitions=None if options.partition is None else [TopicPartition(str(options.topic), options.partition)],
        broker_id=options.broker_id,
        max_transaction_timeout_ms=None if longest is None else int(longest * MINUTE_MS),
        now=_now(options),
    )
    if options.json or found.transactions:
        columns = ("partition", "producer", "start_offset", "last_timestamp", "age", "transactional_id", "note")
        fields = partial(_hanging_fields, options)
        write_items(output, found.transactions, columns, _hanging_row, fields, as_json=options.json)
    output.flush()
    if not options.json:
        for one in found.transactions:
            output.say(f"{one.partition}: to abort it: {_abort_hanging(one, options)}")
    if not found.transactions:
        than = duration_text(found.max_transaction_timeout_ms)
        output.say(f"no hanging transaction older than {than} in {counted(found.partitions_searched, 'partition')}")
    status = ExitStatus.FINDINGS if found.transactions else ExitStatus.OK
    return max(status, say_errors(found.errors, output))


def _abort_command(options: argparse.Namespace, *what: str) -> str:
    """Return the recommended command for the same cluster. -X is left out, because it may contain secrets."""
    file = ["-F", options.properties_file] if options.properties_file else []
    return shlex.join(["kcodec", "txn", "abort", "-b", options.bootstrap_server, *file, *what])


def _abort_hanging(one: HangingTransaction, options: argparse.Namespace) -> str:
    place = ("--topic", one.partition.topic, "--partition", str(one.partition.partition))
    return _abort_command(options, *place, "--start-offset", str(one.start_offset))


def _hanging_fields(options: argparse.Namespace, one: HangingTransaction) -> dict[str, Any]:
    names = "producer_id producer_epoch coordinator_epoch start_offset last_timestamp age_ms transactional_id why"
    return {**one.partition._asdict(), **attributes(one, names), "abort_command": _abort_hanging(one, options)}


def _hanging_row(one: HangingTransaction) -> list[Any]:
    return [
        str(one.partition),
        f"{one.producer_id}/{one.producer_epoch}",
        one.start_offset,
        time_text(one.last_timestamp),
        duration_text(one.age_ms) if one.age_ms >= 0 else "not known",  # records with future timestamps have no age
        one.transactional_id,
        Cell(one.why, "notable"),
    ]


# Abort


def _abort(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    if options.topic is None and options.partition is None:
        needs_names(options.names, "a transactional ID, or --topic, --partition and --start-offset", "abort")
        for name in ("start_offset", "producer_id", "producer_epoch", "coordinator_epoch"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"abort: --{name.replace('_', '-')} needs --topic and --partition; omit it to abort the "
                    f"transaction of {options.names[0]!r}"
                )
        return _abort_ids(admin, options, output)
    if options.names:
        raise UsageError("abort: transactional IDs exclude --topic and --partition; pass one or the other")
    if options.topic is None or options.partition is None:
        raise UsageError("abort: --topic and --partition must be passed together")
    place = TopicPartition(options.topic, options.partition)
    if options.start_offset is None:
        numbers = (options.producer_id, options.producer_epoch, options.coordinator_epoch)
        if None in numbers:
            raise UsageError(
                "abort: --start-offset is missing; with brokers before 2.8, pass --producer-id, --producer-epoch and "
                "--coordinator-epoch instead"
            )
        admin.abort_transaction(place, *numbers)
        output.say(f"{place}: aborted what producer {numbers[0]}/{numbers[1]} had open")
        return ExitStatus.OK
    return _abort_at(admin, options, place, output)


def _abort_ids(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Fence the producers of open transactions, which aborts these. Do not fence a producer without an open
    transaction."""
    known, status = partial_results(lambda: admin.describe_transactions(options.names), output)
    opened = [name for name, one in known.items() if options.force or one.state in OPEN_STATES]
    for name, one in known.items():
        if name not in opened:
            output.say(f"{name}: nothing is open ({one.state}); --force fences its producers all the same")
    fenced, fencing = partial_results(lambda: admin.fence_producers(opened), output)
    for name, now in fenced.items():
        what = "aborted" if known[name].state == "Ongoing" else f"ended ({known[name].state})"
        output.say(f"{name}: {what}; producers below {now.producer_id}/{now.producer_epoch} are fenced")
    return max(status, fencing)


def _abort_at(admin: Admin, options: argparse.Namespace, place: TopicPartition, output: Output) -> ExitStatus:
    producer = _producer_at(admin, place, options.start_offset)
    if not options.force:
        hanging = admin.find_hanging_transactions(partitions=[place], max_transaction_timeout_ms=0, now=_now(options))
        if not any(one.start_offset == options.start_offset for one in hanging.transactions):
            say_errors(hanging.errors, output)
            raise CommandError(_why_not(admin, place, producer, options))
    admin.abort_transaction(place, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    stable = admin.list_offsets({place: "latest"}, isolation_level="read_committed")[place].offset
    output.say(
        f"{place}: aborted what producer {producer.producer_id}/{producer.producer_epoch} had open from offset "
        f"{options.start_offset} on; the last stable offset is {stable} now"
    )
    return ExitStatus.OK


def _producer_at(admin: Admin, place: TopicPartition, start_offset: int) -> ProducerState:
    states = admin.describe_producers([place])[place]
    opened = {state.current_transaction_start_offset: state for state in states}
    if start_offset not in opened:
        offsets = ", ".join(str(offset) for offset in sorted(offset for offset in opened if offset is not None))
        raise CommandError(f"{place}: no open transaction begins at offset {start_offset}; open: {offsets or 'none'}")
    return opened[start_offset]


def _why_not(admin: Admin, place: TopicPartition, producer: ProducerState, options: argparse.Namespace) -> str:
    known = [one.transactional_id for one in admin.list_transactions(producer_ids=[producer.producer_id]).values()]
    whole = _abort_command(options, *(known[:1] or ["ID"]))
    return (
        f"{place}: the coordinator of producer {producer.producer_id} ({', '.join(known) or 'id not known'}) will end "
        f"this transaction; `{whole}` aborts it now, in all its partitions; --force writes a marker here alone"
    )


# Abandoned transactions


def _strays(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.names, "strays", "to show one transactional id, use kcodec txn describe")
    handles = None if options.handles is None else dict(_handles(options.handles))
    found = admin.find_abandoned_transactions(
        transactional_ids=handles, idle_ms=int(options.idle * 1000), now=_now(options)
    )
    strays = [
        one
        for one in found.transactions
        if handles is None or handles[one.transactional_id] == (one.producer_id, one.producer_epoch)
    ]
    if options.json or strays:
        columns = ("transactional_id", "producer", "age", "idle", "times_out_in", "partitions")
        write_items(output, strays, columns, _abandoned_row, partial(_abandoned_fields, options), as_json=options.json)
    output.flush()
    if not options.json:
        for one in strays:
            output.say(f"{one.transactional_id}: if its owner is gone: {_abort_command(options, one.transactional_id)}")
    if not strays:
        output.say(f"no open transaction has been silent for {duration_text(int(options.idle * 1000))}")
    return max(ExitStatus.FINDINGS if strays else ExitStatus.OK, say_errors(found.errors, output))


def _handles(path: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Return (transactional id, (producer id, epoch)) of each line, which is written by TransactionHandle.to_json."""
    from kcodec.transactions.handle import TransactionHandle

    if path == "-":
        text = standard_input("redirect a file to it, or name a file with --handles").read()
    else:
        text = text_of_file(path)
    for row, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                handle = TransactionHandle.from_json(line)
            except (ValueError, TypeError, KeyError) as error:
                raise CommandError(f"{path}, line {row}: not a transaction handle: {error}") from error
            yield handle.transactional_id, (handle.producer_id, handle.producer_epoch)


def _abandoned_fields(options: argparse.Namespace, one: AbandonedTransaction) -> dict[str, Any]:
    names = "transactional_id producer_id producer_epoch start_timestamp age_ms idle_ms transaction_timeout_ms"
    return {
        **attributes(one, names),
        "partitions": [partition._asdict() for partition in one.partitions],
        "abort_command": _abort_command(options, one.transactional_id),
    }


def _abandoned_row(one: AbandonedTransaction) -> list[Any]:
    left = one.transaction_timeout_ms - one.age_ms
    return [
        one.transactional_id,
        f"{one.producer_id}/{one.producer_epoch}",
        duration_text(one.age_ms),
        Cell(duration_text(one.idle_ms), "notable"),
        duration_text(left) if left > 0 else "any moment",
        ", ".join(map(str, one.partitions)) or None,
    ]


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {
    "list": _list,
    "describe": _describe,
    "find-hanging": _find_hanging,
    "strays": _strays,
    "abort": _abort,
}
