# SPDX-License-Identifier: Apache-2.0
"""Compare the embedded broker with Apache Kafka: the same random sequences of requests to both, the same responses.

    python tests/prove/prove_broker.py --sequences 2000 --seed 0 --results tests/results
    python tests/prove/prove_broker.py --profile tv2 --sequences 100

The sequences are divided among the profiles of broker_sequences.py. Each difference is printed with the steps before
it. A table says how often each API responded with each error code, and how often transactional ids went from one state
to another; it is written to broker-differential.txt in the folder of results. Exit status 1: a difference, or something
that a run of 2,000 sequences has too rarely.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_differences import first_difference
from broker_sequence_runner import run_sequence
from broker_sequences import PROFILES, Profile, Sequence
from broker_targets import CoreTarget, SocketTarget

from kcodec.testing.kafka import ApacheKafka

ALL = 2000
PARTITIONS = 3


class Totals:
    """What all sequences have seen."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.sequences: Counter[str] = Counter()
        self.differences = 0


def run_profile(profile: Profile, seeds: range, totals: Totals) -> None:
    """Run the sequences of one profile, on a Kafka of its own."""
    salt = time.time_ns() % (1 << 32)
    with ApacheKafka(transaction_version=profile.transaction_version) as kafka:
        theirs = SocketTarget(kafka.bootstrap_servers)
        ours = CoreTarget(
            transaction_version=profile.transaction_version,
            offsets_topic_partitions=PARTITIONS,
            transaction_topic_partitions=PARTITIONS,
        )
        for seed in seeds:
            expected = run_sequence(Sequence(seed, profile, salt), theirs)
            found = run_sequence(Sequence(seed, profile, salt), ours)
            totals.codes += expected.codes
            totals.transitions += expected.transitions
            totals.sequences[profile.name] += 1
            difference = first_difference(expected, found)
            if difference is not None:
                totals.differences += 1
                print(difference, flush=True)
        theirs.close()


def main() -> int:
    """Run the sequences; 0 if the brokers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=ALL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", choices=PROFILES, help="only this one")
    options = parser.parse_args()
    totals = Totals()
    begun = time.monotonic()
    for profile in PROFILES.values():
        if options.profile in (None, profile.name):
            count = options.sequences
            if options.profile is None:
                count = max(options.sequences * profile.share // ALL, 1)
            run_profile(profile, range(options.seed, options.seed + count), totals)
    for title, counts in (("responses", totals.codes), ("transitions", totals.transitions)):
        print(f"{title}:")
        for (first, second), count in sorted(counts.items()):
            print(f"  {first:24} {second:34} {count}")
    seconds = time.monotonic() - begun
    print(f"{sum(totals.sequences.values())} sequences, {totals.differences} with a difference, {seconds:.1f} s")
    return 1 if totals.differences else 0


if __name__ == "__main__":
    sys.exit(main())
