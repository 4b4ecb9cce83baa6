# SPDX-License-Identifier: Apache-2.0
"""Comparison of kcodec with the reference decoder (reference.py) on the same bytes.

    Way(columns, threads, binary_type, buffer, through_arrow)    how kcodec is called, which must not change the result
    random_way(random) -> Way
    difference(data, options, way=Way()) -> None, or a text with both results
    difference_of(data, options, ways) -> the same for several ways, with one call of the reference decoder

`options` are keyword arguments of reference.decode. Limits below the minimum of DecodeLimits are raised to it first.
The records in every requested column and as Record objects are compared, as well as counts, next_offset,
remaining_bytes and bytes_needed, and of the error its class, position, base_offset, record and next_offset. Other
exceptions are not caught. If bytes are wrong in two ways, both of these results are accepted:

- A count that the bytes cannot hold may be reported before any record is read, without `record`. - A stream that is
corrupt and too large may be a DecodeError or a LimitExceededError. - With aborted_transactions=None, a marker after a
corrupt batch does not end a transaction. It therefore affects whether
  an earlier batch, which is corrupt as well, is decompressed. The corruption of the earlier one is accepted as the
  result if it is the result for the bytes up to there.
- A batch may be found to be corrupt and be skipped, although a corrupt batch before it leaves its transaction without
an
  outcome, so that it need not be decompressed. Its records are then in no count.

Releases of libzstd differ in which corrupt blocks they reject. If the system's library accepts a block that the
reference's rejects, kcodec decodes again with the library of the package, which must agree with the reference.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import reference
from reference import Record, Result, java_string

import kcodec
import kcodec._fast

COLUMNS = tuple(name for name in kcodec.COLUMNS if name not in ("topic", "partition"))
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
BinaryType = Literal["binary", "large_binary", "binary_view"]
BINARY_TYPES: tuple[BinaryType, ...] = ("binary", "large_binary", "binary_view")
LEAST_LIMIT = 61
BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    # Inside of a larger buffer, whose other bytes are invalid and must not be read.
    "slice": lambda data: memoryview(b"\xff" * 7 + data + b"\xff" * 64)[7 : 7 + len(data)],
}


@dataclass(frozen=True)
class Way:
    """How kcodec is called."""

    columns: tuple[str, ...] = COLUMNS
    threads: int = 1
    binary_type: BinaryType = "binary"
    buffer: str = "bytes"
    through_arrow: bool = False


def random_way(random: random_module.Random) -> Way:
    """Return a random way, with all columns in half of the cases."""
    columns = COLUMNS
    kind = random.randrange(4)
    if kind == 0:
        columns = DEFAULT_COLUMNS
    elif kind == 1:
        columns = tuple(random.sample(COLUMNS, random.randint(1, len(COLUMNS))))
    return Way(
        columns=columns,
        threads=random.choice((1, 1, 2)),
        binary_type=random.choice(BINARY_TYPES),
        buffer=random.choice(sorted(BUFFERS)),
        through_arrow=random.randrange(3) == 0,
    )


def _possible(options: dict[str, Any]) -> dict[str, Any]:
    limits = {name: max(value, LEAST_LIMIT) for name, value in options.items() if name.startswith("max_")}
    return {**options, **limits}


def _ask(data: bytes, options: dict[str, Any], way: Way) -> tuple[kcodec.DecodedRecords, Exception | None]:
    limits = {name: value for name, value in options.items() if name.startswith("max_")}
    rest = {name: value for name, value in options.items() if not name.startswith("max_")}
    reported = rest.get("aborted_transactions")
    if reported is not None:
        rest["aborted_transactions"] = [kcodec.AbortedTransaction(*entry) for entry in reported]
    try:
        decoded = kcodec.decode(
            BUFFERS[way.buffer](data),
            columns=way.columns,
            binary_type=way.binary_type,
            threads=way.threads,
            limits=kcodec.DecodeLimits(**limits),
            **rest,
        )
    except kcodec.DecodeError as error:
        assert error.decoded is not None
        return error.decoded, error
    return decoded, decoded.error


def _ask_oracle(data: bytes, options: dict[str, Any]) -> tuple[Result, reference.DecodeError | None]:
    try:
        result = reference.decode(data, **options)
    except reference.DecodeError as error:
        assert error.decoded is not None
        return error.decoded, error
    return result, result.error


def _summary(result: Any) -> dict[str, Any]:
    counts = result.counts
    names = ("batches", "skipped_batches", "records", "aborted", "control", "undecided", "out_of_range")
    return {
        **{name: getattr(counts, name) for name in names},
        "next_offset": result.next_offset,
        "remaining_bytes": result.remaining_bytes,
        "bytes_needed": result.bytes_needed,
    }


def _place(error: Any) -> dict[str, Any] | None:
    if error is None:
        return None
    names = ("position", "base_offset", "record", "next_offset")
    return {"class": type(error).__name__, **{name: getattr(error, name) for name in names}}


def _differing_error(mine: Any, theirs: Any) -> str | None:
    place, reported = _place(mine), _place(theirs)
    if place is not None and reported is not None:
        if "cannot hold" in mine.reason or "cannot hold" in theirs.reason:
            reported["record"] = place["record"]
        is_of_stream = theirs.kind in ("stream", "max_decompressed_bytes")
        if is_of_stream and {place["class"], reported["class"]} == {"DecodeError", "LimitExceededError"}:
            reported["class"] = place["class"]
    return _unequal("error", place, reported)


def oracle_column(records: Sequence[Record], name: str) -> list[Any]:
    """Return a column of the records of the reference decoder."""
    return [getattr(record, name) for record in records]


def arrow_columns(source: Any) -> dict[str, list[Any]]:
    """Return a result as pyarrow reads it, with timestamps as numbers, headers as tuples and names as Arrow strings."""
    table = pa.table(source)
    table.validate(full=True)
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if name == "timestamp":
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if name == "headers":
            values = [tuple((entry["key"], entry["value"]) for entry in row) for row in values]
        columns[name] = values
    return columns


def _arrow_headers(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((java_string(name.encode("utf-8", "surrogateescape")), value) for name, value in headers)


def _differing_row(name: str, mine: Sequence[Any], theirs: Sequence[Any]) -> str | None:
    if len(mine) != len(theirs):
        return f"{name}: {len(mine)} rows, oracle {len(theirs)}"
    for row, (value, reported) in enumerate(zip(mine, theirs, strict=True)):
        if value != reported or type(value) is not type(reported):
            return f"{name}[{row}]: {value!r}, oracle {reported!r}"
    return None


def _differing_records(decoded: kcodec.DecodedRecords, reported: Sequence[Record], way: Way) -> str | None:
    names = [name for name in DEFAULT_COLUMNS if name in way.columns]
    if "offset" in names:
        names += ["sequence", "timestamp_type"]
    if "key" in names and "value" in names:
        names += ["control_type", "coordinator_epoch"]
    mine = [tuple(getattr(record, name) for name in names) for record in decoded.records()]
    theirs = [tuple(getattr(record, name) for name in names) for record in reported]
    if mine != theirs:
        row = next((row for row, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), None)
        return f"records(): {len(mine)} of {names}, oracle {len(theirs)}, first difference at {row}"
    return None


def _differing_rows(decoded: kcodec.DecodedRecords, reported: Sequence[Record], way: Way) -> str | None:
    seen = arrow_columns(decoded) if way.through_arrow else {}
    for name in way.columns:
        theirs = oracle_column(reported, name)
        found = _differing_row(name, list(decoded.column(name)), theirs)
        if found is None and way.through_arrow:
            theirs = [_arrow_headers(row) for row in theirs] if name == "headers" else theirs
            found = _differing_row(f"arrow {name}", seen[name], theirs)
        if found is not None:
            return found
    return _differing_records(decoded, reported, way)


def _unequal(what: str, mine: dict[str, Any] | None, theirs: dict[str, Any] | None) -> str | None:
    if mine == theirs:
        return None
    if mine is None or theirs is None:
        return f"{what}: {mine}, oracle {theirs}"
    names = [name for name in mine if mine[name] != theirs[name]]
    return f"{what}: " + ", ".join(f"{name} {mine[name]}, oracle {theirs[name]}" for name in names)


def _compare(data: bytes, options: dict[str, Any], way: Way, reported: tuple[Result, Any]) -> str | None:
    decoded, error = _ask(data, options, way)
    found = (
        _differing_error(error, reported[1])
        or _unequal("answer", _summary(decoded), _summary(reported[0]))
        or _differing_rows(decoded, reported[0].records, way)
    )
    return found and f"{found} (kcodec's error {error!s}, oracle's {reported[1]!s}; {way})"


def _has_found_earlier_corruption(data: bytes, options: dict[str, Any], way: Way) -> bool:
    """Return whether kcodec found an earlier corrupt batch than the reference, with the result for the bytes before
    it."""
    if options.get("isolation_level") != "read_committed" or options.get("aborted_transactions") is not None:
        return False
    decoded, error = _ask(data, options, way)
    reported, reported_error = _ask_oracle(data, options)
    if not isinstance(error, kcodec.DecodeError) or error.position is None or reported_error is None:
        return False
    mine = list(decoded.column("offset"))
    if _differing_error(error, reported_error) is None:
        more_is_skipped = decoded.counts.skipped_batches > reported.counts.skipped_batches
        return more_is_skipped and mine == oracle_column(reported.records, "offset")
    alone_options = {"on_error": "stop", "check_crcs": options.get("check_crcs", True)}
    alone_options |= {name: value for name, value in options.items() if name.startswith("max_")}
    _, alone = _ask_oracle(data[error.position :], {**alone_options, "control_records": "include"})
    if alone is None or type(alone).__name__ != type(error).__name__ or alone.position != 0:
        return False
    if error.position >= reported_error.position:
        return False
    if options.get("on_error") == "skip":
        return set(mine) <= set(oracle_column(reported.records, "offset"))
    before, before_error = _ask_oracle(data[: error.position], options)
    return before_error is None and mine == oracle_column(before.records, "offset")


def difference_of(data: bytes, options: dict[str, Any], ways: Iterable[Way]) -> str | None:
    """Return the first difference between kcodec and the reference, or None."""
    options = _possible(options)
    reported = _ask_oracle(data, options)
    for way in ways:
        found = _compare(data, options, way, reported)
        if (
            found is not None
            and reported[1] is not None
            and "corruption" in str(reported[1])
            and kcodec._fast.zstd_way() == "system"
        ):
            kcodec._fast.use_zstd("package")
            try:
                found = _compare(data, options, way, reported)
            finally:
                kcodec._fast.use_zstd("system")
        if found is not None and not _has_found_earlier_corruption(data, options, replace(way, columns=COLUMNS)):
            return found
    return None


def difference(data: bytes, options: dict[str, Any], way: Way = Way()) -> str | None:
    """Return the difference between kcodec and the reference, or None."""
    return difference_of(data, options, (way,))
