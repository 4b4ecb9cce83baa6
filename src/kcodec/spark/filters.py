# SPDX-License-Identifier: Apache-2.0
"""Pruning by Spark's filters: the partitions, and the offsets at both ends of a range, that need not be read.

Spark 4.1 and newer passes the conditions of a query on single columns, if ``spark.sql.python.filterPushdown.enabled``
and the option ``pushdown`` are set. Spark still applies every condition to each row that is read. A condition that this
module does not understand therefore only costs time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

EQUALITIES = ("EqualTo", "EqualNullSafe", "In")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Pruning:
    """Bounds on what can pass the filters; None if there is no bound.

    start_offset, end_offset: records in [start_offset, end_offset).
    min_timestamp:            records of this timestamp or a later one, in milliseconds.
    """

    start_offset: int | None = None
    end_offset: int | None = None
    min_timestamp: int | None = None
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def admits(self, topic: str | None, partition: int | None) -> bool:
        """Return whether records of this partition can pass."""
        topic_passes = self.topics is None or topic in self.topics
        return topic_passes and (self.partitions is None or partition in self.partitions)


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """Return the bounds that all of the filters together set."""
    pruning = Pruning()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        kind, value = type(each).__name__, getattr(each, "value", None)
        if len(attribute) == 1 and value is not None:
            pruning = _narrowed(pruning, attribute[0], kind, value)
    return pruning


def _narrowed(pruning: Pruning, column: str, kind: str, value: object) -> Pruning:
    values = value if kind == "In" and isinstance(value, tuple) else (value,)
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        earliest = _earliest_millisecond(kind, value)
        if earliest is not None:
            return replace(pruning, min_timestamp=_highest(pruning.min_timestamp, earliest))
    if column == "topic" and kind in EQUALITIES:
        topics = frozenset(name for name in values if isinstance(name, str))
        return replace(pruning, topics=topics if pruning.topics is None else topics & pruning.topics)
    numbers = [number for number in values if isinstance(number, int)]
    if len(numbers) != len(values) or not numbers:
        return pruning
    if column == "partition" and kind in EQUALITIES:
        partitions = frozenset(numbers)
        if pruning.partitions is not None:
            partitions &= pruning.partitions
        return replace(pruning, partitions=partitions)
    if column == "offset":
        return _narrowed_offsets(pruning, kind, min(numbers), max(numbers))
    return pruning


def _narrowed_offsets(pruning: Pruning, kind: str, low: int, high: int) -> Pruning:
    start = {"GreaterThan": low + 1, "GreaterThanOrEqual": low}.get(kind)
    end = {"LessThan": high, "LessThanOrEqual": high + 1}.get(kind)
    if kind in EQUALITIES:
        start, end = low, high + 1
    if start is not None:
        pruning = replace(pruning, start_offset=_highest(pruning.start_offset, start))
    if end is not None:
        pruning = replace(pruning, end_offset=end if pruning.end_offset is None else min(end, pruning.end_offset))
    return pruning


def _highest(bound: int | None, other: int) -> int:
    return other if bound is None else max(bound, other)


def _earliest_millisecond(kind: str, value: datetime) -> int | None:
    """Return the first millisecond that passes ``timestamp KIND value``."""
    microseconds = (value - EPOCH) // timedelta(microseconds=1)
    if kind == "GreaterThan":
        return microseconds // 1000 + 1
    if kind in ("GreaterThanOrEqual", "EqualTo", "EqualNullSafe"):
        return -(-microseconds // 1000)
    return None
