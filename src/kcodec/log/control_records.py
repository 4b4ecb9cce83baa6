# SPDX-License-Identifier: Apache-2.0
"""Control records and what they say (ControlRecordType, ControlRecordUtils).

The key is version and type, two bytes each; a key of a newer version is read as one of version 0. Any topic may have
end-transaction markers; only ``__cluster_metadata`` and its snapshots have the others. A type that is unknown here may
come from a newer release, and is reported as unknown.
"""

from __future__ import annotations

import struct

from kcodec.constants import ControlType
from kcodec.errors import DecodeError
from kcodec.log.record_kinds import InternalRecord, RecordKind, decode_message
from kcodec.protocol.messages.control_records import (
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

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
    """Return what a control record says. Never raise: `InternalRecord.error` says what cannot be read."""
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
        return InternalRecord(name, error="a value too short for its version")
    (version,) = _VERSION.unpack_from(value)
    try:
        if kind is EndTxnMarker:
            if version < 0:
                raise DecodeError(f"version {version} of an end-transaction marker")
            # Behind its version, and a newer one begins like version 0 (EndTransactionMarker).
            return InternalRecord(name, version, value=decode_message(kind, 0, value, _VERSION.size))
        return InternalRecord(name, version, value=decode_message(kind, version, value))
    except DecodeError as error:
        return InternalRecord(name, version, error=error.reason)
