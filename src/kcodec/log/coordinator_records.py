# SPDX-License-Identifier: Apache-2.0
"""Records of the coordinators' topics: ``__transaction_state``, ``__consumer_offsets``, ``__share_group_state``.

Key and value begin with two bytes each: the key's are the record's type, the value's its version, as
CoordinatorRecordSerde reads them. Newer logs have types and versions that are unknown here: such a record is reported
as unknown, and reading goes on. Bytes behind a message are ignored, as Kafka ignores them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.errors import DecodeError
from kcodec.log.record_kinds import InternalRecord, RecordKind, decode_message
from kcodec.protocol.messages import group_records as groups
from kcodec.protocol.messages import records
from kcodec.protocol.messages import share_records as shares
from kcodec.protocol.messages import streams_records as streams
from kcodec.protocol.schema import CoordinatorKey

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
    """Return what a record says. kinds: those of its topic in COORDINATOR_RECORDS.

    Never raise for hostile bytes: `InternalRecord.error` says what cannot be read.
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
            raise DecodeError(f"a value of {len(value)} bytes, too short for its version")
        (version,) = _PREFIX.unpack_from(value)
        return InternalRecord(
            found.name, version, message_key, decode_message(found.value, version, value, _PREFIX.size)
        )
    except DecodeError as error:
        return InternalRecord(found.name, version, message_key, error=error.reason)
