# SPDX-License-Identifier: Apache-2.0
"""`poll_arrow` and `kcodec.scan_topic` on one core and on two, next to the gain of the C floor by a second thread.

Usage: python benchmarks/bench_cores.py [--rounds N] [--records N] [--codecs none,lz4,zstd] [--json FILE]

A process that may use one core, and one that may use two, read the same topic in turns: the median of the pairs' gains
in records a second, next to the gain of the C floor on two threads with the same bytes in memory. The broker shares the
cores. A pair in which other processes used more than a tenth of a core is counted as busy: run it on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_consumer import CODECS, PARTITIONS, SHAPES, Reader, fill, kcodec_arrow, make_table

BUSY_CORES = 0.1


def busy(kafka: Any) -> tuple[float, float]:
    """Processor seconds of all processes and of the broker since they began."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields)
    broker = sum(
        sum(map(int, Path(f"/proc/{node.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        for node in kafka.nodes
    )
    return (user + nice + system + irq + softirq + steal) / tick, broker / tick


def kcodec_scan(servers: str, topic: str) -> Reader:
    import kcodec

    def read(count: int) -> None:
        frame = kcodec.scan_topic(topic, bootstrap_servers=servers).head(count).collect()
        if len(frame) != count:
            raise SystemExit(f"scan_topic: {len(frame)} records, expected {count}")

    return read


def cores_child(arguments: list[str]) -> None:
    """Read on the first cores alone; seconds of processor time and of elapsed time go to stdout."""
    what, cores, servers, topic, records = arguments
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    read = kcodec_scan(servers, topic) if what == "scan_topic" else kcodec_arrow(servers, topic)
    read(int(records) // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    read(int(records))
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}), flush=True)
    os._exit(0)


def read_in_child(*arguments: str) -> dict[str, float]:
    """Run `cores_child` in a process of its own."""
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{arguments} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def floor_gain(shape: str, codec: str, records: int, rounds: int) -> float | None:
    """The median gain of the floor by a second thread, on batches as the topic has them; None without its library."""
    import floor

    import kcodec

    if codec not in floor.codecs():
        return None
    table = make_table(shape, min(records, 100_000))
    data = bytes(
        kcodec.encode(table, compression=kcodec.Compression(codec), timestamp=0, base_offset=0, max_batch_bytes=16_384)
    )
    own, pair = floor.Floor(), floor.FloorPair()

    def seconds(decode: Callable[[bytes], int]) -> float:
        begin = time.perf_counter()
        decode(data)
        return time.perf_counter() - begin

    gains = [seconds(own.decode) / seconds(pair.decode) for _ in range(10 * rounds + 1)]
    pair.close()
    return statistics.median(gains[1:])


def measure_cores(kafka: Any, rounds: int, records: int, codecs: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        amount = records if shape == "a" else records // 5
        for codec in codecs:
            topic = kafka.create_topic(partitions=PARTITIONS)
            fill(kafka.bootstrap_servers, topic, shape, codec, amount)
            by_floor = floor_gain(shape, codec, amount, rounds)
            for what in ("poll_arrow", "scan_topic"):
                pairs, others = [], []
                for turn in range(rounds):
                    begin, before = time.perf_counter(), busy(kafka)
                    own = resource.getrusage(resource.RUSAGE_CHILDREN)
                    found = {}
                    for cores in sorted((1, 2), reverse=bool(turn % 2)):
                        asked = (what, str(cores), kafka.bootstrap_servers, topic, str(amount))
                        found[cores] = read_in_child(*asked)
                    after, used = busy(kafka), resource.getrusage(resource.RUSAGE_CHILDREN)
                    ours = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
                    strange = after[0] - before[0] - (after[1] - before[1]) - ours
                    others.append(max(0.0, strange) / (time.perf_counter() - begin))
                    pairs.append(found)
                row: dict[str, Any] = {"shape": shape, "codec": codec, "what": what}
                row["gain"] = round(statistics.median(one[1]["wall"] / one[2]["wall"] for one in pairs), 3)
                row["floor gain"] = None if by_floor is None else round(by_floor, 3)
                row["cpu of two / one"] = round(statistics.median(one[2]["cpu"] / one[1]["cpu"] for one in pairs), 3)
                row["others"] = round(max(others), 2)
                row["busy pairs"] = sum(one > BUSY_CORES for one in others)
                print(row, flush=True)
                rows.append(row | {"pairs": pairs, "others of pairs": others})
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        cores_child(sys.argv[2:])
    from kcodec.testing.kafka import ApacheKafka

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()
    with ApacheKafka() as kafka:
        rows = measure_cores(kafka, given.rounds, given.records, tuple(given.codecs.split(",")))
    if given.json is not None:
        given.json.write_text(json.dumps({"load": load, "load_after": os.getloadavg(), "cores": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
