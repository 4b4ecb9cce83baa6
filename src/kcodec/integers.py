# SPDX-License-Identifier: Apache-2.0
"""Integers as arguments: an int, or another integer such as those of numpy, but never a bool.

Python does not write an int of more than 4,300 digits as text, and shorter ones can fill a page. So errors show a long
integer by the number of its digits.
"""

from __future__ import annotations

import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
#: Characters of a value that an error shows. An integer of 64 bits has at most 20.
SHOWN_CHARACTERS = 100
#: Bits of the longest integer that an error shows with its digits.
_SHOWN_BITS = 256
#: Decimal digits of one bit.
_DIGITS_PER_BIT = 0.30103


def as_integer(value: Any) -> int | None:
    """Return an integer as an int, None for a bool and for any other value."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def shown(value: object) -> str:
    """Return the text of a value for an error message. A long integer is shown by its number of digits, and any other
    long repr is cut to SHOWN_CHARACTERS."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        sign = "negative " if value < 0 else ""
        return f"<{sign}integer of about {int(value.bit_length() * _DIGITS_PER_BIT) + 1} digits>"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def checked_integer(name: str, value: object, least: int, most: int | None = None, *, expected: str = "an int") -> int:
    """Return an argument as an int. Raise TypeError for a value that is not an integer, ValueError outside of the
    range.

    expected: what the argument is, for the TypeError.
    """
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{name} must be {expected}, not {shown(value)} of type {type(value).__name__}")
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} must be {bounds}, not {shown(number)}")
    return number
