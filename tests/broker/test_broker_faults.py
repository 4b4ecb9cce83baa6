# SPDX-License-Identifier: Apache-2.0
"""Faults on demand, the wire log, the clock, and fetches that wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from broker_core import NOTHING, CoreClient

import kcodec
from kcodec import TopicPartition
from kcodec.broker import Broker, EmbeddedBrokerError
from kcodec.client import Consumer, Producer
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
        {"reorder": True, "delay_ms": 200},
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


def test_reordered_batches_are_written_in_order(kcodec_broker: Broker) -> None:
    """The second Produce of a connection arrives first: the broker refuses its sequence, and the client repeats it."""
    topic = kcodec_broker.create_topic(partitions=1)
    address = kcodec_broker.bootstrap_servers
    with Producer(bootstrap_servers=address, retry_backoff_ms=5) as producer:
        producer.send(topic, b"warm").result(20)
        rule = kcodec_broker.faults.add("Produce", topic=topic, count=1, reorder=True)
        sent = [b"first", b"second"]
        first = producer.send(topic, sent[0])
        end = time.monotonic() + 20
        while not rule.hits and time.monotonic() < end:
            time.sleep(0.001)
        producer.send(topic, sent[1]).result(20)
        first.result(20)
    assert rule.hits == 1
    assert values(kcodec_broker, topic) == [b"warm", *sent]
    codes = {
        entry.response.responses[0].partition_responses[0].error_code
        for entry in kcodec_broker.wire_log.requests("Produce")
    }
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER in codes


def test_only_the_chosen_partition_of_a_produce_fails() -> None:
    client = CoreClient()
    client.prepare(partitions=3)
    rule = client.core.faults.add("Produce", topic="t", partition=1, error="NOT_ENOUGH_REPLICAS")
    batch = bytes(kcodec.encode([(None, b"v")], timestamp=client.clock.now_ms()))
    data = [messages.PartitionProduceData(index=number, records=batch) for number in range(3)]
    request = messages.ProduceRequest(acks=-1, topic_data=[messages.TopicProduceData(name="t", partition_data=data)])
    response = client.ask(request, 12)
    assert [topic.name for topic in response.responses] == ["t"]
    found = {one.index: one.error_code for one in response.responses[0].partition_responses}
    assert found == {0: 0, 1: ErrorCode.NOT_ENOUGH_REPLICAS, 2: 0}
    ends = [partition.log.log_end_offset for partition in next(iter(client.core.topics)).partitions]
    assert ends == [1, 0, 1]
    assert rule.hits == 1


def test_a_failing_partition_does_not_hold_up_the_others(kcodec_broker: Broker) -> None:
    """A consumer in a fetch session reads the other partitions meanwhile, and the failing one afterwards."""
    topic = kcodec_broker.create_topic(partitions=2)
    for partition in (0, 1):
        kcodec_broker.seed(topic, [(None, b"%d" % partition)], partition=partition)
    options: dict[str, Any] = {"retry_backoff_ms": 5, "auto_offset_reset": "earliest", "group_id": None}
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        found: list[Any] = []
        rule = kcodec_broker.faults.add("Fetch", topic=topic, partition=1, error="NOT_LEADER_OR_FOLLOWER")
        end = time.monotonic() + 20
        while (not found or rule.hits < 3) and time.monotonic() < end:
            found += [record.value for record in consumer.poll(0.05)]
        assert (found, rule.hits >= 3) == ([b"0"], True)
        kcodec_broker.faults.clear()
        while len(found) < 2 and time.monotonic() < end:
            found += [record.value for record in consumer.poll(0.05)]
    assert found == [b"0", b"1"]


def test_probability_depends_on_the_seed_only() -> None:
    def hits(seed: int, topics: int = 0) -> list[bool]:
        client = CoreClient(seed=seed)
        client.prepare()
        for number in range(topics):  # whose ids are random
            client.core.topics.create(f"other-{number}", 1)
        rule = client.core.faults.add("Produce", probability=0.5, error="NOT_ENOUGH_REPLICAS")
        found = []
        for _ in range(30):
            before = rule.hits
            client.produce(None)
            found.append(rule.hits > before)
        return found

    assert hits(1) == hits(1, topics=3) != hits(2)
    assert 5 < sum(hits(1)) < 25


def test_states_of_the_broker_change_under_a_producer(kcodec_broker: Broker) -> None:
    """Between the transactions of one producer: leader epoch, coordinator and producer states are gone or new."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.marker_delay_ms = 30
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, transactional_id="a") as producer:
        changes: list[Callable[[], None]] = [
            lambda: None,
            lambda: kcodec_broker.change_leader_epoch(topic),
            kcodec_broker.restart_coordinators,
            lambda: kcodec_broker.expire_producers(topic),
        ]
        for number, change in enumerate(changes):
            with producer.transaction() as txn:
                txn.send(topic, b"%d" % number)
            change()
    end = time.monotonic() + 20
    while len(values(kcodec_broker, topic)) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert values(kcodec_broker, topic) == [b"0", b"1", b"2", b"3"]
    entries = kcodec_broker.wire_log.requests()
    states = {
        entry.response.transaction_states[0].transaction_state
        for entry in entries
        if entry.api == "DescribeTransactions" and entry.response is not None
    }
    assert "PrepareCommit" in states  # the producer saw that the markers of the transaction before are late
    assert {batch.partition_leader_epoch for batch in kcodec_broker.batches(topic)} == {0, 1}


def test_rule_with_two_effects_is_refused(kcodec_broker: Broker) -> None:
    with pytest.raises(ValueError, match="a rule has one effect"):
        kcodec_broker.faults.add("Produce", drop="after", duplicate=True)


@pytest.mark.parametrize("name", ["duplicate", "reorder"])
def test_flags_of_a_rule_must_be_bools(kcodec_broker: Broker, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 'yes'"):
        kcodec_broker.faults.add("Produce", **{name: "yes"})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 0}, "a rule with count 0 never applies"),
        ({"probability": 0}, "a rule with probability 0 never applies"),
        ({"error": "NONE"}, "error must not be NONE"),
        ({"delay_ms": float("inf")}, "delay_ms must not be negative or infinite"),
        ({"partition": -1}, "partition must not be negative"),
        ({"api": "Heartbeat", "topic": "t"}, "Heartbeat requests name no topics"),
        ({"api": "Metadata", "partition": 1}, "Metadata requests name no partitions"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_rule_that_never_applies_is_refused(kcodec_broker: Broker, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kcodec_broker.faults.add(**{"api": "Produce", "drop": "after", **fields})


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
    for milliseconds in (10**20, float("inf")):
        with pytest.raises(ValueError, match=r"ms must be at most 31622400000 \(366 days\)"):
            kcodec_broker.clock.advance(milliseconds)


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
