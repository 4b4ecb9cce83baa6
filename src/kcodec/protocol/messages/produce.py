# SPDX-License-Identifier: Apache-2.0
"""Messages that write records. A record set is bytes here; `kcodec.encode` and `kcodec.decode` handle its content."""

from __future__ import annotations

from uuid import UUID

from kcodec.protocol.schema import Request, Response, Struct, array, int16, int32, int64, records, string, struct, uuid


class PartitionProduceData(Struct):
    """The record set for one partition."""

    index: int = int32("0+")
    records: bytes | bytearray | memoryview | None = records("0+", nullable="0+")


class TopicProduceData(Struct):
    """Record sets for partitions of a topic, given by name, from version 13 on by id."""

    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Request, key=0, versions="0-13", flexible="9+"):
    """Append records. acks 0: no response, 1: after the leader's write, -1: after that of all in-sync replicas."""

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")


class BatchIndexAndErrorMessage(Struct):
    """A rejected record (its index in the batch) and the reason."""

    batch_index: int = int32("8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class ProduceLeaderIdAndEpoch(Struct):
    """The current leader that the broker knows, sent with NOT_LEADER_OR_FOLLOWER; -1: unknown (KIP-951)."""

    leader_id: int = int32("10+", default=-1)
    leader_epoch: int = int32("10+", default=-1)


class PartitionProduceResponse(Struct):
    """The result for one record set: base_offset or an error. log_append_time_ms -1: timestamps are kept."""

    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+")
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: ProduceLeaderIdAndEpoch = struct(ProduceLeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """The results for the record sets of a topic."""

    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


class ProduceNodeEndpoint(Struct):
    """The address of a leader named in the same response."""

    node_id: int = int32("10+")
    host: str = string("10+")
    port: int = int32("10+")
    rack: str | None = string("10+", nullable="10+", default=None)


class ProduceResponse(Response, key=0, versions="0-13", flexible="9+"):
    """The results for all record sets."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[ProduceNodeEndpoint] = array(ProduceNodeEndpoint, "10+", tag=0)
