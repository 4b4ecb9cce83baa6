# SPDX-License-Identifier: Apache-2.0
"""Transactional outbox: send the rows of a database table to Kafka, each exactly once. See docs/outbox.md.

The application writes its change and a row of the outbox in one database transaction:

    with connection.transaction():
        connection.execute("UPDATE accounts ...")
        PostgresOutbox.add(connection, "payments", key=b"alice", value=b"-10")

A relay sends the rows. It stores its position as a record of a compacted topic, or as the committed offset of a
consumer group. It writes the position in the same Kafka transaction as the rows, so both are committed, or neither is:

    Relay(PostgresOutbox("dbname=shop"), "payments-relay", TopicProgress("relays"), bootstrap_servers=...).run()

    python examples/outbox.py --postgres "dbname=shop" -b localhost:9092 --name payments-relay --progress-topic relays

Consumers use isolation_level="read_committed". Run one relay for each name. If a second relay with the same name
starts, it continues, and the first one ends.
"""

from __future__ import annotations

import argparse
import base64
import inspect
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
# Errors that a retry cannot correct: another relay took over, a permission is missing ...
LASTING = (ProducerFencedError, AuthorizationError, AuthenticationError, FatalTransactionError)
# Interval at which an idle relay commits its position, because the broker deletes old offsets (GroupProgress).
KEEP_SECONDS = 24 * 3600.0
# Interval of the log messages while an open transaction of another relay hides the position (TopicProgress).
LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """A message in the outbox."""

    topic: str
    key: bytes | None
    value: bytes | None


def check_row(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Raise TypeError or ValueError if an argument is invalid. PostgreSQL would take a str as the text form of a bytea,
    in which a backslash has a meaning, and SQLite would store it as text, which the relay cannot send."""
    if not isinstance(topic, str):
        raise TypeError(f"topic: expected str, got {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    for name, given in (("key", key), ("value", value)):
        if given is not None and not isinstance(given, (bytes, bytearray, memoryview)):
            raise TypeError(f"{name}: expected bytes or None, got {type(given).__name__}; encode the {name} first")


def check_database(found: str, own: str) -> None:
    """Raise RuntimeError if a position belongs to another database. Its rows would be deleted, and not sent."""
    if found not in ("", own):  # "": a position of an earlier version of this program
        raise RuntimeError(
            f"the position of the relay belongs to the database {found}, and this is the database {own}: the database "
            "was created again, restored or upgraded, or a relay of another database has the same name; see 'What to "
            "know' in docs/outbox.md, and start the relay with a new name"
        )


NO_TRANSACTION = (
    "the connection commits each statement by itself, and no transaction is open: the row would not be committed "
    "together with the change; make both in one transaction"
)


class Outbox(Protocol):
    """A table of rows to be sent. The relay commits positions in it: an offset and a short text, which only the outbox
    interprets."""

    def claim(self, name: str) -> None:
        """Raise RuntimeError if a relay with another name sends the rows of this table. Each would send all rows."""

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """Return up to `limit` rows after a position, and the position after these rows. No row can be added before the
        returned position later."""

    def forget(self, position: OffsetAndMetadata) -> None:
        """Delete the rows before a committed position. They are never read again."""


# ------------------------------------------------------------------------------------------------------------- sqlite


class SqliteOutbox:
    """An outbox in SQLite.

    SQLite has one writer at a time, so rows become visible in the order of their ids. The rows after a position are
    therefore those with higher ids. Without AUTOINCREMENT, SQLite would use the id of a deleted last row again.

    The ids of another file are not comparable. The file therefore contains a random text, which is in each position.
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB)"""
    IDENTIFY = """
        INSERT INTO outbox_identity SELECT lower(hex(randomblob(8)))
        WHERE NOT EXISTS (SELECT * FROM outbox_identity)"""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(self.SCHEMA)
        self._connection.execute("CREATE TABLE IF NOT EXISTS outbox_identity (id TEXT NOT NULL)")
        find = "SELECT id FROM outbox_identity"
        if self._connection.execute(find).fetchone() is None:
            self._connection.execute(self.IDENTIFY)
        self._database: str = self._connection.execute(find).fetchone()[0]

    @staticmethod
    def add(connection: sqlite3.Connection, topic: str, *, key: bytes | None, value: bytes | None) -> None:
        """Insert a row. The application calls this within its own transaction."""
        check_row(topic, key, value)
        commits = connection.isolation_level is None or getattr(connection, "autocommit", False) is True
        if commits and not connection.in_transaction:
            raise RuntimeError(NO_TRANSACTION)
        connection.execute("INSERT INTO outbox (topic, key, value) VALUES (?, ?, ?)", (topic, key, value))

    def claim(self, name: str) -> None:
        """Do nothing: SQLite has no lock that other programs can see."""

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """See Outbox. The position is the lowest id of the rows that were not sent."""
        self._check(position)
        found = self._connection.execute(
            "SELECT id, topic, key, value FROM outbox WHERE id >= ? ORDER BY id LIMIT ?", (position.offset, limit)
        ).fetchall()
        after = OffsetAndMetadata(found[-1][0] + 1, self._database) if found else position
        return [Row(*row[1:]) for row in found], after

    def forget(self, position: OffsetAndMetadata) -> None:
        """See Outbox."""
        self._check(position)
        self._connection.execute("DELETE FROM outbox WHERE id < ?", (position.offset,))

    def _check(self, position: OffsetAndMetadata) -> None:
        """Raise RuntimeError if this database has not assigned the ids before the position."""
        check_database(position.metadata, self._database)
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'").fetchone()
        following = 1 if row is None else row[0] + 1
        if position.offset > following:
            raise RuntimeError(
                f"the position of the relay is the row with id {position.offset}, but the next row of the database "
                f"gets id {following}: the file was replaced by an older copy, or has lost transactions; see 'What to "
                "know' in docs/outbox.md, and start the relay with a new name"
            )

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
        """Return a short text. The running ids are stored as differences, with 7 bits in each byte, in Base64."""
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
    """A position in a PostgresOutbox. All rows whose transactions have ended in the snapshot `sent` were sent. If the
    next window, up to the snapshot `upper`, is sent in chunks, its rows up to the id `last` were sent, too. `database`
    names the database that has assigned these ids."""

    sent: Snapshot
    upper: Snapshot | None = None
    last: int = 0
    database: str = ""

    @classmethod
    def at(cls, position: OffsetAndMetadata) -> Window:
        """Parse a position. Earlier versions of this program stored transaction ids instead of snapshots: all
        transactions below the id had ended. The offset was that of `sent`. Within a window, the metadata was
        "upper:last"."""
        version, _, rest = position.metadata.partition(";")
        if version in ("d", "s"):  # "s": without the database
            database, sent, *chunk = rest.split(";") if version == "d" else ["", *rest.split(";")]
            if not chunk:
                return cls(Snapshot.unpack(sent), database=database)
            return cls(Snapshot.unpack(sent), Snapshot.unpack(chunk[0]), int(chunk[1]), database)
        if position.metadata:
            upper, _, last = position.metadata.partition(":")
            return cls(Snapshot.below(position.offset), Snapshot.below(int(upper)), int(last))
        return cls(Snapshot.below(position.offset))

    def position(self) -> OffsetAndMetadata:
        """Return the position to commit. Its metadata contains all of it. The offset is only for tools that show it."""
        metadata = f"d;{self.database};{self.sent.pack()}"
        if self.upper is not None:
            metadata += f";{self.upper.pack()};{self.last}"
        return OffsetAndMetadata(self.sent.xmin, metadata)


class PostgresOutbox:
    """An outbox in PostgreSQL 13 or newer.

    PostgreSQL assigns the id of a row before the commit, so the row with id 2 can become visible before the row with
    id 1. A relay that only read rows with higher ids than the last one would lose the row with id 1. The relay
    therefore reads rows by the transactions that wrote them.

    Each row contains the id of its transaction, and a snapshot shows which transactions have ended. A window consists
    of the rows of the transactions that have ended in a new snapshot, but had not ended in the previous one. No row can
    be added to a window later. A transaction that does not end keeps back only its own rows.

    The rows of a window are sent in the order of their ids. If a transaction has waited for a lock of another one, or
    has seen its changes, the other one committed first. The row of the other one is therefore in an earlier window, or
    in the same window. There it has the lower id, if the application inserts each row after the change. Transaction ids
    do not have this order, because they are assigned at the first write.

    After a crash, PostgreSQL assigns transaction ids again that are not in the write-ahead log on disk. A snapshot in
    which such an id has ended would hide the rows of a later transaction. The log is therefore flushed with a newer id
    before a snapshot is committed.

    Another database has other transactions with the same ids. Each position therefore contains the identifier of the
    server and of the database. After pg_restore, rows can contain transaction ids that the server has not assigned yet.
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS outbox (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
            topic text NOT NULL, key bytea, value bytea);
        CREATE INDEX IF NOT EXISTS outbox_by_transaction ON outbox (transaction_id, id)"""
    INSERT = "INSERT INTO outbox (topic, key, value) VALUES (%s, %s, %s)"
    IDENTITY = """
        SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
        FROM pg_control_system()"""
    # Rows of transactions that this server has not begun yet.
    FOREIGN = """
        SELECT EXISTS (SELECT FROM outbox WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot()))"""
    # Relays with the same name share a lock, because the later one fences the earlier one. It ends with the session.
    CLAIM = "SELECT pg_advisory_lock_shared('outbox'::regclass::oid::int, hashtext(%(name)s))"
    RELEASE = "SELECT pg_advisory_unlock_shared('outbox'::regclass::oid::int, hashtext(%(name)s))"
    OTHERS = """
        SELECT pid FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 2 AND classid = 'outbox'::regclass::oid
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND objid <> hashtext(%(name)s)::oid"""
    # The conditions with xmin and xmax are necessary only for the use of the index.
    WINDOW = """
        SELECT id, topic, key, value FROM outbox
        WHERE transaction_id >= %(xmin)s::text::xid8 AND transaction_id < %(xmax)s::text::xid8
            AND pg_visible_in_snapshot(transaction_id, %(upper)s::text::pg_snapshot)
            AND NOT pg_visible_in_snapshot(transaction_id, %(sent)s::text::pg_snapshot)
            AND id > %(last)s
        ORDER BY id LIMIT %(limit)s"""
    # The last condition prevents deletions on a server whose transaction ids are lower; see _current.
    FORGET = """
        DELETE FROM outbox
        WHERE transaction_id < %(xmax)s::text::xid8
            AND pg_visible_in_snapshot(transaction_id, %(sent)s::text::pg_snapshot)
            AND pg_snapshot_xmax(pg_current_snapshot()) >= %(xmax)s::text::xid8"""
    # Writes to the write-ahead log with a new transaction id. The commit then flushes the log.
    FLUSH = "SELECT pg_logical_emit_message(true, 'outbox', ''::text)"
    # Maximum number of characters of a packed snapshot. Two snapshots fit into the 4,096 characters that Kafka stores
    # with an offset (offset.metadata.max.bytes). About 1,400 transactions may be running if their ids differ by less
    # than 128, and about 700 if their ids differ by less than 16,384.
    LONGEST = 2000
    WARN_SECONDS = 10.0

    def __init__(self, conninfo: str) -> None:
        import psycopg

        # With autocommit, each statement sees the newest data, and the relay itself keeps no old snapshot open. Without
        # client_encoding, psycopg would return bytes in place of text if the encoding of the database is SQL_ASCII.
        self._connection = psycopg.connect(conninfo, autocommit=True, client_encoding="UTF8")
        # CREATE INDEX IF NOT EXISTS waits for all writers, and new writers wait for it, even if the index exists.
        found = self._connection.execute("SELECT to_regclass('outbox'), to_regclass('outbox_by_transaction')")
        if None in (found.fetchone() or (None,)):
            self._connection.execute(self.SCHEMA)
            created = self._one("SELECT current_database() || '.' || current_schema()")
            log.warning(
                "created the table outbox or its index in %s: if the service writes to another table, its rows are not "
                "sent; set search_path of both to the same schema",
                created,
            )
        # Otherwise, FLUSH would not wait until the log is on disk.
        self._connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        self._database: str = self._one(self.IDENTITY)
        if self._one(self.FOREIGN):
            raise RuntimeError(
                "the outbox contains transaction ids that the PostgreSQL server has not assigned yet: the rows come "
                "from another server; run UPDATE outbox SET transaction_id = pg_current_xact_id(), and start the relay "
                "with a new name"
            )
        self._warned_at = -self.WARN_SECONDS
        self._claimed_by: str | None = None

    def _one(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return row[0]

    @staticmethod
    def add(connection: Any, topic: str, *, key: bytes | None, value: bytes | None) -> None:
        """Insert a row. The application calls this within its own transaction, after the change to be reported.

        connection: Connection of psycopg. With another driver or asyncio, execute PostgresOutbox.INSERT in its place.
        """
        check_row(topic, key, value)
        if getattr(connection, "autocommit", False) and connection.info.transaction_status == 0:  # IDLE
            raise RuntimeError(NO_TRANSACTION)
        inserted = connection.execute(PostgresOutbox.INSERT, (topic, key, value))
        if inspect.iscoroutine(inserted):
            inserted.close()
            raise TypeError(
                "connection: expected psycopg.Connection, got an asynchronous connection; use "
                "await connection.execute(PostgresOutbox.INSERT, (topic, key, value))"
            )

    def claim(self, name: str) -> None:
        """See Outbox."""
        if self._claimed_by == name:
            return
        self._connection.execute(self.CLAIM, {"name": name})
        other = self._connection.execute(self.OTHERS, {"name": name}).fetchone()
        if other is not None:
            self._connection.execute(self.RELEASE, {"name": name})
            raise RuntimeError(
                f"a relay with another name than {name!r} sends the rows of this outbox, so Kafka would get each row "
                f"twice: end that relay, or use its name; pg_stat_activity shows its connection, pid {other[0]}"
            )
        self._claimed_by = name

    def rows_after(self, position: OffsetAndMetadata, limit: int) -> tuple[list[Row], OffsetAndMetadata]:
        """See Outbox. If there are no new rows, return the same position."""
        window = Window.at(position)
        check_database(window.database, self._database)
        current = self._current(window.upper or window.sent)
        upper = window.upper or current
        if len(upper.pack()) > self.LONGEST:
            self._warn_of_long_snapshot(upper)
            return [], position
        limits = {"xmin": str(window.sent.xmin), "xmax": str(upper.xmax), "upper": str(upper), "sent": str(window.sent)}
        # A prepared statement would parse the snapshots again for each row.
        found = self._connection.execute(
            self.WINDOW, {**limits, "last": window.last, "limit": limit + 1}, prepare=False
        ).fetchall()
        if not found:
            return [], position if window.upper is None else Window(upper, database=self._database).position()
        if window.upper is None:
            self._connection.execute(self.FLUSH)
        rows = [Row(*row[1:]) for row in found[:limit]]
        if len(found) <= limit:
            after = Window(upper, database=self._database)
        else:
            after = Window(window.sent, upper, found[limit - 1][0], self._database)
        return rows, after.position()

    def _current(self, known: Snapshot) -> Snapshot:
        """Return a new snapshot. Raise RuntimeError if its transaction ids are lower than those of `known`."""
        current = Snapshot.parse(self._one("SELECT pg_current_snapshot()::text"))
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
        window = Window.at(position)
        check_database(window.database, self._database)
        sent = window.sent
        self._connection.execute(self.FORGET, {"xmax": str(sent.xmax), "sent": str(sent)}, prepare=False)

    def close(self) -> None:
        self._connection.close()


# ----------------------------------------------------------------------------------------------------------- progress


class Progress(Protocol):
    """Stores the positions of relays by their names. `options` are the options of clients."""

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """Return the last committed position, or None. Call this after init_transactions, because an older relay could
        change the position until then."""

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """Write the position as a part of the transaction."""


class TopicProgress:
    """Stores positions as records in partition 0 of a compacted topic (cleanup.policy=compact). The key is the name of
    the relay. Positions do not expire, any program can read them, and several relays can use the same topic."""

    def __init__(self, topic: str) -> None:
        self.partition = TopicPartition(topic, 0)

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """See Progress. Read the topic from its beginning. Compaction keeps it short.

        Read up to the end of the log, and not only up to the last stable offset. If another relay has an open
        transaction, the last position of this relay may be after the last stable offset. The consumer, which uses
        read_committed, then waits until this transaction has ended, however long that takes: with an older position,
        rows would be sent twice.
        """
        with Admin(**options) as admin:
            end = admin.list_offsets({self.partition: "latest"})[self.partition].offset
        found = None
        logged_at = time.monotonic()
        with Consumer(**options) as consumer:
            consumer.assign([self.partition])
            consumer.seek_to_beginning(self.partition)
            while consumer.position(self.partition) < end:
                if time.monotonic() - logged_at >= LOG_SECONDS:
                    logged_at = time.monotonic()
                    log.warning(
                        "%s waits for its position in %s: the offset is %d, and the log ends at %d; if an open "
                        "transaction of another relay blocks it, kcodec txn list shows this transaction",
                        name,
                        self.partition,
                        consumer.position(self.partition),
                        end,
                    )
                for record in consumer.poll(1.0):
                    if record.key == name.encode() and record.value is not None:
                        found = OffsetAndMetadata(**json.loads(record.value))
        return found

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """See Progress."""
        value = json.dumps({"offset": position.offset, "metadata": position.metadata}).encode()
        transaction.send(self.partition.topic, value, key=name.encode(), partition=self.partition.partition)


class GroupProgress:
    """Stores the position as the committed offset of a group in a partition. Any partition can be used that exists and
    that the relay may read. No record is written to it.

    The broker deletes the offset of a group without members 7 days after the last commit (offsets.retention.minutes).
    A relay that was stopped for longer begins again at START.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    def read(self, name: str, options: dict[str, Any]) -> OffsetAndMetadata | None:
        """See Progress."""
        with Admin(**options) as admin:
            return admin.list_group_offsets(name, [self.partition], require_stable=True)[self.partition]

    def write(self, transaction: Transaction, name: str, position: OffsetAndMetadata) -> None:
        """See Progress. The group has no members, so only its id is sent. The transactional id fences older relays."""
        transaction.send_offsets({self.partition: position}, ConsumerGroupMetadata(name))


# -------------------------------------------------------------------------------------------------------------- relay


class Relay:
    """Sends the rows of an outbox. It begins at the last committed position of a relay with this name.

    name:    Transactional id, and name of the stored position. If two relays have the same name, the later one
             continues.
    limit:   Maximum number of rows in a transaction.
    producer_options: Options of the producer only, such as max_request_size.
    options: Options of all clients, such as bootstrap_servers.
    """

    def __init__(
        self,
        outbox: Outbox,
        name: str,
        progress: Progress,
        *,
        limit: int = 500,
        producer_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.outbox = outbox
        self.name = name
        self.progress = progress
        self.limit = limit
        self._options = options
        self._producer_options = {**options, **(producer_options or {})}
        self._producer: Producer | None = None
        self._position = START
        self._committed_at = 0.0

    def open(self) -> None:
        """Take over from an older relay. First, initialize the producer, which aborts the transaction that the older
        relay left open. Then read the position, which the older relay can no longer change. After an error, the relay
        is not open."""
        self.outbox.claim(self.name)
        producer = Producer(transactional_id=self.name, **self._producer_options)
        try:
            producer.init_transactions()
            committed = self.progress.read(self.name, self._options)
            self._position = START if committed is None else committed
            self.outbox.forget(self._position)
        except BaseException:
            producer.close(timeout=5)
            raise
        self._committed_at = time.monotonic()
        self._producer = producer
        log.info("%s continues at %s", self.name, self._position)

    def publish(self) -> int:
        """Send rows and the position after them in one transaction. Return the number of rows. After an error, the
        relay is closed, and the next call opens it again: the outcome of the transaction is known only then."""
        try:
            if self._producer is None:
                self.open()
            assert self._producer is not None
            return self._publish(self._producer)
        except BaseException:
            self.close()
            raise

    def _publish(self, producer: Producer) -> int:
        rows, after = self.outbox.rows_after(self._position, self.limit)
        if rows or time.monotonic() - self._committed_at > KEEP_SECONDS:
            with producer.transaction() as transaction:
                for row in rows:
                    transaction.send(row.topic, row.value, row.key)
                self.progress.write(transaction, self.name, after)
            self._committed_at = time.monotonic()
            self.outbox.forget(after)
        self._position = after
        return len(rows)

    def run(self, is_over: Callable[[], bool] = lambda: False, pause: float = 0.1) -> None:
        """Publish until `is_over` returns True. If there are no rows, wait `pause` seconds. After an error of a broker
        or of a connection to it, begin again at the committed position. Raise the errors in LASTING and all other
        errors, such as those of the database."""
        while not is_over():
            try:
                sent = self.publish()
            except LASTING:
                raise
            except (BrokerError, TransportError) as error:
                log.warning("%s begins again: %s", self.name, error)
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
    parser.add_argument("--options", default="{}", metavar="JSON", help="more options of all clients")
    parser.add_argument("--producer-options", default="{}", metavar="JSON", help="more options of the producer")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    outbox: Outbox = SqliteOutbox(given.sqlite) if given.sqlite else PostgresOutbox(given.postgres)
    options = {"bootstrap_servers": given.bootstrap_server, **json.loads(given.options)}
    progress: Progress
    if given.progress_topic:
        progress = TopicProgress(given.progress_topic)
    else:
        progress = GroupProgress(TopicPartition(given.progress, 0))
    producer_options = json.loads(given.producer_options)
    relay = Relay(outbox, given.name, progress, limit=given.limit, producer_options=producer_options, **options)
    try:
        relay.run()
    finally:
        relay.close()


if __name__ == "__main__":
    main()
