# SPDX-License-Identifier: Apache-2.0
"""GSSAPI with a Kerberos server of Apache Kerby and a real Kafka: logins by keytab and by credential cache. Each wrong
setting raises one clear error."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guarded_kafka import ask_asyncio, ask_blocking
from kerberos_server import REALM, KerberosServer

from kcodec.client import Admin, Consumer, NewTopic, Producer, Security
from kcodec.client.properties import options_of_property
from kcodec.errors import AuthenticationError, KcodecError
from kcodec.testing.kafka import ApacheKafka

BLOCKING_AND_ASYNCIO = pytest.mark.parametrize("ask", [ask_blocking, ask_asyncio], ids=["blocking", "asyncio"])
#: Kafka ends a session after this time; the client authenticates again before that.
SESSION_MS = 2_000


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosServer]:
    with KerberosServer(tmp_path_factory.mktemp("kerberos")) as server:
        server.add("alice")
        server.add("bob")
        yield server


@pytest.fixture(scope="module")
def kafka(kerberos: KerberosServer) -> Iterator[ApacheKafka]:
    with kerberos.kafka(**{"listener.name.client.gssapi.connections.max.reauth.ms": SESSION_MS}) as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def environment(kerberos: KerberosServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kerberos.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def keytab(kerberos: KerberosServer) -> Path:
    return kerberos.configuration.parent / "alice.keytab"


def options_of(kafka: ApacheKafka, **more: Any) -> dict[str, Any]:
    common = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
    return {"bootstrap_servers": kafka.bootstrap_servers, **common, **more}


@BLOCKING_AND_ASYNCIO
@pytest.mark.parametrize("principal", [None, "alice", f"alice@{REALM}"])
def test_a_client_logs_in_with_a_keytab(
    kafka: ApacheKafka, keytab: Path, principal: str | None, ask: Callable[[dict[str, Any]], str]
) -> None:
    assert ask(options_of(kafka, sasl_kerberos_keytab=keytab, sasl_kerberos_principal=principal))


def test_the_example_of_the_documentation_logs_in(kafka: ApacheKafka, keytab: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.partition("### Kerberos\n")[2].partition("###")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    for there, here in {
        "kafka.example.org:9093": kafka.bootstrap_servers,
        "SASL_SSL": "SASL_PLAINTEXT",
        '    ssl_cafile="/etc/kafka/authority.pem",\n': "",
        "/etc/security/orders.keytab": str(keytab),
        "orders@EXAMPLE.ORG": f"alice@{REALM}",
    }.items():
        assert there in example
        example = example.replace(there, here)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/security.md", "exec"), names)
    with names["producer"] as producer:
        assert producer.send(kafka.create_topic(partitions=1), b"value").result(10).offset == 0


@BLOCKING_AND_ASYNCIO
def test_a_client_logs_in_with_the_ticket_of_kinit(
    kafka: ApacheKafka,
    kerberos: KerberosServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[dict[str, Any]], str],
) -> None:
    cache = tmp_path / "cache"
    kerberos.log_in("bob", cache)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    assert ask(options_of(kafka))
    assert ask(options_of(kafka, sasl_kerberos_principal=f"bob@{REALM}"))


def test_the_broker_knows_the_client_by_its_principal(kerberos: KerberosServer, keytab: Path) -> None:
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
    }
    with kerberos.kafka(**authorizer) as kafka:
        with Admin(**options_of(kafka, sasl_kerberos_keytab=keytab)) as admin:
            admin.create_topics([NewTopic("orders")])
        other = kerberos.configuration.parent / "bob.keytab"
        with Admin(**options_of(kafka, sasl_kerberos_keytab=other)) as admin, pytest.raises(KcodecError) as caught:
            admin.create_topics([NewTopic("more")])
        assert "AUTHORIZATION_FAILED" in str(caught.value)


def test_records_are_sent_and_read_while_sessions_end(kafka: ApacheKafka, keytab: Path) -> None:
    """The clients authenticate again on their connections, so that none of them is replaced."""
    topic = kafka.create_topic(partitions=1)
    counts: Counter[str] = Counter()

    class Counts:
        def count(self, name: str, value: int = 1, **labels: object) -> None:
            counts[name] += value

        def latency(self, name: str, seconds: float, **labels: object) -> None:
            """Latencies are not counted."""

    given = options_of(kafka, sasl_kerberos_keytab=keytab, metrics=Counts())
    values: list[bytes | None] = []
    with Producer(**given) as producer, Consumer(**given, auto_offset_reset="earliest", group_id="g") as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 2.5 * SESSION_MS / 1000
        sent = 0
        while time.monotonic() < deadline or len(values) < sent:
            if time.monotonic() < deadline:
                producer.send(topic, b"%d" % sent).result()
                sent += 1
            values += [record.value for record in consumer.poll(timeout=0.1)]
    assert values == [b"%d" % number for number in range(sent)]
    assert counts["connection.authenticated"] >= counts["connection.opened"] + 2
    assert counts["connection.failed"] == 0


def credentials_of(keytab: Path) -> Any:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", "sasl_kerberos_keytab": keytab}
    return Security.from_options(options)._mechanism._credentials  # type: ignore[union-attr]


def test_a_request_of_one_client_does_not_delay_another(keytab: Path) -> None:
    """Otherwise, the second client would wait for a signal of the first client's thread."""
    first = credentials_of(keytab)
    first._is_requesting = True
    second = first.for_client()
    assert not second._is_requesting and second._has_ended is not first._has_ended
    assert second._store == first._store


def test_clients_share_the_tickets_of_a_keytab_until_they_expire(
    kafka: ApacheKafka, kerberos: KerberosServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library never removes a cache in memory, so a cache for each client would be a leak."""
    trace = tmp_path / "trace"
    monkeypatch.setenv("KRB5_TRACE", str(trace))

    def requests_after_a_login(keytab: Path) -> int:
        assert credentials_of(keytab).context("kafka", "localhost").step(b"")
        return trace.read_text().count("Getting initial credentials")

    carol = kerberos.add("carol")
    assert [requests_after_a_login(carol) for _ in range(3)] == [1, 1, 1]
    kerberos.write_configuration("  ticket_lifetime = 2s\n  clockskew = 1\n")
    try:
        short = kerberos.add("short-lived")
        assert requests_after_a_login(short) == 2
        time.sleep(4)
        assert requests_after_a_login(short) == 3
    finally:
        kerberos.write_configuration()


def test_the_host_name_of_the_principal_can_differ(kafka: ApacheKafka, keytab: Path) -> None:
    address = f"127.0.0.1:{kafka.bootstrap_servers.rpartition(':')[2]}"
    given = options_of(kafka, sasl_kerberos_keytab=keytab) | {"bootstrap_servers": address}
    assert "not found in Kerberos database" in refused(given)
    assert ask_blocking(given | {"sasl_kerberos_domain_name": "localhost"})


def refused(options: dict[str, Any]) -> str:
    began = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        ask_blocking(options)
    assert time.monotonic() - began < 3.0
    return str(caught.value)


def test_each_wrong_setting_is_one_clear_error(kafka: ApacheKafka, keytab: Path) -> None:
    with_keytab = options_of(kafka, sasl_kerberos_keytab=keytab)
    for options, reason, remedy in (
        (options_of(kafka), "No Kerberos credentials available", "run kinit, or set sasl_kerberos_keytab"),
        (options_of(kafka, sasl_kerberos_principal="alice"), "Can't find client principal alice", "run kinit"),
        (
            with_keytab | {"sasl_kerberos_principal": "bob"},
            "SASL GSSAPI",
            f"check that the keytab {str(keytab)!r} has a key for 'bob' (klist -k shows its principals)",
        ),
        (
            with_keytab | {"sasl_kerberos_service_name": "kafkaa"},
            f"Server kafkaa/localhost@{REALM} not found in Kerberos database",
            "check sasl_kerberos_service_name",
        ),
    ):
        text = refused(options)
        assert reason in text
        assert remedy in text
        assert "localhost" in text


def test_a_principal_that_the_server_does_not_know_is_named(
    kafka: ApacheKafka, kerberos: KerberosServer, tmp_path: Path
) -> None:
    with KerberosServer(tmp_path) as other:
        stranger = other.add("stranger")
    text = refused(options_of(kafka, sasl_kerberos_keytab=stranger, sasl_kerberos_principal="stranger"))
    assert "Client 'stranger@KCODEC.TEST' not found in Kerberos database" in text
    assert "check sasl_kerberos_principal and its realm" in text


def test_a_ticket_that_the_broker_cannot_decrypt_fails_the_login(
    kafka: ApacheKafka, kerberos: KerberosServer, keytab: Path
) -> None:
    kerberos.add("http/localhost")
    text = refused(options_of(kafka, sasl_kerberos_keytab=keytab, sasl_kerberos_service_name="http"))
    assert "check that the keytab in the broker's sasl.jaas.config has the current key of its principal" in text
    assert "SASL_AUTHENTICATION_FAILED" in text


def test_a_login_is_repeated_while_no_kerberos_server_responds(kafka: ApacheKafka, kerberos: KerberosServer) -> None:
    keytab = kerberos.add("dora")
    kerberos.write_configuration(port=1)
    try:
        with Admin(**options_of(kafka, sasl_kerberos_keytab=keytab), default_api_timeout_ms=4_000) as admin:
            with pytest.raises(KcodecError) as caught:
                admin.list_topics(timeout=1.5)
            assert f"Cannot contact any KDC for realm '{REALM}'" in str(caught.value)
            kerberos.write_configuration()
            assert isinstance(admin.list_topics(timeout=10.0), dict)
    finally:
        kerberos.write_configuration()


def test_a_silent_kerberos_server_causes_a_timeout(
    kafka: ApacheKafka, kerberos: KerberosServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A request cannot be interrupted: each client has one thread for them, and no error is logged when it ends."""
    keytab, threads = kerberos.add("erin"), 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kerberos.write_configuration(port=silent.getsockname()[1])
        try:
            for timeouts, reason in (
                ({"request_timeout_ms": 1_000}, "no Kerberos server has issued a ticket within 1 s"),
                ({"request_timeout_ms": 30_000}, "the negotiation of versions and authentication has not ended"),
                # "not connected within 1 s" would hide it.
                ({"socket_connection_setup_timeout_ms": 1_000}, "no Kerberos server has issued a ticket within 0."),
            ):
                given = options_of(kafka, sasl_kerberos_keytab=keytab, **timeouts)
                with Admin(**given) as admin:
                    for _ in range(3):
                        with pytest.raises(KcodecError) as caught:
                            admin.list_topics(timeout=1.5)
                    threads = max(threads, sum(each.name == "kcodec-blocking" for each in threading.enumerate()))
                assert reason in str(caught.value)
        finally:
            kerberos.write_configuration()
    assert 1 <= threads <= 3
    deadline = time.monotonic() + 20
    while any(each.name == "kcodec-blocking" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sasl_kerberos_keytab": "/no/such.keytab"}, "'/no/such.keytab' cannot be read: No such file or directory"),
        ({"sasl_kerberos_keytab": __file__}, "is not a keytab, as it begins with b'# '"),
        ({"sasl_plain_username": "alice"}, "sasl_plain_username would have no effect with sasl_mechanism='GSSAPI'"),
    ],
    ids=["no file", "another file", "another mechanism"],
)
def test_invalid_options_are_refused(more: dict[str, Any], text: str) -> None:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", **more}
    with pytest.raises(ValueError) as caught:
        Security.from_options(options)
    assert text in str(caught.value)


def test_options_of_kerberos_need_its_mechanism() -> None:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "sasl_kerberos_principal": "alice"}
    with pytest.raises(ValueError, match="sasl_kerberos_principal would have no effect"):
        Security.from_options(options | {"sasl_plain_username": "a", "sasl_plain_password": "b"})


def test_a_system_without_the_library_says_what_to_install() -> None:
    program = """
import kcodec.security.gssapi as gssapi
from kcodec.client import Security

gssapi.LIBRARY_NAMES = ("libgssapi_of_no_system.so",)
try:
    Security.from_options({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"})
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "sasl_mechanism 'GSSAPI': the library libgssapi_krb5 of MIT Kerberos was not found" in done.stdout
    assert "libgssapi-krb5-2" in done.stdout


def test_a_hostile_broker_cannot_complete_the_exchange(kerberos: KerberosServer, keytab: Path) -> None:
    kerberos.add("other/localhost")
    credentials = credentials_of(keytab)
    for response in (b"", b"\x00", b"\x60\x84\xff\xff\xff\xff", os.urandom(1_000), b"\x60" + b"\x80" * 100_000):
        context = credentials.context("other", "localhost")
        exchange = credentials.exchange(context, context.step(b""))
        next(exchange)
        with pytest.raises(Exception, match="the broker's message cannot be verified") as caught:
            exchange.send(response)
            raise AssertionError(f"{response[:10]!r} was accepted")
        assert type(caught.value).__name__ == "ExchangeRefused"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            'keyTab="/etc/orders.keytab" principal="orders@EXAMPLE.ORG" serviceName="kafka1";',
            {
                "sasl_kerberos_keytab": "/etc/orders.keytab",
                "sasl_kerberos_principal": "orders@EXAMPLE.ORG",
                "sasl_kerberos_service_name": "kafka1",
            },
        ),
        ("com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;", {}),
        (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab='/etc/a b.keytab';",
            {"sasl_kerberos_keytab": "/etc/a b.keytab"},
        ),
        (
            'x.PlainLoginModule required username=alice password="my Krb5LoginModule secret";',
            {"sasl_plain_username": "alice", "sasl_plain_password": "my Krb5LoginModule secret"},
        ),
        (
            "x.PlainLoginModule required username='alice' password='p \\'w';",
            {"sasl_plain_username": "alice", "sasl_plain_password": "p 'w"},
        ),
    ],
    ids=["keytab", "ticket cache", "single quotes", "a password that names the module", "a password in single quotes"],
)
def test_the_login_module_of_java_gives_the_same_options(value: str, expected: dict[str, Any]) -> None:
    assert options_of_property("sasl.jaas.config", value) == expected


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("useKeyTab=true", 'useKeyTab=true needs keyTab="..."'),
        ('useKeyTab=true keyTab=/etc/a"b"', 'useKeyTab=true needs keyTab="..."'),
        ('ticketCache="/tmp/c"', "KRB5CCNAME"),
    ],
    ids=["no keytab", "a quote in a value", "a path of a cache"],
)
def test_unsupported_options_of_krb5loginmodule_are_refused(more: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"sasl\.jaas\.config") as caught:
        options_of_property("sasl.jaas.config", f"com.sun.security.auth.module.Krb5LoginModule required {more};")
    assert text in str(caught.value)


def test_the_facade_of_aiokafka_logs_in(kafka: ApacheKafka, keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from kcodec.compat.aiokafka import AIOKafkaProducer

    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(keytab))
    topic = kafka.create_topic(partitions=1)

    async def send() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka.bootstrap_servers.rpartition(':')[2]}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            sasl_kerberos_domain_name="localhost",
        )
        await producer.start()
        try:
            return int((await producer.send_and_wait(topic, b"1")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(send()) == 0
