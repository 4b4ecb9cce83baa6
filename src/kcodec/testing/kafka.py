# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka on loopback, for tests: one node or three nodes, started from the jars with Java.

    with ApacheKafka() as kafka:                       # 4.4.0, one node, transaction version 2
        topic = kafka.create_topic(partitions=3)
        Producer(bootstrap_servers=kafka.bootstrap_servers)
        kafka.kill(); kafka.start()                    # a crash; the data stays

The data is in a temporary folder, which is removed at the end. The ports are free ports. The brokers end at the latest
when the process that started them ends.
On the command line: ``python -m kcodec.testing.kafka start | stop | status``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from kcodec.arguments import names_of
from kcodec.testing.certificates import Certificates
from kcodec.testing.cluster_admin import ClusterAdmin
from kcodec.testing.jars import KAFKA_VERSION, broker_jars
from kcodec.testing.java import MissingTool, cache_directory, find_java
from kcodec.testing.node import START_SECONDS, KafkaFailed, Launch, Node, PortInUse, start_nodes, wait_ready
from kcodec.testing.processes import WATCHDOG
from kcodec.testing.properties import (
    Advertise,
    Listener,
    Value,
    advertised,
    listeners_of,
    property_name,
    server_properties,
)
from kcodec.testing.security import ListenerSecurity
from kcodec.testing.tokens import TokenServer

__all__ = [
    "KAFKA_VERSION",
    "ApacheKafka",
    "Certificates",
    "KafkaFailed",
    "Listener",
    "MissingTool",
    "Node",
    "TokenServer",
]

PORT_ATTEMPTS = 3


class ApacheKafka(ClusterAdmin):
    """A Kafka of one or more nodes, which `with` or `start()` starts.

    version:             Version of Kafka. The versions 4.4.0, 4.3.1 and 3.9.1 are tested.
    nodes:               Number of nodes. Each node is a broker and a controller. With three nodes, a topic has three
                         replicas, and min.insync.replicas is 2.
    transaction_version: Version of the feature transaction.version: 0, 1 or 2. If None, the version is 2 from Kafka 4
                         on, and 0 before Kafka 4.
    tls:                 True: clients connect with TLS, and new certificates are created. To use certificates with
                         other names, pass Certificates(). To require certificates of clients, pass
                         ssl_client_auth="required".
    sasl:                True, or the SASL mechanisms that clients can use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,
                         OAUTHBEARER. True means all of them.
    users:               Users for SASL, as a dict of names and passwords. If None, the users are admin, alice and bob,
                         and their passwords are admin-secret, alice-secret and bob-secret.
    token_server:        TokenServer that issues the tokens for OAUTHBEARER. If None, the broker accepts unsigned
                         tokens.
    authorizer:          True: a user has only the permissions that `allow` gives. The user admin has all permissions.
    heap:                Maximum heap of each JVM, as in -Xmx. For thousands of partitions, use Kafka's default, "1g".
    directory:           Folder for the data. If None, the folder is a temporary one, which `close()` removes.
    advertise:           Function that changes the addresses that the brokers advertise. The function takes a Listener
                         (CLIENT for clients, BROKER for other brokers) and returns (host, port) or "host:port". If the
                         function returns None, the address does not change. kcodec calls it before the start.
    jvm_options:         Additional options for the JVM of each node.
    properties:          Additional settings of server.properties, with _ in place of dots: log_retention_ms=-1.

    Raise MissingTool if there is no Java or the jars are not available, KafkaFailed if a broker does not start.
    """

    def __init__(
        self,
        version: str = KAFKA_VERSION,
        *,
        nodes: int = 1,
        transaction_version: int | None = None,
        tls: bool | Certificates = False,
        sasl: bool | str | Iterable[str] | None = None,
        users: Mapping[str, str] | None = None,
        token_server: TokenServer | None = None,
        authorizer: bool = False,
        heap: str = "96m",
        directory: str | os.PathLike[str] | None = None,
        advertise: Advertise | None = None,
        jvm_options: Iterable[str] = (),
        **properties: Value,
    ) -> None:
        super().__init__()
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        self.version = version
        self.directory = Path(directory).absolute() if directory is not None else None
        self._own_directory = directory is None
        self._node_count = nodes
        self._advertise = advertise
        self._jvm_options = (f"-Xmx{heap}", *names_of(jvm_options, "jvm_options"))
        self._properties = {property_name(name): value for name, value in properties.items()}
        unstable = str(self._properties.get("unstable.feature.versions.enable")).lower() == "true"
        self.transaction_version = _transaction_version(version, transaction_version, unstable)
        has_client_certificates = "ssl.client.auth" in self._properties
        self._security = ListenerSecurity(tls, sasl, users, authorizer, token_server, has_client_certificates)
        self._addresses: dict[tuple[int, str], str] = {}
        #: Ports for the clients of each node, by its id, if they are free when it is started for the first time.
        self.client_ports: dict[int, int] = {}
        self._shares_classes = True

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
        """The addresses for clients: host:port of each node as advertised, separated by commas."""
        return ",".join(self._addresses[node.id, "CLIENT"] for node in self.nodes)

    @property
    def admin_servers(self) -> str:
        """The addresses of the listeners that are always plaintext, allow all operations and have no proxy."""
        return ",".join(node.admin_server for node in self.nodes)

    @property
    def log_directory(self) -> Path:
        """The log directory of the only node, for `kcodec.open`."""
        return self._only().log_directory

    @property
    def certificates(self) -> Certificates:
        """The certificates of a Kafka with TLS: of the authority, of clients, and of an untrusted authority."""
        if self._security.certificates is None:
            raise ValueError("this Kafka does not use TLS: start it with tls=True")
        return self._security.certificates

    def client_options(
        self, user: str = "alice", mechanism: str | None = None, *, client_certificate: bool = False
    ) -> dict[str, Any]:
        """Return the options with which a client of kcodec connects as this user: bootstrap_servers and the security
        options.

        mechanism: SASL mechanism; None for the first one of this Kafka.
        client_certificate: Whether to send a certificate with CN=user.
        """
        found = self._security.client_options(user, mechanism, client_certificate)
        return {"bootstrap_servers": self.bootstrap_servers, **found}

    def start(self, timeout: float = START_SECONDS, *, guarded: bool = True) -> None:
        """Start all nodes that are not running, and wait until they know each other.

        guarded: Whether the brokers end when this process ends.
        """
        if self.nodes:
            start_nodes(self.nodes, len(self.nodes), timeout, guarded=guarded)
            return
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._start_first(timeout, guarded)
            except PortInUse:  # another process has taken the port before Kafka opened it
                self.close()
                if attempt == PORT_ATTEMPTS - 1:
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
        """Stop all nodes gracefully. Their data stays, and `start()` continues with it."""
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

    def log_tail(self, lines: int = 60) -> str:
        """Return the last lines of each node's server.log."""
        return "\n".join(f"--- server.log of node {node.id} ---\n{node.log_tail(lines)}" for node in self.nodes)

    def _start_first(self, timeout: float, guarded: bool) -> None:
        # Resolved, because an archive of classes is valid only for one class path.
        jars = os.pathsep.join(str(jar.resolve()) for jar in broker_jars(self.version))
        launch = Launch(find_java(), jars, (*self._jvm_options, *self._security.jvm_options()))
        if self._shares_classes:
            launch = replace(launch, options=(*launch.options, *_shared_classes(self.version, launch)))
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="kcodec-kafka-"))
            if guarded:
                WATCHDOG.watch(self.directory)
        self.nodes = self._make_nodes(self.directory, launch)
        if not (self.nodes[0].log_directory / "meta.properties").is_file():
            self._format()
        for node in self.nodes:
            node.launch(guarded=guarded)
        wait_ready(self.nodes, len(self.nodes), timeout)

    def _make_nodes(self, directory: Path, launch: Launch) -> list[Node]:
        taken: set[int] = set()
        numbers = range(1, self._node_count + 1)
        listeners = {number: listeners_of(number, taken, self.client_ports.get(number)) for number in numbers}
        voters = {number: own["CONTROLLER"] for number, own in listeners.items()}
        self._addresses = {
            (number, name): advertised(own[name], self._advertise)
            for number, own in listeners.items()
            for name in ("CLIENT", "BROKER")
        }
        more = {**self._security.properties(directory / "certificates"), **self._properties}
        nodes = []
        for number, own in listeners.items():
            place = directory / f"node-{number}"
            addresses = {name: self._addresses[number, name] for name in ("CLIENT", "BROKER")}
            properties = server_properties(own, voters, str(place / "data"), addresses, self._security.protocol, more)
            nodes.append(Node(place, own, properties, launch))
        return nodes

    def _format(self) -> None:
        first, *others = self.nodes
        feature = ["--feature", f"transaction.version={self.transaction_version}"]
        first.format(_kafka_uuid(), [*feature, *self._security.format_options()])
        for node in others:
            node.format_like(first, _kafka_uuid())

    def _only(self) -> Node:
        if len(self.nodes) != 1:
            raise ValueError(f"there are {len(self.nodes)} nodes: select one, as in kafka.node(1)")
        return self.nodes[0]


def _transaction_version(version: str, requested: int | None, unstable: bool) -> int:
    """Return the requested version, or the newest that this Kafka supports. Raise ValueError if it is not available."""
    newest = 2 if int(version.partition(".")[0]) >= 4 else 0
    if requested is None:
        return newest
    if requested > newest and not unstable:
        raise ValueError(
            f"Kafka {version} supports transaction versions up to {newest}, not {requested}; 3.9 has 1 and 2 as "
            "unstable features, which unstable_feature_versions_enable=True allows"
        )
    return requested


def _shared_classes(version: str, launch: Launch) -> list[str]:
    """Return JVM options that load a broker's classes from an archive, which halves the processor time of a start.

    The archive is created once for each version and Java, by a broker that starts and stops; an empty file means that
    this Java cannot create one.
    """
    digest = hashlib.sha256(f"{launch.java.resolve()}\n{launch.class_path}".encode()).hexdigest()[:12]
    archive = cache_directory() / f"kafka-{version}-{digest}.jsa"
    if not archive.is_file():
        with tempfile.TemporaryDirectory(prefix="kcodec-classes-", dir=archive.parent) as scratch:
            made = Path(scratch, archive.name)
            options = [f"-XX:ArchiveClassesAtExit={made}"]
            kafka = ApacheKafka(version, directory=Path(scratch, "data"), jvm_options=options)
            kafka._shares_classes = False
            with kafka:
                kafka.stop()
            made.touch()
            made.replace(archive)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _kafka_uuid() -> str:
    """Return 16 random bytes in the form of Kafka's Uuid: URL-safe base64, without padding and without a dash in
    front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


if __name__ == "__main__":
    from kcodec.testing.command_line import main

    sys.exit(main())
