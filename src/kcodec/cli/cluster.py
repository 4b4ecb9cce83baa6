# SPDX-License-Identifier: Apache-2.0
"""``kcodec cluster``: brokers, controllers, log directories and configured resources of a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, make_admin, needs_names, partial_results, refuse_names
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, nearest
from kcodec.cli.render import attributes, counted, time_text, write_items, write_rows

if TYPE_CHECKING:
    from kcodec import TopicPartition
    from kcodec.admin.brokers import LogDirDescription, LogDirReplica, QuorumDescription, QuorumReplica
    from kcodec.client import Admin

    # Broker, log directory, partition and replica.
    _PlacedReplica = tuple[int, LogDirDescription, TopicPartition, LogDirReplica]

DESCRIPTION = (
    "Shows the brokers of a cluster. describe: prints brokers and the controller. quorum: prints the controllers and "
    "brokers that read the metadata log, and their lag. log-dirs [BROKER...]: prints the log directories of brokers "
    "with their size; with --replicas, prints the replicas in them instead. configs [TYPE...]: prints the resources "
    "that can have settings. unregister BROKER: removes a stopped broker from the cluster; without --execute, only "
    "prints what would be removed."
)
EXAMPLES = (
    Example("the controllers, and how far they are behind", "kcodec cluster quorum -b localhost:9092"),
    Example("how full the disks of the brokers are", "kcodec cluster log-dirs -b localhost:9092"),
    Example("groups with settings", "kcodec cluster configs group -b localhost:9092"),
)
REPLICA_COLUMNS = ("broker", "topic", "partition", "bytes", "offset_lag", "future", "path")


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("cluster", DESCRIPTION, EXAMPLES, ACTIONS)
    found.add_argument("names", nargs="*", metavar="NAME", help="ids of brokers; configs: types of resources")
    add_broker_options(found)
    found.add_json()
    found.add_argument("--replicas", action="store_true", help="log-dirs: print replicas instead of directories")
    found.add_argument("--execute", action="store_true", help="unregister: remove the broker")
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Run the action. Return ERROR if it failed for a broker, which is reported on stderr."""
    with make_admin(options) as admin:
        return ACTIONS[options.action](admin, options, output)


def _describe(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.names, "describe", "omit the name")
    cluster = admin.describe_cluster()
    if not options.json:
        output.say(f"cluster {cluster.cluster_id}: {counted(len(cluster.brokers), 'broker')}")
    rows = ((one.id, one.host, one.port, one.rack, one.id == cluster.controller_id) for one in cluster.brokers)
    write_rows(output, ("broker", "host", "port", "rack", "controller"), rows, as_json=options.json)
    return ExitStatus.OK


def _quorum(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    refuse_names(options.names, "quorum", "omit the name")
    found = admin.describe_quorum()
    if not options.json:
        leader = "no leader" if found.leader_id is None else f"leader {found.leader_id}, epoch {found.leader_epoch}"
        output.say(f"{leader}, high watermark {found.high_watermark}, {counted(len(found.voters), 'voter')}")
    columns = ("node", "role", "log_end_offset", "lag", "last_fetch", "last_caught_up")
    rows = [
        *((one, _role(found, one)) for one in sorted(found.voters, key=lambda one: one.id)),
        *((one, "observer") for one in sorted(found.observers, key=lambda one: one.id)),
    ]
    write_rows(output, columns, ([*_quorum_row(found, one, role, options)] for one, role in rows), as_json=options.json)
    return ExitStatus.OK


def _role(found: QuorumDescription, replica: QuorumReplica) -> str:
    return "leader" if replica.id == found.leader_id else "voter"


def _quorum_row(found: QuorumDescription, one: QuorumReplica, role: str, options: argparse.Namespace) -> list[Any]:
    times = (one.last_fetch_timestamp, one.last_caught_up_timestamp)
    shown = times if options.json else map(time_text, times)
    return [one.id, role, one.log_end_offset, found.lag(one), *shown]


def _log_dirs(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    brokers = [_broker(name) for name in options.names] or None
    found, status = partial_results(lambda: admin.describe_log_dirs(brokers), output)
    placed = [(broker, one) for broker, some in sorted(found.items()) for one in some.values()]
    for broker, one in placed:
        if one.error is not None:
            output.say(f"kcodec: broker {broker}: {one.error}")
            status = ExitStatus.ERROR
    if options.replicas:
        replicas = [(broker, one, *item) for broker, one in placed for item in sorted(one.replicas.items())]
        write_items(output, replicas, REPLICA_COLUMNS, _replica_row, _replica_fields, as_json=options.json)
        return status
    rows = (
        (broker, one.path, len(one.replicas), sum(replica.size for replica in one.replicas.values()), *_volume(one))
        for broker, one in placed
    )
    columns = ("broker", "path", "replicas", "bytes", "volume_bytes", "free_bytes")
    write_rows(output, columns, rows, as_json=options.json)
    return status


def _volume(one: LogDirDescription) -> tuple[int | None, int | None]:
    return one.total_bytes, one.usable_bytes


def _replica_row(placed: _PlacedReplica) -> list[Any]:
    broker, directory, partition, one = placed
    return [broker, *partition, one.size, one.offset_lag, one.is_future, directory.path]


def _replica_fields(placed: _PlacedReplica) -> dict[str, Any]:
    broker, directory, partition, one = placed
    return {
        "broker": broker,
        **partition._asdict(),
        **attributes(one, "size offset_lag is_future"),
        "path": directory.path,
    }


def _broker(name: str) -> int:
    if not name.isdecimal():
        raise CommandError(f"{name!r} is not the id of a broker: expected a number, such as 1")
    return int(name)


def _configs(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    from kcodec.admin.values import ConfigResourceType

    types = {one.name.lower().replace("_", "-"): one for one in ConfigResourceType}
    for name in options.names:
        if name not in types:
            raise CommandError(f"unknown type {name!r}{nearest(name, types)}")
    found = admin.list_config_resources([types[name] for name in options.names] or None)
    rows = ((one.type.name.lower().replace("_", "-"), one.name) for one in found)
    write_rows(output, ("type", "name"), rows, as_json=options.json)
    return ExitStatus.OK


def _unregister(admin: Admin, options: argparse.Namespace, output: Output) -> ExitStatus:
    needs_names(options.names, "the id of a BROKER", "unregister", options.bootstrap_server)
    brokers = [_broker(name) for name in options.names]
    running, stopped = _registered(admin)
    for broker in brokers:
        if broker in running:
            raise CommandError(f"broker {broker} is running; stop it first, as it would register again")
        if stopped is not None and broker not in stopped:
            raise CommandError(f"no broker with the id {broker} is registered")
    held = _replicas_of(admin, brokers)
    for broker in brokers:
        replicas = f"{counted(held[broker], 'replica')} assigned to it"
        if options.execute:
            admin.unregister_broker(broker)
            output.say(f"broker {broker}: unregistered; {replicas}")
        else:
            output.say(f"broker {broker}: would be unregistered; {replicas}")
    if not options.execute:
        output.say("nothing was changed; --execute makes the changes")
    return ExitStatus.OK


def _registered(admin: Admin) -> tuple[set[int], set[int] | None]:
    """Return the ids of the running brokers, and of the stopped ones; None if they are unknown (before Kafka 4.0)."""
    from kcodec.errors import UnsupportedError

    try:
        brokers = admin.describe_cluster(include_fenced_brokers=True).brokers
    except UnsupportedError:
        return {one.id for one in admin.describe_cluster().brokers}, None
    return {one.id for one in brokers if not one.is_fenced}, {one.id for one in brokers if one.is_fenced}


def _replicas_of(admin: Admin, brokers: list[int]) -> dict[int, int]:
    """Return the number of replicas that are assigned to each of these brokers."""
    topics = admin.describe_topics().values()
    replicas = [broker for topic in topics for partition in topic.partitions for broker in partition.replicas]
    return {broker: replicas.count(broker) for broker in brokers}


ACTIONS: dict[str, Callable[[Admin, argparse.Namespace, Output], ExitStatus]] = {
    "describe": _describe,
    "quorum": _quorum,
    "log-dirs": _log_dirs,
    "configs": _configs,
    "unregister": _unregister,
}
