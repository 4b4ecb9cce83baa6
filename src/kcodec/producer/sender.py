# SPDX-License-Identifier: Apache-2.0
"""The flow that sends the records in the accumulator (Kafka: Sender, RecordAccumulator.drain).

In one round it applies new metadata, ends batches past their deadline, and then sends each broker requests with at most
one batch for each partition, up to `max_in_flight` requests. Between rounds it waits for the next deadline, or for an
event: a record, a response, metadata, an identity.

These rules keep a partition in order and free of duplicates:

- Batches are sent oldest first. A batch to be repeated returns to its position, before all batches that were never
sent.
- A numbered batch keeps its identity, sequence number and bytes until it ends. A broker rejects all batches after a gap
as out of order. Only the response to the earliest unfinished batch therefore shows what happened; the others are sent
again.
- At most five numbered batches of a partition are in flight, because a broker remembers five. A second one is sent only
if the partition `is_proved`, because a leader without state accepts any sequence number as the first one.
- No batch is sent to a new leader while a response of the old leader is outstanding.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID
from kcodec.errors import BrokerError, DeliveryTimeoutError, KcodecError
from kcodec.flow import Call, CancelledFlow, Flow, InterruptedFlow, Signal, StartCall, Task, Wait, spawn
from kcodec.producer.accumulator import BUSY_REQUESTS, Accumulator
from kcodec.producer.batch import LAST_SEQUENCE, ProducerBatch
from kcodec.producer.identity import HIGHEST_VERSION, ProducerIdManager
from kcodec.producer.linger import LingerTime
from kcodec.producer.partition_queue import PartitionQueue
from kcodec.producer.partitioner import TopicBuffer
from kcodec.producer.produce_responses import LAST_VERSION_WITH_NAMES, ProduceResponses, Sent
from kcodec.producer.reports import Reports
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcodec.quantities import count_text

if TYPE_CHECKING:
    from uuid import UUID

    from kcodec._fast import IoTurn
    from kcodec.flow import Clock, Reply

log = logging.getLogger("kcodec.producer")
#: The first version of Produce that is sent, and the first that may have zstd (KIP-110).
FIRST_VERSION, FIRST_VERSION_WITH_ZSTD = 3, 7
#: A broker remembers the last five batches of a producer in a partition: a repeat of one of them is recognized.
IN_FLIGHT_WINDOW = 5
#: A topic in use is named to the cluster this often, so that its metadata stays fresh (Cluster forgets idle topics).
TOPIC_REFRESH_SECONDS = 60.0
#: Time for which the metadata must contain only the new id of a topic before records for partitions that the new topic
#: does not have fail. A broker with older metadata could respond with a former topic.
CONFIRMATION_SECONDS = 1.0
_FOREVER = float("inf")


class _Drained:
    """The batches that one call of `_drain` takes out of the accumulator.

    requests: The batches of the request to each broker, by the id of the broker.
    sizes:    The bytes of these batches, by the id of the broker.
    lingered: The brokers that get an open batch because it has lingered.
    is_more:  Whether another request may follow immediately.
    """

    __slots__ = ("is_more", "lingered", "requests", "sizes")

    def __init__(self) -> None:
        self.requests: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        self.sizes: dict[int, int] = {}
        self.lingered: set[int] = set()
        self.is_more = False


class Sender:
    """The sender of one producer. All methods run on the I/O thread.

    progress:  Set whenever batches end.
    urgent:    Number of flushes during which records do not linger.
    responses: The handler of the responses.
    turn:      The turn of the I/O thread, if other threads send.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        id_manager: ProducerIdManager,
        responses: ProduceResponses,
        *,
        clock: Clock,
    ) -> None:
        self.settings = accumulator.settings
        self.accumulator = accumulator
        self.cluster = cluster
        self.id_manager = id_manager
        self.clock = clock
        #: Of a client, whose processor time counts, unless records never linger.
        self.linger: LingerTime | None = None
        self.urgent = 0
        self.is_stopped = False
        self.turn: IoTurn | None = None
        self.progress = Signal()
        self.responses = responses
        responses.on_end = self._batches_ended
        self._reports = Reports(accumulator)
        self._signal = Signal()
        self._is_woken = False
        self._failure: BaseException | None = None
        self._was_single = self._is_in_response = False
        #: Number of topics whose metadata is requested.
        self._learning = 0
        self._is_metadata_new = True
        self._next_expiry = -_FOREVER
        #: The time of the next round for another reason than sending.
        self._other_work_at = _FOREVER
        self._follow_until = -_FOREVER
        self._loads = accumulator.loads
        self._named: dict[str, float] = {}
        #: The new ids of topics with fewer partitions than before, and the times at which they were found.
        self._smaller: dict[str, tuple[UUID, float]] = {}

    # Events

    def wake(self) -> None:
        """Start the next round at once."""
        self._is_woken = True
        self._signal.set()

    def stop(self) -> None:
        """End the flow after its round."""
        self.is_stopped = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """End the flow with an error, because a response could not be handled and some batches would never end."""
        self._failure = error
        self.wake()

    def _batches_ended(self) -> None:
        if self.settings.linger > 0:
            self._expect_more()
        self.progress.set()
        if not self._is_in_response:  # its end starts the next round
            self._wake_for_more()

    def _wake_for_more(self) -> None:
        """Start the next round, unless it would find nothing to do, for example after the last record of a transaction,
        if the caller waits for each record, or while all records in the buffer still linger. With `linger_ms`, records
        do not wake the sender, so it needs a timer."""
        accumulator = self.accumulator
        failures = accumulator.failures
        if not self._is_metadata_new and (failures is None or not failures.is_news):
            looks_at = self._looks_at() if self.settings.linger > 0 else _FOREVER  # a record then wakes the sender
            if looks_at is not None:
                with accumulator.lock:
                    first = self._first_lingered()
                    if first >= looks_at:
                        if looks_at < first < _FOREVER:
                            looks_at = max(looks_at, min(first, self._other_work_at))
                            self._signal.delay_alarm(looks_at)
                        accumulator.next_look = looks_at
                        if self.turn is not None:
                            self._take_turns(self.turn)
                        return
        self.wake()

    def _first_lingered(self) -> float:
        """Return the time at which the first of the batches that are not in flight has lingered. Return infinity
        without such batches, and minus infinity if one of them may be sent for another reason. The caller holds the
        lock."""
        accumulator = self.accumulator
        first, linger = _FOREVER, accumulator.linger
        if accumulator.awaited or self.urgent or accumulator.memory.waiters:
            return -_FOREVER
        for queue in accumulator.active:
            batch = queue.next_batch
            if queue.open is not batch or batch.is_full:
                return -_FOREVER
            first = min(first, batch.created + linger)
        return first

    def _looks_at(self) -> float | None:
        """Return the time at which the next round begins without an event, if that is early enough for a record that
        arrives now; otherwise None."""
        now, when = self.clock(), self._signal.alarm_at
        return when if now < when <= now + self.settings.linger else None

    def _metadata_changed(self) -> None:
        self.cluster.changed.add_waiter(self._metadata_changed)
        self._is_metadata_new = True
        self.wake()

    def _identity_changed(self) -> None:
        self.id_manager.changed.add_waiter(self._identity_changed)
        self._expect_more()
        now, accumulator = self.clock(), self.accumulator
        # The lock may be held here. Without records, and if a round is due soon, a round changes nothing.
        is_soon = now < accumulator.next_look <= now + self.settings.linger
        if accumulator.unfinished or self._is_metadata_new or not is_soon:
            self.wake()

    def _expect_more(self) -> None:
        """Schedule another round after a request, and after the end of batches or of a transaction. Records often
        follow then. The first of these records does not have to wake this thread, which would hold the GIL while the
        others are appended."""
        self._follow_until = self.clock() + self.settings.linger

    def _follows_until(self, now: float) -> float:
        """Return the time of the round that `_expect_more` has scheduled, or infinity if it has passed."""
        return self._follow_until if now < self._follow_until else _FOREVER

    # The flow

    def run(self) -> Flow[None]:
        """Send until `stop`. Raise the error of `fail`."""
        self.cluster.changed.add_waiter(self._metadata_changed)
        self.id_manager.changed.add_waiter(self._identity_changed)
        try:
            while not self.is_stopped:
                self._is_woken = False
                if self._failure is not None:
                    raise self._failure
                when = yield from self._round()
                if self.turn is not None:
                    self._take_turns(self.turn)
                if not self._is_woken:
                    # If the next round is soon, records wait for it, and an earlier timer would begin a round without
                    # effect. Before a long pause, the earlier timer stays, because a round without effect costs less
                    # than a new timer after each event.
                    pause = when - self.clock()
                    if pause <= self.settings.linger:
                        self._signal.cancel_alarm_before(when)
                    yield Wait(self._signal, None if when == _FOREVER else max(pause, 0.0), is_vague=True)
        finally:
            self.cluster.changed.drop_waiter(self._metadata_changed)
            self.id_manager.changed.drop_waiter(self._identity_changed)

    def _take_turns(self, turn: IoTurn) -> None:
        """Choose whether threads that send pause for the I/O thread. They do in three situations:

        - At the beginning of a transaction, a partition has at most one batch in flight until a broker has acknowledged
        one. The broker would be idle while this thread waits for the GIL.
        - While every broker has `max_in_flight` requests, only a response permits the next request. This thread would
        wait 5 ms for the GIL to learn of the response, and again to receive it. Meanwhile the broker would complete all
        requests and be idle.
        - While the metadata of a topic is requested, because each record takes much longer to append without it.
        """
        is_urgent = self._learning > 0 or self._is_saturated()
        if self.id_manager.transactional_id is not None and not is_urgent:
            is_urgent = not any(queue.is_proved for queue in self.responses.in_flight)
        turn.is_urgent = is_urgent

    def _round(self) -> Flow[float]:
        """Do the work that is due. Return the time of the next round."""
        now = self.clock()
        with self.accumulator.lock:
            self.accumulator.take_wake()
            is_idle = not (self.accumulator.unfinished or self._is_metadata_new)
            nearest = self._follows_until(now)
            unknown: list[TopicBuffer] = []
            if is_idle:
                self.accumulator.next_look = nearest
                self.accumulator.linger = self.settings.linger
            else:
                unknown, self.accumulator.new_topics = self.accumulator.new_topics, []
        if is_idle:
            self._other_work_at = self._reports.look(now)
            return min(nearest, self._other_work_at)
        for buffer in unknown:
            if buffer.is_requested:  # by a caller
                continue
            buffer.is_requested = True
            learning = yield from spawn(self._learn_topic(buffer), f"metadata of {buffer.topic}")
            learning.when_done(partial(self._learning_ended, buffer))
        if self._is_metadata_new:
            self._is_metadata_new = False
            self.take_up_metadata()
        expiry = self._expire(now)
        refusal = self.id_manager.refuses()
        if refusal is not None:
            self.fail_buffered(lambda _: refusal)
        self._other_work_at = next_round = min(expiry, self._reports.look(now))
        is_more, has_sent, linger = True, False, self.linger
        if linger is not None:
            linger.begin()
        while is_more:
            requests, next_due, is_more = self._drain(now)
            next_round = min(next_round, next_due)
            for node, taken in requests.items():
                has_sent = True
                yield self._produce(node, taken)
        if has_sent and linger is not None:
            self.accumulator.linger = linger.after_requests()
        return next_round

    @property
    def has_single_record(self) -> bool:
        """Whether the caller seems to wait for each record: the last request had one record, and nothing else is
        unfinished. The record is then sent immediately. In a round of the event loop, it would wait for records that do
        not come."""
        return self._was_single and len(self.accumulator.unfinished) == 1 and not self.responses.in_flight

    def _produce(self, node: int, sent: Sent) -> StartCall:
        """Return a flow that sends one request with these batches, and handles its response."""
        request, lowest, highest = self._request(sent)
        # With acks=0, a record is complete once it is sent, and each of the following records would be sent alone.
        self._was_single = self.settings.acks != 0 and len(sent) == 1 and sent[0][1].records_count == 1

        def ended(reply: Reply | None, error: BaseException | None) -> None:
            self._is_in_response = True
            try:
                if error is None:
                    self.responses.on_response(node, sent, reply)
                else:
                    self.responses.on_no_response(sent, error)
            finally:
                self._is_in_response = False
                self._loads[node] -= 1
                self._wake_for_more()

        highest = min(highest, self.id_manager.produce_highest_version())
        expects_reply = self.settings.acks != 0
        call = Call(node, request, self.settings.request_timeout, lowest, highest, expects_reply)
        return StartCall(call, ended, self.fail)

    def _request(self, sent: Sent) -> tuple[Any, int, int]:
        """Return the request, its lowest and its highest version. If the id of a topic is unknown, the versions use
        names."""
        topics: dict[str, Any] = {}
        highest = HIGHEST_VERSION
        for queue, batch in sent:
            if (topic := topics.get(batch.topic)) is None:
                topic_id = queue.topic_id or NO_UUID
                topic = topics[batch.topic] = TopicProduceData(name=batch.topic, topic_id=topic_id, partition_data=[])
                if queue.topic_id is None:
                    highest = LAST_VERSION_WITH_NAMES
            topic.partition_data.append(PartitionProduceData(index=batch.partition, records=batch.data))
        request = ProduceRequest(
            transactional_id=self.id_manager.transactional_id,
            acks=self.settings.acks,
            timeout_ms=int(self.settings.request_timeout * 1000),
            topic_data=list(topics.values()),
        )
        lowest = FIRST_VERSION_WITH_ZSTD if self.settings.compression_type == "zstd" else FIRST_VERSION
        return request, lowest, highest

    # Topics

    def _learn_topic(self, buffer: TopicBuffer) -> Flow[None]:
        """Obtain the metadata of a topic. If this fails, records that wait for it fail with the same error."""
        self._learning += 1
        try:
            yield from self._learn(buffer)
        finally:
            self._learning -= 1
        if self.accumulator.topics.get(buffer.topic) is buffer:
            self._is_metadata_new = True
        self.wake()

    def _learning_ended(self, buffer: TopicBuffer, task: Task[None]) -> None:
        """Request the metadata again in the next round if Ctrl-C in asyncio has interrupted the flow. Otherwise the
        records of the topic would wait until their deadline. Another error ends the producer."""
        if isinstance(task.error, InterruptedFlow):
            with self.accumulator.lock:
                if self.accumulator.topics.get(buffer.topic) is buffer:
                    buffer.is_requested = False
                    self.accumulator.new_topics.append(buffer)
            self.wake()
        elif task.error is not None and not isinstance(task.error, CancelledFlow):
            self.fail(task.error)

    def _learn(self, buffer: TopicBuffer) -> Flow[None]:
        while self.cluster.partitions(buffer.topic) is None:
            refusal: KcodecError | None = None
            try:
                yield from self.cluster.ensure_topic(buffer.topic, self.settings.max_block)
            except DeliveryTimeoutError as late:
                log.info("%s", late)
            except KcodecError as error:
                refusal = error
            self._end_lookup(buffer, refusal)
            if self.accumulator.topics.get(buffer.topic) is not buffer:
                return

    def _end_lookup(self, buffer: TopicBuffer, refusal: KcodecError | None) -> None:
        """Fail the records that wait for the metadata if it was refused. Remove the topic if no record needs it any
        more; the next record then requests it again. After an interruption, records that have not failed still wait."""
        if refusal is not None:
            with self.accumulator.lock:
                refused = [record.placeholder for record in buffer.waiting]
            for placeholder in refused:
                self.responses.fail(None, placeholder, refusal)
        with self.accumulator.lock:
            while buffer.waiting and buffer.waiting[0].placeholder.is_done:
                buffer.waiting.popleft()
            if not buffer.waiting and not buffer.queues:
                self.accumulator.topics.pop(buffer.topic, None)

    def take_up_metadata(self) -> None:
        """Apply new partitions and leaders, also if a topic was created again. If the new topic has fewer partitions,
        fail the records of partitions that do not exist any more."""
        failed: list[tuple[ProducerBatch, BaseException]] = []
        with self.accumulator.lock:
            for buffer in self.accumulator.topics.values():
                count = self.cluster.partitions(buffer.topic)
                if count is None:
                    continue
                leaders = [self.cluster.leader(buffer.topic, number) is not None for number in range(count)]
                failed += self.accumulator.update_topic(buffer, leaders)
                topic_id = self.cluster.topic_id(buffer.topic)
                for queue in buffer.queues:
                    if queue.topic_id != topic_id:
                        queue.topic_id, queue.is_proved = topic_id, False
                        queue.forget_probe()
            gone = self._take_gone()
        for placeholder, error in failed:
            self.responses.fail(None, placeholder, error)
        for queue, batch in gone:
            self.responses.fail(queue, batch, self._gone_error(queue))

    def _take_gone(self) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Take the batches of partitions that do not exist any more: the topic has another id, and the metadata has
        contained only this id for CONFIRMATION_SECONDS. While batches wait, their leader is requested again and again
        (`_node_for`), so more metadata follows. The caller holds the lock."""
        now, before, self._smaller = self.clock(), self._smaller, {}
        gone: list[tuple[PartitionQueue, ProducerBatch]] = []
        for topic, buffer in self.accumulator.topics.items():
            topic_id = self.cluster.topic_id(topic)
            if topic_id is None or not buffer.queues:
                continue
            missing = [queue for queue in buffer.missing_queues if queue.topic_id not in (None, topic_id)]
            if not missing:
                continue
            found = before.get(topic)
            found = self._smaller[topic] = found if found and found[0] == topic_id else (topic_id, now)
            if now >= found[1] + CONFIRMATION_SECONDS:
                for queue in missing:
                    while queue.batches:
                        gone.append((queue, self.accumulator.take(queue, queue.batches[0])))
        return gone

    def _gone_error(self, queue: PartitionQueue) -> BrokerError:
        topic, code = queue.partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        count = count_text(self.cluster.partitions(topic) or 0, "partition")
        return BrokerError(
            f"{queue.partition}: the partition does not exist any more, because topic {topic!r} was deleted and "
            f"created again with {count}; send the record again, and let its key or the partitioner choose a partition",
            code=code,
            name=code.name,
            retriable=False,
            remedy="stop" if self.id_manager.transactional_id is None else "abort",
            resource=queue.partition,
        )

    # Time

    def _expire(self, now: float) -> float:
        """End batches whose deadline has passed. Return the time of the next deadline."""
        if not self.accumulator.unfinished:
            return _FOREVER
        if now < self._next_expiry:
            return self._next_expiry
        nearest = _FOREVER
        late: list[tuple[PartitionQueue | None, ProducerBatch]] = []
        with self.accumulator.lock:
            for buffer in self.accumulator.topics.values():
                while buffer.waiting and buffer.waiting[0].placeholder.deadline <= now:
                    late.append((None, buffer.waiting.popleft().placeholder))
                if buffer.waiting:
                    nearest = min(nearest, buffer.waiting[0].placeholder.deadline)
            for queue in list(self.accumulator.active):
                while queue.batches and queue.batches[0].deadline <= now:
                    late.append((queue, self.accumulator.take(queue, queue.batches[0])))
                if queue.batches:
                    nearest = min(nearest, queue.batches[0].deadline)
        for queue in self.responses.in_flight:
            for batch in queue.in_flight:
                if not batch.is_done and batch.deadline <= now:
                    late.append((queue, batch))
                elif not batch.is_done:
                    nearest = min(nearest, batch.deadline)
        for expired_queue, batch in late:
            self.responses.expire(expired_queue, batch)
        # No batch that is added later ends earlier than this.
        self._next_expiry = min(nearest, now + min(self.settings.max_block, self.settings.delivery_timeout))
        return nearest

    # Draining

    def _drain(self, now: float) -> tuple[dict[int, list[tuple[PartitionQueue, ProducerBatch]]], float, bool]:
        """Return one request for each broker that can accept one now, the time at which the next batch is due, and
        whether another request may follow immediately.

        If an open batch has lingered, its request also takes batches of other partitions that still linger, as Java's
        producer does. Otherwise each partition would need a separate request after each `linger`.
        """
        drained, nearest = _Drained(), _FOREVER
        with self.accumulator.lock:
            if self._is_saturated():
                self.accumulator.next_look = -_FOREVER  # the next response wakes the sender
                return drained.requests, nearest, False
            linger, awaited = self.accumulator.linger, self.accumulator.awaited
            is_awaited = bool(awaited) and not any(self._loads.values())
            identity = self.id_manager.current
            if identity is None and self.accumulator.active:
                self.id_manager.request()
            is_numbering = identity is not None and identity.producer_id >= 0
            lingering: list[PartitionQueue] = []
            for queue in list(self.accumulator.active):
                if is_numbering and queue.in_flight and not queue.is_proved:
                    continue  # as `_due` finds, which takes longer for thousands of partitions
                due = self._due(queue, now, is_awaited=is_awaited)
                if due <= now:
                    self._take_next(queue, now, drained)
                elif due == _FOREVER or queue.next_batch.not_before > now:
                    nearest = min(nearest, due)
                else:
                    lingering.append(queue)
            for queue in lingering:
                due = queue.next_batch.created + linger
                if drained.lingered and self.cluster.leader(*queue.partition) in drained.lingered:
                    due = self._due(queue, now, is_awaited=True)
                if due <= now:
                    self._take_next(queue, now, drained)
                else:
                    nearest = min(nearest, due)
            if awaited:
                self.accumulator.awaited = {batch for batch in awaited if not (batch.attempts or batch.is_done)}
            if drained.requests:
                for node in drained.requests:
                    self._loads[node] = self._loads.get(node, 0) + 1
                if self.settings.linger > 0:
                    self._expect_more()
            # If nothing more can be sent, the next response wakes the sender.
            if drained.is_more or self._is_saturated():
                self.accumulator.next_look = -_FOREVER
            else:
                nearest = self.accumulator.next_look = min(nearest, self._follows_until(now))
        for taken in drained.requests.values():
            for queue, batch in taken:
                self._seal(queue, batch)
                if now - self._named.get(batch.topic, -_FOREVER) > TOPIC_REFRESH_SECONDS:
                    self._named[batch.topic] = now
                    self.cluster.add_topics([batch.topic])
        return drained.requests, nearest, drained.is_more

    def _take_next(self, queue: PartitionQueue, now: float, drained: _Drained) -> None:
        """Move the first batch of the queue, which is due, into the request of its leader, if that can accept it."""
        node = self._node_for(queue)
        if node is None or self._loads.get(node, 0) >= self.settings.max_in_flight:
            return
        batch, accumulator = queue.next_batch, self.accumulator
        size = drained.sizes.get(node, 0) + batch.size_in_bytes
        if node in drained.requests and size > self.settings.max_request_size:
            drained.is_more = True
            return
        if not self.id_manager.may_send(queue.partition):
            return
        if queue.open is batch and not batch.is_full and batch.created + accumulator.linger <= now:
            drained.lingered.add(node)
        drained.sizes[node] = size
        accumulator.take(queue, batch)
        batch.attempts += 1
        queue.in_flight.append(batch)
        self.responses.in_flight[queue] = None
        drained.requests.setdefault(node, []).append((queue, batch))
        if queue in accumulator.active:  # the others come first next time
            del accumulator.active[queue]
            accumulator.active[queue] = None
            drained.is_more = True

    def _is_saturated(self) -> bool:
        """Return whether every broker has `max_in_flight` requests, so that nothing can be sent before a response."""
        brokers, loads, most = self.cluster.brokers, self._loads, self.settings.max_in_flight
        for node in brokers:
            if loads.get(node, 0) < most:
                return False
        return bool(brokers)

    def _due(self, queue: PartitionQueue, now: float, *, is_awaited: bool = False) -> float:
        """Return the time at which the first batch of the queue may be sent: `now` or earlier, later, or infinity if it
        needs an event.

        is_awaited: Whether the batch does not linger.
        """
        if queue.must_renumber and (queue.in_flight or not self.responses.renumber(queue)):
            return _FOREVER
        batch = queue.next_batch
        identity = self.id_manager.current
        if identity is None or batch.is_held:
            return _FOREVER
        is_numbered = batch.is_numbered
        is_numbering = identity.producer_id >= 0 or is_numbered
        if is_numbering and queue.in_flight and not (queue.is_proved and len(queue.in_flight) < IN_FLIGHT_WINDOW):
            return _FOREVER
        if batch.not_before > now:
            return batch.not_before
        lingers_until = batch.created + self.accumulator.linger
        if lingers_until > now and not is_awaited and not self._is_hurried(queue, batch):
            return lingers_until
        if is_numbering and not is_numbered and queue.identity is not identity and queue.identity != identity:
            if queue.in_flight:
                return _FOREVER
            queue.identity, queue.next_sequence, queue.is_proved = identity, 0, False
        return now

    def _is_hurried(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return whether there is no reason to linger. A full batch that can grow lingers if the broker is busy."""
        if queue.open is not batch or self.urgent > 0 or self.accumulator.memory.waiters > 0:
            return True
        # Only requests to the present leader count, not those to a former one without a response.
        return batch.is_full and self._loads.get(self.cluster.leader(*queue.partition), 0) < BUSY_REQUESTS

    def _node_for(self, queue: PartitionQueue) -> int | None:
        """Return the broker for the next batch of the queue; None if it cannot be sent now."""
        node = self.cluster.leader(*queue.partition)
        if node is None:
            self.cluster.add_topics([queue.partition.topic])
            self.cluster.request_update(f"{queue.partition} has no leader", queue.partition.topic)
            return None
        if node != queue.node:
            if queue.in_flight:
                return None
            queue.node, queue.is_proved = node, False
            queue.forget_probe()
        return node

    def _seal(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Number a batch that is sent for the first time, and encode it."""
        if queue.identity.producer_id >= 0 and not batch.is_numbered:
            batch.number(queue.identity, queue.next_sequence, self.id_manager.transactional_id is not None)
            batch.close()
            queue.next_sequence = (queue.next_sequence + batch.records_count) & LAST_SEQUENCE
        else:
            batch.close()

    # Endings

    def fail_buffered(self, error_of: Callable[[ProducerBatch], BaseException]) -> None:
        """Fail all records that are not in flight: records that wait for metadata, and batches, including batches to be
        repeated."""
        failed: deque[tuple[PartitionQueue | None, ProducerBatch]] = deque()
        try:
            self._take_buffered(failed)
        except (KeyboardInterrupt, SystemExit):  # in asyncio; a later call would not find the batches in `failed`
            self._take_buffered(failed)
            raise
        finally:
            self._fail_each(failed, error_of)

    def _take_buffered(self, taken: deque[tuple[PartitionQueue | None, ProducerBatch]]) -> None:
        """Remove all records that are not in flight from the buffer. After an interruption, another call removes the
        rest. `taken` then contains a batch twice."""
        accumulator = self.accumulator
        with accumulator.lock:
            for buffer in accumulator.topics.values():
                taken += [(None, record.placeholder) for record in buffer.waiting]
                buffer.waiting.clear()
            for queue in list(accumulator.active):
                while queue.batches:
                    taken.append((queue, queue.batches[0]))
                    accumulator.take(queue, queue.batches[0])
                accumulator.active.pop(queue, None)

    def _fail_each(
        self,
        failed: deque[tuple[PartitionQueue | None, ProducerBatch]],
        error_of: Callable[[ProducerBatch], BaseException],
    ) -> None:
        try:
            while failed:
                queue, batch = failed[0]
                self.responses.fail(queue, batch, error_of(batch))
                failed.popleft()
        except (KeyboardInterrupt, SystemExit):
            self._fail_each(failed, error_of)
            raise

    def fail_all(self, error_of: Callable[[ProducerBatch], BaseException]) -> None:
        """Fail all records that have not ended, in flight or not."""
        self.fail_buffered(error_of)
        for queue in list(self.responses.in_flight):
            for batch in queue.in_flight:
                if not batch.is_done:
                    self.responses.fail(queue, batch, error_of(batch))
        with self.accumulator.lock:
            left = list(self.accumulator.unfinished)
        for batch in left:
            self.responses.fail(None, batch, error_of(batch))
        self.progress.set()  # also if Ctrl-C has interrupted this at the end of the last batch
