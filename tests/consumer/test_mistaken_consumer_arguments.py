# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type are refused where they are given, and the client can be used after that."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import aiokafka.structs
import kafka.structs
import pytest

from kcodec import read_topic
from kcodec.broker import Broker
from kcodec.client import Consumer, GroupTransactSession, aio
from kcodec.cluster.list_offsets import ListedOffset
from kcodec.offsets import TopicPartition

ORDERS = TopicPartition("orders", 0)
SECONDS = r"timeout must be a number of seconds.*pass a number, as in timeout=3.0"

MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "close": (lambda consumer: consumer.close("3"), SECONDS),
    "close without a limit": (lambda consumer: consumer.close(None), "got None; omit it for the default"),
    "unsubscribe": (lambda consumer: consumer.unsubscribe("3"), SECONDS),
    "commit": (lambda consumer: consumer.commit({ORDERS: 5}, "3"), SECONDS),
    "committed": (lambda consumer: consumer.committed([ORDERS], "3"), SECONDS),
    "position": (lambda consumer: consumer.position(ORDERS, "3"), SECONDS),
    "position of a topic": (lambda consumer: consumer.position("orders"), r"partition: expected TopicPartition\("),
    "lag": (lambda consumer: consumer.lag("3"), SECONDS),
    "seek to a result of offsets_for_times": (
        lambda consumer: consumer.seek(ORDERS, consumer.offsets_for_times({ORDERS: 0})[ORDERS]),
        r"got ListedOffset\(.*\); pass its attribute offset, which is 0",
    ),
    "seek to no result of offsets_for_times": (
        lambda consumer: consumer.seek(ORDERS, consumer.offsets_for_times({ORDERS: 2**42})[ORDERS]),
        r"got None; offsets_for_times\(\) returns None for a partition that has no record at or after the time; leave"
        r" the partition out, or call seek_to_end\(\) to continue at the end",
    ),
    "seek to a result of list_offsets without a record": (
        lambda consumer: consumer.seek(ORDERS, ListedOffset(-1)),
        r"got ListedOffset\(offset=-1.*\), which means that no record was found; call seek_to_end\(\) to continue at",
    ),
    "callback": (lambda consumer: consumer.commit_async({ORDERS: 5}, callback=5), "callback: expected a function"),
    "on_assigned": (
        lambda consumer: consumer.subscribe("orders", on_assigned="rewind"),
        "on_assigned: expected a function or None, got 'rewind'",
    ),
    "callback of confluent-kafka": (
        lambda consumer: consumer.commit_async({ORDERS: 5}, callback=lambda err, partitions: None),
        "callback: the first parameter .* is 'err', but kcodec passes the offsets first",
    ),
    "on_assigned of confluent-kafka": (
        lambda consumer: consumer.subscribe("orders", on_assigned=lambda consumer, partitions: None),
        "on_assigned: expected a function of one argument, the partitions",
    ),
    "on_revoked": (lambda consumer: consumer.subscribe("orders", on_revoked=[]), "on_revoked: expected a function"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistaken_argument_of_a_consumer_is_refused(kcodec_broker: Broker, name: str) -> None:
    """Before, close("3") ended the thread of the consumer, and a callback failed in a later poll."""
    kcodec_broker.seed("orders", [b"1", b"2"])
    make_mistake, text = MISTAKES[name]
    options: Any = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "group_id": "billing"}
    with Consumer(auto_offset_reset="earliest", **options) as consumer:
        consumer.subscribe("orders")
        while not consumer.assignment():
            consumer.poll(0.1)
        with pytest.raises(TypeError, match=text):
            make_mistake(consumer)
        consumer.seek_to_beginning()
        assert consumer.poll(10.0)


@pytest.mark.parametrize("wait", [500, 600])
def test_a_request_must_outlast_the_wait_of_a_fetch(wait: int) -> None:
    """Otherwise, each fetch without records ends in a timeout, and the connection is opened again."""
    options: Any = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_ms": 500, "fetch_max_wait_ms": wait}
    text = rf"request_timeout_ms \(500\) must be greater than fetch_max_wait_ms \({wait}\)"
    with pytest.raises(ValueError, match=text):
        Consumer(**options)
    with pytest.raises(ValueError, match=text):
        aio.Consumer(**options)
    with pytest.raises(ValueError, match=text):
        GroupTransactSession(topics="orders", group_id="g", transactional_id="t", **options)
    with pytest.raises(ValueError, match=text):
        read_topic("orders", **options)
    Consumer(**{**options, "fetch_max_wait_ms": 499}).close()


def test_a_mistaken_argument_of_an_asyncio_consumer_is_refused(kcodec_broker: Broker) -> None:
    kcodec_broker.seed("orders", [b"1", b"2"])

    async def run() -> None:
        async with aio.Consumer(
            bootstrap_servers=kcodec_broker.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign([ORDERS])
            for name in ("close", "unsubscribe", "position"):
                make_mistake, text = MISTAKES[name]
                with pytest.raises(TypeError, match=text):
                    await make_mistake(consumer)
            assert await consumer.poll(10.0)

    asyncio.run(run())


def test_a_mistaken_timeout_of_a_session_is_refused(kcodec_broker: Broker) -> None:
    kcodec_broker.seed("orders", [b"1"])
    mistaken: Any = "3"
    with GroupTransactSession(
        bootstrap_servers=kcodec_broker.bootstrap_servers,
        group_id="billing",
        transactional_id="billing-1",
        topics="orders",
        auto_offset_reset="earliest",
    ) as session:
        for call in (session.close, session.transaction):
            with pytest.raises(TypeError, match=SECONDS):
                call(mistaken)
        with session.transaction() as transaction:
            assert transaction.poll(10.0)


def test_a_list_of_partitions_is_accepted_where_several_are(kcodec_broker: Broker) -> None:
    """`pause(consumer.assignment())` is what programs for other clients contain."""
    kcodec_broker.seed("orders", [b"1", b"2"])
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
        consumer.assign([ORDERS])
        consumer.pause(consumer.assignment())
        assert consumer.paused() == {ORDERS}
        consumer.resume([ORDERS])
        assert not consumer.paused()
        consumer.seek_to_end([ORDERS])
        assert consumer.position(ORDERS, 10.0) == 2
        consumer.seek_to_beginning([])  # of none of them
        assert consumer.position(ORDERS, 10.0) == 2
        consumer.seek_to_beginning(("orders", 0))  # type: ignore[arg-type]
        assert consumer.position(ORDERS, 10.0) == 0


def test_a_topic_and_a_number_are_not_one_partition(kcodec_broker: Broker) -> None:
    """The calls take several partitions, and not the fields of one."""
    kcodec_broker.seed("orders", [b"1"])
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
        consumer.assign([ORDERS])
        calls: list[Any] = [consumer.pause, consumer.resume, consumer.seek_to_beginning, consumer.seek_to_end]
        for call in calls:
            with pytest.raises(TypeError, match="partitions: expected "):
                call("orders", 0)
        assert not consumer.paused()


@pytest.mark.parametrize("module", [aiokafka.structs, kafka.structs])
def test_partitions_of_other_clients_are_accepted_alone(kcodec_broker: Broker, module: Any) -> None:
    """They are tuples, so they are also iterables of a topic and a number. The offsets of other clients are refused,
    and the error says from which module they are."""
    kcodec_broker.seed("orders", [b"1", b"2"])
    orders = module.TopicPartition("orders", 0)
    options: Any = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "group_id": "billing"}
    offset = module.OffsetAndMetadata(*(1, "text", -1)[: len(module.OffsetAndMetadata._fields)])
    with Consumer(auto_offset_reset="earliest", **options) as consumer:
        consumer.assign(orders)
        assert consumer.end_offsets(orders) == {ORDERS: 2}
        consumer.commit({orders: 1})
        assert consumer.committed(orders).keys() == {ORDERS}
        text = rf"got OffsetAndMetadata\(.*\) of {module.__name__}; import it from kcodec"
        with pytest.raises(TypeError, match=text):
            consumer.commit({orders: offset})


def test_a_datetime_is_refused_with_the_conversion(kcodec_broker: Broker) -> None:
    kcodec_broker.seed("orders", [b"1"])
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers) as consumer:
        when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        with pytest.raises(ValueError, match=r"not datetime.*; pass int\(when\.timestamp\(\) \* 1000\)"):
            consumer.offsets_for_times({ORDERS: when})  # type: ignore[dict-item]
        found = consumer.offsets_for_times({ORDERS: int(when.timestamp() * 1000)})[ORDERS]
        assert found is not None and found.offset == 0
