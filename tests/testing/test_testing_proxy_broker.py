# SPDX-License-Identifier: Apache-2.0
"""The proxy before a real Apache Kafka, with clients that are not ours: where they end up, what was spoken, what a rule
does to a transaction, and what brokers say to each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_client import SILENT, read_committed

from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import Request, fields
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.answers import error_answer, structs_of
from kcodec.testing.pytest_plugin import KafkaFactory


@pytest.fixture
def proxy(apache_kafka: ApacheKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(apache_kafka.bootstrap_servers, keep_bytes=True) as proxy:
        yield proxy


def open_producer(proxy: KafkaProxy, name: str, **options: Any) -> Any:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "client.id": name,
            "transactional.id": name,
            "retry.backoff.ms": 20,
            "logger": SILENT,
            **options,
        }
    )
    producer.init_transactions(20)
    return producer


def commit_one(producer: Any, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(20)


def values(kafka: ApacheKafka, topic: str) -> list[bytes]:
    return [value for found in read_committed(kafka.admin_servers, topic, 1).values() for value in found]


def test_a_client_stays_behind_the_proxy(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    commit_one(open_producer(proxy, topic), topic, b"one")
    assert values(apache_kafka, topic) == [b"one"]
    # Everything a transaction takes went through: were an address not replaced, its requests would be missing here.
    for api in (
        "ApiVersions",
        "Metadata",
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "Produce",
        "EndTxn",
    ):
        assert proxy.exchanges(api, client_id=topic), api
    assert {exchange.node for exchange in proxy.exchanges("EndTxn")} == {apache_kafka.node(1).id}
    (end,) = proxy.exchanges("EndTxn", client_id=topic)
    assert (end.request_message().transactional_id, end.request_message().committed) == (topic, True)
    assert end.response_message().error_code == 0
    (produce,) = proxy.exchanges("Produce", client_id=topic)
    assert produce.request_message().topic_data[0].name == topic


def test_aiokafka_and_kafka_python_go_through(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    import asyncio

    from aiokafka import AIOKafkaProducer
    from kafka import KafkaProducer

    topic = apache_kafka.create_topic(partitions=1)

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id="aiokafka") as producer:
            await producer.send_and_wait(topic, b"one")

    asyncio.run(send())
    other = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id="kafka-python")
    other.send(topic, b"two").get(20)
    other.close()
    assert values(apache_kafka, topic) == [b"one", b"two"]
    assert proxy.exchanges("Produce", client_id="aiokafka")
    assert proxy.exchanges("Produce", client_id="kafka-python")


def test_an_answer_lost_is_asked_for_again(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    producer = open_producer(proxy, topic)
    lost = proxy.on_response("EndTxn", client_id=topic).cut()
    commit_one(producer, topic, b"one")
    assert lost.hits[0].response_message().error_code == 0
    assert len(proxy.exchanges("EndTxn", client_id=topic)) == 2
    assert values(apache_kafka, topic) == [b"one"]


def test_an_error_in_place_of_the_broker(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    producer = open_producer(proxy, topic)
    busy = proxy.on_request("EndTxn", count=2).answer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    unready = proxy.on_request("AddPartitionsToTxn").answer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    again = proxy.on_request("Produce").answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    commit_one(producer, topic, b"one")
    assert [len(rule.hits) for rule in (busy, unready, again)] == [2, 1, 1]
    assert [end.response_message().error_code for end in proxy.exchanges("EndTxn")] == [51, 51, 0]
    assert values(apache_kafka, topic) == [b"one"]


def test_an_error_behind_the_broker(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    from confluent_kafka import KafkaException

    topic = apache_kafka.create_topic(partitions=1)
    producer = open_producer(proxy, topic)
    proxy.on_response("EndTxn").replace(error=ErrorCode.INVALID_TXN_STATE)
    with pytest.raises(KafkaException, match="invalid state"):
        commit_one(producer, topic, b"one")
    assert values(apache_kafka, topic) == [b"one"]


def test_a_request_replaced(apache_kafka: ApacheKafka, proxy: KafkaProxy) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    producer = open_producer(proxy, topic)

    def aborted(exchange: Any) -> Any:
        request = exchange.request_message()
        request.committed = False
        return request

    proxy.on_request("EndTxn").replace(aborted)
    commit_one(producer, topic, b"one")
    assert values(apache_kafka, topic) == []


@pytest.mark.parametrize(
    ("request_", "version", "count"),
    [
        (messages.InitProducerIdRequest(transactional_id="a"), 5, 1),
        (messages.FindCoordinatorRequest(key="a"), 3, 1),
        (messages.FindCoordinatorRequest(coordinator_keys=["a", "b"]), 6, 2),
        (messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name="t")]), 12, 1),
        (
            messages.ProduceRequest(
                topic_data=[
                    messages.TopicProduceData(name="t", partition_data=[messages.PartitionProduceData(index=index)])
                    for index in (0, 1)
                ]
            ),
            9,
            2,
        ),
        (
            messages.AddPartitionsToTxnRequest(
                v3_and_below_topics=[messages.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
            ),
            3,
            2,
        ),
        (
            messages.AddPartitionsToTxnRequest(
                transactions=[
                    messages.AddPartitionsToTxnTransaction(
                        transactional_id="a", topics=[messages.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
                    )
                ]
            ),
            5,
            3,
        ),
        (
            messages.TxnOffsetCommitRequest(
                topics=[
                    messages.TxnOffsetCommitRequestTopic(
                        name="t", partitions=[messages.TxnOffsetCommitRequestPartition(partition_index=3)]
                    )
                ]
            ),
            5,
            1,
        ),
        (
            messages.WriteTxnMarkersRequest(
                markers=[
                    messages.WritableTxnMarker(
                        topics=[messages.WritableTxnMarkerTopic(name="t", partition_indexes=[1, 2])]
                    )
                ]
            ),
            1,
            2,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Request) else str(value),
)
def test_error_answers_name_what_was_asked(request_: Any, version: int, count: int) -> None:
    answer = error_answer(request_, version, 51)
    decoded = request_.response.decode(answer.encode(version), version)
    codes = [
        getattr(struct, name)
        for struct in structs_of(decoded)
        for name, field in fields(type(struct)).items()
        if name.endswith("error_code") and field.versions.hold(version)
    ]
    assert set(codes) == {ErrorCode.CONCURRENT_TRANSACTIONS}
    assert len(codes) == count


def test_what_cannot_be_made_up_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be created"):
        error_answer(messages.DescribeProducersRequest(), 0, 1)


def test_brokers_among_themselves(apache_kafka_factory: KafkaFactory) -> None:
    """The commit is answered while its markers wait: the records show once they arrive."""
    with KafkaProxy() as between:
        kafka = apache_kafka_factory(
            advertise=lambda listener: between.advertise(listener) if listener.name == "BROKER" else None
        )
        topic = kafka.create_topic(partitions=1)
        with KafkaProxy(kafka.bootstrap_servers) as proxy:
            producer = open_producer(proxy, topic)
            markers = between.on_request("WriteTxnMarkers").hold()
            commit_one(producer, topic, b"one")
            assert markers.wait_hit(5).version == 2
            assert values(kafka, topic) == []
            markers.release()
            deadline = time.monotonic() + 5
            while not (found := values(kafka, topic)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found == [b"one"]
