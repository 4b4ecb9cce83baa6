# SPDX-License-Identifier: Apache-2.0
"""The messages with an error that `poll` and `consume` of a confluent_kafka consumer return in place of records."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError

from kcodec import errors
from kcodec.compat._confluent_errors import kafka_error
from kcodec.compat._confluent_feeding import FeedingConsumer
from kcodec.compat._confluent_messages import error_message
from kcodec.compat._confluent_reached import ReachedOffsets
from kcodec.compat._confluent_topics import SubscribedTopics
from kcodec.offsets import TopicPartition

#: Minimum time between two reports of the same persistent error of the group or of the client.
REPORT_SECONDS = 1.0


class ConsumerProblems:
    """The problems of one consumer that a message reports to the program. Each method returns None if there is
    nothing to report.

    topics: The topics of `subscribe`, of which missing ones are reported.
    """

    def __init__(self, reached: ReachedOffsets, *, is_committed_only: bool) -> None:
        self.topics = SubscribedTopics()
        self._reached = reached
        self._is_committed_only = is_committed_only
        #: Whether a late call of `poll` was reported, and records were not requested since.
        self._is_late_reported = False
        #: The texts of persistent errors, and the monotonic time at which each one is reported again.
        self._reported: dict[str, float] = {}

    def of_subscription(self, consumer: FeedingConsumer) -> Any:
        """Return a message about a late poll or a missing topic, but only once for each problem."""
        is_reported, self._is_late_reported = self._is_late_reported, consumer.is_late
        if self._is_late_reported and not is_reported:
            text = (
                "poll() was called later than max.poll.interval.ms after the last call, so the consumer left its group"
            )
            return error_message(KafkaError(KafkaError._MAX_POLL_EXCEEDED, text), text)
        return consumer.missing_topic(self.topics)

    def of_error(self, error: errors.KcodecError) -> Any:
        """Return the message for an error of a partition, of the group or of the client. As in librdkafka, its value is
        the text of the error. An error without a partition persists, and is reported once in REPORT_SECONDS."""
        partition = _partition_of(error)
        if partition is None and not self._is_news(str(error)):
            return None
        found = kafka_error(error)
        if partition is None:
            return error_message(found, found.str())
        offset = getattr(error, "offset", None)
        return error_message(found, found.str(), *partition, OFFSET_INVALID if offset is None else offset)

    def _is_news(self, text: str) -> bool:
        """Return True if no error with this text was reported within REPORT_SECONDS, and note that it is reported
        now."""
        now = time.monotonic()
        self._reported = {each: until for each, until in self._reported.items() if now < until}
        if text in self._reported:
            return False
        self._reported[text] = now + REPORT_SECONDS
        return True

    def end_of_partition(self, consumer: FeedingConsumer) -> Any:
        """Return a message for a partition whose end was reached (_PARTITION_EOF), once for each end."""
        reached = self._reached
        for partition, state in consumer.health().partitions.items():
            lag = state.stable_lag if self._is_committed_only and state.stable_lag is not None else state.lag
            position = state.position
            if lag or lag is None or position is None or state.buffered_bytes:
                continue  # the end was not reached
            if reached.ends.get(partition) == position:
                continue  # it was reported before
            known = reached.positions.get(partition)
            if known is not None and known.offset > position:
                continue  # the program has moved the position, and this is still the previous one
            reached.ends[partition] = position
            text = f"the end of {partition} was reached at offset {position}"
            error = KafkaError(KafkaError._PARTITION_EOF, text)
            return error_message(error, text, partition.topic, partition.partition, position)
        return None


def _partition_of(error: errors.KcodecError) -> TopicPartition | None:
    """Return the partition to which an error belongs, or None."""
    place = getattr(error, "topic_partition", None) or getattr(error, "partition", None)
    resource = getattr(error, "resource", None)
    return resource if place is None and isinstance(resource, TopicPartition) else place
