# SPDX-License-Identifier: Apache-2.0
"""The core of the sync and the async `Producer`: accumulator, sender and identity, put together.

It uses no socket and no thread. A public class supplies a lock, ways to wake the I/O thread and to wait for free
memory, and runs the flows; see `kcodec.client.producer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from kcodec.cluster.broker_report import reported
from kcodec.cluster.metadata import Cluster
from kcodec.end_limits import ABORT_AT_ONCE_SECONDS, ABORT_SECONDS
from kcodec.errors import (
    AbortableTransactionError,
    BufferFullError,
    DeliveryErrors,
    DeliveryTimeoutError,
    EncodeError,
    KcodecError,
    TransactionStateError,
    TransportError,
)
from kcodec.flow import OTHER_CLIENT, CancelledFlow, Clock, Flow, InterruptedFlow, Task, Wait, interrupted, spawn
from kcodec.network.metrics import Gauge, Metrics, report_gauges
from kcodec.offsets import TopicPartition
from kcodec.producer.accumulator import Accumulator
from kcodec.producer.batch import ANY_PARTITION, BatchOutcome, ProducerBatch
from kcodec.producer.delivery import Delivery, TableDelivery
from kcodec.producer.failures import Failures
from kcodec.producer.identity import ProducerIdManager
from kcodec.producer.linger import LONGEST_SECONDS, LingerTime
from kcodec.producer.options import DEFAULT_PARTITIONER, ProducerSettings
from kcodec.producer.partitioner_option import accumulator_of, partitions_of_keys
from kcodec.producer.produce_responses import ProduceResponses
from kcodec.producer.reports import CloseReport, waiting_text
from kcodec.producer.sender import Sender
from kcodec.protocol.error_codes import ErrorCode
from kcodec.quantities import count_text, seconds_text

if TYPE_CHECKING:
    from kcodec._fast import IoTurn

T = TypeVar("T")


class ProducerCore:
    """One producer. Methods run on the I/O thread, except `append` and `append_batch` under `lock`.

    id_manager: Provides the identity of the producer.
    post:       Calls a function on the I/O thread. It may be called from any thread.
    on_space:   Called, with the lock held, when `append` may find buffer space again.
    check_wait: Raises RuntimeError if a caller must not wait for a record.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        id_manager: ProducerIdManager,
        *,
        clock: Clock,
        random: Callable[[], float],
        metrics: Metrics,
        lock: AbstractContextManager[Any],
        new_delivery: type[Delivery],
        post: Callable[[Callable[[], None]], None],
        on_space: Callable[[], None],
        check_wait: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.id_manager = id_manager
        self.clock = clock
        self.lock = lock
        self.is_closed = False
        #: Whether a record that `send` refuses prevents the commit of its transaction, as in Java. It does not in
        #: librdkafka and aiokafka, where only the caller gets the error.
        self.refusal_prevents_commit = True
        self._metrics = metrics
        self._post = post
        #: Set where callers run in the thread of the flows: calls a function as `post` does, but at once if it can.
        self.act: Callable[[Callable[[], None]], None] | None = None
        self.accumulator: Accumulator = accumulator_of(settings)(
            settings,
            clock=clock,
            random=random,
            lock=lock,
            new_delivery=new_delivery,
            wake=self._wake,
            on_space=on_space,
            # The commit of a transaction raises the error of its records; an abort discards them.
            failures=Failures() if id_manager.transactional_id is None else None,
            check_wait=check_wait or (lambda: None),
            why_waiting=self.why_waiting,
        )
        responses = ProduceResponses(self.accumulator, cluster, id_manager, clock=clock, random=random, metrics=metrics)
        self.sender = Sender(self.accumulator, cluster, id_manager, responses, clock=clock)
        self.append = self.accumulator.append
        self.append_batch = self.accumulator.append_batch
        id_manager.attach(self)

    def watch_processor(self, work_clock: Callable[[], float], process_clock: Callable[[], float]) -> None:
        """Let records linger longer while the processor is the limit; see `kcodec.producer.linger` for the clocks."""
        linger, settings = self.settings.linger, self.settings
        if linger > 0:
            # As for linger_ms: a record that lingered has time left for one request.
            longest = min(LONGEST_SECONDS, settings.delivery_timeout - settings.request_timeout)
            self.sender.linger = LingerTime(linger, longest, self.clock, work_clock, process_clock)

    def take_turns(self, turn: IoTurn) -> None:
        """Let threads that send pause while the I/O thread has urgent work."""
        self.accumulator.turn = self.sender.turn = turn

    def run(self) -> Flow[None]:
        """Send until `close`; the public class spawns this flow once."""
        identity = yield from spawn(self.id_manager.run(), "producer id")
        identity.when_done(self._identity_ended)
        gauges = yield from spawn(report_gauges(self._metrics, self._report), "gauges")
        try:
            yield from self.sender.run()
        finally:
            identity.cancel()
            gauges.cancel()

    def _identity_ended(self, task: Task[None]) -> None:
        """If the flow of the identity failed, end the sender, too. Otherwise records would wait until their
        deadline."""
        if task.error is not None and not isinstance(task.error, CancelledFlow):
            self.sender.fail(task.error)

    def _wake(self) -> None:
        """Any thread, under the lock: let the sender run."""
        if self.act is not None and self.sender.has_single_record:
            self.act(self.sender.wake)
        else:
            self._post(self.sender.wake)

    def _report(self, gauge: Gauge) -> None:
        gauge("producer.buffered_bytes", self.settings.buffer_memory - self.accumulator.memory.free)
        gauge("producer.unfinished_batches", len(self.accumulator.unfinished))

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is buffered or in flight."""
        return bool(self.accumulator.unfinished)

    def refuse_sends(self, error: BaseException | None) -> None:
        """Any thread: make `append` raise `error` from now on. With None, it accepts records again."""
        if not self.is_closed:
            self.accumulator.refusal = error

    def known_partitions(self, topic: str) -> int:
        """Any thread: return the number of partitions of a topic; 0 if `learn_topic` must find it out first."""
        with self.lock:
            buffer = self.accumulator.topics.get(topic)
            return len(buffer.queues) if buffer is not None else 0

    def available_partitions(self, topic: str) -> list[int]:
        """Any thread: return the partitions of a topic that have a leader, or all of them if none has."""
        with self.lock:
            return self.accumulator.topics[topic].available

    def partitions_of_keys(self, topic: str, count: int) -> Callable[[Sequence[bytes | None]], list[int]] | None:
        """Any thread: return the function that chooses the partitions of the rows of a table; None if the compiled core
        chooses."""
        if self.settings.partitioner == DEFAULT_PARTITIONER:
            return None
        available = self.available_partitions(topic)
        return lambda keys: partitions_of_keys(self.settings, topic, keys, count, available, ANY_PARTITION)

    # What is known of records that wait or failed

    def why_waiting(self, batch: ProducerBatch) -> str | None:
        """Any thread: return why a batch is not acknowledged yet; None if no cause is known."""
        if batch.is_held:
            return "the commit of the transaction before has not ended"
        if batch.last_error is not None:
            attempts = f"the last of {batch.attempts} attempts: " if batch.attempts > 1 else ""
            return f"{attempts}{batch.last_error}"
        if self.cluster.partitions(batch.topic) is None or self.cluster.last_error is not None:
            return self.cluster.why_missing(batch.topic)
        if batch.attempts:
            return "the broker has not responded to the Produce request yet"
        if self.cluster.leader(batch.topic, batch.partition) is None:
            return f"{batch.topic}-{batch.partition} has no leader"
        if self.id_manager.current is None:
            return f"no producer id yet: {self.id_manager.last_error or 'no response to InitProducerId so far'}"
        return None

    def why_full(self) -> str | None:
        """Any thread, without the lock: return why the oldest batch is not acknowledged; None if no cause is known."""
        with self.lock:
            oldest = next(iter(self.accumulator.unfinished), None)
        return None if oldest is None else self.why_waiting(oldest)

    def waiting_text(self) -> str | None:
        """Any thread, without the lock: return a text with the unfinished records, topics and cause; None if there are
        none."""
        with self.lock:
            text = waiting_text(self.accumulator.unfinished) if self.accumulator.unfinished else None
        if text is None:
            return None
        why = self.why_full()
        return f"{text} ({why})" if why else text

    def report_of_close(self) -> Callable[[], str]:
        """Any thread, without the lock: return a function that returns the outcome of the records that are unfinished
        now."""
        report = CloseReport(self.accumulator)
        report.begin()
        return report.outcome

    def closing_seconds(self, timeout: float | None) -> float:
        """Any thread, without the lock: return the maximum number of seconds that a close with this timeout waits for
        records if it begins now."""
        with self.lock:
            newest = max((batch.created for batch in self.accumulator.unfinished), default=float("-inf"))
        left = max(newest + self.settings.delivery_timeout - self.clock(), 0.0)
        return left if timeout is None else min(left, timeout)

    def take_failures(self) -> DeliveryErrors | None:
        """Any thread, without the lock: return the error for records that have failed since the last call, and
        whose errors the program has not retrieved; None if there are none."""
        if self.accumulator.failures is None:
            return None
        with self.lock:
            return self.accumulator.failures.take()

    def rejection(
        self, topic: str, partition: object, error: Exception, transaction: object
    ) -> Callable[[], None] | None:
        """Return a function to call on the I/O thread after a `send` in this transaction raised this error, or None.

        In a transaction, a record that `send` refuses prevents the commit, as one that a broker rejects does, unless
        `refusal_prevents_commit` is False. If the topic does not have the partition, new metadata is requested, because
        the partition may have been added. A record that was refused because no transaction was open is part of no
        transaction, even if another thread has begun one.
        """
        is_missing = isinstance(error, EncodeError) and error.field == "partition"
        if self.id_manager.transactional_id is None:
            return self._request_partitions(topic) if is_missing else None
        if error is self.accumulator.refusal or isinstance(error, TransactionStateError):
            self.id_manager.on_refused(error)
            return None
        if not self.refusal_prevents_commit:
            return self._request_partitions(topic) if is_missing else None
        if isinstance(error, BufferFullError | DeliveryTimeoutError | EncodeError):
            error.remedy = "abort"
        number = partition if isinstance(partition, int) else -1

        def note() -> None:
            self.id_manager.on_rejected(transaction, TopicPartition(topic, number), error)
            if is_missing:
                self._request_partitions(topic)()

        return note

    def interruption(
        self, topic: str, error: BaseException, transaction: object, *, is_table: bool
    ) -> Callable[[], None] | None:
        """Return a function to call on the I/O thread after `error` ended `send`, or `send_arrow` (`is_table`), so that
        records of the transaction are missing. It prevents the commit. Return None without a transactional id."""
        if self.id_manager.transactional_id is None:
            return None
        missing = (
            f"send_arrow, and rows of a table for topic {topic!r} are missing; send the whole table again"
            if is_table
            else f"send, and a record for topic {topic!r} is missing; send the records again"
        )
        partial = AbortableTransactionError(
            f"the transaction of {self.id_manager.transactional_id!r} cannot be committed: {type(error).__name__} "
            f"interrupted {missing} in the next transaction",
            code=ErrorCode.TRANSACTION_ABORTABLE,
            name=ErrorCode.TRANSACTION_ABORTABLE.name,
            remedy="abort",
            resource=topic,
        )
        partial.__cause__ = error
        return lambda: self.id_manager.on_rejected(transaction, TopicPartition(topic, -1), partial)

    def _request_partitions(self, topic: str) -> Callable[[], None]:
        return lambda: self.cluster.request_update(f"topic {topic} lacks the partition of a record")

    # Flows

    def learn_topic(self, topic: str, timeout: float) -> Flow[int]:
        """Wait for a topic's metadata, and log a warning if no broker responds. Return the number of partitions. Raise
        the errors of `Cluster.ensure_topic`."""
        yield from self._reported(self.cluster.ensure_topic(topic, timeout), topic, timeout)
        return self.assign_waiting(topic)

    def assign_waiting(self, topic: str) -> int:
        """Assign the records that wait for the metadata of a topic to its partitions, whose number is returned."""
        with self.lock:
            buffer = self.accumulator.request_topic(topic)
            buffer.is_requested = True
        try:
            self.sender.take_up_metadata()
        except (KeyboardInterrupt, SystemExit) as interruption:  # in asyncio; a record may be in no queue
            self.sender.fail(interrupted("the assignment of waiting records to partitions", interruption))
            raise
        return len(buffer.queues)

    def relearn_topic(self, topic: str, timeout: float) -> Flow[int]:
        """Do the same as `learn_topic`, with metadata from a response that follows this call: another program may have
        added partitions, or deleted the topic and created it again."""
        deadline = self.clock() + timeout
        self.cluster.add_topics([topic])
        yield from self._reported(self.cluster.refresh(timeout), topic, timeout)
        return (yield from self.learn_topic(topic, max(deadline - self.clock(), 0.0)))

    def _reported(self, flow: Flow[T], topic: str, timeout: float) -> Flow[T]:
        return reported(flow, self.cluster, f"metadata of topic {topic!r}", timeout, "kcodec.producer")

    def flush(self, timeout: float | None = None, *, without_held: bool = False) -> Flow[None]:
        """Send without lingering, and wait until all records sent before have a result or an error.

        without_held: Do not wait for records that are held back.

        Raise DeliveryTimeoutError after `timeout` seconds. The errors of deliveries are not raised.
        """
        deadline = None if timeout is None else self.clock() + timeout
        with self.lock:
            pending = [batch for batch in reversed(self.accumulator.unfinished) if not (without_held and batch.is_held)]
        self.sender.urgent += 1
        try:
            self.sender.wake()
            while not _all_ended(pending):
                left = None if deadline is None else deadline - self.clock()
                if left is not None and left <= 0:
                    raise self._unfinished(timeout)
                yield Wait(self.sender.progress, left, is_vague=True)
        finally:
            self.sender.urgent -= 1

    def _unfinished(self, timeout: float | None) -> DeliveryTimeoutError:
        count = len(self.accumulator.unfinished)
        why = self.why_full()
        return DeliveryTimeoutError(
            f"flush: {count_text(count, 'batch', 'batches')} not acknowledged within {seconds_text(timeout or 0.0)}"
            + (f": {why}" if why else ""),
            remedy=None if self.id_manager.transactional_id is None else "abort",
        )

    def abort_buffered(self, error: BaseException) -> None:
        """Fail all records that are not in flight. Batches in flight end by themselves, and `flush` waits for them."""
        self.sender.fail_buffered(lambda _: error)

    def hold_back(self, until: float) -> None:
        """Hold the records back that are sent from now on; see `Accumulator.hold_back`."""
        with self.lock:
            self.accumulator.hold_back(until)

    def release_held(self) -> None:
        """Send the records that were held back, as soon as the manager permits it."""
        with self.lock:
            self.accumulator.release_held()
        self.sender.wake()

    def close(self, timeout: float | None = None) -> Flow[None]:
        """Accept no more records, and send those in the buffer. Fail the remaining records after `timeout` seconds.
        Further calls do nothing."""
        closed = TransportError("the producer is closed")
        with self.lock:
            self.accumulator.refusal, self.is_closed = closed, True
        deadline = None if timeout is None else self.clock() + timeout
        try:
            yield from self.id_manager.close_flow(timeout)
            yield from self.flush(None if deadline is None else max(deadline - self.clock(), 0.0))
        except DeliveryTimeoutError:
            text = f"the producer was closed: the record was not acknowledged within {seconds_text(timeout or 0.0)}"
            self.sender.fail_all(lambda batch: self._closed_early(DeliveryTimeoutError, text, batch))
        self.sender.stop()

    def last_flow(self, name: str, seconds: float) -> Flow[None] | None:
        """Return the flow for a producer that the program does not close: it sends the buffered records, or aborts the
        open transaction. Return None if there is nothing to do.

        name:    The producer in log lines.
        seconds: Maximum time for a commit in progress.
        """
        if self.id_manager.transactional_id is None:
            return self.close() if self.has_unfinished else None
        flow = self.id_manager.last_flow(name, seconds, ABORT_SECONDS)
        if flow is not None:
            with self.lock:
                self.accumulator.refusal, self.is_closed = TransportError("the producer is closed"), True
        return flow

    def last_text(self) -> str | None:
        """Return a text that describes what the flow of `last_flow` waits for."""
        if self.id_manager.transactional_id is None:
            return self.waiting_text()
        return f"the end of the transaction of {self.id_manager.transactional_id!r}"

    def abort_at_once(self) -> Flow[None]:
        """After an interruption of `close`: abort an open transaction. Wait for the response only for
        ABORT_AT_ONCE_SECONDS."""
        return self.id_manager.abort_at_once(ABORT_AT_ONCE_SECONDS)

    def _closed_early(self, kind: type[TransportError], text: str, batch: ProducerBatch) -> TransportError:
        why = self.why_waiting(batch)
        return kind(text + (f": {why}" if why else ""), possibly_sent=batch.attempts > 0)

    def fail_batch(
        self, topic: str, partition: int, records_count: int, table: TableDelivery, error: BaseException
    ) -> None:
        """Any thread, without the lock: fail a table's batch for which there was no buffer space."""
        with self.lock:
            batch = self.accumulator.refuse_batch(topic, partition, records_count, table)
        self._post(lambda: self.sender.responses.fail(None, batch, error))

    def forget(self, error: BaseException) -> None:
        """In a forked child: end everything with `error`, without calling callbacks. May be called again after an
        interruption. The lock is not needed, as the child has no other thread."""
        self.accumulator.refusal, self.is_closed = error, True
        self.accumulator.memory.waiters, self.accumulator.memory.must_queue = 0, False  # threads of the parent
        self.accumulator.failures = None  # they are the parent's to report
        self.accumulator.finish([(batch, BatchOutcome(error=error)) for batch in self.accumulator.unfinished], [])
        self.id_manager.forget(error)

    def crash(self, error: BaseException) -> None:
        """Fail all unfinished records and accept no more, because the I/O loop failed or was ended."""
        reason = error
        if isinstance(error, CancelledFlow):
            reason = TransportError("the producer was closed")
        elif isinstance(error, InterruptedFlow) or not isinstance(error, KcodecError):
            reason = _loop_failed(error, possibly_sent=False)
        with self.lock:
            if not self.is_closed:
                self.accumulator.refusal, self.is_closed = reason, True
        if isinstance(error, CancelledFlow):
            text = "the producer was closed before the record was acknowledged"
            self.sender.fail_all(lambda batch: self._closed_early(TransportError, text, batch))
        else:
            # A batch that was sent may be stored. The error does not show this, because it belongs to another request.
            sent = _loop_failed(error, possibly_sent=True)
            self.sender.fail_all(lambda batch: sent if batch.attempts else reason)


def _loop_failed(error: BaseException, *, possibly_sent: bool) -> TransportError:
    why = error if isinstance(error, KcodecError) else repr(error)
    text = f"the I/O loop of this producer failed: {why}; create another producer"
    if isinstance(error, InterruptedFlow):
        interruption = str(error).removesuffix(OTHER_CLIENT)
        text = f"{interruption}; create another producer"
    failure = TransportError(text, possibly_sent=possibly_sent)
    failure.__cause__ = error
    return failure


def _all_ended(batches: list[ProducerBatch]) -> bool:
    """Return whether all batches have ended. Remove ended batches, and replace a split batch by its pieces."""
    while batches:
        last = batches[-1]
        if not last.is_done and not last.pieces:
            return False
        batches.pop()
        batches.extend(piece for _, piece, _ in last.pieces)
    return True
