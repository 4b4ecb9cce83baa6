# SPDX-License-Identifier: Apache-2.0
"""`make bench`: kcodec compared with aiokafka, kafka-python and the C floor, on the same bytes, as a table and as JSON.

Usage: python benchmarks/run.py [--part decode threads ...] [--shapes abcd] [--codecs none,zstd] [--rounds N] [--quick]
                                [--json FILE]      (or make bench ARGS="--quick")

Figures are ns of processor time a record, medians of the rounds (elapsed time where two threads are measured); the JSON
has minima and maxima, too. Ratios are medians of the rounds' ratios, with intervals (`measure`). Rounds in which other
processes disturbed are made again; the column `others` has the cores that they used in the worst round kept, and above
a limit a bar is not judged. A missed bar is marked and changes nothing else: the exit code says whether the
contestants' columns are the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import contestants
import encoding
import measure
import parts
import shapes

ALL_CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
PARTS = {**parts.PARTS, "encode": encoding.encode}
DEFAULT_PARTS = ("decode", "encode", "views", "threads", "isolation", "segment", "import")
CONTESTANTS = ("kcodec", "floor", "aiokafka", "kafka-python")

COLUMNS = {
    "decode": (
        *("builder", "codec", "shape", "kcodec", "floor", "aiokafka", "kafka-python", "limit both"),
        *("times_aiokafka", "times_aiokafka_bar", "times_aiokafka_met"),
        *(
            "over_floor",
            "over_floor_interval",
            "over_floor_bar",
            "over_floor_met",
            "floor_over_limit",
            "floor_over_limit_met",
            "others",
        ),
    ),
    "cold": ("codec", "shape", *CONTESTANTS, "times_aiokafka", "over_floor"),
    "encode": (
        *("codec", "shape", *encoding.NAMES),
        *("times_aiokafka", "times_aiokafka_bar", "times_aiokafka_met"),
        *("over_floor", "over_floor_interval", "over_floor_bar", "over_floor_met", "rows_times_aiokafka", "others"),
    ),
    "views": (
        "shape",
        "kcodec views",
        "kcodec",
        "floor",
        "over_floor",
        "over_floor_interval",
        "over_floor_bar",
        "over_floor_met",
        "others",
    ),
    "threads": (
        *("codec", "shape", "times", "kcodec 1", "kcodec 2", "floor 1", "floor 2"),
        *("others", "floor_gain", "gain", "gain_interval", "gain_bar", "gain_met"),
    ),
    "isolation": (
        *("codec", "shape", "aborted", "read_committed", "read_uncommitted"),
        *("of_uncommitted", "of_uncommitted_interval", "of_uncommitted_bar", "of_uncommitted_met", "others"),
    ),
    "segment": (
        *("codec", "shape", "megabytes", "records", "seconds", "ns_a_record"),
        *("peak_of_imports_MB", "peak_MB", "peak_MB_bar", "peak_MB_met"),
    ),
    "import": (
        *("pairs", "python_ms", "above_ms", "above_ms_bar", "above_ms_met", "brought_in", "brought_in_met", "others"),
    ),
}
TITLES = {
    "decode": "decode to Arrow, one thread, CRC on (ns of processor time a record)",
    "cold": "the same, bytes not in any cache (ns a record)",
    "encode": "encode, one thread (ns a record); kcodec from Arrow and from rows, the others fill builders",
    "views": "values as binary_view against the floor that copies them (ns a record)",
    "threads": "two threads against one (ns of elapsed time a record; others: cores that others used)",
    "isolation": "read_committed against read_uncommitted of the same bytes (ns a stored record)",
    "segment": "a segment streamed through pyarrow in a fresh process",
    "import": "import kcodec above python -c pass",
}


def short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for the table, with only the median of each spread."""
    return {name: value["median"] if isinstance(value, dict) else value for name, value in row.items()}


def missed(rows: list[dict[str, Any]]) -> int:
    """Return the number of bars of these rows that are missed."""
    return sum(value is False for row in rows for name, value in row.items() if name.endswith("_met"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=DEFAULT_PARTS, metavar="PART")
    parser.add_argument("--shapes", default="abcd", help="letters of abcde")
    parser.add_argument("--codecs", default=",".join(ALL_CODECS))
    parser.add_argument("--builders", default="aiokafka,java", help="whose batches: aiokafka,java")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="length of one slice")
    parser.add_argument("--patience", type=int, default=3, help="rounds made, at most, for each one kept")
    parser.add_argument("--segment-bytes", type=int, default=1 << 30)
    parser.add_argument("--quick", action="store_true", help="3 rounds, aiokafka's batches only, a segment of 64 MB")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def options_of(given: argparse.Namespace) -> parts.Options:
    names = tuple(given.contestants.split(","))
    if not contestants.has_kcodec():
        names = tuple(name for name in names if name != "kcodec")
        print("kcodec is not built: only the others are measured", file=sys.stderr)
    return parts.Options(
        shapes=given.shapes,
        codecs=tuple(given.codecs.split(",")),
        builders=("aiokafka",) if given.quick else tuple(given.builders.split(",")),
        names=names,
        rounds=3 if given.quick else given.rounds,
        seconds=given.seconds,
        segment_bytes=64 << 20 if given.quick else given.segment_bytes,
        patience=1 if given.quick else given.patience,
    )


def main() -> None:
    given = arguments()
    options = options_of(given)
    shapes.check_digests(options.shapes)
    before, results, total = os.getloadavg()[0], {}, 0
    for name in given.part:
        rows = PARTS[name](options)
        if rows:
            measure.print_table(TITLES[name], [short(row) for row in rows], COLUMNS[name])
            results[name] = rows
            total += missed(rows)
    load = (before, os.getloadavg()[0])
    print(f"\nload average {load[0]:.1f} before, {load[1]:.1f} after; bars missed: {total}")
    if given.json:
        settings = {"rounds": options.rounds, "seconds_a_slice": options.seconds, "contestants": list(options.names)}
        if "kcodec" in options.names:
            settings["kcodec_zstd"] = parts.zstd_way()
        measure.save(given.json, results, settings, load[0])


if __name__ == "__main__":
    main()
