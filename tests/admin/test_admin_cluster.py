# SPDX-License-Identifier: Apache-2.0
"""Admin on three brokers: items of all of them in one call, a broker that dies, a controller that moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from cli_runner import rows, run
from kafka_tools import kafka_tool
from raw_transactions import RawTransactions

from kcodec import TopicPartition
from kcodec.cli import ExitStatus
from kcodec.client import Admin, NewTopic
from kcodec.errors import BrokerError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.pytest_plugin import KafkaFactory


@pytest.fixture(scope="module")
def kafka(apache_kafka_factory: KafkaFactory) -> Iterator[ApacheKafka]:
    started = apache_kafka_factory(nodes=3, transaction_version=0, transaction_partition_verification_enable="false")
    yield started
    started.close()


def test_items_of_all_brokers_in_one_call(kafka: ApacheKafka) -> None:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin, RawTransactions(kafka.bootstrap_servers) as raw:
        admin.create_topics([NewTopic("spread", 6)])
        places = [TopicPartition("spread", number) for number in range(6)]
        leaders = {one.leader for one in admin.describe_topics(["spread"])["spread"].partitions}
        assert leaders == {1, 2, 3}
        names = {raw.open([place])[0]: place for place in places}
        assert set(admin.describe_producers(places)) == set(places)
        assert {one.transactional_id for one in admin.list_transactions(states=["Ongoing"]).values()} == set(names)
        described = admin.describe_transactions(names)
        assert {name: one.partitions for name, one in described.items()} == {name: (at,) for name, at in names.items()}
        hung = raw.hang(places[0], timestamp=0)
        found = admin.find_hanging_transactions()
        assert [(one.partition, one.start_offset) for one in found.transactions] == [(places[0], hung.start_offset)]
        assert found.errors == {}
        fenced = admin.fence_producers(names)
        assert set(fenced) == set(names)
        admin.abort_transaction(places[0], *hung.producer, 0)
        stable = dict.fromkeys(places, -1)
        ends = {place: at.offset for place, at in admin.list_offsets(dict.fromkeys(places, "latest")).items()}
        deadline = time.monotonic() + 20
        while stable != ends:
            assert time.monotonic() < deadline
            asked = admin.list_offsets(dict.fromkeys(places, "latest"), isolation_level="read_committed")
            stable = {place: at.offset for place, at in asked.items()}
            ends = {place: at.offset for place, at in admin.list_offsets(dict.fromkeys(places, "latest")).items()}


def test_calls_go_on_while_a_broker_dies(kafka: ApacheKafka) -> None:
    """Leader, coordinator and controller of some of the items die with it; nothing but time is lost."""
    with Admin(bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=3000) as admin:
        admin.create_topics([NewTopic("dying", 6)])
        places = [TopicPartition("dying", number) for number in range(6)]
        groups = [f"group-{number}" for number in range(6)]
        for group in groups:
            admin.alter_group_offsets(group, {places[0]: 1})
        kill = threading.Timer(0.2, kafka.node(2).kill)
        kill.start()
        until = time.monotonic() + 3.0
        turns = lost = 0
        while time.monotonic() < until or turns == 0:
            assert len(admin.list_offsets(dict.fromkeys(places, "latest"))) == 6
            for group in groups:
                assert admin.list_group_offsets(group)[places[0]] is not None
            try:
                admin.create_topics([NewTopic(f"dying-{turns}", 1)])
            except BrokerError as error:
                # The broker died between creating the topic and responding: the repeat finds it there.
                assert (error.name, lost) == ("TOPIC_ALREADY_EXISTS", 0)
                lost += 1
            turns += 1
        kill.join()
        assert admin.describe_cluster().brokers
        assert len(admin.list_offsets(dict.fromkeys(places, "latest"))) == 6  # of the new leaders
        deadline = time.monotonic() + 20  # the broker that is requested may learn of them later
        while 2 in (leaders := {one.leader for one in admin.describe_topics(["dying"])["dying"].partitions}):
            assert time.monotonic() < deadline
        kafka.node(2).start()
        deadline = time.monotonic() + 30
        while len(admin.describe_cluster().brokers) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for place in places:
            kafka.wait_in_sync(place.topic, place.partition)
        elected = admin.elect_leaders(places)
        assert any(one.was_needed for one in elected.values()) or leaders == {1, 2, 3}


def test_partitions_move_as_kafkas_tool_shows_it(kafka: ApacheKafka) -> None:
    """To a stopped broker a move goes on until it is canceled; then that broker is removed from the cluster."""
    servers = kafka.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("moving", assignments={0: (1,), 1: (2,)})])
        first, second = TopicPartition("moving", 0), TopicPartition("moving", 1)
        dry = run("topics", "reassign", "-b", servers, "moving:0", "--to", "2")
        assert "nothing was changed" in dry.err and dry.status is ExitStatus.OK
        assert admin.describe_topics("moving")["moving"].partitions[0].replicas == (1,)
        moved = run("topics", "reassign", "-b", servers, "moving", "--to", "2", "--execute")
        assert "1 of 1 partition: moves begun" in moved.err
        deadline = time.monotonic() + 30
        while [one.replicas for one in admin.describe_topics("moving")["moving"].partitions] != [(2,), (2,)]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        kafka.node(3).kill()
        admin.alter_partition_reassignments({first: [3], second: [2, 3]})
        listed = admin.list_partition_reassignments()
        assert (listed[first].adding_replicas, listed[first].removing_replicas) == ((3,), (2,))
        assert (listed[first].target, listed[second].target) == ((3,), (2, 3))
        assert set(admin.list_partition_reassignments([second])) == {second}
        printed = kafka_tool("ReassignPartitionsCommand", "--bootstrap-server", servers, "--list")
        assert "moving-0: replicas: 3,2. adding: 3. removing: 2." in printed
        shown = rows(run("topics", "reassignments", "-b", servers, "-J", "moving"))
        assert [(one["partition"], one["target"], one["adding"]) for one in shown] == [(0, [3], [3]), (1, [2, 3], [3])]
        canceled = run("topics", "reassign", "-b", servers, "moving:0", "--cancel", "--execute")
        assert "1 of 1 partition: moves canceled" in canceled.err
        admin.alter_partition_reassignments({second: None})
        assert admin.list_partition_reassignments() == {}
        printed = kafka_tool("ReassignPartitionsCommand", "--bootstrap-server", servers, "--list")
        assert "No partition reassignments found." in printed
        with pytest.raises(BrokerError) as caught:
            admin.alter_partition_reassignments({first: None})
        assert caught.value.name == "NO_REASSIGNMENT_IN_PROGRESS"
        deadline = time.monotonic() + 30  # the controller fences it when its session is over
        while len(admin.describe_cluster().brokers) > 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "broker 3: would be unregistered; " in run("cluster", "unregister", "-b", servers, "3").err
        removed = run("cluster", "unregister", "-b", servers, "3", "--execute")
        assert removed.status is ExitStatus.OK and "broker 3: unregistered; " in removed.err, removed.err
        deadline = time.monotonic() + 20
        while {one.id for one in admin.describe_cluster(include_fenced_brokers=True).brokers} != {1, 2}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        listed_by_kafka = kafka_tool(
            *("ClusterTool", "list-endpoints", "--bootstrap-server", servers, "--include-fenced-brokers")
        )
        assert {line.split()[0] for line in listed_by_kafka.splitlines()[1:]} == {"1", "2"}
