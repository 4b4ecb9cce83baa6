# SPDX-License-Identifier: Apache-2.0
"""The records of one group in ``__consumer_offsets``, from Kafka and from the embedded coordinator, in one form."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Protocol

import kcodec
from kcodec.broker.internal_topics import partition_for_key
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.log.internal.records import COORDINATOR_RECORDS, decode_coordinator_record
from kcodec.protocol import messages

#: Times, the hash of topics, and what Kafka chooses by a hash table.
MASKED = ("commit_timestamp", "current_state_timestamp", "assignment_timestamp", "timestamp", "metadata_hash", "leader")
_MANY_BYTES = 10_000_000
#: The types of the records that remove a member: three tombstones, and the next epoch of the group.
REMOVAL = [
    "ConsumerGroupCurrentMemberAssignment",
    "ConsumerGroupTargetAssignmentMember",
    "ConsumerGroupMemberMetadata",
    "ConsumerGroupMetadata",
]
Pair = tuple[bytes | None, bytes | None]


class Connection(Protocol):
    """A connection with one request at a time."""

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and return the response."""


def _number_of_partitions(connection: Connection) -> int:
    topics = [messages.MetadataRequestTopic(name=CONSUMER_OFFSETS_TOPIC)]
    (found,) = connection.ask(messages.MetadataRequest(topics=topics), 9).topics
    return len(found.partitions)


class GroupLog:
    """The log of a group on Kafka, from its present end on."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._partition = partition_for_key(group, _number_of_partitions(connection))
        partitions = [messages.ListOffsetsPartition(partition_index=self._partition, timestamp=-1)]
        topics = [messages.ListOffsetsTopic(name=CONSUMER_OFFSETS_TOPIC, partitions=partitions)]
        found = connection.ask(messages.ListOffsetsRequest(replica_id=-1, topics=topics), 5)
        self._begin: int = found.topics[0].partitions[0].offset

    def pairs(self) -> list[Pair]:
        """Return the keys and values of the records."""
        found: list[Pair] = []
        offset = self._begin
        while True:
            part = messages.FetchPartition(
                partition=self._partition, fetch_offset=offset, partition_max_bytes=_MANY_BYTES
            )
            topics = [messages.FetchTopic(topic=CONSUMER_OFFSETS_TOPIC, partitions=[part])]
            request = messages.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_MANY_BYTES, topics=topics)
            response = self._connection.ask(request, 11).responses[0].partitions[0]
            assert response.error_code == 0, response
            batches = kcodec.batches(bytes(response.records or b""))
            if not batches:
                return found
            found += [(one.key, one.value) for batch in batches for one in batch.records()]
            offset = batches[-1].last_offset + 1


def shown_records(pairs: Iterable[Pair], group: str) -> list[str]:
    """Return the records of a group as text. Neighbors of the same type, and members that are removed one after
    another, are in the order of their keys, because their order comes from hash tables in Kafka."""
    shown = []
    for key, value in pairs:
        found = decode_coordinator_record(COORDINATOR_RECORDS[CONSUMER_OFFSETS_TOPIC], key, value)
        assert found.error is None, found
        if group in (getattr(found.key, "group", None), getattr(found.key, "group_id", None)):
            shown.append((found.type, f"{found.key} {found.version} {_masked(found.to_dict().get('value'))}"))
    lines = [
        text
        for _, run in groupby(shown, key=lambda one: (one[0], one[1].endswith("None")))
        for text in sorted(f"{kind} {text}" for kind, text in run)
    ]
    removals = [place for place in range(len(lines)) if _is_removal(lines[place : place + len(REMOVAL)])]
    while removals:
        run = [removals.pop(0)]
        while removals and removals[0] == run[-1] + len(REMOVAL):
            run.append(removals.pop(0))
        members = sorted(lines[place : place + len(REMOVAL) - 1] for place in run)
        for place, tombstones in zip(run, members, strict=True):
            lines[place : place + len(tombstones)] = tombstones
    return lines


def _is_removal(lines: list[str]) -> bool:
    """Return whether these records remove a member and begin an epoch."""
    kinds = [line.partition(" ")[0] for line in lines]
    return kinds == REMOVAL and [line.endswith("None") for line in lines] == [True, True, True, False]


def _masked(value: Any) -> Any:
    """Return a value of the log without what is not compared. Lists are sorted: their order comes from hash tables."""
    if isinstance(value, list):
        return sorted((_masked(one) for one in value), key=str)
    if not isinstance(value, dict):
        return value
    if "assignment_epochs" in value:
        value = value | {"partitions": list(zip(value["partitions"], value["assignment_epochs"], strict=True))}
        del value["assignment_epochs"]
    return {name: bool(one) if name in MASKED else _masked(one) for name, one in value.items()}
