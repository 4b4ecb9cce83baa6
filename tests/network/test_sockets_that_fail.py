# SPDX-License-Identifier: Apache-2.0
"""The operating system refuses a socket: the next address is tried, then the attempt fails, and the client goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from client_runners import Make, Threaded
from scripted_peer import Peer

from kcodec.errors import KcodecError, TransportError
from kcodec.flow import ANY_NODE, call
from kcodec.protocol.messages.metadata import MetadataRequest

_real_socket = socket.socket


def refuse_sockets(monkeypatch: pytest.MonkeyPatch, refusal: Callable[[int], Exception | None]) -> None:
    """Let each new socket that connects raise what `refusal` returns for its family."""

    class Refusing(_real_socket):
        def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002
            error = refusal(family) if fileno is None else None
            if error is not None:
                raise error
            super().__init__(family, type, proto, fileno)

    monkeypatch.setattr(socket, "socket", Refusing)


def ask(runner: Any) -> Any:
    return runner.run(call(ANY_NODE, MetadataRequest(topics=[]), timeout=5.0))


def os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def test_the_next_address_is_tried_without_ipv6(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose kernel has no IPv6, although its /etc/hosts has an IPv6 address for the name."""
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(f"localhost:{peer.port}", request_timeout_ms=5000)
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", peer.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", peer.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        refuse_sockets(monkeypatch, lambda family: os_error(errno.EAFNOSUPPORT) if family == socket.AF_INET6 else None)
        assert ask(runner).message.brokers
        assert not runner.io_loop.is_closed


@pytest.mark.parametrize("family", ["any", "v4", "v6"])
def test_only_addresses_of_the_family_are_asked_for(make: Make, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """The option broker_address_family, for a host whose name has two addresses, of which one refuses connections."""
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(f"broker.example:{peer.port}", request_timeout_ms=5000, broker_address_family=family)
        addresses = {
            socket.AF_INET6: (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", peer.port, 0, 0)),
            socket.AF_INET: (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", peer.port)),
        }
        asked: set[int] = set()

        def look_up(host: str, port: int, family: int = 0, *_: Any, **__: Any) -> list[Any]:
            if host == "broker.example":
                asked.add(family)
            return [one for kind, one in addresses.items() if family in (socket.AF_UNSPEC, kind)]

        def refuse(family: int) -> OSError | None:
            return os_error(errno.ECONNREFUSED) if family == socket.AF_INET6 else None

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        refuse_sockets(monkeypatch, refuse)
        if family == "v6":
            with pytest.raises(KcodecError, match="Connection refused"):
                ask(runner)
        else:
            assert ask(runner).message.brokers
        assert asked == {{"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}[family]}


def test_the_error_of_a_name_without_an_address_names_the_family(make: Make) -> None:
    runner = make("127.0.0.1:9092", broker_address_family="v6")
    with pytest.raises(KcodecError, match=r"; broker_address_family='v6' allows only IPv6 addresses"):
        ask(runner)


def test_the_error_of_a_name_service_that_fails_does_not_name_the_family(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    runner = make("broker.example:9092", broker_address_family="v6")
    with pytest.raises(KcodecError, match="Temporary failure in name resolution") as raised:
        ask(runner)
    assert "broker_address_family" not in str(raised.value)


@pytest.mark.parametrize("silent", [1, 2])
def test_the_next_address_is_tried_after_one_that_does_not_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """As with a broken IPv6 network, or a load balancer that has one dead address. The addresses share the setup time,
    so the last one is reached however many there are."""
    with Peer(lambda peer, request: peer.usual(request)) as peer, contextlib.ExitStack() as holes:
        hosts = ["127.0.0.2", "127.0.0.3"][:silent]
        for host in hosts:
            listener = holes.enter_context(socket.socket())
            listener.bind((host, peer.port))
            listener.listen(0)
            for _ in range(4):  # the system ignores further connections to a listener whose backlog is full
                filler = holes.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex((host, peer.port))
        runner = make(f"localhost:{peer.port}", socket_connection_setup_timeout_ms=1500)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, peer.port)) for host in [*hosts, "127.0.0.1"]]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert ask(runner).message.brokers


@pytest.mark.parametrize(
    "failure", [os_error(errno.EMFILE), OverflowError("port must be 0-65535"), ValueError("embedded null byte")]
)
def test_a_client_continues_after_a_socket_failed(
    make: Make, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Such as for a moment without free file descriptors."""
    failures = [failure]
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(peer.address, request_timeout_ms=5000)
        refuse_sockets(monkeypatch, lambda family: failures[0] if failures else None)
        with pytest.raises(TransportError, match=failure.args[-1]):
            ask(runner)
        failures.clear()
        assert not runner.io_loop.is_closed
        assert ask(runner).message.brokers


def test_a_client_continues_after_a_lookup_without_addresses(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement of the system's function can return an empty list."""
    found: list[Any] = []
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = make(f"kafka.example.org:{peer.port}", request_timeout_ms=5000)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with pytest.raises(TransportError, match="no connection: the host has no address"):
            ask(runner)
        found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", peer.port)))
        assert not runner.io_loop.is_closed
        assert ask(runner).message.brokers


def test_errors_name_a_name_lookup_that_has_not_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the error of a call does not say that the name server is the cause."""
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [][: released.wait(20)])
    runner = make("kafka.example.org:9092", socket_connection_setup_timeout_ms=2000)
    pending = "the name lookup of 'kafka.example.org' has not ended"
    try:
        with pytest.raises(TransportError, match=f"MetadataRequest was not sent within .*; {pending}"):
            runner.run(call(ANY_NODE, MetadataRequest(topics=[]), timeout=0.3))
        with pytest.raises(TransportError, match=f"not connected within 2 s; {pending}"):
            ask(runner)
    finally:
        released.set()


def test_a_selector_that_is_full_fails_only_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux limits the number of sockets that epoll watches: fs.epoll.max_user_watches."""
    refused: list[socket.socket] = []
    with Peer(lambda peer, request: peer.usual(request)) as peer:
        runner = Threaded(peer.address, request_timeout_ms=5000)
        register = runner.io_loop.selector.register

        def refuse(sock: Any, *rest: Any) -> Any:
            if sock.family == socket.AF_INET:
                refused.append(sock)
                raise os_error(errno.ENOSPC)
            return register(sock, *rest)

        try:
            with monkeypatch.context() as patch:
                patch.setattr(runner.io_loop.selector, "register", refuse)
                with pytest.raises(TransportError, match=os.strerror(errno.ENOSPC)):
                    ask(runner)
            assert ask(runner).message.brokers
            assert {sock.fileno() for sock in refused} == {-1}  # closed
        finally:
            runner.end()
