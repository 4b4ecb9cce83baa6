# SPDX-License-Identifier: Apache-2.0
"""``kcodec topics reassign`` and ``kcodec topics reassignments``: partitions that move to other brokers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import needs_names, partial_results
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError
from kcodec.cli.render import counted, write_rows

if TYPE_CHECKING:
    from kcodec import TopicPartition
    from kcodec.client import Admin


def brokers(text: str) -> list[int]:
    """Return ids of brokers that are separated by commas, the preferred leader first."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different broker ids, such as 1,2,3")
    return [int(part) for part in parts]


def list_moves(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Print the partitions that are moving."""
    chosen = _chosen(options.topics)
    found = admin.list_partition_reassignments(list(_replicas(admin, options.topics)) if chosen else None)
    rows = (
        [*partition, *(_shown(ids, options) for ids in (move.target, move.adding_replicas, move.removing_replicas))]
        for partition, move in sorted(found.items())
    )
    write_rows(output, ("topic", "partition", "target", "adding", "removing"), rows, as_json=options.json)
    return ExitStatus.OK


def _shown(ids: tuple[int, ...], options: argparse.Namespace) -> Any:
    return list(ids) if options.json else ",".join(map(str, ids)) or None


def reassign(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    """Move partitions, or cancel their moves, with --execute; without, print what would be done."""
    needs_names(options.topics, "a TOPIC, or TOPIC:PARTITION,...", "reassign", options.bootstrap_server)
    if (options.to is None) != options.cancel:
        raise CommandError("reassign needs one of --to and --cancel")
    if options.cancel:
        replicas = _replicas(admin, options.topics)
        moving = admin.list_partition_reassignments(list(replicas))
        targets: dict[TopicPartition, list[int] | None] = dict.fromkeys(sorted(moving))
        rows = [
            [*partition, _shown(move.target, options), _shown(_origin(move), options)]
            for partition, move in sorted(moving.items())
        ]
        if not rows:
            output.say("no partition of these is moving")
            return ExitStatus.OK
    else:
        now = _replicas(admin, options.topics)
        targets = {partition: list(options.to) for partition, ids in sorted(now.items()) if list(ids) != options.to}
        rows = [
            [*partition, _shown(now[partition], options), _shown(tuple(options.to), options)] for partition in targets
        ]
        if not rows:
            output.say("all partitions are on these brokers already")
            return ExitStatus.OK
    write_rows(output, ("topic", "partition", "from", "to"), rows, as_json=options.json)
    if not options.execute:
        output.flush()
        output.say("nothing was changed; --execute makes the changes")
        return ExitStatus.OK
    done, status = partial_results(lambda: admin.alter_partition_reassignments(targets), output)
    output.flush()
    what = "moves canceled" if options.cancel else "moves begun (kcodec topics reassignments shows which still run)"
    output.say(f"{len(done)} of {counted(len(targets), 'partition')}: {what}")
    return status


def _chosen(names: list[str]) -> dict[str, set[int] | None]:
    """Return the partitions of each topic that TOPIC or TOPIC:PARTITION,... names; None for all of them. A topic can be
    named several times."""
    chosen: dict[str, set[int] | None] = {}
    for name in names:
        topic, colon, numbers = name.partition(":")
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise CommandError(f"{name!r}: expected TOPIC:PARTITION,... with numbers, such as orders:0,2")
        before = chosen.get(topic, set())
        here = {int(number) for number in numbers.split(",")} if colon else None
        chosen[topic] = None if before is None or here is None else before | here
    return chosen


def _origin(move: Any) -> tuple[int, ...]:
    return tuple(broker for broker in move.replicas if broker not in move.adding_replicas)


def _replicas(admin: Admin, names: list[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the brokers of each partition that TOPIC or TOPIC:PARTITION,... names."""
    from kcodec import TopicPartition

    chosen = _chosen(names)
    found = {}
    for topic, described in admin.describe_topics(chosen).items():
        wanted = chosen[topic]
        there = {one.partition: one.replicas for one in described.partitions}
        for number in sorted(there if wanted is None else wanted):
            if number not in there:
                raise CommandError(
                    f"topic {topic!r} has {counted(len(there), 'partition')}, numbered from 0: no {number}"
                )
            found[TopicPartition(topic, number)] = there[number]
    return found
