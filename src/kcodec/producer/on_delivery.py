# SPDX-License-Identifier: Apache-2.0
"""The function `on_delivery` of a send, called as Java's Callback.onCompletion: with the metadata or with the error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from inspect import CO_COROUTINE, iscoroutine, iscoroutinefunction
from types import CodeType
from typing import TYPE_CHECKING, Any

from kcodec.arguments import check_error_is_last
from kcodec.errors import TransportError
from kcodec.network.callbacks import CALLBACK_ERRORS

if TYPE_CHECKING:
    from kcodec.producer.delivery import Delivery, OnDelivery

log = logging.getLogger("kcodec.producer")


#: The code of the last function that was checked. Most programs pass the same function for each record.
_checked: CodeType | None = None


def check_on_delivery(on_delivery: object) -> None:
    """Raise TypeError before the record is sent if `on_delivery` is not a plain function, or expects the error
    first."""
    global _checked  # a race of two threads only repeats a check
    code: CodeType | None = getattr(on_delivery, "__code__", None)
    if code is not None and code is _checked:
        return  # the usual case, for each record
    check_error_is_last(on_delivery, "on_delivery", "metadata")
    if code is not None and not code.co_flags & CO_COROUTINE:
        _checked = code
        return
    if not callable(on_delivery):
        raise TypeError(
            "on_delivery must be a function that takes the metadata and the error of the record, not "
            f"{on_delivery!r:.100} of type {type(on_delivery).__name__}"
        )
    if iscoroutinefunction(on_delivery):
        raise _not_plain(on_delivery)


def _not_plain(on_delivery: object) -> TypeError:
    return TypeError(f"on_delivery must be a plain function, not the coroutine function {on_delivery!r:.100}")


def call_on_delivery(delivery: Delivery, on_delivery: OnDelivery, post: Callable[[Callable[[], None]], None]) -> None:
    """Call `on_delivery` when the outcome of the record is known, but never within the call of `send`.

    post: Runs a function on the I/O thread, or in the event loop. The outcome may be known before this call.
    """
    report = partial(_report, on_delivery)
    if delivery._register(report):
        return
    try:
        post(partial(_report_and_log, [report], delivery))
    except TransportError:  # the producer is closed, and has no I/O thread any more
        _report_and_log([report], delivery)


def _report(on_delivery: OnDelivery, delivery: Delivery) -> None:
    outcome = delivery._batch.outcome  # None if the record has moved to another batch
    error = None if outcome is not None and outcome.error is None else delivery.error
    try:
        result: Any = on_delivery(None, error) if error is not None else on_delivery(delivery.outcome(), None)
        if result is not None and iscoroutine(result):
            result.close()
            raise _not_plain(on_delivery)
    except BaseException:
        if error is not None:  # otherwise the log had only the exception of the function, and no trace of the record
            delivery._not_retrieved()
        raise


def _report_and_log(reports: list[Callable[[Delivery], None]], delivery: Delivery) -> None:
    """Call what `reports` contains, and remove it first, as this runs again if Ctrl-C in asyncio interrupts it."""
    try:
        while reports:
            reports.pop()(delivery)
    except CALLBACK_ERRORS:
        log.exception("a callback of a delivery to %s failed", delivery.topic)
