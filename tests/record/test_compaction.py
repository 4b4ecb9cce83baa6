# SPDX-License-Identifier: Apache-2.0
"""filter_to: what Kafka's own MemoryRecords.filterTo makes of the same batches by the same choices."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import golden_data
import pytest
from batch_writer import RecordSpec, build_batch, empty_batch, end_transaction_marker, fix_crc
from java_answers import WriterRefused
from java_judge import JavaJudge
from java_logs import random_log as kafka_log
from strategies import random_batch, random_log

import kcodec
from kcodec import BatchRetention, Record, RecordBatch

LONG = os.environ.get("KCODEC_PROFILE") == "long"
SEEDS = range(2000 if LONG else 120)
NOW, RETENTION = 1_767_225_600_000, 86_400_000
HEADER = 61
ALL: Callable[[RecordBatch, Record], bool] = lambda batch, record: True  # noqa: E731
NONE: Callable[[RecordBatch, Record], bool] = lambda batch, record: False  # noqa: E731


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


@dataclass
class Chooser:
    """Decides at random, and remembers what in the form the judge is told it."""

    rng: random.Random
    keep: float
    always: BatchRetention | None = None
    choices: bytearray = field(default_factory=bytearray)

    def batch_retention(self, batch: RecordBatch) -> tuple[BatchRetention, bool]:
        retention = self.rng.choice(list(BatchRetention)) if self.always is None else self.always
        has_empty_marker = self.rng.random() < 0.2
        self.choices += bytes([retention, has_empty_marker])
        return retention, has_empty_marker

    def retain(self, batch: RecordBatch, record: Record) -> bool:
        kept = self.rng.random() < self.keep
        self.choices.append(kept)
        return kept


def filter_both(judge: JavaJudge, data: bytes, rng: random.Random, keep: float) -> tuple[bytes | None, bytes | None]:
    """Ours and Kafka's, None for a refusal."""
    chooser = Chooser(rng, keep)
    try:
        ours = kcodec.filter_to(
            data,
            chooser.retain,
            batch_retention=chooser.batch_retention,
            now=NOW,
            delete_retention_ms=RETENTION,
        )
    except kcodec.EncodeError:
        ours = None
        chooser.choices += bytes([1]) * 10_000  # Kafka may ask for more before it refuses
    try:
        reported = judge.filtered(data, bytes(chooser.choices), now=NOW, delete_retention_ms=RETENTION).data
    except WriterRefused:
        return ours, None
    return ours, reported


def assert_same(ours: bytes, reported: bytes) -> None:
    """Byte for byte; of compressed batches all but the stream, and the records."""
    mine, theirs = kcodec.batches(ours), kcodec.batches(reported)
    assert len(mine) == len(theirs)
    for made, expected in zip(mine, theirs, strict=True):
        made.ensure_valid()
        if str(expected.compression) == "none":
            assert bytes(made.data) == bytes(expected.data)
        elif bytes(made.data) != bytes(expected.data):
            assert made.data[:8] == expected.data[:8]
            assert made.data[12:17] == expected.data[12:17]
            assert made.data[21:HEADER] == expected.data[21:HEADER]
            assert list(made.records()) == list(expected.records())
    assert mine.remaining_bytes == theirs.remaining_bytes == 0


def is_for_kafka(batch: RecordBatch) -> bool:
    """No header name that Kafka would rewrite with U+FFFD in it, no linked lz4 blocks, which it does not read."""
    if str(batch.compression) == "lz4" and not batch.data[HEADER + 4] & 0x20:
        return False
    names = (name for record in batch.records() for name, _ in record.headers)
    return not any("\udc80" <= mark <= "\udcff" for name in names for mark in name)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9, 1.0])
def test_generated_batches_are_filtered_as_kafka_filters_them(judge: JavaJudge, keep: float) -> None:
    """Every codec, odd numbers and offsets, horizons, controls, LogAppendTime."""
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        data = random_batch(rng)
        if not is_for_kafka(kcodec.batches(data)[0]):
            continue
        ours, reported = filter_both(judge, data, rng, keep)
        if ours is None or reported is None:
            assert ours is None, f"Kafka refuses: {seed}"
            assert reported is None, f"Kafka does not refuse: {seed}"
            refused += 1
            continue
        assert_same(ours, reported)
    assert refused < len(SEEDS) / 2


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_whole_logs_are_filtered_as_kafka_filters_them(judge: JavaJudge, keep: float) -> None:
    """Data, markers and emptied batches of several producers: as Kafka writes them, and odd ones."""
    for seed in SEEDS[::4]:
        ours, reported = filter_both(judge, bytes(kafka_log(judge, seed).data), random.Random(seed), keep)
        assert ours is not None
        assert reported is not None
        assert_same(ours, reported)
    compared = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        data = random_log(rng).data
        if not all(map(is_for_kafka, kcodec.batches(data))):
            continue
        ours, reported = filter_both(judge, data, rng, keep)
        assert (ours is None) == (reported is None)
        if ours is not None and reported is not None:
            assert_same(ours, reported)
            compared += 1
    assert compared > len(SEEDS) / 20


@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_the_logs_of_brokers_are_filtered_as_kafka_filters_them(judge: JavaJudge, keep: float) -> None:
    """All clients' batches, markers, what a cleaner had left before, coordinators' records."""
    compared = 0
    for partition in golden_data.partitions(magic=2):
        rng = random.Random(str(partition))
        data = partition.log
        if len(data) > 1 << 20:
            data = data[: 1 << 18]
        ours, reported = filter_both(judge, data, rng, keep)
        assert (ours is None) == (reported is None), partition
        if ours is not None and reported is not None and partition.topic not in ("raw-odd", "raw-refused"):
            assert_same(ours, reported)
            compared += 1
    assert compared > 10


# ------------------------------------------------------------------------------------------------------- rule by rule

DATA = build_batch([RecordSpec(key=b"a", value=b"1"), RecordSpec(key=b"b", value=b"2")], base_offset=7)
TOMBSTONE = build_batch([RecordSpec(key=b"a", value=None), RecordSpec(key=b"b", value=b"2")], base_offset=7)


def test_what_keeps_everything_goes_through_byte_for_byte() -> None:
    """Unused bits, overlong numbers, another's stream: nothing is rewritten that need not be."""
    odd = [RecordSpec(key=b"k", padding=2, attributes=0x80), RecordSpec(null_length=-7)]
    data = b"".join(
        build_batch(odd, compression=codec, unused_attributes=0x0180)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    )
    for given in (data, bytearray(data), memoryview(data), data + DATA[:-1]):
        assert kcodec.filter_to(given, lambda batch, record: True, batch_retention="DELETE_EMPTY") != b""
    values = build_batch([RecordSpec(key=b"k", value=b"v", padding=2)], unused_attributes=0x0180, compression="lz4")
    assert kcodec.filter_to(values + DATA, ALL) == values + DATA
    assert kcodec.filter_to(values + DATA + DATA[:-1], ALL) == values + DATA


def test_a_deleted_batch_is_not_opened() -> None:
    broken = build_batch([RecordSpec()], payload=b"none")

    def choose(batch: RecordBatch) -> Literal["DELETE", "DELETE_EMPTY"]:
        return "DELETE" if batch.position == 0 else "DELETE_EMPTY"

    assert kcodec.filter_to(broken + DATA, ALL, batch_retention=choose) == DATA
    with pytest.raises(kcodec.DecodeError):
        kcodec.filter_to(broken, ALL)


def test_a_wrong_checksum_is_not_made_right() -> None:
    damaged = bytearray(DATA)
    damaged[-3] ^= 1
    with pytest.raises(kcodec.CorruptBatchError):
        kcodec.filter_to(damaged, ALL)


def test_an_emptied_batch_is_dropped_or_kept_for_its_sequence() -> None:
    producer: dict[str, Any] = {"producer_id": 9001, "producer_epoch": 3, "base_sequence": 40, "is_transactional": True}
    data = build_batch([RecordSpec(), RecordSpec()], base_offset=7, compression="zstd", **producer)
    assert kcodec.filter_to(data, NONE) == b""
    (empty,) = kcodec.batches(kcodec.filter_to(data, NONE, batch_retention="RETAIN_EMPTY"))
    assert (empty.records_count, empty.size_in_bytes, empty.base_timestamp) == (0, HEADER, -1)
    assert (empty.base_offset, empty.last_offset, empty.base_sequence, empty.last_sequence) == (7, 8, 40, 41)
    assert (empty.producer_id, empty.producer_epoch, empty.is_transactional) == (9001, 3, True)
    assert empty.max_timestamp == kcodec.batches(data)[0].max_timestamp
    empty.ensure_valid()
    again = kcodec.filter_to(empty.data, ALL, batch_retention=BatchRetention.RETAIN_EMPTY)
    assert again == bytes(empty.data)
    assert kcodec.filter_to(empty.data, ALL) == b""


def test_a_tombstone_gets_its_horizon_once() -> None:
    first = kcodec.filter_to(TOMBSTONE, ALL, now=NOW, delete_retention_ms=RETENTION)
    (batch,) = kcodec.batches(first)
    assert batch.delete_horizon_ms == NOW + RETENTION
    assert list(batch.records()) == list(kcodec.batches(TOMBSTONE)[0].records())
    assert kcodec.filter_to(first, ALL, now=NOW + 5 * RETENTION) == first
    later = kcodec.filter_to(first, lambda batch, record: record.key == b"a", now=NOW + 5 * RETENTION)
    assert kcodec.batches(later)[0].delete_horizon_ms == NOW + RETENTION
    assert kcodec.filter_to(TOMBSTONE, lambda batch, record: record.key == b"b", now=0) != TOMBSTONE
    (other,) = kcodec.batches(kcodec.filter_to(TOMBSTONE, lambda batch, record: record.key == b"b"))
    assert other.delete_horizon_ms is None
    assert (other.base_offset, other.last_offset, other.records_count) == (7, 8, 1)


def test_the_marker_of_an_empty_transaction_gets_its_horizon(judge: JavaJudge) -> None:
    """78 bytes become 81: the marker's time is now counted from the horizon."""
    marker = judge.marker(9, 1, producer_id=7, producer_epoch=1, timestamp=NOW, coordinator_epoch=3)
    assert kcodec.filter_to(marker, ALL) == marker
    made = kcodec.filter_to(
        marker, ALL, batch_retention=lambda batch: ("DELETE_EMPTY", True), now=NOW, delete_retention_ms=RETENTION
    )
    reported = judge.filtered(marker, bytes([2, 1, 1]), now=NOW, delete_retention_ms=RETENTION).data
    assert made == reported
    assert len(made) == 81
    (record,) = kcodec.batches(made)[0].records()
    assert (record.timestamp, str(record.control_type), record.coordinator_epoch) == (NOW, "COMMIT", 3)
    assert kcodec.filter_to(made, ALL, batch_retention=lambda batch: ("DELETE_EMPTY", True)) == made


def test_a_stamped_batch_keeps_the_brokers_time(judge: JavaJudge) -> None:
    stamped = bytearray(build_batch([RecordSpec(key=b"%d" % at, value=b"v", timestamp_delta=at) for at in range(5)]))
    kcodec.set_log_append_time(stamped, NOW + 77)
    made = kcodec.filter_to(stamped, lambda batch, record: record.offset % 2 == 0)
    assert made == judge.filtered(bytes(stamped), bytes([2, 0, 1, 0, 1, 0, 1])).data
    assert {record.timestamp for record in kcodec.decode(made).records()} == {NOW + 77}


def test_header_names_keep_their_bytes() -> None:
    """Where Kafka's cleaner would write U+FFFD."""
    data = build_batch([RecordSpec(value=b"v", headers=((b"\xff\xed\xa0\x80", b"x"),)), RecordSpec(value=b"w")])
    (record,) = kcodec.decode(kcodec.filter_to(data, lambda batch, record: record.offset == 0)).records()
    assert record.headers == next(iter(kcodec.decode(data).records())).headers


def test_control_batches_come_with_their_records_and_data_with_its_batch() -> None:
    seen: list[tuple[Any, ...]] = []

    def retain(batch: RecordBatch, record: Record) -> bool:
        seen.append((batch.base_offset, batch.is_control_batch, record.offset, record.control_type))
        return True

    marker = end_transaction_marker(0, producer_id=7, base_offset=9)
    assert kcodec.filter_to(DATA + marker + empty_batch(base_offset=20), retain) == DATA + marker
    assert seen == [(7, False, 7, None), (7, False, 8, None), (9, True, 9, kcodec.ControlType.ABORT)]


def test_what_cannot_be_written_again_is_refused_only_if_it_has_to_be() -> None:
    twice = build_batch([RecordSpec(value=b"a"), RecordSpec(value=b"b", offset_delta=0), RecordSpec(value=b"c")])
    assert kcodec.filter_to(twice, ALL) == twice
    with pytest.raises(kcodec.EncodeError) as caught:
        kcodec.filter_to(twice, lambda batch, record: record.value != b"c")
    assert caught.value.field == "offset"
    assert [r.value for r in kcodec.decode(kcodec.filter_to(twice, lambda b, r: r.value != b"b")).records()] == [
        b"a",
        b"c",
    ]


def test_compaction_by_key_leaves_the_newest() -> None:
    """The example of the module."""
    rng = random.Random(3)
    parts = []
    for at in range(20):
        specs = [RecordSpec(key=b"k%d" % rng.randrange(30), value=b"%d" % (at * 10 + i)) for i in range(10)]
        parts.append(build_batch(specs, base_offset=at * 10, compression=rng.choice(("none", "lz4", "zstd"))))
    data = b"".join(parts)
    newest = {record.key: record.offset for record in kcodec.decode(data).records()}
    cleaned = kcodec.filter_to(data, lambda batch, record: newest[record.key] == record.offset)
    records = list(kcodec.decode(cleaned).records())
    assert {record.key: record.offset for record in records} == newest
    assert len(records) == len(newest)


# ----------------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"batch_retention": "RETAIN"},
            ValueError,
            "unknown batch_retention 'RETAIN'; possible: DELETE, RETAIN_EMPTY, DEL",
        ),
        ({"batch_retention": lambda batch: 7}, ValueError, "unknown batch_retention 7"),
        ({"batch_retention": lambda batch: None}, ValueError, "unknown batch_retention None"),
        ({"now": -1}, ValueError, "now must be at least 0"),
        ({"now": 1.5}, TypeError, "now must be an int"),
        ({"delete_retention_ms": True}, TypeError, "delete_retention_ms must be an int"),
        ({"limits": 5}, TypeError, "limits must be a DecodeLimits"),
        ({"retain": None}, TypeError, "retain must be a function"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        kcodec.filter_to(**{"data": DATA, "retain": ALL, **options})
    assert not isinstance(caught.value, kcodec.KcodecError)


def test_what_the_functions_raise_comes_through() -> None:
    def broken(batch: RecordBatch, record: Record) -> bool:
        raise LookupError("no such key")

    with pytest.raises(LookupError, match="no such key"):
        kcodec.filter_to(DATA, broken)


def test_hostile_batches_are_decode_errors() -> None:
    data = build_batch([RecordSpec(key=b"k", value=b"v")] * 3, compression="snappy")
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (length,) = struct.unpack_from(">i", flipped, 8)
        for candidate in (flipped, fix_crc(bytes(flipped)) if length == len(data) - 12 else b""):
            try:
                kcodec.filter_to(candidate, lambda batch, record: record.offset % 2 == 0)
            except (kcodec.DecodeError, kcodec.EncodeError):
                continue


# ----------------------------------------------------------------------------------------------------- magic 0 and 1


def old_data() -> list[tuple[str, bytes]]:
    """Logs of brokers that hold magic 0 and 1, and the sets made for it, broken ones too."""
    found = [(str(p), p.log) for p in golden_data.partitions() if p.magics - {2}]
    return [*found, *((name, data) for name, data, _ in golden_data.legacy())]


@pytest.mark.parametrize(("name", "data"), old_data(), ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("keep", [0.6, 1.0])
def test_old_formats_are_written_as_magic_2_as_kafka_writes_them(
    judge: JavaJudge, name: str, data: bytes, keep: float
) -> None:
    chooser = Chooser(random.Random(name), keep, always=BatchRetention.DELETE_EMPTY)
    options: dict[str, Any] = {"batch_retention": chooser.batch_retention, "now": NOW, "delete_retention_ms": RETENTION}
    try:
        ours = kcodec.filter_to(data, chooser.retain, **options)
    except kcodec.DecodeError as error:
        assert name.startswith("bad-")
        judged = judge.record_set(data)
        assert judged.error or not all(batch.accepted for batch in judged.batches), error
        return
    reported = judge.filtered(data, bytes(chooser.choices), now=NOW, delete_retention_ms=RETENTION).data
    assert_same(ours, reported)


def test_an_old_batch_cannot_be_kept_empty() -> None:
    """Kafka: IllegalStateException."""
    name, data = next((name, data) for name, data in old_data() if name.startswith("v1"))
    with pytest.raises(kcodec.EncodeError, match="needs a batch of magic 2, not 1"):
        kcodec.filter_to(data, NONE, batch_retention="RETAIN_EMPTY")
    assert kcodec.filter_to(data, NONE) == b"", name
