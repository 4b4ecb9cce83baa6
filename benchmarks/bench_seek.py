# SPDX-License-Identifier: Apache-2.0
"""A seek in a large segment: by offset and by timestamp, from opening the directory to the first record in hand.

Usage: python benchmarks/bench_seek.py [FOLDER] [--gigabytes 1.0] [--seeks 200] [--json FILE]

Writes one segment of that size for each shape below into FOLDER (a temporary one by default), its timestamps rising,
with its indexes as a broker writes them (index_files.py), and removes it again. Targets are drawn over the whole
segment; each answer is compared with the right one. Without the index fewer seeks are made: they are right, and slow.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import parts
import shapes

import kcodec

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

# Milliseconds, median of the seeks with an index.
BAR_MS = 5.0
CASES = (("a", "none"), ("a", "lz4"), ("b", "zstd"), ("d", "none"))
WITHOUT_INDEX = 5
# Longer than the records of a batch span, so that timestamps rise from batch to batch.
STEP_MS = 10_000


def write_segment(path: Path, shape: str, codec: str, size: int) -> tuple[int, int]:
    """Write a segment of about `size` bytes, in which each batch is STEP_MS later than the one before. Return (number
    of batches, offsets of each batch)."""
    import crc32c

    batch = bytearray(shapes.build_batch(shapes.batches_of_rows(shape)[0], codec, 0))
    span = shapes.SHAPES[shape].per_batch
    base, latest = struct.unpack_from(">qq", batch, 27)
    count = size // len(batch)
    with path.open("wb", buffering=1 << 20) as file:
        for number in range(count):
            struct.pack_into(">q", batch, 0, number * span)
            struct.pack_into(">qq", batch, 27, base + number * STEP_MS, latest + number * STEP_MS)
            struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
            file.write(batch)
    return count, span


def by_offset(directory: Path, offset: int) -> int:
    """Return the offset of the first record read from this offset on."""
    return next(iter(kcodec.open(directory).records(start_offset=offset))).offset


def by_timestamp(directory: Path, timestamp: int) -> int:
    """Return the offset of the first record read from this timestamp on."""
    log = kcodec.open(directory)
    return next(iter(log.records(start_offset=log.offset_for_timestamp(timestamp)))).offset


def timed(seek: Callable[[Path, int], int], directory: Path, targets: list[tuple[int, int]]) -> list[float]:
    """Return the milliseconds of each seek, after one that is not measured. Raise ValueError for a wrong offset."""
    seek(directory, targets[0][0])
    spent = []
    for target, expected in targets:
        begin = time.perf_counter()
        found = seek(directory, target)
        spent.append((time.perf_counter() - begin) * 1e3)
        if found != expected:
            raise ValueError(f"{seek.__name__}({target}) gave offset {found}, expected {expected}")
    return spent


def targets_of(directory: Path, count: int, span: int, seeks: int) -> dict[str, list[tuple[int, int]]]:
    """Return pairs (target, expected offset), for arbitrary offsets and for the timestamps of the first records of
    batches that are above all earlier timestamps."""
    draw = random.Random(7)
    offsets = [draw.randrange(count * span) for _ in range(seeks)]
    first = next(iter(kcodec.open(directory).records())).timestamp
    numbers = [draw.randrange(1, count) for _ in range(seeks)]
    if by_timestamp(directory, first) != 0 or max_offset_in_time(directory, span) >= STEP_MS:
        raise ValueError("the records of a batch reach the next batch in time")
    return {
        "offset": [(offset, offset) for offset in offsets],
        "timestamp": [(first + number * STEP_MS, number * span) for number in numbers],
    }


def max_offset_in_time(directory: Path, span: int) -> int:
    """Return the milliseconds between the earliest and the latest record of the first batch."""
    stamps = [record.timestamp for record in kcodec.open(directory).records(end_offset=span)]
    return max(stamps) - min(stamps)


def measure_case(folder: Path, shape: str, codec: str, size: int, seeks: int) -> list[dict[str, Any]]:
    """Measure seeks in one segment by offset and by timestamp, with its indexes and without."""
    from index_files import write_indexes

    directory = folder / "seek-0"
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    rows: list[dict[str, Any]] = []
    try:
        count, span = write_segment(path, shape, codec, size)
        entries = write_indexes(path)
        targets = targets_of(directory, count, span, seeks)
        ways = {"offset": by_offset, "timestamp": by_timestamp}
        for index in ("with", "without"):
            for by, seek in ways.items():
                wanted = targets[by] if index == "with" else targets[by][:WITHOUT_INDEX]
                others = measure.OtherLoad()
                spent = timed(seek, directory, wanted)
                row = {"shape": shape, "codec": codec, "megabytes": round(path.stat().st_size / 1e6)}
                row |= {"batches": count, "entries": entries[0], "by": by, "index": index, "seeks": len(spent)}
                row |= {"median_ms": round(statistics.median(spent), 3), "max_ms": round(max(spent), 3)}
                row["median_ms_interval"] = [round(end, 3) for end in measure.rank_interval(spent)[:2]]
                row["others"] = round(others.cores(), 2)
                row["is_busy"] = row["others"] > measure.OTHERS_OF_ONE
                if index == "with":
                    parts.judged(row, "median_ms", statistics.median(spent), BAR_MS)
                rows.append(row)
            for suffix in (".index", ".timeindex"):
                path.with_suffix(suffix).unlink(missing_ok=True)
    finally:
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    return rows


SHOWN = ("shape", "codec", "megabytes", "batches", "entries", "by", "index", "seeks")
SHOWN += ("median_ms", "median_ms_interval", "max_ms", "median_ms_bar", "median_ms_met", "others")


def main() -> int:
    """Print a table. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--seeks", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kcodec-seek-", dir=arguments.folder) as folder:
        for shape, codec in CASES:
            rows += measure_case(Path(folder), shape, codec, int(arguments.gigabytes * 1e9), arguments.seeks)
    title = "seek: open the directory, find the place, the first record in hand (ms; files in the page cache)"
    measure.print_table(title, rows, SHOWN)
    options = {"gigabytes": arguments.gigabytes, "seeks": arguments.seeks}
    measure.save(arguments.json, {"seek": rows}, options, before, unit="milliseconds")
    return int(any(row.get("median_ms_met") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
