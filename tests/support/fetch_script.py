# SPDX-License-Identifier: Apache-2.0
"""A consumer's fetcher on scripted brokers in virtual time, with the sessions of KIP-227 as a broker keeps them.

world = FetchScript(nodes=2)
log = world.log("orders")               # partition 0; log.append(values...), log.add(bytes)
world.assign(("orders", 0)); world.run(1.0)
world.fetcher.buffer.take(500)

Every request is encoded and decoded in its version. A log contains whole batches; `answers` defines other responses of
a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from batch_writer import RecordSpec, build_batch
from scripted_broker import Fault, Log, ScriptedCluster, _Outstanding

from kcodec import TopicPartition
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetcher import Fetcher
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import TransportError
from kcodec.flow import ByVersion, Call, Done, Reply
from kcodec.network.metrics import NoMetrics
from kcodec.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
)


@dataclass
class FetchLog(Log):
    """A partition's log as it is served: whole batches at rising offsets."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    #: Producer id, first offset, and the offset of the ABORT marker if a test fetches from an offset after it.
    aborted: list[tuple[int, ...]] = field(default_factory=list)
    stable: int | None = None

    def append_values(self, *values: bytes, **header: Any) -> FetchLog:
        """One batch."""
        header = {"partition_leader_epoch": self.leader_epoch, **header}
        specs = [RecordSpec(value=value) for value in values]
        return self.add(build_batch(specs, base_offset=self.end, **header), len(values))

    def add(self, data: bytes, offsets: int) -> FetchLog:
        """Append bytes that occupy this number of offsets."""
        self.batches.append((self.end, self.end + offsets - 1, data))
        self.end += offsets
        return self

    def read(self, offset: int, most: int) -> bytes:
        """Read as a broker does: from the batch with the offset on, where the first batch is whole and the last one may
        be incomplete."""
        found = b"".join(
            data for base, last, data in self.batches if last >= offset and (self.stable is None or base < self.stable)
        )
        first = next((len(data) for _, last, data in self.batches if last >= offset), 0)
        return found[: max(most, min(first, len(found)))]


@dataclass
class BrokerSession:
    """The state of a fetch session on a broker."""

    epoch: int
    partitions: dict[TopicPartition, FetchPartition]


class FetchScript(ScriptedCluster):
    """fetches: (time, node, version, request) of all requests that arrived.

    data_of(node, partition, asked) -> FetchPartitionData or None: replaces the data of the log. refusals: error codes
    of the next responses. fails: nodes that do not respond to Fetch.
    """

    def __init__(self, *, nodes: int = 1, version: int = 18, seed: int = 0, **settings: Any) -> None:
        super().__init__(nodes=nodes, seed=seed)
        self.version = version
        self.has_topic_ids = version >= 13
        self.fetches: list[tuple[float, int, int, FetchRequest]] = []
        self.refusals: list[int] = []
        self.has_sessions = True
        self.data_of: Callable[[int, TopicPartition, FetchPartition], FetchPartitionData | None] = lambda *_: None
        self.edit: Callable[[FetchResponse], None] = lambda message: None
        self.call_errors: list[BaseException] = []
        self.sessions: dict[tuple[int, int], BrokerSession] = {}
        settings = {"fetch_max_wait": 0.1, "request_timeout": 2.0, **settings}
        self.settings = replace(ConsumerSettings(), **settings)
        self.assignment = Assignment(nullcontext(), self.scheduler.call_soon)
        self.fetcher = Fetcher(self.cluster, self.assignment, self.settings, NoMetrics())
        self.task = self.scheduler.spawn(self.fetcher.run(), "fetcher")

    # Methods for tests.

    def log(self, topic: str = "orders", partitions: int = 1) -> FetchLog:
        """Create a topic and return its first partition."""
        logs = [FetchLog(number % self.nodes + 1) for number in range(partitions)]
        self.topics[topic] = UUID(int=self.random.getrandbits(128)), logs  # type: ignore[assignment]
        return logs[0]

    def logs(self, topic: str = "orders") -> list[FetchLog]:
        return self.topics[topic][1]  # type: ignore[return-value]

    def assign(self, *partitions: tuple[str, int], offset: int = 0) -> None:
        """Assign these partitions from `offset` on, with metadata."""
        found = [TopicPartition(*partition) for partition in partitions]
        self.cluster.add_topics({partition.topic for partition in found})
        self.run(0.1)
        self.assignment.add(found)
        for partition in found:
            self.assignment.seek(partition, offset)

    def state(self, topic: str = "orders", partition: int = 0) -> PartitionState:
        return self.assignment.partitions[TopicPartition(topic, partition)]

    def poll(self, count: int = 500, seconds: float = 0.3) -> list[bytes | None]:
        """Run for some time, and return the values of records."""
        self.run(seconds)
        return [record.value for record in self.fetcher.buffer.take(count)]

    def drain(self, seconds: float = 3.0, count: int = 500) -> list[bytes | None]:
        """Return the values of all records that arrive within some time."""
        found: list[bytes | None] = []
        until = self.now + seconds
        while self.now < until:
            found += [record.value for record in self.fetcher.buffer.take(count)]
            self.run(0.02)
        return found

    @property
    def asked(self) -> list[dict[TopicPartition, int]]:
        """Return the offsets in each request."""
        by_id = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        return [
            {
                TopicPartition(topic.topic or by_id[topic.topic_id], part.partition): part.fetch_offset
                for topic in request.topics
                for part in topic.partitions
            }
            for _, _, _, request in self.fetches
        ]

    # The brokers.

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        if call.kind is not FetchRequest:
            return super().start_call(call, done)
        if self.call_errors:
            error = self.call_errors.pop(0)
            self.scheduler.call_at(self.now + self.latency, lambda: done(None, error))
            return lambda: None
        version = min(self.version, call.highest)
        assert version >= call.lowest
        assert type(call.request) is ByVersion or call.request.session_epoch == -1
        request = call.request.build(version) if type(call.request) is ByVersion else call.request
        request = FetchRequest.decode(request.encode(version), version)
        if call.node not in self.unreachable:
            self.fetches.append((self.now, call.node, version, request))
        chosen = copy(call)
        chosen.request, chosen.highest = request, version
        return super().start_call(chosen, done)

    def _arrived(self, node: int, sent_by: tuple[int, int], outstanding: _Outstanding, fault: Fault) -> None:
        request, version = outstanding.call.request, outstanding.call.highest
        if not isinstance(request, FetchRequest):
            super()._arrived(node, sent_by, outstanding, fault)
            return
        code, session_id, asked = self._opened(node, version, request)
        deadline = self.now + request.max_wait_ms / 1000

        def look() -> None:
            if outstanding.done is None:
                return
            message = FetchResponse(error_code=code) if code else self._full(node, session_id, asked)
            if not code and not any(map(_is_news, _parts(message))) and self.now < deadline:
                self.scheduler.call_at(self.now + 0.01, look)
                return
            if not code and request.session_epoch > 0:
                for topic in message.responses:
                    topic.partitions = [part for part in topic.partitions if _is_news(part)]
                message.responses = [topic for topic in message.responses if topic.partitions]
            self.edit(message)
            answer = FetchResponse.decode(message.encode(version), version)
            self.scheduler.call_at(self.now + self.latency, lambda: reply(answer))

        def reply(message: FetchResponse) -> None:
            if node in self.unreachable:
                outstanding.finish(None, TransportError(f"broker {node} is gone"))
            else:
                self._answered(node, outstanding, Reply(message, version, node))

        look()

    def _opened(
        self, node: int, version: int, request: FetchRequest
    ) -> tuple[int, int, dict[TopicPartition, FetchPartition]]:
        """Error code, session, and the partitions to be served (Kafka: FetchManager.newContext)."""
        if self.refusals:
            return self.refusals.pop(0), 0, {}
        by_id = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        named = {
            TopicPartition(
                topic.topic if version < 13 else by_id.get(topic.topic_id, f"?{topic.topic_id}"), part.partition
            ): part
            for topic in request.topics
            for part in topic.partitions
        }
        key = node, request.session_id
        if request.session_epoch <= 0:
            self.sessions.pop(key, None)
            if request.session_epoch == -1 or not self.has_sessions or version < 7:
                return 0, 0, named
            session_id = self.random.randrange(1, 1 << 31)
            self.sessions[node, session_id] = BrokerSession(1, named)
            return 0, session_id, named
        session = self.sessions.get(key)
        if session is None:
            return 70, 0, {}
        if request.session_epoch != session.epoch:
            return 71, 0, {}
        session.epoch += 1
        for topic in request.forgotten_topics_data:
            name = topic.topic if version < 13 else by_id.get(topic.topic_id, "")
            for number in topic.partitions:
                session.partitions.pop(TopicPartition(name, number), None)
        session.partitions.update(named)
        return 0, request.session_id, session.partitions

    def _full(self, node: int, session_id: int, asked: dict[TopicPartition, FetchPartition]) -> FetchResponse:
        topics: dict[str, FetchableTopicResponse] = {}
        for partition, one in asked.items():
            if partition.topic.startswith("?"):  # a topic id that does not exist, or not any more
                gone = FetchableTopicResponse(topic="", topic_id=UUID(partition.topic[1:]))
                topics.setdefault(partition.topic, gone).partitions.append(error(partition, 100))
                continue
            answer = FetchableTopicResponse(topic=partition.topic, topic_id=self.topics[partition.topic][0])
            topic = topics.setdefault(partition.topic, answer)
            topic.partitions.append(self.data_of(node, partition, one) or self._read(node, partition, one))
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _read(self, node: int, partition: TopicPartition, asked: FetchPartition) -> FetchPartitionData:
        log = self.logs(partition.topic)[partition.partition]
        if log.leader != node:
            return error(partition, 6)
        if 0 <= asked.current_leader_epoch < log.leader_epoch:
            return error(partition, 74)
        if asked.current_leader_epoch > log.leader_epoch:
            return error(partition, 75)
        if not log.start <= asked.fetch_offset <= log.end:
            return error(partition, 1)
        return FetchPartitionData(
            partition_index=partition.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            aborted_transactions=[
                AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first, *marker in log.aborted
                if not marker or marker[0] >= asked.fetch_offset
            ],
            records=log.read(asked.fetch_offset, asked.partition_max_bytes),
        )


def error(partition: TopicPartition, code: int, **fields: Any) -> FetchPartitionData:
    """An error for a partition."""
    fields = {"high_watermark": -1, "records": b"", **fields}
    return FetchPartitionData(partition_index=partition.partition, error_code=code, **fields)


def _parts(message: FetchResponse) -> list[FetchPartitionData]:
    return [part for topic in message.responses for part in topic.partitions]


def _is_news(part: FetchPartitionData) -> bool:
    return bool(part.records or part.error_code or part.preferred_read_replica >= 0 or part.diverging_epoch.epoch >= 0)


def numbered(log: FetchLog, count: int, start: int = 0, per_batch: int = 5) -> list[bytes]:
    """Appends records with their numbers as values."""
    every = [b"%d" % number for number in range(start, start + count)]
    for at in range(0, count, per_batch):
        log.append_values(*every[at : at + per_batch])
    return every
