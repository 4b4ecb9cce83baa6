# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of Admin: fields of data classes, settings, and mappings whose keys are names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from numbers import Number
from typing import Any, TypeVar

from kcodec.integers import as_integer, shown

Item = TypeVar("Item")
INT32 = 1 << 31


def check_text(owner: object, *names: str, or_none: bool = False) -> None:
    """Raise TypeError if one of these fields of a data class is not a str.

    or_none: Whether a field may also be None.
    """
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, str) and not (or_none and value is None):
            expected = "a str or None" if or_none else "a str"
            raise TypeError(f"{_of(owner, name)} must be {expected}, got {shown(value)} of type {type(value).__name__}")


def check_numbers(owner: object, *names: str, or_none: bool = False) -> None:
    """Convert these fields of a frozen data class to int. Raise TypeError if a field is not an integer, and ValueError
    if it does not fit into 32 bits.

    or_none: Whether a field may also be None.
    """
    for name in names:
        value = getattr(owner, name)
        if value is None and or_none:
            continue
        number = as_integer(value)
        if number is None:
            expected = "an int or None" if or_none else "an int"
            raise TypeError(f"{_of(owner, name)} must be {expected}, got {shown(value)} of type {type(value).__name__}")
        if not -INT32 <= number < INT32:
            raise ValueError(f"{_of(owner, name)} must fit into 32 bits, got {shown(number)}")
        object.__setattr__(owner, name, number)


def check_members(owner: object, is_secret: bool = False, **kinds: type[IntEnum]) -> None:
    """Convert these fields of a frozen data class to members of their enumerations. Raise TypeError if a field is
    neither a member nor the number of a member.

    is_secret: Whether an invalid value may be a password, so that the error must not show it.
    """
    for name, kind in kinds.items():
        value = getattr(owner, name)
        if isinstance(value, kind):
            continue
        number = as_integer(value)
        if number is not None and number in list(kind):
            object.__setattr__(owner, name, kind(number))
            continue
        found = f"a value of type {type(value).__name__}" if is_secret else shown(value)
        names = [one.name for one in kind if one.name != "UNKNOWN"]
        meant = str(value).upper().replace("-", "_")
        hint = f"use {kind.__name__}.{meant}" if meant in names else f"use one of {', '.join(names)}"
        raise TypeError(f"{_of(owner, name)} must be a member of {kind.__name__}, got {found}; {hint}")


def setting_text(name: str, value: object) -> str | None:
    """Return the value of a setting as brokers expect it. Numbers and booleans become text, None and a str stay as they
    are. Raise TypeError if the value has another type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    number = as_integer(value)
    if number is None and not isinstance(value, Number):
        raise TypeError(
            f"the value of setting {name!r} must be a str, a number or None, got {shown(value)} of type "
            f"{type(value).__name__}"
        )
    return str(value if number is None else number)


def by_name(given: Mapping[str, Item], parameter: str, content: str) -> dict[str, Item]:
    """Return a mapping whose keys are names as a dict. Raise TypeError if `given` is not a mapping, or if a key is not
    a str.

    content: Description of the values, for the error message.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{parameter}: expected {{name: {content}}}, got {shown(given)}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(
                f"{parameter}: expected a name of type str, got {shown(name)} of type {type(name).__name__}"
            )
    return dict(given)


def check_group_id(group_id: Any) -> None:
    """Raise TypeError if a group id is not a str."""
    if not isinstance(group_id, str):
        raise TypeError(
            f"group_id must be a str, got {shown(group_id)} of type {type(group_id).__name__}; the call takes one group"
        )


def _of(owner: object, name: str) -> str:
    return f"{type(owner).__name__}: {name}"
