# SPDX-License-Identifier: Apache-2.0
"""What a second core gives to readers: decoding from memory, and reading from a broker that shares the cores.

Usage: python benchmarks/bench_cores.py [--part memory,broker] [--rounds N] [--records N] [--codecs none,lz4,zstd]
                                         [--json FILE]

memory: Fetch responses of 1 MiB each, decoded by one thread one after the other, and by two threads. kcodec decodes
        them as a consumer does, each thread whole responses; the C floor decodes the same bytes in two threads of its
        own. The values are gains in elapsed time: 2 is the most.
broker: a process that may use one core, and one that may use two, read the same topic by poll_arrow and by scan_topic.
        The broker needs a part of the same cores. A consumer receives on one thread and decodes on another, so it uses
        a second core already. "decoding" is the share of decoding in the processor time of the consumer and the broker.
        "idle" is the share of the time of two cores that neither of them has used: more threads that decode could only
        use this.

Two cores are needed, and no other load. Rounds, intervals and other load: `measure`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
from bench_consumer import CODECS, PARTITIONS, SHAPES, Reader, fill, kcodec_arrow, make_table
from measure import Row

RESPONSES, RESPONSE_BYTES, BATCH_BYTES = 8, 1 << 20, 16_384
ONE, TWO = "one thread", "two threads"
#: Share of the records that a process reads before it is measured.
WARM_UP = 0.1
READERS = ("poll_arrow", "scan_topic")

# Decoding from memory


def make_response(shape: str, codec: str) -> bytes:
    """Return about RESPONSE_BYTES of batches as a producer with default options writes them."""
    import kcodec

    records = RESPONSE_BYTES // SHAPES[shape]
    while True:
        batches = kcodec.encode(
            make_table(shape, records),
            compression=kcodec.Compression(codec),
            timestamp=0,
            base_offset=0,
            max_batch_bytes=BATCH_BYTES,
        )
        data = bytes(batches)
        if len(data) >= RESPONSE_BYTES * 0.9:
            return data
        records = int(records * min(RESPONSE_BYTES / len(data), 8))


def decode_response(data: bytes) -> int:
    """Decode a response as a consumer does."""
    from kcodec._fast import FetchedRecords

    return len(FetchedRecords(data, topic="topic", partition=0, start_offset=0).take_decoded())


def elapsed(work: Callable[[], object]) -> dict[str, float]:
    """Return the mean elapsed time of a call in ms."""
    return {"elapsed": measure.one_slice(work, 0.1) * 1000}


def measure_memory(rounds: int, codecs: tuple[str, ...]) -> list[Row]:
    """The gain of a second thread, of kcodec and of the floor, on the same bytes."""
    import floor

    own, pair = floor.Floor(), floor.FloorPair()
    rows = []
    with ThreadPoolExecutor(2) as threads:
        for shape in SHAPES:
            for codec in codecs:
                response = make_response(shape, codec)
                responses = [response] * RESPONSES
                many = b"".join(responses)
                cases: dict[str, Callable[[], object]] = {
                    f"kcodec, {ONE}": functools.partial(lambda given: list(map(decode_response, given)), responses),
                    f"kcodec, {TWO}": functools.partial(
                        lambda given: list(threads.map(decode_response, given)), responses
                    ),
                }
                if codec in floor.codecs():
                    cases |= {
                        f"C decoder, {ONE}": functools.partial(own.decode, many),
                        f"C decoder, {TWO}": functools.partial(pair.decode, many),
                    }
                turns = {name: functools.partial(elapsed, case) for name, case in cases.items()}
                found = measure.take_turns(turns, rounds, warm_up=1, others_may=measure.TOO_BUSY_FOR_TWO)
                named = {"case": f"from memory, {codec}, {shape}", "unit": f"ms for {RESPONSES} responses"}
                rows += [
                    measure.compare(found, "elapsed", f"{who}, {ONE}", f"{who}, {TWO}", **named)
                    for who in ("kcodec", "C decoder")
                    if f"{who}, {ONE}" in turns
                ]
    pair.close()
    return rows


# Reading from a broker


def kcodec_scan(servers: str, topic: str) -> Reader:
    import kcodec

    def read(count: int) -> None:
        frame = kcodec.scan_topic(topic, bootstrap_servers=servers).head(count).collect()
        if len(frame) != count:
            raise SystemExit(f"scan_topic: {len(frame)} records, expected {count}")

    return read


def broker_seconds(kafka: Any) -> float:
    """Return the processor time of the brokers since their start."""
    fields = [Path(f"/proc/{node.pid}/stat").read_text().rsplit(")", 1)[1].split() for node in kafka.nodes]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def read_once(kafka: Any, what: str, cores: int, topic: str, records: int) -> dict[str, float]:
    """Read the topic in another process."""
    before = broker_seconds(kafka)
    arguments = ("--child", what, cores, kafka.bootstrap_servers, topic, records)
    found: dict[str, float] = measure.run_child(__file__, *arguments)
    # The broker's time includes the warm-up of the reader, which reads this share of the records.
    used = found["cpu"] + (broker_seconds(kafka) - before) / (1 + WARM_UP)
    return {
        "elapsed": found["elapsed"] * 1000,
        "decoding": found["decoding"] / used,
        "idle": max(0.0, 1 - used / (2 * found["elapsed"])),
    }


def timed(owner: type[Any], name: str, spent: list[float]) -> None:
    """Add the processor time of each call of a method to `spent`."""
    method = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return method(*args, **options)
        finally:
            spent[0] += time.thread_time() - begin

    setattr(owner, name, call)


def cores_child(what: str, cores: str, servers: str, topic: str, records: str) -> None:
    """Read on the first `cores` cores only. Print elapsed time, processor time and that of decoding, in seconds."""
    from kcodec.consumer.fetch_buffer import FetchedPartition
    from kcodec.reading.decoding import RangeDecoder

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    spent = [0.0]
    timed(FetchedPartition, "take_arrow", spent)
    timed(RangeDecoder, "decode", spent)
    read = kcodec_scan(servers, topic) if what == "scan_topic" else kcodec_arrow(servers, topic)
    read(int(int(records) * WARM_UP))
    spent[0], cpu, begin = 0.0, time.process_time(), time.perf_counter()
    read(int(records))
    seconds = time.perf_counter() - begin
    print(json.dumps({"elapsed": seconds, "cpu": time.process_time() - cpu, "decoding": spent[0]}))
    sys.stdout.flush()
    os._exit(0)


def measure_broker(rounds: int, records: int, codecs: tuple[str, ...]) -> list[Row]:
    """The gain of a second core for a process that reads from a broker, and the share of decoding in it."""
    from kcodec.testing.kafka import ApacheKafka

    rows = []
    with ApacheKafka() as kafka:
        for shape in SHAPES:
            amount = records if shape == "a" else records // 5
            for codec in codecs:
                topic = kafka.create_topic(partitions=PARTITIONS)
                fill(kafka.bootstrap_servers, topic, shape, codec, amount)
                turns = {
                    f"{what}, {cores}": functools.partial(read_once, kafka, what, number, topic, amount)
                    for what in READERS
                    for number, cores in ((1, "one core"), (2, "two cores"))
                }
                found = measure.take_turns(turns, rounds, others_may=measure.TOO_BUSY_FOR_TWO)
                case = f"from a broker, {codec}, {shape}"
                for what in READERS:
                    one, two = f"{what}, one core", f"{what}, two cores"
                    rows.append(measure.compare(found, "elapsed", one, two, case=case, unit=f"ms for {amount} records"))
                    rows.append(measure.compare(found, "decoding", two, case=case, unit="of the processor time"))
                    rows.append(measure.compare(found, "idle", two, case=case, unit="of the time of two cores"))
    return rows


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:2] == ["--child"]:
        cores_child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="memory,broker")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    load, codecs = os.getloadavg()[0], tuple(given.codecs.split(","))
    found = {}
    for name in given.part.split(","):
        if name == "memory":
            found[name] = measure_memory(given.rounds, codecs)
        else:
            found[name] = measure_broker(given.rounds, given.records, codecs)
        measure.print_comparisons(name, found[name])
    measure.save(given.json, found, {"rounds": given.rounds, "records": given.records}, load)


if __name__ == "__main__":
    main()
