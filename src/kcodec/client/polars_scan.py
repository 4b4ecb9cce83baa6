# SPDX-License-Identifier: Apache-2.0
"""`kcodec.scan_topic`, which returns a topic as a polars LazyFrame that reads only what a query needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from kcodec import _fast
from kcodec.arguments import numbers_of
from kcodec.client.topic_reading import TopicReading
from kcodec.client.topic_records import TopicRecords
from kcodec.reading.predicate import HIGHEST, Bounds, bounds_of
from kcodec.reading.ranges import RangeBounds

if TYPE_CHECKING:
    import polars

    from kcodec.client.options import ReadTopicOptions
    from kcodec.flow import Flow

T = TypeVar("T")
_NO_DESERIALIZER = "a scan returns columns; apply an expression of polars to the column, such as map_elements"
_NOT_IN_SCANS = {
    "max_rows": "apply head(number of rows) to the LazyFrame",
    "key_deserializer": _NO_DESERIALIZER,
    "value_deserializer": _NO_DESERIALIZER,
}


def scan_topic(
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    start: RangeBounds = "earliest",
    end: RangeBounds = "latest",
    ascending_timestamps: bool = False,
    **options: Unpack[ReadTopicOptions],
) -> polars.LazyFrame:
    """Return a polars LazyFrame of the range [start, end) of a topic. Each `collect` reads the range again, but only
    what the query needs.

        kcodec.scan_topic("orders", bootstrap_servers="localhost:9092").filter(
            pl.col("partition").is_in([0, 3]), pl.col("timestamp") >= datetime(2026, 11, 1, tzinfo=UTC)
        ).select("key", "value").collect()

    Columns that the query does not use are not decoded. Conditions on partition, offset and timestamp limit what is
    fetched, as does `head`. For a lower bound on the timestamp, the offset is looked up by ListOffsets. polars applies
    all other conditions to the result. The other arguments are those of `kcodec.read_topic`, except for `max_rows` and
    the deserializers.

    ascending_timestamps: Whether an upper bound on the timestamp ends the read, too. This is correct only if timestamps
                          never decrease within a partition, as with message.timestamp.type=LogAppendTime. If producers
                          set the timestamps, a record below the bound may follow one above it. Without this option, the
                          whole range is therefore read.

    Raise ImportError if polars is not installed. Raise TypeError or ValueError if an argument is invalid. `collect`
    raises the errors of brokers, as `kcodec.read_topic` does.
    """
    try:
        from polars.io.plugins import register_io_source
    except ImportError as error:
        raise ImportError("kcodec.scan_topic requires polars 1.30 or later: pip install polars") from error
    for name, remedy in _NOT_IN_SCANS.items():
        if name in options:
            raise TypeError(f"scan_topic has no option {name!r}: {remedy}")
    chosen = None if partitions is None else numbers_of(partitions, "partitions")
    scan = _Scan(topic, chosen, start, end, ascending_timestamps, options)
    return register_io_source(
        scan.frames, schema=scan.schema, validate_schema=True, explain_name="kcodec", explain_detail=f"topic {topic!r}"
    )


class _Scan:
    """A source of frames. polars may request the frames several times."""

    def __init__(
        self,
        topic: str,
        partitions: list[int] | None,
        start: RangeBounds,
        end: RangeBounds,
        ascending_timestamps: bool,
        options: Mapping[str, Any],
    ) -> None:
        import polars

        self._given = topic, partitions, start, end
        self._topic = topic
        self._ascending_timestamps = ascending_timestamps
        self._options = options
        settings = TopicReading(*self._given, None, options).settings  # this also checks the arguments
        self._columns = settings.columns
        empty = _fast.decode_fetch(
            b"",
            topic=topic,
            partition=0,
            start_offset=0,
            columns=settings.columns,
            binary_type=settings.binary_type,
            framing=settings.framing,
        )
        self.schema = dict(polars.DataFrame(empty).schema)

    def frames(
        self, with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        """Return frames as polars.io.plugins.register_io_source requires. `n_rows` limits the number of rows before the
        predicate is applied."""
        import polars

        needed = set(self._columns if with_columns is None else with_columns)
        if predicate is not None:
            needed |= set(predicate.meta.root_names())
        columns = [name for name in self._columns if name in needed]
        reading = TopicReading(*self._given, n_rows, {**self._options, "columns": columns or self._columns[:1]})
        if predicate is not None and n_rows is None:
            reading.range.narrow = lambda numbers: self._bounds(predicate, numbers)
        with _ScanRecords.of(reading) as records:
            for batch in records:
                frame = polars.DataFrame(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame if with_columns is None else frame.select(with_columns)

    def _bounds(self, predicate: polars.Expr, numbers: list[int]) -> dict[int, Bounds]:
        bounds = bounds_of(predicate, self._topic, numbers)
        if self._ascending_timestamps:
            return bounds
        return {
            number: bound if bound.is_empty else Bounds(bound.first, bound.end, bound.from_ms, HIGHEST)
            for number, bound in bounds.items()
        }


class _ScanRecords(TopicRecords):
    """The records of a scan. polars reads them on a separate thread while the main thread waits for the result.

    Python raises KeyboardInterrupt only on the main thread, after that wait. polars notes Ctrl-C in its own signal
    handler. Each operation of polars, on any thread, then raises KeyboardInterrupt.
    """

    def _run(self, flow: Flow[T], timeout: float | None = None, call: str = "the call") -> T:
        import polars

        return self._io_loop.run(flow, timeout, call, polars.Series([0]).sum)
