# SPDX-License-Identifier: Apache-2.0
"""The group coordinator of the broker, without I/O: classic groups, groups of the consumer protocol, and offsets.

coordinator.py has the APIs. table.py has the groups and writes their records (group_log.py). The classic protocol is
classic_group.py (state) and classic_protocol.py (requests). The consumer protocol is consumer_group.py,
consumer_protocol.py, consumer_rebalance.py, reconciliation.py, server_assignors.py and topic_patterns.py. Groups with
members of both protocols are handled in conversion.py, classic_members.py and embedded_protocol.py. Offsets are in
offset_store.py and offset_requests.py.

The group coordinator differs from that of Kafka in these points:

- Some choices depend on the order of a hash table in Kafka. Here, they depend on the order of joining or of names:
  - the next leader, after the leader has left or after a group has become a classic group;
  - the protocol or assignor, if several have the same number of votes;
  - the members with an additional partition, if the hashes of their ids collide;
  - the partitions that the uniform assignor moves, if subscriptions differ.
- If a member is removed while its SyncGroup waits, the request gets UNKNOWN_MEMBER_ID. Kafka never responds to it.
- Regular expressions are resolved right after the heartbeat that contains them. Kafka resolves them at most once in 10
  seconds for each group.
- The metadata hash in the record of a consumer group has another value than in Kafka.
- If a member without topics joins while the target assignment is not up to date, Kafka computes a target assignment in
  which the member has partitions. It never gets them, and no other member has them. Here, the other members have them.
- If an assignment interval is set, and a member no longer subscribes to a topic, the member gives up the partitions of
  this topic only with the next target assignment.
"""

from kcodec.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
