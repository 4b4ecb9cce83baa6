# SPDX-License-Identifier: Apache-2.0
"""Log records of one line each, whatever names and messages brokers send.

Topic names, member ids, host names and messages come from other programs. A line break in one of them would begin a
line that looks like a log line of this client. The filter below is installed on every logger of the clients, so that
individual log calls need no check.
"""

from __future__ import annotations

import logging

from kcodec.errors import one_line

#: Every logger that flows and clients use.
LOGGERS = ("client", "consumer", "producer", "session", "transactions")


class OneLine(logging.Filter):
    """Escape unprintable characters in the message of a record. A message without any keeps its arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record is logged."""
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = one_line(text), None
        return True


def escape_logs() -> None:
    """Install the filter once on each logger."""
    for name in LOGGERS:
        logger = logging.getLogger(f"kcodec.{name}")
        if not any(isinstance(each, OneLine) for each in logger.filters):
            logger.addFilter(OneLine())
