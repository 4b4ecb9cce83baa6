# SPDX-License-Identifier: Apache-2.0
"""What a record of an internal topic turned out to be, and the tables by which it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kcodec.log.message_schema import Message, message_dict


class RecordKind(NamedTuple):
    """A type of records: Kafka's name, and the messages in key and value."""

    name: str
    key: type[Message] | None
    value: type[Message]


@dataclass(frozen=True)
class InternalRecord:
    """A record that Kafka writes for itself.

    type: Kafka's name of it, "unknown (42)" for one that is not known. version: of the value, None where there is none.
    key, value: the messages; None where there is none (a value that is null is a tombstone) or it cannot be read, and
    then error says why.
    """

    type: str
    version: int | None = None
    key: Message | None = None
    value: Message | None = None
    error: str | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether the record takes back what was said under its key."""
        return self.key is not None and self.value is None and self.error is None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: type, key (where records of the kind have one), version and value, error if there is one."""
        shown: dict[str, Any] = {"type": self.type}
        if self.key is not None:
            shown["key"] = message_dict(self.key, 0)
        if self.version is not None:
            shown["version"] = self.version
        if self.error is not None:
            shown["error"] = self.error
        else:
            version = self.version or 0
            shown["value"] = None if self.value is None else message_dict(self.value, min(version, 32767))
        return shown
