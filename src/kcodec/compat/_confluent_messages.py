# SPDX-License-Identifier: Apache-2.0
"""Messages that report an error. Before confluent-kafka 2.12, a program cannot create objects of the class Message."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, Message

from kcodec._fast import ConfluentMessage


class ErrorMessage(ConfluentMessage):
    """A message without a record, with a partition and an offset."""

    def __init__(self, error: KafkaError, text: str, topic: str | None, partition: int, offset: int):
        self.set_error(error)
        self.set_value(text.encode())
        if topic is not None:
            self.set_topic(topic)
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        """Return the partition."""
        return self._partition

    def offset(self) -> int | None:
        """Return the offset, or None."""
        return self._offset if self._offset >= 0 else None


def _can_be_created() -> bool:
    try:
        Message()
    except TypeError:
        return False
    return True


_IS_OWN = _can_be_created()


def error_message(
    error: KafkaError, text: str, topic: str | None = None, partition: int = 0, offset: int = OFFSET_INVALID
) -> Any:
    """Return an error message whose value is the text, as in librdkafka. If there is no topic, the partition is 0."""
    if not _IS_OWN:
        return ErrorMessage(error, text, topic, partition, offset)
    if topic is None:
        return Message(partition=partition, value=text.encode(), error=error)
    return Message(topic=topic, partition=partition, offset=offset, value=text.encode(), error=error)
