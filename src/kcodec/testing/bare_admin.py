# SPDX-License-Identifier: Apache-2.0
"""A few requests in the oldest versions that Kafka 3 and 4 both support, to find out whether a broker is ready.

This is not a client: each request uses one plaintext connection, without retries. The code that starts a broker must be
independent of the code that is tested with this broker, so it uses only the messages of `kcodec.protocol`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from kcodec.admin.security import AclBinding, acl_creation, acl_filter_fields
from kcodec.errors import DecodeError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode, error_code
from kcodec.protocol.frame import decode_response, encode_request
from kcodec.testing.proxy.frames import read_frame

__all__ = ["BrokerRefused", "coordinator", "create_topic", "end_offsets", "metadata", "partitions_of"]

TIMEOUT_SECONDS = 5.0
COORDINATOR_TYPES = {"group": 0, "transaction": 1}


class BrokerRefused(RuntimeError):
    """A broker responded with an error code: .code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _request(address: str, request: Any, version: int, timeout: float = TIMEOUT_SECONDS) -> Any:
    """Send one request and return the response. Raise OSError, also for an invalid response."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(encode_request(request, version, 1, "kcodec-testing"))
        try:
            frame = read_frame(connection)
            if frame is None:
                raise ConnectionResetError(f"{address} closed the connection before the response was complete")
            return decode_response(memoryview(frame), type(request), version)
        except DecodeError as error:
            raise OSError(f"{address}: {error}") from error


def _check(what: str, code: int, text: str | None = None) -> None:
    if code:
        raise BrokerRefused(f"{what}: {text or error_code(code).text} [{error_code(code).name}]", code)


def metadata(address: str, topics: tuple[str, ...] = (), timeout: float = TIMEOUT_SECONDS) -> messages.MetadataResponse:
    """Return the metadata of the cluster and these topics from the broker at `address`. Raise OSError."""
    requested = [messages.MetadataRequestTopic(name=name) for name in topics]
    request = messages.MetadataRequest(topics=requested, allow_auto_topic_creation=False)
    response: messages.MetadataResponse = _request(address, request, 4, timeout)
    return response


def partitions_of(address: str, topic: str) -> dict[int, messages.MetadataResponsePartition]:
    """Return the partitions of a topic by number, from the broker at `address`. Raise OSError."""
    return {found.partition_index: found for found in metadata(address, (topic,)).topics[0].partitions}


def create_topic(
    address: str,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_ms: int = 15000,
) -> None:
    """Create a topic. With the replication factor -1, the broker chooses it. Raise BrokerRefused or OSError."""
    topic = messages.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[messages.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    for result in _request(address, messages.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 4).topics:
        _check(f"topic {result.name} was not created", result.error_code, result.error_message)


def end_offsets(address: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Return the high watermarks by partition, from the broker that leads all of these. Raise BrokerRefused,
    OSError."""
    latest = [messages.ListOffsetsPartition(partition_index=partition, timestamp=-1) for partition in partitions]
    requested = messages.ListOffsetsTopic(name=topic, partitions=latest)
    (result,) = _request(address, messages.ListOffsetsRequest(replica_id=-1, topics=[requested]), 1).topics
    for found in result.partitions:
        _check(f"the end offset of {topic}-{found.partition_index} is not available", found.error_code)
    return {found.partition_index: int(found.offset) for found in result.partitions}


def coordinator(address: str, kind: str, key: str) -> int | None:
    """Return the node that coordinates this "transaction" or "group"; None if it is unknown at the moment."""
    found = _request(address, messages.FindCoordinatorRequest(key=key, key_type=COORDINATOR_TYPES[kind]), 1)
    if found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return None
    _check(f"the coordinator of {kind} {key} is not available", found.error_code, found.error_message)
    return int(found.node_id)


def create_acl(address: str, acl: AclBinding) -> None:
    """Create an ACL. Raise BrokerRefused, OSError."""
    (result,) = _request(address, messages.CreateAclsRequest(creations=[acl_creation(acl)]), 1).results
    _check(f"the ACL was not created: {acl}", result.error_code, result.error_message)


def delete_acl(address: str, acl: AclBinding) -> None:
    """Delete an ACL. Raise BrokerRefused, OSError."""
    chosen = messages.DeleteAclsFilter(**acl_filter_fields(acl))
    (result,) = _request(address, messages.DeleteAclsRequest(filters=[chosen]), 1).filter_results
    _check(f"the ACL was not deleted: {acl}", result.error_code, result.error_message)


def has_acl(address: str, acl: AclBinding) -> bool:
    """Return whether this broker knows the ACL; brokers learn of changes separately. Raise BrokerRefused, OSError."""
    response = _request(address, messages.DescribeAclsRequest(**acl_filter_fields(acl)), 1)
    _check(f"the ACL cannot be described: {acl}", response.error_code, response.error_message)
    return bool(response.resources)
