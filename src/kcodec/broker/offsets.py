# SPDX-License-Identifier: Apache-2.0
"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the requests about the offsets of a partition."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kcodec.broker.api import Api, ApiError, RequestContext, by_topic
from kcodec.broker.partition_log import READ_COMMITTED
from kcodec.broker.topics import Partition, Topics
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
#: Kafka: UNSUPPORTED_VERSION below the version that has the special timestamp.
_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


class OffsetApis:
    """The handlers of these APIs."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.ListOffsetsRequest, (1, 11), self.list_offsets),
            Api(messages.OffsetForLeaderEpochRequest, (2, 4), self.end_of_epochs),
            Api(messages.DeleteRecordsRequest, (0, 2), self.delete_records),
        ]

    def _partition(self, topic: str, number: int, leader_epoch: int = -1) -> Partition:
        found = self._topics.partition(topic, number)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found.check_leader_epoch(leader_epoch)
        return found

    def list_offsets(
        self, context: RequestContext, request: messages.ListOffsetsRequest
    ) -> messages.ListOffsetsResponse:
        """Respond to ListOffsets."""
        listed = partial(self._listed, context, request)
        topics = by_topic(messages.ListOffsetsTopicResponse, request.topics, listed)
        return messages.ListOffsetsResponse(topics=topics)

    def _listed(
        self, context: RequestContext, request: messages.ListOffsetsRequest, topic: str, one: Any
    ) -> messages.ListOffsetsPartitionResponse:
        response = messages.ListOffsetsPartitionResponse(partition_index=one.partition_index)
        try:
            if one.timestamp < EARLIEST_PENDING_UPLOAD or context.api_version < _VERSION_OF.get(one.timestamp, 0):
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
            partition = self._partition(topic, one.partition_index, one.current_leader_epoch)
        except ApiError as error:
            response.error_code = error.code
            return response
        log = partition.log
        last = log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
        if one.timestamp == LATEST:
            response.offset = last
            epoch = partition.leader_epoch
        elif one.timestamp in (EARLIEST, EARLIEST_LOCAL):
            response.offset = log.log_start_offset
            epoch = log.epoch_of(log.log_start_offset)
        elif one.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            epoch = -1  # no record is in remote storage, or is to be uploaded to it
        else:
            by_time = one.timestamp != MAX_TIMESTAMP
            try:
                found = log.offset_for_time(one.timestamp) if by_time else log.offset_of_max_timestamp()
            except OSError as error:
                _log.error("%s-%d: %s; ListOffsets has KAFKA_STORAGE_ERROR", topic, one.partition_index, error)
                response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                return response
            if found is None or found[0] >= last:
                return response
            response.offset, response.timestamp = found
            epoch = log.epoch_of(found[0])
        if context.api_version >= 4:
            response.leader_epoch = epoch
        return response

    def end_of_epochs(
        self, context: RequestContext, request: messages.OffsetForLeaderEpochRequest
    ) -> messages.OffsetForLeaderEpochResponse:
        """Respond to OffsetForLeaderEpoch."""
        topics = by_topic(messages.OffsetForLeaderTopicResult, request.topics, self._end_of_epoch)
        return messages.OffsetForLeaderEpochResponse(topics=topics)

    def _end_of_epoch(self, topic: str, one: messages.OffsetForLeaderPartition) -> messages.EpochEndOffset:
        try:
            partition = self._partition(topic, one.partition, one.current_leader_epoch)
        except ApiError as error:
            return messages.EpochEndOffset(partition=one.partition, error_code=error.code)
        epoch, end = partition.log.end_of_epoch(one.leader_epoch)
        return messages.EpochEndOffset(partition=one.partition, leader_epoch=epoch, end_offset=end)

    def delete_records(
        self, context: RequestContext, request: messages.DeleteRecordsRequest
    ) -> messages.DeleteRecordsResponse:
        """Respond to DeleteRecords."""
        topics = by_topic(messages.DeleteRecordsTopicResult, request.topics, self._delete)
        self._topics.keep_starts()
        return messages.DeleteRecordsResponse(topics=topics)

    def _delete(self, topic: str, one: messages.DeleteRecordsPartition) -> messages.DeleteRecordsPartitionResult:
        try:
            found = self._topics.get(topic)
            if found is not None and (found.is_internal or "delete" not in found.config("cleanup.policy")):
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION if found.is_internal else ErrorCode.POLICY_VIOLATION)
            low = self._partition(topic, one.partition_index).log.delete_before(one.offset)
        except ApiError as error:
            return messages.DeleteRecordsPartitionResult(
                partition_index=one.partition_index, low_watermark=-1, error_code=error.code
            )
        return messages.DeleteRecordsPartitionResult(partition_index=one.partition_index, low_watermark=low)
