# SPDX-License-Identifier: Apache-2.0
"""The part "encode" of `make bench-peers`: records to batches, kcodec and the floor compared with Java and Rust.

The same records for all, as objects of the contestant's own (kcodec: Arrow columns) before the clock starts; batches of
as many records each, every codec at the contestant's own default. What each made is read back and compared before its
figure counts. franz-go is not here: what encodes a batch in it cannot be called from outside.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

import bars
import encoding
import measure
import parts
import shapes
from peers import java_peer, rust_peer
from peers.worker import Worker

COLUMNS = ("codec", "shape", "kcodec", "floor", "java", "rust", "kcodec_over_rust", "kcodec_over_rust_met",
           "java_over_kcodec")  # fmt: skip
GO_LEFT_OUT = "franz-go is left out: its batch encoder (kgo's recBatch) is private"


def medians(rows: list[parts.Row]) -> list[parts.Row]:
    """Rows with the median of each figure's samples, to be printed."""
    return [
        {name: value["median"] if isinstance(value, dict) else value for name, value in row.items()} for row in rows
    ]


def compare(shape: str, codec: str, workers: dict[str, Worker], given: argparse.Namespace, folder: Path) -> parts.Row:
    """One shape and codec, all contestants."""
    cases, records, plain = encoding.cases_of(shape, codec, ("kcodec",))
    blob = shapes.blob(shape, "none")
    timers = measure.as_timers({name: case for name, case in cases.items() if name in ("kcodec", "floor")})
    expected = encoding.records_of(blob.data)
    for name, worker in workers.items():
        source = folder / shape
        source.write_bytes(blob.data)
        worker.load(shape, source)
        if encoding.records_of(worker.made(shape, codec, folder / "made")) != expected:
            raise ValueError(f"shape {shape}, {codec}: {worker.name} wrote other records")
        worker.encode(shape, codec, given.warm)
        timers[name] = functools.partial(worker.encode, shape, codec)
    samples = measure.interleaved_timers(timers, given.rounds, given.seconds)
    row: parts.Row = {"codec": codec, "shape": shape, "records": records, "bytes": plain}
    row |= {name: measure.spread(values, records) for name, values in samples.items()}
    ratio = parts.against(row, "kcodec_over_rust", samples, "kcodec", "rust")
    bar = bars.ENCODE_OVER_RUST if codec == "none" else None
    parts.judged(row, "kcodec_over_rust", ratio, bar)
    times = parts.against(row, "java_over_kcodec", samples, "java", "kcodec")
    parts.judged(row, "java_over_kcodec", times, None, least=True)
    return row


def encoding_workers() -> dict[str, Worker]:
    """Fresh workers of the peers that encode; Rust where its tools are."""
    found = {"java": java_peer.worker()}
    started = rust_peer.worker()
    if started is not None:
        found["rust"] = started
    return found


def encode_part(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every shape and codec, printed."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as folder:
        for codec in given.codecs.split(","):
            workers = encoding_workers()
            rows += [compare(shape, codec, workers, given, Path(folder)) for shape in given.shapes]
            for worker in workers.values():
                worker.close()
    measure.print_table("encode, one thread (ns a record)", medians(rows), COLUMNS)
    print(GO_LEFT_OUT)
    return rows
