# SPDX-License-Identifier: Apache-2.0
"""Records of ``__cluster_metadata`` and its snapshots: the state that the controllers replicate.

A record's value begins with a frame: varints of the frame's version (1), of the record's type, and of its version
(AbstractApiMessageSerde). `kcodec.protocol.messages.metadata_records` declares what follows.
"""

from __future__ import annotations

import re

from kcodec.errors import DecodeError
from kcodec.log.record_kinds import InternalRecord, RecordKind, decode_message
from kcodec.protocol.messages import metadata_records
from kcodec.protocol.schema import MetadataRecord

FRAME_VERSION = 1
_VARINT_BYTES = 5  # of 32 bits

# By record type. Kafka's tools print the name of RegisterBrokerRecord as REGISTER_BROKER_RECORD.
METADATA_RECORDS = {
    kind.api_key: RecordKind(re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).upper(), None, kind)
    for kind in vars(metadata_records).values()
    if isinstance(kind, type) and issubclass(kind, MetadataRecord) and hasattr(kind, "api_key")
}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned varint of at most 32 bits at a byte, and the position behind it. Raise DecodeError."""
    value = 0
    for index, byte in enumerate(data[position : position + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 32:
                raise DecodeError(f"a varint above 32 bits: {value}")
            return value, position + index + 1
    if len(data) - position >= _VARINT_BYTES:
        raise DecodeError(f"a varint of more than {_VARINT_BYTES} bytes")
    raise DecodeError("1 bytes are needed but 0 remain")


def decode_metadata_record(value: bytes | None) -> InternalRecord:
    """Return what a record of the metadata log says. Never raise: `InternalRecord.error` says what cannot be read."""
    if value is None:
        return InternalRecord("unknown", error="a metadata record without a value")
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
