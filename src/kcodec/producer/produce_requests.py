# SPDX-License-Identifier: Apache-2.0
"""Produce on the wire: the request for some batches, and what an answer says in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcodec.cluster.metadata import NO_UUID
from kcodec.producer.batch import ProducerBatch
from kcodec.producer.options import ProducerSettings
from kcodec.producer.queues import PartitionQueue

#: The last version that names topics; from 13 on they go by id (KIP-516). zstd needs 7 (KIP-110).
LAST_VERSION_WITH_NAMES, FIRST_VERSION, FIRST_VERSION_WITH_ZSTD = 12, 3, 7
MAX_RECORDS_NAMED = 8


def produce_request(
    sent: Sequence[tuple[PartitionQueue, ProducerBatch]], settings: ProducerSettings, transactional_id: str | None
) -> tuple[Any, int, int]:
    """The request, its lowest and its highest version: one with names, if a topic's id is not known."""
    from kcodec.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    topics: dict[str, Any] = {}
    highest = 32767
    for queue, batch in sent:
        if (topic := topics.get(batch.topic)) is None:
            topic_id = queue.topic_id or NO_UUID
            topic = topics[batch.topic] = TopicProduceData(name=batch.topic, topic_id=topic_id, partition_data=[])
            if topic_id == NO_UUID:
                highest = LAST_VERSION_WITH_NAMES
        topic.partition_data.append(PartitionProduceData(index=batch.partition, records=batch.data))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=settings.acks,
        timeout_ms=int(settings.request_timeout * 1000),
        topic_data=list(topics.values()),
    )
    lowest = FIRST_VERSION_WITH_ZSTD if settings.compression_type == "zstd" else FIRST_VERSION
    return request, lowest, highest


def record_errors(answer: Any) -> str | None:
    """What the broker says in words, and of which records of the batch (KIP-467)."""
    named = [
        f"record {one.batch_index}" + (f": {one.batch_index_error_message}" if one.batch_index_error_message else "")
        for one in answer.record_errors[:MAX_RECORDS_NAMED]
    ]
    if len(answer.record_errors) > MAX_RECORDS_NAMED:
        named.append(f"and {len(answer.record_errors) - MAX_RECORDS_NAMED} more")
    parts = [part for part in (answer.error_message, "; ".join(named)) if part]
    return " - ".join(parts) or None
