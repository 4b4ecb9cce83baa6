# SPDX-License-Identifier: Apache-2.0
"""The flow that sends what the accumulator holds (Kafka: Sender, RecordAccumulator.drain).

One round: take up new metadata, end what is past its time, then give each broker requests with at most one batch a
partition, up to `max_in_flight` requests. Between rounds it waits for the nearest time at which something is due, or
for an event: a record, an answer, metadata, an identity.

What keeps a partition in order and free of duplicates:

- Batches go out oldest first, and one to be repeated takes its old place before all that were never sent.
- A numbered batch keeps identity, sequence and bytes until it is settled. A broker answers 45 to all that follow a gap,
  so of several in flight the earliest unsettled one says what happened; the others are just sent again.
- At most five numbered batches of a partition are in flight (a broker remembers five), and a second one only when the
  partition `is_proved`: a partition that lost its state, or moved, would take any sequence as the first.
- Nothing follows to a new leader while an answer of the old one is outstanding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kcodec.cluster.metadata import Cluster
from kcodec.errors import DeliveryTimeoutError, KcodecError
from kcodec.flow import Flow, Signal, spawn, wait
from kcodec.producer.accumulator import Accumulator
from kcodec.producer.batch import LAST_SEQUENCE, ProducerBatch
from kcodec.producer.identity import ProducerIdSource
from kcodec.producer.produce_responses import IN_FLIGHT_WINDOW, Settlement
from kcodec.producer.queues import PartitionQueue, TopicBuffer
from kcodec.producer.reports import Reports

if TYPE_CHECKING:
    from kcodec.flow import Clock
    from kcodec.producer.queues import PartitionQueue, TopicBuffer
from kcodec.producer.produce_responses import ProducerMetrics

log = logging.getLogger("kcodec.producer")
#: A topic in use is named to the cluster this often, so that its metadata stays fresh (Cluster forgets idle topics).
TOPIC_WANTED_SECONDS = 60.0
_FOREVER = float("inf")


class Sender:
    """The sending half of one producer. Everything here runs on the loop's thread.

    progress: set whenever batches end. urgent: how many flushes want everything sent without lingering.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        source: ProducerIdSource,
        *,
        clock: Clock,
        random: Callable[[], float],
        metrics: ProducerMetrics,
    ) -> None:
        self.settings = accumulator.settings
        self.accumulator = accumulator
        self.cluster = cluster
        self.source = source
        self.clock = clock
        self.urgent = 0
        self.is_stopped = False
        self.progress = Signal()
        self._settlement = Settlement(
            accumulator, cluster, source, clock=clock, random=random, metrics=metrics, ended=self._batches_ended
        )
        self._reports = Reports(accumulator)
        self._signal = Signal()
        self._is_woken = False
        self._is_metadata_new = True
        self._loads: dict[int, int] = {}
        self._flying = self._settlement.flying
        self._named: dict[str, float] = {}

    # Events

    def wake(self) -> None:
        """Have the next round begin at once."""
        self._is_woken = True
        self._signal.set()

    def stop(self) -> None:
        """End the flow after its round."""
        self.is_stopped = True
        self.wake()

    def _batches_ended(self) -> None:
        self.progress.set()
        self.wake()

    def _metadata_changed(self) -> None:
        self.cluster.changed.add_waiter(self._metadata_changed)
        self._is_metadata_new = True
        self.wake()

    def _identity_changed(self) -> None:
        self.source.changed.add_waiter(self._identity_changed)
        self.wake()

    # The flow

    def run(self) -> Flow[None]:
        """Send until `stop`."""
        self.cluster.changed.add_waiter(self._metadata_changed)
        self.source.changed.add_waiter(self._identity_changed)
        try:
            while not self.is_stopped:
                self._is_woken = False
                pause = yield from self._round()
                if not self._is_woken:
                    yield from wait(self._signal, None if pause == _FOREVER else max(pause, 0.0))
        finally:
            self.cluster.changed.drop_waiter(self._metadata_changed)
            self.source.changed.drop_waiter(self._identity_changed)

    def _round(self) -> Flow[float]:
        """Do what is due; the result is how long nothing will be, as far as time goes."""
        now = self.clock()
        with self.accumulator.lock:
            self.accumulator.take_wake()
            unknown = [buffer for buffer in self.accumulator.topics.values() if not buffer.is_asked_for]
        for buffer in unknown:
            buffer.is_asked_for = True
            yield from spawn(self._learn_topic(buffer), f"metadata of {buffer.topic}")
        if self._is_metadata_new:
            self._is_metadata_new = False
            self.take_up_metadata()
        expiry = self._expire(now)
        refusal = self.source.refuses()
        if refusal is not None:
            self.fail_buffered(refusal)
        pause = min(expiry, self._reports.look(now))
        while True:
            requests, next_due = self._drain(now)
            pause = min(pause, next_due)
            if not requests:
                return pause - now
            for node, taken in requests.items():
                self._loads[node] = self._loads.get(node, 0) + 1
                yield from spawn(self._produce(node, taken), "produce")

    def _produce(self, node: int, taken: list[tuple[PartitionQueue, ProducerBatch]]) -> Flow[None]:
        try:
            yield from self._settlement.produce(node, taken)
        finally:
            self._loads[node] -= 1
            self.wake()

    # Topics

    def _learn_topic(self, buffer: TopicBuffer) -> Flow[None]:
        """Have the metadata of a topic; records that wait for it fail with what a broker says of it."""
        while self.cluster.partitions(buffer.topic) is None:
            refused: list[tuple[ProducerBatch, BaseException]] = []
            try:
                yield from self.cluster.ensure_topic(buffer.topic, self.settings.max_block)
            except DeliveryTimeoutError as late:
                log.info("%s", late)
            except KcodecError as error:
                with self.accumulator.lock:
                    refused = [(record.holder, error) for record in buffer.waiting]
                    buffer.waiting.clear()
            with self.accumulator.lock:
                if not buffer.waiting and not buffer.queues:  # nobody wants it any more: the next one asks anew
                    self.accumulator.topics.pop(buffer.topic, None)
            for holder, failure in refused:
                self._settlement.fail(None, holder, failure)
            if self.accumulator.topics.get(buffer.topic) is not buffer:
                return
        self._is_metadata_new = True
        self.wake()

    def take_up_metadata(self) -> None:
        """New partitions, new leaders, perhaps another topic of the same name."""
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
        for holder, error in failed:
            self._settlement.fail(None, holder, error)

    def _name_topic(self, topic: str, now: float) -> None:
        if now - self._named.get(topic, -_FOREVER) > TOPIC_WANTED_SECONDS:
            self._named[topic] = now
            self.cluster.topics_wanted([topic])

    # Time

    def _expire(self, now: float) -> float:
        """End what is past its deadline; the result is the next deadline."""
        nearest = _FOREVER
        late: list[tuple[PartitionQueue | None, ProducerBatch]] = []
        with self.accumulator.lock:
            for buffer in self.accumulator.topics.values():
                while buffer.waiting and buffer.waiting[0].holder.deadline <= now:
                    late.append((None, buffer.waiting.popleft().holder))
                if buffer.waiting:
                    nearest = min(nearest, buffer.waiting[0].holder.deadline)
            for queue in list(self.accumulator.active):
                while queue.batches and queue.batches[0].deadline <= now:
                    late.append((queue, self.accumulator.take(queue, queue.batches[0])))
                if queue.batches:
                    nearest = min(nearest, queue.batches[0].deadline)
        for queue in self._flying:
            for batch in queue.in_flight:
                if not batch.is_done and batch.deadline <= now:
                    late.append((queue, batch))
                elif not batch.is_done:
                    nearest = min(nearest, batch.deadline)
        for expired_queue, batch in late:
            self._settlement.expire(expired_queue, batch)
        return nearest

    # Draining

    def _drain(self, now: float) -> tuple[dict[int, list[tuple[PartitionQueue, ProducerBatch]]], float]:
        """One request for each broker that can take one now, and when the next batch will be due."""
        requests: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        sizes: dict[int, int] = {}
        nearest = _FOREVER
        with self.accumulator.lock:
            active = self.accumulator.active
            for queue in list(active):
                due = self._due(queue, now)
                if due > now:
                    nearest = min(nearest, due)
                    continue
                node = self._node_for(queue)
                if node is None or self._loads.get(node, 0) >= self.settings.max_in_flight:
                    continue
                size = queue.next_batch.size_in_bytes
                if node in requests and sizes[node] + size > self.settings.max_request_size:
                    continue
                if not self.source.may_send(queue.partition):
                    continue
                sizes[node] = sizes.get(node, 0) + size
                requests.setdefault(node, []).append((queue, self._take(queue, node)))
                if queue in active:  # the others come first next time
                    del active[queue]
                    active[queue] = None
        for taken in requests.values():
            for queue, batch in taken:
                self._seal(queue, batch)
                self._name_topic(batch.topic, now)
        return requests, nearest

    def _due(self, queue: PartitionQueue, now: float) -> float:
        """When the queue's first batch may go: `now` or earlier, later, or not before an event (infinity)."""
        if queue.must_renumber and (queue.in_flight or not self._settlement.renumber(queue)):
            return _FOREVER
        batch = queue.next_batch
        identity = self.source.current
        if identity is None:
            return _FOREVER
        is_numbering = identity.producer_id >= 0 or batch.is_numbered
        if is_numbering and queue.in_flight and not (queue.is_proved and len(queue.in_flight) < IN_FLIGHT_WINDOW):
            return _FOREVER
        if batch.not_before > now:
            return batch.not_before
        if not self._is_hurried(queue, batch) and batch.created + self.settings.linger > now:
            return batch.created + self.settings.linger
        if is_numbering and not batch.is_numbered and queue.identity != identity:
            if queue.in_flight:
                return _FOREVER
            queue.identity, queue.next_sequence, queue.is_proved = identity, 0, False
        return now

    def _is_hurried(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Whether there is no reason to linger."""
        return queue.open is not batch or self.urgent > 0 or self.accumulator.room_wanted > 0

    def _node_for(self, queue: PartitionQueue) -> int | None:
        """Where the queue's next batch goes; None: not now."""
        node = self.cluster.leader(*queue.partition)
        if node is None:
            self.cluster.topics_wanted([queue.partition.topic])
            self.cluster.request_update(f"{queue.partition} has no leader")
            return None
        if node != queue.node:
            if queue.in_flight:
                return None
            queue.node, queue.is_proved = node, False
            queue.forget_probe()
        return node

    def _take(self, queue: PartitionQueue, node: int) -> ProducerBatch:
        batch = self.accumulator.take(queue, queue.next_batch)
        batch.attempts += 1
        queue.in_flight.append(batch)
        self._flying[queue] = None
        return batch

    def _seal(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Number a batch that goes out for the first time, and make its bytes."""
        if queue.identity.producer_id >= 0 and not batch.is_numbered:
            batch.number(queue.identity, queue.next_sequence, self.source.transactional_id is not None)
            batch.close()
            queue.next_sequence = (queue.next_sequence + batch.records_count) & LAST_SEQUENCE
        else:
            batch.close()

    # Endings

    def fail_one(self, batch: ProducerBatch, error: BaseException) -> None:
        """A batch that is in no queue fails."""
        self._settlement.fail(None, batch, error)

    def fail_buffered(self, error: BaseException) -> None:
        """What is not in flight fails: records that wait for metadata, batches, also those to be repeated."""
        self._fail_buffered(lambda _: error)

    def _fail_buffered(self, error_of: Callable[[ProducerBatch], BaseException]) -> None:
        failed: list[tuple[PartitionQueue | None, ProducerBatch]] = []
        with self.accumulator.lock:
            for buffer in self.accumulator.topics.values():
                failed += [(None, record.holder) for record in buffer.waiting]
                buffer.waiting.clear()
            for queue in list(self.accumulator.active):
                while queue.batches:
                    failed.append((queue, self.accumulator.take(queue, queue.batches[0])))
        for queue_of, batch in failed:
            self._settlement.fail(queue_of, batch, error_of(batch))

    def fail_all(self, error: BaseException) -> None:
        """Everything that has not ended fails, in flight or not."""
        self.fail_each(lambda _: error)

    def fail_each(self, error_of: Callable[[ProducerBatch], BaseException]) -> None:
        """As `fail_all`, each batch with an error of its own."""
        self._fail_buffered(error_of)
        for queue in list(self._flying):
            for batch in queue.in_flight:
                if not batch.is_done:
                    self._settlement.fail(queue, batch, error_of(batch))
        with self.accumulator.lock:
            left = list(self.accumulator.unfinished)
        for batch in left:
            self._settlement.fail(None, batch, error_of(batch))
