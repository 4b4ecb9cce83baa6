# SPDX-License-Identifier: Apache-2.0
"""Values that no log, repr, exception or pickle shows: passwords, tokens, keys."""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, NoReturn


class Secret:
    """A string that is read by `reveal()` and by nothing else.

    value: The string. Raise TypeError if it is not a str, ValueError if UTF-8 cannot encode it.

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
            raise TypeError(f"a secret must be a str, not {type(value).__name__}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            # Found here, as a UnicodeEncodeError later would carry the string with it.
            raise ValueError("a secret contains half of a surrogate pair, which UTF-8 cannot encode")
        self._value = value

    def reveal(self) -> str:
        """Return the string itself."""
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
        raise TypeError("a secret cannot be pickled: pass it again in the other process")


#: A shorter secret is hidden only where it is a word of its own, as ordinary text contains it by chance.
SHORTEST_DISTINCT = 4
#: Of a longer secret, such as a large token, escaped forms are not looked for.
LONGEST_ESCAPED = 8192


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """Return a text of the other side with each secret that it quotes replaced by ``<secret>``.

    A secret is found as it is, percent-encoded or escaped as in JSON or Python, in hexadecimal, and in base64 (alone or
    inside a longer message, in both alphabets), in upper and lower case. A part of a secret is not found.

    >>> hide('no such password: "open sesame"', [Secret("open sesame")])
    'no such password: "<secret>"'
    """
    if not text:
        return text
    for secret in secrets:
        value = secret.reveal()
        if not value:
            continue
        if len(value) < SHORTEST_DISTINCT:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "<secret>", text)
            continue
        for pattern in _patterns(value):
            text = re.sub(pattern, "<secret>", text, flags=re.IGNORECASE)
    return text


def _patterns(value: str) -> list[str]:
    """Return regular expressions for all forms of a secret, the longest first."""
    data = value.encode()
    forms = {value, data.hex()}
    for encode in (b64encode, urlsafe_b64encode):
        for shift in range(3):
            # The characters that do not depend on what comes before and after the secret in the encoded message.
            encoded = encode(b"\0" * shift + data).decode()
            forms.add(encoded[(shift * 8 + 5) // 6 : (shift + len(data)) * 8 // 6])
    found = [re.escape(form) for form in sorted(forms, key=len, reverse=True) if len(form) >= SHORTEST_DISTINCT]
    return found if len(value) > LONGEST_ESCAPED else ["".join(map(_escapes, value)), *found]


def _escapes(letter: str) -> str:
    """Return a regular expression for a character as it is, or escaped in a URL, in JSON or in Python."""
    percent = "".join(f"%{byte:02X}" for byte in letter.encode())
    forms = {percent, ascii(letter)[1:-1], json.dumps(letter)[1:-1], f"\\u{ord(letter):04x}", letter}
    return f"(?:{'|'.join(re.escape(form) for form in sorted(forms, key=len, reverse=True))})"
