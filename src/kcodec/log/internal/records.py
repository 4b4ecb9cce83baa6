# SPDX-License-Identifier: Apache-2.0
"""Decoding of control records of all topics, and of the records of internal topics.

`kcodec.protocol.messages` declares the messages. This module finds the message of a record by the type and version in
its key and value. Unknown types and versions may come from a newer release: such a record is reported as unknown, and
reading continues.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kcodec._fast import Record
from kcodec.constants import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, ControlType
from kcodec.errors import DecodeError
from kcodec.protocol.messages import group_records as groups
from kcodec.protocol.messages import metadata_records, records
from kcodec.protocol.messages import share_records as shares
from kcodec.protocol.messages import streams_records as streams
from kcodec.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kcodec.protocol.messages.control_records import (
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kcodec.protocol.messages.records import GroupMetadataValue, TransactionLogValue
from kcodec.protocol.plain import plain_dict
from kcodec.protocol.schema import HIGHEST_VERSION, CoordinatorKey, Message, MetadataRecord, Struct
from kcodec.quantities import count_text

AnyMessage = TypeVar("AnyMessage", bound=Message)


class RecordKind(NamedTuple):
    """A type of records: Kafka's name, and the messages in key and value."""

    name: str
    key: type[CoordinatorKey] | None
    value: type[Message]


@dataclass(frozen=True)
class InternalRecord:
    """A control record, or a record of an internal topic.

    type:       Kafka's name of the record type; "unknown (42)" for an unknown one.
    version:    Version of the value; None without a value.
    key, value: Messages of `kcodec.protocol.messages`; None if missing (a null value is a tombstone) or unreadable.
    error:      Why the record cannot be read; None if it can.
    """

    type: str
    version: int | None = None
    # Messages are mutable and have no hash.
    key: Message | None = field(default=None, hash=False)
    value: Message | None = field(default=None, hash=False)
    error: str | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record deletes the state of earlier records with its key."""
        return self.key is not None and self.value is None and self.error is None

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON: type, key (if records of the kind have one), version, and value or error."""
        shown: dict[str, Any] = {"type": self.type}
        if self.key is not None:
            shown["key"] = message_dict(self.key, 0)
        if self.version is not None:
            shown["version"] = self.version
        if self.error is not None:
            shown["error"] = self.error
        else:
            version = min(self.version or 0, HIGHEST_VERSION)
            shown["value"] = None if self.value is None else message_dict(self.value, version)
        return shown


def decode_message(
    kind: type[AnyMessage], version: int, data: bytes, position: int = 0, *, is_whole: bool = False
) -> AnyMessage:
    """Return the message of a record that begins at a position of `data`. With `is_whole`, no bytes may follow it.

    Raise DecodeError for an unknown version, or if the bytes are not such a message. Kafka ignores bytes after a
    message in records of coordinators and in control records.
    """
    if not kind.versions.hold(version):
        known = kind.versions
        raise DecodeError(f"{kind.__name__} version {version} is unknown; expected {known.first} to {known.last}")
    return kind.decode(data, version, position) if is_whole else kind.decode_prefix(data, version, position)[0]


def message_dict(message: Struct, version: int) -> dict[str, Any]:
    """Return a message of one version for JSON, with secrets; see `kcodec.protocol.plain`."""
    return plain_dict(message, version, with_secrets=True)


# Control records
# ControlRecordType, ControlRecordUtils: the key is version and type, two bytes each; a key of a newer version is read
# as one of version 0. Any topic may have end-transaction markers; only ``__cluster_metadata`` and its snapshots have
# the others.

CONTROL_RECORDS = {
    int(ControlType.ABORT): RecordKind("ABORT", None, EndTxnMarker),
    int(ControlType.COMMIT): RecordKind("COMMIT", None, EndTxnMarker),
    int(ControlType.LEADER_CHANGE): RecordKind("LEADER_CHANGE", None, LeaderChangeMessage),
    int(ControlType.SNAPSHOT_HEADER): RecordKind("SNAPSHOT_HEADER", None, SnapshotHeaderRecord),
    int(ControlType.SNAPSHOT_FOOTER): RecordKind("SNAPSHOT_FOOTER", None, SnapshotFooterRecord),
    int(ControlType.KRAFT_VERSION): RecordKind("KRAFT_VERSION", None, KRaftVersionRecord),
    int(ControlType.KRAFT_VOTERS): RecordKind("KRAFT_VOTERS", None, VotersRecord),
}
_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


def decode_control_record(key: bytes | None, value: bytes | None) -> InternalRecord:
    """Decode a control record. Never raise: `InternalRecord.error` describes what cannot be read."""
    if key is None or len(key) < _KEY.size:
        held = "no key" if key is None else f"a key of {len(key)} bytes"
        return InternalRecord("unknown", error=f"{held}: version and type of a control record take {_KEY.size}")
    key_version, number = _KEY.unpack_from(key)
    found = CONTROL_RECORDS.get(number)
    if key_version < 0 or found is None:
        what = f"key version {key_version}" if key_version < 0 else f"control type {number}"
        return InternalRecord(f"unknown ({number})", error=f"{what} is not known")
    name, kind = found.name, found.value
    if value is None or len(value) < _VERSION.size:
        return InternalRecord(name, error="the value is too short for a version")
    (version,) = _VERSION.unpack_from(value)
    try:
        if kind is EndTxnMarker:
            if version < 0:
                raise DecodeError(f"version {version} of an end-transaction marker is negative")
            # Behind its version, and a newer one begins like version 0 (EndTransactionMarker).
            return InternalRecord(name, version, value=decode_message(kind, 0, value, _VERSION.size))
        return InternalRecord(name, version, value=decode_message(kind, version, value))
    except DecodeError as error:
        return InternalRecord(name, version, error=error.reason)


# Records of coordinators
# ``__transaction_state``, ``__consumer_offsets``, ``__share_group_state``: key and value begin with two bytes each: the
# key's are the record's type, the value's its version (CoordinatorRecordSerde). Bytes behind a message are ignored, as
# Kafka ignores them.

# The byte transaction_status, as Kafka's tools print it (TransactionState).
TRANSACTION_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}


def _coordinator_records() -> dict[str, dict[int, RecordKind]]:
    """Return the kinds of records by topic and record type, from the keys that the modules of messages declare."""
    declared = {name: kind for module in (records, groups, shares, streams) for name, kind in vars(module).items()}
    kinds: dict[str, dict[int, RecordKind]] = {}
    for name, key in declared.items():
        if isinstance(key, type) and issubclass(key, CoordinatorKey) and hasattr(key, "api_key"):
            kind = RecordKind(name.removesuffix("Key"), key, declared[f"{name.removesuffix('Key')}Value"])
            kinds.setdefault(key.internal_topic, {})[key.api_key] = kind
    # Type 0, which old logs have, has the same fields as type 1 in all its versions.
    kinds[CONSUMER_OFFSETS_TOPIC][0] = kinds[CONSUMER_OFFSETS_TOPIC][1]._replace(name="LegacyOffsetCommit")
    return kinds


# By topic and record type.
COORDINATOR_RECORDS = _coordinator_records()

_PREFIX = struct.Struct(">h")


def decode_coordinator_record(
    kinds: Mapping[int, RecordKind], key: bytes | None, value: bytes | None
) -> InternalRecord:
    """Return the content of a record. `kinds` are those of its topic in COORDINATOR_RECORDS.

    Never raise for invalid bytes: `InternalRecord.error` then describes the problem.
    """
    if key is None or len(key) < _PREFIX.size:
        return InternalRecord("unknown", error="no key" if key is None else f"a key of {len(key)} bytes")
    (number,) = _PREFIX.unpack_from(key)
    found = kinds.get(number)
    if found is None or found.key is None:
        return InternalRecord(f"unknown ({number})", error=f"record type {number} is not known")
    version, message_key = None, None
    try:
        message_key = decode_message(found.key, 0, key, _PREFIX.size)
        if value is None:
            return InternalRecord(found.name, key=message_key)
        if len(value) < _PREFIX.size:
            raise DecodeError(
                f"the value has {count_text(len(value), 'byte')}, expected a version of {_PREFIX.size} bytes first"
            )
        (version,) = _PREFIX.unpack_from(value)
        return InternalRecord(
            found.name, version, message_key, decode_message(found.value, version, value, _PREFIX.size)
        )
    except DecodeError as error:
        return InternalRecord(found.name, version, message_key, error=error.reason)


# Records of the metadata log
# ``__cluster_metadata`` and its snapshots: the state that the controllers replicate. A value begins with varints of the
# frame's version (1), of the record's type, and of its version (AbstractApiMessageSerde).

FRAME_VERSION = 1
_VARINT_BYTES = 5  # of 32 bits

# By record type. Kafka's tools print the name of RegisterBrokerRecord as REGISTER_BROKER_RECORD.
METADATA_RECORDS = {
    kind.api_key: RecordKind(re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).upper(), None, kind)
    for kind in vars(metadata_records).values()
    if isinstance(kind, type) and issubclass(kind, MetadataRecord) and hasattr(kind, "api_key")
}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned varint of at most 32 bits at a position, and the position after it. Raise DecodeError."""
    value = 0
    for index, byte in enumerate(data[position : position + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 32:
                raise DecodeError(f"the varint {value} exceeds 32 bits")
            return value, position + index + 1
    if len(data) - position >= _VARINT_BYTES:
        raise DecodeError(f"a varint has more than {_VARINT_BYTES} bytes")
    raise DecodeError("the data ends inside a varint")


def decode_metadata_record(value: bytes | None) -> InternalRecord:
    """Return the content of a record of the metadata log. Never raise: `InternalRecord.error` describes a problem."""
    if value is None:
        return InternalRecord("unknown", error="a metadata record has no value")
    try:
        frame_version, position = _varint(value, 0)
        number, position = _varint(value, position)
        version, position = _varint(value, position)
        if frame_version != FRAME_VERSION:
            raise DecodeError(f"frame version {frame_version}, expected {FRAME_VERSION}")
    except DecodeError as error:
        return InternalRecord("unknown", error=f"frame of a metadata record: {error.reason}")
    found = METADATA_RECORDS.get(number)
    if found is None:
        return InternalRecord(f"unknown ({number})", version, error=f"record type {number} is not known")
    try:
        message = decode_message(found.value, version, value, position, is_whole=True)
    except DecodeError as error:
        return InternalRecord(found.name, version, error=error.reason)
    return InternalRecord(found.name, version, value=message)


# Any record

CONSUMER_PROTOCOL_TYPE = "consumer"
VERSION_BYTES = 2


def decode_internal_record(topic: str | None, record: Record) -> InternalRecord | None:
    """Return the content of a record of an internal topic, or of a control record of any topic; None for other records.

    Its key and value are messages of `kcodec.protocol.messages`. Never raise for invalid bytes: `InternalRecord.error`
    then describes the problem.

    record: The record, with key and value.
    """
    if record.control_type is not None:
        return decode_control_record(record.key, record.value)
    if topic == CLUSTER_METADATA_TOPIC:
        return decode_metadata_record(record.value)
    kinds = COORDINATOR_RECORDS.get(topic or "")
    return None if kinds is None else decode_coordinator_record(kinds, record.key, record.value)


def internal_record(topic: str | None, record: Record) -> dict[str, Any] | None:
    """Return a record of an internal topic as a dict for JSON: type, key, version and value, or error; else None.

    topic: The topic of the record; None: only control records are decoded. Names are Kafka's in snake_case, bytes are
    base64 text, ids Kafka's text. The name of a transaction's status is added to its number, and the data that members
    of consumer groups have encoded is decoded.
    """
    found = decode_internal_record(topic, record)
    if found is None:
        return None
    shown = found.to_dict()
    if isinstance(found.value, TransactionLogValue):
        status = found.value.transaction_status
        shown["value"]["transaction_state"] = TRANSACTION_STATES.get(status, f"unknown ({status})")
    if isinstance(found.value, GroupMetadataValue) and found.value.protocol_type == CONSUMER_PROTOCOL_TYPE:
        for member, plain in zip(found.value.members, shown["value"]["members"], strict=True):
            plain["subscription"] = _embedded(ConsumerProtocolSubscription, member.subscription, plain["subscription"])
            plain["assignment"] = _embedded(ConsumerProtocolAssignment, member.assignment, plain["assignment"])
    return shown


def _embedded(kind: type[Message], content: bytes, otherwise: str) -> Any:
    """Return the data that a consumer has encoded into the metadata of its group as a dict. If it is not such a
    message, return `otherwise`.

    A version above the known ones is read as the highest of them (ConsumerProtocol).
    """
    if len(content) < VERSION_BYTES:
        return otherwise
    version = min(int.from_bytes(content[:VERSION_BYTES], "big", signed=True), kind.versions.last)
    try:
        return message_dict(decode_message(kind, version, content, VERSION_BYTES), version)
    except DecodeError:
        return otherwise
