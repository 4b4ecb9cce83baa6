# SPDX-License-Identifier: Apache-2.0
"""The heart that `kcodec.client.Producer` and its asyncio twin share: accumulator, sender and identity, put together.

It knows no socket and no thread. A face gives a lock, ways to wake the loop and to hear of free memory, and carries the
flows; see `kcodec.client.producer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kcodec.errors import DeliveryTimeoutError, KcodecError, TransportError
from kcodec.protocol.flow import CancelledFlow, Clock, Flow, spawn, wait
from kcodec.txn.accumulator import Accumulator, NewDelivery
from kcodec.txn.batch import ProducerBatch
from kcodec.txn.cluster import Cluster
from kcodec.txn.delivery import TableDelivery
from kcodec.txn.producer_id import ProducerIdSource
from kcodec.txn.sender import Sender
from kcodec.txn.settings import ProducerSettings
from kcodec.txn.settlement import ProducerMetrics


class ProducerCore:
    """One producer. Methods run on the loop's thread, but for `append` and its kin under `lock`.

    source:   who it writes as; a transactional producer gives its transaction manager. Where it has them, `attach` is
              called with this core, `run` is the flow it needs beside, `close_flow(timeout)` what it does at the end.
    post:     wakes the loop's thread to call a function; from any thread.
    on_room:  called with the lock held when `append` may find room again.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        source: ProducerIdSource,
        *,
        clock: Clock,
        random: Callable[[], float],
        metrics: ProducerMetrics,
        lock: AbstractContextManager[Any],
        new_delivery: NewDelivery,
        post: Callable[[Callable[[], None]], None],
        on_room: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.source = source
        self.clock = clock
        self.lock = lock
        self.is_closed = False
        self._post = post
        self.accumulator = Accumulator(
            settings,
            clock=clock,
            random=random,
            lock=lock,
            new_delivery=new_delivery,
            wake=lambda: post(self.sender.wake),
            on_room=on_room,
        )
        self.sender = Sender(self.accumulator, cluster, source, clock=clock, random=random, metrics=metrics)
        self.append = self.accumulator.append
        self.append_batch = self.accumulator.append_batch
        if (attach := getattr(source, "attach", None)) is not None:
            attach(self)

    def run(self) -> Flow[None]:
        """The flow that sends, until `close`; the face spawns it once."""
        keeper = None
        if (run := getattr(self.source, "run", None)) is not None:
            keeper = yield from spawn(run(), "producer id")
        try:
            yield from self.sender.run()
        finally:
            if keeper is not None:
                keeper.cancel()

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is buffered or in flight."""
        return bool(self.accumulator.unfinished)

    def refuse_sends(self, error: BaseException | None) -> None:
        """Any thread: `append` raises `error` from now on; None: it takes records again."""
        if not self.is_closed:
            self.accumulator.refusal = error

    def known_partitions(self, topic: str) -> int:
        """Any thread: how many partitions a topic in use has; 0 if that takes `learn_topic`."""
        with self.lock:
            buffer = self.accumulator.topics.get(topic)
            return len(buffer.queues) if buffer is not None else 0

    def learn_topic(self, topic: str, timeout: float) -> Flow[int]:
        """Wait for a topic's metadata; the result is how many partitions it has. Raises as Cluster.ensure_topic."""
        yield from self.cluster.ensure_topic(topic, timeout)
        with self.lock:
            buffer = self.accumulator.want_topic(topic)
            buffer.is_asked_for = True
        self.sender.take_up_metadata()
        return len(buffer.queues)

    def flush(self, timeout: float | None = None) -> Flow[None]:
        """Send without lingering, and wait until all that was sent before has ended in a result or an error.

        It raises no error of a delivery. Raises DeliveryTimeoutError when `timeout` seconds are over.
        """
        deadline = None if timeout is None else self.clock() + timeout
        with self.lock:
            pending = list(reversed(self.accumulator.unfinished))
        self.sender.urgent += 1
        self.sender.wake()
        try:
            while not _all_ended(pending):
                left = None if deadline is None else deadline - self.clock()
                if left is not None and left <= 0:
                    unfinished = len(self.accumulator.unfinished)
                    raise DeliveryTimeoutError(f"flush: {unfinished} batches are unfinished after {timeout:g} s")
                yield from wait(self.sender.progress, left)
        finally:
            self.sender.urgent -= 1

    def abort_buffered(self, error: BaseException) -> None:
        """What is not in flight fails at once; what is ends by itself, and `flush` waits for it."""
        self.sender.fail_buffered(error)

    def close(self, timeout: float | None = None) -> Flow[None]:
        """Take no more records, send what there is; what is left after `timeout` seconds fails. Idempotent."""
        closed = TransportError("the producer is closed")
        with self.lock:
            self.accumulator.refusal, self.is_closed = closed, True
        deadline = None if timeout is None else self.clock() + timeout
        try:
            if (close_flow := getattr(self.source, "close_flow", None)) is not None:
                yield from close_flow(timeout)
            yield from self.flush(None if deadline is None else max(deadline - self.clock(), 0.0))
        except DeliveryTimeoutError:
            text = f"the producer was closed, and this was not acknowledged within its timeout of {timeout:g} s"
            self.sender.fail_all(DeliveryTimeoutError(text, possibly_sent=True))
        self.sender.stop()

    def fail_batch(
        self, topic: str, partition: int, records_count: int, table: TableDelivery, error: BaseException
    ) -> None:
        """Any thread, without the lock: a table's batch that found no room."""
        with self.lock:
            batch = self.accumulator.refuse_batch(topic, partition, records_count, table)
        self._post(lambda: self.sender.fail_one(batch, error))

    def forget(self, error: BaseException) -> None:
        """In a forked child, under the lock: everything here ends with `error`, and nobody is told."""
        self.accumulator.refusal, self.is_closed = error, True
        self.accumulator.finish([(batch, -1, -1, error) for batch in self.accumulator.unfinished])

    def crash(self, error: BaseException) -> None:
        """The loop cannot go on, or was ended: all that is unfinished fails, and nothing more is taken."""
        reason = error
        if not isinstance(error, KcodecError):
            ended = isinstance(error, CancelledFlow)
            reason = TransportError(
                "the producer was ended" if ended else f"the loop of this producer failed: {error!r}"
            )
            reason.__cause__ = error
        with self.lock:
            if not self.is_closed:
                self.accumulator.refusal, self.is_closed = reason, True
        self.sender.fail_all(reason)


def _all_ended(batches: list[ProducerBatch]) -> bool:
    """Whether all are done; those that are leave the list, a split one gives way to its pieces."""
    while batches:
        last = batches[-1]
        if not last.is_done and not last.pieces:
            return False
        batches.pop()
        batches.extend(piece for _, piece, _ in last.pieces)
    return True
