# SPDX-License-Identifier: Apache-2.0
"""How the options of clients are declared: once each, with type, default, range and the names that others give them.

A class of options (`kcodec.producer.options.ProducerConfig` ...) has a field for each option, and below it a docstring
for users:

    linger_ms: float = option(5, minimum=0, librdkafka="queue.buffering.max.ms")
    \"\"\"Time that a batch which is not full waits for more records.\"\"\"

Everything else follows from it: checks (`OptionSet`), the settings of the flows (`settings_of`), suggestions for the
names of other clients, the conversion of `-X name=value` on the command line, and, by tools/draw_options.py, the tables
in docs/ and the TypedDicts of `kcodec.client.options`. The unit is in the name (`_ms`, `_bytes`), or given as `unit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

from kcodec.arguments import take_renamed, warn_deprecated
from kcodec.integers import INT64_MAX, as_integer, shown
from kcodec.offsets import TopicPartition
from kcodec.quantities import number_text

#: A name that no client has, but that is written for an option of all of them.
SHORTENED = {"max_in_flight_requests": "max_in_flight_requests_per_connection"}

#: Types of options that are functions: key_serializer and value_serializer, on_revoked and others. They are here, so
#: that `kcodec.client.options` is imported without the producer and the session.
Serializer = Callable[[Any], "bytes | None"]
Deserializer = Callable[[bytes], Any]
Callback = Callable[[frozenset[TopicPartition]], object]
#: The option `partitioner` as a function: called with the serialized key or None, the numbers of all partitions, and of
#: those that have a leader.
PartitionFunction = Callable[["bytes | None", list[int], list[int]], int]

T = TypeVar("T")
Options = TypeVar("Options", bound="OptionSet")
Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """What a declaration says in addition to name, type and default.

    minimum, choices:  What is accepted; None is accepted if it is the default.
    unit:              Of a number whose name does not say it.
    accepts:           Type for callers, if they may pass more than the field holds afterwards.
    java, librdkafka:  Names in other clients that are not this one with dots for underscores.
    deprecated:        Former name of the option, accepted with a DeprecationWarning.
    """

    minimum: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    accepts: str = ""
    java: tuple[str, ...] = ()
    librdkafka: tuple[str, ...] = ()
    deprecated: str = ""


def option(
    default: T,
    *,
    minimum: float | None = None,
    choices: tuple[str, ...] = (),
    unit: str = "",
    java: str = "",
    librdkafka: str = "",
    deprecated: str = "",
) -> T:
    """Declare an option of a class of options. java, librdkafka: names with spaces between, if there are several."""
    declared = Option(
        minimum=minimum,
        choices=choices,
        unit=unit,
        java=tuple(java.split()),
        librdkafka=tuple(librdkafka.split()),
        deprecated=deprecated,
    )
    return dataclasses.field(default=default, metadata={"option": declared})


def declaration(field: dataclasses.Field[Any]) -> Option:
    """Return what the declaration of a field says."""
    found: Option = field.metadata.get("option", Option())
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionSet:
    """Options that check themselves. A number below its minimum is a ValueError, as are a word that is not one of its
    choices and a value of a boolean option that is neither True nor False: the text "false" would switch it on."""

    def __post_init__(self) -> None:
        for name, field, declared in _Declarations.of(type(self)).checked:
            value = getattr(self, name)
            if field.type == "bool" and value not in (True, False):
                raise ValueError(f"{name} must be True or False, not {value!r}")
            least = None if value is None and field.default is None else declared.minimum
            if least is not None:
                value = self._checked_number(name, value, least)
            if least is not None and isinstance(value, float) and str(field.type).startswith("int"):
                raise ValueError(f"{name} must be an int, not {value!r}")
            if declared.choices and value not in declared.choices:
                import difflib  # only where a value is wrong

                near = difflib.get_close_matches(str(value), declared.choices, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{name} must be one of {', '.join(declared.choices)}, not {value!r}{hint}")

    def _checked_number(self, name: str, value: Any, least: float) -> int | float:
        """Return the value of a numeric option as an int or a float, and store it with this type."""
        number = value if isinstance(value, float) else as_integer(value)
        if number is None or not number >= least:
            raise ValueError(f"{name} must be a number of at least {number_text(least)}, not {shown(value)}")
        if isinstance(number, int) and number > INT64_MAX:
            raise ValueError(f"{name} must be a number of at most {INT64_MAX}, not {shown(number)}")
        if number is not value:
            object.__setattr__(self, name, number)
        return number

    #: Names of options that no longer exist, and what to use instead. They have no effect but a DeprecationWarning.
    removed: ClassVar[dict[str, str]] = {}

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the declarations by name."""
        return dict(_Declarations.of(cls).fields)

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of the options."""
        return set(_Declarations.of(cls).fields)

    @classmethod
    def take(cls: type[Options], options: dict[str, Any]) -> Options:
        """Remove the options of this class from `options` and return them; the rest stays in it."""
        for former, name in _Declarations.of(cls).renamed.items():
            take_renamed(options, former, name)
        for name in cls.removed.keys() & options.keys():
            del options[name]
            warn_deprecated(f"{name} has no effect any more: {cls.removed[name]}")
        return cls(**{name: options.pop(name) for name in _Declarations.of(cls).fields.keys() & options.keys()})


class _Declarations(NamedTuple):
    """What follows from the declarations of a class alone.

    checked: the fields whose values `OptionSet` checks.
    renamed: former name of an option -> its name now.
    """

    fields: dict[str, dataclasses.Field[Any]]
    checked: list[tuple[str, dataclasses.Field[Any], Option]]
    renamed: dict[str, str]

    @classmethod
    def of(cls, kind: type[OptionSet]) -> _Declarations:
        """Return it, made with the first use of the class: a client is made in less than half the time."""
        found = _DECLARATIONS.get(kind)
        if found is None:
            fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
            declared = [(name, field, declaration(field)) for name, field in fields.items()]
            checked = [one for one in declared if one[1].type == "bool" or one[2].minimum is not None or one[2].choices]
            renamed = {one.deprecated: name for name, _, one in declared if one.deprecated}
            found = _DECLARATIONS[kind] = cls(fields, checked, renamed)
        return found


_DECLARATIONS: dict[type[OptionSet], _Declarations] = {}


def counterparts() -> dict[str, str]:
    """Return the names in other clients, with underscores, and the option that is meant, of all classes in use."""
    return SHORTENED | {
        other.replace(".", "_"): name
        for options in OptionSet.__subclasses__()
        for name, field in options.fields().items()
        for other in (*declaration(field).java, *declaration(field).librdkafka)
    }


def settings_of(kind: type[Settings], *sources: OptionSet, **computed: Any) -> Settings:
    """Return the settings of flows, a dataclass: what is computed, and else the option of the same name of the first
    source that has it. For a setting `linger` that is `linger_ms`, in seconds."""
    found = dict(computed)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name
        for source in sources:
            if name not in found and hasattr(source, name):
                found[name] = getattr(source, name)
            if name not in found and hasattr(source, f"{name}_ms"):
                found[name] = getattr(source, f"{name}_ms") / 1000
    return kind(**found)
