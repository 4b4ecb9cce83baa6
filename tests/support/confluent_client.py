# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka (librdkafka) in long tests: its producer, compared with kcodec's, and its read_committed consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from transaction_load import ABORTED, COMMITTED, GIVEN_UP, UNKNOWN, Records

CALL_SECONDS = 30.0
SILENT = logging.getLogger("librdkafka")
SILENT.setLevel(logging.CRITICAL + 1)


class ConfluentClient:
    """A transactional producer of librdkafka, used as documented: it aborts after an abortable error, repeats the call
    after a retriable one, and creates a new producer after a fatal one."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, topic: str, **options: Any) -> None:
        self.topic = topic
        self.options = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": transactional_id,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "message.timeout.ms": 30_000,
            "request.timeout.ms": 1_000,
            "socket.timeout.ms": 1_000,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "linger.ms": 1,
            **options,
        }
        self.producer: Any = None

    def transact(self, records: Records, *, commit: bool, pause: float = 0.0) -> str:
        from confluent_kafka import KafkaException

        try:
            producer = self._open()
            producer.begin_transaction()
            for partition, values in records.items():
                for value in values:
                    producer.produce(self.topic, value, partition=partition)
                producer.poll(pause)
            if not commit:
                producer.flush(CALL_SECONDS)
        except KafkaException:
            return self._ended(self._call("abort_transaction"), GIVEN_UP)
        if not commit:
            return self._ended(self._call("abort_transaction"), GIVEN_UP)
        outcome = self._call("commit_transaction")
        if outcome == "abort":
            return self._ended(self._call("abort_transaction"), UNKNOWN)
        return self._ended(outcome, UNKNOWN)

    def close(self) -> None:
        self.producer = None

    def _open(self) -> Any:
        from confluent_kafka import KafkaException, Producer

        deadline = time.monotonic() + CALL_SECONDS
        while self.producer is None:
            producer = Producer(self.options)
            try:
                producer.init_transactions(CALL_SECONDS)
                self.producer = producer
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
        return self.producer

    def _call(self, name: str) -> str:
        """Call a function, and repeat it after retriable errors. Return the outcome: "abort" after an abortable error,
        "" after a fatal one."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + CALL_SECONDS
        while self.producer is not None and time.monotonic() < deadline:
            try:
                getattr(self.producer, name)(CALL_SECONDS)
                return COMMITTED if name == "commit_transaction" else ABORTED
            except KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    return "abort"
                if not reason.retriable():
                    return ""
        return ""

    def _ended(self, outcome: str, otherwise: str) -> str:
        if outcome in (COMMITTED, ABORTED):
            return outcome
        self.producer = None
        return otherwise


def end_open_transactions(bootstrap_servers: str, transactional_ids: list[str]) -> None:
    """Abort open transactions of these ids by fencing them, so that a reader finds no open transaction."""
    from confluent_kafka import Producer

    for name in transactional_ids:
        producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name, "logger": SILENT})
        producer.init_transactions(CALL_SECONDS)


def committed_offset(bootstrap_servers: str, group: str, topic: str, partition: int) -> int:
    """Return the committed offset of a group; negative if there is none."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "logger": SILENT})
    try:
        wanted = [TopicPartition(topic, partition)]
        return int(_until_coordinated(lambda: consumer.committed(wanted, CALL_SECONDS))[0].offset)
    finally:
        consumer.close()


def _until_coordinated(call: Callable[[], Any]) -> Any:
    """Call a function, and repeat it while its group has no coordinator: creating the first one takes a moment."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() not in (14, 15, 16) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def commit_offset(bootstrap_servers: str, group: str, topic: str, partition: int, offset: int) -> None:
    """Commit an offset of a group, outside transactions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "logger": SILENT})
    try:
        wanted = [TopicPartition(topic, partition, offset)]
        _until_coordinated(lambda: consumer.commit(offsets=wanted, asynchronous=False))
    finally:
        consumer.close()


def read_committed(
    bootstrap_servers: str, topic: str, partitions: int, seconds: float = 60.0
) -> dict[int, list[bytes]]:
    """The values of a topic that a read_committed consumer delivers up to its end, by partition, in order.

    TimeoutError: an end was not reached, as where a transaction is still open.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    open_partitions = set(found)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-of-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            "logger": SILENT,
        }
    )
    deadline = time.monotonic() + seconds
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        while open_partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: the end of partitions {sorted(open_partitions)} was not reached")
            for message in consumer.consume(1000, 0.05):
                error, partition, value = message.error(), message.partition(), message.value()
                assert partition is not None
                if error is None:
                    assert value is not None
                    found[partition].append(value)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(partition)
                else:
                    raise RuntimeError(str(message.error()))
    finally:
        consumer.close()
    return found
