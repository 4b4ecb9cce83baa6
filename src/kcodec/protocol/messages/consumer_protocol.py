# SPDX-License-Identifier: Apache-2.0
"""The data of members of a classic consumer group in JoinGroup and SyncGroup, after a version of two bytes."""

from __future__ import annotations

from kcodec.protocol.schema import Message, Struct, array, data, int32, string


class OwnedPartitions(Struct):
    """Partitions of a topic that the member owns."""

    topic: str = string("1+")
    partitions: list[int] = array(int32, "1+")


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    """The subscription of a member, the partitions that it owns, its generation (-1: none) and its rack."""

    topics: list[str] = array(string, "0+")
    user_data: bytes | None = data("0+", nullable="0+", default=None)
    owned_partitions: list[OwnedPartitions] = array(OwnedPartitions, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class AssignedPartitions(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerProtocolAssignment(Message, versions="0-3", flexible="none"):
    """The partitions assigned to a member."""

    assigned_partitions: list[AssignedPartitions] = array(AssignedPartitions, "0+")
    user_data: bytes | None = data("0+", nullable="0+", default=None)
