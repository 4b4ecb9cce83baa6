# SPDX-License-Identifier: Apache-2.0
"""The topics in which coordinators store their state: the partition of a key, and how records are written and read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcodec.broker.api import ApiError
from kcodec.broker.clock import Clock
from kcodec.broker.partition_log import PartitionLog
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Partition, Topics
from kcodec.constants import CONSUMER_OFFSETS_TOPIC, ControlType
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import CoordinatorKey, CoordinatorValue

_log = logging.getLogger(__name__)
_INT32 = 1 << 32
_INT32_SIGN = 1 << 31
# java.util.HashMap: its first table, the load at which the table is doubled, and how the halves of a hash are mixed.
_LEAST_TABLE, _TABLE_LOAD, _HASH_SHIFT = 16, 0.75, 16


class InternalRecord(NamedTuple):
    """A record in the log of an internal topic. `producer_id` is -1 unless the record is transactional."""

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int


class TransactionMarker(NamedTuple):
    """The marker of a transaction in the log of an internal topic."""

    producer_id: int
    is_commit: bool


def _string_hash(key: str) -> int:
    """Return Java's String.hashCode, without its sign."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) % _INT32
    return value


def partition_for_key(key: str, partitions: int) -> int:
    """Return the partition of a coordinator's topic: the absolute value of Java's String.hashCode, modulo the
    number."""
    value = _string_hash(key)
    signed = value - _INT32 if value >= _INT32_SIGN else value
    return 0 if signed == -_INT32_SIGN else abs(signed) % partitions


def hash_map_order(names: Iterable[str]) -> list[str]:
    """Return strings in the order in which Java's HashMap iterates over them.

    Kafka writes the records of a target assignment in this order.
    """
    found = list(names)
    size = _LEAST_TABLE
    while len(found) > size * _TABLE_LOAD:
        size *= 2
    hashes = {name: _string_hash(name) for name in found}
    return sorted(found, key=lambda name: (hashes[name] ^ hashes[name] >> _HASH_SHIFT) % size)


def coordinator_record(key: CoordinatorKey, value: CoordinatorValue | None, version: int) -> tuple[bytes, bytes | None]:
    """Return key and value of a coordinator's record as bytes: the key begins with the type, the value with the
    version."""
    encoded = key.api_key.to_bytes(2, "big") + key.encode(0)
    return encoded, None if value is None else version.to_bytes(2, "big") + value.encode(version)


def replayed(log: PartitionLog) -> Iterator[InternalRecord | TransactionMarker]:
    """Return the records and markers in the log of an internal topic, in the order of offsets."""
    for batch in log.batches_from(log.log_start_offset):
        for record in batch.records():
            if batch.is_control_batch:
                kind = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
                yield TransactionMarker(batch.producer_id, kind == ControlType.COMMIT)
            else:
                producer_id = batch.producer_id if batch.is_transactional else -1
                yield InternalRecord(record.offset, record.key or b"", record.value, producer_id)


@dataclass(slots=True)
class GroupHost:
    """What the coordinators get from the broker."""

    clock: Clock
    settings: BrokerSettings
    topics: Topics

    def partition_of(self, group_id: str) -> int:
        """Return the partition of ``__consumer_offsets`` that contains the records of a group."""
        topic = self.topics.get(CONSUMER_OFFSETS_TOPIC)
        count = self.settings.offsets_topic_partitions if topic is None else len(topic.partitions)
        return partition_for_key(group_id, count)

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """Append one batch to a partition of ``__consumer_offsets``. Return the offset of its first record.

        With a producer id, the batch is transactional. Raise ApiError: INVALID_PRODUCER_EPOCH if the epoch is fenced,
        NOT_COORDINATOR if the topic does not exist yet or the batch cannot be written.
        """
        found = self.topics.partition(CONSUMER_OFFSETS_TOPIC, partition)
        if found is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{CONSUMER_OFFSETS_TOPIC} does not exist yet")
        return append_to_log(found, records, producer_id=producer_id, producer_epoch=producer_epoch, sequence=0)


def append_to_log(partition: Partition, records: Sequence[tuple[bytes | None, bytes | None]], **producer: int) -> int:
    """Append one batch of a coordinator and return its first offset.

    producer: Keyword arguments of `PartitionLog.append_records`.

    Raise ApiError (NOT_COORDINATOR) if the batch cannot be written. Kafka's coordinators respond with the same code
    after a KAFKA_STORAGE_ERROR of their log.
    """
    try:
        return partition.log.append_records(list(records), **producer)
    except OSError as error:
        _log.error("the log of a coordinator, partition %d: %s; the request is refused", partition.number, error)
        raise ApiError(ErrorCode.NOT_COORDINATOR, str(error)) from error
