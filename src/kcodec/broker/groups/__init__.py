# SPDX-License-Identifier: Apache-2.0
"""The group coordinator of the broker, without I/O: classic groups, groups of the consumer protocol, and offsets.

coordinator.py has the APIs. table.py holds the groups and writes records (group_log.py). The classic protocol is
classic_group.py (state) and classic_protocol.py (requests). The consumer protocol is consumer_group.py,
consumer_protocol.py, reconciliation.py, server_assignors.py and topic_patterns.py. Offsets are offset_store.py and
offset_requests.py.
"""

from kcodec.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
