# SPDX-License-Identifier: Apache-2.0
"""Limits of the broker: what clients send, hold or do not read takes a bounded amount of memory and of time."""

from __future__ import annotations

import logging
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from broker_core import NOTHING, CoreClient

from kcodec.broker import Broker, WireEntry, wire_log
from kcodec.broker.groups.linear_patterns import LinearPattern
from kcodec.broker.partition_log import PartitionLog
from kcodec.broker.wire_log import WireLog
from kcodec.client import Producer
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import FrameReader, correlation_id_of, encode_request

MIB = 1 << 20


def connected(broker: Broker, data: bytes = b"") -> socket.socket:
    host, port = broker.bootstrap_servers.split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True


def is_served(broker: Broker) -> bool:
    try:
        with connected(broker, encode_request(messages.ApiVersionsRequest(), 0, 1, "x")) as connection:
            return connection.recv(4) != b""
    except ConnectionError:
        return False


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", (1 << 31) - 1),
        struct.pack(">i", -5),
        struct.pack(">i", 0),
        b"GET / HTTP/1.1\r\n\r\n",
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", 3, 99, 1, -1)),
        framed(struct.pack(">hhih", 3, 1, 1, 500)),
        framed(struct.pack(">hhihi", 3, 1, 1, -1, (1 << 31) - 1)),
    ],
    ids=["2 GB", "negative", "empty", "HTTP", "unknown API", "unknown version", "long client id", "long array"],
)
def test_invalid_frame_closes_its_connection(data: bytes) -> None:
    with Broker() as broker:
        assert is_closed(connected(broker, data))


def test_tls_at_a_plaintext_listener_is_logged_with_its_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """The remedy was that of a client which connects to a listener with TLS."""
    caplog.set_level(logging.INFO, "kcodec")
    with Broker() as broker:
        assert is_closed(connected(broker, bytes.fromhex("1603010200010001fc0303")))
    assert "this listener does not use TLS; set security_protocol of the client to PLAINTEXT or SASL_PL" in caplog.text


def test_requests_before_an_invalid_frame_get_their_responses() -> None:
    """As with Kafka, which reads the next frame only after the response."""
    requests = [encode_request(messages.ApiVersionsRequest(), 3, number, None) for number in range(3)]
    with Broker() as broker, connected(broker, b"".join(requests) + struct.pack(">i", -1)) as sock:
        reader, found = FrameReader(1 << 20), []
        while data := sock.recv(65_536):
            found += [correlation_id_of(frame) for frame in reader.feed(data)]
    assert found == [0, 1, 2]


def test_others_are_served_among_hostile_connections() -> None:
    chosen = random.Random(1)
    with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        half_open = [connected(broker, struct.pack(">i", 100 * MIB) + b"\0\3") for _ in range(50)]
        for number in range(100):
            key, version = chosen.choice(list(broker.core.apis)), chosen.randrange(6)
            request = struct.pack(">hhih", key, version, number, -1) + chosen.randbytes(chosen.randrange(80))
            connected(broker, framed(request)).close()
            if number % 10 == 0:
                producer.send("t", b"v").result(20)
        assert broker.end_offset("t") == 10
        for connection in half_open:
            connection.close()


def test_connections_above_the_limit_are_closed() -> None:
    with Broker(max_connections=3) as broker:
        first = [connected(broker) for _ in range(3)]
        assert is_closed(connected(broker))
        first[0].close()
        end = time.monotonic() + 20
        while not is_served(broker):
            assert time.monotonic() < end, "a connection that was closed still counts"
        for connection in first[1:]:
            connection.close()


def test_many_clients_may_connect_at_once() -> None:
    """While the broker is busy, connections wait in the kernel. A full queue would cost a client a second at least."""
    with Broker() as broker:
        begun = threading.Event()

        def block() -> None:
            begun.set()
            time.sleep(0.7)

        busy = threading.Thread(target=broker._call, args=(block,))
        busy.start()
        assert begun.wait(20)
        started = time.monotonic()
        waiting = [connected(broker) for _ in range(500)]
        assert time.monotonic() - started < 0.7
        busy.join()
        assert is_served(broker)
        for connection in waiting:
            connection.close()


def test_failing_watcher_leaves_the_write_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong for a client that waits for data is logged; the Produce and the other clients go on."""
    client = CoreClient()
    client.prepare()
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    woken = []

    def fail() -> None:
        raise ZeroDivisionError

    partition.log.watchers |= {lambda: woken.append(1), fail, lambda: woken.append(2)}
    assert client.produce(None)[0] == ErrorCode.NONE
    assert sorted(woken) == [1, 2]
    assert "a fetch that waits for offset 1" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("pattern", ["(){3000000}", "((){1000}){1000}", "(((){60000}){60000}){60000}"])
def test_repeated_empty_patterns_take_no_time(pattern: str) -> None:
    begun = time.thread_time()
    assert LinearPattern(pattern).fullmatch("")
    assert not LinearPattern(pattern).fullmatch("a")
    assert time.thread_time() - begun < 1


NAMES = [f"{number:05x}" for number in range(100_000)]


def deletions_of(names: list[str]) -> Any:
    deletions = [messages.ScramCredentialDeletion(name=name, mechanism=1) for name in names]
    return messages.AlterUserScramCredentialsRequest(deletions=deletions)


def configs_of(names: list[str]) -> Any:
    resources = [messages.IncrementalAlterConfigsResource(resource_type=2, resource_name=name) for name in names]
    return messages.IncrementalAlterConfigsRequest(resources=resources)


def partitions_of(names: list[str]) -> Any:
    wanted = [messages.CreatePartitionsTopic(name=name, count=2) for name in names]
    return messages.CreatePartitionsRequest(topics=wanted)


def users_of(names: list[str]) -> Any:
    return messages.DescribeUserScramCredentialsRequest(users=[messages.ScramUserName(name=name) for name in names])


def replicas_of(names: list[str]) -> Any:
    one = messages.CreatableReplicaAssignment(broker_ids=[*range(len(names)), len(names) - 1])
    topic = messages.CreatableTopic(name="r", num_partitions=-1, replication_factor=-1, assignments=[one])
    return messages.CreateTopicsRequest(topics=[topic])


@pytest.mark.parametrize(
    ("request_of", "version"),
    [(users_of, 0), (deletions_of, 0), (configs_of, 1), (partitions_of, 2), (replicas_of, 5)],
    ids=["describe users", "alter users", "configs", "partitions", "replicas"],
)
def test_100_000_entries_take_no_quadratic_time(request_of: Callable[[list[str]], Any], version: int) -> None:
    client = CoreClient(max_bytes_without_records=8 * MIB)
    request = request_of(NAMES)
    begun = time.thread_time()
    response = client.ask(request, version)
    assert time.thread_time() - begun < 5
    assert response.encode(version)


def test_requests_in_part_are_limited_together() -> None:
    """The connections that have been sending longest are closed; a client that sends a whole request is served."""
    with Broker(max_incomplete_bytes=8 * MIB) as broker:
        slow = [connected(broker, struct.pack(">i", 50 * MIB) + bytes(3 * MIB)) for _ in range(5)]
        assert [is_closed(connection) for connection in slow[:2]] == [True, True]
        sent = encode_request(messages.ApiVersionsRequest(), 0, 1, "x")
        with connected(broker, sent[:7]) as connection:
            connection.sendall(sent[7:])
            assert connection.recv(4) != b""
        for connection in slow[2:]:
            connection.close()


def test_requests_with_many_elements_are_refused() -> None:
    """A Fetch of 20 MB would stop the broker for seconds; a Produce may be large, but not with a million partitions."""
    partitions = [messages.FetchPartition(partition=number) for number in range(40_000)]
    fetch = messages.FetchRequest(topics=[messages.FetchTopic(topic="t", partitions=partitions)])
    empty = [messages.PartitionProduceData(index=number) for number in range(200_000)]
    produce = messages.ProduceRequest(acks=1, topic_data=[messages.TopicProduceData(name="t", partition_data=empty)])
    cut = encode_request(produce, 7, 1, "x")[4:][: 2 * MIB - 3]
    frames = [encode_request(fetch, 12, 1, "x"), *(encode_request(produce, version, 1, "x") for version in (7, 9, 12))]
    assert min(map(len, frames)) > MIB
    with Broker() as broker:
        for frame in (*frames, framed(cut[:MIB] + cut[:MIB])):
            begun = time.perf_counter()
            assert is_closed(connected(broker, frame))
            assert time.perf_counter() - begun < 5
        assert broker.wire_log.requests() == []
        large = [(None, bytes(MIB // 2))] * 4
        broker.create_topic("t", 1, max_message_bytes=4 * MIB)
        with Producer(bootstrap_servers=broker.bootstrap_servers, max_request_size=8 * MIB) as producer:
            for _, value in large:
                producer.send("t", value)
            producer.flush()
        assert broker.end_offset("t") == 4


def test_unread_responses_are_limited() -> None:
    """Clients that request 8 MiB each and read nothing: those that have waited longest lose their connection."""
    request = messages.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=16 * MIB,
        topics=[messages.FetchTopic(topic="t", partitions=[messages.FetchPartition(partition_max_bytes=16 * MIB)])],
    )
    with Broker(max_unsent_bytes=4 * MIB) as broker:
        broker.create_topic("t", 1)
        broker.seed("t", [(None, bytes(MIB // 2))] * 16)
        slow = []
        for number in range(6):
            slow.append(connected(broker, encode_request(request, 4, number, "slow")))
            end = time.monotonic() + 20
            while len(broker.wire_log.requests("Fetch")) <= number and time.monotonic() < end:
                time.sleep(0.002)
        assert broker.end_offset("t") == 16
        sizes = []
        for connection in slow:
            size = 0
            try:
                while size < 8 * MIB and (data := connection.recv(MIB)):
                    size += len(data)
            except ConnectionError:
                pass
            sizes.append(size >= 8 * MIB)
            connection.close()
        assert (sizes[0], sizes[-1]) == (False, True)


def test_wire_log_counts_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_log, "MOST_BYTES", 1000)
    log = WireLog()
    entries = [WireEntry(0, 1, None, number, "Fetch", 4, None, 50) for number in range(4)]
    for entry in entries:
        log.add(entry)
    log.add_response(entries[3], 400)
    log.add_response(entries[1], 500)
    assert list(log) == entries[2:]
    log.add_response(entries[0], 10_000)
    assert list(log) == entries[2:]


def test_fetch_of_a_gone_client_is_forgotten() -> None:
    client = CoreClient()
    client.prepare()
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    pending = client.send(client.fetch_request(max_wait_ms=(1 << 31) - 1), 12)
    assert len(partition.log.watchers) == 1
    client.core.disconnected(client._connection)
    assert not partition.log.watchers
    client.produce(None)
    assert pending.response is NOTHING


def test_an_append_looks_at_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of 500 partitions waits, with fetch_min_bytes that several appends together reach."""
    client = CoreClient()
    client.prepare(partitions=500)
    looks: list[PartitionLog] = []
    original = PartitionLog.readable_bytes

    def readable_bytes(log: PartitionLog, offset: int, isolation_level: int) -> int:
        looks.append(log)
        return original(log, offset, isolation_level)

    monkeypatch.setattr(PartitionLog, "readable_bytes", readable_bytes)
    request = client.fetch_request(max_wait_ms=60_000, min_bytes=700)
    request.topics[0].partitions = [
        messages.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=300) for number in range(500)
    ]
    pending = client.send(request, 12)
    looks.clear()
    for number in (7, 7, 7, 7, 9, 11):  # of each partition, partition_max_bytes count
        assert pending.response is NOTHING
        client.produce(None, partition=number, values=(b"x" * 200,))
    assert len(looks) == 6
    filled = [one.partition_index for one in pending.response.responses[0].partitions if one.records]
    assert filled == [7, 9, 11]
    assert not any(partition.log.watchers for topic in client.core.topics for partition in topic.partitions)


def test_thousands_of_topics_take_no_quadratic_time() -> None:
    client = CoreClient()
    names = [f"n.{number}" for number in range(3000)]
    topics = [messages.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in [*names, names[0]]]
    begun = time.thread_time()
    results = client.ask(messages.CreateTopicsRequest(topics=topics), 5).topics
    assert time.thread_time() - begun < 2
    assert [(one.name, one.error_code) for one in results if one.error_code] == [(names[0], 42)]
    clash = messages.CreatableTopic(name="n_5", num_partitions=1, replication_factor=1)
    assert client.ask(messages.CreateTopicsRequest(topics=[clash]), 5).topics[0].error_code == 17


def test_connections_leave_open_files_to_the_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (16, 16))
    with Broker() as broker:
        opened = [connected(broker) for _ in range(8)]
        assert not is_served(broker)
        for one in opened:
            one.close()
        while not is_served(broker):
            time.sleep(0.01)
    assert "the limit is 8 (max_connections is 10000" in caplog.text


def test_full_disk_ends_the_trace_only(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(trace="/dev/full") as broker:
        assert is_served(broker)
        assert is_served(broker)
    assert [one.getMessage() for one in caplog.records if "/dev/full" in one.getMessage()] == [
        "/dev/full: No space left on device; the trace ends here, and the broker goes on without it"
    ]
