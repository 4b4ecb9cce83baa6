# SPDX-License-Identifier: Apache-2.0
"""What the append path must survive: interrupted calls, rows that lend their headers, wrong partitions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from interrupted_calls import interrupted
from scripted_broker import Rig, ScriptedCluster

import kcodec
from kcodec.broker import Broker
from kcodec.client import Admin, Producer, aio, waiting
from kcodec.errors import EncodeError
from kcodec.producer.accumulator import Accumulator
from kcodec.producer.delivery import TableDelivery


def test_headers_of_a_row_that_changes_are_kept() -> None:
    """The row gives its headers up while its timestamp is read."""

    class Changing:
        def __index__(self) -> int:
            row["headers"] = None
            return 1

    for _ in range(200):
        row: dict[str, object] = {"value": b"v"}
        row["headers"] = tuple((f"name-{number}", b"%d" % number) for number in range(20))
        row["timestamp"] = Changing()
        (record,) = kcodec.decode(kcodec.encode([row])).records()
        assert list(record.headers) == [(f"name-{number}", b"%d" % number) for number in range(20)]


def test_headers_of_a_record_that_waits_for_metadata_are_copied() -> None:
    """As its key and value are: the caller may use a buffer again, or release a view, once `send` has returned."""
    world = ScriptedCluster()
    world.create_topic("orders")
    rig = Rig(world)
    buffer = bytearray(b"0")
    for number in range(3):
        buffer[:] = b"%d" % number
        view = memoryview(buffer)
        assert rig.core.append("orders", None, buffer, (("number", view), ("null", None)), 0, 0) is not None
        view.release()
    rig.flush()
    (data,) = world.requests[0][2].topic_data[0].partition_data
    assert data.records is not None
    records = kcodec.decode(bytes(data.records)).records()
    assert [(record.value, record.headers[0][1], record.headers[1][1]) for record in records] == [
        (b"%d" % number, b"%d" % number, None) for number in range(3)
    ]


@pytest.mark.parametrize("partition", ["0", 1.0, b"0"])
def test_a_partition_of_a_wrong_type_fails_its_record_only(kcodec_broker: Broker, partition: object) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        with pytest.raises(EncodeError, match="partition must be an int or None, got"):
            producer.send(topic, b"v", partition=partition)  # type: ignore[arg-type]
        assert producer.send(topic, b"v").result(30).offset == 0


def test_methods_that_were_not_used_yet_can_be_mocked() -> None:
    with mock.patch.object(aio.Admin, "list_topics", return_value=5) as mocked:
        assert isinstance(mocked, mock.AsyncMock)
    with mock.patch.object(Admin, "list_topics", autospec=True, return_value=5):
        assert Admin.list_topics(mock.Mock()) == 5  # type: ignore[comparison-overlap]


def send_rows(accumulator: Accumulator) -> None:
    accumulator.append_slowly(
        "orders", bytearray(b"k"), memoryview(b"value"), (("name", memoryview(b"v")),), None, 1000
    )


def send_encoded(accumulator: Accumulator) -> None:
    table = TableDelivery("orders", accumulator.lock)
    accumulator.append_batch("orders", 0, bytes(kcodec.encode([{"value": b"v", "timestamp": 1000}])), 1, table)


@pytest.mark.parametrize(
    "is_known, call, settings",
    [
        (False, send_rows, {}),
        (True, send_rows, {}),
        (True, send_rows, {"batch_size": 0}),
        (True, send_rows, {"linger": 0.01}),
        (True, send_encoded, {}),
    ],
)
def test_an_interrupted_send_appends_its_record_or_does_not(
    is_known: bool, call: Callable[[Accumulator], None], settings: dict[str, Any]
) -> None:
    """Wherever the interruption is: a record in the buffer is sent, without another call, and its memory is free then.
    flush and close would otherwise wait for it without end."""
    counts = set()
    for at in itertools.count():
        world = ScriptedCluster()
        (log,) = world.create_topic("orders")
        rig = Rig(world, **{"linger": 0.0, **settings})
        world.run(0.1)
        if is_known:
            rig.send("orders", b"first")
            rig.flush()
        accumulator = rig.core.accumulator
        is_interrupted = interrupted(functools.partial(call, accumulator), at)
        world.run(5.0)
        assert not accumulator.unfinished, f"at {at}"
        assert accumulator.memory.free == rig.settings.buffer_memory, f"at {at}"
        counts.add(len(log.records) - is_known)
        rig.send("orders", b"last")
        world.run(5.0)
        assert log.values[-1] == b"last"
        if not is_interrupted:
            break
    assert counts == {0, 1} and at > 10


def test_the_table_of_an_interrupted_batch_ends() -> None:
    """Wherever the interruption is: send_arrow then seals the table, and its callbacks are called."""
    for at in itertools.count():
        world = ScriptedCluster()
        world.create_topic("orders")
        rig = Rig(world, linger=0.0)
        world.run(0.1)
        rig.send("orders", b"first")
        rig.flush()
        accumulator = rig.core.accumulator
        table = TableDelivery("orders", accumulator.lock)
        data = bytes(kcodec.encode([{"value": b"v", "timestamp": 1000}]))
        is_interrupted = interrupted(lambda: accumulator.append_batch("orders", 0, data, 1, table), at)  # noqa: B023
        table.seal()
        world.run(5.0)
        assert table.done(), f"at {at}"
        if not is_interrupted:
            break
    assert at > 10


def test_an_interrupted_wait_for_buffer_space_leaves_no_lock_held(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O thread would wait for it forever. A thread that could not leave the queue loses its position."""
    monkeypatch.setattr(waiting, "LOST_SECONDS", 0.0)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, max_block_ms=20) as producer:
        for at in itertools.count():
            found = iter([None, 5])
            put = functools.partial(next, found)
            is_interrupted = interrupted(functools.partial(producer._put_when_space, put), at)
            assert not producer._lock.locked(), f"at {at}"
            if not is_interrupted:
                break
        assert at > 5
        with producer._lock:
            for _ in range(2):
                producer._space.wake_first()
        assert producer._core.accumulator.memory.waiters == 0


def test_threads_that_wait_for_buffer_space_are_woken(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.faults.add("Produce", delay_ms=50, count=3)
    size = 2000
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, batch_size=500, buffer_memory=size) as producer:

        def send(number: int) -> None:
            for _ in range(40):
                producer.send(topic, b"%d" % number * 200)

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(send, range(5)))
        producer.flush(30)
        assert producer._core.accumulator.memory.free == size
        assert producer._core.accumulator.memory.waiters == 0
    assert len(kcodec_broker.committed(topic)) == 200


def test_an_interrupted_wait_for_a_result_does_not_stop_the_producer(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.faults.add("Produce", delay_ms=10)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        for at in itertools.count():
            delivery = producer.send(topic, b"v")
            is_interrupted = interrupted(delivery.result, at)
            producer.flush(10)
            if not is_interrupted:
                break
    assert at > 10  # it is 8 if the record has ended already
