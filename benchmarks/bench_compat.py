# SPDX-License-Identifier: Apache-2.0
"""aiokafka and kafka-python with and without kcodec.compat, by their own API: reading, consuming, building.

Usage: python benchmarks/bench_compat.py [--shapes abcde] [--codecs none,lz4,zstd] [--rounds N] [--seconds S]
                                        [--json FILE]

read:    the record classes: every batch of a fetch, its CRC, its records one by one.
consume: what the consumer does with a fetch: records to ConsumerRecords, each let go before the next.
build:   the producer's batch builder: append of every record, then the finished batches.

The bytes are those of all benchmarks (shapes.py). The two take turns in one process; figures are ns of processor time
a record, and the value is the client's own time over its time with kcodec. Both give the same, which is checked first.
Bars under aiokafka: 1.5 times for shape d and 2 times for shape c, at least. Rounds, intervals, other load: `measure`.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import shapes
from measure import Bar

import kcodec.compat.aiokafka
import kcodec.compat.kafka_python

ROUNDS, SECONDS = 9, 0.05
OWN, OURS = "without kcodec", "with kcodec"
#: For aiokafka, by shape.
BARS = {"d": Bar(1.5, is_least=True), "c": Bar(2.0, is_least=True)}
RESULTS = Path(__file__).resolve().parent / "results" / "compat.json"
ADAPTERS: dict[str, Any] = {"aiokafka": kcodec.compat.aiokafka, "kafka-python": kcodec.compat.kafka_python}
Fields = list[tuple[Any, ...]]


def record_fields(record: Any) -> tuple[Any, ...]:
    headers = list(record.headers)
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, headers, record.checksum)


def record_set(client: str) -> Callable[[bytes], Any]:
    if client == "aiokafka":
        from aiokafka.record import memory_records
    else:
        from kafka.record import memory_records
    found: Callable[[bytes], Any] = memory_records.MemoryRecords
    return found


def read(client: str, data: bytes, keep: Callable[[Any], Any] | None = None) -> Any:
    """Read every record of a fetch by the record classes."""
    records, kept = record_set(client)(data), []
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise ValueError(f"wrong CRC at offset {batch.base_offset}")
        if keep is None:
            for _ in batch:
                pass
        else:
            kept += [keep(record) for record in batch]
    return kept


def consume(client: str, data: bytes, keep: Callable[[Any], Any] | None = None) -> Any:
    """Read every record of a fetch as the client's consumer does."""
    if client == "aiokafka":
        from aiokafka.consumer import fetcher
        from aiokafka.structs import TopicPartition

        tp = TopicPartition("topic", 0)
        found = fetcher.PartitionRecords(tp, record_set(client)(data), [], 0, None, None, True, 0)
    else:
        from kafka.consumer.fetcher import Fetcher
        from kafka.structs import TopicPartition

        part = Fetcher.PartitionRecords(0, TopicPartition("topic", 0), record_set(client)(data))
        found = part.record_iterator
    if keep is None:
        return deque(found, maxlen=0)
    return [keep(record) for record in found]


def build(client: str, shape: str, codec: str) -> list[bytes]:
    """Build the batches of a shape by the producer's builder, which an installed adapter has replaced in its module."""
    made = []
    if client == "aiokafka":
        from aiokafka.record.default_records import DefaultRecordBatchBuilder
    else:
        from kafka.record.memory_records import MemoryRecordsBuilder
    for rows in shapes.batches_of_rows(shape):
        if client == "aiokafka":
            builder = DefaultRecordBatchBuilder(2, shapes.CODECS[codec], 0, -1, -1, -1, 1 << 30)
            append = builder.append
            for at, (timestamp, key, value, headers) in enumerate(rows):
                append(at, timestamp, key, value, headers)
            made.append(builder.build())
        else:
            records = MemoryRecordsBuilder(2, shapes.CODECS[codec], 1 << 30)
            add = records.append
            for timestamp, key, value, headers in rows:
                add(timestamp, key, value, headers)
            records.close()
            made.append(records.buffer())
    return made


def with_adapter(client: str, case: Callable[[], Any]) -> Any:
    ADAPTERS[client].install()
    try:
        return case()
    finally:
        ADAPTERS[client].uninstall()


def check_same(client: str, part: str, shape: str, codec: str) -> None:
    """Raise ValueError unless both give the same records."""
    if part == "build":
        theirs = build(client, shape, codec)
        ours = with_adapter(client, lambda: build(client, shape, codec))
        answers = [[read(client, bytes(batch), record_fields) for batch in made] for made in (theirs, ours)]
    else:
        case = functools.partial({"read": read, "consume": consume}[part], client, blob_of(shape, codec), record_fields)
        answers = [case(), with_adapter(client, case)]
    if answers[0] != answers[1]:
        raise ValueError(f"{client} {part} {shape} {codec}: the records differ")


@functools.cache
def blob_of(shape: str, codec: str) -> bytes:
    return bytes(shapes.blob(shape, codec).data)


def case_of(client: str, part: str, shape: str, codec: str) -> Callable[[], Any]:
    if part == "build":
        return functools.partial(build, client, shape, codec)
    return functools.partial({"read": read, "consume": consume}[part], client, blob_of(shape, codec))


def row_of(client: str, part: str, shape: str, codec: str, options: argparse.Namespace) -> dict[str, Any]:
    check_same(client, part, shape, codec)
    case = case_of(client, part, shape, codec)
    records = shapes.SHAPES[shape].per_batch * shapes.SHAPES[shape].batches

    def turn(run: Callable[[Callable[[], Any]], Any]) -> dict[str, float]:
        return {"cpu": run(lambda: measure.one_slice(case, options.seconds, time.process_time)) * 1e9 / records}

    turns = {OWN: lambda: turn(lambda run: run()), OURS: lambda: turn(functools.partial(with_adapter, client))}
    rounds = measure.take_turns(turns, options.rounds)
    bar = BARS.get(shape) if client == "aiokafka" else None
    named = {"case": f"{client}, {part}, {codec}, {shape}", "unit": "ns a record"}
    row = measure.compare(rounds, "cpu", OWN, OURS, bar=bar, **named)
    return {"client": client, "part": part, "codec": codec, "shape": shape} | row


def main() -> int:
    """Print a table and write the requested file."""
    parser = argparse.ArgumentParser(description="other clients with and without kcodec behind them")
    parser.add_argument("--shapes", default="abcde", help="which record shapes (default: %(default)s)")
    parser.add_argument("--codecs", default="none,lz4,zstd", help="which codecs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, help=f"write all figures, as into {RESULTS.name} in results")
    options = parser.parse_args()
    shapes.check_digests(options.shapes)
    load = os.getloadavg()[0]
    rows = [
        row_of(client, part, shape, codec, options)
        for client in ADAPTERS
        for part in ("read", "consume", "build")
        for codec in options.codecs.split(",")
        for shape in options.shapes
    ]
    measure.print_comparisons("processor time without kcodec and with it", rows)
    settings = {name: getattr(options, name) for name in ("shapes", "codecs", "rounds", "seconds")}
    measure.save(options.json, {"compat": rows}, settings, load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
