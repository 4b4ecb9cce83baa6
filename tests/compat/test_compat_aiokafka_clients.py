# SPDX-License-Identifier: Apache-2.0
"""The clients of kcodec.compat.aiokafka against aiokafka's own: the same programs with both on the embedded broker
return the same values and errors. Where the facade differs, docs/compat-aiokafka.md says so.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import aiokafka.admin
import aiokafka.client
import pytest
from aiokafka import TopicPartition, errors
from aiokafka.admin import NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import OffsetAndMetadata, RecordMetadata
from aiokafka_kits import SECONDS, THEIRS, Kit, Listener, read, run

import kcodec.compat.aiokafka as facade

NOWHERE = "127.0.0.1:1"


# ---------------------------------------------------------------------------------------------------------- producer


def test_send_returns_a_future_of_record_metadata(kit: Kit, topic: str) -> None:
    """A real asyncio.Future with aiokafka's RecordMetadata, which gather() and wait() accept."""

    async def program() -> None:
        async with kit.producer() as producer:
            futures = [await producer.send(topic, b"v", timestamp_ms=7, partition=0) for _ in range(3)]
            assert all(asyncio.isfuture(one) for one in futures)
            done, _ = await asyncio.wait(futures)
            found = sorted(one.result() for one in done)
            place = TopicPartition(topic, 0)
            assert [one[:6] for one in found] == [(topic, 0, place, number, 7, 0) for number in range(3)]
            assert all(type(one) is RecordMetadata and type(one.topic_partition) is TopicPartition for one in found)
            assert await producer.partitions_for(topic) == {0}

    run(program())


def test_serializers_headers_and_partitioner_are_used(kit: Kit, topic: str) -> None:
    calls = []

    def partitioner(key: bytes | None, everything: list[int], available: list[int]) -> int:
        calls.append((key, everything, available))
        return 0

    async def program() -> None:
        options = {"key_serializer": str.encode, "value_serializer": lambda value: value.encode(), "linger_ms": 1}
        async with kit.producer(partitioner=partitioner, compression_type="gzip", **options) as producer:
            await producer.send_and_wait(topic, "value", "key", headers=[("h", b"1"), ("h", None)], timestamp_ms=5)
        async with kit.consumer(topic, key_deserializer=bytes.decode, value_deserializer=len) as consumer:
            found = await consumer.getone()
        assert (found.key, found.value, found.headers) == ("key", 5, (("h", b"1"), ("h", None)))
        assert (found.serialized_key_size, found.serialized_value_size) == (3, 5)
        assert calls == [(b"key", [0], [0])]

    run(program())


def test_invalid_records_raise_the_same_errors(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.producer(max_request_size=1000) as producer:
            for kind, arguments in (
                (AssertionError, {}),
                (AssertionError, {"value": b"v", "partition": 7}),
                (AssertionError, {"value": b"v", "partition": -1}),
                (TypeError, {"value": "text"}),
                (errors.MessageSizeTooLargeError, {"value": b"v" * 2000}),
            ):
                with pytest.raises(kind):
                    await producer.send(topic, **arguments)
            assert (await producer.send_and_wait(topic, b"v")).offset == 0

    run(program())


def test_a_batch_is_sent_as_a_whole(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.producer(compression_type="gzip") as producer:
            batch = producer.create_batch()
            for number in range(3):
                assert batch.append(key=b"k", value=b"%d" % number, timestamp=number) is not None
            future = await producer.send_batch(batch, topic, partition=0)
            assert (await future).offset == 0
            with pytest.raises(AssertionError):
                await producer.send_batch(producer.create_batch(), topic, partition=9)
            batch = producer.create_batch()
            batch.append(key=None, value=b"3", timestamp=None)
            assert (await (await producer.send_batch(batch, topic, partition=None))).offset == 3
        async with kit.consumer(topic) as consumer:
            assert await read(consumer, 4) == [b"0", b"1", b"2", b"3"]

    run(program())


def test_flush_and_stop_send_everything(kit: Kit, topic: str) -> None:
    async def program() -> None:
        producer = kit.producer(linger_ms=50)
        await producer.start()
        future = await producer.send(topic, b"1")
        await producer.flush()
        assert future.done()
        last = await producer.send(topic, b"2")
        await producer.stop()
        await producer.stop()
        assert (await last).offset == 1

    run(program())


def test_wrong_options_raise_the_same_errors(kit: Kit) -> None:
    async def program() -> None:
        for make, kind, options in (
            (kit.producer, ValueError, {"acks": 7}),
            (kit.producer, ValueError, {"compression_type": "rar"}),
            (kit.producer, ValueError, {"acks": 1, "enable_idempotence": True}),
            (kit.producer, TypeError, {"lingerms": 5}),
            (kit.consumer, TypeError, {"groupid": "g"}),
            (kit.consumer, ValueError, {"max_poll_records": 0}),
            (kit.consumer, ValueError, {"security_protocol": "TLS"}),
        ):
            with pytest.raises(kind):
                make(**options)

    run(program())


def test_clients_must_be_created_in_an_event_loop(kit: Kit) -> None:
    for make in (kit.producer, kit.consumer):
        with pytest.raises(RuntimeError):
            make()


def test_start_without_a_broker_raises_a_connection_error(kit: Kit, topic: str) -> None:
    async def program() -> None:
        away = kit._replace(servers=NOWHERE)
        for client in (away.producer(), away.consumer(topic), away.consumer(topic, group_id="g")):
            with pytest.raises(errors.KafkaConnectionError, match="bootstrap"):
                await client.start()
            await client.stop()

    run(program())


# ------------------------------------------------------------------------------------------------------ transactions


def test_transactions_commit_and_abort(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.producer(transactional_id=f"id-{topic}") as producer:
            async with producer.transaction():
                await producer.send(topic, b"committed", partition=0)
                offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "text")}
                await producer.send_offsets_to_transaction(offsets, f"group-{topic}")
            with pytest.raises(KeyError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"aborted", partition=0)
                    raise KeyError
            with pytest.raises(errors.IllegalOperation):
                await producer.send(topic, b"outside")
            with pytest.raises(ValueError):
                async with producer.transaction():
                    await producer.send_offsets_to_transaction({}, None)
        async with kit.producer() as producer:
            for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(errors.IllegalOperation):
                    await call()
            await producer.send_and_wait(topic, b"plain", partition=0)
        options = {"group_id": f"group-{topic}", "isolation_level": "read_committed"}
        async with kit.consumer(topic, **options) as consumer:
            assert await consumer.committed(TopicPartition(topic, 0)) == 1
            await consumer.seek_to_beginning()
            assert await read(consumer, 2) == [b"committed", b"plain"]

    run(program())


def test_a_second_producer_fences_the_first(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.producer(transactional_id=f"id-{topic}") as first:
            await first.begin_transaction()
            async with kit.producer(transactional_id=f"id-{topic}"):
                with pytest.raises((errors.ProducerFenced, errors.InvalidProducerEpoch)):
                    await first.send_and_wait(topic, b"v")
                with pytest.raises((errors.ProducerFenced, AssertionError)):  # the latter is aiokafka's
                    await first.commit_transaction()

    run(program())


# ---------------------------------------------------------------------------------------------------------- consumer


def test_a_group_reads_commits_and_continues(kit: Kit, topic: str) -> None:
    place = TopicPartition(topic, 0)

    async def program() -> None:
        await kit.fill(topic, 5)
        async with kit.consumer(topic, group_id=f"g-{topic}", enable_auto_commit=False) as consumer:
            assert consumer.assignment() == {place}
            assert consumer.subscription() == {topic}
            assert await read(consumer, 2) == [b"v0", b"v1"]
            assert await consumer.position(place) == 2
            await consumer.commit()
            assert await consumer.committed(place) == 2
            await consumer.commit({place: OffsetAndMetadata(3, "text")})
            with pytest.raises(errors.IllegalStateError):
                await consumer.commit({TopicPartition(topic, 9): 1})
            assert (consumer.highwater(place), consumer.last_stable_offset(place)) == (5, 5)
            assert consumer.last_poll_timestamp(place) > 0
        async with kit.consumer(topic, group_id=f"g-{topic}") as consumer:
            assert await read(consumer, 2) == [b"v3", b"v4"]
        async with kit.consumer(topic, group_id=f"g-{topic}") as consumer:  # stop() has committed
            assert await consumer.committed(place) == 5

    run(program())


def test_getmany_returns_records_by_partition(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.admin_class(bootstrap_servers=kit.servers) if kit.name == "kcodec" else _Admin(kit) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])
        async with kit.producer() as producer:
            for number in range(6):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with kit.consumer(topic) as consumer:
            found = await consumer.getmany(second, timeout_ms=5000, max_records=2)
            assert {one: [each.value for each in rows] for one, rows in found.items()} == {second: [b"1", b"3"]}
            assert (await consumer.getone(first)).value == b"0"
            rest: dict[Any, Any] = {}
            while sum(map(len, rest.values())) < 3:
                for one, rows in (await consumer.getmany(timeout_ms=5000)).items():
                    rest.setdefault(one, []).extend(each.value for each in rows)
            assert rest == {first: [b"2", b"4"], second: [b"5"]}
            assert await consumer.getmany(timeout_ms=10) == {} == await consumer.getmany()
            for wrong in (0, -1, "x"):
                with pytest.raises(ValueError):
                    await consumer.getmany(max_records=wrong)

    run(program())


class _Admin:
    """aiokafka's admin client as a block, which it has no `with` for."""

    def __init__(self, kit: Kit) -> None:
        self._client = kit.admin_class(bootstrap_servers=kit.servers)

    async def __aenter__(self) -> Any:
        await self._client.start()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()


def test_positions_and_offsets_are_looked_up(kit: Kit, topic: str) -> None:
    place = TopicPartition(topic, 0)

    async def program() -> None:
        await kit.fill(topic, 5)
        async with kit.consumer(topic) as consumer:
            consumer.seek(place, 3)
            assert await read(consumer, 1) == [b"v3"]
            assert await consumer.seek_to_beginning(place)
            assert await read(consumer, 1) == [b"v0"]
            assert await consumer.seek_to_end()
            assert await consumer.position(place) == 5
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: 5}
            found = await consumer.offsets_for_times({place: 1002})
            assert found == {place: (2, 1002)}
            assert await consumer.offsets_for_times({place: 10**12}) == {place: None}
            assert topic in await consumer.topics()
            assert consumer.partitions_for_topic(topic) == {0}
            with pytest.raises(ValueError):
                consumer.seek(place, -1)
            with pytest.raises(errors.IllegalStateError):
                consumer.seek(TopicPartition(topic, 9), 1)
            with pytest.raises(ValueError):
                await consumer.offsets_for_times({place: -1})
            with pytest.raises(errors.IllegalOperation):
                await consumer.commit()

    run(program())


def test_paused_partitions_return_nothing(kit: Kit, topic: str) -> None:
    place = TopicPartition(topic, 0)

    async def program() -> None:
        await kit.fill(topic, 2)
        async with kit.consumer() as consumer:
            consumer.assign([place])
            consumer.pause(place)
            assert consumer.paused() == {place}
            assert await consumer.getmany(timeout_ms=100) == {}
            consumer.resume(place)
            assert await read(consumer, 2) == [b"v0", b"v1"]
            with pytest.raises(errors.IllegalStateError):
                consumer.subscribe([topic])
            consumer.unsubscribe()
            assert consumer.assignment() == set()

    run(program())


def test_listeners_see_each_rebalance_in_the_background(kit: Kit, topic: str) -> None:
    """The first member gives a partition away although it never requests a record meanwhile."""
    listener, places = Listener(), {TopicPartition(topic, 0), TopicPartition(topic, 1)}

    async def program() -> None:
        async with _Admin(kit) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])
        first = kit.consumer(group_id=f"g-{topic}")
        first.subscribe([topic], listener=listener)
        async with first:
            assert listener.calls == [("revoked", set()), ("assigned", places)]
            async with kit.consumer(topic, group_id=f"g-{topic}") as second:
                assert len(second.assignment()) == 1
                while len(listener.calls) < 4:
                    await asyncio.sleep(0.02)
                assert listener.calls[2] == ("revoked", places)
                assert listener.calls[3] == ("assigned", places - second.assignment())
            count = len(listener.calls)
            while len(first.assignment()) < 2:
                await asyncio.sleep(0.02)
        assert [kind for kind, _ in listener.calls[4:]] == ["revoked", "assigned"], count

    run(program())


def test_a_member_that_reads_nothing_loses_its_partitions(kit: Kit, topic: str) -> None:
    """After max_poll_interval_ms, and until it reads again."""

    async def program() -> None:
        await kit.fill(topic, 2)
        options = {"group_id": f"g-{topic}", "max_poll_interval_ms": 1000, "heartbeat_interval_ms": 100}
        async with kit.consumer(topic, **options), kit.consumer(topic, group_id=f"g-{topic}") as other:
            busy = asyncio.create_task(read(other, 3))  # there are two: it goes on to wait
            while not other.assignment():
                await asyncio.sleep(0.05)
            busy.cancel()

    run(program())


def test_an_assignment_may_follow_a_subscription_at_once(kit: Kit, topic: str) -> None:
    place = TopicPartition(topic, 0)

    async def program() -> None:
        await kit.fill(topic, 3)
        async with kit.consumer(topic, group_id=f"g-{topic}") as consumer:
            assert await read(consumer, 1) == [b"v0"]
            with pytest.raises(errors.IllegalStateError):
                consumer.assign([place])
            consumer.unsubscribe()
            consumer.assign([place])
            assert consumer.assignment() == {place}
            consumer.seek(place, 2)
            assert await read(consumer, 1) == [b"v2"]
            await consumer.commit()
            assert await consumer.committed(place) == 3

    run(program())


def test_a_pattern_matches_the_beginning_of_names(kit: Kit, topic: str) -> None:
    async def program() -> None:
        await kit.fill(f"{topic}-a")
        await kit.fill(f"x-{topic}")
        for group in (None, f"g-{topic}"):
            consumer = kit.consumer(group_id=group)
            consumer.subscribe(pattern=re.compile(topic.upper(), re.IGNORECASE))
            async with consumer:
                assert (await asyncio.wait_for(consumer.getone(), SECONDS)).topic == f"{topic}-a"
                assert consumer.subscription() == {f"{topic}-a"}
            consumer.unsubscribe()

    run(program())


@pytest.mark.parametrize("has_group", [False, True])
def test_a_pattern_may_replace_topics(kit: Kit, topic: str, has_group: bool) -> None:
    """Its topics are read at once, and not after metadata_max_age_ms."""

    async def program() -> None:
        other = f"other-{topic}"
        for name in (topic, other):
            await kit.fill(name)
        async with kit.consumer(topic, group_id=f"g-{topic}" if has_group else None) as consumer:
            assert await read(consumer, 3) == [b"v0", b"v1", b"v2"]
            consumer.unsubscribe()
            consumer.subscribe(pattern=f"^{other}$")
            record = await asyncio.wait_for(consumer.getone(), SECONDS / 2)
            assert (record.topic, record.value) == (other, b"v0")
            assert consumer.subscription() == {other}

    run(program())


def test_wrong_subscriptions_raise_the_same_errors(kit: Kit, topic: str) -> None:
    async def program() -> None:
        consumer = kit.consumer()
        for kind, arguments in (
            (TypeError, {}),
            (TypeError, {"topics": [topic], "pattern": "x"}),
            (TypeError, {"topics": topic}),
            (TypeError, {"topics": [topic], "listener": object()}),
            (ValueError, {"pattern": "("}),
        ):
            with pytest.raises(kind):
                consumer.subscribe(**arguments)

    run(program())


def test_stop_ends_a_waiting_call_and_a_loop(kit: Kit, topic: str) -> None:
    async def loop_over(consumer: Any) -> list[bytes]:
        return [record.value async for record in consumer]

    async def program() -> None:
        await kit.fill(topic, 2)
        for call in (loop_over, lambda consumer: read(consumer, 3)):
            consumer = kit.consumer(topic)
            await consumer.start()
            task = asyncio.create_task(call(consumer))
            await asyncio.sleep(0.2)
            await consumer.stop()
            if call is loop_over:
                assert await task == [b"v0", b"v1"]
            else:
                with pytest.raises(errors.ConsumerStoppedError):
                    await task
            with pytest.raises(errors.ConsumerStoppedError):
                await consumer.getmany()

    run(program())


def test_a_failing_deserializer_raises_until_a_seek(kit: Kit, topic: str) -> None:
    """Also one that fails for a tombstone, which aiokafka passes to the function as None."""
    place = TopicPartition(topic, 0)

    def strict(value: bytes | None) -> Any:
        if value in (None, b"v2"):
            raise LookupError(value)
        return value

    async def program() -> None:
        await kit.fill(topic, 3)
        async with kit.producer() as producer:
            await producer.send_and_wait(topic, None, b"k", partition=0)
            await producer.send_and_wait(topic, b"last", b"k", partition=0)
        async with kit.consumer(topic, value_deserializer=strict) as consumer:
            assert await read(consumer, 2) == [b"v0", b"v1"]
            for offset in (2, 3):
                for _ in range(2):
                    with pytest.raises(LookupError):
                        await asyncio.wait_for(consumer.getone(), SECONDS)
                    assert await consumer.position(place) == offset
                consumer.seek(place, offset + 1)
            assert await read(consumer, 1) == [b"last"]

    run(program())


def test_no_offset_raises_an_error_with_reset_none(kit: Kit, topic: str) -> None:
    async def program() -> None:
        await kit.fill(topic)
        async with kit.consumer(topic, group_id=f"g-{topic}", auto_offset_reset="none") as consumer:
            with pytest.raises(errors.NoOffsetForPartitionError):
                await asyncio.wait_for(consumer.getone(), SECONDS)

    run(program())


def test_several_tasks_may_read_one_consumer(kit: Kit, topic: str) -> None:
    async def program() -> None:
        async with kit.consumer(topic) as consumer:
            tasks = [asyncio.create_task(read(consumer, 1)) for _ in range(3)]
            await asyncio.sleep(0.1)
            await kit.fill(topic, 3)
            assert sorted(value for found in await asyncio.gather(*tasks) for value in found) == [b"v0", b"v1", b"v2"]

    run(program())


# ------------------------------------------------------------------------------------------------- only of the facade


def test_getmany_keeps_records_before_a_failing_one(ours: Kit, topic: str) -> None:
    """aiokafka loses them."""

    async def program() -> None:
        await ours.fill(topic, 3)
        async with ours.consumer(topic, value_deserializer=lambda value: 1 // (value != b"v2")) as consumer:
            found = await consumer.getmany(timeout_ms=5000)
            assert [each.offset for rows in found.values() for each in rows] == [0, 1]
            with pytest.raises(ZeroDivisionError):
                await consumer.getmany(timeout_ms=5000)

    run(program())


def test_admin_creates_and_describes_topics_and_groups(ours: Kit, topic: str) -> None:
    async def program() -> None:
        async with _Admin(ours) as admin:
            created = await admin.create_topics([NewTopic(topic, 3, 1)])
            assert created.topic_errors == [(topic, 0, None)]
            again = await admin.create_topics([NewTopic(topic, 3, 1)])
            assert again.topic_errors[0][1] == errors.TopicAlreadyExistsError.errno
            assert topic in await admin.list_topics()
            (described,) = await admin.describe_topics([topic])
            assert sorted(one["partition"] for one in described["partitions"]) == [0, 1, 2]
            assert len((await admin.describe_cluster())["brokers"]) == 1
            await ours.fill(topic)
            async with ours.consumer(topic, group_id=f"g-{topic}") as consumer:
                await read(consumer, 3)
            place = TopicPartition(topic, 0)
            assert (await admin.list_consumer_group_offsets(f"g-{topic}"))[place].offset == 3
            assert (f"g-{topic}", "consumer") in await admin.list_consumer_groups()
            assert (await admin.delete_topics([topic])).topic_error_codes == [(topic, 0)]
            with pytest.raises(NotImplementedError, match=r"kcodec\.client\.aio\.Admin"):
                await admin.describe_configs([])

    run(program())


def test_the_own_client_of_aiokafka_opens_no_connection(ours: Kit, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from the module of the facade nor after install(clients=True)."""
    opened: list[str] = []
    for owner, name in ((aiokafka.client.AIOKafkaClient, "__init__"), (aiokafka.conn.AIOKafkaConnection, "__init__")):
        monkeypatch.setattr(owner, name, lambda *given, **named: opened.append("opened"))

    async def program() -> None:
        import aiokafka.consumer
        import aiokafka.producer

        replaced = (aiokafka.AIOKafkaProducer, aiokafka.consumer.AIOKafkaConsumer, aiokafka.admin.AIOKafkaAdminClient)
        assert replaced == (facade.AIOKafkaProducer, facade.AIOKafkaConsumer, facade.AIOKafkaAdminClient)
        kit = Kit("installed", *replaced, ours.servers)
        await kit.fill(topic)
        async with kit.consumer(topic, group_id=f"g-{topic}") as consumer:
            assert len(await read(consumer, 3)) == 3
        async with _Admin(kit) as admin:
            assert topic in await admin.list_topics()

    facade.install(clients=True)
    try:
        run(program())
    finally:
        facade.uninstall()
    assert opened == []
    assert aiokafka.AIOKafkaProducer is THEIRS["AIOKafkaProducer"]
    assert aiokafka.admin.AIOKafkaAdminClient is THEIRS["AIOKafkaAdminClient"]


def test_install_without_clients_keeps_the_clients_of_aiokafka() -> None:
    facade.install()
    try:
        assert aiokafka.AIOKafkaConsumer is THEIRS["AIOKafkaConsumer"]
        facade.install(clients=True)
        assert aiokafka.AIOKafkaConsumer is facade.AIOKafkaConsumer
    finally:
        facade.uninstall()
    assert aiokafka.AIOKafkaConsumer is THEIRS["AIOKafkaConsumer"]


class Wrapper:
    """A wrapper around a method that can be changed, as those of wrapt, with which instrumentations trace a class."""

    def __init__(self, wrapped: Any, calls: list[str]) -> None:
        self.__wrapped__ = wrapped
        self._self_wrapper = calls

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = self.__wrapped__.__get__(instance, owner)

        def traced(*given: Any, **named: Any) -> Any:
            self._self_wrapper.append(self.__wrapped__.__module__)
            return bound(*given, **named)

        return traced


def test_install_keeps_the_wrappers_of_an_instrumentation(
    ours: Kit, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instrumentation that was applied before install(), even twice, traces the clients of kcodec."""
    calls: list[str] = []
    own, send = THEIRS["AIOKafkaProducer"], THEIRS["AIOKafkaProducer"].send
    facade_send = facade.AIOKafkaProducer.send
    monkeypatch.setattr(own, "send", Wrapper(Wrapper(send, calls), calls))

    async def program() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=ours.servers) as producer:
            assert isinstance(producer, facade.AIOKafkaProducer)
            assert (await producer.send_and_wait(topic, b"v")).offset == 0

    facade.install(clients=True)
    try:
        run(program())
    finally:
        facade.uninstall()
    inside = facade_send.__module__
    assert inside.startswith("kcodec.")
    assert calls == [Wrapper.__module__, inside]
    assert facade.AIOKafkaProducer.send is facade_send
    assert vars(own)["send"].__wrapped__.__wrapped__ is send


def test_install_warns_of_a_wrapper_that_it_cannot_keep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = THEIRS["AIOKafkaConsumer"]

    @functools.wraps(own.getone)
    def traced(*given: Any, **named: Any) -> Any:
        raise AssertionError

    facade.install(clients=True)
    facade.uninstall()
    assert caplog.text == ""
    monkeypatch.setattr(own, "getone", traced)
    facade.install(clients=True)
    facade.uninstall()
    (found,) = [record.getMessage() for record in caplog.records]
    assert found.startswith("aiokafka.AIOKafkaConsumer: the wrapper of getone has no effect on the clients of kcodec")


@pytest.mark.parametrize("name", ["AIOKafkaConsumer", "AIOKafkaProducer"])
def test_the_error_of_a_misspelt_method_has_no_hint(name: str) -> None:
    """The hint is for private attributes. aiokafka does not have this method either."""
    kind = getattr(facade, name)
    client = kind.__new__(kind)
    client._closed = True
    with pytest.raises(AttributeError, match=f"'{name}' object has no attribute 'sned'$"):
        _ = client.sned


def test_attributes_that_instrumentations_read(kit: Kit, topic: str) -> None:
    """OpenTelemetry and ddtrace put them into the spans."""

    def choose(key: bytes | None, everything: list[int], available: list[int]) -> int:
        return everything[-1]

    async def program() -> None:
        async with _Admin(kit) as admin:
            await admin.create_topics([NewTopic(topic, 3, 1)])
        servers = [kit.servers]
        given = {"bootstrap_servers": servers, "client_id": "own"}
        serializers = {"key_serializer": str.encode, "value_serializer": str.encode}
        async with kit.producer_class(**given, **serializers) as producer:
            assert (producer.client._bootstrap_servers, producer.client._client_id) == (servers, "own")
            assert (producer._key_serializer, producer._value_serializer) == (str.encode, str.encode)
            assert await producer.client._wait_on_metadata(topic) == {0, 1, 2}
            assert producer._partition(topic, 2, "k", "v", b"k", b"v") == 2
            with pytest.raises(AssertionError):
                producer._partition(topic, 7, "k", "v", b"k", b"v")
            for key in "abc":
                chosen = producer._partition(topic, None, key, "v", key.encode(), b"v")
                assert (await producer.send_and_wait(topic, "v", key)).partition == chosen
            # The producer of kcodec chooses a partition for a record without a key when it sends the record.
            found = producer._partition(topic, None, None, "v", None, b"v")
            assert found is None if kit.name != "aiokafka" else found in {0, 1, 2}
        async with kit.producer(partitioner=choose) as producer:
            await producer.partitions_for(topic)
            assert producer._partition(topic, None, None, b"v", None, b"v") == 2
        async with kit.producer() as producer:
            assert producer.client._bootstrap_servers == kit.servers
            assert re.fullmatch(r"aiokafka-producer-\d+", producer.client._client_id)
        async with kit.consumer_class(topic, group_id="g", **given) as consumer:
            assert (consumer._client._bootstrap_servers, consumer._client._client_id) == (servers, "own")
            assert consumer._group_id == "g"

    run(program())


def test_a_missing_private_attribute_names_an_alternative(ours: Kit) -> None:
    async def program() -> None:
        async with ours.producer() as producer, ours.consumer() as consumer:
            for owner, name in ((producer, "_sender"), (producer.client, "send"), (consumer, "_fetcher")):
                assert not hasattr(owner, name)
                with pytest.raises(AttributeError, match=rf"has no attribute '{name}'.*install\(\) without clients"):
                    getattr(owner, name)

    run(program())


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_parameters_and_methods_are_those_of_aiokafka(name: str) -> None:
    """Every public method of aiokafka is there, with the same parameters and defaults."""

    def parameters(function: Callable[..., Any]) -> list[Any]:
        found = list(inspect.signature(function).parameters.values())
        return [(one.name, one.kind, None if name != "AIOKafkaConsumer" else one.default) for one in found]

    own = getattr(facade, name)
    assert parameters(own.__init__) == parameters(THEIRS[name].__init__)
    for method, function in inspect.getmembers(THEIRS[name], inspect.isfunction):
        if method.startswith("_") or (name == "AIOKafkaAdminClient" and not hasattr(own, method)):
            continue
        assert [one[:2] for one in parameters(getattr(own, method))] == [one[:2] for one in parameters(function)], (
            method
        )
        assert inspect.iscoroutinefunction(getattr(own, method)) == inspect.iscoroutinefunction(function), method


def test_options_without_a_counterpart_are_refused(ours: Kit) -> None:
    class Custom(RangePartitionAssignor):  # type: ignore[misc]
        name = "custom"

    async def program() -> None:
        with pytest.raises(ValueError, match="RoundRobinPartitionAssignor"):
            ours.consumer(partition_assignment_strategy=[Custom])
        with pytest.raises(ValueError, match="sasl_mechanism"):
            ours.producer(security_protocol="SASL_PLAINTEXT", sasl_mechanism="NTLM")

    run(program())


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky.sticky_assignor"])
def test_assignors_of_kafka_python_are_accepted(ours: Kit, topic: str, name: str) -> None:
    """taskiq-aio-kafka passes an assignor of kafka-python 2 to aiokafka, which runs it."""
    found = vars(importlib.import_module(f"kafka.coordinator.assignors.{name}"))
    (assignor,) = [one for other, one in found.items() if re.fullmatch(r"(Range|RoundRobin|Sticky)\w+Assignor", other)]

    async def program() -> None:
        await ours.fill(topic)
        group: dict[str, Any] = {"group_id": f"g-{topic}", "partition_assignment_strategy": [assignor]}
        async with ours.consumer(topic, **group) as consumer:
            assert len(await read(consumer, 3)) == 3

    run(program())


def test_the_module_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    module = importlib.import_module("kcodec.compat.aiokafka")
    with pytest.raises(ImportError):
        _ = module.AIOKafkaConsumer
