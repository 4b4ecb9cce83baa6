# SPDX-License-Identifier: Apache-2.0
"""Client credentials against a token endpoint on loopback: what is sent, what is believed, what an error shows."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tls_authority import Authority
from unsigned_jwt import jwt

from kcodec.errors import AuthenticationError
from kcodec.security import Security, oidc
from kcodec.security.mechanisms import _endpoint_context
from kcodec.security.oauthbearer import TransientTokenError
from kcodec.security.oidc import ClientCredentials
from kcodec.security.sasl import is_loopback
from kcodec.security.secret import Secret

SECRET = "s3cret/+ %:é"
NOW = 1_800_000_000.0


class Endpoint:
    """Answers every POST with `status`, `headers` and `body`; keeps the requests."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status, self.headers, self.body = 200, {}, b""
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        if context is not None:
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if context else 'http'}://localhost:{self.server.server_port}/realms/test/token"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    headers: dict[str, str]

    def answers(self, body: Any, status: int = 200, **headers: str) -> None:
        self.status, self.headers = status, headers
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                fields = dict(urllib.parse.parse_qsl(form))
                endpoint.requests.append((self.path, dict(self.headers), fields))
                self.send_response(endpoint.status)
                for name, value in endpoint.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(endpoint.body)))
                self.end_headers()
                self.wfile.write(endpoint.body)

            def do_GET(self) -> None:
                endpoint.requests.append((self.path, dict(self.headers), {}))
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                """No line a request."""

        return Handler


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    yield served
    served.close()


def credentials(url: str, **options: Any) -> ClientCredentials:
    return ClientCredentials(url, "client a", Secret(SECRET), wall_clock=lambda: NOW, **options)


def test_the_secret_goes_into_the_header_as_rfc_6749_encodes_it(endpoint: Endpoint) -> None:
    endpoint.answers({"access_token": "abc", "expires_in": 60, "token_type": "Bearer"})
    fetched = credentials(endpoint.url, scope="kafka write")()
    assert (fetched.token.reveal(), fetched.lifetime) == ("abc", 60.0)
    path, headers, form = endpoint.requests[0]
    assert path == "/realms/test/token"
    assert form == {"grant_type": "client_credentials", "scope": "kafka write"}
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert [urllib.parse.unquote_plus(part) for part in pair.split(":")] == ["client a", SECRET]


@pytest.mark.parametrize(
    ("answer", "lifetime"),
    [
        ({"expires_in": "90"}, 90.0),
        ({"expires_in": 1.5}, 1.5),
        ({}, None),
        ({"expires_in": -5}, None),
        ({"expires_in": "soon"}, None),
        ({"access_token": jwt({"exp": NOW + 30, "iat": NOW})}, 30.0),
        ({"access_token": jwt({"exp": NOW + 30, "iat": NOW}), "expires_in": 20}, 20.0),
    ],
)
def test_a_life_is_taken_from_the_answer_else_from_the_token(
    endpoint: Endpoint, answer: dict[str, Any], lifetime: float | None
) -> None:
    endpoint.answers({"access_token": "abc", **answer})
    assert credentials(endpoint.url)().lifetime == lifetime


def test_a_refusal_names_client_and_endpoint_and_not_the_secret(endpoint: Endpoint) -> None:
    endpoint.answers({"error": "invalid_client", "error_description": f"secret {SECRET}\nis wrong"}, 401)
    with pytest.raises(AuthenticationError) as caught:
        credentials(endpoint.url + "?hidden=1")()
    text = str(caught.value)
    assert (
        f"{endpoint.url} responded with status 401 to client 'client a': invalid_client: secret <secret>\\nis wrong"
        in text
    )
    assert "check sasl_oauthbearer_client_id" in text
    assert SECRET not in text
    assert "hidden" not in text


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_trouble_of_the_endpoints_own_may_pass(endpoint: Endpoint, status: int) -> None:
    endpoint.answers(b"<html>", status)
    with pytest.raises(TransientTokenError, match=f"responded with status {status}"):
        credentials(endpoint.url)()


def test_no_broker_there_may_pass(endpoint: Endpoint) -> None:
    endpoint.close()
    with pytest.raises(TransientTokenError, match="refused"):
        credentials(endpoint.url)()


def test_a_redirect_is_not_followed_with_the_secret(endpoint: Endpoint) -> None:
    endpoint.answers(b"", 302, Location=endpoint.url + "/elsewhere")
    with pytest.raises(AuthenticationError, match="redirects are not followed"):
        credentials(endpoint.url)()
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"access_token": 1}',
        b'{"access_token": ""}',
        b'{"access_token": "a\\ud800"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_answer_without_a_token_is_an_error(endpoint: Endpoint, body: bytes) -> None:
    endpoint.answers(body)
    with pytest.raises(
        AuthenticationError, match=r"is not a JSON object with an access_token|returned an invalid token"
    ):
        credentials(endpoint.url)()


def test_an_endless_answer_is_cut(endpoint: Endpoint) -> None:
    endpoint.answers(b" " * (oidc.MAXIMUM_RESPONSE_BYTES + 100_000))
    with pytest.raises(AuthenticationError, match="more than 1048576 bytes"):
        credentials(endpoint.url)()


def test_a_slow_answer_ends(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "RESPONSE_SECONDS", -1.0)
    endpoint.answers({"access_token": "abc"})
    with pytest.raises(TransientTokenError, match="did not finish its response"):
        credentials(endpoint.url)()


def test_https_verifies_the_endpoint(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("endpoint")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    endpoint = Endpoint(context)
    endpoint.answers({"access_token": "abc"})
    try:
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        assert credentials(endpoint.url, context=trusted)().token.reveal() == "abc"
        with pytest.raises(AuthenticationError, match=r"certificate of token endpoint .* is rejected"):
            credentials(endpoint.url)()
    finally:
        endpoint.close()
    assert len(endpoint.requests) == 1


def test_a_renewed_authority_of_the_endpoint_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise, a client that runs for months could not get tokens after the old authority expires."""
    first, second = (Authority(tmp_path / name) for name in ("first", "second"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    endpoint = Endpoint(context)
    cafile = tmp_path / "ca.pem"
    client = None
    try:
        for authority in (first, second):
            certificate = authority.issue("endpoint")
            context.load_cert_chain(certificate.certificate, certificate.key)
            endpoint.answers({"access_token": authority.certificate.parent.name})
            if client is not None:
                with pytest.raises(AuthenticationError, match="check sasl_oauthbearer_ssl_cafile"):
                    client()
                cafile.write_bytes(b"not finished")
                with pytest.raises(AuthenticationError):
                    client()
                assert "sasl_oauthbearer_ssl_cafile: " in caplog.text
            new = tmp_path / "new.pem"
            new.write_bytes(authority.certificate.read_bytes())
            new.replace(cafile)
            if client is None:
                client = credentials(endpoint.url, context=_endpoint_context({"sasl_oauthbearer_ssl_cafile": cafile}))
            assert client().token.reveal() == authority.certificate.parent.name
    finally:
        endpoint.close()


def test_a_proxy_of_the_environment_hears_nothing_of_loopback(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    endpoint.answers({"access_token": "abc"})
    assert credentials(endpoint.url)().token.reveal() == "abc"


@pytest.mark.parametrize(
    "url", ["ftp://localhost/", "localhost/token", "https:///token", "https://a:b@host/", "https://h/#x"]
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sasl_oauthbearer_token_endpoint_url must be https"):
        credentials(url)


def test_plain_http_is_for_this_machine_or_on_demand() -> None:
    with pytest.raises(ValueError, match="sasl_oauthbearer_allow_http"):
        credentials("http://idp.example.org/token")
    assert credentials("http://idp.example.org/token", allow_http=True).name == "http://idp.example.org/token"
    options: dict[str, object] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "http://idp.example.org/token",
        "sasl_oauthbearer_client_id": "a",
        "sasl_oauthbearer_client_secret": SECRET,
    }
    with pytest.raises(ValueError, match="show the client secret") as caught:
        Security.from_options(options)
    assert SECRET not in str(caught.value)
    assert Security.from_options({**options, "sasl_oauthbearer_allow_http": True}).mechanism_name == "OAUTHBEARER"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_loopback_is_recognized_by_the_name_alone(host: str, local: bool) -> None:
    assert is_loopback(host) is local
