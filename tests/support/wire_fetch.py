# SPDX-License-Identifier: Apache-2.0
"""Finds the record sets in Fetch response frames, versions 4 to 18; for tests only.

    parse_fetch_response(frame, version) -> list of PartitionData in order of topics and partitions
        frame: without the 4-byte length, correlation id first

Layout (Kafka: FetchResponse.json): versions 12 and above are flexible, 13 and above contain topic ids. An incomplete
frame, or bytes after the message, raise ValueError.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

FLEXIBLE_FROM, TOPIC_ID_FROM = 12, 13


class PartitionData(NamedTuple):
    """One partition of a response; `topic` is its name, or its id as a UUID string from version 13 on."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int | None
    aborted_transactions: list[tuple[int, int]] | None
    records_position: int | None
    records_size: int | None


class _Frame:
    def __init__(self, data: bytes, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, 0, flexible

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes wanted at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str) -> int:
        return int(struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0])

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def length(self, code: str) -> int:
        """Of an array, string or bytes; -1 is null."""
        return self.unsigned_varint() - 1 if self.flexible else self.number(code)

    def tags(self) -> None:
        for _ in range(self.unsigned_varint() if self.flexible else 0):
            self.unsigned_varint()
            self.take(self.unsigned_varint())


def _aborted(frame: _Frame) -> list[tuple[int, int]] | None:
    count = frame.length("i")
    if count < 0:
        return None
    entries = []
    for _ in range(count):
        entries.append((frame.number("q"), frame.number("q")))
        frame.tags()
    return entries


def _partition(frame: _Frame, topic: str, version: int) -> PartitionData:
    partition, error_code = frame.number("i"), frame.number("h")
    high_watermark, last_stable_offset = frame.number("q"), frame.number("q")
    log_start_offset = frame.number("q") if version >= 5 else None
    aborted = _aborted(frame)
    if version >= 11:
        frame.number("i")  # preferred_read_replica
    size = frame.length("i")
    position = frame.at
    if size >= 0:
        frame.take(size)
    frame.tags()
    return PartitionData(
        topic,
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        position if size >= 0 else None,
        size if size >= 0 else None,
    )


def parse_fetch_response(data: bytes, version: int) -> list[PartitionData]:
    """Every partition of the response."""
    if not 4 <= version <= 18:
        raise ValueError(f"version {version}")
    frame = _Frame(data, version >= FLEXIBLE_FROM)
    frame.number("i")  # correlation id
    frame.tags()
    frame.number("i")  # throttle_time_ms
    if version >= 7:
        frame.number("h")  # error_code
        frame.number("i")  # session_id
    found = []
    for _ in range(frame.length("i")):
        if version >= TOPIC_ID_FROM:
            topic = str(uuid.UUID(bytes=frame.take(16)))
        else:
            topic = frame.take(frame.length("h")).decode()
        found += [_partition(frame, topic, version) for _ in range(frame.length("i"))]
        frame.tags()
    frame.tags()
    if frame.at != len(data):
        raise ValueError(f"{len(data) - frame.at} bytes behind the response")
    return found
