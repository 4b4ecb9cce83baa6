# SPDX-License-Identifier: Apache-2.0
"""Compare the embedded group coordinator with Apache Kafka: the same random requests to both, the same responses.

    python tests/prove/prove_group_coordinator.py --walks 300 --steps 40 --results tests/results

Walks of members of the classic protocol, of the consumer protocol, and of both protocols in one group take turns. In
one of ten mixed walks, members have short timeouts, which pass three times. At the end of a mixed walk, the records of
the group are compared as well. Prints each difference with the steps before it and the number of responses by API and
error code. Kafka's timers run a little late, so that once in a few hundred walks of the classic protocol a join meets
the generation before.

With --results, the table is written to group-coordinator.txt in this folder.

Exit status 1: a walk of the consumer protocol or of both differs, or more of the classic protocol than `--allowed`
says.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from group_pairs import ClassicWalk, ConsumerWalk, Walk, wait_for_groups
from mixed_pairs import MixedWalk

from kcodec.testing.kafka import ApacheKafka

#: One of this number of mixed walks has timeouts.
WITH_TIMEOUTS = 10


def main() -> int:
    """Take the walks. Return 0 if the two agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=300)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allowed", type=int, default=1, help="classic walks that may differ, of each 100")
    parser.add_argument("--only", choices=["ClassicWalk", "ConsumerWalk", "MixedWalk"], help="take walks of one kind")
    parser.add_argument("--results", type=Path, help="folder of the result file")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    differing: Counter[str] = Counter()
    begun = time.monotonic()
    at_once: dict[str, Any] = {
        "group_consumer_assignment_interval_ms": 0,
        "group_consumer_assignor_offload_enable": "false",
    }
    with ApacheKafka(**at_once, group_min_session_timeout_ms=1000) as kafka:
        topics = kafka.create_topic(partitions=3), kafka.create_topic(partitions=12)
        wait_for_groups(kafka.bootstrap_servers)
        kinds: tuple[type[Walk], ...] = (ClassicWalk, ConsumerWalk, MixedWalk)
        for seed in range(options.seed, options.seed + options.walks):
            for kind in kinds:
                if options.only not in (None, kind.__name__):
                    continue
                has_timeouts = {"has_timeouts": True} if kind is MixedWalk and seed % WITH_TIMEOUTS == 0 else {}
                walk = kind(kafka.bootstrap_servers, seed, f"walk-{uuid.uuid4()}", topics, **has_timeouts)
                walk.run(options.steps)
                walk.close()
                counts += walk.counts
                if walk.differences:
                    differing[kind.__name__] += 1
                    print(f"{kind.__name__} {seed}:", *walk.trace[-14:], *walk.differences, sep="\n  ")
    lines = [f"{api:24} {code:28} {number}" for (api, code), number in sorted(counts.items())]
    allowed = {ClassicWalk.__name__: options.allowed * -(-options.walks // 100)}
    differ = ", ".join(f"{number} of {kind}" for kind, number in sorted(differing.items())) or "none"
    lines.append(
        f"{options.walks} walks of each kind, {options.steps} steps, seed {options.seed}: {differ} differ from Apache"
        f" Kafka {kafka.version}, {time.monotonic() - begun:.0f} s"
    )
    print(*lines, sep="\n")
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "group-coordinator.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return 0 if all(number <= allowed.get(kind, 0) for kind, number in differing.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
