# SPDX-License-Identifier: Apache-2.0
"""Addresses in metadata that are none: a call to such a broker fails, in time, and the client lives on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from client_runners import Make
from scripted_peer import Peer, Request

from kcodec.errors import AuthenticationError, TransportError
from kcodec.flow import ANY_NODE, Flow, Reply, call
from kcodec.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from kcodec.protocol.messages.transactions import InitProducerIdRequest

ADDRESSES = [
    ("", 9092),
    (".", 9092),
    (".example", 9092),
    ("a..b", 9092),
    ("a" * 300, 9092),
    ("é" * 80, 9092),
    ("x\0y", 9092),
    ("x y", 9092),
    ("%", 9092),
    ("fe80::1%no-such-interface", 9092),
    ("127.0.0.1", 0),
    ("127.0.0.1", -1),
    ("127.0.0.1", 65536),
    ("127.0.0.1", 2**31 - 1),
]


def ask(node: int) -> Flow[Reply]:
    return call(node, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), timeout=5.0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("host", "port"), ADDRESSES, ids=[str(number) for number in range(len(ADDRESSES))])
def test_a_broker_with_an_impossible_address(make: Make, host: str, port: int, tls: bool, tmp_path: Path) -> None:
    def answer(peer: Peer, request: Request) -> bytes | None:
        if request.api_key != MetadataRequest.api_key:
            return peer.usual(request)
        brokers = [
            MetadataResponseBroker(node_id=1, host=peer.host, port=peer.port),
            MetadataResponseBroker(node_id=2, host=host, port=port),
        ]
        return request.reply(MetadataResponse(brokers=brokers, controller_id=1))

    with Peer(answer) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        runner.run(runner.client.cluster.refresh(5.0))
        runner.run(call(1, MetadataRequest(topics=[]), timeout=5.0))
        if tls:
            change_security(runner)
        began = time.monotonic()
        with pytest.raises(TransportError):
            runner.run(ask(2))
        assert time.monotonic() - began < 3.0
        assert not runner.io_loop.is_closed
        runner.run(call(1, MetadataRequest(topics=[]), timeout=5.0))


def change_security(runner: object) -> None:
    """TLS from now on: the connections that are there stay as they are."""
    from kcodec.security import Security

    options = runner.client.options  # type: ignore[attr-defined]
    object.__setattr__(options, "security", Security.from_options({"security_protocol": "SSL"}))


@pytest.mark.parametrize("name", ["", ".example", "a..b", "x\0y"])
def test_a_name_that_tls_cannot_ask_for(make: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a system may resolve it."""
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(peer.address, request_timeout_ms=5000, security_protocol="SSL")
        monkeypatch.setattr(type(runner.client.options.security), "server_hostname", lambda *_: name)
        with pytest.raises(AuthenticationError, match="TLS with bootstrap server"):
            runner.run(ask(ANY_NODE))
        assert not runner.io_loop.is_closed
