# SPDX-License-Identifier: Apache-2.0
"""Kafka's messages, declared as classes. A class holds all versions of its message; the compiled core reads and writes.

A field is ``name: type = kind("versions", ...)``, in the order of the bytes and with the names of Kafka's message
definitions in snake_case:

    class InitProducerIdRequest(Request, key=22, versions="0-5", flexible="2+"):
        transactional_id: str | None = string("0+", nullable="0+")
        producer_id: int = int64("3+", default=-1)

    InitProducerIdRequest(transactional_id="a", producer_id=7).encode(version=5) -> bytes
    InitProducerIdRequest.decode(data, version=5) -> InitProducerIdRequest

What the options of a kind say, in the words of Kafka's definitions ("0+", "1-3", "2", "none"):

    versions      those that have the field
    nullable      those in which it may be None
    default       its value when nobody says otherwise; without one 0, "", b"", [], False, zeros, a struct of defaults
    tag, tagged   the tag of an optional field (KIP-482), and the versions in which it is one (all, if not said)
    ignorable     it is left out silently where a version lacks it; otherwise only its default can be encoded there
    flexible      an own range of versions with lengths as varints, where it differs from the message's
    secret        its value is in no repr and no error, and the message is not pickled

Lengths, counts and tags are checked against the bytes that are there before memory is taken: a hostile message costs
a bounded number of bytes for each of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, dataclass_transform

from kcodec._fast import MessageObject, MessagePlan, MessageShape, read_message, write_message, write_message_parts
from kcodec.errors import EncodeError, UnsupportedError
from kcodec.protocol.fields import (
    HIGHEST_VERSION,
    NO_VERSIONS,
    Field,
    Versions,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

# How much of a message its repr shows.
SHOWN_BYTES = 24
SHOWN_ELEMENTS = 8

__all__ = [
    "HIGHEST_VERSION",
    "NO_VERSIONS",
    "CoordinatorKey",
    "CoordinatorValue",
    "Field",
    "Message",
    "MetadataRecord",
    "NumberedMessage",
    "Request",
    "Response",
    "Struct",
    "Versions",
    "array",
    "boolean",
    "data",
    "fields",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "records",
    "string",
    "struct",
    "uint16",
    "uint32",
    "uuid",
]


class _Declared(type):
    """Makes slots of the fields that a class declares, before there is a class. Annotations are for type checkers."""

    _fields: Mapping[str, Field]
    _shape: MessageShape

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _Declared:
        declared = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        body = {key: value for key, value in namespace.items() if key not in declared}
        for field in declared:
            if any(hasattr(base, field) for base in bases):
                raise TypeError(f"{name}.{field} has the name of something that all messages have")
        cls = super().__new__(mcs, name, bases, {"__slots__": tuple(declared), **body}, **options)
        cls._fields = MappingProxyType({**getattr(cls, "_fields", {}), **declared})
        cls._shape = MessageShape(cls, cls._fields, [field.default for field in cls._fields.values()])
        return cls


@dataclass_transform(kw_only_default=True)
class Struct(MessageObject, metaclass=_Declared):
    """A part of a message: made with keywords, compared by value, mutable, not hashable.

    unknown_tagged_fields: ((tag, bytes), ...) in ascending order, of tags that a version does not know: what was read
    is kept and written again.
    """

    if TYPE_CHECKING:
        unknown_tagged_fields: tuple[tuple[int, bytes], ...] = ()
    else:
        __slots__ = ("unknown_tagged_fields",)

    def __repr__(self) -> str:
        parts = [
            f"{name}={'<hidden>' if field.secret else _shown(getattr(self, name, None))}"
            for name, field in type(self)._fields.items()
        ]
        unknown = getattr(self, "unknown_tagged_fields", ())
        if unknown != ():
            parts.append(f"unknown_tagged_fields={_shown(unknown)}")
        return f"{type(self).__qualname__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Callable[..., Struct], tuple[type[Struct], dict[str, Any]]]:
        kind = type(self)
        hidden = [name for name, field in kind._fields.items() if field.secret]
        if hidden:
            raise TypeError(f"{kind.__qualname__} is not pickled: {hidden[0]} is a secret")
        values = {name: _picklable(getattr(self, name)) for name in kind._fields}
        if self.unknown_tagged_fields:
            values["unknown_tagged_fields"] = self.unknown_tagged_fields
        return _rebuild, (kind, values)


def _rebuild(kind: type[Struct], values: dict[str, Any]) -> Struct:
    """Undo Struct.__reduce__."""
    return kind(**values)


def _picklable(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _shown(value: Any) -> str:
    """A value for a repr: bytes and lists cut short."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            head = repr(bytes(value[:SHOWN_BYTES]))
        except (TypeError, ValueError, NotImplementedError):  # a memoryview that was released, or has no plain bytes
            return repr(value)
        return head if len(value) <= SHOWN_BYTES else f"<{len(value)} bytes: {head}...>"
    if isinstance(value, list | tuple):
        parts = [_shown(one) for one in value[:SHOWN_ELEMENTS]]
        if len(value) > SHOWN_ELEMENTS:
            parts.append(f"... {len(value) - SHOWN_ELEMENTS} more")
        return f"[{', '.join(parts)}]" if isinstance(value, list) else f"({', '.join(parts)})"
    return repr(value)


def fields(kind: type[Struct]) -> Mapping[str, Field]:
    """How the fields of a class are declared, by name, in order."""
    return kind._fields


class Message(Struct):
    """What has versions of its own: requests, responses, headers, keys and values in internal topics.

    versions: those that are known; flexible_versions: those whose lengths are varints, with tagged fields (KIP-482).
    """

    versions: ClassVar[Versions] = NO_VERSIONS
    flexible_versions: ClassVar[Versions] = NO_VERSIONS

    def __init_subclass__(cls, versions: str | None = None, flexible: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if versions is not None:
            cls.versions = Versions.of(versions)
            cls.flexible_versions = Versions.of(flexible or "none")

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return cls.flexible_versions.hold(version)

    @classmethod
    def decode(cls, data: Buffer, version: int, position: int = 0) -> Self:
        """The message that fills `data` from a byte on.

        A records field is a memoryview of `data`, and keeps it. UnsupportedError for a version that is not known;
        TruncatedError when bytes are missing, DecodeError for bytes that cannot be or that follow the message,
        LimitExceededError for more elements than kcodec takes. Each error names the field and the byte.
        """
        message: Self = read_message(_plan_of(cls, version), data, position)[0]
        return message

    @classmethod
    def decode_prefix(cls, data: Buffer, version: int, position: int = 0) -> tuple[Self, int]:
        """The message that begins at a byte of `data`, and the byte behind it; what follows is not looked at."""
        found: tuple[Self, int] = read_message(_plan_of(cls, version), data, position, False)
        return found

    def encode(self, version: int) -> bytes:
        """The bytes of one version.

        EncodeError, which names field and value, for a version that is not known, a value out of range, None where
        that version has no null, and a value other than the default in a field that it lacks (unless the field is
        ignorable; Kafka: UnsupportedVersionException).
        """
        return write_message(_plan_to_write(type(self), version), self)

    def encode_frame(self, version: int, header: bytes = b"") -> bytes:
        """A whole frame in one piece: the length in four bytes, the encoded header, the message."""
        return write_message(_plan_to_write(type(self), version), self, header, True)

    def encode_frame_parts(
        self, version: int, header: bytes = b"", least_bytes: int = 4096
    ) -> list[bytes | memoryview]:
        """The same frame as buffers for `socket.sendmsg`: records of `least_bytes` and more are not copied but are
        views of the caller's own memory, which must not change until they are sent."""
        return write_message_parts(_plan_to_write(type(self), version), self, header, True, least_bytes)

    def encode_parts(self, version: int, least_bytes: int = 4096) -> list[bytes | memoryview]:
        """`encode` as buffers, with records as in `encode_frame_parts`."""
        return write_message_parts(_plan_to_write(type(self), version), self, b"", False, least_bytes)


class NumberedMessage(Message):
    """A message of a numbered kind. api_key: the number of a request and its response, or the type of a record of an
    internal topic, as Kafka's definition numbers it."""

    api_key: ClassVar[int]

    def __init_subclass__(cls, key: int | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if key is not None:
            cls.api_key = key


# Requests and responses whose other half is not declared yet, by module, name without Request or Response, and key.
_UNPAIRED: dict[tuple[str, str, int], Any] = {}


class Request(NumberedMessage):
    """A request. response: the class of what answers it."""

    response: ClassVar[type[Response]]

    def __init_subclass__(cls, key: int | None = None, **options: Any) -> None:
        super().__init_subclass__(key, **options)
        if key is not None:
            _pair(cls, "Request")


class Response(NumberedMessage):
    """A response. request: the class of its request."""

    request: ClassVar[type[Request]]

    def __init_subclass__(cls, key: int | None = None, **options: Any) -> None:
        super().__init_subclass__(key, **options)
        if key is not None:
            _pair(cls, "Response")


def _pair(cls: type[Request] | type[Response], ending: str) -> None:
    """Name each half in the other once both are declared: FetchRequest and FetchResponse of one module and key."""
    name = cls.__module__, cls.__qualname__.removesuffix(ending), cls.api_key
    other = _UNPAIRED.get(name)
    if other is None or issubclass(other, Request) == issubclass(cls, Request):
        _UNPAIRED[name] = cls
        return
    del _UNPAIRED[name]
    request, response = (cls, other) if issubclass(cls, Request) else (other, cls)
    request.response, response.request = response, request


class CoordinatorKey(NumberedMessage):
    """The key of a record that a coordinator writes. internal_topic: the topic that holds such records.

    In the log, two bytes with the record type come before a key.
    """

    internal_topic: ClassVar[str]

    def __init_subclass__(cls, topic: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if topic is not None:
            cls.internal_topic = topic


class CoordinatorValue(NumberedMessage):
    """The value of a record that a coordinator writes. In the log, two bytes with the version come before a value."""


class MetadataRecord(NumberedMessage):
    """The value of a record of ``__cluster_metadata``. In the log, a frame with type and version comes before it."""


# ------------------------------------------------------------------------------------------------------------- plans


@cache
def _plan_of(kind: type[Message], version: int) -> MessagePlan:
    """The plan of a message in one version."""
    if not kind.versions.hold(version):
        raise UnsupportedError(f"{kind.__name__} version {version} is not known, only {kind.versions}")
    return _compiled(kind, version, kind.is_flexible(version))


def _plan_to_write(kind: type[Message], version: int) -> MessagePlan:
    try:
        return _plan_of(kind, version)
    except UnsupportedError as error:
        raise EncodeError(error.reason, field="version", value=version) from None


@cache
def _compiled(kind: type[Struct], version: int, is_flexible: bool) -> MessagePlan:
    """The plan of a message or of a struct inside one."""
    title = f"{kind.__qualname__} version {version}"
    return MessagePlan(kind, title, is_flexible, _steps(kind, version, is_flexible))


def _steps(kind: type[Struct], version: int, is_flexible: bool) -> Iterator[Iterable[Any]]:
    for name, field in kind._fields.items():
        if not field.versions.hold(version):
            place = "absent"
        elif field.tagged.hold(version) and is_flexible:
            place = "tagged"
        else:
            place = "in order"
        is_compact = is_flexible if field.flexible is None else field.flexible.hold(version)
        inner = None if isinstance(field.kind, str) else _compiled(field.kind, version, is_flexible)
        yield (
            name,
            "struct" if inner else field.kind,
            place,
            -1 if field.tag is None else field.tag,
            field.is_array,
            field.nullable.hold(version),
            is_compact,
            field.ignorable,
            field.secret,
            field.default,
            inner,
        )
