# SPDX-License-Identifier: Apache-2.0
"""A consumer's positions on a scripted cluster in virtual time: logs with ends and leader epochs, a group's offsets.

world = PositionScript(auto_offset_reset="earliest")
world.log("orders", 0, start=3, end=10)
world.assign(A); world.run_until_idle(); world.at(A) == 3
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from admin_script import AdminScript

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.consumer.assignment import RESET, Assignment, PartitionState
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.options import ConsumerSettings
from kcodec.consumer.positions import Positions
from kcodec.flow import Flow
from kcodec.protocol import messages

T = TypeVar("T")
WALL = 1_000_000_000


@dataclass
class Log:
    """A log of a leader. epochs: leader epoch -> the offset after its last record; times: time -> offset."""

    start: int = 0
    end: int = 10
    stable: int | None = None
    epochs: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)


class PositionScript(AdminScript):
    """code_of(api, node, partition): an error code for the response; None for no response at all."""

    def __init__(self, *, group: str | None = "g", **settings: Any) -> None:
        super().__init__()
        self.logs: dict[TopicPartition, Log] = {}
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.code_of: Callable[[str, int, TopicPartition], int | None] = lambda api, node, partition: 0
        self.coordinators = {"g": 3}
        self.answers["ListOffsets"] = self._list_offsets
        self.answers["OffsetForLeaderEpoch"] = self._epoch_ends
        self.answers["OffsetFetch"] = self._committed
        found = replace(ConsumerSettings(), group_id=group, **settings)
        self.assignment = Assignment(nullcontext(), self.scheduler.call_soon)
        committed = CommittedOffsets(self.cluster, group, found) if group else None
        self.positions = Positions(
            self.cluster,
            self.assignment,
            committed,
            found,
            now=lambda: WALL + int(self.now * 1000),
        )
        self.task = self.scheduler.spawn(self.positions.run(), "positions")

    def log(self, partition: TopicPartition, leader: int = 1, epoch: int = -1, **fields: Any) -> Log:
        self.topics.setdefault(partition.topic, {})[partition.partition] = leader
        self.epochs[partition] = epoch
        self.logs[partition] = Log(**fields)
        return self.logs[partition]

    def assign(self, *partitions: TopicPartition) -> None:
        self.assignment.add(partitions)

    def state(self, partition: TopicPartition) -> PartitionState:
        return self.assignment.partitions[partition]

    def out_of_range(self, partition: TopicPartition) -> None:
        """Report to the positions that the log does not have the position of a partition, as the fetcher does."""
        state = self.state(partition)
        state.awaiting, state.reset_to = RESET, None
        self.assignment.changed.set()

    def at(self, partition: TopicPartition) -> int | None:
        state = self.state(partition)
        assert state.awaiting is None or state.error is not None, state
        return state.position

    def move(self, partition: TopicPartition, leader: int, epoch: int) -> None:
        """Change the leader of a partition, which the metadata shows soon."""
        self.topics[partition.topic][partition.partition] = leader
        self.epochs[partition] = epoch
        self.cluster.request_update("moved")

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        self.scheduler.run_ready()
        while (when := self.scheduler.next_wakeup()) is not None and when <= until:
            self.now = max(when, self.now)
            self.scheduler.run_ready()
        self.now = until

    def run_until_idle(self, seconds: float = 100.0) -> None:
        """Run until no flow waits."""
        until = self.now + seconds
        self.scheduler.run_ready()
        while self.now < until and self.is_waiting():
            when = self.scheduler.next_wakeup()
            assert when is not None
            self.now = max(when, self.now)
            self.scheduler.run_ready()
        assert not self.is_waiting(), list(self.assignment.partitions.values())

    def run_flow(self, flow: Flow[T]) -> T:
        """Run a flow to its end, while the flow of the positions runs."""
        task = self.scheduler.spawn(flow, "test")
        task.when_done(lambda _: None)
        self.scheduler.run_ready()
        while not task.done:
            when = self.scheduler.next_wakeup()
            assert when is not None
            self.now = max(when, self.now)
            self.scheduler.run_ready()
        if task.error is not None:
            raise task.error
        return task.result  # type: ignore[return-value]

    def is_waiting(self) -> bool:
        return any(state.awaiting and state.error is None for state in self.assignment.partitions.values())

    # Responses of brokers.

    def _code(self, api: str, node: int, partition: TopicPartition) -> int | None:
        code = self.code_of(api, node, partition)
        if code == 0 and partition not in self.logs:
            return 3
        return 6 if code == 0 and self.topics[partition.topic][partition.partition] != node else code

    def _parts(self, api: str, node: int, topics: Any, part: Callable[[TopicPartition, Any, int], Any]) -> Any:
        """Return (name, partitions) of a response; None if there is no response for one of them."""
        found = []
        for topic in topics:
            name, parts = getattr(topic, "name", None) or topic.topic, []
            for one in topic.partitions:
                number = getattr(one, "partition_index", None)
                partition = TopicPartition(name, one.partition if number is None else number)
                if (code := self._code(api, node, partition)) is None:
                    return None
                parts.append(part(partition, one, code))
            found.append((name, parts))
        return found

    def _list_offsets(self, node: int, request: Any) -> Any:
        def part(partition: TopicPartition, one: Any, code: int) -> Any:
            offset, epoch = -1, self.epochs.get(partition, -1)
            if not code and 0 <= one.current_leader_epoch < epoch:
                code = 74
            if not code:
                log = self.logs[partition]
                stable = log.end if log.stable is None else log.stable
                ends = {-1: stable if request.isolation_level else log.end, -2: log.start}
                later = [at for time, at in sorted(log.times.items()) if time >= one.timestamp]
                offset = ends.get(one.timestamp, later[0] if later else -1)
            return messages.ListOffsetsPartitionResponse(
                partition_index=partition.partition, error_code=code, offset=offset, leader_epoch=epoch
            )

        found = self._parts("ListOffsets", node, request.topics, part)
        if found is None:
            return None
        reported = [messages.ListOffsetsTopicResponse(name=name, partitions=parts) for name, parts in found]
        return messages.ListOffsetsResponse(topics=reported)

    def _epoch_ends(self, node: int, request: Any) -> Any:
        def part(partition: TopicPartition, one: Any, code: int) -> Any:
            epoch, end = -1, -1
            if not code and 0 <= one.current_leader_epoch < self.epochs[partition]:
                code = 74
            if not code:
                known = [(at, stop) for at, stop in self.logs[partition].epochs.items() if at <= one.leader_epoch]
                epoch, end = max(known, default=(-1, -1))
            return messages.EpochEndOffset(
                partition=partition.partition, error_code=code, leader_epoch=epoch, end_offset=end
            )

        found = self._parts("OffsetForLeaderEpoch", node, request.topics, part)
        if found is None:
            return None
        reported = [messages.OffsetForLeaderTopicResult(topic=name, partitions=parts) for name, parts in found]
        return messages.OffsetForLeaderEpochResponse(topics=reported)

    def _committed(self, node: int, request: Any) -> Any:
        (group,) = request.groups
        topics, group_code = [], 0
        for topic in group.topics:
            parts = []
            for number in topic.partition_indexes:
                partition = TopicPartition(topic.name, number)
                code = self.code_of("OffsetFetch", node, partition)
                if code is None:
                    return None
                group_code = group_code or (code if code != 88 else 0)
                known = self.offsets.get(partition, OffsetAndMetadata(-1))
                parts.append(
                    messages.OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=known.offset,
                        committed_leader_epoch=known.leader_epoch,
                        metadata="",
                        error_code=code,
                    )
                )
            topics.append(messages.OffsetFetchResponseTopics(name=topic.name, partitions=parts))
        reported = messages.OffsetFetchResponseGroup(group_id=group.group_id, error_code=group_code, topics=topics)
        return messages.OffsetFetchResponse(groups=[reported])
