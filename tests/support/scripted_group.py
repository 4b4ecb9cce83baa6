# SPDX-License-Identifier: Apache-2.0
"""A classic group in virtual time: a coordinator that keeps Kafka's rules, connections that keep their order, members.

Each member has a separate scheduler and cluster, as a client has. `faults(client, request)` is called for every request
to the coordinator: it may return an error code, drop the request or its response, or delay it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from model_group import Answer, ModelGroup

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import ClusterTimes
from kcodec.consumer.group.classic.membership import ClassicMembership
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import RequestTimedOutError, TransportError, UnsupportedError
from kcodec.flow import ByVersion, Call, Done, Flow, Reply, Signal, Task, sleep, wait
from kcodec.network.scheduler import Scheduler
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages import groups
from kcodec.protocol.messages.auth import ApiVersionsRequest, ApiVersionsResponse
from kcodec.protocol.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

LATENCY = 0.002


@dataclass
class Fault:
    """A fault for a request. code: the error code of the response, and the coordinator gets no request; is_lost: the
    request never arrives; is_answer_lost: the response never arrives; delay: additional seconds for the request; cuts:
    the connection breaks after the request was handled; with is_lost, before it is handled."""

    code: int | None = None
    is_lost: bool = False
    is_answer_lost: bool = False
    delay: float = 0.0
    cuts: bool = False


RESPONSES: dict[Any, Any] = {
    groups.JoinGroupRequest: groups.JoinGroupResponse,
    groups.SyncGroupRequest: groups.SyncGroupResponse,
    groups.HeartbeatRequest: groups.HeartbeatResponse,
    groups.LeaveGroupRequest: groups.LeaveGroupResponse,
    ApiVersionsRequest: ApiVersionsResponse,
}


class GroupWorld:
    """Time, topics, the coordinator, and its clients. requests: (time, client, request, channel), as they were sent."""

    def __init__(self, seed: int = 0, **topics: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.topics = dict(topics or {"t": 4})
        self.group = ModelGroup(self)
        self.initial_delay = 0.05
        self.requests: list[tuple[float, str, Any, str]] = []
        self.faults: Callable[[str, Any], Fault] = lambda client, request: Fault()
        self.find_codes: list[int] = []
        self.rewrite: dict[type, dict[str, Any]] = {}
        self.spoil_metadata: bytes | None = None
        self.topic_errors: dict[str, int] = {}
        self.highest: dict[type, int] = {}
        self.clients: list[GroupClient] = []
        self.server = Scheduler(lambda: self.now, NoNetwork())
        self._tick()

    def _tick(self) -> None:
        self.group.tick()
        self.server.call_at(self.now + 0.05, self._tick)

    def client(self, name: str, topics: Iterable[str] = ("t",), **settings: Any) -> GroupClient:
        """A member that subscribes, and polls all the time."""
        made = GroupClient(self, name, **settings)
        self.clients.append(made)
        if topics:
            made.membership.subscribe(topics)
        return made

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        until = self.now + seconds
        while True:
            schedulers = [self.server, *(client.scheduler for client in self.clients)]
            for scheduler in schedulers:
                scheduler.run_ready()
            due = [when for scheduler in schedulers if (when := scheduler.next_wakeup()) is not None]
            if not due or min(due) > until:
                break
            self.now = max(self.now, min(due))
        self.now = until

    def run_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        until = self.now + seconds
        while not condition():
            assert self.now < until, f"not within {seconds} s"
            self.run(0.01)

    def sent(self, kind: type, client: str | None = None) -> list[Any]:
        return [request for _, who, request, _ in self.requests if type(request) is kind and client in (None, who)]

    def run_until_stable(self, seconds: float = 60.0) -> None:
        """Run until all members are stable in one generation, and every partition is owned."""
        live = [client for client in self.clients if client.is_alive]
        wanted = {TopicPartition(name, n) for name, count in self.topics.items() for n in range(count)}
        wanted = {one for one in wanted if any(c.membership.topics.accepts(one.topic) for c in live)}

        def is_reconciled() -> bool:
            owned = [one for client in live for one in client.owned]
            return all(client.membership.is_stable for client in live) and sorted(owned) == sorted(wanted)

        self.run_until(is_reconciled, seconds)

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = sorted(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        rows = []
        for name in names:
            assert name is not None
            code = self.topic_errors.get(name, 0 if name in self.topics else 3)
            parts = [
                MetadataResponsePartition(partition_index=n, leader_id=1, leader_epoch=0, replica_nodes=[1])
                for n in range(0 if code else self.topics[name])
            ]
            rows.append(MetadataResponseTopic(name=name, error_code=code, partitions=parts))
        broker = MetadataResponseBroker(node_id=1, host="broker", port=9092)
        return MetadataResponse(brokers=[broker], cluster_id="model", controller_id=1, topics=rows)


class NoNetwork:
    """The network of a scheduler without calls."""

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        raise AssertionError(call)


class GroupClient:
    """One client with one membership, of which it is also the handler. events: the callbacks, in order."""

    def __init__(self, world: GroupWorld, name: str, **settings: Any) -> None:
        self.world = world
        self.name = name
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.has: set[TopicPartition] = set()
        self.is_alive = True
        self.is_polling = True
        self.revoke_seconds = 0.0
        self.polled = Signal()
        self.metadata_requests: list[MetadataRequest] = []
        self.finds = 0
        self._queues: dict[str, list[Callable[[], None]]] = {}
        self.scheduler = Scheduler(lambda: world.now, self)
        times = ClusterTimes(5.0, 30.0, None, lambda attempt, random: 0.05)
        self.cluster = Cluster(lambda: world.now, world.random, times)
        self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")
        settings.setdefault("retry_backoff", lambda attempt, random: 0.05)
        settings.setdefault("session_timeout", 10.0)
        settings.setdefault("max_poll_interval", 60.0)
        settings.setdefault("request_timeout", 5.0)
        settings.setdefault("heartbeat_interval", 1.0)
        settings.setdefault("group_id", "g")
        self.membership = ClassicMembership(
            self.cluster,
            ConsumerSettings(**settings),
            self,
        )
        self.task: Task[None] = self.scheduler.spawn(self.membership.run(), "membership")
        self.poller = self.scheduler.spawn(self._poll(), "polls")

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self.has)

    def _poll(self) -> Flow[None]:
        while True:
            yield from sleep(0.1)
            if self.is_polling:
                self.membership.note_poll(self.world.now)
                self.polled.set()

    # The handler.

    def until_polled(self) -> Flow[None]:
        yield from wait(self.polled)

    def revoke(self, partitions: Iterable[TopicPartition], deadline: float | None = None) -> Flow[None]:
        gone = sorted(partitions)
        assert set(gone) <= self.has
        yield from sleep(self.revoke_seconds)
        self.has -= set(gone)
        self.events.append(("revoke", gone))

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        yield from ()
        gone = sorted(partitions)
        self.has -= set(gone)
        self.events.append(("lose", gone))

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        yield from ()
        added = sorted(added)
        assert not set(added) & self.has
        assert set(owned) == self.has | set(added)
        self.has |= set(added)
        self.events.append(("assign", added))
        self._check_alone(added)

    def _check_alone(self, added: list[TopicPartition]) -> None:
        """Check that no other member of this generation owns any of these partitions."""
        mine = self.membership.member.generation
        for other in self.world.clients:
            theirs = other.membership.member.generation
            if (
                other is not self
                and other.is_alive
                and theirs.id == mine.id
                and theirs.member_id in self.world.group.members
            ):
                assert not other.has & set(added), f"{self.name} and {other.name} both have {other.has & set(added)}"

    # Methods for tests.

    def reported(self, what: str) -> list[list[TopicPartition]]:
        return [partitions for name, partitions in self.events if name == what]

    def flow(self, flow: Flow[Any], seconds: float = 30.0) -> Any:
        """Run a flow of this client to its end."""
        task = self.scheduler.spawn(flow, "test")
        task.when_done(lambda _: None)
        self.world.run_until(lambda: task.done, seconds)
        if task.error is not None:
            raise task.error
        return task.result

    def kill(self) -> None:
        """Stop as a killed process does: no further request is sent."""
        self.is_alive = False
        self.has.clear()
        self.scheduler.cancel_all()

    # The network

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        kind = call.kind
        version = min(self.world.highest.get(kind, kind.versions.last), call.highest)
        ended: list[bool] = []

        def finish(value: Any, error: BaseException | None = None) -> None:
            if not ended:
                ended.append(True)
                timer.cancel()
                done(value, error)

        if version < call.lowest:
            timer = self.scheduler.call_at(self.world.now, lambda: None)
            self.scheduler.call_soon(lambda: finish(None, UnsupportedError("too old")))
            return lambda: None
        request = call.request.build(version) if type(call.request) is ByVersion else call.request
        request.encode(version)
        late = RequestTimedOutError("no answer in time", possibly_sent=True)
        timer = self.scheduler.call_at(self.world.now + call.timeout, lambda: self._cut(call.channel, finish, late))
        fault = Fault()
        if type(request) is MetadataRequest:
            self.metadata_requests.append(request)
        self.finds += type(request) is FindCoordinatorRequest
        if type(request) in RESPONSES:
            if type(request) is not ApiVersionsRequest:
                self.world.requests.append((self.world.now, self.name, request, call.channel))
            fault = self.world.faults(self.name, request)
        self._enqueue(call.channel, request, version, fault, finish)
        return lambda: ended.append(True)

    def _cut(self, channel: str, finish: Done, error: BaseException) -> None:
        self._queues.pop(channel, None)
        finish(None, error)

    def _enqueue(self, channel: str, request: Any, version: int, fault: Fault, finish: Done) -> None:
        """Process one request of a connection at a time, as Kafka's brokers do."""
        queue = self._queues.setdefault(channel, [])
        closed = TransportError("the connection was closed", possibly_sent=True)

        def answered(message: Any) -> None:
            for name, value in self.world.rewrite.get(type(request), {}).items():
                if not message.error_code:
                    setattr(message, name, value)
            if queue and queue[0] is begin:
                queue.pop(0)
                if queue:
                    queue[0]()
            if fault.cuts:
                finish(None, closed)
            elif not fault.is_answer_lost:
                self.scheduler.call_at(self.world.now + LATENCY, lambda: finish(Reply(message, version, 1), None))

        def begin() -> None:
            if fault.is_lost and fault.cuts:
                self.scheduler.call_at(self.world.now + LATENCY, lambda: self._cut(channel, finish, closed))
            elif not fault.is_lost:
                delay = LATENCY + fault.delay
                self.world.server.call_at(self.world.now + delay, lambda: self._arrive(request, fault, answered))

        queue.append(begin)
        if queue[0] is begin:
            begin()

    def _arrive(self, request: Any, fault: Fault, answered: Answer) -> None:
        if fault.code is not None:
            return answered(RESPONSES[type(request)](error_code=fault.code))
        if isinstance(request, MetadataRequest):
            return answered(self.world.metadata(request))
        if isinstance(request, ApiVersionsRequest):
            return answered(ApiVersionsResponse())
        if isinstance(request, FindCoordinatorRequest):
            code = self.world.find_codes.pop(0) if self.world.find_codes else 0
            row = Coordinator(key="g", node_id=-1 if code else 1, host="broker", port=9092, error_code=code)
            return answered(FindCoordinatorResponse(coordinators=[row]))
        return self.world.group.answer(request, answered)
