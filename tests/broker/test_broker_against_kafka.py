# SPDX-License-Identifier: Apache-2.0
"""The embedded broker and Apache Kafka get the same random requests and give the same responses, and the same logs.

tests/prove/prove_broker.py runs more sequences, on more kinds of brokers.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from broker_differences import first_difference
from broker_sequence_runner import run_sequence
from broker_sequences import PROFILES, Sequence
from broker_targets import CoreTarget, SocketTarget
from group_pairs import KafkaConnection

import kcodec
from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request
from kcodec.testing.kafka import ApacheKafka

FIRST, SEQUENCES = 1000, 50
#: Every tenth sequence goes to the embedded broker over TCP, the others to its core.
OVER_TCP = 10


def test_random_requests_get_the_responses_of_kafka(apache_kafka: ApacheKafka) -> None:
    codes: Counter[tuple[str, str]] = Counter()
    kafka = SocketTarget(apache_kafka.bootstrap_servers)
    with Broker(offsets_topic_partitions=3, transaction_topic_partitions=3) as broker:
        server = SocketTarget(broker.bootstrap_servers)
        core = CoreTarget(offsets_topic_partitions=3, transaction_topic_partitions=3)
        for seed in range(FIRST, FIRST + SEQUENCES):
            expected = run_sequence(Sequence(seed, PROFILES["tv2"], lingers=True), kafka)
            ours = run_sequence(Sequence(seed, PROFILES["tv2"], lingers=True), core if seed % OVER_TCP else server)
            assert first_difference(expected, ours) is None
            codes += expected.codes
        server.close()
    kafka.close()
    assert {code for _, code in codes} >= {"NONE", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "PRODUCER_FENCED"}
    assert len(codes) > 100


@pytest.mark.parametrize("is_kafka", [True, False], ids=["Apache Kafka", "embedded"])
def test_bytes_after_a_request_are_ignored(apache_kafka: ApacheKafka, is_kafka: bool) -> None:
    """librdkafka sends such a byte in AlterUserScramCredentials."""
    with Broker() as broker:
        host, _, port = (apache_kafka if is_kafka else broker).bootstrap_servers.rpartition(":")
        request = messages.DescribeUserScramCredentialsRequest(users=[messages.ScramUserName(name="nobody")])
        for message, version in ((messages.MetadataRequest(topics=[]), 1), (request, 0)):
            frame = encode_request(message, version, 7, "test")[4:] + b"\0\1more"
            with socket.create_connection((host, int(port)), 20) as connection:
                connection.sendall(len(frame).to_bytes(4, "big") + frame)
                assert connection.recv(8)[4:8] == (7).to_bytes(4, "big")


@pytest.fixture(scope="module", params=["Apache Kafka", "embedded"])
def target(request: pytest.FixtureRequest, apache_kafka: ApacheKafka) -> Iterator[SocketTarget]:
    """Each broker by its protocol."""
    with Broker() as broker:
        found = SocketTarget((broker if request.param == "embedded" else apache_kafka).bootstrap_servers)
        yield found
        found.close()


def made_topic(target: SocketTarget) -> str:
    """Create a topic with a record of 200 bytes."""
    name = f"made-{time.time_ns()}"
    wanted = messages.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[])
    target.send(messages.CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 7)
    data = [messages.PartitionProduceData(index=0, records=bytes(kcodec.encode([(None, bytes(200))], timestamp=1)))]
    topics = [messages.TopicProduceData(name=name, partition_data=data)]
    request = messages.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
    deadline = time.monotonic() + 15
    while target.send(request, 9).responses[0].partition_responses[0].error_code:  # until the leader is elected
        assert time.monotonic() < deadline
        target.wait(50)
    return name


def test_the_topic_of_the_metadata_cannot_be_created(target: SocketTarget) -> None:
    """The name is checked before the rest of the request."""
    name, existing = "__cluster_metadata", f"existing-{time.time_ns()}"

    def created(name: str, partitions: int, replication_factor: int) -> tuple[str, str | None]:
        wanted = messages.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, configs=[]
        )
        request = messages.CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
        (result,) = target.send(request, 7).topics
        return ErrorCode(result.error_code).name, result.error_message

    refused = ("INVALID_REQUEST", "Creation of internal topic __cluster_metadata is prohibited.")
    assert [created(name, *numbers) for numbers in ((1, 1), (0, 1), (1, 3))] == [refused] * 3
    assert created(existing, 1, 1) == ("NONE", None)
    assert created(existing, 1, 3)[0] == "TOPIC_ALREADY_EXISTS"
    for allows in (False, True):
        topics = [messages.MetadataRequestTopic(name=name)]
        request = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=allows)
        (found,) = target.send(request, 9).topics
        assert ErrorCode(found.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_special_timestamps_of_list_offsets(target: SocketTarget) -> None:
    """-6 is the earliest offset that waits for its upload (KIP-1023). Without remote storage, none does."""
    topic = made_topic(target)

    def listed(version: int, timestamp: int) -> tuple[str, int, int, int]:
        wanted = messages.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = messages.ListOffsetsRequest(topics=[messages.ListOffsetsTopic(name=topic, partitions=[wanted])])
        found = target.send(request, version).topics[0].partitions[0]
        return ErrorCode(found.error_code).name, found.offset, found.timestamp, found.leader_epoch

    assert listed(11, -4) == ("NONE", 0, -1, 0)
    assert listed(11, -5) == listed(11, -6) == ("NONE", -1, -1, -1)
    assert listed(10, -6) == listed(11, -7) == ("UNSUPPORTED_VERSION", -1, -1, -1)


def test_fetch_does_not_wait_for_more_than_a_response_can_have(target: SocketTarget) -> None:
    topic = made_topic(target)
    wanted = messages.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [messages.FetchTopic(topic=topic, partitions=[wanted])]
    request = messages.FetchRequest(max_wait_ms=15_000, min_bytes=50_000, max_bytes=50, topics=topics)
    begun = time.monotonic()
    (found,) = target.send(request, 12).responses[0].partitions
    assert time.monotonic() - begun < 10
    assert len(found.records) > 50


@pytest.mark.parametrize("is_kafka", [True, False], ids=["Apache Kafka", "embedded"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_negative_timestamps_are_stored(apache_kafka: ApacheKafka, is_kafka: bool, codec: str) -> None:
    """The largest timestamp of such a batch is -1, no timestamp."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    with Broker() as broker:
        target = apache_kafka if is_kafka else broker
        topic: str = target.create_topic(partitions=1)
        settings = {"bootstrap.servers": target.bootstrap_servers, "compression.type": codec, "linger.ms": 100}
        producer, failed = confluent_kafka.Producer(settings), []
        for timestamp in (-5, -7):
            producer.produce(topic, b"x", timestamp=timestamp, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(20) == 0
        assert failed == [None, None]
        with Consumer(bootstrap_servers=target.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found = [one.timestamp for one in consumer.poll(20)]
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            (latest,) = admin.list_offsets({TopicPartition(topic, 0): -3}).values()
    assert found == [-5, -7]
    assert (latest.offset, latest.timestamp) == (-1, -1)


@pytest.mark.parametrize("is_kafka", [True, False], ids=["Apache Kafka", "embedded"])
def test_a_later_metadata_response_has_the_created_topic(is_kafka: bool) -> None:
    """The response to the request that creates a topic contains an error, and no partitions."""
    request = messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name="new")])
    with (
        ApacheKafka(auto_create_topics_enable=True, num_partitions=2) if is_kafka else Broker(default_partitions=2)
    ) as broker:
        connection = KafkaConnection(broker.bootstrap_servers)
        try:
            (first,) = connection.ask(request, 4).topics
            assert (first.error_code, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
            deadline = time.monotonic() + 20
            while (found := connection.ask(request, 4).topics[0]).error_code and time.monotonic() < deadline:
                time.sleep(0.02)
            assert (found.error_code, len(found.partitions)) == (ErrorCode.NONE, 2)
        finally:
            connection.close()
