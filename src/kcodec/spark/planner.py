# SPDX-License-Identifier: Apache-2.0
"""The offset ranges that a query reads, one for each task, computed from its topics, offsets, timestamps and limits.

The functions are pure. They use neither Spark nor a broker, and get all offsets as arguments. Defaults and results are
those of Spark's own Kafka source (KafkaOffsetRangeCalculator and KafkaMicroBatchStream). Tests compare them with its
classes.

    resolve_offsets                     the limits of a query (`offset_options`) to one offset for each partition
    cut_ranges                          minPartitions, maxRecordsPerPartition
    limit_offsets, limit_bytes, is_batch_delayed    max- and minOffsetsPerTrigger, maxTriggerDelay, maxBytesPerTrigger
    DataLoss, find_losses               failOnDataLoss
    StreamOffsets                       offsets of a stream as JSON
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.spark.offset_options import (
    EARLIEST,
    HIGHEST_LONG,
    LATEST,
    OffsetLimit,
    json_object,
    partition_number,
    whole_number,
)
from kcodec.timestamps import unit_hint

# A partition of which nothing has been read yet: its offsets are taken to have this many bytes each.
DEFAULT_BYTES_PER_OFFSET = 1024

PartitionOffsets = Mapping[TopicPartition, int]


def resolve_offsets(
    limit: OffsetLimit,
    partitions: Collection[TopicPartition],
    earliest: PartitionOffsets,
    latest: PartitionOffsets,
    by_timestamp: PartitionOffsets | None = None,
    *,
    is_start: bool,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition where a query starts (is_start) or ends.

    earliest, latest: the bounds of each log; latest is the last stable offset for read_committed. by_timestamp: for a
    limit of timestamps, the offset of the first record at or after the timestamp, without those that have none. A
    partition without one ends at its latest offset, and starts there with the strategy "latest".
    Raise ValueError if a limit names other partitions than `partitions`, and for a starting timestamp without records.
    """
    if limit.each is not None:
        _check_partitions(limit, partitions)
    resolved: dict[TopicPartition, int] = {}
    for partition in partitions:
        if limit.kind == "timestamps":
            offset = (by_timestamp or {}).get(partition)
            if offset is None and is_start and limit.strategy == "error":
                when = limit.timestamp if limit.each is None else limit.each[partition]
                raise ValueError(
                    f"option {limit.option!r}: {partition} has no record with the timestamp {when} or a later one"
                    f"{unit_hint(when)}; startingOffsetsByTimestampStrategy=latest starts at its end"
                )
            resolved[partition] = latest[partition] if offset is None else offset
        else:
            offset = {"earliest": EARLIEST, "latest": LATEST}.get(limit.kind)
            if offset is None:
                offset = (limit.each or {})[partition]
            resolved[partition] = {EARLIEST: earliest, LATEST: latest}.get(offset, {partition: offset})[partition]
    return resolved


def _check_partitions(limit: OffsetLimit, partitions: Collection[TopicPartition]) -> None:
    """Check Spark's rule: offsets or timestamps by partition name exactly the partitions that are read."""
    named = set(limit.each or ())
    for partition in sorted(named - set(partitions)):
        raise ValueError(f"option {limit.option!r} names {partition}, which the query does not read")
    for partition in sorted(set(partitions) - named):
        raise ValueError(
            f"option {limit.option!r} does not name {partition}: it must name every partition that is read"
        )


# Ranges


def ranges_between(starts: PartitionOffsets, ends: PartitionOffsets) -> list[OffsetRange]:
    """Return the range of each partition. The caller has checked that no end is below its start."""
    return [OffsetRange(*partition, starts[partition], ends[partition]) for partition in sorted(ends)]


def why_inverted(
    partition: TopicPartition, starts: PartitionOffsets, ends: PartitionOffsets, first: int, end: int, written: int
) -> str:
    """Return why the start of a partition is greater than its end.

    first, end: The bounds of the log; end is the last stable offset for read_committed.
    written:    End of the log, including open transactions.
    """
    start, last = starts[partition], ends[partition]
    text = f"the start offset {start} is greater than the end offset {last} for {partition}; the log "
    text += f"has offsets {first} to {written - 1}" if written > first else f"is empty and ends at {written}"
    if start > written:
        return (
            f"{text}: the topic was deleted and created again, the log was truncated, or the offset is that of another "
            "topic"
        )
    if start > end:
        return (
            f"{text}, and its last stable offset is {end}, because a transaction is open: a query with read_committed "
            "can read the records after it when the transaction has ended"
        )
    return text


def cut_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return the ranges of tasks: at least min_partitions if there are enough offsets, of at most max_records each.

    As KafkaOffsetRangeCalculator: first every range is cut to max_records; if there are still too few, larger ranges
    are cut further in proportion to their sizes. Empty ranges are left out.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [part for each in found for part in _divided(each, -(-each.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.size for each in found)
    small = [each for each in found if _part_count(each.size, total, min_partitions) == 1]
    small_partitions = {each.topic_partition for each in small}
    large = total - sum(each.size for each in small)
    requested = max(min_partitions - len(small), 1)
    cut: list[OffsetRange] = []
    for each in found:
        count = 1 if each.topic_partition in small_partitions else _part_count(each.size, large, requested)
        cut += _divided(each, count)
    return [each for each in cut if each.size > 0]


def _part_count(size: int, total: int, count: int) -> int:
    """Return the number of parts, of `count` for `total` offsets, that `size` of them make; rounded as Math.round
    does."""
    return max(math.floor(size / total * count + 0.5), 1)


def _divided(each: OffsetRange, count: int) -> list[OffsetRange]:
    """Return a range in `count` parts; rounding is left to the last ones."""
    parts = []
    start = each.start
    for part in range(count):
        end = start + (each.end - start) // (count - part)
        parts.append(replace(each, start=start, end=end))
        start = end
    return parts


# Limits


def limit_offsets(start: PartitionOffsets, end: PartitionOffsets, limit: int) -> dict[TopicPartition, int]:
    """Return the ends of a micro-batch of about `limit` offsets (maxOffsetsPerTrigger), in proportion to the backlog.

    As KafkaMicroBatchStream.rateLimit: each partition with a backlog gets at least one offset, and none more than it
    has. start: of every partition in `end`, earliest offsets for new ones.
    """
    sizes = {partition: end[partition] - start[partition] for partition in end if partition in start}
    backlog = {partition: size for partition, size in sizes.items() if size > 0}
    total = float(sum(backlog.values()))
    limited = dict(end)
    for partition, size in backlog.items():
        share = limit * (size / total)
        count = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = min(end[partition], start[partition] + count)
    return limited


def limit_bytes(
    start: PartitionOffsets, end: PartitionOffsets, limit: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Return the ends of a micro-batch of about `limit` bytes (maxBytesPerTrigger), by bytes per offset so far.

    A partition of which nothing is known is taken as the mean of the others, or DEFAULT_BYTES_PER_OFFSET. The estimate
    of a batch that turns out larger is corrected with the next one (`updated_bytes_per_offset`).
    """
    known = [size for size in bytes_per_offset.values() if size > 0]
    usual = sum(known) / len(known) if known else float(DEFAULT_BYTES_PER_OFFSET)
    backlog = {partition: end[partition] - start[partition] for partition in end if partition in start}
    weights = {
        partition: count * (bytes_per_offset.get(partition) or usual)
        for partition, count in backlog.items()
        if count > 0
    }
    total = sum(weights.values())
    limited = dict(end)
    if total <= limit:
        return limited
    for partition in weights:
        count = math.floor(backlog[partition] * (limit / total))
        limited[partition] = min(end[partition], start[partition] + max(count, 1))
    return limited


def updated_bytes_per_offset(before: float | None, size: int, offsets: int) -> float | None:
    """Return the estimate after a range of `offsets` offsets had `size` bytes: half of it the new figure."""
    if offsets <= 0:
        return before
    return size / offsets if before is None else (before + size / offsets) / 2


def is_batch_delayed(
    start: PartitionOffsets,
    end: PartitionOffsets,
    min_offsets: int | None,
    waited_ms: int,
    max_delay_ms: int,
) -> bool:
    """Return whether a micro-batch waits for more offsets (minOffsetsPerTrigger, maxTriggerDelay).

    As KafkaMicroBatchStream.delayBatch. waited_ms: since the last batch; max_delay_ms: from when on none waits.
    """
    if min_offsets is None or waited_ms >= max_delay_ms:
        return False
    return sum(offset - start.get(partition, 0) for partition, offset in end.items()) < min_offsets


# Data loss


@dataclass(frozen=True)
class DataLoss:
    """Offsets that a query should read and cannot: [start, end) of a partition; end None if it cannot be known."""

    partition: TopicPartition
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        offsets = f"offsets from {self.start} on"
        if self.end is not None:
            offsets = f"offsets {self.start} to {self.end - 1}" if self.end - self.start > 1 else f"offset {self.start}"
        return f"{self.partition}: {offsets} cannot be read: {self.reason}"


class DataLossError(ValueError):
    """Offsets that a query should read are gone, and failOnDataLoss is true. losses: all of them."""

    def __init__(self, losses: Sequence[DataLoss]) -> None:
        self.losses = tuple(losses)
        remedy = "To continue with the remaining offsets and to log the lost ones, set failOnDataLoss=false"
        super().__init__("; ".join(map(str, losses)) + f". {remedy}")


def created_again(before: str | None, now: str) -> str:
    """Return the reason for lost offsets if the topic has another id now."""
    return f"the topic was deleted and created again (its id was {before} and is {now})"


def find_losses(
    ranges: Iterable[OffsetRange],
    earliest: PartitionOffsets,
    latest: PartitionOffsets,
    *,
    expected_ids: Mapping[str, str] | None = None,
    found_ids: Mapping[str, str] | None = None,
    high_watermarks: PartitionOffsets | None = None,
) -> tuple[list[OffsetRange], list[DataLoss]]:
    """Return what of the ranges can be read, and what cannot.

    earliest, latest: the bounds of the logs that exist. expected_ids, found_ids: topic ids of the query's offsets and
    of the cluster; a topic that was created again has nothing of what the offsets name. high_watermarks: those of
    partitions of which `latest` is the last stable offset. Where a range begins below the log start it continues there,
    and where it begins beyond the end, it is empty.
    """
    kept: list[OffsetRange] = []
    losses: list[DataLoss] = []
    for each in ranges:
        partition = each.topic_partition
        expected, found = (expected_ids or {}).get(each.topic), (found_ids or {}).get(each.topic)
        if partition not in earliest or partition not in latest:
            # An empty range: the query had read everything, so all offsets from here on are lost.
            end_of_loss = each.end if each.end > each.start else None
            losses.append(DataLoss(partition, each.start, end_of_loss, "the partition does not exist any more"))
            continue
        first, end = earliest[partition], latest[partition]
        if expected is not None and found is not None and expected != found:
            losses.append(DataLoss(partition, each.start, None, created_again(expected, found)))
            kept.append(replace(each, start=first, end=max(first, min(each.end, end))))
            continue
        bounds = f"the log has offsets {first} to {end - 1}" if end > first else f"the log is empty, it ends at {end}"
        if each.start < first:
            reason = f"{bounds}: they were deleted, by retention or DeleteRecords"
            losses.append(DataLoss(partition, each.start, max(min(first, each.end), each.start), reason))
        written = max(end, (high_watermarks or {}).get(partition, end))
        if max(each.start, end) < min(each.end, written):
            reason = (
                f"they are beyond the last stable offset {end} because a transaction is open; a query with "
                "read_committed can read them after the transaction has ended"
            )
            losses.append(DataLoss(partition, max(each.start, end), min(each.end, written), reason))
        if each.end > written:
            if written > end:
                bounds = f"the log has offsets {first} to {written - 1}"
            reason = f"{bounds}: the log was truncated, or the offsets are those of another topic"
            losses.append(DataLoss(partition, max(each.start, written), each.end, reason))
        start = min(max(each.start, first), max(end, first))
        kept.append(replace(each, start=start, end=max(start, min(each.end, end))))
    return kept, losses


def readable_ranges(
    ranges: Iterable[OffsetRange],
    earliest: PartitionOffsets,
    latest: PartitionOffsets,
    *,
    fail_on_data_loss: bool,
    high_watermarks: PartitionOffsets | None = None,
) -> tuple[list[OffsetRange], list[DataLoss]]:
    """Return as `find_losses`, for the caller to log; raise DataLossError if there is a loss and fail_on_data_loss."""
    kept, losses = find_losses(ranges, earliest, latest, high_watermarks=high_watermarks)
    if losses and fail_on_data_loss:
        raise DataLossError(losses)
    return kept, losses


def start_new_partitions(
    start: PartitionOffsets, end: PartitionOffsets, earliest: PartitionOffsets
) -> tuple[dict[TopicPartition, int], list[DataLoss]]:
    """Return `start` with the earliest offset of each partition that is only in `end`, and what they had lost by then.

    A partition that is new in a stream begins at offset 0; Spark's source, too, takes a higher one for a loss.
    """
    started, losses = dict(start), []
    for partition in sorted(set(end) - set(start)):
        first = started[partition] = earliest[partition]
        if first > 0:
            losses.append(
                DataLoss(
                    partition,
                    0,
                    first,
                    f"the partition is new to the query and begins at offset {first}, which is expected if an existing "
                    "topic was added to the query",
                )
            )
    return started, losses


# Offsets as JSON


@dataclass(frozen=True)
class StreamOffsets:
    """The position of a stream: the next offset of each partition, and the ids of the topics.

    As JSON: ``{"v":1,"orders":{"id":"<topic id>","0":23}}``. A topic with the name v is written as ``/v``, which no
    topic can be called.

    missing: Topics whose offsets are kept although the topic does not exist, each with the time (ms since 1970)
             since which it is missing.
    """

    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, str] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    VERSION = 1
    #: Of the end of a first batch: where it starts, which no other offset in a checkpoint has.
    FIRST = "/start"
    #: Of a start that the options no longer give: why. A first batch that is replayed does not need it.
    REFUSED = "/refused"
    MISSING = "/missing"

    def to_dict(self) -> dict[str, Any]:
        """Return the offsets as an object for JSON, in order of topics and partitions."""
        found: dict[str, Any] = {"v": self.VERSION}
        for partition, offset in sorted(self.offsets.items()):
            key = "/v" if partition.topic == "v" else partition.topic
            topic_id = self.topic_ids.get(partition.topic)
            topic = found.setdefault(key, {} if topic_id is None else {"id": topic_id})
            topic[str(partition.partition)] = offset
        if self.missing:
            found[self.MISSING] = dict(sorted(self.missing.items()))
        return found

    @classmethod
    def check(cls, value: Any) -> None:
        """Raise ValueError if a value is not such an object. In the checkpoint of another source, it is not one."""
        example = '{"v":1,"orders":{"0":23}}'
        if not isinstance(value, Mapping) or "v" not in value:
            raise ValueError(
                f"expected offsets of kcodec, as in {example}, got {json.dumps(value)[:200]}: the checkpoint is that "
                "of another source. Give the query a new checkpoint, and set startingOffsets; for a checkpoint of "
                'format("kafka"), kcodec.spark.offsets_of_checkpoint returns them'
            )
        if value["v"] != cls.VERSION:
            raise ValueError(f"offsets of version {value['v']!r}: expected version {cls.VERSION}, as in {example}")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> StreamOffsets:
        """Return the offsets of such an object. Raise ValueError for another one, and for a later version."""
        cls.check(value)
        offsets: dict[TopicPartition, int] = {}
        topic_ids: dict[str, str] = {}
        for key, numbers in value.items():
            if key in ("v", cls.FIRST, cls.REFUSED, cls.MISSING):
                continue
            topic = "v" if key == "/v" else key
            for name, number in json_object(numbers).items():
                if name == "id":
                    topic_ids[topic] = str(number)
                else:
                    offsets[TopicPartition(topic, partition_number(name))] = whole_number(number, HIGHEST_LONG)
        missing = {
            topic: whole_number(when, HIGHEST_LONG) for topic, when in json_object(value.get(cls.MISSING, {})).items()
        }
        return cls(offsets, topic_ids, missing)
