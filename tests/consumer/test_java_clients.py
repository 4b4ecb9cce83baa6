# SPDX-License-Identifier: Apache-2.0
"""The Java clients that judge ours: that they see what is committed, hide what is not, and say what went wrong."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import pytest
from java_clients import JavaError, JavaProducer, cluster_nodes, consume, digests, end_offsets, java_security

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory


def test_a_transactional_java_producer_and_what_a_consumer_sees_of_it(apache_kafka: ApacheKafka) -> None:
    servers, topic = apache_kafka.bootstrap_servers, apache_kafka.create_topic(partitions=2)
    with JavaProducer(servers, **{"transactional.id": topic}) as producer:
        producer.call("init")
        for value, end in ((b"first", "commit"), (b"dropped", "abort"), (b"last", "commit")):
            producer.call("begin")
            producer.send([(topic, 0, b"k", value), (topic, 1, None, value)])
            producer.send_offsets("group-of-" + topic, {(topic, 0): 7})
            producer.call(end)
        producer.call("begin")
        assert producer.send([(topic, 0, None, None)]) == [6]
        committed = consume(servers, topic)
        ends = end_offsets(servers, topic)
        everything = consume(servers, [topic], "read_uncommitted")
        producer.call("abort")
    assert [(record.offset, record.key, record.value) for record in committed if record.partition == 0] == [
        (0, b"k", b"first"),
        (4, b"k", b"last"),
    ]
    assert [record.value for record in committed if record.partition == 1] == [b"first", b"last"]
    assert ends == {(topic, 0): 6, (topic, 1): 6}
    assert [record.offset for record in everything if record.partition == 0] == [0, 2, 4, 6]
    sha = hashlib.sha256()
    for value in (b"first", b"last"):
        sha.update(struct.pack(">i", 1) + b"k" + struct.pack(">i", len(value)) + value)
    assert digests(servers, topic)[0] == (topic, 0, 2, sha.hexdigest())


def test_a_java_exception_has_its_name(apache_kafka: ApacheKafka) -> None:
    with JavaProducer(apache_kafka.bootstrap_servers) as producer, pytest.raises(JavaError) as caught:
        producer.call("begin")
    assert caught.value.name == "IllegalStateException"


@pytest.fixture(scope="module")
def guarded(apache_kafka_factory: KafkaFactory) -> Iterator[ApacheKafka]:
    with apache_kafka_factory(tls=True, sasl=True, authorizer=True) as kafka:
        yield kafka


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_each_mechanism_lets_a_known_user_in(guarded: ApacheKafka, mechanism: str) -> None:
    assert cluster_nodes(guarded.bootstrap_servers, **java_security(guarded, "admin", mechanism)) == [1]


def test_a_permission_opens_one_topic_to_one_user(guarded: ApacheKafka) -> None:
    servers, topic = guarded.bootstrap_servers, guarded.create_topic(partitions=1)
    alice, bob = (java_security(guarded, name, "PLAIN") for name in ("alice", "bob"))
    for security, allowed in ((alice, True), (bob, False)):
        if allowed:
            guarded.allow("alice", "Write", topic=topic)
        with JavaProducer(servers, **security, **{"max.block.ms": "5000"}) as producer:
            if allowed:
                assert producer.send([(topic, 0, None, b"value")]) == [0]
                continue
            with pytest.raises(JavaError) as caught:
                producer.send([(topic, 0, None, b"value")])
            assert caught.value.name == "TopicAuthorizationException"
    guarded.revoke("alice", "Write", topic=topic)
    with JavaProducer(servers, **alice, **{"max.block.ms": "5000"}) as producer, pytest.raises(JavaError) as caught:
        producer.send([(topic, 0, None, b"value")])
    assert caught.value.name == "TopicAuthorizationException"
