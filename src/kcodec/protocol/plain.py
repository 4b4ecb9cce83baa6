# SPDX-License-Identifier: Apache-2.0
"""Messages as values for JSON, and back (Kafka: the generated JsonConverter classes).

The rules are those of Kafka's converters, with the names of fields in snake_case:

    numbers, booleans, text, null   the same in JSON
    ids                             22 characters of URL-safe base64
    bytes and records               base64
    arrays and structs              lists and dicts
    fields that the version lacks   left out
    tagged fields                   left out if they have their default value
    unknown tagged fields           left out
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kcodec.arguments import meant_by
from kcodec.protocol.fields import Field
from kcodec.protocol.schema import Struct, fields

#: In place of the value of a secret field.
HIDDEN = "<hidden>"


def plain_dict(message: Struct, version: int, *, with_secrets: bool) -> dict[str, Any]:
    """Return a message as `Message.to_dict` describes."""
    shown = {}
    for name, declared in fields(type(message)).items():
        if declared.versions.hold(version):
            value = getattr(message, name)
            if declared.tag is None or value != declared.default:
                is_hidden = declared.secret and not with_secrets and value is not None
                shown[name] = HIDDEN if is_hidden else _plain(value, version, with_secrets)
    return shown


def _plain(value: Any, version: int, with_secrets: bool) -> Any:
    if isinstance(value, Struct):
        return plain_dict(value, version, with_secrets=with_secrets)
    if isinstance(value, list | tuple):
        return [_plain(one, version, with_secrets) for one in value]
    if isinstance(value, UUID):
        return uuid_text(value)
    if isinstance(value, str | int | float | None):
        return value
    return base64.b64encode(value).decode("ascii")


def from_plain(kind: type[Struct], values: Mapping[str, Any], version: int, path: str = "") -> Any:
    """Return the message that `Message.from_dict` describes. path: Name of the struct within the message."""
    title = path or kind.__qualname__
    if not isinstance(values, Mapping):
        raise TypeError(f"{title} version {version}: expected a dict of its fields, got {type(values).__name__}")
    declared = {name: field for name, field in fields(kind).items() if field.versions.hold(version)}
    if unknown := sorted(map(str, values.keys() - declared.keys())):
        raise ValueError(
            f"{title} version {version} has no field {unknown[0]!r}{meant_by(unknown[0], declared)}; its fields are "
            f"{', '.join(declared) or 'none'}"
        )
    return kind(**{name: _value(declared[name], value, version, f"{title}.{name}") for name, value in values.items()})


def _value(field: Field, value: Any, version: int, path: str) -> Any:
    if value is None:
        return None
    if field.is_array:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{path}: expected a list, got {type(value).__name__}")
        return [_one(field, one, version, f"{path}[{index}]") for index, one in enumerate(value)]
    return _one(field, value, version, path)


def _one(field: Field, value: Any, version: int, path: str) -> Any:
    if isinstance(field.kind, type):
        return from_plain(field.kind, value, version, path)
    if field.secret and value == HIDDEN:
        raise ValueError(f"{path}: the value is hidden; call to_dict with with_secrets=True to keep it")
    if field.kind not in ("uuid", "bytes", "records"):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{path}: expected text in base64, got {type(value).__name__}")
    try:
        if field.kind == "uuid":
            return _uuid(value)
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        what = "an id of 22 characters in URL-safe base64" if field.kind == "uuid" else "text in base64"
        raise ValueError(f"{path}: expected {what}, got {'a secret' if field.secret else repr(value[:60])}") from None


def uuid_text(value: UUID) -> str:
    """Return an id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def _uuid(text: str) -> UUID:
    found = UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
    if uuid_text(found) != text:
        raise ValueError(text)
    return found
