# SPDX-License-Identifier: Apache-2.0
"""The argument `timeout` of a poll: seconds, with a hint for a program that has passed milliseconds."""

from __future__ import annotations

import logging

from kcodec.arguments import check_seconds
from kcodec.quantities import number_text

log = logging.getLogger("kcodec.consumer")
#: A longer poll is legal, but milliseconds were probably meant, as kafka-python and Java take them.
LONG_POLL_SECONDS = 600.0
_hinted: set[str] = set()


def check_poll(timeout: float | None, call: str = "poll") -> None:
    """Raise TypeError for anything but a number of seconds or None, and ValueError for NaN. Log the first poll of the
    process that is longer than LONG_POLL_SECONDS."""
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
