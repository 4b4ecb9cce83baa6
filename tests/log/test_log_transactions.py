# SPDX-License-Identifier: Apache-2.0
"""Transactions settled by the markers of all segments; splits; offsets by timestamp."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from batch_writer import BASE_TIMESTAMP, control_batch, empty_batch
from log_files import ABORT, COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec import AbortedTransaction
from kcodec._fast import AbortedTransactions
from kcodec.log import Log, Transaction, Verdict, chunks, read_split, timeline
from kcodec.log.windows import HeaderWindows


def across_segments(folder: Path) -> Log:
    """7 aborts over three segments, 8 commits inside, 9 stays open, 10 has a marker alone."""
    return open_log(
        partition(
            folder,
            [data(7, 0), data(8, 2), plain(4)],
            [marker(COMMIT, 8, 7), data(7, 8), marker(COMMIT, 10, 10)],
            [marker(ABORT, 7, 11), data(7, 12), marker(COMMIT, 7, 14), data(9, 15), plain(17)],
        )
    )


def test_markers_of_any_segment_resolve_a_transaction(tmp_path: Path) -> None:
    log = across_segments(tmp_path)
    assert offsets(log, "read_committed") == [2, 3, 4, 5, 6, 12, 13]
    assert (log.last_stable_offset, log.log_end_offset) == (15, 20)
    found = log.transactions
    assert all(isinstance(one, Transaction) for one in found)
    assert [(one.producer_id, one.state, one.first_offset, one.last_offset, one.marker_offset) for one in found] == [
        (7, "aborted", 0, 9, 11),
        (8, "committed", 2, 3, 7),
        (10, "committed", None, None, 10),
        (7, "committed", 12, 13, 14),
        (9, "open", 15, 16, None),
    ]
    assert repr(found[0]) == "<Transaction producer_id=7/0 aborted 0..9, marker 11>"
    assert repr(found[2]) == "<Transaction producer_id=10/0 committed no data, marker 10>"
    assert repr(found[4]) == "<Transaction producer_id=9/0 open 15..16>"
    assert pickle.loads(pickle.dumps(found)) == found


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    reading = iter(across_segments(tmp_path).to_arrow(("offset",), "read_committed"))
    assert sum(len(chunk) for chunk in reading) == 7
    assert reading.counts == kcodec.Counts(batches=11, records=7, aborted=4, control=4, undecided=5)


def test_the_verdict_is_intervals_and_a_limit_and_travels(tmp_path: Path) -> None:
    log = across_segments(tmp_path)
    verdict = log.verdict("read_committed")
    assert list(verdict.aborted_transactions) == [AbortedTransaction(7, 0, 11)]
    assert (verdict.limit, verdict.log_start_offset, verdict.unsettled) == (15, 0, ())
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert len(verdict.between(0, 1).aborted_transactions) == len(verdict.between(11, 12).aborted_transactions) == 1
    assert len(verdict.between(12, 20).aborted_transactions) == 0
    assert log.verdict("read_uncommitted") == Verdict(AbortedTransactions(), None, 0)


@pytest.mark.parametrize(
    ("high_watermark", "limit", "expected"),
    [(20, 15, [2, 3, 4, 5, 6, 12, 13]), (14, 12, [2, 3, 4, 5, 6]), (11, 0, []), (7, 0, []), (12, 12, [2, 3, 4, 5, 6])],
)
def test_a_marker_at_or_past_the_high_watermark_decides_nothing(
    tmp_path: Path, high_watermark: int, limit: int, expected: list[int]
) -> None:
    log = open_log(across_segments(tmp_path).path, high_watermark=high_watermark)
    assert log.last_stable_offset == limit
    assert offsets(log, "read_committed") == expected


def test_an_abort_whose_data_begins_before_the_log_covers_what_is_left(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [data(7, 100), marker(ABORT, 7, 102), marker(ABORT, 7, 103), plain(104)]))
    assert offsets(log, "read_committed") == [104, 105, 106]


def test_other_control_records_and_empty_batches_decide_nothing(tmp_path: Path) -> None:
    log = open_log(
        partition(
            tmp_path,
            [
                control_batch(2, b"leader change", base_offset=0),
                empty_batch(base_offset=1, last_offset_delta=4, producer_id=7, producer_epoch=0, is_transactional=True),
                empty_batch(
                    base_offset=6, producer_id=8, producer_epoch=0, is_transactional=True, is_control_batch=True
                ),
                plain(7),
            ],
        )
    )
    assert log.transactions == []
    assert offsets(log, "read_committed") == [7, 8, 9]
    assert log.last_stable_offset == 10


def test_splits_are_whole_batches_below_the_size_asked_for(tmp_path: Path) -> None:
    log = across_segments(tmp_path)
    sizes = [batch.size_in_bytes for batch in log.batches]
    for max_bytes in (1, max(sizes), 2 * max(sizes) + 1, 1 << 30):
        splits = log.splits(max_bytes)
        assert all(split.size_in_bytes <= max(max_bytes, max(sizes)) for split in splits)
        assert [split.is_active for split in splits] == [split.path == log.segments[-1].path for split in splits]
        assert [split.first_offset for split in splits] == [0, *(split.next_offset for split in splits[:-1])]
        assert sum(split.size_in_bytes for split in splits) == sum(sizes) == log.size_in_bytes
    assert len(log.splits(1)) == len(sizes)
    assert len(log.splits()) == 3
    assert [split.first_offset for split in log.splits(1, start_offset=8, end_offset=12)] == [8, 10, 11]
    with pytest.raises(ValueError, match="max_bytes"):
        log.splits(0)


def test_coarse_splits_of_many_batches_meet_at_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kcodec.log import splits as module

    monkeypatch.setattr(timeline, "RANGE_BYTES", 5000)
    monkeypatch.setattr(module, "FINE_BELOW", 1)
    monkeypatch.setattr(timeline, "HeaderWindows", _Windows)
    log = open_log(partition(tmp_path, [plain(at * 3) for at in range(300)]))
    found = log.splits(12_000)
    assert len(found) > 3
    assert max(split.size_in_bytes for split in found) <= 12_000
    read = [read_split(split, log.verdict(), isolation_level="read_committed") for split in found]
    assert [record.offset for part in read for chunk in part for record in chunk.records()] == list(range(900))


class _Windows(HeaderWindows):
    """Windows of 2000 bytes, so that a small file has many."""

    def at(self, position: int, needed: int) -> memoryview:
        self._size = 500
        self._read_to = position
        return super().at(position, needed)


def test_a_range_opens_its_own_file_alone(tmp_path: Path) -> None:
    log = across_segments(tmp_path)
    splits, verdict = log.splits(), log.verdict()
    for segment in log.segments[:-1]:
        Path(segment.path).unlink()
    reading = read_split(splits[-1], verdict, isolation_level="read_committed", columns=("offset",))
    assert [offset for chunk in reading for offset in chunk.column("offset")] == [12, 13]


def test_a_range_takes_check_crcs_and_its_old_name(tmp_path: Path) -> None:
    """`read_split` passes the option on, whichever name it has; both together are a TypeError."""
    log = open_log(partition(tmp_path, [plain(0), plain(3)]))
    (split,), verdict = log.splits(), log.verdict()
    content = bytearray(Path(split.path).read_bytes())
    content[17] ^= 1  # the CRC of the first batch
    Path(split.path).write_bytes(content)
    assert sum(len(chunk) for chunk in read_split(split, verdict, check_crcs=False)) == 6
    with pytest.warns(DeprecationWarning, match="verify_crc is deprecated: use check_crcs"):
        chunks_read = read_split(split, verdict, verify_crc=False)
    assert sum(len(chunk) for chunk in chunks_read) == 6
    with pytest.raises(kcodec.CorruptBatchError):
        list(read_split(split, verdict, check_crcs=True))
    with pytest.raises(TypeError, match="verify_crc is the deprecated name of check_crcs"):
        read_split(split, verdict, check_crcs=True, verify_crc=True)


def test_a_range_never_delivers_below_its_position(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0), plain(5), plain(3, count=4), plain(8)]))
    verdict = log.verdict("read_uncommitted")
    found = [
        record.offset for split in log.splits(1) for chunk in read_split(split, verdict) for record in chunk.records()
    ]
    assert found == offsets(log) == [0, 1, 2, 5, 6, 7, 8, 9, 10]


def test_skipping_ends_splits_before_a_large_torn_batch(tmp_path: Path) -> None:
    """The last batch is whole by its header, which is all that is read of a large one, and its CRC is bad."""
    torn = bytearray(bytes(kcodec.encode([(None, bytes(3_000_000), (), 0)], max_batch_bytes=4_000_000)))
    torn[:8] = (3).to_bytes(8, "big")
    torn[17] ^= 1
    log = open_log(partition(tmp_path, [plain(0), bytes(torn)]))
    for on_error in ("raise", "stop", "skip"):
        (split,) = log.splits(on_error=on_error)
        assert (split.end_position, split.next_offset) == (len(plain(0)), 3), on_error
        chunks_read = read_split(split, log.verdict(on_error=on_error))
        assert [at for chunk in chunks_read for at in chunk.column("offset")] == [0, 1, 2]


def test_splits_end_before_a_torn_tail(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0), plain(3)[:-1]]))
    (split,) = log.splits()
    assert (split.start_position, split.end_position, split.next_offset) == (0, len(plain(0)), 3)
    Path(split.path).write_bytes(plain(0)[:50])
    with pytest.raises(kcodec.TruncatedError, match="shorter"):
        list(read_split(split, log.verdict()))


def test_a_marker_corrupt_in_any_byte_resolves_nothing_wrongly(tmp_path: Path) -> None:
    """Committed and aborted records lie before the marker: by the time its damage is met they would be delivered."""
    before, ending = data(7, 0), marker(ABORT, 7, 2)
    for at in range(21, len(ending)):
        for bit in (1, 16, 128):
            edited = before + ending[:at] + bytes([ending[at] ^ bit]) + ending[at + 1 :] + plain(3)
            path = tmp_path / "edited.log"
            path.write_bytes(edited)
            with pytest.raises(kcodec.DecodeError):
                offsets(open_log(path), "read_committed")


# ------------------------------------------------------------------------------------------------------- timestamps


def stamped(folder: Path) -> Log:
    first = [plain(0, base_timestamp=1000), plain(3, base_timestamp=3000, timestamp_type=1)]
    return open_log(partition(folder, first, [plain(6, base_timestamp=2000, compression="zstd"), plain(9)]))


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(0, 0), (1000, 0), (1001, 3), (3000, 3), (3001, 9), (BASE_TIMESTAMP + 9, 9), (BASE_TIMESTAMP + 10, None)],
)
def test_offset_for_timestamp_is_the_first_record_at_or_above(
    tmp_path: Path, timestamp: int, offset: int | None
) -> None:
    assert stamped(tmp_path).offset_for_timestamp(timestamp) == offset


def test_offset_for_timestamp_looks_inside_a_batch_and_below_the_high_watermark(tmp_path: Path) -> None:
    from batch_writer import RecordSpec, build_batch

    records = [RecordSpec(timestamp_delta=delta) for delta in (0, 10, 5, 20)]
    path = partition(tmp_path, [build_batch(records, base_timestamp=100, compression="lz4"), marker(COMMIT, 7, 4)])
    log = open_log(path)
    assert [log.offset_for_timestamp(at) for at in (100, 101, 110, 111, 121)] == [0, 1, 1, 3, 4]
    assert open_log(path, high_watermark=3).offset_for_timestamp(111) is None


def test_the_decoder_of_a_range_takes_the_options_of_decode() -> None:
    with pytest.raises(TypeError):
        chunks.StreamOptions(threads=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="max_rows"):
        chunks.StreamOptions(max_rows=0)
