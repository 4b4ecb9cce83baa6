# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka on loopback, for tests: one node or three, started from its jars by a plain Java.

    with ApacheKafka() as kafka:                       # 4.3.1, one node, transaction version 2
        topic = kafka.create_topic(partitions=3)
        Producer(bootstrap_servers=kafka.bootstrap_servers)
        kafka.kill(); kafka.start()                    # a crash; the data stays

Its data lies in a temporary folder that goes with it, its ports are free ones, and it dies with the process that
started it.
On the command line: ``python -m kcodec.testing.kafka start | stop | status``.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from kcodec.testing import bare_admin
from kcodec.testing.jars import KAFKA_VERSION, broker_jars
from kcodec.testing.java import MissingTool, find_java
from kcodec.testing.node import START_SECONDS, KafkaFailed, Launch, Node
from kcodec.testing.processes import WATCHDOG
from kcodec.testing.properties import (
    Advertise,
    Listener,
    Value,
    advertised,
    listeners_of,
    property_name,
    property_text,
    server_properties,
)

__all__ = ["KAFKA_VERSION", "ApacheKafka", "KafkaFailed", "Listener", "MissingTool", "Node"]

PORT_ATTEMPTS = 3
TOPIC_SECONDS = 20.0
POLL_SECONDS = 0.02

Found = TypeVar("Found")


class ApacheKafka:
    """A Kafka of one node or several, which `with` or `start()` starts.

    version:             of Kafka: "4.3.1" and "3.9.1" are tested with.
    nodes:               how many; each is broker and controller. Of three, replication is 3 and min.insync.replicas 2.
    transaction_version: the finalized feature transaction.version: 0, 1 or 2; None is 2, and 0 before Kafka 4.
    heap:                of each JVM, as -Xmx takes it.
    directory:           where to keep its data; None is a temporary folder, removed by `close()`.
    advertise:           function(Listener) -> address to tell clients (listener CLIENT) and other brokers (BROKER) in
                         its place, as (host, port) or "host:port"; None leaves it. It is called before the start.
    jvm_options:         more options for the JVM of each node.
    properties:          more of server.properties, with _ for the dots: log_retention_ms=-1.

    Raises MissingTool if there is no Java or no jars can be had, KafkaFailed if a broker does not start.
    """

    def __init__(
        self,
        version: str = KAFKA_VERSION,
        *,
        nodes: int = 1,
        transaction_version: int | None = None,
        heap: str = "96m",
        directory: str | os.PathLike[str] | None = None,
        advertise: Advertise | None = None,
        jvm_options: Iterable[str] = (),
        **properties: Value,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}: expected at least 1")
        self.version = version
        self.transaction_version = _transaction_version(version, transaction_version)
        self.directory = Path(directory).absolute() if directory is not None else None
        self._own_directory = directory is None
        self._nodes_wanted = nodes
        self._advertise = advertise
        self._jvm_options = (f"-Xmx{heap}", *jvm_options)
        self._properties = {property_name(name): value for name, value in properties.items()}
        self.nodes: list[Node] = []

    def __repr__(self) -> str:
        return f"<ApacheKafka {self.version} {self.nodes}>"

    def __enter__(self) -> ApacheKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to: host:port of each node as advertised, separated by commas."""
        return ",".join(self._told(node, "CLIENT") for node in self.nodes)

    @property
    def admin_servers(self) -> str:
        """The same for listeners that are always plaintext, allow everything and have nothing in front of them."""
        return ",".join(node.admin_server for node in self.nodes)

    @property
    def log_directory(self) -> Path:
        """The log directory of the only node, for `kcodec.open`."""
        return self._only().log_directory

    def node(self, number: int) -> Node:
        """The node with this id, from 1."""
        return self.nodes[number - 1]

    def start(self, timeout: float = START_SECONDS, *, guarded: bool = True) -> None:
        """Start what does not run, at first with everything that needs, and wait until all nodes know each other.

        guarded: the brokers end when this process does.
        """
        if self.nodes:
            for node in self.nodes:
                if not node.is_running:
                    node.launch(guarded=guarded)
            self._wait_ready(timeout)
            return
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._start_first(timeout, guarded)
            except KafkaFailed as failed:
                self.close()
                # Between our look at a port and Kafka's, somebody else took it.
                if "Address already in use" not in str(failed) or attempt == PORT_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.close()
                raise
            else:
                return

    def kill(self) -> None:
        """SIGKILL all nodes at once."""
        for node in self.nodes:
            node.kill()

    def pause(self) -> None:
        """SIGSTOP all nodes."""
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        """SIGCONT all nodes."""
        for node in self.nodes:
            node.resume()

    def stop(self) -> None:
        """Stop all nodes in an orderly way; their data stays, and `start()` goes on with it."""
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait_stopped()

    def restart(self, timeout: float = START_SECONDS) -> None:
        """Stop and start all nodes."""
        self.stop()
        self.start(timeout)

    def close(self) -> None:
        """End all nodes at once, and remove their data if they were in a temporary folder."""
        self.kill()
        self.nodes = []
        if self._own_directory and self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            WATCHDOG.forget(self.directory)
            self.directory = None

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 3,
        *,
        replication_factor: int | None = None,
        **configs: Value,
    ) -> str:
        """Create a topic, wait until all running nodes know its leaders and those lead, and give its name.

        name:    None makes up one that nobody else has.
        configs: of the topic, with _ for the dots: max_message_bytes=1000.

        Raises BrokerRefused (.code).
        """
        name = name if name is not None else f"topic-{uuid.uuid4().hex[:12]}"
        written = {property_name(key): property_text(value) for key, value in configs.items()}
        factor = replication_factor or -1
        self._ask(lambda address: bare_admin.create_topic(address, name, partitions, factor, written))
        self._wait_for(lambda: self._has_leaders(name, partitions), f"topic {name} had its leaders")
        return name

    def leader(self, topic: str, partition: int) -> Node:
        """The node that leads this partition; waits while there is none that runs."""

        def leading() -> Node | None:
            found = self._partition(topic, partition)
            return self._running_node(found.leader if found else None)

        return self._wait_for(leading, f"{topic}-{partition} had a leader that runs")

    def coordinator(self, kind: str, key: str) -> Node:
        """The node that coordinates this "transaction" (its transactional id) or "group"; waits while there is none."""

        def coordinating() -> Node | None:
            return self._running_node(self._ask(lambda address: bare_admin.coordinator(address, kind, key)))

        return self._wait_for(coordinating, f"the {kind} {key} had a coordinator that runs")

    def end_offset(self, topic: str, partition: int) -> int:
        """The high watermark of this partition."""
        return bare_admin.end_offset(self.leader(topic, partition).admin_server, topic, partition)

    def wait_in_sync(self, topic: str, partition: int, timeout: float = TOPIC_SECONDS) -> None:
        """Wait until all replicas of this partition are in sync; TimeoutError if time is up."""

        def in_sync() -> bool:
            found = self._partition(topic, partition)
            return found is not None and set(found.in_sync) == set(found.replicas)

        self._wait_for(in_sync, f"all replicas of {topic}-{partition} were in sync", timeout)

    def log_tail(self, lines: int = 60) -> str:
        """The last lines of each node's server.log."""
        return "\n".join(f"--- server.log of node {node.id} ---\n{node.log_tail(lines)}" for node in self.nodes)

    def _start_first(self, timeout: float, guarded: bool) -> None:
        launch = Launch(find_java(), os.pathsep.join(map(str, broker_jars(self.version))), self._jvm_options)
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="kcodec-kafka-"))
            if guarded:
                WATCHDOG.watch(self.directory)
        self.nodes = self._make_nodes(self.directory, launch)
        if not (self.nodes[0].log_directory / "meta.properties").is_file():
            self._format()
        for node in self.nodes:
            node.launch(guarded=guarded)
        self._wait_ready(timeout)

    def _make_nodes(self, directory: Path, launch: Launch) -> list[Node]:
        taken: set[int] = set()
        listeners = {number: listeners_of(number, taken) for number in range(1, self._nodes_wanted + 1)}
        voters = {number: own["CONTROLLER"] for number, own in listeners.items()}
        self._addresses = {
            (number, name): advertised(own[name], self._advertise)
            for number, own in listeners.items()
            for name in ("CLIENT", "BROKER")
        }
        nodes = []
        for number, own in listeners.items():
            place = directory / f"node-{number}"
            told = {name: self._addresses[number, name] for name in ("CLIENT", "BROKER")}
            properties = server_properties(own, voters, str(place / "data"), told, self._properties)
            nodes.append(Node(place, own, properties, launch))
        return nodes

    def _format(self) -> None:
        first, *others = self.nodes
        first.format(_kafka_uuid(), ["--feature", f"transaction.version={self.transaction_version}"])
        for node in others:
            node.format_like(first, _kafka_uuid())

    def _wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for node in self.nodes:
            node.wait_ready(len(self.nodes), max(0.0, deadline - time.monotonic()))

    def _told(self, node: Node, name: str) -> str:
        return self._addresses[node.id, name]

    def _only(self) -> Node:
        if len(self.nodes) != 1:
            raise ValueError(f"there are {len(self.nodes)} nodes: name one, as in kafka.node(1)")
        return self.nodes[0]

    def _running_node(self, number: int | None) -> Node | None:
        """The node with this id if it runs."""
        found = [node for node in self.nodes if node.id == number and node.is_running]
        return found[0] if found else None

    def _ask(self, question: Callable[[str], Found]) -> Found:
        """Put a question to the first node that answers: one may be dead, or paused."""
        running = [node for node in self.nodes if node.is_running]
        for node in running:
            try:
                return question(node.admin_server)
            except OSError:
                if node is running[-1]:
                    raise
        raise KafkaFailed("no node of this Kafka runs")

    def _wait_for(self, answer: Callable[[], Found | None], what: str, timeout: float = TOPIC_SECONDS) -> Found:
        """Ask until the answer is true, and give it; an OSError is no answer yet."""
        deadline = time.monotonic() + timeout
        while True:
            reason = ""
            try:
                found = answer()
            except OSError as error:
                reason = f": {error}"
            else:
                if found:
                    return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{timeout} s were over before {what}{reason}")
            time.sleep(POLL_SECONDS)

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        """Whether all know them; and that they know it themselves, which comes a little later."""
        known: dict[int, bare_admin.Partition] = {}
        for node in self.nodes:
            if node.is_running:
                known = bare_admin.metadata(node.admin_server, (topic,)).topics.get(topic, {})
                if len(known) < partitions or any(found.leader < 0 for found in known.values()):
                    return False
        try:
            for partition, found in known.items():
                bare_admin.end_offset(self.node(found.leader).admin_server, topic, partition)
        except bare_admin.BrokerRefused:
            return False
        return True

    def _partition(self, topic: str, partition: int) -> bare_admin.Partition | None:
        answer = self._ask(lambda address: bare_admin.metadata(address, (topic,)))
        return answer.topics.get(topic, {}).get(partition)


def _transaction_version(version: str, wanted: int | None) -> int:
    """What is wanted, else the newest that this Kafka has ready: 3.9 knows 1 and 2 as unstable features only."""
    if wanted is not None:
        return wanted
    return 2 if int(version.partition(".")[0]) >= 4 else 0


def _kafka_uuid() -> str:
    """16 random bytes as Kafka's Uuid prints them: base64 for addresses, without padding and no dash at its front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
