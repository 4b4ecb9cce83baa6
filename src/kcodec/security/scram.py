# SPDX-License-Identifier: Apache-2.0
"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides prove that they know the password without sending
it.

    client  n,,n=<name>,r=<nonce>
    server  r=<nonce + its own>,s=<salt>,i=<iterations>
    client  c=biws,r=<both nonces>,p=<proof that the client knows the password>
    server  v=<proof that the server does>    or e=<error>

Names and passwords are UTF-8 without the SASLprep of RFC 5802, as in Kafka (ScramFormatter's saslName and normalize).
With a delegation token (KIP-48), the name is the id of the token, the password is its HMAC in base64, and the client's
first message has Kafka's extension `tokenauth=true`. There is no channel binding, as in Kafka. The server's messages
are checked against the RFC's grammar before anything is computed from them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import NamedTuple

from kcodec.security.sasl import Exchange, ExchangeRefused
from kcodec.security.secret import Secret

#: Mechanism -> hash. Kafka has these two.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

#: RFC 7677 and Kafka's ScramMechanism: fewer make a stolen exchange too quick to guess from.
MINIMUM_ITERATIONS = 4096
#: A Kafka broker stores at most 16384. Sixteen times that takes a quarter of a second; a server that requests more
#: wastes our time.
MAXIMUM_ITERATIONS = 262_144
#: A message of a server has some 100 bytes; its salt, 16 to 64.
MAXIMUM_MESSAGE_BYTES = 4096
#: Random bytes of our nonce.
NONCE_BYTES = 24

_FIRST = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,[A-Za-z]=[^,]*)*")
_FINAL = re.compile(rb"(?:v=([A-Za-z0-9+/=]+)|e=([^,]*))(?:,[A-Za-z]=[^,]*)*")
_NOT_SCRAM = "check that this is a Kafka broker, without a proxy that changes messages"


class Challenge(NamedTuple):
    """The server's first message. nonce: that of both sides together."""

    nonce: str
    salt: bytes
    iterations: int


class Keys(NamedTuple):
    """The keys that RFC 5802 section 3 derives from a password. They are as confidential as the password."""

    client_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Keys(<secret>)"


def derive_keys(mechanism: str, password: Secret, salt: bytes, iterations: int) -> Keys:
    """Return ClientKey and ServerKey. This is the slow step; the result is the same while the server keeps its salt."""
    hash_name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(hash_name, password.reveal().encode(), salt, iterations)
    return Keys(hmac.digest(salted, b"Client Key", hash_name), hmac.digest(salted, b"Server Key", hash_name))


class Scram:
    """A user that authenticates by SCRAM, any number of times.

    The keys for the server's last salt and iteration count are kept, so that connections after the first one cost two
    hashes. `exchange(nonce)` begins one login; the nonce is printable, has no comma, and is never used twice.

    with_token: the name and the password are the id and the HMAC of a delegation token.
    """

    def __init__(self, mechanism: str, username: str, password: Secret, *, with_token: bool = False) -> None:
        self.mechanism = mechanism
        self._extensions = ",tokenauth=true" if with_token else ""
        self.username = username
        self._password = password
        self._derived: tuple[bytes, int, Keys] | None = None

    def __repr__(self) -> str:
        return f"Scram({self.mechanism!r}, {self.username!r}, <secret>)"

    def exchange(self, nonce: str) -> Exchange:
        """Run the client's side. Raise ExchangeRefused if the server breaks the rules or fails to prove itself."""
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        client_first = f"n={name},r={nonce}{self._extensions}".encode()
        server_first = yield b"n,," + client_first
        challenge = parse_challenge(server_first, nonce)
        keys = self._keys(challenge.salt, challenge.iterations)
        client_final = f"c=biws,r={challenge.nonce}".encode()
        signed = client_first + b"," + server_first + b"," + client_final
        server_final = yield client_final + b",p=" + b64encode(self._proof(keys.client_key, signed))
        expected = hmac.digest(keys.server_key, signed, HASHES[self.mechanism])
        check_server(server_final, expected)

    def _proof(self, client_key: bytes, signed: bytes) -> bytes:
        hash_name = HASHES[self.mechanism]
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
        return bytes(left ^ right for left, right in zip(client_key, signature, strict=True))

    def _keys(self, salt: bytes, iterations: int) -> Keys:
        if self._derived is None or self._derived[:2] != (salt, iterations):
            self._derived = (salt, iterations, derive_keys(self.mechanism, self._password, salt, iterations))
        return self._derived[2]


def parse_challenge(message: bytes, client_nonce: str) -> Challenge:
    """Parse and check the server's first message: it must continue our nonce, and have a salt and sane iterations."""
    match = _FIRST.fullmatch(message) if len(message) <= MAXIMUM_MESSAGE_BYTES else None
    if match is None:
        raise ExchangeRefused("the first response is not a valid SCRAM message: '{quoted}'", _NOT_SCRAM, message)
    nonce, salt, iterations = match[1].decode(), _base64(match[2], "salt"), int(match[3])
    if not nonce.startswith(client_nonce) or len(nonce) == len(client_nonce):
        raise ExchangeRefused(
            "the broker's nonce does not continue the client's: it belongs to another login", _NOT_SCRAM
        )
    if iterations < MINIMUM_ITERATIONS:
        raise ExchangeRefused(
            f"the broker requests {iterations} iterations; fewer than {MINIMUM_ITERATIONS} do not protect a password",
            "store the user's credentials again with more iterations",
        )
    if iterations > MAXIMUM_ITERATIONS:
        raise ExchangeRefused(
            f"the broker requests {iterations} iterations, more than {MAXIMUM_ITERATIONS}",
            "store the user's credentials again with fewer iterations",
        )
    return Challenge(nonce, salt, iterations)


def check_server(message: bytes, expected: bytes) -> None:
    """Check the server's last message, its proof that it knows the password's hash. Raise ExchangeRefused."""
    match = _FINAL.fullmatch(message) if len(message) <= MAXIMUM_MESSAGE_BYTES else None
    if match is None:
        raise ExchangeRefused("the last response is not a valid SCRAM message: '{quoted}'", _NOT_SCRAM, message)
    if match[1] is None:
        remedy = "check sasl_plain_username and sasl_plain_password"
        raise ExchangeRefused("the broker responded '{quoted}'", remedy, match[2])
    if not hmac.compare_digest(_base64(match[1], "signature"), expected):
        raise ExchangeRefused(
            "the broker's signature is wrong: it does not know this user's password", "do not trust this broker"
        )


def _base64(text: bytes, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        raise ExchangeRefused(f"the {what} is not valid base64", _NOT_SCRAM) from None
