# SPDX-License-Identifier: Apache-2.0
"""What a broker stores of passwords for SCRAM, in the records of ``__cluster_metadata``."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from typing import NamedTuple

from kcodec.protocol import messages
from kcodec.protocol.schema import MetadataRecord
from kcodec.security.scram import HASHES, MINIMUM_ITERATIONS
from kcodec.security.secret import Secret

#: The numbers of the mechanisms in requests and records.
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
MECHANISM_NAMES = {number: name for name, number in NUMBERS.items()}
_SALT_BYTES = 32


class ScramCredential(NamedTuple):
    """What a broker stores of a password for SCRAM (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

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
    """Return the credential that a record of the metadata log holds."""
    salt, stored_key = bytes(record.salt), bytes(record.stored_key)
    return ScramCredential(salt, stored_key, bytes(record.server_key), record.iterations)


def new_credentials(
    users: dict[str, Secret], mechanisms: Sequence[str], known: dict[tuple[str, str], ScramCredential]
) -> list[MetadataRecord]:
    """Return the records that give each user the password of the settings, as far as it is not in the log."""
    found: list[MetadataRecord] = []
    for mechanism in mechanisms:
        for name, password in users.items() if mechanism in HASHES else ():
            present = known.get((name, mechanism))
            salt = os.urandom(_SALT_BYTES) if present is None else present.salt
            iterations = MINIMUM_ITERATIONS if present is None else present.iterations
            salted = pbkdf2_hmac(HASHES[mechanism], password.reveal().encode(), salt, iterations)
            credential = stored_credential(mechanism, salted, salt, iterations)
            if credential != present:
                found.append(credential_record(name, mechanism, credential))
    return found
