# SPDX-License-Identifier: Apache-2.0
"""One plaintext connection to a broker of one node. Requests are repeated only after transient errors.

with RawBroker(kafka.bootstrap_servers) as broker:
    producer = broker.init_producer_id("some-id")
    answer = broker.produce(topic, producer, [b"value"], sequence=0, transactional_id="some-id")
    broker.end_transaction("some-id", producer, commit=True)
    fetched = broker.fetch(topic, isolation_level=1)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import kcodec
from kcodec.protocol import messages
from kcodec.protocol.frame import encode_request, response_body
from kcodec.protocol.schema import Request

SECONDS = 20.0
# Transient errors: topics and coordinators that are not available yet, and transactions that have not ended yet.
PASSING = {3, 5, 6, 14, 15, 16, 19, 51}


class Producer(NamedTuple):
    producer_id: int
    producer_epoch: int


class RawBroker:
    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: Request, version: int) -> Any:
        self._asked += 1
        self._socket.sendall(encode_request(request, version, self._asked, "raw"))
        frame = self._read(int.from_bytes(self._read(4), "big"))
        assert int.from_bytes(frame[:4], "big") == self._asked
        return request.response.decode(response_body(frame, type(request), version), version)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)

    def ask_until(self, request: Request, version: int, code: Callable[[Any], int]) -> Any:
        """Repeat a request until its error code is not transient, and return the response."""
        deadline = time.monotonic() + SECONDS
        while code(answer := self.ask(request, version)) in PASSING and time.monotonic() < deadline:
            time.sleep(0.01)
        return answer

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Producer:
        if transactional_id is not None:
            found = messages.FindCoordinatorRequest(key=transactional_id, key_type=1)
            self.ask_until(found, 3, lambda answer: answer.error_code)
        request = messages.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        answer = self.ask_until(request, 5, lambda answer: answer.error_code)
        assert answer.error_code == 0
        return Producer(answer.producer_id, answer.producer_epoch)

    def add_partition(self, transactional_id: str, producer: Producer, topic: str) -> int:
        """Add partition 0 to the transaction, as below transaction version 2. Return the error code."""
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[messages.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )

        def code(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        return code(self.ask_until(request, 3, code))

    def produce(
        self,
        topic: str,
        producer: Producer | None,
        values: Sequence[bytes],
        sequence: int = -1,
        transactional_id: str | None = None,
        version: int = 12,
    ) -> Any:
        """Produce a batch and return the response for the partition: error_code, base_offset."""
        known = producer or Producer(-1, -1)
        batch = kcodec.encode_batch(
            [(None, value) for value in values],
            timestamp=time.time_ns() // 1_000_000,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            base_sequence=sequence,
            is_transactional=transactional_id is not None,
        )
        partition = messages.PartitionProduceData(index=0, records=batch)
        request = messages.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=int(SECONDS * 1000),
            topic_data=[messages.TopicProduceData(name=topic, partition_data=[partition])],
        )

        def answer_of(answer: Any) -> Any:
            return answer.responses[0].partition_responses[0]

        return answer_of(self.ask_until(request, version, lambda answer: answer_of(answer).error_code))

    def end_transaction(self, transactional_id: str, producer: Producer, *, commit: bool, version: int = 5) -> Any:
        request = messages.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )
        return self.ask_until(request, version, lambda answer: answer.error_code)

    def fetch(self, topic: str, *, isolation_level: int, offset: int = 0, partition: int = 0) -> Any:
        """Fetch and return the response for the partition: records, aborted_transactions, high_watermark,
        last_stable_offset."""
        wanted = messages.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = messages.FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            isolation_level=isolation_level,
            topics=[messages.FetchTopic(topic=topic, partitions=[wanted])],
        )

        def answer_of(answer: Any) -> Any:
            return answer.responses[0].partitions[0]

        return answer_of(self.ask_until(request, 12, lambda answer: answer_of(answer).error_code))

    def fetched_up_to(self, topic: str, end: int) -> Any:
        """Fetch from the beginning when the last stable offset has reached `end`, because markers follow EndTxn."""
        deadline = time.monotonic() + SECONDS
        while (found := self.fetch(topic, isolation_level=1)).last_stable_offset < end:
            assert time.monotonic() < deadline, found
        return found

    def transaction_state(self, transactional_id: str) -> Any:
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        return self.ask(request, 0).transaction_states[0]


def values(fetched: Any, **options: Any) -> list[bytes | None]:
    """Return the values of fetched records; options are those of `kcodec.decode`."""
    return [record.value for record in kcodec.decode(fetched.records or b"", **options).records()]
