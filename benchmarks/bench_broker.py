# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: how long it takes to start, its memory, and its load, driven by librdkafka.

    python benchmarks/bench_broker.py [--rounds 5] [--seconds 4] [--frames 100000] [--json FILE]

Each round starts a broker in this process, and `kcodec broker` as a process until the response to its first request.
Then librdkafka, in a process of its own, runs transactions with one record in each of three partitions, and sends
records of 100 bytes with acks=all and idempotence. At the end, hostile frames go to one more broker, next to
connections that send nothing, only half a frame, or a byte now and then, and a client of librdkafka measures how long
its records take.

The bars are those of the broker: 50 ms to start in a test, 400 ms and 60 MB as a process, 800 transactions and 100,000
records a second. The exit code is 0 if they are missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import measure
from measure import Bar

from kcodec.broker import Broker
from kcodec.client import Admin, NewTopic
from kcodec.protocol import messages
from kcodec.protocol.frame import encode_request

RESULTS = Path(__file__).resolve().parent / "results" / "broker.json"
TOPIC, PARTITIONS, PRODUCERS = "load", 3, 4
RECORD = bytes(100)
HALF_OPEN = 100
#: Hostile frames for each byte of a slow connection.
FRAMES_A_BYTE = 10
START_BAR, PROCESS_BAR, RESIDENT_BAR = Bar(50.0), Bar(400.0), Bar(60.0)
TRANSACTIONS_BAR, RECORDS_BAR = Bar(800.0, is_least=True), Bar(100_000.0, is_least=True)


def start_ms() -> float:
    """Return the milliseconds until a broker in this process accepts requests."""
    begun = time.perf_counter()
    with Broker():
        return (time.perf_counter() - begun) * 1000


@contextlib.contextmanager
def broker_process() -> Iterator[tuple[int, str, float]]:
    """Run a broker as a process. Yield its process id, its address, and the milliseconds to its first response."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
    command = [sys.executable, "-m", "kcodec", "broker", "--port", str(address[1])]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not answers(address):
                if process.poll() is not None or time.perf_counter() - begun > 30:
                    raise SystemExit("the broker did not start")
            yield process.pid, f"127.0.0.1:{address[1]}", (time.perf_counter() - begun) * 1000
        finally:
            process.send_signal(signal.SIGTERM)


def answers(address: tuple[str, int]) -> bool:
    """Send an ApiVersions request, and return whether there is a response."""
    try:
        with socket.create_connection(address, 10) as connection:
            connection.sendall(encode_request(messages.ApiVersionsRequest(), 0, 1, "bench"))
            return connection.recv(4) != b""
    except ConnectionError:
        time.sleep(0.002)
        return False


def resident_mb(process: int) -> float:
    """Return the resident memory of a process in 10^6 bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def one_round(seconds: float) -> dict[str, float]:
    """Return all figures of one round except those of hostile frames."""
    with broker_process() as (process, address, ready_ms):
        found = {"start": start_ms(), "process": ready_ms, "resident": resident_mb(process)}
        for kind in ("transactions", "records"):
            before, begun = measure.tree_seconds(process), time.perf_counter()
            found[kind] = measure.run_child(__file__, "--drive", kind, "--address", address, "--seconds", seconds)
            elapsed = time.perf_counter() - begun
            found[f"{kind} cpu"] = (measure.tree_seconds(process) - before) / elapsed
        return found


# The process of librdkafka.


def drive(kind: str, address: str, seconds: float) -> float:
    """Return the transactions or records a second that the broker acknowledged."""
    return transactions(address, seconds) if kind == "transactions" else records(address, seconds)


def transactions(address: str, seconds: float) -> float:
    """Return the transactions per second of several producers, each with a record in every partition."""
    from confluent_kafka import Producer

    with Admin(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
    producers = [
        Producer({"bootstrap.servers": address, "transactional.id": f"bench-{number}", "linger.ms": 0})
        for number in range(PRODUCERS)
    ]
    for producer in producers:
        producer.init_transactions(20)
    end = time.perf_counter() + seconds
    counts = [0] * PRODUCERS

    def run(number: int) -> None:
        while time.perf_counter() < end:
            producers[number].begin_transaction()
            for partition in range(PARTITIONS):
                producers[number].produce(TOPIC, RECORD, partition=partition)
            producers[number].commit_transaction(20)
            counts[number] += 1

    begun = time.perf_counter()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def records(address: str, seconds: float) -> float:
    """Return the number of acknowledged records per second."""
    from confluent_kafka import Producer

    options = {"enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": address, **options})
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(1000):
            producer.produce(TOPIC, RECORD, partition=count // 1000 % PARTITIONS)
            count += 1
        producer.poll(0)
        while len(producer) > 200_000:
            producer.poll(0.01)
    if producer.flush(60):
        raise SystemExit("records were not acknowledged")
    return count / (time.perf_counter() - begun)


# Hostile frames.


def hostile(frames: int) -> dict[str, float]:
    """Send hostile frames while there are half-open connections. Return the delays of a client."""
    chosen = random.Random(1)
    with broker_process() as (process, address, _):
        host, _, port = address.partition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(HALF_OPEN)]
        slow = idle[: HALF_OPEN // 2]
        for connection in slow:
            connection.sendall(struct.pack(">i", 50 << 20) + b"\0\1")
        stopped = threading.Event()
        waits: list[float] = []
        client = threading.Thread(target=notice, args=(address, stopped, waits))
        client.start()
        begun = time.perf_counter()
        for number in range(frames):
            if number % FRAMES_A_BYTE == 0:
                slow[number // FRAMES_A_BYTE % len(slow)].sendall(b"\0")
            frame = chosen.randbytes(chosen.randrange(4, 200))
            if chosen.random() < 0.7:  # a length and a header that are right, so that the message is decoded
                frame = struct.pack(">hhih", chosen.randrange(75), chosen.randrange(14), 1, -1) + frame
                frame = struct.pack(">i", len(frame)) + frame
            with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port))) as connection:
                connection.sendall(frame)
        elapsed = time.perf_counter() - begun
        stopped.set()
        client.join()
        for connection in idle:
            connection.close()
        if not waits or not answers((host, int(port))):
            raise SystemExit("the broker does not serve clients among hostile frames")
        ordered = sorted(waits)
        return {
            "frames": frames / elapsed,
            "records": len(ordered),
            "median": statistics.median(ordered) * 1000,
            "slowest": ordered[-1] * 1000,
            "resident": resident_mb(process),
        }


def notice(address: str, stopped: threading.Event, waits: list[float]) -> None:
    """Send records one by one, and append the duration of each to `waits`."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce(TOPIC, RECORD)
    producer.flush(30)
    while not stopped.is_set():
        begun = time.perf_counter()
        producer.produce(TOPIC, RECORD)
        if producer.flush(30):
            return
        waits.append(time.perf_counter() - begun)
        stopped.wait(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each load (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=100_000, help="hostile frames (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"such as {RESULTS}")
    parser.add_argument("--drive", choices=("transactions", "records"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive is not None:
        print(json.dumps(drive(given.drive, given.address, given.seconds)))
        return
    load = os.getloadavg()[0]
    found = measure.take_turns({"kcodec": functools.partial(one_round, given.seconds)}, given.rounds, warm_up=0)
    compare = functools.partial(measure.compare, found)
    rows = [
        compare("start", "kcodec", case="start in a test", unit="ms", bar=START_BAR),
        compare("process", "kcodec", case="start as a process, to the first response", unit="ms", bar=PROCESS_BAR),
        compare("resident", "kcodec", case="resident memory after it, MB", unit="MB", bar=RESIDENT_BAR),
        compare("transactions", "kcodec", case="transactions a second", unit="/s", bar=TRANSACTIONS_BAR),
        compare("transactions cpu", "kcodec", case="cores of the broker meanwhile", unit="cores"),
        compare("records", "kcodec", case="records of 100 B a second", unit="/s", bar=RECORDS_BAR),
        compare("records cpu", "kcodec", case="cores of the broker meanwhile", unit="cores"),
    ]
    noticed = measure.take_turns({"kcodec": functools.partial(hostile, given.frames)}, 1, warm_up=0)
    unit = {"frames": "/s", "records": "", "median": "ms", "slowest": "ms", "resident": "MB"}
    for name, one in unit.items():
        rows.append(measure.compare(noticed, name, "kcodec", case=f"{given.frames} hostile frames: {name}", unit=one))
    measure.print_comparisons("The embedded broker", rows)
    options = {"rounds": given.rounds, "seconds": given.seconds, "frames": given.frames}
    measure.save(given.json, {"broker": rows}, options, load, unit="ms")


if __name__ == "__main__":
    main()
