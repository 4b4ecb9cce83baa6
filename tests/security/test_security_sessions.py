# SPDX-License-Identifier: Apache-2.0
"""Clients of a guarded Kafka over time: sessions and tokens that end under load, logins not repeated, examples."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from guarded_kafka import (
    CLIENT_SECRET,
    MECHANISMS,
    WRONG,
    client_of,
    hidden_in,
    metadata,
    refusal,
)

from kcodec.client import Producer
from kcodec.client.aio import Producer as AsyncProducer
from kcodec.errors import AuthenticationError, TransportError
from kcodec.network.connections import Trace
from kcodec.network.metrics import NoMetrics
from kcodec.protocol.messages.auth import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.tokens import TokenServer

pytestmark = pytest.mark.usefixtures("no_secret_logged")
ROOT = Path(__file__).resolve().parent.parent.parent
#: Examples of logins that other tests run: Amazon MSK, Kerberos, delegation tokens, client certificates.
LOGINS_ELSEWHERE = ("amazonaws", "GSSAPI", "sasl_scram_token_auth", "ssl_certfile")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_producer_with_a_wrong_password_says_so_with_each_record(
    guarded_kafka: ApacheKafka, asynchronous: bool
) -> None:
    wrong = {**guarded_kafka.client_options("alice", "SCRAM-SHA-512"), "sasl_plain_password": WRONG}
    topic = guarded_kafka.create_topic(partitions=1)

    def send(options: dict[str, Any]) -> str:
        with Producer(**options) as producer:
            return repr(producer.send(topic, b"value").result(30))

    async def send_asyncio(options: dict[str, Any]) -> str:
        async with AsyncProducer(**options) as producer:
            return repr(await (await producer.send(topic, b"value")))

    text = refusal(wrong, (lambda options: asyncio.run(send_asyncio(options))) if asynchronous else send)
    assert text.startswith("SASL SCRAM-SHA-512 as user 'alice' on 127.0.0.1: Authentication failed")


def test_a_client_with_a_wrong_password_does_not_knock_by_itself(guarded_kafka: ApacheKafka) -> None:
    """An account may be locked after some attempts: each is made for somebody."""
    logins = []
    with client_of({**guarded_kafka.client_options("alice", "PLAIN"), "sasl_plain_password": WRONG}) as (client, run):
        client.network.watchers.append(
            lambda trace: logins.append(trace) if isinstance(trace.message, SaslAuthenticateRequest) else None
        )
        for flow in (client.cluster.refresh(60.0), client.cluster.ensure_topic("a", 60.0)):
            with pytest.raises(AuthenticationError):
                run(flow)
        attempts = len(logins)
        assert attempts <= 4
        time.sleep(2.5)
        assert len(logins) == attempts


def test_sessions_are_renewed_on_their_connections_and_tokens_at_80_percent(
    guarded_kafka: ApacheKafka, token_server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of requests: SCRAM sessions of 2.5 s, and tokens of 5 s whose expiry ends their sessions."""
    monkeypatch.setattr(token_server, "lifetime", 5.0)
    issued: list[float] = []
    grant, token = token_server.grant, token_server.token
    # exp counts whole seconds; rounded down, tokens this short would end a fifth of their life too early.
    monkeypatch.setattr(
        token_server, "token", lambda *given, **claims: token(*given, exp=int(time.time()) + 6, **claims)
    )

    def noted(*given: Any) -> Any:
        issued.append(time.monotonic())
        return grant(*given)

    monkeypatch.setattr(token_server, "grant", noted)
    counts: Counter[str] = Counter()
    stories = {mechanism: Story(guarded_kafka.client_options("alice", mechanism)) for mechanism in MECHANISMS[1::2]}
    for story in stories.values():
        story.thread.start()
    written = write_until(time.monotonic() + Story.SECONDS, guarded_kafka, counts)
    assert written > 300
    assert counts["connection.failed"] == 0, "a session that is not renewed in time is cut"
    assert counts["connection.authenticated"] >= 5
    for story in stories.values():
        story.thread.join(30)
        assert story.error is None
        assert story.answers > 100
    # Not before 85 % of the session, less what a login takes; and in time, as otherwise the broker had cut it.
    for mechanism, least in (("SCRAM-SHA-256", 3), ("OAUTHBEARER", 1)):
        shares = stories[mechanism].shares()
        assert len(shares) >= least
        assert all(0.6 <= share <= 1.1 for share in shares), shares
    assert len(issued) >= 3
    assert all(3.95 <= later - earlier <= 5.5 for earlier, later in itertools.pairwise(issued))


def write_until(end: float, kafka: ApacheKafka, counts: Counter[str]) -> int:
    """How many records an idempotent producer wrote until then, none of them lost or twice."""

    class Counting(NoMetrics):
        def count(self, name: str, value: float = 1, **labels: object) -> None:
            counts[name] += int(value)

    topic, deliveries = kafka.create_topic(partitions=1), []
    with Producer(**kafka.client_options("alice", "SCRAM-SHA-256"), metrics=Counting()) as producer:
        while time.monotonic() < end:
            deliveries.append(producer.send(topic, b"value"))
            time.sleep(0.001)
    assert [delivery.result(5).offset for delivery in deliveries] == list(range(len(deliveries)))
    return len(deliveries)


class Story:
    """A client that asks without a pause for ten seconds; what it said of logins, by connection."""

    SECONDS = 10.0

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.logins: dict[tuple[int, str], list[Trace]] = {}
        self.answers = 0
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._tell)

    def shares(self) -> list[float]:
        """How much of each session was over when the next login began on the same connection."""
        return [
            (later.time - earlier.time) * 1000 / earlier.message.session_lifetime_ms
            for traces in self.logins.values()
            for earlier, later in itertools.pairwise(traces)
            if isinstance(later.message, SaslHandshakeRequest) and earlier.message.session_lifetime_ms
        ]

    def _tell(self) -> None:
        try:
            with client_of(self.options) as (client, run):
                client.network.watchers.append(self._watch)
                end = time.monotonic() + self.SECONDS
                while time.monotonic() < end:
                    run(metadata())
                    self.answers += 1
                    time.sleep(0.02)
        except TransportError as error:
            self.error = error

    def _watch(self, trace: Trace) -> None:
        assert not hidden_in(repr(trace))
        if isinstance(trace.message, SaslHandshakeRequest | SaslAuthenticateResponse):
            self.logins.setdefault((trace.node_id, trace.channel), []).append(trace)


def test_the_examples_of_the_docs_log_in(guarded_kafka: ApacheKafka, token_server: TokenServer, tmp_path: Path) -> None:
    """Those that this broker accepts. Delegation tokens: test_delegation_tokens.py; client certificates:
    test_testing_security.py."""
    (tmp_path / "token").write_text(token_server.token("alice") + "\n", encoding="ascii")
    here = {
        "kafka.example.org:9093": guarded_kafka.bootstrap_servers,
        "/etc/kafka/authority.pem": str(guarded_kafka.certificates.authority),
        "/run/secrets/kafka-token": str(tmp_path / "token"),
        "https://login.example.org/realms/main/protocol/openid-connect/token": token_server.token_endpoint,
        '"orders"': '"alice"',
    }
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for there, place in here.items():
        assert there in text
        text = text.replace(there, place)
    topic, written = guarded_kafka.create_topic(partitions=1), 0
    for example in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if "Producer(" in example and not any(name in example for name in LOGINS_ELSEWHERE):
            names: dict[str, Any] = {"password": "alice-secret", "client_secret": CLIENT_SECRET}
            exec(compile(example, "docs/security.md", "exec"), names)
            with names["producer"] as producer:
                assert producer.send(topic, b"value").result(10).offset == written
            written += 1
    assert written == 3
