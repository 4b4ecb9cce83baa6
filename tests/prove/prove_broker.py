# SPDX-License-Identifier: Apache-2.0
"""Compare the embedded broker with Apache Kafka: the same random sequences of requests to both, the same responses.

    python tests/prove/prove_broker.py --sequences 200 --seed 0 --transaction-version 2

Prints each difference with the steps before it, the number of steps by API and error code, and exits with 1 if there is
a difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from broker_sequences import Difference, Target, compare

from kcodec.broker import Broker
from kcodec.testing.kafka import ApacheKafka


def show(difference: Difference) -> None:
    """Print one difference."""
    print(f"seed {difference.seed}, step {difference.number}: {difference.step}")
    print(f"  Kafka: {str(difference.expected)[:1500]}")
    print(f"  ours:  {str(difference.found)[:1500]}")
    for step, result in difference.before[-14:]:
        print(f"    {step.kind} {step.arguments} -> {str(result)[:160]}")


def main() -> int:
    """Run the sequences; 0 if the brokers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transaction-version", type=int, default=2)
    parser.add_argument("--kafka", help="address of a running Kafka, instead of a new one")
    options = parser.parse_args()
    version = options.transaction_version
    with ApacheKafka(transaction_version=version) if options.kafka is None else Broker() as kafka:
        address = options.kafka or kafka.bootstrap_servers
        with Broker(transaction_version=version) as broker:
            return run(options, address, broker.bootstrap_servers)


def run(options: argparse.Namespace, address: str, ours: str) -> int:
    """Run the sequences against two addresses."""
    left, right = Target("Kafka", address), Target("ours", ours)
    coverage: Counter[tuple[str, str]] = Counter()
    differences = 0
    begun = time.monotonic()
    for seed in range(options.seed, options.seed + options.sequences):
        found = compare(seed, left, right, coverage, transaction_version=options.transaction_version)
        if found is not None:
            differences += 1
            show(found)
    for (kind, code), count in sorted(coverage.items()):
        print(f"{kind:14} {code:34} {count}")
    seconds = time.monotonic() - begun
    print(f"{options.sequences} sequences, {differences} with a difference, {seconds:.1f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
