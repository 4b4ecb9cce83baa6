# SPDX-License-Identifier: Apache-2.0
"""Messages of the protocol, read and written: kcodec compared with kafka-python and aiokafka, on the same bytes.

Usage: python benchmarks/bench_messages.py [--rounds 15] [--seconds 0.2] [--json FILE]

Everybody reads the same bytes into its own objects and writes them again; the run ends with an error unless what each
writes is those bytes. Contestants take turns. aiokafka knows fewer versions, so each message also comes in the highest
one of them. The bar is on the quicker of the two. Objects are freed within the time of the call that made them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import measure
import parts

from kcodec.protocol import messages
from kcodec.protocol.schema import Message

# Minimum ratio of kcodec's speed to that of the quicker of the two other libraries.
BAR = 2.0


class Shape(NamedTuple):
    """A message of one version and its bytes."""

    name: str
    message: Message
    version: int
    data: bytes


def metadata(topics: int, partitions: int, version: int) -> messages.MetadataResponse:
    """Return metadata with thirty brokers and three replicas of each partition."""
    brokers = [
        messages.MetadataResponseBroker(
            node_id=node, host=f"broker-{node}.example.com", port=9092, rack="abc"[node % 3]
        )
        for node in range(30)
    ]
    draw = random.Random(1)

    def partition(index: int, first: int) -> messages.MetadataResponsePartition:
        replicas = [(first + index + step) % 30 for step in range(3)]
        return messages.MetadataResponsePartition(
            partition_index=index,
            leader_id=replicas[0],
            leader_epoch=1000 + index if version >= 7 else -1,
            replica_nodes=replicas,
            isr_nodes=replicas[:],
        )

    found = [
        messages.MetadataResponseTopic(
            name=f"orders-of-region-{number}",
            topic_id=UUID(int=draw.getrandbits(128)) if version >= 10 else UUID(int=0),
            partitions=[partition(index, number) for index in range(partitions)],
        )
        for number in range(topics)
    ]
    return messages.MetadataResponse(
        brokers=brokers, cluster_id="abcdefghijklmnopqrstuv", controller_id=3, topics=found
    )


def fetched(partitions: int, size: int, aborted: int) -> messages.FetchResponse:
    """Return partitions of ten topics, each with this number of bytes of records and of aborted transactions."""
    draw = random.Random(2)
    topics = [
        messages.FetchableTopicResponse(
            topic=f"orders-of-region-{number}",
            partitions=[
                messages.FetchPartitionData(
                    partition_index=index,
                    high_watermark=draw.getrandbits(40),
                    last_stable_offset=draw.getrandbits(40),
                    log_start_offset=0,
                    aborted_transactions=[
                        messages.AbortedTransaction(producer_id=draw.getrandbits(20), first_offset=draw.getrandbits(40))
                        for _ in range(aborted)
                    ],
                    records=draw.randbytes(size),
                )
                for index in range(partitions // 10)
            ],
        )
        for number in range(10)
    ]
    return messages.FetchResponse(session_id=77, responses=topics)


def produced(size: int) -> messages.ProduceRequest:
    """Return a Produce request for three partitions of a topic."""
    data = [messages.PartitionProduceData(index=index, records=bytes(size)) for index in range(3)]
    topic = messages.TopicProduceData(name="orders-of-region-1", partition_data=data)
    return messages.ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[topic])


def shapes() -> list[Shape]:
    """Return the messages that are measured."""
    ended = messages.EndTxnRequest(transactional_id="orders-1", producer_id=4000, producer_epoch=3, committed=True)
    made: list[tuple[str, Message, int]] = [
        ("metadata, 350 KB", metadata(390, 20, 12), 12),
        ("metadata, 350 KB", metadata(340, 20, 5), 5),
        ("fetch, 500 partitions of 200 B", fetched(500, 200, 0), 11),
        ("fetch, 50 partitions, 100 aborted transactions each", fetched(50, 200, 100), 11),
        ("fetch, 10 partitions of 100 KB", fetched(10, 100_000, 0), 11),
        ("produce, 3 partitions of 16 KB", produced(16384), 8),
        ("end of a transaction", ended, 1),
    ]
    return [Shape(name, message, version, message.encode(version)) for name, message, version in made]


def cases_of_kcodec(shape: Shape) -> tuple[Callable[[], Any], Callable[[], bytes]]:
    """Return the functions (read, write) of kcodec."""
    kind, data, version = type(shape.message), shape.data, shape.version
    message = kind.decode(data, version)
    return lambda: kind.decode(data, version), lambda: message.encode(version)


def cases_of_kafka_python(shape: Shape) -> tuple[Callable[[], Any], Callable[[], bytes]]:
    """Return the functions (read, write) of kafka-python."""
    from kafka.protocol.consumer import FetchResponse
    from kafka.protocol.metadata import MetadataResponse
    from kafka.protocol.producer import EndTxnRequest, ProduceRequest

    kinds = {one.__name__: one for one in (FetchResponse, MetadataResponse, EndTxnRequest, ProduceRequest)}
    kind, data, version = kinds[type(shape.message).__name__], shape.data, shape.version
    message = kind.decode(data, version=version)
    # These attributes are needed by its encode(), but not set by its decode().
    message._header, message._version = None, version
    return lambda: kind.decode(data, version=version), lambda: bytes(message.encode(version=version))


def cases_of_aiokafka(shape: Shape) -> tuple[Callable[[], Any], Callable[[], bytes]] | None:
    """Return the functions (read, write) of aiokafka; None for a version that it does not support."""
    from aiokafka.protocol.fetch import FetchResponse_v11
    from aiokafka.protocol.metadata import MetadataResponse_v5
    from aiokafka.protocol.produce import ProduceRequest_v8

    kinds = (FetchResponse_v11, MetadataResponse_v5, ProduceRequest_v8)
    named = {one.__name__: one for one in kinds}
    kind, data = named.get(f"{type(shape.message).__name__}_v{shape.version}"), shape.data
    if kind is None:
        return None
    message = kind.decode(data)
    return lambda: kind.decode(data), lambda: bytes(message.encode())


CONTESTANTS: dict[str, Callable[[Shape], tuple[Callable[[], Any], Callable[[], bytes]] | None]] = {
    "kcodec": cases_of_kcodec,
    "kafka-python": cases_of_kafka_python,
    "aiokafka": cases_of_aiokafka,
}


def measured(
    shape: Shape, way: str, cases: dict[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, Any]:
    """Return a row with the microseconds of each library, and their ratios to kcodec's."""
    samples, others = measure.interleaved(cases, rounds, seconds, patience=3)
    row: dict[str, Any] = {"message": shape.name, "version": shape.version, "bytes": len(shape.data), "way": way}
    for name, spent in samples.items():
        row[name] = round(statistics.median(spent) * 1e6, 2)
    row |= {"others": round(others, 2), "is_busy": others > measure.OTHERS_OF_ONE}
    ratios = {name: measure.ratio(spent, samples["kcodec"]) for name, spent in samples.items() if name != "kcodec"}
    for name, ratio in ratios.items():
        parts.with_interval(row, f"times {name}", ratio)
        row[f"times {name}"] = round(ratio.median, 2)
    parts.judged(row, "times", min(ratio.median for ratio in ratios.values()), BAR, least=True)
    return row


def rows(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure reading and writing of each shape. Raise ValueError if a library does not write the bytes that it
    read."""
    found = []
    for shape in shapes():
        made = {name: both for name, make in CONTESTANTS.items() if (both := make(shape)) is not None}
        for name, (_, write) in made.items():
            if write() != shape.data:
                raise ValueError(f"{name} writes other bytes than it read: {shape.name}, version {shape.version}")
        for at, way in enumerate(("read", "write")):
            turns = {name: both[at] for name, both in made.items()}
            found.append(measured(shape, way, turns, rounds, seconds))
    return found


SHOWN = ("message", "version", "bytes", "way", *CONTESTANTS, "times kafka-python", "times aiokafka")
SHOWN += ("times_bar", "times_met", "others")


def main() -> int:
    """Print a table. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    found = rows(arguments.rounds, arguments.seconds)
    measure.print_table("messages, one thread (microseconds a message, medians)", found, SHOWN)
    options = {"rounds": arguments.rounds, "seconds": arguments.seconds}
    measure.save(arguments.json, {"messages": found}, options, before, unit="microseconds a message")
    return int(any(row["times_met"] is False for row in found))


if __name__ == "__main__":
    sys.exit(main())
