# SPDX-License-Identifier: Apache-2.0
"""The heart that `kcodec.client.Producer` and its asyncio twin share: accumulator, sender and identity, put together.

It knows no socket and no thread. A public class gives a lock, ways to wake the loop and to wait for free memory, and
runs the flows; see `kcodec.client.producer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.errors import (
    BufferFullError,
    DeliveryErrors,
    DeliveryTimeoutError,
    EncodeError,
    KcodecError,
    TransportError,
)
from kcodec.flow import CancelledFlow, Clock, Flow, spawn, wait
from kcodec.offsets import TopicPartition
from kcodec.producer.accumulator import Accumulator, NewDelivery
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.delivery import TableDelivery
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.options import ProducerSettings
from kcodec.producer.produce_responses import ProducerMetrics
from kcodec.producer.reports import waiting_text
from kcodec.producer.sender import Sender


class ProducerCore:
    """One producer. Methods run on the loop's thread, but for `append` and its kin under `lock`.

    source:   who it writes as; a transactional producer gives its transaction manager. Where it has them, `attach` is
              called with this core, `run` is the flow it needs beside, `close_flow(timeout)` what it does at the end.
    post:     wakes the loop's thread to call a function; from any thread.
    on_room:  called with the lock held when `append` may find room again.
    check_wait: raises RuntimeError where a caller must not wait for a record.
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
        check_wait: Callable[[], None] | None = None,
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
        self.accumulator.why_waiting = self.why_waiting
        if check_wait is not None:
            self.accumulator.check_wait = check_wait
        if source.transactional_id is not None:
            # The commit of a transaction raises the error of its records; an abort discards them.
            self.accumulator.failures = None
        self.sender = Sender(self.accumulator, cluster, source, clock=clock, random=random, metrics=metrics)
        self.append = self.accumulator.append
        self.append_batch = self.accumulator.append_batch
        if (attach := getattr(source, "attach", None)) is not None:
            attach(self)

    def run(self) -> Flow[None]:
        """The flow that sends, until `close`; the public class spawns it once."""
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

    # What is known of records that wait or failed

    def why_waiting(self, batch: ProducerBatch) -> str | None:
        """Any thread: why a batch is not acknowledged yet; None if no cause is known."""
        if batch.last_error is not None:
            attempts = f"the last of {batch.attempts} attempts: " if batch.attempts > 1 else ""
            return f"{attempts}{batch.last_error}"
        if self.cluster.partitions(batch.topic) is None or self.cluster.last_error is not None:
            return self.cluster.why_missing(batch.topic)
        if batch.attempts:
            return "the broker has not responded to the Produce request yet"
        if self.cluster.leader(batch.topic, batch.partition) is None:
            return f"{batch.topic}-{batch.partition} has no leader"
        if self.source.current is None:
            last: BaseException | None = getattr(self.source, "last_error", None)
            return "no producer id yet" + (f": {last}" if last is not None else "")
        return None

    def why_full(self) -> str | None:
        """Any thread, without the lock: why the buffer is not acknowledged; None if no cause is known."""
        with self.lock:
            oldest = next(iter(self.accumulator.unfinished), None)
        return None if oldest is None else self.why_waiting(oldest)

    def waiting_text(self) -> str | None:
        """Any thread, without the lock: the unfinished records, their topics and why; None if there are none."""
        with self.lock:
            text = waiting_text(self.accumulator.unfinished) if self.accumulator.unfinished else None
        if text is None:
            return None
        why = self.why_full()
        return f"{text} ({why})" if why else text

    def take_failures(self) -> DeliveryErrors | None:
        """Any thread, without the lock: the error for records that failed since the last call and whose errors nothing
        has retrieved; None if there are none."""
        if self.accumulator.failures is None:
            return None
        with self.lock:
            return self.accumulator.failures.take()

    def rejection(self, topic: str, partition: object, error: Exception) -> Callable[[], None] | None:
        """`send` raised this error: what is to be called on the I/O thread for it, if anything. In a transaction, such
        a record blocks the commit like one that a broker refused."""
        if self.source.transactional_id is None or error is self.accumulator.refusal:
            return None
        if isinstance(error, BufferFullError | DeliveryTimeoutError | EncodeError):
            error.remedy = "abort"
        begun = getattr(self.source, "open", None)
        number = partition if isinstance(partition, int) else -1

        def note() -> None:
            if getattr(self.source, "open", None) is begun:
                self.source.on_failure(TopicPartition(topic, number), error, possibly_written=False)

        return note

    # Flows

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
                    raise self._unfinished(timeout)
                yield from wait(self.sender.progress, left)
        finally:
            self.sender.urgent -= 1

    def _unfinished(self, timeout: float | None) -> DeliveryTimeoutError:
        count = len(self.accumulator.unfinished)
        why = self.why_full()
        return DeliveryTimeoutError(
            f"flush: {count} batches are unfinished after {timeout:g} s" + (f": {why}" if why else ""),
            remedy=None if self.source.transactional_id is None else "abort",
        )

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
            self.sender.fail_each(lambda batch: self._closed_early(batch, timeout))
        self.sender.stop()

    def _closed_early(self, batch: ProducerBatch, timeout: float | None) -> DeliveryTimeoutError:
        why = self.why_waiting(batch)
        return DeliveryTimeoutError(
            f"the producer was closed, and this was not acknowledged within its timeout of {timeout:g} s"
            + (f": {why}" if why else ""),
            possibly_sent=batch.attempts > 0,
        )

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
        self.accumulator.failures = None  # they are the parent's to report
        self.accumulator.finish([(batch, -1, -1, error) for batch in self.accumulator.unfinished])

    def crash(self, error: BaseException) -> None:
        """The loop cannot go on, or was ended: all that is unfinished fails, and nothing more is taken."""
        reason = error
        if isinstance(error, CancelledFlow):
            reason = TransportError("the producer was closed")
        elif not isinstance(error, KcodecError):
            reason = TransportError(f"the loop of this producer failed: {error!r}")
            reason.__cause__ = error
        with self.lock:
            if not self.is_closed:
                self.accumulator.refusal, self.is_closed = reason, True
        if isinstance(error, CancelledFlow):
            self.sender.fail_each(self._ended)
        else:
            self.sender.fail_all(reason)

    def _ended(self, batch: ProducerBatch) -> TransportError:
        why = self.why_waiting(batch)
        return TransportError(
            "the producer was closed before this was acknowledged" + (f": {why}" if why else ""),
            possibly_sent=batch.attempts > 0,
        )


def _all_ended(batches: list[ProducerBatch]) -> bool:
    """Whether all are done; those that are leave the list, a split one gives way to its pieces."""
    while batches:
        last = batches[-1]
        if not last.is_done and not last.pieces:
            return False
        batches.pop()
        batches.extend(piece for _, piece, _ in last.pieces)
    return True
