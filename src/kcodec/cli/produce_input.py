# SPDX-License-Identifier: Apache-2.0
"""The input of ``kcodec produce``: delimited messages, whole files, or JSON lines as written by ``kcodec cat -J``.

A JSON line can have the fields topic, key, value, headers, timestamp and partition. All other fields that `cat` writes
are ignored. A key or value is null, a string, or {"base64": "..."}; headers are [{"key": ..., "value": ...}, ...].
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kcodec.cli.parser import CommandError, standard_input

READ_BYTES = 1 << 16
# A message without an end: more than any broker takes (message.max.bytes is 1 MiB by default), and not all memory.
MAX_MESSAGE_BYTES = 100 * 1024 * 1024
JSON_FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "is_control")
NO_TIMESTAMP = -1

Header = tuple[str, "bytes | None"]


class InputMessage(NamedTuple):
    """A message to send; None stands for a missing field. `place` is a text such as "line 3", for errors."""

    place: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None


def pieces_of(path: str | None) -> Iterator[bytes]:
    """Yield the bytes of a file or of stdin when they arrive. A terminal returns each line immediately."""
    if path is not None:
        with Path(path).open("rb", buffering=0) as file:
            while piece := file.read(READ_BYTES):
                yield piece
        return
    descriptor = standard_input("redirect a file to it, or name a FILE").fileno()
    while piece := os.read(descriptor, READ_BYTES):
        yield piece


def split(pieces: Iterator[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Yield the texts between delimiters. A last text without a delimiter counts, unless it is empty."""
    waiting = bytearray()
    for piece in pieces:
        searched = max(len(waiting) - len(delimiter) + 1, 0)
        waiting += piece
        if waiting.find(delimiter, searched) >= 0:
            *whole, rest = bytes(waiting).split(delimiter)
            yield from whole
            waiting = bytearray(rest)
        if len(waiting) > MAX_MESSAGE_BYTES:
            raise CommandError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes: check the delimiter (-D)")
    if waiting:
        yield bytes(waiting)


def plain_messages(
    pieces: Iterator[bytes], delimiter: bytes, key_delimiter: bytes | None, *, empty_is_null: bool
) -> Iterator[InputMessage]:
    """Yield messages of values, and of keys if a key delimiter is given. If a message does not contain it, its key is
    null."""
    for number, text in enumerate(split(pieces, delimiter), 1):
        key: bytes | None = None
        value: bytes | None = text
        if key_delimiter is not None:
            before, found, after = text.partition(key_delimiter)
            if found:
                key, value = before, after
        if empty_is_null:
            key, value = key or None, value or None
        yield InputMessage(f"message {number}", value, key)


def whole_files(paths: list[str]) -> Iterator[InputMessage]:
    """Yield each file as one message."""
    for path in paths:
        if Path(path).stat().st_size > MAX_MESSAGE_BYTES:
            raise CommandError(f"{path}: the file is larger than {MAX_MESSAGE_BYTES} bytes; use -l to send its lines")
        yield InputMessage(path, Path(path).read_bytes())


def json_messages(pieces: Iterator[bytes], *, keeps_partition: bool, path: str | None = None) -> Iterator[InputMessage]:
    """Yield a message for each line, and skip empty lines. Raise CommandError, which names the file, an invalid line
    and the reason."""
    for number, line in enumerate(split(pieces, b"\n"), 1):
        if line.strip():
            place = f"line {number}" if path is None else f"{path}: line {number}"
            try:
                yield _of_json(place, json.loads(line), keeps_partition)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise CommandError(f"{place}: expected a JSON object, but the line is not JSON: {error}") from error
            except (ValueError, TypeError, RecursionError) as error:
                raise CommandError(f"{place}: {error}") from error


def _of_json(place: str, given: Any, keeps_partition: bool) -> InputMessage:
    if not isinstance(given, dict):
        raise TypeError(f"expected a JSON object, got {_shown(given)}")
    for name in given:
        if name not in JSON_FIELDS and name not in ("control_type", "coordinator_epoch"):
            raise ValueError(f"unknown field {name!r}; possible: {', '.join(JSON_FIELDS)}")
    if given.get("is_control"):
        raise ValueError("a control record cannot be produced: omit --control of kcodec cat")
    timestamp = _integer(given, "timestamp")
    partition = _integer(given, "partition") if keeps_partition else None
    topic = given.get("topic")
    if topic is not None and not isinstance(topic, str):
        raise TypeError(f"topic must be a string, not {_shown(topic)}")
    return InputMessage(
        place,
        _bytes(given.get("value"), "value"),
        _bytes(given.get("key"), "key"),
        _headers(given.get("headers")),
        topic,
        partition,
        None if timestamp == NO_TIMESTAMP else timestamp,
    )


def _integer(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{name} must be an integer, not {_shown(value)}")


def _bytes(given: Any, name: str) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode("utf-8")
    if isinstance(given, dict) and set(given) == {"base64"} and isinstance(given["base64"], str):
        try:
            return base64.b64decode(given["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name} is not valid base64: {error}") from None
    raise TypeError(f'{name} must be null, a string or {{"base64": "..."}}, not {_shown(given)}')


def _headers(given: Any) -> tuple[Header, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise TypeError(f'headers must be [{{"key": ..., "value": ...}}, ...], not {_shown(given)}')
    return tuple(_header(one) for one in given)


def _header(one: Any) -> Header:
    if not isinstance(one, dict) or "key" not in one or not set(one) <= {"key", "value"}:
        raise TypeError(f'a header must be {{"key": ..., "value": ...}}, not {_shown(one)}')
    name = _bytes(one["key"], "a header's key")
    if name is None:
        raise TypeError("a header's key must not be null")
    return name.decode("utf-8", "surrogateescape"), _bytes(one.get("value"), "a header's value")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."
