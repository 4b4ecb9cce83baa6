# SPDX-License-Identifier: Apache-2.0
"""The records that an outbox relay delivered, and a control: a relay that loses rows."""

from __future__ import annotations

import time

from java_clients import consume
from outbox import PostgresOutbox, Row

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.client import Admin
from kcodec.testing.kafka import ApacheKafka


def delivered(kafka: ApacheKafka, topic: str) -> list[tuple[bytes, bytes]]:
    """Return the (key, value) pairs that Kafka's read_committed consumer gets when all markers are written."""
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        ends = {
            TopicPartition(topic, one.partition): "latest" for one in admin.describe_topics([topic])[topic].partitions
        }
        deadline = time.monotonic() + 20
        while admin.list_offsets(ends, isolation_level="read_committed") != admin.list_offsets(ends):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return [(record.key or b"", record.value or b"") for record in consume(kafka.bootstrap_servers, topic)]


def by_key(rows: list[tuple[bytes, bytes]]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(int(value))
    return found


class GreaterThanTheLast(PostgresOutbox):
    """The control: the usual incorrect query."""

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        found = self._connection.execute(
            "SELECT id, topic, key, value FROM outbox WHERE id > %s ORDER BY id LIMIT %s", (position.offset, limit)
        ).fetchall()
        after = OffsetAndMetadata(found[-1][0]) if found else position
        return [Row(*row[1:]) for row in found], after

    def forget(self, position: OffsetAndMetadata) -> None:
        self._connection.execute("DELETE FROM outbox WHERE id <= %s", (position.offset,))
