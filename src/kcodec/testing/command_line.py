# SPDX-License-Identifier: Apache-2.0
"""python -m kcodec.testing.kafka: a Kafka that stays until it is told to stop.

    start    brings one up and prints its bootstrap servers, and nothing else, on stdout
    status   lists those there are
    stop     ends one and removes its data

Each has a name, "default" if none is given. What is known of it lies in the cache, in clusters/NAME with its data.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kcodec.testing.bare_admin import BrokerRefused
from kcodec.testing.jars import KAFKA_VERSION
from kcodec.testing.java import MissingTool, cache_directory
from kcodec.testing.kafka import ApacheKafka, KafkaFailed
from kcodec.testing.processes import Process
from kcodec.testing.security import MECHANISMS

__all__ = ["main"]

DEFAULT_NAME = "default"
DESCRIPTION = "cluster.json"


@dataclass(frozen=True)
class RunningCluster:
    """What is written down of a cluster: `nodes` are pairs of process id and path of server.properties."""

    name: str
    version: str
    transaction_version: int
    bootstrap_servers: str
    admin_servers: str
    nodes: list[tuple[int, str]]

    @classmethod
    def read(cls, directory: Path) -> RunningCluster | None:
        """None if it was never written: the start was interrupted, or has not ended."""
        try:
            return cls(**json.loads((directory / DESCRIPTION).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def write(self, directory: Path) -> None:
        """Write it beside the data."""
        (directory / DESCRIPTION).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def processes(self) -> list[Process]:
        """Those of its nodes that run."""
        found = [Process(pid, path) for pid, path in self.nodes]
        return [process for process in found if process.is_running()]


def clusters() -> Path:
    """The folder of all clusters."""
    return cache_directory() / "clusters"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it did what it was asked. Errors are told on stderr."""
    given = parser().parse_args(arguments)
    try:
        return {"start": start, "stop": stop, "status": status}[given.command](given)
    except (MissingTool, KafkaFailed, BrokerRefused, ValueError, OSError) as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m kcodec.testing.kafka", description="A real Apache Kafka on loopback.")
    commands = top.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("start", help="start a cluster and print its bootstrap servers")
    begin.add_argument("--version", default=KAFKA_VERSION, help="of Kafka (default %(default)s); tested: 4.3.1, 3.9.1")
    begin.add_argument("--nodes", type=int, default=1, metavar="N", help="each a broker and controller (default 1)")
    begin.add_argument("--transaction-version", type=int, choices=(0, 1, 2), help="the feature; default: the newest")
    begin.add_argument("--tls", action="store_true", help="TLS for clients; the authority's certificate is made")
    begin.add_argument(
        "--sasl", action="append", choices=("all", *MECHANISMS), help="a mechanism; users admin, alice and bob are made"
    )
    begin.add_argument("--authorizer", action="store_true", help="nobody but admin may do anything until allowed")
    begin.add_argument("--heap", default="96m", help="of each JVM (default %(default)s)")
    begin.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="more of server.properties"
    )
    end = commands.add_parser("stop", help="end a cluster and remove its data")
    for command in (begin, end):
        command.add_argument("--name", default=DEFAULT_NAME, help="which cluster (default %(default)s)")
    end.add_argument("--all", action="store_true", help="every cluster there is")
    commands.add_parser("status", help="list the clusters")
    return top


def start(given: argparse.Namespace) -> int:
    """Start a cluster that outlives this process."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", given.name):
        raise ValueError(f"no name for a cluster: {given.name!r}; letters, digits, dots and dashes make one")
    directory = clusters() / given.name
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
    _make_directory(directory, given.name)
    try:
        kafka.start(guarded=False)
        nodes = [(node.pid or 0, str(node.directory / "server.properties")) for node in kafka.nodes]
        servers = (kafka.bootstrap_servers, kafka.admin_servers)
        RunningCluster(given.name, kafka.version, kafka.transaction_version, *servers, nodes).write(directory)
    except BaseException:
        kafka.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    _show(kafka, given.name)
    return 0


def _make_directory(directory: Path, name: str) -> None:
    """An empty folder; what an earlier cluster left is removed if none of its processes runs. Raises ValueError."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        state = RunningCluster.read(directory)
        if state is None:
            hint = f"`stop --name {name}` removes what was begun" if name != DEFAULT_NAME else "`stop` removes it"
            raise ValueError(f"the cluster {name} is being started, or its start was interrupted: {hint}") from None
        if state.processes():
            raise ValueError(f"the cluster {name} runs already: {state.bootstrap_servers}") from None
        print(f"the cluster {name} had died; its data is removed", file=sys.stderr)
        shutil.rmtree(directory)
        directory.mkdir()


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--property {text}: expected NAME=VALUE, as in log.retention.ms=60000")
    return name, value


def _show(kafka: ApacheKafka, name: str) -> None:
    """What is for the eye on stderr, what is for programs on stdout."""
    more = "" if name == DEFAULT_NAME else f" --name {name}"
    options = kafka.client_options()
    print(f"Kafka {kafka.version}, transaction version {kafka.transaction_version}; data in", end="", file=sys.stderr)
    print(f" {kafka.directory}; end it by: python -m kcodec.testing.kafka stop{more}", file=sys.stderr)
    for option, value in options.items():
        if option != "bootstrap_servers" and isinstance(value, str):
            print(f"  {option}={value}", file=sys.stderr)
    print(kafka.bootstrap_servers)


def stop(given: argparse.Namespace) -> int:
    """Kill what runs of a cluster and remove its folder."""
    found = sorted(path.name for path in clusters().iterdir()) if clusters().is_dir() else []
    names = found if given.all else [given.name]
    for name in names:
        if name not in found:
            there = f"there are {', '.join(found)}" if found else "there is none"
            raise ValueError(f"no cluster {name}: {there}")
        state = RunningCluster.read(clusters() / name)
        for process in state.processes() if state else []:
            process.kill()
        shutil.rmtree(clusters() / name)
        print(f"stopped {name}", file=sys.stderr)
    return 0


def status(given: argparse.Namespace) -> int:
    """A line a cluster: name, version, transaction version, how many nodes run, bootstrap servers."""
    for directory in sorted(clusters().iterdir()) if clusters().is_dir() else []:
        state = RunningCluster.read(directory)
        if state is None:
            print(f"{directory.name}\tstarting, or interrupted")
            continue
        running = f"{len(state.processes())} of {len(state.nodes)} nodes run"
        version = f"{state.version}\ttransaction version {state.transaction_version}"
        print(f"{state.name}\t{version}\t{running}\t{state.bootstrap_servers}")
    return 0
