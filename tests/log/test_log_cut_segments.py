# SPDX-License-Identifier: Apache-2.0
"""Closed segments that end at a batch boundary although their index has batches after it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from log_files import offsets, partition, plain
from opened_logs import open_log

import kcodec

BATCHES = [plain(0), plain(3), plain(6)]
SIZE = len(BATCHES[0])
ERROR = (
    rf"0\.log: .*byte {SIZE}.* the segment was cut between two batches: it ends at byte {SIZE}, but its index has a "
    rf"batch with offset 5 at byte {SIZE}; restore the file"
)


def cut_log(folder: Path, count: int = 1, entries: tuple[tuple[int, int], ...] = ((5, SIZE), (8, 2 * SIZE))) -> Path:
    """Return a partition whose first segment has only `count` of its batches, with an index of these entries."""
    directory = partition(folder, BATCHES, [plain(10)])
    (directory / f"{0:020d}.log").write_bytes(b"".join(BATCHES[:count]))
    (directory / f"{0:020d}.index").write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    return directory


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_closed_segment_cut_between_batches_is_an_error(tmp_path: Path, isolation_level: str, threads: int) -> None:
    log = open_log(cut_log(tmp_path))
    with pytest.raises(kcodec.TruncatedError, match=ERROR) as caught:
        list(log.to_arrow(isolation_level=isolation_level, threads=threads))
    assert (caught.value.position, caught.value.available, caught.value.needed) == (SIZE, SIZE, SIZE)


@pytest.mark.parametrize("threads", [1, 2])
def test_stop_ends_at_the_cut_of_a_closed_segment(tmp_path: Path, threads: int) -> None:
    chunks = iter(open_log(cut_log(tmp_path)).to_arrow(on_error="stop", threads=threads))
    assert [offset for chunk in chunks for offset in chunk.column("offset")] == [0, 1, 2]
    assert isinstance(chunks.error, kcodec.TruncatedError)


def test_the_records_before_the_cut_are_returned_first(tmp_path: Path) -> None:
    records = open_log(cut_log(tmp_path)).records()
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(kcodec.TruncatedError):
        next(records)
    assert offsets(open_log(tmp_path / "orders-0"), end_offset=3) == [0, 1, 2]
    assert offsets(open_log(tmp_path / "orders-0"), start_offset=10) == [10, 11, 12]


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_an_empty_closed_segment_with_index_entries_is_an_error(tmp_path: Path, isolation_level: str) -> None:
    log = open_log(cut_log(tmp_path, 0))
    with pytest.raises(kcodec.TruncatedError, match="it ends at byte 0, but its index has a batch with offset 5"):
        offsets(log, isolation_level)
    chunks = iter(log.to_arrow(isolation_level=isolation_level, on_error="stop"))
    assert list(chunks) == []
    assert isinstance(chunks.error, kcodec.TruncatedError)


@pytest.mark.parametrize("entries", [(), ((0, 0),) * 4], ids=["no index", "preallocated index"])
def test_an_empty_closed_segment_without_entries_is_no_loss(
    tmp_path: Path, entries: tuple[tuple[int, int], ...]
) -> None:
    log = open_log(cut_log(tmp_path, 0, entries))
    for isolation_level in ("read_uncommitted", "read_committed"):
        assert offsets(log, isolation_level) == [10, 11, 12]
    chunks = iter(log.to_arrow(on_error="skip"))
    assert sum(map(len, chunks)) == 3
    assert (chunks.losses, chunks.counts.skipped_batches) == ((), 0)


@pytest.mark.parametrize(
    "entries",
    [
        ((5, SIZE), (8, 2 * SIZE), (0, 0), (0, 0)),
        ((5, SIZE - 1), (8, 3 * SIZE)),
        ((7, SIZE), (7, 3 * SIZE)),
        ((5, -1), (8, -1)),
        ((5, 7 * SIZE), (20, 6 * SIZE)),
        ((90, 7 * SIZE), (20, 8 * SIZE)),
    ],
    ids=[
        "preallocated",
        "of other bytes",
        "offset below the end",
        "negative positions",
        "positions fall",
        "offsets fall",
    ],
)
def test_an_index_that_proves_no_cut_is_ignored(tmp_path: Path, entries: tuple[tuple[int, int], ...]) -> None:
    log = open_log(cut_log(tmp_path, 3, entries))
    for isolation_level in ("read_uncommitted", "read_committed"):
        assert offsets(log, isolation_level) == [*range(9), 10, 11, 12]


def test_the_index_of_the_active_segment_may_be_ahead(tmp_path: Path) -> None:
    directory = cut_log(tmp_path)
    (directory / f"{10:020d}.log").unlink()
    for isolation_level in ("read_uncommitted", "read_committed"):
        assert offsets(open_log(directory), isolation_level) == [0, 1, 2]


def test_a_preallocated_index_of_a_cut_segment_is_read_whole(tmp_path: Path) -> None:
    log = open_log(cut_log(tmp_path, 1, ((5, SIZE), (8, 2 * SIZE), (0, 0), (0, 0))))
    with pytest.raises(kcodec.TruncatedError, match=ERROR):
        offsets(log)


def test_the_headers_of_a_cut_segment_end_with_an_error(tmp_path: Path) -> None:
    found = []
    with pytest.raises(kcodec.TruncatedError, match=ERROR):
        for batch in open_log(cut_log(tmp_path)).batches:
            found.append(batch.base_offset)
    assert found == [0]


def test_the_headers_of_an_active_segment_end_without_an_error(tmp_path: Path) -> None:
    directory = cut_log(tmp_path)
    (directory / f"{10:020d}.log").unlink()
    assert [batch.base_offset for batch in open_log(directory).batches] == [0]
