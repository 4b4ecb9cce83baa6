# SPDX-License-Identifier: Apache-2.0
"""Conversion of records of kcodec to records of aiokafka, and the deserializers of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka.structs import ConsumerRecord, TopicPartition

from kcodec import Record
from kcodec.constants import TimestampType

Rows = dict[TopicPartition, list[ConsumerRecord[Any, Any]]]


class Deserializers:
    """Converts records of kcodec to records of aiokafka, with the deserializers of the program.

    kcodec's consumer calls sized_key and sized_value. Like aiokafka, it also calls them for None. They return the
    result together with the size.
    """

    def __init__(self, key: Any, value: Any) -> None:
        self._key, self._value = key, value
        self.sized_key = None if key is None else _sized(key)
        self.sized_value = None if value is None else _sized(value)

    def record(self, given: Record) -> ConsumerRecord[Any, Any]:
        """Return a record of aiokafka."""
        key, key_size = _part(given.key, self._key)
        value, value_size = _part(given.value, self._value)
        made = _new_record(ConsumerRecord)
        made.topic = given.topic
        made.partition = given.partition
        made.offset = given.offset
        made.timestamp = given.timestamp
        made.timestamp_type = 1 if given.timestamp_type is _APPEND_TIME else 0
        made.key = key
        made.value = value
        made.checksum = None
        made.serialized_key_size = key_size
        made.serialized_value_size = value_size
        made.headers = given.headers
        return made

    def add(self, records: list[Record], found: Rows) -> None:
        """Add records by partition."""
        if self._key is None is self._value:
            _add_plain(records, found)
            return
        for given in records:
            made = self.record(given)
            found.setdefault(TopicPartition(made.topic, made.partition), []).append(made)


def _sized(function: Callable[[bytes | None], Any]) -> Callable[[bytes | None], tuple[Any, int]]:
    def sized(raw: bytes | None) -> tuple[Any, int]:
        return function(raw), -1 if raw is None else len(raw)

    return sized


def _part(given: Any, function: Any) -> tuple[Any, int]:
    """Return a key or value and its size. If there is a deserializer, `given` is already such a pair."""
    if function is not None:
        pair: tuple[Any, int] = given
        return pair
    return given, -1 if given is None else len(given)


_new_record: Any = ConsumerRecord.__new__
_APPEND_TIME = TimestampType.LOG_APPEND_TIME


def _add_plain(records: list[Any], found: Rows) -> None:
    """Add records by partition, without deserializers. This makes the assignments of ConsumerRecord.__init__ itself,
    because the call would take longer than all of them."""
    topic = partition = None
    rows: list[Any] = []
    new_record, append_time = _new_record, _APPEND_TIME
    for given in records:
        if given.partition != partition or given.topic != topic:
            topic, partition = given.topic, given.partition
            rows = found.setdefault(TopicPartition(topic, partition), [])
        key, value = given.key, given.value
        made = new_record(ConsumerRecord)
        made.topic = topic
        made.partition = partition
        made.offset = given.offset
        made.timestamp = given.timestamp
        made.timestamp_type = 1 if given.timestamp_type is append_time else 0
        made.key = key
        made.value = value
        made.checksum = None
        made.serialized_key_size = -1 if key is None else len(key)
        made.serialized_value_size = -1 if value is None else len(value)
        made.headers = given.headers
        rows.append(made)
