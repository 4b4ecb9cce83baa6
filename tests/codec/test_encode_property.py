# SPDX-License-Identifier: Apache-2.0
"""decode(encode(x)) is x, for generated rows and tables; encode_batch(records, like=batch) is the batch, for all there
are: those of real brokers and generated ones of every oddness."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import golden_data
import pyarrow as pa
import pytest
from encode_samples import CODECS, CodecName
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_batch, random_log

import kcodec
from kcodec import EncodeError, Record, RecordBatch, TimestampType

LONG = os.environ.get("KCODEC_PROFILE") == "long"
INT64_MAX = (1 << 63) - 1
HEADER = 61

# -------------------------------------------------------------------------------------------------------- round trips

PAYLOADS = st.none() | st.binary(max_size=30) | st.binary(min_size=100, max_size=140).map(lambda piece: piece * 3)
# Names as Python shows them: a byte that is not UTF-8 is a lone surrogate (surrogateescape).
NAMES = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
HEADERS = st.lists(st.tuples(NAMES, PAYLOADS), max_size=3).map(tuple)
TIMES = st.integers(-1, INT64_MAX)
OFFSETS = st.lists(st.integers(0, 1 << 20), max_size=12, unique=True).map(sorted)


@st.composite
def records_at_offsets(draw: st.DrawFn) -> list[Record]:
    return [
        Record(offset, draw(TIMES), "CreateTime", draw(PAYLOADS), draw(PAYLOADS), draw(HEADERS))
        for offset in draw(OFFSETS)
    ]


def producer_of(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {}
    return {"producer_id": rng.choice([0, 9001, INT64_MAX]), "producer_epoch": rng.choice([0, 7]), "base_sequence": 3}


@pytest.mark.parametrize("codec", CODECS)
@given(
    records=records_at_offsets(), rng=st.randoms(use_true_random=False), limit=st.sampled_from([1 << 20, 2500, 4000])
)
def test_records_come_back_as_they_were(
    codec: CodecName, records: list[Record], rng: random.Random, limit: int
) -> None:
    options = {**producer_of(rng), "compression": codec, "max_batch_bytes": limit}
    encoded = kcodec.encode(records, **options)
    back = list(kcodec.decode(encoded).records())
    assert [fields(record) for record in back] == [fields(record) for record in records]
    assert encoded.records_count == len(records)
    assert [batch.records_count for batch in encoded.batches] != [0]
    if "producer_id" in options:
        assert [record.sequence for record in back] == sequences(encoded.batches)
    assert bytes(kcodec.encode(iter(records), **options)) == bytes(encoded)
    again = kcodec.encode(back, **options)
    assert bytes(again) == bytes(encoded)


def fields(record: Record) -> tuple[Any, ...]:
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)


def sequences(batches: Iterable[RecordBatch]) -> list[int]:
    """3 for the first record of all, and on: each batch begins behind the last offset of the one before."""
    found, following = [], 3
    for batch in batches:
        assert batch.base_sequence == following
        found += [following + record.offset - batch.base_offset for record in batch.records()]
        following += batch.last_offset - batch.base_offset + 1
    return found


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=1000 if LONG else 25)
@given(records=records_at_offsets(), kind=st.sampled_from(["binary", "large_binary", "binary_view"]))
def test_tables_come_back_as_they_were(codec: CodecName, records: list[Record], kind: Any) -> None:
    """decode's own Arrow output is encode's input, whatever the binary type; names become what Arrow can hold."""
    first = kcodec.encode(records, compression=codec)
    table = pa.table(kcodec.decode(first, binary_type=kind))
    second = kcodec.encode(table, compression=codec)
    assert pa.table(kcodec.decode(second, binary_type=kind)).equals(table)
    assert bytes(kcodec.encode(kcodec.decode(first, binary_type=kind), compression=codec)) == bytes(first)
    for size in (1, 3):
        stream = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=size))
        assert bytes(kcodec.encode(stream, compression=codec)) == bytes(second)


@given(records=records_at_offsets())
def test_rows_of_every_kind_make_the_same_bytes(records: list[Record]) -> None:
    dicts = [
        {"key": r.key, "value": r.value, "headers": list(r.headers), "timestamp": r.timestamp, "offset": r.offset}
        for r in records
    ]
    reported = bytes(kcodec.encode(records))
    assert bytes(kcodec.encode(dicts)) == reported
    tuples = [(r.key, r.value, r.headers, r.timestamp) for r in records]
    plain = [{name: value for name, value in row.items() if name != "offset"} for row in dicts]
    assert bytes(kcodec.encode(tuples)) == bytes(kcodec.encode(plain))
    back = list(kcodec.decode(kcodec.encode(tuples, base_offset=7)).records())
    assert [record.offset for record in back] == list(range(7, 7 + len(records)))
    assert [fields(record)[1:] for record in back] == [fields(record)[1:] for record in records]


# ------------------------------------------------------------------------------------------------ like= real batches

# Captured on purpose with what no writer of Kafka makes: fields that a record's values cannot tell.
ODD_TOPICS = ("raw-odd", "raw-refused")


def golden_batches() -> Iterator[tuple[str, RecordBatch]]:
    every = [*golden_data.partitions(magic=2), *golden_data.copies("live"), *golden_data.copies("killed")]
    for partition in every:
        if partition.magics <= {2}:
            for batch in kcodec.batches(partition.log):
                yield str(partition), batch
    for fetched in golden_data.fetched():
        if fetched.magics <= {2} and not fetched.topic.startswith("disk-"):
            for batch in kcodec.batches(fetched.data):
                yield str(fetched), batch


def assert_alike(batch: RecordBatch, made: bytes) -> None:
    """Byte for byte where nothing is compressed; else all but the stream, and the records."""
    if str(batch.compression) == "none":
        assert made == bytes(batch.data)
        return
    (copied,) = kcodec.batches(made)
    assert made[:8] == batch.data[:8]
    assert made[12:17] == batch.data[12:17]
    assert made[21:HEADER] == batch.data[21:HEADER]
    assert list(copied.records()) == list(batch.records())


def test_every_batch_of_a_broker_is_written_alike() -> None:
    compared: dict[str, int] = {}
    odd = []
    for name, batch in golden_batches():
        if any(topic in name for topic in ODD_TOPICS):
            odd.append(batch)
            continue
        assert_alike(batch, kcodec.encode_batch(batch.records(), like=batch))
        compared[str(batch.compression)] = compared.get(str(batch.compression), 0) + 1
    assert set(compared) == set(CODECS)
    assert sum(compared.values()) > 1000
    assert odd


def test_odd_batches_are_written_with_equal_records_or_refused_by_name() -> None:
    refused, written = 0, 0
    for name, batch in golden_batches():
        if not any(topic in name for topic in ODD_TOPICS):
            continue
        records = list(batch.records())
        try:
            made = kcodec.encode_batch(records, like=batch)
        except EncodeError as error:
            assert error.field in ("offset", "headers")
            refused += 1
            continue
        assert list(kcodec.decode(made, control_records="include").records()) == records
        written += 1
    assert written
    assert refused + written >= len(ODD_TOPICS)


def is_writable(batch: RecordBatch) -> bool:
    """Whether encode_batch writes them with `like`: magic 2, and offsets that rise."""
    if batch.magic < 2:
        return False
    records = list(batch.records())
    return all(before.offset < after.offset for before, after in pairwise(records))


@given(rng=st.randoms(use_true_random=False))
def test_every_generated_batch_is_written_alike_in_its_records(rng: random.Random) -> None:
    """Odd ones, too: overlong numbers, null as -5, deltas that overflow: their records are the same, or refused."""
    (batch,) = kcodec.batches(random_batch(rng))
    records = list(batch.records())
    try:
        made = kcodec.encode_batch(records, like=batch)
    except EncodeError as error:
        assert error.field is not None
        assert not is_writable(batch)
        return
    assert list(kcodec.decode(made, control_records="include").records()) == records
    (copied,) = kcodec.batches(made)
    assert header_of(copied) == header_of(batch)


def header_of(batch: RecordBatch) -> tuple[Any, ...]:
    """What a batch says of itself, but for sizes, checksum and bits without a meaning."""
    return (
        *(batch.base_offset, batch.last_offset, batch.partition_leader_epoch, batch.compression, batch.timestamp_type),
        *(batch.base_timestamp, batch.max_timestamp, batch.delete_horizon_ms, batch.producer_id, batch.producer_epoch),
        *(batch.base_sequence, batch.records_count, batch.is_transactional, batch.is_control_batch),
    )


@given(rng=st.randoms(use_true_random=False))
def test_whole_logs_are_written_alike(rng: random.Random) -> None:
    """Data, markers and emptied batches of several producers, batch by batch: the same isolation comes out."""
    log = random_log(rng)
    made = []
    for batch in kcodec.batches(log.data):
        try:
            made.append(kcodec.encode_batch(batch.records(), like=batch))
        except EncodeError:
            assert not is_writable(batch)
            made.append(bytes(batch.data))
    for level in ("read_uncommitted", "read_committed"):
        reported = kcodec.decode(log.data, isolation_level=level)
        found = kcodec.decode(b"".join(made), isolation_level=level)
        assert found.counts == reported.counts
        assert list(found.records()) == list(reported.records())


@given(rng=st.randoms(use_true_random=False), keep=st.integers(0, 255))
def test_what_compaction_keeps_has_the_old_header(rng: random.Random, keep: int) -> None:
    (batch,) = kcodec.batches(random_batch(rng))
    if not is_writable(batch) or batch.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return
    records = [record for at, record in enumerate(batch.records()) if keep >> at % 8 & 1]
    (copied,) = kcodec.batches(kcodec.encode_batch(records, like=batch))
    assert list(copied.records()) == records
    assert (copied.base_offset, copied.last_offset) == (batch.base_offset, batch.last_offset)
    assert (copied.base_sequence, copied.last_sequence) == (batch.base_sequence, batch.last_sequence)
    assert copied.records_count == len(records)
    assert copied.producer_id == batch.producer_id


def test_a_batch_that_the_broker_stamped_keeps_the_producers_times() -> None:
    """Readers see one time; the deltas lie there all the same, and are written as they were."""
    records = [(b"k", b"v", (), 1000 + at) for at in range(5)]
    stamped = bytearray(kcodec.encode_batch(records))
    kcodec.set_log_append_time(stamped, 77_777)
    (batch,) = kcodec.batches(stamped)
    assert {record.timestamp for record in batch.records()} == {77_777}
    assert struct.unpack_from(">q", stamped, 27)[0] == 1000
    assert kcodec.encode_batch(batch.records(), like=batch) == bytes(stamped)
