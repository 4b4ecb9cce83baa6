# SPDX-License-Identifier: Apache-2.0
"""Detection of log truncation by leader epochs (KIP-320): are the records that a consumer has read still in the log?

After an unclean election, the new leader may lack records that were already read. Other records then get their offsets,
and a reader that continues at its position misses these records. After each change of the leader, the consumer
therefore requests from the new leader the end offset of the leader epoch of the last consumed record
(OffsetForLeaderEpoch 2 to 4). If this offset is below the position, the log was truncated there. The rules are those of
Java's consumer (OffsetsForLeaderEpochClient,
SubscriptionState):

    the leader has no such epoch (-1)           unknown: as auto_offset_reset says; "none": the error
    the epoch ends below the position           continue at its end, the first offset that may differ; "none": the error
    otherwise                                   the position is valid
    brokers without leader epochs, or no permission (version 2 needs one on the cluster): the position is valid
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import ApiHandler, ItemResult, by_topic
from kcodec.cluster.retry_routes import Leader
from kcodec.errors import LogTruncationError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic

CONSUMER_REPLICA_ID = -1
UNKNOWN = -1


class Position(NamedTuple):
    """A position to validate. `leader_epoch` is the known epoch of the leader of the last request."""

    offset: int
    position_epoch: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The leader's response: its largest epoch that is not above the requested one, and the end offset of that
    epoch."""

    leader_epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader knows the epoch."""
        return self.leader_epoch != UNKNOWN and self.end_offset != UNKNOWN


def epoch_end_handler(
    cluster: Cluster, requested: MutableMapping[TopicPartition, Position]
) -> ApiHandler[TopicPartition, EpochEnd]:
    """Return the handler for `request_items` that gets the end of the epochs of these positions. It sets the leader
    epochs in `requested` when the request is sent. If the leader has a newer epoch, it rejects the request
    (FENCED_LEADER_EPOCH), and the next request has the epoch of the updated metadata."""

    def of(topic: str, number: int) -> Any:
        position = requested[TopicPartition(topic, number)]._replace(leader_epoch=cluster.leader_epoch(topic, number))
        requested[TopicPartition(topic, number)] = position
        return OffsetForLeaderPartition(
            partition=number, current_leader_epoch=position.leader_epoch, leader_epoch=position.position_epoch
        )

    return ApiHandler(
        "validate position in",
        Leader(cluster),
        lambda some, until: OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID,
            topics=[
                OffsetForLeaderTopic(topic=topic, partitions=[of(topic, number) for number in numbers])
                for topic, numbers in by_topic(some).items()
            ],
        ),
        _ends,
        lowest=2,
    )


def _ends(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ItemResult]]:
    for topic in response.topics:
        for one in topic.partitions:
            end = EpochEnd(one.leader_epoch, one.end_offset)
            yield TopicPartition(topic.topic, one.partition), ItemResult(one.error_code, end)


def is_truncated(position: Position, end: EpochEnd) -> bool:
    """Return whether the log was truncated below the position, or that is unknown."""
    return not end.is_known or end.end_offset < position.offset


def truncation_error(partition: TopicPartition, position: Position, end: EpochEnd) -> LogTruncationError:
    """Return the error for auto_offset_reset "none"; it is not raised here."""
    where = (
        f"the log matches the records read up to offset {end.end_offset} (leader epoch {end.leader_epoch})"
        if end.is_known
        else "the leader does not know up to which offset the log matches the records read"
    )
    return LogTruncationError(
        f"{partition}: the log was truncated: records below the position {position.offset}, read in leader epoch "
        f'{position.position_epoch}, are no longer in it; {where}. auto_offset_reset is "none": seek to the offset to '
        "continue at",
        partition=partition,
        position=position.offset,
        position_epoch=position.position_epoch,
        divergent_offset=end.end_offset if end.is_known else UNKNOWN,
        divergent_epoch=end.leader_epoch if end.is_known else UNKNOWN,
        name=ErrorCode.OFFSET_OUT_OF_RANGE.name,
        remedy="stop",
    )
