# SPDX-License-Identifier: Apache-2.0
"""on_error="stop": reading ends before corruption, and `error` contains it, wherever reading began."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from log_files import partition, plain
from opened_logs import open_log

SIZE = len(plain(0))


def flip(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


CONTENTS = {
    "CRC": plain(0) + flip(plain(3), 70) + plain(6),
    "magic": plain(0) + flip(plain(3), 16) + plain(6),
    "length": plain(0) + flip(plain(3), 8) + plain(6),
    "cut": plain(0) + plain(3)[:50],
    "base offset": plain(0) + plain(0) + plain(6),
    "cut between batches": plain(0),
}


def corrupt_log(folder: Path, content: bytes) -> Path:
    directory = partition(folder, [plain(0)], [plain(10), plain(13)], [plain(16)])
    path = directory / f"{0:020d}.log"
    path.write_bytes(content)
    path.with_suffix(".index").write_bytes(struct.pack(">iiii", 5, SIZE, 8, 2 * SIZE))
    return directory


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", CONTENTS)
def test_stop_sets_the_error_wherever_reading_begins(
    tmp_path: Path, name: str, isolation_level: str, threads: int
) -> None:
    log = open_log(corrupt_log(tmp_path, CONTENTS[name]))
    for start in (0, 2, 3, 5, 8, 9, 12, 17):
        chunks = iter(
            log.to_arrow(isolation_level=isolation_level, start_offset=start, on_error="stop", threads=threads)
        )
        before = chunks.error
        assert before is None
        found = [offset for chunk in chunks for offset in chunk.column("offset")]
        if chunks.error is None:  # without a walk over the headers, reading begins after the corruption
            assert (threads, isolation_level) == (1, "read_uncommitted")
            assert found == [offset for offset in [6, 7, 8, *range(10, 19)] if offset >= start]
        else:
            assert found == [offset for offset in range(3) if offset >= start]


@pytest.mark.parametrize("threads", [1, 2])
def test_stop_sets_no_error_if_the_end_is_before_the_corruption(tmp_path: Path, threads: int) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(10), flip(plain(13), 70), plain(16)], [plain(19)])
    for end, count in ((2, 2), (3, 3), (10, 3)):
        chunks = iter(open_log(directory).to_arrow(on_error="stop", threads=threads, end_offset=end))
        assert (sum(map(len, chunks)), chunks.error) == (count, None)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_skip_returns_no_offset_twice_if_segments_overlap(tmp_path: Path, isolation_level: str, threads: int) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(10), plain(13, 9)], [plain(16), plain(19)])
    chunks = iter(open_log(directory).to_arrow(isolation_level=isolation_level, on_error="skip", threads=threads))
    assert [offset for chunk in chunks for offset in chunk.column("offset")] == [
        0,
        1,
        2,
        *range(10, 13),
        *range(16, 22),
    ]
    assert "13" in str(chunks.error)
    assert [(loss.first_offset, loss.next_offset) for loss in chunks.losses] == [(13, 16)]
