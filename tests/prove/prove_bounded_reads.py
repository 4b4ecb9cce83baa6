# SPDX-License-Identifier: Apache-2.0
"""The kit for bounded reads with the readers of all clients and Spark's own Kafka source.

    python tests/prove/prove_bounded_reads.py [--timeout 15] [--results FOLDER]

The readers of clients run in a process for each check. Spark runs in one process for all checks, because it takes long
to start. The results are written to bounded-reads.txt in tests/results (or FOLDER) as they are. The proof fails if a
reader of kcodec has a result other than "ok", or if Spark could not run at all.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kcodec.testing.bounded_reads import ISOLATION_LEVELS, Result, Row, bounded_topics, check, table
from kcodec.testing.bounded_reads.readers import READERS, command_of
from kcodec.testing.java import find_java
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
SPARK_JARS = ROOT / ".cache" / "spark-kafka" / "*"
#: Number of checks at the same time.
JOBS = 6
#: Seconds for the first job of Spark, which starts its processes.
START_SECONDS = 120.0


def spark_results(servers: str, timeout: float) -> list[Result]:
    """Check Spark's own Kafka source as a batch query, with the default options except the isolation level."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{2 * JOBS}]").appName("bounded reads")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraClassPath": str(SPARK_JARS),
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def read(bootstrap_servers: str, topic: str, isolation_level: str) -> Iterator[Row]:
        frame = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("kafka.isolation.level", isolation_level)
            .option("subscribe", topic)
            .load()
            .select("partition", "offset", "key", "value")
        )
        for partition, offset, key, value in frame.collect():
            yield Row(partition, offset, _bytes(key), _bytes(value))

    return _all_results({"spark-kafka": read}, servers, timeout, JOBS)


def _all_results(readers: dict[str, Any], servers: str, timeout: float, jobs: int) -> list[Result]:
    """Read one topic so that everything is started, then check all topics."""
    with bounded_topics(servers) as topics:
        plain = [topic for topic in topics if topic.case == "plain"]
        check(readers, servers, plain, isolation_levels=ISOLATION_LEVELS[:1], timeout=START_SECONDS)
        return check(readers, servers, topics, timeout=timeout, jobs=jobs)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def in_process(part: str, servers: str, timeout: float) -> tuple[list[str], bool]:
    """Run the checks of Spark in a process. Return the lines of its table, and whether it could run."""
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as written, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, __file__, "--part", part, servers, written.name, "--timeout", str(timeout)]
        environment = {**os.environ, "JAVA_HOME": str(find_java().parent.parent)}
        done = subprocess.run(command, stdout=said, stderr=said, env=environment, check=False)
        lines = written.read().splitlines()
        said.seek(0)
        if done.returncode:
            lines += [f"exit status {done.returncode}", *said.read().splitlines()[-20:]]
    return lines, done.returncode == 0


def part(name: str, servers: str, path: str, timeout: float) -> None:
    """Write the table of one part. Threads of readers that hang must not keep the process."""
    results = {"spark": spark_results}[name](servers, timeout)
    module = {"spark": "pyspark"}[name]
    Path(path).write_text(f"{module} {version(module)}\n\n{table(results)}", encoding="utf-8")
    os._exit(0 if any(one.is_ok for one in results) else 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all readers and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=15.0, help="seconds for each check")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results", help="folder of the results")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.part:
        name, servers, path = given.part
        part(name, servers, path, given.timeout)
    with ApacheKafka() as kafka:
        servers = kafka.bootstrap_servers
        with bounded_topics(servers) as topics:
            results = check(
                {name: command_of(name) for name in READERS}, servers, topics, timeout=given.timeout, jobs=JOBS
            )
        spark, has_spark = in_process("spark", servers, given.timeout)
    names = ("kcodec", "confluent-kafka", "aiokafka", "kafka-python")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    lines = [
        f"python tests/prove/prove_bounded_reads.py --timeout {given.timeout:g}, {datetime.date.today()}",
        f"Kafka {KAFKA_VERSION}, Python {platform.python_version()}, {versions}",
        f'"hangs": did not end within {given.timeout:g} s. "rows": expected rows. The page docs/bounded-reads.md '
        "describes cases and readers.",
        "",
        *table(results).splitlines(),
        "",
        "Spark's own Kafka source (batch query), " + "\n".join(spark),
    ]
    (given.results / "bounded-reads.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    own = [one for one in results if one.reader.startswith("kcodec")]
    failed = [f"{one.reader}, {one.case}, {one.isolation_level}: {one.outcome}" for one in own if not one.is_ok]
    print("\n".join(failed) or f"kcodec: {len(own)} checks, all ok")
    return 0 if not failed and has_spark else 1


if __name__ == "__main__":
    sys.exit(main())
