# SPDX-License-Identifier: Apache-2.0
"""The bounds that a polars predicate sets on a read: a range of offsets and of timestamps for each partition.

The bounds are never too narrow: an expression that is not recognized sets none, and polars applies the whole predicate
to the result. Recognized are and, or, comparisons, is_between and is_in of offset and timestamp with constants, and any
expression of topic and partition alone, which polars evaluates for each partition.

A polars expression shows its structure only by `meta.serialize(format="json")`. The names of its nodes may change
between versions of polars. A node with an unknown name sets no bounds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars

HIGHEST = 2**63 - 1
PARTITION_COLUMNS = {"topic", "partition"}
#: The comparison that is equivalent after its sides are exchanged.
EXCHANGED = {"Gt": "Lt", "Lt": "Gt", "GtEq": "LtEq", "LtEq": "GtEq", "Eq": "Eq", "EqValidity": "EqValidity"}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that a predicate sets for a partition: offsets in [first, end), timestamps in [from_ms, until_ms)."""

    first: int = 0
    end: int = HIGHEST
    from_ms: int = 0
    until_ms: int = HIGHEST

    @property
    def is_empty(self) -> bool:
        """Whether it can contain no record."""
        return self.first >= self.end or self.from_ms >= self.until_ms

    def both(self, other: Bounds) -> Bounds:
        """Return the intersection."""
        return Bounds(
            max(self.first, other.first),
            min(self.end, other.end),
            max(self.from_ms, other.from_ms),
            min(self.until_ms, other.until_ms),
        )

    def either(self, other: Bounds) -> Bounds:
        """Return the smallest bounds that contain both."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Bounds(
            min(self.first, other.first),
            max(self.end, other.end),
            min(self.from_ms, other.from_ms),
            max(self.until_ms, other.until_ms),
        )


ALL = Bounds()
NOTHING = Bounds(end=0)


def bounds_of(predicate: polars.Expr, topic: str, partitions: Iterable[int]) -> dict[int, Bounds]:
    """Return the bounds of each partition."""
    numbers = list(partitions)
    try:
        node = json.loads(predicate.meta.serialize(format="json"))
    except _polars_errors():  # a function in Python cannot be written as JSON
        return dict.fromkeys(numbers, ALL)
    return _Reader(topic, numbers).read(node)


def _polars_errors() -> tuple[type[Exception], ...]:
    import polars

    return (polars.exceptions.PolarsError, ValueError, TypeError)


class _Reader:
    """Walks the nodes of one predicate for all partitions at once."""

    def __init__(self, topic: str, partitions: list[int]) -> None:
        self._topic = topic
        self._partitions = partitions

    def _each(self, bound: Bounds) -> dict[int, Bounds]:
        return dict.fromkeys(self._partitions, bound)

    def read(self, node: Any) -> dict[int, Bounds]:
        """Return the bounds of a node."""
        if not isinstance(node, dict) or len(node) != 1:
            return self._each(ALL)
        ((kind, inside),) = node.items()
        if kind == "BinaryExpr" and inside.get("op") in ("And", "LogicalAnd"):
            left, right = self.read(inside["left"]), self.read(inside["right"])
            return {number: left[number].both(right[number]) for number in self._partitions}
        names = _names_in(node)
        if names and names <= PARTITION_COLUMNS:
            return self._by_partition(node)
        if kind == "BinaryExpr" and inside.get("op") in ("Or", "LogicalOr"):
            left, right = self.read(inside["left"]), self.read(inside["right"])
            return {number: left[number].either(right[number]) for number in self._partitions}
        if kind == "BinaryExpr":
            return self._each(_comparison(inside))
        if kind == "Function":
            return self._each(_function(inside))
        return self._each(ALL)

    def _by_partition(self, node: Any) -> dict[int, Bounds]:
        """Evaluate an expression of topic and partition alone for each partition."""
        import polars

        frame = polars.DataFrame(
            {"topic": [self._topic] * len(self._partitions), "partition": self._partitions},
            schema={"topic": polars.String, "partition": polars.Int32},
        )
        try:
            matches = frame.select(_expression(node).alias("matches"))["matches"].to_list()
        except _polars_errors():
            return self._each(ALL)
        if len(matches) != len(self._partitions):
            return self._each(ALL)
        return {number: ALL if true else NOTHING for number, true in zip(self._partitions, matches, strict=True)}


def _expression(node: Any) -> polars.Expr:
    import polars

    return polars.Expr.deserialize(json.dumps(node).encode(), format="json")


def _names_in(node: Any) -> set[str]:
    """Return the columns that a node depends on."""
    try:
        return set(_expression(node).meta.root_names())
    except _polars_errors():
        return set()


def _constant(node: Any) -> Any:
    """Return the value of an expression without columns, a list for is_in; None if there is no value."""
    import polars

    try:
        if _expression(node).meta.root_names():
            return None
        found = polars.select(_expression(node)).to_series()
    except _polars_errors():
        return None
    if len(found) != 1:
        return None
    value = found[0]
    return value.to_list() if isinstance(value, polars.Series) else value


def _column(node: Any) -> str | None:
    """Return the name of a column if the node is offset or timestamp itself."""
    name = node.get("Column") if isinstance(node, dict) else None
    return name if name in ("offset", "timestamp") else None


def _number(column: str, value: Any) -> tuple[int, bool] | None:
    """Return a constant as an offset or in ms, and whether this value is exact; None for other types."""
    if column == "offset":
        return (value, True) if isinstance(value, int) and not isinstance(value, bool) else None
    if not isinstance(value, datetime.datetime):
        return None
    # polars times with a zone include it. Times without a zone are UTC, as in columns of polars.
    since = (value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)) - _EPOCH
    return since // _MILLISECOND, not since % _MILLISECOND


def _comparison(inside: Any) -> Bounds:
    column, operator, other = _column(inside.get("left")), inside.get("op"), inside.get("right")
    if column is None:
        column, operator, other = _column(inside.get("right")), EXCHANGED.get(operator), inside.get("left")
    if column is None:
        return ALL
    found = _number(column, _constant(other))
    return ALL if found is None else _compared(column, operator, *found)


def _compared(column: str, operator: str | None, value: int, is_whole: bool) -> Bounds:
    """Return the bounds of column OPERATOR value. Without `is_whole`, the constant is between value and value + 1."""
    above = value + 1
    if operator == "Gt":
        return _span(column, above, HIGHEST)
    if operator == "GtEq":
        return _span(column, value if is_whole else above, HIGHEST)
    if operator == "Lt":
        return _span(column, 0, value if is_whole else above)
    if operator == "LtEq":
        return _span(column, 0, above)
    if operator in ("Eq", "EqValidity"):
        return _span(column, value, value + 1) if is_whole else NOTHING
    return ALL


def _span(column: str, first: int, end: int) -> Bounds:
    first, end = max(0, min(first, HIGHEST)), max(0, min(end, HIGHEST))
    if column == "offset":
        return replace(ALL, first=first, end=end)
    # Logs can have timestamps below 0 (-1: none), which ListOffsets cannot look up.
    return replace(ALL, from_ms=first, until_ms=end) if end > 0 else ALL


def _function(inside: Any) -> Bounds:
    """Return the bounds of is_between and is_in."""
    given, function = inside.get("input"), inside.get("function")
    boolean = function.get("Boolean") if isinstance(function, dict) else None
    column = _column(given[0]) if isinstance(given, list) and given else None
    if not isinstance(boolean, dict) or column is None:
        return ALL
    if "IsBetween" in boolean and len(given) == 3:
        closed = boolean["IsBetween"].get("closed")
        low = {"op": "GtEq" if closed in ("Both", "Left") else "Gt", "left": given[0], "right": given[1]}
        high = {"op": "LtEq" if closed in ("Both", "Right") else "Lt", "left": given[0], "right": given[2]}
        return _comparison(low).both(_comparison(high))
    if "IsIn" in boolean and len(given) == 2:
        values = _constant(given[1])
        numbers = [_number(column, value) for value in values] if isinstance(values, list) else []
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            return _span(column, min(known)[0], max(known)[0] + 1)
    return ALL
