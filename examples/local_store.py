# SPDX-License-Identifier: Apache-2.0
"""A local store whose changes are part of the transaction: totals by key in SQLite, exactly once. docs/recipes.md.

    python examples/local_store.py -b localhost:9092 --group totals --id totals-0 --from payments --to totals \\
        --changelog totals-changelog --store /var/lib/totals-0.db

Each change of the store goes to a compacted topic, the changelog, in the transaction that commits the input's offsets
and the output; the store itself is committed after it. So the changelog is the truth and the store a copy that may be
behind, never ahead: what an aborted transaction did to it is rolled back, what it missed (killed in between, partitions
that were elsewhere for a while) is read from the changelog when partitions are assigned.

The changelog has as many partitions as the input: what is known of the keys of a partition moves with it. One store a
session, with a transactional id and a group_instance_id that stay the same.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from kcodec import TopicPartition
from kcodec.client import Admin, Consumer, Delivery, GroupTransactSession
from kcodec.errors import UnknownOutcomeError

# A compacted topic removes tombstones after delete.retention.ms (a day): a store that is older must start again.
TRUSTED_SECONDS = 12 * 3600.0
RESTORE_SECONDS = 300.0
SCHEMA = """
    CREATE TABLE IF NOT EXISTS state (partition INTEGER, key BLOB, value BLOB, PRIMARY KEY (partition, key));
    CREATE TABLE IF NOT EXISTS changelog (partition INTEGER PRIMARY KEY, position INTEGER, written REAL);"""
UPSERT = "INSERT INTO state VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
MOVE = """INSERT INTO changelog VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET position = excluded.position, written = excluded.written"""


class Store:
    """Values by partition and key, and how far in the changelog they are right. options: of every client."""

    def __init__(self, path: str, changelog: str, **options: Any) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.executescript(SCHEMA)
        self._changelog = changelog
        self._options = options
        self._sent: dict[int, Delivery] = {}

    def get(self, partition: int, key: bytes) -> bytes | None:
        """What there is, changes of the open transaction included."""
        rows = self._connection.execute("SELECT value FROM state WHERE partition = ? AND key = ?", (partition, key))
        found = rows.fetchone()
        return None if found is None else found[0]

    def put(self, transaction: Any, partition: int, key: bytes, value: bytes | None) -> None:
        """A change, for as long as the transaction is not aborted; None deletes."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        self._set(partition, key, value)
        self._sent[partition] = transaction.send(self._changelog, value, key=key, partition=partition)

    def _set(self, partition: int, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._connection.execute("DELETE FROM state WHERE partition = ? AND key = ?", (partition, key))
        else:
            self._connection.execute(UPSERT, (partition, key, value))

    def commit(self) -> None:
        """Keep the changes: their transaction is committed."""
        for partition, delivery in self._sent.items():
            self._move(partition, delivery.result().offset + 1)
        self._end("COMMIT")

    def rollback(self) -> None:
        """Forget the changes: their transaction is aborted."""
        self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        self._sent.clear()
        if self._connection.in_transaction:
            self._connection.execute(how)

    def _move(self, partition: int, position: int) -> None:
        self._connection.execute(MOVE, (partition, position, time.time()))

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Bring what belongs to these input partitions up to date. Nothing may be open.

        Up to the end of the log, and not of what can be read by now: an owner before us may have committed without
        its marker being there yet. Its records are there, so reading read_committed to the end waits for it.
        """
        wanted = [TopicPartition(self._changelog, one.partition) for one in sorted(partitions)]
        with Admin(**self._options) as admin:
            ends = {one: found.offset for one, found in admin.list_offsets(dict.fromkeys(wanted, "latest")).items()}
        deadline = time.monotonic() + RESTORE_SECONDS
        with Consumer(**self._options, auto_offset_reset="earliest") as consumer:
            consumer.assign(wanted)
            for one in wanted:
                consumer.seek(one, self._trusted_position(one.partition))
            while any(consumer.position(one) < end for one, end in ends.items()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"an open transaction holds {self._changelog} back: see kcodec txn list")
                records = consumer.poll(1.0)
                self._connection.execute("BEGIN IMMEDIATE")
                for record in records:
                    if record.partition is not None and record.key is not None:
                        self._set(record.partition, record.key, record.value)
                for one in wanted:
                    self._move(one.partition, consumer.position(one))
                self._connection.execute("COMMIT")

    def _trusted_position(self, partition: int) -> int:
        rows = self._connection.execute("SELECT position, written FROM changelog WHERE partition = ?", (partition,))
        found = rows.fetchone()
        if found is not None and time.time() - found[1] < TRUSTED_SECONDS:
            return int(found[0])
        self._connection.execute("DELETE FROM state WHERE partition = ?", (partition,))
        return 0

    def close(self) -> None:
        self._connection.close()


class Totals:
    """Sums values by key: reads `source`, writes each new total to `target`. options: of a session."""

    def __init__(self, store: Store, source: str, target: str, **options: Any) -> None:
        self.store = store
        self.target = target
        self.session = GroupTransactSession(topics=[source], on_assigned=self.restore, **options)
        self._not_restored: set[TopicPartition] = set()

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Restore what belongs to new partitions. The next step repeats it if it fails, as the session does not call it
        again."""
        self._not_restored.update(partitions)
        self.store.restore(self._not_restored)
        self._not_restored.clear()

    def step(self, timeout: float = 1.0) -> bool:
        """One transaction; whether it was committed. One poll each: `restore` must find nothing begun."""
        self._not_restored &= self.session.assignment()
        if self._not_restored:
            self.restore(())
        try:
            with self.session.transaction() as txn:
                for record in txn.poll(timeout):
                    if record.partition is None or record.key is None or record.value is None:
                        continue  # nothing to add
                    total = b"%d" % (int(self.store.get(record.partition, record.key) or 0) + int(record.value))
                    self.store.put(txn, record.partition, record.key, total)
                    txn.send(self.target, total, key=record.key)
        except UnknownOutcomeError:  # the changelog knows
            self.store.rollback()
            self.store.restore(self.session.assignment())
        except BaseException:  # Ctrl-C, too: the transaction was aborted, so its changes must not stay in the store
            self.store.rollback()
            raise
        if txn.committed:
            self.store.commit()
        else:
            self.store.rollback()
        return bool(txn.committed)

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over():
            self.step()

    def close(self) -> None:
        self.session.close()
        self.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="totals by key, kept in SQLite and in a changelog")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--group", required=True)
    parser.add_argument("--id", required=True, help="of this instance, the same after a restart")
    parser.add_argument("--from", required=True, dest="source", metavar="TOPIC")
    parser.add_argument("--to", required=True, dest="target", metavar="TOPIC")
    parser.add_argument("--changelog", required=True, metavar="TOPIC", help="compacted; partitions as --from has")
    parser.add_argument("--store", required=True, metavar="FILE")
    given = parser.parse_args()
    servers = {"bootstrap_servers": given.bootstrap_server}
    store = Store(given.store, given.changelog, **servers)
    names = {"group_id": given.group, "transactional_id": given.id, "group_instance_id": given.id}
    totals = Totals(store, given.source, given.target, transaction_timeout_ms=10_000, **names, **servers)
    try:
        totals.run()
    finally:
        totals.close()


if __name__ == "__main__":
    main()
