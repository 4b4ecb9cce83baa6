# SPDX-License-Identifier: Apache-2.0
"""A value that no log, repr, exception or pickle shows: passwords, tokens, keys."""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, NoReturn


class Secret:
    """A string that is read by `reveal()` and by nothing else.

    Its repr, its text and its format are ``<secret>``; pickling and copying into JSON are refused. Two secrets compare
    in constant time. It keeps secrets out of what is written down; it does not keep them out of memory.

    >>> password = Secret("open sesame")
    >>> password
    <secret>
    >>> f"{password} {[password]}"
    '<secret> [<secret>]'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"a secret is a str, not {type(value).__name__}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            # Found here, as a UnicodeEncodeError later would carry the string with it.
            raise ValueError("a secret holds half a surrogate pair, which UTF-8 cannot write")
        self._value = value

    def reveal(self) -> str:
        """The string itself."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, format_spec: str) -> str:
        return format("<secret>", format_spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret is not pickled: give it again where it is needed")


#: A shorter secret is hidden only where it is a word of its own, as ordinary text contains it by chance.
SHORTEST_DISTINCT = 4


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """Return a text of the other side with each secret that it quotes replaced by ``<secret>``.

    A secret is found as it is, in base64 (alone or inside a longer message, in both alphabets), in hexadecimal,
    percent-encoded, and escaped as in JSON or Python. A part of a secret is not found.

    >>> hide('no such password: "open sesame"', [Secret("open sesame")])
    'no such password: "<secret>"'
    """
    for secret in secrets:
        value = secret.reveal()
        if not value:
            continue
        if len(value) < SHORTEST_DISTINCT:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: "<secret>", text)
            continue
        for form in sorted(_forms(value), key=len, reverse=True):
            text = re.sub(re.escape(form), lambda _: "<secret>", text, flags=re.IGNORECASE)
    return text


def _forms(value: str) -> set[str]:
    data = value.encode()
    forms = {value, data.hex(), _percent_encoded(data), ascii(value)[1:-1], json.dumps(value)[1:-1]}
    forms.add(json.dumps(value, ensure_ascii=False)[1:-1])
    for encode in (b64encode, urlsafe_b64encode):
        for shift in range(3):
            # The characters that do not depend on what comes before and after the secret in the encoded message.
            encoded = encode(b"\0" * shift + data).decode()
            forms.add(encoded[(shift * 8 + 5) // 6 : (shift + len(data)) * 8 // 6])
    return {form for form in forms if len(form) >= SHORTEST_DISTINCT}


def _percent_encoded(data: bytes) -> str:
    """Return RFC 3986's form: letters, digits and -._~ as they are."""
    return "".join(chr(one) if (chr(one).isalnum() and one < 128) or one in b"-._~" else f"%{one:02X}" for one in data)
