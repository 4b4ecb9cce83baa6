# SPDX-License-Identifier: Apache-2.0
"""Comparison of kcodec's consumer with Java's on one broker, record by record, and random records for it.

difference(servers, topics, isolation_level) -> None, or a text with the first difference
random_workload(kafka, topic, seed, steps)  -> leaves transactions committed, aborted and open in a topic
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from random import Random
from typing import Any, Literal

from java_clients import ConsumedRecord, consume, end_offsets
from reference import java_string

from kcodec import TopicPartition
from kcodec.client import Consumer, Producer
from kcodec.testing.kafka import ApacheKafka

SECONDS = 60.0
Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATION_LEVELS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
CODECS: tuple[Literal["none", "gzip", "snappy", "lz4", "zstd"], ...] = ("none", "gzip", "snappy", "lz4", "zstd")


def consumed_by_kcodec(
    servers: str, ends: dict[tuple[str, int], int], isolation_level: Isolation, **options: Any
) -> list[ConsumedRecord]:
    """All records up to these ends, in the order of each partition, in Java's form."""
    found = []
    with Consumer(
        bootstrap_servers=servers, isolation_level=isolation_level, auto_offset_reset="earliest", **options
    ) as consumer:
        partitions = [TopicPartition(*name) for name in ends]
        consumer.assign(partitions)
        deadline = time.monotonic() + SECONDS
        left = set(partitions)
        while left:
            assert time.monotonic() < deadline, f"the ends are not reached: {sorted(left)[:5]}"
            for record in consumer.poll(0.2):
                names = (
                    (java_string(name.encode("utf-8", "surrogateescape")), value) for name, value in record.headers
                )
                assert record.topic is not None and record.partition is not None
                found.append(
                    ConsumedRecord(
                        *(record.topic, record.partition, record.offset, record.timestamp, record.key, record.value),
                        tuple(names),
                    )
                )
            left -= {name for name in left if consumer.position(name) >= ends[name]}
    return sorted(found, key=lambda record: record[:3])


def difference(
    servers: str, topics: Iterable[str], isolation_level: Isolation, **options: Any
) -> tuple[int, str | None]:
    """How many records Java's consumer delivers, and where kcodec's delivers others."""
    names = sorted(topics)
    theirs = sorted(consume(servers, names, isolation_level), key=lambda record: record[:3])
    ours = consumed_by_kcodec(servers, end_offsets(servers, names, isolation_level), isolation_level, **options)
    for mine, javas in zip(ours, theirs, strict=False):
        if mine != javas:
            return len(theirs), f"kcodec: {mine}\nJava:   {javas}"
    if len(ours) != len(theirs):
        return len(theirs), f"kcodec delivers {len(ours)} records, Java {len(theirs)}"
    return len(theirs), None


def random_workload(kafka: ApacheKafka, topic: str, partitions: int, seed: int, steps: int) -> None:
    """Three transactional producers and a plain one in turns, small batches of every codec; some transactions stay open
    at the end, and are ended by the next workload of that seed, or by their time-out."""
    rng = Random(seed)
    with ExitStack() as stack:
        options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "linger_ms": 1, "batch_size": 400}
        producers = [
            stack.enter_context(
                Producer(**options, compression_type=rng.choice(CODECS), transactional_id=f"{topic}-{seed}-{number}")
            )
            for number in range(3)
        ]
        for producer in producers:
            producer.init_transactions()
        plain = stack.enter_context(Producer(**options, compression_type=rng.choice(CODECS)))
        is_open = dict.fromkeys(producers, False)
        for _ in range(steps):
            producer = rng.choice([*producers, plain])
            if producer is not plain and not is_open[producer]:
                producer.begin_transaction()
                is_open[producer] = True
            for _ in range(rng.randint(1, 8)):
                value = rng.randbytes(rng.choice((0, 1, 30, 300)))
                producer.send(
                    topic,
                    None if rng.random() < 0.05 else value,
                    key=None if rng.random() < 0.5 else rng.randbytes(8),
                    headers=[("name", rng.randbytes(3))] * rng.choice((0, 0, 1, 2)),
                    partition=rng.randrange(partitions),
                )
            producer.flush()
            if producer is not plain and rng.random() < 0.4:
                (producer.abort_transaction if rng.random() < 0.5 else producer.commit_transaction)()
                is_open[producer] = False
        for isolation_level in ISOLATION_LEVELS:
            # Compare while transactions are open, too, when read_committed ends at the last stable offset.
            count, reported = difference(kafka.bootstrap_servers, [topic], isolation_level)
            assert reported is None, f"seed {seed}, {isolation_level}, {count} records\n{reported}"
        for producer, was_open in is_open.items():
            if was_open:
                producer.abort_transaction()
