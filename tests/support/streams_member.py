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

SECONDS = 20.0


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
        owned = [messages.StreamsTaskIds(subtopology_id="0", partitions=sorted(tasks))] if tasks else []
        request = messages.StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            **{"member_epoch": self.epoch, **fields},
            rebalance_timeout_ms=30_000,
            topology=None
            if self.epoch
            else messages.StreamsHeartbeatTopology(
                subtopologies=[messages.Subtopology(subtopology_id="0", source_topics=[self.topic])]
            ),
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
