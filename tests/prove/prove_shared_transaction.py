# SPDX-License-Identifier: Apache-2.0
"""Four processes under one handle, with kills, and the end from a fifth: all or nothing, on four kinds of brokers.

    python tests/prove/prove_shared_transaction.py [--rounds 30] [--seed 1] [--results FOLDER]

A third of the rounds loses a writer (-9, in the middle of its records), half of them the owner, after the handle was
read. Judge is Kafka's own read_committed consumer: the records of committed rounds, each once, in order, and no other.
Written to shared-transaction.txt in tests/results (or FOLDER). The exit status is 0 if nothing is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from shared_story import WRITERS, SharedStory

from kcodec.testing.kafka import ApacheKafka

KINDS: dict[str, dict[str, object]] = {
    "4.4.0 transaction version 2": {},
    "4.4.0 transaction version 1": {"transaction_version": 1},
    "4.4.0 transaction version 0": {"transaction_version": 0},
    "4.3.1": {"version": "4.3.1"},
    "3.9.1": {"version": "3.9.1"},
}


def main() -> int:
    """All kinds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    arguments = parser.parse_args()
    lines = [f"tests/prove/prove_shared_transaction.py --rounds {arguments.rounds} --seed {arguments.seed}", ""]
    failed = False
    for name, options in KINDS.items():
        with ApacheKafka(**options) as kafka:  # type: ignore[arg-type]
            topic = kafka.create_topic(partitions=WRITERS)
            story = SharedStory(kafka, topic, kafka.bootstrap_servers, random.Random(arguments.seed), count=500)
            start = time.monotonic()
            for number in range(arguments.rounds):
                story.play(number)
            wrong = story.judge()
        failed = failed or bool(wrong)
        killed = ", ".join(f"{who} killed {times} times" for who, times in sorted(story.killed.items()))
        lines.append(
            f"{name:<30} {len(story.rounds)} transactions of {WRITERS} x {story.count} records, "
            f"{sum(story.rounds.values())} committed from a fifth process; {killed}; "
            f"{time.monotonic() - start:.0f} s: {'; '.join(wrong) or 'ok: 0 lost, 0 duplicates, 0 aborted read'}"
        )
        print(lines[-1], flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "shared-transaction.txt").write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
