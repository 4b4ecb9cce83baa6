# SPDX-License-Identifier: Apache-2.0
"""Long tests: longer versions of what `make test` does, and tests that it cannot do at all, with a file of results.

    python tools/prove.py [--only NAME ...] [--edits 100000] [--results FOLDER] [--list]

Each part is a function below whose Outcome is passed, failed, or not run, with the reason. After each part, the files
`prove-<date>.json` and `.txt` in tests/results (or FOLDER) are written, so that an interrupted run keeps its results. A
run with --only adds its parts to the file of the day. The exit status is 0 if no part failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import prove_core as core
from proving import FAILED, NOT_RUN, PASSED, ROOT, SCRATCH, Outcome, judged, run

from kcodec.testing.jars import TESTED_VERSIONS

# Parts.


def prove_edits(arguments: argparse.Namespace) -> tuple[str, str]:
    """Random edits of golden and generated record sets: kcodec agrees with the reference implementation."""
    seed = int(time.time())
    command = [sys.executable, "tests/fuzz/run.py", "--edits", str(arguments.edits), "--seed", str(seed)]
    return judged(run([*command, "--minutes", "120"]))


def prove_messages(arguments: argparse.Namespace) -> tuple[str, str]:
    """Edited bytes of every message and version: kcodec handles them as a slow reference and Kafka do."""
    command = [sys.executable, "tests/prove/prove_messages.py", "--edits", str(2 * arguments.edits)]
    return judged(run([*command, "--seed", str(int(time.time())), "--minutes", "60"]))


def prove_long(arguments: argparse.Namespace) -> tuple[str, str]:
    """All tests but Spark's with long searches."""
    return judged(
        run([sys.executable, "-m", "pytest", "-q", "-m", "not spark", "--no-header"], {"KCODEC_PROFILE": "long"})
    )


def prove_brokers(arguments: argparse.Namespace) -> tuple[str, str]:
    """The tests that use a broker, on Kafka 4.3.1. Differences of 3.9.1 are tested by `make test`."""
    status, details = PASSED, []
    for version in TESTED_VERSIONS[1:-1]:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not spark", "--no-header", "--kafka-version", version]
        status_of, detail = judged(run(command, {"KCODEC_PROFILE": "short"}))
        status = status_of if status == PASSED else status
        details.append(f"{version}: {detail}")
    return status, "\n".join(details)


def prove_spark(arguments: argparse.Namespace) -> tuple[str, str]:
    """Every call for Spark on 3.5 to 4.3, on local-cluster and through Connect; Spark's tests on the older ones."""
    program = ROOT / "tests" / "prove" / "prove_spark_versions.py"
    if not program.exists():
        return NOT_RUN, "tests/prove/prove_spark_versions.py is not there"
    return judged(run([sys.executable, program]), "see the versions in its own output")


def prove_big(arguments: argparse.Namespace) -> tuple[str, str]:
    """A log of a gigabyte is streamed in a new process with less than 200 MB of memory."""
    program = ROOT / "tests" / "prove" / "prove_big_file.py"
    return judged(run([sys.executable, program, SCRATCH]))


def prove_peers(arguments: argparse.Namespace) -> tuple[str, str]:
    """aiokafka's and kafka-python's own record tests on kcodec.compat, if --peers has their checkouts."""
    if not arguments.peers:
        return NOT_RUN, "give --peers aiokafka=CHECKOUT kafka-python=CHECKOUT"
    written = arguments.results / "peer-record-tests.txt"
    command = [sys.executable, ROOT / "tools" / "peer_record_tests.py", *arguments.peers, "--write", written]
    return judged(run(command), "see peer-record-tests.txt")


def prove_broker_peers(arguments: argparse.Namespace) -> tuple[str, str]:
    """Kafka's tools and, if --peers has their checkouts, other clients' tests on the embedded broker."""
    written = arguments.results / "broker-peer-tests.txt"
    programs = [[ROOT / "tests" / "prove" / "prove_broker_tools.py"]]
    if arguments.peers:
        programs.append([ROOT / "tools" / "peer_client_tests.py", *arguments.peers])
    outcomes = [judged(run([sys.executable, *program, "--write", written])) for program in programs]
    failed = [status for status, _ in outcomes if status != PASSED]
    return (failed or [PASSED])[0], "\n".join(detail for _, detail in outcomes)


def prove_transactions(arguments: argparse.Namespace) -> tuple[str, str]:
    """50,000 records a row, exactly once, while producers, brokers, leaders and coordinators are killed and moved."""
    program = ROOT / "tests" / "prove" / "prove_transactions.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see transactions-chaos.txt")


def prove_landings(arguments: argparse.Namespace) -> tuple[str, str]:
    """Each record lands once in Parquet files while driver, JVM and workers of Spark are killed."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_landings.py"]))


def prove_shared(arguments: argparse.Namespace) -> tuple[str, str]:
    """Shared transactions: four writers with kills under one handle, ended from a fifth process, on four brokers."""
    program = ROOT / "tests" / "prove" / "prove_shared_transaction.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see shared-transaction.txt")


def prove_random_faults(arguments: argparse.Namespace) -> tuple[str, str]:
    """Transactions under random faults, several at once, on three brokers: the log agrees with the reports."""
    program = ROOT / "tests" / "prove" / "prove_random_faults.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see random-faults.txt")


def prove_late(arguments: argparse.Namespace) -> tuple[str, str]:
    """Late requests of transactions: nothing lost, torn, or read though aborted; compared with confluent-kafka."""
    program = ROOT / "tests" / "prove" / "prove_late_requests.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_wire_faults(arguments: argparse.Namespace) -> tuple[str, str]:
    """Every fault at every wire step of a transaction, in both flows, blocking and asyncio."""
    program = ROOT / "tests" / "prove" / "prove_transaction_faults.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_programs(arguments: argparse.Namespace) -> tuple[str, str]:
    """Random ordinary programs with consumers, interrupted anywhere: each record processed, no member stays behind."""
    command = [sys.executable, ROOT / "tests" / "prove" / "prove_programs.py", "--results", arguments.results]
    outcomes = [judged(run([*command, *more])) for more in ([], ["--faults"])]
    failed = [status for status, _ in outcomes if status != PASSED]
    return (failed or [PASSED])[0], "\n".join(detail for _, detail in outcomes)


def prove_background(arguments: argparse.Namespace) -> tuple[str, str]:
    """Commits in the background under faults on the wire and killed brokers: nothing lost, nothing twice, in order."""
    program = ROOT / "tests" / "prove" / "prove_background_commits.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_restarts(arguments: argparse.Namespace) -> tuple[str, str]:
    """A broker restarted twenty times under load: nothing lost, nothing twice."""
    program = ROOT / "tests" / "prove" / "prove_broker_restarts.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_stopped(arguments: argparse.Namespace) -> tuple[str, str]:
    """A producer stopped before each wire step past its timeout, while another takes over: it is fenced."""
    program = ROOT / "tests" / "prove" / "prove_stopped_producers.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_session_faults(arguments: argparse.Namespace) -> tuple[str, str]:
    """Every request and response of a session cut, delayed and dropped: each record once, calls in time."""
    program = ROOT / "tests" / "prove" / "prove_session_faults.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_session_stopped(arguments: argparse.Namespace) -> tuple[str, str]:
    """A session stopped at each wire step until another one has done its work: no duplicates, usable or an error."""
    program = ROOT / "tests" / "prove" / "prove_stopped_sessions.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_session_times(arguments: argparse.Namespace) -> tuple[str, str]:
    """Before KIP-447: EndTxn delayed until another member took over; timeouts that kcodec rejects cause duplicates."""
    program = ROOT / "tests" / "prove" / "prove_session_times.py"
    return judged(run([sys.executable, program, "--results", arguments.results]))


def prove_call_timeouts(arguments: argparse.Namespace) -> tuple[str, str]:
    """Every public call with a timeout, each response withheld in turn: it ends within its timeout and one second."""
    program = ROOT / "tests" / "prove" / "prove_call_timeouts.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see call-timeouts-DATE.txt")


def prove_outbox(arguments: argparse.Namespace) -> tuple[str, str]:
    """examples/outbox.py: each row once while relay, Kafka and PostgreSQL are killed; the usual query loses rows."""
    program = ROOT / "tests" / "prove" / "prove_outbox.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see outbox.txt")


def prove_rebalances(arguments: argparse.Namespace) -> tuple[str, str]:
    """Members of kcodec and Java join and leave in both protocols: all records delivered, without kills none twice."""
    program = ROOT / "tests" / "prove" / "prove_rebalances.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see rebalances.txt")


def prove_recipes(arguments: argparse.Namespace) -> tuple[str, str]:
    """examples/: programs killed at each of their steps and stopped, exact in the end; their controls are not."""
    program = ROOT / "tests" / "prove" / "prove_recipes.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see recipes.txt")


def prove_admin(arguments: argparse.Namespace) -> tuple[str, str]:
    """Each call of Admin that changes something, read back with Kafka's own tools."""
    program = ROOT / "tests" / "prove" / "prove_admin.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see admin.txt")


def prove_delta(arguments: argparse.Namespace) -> tuple[str, str]:
    """examples/offsets_in_delta.py: killed at each step, also between files and commit: rows exactly once."""
    program = ROOT / "tests" / "prove" / "prove_delta.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see delta.txt")


def prove_schema_registry(arguments: argparse.Namespace) -> tuple[str, str]:
    """examples/tasks/ with Avro and JSON: users sent and read with the mock Schema Registry of confluent-kafka."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_schema_registry.py"]))


def prove_faststream(arguments: argparse.Namespace) -> tuple[str, str]:
    """Programs of FastStream on the clients of kcodec.compat.aiokafka and confluent, on the embedded broker."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_faststream.py"]))


def prove_quixstreams(arguments: argparse.Namespace) -> tuple[str, str]:
    """A program of Quix Streams on the clients of kcodec.compat.confluent, on the embedded broker."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_quixstreams.py"]))


def prove_instrumentation(arguments: argparse.Namespace) -> tuple[str, str]:
    """Programs traced by OpenTelemetry, ddtrace and New Relic on the clients of kcodec.compat."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_instrumentation.py"]))


def prove_frameworks(arguments: argparse.Namespace) -> tuple[str, str]:
    """Programs of five frameworks on the clients of kcodec.compat.aiokafka and confluent, on the embedded broker."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_frameworks.py"]))


def prove_embedded_broker(arguments: argparse.Namespace) -> tuple[str, str]:
    """The embedded broker and Apache Kafka: same responses and logs in 2,000 random sequences of requests."""
    program = ROOT / "tests" / "prove" / "prove_broker.py"
    command = [sys.executable, program, "--sequences", "2000", "--results", arguments.results]
    return judged(run(command), "see broker-differential.txt")


def prove_embedded_defects(arguments: argparse.Namespace) -> tuple[str, str]:
    """Defects in the embedded broker: the comparison with Kafka finds each of them within 50 sequences."""
    program = ROOT / "tests" / "prove" / "prove_broker_defects.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see broker-defects.txt")


def prove_embedded_security(arguments: argparse.Namespace) -> tuple[str, str]:
    """Logins to the embedded broker and to Apache Kafka get the same responses; Java's clients log in over TLS."""
    return judged(run([sys.executable, ROOT / "tests" / "prove" / "prove_broker_security.py"]))


def prove_embedded_acls(arguments: argparse.Namespace) -> tuple[str, str]:
    """Users with different ACLs get the same responses from the embedded broker and from Apache Kafka."""
    program = ROOT / "tests" / "prove" / "prove_broker_acls.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see broker-acls.txt")


def prove_embedded_kills(arguments: argparse.Namespace) -> tuple[str, str]:
    """The embedded broker killed in 200 random workloads: nothing acknowledged is lost, nothing aborted is visible."""
    program = ROOT / "tests" / "prove" / "prove_broker_kills.py"
    return judged(run([sys.executable, program, "--workloads", "200", "--results", arguments.results]))


def prove_group_coordinator(arguments: argparse.Namespace) -> tuple[str, str]:
    """The embedded group coordinator compared with Kafka's: random requests of members of both protocols."""
    program = ROOT / "tests" / "prove" / "prove_group_coordinator.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see group-coordinator.txt")


def prove_read_topic(arguments: argparse.Namespace) -> tuple[str, str]:
    """read_topic of two gigabytes from a real broker in a new process below 300 MB, and of an eighth of it."""
    program = ROOT / "tests" / "prove" / "prove_read_topic.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see read-topic.txt")


def prove_bounded_reads(arguments: argparse.Namespace) -> tuple[str, str]:
    """The kit for bounded reads: kcodec finds every end; results of other clients, Spark's source and Ray Data."""
    program = ROOT / "tests" / "prove" / "prove_bounded_reads.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see bounded-reads.txt")


def prove_ray(arguments: argparse.Namespace) -> tuple[str, str]:
    """kcodec.ray: the rows of read_topic for all golden topics, and every end of the kit; Ray's own reader hangs."""
    program = ROOT / "tests" / "prove" / "prove_bounded_reads.py"
    return judged(run([sys.executable, program, "--only-ray", "--results", arguments.results]), "see ray.txt")


def prove_groups(arguments: argparse.Namespace) -> tuple[str, str]:
    """Groups under stress, each assignor: members come, go and die, the broker is killed; nothing is owned twice."""
    program = ROOT / "tests" / "prove" / "prove_groups.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see groups-DATE.txt")


def prove_truncation(arguments: argparse.Namespace) -> tuple[str, str]:
    """A log truncated by an unclean election: consumers continue at the divergence or report it; a control does not."""
    program = ROOT / "tests" / "prove" / "prove_truncation.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see truncation-DATE.txt")


def prove_copy(arguments: argparse.Namespace) -> tuple[str, str]:
    """100,000 records copied by sessions of a group, Kafka's own copier among them, while all are killed."""
    program = ROOT / "tests" / "prove" / "prove_copy.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see copy.txt")


def prove_copy_embedded(arguments: argparse.Namespace) -> tuple[str, str]:
    """The same copies and the three guarantees on the embedded broker, whose process is killed as well."""
    own = ["--broker", "embedded", "--results", arguments.results]
    copied = run([sys.executable, ROOT / "tests" / "prove" / "prove_copy.py", *own])
    kept = run([sys.executable, ROOT / "tests" / "prove" / "prove_guarantees.py", *own])
    return judged(copied if copied.status else kept, "see copy-embedded.txt, guarantees-embedded.txt")


def prove_guarantees(arguments: argparse.Namespace) -> tuple[str, str]:
    """examples/exactly_once.py: commit first loses, produce first doubles, a session does neither; the same kills."""
    program = ROOT / "tests" / "prove" / "prove_guarantees.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see guarantees.txt")


def prove_kip447(arguments: argparse.Namespace) -> tuple[str, str]:
    """Members that lose their partitions within a transaction, late markers: fenced, or the next one waits."""
    program = ROOT / "tests" / "prove" / "prove_kip447.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see kip447.txt")


def prove_spark_sink(arguments: argparse.Namespace) -> tuple[str, str]:
    """exactly_once in Spark: 60 batches on each of three clusters while workers, drivers and brokers are killed."""
    program = ROOT / "tests" / "prove" / "prove_spark_sink.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see spark-sink.txt")


def prove_consumer(arguments: argparse.Namespace) -> tuple[str, str]:
    """The consumer compared with Java's by record: golden logs on a real broker's disk, random transactions."""
    program = ROOT / "tests" / "prove" / "prove_consumer_equality.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see consumer-equality.txt")


def prove_spark_writers(arguments: argparse.Namespace) -> tuple[str, str]:
    """Spark's at-least-once sinks with killed workers and speculation: 0 lost, duplicates counted next to Spark's."""
    program = ROOT / "tests" / "prove" / "prove_spark_writers.py"
    return judged(run([sys.executable, program, "--results", arguments.results]), "see spark-writers.txt")


def prove_docs(arguments: argparse.Namespace) -> tuple[str, str]:
    """Build the documentation site without a warning, search in it, and run its page on FastAPI."""
    program = ROOT / "tests" / "prove" / "prove_docs.py"
    return judged(run([sys.executable, program], {"PYTHONPATH": str(ROOT / "tools")}))


PARTS: dict[str, Callable[[argparse.Namespace], tuple[str, str]]] = {
    "edits": prove_edits,
    "messages": prove_messages,
    "warnings": core.prove_warnings,
    "sanitizers": core.prove_sanitizers,
    "hostile": core.prove_hostile,
    "leaks": core.prove_leaks,
    "fuzz": core.prove_fuzz,
    "arm64": core.prove_arm64,
    "windows": core.prove_windows,
    "big": prove_big,
    "long": prove_long,
    "broker-tests": prove_brokers,
    "spark": prove_spark,
    "peers": prove_peers,
    "broker-peers": prove_broker_peers,
    "transactions": prove_transactions,
    "shared": prove_shared,
    "landings": prove_landings,
    "faults": prove_random_faults,
    "late": prove_late,
    "wire-faults": prove_wire_faults,
    "programs": prove_programs,
    "background-commits": prove_background,
    "restarts": prove_restarts,
    "stopped": prove_stopped,
    "session-faults": prove_session_faults,
    "session-stopped": prove_session_stopped,
    "session-times": prove_session_times,
    "timeouts": prove_call_timeouts,
    "outbox": prove_outbox,
    "truncation": prove_truncation,
    "rebalances": prove_rebalances,
    "recipes": prove_recipes,
    "admin": prove_admin,
    "delta": prove_delta,
    "schema-registry": prove_schema_registry,
    "faststream": prove_faststream,
    "quixstreams": prove_quixstreams,
    "instrumentation": prove_instrumentation,
    "frameworks": prove_frameworks,
    "read-topic": prove_read_topic,
    "bounded-reads": prove_bounded_reads,
    "ray": prove_ray,
    "groups": prove_groups,
    "embedded-broker": prove_embedded_broker,
    "embedded-defects": prove_embedded_defects,
    "embedded-security": prove_embedded_security,
    "embedded-acls": prove_embedded_acls,
    "embedded-kills": prove_embedded_kills,
    "group-coordinator": prove_group_coordinator,
    "copy": prove_copy,
    "copy-embedded": prove_copy_embedded,
    "guarantees": prove_guarantees,
    "kip447": prove_kip447,
    "consumer": prove_consumer,
    "spark-writers": prove_spark_writers,
    "spark-sink": prove_spark_sink,
    "docs": prove_docs,
}


# Results.


def machine() -> dict[str, str]:
    """Return a description of the machine and the commit."""
    commit = run(["git", "rev-parse", "--short", "HEAD"])
    return {
        "commit": commit.last_line if commit.status == 0 else "unknown",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }


def write(outcomes: dict[str, Outcome], folder: Path) -> Path:
    """Write both files of the day. Parts of earlier runs of the day are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"prove-{datetime.date.today().isoformat()}"
    found: dict[str, dict[str, object]] = {}
    if base.with_suffix(".json").exists():
        found = json.loads(base.with_suffix(".json").read_text("utf-8"))["parts"]
    about = machine()
    found |= {name: {**asdict(outcome), "commit": about["commit"]} for name, outcome in outcomes.items()}
    base.with_suffix(".json").write_text(json.dumps({"machine": about, "parts": found}, indent=1) + "\n", "utf-8")
    lines = [f"{name}: {value}" for name, value in about.items()] + [""]
    for name, part in found.items():
        first, *rest = str(part["detail"]).splitlines() or [""]
        lines.append(f"{name:<11} {part['status']:<8} {part['seconds']:>7.0f} s  {first}")
        lines += [f"    {line}" for line in rest]
    base.with_suffix(".txt").write_text("\n".join(lines) + "\n", "utf-8")
    return base.with_suffix(".txt")


def main() -> int:
    """Run the requested parts, or all. Return the exit status."""
    parser = argparse.ArgumentParser(description="the long proofs")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="these parts")
    parser.add_argument("--edits", type=int, default=100_000, help="random edits (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results", help="folder of the result files")
    parser.add_argument("--peers", nargs="+", metavar="CLIENT=CHECKOUT", help="for the part of that name")
    parser.add_argument("--list", action="store_true", help="what the parts are")
    arguments = parser.parse_args()
    if arguments.list:
        for name, part in PARTS.items():
            print(f"{name:<11} {part.__doc__}")
        return 0
    outcomes: dict[str, Outcome] = {}
    for name in arguments.only or PARTS:
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        try:
            status, detail = PARTS[name](arguments)
        except subprocess.TimeoutExpired as late:
            status, detail = FAILED, f"no end after {late.timeout:.0f} s"
        outcomes[name] = Outcome(name, status, detail.replace(str(ROOT), "."), time.monotonic() - began)
        written = write(outcomes, arguments.results)
        print(f"{name}: {status}, {outcomes[name].detail}", flush=True)
    print(f"written to {written.relative_to(Path.cwd()) if written.is_relative_to(Path.cwd()) else written}")
    return 1 if any(outcome.status == FAILED for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
