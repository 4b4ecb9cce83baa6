# SPDX-License-Identifier: Apache-2.0
"""Damage in what a consumer fetches: good records first, then an error that says where to go on, never a hang.

The cases are those on which other clients crash, spin, stall or lose good records (conformance of librdkafka, aiokafka
and kafka-python: a cut stream, a bomb, counts that lie, a bad checksum in the middle).
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch, compress, fix_crc
from bombs import batch_of, zstd_zeros
from edits import random_edit
from fetch_script import FetchScript, error
from legacy_writer import MessageSpec, build_message

import kcodec
from kcodec import DecodeError, DecodeLimits, LimitExceededError, TopicPartition, TruncatedError, UnsupportedError
from kcodec.consumer.corruption import explain_corruption
from kcodec.consumer.fetch_responses import CORRUPT_SECONDS
from kcodec.protocol.error_codes import ErrorCode

ORDERS = TopicPartition("orders", 0)
MIDDLE = [RecordSpec(value=b"%d" % number, headers=((b"name", b"value"),)) for number in (2, 3, 4)]
GOOD: dict[str, Any] = {"base_offset": 2}


def edited(place: int, value: bytes, repair: bool = True, **options: Any) -> bytes:
    """The middle batch with some bytes overwritten."""
    data = build_batch(MIDDLE, **GOOD, **options)
    data = data[:place] + value + data[place + len(value) :]
    return fix_crc(data) if repair else data


def with_stream(codec: str, cut: Callable[[bytes], bytes]) -> bytes:
    plain = build_batch(MIDDLE)[61:]
    return build_batch(MIDDLE, compression=codec, payload=cut(compress(codec, plain)), **GOOD)


def moved(batch: bytes, base_offset: int = 2) -> bytes:
    """A batch of one's own at another offset; the CRC does not cover that."""
    return struct.pack(">q", base_offset) + batch[8:]


def negative_header_counts(payload: bytes) -> bytes:
    return payload.replace(b"\x02\x08name", b"\x01\x08name")


LIMITS = DecodeLimits(max_decompressed_bytes=1 << 20)
CASES: dict[str, tuple[bytes, type[DecodeError]]] = {
    "a bad checksum": (edited(17, b"\0\0\0\0", repair=False), kcodec.CorruptBatchError),
    "a flipped bit in a record": (edited(70, b"\xff", repair=False), kcodec.CorruptBatchError),
    "zstd cut": (with_stream("zstd", lambda stream: stream[:-3]), DecodeError),
    "gzip cut": (with_stream("gzip", lambda stream: stream[:-9]), DecodeError),
    "lz4 cut": (with_stream("lz4", lambda stream: stream[:-6]), DecodeError),
    "snappy cut": (with_stream("snappy", lambda stream: stream[:-2]), DecodeError),
    "an empty gzip payload": (with_stream("gzip", lambda stream: b""), DecodeError),
    "a gzip stream of zero bytes": (
        build_batch(MIDDLE, compression="gzip", payload=compress("gzip", b""), **GOOD),
        DecodeError,
    ),
    "a bomb": (moved(batch_of(zstd_zeros(1 << 24), 3, "zstd")), LimitExceededError),
    "codec 7": (edited(21, b"\x00\x07"), UnsupportedError),
    "magic 3": (edited(16, b"\x03"), UnsupportedError),
    "count -1": (edited(57, struct.pack(">i", -1)), DecodeError),
    "count 0": (edited(57, struct.pack(">i", 0)), DecodeError),
    "count too small": (edited(57, struct.pack(">i", 2)), DecodeError),
    "count too large": (edited(57, struct.pack(">i", 4)), DecodeError),
    "header count -1": (build_batch(MIDDLE, edit_payload=negative_header_counts, **GOOD), DecodeError),
    "a batch length of 48": (edited(8, struct.pack(">i", 48), repair=False), DecodeError),
    "a batch length that is negative": (edited(8, struct.pack(">i", -1), repair=False), DecodeError),
    "a batch length that reaches over the next batch": (
        edited(8, struct.pack(">i", len(build_batch(MIDDLE)) - 12 + 40), repair=False),
        DecodeError,
    ),
    "a last offset below the first": (edited(23, struct.pack(">i", -5)), DecodeError),
}  # fmt: skip


def damaged(middle: bytes, **settings: Any) -> FetchScript:
    """Records 0 and 1, the damaged batch in place of 2 to 4, records 5 and 6."""
    world = FetchScript(limits=LIMITS, **settings)
    log = world.log()
    log.append_values(b"0", b"1").add(middle, 3).append_values(b"5", b"6")
    world.assign(ORDERS)
    return world


@pytest.mark.parametrize("name", CASES)
def test_good_records_come_first_then_the_error_until_a_seek(name: str) -> None:
    middle, kind = CASES[name]
    world = damaged(middle)
    assert world.poll() == [b"0", b"1"]
    for _ in range(3):
        with pytest.raises(kind) as raised:
            world.poll()
    assert raised.value.topic_partition == ORDERS
    assert raised.value.next_offset == 5
    assert world.state().position == 2
    assert "orders-0" in str(raised.value) and "next_offset 5" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.next_offset, again.topic_partition) == (str(raised.value), 5, ORDERS)
    world.assignment.seek(ORDERS, raised.value.next_offset)
    assert world.drain() == [b"5", b"6"]


@pytest.mark.parametrize("name", CASES)
def test_corrupt_batches_are_skipped_and_counted(name: str) -> None:
    world = damaged(CASES[name][0], on_error="skip")
    assert world.drain() == [b"0", b"1", b"5", b"6"]
    assert world.fetcher.buffer.skipped_batches == 1
    assert world.state().position == 7


@pytest.mark.parametrize("name", CASES)
def test_arrow_batches_come_before_the_error_too(name: str) -> None:
    middle, kind = CASES[name]
    world = damaged(middle)
    world.run(0.5)
    assert list(world.fetcher.buffer.take_arrow().column("value")) == [b"0", b"1"]
    with pytest.raises(kind) as raised:
        world.fetcher.buffer.take_arrow()
    world.assignment.seek(ORDERS, raised.value.next_offset or 0)
    world.run(0.5)
    assert list(world.fetcher.buffer.take_arrow().column("offset")) == [5, 6]


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param(edited(21, b"\x01\x80"), id="unused attribute bits"),
        pytest.param(b"".join(build_message(MessageSpec(value=b"%d" % n), n) for n in (2, 3, 4)), id="magic 1"),
    ],
)
def test_what_java_reads_is_no_corruption(middle: bytes) -> None:
    assert damaged(middle).drain() == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_bad_checksum_is_not_looked_for_where_the_user_says_so() -> None:
    world = damaged(CASES["a bad checksum"][0], check_crcs=False)
    assert len(world.drain()) == 7


def test_other_partitions_go_on_once_the_corrupt_one_is_paused() -> None:
    world = FetchScript()
    world.log(partitions=2)
    world.logs()[0].add(CASES["a bad checksum"][0], 3)
    world.logs()[1].append_values(b"a", b"b")
    world.assign(ORDERS, ("orders", 1))
    with pytest.raises(DecodeError):
        world.drain(1.0)
    world.assignment.pause([ORDERS], True)
    world.logs()[1].append_values(b"c")
    assert world.drain(1.0)[-1:] == [b"c"]


def test_the_end_of_the_last_batch_comes_from_its_header() -> None:
    data = edited(17, b"\0\0\0\0", repair=False)
    for high_watermark, expected in ((5, 5), (-1, 5), (4, 3)):
        failure = explain_corruption(DecodeError("bad", position=0), ORDERS, data, 2, high_watermark, LIMITS)
        assert failure.next_offset == expected
        assert ("a guess" in str(failure)) is (expected == 3)


def test_a_corrupt_batch_alone_is_left_one_offset_at_a_time() -> None:
    """Neither its header nor anything behind it tells more: the text says that it is a guess."""
    world = FetchScript(on_error="skip", limits=LIMITS)
    log = world.log()
    log.append_values(b"0").add(edited(8, struct.pack(">i", 20), repair=False), 3)
    world.assign(ORDERS)
    assert world.drain(5.0) == [b"0"]
    assert (world.state().position, world.fetcher.buffer.skipped_batches) == (4, 3)
    log.append_values(b"5")
    assert world.drain(2.0) == [b"5"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_broker_that_finds_its_log_corrupt(on_error: str) -> None:
    world = FetchScript(on_error=on_error, max_partition_fetch_bytes=70)
    world.log().append_values(b"0").append_values(b"1").append_values(b"2")
    world.data_of = lambda node, partition, asked: (
        error(partition, ErrorCode.CORRUPT_MESSAGE) if asked.fetch_offset == 1 else None
    )
    world.assign(ORDERS)
    if on_error == "skip":
        assert world.drain(2 * CORRUPT_SECONDS) == [b"0", b"2"]
        assert world.fetcher.buffer.skipped_batches == 1
        return
    assert world.drain(CORRUPT_SECONDS / 2) == [b"0"]
    world.run(CORRUPT_SECONDS)
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"offset 1 with CORRUPT_MESSAGE.*Seek to 2") as raised:
            world.poll()
    assert raised.value.topic_partition == ORDERS and raised.value.next_offset is None
    world.assignment.seek(ORDERS, 2)
    assert world.drain() == [b"2"]


def test_an_answer_without_a_whole_batch_is_an_error_not_a_stall() -> None:
    world = FetchScript()
    log = world.log()
    log.append_values(b"v" * 1000)
    log.batches[0] = (0, 0, log.batches[0][2][:500])
    world.assign(ORDERS)
    for _ in range(2):
        with pytest.raises(TruncatedError, match="only 500 of the 10") as raised:
            world.poll()
    assert raised.value.available == 500
    assert raised.value.needed > 1000


def test_an_answer_that_lies_before_the_position_is_an_error_not_a_busy_loop() -> None:
    world = FetchScript()
    log = world.log()
    log.append_values(b"0", b"1").append_values(b"2")
    log.read = lambda offset, most: log.batches[0][2]  # type: ignore[method-assign]
    world.assign(ORDERS)
    assert world.poll() == [b"0", b"1"]
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"at or after the requested offset 2") as raised:
            world.poll()
    assert raised.value.next_offset == 3
    assert len(world.fetches) < 5


@pytest.mark.parametrize("seed", range(40))
def test_following_next_offset_reads_every_whole_batch(seed: int) -> None:
    """Damage as disks make it: bytes of one batch that are others. Not of its base offset, which no checksum covers."""
    rng = random.Random(seed)
    world = FetchScript(limits=LIMITS, on_error=rng.choice(["raise", "skip"]))
    log = world.log()
    place = rng.randrange(6)
    number = 0
    for at in range(6):
        values = [b"%d" % (number + one) for one in range(rng.randint(1, 4))]
        if at == place:
            codec = rng.choice(["none", "zstd", "gzip", "lz4", "snappy"])
            specs = [RecordSpec(value=value) for value in values]
            sound = build_batch(specs, base_offset=number, compression=codec)
            bad = sound
            while bad[:8] != sound[:8] or bad == sound or len(bad) != len(sound):
                _, bad = random_edit(rng, sound, repair=False)
            log.add(bad, len(values))
            skipped = set(values)
        else:
            log.append_values(*values)
        number += len(values)
    world.assign(ORDERS)
    found: list[bytes | None] = []
    errors = 0
    for _ in range(200):
        world.run(0.05)
        try:
            found += [record.value for record in world.fetcher.buffer.take(rng.choice([1, 2, 100]))]
        except DecodeError as failure:
            errors += 1
            assert failure.next_offset is not None and failure.next_offset > (world.state().position or 0)
            world.assignment.seek(ORDERS, failure.next_offset)
    expected = [b"%d" % one for one in range(number)]
    assert [value for value in found if value not in skipped] == [value for value in expected if value not in skipped]
    assert found == sorted(set(found), key=lambda value: int(value or b"0"))
    assert world.state().position == number
    assert errors + world.fetcher.buffer.skipped_batches <= len(skipped)
