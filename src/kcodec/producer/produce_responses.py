# SPDX-License-Identifier: Apache-2.0
"""What becomes of batches that were sent: the request, its answer, and for each batch success, repetition or failure.

Rules: Kafka's Sender.completeBatch and TransactionManager.handleFailedBatch, KIP-360 (epoch bump), KIP-467 (which
records were refused), KIP-951 (the new leader in the answer), and what a real broker answers:

- 0 and 46 are success: a repeated batch is answered with the offset it has.
- 45 to a batch that may be written is looked into before it is believed: `kcodec.producer.sequence_probe`.
- 45 (sequence), 47, 48, 49, 53, 59, 90, 120 are about the producer: its `ProducerIdSource` judges, but only for the
  earliest unsettled batch of the partition; what follows a gap is just sent again, with the bytes it had.
- 10 and 18 split a batch of several records, which may keep its sequence numbers as it is certainly not written.
- What Kafka calls retriable is sent again after a pause, until `retries` or `delivery_timeout` end it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kcodec.cluster.metadata import Cluster
from kcodec.errors import AuthenticationError, DeliveryTimeoutError, TransportError, UnsupportedError
from kcodec.flow import Flow, call
from kcodec.offsets import TopicPartition
from kcodec.producer.accumulator import Accumulator, Outcome
from kcodec.producer.batch import LAST_SEQUENCE, ProducerBatch
from kcodec.producer.delivery import call_all
from kcodec.producer.identity import ProducerIdSource, Verdict
from kcodec.producer.produce_requests import LAST_VERSION_WITH_NAMES, produce_request, record_errors
from kcodec.producer.queues import PartitionQueue
from kcodec.producer.sequence_probe import begin_probe, lower_probe
from kcodec.protocol.error_codes import broker_error, error_code

if TYPE_CHECKING:
    from kcodec.flow import Clock, Reply

log = logging.getLogger("kcodec.producer")

#: A broker remembers the last five batches of a producer in a partition: a repeat of one of them is recognised.
IN_FLIGHT_WINDOW = 5
NO_ERROR, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, OUT_OF_ORDER, DUPLICATE = 0, 10, 18, 45, 46
#: Errors about the producer: see the module.
IDENTITY_CODES = frozenset({OUT_OF_ORDER, 47, 48, 49, 53, 59, 90, 120})
#: Answers that a broker gives before it appends: the batch is certainly not written. All others may come after the
#: append: time-out, too few replicas, and what a broker says that lost the partition, or its disk, while the written
#: batch waited for replicas (3, 6, 7, 20, 56: DelayedProduce).
CERTAIN_CODES = frozenset({2, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 76, 87, 89, 100}) | IDENTITY_CODES
#: Retriable errors that say that our metadata is out of date.
STALE_METADATA_CODES = frozenset({3, 5, 6, 9, 56, 72, 74, 75, 100, 103})

Sent = Sequence[tuple[PartitionQueue, ProducerBatch]]


class ProducerMetrics(Protocol):
    """The part of `kcodec.network.metrics.Metrics` that is used here."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Something happened, `value` times."""

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Something took so long."""


class Settlement:
    """See the module. flying: the partitions with something in flight. ended: called when batches ended."""

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        source: ProducerIdSource,
        *,
        clock: Clock,
        random: Callable[[], float],
        metrics: ProducerMetrics,
        ended: Callable[[], None],
    ) -> None:
        self.settings = accumulator.settings
        self.accumulator = accumulator
        self.cluster = cluster
        self.source = source
        self.clock = clock
        self.random = random
        self.metrics = metrics
        self.ended = ended
        self.flying: dict[PartitionQueue, None] = {}

    # The request

    def produce(self, node: int, sent: Sent) -> Flow[None]:
        """One request with these batches, and what becomes of each."""
        settings = self.settings
        request, lowest, highest = produce_request(sent, settings, self.source.transactional_id)
        try:
            reply = yield from call(
                node,
                request,
                timeout=settings.request_timeout,
                lowest=lowest,
                highest=min(highest, self.source.produce_highest_version()),
                expects_reply=settings.acks != 0,
            )
        except (TransportError, UnsupportedError) as error:
            self._unanswered(sent, error)
        else:
            self._answered(node, sent, reply)

    def _unanswered(self, sent: Sent, error: BaseException) -> None:
        """No answer: whether a batch was written is open if the request may have left."""
        possibly_sent = isinstance(error, TransportError) and error.possibly_sent
        if possibly_sent:
            self.source.on_unanswered("Produce")
        for queue, batch in sent:
            self._land(queue, batch)
            queue.is_proved = False
            batch.uncertain = batch.uncertain or possibly_sent
            if not possibly_sent:
                batch.attempts -= 1
            if batch.is_done:
                self._lose_probe(queue, batch)
                continue
            if isinstance(error, AuthenticationError | UnsupportedError):
                self.fail(queue, batch, error)
            else:
                self._retry(queue, batch, error)
        self.cluster.request_update(f"a Produce request got no answer: {error}")

    def _answered(self, node: int, sent: Sent, reply: Reply | None) -> None:
        outcomes: list[Outcome] = []
        answers: dict[tuple[Any, int], Any] = {}
        by_id = reply is not None and reply.version > LAST_VERSION_WITH_NAMES
        if reply is not None:
            if reply.version >= 10:
                self.cluster.learn_brokers(reply.message.node_endpoints)
            for topic in reply.message.responses:
                for answer in topic.partition_responses:
                    answers[topic.topic_id if by_id else topic.name, answer.index] = answer
        for queue, batch in sent:
            self._land(queue, batch)
            if reply is None:
                outcomes.append((batch, -1, -1, None))
                continue
            answer = answers.get((queue.topic_id if by_id else batch.topic, batch.partition))
            if answer is None:
                error = TransportError(f"broker {node} answered Produce without {queue.partition}", possibly_sent=True)
                self._unanswered_one(queue, batch, error)
            elif answer.error_code in (NO_ERROR, DUPLICATE):
                outcomes += self._proved(queue, batch)
                self._succeeded(queue, batch)
                outcomes.append((batch, answer.base_offset, answer.log_append_time_ms, None))
            else:
                self._refused(queue, batch, answer, node)
        self.finish(outcomes)

    def _unanswered_one(self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException) -> None:
        queue.is_proved, batch.uncertain = False, True
        if batch.is_done:
            self._lose_probe(queue, batch)
        else:
            self._retry(queue, batch, error)

    def _land(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Its request is over."""
        queue.in_flight.remove(batch)
        if not queue.in_flight:
            self.flying.pop(queue, None)

    # One batch

    def _succeeded(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.is_proved = True
        if batch.is_numbered and _is_before(queue.rollback_sequence, batch.base_sequence):
            queue.rollback_sequence = -1  # taken in spite of the gap: the broker had forgotten what was before
        if not batch.is_done:
            last = (batch.base_sequence + batch.records_count - 1) & LAST_SEQUENCE if batch.is_numbered else -1
            self.source.on_success(queue.partition, batch.records_count, last)

    def _proved(self, queue: PartitionQueue, batch: ProducerBatch) -> list[Outcome]:
        """The batch is written, and with it what stands before it; at which offset nobody tells."""
        queue.forget_probe()
        if not batch.is_numbered or not queue.batches or queue.batches[0].order > batch.order:
            return []
        with self.accumulator.lock:
            proved = self.accumulator.take_proved(queue, batch)
        for written in proved:
            self._succeeded(queue, written)
        return [(written, -1, -1, None) for written in proved]

    def _lose_probe(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The batch will not tell any more whether those before it are written."""
        if queue.probe is batch:
            for other in (*queue.refused, *queue.batches):
                other.is_fixed = other.is_fixed or other.uncertain
            queue.forget_probe()

    def _refused(self, queue: PartitionQueue, batch: ProducerBatch, answer: Any, node: int) -> None:
        """An error code: retry, split, renumber or fail."""
        code = answer.error_code
        queue.is_proved = False
        batch.uncertain = batch.uncertain or code not in CERTAIN_CODES
        if code in STALE_METADATA_CODES:
            self._learn_leader(queue, answer)
        if batch.is_done:  # it was past its deadline while the request was under way
            if code != OUT_OF_ORDER or queue.probe is not batch or not lower_probe(queue):
                self._lose_probe(queue, batch)
            return
        # Permissions are given on a topic, and on a transactional id.
        resource: object = {29: queue.partition.topic, 53: self.source.transactional_id}.get(code, queue.partition)
        doing = f"Produce of {queue.partition} to broker {node}" if code in (29, 53) else f"Produce to broker {node}"
        error = broker_error(code, doing, resource=resource, message=record_errors(answer))
        if code in IDENTITY_CODES and batch.is_numbered:
            self._judge(queue, batch, code, error)
        elif code in (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE) and batch.records_count > 1:
            self._split(queue, batch)
        elif error_code(code).retriable:
            self._retry(queue, batch, error)
        else:
            self.fail(queue, batch, error)

    def _learn_leader(self, queue: PartitionQueue, answer: Any) -> None:
        leader = answer.current_leader
        if leader.leader_id >= 0:
            self.cluster.learn_leader(*queue.partition, leader.leader_id, leader.leader_epoch)
        self.cluster.request_update(f"{queue.partition}: {error_code(answer.error_code).name}")

    def _look_into_gap(self, queue: PartitionQueue, batch: ProducerBatch) -> ProducerBatch | None:
        """45: the batch that has to be judged for it; None: it is expected, or looked into first."""
        unsettled = (*queue.in_flight, *list(queue.batches)[:1])
        is_earliest = not any(other.order < batch.order for other in unsettled)
        if queue.probe is batch:
            self._put_back(queue, batch)
            queue.refused.append(batch)
            if lower_probe(queue):
                return None
            with self.accumulator.lock:  # nothing of all that was written: that goes for the first
                return self.accumulator.take(queue, queue.batches[0])
        is_expected = queue.must_renumber or not is_earliest
        if is_expected or (batch.uncertain and not queue.in_flight and begin_probe(queue, batch)):
            self._put_back(queue, batch)
            return None
        return batch

    def _judge(self, queue: PartitionQueue, batch: ProducerBatch, code: int, error: BaseException) -> None:
        """An error about the producer."""
        if code == OUT_OF_ORDER:
            found = self._look_into_gap(queue, batch)
            if found is None:
                return
            batch = found
            if batch.is_fixed:
                self.fail(queue, batch, error)
                return
        if queue.bump_from is not None:
            self._put_back(queue, batch)
            return
        if self.source.transactional_id is None and queue.identity != self.source.current:
            verdict = Verdict.BUMP  # the identity changed already, on account of another partition
        else:
            verdict = self.source.on_error_code(queue.partition, code)
        if verdict is Verdict.FAIL:
            self.fail(queue, batch, error)
        elif verdict is Verdict.RETRY:
            self._retry(queue, batch, error)
        else:
            log.info("%s; going on under a new producer epoch", error)
            queue.must_renumber, queue.bump_from = True, queue.identity
            batch.last_error = error
            if batch.attempts > 1:  # at once the first time; to a leader that refuses every epoch after a pause
                pause = self.settings.retry_backoff(batch.attempts - 2, self.random())
                batch.not_before = self.clock() + pause
            self._put_back(queue, batch)

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException) -> None:
        """Again after a pause, if `retries` allow; the deadline ends it otherwise."""
        batch.last_error = error
        if batch.attempts > self.settings.retries:
            self.fail(queue, batch, error)
            return
        self.metrics.count("producer.retries")
        log.debug("%s: attempt %d failed: %s", queue.partition, batch.attempts, error)
        pause = self.settings.retry_backoff(max(batch.attempts - 1, 0), self.random())
        batch.not_before = self.clock() + pause
        self._put_back(queue, batch)

    def _put_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        with self.accumulator.lock:
            self.accumulator.put_back(queue, batch)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Half as large, at most: `batch_size` alone would give the same batch again (Kafka: ProducerBatch.split)."""
        most = max(min(self.settings.batch_size, batch.size_in_bytes // 2), 1)
        pieces = batch.split(lambda: self.accumulator.new_builder(self.settings.max_request_size), most)
        log.info(
            "%s: a batch of %d records is too large, split in %d", queue.partition, batch.records_count, len(pieces)
        )
        self._lose_probe(queue, batch)
        with self.accumulator.lock:
            self.accumulator.replace(queue, batch, pieces)

    def renumber(self, queue: PartitionQueue) -> bool:
        """Number the kept batches anew, as nothing is in flight; under the lock. False: the new identity is awaited."""
        identity = self.source.current
        kept = [batch for batch in queue.batches if batch.is_numbered]
        if queue.bump_from is not None:
            if identity is None or identity == queue.bump_from:
                return False
            queue.identity, first = identity, 0
        else:
            first = queue.rollback_sequence
            kept = [batch for batch in kept if _is_before(first, batch.base_sequence)]
        if queue.bump_from is not None or (first >= 0 and not any(batch.uncertain for batch in kept)):
            for batch in kept:
                batch.number(queue.identity, first, self.source.transactional_id is not None)
                first = (first + batch.records_count) & LAST_SEQUENCE
            queue.next_sequence = first
        queue.must_renumber, queue.bump_from, queue.rollback_sequence, queue.is_proved = False, None, -1, False
        queue.forget_probe()
        return True

    # Endings

    def expire(self, queue: PartitionQueue | None, batch: ProducerBatch) -> None:
        """Its time is up; if its request is under way, what comes of that is no longer told."""
        settings, topic = self.settings, batch.topic
        if queue is None:
            reason = f"topic {topic!r}: no metadata within max_block_ms ({settings.max_block:g} s)"
            why = self.cluster.why_missing(topic)
            reason += f": {why}" if why else ""
        else:
            reason = f"{queue.partition}: not acknowledged within delivery_timeout_ms ({settings.delivery_timeout:g} s)"
        if batch.last_error is not None:
            reason += f"; the last of {batch.attempts} attempts: {batch.last_error}"
        elif queue is not None and batch.attempts == 0:
            why = self.accumulator.why_waiting(batch)
            reason += "; it was never sent" + (f": {why}" if why else "")
        in_flight = queue is not None and batch in queue.in_flight
        uncertain = batch.uncertain or in_flight
        remedy = None if self.source.transactional_id is None else "abort"
        self.fail(
            queue, batch, DeliveryTimeoutError(reason, possibly_sent=uncertain, remedy=remedy), in_flight=in_flight
        )

    def fail(
        self, queue: PartitionQueue | None, batch: ProducerBatch, error: BaseException, *, in_flight: bool = False
    ) -> None:
        """For good, and the source is told, whether the batch ever was in a queue or not. A gap in the partition's
        sequence is closed where that is safe: if nothing of the batch was written."""
        if batch.is_done:
            return
        uncertain = batch.uncertain or in_flight
        if queue is not None and not in_flight:
            self._lose_probe(queue, batch)
        if queue is not None and batch.is_numbered and not uncertain and batch.identity == queue.identity:
            lowest = queue.rollback_sequence
            if lowest < 0 or _is_before(batch.base_sequence, lowest):
                queue.rollback_sequence = batch.base_sequence
            queue.must_renumber = True
        self.source.on_failure(TopicPartition(batch.topic, batch.partition), error, possibly_written=uncertain)
        self.finish([(batch, -1, -1, error)])

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Batches end; their deliveries are told."""
        now = self.clock()
        outcomes = [outcome for outcome in outcomes if not outcome[0].is_done]
        for batch, _, _, error in outcomes:
            if error is None:
                self.metrics.count("producer.records", batch.records_count)
                self.metrics.latency("producer.delivery", now - batch.created)
            else:
                self.metrics.count("producer.failures")
        with self.accumulator.lock:
            told = self.accumulator.finish(outcomes)
        call_all(told)
        if outcomes:
            self.ended()


def _is_before(sequence: int, other: int) -> bool:
    """Whether a sequence number lies before another, both near each other on the ring of 2^31."""
    return sequence >= 0 and 0 < (other - sequence) & LAST_SEQUENCE < 1 << 30
