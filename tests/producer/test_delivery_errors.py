# SPDX-License-Identifier: Apache-2.0
"""Records that fail are never lost in silence: `flush` and `close` raise, an exception gets a note, the log warns."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from producer_apis import Looped, MakeClient, ProducerClient, make_client
from scripted_broker import Fault, Rig, ScriptedCluster, faults_for, send_apart, started, values

import kcodec
from kcodec.broker import Broker
from kcodec.client import Producer, aio
from kcodec.errors import BrokerError, DeliveryErrors, DeliveryTimeoutError, TopicDeliveryError
from kcodec.producer.failures import Failures
from kcodec.protocol.error_codes import ErrorCode

__all__ = ["make_client"]
NOWHERE = "127.0.0.1:1"
TOO_LARGE = b"x" * 1000


@pytest.fixture
def small(kcodec_broker: Broker) -> str:
    """A topic that refuses records of 1000 bytes."""
    return kcodec_broker.create_topic(partitions=1, max_message_bytes=200)


def test_flush_raises_what_nothing_has_retrieved(make_client: MakeClient, kcodec_broker: Broker, small: str) -> None:
    """One member for each topic and kind of error, with the number of records; the next flush begins to count again."""
    client = make_client(kcodec_broker.bootstrap_servers)
    client.send_all(small, [{"value": TOO_LARGE}] * 10)
    with pytest.raises(DeliveryErrors, match="10 records not delivered") as caught:
        client.flush()
    assert isinstance(caught.value, kcodec.KcodecError) and caught.value.count == 10
    (member,) = caught.value.exceptions
    assert isinstance(member, TopicDeliveryError)
    assert (member.topic, member.kind, member.count, member.remedy) == (small, "MESSAGE_TOO_LARGE", 10, "stop")
    assert isinstance(member.__cause__, BrokerError) and member.__cause__.name == "MESSAGE_TOO_LARGE"
    assert small in str(caught.value) and "MESSAGE_TOO_LARGE" in str(caught.value)
    client.flush()
    client.close()


def test_close_raises_too_and_is_idempotent(make_client: MakeClient, kcodec_broker: Broker, small: str) -> None:
    client = make_client(kcodec_broker.bootstrap_servers)
    client.send_all(small, [{"value": TOO_LARGE}] * 3)
    with pytest.raises(DeliveryErrors, match="3 records not delivered"):
        client.close()
    client.close()


def test_close_names_the_cause_where_no_broker_is(make_client: MakeClient) -> None:
    client = make_client(NOWHERE)
    client.send_all("orders", [{"value": b"x"}] * 7)
    with pytest.raises(DeliveryErrors, match=r"7 records not delivered.*Connect") as caught:
        client.close(timeout=0.5)
    (member,) = caught.value.exceptions
    assert isinstance(member.__cause__, DeliveryTimeoutError) and not member.__cause__.possibly_sent


def _retrieve_by_wait(client: ProducerClient, delivery: Any) -> None:
    with suppress(BrokerError):
        client.outcome(delivery)


def _retrieve_by_exception(client: ProducerClient, delivery: Any) -> None:
    _retrieve_by_wait(client, delivery) if isinstance(client, Looped) else delivery.exception()
    assert isinstance(delivery.exception(), BrokerError)


def _retrieve_by_callback(client: ProducerClient, delivery: Any) -> None:
    delivery.add_done_callback(lambda done: None)


@pytest.mark.parametrize("retrieve", [_retrieve_by_wait, _retrieve_by_exception, _retrieve_by_callback])
def test_a_retrieved_error_is_not_raised_again(
    make_client: MakeClient, kcodec_broker: Broker, small: str, retrieve: Callable[[ProducerClient, Any], None]
) -> None:
    client = make_client(kcodec_broker.bootstrap_servers)
    for delivery in client.send_all(small, [{"value": TOO_LARGE}] * 5):
        retrieve(client, delivery)
    client.flush()
    client.close()


def test_only_what_was_not_retrieved_is_counted(make_client: MakeClient, kcodec_broker: Broker, small: str) -> None:
    client = make_client(kcodec_broker.bootstrap_servers, linger_ms=50)
    deliveries = client.send_all(small, [{"value": TOO_LARGE}] * 6)
    for delivery in deliveries[:2]:
        _retrieve_by_wait(client, delivery)
        _retrieve_by_wait(client, delivery)
    deliveries[2].add_done_callback(lambda done: None)
    with pytest.raises(DeliveryErrors) as caught:
        client.flush()
    assert caught.value.count == 3


def test_tables_count_and_are_retrieved_as_a_whole(make_client: MakeClient, kcodec_broker: Broker, small: str) -> None:
    import pyarrow

    client = make_client(kcodec_broker.bootstrap_servers)
    table = pyarrow.table({"value": [TOO_LARGE] * 20})
    client.send_arrow(small, table)
    with pytest.raises(DeliveryErrors) as caught:
        client.flush()
    assert caught.value.count == 20
    delivery = client.send_arrow(small, table)
    with pytest.raises(BrokerError):
        client.outcome(delivery)
    assert isinstance(delivery.exception(), BrokerError)
    client.close()


def test_an_exception_that_leaves_the_block_gets_a_note(kcodec_broker: Broker, small: str) -> None:
    with (
        pytest.raises(ZeroDivisionError) as caught,
        Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as made,
    ):
        made.send(small, TOO_LARGE)
        raise ZeroDivisionError
    assert any("1 record not delivered" in note for note in caught.value.__notes__)

    async def leave() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as made:
            await made.send(small, TOO_LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        asyncio.run(leave())
    assert any("1 record not delivered" in note for note in caught.value.__notes__)


def test_the_end_of_the_block_raises(kcodec_broker: Broker, small: str) -> None:
    with pytest.raises(DeliveryErrors), Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as made:
        made.send(small, TOO_LARGE)

    async def leave() -> None:
        async with aio.Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as made:
            await made.send(small, TOO_LARGE)

    with pytest.raises(DeliveryErrors):
        asyncio.run(leave())


def test_a_thread_that_waits_for_a_record_has_its_error(kcodec_broker: Broker, small: str) -> None:
    """A flush at the same time does not raise it, too."""
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, linger_ms=300) as made:
        delivery = made.send(small, TOO_LARGE)
        seen: list[BaseException | None] = []
        waiting = threading.Thread(target=lambda: seen.append(delivery.exception()))
        waiting.start()
        while not delivery._where()[0].deliveries and not delivery.done():
            time.sleep(0.001)
        made.flush()
        waiting.join()
        assert isinstance(seen[0], BrokerError)


def test_a_caller_that_gave_up_has_not_retrieved_the_error() -> None:
    with Producer(bootstrap_servers=NOWHERE) as made:
        delivery = made.send("orders", b"x")
        with pytest.raises(DeliveryTimeoutError):
            delivery.result(0.01)
        with pytest.raises(DeliveryErrors) as caught:
            made.close(0.1)
        assert caught.value.count == 1

    async def give_up() -> None:
        made = aio.Producer(bootstrap_servers=NOWHERE)
        delivery = await made.send("orders", b"x")

        async def wait() -> None:
            await delivery

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0.01)
        with pytest.raises(DeliveryErrors) as caught:
            await made.close(0.1)
        assert caught.value.count == 1

    asyncio.run(give_up())


@pytest.mark.parametrize("commits", [True, False])
def test_in_a_transaction_the_commit_or_abort_reports_failures(
    kcodec_broker: Broker, small: str, commits: bool
) -> None:
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id=f"reports-{commits}") as made:
        made.begin_transaction()
        made.send(small, TOO_LARGE)
        made.flush()
        if commits:
            with pytest.raises(kcodec.AbortableTransactionError, match="MESSAGE_TOO_LARGE"):
                made.commit_transaction()
        made.abort_transaction()


def test_records_of_a_producer_whose_loop_failed_are_reported() -> None:
    def fail() -> None:
        raise SystemError("a defect")

    made = Producer(bootstrap_servers=NOWHERE)
    with pytest.raises(DeliveryErrors, match=r"1 record not delivered.*the I/O loop of this producer failed"), made:
        delivery = made.send("orders", b"x")
        made._io_loop.post(fail)
        while not delivery.done():
            time.sleep(0.01)


# In virtual time


def failing(**settings: Any) -> tuple[ScriptedCluster, Rig]:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0, **settings)
    world.faults = lambda node, request: Fault(code=ErrorCode.INVALID_RECORD)
    return world, rig


def test_failures_are_logged_soon_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    world, rig = failing()
    caplog.set_level(logging.WARNING, "kcodec.producer")
    for _ in range(100):
        send_apart(rig, "orders", values(2))
        world.run(0.5)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("4 records not delivered, and their errors were not retrieved: topic 'orders': 4 records")
    assert "INVALID_RECORD" in first
    assert "120 records" in second
    error = rig.core.take_failures()
    assert error is not None and error.count == 200


def test_a_retrieved_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    world, rig = failing()
    caplog.set_level(logging.WARNING, "kcodec.producer")
    sent = send_apart(rig, "orders", values(5))
    world.run(0.5)
    assert all(delivery.error is not None for delivery in sent)
    world.run(100.0)
    assert not caplog.records and rig.core.take_failures() is None


def test_memory_for_failures_is_bounded_by_topics() -> None:
    world, rig = failing()
    for _ in range(50):
        send_apart(rig, "orders", values(20))
        world.run(0.2)
    failures = rig.core.accumulator.failures
    assert failures is not None and len(failures._open) == 1
    error = rig.core.take_failures()
    assert error is not None and error.count == 1000 and len(error.exceptions) == 1


def test_records_of_a_split_batch_are_counted_once() -> None:
    world = ScriptedCluster()
    (log,) = world.create_topic("orders")
    rig = started(world)
    log.most_bytes = 150
    sent = [rig.send("orders", b"x" * size) for size in (10, 10, 500, 10)]
    rig.flush()
    assert [delivery.done() for delivery in sent] == [True] * 4
    error = rig.core.take_failures()
    assert error is not None and error.count == 1
    assert [delivery.error is None for delivery in sent] == [True, True, False, True]


def test_records_of_an_unknown_topic_are_counted_by_kind() -> None:
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world, max_block=3.0)
    for topic in ("ghost", "phantom", "ghost"):
        rig.send(topic, b"x")
    world.run(4.0)
    error = rig.core.take_failures()
    assert error is not None
    assert sorted((one.topic, one.count) for one in error.exceptions if isinstance(one, TopicDeliveryError)) == [
        ("ghost", 2),
        ("phantom", 1),
    ]


def test_the_text_is_bounded_and_counts_what_it_leaves_out() -> None:
    """However many topics fail and however long an error is; the members have all of it."""
    failures = Failures()
    for at in range(40):
        error: Exception = ValueError("v" * 5000) if at < 30 else OSError(f"o{at}")
        failures.add(f"topic-{at}", error, at + 1)
    error_text = failures.report_now()
    found = failures.take()
    assert found is not None and found.count == sum(range(1, 41)) and len(found.exceptions) == 40
    for text in (str(found), error_text or ""):
        assert len(text) < 1500
        assert "topic 'topic-2': 3 records failed with ValueError: vvv" in text and "topic-3" not in text
        assert "and 37 more topics or kinds of error: ValueError (459 records), OSError (355 records)" in text
    assert "v" * 5000 in str(found.exceptions[7])


def test_except_star_selects_members_and_keeps_the_kind() -> None:
    members = [
        TopicDeliveryError("failed", topic="orders", kind="A", count=2),
        TopicDeliveryError("failed", topic="orders", kind="B", count=5),
    ]
    group = DeliveryErrors("7 records not delivered", members)
    part, rest = group.split(lambda error: getattr(error, "kind", "") == "B")
    assert isinstance(part, DeliveryErrors) and isinstance(rest, DeliveryErrors)
    assert (group.count, part.count, rest.count) == (7, 5, 2)


def test_a_stalled_producer_says_why_and_how_much(caplog: pytest.LogCaptureFixture) -> None:
    """At WARNING, rarely, while records wait for a broker that cannot be reached."""
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = started(world, linger=0.0)
    world.unreachable.add(1)
    caplog.set_level(logging.WARNING, "kcodec.producer")
    send_apart(rig, "orders", values(3))
    world.run(2.9)
    assert not caplog.records
    world.run(0.2)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("3 records of topic 'orders' not acknowledged after 3 s: ") and "cannot be reached" in line
    world.run(60.0)
    assert 3 <= len(caplog.records) <= 5
    world.unreachable.clear()
    world.faults = faults_for()
    rig.flush()
    caplog.clear()
    world.run(600.0)
    assert not caplog.records
