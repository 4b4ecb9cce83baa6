# SPDX-License-Identifier: Apache-2.0
"""kcodec's consumer compared with Java's, record for record, on logs that a real broker serves.

    python tests/prove/prove_consumer_equality.py [--seeds 40] [--steps 150] [--results FOLDER]

1. Every golden log whose partition a broker can take (tests/golden: all topics but the brokers' own) is put onto the
   disk of a stopped Apache Kafka, which recovers them at its start, open transactions and compacted logs included. Both
   consumers read all of them under both isolation levels, kcodec also in portions of few bytes and few records.
2. Random transactional workloads of three producers and a plain one, read while transactions are open and after.

Written to consumer-equality.txt in tests/results (or FOLDER). The exit status is 0 if nothing differs.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import golden_data
from consumer_equality import Isolation, difference, random_workload

from kcodec.admin.values import NewTopic
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
#: Written by an orderly shutdown (CleanShutdownFileHandler).
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
SMALL: dict[str, Any] = {"max_partition_fetch_bytes": 1000, "max_poll_records": 7}
WAYS: tuple[tuple[Isolation, dict[str, Any]], ...] = (
    ("read_committed", {}),
    ("read_uncommitted", {}),
    ("read_committed", SMALL),
    ("read_committed", {"check_crcs": False}),
)


def golden_topics() -> dict[str, golden_data.Partition]:
    """Topic of ours -> a golden partition."""
    return {
        f"{partition.cluster}-{partition.topic}-{partition.partition}": partition
        for partition in golden_data.partitions()
        if not partition.topic.startswith("__")
    }


def imported(kafka: ApacheKafka, topics: dict[str, golden_data.Partition]) -> None:
    """Make the topics, stop the broker, put the segments in place of its own, and let it recover: without the file that
    says that it was stopped in an orderly way it looks through its logs, as after a crash."""
    configs = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    with kafka_admin(kafka) as admin:
        admin.create_topics([NewTopic(name, 1, 1, configs=configs) for name in topics])
    folders = {name: Path(kafka.log_directory) / f"{name}-0" for name in topics}
    deadline = time.monotonic() + 30
    while not all((folder / "partition.metadata").exists() for folder in folders.values()):
        assert time.monotonic() < deadline, "the broker has not made all logs"
        time.sleep(0.1)
    kafka.stop()
    (Path(kafka.log_directory) / CLEAN_SHUTDOWN_FILE).unlink()
    for name, partition in topics.items():
        folder = folders[name]
        for path in folder.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for segment in partition.segments:
            shutil.copy(segment, folder / segment.name)
    kafka.start()


def kafka_admin(kafka: ApacheKafka) -> Any:
    from kcodec.client import Admin

    return Admin(bootstrap_servers=kafka.bootstrap_servers)


def prove_golden(lines: list[str]) -> int:
    """Lines for the result; how many ways found a difference."""
    faults = 0
    with ApacheKafka() as kafka:
        topics = golden_topics()
        imported(kafka, topics)
        for isolation_level, options in WAYS:
            began = time.monotonic()
            count, reported = difference(kafka.bootstrap_servers, topics, isolation_level, **options)
            faults += reported is not None
            how = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
            lines.append(
                f"{len(topics)} golden logs, {isolation_level}, {how}: {count} records of Java's consumer, "
                f"{'equal' if reported is None else 'DIFFERENT'}, {time.monotonic() - began:.1f} s"
            )
            print(lines[-1], reported or "", flush=True)
    return faults


def prove_random(lines: list[str], seeds: int, steps: int) -> int:
    """Likewise for random workloads."""
    faults = 0
    total = 0
    with ApacheKafka() as kafka:
        for seed in range(seeds):
            topic = kafka.create_topic(partitions=3)
            try:
                random_workload(kafka, topic, 3, seed, steps)
            except AssertionError as reported:
                faults += 1
                print(reported, flush=True)
            for isolation_level, options in WAYS:
                count, found = difference(kafka.bootstrap_servers, [topic], isolation_level, **options)
                total += count
                if found is not None:
                    faults += 1
                    print(f"seed {seed}, {isolation_level}, {options}\n{found}", flush=True)
    lines.append(f"{seeds} random workloads of {steps} steps: {total} records compared, {faults} differences")
    print(lines[-1], flush=True)
    return faults


def main() -> int:
    """Both parts; their result into a file."""
    parser = argparse.ArgumentParser(description="consumers compared with each other")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results")
    arguments = parser.parse_args()
    lines = [f"consumer compared with Java's, {datetime.date.today().isoformat()}"]
    faults = prove_golden(lines)
    faults += prove_random(lines, arguments.seeds, arguments.steps)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "consumer-equality.txt").write_text("\n".join(lines) + "\n", "utf-8")
    print(lines[1], "...", lines[-1])
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
