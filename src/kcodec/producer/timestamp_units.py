# SPDX-License-Identifier: Apache-2.0
"""Timestamps of records that a program passes in seconds instead of milliseconds.

Such a timestamp is valid, but as milliseconds it is a time near 1970. A broker then deletes the record as soon as the
retention of the topic is checked.
"""

from __future__ import annotations

import logging

from kcodec.integers import as_integer

log = logging.getLogger("kcodec.producer")
#: Numbers that are times from 2001 to 5138 in seconds, and from 1970 to 1973 in milliseconds.
FIRST_SECONDS, END_OF_SECONDS = 10**9, 10**11


def warn_of_seconds(topic: str, timestamp: int) -> bool:
    """Log a warning if a timestamp is probably in seconds. Return whether it is."""
    number = as_integer(timestamp)
    if number is None or not FIRST_SECONDS <= number < END_OF_SECONDS:
        return False
    log.warning(
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
