# SPDX-License-Identifier: Apache-2.0
"""The consumer of kcodec as the facade of confluent_kafka uses it: decoded records for the compiled `poll`, and what
librdkafka shows of a consumer and kcodec's public consumer does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Message

from kcodec._fast import Delivery, set_confluent_message
from kcodec.client import Consumer as KcodecConsumer
from kcodec.compat._confluent_places import Offsets
from kcodec.compat._confluent_topics import SubscribedTopics
from kcodec.offsets import TopicPartition

#: Records that are decoded at a time, of one partition.
DECODED_AT_ONCE = 500

set_confluent_message(Message)


class FeedingConsumer(KcodecConsumer):
    """A consumer that hands out what a request has decoded, for the compiled `poll` of the facade."""

    def request(self, timeout: float) -> Delivery | None:
        """Return the records of the next request, None if none arrived in time. Raise as `poll` does."""
        return self._poll(timeout, lambda: self._core.take_delivery(DECODED_AT_ONCE))

    def passed(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """Return the positions of partitions, or of all, that have moved past delivered records and the markers and
        aborted records after them."""
        return self._core.assignment.passed(partitions)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Read partitions in addition to those that the group assigns."""
        self._run(self._core.assign_to_member(partitions))

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions that were added."""
        self._run(self._core.unassign_from_member(partitions))

    @property
    def added(self) -> frozenset[TopicPartition]:
        """The partitions that were added."""
        return self._core.added

    @property
    def is_late(self) -> bool:
        """Whether the last poll was longer ago than max.poll.interval.ms."""
        return self._core.is_late

    def missing_topic(self, topics: SubscribedTopics) -> Any:
        """Return the message of a subscribed topic that does not exist, None if there is nothing to report."""
        return topics.take(self._core.cluster)
