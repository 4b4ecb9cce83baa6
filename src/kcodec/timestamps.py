# SPDX-License-Identifier: Apache-2.0
"""Timestamps of arguments and options, which are in milliseconds since 1970.

A number in another unit is valid, but it selects all records or none. A hint is logged for it, as records may also have
such timestamps.
"""

from __future__ import annotations

import logging

log = logging.getLogger("kcodec.reading")
#: Numbers from FIRST_SECONDS on and below END_OF_SECONDS are times of the years 2001 to 2286 in seconds.
FIRST_SECONDS, END_OF_SECONDS = 10**9, 10**10
#: From these numbers on, a timestamp is probably in microseconds or in nanoseconds.
FIRST_MICROSECONDS, FIRST_NANOSECONDS = 10**14, 10**17
HIGHEST_NANOSECONDS = 10**19
#: A process logs hints for at most this number of different timestamps.
MAX_HINTS = 100
_hinted: set[int] = set()


def unit_hint(when: int | None) -> str:
    """Return a note about a timestamp that is probably not in milliseconds, with a leading semicolon; "" otherwise."""
    if when is None:
        return ""
    if FIRST_SECONDS <= when < END_OF_SECONDS:
        unit, meant = "seconds", when * 1000
    elif FIRST_MICROSECONDS <= when < FIRST_NANOSECONDS:
        unit, meant = "microseconds", when // 1000
    elif FIRST_NANOSECONDS <= when < HIGHEST_NANOSECONDS:
        unit, meant = "nanoseconds", when // 1_000_000
    else:
        return ""
    return (
        f"; timestamps are in milliseconds, and this number looks like {unit}; the same time in milliseconds is {meant}"
    )


def warn_of_unit(what: str, when: int) -> None:
    """Log a warning about a timestamp that is probably not in milliseconds, once for each number.

    what: Name of the argument or option.
    """
    hint = unit_hint(when)
    if hint and when not in _hinted and len(_hinted) < MAX_HINTS:
        _hinted.add(when)
        log.warning("%s: the timestamp %d is used unchanged%s", what, when, hint)
