# SPDX-License-Identifier: Apache-2.0
"""Logins that a broker refuses for some time: the first ones, and those of a client that has logged in before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client_runners import Make
from sasl_responses import AUTHENTICATE, INIT, usual
from scripted_peer import Peer, Request

from kcodec.broker import Broker
from kcodec.client import Consumer, Producer
from kcodec.errors import AuthenticationError, DeliveryTimeoutError, TransportError
from kcodec.flow import ANY_NODE, Flow, Reply, call
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.auth import SaslAuthenticateResponse
from kcodec.protocol.messages.transactions import InitProducerIdRequest

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "s3same",
}
SECONDS = 20.0
#: Short, so that the clients log in again during a test.
SESSION_MS = 1000
REFUSED = "SASL_AUTHENTICATION_FAILED"


@contextmanager
def guarded(**options: Any) -> Iterator[Broker]:
    with Broker(sasl_mechanisms=["PLAIN"], users={"alice": "s3same", "kcodec": "x"}, **options) as broker:
        yield broker


def init_producer_id() -> Flow[Reply]:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    return call(ANY_NODE, request, timeout=5.0)


class RefusingPeer:
    """A peer that ends each connection after InitProducerId, and refuses logins while this is requested."""

    is_refusing = False

    def __call__(self, peer: Peer, request: Request) -> bytes | None:
        if request.api_key == AUTHENTICATE and self.is_refusing:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return request.reply(SaslAuthenticateResponse(error_code=code, error_message="go away"))
        frame = usual(peer, request)
        if request.api_key == INIT and frame is not None:
            request.socket.sendall(len(frame).to_bytes(4, "big") + frame)
            request.socket.shutdown(2)
            return None
        return frame


def test_after_an_accepted_login_a_refusal_is_a_failed_connection(make: Make) -> None:
    """Flows retry it. After `login_patience`, it is raised again."""
    answer = RefusingPeer()
    with Peer(answer) as peer:
        runner = make(peer.address, **LOGIN)
        network = runner.client.network
        network.login_patience = 1.0
        answer.is_refusing = True
        with pytest.raises(AuthenticationError, match="go away"):
            runner.run(init_producer_id())
        answer.is_refusing = False
        assert runner.run(init_producer_id()).message.producer_id == 7
        answer.is_refusing = True
        end = time.monotonic() + SECONDS
        kinds: list[type] = []
        while AuthenticationError not in kinds:
            assert time.monotonic() < end
            with pytest.raises(TransportError) as caught:
                runner.run(init_producer_id())
            kinds.append(type(caught.value))
            if "go away" in str(caught.value) and kinds[-1] is TransportError:
                assert isinstance(caught.value.__cause__, AuthenticationError)
        assert kinds.count(TransportError) >= 2
        answer.is_refusing = False
        assert runner.run(init_producer_id()).message.producer_id == 7


def test_a_client_can_retry_the_first_logins_too(make: Make) -> None:
    answer = RefusingPeer()
    answer.is_refusing = True
    with Peer(answer) as peer:
        runner = make(peer.address, **LOGIN)
        runner.client.network.retry_all_logins()
        for _ in range(3):
            with pytest.raises(TransportError, match="go away") as caught:
                runner.run(init_producer_id())
            assert type(caught.value) is TransportError


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_fails_at_once_until_its_first_login(idempotent: bool) -> None:
    """Each record reports one refusal, and the next record tries again."""
    with guarded() as broker:
        rule = broker.faults.add("SaslAuthenticate", error=REFUSED)
        with Producer(
            bootstrap_servers=broker.bootstrap_servers, **LOGIN, enable_idempotence=idempotent, acks="all"
        ) as producer:
            began = time.monotonic()
            for _ in range(3):
                with pytest.raises(AuthenticationError, match="check sasl_plain_username"):
                    producer.send("orders", b"x").result(SECONDS)
            assert time.monotonic() - began < SECONDS / 2
            attempts = rule.hits
            time.sleep(1.5)
            assert rule.hits - attempts <= 1, "the login is repeated without a record"
            broker.faults.clear()
            assert producer.send("orders", b"x").result(SECONDS).offset == 0


def test_records_outlast_refused_logins() -> None:
    """An idempotent producer sends them after the next accepted login."""
    with guarded(sasl_session_ms=SESSION_MS) as broker:
        options = {"bootstrap_servers": broker.bootstrap_servers, **LOGIN}
        with Producer(**options) as producer:
            assert producer.send("orders", b"first").result(SECONDS).offset == 0
            rule = broker.faults.add("SaslAuthenticate", error=REFUSED, count=5)
            sent, end = [], time.monotonic() + SECONDS
            while rule.hits < 5:
                assert time.monotonic() < end
                sent.append(producer.send("orders", b"x"))
                time.sleep(0.02)
            sent.append(producer.send("orders", b"last"))
            assert [one.result(SECONDS).offset for one in sent] == list(range(1, len(sent) + 1))


def test_a_record_that_expires_names_the_refused_login() -> None:
    with guarded(sasl_session_ms=SESSION_MS) as broker:
        options = {"bootstrap_servers": broker.bootstrap_servers, **LOGIN}
        with Producer(**options, delivery_timeout_ms=3000, request_timeout_ms=2000, linger_ms=0) as producer:
            assert producer.send("orders", b"first").result(SECONDS).offset == 0
            rule = broker.faults.add("SaslAuthenticate", error=REFUSED)
            end = time.monotonic() + SECONDS
            while not rule.hits:
                assert time.monotonic() < end
                time.sleep(0.01)
            with pytest.raises((DeliveryTimeoutError, AuthenticationError), match="rejected the credentials"):
                producer.send("orders", b"x").result(SECONDS)
            broker.faults.clear()
            assert producer.send("orders", b"x").result(SECONDS).offset >= 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_continues_after_its_first_login_was_refused(protocol: Any) -> None:
    """Each poll reports one refusal, and the next poll begins again."""
    with guarded() as broker:
        broker.create_topic("orders", partitions=1)
        options = {"bootstrap_servers": broker.bootstrap_servers, **LOGIN}
        with Producer(**options) as producer:
            producer.send("orders", b"x").result(SECONDS)
        rule = broker.faults.add("SaslAuthenticate", error=REFUSED)
        with Consumer(**options, group_id="g", group_protocol=protocol, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            began = time.monotonic()
            for _ in range(3):
                with pytest.raises(AuthenticationError, match="check sasl_plain_username"):
                    consumer.poll(timeout=SECONDS)
            assert time.monotonic() - began < SECONDS / 2
            attempts = rule.hits
            time.sleep(1.5)
            assert rule.hits - attempts <= 1, "the login is repeated without a poll"
            broker.faults.clear()
            assert [one.value for one in polled(consumer, 1)] == [b"x"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_outlasts_refused_logins(protocol: Any) -> None:
    """A refused login does not end the membership."""
    with guarded(sasl_session_ms=SESSION_MS) as broker:
        broker.create_topic("orders", partitions=1)
        options = {"bootstrap_servers": broker.bootstrap_servers, **LOGIN}
        with (
            Consumer(
                **options, client_id="reader", group_id="g", group_protocol=protocol, auto_offset_reset="earliest"
            ) as consumer,
            Producer(**options, client_id="writer") as producer,
        ):
            consumer.subscribe(["orders"])
            producer.send("orders", b"0").result(SECONDS)
            polled(consumer, 1)
            rule = broker.faults.add("SaslAuthenticate", client="reader", error=REFUSED, count=8)
            end = time.monotonic() + SECONDS
            while rule.hits < 8:
                assert time.monotonic() < end
                assert consumer.poll(timeout=0.05) == []
            producer.send("orders", b"1").result(SECONDS)
            assert [one.value for one in polled(consumer, 1)] == [b"1"]


def test_an_assigned_partition_is_read_after_a_lasting_refusal() -> None:
    """After session_timeout_ms, poll raises the refusal. The next poll requests the position again."""
    with guarded(sasl_session_ms=SESSION_MS) as broker:
        broker.create_topic("orders", partitions=1)
        options = {"bootstrap_servers": broker.bootstrap_servers, **LOGIN}
        orders = TopicPartition("orders", 0)
        limits: Any = {"session_timeout_ms": 500, "heartbeat_interval_ms": 100}
        with Consumer(**options, **limits, auto_offset_reset="earliest") as consumer:
            consumer.assign([orders])
            assert consumer.position(orders, timeout=SECONDS) == 0
            broker.faults.add("SaslAuthenticate", error=REFUSED)
            end = time.monotonic() + SECONDS
            with pytest.raises(AuthenticationError):
                while time.monotonic() < end:
                    consumer.poll(timeout=0.1)
            with pytest.raises((AuthenticationError, DeliveryTimeoutError), match="rejected the credentials"):
                while time.monotonic() < end:
                    consumer.seek_to_end(orders)
                    consumer.position(orders, timeout=2.0)
                    time.sleep(0.05)
            broker.faults.clear()
            while time.monotonic() < end:
                try:
                    assert consumer.position(orders, timeout=SECONDS) == 0
                except AuthenticationError:
                    continue
                break
            assert time.monotonic() < end


def polled(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    end = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < end
        try:
            found += consumer.poll(timeout=0.1)
        except AuthenticationError:
            continue  # of an attempt before the broker accepted logins again
    return found
