# SPDX-License-Identifier: Apache-2.0
"""Integers as arguments: those of numpy are accepted, a bool is not, and the error of a long one names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kcodec
from kcodec.arguments import check_seconds, numbers_of, partitions_of
from kcodec.cluster.list_offsets import isolation_of, timestamp_of
from kcodec.integers import as_integer, checked_integer, shown
from kcodec.limits import DecodeLimits
from kcodec.offsets import OffsetRange, TopicPartition, check_offsets
from kcodec.producer.options import ProducerConfig
from kcodec.reading.ranges import TopicRange, bound_of

BATCH = bytes(kcodec.encode([(None, b"v")] * 3, timestamp=5))
LONG = 10**5000


def edited(edit: Callable[..., None], *arguments: Any, **options: Any) -> bytes:
    data = bytearray(BATCH)
    edit(data, *arguments, **options)
    return bytes(data)


def encoded(**options: Any) -> bytes:
    return bytes(kcodec.encode([(None, b"v")], **{"timestamp": 5, **options}))


def columns(**options: Any) -> list[Any]:
    return list(kcodec.decode(BATCH, **options).column("offset"))


#: The name in errors, a valid value, the call, and whether any long integer is accepted.
CASES: list[tuple[str, int, Callable[[Any], object], bool]] = [
    ("max_batch_bytes", 100, lambda value: DecodeLimits(max_batch_bytes=value), False),
    ("start_offset", 1, lambda value: columns(start_offset=value), True),
    ("end_offset", 1, lambda value: columns(end_offset=value), True),
    (
        "last_stable_offset",
        1,
        lambda value: columns(isolation_level="read_committed", last_stable_offset=value),
        True,
    ),
    ("threads", 2, lambda value: columns(threads=value), True),
    ("producer_id", 1, lambda value: kcodec.AbortedTransaction(value, 1), False),
    ("timestamp", 7, lambda value: encoded(timestamp=value), False),
    ("max_batch_bytes", 100, lambda value: encoded(max_batch_bytes=value), False),
    ("compression_level", 2, lambda value: encoded(compression="gzip", compression_level=value), False),
    ("base_offset", 7, lambda value: encoded(base_offset=value), False),
    ("producer_epoch", 7, lambda value: encoded(producer_id=1, producer_epoch=value, base_sequence=0), False),
    ("compression", 1, lambda value: encoded(compression=value), False),
    ("timestamp_type", 1, lambda value: encoded(timestamp_type=value), False),
    ("timestamp", 7, lambda value: bytes(kcodec.encode([(None, b"v", (), value)])), False),
    ("partitions", 7, lambda value: list(kcodec.partition_for([b"k", b"l"], value)), False),
    ("base_offset", 7, lambda value: edited(kcodec.set_base_offset, value), False),
    ("position", 0, lambda value: edited(kcodec.set_base_offset, 1, position=value), False),
    ("now", 7, lambda value: kcodec.filter_to(BATCH, lambda batch, record: True, now=value), True),
    ("max_message_bytes", 10_000, lambda value: kcodec.validate(BATCH, max_message_bytes=value), False),
    ("start", 7, lambda value: OffsetRange("t", 0, value, 8), False),
    ("partition", 7, lambda value: OffsetRange("t", value, 0, 8), False),
    ("offsets", 7, lambda value: check_offsets({TopicPartition("t", 0): value}), False),
    ("offsets", 7, lambda value: check_offsets({TopicPartition("t", value): 1}), False),
    ("partitions", 7, lambda value: numbers_of(value, "partitions"), True),
    ("partitions", 7, lambda value: numbers_of([value], "partitions"), True),
    ("partitions", 7, lambda value: partitions_of([("t", value)]), False),  # type: ignore[list-item]
    ("timeout", 7, lambda value: check_seconds(value, "poll"), True),
    ("offset", 7, timestamp_of, True),
    ("start", 7, lambda value: bound_of(value, "start"), False),
    ("start", 7, lambda value: bound_of(kcodec.Timestamp(value), "start"), False),
    ("start", 7, lambda value: TopicRange("t", [7], {value: 1}, 9).partitions, False),
    ("batch_size", 7, lambda value: ProducerConfig(batch_size=value), False),
    ("linger_ms", 7, lambda value: ProducerConfig(linger_ms=value), False),
]
NAMES = [f"{number} {name}" for number, (name, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("name", "value", "call", "takes_long"), CASES, ids=NAMES)
def test_an_integer_is_an_int_of_any_kind(
    name: str, value: int, call: Callable[[Any], object], takes_long: bool
) -> None:
    expected = call(value)
    for kind in (np.int64, np.int32, np.uint16):
        found = call(kind(value))
        assert found == expected
        assert repr(found) == repr(expected)
    for wrong in (True, np.True_):
        with pytest.raises((TypeError, ValueError), match=name):
            call(wrong)
    for long in (LONG, -LONG):
        try:
            call(long)
        except ValueError as error:
            assert name in str(error)
            assert "integer of about 5001 digits>" in str(error)
            assert len(str(error)) < 300
        else:
            assert takes_long


def test_an_option_is_kept_as_an_int() -> None:
    number: Any = np.int64(7)
    assert type(ProducerConfig(batch_size=number).batch_size) is int


def test_true_is_no_isolation_level() -> None:
    assert isolation_of(1) == "read_committed"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="isolation_level must be one of"):
        isolation_of(True)  # type: ignore[arg-type]


def test_integers_are_checked_and_shown() -> None:
    assert [as_integer(one) for one in (5, np.int8(5), True, np.False_, 5.0, "5", None)] == [5, 5, *[None] * 5]
    assert [shown(one) for one in (5, -5, "x", LONG, -LONG)] == [
        "5",
        "-5",
        "'x'",
        "<integer of about 5001 digits>",
        "<negative integer of about 5001 digits>",
    ]
    assert len(shown("x" * 1000)) == 100
    assert checked_integer("count", np.int64(5), 1, 9) == 5
    with pytest.raises(ValueError, match="count must be between 1 and 9, not 10"):
        checked_integer("count", 10, 1, 9)
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        checked_integer("count", 0, 1)
    with pytest.raises(TypeError, match="count must be an int, not True of type bool"):
        checked_integer("count", True, 1)
