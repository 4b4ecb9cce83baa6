# SPDX-License-Identifier: Apache-2.0
"""A minimal transaction coordinator in virtual time, for faults that cannot be produced with a real broker.

`World` runs flows against it. It responds to every request with success. `world.plan(api, *actions)` plans faults for
the next requests of that API: an error code, CUT (executed without a response), LOST (not executed, may have been
sent), REFUSED (not sent), HANG (no response within the request timeout), a function of the response, or an exception
(not sent, and then in `failed`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kcodec.cluster.metadata import Cluster, FinalizedFeatures
from kcodec.cluster.values import ClusterTimes, Partition, Topic
from kcodec.errors import DeliveryTimeoutError, RequestTimedOutError, TransportError
from kcodec.flow import ByVersion, Call, Done, Flow, Reply, Signal, Task, wait
from kcodec.network.scheduler import Scheduler
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.messages import metadata, offsets, transactions
from kcodec.transactions.manager import TransactionManager

CUT, LOST, REFUSED, HANG = "cut", "lost", "refused", "hang"
Action = int | str | BaseException | Callable[[Any], Any]
HIGHEST = {"EndTxn": 5, "TxnOffsetCommit": 6, "InitProducerId": 5, "AddPartitionsToTxn": 5, "AddOffsetsToTxn": 4}
HIGHEST |= {"OffsetFetch": 9}
LATENCY = 0.002
ORDERS = TopicPartition("orders", 0)
GROUP = ConsumerGroupMetadata("readers", 3, "member-1")
OFFSETS = {ORDERS: OffsetAndMetadata(5)}
BOTH = pytest.mark.parametrize("version", [1, 2])


@dataclass
class Asked:
    """One request as the broker saw it."""

    time: float
    api: str
    version: int
    request: Any


@dataclass
class Coordinator:
    """The state of one transactional id on a coordinator."""

    state: str = "Empty"
    producer_id: int = 7
    epoch: int = -1
    timeout_ms: int = 0
    #: topic -> those that AddPartitionsToTxn added to the open transaction.
    partitions: dict[str, list[int]] = field(default_factory=dict)
    #: Of the group: (offset, metadata) by partition, and what the open transaction makes of it.
    committed: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    pending: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)


class World:
    """Clock, scheduler, cluster and the broker behind them."""

    def __init__(self, transaction_version: int = 2, request_timeout: float = 5.0) -> None:
        self.now = 1000.0
        self.asked: list[Asked] = []
        self.failed: list[Asked] = []
        self.coordinator = Coordinator()
        self.plans: dict[str, list[Action]] = {}
        #: The state of producers on all leaders: (id, epoch, last sequence, start of the transaction).
        self.producers: list[tuple[int, int, int, int]] = []
        times = ClusterTimes(request_timeout, 300.0, None, lambda attempt, random: 0.1 * 2 ** min(attempt, 3))
        self.cluster = Cluster(lambda: self.now, Random(1), times)
        self.cluster.features = FinalizedFeatures(levels={"transaction.version": transaction_version})
        self.scheduler = Scheduler(lambda: self.now, self)

    def lead(self, *partitions: TopicPartition) -> None:
        """Add leaders of these partitions to the metadata."""
        for topic, number in partitions:
            found = self.cluster.topics.setdefault(topic, Topic(topic))
            found.partitions[number] = Partition(leader=1, leader_epoch=0)

    def plan(self, api: str, *actions: Action) -> None:
        """Plan faults for the next requests of an API, in this order."""
        self.plans.setdefault(api, []).extend(actions)

    def apis(self, *leave_out: str) -> list[str]:
        """Return the requests in order, without FindCoordinator."""
        return [one.api for one in self.asked if one.api not in {"FindCoordinator", *leave_out}]

    # Running

    def spawn(self, flow: Flow[Any]) -> Task[Any]:
        """Start a flow that runs at the same time as others."""
        task = self.scheduler.spawn(flow, "other flow")
        task.when_done(lambda _: None)
        self.scheduler.run_ready()
        return task

    def run(self, flow: Flow[Any], limit: float = 1000.0) -> Any:
        """Run a flow to its end in virtual time; its result, or its error."""
        task = self.spawn(flow)
        self.pass_time(limit, until=lambda: task.done)
        assert task.done, f"the flow still waits after {limit} s"
        if task.error is not None:
            raise task.error
        return task.result

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, event by event."""
        end = self.now + seconds
        self.scheduler.run_ready()
        while not until():
            following = self.scheduler.next_wakeup()
            if following is None or following > end:
                self.now = end
                break
            self.now = max(self.now, following)
            self.scheduler.run_ready()

    # The broker

    def start_call(self, call: Call, done: Done) -> Callable[[], None]:
        """The scheduler's network."""
        api = call.kind.__name__.removesuffix("Request")
        version = min(call.highest, HIGHEST.get(api, 3))
        request = call.request.build(version) if isinstance(call.request, ByVersion) else call.request
        actions = self.plans.get(api, [])
        action: Action = actions.pop(0) if actions else 0
        answer: Any = None
        if isinstance(action, BaseException):
            failure = action
            self.failed.append(Asked(self.now, api, version, request))
            return self.scheduler.call_at(self.now + LATENCY, lambda: done(None, failure)).cancel
        if action != REFUSED:
            self.asked.append(Asked(self.now, api, version, request))
        if action not in {LOST, REFUSED}:
            answer = self._answer(api, version, request, action)
        if action == HANG:
            error: BaseException = RequestTimedOutError(f"{api}: no answer", possibly_sent=True)
            return self.scheduler.call_at(self.now + call.timeout, lambda: done(None, error)).cancel
        if action in {CUT, LOST, REFUSED}:
            cut = TransportError(f"{api}: the connection was cut", possibly_sent=action != REFUSED)
            return self.scheduler.call_at(self.now + LATENCY, lambda: done(None, cut)).cancel
        reply = Reply(answer, version, 1)
        return self.scheduler.call_at(self.now + LATENCY, lambda: done(reply, None)).cancel

    def _answer(self, api: str, version: int, request: Any, action: Action) -> Any:
        code = action if isinstance(action, int) else 0
        answer = getattr(self, f"_{api}")(request, version, code)
        return action(answer) if callable(action) else answer

    def _FindCoordinator(self, request: Any, version: int, code: int) -> Any:
        return metadata.FindCoordinatorResponse(error_code=code, node_id=1, host="broker", port=9092)

    def _InitProducerId(self, request: Any, version: int, code: int) -> Any:
        if code:
            return transactions.InitProducerIdResponse(error_code=code)
        self.coordinator.epoch += 1
        self.coordinator.pending.clear()
        self.coordinator.partitions.clear()
        self.coordinator.state, self.coordinator.timeout_ms = "Empty", request.transaction_timeout_ms
        return transactions.InitProducerIdResponse(
            producer_id=self.coordinator.producer_id, producer_epoch=self.coordinator.epoch
        )

    def _AddPartitionsToTxn(self, request: Any, version: int, code: int) -> Any:
        if not code:
            self.coordinator.state = "Ongoing"
            for topic in request.v3_and_below_topics:
                self.coordinator.partitions.setdefault(topic.name, []).extend(topic.partitions)
        return transactions.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                transactions.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        transactions.AddPartitionsToTxnPartitionResult(
                            partition_index=number, partition_error_code=code
                        )
                        for number in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _AddOffsetsToTxn(self, request: Any, version: int, code: int) -> Any:
        return transactions.AddOffsetsToTxnResponse(error_code=code)

    def _TxnOffsetCommit(self, request: Any, version: int, code: int) -> Any:
        for topic in () if code else request.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                self.coordinator.pending[partition] = one.committed_offset, one.committed_metadata
        return transactions.TxnOffsetCommitResponse(
            topics=[
                transactions.TxnOffsetCommitResponseTopic(
                    name=topic.name if version < 6 else "",
                    topic_id=topic.topic_id,
                    partitions=[
                        transactions.TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _EndTxn(self, request: Any, version: int, code: int) -> Any:
        if code:
            return transactions.EndTxnResponse(error_code=code)
        self.coordinator.state = "CompleteCommit" if request.committed else "CompleteAbort"
        if request.committed:
            self.coordinator.committed.update(self.coordinator.pending)
        self.coordinator.pending.clear()
        self.coordinator.partitions.clear()
        if version < 5:
            return transactions.EndTxnResponse()
        self.coordinator.epoch = request.producer_epoch + 1
        return transactions.EndTxnResponse(
            producer_id=self.coordinator.producer_id, producer_epoch=self.coordinator.epoch
        )

    def _OffsetFetch(self, request: Any, version: int, code: int) -> Any:
        (group,) = request.groups
        (topic,) = group.topics
        (number,) = topic.partition_indexes
        offset, text = self.coordinator.committed.get(TopicPartition(topic.name, number), (-1, ""))
        partition = offsets.OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=offset, metadata=text, error_code=code
        )
        found = offsets.OffsetFetchResponseTopics(name=topic.name, partitions=[partition])
        return offsets.OffsetFetchResponse(
            groups=[offsets.OffsetFetchResponseGroup(group_id=group.group_id, topics=[found])]
        )

    def _DescribeProducers(self, request: Any, version: int, code: int) -> Any:
        known = [
            transactions.ProducerState(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=last_sequence,
                coordinator_epoch=-1,
                current_txn_start_offset=start,
            )
            for producer_id, epoch, last_sequence, start in self.producers
        ]
        return transactions.DescribeProducersResponse(
            topics=[
                transactions.DescribeProducersTopicResponse(
                    name=topic.name,
                    partitions=[
                        transactions.DescribeProducersPartitionResponse(
                            partition_index=number, error_code=code, active_producers=[] if code else known
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _DescribeTransactions(self, request: Any, version: int, code: int) -> Any:
        known = self.coordinator
        return transactions.DescribeTransactionsResponse(
            transaction_states=[
                transactions.DescribedTransactionState(
                    error_code=code,
                    transactional_id=request.transactional_ids[0],
                    transaction_state=known.state,
                    transaction_timeout_ms=known.timeout_ms,
                    producer_id=known.producer_id,
                    producer_epoch=known.epoch,
                    topics=[
                        transactions.DescribedTransactionTopic(topic=topic, partitions=list(partitions))
                        for topic, partitions in known.partitions.items()
                    ],
                )
            ]
        )


class Buffer:
    """Replaces the producer's core. pending: flush waits until it is 0."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pending = 0
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.ended = Signal()
        self.refusal: BaseException | None = None
        self.dropped: BaseException | None = None
        self.is_holding = False

    @property
    def has_unfinished(self) -> bool:
        return self.pending > 0

    def flush(self, timeout: float | None = None, *, without_held: bool = False) -> Flow[None]:
        deadline = self.world.now + (timeout or 0.0)
        while self.pending:
            if self.world.now >= deadline:
                raise DeliveryTimeoutError("flush")
            yield from wait(self.ended, deadline - self.world.now)

    def abort_buffered(self, error: BaseException) -> None:
        self.dropped = error

    def refuse_sends(self, error: BaseException | None) -> None:
        self.refusal = error

    def hold_back(self, until: float) -> None:
        self.is_holding = True

    def release_held(self) -> None:
        self.is_holding = False

    def end(self, count: int = 1) -> None:
        self.pending -= count
        self.ended.set()


def make_manager(world: World, **options: Any) -> TransactionManager:
    """A manager with its background flow and a Buffer."""
    manager = TransactionManager(world.cluster, "orders", **options)
    manager.identity.attach(Buffer(world))
    world.spawn(manager.identity.run())
    return manager


def write(world: World, manager: TransactionManager, partition: int = 0) -> bool:
    """Do what the sender does for one acknowledged batch. Return False if it may not send yet."""
    orders = TopicPartition("orders", partition)
    if not manager.identity.may_send(orders):
        return False
    manager.identity.on_success(orders, 1, 0)
    return True


def begun(world: World, **options: Any) -> TransactionManager:
    """A manager with an open transaction that has one record written."""
    manager = make_manager(world, **options)
    world.run(manager.begin())
    if not write(world, manager):
        world.pass_time(1.0)
        assert write(world, manager)
    return manager
