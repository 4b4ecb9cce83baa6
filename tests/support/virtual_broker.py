# SPDX-License-Identifier: Apache-2.0
"""The public asyncio clients against one scripted broker, in virtual time: waits of minutes take no time at all.

    with virtual_time() as broker:
        broker.faults = lambda api: 82 if api == "JoinGroup" else 0
        broker.run(program())            # a coroutine that uses kcodec.client.aio

The broker has one topic of one partition, keeps no more than it must, and responds with success unless `faults` gives
an error code. Time passes when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

from batch_writer import RecordSpec, build_batch

from kcodec import batches
from kcodec.errors import RequestTimedOutError, TransportError
from kcodec.flow import ByVersion, Call, Done, Reply
from kcodec.network.client import Client
from kcodec.network.connections import Network
from kcodec.protocol import messages
from kcodec.protocol.messages import fetch, groups, metadata, offsets, produce, transactions
from kcodec.protocol.versions import BrokerVersions
from kcodec.testing.proxy.answers import structs_of

LATENCY = 0.002
TOPIC, OUT = "orders", "invoices"
IDS = {TOPIC: UUID(int=7), OUT: UUID(int=8)}
#: Versions in which topics have names; the others are the highest that kcodec speaks.
HIGHEST = {"Fetch": 12, "OffsetFetch": 9, "OffsetCommit": 9, "Produce": 12, "Metadata": 12, "AddPartitionsToTxn": 3}
RECORDS = 10
#: A program that sends more requests than this is in an endless loop.
MOST_REQUESTS = 20_000


class _IdleSelector:
    """A selector that never waits: if nothing is ready, the clock advances instead."""

    def __init__(self, broker: VirtualBroker) -> None:
        self._real = selectors.DefaultSelector()
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def select(self, timeout: float | None = None) -> Any:
        ready = self._real.select(0)
        if not ready:
            assert timeout is not None, "everything waits and no time is set"
            self._broker.now += max(timeout, 0.0)
        return ready


class VirtualBroker:
    """See the module. faults(api) -> code: called for each request; "Fetch" and "OffsetFetch" mean an error of each
    partition, "Fetch:top" and "OffsetFetch:top" one of the whole response.

    slow: API -> seconds that its response takes. is_down: requests fail as they do without a broker.
    requests: (time, api), as they came.
    """

    def __init__(self, transaction_version: int = 2) -> None:
        self.now = 1000.0
        self.transaction_version = transaction_version
        self.faults: Callable[[str], int] = lambda api: 0
        self.requests: list[tuple[float, str]] = []
        self.topics = {TOPIC: 1, OUT: 1}
        self.slow: dict[str, float] = {}
        self.is_down = False
        self.records = build_batch([RecordSpec(value=b"%d" % number) for number in range(RECORDS)])
        self.committed: int = -1
        self.written = 0
        self.generation = 0
        self.epoch = -1
        apis = {key: kind.versions for key, kind in messages.all_requests().items()}
        features = {"transaction.version": transaction_version, "group.version": 1}
        self._versions = BrokerVersions(apis, features, 1)

    def clock(self) -> float:
        return self.now

    def run(self, program: Coroutine[Any, Any, Any], limit: float = 10_000.0) -> Any:
        """Run a program to its end, for at most this virtual time."""
        loop = asyncio.SelectorEventLoop(_IdleSelector(self))  # type: ignore[arg-type]
        try:
            return loop.run_until_complete(asyncio.wait_for(program, limit))
        finally:
            loop.close()

    def asked(self, api: str) -> int:
        return sum(one == api for _, one in self.requests)

    # The network

    def start_call(self, network: Network, call: Call, done: Done) -> Callable[[], None]:
        api = call.kind.__name__.removesuffix("Request")
        scheduler = network.scheduler
        self.requests.append((self.now, api))
        assert len(self.requests) < MOST_REQUESTS, f"a busy loop of {api}"
        if self.is_down:
            error = TransportError("bootstrap server nowhere:9092: no connection: Connection refused")
            return scheduler.call_at(self.now + LATENCY, lambda: done(None, error)).cancel
        network.directory.note_versions(1, self._versions)
        version = min(call.highest, HIGHEST.get(api, call.kind.versions[1]), call.kind.versions[1])
        request = call.request.build(version) if isinstance(call.request, ByVersion) else call.request
        delay = LATENCY + self.slow.get(api, 0.0)
        top, code = self.faults(f"{api}:top"), self.faults(api)
        response = getattr(self, f"_{api}")(request, version)
        if code or top:
            _spoil(response, version, top or code, is_top=bool(top))
        elif api == "Fetch" and not any(part.records for topic in response.responses for part in topic.partitions):
            delay += request.max_wait_ms / 1000
        if delay > call.timeout:
            late = RequestTimedOutError(f"no response to {api}", possibly_sent=True)
            return scheduler.call_at(self.now + call.timeout, lambda: done(None, late)).cancel
        reply = Reply(response, version, 1)
        return scheduler.call_at(self.now + delay, lambda: done(reply, None)).cancel

    # Responses

    def _ApiVersions(self, request: Any, version: int) -> Any:
        return messages.ApiVersionsResponse()

    def _Metadata(self, request: Any, version: int) -> Any:
        broker = metadata.MetadataResponseBroker(node_id=1, host="broker", port=9092)
        found = []
        for name in self.topics if request.topics is None else [one.name for one in request.topics]:
            count = self.topics.get(name, 0)
            parts = [
                metadata.MetadataResponsePartition(partition_index=number, leader_id=1, leader_epoch=0)
                for number in range(count)
            ]
            found.append(
                metadata.MetadataResponseTopic(
                    error_code=0 if count else 3, name=name, topic_id=IDS.get(name, UUID(int=0)), partitions=parts
                )
            )
        return metadata.MetadataResponse(brokers=[broker], controller_id=1, topics=found)

    def _FindCoordinator(self, request: Any, version: int) -> Any:
        found = [metadata.Coordinator(key=key, node_id=1, host="broker", port=9092) for key in request.coordinator_keys]
        return metadata.FindCoordinatorResponse(coordinators=found)

    def _JoinGroup(self, request: Any, version: int) -> Any:
        self.generation += 1
        member = groups.JoinGroupResponseMember(member_id="m-1", metadata=request.protocols[0].metadata)
        return groups.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader="m-1",
            member_id="m-1",
            members=[member],
        )

    def _SyncGroup(self, request: Any, version: int) -> Any:
        share = request.assignments[0].assignment if request.assignments else b""
        return groups.SyncGroupResponse(protocol_type="consumer", protocol_name=request.protocol_name, assignment=share)

    def _Heartbeat(self, request: Any, version: int) -> Any:
        return groups.HeartbeatResponse()

    def _LeaveGroup(self, request: Any, version: int) -> Any:
        members = [groups.LeavingMemberResponse(member_id=one.member_id) for one in request.members]
        return groups.LeaveGroupResponse(members=members)

    def _ConsumerGroupHeartbeat(self, request: Any, version: int) -> Any:
        response = groups.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=min(request.member_epoch, 0) or 1, heartbeat_interval_ms=500
        )
        if request.member_epoch == 0:
            wanted = groups.ConsumerGroupTopicPartitions(topic_id=IDS[TOPIC], partitions=[0])
            response.assignment = groups.ConsumerGroupAssignment(topic_partitions=[wanted])
        return response

    def _OffsetFetch(self, request: Any, version: int) -> Any:
        part = offsets.OffsetFetchResponsePartitions(partition_index=0, committed_offset=self.committed)
        topic = offsets.OffsetFetchResponseTopics(name=TOPIC, partitions=[part])
        group = offsets.OffsetFetchResponseGroup(group_id=request.groups[0].group_id, topics=[topic])
        return offsets.OffsetFetchResponse(groups=[group])

    def _OffsetCommit(self, request: Any, version: int) -> Any:
        part = offsets.OffsetCommitResponsePartition(partition_index=0)
        return offsets.OffsetCommitResponse(topics=[offsets.OffsetCommitResponseTopic(name=TOPIC, partitions=[part])])

    def _ListOffsets(self, request: Any, version: int) -> Any:
        offset = 0 if request.topics[0].partitions[0].timestamp == -2 else RECORDS
        part = fetch.ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return fetch.ListOffsetsResponse(topics=[fetch.ListOffsetsTopicResponse(name=TOPIC, partitions=[part])])

    def _OffsetForLeaderEpoch(self, request: Any, version: int) -> Any:
        part = fetch.EpochEndOffset(partition=0, leader_epoch=0, end_offset=RECORDS)
        return fetch.OffsetForLeaderEpochResponse(
            topics=[fetch.OffsetForLeaderTopicResult(topic=TOPIC, partitions=[part])]
        )

    def _Fetch(self, request: Any, version: int) -> Any:
        found = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                data = self.records if topic.topic == TOPIC and part.fetch_offset < RECORDS else b""
                parts.append(
                    fetch.FetchPartitionData(
                        partition_index=part.partition,
                        high_watermark=RECORDS,
                        last_stable_offset=RECORDS,
                        log_start_offset=0,
                        records=data,
                    )
                )
            found.append(fetch.FetchableTopicResponse(topic=topic.topic, partitions=parts))
        return fetch.FetchResponse(responses=found)

    def _InitProducerId(self, request: Any, version: int) -> Any:
        self.epoch += 1
        return transactions.InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)

    def _Produce(self, request: Any, version: int) -> Any:
        found = []
        for topic in request.topic_data:
            parts = []
            for part in topic.partition_data:
                parts.append(produce.PartitionProduceResponse(index=part.index, base_offset=self.written))
                self.written += sum(one.records_count or 0 for one in batches(bytes(part.records)))
            found.append(produce.TopicProduceResponse(name=topic.name, partition_responses=parts))
        return produce.ProduceResponse(responses=found)

    def _AddPartitionsToTxn(self, request: Any, version: int) -> Any:
        found = [
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    transactions.AddPartitionsToTxnPartitionResult(partition_index=number)
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return transactions.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=found)

    def _AddOffsetsToTxn(self, request: Any, version: int) -> Any:
        return transactions.AddOffsetsToTxnResponse()

    def _TxnOffsetCommit(self, request: Any, version: int) -> Any:
        found = [
            transactions.TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    transactions.TxnOffsetCommitResponsePartition(partition_index=part.partition_index)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return transactions.TxnOffsetCommitResponse(topics=found)

    def _EndTxn(self, request: Any, version: int) -> Any:
        if version < 5:
            return transactions.EndTxnResponse()
        self.epoch = request.producer_epoch + 1
        return transactions.EndTxnResponse(producer_id=7, producer_epoch=self.epoch)

    def _DescribeTransactions(self, request: Any, version: int) -> Any:
        state = transactions.DescribedTransactionState(
            transactional_id=request.transactional_ids[0],
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            producer_id=7,
            producer_epoch=max(self.epoch, 0),
        )
        return transactions.DescribeTransactionsResponse(transaction_states=[state])


def _spoil(response: Any, version: int, code: int, *, is_top: bool) -> None:
    """Put an error code into a response: into its items where it has any, else into the whole."""
    inner = [one for one in structs_of(response) if one is not response and _code_field(one) is not None]
    items = [one for one in inner if _code_field(one) == "partition_error_code"] or inner
    if isinstance(response, metadata.MetadataResponse):
        items = list(response.topics)
        for topic in items:
            topic.partitions = []
    elif isinstance(response, offsets.OffsetFetchResponse):
        groups_, parts = response.groups, [part for topic in response.groups[0].topics for part in topic.partitions]
        items = groups_ if is_top else parts
        is_top = False
    for one in [response] if is_top or not items else items:
        name = _code_field(one)
        assert name is not None
        setattr(one, name, code)
        if isinstance(one, fetch.FetchPartitionData):
            one.records, one.high_watermark = b"", -1


def _code_field(struct: Any) -> str | None:
    return next((name for name in ("partition_error_code", "error_code") if hasattr(struct, name)), None)


@contextmanager
def virtual_time(transaction_version: int = 2) -> Iterator[VirtualBroker]:
    """The broker, its time and the same jitter in each run, for all clients made meanwhile."""
    broker = VirtualBroker(transaction_version)

    def start_call(network: Network, call: Call, done: Done) -> Callable[[], None]:
        return broker.start_call(network, call, done)

    with (
        mock.patch.object(time, "monotonic", broker.clock),
        mock.patch.object(Client.__init__, "__defaults__", (broker.clock, Random(1))),
        mock.patch.object(Network, "start_call", start_call),
    ):
        yield broker
