# SPDX-License-Identifier: Apache-2.0
"""``kcodec check`` and ``kcodec txn``: findings with what to do, and who holds the last stable offset back."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch
from cli_runner import orders, partition, run, same_as_golden
from log_files import ABORT, COMMIT, data, marker, plain
from log_files import partition as write_partition

import kcodec
from kcodec.cli import ExitStatus, txn
from kcodec.log.check.findings import CODES

NOW = ["--now", "2026-11-22T00:00:00Z"]


def damaged(batch: bytes, at: int = 70) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


# -------------------------------------------------------------------------------------------------------------- check


def test_what_a_broker_left_is_clean() -> None:
    ran = run("check", partition("txn-java-0"))
    assert (ran.status, ran.out) == (ExitStatus.OK, "")
    assert ran.err == f"{partition('txn-java-0')}: nothing found\n"


def test_a_finding_says_where_what_and_what_to_do(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), damaged(plain(3)), plain(6)], [plain(9)])
    ran = run("check", directory)
    assert ran.status is ExitStatus.FINDINGS
    first, second = ran.out.splitlines()[:2]
    path = directory / f"{0:020}.log"
    assert first.startswith(f"error: {path}: byte {len(plain(0))} (offset 3): ")
    assert first.endswith("(bad-crc)")
    assert second == f"    to do: {CODES['bad-crc'][2]}"
    assert ran.err == f"{directory}: 1 error\n"


def test_findings_as_json_are_those_of_the_log(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), damaged(plain(3)), plain(6), data(1, 9), plain(11)[:40]])
    found = [json.loads(line) for line in run("check", "--json", directory).data.splitlines()]
    opened = kcodec.open(directory)
    assert isinstance(opened, kcodec.log.Log)
    expected = opened.check()
    assert [(line["code"], line["position"], line["offset"]) for line in found] == [
        (one.code, one.position, one.offset) for one in expected
    ]
    assert list(found[0]) == ["code", "severity", "path", "position", "offset", "text", "remedy"]


def test_notices_alone_are_fine_and_severities_are_chosen(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [data(1, 0)])
    ran = run("check", directory)
    assert ran.status is ExitStatus.OK
    assert "(open-transaction)" in ran.out
    assert ran.err == f"{directory}: 1 notice\n"
    assert run("check", "--severity", "warning", directory).out == ""
    broken = write_partition(tmp_path, [plain(0), plain(3)[:40]], name="torn-0")
    ran = run("check", "--severity", "error", broken)
    assert (ran.status, ran.out, ran.err) == (ExitStatus.FINDINGS, "", f"{broken}: 1 warning\n")


def test_one_file_and_a_whole_log_directory(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), damaged(plain(3)), plain(6)])
    write_partition(tmp_path, [plain(0)], name="fine-0")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nfine 0 x\n")
    alone = run("check", directory / f"{0:020}.log")
    assert (alone.status, alone.out.count("(bad-crc)")) == (ExitStatus.FINDINGS, 1)
    whole = run("check", tmp_path)
    assert whole.status is ExitStatus.FINDINGS
    assert whole.out.count("(bad-crc)") == 1
    assert whole.out.count("(checkpoint-unreadable)") == 1


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    for name in ("nothing", "notes.txt"):
        ran = run("check", tmp_path / name)
        assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
        assert name in ran.err


# ---------------------------------------------------------------------------------------------------------------- txn


def listed(*arguments: str | Path) -> list[dict[str, Any]]:
    ran = run("txn", "list", "--json", *NOW, *arguments)
    assert ran.status is ExitStatus.OK
    return [json.loads(line) for line in ran.data.splitlines()]


def test_ages_are_computed_after_the_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running broker appends records while the command reads. The age of a new transaction was negative."""
    times = [BASE_TIMESTAMP - 50]

    def reading(*arguments: Any) -> Any:
        times.append(BASE_TIMESTAMP + 20)
        return kcodec.log.partition_transactions(*arguments)

    monkeypatch.setattr(txn, "partition_transactions", reading)
    monkeypatch.setattr(txn, "now_ms", lambda: times[-1])
    ran = run("txn", "list", "--json", write_partition(tmp_path, [data(1, 0)]))
    assert [json.loads(line)["age_ms"] for line in ran.data.splitlines()] == [20]


def test_every_transaction_with_its_outcome(tmp_path: Path) -> None:
    batches = [data(1, 0), data(2, 2), marker(COMMIT, 1, 4), data(3, 5), marker(ABORT, 2, 7), data(1, 8)]
    directory = write_partition(tmp_path, batches)
    found = listed(directory)
    assert [(one["producer_id"], one["state"], one["first_offset"], one["marker_offset"]) for one in found] == [
        (1, "committed", 0, 4),
        (2, "aborted", 2, 7),
        (3, "open", 5, None),
        (1, "open", 8, None),
    ]
    assert [one["holds_last_stable_offset"] for one in found] == [False, False, True, False]
    assert [one["first_offset"] for one in listed("--state", "open", directory)] == [5, 8]
    assert [one["first_offset"] for one in listed("--state", "open", "--state", "aborted", directory)] == [2, 5, 8]
    assert found[2]["abort_command"].endswith("--topic orders --partition 0 --start-offset 5")
    assert found[0]["abort_command"] is None


def test_who_holds_the_last_stable_offset_is_said_with_what_ends_it(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, [plain(0), data(7, 3), plain(5)])
    ran = run("txn", "list", directory, "--now", str(BASE_TIMESTAMP + 3 + 14 * 60_000))
    row = "orders-0 7/0 open 3 4 - 14 min - holds last_stable_offset"
    assert ran.out.splitlines()[1].split() == row.split()
    assert ran.err == (
        "orders-0: producer 7/0 holds the last stable offset at 3, open for 14 min; if no producer will end it: "
        "kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic orders --partition 0 --start-offset 3\n"
    )


def test_a_log_directory_knows_transactional_ids() -> None:
    found = listed("--state", "open", golden_data.root() / "tv2" / "live")
    assert {one["state"] for one in found} == {"open"}
    reported = [(one["topic"], one["first_offset"], one["holds_last_stable_offset"]) for one in found]
    expected = [
        (log.topic, log.holding_transaction.first_offset, True)
        for log in golden_logs("live")
        if log.holding_transaction is not None
    ]
    assert [one for one in reported if one[2]] == expected
    assert expected


def golden_logs(kind: str) -> list[kcodec.log.Log]:
    opened = kcodec.open(golden_data.root() / "tv2" / kind)
    assert isinstance(opened, kcodec.log.LogDirectory)
    return list(opened.values())


def test_a_partition_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    write_partition(tmp_path, [plain(0), b"\xff" * 200], [plain(9)], name="bad-0")
    write_partition(tmp_path, [data(1, 0)], name="good-0")
    ran = run("txn", "list", tmp_path)
    assert ran.status is ExitStatus.FINDINGS
    assert "good-0" in ran.out
    assert "batch_length -1" in ran.err


def test_how_lists_and_pictures_look(tmp_path: Path) -> None:
    directory = orders(tmp_path)
    assert same_as_golden(run("txn", "list", directory, *NOW).out, "txn-list.txt")
    assert same_as_golden(run("txn", "list", "--json", directory, *NOW).out, "txn-list.jsonl")
    assert same_as_golden(run("txn", "timeline", directory).out, "txn-timeline.txt")
    assert same_as_golden(run("txn", "timeline", partition("txn-open-0"), "--width", "80").out, "txn-timeline-open.txt")


def test_a_picture_marks_each_end_at_its_offset(tmp_path: Path) -> None:
    batches = [
        data(1, 0),
        plain(2, 6),
        marker(COMMIT, 1, 8),
        data(2, 9),
        marker(ABORT, 2, 11),
        data(3, 12),
        plain(14, 6),
    ]
    lines = run("txn", "timeline", "--width", "52", write_partition(tmp_path, batches)).out.splitlines()
    ruler, one, two, three, legend = lines
    at = {number: ruler.index(str(number), 12) for number in (10, 20)}
    assert ruler.startswith("orders-0") and at[20] == 51
    assert one.index("├") == 12 and one.index("◆") == 12 + int(8 / 20 * 39)
    assert two.index("├") == 12 + int(9 / 20 * 39) and two.index("✕") == 12 + int(11 / 20 * 39)
    assert three.index("▶") == 50
    assert one.index("┊") == two.index("┊") == 12 + int(12 / 20 * 39)
    assert all(line[51] == "┃" for line in (one, two, three))
    assert "◆ commit marker" in legend


def test_a_log_without_transactions_has_a_picture_too(tmp_path: Path) -> None:
    assert "(no transaction)" in run("txn", "timeline", write_partition(tmp_path, [plain(0)])).out
    assert "(no transaction)" in run("txn", "timeline", write_partition(tmp_path, [b""], name="empty-0")).out


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["lst"], "unknown action 'lst'; did you mean 'list'?"),
        (["list", "--now", "soon"], "'soon' is neither milliseconds nor a date"),
        (["timeline", "--width", "10"], "--width must be at least 40"),
        (["list", "--state", "opn"], "invalid choice: 'opn'"),
    ],
)
def test_wrong_calls_are_reported(tmp_path: Path, options: list[str], reported: str) -> None:
    directory = write_partition(tmp_path, [data(1, 0)])
    ran = run("txn", *options, directory)
    assert (ran.status, ran.data) == (ExitStatus.ERROR, b"")
    assert reported in ran.err


def test_a_partition_without_a_segment_does_not_end_a_command(tmp_path: Path) -> None:
    """This happens, for example, if the broker deletes a topic while the command runs."""
    write_partition(tmp_path, [plain(0)], name="a-0")
    (tmp_path / "gone-0").mkdir()
    write_partition(tmp_path, [data(1, 0), marker(COMMIT, 1, 2)], name="orders-0")
    (tmp_path / "orders-0" / f"{0:020d}.index").write_bytes(struct.pack(">ii", 1, 7))
    (tmp_path / "orders-0" / f"{0:020d}.timeindex").touch()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    reason = f"kcodec: {tmp_path / 'gone-0'}: the directory has no segment (20 digits and .log)\n"
    ran = run("check", tmp_path)
    assert (ran.status, ran.out.count("(index-entry)")) == (ExitStatus.FINDINGS, 1)
    assert ran.err == f"{reason}{tmp_path}: 1 error, 1 partition not checked\n"
    ran = run("txn", "list", "-J", tmp_path)
    assert (ran.status, len(ran.out.splitlines())) == (ExitStatus.FINDINGS, 1)
    assert ran.err == reason
    ran = run("txn", "timeline", tmp_path)
    assert (ran.status, ran.err) == (ExitStatus.FINDINGS, reason)
    assert "a-0" in ran.out and "orders-0" in ran.out
    ran = run("dump", "-J", tmp_path)
    assert [(json.loads(line)["topic"], json.loads(line)["segments"]) for line in ran.out.splitlines()] == [
        ("a", 1),
        ("gone", 0),
        ("orders", 1),
    ]
    assert ran.status is ExitStatus.OK


def test_a_hanging_transaction_is_a_finding(tmp_path: Path) -> None:
    """The coordinator has completed the transaction without this partition."""
    key = struct.pack(">hh", 0, 4) + b"done"
    value = struct.pack(">hqhib", 0, 9, 0, 60_000, 4) + struct.pack(">i", 0) + bytes(16)
    write_partition(tmp_path, [build_batch([RecordSpec(key, value)])], name="__transaction_state-0")
    write_partition(tmp_path, [data(9, 0)])
    ran = run("txn", "list", tmp_path)
    assert (ran.status, "hanging: no producer will end it" in ran.out) == (ExitStatus.FINDINGS, True)
    assert run("txn", "list", "--state", "committed", tmp_path).status is ExitStatus.OK
    assert run("txn", "list", tmp_path / "orders-0").status is ExitStatus.OK


def test_a_corrupt_record_of_a_coordinator_proves_no_hanging_transaction(tmp_path: Path) -> None:
    """The record that adds the partition to the transaction may be the corrupt one."""

    def state(status: int, offset: int) -> bytes:
        value = struct.pack(">hqhib", 0, 9, 0, 60_000, status) + struct.pack(">i", 0) + bytes(16)
        return build_batch([RecordSpec(struct.pack(">hh", 0, 4) + b"done", value)], base_offset=offset)

    batches = [state(4, 0), damaged(state(1, 1)), build_batch([RecordSpec(b"", b"")], base_offset=2)]
    write_partition(tmp_path, batches, name="__transaction_state-0")
    write_partition(tmp_path, [data(9, 0)])
    ran = run("txn", "list", "-J", tmp_path)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [(one["transactional_id"], one["is_hanging"]) for one in found] == [("done", None)]
    assert ran.status is ExitStatus.FINDINGS
    assert "__transaction_state-0" in ran.err and "CRC" in ran.err


def test_a_transaction_that_has_just_begun_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running broker begins the transaction after the command has read the records of the coordinator."""

    def state(status: int, *partitions: int) -> bytes:
        value = struct.pack(">hqhib", 0, 9, 0, 60_000, status) + struct.pack(">ih", 1, 6) + b"orders"
        value += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions) + bytes(16)
        return build_batch([RecordSpec(struct.pack(">hh", 0, 4) + b"done", value)])

    read = kcodec.log.LogDirectory.transaction_states

    def states(directory: kcodec.log.LogDirectory, on_error: str = "raise") -> Any:
        found = read(directory, on_error)
        (tmp_path / "__transaction_state-0" / f"{0:020d}.log").write_bytes(state(1, 0))
        return found

    write_partition(tmp_path, [state(4)], name="__transaction_state-0")
    write_partition(tmp_path, [data(9, 0)])
    monkeypatch.setattr(kcodec.log.LogDirectory, "transaction_states", states)
    ran = run("txn", "list", "-J", tmp_path)
    (found,) = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.status, found["state"], found["is_hanging"]) == (ExitStatus.OK, "open", False)
