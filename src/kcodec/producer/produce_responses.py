# SPDX-License-Identifier: Apache-2.0
"""The handling of Produce responses: each batch succeeds, is retried, or fails.

Source: Kafka's Sender.completeBatch and TransactionManager.handleFailedBatch, KIP-360 (epoch bump), KIP-467 (which
records were rejected), KIP-951 (the new leader in the response), and the observed responses of brokers:

- NONE and DUPLICATE_SEQUENCE_NUMBER are success: the response to a repeated batch has the offset of the first copy.
- OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that may be written starts the sequence probe of
  `kcodec.producer.partition_queue`.
- IDENTITY_ERRORS concern the producer: its `ProducerIdManager` decides, but only for the earliest unfinished batch of
  the partition. Batches after a gap are sent again with the same bytes.
- MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE split a batch of several records, which may keep its sequence numbers as
  it is certainly not written.
- Errors that Kafka calls retriable are retried after a pause, until `retries` or `delivery_timeout` is reached.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID, STALE_LEADER_CODES
from kcodec.errors import AuthenticationError, BrokerError, DeliveryTimeoutError, KcodecError, TransportError
from kcodec.network.metrics import Metrics, are_ignored
from kcodec.offsets import TopicPartition
from kcodec.producer.accumulator import Accumulator
from kcodec.producer.batch import LAST_SEQUENCE, BatchOutcome, Callbacks, ProducerBatch
from kcodec.producer.delivery import call_all, calls_of
from kcodec.producer.identity import IDENTITY_ERRORS, BatchDisposition, ProducerIdManager
from kcodec.producer.partition_queue import PartitionQueue
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.flow import Clock, Reply

log = logging.getLogger("kcodec.producer")
#: More than any batch: Kafka stores its size in 32 bits.
MOST_BATCH_BYTES = 2**31 - 1
#: The last version of Produce that names topics; later ones have their ids (KIP-516).
LAST_VERSION_WITH_NAMES = 12
#: Records of a batch that the text of an error names; the others are counted.
MAX_RECORDS_NAMED = 8
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: Errors that a broker returns before it appends: the batch is certainly not written. All others may come after the
#: append: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, and those of a broker that lost the partition, or its
#: disk, while the written batch waited for replicas: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
#: KAFKA_STORAGE_ERROR (Kafka: DelayedProduce).
CERTAIN_CODES = IDENTITY_ERRORS | TOO_LARGE | {
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.INVALID_RECORD,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_ID,
}  # fmt: skip
#: Retriable errors that say that our metadata is out of date.
STALE_METADATA_CODES = STALE_LEADER_CODES | {
    ErrorCode.LISTENER_NOT_FOUND, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.INCONSISTENT_TOPIC_ID
}  # fmt: skip

Sent = Sequence[tuple[PartitionQueue, ProducerBatch]]
Ended = tuple[ProducerBatch, BatchOutcome]


class ProduceResponses:
    """The handler of Produce responses; see the module.

    in_flight: Partitions with batches in flight.
    on_end:    Called when batches have ended.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        id_manager: ProducerIdManager,
        *,
        clock: Clock,
        random: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self.settings = accumulator.settings
        self.accumulator = accumulator
        self.cluster = cluster
        self.id_manager = id_manager
        self.clock = clock
        self.random = random
        self.metrics = metrics
        self._is_measured = not are_ignored(metrics)
        self.on_end: Callable[[], None] = lambda: None
        self.in_flight: dict[PartitionQueue, None] = {}
        self._jitter = 0.0

    # The response

    def on_no_response(self, sent: Sent, error: BaseException) -> None:
        """Handle a request without a response. If it may have been sent, its batches may be written. If the same error
        would occur again, for example because the request cannot be encoded, its batches fail."""
        self._jitter = self.random()
        if isinstance(error, TransportError) and error.possibly_sent:
            self.id_manager.on_no_response("Produce")
        for queue, batch in sent:
            self._land(queue, batch)
            self._without_result(queue, batch, error)
        self.cluster.request_update(f"a Produce request got no response: {error}")

    def on_response(self, node: int, sent: Sent, reply: Reply | None) -> None:
        """Handle the response of a broker; None if acks is 0, as there is no response."""
        # One pause for all batches of the response. Batches that are refused together are then sent again in one
        # request.
        self._jitter = self.random()
        ended: list[Ended] = []
        # By topic and partition. The key is the integer of a topic id, because the hash of a UUID is a slow Python
        # function.
        results: dict[tuple[str | int, int], Any] = {}
        by_id = reply is not None and reply.version > LAST_VERSION_WITH_NAMES
        if reply is not None:
            if reply.version >= 10 and reply.message.node_endpoints:
                self.cluster.learn_brokers(reply.message.node_endpoints)
            for topic in reply.message.responses:
                name = topic.topic_id.int if by_id else topic.name
                for result in topic.partition_responses:
                    results[name, result.index] = result
        for queue, batch in sent:
            self._land(queue, batch)
            if reply is None:
                ended.append((batch, BatchOutcome()))
                continue
            name = (queue.topic_id or NO_UUID).int if by_id else batch.topic
            result = results.get((name, batch.partition))
            if result is None:
                error = TransportError(
                    f"the Produce response of broker {node} has no result for {queue.partition}", possibly_sent=True
                )
                self._without_result(queue, batch, error)
            elif not result.error_code or result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                if queue.batches or queue.refused or queue.probe is not None:
                    ended += self._proved(queue, batch)
                self._succeeded(queue, batch)
                ended.append((batch, BatchOutcome(result.base_offset, result.log_append_time_ms)))
            else:
                self._refused(queue, batch, result, node)
        self._finish(ended)

    def _without_result(self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException) -> None:
        possibly_sent = isinstance(error, TransportError) and error.possibly_sent
        queue.is_proved = False
        batch.uncertain = batch.uncertain or possibly_sent
        if not possibly_sent:
            batch.attempts -= 1
        if batch.is_done:
            self._lose_probe(queue, batch)
        elif isinstance(error, TransportError) and not isinstance(error, AuthenticationError):
            self._retry(queue, batch, error)
        else:
            self.fail(queue, batch, error)

    def _land(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Note that the request of a batch has ended."""
        queue.in_flight.remove(batch)
        if not queue.in_flight:
            self.in_flight.pop(queue, None)

    # One batch

    def _succeeded(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.is_proved = True
        is_numbered = batch.base_sequence >= 0
        if is_numbered and queue.rollback_sequence >= 0 and _is_before(queue.rollback_sequence, batch.base_sequence):
            queue.rollback_sequence = -1  # accepted after a gap: the broker had lost the state of the producer
        if batch.outcome is None:
            last = (batch.base_sequence + batch.records_count - 1) & LAST_SEQUENCE if is_numbered else -1
            self.id_manager.on_success(queue.partition, batch.records_count, last)

    def _proved(self, queue: PartitionQueue, batch: ProducerBatch) -> list[Ended]:
        """Return the batches that an acknowledged batch proves to be written, at unknown offsets."""
        if queue.probe is not None or queue.refused:
            queue.forget_probe()
        if not queue.batches or not batch.is_numbered or queue.batches[0].order > batch.order:
            return []
        with self.accumulator.lock:
            proved = self.accumulator.take_proved(queue, batch)
        for written in proved:
            self._succeeded(queue, written)
        return [(written, BatchOutcome()) for written in proved]

    def _lose_probe(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """End a probe, because the batch can no longer show whether earlier batches are written."""
        if queue.probe is batch:
            for other in (*queue.refused, *queue.batches):
                other.is_fixed = other.is_fixed or other.uncertain
            queue.forget_probe()

    def _refused(self, queue: PartitionQueue, batch: ProducerBatch, result: Any, node: int) -> None:
        """Handle the error code of a batch: retry, split, renumber or fail."""
        code = error_code(result.error_code)
        queue.is_proved = False
        batch.uncertain = batch.uncertain or code not in CERTAIN_CODES
        if code in STALE_METADATA_CODES:
            self._learn_leader(queue, code, result.current_leader)
        if batch.is_done:  # its deadline passed while the request was in flight
            is_gap = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if not is_gap or queue.probe is not batch or not queue.lower_probe():
                self._lose_probe(queue, batch)
            return
        # Permissions are given on a topic, and on a transactional id.
        resource: object = {
            ErrorCode.TOPIC_AUTHORIZATION_FAILED: queue.partition.topic,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: self.id_manager.transactional_id,
        }.get(code)
        doing = f"Produce to broker {node}" if resource is None else f"Produce of {queue.partition} to broker {node}"
        message = _record_errors(result)
        text = None
        if code in TOO_LARGE and batch.records_count == 1:
            limit = "max.message.bytes" if code == ErrorCode.MESSAGE_TOO_LARGE else "segment.bytes"
            text = (
                f"the batch with this record has {batch.size_in_bytes} bytes, more than {limit} of the topic allows;"
                f" send a smaller record, or increase {limit}"
            )
        error = broker_error(code, doing, resource=resource or queue.partition, message=message, text=text)
        if code in IDENTITY_ERRORS and batch.is_numbered:
            self._decide(queue, batch, code, error)
        elif code in TOO_LARGE and batch.records_count > 1:
            self._split(queue, batch)
        elif code.retriable:
            self._retry(queue, batch, error)
        else:
            self.fail(queue, batch, error)

    def _learn_leader(self, queue: PartitionQueue, code: ErrorCode, leader: Any) -> None:
        if leader.leader_id >= 0:
            self.cluster.learn_leader(*queue.partition, leader.leader_id, leader.leader_epoch)
        self.cluster.request_update(f"{queue.partition}: {code.name}")

    def _investigate_gap(self, queue: PartitionQueue, batch: ProducerBatch) -> ProducerBatch | None:
        """Return the batch to decide on after OUT_OF_ORDER_SEQUENCE_NUMBER. Return None if the error is expected, or if
        a probe must clarify it first."""
        unfinished = (*queue.in_flight, *list(queue.batches)[:1])
        is_earliest = not any(other.order < batch.order for other in unfinished)
        if queue.probe is batch:
            self._put_back(queue, batch)
            queue.refused.append(batch)
            if queue.lower_probe():
                return None
            with self.accumulator.lock:  # nothing of all that was written, nor was the first
                return self.accumulator.take(queue, queue.batches[0])
        is_expected = queue.must_renumber or not is_earliest
        if is_expected or (batch.uncertain and not queue.in_flight and queue.begin_probe(batch)):
            self._put_back(queue, batch)
            return None
        return batch

    def _decide(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode, error: BaseException) -> None:
        """Handle an error code that concerns the identity of the producer."""
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            found = self._investigate_gap(queue, batch)
            if found is None:
                return
            batch = found
            if batch.is_fixed:
                self.fail(queue, batch, error)
                return
        if queue.bump_from is not None:
            self._put_back(queue, batch)
            return
        if self.id_manager.transactional_id is None and queue.identity != self.id_manager.current:
            disposition = BatchDisposition.BUMP  # the identity changed already, on account of another partition
        else:
            disposition = self.id_manager.on_error_code(queue.partition, code)
        if disposition is BatchDisposition.FAIL:
            self.fail(queue, batch, error)
        elif disposition is BatchDisposition.RETRY:
            self._retry(queue, batch, error)
        else:
            log.info("%s; continuing with a new producer epoch", error)
            queue.must_renumber, queue.bump_from = True, queue.identity
            batch.last_error = error
            if batch.attempts > 1:  # at once the first time; to a leader that refuses every epoch after a pause
                pause = self.settings.retry_backoff(batch.attempts - 2, self._jitter)
                batch.not_before = self.clock() + pause
            self._put_back(queue, batch)

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException) -> None:
        """Send a batch again after a pause, if `retries` and the deadline allow it."""
        batch.last_error = error
        if batch.attempts > self.settings.retries:
            self.fail(queue, batch, error)
            return
        self.metrics.count("producer.retries")
        log.debug("%s: attempt %d failed: %s", queue.partition, batch.attempts, error)
        pause = self.settings.retry_backoff(max(batch.attempts - 1, 0), self._jitter)
        batch.not_before = self.clock() + pause
        self._put_back(queue, batch)

    def _put_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        with self.accumulator.lock:
            self.accumulator.put_back(queue, batch)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Split a batch at least into halves, because splitting by `batch_size` could give the same batch again (Kafka:
        ProducerBatch.split)."""
        most = max(min(self.settings.batch_size, batch.size_in_bytes // 2), 1)
        try:
            # A record of an encoded batch may be larger than max_request_size before compression: `most` limits.
            pieces = batch.split(lambda: self.accumulator.new_builder(MOST_BATCH_BYTES), most)
        except KcodecError as invalid:  # the records of an encoded batch were not decoded before
            self.fail(queue, batch, invalid)
            return
        log.info(
            "%s: a batch of %d records is too large, split in %d", queue.partition, batch.records_count, len(pieces)
        )
        self._lose_probe(queue, batch)
        with self.accumulator.lock:
            self.accumulator.replace(queue, batch, pieces)
            self.accumulator.limit_growth(batch.topic, (batch.raw_size or batch.size_in_bytes) // 2)

    def renumber(self, queue: PartitionQueue) -> bool:
        """Renumber the kept batches if nothing is in flight. Return False if there is no new identity. The caller holds
        the lock."""
        identity = self.id_manager.current
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
                batch.number(queue.identity, first, self.id_manager.transactional_id is not None)
                first = (first + batch.records_count) & LAST_SEQUENCE
            queue.next_sequence = first
        queue.must_renumber, queue.bump_from, queue.rollback_sequence, queue.is_proved = False, None, -1, False
        queue.forget_probe()
        return True

    # Endings

    def expire(self, queue: PartitionQueue | None, batch: ProducerBatch) -> None:
        """End a batch at its deadline. The outcome of a request in flight is then no longer reported."""
        settings, topic = self.settings, batch.topic
        if queue is None:
            name, limit = "max_block_ms", settings.max_block
            if settings.delivery_timeout < limit:
                name, limit = "delivery_timeout_ms", settings.delivery_timeout
            reason = f"topic {topic!r}: no metadata within {name} ({seconds_text(limit)})"
            why = self.cluster.why_missing(topic)
            reason += f": {why}" if why else ""
        else:
            reason = (
                f"{queue.partition}: not acknowledged within delivery_timeout_ms "
                f"({seconds_text(settings.delivery_timeout)})"
            )
        if batch.last_error is not None:
            attempts = f"the last of {batch.attempts} attempts" if batch.attempts else "it was never sent"
            reason += f"; {attempts}: {batch.last_error}"
        elif queue is not None and batch.attempts == 0:
            why = self.accumulator.why_waiting(batch)
            reason += "; it was never sent" + (f": {why}" if why else "")
        in_flight = queue is not None and batch in queue.in_flight
        uncertain = batch.uncertain or in_flight
        remedy = None if self.id_manager.transactional_id is None else "abort"
        error = DeliveryTimeoutError(reason, possibly_sent=uncertain, remedy=remedy)
        error.__cause__ = batch.last_error
        self.fail(queue, batch, error, in_flight=in_flight)

    def fail(
        self, queue: PartitionQueue | None, batch: ProducerBatch, error: BaseException, *, in_flight: bool = False
    ) -> None:
        """Fail a batch, whether it is in a queue or not, and notify the manager. Close the gap in the sequence numbers
        of the partition if this is safe: neither this batch nor a later failed batch may have been written. Otherwise a
        late copy could take the sequence number of another batch."""
        if batch.is_done:
            return
        uncertain = batch.uncertain or in_flight
        if uncertain and isinstance(error, AuthenticationError):
            error = _refused_after_sent(error)
        if queue is not None and not in_flight:
            self._lose_probe(queue, batch)
        if queue is not None and batch.is_numbered and batch.identity == queue.identity:
            if uncertain:
                queue.note_lost(batch)
                if _is_before(queue.rollback_sequence, batch.base_sequence):
                    queue.rollback_sequence = -1
            else:
                lowest = queue.rollback_sequence
                if not queue.is_before_lost(batch) and (lowest < 0 or _is_before(batch.base_sequence, lowest)):
                    queue.rollback_sequence = batch.base_sequence
                queue.must_renumber = True
        partition = TopicPartition(batch.topic, batch.partition)
        if batch.is_held:
            self.id_manager.on_held_failure(partition, error)
        else:
            self.id_manager.on_failure(partition, error, possibly_written=uncertain)
        if uncertain and isinstance(error, KcodecError) and not error.possibly_sent:
            error = _failed_after_sent(error)
        self._finish([(batch, BatchOutcome(error=error))])

    def _finish(self, ended: Sequence[Ended]) -> None:
        """End batches and call the callbacks of their deliveries."""
        ended = [one for one in ended if one[0].outcome is None]
        if self._is_measured:
            self._measure(ended)
        callbacks: list[Callbacks] = []
        calls = calls_of(callbacks)
        try:
            self._finish_all(ended, callbacks, calls)
        except (KeyboardInterrupt, SystemExit):  # in asyncio; nothing else would do the rest
            self._finish_all(ended, callbacks, calls)
            raise
        finally:
            if ended:
                self.on_end()

    def _finish_all(self, ended: Sequence[Ended], callbacks: list[Callbacks], calls: Iterator[Any]) -> None:
        with self.accumulator.lock:
            self.accumulator.finish(ended, callbacks)
        call_all(calls)

    def _measure(self, ended: Sequence[Ended]) -> None:
        now = self.clock()
        for batch, outcome in ended:
            if outcome.error is None:
                self.metrics.count("producer.records", batch.records_count)
                self.metrics.count("producer.batches")
                self.metrics.count("producer.batch_bytes", batch.size_in_bytes)
                self.metrics.latency("producer.delivery", now - batch.created)
            else:
                self.metrics.count("producer.failures")


def _refused_after_sent(error: AuthenticationError) -> TransportError:
    """Return the error of a batch that fails because of a refused login and that an earlier attempt may have written.
    An AuthenticationError would mean that the batch was not sent."""
    failure = TransportError(
        f"an earlier attempt may have written the record, and the next one failed: {error.reason}",
        possibly_sent=True,
        remedy=error.remedy,
    )
    failure.__cause__ = error
    return failure


def _failed_after_sent(error: KcodecError) -> KcodecError:
    """Return a copy of the error with `possibly_sent`, for the records of a batch that a broker may have written. Other
    batches, and the transaction, may have the error itself."""
    marked = copy.copy(error)
    marked.possibly_sent = True
    marked.__cause__ = error.__cause__
    if isinstance(marked, BrokerError):
        marked.reason = f"{marked.reason}; the broker may have stored the record"
        marked.args = (marked.reason,)
    return marked


def _is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence number is before another one near it, modulo 2^31."""
    return sequence >= 0 and 0 < (other - sequence) & LAST_SEQUENCE < 1 << 30


def _record_errors(result: Any) -> str | None:
    """Return the broker's message, and the records of the batch that it concerns (KIP-467)."""
    named = [
        f"record {one.batch_index}" + (f": {one.batch_index_error_message}" if one.batch_index_error_message else "")
        for one in result.record_errors[:MAX_RECORDS_NAMED]
    ]
    if len(result.record_errors) > MAX_RECORDS_NAMED:
        named.append(f"and {len(result.record_errors) - MAX_RECORDS_NAMED} more")
    return " - ".join(part for part in (result.error_message, "; ".join(named)) if part) or None
