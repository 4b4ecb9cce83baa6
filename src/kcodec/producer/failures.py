# SPDX-License-Identifier: Apache-2.0
"""Failed records whose error was not retrieved, counted for `flush`, `close` and the log.

Counts are kept by topic and kind of error, not by record, so their memory is bounded. A batch counts its records when
it fails, except those that a caller waits for or that have a callback. A Delivery whose error is read later subtracts
its record again. Batches that succeed are not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kcodec.errors import (
    BrokerError,
    DeliveryErrors,
    KcodecError,
    TopicDeliveryError,
    one_line,
)

#: Seconds between a failure and its line in the log: until then a program may retrieve the error.
REPORT_DELAY_SECONDS = 1.0
#: Seconds between two such lines of one producer.
REPORT_INTERVAL_SECONDS = 30.0
#: In place of the index of a record in its batch: all records of the batch.
WHOLE = -1
#: Topics that a line of the log names; the others are counted.
MAX_SHOWN = 5
#: Failures that an error or a line of the log describes; of the others, the records are counted by kind of error.
MAX_DESCRIBED = 3
#: Characters of each error in such a text. The errors themselves, with their whole texts, are in `exceptions`.
MAX_ERROR_TEXT = 300


@dataclass(eq=False, slots=True)
class Failure:
    """Records of one topic that failed with one kind of error.

    count:  Number of records whose error was not retrieved.
    logged: Number of these records that the log has reported.
    is_uncertain: Whether brokers may have stored them, because a request got no response, for example.
    """

    topic: str
    kind: str
    error: BaseException
    count: int = 0
    logged: int = 0
    is_uncertain: bool = False

    def retrieved(self, count: int) -> None:
        """Subtract records from the count."""
        self.count -= count
        self.logged = min(self.logged, self.count)

    def describe(self, count: int, most: int | None = None) -> str:
        """Return a text about `count` of its records, with at most `most` characters of the error."""
        return f"topic {self.topic!r}: {records_text(count)} failed with {self.kind}: {one_line(str(self.error), most)}"

    def as_error(self) -> TopicDeliveryError:
        """Return the failure as a member of DeliveryErrors."""
        remedy = self.error.remedy if isinstance(self.error, KcodecError) else None
        error = TopicDeliveryError(
            self.describe(self.count), topic=self.topic, kind=self.kind, count=self.count, remedy=remedy
        )
        error.possibly_sent = self.is_uncertain
        error.__cause__ = self.error
        return error


class Failures:
    """The failures of one producer since the last `take`. Every method needs the producer's lock.

    is_news: Whether there may be failures that the log has not reported.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, bool], Failure] = {}
        self.is_news = False
        self._report_at: float | None = None
        self._reported_at = float("-inf")

    def add(self, topic: str, error: BaseException, count: int) -> Failure:
        """Count records that failed with this error."""
        kind = error.name if isinstance(error, BrokerError) else type(error).__name__
        is_uncertain = isinstance(error, KcodecError) and error.possibly_sent
        failure = self._open.get((topic, kind, is_uncertain))
        if failure is None:
            failure = Failure(topic, kind, error, is_uncertain=is_uncertain)
            self._open[topic, kind, is_uncertain] = failure
        if not failure.count:
            failure.error = error
        failure.count += count
        self.is_news = self.is_news or count > 0
        return failure

    def take(self) -> DeliveryErrors | None:
        """Return the error for all failures since the last call, and reset the counts."""
        found = [failure for failure in self._open.values() if failure.count > 0]
        self._open, self.is_news, self._report_at = {}, False, None
        if not found:
            return None
        counts = [(failure, failure.count) for failure in found]
        return DeliveryErrors(f"{_undelivered(counts)}: {_summary(counts)}", [failure.as_error() for failure in found])

    def report(self, now: float) -> tuple[str | None, float]:
        """Return the log line that is due now, if any, and the time of the next one, or infinity if none is
        expected."""
        if not self.is_news:
            return None, float("inf")
        if self._report_at is None:
            self._report_at = max(now + REPORT_DELAY_SECONDS, self._reported_at + REPORT_INTERVAL_SECONDS)
        if now < self._report_at:
            return None, self._report_at
        self.is_news, self._report_at = False, None
        text = self.report_now()
        if text is not None:
            self._reported_at = now
        return text, float("inf")

    def report_now(self) -> str | None:
        """Return the log line about failures not reported yet; None if there are none."""
        news = [failure for failure in list(self._open.values()) if failure.count > failure.logged]
        if not news:
            return None
        counts = [(failure, failure.count - failure.logged) for failure in news]
        for failure in news:
            failure.logged = failure.count
        return f"{_undelivered(counts)}, and their errors were not retrieved: {_summary(counts)}"


class FailedRecords:
    """The records of a failed batch, and the indexes of those whose error was retrieved (WHOLE: all). Used under the
    lock.

    The records whose index is in `retrieved` are not counted: a caller waits for them, or has a callback.
    """

    __slots__ = ("_count", "_error", "_failure", "_failures", "_retrieved", "_topic")

    def __init__(self, failures: Failures, topic: str, error: BaseException, count: int, retrieved: set[int]) -> None:
        self._failures = failures
        self._topic = topic
        self._error = error
        self._count = count
        self._retrieved = retrieved
        self._failure = failures.add(topic, error, 0 if WHOLE in retrieved else count - len(retrieved))

    def retrieve(self, index: int) -> None:
        """Note that the error of this record was retrieved."""
        if index not in self._retrieved:
            self._retrieved.add(index)
            self._failure.retrieved(self._count if index == WHOLE else 1)

    def not_retrieved(self, index: int) -> None:
        """Note that a caller stopped waiting for this record without retrieving its error."""
        if index in self._retrieved:
            self._retrieved.discard(index)
            self._failure = self._failures.add(self._topic, self._error, self._count if index == WHOLE else 1)


def records_text(count: int) -> str:
    """Return "1 record" or "7 records"."""
    return f"{count} record" if count == 1 else f"{count} records"


def _undelivered(counts: Sequence[tuple[Failure, int]]) -> str:
    """Return a text with the number of records, and the number of those that brokers may have stored nevertheless. A
    program that sends these again may write them twice."""
    total = sum(count for _, count in counts)
    uncertain = sum(count for failure, count in counts if failure.is_uncertain)
    if not uncertain:
        return f"{records_text(total)} not delivered"
    stored = "brokers may have stored " + (("it" if total == 1 else "them") if uncertain == total else str(uncertain))
    return f"{records_text(total)} not acknowledged ({stored})"


def _summary(counts: Sequence[tuple[Failure, int]]) -> str:
    """Return a text of bounded length about some records of each failure."""
    shown = [failure.describe(count, MAX_ERROR_TEXT) for failure, count in counts[:MAX_DESCRIBED]]
    others: Counter[str] = Counter()
    for failure, count in counts[MAX_DESCRIBED:]:
        others[failure.kind] += count
    if others:
        kinds = ", ".join(f"{kind} ({records_text(count)})" for kind, count in others.most_common(MAX_DESCRIBED))
        more = f" and {len(others) - MAX_DESCRIBED} more kinds" if len(others) > MAX_DESCRIBED else ""
        shown.append(f"and {len(counts) - MAX_DESCRIBED} more topics or kinds of error: {kinds}{more}")
    return "; ".join(shown)
