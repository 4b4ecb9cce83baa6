# SPDX-License-Identifier: Apache-2.0
"""Offsets by position or timestamp, requested from the leaders of partitions (ListOffsets; Kafka: OffsetFetcher).

"latest" is the high watermark under read_uncommitted, the last stable offset under read_committed. If a leader has
moved, is loading, or does not know its high watermark yet (OFFSET_NOT_AVAILABLE), `kcodec.cluster.retry_driver` repeats
the request. It contains the known leader epoch, so that a former leader rejects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import ApiHandler, CallContext, by_topic, partition_codes, request_items
from kcodec.cluster.retry_routes import Leader
from kcodec.constants import IsolationLevel
from kcodec.errors import DeliveryTimeoutError
from kcodec.flow import Flow
from kcodec.integers import as_integer, shown
from kcodec.offsets import TopicPartition
from kcodec.protocol.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

NO_TIMESTAMP = -1
NO_OFFSET = -1
#: Words for offsets (Kafka: OffsetSpec, ListOffsetsRequest).
OFFSET_SPECS = {"latest": -1, "earliest": -2, "max_timestamp": -3, "earliest_local": -4, "latest_tiered": -5}
_LOWEST_VERSIONS = {-3: 7, -4: 8, -5: 9}
#: The first version that knows an isolation level; before it "latest" is always the high watermark.
_ISOLATION_VERSION = 2


@dataclass(frozen=True)
class ListedOffset:
    """A result of list_offsets.

    offset: The offset; -1 if no record is that late.
    timestamp: Timestamp of the record in ms since 1970; -1 if no record was searched for, or none found.
    leader_epoch: Leader epoch of the record; None if the broker does not report it.
    """

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int | None = None


def list_offsets_handler(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> ApiHandler[TopicPartition, ListedOffset]:
    """Return the handler for `request_items`. `timestamps` are in the form of the protocol; see `timestamp_of`."""

    def of(topic: str, number: int) -> Any:
        return ListOffsetsPartition(
            partition_index=number,
            current_leader_epoch=cluster.leader_epoch(topic, number),
            timestamp=timestamps[TopicPartition(topic, number)],
        )

    return ApiHandler(
        "list offset of",
        Leader(cluster),
        lambda some, until: ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(isolation),
            topics=[
                ListOffsetsTopic(name=topic, partitions=[of(topic, number) for number in numbers])
                for topic, numbers in by_topic(some).items()
            ],
            timeout_ms=until.left_ms,
        ),
        lambda response, some: partition_codes(response, some, value=_listed),
        lowest=max(
            _ISOLATION_VERSION if isolation is IsolationLevel.READ_COMMITTED else 1,
            *(_LOWEST_VERSIONS.get(timestamp, 0) for timestamp in timestamps.values()),
            0,
        ),
    )


def _listed(result: Any) -> ListedOffset:
    return ListedOffset(result.offset, result.timestamp, None if result.leader_epoch < 0 else result.leader_epoch)


def timestamp_of(spec: str | int) -> int:
    """Return the number of a word in OFFSET_SPECS, or a timestamp in ms unchanged. The numbers of the words are also
    accepted, because programs of other clients pass them (Java: ListOffsetsRequest, kafka-python: OffsetSpec). Raise
    ValueError for other words, and for lower numbers, which a broker rejects with UNSUPPORTED_VERSION."""
    number = as_integer(spec)
    if number is not None and number >= min(OFFSET_SPECS.values()):
        return number
    if number is not None:
        numbers = ", ".join(f"{value} ({word})" for word, value in OFFSET_SPECS.items())
        raise ValueError(
            f"offset: a timestamp must be at least 0 ms since 1970, or one of {numbers}, got {shown(number)}"
        )
    if spec not in OFFSET_SPECS:
        raise ValueError(
            f"offset must be one of {', '.join(OFFSET_SPECS)}, or milliseconds since 1970, not {shown(spec)}"
        )
    return OFFSET_SPECS[spec]


def isolation_of(given: IsolationLevel | str) -> IsolationLevel:
    """Return an isolation level by its name. Raise ValueError for other names."""
    found: object = given
    for level in IsolationLevel:
        if level == found and not isinstance(found, bool):  # True is equal to a number
            return level
    raise ValueError(f"isolation_level must be one of {', '.join(map(str, IsolationLevel))}, not {given!r}")


def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, str | int],
    isolation_level: IsolationLevel | str,
    timeout: float,
) -> Flow[dict[TopicPartition, ListedOffset]]:
    """Return offsets for a consumer.

    specs: For each partition, "earliest", "latest", "max_timestamp" or milliseconds since 1970.

    A timestamp selects the first record at or after it; the offset is -1 if none exists. Raise ValueError, or the
    error of the first partition that has one, with a note on the others: BrokerError, AuthorizationError,
    DeliveryTimeoutError.
    """
    context = CallContext(cluster, timeout, int, DeliveryTimeoutError)
    timestamps = {partition: timestamp_of(spec) for partition, spec in specs.items()}
    handler = list_offsets_handler(cluster, timestamps, isolation_of(isolation_level))
    outcome = yield from request_items(context, timestamps, handler, context.deadline(timeout))
    return outcome.first_value()
