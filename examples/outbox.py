# SPDX-License-Identifier: Apache-2.0
"""Transactional outbox: rows of a database to Kafka, each exactly once, whatever is killed when. docs/outbox.md.

The application writes its business row and a row for the outbox in one database transaction:

    with connection.transaction():
        connection.execute("UPDATE accounts ...")
        PostgresOutbox.add(connection, "payments", key=b"alice", value=b"-10")

A relay carries the rows over. Its progress is a record of a compacted topic, or the committed offset of a consumer
group, written in the same Kafka transaction as the rows, so rows and progress are there together or not at all:

    Relay(PostgresOutbox("dbname=shop"), "payments-relay", TopicProgress("relays"), bootstrap_servers=...).run()

    python examples/outbox.py --postgres "dbname=shop" -b localhost:9092 --name payments-relay --progress-topic relays

Readers use isolation_level read_committed. Run one relay a name; a second one takes over, and the first ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import Admin, Consumer, Producer, Transaction
from kcodec.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    TransportError,
)

log = logging.getLogger("outbox")
START = OffsetAndMetadata(0)
# What trying again does not change: another relay took over, a permission is missing ...
LASTING = (ProducerFencedError, AuthorizationError, AuthenticationError, FatalTransactionError)
# Interval at which an idle relay commits its position, as a group would forget it (GroupProgress).
KEEP_SECONDS = 24 * 3600.0
READ_BACK_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """A row of the outbox, as it is sent."""

    topic: str
    key: bytes | None
    value: bytes | None


class Outbox(Protocol):
    """A table of rows to be sent. A position is what the relay commits: opaque to it, an offset and a short text."""

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """Up to `limit` rows behind a position, and the position behind them. Asked again, the same rows come."""

    def forget(self, position: OffsetAndMetadata) -> None:
        """Delete the rows before a committed position; none of them is ever asked for again."""


# ------------------------------------------------------------------------------------------------------------- sqlite


class SqliteOutbox:
    """SQLite has one writer at a time, so rows appear in the order of their numbers, and "greater than the last" is
    all of the rest. AUTOINCREMENT, as otherwise the number of a deleted last row would be given out again."""

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB)"""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(self.SCHEMA)

    @staticmethod
    def add(connection: sqlite3.Connection, topic: str, *, key: bytes | None, value: bytes | None) -> None:
        """For the application, within its own transaction."""
        connection.execute("INSERT INTO outbox (topic, key, value) VALUES (?, ?, ?)", (topic, key, value))

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """The position is the number of the next row."""
        found = self._connection.execute(
            "SELECT id, topic, key, value FROM outbox WHERE id >= ? ORDER BY id LIMIT ?", (position.offset, limit)
        ).fetchall()
        after = OffsetAndMetadata(found[-1][0] + 1) if found else position
        return [Row(*row[1:]) for row in found], after

    def forget(self, position: OffsetAndMetadata) -> None:
        """See Outbox."""
        self._connection.execute("DELETE FROM outbox WHERE id < ?", (position.offset,))

    def close(self) -> None:
        self._connection.close()


# --------------------------------------------------------------------------------------------------------- PostgreSQL


class PostgresOutbox:
    """PostgreSQL (13 or newer) gives numbers out before the commit, so they become visible out of order: 2 may be there
    when 1 is not yet, and "greater than the last" would never see 1. So this goes by the writing transactions.

    Each row knows the id of its transaction. `pg_snapshot_xmin` is the oldest id that is still running: everything
    below it has ended, is visible or never will be, and nothing new can appear there. The rows of the ids from one such
    horizon to the next are a closed window; it is sent in the order of row numbers, as a transaction that waited for
    another's lock took its number later. (By transaction ids it would not be: those are given out at the first write.)
    For the same reason, a window ends before a row whose number is higher than that of a visible row behind the
    horizon: the transaction of that one may have been the first to commit.

    Position: offset = the horizon up to which all is sent; within a window its text is "upper horizon:last number".
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS outbox (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
            topic text NOT NULL, key bytea, value bytea);
        CREATE INDEX IF NOT EXISTS outbox_by_transaction ON outbox (transaction_id, id)"""
    HORIZON = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    # The highest transaction id up to the horizon that divides the rows by transaction id and by number alike. Without
    # rows behind the horizon, that is the horizon.
    DIVISION = """
        WITH transactions AS (
            SELECT transaction_id, min(id) AS first, max(id) AS last
            FROM outbox WHERE transaction_id >= %(low)s::text::xid8 GROUP BY transaction_id),
        divisions AS (
            SELECT transaction_id,
                max(last) OVER (ORDER BY transaction_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
                min(first) OVER (ORDER BY transaction_id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS after
            FROM transactions),
        behind AS (SELECT min(transaction_id) AS id FROM transactions WHERE transaction_id >= %(high)s::text::xid8)
        SELECT CASE
            WHEN behind.id IS NULL THEN %(high)s::text::bigint
            ELSE least(%(high)s::text::bigint, (
                SELECT max(transaction_id::text::bigint) FROM divisions
                WHERE transaction_id <= behind.id AND (before IS NULL OR before < after)))
            END
        FROM behind"""
    WINDOW = """
        SELECT id, topic, key, value FROM outbox
        WHERE transaction_id >= %s::text::xid8 AND transaction_id < %s::text::xid8 AND id > %s
        ORDER BY id LIMIT %s"""

    def __init__(self, conninfo: str) -> None:
        import psycopg

        # autocommit: each statement sees the newest state, and the relay holds no horizon back itself
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._connection.execute(self.SCHEMA)

    @staticmethod
    def add(connection: Any, topic: str, *, key: bytes | None, value: bytes | None) -> None:
        """For the application, within its own transaction."""
        connection.execute("INSERT INTO outbox (topic, key, value) VALUES (%s, %s, %s)", (topic, key, value))

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """See Outbox."""
        low, (high, last) = position.offset, self._window(position)
        found = self._connection.execute(self.WINDOW, (str(low), str(high), last, limit)).fetchall()
        if len(found) == limit:
            after = OffsetAndMetadata(low, f"{high}:{found[-1][0]}")
        else:
            after = OffsetAndMetadata(high)
        return [Row(*row[1:]) for row in found], after

    def _window(self, position: OffsetAndMetadata) -> tuple[int, int]:
        """Its upper horizon, and the last number sent of it."""
        if position.metadata:
            high, _, last = position.metadata.partition(":")
            return int(high), int(last)
        row = self._connection.execute(self.HORIZON).fetchone()
        assert row is not None
        horizon = max(int(row[0]), position.offset)
        limits = {"low": str(position.offset), "high": str(horizon)}
        row = self._connection.execute(self.DIVISION, limits).fetchone()
        assert row is not None
        return max(int(row[0]), position.offset), 0

    def forget(self, position: OffsetAndMetadata) -> None:
        """See Outbox."""
        self._connection.execute("DELETE FROM outbox WHERE transaction_id < %s::text::xid8", (str(position.offset),))

    def close(self) -> None:
        self._connection.close()


# ----------------------------------------------------------------------------------------------------------- progress


class Progress(Protocol):
    """Where the position of relays is kept, by their names; `options` are those of clients."""

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """The last position that was committed. Asked behind init_transactions, or it may not be the truth yet."""

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """Make it part of a transaction."""


class TopicProgress:
    """In partition 0 of a compacted topic (cleanup.policy=compact), keyed by the relay's name. It is kept until
    it is deleted, is visible to every program, and one topic serves any number of relays."""

    def __init__(self, topic: str) -> None:
        self.partition = TopicPartition(topic, 0)

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """Read back from the beginning; compaction keeps that short.

        Up to the end of the log and not of what can be read by now: that ends before the first open transaction of
        any other relay, and our last position may lie behind it. Reading read_committed up to there waits for them.
        """
        with Admin(**options) as admin:
            end = admin.list_offsets({self.partition: "latest"})[self.partition].offset
        found = None
        deadline = time.monotonic() + READ_BACK_SECONDS
        with Consumer(**options) as consumer:
            consumer.assign([self.partition])
            consumer.seek_to_beginning(self.partition)
            while consumer.position(self.partition) < end:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"an open transaction holds {self.partition} back: see kcodec txn list")
                for record in consumer.poll(1.0):
                    if record.key == name.encode() and record.value is not None:
                        found = OffsetAndMetadata(**json.loads(record.value))
        return found

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """See Progress."""
        value = json.dumps({"offset": position.offset, "metadata": position.metadata}).encode()
        transaction.send(self.partition.topic, value, key=name.encode(), partition=self.partition.partition)


class GroupProgress:
    """As a group's committed offset for a partition: any that exists and we may read; nothing is written there.

    It needs no topic of its own, but a group without members keeps its offsets for a week after their last commit
    (offsets.retention.minutes): a relay that stands still for longer begins again at START.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """See Progress."""
        with Admin(**options) as admin:
            return admin.list_group_offsets(name, [self.partition], require_stable=True)[self.partition]

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """By the group's id alone: no member of a group fences us, the transactional id does."""
        transaction.send_offsets({self.partition: position}, ConsumerGroupMetadata(name))


# -------------------------------------------------------------------------------------------------------------- relay


class Relay:
    """Sends what is in an outbox, from wherever the last relay of this name stopped.

    name:      transactional id and name of the progress at once. Of two relays with one name the later one wins.
    options:   of every client, bootstrap_servers among them.
    """

    def __init__(self, outbox: Outbox, name: str, progress: Progress, *, limit: int = 500, **options: Any) -> None:
        self.outbox = outbox
        self.name = name
        self.progress = progress
        self.limit = limit
        self._options = options
        self._producer: Producer | None = None
        self._position = START
        self._committed_at = 0.0

    def open(self) -> None:
        """Take over. The order matters: first the producer, which ends whatever the last one left open; then the
        position, which is only then the truth."""
        self._producer = Producer(transactional_id=self.name, **self._options)
        self._producer.init_transactions()
        committed = self.progress.read(self.name, self._options)
        self._position = START if committed is None else committed
        self._committed_at = time.monotonic()
        self.outbox.forget(self._position)
        log.info("%s goes on at %s", self.name, self._position)

    def publish(self) -> int:
        """Send some rows and the position behind them in one transaction; how many rows. After an error `close` it:
        what became of the transaction is known when it is opened again."""
        if self._producer is None:
            self.open()
        assert self._producer is not None
        rows, after = self.outbox.rows_after(self._position, self.limit)
        if rows or time.monotonic() - self._committed_at > KEEP_SECONDS:
            with self._producer.transaction() as transaction:
                for row in rows:
                    transaction.send(row.topic, row.value, row.key)
                self.progress.write(transaction, self.name, after)
            self._committed_at = time.monotonic()
            self.outbox.forget(after)
        self._position = after
        return len(rows)

    def run(self, is_over: Callable[[], bool] = lambda: False, pause: float = 0.1) -> None:
        """Publish until it is over, waiting `pause` seconds where there is nothing. After an error that may pass it
        begins again at the committed position; those of LASTING, and the database's own, are raised."""
        while not is_over():
            try:
                sent = self.publish()
            except LASTING:
                raise
            except (BrokerError, TransportError) as error:
                log.warning("%s begins again: %s", self.name, error)
                self.close()
                sent = 0
            if not sent:
                time.sleep(pause)

    def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.close(timeout=5)


def main() -> None:
    parser = argparse.ArgumentParser(description="send the rows of an outbox table to Kafka, each once")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--sqlite", metavar="FILE")
    place.add_argument("--postgres", metavar="CONNINFO", help="as libpq takes it")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--name", required=True, help="transactional id of this relay")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--progress-topic", metavar="TOPIC", help="a compacted topic for the positions of relays")
    where.add_argument("--progress", metavar="TOPIC", help="a topic to commit the position on, as a group")
    parser.add_argument("--limit", type=int, default=500, help="rows in a transaction (default: %(default)s)")
    parser.add_argument("--options", default="{}", metavar="JSON", help="more options of the clients")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    outbox: Outbox = SqliteOutbox(given.sqlite) if given.sqlite else PostgresOutbox(given.postgres)
    options = {"bootstrap_servers": given.bootstrap_server, **json.loads(given.options)}
    progress: Progress
    if given.progress_topic:
        progress = TopicProgress(given.progress_topic)
    else:
        progress = GroupProgress(TopicPartition(given.progress, 0))
    relay = Relay(outbox, given.name, progress, limit=given.limit, **options)
    try:
        relay.run()
    finally:
        relay.close()


if __name__ == "__main__":
    main()
