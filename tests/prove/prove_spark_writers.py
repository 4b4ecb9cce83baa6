# SPDX-License-Identifier: Apache-2.0
"""Spark's at-least-once sinks while workers are killed and tasks run twice: nothing is lost, duplicates are counted.

    python tests/prove/prove_spark_writers.py [--seed 1] [--results FOLDER]

A standalone cluster with two hosts, so that Spark speculates; format("kcodec") and Spark's own format("kafka") meet the
same faults, in batch jobs and in streams. Judge is what read_topic delivers. Written to spark-writers.txt in
tests/results (or FOLDER). The exit status is 0 if no row is lost and each fault made a task run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from spark_standalone import StandaloneCluster
from spark_writers_job import PARTITIONS, ROWS

import kcodec
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
FAULTS = {"batch": ("kill task", "kill writers", "slow"), "stream": ("kill task", "slow")}
#: An Arrow batch of PySpark has 10,000 rows: the last one of a task comes after the fault.
BATCHES = ROWS // 10_000


def rounds_of(kafka: ApacheKafka, random_numbers: random.Random) -> list[dict[str, Any]]:
    """All faults for both sinks, the same victim for both."""
    found: list[dict[str, Any]] = []
    for kind, faults in FAULTS.items():
        for fault in faults:
            place = {"victim": random_numbers.randrange(PARTITIONS), "after": random_numbers.randrange(2, BATCHES)}
            found += [
                {
                    **place,
                    "sink": sink,
                    "kind": kind,
                    "fault": fault,
                    "servers": kafka.bootstrap_servers,
                    "topic": kafka.create_topic(partitions=3),
                }
                for sink in ("kcodec", "kafka")
            ]
    return found


def judge(one: dict[str, Any], attempts: Path) -> tuple[bool, str]:
    """Whether the round is right, and its line."""
    with kcodec.read_topic(one["topic"], bootstrap_servers=one["servers"]) as records:
        values = Counter(record.value for batch in records for record in batch.records())
    lost = {b"%d" % number for number in range(PARTITIONS * ROWS)} - values.keys()
    again = sum(not path.name.endswith("-0") for path in attempts.iterdir())
    what = f"{one['sink']:<7} {one['kind']:<7} {one['fault']:<13}"
    duplicates = sum(values.values()) - len(values)
    line = f"{what} tasks run again {again}, lost {len(lost):,}, duplicates {duplicates:,}"
    return not lost and again > 0, line


def main() -> int:
    """All rounds, in one Spark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    arguments = parser.parse_args()
    java_home = Path(os.environ.get("JAVA_HOME", ROOT / ".cache" / "java"))
    lines = [f"tests/prove/prove_spark_writers.py --seed {arguments.seed}: {PARTITIONS * ROWS:,} rows a round", ""]
    print(lines[0], flush=True)
    with tempfile.TemporaryDirectory() as name, ApacheKafka() as kafka:
        folder = Path(name)
        rounds = rounds_of(kafka, random.Random(arguments.seed))
        (folder / "rounds.json").write_text(json.dumps(rounds))
        with StandaloneCluster(java_home, folder) as cluster:
            script = ROOT / "tests" / "support" / "spark_writers_job.py"
            environment = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
            ran = subprocess.run(
                [sys.executable, str(script), cluster.url, str(folder)],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=1800,
                check=False,
            )
        if ran.returncode:
            print(ran.stdout, ran.stderr[-6000:])
            return 1
        judged = [judge(one, folder / "attempts" / str(number)) for number, one in enumerate(rounds)]
    lines += [line if is_right else f"WRONG {line}" for is_right, line in judged]
    print("\n".join(lines[2:]))
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "spark-writers.txt").write_text("\n".join(lines) + "\n")
    return int(not all(is_right for is_right, _ in judged))


if __name__ == "__main__":
    sys.exit(main())
