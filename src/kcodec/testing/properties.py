# SPDX-License-Identifier: Apache-2.0
"""A broker's server.properties: listeners, small buffers, and the requested properties.

A node has four listeners, each on a separate loopback port:

    CLIENT      for clients, with TLS and SASL if requested; a proxy may be advertised instead
    BROKER      between brokers (replication, transaction markers); a proxy may be advertised instead
    ADMIN       plaintext, without a proxy and without restrictions: for the test itself
    CONTROLLER  the KRaft quorum

Ports are below the range that systems use for outgoing connections. The ports of a broker must still be free when it
restarts. A client that repeatedly connects to a closed port of that range may also connect to itself.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = [
    "HOST",
    "Advertise",
    "Listener",
    "free_port",
    "listeners_of",
    "property_name",
    "property_text",
    "server_properties",
    "write_properties",
]

HOST = "127.0.0.1"
NAMES = ("CLIENT", "BROKER", "ADMIN", "CONTROLLER")
PORTS = range(20000, 32000)
PORT_ATTEMPTS = 200

Value = str | int | bool | float


@dataclass(frozen=True)
class Listener:
    """One listening port of one node.

    name: Name of the listener: CLIENT, BROKER, ADMIN or CONTROLLER.
    node: Id of the node.
    host, port: Address on which the node listens.
    """

    name: str
    node: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """Its address, host:port."""
        return f"{self.host}:{self.port}"


# The address to advertise for a listener (CLIENT or BROKER), as (host, port) or "host:port"; None: its own.
Advertise = Callable[[Listener], "tuple[str, int] | str | None"]

# The buffers are small enough for the default heap of 96 MB. The intervals are short, so that the broker starts quickly
# and soon reacts to a test. Data is kept whatever its timestamps are. A topic that was not created is an error.
DEFAULTS: dict[str, Value] = {
    "num.partitions": 3,
    "auto.create.topics.enable": False,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.cleaner.io.buffer.size": 64 << 10,
    "log.cleaner.backoff.ms": 1000,
    "log.index.size.max.bytes": 1 << 20,
    "log.retention.ms": -1,
    "log.message.timestamp.after.max.ms": (1 << 63) - 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    # For the consumer protocol, only the bounds are set. Tests set the values for each group (consumer.*).
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.segment.bytes": 16 << 20,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.segment.bytes": 16 << 20,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "share.coordinator.state.topic.num.partitions": 1,
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 250,
}


def free_port(taken: set[int], preferred: int | None = None) -> int:
    """Return a port of PORTS that is not in use and not in `taken`, and add it there.

    preferred: Port to return if it is free.
    """
    for attempt in range(PORT_ATTEMPTS):
        port = preferred if preferred is not None and not attempt else random.SystemRandom().choice(PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        taken.add(port)
        return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop} was found in {PORT_ATTEMPTS} attempts")


def listeners_of(node: int, taken: set[int], client_port: int | None = None) -> dict[str, Listener]:
    """Return the listeners of a node by name, on ports that are free now.

    client_port: Port of the listener CLIENT, if it is free.
    """
    ports = {name: free_port(taken, client_port if name == "CLIENT" else None) for name in NAMES}
    return {name: Listener(name, node, HOST, port) for name, port in ports.items()}


def property_name(name: str) -> str:
    """Return log.retention.ms for the Python keyword log_retention_ms: no property of Kafka has an underscore."""
    return name.replace("_", ".")


def advertised(listener: Listener, advertise: Advertise | None) -> str:
    """Return the advertised host:port."""
    found = advertise(listener) if advertise and listener.name in ("CLIENT", "BROKER") else None
    if found is None:
        return listener.address
    return found if isinstance(found, str) else f"{found[0]}:{found[1]}"


def server_properties(
    own: Mapping[str, Listener],
    voters: Mapping[int, Listener],
    directory: str,
    advertise: Mapping[str, str],
    client_protocol: str,
    more: Mapping[str, Value],
) -> dict[str, Value]:
    """Return the server.properties of the node with these listeners.

    `voters` are the CONTROLLER listeners of all nodes, `advertise` the advertised addresses of CLIENT and BROKER,
    `client_protocol` the protocol of CLIENT, and `more` overrides.
    """
    nodes = len(voters)
    addresses = {name: advertise.get(name, own[name].address) for name in NAMES[:3]}
    protocols = {**dict.fromkeys(NAMES, "PLAINTEXT"), "CLIENT": client_protocol}
    return {
        "node.id": own["CLIENT"].node,
        "process.roles": "broker,controller",
        "listeners": ",".join(f"{name}://{own[name].address}" for name in NAMES),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{node}@{listener.address}" for node, listener in voters.items()),
        "log.dirs": directory,
        "default.replication.factor": nodes,
        "min.insync.replicas": (nodes + 1) // 2,
        "offsets.topic.replication.factor": nodes,
        "transaction.state.log.replication.factor": nodes,
        "transaction.state.log.min.isr": (nodes + 1) // 2,
        "share.coordinator.state.topic.replication.factor": nodes,
        "share.coordinator.state.topic.min.isr": (nodes + 1) // 2,
        # A killed broker may register again, and loses its partitions, only after the end of its session.
        "broker.session.timeout.ms": 2500 if nodes == 1 else 4000,
        **DEFAULTS,
        **more,
    }


def property_text(value: Value) -> str:
    """Return a value as Kafka reads it, with true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_properties(properties: Mapping[str, Value]) -> str:
    """Return the text of a Java properties file in ASCII, with other characters of a value escaped."""
    return "".join(f"{name}={_escaped(property_text(value))}\n" for name, value in properties.items())


def _escaped(text: str) -> str:
    encoded = text.encode("utf-16-be")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)  # as Java counts characters
    plain = (chr(unit) if 32 <= unit < 127 and unit != ord("\\") else f"\\u{unit:04x}" for unit in units)
    return "".join(plain)
