# SPDX-License-Identifier: Apache-2.0
"""Programs that fail with the clients of kcodec.compat.aiokafka: no record is lost, and the error says what to do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition, errors
from aiokafka_kits import SECONDS, Kit, Listener, read, run

from kcodec.client.aio import Admin


def strict(value: bytes | None) -> bytes:
    """Fails for a tombstone, which aiokafka passes to deserializers as None."""
    if value in (None, b"bad"):
        raise LookupError(value)
    return value


def test_a_failing_deserializer_loses_no_other_record(ours: Kit, topic: str) -> None:
    """getmany() returns the records of the other partitions, and raises the error until a seek."""

    async def program() -> None:
        places = [TopicPartition(name, 0) for name in (topic, f"{topic}-b")]
        async with ours.producer() as producer:
            for place in places:
                for value in (b"v0", b"v1", None, b"v3"):
                    await producer.send_and_wait(place.topic, value, b"k", partition=0)
        async with ours.consumer(value_deserializer=strict) as consumer:
            consumer.assign(places)
            while None in {consumer.highwater(place) for place in places}:
                await asyncio.sleep(0.01)
            found: dict[Any, list[int]] = {place: [] for place in places}
            failures = 0
            while failures < 4 or sum(map(len, found.values())) < 6:
                try:
                    rows = await consumer.getmany(timeout_ms=5000)
                except LookupError:
                    failures += 1
                    if failures in (2, 4):  # one partition after the other
                        stopped = [place for place in places if await consumer.position(place) == 2]
                        consumer.seek(stopped[0], 3)
                    continue
                for place, records in rows.items():
                    found[place] += [one.offset for one in records]
            assert found == {place: [0, 1, 3] for place in places}

    run(program())


def test_getone_raises_for_a_tombstone_until_a_seek(kit: Kit, topic: str) -> None:
    """Also if the record was decoded together with records that were returned."""

    async def program() -> None:
        async with kit.producer(linger_ms=50) as producer:
            sent = [await producer.send(topic, value, b"k", partition=0) for value in (b"v0", None, b"v2")]
            await asyncio.gather(*sent)
        async with kit.consumer(topic, value_deserializer=strict) as consumer:
            assert await read(consumer, 1) == [b"v0"]
            for _ in range(3):
                with pytest.raises(LookupError):
                    await asyncio.wait_for(consumer.getone(), SECONDS)
            consumer.seek(TopicPartition(topic, 0), 2)
            assert await read(consumer, 1) == [b"v2"]

    run(program())


def test_an_error_found_by_getmany_is_gone_after_a_seek(ours: Kit, topic: str) -> None:
    async def program() -> None:
        async with ours.producer(linger_ms=50) as producer:
            sent = [await producer.send(topic, value, b"k", partition=0) for value in (b"v0", b"bad", b"v2")]
            await asyncio.gather(*sent)
        async with ours.consumer(topic, value_deserializer=strict) as consumer:
            assert [one.offset for rows in (await consumer.getmany(timeout_ms=5000)).values() for one in rows] == [0]
            consumer.seek(TopicPartition(topic, 0), 2)
            assert [one.offset for rows in (await consumer.getmany(timeout_ms=5000)).values() for one in rows] == [2]

    run(program())


def test_a_forgotten_start_raises_an_error(ours: Kit, topic: str) -> None:
    async def program() -> None:
        place = TopicPartition(topic, 0)
        consumer = ours.consumer(topic, group_id=f"g-{topic}")
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            consumer.getone,
            consumer.getmany,
            consumer.topics,
            lambda: consumer.committed(place),
            lambda: consumer.end_offsets([place]),
            lambda: consumer.beginning_offsets([place]),
            lambda: consumer.offsets_for_times({place: 0}),
        ]
        producer = ours.producer()
        transactional = ours.producer(transactional_id=topic)
        calls += [
            lambda: producer.send(topic, b"v"),
            lambda: producer.partitions_for(topic),
            transactional.begin_transaction,
        ]
        for call in calls:
            with pytest.raises(errors.IllegalStateError, match=r"await (consumer|producer)\.start\(\)"):
                await asyncio.wait_for(call(), SECONDS)
        for client in (consumer, producer, transactional):
            await client.stop()

    run(program())


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, ZeroDivisionError])
def test_a_listener_that_fails_ends_no_rebalance(
    ours: Kit, topic: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The partitions are assigned, and later rebalances call the listener again."""

    class Failing(Listener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            super().on_partitions_assigned(assigned)
            raise error

    async def program() -> None:
        await ours.fill(topic, 1)
        listener = Failing()
        async with ours.consumer(group_id=f"g-{topic}") as consumer:
            consumer.subscribe([topic], listener=listener)
            assert await read(consumer, 1) == [b"v0"]
            consumer.unsubscribe()
            consumer.subscribe([topic], listener=listener)
            while sum(name == "assigned" for name, _ in listener.calls) < 2:
                await asyncio.sleep(0.01)

    run(program())
    assert "on_partitions_assigned of the listener" in caplog.text


def test_a_listener_may_stop_its_consumer(ours: Kit, topic: str) -> None:
    async def program() -> list[Any]:
        unraised: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unraised.append(context))
        await ours.fill(topic, 1)
        made = [ours.consumer(group_id=f"g-{topic}")]

        class Stopping(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            async def on_partitions_assigned(self, assigned: Any) -> None:
                await made[0].stop()

        made[0].subscribe([topic], listener=Stopping())
        await made[0].start()
        with pytest.raises(errors.ConsumerStoppedError):
            await asyncio.wait_for(made[0].getone(), SECONDS)
        made.clear()
        gc.collect()
        await asyncio.sleep(0)
        return unraised

    assert run(program()) == []


def test_a_partitioner_is_given_new_partitions(kit: Kit, topic: str) -> None:
    seen: list[tuple[int, int]] = []

    def choose(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        seen.append((len(partitions), len(available)))
        return partitions[-1]

    async def program() -> None:
        async with kit.producer(partitioner=choose, metadata_max_age_ms=100) as producer:
            assert (await producer.send_and_wait(topic, b"v")).partition == 0
            async with Admin(bootstrap_servers=kit.servers) as admin:
                await admin.create_partitions({topic: 3})
            while (await producer.send_and_wait(topic, b"v")).partition != 2:
                await asyncio.sleep(0.02)

    run(program())
    assert seen[0] == (1, 1)
    assert seen[-1] == (3, 3)


def test_an_abort_logs_no_error_for_dropped_futures(ours: Kit, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise asyncio logs an ERROR for each record of the transaction whose future the program has not kept."""

    async def program() -> None:
        async with ours.producer(transactional_id=topic, linger_ms=5000) as producer:
            with pytest.raises(LookupError):
                async with producer.transaction():
                    kept = await producer.send(topic, b"v0", partition=0)
                    await producer.send(topic, b"v1", partition=0)
                    raise LookupError
            with pytest.raises(errors.IllegalOperation, match="was aborted before this record was written"):
                await kept

    run(program())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_commit_after_stop_names_its_cause(ours: Kit, topic: str) -> None:
    """The text of CommitFailedError would say that the program has processed records for too long."""

    async def program() -> None:
        await ours.fill(topic)
        async with ours.consumer(topic, group_id=topic) as consumer:
            await read(consumer, 1)
        with pytest.raises(errors.KafkaConnectionError, match=r"the consumer is stopped.*call commit\(\) before stop"):
            await consumer.commit()

    run(program())
