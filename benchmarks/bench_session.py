# SPDX-License-Identifier: Apache-2.0
"""Consumers, groups and group transact sessions on a real Apache Kafka on this machine: how long things take.

Usage: python benchmarks/bench_session.py [--part NAME,...] [--rounds N] [--json FILE]

rebalance: from the moment a member joins, or begins to leave, a group of two to the first record that the new owner of
           a partition delivers; classic and consumer protocol, kcodec and Java's consumer in groups side by side
           (`session_rebalance`).
commit:    the end of a transaction with and without offsets, and from EndTxn to the record at a read_committed reader;
           a session, a plain producer of ours, Java's clients (`session_commit`).

Each part prints p50 and p99 in milliseconds; the JSON keeps what other parts wrote there before, and has the cores that
other processes used (`others`).
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

import measure

RESULTS = Path(__file__).resolve().parent / "results" / "session.json"
#: part -> the module whose `measure(kafka, rounds)` returns the results, and whose KAFKA has properties of the broker.
PARTS = {"rebalance": "session_rebalance", "commit": "session_commit"}


def main() -> None:
    """Measure, print, write."""
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    load, results = os.getloadavg()[0], {}
    for name in given.part.split(","):
        part = importlib.import_module(PARTS[name])
        with ApacheKafka(heap="256m", **getattr(part, "KAFKA", {})) as kafka:
            others = measure.OtherLoad()
            results[name] = part.measure(kafka, given.rounds)
            results[name]["others"] = round(others.cores(), 2)
        measure.save(given.json, results, {"rounds": given.rounds}, load, unit="ms")


if __name__ == "__main__":
    main()
