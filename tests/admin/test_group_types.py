# SPDX-License-Identifier: Apache-2.0
"""Share groups (KIP-932) and streams groups (KIP-1071): what Admin and `kcodec groups` say of them."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_script import AdminScript
from cli_runner import rows, run
from kafka_tools import kafka_tool
from streams_member import StreamsMember

from kcodec import TopicPartition
from kcodec.admin import flows
from kcodec.admin.share_groups import ShareGroupOffset
from kcodec.cli import ExitStatus
from kcodec.client import ConfigResource, ConfigResourceType, Producer
from kcodec.client.admin import Admin
from kcodec.errors import BrokerError, KcodecError, RequestTimedOutError, UnsupportedError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.java import find_java
from kcodec.testing.kafka import ApacheKafka

TOOLS = Path(__file__).resolve().parent.parent.parent / ".cache" / "kafka-tools"
NOT_FOUND = 69
GROUPS = {"classic-group": "Describe", "consumer-group": "Consumer", "share-group": "Share", "streams-group": "Streams"}


def script() -> AdminScript:
    """A cluster with one group of each type."""
    made = AdminScript()

    def code(name: str, kind: str) -> int:
        return 0 if GROUPS.get(name) == kind else NOT_FOUND

    assignment = messages.DescribedAssignment(
        topic_partitions=[messages.DescribedTopicPartitions(topic_name="orders", partitions=[0, 2])]
    )

    def classic(node: int, request: Any) -> Any:
        return messages.DescribeGroupsResponse(
            groups=[
                messages.DescribedGroup(group_id=name, error_code=code(name, "Describe")) for name in request.groups
            ]
        )

    def consumer(node: int, request: Any) -> Any:
        return messages.ConsumerGroupDescribeResponse(
            groups=[
                messages.DescribedConsumerGroup(group_id=name, error_code=code(name, "Consumer"))
                for name in request.group_ids
            ]
        )

    def share(node: int, request: Any) -> Any:
        member = messages.DescribedShareGroupMember(
            member_id="m", client_id="c", client_host="/h", assignment=assignment
        )
        return messages.ShareGroupDescribeResponse(
            groups=[
                messages.DescribedShareGroup(
                    group_id=name,
                    error_code=code(name, "Share"),
                    group_state="Stable",
                    assignor_name="simple",
                    members=[member],
                )
                for name in request.group_ids
            ]
        )

    def streams(node: int, request: Any) -> Any:
        topology = messages.StreamsTopology(
            subtopologies=[
                messages.StreamsSubtopology(
                    subtopology_id="0",
                    source_topics=["orders"],
                    repartition_source_topics=[messages.StreamsTopicInfo(name="by-key")],
                )
            ]
        )
        tasks = messages.StreamsAssignment(
            active_tasks=[messages.StreamsTaskIds(subtopology_id="0", partitions=[1])],
            standby_tasks=[messages.StreamsTaskIds(subtopology_id="0", partitions=[0])],
        )
        member = messages.DescribedStreamsGroupMember(member_id="m", client_id="c", client_host="/h", assignment=tasks)
        return messages.StreamsGroupDescribeResponse(
            groups=[
                messages.DescribedStreamsGroup(
                    group_id=name,
                    error_code=code(name, "Streams"),
                    group_state="Stable",
                    topology=topology,
                    members=[member],
                )
                for name in request.group_ids
            ]
        )

    made.answers |= {
        "DescribeGroups": classic,
        "ConsumerGroupDescribe": consumer,
        "ShareGroupDescribe": share,
        "StreamsGroupDescribe": streams,
    }
    return made


def no_offsets(partitions: Any) -> Any:
    """Return the response function of a coordinator that has no offsets of a group."""
    missing = [messages.OffsetFetchResponsePartitions(partition_index=0, committed_offset=-1)]
    topics = [] if partitions is None else [messages.OffsetFetchResponseTopics(name="orders", partitions=missing)]

    def respond(node: int, request: Any) -> Any:
        group = messages.OffsetFetchResponseGroup(group_id=request.groups[0].group_id, topics=topics)
        return messages.OffsetFetchResponse(groups=[group])

    return respond


def empty_log(node: int, request: Any) -> Any:
    """The response of the leader of orders-0, which is empty."""
    end = messages.ListOffsetsPartitionResponse(partition_index=0, offset=0)
    return messages.ListOffsetsResponse(topics=[messages.ListOffsetsTopicResponse(name="orders", partitions=[end])])


def test_groups_of_every_type_are_described() -> None:
    found = script()
    described = found.run(flows.describe_groups(found.context, list(GROUPS)))
    assert {name: group.type for name, group in described.items()} == {
        "classic-group": "classic",
        "consumer-group": "consumer",
        "share-group": "share",
        "streams-group": "streams",
    }
    shared = described["share-group"]
    assert (shared.state, shared.protocol_type, shared.protocol) == ("Stable", "share", "simple")
    assert shared.members[0].partitions == (TopicPartition("orders", 0), TopicPartition("orders", 2))
    streams = described["streams-group"]
    assert streams.members[0].partitions == (TopicPartition("orders", 1), TopicPartition("by-key", 1))


@pytest.mark.parametrize("highest", [{}, {"ShareGroupDescribe": -1, "StreamsGroupDescribe": -1}])
def test_a_group_that_does_not_exist_is_reported_as_such(highest: dict[str, int]) -> None:
    """By brokers that do not know these types, too."""
    found = script()
    found.highest |= highest
    with pytest.raises(BrokerError) as caught:
        found.run(flows.describe_groups(found.context, ["ghost"]))
    assert (caught.value.name, caught.value.resource) == ("GROUP_ID_NOT_FOUND", "ghost")


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("partitions", [None, [TopicPartition("orders", 0)]])
def test_the_lag_of_a_group_that_does_not_exist_is_an_error(is_old: bool, partitions: Any) -> None:
    """It differs from the lag of a group without offsets. Before Kafka 4.0, a broker describes the group as dead."""
    found = script()
    found.topics["orders"] = {0: 1}
    found.answers |= {"OffsetFetch": no_offsets(partitions), "ListOffsets": empty_log}
    groups = [*GROUPS.keys() - {"share-group"}, "ghost"]
    if is_old:
        states = {"classic-group": "Empty"}
        found.answers["DescribeGroups"] = lambda node, request: messages.DescribeGroupsResponse(
            groups=[
                messages.DescribedGroup(group_id=name, group_state=states.get(name, "Dead")) for name in request.groups
            ]
        )
        groups.remove("streams-group")  # no old broker has such groups
    for group in groups:
        lag = flows.describe_group_lag(found.context, group, partitions)
        if group != "ghost":
            assert len(found.run(lag)) == len(partitions or ())
            continue
        with pytest.raises(BrokerError, match="describe group 'ghost'") as caught:
            found.run(lag)
        assert (caught.value.name, caught.value.resource) == ("GROUP_ID_NOT_FOUND", "ghost")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (None, None),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None),
        (ErrorCode.UNSUPPORTED_VERSION, "GROUP_ID_NOT_FOUND"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "GROUP_ID_NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_the_lag_of_a_group_that_may_exist_is_another_error(code: int | None, name: str | None, is_known: bool) -> None:
    """Before Kafka 4.0, DescribeGroups describes a group of the consumer protocol as dead, too. A broker that does not
    support this protocol, or does not know the request, has no such group."""
    found = script()
    found.topics["orders"] = {0: 1}
    found.answers |= {"OffsetFetch": no_offsets(None), "ListOffsets": empty_log}
    found.answers["DescribeGroups"] = lambda node, request: messages.DescribeGroupsResponse(
        groups=[messages.DescribedGroup(group_id="consumer-group", group_state="Dead")]
    )
    found.answers["ConsumerGroupDescribe"] = lambda node, request: messages.ConsumerGroupDescribeResponse(
        groups=[messages.DescribedConsumerGroup(group_id="consumer-group", error_code=code or 0)]
    )
    if code is None:
        found.silent.add("ConsumerGroupDescribe")
    if not is_known:
        found.highest["ConsumerGroupDescribe"] = -1
        name = "GROUP_ID_NOT_FOUND"
    with pytest.raises(KcodecError, match="describe group 'consumer-group'") as caught:
        found.run(flows.describe_group_lag(found.context, "consumer-group", timeout=10.0))
    assert getattr(caught.value, "name", None) == name
    assert isinstance(caught.value, RequestTimedOutError) == (name is None)


def test_without_a_response_a_group_is_not_reported_as_missing() -> None:
    """DescribeGroups does not find a group of the consumer protocol, and its coordinator then does not respond."""
    found = script()
    found.silent.add("ConsumerGroupDescribe")
    with pytest.raises(RequestTimedOutError, match="describe group 'consumer-group': not finished within 10 s"):
        found.run(flows.describe_groups(found.context, ["consumer-group"], timeout=10.0))


@pytest.mark.parametrize("call", [flows.list_group_offsets, flows.describe_group_lag])
@pytest.mark.parametrize("partitions", [None, [TopicPartition("orders", 0)]])
def test_the_offsets_of_a_share_group_are_refused(call: Any, partitions: Any) -> None:
    """A broker responds as if it had none."""
    found = script()
    found.topics["orders"] = {0: 1}
    found.answers |= {"OffsetFetch": no_offsets(partitions), "ListOffsets": empty_log}
    found.highest["OffsetFetch"] = 9  # by name, not by id
    with pytest.raises(UnsupportedError, match="group 'share-group' is a share group"):
        found.run(call(found.context, "share-group", partitions))
    if call is flows.list_group_offsets:
        without = {} if partitions is None else {partitions[0]: None}
        assert found.run(call(found.context, "consumer-group", partitions)) == without


@pytest.mark.parametrize("partitions", [None, [TopicPartition("orders", 0), TopicPartition("orders", 1)]])
@pytest.mark.parametrize("pending", [0, ErrorCode.UNSTABLE_OFFSET_COMMIT])
def test_a_missing_offset_is_requested_again_as_stable(pending: int, partitions: Any) -> None:
    """A coordinator that has just moved responds without the offsets above its high watermark, and without an error.
    An offset that an open transaction commits is missing: the call does not wait for it."""
    found = script()
    found.topics["orders"] = {0: 1, 1: 1}
    found.highest["OffsetFetch"] = 9  # by name, not by id

    def offsets(node: int, request: Any) -> Any:
        given = {0: (5, 0), 1: (-1, 0)} if partitions else {0: (5, 0)} if request.require_stable else {}
        if request.require_stable and pending:
            given = {1: (-1, pending)} if partitions else {0: (-1, pending)}
        elif request.require_stable:
            given = {1: (7, 0)} if partitions else given
        one = messages.OffsetFetchResponseTopics(
            name="orders",
            partitions=[
                messages.OffsetFetchResponsePartitions(partition_index=number, committed_offset=offset, error_code=code)
                for number, (offset, code) in given.items()
            ],
        )
        group = messages.OffsetFetchResponseGroup(group_id="consumer-group", topics=[one] if given else [])
        return messages.OffsetFetchResponse(groups=[group])

    found.answers["OffsetFetch"] = offsets
    ours = found.run(flows.list_group_offsets(found.context, "consumer-group", partitions))
    expected = {True: {0: 5, 1: None if pending else 7}, False: {} if pending else {0: 5}}[bool(partitions)]
    assert {one.partition: None if at is None else at.offset for one, at in ours.items()} == expected
    assert [request.require_stable for request in found.requests if hasattr(request, "require_stable")] == [False, True]


@pytest.fixture(scope="module")
def share_group(apache_kafka: ApacheKafka) -> Iterator[tuple[ApacheKafka, str, str]]:
    """(a cluster, a topic, a share group with a member: Kafka's own console consumer)."""
    if not list(TOOLS.glob("kafka-tools-*.jar")):
        pytest.skip("Kafka's command line tools are not in .cache/kafka-tools: run `make jars`")
    topic, group = apache_kafka.create_topic(partitions=2), f"share-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        # By default, a share group does not read records that were sent before it has begun to read their partition.
        resource = ConfigResource(ConfigResourceType.GROUP, group)
        admin.alter_configs({resource: {"share.auto.offset.reset": "earliest"}})
    command = [str(find_java()), "-Xmx96m", "-cp", f"{TOOLS}/*", "org.apache.kafka.tools.consumer.ConsoleShareConsumer"]
    command += ["--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic, "--group", group]
    member = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    try:
        yield apache_kafka, topic, group
    finally:
        member.kill()
        member.wait()


def share_offsets(
    kafka: ApacheKafka, admin: Admin, topic: str, group: str
) -> dict[TopicPartition, ShareGroupOffset | None]:
    """The offsets of the group once it has acknowledged a record of partition 0."""
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        producer.send(topic, b"read", partition=0)
    deadline = time.monotonic() + 20
    while True:
        found = admin.list_share_group_offsets(group)
        here = found[TopicPartition(topic, 0)]
        if here is not None and here.lag == 0:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_live_share_group_is_described(share_group: tuple[ApacheKafka, str, str]) -> None:
    kafka, topic, group = share_group
    wanted = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        deadline = time.monotonic() + 60
        described = None
        while time.monotonic() < deadline:
            if group in admin.list_groups(types="share"):
                described = admin.describe_groups(group)[group]
                if {one for member in described.members for one in member.partitions} == wanted:
                    break
            time.sleep(0.5)
        assert described is not None
        assert (described.type, described.state, len(described.members)) == ("share", "Stable", 1)
        assert set(described.members[0].partitions) == wanted
        for call in (admin.list_group_offsets, admin.describe_group_lag):
            with pytest.raises(UnsupportedError, match="is a share group"):
                call(group)
        ours = share_offsets(kafka, admin, topic, group)
    printed = kafka_tool(
        *("ShareGroupCommand", "--bootstrap-server", kafka.bootstrap_servers, "--describe", "--offsets"),
        *("--group", group),
    )
    theirs = [line.split() for line in printed.splitlines() if line.startswith(group) and "-" not in line.split()]
    assert {TopicPartition(one[1], int(one[2])): (int(one[3]), int(one[4])) for one in theirs} == {
        partition: (one.start_offset, one.lag) for partition, one in ours.items() if one is not None
    }
    ran = run("groups", "describe", "-b", kafka.bootstrap_servers, group)
    assert ran.status is ExitStatus.OK, ran.err
    assert f"{group}: Stable, share, simple, 1 member" in ran.err
    shown = rows(run("groups", "describe", "-b", kafka.bootstrap_servers, group, "-J"))
    assert {(one["partition"], one["start"], one["lag"]) for one in shown} == {(0, 0, 0), (1, None, None)}
    ran = run("groups", "describe", "-b", kafka.bootstrap_servers, "--members", group)
    assert topic in ran.out


def test_a_live_streams_group_is_as_kafka_shows_it(apache_kafka: ApacheKafka) -> None:
    """Listed, described, with its committed offsets and its lag: in Python, on the command line, by Kafka's tool."""
    servers, topic = apache_kafka.bootstrap_servers, apache_kafka.create_topic(partitions=2)
    group, places = f"streams-{topic}", [TopicPartition(topic, number) for number in range(2)]
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
    with StreamsMember(servers, group, topic, partitions=2) as member, Admin(bootstrap_servers=servers) as admin:
        member.commit({0: 3})
        listed = admin.list_groups(types="streams")[group]
        assert (listed.type, listed.protocol_type) == ("streams", "streams")
        assert group in kafka_tool("StreamsGroupCommand", "--bootstrap-server", servers, "--list").split()
        described = admin.describe_groups(group)[group]
        assert (described.type, described.state) == ("streams", "Stable")
        (one,) = described.members
        assert (one.member_id, set(one.partitions)) == (member.member_id, set(places))
        offsets = admin.list_group_offsets(group)
        assert {place: found.offset for place, found in offsets.items() if found is not None} == {places[0]: 3}
        lag = admin.describe_group_lag(group)
        assert lag[places[0]].lag == 2
        printed = kafka_tool(
            *("StreamsGroupCommand", "--bootstrap-server", servers, "--describe", "--offsets", "--verbose"),
            *("--group", group),
        )
        theirs = [line.split() for line in printed.splitlines() if line.startswith(group)]
        assert {words[2]: (words[3], words[-1]) for words in theirs} == {"0": ("3", "2"), "1": ("-", "0")}, printed
        shown = rows(run("groups", "describe", "-b", servers, group, "-J"))
        assert [(row["partition"], row["committed"], row["lag"]) for row in shown] == [(0, 3, 2), (1, None, None)]
        assert group in {row["group"] for row in rows(run("groups", "list", "-b", servers, "--type", "streams", "-J"))}
        assert topic in run("groups", "describe", "-b", servers, "--members", group).out
