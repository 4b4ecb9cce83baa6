# SPDX-License-Identifier: Apache-2.0
"""Whether what a consumer has read is still in the log: leader epochs (KIP-320).

An unclean election makes a replica the leader that lacks records which were read already; others take their offsets,
and a reader that goes on at its position misses them. So after each change of leader the new one is asked where the
leader epoch of the last record consumed ends (OffsetForLeaderEpoch 2 to 4). Ends it below the position, the log was
cut there. The rules are those of Java's consumer (OffsetsForLeaderEpochClient, SubscriptionState):

    the leader knows of no such epoch (-1)      nothing can be told: as auto_offset_reset says; "none": the error
    the epoch ends below the position           go on where it ends, the first offset that may differ; "none": the error
    else                                        the position stands
    brokers without leader epochs, or no right to ask (version 2 wants one on the cluster): the position stands
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import ApiHandler, ItemResult, by_topic
from kcodec.cluster.retry_routes import Leader
from kcodec.errors import LogTruncationError
from kcodec.offsets import TopicPartition
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

CONSUMER_REPLICA_ID = -1
UNKNOWN = -1


class Position(NamedTuple):
    """What is to be validated. leader_epoch: of the leader that was asked last, as we knew it."""

    offset: int
    position_epoch: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """What the leader says: the largest epoch it has that is not above the one asked for, and the offset behind it."""

    leader_epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader could tell."""
        return self.leader_epoch != UNKNOWN and self.end_offset != UNKNOWN


def epoch_end_handler(
    cluster: Cluster, requested: MutableMapping[TopicPartition, Position]
) -> ApiHandler[TopicPartition, EpochEnd]:
    """For `settle`: where the epochs of these positions end. The leader epochs in `requested` are set as they go out:
    a leader that knows a newer one refuses ours (FENCED_LEADER_EPOCH), and is sent the epoch that the metadata has by
    then."""

    def of(topic: str, number: int) -> Any:
        position = requested[TopicPartition(topic, number)]._replace(leader_epoch=cluster.leader_epoch(topic, number))
        requested[TopicPartition(topic, number)] = position
        return messages.OffsetForLeaderPartition(
            partition=number, current_leader_epoch=position.leader_epoch, leader_epoch=position.position_epoch
        )

    return ApiHandler(
        "validate position in",
        Leader(cluster),
        lambda some, until: messages.OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID,
            topics=[
                messages.OffsetForLeaderTopic(topic=topic, partitions=[of(topic, number) for number in numbers])
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
    """Whether the log was cut below the position, or nothing can be told."""
    return not end.is_known or end.end_offset < position.offset


def truncation_error(partition: TopicPartition, position: Position, end: EpochEnd) -> LogTruncationError:
    """For auto_offset_reset "none"; it is not raised."""
    where = (
        f"the log is what was read up to offset {end.end_offset} (leader epoch {end.leader_epoch})"
        if end.is_known
        else "the leader cannot tell up to where the log is what was read"
    )
    return LogTruncationError(
        f"{partition}: records below the position {position.offset}, read in leader epoch {position.position_epoch}, "
        f'are not in the log any more: {where}. auto_offset_reset is "none": seek to where reading is to go on',
        partition=partition,
        position=position.offset,
        position_epoch=position.position_epoch,
        divergent_offset=end.end_offset if end.is_known else UNKNOWN,
        divergent_epoch=end.leader_epoch if end.is_known else UNKNOWN,
        name=ErrorCode.OFFSET_OUT_OF_RANGE.name,
        remedy="stop",
    )
