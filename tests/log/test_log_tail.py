# SPDX-License-Identifier: Apache-2.0
"""A torn tail ends the active segment; damage is an error everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_data
import pytest
from batch_writer import fix_crc
from legacy_writer import MessageSpec, build_message
from log_files import COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import Log, Tail, segment

FIRST, SECOND, THIRD = plain(0), plain(3), plain(6)
START = len(FIRST) + len(SECOND)
LEVELS = ("read_uncommitted", "read_committed")


def flip(batch: bytes, at: int = 70) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def opened(folder: Path, *batches: bytes, **options: Any) -> Log:
    return open_log(partition(folder, batches), **options)


def assert_ends_at(log: Log, position: int, expected: list[int], reason: str) -> None:
    size = log.size_in_bytes
    for level in LEVELS:
        assert offsets(log, level) == expected
    tail = log.tail
    assert isinstance(tail, Tail)
    assert tail[:2] == (position, size - position)
    assert reason in tail.reason
    assert log.log_end_offset == (expected[-1] + 1 if expected else 0)
    assert [batch.base_offset for batch in log.batches] == expected[::3]
    assert sum(split.size_in_bytes for split in log.splits(1)) == position


def assert_damage(log: Log, kind: type[kcodec.DecodeError], position: int, before: list[int]) -> kcodec.DecodeError:
    """Every way of reading meets it; streams deliver what comes before."""
    found: list[int] = []
    with pytest.raises(kind) as caught:
        for record in log.records():
            found.append(record.offset)
    assert found == before
    assert (caught.value.position, caught.value.path) == (position, log.segments[0].path)
    stopped = iter(log.to_arrow(on_error="stop"))
    assert [record.offset for chunk in stopped for record in chunk.records()] == before
    assert str(stopped.error) == str(caught.value)
    return caught.value


@pytest.mark.parametrize("cut", range(1, len(THIRD)))
def test_a_last_batch_cut_anywhere_is_a_torn_tail(tmp_path: Path, cut: int) -> None:
    log = opened(tmp_path, FIRST, SECOND, THIRD[:cut])
    assert_ends_at(log, START, [0, 1, 2, 3, 4, 5], f"{cut} of" if cut > 7 else "zeros")


@pytest.mark.parametrize("name", ["txn-java-0", "plain-java-zstd-0", "compact-txn-0"])
def test_every_cut_of_a_brokers_last_batches_is_a_torn_tail(tmp_path: Path, name: str) -> None:
    truth = next(one for one in golden_data.partitions(2) if one.name == name and one.cluster == "tv2")
    last = truth.segments[-1]
    batches = [batch for batch in truth.batches if batch["file"] == last.name]
    content = last.read_bytes()
    path = tmp_path / "copy.log"
    for end in range(batches[-min(3, len(batches))]["position"], len(content)):
        path.write_bytes(content[:end])
        whole = [batch for batch in batches if batch["position"] + batch["size"] <= end]
        log = open_log(path)
        assert [batch.base_offset for batch in log.batches] == [batch["baseOffset"] for batch in whole]
        position = whole[-1]["position"] + whole[-1]["size"] if whole else 0
        assert (log.tail[:2] if log.tail else (end, 0)) == (position, end - position)
        reported = [record["offset"] for batch in whole if not batch["isControl"] for record in batch["records"]]
        assert offsets(log) == reported


@pytest.mark.parametrize("zeros", [1, 11, 12, 17, 61, 100, 3 << 20])
def test_zeros_to_the_end_are_a_torn_tail(tmp_path: Path, zeros: int) -> None:
    log = opened(tmp_path, FIRST, SECOND, b"\0" * zeros)
    assert_ends_at(log, START, [0, 1, 2, 3, 4, 5], "zeros")


def test_zeros_that_do_not_reach_the_end_are_corruption(tmp_path: Path) -> None:
    log = opened(tmp_path, FIRST, SECOND, b"\0" * 100 + b"\1")
    assert_damage(log, kcodec.DecodeError, START, [0, 1, 2, 3, 4, 5])
    with pytest.raises(kcodec.DecodeError, match=rf"byte {START} .*batch_length 0"):
        _ = log.tail


@pytest.mark.parametrize(
    "behind", [b"", b"\0" * 200, plain(9)[:80], plain(9)[:10]], ids=["end", "zeros", "cut", "stub"]
)
@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_last_whole_batch_with_a_bad_crc_is_a_torn_tail(tmp_path: Path, behind: bytes, check_crcs: bool) -> None:
    log = opened(tmp_path, FIRST, SECOND, flip(THIRD), behind, check_crcs=check_crcs)
    assert_ends_at(log, START, [0, 1, 2, 3, 4, 5], "wrong CRC")


def test_a_last_whole_batch_whose_header_was_torn_is_a_torn_tail(tmp_path: Path) -> None:
    for at in range(21, 61):
        log = open_log(partition(tmp_path / str(at), [FIRST, SECOND, flip(THIRD, at)]))
        assert_ends_at(log, START, [0, 1, 2, 3, 4, 5], "wrong CRC")


def test_a_large_last_batch_with_a_bad_crc_is_a_torn_tail(tmp_path: Path) -> None:
    large = plain(6, count=3, size=1 << 20)
    log = opened(tmp_path, FIRST, SECOND, flip(large, 2 << 20))
    assert_ends_at(log, START, [0, 1, 2, 3, 4, 5], "wrong CRC")


@pytest.mark.parametrize("size", [10, 70_000, (1 << 20) - 34, 1_500_000])
def test_a_short_old_message_behind_a_window_is_no_tail(tmp_path: Path, size: int) -> None:
    """It is shorter than a header of magic 2, and the window before it ends at its beginning, or short of it."""
    messages = [build_message(MessageSpec(value=b"v" * size)), build_message(MessageSpec(value=b"v"), 1)]
    log = opened(tmp_path, *messages)
    assert log.tail is None
    assert offsets(log) == offsets(log, "read_committed") == [0, 1]
    assert offsets(log, "read_committed", follow=True, timeout=0) == [0, 1]


def test_a_bad_crc_that_a_valid_batch_follows_is_corruption(tmp_path: Path) -> None:
    log = opened(tmp_path, FIRST, flip(SECOND), THIRD)
    error = assert_damage(log, kcodec.CorruptBatchError, len(FIRST), [0, 1, 2])
    assert error.next_offset == 6


def test_next_offset_is_none_where_the_next_header_does_not_agree(tmp_path: Path) -> None:
    log = opened(tmp_path, FIRST, flip(SECOND, 26), THIRD)  # last_offset_delta 2 becomes 3: the next begins at 6
    assert assert_damage(log, kcodec.CorruptBatchError, len(FIRST), [0, 1, 2]).next_offset is None


def test_two_bad_crcs_at_the_end_are_corruption(tmp_path: Path) -> None:
    assert_damage(opened(tmp_path, FIRST, flip(SECOND), flip(THIRD)), kcodec.CorruptBatchError, len(FIRST), [0, 1, 2])


def test_a_last_batch_whose_crc_is_right_but_records_are_not_is_corruption(tmp_path: Path) -> None:
    wrong = fix_crc(flip(THIRD, 61))
    assert_damage(opened(tmp_path, FIRST, SECOND, wrong), kcodec.DecodeError, START, [0, 1, 2, 3, 4, 5])


def test_a_length_that_leads_past_the_end_over_a_valid_batch_is_corruption(tmp_path: Path) -> None:
    longer = SECOND[:8] + (5000).to_bytes(4, "big") + SECOND[12:]
    log = opened(tmp_path, FIRST, longer, THIRD)
    error = assert_damage(log, kcodec.DecodeError, len(FIRST), [0, 1, 2])
    assert f"valid batch follows at byte {START}" in str(error)
    with pytest.raises(kcodec.DecodeError, match="the batch is corrupt, not incomplete"):
        _ = log.tail


def test_a_batch_behind_that_goes_back_in_offsets_proves_nothing(tmp_path: Path) -> None:
    longer = SECOND[:8] + (5000).to_bytes(4, "big") + SECOND[12:]
    assert_ends_at(opened(tmp_path, FIRST, longer, plain(1)), len(FIRST), [0, 1, 2], "incomplete")


def test_a_search_that_would_take_too_long_is_called_corruption(tmp_path: Path) -> None:
    limits = kcodec.DecodeLimits(max_batch_bytes=10_000)
    header = bytearray(plain(6, count=1)[:61])
    header[8:12] = (3000).to_bytes(4, "big")
    cut = SECOND[:8] + (9000).to_bytes(4, "big") + SECOND[12:] + bytes(header) * 100
    log = opened(tmp_path, FIRST, cut, limits=limits)
    error = assert_damage(log, kcodec.DecodeError, len(FIRST), [0, 1, 2])
    assert f"a search of {segment.SEARCH_BATCHES * 10_000} bytes" in str(error)


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        (THIRD[:40], kcodec.TruncatedError),
        (THIRD[:5], kcodec.TruncatedError),
        (flip(THIRD), kcodec.CorruptBatchError),
        (b"\0" * 100, kcodec.DecodeError),
        (plain(5), kcodec.DecodeError),
    ],
    ids=["cut", "stub", "crc", "zeros", "order"],
)
def test_in_an_earlier_segment_all_of_it_is_corruption(
    tmp_path: Path, tail: bytes, kind: type[kcodec.DecodeError]
) -> None:
    directory = partition(tmp_path, [FIRST, SECOND, tail], [plain(9)])
    before = [0, 1, 2, 3, 4, 5]
    for path in (directory, directory / f"{0:020d}.log"):
        assert_damage(open_log(path), kind, START, before)
    if kind is not kcodec.CorruptBatchError:
        for read in (lambda log: log.transactions, lambda log: list(log.batches)):
            with pytest.raises(kind):
                read(open_log(directory))


def test_an_earlier_segment_that_reaches_into_the_next_is_corruption(tmp_path: Path) -> None:
    directory = partition(tmp_path, [FIRST, SECOND], [plain(5), plain(8)], [plain(11)])
    log = open_log(directory)
    with pytest.raises(kcodec.DecodeError, match="base_offset 5 is not above 5") as caught:
        list(log.records())
    assert caught.value.path == log.segments[1].path
    for read in (lambda: log.transactions, lambda: list(log.batches)):
        with pytest.raises(kcodec.DecodeError, match="base_offset 5 is not above 5"):
            read()


def test_the_cut_of_an_earlier_segment_names_what_is_missing(tmp_path: Path) -> None:
    log = open_log(partition(tmp_path, [FIRST, THIRD[:100]], [plain(9)]))
    with pytest.raises(kcodec.TruncatedError) as caught:
        list(log.records())
    assert (caught.value.needed, caught.value.available) == (len(THIRD), 100)


def test_a_length_above_the_limit_is_no_torn_tail(tmp_path: Path) -> None:
    wild = THIRD[:8] + b"\x7f\xff\xff\xff" + THIRD[12:]
    assert_damage(opened(tmp_path, FIRST, SECOND, wild), kcodec.LimitExceededError, START, [0, 1, 2, 3, 4, 5])


def test_a_torn_marker_decides_nothing(tmp_path: Path) -> None:
    batches = [data(7, 0), data(8, 2), marker(COMMIT, 8, 4), flip(marker(COMMIT, 7, 5), 40)]
    log = opened(tmp_path, *batches)
    assert offsets(log, "read_committed") == []
    assert (log.last_stable_offset, log.log_end_offset) == (0, 5)
    assert log.tail is not None and "wrong CRC" in log.tail.reason


def test_a_corrupt_marker_is_refused_before_its_transaction_is_delivered(tmp_path: Path) -> None:
    damaged = flip(marker(COMMIT, 7, 2), 70)
    log = opened(tmp_path, data(7, 0), damaged, plain(3))
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        log.records("read_committed")
    assert caught.value.position == len(data(7, 0))


def test_skip_goes_on_behind_corruption_and_counts_it(tmp_path: Path) -> None:
    log = opened(tmp_path, FIRST, flip(SECOND), THIRD, plain(9)[:-1])
    chunks = iter(log.to_arrow(on_error="skip"))
    assert [record.offset for chunk in chunks for record in chunk.records()] == [0, 1, 2, 6, 7, 8]
    assert isinstance(chunks.error, kcodec.CorruptBatchError)
    assert (chunks.counts.batches, chunks.counts.skipped_batches, chunks.counts.records) == (3, 1, 6)


def test_skip_across_segments_and_into_the_end(tmp_path: Path) -> None:
    directory = partition(tmp_path, [FIRST, flip(SECOND)], [THIRD, flip(plain(9)), plain(12)])
    chunks = iter(open_log(directory).to_arrow(on_error="skip"))
    assert [record.offset for chunk in chunks for record in chunk.records()] == [0, 1, 2, 6, 7, 8, 12, 13, 14]
    assert chunks.counts.skipped_batches == 2
    assert [(loss.first_offset, loss.next_offset) for loss in chunks.losses] == [(3, 6), (9, 12)]


def spoilt(header: bytes) -> bytes:
    """Structure that cannot be read, with a length that leads to the next batch."""
    return header[:16] + b"\x03" + header[17:]


def test_skip_leaves_out_what_can_no_longer_be_resolved(tmp_path: Path) -> None:
    batches = [data(7, 0), data(8, 2), spoilt(marker(COMMIT, 7, 4)), data(7, 5), marker(COMMIT, 7, 7), plain(8)]
    batches += [marker(COMMIT, 8, 11), data(7, 12), marker(COMMIT, 7, 14)]
    log = opened(tmp_path, *batches)
    chunks = iter(log.to_arrow(isolation_level="read_committed", on_error="skip"))
    assert [record.offset for chunk in chunks for record in chunk.records()] == [8, 9, 10, 12, 13]
    assert chunks.counts == kcodec.Counts(
        batches=9, skipped_batches=1, records=5, aborted=0, control=3, undecided=6, out_of_range=0
    )
    stopped = iter(log.to_arrow(isolation_level="read_committed", on_error="stop"))
    assert [record.offset for chunk in stopped for record in chunk.records()] == []
    assert isinstance(stopped.error, kcodec.UnsupportedError)


def test_splits_under_skip_hand_the_corruption_to_who_reads_it(tmp_path: Path) -> None:
    from kcodec.log import read_split

    log = opened(tmp_path, FIRST, spoilt(SECOND), THIRD, plain(9))
    with pytest.raises(kcodec.UnsupportedError):
        log.splits(1)
    verdict = log.verdict("read_committed", on_error="skip")
    read = [
        read_split(split, verdict, isolation_level="read_committed", on_error="skip")
        for split in log.splits(1, on_error="skip")
    ]
    found = [record.offset for chunks in read for chunk in chunks for record in chunk.records()]
    assert found == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert sum(chunks.counts.skipped_batches for chunks in read) == 1


@pytest.mark.parametrize(
    "read", [lambda log: log.to_arrow(on_error="ignore"), lambda log: log.splits(on_error="ignore")]
)
def test_an_unknown_on_error_is_refused(tmp_path: Path, read: Callable[[Log], object]) -> None:
    with pytest.raises(ValueError, match="unknown on_error 'ignore'; possible: raise, stop, skip"):
        read(opened(tmp_path, FIRST))
