# SPDX-License-Identifier: Apache-2.0
"""Invariant: whatever the bytes are, kcodec gives the oracle's records and counts, or the oracle's error; nothing else.

    python tests/fuzz/run.py [--edits 20000] [--seed N] [--minutes M] [--processes 2]

Starts from record sets a broker wrote (tests/golden) and from generated logs, edits them in one to three places, with
the CRC made right again or not, and asks kcodec and reference.py the same question with the same random options.
Each edit has its own number: `--seed` is the first, and a failing one is shown so that `--seed THAT --edits 1` repeats
it. Ends at `--edits` or after `--minutes`, whichever comes first. One line tells the result; the exit status is 0 only
if no answer differed. A crash or a hang of the decoder gives no answer, and that is a difference.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import golden_data as golden
from compare import Way, difference, random_way
from edits import batch_positions, random_edit
from strategies import Log, random_damage, random_log, random_options

LARGEST_SEED = 12_000  # bytes of golden data an edit starts from: the oracle is slow
PIECE = 250  # edits a process does before it reports
HANG_SECONDS = 120.0  # for one piece; a piece takes a second or so


class Case(NamedTuple):
    """One question: what was done to the bytes, the bytes, and how they are to be decoded."""

    name: str
    data: bytes
    options: dict[str, Any]
    way: Way


@cache
def golden_seeds() -> list[bytes]:
    """Every log of a broker that is small enough, and of the others their first batches."""
    seeds = []
    for partition in golden.partitions():
        data = partition.log
        if len(data) > LARGEST_SEED:
            ends = [position for position in batch_positions(data) if position <= LARGEST_SEED]
            data = data[: ends[-1]]
        if data:
            seeds.append(data)
    return seeds


def _golden_log(chooser: random.Random) -> Log:
    """Some batches in a row out of a broker's log."""
    seed = chooser.choice(golden_seeds())
    positions = [*batch_positions(seed), len(seed)]
    begin = chooser.randrange(len(positions) - 1)
    end = chooser.randint(begin + 1, min(begin + 12, len(positions) - 1))
    data = seed[positions[begin] : positions[end]]
    last = positions[end - 1] - positions[begin]
    next_offset = int.from_bytes(data[last : last + 8], "big") + int.from_bytes(data[last + 23 : last + 27], "big") + 1
    return Log(data=data, positions=[at - positions[begin] for at in positions[begin:end]], next_offset=next_offset)


def case_of(number: int) -> Case:
    """The edit of this number, the same each time."""
    chooser = random.Random(number)
    if chooser.randrange(4) == 0:
        log = _golden_log(chooser)
        name, data = random_edit(chooser, log.data)
        name = f"golden: {name}"
    else:
        log = random_log(chooser)
        name, data = random_damage(chooser, log)
    return Case(name, data, random_options(chooser, log), random_way(chooser))


def try_edit(number: int) -> str | None:
    """How kcodec and the oracle differ on this edit, or None."""
    case = case_of(number)
    try:
        found = difference(case.data, case.options, case.way)
    except Exception as error:  # noqa: BLE001  any exception but a DecodeError is a finding, and is reported as one
        found = f"{type(error).__name__}: {error}"
    if found is None:
        return None
    return f"edit {number} ({case.name}; {len(case.data)} bytes; {case.options}): {found}"


def try_piece(first: int, count: int) -> tuple[int, list[str]]:
    """(edits done, what differed) of `count` edits from `first` on."""
    return count, [found for number in range(first, first + count) if (found := try_edit(number)) is not None]


def run(edits: int, seed: int, minutes: float, processes: int) -> tuple[int, list[str]]:
    """(edits done, what differed)."""
    deadline = time.monotonic() + minutes * 60
    golden_seeds()
    pieces = [(first, min(PIECE, seed + edits - first)) for first in range(seed, seed + edits, PIECE)]
    done = 0
    differences: list[str] = []
    # a spawned child that dies without an answer would hang Pool.get forever: hence the time limit on each piece
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        waiting: list[tuple[int, Any]] = []
        while pieces or waiting:
            while pieces and len(waiting) < 2 * processes and time.monotonic() < deadline:
                waiting.append((pieces[0][0], pool.apply_async(try_piece, pieces.pop(0))))
            if not waiting:
                break
            first, answer = waiting.pop(0)
            try:
                count, found = answer.get(HANG_SECONDS)
            except multiprocessing.TimeoutError:
                return done, [*differences, f"no answer to edits {first} to {first + PIECE - 1}: a crash or a hang"]
            done += count
            differences += found
    return done, differences


def main() -> int:
    parser = argparse.ArgumentParser(description="random edits of record sets: kcodec compared with the oracle")
    parser.add_argument("--edits", type=int, default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first edit (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after so long (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="side by side (default: %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    done, differences = run(arguments.edits, arguments.seed, arguments.minutes, arguments.processes)
    for text in differences[:20]:
        print(text, file=sys.stderr)
    took = time.monotonic() - began
    print(f"{done} edits from seed {arguments.seed} in {took:.0f} s: {len(differences)} differences")
    return 1 if differences or not done else 0


if __name__ == "__main__":
    sys.exit(main())
