# SPDX-License-Identifier: Apache-2.0
"""Classic groups of the embedded coordinator: joins, rebalances, sessions, static members, records and restarts."""

from __future__ import annotations

import pytest
from memory_groups import MemoryGroups, refuse_write

from kcodec.broker.internal_topics import GroupHost
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode


def two_members(groups: MemoryGroups) -> tuple[str, str]:
    """Make a stable group of two; the first is the leader."""
    first = groups.stable_group()
    second = groups.join("g", groups.member_id("g"))
    again = groups.join("g", first)
    assert (again.now.generation_id, again.now.leader) == (2, first)
    waiting = groups.sync("g", second.now.member_id, 2)
    groups.sync("g", first, 2, assignments={first: b"1", second.now.member_id: b"2"})
    assert waiting.now.assignment == b"2"
    return first, second.now.member_id


def test_a_join_waits_for_the_other_members() -> None:
    """The response comes once all members have joined, and only the leader's names them."""
    groups = MemoryGroups()
    first = groups.stable_group()
    second = groups.join("g", groups.member_id("g"))
    assert not second.is_done
    assert groups.heartbeat("g", first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    leader = groups.join("g", first).now
    assert [one.member_id for one in leader.members] == [first, second.now.member_id]
    assert second.now.members == []
    assert second.now.protocol_name == "range"


def test_a_member_that_does_not_join_again_is_removed() -> None:
    """The rebalance timeout of the group ends the wait."""
    groups = MemoryGroups()
    first = groups.stable_group()
    second = groups.join("g", groups.member_id("g"))
    for _ in range(4):
        groups.clock.advance(5_000)
        groups.heartbeat("g", first, 1)
    assert second.now.leader == second.now.member_id
    assert groups.heartbeat("g", first, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_expires_starts_a_rebalance() -> None:
    """Without a heartbeat for 10 s the member is removed, and the others join again."""
    groups = MemoryGroups()
    first, second = two_members(groups)
    groups.clock.advance(9_000)
    assert groups.heartbeat("g", first, 2) == ErrorCode.NONE
    groups.clock.advance(2_000)
    assert groups.heartbeat("g", first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.heartbeat("g", second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.join("g", first).now.generation_id == 3


def test_the_first_generation_waits_for_the_initial_delay() -> None:
    """While members come the delay begins again."""
    groups = MemoryGroups(group_initial_rebalance_delay_ms=3_000)
    first = groups.join("g", groups.member_id("g"))
    groups.clock.advance(2_000)
    second = groups.join("g", groups.member_id("g"))
    groups.clock.advance(2_000)
    assert not first.is_done
    groups.clock.advance(2_000)
    assert first.now.generation_id == second.now.generation_id == 1


def test_members_without_a_common_protocol_are_refused() -> None:
    """And so is another protocol type."""
    groups = MemoryGroups()
    groups.stable_group()
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.join("g", protocols=("other",)).now.error_code == refused
    assert groups.join("g", protocol_type="connect").now.error_code == refused
    assert groups.join("h", protocol_type="").now.error_code == refused


def test_a_full_classic_group_refuses_a_member() -> None:
    """group.max.size counts the members."""
    groups = MemoryGroups(group_max_size=1)
    groups.stable_group()
    assert groups.join("g").now.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_session_timeout_out_of_range_is_refused() -> None:
    """group.min.session.timeout.ms is 6 s."""
    groups = MemoryGroups()
    assert groups.join("g", session_timeout_ms=5_999).now.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_static_member_returns_without_a_rebalance() -> None:
    """It gets a new id, the old one is fenced, and the leader skips the assignment."""
    groups = MemoryGroups()
    first = groups.join("g", group_instance_id="i").now.member_id
    groups.sync("g", first, 1, group_instance_id="i", assignments={first: b"all"})
    back = groups.join("g", group_instance_id="i").now
    assert (back.generation_id, back.skip_assignment) == (1, True)
    assert back.member_id != first
    assert groups.heartbeat("g", first, 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    assert groups.sync("g", back.member_id, 1, group_instance_id="i").now.assignment == b"all"
    assert groups.leave("g", "", "i") == ErrorCode.NONE
    assert groups.state("g") == "Empty"


def test_members_that_never_sync_are_removed() -> None:
    """After the rebalance timeout, though their heartbeats come."""
    groups = MemoryGroups()
    member = groups.join("g", groups.member_id("g")).now.member_id
    for _ in range(4):
        groups.clock.advance(5_000)
        groups.heartbeat("g", member, 1)
    assert groups.heartbeat("g", member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_is_removed_after_a_sync_that_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session ends, so that the member that waits for its assignment joins again."""
    groups = MemoryGroups()
    leader = groups.stable_group()
    follower = groups.join("g", groups.member_id("g"))
    groups.join("g", leader)
    waiting = groups.sync("g", follower.now.member_id, 2)
    with monkeypatch.context() as patch:
        patch.setattr(GroupHost, "append", refuse_write)
        assert groups.sync("g", leader, 2).now.error_code == ErrorCode.NOT_COORDINATOR
    groups.clock.advance(11_000)
    assert waiting.now.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_stable_group_survives_a_restart() -> None:
    """Members, generation and assignments come back from the log, and sessions run again."""
    groups = MemoryGroups()
    first, second = two_members(groups)
    groups.restart()
    assert groups.heartbeat("g", second, 2) == ErrorCode.NONE
    assert groups.sync("g", first, 2).now.assignment == b"1"
    described = groups.ask(messages.DescribeGroupsRequest(groups=["g"])).groups[0]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    groups.clock.advance(40_000)
    assert groups.state("g") == "Empty"


def test_an_unloaded_coordinator_ends_waiting_joins() -> None:
    """They get NOT_COORDINATOR."""
    groups = MemoryGroups()
    groups.stable_group()
    waiting = groups.join("g", groups.member_id("g"))
    groups.coordinator.unload()
    assert waiting.now.error_code == ErrorCode.NOT_COORDINATOR


def test_a_group_with_members_cannot_be_deleted() -> None:
    """An empty one can, with its offsets, and stays deleted after a restart."""
    groups = MemoryGroups()
    member = groups.stable_group()
    assert groups.commit("g", 5, member, 1) == ErrorCode.NONE

    def delete() -> int:
        code: int = groups.ask(messages.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code
        return code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    groups.leave("g", member)
    assert delete() == ErrorCode.NONE
    groups.restart()
    assert groups.state("g") == ""
    assert groups.fetch("g") == (-1, ErrorCode.NONE)
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_listed_by_state_and_type() -> None:
    """Names of states and types are compared without case."""
    groups = MemoryGroups()
    groups.stable_group("a")
    groups.report("b", "m", 0)

    def listed(**filters: list[str]) -> list[str]:
        return [one.group_id for one in groups.ask(messages.ListGroupsRequest(**filters)).groups]

    assert listed() == ["a", "b"]
    assert listed(types_filter=["Consumer"]) == ["b"]
    assert listed(states_filter=["stable"], types_filter=["classic"]) == ["a"]
    assert listed(states_filter=["Empty"]) == []


def test_an_empty_group_changes_its_type() -> None:
    """In both directions, with its offsets. A group with members keeps its protocol, because the policy says so."""
    groups = MemoryGroups(group_consumer_migration_policy="disabled")
    member = groups.stable_group()
    groups.commit("g", 5, member, 1)
    assert groups.report("g", "m", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.leave("g", member)
    assert groups.report("g", "m", 0).error_code == ErrorCode.NONE
    assert groups.fetch("g") == (5, ErrorCode.NONE)
    assert groups.join("g").now.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    groups.report("g", "m", -1)
    groups.stable_group()
    groups.restart()
    assert groups.state("g") == "Stable"
    assert groups.fetch("g") == (5, ErrorCode.NONE)


def test_a_pending_member_joins_after_the_others_have_left() -> None:
    """Without members every assignor is common."""
    groups = MemoryGroups()
    member = groups.stable_group()
    pending = groups.member_id("g")
    groups.join("g", member)
    groups.leave("g", member)
    assert groups.state("g") == "PreparingRebalance"
    assert groups.join("g", pending, protocols=("other",)).now.protocol_name == "other"


def test_a_subscription_that_cannot_be_read_ends_no_join() -> None:
    """The join completes, as on Kafka, and the coordinator takes the group to be subscribed to every topic."""
    for metadata in (b"", b"x", b"\0\0", b"\0\0\xff\xff\xff\xff\xff\xff"):
        groups = MemoryGroups()
        protocols = [messages.JoinGroupRequestProtocol(name="range", metadata=metadata)]
        member = groups.member_id("g")
        assert (
            groups.begin(
                messages.JoinGroupRequest(
                    group_id="g",
                    member_id=member,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=20_000,
                    protocol_type="consumer",
                    protocols=protocols,
                )
            ).now.generation_id
            == 1
        )
