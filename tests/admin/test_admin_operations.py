# SPDX-License-Identifier: Apache-2.0
"""Quotas, the quorum, log directories and configured resources: each read back with Kafka's own tools."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_runner import Ran, rows, run
from kafka_tools import kafka_tool

from kcodec import TopicPartition
from kcodec.admin.brokers import TopicPartitionReplica
from kcodec.admin.quotas import ANY_NAME, ClientQuotaEntity
from kcodec.admin.values import ConfigResource, ConfigResourceType
from kcodec.cli import ExitStatus
from kcodec.client import Admin, Producer, aio
from kcodec.errors import BrokerError
from kcodec.testing.kafka import ApacheKafka


@pytest.fixture(scope="module")
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as made:
        yield made


def call(kafka: ApacheKafka, words: str, *more: str) -> Ran:
    command, action, *rest = words.split()
    return run(command, action, "-b", kafka.bootstrap_servers, *rest, *more)


def until(holds: Callable[[], bool]) -> None:
    """Wait until a broker shows what the controller has written."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_quotas_are_as_kafka_shows_them(apache_kafka: ApacheKafka, admin: Admin) -> None:
    user = f"user-{uuid.uuid4().hex[:8]}"
    one, every = ClientQuotaEntity(user=user, client_id="reader"), ClientQuotaEntity(user=user, client_id="")
    admin.alter_client_quotas({one: {"consumer_byte_rate": 1024.0}}, validate_only=True)
    admin.alter_client_quotas(
        {one: {"consumer_byte_rate": 2048.0, "request_percentage": 50}, every: {"producer_byte_rate": 9.0}}
    )
    until(lambda: len(admin.describe_client_quotas(user=user)) == 2)
    printed = kafka_tool(
        *("ConfigCommand", "--bootstrap-server", apache_kafka.bootstrap_servers, "--describe"),
        *("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-name", "reader"),
    )
    assert "consumer_byte_rate=2048.0" in printed and "request_percentage=50.0" in printed
    assert admin.describe_client_quotas(user=user) == {
        one: {"consumer_byte_rate": 2048.0, "request_percentage": 50.0},
        every: {"producer_byte_rate": 9.0},
    }
    assert admin.describe_client_quotas(user=user, strict=True) == {}
    assert set(admin.describe_client_quotas(user=user, client_id=ANY_NAME, strict=True)) == {one, every}
    assert set(admin.describe_client_quotas(user=user, client_id="")) == {every}
    kafka_tool(
        *("ConfigCommand", "--bootstrap-server", apache_kafka.bootstrap_servers, "--alter"),
        *("--delete-config", "request_percentage"),
        *("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-name", "reader"),
    )
    admin.alter_client_quotas({every: {"producer_byte_rate": None}})
    until(lambda: admin.describe_client_quotas(user=user) == {one: {"consumer_byte_rate": 2048.0}})


def test_quotas_on_the_command_line(apache_kafka: ApacheKafka, admin: Admin) -> None:
    user = f"user-{uuid.uuid4().hex[:8]}"
    assert call(apache_kafka, f"quotas alter --user {user} --set producer_byte_rate=5 --validate-only").err == (
        f"user {user!r}: could be changed\n"
    )
    assert rows(call(apache_kafka, f"quotas list --user {user} -J")) == []
    assert call(apache_kafka, f"quotas alter --user {user} --set producer_byte_rate=5 --client-id", "").status == 0
    until(lambda: bool(admin.describe_client_quotas(user=user)))
    shown = {"user": user, "client_id": "", "ip": None, "quota": "producer_byte_rate", "value": 5.0}
    assert rows(call(apache_kafka, f"quotas list --user {user} -J")) == [shown]
    assert "<default>" in call(apache_kafka, f"quotas list --user {user}").out
    for words, reported in (
        ("quotas alter", "alter needs at least one of --user, --client-id and --ip"),
        ("quotas alter --user u", "alter needs --set or --unset"),
        (
            "quotas alter --user u --set consumer_byte_rate=much",
            "--set consumer_byte_rate: 'much' is not a finite number",
        ),
        (
            "quotas alter --user u --set consumer_byte_rate=nan",
            "--set consumer_byte_rate: 'nan' is not a finite number",
        ),
        ("quotas alter --user u --set x=1 --unset x", "x: --set and --unset exclude each other"),
        ("quotas alter --user u --set bogus=1", "Invalid configuration key bogus"),
    ):
        ran = call(apache_kafka, words)
        assert ran.status is ExitStatus.ERROR
        assert reported in ran.err


def test_the_removal_of_a_quota_that_does_not_exist_is_refused(apache_kafka: ApacheKafka, admin: Admin) -> None:
    """A broker accepts it, so that a misspelled name would be reported as changed."""
    user = f"user-{uuid.uuid4().hex[:8]}"
    entity = ClientQuotaEntity(user=user)
    admin.alter_client_quotas({entity: {"producer_byte_rate": 5}})
    until(lambda: bool(admin.describe_client_quotas(user=user)))
    ran = call(apache_kafka, f"quotas alter --user {user} --unset producer_byte_rat --set consumer_byte_rate=5")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        f"kcodec: --unset producer_byte_rat: user {user!r} has no quota of this name; did you mean "
        "'producer_byte_rate'?\n",
    )
    assert admin.describe_client_quotas(user=user) == {entity: {"producer_byte_rate": 5.0}}
    ran = call(apache_kafka, "quotas alter --user nobody --unset request_percentage")
    assert (ran.status, "user 'nobody' has no quota of this name" in ran.err) == (ExitStatus.ERROR, True)
    assert call(apache_kafka, f"quotas alter --user {user} --unset producer_byte_rate").status is ExitStatus.OK
    until(lambda: not admin.describe_client_quotas(user=user))


def test_a_quota_without_clients_is_refused(admin: Admin) -> None:
    with pytest.raises(ValueError, match="at least one of user, client_id and ip"):
        admin.alter_client_quotas({ClientQuotaEntity(): {"consumer_byte_rate": 1.0}})


@pytest.mark.parametrize(
    ("quotas", "error", "text"),
    [
        (
            {"consumer_byte_rate": math.nan},
            ValueError,
            "consumer_byte_rate of user 'u' must be a finite number, got nan",
        ),
        ({"consumer_byte_rate": "5"}, TypeError, "consumer_byte_rate of user 'u' must be a number or None, got '5'"),
        (5, TypeError, "expected {ClientQuotaEntity"),
    ],
)
def test_a_quota_that_is_no_number_is_refused(admin: Admin, quotas: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        admin.alter_client_quotas({ClientQuotaEntity(user="u"): quotas})


def test_an_invalid_replica_is_refused(admin: Admin) -> None:
    """Before, the text in place of a broker id ended the I/O thread of the client."""
    for replica in (
        TopicPartitionReplica(TopicPartition("t", 0), "1"),  # type: ignore[arg-type]
        TopicPartitionReplica("t", 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="moves: "):
            admin.alter_replica_log_dirs({replica: "/data"})
    assert admin.list_topics() is not None


def test_the_quorum_is_as_kafka_shows_it(apache_kafka: ApacheKafka, admin: Admin) -> None:
    found = admin.describe_quorum()
    servers = apache_kafka.bootstrap_servers
    printed = kafka_tool("MetadataQuorumCommand", "--bootstrap-server", servers, "describe", "--status")
    theirs = dict(re.findall(r"(\w+):\s+(\S+)", printed))
    assert (str(found.leader_id), str(found.leader_epoch)) == (theirs["LeaderId"], theirs["LeaderEpoch"])
    assert found.high_watermark <= int(theirs["HighWatermark"])
    assert [(one.id, found.lag(one)) for one in found.voters] == [(1, 0)]
    (shown,) = rows(call(apache_kafka, "cluster quorum -J"))
    assert (shown["node"], shown["role"], shown["lag"]) == (1, "leader", 0)
    ran = call(apache_kafka, "cluster describe")
    assert "1 broker" in ran.err and "127.0.0.1" in ran.out


def test_log_directories_are_as_kafka_shows_them(apache_kafka: ApacheKafka, admin: Admin) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.send(topic, b"x" * 1000, partition=1)
    printed = kafka_tool(
        *("LogDirsCommand", "--bootstrap-server", apache_kafka.bootstrap_servers, "--describe"),
        *("--topic-list", topic),
    )
    (broker,) = json.loads(printed.splitlines()[-1])["brokers"]
    (theirs,) = broker["logDirs"]
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    ((path, ours),) = admin.describe_log_dirs([1], partitions=places)[1].items()
    assert (path, ours.error) == (theirs["logDir"], None)
    assert {f"{topic}-{one.partition}": found.size for one, found in ours.replicas.items()} == {
        one["partition"]: one["size"] for one in theirs["partitions"]
    }
    assert ours.replicas[places[0]].size == 0 < ours.replicas[places[1]].size
    assert ours.total_bytes is not None and ours.usable_bytes is not None
    assert 0 < ours.usable_bytes <= ours.total_bytes
    shown = rows(call(apache_kafka, "cluster log-dirs 1 --replicas -J"))
    assert {one["partition"]: one["size"] for one in shown if one["topic"] == topic} == {
        place.partition: ours.replicas[place].size for place in places
    }
    (summed,) = rows(call(apache_kafka, "cluster log-dirs -J"))
    assert summed["path"] == path and summed["bytes"] >= ours.replicas[places[1]].size
    with pytest.raises(BrokerError) as caught:
        admin.alter_replica_log_dirs({TopicPartitionReplica(places[0], 1): "/nowhere"})
    assert caught.value.name == "LOG_DIR_NOT_FOUND"
    admin.alter_replica_log_dirs({TopicPartitionReplica(places[0], 1): path})  # where it is: nothing to do


def test_configured_resources_are_as_kafka_shows_them(apache_kafka: ApacheKafka, admin: Admin) -> None:
    group, metrics = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("group", "metrics"))
    servers = apache_kafka.bootstrap_servers
    admin.alter_configs({ConfigResource.group(group): {"consumer.session.timeout.ms": "50000"}})
    kafka_tool(
        "ClientMetricsCommand", "--bootstrap-server", servers, "--alter", "--name", metrics, "--interval", "60000"
    )
    wanted = ConfigResource(ConfigResourceType.CLIENT_METRICS, metrics)
    until(lambda: wanted in admin.list_config_resources([ConfigResourceType.CLIENT_METRICS]))
    assert metrics in kafka_tool("ClientMetricsCommand", "--bootstrap-server", servers, "--list").split()
    found = admin.list_config_resources()
    assert {wanted, ConfigResource.group(group), ConfigResource.broker(1)} <= set(found)
    assert ConfigResource.group(group) in admin.list_config_resources([ConfigResourceType.GROUP])
    assert {"type": "group", "name": group} in rows(call(apache_kafka, "cluster configs group -J"))
    assert "did you mean 'group'?" in call(apache_kafka, "cluster configs groups").err


def test_the_same_calls_work_in_asyncio(apache_kafka: ApacheKafka) -> None:
    async def ask() -> tuple[int | None, set[int]]:
        async with aio.Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
            quorum = await admin.describe_quorum()
            assert isinstance(await admin.describe_client_quotas(ip=ANY_NAME), dict)
            assert await admin.list_partition_reassignments() == {}
            return quorum.leader_id, set(await admin.describe_log_dirs())

    assert asyncio.run(ask()) == (1, {1})


def test_what_is_deleted_is_shown_before(apache_kafka: ApacheKafka, admin: Admin) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    group = f"g-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    ran = call(apache_kafka, f"topics delete --dry-run {topic}")
    assert (ran.status, ran.err) == (ExitStatus.OK, f"{topic}: would be deleted: 2 partitions, 0 offsets\n")
    ran = call(apache_kafka, f"groups delete --dry-run {group}")
    assert (ran.status, ran.err) == (ExitStatus.OK, f"{group}: would be deleted\n")
    assert topic in admin.list_topics() and group in admin.list_groups()
    ran = call(apache_kafka, "cluster unregister 1")
    assert (ran.status, ran.err) == (
        ExitStatus.ERROR,
        "kcodec: broker 1 is running; stop it first, as it would register again\n",
    )
    ran = call(apache_kafka, f"groups delete --dry-run {group}-misspelled")
    assert ran.status is ExitStatus.ERROR and "not exist" in ran.err
    if apache_kafka.version < "4":  # it does not list stopped brokers
        assert "broker 77: would be unregistered; 0 replicas" in call(apache_kafka, "cluster unregister 77").err
    else:
        ran = call(apache_kafka, "cluster unregister 77")
        assert (ran.status, ran.err) == (ExitStatus.ERROR, "kcodec: no broker with the id 77 is registered\n")
