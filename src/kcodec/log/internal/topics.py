# SPDX-License-Identifier: Apache-2.0
"""The topics of a cluster and their ids, from the newest snapshot and the log of ``__cluster_metadata-0``."""

from __future__ import annotations

import re
from uuid import UUID

from kcodec.log.internal.records import decode_metadata_record
from kcodec.log.opening import CLUSTER_METADATA, open_segment
from kcodec.log.partition import Log
from kcodec.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kcodec.protocol.plain import uuid_text

# The offset behind the last record that a snapshot contains, and its epoch (Snapshots.filenameFromSnapshotId).
SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class _ClusterTopics:
    """Topics while records are read; those of a metadata transaction that is aborted count for nothing."""

    def __init__(self) -> None:
        self.ids: dict[str, UUID] = {}
        self.before: dict[str, UUID] = {}

    def read(self, log: Log, start_offset: int | None = None) -> None:
        for record in log.records(start_offset=start_offset):
            message = decode_metadata_record(record.value).value
            if isinstance(message, TopicRecord):
                self.ids[message.name] = message.topic_id
            elif isinstance(message, RemoveTopicRecord):
                gone = message.topic_id
                self.ids = {name: topic_id for name, topic_id in self.ids.items() if topic_id != gone}
            elif isinstance(message, BeginTransactionRecord | EndTransactionRecord):
                self.before = dict(self.ids)
            elif isinstance(message, AbortTransactionRecord):
                self.ids = dict(self.before)


def cluster_topics(log: Log) -> dict[str, str]:
    """Return the topic ids, as Kafka writes them, by topic, at the end of the metadata log.

    log: The partition ``__cluster_metadata-0``; ValueError for another one. Raise DecodeError for corruption.
    """
    if (log.topic, log.partition) != CLUSTER_METADATA:
        raise ValueError(f"expected the log of {CLUSTER_METADATA[0]}-{CLUSTER_METADATA[1]}, got {log.path}")
    directory = log.storage.parent(log.segments[0].path)
    named = (SNAPSHOT_NAME.fullmatch(entry.name) for entry in log.storage.list(directory) if not entry.is_directory)
    newest = max(((int(match[1]), match[0]) for match in named if match is not None), default=None)
    topics = _ClusterTopics()
    if newest is not None:
        topics.read(open_segment(log.storage.join(directory, newest[1]), filesystem=log.storage))
    topics.read(log, None if newest is None else newest[0])
    return {name: uuid_text(topic_id) for name, topic_id in sorted(topics.ids.items())}
