# SPDX-License-Identifier: Apache-2.0
"""SASL on connections, by thread and by asyncio, against scripted peers: what a real broker does too rarely."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client_runners import Make
from sasl_responses import API_VERSIONS, AUTHENTICATE, HANDSHAKE, INIT, SESSION_MS, usual
from scripted_peer import APIS, Peer, Request, versions_reply

from kcodec.errors import AuthenticationError, TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, Reply, call, join, sleep, spawn
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.auth import SaslAuthenticateResponse
from kcodec.protocol.messages.transactions import InitProducerIdRequest

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "s3same",
    "request_timeout_ms": 5000,
}
TOKEN_LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "request_timeout_ms": 5000}

Answer = Callable[[Peer, Request], "bytes | None"]


def refuse(request: Request) -> bytes:
    return request.reply(
        SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="go away")
    )


def init_producer_id(node: int = ANY_NODE, timeout: float = 5.0) -> Flow[Reply]:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    return call(node, request, timeout=timeout)


def keys(peer: Peer, like: Request | None = None) -> list[int]:
    """What was asked, on the connection of `like` or on any (a client has one to its bootstrap server, too)."""
    return [request.api_key for request in peer.requests if like is None or request.socket is like.socket]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def test_nothing_but_versions_goes_before_the_login(make: Make) -> None:
    with Peer(usual) as peer:
        assert make(peer.address, **LOGIN).run(init_producer_id()).message.producer_id == 7
        assert keys(peer)[:3] == [API_VERSIONS, HANDSHAKE, AUTHENTICATE]
        assert peer.requests[1].version == 1
        assert b"\0alice\0s3same" in peer.requests[2].body


def test_a_refusal_that_comes_with_the_end_of_the_connection_is_heard(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key != AUTHENTICATE:
            return usual(peer, request)
        frame = refuse(request)
        request.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        request.socket.shutdown(2)
        return None

    with Peer(answer) as peer, within(2.0), pytest.raises(AuthenticationError, match="go away"):
        make(peer.address, **LOGIN).run(init_producer_id())


def test_what_is_under_way_when_a_renewal_fails_may_have_been_acted_on(make: Make) -> None:
    """Were it an AuthenticationError, a commit could be reported as not sent that the broker has carried out."""
    given = iter(["token"])

    def answer(peer: Peer, request: Request) -> bytes | None:
        return None if request.api_key == INIT else usual(peer, request)

    with Peer(answer) as peer:
        runner = make(peer.address, **TOKEN_LOGIN, sasl_oauth_token_provider=lambda: next(given, None))
        with within(3.0), pytest.raises(TransportError, match="returned a NoneType") as caught:
            runner.run(init_producer_id())
        assert type(caught.value) is TransportError
        assert caught.value.possibly_sent
        with within(2.0), pytest.raises(TransportError, match="returned a NoneType") as refused:
            runner.run(init_producer_id())
        assert not refused.value.possibly_sent


def test_while_a_session_is_renewed_requests_wait_and_answers_go_on(make: Make) -> None:
    held: list[bytes] = []

    def answer(peer: Peer, request: Request) -> bytes | None:
        seen = keys(peer, request)
        frame = usual(peer, request)
        if INIT not in seen or seen.count(HANDSHAKE) > 2 or frame is None:
            return frame
        if seen.count(HANDSHAKE) == 1:
            held.append(frame)  # a slow broker: until the renewal it answers nothing more
            return None
        for earlier in held:
            request.socket.sendall(len(earlier).to_bytes(4, "big") + earlier)
        held.clear()
        if request.api_key == AUTHENTICATE:
            time.sleep(0.4)
        return frame

    def flow() -> Flow[list[Any]]:
        yield from runner.client.cluster.refresh(5.0)
        first = yield from spawn(init_producer_id(1), "first")
        yield from sleep(SESSION_MS / 1000 + 0.1)  # the renewal has begun
        others = []
        for _ in range(3):
            others.append((yield from spawn(init_producer_id(1), "other")))
        replies = []
        for task in (first, *others):
            replies.append((yield from join(task)))
        return replies

    with Peer(answer) as peer:
        runner = make(peer.address, **LOGIN)
        assert len(runner.run(flow())) == 4
        first = next(request for request in peer.requests if request.api_key == INIT)
        wire = [key for key in keys(peer, first) if key in (HANDSHAKE, AUTHENTICATE, INIT)]
    assert wire == [HANDSHAKE, AUTHENTICATE, INIT, HANDSHAKE, AUTHENTICATE, INIT, INIT, INIT]


@pytest.mark.parametrize("silent", [HANDSHAKE, AUTHENTICATE])
def test_a_broker_that_is_silent_during_the_login_is_given_up(make: Make, silent: int) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        return None if request.api_key == silent else usual(peer, request)

    with Peer(answer) as peer, within(3.0), pytest.raises(TransportError, match=r"no response to Sasl|not sent within"):
        make(peer.address, **{**LOGIN, "request_timeout_ms": 400}).run(init_producer_id(timeout=1.0))


def test_a_peer_without_sasl_is_recognized(make: Make) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        return versions_reply(request, APIS) if request.api_key == API_VERSIONS else usual(peer, request)

    with Peer(answer) as peer, within(3.0), pytest.raises(UnsupportedError, match="SaslHandshake"):
        make(peer.address, **LOGIN).run(init_producer_id(timeout=1.0))


def test_a_token_provider_that_takes_its_time_holds_nothing_up(make: Make) -> None:
    """It runs on a worker: the loop goes on, here with a login of another client's kind of clock, a plain sleep."""

    def slow() -> str:
        time.sleep(0.5)
        return "token"

    def flow() -> Flow[int]:
        task = yield from spawn(init_producer_id(), "call")
        beats = 0
        while not task.done:
            yield from sleep(0.02)
            beats += 1
        yield from join(task)
        return beats

    with Peer(usual) as peer:
        assert make(peer.address, **TOKEN_LOGIN, sasl_oauth_token_provider=slow).run(flow()) > 10
        tokens = [request for request in peer.requests if request.api_key == AUTHENTICATE]
    assert all(b"auth=Bearer token\x01" in request.body for request in tokens)
