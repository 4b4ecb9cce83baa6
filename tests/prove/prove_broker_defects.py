# SPDX-License-Identifier: Apache-2.0
"""Put defects into the embedded broker, one at a time: the comparison with Kafka finds each within 50 sequences.

    python tests/prove/prove_broker_defects.py --results tests/results

The sequences run on Apache Kafka once. The responses and logs are kept in memory and compared with those of the broker
as it is, which must not differ, and of the broker with each defect. The number of sequences that each defect needed is
written to broker-defects.txt in the folder of results. Exit status 1: a defect was not found, or the broker differs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_defects import DEFECTS, Defect, defective
from broker_differences import Difference, first_difference
from broker_preparation import core_target, kafka_properties, prepare
from broker_sequence_runner import Run, run_sequence
from broker_sequences import PROFILES, Sequence
from broker_targets import SocketTarget

from kcodec.testing.kafka import ApacheKafka

SEQUENCES = 50
#: Every fifth sequence begins with epochs that are nearly used up.
EPOCHS_EVERY = 5


def sequences(first: int) -> list[Sequence]:
    """Return the sequences, new ones for each run."""
    names = ["epochs" if number % EPOCHS_EVERY == EPOCHS_EVERY - 1 else "tv2" for number in range(SEQUENCES)]
    return [Sequence(first + number, PROFILES[name]) for number, name in enumerate(names)]


def on_kafka(first: int) -> list[Run]:
    """Run all sequences on Apache Kafka."""
    profile = PROFILES["epochs"]
    with ApacheKafka(transaction_version=profile.transaction_version, **kafka_properties(profile)) as kafka:
        before = SocketTarget(kafka.bootstrap_servers)
        prepare(before, sequences(first))
        kafka.restart()
        target = SocketTarget(kafka.bootstrap_servers).knowing(before.prepared)
        return [run_sequence(sequence, target) for sequence in sequences(first)]


def found_by(first: int, runs: list[Run]) -> tuple[int, Difference | str] | None:
    """Return the number of sequences that the broker as it now is needed, and what differed; None if nothing did."""
    target = core_target(PROFILES["epochs"])
    prepare(target, sequences(first))
    target.core.restart_coordinators()
    for number, (sequence, expected) in enumerate(zip(sequences(first), runs, strict=True), 1):
        try:
            difference = first_difference(expected, run_sequence(sequence, target))
        except AssertionError as error:  # no response, or a topic without a leader
            return number, str(error)
        if difference is not None:
            return number, difference
    return None


def where(found: Difference | str) -> str:
    """Return in a few words what differed."""
    if isinstance(found, str):
        return found[:80]
    return f"{found.step.kind}, {found.fields[0][0]}"[:80]


def try_defect(defect: Defect, first: int, runs: list[Run]) -> tuple[int, Difference | str] | None:
    """Return what `found_by` does for the broker with this defect."""
    with defective(defect):
        return found_by(first, runs)


def main() -> int:
    """Try all defects; 0 if each is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="folder of the result file")
    options = parser.parse_args()
    begun = time.monotonic()
    runs = on_kafka(options.seed)
    control = found_by(options.seed, runs)
    lines = [f"sequences that a defect of the broker needed to be found, of {SEQUENCES}; seed {options.seed}", ""]
    logging.disable(logging.CRITICAL)  # a defect may be loud
    missed = 0
    for defect in DEFECTS:
        found = try_defect(defect, options.seed, runs)
        missed += found is None
        shown = "not found" if found is None else f"{found[0]:9}  {where(found[1])}"
        lines.append(f"{defect.name:72} {shown}")
        print(lines[-1], flush=True)
    lines += ["", f"the broker without a defect: {'no difference' if control is None else control}"]
    lines.append(f"{len(DEFECTS)} defects, {len(DEFECTS) - missed} found, {time.monotonic() - begun:.0f} s")
    print(*lines[-2:], sep="\n")
    if options.results is not None:
        with contextlib.suppress(FileExistsError):
            options.results.mkdir(parents=True)
        (options.results / "broker-defects.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if missed or control is not None else 0


if __name__ == "__main__":
    sys.exit(main())
