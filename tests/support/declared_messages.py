# SPDX-License-Identifier: Apache-2.0
"""A message with a field of each kind, for tests of declarations: no message of Kafka's has them all."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kcodec.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)


class Leaf(Struct):
    index: int = int32("0+")
    name: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class Branch(Struct):
    topic: str = string("0+")
    leaves: list[Leaf] = array(Leaf, "0+")


class TreeRequest(Request, key=7, versions="0-3", flexible="2+"):
    is_it: bool = boolean("0+")
    small: int = int8("0+")
    short: int = int16("0+")
    port: int = uint16("0+")
    count: int = int32("0+")
    wide: int = uint32("0+")
    long: int = int64("0+", default=-1)
    ratio: float = float64("0+")
    id: UUID = uuid("0+")
    text: str | None = string("0+", nullable="1+")
    content: bytes | None = data("0+", nullable="1+")
    batches: bytes | memoryview | None = records("0+", nullable="0+")
    numbers: list[int] | None = array(int32, "0+", nullable="2+")
    words: list[str] = array(string, "0+")
    branches: list[Branch] = array(Branch, "0+")
    cursor: Leaf | None = struct(Leaf, "2+", nullable="2+", default=None)
    added: int = int32("1+", default=5)
    hint: str = string("1+", ignorable=True)
    epoch: int = int32("2+", default=-1, tag=1, tagged="2+")
    extra: Leaf = struct(Leaf, "2+", tag=0)
    old_name: str = string("2+", flexible="none")


class TreeResponse(Response, key=7, versions="0-3", flexible="2+"):
    error_code: int = int16("0+")


TEXT_AT = 46  # number of bytes before `text` in every version


def tree(**given: Any) -> TreeRequest:
    """A request with something in every field that all versions have."""
    values: dict[str, Any] = {
        "is_it": True,
        "small": -3,
        "short": -300,
        "port": 65535,
        "count": -70000,
        "wide": 4294967295,
        "long": -(1 << 63),
        "ratio": -0.5,
        "id": UUID("01234567-89ab-cdef-fedc-ba9876543210"),
        "text": "käse",
        "content": b"\x00\xff",
        "batches": b"records",
        "numbers": [1, -2, 1 << 30],
        "words": ["", "a" * 200],
        "branches": [Branch(topic="t", leaves=[Leaf(index=1), Leaf(index=2)]), Branch(topic="u")],
    }
    return TreeRequest(**(values | given))
