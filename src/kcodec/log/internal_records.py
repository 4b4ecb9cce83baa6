# SPDX-License-Identifier: Apache-2.0
"""Records that Kafka writes for itself, made readable: control records of any topic, and all of the internal topics."""

from __future__ import annotations

from typing import Any

from kcodec._fast import Record
from kcodec.constants import CLUSTER_METADATA_TOPIC
from kcodec.errors import DecodeError
from kcodec.log.control_records import decode_control_record
from kcodec.log.coordinator_records import (
    COORDINATOR_RECORDS,
    TRANSACTION_STATES,
    decode_coordinator_record,
)
from kcodec.log.metadata_records import decode_metadata_record
from kcodec.log.record_kinds import InternalRecord, decode_message, message_dict
from kcodec.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kcodec.protocol.messages.records import GroupMetadataValue, TransactionLogValue
from kcodec.protocol.schema import Message

CONSUMER_PROTOCOL_TYPE = "consumer"
VERSION_BYTES = 2


def decode_internal_record(topic: str | None, record: Record) -> InternalRecord | None:
    """Return what a record of an internal topic, or a control record of any topic, says; None for every other record.

    Its key and value are messages of `kcodec.protocol.messages`. Never raise for hostile bytes: `InternalRecord.error`
    says what cannot be read. record: with key and value.
    """
    if record.control_type is not None:
        return decode_control_record(record.key, record.value)
    if topic == CLUSTER_METADATA_TOPIC:
        return decode_metadata_record(record.value)
    kinds = COORDINATOR_RECORDS.get(topic or "")
    return None if kinds is None else decode_coordinator_record(kinds, record.key, record.value)


def internal_record(topic: str | None, record: Record) -> dict[str, Any] | None:
    """Return the same as a dict for JSON: type, key, version and value, or error; None if the record is not internal.

    Names are Kafka's in snake_case, bytes base64 text, ids Kafka's text. The name of a transaction's status is added to
    its number, and what members of consumer groups have encoded is decoded.
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
    """Return what a consumer encoded into its group's metadata as a dict; `otherwise` if it is not such a message.

    A version above the known ones is read as the highest of them (ConsumerProtocol).
    """
    if len(content) < VERSION_BYTES:
        return otherwise
    version = min(int.from_bytes(content[:VERSION_BYTES], "big", signed=True), kind.versions.last)
    try:
        return message_dict(decode_message(kind, version, content, VERSION_BYTES), version)
    except DecodeError:
        return otherwise
