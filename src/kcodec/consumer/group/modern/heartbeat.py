# SPDX-License-Identifier: Apache-2.0
"""ConsumerGroupHeartbeat: the content of a request, when it is sent, and the errors of its responses (KIP-848).

A heartbeat contains the fields that have changed since the last one. The first heartbeat, and each heartbeat after an
error or a lost response, contains all fields (Kafka: ConsumerHeartbeatRequestManager.HeartbeatState). The broker
responds to it with the whole assignment. The client creates the member id (KIP-1082), so a repeated request to join
adds only one member.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from random import Random
from typing import Any
from uuid import UUID

from kcodec.consumer.group.rebalance import Subscription
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.protocol.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupTopicPartitions

#: Special values of the member epoch in a request: the member joins, leaves, or is static and leaves temporarily
#: (Kafka: ConsumerGroupHeartbeatRequest).
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
#: Name of the separate connection for heartbeats, so that no large or slow request delays a heartbeat.
CHANNEL = "group"
#: The first version of the request that has a field for a regular expression.
REGEX_VERSION = 1
#: Partitions as pairs of topic id and partition number.
TopicIdPartitions = frozenset[tuple[UUID, int]]
#: Bounds of the heartbeat interval in seconds. If the interval of a broker is outside them, the nearest bound is used.
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 3600.0
#: Pauses between the heartbeats after a join: the first pause and the longest pause as fractions of the interval, and
#: the factor from one pause to the next. EAGER_INTERVALS is the number of intervals after which the usual pause is used
#: again. By then, all other members have sent a heartbeat and have had time to revoke partitions.
FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE, EAGER_INTERVALS = 0.04, 1.5, 0.1, 1.2
# Remedies that are specific to this protocol, and therefore not in the table of error codes.
_REMEDIES: dict[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group has members of the classic protocol: "
    'group.consumer.migration.policy must allow an upgrade, or use group_protocol="classic"',
    ErrorCode.GROUP_ID_NOT_FOUND: "the group has another type, or its members of the classic protocol cannot be "
    'upgraded: see the broker\'s group.consumer.migration.policy, or use group_protocol="classic"',
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the broker's group.consumer.max.size is reached",
    ErrorCode.FENCED_INSTANCE_ID: "an operator removed the member with this group_instance_id, and another one has "
    "replaced it",
    ErrorCode.UNRELEASED_INSTANCE_ID: "the member with this group_instance_id did not leave: the broker releases it "
    "when it stops, or at the end of its session (group.consumer.session.timeout.ms); then subscribe again",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "group_remote_assignor must be one of the broker's group.consumer.assignors",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the broker uses RE2/J, which has no backreferences and no lookaround",
}


def heartbeat_error(code: int, group_id: str, message: str | None = None) -> BrokerError:
    """Return the exception for a code, with its remedy.

    Each poll until the next subscribe raises errors that another heartbeat does not resolve. Their remedy is "stop",
    whatever the general table has for the code, because an abort does not change the group.
    """
    doing = f"ConsumerGroupHeartbeat of group {group_id!r}"
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return without_protocol(group_id)
    is_retriable = error_code(code).retriable
    remedy = None if is_retriable else "stop"
    error = broker_error(code, doing, resource=group_id, message=message, remedy=remedy)
    if code not in _REMEDIES:
        return error
    return type(error)(
        f"{error.reason}: {_REMEDIES[code]}",
        code=code,
        name=error.name,
        retriable=error.retriable,
        remedy=error.remedy,
        resource=group_id,
    )


def without_protocol(group_id: str, pattern: str | None = None) -> BrokerError:
    """Return the error for a broker that does not support the protocol, or subscriptions by pattern."""
    found = "the broker does not support the consumer group protocol of KIP-848 (Kafka 4.0 on, with group.version 1)"
    if pattern is not None:
        found += ", or not with a pattern"
    return BrokerError(
        f'ConsumerGroupHeartbeat of group {group_id!r}: {found}; use group_protocol="classic"',
        code=ErrorCode.UNSUPPORTED_VERSION,
        name=ErrorCode.UNSUPPORTED_VERSION.name,
        resource=group_id,
    )


def make_member_id(random: Random) -> str:
    """Return a random UUID as Kafka writes it: URL-safe base64 that does not begin with a hyphen."""
    while True:
        number = random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (4 << 76) | (2 << 62)
        text = base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class HeartbeatPace:
    """Decides when the next heartbeat is sent: at the interval of the broker, more often after a join, and after a
    pause if the last one failed.

    A new member gets its partitions when other members have revoked them, and a broker of Kafka 4.3 or later assigns
    partitions only after its response. The response to a join is therefore usually empty, and the assignment arrives
    with a later heartbeat. Until all other members have sent a heartbeat, this member sends heartbeats more often.

    interval:         Heartbeat interval of the broker.
    next_at:          Time of the next heartbeat, by the clock of the calls, if there is nothing to report before.
    not_before:       Time before which no heartbeat is sent, whatever there is to report.
    sent_number:      Number of heartbeats that were sent.
    responded_number: Number of the last one whose response had no error.
    """

    def __init__(self, backoff: Callable[[int], float]) -> None:
        self.interval = SHORTEST_INTERVAL
        self.next_at = self.not_before = 0.0
        self.sent_number = self.responded_number = 0
        self._backoff = backoff
        self._pause = SHORTEST_INTERVAL
        self._eager_until = 0.0
        #: Number of failures in a row, and of times in a row that the group dropped the member before a heartbeat of a
        #: member succeeded.
        self._failures = self._drops = 0

    def sent(self, now: float) -> None:
        """Note that a heartbeat is sent."""
        self.sent_number += 1
        self.next_at = now + self._pause

    def responded(self, now: float, interval_ms: int, *, is_join: bool) -> None:
        """Note a response without an error."""
        self.responded_number = self.sent_number
        self._failures, self.not_before = 0, 0.0
        self.interval = min(max(interval_ms / 1000, SHORTEST_INTERVAL), LONGEST_INTERVAL)
        if is_join:
            self._pause = self.interval * FIRST_PAUSE / PAUSE_GROWTH
            self._eager_until = now + self.interval * EAGER_INTERVALS
        else:
            self._drops = 0
        pause = self.interval
        if now < self._eager_until:
            pause = min(self._pause * PAUSE_GROWTH, self.interval * LONGEST_PAUSE)
        self._pause = max(pause, SHORTEST_INTERVAL)
        self.next_at = now + self._pause

    def failed(self, now: float) -> None:
        """Pause after a heartbeat that failed."""
        self.not_before = now + self._backoff(self._failures)
        self._failures += 1

    def dropped(self, now: float) -> None:
        """Let the member join again: at once after the first time that the group dropped it, after a pause when that
        happens again before a heartbeat of a member succeeded."""
        self.not_before = now + self._backoff(self._drops - 1) if self._drops else 0.0
        self._drops += 1


class HeartbeatFields:
    """The fields of the requests of one member, without those that the broker already has."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._subscription: Subscription | None = None
        self._owned: TopicIdPartitions | None = None

    def forget(self) -> None:
        """Include all fields in the next request, because the last one failed or may have been lost."""
        self._subscription = self._owned = None

    def is_news(self, subscription: Subscription) -> bool:
        """Return whether the broker has not received this subscription yet."""
        return subscription != self._subscription

    def build(
        self, member_id: str, epoch: int, subscription: Subscription, owned: TopicIdPartitions, *, is_ack: bool
    ) -> ConsumerGroupHeartbeatRequest:
        """Return the next request. `owned` has the reconciled partitions, which are sent after each reconciliation
        (`is_ack`)."""
        settings = self._settings
        is_full = epoch == JOIN_EPOCH or self._subscription is None or self._owned is None
        request = self._of_member(member_id, epoch)
        if is_full:
            request.rack_id = settings.client_rack or None
            request.rebalance_timeout_ms = int(settings.max_poll_interval * 1000)
            request.server_assignor = settings.group_remote_assignor
        known = None if is_full else self._subscription
        if known is None or subscription.topics != known.topics:
            request.subscribed_topic_names = sorted(subscription.topics)
        if subscription.pattern is not None and (known is None or subscription.pattern != known.pattern):
            request.subscribed_topic_regex = subscription.pattern
        elif subscription.pattern is None and known is not None and known.pattern is not None:
            request.subscribed_topic_regex = ""  # the subscription has no pattern anymore
        if is_full or is_ack or owned != self._owned:
            request.topic_partitions = [] if epoch == JOIN_EPOCH else grouped(owned)
        self._subscription = subscription
        self._owned = frozenset() if epoch == JOIN_EPOCH else owned
        return request

    def leave(self, member_id: str) -> ConsumerGroupHeartbeatRequest:
        """Return the leave heartbeat. Other members get the partitions immediately, or, for a static member, after its
        session."""
        is_static = self._settings.group_instance_id is not None
        return self._of_member(member_id, LEAVE_STATIC_EPOCH if is_static else LEAVE_EPOCH)

    def _of_member(self, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        assert settings.group_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=settings.group_instance_id,
        )


def grouped(partitions: Iterable[tuple[UUID, int]]) -> list[ConsumerGroupTopicPartitions]:
    """Return partitions in the form of a request."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return [ConsumerGroupTopicPartitions(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()]


def assigned(response: Any) -> TopicIdPartitions | None:
    """Return the assignment of a response; None if it has none."""
    if response.assignment is None:
        return None
    topics = response.assignment.topic_partitions
    return frozenset((topic.topic_id, partition) for topic in topics for partition in topic.partitions)
