# SPDX-License-Identifier: Apache-2.0
"""follow=True while the log cleaner replaces or merges segments that were walked and not delivered yet."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from follow_story import QUICK, Script, appending, cleaned, cleaning, file_of, follow
from log_files import ABORT, COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import growth

SEEDS = range(2000 if os.environ.get("KCODEC_PROFILE") == "long" else 40)
Step = Callable[[], object]


def held_log(folder: Path) -> Path:
    """Return a log whose open transaction, which begins at offset 3, holds back all later records."""
    return partition(folder, [plain(0)], [data(7, 3), plain(5)], [plain(8), plain(11)], [plain(14)], [plain(17)])


def idle(count: int) -> list[Step]:
    return [lambda: None] * count


@pytest.mark.parametrize(
    ("first", "others", "removed"),
    [
        (8, (), range(8, 11)),
        (8, (), [9, 11, 12]),
        (3, (), [5, 6]),
        (3, (8,), [6, 8, 9, 10]),
        (8, (14,), [*range(8, 14), 15]),
        (0, (3, 8, 14), [0, 1, 2, 7, 9, 13, 14]),
        (8, (14,), range(8, 17)),
    ],
    ids=["first batch", "records", "the transaction's", "two", "two more", "all closed", "emptied"],
)
@pytest.mark.parametrize("control_type", [COMMIT, ABORT], ids=["commit", "abort"])
def test_held_back_segments_may_be_compacted(
    tmp_path: Path, first: int, others: tuple[int, ...], removed: Collection[int], control_type: int
) -> None:
    directory = held_log(tmp_path)
    last = file_of(directory, 17)
    steps = [*idle(8), cleaning(directory, first, *others, removed=removed)]
    found = follow(directory, Script(*steps, appending(last, marker(control_type, 7, 20)), looks=30), "read_committed")
    assert found == [0, 1, 2, *(each for each in offsets(open_log(directory), "read_committed") if each > 2)]
    assert set(range(3, 20)) - set(removed) - set(found) == ({3, 4} if control_type == ABORT else set())


def test_a_segment_may_be_compacted_while_it_is_delivered(tmp_path: Path) -> None:
    """The caller processes the records of one segment while the cleaner replaces the next ones."""
    directory = held_log(tmp_path)
    last = file_of(directory, 17)
    script = Script(*idle(8), appending(last, marker(COMMIT, 7, 20)), looks=30)
    found = []
    for record in open_log(directory).records("read_committed", follow=True, poll_interval=QUICK, stop=script):
        found.append(record.offset)
        if record.offset == 5:
            cleaning(directory, 8, removed=[8])()
            cleaning(directory, 3, removed=[3, 6])()
        if record.offset == 12:
            cleaning(directory, 8, 14, removed=[9, 12, 15])()
    assert found == [*range(8), *range(9, 15), 16, *range(17, 20)]


def test_a_second_transaction_is_found_in_a_compacted_segment(tmp_path: Path) -> None:
    """Its position was found in the segment that has been replaced."""
    directory = partition(tmp_path, [data(7, 0), plain(2), plain(5)], [plain(8), data(8, 11), plain(13)], [plain(16)])
    last = file_of(directory, 16)
    steps = [
        *idle(8),
        cleaning(directory, 8, removed=[8, 9, 14]),
        appending(last, marker(COMMIT, 7, 19)),
        *idle(3),
        cleaning(directory, 8, removed=[10, 13]),
        appending(last, marker(COMMIT, 8, 20)),
    ]
    seen: list[tuple[int, int]] = []
    script = Script(*steps, looks=30)
    for record in open_log(directory).records("read_committed", follow=True, poll_interval=QUICK, stop=script):
        seen.append((record.offset, file_of(directory, 8).stat().st_size))
    assert [offset for offset, _ in seen] == [*range(8), 10, 11, 12, 15, *range(16, 19)]
    assert seen[8][1] > seen[9][1]


def test_a_segment_that_is_followed_alone_may_be_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "STEP_BYTES", 100)
    directory = partition(tmp_path, [plain(0), plain(3), plain(6), plain(9)], [plain(12)])
    records = open_log(file_of(directory)).records(follow=True, poll_interval=QUICK, stop=Script(looks=30))
    assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
    cleaning(directory, 0, removed=[0, 1, 2, 7])()
    assert [record.offset for record in records] == [4, 5, 6, 8, 9, 10, 11]


def test_held_back_segments_that_are_on_their_way_are_waited_for(tmp_path: Path) -> None:
    directory = held_log(tmp_path)
    path = file_of(directory, 8)
    swap = path.with_suffix(".log.swap")

    def rename() -> None:
        swap.write_bytes(cleaned(path.read_bytes(), [9, 10]))
        path.unlink()

    marked = appending(file_of(directory, 17), marker(COMMIT, 7, 20))
    script = Script(*idle(8), rename, marked, *idle(5), lambda: swap.rename(path), looks=30)
    assert follow(directory, script, "read_committed", timeout=0) == [*range(3)]
    swap.unlink(missing_ok=True)
    path.write_bytes(plain(8) + plain(11))
    file_of(directory, 17).write_bytes(plain(17))
    script = Script(*idle(8), rename, marked, *idle(5), lambda: swap.rename(path), looks=30)
    assert follow(directory, script, "read_committed") == [*range(9), *range(11, 20)]


def test_corruption_in_a_compacted_segment_is_reported(tmp_path: Path) -> None:
    directory = held_log(tmp_path)
    corrupt = bytearray(plain(8) + plain(11))
    corrupt[len(plain(8)) + 70] ^= 1
    steps = [*idle(8), lambda: file_of(directory, 8).write_bytes(bytes(corrupt)[: len(plain(8)) + 80])]
    script = Script(*steps, appending(file_of(directory, 17), marker(COMMIT, 7, 20)), looks=30)
    found = []
    with pytest.raises(kcodec.DecodeError) as caught:
        for record in open_log(directory).records("read_committed", follow=True, poll_interval=QUICK, stop=script):
            found.append(record.offset)
    assert found == list(range(11))
    assert (caught.value.path, caught.value.position) == (str(file_of(directory, 8)), len(plain(8)))


# ------------------------------------------------------------------------------------------------------ random changes


class Broker:
    """A broker that appends batches of three producers at random, and compacts closed segments."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        directory.mkdir()
        self.directory = directory
        self.bases: list[int] = []
        self._chance = chance
        self._offset = 0
        self._open: dict[int, int] = {}
        self.append()

    def append(self) -> None:
        chance, count = self._chance, self._chance.randrange(1, 5)
        producer_id = chance.choice([None, None, 7, 8])
        if producer_id is None:
            batch = plain(self._offset, count)
        elif chance.random() < 0.5:
            self._open.setdefault(producer_id, self._offset)
            batch = data(producer_id, self._offset, count)
        else:
            count = 1
            self._open.pop(producer_id, None)
            batch = marker(chance.choice([COMMIT, ABORT]), producer_id, self._offset)
        if not self.bases or chance.random() < 0.25:
            self.bases.append(self._offset)
        appending(file_of(self.directory, self.bases[-1]), batch)()
        self._offset += count

    def clean(self) -> None:
        """Compact one closed segment, or two together, below the last stable offset."""
        if len(self.bases) < 2:
            return
        at = self._chance.randrange(len(self.bases) - 1)
        first, *others = self.bases[at : min(at + self._chance.choice([1, 1, 2]), len(self.bases) - 1)]
        following = self.bases[at + 1 + len(others)]
        if following > min(self._open.values(), default=self._offset):
            return
        removed = {offset for offset in range(first, following) if self._chance.random() < 0.4}
        cleaning(self.directory, first, *others, removed=removed)()
        self.bases = [base for base in self.bases if base not in others]

    def step(self) -> None:
        if self._chance.random() < 0.6:
            self.append()
        else:
            self.clean()


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_compacted_log_is_followed_without_loss(tmp_path: Path, seed: int, isolation_level: str) -> None:
    chance = random.Random(seed)
    broker = Broker(tmp_path / "orders-0", chance)
    steps = [broker.step] * chance.randrange(5, 60)
    found = follow(broker.directory, Script(*steps, looks=40), isolation_level)
    assert found == sorted(set(found))
    assert set(offsets(open_log(broker.directory), isolation_level)) <= set(found)


# -------------------------------------------------------------------------------------------------------- cut segments


def cut_log(folder: Path) -> Path:
    """Return a log whose first segment ends before the last batch of its index."""
    directory = partition(folder, [plain(0), plain(3), plain(6)], [plain(10)])
    size = len(plain(0))
    file_of(directory).write_bytes(plain(0))
    index = struct.pack(">ii", 5, size) + struct.pack(">ii", 8, 2 * size)
    file_of(directory).with_suffix(".index").write_bytes(index)
    return directory


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("is_alone", [False, True], ids=["directory", "file"])
def test_a_closed_segment_cut_between_batches_ends_follow(tmp_path: Path, isolation_level: str, is_alone: bool) -> None:
    directory = cut_log(tmp_path)
    path = file_of(directory) if is_alone else directory
    found = []
    with pytest.raises(kcodec.TruncatedError, match="the segment was cut between two batches: it ends at byte"):
        for record in open_log(path).records(isolation_level, follow=True, stop=Script(looks=9), poll_interval=QUICK):
            found.append(record.offset)
    assert found == [0, 1, 2]


def test_the_index_of_a_segment_that_was_replaced_is_no_cut(tmp_path: Path) -> None:
    """The cleaner renames the segment before its index, so that the index may belong to the old segment."""
    directory = cut_log(tmp_path)
    index = file_of(directory).with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 2, 10) + struct.pack(">ii", 8, 2 * len(plain(0))))
    assert follow(directory, Script(looks=20)) == [0, 1, 2, 10, 11, 12]
