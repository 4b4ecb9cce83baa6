# SPDX-License-Identifier: Apache-2.0
"""scan_topic: what polars asks for decides what is fetched, and never what comes out."""

from __future__ import annotations

import builtins
import datetime
import sys
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_topic import START, TopicWorld
from topic_reader import Reader, fill

import kcodec
from kcodec.client import Producer
from kcodec.reading.predicate import ALL, NOTHING, Bounds, bounds_of
from kcodec.testing.kafka import ApacheKafka

SCHEMA: dict[str, Any] = {
    "topic": pl.String,
    "partition": pl.Int32,
    "offset": pl.Int64,
    "timestamp": pl.Datetime("ms", "UTC"),
}
OFFSET, TIMESTAMP, PARTITION = pl.col("offset"), pl.col("timestamp"), pl.col("partition")


def at(offset: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp((START + offset) / 1000, datetime.UTC)


def bound_of(predicate: pl.Expr, partition: int = 0) -> Bounds:
    """As polars would hand it over: types of literals settled, constants folded."""
    seen: list[pl.Expr] = []

    def source(columns: Any, given: pl.Expr | None, rows: Any, size: Any) -> Any:
        seen.append(given if given is not None else pl.lit(True))
        yield pl.DataFrame(schema=SCHEMA).select(columns or list(SCHEMA))

    from polars.io.plugins import register_io_source

    register_io_source(source, schema=SCHEMA).filter(predicate).collect()
    return bounds_of(seen[0], "t", [0, 1, 2])[partition]


@pytest.mark.parametrize(
    ("predicate", "bound"),
    [
        (OFFSET >= 5, Bounds(first=5)),
        (OFFSET > 5, Bounds(first=6)),
        (OFFSET < 5, Bounds(end=5)),
        (OFFSET <= 5, Bounds(end=6)),
        (OFFSET == 5, Bounds(first=5, end=6)),
        (OFFSET.eq_missing(5), Bounds(first=5, end=6)),
        (pl.lit(5) < OFFSET, Bounds(first=6)),
        (OFFSET.is_between(3, 7), Bounds(first=3, end=8)),
        (OFFSET.is_between(3, 7, closed="none"), Bounds(first=4, end=7)),
        (OFFSET.is_in([9, 3, 4]), Bounds(first=3, end=10)),
        ((OFFSET > 3) & (OFFSET < 9) & (OFFSET < 7), Bounds(first=4, end=7)),
        ((OFFSET == 3) | (OFFSET == 9), Bounds(first=3, end=10)),
        (at(7) <= TIMESTAMP, Bounds(from_ms=START + 7)),
        (at(7) > TIMESTAMP, Bounds(until_ms=START + 7)),
        ((at(7) == TIMESTAMP) & (OFFSET > 2), Bounds(first=3, from_ms=START + 7, until_ms=START + 8)),
        (PARTITION == 0, ALL),
        (PARTITION == 1, NOTHING),
        (PARTITION.is_in([1, 2]), NOTHING),
        (PARTITION % 2 == 0, ALL),
        (PARTITION != 0, NOTHING),
        (pl.col("topic") == "other", NOTHING),
        (((PARTITION == 0) & (OFFSET > 5)) | ((PARTITION == 1) & (OFFSET > 9)), Bounds(first=6)),
        ((PARTITION == 1) | (OFFSET > 5), Bounds(first=6)),
        (OFFSET > 2**62, Bounds(first=2**62 + 1)),
        # what bounds nothing
        (OFFSET != 5, ALL),
        (OFFSET > PARTITION, ALL),
        (OFFSET % 2 == 0, ALL),
        (OFFSET * 2 > 10, ALL),
        (OFFSET >= 5.5, ALL),
        (TIMESTAMP.dt.hour() > 5, ALL),
        (datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC) > TIMESTAMP, ALL),
        (PARTITION.max() == PARTITION, ALL),
        ((OFFSET > 5) | (pl.col("topic").str.len_chars() > OFFSET), ALL),
    ],
    ids=str,
)
def test_what_a_predicate_bounds(predicate: pl.Expr, bound: Bounds) -> None:
    assert bound_of(predicate) == bound


def test_a_function_in_python_bounds_nothing() -> None:
    predicate = pl.col("offset").map_elements(lambda offset: hash(offset) > 3, return_dtype=pl.Boolean)
    assert bounds_of(predicate, "t", [0]) == {0: ALL}


def test_an_unknown_node_bounds_nothing() -> None:
    """Names of nodes are polars' own business: a version with others is read in full."""
    from kcodec.reading.predicate import _Reader

    unknown: tuple[Any, ...] = (
        {"NewExpr": {}},
        [],
        "x",
        {"BinaryExpr": {"op": "Xor"}},
        {"Function": {}},
        {"a": 1, "b": 2},
    )
    for node in unknown:
        assert _Reader("t", [0]).read(node) == {0: ALL}


# Against a log, in virtual time


@st.composite
def predicates(draw: st.DrawFn, depth: int = 3) -> pl.Expr:
    if depth and draw(st.booleans()):
        left, right = draw(predicates(depth - 1)), draw(predicates(depth - 1))
        kind = draw(st.sampled_from(["and", "and", "or", "not"]))
        joined: pl.Expr = left & right if kind == "and" else left | right if kind == "or" else ~left
        return joined
    number = draw(st.integers(-2, 32))
    sides: list[tuple[pl.Expr, Any]] = [
        (OFFSET, number),
        (TIMESTAMP, at(number)),
        (PARTITION, number % 4),
        (pl.lit(number), OFFSET),
    ]
    column: pl.Expr
    column, value = draw(st.sampled_from(sides))
    kinds = ["lt", "le", "gt", "ge", "eq", "ne"] + (["in", "between"] if not isinstance(value, pl.Expr) else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "in":
        return column.is_in([value, value])
    if kind == "between":
        return column.is_between(value, value, closed=draw(st.sampled_from(["both", "left", "right", "none"])))
    compared: dict[str, pl.Expr] = {
        "lt": column < value,
        "le": column <= value,
        "gt": column > value,
        "ge": column >= value,
        "eq": column == value,
        "ne": column != value,
    }
    return compared[kind]


@given(predicates(), st.booleans())
def test_random_predicates_give_what_they_give_without_pushdown(predicate: pl.Expr, ascending: bool) -> None:
    """The records that a predicate is true of are among those that are fetched for it."""
    world = TopicWorld()
    for log in world.create_logs("t", 3):
        fill(log)
    everything = {(number, offset) for number in range(3) for offset in range(30)}
    frame = pl.DataFrame(
        [{"topic": "t", "partition": p, "offset": o, "timestamp": at(o)} for p, o in sorted(everything)], schema=SCHEMA
    )
    wanted = frame.filter(predicate)
    seen: list[pl.Expr] = []

    def narrow(numbers: list[int]) -> dict[int, Bounds]:
        bounds = bounds_of(seen[0], "t", numbers)
        if ascending:
            return bounds
        return {
            n: bound if bound.is_empty else Bounds(bound.first, bound.end, bound.from_ms) for n, bound in bounds.items()
        }

    def source(columns: Any, given: pl.Expr | None, rows: Any, size: Any) -> Any:
        if given is None:  # folded to a constant
            yield frame
            return
        seen[:] = [given]
        reader = Reader(world, max_partition_fetch_bytes=100).open(narrow=narrow).all()
        places = [(number, offset) for number, records in reader.rows.items() for offset, _ in records]
        read = pl.DataFrame(places, schema={"partition": pl.Int32, "offset": pl.Int64}, orient="row")
        yield frame.join(read, on=["partition", "offset"], how="semi").filter(given)

    from polars.io.plugins import register_io_source

    found = register_io_source(source, schema=SCHEMA).filter(predicate).collect()
    assert found.sort("partition", "offset").equals(wanted)


def test_less_is_fetched() -> None:
    world = TopicWorld()
    for log in world.create_logs("t", 3):
        fill(log, 100)

    def fetched(**bound: Any) -> tuple[int, set[int]]:
        before, asked = world.fetched_bytes, len(world.fetches)
        narrow = {0: NOTHING, 1: Bounds(**bound), 2: NOTHING} if bound else {}
        Reader(world, max_partition_fetch_bytes=100).open(narrow=lambda numbers: narrow).all()
        return world.fetched_bytes - before, {partition for *_, partition, _ in world.fetches[asked:]}

    everything, partitions = fetched()
    assert partitions == {0, 1, 2}
    for bound in ({"first": 270}, {"end": 30}, {"from_ms": START + 270}):
        size, partitions = fetched(**bound)
        assert partitions == {1}
        assert size < everything / 3 / 8


# On a real broker


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    name = apache_kafka.create_topic(partitions=3)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers, linger_ms=0) as producer:
        for number in range(300):
            producer.send(name, b"v%d" % number, key=b"k", partition=number % 3, timestamp=START + number // 3)
            if number % 30 == 29:
                producer.flush()
    return name


class Counting:
    """Metrics: requests by kind."""

    def __init__(self) -> None:
        self.counts: dict[Any, int] = {}

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        if name == "request.sent":
            self.counts[labels["api"]] = self.counts.get(labels["api"], 0) + value

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Not counted."""


def test_queries_on_a_broker(apache_kafka: ApacheKafka, topic: str) -> None:
    metrics = Counting()
    scan = kcodec.scan_topic(topic, bootstrap_servers=apache_kafka.bootstrap_servers, metrics=metrics)
    whole = scan.collect()
    assert dict(whole.schema) == scan.collect_schema()
    assert whole.height == 300
    assert scan.select(pl.len()).collect().item() == 300
    assert scan.head(7).collect().height == 7
    before = metrics.counts["FetchRequest"]
    for predicate in (
        (PARTITION == 1) & (OFFSET >= 90),
        (at(90) <= TIMESTAMP) & PARTITION.is_in([0, 2]),
        (pl.col("value") == b"v299") | (OFFSET < 3),
        TIMESTAMP.is_between(at(10), at(20)) & (pl.col("key") == b"k"),
    ):
        found = scan.filter(predicate).select("partition", "offset", "value").collect()
        expected = whole.filter(predicate).select("partition", "offset", "value")
        assert found.sort("partition", "offset").equals(expected.sort("partition", "offset"))
        assert found.height
    assert scan.filter(PARTITION == 7).collect().height == 0
    asked = metrics.counts["FetchRequest"] - before
    assert scan.filter(OFFSET < 0).collect().height == 0
    assert metrics.counts["FetchRequest"] - before == asked


def test_arguments_are_checked_before_anybody_is_asked() -> None:
    with pytest.raises(TypeError, match="isolation_lvl"):
        kcodec.scan_topic("t", bootstrap_servers="localhost:1", isolation_lvl="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="unknown column"):
        kcodec.scan_topic("t", bootstrap_servers="localhost:1", columns=("offset", "valeu"))


def test_without_polars_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name.startswith("polars"):
            raise ImportError(name)
        return real(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "polars.io.plugins", raising=False)
    with pytest.raises(ImportError, match="pip install polars"):
        kcodec.scan_topic("t", bootstrap_servers="localhost:1")


@pytest.mark.parametrize("name", ["max_rows", "key_deserializer", "value_deserializer"])
def test_an_option_that_only_read_topic_has_is_refused(name: str) -> None:
    options: Any = {name: 3 if name == "max_rows" else bytes.decode}
    with pytest.raises(TypeError, match=f"^scan_topic has no option '{name}': (apply head|a scan returns columns)"):
        kcodec.scan_topic("orders", bootstrap_servers="localhost:1", **options)
