# SPDX-License-Identifier: Apache-2.0
"""A value that no log, repr, exception or pickle shows: passwords, tokens, keys."""

from __future__ import annotations

import hmac
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
