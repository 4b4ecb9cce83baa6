# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of `Admin`: the error names them, also if a broker would accept them and do something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy
import pytest

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    Admin,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    PatternType,
    ResourceType,
    ScramCredentialUpsertion,
)


@pytest.fixture
def admin(kcodec_broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as one:
        yield one


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [
        (-1, ValueError, "expected an offset of 0 or more, got -1"),
        (OffsetAndMetadata(-1), ValueError, "expected an offset of 0 or more, got -1"),
        (1.5, TypeError, "expected an int or an OffsetAndMetadata, got 1.5"),
        (None, TypeError, "expected an int or an OffsetAndMetadata, got None"),
    ],
)
def test_an_offset_of_a_group_that_is_none_is_refused(
    admin: Admin, kcodec_broker: Broker, offset: Any, error: type[Exception], text: str
) -> None:
    """A broker stores -1, and a consumer takes it as no offset: with "latest" it would leave out all records."""
    partition = TopicPartition(kcodec_broker.create_topic(), 0)
    admin.alter_group_offsets("billing", {partition: 5})
    with pytest.raises(error, match=rf"offsets\[{partition.topic}-0\]: {text}"):
        admin.alter_group_offsets("billing", {partition: offset})
    assert admin.list_group_offsets("billing") == {partition: OffsetAndMetadata(5)}


def test_an_unknown_state_or_type_of_groups_is_refused(admin: Admin, kcodec_broker: Broker) -> None:
    """A broker responds with an empty list, as if there were no such group."""
    admin.alter_group_offsets("billing", {TopicPartition(kcodec_broker.create_topic(), 0): 5})
    with pytest.raises(ValueError, match=r"states: expected one or more of PreparingRebalance, .*, got 'Emty'"):
        admin.list_groups(states="Emty")
    with pytest.raises(
        ValueError, match="types: expected one or more of classic, consumer, share, streams, got 'shared'"
    ):
        admin.list_groups(types=["classic", "shared"])
    assert list(admin.list_groups(states=["empty"], types="Classic")) == ["billing"]
    request = kcodec_broker.wire_log.requests("ListGroups")[-1].request  # in the case of brokers before Kafka 3.7, too
    assert (request.states_filter, request.types_filter) == (["Empty"], ["classic"])


TOPIC = ConfigResource.topic("orders")
ORDERS = TopicPartition("orders", 0)
#: The same classes, for calls that a type checker refuses.
new_topic: Any = NewTopic
resource: Any = ConfigResource
acl_binding: Any = AclBinding
acl_filter: Any = AclFilter


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda it: it.alter_configs({"orders": {}}), r"changes: expected ConfigResource, got 'orders'; use ConfigRes"),
        (lambda it: it.alter_configs([TOPIC]), r"changes: expected \{ConfigResource: \{setting: value\}\}, got \["),
        (lambda it: it.alter_configs({TOPIC: [("a", "b")]}), r"changes of topic 'orders': expected \{name: value\}"),
        (lambda it: it.alter_configs({TOPIC: {"a": ("append", "b")}}), r"a must be a value or a tuple of an AlterOp"),
        (
            lambda it: it.alter_configs({TOPIC: {"a": b"1"}}),
            r"the value of setting 'a' must be a str, a number or None",
        ),
        (lambda it: it.create_partitions([("orders", 3)]), r"counts: expected \{name: number of partitions\}, got \["),
        (lambda it: it.create_partitions({"orders": "3"}), r"counts: expected the number of partitions of topic 'ord"),
        (
            lambda it: it.create_partitions({"orders": (3, [1])}),
            r"counts: expected the broker ids of each new partition of topic 'orders' as a list of lists, got \[1\]",
        ),
        (
            lambda it: it.create_partitions({"orders": (3, 1)}),
            r"counts: expected the broker ids of each new partition of topic 'orders' as a list of lists, got 1",
        ),
        (
            lambda it: it.create_topics(new_topic("orders", assignments={0: ["1"]})),
            r"NewTopic: assignments of partition 0 of 'orders': expected an int, got '1' of type str",
        ),
        (lambda it: it.create_partitions({5: 3}), r"counts: expected a name of type str, got 5 of type int"),
        (lambda it: it.delete_records({"orders": 5}), r"before: expected TopicPartition\(topic, partition\), got 'or"),
        (lambda it: it.delete_records({ORDERS: "5"}), r"before: the offset of orders-0 must be an int, not '5'"),
        (lambda it: it.list_group_offsets(["billing"]), r"group_id must be a str, got \['billing'\] of type list; the"),
        (lambda it: it.describe_group_lag(None), r"group_id must be a str, got None of type NoneType"),
        (lambda it: it.delete_group_offsets(5, [ORDERS]), r"group_id must be a str, got 5 of type int"),
        (lambda it: it.alter_group_offsets(b"billing", {ORDERS: 1}), r"group_id must be a str, got b'billing'"),
        (lambda it: it.list_share_group_offsets(5), r"group_id must be a str, got 5 of type int"),
        (lambda it: it.update_features("group.version"), r"levels: expected \{name: level\}, got 'group.version'"),
        (lambda it: it.update_features({"group.version": "1"}), r"the level of group.version must be an int, not '1'"),
        (lambda it: it.describe_acls("orders"), r"which: expected AclFilter or None, got 'orders' of type str"),
        (lambda it: it.list_topics(timeout="5"), r"list_topics\(\): timeout must be a number of seconds or None, got"),
    ],
)
def test_a_wrong_argument_is_named(admin: Admin, call: Callable[[Admin], object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call(admin)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: new_topic("orders", num_partitions="3"), r"NewTopic: num_partitions must be an int or None, got '3'"),
        (lambda: new_topic(5), r"NewTopic: name must be a str, got 5 of type int"),
        (lambda: new_topic("orders", configs=["a"]), r"NewTopic: configs: expected \{name: value\}, got \['a'\]"),
        (lambda: new_topic("orders", configs={"a": []}), r"the value of setting 'a' must be a str, a number or None"),
        (lambda: new_topic("orders", assignments=[1]), r"NewTopic: assignments must be a mapping of partitions"),
        (lambda: resource("topic", "orders"), r"type must be a member of ConfigResourceType, got .topic.; use C"),
        (lambda: resource(3, "orders"), r"got 3; use one of TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GR"),
        (
            lambda: acl_binding("topic", "a", "User:b", "read"),
            r"resource_type must be a member of ResourceType, got .topic.; u",
        ),
        (
            lambda: acl_filter(operation="peek"),
            r"AclFilter: operation must be a member of AclOperation, got 'peek'; use one of A",
        ),
        (lambda: acl_filter(principal=5), r"AclFilter: principal must be a str or None, got 5 of type int"),
    ],
)
def test_a_wrong_field_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_a_topic_with_two_different_definitions_is_refused(admin: Admin) -> None:
    """Otherwise, one of them would have no effect."""
    with pytest.raises(ValueError, match="topics: 'orders' is named twice, with different values"):
        admin.create_topics([new_topic("orders", 1), new_topic("orders", 6)])
    assert set(admin.create_topics([new_topic("orders", 1), new_topic("orders", 1)])) == {"orders"}


@pytest.mark.parametrize("name", ["abc", "-1"])
def test_a_name_that_is_no_broker_id_is_refused(name: str) -> None:
    expected = f"the id of a broker, such as '1', or '' for the default of all brokers, got '{name}'"
    with pytest.raises(ValueError, match=f"ConfigResource: name must be {expected}"):
        resource(ConfigResourceType.BROKER, name)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"resource_type": ResourceType.ANY},
            r"bindings: AclBinding.resource_type must not be ResourceType.ANY; only an AclFilter can contain it$",
        ),
        (
            {"operation": AclOperation.ANY},
            r"bindings: AclBinding.operation must not be AclOperation.ANY; only an AclFilter can contain it$",
        ),
        (
            {"permission": AclPermission.ANY},
            r"bindings: AclBinding.permission must not be AclPermission.ANY; only an AclFilter can contain it$",
        ),
        (
            {"pattern_type": PatternType.MATCH},
            r"bindings: AclBinding.pattern_type must not be PatternType.MATCH; only an AclFilter can contain it$",
        ),
        ({"operation": AclOperation.UNKNOWN}, r"bindings: AclBinding.operation must not be AclOperation.UNKNOWN$"),
    ],
)
def test_a_permission_with_a_value_for_filters_is_refused(admin: Admin, change: dict[str, Any], text: str) -> None:
    """A broker would respond with UNKNOWN_SERVER_ERROR, also for the other permissions."""
    good = AclBinding(ResourceType.TOPIC, "orders", "User:alice", AclOperation.READ)
    with pytest.raises(ValueError, match=text):
        admin.create_acls([good, replace(good, **change)])


def test_a_negative_timestamp_is_refused(admin: Admin) -> None:
    """A broker would respond with UNSUPPORTED_VERSION."""
    text = r"at least 0 ms since 1970, or one of -1 \(latest\), .*, -5 \(latest_tiered\), got -86400000"
    with pytest.raises(ValueError, match=f"offset: a timestamp must be {text}"):
        admin.list_offsets({ORDERS: -86_400_000})


def test_the_numbers_of_the_protocol_stand_for_words(admin: Admin, kcodec_broker: Broker) -> None:
    """Other clients have constants with these numbers."""
    kcodec_broker.seed("orders", [b"1", b"2"])
    words = {-1: "latest", -2: "earliest", -3: "max_timestamp"}
    by_number = [admin.list_offsets({ORDERS: number}) for number in words]
    assert by_number == [admin.list_offsets({ORDERS: word}) for word in words.values()]


def test_broker_ids_of_new_partitions_may_be_an_array(admin: Admin, kcodec_broker: Broker) -> None:
    """Any iterable of iterables is accepted, as in the other calls."""
    admin.create_topics([new_topic("orders", num_partitions=1)])
    for count, brokers in ((2, numpy.array([[1]])), (3, ([1] for _ in range(1)))):
        counts: Any = {"orders": (count, brokers)}
        admin.create_partitions(counts)
        request = kcodec_broker.wire_log.requests("CreatePartitions")[-1].request
        assert [list(one.broker_ids) for one in request.topics[0].assignments] == [[1]]
    both: Any = {"orders": ("4", 5)}
    with pytest.raises(TypeError, match="counts: expected the number of partitions of topic 'orders', or a tuple"):
        admin.create_partitions(both)


def test_numbers_and_booleans_are_values_of_settings(admin: Admin, kcodec_broker: Broker) -> None:
    configs: Any = {"retention.ms": 1000, "preallocate": True}
    admin.create_topics([new_topic("orders", num_partitions=numpy.int64(2), configs=configs)])
    changes: Any = {"retention.bytes": 5, "min.cleanable.dirty.ratio": 0.25, "preallocate": None}
    admin.alter_configs({TOPIC: changes})
    assert len(admin.describe_topics("orders")["orders"].partitions) == 2
    found = admin.describe_configs([TOPIC])[TOPIC]
    names = ("retention.ms", "retention.bytes", "min.cleanable.dirty.ratio", "preallocate")
    assert [found[name].value for name in names] == ["1000", "5", "0.25", "false"]


def test_numbers_of_enumerations_are_members() -> None:
    binding: Any = acl_binding(2, "orders", "User:alice", 3)
    assert str(binding) == "allow User:alice read on literal topic 'orders' from *"
    assert resource(2, "orders") == TOPIC


def test_a_password_in_the_wrong_position_is_not_shown() -> None:
    upsertion: Any = ScramCredentialUpsertion
    for arguments in (("alice", "SCRAM-SHA-256", "geheim"), ("alice", b"geheim")):
        with pytest.raises(TypeError, match="ScramCredentialUpsertion: ") as raised:
            upsertion(*arguments)
        assert "geheim" not in str(raised.value)


def test_a_search_of_a_user_without_permissions_logs_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """The responses do not differ from those of an empty cluster."""
    users = {"alice": "alice-secret", "root": "root-secret"}
    login: dict[str, Any] = {"listeners": {"SASL_PLAINTEXT": 0}, "sasl_mechanisms": ("PLAIN",), "users": users}
    with Broker(**login, authorizer=True, super_users=["User:root"]) as broker:
        broker.seed("orders", [b"1"])
        warnings = {}
        for user, password in users.items():
            caplog.clear()
            options: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
            options |= {"sasl_plain_username": user, "sasl_plain_password": password}
            with Admin(bootstrap_servers=broker.bootstrap_servers, **options) as client:
                assert client.find_hanging_transactions().errors == {}
                assert client.find_abandoned_transactions().errors == {}
            warnings[user] = [
                one.getMessage() for one in caplog.records if "no DESCRIBE permission" in one.getMessage()
            ]
        assert len(warnings["alice"]) == 2
        assert len(warnings["root"]) == 1  # the cluster has no transactional ids
