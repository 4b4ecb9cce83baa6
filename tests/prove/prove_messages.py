# SPDX-License-Identifier: Apache-2.0
"""Edited bytes of every message and version: kcodec reads, writes or refuses as the slow reference does, and as Kafka.

    python tests/prove/prove_messages.py [--edits 200000] [--seed N] [--minutes 20] [--kafka 10]

Starts from messages of random values and from captured frames. Each edit has its own number: `--seed` is the first, and
a failing one is shown so that `--seed THAT --edits 1 --kafka 1` repeats it. Every tenth (`--kafka 10`) also goes
through Kafka's own classes; 0: none. One line tells the result; the exit status is 0 only if no answer differed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from every_message import EVERY
from golden_frames import frames
from java_judge import JavaJudge
from message_edits import difference, edited, kafka_difference
from reference_messages import sample

from kcodec.protocol.schema import Message

# Captured frames that are longer are left out: the reference is slow.
LARGEST_FRAME = 3000

Case = tuple[type[Message], int, bytes]


@cache
def captured() -> list[Case]:
    return [(frame.kind, frame.version, frame.body) for frame in frames() if len(frame.body) <= LARGEST_FRAME]


def case_of(number: int) -> Case:
    """The edit of this number, the same each time."""
    chooser = random.Random(number)
    if chooser.randrange(3) == 0:
        kind, version, data = chooser.choice(captured())
    else:
        kind, version = chooser.choice(EVERY)
        data = sample(kind, version, chooser, density=chooser.choice((0.2, 0.9))).encode(version)
    return kind, version, edited(data, chooser)


def differing(number: int, judge: JavaJudge | None) -> str | None:
    """What is wrong with an edit."""
    kind, version, data = case_of(number)
    found = difference(kind, data, version)
    if found is None and judge is not None:
        found = kafka_difference(judge, kind, data, version)
    return None if found is None else f"edit {number} ({kind.__name__} version {version}, {data.hex()[:400]}): {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description="edited messages compared with a reference and Kafka's classes")
    parser.add_argument("--edits", type=int, default=200_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first edit (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after so long (default: %(default)s)")
    parser.add_argument("--kafka", type=int, default=10, help="every which one also asks Kafka (default: %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    wrong: list[str] = []
    done = asked = 0
    with JavaJudge() as judge:
        for number in range(arguments.seed, arguments.seed + arguments.edits):
            if time.monotonic() > began + arguments.minutes * 60 or len(wrong) >= 20:
                break
            is_asked = arguments.kafka > 0 and number % arguments.kafka == 0
            found = differing(number, judge if is_asked else None)
            wrong += [] if found is None else [found]
            done, asked = done + 1, asked + is_asked
    for text in wrong:
        print(text[:2000], file=sys.stderr)
    took = time.monotonic() - began
    print(f"{done} edits from seed {arguments.seed}, {asked} by Kafka, in {took:.0f} s: {len(wrong)} differences")
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    sys.exit(main())
