# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL against a real Kafka: each mechanism logs in, each wrong credential is one clear error, at once, and no
log record, repr, exception or pickle of it all holds a secret. What mechanisms do in detail: test_sasl.py and its like.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from guarded_kafka import (
    MECHANISMS,
    WRONG,
    ask_asyncio,
    ask_blocking,
    hidden_in,
    refusal,
)

from kcodec.errors import TransportError
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig
from kcodec.testing.certificates import Certificates
from kcodec.testing.jars import broker_jars
from kcodec.testing.java import find_java
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory
from kcodec.testing.tokens import TokenServer

pytestmark = pytest.mark.usefixtures("no_secret_logged")
BOTH_APIS = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio], ids=["blocking", "asyncio"])


@pytest.fixture(scope="module")
def mutual() -> Iterator[ApacheKafka]:
    """SSL, with an expired certificate, for clients that bring one of their own."""
    with ApacheKafka(tls=Certificates(has_expired=True), ssl_client_auth="required") as kafka:
        yield kafka


@BOTH_APIS
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_logs_in(
    guarded_kafka: ApacheKafka, mechanism: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    options = guarded_kafka.client_options("alice", mechanism)
    assert ask(options)
    taken = ClientConfig.take(dict(options))
    assert not hidden_in(repr(taken) + repr(taken.security) + repr(Client(taken)))


@BOTH_APIS
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_a_wrong_password_is_one_clear_error(
    guarded_kafka: ApacheKafka, mechanism: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    options = {**guarded_kafka.client_options("alice", mechanism), "sasl_plain_password": WRONG}
    text = refusal(options, ask)
    assert text.startswith(f"SASL {mechanism} as user 'alice' on 127.0.0.1: Authentication failed")
    assert text.endswith("check sasl_plain_username and sasl_plain_password [SASL_AUTHENTICATION_FAILED, 58]")


def test_a_password_is_hashed_as_kafka_hashes_it(guarded_kafka: ApacheKafka) -> None:
    """ScramFormatter takes a password as it is, where RFC 5802 requires SASLprep; so does kcodec."""
    password = "\u2168-\u00a0x\u043f\u00e9"
    add_scram_user(guarded_kafka, "wide", password)
    options = {**guarded_kafka.client_options("alice", "SCRAM-SHA-256"), "sasl_plain_username": "wide"}
    assert ask_blocking({**options, "sasl_plain_password": password})
    refusal({**options, "sasl_plain_password": "IX- x\u043f\u00e9"})  # what SASLprep makes of it


def test_scram_of_kafka_refuses_names_that_are_not_ascii(guarded_kafka: ApacheKafka) -> None:
    """The grammar of ScramMessages knows no other characters in a name, however the user was created."""
    add_scram_user(guarded_kafka, "zo\u00eb", "\u2168-secret")
    options = guarded_kafka.client_options("alice", "SCRAM-SHA-256")
    refusal({**options, "sasl_plain_username": "zo\u00eb", "sasl_plain_password": "\u2168-secret"})


@BOTH_APIS
def test_plain_takes_any_name_and_password(guarded_kafka: ApacheKafka, ask: Callable[[dict[str, Any]], str]) -> None:
    assert ask(guarded_kafka.client_options("zo\u00eb", "PLAIN"))
    refusal({**guarded_kafka.client_options("zo\u00eb", "PLAIN"), "sasl_plain_password": "IX-secret"}, ask)


def add_scram_user(kafka: ApacheKafka, name: str, password: str) -> None:
    """By Kafka's own kafka-configs, of the last release whose broker's jars have it."""
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, broker_jars("4.3.1")))]
    command += ["kafka.admin.ConfigCommand", "--bootstrap-server", kafka.admin_servers, "--alter"]
    command += ["--entity-type", "users", "--entity-name", name]
    command += ["--add-config", f"SCRAM-SHA-256=[iterations=4096,password={password}]"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=60, env=environment)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_an_unknown_user_gets_no_further_detail(guarded_kafka: ApacheKafka, mechanism: str) -> None:
    text = refusal({**guarded_kafka.client_options("alice", mechanism), "sasl_plain_username": "nobody, or=else"})
    assert text.startswith(f"SASL {mechanism} as user 'nobody, or=else' on 127.0.0.1: Authentication failed")


@BOTH_APIS
def test_a_token_of_a_callable_logs_in(
    guarded_kafka: ApacheKafka, token_server: TokenServer, ask: Callable[[dict[str, Any]], str]
) -> None:
    options = without_oidc(guarded_kafka)
    assert ask({**options, "sasl_oauth_token_provider": lambda: token_server.token("alice")})
    assert ask(
        {
            **options,
            "sasl_oauth_token_provider": lambda: (token_server.token("alice"), 3600),
            "sasl_oauthbearer_extensions": {"pool": "a b"},
        }
    )


def without_oidc(guarded_kafka: ApacheKafka) -> dict[str, Any]:
    options = guarded_kafka.client_options("alice", "OAUTHBEARER")
    return {name: value for name, value in options.items() if not name.startswith("sasl_oauthbearer_")}


@BOTH_APIS
@pytest.mark.parametrize("fault", ["expired", "signed by another", "no token"])
def test_a_token_that_does_not_hold_is_one_clear_error(
    guarded_kafka: ApacheKafka, token_server: TokenServer, fault: str, ask: Callable[[dict[str, Any]], str]
) -> None:
    token = {
        "expired": lambda: token_server.token("alice", lifetime=-120),
        "signed by another": lambda: token_server.token("alice")[:-8] + "AAAAAAAA",
        "no token": lambda: WRONG,
    }[fault]
    text = refusal({**without_oidc(guarded_kafka), "sasl_oauth_token_provider": token}, ask)
    assert text.startswith('SASL OAUTHBEARER on 127.0.0.1: {"status":"invalid_token"}; check the token from')


def test_a_wrong_client_secret_is_reported_by_the_token_endpoint(
    guarded_kafka: ApacheKafka, token_server: TokenServer
) -> None:
    options = {**guarded_kafka.client_options("alice", "OAUTHBEARER"), "sasl_oauthbearer_client_secret": WRONG}
    text = refusal(options)
    endpoint = f"token endpoint {token_server.token_endpoint}"
    assert text.startswith(f"{endpoint} responded with status 401 to client 'alice': invalid_client")


def test_a_token_endpoint_with_a_moments_trouble_is_asked_again(
    guarded_kafka: ApacheKafka, token_server: TokenServer
) -> None:
    token_server.refusals = 2
    assert ask_blocking(guarded_kafka.client_options("alice", "OAUTHBEARER"))
    assert token_server.refusals == 0


def test_a_mechanism_that_is_not_offered_names_those_that_are(guarded_kafka: ApacheKafka) -> None:
    options = {
        "bootstrap_servers": guarded_kafka.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(guarded_kafka.certificates.authority),
        "sasl_mechanism": "AWS_MSK_IAM",
        "sasl_aws_region": "eu-west-1",
        "sasl_aws_credentials_provider": lambda: ("AKIDEXAMPLE", WRONG),
    }
    text = refusal(options)
    assert "this listener supports" in text
    assert all(mechanism in text for mechanism in MECHANISMS)
    assert text.endswith("[UNSUPPORTED_SASL_MECHANISM, 33]")


@BOTH_APIS
def test_a_broker_of_an_unknown_authority_is_refused(
    guarded_kafka: ApacheKafka, ask: Callable[[dict[str, Any]], str]
) -> None:
    stranger = guarded_kafka.certificates.stranger().authority
    text = refusal({**guarded_kafka.client_options("alice", "PLAIN"), "ssl_cafile": str(stranger)}, ask)
    assert f"TLS with bootstrap server {guarded_kafka.bootstrap_servers}: the broker's certificate is rejected" in text
    assert "ssl_cafile must contain the certificate of the authority that signed it" in text


def test_a_broker_of_another_name_is_refused(guarded_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if host == "kafka.example.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    port = guarded_kafka.bootstrap_servers.rpartition(":")[2]
    options = {**guarded_kafka.client_options("alice", "PLAIN"), "bootstrap_servers": f"kafka.example.test:{port}"}
    text = refusal(options)
    assert "certificate is not valid for 'kafka.example.test'" in text
    assert "subjectAltName" in text
    assert ask_blocking({**options, "ssl_check_hostname": False})


@BOTH_APIS
def test_an_expired_certificate_of_the_broker_is_refused(
    mutual: ApacheKafka, ask: Callable[[dict[str, Any]], str]
) -> None:
    text = refusal(mutual.client_options("alice", client_certificate=True), ask)
    assert "the broker's certificate is rejected: certificate has expired" in text


def trusting(mutual: ApacheKafka, certificate: Any) -> dict[str, Any]:
    """Options for the broker whose certificate has expired: a context that does not look at it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return {"bootstrap_servers": mutual.bootstrap_servers, "security_protocol": "SSL", "ssl_context": context}


@BOTH_APIS
def test_a_client_logs_in_by_its_certificate(mutual: ApacheKafka, ask: Callable[[dict[str, Any]], str]) -> None:
    assert ask(trusting(mutual, mutual.certificates.client("alice")))


@BOTH_APIS
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
    [("SSL", "if this listener requires SASL"), ("PLAINTEXT", "TLS"), ("SASL_PLAINTEXT", "TLS")],
)
def test_the_wrong_security_protocol_is_hinted_at(guarded_kafka: ApacheKafka, protocol: str, words: str) -> None:
    options = {**guarded_kafka.client_options("alice", "PLAIN"), "security_protocol": protocol}
    kept = {"PLAINTEXT": ("bootstrap", "security"), "SSL": ("bootstrap", "security", "ssl")}
    prefixes = kept.get(protocol, ("bootstrap", "security", "sasl"))
    with pytest.raises(TransportError, match=words):
        ask_blocking({name: value for name, value in options.items() if name.startswith(prefixes)})


def test_a_listener_without_tls_is_hinted_at(guarded_kafka: ApacheKafka) -> None:
    options = {**guarded_kafka.client_options("alice", "PLAIN"), "bootstrap_servers": guarded_kafka.admin_servers}
    with pytest.raises(TransportError, match=r"TLS handshake \(check that this listener uses TLS"):
        ask_blocking(options)


def test_each_mechanism_logs_in_on_kafka_3_9(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory("3.9.1", tls=True, sasl=True)
    for mechanism in MECHANISMS:
        options = kafka.client_options("alice", mechanism)
        assert ask_blocking(options)
        if "sasl_plain_password" in options:
            assert "Authentication failed" in refusal({**options, "sasl_plain_password": WRONG})
