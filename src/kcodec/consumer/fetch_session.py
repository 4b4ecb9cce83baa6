# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions: a broker remembers the partitions of a consumer, so that requests only name changes (KIP-227).

A full request (epoch 0) names all partitions and opens a session. Later requests name partitions that are new, have
another offset, or leave. If a broker has forgotten the session, or is at another epoch, a full request follows. Source:
Kafka's FetchSessionHandler and FetchMetadata. From version 13 on topics have ids (KIP-516); a topic with a new id
leaves the session and enters it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

FIRST_WITH_SESSIONS = 7
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_LAST_EPOCH = 12
NO_SESSION = 0
#: Epochs of requests: the first of a new session, and that of a request without a session.
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
LAST_EPOCH = 0x7FFFFFFF


class PartitionRequest(NamedTuple):
    """A partition in a request: its offset and maximum size. Unknown epochs are -1."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    last_epoch: int
    max_bytes: int

    def message(self, partition: int, version: int) -> FetchPartition:
        """Return it as a struct of the request."""
        return FetchPartition(
            partition=partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=self.offset,
            last_fetched_epoch=self.last_epoch if version >= FIRST_WITH_LAST_EPOCH else -1,
            partition_max_bytes=self.max_bytes,
        )


class FetchSession:
    """The session with one broker. Call `request`, then `accept`, `refuse` or `fail`, in turn.

    is_kept: False for a single request without a session.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self.session_id = NO_SESSION
        self._first_epoch = INITIAL_EPOCH if is_kept else FINAL_EPOCH
        self.epoch = self._first_epoch
        self._partitions: dict[TopicPartition, PartitionRequest] = {}
        self._by_id: dict[int, str] = {}
        self._sent_epoch = INITIAL_EPOCH
        self._has_ids = False

    def request(
        self, partitions: Mapping[TopicPartition, PartitionRequest], version: int, **fields: Any
    ) -> FetchRequest:
        """Return a request for these partitions, with the other fields given."""
        has_ids = version >= FIRST_WITH_TOPIC_IDS
        if version < FIRST_WITH_SESSIONS or has_ids != self._has_ids:
            self.epoch = self._first_epoch  # a session has either names or ids, so the old session ends
        self._has_ids = has_ids
        # Partitions of one topic have different ids while it is being replaced.
        self._by_id = {one.topic_id.int: partition.topic for partition, one in partitions.items()} if has_ids else {}
        changed, left = self._changes(partitions)
        self._sent_epoch = self.epoch
        self._partitions = dict(partitions)
        # The key is the integer of the topic id, because the hash of a UUID is a slow Python function.
        topics: dict[tuple[str, int], FetchTopic] = {}
        for partition, one in changed:
            key = partition.topic, one.topic_id.int
            if (topic := topics.get(key)) is None:
                topic = topics[key] = FetchTopic(topic=partition.topic, topic_id=one.topic_id, partitions=[])
            topic.partitions.append(one.message(partition.partition, version))
        gone: dict[tuple[str, int], ForgottenTopic] = {}
        for partition, one in left:
            key = partition.topic, one.topic_id.int
            if (forgotten := gone.get(key)) is None:
                forgotten = ForgottenTopic(topic=partition.topic, topic_id=one.topic_id, partitions=[])
                gone[key] = forgotten
            forgotten.partitions.append(partition.partition)
        if version >= FIRST_WITH_SESSIONS:
            fields |= {"session_id": self.session_id, "session_epoch": self.epoch}
        return FetchRequest(topics=list(topics.values()), forgotten_topics_data=list(gone.values()), **fields)

    def _changes(
        self, partitions: Mapping[TopicPartition, PartitionRequest]
    ) -> tuple[list[tuple[TopicPartition, PartitionRequest]], list[tuple[TopicPartition, PartitionRequest]]]:
        """Return the partitions to name, and those to forget."""
        if self.epoch <= INITIAL_EPOCH:
            return list(partitions.items()), []
        known = self._partitions
        changed = [
            (partition, one)
            for partition, one in partitions.items()
            if (before := known.get(partition)) is not one and before != one
        ]
        left = [
            (partition, one)
            for partition, one in known.items()
            if (now := partitions.get(partition)) is None
            or (self._has_ids and now.topic_id is not one.topic_id and now.topic_id != one.topic_id)
        ]
        return changed, left

    def accept(self, message: Any) -> tuple[list[tuple[TopicPartition, Any]], str | None]:
        """Return the partitions of a response and None. If the session cannot continue with the response, return the
        reason instead; the response is then not used, and everything is requested again."""
        found = []
        for topic in message.responses:
            name = self._by_id.get(topic.topic_id.int) if self._has_ids else topic.topic
            for data in topic.partitions:
                partition = TopicPartition(name or "", data.partition_index)
                if name is None or partition not in self._partitions:
                    self.fail()
                    return [], f"{name or topic.topic_id} partition {data.partition_index} was not requested"
                found.append((partition, data))
        if self._sent_epoch <= INITIAL_EPOCH:
            if len(found) < len(self._partitions):
                self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
                if not found and message.throttle_time_ms > 0:
                    return [], None  # the broker only requests a pause (throttle time)
                return [], f"{len(self._partitions)} partitions were requested, but the response has {len(found)}"
            self.session_id = message.session_id
            self.epoch = INITIAL_EPOCH if message.session_id == NO_SESSION else 1
        elif message.session_id == NO_SESSION:
            self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        else:
            self.epoch = 1 if self._sent_epoch == LAST_EPOCH else self._sent_epoch + 1
        return found, None

    def refuse(self, code: int) -> None:
        """Handle a response that is an error as a whole."""
        self.fail()
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION

    def fail(self) -> None:
        """Handle a missing or unusable response: the next request closes the session and opens a new one."""
        self.epoch = INITIAL_EPOCH
