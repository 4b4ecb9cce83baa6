# SPDX-License-Identifier: Apache-2.0
"""The parts of responses and logs of two brokers that are compared, where everything that may differ is masked.

Everything of a response is compared except the names in HIDDEN. Of a batch, every byte is: base offset, sizes,
attributes, epochs and sequences as numbers, the records as they are. Masked are timestamps that the broker writes,
CRCs, producer ids, leader and coordinator epochs, and topic ids. The values of the coordinators' records are decoded,
compared with their own encoding byte by byte, masked, and encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from broker_targets import Target

import kcodec
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import group_records
from kcodec.protocol.schema import CoordinatorKey, CoordinatorValue, Struct, fields

#: Fields of responses that do not depend on the state, or whose wording differs.
HIDDEN = {
    "throttle_time_ms",
    "error_message",
    "batch_index_error_message",
    "host",
    "port",
    "node_id",
    "node_endpoints",
    "heartbeat_interval_ms",
    "last_timestamp",
    "current_leader",
    "leader_id",
    "leader_epoch_of_metadata",
}
#: Fields of which only the sign is compared.
SIGNS = {"transaction_start_time_ms", "session_id", "log_append_time_ms"}
PRODUCER_IDS = {"producer_id", "previous_producer_id", "next_producer_id"}
#: Lists whose order means something.
ORDERED = {"aborted_transactions"}
#: A timestamp below is a client's: the broker's own are of today.
FIXED_TIMES_BELOW = 10**9
_SHOWN_BYTES = 48
_NAME_MASK = "SEQUENCE"

Shown = Any


class Masks:
    """The masks of one sequence on one target.

    name: of the sequence, which is part of all its names. lingers: plain batches of coordinators are not comparable.
    """

    def __init__(self, name: str, target: Target, *, lingers: bool = False) -> None:
        self._name = name
        self._lingers = lingers
        self._target = target

    def text(self, value: str) -> str:
        """Return a string with the names of the sequence and of members masked."""
        for number, member in enumerate(self._target.members):
            value = value.replace(member, f"member-{number}")
        return value.replace(self._name, _NAME_MASK)

    def response(self, value: Any) -> Shown:
        """Return what is compared of a message, a struct or a value."""
        return self._shown("", value)

    def _shown(self, name: str, value: Any) -> Shown:
        if name == "records":
            return self.batches(bytes(value or b""))
        if isinstance(value, Struct):
            return [[key, self._shown(key, getattr(value, key))] for key in fields(type(value)) if key not in HIDDEN]
        if isinstance(value, list):
            found = [self._shown(name.removesuffix("s"), one) for one in value]
            return found if name in ORDERED else sorted(found, key=repr)
        return self._plain(name, value)

    def _plain(self, name: str, value: Any) -> Shown:
        if name.endswith("error_code"):
            return ErrorCode(value).name
        if name in PRODUCER_IDS:
            return self._target.symbol(value)
        if name == "coordinator_epoch":
            return "own" if value >= self._target.coordinator_epoch else "none"
        if name == "metadata_hash":
            return value != 0  # of topic ids
        if name in SIGNS:
            return (value > 0) - (value < 0)
        if name == "timestamp" and value >= FIXED_TIMES_BELOW:
            return "now"
        if isinstance(value, UUID):
            return "topic" if value.int else "none"
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.digest(bytes(value))
        return self.text(value) if isinstance(value, str) else value

    def digest(self, value: bytes) -> str:
        """Return bytes with names masked, long ones as a digest."""
        for number, member in enumerate(self._target.members):
            value = value.replace(member.encode(), f"member-{number}".encode())
        value = value.replace(self._name.encode(), _NAME_MASK.encode())
        if len(value) <= _SHOWN_BYTES:
            return value.hex()
        return f"{len(value)} bytes, {hashlib.sha1(value, usedforsecurity=False).hexdigest()}"

    # Batches.

    def batches(self, data: bytes) -> Shown:
        """Return the batches of a response. The last one may be there in part."""
        return [len(data), *(self._batch(batch) for batch in kcodec.batches(data))]

    def _batch(self, batch: Any) -> Shown:
        own_times = batch.is_control_batch or batch.max_timestamp >= FIXED_TIMES_BELOW
        times = "now" if own_times else [batch.base_timestamp, batch.max_timestamp]
        header = [*self._header(batch), batch.base_offset, times]
        if batch.is_control_batch:
            return [header, *(self._marker(record) for record in batch.records())]
        return [header, self.digest(bytes(batch.data)[61:])]

    def _header(self, batch: Any) -> list[Any]:
        return [
            batch.last_offset_delta,
            batch.attributes,
            self._target.symbol(batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
            int.from_bytes(bytes(batch.data)[57:61], "big"),
            batch.size_in_bytes,
        ]

    def _marker(self, record: Any) -> Shown:
        # the value is a version and the coordinator epoch
        return [bytes(record.key).hex(), bytes(record.value)[:2].hex(), len(record.value)]

    def internal(self, data: bytes, is_own: Callable[[Any, list[tuple[Any, Any]]], bool]) -> Iterator[Shown]:
        """Yield the batches of a coordinator's log that belong to the sequence, without their offsets.

        is_own: called with a batch and its records, as pairs of a decoded key and value.
        """
        for batch in kcodec.batches(data):
            if batch.is_control_batch:
                if is_own(batch, []):
                    yield [self._header(batch), *(self._marker(record) for record in batch.records())]
                continue
            records = [(decode_key(record.key), record) for record in batch.records()]
            pairs = [(key, decode_value(key, record.value)) for key, record in records]
            if all(isinstance(key, messages.TransactionLogKey) and value is None for key, value in pairs):
                # expired ids share a batch with those of other sequences, in the order of a hash table
                yield from (self._coordinated(*pair) for pair in pairs if is_own(batch, [pair]))
            elif self._lingers and not batch.is_transactional:
                header = [batch.attributes, batch.base_sequence]
                yield from ([header, self._coordinated(*pair)] for pair in pairs if is_own(batch, [pair]))
            elif is_own(batch, pairs):
                yield [self._header(batch), *(self._coordinated(key, value) for key, value in pairs)]

    def _coordinated(self, key: CoordinatorKey, value: tuple[int, CoordinatorValue] | None) -> Shown:
        shown = [type(key).__name__, *self._shown("", key)]
        if value is None:
            return [*shown, None]
        version, decoded = value
        return [*shown, version, [one for one in self._shown("", decoded) if "timestamp" not in one[0]]]


_PAIRS: list[tuple[Any, Any]] = [
    (messages.TransactionLogKey, messages.TransactionLogValue),
    (messages.OffsetCommitKey, messages.OffsetCommitValue),
    (messages.GroupMetadataKey, messages.GroupMetadataValue),
    (group_records.ConsumerGroupMetadataKey, group_records.ConsumerGroupMetadataValue),
    (group_records.ConsumerGroupPartitionMetadataKey, group_records.ConsumerGroupPartitionMetadataValue),
    (group_records.ConsumerGroupMemberMetadataKey, group_records.ConsumerGroupMemberMetadataValue),
    (
        group_records.ConsumerGroupTargetAssignmentMetadataKey,
        group_records.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    (group_records.ConsumerGroupTargetAssignmentMemberKey, group_records.ConsumerGroupTargetAssignmentMemberValue),
    (
        group_records.ConsumerGroupCurrentMemberAssignmentKey,
        group_records.ConsumerGroupCurrentMemberAssignmentValue,
    ),
    (group_records.ConsumerGroupRegularExpressionKey, group_records.ConsumerGroupRegularExpressionValue),
]
_KINDS = {kind.api_key: (kind, value) for kind, value in _PAIRS}


def decode_key(data: Any) -> Any:
    """Return the key of a coordinator's record."""
    kind, _ = _KINDS[int.from_bytes(bytes(data)[:2], "big")]
    key = kind.decode(bytes(data), 0, 2)
    assert key.encode(0) == bytes(data)[2:], f"the key {bytes(data).hex()} is encoded in another way"
    return key


def decode_value(key: Any, data: Any) -> tuple[int, Any] | None:
    """Return the version and the value of a coordinator's record, whose bytes are exactly the encoding of both."""
    if data is None:
        return None
    version = int.from_bytes(bytes(data)[:2], "big")
    value = _KINDS[key.api_key][1].decode(bytes(data), version, 2)
    assert bytes(value.encode(version)) == bytes(data)[2:], f"{value} is encoded in another way: {bytes(data).hex()}"
    return version, value


def codes_of(value: Any) -> set[str]:
    """Return the names of all error codes in a response; NONE only if there is no other one."""
    found: set[str] = set()
    _collect(value, found)
    return found - {"NONE"} or {"NONE"}


def _collect(value: Any, found: set[str]) -> None:
    for key in fields(type(value)):
        one = getattr(value, key)
        if key.endswith("error_code"):
            found.add(ErrorCode(one).name)
        elif isinstance(one, Struct):
            _collect(one, found)
        elif isinstance(one, list):
            for part in one:
                if isinstance(part, Struct):
                    _collect(part, found)
