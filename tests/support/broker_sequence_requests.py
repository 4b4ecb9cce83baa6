# SPDX-License-Identifier: Apache-2.0
"""The requests for the steps of a random sequence that concern transactions and logs.

A method has the name of a kind of step, and returns the request and its version.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from broker_sequence_batches import produced
from broker_sequences import Sequence
from broker_targets import Identity, Target

from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.protocol import messages

UNKNOWN_ID = UUID(int=77)
#: From these versions on a request names topics by their ids.
FETCH_BY_ID, PRODUCE_BY_ID, COMMIT_BY_ID = 13, 13, 10
_BATCHED_ADD = 4


class Names:
    """The names that a sequence uses, as one broker knows them."""

    def __init__(self, sequence: Sequence, target: Target) -> None:
        self.sequence = sequence
        self.target = target
        self.topic = sequence.name
        self.compacted = f"{sequence.name}-c"

    def _name(self, slot: int | str) -> str:
        """Return the transactional id of a slot, or a name that does not exist, or none."""
        return self.sequence.ids[slot] if isinstance(slot, int) else {"unknown": f"{self.topic}-x", "empty": ""}[slot]

    def _who(self, who: tuple[int, int, int]) -> Identity:
        return self.target.identity(*who)

    def _topic(self, name: str) -> str:
        return {
            "own": self.topic,
            "compacted": self.compacted,
            "unknown": f"{self.topic}-x",
            "internal": CONSUMER_OFFSETS_TOPIC,
        }[name]

    def _topic_id(self, name: str) -> UUID:
        found: UUID = self.target.topic_ids.get(self._topic(name), UNKNOWN_ID)
        return found

    def _group(self, name: str) -> str:
        return {"own": self.topic, "empty": "", "unknown": f"{self.topic}-x"}[name]

    def _member(self, member: int | str) -> str:
        if isinstance(member, str):
            return member
        known = self.target.members
        return known[max(len(known) - 1 - member, 0)] if known else "nobody"

    def _generation(self, generation: Any) -> int:
        """A number, or ("own", change)."""
        return generation if isinstance(generation, int) else max(self.target.generation, 0) + generation[1]


class Requests(Names):
    """Requests of producers, of readers and of tools."""

    def init(self, slot: int, name: int | str, who: Any, version: int, timeout: int = 60_000) -> Any:
        expected = Identity(-1, -1) if who is None else Identity(*who[1:]) if who[0] == "raw" else self._who(who)
        request = messages.InitProducerIdRequest(
            transactional_id=(self._name(name) or None) if name != "empty" else "",
            transaction_timeout_ms=timeout,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        return request, version

    def produce(self, name: int | str | None, version: int, parts: list[dict[str, Any]], acks: int = -1) -> Any:
        topics: dict[str, list[Any]] = {}
        for part in parts:
            records = produced(self._who(part["who"]), part, self.target.now_ms())
            data = messages.PartitionProduceData(index=part["partition"], records=records)
            topics.setdefault(part.get("topic", "own"), []).append(data)
        by_id = version >= PRODUCE_BY_ID
        request = messages.ProduceRequest(
            transactional_id=None if name is None else self._name(name) or None,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                messages.TopicProduceData(
                    **({"topic_id": self._topic_id(topic)} if by_id else {"name": self._topic(topic)}),
                    partition_data=found,
                )
                for topic, found in topics.items()
            ],
        )
        return request, version

    def add(
        self, name: int | str, who: Any, partitions: list[int], version: int, verify: bool = False, topic: str = "own"
    ) -> Any:
        identity = self._who(who)
        topics = [messages.AddPartitionsToTxnTopic(name=self._topic(topic), partitions=list(partitions))]
        if version >= _BATCHED_ADD:
            one = messages.AddPartitionsToTxnTransaction(
                transactional_id=self._name(name),
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                verify_only=verify,
                topics=topics,
            )
            return messages.AddPartitionsToTxnRequest(transactions=[one]), version
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name(name),
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        return request, version

    def add_offsets(self, name: int | str, who: Any, version: int, group: str = "own") -> Any:
        identity = self._who(who)
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=self._name(name),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=self._group(group),
        )
        return request, version

    def end(self, slot: int, name: int | str, who: Any, commit: bool, version: int, sticks: bool = False) -> Any:
        """EndTxn. sticks: the coordinator will not complete the transaction, so that nothing is waited for."""
        identity = self._who(who)
        request = messages.EndTxnRequest(
            transactional_id=self._name(name),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        return request, version

    def markers(self, who: Any, partitions: list[int], commit: bool, epoch_change: int, version: int, txn: int) -> Any:
        identity = self._who(who)
        marker = messages.WritableTxnMarker(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            transaction_result=commit,
            topics=[messages.WritableTxnMarkerTopic(name=self.topic, partition_indexes=list(partitions))],
            coordinator_epoch=self.target.coordinator_epoch + epoch_change,
            transaction_version=txn if version > 1 else 0,
        )
        return messages.WriteTxnMarkersRequest(markers=[marker]), version

    # Reads.

    def fetch(
        self,
        parts: list[dict[str, Any]],
        level: int,
        most: int,
        version: int,
        session: str = "none",
    ) -> Any:
        by_id = version >= FETCH_BY_ID
        topics: dict[str, list[Any]] = {}
        for part in parts:
            topics.setdefault(part.get("topic", "own"), []).append(
                messages.FetchPartition(
                    partition=part["partition"],
                    fetch_offset=part["offset"],
                    partition_max_bytes=most,
                    current_leader_epoch=part.get("leader_epoch", -1) if version >= 9 else -1,
                    last_fetched_epoch=part.get("last_epoch", -1) if version >= 12 else -1,
                )
            )
        sessions = {
            "none": (0, -1),
            "new": (0, 0),
            "own": (self.target.session, 1),
            "epoch": (self.target.session, 7),
            "unknown": (123_456_789, 3),
        }
        session_id, session_epoch = sessions[session] if version >= 7 else (0, -1)
        request = messages.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[
                messages.FetchTopic(
                    **({"topic_id": self._topic_id(name)} if by_id else {"topic": self._topic(name)}), partitions=found
                )
                for name, found in topics.items()
            ],
        )
        return request, version

    def list_offsets(self, partition: int, timestamp: int, level: int, version: int, leader_epoch: int = -1) -> Any:
        partitions = [
            messages.ListOffsetsPartition(
                partition_index=partition,
                timestamp=timestamp,
                current_leader_epoch=leader_epoch if version >= 4 else -1,
            )
        ]
        request = messages.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=level if version >= 2 else 0,
            topics=[messages.ListOffsetsTopic(name=self.topic, partitions=partitions)],
        )
        return request, version

    def producers(self, partition: int) -> Any:
        topic = messages.DescribeProducersTopic(name=self.topic, partition_indexes=[partition])
        return messages.DescribeProducersRequest(topics=[topic]), 0

    def transactions(self, name: int | str) -> Any:
        return messages.DescribeTransactionsRequest(transactional_ids=[self._name(name)]), 0

    def list_transactions(self, slot: int, version: int, states: list[str], pattern: str | None) -> Any:
        request = messages.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=[self.target.identity(slot, 0).producer_id],
            transactional_id_pattern=pattern if version >= 2 else None,
        )
        return request, version

    def epoch_end(self, partition: int, epoch: int, leader_epoch: int = -1) -> Any:
        partitions = [
            messages.OffsetForLeaderPartition(
                partition=partition, leader_epoch=epoch, current_leader_epoch=leader_epoch
            )
        ]
        topic = messages.OffsetForLeaderTopic(topic=self.topic, partitions=partitions)
        return messages.OffsetForLeaderEpochRequest(replica_id=-2, topics=[topic]), 4

    def delete(self, partition: int, offset: int, topic: str = "own") -> Any:
        partitions = [messages.DeleteRecordsPartition(partition_index=partition, offset=offset)]
        found = messages.DeleteRecordsTopic(name=self._topic(topic), partitions=partitions)
        return messages.DeleteRecordsRequest(timeout_ms=10_000, topics=[found]), 2

    def find(self, slot: int, key_type: int, version: int) -> Any:
        key = self.sequence.ids[slot]
        if version >= 4:
            return messages.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), version
        return messages.FindCoordinatorRequest(key=key, key_type=key_type), version
