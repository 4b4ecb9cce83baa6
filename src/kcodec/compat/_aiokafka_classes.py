# SPDX-License-Identifier: Apache-2.0
"""The classes that kcodec.compat.aiokafka installs. Only install() imports this module, because it requires
aiokafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError, UnsupportedCodecError
from aiokafka.record.legacy_records import LegacyRecord
from aiokafka.structs import ConsumerRecord

from kcodec._fast import (
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

DefaultRecord = ClientRecord
DefaultRecordMetadata = ClientRecordMetadata
_APPEND_TIME = 0x08  # attribute bit 3 of magic 1
_Headers: TypeAlias = list[tuple[str, bytes | None]]


def translate(error: DecodeError) -> KafkaError:
    """Return the exception that aiokafka raises for corrupt bytes. The error of kcodec is its cause."""
    return (UnsupportedCodecError if is_unknown_codec(error) else CorruptRecordException)(str(error))


class _Translating:
    """A class that raises the exceptions of aiokafka."""

    __slots__ = ()

    def translate(self, error: DecodeError) -> KafkaError:
        """Return a KafkaError for a DecodeError."""
        return translate(error)


class DefaultRecordBatch(_Translating, Codecs, ClientBatch):
    """A batch of magic 2 that is read from bytes."""

    __slots__ = ()


class LegacyRecordBatch(_Translating, LegacyBatch):
    """A message of magic 0 or 1 that is read from bytes. A compressed message contains other messages."""

    __slots__ = ()

    producer_id = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[LegacyRecord]:
        for message in self.messages():
            timestamp = -1 if message.timestamp is None else message.timestamp
            attributes = _APPEND_TIME if message.timestamp_type else 0
            yield LegacyRecord(message.offset, timestamp, attributes, message.key, message.value, message.crc)


class MemoryRecords(_Translating, ClientRecords):
    """The batches of a fetch response, which are read from bytes."""

    __slots__ = ()

    batch_type = DefaultRecordBatch
    legacy_batch_type = LegacyRecordBatch


class DefaultRecordBatchBuilder(Codecs, ClientBatchBuilder):
    """A batch of magic 2 that a producer fills."""

    __slots__ = ()

    clock = staticmethod(time.time_ns)
    full_at_batch_size = True

    def size_in_bytes(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: _Headers
    ) -> int:
        """Return the number of bytes that append() would add for this record."""
        first = self.first_timestamp
        return client_record_size(offset, 0 if first is None else timestamp - first, key, value, headers)

    def unknown_codec(self, codec: int) -> KafkaError:
        """Return a KafkaError for an unknown compression type."""
        return UnsupportedCodecError(f"Unknown compression codec {codec:#04x}")


class PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """The records of one partition in a Fetch response, as ConsumerRecords.

    If the position has advanced, corruption ends the records before the corrupt batch, so that all records before it
    are delivered. The next fetch begins with this batch. `error` is then set from the start, and raised.
    """

    next_fetch_offset: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error: KafkaError | None = None
        self._steps: RecordSteps | None = None
        records = self._records
        if not isinstance(records, MemoryRecords):
            return
        self._steps = RecordSteps(
            records.data,
            isolation_level="read_committed" if self._isolation_level == fetcher.READ_COMMITTED else "read_uncommitted",
            aborted_transactions=self._aborted_transactions,
            start_offset=self.next_fetch_offset,
            check_crcs=bool(self._check_crcs),
            keep_position=True,
        )
        self._chunks = client_tuples(self._steps)
        self._chunk = self._next_chunk(self._steps)

    def _next_chunk(self, steps: RecordSteps) -> Iterator[tuple[Any, ...]] | None:
        """Return the next rows, or None at the end. Also return None at a corrupt batch. This is an error only if no
        record precedes the batch."""
        try:
            return next(self._chunks, None)
        except DecodeError as error:
            if steps.position == self.next_fetch_offset:
                self.error = translate(error)
                self.error.__cause__ = error
            return None

    def __iter__(self) -> Iterator[Any]:
        """Return the generator. aiokafka's own class returns self, which costs a call of __next__ for each record."""
        records: Iterator[Any] | None = self._records_iterator
        return iter(()) if records is None else records

    def _unpack_records(self) -> Iterator[Any]:
        steps = self._steps
        if steps is None:
            yield from super()._unpack_records()
            return
        if self.error is not None:
            raise self.error
        topic, partition = self._tp.topic, self._tp.partition
        new_record: Any = ConsumerRecord.__new__
        read_key, read_value = self._key_deserializer, self._value_deserializer
        while self._chunk is not None:
            for offset, timestamp, timestamp_type, key, value, headers in self._chunk:
                key_size = -1 if key is None else len(key)
                value_size = -1 if value is None else len(value)
                if read_key:
                    key = read_key(key)
                if read_value:
                    value = read_value(value)
                # These are the assignments of ConsumerRecord.__init__. The call would take longer than all of them.
                record = new_record(ConsumerRecord)
                record.topic = topic
                record.partition = partition
                record.offset = offset
                record.timestamp = timestamp
                record.timestamp_type = timestamp_type
                record.key = key
                record.value = value
                record.checksum = None
                record.serialized_key_size = key_size
                record.serialized_value_size = value_size
                record.headers = headers
                self.next_fetch_offset = offset + 1
                yield record
            self._chunk = self._next_chunk(steps)
        self.next_fetch_offset = max(self.next_fetch_offset, steps.position or 0)


class CorruptFetch(fetcher.FetchError):  # type: ignore[misc]
    """A fetch that begins with a corrupt batch. The error is raised to its caller while the position is there."""

    def __init__(self, tp: Any, assignment: Any, records: PartitionRecords, backoff: float) -> None:
        super().__init__(error=records.error, backoff=backoff)
        self._topic_partition = tp
        self._assignment = assignment
        self._offset = records.next_fetch_offset

    def check_raise(self) -> None:
        """Raise the error unless it is out of date after a seek, a pause or a new assignment."""
        if not self._assignment.active:
            return
        state = self._assignment.state_value(self._topic_partition)
        if not state.paused and state.position == self._offset:
            super().check_raise()


class FetchResult(fetcher.FetchResult):  # type: ignore[misc]
    """The records of one partition in a Fetch response, or a CorruptFetch instead.

    aiokafka returns the records of other partitions before it raises such an error. An error raised in
    FetchResult.getall() would lose them.
    """

    def __new__(cls, tp: Any, *, assignment: Any, partition_records: Any, backoff: float) -> Any:
        if not isinstance(partition_records, PartitionRecords) or partition_records.error is None:
            return super().__new__(cls)
        return CorruptFetch(tp, assignment, partition_records, backoff)
