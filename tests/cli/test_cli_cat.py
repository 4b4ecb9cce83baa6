# SPDX-License-Identifier: Apache-2.0
"""``kcodec cat``: the records that Kafka's consumer delivered, in every shape kcat's letters ask for."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch
from cli_runner import orders, program, run, same_as_golden
from golden_data import Partition, same_bytes
from log_files import ABORT, COMMIT, data, marker, plain
from log_files import partition as write_partition

import kcodec
from kcodec.cli import ExitStatus
from kcodec.log import Log, internal_record

PARTITIONS = [partition for partition in golden_data.partitions(2) if partition.consumed("read_committed") is not None]


def offsets(*arguments: str | Path) -> list[int]:
    ran = run("cat", *arguments, "-f", r"%o\n")
    assert (ran.status, ran.err) == (ExitStatus.OK, "")
    return [int(line) for line in ran.out.split()]


def bytes_of(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value["base64"])


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_json_is_what_kafkas_consumer_delivered(partition: Partition, level: str) -> None:
    reported = partition.consumed(level)
    assert reported is not None
    ran = run("cat", "-J", "--raw", *(["--read-committed"] if level == "read_committed" else []), partition.path)
    found = [json.loads(line) for line in ran.data.splitlines()]
    assert ran.status is ExitStatus.OK
    assert [record["offset"] for record in found] == [record["offset"] for record in reported]
    for record, line in zip(found, reported, strict=True):
        assert (record["topic"], record["partition"]) == (partition.topic, partition.partition)
        assert record["timestamp"] == line["timestamp"]
        assert same_bytes(bytes_of(record["key"]), line["key"])
        assert same_bytes(bytes_of(record["value"]), line["value"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten plain records, keys and values their offsets, a millisecond apart."""
    records = [RecordSpec(b"k%d" % at, b"v%d" % at, ((b"h", b"%d" % at),), timestamp_delta=at) for at in range(10)]
    return write_partition(tmp_path, [build_batch(records, base_offset=100, base_timestamp=BASE_TIMESTAMP)])


def test_each_letter_of_a_format(log: Path) -> None:
    ran = run("cat", log, "-c", "1", "-f", r"%t-%p@%o %k(%K) %s(%S) %T %h %%\t\x21\0\\\n")
    assert ran.data == b"orders-0@100 k0(2) v0(2) %d h=0 %%\t!\0\\\n" % BASE_TIMESTAMP


def test_values_come_with_a_newline_and_keys_with_their_delimiter(log: Path) -> None:
    assert run("cat", log, "-c", "2").data == b"v0\nv1\n"
    assert run("cat", log, "-c", "2", "-K", ":", "-D", ";").data == b"k0:v0;k1:v1;"
    assert run("cat", log, "-c", "1", "-D", r"\x00").data == b"v0\0"


def test_a_null_is_nothing_or_null(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [build_batch([RecordSpec(None, None)])])
    assert run("cat", directory, "-K", ":").data == b":\n"
    assert run("cat", directory, "-K", ":", "-Z").data == b"NULL:NULL\n"
    assert run("cat", directory, "-f", "%K %S").data == b"-1 -1"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["beginning"], range(100, 110)),
        (["end"], []),
        (["104"], range(104, 110)),
        (["-3"], range(107, 110)),
        (["-300"], range(100, 110)),
        (["-0"], []),
        (["0"], range(100, 110)),
        ([f"s@{BASE_TIMESTAMP + 7}"], range(107, 110)),
        ([f"e@{BASE_TIMESTAMP + 7}"], range(100, 107)),
        ([f"s@{BASE_TIMESTAMP + 2}", f"e@{BASE_TIMESTAMP + 4}"], [102, 103]),
        ([f"s@{BASE_TIMESTAMP + 10}"], []),
        (["s@2026-01-01T00:00:00.008Z"], [108, 109]),
        (["s@2026-01-01T01:00:00.008+01:00"], [108, 109]),
    ],
)
def test_where_to_begin_and_end(log: Path, where: list[str], expected: Any) -> None:
    options = [option for text in where for option in ("-o", text)]
    assert offsets(log, *options) == list(expected)


def test_the_last_records_of_what_is_committed(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), data(1, 3), marker(ABORT, 1, 5), plain(6), data(2, 9), plain(11)])
    assert offsets(directory, "-o", "-5") == [9, 10, 11, 12, 13]
    assert offsets(directory, "--read-committed", "-o", "-5") == [6, 7, 8]
    assert offsets(directory, "--read-committed") == [0, 1, 2, 6, 7, 8]


def test_minus_n_counts_offsets_and_not_records(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), data(1, 3), marker(COMMIT, 1, 5)])
    assert offsets(directory, "-o", "-2") == [4]
    assert offsets(directory, "-o", "-1") == []
    for command in ("cat", "consume"):
        assert "-N (N offsets before the end)" in run(command, "--help").out
    assert "-100 (100 offsets before the end)" in run("cat", directory, "-o", "last").err


def test_control_records_on_request(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [data(1, 0), marker(COMMIT, 1, 2)])
    lines = [json.loads(line) for line in run("cat", "--control", "-J", directory).data.splitlines()]
    assert [line["control_type"] for line in lines] == [None, None, "COMMIT"]
    assert run("cat", "--control", "-f", r"%o %k %s\n", directory).out.splitlines()[2] == "2 COMMIT coordinator_epoch=0"
    assert offsets(directory) == [0, 1]


def test_count_ends_the_whole_output(tmp_path: Path) -> None:
    first = write_partition(tmp_path, [plain(0, 5)], name="one-0")
    second = write_partition(tmp_path, [plain(0, 5)], name="two-0")
    assert offsets(first, second, "-c", "7") == [0, 1, 2, 3, 4, 0, 1]
    assert offsets(first, "-c", "0") == []
    assert run("cat", first, "-c", "-1").status is ExitStatus.ERROR


def test_a_topic_of_a_log_directory(tmp_path: Path) -> None:
    write_partition(tmp_path, [plain(0)], name="orders-0")
    write_partition(tmp_path, [plain(5)], name="orders-10")
    write_partition(tmp_path, [plain(9)], name="other-0")
    assert offsets(tmp_path, "-t", "orders") == [0, 1, 2, 5, 6, 7]
    assert offsets(tmp_path, "-t", "orders", "-p", "10") == [5, 6, 7]
    assert "name a topic with -t, for example -t orders" in run("cat", tmp_path).err
    assert "did you mean 'orders'" in run("cat", tmp_path, "-t", "order").err
    assert "no partition 3 here; possible: 0, 10" in run("cat", tmp_path, "-t", "orders", "-p", "3").err


@pytest.mark.parametrize("command", [["cat"], ["convert", "-o", "out.csv"]])
@pytest.mark.parametrize("file", ["", f"{0:020d}.log"])
def test_another_topic_or_partition_than_that_of_the_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_partition(tmp_path, [plain(0)], name="orders-0") / file
    for options, other in (
        (["-p", "3"], "not partition 3;"),
        (["-t", "other"], "not topic other;"),
        (["-t", "orders", "-p", "3"], "not partition 3 of orders;"),
        (["-t", "other", "-p", "0"], "not partition 0 of other;"),
    ):
        ran = run(*command, path, *options)
        assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
        assert f"{path}: this is partition 0 of orders, {other} omit -t and -p" in ran.err
    assert not Path("out.csv").exists()
    for options in (["-t", "orders"], ["-p", "0"], ["-t", "orders", "-p", "0"]):
        assert run(*command, path, *options).status is ExitStatus.OK


def test_a_path_that_names_no_partition_takes_any(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0)], name="unnamed")
    assert run("cat", directory, "-t", "other", "-p", "3", "-c", "1", "-f", "%t-%p").data == b"other-3"
    assert run("cat", directory, "-p", "3", "-c", "1", "-f", "%t-%p").data == b"-3"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["-f", "%q"], "unknown format %q"),
        (["-f", "%"], "unknown format %"),
        (["-D", r"\q"], "unknown escape"),
        (["-o", "midway"], "unknown offset 'midway'"),
        (["-o", "s@yesterday"], "'yesterday' is neither milliseconds nor a date"),
        (["-J", "-f", "%s"], "not allowed with argument"),
    ],
)
def test_wrong_letters_are_reported(log: Path, options: list[str], reported: str) -> None:
    ran = run("cat", log, *options)
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert reported in ran.err


def test_corruption_comes_after_the_records_before_it(tmp_path: Path) -> None:
    broken = bytearray(plain(3))
    broken[70] ^= 1
    directory = write_partition(tmp_path, [plain(0), bytes(broken), plain(6)])
    ran = run("cat", directory, "-f", r"%o\n")
    assert (ran.status, ran.out.split()) == (ExitStatus.FINDINGS, ["0", "1", "2"])
    assert "batch at byte" in ran.err
    ran = run("cat", directory, "-f", r"%o\n", "--on-error", "skip")
    assert (ran.status, ran.out.split()) == (ExitStatus.FINDINGS, ["0", "1", "2", "6", "7", "8"])


@pytest.mark.parametrize(
    ("choice", "offsets"), [("raise", []), ("stop", ["0", "1", "2"]), ("skip", ["0", "1", "2", "6", "7", "8"])]
)
def test_corruption_of_committed_records(tmp_path: Path, choice: str, offsets: list[str]) -> None:
    """The outcome of a transaction may be behind the corruption: with raise, nothing is printed."""
    broken = bytearray(plain(3))
    broken[70] ^= 1
    directory = write_partition(tmp_path, [plain(0), bytes(broken), plain(6)])
    ran = run("cat", directory, "-f", r"%o\n", "--read-committed", "--on-error", choice)
    assert (ran.status, ran.out.split()) == (ExitStatus.FINDINGS, offsets)
    assert "batch at byte" in ran.err


def test_stop_is_only_for_files() -> None:
    ran = run("cat", "-b", "127.0.0.1:1", "-t", "x", "--on-error", "stop")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: --on-error stop is for files: with -b use raise, which also prints the records before\n",
    )


def test_how_it_looks(tmp_path: Path) -> None:
    directory = orders(tmp_path)
    assert same_as_golden(run("cat", directory, "-J", "-c", "12").out, "cat.jsonl")
    assert same_as_golden(run("cat", directory, "--control", "-J", "-o", "5", "-c", "4").out, "cat-control.jsonl")
    assert same_as_golden(run("cat", directory, "-f", r"%o %T %k: %s [%h]\n", "-c", "8").out, "cat-format.txt")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_internal_topics_are_decoded(topic: str) -> None:
    logs = golden_data.root() / "tv2" / "logs"
    found = [json.loads(line) for line in run("cat", logs, "-t", topic).data.splitlines()]
    opened = kcodec.open(logs / f"{topic}-0")
    assert isinstance(opened, Log)
    records = list(opened.records())
    assert [line["offset"] for line in found] == [record.offset for record in records]
    for line, record in zip(found, records, strict=True):
        reported = internal_record(topic, record)
        assert reported is not None
        assert {name: line[name] for name in reported} == json.loads(json.dumps(reported))
        assert "error" not in line
    raw = run("cat", logs, "-t", topic, "-J", "--raw", "-c", "1").data
    assert list(json.loads(raw))[-3:] == ["key", "value", "headers"]


def test_following_several_partitions_is_an_error(tmp_path: Path) -> None:
    first = write_partition(tmp_path, [plain(0)], name="orders-0")
    second = write_partition(tmp_path, [plain(0)], name="orders-1")
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    for arguments in ([tmp_path, "-t", "orders"], [first, second]):
        ran = run("cat", *arguments, "--follow", "-c", "1")
        assert (ran.status, ran.out) == (ExitStatus.ERROR, "")
        assert "--follow reads one partition, and 2 are selected: name one with -p" in ran.err
    assert offsets(tmp_path, "-t", "orders", "-p", "1", "--follow", "-c", "2") == [0, 1]


def test_following_ends_when_the_reader_of_the_output_has_ended(tmp_path: Path) -> None:
    """As in `kcodec cat --follow DIRECTORY | head -1`, although no more records arrive."""
    directory = write_partition(tmp_path, [plain(0)])
    process = program("cat", directory, "--follow", "-f", r"%o\n")
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_following_goes_on_with_what_is_appended(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0)])
    process = program("cat", directory, "--follow", "-c", "6", "-f", r"%o\n")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    with (directory / f"{0:020}.log").open("ab") as file:
        file.write(plain(3))
    assert process.communicate(timeout=30) == (b"3\n4\n5\n", b"")
    assert process.returncode == 0


def wrong_crc_at_the_end(folder: Path) -> Path:
    corrupt = bytearray(plain(3))
    corrupt[-1] ^= 1
    return write_partition(folder, [plain(0), bytes(corrupt)])


@pytest.mark.parametrize("choice", [(), ("--read-committed",), ("--on-error", "skip")], ids=str)
def test_a_complete_last_batch_with_a_wrong_crc_is_reported(tmp_path: Path, choice: tuple[str, ...]) -> None:
    """Its records are left out, as those of an incomplete batch are, but they were there."""
    ran = run("cat", *choice, wrong_crc_at_the_end(tmp_path), "-f", r"%o\n")
    assert (ran.out, ran.status) == ("0\n1\n2\n", ExitStatus.FINDINGS)
    assert "the last batch has a wrong CRC" in ran.err
    assert "its records are left out" in ran.err
    assert run("cat", tmp_path / "orders-0", "-c", "2", "-f", r"%o\n").status is ExitStatus.OK


@pytest.mark.parametrize("kind", ["jsonl", "log"])
def test_convert_treats_it_as_corruption(tmp_path: Path, kind: str) -> None:
    folder, out = wrong_crc_at_the_end(tmp_path), tmp_path / f"out.{kind}"
    ran = run("convert", folder, "-o", out)
    assert (ran.status, out.exists()) == (ExitStatus.FINDINGS, False)
    assert "the last batch has a wrong CRC" in ran.err
    ran = run("convert", folder, "-o", out, "--on-error", "skip")
    assert (ran.status, out.exists()) == (ExitStatus.FINDINGS, True)
    assert "the last batch has a wrong CRC" in ran.err


@pytest.fixture
def corrupt(tmp_path: Path) -> Path:
    """A log whose offsets 3 to 5 and 12 to 14 are corrupt. Its timestamps are BASE_TIMESTAMP plus the offset."""
    broken = [bytearray(plain(3)), bytearray(plain(12))]
    for batch in broken:
        batch[70] ^= 1
    return write_partition(tmp_path, [plain(0), bytes(broken[0]), plain(6)], [plain(9), bytes(broken[1]), plain(15)])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["-5"], [15, 16, 17]),
        (["-8"], [10, 11, 15, 16, 17]),
        ([f"s@{BASE_TIMESTAMP + 7}"], [9, 10, 11, 15, 16, 17]),
        ([f"e@{BASE_TIMESTAMP + 7}"], [0, 1, 2, 6, 7, 8]),
        ([f"s@{BASE_TIMESTAMP + 99}"], []),
        (["end"], []),
    ],
)
@pytest.mark.parametrize("level", [[], ["--read-committed"]], ids=str)
def test_start_and_end_are_found_if_corruption_is_skipped(
    corrupt: Path, where: list[str], expected: list[int], level: list[str]
) -> None:
    options = [option for text in where for option in ("-o", text)]
    ran = run("cat", corrupt, *options, *level, "--on-error", "skip", "-f", r"%o\n")
    assert [int(line) for line in ran.out.split()] == expected
    assert ran.status in (ExitStatus.OK, ExitStatus.FINDINGS)


def test_stopping_at_corruption_counts_from_the_end_before_it(corrupt: Path) -> None:
    ran = run("cat", corrupt, "-o", "-2", "--on-error", "stop", "-f", r"%o\n")
    assert (ran.status, ran.out.split()) == (ExitStatus.FINDINGS, ["1", "2"])
    assert "batch at byte" in ran.err


@pytest.mark.parametrize("command", [["cat", "-f", ""], ["convert", "-o", "out.csv"]])
def test_every_skipped_batch_is_reported(corrupt: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corrupt.parent)
    ran = run(*command, corrupt, "--on-error", "skip")
    assert ran.status is ExitStatus.FINDINGS
    lines = [line for line in ran.err.splitlines() if line.startswith("kcodec: ")]
    assert [path in line for path, line in zip([f"{0:020d}.log", f"{9:020d}.log"], lines, strict=True)] == [True, True]
    assert "offsets 12 to 14" in lines[1]


def test_an_offset_beyond_the_end_is_reported(log: Path) -> None:
    ran = run("cat", log, "-o", "111")
    assert (ran.status, ran.out) == (ExitStatus.OK, "")
    assert ran.err == "kcodec: orders-0: offset 111 is beyond the end of the log, 110\n"
    for options in (["-o", "110"], ["-o", "111", "-c", "0"], ["-o", "beginning", "-c", "1"]):
        assert run("cat", log, *options).err == ""


def test_corruption_before_the_requested_offset_is_not_reported(corrupt: Path) -> None:
    """Otherwise, a program that continues at its last offset would fail although no record is missing."""
    for offset in ("18", "19"):
        ran = run("cat", corrupt, "-o", offset)
        assert (ran.status, ran.out, ran.err) == (ExitStatus.OK, "", "")


def test_the_last_start_offset_is_used(log: Path) -> None:
    assert offsets(log, "-o", f"s@{BASE_TIMESTAMP + 7}", "-o", "108") == [108, 109]
    assert offsets(log, "-o", "108", "-o", f"s@{BASE_TIMESTAMP + 7}") == [107, 108, 109]
    assert offsets(log, "-o", "end", "-o", f"e@{BASE_TIMESTAMP + 1}", "-o", "-300") == [100]


def test_follow_refuses_an_end_time_after_the_last_record(log: Path) -> None:
    ran = run("cat", log, "--follow", "-o", "e@2099-01-01")
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert "--follow with -o e@TIME needs a record of this time" in ran.err
    assert offsets(log, "--follow", "-o", f"e@{BASE_TIMESTAMP + 2}") == [100, 101]


def test_a_time_with_two_signs_is_reported(log: Path) -> None:
    ran = run("cat", log, "-o", "s@--5")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: '--5' is neither milliseconds nor a date such as 2026-11-21T09:30:00Z\n",
    )
