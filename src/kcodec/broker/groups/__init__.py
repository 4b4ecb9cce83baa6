# SPDX-License-Identifier: Apache-2.0
"""The group coordinator of the broker, without I/O: classic groups, groups of the consumer protocol, and offsets.

coordinator.py has the APIs. table.py holds the groups and writes records (group_log.py). The classic protocol is
classic_group.py (state) and classic_protocol.py (requests). The consumer protocol is consumer_group.py,
consumer_protocol.py, reconciliation.py, server_assignors.py and topic_patterns.py. Offsets are offset_store.py and
offset_requests.py.

It differs from Kafka 4.3 in this:

- A group with members keeps its protocol, as on a Kafka with group.consumer.migration.policy=disabled. An empty one
  changes.
- Kafka makes some choices by hash tables: the leader after the leader left, which of two protocols or assignors with
  equal votes is taken, and the partitions that the uniform assignor moves if subscriptions differ. Here the order of
  joining or of names decides.
- The SyncGroup of a member that is removed meanwhile gets UNKNOWN_MEMBER_ID; Kafka never responds to it.
- Regular expressions are matched right after the heartbeat that brings them; Kafka does so once in 10 s for a group.
- The metadata hash in the record of a consumer group has other bits than Kafka's.
- With an assignment interval, a member revokes the partitions of a topic that it has left with the next target.
"""

from kcodec.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
