# SPDX-License-Identifier: Apache-2.0
"""The calls of a consumer that are one flow each; the sync and async API make methods of them. timeout: seconds, else
default_api_timeout_ms counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcodec.arguments import by_partition, partitions_of
from kcodec.cluster.list_offsets import ListedOffset, list_offsets
from kcodec.consumer import lag as lags
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.lag import PartitionLag
from kcodec.flow import Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, check_offsets

Partitions = Iterable[TopicPartition]


def _seconds(core: ConsumerCore, timeout: float | None) -> float:
    return core.settings.default_api_timeout if timeout is None else timeout


def assign(core: ConsumerCore, partitions: Partitions) -> Flow[None]:
    """Read exactly these partitions, without a group giving them out. Those that stay keep their position.

    Raises ValueError after `subscribe`.
    """
    yield from core.assign(partitions_of(partitions))


def enforce_rebalance(core: ConsumerCore, reason: str = "the application asked for it") -> Flow[None]:
    """Have the group give out its partitions again. Raises ValueError without a subscription."""
    yield from ()
    if core.membership is None:
        raise ValueError("enforce_rebalance needs a subscription")
    core.membership.request_rejoin(reason)


def seek(core: ConsumerCore, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Flow[None]:
    """Go on at this offset at the next poll. Raises ValueError for a partition that is not assigned."""
    ((name, where),) = check_offsets({partition: offset}).items()
    yield from core.seek(name, where)


def seek_to_beginning(core: ConsumerCore, *partitions: TopicPartition) -> Flow[None]:
    """Go on at the first offset of these partitions, or of all assigned ones if none is named.

    Raises ValueError for a partition that is not assigned, and where nothing is assigned: a subscription gets its
    partitions within `poll`, so call it in `on_assigned`.
    """
    yield from core.seek_to(partitions_of(partitions), "earliest")


def seek_to_end(core: ConsumerCore, *partitions: TopicPartition) -> Flow[None]:
    """Go on at the end of these partitions, or of all assigned ones if none is named: under read_committed the last
    stable offset. Raises ValueError as `seek_to_beginning`."""
    yield from core.seek_to(partitions_of(partitions), "latest")


def position(core: ConsumerCore, partition: TopicPartition, timeout: float | None = None) -> Flow[int]:
    """The offset that is read next, waited for where it is looked up. It moves past markers and aborted records.

    Raises ValueError for a partition that is not assigned, DeliveryTimeoutError, and what keeps it from being read.
    """
    return (yield from core.position(TopicPartition(*partition), _seconds(core, timeout)))


def committed(
    core: ConsumerCore, partitions: Partitions, timeout: float | None = None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """The offsets the group has committed; None where it has none. Offsets of a transaction that is not ended are
    waited for (RequireStable, KIP-447).

    Raises ValueError without a group, DeliveryTimeoutError, AuthorizationError, BrokerError.
    """
    offsets = core.need_group("committed")
    # As nobody: one whose transaction was refused as it is no member any more must learn where to go back to, too.
    return (yield from offsets.fetch(partitions_of(partitions), _seconds(core, timeout)))


def commit(
    core: ConsumerCore,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    timeout: float | None = None,
) -> Flow[None]:
    """Commit these offsets, or the positions of all assigned partitions: where a consumer goes on, not what it read
    last. Waits for the answer.

    Raises ValueError without a group; BrokerError if a rebalance took the partitions (ILLEGAL_GENERATION,
    UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID), naming the partition if one was refused;
    DeliveryTimeoutError, AuthorizationError.
    """
    given = core.consumed() if offsets is None else check_offsets(offsets)
    yield from core.commits.commit(given, _seconds(core, timeout))


def pause(core: ConsumerCore, *partitions: TopicPartition) -> Flow[None]:
    """Deliver nothing of these until `resume`; what was fetched is kept. Raises ValueError for one not assigned."""
    yield from ()
    core.assignment.pause(partitions_of(partitions), True)


def resume(core: ConsumerCore, *partitions: TopicPartition) -> Flow[None]:
    """Deliver these again."""
    yield from ()
    core.assignment.pause(partitions_of(partitions), False)


def beginning_offsets(
    core: ConsumerCore, partitions: Partitions, timeout: float | None = None
) -> Flow[dict[TopicPartition, int]]:
    """The first offset of each. Raises BrokerError, DeliveryTimeoutError."""
    return (yield from _offsets(core, partitions, "earliest", timeout))


def end_offsets(
    core: ConsumerCore, partitions: Partitions, timeout: float | None = None
) -> Flow[dict[TopicPartition, int]]:
    """The offset behind the last record of each that this consumer can see: the last stable offset under
    read_committed, the high watermark else. Raises BrokerError, DeliveryTimeoutError."""
    return (yield from _offsets(core, partitions, "latest", timeout))


def _offsets(
    core: ConsumerCore, partitions: Partitions, where: str, timeout: float | None
) -> Flow[dict[TopicPartition, int]]:
    wanted: dict[TopicPartition, str | int] = dict.fromkeys(partitions_of(partitions), where)
    found = yield from list_offsets(core.cluster, wanted, core.settings.isolation_level, _seconds(core, timeout))
    return {partition: answer.offset for partition, answer in found.items()}


def offsets_for_times(
    core: ConsumerCore, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
) -> Flow[dict[TopicPartition, ListedOffset | None]]:
    """The first offset whose record is of this time (ms since 1970) or later; None where there is none.

    Raises BrokerError, DeliveryTimeoutError.
    """
    wanted: dict[TopicPartition, str | int] = {**by_partition(timestamps, "timestamps", "ms since 1970")}
    for partition, timestamp in wanted.items():
        if not isinstance(timestamp, int) or timestamp < 0:
            raise ValueError(f"timestamps[{partition}]: {timestamp!r} is no time in ms since 1970")
    found = yield from list_offsets(core.cluster, wanted, core.settings.isolation_level, _seconds(core, timeout))
    return {partition: answer if answer.offset >= 0 else None for partition, answer in found.items()}


def lag(core: ConsumerCore, timeout: float | None = None) -> Flow[dict[TopicPartition, PartitionLag]]:
    """How far behind this consumer is in each assigned partition, by the log's end and by the last stable offset, and
    which transaction holds the latter back. Raises BrokerError, DeliveryTimeoutError."""
    return (yield from lags.lag(core.cluster, core.assignment, core.settings.group_id, _seconds(core, timeout)))


def partitions_for(core: ConsumerCore, topic: str, timeout: float | None = None) -> Flow[int]:
    """How many partitions a topic has. Raises BrokerError, DeliveryTimeoutError."""
    found = yield from core.cluster.ensure_topic(topic, _seconds(core, timeout))
    return len(found.partitions)


def group_metadata(core: ConsumerCore) -> Flow[ConsumerGroupMetadata]:
    """Who this member is, for `send_offsets` of a transaction: its generation fences it once it lost its partitions.
    Raises ValueError without a group."""
    yield from ()
    return core.group_metadata()
