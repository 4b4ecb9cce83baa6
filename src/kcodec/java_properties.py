# SPDX-License-Identifier: Apache-2.0
"""Java properties (java.util.Properties.load): ``meta.properties``, and the configuration files of Kafka's clients.

A line has a name and a value, separated by ``=``, ``:`` or white space. ``#`` and ``!`` begin comments. A backslash at
the end of a line continues it. Other backslashes are escapes: ``\\t``, ``\\u00e9``, ``\\\\``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A name ends at the first "=", ":" or white space that is not escaped. White space around the separator belongs to
# neither the name nor the value.
PROPERTY = re.compile(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*(?:[=:][ \t\f]*)?)(.*)", re.DOTALL)
ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
LINE_END = re.compile(r"\r\n|\n|\r")


class Property(NamedTuple):
    """A name and its value, the number of the line where the name begins, and whether a separator follows the name."""

    name: str
    value: str
    line: int
    is_separated: bool


def text_of_properties(data: bytes) -> str:
    """Return the text of a properties file. It can be UTF-8, with or without a byte order mark. Otherwise it is read as
    ISO 8859-1, as Java reads every such file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_properties(text: str) -> Iterator[Property]:
    """Yield the properties of a file in their order. A name may occur several times; Java uses the last value."""
    for number, line in _logical_lines(text):
        match = PROPERTY.match(line)
        assert match is not None  # it matches any text
        yield Property(_unescaped(match[1]), _unescaped(match[3]), number, bool(match[2]))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the number of its first line, without comments and blank lines.

    A line that ends in an odd number of backslashes continues on the next line.
    """
    pieces: list[str] = []
    begin, is_open = 0, False
    for number, natural in enumerate(LINE_END.split(text), 1):
        line = natural.lstrip(" \t\f")
        if not is_open and (not line or line[0] in "#!"):
            continue
        begin = begin if is_open else number
        is_open = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pieces.append(line[:-1] if is_open else line)
        if not is_open:
            yield begin, "".join(pieces)
            pieces = []
    if pieces and "".join(pieces):
        yield begin, "".join(pieces)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        letter = match[1]
        return chr(int(letter[1:], 16)) if len(letter) == 5 else ESCAPES.get(letter, letter)

    return ESCAPED.sub(plain, text)
