# SPDX-License-Identifier: Apache-2.0
"""`make bench-peers`: kcodec and the C floor compared with Java's consumer, and Go's and Rust's if installed.

Usage: python benchmarks/peers/run.py [--shapes abcd] [--codecs none,zstd] [--builders aiokafka,java] [--quick]
                                      [--part decode encode] [--json FILE]

The same bytes for all, CRC on, contestants in turn within one run, ns a record. Java: CompletedFetch.fetchRecords, keys
and values as byte[], all records of the fetch in one call, a fresh JVM for each codec and a second of warming for each
blob. Columns are hashed and must agree. The bar: kcodec is quicker than Java for every shape and codec.
The part "encode" is encoding_peers.py.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import contestants
import measure
import parts
import shapes
from peers import encoding_peers, go_peer, java_peer, rust_peer
from peers.worker import Worker

CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
COLUMNS = (
    "builder",
    "codec",
    "shape",
    "kcodec",
    "floor",
    "java",
    "go",
    "rust",
    "java_over_kcodec",
    "java_over_kcodec_met",
)


def start_workers() -> dict[str, Worker]:
    """A fresh worker of each language there is; Java is a must, the others are left out without their tools."""
    found = {"java": java_peer.worker()}
    for name, peer in (("go", go_peer), ("rust", rust_peer)):
        started = peer.worker()
        if started is not None:
            found[name] = started
    return found


def compare(
    blob: shapes.Blob, codec: str, workers: dict[str, Worker], given: argparse.Namespace, file: Path
) -> dict[str, Any]:
    """One blob, all contestants: their figures, and who is quicker."""
    file.write_bytes(blob.data)
    names = [name for name in given.contestants.split(",") if name != "kcodec" or contestants.has_kcodec()]
    own = [one for one in contestants.contestants(names) if codec in one.codecs]
    expected = parts.agree(own or contestants.contestants(["aiokafka"]), blob.data, file.name)
    timers = measure.as_timers({one.name: functools.partial(one.decode, blob.data) for one in own})
    for name, worker in workers.items():
        worker.load(file.name, file)
        if worker.digest(file.name) != expected:
            raise ValueError(f"{file.name}: the columns of {worker.name} differ")
        worker.time(file.name, given.warm)
        timers[name] = worker.timer(file.name)
    samples = measure.interleaved_timers(timers, given.rounds, given.seconds)
    row: dict[str, Any] = {name: measure.spread(values, blob.records) for name, values in samples.items()}
    for name in workers:
        found = parts.against(row, f"{name}_over_kcodec", samples, name, "kcodec")
        parts.judged(row, f"{name}_over_kcodec", found, 1.0 if name == "java" else None, least=True)
    return row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="abcd")
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--builders", default="aiokafka,java")
    parser.add_argument("--contestants", default="kcodec,floor", help="of this process, compared with the workers")
    parser.add_argument("--part", nargs="+", choices=("decode", "encode"), default=["decode", "encode"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.025, help="length of one slice")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of warming for each blob and worker")
    parser.add_argument("--quick", action="store_true", help="3 rounds, little warming, aiokafka's batches only")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.warm, given.builders = 3, 0.3, "aiokafka"
    return given


def decoding(given: argparse.Namespace) -> list[parts.Row]:
    """The part "peers": every blob, its figures printed."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as folder:
        for codec in given.codecs.split(","):
            workers = start_workers()
            for builder in given.builders.split(","):
                if builder == "java" and codec == "none":
                    continue  # the same bytes
                for shape in given.shapes:
                    blob = parts.source_blob(builder, shape, codec)
                    row = compare(blob, codec, workers, given, Path(folder, f"{builder}-{codec}-{shape}"))
                    rows.append({"builder": builder, "codec": codec, "shape": shape, "records": blob.records} | row)
            for worker in workers.values():
                worker.close()
    measure.print_table("decode, one thread, CRC on (ns a record)", encoding_peers.medians(rows), COLUMNS)
    missed = sum(row.get("java_over_kcodec_met") is False for row in rows)
    print(f"blobs where Java is quicker: {missed}")
    return rows


def main() -> None:
    given = arguments()
    shapes.check_digests(given.shapes)
    before, found = os.getloadavg()[0], {}
    if "decode" in given.part:
        found["peers"] = decoding(given)
    if "encode" in given.part:
        found["encode"] = encoding_peers.encode_part(given)
    load = (before, os.getloadavg()[0])
    print(f"\nload average {load[0]:.1f} before, {load[1]:.1f} after")
    if given.json:
        settings = {"rounds": given.rounds, "seconds_a_slice": given.seconds, "seconds_of_warming": given.warm}
        settings["peers"] = java_peer.version() | go_peer.version() | rust_peer.version()
        measure.save(given.json, found, settings, before)


if __name__ == "__main__":
    main()
