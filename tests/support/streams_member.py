# SPDX-License-Identifier: Apache-2.0
"""The only member of a streams group (KIP-1071), which sends requests itself: kcodec has no members of such groups.

with StreamsMember(kafka.bootstrap_servers, "group", "topic") as member:
    member.commit({0: 3})
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from raw_broker import RawBroker

from kcodec.protocol import messages
from kcodec.protocol.messages.group_types import StreamsKeyValue, StreamsTaskIds, StreamsTaskOffset, StreamsTopicInfo
from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, struct

SECONDS = 20.0


class CopartitionGroup(Struct):
    source_topics: list[int] = array(int16, "0+")
    source_topic_regex: list[int] = array(int16, "0+")
    repartition_source_topics: list[int] = array(int16, "0+")


class Subtopology(Struct):
    subtopology_id: str = string("0+")
    source_topics: list[str] = array(string, "0+")
    source_topic_regex: list[str] = array(string, "0+")
    state_changelog_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo, "0+")
    repartition_sink_topics: list[str] = array(string, "0+")
    repartition_source_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo, "0+")
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup, "0+")


class Topology(Struct):
    epoch: int = int32("0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")


class StreamsGroupHeartbeatRequest(Request, key=88, versions="0", flexible="0+"):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    endpoint_information_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology: Topology | None = struct(Topology, "0+", nullable="0+", default=None)
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    process_id: str | None = string("0+", nullable="0+", default=None)
    user_endpoint: StreamsKeyValue | None = struct(StreamsKeyValue, "0+", nullable="0+", default=None)  # always null
    client_tags: list[StreamsKeyValue] | None = array(StreamsKeyValue, "0+", nullable="0+", default=None)
    task_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, "0+", nullable="0+", default=None)
    task_end_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, "0+", nullable="0+", default=None)
    shutdown_application: bool = boolean("0+")


class GroupStatus(Struct):
    status_code: int = int8("0+")
    status_detail: str = string("0+")


class StreamsGroupHeartbeatResponse(Response, key=88, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    acceptable_recovery_lag: int = int32("0+")
    task_offset_interval_ms: int = int32("0+")
    status: list[GroupStatus] | None = array(GroupStatus, "0+", nullable="0+", default=None)
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, "0+", nullable="0+", default=None)
    endpoint_information_epoch: int = int32("0+")
    partitions_by_user_endpoint: list[StreamsKeyValue] | None = array(
        StreamsKeyValue, "0+", nullable="0+", default=None
    )  # always null


class StreamsMember:
    """Joins with a topology of one source topic, and has all its tasks when the constructor returns."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, partitions: int) -> None:
        self._broker = RawBroker(bootstrap_servers)
        self.group, self.topic = group, topic
        self.member_id, self.epoch = str(uuid.uuid4()), 0
        self._broker.ask_until(
            messages.FindCoordinatorRequest(key=group, key_type=0), 3, lambda response: response.error_code
        )
        wanted, tasks = set(range(partitions)), set[int]()
        deadline = time.monotonic() + SECONDS
        while tasks != wanted:
            assert time.monotonic() < deadline, tasks
            response = self._heartbeat(tasks)
            if response.active_tasks is not None:
                tasks = {number for one in response.active_tasks for number in one.partitions}
            self.epoch = response.member_epoch
            time.sleep(0.1)
        self.epoch = self._heartbeat(tasks).member_epoch

    def _heartbeat(self, tasks: set[int], **fields: Any) -> Any:
        owned = [StreamsTaskIds(subtopology_id="0", partitions=sorted(tasks))] if tasks else []
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            **{"member_epoch": self.epoch, **fields},
            rebalance_timeout_ms=30_000,
            topology=None
            if self.epoch
            else Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=[self.topic])]),
            active_tasks=owned,
            standby_tasks=[],
            warmup_tasks=[],
            process_id=self.member_id,
            client_tags=[],
        )
        response = self._broker.ask_until(request, 0, lambda response: response.error_code)
        assert response.error_code == 0, (response.error_code, response.error_message)
        return response

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit offsets of the source topic, as the member of this epoch."""
        partitions = [
            messages.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            for number, offset in offsets.items()
        ]
        request = messages.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[messages.OffsetCommitRequestTopic(name=self.topic, partitions=partitions)],
        )
        response = self._broker.ask(request, 9)
        assert {one.error_code for topic in response.topics for one in topic.partitions} == {0}

    def close(self) -> None:
        """Leave the group."""
        try:
            self._heartbeat(set(), member_epoch=-1)
        finally:
            self._broker.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
