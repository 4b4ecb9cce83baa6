# SPDX-License-Identifier: Apache-2.0
"""The classes that kcodec.compat.kafka_python installs. Only install() imports this module, because it requires
kafka-python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.errors import CorruptRecordError, KafkaError, UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.abc import ABCRecord, ABCRecordBatch, ABCRecordBatchBuilder, ABCRecords
from kafka.record.legacy_records import LegacyRecord

from kcodec._fast import (
    DETAILED_COLUMNS,
    ClientBatch,
    ClientBatchBuilder,
    ClientRecord,
    ClientRecordMetadata,
    ClientRecords,
    RecordSteps,
    client_record_size,
    client_tuples,
)
from kcodec.compat._patches import is_unknown_codec
from kcodec.compat._shared import Codecs, LegacyBatch
from kcodec.errors import DecodeError

DefaultRecordMetadata = ClientRecordMetadata
_Headers: TypeAlias = list[tuple[str, bytes | None]]


def translate(error: DecodeError) -> KafkaError:
    """Return the exception that kafka-python raises for corrupt bytes. The error of kcodec is its cause."""
    return (UnsupportedCodecError if is_unknown_codec(error) else CorruptRecordError)(str(error))


class _Translating:
    """A class that raises the exceptions of kafka-python."""

    __slots__ = ()

    def translate(self, error: DecodeError) -> KafkaError:
        """Return a KafkaError for a DecodeError."""
        return translate(error)


class DefaultRecord(ClientRecord, ABCRecord):  # type: ignore[misc]
    """A record of magic 2."""

    __slots__ = ()

    def __init__(
        self,
        size_in_bytes: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        super().__init__(offset, timestamp, timestamp_type, key, value, headers, size_in_bytes)


class ControlRecord(DefaultRecord):
    """A record of a control batch. It is an end-transaction marker if its type is 0 or 1."""

    __slots__ = ()

    @property
    def version(self) -> int:
        """The version of the key's layout."""
        return int.from_bytes((self.key or b"")[:2], "big", signed=True)

    @property
    def type(self) -> int:
        """The type of the marker: 0 for ABORT, 1 for COMMIT. Other types are not markers."""
        return int.from_bytes((self.key or b"")[2:4], "big", signed=True)

    @property
    def abort(self) -> bool:
        """Whether the record is an ABORT marker."""
        return self.type == 0

    @property
    def commit(self) -> bool:
        """Whether the record is a COMMIT marker."""
        return self.type == 1


class DefaultRecordBatch(_Translating, Codecs, ClientBatch, ABCRecordBatch):  # type: ignore[misc]
    """A batch of magic 2 that is read from bytes."""

    __slots__ = ()

    NO_PRODUCER_ID = -1
    NO_SEQUENCE = -1

    record_class = DefaultRecord
    control_record_class = ControlRecord
    record_sizes = True

    def has_producer_id(self) -> bool:
        """Return whether an idempotent or transactional producer has written the batch."""
        return self.producer_id > self.NO_PRODUCER_ID

    @property
    def has_sequence(self) -> bool:
        """Whether the records of the batch have sequence numbers."""
        return self.base_sequence != self.NO_SEQUENCE


class LegacyRecordBatch(_Translating, LegacyBatch, ABCRecordBatch):  # type: ignore[misc]
    """A message of magic 0 or 1 that is read from bytes. A compressed message contains other messages."""

    __slots__ = ()

    def __iter__(self) -> Iterator[LegacyRecord]:
        for message in self.messages():
            yield LegacyRecord(self.magic, *message)


class MemoryRecords(_Translating, ClientRecords, ABCRecords):  # type: ignore[misc]
    """The batches of a fetch response, which are read from bytes."""

    __slots__ = ()

    batch_type = DefaultRecordBatch
    legacy_batch_type = LegacyRecordBatch

    def next(self) -> Any:
        """Return the next batch. Raise StopIteration at the end."""
        return self.__next__()


class DefaultRecordBatchBuilder(Codecs, ClientBatchBuilder, ABCRecordBatchBuilder):  # type: ignore[misc]
    """A batch of magic 2 that a producer fills."""

    __slots__ = ()

    MAX_RECORD_OVERHEAD = 21

    clock = staticmethod(time.time_ns)
    skip_useless_compression = True

    @classmethod
    def header_size_in_bytes(cls) -> int:
        """Return the size of the header of a batch."""
        return 61

    @classmethod
    def size_in_bytes(
        cls, offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: _Headers
    ) -> int:
        """Return the number of bytes of a record with these fields."""
        return client_record_size(offset_delta, timestamp_delta, key, value, headers)

    def unknown_codec(self, codec: int) -> KafkaError:
        """Return a KafkaError for an unknown compression type."""
        return UnsupportedCodecError(f"Unrecognized compression type: {codec}")


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The records of one partition in a Fetch response, as ConsumerRecords.

    The records before a corrupt batch are delivered. Then the error is raised, and the fetch ends. The next fetch
    begins at the same position. With kafka-python's own class, the consumer would poll in an endless loop.
    """

    next_fetch_offset: int

    def take(self, n: int | None = None) -> list[Any]:
        """Return the next n records, or all records if n is None."""
        try:
            taken: list[Any] = super().take(n)
        except Exception:
            self.drain()
            raise
        return taken

    def _unpack_records(self, tp: Any, records: Any, key_deserializer: Any, value_deserializer: Any) -> Iterator[Any]:
        if not isinstance(records, MemoryRecords):
            yield from super()._unpack_records(tp, records, key_deserializer, value_deserializer)
            return
        steps = RecordSteps(
            records.data,
            columns=DETAILED_COLUMNS,
            isolation_level=IsolationLevel(self.isolation_level).name.lower(),
            aborted_transactions=[(entry.producer_id, entry.first_offset) for entry in self.aborted_transactions],
            start_offset=self.fetch_offset,
            check_crcs=bool(self.check_crcs),
            keep_position=True,
        )
        try:
            for chunk in client_tuples(steps, detailed=True):
                yield from self._consumer_records(tp, chunk, key_deserializer, value_deserializer)
        except DecodeError as error:
            self._walked(steps)
            raise translate(error) from error
        self._walked(steps)
        self.drain()

    def _walked(self, steps: RecordSteps) -> None:
        """Move past batches without records: aborted batches, markers, and batches that compaction has emptied."""
        self.leader_epoch = steps.leader_epoch
        self.next_fetch_offset = max(self.next_fetch_offset, steps.position or 0)

    def _consumer_records(self, tp: Any, rows: Any, key_deserializer: Any, value_deserializer: Any) -> Iterator[Any]:
        topic, partition = tp.topic, tp.partition
        for offset, timestamp, timestamp_type, key, value, headers, leader_epoch, size, header_size in rows:
            key_size = -1 if key is None else len(key)
            value_size = -1 if value is None else len(value)
            if key_deserializer is not None:
                key = self._deserialize(key_deserializer, topic, headers, key)
            if value_deserializer is not None:
                value = self._deserialize(value_deserializer, topic, headers, value)
            self.leader_epoch = leader_epoch
            self.records_read += 1
            self.bytes_read += size
            self.next_fetch_offset = offset + 1
            fields = (topic, partition, leader_epoch, offset, timestamp, timestamp_type, key, value, headers, None)
            yield tuple.__new__(ConsumerRecord, (*fields, key_size, value_size, header_size))
