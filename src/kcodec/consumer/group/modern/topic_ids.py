# SPDX-License-Identifier: Apache-2.0
"""The names of topics that are known by their ids (KIP-516): from the client's metadata, else asked for by id.

With a subscription by pattern nobody else asks for these topics, and an answer by id brings the leaders along.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from uuid import UUID

from kcodec.cluster.metadata import Cluster
from kcodec.errors import TransportError, UnsupportedError
from kcodec.flow import ANY_NODE, Flow, call

log = logging.getLogger("kcodec.client")
#: The first version of Metadata that finds a topic by its id alone.
BY_ID_VERSION = 12


class TopicNames:
    """Remembers the names of some topics, as metadata may forget or not yet have them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names: dict[UUID, str] = {}

    def name(self, topic_id: UUID) -> str | None:
        """The name of a topic, None while it is not known."""
        return self._names.get(topic_id)

    def keep(self, topic_ids: Iterable[UUID]) -> None:
        """Forget all others."""
        self._names = {topic_id: self._names[topic_id] for topic_id in topic_ids if topic_id in self._names}

    def learn(self, topic_ids: Iterable[UUID]) -> Flow[bool]:
        """Try to find the names of these, with one request at most; whether all are known now. Does not raise for a
        broker that does not answer."""
        missing = self._learn_from_metadata(topic_ids)
        if missing:
            yield from self._ask(missing)
            missing = self._learn_from_metadata(missing)
        return not missing

    def _learn_from_metadata(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Those of the ids that stay unknown."""
        missing = {topic_id for topic_id in topic_ids if topic_id not in self._names}
        if missing:
            for topic in self._cluster.topics.values():
                if topic.topic_id in missing and not topic.error:
                    self._names[topic.topic_id] = topic.name
                    missing.discard(topic.topic_id)
        self._cluster.topics_wanted(self._names[one] for one in topic_ids if one in self._names)
        return missing

    def _ask(self, missing: Iterable[UUID]) -> Flow[None]:
        from kcodec.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        topics = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(missing)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        try:
            reply = yield from call(ANY_NODE, request, timeout=self._cluster.times.request, lowest=BY_ID_VERSION)
        except (TransportError, UnsupportedError) as error:
            log.info("the names of %d topic ids could not be fetched: %s", len(topics), error)
            self._cluster.request_update("topics of an assignment are not known")
            return
        self._cluster.apply(reply)
