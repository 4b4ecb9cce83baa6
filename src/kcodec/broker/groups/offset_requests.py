# SPDX-License-Identifier: Apache-2.0
"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, and the expiry of offsets.

The checks are those of KafkaApis (topics and partitions exist) and then of OffsetMetadataManager (group, member,
generation or epoch, size of the metadata). If no partition of a request exists, the group is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from kcodec.broker.api import ApiError, RequestContext, by_topic
from kcodec.broker.groups.classic_group import ClassicGroup, ClassicState
from kcodec.broker.groups.consumer_group import ConsumerGroup, ConsumerMember, stale_epoch_text
from kcodec.broker.groups.group_log import NO_EXPIRY, offset_record, offset_tombstone
from kcodec.broker.groups.offset_store import OffsetStore, StoredOffset
from kcodec.broker.groups.table import Group, GroupTable
from kcodec.broker.topics import Topic
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

TOPIC_ID_VERSION = 10
GROUPS_VERSION = 8
#: From these versions on, clients know the errors of groups of KIP-848.
MODERN_COMMIT_VERSION, MODERN_TXN_COMMIT_VERSION = 9, 6
NO_OFFSET = -1
NO_TOPIC_ID = UUID(int=0)


class _Commit(NamedTuple):
    """An existing partition of an OffsetCommit request, and its part of the response."""

    topic: Topic
    partition: messages.OffsetCommitRequestPartition
    result: messages.OffsetCommitResponsePartition


class OffsetRequests:
    """The requests about offsets.

    alive: Called with the member of a classic group that has committed offsets.
    """

    def __init__(self, table: GroupTable, store: OffsetStore, alive: Callable[[ClassicGroup, str], None]) -> None:
        self._table = table
        self._store = store
        self._alive = alive

    # Group

    def _group_to_commit(self, group_id: str, generation: int, code: ErrorCode) -> Group:
        """Return the group, or raise ApiError with this code. A commit that names no member creates the group, even if
        its offsets are refused later (GroupMetadataManager.getOrMaybeCreateClassicGroup)."""
        group = self._table.groups.get(group_id)
        if group is not None:
            return group
        if generation >= 0:
            raise ApiError(code, f"Group {group_id} not found.")
        return self._table.create_classic(group_id)

    # OffsetCommit

    def commit(self, context: RequestContext, request: messages.OffsetCommitRequest) -> messages.OffsetCommitResponse:
        """Respond to OffsetCommit."""
        uses_ids = context.api_version >= TOPIC_ID_VERSION
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if uses_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = messages.OffsetCommitResponse()
        found: list[_Commit] = []
        for one in request.topics:
            topic = self._table.host.topics.by_id(one.topic_id) if uses_ids else self._table.host.topics.get(one.name)
            results = messages.OffsetCommitResponseTopic(name=one.name, topic_id=one.topic_id)
            response.topics.append(results)
            for partition in one.partitions:
                result = messages.OffsetCommitResponsePartition(partition_index=partition.partition_index)
                results.partitions.append(result)
                if topic is None:
                    result.error_code = unknown
                elif topic.partition(partition.partition_index) is None:
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    found.append(_Commit(topic, partition, result))
        try:
            if found:
                self._commit_found(context, request, found)
        except ApiError as error:
            for commit in found:
                commit.result.error_code = error.code
        return response

    def _commit_found(
        self, context: RequestContext, request: messages.OffsetCommitRequest, found: list[_Commit]
    ) -> None:
        generation, is_modern = request.generation_id_or_member_epoch, context.api_version >= MODERN_COMMIT_VERSION
        code = ErrorCode.GROUP_ID_NOT_FOUND if is_modern else ErrorCode.ILLEGAL_GENERATION
        group = self._group_to_commit(request.group_id, generation, code)
        late: ConsumerMember | None = None
        if isinstance(group, ClassicGroup):
            group.validate_commit(request, is_transactional=False)
            self._alive(group, request.member_id)
        else:
            late = group.validate_commit(request, is_transactional=False, api_version=context.api_version)
        now_ms = self._table.now_ms()
        expiry = NO_EXPIRY if request.retention_time_ms == -1 else now_ms + request.retention_time_ms
        records = []
        for topic, partition, result in found:
            if late is not None:
                _check_assignment_epoch(late, generation, topic.id, partition.partition_index)
            result.error_code = self._metadata_error(partition.committed_metadata)
            if result.error_code == ErrorCode.NONE:
                is_given = context.api_version == 1 and partition.commit_timestamp != -1
                value = messages.OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp=partition.commit_timestamp if is_given else now_ms,
                    expire_timestamp=expiry,
                    topic_id=topic.id,
                )
                records.append(offset_record(request.group_id, topic.name, partition.partition_index, value))
        self._table.commit(request.group_id, records)

    def _metadata_error(self, metadata: str | None) -> ErrorCode:
        is_long = metadata is not None and len(metadata) > self._table.settings.offset_metadata_max_bytes
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_long else ErrorCode.NONE

    # TxnOffsetCommit

    def _id_of(self, name: str) -> UUID:
        topic = self._table.host.topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.id

    def _is_there(self, name: str, partition: int) -> bool:
        return self._table.host.topics.partition(name, partition) is not None

    def check_transactional(self, request: messages.TxnOffsetCommitRequest) -> messages.TxnOffsetCommitResponse | None:
        """Return the response if no partition of the request exists, in which case the transaction is not checked."""
        if any(self._is_there(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions):
            return None
        return self.refused_transactional(request, ErrorCode.NONE)

    def refused_transactional(
        self, request: messages.TxnOffsetCommitRequest, code: ErrorCode
    ) -> messages.TxnOffsetCommitResponse:
        """Return a response with an error code for each partition that exists."""
        return _transactional_response(
            request, lambda name, one: code if self._is_there(name, one.partition_index) else _unknown(name)
        )

    def commit_transactional(
        self, context: RequestContext, request: messages.TxnOffsetCommitRequest
    ) -> messages.TxnOffsetCommitResponse:
        """Add offsets to a transaction that has been verified. They are pending until the marker is written."""

        def response(code_of: Callable[[Any], ErrorCode]) -> messages.TxnOffsetCommitResponse:
            return _transactional_response(
                request, lambda name, one: code_of(one) if self._is_there(name, one.partition_index) else _unknown(name)
            )

        try:
            is_modern = context.api_version >= MODERN_TXN_COMMIT_VERSION
            code = ErrorCode.GROUP_ID_NOT_FOUND if is_modern else ErrorCode.ILLEGAL_GENERATION
            group = self._group_to_commit(request.group_id, request.generation_id_or_member_epoch, code)
            self._validate_transactional(group, context, request)
            now_ms = self._table.now_ms()
            records = [
                offset_record(
                    request.group_id,
                    topic.name,
                    one.partition_index,
                    messages.OffsetCommitValue(
                        offset=one.committed_offset,
                        leader_epoch=one.committed_leader_epoch,
                        metadata=one.committed_metadata or "",
                        commit_timestamp=now_ms,
                        topic_id=self._id_of(topic.name),
                    ),
                )
                for topic in request.topics
                for one in topic.partitions
                if self._is_there(topic.name, one.partition_index)
                and self._metadata_error(one.committed_metadata) is ErrorCode.NONE
            ]
            if records:
                encoded = [record.encode() for record in records]
                producer = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch}
                first = self._table.host.append(self._table.host.partition_of(request.group_id), encoded, **producer)
                for number, record in enumerate(records):
                    self._table.apply(record, first + number, request.producer_id)
        except ApiError as error:
            code = error.code
            return response(lambda one: code)
        return response(lambda one: self._metadata_error(one.committed_metadata))

    def _validate_transactional(
        self, group: Group, context: RequestContext, request: messages.TxnOffsetCommitRequest
    ) -> None:
        if isinstance(group, ClassicGroup):
            group.validate_commit(request, is_transactional=True)
            return
        try:
            late = group.validate_commit(request, is_transactional=True, api_version=context.api_version)
            for topic in request.topics if late is not None else ():
                known = self._table.host.topics.get(topic.name)
                for one in topic.partitions:
                    if late is not None and known is not None:
                        epoch = request.generation_id_or_member_epoch
                        _check_assignment_epoch(late, epoch, known.id, one.partition_index)
        except ApiError as error:
            is_known = context.api_version >= MODERN_TXN_COMMIT_VERSION
            if error.code is ErrorCode.STALE_MEMBER_EPOCH and not is_known:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION) from None
            raise

    # OffsetFetch

    def fetch(self, context: RequestContext, request: messages.OffsetFetchRequest) -> messages.OffsetFetchResponse:
        """Respond to OffsetFetch: for one group up to version 7, for several groups from version 8 on."""
        if context.api_version >= GROUPS_VERSION:
            groups = [self._fetch_group(context, one, request.require_stable) for one in request.groups]
            return messages.OffsetFetchResponse(groups=groups)
        single = messages.OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
        if request.topics is not None:
            single.topics = [
                messages.OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
                for one in request.topics
            ]
        found = self._fetch_group(context, single, request.require_stable)

        def result(name: str, one: messages.OffsetFetchResponsePartitions) -> messages.OffsetFetchResponsePartition:
            fields = {field: getattr(one, field) for field in messages.OffsetFetchResponsePartition._fields}
            return messages.OffsetFetchResponsePartition(**fields)

        topics = by_topic(messages.OffsetFetchResponseTopic, found.topics, result)
        return messages.OffsetFetchResponse(error_code=found.error_code, topics=topics)

    def _fetch_group(
        self, context: RequestContext, request: messages.OffsetFetchRequestGroup, require_stable: bool
    ) -> messages.OffsetFetchResponseGroup:
        uses_ids = context.api_version >= TOPIC_ID_VERSION
        group = self._table.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            try:
                group.validate_fetch(request.member_id, request.member_epoch)
            except ApiError as error:
                return messages.OffsetFetchResponseGroup(group_id=request.group_id, error_code=error.code)
        known = self._store.committed.get(request.group_id, {})
        topics = request.topics
        if topics is None:
            numbers: dict[str, list[int]] = {}
            for name, number in known:
                numbers.setdefault(name, []).append(number)
            topics = [self._topic_to_fetch(name, found, uses_ids) for name, found in numbers.items()]
            topics = [topic for topic in topics if not uses_ids or topic.topic_id.int]
        results = []
        for topic in topics:
            known_name: str | None = topic.name
            if uses_ids:
                by_id = self._table.host.topics.by_id(topic.topic_id)
                known_name = None if by_id is None else by_id.name
            partitions = [
                self._fetched(request.group_id, known_name, number, known, require_stable)
                for number in topic.partition_indexes
            ]
            found_topic = messages.OffsetFetchResponseTopics(name=known_name or topic.name, topic_id=topic.topic_id)
            found_topic.partitions = partitions
            results.append(found_topic)
        return messages.OffsetFetchResponseGroup(group_id=request.group_id, topics=results)

    def _topic_to_fetch(self, name: str, numbers: list[int], uses_ids: bool) -> messages.OffsetFetchRequestTopics:
        topic = self._table.host.topics.get(name) if uses_ids else None
        topic_id = NO_TOPIC_ID if topic is None else topic.id
        return messages.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=sorted(numbers))

    def _fetched(
        self,
        group_id: str,
        name: str | None,
        number: int,
        known: dict[tuple[str, int], StoredOffset],
        require_stable: bool,
    ) -> messages.OffsetFetchResponsePartitions:
        code, stored = ErrorCode.NONE, None
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif require_stable and self._store.is_pending(group_id, (name, number)):
            code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            stored = known.get((name, number))
        return messages.OffsetFetchResponsePartitions(
            partition_index=number,
            committed_offset=NO_OFFSET if stored is None else stored.offset,
            committed_leader_epoch=-1 if stored is None else stored.leader_epoch,
            metadata="" if stored is None else stored.metadata,
            error_code=code,
        )

    # OffsetDelete and expiry

    def delete(self, request: messages.OffsetDeleteRequest) -> messages.OffsetDeleteResponse:
        """Respond to OffsetDelete. Only offsets of topics that no member subscribes to are deleted."""
        if not request.group_id:
            return messages.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        pairs = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
        there = [pair for pair in pairs if self._is_there(*pair)]
        group = self._table.groups.get(request.group_id)
        if group is None:
            return messages.OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and not group.is_empty and not group.is_consumer_group:
            return messages.OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
        subscribed = {name for name, _ in there if group.is_subscribed_to(name)}
        gone = (pair for pair in there if pair[0] not in subscribed)
        self._table.commit(request.group_id, self._store.tombstones(request.group_id, gone))

        def result(name: str, one: messages.OffsetDeleteRequestPartition) -> messages.OffsetDeleteResponsePartition:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else ErrorCode.NONE
            if not self._is_there(name, one.partition_index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return messages.OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code)

        return messages.OffsetDeleteResponse(
            topics=by_topic(messages.OffsetDeleteResponseTopic, request.topics, result)
        )

    def drop_topic(self, name: str) -> None:
        """Remove the offsets of a deleted topic."""
        for group_id in self._store.group_ids():
            gone = (key for key in list(self._store.all_partitions(group_id)) if key[0] == name)
            self._table.commit(group_id, self._store.tombstones(group_id, gone))

    def expire(self) -> None:
        """Remove offsets that are older than the retention, and then groups without members and offsets."""
        for group_id in list(dict.fromkeys((*self._table.groups, *self._store.group_ids()))):
            group = self._table.groups.get(group_id)
            known = self._store.committed.get(group_id, {})
            expired = [
                offset_tombstone(group_id, *key)
                for key, stored in known.items()
                if group is not None
                and self._is_expired(group, key[0], stored)
                and not self._store.is_pending(group_id, key)
            ]
            is_bare = len(expired) == len(known) and not self._store.has_open_transaction(group_id)
            if is_bare and group is not None and group.is_empty:
                expired += group.tombstones()
            self._table.commit(group_id, expired)

    def _is_expired(self, group: Group, topic: str, stored: StoredOffset) -> bool:
        if group.is_subscribed_to(topic) and not group.is_empty:
            return False
        base = stored.commit_timestamp
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.is_empty:
                base = base if group.state_timestamp is None else group.state_timestamp
            elif not (group.is_consumer_group and group.state is ClassicState.STABLE):
                return False
        limit = base + self._table.settings.offsets_retention_ms
        return self._table.now_ms() >= (limit if stored.expire_timestamp == NO_EXPIRY else stored.expire_timestamp)


def _check_assignment_epoch(member: ConsumerMember, epoch: int, topic_id: UUID, partition: int) -> None:
    """Raise ApiError (STALE_MEMBER_EPOCH, ILLEGAL_GENERATION) unless the member has owned a partition since this epoch
    (KIP-1251)."""
    since = member.assignment_epoch(topic_id, partition)
    if since is None or epoch < since:
        raise ApiError(member.stale_code, stale_epoch_text(epoch, member.epoch))


def _unknown(name: str) -> ErrorCode:
    """Return the error of a partition that does not exist. Without a name, the request named the topic by an unknown
    id."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID


def _transactional_response(
    request: messages.TxnOffsetCommitRequest, code_of: Callable[[str, Any], ErrorCode]
) -> messages.TxnOffsetCommitResponse:
    def result(name: str, one: Any) -> messages.TxnOffsetCommitResponsePartition:
        code = code_of(name, one)
        return messages.TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)

    return messages.TxnOffsetCommitResponse(
        topics=by_topic(messages.TxnOffsetCommitResponseTopic, request.topics, result)
    )
