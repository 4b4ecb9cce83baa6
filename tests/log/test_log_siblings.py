# SPDX-License-Identifier: Apache-2.0
"""Partition directories of brokers that died while the cleaner was at work: every state on its way, and states that
never were, as Kafka's own log loader takes them up."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from batch_writer import BASE_TIMESTAMP, RecordSpec, build_batch
from java_internals import loaded_log
from java_judge import JavaJudge
from log_files import partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import Log, open_partition

LONG = os.environ.get("KCODEC_PROFILE") == "long"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def batch(value: bytes, *offsets: int) -> bytes:
    """One batch with records at these offsets, as compaction leaves it."""
    records = [RecordSpec(b"%d" % offset, value, offset_delta=offset - offsets[0]) for offset in offsets]
    return build_batch(records, base_offset=offsets[0], base_timestamp=BASE_TIMESTAMP)


def segment(value: bytes, *batches: Sequence[int]) -> bytes:
    return b"".join(batch(value, *offsets) for offsets in batches)


@dataclass
class Cleaning:
    """Segments, and those that are to replace some of them."""

    originals: dict[int, bytes]
    replaced: list[int]
    new: dict[int, bytes]
    files: dict[str, bytes] = field(default_factory=dict)

    def rename(self, base_offset: int, before: str, behind: str) -> Iterator[dict[str, bytes]]:
        """The files of a segment, one after the other (LogSegment.changeFileSuffixes)."""
        for suffix in SUFFIXES:
            name = f"{base_offset:020d}{suffix}"
            if name + before in self.files:
                self.files[name + behind] = self.files.pop(name + before)
                yield dict(self.files)

    def states(self) -> Iterator[dict[str, bytes]]:
        """The files after every step of LocalLog.replaceSegments."""
        for base, content in self.originals.items():
            self.files |= {f"{base:020d}.log": content, f"{base:020d}.index": b"", f"{base:020d}.timeindex": b""}
        yield dict(self.files)
        for base, content in self.new.items():
            self.files |= {f"{base:020d}.log.cleaned": content[: len(content) // 2], f"{base:020d}.index.cleaned": b""}
            yield dict(self.files)
            self.files |= {f"{base:020d}.log.cleaned": content, f"{base:020d}.timeindex.cleaned": b""}
            yield dict(self.files)
        for base in sorted(self.new, reverse=True):
            yield from self.rename(base, ".cleaned", ".swap")
        for base in self.replaced:
            yield from self.rename(base, "", ".deleted")
        for base in sorted(self.new):
            yield from self.rename(base, ".swap", "")
        for name in [name for name in self.files if name.endswith(".deleted")]:
            del self.files[name]
            yield dict(self.files)


def cleaned_two_into_one() -> Cleaning:
    originals = {0: segment(b"old", range(5), range(5, 10)), 10: segment(b"old", range(10, 20))}
    originals[20] = segment(b"old", range(20, 25))
    return Cleaning(originals, [0, 10], {0: segment(b"new", (1, 4), (7,), (12, 19))})


def cleaned_with_an_emptied_end() -> Cleaning:
    """The last segment of the group has no record left: the new segment ends below where it began."""
    originals = {base: segment(b"old", range(base, base + 10)) for base in (0, 10, 20, 30)}
    return Cleaning(originals, [0, 10, 20], {0: segment(b"new", (3, 8), (11,))})


def cleaned_to_nothing() -> Cleaning:
    originals = {base: segment(b"old", range(base, base + 10)) for base in (0, 10, 20)}
    return Cleaning(originals, [0, 10], {0: b""})


def split_in_two() -> Cleaning:
    """A segment whose offsets were too far apart is split (LocalLog.splitOverflowedSegment)."""
    originals = {0: segment(b"old", range(5), range(5, 12), range(12, 15)), 15: segment(b"old", range(15, 18))}
    return Cleaning(originals, [0], {0: segment(b"new", range(5)), 5: segment(b"new", range(5, 12), range(12, 15))})


def write(folder: Path, files: dict[str, bytes]) -> Path:
    directory = folder / "orders-0"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def shown(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records()]


MAKERS = [cleaned_two_into_one, cleaned_with_an_emptied_end, cleaned_to_nothing, split_in_two]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_state_of_a_cleaning_is_read_as_a_broker_takes_it_up(
    tmp_path: Path, make: Callable[[], Cleaning], judge: JavaJudge
) -> None:
    cleaning = make()
    old, new = cleaning.originals, cleaning.new
    before = [b"old"] * sum(content.count(b"old") for content in old.values())
    kept = sum(old[base].count(b"old") for base in old if base not in cleaning.replaced)
    seen = set()
    for files in cleaning.states():
        ours = open_partition(write(tmp_path / "ours", files))
        records, bases = shown(ours), [one.base_offset for one in ours.segments]
        loaded = loaded_log(judge, write(tmp_path / "kafka", files))
        assert loaded.error is None
        assert (bases, records) == (loaded.segments, loaded.records), sorted(files)
        offsets = [offset for offset, _ in records]
        assert offsets == sorted(set(offsets))
        seen.add(b"".join(value or b"" for _, value in records))
    fresh = sum(content.count(b"new") for content in new.values())
    assert b"".join(before) in seen
    assert b"new" * fresh + b"old" * kept in seen


def test_made_up_states_are_read_as_a_broker_takes_them_up_or_refused(tmp_path: Path, judge: JavaJudge) -> None:
    chance = random.Random(7)
    refused = 0
    for _ in range(600 if LONG else 25):
        files: dict[str, bytes] = {}
        base = 0
        for _ in range(chance.randrange(2, 6)):
            count = chance.randrange(1, 6)
            for suffix in chance.sample(["", ".swap", ".cleaned", ".deleted"], chance.randrange(1, 4)):
                reach = count + (chance.randrange(4) if suffix == ".swap" and chance.random() < 0.3 else 0)
                value = {"": b"old", ".swap": b"new"}.get(suffix, b"not")
                files[f"{base:020d}.log{suffix}"] = segment(value, range(base, base + reach))
            base += count
        files[f"{base:020d}.log"] = segment(b"end", range(base, base + 2))
        directory = write(tmp_path / "ours", files)
        loaded = loaded_log(judge, write(tmp_path / "kafka", files))
        offsets = [offset for offset, _ in loaded.records]
        if offsets != sorted(set(offsets)):
            refused += 1
            with pytest.raises(kcodec.DecodeError, match="one of the two files does not belong"):
                shown(open_partition(directory))
            continue
        assert loaded.error is None
        assert shown(open_partition(directory)) == loaded.records, sorted(files)
    assert refused > 0


def test_a_swap_that_reaches_into_the_next_segment_is_refused_by_name(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)], [plain(6)])
    (directory / f"{0:020d}.log").rename(directory / f"{0:020d}.log.deleted")
    (directory / f"{3:020d}.log.swap").write_bytes(plain(3))
    (directory / f"{0:020d}.log").write_bytes(plain(0, count=5))
    with pytest.raises(kcodec.DecodeError) as caught:
        kcodec.open(directory)
    assert str(caught.value) == (
        f"{directory}/{3:020d}.log.swap: the segment begins at offset 3, but the segment before it, {0:020d}.log, has "
        "offsets up to 4: one of the two files does not belong to this log; open each file separately to see which"
    )


def test_overlapping_segments_are_refused_when_they_are_walked(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0, count=5)], [plain(3)])
    log = open_partition(directory)
    for ask in (lambda: log.transactions, lambda: log.splits(), lambda: list(log.records("read_committed"))):
        with pytest.raises(
            kcodec.DecodeError, match=r"begins at offset 3, but the segment before it, 0+.log, has offsets up to 4"
        ):
            ask()


def test_a_swap_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)])
    (directory / f"{0:020d}.log.swap").write_bytes(b"\xff" * 100)
    with pytest.raises(kcodec.DecodeError, match=r"log\.swap: batch at byte 0"):
        kcodec.open(directory)


def test_a_segment_by_name_is_that_file_whatever_lies_next_to_it(tmp_path: Path) -> None:
    directory = partition(tmp_path, [plain(0)], [plain(3)])
    (directory / f"{0:020d}.log.swap").write_bytes(plain(1, count=1))
    assert [record.offset for record in open_log(directory / f"{0:020d}.log").records()] == [0, 1, 2]
    assert [record.offset for record in open_log(directory).records()] == [1, 3, 4, 5]
