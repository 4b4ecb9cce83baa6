# SPDX-License-Identifier: Apache-2.0
"""Which partitions to fetch from which broker, and from which offset; `kcodec.consumer.fetcher` sends the requests."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID, Partition
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetch_buffer import RESPONSES_AHEAD, FetchBuffer
from kcodec.consumer.fetch_memory import Request
from kcodec.consumer.fetch_responses import FetchBackoffs, FetchResponses, RequestedPartition
from kcodec.consumer.fetch_session import PartitionRequest
from kcodec.consumer.options import ConsumerSettings
from kcodec.offsets import TopicPartition

#: Channel of the requests that a broker may delay.
CHANNEL: Final = "fetch"
#: Channel of additional requests, which are not delayed: that of all other calls.
ASIDE: Final = ""

#: The partitions of a request.
Plan = dict[TopicPartition, RequestedPartition]
#: A partition to request: its metadata if any is known, the offset, and the leader epoch of the record before it.
_Place = tuple[PartitionState, Partition | None, int, int]


class FetchPlanner:
    """See the module. Only the loop calls the methods; `plan` and `has_enough` need the lock of the assignment.

    in_flight: The partitions of the requests in flight, which the fetcher adds and removes.
    enough:    Reason why the last plan requests no more from a broker: one of its partitions that has enough responses.
    has_others: Whether the last plan requests less because the application requests records of some partitions only.
    has_news:  Whether the assignment or the metadata may have changed since the last plan.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        buffer: FetchBuffer,
        backoffs: FetchBackoffs,
        responses: FetchResponses,
    ) -> None:
        self.in_flight: dict[Request, Plan] = {}
        self.enough: dict[int, PartitionState] = {}
        self.has_others = False
        self.has_news = True
        self._cluster = cluster
        self._assignment = assignment
        self._settings = settings
        self._buffer = buffer
        self._backoffs = backoffs
        self._responses = responses
        #: The last request of each partition. Unchanged entries are used again.
        self._requested: Plan = {}
        #: The last additional request of each partition without an error: the broker, the state's version and the
        #: offset.
        self._requested_aside: dict[TopicPartition, tuple[int, int, int]] = {}
        #: By broker whose response was too large: the partitions that are then requested one by one.
        self._one_by_one: dict[int, list[TopicPartition]] = {}

    def plan(self, now: float) -> tuple[dict[Request, Plan], float | None]:
        """Return the requests to send now, and the time at which more are due."""
        found: dict[int, list[_Place]] = {}
        due: list[float] = []
        partitions, brokers = self._assignment.partitions, self._cluster.brokers
        self.enough.clear()
        self.has_others = False
        for partition, state in partitions.items():
            if not state.is_fetchable:
                continue
            known = self._cluster.partition(partition)
            if state.preferred_replica is None:
                node = known.leader if known is not None and known.leader in brokers else None
            else:
                node = self._preferred(state, known, now)
            if self._backoffs:
                left_alone = max(self._backoffs.until(partition), 0.0 if node is None else self._backoffs.until(node))
                if left_alone > now:
                    due.append(left_alone)
                    continue
            if node is None:
                self._cluster.add_topics([partition.topic])
                self._cluster.request_update(f"{partition} has no leader")
                due.append(self._backoffs.put_off(partition).until)
                continue
            if partition in self._buffer:
                offset, epoch, is_full = self._next(state)
            else:
                offset, epoch, is_full = state.position or 0, state.position_epoch, False
            if is_full:
                if self._is_other(partition):
                    self.has_others = True  # the records that the application requests must not wait for it
                else:
                    self.enough[node] = state
            elif node not in self.enough:
                found.setdefault(node, []).append((state, known, offset, epoch))
        if self._buffer.only is not None:
            self._leave_out_others(found)
        free = {}
        for node, places in found.items():
            if node in self.enough:
                continue
            channel, under_way = CHANNEL, self.in_flight.get((node, CHANNEL))
            if under_way is not None:
                channel, places = ASIDE, self._news(node, places, under_way)
            if places and (node, channel) not in self.in_flight:
                free[node, channel] = self._requests(places)
        return free, min(due, default=None)

    def has_enough(self, state: PartitionState) -> bool:
        """Return whether records of a partition must be taken before its broker gets another request."""
        return state.is_fetchable and self._next(state)[2] and not self._is_other(state.topic_partition)

    def alone(self, node: int, plan: Plan) -> Plan:
        """Return one of the partitions of a response that was too large; each gets its turn. Otherwise return the whole
        plan."""
        while alone := self._one_by_one.pop(node, None):
            partition = alone.pop(0)
            self._one_by_one[node] = alone
            if partition in plan:
                return {partition: plan[partition]}
        return plan

    def request_one_by_one(self, node: int, plan: Plan) -> None:
        """Request these partitions one by one, because one response for all of them is too large."""
        self._one_by_one[node] = list(plan)

    def note_sent(self, request: Request, plan: Plan) -> None:
        """Note that a request is in flight."""
        self.in_flight[request] = plan
        node, channel = request
        if channel == ASIDE:
            for partition, requested in plan.items():
                self._requested_aside[partition] = node, requested.version, requested.request.offset

    def note_ended(self, request: Request) -> None:
        """Note that a request has ended, with a response or without one."""
        self.in_flight.pop(request, None)

    def request_aside_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the next plan request these partitions again after their backoff, because the response was an error."""
        for partition in partitions:
            self._requested_aside.pop(partition, None)

    def keep(self, partitions: Container[object]) -> None:
        """Forget all other partitions, as they are no longer assigned."""
        for gone in [one for one in self._requested if one not in partitions]:
            del self._requested[gone]
        for gone in [one for one in self._requested_aside if one not in partitions]:
            del self._requested_aside[gone]

    def _is_other(self, partition: TopicPartition) -> bool:
        """Return whether the application does not request the records of a partition."""
        return self._buffer.only is not None and partition not in self._buffer.only

    def _leave_out_others(self, found: dict[int, list[_Place]]) -> None:
        """Leave out the partitions whose records the application does not request, if responses that it does not take
        use too much memory."""
        if self._buffer.waiting_bytes(is_aside=True) <= self._settings.fetch_ahead_max_bytes // 2:
            return
        for node, places in found.items():
            found[node] = [place for place in places if not self._is_other(place[0].topic_partition)]
            self.has_others = self.has_others or len(found[node]) < len(places)

    def _news(self, node: int, places: list[_Place], under_way: Plan) -> list[_Place]:
        """Return partitions that the request in flight does not name. Return each only once, because there may be no
        data yet."""
        news = []
        for place in places:
            state, _, offset, _ = place
            known = under_way.get(state.topic_partition)
            if known is not None and known.request.offset == offset and known.version == state.version:
                continue
            if self._requested_aside.get(state.topic_partition) != (node, state.version, offset):
                news.append(place)
        return news

    def _next(self, state: PartitionState) -> tuple[int, int, bool]:
        """Return the offset to request, the leader epoch of the record before it, and whether records must be taken
        first."""
        ahead = self._buffer.ahead(state)
        if not ahead:
            assert state.position is not None
            return state.position, state.position_epoch, False
        offset = ahead[-1].next_offset
        return offset or 0, ahead[-1].last_epoch, offset is None or len(ahead) >= RESPONSES_AHEAD

    def _requests(self, places: list[_Place]) -> Plan:
        """Return the partitions of a request with their offsets and sizes."""
        without_epoch_at, larger = self._responses.without_epoch_at, self._responses.larger
        usual_bytes = self._settings.max_partition_fetch_bytes
        plan: Plan = {}
        for state, known, offset, last_epoch in places:
            partition = state.topic_partition
            # The position belongs to this topic, even if the metadata already contains a newer one of the same name.
            topic_id = state.topic_id or self._cluster.topic_id(partition.topic) or NO_UUID
            leader_epoch = -1 if known is None else known.leader_epoch
            if without_epoch_at and without_epoch_at.get(partition, -2) == leader_epoch:
                last_epoch = -1
            max_bytes = max(usual_bytes, larger.get(partition, 0)) if larger else usual_bytes
            values = topic_id, offset, leader_epoch, last_epoch, max_bytes
            before = self._requested.get(partition)
            if before is not None and before.request == values and before.version == state.version:
                plan[partition] = before
            else:
                plan[partition] = RequestedPartition(state, state.version, PartitionRequest(*values))
        self._requested.update(plan)
        return plan

    def _preferred(self, state: PartitionState, known: Partition | None, now: float) -> int | None:
        """Return the replica that the leader prefers for this consumer. Return the leader if no replica is
        preferred, or if it is out of date."""
        brokers, preferred = self._cluster.brokers, state.preferred_replica
        if now < state.preferred_replica_until and preferred in brokers:
            return preferred
        state.preferred_replica = None
        return known.leader if known is not None and known.leader in brokers else None
