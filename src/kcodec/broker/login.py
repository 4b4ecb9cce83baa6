# SPDX-License-Identifier: Apache-2.0
"""The server's side of SASL: PLAIN, SCRAM, and the requests that a connection may send before its login.

The rules and messages are those of Kafka's SaslServerAuthenticator, PlainSaslServer and ScramSaslServer. After
SaslHandshake version 0, the tokens are frames without headers. From version 1 on, SaslAuthenticate contains them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import SystemRandom

from kcodec.broker.clock import Clock
from kcodec.broker.scram_credentials import ScramCredential
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.versions import API_VERSIONS_KEY
from kcodec.security.scram import HASHES, MAXIMUM_MESSAGE_BYTES
from kcodec.security.secret import Secret

HANDSHAKE_KEY, AUTHENTICATE_KEY = 17, 36
#: Kafka lets a logged-in connection begin to log in again only once a second.
LEAST_MS_BETWEEN_LOGINS = 1000
_NONCE_BITS = 160
# Nonces must not be predictable, unlike the random numbers that the setting `seed` determines.
_NONCES = SystemRandom()
_PLAIN_PARTS = 3
_FIRST = re.compile(rb"n,(?:a=([^,]*))?,(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*)")
_FINAL = re.compile(rb"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*),p=([A-Za-z0-9+/=]+)")
_OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"

#: The client's messages -> the server's; returns the name of the user and the last message.
ServerExchange = Generator[bytes, bytes, tuple[str, bytes]]


class LoginRefused(Exception):
    """A login fails. If the error has no message, the client gets Kafka's general message."""


#: Returns a user's credential of a mechanism, None without one.
CredentialOf = Callable[[str, str], ScramCredential | None]


def plain_server(users: dict[str, Secret]) -> ServerExchange:
    """Check one token of PLAIN. Raise LoginRefused."""
    token = yield b""
    parts = token.decode(errors="replace").split("\0")
    if len(parts) != _PLAIN_PARTS:
        raise LoginRefused(f"Invalid SASL/PLAIN response: expected {_PLAIN_PARTS} tokens, got {len(parts)}")
    identity, name, password = parts
    if not name or not password:
        missing = "password" if name else "username"
        raise LoginRefused(f"Authentication failed: {missing} not specified")
    known = users.get(name)
    if known is None or not hmac.compare_digest(known.reveal().encode(), password.encode()):
        raise LoginRefused("Authentication failed: Invalid username or password")
    if identity not in ("", name):
        raise LoginRefused(_OTHER_IDENTITY)
    return name, b""


def scram_server(mechanism: str, credential_of: CredentialOf, nonce: str) -> ServerExchange:
    """Run the server's side of SCRAM, with `nonce` as the server's part of the nonce. Raise LoginRefused."""
    first = _match(_FIRST, (yield b""))
    name = first[3].decode().replace("=2C", ",").replace("=3D", "=")
    credential = credential_of(name, mechanism)
    if credential is None:
        raise LoginRefused
    if (first[1] or b"").decode().replace("=2C", ",").replace("=3D", "=") not in ("", name):
        raise LoginRefused(_OTHER_IDENTITY)
    both = first[4] + nonce.encode()
    challenge = b"r=%b,s=%b,i=%d" % (both, b64encode(credential.salt), credential.iterations)
    final = _match(_FINAL, (yield challenge))
    header = first.string[: first.start(2)]
    if final[3] != both or _decoded(final[2]) != header:
        raise LoginRefused
    digest, proof = HASHES[mechanism], _decoded(final[4])
    signed = b",".join((first[2], challenge, final[1]))
    signature = hmac.digest(credential.stored_key, signed, digest)
    if len(proof) != len(signature):
        raise LoginRefused
    client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
    if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
        raise LoginRefused
    return name, b"v=" + b64encode(hmac.digest(credential.server_key, signed, digest))


def _match(pattern: re.Pattern[bytes], message: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(message) if len(message) <= MAXIMUM_MESSAGE_BYTES else None
    try:
        message.decode()
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise LoginRefused
    return found


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise LoginRefused from None


@dataclass(frozen=True, slots=True, repr=False)
class Authenticator:
    """The users of a broker, and how they log in."""

    mechanisms: tuple[str, ...]
    users: dict[str, Secret]
    credential_of: CredentialOf
    clock: Clock
    max_session_ms: float

    def exchange(self, mechanism: str) -> ServerExchange:
        """Begin an exchange."""
        if mechanism == "PLAIN":
            return plain_server(self.users)
        return scram_server(mechanism, self.credential_of, f"{_NONCES.getrandbits(_NONCE_BITS):x}")


class Login:
    """The login of one connection.

    user:       Name of the user after the login. None before the login, and while the client logs in again.
    has_failed: Whether the connection ends after the present response.
    takes_raw_tokens: Whether the next frame is a token without a header.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self.user: str | None = None
        self.has_failed = self.takes_raw_tokens = False
        self._authenticator = authenticator
        self._mechanism = ""
        self._exchange: ServerExchange | None = None
        self._former_user: str | None = None
        self._has_versions = False
        self._began_ms = self._expires_ms = -1.0

    def allows(self, api_key: int) -> bool:
        """Return whether a request gets a response now. If not, the broker closes the connection, as Kafka does.

        Between the handshake and the last token, the response to any other request is an error, and the login fails.
        """
        if self.user is not None:
            is_over = 0 <= self._expires_ms <= self._authenticator.clock.timer_ms()
            return api_key in (HANDSHAKE_KEY, AUTHENTICATE_KEY) or not is_over
        if self._exchange is not None:
            self.has_failed = api_key != AUTHENTICATE_KEY
            return True
        is_first, self._has_versions = not self._has_versions, True
        return api_key == HANDSHAKE_KEY or (api_key == API_VERSIONS_KEY and is_first)

    def begin(self, mechanism: str, version: int) -> ErrorCode:
        """Begin to log in, or to log in again (KIP-368). Return the error code of SaslHandshake."""
        now = self._authenticator.clock.timer_ms()
        if self.user is not None and now - self._began_ms < LEAST_MS_BETWEEN_LOGINS:
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._authenticator.mechanisms:
            self.has_failed = True
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._began_ms = now
        self._former_user, self.user = self.user, None
        self._mechanism = mechanism
        self._exchange = self._authenticator.exchange(mechanism)
        next(self._exchange)
        self.takes_raw_tokens = version == 0
        return ErrorCode.NONE

    def take(self, token: bytes) -> tuple[bytes, int]:
        """Process a token of the client. Return the token of the server, and the lifetime of the session in ms.

        Raise LoginRefused with the message for the client.
        """
        assert self._exchange is not None
        try:
            try:
                return self._exchange.send(token), 0
            except StopIteration as ended:
                user, last = ended.value
            if self._former_user not in (None, user):
                text = f"Cannot change principals during re-authentication from User:{self._former_user} to User:{user}"
                raise LoginRefused(text)
        except LoginRefused as error:
            self.has_failed = True
            text = str(error) or (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._mechanism
            )
            raise LoginRefused(text) from None
        self.user, self._exchange, self.takes_raw_tokens = user, None, False
        lifetime = self._authenticator.max_session_ms
        self._expires_ms = self._authenticator.clock.timer_ms() + lifetime if lifetime else -1.0
        return last, int(lifetime)
