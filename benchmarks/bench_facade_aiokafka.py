# SPDX-License-Identifier: Apache-2.0
"""The same program on aiokafka and on kcodec.compat.aiokafka, with the embedded broker.

Usage: python benchmarks/bench_facade_aiokafka.py [--rounds N] [--records N] [--json FILE]

send:           waits for the futures of 5,000 records together.
send_and_wait:  waits for each record.
getmany:        has a timeout and no limit.
iteration:      is `async for` over the consumer.

The figure is user and system time of the process. A slice is a new process, and the broker runs in a process of its
own. The bar: the facade takes at most two thirds of the time of aiokafka. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import measure
from measure import Bar, Row

BAR = Bar(0.667)
FACADE, ORIGINAL = "kcodec.compat.aiokafka", "aiokafka"
BATCH = 5_000
VALUE = b"x" * 100
WORKLOADS = ("send", "send_and_wait", "getmany", "iteration")
#: Calls of send_and_wait wait for a response each, so that fewer of them suffice.
FEWER = 20
RESULTS = Path(__file__).resolve().parent / "results" / "facade-aiokafka.json"


def clients(name: str) -> tuple[Any, Any]:
    """Return the producer and the consumer class."""
    if name == FACADE:
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


def one_slice(name: str, workload: str, servers: str, count: int) -> float:
    """Run a workload in this process; return its CPU seconds."""
    producer, consumer = clients(name)
    if workload.startswith("send"):
        waits = workload == "send_and_wait"
        return asyncio.run(produce(producer, servers, f"to-{name}-{workload}", count, waits=waits))
    return asyncio.run(consume(consumer, servers, "from", count, many=workload == "getmany"))


def new_process(name: str, workload: str, servers: str, count: int) -> dict[str, float]:
    """Run a workload in a new process; return the microseconds of each record."""
    seconds: float = measure.run_child(__file__, "--child", name, workload, servers, count)
    return {"cpu": seconds / count * 1e6}


def serve() -> None:
    """Run the embedded broker until the standard input ends."""
    from kcodec.broker import Broker

    with Broker() as broker, suppress(KeyboardInterrupt):
        print(broker.bootstrap_servers, flush=True)
        sys.stdin.read()


def compare(servers: str, rounds: int, records: int) -> list[Row]:
    """Return one comparison for each workload."""
    asyncio.run(produce(clients(FACADE)[0], servers, "from", records, waits=False))
    rows = []
    for workload in WORKLOADS:
        count = records // (FEWER if workload == "send_and_wait" else 1)
        turns = {name: functools.partial(new_process, name, workload, servers, count) for name in (FACADE, ORIGINAL)}
        found = measure.take_turns(turns, rounds)
        rows.append(measure.compare(found, "cpu", FACADE, ORIGINAL, case=workload, unit="µs a record", bar=BAR))
        print(f"{workload}, {FACADE} / {ORIGINAL}: {measure.value_text(rows[-1])}", flush=True)
    return rows


def main() -> None:
    """Measure, print a table, and write the file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=100_000, help=f"a multiple of {BATCH}")
    parser.add_argument("--json", type=Path, help=f"such as {RESULTS}")
    parser.add_argument("--child", nargs=4, metavar=("CLIENT", "WORKLOAD", "SERVERS", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    if given.child:
        name, workload, servers, count = given.child
        print(one_slice(name, workload, servers, int(count)))
        return
    load = os.getloadavg()[0]
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        rows = compare(broker.stdout.readline().strip(), given.rounds, given.records)
        broker.stdin.close()
    measure.print_comparisons("clients", rows)
    measure.save(given.json, {"clients": rows}, {"rounds": given.rounds, "records": given.records}, load)


if __name__ == "__main__":
    main()
