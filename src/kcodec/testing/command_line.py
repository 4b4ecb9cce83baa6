# SPDX-License-Identifier: Apache-2.0
"""python -m kcodec.testing.kafka: a Kafka that runs until it is stopped.

    start    starts a cluster and prints only its bootstrap servers to stdout. If the cluster is already running, it
             prints them again. If the processes of the cluster have ended, it starts them again, with their data
    status   lists the clusters
    stop     ends a cluster and removes its data

Each cluster has a name, by default "default". Its state and its data are in clusters/NAME in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kcodec.testing.bare_admin import BrokerRefused
from kcodec.testing.jars import KAFKA_VERSION, TESTED_VERSIONS
from kcodec.testing.java import MissingTool, cache_directory
from kcodec.testing.kafka import ApacheKafka, KafkaFailed
from kcodec.testing.processes import Process
from kcodec.testing.security import MECHANISMS

__all__ = ["main"]

DEFAULT_NAME = "default"
DESCRIPTION = "cluster.json"
#: The options of `start` that are saved, with their defaults.
START_DEFAULTS: dict[str, Any] = {
    "version": KAFKA_VERSION,
    "nodes": 1,
    "transaction_version": None,
    "tls": False,
    "sasl": None,
    "authorizer": False,
    "heap": "96m",
    "property": [],
}


@dataclass(frozen=True)
class RunningCluster:
    """The saved state of a cluster. `nodes` are pairs of process id and path of server.properties; `options` those of
    its start."""

    name: str
    version: str
    transaction_version: int
    bootstrap_servers: str
    admin_servers: str
    nodes: list[tuple[int, str]]
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> RunningCluster | None:
        """Read the state. Return None if it was never written, because the start was interrupted or is not complete."""
        try:
            return cls(**json.loads((directory / DESCRIPTION).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def write(self, directory: Path) -> None:
        """Write the state next to the data, atomically."""
        unfinished = directory / f"{DESCRIPTION}.{os.getpid()}.new"
        try:
            unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
            unfinished.replace(directory / DESCRIPTION)
        finally:
            unfinished.unlink(missing_ok=True)

    def client_ports(self) -> dict[int, int]:
        """Return the port for clients of each node, by its id."""
        addresses = self.bootstrap_servers.split(",")
        return {number: int(address.rpartition(":")[2]) for number, address in enumerate(addresses, 1)}

    def processes(self) -> list[Process]:
        """Return the running processes of its nodes."""
        found = [Process(pid, path) for pid, path in self.nodes]
        return [process for process in found if process.is_running()]


def clusters() -> Path:
    """Return the folder of all clusters."""
    return cache_directory() / "clusters"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return 0 on success. Errors are printed on stderr."""
    given = parser().parse_args(arguments)
    try:
        return {"start": start, "stop": stop, "status": status}[given.command](given)
    except (MissingTool, KafkaFailed, BrokerRefused, ValueError, OSError) as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m kcodec.testing.kafka", description="A real Apache Kafka on loopback.")
    commands = top.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("start", help="start a cluster, unless it is running, and print its bootstrap servers")
    begin.add_argument(
        "--version",
        default=KAFKA_VERSION,
        help=f"Kafka version (default %(default)s); tested: {', '.join(TESTED_VERSIONS)}",
    )
    begin.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="number of brokers and controllers (default 1)"
    )
    begin.add_argument("--transaction-version", type=int, choices=(0, 1, 2), help="feature level (default: the newest)")
    begin.add_argument("--tls", action="store_true", help="use TLS for clients, with a new certificate authority")
    begin.add_argument(
        "--sasl",
        action="append",
        choices=("all", *MECHANISMS),
        help="SASL mechanism; creates users admin, alice and bob",
    )
    begin.add_argument(
        "--authorizer", action="store_true", help="deny everything to users other than admin until allowed"
    )
    begin.add_argument("--heap", default="96m", help="heap size of each JVM (default %(default)s)")
    begin.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="additional line of server.properties"
    )
    end = commands.add_parser("stop", help="end a cluster and remove its data")
    for command in (begin, end):
        command.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster (default %(default)s)")
    end.add_argument("--all", action="store_true", help="stop all clusters")
    commands.add_parser("status", help="list the clusters")
    return top


def start(given: argparse.Namespace) -> int:
    """Start a cluster that continues to run after this process."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", given.name):
        raise ValueError(f"invalid cluster name {given.name!r}: use letters, digits, dots and dashes")
    directory = clusters() / given.name
    ended = _find(directory, given)
    running = ended.processes() if ended is not None else []
    if ended is not None and len(running) == len(ended.nodes):
        print(f"the cluster {given.name} is already running", file=sys.stderr)
        print(ended.bootstrap_servers)
        return 0
    for process in running:  # other nodes have ended: all of them continue together, with their data
        process.kill()
    properties: dict[str, Any] = dict(_property(text) for text in given.property)
    sasl = True if "all" in (given.sasl or ()) else given.sasl
    kafka = ApacheKafka(
        given.version,
        nodes=given.nodes,
        transaction_version=given.transaction_version,
        tls=given.tls,
        sasl=sasl,
        authorizer=given.authorizer,
        heap=given.heap,
        directory=directory,
        **properties,
    )
    if ended is None:
        directory.mkdir(parents=True)
    else:
        kafka.client_ports = ended.client_ports()
    try:
        kafka.start(guarded=False)
        nodes = [(node.pid or 0, str(node.directory / "server.properties")) for node in kafka.nodes]
        servers = (kafka.bootstrap_servers, kafka.admin_servers)
        options = {name: getattr(given, name) for name in START_DEFAULTS}
        RunningCluster(given.name, kafka.version, kafka.transaction_version, *servers, nodes, options).write(directory)
    except BaseException:
        kafka.close()
        if ended is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    if ended is not None:
        print(f"the processes of the cluster {given.name} had ended; it continues with its data", file=sys.stderr)
        for text in moved(ended.bootstrap_servers, kafka.bootstrap_servers):
            print(text, file=sys.stderr)
    _show(kafka, given.name)
    return 0


def moved(before: str, now: str) -> list[str]:
    """Return a warning for each node of a continued cluster whose address has changed, because its port was in use."""
    pairs = zip(before.split(","), now.split(","), strict=True)
    return [
        f"WARNING: node {number} is now at {new}: another process uses {old}, its address until now; change "
        "bootstrap_servers in programs that have the old address"
        for number, (old, new) in enumerate(pairs, 1)
        if old != new
    ]


def _find(directory: Path, given: argparse.Namespace) -> RunningCluster | None:
    """Return the state of the cluster to use or continue; None if it does not exist. Options that are missing become
    those of its start. Raise ValueError if its start was interrupted, or had other options."""
    if not directory.is_dir():
        return None
    more = f" --name {given.name}" if given.name != DEFAULT_NAME else ""
    state = RunningCluster.read(directory)
    if state is None:
        hint = f"`stop{more}` removes it"
        raise ValueError(f"the cluster {given.name} is starting, or its start was interrupted: {hint}")
    saved = {**START_DEFAULTS, "version": state.version, "nodes": len(state.nodes), **state.options}
    others = [
        f"--{name.replace('_', '-')}"
        for name, default in START_DEFAULTS.items()
        if getattr(given, name) not in (default, saved[name])
    ]
    if others:
        raise ValueError(
            f"the cluster {given.name} was started without {', '.join(others)}, or with another value: remove it with"
            f" `stop{more}`, or start another one with --name"
        )
    for name in START_DEFAULTS:
        setattr(given, name, saved[name])
    return state


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--property {text}: expected NAME=VALUE, as in log.retention.ms=60000")
    return name, value


def _show(kafka: ApacheKafka, name: str) -> None:
    """Print information for people on stderr, and output for programs on stdout."""
    more = "" if name == DEFAULT_NAME else f" --name {name}"
    places = ", ".join(str(node.log_directory) for node in kafka.nodes)
    print(f"Kafka {kafka.version}, transaction version {kafka.transaction_version}", file=sys.stderr)
    print(f"log director{'y' if len(kafka.nodes) == 1 else 'ies'}: {places}", file=sys.stderr)
    print(f"stop it with: python -m kcodec.testing.kafka stop{more}", file=sys.stderr)
    options = kafka.client_options()
    if options["security_protocol"] != "PLAINTEXT":  # otherwise a client needs the address only
        print("options for clients, in addition to the address:", file=sys.stderr)
        for option, value in options.items():
            if option != "bootstrap_servers" and isinstance(value, str):
                print(f"  {option}={value}", file=sys.stderr)
    print(kafka.bootstrap_servers)


def stop(given: argparse.Namespace) -> int:
    """Kill the processes of a cluster and remove its folder."""
    found = sorted(path.name for path in clusters().iterdir()) if clusters().is_dir() else []
    names = found if given.all else [given.name]
    for name in names:
        if name not in found:
            there = f"existing clusters: {', '.join(found)}" if found else "there are no clusters"
            raise ValueError(f"the cluster {name} does not exist; {there}")
        state = RunningCluster.read(clusters() / name)
        for process in state.processes() if state else []:
            process.kill()
        shutil.rmtree(clusters() / name)
        print(f"stopped {name}", file=sys.stderr)
    return 0


def status(given: argparse.Namespace) -> int:
    """Print one line for each cluster: name, version, transaction version, number of running nodes, bootstrap
    servers."""
    for directory in sorted(clusters().iterdir()) if clusters().is_dir() else []:
        state = RunningCluster.read(directory)
        if state is None:
            print(f"{directory.name}\tstarting, or interrupted")
            continue
        running = f"{len(state.processes())} of {len(state.nodes)} nodes run"
        version = f"{state.version}\ttransaction version {state.transaction_version}"
        print(f"{state.name}\t{version}\t{running}\t{state.bootstrap_servers}")
    return 0
