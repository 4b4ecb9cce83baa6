# SPDX-License-Identifier: Apache-2.0
"""The results of tests/support/java_judge.py, and how they are read from the JSON of the Java program."""

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
    """A record as Kafka reads it. `headers` has names as Java decodes them (U+FFFD for invalid UTF-8)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class JudgedControl:
    """The contents of a control record: the id in its key, its name, and the coordinator epoch of a marker."""

    type_id: int | None
    type_name: str | None
    coordinator_epoch: int | None
    error: JudgeError | None


@dataclass(frozen=True)
class JudgedBatch:
    """One batch: `header` by the names of Kafka's getters, its position in bytes, and the records that could be read.

    `invalid` is the exception of ensureValid(), `header_error` a field outside of the bytes, `records_error` the
    exception of iterating over the records; `records` are those before it.
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
        """Return whether Kafka's consumer with check.crcs would read the batch to its end."""
        return self.is_valid and self.invalid is None and self.header_error is None and self.records_error is None


@dataclass(frozen=True)
class JudgedRecordSet:
    """All batches of MemoryRecords. `error`: the exception that ended them; `valid_bytes`: the end of the last one."""

    batches: tuple[JudgedBatch, ...]
    valid_bytes: int
    error: JudgeError | None


@dataclass(frozen=True)
class Delivered:
    """The records that a Java consumer delivers from one Fetch response, its position afterwards, and its exception."""

    records: tuple[JudgedRecord, ...]
    timestamp_types: tuple[str, ...]
    position: int
    error: JudgeError | None


class WriterRefused(ValueError):
    """Kafka's own writer does not write these bytes. `error` is its exception."""

    def __init__(self, error: JudgeError) -> None:
        super().__init__(f"{error.name}: {error.message}")
        self.error = error


@dataclass(frozen=True)
class ProduceSettings:
    """The settings of a produce request and its topic, with Kafka's defaults. `compression` None is the producer's."""

    origin: str = "client"
    api_version: int = 13
    has_transactional_id: bool = True
    compacted: bool = False
    log_append_time: bool = False
    before_max_ms: int = (1 << 63) - 1
    after_max_ms: int = 3_600_000
    now: int = 1_767_225_600_000
    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    compression: int | None = None

    def question(self) -> bytes:
        """Return the settings in the format of ProduceJudge."""
        return struct.pack(
            ">bhbbbqqqiib",
            ("client", "coordinator").index(self.origin),
            self.api_version,
            self.has_transactional_id,
            self.compacted,
            self.log_append_time,
            self.before_max_ms,
            self.after_max_ms,
            self.now,
            self.max_message_bytes,
            self.segment_bytes,
            -1 if self.compression is None else self.compression,
        )


@dataclass(frozen=True)
class ProduceResult:
    """The response of a leader: Kafka's error (0 NONE), the records in it, and the bytes that the log then contains."""

    code: int
    name: str
    record_indexes: tuple[int, ...]
    error: JudgeError | None
    data: bytes | None


@dataclass(frozen=True)
class Filtered:
    """The bytes that MemoryRecords.filterTo wrote, and its counts."""

    data: bytes
    messages_read: int
    messages_retained: int
    max_offset: int


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def bytes_question(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def record_question(record: JudgedRecord) -> bytes:
    parts = [struct.pack(">qq", record.offset, record.timestamp)]
    parts += [bytes_question(record.key), bytes_question(record.value), struct.pack(">i", len(record.headers))]
    for name, value in record.headers:
        parts += [bytes_question(name.encode()), bytes_question(value)]
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
    """Return the result for a record set."""
    batches = tuple(_batch(entry) for entry in answer["batches"])
    return JudgedRecordSet(batches, answer["validBytes"], _error(answer.get("error")))


def read_delivered(answer: dict[str, Any]) -> Delivered:
    """Return the result of a consumer."""
    return Delivered(
        tuple(_record(entry) for entry in answer["records"]),
        tuple(entry["timestampType"] for entry in answer["records"]),
        answer["position"],
        _error(answer.get("error")),
    )


def read_written(answer: dict[str, Any]) -> bytes:
    """Return the bytes that were written. Raise WriterRefused."""
    error = _error(answer.get("error"))
    if error is not None:
        raise WriterRefused(error)
    return base64.b64decode(answer["data"])


def read_produce_result(answer: dict[str, Any]) -> ProduceResult:
    """Return the result for a produced record set."""
    return ProduceResult(
        answer["code"],
        answer["name"],
        tuple(index for index, _ in answer.get("recordErrors", ())),
        _error(answer.get("error")),
        _bytes(answer.get("data")),
    )


def read_filtered(answer: dict[str, Any]) -> Filtered:
    """Return the result of a filter. Raise WriterRefused."""
    data = read_written(answer)
    return Filtered(data, answer["messagesRead"], answer["messagesRetained"], answer["maxOffset"])
