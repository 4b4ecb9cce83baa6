# SPDX-License-Identifier: Apache-2.0
"""The values that tests/java_judge.py answers with, and how they come out of the Java program's JSON."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class JudgeError:
    """An exception of Kafka's classes: simple class names and messages, of it and of its cause."""

    name: str
    message: str
    cause: str | None
    cause_message: str | None


class JudgedRecord(NamedTuple):
    """A record as Kafka reads it; `headers` holds names as Java decodes them (U+FFFD for what is not UTF-8)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class JudgedControl:
    """What a control record says: the id in its key, its name, and an end marker's coordinator epoch."""

    type_id: int | None
    type_name: str | None
    coordinator_epoch: int | None
    error: JudgeError | None


@dataclass(frozen=True)
class JudgedBatch:
    """One batch: `header` by the names Kafka's getters have, its place in bytes, and how far its records could be read.

    `invalid` is what ensureValid() raised, `header_error` a field that lies outside the bytes, `records_error` where
    iterating the records stopped; `records` are those before it.
    """

    position: int
    size: int
    magic: int
    is_valid: bool
    header: dict[str, Any]
    records: tuple[JudgedRecord, ...]
    sequences: tuple[int, ...]
    controls: tuple[JudgedControl, ...]
    invalid: JudgeError | None
    header_error: JudgeError | None
    records_error: JudgeError | None

    @property
    def accepted(self) -> bool:
        """Whether Kafka's consumer with check.crcs would read the batch to its end."""
        return self.is_valid and self.invalid is None and self.header_error is None and self.records_error is None


@dataclass(frozen=True)
class JudgedRecordSet:
    """All batches MemoryRecords yields; `error` where walking them stopped; `valid_bytes` the end of the last one."""

    batches: tuple[JudgedBatch, ...]
    valid_bytes: int
    error: JudgeError | None


@dataclass(frozen=True)
class Delivered:
    """What a Java consumer delivers from one Fetch answer, the position after it, and the exception it ended with."""

    records: tuple[JudgedRecord, ...]
    timestamp_types: tuple[str, ...]
    position: int
    error: JudgeError | None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _bytes_question(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def record_question(record: JudgedRecord) -> bytes:
    parts = [struct.pack(">qq", record.offset, record.timestamp)]
    parts += [_bytes_question(record.key), _bytes_question(record.value), struct.pack(">i", len(record.headers))]
    for name, value in record.headers:
        parts += [_bytes_question(name.encode()), _bytes_question(value)]
    return b"".join(parts)


def _error(entry: dict[str, Any] | None) -> JudgeError | None:
    if entry is None:
        return None
    return JudgeError(entry["class"], entry["message"], entry.get("cause"), entry.get("causeMessage"))


def _record(entry: dict[str, Any]) -> JudgedRecord:
    headers: Sequence[tuple[str, str | None]] = entry["headers"]
    return JudgedRecord(
        entry["offset"],
        entry["timestamp"],
        _bytes(entry["key"]),
        _bytes(entry["value"]),
        tuple((name, _bytes(value)) for name, value in headers),
    )


def _control(entry: dict[str, Any]) -> JudgedControl:
    return JudgedControl(
        entry.get("controlTypeId"),
        entry.get("controlType"),
        entry.get("coordinatorEpoch"),
        _error(entry.get("controlError")),
    )


def _batch(entry: dict[str, Any]) -> JudgedBatch:
    records = entry.pop("records", [])
    invalid, header_error = _error(entry.pop("invalid", None)), _error(entry.pop("headerError", None))
    return JudgedBatch(
        position=entry["position"],
        size=entry["size"],
        magic=entry["magic"],
        is_valid=entry["isValid"],
        records=tuple(_record(record) for record in records),
        sequences=tuple(record["sequence"] for record in records),
        controls=tuple(_control(record) for record in records if entry.get("isControlBatch")),
        invalid=invalid,
        header_error=header_error,
        records_error=_error(entry.pop("recordsError", None)),
        header=entry,
    )


def read_record_set(answer: dict[str, Any]) -> JudgedRecordSet:
    """The answer to a question about a record set."""
    batches = tuple(_batch(entry) for entry in answer["batches"])
    return JudgedRecordSet(batches, answer["validBytes"], _error(answer.get("error")))


def read_delivered(answer: dict[str, Any]) -> Delivered:
    """The answer to a question about a consumer."""
    return Delivered(
        tuple(_record(entry) for entry in answer["records"]),
        tuple(entry["timestampType"] for entry in answer["records"]),
        answer["position"],
        _error(answer.get("error")),
    )
