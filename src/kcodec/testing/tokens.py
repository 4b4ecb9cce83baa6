# SPDX-License-Identifier: Apache-2.0
"""A server for OAuth tokens on loopback: it issues signed tokens for client credentials (RFC 6749).

    with TokenServer() as server:
        kafka = ApacheKafka(sasl="OAUTHBEARER", token_server=server)
        Producer(sasl_oauthbearer_token_endpoint_url=server.token_endpoint, ...)

The tokens are JSON Web Tokens that are signed with RS256. The keys are at `jwks_endpoint` (RFC 7517). Without such a
server, Kafka's own validator for tests accepts unsigned tokens. `unsigned_token` makes one.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcodec.testing.properties import HOST

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

__all__ = ["TokenServer", "unsigned_token"]

AUDIENCE = "kafka"
KEY_ID = "key-1"
LARGEST_REQUEST = 64 << 10


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _json_part(value: Mapping[str, Any]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def unsigned_token(subject: str, lifetime: float = 3600.0) -> str:
    """Return a token without a signature, which Kafka accepts unless it has a token server. lifetime: seconds."""
    now = time.time()
    claims = {"sub": subject, "iat": int(now), "exp": now + lifetime}
    return f"{_json_part({'alg': 'none'})}.{_json_part(claims)}."


class TokenServer:
    """Serves `token_endpoint` and `jwks_endpoint` from `with` or `start()` on.

    clients:  client id -> secret; the id becomes the principal, as User:id.
    lifetime: of tokens, in seconds; may be changed at any time.

    issued:   (client id, scope) of each issued token, in order.
    refusals: number of the next token requests that get status 503; counts down.
    """

    def __init__(self, clients: Mapping[str, str] | None = None, *, lifetime: float = 3600.0) -> None:
        self.clients = dict(clients) if clients is not None else {"alice": "alice-secret"}
        self.lifetime = lifetime
        self.issued: list[tuple[str, str]] = []
        self.refusals = 0
        self._server: ThreadingHTTPServer | None = None
        self._key: RSAPrivateKey | None = None

    def __enter__(self) -> TokenServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def issuer(self) -> str:
        """The issuer in the tokens: this server's address."""
        if self._server is None:
            raise ValueError("the token server has not been started")
        return f"http://{HOST}:{self._server.server_port}"

    @property
    def token_endpoint(self) -> str:
        """The URL at which clients get tokens."""
        return self.issuer + "/token"

    @property
    def jwks_endpoint(self) -> str:
        """The URL at which brokers get keys."""
        return self.issuer + "/jwks"

    def start(self) -> None:
        """Create a key and listen."""
        from cryptography.hazmat.primitives.asymmetric import rsa

        self._key = rsa.generate_private_key(65537, 2048)
        self._server = ThreadingHTTPServer((HOST, 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="tokens").start()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def token(self, subject: str, lifetime: float | None = None, **claims: Any) -> str:
        """Return a signed token for the principal `subject`; `claims` are added to its claims, or replace them.

        lifetime: seconds; None for the lifetime of the server.
        """
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        assert self._key is not None
        now = int(time.time())
        end = now + int(self.lifetime if lifetime is None else lifetime)
        body = {"iss": self.issuer, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": end, **claims}
        text = f"{_json_part({'alg': 'RS256', 'typ': 'JWT', 'kid': KEY_ID})}.{_json_part(body)}"
        return f"{text}.{_base64url(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def broker_properties(self) -> dict[str, str]:
        """Return the server.properties with which brokers accept this server's tokens."""
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        return {
            "listener.name.client.oauthbearer.sasl.server.callback.handler.class": handler,
            "sasl.oauthbearer.jwks.endpoint.url": self.jwks_endpoint,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": self.issuer,
        }

    def keys(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key Set."""
        assert self._key is not None
        numbers = self._key.public_key().public_numbers()
        modulus = numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8, "big")
        exponent = numbers.e.to_bytes(3, "big")
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID}
        return {"keys": [{**key, "n": _base64url(modulus), "e": _base64url(exponent)}]}

    def grant(self, client_id: str, secret: str, scope: str) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the response to a request for a token.

        client_id, secret: credentials of the client.
        scope: requested scope; "" for none.
        """
        if self.refusals > 0:
            self.refusals -= 1
            return 503, {"error": "temporarily_unavailable"}
        if self.clients.get(client_id) != secret:
            return 401, {"error": "invalid_client", "error_description": "unknown client or wrong secret"}
        self.issued.append((client_id, scope))
        scopes: dict[str, Any] = {"scope": scope} if scope else {}  # Kafka refuses a token whose scope is empty
        response = {"access_token": self.token(client_id, **scopes), "token_type": "Bearer"}
        return 200, {**response, "expires_in": int(self.lifetime), **scopes}


def _handler(tokens: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/jwks":
                self._answer(200, tokens.keys())
            else:
                self._answer(404, {"error": "not_found"})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if self.path != "/token" or not 0 <= length <= LARGEST_REQUEST:
                self._answer(404, {"error": "not_found"})
                return
            form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
            if form.get("grant_type") != "client_credentials":
                self._answer(400, {"error": "unsupported_grant_type"})
                return
            client_id, secret = self._credentials(form)
            self._answer(*tokens.grant(client_id, secret, form.get("scope", "")))

        def _credentials(self, form: dict[str, str]) -> tuple[str, str]:
            """Return the credentials in the header Authorization (form-encoded, RFC 6749 2.3.1), or in the form."""
            kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
            if kind.lower() == "basic":
                client_id, _, secret = base64.b64decode(encoded).decode().partition(":")
                return urllib.parse.unquote_plus(client_id), urllib.parse.unquote_plus(secret)
            return form.get("client_id", ""), form.get("client_secret", "")

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the base class
            """Log nothing, as tests need no line for each request."""

    return Handler
