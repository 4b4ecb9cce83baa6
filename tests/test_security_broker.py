# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL against a real Kafka: each mechanism logs in, each wrong credential is one clear error, at once, and no
log record, repr, exception or pickle of it all holds a secret. What mechanisms do in detail: test_sasl.py and its like.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import os
import pickle
import re
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcodec.client import Producer, sync
from kcodec.client.aio import Producer as AsyncProducer
from kcodec.client.aio import carrier as aio
from kcodec.client.client import Client
from kcodec.client.metrics import NoMetrics
from kcodec.client.network import Trace
from kcodec.client.options import ClientOptions
from kcodec.errors import AuthenticationError, TransportError
from kcodec.protocol.flow import ANY_NODE, Flow, call
from kcodec.protocol.messages.auth import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from kcodec.protocol.messages.metadata import MetadataRequest
from kcodec.testing.certificates import Certificates
from kcodec.testing.jars import broker_jars
from kcodec.testing.java import find_java
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory
from kcodec.testing.tokens import TokenServer

ROOT = Path(__file__).resolve().parent.parent
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# A refusal comes back at once, but for the tenth of a second by which a broker delays it, and our timers' grain.
AT_ONCE_SECONDS = 3.0
WRONG = "wr0ng-s3cret"
SECRETS = {"alice-secret", "token-client-s3cret", WRONG}
CLIENT_SECRET = "token-client-s3cret"
SCRAM_SESSION_MS = 2500


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer({"alice": CLIENT_SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tokens: TokenServer) -> Iterator[ApacheKafka]:
    """SASL_SSL with every mechanism; sessions of SCRAM-SHA-256 are short."""
    session = {"listener.name.client.scram-sha-256.connections.max.reauth.ms": SCRAM_SESSION_MS}
    with ApacheKafka(tls=True, sasl=True, token_server=tokens, **session) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def mutual() -> Iterator[ApacheKafka]:
    """SSL, with an expired certificate, for clients that bring one of their own."""
    with ApacheKafka(tls=Certificates(has_expired=True), ssl_client_auth="required") as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def watched(caplog: pytest.LogCaptureFixture, tokens: TokenServer) -> Iterator[None]:
    """Whatever a test here does: nothing that is logged shows a secret."""
    caplog.set_level(logging.DEBUG)
    yield
    for record in caplog.get_records("call"):
        assert not hidden_in(f"{record.getMessage()} {record.args!r} {record.exc_text} {record.__dict__!r}", tokens)


def hidden_in(text: str, tokens: TokenServer | None = None) -> set[str]:
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
        carrier = aio.Carrier(Client(ClientOptions.take(dict(options))))
        try:
            return await carrier.run(metadata(), 15.0)
        finally:
            await carrier.close()

    return asyncio.run(ask())


@contextmanager
def client_of(options: dict[str, Any]) -> Iterator[tuple[Client, Callable[[Flow[Any]], Any]]]:
    client = Client(ClientOptions.take(dict(options)))
    carrier = sync.Carrier(client)
    try:
        yield client, lambda flow: carrier.run(flow, 15.0)
    finally:
        carrier.close(5.0)


CARRIERS = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio], ids=["blocking", "asyncio"])


def refusal(options: dict[str, Any], ask: Callable[[dict[str, Any]], str] = ask_blocking) -> str:
    """The text of the one clear error that these options end in, at once, whatever way it is looked at."""
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


@CARRIERS
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_logs_in(guarded: ApacheKafka, mechanism: str, ask: Callable[[dict[str, Any]], str]) -> None:
    options = guarded.client_options("alice", mechanism)
    assert ask(options)
    taken = ClientOptions.take(dict(options))
    assert not hidden_in(repr(taken) + repr(taken.security) + repr(Client(taken)))


@CARRIERS
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_a_wrong_password_is_one_clear_error(
    guarded: ApacheKafka, mechanism: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    options = {**guarded.client_options("alice", mechanism), "sasl_plain_password": WRONG}
    text = refusal(options, ask)
    assert text.startswith(f"SASL {mechanism} as user 'alice' on 127.0.0.1: Authentication failed")
    assert text.endswith("check sasl_plain_username and sasl_plain_password [SASL_AUTHENTICATION_FAILED, 58]")


def test_a_password_is_hashed_as_kafka_hashes_it(guarded: ApacheKafka) -> None:
    """ScramFormatter takes a password as it is, where RFC 5802 wants SASLprep; so do we, unless told otherwise."""
    password = "\u2168-\u00a0x"  # SASLprep makes "IX- x" of it
    add_scram_user(guarded, "wide", password)
    options = {**guarded.client_options("alice", "SCRAM-SHA-256"), "sasl_plain_username": "wide"}
    assert ask_blocking({**options, "sasl_plain_password": password})
    refusal({**options, "sasl_plain_password": password, "sasl_scram_saslprep": True})
    refusal({**options, "sasl_plain_password": "IX- x"})


def add_scram_user(kafka: ApacheKafka, name: str, password: str) -> None:
    """By Kafka's own kafka-configs."""
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, broker_jars(kafka.version)))]
    command += ["kafka.admin.ConfigCommand", "--bootstrap-server", kafka.admin_servers, "--alter"]
    command += ["--entity-type", "users", "--entity-name", name]
    command += ["--add-config", f"SCRAM-SHA-256=[iterations=4096,password={password}]"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=60, env=environment)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_an_unknown_user_is_told_no_more(guarded: ApacheKafka, mechanism: str) -> None:
    text = refusal({**guarded.client_options("alice", mechanism), "sasl_plain_username": "nobody, or=else"})
    assert text.startswith(f"SASL {mechanism} as user 'nobody, or=else' on 127.0.0.1: Authentication failed")


@CARRIERS
def test_a_token_of_a_callable_logs_in(
    guarded: ApacheKafka, tokens: TokenServer, ask: Callable[[dict[str, Any]], str]
) -> None:
    options = without_oidc(guarded)
    assert ask({**options, "sasl_oauth_token_provider": lambda: tokens.token("alice")})
    assert ask(
        {
            **options,
            "sasl_oauth_token_provider": lambda: (tokens.token("alice"), 3600),
            "sasl_oauthbearer_extensions": {"pool": "a b"},
        }
    )


def without_oidc(guarded: ApacheKafka) -> dict[str, Any]:
    options = guarded.client_options("alice", "OAUTHBEARER")
    return {name: value for name, value in options.items() if not name.startswith("sasl_oauthbearer_")}


@CARRIERS
@pytest.mark.parametrize("fault", ["expired", "signed by another", "no token"])
def test_a_token_that_does_not_hold_is_one_clear_error(
    guarded: ApacheKafka, tokens: TokenServer, fault: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    token = {
        "expired": lambda: tokens.token("alice", lifetime=-120),
        "signed by another": lambda: tokens.token("alice")[:-8] + "AAAAAAAA",
        "no token": lambda: WRONG,
    }[fault]
    text = refusal({**without_oidc(guarded), "sasl_oauth_token_provider": token}, ask)
    assert text.startswith('SASL OAUTHBEARER on 127.0.0.1: {"status":"invalid_token"}; check the token from')


def test_a_wrong_client_secret_is_told_by_the_token_endpoint(guarded: ApacheKafka, tokens: TokenServer) -> None:
    options = {**guarded.client_options("alice", "OAUTHBEARER"), "sasl_oauthbearer_client_secret": WRONG}
    text = refusal(options)
    assert text.startswith(f"token endpoint {tokens.token_endpoint} answered 401 to client 'alice': invalid_client")


def test_a_token_endpoint_with_a_moments_trouble_is_asked_again(guarded: ApacheKafka, tokens: TokenServer) -> None:
    tokens.refusals = 2
    assert ask_blocking(guarded.client_options("alice", "OAUTHBEARER"))
    assert tokens.refusals == 0


def test_a_mechanism_that_is_not_offered_names_those_that_are(guarded: ApacheKafka) -> None:
    options = {
        "bootstrap_servers": guarded.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(guarded.certificates.authority),
        "sasl_mechanism": "AWS_MSK_IAM",
        "sasl_aws_region": "eu-west-1",
        "sasl_aws_credentials_provider": lambda: ("AKIDEXAMPLE", WRONG),
    }
    text = refusal(options)
    assert "this listener offers" in text
    assert all(mechanism in text for mechanism in MECHANISMS)
    assert text.endswith("[UNSUPPORTED_SASL_MECHANISM, 33]")


@CARRIERS
def test_a_broker_of_an_unknown_authority_is_refused(
    guarded: ApacheKafka, ask: Callable[[dict[str, Any]], str]
) -> None:
    stranger = guarded.certificates.stranger().authority
    text = refusal({**guarded.client_options("alice", "PLAIN"), "ssl_cafile": str(stranger)}, ask)
    assert f"TLS with bootstrap server {guarded.bootstrap_servers}: the broker's certificate is refused" in text
    assert "ssl_cafile must hold the certificate of the authority that signed it" in text


def test_a_broker_of_another_name_is_refused(guarded: ApacheKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if host == "kafka.example.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    port = guarded.bootstrap_servers.rpartition(":")[2]
    options = {**guarded.client_options("alice", "PLAIN"), "bootstrap_servers": f"kafka.example.test:{port}"}
    text = refusal(options)
    assert "certificate is not valid for 'kafka.example.test'" in text
    assert "subjectAltName" in text
    assert ask_blocking({**options, "ssl_check_hostname": False})


@CARRIERS
def test_an_expired_certificate_of_the_broker_is_refused(
    mutual: ApacheKafka, ask: Callable[[dict[str, Any]], str]
) -> None:
    text = refusal(mutual.client_options("alice", client_certificate=True), ask)
    assert "the broker's certificate is refused: certificate has expired" in text


def trusting(mutual: ApacheKafka, certificate: Any) -> dict[str, Any]:
    """Options for the broker whose certificate has expired: a context that does not look at it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return {"bootstrap_servers": mutual.bootstrap_servers, "security_protocol": "SSL", "ssl_context": context}


@CARRIERS
def test_a_client_logs_in_by_its_certificate(mutual: ApacheKafka, ask: Callable[[dict[str, Any]], str]) -> None:
    assert ask(trusting(mutual, mutual.certificates.client("alice")))


@CARRIERS
@pytest.mark.parametrize("kind", ["none", "stranger"])
def test_a_client_without_a_certificate_the_broker_trusts_is_one_clear_error(
    mutual: ApacheKafka, kind: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    text = refusal(trusting(mutual, None if kind == "none" else mutual.certificates.stranger("alice")), ask)
    assert text.startswith(f"TLS with bootstrap server {mutual.bootstrap_servers}: ")
    assert "certificate" in text
    assert "ssl_certfile" in text


@pytest.mark.parametrize(
    ("protocol", "words"),
    [("SSL", "does this listener demand SASL"), ("PLAINTEXT", "TLS"), ("SASL_PLAINTEXT", "TLS")],
)
def test_the_wrong_security_protocol_is_hinted_at(guarded: ApacheKafka, protocol: str, words: str) -> None:
    options = {**guarded.client_options("alice", "PLAIN"), "security_protocol": protocol}
    kept = {"PLAINTEXT": ("bootstrap", "security"), "SSL": ("bootstrap", "security", "ssl")}
    prefixes = kept.get(protocol, ("bootstrap", "security", "sasl"))
    with pytest.raises(TransportError, match=words):
        ask_blocking({name: value for name, value in options.items() if name.startswith(prefixes)})


def test_a_listener_without_tls_is_hinted_at(guarded: ApacheKafka) -> None:
    options = {**guarded.client_options("alice", "PLAIN"), "bootstrap_servers": guarded.admin_servers}
    with pytest.raises(TransportError, match=r"TLS handshake \(does this listener speak TLS"):
        ask_blocking(options)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_producer_with_a_wrong_password_says_so_with_each_record(guarded: ApacheKafka, asynchronous: bool) -> None:
    wrong = {**guarded.client_options("alice", "SCRAM-SHA-512"), "sasl_plain_password": WRONG}
    topic = guarded.create_topic(partitions=1)

    def send(options: dict[str, Any]) -> str:
        with Producer(**options) as producer:
            return repr(producer.send(topic, b"value").result(30))

    async def send_asyncio(options: dict[str, Any]) -> str:
        async with AsyncProducer(**options) as producer:
            return repr(await (await producer.send(topic, b"value")))

    text = refusal(wrong, (lambda options: asyncio.run(send_asyncio(options))) if asynchronous else send)
    assert text.startswith("SASL SCRAM-SHA-512 as user 'alice' on 127.0.0.1: Authentication failed")


def test_a_client_with_a_wrong_password_does_not_knock_by_itself(guarded: ApacheKafka) -> None:
    """An account may be locked after some attempts: each is made for somebody."""
    logins = []
    with client_of({**guarded.client_options("alice", "PLAIN"), "sasl_plain_password": WRONG}) as (client, run):
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
    guarded: ApacheKafka, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of requests: SCRAM sessions of 2.5 s, and tokens of 5 s whose expiry ends their sessions."""
    monkeypatch.setattr(tokens, "lifetime", 5.0)
    issued: list[float] = []
    grant, token = tokens.grant, tokens.token
    # exp counts whole seconds; rounded down, tokens this short would end a fifth of their life too early.
    monkeypatch.setattr(tokens, "token", lambda *given, **claims: token(*given, exp=int(time.time()) + 6, **claims))
    monkeypatch.setattr(tokens, "grant", lambda *given: issued.append(time.monotonic()) or grant(*given))
    counts: Counter[str] = Counter()
    stories = {mechanism: Story(guarded.client_options("alice", mechanism)) for mechanism in MECHANISMS[1::2]}
    for story in stories.values():
        story.thread.start()
    written = write_until(time.monotonic() + Story.SECONDS, guarded, counts)
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


def test_the_examples_of_the_docs_log_in(guarded: ApacheKafka, tokens: TokenServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(tokens.token("alice") + "\n", encoding="ascii")
    here = {
        "kafka.example.org:9093": guarded.bootstrap_servers,
        "/etc/kafka/authority.pem": str(guarded.certificates.authority),
        "/run/secrets/kafka-token": str(tmp_path / "token"),
        "https://login.example.org/realms/main/protocol/openid-connect/token": tokens.token_endpoint,
        '"orders"': '"alice"',
    }
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for there, place in here.items():
        assert there in text
        text = text.replace(there, place)
    topic, written = guarded.create_topic(partitions=1), 0
    for example in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if "Producer(" in example and "amazonaws" not in example:
            names: dict[str, Any] = {"password": "alice-secret", "client_secret": CLIENT_SECRET}
            exec(compile(example, "docs/security.md", "exec"), names)
            with names["producer"] as producer:
                assert producer.send(topic, b"value").result(10).offset == written
            written += 1
    assert written == 3


def test_each_mechanism_logs_in_on_kafka_3_9(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory("3.9.1", tls=True, sasl=True)
    for mechanism in MECHANISMS:
        options = kafka.client_options("alice", mechanism)
        assert ask_blocking(options)
        if "sasl_plain_password" in options:
            assert "Authentication failed" in refusal({**options, "sasl_plain_password": WRONG})
