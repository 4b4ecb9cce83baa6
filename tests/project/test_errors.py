# SPDX-License-Identifier: Apache-2.0
"""The exceptions: their tree, their texts, and that they travel between processes with all they know."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch

import kcodec
from kcodec import TopicPartition, errors
from kcodec.protocol.error_codes import ErrorCode, broker_error

TREE = {
    "KcodecError": (Exception,),
    "DecodeError": (errors.KcodecError, ValueError),
    "TruncatedError": (errors.DecodeError,),
    "CorruptBatchError": (errors.DecodeError,),
    "UnsupportedError": (errors.DecodeError,),
    "LimitExceededError": (errors.DecodeError,),
    "DeserializationError": (errors.DecodeError,),
    "EncodeError": (errors.KcodecError, ValueError),
    "RecordValidationError": (errors.KcodecError, ValueError),
    "BufferFullError": (errors.KcodecError, BufferError),
    "DeliveryErrors": (errors.KcodecError, ExceptionGroup),
    "TopicDeliveryError": (errors.KcodecError,),
    "AdminError": (errors.KcodecError, ExceptionGroup),
    "TransactionStateError": (errors.KcodecError,),
    "BrokerError": (errors.KcodecError,),
    "ProducerFencedError": (errors.BrokerError,),
    "TransactionTimedOutError": (errors.BrokerError,),
    "AbortableTransactionError": (errors.BrokerError,),
    "FatalTransactionError": (errors.BrokerError,),
    "AuthorizationError": (errors.BrokerError,),
    "OffsetOutOfRangeError": (errors.BrokerError,),
    "LogTruncationError": (errors.OffsetOutOfRangeError,),
    "NoOffsetForPartitionError": (errors.KcodecError,),
    "TransportError": (errors.KcodecError, ConnectionError),
    "RequestTimedOutError": (errors.TransportError, TimeoutError),
    "DeliveryTimeoutError": (errors.TransportError, TimeoutError),
    "UnknownOutcomeError": (errors.TransportError,),
    "AuthenticationError": (errors.TransportError,),
}
OWN: dict[str, dict[str, Any]] = {
    "DecodeError": {},
    "TruncatedError": {"needed": 900, "available": 12},
    "CorruptBatchError": {"stored_crc": 1, "computed_crc": 2},
    "UnsupportedError": {},
    "LimitExceededError": {"limit": "max_batch_bytes", "value": 100, "claimed": 1 << 30},
    "DeserializationError": {"offset": 7, "field": "value", "raw_record": kcodec.Record(7, 0, 0, b"k", b"v")},
}
PLACE: dict[str, Any] = {"position": 1841, "base_offset": 512, "record": 7, "path": None, "next_offset": None}
GOOD = build_batch([RecordSpec(key=b"k", value=b"v")], base_offset=3)
# The last byte is the count of headers of the second record, as a zigzag varint.
SECOND_IS_WRONG = build_batch([RecordSpec(), RecordSpec()], edit_payload=lambda payload: payload[:-1] + b"\x01")


def every() -> list[errors.DecodeError]:
    place = {**PLACE, "path": "orders-0/00000000000000000000.log", "next_offset": 900}
    return [getattr(errors, name)("what is wrong", **place, **own) for name, own in OWN.items()]


def test_the_tree_is_complete_and_public() -> None:
    found = {
        name: kind.__bases__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert found == TREE
    for name in TREE:
        assert getattr(kcodec, name) is getattr(errors, name)
        assert getattr(errors, name).__doc__


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = str(errors.__doc__)
    assert [name for name in TREE if name not in drawn] == []


@pytest.mark.parametrize(
    "error",
    [
        errors.BufferFullError("full"),
        errors.TopicDeliveryError("failed", topic="orders", kind="MESSAGE_TOO_LARGE", count=3, remedy="stop"),
        errors.AdminError("1 of 2 failed", {"orders": errors.EncodeError("no name", field="name")}, {"payments": 3}),
        errors.TransactionStateError("not now", state="READY", event="COMMIT"),
        *(
            getattr(errors, name)("refused", code=53, name="X", retriable=True, remedy="stop", resource="orders")
            for name, bases in TREE.items()
            if (name == "BrokerError" or errors.BrokerError in bases) and name != "OffsetOutOfRangeError"
        ),
        errors.OffsetOutOfRangeError(
            "gone", partition=TopicPartition("a", 1), position=3, log_start_offset=5, log_end_offset=9, remedy="stop"
        ),
        errors.LogTruncationError(
            "cut", partition=TopicPartition("a", 1), position=8, position_epoch=2, divergent_offset=6, divergent_epoch=1
        ),
        errors.NoOffsetForPartitionError("none", partition=TopicPartition("a", 1), group_id="g"),
        *(
            getattr(errors, name)("cut off", possibly_sent=True)
            for name, bases in TREE.items()
            if name == "TransportError" or errors.TransportError in bases
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_clients_travel(error: errors.KcodecError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error) and str(copied) == str(error)
        assert repr(vars(copied)) == repr(vars(error))  # the errors of a group are not equal, but alike


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "value_length is 900, but 12 bytes remain"),
        ({"position": 0}, "batch at byte 0: value_length is 900, but 12 bytes remain"),
        (
            {"position": 5, "base_offset": -1},
            "batch at byte 5 (base_offset -1): value_length is 900, but 12 bytes remain",
        ),
        (PLACE, "batch at byte 1841 (base_offset 512), record 7: value_length is 900, but 12 bytes remain"),
        ({"position": 5, "record": 0}, "batch at byte 5, record 0: value_length is 900, but 12 bytes remain"),
        ({"path": "a.log"}, "a.log: value_length is 900, but 12 bytes remain"),
        ({"path": "a.log", "position": 5}, "a.log: batch at byte 5: value_length is 900, but 12 bytes remain"),
    ],
)
def test_texts_say_where_as_far_as_it_is_known(place: dict[str, Any], text: str) -> None:
    error = errors.DecodeError("value_length is 900, but 12 bytes remain", **place)
    assert str(error) == text
    assert error.reason == "value_length is 900, but 12 bytes remain"
    assert error.args == ("value_length is 900, but 12 bytes remain",)


@pytest.mark.parametrize("error", every(), ids=lambda error: type(error).__name__)
def test_they_travel_with_all_they_know(error: errors.DecodeError) -> None:
    names = {"reason", *PLACE, *OWN[type(error).__name__]}
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert {name: getattr(copied, name) for name in names} == {name: getattr(error, name) for name in names}
        assert copied.decoded is None


def test_they_travel_with_the_records_before_the_corruption() -> None:
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        kcodec.decode(GOOD + GOOD[:-2] + b"w" + GOOD[-1:])
    assert caught.value.decoded is not None
    assert caught.value.decoded.counts.records == 1
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.decoded == caught.value.decoded
    assert list(copied.decoded.records()) == list(caught.value.decoded.records())
    assert (copied.position, copied.base_offset, copied.stored_crc) == (len(GOOD), 3, caught.value.stored_crc)


def test_under_stop_the_result_travels_with_its_error() -> None:
    decoded = kcodec.decode(GOOD + bytes(61), on_error="stop")
    assert isinstance(decoded.error, kcodec.DecodeError)
    copied = pickle.loads(pickle.dumps(decoded))
    assert copied == decoded
    assert (type(copied.error), str(copied.error)) == (type(decoded.error), str(decoded.error))
    assert "batch_length 0 is below 14" in repr(copied)


def test_one_except_clause_catches_what_bytes_can_do() -> None:
    for error in every():
        assert isinstance(error, kcodec.KcodecError)
        assert isinstance(error, ValueError)
        with pytest.raises(kcodec.DecodeError):
            raise error


def test_own_fields_cannot_be_forgotten() -> None:
    for name, own in OWN.items():
        for missing in own:
            rest = {field: value for field, value in own.items() if field != missing}
            with pytest.raises(TypeError, match=missing):
                getattr(errors, name)("reason", **rest)


@pytest.mark.parametrize(
    ("data", "kind", "fields"),
    [
        (bytes(61), kcodec.DecodeError, {"position": 0, "base_offset": 0, "record": None}),
        (GOOD[:16] + b"\3" + GOOD[17:], kcodec.UnsupportedError, {"position": 0, "base_offset": 3}),
        (GOOD[:-2] + b"w" + GOOD[-1:], kcodec.CorruptBatchError, {"next_offset": None}),
        (GOOD[:8] + b"\x7f" + GOOD[9:], kcodec.LimitExceededError, {"limit": "max_batch_bytes", "value": 128 << 20}),
        (
            build_batch([RecordSpec()], unused_attributes=5),
            kcodec.UnsupportedError,
            {"position": 0, "next_offset": None},
        ),
        (build_batch([RecordSpec()], records_count=2), kcodec.DecodeError, {"record": None, "next_offset": 1}),
        (SECOND_IS_WRONG, kcodec.DecodeError, {"record": 1, "next_offset": 2}),
    ],
    ids=["no length", "magic 3", "crc", "too long", "codec 5", "one record too few", "headers_count -1"],
)
def test_bytes_raise_the_error_that_fits_with_what_came_before(
    data: bytes, kind: type[kcodec.DecodeError], fields: dict[str, Any]
) -> None:
    for before in (b"", GOOD):
        with pytest.raises(kcodec.DecodeError) as caught:
            kcodec.decode(before + data)
        error = caught.value
        assert type(error) is kind
        expected = {**fields, **({"position": len(before)} if "position" in fields else {})}
        if before and "next_offset" in fields:
            expected["next_offset"] = None  # the offsets before the corrupt batch are not below its own
        assert {name: getattr(error, name) for name in fields} == expected
        assert error.decoded is not None
        assert len(error.decoded) == len(before and [1])
        assert error.reason[0].islower()
        assert not error.reason.endswith(".")


def test_those_about_writing_travel_with_all_they_know() -> None:
    encode = errors.EncodeError("timestamp -7 is neither -1 nor at least 0", field="timestamp", value=-7)
    refused = errors.RecordValidationError(
        "record 2 has no key", code=87, name="INVALID_RECORD", position=78, base_offset=0, record_indexes=(2,)
    )
    for error in (encode, refused):
        for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(copied) is type(error)
            assert str(copied) == str(error)
            assert vars(copied) == vars(error)
    assert str(refused) == "batch at byte 78 (base_offset 0): record 2 has no key [INVALID_RECORD, 87]"
    assert str(errors.RecordValidationError("none", code=87, name="INVALID_RECORD")) == "none [INVALID_RECORD, 87]"


def test_the_code_of_an_error_is_a_plain_number() -> None:
    """Whether the code came from a broker or is one of ours: the repr of a member of ErrorCode is not the number."""
    with pytest.raises(errors.RecordValidationError) as caught:
        kcodec.validate(b"")
    found: list[Any] = [
        caught.value,
        broker_error(6, "Produce"),
        broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Produce"),
    ]
    assert [repr(error.code) for error in found] == ["87", "6", "6"]
