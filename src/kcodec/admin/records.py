# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: offsets of partitions, deletion of records, leader election."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kcodec.admin.values import ElectedLeader
from kcodec.arguments import by_partition, partitions_of
from kcodec.cluster.list_offsets import ListedOffset, isolation_of, list_offsets_handler, timestamp_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, by_topic, partition_codes, results
from kcodec.cluster.retry_routes import Controller, Leader
from kcodec.constants import IsolationLevel
from kcodec.flow import Flow
from kcodec.integers import INT64_MAX, INT64_MIN, checked_integer
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.timestamps import warn_of_unit

ELECTIONS = {"preferred": 0, "unclean": 1}
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
        selects the first record at or after it. The offset is -1 if there is no such record.
    isolation_level: With "read_committed", offsets are at most the last stable offset.

    Raise BrokerError, or AuthorizationError without the permission. For several partitions, an AdminError contains the
    errors.
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


def elect_leaders(
    context: CallContext,
    partitions: Iterable[TopicPartition],
    *,
    election: str = "preferred",
    timeout: float | None = None,
) -> Flow[dict[TopicPartition, ElectedLeader]]:
    """Make the first replica of partitions their leader (KIP-460). An "unclean" election elects any replica and can
    lose records.

    election: "preferred" or "unclean". A partition that needs no election is not an error.

    A request whose response is lost is repeated. `was_needed` is then False if the earlier request has elected the
    leader.

    Raise BrokerError, for example PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE, or
    AuthorizationError without the permission. For several partitions, an AdminError contains the errors. Raise
    ValueError if `election` is invalid.
    """
    if election not in ELECTIONS:
        raise ValueError(f"election must be one of {', '.join(ELECTIONS)}, not {election!r}")
    handler: ApiHandler[TopicPartition, ElectedLeader] = ApiHandler(
        "elect leader of",
        Controller(context.cluster),
        lambda some, until: messages.ElectLeadersRequest(
            election_type=ELECTIONS[election],
            topic_partitions=[
                messages.ElectLeadersTopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(some).items()
            ],
            timeout_ms=until.left_ms,
        ),
        _elected,
        final=frozenset({ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}),
        lowest=1 if election == "unclean" else 0,
    )
    return results(context, partitions_of(partitions), handler, timeout)


def _elected(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ItemResult]]:
    if response.error_code:
        yield from ((partition, ItemResult(response.error_code)) for partition in partitions)
        return
    for topic in response.replica_election_results:
        for one in topic.partition_result:
            partition = TopicPartition(topic.topic, one.partition_id)
            is_needless = one.error_code == ErrorCode.ELECTION_NOT_NEEDED
            code = ErrorCode.NONE if is_needless else one.error_code
            yield partition, ItemResult(code, ElectedLeader(partition, not is_needless), one.error_message)
