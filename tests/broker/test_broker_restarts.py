# SPDX-License-Identifier: Apache-2.0
"""Restarts of the embedded broker: what it keeps, forked processes, and data directories of other versions."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kcodec.broker import Broker
from kcodec.broker.clock import Clock
from kcodec.broker.partition_log import PartitionLog
from kcodec.broker.server import Server
from kcodec.broker.topics import Topic
from kcodec.cli import main
from kcodec.client import Producer
from kcodec.errors import KcodecError, UnsupportedError


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("is_manual", [True, False])
def test_the_time_continues_after_a_restart(tmp_path: Path, is_manual: bool) -> None:
    """If the clock went back, a transaction that began before the restart would not time out."""
    with Broker(data_dir=tmp_path, manual_clock=is_manual) as broker:
        clock = broker.clock
        clock.advance(3_600_000)
        now = clock.now_ms()
        producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x")
        with pytest.raises(KcodecError), producer, producer.transaction() as transaction:
            transaction.send("t", b"v").result(20)
            broker.crash()
            broker.start()
            assert 0 <= broker.clock.now_ms() - now < 600_000
            clock.advance(70_000)
            assert broker.transactions()["x"].state.name == "COMPLETE_ABORT"


@pytest.mark.parametrize("start_ms", [None, 0, 1_000])
def test_a_new_broker_continues_the_time_of_its_directory(tmp_path: Path, start_ms: int | None) -> None:
    """Otherwise, a transaction that the earlier broker left open would begin in the future and not time out."""
    options: dict[str, Any] = {"data_dir": tmp_path, "manual_clock": start_ms is not None, "start_ms": start_ms}
    options["topic_defaults"] = {"message.timestamp.type": "LogAppendTime"}
    with Broker(**options) as broker:
        broker.clock.advance(3_600_000)
        before = broker.clock.now_ms()
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer:
            producer.begin_transaction()
            producer.send("t", b"v").result(20)
            began = broker.transactions()["x"].start_ms
            broker.crash()
            producer.close(0)
    assert began >= before
    with Broker(**options) as broker:
        assert began <= broker.clock.now_ms() < began + 600_000
        assert broker.transactions()["x"].state.name == "ONGOING"
        broker.clock.advance(70_000)
        assert broker.transactions()["x"].state.name == "COMPLETE_ABORT"


def test_timestamps_of_clients_do_not_move_the_clock_of_a_new_broker(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": tmp_path, "manual_clock": True}
    with Broker(start_ms=10_000_000, **options) as broker:
        broker.create_topic("t", 1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("t", b"v", timestamp=13_000_000).result(20)
        broker.clock.advance(1_000_000)
        broker.create_topic("u", 1, message_timestamp_type="LogAppendTime")
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            broker.clock.advance(1_000_000)
            producer.send("u", b"v", timestamp=13_000_000).result(20)
    for start, expected in ((0, 12_000_000), (20_000_000, 20_000_000)):
        with Broker(start_ms=start, **options) as broker:
            assert broker.clock.now_ms() == expected


def test_fault_rules_apply_from_the_first_request_on() -> None:
    rules: list[Any] = ["Metadata,count=1,drop=before", {"api": "Produce", "count": 1, "error": "NOT_ENOUGH_REPLICAS"}]
    with Broker(fault_rules=rules) as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=500) as producer:
            producer.send("t", b"v").result(20)
        first, second = broker.core.faults
        assert (first.api, first.hits, second.api, second.hits) == ("Metadata", 1, "Produce", 1)
        broker.restart()
        assert list(broker.core.faults) == [first, second]


@pytest.mark.parametrize("is_command", [True, False])
def test_fault_rules_are_there_before_the_broker_listens(monkeypatch: pytest.MonkeyPatch, is_command: bool) -> None:
    """A client that is already waiting for the broker may send its first request at once."""
    found: list[list[str]] = []

    async def start(server: Server) -> None:
        found.append([rule.api for rule in server.core.faults])
        raise OSError("the port is in use")

    monkeypatch.setattr(Server, "start", start)
    if is_command:
        assert main(["broker", "--port", "0", "--fault", "Produce,drop=after"]) == 2
    else:
        broker = Broker(fault_rules=["Produce,drop=after"])
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                broker.start()
    assert set(map(tuple, found)) == {("Produce",)}


def test_rules_and_wire_log_continue_after_a_restart() -> None:
    with Broker() as broker:
        log = broker.wire_log
        removed = broker.faults.add("Produce", drop="after")
        rule = broker.faults.add("Produce", count=1, error="NOT_ENOUGH_REPLICAS")
        broker.faults.remove(removed)
        broker.restart()
        with Producer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=5) as producer:
            producer.send("t", b"v").result(20)
        assert (rule.hits, removed.hits) == (1, 0)
        assert len(log.requests("Produce")) == len(broker.wire_log.requests("Produce")) == 2
        before = {one.connection_id for one in log.requests()}
        broker.restart()
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("t", b"v").result(20)
        assert log.requests()[-1].connection_id not in before


def test_a_restart_in_memory_allocates_other_ids() -> None:
    """With equal member ids or producer ids, the broker would mistake a client of an earlier start for a new one."""

    def ids(broker: Broker) -> set[Any]:
        broker.create_topic("t", 1)
        core = broker.core
        return {core.topics.new_uuid(), core.topics.next_producer_id(), next(iter(core.topics)).id}

    with Broker() as broker:
        before = ids(broker)
        broker.restart()
        assert not before & ids(broker)


def test_the_data_directory_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker(data_dir="logs", trace="trace") as broker:
        broker.seed("t", [b"v"])
        (tmp_path / "other").mkdir()
        monkeypatch.chdir("other")
        broker.restart()
        assert [record.value for record in broker.committed("t")] == [b"v"]
    assert not list((tmp_path / "other").iterdir())


@pytest.fixture
def child() -> Iterator[multiprocessing.Process]:
    """A process that a test forks while a broker runs, and that continues after the broker has ended."""
    process: Any = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    yield process
    process.kill()
    process.join()


def test_a_forked_process_keeps_no_connection_and_no_port(child: multiprocessing.Process) -> None:
    with Broker() as broker, socket.create_connection(address_of(broker)) as client:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("t", b"v").result(20)
            child.start()
            producer.send("t", b"w").result(20)
        broker.crash()
        client.settimeout(10)
        assert client.recv(1) == b""
        broker.start()


def test_a_client_that_connects_during_a_close_is_disconnected() -> None:
    """The close begins after the socket was accepted, and before it is a connection. asyncio would leave it open."""
    broker = Broker()
    broker.start()
    running = broker._running
    assert running is not None
    is_blocked, is_connected, is_accepting, is_closing = (threading.Event() for _ in range(4))

    def block() -> None:
        is_blocked.set()
        is_connected.wait(20)
        running.loop.call_soon(block_again)  # before the event loop accepts the socket

    def block_again() -> None:
        is_accepting.set()
        is_closing.wait(20)

    running.loop.call_soon_threadsafe(block)
    assert is_blocked.wait(20)
    with socket.create_connection(address_of(broker)) as client:
        is_connected.set()
        assert is_accepting.wait(20)
        closing = threading.Thread(target=broker.close)
        closing.start()
        time.sleep(0.1)
        is_closing.set()
        closing.join()
        client.settimeout(5)
        assert client.recv(1) == b""


@pytest.mark.parametrize("value", [bytes((1, 120, 0)), bytes((1, 2, 9)), bytes((3, 2, 0)), b""], ids=bytes.hex)
def test_a_data_directory_of_another_version_is_named(tmp_path: Path, value: bytes) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.seed("t", [b"v"])
    topic = Topic("__cluster_metadata", UUID(int=1), {})
    log = PartitionLog(tmp_path / "__cluster_metadata-0", Clock(), topic.log_settings)
    log.load(0)
    offset = log.append_records([(None, value)])
    log.close(is_clean=True)
    text = rf"{tmp_path}: frame version .* at offset {offset} of __cluster_metadata-0 is not supported; use the version"
    with pytest.raises(UnsupportedError, match=text):
        Broker(data_dir=tmp_path).start()


def test_a_maximum_below_the_lowest_version_is_refused() -> None:
    """Such a maximum would remove the API, as -1 does."""
    for name, least, limit in (("Fetch", 4, 3), ("Produce", 3, 2), ("EndTxn", 0, -2)):
        with pytest.raises(ValueError, match=rf"max_versions: {name} has the versions {least} to \d+, got {limit}; -1"):
            Broker(max_versions={name: limit}).start()


def test_an_older_broker_has_an_older_transaction_version() -> None:
    """With transaction version 2, a producer could continue after its transaction has timed out."""
    with Broker(max_versions={"EndTxn": 4}, manual_clock=True) as broker:
        assert broker.core.settings.transaction_version == 1
    with Broker(max_versions={"EndTxn": 5}, transaction_version=0) as broker:
        assert broker.core.settings.transaction_version == 0


def test_an_event_loop_may_restart_the_broker() -> None:
    async def restart() -> int:
        with Broker() as broker:
            broker.seed("t", [b"v"])
            broker.restart()
            broker.seed("t", [b"v"])
            return broker.end_offset("t")

    assert asyncio.run(restart()) == 1
