# SPDX-License-Identifier: Apache-2.0
"""The process of benchmarks/against.py that measures cells with the kcodec of one checkout.

It reads names of cells from standard input, one in each line, and writes processor seconds for a record or a call. It
uses only names that both checkouts have.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import shapes

#: Minimum processor seconds of a measurement that repeats a call.
SLICE_SECONDS = 0.15
SENT = 40_000
READ_TOPIC, SENT_TOPIC = "against-read", "against-sent"
SHAPES, CODECS = "abcd", ("none", "lz4", "zstd", "gzip", "snappy")

CELLS = (
    *(f"decode {shape} {codec}" for shape in SHAPES for codec in CODECS),
    *(f"records {shape} none" for shape in SHAPES),
    *(f"encode {shape} {codec}" for shape in SHAPES for codec in ("none", "lz4")),
    *(f"{api} {what}" for api in ("sync", "asyncio") for what in ("send 100", "send 1024", "poll", "iterate")),
    *("sync poll_arrow", "sync transactions", "sync client"),
)


def needs_broker(cell: str) -> bool:
    """Return whether a cell measures a client."""
    return cell.startswith(("sync", "asyncio"))


def fill(servers: str, records: int) -> None:
    """Create the topics, and write the one that the cells of consumers read."""
    from kcodec.client import Admin, NewTopic, Producer

    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(READ_TOPIC, 1), NewTopic(SENT_TOPIC, 1)])
    with Producer(bootstrap_servers=servers, batch_size=65_536) as producer:
        for number in range(records):
            producer.send(READ_TOPIC, b"v" * 100, b"k%08d" % number)


def timed(work: Callable[[], Any]) -> float:
    """Return processor seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def repeated(work: Callable[[], Any], records: int) -> float:
    """Return processor seconds for a record, over calls that take SLICE_SECONDS together."""
    work()
    calls, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < SLICE_SECONDS:
        work()
        calls += 1
    return spent / calls / records


class Cells:
    """The cells that can be measured. servers: addresses of the broker, for the cells of clients."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._made: dict[str, Any] = {}

    def measure(self, cell: str) -> float:
        """Return processor seconds for a record, or for a call of "transactions" and "client"."""
        what, *rest = cell.split()
        measured: float = getattr(self, f"_{what}")(*rest)
        return measured

    def _decode(self, shape: str, codec: str) -> float:
        import kcodec

        blob = shapes.blob(shape, codec)
        return repeated(lambda: kcodec.decode(blob.data), blob.records)

    def _records(self, shape: str, codec: str) -> float:
        import kcodec

        blob = shapes.blob(shape, codec)
        return repeated(lambda: [record.value for record in kcodec.decode(blob.data).records()], blob.records)

    def _encode(self, shape: str, codec: str) -> float:
        import pyarrow

        import kcodec

        if shape not in self._made:
            self._made[shape] = pyarrow.record_batch(kcodec.decode(shapes.blob(shape, "none").data))
        rows = self._made[shape]
        return repeated(lambda: kcodec.encode(rows, compression=codec), len(rows))

    def _sync(self, what: str, size: str = "") -> float:
        work: Callable[[], float] = {
            "send": lambda: self._send(int(size)),
            "poll": lambda: self._poll(False),
            "poll_arrow": self._poll_arrow,
            "iterate": lambda: self._poll(True),
            "transactions": self._transactions,
            "client": self._client,
        }[what]
        return work()

    def _send(self, size: int) -> float:
        from kcodec.client import Producer

        value = b"v" * size
        with Producer(bootstrap_servers=self._servers) as producer:
            producer.send(SENT_TOPIC, value).result(30)

            def work() -> None:
                for number in range(SENT):
                    producer.send(SENT_TOPIC, value, b"k%08d" % number)
                producer.flush()

            return timed(work) / SENT

    def _consumer(self) -> Any:
        from kcodec.client import Consumer

        consumer = Consumer(bootstrap_servers=self._servers)
        consumer.assign([(READ_TOPIC, 0)])
        consumer.seek_to_beginning()
        return consumer

    def _poll(self, is_iteration: bool) -> float:
        with self._consumer() as consumer:

            def work() -> None:
                left = SENT
                if is_iteration:
                    for record in consumer:
                        left -= len(record.value) > 0
                        if not left:
                            return
                while left > 0:
                    left -= len(consumer.poll(5.0))

            return timed(work) / SENT

    def _poll_arrow(self) -> float:
        with self._consumer() as consumer:

            def work() -> int:
                found = 0
                while found < SENT:
                    found += len(consumer.poll_arrow(5.0))
                return found

            begin = time.process_time()
            return work() and (time.process_time() - begin) / SENT

    def _transactions(self) -> float:
        from kcodec.client import Producer

        with Producer(bootstrap_servers=self._servers, transactional_id="against") as producer:
            producer.init_transactions()

            def work() -> None:
                for number in range(20):
                    with producer.transaction() as txn:
                        txn.send(SENT_TOPIC, b"%d" % number)

            return timed(work) / 20

    def _client(self) -> float:
        from kcodec.client import Producer

        def work() -> None:
            for _ in range(20):
                Producer(bootstrap_servers=self._servers).close()

        return timed(work) / 20

    def _asyncio(self, what: str, size: str = "") -> float:
        return asyncio.run(self._aio_send(int(size)) if what == "send" else self._aio_poll(what == "iterate"))

    async def _aio_send(self, size: int) -> float:
        from kcodec.client.aio import Producer

        value = b"v" * size
        async with Producer(bootstrap_servers=self._servers) as producer:
            await (await producer.send(SENT_TOPIC, value))
            begin = time.process_time()
            for number in range(SENT):
                await producer.send(SENT_TOPIC, value, b"k%08d" % number)
            await producer.flush()
            return (time.process_time() - begin) / SENT

    async def _aio_poll(self, is_iteration: bool) -> float:
        from kcodec.client.aio import Consumer

        async with Consumer(bootstrap_servers=self._servers) as consumer:
            await consumer.assign([(READ_TOPIC, 0)])
            await consumer.seek_to_beginning()
            begin, left = time.process_time(), SENT
            if is_iteration:
                async for record in consumer:
                    left -= len(record.value) > 0
                    if not left:
                        break
            while left > 0:
                left -= len(await consumer.poll(5.0))
            return (time.process_time() - begin) / SENT


def main(checkout: str, servers: str) -> None:
    """Measure until standard input ends."""
    import kcodec

    if not str(kcodec.__file__).startswith(checkout):
        raise SystemExit(f"kcodec is imported from {kcodec.__file__}, expected it below {checkout}")
    cells = Cells(servers)
    for line in sys.stdin:
        print(cells.measure(line.strip()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
