# SPDX-License-Identifier: Apache-2.0
"""One partition of a Fetch answer: positions, Java's rule of aborted transactions, records in portions, damage.

Scenarios of Kafka's CompletedFetchTest and FetcherTest. What its classes deliver of recorded answers and of random logs
is compared in test_java_agreement.py.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow
import pytest
from batch_writer import RecordSpec, build_batch, empty_batch
from log_builder import LogBuilder

import kcodec
from kcodec import AbortedTransaction, CorruptBatchError, _fast


def fetched(data: Any, start_offset: int = 0, **options: Any) -> _fast.FetchedRecords:
    return _fast.FetchedRecords(data, topic="t", partition=3, start_offset=start_offset, **options)


def decoded(data: Any, start_offset: int = 0, **options: Any) -> kcodec.DecodedRecords:
    return _fast.decode_fetch(data, topic="t", partition=3, start_offset=start_offset, **options)


def taken(source: _fast.FetchedRecords, count: int) -> list[int]:
    """Offsets of all records, `count` at a time; the position never goes back and never passes a record not given."""
    found: list[int] = []
    while not source.is_done:
        before = source.position
        records = source.take(count)
        assert len(records) == count or source.is_done
        found += [record.offset for record in records]
        assert source.position >= (found[-1] + 1 if records else before)
    return found


INTERLEAVED = (
    LogBuilder().write(1, 2).write(2, 2).commit(1).write(2, 1).write(1, 2).abort(2).write(2, 1).abort(1).commit(2)
)
# offsets: 1:0-1  2:2-3  commit1:4  2:5  1:6-7  abort2:8  2:9  abort1:10  commit2:11
ABORTED = [AbortedTransaction(1, 6), AbortedTransaction(2, 2)]

CASES: dict[str, tuple[bytes, dict[str, Any], list[int], int]] = {
    "aborted among committed, the list unsorted": (INTERLEAVED.data, {"aborted_transactions": ABORTED}, [0, 1, 9], 12),
    "read_uncommitted gives aborted records, never markers": (
        INTERLEAVED.data,
        {"aborted_transactions": None, "isolation_level": "read_uncommitted"},
        [0, 1, 2, 3, 5, 6, 7, 9],
        12,
    ),
    "the marker lies behind the end of the answer": (
        LogBuilder().write(1).write(2, 2).write(1).data,
        {"aborted_transactions": [(2, 1)]},
        [0, 3],
        4,
    ),
    "the fetch began inside the transaction": (
        LogBuilder(10).write(2, 3).abort(2).write(2).commit(2).data,
        {"aborted_transactions": [(2, 4)], "start_offset": 11},
        [14],
        16,
    ),
    "a marker of a transaction without data, then committed records": (
        LogBuilder().write(1).abort(1).abort(1).write(1).commit(1).data,
        {"aborted_transactions": [(1, 0)]},
        [3],
        5,
    ),
    "the list names transactions that come later": (
        LogBuilder().write(1, 2).commit(1).data,
        {"aborted_transactions": [(1, 77)]},
        [0, 1],
        3,
    ),
    "nothing but aborted records": (LogBuilder().write(1, 3).abort(1).data, {"aborted_transactions": [(1, 0)]}, [], 4),
    "a record of no transaction by a producer that aborted": (
        LogBuilder().write(1).write(1, is_transactional=False).abort(1).data,
        {"aborted_transactions": [(1, 0)]},
        [1],
        3,
    ),
    "an empty batch at the end moves the position": (
        LogBuilder().plain(2).add(empty_batch(base_offset=37, last_offset_delta=17), 0).data,
        {},
        [0, 1],
        55,
    ),
    "nothing": (b"", {"start_offset": 7}, [], 7),
    "the position lies inside the first batch": (LogBuilder().plain(5).data, {"start_offset": 3}, [3, 4], 5),
    "the position lies behind all": (LogBuilder().plain(5).data, {"start_offset": 9}, [], 9),
    "two records of one offset are delivered once": (
        build_batch([RecordSpec(value=b"0"), RecordSpec(value=b"0", offset_delta=0)], last_offset_delta=1),
        {},
        [0],
        2,
    ),
    "a cut last batch": (LogBuilder().plain(2).plain(2).data[:-9], {}, [0, 1], 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 500])
def test_records_and_position_are_those_of_javas_consumer(name: str, count: int) -> None:
    data, options, expected, position = CASES[name]
    source = fetched(data, **options)
    assert taken(source, count) == expected
    assert source.error is None and source.position == position
    whole = decoded(data, **options)
    assert list(whole.column("offset")) == expected
    assert whole.next_offset == position
    chunk = fetched(data, **options).take_decoded()
    assert chunk.column("offset") == whole.column("offset") and chunk.next_offset == position


def test_the_position_never_passes_a_record_that_was_not_given() -> None:
    log = LogBuilder().plain(3).write(1, 2).abort(1).plain(2)
    source = fetched(log.data, aborted_transactions=[(1, 3)])
    assert [record.offset for record in source.take(2)] == [0, 1]
    assert (source.position, source.is_done) == (2, False)
    assert [record.offset for record in source.take(2)] == [2, 6]
    assert (source.position, source.is_done) == (7, False)
    assert [record.offset for record in source.take(1)] == [7]
    assert (source.position, source.is_done) == (8, True)
    assert source.take(5) == []


def test_a_marker_behind_the_last_record_is_passed_with_it() -> None:
    source = fetched(LogBuilder().write(1, 2).commit(1).data)
    assert len(source.take(2)) == 2
    assert (source.position, source.is_done) == (3, True)


def test_chunks_and_records_may_be_mixed() -> None:
    data = b"".join(build_batch([RecordSpec(value=b"v")] * 3000, base_offset=at * 3000) for at in range(4))
    source = fetched(data)
    first = source.take(1000)
    rest = source.take_decoded()
    last = source.take(100_000)
    found = [record.offset for record in first] + list(rest.column("offset")) + [record.offset for record in last]
    assert found == list(range(12_000))
    assert source.position == 12_000


def test_an_empty_result_is_one_arrow_batch_with_all_columns() -> None:
    for empty in (decoded(b"", 5), fetched(b"", 5).take_decoded()):
        table = pyarrow.table(empty)
        assert table.num_rows == 0
        assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
        assert pyarrow.record_batch(empty).num_rows == 0


def test_topic_and_partition_are_columns_and_attributes() -> None:
    data = build_batch([RecordSpec(key=b"k", value=b"v")], base_offset=9, partition_leader_epoch=4)
    whole = decoded(data, 9)
    assert pyarrow.table(whole).select(["topic", "partition"]).to_pylist() == [{"topic": "t", "partition": 3}]
    (record,) = whole.records()
    assert (record.topic, record.partition, record.leader_epoch) == ("t", 3, 4)
    assert fetched(data, 9).take(1) == [record]
    assert "topic='t', partition=3, leader_epoch=4" in repr(record)
    for again in (pickle.loads(pickle.dumps(record)), *pickle.loads(pickle.dumps(whole)).records()):
        assert again == record and hash(again) == hash(record)
    (bare,) = kcodec.decode(data).records()
    assert (bare.topic, bare.partition, bare.leader_epoch) == (None, None, None)
    assert bare != record
    assert "topic" not in repr(bare)


def test_the_leader_epoch_is_of_the_batch_before_the_position() -> None:
    data = build_batch([RecordSpec(value=b"v")] * 2, base_offset=0, partition_leader_epoch=4)
    data += build_batch([RecordSpec(value=b"v")] * 2, base_offset=2, partition_leader_epoch=6)
    source = fetched(data)
    reported = []
    while not source.is_done:
        source.take(1)
        reported.append(source.leader_epoch)
    assert reported == [4, 4, 6, 6]


def test_records_before_the_corruption_come_first() -> None:
    data = bytearray(LogBuilder().plain(2).plain(2).plain(2).data)
    second = kcodec.batches(bytes(data))[1]
    data[second.position + 30] ^= 1
    source = fetched(bytes(data))
    assert taken(source, 1) == [0, 1]
    assert isinstance(source.error, CorruptBatchError)
    assert source.position == 2
    assert len(source.take_decoded()) == 0
    with pytest.raises(CorruptBatchError) as raised:
        decoded(bytes(data))
    good = raised.value.decoded
    assert good is not None
    assert list(good.column("offset")) == [0, 1]
    assert next(good.records()).topic == "t"
    skipped = decoded(bytes(data), on_error="skip")
    assert list(skipped.column("offset")) == [0, 1, 4, 5]
    assert skipped.counts.skipped_batches == 1


@pytest.mark.parametrize("binary_type", ["binary", "large_binary", "binary_view"])
def test_columns_binary_types_and_framing_are_decodes(binary_type: str) -> None:
    framed = build_batch([RecordSpec(value=b"\x00\x00\x00\x00\x07rest of it, longer than a view holds")])
    options: dict[str, Any] = {"binary_type": binary_type, "framing": "confluent"}
    (record,) = fetched(framed, columns=("offset", "key", "value", "value_schema_id"), **options).take(9)
    assert (record.value, record.value_schema_id) == (b"rest of it, longer than a view holds", 7)
    source = fetched(framed, columns=("value", "partition"), **options)
    assert pyarrow.table(source.take_decoded()).to_pydict() == {"value": [record.value], "partition": [3]}
    with pytest.raises(ValueError, match="needs the column 'offset'"):
        fetched(framed, columns=("value",)).take(1)


def test_a_cursor_gives_records_one_by_one_and_some_at_a_time() -> None:
    whole = kcodec.decode(LogBuilder().plain(5).plain(5).data)
    cursor = whole.records()
    assert isinstance(cursor, _fast.RecordCursor)
    assert next(cursor).offset == 0
    assert [record.offset for record in cursor.take(7)] == [1, 2, 3, 4, 5, 6, 7]
    assert cursor.take(0) == []
    assert [record.offset for record in cursor] == [8, 9]
    assert cursor.take(3) == []


@pytest.mark.parametrize("seed", range(6))
def test_headers_are_right_whether_they_repeat_or_not(seed: int) -> None:
    """Pairs of short values are shared by records: none may come out as another one of its place, name or length."""
    draw = random.Random(seed)
    alphabet = b"ab" if seed % 2 else bytes(range(256))
    few = [bytes(draw.choices(alphabet, k=draw.randrange(20))) for _ in range(40)]
    names = [b"n", b"name", b"name2", "\u00e4".encode(), b""]

    def value() -> bytes | None:
        kind = draw.random()
        if kind < 0.05:
            return None
        return draw.choice(few) if kind < 0.7 else bytes(draw.choices(alphabet, k=draw.randrange(40)))

    rows = [
        tuple((draw.choice(names) if draw.random() < 0.2 else names[0], value()) for _ in range(draw.randrange(12)))
        for _ in range(1500)
    ]
    data = build_batch([RecordSpec(value=b"v", headers=row) for row in rows])
    expected = [tuple((name.decode(), content) for name, content in row) for row in rows]
    assert [record.headers for record in kcodec.decode(data).records()] == expected
    assert [list(row[5]) for chunk in _fast.client_tuples(_fast.RecordSteps(data)) for row in chunk] == [
        list(row) for row in expected
    ]
    assert [record.headers for record in _fast.ClientRecords(data).next_batch()] == [list(row) for row in expected]
