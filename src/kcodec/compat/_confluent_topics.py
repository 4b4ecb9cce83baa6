# SPDX-License-Identifier: Apache-2.0
"""Subscribed topics that do not exist. `poll` of a confluent_kafka consumer reports them as messages with an error.

As in librdkafka (rd_kafka_propagate_consumer_topic_errors), a topic is reported once. It is reported again if it has
existed and is deleted. For a pattern that matches no topic, the text of the pattern is reported.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError

from kcodec.compat._confluent_messages import error_message
from kcodec.protocol.error_codes import ErrorCode

#: The partition that librdkafka sets in a message about a whole topic.
NO_PARTITION = 0


class SubscribedTopics:
    """The topics and patterns that a consumer has subscribed to, with those that must be reported."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._missing: frozenset[str] = frozenset()
        self._waiting: deque[str] = deque()
        #: Number of the metadata response that was checked last.
        self._checked = -1

    def subscribe(self, topics: list[str]) -> None:
        """Check these topics from now on. A name that begins with ^ is a pattern for the beginning of names."""
        self._names = topics
        self._patterns = {one: re.compile(one) for one in topics if one.startswith("^")}
        self._waiting = deque(one for one in self._waiting if one in topics)
        self._checked = -1

    def take(self, cluster: Any) -> Any:
        """Return the message about a topic that does not exist, or None if there is nothing to report.

        cluster: Metadata of the consumer.
        """
        if cluster.updates != self._checked:
            self._checked = cluster.updates
            missing = frozenset(one for one in self._names if self._is_missing(one, cluster))
            self._waiting.extend(one for one in self._names if one in missing - self._missing)
            self._missing = missing
        if not self._waiting:
            return None
        name = self._waiting.popleft()
        what = f"no topic matches the pattern {name!r}" if name in self._patterns else f"topic {name!r} does not exist"
        text = f"subscribe: {what}; it is read once it exists, so check the name"
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, text)
        return error_message(error, text, name, NO_PARTITION, OFFSET_INVALID)

    def _is_missing(self, name: str, cluster: Any) -> bool:
        """Return whether a topic does not exist, or a pattern matches no topic. If the metadata does not show this,
        return the previous state."""
        if (pattern := self._patterns.get(name)) is not None:
            if not cluster.updates_of_all:
                return name in self._missing
            return not any(pattern.match(one) for one, topic in list(cluster.topics.items()) if topic.partitions)
        topic = cluster.topics.get(name)
        if topic is not None:
            return bool(topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return bool(self._patterns and cluster.updates_of_all) or name in self._missing
