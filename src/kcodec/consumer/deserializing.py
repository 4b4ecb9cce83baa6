# SPDX-License-Identifier: Apache-2.0
"""The deserializers of the application, applied to records before they are returned, on the thread that polls.

If a deserializer fails, the records before the failed one are returned first, as before a corrupt batch. The position
stays at the failed record until a `seek`. With on_error="skip", the record is left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kcodec._fast import deserialize_records
from kcodec.errors import DeserializationError
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec._fast import Record
    from kcodec.options import Deserializer

log = logging.getLogger("kcodec.consumer")


class RecordDeserializer:
    """Converts records.

    takes_none:  Whether the deserializers are also called for a key or value that is None, as in aiokafka.
    is_skipping: Whether on_error is "skip".
    skipped:     Number of records that were left out.
    """

    takes_none = False

    def __init__(
        self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None, is_skipping: bool
    ) -> None:
        self._key, self._value = key_deserializer, value_deserializer
        self._is_skipping = is_skipping
        self.skipped = 0

    @property
    def is_needed(self) -> bool:
        """Whether there is a function to call."""
        return self._key is not None or self._value is not None

    def apply(self, records: list[Record], partition: TopicPartition) -> DeserializationError | None:
        """Convert the records in place. Return the error of the first one that failed; `records` then ends before
        it."""
        start = 0
        skipped: set[int] = set()
        while (failed := self._converted(records, start)) is not None:
            index, field, cause = failed
            error = self._error(records[index], field, cause, partition)
            if not self._is_skipping:
                del records[index:]
                return error
            self.skipped += 1
            log.warning("skipped a record: %s", error)
            skipped.add(index)
            start = index + 1
        if skipped:  # all together, because each deletion from a long list moves the rest of the list
            records[:] = [record for index, record in enumerate(records) if index not in skipped]
        return None

    def _converted(self, records: list[Record], start: int) -> tuple[int, str, Exception] | None:
        return deserialize_records(records, self._key, self._value, start, self.takes_none)

    def _error(self, record: Record, field: str, cause: Exception, partition: TopicPartition) -> DeserializationError:
        function = self._key if field == "key" else self._value
        name = getattr(function, "__qualname__", type(function).__name__)
        offset = record.offset
        error = DeserializationError(
            f"{field}_deserializer {name} failed for the record at offset {offset} with {type(cause).__name__}: "
            f"{cause!s:.200}; seek to next_offset {offset + 1} to continue after it",
            offset=offset,
            field=field,
            raw_record=record,
            next_offset=offset + 1,
            topic_partition=partition,
        )
        error.__cause__ = cause
        return error
