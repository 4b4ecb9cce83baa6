# SPDX-License-Identifier: Apache-2.0
"""aiokafka's clients and those of kcodec.compat.aiokafka: the same program with both, CPU time of the process.

    python benchmarks/bench_facade_aiokafka.py [--pairs 5] [--records 100000] [--json FILE]

Each measurement is a process of its own, and the two clients alternate. The broker is the embedded one, in a process of
its own. `send` waits for the futures of 5,000 records together; `getmany` has a timeout and no limit; `iteration` is
`async for`. Bar: aiokafka needs at least 1.5 times the CPU time of the facade for each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BAR = 1.5
BATCH = 5_000
VALUE = b"x" * 100
WORKLOADS = ("send", "send_and_wait", "getmany", "iteration")
#: Calls of send_and_wait wait for a response each, so that fewer of them suffice.
FEWER = 20
TIMEOUT_SECONDS = 180.0


def clients(name: str) -> tuple[Any, Any]:
    """Return the producer and the consumer class."""
    if name == "kcodec":
        from kcodec.compat import aiokafka
    else:
        import aiokafka  # type: ignore[no-redef]
    return aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer


async def produce(kind: Any, servers: str, topic: str, count: int, *, waits: bool) -> float:
    """Send records; return the CPU seconds."""
    async with kind(bootstrap_servers=servers, linger_ms=0 if waits else 5) as producer:
        await producer.send_and_wait(topic, VALUE)
        begun = time.process_time()
        if waits:
            for number in range(count):
                await producer.send_and_wait(topic, VALUE, key=b"%d" % number)
        else:
            for first in range(0, count, BATCH):
                futures = [await producer.send(topic, VALUE, key=b"%d" % (first + one)) for one in range(BATCH)]
                await asyncio.gather(*futures)
        return time.process_time() - begun


async def consume(kind: Any, servers: str, topic: str, count: int, *, many: bool) -> float:
    """Read `count` records; return the CPU seconds."""
    async with kind(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        begun, found = time.process_time(), 0
        if many:
            while found < count:
                for rows in (await consumer.getmany(timeout_ms=1000)).values():
                    found += sum(1 for one in rows if one.value)
        else:
            async for record in consumer:
                found += bool(record.value)
                if found >= count:
                    break
        return time.process_time() - begun


def measure(name: str, workload: str, servers: str, count: int) -> float:
    """In a process of its own: return the CPU seconds of a workload."""
    producer, consumer = clients(name)
    if workload.startswith("send"):
        waits = workload == "send_and_wait"
        return asyncio.run(produce(producer, servers, f"to-{name}-{workload}", count, waits=waits))
    return asyncio.run(consume(consumer, servers, "from", count, many=workload == "getmany"))


def in_process(*arguments: str) -> float:
    """Run this file with arguments, and return the number that it prints."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    return float(done.stdout)


def serve() -> None:
    """Run the embedded broker until the standard input ends."""
    from kcodec.broker import Broker

    with Broker() as broker, suppress(KeyboardInterrupt):
        print(broker.bootstrap_servers, flush=True)
        sys.stdin.read()


def main() -> None:
    """Print a table of microseconds of CPU for each record, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000, help=f"a multiple of {BATCH}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, metavar=("CLIENT", "WORKLOAD", "SERVERS", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.child:
        name, workload, servers, count = options.child
        print(measure(name, workload, servers, int(count)))
        return
    rows: list[dict[str, Any]] = []
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        servers = broker.stdout.readline().strip()
        asyncio.run(produce(clients("kcodec")[0], servers, "from", options.records, waits=False))
        for workload in WORKLOADS:
            count = options.records // (FEWER if workload == "send_and_wait" else 1)
            times: dict[str, list[float]] = {"kcodec": [], "aiokafka": []}
            for _ in range(options.pairs):
                for name, found in times.items():
                    seconds = in_process("--child", name, workload, servers, str(count))
                    found.append(seconds / count * 1e6)
            ratios = [theirs / ours for ours, theirs in zip(times["kcodec"], times["aiokafka"], strict=True)]
            row = {name: round(statistics.median(found), 2) for name, found in times.items()}
            rows.append({"workload": workload, **row, "ratio": round(statistics.median(ratios), 2), "bar": BAR})
            print(json.dumps(rows[-1]), flush=True)
        broker.stdin.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
