# SPDX-License-Identifier: Apache-2.0
"""Groups with members of both protocols: upgrade, downgrade, timeouts, static members, restarts (KIP-848).

test_groups_on_kafka.py compares random requests to such groups with Apache Kafka.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from embedded_subscriptions import assigned, assignment, subscription
from group_pairs import KafkaConnection
from memory_groups import MemoryGroups

from kcodec.broker import Broker
from kcodec.broker.settings import BrokerSettings
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import group_records

ALL = {"t": [0, 1, 2]}


def classic_group(**settings: Any) -> tuple[MemoryGroups, str]:
    """Return a coordinator with the classic group g, whose only member owns the partitions of t, and the member."""
    groups = MemoryGroups(**settings)
    member: str = groups.join("g", groups.member_id("g")).now.member_id
    assert groups.sync("g", member, 1, assignments={member: assignment(ALL)}).now.error_code == ErrorCode.NONE
    return groups, member


def mixed_group(**settings: Any) -> tuple[MemoryGroups, str]:
    """Return the same group after the member n of the consumer protocol has joined it, and its classic member."""
    groups, member = classic_group(**settings)
    assert groups.report("g", "n", 0).member_epoch == 2
    return groups, member


def sync(groups: MemoryGroups, member: str, generation: int, **fields: Any) -> dict[str, list[int]]:
    """Return the partitions that a classic member gets."""
    response = groups.sync("g", member, generation, **fields).now
    assert response.error_code == ErrorCode.NONE
    return assigned(bytes(response.assignment))


def kind(groups: MemoryGroups) -> tuple[str, str]:
    """Return the type and the state of the group, as ListGroups shows them."""
    (listed,) = groups.ask(messages.ListGroupsRequest()).groups
    return listed.group_type, listed.group_state


def described(groups: MemoryGroups) -> Any:
    """Return the group of the consumer protocol."""
    return groups.ask(messages.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]


def test_a_classic_group_is_upgraded_and_downgraded() -> None:
    """The classic member gives up a partition with a JoinGroup. When it is alone again, it gets all with a rebalance.

    The partition stays without an owner until the classic member has reported that it no longer owns the partition.
    """
    groups, member = mixed_group()
    assert kind(groups) == ("consumer", "Reconciling")
    assert [(one.member_type, one.member_epoch) for one in described(groups).members] == [(0, 1), (1, 2)]
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = groups.join("g", member, owned=ALL).now
    assert (joined.generation_id, joined.protocol_name, joined.leader, joined.members) == (1, "range", "", [])
    kept = sync(groups, member, 1)
    assert len(kept["t"]) == 2
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.report("g", "n", 2).assignment is None
    assert groups.join("g", member, owned=kept).now.generation_id == 2
    assert sync(groups, member, 2) == kept
    assert groups.heartbeat("g", member, 2) == ErrorCode.NONE
    (given,) = groups.report("g", "n", 2).assignment.topic_partitions
    assert sorted([*kept["t"], *given.partitions]) == ALL["t"]
    assert kind(groups) == ("consumer", "Stable")

    assert groups.report("g", "n", -1).error_code == ErrorCode.NONE
    assert kind(groups) == ("classic", "PreparingRebalance")
    assert groups.heartbeat("g", member, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = groups.join("g", member).now
    assert (joined.generation_id, joined.leader) == (3, member)
    assert groups.sync("g", member, 3, assignments={member: b""}).now.error_code == ErrorCode.NONE


def test_an_eager_member_continues_with_one_join() -> None:
    """It owns no partition when it joins."""
    groups, member = mixed_group()
    assert groups.join("g", member).now.generation_id == 2
    assert len(sync(groups, member, 2)["t"]) == 2


def test_waiting_members_join_again_after_an_upgrade() -> None:
    """JoinGroup and SyncGroup get REBALANCE_IN_PROGRESS. In the group of the consumer protocol, no join waits."""
    groups, _ = classic_group()
    second = groups.member_id("g")
    waiting = groups.join("g", second)
    assert not waiting.is_done
    groups.report("g", "n", 0)
    assert waiting.now.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.join("g", second).now.generation_id == 2

    groups = MemoryGroups()
    leader = groups.join("g", groups.member_id("g")).now.member_id
    joining = groups.join("g", groups.member_id("g"))
    groups.join("g", leader)
    waiting = groups.sync("g", joining.now.member_id, 2)
    assert not waiting.is_done
    groups.report("g", "n", 0)
    assert waiting.now.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_without_the_assignor_of_the_group_prevents_the_upgrade() -> None:
    """It joins while the group still has the assignor of the generation before."""
    groups, _ = classic_group()
    waiting = groups.join("g", groups.member_id("g"), protocols=["roundrobin"])
    assert groups.report("g", "n", 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting.now.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert kind(groups) == ("classic", "PreparingRebalance")


def test_a_mixed_group_survives_a_restart() -> None:
    """With the sessions of all members, and a revocation that is not complete."""
    groups, member = mixed_group()
    groups.join("g", member, owned=ALL)
    before = described(groups)
    groups.restart()
    assert described(groups) == before
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.join("g", member).now.generation_id == 2
    groups.report("g", "n", -1)
    groups.restart()
    assert kind(groups) == ("classic", "Stable")  # the state of a rebalance is not in the log
    assert groups.heartbeat("g", member, 2) == ErrorCode.NONE


def test_a_broker_recovers_a_mixed_group_from_its_data_directory(tmp_path: Path) -> None:
    """Both members continue after a restart, and the classic one still learns that it has to join again."""

    def ask(broker: Broker, request: Any, version: int) -> Any:
        connection = KafkaConnection(broker.bootstrap_servers)
        connection.ask(messages.FindCoordinatorRequest(key="g"), 1)
        response = connection.ask(request, version)
        connection.close()
        return response

    topics: dict[str, Any] = {"topic_partitions": [], "subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000}
    protocols = [messages.JoinGroupRequestProtocol(name="range", metadata=subscription(["t"], ALL))]
    join = messages.JoinGroupRequest(
        group_id="g", member_id="m", session_timeout_ms=30_000, protocol_type="consumer", protocols=protocols
    )
    report = messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="n", member_epoch=0, **topics)
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t", partitions=3)
        assert ask(broker, report, 1).member_epoch == 2
        assert ask(broker, join, 5).generation_id == 3
    with Broker(data_dir=tmp_path) as broker:
        describe = messages.ConsumerGroupDescribeRequest(group_ids=["g"])
        members = {one.member_id: one for one in ask(broker, describe, 1).groups[0].members}
        assert {name: one.member_type for name, one in members.items()} == {"m": 0, "n": 1}
        report.member_epoch, report.topic_partitions = 2, None
        assert ask(broker, report, 1).error_code == ErrorCode.NONE
        heartbeat = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=3)
        assert ask(broker, heartbeat, 4).error_code == ErrorCode.NONE
        report.member_epoch = -1
        assert ask(broker, report, 1).error_code == ErrorCode.NONE
        assert ask(broker, heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    with Broker(data_dir=tmp_path) as broker:
        (described,) = ask(broker, messages.DescribeGroupsRequest(groups=["g"]), 5).groups
        assert (described.group_state, [one.member_id for one in described.members]) == ("Stable", ["m"])


def test_the_records_of_a_conversion() -> None:
    """The tombstones of the old group come before the new group."""

    def keys(groups: MemoryGroups, begin: int) -> list[tuple[int, bool]]:
        found = groups.records("g")[begin:]
        return [(int.from_bytes(one.key[:2], "big"), one.value is not None) for one in found]

    groups, _ = classic_group()
    begin = len(groups.records("g"))
    groups.report("g", "n", 0)
    upgrade = [(2, False), (5, True), (3, True), (7, True), (6, True), (8, True)]
    joined = [(5, True), (3, True), (7, True), (7, True), (6, True), (8, True)]
    assert keys(groups, begin) == [*upgrade, *joined]
    begin = len(groups.records("g"))
    groups.report("g", "n", -1)
    gone = [(8, False)] * 2 + [(7, False)] * 2 + [(6, False)] + [(5, False)] * 2 + [(4, False), (3, False)]
    assert keys(groups, begin) == [*gone, (2, True)]


def test_a_member_has_its_own_assignors_in_the_record() -> None:
    """classicMemberMetadata of ConsumerGroupMemberMetadata."""
    groups, _ = mixed_group()
    values = [
        group_records.ConsumerGroupMemberMetadataValue.decode(one.value, 0, 2)
        for one in groups.records("g")
        if one.value is not None and one.key[:2] == b"\0\5"
    ]
    classic, modern = (one.classic_member_metadata for one in values)
    assert classic is not None
    assert (classic.session_timeout_ms, [one.name for one in classic.supported_protocols]) == (
        10_000,
        ["range", "roundrobin"],
    )
    assert modern is None


def test_timeouts_remove_classic_members() -> None:
    """The session timeout of the member, and its rebalance timeout after REBALANCE_IN_PROGRESS and before SyncGroup."""
    groups, member = mixed_group()
    groups.clock.advance(9_999)
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    groups.clock.advance(9_999)
    groups.report("g", "n", 2)
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    groups.clock.advance(2)
    groups.heartbeat("g", member, 1)
    groups.clock.advance(9_998)
    assert groups.heartbeat("g", member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    groups.clock.advance(3)  # 20 s after the first heartbeat that the member did not follow
    assert groups.heartbeat("g", member, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    groups, member = mixed_group()
    groups.join("g", member)
    for _ in range(2):
        groups.clock.advance(9_000)
        assert groups.heartbeat("g", member, 2) == ErrorCode.NONE
    groups.clock.advance(2_001)
    assert groups.heartbeat("g", member, 2) == ErrorCode.UNKNOWN_MEMBER_ID

    groups, member = mixed_group()
    groups.clock.advance(10_001)
    assert groups.heartbeat("g", member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert kind(groups)[0] == "consumer"


def test_a_group_is_downgraded_after_a_session_timeout() -> None:
    """The last member of the consumer protocol is removed, and the group rebalances."""
    groups, member = mixed_group()
    groups.join("g", member)
    sync(groups, member, 2)
    for _ in range(5):
        groups.heartbeat("g", member, 2)
        groups.clock.advance(9_001)
    assert kind(groups) == ("classic", "PreparingRebalance")
    assert groups.heartbeat("g", member, 2) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_static_member_changes_its_protocol(is_reported: bool) -> None:
    """It keeps its partitions in both directions, and the group is not rebalanced."""
    groups = MemoryGroups()
    member = groups.join("g", group_instance_id="i").now.member_id
    groups.sync("g", member, 1, assignments={member: assignment(ALL)}, group_instance_id="i")
    modern = groups.report("g", "n", 0, instance_id="i")
    (given,) = modern.assignment.topic_partitions
    assert (modern.member_epoch, given.partitions) == (1, ALL["t"])
    assert groups.heartbeat("g", member, 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    if is_reported:
        groups.report("g", "n", -2, instance_id="i")
    back = groups.join("g", group_instance_id="i", owned=ALL if is_reported else {}).now
    assert (back.error_code, back.generation_id, back.members) == (ErrorCode.NONE, 1, [])
    assert kind(groups) == ("classic", "Stable")
    response = groups.sync("g", back.member_id, 1, group_instance_id="i").now
    assert assigned(bytes(response.assignment)) == ALL
    assert groups.report("g", "n", 1, instance_id="i").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.restart()
    assert groups.heartbeat("g", back.member_id, 1, "i") == ErrorCode.NONE


def test_a_static_member_with_new_topics_starts_a_rebalance() -> None:
    """The target assignment of the group does not know them."""
    groups = MemoryGroups()
    groups.report("g", "n", 0, instance_id="i")
    back = groups.join("g", group_instance_id="i", topics=["t", "u"]).now
    assert back.generation_id == 0
    assert kind(groups) == ("classic", "PreparingRebalance")
    assert groups.join("g", back.member_id, group_instance_id="i").now.generation_id == 3


@pytest.mark.parametrize("policy", ["bidirectional", "upgrade", "downgrade", "disabled"])
def test_a_policy_decides_which_groups_are_converted(policy: str) -> None:
    """A classic member can join a group of the consumer protocol, unless the policy is "disabled"."""
    groups, member = classic_group(group_consumer_migration_policy=policy)
    upgrades = policy in ("bidirectional", "upgrade")
    expected = ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.report("g", "n", 0).error_code == expected
    assert kind(groups)[0] == ("consumer" if upgrades else "classic")
    groups.leave("g", member)
    groups.report("g", "n", 0)
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else ErrorCode.NONE
    assert groups.join("g", "m").now.error_code == refused
    groups.report("g", "n", -1)
    if policy != "disabled":
        assert kind(groups)[0] == ("consumer" if policy == "upgrade" else "classic")


def test_an_invalid_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of bidirectional, upgrade, downgrade, disabled, got 'both'"):
        BrokerSettings(group_consumer_migration_policy="both")


@pytest.mark.parametrize(
    "content", [b"xx", b"\0", assignment(ALL, user_data=b"x")], ids=["malformed", "short", "user data"]
)
def test_a_group_with_an_assignment_of_its_own_is_not_upgraded(content: bytes) -> None:
    """Malformed assignments, and user data of a custom assignor that would be lost."""
    groups = MemoryGroups()
    member = groups.join("g", groups.member_id("g")).now.member_id
    groups.sync("g", member, 1, assignments={member: content})
    assert groups.report("g", "n", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert kind(groups) == ("classic", "Stable")


def test_other_groups_are_not_upgraded() -> None:
    """Groups of another type, and groups that are too large."""
    groups = MemoryGroups(group_consumer_max_size=1)
    assert groups.join("g", groups.member_id("g"), protocol_type="connect").now.error_code == ErrorCode.NONE
    assert groups.report("g", "n", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups, member = classic_group(group_consumer_max_size=1)
    assert groups.report("g", "n", 0).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert kind(groups) == ("classic", "Stable")
    assert groups.heartbeat("g", member, 1) == ErrorCode.NONE


def test_a_large_group_is_not_downgraded() -> None:
    """It stays a group of the consumer protocol without members of that protocol."""
    groups = MemoryGroups(group_max_size=1)
    for member in "nab":
        (groups.report if member == "n" else groups.join)("g", member, *([0] if member == "n" else []))
    groups.report("g", "n", -1)
    assert kind(groups)[0] == "consumer"
    groups.leave("g", "a")
    assert kind(groups)[0] == "classic"


def test_requests_of_classic_members_are_validated() -> None:
    """As in a classic group: member, generation, protocol; and a member of the consumer protocol is unknown."""
    groups, member = mixed_group()
    assert groups.heartbeat("g", "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("g", "n", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("g", member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert groups.sync("g", member, 1).now.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    groups.join("g", member)
    for named in ({"protocol_name": "roundrobin"}, {"protocol_type": "connect"}):
        assert groups.sync("g", member, 2, **named).now.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    others: list[dict[str, Any]] = [{"protocols": ["sticky"]}, {"protocol_type": "connect"}]
    for fields in others:
        assert groups.join("g", "x", **fields).now.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.leave("g", "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.leave("g", "n") == ErrorCode.NONE
    assert kind(groups)[0] == "classic"


def test_classic_members_commit_with_their_generation() -> None:
    """With old versions of OffsetCommit, and ILLEGAL_GENERATION instead of STALE_MEMBER_EPOCH."""
    groups, member = mixed_group()
    assert groups.commit("g", 5, member, 1, version=7) == ErrorCode.NONE
    groups.join("g", member)
    assert groups.commit("g", 6, member, 3) == ErrorCode.ILLEGAL_GENERATION
    assert groups.commit("g", 6, "n", 3) == ErrorCode.STALE_MEMBER_EPOCH
    kept = sync(groups, member, 2)["t"]
    (lost,) = set(ALL["t"]) - set(kept)
    assert groups.commit("g", 7, member, 1, partition=kept[0]) == ErrorCode.NONE
    assert groups.commit("g", 7, member, 1, partition=lost) == ErrorCode.ILLEGAL_GENERATION


def test_a_conversion_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group in memory remains the one in the log."""
    groups, member = classic_group()

    def fail(*_: Any, **__: Any) -> int:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("kcodec.broker.partition_log.PartitionLog.append_records", fail)
        assert groups.report("g", "n", 0).error_code == ErrorCode.NOT_COORDINATOR
    assert kind(groups) == ("classic", "Stable")
    assert groups.heartbeat("g", member, 1) == ErrorCode.NONE
    groups.report("g", "n", 0)
    with monkeypatch.context() as patch:
        patch.setattr("kcodec.broker.partition_log.PartitionLog.append_records", fail)
        assert groups.report("g", "n", -1).error_code == ErrorCode.NOT_COORDINATOR
    assert kind(groups)[0] == "consumer"
