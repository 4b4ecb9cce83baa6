# SPDX-License-Identifier: Apache-2.0
"""The core of the embedded broker without sockets, with a clock that a test advances."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import kcodec
from kcodec.broker.api import CLOSE, SILENCE
from kcodec.broker.clock import Clock
from kcodec.broker.core import BrokerCore
from kcodec.broker.settings import BrokerSettings
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import decode_response, encode_request
from kcodec.protocol.schema import Request

START_MS = 1_700_000_000_000
NOTHING: Any = object()


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Pending:
    """The reply to a request: `response`, or NOTHING until it exists. CLOSE stands for a closed connection, SILENCE for
    a dropped response."""

    def __init__(self, request: Request, version: int) -> None:
        self._request = request
        self._version = version
        self.response: Any = NOTHING

    def take(self, parts: Any) -> None:
        assert self.response is NOTHING, "a second reply"
        if parts is None or parts is CLOSE or parts is SILENCE:
            self.response = parts
            return
        frame = b"".join(bytes(part) for part in parts)[4:]
        self.response = decode_response(frame, type(self._request), self._version)


class CoreClient:
    """A core and one connection to it."""

    def __init__(self, directory: Path | None = None, *, start_ms: int = START_MS, **settings: Any) -> None:
        self.clock = Clock(is_manual=True, start_ms=start_ms)
        few = {"offsets_topic_partitions": 2, "transaction_topic_partitions": 2}
        self.core = BrokerCore(BrokerSettings(**{**few, **settings}), self.clock, directory)
        self._connection = self.core.new_connection(1, "/127.0.0.1", self.core.listeners[0])

    def send(self, request: Request, version: int) -> Pending:
        pending = Pending(request, version)
        frame = encode_request(request, version, 7, "test")[4:]
        self.core.serve(self._connection, frame, pending.take)
        self.clock.run_due()
        return pending

    def ask(self, request: Request, version: int) -> Any:
        return self.send(request, version).response

    def prepare(self, topic: str = "t", partitions: int = 1, **configs: str) -> None:
        """Create a topic and the coordinators' topics."""
        self.core.topics.create(topic, partitions, {key.replace("_", "."): value for key, value in configs.items()})
        for key_type in (0, 1):
            self.ask(messages.FindCoordinatorRequest(key="x", key_type=key_type), 3)

    def init(
        self,
        transactional_id: str | None,
        producer: Identity | None = None,
        *,
        timeout_ms: int = 60_000,
        version: int = 5,
    ) -> tuple[ErrorCode, Identity]:
        who = producer or Identity(-1, -1)
        response = self.ask(
            messages.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
            ),
            version,
        )
        return ErrorCode(response.error_code), Identity(response.producer_id, response.producer_epoch)

    def add(self, transactional_id: str, producer: Identity, partition: int = 0, topic: str = "t") -> ErrorCode:
        response = self.ask(
            messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[messages.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
            ),
            3,
        )
        return ErrorCode(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def produce(
        self,
        producer: Identity | None,
        sequence: int = 0,
        *,
        transactional_id: str | None = None,
        values: tuple[bytes, ...] = (b"v",),
        topic: str = "t",
        partition: int = 0,
        version: int = 12,
    ) -> tuple[ErrorCode, int]:
        who = producer or Identity(-1, -1)
        batch = bytes(
            kcodec.encode(
                [(None, value) for value in values],
                timestamp=self.clock.now_ms(),
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                base_sequence=-1 if producer is None else sequence,
                is_transactional=transactional_id is not None,
            )
        )
        partition_data = [messages.PartitionProduceData(index=partition, records=batch)]
        pending = self.send(
            messages.ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                topic_data=[messages.TopicProduceData(name=topic, partition_data=partition_data)],
            ),
            version,
        )
        self.produced = pending
        if pending.response is NOTHING:
            return ErrorCode.NONE, -1
        return self.result_of(pending)

    def result_of(self, pending: Pending) -> tuple[ErrorCode, int]:
        found = pending.response.responses[0].partition_responses[0]
        return ErrorCode(found.error_code), found.base_offset

    def end(
        self, transactional_id: str, producer: Identity, *, commit: bool = True, version: int = 5
    ) -> tuple[ErrorCode, Identity]:
        response = self.ask(
            messages.EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=commit,
            ),
            version,
        )
        return ErrorCode(response.error_code), Identity(response.producer_id, response.producer_epoch)

    def state(self, transactional_id: str) -> str:
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        found: str = self.ask(request, 0).transaction_states[0].transaction_state
        return found

    def fetch_request(self, offset: int = 0, *, level: int = 1, topic: str = "t", **fields: Any) -> Any:
        return messages.FetchRequest(
            isolation_level=level,
            topics=[
                messages.FetchTopic(
                    topic=topic,
                    partitions=[messages.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
                )
            ],
            **{"max_wait_ms": 0, "min_bytes": 1, **fields},
        )

    def committed(self, topic: str = "t") -> list[bytes | None]:
        """The values that a read_committed consumer sees."""
        request = self.fetch_request(topic=topic)
        found = self.ask(request, 12).responses[0].partitions[0]
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
        decoded = kcodec.decode(bytes(found.records), isolation_level="read_committed", aborted_transactions=aborted)
        return [record.value for record in decoded.records()]

    def last_stable_offset(self, topic: str = "t") -> int:
        partition = self.core.topics.partition(topic, 0)
        assert partition is not None
        return partition.log.last_stable_offset
