# SPDX-License-Identifier: Apache-2.0
"""From Kafka into a database, each record exactly once: the position is a row of the same database transaction.

    python examples/offsets_in_database.py --postgres "dbname=bank" -b localhost:9092 --name ledger --topic payments

No Kafka transaction is needed, and the group's committed offsets are not used: the group only assigns partitions, and
the member that gets one continues at the offset in the database. docs/recipes.md.

- What is stored is the consumer's *position*: it also moves past records that were aborted and past markers, which no
  "offset of the last record + 1" and no "offset + count" does.
- The id of the topic is stored with the position. If the topic is deleted and created again, the position belongs to a
  log that no longer exists, and `step` raises OffsetOutOfRangeError. Delete the row to read the new topic.
- The leader epoch of the record before the position is stored, too. If an unclean leader election has replaced records
  that were already read, `step` raises LogTruncationError, also if the log is longer than the position again.
- No generation of a group fences a database. An owner that was stopped for a while (a pause, a suspended machine) may
  go on with what it had polled, after another has done the same. So the row is changed only where it still holds the
  position that was read: of two owners one commits, and the other is rolled back and begins at what is stored.
"""

from __future__ import annotations

import argparse
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from uuid import UUID

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.client import Consumer

log = logging.getLogger("offsets_in_database")


class AnotherOwner(Exception):
    """Another process has moved a position since it was read: roll back, and begin where the database says."""


def transaction(connection: Any) -> AbstractContextManager[Any]:
    """Commits at the end of a block, rolls back where it is left by an exception."""
    return connection if isinstance(connection, sqlite3.Connection) else connection.transaction()


def check_mode(connection: Any) -> None:
    """Raise ValueError if `transaction` would not commit at the end of its block, or would not roll back.

    A connection of psycopg that opens transactions by itself makes the block a savepoint: nothing is ever committed.
    A connection of sqlite3 that commits each statement has committed the records before it writes the position.
    """
    if not isinstance(connection, sqlite3.Connection):
        if not connection.autocommit:
            raise ValueError("connection: psycopg must not open transactions by itself: set autocommit=True")
    elif connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
        raise ValueError(
            "connection: sqlite3 commits each statement by itself: call sqlite3.connect without isolation_level and "
            "autocommit"
        )


class Position(NamedTuple):
    """The next offset to read, the id of its topic ("" from brokers without topic ids), and the leader epoch of the
    record before it; -1 if none is known."""

    offset: int
    topic_id: str
    leader_epoch: int

    @classmethod
    def of(cls, found: OffsetAndMetadata) -> Position:
        """Return a position of a consumer."""
        return cls(found.offset, str(found.topic_id or ""), found.leader_epoch)

    @property
    def target(self) -> OffsetAndMetadata:
        """The position for `seek`, which compares the id of the topic and the leader epoch with those of the log."""
        topic_id = UUID(self.topic_id) if self.topic_id else None
        return OffsetAndMetadata(self.offset, leader_epoch=self.leader_epoch, topic_id=topic_id)


class Positions:
    """The positions of one reader, by topic and partition. All of it happens in transactions of the caller's.

    connection: of sqlite3 in its default mode, or of psycopg with autocommit=True; name: of the reader, all of its
    instances alike.
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS kafka_position (
            reader TEXT, topic TEXT, partition INTEGER, position BIGINT NOT NULL, topic_id TEXT NOT NULL,
            leader_epoch INTEGER NOT NULL, PRIMARY KEY (reader, topic, partition))"""
    READ = """
        SELECT position, topic_id, leader_epoch FROM kafka_position
        WHERE reader = ? AND topic = ? AND partition = ?"""
    BEGIN = "INSERT INTO kafka_position VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    MOVE = """
        UPDATE kafka_position SET position = ?, topic_id = ?, leader_epoch = ?
        WHERE reader = ? AND topic = ? AND partition = ? AND position = ? AND topic_id = ? AND leader_epoch = ?"""

    def __init__(self, connection: Any, name: str) -> None:
        check_mode(connection)
        self._connection = connection
        self._mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        self._name = name
        self._execute(self.SCHEMA)

    def _execute(self, statement: str, *values: object) -> Any:
        return self._connection.execute(statement.replace("?", self._mark), values)

    def read(self, partition: TopicPartition) -> Position | None:
        """Where to go on; None: nothing was committed yet."""
        found = self._execute(self.READ, self._name, *partition).fetchone()
        return None if found is None else Position(*found)

    def move(self, partition: TopicPartition, before: Position | None, after: Position) -> None:
        """From the position that was read to another one; AnotherOwner if it is not there any more."""
        if before is None:
            done = self._execute(self.BEGIN, self._name, *partition, *after)
        else:
            done = self._execute(self.MOVE, *after, self._name, *partition, *before)
        if done.rowcount != 1:
            raise AnotherOwner(f"{self._name}: the position in {partition} is not {before and before.offset} any more")


class Reader:
    """Carries records of topics into a database.

    apply:   (connection, record): what a record does there, and nothing else.
    options: of a Consumer, bootstrap_servers among them.

    If the log does not contain the position in the database, `step` raises OffsetOutOfRangeError: a reader that went on
    at the beginning would count records twice, or skip records that were deleted. The same applies if the topic was
    deleted and created again.
    """

    def __init__(
        self, connection: Any, name: str, topics: Iterable[str], apply: Callable[[Any, Any], None], **options: Any
    ) -> None:
        self.connection = connection
        self.apply = apply
        self.positions = Positions(connection, name)
        self.held: dict[TopicPartition, Position | None] = {}
        self.is_complete = True  # whether the last step has ended without an exception
        self.consumer = Consumer(group_id=name, enable_auto_commit=False, auto_offset_reset="none", **options)
        self.consumer.subscribe(topics, on_assigned=self.take_over, on_revoked=self.give_up)

    def take_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where the database says; at the beginning where it says nothing."""
        self.held.update({partition: self.positions.read(partition) for partition in partitions})
        self.seek_to_held(partitions)

    def seek_to_held(self, partitions: Iterable[TopicPartition]) -> None:
        """Poll again from the positions that were read or written last."""
        for partition in partitions:
            position = self.held[partition]
            if position is None:
                self.consumer.seek_to_beginning(partition)
            else:
                self.consumer.seek(partition, position.target)

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is left to be committed: each step has done so."""
        for partition in partitions:
            self.held.pop(partition, None)

    def step(self, timeout: float = 1.0) -> bool:
        """Poll once, and write the records in one transaction of the database. Return False if another owner has moved
        the position: nothing is then written.

        After an exception, the next call reads the same records again, as they may have been polled but not written.
        """
        if not self.is_complete:
            self.take_over(self.consumer.assignment())
        self.is_complete = False
        is_written = self.poll_and_write(timeout)
        self.is_complete = True
        return is_written

    def poll_and_write(self, timeout: float) -> bool:
        records = self.consumer.poll(timeout)
        reached = {one: Position.of(found) for one, found in self.consumer.positions(self.held).items()}
        moved = {partition: after for partition, after in reached.items() if after != self.held[partition]}
        try:
            with transaction(self.connection):
                for record in records:
                    self.apply(self.connection, record)
                for partition, after in moved.items():  # last: its lock is the one that others wait for
                    self.positions.move(partition, self.held[partition], after)
        except AnotherOwner as error:
            log.warning("rolled back: %s", error)
            self.take_over(list(self.held))
            return False
        self.held.update(moved)
        return True

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over():
            self.step()

    def close(self) -> None:
        self.consumer.close()


def add_to_balance(connection: Any, record: Any) -> None:
    """An effect that must not happen twice: key is the account, value the amount."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    statement = """INSERT INTO balance VALUES (?, ?) ON CONFLICT (account)
        DO UPDATE SET amount = balance.amount + excluded.amount"""
    connection.execute(statement.replace("?", mark), (record.key.decode(), int(record.value)))


def main() -> None:
    parser = argparse.ArgumentParser(description="records of a topic into a database, each once")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--sqlite", metavar="FILE")
    place.add_argument("--postgres", metavar="CONNINFO", help="as libpq takes it")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--name", required=True, help="group of this reader")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--options", default="{}", metavar="JSON", help="more options of the consumer")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    connection: Any
    if given.sqlite:
        connection = sqlite3.connect(given.sqlite, timeout=30)
    else:
        import psycopg

        # a process that is stopped inside a transaction must not keep its locks
        settings = "-c idle_in_transaction_session_timeout=10s"
        connection = psycopg.connect(given.postgres, autocommit=True, options=settings)
    connection.execute("CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)")
    options = {"bootstrap_servers": given.bootstrap_server, **json.loads(given.options)}
    reader = Reader(connection, given.name, [given.topic], add_to_balance, **options)
    try:
        reader.run()
    finally:
        reader.close()


if __name__ == "__main__":
    main()
