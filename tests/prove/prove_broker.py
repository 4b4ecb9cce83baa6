# SPDX-License-Identifier: Apache-2.0
"""Compare the embedded broker with Apache Kafka: the same random sequences of requests to both, the same responses.

    python tests/prove/prove_broker.py --sequences 2000 --seed 0 --results tests/results
    python tests/prove/prove_broker.py --profile tv2 --sequences 100

The sequences are divided among the profiles of broker_sequences.py. Each difference is printed with the steps before
it. A table says how often each API responded with each error code, and how often transactional ids went from one state
to another; it is written to broker-differential.txt in the folder of results. After the table are the pairs and
transitions that occurred less than 20 times, or less than the share of 20 that a smaller number of sequences has.

Exit status 1: a difference; a pair or a transition that is not listed in broker_coverage.py; or, if 2,000 sequences of
all profiles were requested, one that occurred less than 20 times.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_coverage import ALL, IMPOSSIBLE, LEAST, LISTED_DIFFERENCES, not_listed, too_rare
from broker_differences import first_difference
from broker_preparation import core_target, kafka_properties, prepare
from broker_sequence_runner import Run, TooSlow, run_sequence
from broker_sequences import PROFILES, Profile, Sequence
from broker_targets import SocketTarget

from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

ATTEMPTS, AT_A_TIME = 20, 24


class Totals:
    """What all sequences have seen."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.sequences: Counter[str] = Counter()
        self.differences = 0
        #: When the present profile has to end, by time.monotonic().
        self.deadline = math.inf
        #: Sequences with a clock for which the machine was too slow.
        self.repeated = 0
        #: Those of them that were not fast enough in any attempt.
        self.given_up = 0

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
        if time.monotonic() > totals.deadline:
            break
        expected = run_sequence(sequence, theirs)
        totals.add(profile, expected, run_sequence(Sequence(sequence.seed, profile, salt), ours))
    theirs.close()


def run_in_parallel(profile: Profile, seeds: range, totals: Totals, address: str) -> None:
    """Run many sequences at a time: they wait most of the time."""

    def on_kafka(seed: int) -> tuple[Sequence, Run] | None:
        for _ in range(ATTEMPTS):
            if time.monotonic() > totals.deadline:
                return None
            sequence = Sequence(seed, profile, time.time_ns() % (1 << 32))
            kafka = SocketTarget(address)
            try:
                return sequence, run_sequence(sequence, kafka)
            except TooSlow:
                totals.repeated += 1
            finally:
                kafka.close()
        totals.given_up += 1
        return None

    SocketTarget(address).close()
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for done in threads.map(on_kafka, seeds):
            if done is not None:
                again = Sequence(done[0].seed, profile, done[0].salt)
                totals.add(profile, done[1], run_sequence(again, core_target(profile)))


def coverage(totals: Totals, requested: int) -> tuple[list[str], bool]:
    """Return what occurred too rarely for this number of sequences, and whether that makes the run fail."""
    is_all = requested >= ALL
    least = LEAST if is_all else LEAST * requested / ALL
    rare, others = too_rare(totals.codes, totals.transitions, least), not_listed(totals.codes, totals.transitions)
    lines = [f"pairs and transitions that occurred less than {least:g} times in {totals.sequences.total()} sequences:"]
    lines += [f"  {one}" for one in rare] or ["  none"]
    lines += [f"  {one}, and is not listed" for one in others]
    return lines, bool(others or (is_all and rare))


def report(totals: Totals, seconds: float) -> list[str]:
    """Return the lines of the result."""
    lines = []
    for title, counts in (("responses by API and error code", totals.codes), ("transitions", totals.transitions)):
        lines.append(f"{title}:")
        lines += [f"  {first:24} {second:38} {count:6}" for (first, second), count in sorted(counts.items())]
    lines.append("not compared, as one node does not respond so:")
    lines += [f"  {what}: {reason}" for what, reason in IMPOSSIBLE.items()]
    lines.append("differences that are left out:")
    lines += [f"  {number}. {text}" for number, text in enumerate(LISTED_DIFFERENCES, 1)]
    shares = ", ".join(f"{count} {name}" for name, count in totals.sequences.items())
    lines.append(f"sequences: {shares}")
    lines.append(f"repeated, as the machine was too slow for waits: {totals.repeated}, given up: {totals.given_up}")
    lines.append(f"{totals.sequences.total()} sequences, {totals.differences} with a difference, {seconds:.0f} s")
    return lines


def main() -> int:
    """Run the sequences; 0 if the brokers agree and everything occurred."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=ALL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", choices=PROFILES, help="only this one")
    parser.add_argument("--minutes", type=float, help="the most to take; fewer sequences are run then")
    parser.add_argument("--results", type=Path, help="folder of the result file")
    options = parser.parse_args()
    logging.getLogger("kcodec").setLevel(logging.ERROR)  # a marker that is fenced is part of the comparison
    totals = Totals()
    begun = time.monotonic()
    for profile in PROFILES.values():
        if options.profile in (None, profile.name):
            count = options.sequences
            if options.profile is None:
                count = max(options.sequences * profile.share // ALL, 1)
            if options.minutes is not None:
                share = 1 if options.profile else profile.share / ALL
                totals.deadline = time.monotonic() + 60 * options.minutes * share
            run_profile(profile, range(options.seed, options.seed + count), totals)
    lines = [f"random sequences on Apache Kafka {KAFKA_VERSION} and on the embedded broker, seed {options.seed}", ""]
    lines += report(totals, time.monotonic() - begun)
    is_incomplete = False
    if options.profile is None:
        covered, is_incomplete = coverage(totals, options.sequences)
        lines += covered
    print(*lines, sep="\n")
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "broker-differential.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if totals.differences or totals.given_up or is_incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
