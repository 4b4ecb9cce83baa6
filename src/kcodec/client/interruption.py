# SPDX-License-Identifier: Apache-2.0
"""The end of a producer's block that an exception leaves, for threads and asyncio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcodec.errors import DeliveryErrors
    from kcodec.producer.core import ProducerCore

log = logging.getLogger("kcodec.producer")
#: A program that is being ended (Ctrl-C) waits this long for records that are not acknowledged.
INTERRUPTED_CLOSE_SECONDS = 3.0
#: A transaction block that such an exception leaves gets this long for its abort, before the close of the producer.
INTERRUPTED_ABORT_SECONDS = 1.5


def is_interruption(error: BaseException) -> bool:
    """Return whether the program, or the task, is being ended: KeyboardInterrupt, SystemExit, CancelledError. Closing a
    generator (GeneratorExit) does not count."""
    return not isinstance(error, Exception | GeneratorExit)


def interrupted_timeout(error: BaseException, core: ProducerCore) -> float | None:
    """Return the timeout of a close after `error`: None, or a few seconds if the program is being ended. In that case
    log what the close waits for."""
    if not is_interruption(error):
        return None
    waiting = core.waiting_text()
    if waiting is not None:
        log.warning("%s: waiting up to %g s for %s", type(error).__name__, INTERRUPTED_CLOSE_SECONDS, waiting)
    return INTERRUPTED_CLOSE_SECONDS


def note_failures(error: BaseException, failures: DeliveryErrors | None) -> None:
    """Add the undelivered records to an exception as a note. If the program is being ended, also log them, as such an
    exception is rarely shown with its notes."""
    if failures is None:
        return
    error.add_note(failures.message)
    if not isinstance(error, Exception):
        log.warning("%s", failures.message)
