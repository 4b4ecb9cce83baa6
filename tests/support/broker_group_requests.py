# SPDX-License-Identifier: Apache-2.0
"""The requests for the steps of a random sequence that concern groups and their offsets.

A method has the name of a kind of step, and returns the request and its version.
"""

from __future__ import annotations

from typing import Any

from broker_sequence_requests import COMMIT_BY_ID, Names

from kcodec.protocol import messages

_GROUPS_FETCH = 8
TXN_COMMIT_BY_ID = 6


class GroupRequests(Names):
    """Requests of members of groups, and about offsets."""

    def commit_offset(
        self,
        name: int | str,
        who: Any,
        partition: int,
        offset: int,
        version: int,
        group: str = "own",
        member: Any = "",
        generation: Any = -1,
        instance: str | None = None,
        metadata: int = 3,
        topic: str = "own",
    ) -> Any:
        identity = self._who(who)
        has_member = version >= 3
        by_id = version >= TXN_COMMIT_BY_ID
        named: dict[str, Any] = {"topic_id": self._topic_id(topic)} if by_id else {"name": self._topic(topic)}
        partitions = [
            messages.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata="m" * metadata
            )
        ]
        request = messages.TxnOffsetCommitRequest(
            transactional_id=self._name(name),
            group_id=self._group(group),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id_or_member_epoch=self._generation(generation) if has_member else -1,
            member_id=self._member(member) if has_member else "",
            group_instance_id=instance if has_member else None,
            topics=[messages.TxnOffsetCommitRequestTopic(**named, partitions=partitions)],
        )
        return request, version

    def commit_plain(
        self,
        partition: int,
        offset: int,
        version: int,
        topic: str = "own",
        group: str = "own",
        member: Any = "",
        generation: Any = -1,
        instance: str | None = None,
        metadata: int = 3,
    ) -> Any:
        by_id = version >= COMMIT_BY_ID
        partitions = [
            messages.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata="m" * metadata
            )
        ]
        named = {"topic_id": self._topic_id(topic)} if by_id else {"name": self._topic(topic)}
        request = messages.OffsetCommitRequest(
            group_id=self._group(group),
            generation_id_or_member_epoch=self._generation(generation),
            member_id=self._member(member),
            group_instance_id=instance if version >= 7 else None,
            topics=[messages.OffsetCommitRequestTopic(**named, partitions=partitions)],
        )
        return request, version

    def offset_fetch(
        self,
        stable: bool,
        version: int,
        group: str = "own",
        member: Any = None,
        epoch: Any = -1,
        everything: bool = False,
        topic: str = "own",
    ) -> Any:
        stable = stable and version >= 7
        if version < _GROUPS_FETCH:
            topics = [messages.OffsetFetchRequestTopic(name=self._topic(topic), partition_indexes=[0, 1])]
            request = messages.OffsetFetchRequest(
                group_id=self._group(group),
                topics=None if everything and version > 1 else topics,
                require_stable=stable,
            )
            return request, version
        by_id = version >= COMMIT_BY_ID
        named = {"topic_id": self._topic_id(topic)} if by_id else {"name": self._topic(topic)}
        one = messages.OffsetFetchRequestGroup(
            group_id=self._group(group),
            member_id=None if member is None or version < 9 else self._member(member),
            member_epoch=self._generation(epoch) if version >= 9 else -1,
            topics=None if everything else [messages.OffsetFetchRequestTopics(**named, partition_indexes=[0, 1])],
        )
        return messages.OffsetFetchRequest(groups=[one], require_stable=stable), version

    def offset_delete(self, partition: int, group: str = "own") -> Any:
        topic = messages.OffsetDeleteRequestTopic(
            name=self.topic, partitions=[messages.OffsetDeleteRequestPartition(partition_index=partition)]
        )
        return messages.OffsetDeleteRequest(group_id=self._group(group), topics=[topic]), 0

    def delete_group(self, group: str = "own") -> Any:
        return messages.DeleteGroupsRequest(groups_names=[self._group(group)]), 2

    def join(
        self,
        version: int,
        member: Any,
        instance: str | None = None,
        group: str = "own",
        kind: str = "consumer",
        protocol: str = "range",
        timeout: int = 60_000,
    ) -> Any:
        protocols = [messages.JoinGroupRequestProtocol(name=protocol, metadata=b"data")] if protocol else []
        request = messages.JoinGroupRequest(
            group_id=self._group(group),
            session_timeout_ms=timeout,
            rebalance_timeout_ms=60_000,
            member_id=self._member(member),
            group_instance_id=instance if version >= 5 else None,
            protocol_type=kind,
            protocols=protocols,
        )
        return request, version

    def sync(
        self, version: int, member: Any, generation: Any, instance: str | None = None, kind: str | None = None
    ) -> Any:
        assignment = messages.SyncGroupRequestAssignment(member_id=self._member(0), assignment=b"assigned")
        request = messages.SyncGroupRequest(
            group_id=self.topic,
            generation_id=self._generation(generation),
            member_id=self._member(member),
            group_instance_id=instance if version >= 3 else None,
            protocol_type=kind if version >= 5 else None,
            protocol_name="range" if kind and version >= 5 else None,
            assignments=[assignment],
        )
        return request, version

    def heartbeat(self, version: int, member: Any, generation: Any, instance: str | None = None) -> Any:
        request = messages.HeartbeatRequest(
            group_id=self.topic,
            generation_id=self._generation(generation),
            member_id=self._member(member),
            group_instance_id=instance if version >= 3 else None,
        )
        return request, version

    def leave(self, version: int, member: Any, instance: str | None = None) -> Any:
        if version < 3:
            return messages.LeaveGroupRequest(group_id=self.topic, member_id=self._member(member)), version
        one = messages.LeavingMember(member_id=self._member(member), group_instance_id=instance)
        return messages.LeaveGroupRequest(group_id=self.topic, members=[one]), version

    def report(self, member: str, epoch: Any, owned: list[int] | None, joins: bool, instance: str | None = None) -> Any:
        """ConsumerGroupHeartbeat (KIP-848)."""
        partitions = None
        if owned is not None:
            partitions = (
                [messages.ConsumerGroupTopicPartitions(topic_id=self._topic_id("own"), partitions=list(owned))]
                if owned
                else []
            )
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.topic,
            member_id=member,
            member_epoch=self._generation(epoch),
            instance_id=instance,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=[self.topic] if joins else None,
            topic_partitions=partitions,
        )
        return request, 1
