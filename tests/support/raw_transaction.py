# SPDX-License-Identifier: Apache-2.0
"""A transaction by single requests, each of which returns the error code of the response of a real broker."""

from __future__ import annotations

import time
from typing import Any

from raw_broker import Producer, RawBroker
from transaction_cluster import TransactionCluster

import kcodec
from kcodec.protocol import messages

COORDINATOR_PASSES = frozenset({14, 15, 16})


class RawTransaction:
    """One transactional id on one connection. Only requests to coordinators that are not ready are repeated."""

    def __init__(self, cluster: TransactionCluster, broker: RawBroker, name: str | None = None) -> None:
        self.cluster, self.broker = cluster, broker
        self.name = name or cluster.new_id()
        self.is_new_flow = cluster.is_new_flow
        self.producer = Producer(-1, -1)

    def ask(self, request: Any, version: int) -> Any:
        return self.broker.ask(request, version)

    def find(self, kind: int = 1, key: str | None = None) -> None:
        find = messages.FindCoordinatorRequest(key=key or self.name, key_type=kind)
        self.broker.ask_until(find, 3, lambda answer: answer.error_code)

    def init(self, producer: Producer = Producer(-1, -1), timeout_ms: int = 60_000, version: int = 5) -> list[int]:  # noqa: B008
        """Return the codes up to the first that is not CONCURRENT_TRANSACTIONS. On success `producer` is set."""
        self.find()
        codes: list[int] = []
        while not codes or codes[-1] == 51:
            request = messages.InitProducerIdRequest(
                transactional_id=self.name,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
            )
            answer = self.ask(request, version)
            if answer.error_code in COORDINATOR_PASSES:
                time.sleep(0.05)
                continue
            codes.append(answer.error_code)
            if not answer.error_code:
                self.producer = Producer(answer.producer_id, answer.producer_epoch)
            elif answer.error_code == 51:
                time.sleep(0.005)
        return codes

    def begin(self, topic: str, partitions: tuple[int, ...] = (0,), timeout_ms: int = 60_000) -> Producer:
        """Get a new epoch and, in the old flow, add these partitions to the transaction."""
        assert self.init(timeout_ms=timeout_ms)[-1] == 0
        self.add(topic, partitions)
        return self.producer

    def add(self, topic: str, partitions: tuple[int, ...] = (0,)) -> None:
        if not self.is_new_flow:
            while (code := self.add_code(self.producer, topic, partitions)) == 51:
                time.sleep(0.005)
            assert code == 0

    def add_code(self, producer: Producer, topic: str, partitions: tuple[int, ...] = (0,), version: int = 3) -> int:
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[messages.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        results = self.ask(request, version).results_by_topic_v3_and_below[0].results_by_partition
        return max(int(result.partition_error_code) for result in results)

    def add_offsets_code(self, producer: Producer, group: str, version: int = 3) -> int:
        request = messages.AddOffsetsToTxnRequest(transactional_id=self.name, group_id=group, **producer._asdict())
        return int(self.ask(request, version).error_code)

    @property
    def produce_version(self) -> int:
        """Highest version of Produce in the flow."""
        return 12 if self.is_new_flow else 11

    def produce(
        self,
        topic: str,
        producer: Producer,
        sequence: int,
        count: int = 1,
        *,
        partition: int = 0,
        version: int | None = None,
        text: str = "v",
        is_transactional: bool = True,
        name: str | None = "",
    ) -> Any:
        """Produce one batch with this number of records and return the response, after repeating transient errors."""
        batch = kcodec.encode_batch(
            [(None, b"%s-%d" % (text.encode(), sequence + number)) for number in range(count)],
            timestamp=time.time_ns() // 1_000_000,
            base_sequence=sequence,
            is_transactional=is_transactional,
            **producer._asdict(),
        )
        data = messages.PartitionProduceData(index=partition, records=batch)
        request = messages.ProduceRequest(
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[messages.TopicProduceData(name=topic, partition_data=[data])],
        )
        deadline = time.monotonic() + 20
        while True:
            answer = self.ask(request, version or self.produce_version).responses[0].partition_responses[0]
            if answer.error_code not in (3, 6, 19) or time.monotonic() > deadline:
                return answer
            time.sleep(0.01)

    def produce_code(self, topic: str, producer: Producer, sequence: int, count: int = 1, **options: Any) -> int:
        return int(self.produce(topic, producer, sequence, count, **options).error_code)

    def offsets_code(
        self, producer: Producer, group: str, topic: str, version: int | None = None, **fields: Any
    ) -> int:
        """TxnOffsetCommit of offset 1 of partition 0."""
        self.find(0, group)
        text = fields.pop("metadata", "")
        part = messages.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=text)
        request = messages.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            topics=[messages.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
            **producer._asdict(),
            **fields,
        )
        while True:
            answer = self.ask(request, version or (5 if self.is_new_flow else 4))
            code = int(answer.topics[0].partitions[0].error_code)
            if code not in COORDINATOR_PASSES:
                return code
            time.sleep(0.02)

    def end(self, producer: Producer, *, is_commit: bool, version: int | None = None) -> Any:
        """Return the response to EndTxn, repeated after CONCURRENT_TRANSACTIONS."""
        request = messages.EndTxnRequest(transactional_id=self.name, committed=is_commit, **producer._asdict())
        while True:
            answer = self.ask(request, version or (5 if self.is_new_flow else 4))
            if answer.error_code != 51:
                return answer
            time.sleep(0.005)

    def end_code(self, producer: Producer, *, is_commit: bool, version: int | None = None) -> int:
        return int(self.end(producer, is_commit=is_commit, version=version).error_code)
