# SPDX-License-Identifier: Apache-2.0
"""The consumer of kcodec for the facade of confluent_kafka. It provides decoded records for the compiled `poll`, and
data that a consumer of librdkafka has and kcodec's public consumer does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_INVALID, Message

from kcodec import errors
from kcodec._fast import Delivery, set_confluent_message
from kcodec.client import Consumer as KcodecConsumer
from kcodec.compat._confluent_places import Offsets
from kcodec.compat._confluent_topics import SubscribedTopics
from kcodec.offsets import TopicPartition

#: Maximum number of records of one partition that are decoded at a time.
DECODED_AT_ONCE = 500

set_confluent_message(Message)


class FeedingConsumer(KcodecConsumer):
    """A consumer that returns the decoded records of a request, for the compiled `poll` of the facade.

    As librdkafka does, it retries every refused login, including the first one."""

    def _start(self) -> None:
        self._client.network.retry_all_logins()
        super()._start()

    def request(self, timeout: float) -> Delivery | None:
        """Return the records of the next request, or None if no records arrive in time. Raise the errors of `poll`. A
        partition without a position is reported once. The other partitions are still read."""
        try:
            return self._poll(timeout, lambda: self._core.take_delivery(DECODED_AT_ONCE))
        except (errors.NoOffsetForPartitionError, errors.OffsetOutOfRangeError) as error:
            self._core.assignment.note_error_reported(error.partition)
            raise

    @contextmanager
    def several_requests(self) -> Iterator[None]:
        """Request records several times in this block. Automatic commits include the records only after the block."""
        try:
            self._core.assignment.hold()
            yield
        finally:
            self._core.assignment.release()

    def member_id(self) -> str:
        """Return the id of the member of the group. In the classic protocol, it is empty until the coordinator has sent
        it."""
        return self._run(self._core.selection.member_id())

    def passed(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """Return the positions of partitions, or of all partitions, that have moved past delivered records, and past
        the markers and aborted records that follow them."""
        return self._core.assignment.passed(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read. These are the assigned partitions without those that the program has
        removed."""
        return super().assignment() - self._core.selection.skipped

    def replace_assignment(self, partitions: Iterable[TopicPartition], kept: Iterable[TopicPartition] = ()) -> None:
        """Read exactly these partitions, as a member of a group.

        kept: Partitions whose positions do not change.
        """
        self._run(self._core.selection.replace_assignment(partitions, kept))

    def drop_added(self) -> None:
        """Stop reading the partitions that the group has not assigned."""
        if added := self._core.selection.added:
            kept = self.assignment() - added
            self.replace_assignment(kept, kept)

    def last_watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the log start offset and the high watermark of the last Fetch response, or OFFSET_INVALID if they are
        unknown."""
        state = self._core.assignment.partitions.get(partition)
        known = (-1, -1) if state is None else (state.log_start_offset, state.high_watermark)
        low, high = (OFFSET_INVALID if one < 0 else one for one in known)
        return low, high

    @property
    def is_late(self) -> bool:
        """Whether the last poll was longer ago than max.poll.interval.ms."""
        return self._core.is_late

    def missing_topic(self, topics: SubscribedTopics) -> Any:
        """Return the message about a subscribed topic that does not exist, or None if there is nothing to report."""
        return topics.take(self._core.cluster)
