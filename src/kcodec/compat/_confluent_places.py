# SPDX-License-Identifier: Apache-2.0
"""Conversion of partitions and offsets of confluent_kafka to those of kcodec, and back."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as Place

from kcodec.compat._confluent_errors import local_error, place_of, written_metadata
from kcodec.offsets import OffsetAndMetadata, TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]


def checked_places(partitions: list[Any], name: str = "partitions") -> dict[TopicPartition, Any]:
    """Return the TopicPartitions of confluent_kafka by the TopicPartitions of kcodec. Raise TypeError, which names the
    argument, if it is not a list."""
    if not isinstance(partitions, list):
        raise TypeError(f"{name} must be a list of TopicPartition, not {type(partitions).__name__}")
    found = {}
    for one in partitions:
        if not isinstance(one, Place):
            raise TypeError("expected cimpl.TopicPartition")
        found[TopicPartition(one.topic, one.partition)] = one
    return found


def offsets_of(partitions: list[Any]) -> Offsets:
    """Return the offsets to commit. Partitions whose offset is not set are ignored, as in librdkafka."""
    return {
        name: OffsetAndMetadata(
            one.offset, written_metadata(one.metadata), -1 if one.leader_epoch is None else one.leader_epoch
        )
        for name, one in checked_places(partitions, "offsets").items()
        if one.offset >= 0
    }


def offset_after(message: Message) -> Offsets:
    """Return the offset after a message. Return an empty mapping if the message has no offset. Raise KafkaException if
    the message is invalid."""
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
