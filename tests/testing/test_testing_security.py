# SPDX-License-Identifier: Apache-2.0
"""kcodec.testing: that its certificates, tokens and permissions are what they say, to a real broker."""

from __future__ import annotations

import json
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tls_authority import Certificate, encrypt_key

from kcodec.errors import AuthenticationError
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.network.thread_loop import ThreadLoop
from kcodec.testing.kafka import ApacheKafka, Certificates, TokenServer
from kcodec.testing.pytest_plugin import KafkaFactory

ROOT = Path(__file__).resolve().parent.parent.parent


def log_in(options: dict[str, object]) -> set[int]:
    """The brokers that a client with these options learns of."""
    client = Client(ClientConfig.take(options))
    io_loop = ThreadLoop(client)
    try:
        io_loop.run(client.cluster.refresh(10), 10)
        return set(client.cluster.brokers)
    finally:
        io_loop.close(5)


def test_signed_tokens_are_taken_as_long_as_they_hold(apache_kafka_factory: KafkaFactory) -> None:
    with TokenServer({"alice": "alice-secret", "zoë & co": "a=b&c%"}) as server:
        kafka = apache_kafka_factory(sasl="OAUTHBEARER", token_server=server)
        for user in server.clients:
            assert log_in({**kafka.client_options(user), "sasl_oauthbearer_allow_http": True}) == {1}
        assert [client_id for client_id, _ in server.issued] == ["alice", "zoë & co"]
        given = {"bootstrap_servers": kafka.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT"}
        given["sasl_mechanism"] = "OAUTHBEARER"
        assert log_in({**given, "sasl_oauth_token_provider": lambda: server.token("bob")}) == {1}
        for bad in (server.token("bob", aud="others"), server.token("bob", iss="nobody"), server.token("bob")[:-8]):
            with pytest.raises(AuthenticationError):
                log_in({**given, "sasl_oauth_token_provider": lambda token=bad: token})


def ask_for_token(server: TokenServer, client_id: str, secret: str) -> tuple[int, dict[str, object]]:
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    try:
        with urllib.request.urlopen(server.token_endpoint, urllib.parse.urlencode(form).encode(), 10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_token_server_refuses_whom_it_should() -> None:
    with TokenServer(lifetime=60) as server:
        status, answer = ask_for_token(server, "alice", "alice-secret")
        assert (status, answer["expires_in"], answer["token_type"]) == (200, 60, "Bearer")
        assert ask_for_token(server, "alice", "wrong")[0] == 401
        assert ask_for_token(server, "mallory", "")[0] == 401
        server.refusals = 1
        assert [ask_for_token(server, "alice", "alice-secret")[0] for _ in range(2)] == [503, 200]
    with pytest.raises(ValueError, match="not been started"):
        _ = server.token_endpoint


def test_client_certificates_make_principals_for_permissions(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory(tls=True, ssl_client_auth="required", authorizer=True)
    kafka.allow("User:CN=alice", "Describe")
    assert log_in(kafka.client_options("alice", client_certificate=True)) == {1}
    options = kafka.client_options("alice")
    stranger = kafka.certificates.stranger("alice")
    for pair in ({}, {"ssl_certfile": str(stranger.certificate), "ssl_keyfile": str(stranger.key)}):
        with pytest.raises(AuthenticationError):
            log_in({**options, **pair})
    run_the_example_of_the_documentation(kafka)


def run_the_example_of_the_documentation(kafka: ApacheKafka) -> None:
    """The example with ssl_certfile in docs/security.md, with an encrypted key."""
    topic = kafka.create_topic(partitions=1)
    kafka.allow("User:CN=alice", "Write", topic=topic)
    options = kafka.client_options("alice", client_certificate=True)
    certificate, key = Path(options["ssl_certfile"]), Path(options["ssl_keyfile"])
    places = {
        "kafka.example.org:9093": kafka.bootstrap_servers,
        "/etc/kafka/authority.pem": str(kafka.certificates.authority),
        "/etc/kafka/orders.pem": str(certificate),
        "/etc/kafka/orders.key": str(encrypt_key(Certificate("alice", certificate, key, certificate), "key-secret")),
    }
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (example,) = [
        code for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "ssl_certfile" in code
    ]
    for documented, used in places.items():
        assert documented in example
        example = example.replace(documented, used)
    names: dict[str, Any] = {"password": "key-secret"}
    exec(compile(example, "docs/security.md", "exec"), names)
    with names["producer"] as producer:
        assert producer.send(topic, b"value").result(10).offset == 0


def handshake(authority: Path, kafka: ApacheKafka, name: str) -> None:
    context = ssl.create_default_context(cafile=str(authority))
    host, port = kafka.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain, server_hostname=name):
        pass


def test_a_broker_shows_the_certificate_it_was_given(apache_kafka_factory: KafkaFactory, tmp_path: Path) -> None:
    kafka = apache_kafka_factory(tls=Certificates(names=["elsewhere.test", "127.0.0.9"]))
    authority = kafka.certificates.authority
    handshake(authority, kafka, "elsewhere.test")
    handshake(authority, kafka, "127.0.0.9")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
        handshake(authority, kafka, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(kafka.certificates.stranger().authority, kafka, "elsewhere.test")
    kafka.close()
    expired = apache_kafka_factory(tls=Certificates(has_expired=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(expired.certificates.authority, expired, "localhost")


def test_a_password_in_no_log_and_no_repr(apache_kafka_factory: KafkaFactory) -> None:
    """Also odd ones: they pass through a properties file and a JAAS configuration."""
    users = {"admin": "x", "alice": 'p"ä\\ss, w=örd;'}
    kafka = apache_kafka_factory(sasl=["PLAIN", "SCRAM-SHA-256"], users=users)
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        assert log_in(kafka.client_options("alice", mechanism)) == {1}
    assert "örd" not in kafka.log_tail(5000)
    assert "örd" not in repr(kafka)
    assert (kafka.node(1).directory / "server.properties").stat().st_mode & 0o077 == 0
