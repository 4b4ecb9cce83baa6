# SPDX-License-Identifier: Apache-2.0
"""``kcodec convert -o out.log``: cleaned segments, read by kcodec and by Kafka's own classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import golden_data
import pytest
from batch_writer import RecordSpec, build_batch
from cli_runner import run
from golden_data import Partition
from java_judge import JavaJudge
from log_files import ABORT, COMMIT, data, marker, plain
from log_files import partition as write_partition

import kcodec
from kcodec.cli import ExitStatus, clean_log
from kcodec.log import Log

PARTITIONS = [partition for partition in golden_data.partitions(2) if partition.name != "raw-refused-0"]
OLD = [partition for partition in golden_data.partitions() if partition.magics & {0, 1}]
TRANSACTIONAL = [p for p in PARTITIONS if p.name.startswith(("txn", "compact-txn", "deleted", "__consumer"))]


@pytest.fixture(scope="module")
def judge() -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def log_of(path: Path) -> Log:
    opened = kcodec.open(path)
    assert isinstance(opened, Log)
    return opened


def clean(source: Path, out: Path, *options: str) -> bytes:
    ran = run("convert", source, "-o", out, *options)
    assert (ran.status, ran.data) == (ExitStatus.OK, b""), ran.err
    return out.read_bytes()


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_with_nothing_to_leave_out_all_bytes_stay(partition: Partition, tmp_path: Path) -> None:
    """But for what lies below the log start."""
    start = log_of(partition.path).log_start_offset
    found = clean(partition.path, tmp_path / "out.log")
    if start == 0 or all(batch["baseOffset"] >= start for batch in partition.batches):
        assert found == partition.log
    assert list(log_of(tmp_path / "out.log").records()) == list(log_of(partition.path).records())


@pytest.mark.parametrize("options", [(), ("--without-markers",)], ids=["markers", "without"])
@pytest.mark.parametrize("partition", TRANSACTIONAL, ids=str)
def test_what_is_committed_is_read_alike_by_everybody(
    partition: Partition, options: tuple[str, ...], tmp_path: Path, judge: JavaJudge
) -> None:
    expected = list(log_of(partition.path).records("read_committed"))
    found = clean(partition.path, tmp_path / "out.log", "--read-committed", *options)
    reported = [(record.offset, record.timestamp, record.key, record.value) for record in expected]
    for level in ("read_committed", "read_uncommitted"):
        records = list(log_of(tmp_path / "out.log").records(level))
        assert [(one.offset, one.timestamp, one.key, one.value) for one in records] == reported
        delivered = judge.consumer(found, isolation_level=level)
        assert delivered.error is None
        assert [(one.offset, one.timestamp, one.key, one.value) for one in delivered.records] == reported
    assert judge.record_set(found).error is None
    if options:
        assert not any(batch.is_transactional or batch.is_control_batch for batch in kcodec.batches(found))


@pytest.mark.parametrize("partition", TRANSACTIONAL + PARTITIONS[:12], ids=str)
def test_a_range_cuts_batches_and_keeps_offsets(partition: Partition, tmp_path: Path, judge: JavaJudge) -> None:
    log = log_of(partition.path)
    offsets = [record.offset for record in log.records()]
    if len(offsets) < 4:
        offsets = [0, 1, 2, 3]
    start, end = offsets[len(offsets) // 3], offsets[-2]
    found = clean(partition.path, tmp_path / "out.log", "--offsets", f"{start}:{end}")
    expected = list(log.records(start_offset=start, end_offset=end))
    assert list(log_of(tmp_path / "out.log").records()) == expected
    judged = judge.record_set(found)
    assert judged.error is None
    rewritten = {batch.base_offset for batch in log.batches if batch.base_offset < start or batch.last_offset >= end}
    whole = [bytes(batch.data) for batch in log.batches if batch.base_offset not in rewritten]
    assert [bytes(batch.data) for batch in kcodec.batches(found) if batch.base_offset not in rewritten] == [
        one for one in whole if start <= int.from_bytes(one[:8], "big") < end
    ]


@pytest.mark.parametrize("partition", OLD, ids=str)
def test_old_formats_stay_unless_they_are_cut(partition: Partition, tmp_path: Path, judge: JavaJudge) -> None:
    log = log_of(partition.path)
    assert clean(partition.path, tmp_path / "out.log") == partition.log
    for batch in log.batches:
        offsets = [record.offset for record in batch.records()]
        if len(offsets) < 3:
            continue
        found = clean(partition.path, tmp_path / "cut.log", "--offsets", f"{offsets[1]}:{offsets[-1]}")
        expected = list(log.records(start_offset=offsets[1], end_offset=offsets[-1]))
        delivered = judge.consumer(found)
        assert delivered.error is None
        assert [(one.offset, one.key, one.value) for one in delivered.records] == [
            (one.offset, one.key, one.value) for one in expected
        ]


def test_aborted_and_open_data_goes_and_markers_stay(tmp_path: Path) -> None:
    batches = [plain(0), data(1, 3), data(2, 5), marker(ABORT, 1, 7), marker(COMMIT, 2, 8), data(3, 9), plain(11)]
    directory = write_partition(tmp_path / "in", batches)
    found = clean(directory, tmp_path / "out.log", "--read-committed")
    assert found == b"".join([batches[0], batches[2], batches[3], batches[4]])
    found = clean(directory, tmp_path / "plain.log", "--read-committed", "--without-markers")
    assert [batch.base_offset for batch in kcodec.batches(found)] == [0, 5]
    findings = run("check", "--json", tmp_path / "plain.log").data.splitlines()
    assert {json.loads(line)["code"] for line in findings} == {"offset-gap"}


def test_a_marker_behind_the_last_stable_offset_comes_along(tmp_path: Path) -> None:
    batches = [data(1, 0), data(2, 2), plain(4), data(1, 7), marker(COMMIT, 1, 9), data(3, 10), marker(COMMIT, 3, 12)]
    directory = write_partition(tmp_path / "in", batches)
    assert log_of(directory).last_stable_offset == 2
    assert clean(directory, tmp_path / "out.log", "--read-committed") == batches[0] + batches[4]
    assert clean(directory, tmp_path / "p.log", "--read-committed", "--without-markers")[:12] == batches[0][:12]


def test_tombstones_get_no_delete_horizon(tmp_path: Path) -> None:
    batch = build_batch([RecordSpec(b"k", None), RecordSpec(b"k", b"v")])
    directory = write_partition(tmp_path / "in", [batch])
    assert clean(directory, tmp_path / "out.log") == batch
    found = clean(directory, tmp_path / "cut.log", "--offsets", ":1")
    (only,) = kcodec.batches(found)
    assert (only.delete_horizon_ms, only.last_offset, only.records_count) == (None, 1, 1)


def test_corruption_ends_it_or_is_left_out(tmp_path: Path) -> None:
    broken = bytearray(plain(3))
    broken[70] ^= 1
    directory = write_partition(tmp_path / "in", [plain(0), bytes(broken), plain(6), plain(9)[:30]])
    out = tmp_path / "out.log"
    ran = run("convert", directory, "-o", out)
    assert (ran.status, out.exists()) == (ExitStatus.FINDINGS, False)
    assert "batch at byte" in ran.err and "nothing was written" in ran.err
    ran = run("convert", directory, "-o", out, "--on-error", "skip")
    assert (ran.status, out.read_bytes()) == (ExitStatus.FINDINGS, plain(0) + plain(6))
    ran = run("convert", directory, "-o", out, "--on-error", "stop")
    assert (ran.status, out.read_bytes()) == (ExitStatus.FINDINGS, plain(0))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def broken(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


@pytest.mark.parametrize("more", [(), ("--read-committed",), ("--read-committed", "--without-markers")])
@pytest.mark.parametrize(
    "batches, written",
    [
        ([data(7, 0, 3), broken(plain(3)), marker(COMMIT, 7, 6), plain(7)], 0),
        ([plain(0), data(7, 3, 3), broken(marker(COMMIT, 7, 6)), plain(7)], 1),
        ([plain(0), data(7, 3, 3), plain(6), broken(plain(9)), plain(12)], 1),
    ],
)
def test_corruption_behind_an_open_transaction_is_reported(
    tmp_path: Path, batches: list[bytes], written: int, more: tuple[str, ...]
) -> None:
    """The records from the first one of the transaction on are left out, as its outcome is not known."""
    directory = write_partition(tmp_path, batches)
    ran = run("convert", directory, "-o", tmp_path / "out.log", "--on-error", "stop", *more)
    assert ran.status is ExitStatus.FINDINGS and "the stored CRC" in ran.err
    if more:
        assert (tmp_path / "out.log").read_bytes() == b"".join(batches[:written])


@pytest.mark.parametrize("more", [(), ("--read-committed",)])
def test_corruption_that_stop_ends_at_is_reported(tmp_path: Path, more: tuple[str, ...]) -> None:
    broken = bytearray(plain(3))
    broken[-1] ^= 1
    directory = write_partition(tmp_path, [plain(0), bytes(broken), plain(6)])
    call: list[str | Path] = ["convert", directory, "-o", tmp_path / "out.log", "--on-error", "stop", *more]
    ran = run(*call)
    assert (ran.status, (tmp_path / "out.log").read_bytes()) == (ExitStatus.FINDINGS, plain(0))
    assert "batch at byte 145 (base_offset 3)" in ran.err
    assert run(*call, "--offsets", ":3").status is ExitStatus.OK


def test_a_segment_ends_where_kafka_ends_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_log, "LARGEST_SEGMENT_BYTES", 2 * len(plain(0)))
    directory = write_partition(tmp_path / "in", [plain(0), plain(3), plain(6)])
    assert run("convert", directory, "-o", tmp_path / "two.log", "--offsets", ":6").status is ExitStatus.OK
    ran = run("convert", directory, "-o", tmp_path / "three.log")
    assert (ran.status, (tmp_path / "three.log").exists()) == (ExitStatus.ERROR, False)
    assert "select a range with --offsets" in ran.err


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--columns", "offset"], "not for .log files"),
        (["--compression", "zstd"], "not for .log files"),
        (["--without-markers"], "needs --read-committed"),
    ],
)
def test_what_is_not_for_log_files(tmp_path: Path, options: list[str], reported: str) -> None:
    directory = write_partition(tmp_path / "in", [plain(0)])
    ran = run("convert", directory, "-o", tmp_path / "out.log", *options)
    assert ran.status is ExitStatus.ERROR
    assert reported in ran.err
    other = write_partition(tmp_path / "in", [plain(0)], name="orders-1")
    assert "holds one partition, but 2" in run("convert", directory, other, "-o", tmp_path / "out.log").err
    assert "is for .log files" in run("convert", directory, "-o", tmp_path / "o.csv", "--without-markers").err


def test_a_range_may_cut_a_batch_with_timestamps_below_minus_one(tmp_path: Path) -> None:
    specs = [RecordSpec(value=b"v", timestamp_delta=delta) for delta in (0, -5, 9)]
    source = tmp_path / "00000000000000000000.log"
    source.write_bytes(build_batch(specs, base_timestamp=-30))
    clean(source, tmp_path / "out.log", "--offsets", "1:")
    found = list(log_of(tmp_path / "out.log").records())
    assert [(record.offset, record.timestamp) for record in found] == [(1, -35), (2, -21)]


def test_a_record_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The second record has the offset of the first one, which only a corrupt log contains."""
    first = build_batch([RecordSpec(value=b"v")])
    specs = [RecordSpec(value=b"v", offset_delta=delta) for delta in (0, 1, 1, 2)]
    source = tmp_path / "00000000000000000000.log"
    source.write_bytes(first + build_batch(specs, base_offset=1))
    ran = run("convert", source, "-o", tmp_path / "out.log", "--offsets", "2:")
    assert ran.status == ExitStatus.ERROR
    assert f"{source}: batch at byte {len(first)}, offset 2: the record cannot be written: offset 2 is not" in ran.err
    assert not (tmp_path / "out.log").exists()
