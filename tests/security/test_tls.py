# SPDX-License-Identifier: Apache-2.0
"""TLS contexts from options, and errors of TLS in words: handshakes over memory with real certificates, no socket."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tls_authority import Authority, Certificate, encrypt_key

from kcodec.errors import AuthenticationError, TransportError
from kcodec.network.tls_layer import TlsLayer
from kcodec.security import Security
from kcodec.testing.certificates import Certificates

PASSWORD = "p4ssw0rd-of-a-key"


@dataclass
class World:
    """Two authorities, only one of which is trusted, and what they signed."""

    authority: Authority
    stranger: Authority
    server: Certificate
    expired: Certificate
    early: Certificate
    elsewhere: Certificate
    revoked: Certificate
    revocations: Path
    client: Certificate
    encrypted_key: Path
    stranger_client: Certificate


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = Authority(folder / "trusted"), Authority(folder / "stranger", "a stranger")
    day = datetime.timedelta(days=1)
    client, revoked = authority.issue("client"), authority.issue("revoked")
    return World(
        authority,
        stranger,
        authority.issue("server"),
        authority.issue("expired", starts=-2 * day, lasts=day),
        authority.issue("early", starts=day),
        authority.issue("elsewhere", hosts=["kafka.example.org", "192.0.2.1"]),
        revoked,
        authority.revocation_list(revoked),
        client,
        encrypt_key(client, PASSWORD),
        stranger.issue("client"),
    )


def secure(**options: object) -> Security:
    return Security.from_options({"security_protocol": "SSL", **options})


class Server:
    """The other end, as Python's ssl does it; `request_client` also verifies the client."""

    def __init__(self, certificate: Certificate, client_authority: Authority | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        if client_authority is not None:
            context.load_verify_locations(client_authority.certificate)
            context.verify_mode = ssl.CERT_REQUIRED
        self.context = context
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.is_established = False
        self.received = b""

    def receive(self, data: bytes) -> bytes:
        self.incoming.write(data)
        try:
            if not self.is_established:
                self.object.do_handshake()
                self.is_established = True
            self.received += self.object.read(1 << 16)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            pass  # its alert is on the way
        return self.outgoing.read()


def talk(security: Security, server: Server, host: str = "localhost") -> TlsLayer:
    """A handshake and one message each way."""
    context = security.tls_context()
    assert context is not None
    layer = TlsLayer(context, security.server_hostname(host))
    answer, has_sent = b"", False
    for _ in range(8):
        layer.receive(answer)
        if layer.is_established and not has_sent:
            layer.send(b"hello")
            has_sent = True
        answer = server.receive(layer.outgoing())
    return layer


def refusal(security: Security, server: Server, host: str = "localhost") -> TransportError:
    with pytest.raises(ssl.SSLError) as caught:
        talk(security, server, host)
    return security.tls_error(caught.value, f"broker 1 ({host}:9093)")


@pytest.mark.parametrize("host", ["localhost", "localhost.", "127.0.0.1"])
def test_a_trusted_broker_is_talked_to(world: World, host: str) -> None:
    server = Server(world.server)
    assert talk(secure(ssl_cafile=str(world.authority.certificate)), server, host).is_established
    assert server.received == b"hello"


def test_a_client_proves_itself_with_an_encrypted_key(world: World) -> None:
    server = Server(world.server, world.authority)
    talk(
        secure(
            ssl_cafile=world.authority.certificate,
            ssl_certfile=world.client.certificate,
            ssl_keyfile=world.encrypted_key,
            ssl_password=PASSWORD,
        ),
        server,
    )
    assert server.received == b"hello"
    certificate = server.object.getpeercert()
    assert certificate is not None
    assert (("commonName", "client"),) in certificate["subject"]


@pytest.mark.parametrize(
    ("certificate", "host", "words"),
    [
        ("expired", "localhost", ["certificate has expired", "[OpenSSL 10]", "renew it"]),
        ("early", "localhost", ["certificate is not yet valid", "[OpenSSL 9]", "clock"]),
        ("elsewhere", "localhost", ["localhost", "[OpenSSL 62]", "subjectAltName"]),
        ("elsewhere", "127.0.0.1", ["127.0.0.1", "[OpenSSL 64]", "subjectAltName"]),
        ("server", "kafka.example.org", ["kafka.example.org", "[OpenSSL 62]", "subjectAltName"]),
    ],
)
def test_the_brokers_certificate_is_refused_for_its_reason(
    world: World, certificate: str, host: str, words: list[str]
) -> None:
    security = secure(ssl_cafile=world.authority.certificate)
    error = refusal(security, Server(getattr(world, certificate)), host)
    assert type(error) is AuthenticationError
    for word in [f"broker 1 ({host}:9093)", "the broker's certificate is rejected", *words]:
        assert word in str(error)


@pytest.mark.parametrize("cafile", ["stranger", None])
def test_an_unknown_authority_is_not_trusted(world: World, cafile: str | None) -> None:
    options = {} if cafile is None else {"ssl_cafile": world.stranger.certificate}
    error = refusal(secure(**options), Server(world.server))
    assert type(error) is AuthenticationError
    assert "ssl_cafile must contain the certificate of the authority that signed it" in str(error)


def test_a_revoked_certificate_is_refused_and_others_are_not(world: World) -> None:
    security = secure(ssl_cafile=world.authority.certificate, ssl_crlfile=world.revocations)
    assert "certificate revoked" in str(refusal(security, Server(world.revoked)))
    assert talk(security, Server(world.server)).is_established


def test_without_ssl_check_hostname_the_chain_still_counts(world: World) -> None:
    security = secure(ssl_cafile=world.authority.certificate, ssl_check_hostname=False)
    assert talk(security, Server(world.elsewhere)).is_established
    assert "has expired" in str(refusal(security, Server(world.expired)))


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (None, "requires a client certificate: set ssl_certfile"),
        ("stranger_client", "client certificate (ssl_certfile)"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_broker_that_refuses_our_certificate_is_understood(
    world: World, client: str | None, words: str, version: ssl.TLSVersion
) -> None:
    own: dict[str, object] = {}
    if client is not None:
        certificate = getattr(world, client)
        own = {"ssl_certfile": certificate.certificate, "ssl_keyfile": certificate.key}
    server = Server(world.server, world.authority)
    server.context.maximum_version = version
    server.object = server.context.wrap_bio(server.incoming, server.outgoing, server_side=True)
    error = refusal(secure(ssl_cafile=world.authority.certificate, **own), server)
    assert type(error) is AuthenticationError
    if version == ssl.TLSVersion.TLSv1_3 or client is not None:
        assert words in str(error)
    else:
        assert "certificate" in str(error)


def test_a_listener_without_tls_is_named_as_such(world: World) -> None:
    security = secure(ssl_cafile=world.authority.certificate)
    context = security.tls_context()
    assert context is not None
    layer = TlsLayer(context, "localhost")
    layer.receive(b"")
    with pytest.raises(ssl.SSLError) as caught:
        layer.receive(b"\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x23\x00\x00\x00\x00")
    error = security.tls_error(caught.value, "broker 1 (localhost:9092)")
    assert type(error) is AuthenticationError
    assert "does not use TLS" in str(error)
    assert "security_protocol" in str(error)


def test_a_broken_connection_is_no_matter_of_trust() -> None:
    error = secure().tls_error(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "broker 1")
    assert type(error) is TransportError
    assert error.possibly_sent


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl_cafile": "/nowhere/ca.pem"}, "ssl_cafile: '/nowhere/ca.pem' cannot be read: No such file"),
        ({"ssl_cafile": "KEY"}, "ssl_cafile: .* does not contain the expected data in PEM format"),
        ({"ssl_crlfile": "KEY"}, "ssl_crlfile: .* does not contain the expected data in PEM"),
        ({"ssl_certfile": "CERTIFICATE"}, "ssl_certfile .* does not contain a certificate and a key in PEM"),
        ({"ssl_certfile": "CERTIFICATE", "ssl_keyfile": "OTHER"}, "the key does not belong to the certificate"),
        ({"ssl_certfile": "CERTIFICATE", "ssl_keyfile": "ENCRYPTED"}, "the key is encrypted: set ssl_password"),
        (
            {"ssl_certfile": "CERTIFICATE", "ssl_keyfile": "ENCRYPTED", "ssl_password": "wrong-password"},
            "ssl_password does not decrypt the key",
        ),
        ({"ssl_keyfile": "KEY"}, "require ssl_certfile"),
        ({"ssl_password": "wrong-password"}, "require ssl_certfile"),
        ({"ssl_ciphers": "NO-SUCH-CIPHER"}, "ssl_ciphers: OpenSSL does not know any cipher"),
        ({"ssl_context": ssl.create_default_context(), "ssl_ciphers": "ALL"}, "ssl_ciphers would have no effect"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(world: World, options: dict[str, Any], words: str) -> None:
    places = {
        "KEY": world.client.key,
        "CERTIFICATE": world.client.certificate,
        "OTHER": world.server.key,
        "ENCRYPTED": world.encrypted_key,
    }
    given = {name: places.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=words) as caught:
        secure(**given)
    assert "wrong-password" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"ssl_context": "x"}, {"ssl_cafile": 1}, {"ssl_check_hostname": "no"}, {"ssl_password": 1}]
)
def test_an_option_of_the_wrong_type_is_a_type_error(world: World, options: dict[str, Any]) -> None:
    if "ssl_password" in options:
        options = {**options, "ssl_certfile": world.client.bundle}
    with pytest.raises(TypeError, match=next(iter(options))):
        secure(**options)


def test_contexts_verify_and_speak_no_old_tls() -> None:
    context = secure().tls_context()
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_context_of_ones_own_is_taken_as_it_is() -> None:
    context = ssl.create_default_context()
    assert secure(ssl_context=context).tls_context() is context


def test_without_tls_there_is_no_context_and_no_name() -> None:
    security = Security.from_options({})
    assert security.tls_context() is None
    assert security.server_hostname("localhost") is None


def test_certificates_for_brokers_pass_python_s_strict_rules(tmp_path: Path) -> None:
    """ssl.create_default_context is strict since Python 3.13."""
    certificates = Certificates()
    certificates.keep_in(tmp_path)
    pair = certificates.broker()
    context = ssl.create_default_context(cafile=str(pair.authority))
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = Server(Certificate("broker", pair.certificate, pair.key, pair.certificate))
    assert talk(secure(ssl_context=context), server).is_established


def replace(path: Path, other: Path) -> None:
    """Replace a file, as a tool that renews certificates does."""
    new = path.with_suffix(".new")
    new.write_bytes(other.read_bytes())
    new.replace(path)


def test_renewed_files_are_used_for_the_next_connection(world: World, tmp_path: Path) -> None:
    """Otherwise, a client that runs for months could not connect after the old certificates expire."""
    cafile, certfile, keyfile = tmp_path / "ca.pem", tmp_path / "client.pem", tmp_path / "client.key"
    cafile.write_bytes(world.authority.certificate.read_bytes())
    certfile.write_bytes(world.client.certificate.read_bytes())
    keyfile.write_bytes(world.client.key.read_bytes())
    security = secure(ssl_cafile=cafile, ssl_certfile=certfile, ssl_keyfile=keyfile)
    first = security.tls_context()
    assert security.for_client().tls_context() is first, "unchanged files are not read again"
    assert talk(security, Server(world.server, world.authority)).is_established
    stranger = world.stranger.issue("server")
    replace(cafile, world.stranger.certificate)
    replace(certfile, world.stranger_client.certificate)
    replace(keyfile, world.stranger_client.key)
    second = security.tls_context()
    assert second is not first and security.tls_context() is second
    assert talk(security, Server(stranger, world.stranger)).is_established


def test_unusable_renewed_files_leave_the_last_ones_in_use(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate is replaced before its key, or a file is being written."""
    certfile, keyfile = tmp_path / "client.pem", tmp_path / "client.key"
    certfile.write_bytes(world.client.certificate.read_bytes())
    keyfile.write_bytes(encrypt_key(world.client, PASSWORD).read_bytes())
    security = secure(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_password=PASSWORD)
    first = security.tls_context()
    replace(certfile, world.revoked.certificate)
    for _ in range(2):
        assert security.tls_context() is first
    assert caplog.text.count("the key does not belong to the certificate") == 1
    certfile.unlink()
    assert security.tls_context() is first
    assert "cannot be read" in caplog.text and PASSWORD not in caplog.text
    certfile.write_bytes(world.revoked.certificate.read_bytes())
    replace(keyfile, encrypt_key(world.revoked, PASSWORD))
    assert security.tls_context() is not first
