# SPDX-License-Identifier: Apache-2.0
"""The range of a topic to read: `start` and `end` of `kcodec.read_topic`, and the offsets that they stand for.

A bound is "earliest" (the beginning of the log), "latest" (after the last record that a consumer gets: the last stable
offset under read_committed, otherwise the high watermark), an offset, a negative number (that number of offsets before
the latest), or a time: a `datetime` with a time zone, or `Timestamp(ms)`. A mapping sets bounds for each partition.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from kcodec.admin.topics import describe_topics
from kcodec.arguments import numbers_of
from kcodec.cluster.list_offsets import list_offsets
from kcodec.cluster.retry_driver import CallContext
from kcodec.constants import IsolationLevel
from kcodec.errors import OffsetOutOfRangeError
from kcodec.flow import Flow
from kcodec.integers import INT64_MAX, INT64_MIN, as_integer, checked_integer, shown
from kcodec.offsets import Timestamp, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import count_text
from kcodec.reading.predicate import ALL, HIGHEST, Bounds
from kcodec.timestamps import warn_of_unit

RangeBound: TypeAlias = "str | int | Timestamp | datetime.datetime"
RangeBounds: TypeAlias = "RangeBound | Mapping[int, RangeBound]"
WORDS = ("earliest", "latest")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def bound_of(given: object, name: str) -> str | int | Timestamp:
    """Return a bound as it was given. Raise ValueError or TypeError if it is invalid."""
    if isinstance(given, Timestamp):
        # A negative number would have a special meaning in ListOffsets.
        when = checked_integer(f"{name}: the time in ms since 1970", given.ms, 0, INT64_MAX)
        warn_of_unit(name, when)
        return Timestamp(when)
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None:
            raise ValueError(f"{name}={given!r} has no time zone: add one, such as tzinfo=datetime.timezone.utc")
        # Records have whole milliseconds: the first at or after this time.
        return Timestamp(max(0, -(-((given - _EPOCH) // _MICROSECOND) // 1000)))
    number = as_integer(given)
    if number is not None:
        return checked_integer(name, number, INT64_MIN, INT64_MAX)
    if isinstance(given, str):
        if given in WORDS:
            return given
        raise ValueError(f"{name} must be one of {', '.join(WORDS)}, an offset or a time, not {given!r}")
    raise TypeError(f"{name} must be a str, an offset, a datetime or Timestamp(ms), not {type(given).__name__}")


def _as_time(offset: int) -> str:
    """Return the end of a sentence with advice if an offset looks like a time: milliseconds of the years 2001 to 2286.
    Otherwise, return an empty text."""
    if not 10**12 <= offset < 10**13:
        return ""
    when = (_EPOCH + datetime.timedelta(milliseconds=offset)).isoformat(timespec="milliseconds")
    return f"; for the time {when}, pass kcodec.Timestamp({offset})"


class TopicRange:
    """The checked range of a topic. `resolve` gets its offsets from a cluster. If `partitions` is None, it has all
    partitions."""

    def __init__(self, topic: str, partitions: Iterable[int] | None, start: RangeBounds, end: RangeBounds) -> None:
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"topic must be a topic name, not {topic!r}")
        self.topic = topic
        self.partitions = None if partitions is None else list(dict.fromkeys(numbers_of(partitions, "partitions")))
        #: What a query leaves of each partition, by numbers.
        self.narrow: Callable[[list[int]], dict[int, Bounds]] = lambda numbers: {}
        self._start = self._bounds(start, "start", "earliest")
        self._end = self._bounds(end, "end", "latest")

    def _bounds(self, given: RangeBounds, name: str, otherwise: str) -> dict[int | None, str | int | Timestamp]:
        """Return the bound of each partition; the key None stands for all others."""
        if not isinstance(given, Mapping):
            return {None: bound_of(given, name)}
        found: dict[int | None, str | int | Timestamp] = {None: otherwise}
        for partition, bound in given.items():
            number = as_integer(partition)
            if number is None:
                raise TypeError(f"{name}: expected a partition number, an int of 0 or more, got {partition!r}")
            if self.partitions is not None and number not in self.partitions:
                raise ValueError(
                    f"{name} names partition {shown(number)}, which is not in partitions={self.partitions}"
                )
            found[number] = bound_of(bound, f"{name}[{number}]")
        return found

    def resolve(self, context: CallContext, isolation_level: IsolationLevel) -> Flow[dict[int, tuple[int, int]]]:
        """Return start and end of each partition, in order. The end is not below the start.

        Raise BrokerError (UNKNOWN_TOPIC_OR_PARTITION), OffsetOutOfRangeError for a start that is not in the log.
        """
        numbers = yield from self._numbers(context)
        bounds = self.narrow(numbers)
        numbers = [number for number in numbers if not bounds.get(number, ALL).is_empty]
        spans = _Offsets(context, self.topic, numbers, isolation_level)
        yield from spans.look_up({number: self._times(number, bounds.get(number, ALL)) for number in numbers})
        found = {}
        for number in numbers:
            start = spans.offset(number, self._start.get(number, self._start[None]))
            end = spans.offset(number, self._end.get(number, self._end[None]))
            yield from self._check_start(number, start, end, spans)
            bound = bounds.get(number, ALL)
            start = max(start, bound.first, spans.offset(number, Timestamp(bound.from_ms)) if bound.from_ms > 0 else 0)
            end = min(
                end, bound.end, spans.offset(number, Timestamp(bound.until_ms)) if bound.until_ms < HIGHEST else HIGHEST
            )
            if start < end or not bounds:
                found[number] = start, max(start, end)
        return found

    def _times(self, number: int, bound: Bounds) -> list[int]:
        """Return the times whose offsets are needed."""
        bounds = [bounds.get(number, bounds[None]) for bounds in (self._start, self._end)]
        times = [bound.ms for bound in bounds if isinstance(bound, Timestamp)]
        times += [bound.from_ms] if bound.from_ms > 0 else []
        times += [bound.until_ms] if bound.until_ms < HIGHEST else []
        return list(dict.fromkeys(times))

    def _check_start(self, number: int, start: int, end: int, spans: _Offsets) -> Flow[None]:
        """Raise OffsetOutOfRangeError if a start is not in the log. A start beyond the last stable offset is
        allowed."""
        first, last = spans.first[number], spans.last[number]
        if start > last:
            last = yield from spans.written(number)
        if (start < first and start < end) or start > last:
            partition = TopicPartition(self.topic, number)
            raise OffsetOutOfRangeError(
                f"{partition}: start offset {start} is not in the log, which has offsets {first} to {last} (exclusive)"
                f"{_as_time(start)}",
                partition=partition,
                position=start,
                log_start_offset=first,
                log_end_offset=last,
            )

    def _numbers(self, context: CallContext) -> Flow[list[int]]:
        described = (yield from describe_topics(context, [self.topic]))[self.topic]
        known = [one.partition for one in described.partitions]
        numbers = known if self.partitions is None else self.partitions
        for number in [*numbers, *(one for one in [*self._start, *self._end] if one is not None)]:
            if number not in known:
                doing = (
                    f"topic {self.topic!r} has {count_text(len(known), 'partition')}, numbered from 0, and no "
                    f"partition {number}"
                )
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, doing, remedy="stop")
        return numbers


class _Offsets:
    """The offsets of the partitions of one topic, by ListOffsets."""

    def __init__(self, context: CallContext, topic: str, numbers: list[int], isolation_level: IsolationLevel) -> None:
        self._context = context
        self._topic = topic
        self._numbers = numbers
        self._isolation_level = isolation_level
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self._at: dict[tuple[int, int], int] = {}

    def look_up(self, times: dict[int, list[int]]) -> Flow[None]:
        """Look up the beginning and the end of each partition, and the offsets of these times."""
        if not self._numbers:
            return
        self.first = yield from self._list(dict.fromkeys(self._numbers, "earliest"), self._isolation_level)
        self.last = yield from self._list(dict.fromkeys(self._numbers, "latest"), self._isolation_level)
        for which in range(max(map(len, times.values()))):  # a request has one time for each partition
            requested: dict[int, str | int] = {
                number: some[which] for number, some in times.items() if len(some) > which
            }
            listed = yield from self._list(requested, self._isolation_level)
            self._at |= {(number, int(requested[number])): offset for number, offset in listed.items()}

    def offset(self, number: int, bound: str | int | Timestamp) -> int:
        """Return the offset of a bound."""
        if isinstance(bound, Timestamp):
            found = self._at[number, bound.ms]
            return found if found >= 0 else self.last[number]
        if isinstance(bound, str):
            return self.first[number] if bound == "earliest" else self.last[number]
        return bound if bound >= 0 else max(self.first[number], self.last[number] + bound)

    def written(self, number: int) -> Flow[int]:
        """Return the high watermark."""
        return (yield from self._list({number: "latest"}, IsolationLevel.READ_UNCOMMITTED))[number]

    def _list(self, requested: dict[int, str | int], isolation_level: IsolationLevel) -> Flow[dict[int, int]]:
        partitions = {TopicPartition(self._topic, number): spec for number, spec in requested.items()}
        listed = yield from list_offsets(self._context.cluster, partitions, isolation_level, self._context.api_timeout)
        return {partition.partition: one.offset for partition, one in listed.items()}
