# SPDX-License-Identifier: Apache-2.0
"""What the end of a client's `with` block does after an exception: the duration of its waits, and what it logs. Both
the sync API and the asyncio API use this."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kcodec.errors import KcodecError, TransportError
from kcodec.flow import Flow, InterruptedFlow, sleep, spawn
from kcodec.quantities import seconds_text

if TYPE_CHECKING:
    from kcodec.cluster.metadata import Cluster
    from kcodec.errors import DeliveryErrors

T = TypeVar("T")
log = logging.getLogger("kcodec.producer")
#: Maximum time that a program that is ending (Ctrl-C) waits for the close of a client: for records that are not
#: acknowledged, for the abort of a transaction, and for leaving the group.
INTERRUPTED_CLOSE_SECONDS = 3.0
#: Maximum time for the close of a transactional client after a connection error, while no broker responds. Earlier
#: calls have already waited for the brokers.
UNREACHABLE_CLOSE_SECONDS = 3.0
#: Time after which a close after an exception logs what it waits for.
ANNOUNCED_SECONDS = 0.5
#: Time after which the close of a consumer or a session without an exception logs what it waits for.
CLOSE_ANNOUNCED_SECONDS = 3.0
#: Maximum number of characters of an exception in such a log line.
MAX_ERROR_CHARACTERS = 300


def is_interruption(error: BaseException) -> bool:
    """Return whether the exception ends the program or the task: KeyboardInterrupt, SystemExit, CancelledError.
    GeneratorExit, which closes a generator, does not count."""
    return not isinstance(error, Exception | GeneratorExit)


def has_interrupted(error: BaseException) -> bool:
    """Return whether the exception is an interruption of the caller, as in `is_interruption`, or of a flow on which the
    caller depends. In asyncio, Ctrl-C can interrupt any flow, and the event loop raises the KeyboardInterrupt."""
    return is_interruption(error) or isinstance(error, InterruptedFlow)


def limited_seconds(error: BaseException | None, limit: float = INTERRUPTED_CLOSE_SECONDS) -> float | None:
    """Return the limit in seconds if the program is ending, otherwise None. After a second Ctrl-C, the limit is 0.
    Python raises the second KeyboardInterrupt while the first one leaves the block, so the first one is its context."""
    if error is None or not is_interruption(error):
        return None
    is_second = isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, KeyboardInterrupt)
    return 0.0 if is_second else limit


def closing_seconds(error: BaseException | None, cluster: Cluster, default: float) -> float:
    """Return the timeout in seconds for the close of a session or a transactional producer after `error`."""
    limit = limited_seconds(error)
    if limit is not None:
        return limit
    is_unreachable = isinstance(error, TransportError) and cluster.last_error is not None
    return min(default, UNREACHABLE_CLOSE_SECONDS) if is_unreachable else default


def waiting_line(error: BaseException | None, seconds: float, what: str) -> str:
    """Return the log line of a close that waits up to `seconds` for `what` after `error`. The line contains the text of
    the error only if it is an error of kcodec, because other texts may contain the content of a record."""
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

    what:      Function that returns a text that describes what the close waits for, or None if it waits for nothing.
    logger:    Name of the logger.
    outcome:   Function that returns the text to log at the end of a wait that was logged.
    is_always: Whether to log a wait without an exception, too. This is logged after CLOSE_ANNOUNCED_SECONDS.
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
    """Log a wait after it has lasted for some time. Return whether there was something to log."""
    yield from sleep(CLOSE_ANNOUNCED_SECONDS if error is None else ANNOUNCED_SECONDS)
    text = what()
    if text is not None:
        logging.getLogger(logger).warning("%s", waiting_line(error, seconds, text))
    return text is not None


def abort_of(transactional_id: str | None) -> Callable[[], str]:
    """Return a function that returns a text that describes what the end of a transaction block waits for."""
    return lambda: f"the abort of the transaction of {transactional_id!r}"


def note_failures(error: BaseException, failures: DeliveryErrors | None) -> None:
    """Add a note about the undelivered records to an exception. If the program is ending, log the text instead, because
    such an exception is rarely shown with its notes."""
    if failures is None:
        return
    if isinstance(error, Exception):
        error.add_note(failures.message)
    else:
        log.warning("%s", failures.message)
