# SPDX-License-Identifier: Apache-2.0
"""A Kafka that requires authentication, and checks that no secret appears in logs and errors."""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kcodec.errors import AuthenticationError
from kcodec.flow import ANY_NODE, Flow, call
from kcodec.network import asyncio_loop as aio
from kcodec.network import thread_loop as sync
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.protocol.messages.metadata import MetadataRequest
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.security import USERS
from kcodec.testing.tokens import TokenServer

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# A failed login is reported at once, except for the broker's delay of a tenth of a second and the timers of the client.
AT_ONCE_SECONDS = 3.0
WRONG = "wr0ng-s3cret"
SECRETS = {"alice-secret", "token-client-s3cret", WRONG}
CLIENT_SECRET = "token-client-s3cret"
SCRAM_SESSION_MS = 2500


@pytest.fixture(scope="module")
def token_server() -> Iterator[TokenServer]:
    with TokenServer({"alice": CLIENT_SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def guarded_kafka(token_server: TokenServer) -> Iterator[ApacheKafka]:
    """SASL_SSL with every mechanism; sessions of SCRAM-SHA-256 are short. One user's name is not ASCII."""
    session: dict[str, Any] = {"listener.name.client.scram-sha-256.connections.max.reauth.ms": SCRAM_SESSION_MS}
    users = {**USERS, "zo\u00eb": "\u2168-secret"}
    with ApacheKafka(tls=True, sasl=True, users=users, token_server=token_server, **session) as kafka:
        yield kafka


@pytest.fixture
def no_secret_logged(caplog: pytest.LogCaptureFixture, token_server: TokenServer) -> Iterator[None]:
    """Check after each test that no log message contains a secret."""
    caplog.set_level(logging.DEBUG)
    yield
    for record in caplog.get_records("call"):
        assert not hidden_in(
            f"{record.getMessage()} {record.args!r} {record.exc_text} {record.__dict__!r}", token_server
        )


def hidden_in(text: str, token_server: TokenServer | None = None) -> set[str]:
    """The secrets found in a text, plain or in base64."""
    found = {secret for secret in SECRETS if secret in text}
    encoded = {base64.b64encode(secret.encode()[skip:]).decode()[:-4] for secret in SECRETS for skip in range(3)}
    return found | {secret for secret in encoded if secret in text} | ({"a token"} if "eyJhbGciOi" in text else set())


def metadata() -> Flow[str]:
    reply = yield from call(ANY_NODE, MetadataRequest(topics=[]), timeout=10.0)
    return str(reply.message.cluster_id)


def ask_blocking(options: dict[str, Any]) -> str:
    with client_of(options) as (_, run):
        return str(run(metadata()))


def ask_asyncio(options: dict[str, Any]) -> str:
    async def ask() -> str:
        io_loop = aio.AsyncioLoop(Client(ClientConfig.take(dict(options))))
        try:
            return await io_loop.run(metadata(), 15.0)
        finally:
            await io_loop.close()

    return asyncio.run(ask())


@contextmanager
def client_of(options: dict[str, Any]) -> Iterator[tuple[Client, Callable[[Flow[Any]], Any]]]:
    client = Client(ClientConfig.take(dict(options)))
    io_loop = sync.ThreadLoop(client)
    try:
        yield client, lambda flow: io_loop.run(flow, 15.0)
    finally:
        io_loop.close(5.0)


def refusal(options: dict[str, Any], ask: Callable[[dict[str, Any]], str] = ask_blocking) -> str:
    """Return the text of the error that these options must raise at once, with its repr and its causes."""
    began = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        ask(options)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    error = caught.value
    looks = [str(error), repr(error), "".join(traceback.format_exception(error)), repr(vars(error))]
    looks += [repr(vars(each)) for each in (error.__cause__, error.__context__) if each is not None]
    looks.append(pickle.dumps(error).decode("latin-1"))
    assert not hidden_in("".join(looks))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return str(error)
