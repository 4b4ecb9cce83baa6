# SPDX-License-Identifier: Apache-2.0
"""Requests of producers and tools to the transaction coordinator, and of coordinators to leaders (KafkaApis)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kcodec.broker.api import Api, ApiError, RequestContext, by_topic
from kcodec.broker.groups.topic_patterns import compile_pattern
from kcodec.broker.internal_topics import GroupHost
from kcodec.broker.topics import INTERNAL_TOPICS
from kcodec.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from kcodec.broker.transactions.state import EPOCH_BUMP_VERSION, State, TopicPartition
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

# Clients know PRODUCER_FENCED from these versions on. Earlier versions get INVALID_PRODUCER_EPOCH.
_INIT_FENCED_VERSION = 4
_FENCED_VERSION = 2
# From these versions on, the request belongs to transaction version 2.
_END_BUMP_VERSION = 5
_BATCHED_VERSION = 4


class TransactionHandlers:
    """The handlers of the APIs of transactions."""

    def __init__(self, coordinator: TransactionCoordinator, host: GroupHost) -> None:
        self._coordinator = coordinator
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.InitProducerIdRequest, (0, 5), self.init_producer_id),
            Api(messages.AddPartitionsToTxnRequest, (0, 5), self.add_partitions),
            Api(messages.AddOffsetsToTxnRequest, (0, 4), self.add_offsets),
            Api(messages.EndTxnRequest, (0, 5), self.end),
            Api(messages.WriteTxnMarkersRequest, (1, 2), self.write_markers),
            Api(messages.DescribeProducersRequest, (0, 0), self.describe_producers),
            Api(messages.DescribeTransactionsRequest, (0, 0), self.describe_transactions),
            Api(messages.ListTransactionsRequest, (0, 2), self.list_transactions),
        ]

    def init_producer_id(
        self, context: RequestContext, request: messages.InitProducerIdRequest
    ) -> messages.InitProducerIdResponse:
        """Respond to InitProducerId."""
        try:
            if (request.producer_id == -1) != (request.producer_epoch == -1):
                raise ApiError(ErrorCode.INVALID_REQUEST, "producer_id and producer_epoch belong together")
            expected = None
            if request.producer_id != -1:
                expected = ProducerIdentity(request.producer_id, request.producer_epoch)
            given = self._coordinator.init_producer_id(
                request.transactional_id, request.transaction_timeout_ms, expected
            )
        except ApiError as error:
            code = _known(error.code, context, _INIT_FENCED_VERSION)
            return messages.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        return messages.InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.epoch)

    # Partitions of a transaction

    def add_partitions(
        self, context: RequestContext, request: messages.AddPartitionsToTxnRequest
    ) -> messages.AddPartitionsToTxnResponse:
        """Respond to AddPartitionsToTxn. A request names one transaction up to version 3, and several from version 4
        on."""
        if context.api_version < _BATCHED_VERSION:
            producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            results = self._added(context, request.v3_and_below_transactional_id, producer, request.v3_and_below_topics)
            return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        return messages.AddPartitionsToTxnResponse(
            results_by_transaction=[
                messages.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=self._added(
                        context,
                        one.transactional_id,
                        ProducerIdentity(one.producer_id, one.producer_epoch),
                        one.topics,
                        verify_only=one.verify_only,
                    ),
                )
                for one in request.transactions
            ]
        )

    def _added(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Iterable[messages.AddPartitionsToTxnTopic],
        *,
        verify_only: bool = False,
    ) -> list[messages.AddPartitionsToTxnTopicResult]:
        wanted = [(topic.name, number) for topic in topics for number in topic.partitions]
        unknown = [one for one in wanted if self._host.topics.partition(*one) is None]
        if context.api_version < _BATCHED_VERSION and any(topic in INTERNAL_TOPICS for topic, _ in wanted):
            # only brokers may add internal topics
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            others = ErrorCode.OPERATION_NOT_ATTEMPTED
            return results_of({one: code if one[0] in INTERNAL_TOPICS else others for one in wanted})
        if unknown:
            others = ErrorCode.OPERATION_NOT_ATTEMPTED
            codes = {one: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if one in unknown else others for one in wanted}
            return results_of(codes)
        try:
            if verify_only:
                return results_of(self._coordinator.verify(transactional_id, producer, wanted))
            client_version = EPOCH_BUMP_VERSION if context.api_version >= _BATCHED_VERSION else 0
            self._coordinator.add_partitions(transactional_id, producer, frozenset(wanted), client_version)
        except ApiError as error:
            code = _known(error.code, context, _FENCED_VERSION)
            return results_of(dict.fromkeys(wanted, code))
        return results_of(dict.fromkeys(wanted, ErrorCode.NONE))

    def add_offsets(
        self, context: RequestContext, request: messages.AddOffsetsToTxnRequest
    ) -> messages.AddOffsetsToTxnResponse:
        """Respond to AddOffsetsToTxn. The partition of the group's offsets becomes part of the transaction."""
        partition = CONSUMER_OFFSETS_TOPIC, self._host.partition_of(request.group_id)
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = ErrorCode.NONE
        try:
            self._coordinator.add_partitions(request.transactional_id, producer, frozenset((partition,)), 0)
        except ApiError as error:
            code = _known(error.code, context, _FENCED_VERSION)
        return messages.AddOffsetsToTxnResponse(error_code=code)

    def end(self, context: RequestContext, request: messages.EndTxnRequest) -> messages.EndTxnResponse:
        """Respond to EndTxn."""
        client_version = EPOCH_BUMP_VERSION if context.api_version >= _END_BUMP_VERSION else 0
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            following = self._coordinator.end(
                request.transactional_id, producer, is_commit=request.committed, client_version=client_version
            )
        except ApiError as error:
            return messages.EndTxnResponse(error_code=_known(error.code, context, _FENCED_VERSION))
        if client_version < EPOCH_BUMP_VERSION:
            return messages.EndTxnResponse()
        return messages.EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.epoch)

    # The markers

    def write_markers(
        self, context: RequestContext, request: messages.WriteTxnMarkersRequest
    ) -> messages.WriteTxnMarkersResponse:
        """Respond to WriteTxnMarkers, which a tool sends to end a hanging transaction."""
        results = []
        for marker in request.markers:
            topics = by_topic(messages.WritableTxnMarkerTopicResult, marker.topics, partial(self._written, marker))
            results.append(messages.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return messages.WriteTxnMarkersResponse(markers=results)

    def _written(
        self, marker: messages.WritableTxnMarker, topic: str, number: int
    ) -> messages.WritableTxnMarkerPartitionResult:
        code = self._write_marker(marker, topic, number)
        return messages.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)

    def _write_marker(self, marker: messages.WritableTxnMarker, topic: str, number: int) -> ErrorCode:
        partition = self._host.topics.partition(topic, number)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            partition.log.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                is_commit=marker.transaction_result,
                transaction_version=marker.transaction_version,
            )
        except ApiError as error:
            return error.code
        if topic == CONSUMER_OFFSETS_TOPIC:
            self._coordinator.on_offsets_marker(number, marker.producer_id, marker.transaction_result)
        return ErrorCode.NONE

    # Descriptions

    def describe_producers(
        self, context: RequestContext, request: messages.DescribeProducersRequest
    ) -> messages.DescribeProducersResponse:
        """Respond to DescribeProducers."""
        topics = by_topic(messages.DescribeProducersTopicResponse, request.topics, self._producers)
        return messages.DescribeProducersResponse(topics=topics)

    def _producers(self, topic: str, number: int) -> messages.DescribeProducersPartitionResponse:
        partition = self._host.topics.partition(topic, number)
        if partition is None:
            return messages.DescribeProducersPartitionResponse(
                partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        return messages.DescribeProducersPartitionResponse(
            partition_index=number,
            active_producers=[
                messages.ProducerState(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=-1 if entry.first_offset is None else entry.first_offset,
                )
                for entry in partition.log.producers
            ],
        )

    def describe_transactions(
        self, context: RequestContext, request: messages.DescribeTransactionsRequest
    ) -> messages.DescribeTransactionsResponse:
        """Respond to DescribeTransactions."""
        return messages.DescribeTransactionsResponse(
            transaction_states=[self._described(one) for one in request.transactional_ids]
        )

    def _described(self, transactional_id: str) -> messages.DescribedTransactionState:
        found = self._coordinator.get(transactional_id)
        if found is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
            return messages.DescribedTransactionState(transactional_id=transactional_id, error_code=code)
        named: dict[str, list[int]] = {}
        for topic, number in sorted(found.partitions):
            named.setdefault(topic, []).append(number)
        return messages.DescribedTransactionState(
            transactional_id=transactional_id,
            transaction_state=found.state.title,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[messages.DescribedTransactionTopic(topic=topic, partitions=ids) for topic, ids in named.items()],
        )

    def list_transactions(
        self, context: RequestContext, request: messages.ListTransactionsRequest
    ) -> messages.ListTransactionsResponse:
        """Respond to ListTransactions."""
        titles = {state.title for state in State}
        pattern = None
        if request.transactional_id_pattern:
            try:
                pattern = compile_pattern(request.transactional_id_pattern)
            except ApiError as error:
                return messages.ListTransactionsResponse(error_code=error.code)
        listed = []
        now = self._host.clock.now_ms()
        for found in self._coordinator:
            is_chosen = (
                (not request.producer_id_filters or found.producer_id in request.producer_id_filters)
                and (not request.state_filters or found.state.title in request.state_filters)
                and (request.duration_filter < 0 or now - found.start_ms > request.duration_filter)
                and (pattern is None or pattern.fullmatch(found.transactional_id))
            )
            if is_chosen:
                listed.append(
                    messages.ListedTransactionState(
                        transactional_id=found.transactional_id,
                        producer_id=found.producer_id,
                        transaction_state=found.state.title,
                    )
                )
        return messages.ListTransactionsResponse(
            unknown_state_filters=[one for one in request.state_filters if one not in titles], transaction_states=listed
        )


def _known(code: ErrorCode, context: RequestContext, fenced_version: int) -> ErrorCode:
    """Return the code, or the older code that the version of the client knows."""
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < fenced_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def results_of(codes: dict[TopicPartition, ErrorCode]) -> list[messages.AddPartitionsToTxnTopicResult]:
    """Return the results of AddPartitionsToTxn for partitions and their error codes."""
    named: dict[str, list[messages.AddPartitionsToTxnPartitionResult]] = {}
    for (topic, number), code in codes.items():
        result = messages.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
        named.setdefault(topic, []).append(result)
    return [
        messages.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results)
        for topic, results in named.items()
    ]
