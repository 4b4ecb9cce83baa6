# SPDX-License-Identifier: Apache-2.0
"""SCRAM credentials: the form in which a broker stores passwords, in records of ``__cluster_metadata``.

A user gets the first credential from the setting `users`, and AlterUserScramCredentials changes it. A start must
distinguish the two. The salt of a credential from `users` therefore has a form that no other salt has.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import pbkdf2_hmac
from typing import NamedTuple

from kcodec.protocol import messages
from kcodec.protocol.schema import MetadataRecord
from kcodec.security.scram import HASHES, MINIMUM_ITERATIONS
from kcodec.security.secret import Secret

#: The numbers of the mechanisms in requests and records.
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
MECHANISM_NAMES = {number: name for name, number in NUMBERS.items()}
_log = logging.getLogger(__name__)
_SALT_HALF = 16


class ScramCredential(NamedTuple):
    """The stored form of a password for SCRAM (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @property
    def is_from_settings(self) -> bool:
        """Whether the password was in the setting `users`."""
        return self.salt == _salt_of_settings(self.salt[:_SALT_HALF])

    def has_password(self, mechanism: str, password: Secret) -> bool:
        """Return whether the credential belongs to this password."""
        return self == password_credential(mechanism, password, self.salt, self.iterations)

    def __repr__(self) -> str:
        return "ScramCredential(<secret>)"


def stored_credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    digest = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(salt, hashlib.new(digest, client_key).digest(), server_key, iterations)


def credential_record(name: str, mechanism: str, credential: ScramCredential) -> MetadataRecord:
    """Return the record of a credential for the metadata log."""
    return messages.UserScramCredentialRecord(
        name=name,
        mechanism=NUMBERS[mechanism],
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def credential_of_record(record: messages.UserScramCredentialRecord) -> ScramCredential:
    """Return the credential in a record of the metadata log."""
    salt, stored_key = bytes(record.salt), bytes(record.stored_key)
    return ScramCredential(salt, stored_key, bytes(record.server_key), record.iterations)


def password_credential(
    mechanism: str, password: Secret, salt: bytes, iterations: int = MINIMUM_ITERATIONS
) -> ScramCredential:
    """Return the credential of a password."""
    salted = pbkdf2_hmac(HASHES[mechanism], password.reveal().encode(), salt, iterations)
    return stored_credential(mechanism, salted, salt, iterations)


def _salt_of_settings(random: bytes) -> bytes:
    return random + hashlib.sha256(b"users of the broker's settings" + random).digest()[:_SALT_HALF]


def changes_of_users(
    users: Mapping[str, Secret],
    mechanisms: Sequence[str],
    known: Mapping[tuple[str, str], ScramCredential],
    configured: Mapping[tuple[str, str], ScramCredential],
) -> Iterator[MetadataRecord]:
    """Yield the records that the setting `users` adds to the metadata log at a start.

    known:      Credentials in the log, by user and mechanism.
    configured: Latest credentials from `users`, which AlterUserScramCredentials may have replaced.

    An altered password stays in effect until the password in `users` changes. A user that is no longer in `users` loses
    its credential, unless the credential has been altered. If `users` is empty, all credentials stay.
    """
    for mechanism in filter(HASHES.__contains__, mechanisms):
        for name, password in users.items():
            present, former = known.get((name, mechanism)), configured.get((name, mechanism))
            if present is not None and present.has_password(mechanism, password):
                continue
            if (
                present is not None
                and present != former
                and former is not None
                and former.has_password(mechanism, password)
            ):
                _log.info("user %r: the altered password of %s stays, not that in users", name, mechanism)
                continue
            if present is not None and not present.is_from_settings:
                _log.warning("user %r: the password in users replaces the altered one of %s", name, mechanism)
            yield credential_record(
                name, mechanism, password_credential(mechanism, password, _salt_of_settings(os.urandom(_SALT_HALF)))
            )
    for (name, mechanism), present in known.items() if users else ():
        if name in users or (name, mechanism) not in configured:
            continue
        if present.is_from_settings:
            _log.warning("user %r is not in users any more: its credential of %s is removed", name, mechanism)
            yield messages.RemoveUserScramCredentialRecord(name=name, mechanism=NUMBERS[mechanism])
        else:
            text = "user %r is not in users any more, but keeps its credential of %s, which has been altered"
            _log.warning(text, name, mechanism)
