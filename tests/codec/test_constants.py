# SPDX-License-Identifier: Apache-2.0
"""The enumerations: Kafka's numbers and Kafka's spelling are one and the same value."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from kcodec import constants
from kcodec.constants import BatchRetention, Compression, ControlType, IsolationLevel, TimestampType

# As org.apache.kafka.common.record.CompressionType, .TimestampType, .ControlRecordType, common.IsolationLevel
# and MemoryRecords.RecordFilter.BatchRetention say.
KAFKA = {
    Compression: {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"},
    TimestampType: {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"},
    IsolationLevel: {0: "read_uncommitted", 1: "read_committed"},
    ControlType: {
        0: "ABORT",
        1: "COMMIT",
        2: "LEADER_CHANGE",
        3: "SNAPSHOT_HEADER",
        4: "SNAPSHOT_FOOTER",
        5: "KRAFT_VERSION",
        6: "KRAFT_VOTERS",
    },
    BatchRetention: {0: "DELETE", 1: "RETAIN_EMPTY", 2: "DELETE_EMPTY"},
}
MEMBERS = [(kind, number, text) for kind, names in KAFKA.items() for number, text in names.items()]


@pytest.mark.parametrize("kind", KAFKA, ids=lambda kind: kind.__name__)
def test_members_are_those_of_kafka(kind: Any) -> None:
    assert {int(member): str(member) for member in kind} == KAFKA[kind]


@pytest.mark.parametrize(("kind", "number", "text"), MEMBERS)
def test_a_member_is_its_number_and_its_text(kind: Any, number: int, text: str) -> None:
    member = kind(number)
    assert member is kind(text)
    assert member == number
    assert member == text
    assert text == member
    assert not (member != text)  # noqa: SIM202  it has its own rule
    assert member != text.swapcase()
    assert member != number + 100
    assert hash(member) == hash(number)
    assert f"{member}" == str(member) == text
    assert repr(member) == f"{kind.__name__}.{member.name}"
    assert pickle.loads(pickle.dumps(member)) is member
    assert json.dumps({"value": member}) == f'{{"value": {number}}}'


@pytest.mark.parametrize("kind", KAFKA, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", [99, -2, "zst", "", None, b"zstd", 1.5])
def test_anything_else_is_a_value_error(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=f"is not a valid {kind.__name__}"):
        kind(value)


def test_a_member_is_neither_another_enumerations_text_nor_any_object() -> None:
    assert Compression.GZIP != "snappy"
    assert Compression.GZIP != b"gzip"
    assert Compression.NONE is not None
    assert Compression.NONE != None  # noqa: E711  the comparison itself is meant


@pytest.mark.parametrize("kind", KAFKA, ids=lambda kind: kind.__name__)
def test_members_are_frozen(kind: Any) -> None:
    member = next(iter(kind))
    before = str(member)
    for name in ("label", "value", "name"):
        with pytest.raises(AttributeError):
            setattr(member, name, "another")
    assert str(member) == before


def test_sentinels_are_minus_one() -> None:
    names = [name for name in vars(constants) if name.startswith("NO_")]
    assert len(names) == 5
    assert {getattr(constants, name) for name in names} == {-1}
