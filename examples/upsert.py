# SPDX-License-Identifier: Apache-2.0
"""From Kafka into a database, at least once, where that is enough: a record that comes twice changes nothing.

    python examples/upsert.py bank.db localhost:9092 GROUP TOPIC

The database commits first, then the group's offset. Who dies in between gets the records again, and writes the same
rows again; `amount = amount + ...` would count them twice. A row keeps the offset of the record that it came from, and
an older record leaves it alone: an owner that was stopped and goes on late does no harm either. docs/recipes.md.
"""

import sqlite3
import sys

from kcodec import Record, TopicPartition
from kcodec.client import Consumer

SCHEMA = "CREATE TABLE IF NOT EXISTS price (item TEXT PRIMARY KEY, amount INTEGER, source_offset INTEGER)"
UPSERT = """
    INSERT INTO price VALUES (?, ?, ?)
    ON CONFLICT (item) DO UPDATE SET amount = excluded.amount, source_offset = excluded.source_offset
    WHERE excluded.source_offset > price.source_offset"""  # a key is always in the same partition


def step(consumer: Consumer, connection: sqlite3.Connection, statement: str = UPSERT) -> None:
    records: list[Record] = []
    try:
        records = consumer.poll(1.0)
        rows = [
            (record.key.decode(), int(record.value), record.offset)
            for record in records
            if record.key is not None and record.value is not None  # others have no price
        ]
        with connection:
            connection.executemany(statement, rows)
        consumer.commit()
    except BaseException:
        # A caller that goes on gets the records again. Otherwise the next commit would include them.
        for record in reversed(records):
            assert record.topic is not None and record.partition is not None  # as of every polled record
            if (partition := TopicPartition(record.topic, record.partition)) in consumer.assignment():
                consumer.seek(partition, record.offset)
        raise


def main(path: str, servers: str, group: str, topic: str) -> None:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute(SCHEMA)
    with Consumer(
        bootstrap_servers=servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        while True:
            step(consumer, connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
