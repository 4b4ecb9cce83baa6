# SPDX-License-Identifier: Apache-2.0
"""TxnOffsetCommit: verify the transaction, then pass the offsets to the group coordinator (KIP-447, KIP-890)."""

from __future__ import annotations

from typing import Any

from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.groups.offset_requests import OffsetRequests
from kcodec.broker.internal_topics import GroupHost
from kcodec.broker.produce import verification_code
from kcodec.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

_ADD_PARTITION_VERSION = 5
_ABORTABLE_VERSION = 4
_IDS_VERSION = 6
# Error codes that a group coordinator returns instead of those of a leader.
_COORDINATOR_CODES = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class TxnOffsetCommit:
    """The handler of TxnOffsetCommit.

    offsets: Requests about offsets of the group coordinator, which checks the group and writes the offsets.
    """

    def __init__(self, coordinator: TransactionCoordinator, host: GroupHost, offsets: OffsetRequests) -> None:
        self._coordinator = coordinator
        self._host = host
        self._offsets = offsets

    def apis(self) -> list[Api]:
        """Return the API with its handler."""
        return [Api(messages.TxnOffsetCommitRequest, (0, 6), self.commit)]

    def commit(self, context: RequestContext, request: messages.TxnOffsetCommitRequest) -> Any:
        """Respond to TxnOffsetCommit."""
        if context.api_version >= _IDS_VERSION:
            for topic in request.topics:
                known = self._host.topics.by_id(topic.topic_id)
                topic.name = "" if known is None else known.name
        found = self._offsets.check_transactional(request)
        if found is not None:
            return found
        if not request.group_id:
            return self._offsets.refused_transactional(request, ErrorCode.INVALID_GROUP_ID)
        code = self._verified(context, request)
        if code is not ErrorCode.NONE:
            return self._offsets.refused_transactional(request, _COORDINATOR_CODES.get(code, code))
        return self._offsets.commit_transactional(context, request)

    def _verified(self, context: RequestContext, request: messages.TxnOffsetCommitRequest) -> ErrorCode:
        key = CONSUMER_OFFSETS_TOPIC, self._host.partition_of(request.group_id)
        partition = self._host.topics.partition(*key)
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        if partition.log.producers.has_open_transaction(request.producer_id, request.producer_epoch):
            return ErrorCode.NONE
        adds = context.api_version >= _ADD_PARTITION_VERSION
        if not adds and not self._host.settings.verifies_transactions:
            return ErrorCode.NONE
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            partition.log.producers.begin_verification(
                request.producer_id, request.producer_epoch, -1, self._host.clock.now_ms(), bumps_epoch=adds
            )
            code = self._coordinator.add_or_verify(request.transactional_id, producer, [key], adds=adds)[key]
        except ApiError as error:
            code = error.code
        # unlike Produce, all versions of TxnOffsetCommit know CONCURRENT_TRANSACTIONS
        return verification_code(code, is_new=context.api_version >= _ABORTABLE_VERSION, adds=True)
