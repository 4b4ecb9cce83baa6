# SPDX-License-Identifier: Apache-2.0
"""``kcodec convert``: every format holds what Kafka's consumer delivered, and a file is whole or not there."""

from __future__ import annotations

import base64
import csv
import errno
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import golden_data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_runner import long_partition, orders, partition, program, run
from golden_data import Partition
from log_files import COMMIT, data, marker, plain
from log_files import partition as write_partition
from opened_logs import open_log

import kcodec
from kcodec.cli import ExitStatus, sinks
from kcodec.cli.sinks import UnbufferedFile

SOME = [
    p
    for p in golden_data.partitions(2)
    if p.name in ("edge-java-none-0", "txn-mixed-0", "raw-odd-0", "large-java-lz4-0")
]
ALL_COLUMNS = ",".join(kcodec.COLUMNS)
FORMATS = ("parquet", "arrow", "csv", "jsonl")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Offset, key, value of a file of any format."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [{**line, "key": bytes_of(line["key"]), "value": bytes_of(line["value"])} for line in lines]
    if path.suffix == ".csv":
        csv.field_size_limit(1 << 27)
        with path.open(encoding="utf-8", newline="") as file:
            return [{**row, "offset": int(row["offset"])} for row in csv.DictReader(file)]
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def bytes_of(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value["base64"])


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("partition", SOME, ids=str)
def test_every_format_holds_what_is_delivered(partition: Partition, suffix: str, level: Any, tmp_path: Path) -> None:
    out = tmp_path / f"out.{suffix}"
    ran = run("convert", partition.path, "-o", out, *(["--read-committed"] if level == "read_committed" else []))
    expected = list(open_log(partition.path).records(level))
    assert ran.status is ExitStatus.OK
    assert ran.err == f"{out}: {len(expected)} records\n"
    found = rows_of(out)
    assert [row["offset"] for row in found] == [record.offset for record in expected]
    if suffix != "csv":
        assert [(row["key"], row["value"]) for row in found] == [(record.key, record.value) for record in expected]
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_arrow_types_are_those_of_the_stream(suffix: str, tmp_path: Path) -> None:
    source, out = partition("txn-java-0"), tmp_path / f"out.{suffix}"
    assert run("convert", source, "-o", out, "--columns", "all", "--control").status is ExitStatus.OK
    stream = open_log(source).to_arrow(columns=kcodec.COLUMNS, control_records="include")
    expected = pa.table(stream)
    found = pq.read_table(out) if suffix == "parquet" else pa.ipc.open_file(out).read_all()
    assert found.schema.names == expected.schema.names
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema.field("timestamp").type == pa.timestamp("ms", "UTC")


def test_columns_and_offsets_are_chosen(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "in", [plain(0, 5), plain(5, 5)])
    out = tmp_path / "out.csv"
    ran = run("convert", directory, "-o", out, "--columns", "value,offset,topic,partition", "--offsets", "3:7")
    assert ran.status is ExitStatus.OK
    assert out.read_text().splitlines() == [
        "value,offset,topic,partition",
        *(f"{'v' * 20},{n},orders,0" for n in range(3, 7)),
    ]


def test_all_partitions_of_a_topic_go_into_one_file(tmp_path: Path) -> None:
    for number in range(3):
        write_partition(tmp_path / "logs", [plain(0, 2)], name=f"orders-{number}")
    out = tmp_path / "out.parquet"
    columns = ["--columns", "topic,partition,offset"]
    assert run("convert", tmp_path / "logs", "-t", "orders", "-o", out, *columns).status is ExitStatus.OK
    assert [(row["partition"], row["offset"]) for row in rows_of(out)] == [(n, at) for n in range(3) for at in range(2)]


def test_row_groups_are_cut_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "ROW_GROUP_BYTES", 1 << 20)
    directory = write_partition(tmp_path / "in", [plain(at * 1000, 1000, 1000) for at in range(8)])
    out = tmp_path / "out.parquet"
    assert run("convert", directory, "-o", out, "--compression", "none").status is ExitStatus.OK
    assert pq.ParquetFile(out).metadata.num_rows == 8000
    assert [row["offset"] for row in rows_of(out)] == list(range(8000))


def test_a_file_that_is_there_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    broken = bytearray(plain(3))
    broken[70] ^= 1
    directory = write_partition(tmp_path / "in", [plain(0), bytes(broken), plain(6)])
    for suffix in FORMATS:
        out = tmp_path / f"out.{suffix}"
        out.write_bytes(b"what was there")
        ran = run("convert", directory, "-o", out)
        assert ran.status is ExitStatus.FINDINGS
        assert "batch at byte" in ran.err
        assert out.read_bytes() == b"what was there"
        ran = run("convert", directory, "-o", out, "--on-error", "skip")
        assert ran.status is ExitStatus.FINDINGS
        assert [row["offset"] for row in rows_of(out)] == [0, 1, 2, 6, 7, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", *sorted(f"out.{suffix}" for suffix in FORMATS)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    directory = long_partition(tmp_path / "in", 3000)
    out = tmp_path / "out.csv"
    process = program("convert", directory, "-o", out)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".out.csv*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode() == "kcodec: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["-o", "out.parkuet"], "did you mean '.parquet'"),
        (["-o", "out.csv", "--columns", "ofset"], "did you mean 'offset'"),
        (["-o", "out.csv", "--columns", "offset,offset"], "requested twice"),
        (["-o", "out.csv", "--compression", "zstd"], "compress text files with another tool"),
        (["-o", "out.arrow", "--compression", "snappy"], "must be none, lz4 or zstd"),
        (["-o", "nowhere/out.csv"], "does not exist"),
        (["-o", "."], "unknown kind of file"),
        ([], "-o/--output"),
    ],
)
def test_wrong_calls_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], reported: str
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = write_partition(tmp_path / "in", [plain(0)])
    ran = run("convert", directory, *options)
    assert ran.status is ExitStatus.ERROR
    assert reported in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_control_records_and_their_type(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "in", [data(1, 0), marker(COMMIT, 1, 2)])
    out = tmp_path / "out.csv"
    assert run("convert", directory, "-o", out, "--control", "--columns", "offset,is_control,control_type").status == 0
    assert out.read_text() == "offset,is_control,control_type\n0,false,\n1,false,\n2,true,1\n"


def test_the_example_partition_converts_to_every_format(tmp_path: Path) -> None:
    for suffix in FORMATS:
        assert run("convert", orders(tmp_path), "-o", tmp_path / f"o.{suffix}").status is ExitStatus.OK


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.log", "out.parquet", "out.arrow"])
def test_a_scratch_file_is_not_foreseeable(tmp_path: Path, name: str) -> None:
    """Another user of the directory puts links where the scratch file was made: nothing is written through them."""
    directory = long_partition(tmp_path / "in", 3)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".{name}.{os.getpid()}.unfinished").symlink_to(victim)
    ran = run("convert", directory, "-o", tmp_path / name)
    assert ran.status is ExitStatus.OK, ran.err
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / name).stat().st_size > 0
    assert not (tmp_path / name).is_symlink()


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.log", "out.parquet", "out.arrow"])
def test_a_link_in_the_place_of_the_scratch_file_is_not_followed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its name is known."""
    directory = long_partition(tmp_path / "in", 3)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("kcodec.cli.sinks.secrets.token_hex", lambda size: "known")
    (tmp_path / f".{name}.known.unfinished").symlink_to(victim)
    ran = run("convert", directory, "-o", tmp_path / name)
    assert ran.status is ExitStatus.ERROR
    assert "exists" in ran.err
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.log", "out.parquet", "out.arrow"])
@pytest.mark.parametrize("missing", [1, 2000])
def test_a_file_size_limit_leaves_no_incomplete_file(tmp_path: Path, name: str, missing: int) -> None:
    """The operating system first writes only a part of the data, and reports the error with the next write."""
    directory = long_partition(tmp_path / "in", 3)
    out = tmp_path / name
    assert run("convert", directory, "-o", out).status is ExitStatus.OK
    limit = out.stat().st_size - missing
    out.write_bytes(b"earlier")
    process = program(
        "convert", directory, "-o", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode()) == (ExitStatus.ERROR, f"kcodec: {out}: file too large\n")
    assert out.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", name]


def test_a_file_size_limit_keeps_the_earlier_picture(tmp_path: Path) -> None:
    out = tmp_path / "orders.svg"
    out.write_bytes(b"earlier")
    process = program(
        *("txn", "timeline", orders(tmp_path), "--svg", out),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode()) == (ExitStatus.ERROR, f"kcodec: {out}: file too large\n")
    assert out.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders-0", "orders.svg"]


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.log", "out.parquet", "out.arrow"])
def test_a_full_disk_that_the_sync_reports_leaves_no_incomplete_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems accept the data, and report a full disk only when they store it."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    directory = long_partition(tmp_path / "in", 3)
    out = tmp_path / name
    out.write_bytes(b"earlier")
    monkeypatch.setattr("kcodec.cli.sinks.os.fsync", full)
    ran = run("convert", directory, "-o", out)
    assert (ran.status, ran.err) == (ExitStatus.ERROR, f"kcodec: {out}: no space left on device\n")
    assert out.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", name]


@pytest.mark.parametrize("mode", ["ab", "wb"])
@pytest.mark.parametrize("command", ["txn", "convert"])
def test_the_file_of_stdout_keeps_what_other_programs_wrote(tmp_path: Path, mode: str, command: str) -> None:
    """A rename would replace the file of `>> all.txt` and of `{ a; kcodec ...; b; } > all.txt`."""
    directory = orders(tmp_path)
    arguments = (
        ("txn", "timeline", directory, "--svg", "/dev/stdout")
        if command == "txn"
        else ("convert", directory, "-o", "/dev/stdout", "--format", "csv")
    )
    target = tmp_path / "all.txt"
    target.write_bytes(b"earlier\n")
    with target.open(mode) as file:
        file.write(b"before\n")
        file.flush()
        process = program(*arguments, stdout=file)
        _, err = process.communicate(timeout=60)
        assert process.returncode == ExitStatus.OK, err
        file.seek(0, os.SEEK_END)
        file.write(b"after\n")
    lines = target.read_bytes().splitlines()
    expected = [b"earlier", b"before"] if mode == "ab" else [b"before"]
    assert (lines[: len(expected)], lines[-1]) == (expected, b"after")
    assert lines[len(expected)].startswith(b"<svg" if command == "txn" else b"offset")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.txt", "orders-0"]


def test_a_write_waits_for_a_full_pipe_in_non_blocking_mode(tmp_path: Path) -> None:
    """The wait takes no processor time."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data, found = os.urandom(1 << 20), bytearray()

    def take() -> None:
        time.sleep(0.5)
        while piece := os.read(reader, 1 << 16):
            found.extend(piece)

    taking = threading.Thread(target=take)
    taking.start()
    began = time.thread_time()
    with UnbufferedFile(writer, tmp_path / "out") as file:
        assert file.write(data) == len(data)
        used = time.thread_time() - began
    taking.join()
    os.close(reader)
    assert bytes(found) == data
    assert used < 0.25


def test_a_picture_can_be_written_to_a_device(tmp_path: Path) -> None:
    assert run("txn", "timeline", orders(tmp_path), "--svg", "/dev/null").status is ExitStatus.OK
    full = run("txn", "timeline", orders(tmp_path), "--svg", "/dev/full")
    assert (full.status, full.err) == (ExitStatus.ERROR, "kcodec: /dev/full: no space left on device\n")


def test_a_picture_for_stdout(tmp_path: Path) -> None:
    ran = run("txn", "timeline", orders(tmp_path), "--svg", "-")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: -: expected the name of a file; to write the picture to stdout, use --svg /dev/stdout\n",
    )
    process = program("txn", "timeline", orders(tmp_path), "--svg", "/dev/stdout")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out[:4]) == (ExitStatus.OK, b"<svg")


def test_an_error_names_the_file_that_cannot_be_created(tmp_path: Path) -> None:
    """The name of the temporary file has no meaning for the user."""
    ran = run("txn", "timeline", orders(tmp_path), "--svg", "/proc/x.svg")
    assert (ran.status, ran.err) == (ExitStatus.ERROR, "kcodec: /proc/x.svg: no such file or directory\n")


@pytest.mark.parametrize("command", [["dump", "--records"], ["cat"], ["txn", "list"]])
def test_an_error_of_stdout_names_it(tmp_path: Path, command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = program(*command, orders(tmp_path), stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode()) == (ExitStatus.ERROR, "kcodec: stdout: no space left on device\n")


def test_files_have_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run("convert", long_partition(tmp_path / "in", 3), "-o", tmp_path / "out.csv")
    finally:
        os.umask(before)
    assert (tmp_path / "out.csv").stat().st_mode & 0o777 == 0o640


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    """A rename to the name of a device would destroy the device."""
    directory = write_partition(tmp_path / "in", [plain(0)])
    pipe = tmp_path / "out.csv"
    os.mkfifo(pipe)
    ran = run("convert", directory, "-o", pipe)
    assert (ran.status, pipe.is_fifo()) == (ExitStatus.ERROR, True)
    assert f"{pipe} is not a regular file, and would be replaced by one" in ran.err
    ran = run("convert", directory, "-o", "-", "--format", "csv")
    assert (ran.status, "to write records to stdout, use `kcodec cat`" in ran.err) == (ExitStatus.ERROR, True)


def test_a_symbolic_link_to_itself_is_refused(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "in", [plain(0)])
    link = tmp_path / "out.csv"
    link.symlink_to(link)
    ran = run("convert", directory, "-o", link)
    assert (ran.status, str(link) in ran.err) == (ExitStatus.ERROR, True)
    assert "Traceback" not in ran.err and link.is_symlink()


def test_the_file_that_a_symbolic_link_names_is_replaced(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "in", [plain(0)])
    (tmp_path / "other").mkdir()
    link, target = tmp_path / "out.csv", tmp_path / "other" / "real.csv"
    link.symlink_to(target)
    for _ in range(2):  # the file is made, then replaced
        assert run("convert", directory, "-o", link).status is ExitStatus.OK
        assert link.is_symlink()
        assert len(rows_of(target)) == 3


def test_a_segment_of_the_input_is_not_replaced(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "in", [plain(0)], [plain(3)])
    segment = directory / f"{0:020d}.log"
    (tmp_path / "link.log").symlink_to(segment)
    for file, out in ((directory, segment), (segment, segment), (directory, tmp_path / "link.log")):
        ran = run("convert", file, "-o", out, "--offsets", "1:2")
        assert (ran.status, segment.read_bytes()) == (ExitStatus.ERROR, plain(0))
        assert ran.err == f"kcodec: {out} is a segment of the input, and would be replaced: name another file\n"


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.touch(mode=0o600)
    assert run("convert", write_partition(tmp_path / "in", [plain(0)]), "-o", out).status is ExitStatus.OK
    assert (out.stat().st_mode & 0o777, len(rows_of(out))) == (0o600, 3)
