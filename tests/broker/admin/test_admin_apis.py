# SPDX-License-Identifier: Apache-2.0
"""Administration of the embedded broker: configurations, partitions, cluster, compared with Apache Kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from admin_requests import described, requests, shared
from broker_core import CoreClient
from group_pairs import KafkaConnection
from memory_groups import MemoryGroups

from kcodec.admin.quotas import ClientQuotaEntity
from kcodec.broker import Broker
from kcodec.broker.admin import admin_apis
from kcodec.broker.api import ConnectionInfo, Later, Listener, RequestContext
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topic_configs import CONFIGS
from kcodec.broker.topics import Topics
from kcodec.client import Admin
from kcodec.errors import UnsupportedError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka

READ_SECONDS = 5.0
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Host:
    """A broker without sockets."""

    settings: BrokerSettings
    topics: Topics
    listeners: list[Listener] = field(default_factory=lambda: [Listener("PLAINTEXT", "broker.example", 9092)])

    def ask(self, request: Any, version: int | None = None) -> Any:
        """Return the response, encoded and decoded in its version."""
        api = next(one for one in admin_apis(self) if one.request is type(request))
        version = api.versions[1] if version is None else version
        context = RequestContext(version, connection=ConnectionInfo(listener=self.listeners[0]))
        response = api.handle(context, type(request).decode(request.encode(version), version))
        assert response is not None
        assert not isinstance(response, Later)
        return api.request.response.decode(response.encode(version), version)


@pytest.fixture
def host() -> Host:
    """A broker with the topics of MemoryGroups."""
    groups = MemoryGroups(topic_defaults={"retention.ms": "-1"})
    return Host(groups.settings, groups.topics)


def test_administration_responds_as_kafka(host: Host, apache_kafka: ApacheKafka) -> None:
    """Codes, messages and values of right and wrong requests, one after the other.

    Kafka's broker reads what its controller has written some milliseconds later, so a description is repeated.
    """
    topic = apache_kafka.create_topic(partitions=3)
    host.topics.create(topic, 3)
    connection = KafkaConnection(apache_kafka.bootstrap_servers)
    try:
        for request, version in requests(topic):
            found, deadline = shared(host.ask(request, version)), time.monotonic() + READ_SECONDS
            is_reading = type(request).__name__.startswith("Describe")
            expected = shared(connection.ask(request, version))
            while is_reading and found != expected and time.monotonic() < deadline:
                time.sleep(0.02)
                expected = shared(connection.ask(request, version))
            assert found == expected, request
    finally:
        connection.close()


def test_every_topic_configuration_is_described(host: Host) -> None:
    """With its type and the places that its value comes from; internal ones only when they are set."""
    host.topics.create("set", 1, {"retention.ms": "7"})
    request, version = described(2, "set", None, with_synonyms=True)
    configs = {one.name: one for one in host.ask(request, version).results[0].configs}
    assert set(configs) == {name for name in CONFIGS if not name.startswith("internal.")}
    synonyms = [(one.name, one.value, one.source) for one in configs["retention.ms"].synonyms]
    assert synonyms == [("retention.ms", "7", 1), ("log.retention.ms", "-1", 4), ("log.retention.ms", "604800000", 5)]
    assert configs["segment.ms"].config_source == 5


def test_the_settings_of_the_broker_are_read_only(host: Host) -> None:
    """They are described under Kafka's names. One of them is a setting that Kafka's controller stores."""
    request, version = described(4, "1", None)
    configs = {one.name: one for one in host.ask(request, version).results[0].configs}
    assert configs["num.partitions"].value == "1"
    assert configs["auto.create.topics.enable"].value == "true"
    assert [name for name, one in configs.items() if not one.read_only] == ["min.insync.replicas"]
    assert configs["min.insync.replicas"].config_source == 3


def test_a_request_that_only_validates_changes_nothing(host: Host) -> None:
    """Of configurations and of partitions."""
    change = messages.IncrementalAlterableConfig(name="retention.ms", value="5")
    resource = messages.IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    for only_validates in (True, False):
        request = messages.IncrementalAlterConfigsRequest(resources=[resource], validate_only=only_validates)
        assert host.ask(request).responses[0].error_code == ErrorCode.NONE
        topic = host.topics.get("t")
        assert topic is not None
        assert topic.configs == ({} if only_validates else {"retention.ms": "5"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.gzip.level", "0"),
        ("compression.type", "brotli"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "much"),
        ("preallocate", "maybe"),
        ("segment.bytes", "1000"),
        ("retention.ms", "-2"),
    ],
)
def test_invalid_values_are_refused(host: Host, name: str, value: str) -> None:
    """With the setting and the value in the message."""
    change = messages.IncrementalAlterableConfig(name=name, value=value)
    resource = messages.IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    response = host.ask(messages.IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert f"Invalid value {value} for configuration {name}" in response.error_message


def test_log_directories_have_sizes(host: Host) -> None:
    """Of the requested partitions that exist."""
    topic = host.topics.get("t")
    assert topic is not None
    topic.partitions[1].log.append_records([(b"k", b"v")])
    wanted = messages.DescribableLogDirTopic(topic="t", partitions=[1, 9])
    found = host.ask(messages.DescribeLogDirsRequest(topics=[wanted])).results[0]
    sizes = [(one.partition_index, one.partition_size) for one in found.topics[0].partitions]
    assert sizes == [(1, topic.partitions[1].log.size_in_bytes)]
    assert len(host.ask(messages.DescribeLogDirsRequest(topics=None)).results[0].topics) == 3


def test_the_cluster_has_one_broker(host: Host) -> None:
    """The address is the one that clients connect to; everything is allowed."""
    response = host.ask(messages.DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert [(one.broker_id, one.host, one.port) for one in response.brokers] == [(1, "broker.example", 9092)]
    assert response.cluster_authorized_operations == 8096


def test_every_version_of_administration_is_encoded(host: Host) -> None:
    """With the default fields of the request."""
    for api in admin_apis(host):
        for version in range(api.versions[0], api.versions[1] + 1):
            host.ask(api.request(), version)


def test_groups_have_configurations(host: Host) -> None:
    """Kafka's three for consumer groups, with its ranges; the coordinator uses them."""

    def alter(name: str, value: str) -> int:
        change = messages.IncrementalAlterableConfig(name=name, value=value)
        resource = messages.IncrementalAlterConfigsResource(resource_type=32, resource_name="g", configs=[change])
        code: int = host.ask(messages.IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code
        return code

    assert alter("consumer.session.timeout.ms", "999") == ErrorCode.INVALID_CONFIG
    assert alter("retention.ms", "5") == ErrorCode.INVALID_CONFIG
    assert alter("consumer.session.timeout.ms", "2000") == ErrorCode.NONE
    request, version = described(32, "g", None)
    configs = {one.name: (one.value, one.config_source) for one in host.ask(request, version).results[0].configs}
    assert configs["consumer.session.timeout.ms"] == ("2000", 8)
    assert configs["consumer.heartbeat.interval.ms"] == ("5000", 5)


def test_operations_of_the_cluster_are_those_of_kafka(apache_kafka: ApacheKafka) -> None:
    """Metadata up to version 10 and DescribeCluster report the same bits."""
    both = [
        (messages.MetadataRequest(topics=[], include_cluster_authorized_operations=True), 10),
        (messages.DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
    ]
    client, connection = CoreClient(), KafkaConnection(apache_kafka.bootstrap_servers)
    try:
        for request, version in both:
            expected = connection.ask(request, version).cluster_authorized_operations
            assert client.ask(request, version).cluster_authorized_operations == expected > 0
    finally:
        connection.close()


#: What docs/broker.md lists as methods that raise UnsupportedError.
UNSUPPORTED: dict[str, Callable[[Admin], object]] = {
    "describe_client_quotas": lambda admin: admin.describe_client_quotas(),
    "alter_client_quotas": lambda admin: admin.alter_client_quotas(
        {ClientQuotaEntity(user="u"): {"request_percentage": 5}}
    ),
    "create_delegation_token": lambda admin: admin.create_delegation_token(),
    "describe_delegation_tokens": lambda admin: admin.describe_delegation_tokens(),
    "renew_delegation_token": lambda admin: admin.renew_delegation_token(b"hmac"),
    "expire_delegation_token": lambda admin: admin.expire_delegation_token(b"hmac"),
    "list_share_group_offsets": lambda admin: admin.list_share_group_offsets("g"),
    "unregister_broker": lambda admin: admin.unregister_broker(1),
    "update_features": lambda admin: admin.update_features({"group.version": 1}),
}


def test_the_documentation_lists_the_missing_apis() -> None:
    """Each of these methods is refused at once, and names the API. Admin has the requests of no other missing API."""
    section = (
        (ROOT / "docs" / "broker.md").read_text("utf-8").split("## Administration")[1].split("These methods behave")[0]
    )
    assert set(re.findall(r"`(\w+)`", section)) - {"Admin", "UnsupportedError"} == set(UNSUPPORTED)
    with Broker() as broker, Admin(**broker.client_options()) as admin:
        served = {api.name for api in broker.core.apis.values()}
        for call in UNSUPPORTED.values():
            with pytest.raises(UnsupportedError, match="does not support"):
                call(admin)
    sources = (ROOT / "src" / "kcodec" / "admin").glob("*.py")
    requested = {name for path in sources for name in re.findall(r"messages\.(\w+)Request\b", path.read_text("utf-8"))}
    assert requested - served == {
        *("AlterClientQuotas", "DescribeClientQuotas"),
        *("CreateDelegationToken", "DescribeDelegationToken", "ExpireDelegationToken", "RenewDelegationToken"),
        *("DescribeShareGroupOffsets", "UnregisterBroker", "UpdateFeatures"),
        # describe_groups requests these after ListGroups has named a group of this type.
        *("ShareGroupDescribe", "StreamsGroupDescribe"),
    }
