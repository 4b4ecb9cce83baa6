# SPDX-License-Identifier: Apache-2.0
"""Records as text, formatted by the core according to a template.

    template = json_lines(("offset", "key", "value"))
    for decoded in log.to_arrow(columns=template.columns):
        sys.stdout.buffer.write(template.format(decoded))

Bytes become text without loss (src/kcodec/_fast/text/text.h has the rules):

    json     null; a string if the bytes are UTF-8; else {"base64": "..."}
    escaped  \\N for null; UTF-8 as it is, but \\\\ \\n \\r \\t, and \\xNN for other control characters and for bytes
             that are not UTF-8; in headers also for = and ,
    csv      empty for null; UTF-8, quoted as in RFC 4180, also if it is empty; otherwise, and if a text begins with
             it, "base64:" and the bytes in base64
    raw      the bytes themselves

Timestamps are milliseconds since 1970, as in every column; a template can select dates.
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
    """Return the part for a field: bytes by this rule, numbers as they are, `null` for a missing value."""
    if name in _BYTES:
        return (rule, name)
    if name in _BOOLEANS:
        return ("boolean", name)
    if name in ("coordinator_epoch", "timestamp_type"):
        return (name,)
    return ("integer", name, 0, null)


def json_lines(fields: Iterable[str], *, topic: str | None = None, partition: int | None = None) -> TextTemplate:
    """Return a template for one JSON object per line, with the keys `fields` (RECORD_FIELDS) in their order.

    timestamp_type is Kafka's name ("CreateTime"); control_type too ("COMMIT"), or the number of an unknown one. It and
    coordinator_epoch are null in data records. topic, partition: the values of these fields. Raise ValueError for an
    unknown field.
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
    """Return a template for one CSV line per record (RFC 4180, but lines end with a newline). Headers are JSON.

    fields, topic, partition: As in json_lines().
    """
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
    """Return bytes as in `json_lines`, but as a Python value, for JSON that Python writes."""
    import base64

    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def unescape(text: str) -> bytes | None:
    """Return the bytes of a text of the rule "escaped"; None for ``\\N``. Raise ValueError for an invalid escape."""

    def unknown(at: int) -> ValueError:
        return ValueError(f"{text[at : at + 4]!r} at character {at} is not a valid escape")

    return None if text == "\\N" else replace_escapes(text, {"\\": b"\\", "n": b"\n", "r": b"\r", "t": b"\t"}, unknown)


def replace_escapes(
    text: str, named: Mapping[str, bytes], unknown: Callable[[int], Exception], errors: str = "strict"
) -> bytes:
    """Return the bytes of a text in which a backslash precedes a name from `names`, or xNN, for one byte.

    unknown: Returns the error for an unknown escape, by its position. errors: As in ``str.encode``.
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
