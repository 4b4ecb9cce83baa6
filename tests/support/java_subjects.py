# SPDX-License-Identifier: Apache-2.0
"""The decoders that are compared with Kafka's classes, with one API: kcodec, and the reference of the other tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import reference
from java_answers import JudgedRecord

TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
Aborted = tuple[int, int, int | None]  # producer id, first offset, offset of the ABORT marker if known


@dataclass(frozen=True)
class Outcome:
    """The result of a decoder, with records in the form of java_answers."""

    records: list[JudgedRecord]
    timestamp_types: list[str]
    sequences: list[int]
    controls: list[tuple[int | None, int | None]]
    next_offset: int | None
    remaining_bytes: int
    error: ValueError | None
    error_position: int
    is_over_limit: bool


def reference_outcome(data: bytes, aborted_transactions: Iterable[Aborted] | None = None, **options: Any) -> Outcome:
    """Return the result of the reference decoder."""
    aborted: list[tuple[int, ...]] | None = None
    if aborted_transactions is not None:
        aborted = [tuple(part for part in entry if part is not None) for entry in aborted_transactions]
    result = reference.decode(data, aborted_transactions=aborted, on_error="stop", **options)
    records = []
    for record in result.records:
        names = (reference.java_string(name.encode("utf-8", "surrogateescape")) for name, _ in record.headers)
        headers = tuple(zip(names, (value for _, value in record.headers), strict=True))
        records.append(JudgedRecord(record.offset, record.timestamp, record.key, record.value, headers))
    return Outcome(
        records=records,
        timestamp_types=[TIMESTAMP_TYPES[record.timestamp_type] for record in result.records],
        sequences=[record.sequence for record in result.records],
        controls=[(record.control_type, record.coordinator_epoch) for record in result.records],
        next_offset=result.next_offset,
        remaining_bytes=result.remaining_bytes,
        error=result.error,
        error_position=-1 if result.error is None else result.error.position,
        is_over_limit=isinstance(result.error, reference.LimitExceededError),
    )


def kcodec_outcome(data: bytes, aborted_transactions: Iterable[Aborted] | None = None, **options: Any) -> Outcome:
    """Return the result of kcodec. Header names are those of the Arrow column, which are decoded as in Java."""
    import pyarrow

    import kcodec

    aborted = None
    if aborted_transactions is not None:
        aborted = [kcodec.AbortedTransaction(*entry) for entry in aborted_transactions]
    decoded = kcodec.decode(data, aborted_transactions=aborted, on_error="stop", **options)
    found = list(decoded.records())
    names = pyarrow.chunked_array(decoded.column("headers")).to_pylist()
    records = []
    for record, headers in zip(found, names, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers)
        assert [value for _, value in record.headers] == [value for _, value in pairs]
        records.append(JudgedRecord(record.offset, record.timestamp, record.key, record.value, pairs))
    assert decoded.error is None or isinstance(decoded.error, kcodec.DecodeError)
    position = -1 if decoded.error is None else decoded.error.position
    assert position is not None
    return Outcome(
        records=records,
        timestamp_types=[str(record.timestamp_type) for record in found],
        sequences=[record.sequence for record in found],
        controls=[(record.control_type, record.coordinator_epoch) for record in found],
        next_offset=decoded.next_offset,
        remaining_bytes=decoded.remaining_bytes,
        error=decoded.error,
        error_position=position,
        is_over_limit=isinstance(decoded.error, kcodec.LimitExceededError),
    )


def _kcodec_with(way: str) -> Callable[..., Outcome]:
    """kcodec with zstd decompressed in one of the ways of `_fast.use_zstd`, where it is available."""

    def outcome(data: bytes, **options: Any) -> Outcome:
        from kcodec import _fast

        before = _fast.zstd_way()
        _fast.use_zstd(way)
        try:
            return kcodec_outcome(data, **options)
        finally:
            _fast.use_zstd(before)

    return outcome


SUBJECTS: dict[str, Callable[..., Outcome]] = {
    "kcodec": _kcodec_with("package"),
    "kcodec-system-zstd": _kcodec_with("system"),
    "kcodec-zstd-library": _kcodec_with("library"),
    "reference": reference_outcome,
}
