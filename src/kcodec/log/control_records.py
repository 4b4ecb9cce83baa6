# SPDX-License-Identifier: Apache-2.0
"""Control records and what they say (ControlRecordType, ControlRecordUtils).

The key is version and type, two bytes each; a key of a newer version is read as one of version 0. End-transaction
markers stand in every topic, the others in ``__cluster_metadata`` and its snapshots only. A type that is not known here
exists in newer logs, and is no error.
"""

from __future__ import annotations

import struct

from kcodec.constants import ControlType
from kcodec.errors import DecodeError
from kcodec.log.message_schema import (
    Message,
    array,
    decode_message,
    int16,
    int32,
    int64,
    string,
    struct_of,
    uint16,
    uuid,
)
from kcodec.log.record_kinds import InternalRecord, RecordKind


class EndTxnMarker(Message, versions="0"):
    """The value of an end-transaction marker, behind its version; the type in the key says COMMIT or ABORT."""

    coordinator_epoch: int = int32("0+")


class LeaderVoter(Message):
    """A voter of the quorum."""

    voter_id: int = int32("0+")
    voter_directory_id: str = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """A new leader of the quorum."""

    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: tuple[LeaderVoter, ...] = array(LeaderVoter, "0+")
    granting_voters: tuple[LeaderVoter, ...] = array(LeaderVoter, "0+")


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a snapshot. Timestamp: ms."""

    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a snapshot."""

    version: int = int16("0+")


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """The version of the quorum's protocol."""

    version: int = int16("0+")
    kraft_version: int = int16("0+")


class VoterEndpoint(Message):
    """Where a voter listens."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class VersionRange(Message):
    """The versions of the quorum's protocol that a voter supports."""

    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class Voter(Message):
    """A voter, its directory and its endpoints."""

    voter_id: int = int32("0+")
    voter_directory_id: str = uuid("0+")
    endpoints: tuple[VoterEndpoint, ...] = array(VoterEndpoint, "0+")
    kraft_version_feature: VersionRange = struct_of(VersionRange, "0+")


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voters of the quorum."""

    version: int = int16("0+")
    voters: tuple[Voter, ...] = array(Voter, "0+")


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
    """What a control record says; never an error: what cannot be read is told in it."""
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
