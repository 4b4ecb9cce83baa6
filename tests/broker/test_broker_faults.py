# SPDX-License-Identifier: Apache-2.0
"""Faults on demand, the wire log, the clock, and fetches that wait."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from broker_core import NOTHING, CoreClient

from kcodec.broker import Broker, EmbeddedBrokerError
from kcodec.client import Producer
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.committed(topic)]


@pytest.mark.parametrize(
    "effect",
    [
        {"error": "NOT_ENOUGH_REPLICAS"},
        {"drop": "after"},
        {"drop": "before"},
        {"close": "after"},
        {"close": "before"},
        {"duplicate": True},
        {"delay_ms": 50},
    ],
    ids=str,
)
def test_a_faulty_produce_leaves_each_record_once(kcodec_broker: Broker, effect: dict[str, object]) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    rule = kcodec_broker.faults.add("Produce", topic=topic, partition=0, count=1, **effect)
    options: dict[str, Any] = {"request_timeout_ms": 300, "retry_backoff_ms": 10}
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as producer:
        producer.send(topic, b"a").result(20)
        producer.send(topic, b"b").result(20)
    assert values(kcodec_broker, topic) == [b"a", b"b"]
    assert rule.hits == 1


def test_an_unanswered_commit_is_found_out(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.faults.add("EndTxn", count=1, close="after")
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="a") as producer:
        with producer.transaction() as txn:
            txn.send(topic, b"a")
        assert txn.committed
    assert values(kcodec_broker, topic) == [b"a"]


def test_rules_count_skip_and_choose(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=2)
    counting = kcodec_broker.faults.add("Produce", topic="other")
    skipping = kcodec_broker.faults.add("Produce", partition=1, skip=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, client_id="me") as producer:
        for partition in (0, 1, 1, 1):
            producer.send(topic, b"a", partition=partition).result(20)
    assert (counting.hits, skipping.hits) == (0, 2)
    entries = kcodec_broker.wire_log.requests("Produce", client="me")
    assert len(entries) == 4
    assert all(entry.response.responses[0].partition_responses[0].error_code == 0 for entry in entries)
    with pytest.raises(ValueError, match="no API 'Nope'"):
        kcodec_broker.faults.add("Nope")
    with pytest.raises(ValueError, match="'before' or 'after'"):
        kcodec_broker.faults.add("Produce", drop="sometimes")


def test_time_moves_by_hand(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="late") as producer:
        producer.begin_transaction()
        producer.send(topic, b"a").result(20)
        assert kcodec_broker.transactions()["late"].state.title == "Ongoing"
        kcodec_broker.clock.advance(120_000)
        assert kcodec_broker.transactions()["late"].state.title == "CompleteAbort"
        producer.abort_transaction()
    with pytest.raises(ValueError, match="cannot go back"):
        kcodec_broker.clock.advance(-1)


def test_a_closed_broker_says_so() -> None:
    broker = Broker()
    with pytest.raises(EmbeddedBrokerError, match="does not run"):
        broker.transactions()
    with broker, pytest.raises(EmbeddedBrokerError, match="runs already"):
        broker.start()
    broker.close()
    with Broker() as first, pytest.raises(OSError, match="in use"):
        Broker(port=int(first.bootstrap_servers.rpartition(":")[2])).start()


def test_a_fetch_waits_for_committed_data() -> None:
    client = CoreClient()
    client.prepare()
    producer = client.init("a")[1]
    waiting = client.send(client.fetch_request(max_wait_ms=500), 12)
    client.produce(producer, transactional_id="a")
    assert waiting.response is NOTHING
    client.end("a", producer)
    found = waiting.response.responses[0].partitions[0]
    assert (found.last_stable_offset, len(found.records) > 0, found.aborted_transactions) == (2, True, [])
    empty = client.send(client.fetch_request(2, max_wait_ms=500), 12)
    client.clock.advance(499)
    assert empty.response is NOTHING
    client.clock.advance(1)
    assert empty.response.responses[0].partitions[0].records == b""


def test_fetch_sessions_hold_what_changed() -> None:
    client = CoreClient()
    client.prepare()
    first = client.ask(client.fetch_request(session_id=0, session_epoch=0), 12)
    assert (first.session_id > 0, len(first.responses)) == (True, 1)
    following = messages.FetchRequest(session_id=first.session_id, session_epoch=1, min_bytes=0)
    assert client.ask(following, 12).responses == []
    client.produce(None)
    following.session_epoch = 2
    assert len(client.ask(following, 12).responses[0].partitions[0].records) > 0
    assert client.ask(following, 12).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    following.session_id += 1
    assert client.ask(following, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_hostile_frames_end_their_connection_only(kcodec_broker: Broker) -> None:
    host, _, port = kcodec_broker.bootstrap_servers.rpartition(":")
    whole = encode_request(messages.MetadataRequest(topics=None), 9, 1, "c")
    hostile = [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02ab",
        b"GET / HTTP/1.1\r\n\r\n",
        whole[:4] + b"\x7f\x00" + whole[6:],
        whole[:6] + b"\x7f\x00" + whole[8:],
        whole[:12] + b"\x7f\xff" + whole[14:],
        whole[:-1] + b"\xff",
    ]
    for frame in hostile:
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(frame)
            assert connection.recv(100) == b""
    with (
        socket.create_connection((host, int(port)), 10) as idle,
        socket.create_connection((host, int(port)), 10) as half,
    ):
        half.sendall(whole[:7])
        with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
            producer.send("t", b"v").result(10)
        idle.sendall(whole)
        assert int.from_bytes(idle.recv(4), "big") > 0


def test_a_broker_starts_in_50_ms() -> None:
    with Broker():
        pass
    best = 1.0
    for _ in range(3):
        begun = time.perf_counter()
        with Broker():
            best = min(best, time.perf_counter() - begun)
    assert best < 0.05
