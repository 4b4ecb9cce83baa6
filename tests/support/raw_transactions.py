# SPDX-License-Identifier: Apache-2.0
"""Transactions made by single requests, as no correct client would, to leave them open or hanging.

with RawTransactions(kafka.bootstrap_servers) as raw:
    producer = raw.init("some-id")                              # (producer id, epoch)
    raw.add_partitions("some-id", producer, [partition])        # the old flow; error codes
    raw.produce("some-id", producer, partition, [b"value"], sequence=0)
    raw.end("some-id", producer, commit=True)
    raw.hang(partition) -> HungTransaction                      # the last stable offset is stuck at .start_offset
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import kcodec
from kcodec import TopicPartition
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.flow import Flow, call, sleep
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.network.thread_loop import ThreadLoop
from kcodec.protocol import messages

SECONDS = 20.0
RETRIED = {3, 6, 14, 15, 16, 19, 51}


@dataclass(frozen=True)
class HungTransaction:
    transactional_id: str
    producer: ProducerIdAndEpoch
    partition: TopicPartition
    start_offset: int


class RawTransactions:
    def __init__(self, bootstrap_servers: str) -> None:
        self._client = Client(ClientConfig(bootstrap_servers=bootstrap_servers, client_id="raw"))
        self._io_loop = ThreadLoop(self._client)

    def __enter__(self) -> RawTransactions:
        return self

    def __exit__(self, *error: object) -> None:
        self._io_loop.close()

    def init(self, transactional_id: str, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        request = messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
        )
        answer = self._io_loop.run(self._at_coordinator(transactional_id, request, lambda reply: reply.error_code, 4))
        assert answer.error_code == 0
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> list[int]:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                messages.AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()
            ],
        )

        def codes(reply: Any) -> list[int]:
            return [
                one.partition_error_code
                for topic in reply.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]

        answer = self._io_loop.run(
            self._at_coordinator(transactional_id, request, lambda reply: max(codes(reply)), highest=3)
        )
        return codes(answer)

    def produce(
        self,
        transactional_id: str | None,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        values: Sequence[bytes],
        sequence: int = 0,
        timestamp: int | None = None,
        highest: int = 11,
    ) -> tuple[int, int]:
        """(error code, base offset). highest: 11 is the old flow, 12 adds the partition by itself."""
        batch = kcodec.encode_batch(
            [{"value": value} for value in values],
            timestamp=time.time_ns() // 1_000_000 if timestamp is None else timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=transactional_id is not None,
        )
        request = messages.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=int(SECONDS * 1000),
            topic_data=[
                messages.TopicProduceData(
                    name=partition.topic,
                    partition_data=[messages.PartitionProduceData(index=partition.partition, records=batch)],
                )
            ],
        )
        return self._io_loop.run(self._produce(partition, request, highest))

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, highest: int = 4) -> int:
        request = messages.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )
        answer = self._io_loop.run(
            self._at_coordinator(transactional_id, request, lambda reply: reply.error_code, highest)
        )
        return int(answer.error_code)

    def ask_coordinator(self, kind: str, key: str, request: Any) -> Any:
        return self._io_loop.run(self._at_coordinator(key, request, lambda reply: reply.error_code, kind=kind))

    def state(self, transactional_id: str) -> str:
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = self._io_loop.run(
            self._at_coordinator(transactional_id, request, lambda reply: reply.transaction_states[0].error_code)
        )
        return str(answer.transaction_states[0].transaction_state)

    def open(
        self, partitions: Sequence[TopicPartition], transactional_id: str | None = None, timeout_ms: int = 60_000
    ) -> tuple[str, ProducerIdAndEpoch]:
        """Begin a transaction with a record in each partition, and leave it open."""
        name = transactional_id or f"open-{uuid.uuid4().hex[:8]}"
        producer = self.init(name, timeout_ms)
        assert set(self.add_partitions(name, producer, partitions)) == {0}
        for partition in partitions:
            assert self.produce(name, producer, partition, [b"open"])[0] == 0
        return name, producer

    def hang(
        self, partition: TopicPartition, timestamp: int | None = None, transactional_id: str | None = None
    ) -> HungTransaction:
        """Commit a transaction, and produce a late record of the same epoch. Below Kafka 3.6, or if
        transaction.partition.verification.enable is false, the leader accepts it, and no client will ever end it."""
        name = transactional_id or f"hanging-{uuid.uuid4().hex[:8]}"
        producer = self.init(name)
        assert self.add_partitions(name, producer, [partition]) == [0]
        assert self.produce(name, producer, partition, [b"committed"], 0)[0] == 0
        assert self.end(name, producer, commit=True) == 0
        # The response to EndTxn precedes the markers. A record that arrives before the marker belongs to the
        # transaction.
        while self.state(name) != "CompleteCommit":
            time.sleep(0.01)
        while (found := self.produce(name, producer, partition, [b"late"], 1, timestamp))[0] in RETRIED:
            pass
        assert found[0] == 0, f"the leader refused it with error {found[0]}"
        return HungTransaction(name, producer, partition, found[1])

    def hang_offsets(self, group: str, partition: TopicPartition) -> HungTransaction:
        """Leave a hanging transaction in __consumer_offsets: a transactional offset commit that arrives after the
        end."""
        name = f"hanging-{uuid.uuid4().hex[:8]}"
        producer = self.init(name)
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group,
        )
        answer = self._io_loop.run(self._at_coordinator(name, request, lambda reply: reply.error_code, 3))
        assert answer.error_code == 0
        assert self.commit_offset(name, producer, group, partition, 1) == 0
        assert self.end(name, producer, commit=False) == 0
        while self.state(name) != "CompleteAbort":
            time.sleep(0.01)
        assert self.commit_offset(name, producer, group, partition, 2) == 0
        return HungTransaction(name, producer, partition, -1)

    def commit_offset(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group: str, partition: TopicPartition, offset: int
    ) -> int:
        request = messages.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[
                messages.TxnOffsetCommitRequestTopic(
                    name=partition.topic,
                    partitions=[
                        messages.TxnOffsetCommitRequestPartition(
                            partition_index=partition.partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
        )

        def code(reply: Any) -> int:
            return int(reply.topics[0].partitions[0].error_code)

        return code(self._io_loop.run(self._at_coordinator(group, request, code, 3, "group")))

    def _at_coordinator(
        self, key: str, request: Any, code: Any, highest: int = 32767, kind: str = "transaction"
    ) -> Flow[Any]:
        while True:
            node = yield from self._client.cluster.coordinators.find(kind, key, SECONDS)
            reply = yield from call(node, request, timeout=SECONDS, highest=highest)
            if code(reply.message) not in RETRIED:
                return reply.message
            self._client.cluster.coordinators.forget(kind, key)
            yield from sleep(0.01)

    def _produce(self, partition: TopicPartition, request: Any, highest: int) -> Flow[tuple[int, int]]:
        while True:
            yield from self._client.cluster.ensure_topic(partition.topic, SECONDS)
            node = self._client.cluster.leader(partition.topic, partition.partition)
            if node is None:  # it was forgotten below, or the partition is new
                yield from self._client.cluster.refresh(SECONDS)
                continue
            reply = yield from call(node, request, timeout=SECONDS, highest=highest)
            answer = reply.message.responses[0].partition_responses[0]
            if answer.error_code not in RETRIED:
                return answer.error_code, answer.base_offset
            self._client.cluster.forget_leader(partition.topic, partition.partition)
            yield from sleep(0.02)
