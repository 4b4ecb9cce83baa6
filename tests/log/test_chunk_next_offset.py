# SPDX-License-Identifier: Apache-2.0
"""next_offset of the chunks of a log: a reader that continues there gets exactly the remaining records.

Each seed is a log: transactions of several producers, gaps inside of batches and between them, compression, segments,
and options of the reader. A failing seed is named by its test.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from log_files import ABORT, COMMIT, data, marker, partition, plain
from opened_logs import open_log

from kcodec import encode_batch
from kcodec.log import Log, read_split

SEEDS = range(3000 if os.environ.get("KCODEC_PROFILE") == "long" else 40)


def batch_with_gaps(chance: random.Random, base: int, producer_id: int | None) -> tuple[bytes, int]:
    """Return a batch as the log cleaner leaves it, and the number of its offsets."""
    span = chance.choice([1, 2, 5, 12, 40])
    kept = sorted(chance.sample(range(span), chance.randrange(1, span + 1)))
    producer: dict[str, Any] = {}
    if producer_id is not None:
        producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    rows = [{"offset": base + at, "key": b"%d" % (base + at), "value": b"v", "timestamp": 1000 + at} for at in kept]
    compression: Any = chance.choice(["none", "none", "lz4", "gzip"])
    batch = encode_batch(rows, base_offset=base, last_offset=base + span - 1, compression=compression, **producer)
    return bytes(batch), span


def random_log(chance: random.Random) -> list[list[bytes]]:
    """Return the batches of each segment."""
    offset, open_ids = chance.choice([0, 1000]), set[int]()
    segments: list[list[bytes]] = [[]]
    for _ in range(chance.randrange(2, 30)):
        if segments[-1] and chance.random() < 0.1:
            segments.append([])
        kind, span = chance.random(), 1
        if kind < 0.35:
            batch, span = batch_with_gaps(chance, offset, None)
        elif kind < 0.7 or not open_ids:
            producer_id = chance.randrange(7, 10)
            open_ids.add(producer_id)
            batch, span = batch_with_gaps(chance, offset, producer_id)
        else:
            producer_id = chance.choice(sorted(open_ids))
            open_ids.discard(producer_id)
            batch = marker(chance.choice([ABORT, COMMIT]), producer_id, offset)
        segments[-1].append(batch)
        offset += span + (chance.random() < 0.15) * chance.randrange(6)
    return segments


def random_options(chance: random.Random, log: Log) -> dict[str, Any]:
    first = log.log_start_offset
    end = log.log_end_offset
    options: dict[str, Any] = {
        "isolation_level": chance.choice(["read_uncommitted", "read_committed"]),
        "max_rows": chance.choice([1, 2, 3, 7, 65_536]),
        "control_records": chance.choice(["skip", "include"]),
        "binary_type": chance.choice(["binary", "binary_view"]),
        "threads": chance.choice([1, 1, 3]),
    }
    if chance.random() < 0.5:
        options["end_offset"] = chance.randrange(first, end + 3)
    if chance.random() < 0.3:
        options["start_offset"] = chance.randrange(first, end + 3)
    return options


def chunks_of(stream: Any) -> list[tuple[list[int], int | None]]:
    """Return the offsets of each chunk and its next_offset."""
    return [(list(chunk.column("offset")), chunk.next_offset) for chunk in stream]


def assert_resumable(log: Log, options: dict[str, Any]) -> None:
    """Continue at each chunk of a log."""
    chunks = chunks_of(log.to_arrow(**options))
    everything = [offset for offsets, _ in chunks for offset in offsets]
    assert everything == sorted(set(everything))
    done = 0
    for offsets, following in chunks:
        done += len(offsets)
        assert following is not None
        rest = chunks_of(log.to_arrow(**{**options, "start_offset": following}))
        assert [offset for some, _ in rest for offset in some] == everything[done:], (offsets, following)
        limits = [options.get("end_offset")]
        limits += [log.last_stable_offset] if options["isolation_level"] == "read_committed" else []
        assert all(limit is None or following <= limit for limit in limits)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_continues_after_each_chunk(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    log = open_log(partition(tmp_path, *random_log(chance)))
    for _ in range(3):
        assert_resumable(log, random_options(chance, log))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_continues_in_a_log_that_has_grown(seed: int, tmp_path: Path) -> None:
    """The transactions that were open have ended meanwhile, so the last stable offset is higher."""
    chance = random.Random(seed)
    batches = [batch for segment in random_log(chance) for batch in segment]
    before = batches[: chance.randrange(1, len(batches) + 1)]
    directory = partition(tmp_path, before)
    options = random_options(chance, open_log(directory))
    options.pop("end_offset", None)
    chunks = chunks_of(open_log(directory).to_arrow(**options))
    with next(directory.glob("*.log")).open("ab") as file:
        file.write(b"".join(batches[len(before) :]))
        file.flush()
        end = open_log(directory).log_end_offset
        for at, producer_id in enumerate(range(7, 10)):
            file.write(marker(COMMIT, producer_id, end + 5 + at))
    log = open_log(directory)
    everything = [offset for some, _ in chunks_of(log.to_arrow(**options)) for offset in some]
    found: list[int] = []
    for offsets, following in chunks:
        found += offsets
        rest = chunks_of(log.to_arrow(**{**options, "start_offset": following}))
        assert found + [offset for some, _ in rest for offset in some] == everything


@pytest.mark.parametrize("seed", SEEDS)
def test_a_split_continues_after_each_chunk(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    log = open_log(partition(tmp_path, *random_log(chance)))
    options = random_options(chance, log)
    del options["threads"]
    verdict = log.verdict()
    for split in log.splits(max_bytes=chance.choice([100, 1000, 100_000])):
        chunks = chunks_of(read_split(split, verdict, **options))
        everything = [offset for offsets, _ in chunks for offset in offsets]
        done = 0
        for offsets, following in chunks:
            done += len(offsets)
            rest = chunks_of(read_split(split, verdict, **{**options, "start_offset": following}))
            assert [offset for some, _ in rest for offset in some] == everything[done:]


def test_a_chunk_without_offsets_knows_its_end_at_the_end_of_a_batch(tmp_path: Path) -> None:
    """Within a batch, next_offset is None."""
    log = open_log(partition(tmp_path, [plain(0, 5), plain(5, 2), data(7, 7, 2)]))
    stream = log.to_arrow(columns=("value",), isolation_level="read_committed", max_rows=2)
    assert [(len(chunk), chunk.next_offset) for chunk in stream] == [(2, None), (2, None), (1, 5), (2, 7)]
