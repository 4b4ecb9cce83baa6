# SPDX-License-Identifier: Apache-2.0
"""The kit for bounded reads with the readers of all clients, Spark's own Kafka source and Ray Data.

    python tests/prove/prove_bounded_reads.py [--timeout 15] [--results FOLDER] [--only-ray]

The readers of clients run in a process for each check. Spark and Ray each run in one process for all checks, because
they take long to start; Ray is installed from requirements/ray.txt into its own virtual environment. The results are
written to bounded-reads.txt in tests/results (or FOLDER) as they are. Then kcodec.ray reads all golden topics
(tests/golden) from a broker that has their logs, next to kcodec.read_topic. With --only-ray the proof is this and the
kit with Ray, and writes ray.txt. The proof fails if a reader of kcodec has a result other than "ok" or other
rows, if another reader could not run at all, or if Ray's own reader no longer hangs at a trailing marker, as the
results say.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

import kcodec
from kcodec.client import Admin, NewTopic, Producer
from kcodec.testing.bounded_reads import ISOLATION_LEVELS, Result, Row, bounded_topics, check, table
from kcodec.testing.bounded_reads.readers import READERS, command_of
from kcodec.testing.java import find_java
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
SPARK_JARS = ROOT / ".cache" / "spark-kafka" / "*"
RAY_ENVIRONMENT = ROOT / ".cache" / "ray"
RAY_REQUIREMENTS = ROOT / "requirements" / "ray.txt"
#: The checks of Ray and Spark share one process each, so that more of them run at the same time.
JOBS = 6
#: Each dataset of Ray starts worker processes, and one that hangs keeps them.
RAY_JOBS = 3
RAY_SECONDS = 40.0
#: Seconds for the first job of Spark or Ray, which starts their processes.
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


def ray_results(servers: str, timeout: float) -> list[Result]:
    """Check ray.data.read_kafka, with the default options except the isolation level, and kcodec.ray."""
    import ray
    import ray.data

    from kcodec.ray import KafkaDatasource

    ray.init(num_cpus=64, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def read(bootstrap_servers: str, topic: str, isolation_level: str) -> Iterator[Row]:
        dataset = ray.data.read_kafka(
            topic,
            bootstrap_servers=bootstrap_servers,
            start_offset="earliest",
            end_offset="latest",
            consumer_config={"isolation.level": isolation_level},
        )
        for row in dataset.iter_rows():
            yield Row(row["partition"], row["offset"], row["key"], row["value"])

    def read_by_kcodec(bootstrap_servers: str, topic: str, isolation_level: Any) -> Iterator[Row]:
        source = KafkaDatasource(topic, bootstrap_servers=bootstrap_servers, isolation_level=isolation_level)
        for row in ray.data.read_datasource(source).iter_rows():
            yield Row(row["partition"], row["offset"], row["key"], row["value"])

    check_columns_of_ray(servers)
    return _all_results({"kcodec-ray": read_by_kcodec, "ray": read}, servers, RAY_SECONDS, RAY_JOBS)


def check_columns_of_ray(servers: str) -> None:
    """Read a topic with repeated headers and a divided range. Raise AssertionError if kcodec.ray returns other rows
    than kcodec.read_topic."""
    import pyarrow
    import ray.data

    from kcodec import ray as kcodec_ray

    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("ray-columns", 2)])
    with Producer(bootstrap_servers=servers, transactional_id="ray-columns") as producer:
        for number in range(4):
            with producer.transaction() as transaction:
                for index in range(20):
                    headers = [("h", b"1"), ("h", b"2"), ("n", None)] if index % 2 else ()
                    transaction.send("ray-columns", b"%d" % number, headers=headers, partition=index % 2)
                producer.flush()
                if number % 2:
                    transaction.abort()
    usual, kcodec_ray.MIN_TASK_OFFSETS = kcodec_ray.MIN_TASK_OFFSETS, 10
    try:
        source = kcodec_ray.KafkaDatasource("ray-columns", bootstrap_servers=servers)
        assert len(source.get_read_tasks(6)) > len(source.ranges) == 2, source.ranges
        rows = ray.data.read_datasource(source, override_num_blocks=6).take_all()
    finally:  # Ray keeps the order of a partition only if one task reads it
        kcodec_ray.MIN_TASK_OFFSETS = usual
    with kcodec.read_topic("ray-columns", bootstrap_servers=servers) as records:
        expected = pyarrow.RecordBatchReader.from_stream(records).read_all().to_pylist()
    key = itemgetter("partition", "offset")
    assert len(expected) == 40 and sorted(rows, key=key) == sorted(expected, key=key)


def ray_golden(servers: str, timeout: float) -> list[str]:
    """Read all topics of a broker by one dataset of Ray for each isolation level. Return a line for each. Raise
    AssertionError if its rows are not those of kcodec.read_topic, or a topic ends in another error."""
    import pyarrow
    import ray
    import ray.data

    from kcodec.ray import KafkaDatasource

    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with Admin(bootstrap_servers=servers) as admin:
        topics = sorted(name for name in admin.list_topics() if not name.startswith("__"))
    lines = []
    for isolation_level in ISOLATION_LEVELS:
        options: dict[str, Any] = {"bootstrap_servers": servers, "isolation_level": isolation_level}
        expected: list[dict[str, Any]] = []
        refused: dict[str, str] = {}
        for topic in topics:
            try:
                with kcodec.read_topic(topic, **options) as records:
                    expected += pyarrow.RecordBatchReader.from_stream(records).read_all().to_pylist()
            except kcodec.errors.KcodecError as error:
                refused[topic] = type(error).__name__
        for topic, error_name in refused.items():
            try:
                ray.data.read_datasource(KafkaDatasource(topic, **options)).take_all()
            except Exception as error:  # noqa: BLE001  an error of Ray, which names that of kcodec
                assert error_name in str(error), (topic, error_name, error)
            else:
                raise AssertionError(f"{topic}: read_topic raises {error_name}, and Ray reads it")
        source = KafkaDatasource([topic for topic in topics if topic not in refused], **options)
        rows = ray.data.read_datasource(source).take_all()
        key = itemgetter("topic", "partition", "offset")
        assert sorted(rows, key=key) == sorted(expected, key=key), f"{len(rows)} rows of Ray, {len(expected)} expected"
        names = ", ".join(f"{topic} ({error_name})" for topic, error_name in refused.items()) or "none"
        lines.append(
            f"{len(topics)} golden topics, {isolation_level}: {len(rows)} rows, equal to read_topic; refused by both: "
            f"{names}"
        )
    ray.shutdown()
    return lines


def _all_results(readers: dict[str, Any], servers: str, timeout: float, jobs: int) -> list[Result]:
    """Read one topic so that everything is started, then check all topics."""
    with bounded_topics(servers) as topics:
        plain = [topic for topic in topics if topic.case == "plain"]
        check(readers, servers, plain, isolation_levels=ISOLATION_LEVELS[:1], timeout=START_SECONDS)
        return check(readers, servers, topics, timeout=timeout, jobs=jobs)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def ray_python() -> Path:
    """Return the Python of the virtual environment with Ray, which is created if requirements/ray.txt is newer."""
    python = RAY_ENVIRONMENT / "bin" / "python"
    stamp = RAY_ENVIRONMENT / "installed"
    if not stamp.exists() or stamp.stat().st_mtime < RAY_REQUIREMENTS.stat().st_mtime:
        venv.create(RAY_ENVIRONMENT, with_pip=True, clear=True)
        options = ["--quiet", "--require-hashes", "--no-deps", "--requirement", str(RAY_REQUIREMENTS)]
        subprocess.run([python, "-m", "pip", "install", *options], check=True)
        stamp.touch()
    return python


def in_process(python: Path, part: str, servers: str, timeout: float) -> tuple[list[str], bool]:
    """Run the checks of Spark or Ray in a process. Return the lines of its table, and whether all readers ran."""
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as written, tempfile.TemporaryFile("w+") as said:
        command = [str(python), __file__, "--part", part, servers, written.name, "--timeout", str(timeout)]
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "RAY_USAGE_STATS_ENABLED": "0",
            "JAVA_HOME": str(find_java().parent.parent),
        }
        done = subprocess.run(command, stdout=said, stderr=said, env=environment, check=False)
        outcome, *lines = written.read().splitlines() or ["failed"]
        if not lines:
            said.seek(0)
            lines = [f"exit status {done.returncode}", *said.read().splitlines()[-20:]]
    return lines, outcome == "passed"


def part(name: str, servers: str, path: str, timeout: float) -> None:
    """Write the outcome and the table of one part. Threads of readers that hang must not keep the process."""
    module = {"spark": "pyspark"}.get(name, "ray")
    if name == "golden":
        lines = ray_golden(servers, timeout)
        Path(path).write_text("\n".join(["passed", *lines]) + "\n", encoding="utf-8")
        os._exit(0)
    results = {"spark": spark_results, "ray": ray_results}[name](servers, timeout)
    own = [one for one in results if one.reader.startswith("kcodec")]
    is_passed = any(one.is_ok for one in results) and all(one.is_ok for one in own)
    if name == "ray":  # a newer Ray may end there: the pages say what this one does
        theirs = {one.case: one.outcome for one in results if one.reader == "ray"}
        is_passed = is_passed and theirs["commit-marker"].startswith("hangs") and theirs["plain"] == "ok"
    outcome = "passed" if is_passed else "failed"
    Path(path).write_text(f"{outcome}\n{module} {version(module)}\n\n{table(results)}", encoding="utf-8")
    if name == "ray":
        import ray

        ray.shutdown()
    os._exit(0)


def golden_lines(timeout: float) -> tuple[list[str], bool]:
    """Run the part with the golden topics on a broker of its own."""
    from prove_consumer_equality import golden_topics, imported

    with ApacheKafka() as kafka:
        imported(kafka, golden_topics())
        return in_process(ray_python(), "golden", kafka.bootstrap_servers, timeout)


def only_ray(results: Path, timeout: float) -> int:
    """Run the parts with Ray."""
    with ApacheKafka() as kafka:
        ray, has_ray = in_process(ray_python(), "ray", kafka.bootstrap_servers, timeout)
    golden, has_golden = golden_lines(timeout)
    lines = [
        f"python tests/prove/prove_bounded_reads.py --only-ray, {datetime.date.today()}",
        f"Ray Data (read_kafka, and kcodec.ray; {RAY_SECONDS:g} s for each check), " + "\n".join(ray),
        "",
        *golden,
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "ray.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0 if has_ray and has_golden else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all readers and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=15.0, help="seconds for each check")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results", help="folder of the results")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only-ray", action="store_true", help="only the parts with Ray")
    given = parser.parse_args(arguments)
    if given.part:
        name, servers, path = given.part
        part(name, servers, path, given.timeout)
    if given.only_ray:
        return only_ray(given.results, given.timeout)
    with ApacheKafka() as kafka:
        servers = kafka.bootstrap_servers
        with bounded_topics(servers) as topics:
            results = check(
                {name: command_of(name) for name in READERS}, servers, topics, timeout=given.timeout, jobs=JOBS
            )
        spark, has_spark = in_process(Path(sys.executable), "spark", servers, given.timeout)
        ray, has_ray = in_process(ray_python(), "ray", servers, given.timeout)
    golden, has_golden = golden_lines(given.timeout)
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
        "",
        f"Ray Data (read_kafka, and kcodec.ray; {RAY_SECONDS:g} s for each check), " + "\n".join(ray),
        "",
        *golden,
    ]
    (given.results / "bounded-reads.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    own = [one for one in results if one.reader.startswith("kcodec")]
    failed = [f"{one.reader}, {one.case}, {one.isolation_level}: {one.outcome}" for one in own if not one.is_ok]
    print("\n".join(failed) or f"kcodec: {len(own)} checks, all ok")
    return 0 if not failed and has_spark and has_ray and has_golden else 1


if __name__ == "__main__":
    sys.exit(main())
