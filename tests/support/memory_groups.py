# SPDX-License-Identifier: Apache-2.0
"""A group coordinator with logs in memory and a clock that a test advances."""

from __future__ import annotations

from typing import Any

from embedded_subscriptions import subscription

from kcodec.broker.api import Api, ApiError, Later, RequestContext
from kcodec.broker.clock import Clock
from kcodec.broker.groups import GroupCoordinator
from kcodec.broker.internal_topics import GroupHost, InternalRecord, replayed
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Topics
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

START_MS = 1_700_000_000_000


def refuse_write(*_: Any, **__: Any) -> int:
    """Take the place of `GroupHost.append` on a full disk."""
    raise ApiError(ErrorCode.NOT_COORDINATOR)


class Reply:
    """The response to one request: `now`, or later. Every response is encoded and decoded in its version."""

    def __init__(self, request: Any, version: int, response: Any) -> None:
        self._kind, self._version = type(request).response, version
        self._response: Any = None
        if isinstance(response, Later):
            response.when_done(self._take)
        else:
            self._take(response)

    def _take(self, response: Any) -> None:
        self._response = self._kind.decode(response.encode(self._version), self._version)

    @property
    def is_done(self) -> bool:
        """Return whether the response exists."""
        return self._response is not None

    @property
    def now(self) -> Any:
        """The response, which must exist."""
        assert self._response is not None, "no response yet"
        return self._response


class MemoryGroups:
    """A coordinator with the topics t (3 partitions) and u (12 partitions)."""

    def __init__(self, **settings: Any) -> None:
        self.settings = BrokerSettings(offsets_topic_partitions=4, **settings)
        self.clock = Clock(is_manual=True, start_ms=START_MS)
        self.topics = Topics(self.settings, self.clock, None)
        self.topics.create_internal(CONSUMER_OFFSETS_TOPIC)
        self.topics.create("t", 3)
        self.topics.create("u", 12)
        self.host = GroupHost(self.clock, self.settings, self.topics)
        self.coordinator = GroupCoordinator(self.host)

    @property
    def apis(self) -> dict[type, Api]:
        """The APIs by the class of their requests."""
        return {api.request: api for api in self.coordinator.apis()}

    def begin(self, request: Any, version: int | None = None, client: str = "client") -> Reply:
        """Send a request, by default in the highest version."""
        api = self.apis[type(request)]
        version = api.versions[1] if version is None else version
        request = type(request).decode(request.encode(version), version)
        try:
            response = api.handle(RequestContext(version, client), request)
        except ApiError as error:
            response = type(request).response(error_code=int(error.code))
        reply = Reply(request, version, response)
        self.clock.run_due()
        return reply

    def ask(self, request: Any, version: int | None = None, client: str = "client") -> Any:
        """Send a request and return its response, which comes at once."""
        return self.begin(request, version, client).now

    def restart(self) -> None:
        """Forget the coordinator, and read its log again."""
        self.coordinator.unload()
        self.coordinator = self.recovered()
        self.coordinator.loaded()

    def recovered(self) -> GroupCoordinator:
        """Return another coordinator that has read the log, without timers."""
        coordinator = GroupCoordinator(self.host)
        topic = self.topics.get(CONSUMER_OFFSETS_TOPIC)
        assert topic is not None
        for partition in topic.partitions:
            for entry in replayed(partition.log):
                coordinator.replay(partition.number, entry)
        return coordinator

    def records(self, group_id: str) -> list[InternalRecord]:
        """The records in the partition of a group."""
        partition = self.topics.partition(CONSUMER_OFFSETS_TOPIC, self.host.partition_of(group_id))
        assert partition is not None
        return [entry for entry in replayed(partition.log) if isinstance(entry, InternalRecord)]

    # Shorter forms of requests.

    def join(self, group: str, member: str = "", **fields: Any) -> Reply:
        """JoinGroup of a consumer. owned: topic -> partitions that the member reports to own."""
        version = fields.pop("version", 9)
        names = fields.pop("protocols", ("range", "roundrobin"))
        content = subscription(fields.pop("topics", ["t"]), fields.pop("owned", {}))
        protocols = [messages.JoinGroupRequestProtocol(name=one, metadata=content) for one in names]
        known: dict[str, Any] = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": protocols,
        }
        return self.begin(messages.JoinGroupRequest(group_id=group, member_id=member, **(known | fields)), version)

    def member_id(self, group: str) -> str:
        """The id that a new member of a classic group gets."""
        response = self.join(group).now
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        member_id: str = response.member_id
        return member_id

    def sync(self, group: str, member: str, generation: int, **fields: Any) -> Reply:
        """SyncGroup; assignments: member id -> bytes, as the leader sends them."""
        assignments = [
            messages.SyncGroupRequestAssignment(member_id=one, assignment=data)
            for one, data in fields.pop("assignments", {}).items()
        ]
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        request = messages.SyncGroupRequest(
            group_id=group, member_id=member, generation_id=generation, assignments=assignments, **(named | fields)
        )
        return self.begin(request)

    def stable_group(self, group: str = "g", **fields: Any) -> str:
        """A stable classic group of one member. Return its id."""
        member: str = self.join(group, self.member_id(group), **fields).now.member_id
        assert self.sync(group, member, 1, assignments={member: b"all"}).now.assignment == b"all"
        return member

    def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> ErrorCode:
        """Heartbeat of a classic member. Return the error code."""
        request = messages.HeartbeatRequest(
            group_id=group, member_id=member, generation_id=generation, group_instance_id=instance
        )
        return ErrorCode(self.ask(request).error_code)

    def leave(self, group: str, member: str, instance: str | None = None) -> ErrorCode:
        """LeaveGroup of one member. Return the error code."""
        leaving = messages.LeavingMember(member_id=member, group_instance_id=instance)
        response = self.ask(messages.LeaveGroupRequest(group_id=group, members=[leaving]))
        return ErrorCode(response.error_code or response.members[0].error_code)

    def report(self, group: str, member: str, epoch: int, **fields: Any) -> Any:
        """ConsumerGroupHeartbeat."""
        if epoch == 0:
            joining = {"rebalance_timeout_ms": 5_000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
            fields = joining | fields
        request = messages.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
        return self.ask(request)

    def commit(self, group: str, offset: int, member: str = "", generation: int = -1, **fields: Any) -> ErrorCode:
        """OffsetCommit of partition 0 of t, by name. Return the error code."""
        partition = messages.OffsetCommitRequestPartition(
            partition_index=fields.pop("partition", 0),
            committed_offset=offset,
            committed_metadata=fields.pop("metadata", ""),
        )
        topic = messages.OffsetCommitRequestTopic(name=fields.pop("topic", "t"), partitions=[partition])
        version = fields.pop("version", 9)
        request = messages.OffsetCommitRequest(
            group_id=group, member_id=member, generation_id_or_member_epoch=generation, topics=[topic], **fields
        )
        return ErrorCode(self.ask(request, version).topics[0].partitions[0].error_code)

    def transactional_commit(self, group: str, offset: int, producer_id: int = 7, **fields: Any) -> ErrorCode:
        """TxnOffsetCommit of partition 0 of t. Return the error code."""
        partition = messages.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=fields.pop("metadata", "")
        )
        topic = messages.TxnOffsetCommitRequestTopic(name=fields.pop("topic", "t"), partitions=[partition])
        request = messages.TxnOffsetCommitRequest(
            transactional_id="x", group_id=group, producer_id=producer_id, producer_epoch=0, topics=[topic], **fields
        )
        context = RequestContext(5, "client")
        response = self.coordinator.offsets.check_transactional(request)
        response = response or self.coordinator.offsets.commit_transactional(context, request)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def end_transaction(self, group: str, *, is_commit: bool, producer_id: int = 7) -> None:
        """Write the marker of a producer into the log of a group, as the transaction coordinator does."""
        number = self.host.partition_of(group)
        partition = self.topics.partition(CONSUMER_OFFSETS_TOPIC, number)
        assert partition is not None
        self.write_marker(partition.log, producer_id, is_commit)
        self.coordinator.transaction_completed(number, producer_id, is_commit)

    @staticmethod
    def write_marker(log: Any, producer_id: int, is_commit: bool) -> None:
        """Append a marker."""
        log.append_marker(producer_id, 0, 0, is_commit=is_commit, transaction_version=0)

    def fetch(self, group: str, *, require_stable: bool = False) -> tuple[int, ErrorCode]:
        """OffsetFetch of partition 0 of t. Return offset and error code."""
        topic = messages.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        wanted = messages.OffsetFetchRequestGroup(group_id=group, topics=[topic])
        found = self.ask(messages.OffsetFetchRequest(groups=[wanted], require_stable=require_stable), 9).groups[0]
        if found.error_code:
            return -1, ErrorCode(found.error_code)
        partition = found.topics[0].partitions[0]
        return partition.committed_offset, ErrorCode(partition.error_code)

    def state(self, group: str) -> str:
        """The state that ListGroups shows; "" if the group does not exist."""
        listed = self.ask(messages.ListGroupsRequest()).groups
        return next((one.group_state for one in listed if one.group_id == group), "")
