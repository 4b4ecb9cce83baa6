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
import base64
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


@dataclass(frozen=True)
class Snapshot:
    """The transactions that had ended at one moment: all ids below `xmax` except those that were `running`."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse the text of a pg_snapshot, `xmin:xmax:id,id`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, running.split(","))) if running else ())

    @classmethod
    def below(cls, horizon: int) -> Snapshot:
        """Return the snapshot in which exactly the transactions below this id have ended. PostgreSQL refuses id 0."""
        return cls(max(horizon, 1), max(horizon, 1))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def pack(self) -> str:
        """Return a short text: the ids that were running are gaps of 7 bits a byte, in Base64."""
        packed, previous = bytearray(), self.xmin
        for one in self.running:
            gap, previous = one - previous, one
            while gap > 127:
                packed.append(gap & 127 | 128)
                gap >>= 7
            packed.append(gap)
        return f"{self.xmin}:{self.xmax}:{base64.b64encode(packed).decode()}"

    @classmethod
    def unpack(cls, text: str) -> Snapshot:
        """Return the snapshot whose `pack` returned this text."""
        xmin, xmax, packed = text.split(":")
        running, previous, gap, shift = [], int(xmin), 0, 0
        for byte in base64.b64decode(packed):
            gap |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                previous += gap
                running.append(previous)
                gap = shift = 0
        return cls(int(xmin), int(xmax), tuple(running))


@dataclass(frozen=True)
class Window:
    """Position in a PostgresOutbox. All rows of the snapshot `sent` are sent. While a window is sent in chunks, so are
    the rows of the snapshot `upper` up to the number `last`."""

    sent: Snapshot
    upper: Snapshot | None = None
    last: int = 0

    @classmethod
    def at(cls, position: OffsetAndMetadata) -> Window:
        """Parse a position. Earlier versions of this program stored only ids below which all transactions had ended:
        the offset, and in a window also the metadata "upper id:last number"."""
        version, _, rest = position.metadata.partition(";")
        if version == "s":
            sent, *chunk = rest.split(";")
            if not chunk:
                return cls(Snapshot.unpack(sent))
            return cls(Snapshot.unpack(sent), Snapshot.unpack(chunk[0]), int(chunk[1]))
        if position.metadata:
            upper, _, last = position.metadata.partition(":")
            return cls(Snapshot.below(position.offset), Snapshot.below(int(upper)), int(last))
        return cls(Snapshot.below(position.offset))

    def position(self) -> OffsetAndMetadata:
        """Return the position to commit. Its offset is only for people; everything is in its metadata."""
        metadata = f"s;{self.sent.pack()}"
        if self.upper is not None:
            metadata += f";{self.upper.pack()};{self.last}"
        return OffsetAndMetadata(self.sent.xmin, metadata)


class PostgresOutbox:
    """PostgreSQL (13 or newer) gives numbers out before the commit, so they become visible out of order: 2 may be there
    when 1 is not yet, and "greater than the last" would never see 1. So this goes by the writing transactions.

    Each row knows the id of its transaction, and a snapshot knows which transactions have ended. The rows of the
    transactions that have ended in a new snapshot, but had not in the one before, are a window. No row can be added to
    it later. No transaction keeps the rows of others back.

    A window is sent in the order of row numbers. If a transaction waited for another's lock, or has seen its changes,
    the other one had committed before. It is therefore in the same window or in an earlier one, and its row, if it was
    inserted under the lock, has the lower number. Transaction ids do not have that order: they are given out at the
    first write.

    After a crash, PostgreSQL gives ids out again that never reached its log on disk. A snapshot with such an id would
    hide the row of a later transaction, so the log is flushed up to a newer id before a snapshot is committed.
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS outbox (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
            topic text NOT NULL, key bytea, value bytea);
        CREATE INDEX IF NOT EXISTS outbox_by_transaction ON outbox (transaction_id, id)"""
    # xmin and xmax are for the index
    WINDOW = """
        SELECT id, topic, key, value FROM outbox
        WHERE transaction_id >= %(xmin)s::text::xid8 AND transaction_id < %(xmax)s::text::xid8
            AND pg_visible_in_snapshot(transaction_id, %(upper)s::text::pg_snapshot)
            AND NOT pg_visible_in_snapshot(transaction_id, %(sent)s::text::pg_snapshot)
            AND id > %(last)s
        ORDER BY id LIMIT %(limit)s"""
    # On a server with other transaction ids it deletes nothing; see _current.
    FORGET = """
        DELETE FROM outbox
        WHERE transaction_id < %(xmax)s::text::xid8
            AND pg_visible_in_snapshot(transaction_id, %(sent)s::text::pg_snapshot)
            AND pg_snapshot_xmax(pg_current_snapshot()) >= %(xmax)s::text::xid8"""
    # Writes to the log under a new transaction id, so that the commit flushes it.
    FLUSH = "SELECT pg_logical_emit_message(true, 'outbox', ''::text)"
    # Characters of a packed snapshot. Two of them fit into the 4,096 that Kafka stores with an offset
    # (offset.metadata.max.bytes). About 1,400 transactions may be running if their ids are less than 128 apart, and
    # about 700 if less than 16,384.
    LONGEST = 2000
    WARN_SECONDS = 10.0

    def __init__(self, conninfo: str) -> None:
        import psycopg

        # autocommit: each statement sees the newest state, and the relay keeps no old snapshot open itself
        self._connection = psycopg.connect(conninfo, autocommit=True)
        # CREATE INDEX IF NOT EXISTS waits for all writers, and new ones wait for it, even where the index exists
        found = self._connection.execute("SELECT to_regclass('outbox'), to_regclass('outbox_by_transaction')")
        if None in (found.fetchone() or (None,)):
            self._connection.execute(self.SCHEMA)
        # FLUSH has no effect otherwise
        self._connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        self._warned_at = -self.WARN_SECONDS

    @staticmethod
    def add(connection: Any, topic: str, *, key: bytes | None, value: bytes | None) -> None:
        """For the application, within its own transaction, behind the changes that the row reports."""
        connection.execute("INSERT INTO outbox (topic, key, value) VALUES (%s, %s, %s)", (topic, key, value))

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """See Outbox. Without rows the position stays as it is."""
        window = Window.at(position)
        current = self._current(window.upper or window.sent)
        upper = window.upper or current
        if len(upper.pack()) > self.LONGEST:
            self._warn_of_long_snapshot(upper)
            return [], position
        limits = {"xmin": str(window.sent.xmin), "xmax": str(upper.xmax), "upper": str(upper), "sent": str(window.sent)}
        # Prepared, it would parse the snapshots again for every row.
        found = self._connection.execute(
            self.WINDOW, {**limits, "last": window.last, "limit": limit + 1}, prepare=False
        ).fetchall()
        if not found:
            return [], position if window.upper is None else Window(upper).position()
        if window.upper is None:
            self._connection.execute(self.FLUSH)
        rows = [Row(*row[1:]) for row in found[:limit]]
        after = Window(upper) if len(found) <= limit else Window(window.sent, upper, found[limit - 1][0])
        return rows, after.position()

    def _current(self, known: Snapshot) -> Snapshot:
        """Return a new snapshot. Raise RuntimeError if the server has not even reached the one that is `known`."""
        row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        current = Snapshot.parse(row[0])
        if current.xmax < known.xmax:
            raise RuntimeError(
                f"the position of the relay contains transaction ids up to {known.xmax - 1}, but the next transaction "
                f"id of the PostgreSQL server is {current.xmax}: the database was restored into another server, or "
                "has lost transactions; run UPDATE outbox SET transaction_id = pg_current_xact_id(), and start the "
                "relay with a new name"
            )
        return current

    def _warn_of_long_snapshot(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._warned_at >= self.WARN_SECONDS:
            self._warned_at = time.monotonic()
            log.warning(
                "the relay sends no rows: %d transactions of the PostgreSQL server are in progress, and the position "
                "of the relay cannot contain all of their ids; the relay continues when fewer transactions are in "
                "progress: end those that do nothing, and limit the number of connections",
                len(snapshot.running),
            )

    def forget(self, position: OffsetAndMetadata) -> None:
        """See Outbox."""
        sent = Window.at(position).sent
        self._connection.execute(self.FORGET, {"xmax": str(sent.xmax), "sent": str(sent)}, prepare=False)

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
