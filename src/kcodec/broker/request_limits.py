# SPDX-License-Identifier: Apache-2.0
"""Limits that are checked before a request is decoded, because the broker serves no other client while it decodes one.

The time to decode a request depends on the number of its elements, and each element has a minimum size. The size of a
request therefore limits the time. Produce is different, because most of its bytes are records. The broker counts the
partitions of a Produce request without decoding them.
"""

from __future__ import annotations

from kcodec.broker.settings import BrokerSettings
from kcodec.errors import DecodeError, LimitExceededError, TruncatedError
from kcodec.protocol.frame import read_unsigned_varint, skip_tagged_fields
from kcodec.protocol.messages import ProduceRequest

_FLEXIBLE_VERSION, _TOPIC_ID_VERSION = 9, 13
_ACKS_AND_TIMEOUT_BYTES, _UUID_BYTES = 6, 16


def check_size(settings: BrokerSettings, key: int, version: int, view: memoryview, position: int) -> None:
    """Raise LimitExceededError if a request may take long to decode, DecodeError if it is corrupt.

    position: Position of the message in `view`.
    """
    most = settings.max_bytes_without_records
    if len(view) <= most:
        return
    if key != ProduceRequest.api_key:
        raise _exceeded("max_bytes_without_records", most, len(view), "bytes")
    found = _ProduceFields(view, position, is_compact=version >= _FLEXIBLE_VERSION)
    found.count(has_topic_ids=version >= _TOPIC_ID_VERSION, most=settings.max_partitions_per_request)


class _ProduceFields:
    """A position in a Produce request, which advances over the fields."""

    def __init__(self, view: memoryview, position: int, *, is_compact: bool) -> None:
        self._view = view
        self._position = position
        self._is_compact = is_compact

    def count(self, *, has_topic_ids: bool, most: int) -> None:
        """Count topics and partitions. Raise LimitExceededError."""
        self._skip(max(self._length(2), 0) + _ACKS_AND_TIMEOUT_BYTES)
        left = most
        for _ in range(self._length(4)):
            self._skip(_UUID_BYTES if has_topic_ids else max(self._length(2), 0))
            partitions = self._length(4)
            left -= max(partitions, 1)
            if left < 0:
                raise _exceeded("max_partitions_per_request", most, most - left, "partitions")
            for _ in range(partitions):
                self._skip(4)
                self._skip(max(self._length(4), 0))
                self._skip_tags()
            self._skip_tags()

    def _length(self, size: int) -> int:
        """Read a length of `size` bytes, or a compact length, which is stored as the length plus 1."""
        if self._is_compact:
            value, self._position = read_unsigned_varint(self._view, self._position)
            return value - 1
        begin = self._position
        self._skip(size)
        return int.from_bytes(self._view[begin : self._position], "big", signed=True)

    def _skip(self, count: int) -> None:
        self._position += count
        if self._position > len(self._view):
            text = f"a Produce request ends {self._position - len(self._view)} bytes before the end of a field"
            raise TruncatedError(text, needed=self._position - len(self._view), available=0)

    def _skip_tags(self) -> None:
        if self._is_compact:
            self._position = skip_tagged_fields(self._view, self._position)


def _exceeded(limit: str, most: int, found: int, unit: str) -> DecodeError:
    return LimitExceededError(
        f"a request with {found} {unit} exceeds {limit}={most}", limit=limit, value=most, claimed=found
    )
