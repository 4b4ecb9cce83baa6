# SPDX-License-Identifier: Apache-2.0
"""The function `on_delivery` of a send, called as Java's Callback.onCompletion: with the metadata or with the error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from kcodec.errors import TransportError

if TYPE_CHECKING:
    from kcodec.producer.delivery import Delivery, OnDelivery

log = logging.getLogger("kcodec.producer")


def check_on_delivery(on_delivery: object) -> None:
    """Raise TypeError unless it can be called; before the record is sent."""
    if not callable(on_delivery):
        raise TypeError(
            "on_delivery must be a function that takes the metadata and the error of the record, not "
            f"{on_delivery!r:.100} of type {type(on_delivery).__name__}"
        )


def call_on_delivery(delivery: Delivery, on_delivery: OnDelivery, post: Callable[[Callable[[], None]], None]) -> None:
    """Call `on_delivery` once the record has ended, never in the caller of `send`.

    post: runs a function on the I/O thread, or in the event loop. A record may have ended before this call.
    """
    report = partial(_report, on_delivery)
    if delivery._register(report):
        return
    try:
        post(partial(_report_and_log, report, delivery))
    except TransportError:  # the producer is closed, and has no I/O thread any more
        _report_and_log(report, delivery)


def _report(on_delivery: OnDelivery, delivery: Delivery) -> None:
    error = delivery.error
    result: Any = on_delivery(None, error) if error is not None else on_delivery(delivery.outcome(), None)
    if iscoroutine(result):
        result.close()
        raise TypeError(f"on_delivery must be a plain function, not the coroutine function {on_delivery!r:.100}")


def _report_and_log(report: Callable[[Delivery], None], delivery: Delivery) -> None:
    try:
        report(delivery)
    except Exception:
        log.exception("a callback of a delivery to %s failed", delivery.topic)
