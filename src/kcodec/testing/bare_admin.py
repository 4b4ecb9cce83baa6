# SPDX-License-Identifier: Apache-2.0
"""A few requests in their oldest forms that Kafka 3 and 4 both speak, so that a broker can be asked whether it stands.

Not a client: one plaintext connection a request, no retries. What a broker is tested with must not be what starts it.
The formats: ListOffsetsRequest.json, MetadataRequest.json, FindCoordinatorRequest.json and CreateTopicsRequest.json of
kafka-clients, and the responses to them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from kcodec.protocol.error_codes import ErrorCode

__all__ = ["Acl", "BrokerRefused", "Metadata", "Partition", "coordinator", "create_topic", "end_offset", "metadata"]

TIMEOUT_SECONDS = 5.0
LARGEST_ANSWER = 64 << 20
LIST_OFFSETS, METADATA, FIND_COORDINATOR, CREATE_TOPICS = 2, 3, 10, 19
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
COORDINATOR_TYPES = {"group": 0, "transaction": 1}


# AccessControlEntry in Kafka's numbers: ResourceType, AclOperation, PatternType, AclPermissionType.
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
OPERATIONS = {
    "All": 2,
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "ClusterAction": 9,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
}
LITERAL, PREFIXED = 3, 4
ALLOW = 3


class BrokerRefused(RuntimeError):
    """A broker answered with an error code: .code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Partition:
    """Where a partition lives: node ids, leader -1 if there is none."""

    error_code: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class Metadata:
    """What one broker knows of its cluster."""

    brokers: dict[int, tuple[str, int]]
    controller: int
    topics: dict[str, dict[int, Partition]] = field(default_factory=dict)


@dataclass(frozen=True)
class Acl:
    """That a principal may do an operation on a resource; names as in RESOURCES and OPERATIONS."""

    principal: str
    operation: str
    resource: str
    name: str
    is_prefix: bool = False

    def fields(self) -> bytes:
        """As CreateAcls has it; the filters of DescribeAcls and DeleteAcls have the same fields in the same order."""
        data = struct.pack(">b", RESOURCES[self.resource]) + _string(self.name)
        data += struct.pack(">b", PREFIXED if self.is_prefix else LITERAL) + _string(self.principal) + _string("*")
        return data + struct.pack(">bb", OPERATIONS[self.operation], ALLOW)


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: str) -> int:
        (value,) = struct.unpack_from(">" + kind, self._data, self._at)
        self._at += struct.calcsize(">" + kind)
        return int(value)

    def string(self) -> str | None:
        length = self.take("h")
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def integers(self) -> tuple[int, ...]:
        return tuple(self.take("i") for _ in range(self.take("i")))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _ask(address: str, api_key: int, version: int, body: bytes, timeout: float = TIMEOUT_SECONDS) -> _Answer:
    """Send one request with a header of version 1 and give what follows the correlation id of its answer."""
    host, port = address.rsplit(":", 1)
    request = struct.pack(">hhi", api_key, version, 1) + _string("kcodec-testing") + body
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= length <= LARGEST_ANSWER:
            raise OSError(f"{address} answered with a length of {length}: no Kafka")
        return _Answer(_receive(connection, length)[4:])


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionResetError(f"the broker closed the connection after {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def metadata(address: str, topics: tuple[str, ...] = (), timeout: float = TIMEOUT_SECONDS) -> Metadata:
    """What the broker at `address` says of the cluster and these topics (Metadata version 4). Raises OSError."""
    body = struct.pack(">i", len(topics)) + b"".join(map(_string, topics)) + b"\0"
    answer = _ask(address, METADATA, 4, body, timeout)
    answer.take("i")  # throttle time
    brokers = {}
    for _ in range(answer.take("i")):
        node = answer.take("i")
        brokers[node] = (answer.string() or "", answer.take("i"))
        answer.string()  # rack
    answer.string()  # cluster id
    controller = answer.take("i")
    found = {}
    for _ in range(answer.take("i")):
        answer.take("h")
        name = answer.string() or ""
        answer.take("b")  # internal
        partitions = {}
        for _ in range(answer.take("i")):
            error_code, partition, leader = answer.take("h"), answer.take("i"), answer.take("i")
            partitions[partition] = Partition(error_code, leader, answer.integers(), answer.integers())
        found[name] = partitions
    return Metadata(brokers, controller, found)


def create_topic(
    address: str,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_ms: int = 15000,
) -> None:
    """Create a topic (CreateTopics version 4); replication factor -1 is the broker's. Raises BrokerRefused, OSError."""
    body = struct.pack(">i", 1) + _string(name) + struct.pack(">ihi", partitions, replication_factor, 0)
    body += struct.pack(">i", len(configs)) + b"".join(_string(key) + _string(value) for key, value in configs.items())
    answer = _ask(address, CREATE_TOPICS, 4, body + struct.pack(">ib", timeout_ms, 0))
    answer.take("i")  # throttle time
    for _ in range(answer.take("i")):
        topic, code, text = answer.string(), answer.take("h"), answer.string()
        if code:
            raise BrokerRefused(f"topic {topic} was not created: {text or 'no reason given'} (error {code})", code)


def end_offset(address: str, topic: str, partition: int) -> int:
    """The high watermark, from the broker that leads this partition (ListOffsets version 1). Raises BrokerRefused."""
    body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">iiq", 1, partition, -1)
    answer = _ask(address, LIST_OFFSETS, 1, body)
    answer.take("i")  # one topic
    answer.string()
    answer.take("i")  # one partition
    answer.take("i")
    code = answer.take("h")
    if code:
        raise BrokerRefused(f"no end offset of {topic}-{partition} (error {code})", code)
    answer.take("q")  # timestamp
    return answer.take("q")


def coordinator(address: str, kind: str, key: str) -> int | None:
    """The node that coordinates this "transaction" or "group" (FindCoordinator version 1); None: not known yet."""
    answer = _ask(address, FIND_COORDINATOR, 1, _string(key) + struct.pack(">b", COORDINATOR_TYPES[kind]))
    answer.take("i")  # throttle time
    code, text, node = answer.take("h"), answer.string(), answer.take("i")
    if code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return None
    if code:
        raise BrokerRefused(f"the coordinator of {kind} {key} was not told: {text} (error {code})", code)
    return node


def create_acl(address: str, acl: Acl) -> None:
    """Allow it (CreateAcls version 1). Raises BrokerRefused."""
    answer = _ask(address, CREATE_ACLS, 1, struct.pack(">i", 1) + acl.fields())
    _check_first(answer, f"{acl} was not created")


def delete_acl(address: str, acl: Acl) -> None:
    """Allow it no more (DeleteAcls version 1). Raises BrokerRefused."""
    answer = _ask(address, DELETE_ACLS, 1, struct.pack(">i", 1) + acl.fields())
    _check_first(answer, f"{acl} was not deleted")


def _check_first(answer: _Answer, what: str) -> None:
    answer.take("i")  # throttle time
    answer.take("i")  # one result
    code, text = answer.take("h"), answer.string()
    if code:
        raise BrokerRefused(f"{what}: {text} (error {code})", code)


def has_acl(address: str, acl: Acl) -> bool:
    """Whether this very broker knows it (DescribeAcls version 1): each learns of changes by itself."""
    answer = _ask(address, DESCRIBE_ACLS, 1, acl.fields())
    answer.take("i")  # throttle time
    code, text = answer.take("h"), answer.string()
    if code:
        raise BrokerRefused(f"no answer about {acl}: {text} (error {code})", code)
    return answer.take("i") > 0
