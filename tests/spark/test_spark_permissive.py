# SPDX-License-Identifier: Apache-2.0
"""mode=permissive: everything that is not corrupt is delivered, and each loss is logged with its offsets."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damaged_logs import StoredBatch, damage, forged, segment_file, verifying, write_two_segments

import kcodec
from kcodec.spark import file_ranges
from kcodec.spark.columns import default_columns
from kcodec.spark.file_options import parse_options

LOSS = re.compile(
    r"^(.+): bytes (?:(\d+) to (\d+)|from (\d+) on) \((?:offsets? (\d+)(?: to (\d+))?|from (\d+) on)\) were skipped: "
)
RUNS = {"short": 150}.get(os.environ.get("KCODEC_PROFILE", ""), 1000)


def rows(path: Path, **options: Any) -> list[tuple[int, bytes]]:
    """The offsets and values of a permissive read, planned and read as Spark has it done."""
    given = parse_options({"path": str(path), "mode": "permissive", **options})
    reading = file_ranges.RangeOptions(
        tuple(default_columns(False, False)),
        given.isolation_level,
        on_error=given.on_error,
        check_crcs=given.check_crcs,
    )
    found: list[tuple[int, bytes]] = []
    for task in file_ranges.plan_tasks(given, reading):
        for batch in file_ranges.read_ranges(task, reading):
            found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return found


def records_of(batches: list[StoredBatch]) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value or b"") for batch in batches for record in kcodec.decode(batch.data).records()]


class Losses(logging.Handler):
    """The losses that were logged: (file, position, end position, first offset, next offset or None)."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, int, int, int, int | None]] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts.append(text)
        match = LOSS.match(text)
        if match:
            path, position, last, end, only, to, from_on = match.groups()
            position, last = position or end, last or str(int(end) - 1)
            first = int(only if from_on is None else from_on)
            behind = None if from_on is not None else int(to or only) + 1
            self.found.append((Path(path).name, int(position), int(last) + 1, first, behind))


@pytest.fixture
def losses() -> Any:
    handler = Losses()
    logger = logging.getLogger("kcodec.spark")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def is_gone(folder: Path, batch: StoredBatch) -> bool:
    """Whether a cut between two batches, which nothing tells from the end of the data, has removed the batch."""
    path = segment_file(folder, batch)
    index = kcodec.log.read_offset_index(path.with_suffix(".index"))
    is_last = not any(other > path for other in folder.glob("*.log"))
    size = path.stat().st_size
    reported = any(entry.position >= size for entry in index) or (size == 0 and not is_last)
    return batch.position >= size and not reported and size in boundaries(path)


def boundaries(path: Path) -> set[int]:
    """The positions between the batches of a file, by their lengths."""
    data, at, found = path.read_bytes(), 0, {0}
    while at + 12 <= len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big", signed=True)) > 0:
        at += 12 + length
        found.add(at)
    return found


def is_covered(batch: StoredBatch, losses: Losses) -> bool:
    """Whether a logged loss names the batch's segment and offsets."""
    return any(
        name == f"{batch.segment:020}.log"
        and first <= batch.first_offset
        and (beyond is None or beyond > batch.last_offset)
        for name, _, _, first, beyond in losses.found
    )


@pytest.mark.parametrize("split_bytes", ["134217728", "9000"])
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_random_corruption_costs_only_what_is_logged(
    tmp_path: Path, losses: Losses, level: str, split_bytes: str
) -> None:
    """1,000 random corruptions of two segments for each isolation level (150 in the short profile), half of them read
    in small ranges.

    Every batch that verifies is delivered unless it is in a loss that was logged, and a loss begins at a corrupt batch
    and ends at the next position that the index or a length proves. Nothing is delivered that was never appended. The
    last batch of the log is left out of the comparison where its base offset is wrong: nothing behind contradicts it.
    """
    seed = int(os.environ.get("KCODEC_SEED", "20261122"))
    for run in range(RUNS // 2):
        random = Random(f"{seed} {split_bytes} {run}")
        folder = tmp_path / str(run) / "orders-0"
        stored = write_two_segments(folder, random, batches=random.choice((3, 12, 40)), gap=0)
        how = damage(folder, stored, random)
        losses.found.clear()
        found = rows(folder, **{"splitBytes": split_bytes, "kafka.isolation.level": level})
        what = f"seed {seed}, run {run}, {split_bytes}: {how}"
        if (
            len(found)
            and segment_file(folder, stored[-1]).read_bytes()[stored[-1].position :][:8] != stored[-1].data[:8]
        ):
            stored, last = stored[:-1], stored[-1]
            found = [row for row in found if row[0] < last.first_offset]
        intact = list(verifying(folder, stored))
        every = dict(records_of(stored))
        delivered = {offset for offset, _ in found}
        lost = [batch for batch in stored if batch.first_offset not in delivered and not is_gone(folder, batch)]
        assert [offset for offset, _ in found] == sorted(delivered), what
        assert all(is_covered(batch, losses) for batch in lost), what
        for name, position, behind, _, _ in losses.found:
            inside = [
                batch for batch in stored if batch.segment == int(name[:20]) and position <= batch.position < behind
            ]
            if inside:
                assert inside[0].position == position, what
                assert inside[0] not in intact, what
            healthy = [batch for batch in inside if batch in intact]
            # What is given up with a batch ends at the next batch that the index names.
            assert sum(len(batch.data) for batch in healthy) <= 4 * 4096, what
        assert all(every.get(offset) == value for offset, value in found), what
        shutil.rmtree(folder.parent)


def patched(folder: Path, batch: StoredBatch, at: int, data: bytes) -> None:
    with segment_file(folder, batch).open("r+b") as file:
        file.seek(batch.position + at)
        file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, list[StoredBatch]]:
    folder = tmp_path / "orders-0"
    return folder, write_two_segments(folder, Random(5))


def test_a_corrupt_length_costs_the_rest_of_an_index_interval(
    log: tuple[Path, list[StoredBatch]], losses: Losses
) -> None:
    """In the first batch of two segments this cost all rows, and nothing was logged."""
    folder, stored = log
    patched(folder, stored[0], 8, b"\x7f\x00\x00\x00")
    found = rows(folder)
    index = kcodec.log.read_offset_index(folder / f"{stored[0].segment:020}.index")
    kept = [batch for batch in stored if batch.segment != stored[0].segment or batch.position >= index[0].position]
    assert found == records_of(kept)
    ((name, position, behind, first, beyond),) = losses.found
    assert (name, position, behind) == (segment_file(folder, stored[0]).name, 0, index[0].position)
    assert (first, beyond) == (100, kept[0].first_offset)


def test_without_an_index_the_next_segment_is_read(log: tuple[Path, list[StoredBatch]], losses: Losses) -> None:
    folder, stored = log
    for path in folder.glob("*.index"):
        path.unlink()
    patched(folder, stored[3], 8, b"\x7f\x00\x00\x00")
    second = [batch for batch in stored if batch.segment != stored[0].segment]
    assert rows(folder) == records_of([*stored[:3], *second])
    ((_, position, _, first, beyond),) = losses.found
    assert (position, first, beyond) == (stored[3].position, stored[3].first_offset, second[0].first_offset)


@pytest.mark.parametrize("size", [1, 37, 3000])
def test_a_cut_segment_costs_its_cut_batches(log: tuple[Path, list[StoredBatch]], losses: Losses, size: int) -> None:
    folder, stored = log
    path = segment_file(folder, stored[0])
    path.write_bytes(path.read_bytes()[:-size])
    assert rows(folder) == records_of(list(verifying(folder, stored)))
    assert len(losses.found) == 1


def test_a_batch_in_a_value_is_never_taken_for_one(log: tuple[Path, list[StoredBatch]], losses: Losses) -> None:
    """Of a batch whose header is overwritten only what the index names behind it is read."""
    folder, stored = log
    for batch in stored[::9]:
        patched(folder, batch, 0, b"\xff" * 20)
    found = dict(rows(folder))
    every = dict(records_of(stored))
    assert all(every.get(offset) == value for offset, value in found.items())
    assert len(losses.found) == len(stored[::9])


def test_a_length_that_leads_into_a_value_is_not_believed(tmp_path: Path, losses: Losses) -> None:
    """Even where it leads to a batch with a right CRC and with offsets that would fit."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    inner = forged(2)
    records = [[(None, b"a")], [(None, b"v" * 50 + inner + b"v" * 50)], *([(None, b"w" * 1000)] for _ in range(9))]
    batches = [bytearray(kcodec.encode(each, base_offset=at, timestamp=7)) for at, each in enumerate(records)]
    data = bytearray(b"".join(batches))
    struct.pack_into(">i", data, 8, data.index(inner) - 12)
    (folder / f"{0:020}.log").write_bytes(data)
    position = sum(map(len, batches[:6]))
    (folder / f"{0:020}.index").write_bytes(struct.pack(">ii", 6, position))
    assert [offset for offset, _ in rows(folder)] == [6, 7, 8, 9, 10]
    ((_, begin, end, first, beyond),) = losses.found
    assert (begin, end, first, beyond) == (0, position, 0, 6)


@pytest.mark.parametrize("offset", [0, 3, 1 << 40])
def test_a_corrupt_base_offset_costs_its_batch(
    log: tuple[Path, list[StoredBatch]], losses: Losses, offset: int
) -> None:
    """No CRC covers it. A higher one must not make the batches behind it look like ones that were read before."""
    folder, stored = log
    bad = stored[9]
    patched(folder, bad, 0, struct.pack(">q", bad.first_offset + offset if offset == 3 else offset))
    assert rows(folder) == records_of([batch for batch in stored if batch is not bad])
    ((_, position, _, first, beyond),) = losses.found
    assert (position, first, beyond) == (bad.position, bad.first_offset, bad.last_offset + 1)


def test_losses_are_counted_where_several_batches_are_corrupt(
    log: tuple[Path, list[StoredBatch]], losses: Losses
) -> None:
    folder, stored = log
    bad = [stored[3], stored[4], stored[20], stored[50]]
    for batch in bad:
        patched(folder, batch, 40, b"\xff\xff")
    assert rows(folder) == records_of([batch for batch in stored if batch not in bad])
    assert all(is_covered(batch, losses) for batch in bad)
    assert any("corrupt batches were skipped" in text for text in losses.texts)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_both_isolation_levels_continue_behind_a_segment(
    log: tuple[Path, list[StoredBatch]], losses: Losses, level: str
) -> None:
    folder, stored = log
    patched(folder, stored[20], 8, b"\x7f\x00\x00\x00")
    found = rows(folder, **{"kafka.isolation.level": level})
    lost = [batch for batch in stored if is_covered(batch, losses)]
    assert found == records_of([batch for batch in stored if batch not in lost])
    assert len(lost) < 20


def test_bounds_hold_on_a_corrupt_log(log: tuple[Path, list[StoredBatch]]) -> None:
    folder, stored = log
    patched(folder, stored[2], 40, b"\xff\xff")
    low, high = stored[10].first_offset + 1, stored[60].last_offset
    expected = [(offset, value) for offset, value in records_of(stored) if low <= offset < high]
    bounds = {"startingOffsets": f'{{"orders":{{"0":{low}}}}}', "endingOffsets": f'{{"orders":{{"0":{high}}}}}'}
    for split_bytes in ("134217728", "9000"):
        assert rows(folder, splitBytes=split_bytes, **bounds) == expected


def test_splits_of_a_permissive_read_follow_the_index(log: tuple[Path, list[StoredBatch]]) -> None:
    folder, stored = log
    given = parse_options({"path": str(folder), "mode": "permissive", "splitBytes": "9000"})
    reading = file_ranges.RangeOptions(tuple(default_columns(False, False)), on_error="skip")
    tasks = file_ranges.plan_tasks(given, reading)
    assert len(tasks) > 5
    starts = {batch.position for batch in stored}
    for stretch in itertools.chain.from_iterable([each.byte_range for each in task] for task in tasks):
        assert stretch.start in starts
    assert rows(folder, splitBytes="9000") == records_of(stored)


def transactional(offset: int, producer_id: int) -> bytes:
    """Two records of a transaction, in a batch so large that a walk over headers does not compute its CRC."""
    options: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": 0,
        "is_transactional": True,
    }
    return bytes(kcodec.encode([(None, b"v" * 400_000)] * 2, base_offset=offset, timestamp=7, **options))


def marker(kind: Any, offset: int, producer_id: int) -> bytes:
    ids = {"producer_id": producer_id, "producer_epoch": 0, "coordinator_epoch": 0}
    return bytes(kcodec.encode_end_transaction_marker(kind, timestamp=7, base_offset=offset, **ids))


@pytest.mark.parametrize(
    ("batch", "at", "expected"),
    [
        (2, 43 + 7, [0, 1, 6, 7, 11]),  # the producer id: a transaction that no marker ends
        (2, 8, [0, 1]),  # the length: no index tells where to continue
        (3, 70, [0, 1, 6, 7, 11]),  # a marker: nobody knows how its transaction ended
        (6, 70, [0, 1, 3, 4, 6, 7, 11]),
    ],
)
def test_a_corrupt_transaction_does_not_hide_others(
    tmp_path: Path, losses: Losses, batch: int, at: int, expected: list[int]
) -> None:
    plain = [
        bytes(kcodec.encode([(None, b"p")] * count, base_offset=offset, timestamp=7))
        for offset, count in ((6, 2), (11, 1))
    ]
    batches = [transactional(0, 7), marker("COMMIT", 2, 7), transactional(3, 8), marker("COMMIT", 5, 8), plain[0]]
    batches += [transactional(8, 9), marker("ABORT", 10, 9), plain[1]]
    data = bytearray(b"".join(batches))
    data[sum(map(len, batches[:batch])) + at] ^= 0x41
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(data)
    assert [offset for offset, _ in rows(folder, **{"kafka.isolation.level": "read_committed"})] == expected
    assert losses.found


def test_timestamps_are_found_on_a_corrupt_log(tmp_path: Path, losses: Losses) -> None:
    batches = [
        bytes(kcodec.encode([(None, b"v" * 400_000)], base_offset=number, timestamp=100 + number))
        for number in range(6)
    ]
    data = bytearray(b"".join(batches))
    for number in (1, 3):
        data[len(batches[0]) * number + 70] ^= 1
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(data)
    assert [offset for offset, _ in rows(folder, startingTimestamp="103")] == [4, 5]
    assert [offset for offset, _ in rows(folder, endingTimestamp="104")] == [0, 2]
    late = {"startingTimestamp": "200", "startingOffsetsByTimestampStrategy": "latest"}
    assert rows(folder, **late) == []
    with pytest.raises(ValueError, match="no record of timestamp 200 or later"):
        rows(folder, startingTimestamp="200")
