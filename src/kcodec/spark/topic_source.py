# SPDX-License-Identifier: Apache-2.0
"""Topics of a cluster in Spark: the options of a query, the ranges of a batch query, and the read of a task.

The options have the names of Spark's own Kafka source. Options of the client have Spark's names
(``kafka.bootstrap.servers``) or the names of `kcodec.read_ranges` (``bootstrap_servers``). An unknown option raises an
error that names it. The state of a streaming query is in `kcodec.spark.topic_stream`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import kcodec
from kcodec.client import ClientOptions, ReadTopicOptions
from kcodec.constants import IsolationLevel
from kcodec.errors import BrokerError
from kcodec.limits import DEFAULT_MAX_BATCH_BYTES, DEFAULT_MAX_DECOMPRESSED_BYTES, DecodeLimits
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.reading.options import ReadTopicConfig, take_client_config
from kcodec.spark import offset_options, planner
from kcodec.spark.client_options import (
    INSTEAD_OF_JAVA,
    SECURITY,
    TOKEN_PROVIDER,
    client_option,
    end_refused_calls,
    spark_name,
    why_refused,
    with_credentials,
)
from kcodec.spark.columns import SparkColumn, default_columns, suggestion
from kcodec.spark.convert import Renamed, log_task
from kcodec.spark.trigger_limits import LIMIT_OPTIONS, NO_LIMITS, TriggerLimits
from kcodec.spark.workers import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from kcodec.client import Admin

logger = logging.getLogger("kcodec.spark")
SERVERS = "kafka.bootstrap.servers"
GROUP_ID = "kafka.group.id"
#: Options that a batch query accepts and ignores with a warning, as in Spark's source.
STREAM_OPTIONS = (*LIMIT_OPTIONS, GROUP_ID)
PLANNING_OPTIONS = (
    *(*offset_options.STRATEGIES, "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"),
    *("endingOffsetsByTimestamp", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "includeBatchMeta", "mode"),
    *("checkCrcs", "maxBatchBytes", "maxDecompressedBytes", *STREAM_OPTIONS),
)
BY_FOLDED_NAME = {name.lower(): name for name in PLANNING_OPTIONS}
READ_OPTIONS = frozenset(ReadTopicOptions.__annotations__) | {TOKEN_PROVIDER}
CLIENT_OPTIONS = frozenset(ClientOptions.__annotations__)
#: Chosen by other options and arguments of Spark's readers, or by Spark's types. INSTEAD has an explanation of each.
OWN_OPTIONS = {"columns", "binary_type", "on_error", "framing", "key_deserializer", "value_deserializer"}
OF_ARGUMENTS = "pass it as an argument of map_batches or land"
#: Options whose values are objects of Python, which a reader of Spark cannot pass, and what to do instead.
OBJECTS = {
    "limits": "set maxBatchBytes and maxDecompressedBytes",
    "metrics": OF_ARGUMENTS,
    "security": OF_ARGUMENTS,
    "ssl_context": OF_ARGUMENTS,
    "sasl_oauth_token_provider": "set kcodec.token.provider to module:function",
    "sasl_aws_credentials_provider": "set kcodec.token.provider to module:function",
}
#: The names that an error suggests.
KAFKA_NAMES = (
    *map(spark_name, sorted(READ_OPTIONS - OWN_OPTIONS - OBJECTS.keys() - {TOKEN_PROVIDER})),
    TOKEN_PROVIDER,
)
NO_GROUP = "partitions are read without a consumer group"
SUBSCRIBE = "subscribe has the topics that are read"
AS_STORED = "convert them with functions of DataFrames, or in the function of map_batches or land"
#: Error codes of a task whose offsets are not in the log, and what the error says then.
LOST = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
CONTINUE = "option failOnDataLoss=false continues with the offsets that exist, and logs what is lost"
#: Options of Spark's source and sink, or of Java's consumer, that have no counterpart, and what to use in their place.
INSTEAD = {
    **INSTEAD_OF_JAVA,
    "topic": SUBSCRIBE,
    "topics": SUBSCRIBE,
    "kafka.topic": SUBSCRIBE,
    "kafka.topics": SUBSCRIBE,
    "groupidprefix": NO_GROUP,
    "kafka.session.timeout.ms": NO_GROUP,
    "kafka.heartbeat.interval.ms": NO_GROUP,
    "kafka.max.poll.interval.ms": NO_GROUP,
    "kafka.partition.assignment.strategy": NO_GROUP,
    "kafka.group.instance.id": NO_GROUP,
    "kafkaconsumer.polltimeoutms": "kafka.default.api.timeout.ms limits how long a partition may make no progress",
    "fetchoffset.numretries": "requests are repeated until kafka.default.api.timeout.ms",
    "fetchoffset.retryintervalms": "kafka.retry.backoff.ms is the pause between two requests",
    "kafka.auto.offset.reset": "startingOffsets says where a query starts, failOnDataLoss what happens to lost offsets",
    "kafka.enable.auto.commit": "Spark's checkpoint has the position of the query",
    "kafka.key.deserializer": f"keys are binary; {AS_STORED}",
    "kafka.value.deserializer": f"values are binary; {AS_STORED}",
    "kafka.framing": f"keys and values contain the schema ids; {AS_STORED}",
    "kafka.binary.type": "the types of the columns are those of Spark's Kafka source",
    "kafka.columns": "the argument columns= of map_batches and land, or .schema() of a reader, chooses columns",
    "kafka.on.error": "mode=permissive leaves out corrupt batches",
    "kafka.on.missing": "failOnDataLoss determines what happens to lost offsets",
    "kafka.fetch.min.bytes": "a task reads up to the end of its range, so no broker waits for more records",
    "kafka.exclude.internal.topics": "subscribePattern matches no internal topic; name such a topic with subscribe",
    "kafka.allow.auto.create.topics": "a query never creates a topic",
    "kafka.max.poll.records": "kafka.max.partition.fetch.bytes sets the size of the batches",
}


@dataclass(frozen=True)
class TopicSource:
    """The checked options of a query over topics. Its repr has no options of the client, which may be secrets.

    planning: Options of Spark, in its spelling, as text.
    reading:  Keyword arguments of `kcodec.read_ranges`, before `with_credentials`.
    group_id: Group for which the offsets of a stream are committed. They are not read back.
    """

    planning: Mapping[str, str]
    reading: Mapping[str, Any] = field(repr=False)
    columns: tuple[SparkColumn, ...]
    fails_on_data_loss: bool
    is_stream: bool = False
    group_id: str | None = None
    limits: TriggerLimits = NO_LIMITS

    @classmethod
    def of(
        cls, options: Mapping[str, Any], *, is_stream: bool = False, columns: tuple[SparkColumn, ...] | None = None
    ) -> TopicSource:
        """Sort the options. Raise ValueError for an unknown or invalid option, without the value of a secret.

        columns: Columns of the schema of a user. None: the default columns, and those of includeHeaders and
                 includeBatchMeta.
        """
        planning: dict[str, str] = {}
        reading: dict[str, Any] = {}
        names: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in BY_FOLDED_NAME:
                planning[BY_FOLDED_NAME[name.lower()]] = _text(BY_FOLDED_NAME[name.lower()], value)
            else:
                found = _read_options(name, value)
                names |= dict.fromkeys(found, name)
                reading |= found
        if "bootstrap_servers" not in reading:
            raise ValueError(f"option {SERVERS!r} is missing: it names the brokers, as host:port")
        _check_values(reading, names)
        reading.setdefault("isolation_level", "read_uncommitted")  # as in Spark's source
        mode = planning.pop("mode", "failfast").lower()
        if mode not in ("failfast", "permissive"):
            raise ValueError(f"option 'mode' is {mode!r}: expected failfast or permissive")
        reading["on_error"] = "skip" if mode == "permissive" else "raise"
        _take_decoding(planning, reading)
        defaults = default_columns(_flag(planning, "includeHeaders", False), _flag(planning, "includeBatchMeta", False))
        source = cls(
            planning,
            reading,
            defaults if columns is None else columns,
            _flag(planning, "failOnDataLoss", True),
            is_stream,
            planning.pop(GROUP_ID, None),
            TriggerLimits.of(planning),
        )
        # Read the properties, which raise the errors of their options.
        _ = source.topics, source.starting
        source._ending()
        source._cuts()
        if not is_stream:
            source._warn_of_stream_options()
        return source

    def _warn_of_stream_options(self) -> None:
        given = [GROUP_ID] if self.group_id is not None else []
        for name in [*given, *(name for name in LIMIT_OPTIONS if name in self.planning)]:
            logger.warning("option %s is ignored in batch queries", name)

    @cached_property
    def topics(self) -> offset_options.SourceTopics:
        """The topics that the query reads."""
        return offset_options.parse_source_topics(self.planning)

    @cached_property
    def starting(self) -> offset_options.OffsetLimit:
        """Where the query starts."""
        return offset_options.parse_offset_limit(self.planning, "starting", is_stream=self.is_stream)

    def _ending(self) -> offset_options.OffsetLimit:
        return offset_options.parse_offset_limit(self.planning, "ending", is_stream=self.is_stream)

    def _cuts(self) -> tuple[int | None, int | None]:
        planning = self.planning
        return (
            offset_options.parse_positive(planning, "minPartitions"),
            offset_options.parse_positive(planning, "maxRecordsPerPartition"),
        )

    @property
    def isolation_level(self) -> IsolationLevel | str:
        """The isolation level of the query."""
        level: IsolationLevel | str = self.reading["isolation_level"]
        return level

    def admin(self) -> Admin:
        """Return an Admin with the options of the client, for the caller to close."""
        from kcodec.client import Admin

        reading = with_credentials(self.reading)
        admin = Admin(**{name: value for name, value in reading.items() if name in CLIENT_OPTIONS})
        end_refused_calls(admin)
        return admin

    def cut(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges of tasks (minPartitions, maxRecordsPerPartition)."""
        return planner.cut_ranges(ranges, *self._cuts())

    def plan(self) -> list[OffsetRange]:
        """Return the range of each task of a batch query, with the id of its topic.

        Raise what brokers respond, and DataLossError.
        """
        return self.cut(self.bounds())

    def bounds(self) -> list[OffsetRange]:
        """Return the range of each partition that a batch query reads, also if it is empty, with the id of its topic.

        Raise the errors of `plan`.
        """
        starting, ending, level = self.starting, self._ending(), self.isolation_level
        with self.admin() as admin:
            ids, counts = find_topics(admin, self.topics)
            partitions = self.topics.partitions(counts)
            if not partitions:
                return []
            earliest = list_offsets(admin, dict.fromkeys(partitions, "earliest"), level)
            latest = list_offsets(admin, dict.fromkeys(partitions, "latest"), level)
            starts, ends = (
                planner.resolve_offsets(
                    limit,
                    partitions,
                    earliest,
                    latest,
                    # Records that have arrived since `latest` was listed are after the end of the query.
                    {
                        each: min(offset, latest[each])
                        for each, offset in offsets_at(admin, limit, partitions, level).items()
                    },
                    is_start=is_start,
                )
                for limit, is_start in ((starting, True), (ending, False))
            )
            inverted = [each for each in partitions if starts[each] > ends[each]]
            if inverted:
                written = list_offsets(admin, dict.fromkeys(inverted, "latest"), "read_uncommitted")
                raise ValueError(
                    "; ".join(
                        planner.why_inverted(each, starts, ends, earliest[each], latest[each], written[each])
                        for each in inverted
                    )
                )
            requested = planner.ranges_between(starts, ends)
            beyond = [each.topic_partition for each in requested if each.end > latest[each.topic_partition]]
            ranges, losses = planner.readable_ranges(
                requested,
                earliest,
                latest,
                fail_on_data_loss=self.fails_on_data_loss,
                # With read_committed, the latest offset is the last stable offset.
                high_watermarks=list_offsets(admin, dict.fromkeys(beyond, "latest"), "read_uncommitted")
                if beyond
                else None,
            )
            for loss in losses:
                logger.warning("%s", loss)
        return [replace(each, topic_id=ids.get(each.topic)) for each in ranges]

    def read(
        self, ranges: Sequence[OffsetRange], on_end: Callable[[int, int], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges in the layout of Spark's source, and log the counts. Used in tasks.

        on_end: Called at the end with the number of lost offsets and the number of skipped corrupt batches.
        """
        prepare_worker()
        on_missing: Literal["raise", "skip"] = "raise" if self.fails_on_data_loss else "skip"
        columns = [column.column for column in self.columns] or ["offset"]  # without a column only rows are counted
        try:
            with kcodec.read_ranges(
                ranges, spark_layout=True, on_missing=on_missing, columns=columns, **with_credentials(self.reading)
            ) as records:
                yield from Renamed(self.columns).batches(records)
        except BrokerError as error:
            if error.code in LOST and self.fails_on_data_loss:
                error.add_note(CONTINUE)
            raise
        lost = sum(one.lost for one in records.ranges)
        log_task(", ".join(map(str, ranges)), records.counts, records.bytes_fetched, lost)
        if on_end is not None:
            on_end(lost, records.counts.skipped_batches)


def _read_options(name: str, value: Any) -> dict[str, Any]:
    """Return an option of the client or of `kcodec.read_ranges`, by its name there. Raise ValueError if the name is
    unknown."""
    folded = name.lower()
    own_name = folded.removeprefix("kafka.")
    instead = INSTEAD.get(folded) or INSTEAD.get(f"kafka.{own_name.replace('_', '.')}")
    if instead is not None:
        raise ValueError(f"option {name!r} has no meaning here: {instead}")
    found = client_option(name if folded == TOKEN_PROVIDER else f"kafka.{own_name}", value)
    for ours in found:
        if ours not in READ_OPTIONS or ours in OWN_OPTIONS:
            reason = why_refused(ours, is_write=False)
            if reason is not None:
                raise ValueError(f"option {name!r} {reason}")
            known = [*PLANNING_OPTIONS, *(KAFKA_NAMES if "." in folded else sorted(READ_OPTIONS - OWN_OPTIONS))]
            raise ValueError(
                f"unknown option {name!r}{suggestion(name, known)}: the options are those of Spark's Kafka source, "
                "and those of kcodec.read_ranges with or without 'kafka.' before them"
            )
        if ours in OBJECTS and isinstance(value, str):
            raise ValueError(f"option {name!r} must be a Python object, not the text of an option; {OBJECTS[ours]}")
    return found


def _check_values(reading: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise ValueError or TypeError for an invalid value, with the name that the caller has used. TLS and SASL are
    checked where they are used, because their files may exist only there.

    names: The names that the caller has used, by those of `kcodec.read_ranges`.
    """
    left = {name: value for name, value in reading.items() if not name.startswith(SECURITY)}
    try:
        own = ReadTopicConfig.take(left)
        own.settings(take_client_config(left, "read_ranges"))
    except (ValueError, TypeError) as error:
        text = str(error)
        ours = next((name for name in names if text.startswith(f"{name} ")), None)
        if ours is None:
            raise
        raise type(error)(f"option {names[ours]!r}{text.removeprefix(ours)}") from None


def _take_decoding(planning: dict[str, str], reading: dict[str, Any]) -> None:
    """Take the options checkCrcs, maxBatchBytes and maxDecompressedBytes, which are spelled as for files."""
    if "checkCrcs" in planning:
        reading["check_crcs"] = _flag(planning, "checkCrcs", True)
    if "maxBatchBytes" in planning or "maxDecompressedBytes" in planning:
        reading["limits"] = DecodeLimits(
            max_batch_bytes=offset_options.parse_positive(planning, "maxBatchBytes") or DEFAULT_MAX_BATCH_BYTES,
            max_decompressed_bytes=offset_options.parse_positive(planning, "maxDecompressedBytes")
            or DEFAULT_MAX_DECOMPRESSED_BYTES,
        )


def find_topics(admin: Admin, requested: offset_options.SourceTopics) -> tuple[dict[str, UUID | None], dict[str, int]]:
    """Return the id of each topic and the number of its partitions. Raise BrokerError for one that does not exist."""
    if requested.pattern is not None:
        listed = admin.list_topics()
        return (
            {name: one.topic_id for name, one in listed.items()},
            {name: one.num_partitions for name, one in listed.items()},
        )
    names = requested.subscribe or tuple({partition.topic for partition in requested.assign})
    found = admin.describe_topics(names)
    return (
        {name: one.topic_id for name, one in found.items()},
        {name: len(one.partitions) for name, one in found.items()},
    )


def list_offsets(
    admin: Admin, partitions: Mapping[TopicPartition, str | int], level: IsolationLevel | str
) -> dict[TopicPartition, int]:
    """Return the offset of each partition by "earliest", "latest" or a timestamp."""
    listed = admin.list_offsets(partitions, isolation_level=level)
    return {partition: one.offset for partition, one in listed.items()}


def offsets_at(
    admin: Admin, limit: offset_options.OffsetLimit, partitions: Sequence[TopicPartition], level: IsolationLevel | str
) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after the timestamp of each partition that has such a record."""
    if limit.kind != "timestamps":
        return {}
    times = limit.each if limit.each is not None else dict.fromkeys(partitions, limit.timestamp)
    requested: dict[TopicPartition, str | int] = {
        partition: time for partition, time in times.items() if partition in partitions and time is not None
    }
    found = list_offsets(admin, requested, level) if requested else {}
    return {partition: offset for partition, offset in found.items() if offset >= 0}


def names_of_topics(what: str, value: str | Sequence[Any]) -> str:
    """Return topics as the text of the option subscribe. Raise TypeError unless they are text, or a list of names."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{what} is {value!r}: expected names of topics as 'orders,payments' or ['orders', 'payments']")
    return ",".join(value)


def _text(name: str, value: Any) -> str:
    """Return an option as text in Spark's form: True is "true", a dict or a list is JSON, topics are separated by
    commas."""
    if name == "subscribe":
        return names_of_topics("option 'subscribe'", value)
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    return str(value)


def _flag(planning: dict[str, str], name: str, default: bool) -> bool:
    """Take an option that is true or false."""
    value = offset_options.parse_flag(planning, name, default)
    planning.pop(name, None)
    return value
