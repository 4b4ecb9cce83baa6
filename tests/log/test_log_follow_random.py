# SPDX-License-Identifier: Apache-2.0
"""follow=True over logs made at random and written in random pieces: at their end it has given what a plain read gives.

Each seed is a story: transactions of several producers, plain batches, gaps, rolls, files that grow, or that were zeros
and are trimmed when rolled, steps of the walk from a batch to a file. A failing seed is named by its test.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from follow_story import Script, file_of, follow
from log_files import data, marker, plain
from opened_logs import open_log

from kcodec.log import growth

SEEDS = range(2000 if os.environ.get("KCODEC_PROFILE") == "long" else 25)
Step = Callable[[], object]


def segments_of(chance: random.Random) -> list[tuple[int, bytes]]:
    """(base offset, content) of each segment."""
    offset = chance.choice([0, 1000])
    open_ids: set[int] = set()
    segments: list[tuple[int, bytes]] = [(offset, b"")]
    for _ in range(chance.randrange(3, 40)):
        if segments[-1][1] and chance.random() < 0.15:
            segments.append((offset, b""))
        kind, count = chance.random(), chance.randrange(1, 4)
        if kind < 0.3 or (kind >= 0.7 and not open_ids):
            batch = plain(offset, count, chance.choice([1, 20, 400, 3000]))
        elif kind < 0.7:
            open_ids.add(producer_id := chance.randrange(7, 10))
            batch = data(producer_id, offset, count, size=chance.choice([1, 20, 400]))
        else:
            producer_id, count = chance.choice([*sorted(open_ids), 11]), 1
            open_ids.discard(producer_id)
            batch = marker(chance.randrange(2), producer_id, offset)
        base, content = segments.pop()
        segments.append((base, content + batch))
        offset += count + (chance.random() < 0.1) * chance.randrange(5)
    return segments


def written(path: Path, at: int, piece: bytes) -> Step:
    def write() -> None:
        with path.open("rb+") as file:
            file.seek(at)
            file.write(piece)

    return write


def trimmed(path: Path, size: int) -> Step:
    def trim() -> None:
        with path.open("rb+") as file:
            file.truncate(size)

    return trim


def story(chance: random.Random, directory: Path) -> list[Step]:
    """The steps that write a log; the first makes its first file."""
    is_preallocated = chance.random() < 0.3
    steps: list[Step] = []
    for base, content in segments_of(chance):
        path, at = file_of(directory, base), 0
        zeros = bytes(len(content) + chance.randrange(3000)) if is_preallocated else b""
        steps.append(lambda path=path, zeros=zeros: path.write_bytes(zeros))  # type: ignore[misc]
        while at < len(content):
            size = chance.choice([1, 61, 200, 5000])
            steps.append(written(path, at, content[at : at + size]))
            at += size
        steps.append(trimmed(path, len(content)))
    return steps


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_followed_is_what_is_there_at_the_end(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    step_bytes = chance.choice([50, 300, 1000, 5000, 1 << 20])
    monkeypatch.setattr(growth, "STEP_BYTES", step_bytes)
    directory = tmp_path / "orders-0"
    directory.mkdir()
    first, *steps = story(chance, directory)
    first()
    level = chance.choice(["read_uncommitted", "read_committed"])
    start = chance.choice([None, chance.randrange(30), 1000 + chance.randrange(30)])
    looks = 20 + 3 * len(steps) + (100_000 if step_bytes < 1000 else 10_000) // step_bytes
    found = follow(directory, Script(*steps, looks=looks), level, start_offset=start)
    assert found == [record.offset for record in open_log(directory).records(level, start_offset=start)]
