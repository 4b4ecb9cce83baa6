# SPDX-License-Identifier: Apache-2.0
"""A data source for Ray Data. Each read task reads one range of offsets that was frozen when the source was created.

    import ray
    from kcodec.ray import KafkaDatasource

    dataset = ray.data.read_datasource(KafkaDatasource("orders", bootstrap_servers="localhost:9092"))

Ray and kcodec must be installed on every node. `import kcodec` does not import Ray; this module does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

import kcodec
from kcodec.arguments import names_of
from kcodec.client import Admin, ClientOptions
from kcodec.offsets import OffsetRange
from kcodec.reading.options import take_options

try:
    from ray.data import Datasource
    from ray.data.block import BlockMetadata
    from ray.data.datasource import ReadTask
except ImportError as missing:
    raise ImportError(f"kcodec.ray needs Ray Data ({missing}); install it with: pip install 'ray[data]'") from missing

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow

    from kcodec.client import ReadTopicOptions

__all__ = ["KafkaDatasource"]

#: A partition is divided among several tasks only if each of them gets at least this number of offsets.
MIN_TASK_OFFSETS = 10_000


class KafkaDatasource(Datasource):  # type: ignore[misc, unused-ignore]  # Ray is not installed where types are checked
    """Topics as a dataset of Ray, with the columns topic, partition, offset, timestamp, key, value and headers.

    topics:  A topic, or several. A topic that is named twice is read once.
    start, end: As in `kcodec.read_topic`: the bounds of each partition. They are resolved to offsets when the source
        is created, so that a task that Ray repeats reads the same records. With read_committed, "latest" is the last
        stable offset, and the read ends there also if markers or aborted records are before it.
    options: Those of `kcodec.read_topic`, such as bootstrap_servers and isolation_level. Ray sends them to the tasks.
        key_deserializer and value_deserializer raise a TypeError, because the dataset contains bytes.

    Ray returns the rows of different tasks in any order, and a large partition is divided among several tasks. To keep
    the order, set `ray.data.DataContext.get_current().execution_options.preserve_order`.

    Headers are a list of pairs, so that repeated headers are kept. Creating the source raises the errors of
    `kcodec.read_topic`, and the tasks raise those of `kcodec.read_ranges`: OffsetOutOfRangeError if records were
    deleted after the source was created, and BrokerError if a topic was deleted, or deleted and created again.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        start: Any = "earliest",
        end: Any = "latest",
        **options: Unpack[ReadTopicOptions],
    ) -> None:
        super().__init__()
        for name in ("key_deserializer", "value_deserializer"):
            if options.get(name) is not None:
                raise TypeError(
                    f"KafkaDatasource has no option {name!r}, because the dataset contains keys and values as bytes; "
                    "convert them with map() or map_batches() of the dataset"
                )
        take_options(options)  # before any request
        self._options: dict[str, Any] = dict(options)
        self._ranges: list[OffsetRange] = []
        self._schema: Any = None
        names = list(dict.fromkeys(names_of(topics, "topics")))
        # The ids are looked up before the offsets: if a topic is created again in between, its id is the old one, and
        # the tasks raise an error.
        ids = _topic_ids(names, options)
        for topic in names:
            with kcodec.read_topic(topic, start=start, end=end, **options) as records:
                found, self._schema = records.offsets, records.schema
            self._ranges += [
                OffsetRange(*place, one.start, one.end, ids[topic]) for place, one in sorted(found.items())
            ]

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The frozen offsets of each partition."""
        return tuple(self._ranges)

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is unknown until the records are read."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each range of offsets. If all ranges are empty, return one task, because Ray gets the
        columns of the dataset from a task. Ray calls this.

        parallelism: Number of tasks that Ray wants. Large partitions are divided to reach it.
        per_task_row_limit: Maximum number of rows of a task.
        data_context: Not used.
        """
        import pyarrow

        schema = None if self._schema is None else pyarrow.schema(self._schema)
        return [
            ReadTask(
                _RangeReader(each, self._options),
                BlockMetadata(num_rows=None, size_bytes=None, input_files=[str(each)], exec_stats=None),
                schema=schema,
                per_task_row_limit=per_task_row_limit,
            )
            for each in divided(self._ranges, parallelism) or self._ranges[:1]
        ]


def _topic_ids(topics: list[str], options: Mapping[str, Any]) -> dict[str, UUID | None]:
    """Return the id of each topic; None from brokers before 3.1."""
    if not topics:
        return {}
    known = ClientOptions.__annotations__
    with Admin(**{name: value for name, value in options.items() if name in known}) as admin:
        return {name: found.topic_id for name, found in admin.describe_topics(topics).items()}


def divided(ranges: Iterable[OffsetRange], parallelism: int) -> list[OffsetRange]:
    """Return the ranges that are not empty, divided into about `parallelism` ranges of at least MIN_TASK_OFFSETS."""
    given = [each for each in ranges if each.size]
    size = max(MIN_TASK_OFFSETS, -(-sum(each.size for each in given) // max(parallelism, 1)))
    return [
        replace(each, start=begin, end=min(begin + size, each.end))
        for each in given
        for begin in range(each.start, each.end, size)
    ]


@dataclass(frozen=True)
class _RangeReader:
    """Reads one range in a task. Its repr does not show the options, which may be secrets."""

    offsets: OffsetRange
    options: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> Iterator[pyarrow.Table]:
        import pyarrow

        if not self.offsets.size:
            return
        with kcodec.read_ranges(self.offsets, **self.options) as records:
            for batch in records:
                yield pyarrow.table(batch)
