# SPDX-License-Identifier: Apache-2.0
"""Kafka's messages, declared as classes. A class describes all versions of its message; the core reads and writes them.

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
    default       its value if none is given; without a default 0, "", b"", [], False, zeros or a struct of defaults
    tag, tagged   the tag of an optional field (KIP-482), and the versions in which it is one (all, if not said)
    ignorable     it is left out silently where a version lacks it; otherwise only its default can be encoded there
    flexible      the versions with lengths as varints, if they differ from the message's
    secret        its value never appears in a repr or an error, and the message cannot be pickled

Lengths, counts and tags are compared with the number of available bytes before memory is allocated: a hostile message
uses a bounded amount of memory for each of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, dataclass_transform

from kcodec._fast import MessageObject, MessagePlan, MessageShape, read_message, write_message, write_message_parts
from kcodec.errors import EncodeError, UnsupportedError
from kcodec.integers import INT64_MIN, checked_integer
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
    """Turn the declared fields of a class into slots before the class is created. Annotations are for type checkers."""

    _fields: Mapping[str, Field]
    _shape: MessageShape

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _Declared:
        declared = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        body = {key: value for key, value in namespace.items() if key not in declared}
        for field in declared:
            if any(hasattr(base, field) for base in bases):
                raise TypeError(f"{name}.{field}: every message has an attribute of this name; rename the field")
        cls = super().__new__(mcs, name, bases, {"__slots__": tuple(declared), **body}, **options)
        cls._fields = MappingProxyType({**getattr(cls, "_fields", {}), **declared})
        cls._shape = MessageShape(cls, cls._fields, [field.default for field in cls._fields.values()])
        return cls


@dataclass_transform(kw_only_default=True)
class Struct(MessageObject, metaclass=_Declared):
    """A struct of a message: created with keywords, compared by value, mutable, not hashable.

    unknown_tagged_fields: ((tag, bytes), ...) in ascending order of tags that a version does not know. A message that
    is read and written again keeps them.
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
            raise TypeError(f"{kind.__qualname__} cannot be pickled: its field {hidden[0]} is a secret")
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
    """Return a value for a repr, with long bytes and lists shortened."""
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
    """Return the declarations of the fields of the class `kind` by name, in order."""
    return kind._fields


class Message(Struct):
    """A message with versions: requests, responses, headers, keys and values in internal topics.

    versions: the supported versions; flexible_versions: those whose lengths are varints, with tagged fields (KIP-482).
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
        """Return whether a version has compact lengths and tagged fields."""
        return cls.flexible_versions.hold(version)

    @classmethod
    def decode(cls, data: Buffer, version: int, position: int = 0) -> Self:
        """Return the message that fills `data` from byte `position` on.

        A records field is a memoryview of `data`, and keeps it alive. Raise UnsupportedError for an unknown version,
        TruncatedError for missing bytes, DecodeError for invalid bytes or bytes after the message, LimitExceededError
        for more elements than the limit. Each error names the field and the position.
        """
        message: Self = read_message(_plan_of(cls, version), data, position)[0]
        return message

    @classmethod
    def decode_prefix(cls, data: Buffer, version: int, position: int = 0) -> tuple[Self, int]:
        """Return the message in this `version` that begins at byte `position` of `data`, and the position after it.

        Later bytes are ignored. Raise the errors of `decode`.
        """
        found: tuple[Self, int] = read_message(_plan_of(cls, version), data, position, False)
        return found

    def encode(self, version: int) -> bytes:
        """Return the bytes of the message in one version.

        Raise EncodeError, which names field and value, for an unknown version, a value out of range, None in a field
        that is not nullable, and a value other than the default in a field that this version lacks (unless the field
        is ignorable; Kafka: UnsupportedVersionException).
        """
        return write_message(_plan_to_write(type(self), version), self)

    def encode_frame(self, version: int, header: bytes = b"") -> bytes:
        """Return a whole frame as bytes: the length in four bytes, the encoded `header` and the message in one
        `version`. Raise EncodeError as `encode` does."""
        return write_message(_plan_to_write(type(self), version), self, header, True)

    def encode_frame_parts(
        self, version: int, header: bytes = b"", least_bytes: int = 4096
    ) -> list[bytes | memoryview]:
        """Return the frame that `encode_frame(version, header)` returns as buffers for `socket.sendmsg`.

        Records of at least `least_bytes` are not copied: they are views of the caller's memory, which must not change
        until they are sent.
        """
        return write_message_parts(_plan_to_write(type(self), version), self, header, True, least_bytes)

    def encode_parts(self, version: int, least_bytes: int = 4096) -> list[bytes | memoryview]:
        """Return the result of `encode` as buffers, with records as in `encode_frame_parts`."""
        return write_message_parts(_plan_to_write(type(self), version), self, b"", False, least_bytes)

    def to_dict(self, version: int, *, with_secrets: bool = False) -> dict[str, Any]:
        """Return the message in one version as values for `json.dumps`, as Kafka's JSON converters do.

        The names are those of the fields. Bytes and records are base64, and ids are text as Kafka prints it. Fields
        that the version lacks are left out, and tagged fields with their default value, too. Unknown tagged fields are
        also left out.

        with_secrets: Whether to include secret values, such as passwords and keys. Otherwise they are "<hidden>".

        Raise UnsupportedError for an unknown version.
        """
        from kcodec.protocol.plain import plain_dict

        _plan_of(type(self), version)
        return plain_dict(self, version, with_secrets=with_secrets)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], version: int) -> Self:
        """Return the message that `to_dict` has converted to `values` in one version. Missing fields get their
        defaults.

        Raise UnsupportedError for an unknown version, ValueError for a field that the version lacks or text that is not
        base64, and TypeError for a value that is not a dict, a list or text where one is needed. Numbers and text are
        checked by `encode`.
        """
        from kcodec.protocol.plain import from_plain

        _plan_of(cls, version)
        message: Self = from_plain(cls, values, version)
        return message


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
    """A request. response: the class of its response."""

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
    """Link request and response once both are declared: FetchRequest and FetchResponse of one module and key."""
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


# Plans


# typed: True and 1.0 are equal to 1, but they are not valid versions.
@lru_cache(maxsize=None, typed=True)
def _plan_of(kind: type[Message], version: int) -> MessagePlan:
    """Return the plan of a message in one version. Raise TypeError for a version that is not an integer."""
    if type(version) is not int:
        return _plan_of(kind, checked_integer("version", version, INT64_MIN))
    if not kind.versions.hold(version):
        raise UnsupportedError(f"{kind.__name__} version {version} is not supported; kcodec supports {kind.versions}")
    return _compiled(kind, version, kind.is_flexible(version))


def _plan_to_write(kind: type[Message], version: int) -> MessagePlan:
    try:
        return _plan_of(kind, version)
    except UnsupportedError as error:
        raise EncodeError(error.reason, field="version", value=version) from None


@cache
def _compiled(kind: type[Struct], version: int, is_flexible: bool) -> MessagePlan:
    """Return the plan of a message or of a struct inside one."""
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
