# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: offsets of partitions, and deletion of records."""

from __future__ import annotations

from collections.abc import Mapping

from kcodec.arguments import by_partition
from kcodec.cluster.list_offsets import ListedOffset, isolation_of, list_offsets_handler, timestamp_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, by_topic, partition_codes, results
from kcodec.cluster.retry_routes import Leader
from kcodec.constants import IsolationLevel
from kcodec.flow import Flow
from kcodec.integers import INT64_MAX, INT64_MIN, checked_integer
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.timestamps import warn_of_unit

#: Offset in `delete_records` that stands for the high watermark.
HIGH_WATERMARK = -1


def list_offsets(
    context: CallContext,
    partitions: Mapping[TopicPartition, str | int],
    *,
    isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, ListedOffset]]:
    """Return an offset for each partition: the earliest, the latest, or the one of a timestamp.

    partitions: For each partition, "earliest", "latest", "max_timestamp" or a timestamp in ms since 1970. A timestamp
        selects the first record at or after it. The offset is -1 if there is no such record. For tiered storage, there
        are also "earliest_local" and "latest_tiered". The numbers of the protocol are accepted in place of these words:
        -1 (latest), -2 (earliest), -3 (max_timestamp), -4 (earliest_local) and -5 (latest_tiered).
    isolation_level: With "read_committed", offsets are at most the last stable offset.

    Raise ValueError if a word or a timestamp is invalid, for example a timestamp below -5. Raise BrokerError, or
    AuthorizationError without the permission. For several partitions, an AdminError contains the errors.
    """
    timestamps = {
        partition: timestamp_of(spec) for partition, spec in by_partition(partitions, "partitions", "position").items()
    }
    for partition, timestamp in timestamps.items():
        warn_of_unit(f"partitions[{partition}]", timestamp)
    handler = list_offsets_handler(context.cluster, timestamps, isolation_of(isolation_level))
    return results(context, timestamps, handler, timeout)


def delete_records(
    context: CallContext, before: Mapping[TopicPartition, int], *, timeout: float | None = None
) -> Flow[dict[TopicPartition, int]]:
    """Delete the records before an offset (KIP-107), and return the new first offsets.

    before: For each partition, the first offset to keep. -1 deletes all records below the high watermark.

    With -1, a request that may have reached the broker is not repeated, because it would also delete records that were
    written in the meantime. If its response is lost, raise UnknownOutcomeError. Requests with another offset are
    repeated.

    Raise BrokerError (OFFSET_OUT_OF_RANGE) if the offset is above the high watermark, and BrokerError
    (POLICY_VIOLATION) if the topic is compacted. Raise AuthorizationError without the permission. For several
    partitions, an AdminError contains the errors.
    """
    offsets = {
        partition: checked_integer(f"before: the offset of {partition}", offset, INT64_MIN, INT64_MAX)
        for partition, offset in by_partition(before, "before", "offset").items()
    }
    handler: ApiHandler[TopicPartition, int] = ApiHandler(
        "delete records of",
        Leader(context.cluster),
        lambda some, until: messages.DeleteRecordsRequest(
            topics=[
                messages.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        messages.DeleteRecordsPartition(
                            partition_index=number, offset=offsets[TopicPartition(topic, number)]
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(some).items()
            ],
            timeout_ms=until.left_ms,
        ),
        lambda response, some: partition_codes(response, some, value=lambda result: result.low_watermark),
        is_repeatable=lambda partition: offsets[partition] != HIGH_WATERMARK,
    )
    return results(context, offsets, handler, timeout)
