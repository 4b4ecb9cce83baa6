# SPDX-License-Identifier: Apache-2.0
"""An ordinary producer in a topic where a transaction is open: who reads uncommitted sees its records at once, who
reads committed when the transaction has ended, in the order of offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kcodec import TopicPartition
from kcodec.client import Consumer, Producer
from kcodec.testing.kafka import ApacheKafka

SECONDS = 20.0


class Readers:
    """One consumer of each isolation level on one partition, each from its beginning."""

    def __init__(self, servers: str, topic: str) -> None:
        self.partition = TopicPartition(topic, 0)
        self.consumers = {
            level: Consumer(
                bootstrap_servers=servers, isolation_level=level, auto_offset_reset="earliest", fetch_max_wait_ms=50
            )
            for level in ("read_uncommitted", "read_committed")
        }
        for consumer in self.consumers.values():
            consumer.assign([self.partition])

    def take(self, level: str, count: int) -> list[tuple[int, bytes | None]]:
        """The next so many records as (offset, value); fewer if they do not come in time."""
        found: list[tuple[int, bytes | None]] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += [(record.offset, record.value) for record in self.consumers[level].poll(0.1)]
        return found

    def has_nothing(self, level: str) -> bool:
        """Whether half a second brings no record."""
        return not any(self.consumers[level].poll(0.1) for _ in range(5))

    def close(self) -> None:
        for consumer in self.consumers.values():
            consumer.close()


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=1)


@pytest.fixture
def readers(apache_kafka: ApacheKafka, topic: str) -> Iterator[Readers]:
    found = Readers(apache_kafka.bootstrap_servers, topic)
    yield found
    found.close()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_plain_record_waits_for_transactions_in_read_committed(
    apache_kafka: ApacheKafka, topic: str, readers: Readers, end: str
) -> None:
    servers = apache_kafka.bootstrap_servers
    with (
        Producer(bootstrap_servers=servers, transactional_id=topic) as transactional,
        Producer(bootstrap_servers=servers, linger_ms=0) as ordinary,
    ):
        transactional.init_transactions()
        ordinary.send(topic, b"before").result(SECONDS)
        with transactional.transaction() as txn:
            txn.send(topic, b"within").result(SECONDS)
            ordinary.send(topic, b"meanwhile").result(SECONDS)
            everything = [(0, b"before"), (1, b"within"), (2, b"meanwhile")]
            assert readers.take("read_uncommitted", 3) == everything
            assert readers.take("read_committed", 1) == [(0, b"before")]
            assert readers.has_nothing("read_committed")
            consumer = readers.consumers["read_committed"]
            assert consumer.position(readers.partition) == 1  # the last stable offset: there it waits
            if end == "abort":
                txn.abort()
        wanted = [(1, b"within"), (2, b"meanwhile")] if end == "commit" else [(2, b"meanwhile")]
        assert readers.take("read_committed", len(wanted)) == wanted
        ordinary.send(topic, b"behind").result(SECONDS)  # the marker lies at 3
        assert readers.take("read_committed", 1) == [(4, b"behind")]
        assert readers.take("read_uncommitted", 1) == [(4, b"behind")]
