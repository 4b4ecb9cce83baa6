# SPDX-License-Identifier: Apache-2.0
"""Produce: the checks of the request, the verification of transactions, the append (KafkaApis, ReplicaManager).

The first batch of a transaction in a partition needs the transaction coordinator. Up to version 11 of Produce, the
producer must have added the partition before (KIP-890, part 1). From version 12 on, Produce adds it. While the previous
transaction of the producer is being completed, a request of version 12 is tried again for a short time. After that, the
producer gets CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from kcodec._fast import RecordBatch, batches
from kcodec.broker.api import CLOSE, Api, ApiError, Later, RequestContext
from kcodec.broker.clock import Clock
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Partition, Topic, Topics
from kcodec.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from kcodec.broker.transactions.state import TopicPartition
from kcodec.constants import Compression
from kcodec.errors import DecodeError, RecordValidationError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)
#: The client that may write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"
ADD_PARTITION_VERSION = 12
ABORTABLE_VERSION = 11
_IDS_VERSION = 13
_ZSTD_VERSION = 7
_MAGIC = 2
_RETRY_BACKOFF_MS = 20  # add.partitions.to.txn.retry.backoff.ms
_RETRIES = 5  # add.partitions.to.txn.retry.backoff.max.ms is 100
_RETRIABLE = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
# Errors of an append whose response does not contain the log start offset.
_WITHOUT_START = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)


class _Part(NamedTuple):
    """One partition of a Produce request.

    batch: None if the header of the batch cannot be read.
    fault: Reason why the record set is refused before its log is checked.
    """

    topic: messages.TopicProduceData
    data: messages.PartitionProduceData
    found: tuple[Topic, Partition] | None
    batch: RecordBatch | None
    fault: tuple[ErrorCode, str] | None

    @property
    def key(self) -> TopicPartition:
        """Topic and partition."""
        return (self.topic.name if self.found is None else self.found[0].name), self.data.index


class Produce:
    """The handler of Produce."""

    def __init__(
        self, topics: Topics, coordinator: TransactionCoordinator, clock: Clock, settings: BrokerSettings
    ) -> None:
        self._topics = topics
        self._coordinator = coordinator
        self._clock = clock
        self._settings = settings

    def apis(self) -> list[Api]:
        """Return the API. It includes version 0, without which librdkafka does not compress (KAFKA-18659)."""
        return [Api(messages.ProduceRequest, (0, 13), self.produce)]

    def produce(self, context: RequestContext, request: messages.ProduceRequest) -> Any:
        """Respond to Produce. With acks=0, there is no response."""
        parts = [
            _Part(topic, data, self._find(context, topic, data), *first_batch(data.records, context.api_version))
            for topic in request.topic_data
            for data in topic.partition_data
        ]
        transactional = [part for part in parts if part.batch is not None and part.batch.is_transactional]
        if transactional and request.transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        transactional = [part for part in transactional if part.found is not None and part.fault is None]
        if len({(part.batch.producer_id, part.batch.producer_epoch) for part in transactional if part.batch}) > 1:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        unverified = [part for part in transactional if not _is_open(part)]
        if not unverified:
            return self._finish(context, request, parts, {})
        later = Later()

        def attempt(retries: int) -> None:
            refused = self._verify(context, request.transactional_id or "", unverified)
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in refused.values()
            if is_busy and context.api_version >= ADD_PARTITION_VERSION and retries:
                self._clock.call_later(_RETRY_BACKOFF_MS, lambda: attempt(retries - 1), in_real_time=True)
                return
            later.respond(self._finish(context, request, parts, refused))

        attempt(_RETRIES)
        return later

    def _find(
        self, context: RequestContext, topic: messages.TopicProduceData, data: messages.PartitionProduceData
    ) -> tuple[Topic, Partition] | None:
        by_id = context.api_version >= _IDS_VERSION
        found = self._topics.by_id(topic.topic_id) if by_id else self._topics.get(topic.name)
        partition = None if found is None else found.partition(data.index)
        return None if found is None or partition is None else (found, partition)

    # The coordinator

    def _verify(
        self, context: RequestContext, transactional_id: str, parts: list[_Part]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return the errors of partitions that are not part of the transaction, and cannot be added to it."""
        batch = parts[0].batch
        assert batch is not None
        producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
        adds = context.api_version >= ADD_PARTITION_VERSION
        if not adds and not self._settings.verifies_transactions:
            return {}
        refused = {}
        keys = []
        for part in parts:
            assert part.found is not None
            assert part.batch is not None
            sequence = part.batch.base_sequence
            try:
                part.found[1].log.producers.begin_verification(
                    producer.producer_id, producer.epoch, sequence, self._clock.now_ms(), bumps_epoch=adds
                )
                keys.append(part.key)
            except ApiError as error:
                refused[part.key] = error.code
        codes = self._coordinator.add_or_verify(transactional_id, producer, keys, adds=adds) if keys else {}
        is_new = context.api_version >= ABORTABLE_VERSION
        found = {key: verification_code(code, is_new=is_new, adds=adds) for key, code in codes.items()}
        return refused | {key: code for key, code in found.items() if code is not ErrorCode.NONE}

    # The append

    def _finish(
        self,
        context: RequestContext,
        request: messages.ProduceRequest,
        parts: list[_Part],
        refused: dict[TopicPartition, ErrorCode],
    ) -> Any:
        responses: dict[int, messages.TopicProduceResponse] = {}
        has_error = False
        for part in parts:
            code = refused.get(part.key, ErrorCode.NONE)
            response = _refusal(part, code) if code is not ErrorCode.NONE else self._append(context, request, part)
            has_error = has_error or response.error_code != 0
            topic = responses.setdefault(
                id(part.topic), messages.TopicProduceResponse(name=part.topic.name, topic_id=part.topic.topic_id)
            )
            topic.partition_responses.append(response)
        if request.acks == 0:
            return CLOSE if has_error else None
        return messages.ProduceResponse(responses=list(responses.values()))

    def _append(
        self, context: RequestContext, request: messages.ProduceRequest, part: _Part
    ) -> messages.PartitionProduceResponse:
        if part.found is None:
            by_id = context.api_version >= _IDS_VERSION and self._topics.by_id(part.topic.topic_id) is None
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _refusal(part, code)
        if part.fault is not None:
            return _refusal(part, *part.fault)
        if request.acks not in (-1, 0, 1):
            return _refusal(part, ErrorCode.INVALID_REQUIRED_ACKS)
        topic, partition = part.found
        if topic.is_internal and context.client_id != ADMIN_CLIENT_ID:
            return _refusal(part, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic.name}")
        try:
            appended = partition.log.append_client(
                part.data.records or b"",
                api_version=context.api_version,
                has_transactional_id=request.transactional_id is not None,
            )
        except RecordValidationError as error:
            response = _refused_append(part, partition, ErrorCode(error.code), error.reason)
            response.record_errors = [
                messages.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=error.reason)
                for index in error.record_indexes
            ]
            return response
        except ApiError as error:
            return _refused_append(part, partition, error.code, error.message)
        except OSError as error:  # a full disk or too many open files; the log is unchanged
            _log.error("%s-%d: %s; the batch is refused with KAFKA_STORAGE_ERROR", topic.name, partition.number, error)
            return _refusal(part, ErrorCode.KAFKA_STORAGE_ERROR)
        return messages.PartitionProduceResponse(
            index=part.data.index,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time,
            log_start_offset=partition.log.log_start_offset,
        )


def verification_code(code: ErrorCode, *, is_new: bool, adds: bool) -> ErrorCode:
    """Return the error of a partition that the coordinator did not verify (AddPartitionsToTxnManager, ReplicaManager).

    is_new: Whether the client knows TRANSACTION_ABORTABLE.
    adds:   Whether the request adds the partition. The client then also knows CONCURRENT_TRANSACTIONS.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not is_new:
        return ErrorCode.INVALID_TXN_STATE
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def _is_open(part: _Part) -> bool:
    """Return whether the batch continues a transaction that is open in the partition."""
    assert part.found is not None
    assert part.batch is not None
    log = part.found[1].log
    return log.producers.has_open_transaction(part.batch.producer_id, part.batch.producer_epoch)


def first_batch(records: Any, api_version: int) -> tuple[RecordBatch | None, tuple[ErrorCode, str] | None]:
    """Return the first batch, and the error if the record set is refused before its log is read (ProduceRequest)."""
    try:
        found = batches(records or b"")
        first = next(iter(found), None)
        if first is None:
            return None, (ErrorCode.INVALID_RECORD, "the record set has no complete batch")
        if first.magic != _MAGIC:
            return first, (ErrorCode.INVALID_RECORD, f"magic {first.magic} cannot be produced; expected {_MAGIC}")
        if first.compression == Compression.ZSTD and api_version < _ZSTD_VERSION:
            return first, (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {_ZSTD_VERSION}")
        if len(found) > 1:
            return first, (ErrorCode.INVALID_RECORD, "a request has one batch per partition")
    except DecodeError as error:
        return None, (ErrorCode.CORRUPT_MESSAGE, error.reason)
    return first, None


def _refusal(part: _Part, code: ErrorCode, message: str | None = None) -> messages.PartitionProduceResponse:
    return messages.PartitionProduceResponse(
        index=part.data.index, error_code=code, base_offset=-1, log_start_offset=-1, error_message=message
    )


def _refused_append(
    part: _Part, partition: Partition, code: ErrorCode, message: str
) -> messages.PartitionProduceResponse:
    """Return the error of an append. As in Kafka, some errors do not contain the log start offset."""
    response = _refusal(part, code, message)
    if code not in _WITHOUT_START:
        response.log_start_offset = partition.log.log_start_offset
    return response
