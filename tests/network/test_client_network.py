# SPDX-License-Identifier: Apache-2.0
"""Connections and metadata, by thread and by asyncio, against peers that do what no well-behaved broker does."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from client_runners import Make, options
from scripted_peer import Peer, Request, versions_reply
from unnarrowed import unnarrowed
from usual_responses import free_port, init_producer_id, usual

from kcodec.cluster.metadata import Cluster
from kcodec.errors import DeliveryTimeoutError, RequestTimedOutError, TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, ByVersion, Flow, call, join, sleep, spawn
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.auth import ApiVersionsResponse
from kcodec.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from kcodec.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

API_VERSIONS, METADATA, INIT = 18, 3, 22


def test_a_call_is_answered(make: Make) -> None:
    with Peer(usual) as peer:
        reply = make(peer.address).run(init_producer_id())
    assert reply.message.producer_id == 7 and reply.version == 5
    assert [request.client_id for request in peer.requests] == ["kcodec"] * len(peer.requests)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_crashes_if_the_flow_that_requests_metadata_fails(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All other flows wait for this one. Without it, each call would wait in vain and report only a timeout."""

    def fail(self: Cluster, reply: Any, are_all: bool = False) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(Cluster, "apply", fail)
    with Peer(usual) as peer:
        runner = make(peer.address)
        reasons: list[BaseException] = []
        runner.client.on_crash.append(reasons.append)
        for text in ("a defect", "the I/O loop of this client failed: a defect"):
            with pytest.raises(TransportError, match=text):
                runner.run(runner.client.cluster.ensure_topic("orders", 5.0))
    assert [type(reason) for reason in reasons] == [LookupError]
    assert [one.levelname for one in caplog.records if "the I/O loop of this client failed" in one.message] == [
        "CRITICAL"
    ]


def test_a_login_that_waits_for_its_token_is_the_reported_cause(make: Make) -> None:
    """The timeout of the connection setup, which is shorter than that of requests, hid it: "not connected within"."""
    may_end = threading.Event()

    def provide() -> Any:
        may_end.wait(20.0)
        raise LookupError("too late")

    with Peer(usual) as peer:
        runner = make(
            peer.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provide,
            request_timeout_ms=30_000,
            socket_connection_setup_timeout_ms=300,
        )
        try:
            with pytest.raises(TransportError, match=r"no token from sasl_oauth_token_provider within 0\.2\d? s"):
                runner.run(init_producer_id(0.8))
        finally:
            may_end.set()


def test_an_unsupported_version_is_followed_by_a_known_one(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == API_VERSIONS and request.version > 2:
            refusal = request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0)
            return refusal[:-4] + bytes.fromhex("00000001001200000002")
        if request.api_key == API_VERSIONS:
            return versions_reply(request, {18: (0, 2), 3: (0, 9), 22: (0, 1)})
        return usual(peer, request)

    with Peer(answer) as peer:
        reply = make(peer.address).run(init_producer_id())
    asked = [request.version for request in peer.requests if request.api_key == API_VERSIONS]
    assert asked[:2] == [4, 2]
    assert reply.version == 1


def test_an_unsupported_version_without_a_list_means_version_0(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == API_VERSIONS and request.version > 0:
            return request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0)
        return usual(peer, request)

    with Peer(answer) as peer:
        make(peer.address).run(init_producer_id())
    assert [request.version for request in peer.requests if request.api_key == API_VERSIONS][:2] == [4, 0]


def test_features_become_known_and_the_highest_epoch_counts(make: Make) -> None:
    from kcodec.protocol.messages.auth import FinalizedFeatureKey as Feature

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == API_VERSIONS:
            features = [Feature(name="transaction.version", max_version_level=2, min_version_level=2)]
            return versions_reply(request, finalized_features=features, finalized_features_epoch=9)
        return usual(peer, request)

    with Peer(answer) as peer:
        runner = make(peer.address)
        runner.run(init_producer_id())
        assert runner.client.cluster.transaction_version == 2


def test_a_dead_bootstrap_server_is_passed_over(make: Make) -> None:
    with free_port() as dead, Peer(usual) as peer:
        for _ in range(3):
            runner = make(f"127.0.0.1:{dead},{peer.address}")
            runner.run(runner.client.cluster.refresh(5.0))
            assert sorted(runner.client.cluster.brokers) == [1]


def test_no_broker_there_is_reported_with_the_reason(make: Make) -> None:
    with free_port() as dead:
        runner = make(f"127.0.0.1:{dead}")
        with pytest.raises(TransportError, match=f"bootstrap server 127.0.0.1:{dead}.*refused"):
            runner.run(init_producer_id())
        with pytest.raises(DeliveryTimeoutError, match=r"no metadata after 0.5 s.*refused"):
            runner.run(runner.client.cluster.refresh(0.5))


def test_a_host_that_cannot_be_resolved(make: Make) -> None:
    with pytest.raises(TransportError, match=r"no\.such\.host\.invalid"):
        make("no.such.host.invalid:9092").run(init_producer_id())


def test_silence_ends_by_the_deadline_and_may_have_been_heard(make: Make) -> None:
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(peer.address)
        began = time.monotonic()
        text = r"no response to InitProducerIdRequest within (0\.[3-9]\d?|1\.\d+) s"
        with pytest.raises(RequestTimedOutError, match=text) as caught:
            runner.run(init_producer_id(0.3))
        assert 0.25 < time.monotonic() - began < 2.0
        assert caught.value.possibly_sent


def test_a_short_timeout_leaves_the_connection_to_other_calls(make: Make) -> None:
    """Their requests would otherwise be sent again, as their responses would be lost with the connection. The late
    response is ignored."""
    held: list[Request] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key != INIT:
            return peer.usual(request)
        held.append(request)
        if len(held) == 2:
            time.sleep(0.5)
            for number, one in enumerate(held):
                reply = one.reply(InitProducerIdResponse(producer_id=number, producer_epoch=0))
                one.socket.sendall(len(reply).to_bytes(4, "big") + reply)
        return None

    def flow() -> Flow[int]:
        short = yield from spawn(init_producer_id(0.2, node=1), "short")
        long = yield from spawn(init_producer_id(10.0, node=1), "long")
        with pytest.raises(RequestTimedOutError) as caught:
            yield from join(short)
        assert caught.value.possibly_sent
        found: int = (yield from join(long)).message.producer_id
        return found

    with Peer(answer) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        assert runner.run(flow()) == 1
        assert len(held) == 2


def test_a_silent_connection_is_closed_after_request_timeout_ms(make: Make) -> None:
    """A short timeout of a call does not make the connection live longer than that of any other call."""
    silent: list[socket.socket] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT and not silent:
            silent.append(request.socket)
        return None if request.socket in silent else usual(peer, request)

    with Peer(answer) as peer:
        runner = make(peer.address, request_timeout_ms=1000)
        runner.run(runner.client.cluster.refresh(5.0))
        began = time.monotonic()
        with pytest.raises(RequestTimedOutError, match=r"no response to InitProducerIdRequest within 0\.\d+ s"):
            runner.run(init_producer_id(0.2, node=1))
        with pytest.raises(TransportError, match="the connection was closed"):
            runner.run(init_producer_id(10.0, node=1))
        assert 0.95 < time.monotonic() - began < 3.0
        assert runner.run(init_producer_id(node=1)).message.producer_id == 7


def test_a_connection_does_not_stay_for_a_call_that_was_given_up(make: Make) -> None:
    """JoinGroup has a long timeout. If the member gives it up, its connection is closed after request_timeout_ms."""
    silent: list[socket.socket] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT and not silent:
            silent.append(request.socket)
        return None if request.socket in silent else usual(peer, request)

    def flow() -> Flow[None]:
        task = yield from spawn(init_producer_id(100.0, node=1), "long")
        yield from sleep(0.5)
        task.cancel()

    with Peer(answer) as peer:
        runner = make(peer.address, request_timeout_ms=700)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(flow())
        began = time.monotonic()
        with pytest.raises(TransportError, match="the connection was closed"):
            runner.run(init_producer_id(100.0, node=1))
        assert time.monotonic() - began < 5.0
        runner.run(runner.client.cluster.refresh(5.0))  # a request for metadata may have been on the silent connection
        assert runner.run(init_producer_id(node=1)).message.producer_id == 7


def test_any_broker_is_not_one_that_does_not_respond(make: Make) -> None:
    """A connection on which nothing was requested lately looks ready, although the packets of its broker are lost."""
    peers: list[Peer] = []
    silent: list[Peer] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if peer in silent:
            return None
        if request.api_key == METADATA:
            brokers = [
                MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port) for one in reversed(peers)
            ]
            return request.reply(MetadataResponse(brokers=brokers, controller_id=1))
        return usual(peer, request)

    with Peer(answer, node_id=1) as first, Peer(answer, node_id=2) as second:
        peers += [first, second]
        runner = make(f"{first.address},{second.address}", request_timeout_ms=500)
        runner.run(runner.client.cluster.refresh(5.0))
        for node in (1, 2):
            runner.run(init_producer_id(5.0, node=node))
        silent.append(second)

        def flow() -> Flow[Any]:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            with pytest.raises(TransportError):
                yield from call(2, request, timeout=5.0, channel="group")
            return (yield from call(ANY_NODE, request, timeout=5.0))

        assert runner.run(flow()).node_id == 1


def test_silence_to_api_versions_ends_by_the_deadline_and_nothing_was_sent(make: Make) -> None:
    with Peer(lambda peer, request: None) as peer:
        with pytest.raises(TransportError) as caught:
            make(peer.address).run(init_producer_id(0.3))
        assert not caught.value.possibly_sent


def test_a_cut_before_the_answer_may_have_been_heard_and_the_next_call_connects_again(make: Make) -> None:
    cuts: list[Request] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT and not cuts:
            cuts.append(request)
            request.socket.shutdown(socket.SHUT_RDWR)
            return None
        return usual(peer, request)

    with Peer(answer) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        with pytest.raises(TransportError) as caught:
            runner.run(init_producer_id(node=1))
        assert caught.value.possibly_sent
        assert runner.run(init_producer_id(node=1)).message.producer_id == 7


def test_requests_are_pipelined_and_answers_find_their_calls(make: Make) -> None:
    held: list[tuple[Request, bytes]] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key != INIT:
            return peer.usual(request)
        held.append((request, request.reply(InitProducerIdResponse(producer_id=len(held), producer_epoch=0))))
        if len(held) == 5:
            for request, reply in held:
                request.socket.sendall(len(reply).to_bytes(4, "big") + reply)
        return None

    def flow() -> Flow[list[int]]:
        tasks = []
        for _ in range(5):
            tasks.append((yield from spawn(init_producer_id(node=1), "one")))
        found = []
        for task in tasks:
            found.append((yield from join(task)).message.producer_id)
        return found

    with Peer(answer) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        assert runner.run(flow()) == [0, 1, 2, 3, 4]


def test_no_more_than_the_limit_is_in_flight(make: Make) -> None:
    came: list[float] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT:
            came.append(time.monotonic())
            time.sleep(0.02)
        return usual(peer, request)

    def flow() -> Flow[None]:
        tasks = []
        for _ in range(4):
            tasks.append((yield from spawn(init_producer_id(node=1), "one")))
        for task in tasks:
            yield from join(task)

    sent: list[int] = []
    with Peer(answer) as peer:
        runner = make(peer.address, max_pipelined_requests=1)
        runner.run(runner.client.cluster.refresh(5.0))

        def watch(trace: Any) -> None:
            if type(trace.message).__name__.startswith("InitProducerId"):  # not another refresh of metadata
                sent.append(1 if trace.kind == "request" else -1)

        runner.client.network.watchers.append(watch)
        runner.run(flow())
    depth = [sum(sent[: i + 1]) for i in range(len(sent))]
    assert max(depth) == 1 and len(came) == 4


def test_an_answer_to_another_question_ends_the_connection(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        reply = usual(peer, request)
        if request.api_key == INIT and reply is not None:
            return (request.correlation_id + 1).to_bytes(4, "big") + reply[4:]
        return reply

    with Peer(answer) as peer, pytest.raises(TransportError, match=r"got correlation id \d+, expected \d+"):
        make(peer.address).run(init_producer_id())


def test_an_answer_that_cannot_be_read_may_have_been_acted_on(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        reply = usual(peer, request)
        return reply[:-3] if request.api_key == INIT and reply is not None else reply

    with Peer(answer) as peer, pytest.raises(TransportError, match="InitProducerIdRequest v5 cannot be read") as caught:
        make(peer.address).run(init_producer_id())
    assert caught.value.possibly_sent


def test_a_frame_above_the_limit_is_named(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT:
            request.socket.sendall((2_000_000).to_bytes(4, "big"))
            return None
        return usual(peer, request)

    with Peer(answer) as peer, pytest.raises(TransportError, match="exceeds max_response_bytes=1000000"):
        make(peer.address, max_response_bytes=1_000_000).run(init_producer_id())


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "the peer uses HTTP instead of the Kafka protocol; check the host and the",
        ),
        (
            bytes.fromhex("15030300020250"),
            "the peer uses TLS, and this connection does not; .* must be SSL or SASL_SSL",
        ),
        (bytes.fromhex("7f000000"), "exceeds .*; the peer may also use TLS or HTTP instead of the Kafka protocol"),
    ],
    ids=["http", "tls alert", "other"],
)
def test_another_protocol_is_recognized(make: Make, response: bytes, text: str) -> None:
    """The alert of a broker whose listener uses TLS was reported as a frame of 352,518,912 bytes."""

    def answer(peer: Peer, request: Request) -> bytes | None:
        request.socket.sendall(response)
        return None

    with Peer(answer) as peer, pytest.raises(TransportError, match=text):
        make(peer.address).run(init_producer_id())


def test_a_peer_that_never_responds_is_named(make: Make) -> None:
    """For example a web server, which waits for more bytes of the request."""
    with Peer(lambda peer, request: None) as peer:
        runner = make(peer.address, socket_connection_setup_timeout_ms=300)
        with pytest.raises(TransportError, match=r"0\.3 s; the peer has not responded to ApiVersions"):
            runner.run(init_producer_id(0.8))


def test_disjoint_versions_raise_an_error_and_nothing_is_sent(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == API_VERSIONS:
            return versions_reply(request, {18: (0, 4), 3: (0, 9), 22: (0, 2)})
        return usual(peer, request)

    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    with Peer(answer) as peer:
        runner = make(peer.address)
        with pytest.raises(UnsupportedError, match="supports InitProducerId versions 0 to 2, but kcodec needs 4 to 5"):
            runner.run(call(ANY_NODE, request, timeout=3.0, lowest=4))
        assert INIT not in {one.api_key for one in peer.requests}


def test_a_broker_that_throttles_is_left_in_peace(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == INIT:
            return request.reply(InitProducerIdResponse(throttle_time_ms=300, producer_id=1, producer_epoch=0))
        return usual(peer, request)

    with Peer(answer) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(init_producer_id(node=1))
        began = time.monotonic()
        runner.run(init_producer_id(node=1))
        assert 0.2 < time.monotonic() - began < 3.0


@pytest.mark.parametrize("how", ["asked", "unreachable"])
def test_rebootstrap(make: Make, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """KIP-899 and KIP-1102: the broker says so (REBOOTSTRAP_REQUIRED), or no broker of the metadata can be reached."""
    moved: list[bool] = []

    def old(peer: Peer, request: Request) -> bytes | None:
        if request.api_key == METADATA and how == "asked" and moved:
            return request.reply(MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED))
        return usual(peer, request)

    with Peer(usual, node_id=2) as new:
        with Peer(old) as peer:
            runner = make(peer.address)
            runner.run(runner.client.cluster.refresh(5.0))
            assert sorted(runner.client.cluster.brokers) == [1]
            runner.client.network.bootstrap_addresses = options(new.address).addresses
            moved.append(True)
            if how == "asked":
                runner.run(runner.client.cluster.refresh(5.0))
        if how == "unreachable":
            runner.run(runner.client.cluster.refresh(8.0))
        assert sorted(runner.client.cluster.brokers) == [2]
        assert "starting again from bootstrap_servers" in caplog.text


def test_a_broker_of_another_cluster_is_noticed(
    make: Make, apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-1242: a broker of Kafka 4.4 refuses a client that expects another cluster, or another node, at its address.
    The client starts again from its bootstrap servers. Here what the client knows is changed, and not the address.
    Older brokers do not check."""
    runner = make(apache_kafka.bootstrap_servers)
    cluster = runner.client.cluster
    runner.run(cluster.refresh(5.0))
    cluster_id, cluster.cluster_id = cluster.cluster_id, "another"
    if apache_kafka.version == KAFKA_VERSION:
        with pytest.raises(TransportError, match="is not node 1 of the cluster 'another'"):
            runner.run(init_producer_id(node=1))
        assert caplog.text.count("starting again from bootstrap_servers") == 1
    runner.run(cluster.refresh(5.0))
    assert cluster_id is not None and unnarrowed(cluster.cluster_id) == cluster_id
    assert runner.run(init_producer_id(node=1)).node_id == 1


@pytest.mark.parametrize(
    ("options", "is_named"),
    [({}, True), ({"metadata_cluster_check_enable": False}, False), ({"metadata_recovery_strategy": "none"}, False)],
)
def test_the_expected_broker_can_be_left_unnamed(make: Make, options: dict[str, Any], is_named: bool) -> None:
    """Behind a proxy that changes ids the check would fail forever. Version 4 also saves a round trip before 4.4."""
    with Peer(usual) as peer:
        runner = make(peer.address, **options)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.client.cluster.cluster_id = "expected"
        runner.run(init_producer_id(node=1))
    asked = [request for request in peer.requests if request.api_key == API_VERSIONS]
    assert [request.version for request in asked] == [4, 5 if is_named else 4]
    assert (b"expected" in asked[1].body) is is_named


def test_an_idle_connection_is_closed_and_the_next_call_opens_another(make: Make) -> None:
    with Peer(usual) as peer:
        runner = make(peer.address, connections_max_idle_ms=200)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(init_producer_id(node=1))
        before, attempts = peer.connections, 0
        while peer.connections == before and attempts < 20:  # a busy machine may run its timers late
            time.sleep(0.5)
            runner.run(init_producer_id(node=1))
            attempts += 1
        assert peer.connections > before


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_request_that_cannot_be_built_fails_its_call_only(make: Make, is_ready: bool) -> None:
    def build(version: int) -> Any:
        raise KeyError(version)

    with Peer(usual) as peer:
        runner = make(peer.address)
        if is_ready:
            runner.run(init_producer_id())
        with pytest.raises(KeyError):
            runner.run(call(ANY_NODE, ByVersion(InitProducerIdRequest, build), timeout=5.0))
        assert not runner.io_loop.is_closed
        assert runner.run(init_producer_id()).message.producer_id == 7


def test_a_failure_of_tls_to_send_ends_the_connection_only(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        """Stands for a TLS layer whose session has ended."""

        error_type = ssl.SSLError

        def send(self, data: bytes) -> None:
            raise ssl.SSLError(1, "protocol is shutdown")

    with Peer(usual) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(init_producer_id(node=1))
        (connection,) = (one for one in runner.client.network._connections.values() if one.node_id == 1)
        monkeypatch.setattr(connection, "_tls", Refusing())
        with pytest.raises(TransportError, match=r"broker 1 .*: TLS cannot send: .*protocol is shutdown"):
            runner.run(init_producer_id(node=1))
        assert connection.is_closed and not runner.io_loop.is_closed
        assert runner.run(init_producer_id(node=1)).message.producer_id == 7


class Counts(Counter[str]):
    """Metrics that are counted by name."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        self[name] += value

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        pass


def until(condition: Callable[[], bool]) -> Flow[None]:
    while not condition():
        yield from sleep(0.02)


def test_an_idle_connection_has_not_failed(make: Make) -> None:
    """Otherwise the next call would wait for the backoff, and the facade for librdkafka report that no broker is up."""
    counts = Counts()
    with Peer(usual) as peer:
        runner = make(
            peer.address,
            connections_max_idle_ms=100,
            reconnect_backoff_ms=20_000,
            reconnect_backoff_max_ms=20_000,
            request_timeout_ms=5000,
            metrics=counts,
        )
        runner.run(runner.client.cluster.refresh(5.0))
        for _ in range(3):
            runner.run(init_producer_id(node=1))
            runner.run(until(lambda: not runner.client.network._connections))
        runner.run(init_producer_id(node=1))
        assert counts["connection.opened"] >= 4
        assert counts["connection.failed"] == 0
        assert runner.client.network.last_failure(1) is None


def test_a_connection_to_a_former_address_has_not_failed(make: Make) -> None:
    counts = Counts()

    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key != METADATA:
            return usual(peer, request)
        host = peer.host if is_first else "localhost"
        brokers = [MetadataResponseBroker(node_id=1, host=host, port=peer.port)]
        return request.reply(MetadataResponse(brokers=brokers, controller_id=1))

    is_first = True
    with Peer(answer) as peer:
        runner = make(peer.address, request_timeout_ms=5000, reconnect_backoff_ms=20_000, metrics=counts)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(init_producer_id(node=1))
        is_first = False
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(runner.client.cluster.refresh(5.0))  # the request of the one before may be from the start
        runner.run(init_producer_id(node=1))
        assert [str(one.address) for one in runner.client.network._connections.values() if one.node_id == 1] == [
            f"localhost:{peer.port}"
        ]
        assert counts["connection.failed"] == 0


def test_close_ends_what_runs(make: Make) -> None:
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(peer.address)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.close()
        with pytest.raises(TransportError, match="the client is closed"):
            runner.run(init_producer_id())
        runner.close()
