# SPDX-License-Identifier: Apache-2.0
"""The end of a client's block that an exception leaves, for threads and asyncio: how long it waits, what it logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kcodec.errors import KcodecError, TransportError
from kcodec.flow import Flow, sleep, spawn
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster
    from kcodec.errors import DeliveryErrors

T = TypeVar("T")
log = logging.getLogger("kcodec.producer")
#: A program that is being ended (Ctrl-C) waits this long for the close of a client: for records that are not
#: acknowledged, for the abort of a transaction, for leaving the group.
INTERRUPTED_CLOSE_SECONDS = 3.0
#: A transaction block that such an exception leaves gets this long for its abort, before the close of the client.
INTERRUPTED_ABORT_SECONDS = 1.5
#: The same limit for the close of a transactional client after an error of the connection to the brokers, while no
#: broker responds: the calls before have waited for the brokers.
UNREACHABLE_CLOSE_SECONDS = 3.0
#: A close that takes longer than this after an exception logs what it waits for.
ANNOUNCED_SECONDS = 0.5
#: The close of a consumer or a session that no exception causes logs it after this time.
CLOSE_ANNOUNCED_SECONDS = 3.0
#: Characters of an exception that such a line shows.
MAX_ERROR_CHARACTERS = 300


def is_interruption(error: BaseException) -> bool:
    """Return whether the program, or the task, is being ended: KeyboardInterrupt, SystemExit, CancelledError. Closing a
    generator (GeneratorExit) does not count."""
    return not isinstance(error, Exception | GeneratorExit)


def limited_seconds(error: BaseException | None, limit: float = INTERRUPTED_CLOSE_SECONDS) -> float | None:
    """Return the limit if the program is being ended, otherwise None. The limit after a second Ctrl-C is 0: Python
    raises it while the first one leaves the block, so that the first one is its context."""
    if error is None or not is_interruption(error):
        return None
    is_second = isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, KeyboardInterrupt)
    return 0.0 if is_second else limit


def closing_seconds(error: BaseException | None, cluster: Cluster, default: float) -> float:
    """Return the timeout of the close of a session after `error`."""
    limit = limited_seconds(error)
    if limit is not None:
        return limit
    is_unreachable = isinstance(error, TransportError) and cluster.last_error is not None
    return min(default, UNREACHABLE_CLOSE_SECONDS) if is_unreachable else default


def waiting_line(error: BaseException | None, seconds: float, what: str) -> str:
    """Return the log line of a close that waits up to `seconds` for `what` after `error`. It has the text of kcodec's
    own errors only, as another one may contain the content of a record."""
    if error is None:
        return f"close: waiting up to {seconds_text(seconds)} for {what}"
    name = type(error).__name__
    if is_interruption(error):
        again = "; press Ctrl-C again to end at once" if isinstance(error, KeyboardInterrupt) else ""
        return f"{name}: waiting up to {seconds_text(seconds)} for {what}{again}"
    if isinstance(error, KcodecError):
        text = " ".join(str(error).split())
        name += ": " + (text if len(text) <= MAX_ERROR_CHARACTERS else text[: MAX_ERROR_CHARACTERS - 3] + "...")
    return (
        f"an exception ends the `with` block, and the end of the block waits up to {seconds_text(seconds)} for {what}. "
        f"To end sooner, press Ctrl-C, or call close(timeout=...) in the block. The exception: {name}"
    )


def announced(
    flow: Flow[T],
    error: BaseException | None,
    seconds: float,
    what: Callable[[], str | None],
    logger: str,
    *,
    outcome: Callable[[], str] | None = None,
    is_always: bool = False,
) -> Flow[T]:
    """Run the flow of a close that takes up to `seconds` after `error`. If it takes longer than ANNOUNCED_SECONDS, log
    what it waits for.

    what:      returns that text, None for nothing. logger: the name of the logger.
    outcome:   returns the text to log at the end of a wait that was logged.
    is_always: log a wait without an exception, too, after CLOSE_ANNOUNCED_SECONDS.
    """
    if error is None and not is_always:
        return (yield from flow)
    announcement = yield from spawn(_announce(error, seconds, what, logger), "announcement")
    try:
        return (yield from flow)
    finally:
        announcement.cancel()
        if announcement.result and outcome is not None:
            logging.getLogger(logger).warning("%s", outcome())


def _announce(error: BaseException | None, seconds: float, what: Callable[[], str | None], logger: str) -> Flow[bool]:
    """Log a wait that has lasted; return whether there was something to log."""
    yield from sleep(CLOSE_ANNOUNCED_SECONDS if error is None else ANNOUNCED_SECONDS)
    text = what()
    if text is not None:
        logging.getLogger(logger).warning("%s", waiting_line(error, seconds, text))
    return text is not None


def abort_of(transactional_id: str | None) -> Callable[[], str]:
    """Return a function that returns what the end of a transaction block waits for."""
    return lambda: f"the abort of the transaction of {transactional_id!r}"


def note_failures(error: BaseException, failures: DeliveryErrors | None) -> None:
    """Add the undelivered records to an exception as a note. If the program is being ended, log them instead, as such
    an exception is rarely shown with its notes."""
    if failures is None:
        return
    if isinstance(error, Exception):
        error.add_note(failures.message)
    else:
        log.warning("%s", failures.message)
