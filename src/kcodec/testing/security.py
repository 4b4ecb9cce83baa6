# SPDX-License-Identifier: Apache-2.0
"""Security of the client listener of a Kafka for tests: TLS, SASL, users, an authorizer; and the options of clients."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kcodec.arguments import names_of
from kcodec.testing.certificates import Certificates
from kcodec.testing.properties import Value
from kcodec.testing.tokens import TokenServer, unsigned_token

__all__ = ["MECHANISMS", "USERS", "ListenerSecurity"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Name -> password. The authorizer allows admin everything, as it does every client of the other listeners.
USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
SUPER_USERS = "User:ANONYMOUS;User:admin"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM_ITERATIONS = 4096
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


class ListenerSecurity:
    """The security arguments of ApacheKafka. Raise ValueError for an unknown mechanism or an impossible
    combination."""

    def __init__(
        self,
        tls: bool | Certificates,
        sasl: bool | str | Iterable[str] | None,
        users: Mapping[str, str] | None,
        authorizer: bool,
        token_server: TokenServer | None,
        has_client_certificates: bool,
    ) -> None:
        chosen = MECHANISMS if sasl is True else tuple(names_of(sasl or (), "sasl"))
        unknown = [mechanism for mechanism in chosen if mechanism not in MECHANISMS]
        if unknown:
            raise ValueError(f"unknown SASL mechanism {unknown[0]!r}; expected one or more of {', '.join(MECHANISMS)}")
        if token_server is not None and "OAUTHBEARER" not in chosen:
            raise ValueError("token_server requires the SASL mechanism OAUTHBEARER")
        if authorizer and not chosen and not (tls and has_client_certificates):
            raise ValueError(
                "authorizer requires authenticated users: add sasl=, or tls= and ssl_client_auth='required'"
            )
        self.mechanisms = chosen
        self.users = dict(USERS if users is None else users)
        self.certificates = tls if isinstance(tls, Certificates) else Certificates() if tls else None
        self.token_server = token_server
        self._authorizer = authorizer

    def __repr__(self) -> str:
        return f"<ListenerSecurity {self.protocol} {','.join(self.mechanisms)}>"

    @property
    def protocol(self) -> str:
        """The name in security.protocol."""
        return ("SASL_" if self.mechanisms else "") + ("SSL" if self.certificates else "PLAINTEXT")

    def properties(self, directory: Path) -> dict[str, Value]:
        """Return the server.properties. Certificates are written to a folder in `directory`."""
        found: dict[str, Value] = {}
        if self.certificates is not None:
            self.certificates.keep_in(directory)
            found.update(self.certificates.broker_properties())
        if self.mechanisms:
            found["listener.name.client.sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        for mechanism in self.mechanisms:
            found[f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"] = self._login_module(mechanism)
        if self.token_server is not None:
            found.update(self.token_server.broker_properties())
        if self._authorizer:
            found.update({"authorizer.class.name": AUTHORIZER, "super.users": SUPER_USERS})
        return found

    def jvm_options(self) -> list[str]:
        """Return JVM options that Kafka needs: the addresses from which it may fetch keys (since Kafka 4.0)."""
        if self.token_server is None:
            return []
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.token_server.jwks_endpoint}"]

    def format_options(self) -> list[str]:
        """Return options of kafka-storage that create SCRAM users. Passwords are salted here, because kafka-storage
        accepts no commas."""
        found = []
        for mechanism in self.mechanisms:
            if mechanism.startswith("SCRAM"):
                digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
                for name, password in self.users.items():
                    salt = os.urandom(16)
                    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, SCRAM_ITERATIONS)
                    secrets = f'salt="{_base64(salt)}",saltedpassword="{_base64(salted)}"'
                    found += ["--add-scram", f'{mechanism}=[name="{name}",iterations={SCRAM_ITERATIONS},{secrets}]']
        return found

    def client_options(self, user: str, mechanism: str | None, client_certificate: bool) -> dict[str, Any]:
        """Return the options with which a client of kcodec authenticates as this user."""
        found: dict[str, Any] = {"security_protocol": self.protocol}
        if self.certificates is not None:
            found["ssl_cafile"] = str(self.certificates.authority)
            if client_certificate:
                pair = self.certificates.client(user)
                found.update({"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key)})
        if not self.mechanisms:
            return found
        mechanism = mechanism or self.mechanisms[0]
        found["sasl_mechanism"] = mechanism
        if mechanism != "OAUTHBEARER":
            return {**found, "sasl_plain_username": user, "sasl_plain_password": self.users[user]}
        if self.token_server is None:
            return {**found, "sasl_oauth_token_provider": lambda: unsigned_token(user)}
        found["sasl_oauthbearer_token_endpoint_url"] = self.token_server.token_endpoint
        secret = self.token_server.clients[user]
        return {**found, "sasl_oauthbearer_client_id": user, "sasl_oauthbearer_client_secret": secret}

    def _login_module(self, mechanism: str) -> str:
        module = f"{MODULES[mechanism]} required"
        if mechanism == "PLAIN":
            users = (f"user_{name}={_quoted(password)}" for name, password in self.users.items())
            return f"{module} {' '.join(users)};"
        if mechanism == "OAUTHBEARER" and self.token_server is None:
            return f'{module} unsecuredLoginStringClaim_sub="broker";'
        return f"{module};"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quoted(text: str) -> str:
    """Return a value in a JAAS configuration."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
