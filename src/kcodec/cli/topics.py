# SPDX-License-Identifier: Apache-2.0
"""``kcodec topics``: list, describe, create, delete and configure topics."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, make_admin, name_and_value, needs_names, partial_results
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser
from kcodec.cli.reassignments import brokers, list_moves, reassign
from kcodec.cli.render import Cell, attributes, counted, json_line, write_items, write_rows, write_table

if TYPE_CHECKING:
    from kcodec.admin.values import ConfigResource, PartitionDescription, TopicDescription
    from kcodec.client import Admin

DESCRIPTION = (
    "Shows and changes topics of a cluster. list: prints all topics. describe: prints partitions, leaders and "
    "replicas. config: prints the settings of a topic, with --all also those at their default; --set and --unset "
    "change settings. create: creates topics, and waits until they can be written to. delete: deletes topics; with "
    "--dry-run, only prints how much they hold. reassign TOPIC[:PARTITION,...] --to BROKER,...: moves partitions to "
    "other brokers, and --cancel cancels moves; without --execute, only prints the changes. reassignments: prints the "
    "partitions that are moving."
)
EXAMPLES = (
    Example("a topic of six partitions", "kcodec topics create -b localhost:9092 orders --partitions 6"),
    Example("leaders, and replicas that are out of sync", "kcodec topics describe -b localhost:9092 orders"),
    Example("keep records for a week", "kcodec topics config -b localhost:9092 orders --set retention.ms=604800000"),
)


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("topics", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument("topics", nargs="*", metavar="TOPIC", help="topics (list and describe: default all)")
    add_broker_options(found)
    found.add_json()
    found.add_argument("--internal", action="store_true", help="list, describe: include internal topics")
    found.add_argument(
        "--partitions", type=int, metavar="N", help="create: number of partitions (default: the broker's)"
    )
    found.add_argument(
        "--replication-factor", type=int, metavar="N", help="create: replication factor (default: the broker's)"
    )
    found.add_repeatable(
        "-c",
        "--config",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="create: a setting of the topic",
    )
    found.add_argument("--validate-only", action="store_true", help="create, config: only check whether it is possible")
    found.add_repeatable("--set", type=name_and_value, metavar="NAME=VALUE", help="config: set a setting")
    found.add_repeatable("--unset", metavar="NAME", help="config: reset a setting to its default")
    found.add_argument("--all", action="store_true", help="config: include settings at their default")
    found.add_argument("--to", type=brokers, metavar="BROKER,...", help="reassign: brokers, the preferred leader first")
    found.add_argument("--cancel", action="store_true", help="reassign: cancel moves")
    found.add_argument("--execute", action="store_true", help="reassign: make the changes")
    found.add_argument("--dry-run", action="store_true", help="delete: only print what would be deleted")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the action. Return ERROR if it failed for a topic, which is reported on stderr."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    known = admin.list_topics(include_internal=options.internal or bool(options.topics))
    missing = [name for name in options.topics if name not in known]
    found = [known[name] for name in dict.fromkeys(options.topics or known) if name in known]
    if options.json:
        for one in found:
            fields = {"topic": one.name, "partitions": one.num_partitions, "is_internal": one.is_internal}
            output.write(json_line({**fields, "topic_id": None if one.topic_id is None else str(one.topic_id)}))
    else:
        write_table(output, ("topic", "partitions"), ([one.name, one.num_partitions] for one in found))
    output.flush()
    for name in missing:
        near = difflib.get_close_matches(name, known, n=1)
        output.say(f"kcodec: unknown topic {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return ExitStatus.ERROR if missing else ExitStatus.OK


def _describe(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    names = options.topics or list(admin.list_topics(include_internal=options.internal))
    found, status = partial_results(lambda: admin.describe_topics(names), output)
    rows = [(topic, one) for topic in found.values() for one in topic.partitions]
    columns = ("topic", "partition", "leader", "replicas", "isr", "note")
    write_items(output, rows, columns, _partition_row, _partition_fields, as_json=options.json)
    return status


def _partition_fields(described: tuple[TopicDescription, PartitionDescription]) -> dict[str, Any]:
    topic, one = described
    return {"topic": topic.name, **attributes(one, "partition leader leader_epoch replicas isr offline_replicas")}


def _partition_row(described: tuple[TopicDescription, PartitionDescription]) -> list[Any]:
    topic, one = described
    note = "no leader" if one.leader is None else "under-replicated" if one.is_under_replicated else ""
    ids = [",".join(map(str, brokers)) for brokers in (one.replicas, one.isr)]
    return [topic.name, one.partition, one.leader, *ids, Cell(note, "bad" if one.leader is None else "notable")]


def _create(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec.admin.values import NewTopic

    needs_names(options.topics, "a TOPIC", "create", options.bootstrap_server)
    wanted = [
        NewTopic(name, options.partitions, options.replication_factor, dict(options.config)) for name in options.topics
    ]
    made, status = partial_results(lambda: admin.create_topics(wanted, validate_only=options.validate_only), output)
    for one in made.values():
        what = "could be created" if options.validate_only else "created"
        known = ((one.num_partitions, "partition"), (one.replication_factor, "replica"))
        sizes = [counted(count, noun) for count, noun in known if count is not None]
        output.say(f"{one.name}: {what}{': ' if sizes else ''}{', '.join(sizes)}")
    return status


def _delete(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    needs_names(options.topics, "a TOPIC", "delete", options.bootstrap_server)
    if options.dry_run:
        return _would_delete(admin, options, output)
    gone, status = partial_results(lambda: admin.delete_topics(options.topics), output)
    for name in gone:
        output.say(f"{name}: deleted")
    return status


def _would_delete(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec import TopicPartition

    found, status = partial_results(lambda: admin.describe_topics(options.topics), output)
    places = [TopicPartition(topic.name, one.partition) for topic in found.values() for one in topic.partitions]
    starts, ends = (admin.list_offsets(dict.fromkeys(places, end)) for end in ("earliest", "latest"))
    for topic in found.values():
        held = sum(ends[place].offset - starts[place].offset for place in places if place.topic == topic.name)
        sizes = f"{counted(len(topic.partitions), 'partition')}, {counted(held, 'offset')}"
        output.say(f"{topic.name}: would be deleted: {sizes}")
    return status


def _config(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec.admin.values import ConfigResource

    needs_names(options.topics, "a TOPIC", "config", options.bootstrap_server)
    resources = [ConfigResource.topic(name) for name in options.topics]
    for name, _value in options.set:
        if name in options.unset:
            raise CommandError(f"{name}: --set and --unset exclude each other")
    changes: dict[str, str | None] = {**dict(options.set), **dict.fromkeys(options.unset)}
    if options.unset:
        _check_known(admin, resources, options.unset)
    if changes:
        changed, status = partial_results(
            lambda: admin.alter_configs(dict.fromkeys(resources, changes), validate_only=options.validate_only), output
        )
        for resource in changed:
            output.say(f"{resource.name}: {'could be changed' if options.validate_only else 'changed'}")
        return status
    found, status = partial_results(lambda: admin.describe_configs(resources), output)
    rows = (
        (resource.name, entry.name, entry.value, entry.source)
        for resource, entries in found.items()
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
        if options.all or entry.source == "DYNAMIC_TOPIC_CONFIG"
    )
    write_rows(output, ("topic", "name", "value", "source"), rows, as_json=options.json)
    return status


def _check_known(admin: Admin, resources: list[ConfigResource], names: list[str]) -> None:
    """Raise CommandError for a setting that topics do not have. A broker would accept the removal of such a setting."""
    from kcodec.errors import AdminError, BrokerError

    try:
        described = admin.describe_configs(resources)
    except AdminError as error:
        described = error.results
    except BrokerError:
        return  # the request that makes the change reports the error
    for entries in described.values():
        for name in names:
            if name not in entries:
                near = difflib.get_close_matches(name, entries, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise CommandError(f"--unset {name}: topics have no setting of this name{hint}")


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {
    "list": _list,
    "describe": _describe,
    "create": _create,
    "delete": _delete,
    "config": _config,
    "reassign": reassign,
    "reassignments": list_moves,
}
