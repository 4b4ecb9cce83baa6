# SPDX-License-Identifier: Apache-2.0
"""What a small read costs a process that is reused, as a Python worker of Spark is: `read_ranges` against `read_topic`.

Usage: python benchmarks/bench_ranges.py [--calls N] [--json FILE]

A topic on a real Apache Kafka on this machine has batches of ten records of 100 bytes. Each call reads one batch into
pyarrow. Printed, per call: CPU of all threads of the process and elapsed time (milliseconds, median and 99th
percentile), requests by name, and bytes of the responses. "first" is the first call of a process, which connects.
The bars are one Fetch and 3 ms of CPU for a later call of `read_ranges`; the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

RESULTS = Path(__file__).resolve().parent / "results" / "ranges.json"
BATCHES, BATCH_RECORDS = 1000, 10
CPU_BAR_MS = 3.0


class RequestCounts:
    """The requests of a client, by name, and the bytes that it received."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received = 0

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Count requests and bytes. The client calls this method."""
        if name == "request.sent":
            self.sent[str(labels["api"]).removesuffix("Request")] += value
        elif name == "bytes.received":
            self.received += value

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Ignore latencies."""


def write(servers: str, topic: str) -> None:
    """Write the batches."""
    from kcodec.client import Producer

    with Producer(bootstrap_servers=servers, linger_ms=1000) as producer:
        for number in range(BATCHES):
            for index in range(BATCH_RECORDS):
                producer.send(topic, b"%05d-%05d" % (number, index) + b"x" * 89, partition=0)
            producer.flush()


def measured(read: Callable[[int, RequestCounts], int], calls: int) -> dict[str, Any]:
    """Measure the first call, and then `calls` more, each of which reads the records from an offset on."""
    counts = RequestCounts()
    begun, cpu = time.perf_counter(), time.process_time()
    read(0, counts)
    first = {
        "cpu_ms": (time.process_time() - cpu) * 1000,
        "ms": (time.perf_counter() - begun) * 1000,
        "requests": dict(counts.sent),
    }
    counts.sent.clear()
    counts.received = 0
    cpus, times = [], []
    for number in range(calls):
        begun, cpu = time.perf_counter(), time.process_time()
        rows = read(BATCH_RECORDS * (BATCHES - 1 - number % 20), counts)
        cpus.append((time.process_time() - cpu) * 1000)
        times.append((time.perf_counter() - begun) * 1000)
        assert rows == BATCH_RECORDS, rows
    return {
        "first": first,
        "calls": calls,
        "cpu_ms": spread(cpus),
        "ms": spread(times),
        "requests": {name: sent / calls for name, sent in counts.sent.items()},
        "bytes_received": counts.received // calls,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    return {"p50": statistics.median(values), "p99": sorted(values)[int(len(values) * 0.99)]}


def main() -> int:
    """Measure, print and write the results. Return the exit code."""
    import pyarrow

    import kcodec
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    given = parser.parse_args()
    with ApacheKafka(heap="256m") as kafka:
        servers = kafka.bootstrap_servers
        topic = kafka.create_topic(partitions=1)
        write(servers, topic)

        def ranges(start: int, counts: RequestCounts) -> int:
            planned = [kcodec.OffsetRange(topic, 0, start, start + BATCH_RECORDS)]
            with kcodec.read_ranges(planned, bootstrap_servers=servers, metrics=counts, spark_layout=True) as records:
                return int(pyarrow.RecordBatchReader.from_stream(records).read_all().num_rows)

        def whole(start: int, counts: RequestCounts) -> int:
            end = start + BATCH_RECORDS
            options: dict[str, Any] = {"bootstrap_servers": servers, "metrics": counts}
            with kcodec.read_topic(topic, start=start, end=end, **options) as records:
                return int(pyarrow.RecordBatchReader.from_stream(records).read_all().num_rows)

        load, others = os.getloadavg()[0], measure.OtherLoad()
        found = {
            "read_ranges": measured(ranges, given.calls),
            "read_topic": measured(whole, max(given.calls // 10, 10)),
        }
        cores = round(others.cores(), 2)
    for name in ("read_ranges", "read_topic"):
        row = found[name]
        for kind, part in (("first", row["first"]), ("later", row)):
            cpu, elapsed = (
                " / ".join(f"{value:.2f}" for value in (each.values() if isinstance(each, dict) else [each]))
                for each in (part["cpu_ms"], part["ms"])
            )
            requests = ", ".join(f"{sent:g} {api}" for api, sent in part["requests"].items())
            print(f"{name:12} {kind}: CPU {cpu} ms, elapsed {elapsed} ms; {requests}")
    met = found["read_ranges"]["requests"] == {"Fetch": 1.0} and found["read_ranges"]["cpu_ms"]["p50"] <= CPU_BAR_MS
    print(
        f"the bars, 1 Fetch and {CPU_BAR_MS:g} ms of CPU: {'met' if met else 'MISSED'}; other processes: {cores} cores"
    )
    parts = {name: row | {"others": cores} for name, row in found.items()}
    measure.save(given.json, parts, {"calls": given.calls}, load, unit="milliseconds of a call")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
