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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_differences import first_difference
from broker_preparation import core_target, kafka_properties, prepare
from broker_sequence_runner import Run, TooSlow, run_sequence
from broker_sequences import PROFILES, Profile, Sequence
from broker_targets import SocketTarget

from kcodec.testing.kafka import ApacheKafka

ALL = 2000
ATTEMPTS, AT_A_TIME = 5, 24


class Totals:
    """What all sequences have seen."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.sequences: Counter[str] = Counter()
        self.differences = 0
        #: Sequences with a clock for which the machine was too slow.
        self.repeated = 0

    def add(self, profile: Profile, expected: Run, found: Run) -> None:
        """Compare two runs of a sequence, and count what the first one saw."""
        self.codes += expected.codes
        self.transitions += expected.transitions
        self.sequences[profile.name] += 1
        difference = first_difference(expected, found)
        if difference is not None:
            self.differences += 1
            print(difference, flush=True)


def run_profile(profile: Profile, seeds: range, totals: Totals) -> None:
    """Run the sequences of one profile, on a Kafka of its own."""
    begun = time.monotonic()
    with ApacheKafka(transaction_version=profile.transaction_version, **kafka_properties(profile)) as kafka:
        if profile.has_clock:
            run_in_parallel(profile, seeds, totals, kafka.bootstrap_servers)
        else:
            run_in_order(profile, seeds, totals, kafka)
    print(f"{profile.name}: {totals.sequences[profile.name]} sequences, {time.monotonic() - begun:.0f} s", flush=True)


def run_in_order(profile: Profile, seeds: range, totals: Totals, kafka: ApacheKafka) -> None:
    """Run one sequence after another."""
    salt = time.time_ns() % (1 << 32)
    sequences = [Sequence(seed, profile, salt) for seed in seeds]
    ours = core_target(profile)
    theirs = SocketTarget(kafka.bootstrap_servers)
    if profile.prepared:
        for target in (theirs, ours):
            prepare(target, sequences)
        kafka.restart()
        ours.core.restart_coordinators()
        theirs = SocketTarget(kafka.bootstrap_servers).knowing(theirs.prepared)
    for sequence in sequences:
        expected = run_sequence(sequence, theirs)
        totals.add(profile, expected, run_sequence(Sequence(sequence.seed, profile, salt), ours))
    theirs.close()


def run_in_parallel(profile: Profile, seeds: range, totals: Totals, address: str) -> None:
    """Run many sequences at a time: they wait most of the time."""

    def on_kafka(seed: int) -> tuple[Sequence, Run]:
        for _ in range(ATTEMPTS):
            sequence = Sequence(seed, profile, time.time_ns() % (1 << 32))
            kafka = SocketTarget(address)
            try:
                return sequence, run_sequence(sequence, kafka)
            except TooSlow:
                totals.repeated += 1
            finally:
                kafka.close()
        raise TooSlow(f"seed {seed}: {ATTEMPTS} attempts")

    SocketTarget(address).close()
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for sequence, expected in threads.map(on_kafka, seeds):
            again = Sequence(sequence.seed, profile, sequence.salt)
            totals.add(profile, expected, run_sequence(again, core_target(profile)))


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
