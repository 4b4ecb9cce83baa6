# SPDX-License-Identifier: Apache-2.0
"""Random sequences of requests for two brokers, step by step, with what may differ masked.

A sequence is made from its seed alone. Each step goes to both brokers at the same point of their history; a step that
gets CONCURRENT_TRANSACTIONS or another error that passes is tried again. Producer ids are replaced by their order of
appearance; timestamps, CRCs and leader and coordinator epochs are left out.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any, NamedTuple

from raw_broker import RawBroker

import kcodec
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

PASSING = (14, 15, 16, 19, 51)
RETRY_SECONDS = 8.0
# The versions of Produce that stand for the two flows of a transaction, and the first transaction version of the new.
OLD_FLOW, NEW_FLOW = 11, 12
NEW_VERSION = 2


class Identity(NamedTuple):
    """A producer id as the broker gave it, and an epoch."""

    producer_id: int
    epoch: int


class Target:
    """One of the two brokers, with what it calls the producers of a sequence."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        self.name = name
        self.raw = RawBroker(bootstrap_servers)
        self.begin()

    def begin(self) -> None:
        self.symbols: dict[int, str] = {-1: "-"}
        self.identities: dict[int, list[Identity]] = {}

    def symbol(self, producer_id: int) -> str:
        return self.symbols.setdefault(producer_id, f"p{len(self.symbols)}")

    def identity(self, slot: int, back: int, ahead: int = 0) -> Identity:
        """The identity that a slot got `back` changes ago."""
        known = self.identities.get(slot) or [Identity(987_654, 0)]
        found = known[max(len(known) - 1 - back, 0)]
        return Identity(found.producer_id, found.epoch + ahead)

    def ask(self, request: Any, version: int, code: Any) -> Any:
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            response = self.raw.ask(request, version)
            if code(response) not in PASSING or time.monotonic() > deadline:
                return response
            time.sleep(0.004)

    def settle(self, transactional_id: str) -> None:
        """Wait until the markers of the transactional id are written."""
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        deadline = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < deadline:
            found = self.raw.ask(request, 0).transaction_states[0]
            if not found.transaction_state.startswith("Prepare"):
                return
            time.sleep(0.002)

    def learn(self, slot: int, producer_id: int, epoch: int) -> None:
        known = self.identities.setdefault(slot, [])
        found = Identity(producer_id, epoch)
        if not known or known[-1] != found:
            known.append(found)


class Step(NamedTuple):
    """One request: its kind, and the arguments that a Target needs."""

    kind: str
    arguments: dict[str, Any]


class Sequence:
    """The steps of one seed."""

    def __init__(self, seed: int, *, transaction_version: int = 2, steps: int = 40) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.name = f"sequence-{seed}-{time.time_ns() % 10**9}"
        #: Transactional ids; the last producer has none.
        self.ids = [f"{self.name}-a", f"{self.name}-b", ""]
        self.next: dict[tuple[int, int], int] = {}
        # Below transaction version 2 a broker does not answer the new flow in a way that clients could use.
        flows = (OLD_FLOW, NEW_FLOW, NEW_FLOW) if transaction_version >= NEW_VERSION else (OLD_FLOW,)
        self.flow = [self.random.choice(flows) for _ in self.ids]
        self.flows = sorted(set(flows))
        self.count = steps

    def steps(self) -> Any:
        """Yield the steps, the first of which give every producer its id."""
        for slot in range(len(self.ids)):
            yield self.init(slot, plain=True)
        for _ in range(self.count):
            kinds = [self.produce] * 10 + [self.end] * 4 + [self.fetch] * 4 + [self.add] * 3
            kinds += [self.init, self.list_offsets, self.producers, self.transactions, self.epoch_end, self.offsets]
            kinds += [self.commit_offset, self.commit_offset, self.offset_fetch]
            kinds += [self.delete_records] if self.random.random() < 0.3 else []
            yield self.random.choice(kinds)(self._slot())
        for slot in range(2):
            yield Step("end", {"slot": slot, "back": 0, "ahead": 0, "commit": False, "flow": self.flow[slot]})
        for partition in (0, 1):
            for level in (0, 1):
                yield Step(
                    "fetch", {"partition": partition, "offset": 0, "level": level, "most": 1 << 20, "version": 12}
                )
            yield Step("producers", {"partition": partition})

    def _slot(self) -> int:
        return self.random.choices((0, 1, 2), (5, 3, 1))[0]

    def _who(self, slot: int) -> dict[str, int]:
        kind = self.random.random()
        back = 0 if kind < 0.86 else self.random.randint(1, 2)
        return {"slot": slot, "back": back, "ahead": 1 if kind > 0.97 else 0}

    def init(self, slot: int, *, plain: bool = False) -> Step:
        self.next = {key: 0 for key in self.next if key[0] != slot} | {
            key: value for key, value in self.next.items() if key[0] != slot
        }
        back = None if plain or self.random.random() < 0.6 else self.random.choice((0, 0, 1))
        return Step("init", {"slot": slot, "back": back, "version": 3 if self.random.random() < 0.2 else 5})

    def produce(self, slot: int) -> Step:
        partition = self.random.randrange(2)
        count = self.random.randint(1, 3)
        expected = self.next.get((slot, partition), 0)
        kind = self.random.random()
        if kind < 0.80:
            sequence = expected
            self.next[slot, partition] = expected + count
        elif kind < 0.90:
            sequence = max(expected - count, 0)
        else:
            sequence = self.random.choice((0, expected + 1, max(expected - 7, 0), 2**31 - 2))
        is_transactional = slot < 2 and self.random.random() < 0.96
        version = self.flow[slot] if self.random.random() < 0.9 else self.random.choice((3, 7, 9, 10, *self.flows))
        return Step(
            "produce",
            {
                **self._who(slot),
                "partition": partition,
                "sequence": sequence,
                "count": count,
                "transactional": is_transactional,
                "version": version,
                "size": self.random.choice((5, 5, 200, 3000)),
            },
        )

    def end(self, slot: int) -> Step:
        slot = min(slot, 1)
        if self.flow[slot] >= NEW_FLOW:
            self.next = {key: value for key, value in self.next.items() if key[0] != slot}
        flow = self.flow[slot] if self.random.random() < 0.93 else self.random.choice(self.flows)
        return Step("end", {**self._who(slot), "commit": self.random.random() < 0.6, "flow": flow})

    def add(self, slot: int) -> Step:
        slot = min(slot, 1)
        partitions = self.random.choice(((0,), (1,), (0, 1), (0, 9)))
        return Step("add", {**self._who(slot), "partitions": partitions, "version": self.random.choice((1, 3, 3))})

    def offsets(self, slot: int) -> Step:
        return Step("add_offsets", {**self._who(min(slot, 1)), "version": self.random.choice((1, 3))})

    def commit_offset(self, slot: int) -> Step:
        version = (
            self.flow[min(slot, 1)] - 7
            if self.random.random() < 0.9
            else self.random.choice((0, 3, *(flow - 7 for flow in self.flows)))
        )
        return Step(
            "commit_offset",
            {
                **self._who(min(slot, 1)),
                "partition": self.random.choice((0, 1)),
                "offset": self.random.randrange(100),
                "version": version,
            },
        )

    def offset_fetch(self, slot: int) -> Step:
        return Step("offset_fetch", {"stable": self.random.random() < 0.5})

    def fetch(self, slot: int) -> Step:
        return Step(
            "fetch",
            {
                "partition": self.random.randrange(2),
                "offset": self.random.choice((0, 0, 1, 2, 3, 5, 8, 13, 50)),
                "level": self.random.randrange(2),
                "most": self.random.choice((1, 100, 500, 4000, 1 << 20)),
                "version": self.random.choice((4, 7, 11, 12)),
            },
        )

    def list_offsets(self, slot: int) -> Step:
        return Step(
            "list",
            {
                "partition": self.random.randrange(3),
                "timestamp": self.random.choice((-1, -1, -2, -3, 1000, 1500, 3000)),
                "level": self.random.randrange(2),
                "version": self.random.choice((2, 5, 7)),
            },
        )

    def producers(self, slot: int) -> Step:
        return Step("producers", {"partition": self.random.randrange(2)})

    def transactions(self, slot: int) -> Step:
        return Step("transactions", {"slot": min(slot, 1)})

    def epoch_end(self, slot: int) -> Step:
        return Step("epoch_end", {"partition": self.random.randrange(2), "epoch": self.random.choice((0, 0, 3))})

    def delete_records(self, slot: int) -> Step:
        return Step("delete", {"partition": self.random.randrange(2), "offset": self.random.choice((1, 2, 4, 99))})


class Runner:
    """Runs steps on a target and returns what has to be equal."""

    def __init__(self, sequence: Sequence, target: Target) -> None:
        self.sequence = sequence
        self.target = target
        self.topic = sequence.name
        target.begin()
        created = target.raw.ask(
            messages.CreateTopicsRequest(
                topics=[
                    messages.CreatableTopic(
                        name=self.topic,
                        num_partitions=2,
                        replication_factor=1,
                        configs=[messages.CreatableTopicConfig(name="retention.ms", value="-1")],
                    )
                ]
            ),
            5,
        )
        assert created.topics[0].error_code == 0
        for transactional_id in sequence.ids[:2]:
            request = messages.FindCoordinatorRequest(key=transactional_id, key_type=1)
            target.ask(request, 3, lambda response: response.error_code)
        group = messages.FindCoordinatorRequest(key=self.topic, key_type=0)
        target.ask(group, 3, lambda response: response.error_code)
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        for partition in (0, 1):
            deadline = time.monotonic() + RETRY_SECONDS
            while time.monotonic() < deadline:
                if self.list(partition=partition, timestamp=-1, level=0, version=5)[0] == "NONE":
                    break
                time.sleep(0.01)

    def run(self, step: Step) -> Any:
        return getattr(self, step.kind)(**step.arguments)

    def init(self, slot: int, back: int | None, version: int) -> Any:
        name = self.sequence.ids[slot]
        expected = Identity(-1, -1) if back is None else self.target.identity(slot, back)
        response = self.target.ask(
            messages.InitProducerIdRequest(
                transactional_id=name or None,
                transaction_timeout_ms=60_000,
                producer_id=expected.producer_id,
                producer_epoch=expected.epoch,
            ),
            version,
            lambda response: response.error_code,
        )
        if response.error_code == 0:
            self.target.learn(slot, response.producer_id, response.producer_epoch)
        if name:
            self.target.settle(name)
        return _name(response.error_code), self.target.symbol(response.producer_id), response.producer_epoch

    def produce(
        self,
        slot: int,
        back: int,
        ahead: int,
        partition: int,
        sequence: int,
        count: int,
        transactional: bool,
        version: int,
        size: int,
    ) -> Any:
        who = self.target.identity(slot, back, ahead)
        records = [(b"k", bytes([65 + index]) * size, (), 1000 + sequence % 1000 + index) for index in range(count)]
        batch = bytes(
            kcodec.encode(
                records,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                base_sequence=sequence,
                is_transactional=transactional,
            )
        )
        response = self.target.ask(
            messages.ProduceRequest(
                transactional_id=self.sequence.ids[slot] or None,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[
                    messages.TopicProduceData(
                        name=self.topic,
                        partition_data=[messages.PartitionProduceData(index=partition, records=batch)],
                    )
                ],
            ),
            version,
            lambda response: response.responses[0].partition_responses[0].error_code,
        )
        found = response.responses[0].partition_responses[0]
        return _name(found.error_code), found.base_offset, found.log_append_time_ms, found.log_start_offset

    def add(self, slot: int, back: int, ahead: int, partitions: tuple[int, ...], version: int) -> Any:
        who = self.target.identity(slot, back, ahead)
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.sequence.ids[slot],
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[messages.AddPartitionsToTxnTopic(name=self.topic, partitions=list(partitions))],
        )

        def code(response: Any) -> int:
            topic = response.results_by_topic_v3_and_below[0]
            return max((int(result.partition_error_code) for result in topic.results_by_partition), default=0)

        response = self.target.ask(request, version, code)
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return sorted((result.partition_index, _name(result.partition_error_code)) for result in results)

    def add_offsets(self, slot: int, back: int, ahead: int, version: int) -> Any:
        who = self.target.identity(slot, back, ahead)
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=self.sequence.ids[slot],
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            group_id=self.topic,
        )
        return _name(self.target.ask(request, version, lambda response: response.error_code).error_code)

    def commit_offset(self, slot: int, back: int, ahead: int, partition: int, offset: int, version: int) -> Any:
        who = self.target.identity(slot, back, ahead)
        request = messages.TxnOffsetCommitRequest(
            transactional_id=self.sequence.ids[slot],
            group_id=self.topic,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            topics=[
                messages.TxnOffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[
                        messages.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=f"m{offset}"
                        )
                    ],
                )
            ],
        )
        response = self.target.ask(request, version, lambda response: response.topics[0].partitions[0].error_code)
        return _name(response.topics[0].partitions[0].error_code)

    def offset_fetch(self, stable: bool) -> Any:
        request = messages.OffsetFetchRequest(
            group_id=self.topic,
            topics=[messages.OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0, 1])],
            require_stable=stable,
        )
        found = self.target.raw.ask(request, 7)
        partitions = found.topics[0].partitions
        shown = [(one.partition_index, one.committed_offset, one.metadata, _name(one.error_code)) for one in partitions]
        return _name(found.error_code), sorted(shown)

    def end(self, slot: int, back: int, ahead: int, commit: bool, flow: int) -> Any:
        who = self.target.identity(slot, back, ahead)
        name = self.sequence.ids[slot]
        response = self.target.ask(
            messages.EndTxnRequest(
                transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commit
            ),
            5 if flow >= NEW_FLOW else 3,
            lambda response: response.error_code,
        )
        self.target.settle(name)
        if response.error_code == 0 and flow >= NEW_FLOW:
            self.target.learn(slot, response.producer_id, response.producer_epoch)
        return _name(response.error_code), self.target.symbol(response.producer_id), response.producer_epoch

    def fetch(self, partition: int, offset: int, level: int, most: int, version: int) -> Any:
        request = messages.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=level,
            topics=[
                messages.FetchTopic(
                    topic=self.topic,
                    partitions=[
                        messages.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=most)
                    ],
                )
            ],
        )
        found = self.target.raw.ask(request, version).responses[0].partitions[0]
        aborted = found.aborted_transactions
        if aborted is not None:
            aborted = [(self.target.symbol(one.producer_id), one.first_offset) for one in aborted]
        offsets = (found.high_watermark, found.last_stable_offset, found.log_start_offset)
        data = bytes(found.records or b"")
        return _name(found.error_code), offsets, aborted, len(data), self._batches(data)

    def _batches(self, data: bytes) -> list[Any]:
        found = []
        for batch in kcodec.batches(data):
            header = (
                batch.base_offset,
                batch.last_offset,
                batch.attributes,
                self.target.symbol(batch.producer_id),
                batch.producer_epoch,
                batch.base_sequence,
                batch.size_in_bytes,
            )
            records = [
                (record.offset, record.key, record.value if not batch.is_control_batch else None)
                for record in batch.records()
            ]
            times = None if batch.is_control_batch else (batch.base_timestamp, batch.max_timestamp)
            found.append((header, times, records))
        return found

    def list(self, partition: int, timestamp: int, level: int, version: int) -> Any:
        request = messages.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=level,
            topics=[
                messages.ListOffsetsTopic(
                    name=self.topic,
                    partitions=[messages.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)],
                )
            ],
        )
        found = self.target.raw.ask(request, version).topics[0].partitions[0]
        # the largest timestamp is that of a marker, which has the broker's time
        time_shown = found.timestamp if found.timestamp < 10**9 else "now"
        return _name(found.error_code), found.offset, time_shown, found.leader_epoch

    def producers(self, partition: int) -> Any:
        request = messages.DescribeProducersRequest(
            topics=[messages.DescribeProducersTopic(name=self.topic, partition_indexes=[partition])]
        )
        found = self.target.raw.ask(request, 0).topics[0].partitions[0]
        states = [
            (
                self.target.symbol(one.producer_id),
                one.producer_epoch,
                one.last_sequence,
                one.current_txn_start_offset,
                one.coordinator_epoch >= 0,
            )
            for one in found.active_producers
        ]
        return _name(found.error_code), sorted(states)

    def transactions(self, slot: int) -> Any:
        name = self.sequence.ids[slot]
        request = messages.DescribeTransactionsRequest(transactional_ids=[name])
        found = self.target.raw.ask(request, 0).transaction_states[0]
        # the partition of the group's offsets depends on the number of partitions of that topic
        named = [(topic.topic, topic.partitions) for topic in found.topics]
        partitions = [(name, sorted(numbers) if name == self.topic else None) for name, numbers in named]
        return (
            _name(found.error_code),
            found.transaction_state,
            self.target.symbol(found.producer_id),
            found.producer_epoch,
            found.transaction_start_time_ms > 0,
            sorted(partitions),
        )

    def epoch_end(self, partition: int, epoch: int) -> Any:
        request = messages.OffsetForLeaderEpochRequest(
            replica_id=-2,
            topics=[
                messages.OffsetForLeaderTopic(
                    topic=self.topic,
                    partitions=[messages.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)],
                )
            ],
        )
        found = self.target.raw.ask(request, 3).topics[0].partitions[0]
        return _name(found.error_code), found.leader_epoch, found.end_offset

    def delete(self, partition: int, offset: int) -> Any:
        request = messages.DeleteRecordsRequest(
            timeout_ms=10_000,
            topics=[
                messages.DeleteRecordsTopic(
                    name=self.topic,
                    partitions=[messages.DeleteRecordsPartition(partition_index=partition, offset=offset)],
                )
            ],
        )
        found = self.target.raw.ask(request, 2).topics[0].partitions[0]
        return _name(found.error_code), found.low_watermark


def _name(code: int) -> str:
    return ErrorCode(code).name


class Difference(NamedTuple):
    """Where the two brokers differ."""

    seed: int
    number: int
    step: Step
    expected: Any
    found: Any
    before: list[tuple[Step, Any]]


def compare(
    seed: int, kafka: Target, ours: Target, coverage: Counter[tuple[str, str]], *, transaction_version: int = 2
) -> Difference | None:
    """Run one sequence on both; the first difference, or None."""
    sequence = Sequence(seed, transaction_version=transaction_version)
    left, right = Runner(sequence, kafka), Runner(sequence, ours)
    before: list[tuple[Step, Any]] = []
    for number, step in enumerate(sequence.steps()):
        expected, found = left.run(step), right.run(step)
        first = expected[0] if isinstance(expected, tuple) else expected
        coverage[step.kind, first if isinstance(first, str) else str(first)] += 1
        if expected != found:
            return Difference(seed, number, step, expected, found, before)
        before.append((step, expected))
    return None
