# SPDX-License-Identifier: Apache-2.0
"""Records as text, at the speed of the core: a template says what each record is written as.

    template = json_lines(("offset", "key", "value"))
    for decoded in log.to_arrow(columns=template.columns):
        sys.stdout.buffer.write(template.format(decoded))

How bytes become text, without loss (src/kcodec/_fast/text/text.h is where the rules live):

    json     null; a string where the bytes are UTF-8; else {"base64": "..."}
    escaped  \\N for null; UTF-8 as it is, but \\\\ \\n \\r \\t, and \\xNN for other control characters and for bytes
             that are no UTF-8; in headers = and , too
    csv      nothing for null; UTF-8 as it is, quoted as RFC 4180 says and where it is empty; else, and where a text
             begins so itself, "base64:" and the bytes in base64
    raw      the bytes themselves

Timestamps are milliseconds since 1970 as in every column; a template may ask for dates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from kcodec._fast import COLUMNS, TextBytes, TextTemplate
from kcodec.arguments import names_of

__all__ = ["RECORD_FIELDS", "TextBytes", "TextTemplate", "csv_lines", "json_lines", "rule_of_json", "unescape"]

Part = bytes | tuple[object, ...]

# What a record can be written with: the columns, and what is read out of a control record.
RECORD_FIELDS = (*COLUMNS, "coordinator_epoch")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.?))", re.DOTALL)
_BYTES = ("key", "value", "headers")
_BOOLEANS = ("is_transactional", "is_control")


def _part(name: str, rule: str, null: bytes) -> Part:
    """How a field is written: bytes by this rule, numbers as they are, what is not there as `null`."""
    if name in _BYTES:
        return (rule, name)
    if name in _BOOLEANS:
        return ("boolean", name)
    if name in ("coordinator_epoch", "timestamp_type"):
        return (name,)
    return ("integer", name, 0, null)


def json_lines(fields: Iterable[str], *, topic: str | None = None, partition: int | None = None) -> TextTemplate:
    """A JSON object a record and line, its keys the names of `fields` (RECORD_FIELDS), in their order.

    timestamp_type is Kafka's name ("CreateTime"), control_type too ("COMMIT") or the number of an unknown one; it and
    coordinator_epoch are null in data records. topic, partition: what these are. ValueError for an unknown field.
    """
    constants: dict[str, str | int | None] = {"topic": topic, "partition": partition}
    parts: list[Part] = []
    for name in _known(fields):
        parts.append(f"{',' if parts else '{'}{json.dumps(name)}:".encode())
        if name in constants:
            parts.append(json.dumps(constants[name], ensure_ascii=False).encode())
        elif name == "timestamp_type":
            parts += [b'"', (name,), b'"']
        else:
            parts.append((name,) if name == "control_type" else _part(name, "json", b"null"))
    return TextTemplate([*parts, b"}\n"])


def csv_lines(fields: Iterable[str], *, topic: str | None = None, partition: int | None = None) -> TextTemplate:
    """A CSV line a record (RFC 4180 but for the end of lines, which is a plain newline). Headers are as in JSON."""
    constants = {"topic": topic, "partition": partition}
    parts: list[Part] = []
    for name in _known(fields):
        parts += [b","] if parts else []
        if name in constants:
            parts.append(b"" if constants[name] is None else str(constants[name]).encode())
        else:
            parts.append(_part(name, "csv", b""))
    return TextTemplate([*parts, b"\n"])


def _known(fields: Iterable[str]) -> list[str]:
    import difflib

    names = names_of(fields, "fields")
    for name in names:
        if name not in RECORD_FIELDS:
            near = difflib.get_close_matches(name, RECORD_FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(RECORD_FIELDS)}"
            raise ValueError(f"unknown field {name!r}; {hint}")
    return names


def rule_of_json(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes as `json_lines` has them, before they are written: for JSON that is made in Python."""
    import base64

    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def unescape(text: str) -> bytes | None:
    """The bytes behind what the rule "escaped" wrote; None for ``\\N``. ValueError for what it never writes."""

    def unknown(at: int) -> ValueError:
        return ValueError(f"{text[at : at + 4]!r} at character {at} is no escape")

    return None if text == "\\N" else replace_escapes(text, {"\\": b"\\", "n": b"\n", "r": b"\r", "t": b"\t"}, unknown)


def replace_escapes(
    text: str, named: Mapping[str, bytes], unknown: Callable[[int], Exception], errors: str = "strict"
) -> bytes:
    """The bytes of a text in which a backslash begins the name of some, or xNN, one byte.

    unknown: gives the error of an escape that is not known, by its position. errors: as of ``str.encode``.
    """
    pieces, at = bytearray(), 0
    for match in ESCAPE.finditer(text):
        pieces += text[at : match.start()].encode("utf-8", errors)
        if match[1] is not None:
            pieces.append(int(match[1], 16))
        elif match[2] in named:
            pieces += named[match[2]]
        else:
            raise unknown(match.start())
        at = match.end()
    return bytes(pieces + text[at:].encode("utf-8", errors))
