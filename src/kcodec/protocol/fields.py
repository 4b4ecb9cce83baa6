# SPDX-License-Identifier: Apache-2.0
"""The fields of messages: ranges of versions, and a function for each kind of value. What options mean: `schema`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.protocol.schema import Struct

HIGHEST_VERSION = 32767


class Versions(NamedTuple):
    """A range of versions, both ends included; `NO_VERSIONS` holds none."""

    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> Versions:
        """From Kafka's spelling: "0+", "1-3", "2", "none".

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
        """Whether a version is among them."""
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == HIGHEST_VERSION:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS = Versions(1, 0)


class Field(NamedTuple):
    """How a field is declared. kind: Kafka's name of the type, or the class of a struct; of an array, its elements'."""

    kind: str | type[Struct]
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
    """No default was given."""


_UNSET = _Unset()
_ZEROS: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "records": None}


def _zero(kind: str | type[Struct]) -> Any:
    """The default of a field that declares none, as Kafka's generator has it."""
    if not isinstance(kind, str):
        return kind()
    if kind == "uuid":
        from uuid import UUID

        return UUID(int=0)
    return _ZEROS.get(kind, 0)


def _field(
    kind: str | type[Struct],
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
    where = Versions.of(versions)
    is_tagged = NO_VERSIONS if tag is None else where if tagged is None else Versions.of(tagged)
    own_flexible = None if flexible is None else Versions.of(flexible)
    return Field(kind, is_array, where, Versions.of(nullable), default, tag, is_tagged, own_flexible, ignorable, secret)


def boolean(versions: str, **options: Any) -> Any:
    """One byte, False if it is 0."""
    return _field("bool", versions, **options)


def int8(versions: str, **options: Any) -> Any:
    """One byte, signed."""
    return _field("int8", versions, **options)


def int16(versions: str, **options: Any) -> Any:
    """Two bytes, signed."""
    return _field("int16", versions, **options)


def uint16(versions: str, **options: Any) -> Any:
    """Two bytes, unsigned."""
    return _field("uint16", versions, **options)


def int32(versions: str, **options: Any) -> Any:
    """Four bytes, signed."""
    return _field("int32", versions, **options)


def uint32(versions: str, **options: Any) -> Any:
    """Four bytes, unsigned."""
    return _field("uint32", versions, **options)


def int64(versions: str, **options: Any) -> Any:
    """Eight bytes, signed."""
    return _field("int64", versions, **options)


def float64(versions: str, **options: Any) -> Any:
    """Eight bytes, IEEE 754."""
    return _field("float64", versions, **options)


def uuid(versions: str, **options: Any) -> Any:
    """Sixteen bytes, a uuid.UUID."""
    return _field("uuid", versions, **options)


def string(versions: str, **options: Any) -> Any:
    """UTF-8 behind its length, at most 32767 bytes. What is not UTF-8 is read as Java reads it, with U+FFFD."""
    return _field("string", versions, **options)


def data(versions: str, **options: Any) -> Any:
    """Bytes behind their length; any buffer is written, bytes are read."""
    return _field("bytes", versions, **options)


def records(versions: str, **options: Any) -> Any:
    """Record batches behind their length; any buffer is written, a memoryview of the frame is read."""
    return _field("records", versions, **options)


def struct(kind: type[Struct], versions: str, **options: Any) -> Any:
    """A struct of its own class; where it may be None, a byte before it says so (KIP-893)."""
    return _field(kind, versions, **options)


_KIND_NAMES: dict[Any, str] = {
    boolean: "bool",
    data: "bytes",
    **{kind: kind.__name__ for kind in (int8, int16, uint16, int32, uint32, int64, float64, uuid, string, records)},
}


def array(kind: Callable[..., Any] | type[Struct], versions: str, **options: Any) -> Any:
    """A list of values of one kind (`array(int32, "0+")`) or of structs, behind their count."""
    return _field(_KIND_NAMES.get(kind, kind), versions, is_array=True, **options)  # type: ignore[arg-type]
