# SPDX-License-Identifier: Apache-2.0
"""Topics of a cluster in Spark: what a query reads, found out once on the driver, and how a task reads its part.

Options are those of Spark's own Kafka source, in its spelling; those of the client are given as there
(``kafka.bootstrap.servers``) or as `kcodec.read_ranges` takes them (``bootstrap_servers``). An option that nothing here
uses is an error that names it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import kcodec
from kcodec.client import Admin, ClientOptions, ReadTopicOptions
from kcodec.constants import IsolationLevel
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.spark import planner
from kcodec.spark.client_options import TOKEN_PROVIDER, client_option, with_credentials
from kcodec.spark.columns import SparkColumn, arrow_schema, default_columns, suggestion

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("kcodec.spark")
PLANNING_OPTIONS = (
    *(*planner.STRATEGIES, "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"),
    *("endingOffsetsByTimestamp", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "includeBatchMeta", "mode"),
)
BY_FOLDED_NAME = {name.lower(): name for name in PLANNING_OPTIONS}
READ_OPTIONS = frozenset(ReadTopicOptions.__annotations__) | {TOKEN_PROVIDER}
CLIENT_OPTIONS = frozenset(ClientOptions.__annotations__)
#: Chosen by includeHeaders and includeBatchMeta, or by Spark's types.
OWN_OPTIONS = {"columns", "binary_type", "on_error", "framing"}


@dataclass(frozen=True)
class TopicPlan:
    """What a batch query reads.

    ranges: one for each task, with the id of its topic.
    end:    the next offset of every partition after them, of partitions without a range as well.
    """

    ranges: list[OffsetRange]
    end: planner.StreamOffsets


@dataclass(frozen=True)
class TopicSource:
    """The options of a query over topics, checked.

    planning: those of Spark, in its spelling, as text.
    reading:  the keyword arguments of `kcodec.read_ranges`, before `with_credentials`.
    """

    planning: Mapping[str, str]
    reading: Mapping[str, Any] = field(repr=False)
    columns: tuple[SparkColumn, ...]
    fails_on_data_loss: bool

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TopicSource:
        """Sort the options; raise ValueError for one that is unknown or invalid, without the value of a secret."""
        planning: dict[str, str] = {}
        reading: dict[str, Any] = {}
        for name, value in options.items():
            if name.lower() in BY_FOLDED_NAME:
                planning[BY_FOLDED_NAME[name.lower()]] = _text(value)
                continue
            for ours, converted in client_option(name, value).items():
                if ours not in READ_OPTIONS or ours in OWN_OPTIONS:
                    raise ValueError(
                        f"unknown option {name!r}{suggestion(name, [*PLANNING_OPTIONS, *READ_OPTIONS])}: the options "
                        "are those of Spark's Kafka source for batch queries, and those of kcodec.read_ranges"
                    )
                reading[ours] = converted
        if "bootstrap_servers" not in reading:
            raise ValueError("option 'kafka.bootstrap.servers' is missing")
        reading.setdefault("isolation_level", "read_uncommitted")  # as in Spark's source
        mode = planning.pop("mode", "failfast").lower()
        if mode not in ("failfast", "permissive"):
            raise ValueError(f"option 'mode' is {mode!r}: expected failfast or permissive")
        reading["on_error"] = "skip" if mode == "permissive" else "raise"
        columns = default_columns(_flag(planning, "includeHeaders", False), _flag(planning, "includeBatchMeta", False))
        fails = _flag(planning, "failOnDataLoss", True)
        source = cls(planning, reading, columns, fails)
        source._limits()
        return source

    def _limits(self) -> tuple[planner.SourceTopics, planner.OffsetLimit, planner.OffsetLimit, int | None, int | None]:
        planning = self.planning
        return (
            planner.parse_source_topics(planning),
            planner.parse_offset_limit(planning, "starting"),
            planner.parse_offset_limit(planning, "ending"),
            planner.parse_positive(planning, "minPartitions"),
            planner.parse_positive(planning, "maxRecordsPerPartition"),
        )

    def plan(self) -> list[OffsetRange]:
        """Return the range of each task, with the id of its topic. Raise what brokers respond, and DataLossError."""
        return self.plan_after(None).ranges

    def plan_after(self, position: planner.StreamOffsets | None, max_offsets: int | None = None) -> TopicPlan:
        """Return the ranges that begin at the end of an earlier plan; the options decide for partitions it lacks.

        A partition that has been added to a topic of the earlier plan begins at its earliest offset. max_offsets: about
        the number of offsets to read, in proportion to what each partition has.
        Raise what brokers respond, and DataLossError for offsets that are not in the log any more.
        """
        topics, starting, ending, min_partitions, max_records = self._limits()
        reading = with_credentials(self.reading)
        client = {name: value for name, value in reading.items() if name in CLIENT_OPTIONS}
        level: IsolationLevel | str = self.reading["isolation_level"]
        known = planner.StreamOffsets({}) if position is None else position
        with Admin(**client) as admin:
            ids, counts = _topics(admin, topics)
            partitions = topics.partitions(counts)
            if not partitions:
                return TopicPlan([], known)
            earliest = _listed(admin, dict.fromkeys(partitions, "earliest"), level)
            latest = _listed(admin, dict.fromkeys(partitions, "latest"), level)
            known_topics = {partition.topic for partition in known.offsets}
            unknown = [partition for partition in partitions if partition.topic not in known_topics]
            if starting.each is not None and known.offsets:
                named = {partition: at for partition, at in starting.each.items() if partition in unknown}
                starting = replace(starting, each=named)
            starts = planner.resolve_offsets(
                starting, unknown, earliest, latest, _at(admin, starting, unknown, level), is_start=True
            )
            ends = planner.resolve_offsets(
                ending, partitions, earliest, latest, _at(admin, ending, partitions, level), is_start=False
            )
        starts |= {partition: known.offsets[partition] for partition in partitions if partition in known.offsets}
        starts, new_losses = planner.start_new_partitions(starts, ends, earliest)
        if new_losses and self.fails_on_data_loss:
            raise planner.DataLossError(new_losses)
        # An end that an earlier plan has already passed leaves nothing to read; it is not an error.
        ends = {
            partition: max(end, known.offsets[partition]) if partition in known.offsets else end
            for partition, end in ends.items()
        }
        names = {topic: str(topic_id) for topic, topic_id in ids.items() if topic_id is not None}
        ranges, losses = planner.readable_ranges(
            planner.ranges_between(starts, ends),
            earliest,
            latest,
            fail_on_data_loss=self.fails_on_data_loss,
            expected_ids=known.topic_ids,
            found_ids=names,
        )
        for loss in (*new_losses, *losses):
            logger.warning("%s", loss)
        if max_offsets is not None:
            limited = planner.limit_offsets(
                {each.topic_partition: each.start for each in ranges},
                {each.topic_partition: each.end for each in ranges},
                max_offsets,
            )
            ranges = [replace(each, end=limited[each.topic_partition]) for each in ranges]
        cut = [
            OffsetRange(each.topic, each.partition, each.start, each.end, topic_id=ids.get(each.topic))
            for each in planner.cut_ranges(ranges, min_partitions, max_records)
        ]
        reached = {each.topic_partition: each.end for each in ranges}
        end = planner.StreamOffsets({**known.offsets, **reached}, {**known.topic_ids, **names})
        return TopicPlan(cut, end)

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges as Spark's source has them; log what was read. Used in tasks."""
        import pyarrow as pa

        schema = arrow_schema(self.columns)
        on_missing: Literal["raise", "skip"] = "raise" if self.fails_on_data_loss else "skip"
        columns = [column.column for column in self.columns]
        with kcodec.read_ranges(
            ranges, spark_layout=True, on_missing=on_missing, columns=columns, **with_credentials(self.reading)
        ) as records:
            for batch in records:
                if len(batch):
                    yield pa.RecordBatch.from_arrays(pa.record_batch(batch).columns, schema=schema)
        if records.counts.skipped_batches:
            skipped = ", ".join(str(each) for each in ranges)
            logger.warning("%s: %d corrupt batches were skipped", skipped, records.counts.skipped_batches)
        for one in records.ranges:
            logger.info("%s: read to its end, %d offsets are lost", one.range, one.lost)
        logger.info("%d bytes of batches, %r", records.bytes_fetched, records.counts)


def _topics(admin: Admin, wanted: planner.SourceTopics) -> tuple[dict[str, UUID | None], dict[str, int]]:
    """(the id of each topic, the number of its partitions)."""
    if wanted.pattern is not None:
        listed = admin.list_topics()
        return (
            {name: one.topic_id for name, one in listed.items()},
            {name: one.num_partitions for name, one in listed.items()},
        )
    names = wanted.subscribe or tuple({partition.topic for partition in wanted.assign})
    found = admin.describe_topics(names)
    return (
        {name: one.topic_id for name, one in found.items()},
        {name: len(one.partitions) for name, one in found.items()},
    )


def _listed(
    admin: Admin, partitions: Mapping[TopicPartition, str | int], level: IsolationLevel | str
) -> dict[TopicPartition, int]:
    listed = admin.list_offsets(partitions, isolation_level=level)
    return {partition: one.offset for partition, one in listed.items()}


def _at(
    admin: Admin, limit: planner.OffsetLimit, partitions: Sequence[TopicPartition], level: IsolationLevel | str
) -> dict[TopicPartition, int]:
    """The offset of the first record at or after the timestamp of each partition, without those that have none."""
    if limit.kind != "timestamps":
        return {}
    times = limit.each if limit.each is not None else dict.fromkeys(partitions, limit.timestamp)
    wanted: dict[TopicPartition, str | int] = {
        partition: time for partition, time in times.items() if partition in partitions and time is not None
    }
    found = _listed(admin, wanted, level) if wanted else {}
    return {partition: offset for partition, offset in found.items() if offset >= 0}


def _text(value: Any) -> str:
    """An option as Spark has it: True is "true", a dict or a list is JSON."""
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    return str(value)


def _flag(planning: dict[str, str], name: str, default: bool) -> bool:
    text = planning.pop(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}: expected true or false")
    return text == "true"
