# SPDX-License-Identifier: Apache-2.0
"""Fault rules have only effects that Apache Kafka can have: the order of responses, and the fields of error codes."""

from __future__ import annotations

import socket
from typing import Any
from uuid import UUID

import pytest
from broker_core import START_MS, CoreClient

import kcodec
from kcodec.broker import Broker, parse_rule
from kcodec.broker.api import CLOSE, SILENCE
from kcodec.broker.partial_requests import names_topics
from kcodec.client import Consumer, Producer
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import encode_request
from kcodec.protocol.schema import Struct, fields


def produce_request(*partitions: int, acks: int = -1) -> messages.ProduceRequest:
    batch = bytes(kcodec.encode([(None, b"v")], timestamp=START_MS))
    data = [messages.PartitionProduceData(index=number, records=batch) for number in partitions]
    return messages.ProduceRequest(acks=acks, topic_data=[messages.TopicProduceData(name="t", partition_data=data)])


def connected(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_no_response_follows_a_dropped_response(kcodec_broker: Broker, moment: str) -> None:
    """Kafka responds in order. If a response to a later request arrives first, librdkafka reports a fatal error."""
    kcodec_broker.create_topic("t", 1)
    kcodec_broker.faults.add("Produce", count=1, drop=moment)
    with connected(kcodec_broker) as client:
        for number in (1, 2):
            client.sendall(encode_request(produce_request(0), 9, number, "test"))
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert kcodec_broker.end_offset("t") == (moment == "after")
    with connected(kcodec_broker) as client:
        client.sendall(encode_request(produce_request(0), 9, 3, "test"))
        assert client.recv(1)


def test_a_dropped_request_without_a_response_blocks_nothing() -> None:
    client = CoreClient()
    client.prepare()
    client.core.faults.add("Produce", count=2, drop="after")
    assert client.ask(produce_request(0, acks=0), 9) is None
    assert client.ask(produce_request(0, acks=1), 9) is SILENCE


@pytest.mark.parametrize("fields", [{}, {"topic": "t"}, {"topic": "t", "partition": 1}], ids=str)
def test_an_error_without_a_response_closes_the_connection(fields: dict[str, Any]) -> None:
    """The client would mistake a response to a request with acks=0 for the response to its next request."""
    client = CoreClient()
    client.prepare(partitions=2)
    client.core.faults.add("Produce", error="NOT_ENOUGH_REPLICAS", **fields)
    assert client.ask(produce_request(0, 1, acks=0), 9) is CLOSE
    ends = [partition.log.log_end_offset for partition in next(iter(client.core.topics)).partitions]
    assert ends == [1 if fields.get("partition") else 0, 0]


@pytest.mark.parametrize("version", [0, 13])
@pytest.mark.parametrize("is_listing_all", [False, True])
@pytest.mark.parametrize("topic", [None, "t"])
def test_metadata_with_an_error_has_the_brokers(version: int, is_listing_all: bool, topic: str | None) -> None:
    """Without brokers, a client would report that no broker is known."""
    client = CoreClient()
    client.prepare()
    client.core.topics.create("other", 1)
    client.core.faults.add("Metadata", topic=topic, error="LEADER_NOT_AVAILABLE")
    names = [messages.MetadataRequestTopic(name=name) for name in ("t", "other")]
    everything: list[messages.MetadataRequestTopic] | None = [] if version == 0 else None
    response = client.ask(messages.MetadataRequest(topics=everything if is_listing_all else names), version)
    assert [broker.node_id for broker in response.brokers] == [1]
    found = {one.name: one.error_code for one in response.topics}
    refused = {"t", "other"} if topic is None else {"t"}
    assert {name for name in ("t", "other") if found[name] == ErrorCode.LEADER_NOT_AVAILABLE} == refused
    assert response.error_code == 0
    response = client.ask(messages.MetadataRequest(topics=names[:1]), version)
    assert [(one.name, one.error_code) for one in response.topics] == [("t", ErrorCode.LEADER_NOT_AVAILABLE)]
    assert [broker.node_id for broker in response.brokers] == [1]


def test_metadata_without_topics_has_no_error_of_topics() -> None:
    client = CoreClient()
    client.prepare()
    client.core.faults.add("Metadata", error="LEADER_NOT_AVAILABLE")
    response = client.ask(messages.MetadataRequest(topics=[]), 13)
    assert ([broker.node_id for broker in response.brokers], response.error_code) == ([1], ErrorCode.NONE)


@pytest.mark.parametrize(
    ("code", "is_whole"),
    [("OFFSET_OUT_OF_RANGE", False), ("NOT_LEADER_OR_FOLLOWER", False), ("FETCH_SESSION_ID_NOT_FOUND", True)],
)
def test_a_fetch_error_is_in_the_field_that_kafka_uses(code: str, is_whole: bool) -> None:
    client = CoreClient()
    client.prepare()
    client.core.faults.add("Fetch", error=code)
    partition = messages.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    response = client.ask(messages.FetchRequest(topics=[messages.FetchTopic(topic="t", partitions=[partition])]), 12)
    inner = [one.error_code for topic in response.responses for one in topic.partitions]
    assert (response.error_code, inner) == (ErrorCode[code] if is_whole else 0, [ErrorCode[code]])


def test_a_consumer_resets_its_offset_after_an_injected_error(kcodec_broker: Broker) -> None:
    kcodec_broker.seed("t", [b"0", b"1"])
    kcodec_broker.faults.add("Fetch", error="OFFSET_OUT_OF_RANGE", count=1)
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as consumer:
        consumer.subscribe("t")
        assert [record.value for record in consumer.poll(20)] == [b"0", b"1"]


def test_an_error_of_one_partition_is_not_that_of_its_group() -> None:
    client = CoreClient()
    client.prepare()
    client.core.faults.add("OffsetFetch", topic="t", error="UNSTABLE_OFFSET_COMMIT")
    topic = messages.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = messages.OffsetFetchRequestGroup(group_id="g", topics=[topic])
    response = client.ask(messages.OffsetFetchRequest(groups=[group]), 8)
    assert [one.error_code for one in response.groups] == [0]
    assert response.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize("api", ["JoinGroup", "AlterConfigs", "IncrementalAlterConfigs", "AlterUserScramCredentials"])
def test_a_topic_for_an_api_without_topics_is_refused(kcodec_broker: Broker, api: str) -> None:
    """The names in these requests are those of assignors, configurations or users."""
    with pytest.raises(ValueError, match=f"{api} requests name no topics, so the rule would never apply: omit topic"):
        kcodec_broker.faults.add(api, topic="t", drop="after")


def test_a_field_that_is_twice_in_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="topic is twice in the fault rule 'Produce,topic=a,topic=b,drop=after'"):
        parse_rule("Produce,topic=a,topic=b,drop=after")


def test_a_rule_that_matches_nothing_yet_keeps_its_count(kcodec_broker: Broker) -> None:
    """The rule names a topic that does not exist when the rule is added."""
    rule = kcodec_broker.faults.add("Produce", topic="later", partition=0, count=1, error="NOT_ENOUGH_REPLICAS")
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, retry_backoff_ms=5) as producer:
        producer.send("other", b"a").result(20)
        assert rule.hits == 0
        producer.send("later", b"b").result(20)
    assert rule.hits == 1
    assert [record.value for record in kcodec_broker.committed("later")] == [b"b"]


def test_rules_after_one_that_only_counts_are_applied(kcodec_broker: Broker) -> None:
    counting = kcodec_broker.faults.add("Produce")
    failing = kcodec_broker.faults.add("Produce", count=1, error="NOT_ENOUGH_REPLICAS")
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, retry_backoff_ms=5) as producer:
        producer.send("t", b"a").result(20)
    assert (counting.hits, failing.hits) == (2, 1)
    assert [entry.fault for entry in kcodec_broker.wire_log.requests("Produce")] == [failing, None]


def request_of(kind: Any, version: int, topic_id: UUID) -> Any:
    """Return a request with one element in each list, which names the partition t-0."""
    found: dict[str, Any] = {}
    for name, field in fields(kind).items():
        if field.versions.hold(version) and field.is_array and not isinstance(field.kind, str):
            found[name] = [request_of(field.kind, version, topic_id)]
        elif field.versions.hold(version) and isinstance(field.kind, str):
            one: Any = {"string": "t", "uuid": topic_id, "int32": 0}.get(field.kind)
            if field.is_array and one is not None:
                found[name] = [one]
            elif field.kind in ("string", "uuid"):
                found[name] = one
    return kind(**found)


def codes_in(source: Any) -> set[int]:
    """Return the error codes in a response."""
    found = {getattr(source, name) for name in ("error_code", "partition_error_code") if hasattr(source, name)}
    values = [getattr(source, name) for name in type(source)._fields]
    inner = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return found.union(*(codes_in(one) for one in inner if isinstance(one, Struct)))


@pytest.mark.parametrize("rule", [{}, {"topic": "t"}, {"topic": "t", "partition": 0}], ids=str)
def test_each_api_can_respond_with_an_error(rule: dict[str, Any]) -> None:
    missing = []
    for key, api in CoreClient().core.apis.items():
        is_named = not rule or names_topics(api.request, with_partitions="partition" in rule)
        if not is_named or api.name.startswith("Sasl"):
            continue
        client = CoreClient()
        client.prepare()
        found = client.core.faults.add(api.name, error="INVALID_REQUEST", **rule)
        topic = client.core.topics.get("t")
        assert topic is not None
        least = 3 if key == messages.ProduceRequest.api_key else api.versions[0]
        for version in range(least, api.versions[1] + 1):
            request = request_of(api.request, version, topic.id)
            if isinstance(request, messages.ProduceRequest):
                request.acks = -1
            response = client.ask(request, version)
            if not isinstance(response, Struct) or ErrorCode.INVALID_REQUEST not in codes_in(response):
                missing.append((api.name, version, response))
        assert found.hits == api.versions[1] + 1 - least, api.name
    assert not missing
