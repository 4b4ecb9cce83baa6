# SPDX-License-Identifier: Apache-2.0
"""The arguments of public calls: their types, lists of names, numbers or partitions, and their former names.

A `str` is an iterable of its letters and a TopicPartition one of its fields, so a type checker does not notice when one
is passed in place of a list. Throughout kcodec a single name, number or partition means a list of that one, as in
`Consumer.subscribe("orders")`, and text in place of numbers or partitions raises TypeError.

Arguments that were renamed are accepted under their former names with a DeprecationWarning. A misspelled name raises a
TypeError that suggests the right one.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import iscoroutinefunction, signature
from types import CodeType
from typing import Any, TypeVar, cast, overload

from kcodec.integers import as_integer, shown
from kcodec.offsets import TopicPartition, check_partition, check_topic

Item = TypeVar("Item")
First = TypeVar("First")
Second = TypeVar("Second")
Function = TypeVar("Function", bound=Callable[..., Any])
#: The flag of a code object whose function takes any keyword arguments (inspect.CO_VARKEYWORDS).
_TAKES_ANY = 0x08
#: Names of a first parameter that expects an error, as in the callbacks of confluent-kafka.
_ERROR_NAMES = frozenset({"err", "error", "exc", "exception", "kafka_error"})
#: The least similarity of a misspelled name (difflib's ratio): "aplication" and "application" have 0.95.
_CLOSE = 0.8


def check_kind(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    """Raise TypeError unless a value is of one of these types, ValueError for an empty path. A bool is not a number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} must be {expected}, got {shown(value)}")
    if value == "" and os.PathLike in kinds:
        raise ValueError(f"{name} must be {expected}, got an empty string")


def names_of(given: Iterable[str], parameter: str) -> list[str]:
    """Return the names as a list; one str is one name. Raise TypeError for bytes and for elements that are not str."""
    return items_of(given, str, parameter)


def numbers_of(given: Iterable[int], parameter: str) -> list[int]:
    """Return the numbers as a list; one int is one number. Raise TypeError for text, bool and other elements."""
    if not is_list(given):
        if (one := as_integer(given)) is not None:
            return [one]
        raise TypeError(f"{parameter}: expected an int or a list of them, got {shown(given)}")
    numbers = []
    for item in given:
        number = as_integer(item)
        if number is None:
            raise TypeError(f"{parameter}: expected an int, got {shown(item)} of type {type(item).__name__}")
        numbers.append(number)
    return numbers


def partitions_of(
    given: Iterable[TopicPartition] | TopicPartition, parameter: str = "partitions"
) -> list[TopicPartition]:
    """Return the partitions as a list; one TopicPartition is one partition. Pairs of a topic and a number, such as the
    TopicPartition of aiokafka and kafka-python, are accepted, too.

    Raise TypeError for text and for elements that are not a (topic, partition) pair, ValueError for a topic or a
    partition that no request can hold.
    """
    if _is_pair(given):
        return [_partition(given, parameter)]
    if not is_list(given):
        raise TypeError(f"{parameter}: expected TopicPartition(topic, partition) or a list of them, got {given!r}")
    return [_partition(each, parameter) for each in given]


def _is_pair(given: object) -> bool:
    """Return whether this is one partition, as a pair."""
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    topic, partition = given
    return isinstance(given, TopicPartition) or (isinstance(topic, str) and not isinstance(partition, str))


def partitions_in(given: tuple[TopicPartition | Iterable[TopicPartition], ...]) -> list[TopicPartition]:
    """Return the partitions of a call that takes them one by one, as in `pause(first, second)`. One list of them, as in
    `pause(consumer.assignment())`, is accepted, too. Raise the errors of `partitions_of`. The two arguments of
    `pause("orders", 0)` are not a pair."""
    if len(given) == 1 and not isinstance(given[0], tuple) and is_list(given[0]):
        return partitions_of(given[0])
    return [_partition(each, "partitions") for each in given]


def check_seconds(timeout: float | None, call: str) -> None:
    """Raise TypeError for a timeout that is not a number of seconds or None, ValueError for NaN. call: its name."""
    if timeout is None:
        return
    if as_integer(timeout) is None and not isinstance(timeout, float):
        raise TypeError(
            f"{call}: timeout must be a number of seconds or None, got {timeout!r:.100} of type "
            f"{type(timeout).__name__}; pass a number, as in timeout=3.0"
        )
    if timeout != timeout:
        raise ValueError(f"{call}: timeout must be a number of seconds or None, got {timeout!r}")


def check_timeout(timeout: float, call: str) -> None:
    """Raise TypeError for a timeout that is not a number of seconds, ValueError for NaN. call: its name."""
    if timeout is None:
        raise TypeError(f"{call}: timeout must be a number of seconds, got None; omit it for the default")
    check_seconds(timeout, call)


def check_callbacks(**given: object) -> None:
    """Raise TypeError for an argument that is neither a function nor None. given: by the name of the parameter."""
    for name, callback in given.items():
        if callback is not None and not callable(callback):
            raise TypeError(f"{name}: expected a function or None, got {callback!r:.100}; pass it without calling it")


def check_rebalance_callbacks(**given: object) -> None:
    """Raise TypeError if an argument is neither None nor a function that can be called with the partitions alone.
    given: by the name of the parameter."""
    check_callbacks(**given)
    for name, callback in given.items():
        if callback is None:
            continue
        try:
            found = signature(cast("Callable[..., Any]", callback))
        except (TypeError, ValueError):  # a built-in function without a signature
            continue
        try:
            found.bind(frozenset())
        except TypeError as error:
            raise TypeError(
                f"{name}: expected a function of one argument, the partitions; {callback!r:.100} cannot be called with "
                f"one argument ({error}); unlike confluent-kafka, kcodec does not pass the consumer"
            ) from None


def check_error_is_last(function: object, parameter: str, first: str) -> None:
    """Raise TypeError if the name of the first parameter of a callback says that it expects the error. The callbacks of
    confluent-kafka do, and would take each success for an error, and each error for a success.

    parameter: Name of the parameter that got the function. first: Name of the argument that is passed first.
    """
    found = getattr(function, "func", function)  # that of a functools.partial
    if not hasattr(found, "__code__"):
        found = getattr(found, "__call__", None)  # noqa: B004  that of an object with this method
    code: CodeType | None = getattr(found, "__code__", None)
    if code is None:
        return
    skipped = len(getattr(function, "args", ())) + (getattr(found, "__self__", None) is not None)
    names = code.co_varnames[: code.co_argcount]
    if names[skipped : skipped + 1] and names[skipped] in _ERROR_NAMES:
        raise TypeError(
            f"{parameter}: the first parameter of {code.co_qualname} is {names[skipped]!r}, but kcodec passes the "
            f"{first} first and the error second: exchange the two parameters; confluent-kafka passes the error first"
        )


def check_conversions(takes: str, **given: object) -> None:
    """Raise TypeError for an argument that is neither a plain function nor None. takes: what the functions take. given:
    by the name of the parameter."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function that takes {takes}, or None, not {function!r:.100}")
        if iscoroutinefunction(function):
            raise TypeError(f"{name} must be a plain function, not the coroutine function {function!r:.100}")


def by_partition(given: Mapping[TopicPartition, Item], parameter: str, content: str) -> dict[TopicPartition, Item]:
    """Return a mapping by partition as a dict; pairs are accepted as keys.

    content: what the values are, for the message. Raise TypeError for anything but a mapping, and for keys that are not
    a (topic, partition) pair, ValueError as `partitions_of`.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{parameter}: expected {{TopicPartition(topic, partition): {content}}}, got {given!r}")
    return {_partition(key, parameter): value for key, value in given.items()}


def _partition(given: Any, parameter: str) -> TopicPartition:
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        number = as_integer(partition)
        if isinstance(topic, str) and number is not None:
            check_topic(topic, parameter)
            check_partition(number, topic, parameter)
            return TopicPartition(topic, number)
    raise TypeError(f"{parameter}: expected TopicPartition(topic, partition), got {given!r}")


@overload
def items_of(given: Iterable[Item], kind: type[Item], parameter: str) -> list[Item]: ...


@overload
def items_of(
    given: Iterable[First | Second], kind: tuple[type[First], type[Second]], parameter: str
) -> list[First | Second]: ...


def items_of(given: Iterable[Any], kind: Any, parameter: str) -> list[Any]:
    """Return the elements of an iterable as a list; a single element of that kind means a list of it.

    Raise TypeError if it is not iterable, or if an element is of another kind (bytes are an iterable of numbers, but
    never meant as one).
    """
    if isinstance(given, kind):
        return [given]
    expected = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    if not is_list(given):
        raise TypeError(f"{parameter}: expected {expected} or a list of them, got {given!r}")
    items = list(given)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{parameter}: expected {expected}, got {item!r} of type {type(item).__name__}")
    return items


def is_list(given: object) -> bool:
    """Return whether an argument means a list: an iterable that is not text."""
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | memoryview)


def take_renamed(given: dict[str, Any], old: str, new: str) -> None:
    """Move the value of a keyword argument from its deprecated name to its present one, with a DeprecationWarning.

    Raise TypeError if both are given.
    """
    if old in given:
        if new in given:
            raise both_names_error(old, new)
        warn_renamed(old, new)
        given[new] = given.pop(old)


def both_names_error(old: str, new: str) -> TypeError:
    """Return the error for a call with both names of an argument."""
    return TypeError(f"{old} is the deprecated name of {new}: pass {new} alone")


def warn_renamed(old: str, new: str) -> None:
    """Warn about the deprecated name of an argument."""
    warn_deprecated(f"{old} is deprecated: use {new}")


def warn_deprecated(message: str) -> None:
    """Raise a DeprecationWarning at the line outside of kcodec that called."""
    level = 1
    while str(sys._getframe(level).f_globals.get("__name__")).partition(".")[0] == "kcodec":
        level += 1
    warnings.warn(message, DeprecationWarning, stacklevel=level + 1)


def suggesting(function: Function) -> Function:
    """Decorate a public function: its TypeError for a misspelled keyword argument suggests the right name.

    If the function also takes options, only the required arguments are suggested: without one of them it is never
    called, so that it cannot check the names of its options.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    optional = {*names[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]}
    optional.update(function.__kwdefaults__ or ())
    possible = [name for name in names if name not in optional] if code.co_flags & _TAKES_ANY else names
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - known:
            free = [other for other in possible if other not in kwargs and other not in names[: len(args)]]
            refuse_misspelled(name, free, f"{function.__name__}()")
        return function(*args, **kwargs)

    return cast("Function", checked)


def refuse_misspelled(name: str, possible: Collection[str], what: str) -> None:
    """Raise TypeError for an argument that `what` does not have, if one of the possible names is similar.

    what: the function, as in "open()".
    """
    meant = meant_by(name, possible)
    if meant:
        raise TypeError(f"{what} has no option {name!r}{meant}")


def meant_by(name: str, possible: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the similar one of the possible names, if there is one."""
    import difflib  # only where a name is wrong

    near = difflib.get_close_matches(name, list(possible), n=1, cutoff=_CLOSE)
    return f"; did you mean {near[0]!r}?" if near else ""
