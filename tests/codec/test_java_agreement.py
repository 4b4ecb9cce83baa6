# SPDX-License-Identifier: Apache-2.0
"""kcodec against Kafka's own classes: on fetched bytes, random transaction logs and damaged batches.

java_comparison.py says where the two may differ. The oracle of the other tests (reference.py) stands before the same
judge.
"""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import golden_data
import lz4.frame
import pytest
from java_answers import Delivered, JudgedRecord
from java_comparison import LZ4, ZSTD, Decode, codec, compare
from java_edits import FIELDS, HEADER, INTERESTING, damaged, payload_replaced, set_field
from java_judge import JavaJudge
from java_logs import java_consumer, random_log, random_records, set_crc
from java_subjects import SUBJECTS, Outcome
from reference import java_string

from kcodec._fast import FetchedRecords, decode_fetch

LONG = os.environ.get("KCODEC_PROFILE") == "long"
SEEDS = range(200 if LONG else 12)
EDITS_A_SEED = 500 if LONG else 100
LOG_SEEDS = range(600 if LONG else 60)

EACH = pytest.mark.parametrize("decode", SUBJECTS.values(), ids=SUBJECTS)


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


# Isolation.


@EACH
def test_what_brokers_answered_is_read_as_java_reads_it(judge: JavaJudge, decode: Decode) -> None:
    """Every record set in a recorded Fetch response, with the list of aborted transactions that came with it."""
    compared = 0
    for fetched in golden_data.fetched():
        if fetched.fetch_offset is None:
            continue
        start, level = fetched.fetch_offset, fetched.isolation_level
        aborted = fetched.aborted_transactions or ()
        delivered = judge.consumer(
            fetched.data, isolation_level=level, aborted_transactions=aborted, fetch_offset=start
        )
        reported = [(producer_id, first_offset, None) for producer_id, first_offset in aborted]
        outcome = decode(fetched.data, isolation_level=level, aborted_transactions=reported, start_offset=start)
        assert_delivers(outcome, delivered)
        assert outcome.next_offset == max(start, delivered.position)
        compared += len(delivered.records)
    assert compared > 0


def delivered_in_portions(
    data: bytes, aborted: Iterable[tuple[int, int]], rng: random.Random, **options: Any
) -> tuple[list[JudgedRecord], int]:
    """Records and position as a consumer takes them out of one answer, a random number at a time."""
    fetched = FetchedRecords(data, topic="t", partition=0, aborted_transactions=list(aborted), **options)
    records: list[JudgedRecord] = []
    while not fetched.is_done:
        for record in fetched.take(rng.choice((1, 3, 500))):
            names = ((java_string(name.encode("utf-8", "surrogateescape")), value) for name, value in record.headers)
            records.append(JudgedRecord(record.offset, record.timestamp, record.key, record.value, tuple(names)))
    assert fetched.error is None
    whole = decode_fetch(data, topic="t", partition=0, aborted_transactions=list(aborted), **options)
    assert list(whole.column("offset")) == [record.offset for record in records]
    assert whole.next_offset == fetched.position
    return records, fetched.position


def test_what_a_consumer_takes_out_of_recorded_answers_is_what_javas_takes(judge: JavaJudge) -> None:
    rng, compared = random.Random(7), 0
    for fetched in golden_data.fetched():
        if fetched.fetch_offset is None:
            continue
        start, level = fetched.fetch_offset, fetched.isolation_level
        aborted = fetched.aborted_transactions or ()
        delivered = judge.consumer(
            fetched.data, isolation_level=level, aborted_transactions=aborted, fetch_offset=start
        )
        records, position = delivered_in_portions(fetched.data, aborted, rng, start_offset=start, isolation_level=level)
        assert records == list(delivered.records)
        assert position == max(start, delivered.position)
        compared += len(records)
    assert compared > 1000


@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_what_a_consumer_takes_out_of_random_logs_is_what_javas_takes(judge: JavaJudge, seed: int) -> None:
    log, rng = random_log(judge, seed), random.Random(seed)
    for start in {log.batches[0].base_offset, rng.randint(log.batches[0].base_offset, log.next_offset - 1)}:
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted_in(start)]
        rng.shuffle(aborted)
        delivered = java_consumer(judge, log, start, None, seed)
        records, position = delivered_in_portions(log.fetch(start), aborted, rng, start_offset=start)
        assert records == list(delivered.records)
        assert position == delivered.position


def assert_delivers(outcome: Outcome, delivered: Delivered) -> None:
    assert outcome.error is None
    assert outcome.records == list(delivered.records)
    assert outcome.timestamp_types == list(delivered.timestamp_types)


@EACH
@pytest.mark.parametrize("with_last_offset", [False, True])
@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_read_committed_with_a_list_delivers_as_java_does(
    judge: JavaJudge, decode: Decode, seed: int, with_last_offset: bool
) -> None:
    log, rng = random_log(judge, seed), random.Random(seed)
    for start in {log.batches[0].base_offset, rng.randint(log.batches[0].base_offset, log.next_offset - 1)}:
        aborted = [
            (transaction.producer_id, transaction.first_offset, transaction.last_offset if with_last_offset else None)
            for transaction in log.aborted_in(start)
        ]
        rng.shuffle(aborted)
        options = {"isolation_level": "read_committed", "aborted_transactions": aborted, "start_offset": start}
        delivered = java_consumer(judge, log, start, None, seed)
        outcome = decode(log.fetch(start), **options)
        assert_delivers(outcome, delivered)
        assert outcome.next_offset == delivered.position
        stable = log.last_stable_offset
        if start < stable:
            outcome = decode(log.fetch(start), last_stable_offset=stable, **options)
            assert_delivers(outcome, java_consumer(judge, log, start, stable, seed))
            assert outcome.next_offset == stable


@EACH
@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_read_committed_by_markers_delivers_as_java_does(judge: JavaJudge, decode: Decode, seed: int) -> None:
    log, rng = random_log(judge, seed), random.Random(seed)
    first, stable = log.batches[0].base_offset, log.last_stable_offset
    for start in {first, rng.randint(first, max(first, stable - 1))}:
        outcome = decode(log.fetch(start), isolation_level="read_committed", start_offset=start)
        assert_delivers(outcome, java_consumer(judge, log, start, stable))
        assert outcome.next_offset == stable


@EACH
@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_read_committed_with_any_list_follows_the_rule_of_java(judge: JavaJudge, decode: Decode, seed: int) -> None:
    """Entries that are missing, double, made up, or begin inside a batch: the list is believed as Java believes it."""
    log, rng = random_log(judge, seed), random.Random(seed)
    start = log.batches[0].base_offset
    entries = [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted]
    entries = rng.choices(entries, k=rng.randrange(4)) if entries else []
    entries += [(9000 + rng.randrange(5), rng.randint(start - 2, log.next_offset)) for _ in range(rng.randrange(4))]
    delivered = judge.consumer(
        bytes(log.data), isolation_level="read_committed", aborted_transactions=entries, fetch_offset=start
    )
    reported = [(producer_id, first_offset, None) for producer_id, first_offset in entries]
    outcome = decode(
        bytes(log.data), isolation_level="read_committed", aborted_transactions=reported, start_offset=start
    )
    assert_delivers(outcome, delivered)
    assert outcome.next_offset == delivered.position


@EACH
@pytest.mark.parametrize("seed", LOG_SEEDS)
def test_a_cut_answer_is_read_as_java_reads_it(judge: JavaJudge, decode: Decode, seed: int) -> None:
    log, rng = random_log(judge, seed), random.Random(seed)
    start = rng.randint(log.batches[0].base_offset, log.next_offset - 1)
    data = log.fetch(start)
    data = data[: rng.randint(0, len(data))]
    delivered = judge.consumer(data, fetch_offset=start)
    outcome = decode(data, start_offset=start)
    assert_delivers(outcome, delivered)
    assert outcome.next_offset == max(start, delivered.position)
    assert outcome.remaining_bytes == len(data) - judge.record_set(data).valid_bytes


# Damaged batches.


@cache
def small_captured_batches() -> list[bytes]:
    """Batches of at most 1500 bytes that a broker stored, of every client, control batches included."""
    found = []
    for partition in golden_data.partitions(magic=2):
        log, position = partition.log, 0
        for batch in partition.batches:
            if batch["size"] <= 1500:
                found.append(log[position : position + batch["size"]])
            position += batch["size"]
    return found


def random_batch(judge: JavaJudge, rng: random.Random, base_offset: int) -> bytes:
    """A batch that some client wrote and a broker stored, or one of Kafka's builder, of any codec."""
    if rng.random() < 0.4:
        captured = bytearray(rng.choice(small_captured_batches()))
        set_field(captured, "base_offset", base_offset)
        return bytes(captured)
    producer_id = rng.choice((-1, 9000))
    return judge.batch(
        random_records(rng, base_offset),
        compression=rng.choice((0, 0, 0, 1, 2, 3, 4)),
        base_offset=base_offset,
        log_append_time=rng.choice((None, None, 5)),
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=rng.choice((0, 2**31 - 2)) if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0 and rng.random() < 0.5,
    )


@EACH
@pytest.mark.parametrize("seed", SEEDS)
def test_corruption_is_refused_where_java_refuses_it_and_read_alike_where_not(
    judge: JavaJudge, decode: Decode, seed: int
) -> None:
    rng = random.Random(seed)
    before, after = random_batch(judge, rng, 0), random_batch(judge, rng, 100)
    ways: dict[str, int] = {}
    for number in range(EDITS_A_SEED):
        edited = damaged(rng, random_batch(judge, rng, 50))
        if decode is SUBJECTS["kcodec-system-zstd"] and codec(edited) == ZSTD:
            # Releases of libzstd make different bytes of a damaged frame without a checksum (1.5.4 and 1.5.7 do).
            continue
        data = before + edited + after
        try:
            way = compare(data, judge.record_set(data), decode)
        except Exception as error:
            error.add_note(f"seed {seed}, edit {number}: {data.hex()}")
            raise
        ways[way] = ways.get(way, 0) + 1
    assert ways["read by both"] > EDITS_A_SEED // 10
    assert ways["refused by both"] > EDITS_A_SEED // 10


def middle(judge: JavaJudge, changed: bytearray) -> bytes:
    """A damaged batch between two that are not, its CRC right."""
    set_crc(changed)
    record = JudgedRecord(0, 0, b"key", b"value", ())
    return judge.batch([record]) + bytes(changed) + judge.batch([record._replace(offset=99)], base_offset=99)


def sample(judge: JavaJudge, compression: int = 0) -> bytearray:
    """A batch of three records at offsets 50, 51 and 52."""
    records = [JudgedRecord(50 + index, index, b"key", b"value " * 9, ()) for index in range(3)]
    return bytearray(judge.batch(records, compression=compression, base_offset=50))


def with_field(batch: bytearray, name: str, value: int) -> bytearray:
    set_field(batch, name, value)
    return batch


def with_offset_deltas(judge: JavaJudge, deltas: bytes, compressed: bool) -> bytearray:
    """The sample with other offset deltas, each a zig-zag varint of one byte."""
    batch = sample(judge)
    position = HEADER
    for delta in deltas:
        batch[position + 3] = delta
        position += 1 + batch[position] // 2
    return payload_replaced(batch, gzip.compress(bytes(batch[HEADER:])), 1) if compressed else batch


def with_wrong_lz4_checksum(judge: JavaJudge) -> bytearray:
    stream = bytearray(lz4.frame.compress(bytes(sample(judge)[HEADER:]), content_checksum=True))
    stream[-1] ^= 1
    return payload_replaced(sample(judge), bytes(stream), LZ4)


REFUSED_BY_US_ALONE: dict[str, Callable[[JavaJudge], bytearray]] = {
    "count 0 with bytes behind": lambda judge: with_field(sample(judge), "records_count", 0),
    "count 0 with a compressed stream behind": lambda judge: with_field(sample(judge, 4), "records_count", 0),
    "lastOffsetDelta below 0": lambda judge: with_field(sample(judge), "last_offset_delta", -1),
    "an offset delta below 0": lambda judge: with_offset_deltas(judge, b"\x01\x02\x04", False),
    "an offset delta above lastOffsetDelta": lambda judge: with_offset_deltas(judge, b"\x00\x02\x06", False),
    "an offset twice in a compressed batch": lambda judge: with_offset_deltas(judge, b"\x00\x02\x02", True),
    "a last offset beyond int64": lambda judge: with_field(sample(judge), "base_offset", 2**63 - 2),
    "a wrong lz4 content checksum": with_wrong_lz4_checksum,
}


@EACH
@pytest.mark.parametrize("case", REFUSED_BY_US_ALONE)
def test_what_java_overlooks_is_refused(judge: JavaJudge, decode: Decode, case: str) -> None:
    data = middle(judge, REFUSED_BY_US_ALONE[case](judge))
    assert compare(data, judge.record_set(data), decode) == "refused by us alone"


@EACH
def test_an_offset_twice_in_an_uncompressed_batch_is_read_by_both(judge: JavaJudge, decode: Decode) -> None:
    data = middle(judge, with_offset_deltas(judge, b"\x00\x02\x02", False))
    assert compare(data, judge.record_set(data), decode) == "read by both"


@EACH
def test_linked_lz4_blocks_are_read_by_us_alone(judge: JavaJudge, decode: Decode) -> None:
    value = random.Random(1).randbytes(50_000) * 4
    plain = bytearray(judge.batch([JudgedRecord(50, 0, None, value, ())], base_offset=50))
    linked = payload_replaced(plain, lz4.frame.compress(bytes(plain[HEADER:]), block_linked=True), LZ4)
    data = middle(judge, linked)
    assert compare(data, judge.record_set(data), decode) == "read by us alone"
    assert decode(data).records[1].value == value


HEADER_FIELDS = {
    "base_offset": "baseOffset",
    "last_offset": "lastOffset",
    "next_offset": "nextOffset",
    "last_sequence": "lastSequence",
    "position": "position",
    "size_in_bytes": "size",
    "partition_leader_epoch": "partitionLeaderEpoch",
    "magic": "magic",
    "crc": "crc",
    "base_timestamp": "baseTimestamp",
    "max_timestamp": "maxTimestamp",
    "delete_horizon_ms": "deleteHorizonMs",
    "producer_id": "producerId",
    "producer_epoch": "producerEpoch",
    "base_sequence": "baseSequence",
    "records_count": "recordsCount",
    "is_transactional": "isTransactional",
    "is_control_batch": "isControlBatch",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_header_fields_are_what_java_computes(judge: JavaJudge, seed: int) -> None:
    import kcodec

    rng = random.Random(seed)
    changeable = [name for name in FIELDS if name not in ("base_offset", "batch_length", "magic", "last_offset_delta")]
    data = b""
    for _ in range(50):
        batch = bytearray(random_batch(judge, rng, 50))
        set_field(batch, rng.choice(changeable), rng.choice(INTERESTING))
        if rng.random() < 0.8:
            set_crc(batch)
        data += batch
    judged = judge.record_set(data).batches
    batches = kcodec.batches(data)
    assert len(batches) == len(judged) == 50
    for found, reported in zip(batches, judged, strict=True):
        # Of a base sequence that nobody writes Java counts on from below -1; for us there is no sequence then.
        names = [name for name in HEADER_FIELDS if name != "last_sequence" or found.base_sequence >= -1]
        assert {name: getattr(found, name) for name in names} == {
            name: reported.header[HEADER_FIELDS[name]] for name in names
        }
        assert found.is_valid() == reported.is_valid
        assert str(found.timestamp_type) == reported.header["timestampType"]
        if reported.header["compression"] is not None:
            assert str(found.compression) == reported.header["compression"]
