# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL of the embedded broker: who gets in, what is refused, and that no secret is shown."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from broker_core import CoreClient

from kcodec.admin.security import ScramCredentialDeletion, ScramCredentialUpsertion, ScramMechanism
from kcodec.broker import Broker, BrokerSettings
from kcodec.broker.scram_credentials import credential_record
from kcodec.client import Admin, Producer
from kcodec.errors import AuthenticationError, TransportError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request
from kcodec.testing.certificates import Certificates

USERS = {"alice": "alice-secret", "b=o,b": "\u2168-secret"}
MIB = 1 << 20
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    found = Certificates()
    found.keep_in(tmp_path_factory.mktemp("certificates"))
    return found


def tls(certificates: Certificates, **options: Any) -> dict[str, Any]:
    pair = certificates.broker()
    return {
        "ssl_certfile": pair.certificate,
        "ssl_keyfile": pair.key,
        "ssl_cafile": certificates.authority,
        **options,
    }


def sent(**options: Any) -> None:
    """Send a record with these options."""
    with Producer(**options) as producer:
        producer.send("t", b"v").result(20)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", USERS)
def test_users_log_in_over_tls(certificates: Certificates, mechanism: str, user: str) -> None:
    with Broker(sasl_mechanisms=MECHANISMS, users=USERS, **tls(certificates)) as broker:
        sent(**broker.client_options(user, mechanism))
        with pytest.raises(AuthenticationError, match="sasl_plain_password"):
            sent(**{**broker.client_options(user, mechanism), "sasl_plain_password": "wrong-secret"})
        with pytest.raises(AuthenticationError):
            sent(**{**broker.client_options(user, mechanism), "sasl_plain_username": "mallory"})
        assert broker.end_offset("t") == 1


def test_clients_of_other_projects_log_in(certificates: Certificates) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.helpers import create_ssl_context
    from confluent_kafka import Producer as ConfluentProducer

    with Broker(sasl_mechanisms=MECHANISMS, users=USERS, **tls(certificates)) as broker:
        for number, mechanism in enumerate(MECHANISMS):
            confluent = ConfluentProducer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": str(certificates.authority),
                    "sasl.mechanism": mechanism,
                    "sasl.username": "alice",
                    "sasl.password": "alice-secret",
                }
            )
            confluent.produce("t", b"librdkafka")
            assert confluent.flush(20) == 0

            async def send(mechanism: str = mechanism) -> None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=broker.bootstrap_servers,
                    security_protocol="SASL_SSL",
                    ssl_context=create_ssl_context(cafile=str(certificates.authority)),
                    sasl_mechanism=mechanism,
                    sasl_plain_username="alice",
                    sasl_plain_password="alice-secret",
                )
                async with producer:
                    await producer.send_and_wait("t", b"aiokafka")

            asyncio.run(send())
            assert broker.end_offset("t") == 2 * (number + 1)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "TLS"])
def test_librdkafka_alters_a_credential(certificates: Certificates, is_tls: bool) -> None:
    """Its AlterUserScramCredentials has a byte after the message, which Kafka ignores. The changed user logs in."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin import _scram as scram

    with Broker(sasl_mechanisms=MECHANISMS, users=USERS, **(tls(certificates) if is_tls else {})) as broker:
        options = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_SSL" if is_tls else "SASL_PLAINTEXT",
            **({"ssl.ca.location": str(certificates.authority)} if is_tls else {}),
        }

        def client(mechanism: str, user: str, password: str) -> AdminClient:
            login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
            return AdminClient({**options, **login})

        for mechanism, number in (
            ("SCRAM-SHA-256", scram.ScramMechanism.SCRAM_SHA_256),
            ("SCRAM-SHA-512", scram.ScramMechanism.SCRAM_SHA_512),
        ):
            change = scram.UserScramCredentialUpsertion(
                "carol", scram.ScramCredentialInfo(number, 5000), b"carols", b"salt"
            )
            admin = client(mechanism, "alice", "alice-secret")
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(20)
            assert client(mechanism, "carol", "carols").list_topics(timeout=20).brokers


def test_client_certificates_are_required(certificates: Certificates) -> None:
    def options(pair: Any) -> dict[str, str]:
        return {"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key)}

    with Broker(**tls(certificates, ssl_client_auth="required")) as broker:
        sent(**broker.client_options(), **options(certificates.client("alice")))
        for wrong in ({}, options(certificates.stranger("alice"))):
            with pytest.raises(AuthenticationError):
                sent(**broker.client_options(), **wrong)
        with pytest.raises(TransportError):
            sent(
                bootstrap_servers=broker.bootstrap_servers,
                delivery_timeout_ms=1000,
                request_timeout_ms=500,
                linger_ms=0,
            )
        assert broker.end_offset("t") == 1


def test_end_of_a_tls_client_leaves_others_alone(certificates: Certificates) -> None:
    """A client that waits in a Fetch sends close_notify, while it has not read what was sent before."""
    context = ssl.create_default_context(cafile=certificates.authority)
    fetched = messages.FetchPartition(fetch_offset=4, partition_max_bytes=MIB)
    waiting = messages.FetchRequest(
        max_wait_ms=30_000, min_bytes=1, topics=[messages.FetchTopic(topic="t", partitions=[fetched])]
    )
    present = messages.FetchPartition(fetch_offset=0, partition_max_bytes=1)
    reading = messages.FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[messages.FetchTopic(topic="t", partitions=[present])], max_bytes=1
    )
    with Broker(**tls(certificates)) as broker, Producer(**broker.client_options()) as producer:
        for _ in range(4):
            producer.send("t", bytes(30_000)).result(20)
        address = ("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2]))
        with (
            socket.create_connection(address, 20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as reader,
        ):
            assert broker._running is not None
            server = broker._running.server
            end = time.monotonic() + 20
            while not any(one.unsent_bytes for one in list(server.connections)):
                assert time.monotonic() < end
                reader.sendall(encode_request(reading, 11, 1, "reader"))
                time.sleep(0.002)
            reader.sendall(encode_request(waiting, 11, 2, "reader"))
            while not any(one.request.max_wait_ms for one in broker.wire_log.requests("Fetch")):
                assert time.monotonic() < end
                time.sleep(0.002)
            reader.setblocking(False)
            with pytest.raises(ssl.SSLError):
                reader.unwrap()
            time.sleep(0.1)
            assert producer.send("t", b"v").result(20).offset == 4


def test_tls_handshakes_are_connections(certificates: Certificates) -> None:
    """Sockets that never begin the handshake count in max_connections, and close() closes them."""
    broker = Broker(max_connections=3, **tls(certificates))
    broker.start()
    address = ("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2]))
    silent = [socket.create_connection(address, 5) for _ in range(3)]
    try:
        with socket.create_connection(address, 5) as fourth:
            assert _is_ended(fourth)
        silent.pop().close()
        end = time.monotonic() + 20
        context = ssl.create_default_context(cafile=certificates.authority)
        while True:
            try:
                with (
                    socket.create_connection(address, 5) as plain,
                    context.wrap_socket(plain, server_hostname="localhost") as client,
                ):
                    client.sendall(encode_request(messages.ApiVersionsRequest(), 0, 1, "x"))
                    assert client.recv(4) != b""
                    break
            except OSError:
                assert time.monotonic() < end, "a handshake that has ended still counts"
        broker.close()
        assert all(map(_is_ended, silent))
    finally:
        broker.close()
        for one in silent:
            one.close()


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def can_log_in(broker: Broker, user: str, password: str, mechanism: str) -> bool:
    options = broker.client_options(None, mechanism) | {"sasl_plain_username": user, "sasl_plain_password": password}
    try:
        sent(**options)
    except AuthenticationError:
        return False
    return True


def test_altered_passwords_outlive_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A password in `users` is written again only if it has changed there. PLAIN has only those passwords."""
    scram = "SCRAM-SHA-256"
    options: dict[str, Any] = {"sasl_mechanisms": [scram, "PLAIN"], "data_dir": tmp_path}
    with Broker(users={"root": "r", "alice": "first"}, **options) as broker:
        with Admin(**broker.client_options("root")) as admin:
            altered = ScramCredentialUpsertion("alice", "altered", mechanism=ScramMechanism.SCRAM_SHA_256)
            admin.alter_user_scram_credentials([altered])
        for _ in range(2):
            assert can_log_in(broker, "alice", "altered", scram)
            assert not can_log_in(broker, "alice", "first", scram)
            assert can_log_in(broker, "alice", "first", "PLAIN")
            broker.restart()
    assert "users replaces" not in caplog.text
    with Broker(users={"root": "r", "alice": "third"}, **options) as broker:
        assert "user 'alice': the password in users replaces the altered one of SCRAM-SHA-256" in caplog.text
        assert can_log_in(broker, "alice", "third", scram)
        assert not can_log_in(broker, "alice", "altered", scram)


def test_removed_users_lose_their_credentials(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those that AlterUserScramCredentials has written stay, and all of them stay at a start without users."""
    scram = "SCRAM-SHA-512"
    options: dict[str, Any] = {"sasl_mechanisms": [scram], "data_dir": tmp_path}
    changes = [ScramCredentialUpsertion(name, "altered") for name in ("carol", "dora")]
    users = {"root": "r", "bob": "b", "dora": "d"}
    with Broker(users=users, **options) as broker, Admin(**broker.client_options("root")) as admin:
        admin.alter_user_scram_credentials(changes)
    with Broker(**options) as broker:
        names = {name for name, _ in broker.core.topics.scram_credentials}
        assert names == {"root", "bob", "carol", "dora"}
    assert caplog.text == ""
    with Broker(users={"root": "r"}, **options) as broker:
        assert not can_log_in(broker, "bob", "b", scram)
        assert can_log_in(broker, "carol", "altered", scram)
        assert can_log_in(broker, "dora", "altered", scram)
    assert "user 'bob' is not in users any more: its credential of SCRAM-SHA-512 is removed" in caplog.text
    assert "user 'dora' is not in users any more, but keeps its credential" in caplog.text
    with Broker(users={"root": "r", "bob": "b"}, **options) as broker:
        assert can_log_in(broker, "bob", "b", scram)


def test_credentials_are_altered_and_survive(tmp_path: Path) -> None:
    """The SCRAM credentials of AlterUserScramCredentials are in the metadata log. A new password in `users` is, too."""
    options: dict[str, Any] = {"sasl_mechanisms": ["SCRAM-SHA-512"], "users": {"root": "r"}, "data_dir": tmp_path}
    with Broker(**options) as broker:
        with Admin(**broker.client_options()) as admin:
            admin.alter_user_scram_credentials([ScramCredentialUpsertion("carol", "carols")])
            found = admin.describe_user_scram_credentials()
            assert sorted(found) == ["carol", "root"]
        broker.crash()
        broker.start()
        carol = {**broker.client_options(), "sasl_plain_username": "carol", "sasl_plain_password": "carols"}
        sent(**carol)
        with Admin(**broker.client_options()) as admin:
            admin.alter_user_scram_credentials([ScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)])
        with pytest.raises(AuthenticationError):
            sent(**carol)
    with Broker(**{**options, "users": {"root": "changed"}}) as broker:
        sent(**broker.client_options())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16_385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
    ids=["few iterations", "many iterations", "no name", "unknown mechanism"],
)
def test_wrong_credentials_are_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    client = CoreClient()
    values: dict[str, Any] = {"name": "a", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    wrong = messages.ScramCredentialUpsertion(**{**values, **changes})
    response = client.ask(messages.AlterUserScramCredentialsRequest(upsertions=[wrong]), 0)
    assert response.results[0].error_code == code
    assert client.core.topics.scram_credentials == {}


class Raw:
    """A connection that sends requests in any order."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), 10)

    def ask(self, request: Any, version: int) -> Any:
        """The response; None if the broker closes the connection."""
        self._connection.sendall(encode_request(request, version, 1, "raw"))
        frame = self.frame()
        return frame if frame is None else type(request).response.decode(frame, version, 4)

    def frame(self) -> bytes | None:
        size = self._read(4)
        return None if size is None else self._read(int.from_bytes(size, "big"))

    def send_token(self, token: bytes) -> bytes | None:
        self._connection.sendall(len(token).to_bytes(4, "big") + token)
        return self.frame()

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self._connection.recv(count - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data


HELLO = messages.SaslHandshakeRequest(mechanism="PLAIN")
TOKEN = messages.SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")
METADATA = messages.MetadataRequest(topics=[])


def test_requests_before_the_login_close_the_connection() -> None:
    with Broker(sasl_mechanisms=["PLAIN"], users=USERS) as broker:
        for early in ([METADATA], [messages.ApiVersionsRequest()] * 2, [TOKEN]):
            connection = Raw(broker.bootstrap_servers)
            assert [connection.ask(one, 1) is None for one in early] == [False] * (len(early) - 1) + [True]
        connection = Raw(broker.bootstrap_servers)
        assert connection.ask(messages.ApiVersionsRequest(), 0).error_code == 0
        assert connection.ask(HELLO, 1).error_code == 0
        assert connection.ask(TOKEN, 1).error_code == 0
        assert connection.ask(METADATA, 1).brokers
        assert connection.ask(TOKEN, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
        between = Raw(broker.bootstrap_servers)
        assert [between.ask(one, 1).error_code for one in (HELLO, HELLO)] == [0, ErrorCode.ILLEGAL_SASL_STATE]
        assert between.frame() is None
        plain = Raw(broker.bootstrap_servers)
        refused = plain.ask(messages.SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert (refused.error_code, refused.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        assert plain.frame() is None
        old = Raw(broker.bootstrap_servers)
        assert old.ask(HELLO, 0).error_code == 0
        assert old.send_token(TOKEN.auth_bytes) == b""
        assert old.ask(METADATA, 1).brokers
        large = Raw(broker.bootstrap_servers)
        assert large.send_token(bytes(600_000)) is None


def test_sessions_end_and_begin_again() -> None:
    """A client logs in again in time (KIP-368); a request after the end of the session closes the connection."""
    options: dict[str, Any] = {"sasl_mechanisms": ["PLAIN"], "users": USERS, "manual_clock": True}
    with Broker(sasl_session_ms=60_000, **options) as broker:
        connection = Raw(broker.bootstrap_servers)
        connection.ask(HELLO, 1)
        assert connection.ask(TOKEN, 1).session_lifetime_ms == 60_000
        assert connection.ask(HELLO, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE  # within a second
        broker.clock.advance(59_000)
        assert connection.ask(HELLO, 1).error_code == 0
        assert connection.ask(TOKEN, 1).error_code == 0
        broker.clock.advance(59_000)
        assert connection.ask(METADATA, 1).brokers
        assert connection.ask(HELLO, 1).error_code == 0
        other = messages.SaslAuthenticateRequest(auth_bytes="\0b=o,b\0\u2168-secret".encode())
        assert "Cannot change principals" in connection.ask(other, 1).error_message
        late = Raw(broker.bootstrap_servers)
        late.ask(HELLO, 1)
        late.ask(TOKEN, 1)
        broker.clock.advance(60_000)
        assert late.ask(METADATA, 1) is None


def test_no_secret_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    trace = tmp_path / "trace"
    with Broker(sasl_mechanisms=MECHANISMS, users=USERS, trace=trace, data_dir=tmp_path / "logs") as broker:
        for mechanism in MECHANISMS:
            sent(**broker.client_options("alice", mechanism))
        shown = [repr(broker), repr(broker.core.settings), repr(list(broker.wire_log)), trace.read_text(), caplog.text]
        credential = broker.core.topics.scram_credentials["alice", "SCRAM-SHA-512"]
        record = credential_record("alice", "SCRAM-SHA-512", credential)
        shown += [repr(credential), repr(record)]
        keys = [repr(part)[2:-1] for part in (credential.salt, credential.stored_key, credential.server_key)]
        assert all(key[:20] not in text for key in keys for text in shown)
        stored = b"".join(path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file())
    with pytest.raises(TypeError) as caught:
        BrokerSettings(sasl_mechanisms=["PLAIN"], users=["alice-secret"])  # type: ignore[arg-type]
    assert all("alice-secret" not in text for text in [*shown, str(caught.value)])
    assert b"alice-secret" not in stored


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sasl_mechanisms": ["GSSAPI"]}, "expected one or more of PLAIN"),
        ({"sasl_mechanisms": "PLAIN"}, "must be a list"),
        ({"users": {"a": "b"}}, "require sasl_mechanisms"),
        ({"ssl_cafile": "x"}, "require ssl_certfile"),
        ({"ssl_client_auth": "maybe", "ssl_certfile": "x"}, "must be one of none, requested, required"),
        ({"ssl_certfile": "/nowhere.pem"}, "'/nowhere.pem' cannot be read"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_security_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        Broker(**settings).start()
