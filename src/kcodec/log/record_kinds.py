# SPDX-License-Identifier: Apache-2.0
"""The kinds of records in internal topics, one such record as it was read, and its form for JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kcodec.errors import DecodeError
from kcodec.protocol.schema import HIGHEST_VERSION, CoordinatorKey, Message, Struct, fields

AnyMessage = TypeVar("AnyMessage", bound=Message)


class RecordKind(NamedTuple):
    """A type of records: Kafka's name, and the messages in key and value."""

    name: str
    key: type[CoordinatorKey] | None
    value: type[Message]


@dataclass(frozen=True)
class InternalRecord:
    """A record that Kafka writes for itself.

    type: Kafka's name of the record type, "unknown (42)" for an unknown one. version: of the value; None without one.
    key, value: messages of `kcodec.protocol.messages`; None where there is none (a null value is a tombstone) or it
    cannot be read, and then error says why.
    """

    type: str
    version: int | None = None
    # Messages are mutable and have no hash.
    key: Message | None = field(default=None, hash=False)
    value: Message | None = field(default=None, hash=False)
    error: str | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record deletes what earlier records with its key say."""
        return self.key is not None and self.value is None and self.error is None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON: type, key (where records of the kind have one), version, and value or error."""
        shown: dict[str, Any] = {"type": self.type}
        if self.key is not None:
            shown["key"] = message_dict(self.key, 0)
        if self.version is not None:
            shown["version"] = self.version
        if self.error is not None:
            shown["error"] = self.error
        else:
            version = min(self.version or 0, HIGHEST_VERSION)
            shown["value"] = None if self.value is None else message_dict(self.value, version)
        return shown


def decode_message(
    kind: type[AnyMessage], version: int, data: bytes, position: int = 0, *, is_whole: bool = False
) -> AnyMessage:
    """Return the message of a record that begins at a byte of `data`. is_whole: no bytes may follow it.

    Raise DecodeError for an unknown version, and for bytes that are not such a message. Kafka ignores bytes behind a
    message in the records of coordinators and in control records.
    """
    if not kind.versions.hold(version):
        known = kind.versions
        raise DecodeError(f"{kind.__name__} version {version} is not known, only {known.first} to {known.last}")
    return kind.decode(data, version, position) if is_whole else kind.decode_prefix(data, version, position)[0]


def uuid_text(value: UUID) -> str:
    """Return an id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def message_dict(message: Struct, version: int) -> dict[str, Any]:
    """Return a message of one version for JSON, as Kafka's own converters write it, with names in snake_case.

    Fields that the version lacks are left out, and so are tagged ones at their default. Bytes are base64 text.
    """
    shown = {}
    for name, declared in fields(type(message)).items():
        if declared.versions.hold(version):
            value = getattr(message, name)
            if declared.tag is None or value != declared.default:
                shown[name] = _plain(value, version)
    return shown


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return message_dict(value, version)
    if isinstance(value, list):
        return [_plain(one, version) for one in value]
    if isinstance(value, UUID):
        return uuid_text(value)
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
