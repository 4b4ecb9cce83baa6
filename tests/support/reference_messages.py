# SPDX-License-Identifier: Apache-2.0
"""A slow, readable reader and writer of messages, with which the core is compared, and messages of random values.

    decode(kind, data, version) -> message        ValueError for anything that is not exactly one message
    encode(message, version) -> bytes             of values that the version can hold
    sample(kind, version, random) -> message      with values in all fields of the version, sometimes defaults
    differences(message, reported, version)       against JSON of Kafka's converters, as "path: ours, theirs"

It uses the declarations (`schema.fields`) and no plans. Rules: KIP-482, KIP-893, Kafka's generated classes.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

from reference_batch import java_string

from kcodec.protocol.schema import Field, Message, Struct, fields

FIXED = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


# Bytes.


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.content):
            raise ValueError(f"{size} bytes wanted, {len(self.content)} there")
        taken, self.content = self.content[:size], self.content[size:]
        return taken

    def varint(self) -> int:
        value = 0
        for place in range(5):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if value > 0x7FFFFFFF:
                    raise ValueError("a varint beyond 31 bits")
                return value
        raise ValueError("a varint of six bytes")

    def length(self, layout: str, is_compact: bool) -> int | None:
        """None for null."""
        if is_compact:
            length = self.varint() - 1
        else:
            (length,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return None if length < 0 else length


def varint(value: int) -> bytes:
    """An unsigned varint.

    >>> varint(300).hex()
    'ac02'
    """
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def length_of(content: Any, layout: str, is_compact: bool) -> bytes:
    if content is None:
        return b"\x00" if is_compact else struct.pack(layout, -1)
    return varint(len(content) + 1) if is_compact else struct.pack(layout, len(content))


# Reading.


def decode(kind: type[Message], data: bytes, version: int) -> Any:
    """Return the message in these bytes."""
    source = Bytes(bytes(data))
    message = read_struct(source, kind, version, kind.flexible_versions.hold(version))
    if source.content:
        raise ValueError(f"{len(source.content)} bytes left")
    return message


def is_compact(field: Field, version: int, is_flexible: bool) -> bool:
    return field.flexible.hold(version) if field.flexible is not None else is_flexible


def is_tagged(field: Field, version: int, is_flexible: bool) -> bool:
    return is_flexible and field.tag is not None and field.tagged.hold(version)


def read_struct(source: Bytes, kind: type[Struct], version: int, is_flexible: bool) -> Any:
    present = {name: field for name, field in fields(kind).items() if field.versions.hold(version)}
    values = {}
    for name, field in present.items():
        if not is_tagged(field, version, is_flexible):
            values[name] = read_field(source, field, version, is_flexible)
    if is_flexible:
        tags = {field.tag: name for name, field in present.items() if is_tagged(field, version, is_flexible)}
        of_other_versions = {field.tag for field in fields(kind).values()} - set(tags)
        unknown = []
        for _ in range(source.varint()):
            tag = source.varint()
            content = Bytes(source.take(source.varint()))
            if tag in tags:
                values[tags[tag]] = read_field(content, present[tags[tag]], version, is_flexible)
                if content.content:
                    raise ValueError("a tagged field with something behind it")
            elif tag in of_other_versions:
                raise ValueError("a tag of other versions")
            else:
                unknown.append((tag, content.content))
        values["unknown_tagged_fields"] = tuple(unknown)
    return kind(**values)


def read_field(source: Bytes, field: Field, version: int, is_flexible: bool) -> Any:
    compact, nullable = is_compact(field, version, is_flexible), field.nullable.hold(version)
    if field.is_array:
        count = source.length(">i", compact)
        if count is not None:
            return [read_one(source, field, version, is_flexible, may_be_null=False) for _ in range(count)]
        if nullable:
            return None
        raise ValueError("null")
    if isinstance(field.kind, type) and nullable:
        is_null = source.varint() == 0 if is_tagged(field, version, is_flexible) else source.take(1)[0] >= 0x80
        if is_null:
            return None
    return read_one(source, field, version, is_flexible, may_be_null=nullable)


def read_one(source: Bytes, field: Field, version: int, is_flexible: bool, *, may_be_null: bool) -> Any:
    kind = field.kind
    if isinstance(kind, type):
        return read_struct(source, kind, version, is_flexible)
    if kind in FIXED:
        (value,) = struct.unpack(FIXED[kind], source.take(struct.calcsize(FIXED[kind])))
        return value
    if kind == "uuid":
        return UUID(bytes=source.take(16))
    size = source.length(">h" if kind == "string" else ">i", is_compact(field, version, is_flexible))
    if size is None:
        if may_be_null:
            return None
        raise ValueError("null")
    if kind != "string":
        return source.take(size)
    if size > 32767:
        raise ValueError("a long string")
    return java_string(source.take(size))


# Writing.


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message whose values the version can hold."""
    return write_struct(message, version, message.flexible_versions.hold(version))


def write_struct(message: Struct, version: int, is_flexible: bool) -> bytes:
    content, tagged = b"", dict(message.unknown_tagged_fields)
    for name, field in fields(type(message)).items():
        value = getattr(message, name)
        if not field.versions.hold(version):
            assert value == field.default or field.ignorable
        elif not is_tagged(field, version, is_flexible):
            content += write_field(value, field, version, is_flexible)
        elif value != field.default:
            assert field.tag is not None
            tagged[field.tag] = write_field(value, field, version, is_flexible)
    if is_flexible:
        content += varint(len(tagged))
        for tag in sorted(tagged):
            content += varint(tag) + varint(len(tagged[tag])) + tagged[tag]
    return content


def write_field(value: Any, field: Field, version: int, is_flexible: bool) -> bytes:
    compact = is_compact(field, version, is_flexible)
    if field.is_array:
        elements = [write_one(one, field, version, is_flexible) for one in value or ()]
        return length_of(value, ">i", compact) + b"".join(elements)
    if isinstance(field.kind, type) and field.nullable.hold(version):
        if value is None:
            return b"\x00" if is_tagged(field, version, is_flexible) else b"\xff"
        return b"\x01" + write_one(value, field, version, is_flexible)
    return write_one(value, field, version, is_flexible)


def write_one(value: Any, field: Field, version: int, is_flexible: bool) -> bytes:
    kind = field.kind
    if isinstance(kind, type):
        return write_struct(value, version, is_flexible)
    if kind in FIXED:
        return struct.pack(FIXED[kind], value)
    if kind == "uuid":
        return bytes(value.bytes)
    content = value.encode() if kind == "string" and value is not None else value
    layout = ">h" if kind == "string" else ">i"
    return length_of(content, layout, is_compact(field, version, is_flexible)) + bytes(content or b"")


# Samples.

_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_TEXTS = ("", "a", "topic-1", "grüße", "日本", "😀", "x" * 127, "y" * 128, "z" * 300)


def sample(
    kind: type[Struct], version: int, random: Random, *, is_flexible: bool | None = None, density: float = 0.9
) -> Any:
    """Return a message that the version can hold, sometimes with unknown tagged fields. density: share of fields that
    are set; the others have their defaults. Fields of structs inside are mostly set."""
    if is_flexible is None:
        assert issubclass(kind, Message)
        is_flexible = kind.flexible_versions.hold(version)
    values: dict[str, Any] = {}
    for name, field in fields(kind).items():
        is_needed = field.default is None and not field.nullable.hold(version)
        if field.versions.hold(version) and (random.random() < density or is_needed):
            values[name] = sample_field(field, version, random, is_flexible)
    if is_flexible and random.random() < 0.1:
        tags = sorted({random.choice((60, 200, 20000, 1 << 30)) for _ in range(3)})
        values["unknown_tagged_fields"] = tuple((tag, random.randbytes(random.choice((0, 3, 200)))) for tag in tags)
    return kind(**values)


def sample_field(field: Field, version: int, random: Random, is_flexible: bool) -> Any:
    if field.nullable.hold(version) and random.random() < 0.2:
        return None
    if field.is_array:
        count = random.choice((0, 1, 2, 3) if isinstance(field.kind, type) else (0, 1, 5, 130))
        return [sample_one(field, version, random, is_flexible) for _ in range(count)]
    return sample_one(field, version, random, is_flexible)


def sample_one(field: Field, version: int, random: Random, is_flexible: bool) -> Any:
    kind = field.kind
    if isinstance(kind, type):
        return sample(kind, version, random, is_flexible=is_flexible)
    if kind in _BITS:
        bits = _BITS[kind]
        low, high = (0, (1 << bits) - 1) if kind.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return random.choice((low, high, 0, 1, random.randint(low, high)))
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice((0.0, -1.5, 1e300, random.random()))
    if kind == "uuid":
        return UUID(int=random.choice((0, 1, random.getrandbits(128))))
    if kind == "string":
        return random.choice(_TEXTS)
    return random.randbytes(random.choice((0, 1, 20, 127, 128, 3000)))


# Kafka's JSON.


def squeezed(name: str) -> str:
    """Return a name without underscores and in lower case, so that topicId and topic_id are equal.

    >>> squeezed("topicId"), squeezed("topic_id")
    ('topicid', 'topicid')
    """
    return name.replace("_", "").lower()


def differences(message: Struct, reported: dict[str, Any], version: int, path: str = "") -> Iterator[str]:
    """Yield the differences between a message and the JSON of Kafka's converter. It does not have fields that the
    version lacks, and tagged fields only if they are not their default. It has the size of records, and the size and
    the SHA-256 of long bytes."""
    theirs = {squeezed(name): value for name, value in reported.items()}
    for name, field in fields(type(message)).items():
        value = getattr(message, name)
        if not field.versions.hold(version):
            continue
        key = squeezed(name)
        if field.kind == "records":
            found = theirs.pop(key + "sizeinbytes", theirs.pop(key, None))
            ours = None if value is None else len(value)
            if ours != found and not (ours == 0 and found is None):
                yield f"{path}{name}: {ours}, {found}"
        elif key in theirs:
            yield from value_differences(value, theirs.pop(key), field, version, path + name)
        elif field.tag is None or value != field.default:
            yield f"{path}{name}: {value!r}, not printed"
    yield from (f"{path}{name}: not known here" for name in theirs)


def value_differences(value: Any, reported: Any, field: Field, version: int, path: str) -> Iterator[str]:
    if isinstance(value, list) and isinstance(reported, list) and len(value) == len(reported):
        for index, (ours, theirs) in enumerate(zip(value, reported, strict=True)):
            yield from value_differences(ours, theirs, field, version, f"{path}[{index}]")
    elif isinstance(value, Struct) and isinstance(reported, dict):
        yield from differences(value, reported, version, f"{path}.")
    elif isinstance(value, bytes) and isinstance(reported, dict):
        if (len(value), hashlib.sha256(value).hexdigest()) != (reported["size"], reported["sha256"]):
            yield f"{path}: {len(value)} bytes, {reported}"
    else:
        ours = value
        if isinstance(value, UUID):
            ours = base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
        elif isinstance(value, bytes):
            ours = base64.b64encode(value).decode()
        if ours != reported or type(ours) is not type(reported):
            yield f"{path}: {ours!r}, {reported!r}"
