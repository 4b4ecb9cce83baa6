# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group in a transaction: TxnOffsetCommit, preceded by AddOffsetsToTxn in the old flow.

They take effect with the commit. If the member is no longer in the group, the request is rejected, and the transaction
can only be aborted (KIP-447). From transaction version 2 on, TxnOffsetCommit (version 5) also adds the group to the
transaction. Version 6 names topics by id (KIP-1319): offsets of a topic that was deleted and created again are not
committed for the new topic.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.producer_id import ProducerIdAndEpoch
from kcodec.cluster.retry_driver import UNKNOWN_TOPIC_PATIENCE_SECONDS
from kcodec.cluster.values import LOST_MEMBER_CODES, NO_UUID
from kcodec.errors import BrokerError, DecodeError, TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, call
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.producer.identity import HIGHEST_VERSION
from kcodec.protocol.error_codes import ErrorCode
from kcodec.transactions.errors import Failed, TransactionDisposition, abortable, failure
from kcodec.transactions.requests import OWN_CONCURRENT_BACKOFF, CoordinatorCall, worst_result

#: The first version of TxnOffsetCommit that adds the group by itself, and the first that names a generation.
NEW_FLOW_VERSION, GENERATION_VERSION = 5, 3
#: The first version that names topics by id.
TOPIC_ID_VERSION = 6
#: The first version of Metadata that does not create a topic.
WITHOUT_CREATION_VERSION = 4
#: About the group, its generation, member or instance; not about one partition.
GROUP_CODES = LOST_MEMBER_CODES | {ErrorCode.GROUP_AUTHORIZATION_FAILED}

log = logging.getLogger("kcodec.transactions")
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def check_group_metadata(group: object, stacklevel: int) -> ConsumerGroupMetadata:
    """Return the ConsumerGroupMetadata of an argument. If it is a group id, issue a RuntimeWarning about the missing
    protection."""
    if isinstance(group, str):
        warnings.warn(
            f"offsets of group {group!r} are committed by its id alone: no generation fences them, so after a "
            "rebalance two members may commit for the same partition. Pass the consumer's ConsumerGroupMetadata, "
            "unless its partitions were assigned with assign()",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
        group = ConsumerGroupMetadata(group)
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(f"group_metadata must be a ConsumerGroupMetadata, got {type(group).__name__}")
    if not group.group_id:
        raise ValueError("group_metadata: group_id is empty")
    return group


def commit_offsets(
    cluster: Cluster,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Offsets,
    group: ConsumerGroupMetadata,
    deadline: float,
    *,
    is_new_flow: bool,
    groups: set[str],
    on_no_response: Callable[[], None],
    highest_version: int = HIGHEST_VERSION,
) -> Flow[None]:
    """Send TxnOffsetCommit to the group's coordinator, preceded by AddOffsetsToTxn in the old flow.

    groups: Groups that were already added to the transaction. This call adds the group.

    Raise Failed (resource: group, topic or partition), DeliveryTimeoutError, DecodeError for an incomplete response.
    """
    request_to = functools.partial(
        CoordinatorCall,
        cluster,
        deadline=deadline,
        on_no_response=on_no_response,
        concurrent_backoff=OWN_CONCURRENT_BACKOFF,
    )
    if not is_new_flow and group.group_id not in groups:
        adding = f"AddOffsetsToTxn of {transactional_id!r} for group {group.group_id!r}"
        yield from _add_group(request_to("transaction", transactional_id, adding), producer, group.group_id)
        groups.add(group.group_id)
    doing = f"TxnOffsetCommit of {transactional_id!r} for group {group.group_id!r}"
    topics = _NamedTopics(cluster, offsets, is_new_flow)
    coordinator = request_to("group", group.group_id, doing, is_over=lambda: topics.is_lost)
    needs_generation = group.generation_id >= 0 or group.member_id or group.group_instance_id is not None
    lowest = NEW_FLOW_VERSION if is_new_flow else GENERATION_VERSION if needs_generation else 0
    highest = min(NEW_FLOW_VERSION - 1, highest_version)
    if is_new_flow:
        highest = TOPIC_ID_VERSION if topics.have_ids else NEW_FLOW_VERSION
    request = _request(transactional_id, producer, offsets, group, topics)
    while True:
        try:
            reply = yield from coordinator.send(request, topics.code_of, lowest=lowest, highest=highest)
            break
        except (BrokerError, TransportError) as error:
            if topics.is_unknown_for_long:
                yield from topics.request_unknown(deadline)
                if not topics.is_lost:
                    continue
            lost = topics.lost()
            if lost is None:
                raise
            found_code = ErrorCode.UNKNOWN_TOPIC_ID if topics.have_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            resource: object = lost
            if topics.replaced() is not None:
                text = (
                    f"{doing}: topic {lost!r} was deleted and created again, so these offsets are of a topic that no "
                    "longer exists; abort the transaction, and continue at an offset of the new topic"
                )
            elif topics.missing_partition is not None:
                text = f"{doing}: partition {topics.missing_partition} does not exist; abort the transaction"
                found_code, resource = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics.missing_partition
            elif topics.is_confirmed_missing:
                text = f"{doing}: topic {lost!r} does not exist, or was deleted; abort the transaction"
            else:
                text = f"{doing}: topic {lost!r} was deleted, so its offsets cannot be committed; abort the transaction"
            raise Failed(TransactionDisposition.ABORT, abortable(text, found_code, resource)) from error
    results = list(topics.results(reply.message))
    code, partition = worst_result(results)
    if code:
        resources: dict[int, object] = {
            **dict.fromkeys(GROUP_CODES, group.group_id),
            ErrorCode.TOPIC_AUTHORIZATION_FAILED: partition and partition.topic,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactional_id,
        }
        raise failure("TxnOffsetCommit", code, doing, resource=resources.get(code, partition))
    if missing := offsets.keys() - {partition for _, partition in results}:
        raise DecodeError(f"{doing}: the response has no result for {min(missing)}")
    groups.add(group.group_id)


def _add_group(coordinator: CoordinatorCall, producer: ProducerIdAndEpoch, group_id: str) -> Flow[None]:
    from kcodec.protocol.messages.transactions import AddOffsetsToTxnRequest

    request = AddOffsetsToTxnRequest(
        transactional_id=coordinator.key,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id=group_id,
    )
    reply = yield from coordinator.send(request, lambda message: int(message.error_code))
    code = reply.message.error_code
    if code:
        resource = group_id if code == ErrorCode.GROUP_AUTHORIZATION_FAILED else coordinator.key
        raise failure("AddOffsetsToTxn", code, coordinator.doing, resource=resource)


class _NamedTopics:
    """The topics of one call by name and id. The ids are those in the offsets, or those at the beginning of the call,
    because they identify the topics that were read.

    have_ids: Whether the metadata has the id of every topic. A producer has the ids of topics to which it writes, and
              of topics that a consumer of the same client reads. Otherwise the request uses names, as up to version 5.
    is_confirmed_missing: Whether a broker has reported that the partition, which the coordinator does not know, does
              not exist. After UNKNOWN_TOPIC_PATIENCE_SECONDS, this is requested from any broker, unless the metadata
              shows that the topic is missing. The request does not create the topic.
    missing_partition: Partition that does not exist, although its topic exists.
    """

    def __init__(self, cluster: Cluster, offsets: Offsets, is_new_flow: bool) -> None:
        self._cluster = cluster
        names = {partition.topic for partition in offsets}
        given = {partition.topic: one.topic_id for partition, one in offsets.items() if one.topic_id is not None}
        found = {name: given.get(name) or cluster.topic_id(name) for name in names} if is_new_flow else {}
        self._ids: dict[str, UUID] = {name: known for name, known in found.items() if known is not None}
        self.have_ids = len(self._ids) == len(names)
        if self.have_ids:
            cluster.add_topics(names)
        else:
            self._ids.clear()
        self._names = {known: name for name, known in self._ids.items()}
        self.missing_partition: TopicPartition | None = None
        #: A partition that the coordinator has not known since this time.
        self._unknown: tuple[TopicPartition, float] | None = None
        self.is_confirmed_missing = False

    def id_of(self, name: str) -> UUID:
        """Return the id to send, or a zero id if the request names its topics."""
        return self._ids.get(name, NO_UUID)

    def replaced(self) -> str | None:
        """Return the name of a topic that now has another id."""
        return next(
            (name for name, known in self._ids.items() if self._cluster.topic_id(name) not in (None, known)), None
        )

    def lost(self) -> str | None:
        """Return the name of a topic that was deleted, or deleted and created again. A topic counts as deleted if the
        coordinator has not known it for UNKNOWN_TOPIC_PATIENCE_SECONDS, and the metadata lacks it, too."""
        if (replaced := self.replaced()) is not None or self._unknown is None:
            return replaced
        (name, _), since = self._unknown
        if self._cluster.clock() - since < UNKNOWN_TOPIC_PATIENCE_SECONDS:
            return None
        return name if self.is_confirmed_missing or self._cluster.is_missing(name) else None

    @property
    def is_lost(self) -> bool:
        """Whether the request is not sent again, because a topic is lost, or because a broker must first report whether
        it exists."""
        return self.is_unknown_for_long or self.lost() is not None

    @property
    def is_unknown_for_long(self) -> bool:
        """Whether the coordinator has not known a partition for UNKNOWN_TOPIC_PATIENCE_SECONDS, and the metadata does
        not show whether it exists."""
        if self._unknown is None or self.is_confirmed_missing or self.lost() is not None:
            return False
        return self._cluster.clock() - self._unknown[1] >= UNKNOWN_TOPIC_PATIENCE_SECONDS

    def request_unknown(self, deadline: float) -> Flow[None]:
        """Request from any broker whether the unknown partition exists, without creating its topic."""
        from kcodec.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        assert self._unknown is not None
        partition, now = self._unknown[0], self._cluster.clock()
        self._unknown = partition, now  # if it exists, or no broker responds, it is requested again later
        request = MetadataRequest(topics=[MetadataRequestTopic(name=partition.topic)], allow_auto_topic_creation=False)
        timeout = min(self._cluster.times.request, max(deadline - now, 0.0))
        try:
            reply = yield from call(ANY_NODE, request, timeout=timeout, lowest=WITHOUT_CREATION_VERSION)
        except (TransportError, UnsupportedError) as error:
            log.info("the metadata of topic %r could not be fetched: %s", partition.topic, error)
            return
        for topic in reply.message.topics:
            numbers = {each.partition_index for each in topic.partitions}
            if topic.error_code == ErrorCode.NONE and numbers and partition.partition not in numbers:
                self.missing_partition = partition
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or self.missing_partition is not None:
                self.is_confirmed_missing = True
                self._unknown = partition, now - UNKNOWN_TOPIC_PATIENCE_SECONDS

    def results(self, message: Any) -> Iterator[tuple[int, TopicPartition]]:
        """Return the results of a response of any version."""
        for topic in message.topics:
            name = topic.name or self._names.get(topic.topic_id, "")
            for result in topic.partitions:
                yield result.error_code, TopicPartition(name, result.partition_index)

    def code_of(self, message: Any) -> int:
        """Return the worst error code of a response. If the coordinator does not know a topic, request metadata. It
        does not know the topic yet, or the topic was deleted."""
        code, partition = worst_result(self.results(message))
        if code not in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) or partition is None:
            self._unknown, self.is_confirmed_missing = None, False
            return code
        self._cluster.request_update(f"the coordinator does not know {partition}")
        if self._unknown is None or self._unknown[0] != partition:
            self._unknown = partition, self._cluster.clock()
        return code


def _request(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Offsets,
    group: ConsumerGroupMetadata,
    named: _NamedTopics,
) -> Any:
    from kcodec.protocol.messages.transactions import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
    )

    topics: dict[str, list[Any]] = {}
    for (topic, partition), found in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                committed_metadata=found.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, topic_id=named.id_of(name), partitions=each)
            for name, each in topics.items()
        ],
    )
