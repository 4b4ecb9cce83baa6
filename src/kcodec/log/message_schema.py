# SPDX-License-Identifier: Apache-2.0
"""Kafka's own messages inside records, declared as frozen classes and read by one small interpreter.

A class holds all versions of a message; a field is ``name: type = wire kind("versions", ...)``, in the order of the
bytes and with the names of Kafka's message definitions in snake_case:

    class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
        offset: int = int64("0+")
        leader_epoch: int = int32("3+", default=-1)

In flexible versions (KIP-482) lengths are varints one above the length, 0 is null, and tagged fields end each struct;
unknown tags are passed over. A version whose bytes lack a field gives it its default. Nothing here writes.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from kcodec.errors import DecodeError

HIGHEST_VERSION = 32767
ZERO_UUID = "A" * 22
# A varint of 32 bits takes at most this many bytes.
VARINT_BYTES = 5
UUID_BYTES = 16
# Elements of all arrays of one message. Kafka's largest are a group's members and a topic's partitions, thousands; a
# hostile message of some bytes an element costs a few hundred bytes of memory for each.
MAX_ELEMENTS = 1 << 20


class Versions(NamedTuple):
    """A range of versions, both ends included; ``NONE`` holds nothing."""

    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> Versions:
        """From Kafka's spelling: "0+", "1-3", "2", "none"."""
        if text == "none":
            return cls(1, 0)
        first, dash, last = text.partition("-")
        if first.endswith("+"):
            return cls(int(first[:-1]), HIGHEST_VERSION)
        return cls(int(first), int(last) if dash else int(first))

    def hold(self, version: int) -> bool:
        """Whether a version is among them."""
        return self.first <= version <= self.last


class Wire(NamedTuple):
    """How a field lies in the bytes. kind: of one value; is_array: whether an array of them."""

    kind: str | type[Message]
    versions: Versions
    nullable: Versions
    tag: int | None
    is_array: bool


def _field(
    kind: str | type[Message], versions: str, default: Any, nullable: str, tag: int | None, *, is_array: bool = False
) -> Any:
    wire = Wire(kind, Versions.of(versions), Versions.of(nullable), tag, is_array)
    return dataclasses.field(default=default, metadata={"wire": wire})


def boolean(versions: str, *, default: bool = False, tag: int | None = None) -> Any:
    """One byte, false if it is 0."""
    return _field("bool", versions, default, "none", tag)


def int8(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """One byte, signed."""
    return _field("int8", versions, default, "none", tag)


def int16(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Two bytes, signed."""
    return _field("int16", versions, default, "none", tag)


def uint16(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Two bytes, unsigned."""
    return _field("uint16", versions, default, "none", tag)


def int32(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Four bytes, signed."""
    return _field("int32", versions, default, "none", tag)


def int64(versions: str, *, default: int = 0, tag: int | None = None) -> Any:
    """Eight bytes, signed."""
    return _field("int64", versions, default, "none", tag)


def float64(versions: str, *, default: float = 0.0, tag: int | None = None) -> Any:
    """Eight bytes, IEEE 754."""
    return _field("float64", versions, default, "none", tag)


def uuid(versions: str, *, tag: int | None = None) -> Any:
    """Sixteen bytes, given as Kafka prints them: 22 letters of URL-safe base64."""
    return _field("uuid", versions, ZERO_UUID, "none", tag)


def string(versions: str, *, default: str | None = "", nullable: str = "none", tag: int | None = None) -> Any:
    """UTF-8 behind its length; what is not UTF-8 becomes U+FFFD, as in Kafka."""
    return _field("string", versions, default, nullable, tag)


def data(versions: str, *, default: bytes | None = b"", nullable: str = "none", tag: int | None = None) -> Any:
    """Bytes behind their length (int32 where not flexible)."""
    return _field("bytes", versions, default, nullable, tag)


def struct_of(
    kind: type[Message],
    versions: str,
    *,
    default: Message | None = None,
    nullable: str = "none",
    tag: int | None = None,
) -> Any:
    """Another message; where it may be null, a byte before it says so (KIP-893), in a tagged field a varint."""
    return _field(kind, versions, default, nullable, tag)


def array(
    kind: str | type[Message],
    versions: str,
    *,
    default: tuple[Any, ...] | None = (),
    nullable: str = "none",
    tag: int | None = None,
) -> Any:
    """A tuple of values of one kind behind their count."""
    return _field(kind, versions, default, nullable, tag, is_array=True)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(boolean, int8, int16, uint16, int32, int64, float64, uuid, string, data, struct_of, array),
)
class Message:
    """The root of all messages. versions: those that are known; flexible: those that are."""

    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]

    def __init_subclass__(cls, versions: str = "0+", flexible: str = "none") -> None:
        cls.versions = Versions.of(versions)
        cls.flexible = Versions.of(flexible)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


AnyMessage = TypeVar("AnyMessage", bound=Message)


# ------------------------------------------------------------------------------------------------------------ reading


class Reader:
    """A position in bytes. Every read is checked against what remains; DecodeError if it is too little.

    elements_left: how many elements of arrays may still come.
    """

    __slots__ = ("content", "elements_left", "end", "position")

    def __init__(self, content: bytes, position: int = 0, elements_left: int = MAX_ELEMENTS) -> None:
        self.content = content
        self.position = position
        self.end = len(content)
        self.elements_left = elements_left

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return self.end - self.position

    def take(self, size: int) -> int:
        """Where the next `size` bytes begin; the position is behind them."""
        start = self.position
        if start + size > self.end:
            raise DecodeError(f"{size} bytes are needed but {self.end - start} remain")
        self.position = start + size
        return start

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = 0
        for index in range(VARINT_BYTES):
            byte = self.content[self.take(1)]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                break
        else:
            raise DecodeError(f"a varint of more than {VARINT_BYTES} bytes")
        if value >> 32:
            raise DecodeError(f"a varint above 32 bits: {value}")
        return value


Read = Callable[[Reader], Any]

_FIXED = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d", "bool": ">?"}


def _fixed(layout: str) -> Read:
    packed = struct.Struct(layout)
    size, unpack_from = packed.size, packed.unpack_from
    return lambda reader: unpack_from(reader.content, reader.take(size))[0]


_INT8 = _fixed(">b")


def _length(prefix: Read | None) -> Read:
    """Of a string, bytes or an array: None for null. prefix: how it is read where it is no varint."""
    if prefix is None:
        return lambda reader: reader.varint() - 1
    return prefix


def _uuid(reader: Reader) -> str:
    start = reader.take(UUID_BYTES)
    return base64.urlsafe_b64encode(reader.content[start : start + UUID_BYTES]).decode("ascii").rstrip("=")


def _sized(kind: str, *, is_flexible: bool, is_nullable: bool) -> Read:
    """A reader of strings or bytes."""
    read_length = _length(None if is_flexible else _fixed(">h" if kind == "string" else ">i"))

    what = "a string" if kind == "string" else kind

    def read(reader: Reader) -> str | bytes | None:
        size = read_length(reader)
        if size < 0:
            if is_nullable:
                return None
            raise DecodeError(f"length {size} of {what} that must not be null")
        start = reader.position
        end = start + size
        if end > reader.end:
            raise DecodeError(f"length {size} of {what} but {reader.remaining} bytes remain")
        reader.position = end
        content = reader.content[start:end]
        return content.decode("utf-8", "replace") if kind == "string" else content

    return read


def _array_of(read_one: Read, *, is_flexible: bool, is_nullable: bool) -> Read:
    """A reader of arrays: each element takes a byte at least, so a count is believed up to the bytes that remain."""
    read_length = _length(None if is_flexible else _fixed(">i"))

    def read(reader: Reader) -> tuple[Any, ...] | None:
        count = read_length(reader)
        if count < 0:
            if is_nullable:
                return None
            raise DecodeError(f"length {count} of an array that must not be null")
        if count > reader.remaining:
            raise DecodeError(f"length {count} of an array but {reader.remaining} bytes remain")
        if count > reader.elements_left:
            raise DecodeError(f"more than {MAX_ELEMENTS} elements of arrays")
        reader.elements_left -= count
        return tuple([read_one(reader) for _ in range(count)])

    return read


def _reader_of(wire: Wire, version: int, *, is_flexible: bool) -> Read:
    """How a field is read in one version."""
    is_nullable = wire.nullable.hold(version)
    element_nullable = is_nullable and not wire.is_array
    if not isinstance(wire.kind, str):
        read = _struct_reader(wire, version, is_flexible=is_flexible, is_nullable=element_nullable)
    elif wire.kind in _FIXED:
        read = _fixed(_FIXED[wire.kind])
    elif wire.kind == "uuid":
        read = _uuid
    else:
        read = _sized(wire.kind, is_flexible=is_flexible, is_nullable=element_nullable)
    return _array_of(read, is_flexible=is_flexible, is_nullable=is_nullable) if wire.is_array else read


def _struct_reader(wire: Wire, version: int, *, is_flexible: bool, is_nullable: bool) -> Read:
    kind: Any = wire.kind
    plan = _plan(kind, version, is_flexible)

    def read(reader: Reader) -> Message | None:
        if is_nullable:
            is_null = reader.varint() == 0 if wire.tag is not None else _INT8(reader) < 0
            if is_null:
                return None
        message: Message = _read_struct(kind, plan, reader)
        return message

    return read


class _Plan(NamedTuple):
    fields: tuple[tuple[str, Read], ...]
    tagged: Mapping[int, tuple[str, Read]] | None  # None: no tagged fields in this version


def wires(kind: type[Message]) -> dict[str, Wire]:
    """The fields of a message as they are declared."""
    return {one.name: one.metadata["wire"] for one in dataclasses.fields(kind)}  # type: ignore[arg-type]


@cache
def _plan(kind: type[Message], version: int, is_flexible: bool) -> _Plan:
    """The fields of a message in one version."""
    fields, tagged = [], {}
    for name, wire in wires(kind).items():
        if not wire.versions.hold(version):
            continue
        entry = name, _reader_of(wire, version, is_flexible=is_flexible)
        if wire.tag is None:
            fields.append(entry)
        else:
            tagged[wire.tag] = entry
    return _Plan(tuple(fields), tagged if is_flexible else None)


def _read_struct(kind: type[AnyMessage], plan: _Plan, reader: Reader) -> AnyMessage:
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, read in plan.fields:
            values[name] = read(reader)
        if plan.tagged is not None:
            name = "tagged fields"
            for _ in range(reader.varint()):
                tag, size = reader.varint(), reader.varint()
                start = reader.take(size)
                if tag in plan.tagged:
                    name, read = plan.tagged[tag]
                    inner = Reader(reader.content[start : start + size], 0, reader.elements_left)
                    values[name] = read(inner)
                    reader.elements_left = inner.elements_left
    except DecodeError as error:
        raise DecodeError(f"{name}: {error.reason}") from None
    return kind(**values)


def decode_message(
    kind: type[AnyMessage], version: int, content: bytes, position: int = 0, *, is_whole: bool = False
) -> AnyMessage:
    """The message of one version that begins at a byte of `content`. is_whole: nothing may follow it there.

    DecodeError for a version that is not known, and for bytes that end too early or hold what cannot be.
    """
    if not kind.versions.hold(version):
        known = kind.versions
        raise DecodeError(f"{kind.__name__} version {version} is not known, only {known.first} to {known.last}")
    plan = _plan(kind, version, kind.flexible.hold(version))  # type: ignore[arg-type]
    reader = Reader(content, position)
    try:
        message = _read_struct(kind, plan, reader)
    except DecodeError as error:
        raise DecodeError(f"{kind.__name__} version {version}, {error.reason}") from None
    if is_whole and reader.remaining:
        raise DecodeError(f"{kind.__name__} version {version}: {reader.remaining} bytes follow it")
    return message


def message_dict(message: Message, version: int) -> dict[str, Any]:
    """A message of one version for JSON, as Kafka's own converters write it but for snake_case names.

    Fields that the version lacks are left out, and so are tagged ones at their default. Bytes are base64 text.
    """
    shown = {}
    for one in dataclasses.fields(message):  # type: ignore[arg-type]
        wire, value = one.metadata["wire"], getattr(message, one.name)
        if wire.versions.hold(version) and (wire.tag is None or value != one.default):
            shown[one.name] = _plain(value, version)
    return shown


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return message_dict(value, version)
    if isinstance(value, tuple):
        return [_plain(one, version) for one in value]
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
