# SPDX-License-Identifier: Apache-2.0
"""Delegation tokens on a broker that authenticates its clients, read back with Kafka's own tool."""

from __future__ import annotations

import asyncio
import base64
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import rows, run
from kafka_tools import kafka_tool

from kcodec.cli import ExitStatus
from kcodec.cli.tokens import EXAMPLES
from kcodec.client import Admin, DelegationToken, KafkaPrincipal, Producer, aio
from kcodec.errors import AuthenticationError, BrokerError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory

HOUR_MS = 3_600_000
ALICE, BOB = KafkaPrincipal("alice"), KafkaPrincipal("bob")


@pytest.fixture(scope="module")
def kafka(apache_kafka_factory: KafkaFactory) -> Iterator[ApacheKafka]:
    started = apache_kafka_factory(sasl=["SCRAM-SHA-256"], delegation_token_secret_key="a-s3cret")
    yield started
    started.close()


@pytest.fixture(scope="module")
def options(kafka: ApacheKafka) -> dict[str, Any]:
    return dict(kafka.client_options("alice", "SCRAM-SHA-256"))


@pytest.fixture(scope="module")
def properties(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for Kafka's tools and for `kcodec -F`."""
    path = tmp_path_factory.mktemp("properties") / "client.properties"
    login = f'username="alice" password="{options["sasl_plain_password"]}"'
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
    )
    return path


def example_of_the_docs(kafka: ApacheKafka, token: DelegationToken) -> Producer:
    """What the page on security shows, for this broker, which has no TLS."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (text,) = (example for example in examples if "sasl_scram_token_auth" in example)
    for there, here in {
        "kafka.example.org:9093": kafka.bootstrap_servers,
        '"SASL_SSL"': '"SASL_PLAINTEXT"',
        '    ssl_cafile="/etc/kafka/authority.pem",\n': "",
        "SCRAM-SHA-512": "SCRAM-SHA-256",
    }.items():
        assert there in text
        text = text.replace(there, here)
    names: dict[str, Any] = {"token": token}
    exec(compile(text, "docs/security.md", "exec"), names)
    producer: Producer = names["producer"]
    return producer


def seen_by_kafka(kafka: ApacheKafka, properties: Path) -> dict[str, list[str]]:
    """Token id -> the words of its line."""
    printed = kafka_tool(
        *("DelegationTokenCommand", "--bootstrap-server", kafka.bootstrap_servers, "--describe"),
        *("--owner-principal", "User:alice", "--command-config", str(properties)),
    )
    lines = [line.split() for line in printed.splitlines() if "User:" in line]
    return {words[0]: words for words in lines}


def token_of(admin: Admin, token_id: str) -> DelegationToken | None:
    """The token once a broker shows it; None once it has forgotten it."""
    return admin.describe_delegation_tokens().get(token_id)


def test_the_life_of_a_token(kafka: ApacheKafka, options: dict[str, Any], properties: Path) -> None:
    with Admin(**options) as admin:
        made = admin.create_delegation_token(renewers=[BOB], max_lifetime_ms=24 * HOUR_MS)
        assert (made.owner, made.requester, made.renewers) == (ALICE, ALICE, (BOB,))
        assert made.max_timestamp - made.issue_timestamp == 24 * HOUR_MS
        assert base64.b64encode(made.hmac).decode() not in repr(made) and repr(made.hmac) not in repr(made)
        deadline = time.monotonic() + 20
        while token_of(admin, made.token_id) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert token_of(admin, made.token_id) == made
        theirs = seen_by_kafka(kafka, properties)[made.token_id]
        assert theirs[1:5] == [base64.b64encode(made.hmac).decode(), "User:alice", "User:alice", "[User:bob]"]
        assert set(admin.describe_delegation_tokens([BOB])) == {made.token_id}
        assert admin.describe_delegation_tokens([KafkaPrincipal("zoe")]) == {}
        ends = admin.renew_delegation_token(made.hmac, renew_period_ms=HOUR_MS)
        assert abs(ends - time.time() * 1000 - HOUR_MS) < 60_000
        while (now := token_of(admin, made.token_id)) is None or now.expiry_timestamp != ends:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        admin.expire_delegation_token(made.hmac)
        while token_of(admin, made.token_id) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert made.token_id not in seen_by_kafka(kafka, properties)
        with pytest.raises(BrokerError) as caught:
            admin.renew_delegation_token(made.hmac)
        assert caught.value.name == "DELEGATION_TOKEN_NOT_FOUND"
        assert base64.b64encode(made.hmac).decode() not in str(caught.value)


def test_tokens_on_the_command_line(kafka: ApacheKafka, properties: Path) -> None:
    where = ("-b", kafka.bootstrap_servers, "-F", properties)
    (made,) = rows(run("tokens", "create", *where, "--renewer", "bob", "--lifetime", "24h", "-J"))
    deadline = time.monotonic() + 20
    while made["token"] not in {one["token"] for one in rows(run("tokens", "list", *where, "-J"))}:
        assert time.monotonic() < deadline
    listed = run("tokens", "list", *where)
    assert "User:bob" in listed.out and made["secret"] not in listed.out
    renewed = run("tokens", "renew", *where, made["token"], "--period", "2h")
    assert renewed.status is ExitStatus.OK and renewed.err.startswith(f"{made['token']}: ends 2")
    kept = run("tokens", "expire", *where, made["token"])
    assert kept.err == (
        f"{made['token']} of User:alice: would be deleted\nnothing was changed; --execute makes the changes\n"
    )
    gone = run("tokens", "expire", *where, made["token"], "--execute")
    assert gone.err == f"{made['token']} of User:alice: deleted\n"
    while made["token"] in {one["token"] for one in rows(run("tokens", "list", *where, "-J"))}:
        assert time.monotonic() < deadline
    assert "no token with the id 'ghost'" in run("tokens", "expire", *where, "ghost").err


def test_a_token_logs_in_as_its_owner(kafka: ApacheKafka, options: dict[str, Any], tmp_path: Path) -> None:
    """With the same option in Python, and Java's in a file; until the token ends. No error shows its secret."""
    with Admin(**options) as admin:
        admin.create_topics("by-token")
        made = admin.create_delegation_token(max_lifetime_ms=HOUR_MS)
        while token_of(admin, made.token_id) is None:
            time.sleep(0.05)
        secret = made.password.reveal()
        login = {
            **options,
            "sasl_plain_username": made.token_id,
            "sasl_plain_password": made.password,
            "sasl_scram_token_auth": True,
        }
        for program in (Producer(**login), example_of_the_docs(kafka, made)):
            with program as producer:
                producer.send("by-token", b"x").result(30)
        with Admin(**login) as with_token, pytest.raises(BrokerError) as refused:
            with_token.create_delegation_token()
        assert refused.value.name == "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
        java = tmp_path / "token.properties"
        java.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{made.token_id}" password="{secret}" tokenauth="true";\n'
        )
        where = ("--bootstrap-server", kafka.bootstrap_servers, "--config", str(java))
        assert "Cluster ID" in kafka_tool("ClusterTool", "cluster-id", *where)  # Java reads the same file
        topics = run("topics", "list", "-b", kafka.bootstrap_servers, "-F", java)
        assert topics.status is ExitStatus.OK and "by-token" in topics.out, topics.err
        without = {name: value for name, value in login.items() if name != "sasl_scram_token_auth"}
        for wrong in (without, {**login, "sasl_plain_password": "d3Jvbmc="}):
            with Admin(**wrong) as other, pytest.raises(AuthenticationError) as caught:
                other.list_topics()
            assert made.token_id in str(caught.value) and secret not in str(caught.value)
        assert "secret in base64, and that the token has not ended" in str(caught.value)
        admin.expire_delegation_token(made.hmac)
        deadline = time.monotonic() + 20
        while token_of(admin, made.token_id) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with Admin(**login) as ended, pytest.raises(AuthenticationError):
        ended.list_topics()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.call)
def test_the_examples_of_the_command_run(kafka: ApacheKafka, properties: Path, example: Any) -> None:
    names = {"localhost:9092": kafka.bootstrap_servers, "client.properties": str(properties)}
    ran = run(*(names.get(word, word) for word in shlex.split(example.call)[1:]))
    assert ran.status is ExitStatus.OK, ran.err
    assert ran.out


def test_tokens_in_asyncio(options: dict[str, Any]) -> None:
    async def life() -> int:
        async with aio.Admin(**options) as admin:
            made = await admin.create_delegation_token(max_lifetime_ms=HOUR_MS)
            while made.token_id not in await admin.describe_delegation_tokens():
                await asyncio.sleep(0.05)
            return await admin.expire_delegation_token(made.hmac)

    assert asyncio.run(life()) > 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.create_delegation_token(owner="alice"), "owner: expected KafkaPrincipal, got 'alice'"),
        (lambda admin: admin.create_delegation_token(max_lifetime_ms=-5), "max_lifetime_ms must be at least 0 ms"),
        (lambda admin: admin.renew_delegation_token("c2VjcmV0"), "hmac: expected bytes, got str"),
        (lambda admin: admin.expire_delegation_token(b"s", expiry_time_period_ms=-2), "must be at least 0 ms, got -2"),
    ],
)
def test_invalid_arguments_of_tokens_are_refused(call: Callable[[Admin], Any], text: str) -> None:
    """A broker would take a negative lifetime for its longest one. The secret is not in the error."""
    with Admin(bootstrap_servers="localhost:1") as admin, pytest.raises((TypeError, ValueError)) as caught:
        call(admin)
    assert text in str(caught.value) and "c2VjcmV0" not in str(caught.value)


def test_without_authentication_tokens_are_refused(apache_kafka: ApacheKafka) -> None:
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin, pytest.raises(BrokerError) as caught:
        admin.create_delegation_token()
    assert caught.value.name == "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
