# SPDX-License-Identifier: Apache-2.0
"""Every message of every version compared with the slow reference: random values both ways, cut at every byte, changed
bytes, and how much memory bytes can make the reader take."""

from __future__ import annotations

import array
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
import reference_messages
from every_message import EVERY, KINDS
from message_edits import difference, edited
from reference_messages import sample, varint

from kcodec._fast import DEEPEST_MESSAGE
from kcodec.errors import DecodeError, EncodeError, TruncatedError
from kcodec.protocol import messages
from kcodec.protocol.schema import Field, Message, Struct, fields, int32, struct

LONG = os.environ.get("KCODEC_PROFILE") == "long"
MESSAGES_EACH = 30 if LONG else 3
EDITS_EACH = 200 if LONG else 12
# What a byte of a message may cost in memory while it is read: an object, its slots and lists for the few bytes that a
# struct takes at least.
MEMORY_PER_BYTE = 100


def test_all_messages_as_the_reference_has_them() -> None:
    random = Random(1)
    for kind, version in EVERY:
        for message in [kind(), *(sample(kind, version, random) for _ in range(MESSAGES_EACH))]:
            data = message.encode(version)
            assert data == reference_messages.encode(message, version)
            assert kind.decode(data, version) == message == reference_messages.decode(kind, data, version)
            assert kind.decode(bytearray(data), version) == message
            if not hides_something(kind):
                assert pickle.loads(pickle.dumps(message)) == message


def hides_something(kind: type[Struct]) -> bool:
    return any(
        field.secret or (isinstance(field.kind, type) and hides_something(field.kind))
        for field in fields(kind).values()
    )


def test_all_messages_cut_at_every_byte() -> None:
    random = Random(2)
    for kind, version in EVERY:
        data = sample(kind, version, random).encode(version)
        for size in range(len(data)) if len(data) < 400 else random.sample(range(len(data)), 400):
            with pytest.raises(TruncatedError) as caught:
                kind.decode(memoryview(data)[:size], version)
            assert caught.value.needed > caught.value.available >= 0
        with pytest.raises(DecodeError):
            kind.decode(data + b"\x00", version)


def test_all_messages_with_edited_bytes() -> None:
    """Read or refused as the reference does."""
    random = Random(3)
    for kind, version in EVERY:
        data = sample(kind, version, random).encode(version)
        for _ in range(EDITS_EACH):
            changed = edited(data, random)
            assert difference(kind, changed, version) is None, (kind, version, changed)


Way = tuple[tuple[type[Struct], str, Field], ...]


def arrays(kind: type[Struct], version: int, way: Way = ()) -> Iterator[Way]:
    """The way to every array of a message that a version has."""
    for name, field in fields(kind).items():
        if field.versions.hold(version):
            here = (*way, (kind, name, field))
            if field.is_array:
                yield here
            if isinstance(field.kind, type):
                yield from arrays(field.kind, version, here)


def crowded(way: Way, size: int) -> Any:
    """A message whose array at the end of the way has elements of as few bytes as can be."""
    kind, name, field = way[0]
    if len(way) > 1:
        inner = crowded(way[1:], size)
        return set_records(kind(**{name: [inner] if field.is_array else inner}))
    if isinstance(field.kind, type):
        element: Any = set_records(field.kind())
    else:
        element = {"string": "", "uuid": UUID(int=0), "bytes": b""}.get(field.kind, 0)
    return set_records(kind(**{name: [element] * size}))


def set_records(message: Struct) -> Struct:
    """Set the records of a ShareFetch response, which are null by default, but not nullable in the newest version."""
    if isinstance(message, messages.ShareFetchPartitionData):
        message.records = b""
    return message


def test_memory_is_bounded_by_the_bytes() -> None:
    """Each array of each message, full of elements that take as few bytes as they can."""
    worst = 0.0
    for kind in KINDS:
        version = kind.versions.last
        for way in arrays(kind, version):
            data = crowded(way, 400).encode(version)
            tracemalloc.start()
            message = kind.decode(data, version)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            worst = max(worst, (peak - sys.getsizeof(message) - 2000) / len(data))
    assert 20 < worst < MEMORY_PER_BYTE


def test_a_count_takes_no_memory_before_its_elements_are_there() -> None:
    for kind in KINDS:
        version = kind.versions.last
        for way in arrays(kind, version):
            data = crowded(way, 300).encode(version)
            small, large = varint(301), varint(0x7FFFFFFF)
            if not kind.is_flexible(version):
                small, large = (300).to_bytes(4, "big"), (0x7FFFFFFF).to_bytes(4, "big")
            hostile = data.replace(small, large, 1)
            assert hostile != data
            tracemalloc.start()
            with pytest.raises(DecodeError):
                kind.decode(hostile, version)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 20_000


def test_structs_do_not_go_deeper_than_the_reader_does() -> None:
    inner: type[Struct] = type("Level0", (Struct,), {"value": int32("0+")})
    for level in range(1, DEEPEST_MESSAGE - 1):
        inner = type(f"Level{level}", (Struct,), {"inner": struct(inner, "0+")})
    top: Any = type("Top", (Message,), {"inner": struct(inner, "0+")}, versions="0")
    assert top.decode(top().encode(0), 0) == top()
    with pytest.raises(TypeError, match="deeper than 16"):
        type("Deeper", (Message,), {"inner": struct(top, "0+")}, versions="0")().encode(0)
    depths = [len(way) for kind in KINDS for way in arrays(kind, kind.versions.last)]
    assert max(depths) < DEEPEST_MESSAGE


def test_the_collector_is_as_it_was() -> None:
    request = messages.EndTxnRequest(transactional_id="a")
    data = request.encode(3)
    for turn in (gc.enable, gc.disable):
        try:
            turn()
            before = gc.isenabled()
            assert messages.EndTxnRequest.decode(data, 3) == request
            with pytest.raises(DecodeError):
                messages.EndTxnRequest.decode(data[:-1], 3)
            assert gc.isenabled() is before
        finally:
            gc.enable()


def test_nothing_is_kept_of_messages() -> None:
    """No reference of a value is lost, whichever way a message ends."""
    random = Random(4)
    frames = []
    for kind in KINDS:
        data = sample(kind, kind.versions.last, random).encode(kind.versions.last)
        frames.append((kind, data, random.randrange(len(data) + 1)))

    def turn() -> None:
        for kind, data, size in frames:
            kind.decode(data, kind.versions.last).encode(kind.versions.last)
            with contextlib.suppress(DecodeError):
                kind.decode(data[:size], kind.versions.last)

    def growth() -> tuple[int, int]:
        gc.collect()
        before, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        for _ in range(20):
            turn()
        gc.collect()
        return len(gc.get_objects()) - before, sys.getallocatedblocks() - blocks

    for _ in range(3):
        turn()
    # A leak grows each time; threads that other tests of this process have left may grow something now and then.
    objects, blocks = zip(*(growth() for _ in range(8)), strict=True)
    assert min(objects) < 20
    assert min(blocks) < 100


def test_threads_share_plans() -> None:
    random = Random(5)
    frames = [(kind, sample(kind, version, random).encode(version), version) for kind, version in EVERY]
    failed: list[object] = []

    def turn(start: int) -> None:
        for kind, data, version in frames[start:] + frames[:start]:
            if kind.decode(data, version).encode(version) != data:
                failed.append((kind, version))

    threads = [threading.Thread(target=turn, args=(100 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_message_that_changes_while_it_is_encoded() -> None:
    """Numbers may run anybody's code; a list that shrinks meanwhile is an error, not a crash."""

    class Shrinking:
        def __index__(self) -> int:
            numbers.clear()
            return 1

    numbers: list[Any] = [Shrinking(), 2, 3]
    wrong = messages.OffsetFetchRequest(
        groups=[messages.OffsetFetchRequestGroup(topics=[messages.OffsetFetchRequestTopics(partition_indexes=numbers)])]
    )
    with pytest.raises(EncodeError, match="the list changed"):
        wrong.encode(8)


class Odd:
    """No number, no text, nothing."""

    def __repr__(self) -> str:
        return "<odd>"


def odd_values() -> list[Any]:
    released = memoryview(b"abc")
    released.release()
    lasting: list[Any] = [None, True, 0, -1, 255, 1 << 31, 1 << 63, -(1 << 63) - 1, 10**40, 1.5, float("nan"), "", "a"]
    lasting += ["\ud800", "a" * 32768, b"", b"abc", bytearray(b"abc"), memoryview(b"abcd")[::2], released, Odd(), Odd]
    lasting += [[], (), {}, [None], ["a", None], [[1]], ["\udfff"], [1 << 40], (b"a", 1), {1, 2}, range(3), UUID(int=3)]
    return [*lasting, array.array("i", [1, 2]), messages.EndTxnRequest(), [messages.EndTxnRequest()], Odd.__repr__]


def test_odd_values_are_encode_errors_or_what_they_mean() -> None:
    """Whatever stands in a field of a message or of a struct inside, and never anything but an EncodeError."""
    random = Random(7)
    values = odd_values()
    refused = taken = 0
    for kind, version in EVERY:
        for _ in range(EDITS_EACH):
            message = sample(kind, version, random, density=0.5)
            target: Any = message
            while True:
                structs = [one for name in fields(type(target)) for one in inner_structs(getattr(target, name))]
                if not structs or random.random() < 0.4:
                    break
                target = random.choice(structs)
            if not fields(type(target)):
                continue
            name = random.choice([*fields(type(target)), "unknown_tagged_fields"])
            setattr(target, name, random.choice(values))
            try:
                data = message.encode(version)
            except EncodeError as error:
                refused += 1
                assert str(error)
                pickle.dumps(error)
            else:
                taken += 1
                assert kind.decode(data, version).encode(version) == data
    assert refused > 100
    assert taken > 100


def inner_structs(value: Any) -> list[Struct]:
    if isinstance(value, Struct):
        return [value]
    return [one for one in value if isinstance(one, Struct)] if isinstance(value, list) else []


def test_one_message_is_imported_alone() -> None:
    code = "import sys; from kcodec.protocol.messages import produce; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.startswith("kcodec.protocol.messages.")}
    assert loaded == {"kcodec.protocol.messages.produce"}
    assert not {"asyncio", "socket", "ssl", "dataclasses", "json"} & set(done.stdout.split())
