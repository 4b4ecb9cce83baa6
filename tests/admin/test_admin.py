# SPDX-License-Identifier: Apache-2.0
"""Admin on a real Apache Kafka: what each call does there, and how what it refuses is told."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_transactions import RawTransactions

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.admin import flows as admin_flows
from kcodec.admin.security import (
    AclBinding,
    AclFilter,
    AclOperation,
    ResourceType,
    ScramCredentialDeletion,
    ScramCredentialInfo,
    ScramCredentialUpsertion,
    ScramMechanism,
)
from kcodec.admin.values import AlterOperation, ConfigResource, NewTopic
from kcodec.client import Producer
from kcodec.client.admin import Admin
from kcodec.client.aio.admin import Admin as AsyncAdmin
from kcodec.errors import AdminError, AuthorizationError, BrokerError, RequestTimedOutError, TransportError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory


@pytest.fixture(scope="module")
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as made:
        yield made


def unused() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


def eventually(is_so: Callable[[], bool]) -> bool:
    """The controller answers before brokers have heard of it."""
    deadline = time.monotonic() + 10
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def topic(admin: Admin) -> str:
    name = unused()
    admin.create_topics([NewTopic(name, 3)])
    return name


# ------------------------------------------------------------------------------------------------------------- topics


def test_a_topic_is_made_as_asked_for_and_goes(admin: Admin) -> None:
    plain, wide = unused(), unused()
    made = admin.create_topics([plain, NewTopic(wide, 5, 1, {"retention.ms": "123456"})])
    assert list(made) == [plain, wide]
    assert (made[wide].num_partitions, made[wide].replication_factor) == (5, 1)
    assert made[wide].configs["retention.ms"] == "123456"
    assert eventually(lambda: {plain, wide} <= set(admin.list_topics()))
    listed = admin.list_topics()
    assert listed[wide].topic_id == made[wide].topic_id is not None
    assert listed[wide].num_partitions == 5
    described = admin.describe_topics([wide])[wide]
    assert [one.partition for one in described.partitions] == [0, 1, 2, 3, 4]
    assert {(one.leader, one.replicas, one.isr) for one in described.partitions} == {(1, (1,), (1,))}
    assert repr(described) == f"<TopicDescription {wide!r}: 5 partitions>"
    admin.create_partitions({wide: 7})
    admin.delete_topics([plain, wide])
    with pytest.raises(BrokerError, match=f"delete topic {plain!r}") as caught:
        admin.delete_topics([plain])
    assert (caught.value.name, caught.value.resource) == ("UNKNOWN_TOPIC_OR_PARTITION", plain)


def test_assignments_say_who_has_replicas(admin: Admin) -> None:
    name = unused()
    admin.create_topics([NewTopic(name, assignments={0: (1,), 1: (1,)})])
    assert [one.replicas for one in admin.describe_topics([name])[name].partitions] == [(1,), (1,)]
    with pytest.raises(ValueError, match="assignments exclude num_partitions"):
        admin.create_topics([NewTopic(unused(), 2, assignments={0: (1,)})])


def test_validate_only_makes_nothing(admin: Admin) -> None:
    name = unused()
    assert admin.create_topics([NewTopic(name, 4)], validate_only=True)[name].num_partitions == 4
    assert name not in admin.list_topics()


def test_one_failure_is_its_own_error_and_several_are_a_group(admin: Admin, topic: str) -> None:
    with pytest.raises(BrokerError, match="a topic with this name already exists") as caught:
        admin.create_topics([topic])
    assert (caught.value.code, caught.value.resource) == (ErrorCode.TOPIC_ALREADY_EXISTS, topic)
    other, bad = unused(), "no/name"
    with pytest.raises(AdminError, match="create topic: 2 of 3 failed") as several:
        admin.create_topics([topic, other, bad])
    assert {item: error.name for item, error in several.value.errors.items()} == {  # type: ignore[attr-defined]
        topic: "TOPIC_ALREADY_EXISTS",
        bad: "INVALID_TOPIC_EXCEPTION",
    }
    assert list(several.value.results) == [other]
    copy = pickle.loads(pickle.dumps(several.value))
    assert (str(copy), list(copy.errors), copy.results) == (str(several.value), [topic, bad], several.value.results)
    seen = []
    for names in ([topic], [topic, bad]):
        try:
            admin.create_topics(names)
        except* BrokerError as group:
            seen.append(len(group.exceptions))
    assert seen == [1, 2]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unknown is asked for again, but not for long."""
    monkeypatch.setattr("kcodec.cluster.retry_driver.UNKNOWN_TOPIC_PATIENCE_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_is_not_there_is_not_made_by_asking(admin: Admin) -> None:
    name = unused()
    partition = TopicPartition(name, 0)
    for ask in (
        lambda: admin.describe_topics([name]),
        lambda: admin.list_offsets({partition: "latest"}),
        lambda: admin.describe_producers([partition]),
        lambda: admin.describe_configs([ConfigResource.topic(name)]),
    ):
        with pytest.raises(BrokerError) as caught:
            ask()
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert name not in admin.list_topics()


@pytest.mark.usefixtures("impatient")
def test_a_partition_above_the_last_is_named(admin: Admin, topic: str) -> None:
    with pytest.raises(
        BrokerError, match=f"{topic}-9: the partition does not exist; the topic has 3 partitions, numbered from 0"
    ):
        admin.list_offsets({TopicPartition(topic, 9): "latest"})


# ----------------------------------------------------------------------------------------- configs, cluster, features


def test_settings_are_changed_one_by_one(admin: Admin, topic: str) -> None:
    resource = ConfigResource.topic(topic)
    admin.alter_configs({resource: {"retention.ms": "777", "cleanup.policy": (AlterOperation.APPEND, "compact")}})
    assert eventually(lambda: admin.describe_configs([resource])[resource]["retention.ms"].value == "777")
    entries = admin.describe_configs([resource])[resource]
    assert entries["retention.ms"].source == "DYNAMIC_TOPIC_CONFIG"
    assert entries["cleanup.policy"].value == "delete,compact"
    assert entries["segment.bytes"].is_default
    admin.alter_configs({resource: {"retention.ms": None}})
    broker = ConfigResource.broker(1)
    names = ["retention.ms", "node.id"]
    assert eventually(lambda: admin.describe_configs([resource])[resource]["retention.ms"].value != "777")
    both = admin.describe_configs([resource, broker], names=names, include_documentation=True)
    assert both[resource]["retention.ms"].source != "DYNAMIC_TOPIC_CONFIG"
    assert both[broker]["node.id"].value == "1"
    assert both[broker]["node.id"].documentation
    with pytest.raises(BrokerError) as caught:
        admin.alter_configs({resource: {"retention.ms": "soon"}})
    assert caught.value.name == "INVALID_CONFIG"


def test_the_cluster_and_its_features(admin: Admin, apache_kafka: ApacheKafka) -> None:
    cluster = admin.describe_cluster()
    (broker,) = cluster.brokers
    assert f"{broker.host}:{broker.port}" == apache_kafka.bootstrap_servers
    assert cluster.controller_id == broker.id == 1
    assert admin.describe_cluster(include_fenced_brokers=True).brokers == cluster.brokers
    feature = admin.describe_features()["transaction.version"]
    assert (feature.finalized_level, feature.supported_max) == (2, 2)
    with pytest.raises(BrokerError) as caught:
        admin.update_features({"transaction.version": 99}, validate_only=True)
    assert caught.value.name == "INVALID_UPDATE_VERSION"
    admin.update_features({"transaction.version": 1}, upgrade_type="safe_downgrade", validate_only=True)
    admin.update_features({"transaction.version": 2})  # a repeated request is not refused
    assert admin.describe_features()["transaction.version"].finalized_level == 2


# ------------------------------------------------------------------------------------------------- groups and offsets


def test_offsets_of_a_group_are_set_read_and_deleted(admin: Admin, topic: str) -> None:
    group = unused()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(group, {first: 5, second: OffsetAndMetadata(7, "note", 3)})
    assert admin.list_group_offsets(group) == {first: OffsetAndMetadata(5), second: OffsetAndMetadata(7, "note", 3)}
    asked = admin.list_group_offsets(group, [first, TopicPartition(topic, 2)], require_stable=True)
    assert asked == {first: OffsetAndMetadata(5), TopicPartition(topic, 2): None}
    assert admin.list_groups(states=["Empty"])[group].state == "Empty"
    assert group not in admin.list_groups(types=["share"])
    assert admin.describe_groups([group])[group].state == "Empty"
    admin.delete_group_offsets(group, [second])
    assert list(admin.list_group_offsets(group)) == [first]
    with pytest.raises(BrokerError, match="the group does not exist") as caught:
        admin.delete_groups([unused()])
    assert caught.value.name == "GROUP_ID_NOT_FOUND"
    admin.delete_groups([group])
    assert admin.list_group_offsets(group) == {}


def test_groups_of_both_protocols_are_described(admin: Admin, apache_kafka: ApacheKafka, topic: str) -> None:
    group, member = unused(), str(uuid.uuid4())
    with RawTransactions(apache_kafka.bootstrap_servers) as raw:
        epoch = 0

        def is_assigned() -> bool:
            nonlocal epoch
            joins: dict[str, Any] = {
                "rebalance_timeout_ms": 30_000,
                "subscribed_topic_names": [topic],
                "topic_partitions": [],
            }
            heartbeat = messages.ConsumerGroupHeartbeatRequest(
                group_id=group, member_id=member, member_epoch=epoch, **({} if epoch else joins)
            )
            answer = raw.ask_coordinator("group", group, heartbeat)
            assert (answer.error_code, answer.error_message) == (0, None)
            epoch = answer.member_epoch
            return len(admin.describe_groups([group])[group].members[0].partitions) == 3

        assert eventually(is_assigned)
    found = admin.describe_groups([group])[group]
    assert (found.type, found.protocol_type, found.protocol) == ("consumer", "consumer", "uniform")
    (only,) = found.members
    assert only.member_id == member
    assert set(only.partitions) == {TopicPartition(topic, number) for number in range(3)}
    assert admin.list_groups(types=["consumer"])[group].state == found.state
    with pytest.raises(AdminError) as caught:
        admin.describe_groups([group, unused()])
    assert list(caught.value.results) == [group]


def test_offsets_of_partitions(admin: Admin, apache_kafka: ApacheKafka, topic: str) -> None:
    partition, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with RawTransactions(apache_kafka.bootstrap_servers) as raw:
        name, producer = raw.open([partition])
        both = {partition: "latest", empty: "latest"}
        assert {at.offset for at in admin.list_offsets(both).values()} == {0, 1}
        committed = admin.list_offsets(both, isolation_level="read_committed")
        assert {at.offset for at in committed.values()} == {0}
        assert raw.end(name, producer, commit=True) == 0
    plain = TopicPartition(topic, 2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as writer:
        for timestamp in (1000, 3000, 2000):
            writer.send(topic, b"x", partition=2, timestamp=timestamp).result()
    assert admin.list_offsets({plain: "max_timestamp"})[plain].offset == 1
    for timestamp, offset in ((0, 0), (1000, 0), (1001, 1), (3000, 1), (3001, -1)):
        assert admin.list_offsets({plain: timestamp})[plain].offset == offset
    assert admin.delete_records({partition: 1}) == {partition: 1}
    assert admin.list_offsets({partition: "earliest"})[partition].offset == 1
    with pytest.raises(BrokerError, match=f"delete records of {partition}") as caught:
        admin.delete_records({partition: 99})
    assert caught.value.name == "OFFSET_OUT_OF_RANGE"
    assert not admin.elect_leaders([partition])[partition].was_needed
    with pytest.raises(ValueError, match=r"offset must be one of latest, .*, not 'last'"):
        admin.list_offsets({partition: "last"})


# ----------------------------------------------------------------------------------------------------------- security


def test_permissions_and_passwords(apache_kafka_factory: KafkaFactory) -> None:
    kafka = apache_kafka_factory(sasl="PLAIN", authorizer=True)
    with Admin(bootstrap_servers=kafka.admin_servers) as admin:
        read = AclBinding(ResourceType.TOPIC, "orders", "User:alice", AclOperation.READ)
        write = AclBinding(ResourceType.GROUP, "g", "User:bob", AclOperation.ALL)
        admin.create_acls([read, write])
        assert str(read) == "allow User:alice read on literal topic 'orders' from *"
        assert eventually(lambda: {read, write} <= set(admin.describe_acls()))
        only = AclFilter(ResourceType.TOPIC, "orders")
        assert admin.describe_acls(only) == [read]
        assert admin.delete_acls([only]) == {only: [read]}
        assert eventually(lambda: read not in admin.describe_acls())
        admin.alter_user_scram_credentials([ScramCredentialUpsertion("carol", "pass-word")])
        assert eventually(lambda: "carol" in admin.describe_user_scram_credentials())
        info = (ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),)
        assert admin.describe_user_scram_credentials(["carol", "dave"]) == {"carol": info, "dave": ()}
        assert admin.describe_user_scram_credentials()["carol"] == info
        assert admin.describe_user_scram_credentials([]) == {}
        assert admin.describe_user_scram_credentials(["carol", "carol"]) == {"carol": info}
        with (
            Admin(**kafka.client_options("bob")) as bob,
            pytest.raises(AuthorizationError, match="credentials of users"),
        ):
            bob.describe_user_scram_credentials(["carol"])
        with pytest.raises(BrokerError, match="'dave'") as caught:
            admin.alter_user_scram_credentials([ScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_256)])
        assert caught.value.name == "RESOURCE_NOT_FOUND"
        assert "pass-word" not in repr(ScramCredentialUpsertion("carol", "pass-word"))


# -------------------------------------------------------------------------------------------------------------- APIs


def test_both_apis_have_every_flow_and_its_documentation() -> None:
    for name in admin_flows.__all__:
        flow = getattr(admin_flows, name)
        parameters = list(inspect.signature(flow).parameters)[1:]
        for admin_class in (Admin, AsyncAdmin):
            method = getattr(admin_class, name)
            assert method.__doc__ == flow.__doc__
            assert list(inspect.signature(method).parameters) == ["self", *parameters]
        assert "timeout" in parameters
        assert inspect.iscoroutinefunction(getattr(AsyncAdmin, name))


def test_the_asyncio_api_does_the_same(apache_kafka: ApacheKafka) -> None:
    async def story() -> None:
        name = unused()
        async with AsyncAdmin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
            made, cluster = await asyncio.gather(admin.create_topics([NewTopic(name, 2)]), admin.describe_cluster())
            assert made[name].num_partitions == 2
            assert [broker.id for broker in cluster.brokers] == [1]
            with pytest.raises(BrokerError, match="a topic with this name already exists"):
                await admin.create_topics([name])
            await admin.delete_topics([name])

    asyncio.run(story())


def test_an_absent_broker_is_reported_at_the_deadline() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=700) as admin:
        with pytest.raises(RequestTimedOutError, match=r"list topics of the cluster: not finished within 0.7 s"):
            admin.list_topics()
        with pytest.raises(TransportError):
            admin.create_topics(["x"], timeout=0.3)
    with pytest.raises(TransportError, match="closed"):
        admin.list_topics()


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match="Admin has no option 'requst_timeout_ms'; did you mean 'request_timeout_ms'"):
        Admin(bootstrap_servers="127.0.0.1:1", requst_timeout_ms=5)  # type: ignore[call-arg]
