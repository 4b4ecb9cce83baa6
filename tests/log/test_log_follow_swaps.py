# SPDX-License-Identifier: Apache-2.0
"""follow=True in a directory with ``.swap`` files: of a broker that died, and of a cleaner that is running."""

from __future__ import annotations

from pathlib import Path

import pytest
from follow_story import BATCHES, QUICK, Script, appending, file_of, follow
from log_files import offsets, partition, plain
from opened_logs import open_log

import kcodec


def swap_of(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log.swap"


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_swap_that_a_dead_broker_left_is_read(tmp_path: Path, timeout: float) -> None:
    directory = partition(tmp_path, BATCHES[:1], BATCHES[4:5], BATCHES[5:6])
    file_of(directory).rename(swap_of(directory, 0))
    (directory / f"{0:020d}.log.deleted").write_bytes(b"".join(BATCHES[:4]))
    expected = [0, 1, 2, *range(12, 18)]
    for level in ("read_uncommitted", "read_committed"):
        assert (
            follow(directory, lambda: False, level, timeout=timeout) == expected == offsets(open_log(directory), level)
        )


def test_a_swap_replaces_the_segment_of_its_name(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:1], BATCHES[1:4], BATCHES[4:5])
    swap_of(directory, 3).write_bytes(BATCHES[2])
    expected = [0, 1, 2, *range(6, 9), *range(12, 15)]
    assert follow(directory, lambda: False, timeout=0) == expected == offsets(open_log(directory))


def test_an_ignored_swap_does_not_stop_at_a_gap(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:1], BATCHES[3:4], BATCHES[6:7])
    swap_of(directory, 9).write_bytes(plain(9, count=1))
    (directory / f"{9:020d}.log.abc.cleaned").write_bytes(plain(9, count=1))
    assert follow(directory, lambda: False, timeout=0) == [0, 1, 2, *range(9, 12), *range(18, 21)]


def test_following_goes_on_when_the_broker_starts_again(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:1], BATCHES[1:4], BATCHES[4:5])
    swap_of(directory, 3).write_bytes(BATCHES[2])
    idle = [lambda: None] * 3
    steps = [
        *idle,
        file_of(directory, 3).unlink,
        lambda: swap_of(directory, 3).rename(file_of(directory, 3)),
        appending(file_of(directory, 12), BATCHES[5]),
    ]
    assert follow(directory, Script(*steps, looks=20)) == [0, 1, 2, *range(6, 9), *range(12, 18)]


def test_a_swap_that_stays_is_read_after_some_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcodec.log.growth.STEP_BYTES", 50)
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:4], BATCHES[4:5])
    records = open_log(directory).records(follow=True, timeout=0, poll_interval=QUICK)
    assert next(records).offset == 0
    swap_of(directory, 6).write_bytes(BATCHES[3])
    file_of(directory, 6).rename(directory / f"{6:020d}.log.deleted")
    assert [record.offset for record in records] == [*range(1, 6), *range(9, 15)]


def test_timeout_does_not_end_while_segments_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcodec.log.growth.STEP_BYTES", 50)
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:4], BATCHES[4:5])
    path, swap = file_of(directory, 6), swap_of(directory, 6)
    records = open_log(directory).records(
        follow=True,
        timeout=0,
        poll_interval=QUICK,
        stop=Script(*[lambda: None] * 8, lambda: swap.rename(path), looks=99),
    )
    assert next(records).offset == 0
    path.rename(swap)
    assert [record.offset for record in records] == list(range(1, 15))


def test_a_swap_that_stays_and_is_corrupt_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcodec.log.growth.STEP_BYTES", 50)
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:4], BATCHES[4:5])
    records = open_log(directory).records(follow=True, timeout=0, poll_interval=QUICK)
    assert next(records).offset == 0
    file_of(directory, 6).unlink()
    swap_of(directory, 6).write_bytes(b"\xff" * 100)
    with pytest.raises(kcodec.DecodeError, match=r"log\.swap"):
        list(records)
