# SPDX-License-Identifier: Apache-2.0
"""Records as text for ``cat`` and ``consume``: kcat's letters, JSON, and internal topics; and the offsets of -o.

Format strings: %s value, %S its size, %k key, %K its size (-1: null), %T timestamp in ms, %h headers, %t topic,
%p partition, %o offset, %% a percent sign; \\n \\r \\t \\0 \\xNN and \\\\ in any string.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import dataclass
from itertools import islice

from kcodec import DecodedRecords
from kcodec.cli.parser import UsageError, nearest
from kcodec.cli.render import json_line
from kcodec.log import internal_record
from kcodec.text import TextBytes, TextTemplate, json_lines, replace_escapes, rule_of_json

NAMED_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "": b"\\"}
PLACES = ("beginning", "end")
# The fields of a record in JSON, and the additional fields of a control record.
FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
CONTROL_FIELDS = ("is_control", "control_type", "coordinator_epoch")
# The records of internal topics are shown decoded, as JSON.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
INTERNAL_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def unescaped(text: str) -> bytes:
    """Return the bytes for a delimiter or format on the command line."""

    def unknown(at: int) -> UsageError:
        return UsageError(f"unknown escape {text[at : at + 2]!r} in {text!r}; possible: \\n \\r \\t \\0 \\xNN \\\\")

    return replace_escapes(text, NAMED_ESCAPES, unknown, "surrogateescape")


def template_of_format(text: str, null: bytes, topic: str | None, partition: int | None) -> TextTemplate:
    """Return the template of a format string. Raise UsageError for an unknown letter."""
    letters: dict[str, tuple[object, ...] | bytes] = {
        "s": ("raw", "value", 0, null),
        "S": ("size", "value"),
        "k": ("raw", "key", 0, null),
        "K": ("size", "key"),
        "T": ("integer", "timestamp"),
        "h": ("pairs", "headers", 0, b"NULL"),
        "t": b"" if topic is None else topic.encode(),
        "p": b"" if partition is None else str(partition).encode(),
        "o": ("integer", "offset"),
        "%": b"%",
    }
    parts: list[tuple[object, ...] | bytes] = []
    for number, piece in enumerate(text.replace("%%", "%\0").split("%")):
        if number == 0:
            parts.append(unescaped(piece))
            continue
        letter = "%" if piece[:1] == "\0" else piece[:1]
        if letter not in letters:
            raise UsageError(f"unknown format %{letter} in {text!r}{nearest(letter, letters)}")
        parts += [letters[letter], unescaped(piece[1:])]
    return TextTemplate([part for part in parts if part != b""])


def template_of_delimiters(key: str | None, message: str, null: bytes) -> TextTemplate:
    """Return the template of kcat's default output: the value and its delimiter, preceded by the key and its delimiter
    if one is given."""
    parts: list[tuple[object, ...] | bytes] = [("raw", "value", 0, null), unescaped(message)]
    if key is not None:
        parts[:0] = [("raw", "key", 0, null), unescaped(key)]
    return TextTemplate(parts)


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the format of a record."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("-J", "--json", action="store_true", help="one JSON object per line")
    shape.add_argument("-f", "--format", metavar="FORMAT", help="a format string")
    shape.add_argument(
        "-K", "--key-delimiter", metavar="DELIMITER", help="print the key and this delimiter before each value"
    )
    parser.add_argument(
        "-D", "--delimiter", default="\\n", metavar="DELIMITER", help="delimiter after each value (default: \\n)"
    )
    parser.add_argument(
        "-Z", "--null", action="store_true", help="print NULL for a null key or value (default: print nothing)"
    )
    parser.add_argument("--raw", action="store_true", help="print records of internal topics as bytes, not decoded")


class RecordText:
    """The text of records of one partition. `columns` are the columns that must be read for it."""

    def __init__(
        self, topic: str | None, partition: int | None, options: argparse.Namespace, *, control: bool = False
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._template = _template(topic, partition, options, control)
        is_plain = options.format is None and options.key_delimiter is None
        self._is_decoded = topic in INTERNAL_TOPICS and is_plain and not options.raw
        self.columns = INTERNAL_COLUMNS if self._is_decoded else self._template.columns

    def of(self, decoded: DecodedRecords, most: int) -> TextBytes | bytes:
        """Return the first `most` records of a chunk."""
        if not self._is_decoded:
            return self._template.format(decoded, most=most)
        assert self._topic is not None
        return _internal_lines(decoded, most, self._topic, self._partition)


def _template(topic: str | None, partition: int | None, options: argparse.Namespace, control: bool) -> TextTemplate:
    null = b"NULL" if options.null else b""
    if options.json:
        return json_lines((*FIELDS, *CONTROL_FIELDS) if control else FIELDS, topic=topic, partition=partition)
    if options.format is not None:
        return template_of_format(options.format, null, topic, partition)
    return template_of_delimiters(options.key_delimiter, options.delimiter, null)


def _internal_lines(decoded: DecodedRecords, most: int, topic: str, partition: int | None) -> bytes:
    """Return a line with a JSON object for each record: its location, type, key, version and value."""
    lines = []
    for record in islice(decoded.records(), most):
        place = {"topic": topic, "partition": partition, "offset": record.offset, "timestamp": record.timestamp}
        content = internal_record(topic, record)
        if content is None:
            content = {"type": None, "key": rule_of_json(record.key), "value": rule_of_json(record.value)}
        lines.append(json_line({**place, **content}))
    return b"".join(lines)


# Offsets


@dataclass(frozen=True)
class Offsets:
    """The begin and the end that the `-o` options select. `last` is a number of offsets before the end."""

    start: int | None = None
    last: int | None = None
    from_end: bool = False
    start_timestamp: int | None = None
    end_timestamp: int | None = None

    @property
    def has_begin(self) -> bool:
        """Whether the options select a start offset."""
        return self.from_end or (self.start, self.last, self.start_timestamp) != (None, None, None)


def offsets_of(given: list[str]) -> Offsets:
    """Return the offsets for beginning, end, N, -N, s@TIME and e@TIME. Use the last start and the last end that are
    given. Raise UsageError for anything else."""
    found: dict[str, int | bool | None] = {}
    beginning: dict[str, int | bool | None] = {"start": None, "last": None, "from_end": False, "start_timestamp": None}
    for text in given:
        if text in PLACES:
            found |= beginning | {"from_end": text == "end"}
        elif text[:2] == "s@":
            found |= beginning | {"start_timestamp": timestamp_of(text[2:])}
        elif text[:2] == "e@":
            found["end_timestamp"] = timestamp_of(text[2:])
        else:
            try:
                number = int(text)
            except ValueError:
                raise UsageError(
                    f"unknown offset {text!r}; possible: beginning, end, 100, -100 (100 offsets before the end), "
                    "s@TIME and e@TIME with milliseconds or a date such as 2026-11-21T09:30"
                ) from None
            found |= beginning | ({"last": -number} if text.startswith("-") else {"start": number})
    return Offsets(**found)  # type: ignore[arg-type]


def timestamp_of(text: str) -> int:
    """Return the timestamp of a number of milliseconds, or of a date in ISO 8601 (in UTC if it has no zone)."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        date = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither milliseconds nor a date such as 2026-11-21T09:30:00Z") from None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return (date - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
