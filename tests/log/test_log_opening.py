# SPDX-License-Identifier: Apache-2.0
"""What kcodec.open finds at a path: segments, partition directories, names, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_files import data, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import checkpoints, open_partition


def test_a_partition_directory_is_its_segments_in_order_of_offsets(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)], [plain(6)])
    for name in ("00000000000000000001.log.deleted", "00000000000000000002.log.cleaned", "x.swap", "notes.log"):
        (directory / name).write_bytes(b"none of these is a segment")
    log = open_log(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert [segment.is_active for segment in log.segments] == [False, False, True]
    assert (log.path, log.topic, log.partition) == (str(directory), "orders", 0)
    assert log.size_in_bytes == 3 * len(plain(0))
    assert offsets(log) == list(range(9))
    assert repr(log) == f"<Log orders-0: 3 segments, {log.size_in_bytes} bytes>"


def test_a_segment_is_active_unless_a_later_one_lies_next_to_it(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)])
    first, last = sorted(directory.iterdir())
    assert [open_log(path).segments[0].is_active for path in (first, last)] == [False, True]
    last.rename(directory / "renamed.log")
    assert open_log(first).segments[0].is_active
    assert open_log(directory / "renamed.log").segments[0].is_active


def test_a_segment_by_itself_leaves_undecided_what_a_later_one_decides(tmp_path: Path) -> None:
    from log_files import COMMIT, marker

    directory = partition(tmp_path, [data(7, 0), plain(2)], [marker(COMMIT, 7, 5)])
    assert offsets(open_log(directory), "read_committed") == [0, 1, 2, 3, 4]
    assert offsets(open_log(directory / f"{0:020d}.log"), "read_committed") == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("orders", ("given", 5)),
        ("orders-", ("given", 5)),
        ("or ders-0", ("given", 5)),
        ("orders-0.3c8f-delete", ("given", 5)),
    ],
)
def test_names_come_from_the_directory_else_from_the_caller(
    tmp_path: Path, name: str, expected: tuple[str, int]
) -> None:
    directory = partition(tmp_path, [plain(0)], name=name)
    for path in (directory, directory / f"{0:020d}.log"):
        log = open_log(path, topic="given", partition=5)
        assert (log.topic, log.partition) == expected
    unnamed = open_log(directory)
    assert (unnamed.topic, unnamed.partition) == (expected if expected[0] != "given" else (None, None))


def test_a_file_of_another_name_takes_the_callers_names_first(tmp_path: Path) -> None:
    directory = partition(tmp_path, [], name="run-2")
    path = directory / "capture.log"
    path.write_bytes(plain(40))
    log = open_log(path, topic="orders", partition=1)
    assert (log.topic, log.partition, log.log_start_offset, log.log_end_offset) == ("orders", 1, 40, 43)
    assert open_log(path).topic == "run"


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = partition(tmp_path, [plain(0)])
    monkeypatch.chdir(directory)
    assert open_log(".").topic == open_log(f"{0:020d}.log").topic == "orders"


def test_what_is_no_log_is_recognized(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)])
    with pytest.raises(ValueError, match=rf"log directory of 1 partition:.*{directory} for example"):
        open_partition(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        kcodec.open(tmp_path / "absent.log")
    (directory / "00000000000000000000.index").write_bytes(b"")
    with pytest.raises(ValueError, match="not a segment"):
        kcodec.open(directory / "00000000000000000000.index")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="is not a partition directory"):
        kcodec.open(tmp_path / "empty")
    with pytest.raises(ValueError, match="high_watermark"):
        kcodec.open(directory, high_watermark=-1)


def test_an_empty_log_begins_and_ends_where_its_segment_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / f"{70:020d}.log").write_bytes(b"")
    log = open_log(directory)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset, log.high_watermark) == (70, 70, 70, 70)
    assert (list(log.batches), offsets(log), log.transactions, log.splits(), log.tail) == ([], [], [], [], None)
    assert log.offset_for_timestamp(0) is None


@pytest.mark.parametrize(
    ("timestamp", "error", "text"),
    [
        ("x", TypeError, "timestamp must be an int, in milliseconds since 1970, not 'x' of type str"),
        (True, TypeError, "timestamp must be an int, .* not True of type bool"),
        (None, TypeError, "timestamp must be an int, .* not None"),
        (1.5, TypeError, "timestamp must be an int, .* not 1.5 of type float"),
        pytest.param(
            10**5000, ValueError, "timestamp must be between .* not <integer of about 5001 digits>", id="long"
        ),
    ],
)
def test_an_invalid_timestamp_is_named(tmp_path: Path, timestamp: Any, error: type[Exception], text: str) -> None:
    log = open_log(partition(tmp_path, [plain(0), plain(3)]))
    with pytest.raises(error, match=text):
        log.offset_for_timestamp(timestamp)


def checkpoint(folder: Path, *lines: str) -> None:
    (folder / checkpoints.LOG_START_OFFSETS).write_text("\n".join(("0", str(len(lines)), *lines)) + "\n", "utf-8")


def test_the_log_start_offset_comes_from_the_checkpoint_next_to_the_directory(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), plain(3)], [plain(6)])
    checkpoint(tmp_path, "orders 1 3", "orders 0 4", "order-s 0 5")
    log = open_log(directory)
    assert log.log_start_offset == 4
    assert offsets(log) == [4, 5, 6, 7, 8]
    assert offsets(log, "read_committed", start_offset=2) == [4, 5, 6, 7, 8]
    assert log.splits(1)[0].first_offset == 3
    assert log.offset_for_timestamp(0) == 4
    assert open_log(directory / f"{0:020d}.log").log_start_offset == 4


def test_without_an_entry_the_first_segment_has_the_start(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(3)], [plain(6)])
    checkpoint(tmp_path, "others 0 7")
    assert open_log(directory).log_start_offset == 3
    checkpoint(tmp_path, "orders 0 1")
    assert open_log(directory).log_start_offset == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1\n0\n", "line 1: version '1'"),
        ("0\n2\norders 0 4\n", "line 2: '2' entries but 1 follow"),
        ("0\n\n", "line 2: '' entries but 0 follow"),
        ("0\n1\norders 0\n", "line 3: expected 'topic partition offset', found 'orders 0'"),
        ("0\n1\norders zero 4\n", "line 3: expected 'topic partition offset', found 'orders zero 4'"),
    ],
)
def test_a_broken_checkpoint_is_an_error_that_names_file_and_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / checkpoints.LOG_START_OFFSETS
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=rf"{path}: {error}"):
        checkpoints.read_offsets(str(path))


def test_a_high_watermark_ends_what_is_read(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), plain(3)], [plain(6)])
    log = open_log(directory, high_watermark=5)
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (5, 5, 9)
    assert offsets(log) == offsets(log, "read_committed") == [0, 1, 2, 3, 4]
    chunks = iter(log.to_arrow(isolation_level="read_committed"))
    assert sum(len(chunk) for chunk in chunks) == 5
    assert chunks.counts.undecided == 4


def test_an_empty_path_is_not_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(partition(tmp_path, [plain(0)]))
    with pytest.raises(ValueError, match="the path is empty; name a file or a directory"):
        kcodec.open("")
    opened = kcodec.open(".")
    assert isinstance(opened, kcodec.log.Log)
    assert opened.log_end_offset == 3
