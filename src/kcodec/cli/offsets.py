# SPDX-License-Identifier: Apache-2.0
"""``kcodec offsets``: show the offsets of partitions, and set or delete the committed offsets of groups."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec.cli.brokers import add_broker_options, make_admin, needs_names, partial_results
from kcodec.cli.formats import timestamp_of
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, UsageError, text_of_file
from kcodec.cli.render import now_ms, write_rows, write_table
from kcodec.offsets import OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kcodec.client import Admin

DESCRIPTION = (
    "Shows and sets offsets. list TOPIC...: prints the first offset, the last stable offset and the end of each "
    "partition; with --at, prints the first offset at or after a time. reset GROUP [TOPIC...]: sets the committed "
    "offsets of a group that has no members; without --execute, only prints the changes. delete GROUP TOPIC...: "
    "deletes committed offsets. A TOPIC can select partitions: topic:0,3."
)
EXAMPLES = (
    Example("the first and last offsets of a topic", "kcodec offsets list -b localhost:9092 orders"),
    Example(
        "the changes that a reset would make", "kcodec offsets reset -b localhost:9092 billing orders --to earliest"
    ),
    Example("make them", "kcodec offsets reset -b localhost:9092 billing orders --to s@2026-01-01 --execute"),
)
ENDS = {"earliest": "earliest", "beginning": "earliest", "latest": "latest", "end": "latest"}
ENDS_LISTED = (("earliest", "read_uncommitted"), ("latest", "read_committed"), ("latest", "read_uncommitted"))
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Change(NamedTuple):
    """One committed offset, before and after."""

    partition: TopicPartition
    committed: int | None
    offset: int
    end: int
    note: str


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("offsets", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument(
        "names", nargs="*", metavar="[GROUP] TOPIC", help="list: topics; reset and delete: a group, and topics"
    )
    add_broker_options(found)
    found.add_json()
    found.add_argument(
        "--at", type=_time, metavar="TIME", help="list: the first offset at or after this time (ms or a date)"
    )
    found.add_argument(
        "--to", metavar="OFFSET", help="reset: to earliest, latest, N, or s@TIME (the first record at or after it)"
    )
    found.add_argument("--shift", type=int, metavar="N", help="reset: by N offsets, backward if negative")
    found.add_argument(
        "--ago", type=duration, metavar="TIME", help="reset: to the first record of the last 90s, 15m, 2h or 7d"
    )
    found.add_argument(
        "--from-file", metavar="FILE", help="reset: from a file of lines topic,partition,offset, as written by --csv"
    )
    found.add_argument("--csv", action="store_true", help="reset: print such lines")
    found.add_argument("--execute", action="store_true", help="reset: make the changes")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the action. Return ERROR if it failed for a partition, which is reported on stderr."""
    check, act = ACTIONS[options.action]
    check(options)
    with make_admin(options) as admin:
        return act(admin, options, output)


def _time(text: str) -> int:
    try:
        return timestamp_of(text)
    except (ValueError, UsageError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> int:
    """Return the milliseconds of 90s, 15m, 2h or 7d."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 2h or 7d")
    return int(found[1]) * UNITS_MS[found[2]]


def _places(admin: Admin, names: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of an argument such as topic or topic:0,3."""
    found: list[TopicPartition] = []
    whole = [name for name in names if ":" not in name]
    described = admin.describe_topics(whole) if whole else {}
    for name in names:
        topic, colon, numbers = name.partition(":")
        if not colon:
            found += [TopicPartition(name, one.partition) for one in described[name].partitions]
            continue
        found += [TopicPartition(topic, number) for number in _numbers(name, numbers)]
    return found


def _numbers(name: str, numbers: str) -> list[int]:
    """Return the partitions of an argument such as topic:0,3. Raise CommandError if one is not a number."""
    for number in numbers.split(","):
        if not (number.isascii() and number.isdecimal()):
            raise CommandError(f"{name!r}: {number!r} is not a partition number; expected for example topic:0,3")
    return [int(number) for number in numbers.split(",")]


# List


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    places = _places(admin, options.names)
    if options.at is not None:
        where: str | int = options.at
        found, status = partial_results(lambda: admin.list_offsets(dict.fromkeys(places, where)), output)
        columns: Sequence[str] = ("topic", "partition", "offset", "timestamp")
        rows: list[Sequence[Any]] = [(*at, _or_none(one.offset), _or_none(one.timestamp)) for at, one in found.items()]
    else:
        columns = ("topic", "partition", "earliest_offset", "last_stable_offset", "log_end_offset")
        listed, status = [], ExitStatus.OK
        for spec, level in ENDS_LISTED:
            some, worse = partial_results(partial(_listed, admin, dict.fromkeys(places, spec), level), output)
            listed.append(some)
            status = max(status, worse)
            places = list(some)  # what failed once is reported once
        rows = [(*at, *(some[at].offset for some in listed)) for at in places]
    write_rows(output, columns, rows, as_json=options.json)
    return status


def _listed(admin: Admin, specs: dict[TopicPartition, str], level: str) -> dict[Any, Any]:
    return admin.list_offsets(specs, isolation_level=level) if specs else {}


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


# Reset


def _check_reset(options: argparse.Namespace) -> None:
    needs_names(options.names, "a GROUP", "reset", options.bootstrap_server)
    given = [name for name in ("to", "shift", "ago", "from_file") if getattr(options, name) is not None]
    if len(given) != 1:
        raise CommandError("reset needs one of --to, --shift, --ago and --from-file")
    if options.to is not None and options.to not in ENDS and not options.to.isdecimal():
        if not options.to.startswith("s@"):
            raise CommandError(f"--to {options.to}: expected earliest, latest, an offset, or s@TIME")
        timestamp_of(options.to[2:])
    if options.from_file is not None and options.names[1:]:
        raise CommandError("--from-file names the partitions: omit the topics")


def _reset(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    group_id, *topics = options.names
    changes = _changes(admin, options, group_id, topics)
    if not changes:
        raise CommandError(f"group {group_id!r} has no committed offsets: name the topics")
    _write_changes(changes, options, group_id, output)
    is_new = not _is_group(admin, group_id, output)
    if not options.execute:
        output.flush()
        creates = f", and creates the group {group_id!r}, which does not exist" if is_new else ""
        output.say(f"nothing was changed; --execute makes the changes{creates}")
        return ExitStatus.OK
    wanted = {change.partition: OffsetAndMetadata(change.offset) for change in changes}
    done, status = partial_results(lambda: admin.alter_group_offsets(group_id, wanted), output)
    output.flush()
    created = "; the group did not exist before" if is_new and done else ""
    output.say(f"{group_id}: {len(done)} of {len(changes)} offsets set{created}")
    return status


def _changes(admin: Admin, options: argparse.Namespace, group_id: str, topics: list[str]) -> list[Change]:
    """Return the changes to make. Offsets outside of the log are moved to its nearer end, as Kafka's tool does."""
    known = admin.list_group_offsets(group_id)
    given = _of_file(options.from_file) if options.from_file is not None else {}
    places = list(given) or (list(dict.fromkeys(_places(admin, topics))) if topics else sorted(known))
    if not places:
        return []
    committed = {place: found.offset for place, found in known.items() if found is not None}
    starts = {place: one.offset for place, one in admin.list_offsets(dict.fromkeys(places, "earliest")).items()}
    ends = {place: one.offset for place, one in admin.list_offsets(dict.fromkeys(places, "latest")).items()}
    wanted = given or _wanted(admin, options, places, committed, starts, ends)
    found = []
    for place in places:
        offset = min(max(wanted[place], starts[place]), ends[place])
        note = "" if offset == wanted[place] else f"{wanted[place]} is not in the log"
        found.append(Change(place, committed.get(place), offset, ends[place], note))
    return found


def _wanted(
    admin: Admin,
    options: argparse.Namespace,
    places: list[TopicPartition],
    committed: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if options.shift is not None:
        lacking = [place for place in places if place not in committed]
        if lacking:
            raise CommandError(f"--shift: the group has no committed offset in {lacking[0]}; use --to")
        return {place: committed[place] + options.shift for place in places}
    if options.to in ENDS:
        return starts if ENDS[options.to] == "earliest" else ends
    if options.to is not None and options.to.isdecimal():
        return dict.fromkeys(places, int(options.to))
    timestamp = timestamp_of(options.to[2:]) if options.to is not None else max(now_ms() - options.ago, 0)
    found = admin.list_offsets(dict.fromkeys(places, timestamp))
    return {place: ends[place] if one.offset < 0 else one.offset for place, one in found.items()}


def _of_file(path: str) -> dict[TopicPartition, int]:
    """Return the offsets of a file with lines topic,partition,offset, as `--csv` and Kafka's --export write them."""
    found = {}
    for number, line in enumerate(text_of_file(path).splitlines(), 1):
        parts = [part.strip().strip('"') for part in line.split(",")]
        if not line.strip():
            continue
        if len(parts) != 3 or not parts[0] or not parts[1].isdecimal() or not parts[2].isdecimal():
            raise CommandError(f"{path}: line {number}: expected topic,partition,offset")
        found[TopicPartition(parts[0], int(parts[1]))] = int(parts[2])
    if not found:
        raise CommandError(f"{path}: the file has no lines of topic,partition,offset")
    return found


def _write_changes(changes: list[Change], options: argparse.Namespace, group_id: str, output: Output) -> None:
    if options.csv:
        for topic, number, offset in ((*change.partition, change.offset) for change in changes):
            output.write(f"{topic},{number},{offset}\n".encode())
    elif options.json:
        columns: tuple[str, ...] = ("group", "topic", "partition", "committed", "offset", "log_end_offset")
        rows = ([group_id, *one.partition, one.committed, one.offset, one.end] for one in changes)
        write_rows(output, columns, rows, as_json=True)
    else:
        columns = ("topic", "partition", "committed", "offset", "end", "lag", "note")
        write_table(
            output,
            columns,
            ([*one.partition, one.committed, one.offset, one.end, one.end - one.offset, one.note] for one in changes),
        )


def _is_group(admin: Admin, group_id: str, output: Output) -> bool:
    """Return whether a group exists. If it has members, warn that its offsets cannot be set."""
    from kcodec.errors import BrokerError

    try:
        group = admin.describe_groups([group_id])[group_id]
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return False
    if group.members:
        who = shlex.quote(group_id)
        output.flush()
        count = len(group.members)
        members = "1 member, which has" if count == 1 else f"{count} members, which have"
        output.say(
            f"kcodec: group {group_id!r} has {members} to be stopped before its offsets can be set "
            f"(kcodec groups describe --members {who})"
        )
    return group.state != "Dead"  # older brokers describe a group that does not exist


# Delete


def _delete(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    group_id, *topics = options.names
    named: list[tuple[str, list[int] | None]] = []
    for name in topics:
        topic, colon, numbers = name.partition(":")
        named.append((topic, _numbers(name, numbers) if colon else None))
    known = admin.list_group_offsets(group_id)
    places, missing = _committed_in(known, named)
    if not places:
        raise CommandError(f"group {group_id!r} has no committed offsets in {', '.join(topics)}")
    gone, status = partial_results(lambda: admin.delete_group_offsets(group_id, places), output)
    for place in gone:
        output.say(f"{group_id}: {place}: deleted")
    if missing:
        output.say(f"kcodec: group {group_id!r} has no committed offsets in {', '.join(missing)}")
        return ExitStatus.ERROR
    return status


def _committed_in(
    known: Iterable[TopicPartition], named: list[tuple[str, list[int] | None]]
) -> tuple[list[TopicPartition], list[str]]:
    """Return the partitions with a committed offset, and the names of topics and partitions without one. Topics may no
    longer exist."""
    places: set[TopicPartition] = set()
    missing: list[str] = []
    for topic, numbers in named:
        there = {place for place in known if place.topic == topic}
        wanted = there if numbers is None else {TopicPartition(topic, number) for number in numbers}
        places |= wanted & there
        missing += [str(place) for place in sorted(wanted - there)]
        if not wanted:
            missing.append(topic)
    return sorted(places), missing


Check = Callable[[argparse.Namespace], None]
Act = Callable[["Admin", argparse.Namespace, Output], ExitStatus]
ACTIONS: dict[str, tuple[Check, Act]] = {
    "list": (lambda options: needs_names(options.names, "a TOPIC", "list"), _list),
    "reset": (_check_reset, _reset),
    "delete": (lambda options: needs_names(options.names[1:], "a GROUP and a TOPIC", "delete"), _delete),
}
