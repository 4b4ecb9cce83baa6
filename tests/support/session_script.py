# SPDX-License-Identifier: Apache-2.0
"""A group transact session in virtual time, with the coordinator of transaction_script, a membership that a test
controls, and partitions that are read by advancing their position. The requests are in `world.asked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from transaction_script import Action, Buffer, World

from kcodec.cluster.flow_lock import FlowLock
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.group.rebalance import Heartbeat
from kcodec.consumer.known_partitions import KnownPartitions
from kcodec.consumer.options import take_options
from kcodec.errors import TransportError
from kcodec.flow import Flow, Signal, Task, call, sleep, wait
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import groups, offsets
from kcodec.protocol.versions import BrokerVersions
from kcodec.session.block import SessionBlock
from kcodec.session.core import GroupSession
from kcodec.session.end import SessionEnd
from kcodec.session.safety import SessionTimes
from kcodec.transactions.manager import TransactionManager

IN = [TopicPartition("in", 0), TopicPartition("in", 1)]
OUT = TopicPartition("out", 0)
GROUP = "copiers"
BEATS = {
    ErrorCode.NONE: Heartbeat.OK,
    ErrorCode.REBALANCE_IN_PROGRESS: Heartbeat.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID: Heartbeat.LOST,
}


class SessionWorld(World):
    """A world whose transaction coordinator is also the group coordinator."""

    def __init__(self, transaction_version: int = 2, *, has_kip447: bool = True, request_timeout: float = 5.0) -> None:
        super().__init__(transaction_version, request_timeout)
        apis = {28: (0, 5 if has_kip447 else 2), 9: (0, 9 if has_kip447 else 6), 12: (0, 4)}
        self.cluster.versions[1] = BrokerVersions(apis)
        self.committed: dict[TopicPartition, int] = {}
        self.pending: dict[TopicPartition, int] = {}

    def note(self, what: str) -> None:
        """Add a step that is not a request to `asked`."""
        self.asked.append(type("Step", (), {"api": what, "time": self.now, "version": 0, "request": None})())

    def _TxnOffsetCommit(self, request: Any, version: int, code: int) -> Any:
        if not code:
            for topic in request.topics:
                for part in topic.partitions:
                    self.pending[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
        return super()._TxnOffsetCommit(request, version, code)

    def _EndTxn(self, request: Any, version: int, code: int) -> Any:
        if not code:
            if request.committed:
                self.committed |= self.pending
            self.pending = {}
        return super()._EndTxn(request, version, code)

    def _InitProducerId(self, request: Any, version: int, code: int) -> Any:
        if not code:
            self.pending = {}
        return super()._InitProducerId(request, version, code)

    def _Heartbeat(self, request: Any, version: int, code: int) -> Any:
        return groups.HeartbeatResponse(error_code=code)

    def _OffsetFetch(self, request: Any, version: int, code: int) -> Any:
        return offsets.OffsetFetchResponse(error_code=code)


class ScriptedMembership:
    """A `Membership` that is a member from the start. beat: result of a forced heartbeat, else the planned code."""

    def __init__(self, world: SessionWorld) -> None:
        self.world = world
        self.changed = Signal()
        self.group_lock = FlowLock(world.cluster.clock)
        self.error: BaseException | None = None
        self.group_metadata = ConsumerGroupMetadata(GROUP, 5, "member-1", "instance-1")
        self.is_stable = True
        self.beat: Heartbeat | None = None
        self.beats = 0

    def force_heartbeat(self, timeout: float) -> Flow[Heartbeat]:
        self.beats += 1
        if self.beat is not None:
            yield from sleep(0.001)
            return self.beat
        request = groups.HeartbeatRequest(group_id=GROUP, generation_id=5, member_id="member-1")
        try:
            reply = yield from call(1, request, timeout=timeout)
        except TransportError:
            return Heartbeat.UNKNOWN
        return BEATS[reply.message.error_code]

    def request_rejoin(self, reason: str) -> None:
        pass

    def note_poll(self, now: float) -> None:
        pass

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        pass

    def run(self) -> Flow[None]:
        yield from ()

    def leave(self, timeout: float, reason: str) -> Flow[None]:
        yield from ()


class ScriptedCallbacks:
    """The callbacks of the application."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()

    def put(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.waiting.append((function, arguments))

    def call(self, function: Callable[..., Any] | None, *arguments: Any) -> Flow[None]:
        yield from ()
        if function is not None:
            function(*arguments)


_own, _client = take_options({"bootstrap_servers": "a:1", "group_id": GROUP})
SETTINGS = _own.settings(_client)


class ScriptedConsumer:
    """Replaces a `ConsumerCore` with both partitions at offset 10."""

    def __init__(self, world: SessionWorld) -> None:
        self.world = world
        self.assignment = Assignment(nullcontext(), world.scheduler.call_soon)
        self.callbacks: Any = ScriptedCallbacks()
        self.wake = Signal()
        self.known_partitions = KnownPartitions(world.cluster, self.assignment)
        self.settings = SETTINGS
        self.membership: ScriptedMembership | None = ScriptedMembership(world)
        self.committed_offsets = self.fetcher = self.selection = self
        self.dropped: list[TopicPartition] = []
        self.polls = 0
        for partition in IN:
            world.committed[partition] = 10
            self.give(partition)

    def give(self, partition: TopicPartition) -> None:
        """Assign it, at its committed offset."""
        self.assignment.add([partition])
        self.assignment.seek(partition, self.world.committed[partition], 3)
        self.validate()

    def validate(self) -> None:
        """What `Positions` does after a seek."""
        for state in self.assignment.partitions.values():
            state.awaiting = None

    def fetch(self, partitions: Iterable[TopicPartition], timeout: float) -> Flow[Any]:
        yield from call(1, offsets.OffsetFetchRequest(group_id=GROUP), timeout=timeout)
        return {name: OffsetAndMetadata(self.world.committed[name]) for name in partitions}

    def add(self, partitions: Iterable[TopicPartition], *, held_back: bool = False) -> None:
        for partition in partitions:
            self.give(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        self.world.note("removed")
        self.assignment.remove(partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        self.dropped += partitions

    def note_poll(self) -> None:
        self.polls += 1

    def raise_errors(self) -> None:
        if self.membership is not None and self.membership.error is not None:
            raise self.membership.error

    def wait_for_work(self, timeout: float) -> Flow[Any]:
        yield from wait(self.wake, timeout)

    def positions(self) -> dict[TopicPartition, int | None]:
        return {name: state.position for name, state in self.assignment.partitions.items()}


class NotingBuffer(Buffer):
    """The producer's core, whose flush is recorded among the requests."""

    world: SessionWorld

    def flush(self, timeout: float | None = None, *, without_held: bool = False) -> Flow[None]:
        self.world.note("flush")
        yield from super().flush(timeout)


class Script:
    """A session with its world. `read`, `write`, `begin` and `end` are the steps of a block."""

    def __init__(self, world: SessionWorld | None = None, *, times: SessionTimes | None = None) -> None:
        self.world = world or SessionWorld()
        self.manager = TransactionManager(self.world.cluster, "copier-1", transaction_timeout_ms=5000)
        self.buffer = NotingBuffer(self.world)
        self.manager.identity.attach(self.buffer)
        self.world.spawn(self.manager.identity.run())
        self.session = GroupSession(
            self.manager,
            times or SessionTimes(session=45.0, request=5.0),
            GROUP,
        )
        self.consumer = ScriptedConsumer(self.world)
        consumer: Any = self.consumer  # it has the methods of a ConsumerCore that the session needs
        self.session.attach(consumer)
        self.world.spawn(self.session.run())
        assert self.consumer.membership is not None
        self.membership = self.consumer.membership

    def begin(self, timeout: float | None = None) -> SessionBlock:
        block: SessionBlock = self.world.run(self.session.begin(timeout))
        return block

    def read(self, partition: TopicPartition = IN[0], count: int = 5) -> bool:
        """Do what poll does if there are records. Return False if no records may be taken now."""
        block = self.session.block
        if block is None or not self.session.may_take(block):
            return False
        self.consumer.validate()
        state = self.consumer.assignment.partitions.get(partition)
        found = 0
        if state is not None and state.is_fetchable and state.position is not None:
            state.position, state.position_epoch, found = state.position + count, 4, count
        self.session.taken(block, found)
        return found > 0

    def write(self) -> None:
        """Write a record, which is acknowledged."""
        block = self.session.block
        assert block is not None
        block.has_sent = True
        for _ in range(50):
            if self.manager.identity.may_send(OUT):
                self.manager.identity.on_success(OUT, 1, 0)
                return
            self.world.pass_time(0.01)
        raise AssertionError("the record could not be sent")

    def end(
        self, block: SessionBlock, *, is_commit: bool = True, error: BaseException | None = None, timeout: float = 10.0
    ) -> None:
        self.world.run(SessionEnd(self.session, block, timeout).run(is_commit=is_commit, error=error))

    def ending(self, block: SessionBlock, *, is_commit: bool = True, timeout: float = 10.0) -> Task[None]:
        """Start the end of the block while other flows run."""
        return self.world.spawn(SessionEnd(self.session, block, timeout).run(is_commit=is_commit))

    def worked(self, partition: TopicPartition = IN[0]) -> SessionBlock:
        """A transaction that has read and written."""
        block = self.begin()
        assert self.read(partition)
        self.write()
        return block

    def wire(self, *leave_out: str) -> list[str]:
        """Return the requests since the last begin, in order."""
        return self.world.apis("DescribeTransactions", *leave_out)

    def plan(self, api: str, *actions: Action) -> None:
        self.world.plan(api, *actions)

    def rebalanced(self, *added: TopicPartition) -> None:
        """Complete a rebalance that has assigned these partitions."""
        self.world.run(self.session.assign(added, self.session.owned | set(added)))

    def revoke(self, *partitions: TopicPartition) -> Task[None]:
        return self.world.spawn(self.session.revoke(partitions or IN))

    def lose(self, *partitions: TopicPartition) -> Task[None]:
        return self.world.spawn(self.session.lose(partitions or IN))
