# SPDX-License-Identifier: Apache-2.0
"""A cluster in virtual time for the flows of Admin. Its metadata may change at any moment, and a test defines the
responses of each API.

    script = AdminScript(nodes=3)
    script.topics["orders"] = {0: 1, 1: 2}                       # partition -> leader
    script.epochs["orders", 0], script.topic_ids["orders"] = 3, UUID(int=7)
    script.answers["ListOffsets"] = function(node, request) -> response, an exception, or None for no response at all
    script.run(flow) -> its result
    script.asked == [("ListOffsets", 1), ...]                    # without Metadata and FindCoordinator

Every message is encoded and decoded, at the highest version that the caller and the class allow.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import CallContext
from kcodec.cluster.values import ClusterTimes
from kcodec.errors import RequestTimedOutError, TransportError, UnsupportedError
from kcodec.flow import ByVersion, Call, Done, Flow, Reply
from kcodec.network.options import ClientConfig
from kcodec.network.scheduler import Scheduler
from kcodec.protocol import messages

T = TypeVar("T")
Answerer = Callable[[int, Any], Any]
LATENCY = 0.01


class AdminScript:
    def __init__(self, nodes: int = 3) -> None:
        self.now = 0.0
        self.nodes = set(range(1, nodes + 1))
        self.down: set[int] = set()
        self.controller = 1
        self.topics: dict[str, dict[int, int]] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.versions: list[tuple[str, int]] = []
        self.coordinators: dict[str, int] = {}
        self.coordinator_errors: dict[str, int] = {}
        self.answers: dict[str, Answerer] = {}
        self.highest: dict[str, int] = {}
        self.silent: set[str] = set()
        self.latency = LATENCY
        self.asked: list[tuple[str, int]] = []
        self.requests: list[Any] = []
        random = Random(1)
        options = ClientConfig(bootstrap_servers="scripted:9092")
        times = ClusterTimes(30.0, 300.0, None, options.retry_backoff)
        self.cluster = Cluster(lambda: self.now, random, times)
        self.cluster.allow_auto_topic_creation = False
        self.scheduler = Scheduler(lambda: self.now, self)
        self.scheduler.spawn(self.cluster.keep_fresh(), "metadata")
        self.cluster.request_update("start")
        self.context = CallContext(self.cluster, options.default_api_timeout_ms / 1000, lambda: int(self.now * 1000))

    def run(self, flow: Flow[T]) -> T:
        task = self.scheduler.spawn(flow, "test")
        self.scheduler.run_ready()
        while not task.done:
            when = self.scheduler.next_wakeup()
            assert when is not None, "the flow waits for nothing that will come"
            assert when < 3600
            self.now = when
            self.scheduler.run_ready()
        if task.error is not None:
            raise task.error
        return task.result  # type: ignore[return-value]

    # The network.

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        kind = call.request.kind if isinstance(call.request, ByVersion) else type(call.request)
        api = kind.__name__.removesuffix("Request")
        version = min(call.highest, kind.versions.last, self.highest.get(api, 32767))
        node = call.node if call.node >= 0 else min(self.nodes - self.down)

        def end(value: Any, error: BaseException | None, after: float) -> None:
            self.scheduler.call_at(self.now + after, lambda: done(value, error))

        if version < max(call.lowest, kind.versions.first):
            end(None, UnsupportedError(f"{api} at least version {call.lowest}"), 0.0)
        elif node in self.down or node not in self.nodes:
            end(None, TransportError(f"broker {node} cannot be reached"), self.latency)
        else:
            request = call.request.build(version) if isinstance(call.request, ByVersion) else call.request
            self.versions.append((api, version))
            answer = self._answer(api, node, kind.decode(request.encode(version), version))
            if answer is None:
                end(None, RequestTimedOutError(f"no answer to {api}", possibly_sent=True), call.timeout)
            elif isinstance(answer, BaseException):
                end(None, answer, self.latency)
            else:
                decoded = type(answer).decode(answer.encode(version), version)
                end(Reply(decoded, version, call.node), None, self.latency)
        return lambda: None

    def _answer(self, api: str, node: int, request: Any) -> Any:
        if api in self.silent:
            return None
        if api == "FindCoordinator":
            found = [
                messages.Coordinator(
                    key=key,
                    error_code=self.coordinator_errors.get(key, 0),
                    node_id=self.coordinators.get(key, 1),
                    host="scripted",
                    port=9092,
                )
                for key in request.coordinator_keys or [request.key]
            ]
            if request.coordinator_keys:
                return messages.FindCoordinatorResponse(coordinators=found)
            (one,) = found
            return messages.FindCoordinatorResponse(
                error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port
            )
        if api == "Metadata" and "Metadata" not in self.answers:
            return self._metadata(request)
        self.asked.append((api, node))
        self.requests.append(request)
        return self.answers[api](node, request)

    def _metadata(self, request: Any) -> Any:
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return messages.MetadataResponse(
            brokers=[messages.MetadataResponseBroker(node_id=node, host="scripted", port=9092) for node in self.nodes],
            controller_id=self.controller,
            topics=[
                messages.MetadataResponseTopic(
                    name=name,
                    topic_id=self.topic_ids.get(name, UUID(int=0)),
                    error_code=0 if name in self.topics else 3,
                    partitions=[
                        messages.MetadataResponsePartition(
                            partition_index=number,
                            leader_id=leader,
                            leader_epoch=self.epochs.get((name, number), -1),
                            replica_nodes=[leader],
                            isr_nodes=[leader],
                        )
                        for number, leader in self.topics.get(name, {}).items()
                    ],
                )
                for name in names
            ],
        )
