# SPDX-License-Identifier: Apache-2.0
"""Streams over files: windows, positions, files that change while they are read, memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch, fix_crc
from log_files import COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import Log, chunks, read_split, timeline, windows
from kcodec.log import partition as log_partition

COLUMNS = ("offset", "timestamp", "key", "value", "headers")


@pytest.fixture(params=[61, 200, 1 << 20], ids=["least", "small", "usual"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows of sizes that cut batches in every way."""
    for module in (windows, chunks):
        monkeypatch.setattr(module, "WINDOW_BYTES", request.param)
    monkeypatch.setattr(windows, "HOP_FROM", min(request.param, 4096))
    monkeypatch.setattr(windows, "HOP_BYTES", min(request.param, 64))
    return int(request.param)


def mixed(count: int) -> list[bytes]:
    sizes = (0, 3, 50, 400, 5000)
    codecs = ("none", "zstd", "lz4", "snappy", "gzip")
    return [plain(at * 3, size=sizes[at % 5], compression=codecs[at % 4 if at % 3 else 4]) for at in range(count)]


@pytest.mark.parametrize("binary_type", ["binary", "large_binary", "binary_view"])
def test_windows_do_not_show(tmp_path: Path, window: int, binary_type: str) -> None:
    batches = mixed(40)
    log = open_log(partition(tmp_path, batches[:25], batches[25:]))
    expected = [record for batch in batches for record in kcodec.decode(batch).records()]
    stream = log.to_arrow(binary_type=binary_type, max_rows=10)
    assert [record for chunk in stream for record in chunk.records()] == expected
    table = pa.table(stream)
    assert table.column("value").to_pylist() == [record.value for record in expected]
    assert [batch.base_offset for batch in log.batches] == list(range(0, 120, 3))
    assert log.log_end_offset == 120


def test_chunks_outlive_the_windows_they_came_from(tmp_path: Path, window: int) -> None:
    log = open_log(partition(tmp_path, mixed(40)))
    kept = list(log.to_arrow(binary_type="binary_view", max_rows=7))
    again = [record for chunk in kept for record in chunk.records()]
    assert again == list(log.records())


def test_a_batch_larger_than_a_window_grows_it(tmp_path: Path) -> None:
    large = plain(3, count=2, size=3 << 20)
    log = open_log(partition(tmp_path, [plain(0), large, plain(5)]))
    assert offsets(log) == list(range(8))
    assert [len(record.value or b"") for record in log.records(start_offset=3, end_offset=5)] == [3 << 20] * 2


def test_the_stream_is_lazy_and_can_be_drawn_again(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(at * 3) for at in range(100)]))
    stream = log.to_arrow(max_rows=3)
    reader = pa.RecordBatchReader.from_stream(stream)
    assert reader.read_next_batch().num_rows == 3
    assert pa.schema(stream.schema) == reader.schema
    assert pa.table(stream).num_rows == pa.table(stream).num_rows == 300
    assert polars.DataFrame(pa.table(stream)).height == 300


def test_two_readings_of_one_log_do_not_disturb_each_other(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, mixed(30)))
    one, other = log.records(), log.records()
    assert [(a.offset, b.offset) for a, b in zip(one, other, strict=True)] == [(at, at) for at in range(90)]


def test_offset_ranges_choose_records_and_whole_segments(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), plain(3)], [plain(6), plain(9)], [plain(12)])
    (directory / f"{0:020d}.log").write_bytes(b"what is not asked for is not read")
    log = open_log(directory)
    assert offsets(log, start_offset=7, end_offset=11) == [7, 8, 9, 10]
    assert offsets(log, start_offset=12) == [12, 13, 14]
    assert offsets(log, start_offset=50) == []
    with pytest.raises(kcodec.DecodeError):
        offsets(log, start_offset=5)


def test_two_records_of_one_offset_are_one_and_offsets_never_go_back(tmp_path: Path) -> None:
    double = build_batch([RecordSpec(b"a", offset_delta=0), RecordSpec(b"b", offset_delta=0), RecordSpec(b"c")])
    log = open_log(partition(tmp_path, [double, plain(5), plain(3, count=4), plain(7)]))
    assert [(record.offset, record.key) for record in log.records(end_offset=5)] == [(0, b"a"), (1, b"c")]
    assert offsets(log) == [0, 1, 5, 6, 7, 8, 9]
    counts = iter(log.to_arrow(("value",)))
    assert sum(len(chunk) for chunk in counts) == 7
    assert (counts.counts.records, counts.counts.out_of_range) == (7, 6)


def test_columns_may_be_any_and_unknown_ones_are_refused_at_once(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0)]))
    assert pa.table(log.to_arrow(("partition", "value"))).column_names == ["partition", "value"]
    with pytest.raises(ValueError, match="valeu"):
        log.to_arrow(("valeu",))
    with pytest.raises(TypeError, match="sequence of names"):
        log.to_arrow("value")
    with pytest.raises(ValueError, match="isolation_level"):
        log.records("read_commited")
    with pytest.raises(ValueError, match="binary_type"):
        log.to_arrow(binary_type="text")


def test_control_records_are_included_when_asked(tmp_path: Path) -> None:
    from log_files import ABORT, marker

    log = open_log(partition(tmp_path, [data(7, 0), marker(ABORT, 7, 2)]))
    found = list(log.records("read_committed", control_records="include"))
    assert [(record.offset, record.control_type) for record in found] == [(2, kcodec.ControlType.ABORT)]


def test_spark_layout_comes_from_splits(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0)]))
    (split,) = log.splits()
    read = read_split(
        split, log.verdict("read_uncommitted"), columns=("timestamp", "headers", "topic"), topic="t", spark_layout=True
    )
    (chunk,) = read
    batch = pa.record_batch(chunk)
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert batch.column("headers").null_count == 3
    assert batch.column("topic").to_pylist() == ["t"] * 3


# ------------------------------------------------------------------------------------------------ files that change


def stepwise(log: Log) -> tuple[Iterator[kcodec.DecodedRecords], list[int]]:
    """A reading of which the first window has been taken."""
    stream = iter(log.to_arrow(max_rows=3))
    return stream, [record.offset for record in next(stream).records()]


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WINDOW_BYTES", 400)
    path = partition(tmp_path, [plain(at * 3) for at in range(20)]) / f"{0:020d}.log"
    content = path.read_bytes()
    for keep in range(0, len(content), 37):
        path.write_bytes(content)
        stream, found = stepwise(open_log(path))
        os.truncate(path, keep)
        with pytest.raises(kcodec.TruncatedError, match="it became shorter while it was read") as caught:
            found += [record.offset for chunk in stream for record in chunk.records()]
        assert caught.value.path == str(path)
        assert caught.value.position is not None
        assert found == list(range(len(found)))


def test_a_file_that_grows_while_it_is_read_gives_the_longer_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "WINDOW_BYTES", 400)
    content = b"".join(plain(at * 3) for at in range(20))
    path = tmp_path / "grows.log"
    for cut in range(1000, 2000, 41):
        path.write_bytes(content[:cut])
        stream, found = stepwise(open_log(path))
        path.write_bytes(content)
        found += [record.offset for chunk in stream for record in chunk.records()]
        assert found in (list(range(60)), list(range(cut // len(plain(0)) * 3)))
        assert found == list(range(60)) or cut % len(plain(0)) == 0


def test_what_is_appended_after_the_verdict_is_not_delivered_as_committed(tmp_path: Path) -> None:
    path = partition(tmp_path, [plain(0)]) / f"{0:020d}.log"
    log = open_log(path)
    assert log.last_stable_offset == 3
    with path.open("ab") as file:
        file.write(data(7, 3))
    assert offsets(log, "read_committed") == [0, 1, 2]
    assert offsets(open_log(path), "read_committed") == [0, 1, 2]
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_batch_whose_place_was_rewritten_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = partition(tmp_path, [plain(0), plain(3)]) / f"{0:020d}.log"
    first, second = open_log(path).batches
    path.write_bytes(fix_crc(plain(0, size=21)) + plain(3))
    with pytest.raises(kcodec.DecodeError, match="another batch is at this position now"):
        first.records()
    path.write_bytes(plain(0)[:80])
    with pytest.raises(kcodec.TruncatedError):
        second.records()


def test_batches_and_logs_travel(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, mixed(10)), check_crcs=False)
    assert log.transactions == []
    copy = pickle.loads(pickle.dumps(log))
    assert offsets(copy) == list(range(30))
    assert copy.segments == log.segments
    batches = list(log.batches)
    assert pickle.loads(pickle.dumps(batches)) == batches


# ----------------------------------------------------------------------------------------------------------- memory

READ_ALL = """
import sys
import kcodec
log = kcodec.open(sys.argv[1])
rows = sum(len(chunk) for chunk in log.to_arrow(isolation_level=sys.argv[2], max_rows=8192))
batches = sum(1 for _ in log.batches)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, batches, int(peak) // 1024)
"""


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, level: str) -> None:
    batch = bytearray(plain(0, count=1000, size=200))
    path, rows = tmp_path / "large.log", 0
    with path.open("wb") as file:
        while file.tell() < 200 << 20:
            batch[:8] = rows.to_bytes(8, "big")  # outside the CRC
            file.write(batch)
            rows += 1000
    done = subprocess.run([sys.executable, "-c", READ_ALL, path, level], check=True, capture_output=True, text=True)
    found, batches, peak = map(int, done.stdout.split())
    assert (found, batches) == (rows, rows // 1000)
    assert peak < 100


# ---------------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few batches, so that a small log has many."""
    from kcodec.log import storage

    monkeypatch.setattr(storage.LocalStorage, "range_bytes", 500)
    monkeypatch.setattr(windows, "HOP_FROM", 200)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 400)
    monkeypatch.setattr(timeline, "RANGE_BYTES", 300)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_threads_do_not_show(tmp_path: Path, level: str) -> None:
    from log_files import ABORT, COMMIT, marker

    batches = [*mixed(40), data(7, 120), data(8, 122), marker(ABORT, 7, 124), marker(COMMIT, 8, 125)]
    log = open_log(partition(tmp_path, batches[:25], batches[25:]))
    for threads in (2, 5):
        alone, together = (
            iter(log.to_arrow(isolation_level=level)),
            iter(log.to_arrow(isolation_level=level, threads=threads)),
        )
        expected = [record for chunk in alone for record in chunk.records()]
        assert [record for chunk in together for record in chunk.records()] == expected
        assert together.counts == alone.counts
    assert pa.table(log.to_arrow(("offset",), level, 30, 90, threads=3)).column(0).to_pylist() == list(range(30, 90))
    with pytest.raises(ValueError, match="threads"):
        log.to_arrow(threads=0)


@pytest.mark.usefixtures("narrow")
def test_with_threads_corruption_comes_behind_what_precedes_it(tmp_path: Path) -> None:
    batches = [plain(at * 3, size=200) for at in range(40)]
    batches[20] = batches[20][:90] + b"?" + batches[20][91:]
    log = open_log(partition(tmp_path, batches))
    stream = iter(log.to_arrow(threads=3))
    found: list[int] = []
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        for chunk in stream:
            found += chunk.column("offset")
    assert found == list(range(60))
    assert caught.value.position == sum(map(len, batches[:20]))
    stopped, skipped = iter(log.to_arrow(threads=3, on_error="stop")), iter(log.to_arrow(threads=3, on_error="skip"))
    assert sum(map(len, stopped)) == 60
    assert sum(map(len, skipped)) == 117
    assert str(stopped.error) == str(skipped.error) == str(caught.value)
    assert skipped.counts.skipped_batches == 1


@pytest.mark.usefixtures("narrow")
def test_a_reading_that_is_given_up_ends_its_threads(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # of clients that other tests of this process keep
    log = open_log(partition(tmp_path, mixed(40)))
    stream = iter(log.to_arrow(threads=3))
    next(stream)
    assert any(thread.name.startswith("kcodec") for thread in set(threading.enumerate()) - others)
    del stream
    assert not any(thread.name.startswith("kcodec") for thread in set(threading.enumerate()) - others)


def test_every_call_of_a_kept_log_sees_appended_batches(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3), data(7, 6)])
    log = open_log(directory)
    assert (offsets(log, "read_committed"), log.last_stable_offset, log.log_end_offset) == ([*range(6)], 6, 8)
    assert [one.state for one in log.transactions] == ["open"]
    with (directory / f"{3:020d}.log").open("ab") as file:
        file.write(marker(COMMIT, 7, 8) + plain(9))
    expected = [*range(8), 9, 10, 11]
    assert offsets(log, "read_committed", start_offset=6) == expected[6:]
    assert offsets(log, "read_committed") == offsets(log) == expected
    assert [offset for chunk in log.to_arrow(threads=2) for offset in chunk.column("offset")] == expected
    assert (log.last_stable_offset, log.log_end_offset, log.high_watermark) == (12, 12, 12)
    assert [one.state for one in log.transactions] == ["committed"]
    assert log.splits()[-1].next_offset == 12
    assert log.offset_for_timestamp(BASE_TIMESTAMP + 9, on_error="skip") == 9


def test_a_kept_log_sees_batches_in_a_preallocated_segment(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), bytes(1000)])
    log, path = open_log(directory), directory / f"{0:020d}.log"
    assert (log.log_end_offset, offsets(log, "read_committed")) == (3, [0, 1, 2])
    with path.open("rb+") as file:
        file.seek(len(plain(0)))
        file.write(plain(3))
    assert (log.log_end_offset, offsets(log, "read_committed")) == (6, [*range(6)])


@pytest.mark.parametrize("tail", [b"", bytes(100), plain(3)[:-1]], ids=["no tail", "zeros", "torn"])
def test_an_unchanged_log_is_walked_once(tmp_path: Path, tail: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(partition(tmp_path, [plain(0), tail]))
    end = log.log_end_offset
    monkeypatch.setattr(log_partition, "walk_segments", None)
    assert (log.log_end_offset, offsets(log, "read_committed")) == (end, [0, 1, 2])
