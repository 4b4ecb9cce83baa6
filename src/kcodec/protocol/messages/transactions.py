# SPDX-License-Identifier: Apache-2.0
"""Transactions: the requests of producers, coordinators and tools (KIP-98, KIP-447, KIP-664, KIP-890)."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, int64, string, uuid


class InitProducerIdRequest(Request, key=22, versions="0-5", flexible="2+"):
    """Allocate a producer id. With a transactional id, fence its previous producer and abort its open transaction.

    With a producer id and epoch, bump the epoch.
    """

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class InitProducerIdResponse(Response, key=22, versions="0-5", flexible="2+"):
    """The producer id and epoch to use."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")


class AddPartitionsToTxnTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    """One transaction. verify_only: check whether it includes these partitions, without adding any."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible="3+"):
    """Add partitions to a transaction. Clients stop at version 3 (highest=3): later versions are between brokers."""

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """Whether one partition was added. If one is rejected, the others get OPERATION_NOT_ATTEMPTED."""

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """The results for the partitions of a topic."""

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult, "0+")


class AddPartitionsToTxnResult(Struct):
    """The results for the partitions of a transaction."""

    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Response, key=24, versions="0-5", flexible="3+"):
    """The results; clients get them in `results_by_topic_v3_and_below`."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "0-3")


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible="3+"):
    """Add the offsets of a group to a transaction. Not needed from transaction version 2 on."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Response, key=25, versions="0-4", flexible="3+"):
    """Whether the offsets of the group were added."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction. Version 5, only with `transaction.version` 2, bumps the epoch."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class EndTxnResponse(Response, key=26, versions="0-5", flexible="3+"):
    """The outcome is durable. From version 5 on with the producer id and epoch of the next transaction."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class TxnOffsetCommitRequestPartition(Struct):
    """An offset, the leader epoch of the record before it (-1: unknown), and optional text."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """Offsets of a topic, given by name, from version 6 on by id."""

    name: str = string("0-5", ignorable=True)
    topic_id: UUID = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Request, key=28, versions="0-6", flexible="3+"):
    """Add offsets to a transaction. Generation and member id fence former members of the group (KIP-447, KIP-1319)."""

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id_or_member_epoch: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


class TxnOffsetCommitResponsePartition(Struct):
    """Whether an offset was accepted."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """The results for a topic."""

    name: str = string("0-5", ignorable=True)
    topic_id: UUID = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition, "0+")


class TxnOffsetCommitResponse(Response, key=28, versions="0-6", flexible="3+"):
    """The results; the offsets take effect when the transaction is committed."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")


class WritableTxnMarkerTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class WritableTxnMarker(Struct):
    """The end of one transaction. transaction_result: whether it was committed."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+", ignorable=True)


class WriteTxnMarkersRequest(Request, key=27, versions="0-2", flexible="1+"):
    """Write transaction markers: sent by a coordinator to a leader, or by a tool that ends a hanging transaction."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")


class WritableTxnMarkerPartitionResult(Struct):
    """Whether the marker was written to one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """The results for the partitions of a topic."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult, "0+")


class WritableTxnMarkerResult(Struct):
    """The results for the marker of one producer."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Response, key=27, versions="0-2", flexible="1+"):
    """The results for all markers."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


class DescribeProducersTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class DescribeProducersRequest(Request, key=61, versions="0", flexible="0+"):
    """List the active producers of partitions. Sent to the leaders of the partitions."""

    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic, "0+")


class ProducerState(Struct):
    """The state of a producer in a partition. current_txn_start_offset -1: no open transaction. Times: ms."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


class DescribeProducersPartitionResponse(Struct):
    """The producers of one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


class DescribeProducersTopicResponse(Struct):
    """The producers of a topic's partitions."""

    name: str = string("0+")
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse, "0+")


class DescribeProducersResponse(Response, key=61, versions="0", flexible="0+"):
    """The producers."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse, "0+")


class DescribeTransactionsRequest(Request, key=65, versions="0", flexible="0+"):
    """Describe transactional ids. Sent to their coordinators."""

    transactional_ids: list[str] = array(string, "0+")


class DescribedTransactionTopic(Struct):
    """Partitions of a topic that are part of a transaction."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribedTransactionState(Struct):
    """The coordinator's state of a transactional id. transaction_start_time_ms -1: no transaction is open."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[DescribedTransactionTopic] = array(DescribedTransactionTopic, "0+")


class DescribeTransactionsResponse(Response, key=65, versions="0", flexible="0+"):
    """The states of the transactional ids."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribedTransactionState] = array(DescribedTransactionState, "0+")


class ListTransactionsRequest(Request, key=66, versions="0-2", flexible="0+"):
    """List the transactional ids of a coordinator. duration_filter: open for at least this time in ms (-1: any)."""

    state_filters: list[str] = array(string, "0+")
    producer_id_filters: list[int] = array(int64, "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListedTransactionState(Struct):
    """A transactional id and its state."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


class ListTransactionsResponse(Response, key=66, versions="0-2", flexible="0+"):
    """The transactional ids that this broker coordinates."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array(string, "0+")
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState, "0+")
