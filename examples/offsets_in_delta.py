# SPDX-License-Identifier: Apache-2.0
"""From Kafka into a Delta table, each record exactly once: the position is in the commit that adds the rows.

    python examples/offsets_in_delta.py /data/payments -b localhost:9092 --name ledger --topic payments

Needs the packages deltalake and pyarrow. A commit of a Delta table can name applications and a version of each (the
action `txn` of Delta's protocol). Here an application is a partition of the topic with a certain id, and its version is
the position: the offset of the next record to read. Rows and positions are thus committed together or not at all.
docs/recipes.md.

- A program that is killed after it has written files and before the commit leaves files that no reader of the table
  sees (`DeltaTable.vacuum` deletes them later). The next start reads the same records again.
- An owner of a partition that was stopped for a while may go on after another one. Its commit is refused, as the
  position in the table is no longer the one that it read.
- A topic that is deleted and created again has another id, so its partitions are other applications. The next start
  reads the new topic from its first record.
- A program that catches an exception of `step` may call it again: it goes back to the positions in the table.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.client import Consumer

log = logging.getLogger("offsets_in_delta")

#: Columns of the table; Delta has no timestamps in milliseconds.
SCHEMA = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
    ]
)


class AnotherOwner(Exception):
    """Another program has moved a position since it was read: begin where the table says."""


class Writer:
    """Writes the records of topics into a Delta table.

    path:    of the table, which is created if it does not exist.
    name:    of this writer, all of its instances alike: the group, and a part of the positions' names.
    rows:    commit once this number of rows is collected; seconds: or after this time.
    options: of a Consumer, bootstrap_servers among them.

    If the log does not contain the position in the table, `step` raises OffsetOutOfRangeError: a writer that went on
    at the beginning would add rows twice, or skip records that were deleted.
    """

    def __init__(
        self, path: str, name: str, topics: Iterable[str], *, rows: int = 100_000, seconds: float = 10.0, **options: Any
    ) -> None:
        self.table = DeltaTable.create(path, schema=SCHEMA, mode="ignore")
        self.name, self.rows, self.seconds = name, rows, seconds
        self.held: dict[TopicPartition, int | None] = {}
        self.ids: dict[TopicPartition, UUID | None] = {}
        self.collected: dict[TopicPartition, list[pyarrow.Table]] = {}
        self.is_ended = True
        self.consumer = Consumer(group_id=name, enable_auto_commit=False, auto_offset_reset="none", **options)
        self.consumer.subscribe(topics, on_assigned=self.take_over, on_revoked=self.give_up)

    def application(self, partition: TopicPartition) -> str:
        return f"{self.name}/{partition.topic}/{partition.partition}/{self.ids[partition]}"

    def stored(self, partition: TopicPartition) -> int | None:
        """The position in the table, as it was last read; None: nothing was committed yet."""
        found: int | None = self.table.transaction_version(self.application(partition))
        return found

    def take_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where the table says; at the beginning where it says nothing."""
        self.table.update_incremental()
        self.consumer.seek_to_beginning(partitions)
        for partition, first in self.consumer.positions(partitions).items():
            self.collected[partition] = []
            self.ids[partition] = first.topic_id
            self.held[partition] = position = self.stored(partition)
            if position is not None:
                self.consumer.seek(partition, OffsetAndMetadata(position, topic_id=first.topic_id))

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """What is collected is not committed: the next owner reads it again."""
        for partition in partitions:
            self.held.pop(partition, None)
            self.ids.pop(partition, None)
            self.collected.pop(partition, None)

    def step(self) -> int:
        """Collect rows and commit them. Return their number; 0 if there are none, or another owner was quicker.

        After an exception, of which rows that were polled may not be collected, the next call goes back to the table.
        """
        if not self.is_ended:
            self.take_over(self.consumer.assignment())
        self.is_ended = False
        count = self.collect_and_commit()
        self.is_ended = True
        return count

    def collect_and_commit(self) -> int:
        until = time.monotonic() + self.seconds
        while (left := until - time.monotonic()) > 0 and self.count() < self.rows:
            table = pyarrow.table(self.consumer.poll_arrow(min(left, 1.0)))
            if table.num_rows:  # of one partition
                partition = TopicPartition(table["topic"][0].as_py(), table["partition"][0].as_py())
                self.collected[partition].append(table.select(SCHEMA.names).cast(SCHEMA))
        if not (count := self.count()):
            return 0
        rows = pyarrow.concat_tables([table for tables in self.collected.values() for table in tables])
        reached = {partition: self.consumer.position(partition) for partition in self.held}
        moved = {partition: after for partition, after in reached.items() if after != self.held[partition]}
        try:
            self.commit(rows, moved)
        except AnotherOwner as error:
            log.warning("not committed: %s", error)
            self.take_over(list(self.held))
            return 0
        self.held.update(moved)
        self.collected = {partition: [] for partition in self.held}
        return count

    def count(self) -> int:
        return sum(table.num_rows for tables in self.collected.values() for table in tables)

    def commit(self, rows: pyarrow.Table, moved: dict[TopicPartition, int]) -> None:
        """Add the rows and move the positions. Raise AnotherOwner if one is not where it was read."""
        self.check(moved)  # a commit of this program may have read newer positions of others
        positions = [Transaction(self.application(partition), after) for partition, after in moved.items()]
        try:
            write_deltalake(
                self.table, rows, mode="append", commit_properties=CommitProperties(app_transactions=positions)
            )
        except (DeltaError, OSError):
            self.table.update_incremental()
            if all(self.stored(partition) == after for partition, after in moved.items()):
                return  # these rows are committed: by this commit, or by another owner
            self.check(moved)
            raise

    def check(self, moved: dict[TopicPartition, int]) -> None:
        for partition in moved:
            if self.stored(partition) != self.held[partition]:
                raise AnotherOwner(f"{self.name}: the position in {partition} is not {self.held[partition]} any more")

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over():
            self.step()

    def close(self) -> None:
        self.consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="records of a topic into a Delta table, each once")
    parser.add_argument("table", help="path or URL of the table")
    parser.add_argument("-b", "--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--name", required=True, help="group of this writer")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a commit")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest time between commits")
    parser.add_argument("--options", default="{}", metavar="JSON", help="more options of the consumer")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    writer = Writer(
        given.table,
        given.name,
        [given.topic],
        rows=given.rows,
        seconds=given.seconds,
        **{"bootstrap_servers": given.bootstrap_server, **json.loads(given.options)},
    )
    try:
        writer.run()
    finally:
        writer.close()


if __name__ == "__main__":
    main()
