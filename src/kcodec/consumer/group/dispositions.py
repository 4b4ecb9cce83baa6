# SPDX-License-Identifier: Apache-2.0
"""The reaction of a group member to an error code, in both group protocols.

Source: Kafka's AbstractCoordinator (classic) and AbstractHeartbeatRequestManager (KIP-848).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kcodec.protocol.error_codes import ErrorCode, error_code


class GroupDisposition(Enum):
    """The effect of an error on the member.

    RETRY:            repeat the request after a pause.
    FIND_COORDINATOR: the same, after looking up the coordinator, which is another broker.
    REJOIN:           join again at once; partitions are kept.
    RESET_GENERATION: the member is out and its partitions are lost; join again with the same member id.
    RESET_MEMBER:     the same, with a new member id.
    JOIN_WITH_ID:     join again with the member id of the response (KIP-394).
    REPORT:           poll raises the error, and heartbeats continue: it ends when a permission is granted.
    FATAL:            poll raises the error; a retry does not help.
    """

    RETRY = "again"
    FIND_COORDINATOR = "find the coordinator"
    REJOIN = "rejoin"
    RESET_GENERATION = "reset the generation"
    RESET_MEMBER = "reset the member id"
    JOIN_WITH_ID = "join with this id"
    REPORT = "report"
    FATAL = "fatal"


Dispositions = Mapping[int, GroupDisposition]
_COORDINATOR: Dispositions = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: GroupDisposition.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: GroupDisposition.FIND_COORDINATOR,
}
#: SyncGroup, Heartbeat and LeaveGroup of the classic protocol.
CLASSIC: Dispositions = {
    **_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION: GroupDisposition.RESET_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupDisposition.RESET_MEMBER,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupDisposition.REJOIN,
}
JOIN_GROUP: Dispositions = {
    **CLASSIC,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupDisposition.RETRY,
    ErrorCode.MEMBER_ID_REQUIRED: GroupDisposition.JOIN_WITH_ID,
}
#: ConsumerGroupHeartbeat of a member that joins.
CONSUMER_JOIN: Dispositions = {
    **_COORDINATOR,
    # Errors of a broker that stops, or whose log cannot be written.
    ErrorCode.UNKNOWN_SERVER_ERROR: GroupDisposition.RETRY,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupDisposition.RESET_GENERATION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: GroupDisposition.REPORT,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupDisposition.RESET_GENERATION,
    # An error of commits. Here, too, the member continues with a new epoch.
    ErrorCode.STALE_MEMBER_EPOCH: GroupDisposition.RESET_GENERATION,
}
#: ConsumerGroupHeartbeat of a member: the group may have been deleted meanwhile.
CONSUMER: Dispositions = {**CONSUMER_JOIN, ErrorCode.GROUP_ID_NOT_FOUND: GroupDisposition.RESET_GENERATION}


def disposition(table: Dispositions, code: int) -> GroupDisposition:
    """Return the disposition of a code other than NONE. A code that is not in the table is fatal unless Kafka calls it
    retriable."""
    otherwise = GroupDisposition.RETRY if error_code(code).retriable else GroupDisposition.FATAL
    return table.get(code, otherwise)
