# SPDX-License-Identifier: Apache-2.0
"""``kcodec groups``: show consumer groups of a cluster: members, committed offsets, lag and its causes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, make_admin, needs_names, partial_results, refuse_names
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import Example, Parser
from kcodec.cli.render import Cell, attributes, counted, time_text, write_items, write_rows

if TYPE_CHECKING:
    from kcodec import TopicPartition
    from kcodec.admin.groups import GroupDescription, GroupListing, GroupMember
    from kcodec.client import Admin
    from kcodec.consumer.lag import PartitionLag

    # Group, partition, its lag, and the member that reads it.
    _DescribedLag = tuple[str, TopicPartition, PartitionLag, GroupMember | None]

DESCRIPTION = (
    "Shows and deletes groups of a cluster. list: prints all groups. describe: prints the committed offset and the lag "
    "of each partition, the member that reads it, and the transaction that blocks the last stable offset; of a share "
    "group, the start offset and the lag; with --members, prints the members instead. delete: deletes groups that have "
    "no members, and their offsets; with --dry-run, only prints which. To set offsets, use kcodec offsets."
)
EXAMPLES = (
    Example("the lag of a group, and its members", "kcodec groups describe -b localhost:9092 billing"),
    Example("groups that have no members", "kcodec groups list -b localhost:9092 --state Empty"),
    Example("delete a group and its offsets", "kcodec groups delete -b localhost:9092 billing"),
)
LAG_COLUMNS = ("group", "topic", "partition", "committed", "end", "lag", "stable_lag", "client", "note")
# If no group is named, all groups of these types are described, and the others if they are groups of consumers.
OTHER_TYPES = {"share", "streams"}


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("groups", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument("groups", nargs="*", metavar="GROUP", help="groups (describe: default all)")
    add_broker_options(found)
    found.add_json()
    found.add_argument("--members", action="store_true", help="describe: print members instead of offsets")
    found.add_repeatable(
        "--state", metavar="STATE", help="list: only groups in this state, such as Stable or Empty (Kafka 2.6)"
    )
    found.add_repeatable(
        "--type",
        metavar="TYPE",
        help="list: only groups of this type: classic, consumer, share or streams (Kafka 3.8)",
    )
    found.add_argument("--dry-run", action="store_true", help="delete: only print what would be deleted")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the action. Return ERROR if it failed for a group, which is reported on stderr."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _list(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.groups, "list", "to show one group, use kcodec groups describe")
    found, status = _listed(admin, output, states=options.state, types=options.type)
    rows = ((one.group_id, one.type, one.state, one.protocol_type) for one in found.values())
    write_rows(output, ("group", "type", "state", "protocol_type"), rows, as_json=options.json)
    return status


def _listed(
    admin: Admin, output: Output, states: Iterable[str] = (), types: Iterable[str] = ()
) -> tuple[dict[str, GroupListing], ExitStatus]:
    """Return the groups by id. Report brokers that did not respond, and return the groups of the others."""
    from kcodec.admin.groups import by_group_id

    return partial_results(lambda: admin.list_groups(states=states, types=types), output, by_group_id)


def _describe(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    names, status = options.groups, ExitStatus.OK
    if not names:
        listed, status = _listed(admin, output)
        names = [
            one.group_id
            for one in listed.values()
            if (one.type or "classic").lower() in OTHER_TYPES or one.protocol_type in ("consumer", "")
        ]
    groups, worse = partial_results(lambda: admin.describe_groups(names), output)
    status = max(status, worse)
    if options.members:
        _write_members(groups, options, output)
        return status
    shared = [group for group in groups.values() if group.type == "share"]
    for group in shared:
        if not options.json:
            output.say(_summary(group))
    if shared:
        _write_share_offsets(admin, shared, options, output)
    rows: list[_DescribedLag] = []
    others = [group for group in groups.values() if group.type != "share"]
    for group in others:
        lags, worse = _lags(admin, group, output)
        status = max(status, worse)
        readers = {partition: member for member in group.members for partition in member.partitions}
        rows += [(group.group_id, partition, one, readers.get(partition)) for partition, one in sorted(lags.items())]
        if not options.json:
            output.say(_summary(group))
    if options.json or rows:
        write_items(output, rows, LAG_COLUMNS, _lag_row, _lag_fields, as_json=options.json)
    return status


def _write_share_offsets(
    admin: Admin, groups: list[GroupDescription], options: argparse.Namespace, output: Output
) -> None:
    """Write the start offsets of share groups, which commit no offsets: brokers keep the state of each record from
    there."""
    rows = [
        [group.group_id, *partition, None if one is None else one.start_offset, None if one is None else one.lag]
        for group in groups
        for partition, one in sorted(admin.list_share_group_offsets(group.group_id).items())
    ]
    if options.json or rows:
        write_rows(output, ("group", "topic", "partition", "start", "lag"), rows, as_json=options.json)


def _lags(
    admin: Admin, group: GroupDescription, output: Output
) -> tuple[dict[TopicPartition, PartitionLag], ExitStatus]:
    """Return the lags of all partitions in which the group has an offset, or which it reads."""
    read = {partition for member in group.members for partition in member.partitions}
    places = sorted(read | set(admin.list_group_offsets(group.group_id)))
    return (
        partial_results(lambda: admin.describe_group_lag(group.group_id, places), output)
        if places
        else ({}, ExitStatus.OK)
    )


def _summary(group: GroupDescription) -> str:
    parts = [group.state, group.type, group.protocol, counted(len(group.members), "member")]
    return f"{group.group_id}: {', '.join(part for part in parts if part)}"


def _lag_row(described: _DescribedLag) -> list[Any]:
    group_id, partition, one, member = described
    client = None if member is None else f"{member.client_id} {member.client_host}"
    numbers = [one.committed, one.log_end_offset, one.lag, one.stable_lag]
    return [group_id, partition.topic, partition.partition, *numbers, client, Cell(_note(one), "notable")]


def _note(one: PartitionLag) -> str:
    """Return a text about the transaction that blocks the last stable offset, or about a committed offset after the
    end of the log, for example of a topic that was deleted and created again."""
    if one.committed is not None and one.committed > one.log_end_offset:
        return "the committed offset is after the end of the log"
    if one.last_stable_offset >= one.log_end_offset:
        return ""
    found, error = one.blocking_transaction, one.blocking_transaction_error
    if found is None:
        return f"held at {one.last_stable_offset}" + (f": {error}" if error else "")
    who = f"producer {found.producer_id}/{found.producer_epoch}"
    if found.transactional_id is not None:
        who = f"{found.transactional_id!r}, {who}"
    since = "" if found.since is None else f", open since {time_text(found.since)}"
    return f"held at {one.last_stable_offset} by {who}{since}" + (f" ({error})" if error else "")


def _lag_fields(described: _DescribedLag) -> dict[str, Any]:
    group_id, partition, one, member = described
    names = ("member_id", "client_id", "client_host")
    of_transaction = "transactional_id producer_id producer_epoch first_offset since last_timestamp"
    return {
        "group": group_id,
        **partition._asdict(),
        **attributes(one, "committed log_end_offset last_stable_offset lag stable_lag"),
        **(dict.fromkeys(names) if member is None else attributes(member, " ".join(names))),
        "holder": None if one.blocking_transaction is None else attributes(one.blocking_transaction, of_transaction),
        "holder_unknown": one.blocking_transaction_error,
    }


def _write_members(groups: dict[str, GroupDescription], options: argparse.Namespace, output: Output) -> None:
    if not options.json:
        for group in groups.values():
            output.say(_summary(group))
    rows = [(group.group_id, member) for group in groups.values() for member in group.members]
    if options.json or rows:
        columns = ("group", "member", "instance", "client", "host", "partitions")
        write_items(output, rows, columns, _member_row, _member_fields, as_json=options.json)


def _member_row(described: tuple[str, GroupMember]) -> list[Any]:
    group_id, member = described
    read = ", ".join(map(str, sorted(member.partitions))) or None
    return [group_id, member.member_id, member.group_instance_id, member.client_id, member.client_host, read]


def _member_fields(described: tuple[str, GroupMember]) -> dict[str, Any]:
    group_id, member = described
    return {
        "group": group_id,
        **attributes(member, "member_id group_instance_id client_id client_host"),
        "partitions": [one._asdict() for one in sorted(member.partitions)],
    }


def _delete(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    needs_names(options.groups, "a GROUP", "delete", options.bootstrap_server)
    if options.dry_run:
        found, status = partial_results(lambda: admin.describe_groups(options.groups), output)
        for group in found.values():
            if group.state == "Dead":  # brokers describe a group that does not exist
                output.say(f"{group.group_id}: does not exist")
            elif group.members:
                output.say(f"{group.group_id}: cannot be deleted, as it has {counted(len(group.members), 'member')}")
            else:
                output.say(f"{group.group_id}: would be deleted")
                continue
            status = ExitStatus.ERROR
        return status
    gone, status = partial_results(lambda: admin.delete_groups(options.groups), output)
    for name in gone:
        output.say(f"{name}: deleted")
    return status


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
}
