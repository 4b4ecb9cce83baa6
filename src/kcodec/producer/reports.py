# SPDX-License-Identifier: Apache-2.0
"""Warnings of a running producer: records that are not acknowledged, with the cause, and failed records whose error was
not retrieved. The intervals between warnings are defined here and in `kcodec.producer.failures`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kcodec.errors import KcodecError
from kcodec.producer.failures import MAX_SHOWN, records_text

if TYPE_CHECKING:
    from kcodec.producer.accumulator import Accumulator
    from kcodec.producer.batch import ProducerBatch

log = logging.getLogger("kcodec.producer")
#: A record that is not acknowledged after this time is reported, if a cause is known.
STALLED_SECONDS = 3.0
#: Seconds between two such reports: the first interval, doubled each time up to the second.
FIRST_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 5.0, 300.0


class Reports:
    """The warnings of one producer. Called on the I/O thread, without the lock."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._interval = FIRST_INTERVAL_SECONDS
        self._stalled_at = self._stalled_due = float("-inf")

    def look(self, now: float) -> float:
        """Log the warnings that are due. Return the time of the next call, or infinity if only an event requires
        one."""
        accumulator, failures = self._accumulator, self._accumulator.failures
        if failures is None or not failures.is_news:  # the usual case, in every round
            if not accumulator.unfinished:
                return float("inf")
            if now < self._stalled_due:  # newer batches are due later
                return self._stalled_due
        failed, text, due = None, None, float("inf")
        with accumulator.lock:
            if failures is not None:
                failed, due = failures.report(now)
            if accumulator.unfinished:
                text, self._stalled_due = self._stalled(next(iter(accumulator.unfinished)), now)
                due = min(due, self._stalled_due)
        for line in (failed, text):
            if line is not None:
                log.warning("%s", line)
        return due

    def _stalled(self, oldest: ProducerBatch, now: float) -> tuple[str | None, float]:
        if oldest.created > self._stalled_at:
            self._interval = FIRST_INTERVAL_SECONDS
            due = oldest.created + STALLED_SECONDS
        else:
            due = self._stalled_at + self._interval
        if now < due:
            return None, due
        why = self._accumulator.why_waiting(oldest)
        if why is None:
            return None, now + STALLED_SECONDS
        if oldest.created <= self._stalled_at:
            self._interval = min(2 * self._interval, MAX_INTERVAL_SECONDS)
        self._stalled_at = now
        unfinished = self._accumulator.unfinished
        waiting, age = waiting_text(unfinished), now - oldest.created
        others = any(batch.topic != oldest.topic for batch in unfinished)
        which = f"the oldest, of topic {oldest.topic!r}: " if others else ""
        return f"{waiting} not acknowledged after {age:.3g} s: {which}{why}", now + self._interval


class CloseReport:
    """The records that a close waits for, and their outcome. Methods are called without the lock."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._batches: list[ProducerBatch] = []

    def begin(self) -> None:
        """Note the records that have not ended yet."""
        with self._accumulator.lock:
            self._batches = list(self._accumulator.unfinished)

    def outcome(self) -> str:
        """Return the number of these records that were delivered, that failed, and that got no response."""
        delivered = failed = uncertain = 0
        seen: set[int] = set()
        with self._accumulator.lock:
            batches = list(self._batches)
            while batches:
                batch = batches.pop()
                if id(batch) in seen:  # the records of several placeholders may be in one batch
                    continue
                seen.add(id(batch))
                if batch.pieces:
                    batches.extend(piece for _, piece, _ in batch.pieces)
                elif batch.is_done and batch.error is None:
                    delivered += batch.unfinished_records
                elif isinstance(batch.error, KcodecError) and batch.error.possibly_sent:
                    uncertain += batch.unfinished_records
                else:
                    failed += batch.unfinished_records
        hint = "; do not send the delivered ones again" if delivered else ""
        unknown = f", {uncertain} not acknowledged (brokers may have stored them)" if uncertain else ""
        return f"end of the wait: {records_text(delivered)} delivered, {failed} failed{unknown}{hint}"


def waiting_text(batches: Collection[ProducerBatch]) -> str:
    """Return a text with the number of records in these batches and their topics."""
    count = sum(batch.unfinished_records for batch in batches)
    topics = list(dict.fromkeys(batch.topic for batch in batches))
    names = ", ".join(repr(topic) for topic in topics[:MAX_SHOWN])
    more = f" and {len(topics) - MAX_SHOWN} more" if len(topics) > MAX_SHOWN else ""
    return f"{records_text(count)} of topic{'s' if len(topics) > 1 else ''} {names}{more}"


def log_still_sent(accumulator: Accumulator, producer_name: str) -> None:
    """Log that a producer which was not closed still sends its records. As for `log_lost`, do not take the lock."""
    unfinished = list(accumulator.unfinished)
    if unfinished:
        log.warning(
            "%s was not closed. It still sends its records in the background, and only logs their errors: %s",
            producer_name,
            waiting_text(unfinished),
        )


def log_lost(accumulator: Accumulator, producer_name: str, *, is_transaction_open: bool) -> None:
    """Log the losses of a producer that was not closed: unfinished records, records of an open transaction, and
    failures whose error was not retrieved. Do not take the lock, because the garbage collector may call this in a
    thread that holds it."""
    unfinished = list(accumulator.unfinished)
    if unfinished:
        log.warning(
            "%s was not closed, and its unacknowledged records may be lost: %s",
            producer_name,
            waiting_text(unfinished),
        )
    if is_transaction_open:
        log.warning(
            "%s was not closed, and its transaction was neither committed nor aborted: no read_committed reader will"
            " get its records",
            producer_name,
        )
    failed = accumulator.failures.report_now() if accumulator.failures is not None else None
    if failed is not None:
        log.warning("%s was not closed: %s", producer_name, failed)
