# SPDX-License-Identifier: Apache-2.0
"""aiokafka and kafka-python with a broker, by their public APIs only, for test_compat_broker.py.

peer.has_package_for(codec)                        whether it supports the codec by itself; .packages: their names
peer.write(servers, topic, codec, transactions)    transactions as (outcome, rows of Row), with one transactional id
peer.read(servers, topic, isolation_level, start)  every record from `start` to the current end, by partition
peer.read_past_damage(servers, topic)              the same as (records, errors); it seeks past a corrupt batch

As a program, `python tests/support/compat_peers.py SERVERS TOPIC`: kafka-python without the adapter reads past
corruption.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import aiokafka.codec
import kafka
import kafka.codec
from aiokafka.errors import CorruptRecordException
from kafka.errors import CorruptRecordError

import kcodec.compat.aiokafka
import kcodec.compat.kafka_python
from kcodec.errors import DecodeError

SECONDS = 20.0
REPEATS = 3  # number of errors for a corrupt batch before the reader seeks past it
Records = dict[int, list["Read"]]


class Row(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int


class Read(NamedTuple):
    """A record that a consumer delivered, with the fields that both clients and Java's have."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Transactions = Sequence[tuple[str, Sequence[Row]]]


def read_of(record: Any) -> Read:
    headers = tuple((name, value) for name, value in record.headers)
    return Read(record.offset, record.timestamp, record.timestamp_type, record.key, record.value, headers)


class Aiokafka:
    """aiokafka. Each call has a new event loop."""

    name = "aiokafka"
    adapter = kcodec.compat.aiokafka
    packages = ((aiokafka.codec, "cramjam"),)

    def has_package_for(self, codec: str | None) -> bool:
        return codec is None or bool(aiokafka.AIOKafkaProducer._COMPRESSORS[codec][0]())

    def write(self, servers: str, topic: str, codec: str | None, transactions: Transactions) -> None:
        asyncio.run(self._write(servers, topic, codec, transactions))

    async def _write(self, servers: str, topic: str, codec: str | None, transactions: Transactions) -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id=uuid.uuid4().hex, compression_type=codec
        ) as producer:
            for fate, rows in transactions:
                await producer.begin_transaction()
                sent = [
                    await producer.send(
                        topic, row.value, row.key, row.partition, timestamp_ms=row.timestamp, headers=row.headers
                    )
                    for row in rows
                ]
                await asyncio.gather(*sent)
                await (producer.commit_transaction() if fate == "commit" else producer.abort_transaction())

    def read(
        self,
        servers: str,
        topic: str,
        isolation_level: str = "read_committed",
        start: Mapping[int, int] | None = None,
    ) -> Records:
        return asyncio.run(self._read(servers, topic, isolation_level, start or {}))

    async def _read(self, servers: str, topic: str, isolation_level: str, start: Mapping[int, int]) -> Records:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation_level) as consumer:
            partitions = [aiokafka.TopicPartition(topic, number) for number in range(2)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, start.get(partition.partition, 0))
            ends = await consumer.end_offsets(partitions)
            found: Records = {partition.partition: [] for partition in partitions}
            deadline = time.monotonic() + SECONDS
            while any([await consumer.position(one) < end for one, end in ends.items()]):
                assert time.monotonic() < deadline, found
                for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[partition.partition] += [read_of(record) for record in records]
            return found

    def read_past_damage(self, servers: str, topic: str) -> tuple[Records, list[Exception]]:
        return asyncio.run(self._read_past_damage(servers, topic))

    async def _read_past_damage(self, servers: str, topic: str) -> tuple[Records, list[Exception]]:
        found: Records = {0: [], 1: []}
        errors: list[Exception] = []
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
            partitions = [aiokafka.TopicPartition(topic, number) for number in range(2)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(one) < end for one, end in ends.items()]):
                try:
                    for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                        found[partition.partition] += [read_of(record) for record in records]
                except CorruptRecordException as error:
                    errors.append(error)
                    if len(errors) == REPEATS:
                        if (behind := behind_damage(error)) is None:
                            return found, errors
                        consumer.seek(partitions[0], behind)
        return found, errors


class KafkaPython:
    name = "kafka-python"
    adapter = kcodec.compat.kafka_python
    packages = ((kafka.codec, "snappy"), (kafka.codec, "zstd"), (kafka.codec, "lz4"))

    def has_package_for(self, codec: str | None) -> bool:
        return bool(kafka.KafkaProducer._COMPRESSORS[codec][0]())

    def write(self, servers: str, topic: str, codec: str | None, transactions: Transactions) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            transactional_id=uuid.uuid4().hex,
            compression_type=codec,
            retry_backoff_ms=5,
        )
        try:
            producer.init_transactions()
            for fate, rows in transactions:
                producer.begin_transaction()
                sent = [
                    producer.send(topic, row.value, row.key, row.headers, row.partition, row.timestamp) for row in rows
                ]
                producer.flush()
                assert all(one.succeeded() for one in sent)
                producer.commit_transaction() if fate == "commit" else producer.abort_transaction()
        finally:
            producer.close()

    def read(
        self,
        servers: str,
        topic: str,
        isolation_level: str = "read_committed",
        start: Mapping[int, int] | None = None,
    ) -> Records:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers, isolation_level=isolation_level, enable_auto_commit=False
        )
        try:
            partitions = [kafka.TopicPartition(topic, number) for number in range(2)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, (start or {}).get(partition.partition, 0))
            ends = consumer.end_offsets(partitions)
            found: Records = {partition.partition: [] for partition in partitions}
            deadline = time.monotonic() + SECONDS
            while any(consumer.position(one) < end for one, end in ends.items()):
                assert time.monotonic() < deadline, found
                for partition, records in consumer.poll(timeout_ms=100).items():
                    found[partition.partition] += [read_of(record) for record in records]
            return found
        finally:
            consumer.close()

    def read_past_damage(self, servers: str, topic: str) -> tuple[Records, list[Exception]]:
        found: Records = {0: [], 1: []}
        errors: list[Exception] = []
        consumer = kafka.KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        try:
            partitions = [kafka.TopicPartition(topic, number) for number in range(2)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(one) < end for one, end in ends.items()):
                try:
                    for partition, records in consumer.poll(timeout_ms=100).items():
                        found[partition.partition] += [read_of(record) for record in records]
                except CorruptRecordError as error:
                    errors.append(error)
                    print("raised", flush=True)  # for the test that started this program
                    if len(errors) == REPEATS:
                        if (behind := behind_damage(error)) is None:
                            return found, errors
                        consumer.seek(partitions[0], behind)
        finally:
            consumer.close()
        return found, errors


def behind_damage(error: Exception) -> int | None:
    """Return the offset after the corruption, which only kcodec's error, the cause of the client's error, has."""
    return error.__cause__.next_offset if isinstance(error.__cause__, DecodeError) else None


if __name__ == "__main__":
    KafkaPython().read_past_damage(sys.argv[1], sys.argv[2])
    print("came back")
