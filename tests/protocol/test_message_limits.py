# SPDX-License-Identifier: Apache-2.0
"""Messages of the protocol whose objects take much more memory than their bytes are limited by number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import growth
import pytest

from kcodec import DecodeError, LimitExceededError, _fast

MIB = 1 << 20
EMPTY_TAG = b"\x7f\x00"


def refused(reading: Callable[[], object]) -> LimitExceededError:
    with pytest.raises(LimitExceededError) as caught:
        reading()
    return caught.value


def unknown_tags_of_topics(topics: int, tags: int) -> Callable[[], object]:
    """A response with this many structs and this many unknown tagged fields without bytes in each."""
    return growth._metadata(growth._topic(tags=growth._length(tags - 1) + EMPTY_TAG * tags) * topics, topics)


@pytest.mark.parametrize("topics", [1, 64])
def test_unknown_tagged_fields_are_limited(topics: int) -> None:
    """In one struct and over all structs of a message; as many as the limit are kept."""
    tags = _fast.MOST_UNKNOWN_TAGGED_FIELDS // topics
    response = unknown_tags_of_topics(topics, tags)()
    assert len(response.topics[-1].unknown_tagged_fields) == tags  # type: ignore[attr-defined]
    error = refused(unknown_tags_of_topics(topics, tags + 1))
    assert (error.limit, error.value) == ("MOST_UNKNOWN_TAGGED_FIELDS", 1 << 20)


def test_values_of_arrays_are_limited() -> None:
    """Numbers and strings, of all arrays of a message together."""
    over = _fast.MOST_VALUES // 200 + 1
    for reading in (growth.message_numbers(over), growth.message_texts(4 * over)):
        error = refused(reading)
        assert (error.limit, error.value) == ("MOST_VALUES", 1 << 23)


SHAPES: dict[str, Callable[[], Callable[[], object]]] = {
    "unknown tags": lambda: growth.message_unknown_tags(25 * MIB // 150),
    "a tag a struct": lambda: growth._metadata(growth._topic(tags=b"\x01" + EMPTY_TAG) * 900_000, 900_000),
    "numbers": lambda: growth.message_numbers(25 * MIB // 800),
    "texts": lambda: growth.message_texts(25 * MIB // 200),
}


@pytest.mark.parametrize("name", SHAPES)
def test_memory_of_a_message_of_25_mib(name: str) -> None:
    """At most 20 times its bytes: 40 times were taken by unknown tagged fields."""
    reading = SHAPES[name]()

    def attempt() -> None:
        with contextlib.suppress(DecodeError):
            reading()

    _, peak = growth.measured(attempt)
    assert peak < 20 * 25 * MIB
