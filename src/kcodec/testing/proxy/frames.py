# SPDX-License-Identifier: Apache-2.0
"""Kafka's frames in the proxy: length, header, names of the APIs, and an exchange (a request and its response).

On a connection, each frame follows its length, which has four bytes. The frame of a request is a header (api key,
version, correlation id, client id) and the body. The frame of a response is the correlation id and the body. In this
module, a frame does not include the length.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kcodec.errors import DecodeError
from kcodec.protocol.frame import read_unsigned_varint, skip_tagged_fields

Frame = bytes | bytearray | memoryview

#: No frame is longer: a broker refuses more than socket.request.max.bytes, 100 MiB by default; responses may be longer.
MAX_FRAME_BYTES = 512 << 20

_NAMES = """
    Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown OffsetCommit
    OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake
    ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn
    AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit DescribeAcls CreateAcls DeleteAcls DescribeConfigs
    AlterConfigs AlterReplicaLogDirs DescribeLogDirs SaslAuthenticate CreatePartitions CreateDelegationToken
    RenewDelegationToken ExpireDelegationToken DescribeDelegationToken DeleteGroups ElectLeaders
    IncrementalAlterConfigs AlterPartitionReassignments ListPartitionReassignments OffsetDelete DescribeClientQuotas
    AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch
    DescribeQuorum AlterPartition UpdateFeatures Envelope FetchSnapshot DescribeCluster DescribeProducers
    BrokerRegistration BrokerHeartbeat UnregisterBroker DescribeTransactions ListTransactions AllocateProducerIds
    ConsumerGroupHeartbeat ConsumerGroupDescribe ControllerRegistration GetTelemetrySubscriptions PushTelemetry
    AssignReplicasToDirs ListConfigResources DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch
    ShareAcknowledge AddRaftVoter RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState
    WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary StreamsGroupHeartbeat
    StreamsGroupDescribe DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets
    StreamsGroupTopologyDescriptionUpdate UnregisterController
"""
#: Kafka's ApiKeys by their number.
API_NAMES = tuple(_NAMES.split())

_FIXED_HEADER = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")


def api_key(api: str | int) -> int:
    """Return the number of an API, given its number or its name (``"EndTxn"``). Raise ValueError for an unknown
    name."""
    if isinstance(api, int):
        return api
    try:
        return API_NAMES.index(api)
    except ValueError:
        raise ValueError(f"unknown api {api!r}: names are those of Kafka's ApiKeys, such as EndTxn") from None


def api_name(key: int) -> str:
    """Return Kafka's name of an API; its number if it is unknown."""
    return API_NAMES[key] if 0 <= key < len(API_NAMES) else str(key)


class RequestHeader(NamedTuple):
    """The part of a request header that all versions share, and its end in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


def parse_request_header(frame: Frame) -> RequestHeader:
    """Return the header of a request frame. Raise DecodeError if it is truncated, or not a Kafka request."""
    try:
        key, version, correlation_id, length = _FIXED_HEADER.unpack_from(frame)
    except struct.error:
        raise DecodeError(f"a request of {len(frame)} bytes is too short: its header has at least 10") from None
    if length < 0:
        return RequestHeader(key, version, correlation_id, None, _FIXED_HEADER.size)
    end = _FIXED_HEADER.size + length
    text = bytes(memoryview(frame)[_FIXED_HEADER.size : end])
    if len(text) < length:
        raise DecodeError(f"request header: a client id of {length} bytes, but only {len(text)} bytes remain")
    return RequestHeader(key, version, correlation_id, text.decode("utf-8", "replace"), end)


def correlation_id(frame: Frame) -> int:
    """Return the correlation id of a response frame. Raise DecodeError if it is truncated."""
    if len(frame) < _LENGTH.size:
        raise DecodeError("the response is shorter than its correlation id of 4 bytes")
    return int(_LENGTH.unpack_from(frame)[0])


def has_no_response(exchange: Exchange, frame: Frame) -> bool:
    """Return whether this is a Produce request with acks=0, which gets no response. Raise DecodeError if truncated."""
    if exchange.api_key != 0 or exchange.version < 3:
        return False
    at = exchange.body_at
    if exchange.version >= 9:
        view = memoryview(frame)
        length, at = read_unsigned_varint(view, skip_tagged_fields(view, at))
        length -= 1
    else:
        length, at = int.from_bytes(frame[at : at + 2], "big", signed=True), at + 2
    at += max(length, 0)
    return frame[at : at + 2] == b"\0\0"


def read_frame(source: socket.socket) -> bytearray | None:
    """Return the next complete frame. Return None at the end of the connection, even in the middle of a frame.

    Raise DecodeError for a length that is negative or above MAX_FRAME_BYTES, OSError if the connection is lost.
    """
    head = _read_exactly(source, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if not 0 <= size <= MAX_FRAME_BYTES:
        raise DecodeError(f"a frame of {size} bytes exceeds {MAX_FRAME_BYTES}: this is not a Kafka connection")
    return _read_exactly(source, size)


def _read_exactly(source: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = source.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data


def send_frame(target: socket.socket, frame: Frame) -> None:
    """Write a frame with its length. Raise OSError if the connection is lost."""
    size = len(frame)
    if size < 1 << 16:
        target.sendall(b"".join((_LENGTH.pack(size), frame)))
    else:
        target.sendall(_LENGTH.pack(size))
        target.sendall(frame)


@dataclass(slots=True, eq=False)
class Exchange:
    """One request through the proxy and its response: an entry of the wire log.

    time, response_time: Monotonic time at which the complete frame had arrived; None if it has not arrived.
    connection:          Number of the client's connection, from 1.
    node:                Id of the broker; None if the proxy only knows its address.
    api_key, version:    Number of the API, and version of the request.
    correlation_id:      Correlation id of the request.
    client_id:           Client id of the request; None if it has none.
    body_at:             position in the request at which the client id ends; the tagged fields of a flexible header and
                         the body follow.
    request_size, response_size: Number of bytes without the length.
    actions:             Actions of rules ("hold", "cut", ...), and "lost" for a frame that could not be forwarded, or
                         that followed a dropped one.
    request, response:   The frames, kept after the exchange only with ``KafkaProxy(keep_bytes=True)``.
    """

    connection: int
    node: int | None
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    request_size: int
    body_at: int = field(repr=False)
    request: Frame | None = field(default=None, repr=False)
    response: Frame | None = field(default=None, repr=False)
    time: float = field(default_factory=time.monotonic)
    response_time: float | None = None
    response_size: int | None = None
    actions: tuple[str, ...] = ()

    @property
    def api(self) -> str:
        """Kafka's name of the API."""
        return api_name(self.api_key)

    def request_message(self) -> Any:
        """Return the decoded request, of its class in `kcodec.protocol.messages`. Raise ValueError if its bytes were
        not kept."""
        from kcodec.testing.proxy.answers import decode_request

        if self.request is None:
            raise ValueError(f"{self.api}: the request's bytes were not kept; use KafkaProxy(keep_bytes=True)")
        return decode_request(self)

    def response_message(self) -> Any:
        """Return the decoded response. Raise ValueError if none exists, or its bytes were not kept."""
        from kcodec.testing.proxy.answers import decode_response

        if self.response is None:
            raise ValueError(
                f"{self.api}: there is no response, or its bytes were not kept; use KafkaProxy(keep_bytes=True)"
            )
        return decode_response(self, self.response)


def open_exchange(frame: Frame, connection: int, node: int | None) -> Exchange:
    """Return the exchange that begins with this request frame. Raise DecodeError if it has no request header."""
    header = parse_request_header(frame)
    return Exchange(
        connection=connection,
        node=node,
        api_key=header.api_key,
        version=header.version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        request_size=len(frame),
        body_at=header.end,
        request=frame,
    )
