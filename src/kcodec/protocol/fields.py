# SPDX-License-Identifier: Apache-2.0
"""The fields of messages: ranges of versions and kinds of values. `schema` explains the options of a field."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

HIGHEST_VERSION = 32767


class Versions(NamedTuple):
    """A range of versions, both ends included. `NO_VERSIONS` is empty.

    first, last: Lowest and highest version; `HIGHEST_VERSION` as the last one leaves the range open.
    """

    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> Versions:
        """Return the range that `text` names in Kafka's spelling: "0+", "1-3", "2", "none".

        >>> Versions.of("1-3"), Versions.of("2+").first
        (Versions(first=1, last=3), 2)
        """
        if text == "none":
            return NO_VERSIONS
        first, dash, last = text.partition("-")
        if first.endswith("+"):
            return cls(int(first[:-1]), HIGHEST_VERSION)
        return cls(int(first), int(last) if dash else int(first))

    def hold(self, version: int) -> bool:
        """Return whether the range contains a version."""
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == HIGHEST_VERSION:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS = Versions(1, 0)


_versions = cache(Versions.of)  # thousands of fields have a few dozen ranges


class Field(NamedTuple):
    """How a field is declared.

    kind: Kafka's name of the type, or the class of a struct; for an array, that of its elements.
    is_array: Whether the field is a list of such values.
    versions: Versions that have the field.
    nullable: Versions in which the value may be None.
    default: Value if none is given.
    tag: Tag of an optional field (KIP-482); None for an ordinary field.
    tagged: Versions in which the field is written with its tag.
    flexible: Versions in which lengths are varints; None for those of the message.
    ignorable: Whether encoding leaves the field out silently where a version lacks it.
    secret: Whether the value is hidden in reprs and errors.
    """

    kind: Any
    is_array: bool
    versions: Versions
    nullable: Versions
    default: Any
    tag: int | None
    tagged: Versions
    flexible: Versions | None
    ignorable: bool
    secret: bool


class _Unset:
    """Marks a field without a declared default."""


_UNSET = _Unset()
_ZEROS: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "records": None}


def _zero(kind: str | type[Any]) -> Any:
    """Return the default of a field that declares none, as Kafka's generator does."""
    if not isinstance(kind, str):
        return kind()
    if kind == "uuid":
        from uuid import UUID

        return UUID(int=0)
    return _ZEROS.get(kind, 0)


def _field(
    kind: str | type[Any],
    versions: str,
    *,
    default: Any = _UNSET,
    is_array: bool = False,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str | None = None,
    ignorable: bool = False,
    secret: bool = False,
) -> Any:
    if default is _UNSET:
        default = [] if is_array else _zero(kind)
    where = _versions(versions)
    is_tagged = NO_VERSIONS if tag is None else where if tagged is None else _versions(tagged)
    own_flexible = None if flexible is None else _versions(flexible)
    return Field(kind, is_array, where, _versions(nullable), default, tag, is_tagged, own_flexible, ignorable, secret)


class Kind:
    """A kind of value. A call with the versions that have the field, and other options, declares a field."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, versions: str, **options: Any) -> Any:
        """Declare a field with one such value."""
        return _field(self._name, versions, **options)

    def array(self, versions: str, **options: Any) -> Any:
        """Declare a field with a list of such values."""
        return _field(self._name, versions, is_array=True, **options)


boolean = Kind("bool")  # one byte, False if it is 0
int8 = Kind("int8")
int16 = Kind("int16")
uint16 = Kind("uint16")
int32 = Kind("int32")
uint32 = Kind("uint32")
int64 = Kind("int64")
float64 = Kind("float64")  # IEEE 754
uuid = Kind("uuid")  # sixteen bytes, a uuid.UUID
#: UTF-8 behind its length, at most 32767 bytes. What is not UTF-8 is read as Java reads it, with U+FFFD.
string = Kind("string")
data = Kind("bytes")  # behind their length; any buffer is written, bytes are read
#: Record batches behind their length; any buffer is written, a memoryview of the frame is read.
records = Kind("records")


def struct(kind: type[Any], versions: str, **options: Any) -> Any:
    """Declare a field with a struct of the class `kind`. If the struct may be None, a byte before it says so (KIP-893).

    versions: those that have the field, as in "0+".

    Options are those of every field, such as nullable and default.
    """
    return _field(kind, versions, **options)


def array(kind: Kind | type[Any], versions: str, **options: Any) -> Any:
    """Declare a list of values of one kind (`array(int32, "0+")`) or of structs. Its element count comes first.

    versions: those that have the field, as in "0+".

    Options are those of every field, such as nullable and default.
    """
    return (
        kind.array(versions, **options) if isinstance(kind, Kind) else _field(kind, versions, is_array=True, **options)
    )
