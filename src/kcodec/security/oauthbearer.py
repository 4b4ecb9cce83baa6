# SPDX-License-Identifier: Apache-2.0
"""OAUTHBEARER (RFC 7628, KIP-255, extensions KIP-342): a bearer token, which the broker checks and we do not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kcodec.security.sasl import Exchange, ExchangeRefused
from kcodec.security.secret import Secret

# RFC 6750 2.1: what a bearer token may be made of.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
# RFC 7628 3.1: the name and the value of a key-value pair.
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")
_SEPARATOR = "\x01"
_REMEDY = "check the token, its audience and scope, and that it has not expired"


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise ValueError for an extension that RFC 7628 cannot carry, or that is named auth."""
    for name, value in extensions.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "auth":
            raise ValueError(
                f"sasl_oauthbearer_extensions: {name!r} is no name for an extension: letters, and not auth"
            )
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError(f"sasl_oauthbearer_extensions: the value of {name!r} holds characters that cannot be sent")


def oauthbearer(token: Secret, extensions: Mapping[str, str]) -> Exchange:
    """The client's side. Raises ExchangeRefused when the token cannot be sent, or was refused in words of JSON."""
    if not _TOKEN.fullmatch(token.reveal()):
        raise ExchangeRefused(
            "the token is empty, or holds characters that no bearer token has (RFC 6750)",
            "the token provider must give the bare token, without 'Bearer' or a line's end",
        )
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in extensions.items())
    message = f"n,,{_SEPARATOR}auth=Bearer {token.reveal()}{_SEPARATOR}{pairs}{_SEPARATOR}"
    refusal = yield message.encode()
    if refusal:
        # RFC 7628 3.2.3: the reason comes as JSON; only when we have said this does the broker end the exchange, with
        # an error code, which is then what the caller sees.
        yield _SEPARATOR.encode()
        raise ExchangeRefused("the broker responded {quoted}", _REMEDY, refusal)
