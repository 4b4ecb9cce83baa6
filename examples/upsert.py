# SPDX-License-Identifier: Apache-2.0
"""From Kafka into a database, at least once, where that is enough: a record that comes twice changes nothing.

    python examples/upsert.py bank.db localhost:9092 GROUP TOPIC

The database commits first, then the group's offset. Who dies in between gets the records again, and writes the same
rows again; `amount = amount + ...` would count them twice. A row keeps the partition and the offset of the record that
it came from, and an older record of this partition leaves it alone: an owner that was stopped and goes on late does no
harm either. A record of another partition replaces the row: if a topic gets more partitions, a key may move to one with
lower offsets. All records of the old partition must then be written before the first one of the new partition.
docs/recipes.md.
"""

import sqlite3
import sys

from kcodec.client import Consumer

SCHEMA = """
    CREATE TABLE IF NOT EXISTS price (
        item TEXT PRIMARY KEY, amount INTEGER, source_partition INTEGER, source_offset INTEGER)"""
UPSERT = """
    INSERT INTO price VALUES (?, ?, ?, ?)
    ON CONFLICT (item) DO UPDATE SET amount = excluded.amount, source_partition = excluded.source_partition,
        source_offset = excluded.source_offset
    WHERE excluded.source_partition <> price.source_partition OR excluded.source_offset > price.source_offset"""


class Writer:
    """Writes the prices of polled records into the database, and commits their offsets.

    statement: Writes item, amount, partition and offset of a record.
    """

    def __init__(self, consumer: Consumer, connection: sqlite3.Connection, statement: str = UPSERT) -> None:
        self.consumer, self.connection, self.statement = consumer, connection, statement
        self.is_complete = True  # whether the last step has ended without an exception

    def step(self) -> None:
        """Write the records of one poll. After an exception, the next call goes back to the committed offsets.
        Otherwise the next commit would include records that were polled but not written."""
        if not self.is_complete:
            self.go_back()
        self.is_complete = False
        rows = [
            (record.key.decode(), int(record.value), record.partition, record.offset)
            for record in self.consumer.poll(1.0)
            if record.key is not None and record.value is not None  # others have no price
        ]
        with self.connection:
            self.connection.executemany(self.statement, rows)
        self.consumer.commit()
        self.is_complete = True

    def go_back(self) -> None:
        for partition, committed in self.consumer.committed(self.consumer.assignment()).items():
            if committed is None:
                self.consumer.seek_to_beginning(partition)
            else:
                self.consumer.seek(partition, committed.offset)


def main(path: str, servers: str, group: str, topic: str) -> None:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute(SCHEMA)
    with Consumer(
        bootstrap_servers=servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        writer = Writer(consumer, connection)
        while True:
            writer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
