# SPDX-License-Identifier: Apache-2.0
"""log.check(): what brokers wrote is clean but for what is odd; each kind of damage gives its finding and no other."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch, empty_batch, fix_crc
from golden_data import Partition
from index_files import write_indexes
from log_files import ABORT, COMMIT, data, marker, partition, plain
from opened_logs import open_log

from kcodec.log import check_file, read_snapshot, write_snapshot
from kcodec.log.check.findings import CODES, MOST_ALIKE, Finding

DIRECTORIES = golden_data.partitions() + golden_data.copies("live") + golden_data.copies("killed")
# Of real directories these findings are right: everything else is to be clean.
ODD: dict[str, tuple[tuple[str, ...], str]] = {
    "tv-open-0": (("hanging-transaction",), "its data has timestamps of months before"),
    "txn-open-0": (("hanging-transaction",) * 2, "its data has timestamps of months before"),
    "__consumer_offsets-0": (("open-transaction",), "offsets in a transaction that was open when the broker stopped"),
    "raw-refused-0": (("record-offsets",), "two records with one offset, which the broker let in"),
}
READ_ONLY_BY_OLDER = ("disk-v0-0", "disk-v1-0", "disk-mixed-0", "disk-gaps-0", "disk-appendtime-0")


def codes(found: list[Finding]) -> list[str]:
    return [one.code for one in found]


@pytest.mark.parametrize("partition", DIRECTORIES, ids=str)
def test_what_a_broker_wrote_is_clean(partition: Partition) -> None:
    """Compacted, deleted, running and killed ones too."""
    found = open_log(partition.path).check()
    expected = ODD.get(partition.name, ((), ""))[0]
    if partition.name == "__consumer_offsets-0" and partition.cluster == "tv0":
        expected = ()
    if partition.name in READ_ONLY_BY_OLDER:
        found = [one for one in found if one.code != "unsupported"]
    assert codes(found) == list(expected), "\n".join(map(str, found))


@pytest.mark.parametrize("partition", DIRECTORIES[::9], ids=str)
def test_every_file_of_a_broker_is_clean_by_itself(partition: Partition) -> None:
    checked = 0
    for path in sorted(partition.path.iterdir()):
        if path.name == "quorum-state" or partition.name in READ_ONLY_BY_OLDER:
            continue
        found = [one for one in check_file(path) if one.severity == "error"]
        assert found == []
        checked += 1
    assert checked or partition.name in READ_ONLY_BY_OLDER


def test_the_text_files_of_a_log_directory_are_clean() -> None:
    for cluster in golden_data.CLUSTERS:
        folder = golden_data.root() / cluster / "logs"
        for path in [*folder.glob("*-offset-checkpoint"), folder / "meta.properties"]:
            assert check_file(path) == []


# ------------------------------------------------------------------------------------------- damage to a real directory


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A copy of a real directory: six segments, indexes, aborted transactions, snapshots, two leader epochs."""
    partition = next(one for one in golden_data.partitions() if one.name == "txn-mixed-0")
    directory = tmp_path / partition.name
    shutil.copytree(partition.path, directory)
    assert open_log(directory).check() == []
    return directory


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]


def segment(directory: Path, base: int, suffix: str = ".log") -> Path:
    return directory / f"{base:020d}{suffix}"


DAMAGE: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "a byte of a record": ("bad-crc", "2.log", flip(300)),
    "a byte of a header": ("bad-crc", "2.log", flip(45)),
    "a length": ("bad-batch", "2.log", flip(8)),
    "a sealed segment is cut": ("cut-batch", "2.log", lambda raw: raw[:-5]),
    "zeros behind a sealed segment": ("bad-batch", "2.log", lambda raw: raw + b"\0" * 20),
    "the active segment is cut": ("torn-tail", "106.log", lambda raw: raw[:-5]),
    "zeros behind the active segment": ("torn-tail", "106.log", lambda raw: raw + bytes(5000)),
    "the last batch's crc": ("torn-tail", "106.log", lambda raw: raw[:-1] + b"\xff"),
    "an index position": ("index-entry", "2.index", flip(7)),
    "an index offset too low": ("index-entry", "60.index", lambda raw: raw[:8] + b"\0\0\0\x0f" + raw[12:]),
    "index entries in disorder": ("index-order", "60.index", lambda raw: raw[:8] + raw[:8] + raw[16:]),
    "half an index entry": ("index-size", "60.index", lambda raw: raw + b"\1\2\3"),
    "an index that was not trimmed": ("index-not-trimmed", "60.index", lambda raw: raw + bytes(80)),
    "a timestamp": ("index-entry", "60.timeindex", flip(7)),
    "a time index without its last entry": ("index-incomplete", "60.timeindex", lambda raw: raw[:-12]),
    "an aborted transaction's start": ("transaction-index-entry", "60.txnindex", flip(17)),
    "an aborted transaction's producer": ("transaction-index-entry", "106.txnindex", flip(9)),
    "a last stable offset": ("transaction-index-entry", "60.txnindex", flip(33)),
    "an aborted transaction less": ("transaction-index-incomplete", "60.txnindex", lambda raw: raw[34:]),
    "a newer transaction index": ("index-unreadable", "60.txnindex", lambda raw: b"\0\1" + raw[2:]),
    "a byte of a snapshot": ("snapshot-unreadable", "60.snapshot", flip(20)),
    "half a snapshot": ("snapshot-unreadable", "60.snapshot", lambda raw: raw[:30]),
    "a leader epoch": ("leader-epoch", "leader-epoch-checkpoint", lambda raw: b"0\n2\n0 0\n6 140\n"),
    "a broken leader epoch": ("checkpoint-unreadable", "leader-epoch-checkpoint", lambda raw: b"0\n2\n0 0\n"),
    "a broken topic id": ("checkpoint-unreadable", "partition.metadata", lambda raw: raw[:-3]),
}
ALSO = {
    "an index offset too low": {"index-order"},
    "index entries in disorder": {"index-entry"},
    "an aborted transaction's producer": {"transaction-index-incomplete"},
    "a newer transaction index": {"transaction-index-incomplete"},
    "an index position": {"index-order"},
    "a leader epoch": set(),
}
# The snapshot at the log's end is then behind it.
BEYOND = {"the active segment is cut", "the last batch's crc"}


@pytest.mark.parametrize("name", DAMAGE)
def test_corruption_of_a_file_is_found_and_nothing_else(healthy: Path, name: str) -> None:
    code, file, change = DAMAGE[name]
    path = healthy / file
    if file[0].isdigit():
        base, _, suffix = file.partition(".")
        path = segment(healthy, int(base), f".{suffix}")
    edit(path, change)
    found = open_log(healthy).check()
    rest = {one.code for one in found} - ALSO.get(name, set()) - ({"snapshot-beyond-log"} if name in BEYOND else set())
    assert rest == {code}, "\n".join(map(str, found))
    of_code = [one for one in found if one.code == code]
    assert all(one.path == str(path) for one in of_code)
    assert all((one.severity, one.remedy) == (CODES[code][0], CODES[code][2]) for one in of_code)
    assert pickle.loads(pickle.dumps(found)) == found
    assert str(found[0]).startswith(f"{found[0].path}: ")
    if path.suffix != ".log" and code not in ("leader-epoch",):
        assert code in codes(check_file(path)) or code.startswith("transaction")


def test_findings_say_where_and_what(healthy: Path) -> None:
    path = segment(healthy, 2)
    batch = list(open_log(path).batches)[3]
    edit(path, flip(batch.position + 100))
    (one,) = open_log(healthy).check()
    assert (one.position, one.offset, one.severity) == (batch.position, batch.base_offset, "error")
    assert str(one).startswith(f"{path}: byte {batch.position} (offset {batch.base_offset}): crc {batch.crc:#010x} is ")
    assert "another replica" in one.remedy
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.code = "other"  # type: ignore[misc]


def test_a_bad_crc_is_reported_only_if_another_implementation_agrees(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import crc32c

    path = segment(healthy, 2)
    stored = next(iter(open_log(path).batches)).crc
    edit(path, flip(70))
    monkeypatch.setattr(crc32c, "crc32c", lambda data, value=0: stored)
    found = open_log(healthy).check()
    assert codes(found) == ["crc-disagreement"]
    assert f"the package crc32c the stored {stored:#010x}" in found[0].text


def test_files_that_are_missing_or_too_many(healthy: Path) -> None:
    segment(healthy, 60, ".index").unlink()
    (healthy / f"{60:020d}.log.deleted").write_bytes(b"")
    found = open_log(healthy).check()
    assert [(one.code, one.severity) for one in found] == [("leftover", "notice"), ("index-missing", "warning")]
    segment(healthy, 60, ".txnindex").unlink()
    assert "transaction-index-incomplete" in codes(open_log(healthy).check())


def test_a_directory_in_another_storage_is_checked_the_same(healthy: Path) -> None:
    from storages import ReadAt, Store, filesystem

    edit(segment(healthy, 60, ".index"), flip(7))
    edit(segment(healthy, 60, ".snapshot"), flip(20))
    here = open_log(healthy).check()
    assert len(here) > 1
    there = open_log(healthy.name, filesystem=filesystem(Store(healthy.parent))).check()
    assert [(one.code, one.offset, one.text) for one in there] == [(one.code, one.offset, one.text) for one in here]
    alone = open_log(ReadAt(segment(healthy, 60).read_bytes()))
    assert alone.check() == []
    assert alone.producer_states


def test_a_copy_of_the_segments_alone_misses_nothing(healthy: Path) -> None:
    for path in healthy.iterdir():
        if path.suffix != ".log":
            path.unlink()
    assert open_log(healthy).check() == []


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("last_sequence", 1),
        ("last_offset", -1),
        ("producer_epoch", 1),
        ("coordinator_epoch", 1),
        ("current_transaction_first_offset", 1),
    ],
)
def test_a_snapshot_that_the_log_does_not_bear_out(healthy: Path, field: str, change: int) -> None:
    path = segment(healthy, 60, ".snapshot")
    states = list(read_snapshot(path).producers)
    at = next(at for at, state in enumerate(states) if state.current_transaction_first_offset is not None)
    states[at] = dataclasses.replace(states[at], **{field: getattr(states[at], field) + change})
    write_snapshot(path, states)
    (one,) = open_log(healthy).check()
    assert (one.code, one.path) == ("snapshot-disagrees", str(path))
    assert str(states[at].producer_id) in one.text
    del states[at]
    write_snapshot(path, states)
    (one,) = open_log(healthy).check()
    assert "is missing, whose transaction is open" in one.text


def test_a_snapshot_behind_the_end(healthy: Path) -> None:
    segment(healthy, 143, ".snapshot").rename(segment(healthy, 150, ".snapshot"))
    assert codes(open_log(healthy).check()) == ["snapshot-beyond-log"]


# -------------------------------------------------------------------------------------------------------- made batches


def found_in(folder: Path, *segments: list[bytes]) -> list[str]:
    return codes(open_log(partition(folder, *segments)).check())


def idempotent(base_offset: int, sequence: int, epoch: int = 0, **header: Any) -> bytes:
    return plain(base_offset, producer_id=5, producer_epoch=epoch, base_sequence=sequence, **header)


def test_records_that_cannot_be_read_though_the_crc_is_right(tmp_path: Path) -> None:
    broken = plain(3)
    broken = fix_crc(broken[:61] + b"\x7f" + broken[62:])
    assert found_in(tmp_path, [plain(0), broken, plain(6)]) == ["bad-record"]


def test_offsets_of_records_within_a_batch(tmp_path: Path) -> None:
    twice = [RecordSpec(offset_delta=0), RecordSpec(offset_delta=0)]
    assert found_in(tmp_path / "a", [build_batch(twice, last_offset_delta=1), plain(2)]) == ["record-offsets"]
    back = [RecordSpec(offset_delta=1), RecordSpec(offset_delta=0)]
    assert found_in(tmp_path / "b", [build_batch(back, last_offset_delta=1), plain(2)]) == ["record-offsets"]


def test_order_of_batches_and_of_segments(tmp_path: Path) -> None:
    assert found_in(tmp_path / "a", [plain(0), plain(0), plain(3)]) == ["offset-order"]
    assert found_in(tmp_path / "b", [plain(0), plain(3)], [plain(5), plain(8)]) == [
        "overlapping-segments",
        "offset-order",
    ]
    directory = partition(tmp_path / "c", [plain(5)])
    (directory / f"{5:020d}.log").rename(directory / f"{6:020d}.log")
    assert codes(open_log(directory).check()) == ["overlapping-segments"]


def test_missing_offsets_are_reported_unless_the_log_was_compacted(tmp_path: Path) -> None:
    assert found_in(tmp_path / "a", [plain(0), plain(10)]) == ["offset-gap"]
    compacted = build_batch([RecordSpec()], base_offset=20, last_offset_delta=2)
    assert found_in(tmp_path / "b", [plain(0), plain(10), compacted]) == []
    gone = empty_batch(base_offset=3, last_offset_delta=2, producer_id=5, producer_epoch=0, base_sequence=0)
    assert found_in(tmp_path / "c", [plain(0), gone, plain(30)]) == []


def test_sequences_and_epochs_of_producers(tmp_path: Path) -> None:
    assert found_in(tmp_path / "right", [idempotent(0, 7), idempotent(3, 10), idempotent(6, 0, 1)]) == []
    wrapped = [idempotent(0, 2147483646), idempotent(3, 1)]
    assert found_in(tmp_path / "wrap", wrapped) == []
    assert found_in(tmp_path / "gap", [idempotent(0, 0), idempotent(3, 4)]) == ["sequence-gap"]
    assert found_in(tmp_path / "again", [idempotent(0, 0), idempotent(3, 0)]) == ["sequence-gap"]
    assert found_in(tmp_path / "epoch", [idempotent(0, 0), idempotent(3, 3, 1)]) == ["sequence-gap"]
    assert found_in(tmp_path / "old", [idempotent(0, 0, 2), idempotent(3, 3, 1)]) == ["producer-epoch"]
    assert found_in(tmp_path / "lost", [idempotent(0, 0), idempotent(6, 6)]) == ["offset-gap", "sequence-gap"]
    compacted = build_batch([RecordSpec()], base_offset=20, last_offset_delta=2)
    assert found_in(tmp_path / "compacted", [idempotent(0, 0), idempotent(6, 6), compacted]) == []


def test_transactions(tmp_path: Path) -> None:
    ended = [data(7, 0), marker(ABORT, 7, 2), data(8, 3), marker(COMMIT, 8, 5)]
    assert found_in(tmp_path / "ended", ended) == []
    assert found_in(tmp_path / "no data", [marker(ABORT, 7, 0), marker(COMMIT, 7, 1), plain(2)]) == []
    soon = plain(2, base_timestamp=BASE_TIMESTAMP + 60_000)
    late = plain(2, base_timestamp=BASE_TIMESTAMP + 3_600_000, producer_id=9, producer_epoch=0, base_sequence=0)
    assert found_in(tmp_path / "open", [data(7, 0), soon]) == ["open-transaction"]
    assert found_in(tmp_path / "hanging", [data(7, 0), late]) == ["hanging-transaction"]
    (one,) = open_log(tmp_path / "hanging" / "orders-0").check()
    assert one.remedy.endswith("abort --topic orders --partition 0 --start-offset 0")
    mixed = plain(2, producer_id=7, producer_epoch=0, base_sequence=2)
    assert found_in(tmp_path / "mixed", [data(7, 0), mixed, marker(COMMIT, 7, 5)]) == ["mixed-transaction"]


def test_a_segment_by_itself_leaves_open_what_a_later_one_ends(tmp_path: Path) -> None:
    late = plain(2, base_timestamp=BASE_TIMESTAMP + 3_600_000, producer_id=9, producer_epoch=0, base_sequence=0)
    directory = partition(tmp_path, [data(7, 0), late], [marker(COMMIT, 7, 5)])
    assert open_log(directory).check() == []
    assert check_file(directory / f"{0:020d}.log") == []
    (directory / f"{5:020d}.log").unlink()
    assert codes(check_file(directory / f"{0:020d}.log")) == ["hanging-transaction"]


def test_many_findings_of_a_kind_are_counted(tmp_path: Path) -> None:
    found = open_log(partition(tmp_path, [plain(0)] * 40)).check()
    assert codes(found) == ["offset-order"] * (MOST_ALIKE + 1)
    assert found[-1].text == f"{39 - MOST_ALIKE} more like these"


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0, size=400_000), plain(3, size=400_000)], [plain(6)])
    reported: list[tuple[int, int]] = []
    log = open_log(directory)
    assert log.check(progress=lambda done, of: reported.append((done, of))) == []
    assert reported == sorted(reported)
    assert reported[-1] == (log.size_in_bytes, log.size_in_bytes)


def test_findings_come_as_they_are_found(tmp_path: Path) -> None:
    broken = plain(0)[:-1] + b"?"
    log = open_log(partition(tmp_path, [broken, plain(3), plain(6)]))
    assert next(log.findings()).code == "bad-crc"


def test_old_batches_of_several_appends_may_share_an_index_entry(tmp_path: Path) -> None:
    """Before 3.9 an entry had the last offset of all batches of an append."""
    directory = partition(tmp_path, [plain(0), plain(3), plain(6)], [plain(9)])
    path = directory / f"{0:020d}.log"
    write_indexes(path)
    write_indexes(directory / f"{9:020d}.log")
    path.with_suffix(".index").write_bytes(struct.pack(">ii", 8, len(plain(0))))
    assert open_log(directory).check() == []


# -------------------------------------------------------------------------------------------------------- single files


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"notes\.txt: the name is not that of a file in a log directory; expected \.log, \.index"
    ):
        check_file(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="no such file"):
        check_file(tmp_path / "absent.log")


def test_single_files_without_a_log_next_to_them(tmp_path: Path) -> None:
    index = tmp_path / f"{0:020d}.index"
    index.write_bytes(struct.pack(">iiii", 9, 100, 3, 200) + b"\1")
    assert codes(check_file(index)) == ["index-size", "index-order"]
    transactions = tmp_path / f"{50:020d}.txnindex"
    transactions.write_bytes(struct.pack(">hqqqq", 0, 1, 10, 20, 21))
    (one,) = check_file(transactions)
    assert (one.code, one.position) == ("index-order", 0)
    assert "below the segment's first offset 50" in one.text
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n4 10\n3 20\n", "utf-8")
    (one,) = check_file(epochs)
    assert "line 4: epoch 3 from offset 20 on does not follow epoch 4 from 10 on" in str(one)
    meta = tmp_path / "meta.properties"
    meta.write_text("version=7\n", "utf-8")
    assert codes(check_file(meta)) == ["checkpoint-unreadable"]
    swap = tmp_path / f"{0:020d}.log.swap"
    swap.write_bytes(b"")
    assert codes(check_file(swap)) == ["leftover"]


@pytest.mark.parametrize("position", [20, 70], ids=["header", "records"])
@pytest.mark.parametrize("number", range(4))
def test_only_the_corrupt_batch_of_a_window_has_a_finding(tmp_path: Path, number: int, position: int) -> None:
    """The batches after it are in the same window of the file, which the look at the corrupt batch must not change."""
    batches = [build_batch([RecordSpec(value=b"value" * 9)] * 3, base_offset=3 * at) for at in range(5)]
    corrupt = bytearray(batches[number])
    corrupt[position] ^= 1
    batches[number] = bytes(corrupt)
    found = open_log(partition(tmp_path, batches)).check()
    assert [(one.code, one.position) for one in found] == [("bad-crc", sum(map(len, batches[:number])))]
