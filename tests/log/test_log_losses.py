# SPDX-License-Identifier: Apache-2.0
"""With on_error="skip", `losses` has the same losses for each start offset, with several threads and in splits."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import damage, write_two_segments
from log_files import partition, plain
from opened_logs import open_log

from kcodec.log import Chunks, Log, read_split

SIZE = len(plain(0))
# Offsets, (first_offset, next_offset) of each loss, and the number of skipped batches.
Read = tuple[list[int], list[tuple[int, int | None]], int]


def read_of(chunks: Chunks) -> Read:
    offsets = [offset for chunk in chunks for offset in chunk.column("offset")]
    losses = [(loss.first_offset, loss.next_offset) for loss in chunks.losses]
    return offsets, losses, chunks.counts.skipped_batches


def in_splits(log: Log, max_bytes: int, start_offset: int | None = None) -> Read:
    verdict = log.verdict(on_error="skip")
    offsets: list[int] = []
    losses: list[tuple[int, int | None]] = []
    count = 0
    for split in log.splits(max_bytes, start_offset=start_offset, on_error="skip"):
        options = {"isolation_level": "read_committed", "on_error": "skip", "start_offset": start_offset}
        some, lost, skipped = read_of(read_split(split, verdict, **options))
        offsets, losses, count = offsets + some, losses + lost, count + skipped
    return offsets, losses, count


def every_read(log: Log, start_offset: int | None = None) -> dict[str, Read]:
    found = {"one byte": in_splits(log, 1, start_offset), "large splits": in_splits(log, 1 << 20, start_offset)}
    for level in ("read_uncommitted", "read_committed"):
        for threads in (1, 2):
            stream = log.to_arrow(isolation_level=level, start_offset=start_offset, on_error="skip", threads=threads)
            found[f"{level}, {threads} threads"] = read_of(iter(stream))
    return found


def flip(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def test_a_loss_that_contains_the_start_offset_is_listed(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0), flip(plain(3, 5), 70), plain(8)]))
    for start in range(3, 8):
        assert set(map(repr, every_read(log, start).values())) == {repr(([8, 9, 10], [(start, 8)], 1))}


def test_a_loss_before_the_start_offset_is_not_listed(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0), flip(plain(3, 5), 70), plain(8), flip(plain(11), 70), plain(14)]))
    for start in range(8, 12):
        assert set(map(repr, every_read(log, start).values())) == {
            repr(([*range(start, 11), 14, 15, 16], [(11, 14)], 1))
        }
    for start in range(14, 17):
        assert set(map(repr, every_read(log, start).values())) == {repr((list(range(start, 17)), [], 0))}


@pytest.mark.parametrize("content", [b"", plain(0)], ids=["empty", "cut"])
def test_a_segment_that_was_cut_between_batches_is_a_loss(tmp_path: Path, content: bytes) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(10)])
    path = directory / f"{0:020d}.log"
    path.write_bytes(content)
    path.with_suffix(".index").write_bytes(struct.pack(">iiii", 5, SIZE, 8, 2 * SIZE))
    first = 3 if content else 0
    for start in (None, 5, 9):
        offsets = [0, 1, 2] if content and start is None else []
        expected = ([*offsets, 10, 11, 12], [(max(first, start or 0), 10)], 1)
        assert set(map(repr, every_read(open_log(directory), start).values())) == {repr(expected)}


def test_splits_return_no_offset_twice_if_segments_overlap(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0)], [plain(10), plain(13, 9)], [plain(16), plain(19)]))
    expected = ([0, 1, 2, *range(10, 13), *range(16, 22)], [(13, 16)], 1)
    assert set(map(repr, every_read(log).values())) == {repr(expected)}


def test_the_start_is_found_despite_a_corrupt_base_offset(tmp_path: Path) -> None:
    """The CRC does not cover the base offset. The batch seems to contain the start offset, and all later batches seem
    to be out of order."""
    wrong = struct.pack(">q", 900) + plain(3)[8:]
    log = open_log(partition(tmp_path, [plain(0), wrong, plain(6), plain(9)]))
    for start in (3, 5, 6, 7, 10):
        expected = (list(range(max(start, 6), 12)), [(start, 6)] if start < 6 else [], int(start < 6))
        assert set(map(repr, every_read(log, start).values())) == {repr(expected)}


@pytest.mark.parametrize("seed", [*range(16), 34, 36, 43])
def test_random_corruption_causes_the_same_losses_in_each_read(tmp_path: Path, seed: int) -> None:
    """Splits that end within a corrupt range list it as several losses."""
    chance = random.Random(seed)
    folder = tmp_path / "orders-0"
    stored = write_two_segments(folder, chance, batches=25)
    damage(folder, stored, chance)
    log = open_log(folder)
    written = [offset for batch in stored for offset in range(batch.first_offset, batch.last_offset + 1)]
    end = log.end_offset(on_error="skip")
    for start in (None, chance.choice(stored).first_offset, stored[-1].last_offset):
        found = every_read(log, start)
        expected = found["read_uncommitted, 1 threads"]
        for name, (offsets, losses, count) in found.items():
            assert offsets == expected[0]
            assert name in ("one byte", "large splits") or (losses, count) == expected[1:]
            for offset in {one for one in written if (start or 0) <= one < end} - set(offsets):
                assert any(first <= offset and (last is None or offset < last) for first, last in losses), offset


def test_each_read_lists_a_torn_tail(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0), flip(plain(3), 70), plain(6), plain(9)[:80]]))
    for level in ("read_uncommitted", "read_committed"):
        for threads in (1, 2):
            for start, end, losses in (
                (None, None, [(3, 6), (9, None)]),
                (11, None, [(11, None)]),
                (None, 9, [(3, 6)]),
            ):
                options: Any = {"start_offset": start, "end_offset": end, "on_error": "skip", "threads": threads}
                chunks = iter(log.to_arrow(isolation_level=level, **options))
                assert read_of(chunks)[1] == losses
                assert (chunks.error is None) == (start == 11)


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_the_last_split_lists_a_torn_tail(tmp_path: Path, max_bytes: int) -> None:
    log = open_log(partition(tmp_path, [plain(0), flip(plain(3), 70), plain(6), plain(9)[:80]]))
    assert in_splits(log, max_bytes)[1] == [(3, 6), (9, None)]
    assert in_splits(log, max_bytes, 11)[1] == [(11, None)]
    for end, count in ((None, 1), (10, 1), (9, 0)):
        splits = log.splits(max_bytes, end_offset=end, on_error="skip")
        assert [split.tail is not None for split in splits[:-1]] == [False] * (len(splits) - 1)
        verdict = log.verdict(on_error="skip")
        found = [loss for split in splits for loss in read_of(read_split(split, verdict, on_error="skip"))[1]]
        assert found.count((9, None)) == count


def test_a_log_with_only_a_torn_tail_has_a_split_for_its_loss(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [plain(0)[:80]]))
    assert every_read(log)["one byte"] == every_read(log)["read_uncommitted, 1 threads"] == ([], [(0, None)], 0)
    assert log.splits() == []
