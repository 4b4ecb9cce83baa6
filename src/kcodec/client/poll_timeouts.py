# SPDX-License-Identifier: Apache-2.0
"""Check of the argument `timeout` of a poll, which is in seconds. A hint is logged if a program has probably passed
milliseconds."""

from __future__ import annotations

import logging

from kcodec.arguments import check_seconds
from kcodec.quantities import number_text

log = logging.getLogger("kcodec.consumer")
#: A longer timeout is valid, but the program probably means milliseconds, as for kafka-python and Java.
LONG_POLL_SECONDS = 600.0
_hinted: set[str] = set()


def check_poll(timeout: float | None, call: str = "poll") -> None:
    """Raise TypeError if the timeout is neither a number of seconds nor None, and ValueError if it is NaN. Log a
    warning for the first timeout of the process that is longer than LONG_POLL_SECONDS.

    call: Name of the method. The warning is logged once for each method.
    """
    check_seconds(timeout, call)
    if timeout is not None and timeout > LONG_POLL_SECONDS and call not in _hinted:
        _hinted.add(call)
        log.warning(
            "%s(timeout=%s) waits for up to %s minutes, as timeouts are in seconds: pass %s if milliseconds were meant,"
            " or None to wait without a limit",
            call,
            number_text(timeout),
            number_text(round(timeout / 60, 1)),
            number_text(timeout / 1000),
        )
