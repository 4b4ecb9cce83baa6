# SPDX-License-Identifier: Apache-2.0
"""Committed offsets of a group, against a scripted coordinator in virtual time: stable ones only, in every version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from admin_script import AdminScript

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.consumer.committed_offsets import CommittedOffsets
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthorizationError, BrokerError, DeliveryTimeoutError, TransportError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ID = UUID(int=7)
UNSTABLE, LOADING, NOT_COORDINATOR, STALE_EPOCH = (
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.STALE_MEMBER_EPOCH,
)
Code = Callable[[int, TopicPartition], int]


class Coordinator:
    """Keeps offsets; group_code and code_of say what it answers instead."""

    def __init__(self, script: AdminScript) -> None:
        self.script = script
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.group_code: Callable[[int, Any], int] = lambda node, request: 0
        self.code_of: Code = lambda node, partition: 0
        script.answers["OffsetFetch"] = self.fetched
        script.answers["OffsetCommit"] = self.committed

    def name(self, topic: Any) -> str:
        if topic.name:
            return str(topic.name)
        return next((name for name, known in self.script.topic_ids.items() if known == topic.topic_id), "")

    def fetched(self, node: int, request: Any) -> Any:
        code = self.group_code(node, request)
        if not request.groups:
            wanted = [("name", topic.name, topic) for topic in request.topics or []]
            if request.topics is None:
                one = messages.OffsetFetchRequestTopic(
                    name="orders", partition_indexes=sorted(p for _, p in self.offsets)
                )
                wanted = [("name", "orders", one)]
            topics = [
                messages.OffsetFetchResponseTopic(
                    name=name, partitions=self.parts(messages.OffsetFetchResponsePartition, node, name, topic)
                )
                for _, name, topic in wanted
            ]
            return messages.OffsetFetchResponse(error_code=code, topics=topics)
        (group,) = request.groups
        group_topics = []
        for topic in group.topics:
            name = self.name(topic)
            parts = self.parts(messages.OffsetFetchResponsePartitions, node, name, topic)
            group_topics.append(
                messages.OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=parts)
            )
        reported = messages.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code, topics=group_topics)
        return messages.OffsetFetchResponse(groups=[reported])

    def parts(self, kind: Any, node: int, name: str, topic: Any) -> list[Any]:
        found = []
        for number in topic.partition_indexes:
            partition = TopicPartition(name, number)
            code = self.code_of(node, partition) if name else 100
            known = OffsetAndMetadata(-1) if code else self.offsets.get(partition, OffsetAndMetadata(-1))
            found.append(
                kind(
                    partition_index=number,
                    committed_offset=known.offset,
                    committed_leader_epoch=known.leader_epoch,
                    metadata=known.metadata,
                    error_code=code,
                )
            )
        return found

    def committed(self, node: int, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            name, parts = self.name(topic), []
            for one in topic.partitions:
                partition = TopicPartition(name, one.partition_index)
                code = self.group_code(node, request) or (self.code_of(node, partition) if name else 100)
                if not code:
                    self.offsets[partition] = OffsetAndMetadata(
                        one.committed_offset, one.committed_metadata, one.committed_leader_epoch
                    )
                parts.append(
                    messages.OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                )
            topics.append(
                messages.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=parts)
            )
        return messages.OffsetCommitResponse(topics=topics)


@pytest.fixture
def script() -> AdminScript:
    found = AdminScript()
    found.topics["orders"] = {0: 1, 1: 2}
    found.coordinators = {"g": 2}
    return found


@pytest.fixture
def coordinator(script: AdminScript) -> Coordinator:
    return Coordinator(script)


def committed(script: AdminScript, **settings: Any) -> CommittedOffsets:
    return CommittedOffsets(script.cluster, "g", replace(ConsumerSettings(), **settings))


def with_ids(script: AdminScript) -> None:
    """The cluster knows the topic's id."""
    script.topic_ids["orders"] = ID
    script.run(script.cluster.ensure_topic("orders", 5.0))


# -------------------------------------------------------------------------------------------------------- every version


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_come_back_in_every_version(script: AdminScript, coordinator: Coordinator, version: int) -> None:
    with_ids(script)
    script.highest["OffsetFetch"] = version
    coordinator.offsets[A] = OffsetAndMetadata(7, "note", 3)
    found = script.run(committed(script).fetch([A, B], 5.0))
    expected = OffsetAndMetadata(7, "note", 3 if version >= 5 else -1)
    assert found == {A: expected, B: None}
    assert script.versions[-1] == ("OffsetFetch", version)
    assert script.requests[-1].require_stable == (version >= 7)


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_arrive_in_every_version(script: AdminScript, coordinator: Coordinator, version: int) -> None:
    with_ids(script)
    script.highest["OffsetCommit"] = version
    group = ConsumerGroupMetadata("g", 4, "member", "static" if version >= 7 else None)
    given = {A: OffsetAndMetadata(7, "note", 3), B: OffsetAndMetadata(9)}
    script.run(committed(script).commit(given, group, 5.0))
    assert coordinator.offsets[A] == OffsetAndMetadata(7, "note", 3 if version >= 6 else -1)
    assert coordinator.offsets[B] == OffsetAndMetadata(9)
    (request,) = script.requests
    assert (request.generation_id_or_member_epoch, request.member_id) == (4, "member")
    assert request.group_instance_id == ("static" if version >= 7 else None)
    assert script.versions[-1] == ("OffsetCommit", version)


def test_without_topic_ids_names_are_used(script: AdminScript, coordinator: Coordinator) -> None:
    coordinator.offsets[A] = OffsetAndMetadata(7)
    assert script.run(committed(script).fetch([A], 5.0)) == {A: OffsetAndMetadata(7)}
    script.run(committed(script).commit({B: OffsetAndMetadata(1)}, ConsumerGroupMetadata("g"), 5.0))
    assert [pair for pair in script.versions if "Offset" in pair[0]] == [("OffsetFetch", 9), ("OffsetCommit", 9)]


def test_a_topic_that_was_made_again_is_asked_for_by_its_new_id(script: AdminScript, coordinator: Coordinator) -> None:
    with_ids(script)
    script.topic_ids["orders"] = UUID(int=8)
    coordinator.offsets[A] = OffsetAndMetadata(7)
    assert script.run(committed(script).fetch([A], 30.0)) == {A: OffsetAndMetadata(7)}
    asked = [request.groups[0].topics[0].topic_id for request in script.requests]
    assert asked[0] == ID and asked[-1] == UUID(int=8)


def test_offsets_are_committed_for_the_topics_to_which_they_belong(script: AdminScript) -> None:
    """Two partitions of one name belong to different topics while one of them has not begun again."""
    with_ids(script)
    old = UUID(int=6)

    def respond(node: int, request: Any) -> Any:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        topics = [
            messages.OffsetCommitResponseTopic(
                topic_id=topic.topic_id,
                partitions=[
                    messages.OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=0 if topic.topic_id == ID else code
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return messages.OffsetCommitResponse(topics=topics)

    script.answers["OffsetCommit"] = respond
    given = {A: OffsetAndMetadata(7), B: OffsetAndMetadata(9)}
    with pytest.raises(BrokerError, match="the offset is that of the former topic") as caught:
        script.run(committed(script).commit(given, ConsumerGroupMetadata("g"), 5.0, topic_ids={A: old}))
    assert caught.value.name == "INCONSISTENT_TOPIC_ID" and "orders-0" in str(caught.value)
    (request,) = script.requests
    found = [(topic.topic_id, [one.partition_index for one in topic.partitions]) for topic in request.topics]
    assert found == [(old, [0]), (ID, [1])]


def test_a_commit_for_a_deleted_topic_is_given_up(script: AdminScript) -> None:
    """The coordinator does not know the id. The commits of other topics wait for the end of this one."""
    with_ids(script)

    def respond(node: int, request: Any) -> Any:
        partitions = [messages.OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_ID)]
        return messages.OffsetCommitResponse(
            topics=[messages.OffsetCommitResponseTopic(topic_id=ID, partitions=partitions)]
        )

    script.answers["OffsetCommit"] = respond
    with pytest.raises(BrokerError, match="the topic or partition does not exist") as caught:
        script.run(committed(script).commit({A: OffsetAndMetadata(7)}, ConsumerGroupMetadata("g"), 60.0))
    assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert len(script.requests) > 1 and 2.0 <= script.now < 5.0


def test_brokers_before_2_5_get_no_require_stable(script: AdminScript, coordinator: Coordinator) -> None:
    script.highest["OffsetFetch"] = 6
    offsets = committed(script)
    script.run(offsets.fetch([A], 5.0))
    assert script.versions[-1] == ("OffsetFetch", 6)
    assert not script.requests[-1].require_stable


# ------------------------------------------------------------------------------------------------ what passes by itself


def test_c10_an_unstable_offset_is_waited_for_and_only_that_partition_asked_again(
    script: AdminScript, coordinator: Coordinator
) -> None:
    coordinator.offsets = {A: OffsetAndMetadata(7), B: OffsetAndMetadata(8)}
    coordinator.code_of = lambda node, partition: UNSTABLE if partition == B and script.now < 12.0 else 0
    heard: list[TopicPartition] = []
    flow = committed(script).outcome(
        [A, B], script.context.deadline(60.0), on_result=lambda partition, found: heard.append(partition)
    )
    found = script.run(flow)
    assert found.results == coordinator.offsets and not found.errors
    assert 12.0 <= script.now < 13.3
    assert heard == [A, B]
    assert all(topic.partition_indexes == [1] for request in script.requests[1:] for topic in request.groups[0].topics)


def test_c10_an_offset_that_stays_unstable_is_a_time_out_that_says_so(
    script: AdminScript, coordinator: Coordinator
) -> None:
    coordinator.code_of = lambda node, partition: UNSTABLE
    with pytest.raises(DeliveryTimeoutError, match=r"orders-0.*not finished within 3 s.*UNSTABLE_OFFSET_COMMIT"):
        script.run(committed(script).fetch([A], 3.0))
    assert 2.9 < script.now < 3.2


@pytest.mark.parametrize(
    "code", [LOADING, ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_coordinator_that_moves_or_loads_is_asked_again(
    script: AdminScript, coordinator: Coordinator, code: int
) -> None:
    coordinator.offsets[A] = OffsetAndMetadata(7)

    def group_code(node: int, request: Any) -> int:
        script.coordinators["g"] = 3
        return code if script.now < 1.0 else 0

    coordinator.group_code = group_code
    assert script.run(committed(script).fetch([A], 20.0)) == {A: OffsetAndMetadata(7)}
    script.run(committed(script).commit({A: OffsetAndMetadata(9)}, ConsumerGroupMetadata("g"), 20.0))
    assert coordinator.offsets[A] == OffsetAndMetadata(9)
    assert script.asked[-1] == ("OffsetCommit", 3 if code in (15, NOT_COORDINATOR) else 2)


def test_a_commit_whose_answer_was_lost_is_sent_again(script: AdminScript, coordinator: Coordinator) -> None:
    answers = iter([TransportError("cut", possibly_sent=True), None])

    def answer(node: int, request: Any) -> Any:
        return next(answers) if len(script.requests) <= 2 else coordinator.committed(node, request)

    script.answers["OffsetCommit"] = answer
    script.run(committed(script).commit({A: OffsetAndMetadata(9)}, ConsumerGroupMetadata("g"), 60.0))
    assert coordinator.offsets[A] == OffsetAndMetadata(9)
    assert len(script.requests) == 3


def test_a_commit_without_response_ends_by_its_deadline(script: AdminScript) -> None:
    script.answers["OffsetCommit"] = lambda node, request: None
    with pytest.raises(DeliveryTimeoutError, match=r"commit offset of group 'g' in orders-0: not finished within 4 s"):
        script.run(committed(script).commit({A: OffsetAndMetadata(9)}, ConsumerGroupMetadata("g"), 4.0))
    assert script.now < 4.2


def test_a_late_commit_names_the_time_of_the_whole_call(script: AdminScript) -> None:
    """It may have waited for the previous commit before."""
    script.answers["OffsetCommit"] = lambda node, request: None
    with pytest.raises(DeliveryTimeoutError, match="not finished within 40 s"):
        script.run(committed(script).commit({A: OffsetAndMetadata(9)}, ConsumerGroupMetadata("g"), 2.5, 40.0))
    assert script.now < 2.7


# -------------------------------------------------------------------------------------------------------- what is final


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        STALE_EPOCH,
    ],
)
def test_errors_of_the_group_are_final_and_name_it(script: AdminScript, coordinator: Coordinator, code: int) -> None:
    coordinator.group_code = lambda node, request: code
    for flow in (
        committed(script).fetch([A, B], 5.0),
        committed(script).commit(dict.fromkeys([A, B], OffsetAndMetadata(1)), ConsumerGroupMetadata("g", 1, "m"), 5.0),
    ):
        with pytest.raises(
            AuthorizationError if code == ErrorCode.GROUP_AUTHORIZATION_FAILED else BrokerError
        ) as raised:
            script.run(flow)
        assert (raised.value.code, raised.value.resource) == (code, "g")
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("code", "resource"),
    [
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, B),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, B),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, B),
    ],
)
def test_one_partition_that_is_refused_is_named_and_the_others_are_committed(
    script: AdminScript, coordinator: Coordinator, code: int, resource: Any
) -> None:
    coordinator.code_of = lambda node, partition: code if partition == B else 0
    with pytest.raises(BrokerError, match="orders-1") as raised:
        script.run(
            committed(script).commit(dict.fromkeys([A, B], OffsetAndMetadata(1)), ConsumerGroupMetadata("g"), 9.0)
        )
    assert (raised.value.code, raised.value.resource) == (code, resource)
    assert list(coordinator.offsets) == [A]


def test_several_partitions_that_are_refused_stand_in_the_note(script: AdminScript, coordinator: Coordinator) -> None:
    coordinator.code_of = lambda node, partition: 12
    with pytest.raises(BrokerError, match="orders-0") as raised:
        script.run(
            committed(script).commit(dict.fromkeys([A, B], OffsetAndMetadata(1)), ConsumerGroupMetadata("g"), 9.0)
        )
    assert "1 more of 2 failed: commit offset of group 'g' in orders-1" in raised.value.__notes__[0]


def test_a_member_whose_epoch_moved_on_commits_and_fetches_with_the_new_one(
    script: AdminScript, coordinator: Coordinator
) -> None:
    who = ConsumerGroupMetadata("g", 4, "member")

    def group_code(node: int, request: Any) -> int:
        nonlocal who
        epoch = request.groups[0].member_epoch if hasattr(request, "groups") else request.generation_id_or_member_epoch
        if epoch == 4:
            who = ConsumerGroupMetadata("g", 5, "member")
        return STALE_EPOCH if epoch == 4 else 0

    coordinator.group_code = group_code
    script.run(committed(script).commit({A: OffsetAndMetadata(3)}, lambda: who, 5.0))
    assert coordinator.offsets[A].offset == 3
    who = ConsumerGroupMetadata("g", 4, "member")
    assert script.run(committed(script).fetch([A], 5.0, lambda: who)) == {A: OffsetAndMetadata(3)}
    assert [request.groups[0].member_id for request in script.requests[2:]] == ["member", "member"]


def test_an_answer_that_leaves_a_partition_out_is_an_error(script: AdminScript, coordinator: Coordinator) -> None:
    script.answers["OffsetFetch"] = lambda node, request: messages.OffsetFetchResponse(
        groups=[messages.OffsetFetchResponseGroup(group_id="g")]
    )
    with pytest.raises(Exception, match=r"orders-0: the response of broker .* has no result for"):
        script.run(committed(script).fetch([A], 5.0))
    script.answers["OffsetCommit"] = lambda node, request: messages.OffsetCommitResponse()
    with pytest.raises(Exception, match=r"orders-0: the response of broker .* has no result for"):
        script.run(committed(script).commit({A: OffsetAndMetadata(3)}, ConsumerGroupMetadata("g"), 5.0))


def test_nothing_to_fetch_sends_no_request(script: AdminScript) -> None:
    assert script.run(committed(script).fetch([], 5.0)) == {}
    script.run(committed(script).commit({}, ConsumerGroupMetadata("g"), 5.0))
    assert script.asked == []
