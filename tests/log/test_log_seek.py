# SPDX-License-Identifier: Apache-2.0
"""Beginning in the middle of a log: the records are those of a reading from the start, whatever the indexes say."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import golden_data
import pytest
from batch_writer import RecordSpec, build_batch
from golden_data import Partition
from index_files import write_indexes
from log_files import COMMIT, data, marker, offsets, partition, plain
from opened_logs import open_log

import kcodec
from kcodec.log import Log, read_offset_index, read_time_index, windows

PARTITIONS = golden_data.partitions(2) + golden_data.copies("live") + golden_data.copies("killed")
LONG = os.environ.get("KCODEC_PROFILE") == "long"
LEVELS = ("read_uncommitted", "read_committed")
Stamped = list[tuple[int, int]]


def first_at(records: Stamped, timestamp: int, start: int = 0) -> int | None:
    """The rule: the first record at or above the timestamp, in order of offsets."""
    return next((offset for offset, found in records if found >= timestamp and offset >= start), None)


def all_stamped(log: Log) -> Stamped:
    return [(one.offset, one.timestamp) for one in log.records(control_records="include")]


# -------------------------------------------------------------------------------------------------- what brokers wrote


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_reading_from_any_offset_gives_the_rest(partition: Partition, level: str) -> None:
    log = open_log(partition.path)
    whole = offsets(log, level)
    starts = range(log.log_start_offset, log.log_end_offset + 2)
    for start in starts[:: 1 + len(starts) // 60]:
        assert offsets(log, level, start_offset=start) == [offset for offset in whole if offset >= start]


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_the_offset_of_every_timestamp(partition: Partition) -> None:
    records = all_stamped(open_log(partition.path))
    for timestamp in sorted({found + more for _, found in records for more in (0, 1)})[::3]:
        expected = first_at(records, timestamp)
        assert open_log(partition.path).offset_for_timestamp(timestamp) == expected
        assert open_log(partition.path).offset_for_timestamp(timestamp, use_index=False) == expected


def test_the_index_writer_of_these_tests_writes_what_the_broker_wrote(tmp_path: Path) -> None:
    """Its index.interval.bytes was 2048, but for its own metadata."""
    for each in golden_data.partitions(2):
        for path in each.segments:
            copy = tmp_path / path.name
            copy.write_bytes(path.read_bytes())
            write_indexes(copy, interval=4096 if each.topic == "__cluster_metadata" else 2048)
            assert read_offset_index(copy.with_suffix(".index")) == read_offset_index(path.with_suffix(".index"))
            assert read_time_index(copy.with_suffix(".timeindex")) == read_time_index(path.with_suffix(".timeindex"))


# ----------------------------------------------------------------------------------------------------- lying indexes


def many(folder: Path, seed: int, *, ordered: bool) -> Log:
    """Three segments of batches of many sizes with indexes at every 300 bytes; timestamps rise, or do not."""
    dice = random.Random(seed)
    segments: list[list[bytes]] = [[], [], []]
    offset = 0
    for segment in segments:
        for _ in range(60):
            count = dice.randrange(1, 4)
            stamp = 1000 + offset * 10 if ordered else 1000 + dice.randrange(2000)
            specs = [RecordSpec(b"k", dice.randbytes(dice.randrange(60)), timestamp_delta=at) for at in range(count)]
            segment.append(build_batch(specs, base_offset=offset, base_timestamp=stamp))
            offset += count + (dice.random() < 0.1)
    directory = partition(folder, *segments)
    for path in directory.glob("*.log"):
        write_indexes(path, interval=300, preallocated=24 * 700 if path == max(directory.glob("*.log")) else 0)
    return open_log(directory)


def shift(layout: str, by: tuple[int, int]) -> Callable[[bytes], bytes]:
    """Every entry moved by these amounts."""

    def shifted(raw: bytes) -> bytes:
        return b"".join(struct.pack(layout, one + by[0], two + by[1]) for one, two in struct.iter_unpack(layout, raw))

    return shifted


def noise(seed: int) -> Callable[[bytes], bytes]:
    return lambda raw: random.Random(seed).randbytes(len(raw))


def flipped(seed: int) -> Callable[[bytes], bytes]:
    def flip(raw: bytes) -> bytes:
        dice, out = random.Random(seed), bytearray(raw)
        for _ in range(1 + len(raw) // 24):
            out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)
        return bytes(out)

    return flip


def shuffled(size: int, seed: int) -> Callable[[bytes], bytes]:
    def shuffle(raw: bytes) -> bytes:
        entries = [raw[at : at + size] for at in range(0, len(raw), size)]
        random.Random(seed).shuffle(entries)
        return b"".join(entries)

    return shuffle


LIES: dict[str, tuple[Callable[[bytes], bytes] | None, Callable[[bytes], bytes] | None]] = {
    "no files": (None, None),
    "empty": (lambda _: b"", lambda _: b""),
    "zeros": (lambda raw: bytes(len(raw)), lambda raw: bytes(len(raw))),
    "zeros behind the middle": (lambda raw: raw[:64] + bytes(8000), lambda raw: raw[:96] + bytes(12000)),
    "cut": (lambda raw: raw[: len(raw) // 2 + 3], lambda raw: raw[: len(raw) // 2 + 5]),
    "positions moved": (shift(">ii", (0, 1)), lambda raw: raw),
    "positions of the next": (shift(">ii", (0, 300)), lambda raw: raw),
    "offsets lowered": (shift(">ii", (-20, 0)), shift(">qi", (0, -20))),
    "offsets raised": (shift(">ii", (20, 0)), shift(">qi", (0, 20))),
    "timestamps lowered": (lambda raw: raw, shift(">qi", (-500, 0))),
    "timestamps raised": (lambda raw: raw, shift(">qi", (500, 0))),
    "noise": (noise(1), noise(2)),
    "more noise": (noise(3), noise(4)),
    "flipped bits": (flipped(5), flipped(6)),
    "more flipped bits": (flipped(7), flipped(8)),
    "shuffled": (shuffled(8, 1), shuffled(12, 2)),
    "every other": (
        lambda raw: b"".join(raw[at : at + 8] for at in range(0, len(raw), 16)),
        lambda raw: b"".join(raw[at : at + 12] for at in range(0, len(raw), 24)),
    ),
}


@pytest.mark.parametrize("seed", range(11, 19) if LONG else (11,))
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "in disorder"])
@pytest.mark.parametrize("name", ["true", "of another segment", *LIES])
def test_a_lying_index_never_gives_a_wrong_record(tmp_path: Path, name: str, ordered: bool, seed: int) -> None:
    log = many(tmp_path, seed, ordered=ordered)
    whole, records = offsets(log), all_stamped(log)
    paths = sorted(Path(log.path).glob("*.log"))
    for number, path in enumerate(paths):
        for which, suffix in enumerate((".index", ".timeindex")):
            file = path.with_suffix(suffix)
            if name == "of another segment":
                file.write_bytes(paths[number - 1].with_suffix(suffix).read_bytes())
            elif name != "true":
                lie = LIES[name][which]
                raw = file.read_bytes()
                if lie is None:
                    file.unlink()
                else:
                    file.write_bytes(lie(raw))
    for start in range(0, whole[-1] + 2, 3):
        for level in LEVELS:
            assert offsets(log, level, start_offset=start) == [offset for offset in whole if offset >= start]
    for timestamp in range(990, max(found for _, found in records) + 3, 37):
        assert open_log(log.path).offset_for_timestamp(timestamp) == first_at(records, timestamp)


def test_an_index_that_points_at_a_batch_inside_a_value_is_not_believed(tmp_path: Path) -> None:
    inner = plain(7, 1)
    outer = [plain(0), build_batch([RecordSpec(b"", b"-" * 50 + inner + b"-" * 50)], base_offset=3), plain(4), plain(8)]
    directory = partition(tmp_path, outer)
    path = directory / f"{0:020d}.log"
    inside = path.read_bytes().index(inner)
    path.with_suffix(".index").write_bytes(struct.pack(">ii", 7, inside))
    assert offsets(open_log(directory), start_offset=7) == [8, 9, 10]
    path.with_suffix(".index").write_bytes(struct.pack(">iiii", 3, len(outer[0]), 7, inside))
    assert offsets(open_log(directory), start_offset=7) == [8, 9, 10]


def test_what_a_time_index_leaves_out_only_a_walk_can_tell(tmp_path: Path) -> None:
    """Each entry is that of a true batch, in order, but the largest timestamp came first: the broker is misled, too."""
    stamps = (1000, 9000, 2000, 3000, 4000)
    directory = partition(tmp_path, [plain(at, 1, base_timestamp=stamp) for at, stamp in enumerate(stamps)])
    times = b"".join(struct.pack(">qi", stamp, at) for at, stamp in enumerate(stamps) if stamp != 9000)
    (directory / f"{0:020d}.timeindex").write_bytes(times)
    assert open_log(directory).offset_for_timestamp(3500) == 4
    assert open_log(directory).offset_for_timestamp(3500, use_index=False) == 1


# ------------------------------------------------------------------------------------------------ how much is read


class Reads:
    """Counts the reads of all files, and their bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.bytes = 0
        read = windows.SegmentFile.read

        def counted(file: windows.SegmentFile, position: int, size: int) -> memoryview:
            self.count += 1
            self.bytes += size
            return read(file, position, size)

        monkeypatch.setattr(windows.SegmentFile, "read", counted)


def large(folder: Path, interval: int = 4096) -> Path:
    """A segment of some 20 MB, indexed, timestamps rising."""
    directory = folder / "orders-0"
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    one = plain(0, 10, size=90)
    with path.open("wb") as file:
        for number in range(20_000_000 // len(one)):
            file.write(plain(number * 10, 10, size=90) if number % 1000 == 0 else restamped(one, number * 10))
    write_indexes(path, interval=interval)
    return directory


def restamped(batch: bytes, base_offset: int) -> bytes:
    """The batch at another offset and its timestamps that much later."""
    from batch_writer import BASE_TIMESTAMP, fix_crc

    stamp = BASE_TIMESTAMP + base_offset
    return fix_crc(struct.pack(">q", base_offset) + batch[8:27] + struct.pack(">qq", stamp, stamp) + batch[43:])


@pytest.fixture(scope="module")
def twenty_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large(tmp_path_factory.mktemp("seek"))


def test_a_seek_reads_little(twenty_megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from batch_writer import BASE_TIMESTAMP

    reads = Reads(monkeypatch)
    end = open_log(twenty_megabytes).log_end_offset
    for target in (0, 5, 17_777, end // 2, end - 15):
        reads.count = reads.bytes = 0
        assert next(iter(open_log(twenty_megabytes).records(start_offset=target))).offset == target
        assert reads.count < 40
        assert reads.bytes < 3_000_000
        reads.count = reads.bytes = 0
        found = open_log(twenty_megabytes).offset_for_timestamp(BASE_TIMESTAMP + target - target % 10)
        assert found == target - target % 10
        assert reads.count < 120
        assert reads.bytes < 3_000_000


def test_an_index_that_is_believed_saves_the_walk(twenty_megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seek without the index reads through all that lies before it: so the one above used it."""
    index = twenty_megabytes / f"{0:020d}.index"
    hidden = index.rename(index.with_suffix(".hidden"))
    try:
        reads = Reads(monkeypatch)
        assert next(iter(open_log(twenty_megabytes).records(start_offset=150_000))).offset == 150_000
        assert reads.bytes > 10_000_000
    finally:
        hidden.rename(index)


# ------------------------------------------------------------------------------------------------------------ damage


def test_corruption_before_the_start_is_not_in_the_way(tmp_path: Path) -> None:
    batches = [plain(at * 3, size=200) for at in range(30)]
    batches[4] = batches[4][:-1] + b"?"
    directory = partition(tmp_path, batches, [plain(90)])
    write_indexes(directory / f"{0:020d}.log", interval=100)
    with pytest.raises(kcodec.CorruptBatchError):
        offsets(open_log(directory), start_offset=12)
    for start in (15, 16, 50, 90):
        assert offsets(open_log(directory), start_offset=start) == list(range(start, 93))


def test_corruption_at_the_entry_that_is_wanted_is_met_by_the_reading(tmp_path: Path) -> None:
    batches = [plain(at * 3, size=200) for at in range(30)]
    batches[20] = batches[20][:-1] + b"?"
    directory = partition(tmp_path, batches, [plain(90)])
    write_indexes(directory / f"{0:020d}.log", interval=100)
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        offsets(open_log(directory), start_offset=61)
    assert caught.value.base_offset == 60
    broken = b"".join(batches[:20]) + b"\0" * 8 + b"\xff" * 100 + b"".join(batches[21:])
    (directory / f"{0:020d}.log").write_bytes(broken)
    with pytest.raises(kcodec.DecodeError) as refused:
        offsets(open_log(directory), start_offset=61)
    assert refused.value.position == len(b"".join(batches[:20]))


@pytest.mark.parametrize("start", [0, 4, 10, 11, 12, 13, 40])
def test_a_torn_tail_is_the_end_wherever_reading_begins(tmp_path: Path, start: int) -> None:
    whole = b"".join(plain(at * 3) for at in range(4))
    for tail in (plain(12)[:50], plain(12)[:-1] + b"?", bytes(100)):
        directory = partition(tmp_path / tail[-5:].hex(), [whole + tail])
        log = open_log(directory)
        assert offsets(log, start_offset=start) == list(range(start, 12))
        assert log.offset_for_timestamp(1 << 50) is None


def test_transactions_are_resolved_by_what_lies_before_the_start(tmp_path: Path) -> None:
    first = [data(7, 0), data(8, 2), plain(4)]
    second = [plain(7), marker(0, 7, 10), data(7, 11), marker(COMMIT, 7, 13), data(8, 14), plain(16)]
    log = open_log(partition(tmp_path, first, second))
    assert log.last_stable_offset == 2
    assert offsets(log, "read_committed", start_offset=5) == []
    done = open_log(partition(tmp_path / "done", first, [*second, marker(0, 8, 19)]))
    assert offsets(done, "read_committed", start_offset=3) == [4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 18]
    assert offsets(done, "read_committed", start_offset=15) == [16, 17, 18]
