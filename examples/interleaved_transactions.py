# SPDX-License-Identifier: Apache-2.0
"""Committed, aborted and open transactions of four producers, interleaved in one partition, and a fenced zombie.

    python examples/interleaved_transactions.py                  # on an embedded broker: needs no Java
    python examples/interleaved_transactions.py -b HOST:PORT     # on your broker, in a new topic

`write()` writes them over TCP, and remembers each record with its offset and the outcome of its transaction. That is
what readers are compared with: `Written.visible()` is what a read_committed reader must get.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from kcodec import ProducerFencedError, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, NewTopic, Producer

START_MS = 1_750_000_000_000
TIMEOUT_MS = 600_000
Codec = Literal["none", "gzip", "lz4", "zstd"]
Headers = list[tuple[str, bytes | None]]
# offset, timestamp in ms, key, value, headers
Row = tuple[int, int, bytes | None, bytes | None, Headers]


@dataclass
class Written:
    """What was written to partition 0 of a topic: the rows with the outcome of their transactions.

    names:  Producer ids, and which producer has them.
    fenced: The error of the zombie.
    """

    topic: str
    rows: list[tuple[Row, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    fenced: str = ""
    closing: list[Callable[[], None]] = field(default_factory=list)

    def visible(self) -> list[Row]:
        """Return what a read_committed reader must get: nothing of aborted transactions, nothing after an open one."""
        limit = min(row[0] for row, outcome in self.rows if outcome == "open")
        return sorted(row for row, outcome in self.rows if outcome in ("committed", "plain") and row[0] < limit)

    def close(self) -> None:
        """Abort the open transaction and close the producers."""
        for close in self.closing:
            close()


class Shop:
    """A producer of orders, in transactions or without."""

    def __init__(
        self, servers: str, written: Written, name: str, codec: Codec, *, is_transactional: bool = True
    ) -> None:
        self._written = written
        self._name = name
        self._current: list[Row] = []
        self._is_transactional = is_transactional
        options: dict[str, Any] = {}
        if is_transactional:
            options = {"transactional_id": f"{written.topic}-{name}", "transaction_timeout_ms": TIMEOUT_MS}
        self.producer = Producer(bootstrap_servers=servers, client_id=name, compression_type=codec, **options)
        if is_transactional:
            self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, count: int) -> None:
        """Send records in one batch, and wait until they are in the log."""
        sent = []
        for number in range(len(self._written.rows), len(self._written.rows) + count):
            key, value, when = self._name.encode(), b'{"order": %d}' % number, START_MS + 1000 * number
            headers: Headers = [("shop", key)]
            delivery = self.producer.send(self._written.topic, value, key, headers, partition=0, timestamp=when)
            sent.append((delivery, when, key, value, headers))
        for delivery, when, key, value, headers in sent:
            self._current.append((delivery.result().offset, when, key, value, headers))
        if not self._is_transactional:
            self.ended("plain")

    def commit(self) -> None:
        self.producer.commit_transaction()
        self.ended("committed")

    def abort(self) -> None:
        self.producer.abort_transaction()
        self.ended("aborted")

    def ended(self, outcome: str) -> None:
        """Note the outcome of the records sent since the last one."""
        self._written.rows += [(row, outcome) for row in self._current]
        self._current.clear()


def write(servers: str) -> Written:
    """Write to a new topic. One transaction stays open until `Written.close`."""
    written = Written(f"orders-{uuid.uuid4().hex[:6]}")
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(written.topic, 1)])
        north, south = Shop(servers, written, "north", "zstd"), Shop(servers, written, "south", "lz4")
        zombie = Shop(servers, written, "web", "none")
        plain = Shop(servers, written, "import", "gzip", is_transactional=False)
        north.begin()
        north.send(4)
        south.begin()
        south.send(3)
        north.send(3)
        south.abort()
        plain.send(2)
        north.commit()
        # A second process starts with the same transactional id, while the first one is in a transaction.
        zombie.begin()
        zombie.send(5)
        south.begin()
        south.send(3)
        web = Shop(servers, written, "web", "none")
        zombie.ended("aborted")
        try:
            zombie.producer.commit_transaction()
        except ProducerFencedError as error:
            written.fenced = f"{type(error).__name__}: {error}"
        web.begin()
        web.send(4)
        south.send(4)
        web.commit()
        south.commit()
        # This transaction stays open. What comes after it is committed, but not visible yet.
        north.begin()
        north.send(4)
        web.begin()
        web.send(3)
        web.commit()
        plain.send(2)
        north.send(2)
        north.ended("open")
        ids = {f"{written.topic}-{name}": name for name in ("north", "south", "web")}
        for transactional_id, found in admin.describe_transactions(ids).items():
            written.names[found.producer_id] = ids[transactional_id]
    producers = [shop.producer for shop in (zombie, plain, south, web, north)]
    written.closing += [north.producer.abort_transaction, *(producer.close for producer in producers)]
    return written


def read(
    servers: str, topic: str, level: Literal["read_committed", "read_uncommitted"] = "read_committed"
) -> list[Row]:
    """Return what a consumer gets from partition 0: up to the last stable offset, or up to the end."""
    with Consumer(bootstrap_servers=servers, isolation_level=level, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        (end,) = consumer.end_offsets([partition]).values()
        rows: list[Row] = []
        while consumer.position(partition) < end:
            for each in consumer.poll(0.5):
                assert each.offset is not None
                assert each.timestamp is not None
                rows.append((each.offset, each.timestamp, each.key, each.value, list(each.headers)))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT")
    given = parser.parse_args()
    with ExitStack() as stack:
        servers = given.bootstrap_server or stack.enter_context(Broker()).bootstrap_servers
        written = write(servers)
        stack.callback(written.close)
        visible, everything = read(servers, written.topic), read(servers, written.topic, "read_uncommitted")
    print(f"the zombie: {written.fenced}")
    print(f"written: {len(written.rows)}, visible to read_committed: {len(visible)}, to others: {len(everything)}")
    if visible != written.visible() or len(everything) != len(written.rows):
        sys.exit("a reader got other records than it must")


if __name__ == "__main__":
    main()
