# SPDX-License-Identifier: Apache-2.0
"""Brokers in virtual time for tests of flows: metadata, producer ids, and logs that keep the rules of idempotence.

A `ScriptedCluster` responds to calls as `kcodec.network.connections` would, but its time advances only in `run`. Each
partition stores the last five batches of a producer. `faults` is called for every Produce request: it may drop or delay
the request or the response, close the connection, or return an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from kcodec import batches
from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ClusterTimes
from kcodec.errors import RequestTimedOutError, TransportError
from kcodec.flow import Call, Done, Flow, Reply, Task
from kcodec.network.metrics import NoMetrics
from kcodec.network.scheduler import Scheduler
from kcodec.producer.core import ProducerCore
from kcodec.producer.delivery import Delivery
from kcodec.producer.identity import IdempotentProducerId, ProducerIdManager, WithoutProducerId
from kcodec.producer.options import ProducerSettings
from kcodec.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcodec.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kcodec.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

LAST_SEQUENCE = 0x7FFFFFFF
NEVER = float("inf")


@dataclass
class Fault:
    """A fault for one Produce request. delay, answer_delay: additional seconds for the request and the response.

    is_lost: the request never arrives; is_answer_lost: the response never arrives; cuts: the connection breaks (at once
    if the request is lost, else when the response is due) and all requests in flight on it fail; code: the error code
    for every partition, or None. With a code nothing is written, unless is_written: a leader that is replaced while it
    waits.
    """

    is_lost: bool = False
    is_answer_lost: bool = False
    cuts: bool = False
    delay: float = 0.0
    answer_delay: float = 0.0
    code: int | None = None
    is_written: bool = False


@dataclass
class Log:
    """One partition: (value, producer id, epoch, sequence) of each record, and the state of producers."""

    leader: int
    leader_epoch: int = 0
    records: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    most_bytes: int = 1 << 30

    def append(self, data: Any, is_strict: bool) -> tuple[int, int]:
        """(error code, base offset) for one batch."""
        (batch,) = batches(data)
        batch.ensure_valid()
        count = batch.records_count or 0
        if batch.size_in_bytes > self.most_bytes:
            return 10, -1
        first, last = batch.base_sequence, (batch.base_sequence + count - 1) & LAST_SEQUENCE
        if batch.producer_id >= 0:
            epoch, cached = self.producers.get(batch.producer_id, (-1, deque(maxlen=5)))
            if batch.producer_epoch < epoch:
                return 47, -1
            if batch.producer_epoch == epoch:
                for known_first, known_last, offset in cached:
                    if (known_first, known_last) == (first, last):
                        return 0, offset
                if first != (cached[-1][1] + 1) & LAST_SEQUENCE:
                    return 45, -1
            elif first != 0 and (epoch >= 0 or is_strict):
                return 45, -1
            if batch.producer_epoch > epoch:
                cached = deque(maxlen=5)
            self.producers[batch.producer_id] = batch.producer_epoch, cached
            cached.append((first, last, len(self.records)))
        base_offset = len(self.records)
        for index, record in enumerate(batch.records()):
            sequence = (first + index) & LAST_SEQUENCE if first >= 0 else -1
            self.records.append((record.value or b"", batch.producer_id, batch.producer_epoch, sequence))
        return 0, base_offset

    @property
    def values(self) -> list[bytes]:
        return [value for value, *_ in self.records]


class _Outstanding:
    def __init__(self, call: Call, done: Done) -> None:
        self.call = call
        self.done: Done | None = done

    def finish(self, value: Any, error: BaseException | None = None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(value, error)


class ScriptedCluster:
    """Brokers 1 to `nodes`; partition n of a topic begins at broker n % nodes + 1. latency: seconds one way.

    has_late_copies: requests in flight when a connection broke arrive nevertheless. is_strict: the first batch of a
    producer in a partition must have sequence 0.
    """

    def __init__(self, *, nodes: int = 1, latency: float = 0.002, seed: int = 0, has_topic_ids: bool = True) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.nodes = nodes
        self.latency = latency
        self.has_topic_ids = has_topic_ids
        self.is_strict = False
        self.has_late_copies = True
        self.topics: dict[str, tuple[UUID, list[Log]]] = {}
        self.requests: list[tuple[float, int, ProduceRequest]] = []
        self.faults: Callable[[int, ProduceRequest], Fault] = lambda node, request: Fault()
        self.metadata_error: dict[str, int] = {}
        self.record_errors: list[BatchIndexAndErrorMessage] = []
        self.init_answers: list[int] = []
        self.next_producer_id = 1000
        self.unreachable: set[int] = set()
        self.scheduler = Scheduler(lambda: self.now, self)
        self._arrivals: dict[int, float] = {}
        self._answers: dict[int, float] = {}
        self._open: dict[int, list[_Outstanding]] = {}
        self._connections: dict[int, int] = {}
        self._boots = 0
        times = ClusterTimes(5.0, 300.0, None, lambda attempt, random: 0.05)
        self.cluster = Cluster(lambda: self.now, self.random, times)
        self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")

    # The world

    def create_topic(self, name: str, partitions: int = 1) -> list[Log]:
        """A topic, or another of the same name."""
        logs = [Log(number % self.nodes + 1) for number in range(partitions)]
        self.topics[name] = UUID(int=self.random.getrandbits(128)), logs
        return logs

    def move_leader(self, log: Log, node: int) -> None:
        log.leader, log.leader_epoch = node, log.leader_epoch + 1

    def restart(self) -> None:
        """Restart: all connections break, requests in flight are lost, and logs know only the last batch of a
        producer."""
        self._boots += 1
        for node in range(1, self.nodes + 1):
            self.cut(node)
        for _, logs in self.topics.values():
            for log in logs:
                for producer_id, (epoch, cached) in log.producers.items():
                    log.producers[producer_id] = epoch, deque(list(cached)[-1:], maxlen=5)

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        until = self.now + seconds
        self.scheduler.run_ready()
        while (when := self.scheduler.next_wakeup()) is not None and when <= until:
            self.now = max(when, self.now)
            self.scheduler.run_ready()
        self.now = until

    def run_flow(self, flow: Flow[Any], seconds: float = 1000.0) -> Any:
        """Run a flow to its end."""
        task: Task[Any] = self.scheduler.spawn(flow, "test")
        task.when_done(lambda _: None)
        until = self.now + seconds
        while not task.done and self.now < until:
            self.run(min(0.05, until - self.now))
        assert task.done, f"the flow did not end within {seconds} s"
        if task.error is not None:
            raise task.error
        return task.result

    # Calls

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        """As the network does it."""
        outstanding = _Outstanding(call, done)
        node = call.node if call.node >= 0 else self.random.randrange(self.nodes) + 1
        if node in self.unreachable:
            error = TransportError(f"broker {node} cannot be reached")
            self.scheduler.call_at(self.now + self.latency, lambda: outstanding.finish(None, error))
            return lambda: None
        self._open.setdefault(node, []).append(outstanding)
        fault = Fault()
        if isinstance(call.request, ProduceRequest):
            self.requests.append((self.now, node, call.request))
            fault = self.faults(node, call.request)
        arrival = max(self.now + self.latency + fault.delay, self._arrivals.get(node, 0.0))
        self._arrivals[node] = arrival
        self.scheduler.call_at(self.now + call.timeout, lambda: self._timed_out(node, outstanding))
        if arrival == NEVER:
            return lambda: None
        if fault.is_lost:
            self._arrivals[node] = NEVER  # requests on a connection are ordered: later ones do not arrive either
            if fault.cuts:
                self.scheduler.call_at(arrival, lambda: self.cut(node))
        else:
            connection = self._boots, self._connections.get(node, 0)
            self.scheduler.call_at(arrival, lambda: self._arrived(node, connection, outstanding, fault))
        return lambda: None

    def cut(self, node: int) -> None:
        """Break the connection to a broker. Requests in flight arrive nevertheless."""
        outstanding, self._open[node] = self._open.get(node, []), []
        self._arrivals[node] = self._answers[node] = 0.0
        self._connections[node] = self._connections.get(node, 0) + 1
        for one in outstanding:
            one.finish(None, TransportError(f"broker {node}: the connection was closed", possibly_sent=True))

    def _timed_out(self, node: int, outstanding: _Outstanding) -> None:
        if outstanding.done is not None and outstanding in self._open.get(node, []):
            self._open[node].remove(outstanding)
            outstanding.finish(None, RequestTimedOutError(f"broker {node}: no answer", possibly_sent=True))
            self.cut(node)

    def _arrived(self, node: int, sent_by: tuple[int, int], outstanding: _Outstanding, fault: Fault) -> None:
        is_late = sent_by != (self._boots, self._connections.get(node, 0))
        if is_late and (sent_by[0] != self._boots or not self.has_late_copies):
            return
        message = self._answer(node, outstanding.call.request, fault)
        if is_late:
            return
        due = max(self.now + self.latency + fault.answer_delay, self._answers.get(node, 0.0))
        self._answers[node] = due
        version = min(13 if self.has_topic_ids else 12, outstanding.call.highest)
        if due == NEVER or fault.is_answer_lost:
            self._answers[node] = NEVER
            if fault.cuts:
                self.scheduler.call_at(due, lambda: self.cut(node))
            return
        reply = Reply(message, version, node) if outstanding.call.expects_reply else None
        self.scheduler.call_at(due, lambda: self._answered(node, outstanding, reply))

    def _answered(self, node: int, outstanding: _Outstanding, reply: Reply | None) -> None:
        if outstanding in self._open.get(node, []):
            self._open[node].remove(outstanding)
        outstanding.finish(reply)

    def _answer(self, node: int, request: Any, fault: Fault) -> Any:
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        if isinstance(request, InitProducerIdRequest):
            code = self.init_answers.pop(0) if self.init_answers else 0
            self.next_producer_id += 1
            if code:
                return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
            return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)
        assert isinstance(request, ProduceRequest)
        return self._produced(node, request, fault)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(node_id=node, host=f"broker{node}", port=9092) for node in range(1, self.nodes + 1)
        ]
        found = []
        for wanted in request.topics or []:
            code = self.metadata_error.get(wanted.name or "", 0)
            if code or wanted.name not in self.topics:
                found.append(MetadataResponseTopic(name=wanted.name, error_code=code or 3))
                continue
            topic_id, logs = self.topics[wanted.name]
            parts = [
                MetadataResponsePartition(partition_index=n, leader_id=log.leader, leader_epoch=log.leader_epoch)
                for n, log in enumerate(logs)
            ]
            topic_id = topic_id if self.has_topic_ids else UUID(int=0)
            found.append(MetadataResponseTopic(name=wanted.name, topic_id=topic_id, partitions=parts))
        return MetadataResponse(brokers=brokers, cluster_id="scripted", controller_id=1, topics=found)

    def _produced(self, node: int, request: ProduceRequest, fault: Fault) -> ProduceResponse:
        by_id = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        responses = []
        for topic in request.topic_data:
            name = by_id.get(topic.topic_id) if self.has_topic_ids else topic.name
            parts = []
            for data in topic.partition_data:
                logs = self.topics[name][1] if name in self.topics else []
                if fault.code is not None:
                    if fault.is_written and logs[data.index].leader == node:
                        logs[data.index].append(data.records, self.is_strict)
                    code, offset = fault.code, -1
                elif name is None:
                    code, offset = 100, -1
                elif data.index >= len(logs):
                    code, offset = 3, -1
                elif logs[data.index].leader != node:
                    code, offset = 6, -1
                else:
                    code, offset = logs[data.index].append(data.records, self.is_strict)
                errors = self.record_errors if code else []
                parts.append(
                    PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=offset, record_errors=errors
                    )
                )
            responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts))
        return ProduceResponse(responses=responses)


class Rig:
    """A producer's core on a scripted cluster."""

    def __init__(
        self,
        world: ScriptedCluster,
        *,
        source: ProducerIdManager | None = None,
        idempotent: bool = True,
        metrics: Any = None,
        **settings: Any,
    ) -> None:
        self.world = world
        settings.setdefault("retry_backoff", lambda attempt, random: min(0.1 * 2**attempt, 1.0))
        self.settings = replace(ProducerSettings(), **settings)
        if source is None and idempotent:
            source = IdempotentProducerId(
                request_timeout=5.0, backoff=lambda attempt, random: 0.1, random=world.random.random
            )
        self.source = source or WithoutProducerId()
        self.room_calls = 0
        self.core = ProducerCore(
            self.settings,
            world.cluster,
            self.source,
            clock=lambda: world.now,
            random=world.random.random,
            metrics=metrics or NoMetrics(),
            lock=nullcontext(),
            new_delivery=Delivery,
            post=world.scheduler.call_soon,
            on_space=self._on_space,
        )
        self.task = world.scheduler.spawn(self.core.run(), "producer")

    def _on_space(self) -> None:
        self.room_calls += 1

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int | None = None
    ) -> Delivery:
        delivery: Delivery | None = self.core.append(topic, key, value, (), partition, int(self.world.now * 1000))
        assert delivery is not None, "no room"
        return delivery

    def flush(self, seconds: float = 1000.0) -> None:
        self.world.run_flow(self.core.flush(), seconds)


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def faults_for(*faults: Fault) -> Callable[[int, ProduceRequest], Fault]:
    """Return a function that applies these faults to the first requests, and none to the others."""
    left = list(faults)
    return lambda node, request: left.pop(0) if left else Fault()


def send_apart(rig: Rig, topic: str, records: list[bytes]) -> list[Delivery]:
    """Send each record in a separate batch, so that many are in flight."""
    sent = []
    for value in records:
        sent.append(rig.send(topic, value, partition=0))
        rig.core.accumulator.topics[topic].queues[0].open = None
        rig.core.sender.wake()
    return sent


def started(world: ScriptedCluster, topic: str = "orders", **settings: Any) -> Rig:
    """Return a rig with the metadata of the topic and one acknowledged batch."""
    rig = Rig(world, **settings)
    rig.send(topic, b"first", partition=0)
    rig.flush()
    return rig
