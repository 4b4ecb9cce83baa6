# SPDX-License-Identifier: Apache-2.0
"""The proxy of kcodec.testing: each action does to a frame what its name says, and to no other frame."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from wire_stub import EchoBroker, RawClient, request_frame

from kcodec.errors import DecodeError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.proxy import KafkaProxy, split_address
from kcodec.testing.proxy import frames as proxy_frames

BODY = b"body"


@pytest.fixture
def broker() -> Iterator[EchoBroker]:
    with EchoBroker() as broker:
        yield broker


@pytest.fixture
def proxy(broker: EchoBroker) -> Iterator[KafkaProxy]:
    with KafkaProxy(broker.address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: KafkaProxy) -> Iterator[RawClient]:
    client = RawClient(proxy.bootstrap_servers)
    yield client
    client.close()


def echo(correlation: int, api: str = "EndTxn") -> bytes:
    frame = request_frame(api, correlation, BODY)
    return frame[4:8] + frame


def end_txn(correlation: int) -> bytes:
    return request_frame("EndTxn", correlation, BODY)


def wait_end(proxy: KafkaProxy) -> BaseException:
    """Why the first connection ended: the proxy notes it a moment after the client's side is closed."""
    deadline = time.monotonic() + 5
    while not proxy.ends() and time.monotonic() < deadline:
        time.sleep(0.002)
    return proxy.ends()[0][1]


def test_frames_pass_as_they_are_and_are_logged(proxy: KafkaProxy, client: RawClient) -> None:
    before = time.monotonic()
    assert client.ask(end_txn(7)) == echo(7)
    assert client.ask(request_frame("Heartbeat", 8, BODY)) == echo(8, "Heartbeat")
    first, second = proxy.exchanges()
    assert (first.api, first.version, first.correlation_id, first.client_id) == ("EndTxn", 1, 7, "test")
    assert (first.connection, first.request_size, first.actions) == (second.connection, len(end_txn(7)), ())
    assert before <= first.time <= (first.response_time or 0) <= second.time
    assert first.response_size == len(echo(7))
    assert proxy.versions("EndTxn") == {1}
    assert proxy.versions(12) == {1}
    assert proxy.exchanges(client_id="somebody else") == []
    proxy.clear_log()
    assert proxy.exchanges() == []


def test_bytes_are_kept_on_demand(broker: EchoBroker) -> None:
    with KafkaProxy(broker.address, keep_bytes=True) as proxy:
        client = RawClient(proxy.bootstrap_servers)
        client.ask(end_txn(1))
        (exchange,) = proxy.exchanges()
        assert exchange.request == end_txn(1)
        assert exchange.response == echo(1)
        client.close()


def test_bytes_are_not_kept_otherwise(proxy: KafkaProxy, client: RawClient) -> None:
    client.ask(end_txn(1))
    client.ask(end_txn(2))
    with pytest.raises(ValueError, match="keep_bytes=True"):
        proxy.exchanges()[0].request_message()


def test_nth_and_count_choose(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    rule = proxy.on_request("EndTxn", nth=2, count=2).duplicate()
    for correlation in range(1, 6):
        client.send(request_frame("Heartbeat", 100 + correlation))
        client.send(end_txn(correlation))
    heard = [int.from_bytes((client.read() or b"")[:4], "big") for _ in range(10)]
    assert heard == [101, 1, 102, 2, 103, 3, 104, 4, 105, 5]
    assert [hit.correlation_id for hit in rule.hits] == [2, 3]
    assert broker.correlations() == [101, 1, 102, 2, 2, 103, 3, 3, 104, 4, 105, 5]


def test_where_client_id_and_connection_choose(proxy: KafkaProxy, client: RawClient) -> None:
    other = RawClient(proxy.bootstrap_servers)
    by_where = proxy.on_request("EndTxn", count=None, where=lambda exchange: exchange.correlation_id == 5).drop()
    by_client = proxy.on_request(client_id="other", count=None).drop()
    assert client.ask(end_txn(4)) == echo(4)
    client.send(end_txn(5))
    other.send(request_frame("EndTxn", 6, client_id="other"))
    by_client.wait_hit(5)
    by_where.wait_hit(5)
    number = by_client.hits[0].connection
    by_connection = proxy.on_request(connection=number, count=None).drop()
    other.send(request_frame("EndTxn", 7))
    by_connection.wait_hit(5)
    assert by_connection.hits[0].actions == ("drop", "lost")
    third = RawClient(proxy.bootstrap_servers)
    assert third.ask(end_txn(8)) == echo(8)
    third.close()
    other.close()


def test_held_request_arrives_after_its_client_has_gone(
    proxy: KafkaProxy, broker: EchoBroker, client: RawClient
) -> None:
    rule = proxy.on_request("EndTxn").hold()
    client.send(end_txn(1))
    rule.wait_hit(5)
    client.close()
    other = RawClient(proxy.bootstrap_servers)
    assert other.ask(end_txn(2)) == echo(2)
    assert broker.correlations() == [2]
    rule.release()
    assert broker.wait_requests(2) == [2, 1]
    other.close()


def test_hold_cuts_its_client_and_delivers_late(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    rule = proxy.on_request("EndTxn").hold(0.5, cut_client=True)
    started = time.monotonic()
    assert client.ask(end_txn(1)) is None
    cut = time.monotonic()
    assert broker.wait_requests(1) == [1]
    assert broker.requests[0][0] > cut
    assert broker.requests[0][0] - started >= 0.5
    assert rule.hits[0].actions[:1] == ("hold",)


def test_what_follows_a_held_frame_waits_behind_it(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    proxy.on_request("EndTxn").hold(0.2)
    client.send(end_txn(1))
    started = time.monotonic()
    assert client.ask(request_frame("Heartbeat", 2, BODY)) == echo(1)
    assert time.monotonic() - started >= 0.15
    assert client.read() == echo(2, "Heartbeat")


def test_held_response_waits_for_release(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    rule = proxy.on_response("EndTxn").hold()
    client.send(end_txn(1))
    rule.wait_hit(5)
    assert broker.correlations() == [1]
    assert client.is_silent(0.1)
    rule.release()
    assert client.read() == echo(1)
    assert client.ask(end_txn(2)) == echo(2)


def test_cut_before_the_broker_got_it(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    proxy.on_request("EndTxn").cut()
    assert client.ask(end_txn(1)) is None
    time.sleep(0.05)
    assert broker.correlations() == []


@pytest.mark.parametrize("where", ["request", "response"])
def test_cut_after_the_broker_got_it(proxy: KafkaProxy, broker: EchoBroker, client: RawClient, where: str) -> None:
    if where == "request":
        proxy.on_request("EndTxn").deliver_and_cut()
    else:
        proxy.on_response("EndTxn").cut()
    assert client.ask(end_txn(1)) is None
    assert broker.wait_requests(1) == [1]


def test_cut_after_the_client_got_the_response(proxy: KafkaProxy, client: RawClient) -> None:
    proxy.on_response("EndTxn").deliver_and_cut()
    assert client.ask(end_txn(1)) == echo(1)
    assert client.read() is None


def test_no_response_follows_a_dropped_one(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    """A client would take it for the response to the earlier request, and report a wrong correlation id."""
    proxy.on_response("EndTxn").drop()
    proxy.on_request("Heartbeat").answer(BODY)
    cut = proxy.on_response("EndTxn", nth=3).deliver_and_cut()
    for frame in (end_txn(1), request_frame("Heartbeat", 2, BODY), end_txn(3), end_txn(4)):
        client.send(frame)
    assert cut.wait_hit(5).correlation_id == 4
    assert client.read() is None
    assert broker.correlations() == [1, 3, 4]
    assert [one.actions for one in proxy.exchanges()] == [
        ("drop",),
        ("answer", "lost"),
        ("lost",),
        ("deliver_and_cut", "lost"),
    ]


def test_no_request_follows_a_dropped_one(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    held = proxy.on_response("EndTxn").hold()
    proxy.on_request("EndTxn", nth=2).drop()
    cut = proxy.on_request("EndTxn", nth=4).cut()
    for number in (1, 2, 3):
        client.send(end_txn(number))
    held.release()
    assert client.read() == echo(1)
    client.send(end_txn(4))
    cut.wait_hit(5)
    assert client.read() is None
    assert broker.correlations() == [1]


def test_duplicates(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    proxy.on_request("EndTxn").duplicate()
    proxy.on_response("Heartbeat").duplicate()
    assert client.ask(end_txn(1)) == echo(1)
    assert client.ask(request_frame("Heartbeat", 2, BODY)) == echo(2, "Heartbeat")
    assert client.read() == echo(2, "Heartbeat")
    assert broker.correlations() == [1, 1, 2]


def test_released_or_removed_rules_hold_nothing(proxy: KafkaProxy, client: RawClient) -> None:
    rule = proxy.on_request("EndTxn", count=None).hold()
    rule.release()
    assert client.ask(end_txn(1)) == echo(1)
    rule.remove()
    assert client.ask(end_txn(2)) == echo(2)
    assert len(rule.hits) == 1
    proxy.on_request("EndTxn", count=None).drop()
    proxy.clear_rules()
    assert client.ask(end_txn(3)) == echo(3)


def test_two_rules_count_the_same_frames(proxy: KafkaProxy, broker: EchoBroker, client: RawClient) -> None:
    proxy.on_request("EndTxn", nth=1).duplicate()
    proxy.on_request("EndTxn", nth=2).drop()
    client.send(end_txn(1))
    client.send(end_txn(2))
    assert client.read() == echo(1)
    other = RawClient(proxy.bootstrap_servers)
    assert other.ask(end_txn(3)) == echo(3)
    assert broker.correlations() == [1, 1, 3]
    other.close()


def test_connections_are_cut_and_refused(proxy: KafkaProxy, client: RawClient) -> None:
    assert client.ask(end_txn(1)) == echo(1)
    assert proxy.cut_connections(client_id="nobody") == 0
    assert proxy.cut_connections(client_id="test") == 1
    assert client.read() is None
    proxy.refuse_connections()
    assert RawClient(proxy.bootstrap_servers).read() is None
    proxy.refuse_connections(False)
    other = RawClient(proxy.bootstrap_servers)
    assert other.ask(end_txn(2)) == echo(2)
    other.close()


def test_a_port_to_advertise_may_come_before_its_broker(broker: EchoBroker) -> None:
    with KafkaProxy() as proxy:
        port = proxy.listen(node=3)
        assert RawClient(port.address).read() is None
        port.upstream = broker.address
        client = RawClient(port.address)
        assert client.ask(end_txn(1)) == echo(1)
        assert proxy.exchanges(node=3)[0].correlation_id == 1
        assert isinstance(wait_end(proxy), ConnectionError)
        client.close()


def test_transparent_carries_any_bytes(broker: EchoBroker) -> None:
    with KafkaProxy(broker.address, transparent=True, latency=0.05) as proxy:
        client = RawClient(proxy.bootstrap_servers)
        started = time.monotonic()
        assert client.ask(end_txn(1)) == echo(1)
        assert time.monotonic() - started >= 0.1
        assert proxy.exchanges() == []
        assert proxy.cut_connections() == 1
        assert client.read() is None


def test_bytes_that_are_no_kafka_end_the_connection(proxy: KafkaProxy, client: RawClient) -> None:
    client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert client.read() is None
    assert isinstance(wait_end(proxy), DecodeError)


def test_an_error_in_a_rules_own_function_is_raised_in_the_end(broker: EchoBroker) -> None:
    proxy = KafkaProxy(broker.address)
    proxy.on_request("EndTxn", where=lambda exchange: 1 // 0 == 0).drop()
    client = RawClient(proxy.bootstrap_servers)
    assert client.ask(end_txn(1)) is None
    with pytest.raises(ZeroDivisionError):
        proxy.close()


def test_closing_ends_everything(broker: EchoBroker) -> None:
    proxy = KafkaProxy(broker.address)
    rule = proxy.on_request("EndTxn").hold()
    client = RawClient(proxy.bootstrap_servers)
    client.send(end_txn(1))
    rule.wait_hit(5)
    started = time.monotonic()
    proxy.close()
    assert time.monotonic() - started < 2
    assert client.read() is None
    with pytest.raises(ConnectionRefusedError):
        RawClient(proxy.bootstrap_servers)


def test_it_carries_more_than_100_megabytes_a_second(proxy: KafkaProxy, client: RawClient) -> None:
    frame = request_frame("Heartbeat", 1, bytes(4 << 20))
    client.ask(frame)
    best = 0.0
    for _ in range(10):  # rounds, as others may have the processors meanwhile
        started = time.perf_counter()
        for _ in range(4):
            client.ask(frame)
        best = max(best, 4 * 2 * len(frame) / 1e6 / (time.perf_counter() - started))
    assert best > 100, f"{best:.0f} MB/s"


def test_an_unknown_broker_is_a_closed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with KafkaProxy(address) as proxy:
        assert RawClient(proxy.bootstrap_servers).read() is None


def test_wrong_arguments_are_refused(proxy: KafkaProxy) -> None:
    with pytest.raises(ValueError, match="unknown api"):
        proxy.on_request("EndTransaction")
    with pytest.raises(ValueError, match="must be at least 1"):
        proxy.on_request("EndTxn", nth=0)
    with pytest.raises(ValueError, match=r"responded already"):
        proxy.on_response("EndTxn").answer(b"")
    with pytest.raises(ValueError, match="neither content nor error= is given"):
        proxy.on_response("EndTxn").replace()
    with pytest.raises(ValueError, match="has no error code"):
        proxy.on_request("EndTxn").replace(error=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(ValueError, match="expected host:port"):
        split_address("localhost")
    with pytest.raises(TimeoutError, match="EndTxn"):
        proxy.on_request("EndTxn").drop().wait_hit(0.01)


@pytest.mark.parametrize("length", range(10))
def test_a_cut_header_is_a_decode_error(length: int) -> None:
    with pytest.raises(DecodeError):
        proxy_frames.parse_request_header(request_frame("EndTxn", 1)[:length])


def test_api_names_are_where_kafka_has_them() -> None:
    for key, name in {0: "Produce", 18: "ApiVersions", 26: "EndTxn", 60: "DescribeCluster", 78: "ShareFetch"}.items():
        assert proxy_frames.api_name(key) == name
    assert proxy_frames.api_name(1234) == "1234"
    for key, kind in messages.all_requests().items():
        assert proxy_frames.api_name(key) + "Request" == kind.__name__
