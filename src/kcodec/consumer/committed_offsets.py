# SPDX-License-Identifier: Apache-2.0
"""Committed offsets of a group: fetched (OffsetFetch 1 to 10) and committed (OffsetCommit 2 to 10).

Fetched offsets are stable: while a transaction that commits offsets of a partition is open, the coordinator responds
UNSTABLE_OFFSET_COMMIT (KIP-447), and the request is repeated until the transaction has ended or the deadline has
passed. A reader that began at the previous offset would read the records of the transaction twice. Brokers before 2.5
do
not return this error.

Coordinators that moved or load are looked up again, topics are named by id if brokers know them (version 10), and a
KIP-848 member is checked by its epoch (version 9). Kafka: ConsumerCoordinator, CommitRequestManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_driver import (
    ApiHandler,
    CallContext,
    Deadline,
    ItemResult,
    Outcome,
    by_topic,
    partition_codes,
    request_items,
)
from kcodec.cluster.retry_routes import CoordinatorOf
from kcodec.cluster.values import LOST_MEMBER_CODES, NO_UUID
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError, DeliveryTimeoutError, KcodecError
from kcodec.flow import ByVersion, Flow
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, note_final
from kcodec.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kcodec.protocol.schema import HIGHEST_VERSION

V = TypeVar("V")
#: OffsetFetch: from here on RequireStable; several groups; topic ids. OffsetCommit: topic ids.
STABLE_VERSION, GROUPS_VERSION, TOPIC_ID_VERSION = 7, 8, 10
#: The first version of OffsetCommit that knows static members.
_STATIC_VERSION = 7
#: Errors about the group or the member, whatever partition they came with.
GROUP_CODES = LOST_MEMBER_CODES | {ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED}
#: The group has removed the member. A consumer joins again by itself, in its next poll.
REMOVED_CODES = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH})
REMOVAL_CAUSES = (
    "usual causes are that the program did not poll within max_poll_interval_ms, or that no heartbeat arrived within"
    " session_timeout_ms"
)
# The coordinator does not know a topic, or knows it by another id.
_UNKNOWN_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
#: In place of partitions: all that the group has.
ALL = TopicPartition("", -1)

#: The member that commits or fetches, or a function that returns it, as its epoch may change during a request.
Member = ConsumerGroupMetadata | Callable[[], ConsumerGroupMetadata]


class CommittedOffsets:
    """The offsets of one group, for a consumer."""

    def __init__(self, cluster: Cluster, group_id: str, settings: ConsumerSettings) -> None:
        self.group_id = group_id
        self._cluster = cluster
        #: Partitions whose offset was pending in the last response (UNSTABLE_OFFSET_COMMIT).
        self.unstable: set[TopicPartition] = set()
        self._context = CallContext(cluster, settings.default_api_timeout, int, DeliveryTimeoutError)

    def fetch(
        self, partitions: Iterable[TopicPartition], timeout: float, member: Member | None = None
    ) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Return the committed offsets, None if none exists. Wait for those that an open transaction commits.

        member: Only for a KIP-848 group, whose coordinator then checks the epoch.

        Raise BrokerError (for the group: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH and others; `resource` names it), or
        DeliveryTimeoutError, whose text names an open transaction if there is one.
        """
        deadline = self._context.deadline(timeout)
        outcome = yield from self.outcome(list(partitions), deadline, member)
        return value_of(outcome, self.group_id)

    def outcome(
        self,
        partitions: list[TopicPartition],
        deadline: Deadline,
        member: Member | None = None,
        *,
        on_result: Callable[[TopicPartition, OffsetAndMetadata | None], None] = lambda partition, found: None,
        is_needed: Callable[[TopicPartition], bool] = lambda partition: True,
        causes: dict[TopicPartition, KcodecError] | None = None,
    ) -> Flow[Outcome[TopicPartition, OffsetAndMetadata | None]]:
        """Fetch committed offsets, and return errors next to results. For the arguments, see `request_items`."""

        def send(
            metadata: ConsumerGroupMetadata | None, items: list[TopicPartition]
        ) -> Flow[Outcome[TopicPartition, Any]]:
            self.unstable.difference_update(items)
            handler = offset_fetch_handler(self._cluster, self.group_id, items, member=metadata, unstable=self.unstable)
            return request_items(
                *(self._context, items, handler, deadline), on_result=stable, is_needed=is_needed, causes=causes
            )

        def stable(partition: TopicPartition, found: OffsetAndMetadata | None) -> None:
            self.unstable.discard(partition)
            on_result(partition, found)

        return (yield from _as_member(member, partitions, deadline, send))

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: Member,
        timeout: float,
        limit: float | None = None,
        *,
        topic_ids: Mapping[TopicPartition, UUID] | None = None,
    ) -> Flow[None]:
        """Commit positions: the next offsets to read, not those of the last records.

        timeout:   Remaining time in seconds.
        limit:     Time limit of the whole call in seconds, for errors, if the call has waited before.
        topic_ids: Ids of the topics to which the offsets belong, if they are known. The others belong to the topics
                   that the metadata contains now.

        The request is repeated until there is a response, because a repeat changes nothing. Raise BrokerError with one
        of GROUP_CODES if the group no longer accepts commits of this member. Raise BrokerError for one partition if its
        commit is refused (OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_TOPIC_OR_PARTITION); the
        others are committed. Raise AuthorizationError or DeliveryTimeoutError.
        """
        deadline = self._context.deadline(timeout)
        if limit is not None:
            deadline = replace(deadline, limit=limit)

        def send(
            metadata: ConsumerGroupMetadata | None, items: list[TopicPartition]
        ) -> Flow[Outcome[TopicPartition, None]]:
            some = {partition: offsets[partition] for partition in items}
            handler = offset_commit_handler(self._cluster, self.group_id, some, metadata, topic_ids=ids)
            return request_items(self._context, items, handler, deadline)

        present = {partition: self._cluster.topic_id(partition.topic) for partition in offsets}
        ids = {**{partition: found for partition, found in present.items() if found is not None}, **(topic_ids or {})}
        outcome = yield from _as_member(group_metadata, list(offsets), deadline, send)
        for error in outcome.errors.values():
            if isinstance(error, BrokerError) and error.code in REMOVED_CODES:
                error.reason += f"; {REMOVAL_CAUSES}"
        value_of(outcome, self.group_id)


def _as_member(
    member: Member | None,
    partitions: list[TopicPartition],
    deadline: Deadline,
    send: Callable[[ConsumerGroupMetadata | None, list[TopicPartition]], Flow[Outcome[TopicPartition, V]]],
) -> Flow[Outcome[TopicPartition, V]]:
    """Send the request. Repeat the items that were rejected for an outdated member epoch with the new epoch."""
    done: Outcome[TopicPartition, V] = Outcome("")
    items = partitions
    while True:
        metadata = member() if callable(member) else member
        outcome = yield from send(metadata, items)
        done = Outcome(outcome.doing, {**done.results, **outcome.results}, outcome.errors)
        items = [
            item for item, error in outcome.errors.items() if getattr(error, "code", 0) == ErrorCode.STALE_MEMBER_EPOCH
        ]
        if not items or deadline.left <= 0 or not callable(member) or member() == metadata:
            return done


def value_of(outcome: Outcome[TopicPartition, V], group_id: str) -> dict[TopicPartition, V]:
    """Return the results, or raise the first error. Its `resource` is the group, topic or partition."""
    for item, error in outcome.errors.items():
        if isinstance(error, BrokerError) and error.code in GROUP_CODES:
            error.resource = group_id
            if error.code == ErrorCode.FENCED_INSTANCE_ID:
                error.remedy = "stop"  # the other member stays in the group, whatever this member aborts
        elif isinstance(error, BrokerError):
            note_final(error)  # the remedies of a transaction do not apply to offsets that are committed outside of one
        if isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error.resource = item.topic
    return outcome.first_value()


class _GroupCoordinator(CoordinatorOf):
    """The group's coordinator. It requests metadata if the coordinator knows a topic by another id."""

    def __init__(self, cluster: Cluster, group_id: str, unstable: set[TopicPartition] | None = None) -> None:
        super().__init__(cluster, "group", group_id)
        self._metadata = cluster
        self._unstable = unstable

    def lost(self, item: object, code: int | None) -> None:
        """See Coordinator."""
        super().lost(item, code)
        if code == ErrorCode.UNSTABLE_OFFSET_COMMIT and self._unstable is not None and isinstance(item, TopicPartition):
            self._unstable.add(item)
        if code in _UNKNOWN_TOPIC:
            self._metadata.request_update(f"the coordinator does not know {item}")


class _RequestedTopics:
    """The topics of a request by name and id. A response is read with the ids of its request."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[TopicPartition, UUID] | None = None,
    ) -> None:
        self._cluster = cluster
        self._names: dict[UUID, str] = {}
        given = topic_ids or {}
        present = {topic: cluster.topic_id(topic) for topic in {partition.topic for partition in partitions}}
        self.have_ids = None not in present.values()
        #: For a commit: the offsets belong to the topics with these ids, and to none that is created later with the
        #: same name. They are the given ids, or those at the time of the call.
        self._ids = {each: given.get(each) or present[each.topic] or NO_UUID for each in partitions}

    def is_replaced(self, partition: TopicPartition) -> bool:
        """Return whether the topic of a partition has another id than the one for a commit."""
        return self._cluster.topic_id(partition.topic) not in (None, self._ids[partition])

    def by_commit_id(self, partitions: Iterable[TopicPartition]) -> dict[tuple[str, UUID], list[int]]:
        """Return the partitions of each topic for a commit, by its name and id. Partitions of one name can belong to
        different topics."""
        found: dict[tuple[str, UUID], list[int]] = {}
        for partition in partitions:
            topic_id = self._ids[partition]
            self._names[topic_id] = partition.topic
            found.setdefault((partition.topic, topic_id), []).append(partition.partition)
        return found

    def id_of(self, topic: str) -> UUID:
        """Return the id of a topic for a request, or a zero id, which no coordinator knows."""
        found = self._cluster.topic_id(topic) or NO_UUID
        self._names[found] = topic
        return found

    def name_of(self, topic: Any) -> str:
        """Return the name of a topic in a response."""
        return str(topic.name or self._names.get(topic.topic_id, ""))


def offset_fetch_handler(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition],
    *,
    member: ConsumerGroupMetadata | None = None,
    require_stable: bool = True,
    lowest: int = 1,
    unstable: set[TopicPartition] | None = None,
) -> ApiHandler[TopicPartition, Any]:
    """Return the handler of OffsetFetch for `request_items`. Its result is an OffsetAndMetadata or None for each
    partition, or a dict of them for the item ALL.

    require_stable: Applies if the version of the coordinator has it; `lowest=7` makes it mandatory.
    unstable:       Receives the partitions whose offset is pending.
    """
    requested = list(partitions)
    topics = _RequestedTopics(cluster, requested)
    is_all = requested == [ALL]

    def request(some: list[TopicPartition], until: Deadline) -> ByVersion:
        return ByVersion(
            OffsetFetchRequest,
            lambda version: _fetch_request(
                group_id,
                None if is_all else some,
                topics,
                member,
                require_stable and version >= STABLE_VERSION,
                version,
            ),
        )

    return ApiHandler(
        f"fetch committed offsets of group {group_id!r} in",
        _GroupCoordinator(cluster, group_id, unstable),
        request,
        lambda response, some: _all_fetched(response, topics) if is_all else _fetched(response, some, topics),
        named=lambda item: "all its partitions" if is_all else str(item),
        lowest=max(lowest, 2) if is_all else lowest,
        highest=HIGHEST_VERSION if topics.have_ids and not is_all else TOPIC_ID_VERSION - 1,
    )


def _fetch_request(
    group_id: str,
    partitions: list[TopicPartition] | None,
    topics: _RequestedTopics,
    member: ConsumerGroupMetadata | None,
    require_stable: bool,
    version: int,
) -> Any:
    requested = None if partitions is None else by_topic(partitions).items()
    if version < GROUPS_VERSION:
        few = OffsetFetchRequestTopic
        return OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if requested is None
            else [few(name=topic, partition_indexes=numbers) for topic, numbers in requested],
            require_stable=require_stable,
        )
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        member_id=member.member_id if member is not None and member.member_id else None,
        member_epoch=member.generation_id if member is not None and member.member_id else -1,
        topics=None
        if requested is None
        else [
            OffsetFetchRequestTopics(name=topic, topic_id=topics.id_of(topic), partition_indexes=numbers)
            for topic, numbers in requested
        ],
    )
    return OffsetFetchRequest(groups=[group], require_stable=require_stable)


def _partitions_of(response: Any, topics: _RequestedTopics) -> Iterator[tuple[TopicPartition, ItemResult]]:
    """Read the partitions of a response of any version."""
    topics_found = response.groups[0].topics if response.groups else response.topics
    for topic in topics_found:
        for one in topic.partitions:
            found = OffsetAndMetadata(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
            value = None if one.committed_offset < 0 else found
            yield TopicPartition(topics.name_of(topic), one.partition_index), ItemResult(one.error_code, value)


def _code(response: Any) -> int:
    return int(response.groups[0].error_code if response.groups else response.error_code)


def _fetched(
    response: Any, some: list[TopicPartition], topics: _RequestedTopics
) -> Iterable[tuple[TopicPartition, ItemResult]]:
    code = _code(response)
    return ((partition, ItemResult(code)) for partition in some) if code else _partitions_of(response, topics)


def _all_fetched(response: Any, topics: _RequestedTopics) -> Iterator[tuple[TopicPartition, ItemResult]]:
    code, found = _code(response), {}
    for partition, result in () if code else _partitions_of(response, topics):
        code = code or result.code
        found[partition] = result.value
    yield ALL, ItemResult(code, found)


def _committed(
    response: Any, some: list[TopicPartition], topics: _RequestedTopics
) -> Iterator[tuple[TopicPartition, ItemResult]]:
    """Yield the results of a commit. If a topic was deleted and created again, a repeat cannot help. If it was only
    deleted, repeats until the deadline would delay the next commits and rebalances of all other topics."""
    for partition, result in partition_codes(response, some, topics.name_of):
        if result.code == ErrorCode.UNKNOWN_TOPIC_ID and topics.is_replaced(partition):
            text = "the topic was deleted and created again, and the offset is that of the former topic"
            yield partition, ItemResult(ErrorCode.INCONSISTENT_TOPIC_ID, None, text)
        elif result.code == ErrorCode.UNKNOWN_TOPIC_ID:
            yield partition, ItemResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, result.message)
        else:
            yield partition, result


def offset_commit_handler(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group_metadata: ConsumerGroupMetadata | None = None,
    *,
    topic_ids: Mapping[TopicPartition, UUID] | None = None,
) -> ApiHandler[TopicPartition, None]:
    """Return the handler of OffsetCommit for `request_items`. If `group_metadata` is None, the group is empty and no
    member is checked. For `topic_ids`, see `CommittedOffsets.commit`; the ids in the offsets override them."""
    given = {partition: one.topic_id for partition, one in offsets.items() if one.topic_id is not None}
    topics = _RequestedTopics(cluster, offsets, {**(topic_ids or {}), **given})
    metadata = group_metadata or ConsumerGroupMetadata(group_id)

    def of(topic: str, number: int) -> Any:
        found = offsets[TopicPartition(topic, number)]
        return OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=found.offset,
            committed_leader_epoch=found.leader_epoch,
            committed_metadata=found.metadata,
        )

    return ApiHandler(
        f"commit offset of group {group_id!r} in",
        _GroupCoordinator(cluster, group_id),
        lambda some, until: OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=metadata.generation_id,
            member_id=metadata.member_id,
            group_instance_id=metadata.group_instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic, topic_id=topic_id, partitions=[of(topic, number) for number in numbers]
                )
                for (topic, topic_id), numbers in topics.by_commit_id(some).items()
            ],
        ),
        lambda response, some: _committed(response, some, topics),
        final=frozenset({ErrorCode.INCONSISTENT_TOPIC_ID}),
        lowest=2 if metadata.group_instance_id is None else _STATIC_VERSION,
        highest=HIGHEST_VERSION if topics.have_ids else TOPIC_ID_VERSION - 1,
    )
