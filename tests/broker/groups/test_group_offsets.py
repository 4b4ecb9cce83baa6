# SPDX-License-Identifier: Apache-2.0
"""Committed offsets: checks, transactions, expiry, deletion, and what a restart reads from the log."""

from __future__ import annotations

from typing import Any

import pytest
from memory_groups import MemoryGroups

from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.log.internal.records import COORDINATOR_RECORDS, decode_coordinator_record
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.records import OffsetCommitValue

DAY_MS = 86_400_000


def test_a_commit_names_its_member_and_generation() -> None:
    """Of a group with members; one without takes commits without."""
    groups = MemoryGroups()
    assert groups.commit("g", 3) == ErrorCode.NONE
    member = groups.stable_group()
    assert groups.commit("g", 4) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.commit("g", 4, member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert groups.commit("g", 4, "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.fetch("g") == (3, ErrorCode.NONE)
    assert groups.commit("g", 4, member, 1) == ErrorCode.NONE
    assert groups.fetch("g") == (4, ErrorCode.NONE)


def test_a_commit_to_an_unknown_group_depends_on_the_version() -> None:
    """GROUP_ID_NOT_FOUND from version 9 on."""
    groups = MemoryGroups()
    assert groups.commit("g", 1, "m", 1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.commit("g", 1, "m", 1, version=8) == ErrorCode.ILLEGAL_GENERATION


def test_partitions_are_checked_one_by_one() -> None:
    """Unknown partitions never reach the group, and long metadata is refused."""
    groups = MemoryGroups()
    assert groups.commit("g", 1, topic="absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert groups.commit("g", 1, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert groups.state("g") == ""
    assert groups.commit("g", 1, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert groups.fetch("g") == (-1, ErrorCode.NONE)


def test_topics_are_named_by_id_from_version_10_on() -> None:
    """In commits and fetches; an unknown id is an error of its partitions."""
    groups = MemoryGroups()
    topic = groups.topics.get("t")
    assert topic is not None
    for topic_id, code in ((topic.id, ErrorCode.NONE), (groups.host.topics.new_uuid(), ErrorCode.UNKNOWN_TOPIC_ID)):
        partition = messages.OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
        commit = messages.OffsetCommitRequest(
            group_id="g", topics=[messages.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])]
        )
        response = groups.ask(commit, 10).topics[0]
        assert (response.topic_id, response.partitions[0].error_code) == (topic_id, code)
        wanted = messages.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        fetch = messages.OffsetFetchRequest(
            groups=[messages.OffsetFetchRequestGroup(group_id="g", topics=[wanted])], require_stable=True
        )
        found = groups.ask(fetch, 10).groups[0].topics[0].partitions[0]
        assert (found.committed_offset, found.error_code) == ((9 if code == ErrorCode.NONE else -1), code)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_transactional_offsets_wait_for_the_marker(is_commit: bool, restarts: bool) -> None:
    """They are pending, which a stable fetch reports for their partition only."""
    groups = MemoryGroups()
    groups.commit("g", 1)
    assert groups.transactional_commit("g", 2) == ErrorCode.NONE
    if restarts:
        groups.restart()
    assert groups.fetch("g") == (1, ErrorCode.NONE)
    assert groups.fetch("g", require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert groups.fetch("other", require_stable=True) == (-1, ErrorCode.NONE)
    groups.end_transaction("g", is_commit=is_commit)
    if restarts:
        groups.restart()
    assert groups.fetch("g", require_stable=True) == ((2 if is_commit else 1), ErrorCode.NONE)


def test_a_later_plain_commit_wins_over_the_transaction() -> None:
    """The record later in the log counts, not the marker."""
    groups = MemoryGroups()
    groups.transactional_commit("g", 2)
    groups.commit("g", 3)
    groups.end_transaction("g", is_commit=True)
    assert groups.fetch("g") == (3, ErrorCode.NONE)


def test_transactional_offsets_are_fenced_by_generation() -> None:
    """KIP-447, in both protocols; without a generation they are accepted."""
    groups = MemoryGroups()
    member = groups.stable_group()

    def commit(group: str, member_id: str, generation: int) -> ErrorCode:
        return groups.transactional_commit(group, 5, member_id=member_id, generation_id_or_member_epoch=generation)

    assert commit("g", member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert commit("g", "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("absent", "m", 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit("g", member, 1) == ErrorCode.NONE
    assert commit("g", "", -1) == ErrorCode.NONE
    groups.report("h", "m", 0)
    assert commit("h", "m", 3) == ErrorCode.ILLEGAL_GENERATION
    assert commit("h", "m", 2) == ErrorCode.NONE
    assert commit("h", "", -1) == ErrorCode.NONE
    assert groups.transactional_commit("g", 5, topic="absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_refused_commit_without_members_creates_the_group() -> None:
    """As on Kafka: the next commit finds a group, in which its member is unknown."""
    groups = MemoryGroups()
    generation: dict[str, Any] = {"member_id": "", "generation_id_or_member_epoch": 5}
    assert groups.transactional_commit("g", 1, **generation) == ErrorCode.ILLEGAL_GENERATION
    assert groups.transactional_commit("g", 1, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert groups.transactional_commit("g", 1, **generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_commits_what_it_owned_at_an_older_epoch() -> None:
    """KIP-1251: a partition that it has owned since that epoch; other epochs are stale."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    assert groups.commit("g", 1, "a", 2) == ErrorCode.NONE
    groups.report("g", "a", 2, subscribed_topic_names=["t", "u"])
    assert groups.commit("g", 2, "a", 2) == ErrorCode.NONE
    assert groups.commit("g", 2, "a", 2, topic="u") == ErrorCode.STALE_MEMBER_EPOCH
    assert groups.commit("g", 2, "a", 4) == ErrorCode.STALE_MEMBER_EPOCH
    assert groups.commit("g", 2, "a", 3, version=8) == ErrorCode.UNSUPPORTED_VERSION


def test_a_member_fetches_with_its_epoch() -> None:
    """Tools fetch without one."""
    groups = MemoryGroups()
    groups.report("g", "a", 0)
    for member_id, epoch, code in (("a", 2, 0), ("a", 1, ErrorCode.STALE_MEMBER_EPOCH), (None, -1, 0)):
        wanted = messages.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
        assert groups.ask(messages.OffsetFetchRequest(groups=[wanted]), 9).groups[0].error_code == code


def test_offsets_expire_after_the_retention() -> None:
    """From the time when the group became empty; a group that has nothing left disappears."""
    groups = MemoryGroups()
    member = groups.stable_group(session_timeout_ms=1_800_000)
    groups.commit("g", 5, member, 1)
    for _ in range(8 * 24 * 3):
        groups.clock.advance(DAY_MS / 24 / 3)
        groups.heartbeat("g", member, 1)
    assert groups.fetch("g") == (5, ErrorCode.NONE)
    groups.leave("g", member)
    groups.clock.advance(7 * DAY_MS - 600_000)
    assert groups.fetch("g") == (5, ErrorCode.NONE)
    groups.clock.advance(1_200_000)
    assert groups.state("g") == ""
    groups.restart()
    assert groups.fetch("g") == (-1, ErrorCode.NONE)


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    """GROUP_SUBSCRIBED_TO_TOPIC; those of other topics can."""
    groups = MemoryGroups()
    member = groups.stable_group()
    groups.commit("g", 5, member, 1)
    groups.commit("g", 5, member, 1, topic="u")

    def delete(group: str, topic: str) -> tuple[int, list[int]]:
        partition = messages.OffsetDeleteRequestPartition(partition_index=0)
        wanted = messages.OffsetDeleteRequestTopic(name=topic, partitions=[partition])
        response = groups.ask(messages.OffsetDeleteRequest(group_id=group, topics=[wanted]))
        return response.error_code, [one.error_code for one in response.topics[0].partitions] if response.topics else []

    assert delete("g", "t") == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert delete("g", "u") == (0, [0])
    assert delete("g", "absent") == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert delete("absent", "t") == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offsets_of_deleted_topics_are_removed() -> None:
    """With tombstones in the log."""
    groups = MemoryGroups()
    groups.commit("g", 5)
    groups.coordinator.offsets.drop_topic("t")
    assert groups.fetch("g") == (-1, ErrorCode.NONE)
    groups.restart()
    assert groups.fetch("g") == (-1, ErrorCode.NONE)


def test_records_have_the_versions_that_kafka_writes() -> None:
    """OffsetCommit 4 with the topic's id (1 with its own expiry time), GroupMetadata 3."""
    groups = MemoryGroups()
    groups.commit("g", 5)
    groups.commit("g", 6, version=4, retention_time_ms=1000)
    groups.stable_group()
    kinds = COORDINATOR_RECORDS[CONSUMER_OFFSETS_TOPIC]
    found = [decode_coordinator_record(kinds, record.key, record.value) for record in groups.records("g")]
    assert [(one.type, one.version) for one in found] == [
        ("OffsetCommit", 4),
        ("OffsetCommit", 1),
        ("GroupMetadata", 3),
    ]
    topic, value = groups.topics.get("t"), found[0].value
    assert topic is not None
    assert isinstance(value, OffsetCommitValue)
    assert value.topic_id == topic.id


def test_every_version_of_every_request_gets_a_response() -> None:
    """With the default fields of the request: errors, but encoded in that version."""
    groups = MemoryGroups()
    for kind, api in groups.apis.items():
        for version in range(api.versions[0], api.versions[1] + 1):
            assert groups.begin(kind(), version).is_done
