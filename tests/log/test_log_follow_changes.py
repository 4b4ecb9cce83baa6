# SPDX-License-Identifier: Apache-2.0
"""follow=True while files change under the reader: retention, compaction, truncation, damage that comes to light."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from follow_story import BATCHES, QUICK, Script, appending, file_of, follow
from log_files import COMMIT, data, marker, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import growth

# ------------------------------------------------------------------------------------------- what happens to the files


def test_segments_that_were_read_may_be_deleted(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:4], BATCHES[4:6])
    steps = [
        lambda: None,
        lambda: None,
        lambda: None,
        file_of(directory).unlink,
        lambda: file_of(directory, 6).rename(directory / f"{6:020d}.log.deleted"),
        appending(file_of(directory, 12), BATCHES[6]),
    ]
    assert follow(directory, Script(*steps, looks=8)) == list(range(21))


def test_a_segment_that_is_deleted_before_it_was_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    directory = partition(tmp_path, BATCHES[:4], BATCHES[4:8])
    records = open_log(directory).records(follow=True, poll_interval=QUICK)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    file_of(directory).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"0\.log: the segment was deleted while .* offset 3 on .* now begins at offset 12"
    ):
        list(records)


def test_held_back_records_that_are_deleted_are_an_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0), data(7, 3)], [plain(5)])
    steps = [lambda: None, lambda: None, lambda: None, file_of(directory).unlink]
    steps += [appending(file_of(directory, 5), marker(COMMIT, 7, 8))]
    with pytest.raises(
        FileNotFoundError,
        match=r"0\.log: the segment was deleted while the log was followed, .* offset 3 on were not read",
    ):
        follow(directory, Script(*steps, looks=8), "read_committed")


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2])
    steps = [lambda: None, lambda: directory.rename(tmp_path / "orders-0.0123456789abcdef-delete")]
    with pytest.raises(FileNotFoundError, match="orders-0: the partition's directory was deleted"):
        follow(directory, Script(*steps))


def cut(path: Path, size: int, content: bytes = b"") -> Callable[[], None]:
    def truncate() -> None:
        with path.open("rb+") as file:
            file.truncate(size)
            file.seek(size)
            file.write(content)

    return truncate


def test_a_torn_tail_that_is_cut_off_and_written_again_is_followed(tmp_path: Path) -> None:
    """What a broker does when it comes back after a crash."""
    directory = partition(tmp_path, [*BATCHES[:2], BATCHES[2][:70]])
    whole = len(BATCHES[0] + BATCHES[1])
    other = plain(6, count=1, size=5)
    steps = [lambda: None, cut(file_of(directory), whole), cut(file_of(directory), whole, other)]
    assert follow(directory, Script(*steps)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (
            b"",
            kcodec.TruncatedError,
            r"batches below offset 9 were read, up to byte \d+, but the file now ends at byte \d+",
        ),
        (BATCHES[1] + plain(6) + plain(9, size=500), kcodec.DecodeError, "now another batch is at this position"),
    ],
    ids=["shorter", "rewritten"],
)
def test_a_log_truncated_below_what_was_read_is_an_error(
    tmp_path: Path, content: bytes, kind: type[kcodec.DecodeError], text: str
) -> None:
    directory = partition(tmp_path, BATCHES[:3])
    steps = [lambda: None, lambda: None, cut(file_of(directory), len(BATCHES[0]), content)]
    with pytest.raises(kind, match=f"the log was truncated while it was followed: .*{text}") as caught:
        follow(directory, Script(*steps))
    assert caught.value.path == str(file_of(directory))


def test_a_log_truncated_by_a_whole_segment_is_an_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:3])
    steps = [lambda: None, lambda: None, lambda: None, file_of(directory, 6).unlink]
    with pytest.raises(kcodec.DecodeError, match="batches below offset 9 were read, but the log now ends at offset 6"):
        follow(directory, Script(*steps, looks=8))


def test_a_log_that_begins_again_is_an_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:2])

    def rewrite() -> None:
        file_of(directory).unlink()
        file_of(directory, 30).write_bytes(BATCHES[10])

    with pytest.raises(FileNotFoundError, match="offset 6 on were not read; the log now begins at offset 30"):
        follow(directory, Script(lambda: None, lambda: None, rewrite))


@pytest.mark.parametrize("merged", [False, True])
def test_compaction_behind_the_reader_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    """The segment that is being read is replaced by a smaller one, or becomes part of the one before it."""
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:8], BATCHES[8:])
    records = open_log(directory).records(follow=True, poll_interval=QUICK, stop=Script(looks=30))
    assert [next(records).offset for _ in range(12)] == list(range(12))
    if merged:
        file_of(directory).write_bytes(BATCHES[1] + BATCHES[3] + BATCHES[5] + BATCHES[6])
        file_of(directory, 6).unlink()
        left = [15, 16, 17, 18, 19, 20]
    else:
        file_of(directory, 6).write_bytes(BATCHES[3] + BATCHES[4] + BATCHES[7])
        left = [12, 13, 14, 21, 22, 23]
    assert [record.offset for record in records] == left + list(range(24, 36))


@pytest.mark.parametrize("read", [0, 3], ids=["to come", "being read"])
def test_a_segment_on_its_way_to_its_name_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    directory = partition(tmp_path, BATCHES[:2], BATCHES[2:4], BATCHES[4:])
    path = file_of(directory, 3 * 2 - 6 if read else 6)
    swap = path.with_suffix(".log.swap")
    idle = [lambda: None] * 10
    if not read:
        path.rename(swap)
        assert follow(directory, Script(*idle, lambda: swap.rename(path), looks=60)) == list(range(36))
        return
    records = open_log(directory).records(
        follow=True,
        poll_interval=QUICK,
        stop=Script(*idle, lambda: swap.rename(path), looks=60),
    )
    assert [next(records).offset for _ in range(read)] == [0, 1, 2]
    path.rename(swap)
    assert [record.offset for record in records] == list(range(3, 36))


def test_a_gap_that_the_cleaner_left_between_segments_is_crossed(tmp_path: Path) -> None:
    directory = partition(tmp_path, BATCHES[:1], BATCHES[5:6], BATCHES[9:])
    assert follow(directory, Script(looks=20)) == [0, 1, 2, 15, 16, 17, *range(27, 36)]


# -------------------------------------------------------------------------------------------------------------- damage


def flip(batch: bytes, at: int = 65) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def until_damage(directory: Path, script: Callable[[], bool], **options: Any) -> tuple[list[int], kcodec.DecodeError]:
    found = []
    with pytest.raises(kcodec.DecodeError) as caught:
        for record in open_log(directory).records(follow=True, poll_interval=QUICK, stop=script, **options):
            found.append(record.offset)
    return found, caught.value


@pytest.mark.parametrize("large", [False, True])
def test_a_bad_crc_that_a_batch_follows_is_corruption(tmp_path: Path, large: bool) -> None:
    damaged = flip(plain(3, size=2000 if large else 10))
    directory = partition(tmp_path, [BATCHES[0]])
    steps = [appending(file_of(directory), damaged), lambda: None, appending(file_of(directory), plain(6))]
    found, error = until_damage(directory, Script(*steps, looks=20))
    assert found == [0, 1, 2]
    assert isinstance(error, kcodec.CorruptBatchError)
    assert (error.position, error.path) == (len(BATCHES[0]), str(file_of(directory)))


@pytest.mark.parametrize("timeout", [0, None])
def test_no_batch_at_all_is_corruption_even_at_the_end_of_time(tmp_path: Path, timeout: float | None) -> None:
    directory = partition(tmp_path, [BATCHES[0], BATCHES[1][:16] + b"\x09" + BATCHES[1][17:]])
    found, error = until_damage(directory, Script(looks=20), timeout=timeout)
    assert found == [0, 1, 2]
    assert error.position == len(BATCHES[0])


@pytest.mark.parametrize("rest", [BATCHES[1][:50], b"\0" * 100, flip(BATCHES[1])], ids=["cut", "zeros", "crc"])
def test_what_is_waited_for_is_corruption_once_the_segment_was_rolled(tmp_path: Path, rest: bytes) -> None:
    directory = partition(tmp_path, [BATCHES[0], rest])
    steps = [lambda: None, lambda: None, lambda: None, appending(file_of(directory, 6), BATCHES[2])]
    found, error = until_damage(directory, Script(*steps, looks=20))
    assert found == [0, 1, 2]
    assert error.position == len(BATCHES[0])


def test_offsets_of_closed_segments_must_rise(tmp_path: Path) -> None:
    directory = partition(tmp_path, [BATCHES[0], BATCHES[1]], [BATCHES[2], BATCHES[1]], [BATCHES[4]])
    found, error = until_damage(directory, Script(looks=20))
    assert found == list(range(9))
    assert "base_offset 3 is not above 8" in str(error)


@pytest.mark.parametrize("at", [70, 30], ids=["records", "header"])
def test_a_torn_batch_before_many_zeros_resolves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A preallocated file is many steps longer than what is written in it."""
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    whole = marker(COMMIT, 7, 6)
    batches = [data(7, 0, size=40), plain(2), plain(5, count=1)]
    directory = partition(tmp_path, [*batches, whole[:at], b"\0" * 5000])
    path, position = file_of(directory), sum(len(batch) for batch in batches)

    def complete() -> None:
        with path.open("rb+") as file:
            file.seek(position)
            file.write(whole)

    came: list[int] = []
    seen: list[int] = []
    script = Script(*[lambda: None] * 12, lambda: seen.append(len(came)), complete, looks=20)
    for record in open_log(directory).records("read_committed", follow=True, poll_interval=QUICK, stop=script):
        came.append(record.offset)
    assert seen == [0]
    assert came == [0, 1, 2, 3, 4, 5]


def test_a_batch_larger_than_a_step_is_waited_for_without_haste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    large = plain(3, count=1, size=3000)
    directory = partition(tmp_path, [plain(0), large[:2000]])
    steps = [*[lambda: None] * 10, appending(file_of(directory), large[2000:])]
    begin = time.monotonic()
    assert follow(directory, Script(*steps), poll_interval=0.01) == [0, 1, 2, 3]
    assert time.monotonic() - begin > 0.08  # a rest at each look
