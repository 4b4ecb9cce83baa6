# SPDX-License-Identifier: Apache-2.0
"""Partitions and offsets of confluent_kafka as those of kcodec, and the reverse."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as Place

from kcodec.compat._confluent_errors import local_error, place_of, written_metadata
from kcodec.offsets import OffsetAndMetadata, TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]


def checked_places(partitions: list[Any], name: str = "partitions") -> dict[TopicPartition, Any]:
    """Return the TopicPartitions of confluent_kafka by those of kcodec. Raise TypeError, with the name of the argument,
    if it is not a list."""
    if not isinstance(partitions, list):
        raise TypeError(f"{name} must be a list of TopicPartition, not {type(partitions).__name__}")
    found = {}
    for one in partitions:
        if not isinstance(one, Place):
            raise TypeError("expected cimpl.TopicPartition")
        found[TopicPartition(one.topic, one.partition)] = one
    return found


def offsets_of(partitions: list[Any]) -> Offsets:
    """Return the offsets to commit; those that are not set are left out, as by librdkafka."""
    return {
        name: OffsetAndMetadata(
            one.offset, written_metadata(one.metadata), -1 if one.leader_epoch is None else one.leader_epoch
        )
        for name, one in checked_places(partitions, "offsets").items()
        if one.offset >= 0
    }


def offset_after(message: Message) -> Offsets:
    """Return the offset after a message, nothing if it has no offset. Raise KafkaException for another message."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if message.error() is not None or topic is None or partition is None:
        raise local_error(KafkaError._INVALID_ARG, "the message has an error, or no topic and partition")
    if offset is None or offset < -1:
        return {}
    epoch = message.leader_epoch()
    return {TopicPartition(topic, partition): OffsetAndMetadata(offset + 1, "", -1 if epoch is None else epoch)}


def places_of(offsets: Offsets) -> list[Any]:
    """Return the TopicPartitions of confluent_kafka with these offsets."""
    return [place_of(*item) for item in offsets.items()]
