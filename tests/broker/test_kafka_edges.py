# SPDX-License-Identifier: Apache-2.0
"""What Apache Kafka 4.4.0 does at the edges, as random sequences have shown: each test was a difference once."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from broker_core import CoreClient, Identity, Pending

import kcodec
from kcodec.broker.api import ConnectionInfo
from kcodec.broker.internal_topics import hash_map_order
from kcodec.broker.transactions.state import HIGHEST_EPOCH, LAST_CLIENT_EPOCH
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request

NONE = ErrorCode.NONE


@pytest.fixture
def client() -> CoreClient:
    client = CoreClient()
    client.prepare()
    return client


def write_marker(client: CoreClient, producer: Identity, *, transaction_version: int = 2, coordinator: int = 0) -> int:
    marker = messages.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=coordinator,
        transaction_version=transaction_version,
        topics=[messages.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    found = client.ask(messages.WriteTxnMarkersRequest(markers=[marker]), 2).markers[0].topics[0].partitions[0]
    return int(found.error_code)


def end_offset(client: CoreClient) -> int:
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    return partition.log.log_end_offset


def set_epoch(client: CoreClient, name: str, epoch: int) -> Identity:
    """Use up the epochs of a transactional id."""
    states = client.core.transactions._states
    states[name] = replace(states[name], producer_epoch=epoch)
    return Identity(states[name].producer_id, epoch)


def commit_offset(client: CoreClient, producer: Identity, name: str = "a", partition: int = 0) -> int:
    one = messages.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=1, committed_metadata="")
    request = messages.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[messages.TxnOffsetCommitRequestTopic(name="t", partitions=[one])],
    )
    return int(client.ask(request, 5).topics[0].partitions[0].error_code)


def test_a_repeated_marker_is_written_again(client: CoreClient) -> None:
    producer = client.init("a")[1]
    client.produce(producer, transactional_id="a")
    following = client.end("a", producer, commit=False)[1]
    end = end_offset(client)
    assert write_marker(client, following) == NONE
    assert end_offset(client) == end + 1


def test_the_coordinator_epoch_counts_for_repeated_markers_too(client: CoreClient) -> None:
    producer = client.init("a")[1]
    client.produce(producer, transactional_id="a")
    following = client.end("a", producer, commit=False)[1]
    assert write_marker(client, following, coordinator=-1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_refused_batch_may_begin_a_segment(client: CoreClient) -> None:
    client.prepare("old", retention_ms="-1")
    partition = client.core.topics.partition("old", 0)
    assert partition is not None
    data = bytes(kcodec.encode([(b"k", b"v")], timestamp=1000, producer_id=5, producer_epoch=0, base_sequence=0))
    partition.log.append_client(data, api_version=12, has_transactional_id=False)
    refused = bytes(kcodec.encode([(b"k", b"v")], timestamp=1 << 40, producer_id=5, producer_epoch=0, base_sequence=7))
    with pytest.raises(Exception, match="Out of order"):
        partition.log.append_client(refused, api_version=12, has_transactional_id=False)
    data = bytes(kcodec.encode([(b"k", b"v")], timestamp=1001, producer_id=5, producer_epoch=0, base_sequence=1))
    partition.log.append_client(data, api_version=12, has_transactional_id=False)
    assert len(partition.log.read(0, 1 << 20, 0, min_one_message=True).records) == len(data)


def test_a_coordinator_gives_up_a_transaction_whose_marker_is_fenced() -> None:
    client = CoreClient(transaction_version=0)
    client.prepare()
    producer = client.init("a")[1]
    client.add("a", producer)
    client.produce(producer, transactional_id="a", version=11)
    write_marker(client, Identity(producer.producer_id, producer.epoch + 1), transaction_version=0)
    assert client.end("a", producer, version=3)[0] is NONE
    client.clock.advance(60_000)
    assert client.state("a") == "PrepareCommit"
    assert client.init("a")[0] is ErrorCode.CONCURRENT_TRANSACTIONS


def test_refused_requests_do_not_begin_a_transaction(client: CoreClient) -> None:
    producer = client.init("a")[1]
    assert commit_offset(client, producer, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    batch = bytes(
        kcodec.encode([(b"k", b"v")], timestamp=1, producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
    )
    data = [messages.PartitionProduceData(index=0, records=batch + batch)]
    topics = [messages.TopicProduceData(name="t", partition_data=data)]
    request = messages.ProduceRequest(transactional_id="a", acks=-1, topic_data=topics)
    found = client.ask(request, 12).responses[0].partition_responses[0]
    assert (found.error_code, found.log_start_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert client.state("a") == "Empty"


def test_acks_are_looked_at_after_the_transaction(client: CoreClient) -> None:
    producer = client.init("a")[1]
    batch = bytes(
        kcodec.encode(
            [(b"k", b"v")],
            timestamp=1,
            producer_id=producer.producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
    )
    data = [messages.PartitionProduceData(index=0, records=batch)]
    topics = [messages.TopicProduceData(name="t", partition_data=data)]
    request = messages.ProduceRequest(transactional_id="a", acks=2, topic_data=topics)
    codes = [client.ask(request, version).responses[0].partition_responses[0].error_code for version in (11, 12)]
    assert codes == [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_REQUIRED_ACKS]
    assert client.state("a") == "Ongoing"


def test_fencing_the_last_epoch_gives_another_producer_id(client: CoreClient) -> None:
    client.init("a")
    producer = set_epoch(client, "a", LAST_CLIENT_EPOCH)
    assert client.add("a", producer) is NONE
    assert client.init("a")[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    code, following = client.init("a")
    assert (code, following.epoch) == (NONE, 1)
    assert following.producer_id != producer.producer_id


def test_an_older_epoch_cannot_begin_again_after_the_last_one(client: CoreClient) -> None:
    client.init("a")
    producer = set_epoch(client, "a", LAST_CLIENT_EPOCH - 1)
    assert client.init("a", producer)[1].epoch == LAST_CLIENT_EPOCH
    assert client.init("a", producer)[0] is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_highest_epoch_is_fenced_by_itself() -> None:
    client = CoreClient(transaction_version=0)
    client.prepare()
    client.init("a")
    producer = set_epoch(client, "a", HIGHEST_EPOCH)
    assert client.add("a", producer) is NONE
    assert client.init("a")[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.init("a")[1].epoch == 0


def test_internal_topics_are_not_added_by_clients(client: CoreClient) -> None:
    producer = client.init("a")[1]
    assert client.add("a", producer, topic="__consumer_offsets") is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_commit_creates_its_group_although_it_stores_nothing(client: CoreClient) -> None:
    one = messages.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 5000)
    topic = messages.OffsetCommitRequestTopic(name="t", partitions=[one])
    found = client.ask(messages.OffsetCommitRequest(group_id="g", topics=[topic]), 8)
    assert found.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    deleted = client.ask(messages.DeleteGroupsRequest(groups_names=["g"]), 2)
    assert deleted.results[0].error_code == NONE


def test_the_largest_timestamp_is_found_before_the_log_start(client: CoreClient) -> None:
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    data = bytes(kcodec.encode([(b"k", b"v")], timestamp=client.clock.now_ms()))
    partition.log.append_client(data, api_version=12, has_transactional_id=False)
    partition.log.delete_before(1)
    assert partition.log.offset_of_max_timestamp() == (0, client.clock.now_ms())


def test_a_part_of_a_first_batch_comes_without_aborted_transactions(client: CoreClient) -> None:
    producer = client.init("a")[1]
    client.produce(producer, transactional_id="a")
    client.end("a", producer, commit=False)
    partition = client.core.topics.partition("t", 0)
    assert partition is not None
    assert partition.log.read(0, 10, 1, min_one_message=False).aborted is None
    assert partition.log.read(0, 10, 1, min_one_message=True).aborted == [(producer.producer_id, 0)]


def test_names_have_the_order_of_javas_hash_map() -> None:
    names = [f"member-{number}" for number in range(4)]
    assert hash_map_order(names) == hash_map_order(reversed(names)) == [f"member-{number}" for number in (1, 2, 0, 3)]


def test_offsets_of_topics_are_committed_by_id(client: CoreClient) -> None:
    producer = client.init("a")[1]
    known = client.core.topics.get("t")
    assert known is not None
    codes = []
    for topic_id, generation in ((known.id, -1), (UUID(int=7), -1), (known.id, 3)):
        one = messages.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        request = messages.TxnOffsetCommitRequest(
            transactional_id="a",
            group_id="g" if generation < 0 else "unknown",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id_or_member_epoch=generation,
            topics=[messages.TxnOffsetCommitRequestTopic(topic_id=topic_id, partitions=[one])],
        )
        found = client.ask(request, 6).topics[0]
        assert found.topic_id == topic_id
        codes.append(found.partitions[0].error_code)
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND]


def test_bytes_after_a_request_are_ignored(client: CoreClient) -> None:
    """librdkafka before 2.12 writes three bytes after a Metadata request for all topics."""
    request = messages.MetadataRequest(topics=None)
    pending = Pending(request, 13)
    frame = encode_request(request, 13, 7, "test")[4:] + bytes(3)
    client.core.serve(ConnectionInfo(1, "/127.0.0.1"), frame, pending.take)
    assert "t" in [topic.name for topic in pending.response.topics]
