# SPDX-License-Identifier: Apache-2.0
"""Timestamps that a program probably passes in a unit other than milliseconds since 1970.

A number in another unit is valid. As an argument or an option, it selects all records or none. As the timestamp of a
record, a number in seconds is a time near 1970, and a broker deletes the record as soon as it checks the retention of
the topic. kcodec logs a warning and raises no error, because records can really have such timestamps.
"""

from __future__ import annotations

import logging

from kcodec.integers import as_integer

log = logging.getLogger("kcodec.reading")
producer_log = logging.getLogger("kcodec.producer")
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


def warn_of_seconds(topic: str, timestamp: int) -> bool:
    """Log a warning if the timestamp of a record is probably in seconds. Return whether it is."""
    number = as_integer(timestamp)
    if number is None or not FIRST_SECONDS <= number < END_OF_SECONDS:
        return False
    producer_log.warning(
        "topic %r: the timestamp %d is probably in seconds (%s), but send() takes milliseconds (%s), so that the "
        "retention of the topic may delete the record immediately; pass int(time.time() * 1000), or omit the timestamp "
        "to use the current time. This producer logs this only once",
        topic,
        number,
        _date(number * 1000),
        _date(number),
    )
    return True


def _date(milliseconds: int) -> str:
    import datetime  # it takes some milliseconds, and few programs need it

    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (epoch + datetime.timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%d %H:%M:%S UTC")
