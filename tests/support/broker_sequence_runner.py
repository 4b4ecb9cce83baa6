# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a random sequence on one broker, and keeps the results that must be equal on all brokers.

Each step is one request, repeated while its error is transient. After a step that may have ended a transaction, the
runner waits until the markers are written. The last results are the bytes of the coordinators' logs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from broker_group_requests import GroupRequests
from broker_masks import Masks, Shown, codes_of
from broker_sequence_requests import Requests
from broker_sequences import LAST_EPOCH, MARKER_AHEAD, Sequence, Step
from broker_targets import RETRY_MS, STUCK_MS, Target

import kcodec
from kcodec.broker.internal_topics import partition_for_key
from kcodec.broker.transactions.state import State
from kcodec.constants import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

LEADER_MS = 8000
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
#: The type of the configurations of groups (ConfigResource).
GROUP = 32
INTERNAL = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
_MANY_BYTES = 1 << 26


class Run(NamedTuple):
    """What a sequence gave on one broker.

    results: of each step, and of the logs at the end. codes: how often each API responded with each error code.
    transitions: how often a transactional id went from one state to another, as its log says.
    """

    name: str
    steps: list[Step]
    results: list[Shown]
    codes: Counter[tuple[str, str]]
    transitions: Counter[tuple[str, str]]


class TooSlow(Exception):
    """The machine was too slow for a sequence in which real time counts. It is repeated under another name."""


def run_sequence(sequence: Sequence, target: Target) -> Run:
    """Run all steps. Raise TooSlow."""
    runner = Runner(sequence, target)
    steps = list(sequence.steps())
    results = [runner.run(step) for step in steps]
    results += [runner.internal_log(topic) for topic in INTERNAL]
    runner.clean()
    steps += [Step("log", {"topic": topic}) for topic in INTERNAL]
    return Run(sequence.name, steps, results, runner.codes, runner.transitions)


class Runner(GroupRequests, Requests):
    """Runs steps on a target."""

    def __init__(self, sequence: Sequence, target: Target) -> None:
        super().__init__(sequence, target)
        self.codes: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        #: Slots of transactional ids whose transaction the coordinator has given up.
        self._stuck: set[Any] = set()
        target.begin()
        self.masks = Masks(sequence.name, target, lingers=sequence.lingers)
        self._create_topics()
        self._find_coordinators()
        if sequence.group == "consumer":
            self._assign_at_once()
        self._internal = self._internal_ends()
        for slot in range(2):
            known = target.prepared.get(sequence.ids[slot])
            if known is not None:
                target.symbol(known.producer_id)
                target.learn(slot, *known)
        self._mark_ms = target.now_ms()

    # Beginning.

    def _create_topics(self) -> None:
        own = {"retention.ms": "-1", "max.message.bytes": "20000"}
        compacted = {"cleanup.policy": "compact", "message.timestamp.after.max.ms": "3600000", "retention.ms": "-1"}
        topics = [
            messages.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[messages.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, partitions, configs in ((self.topic, 2, own), (self.compacted, 1, compacted))
        ]
        created = self.target.send(messages.CreateTopicsRequest(topics=topics), 7)
        assert all(one.error_code == 0 for one in created.topics), created
        self.target.topic_ids = {one.name: one.topic_id for one in created.topics}
        deadline = self.target.now_ms() + LEADER_MS
        for name, partition in ((self.topic, 0), (self.topic, 1), (self.compacted, 0)):
            while self._latest(name, partition) < 0:
                if self.target.now_ms() >= deadline:
                    raise TooSlow(f"{name}-{partition} has no leader")
                self.target.wait(1)

    def _find_coordinators(self) -> None:
        for name, kind in ((self.sequence.ids[0], 1), (self.sequence.ids[1], 1), (self.topic, 0)):
            request = messages.FindCoordinatorRequest(key=name, key_type=kind)
            self.target.ask(request, 3, lambda response: [response.error_code])
        # before the first request a coordinator may still load its partition
        init = messages.DescribeTransactionsRequest(transactional_ids=self.sequence.ids[:2])
        self.target.ask(init, 0, lambda response: [one.error_code for one in response.transaction_states])
        group = messages.DescribeGroupsRequest(groups=[self.topic])
        self.target.ask(group, 5, lambda response: [one.error_code for one in response.groups])

    def _assign_at_once(self) -> None:
        """Let no time pass between two target assignments of the group."""
        setting = messages.IncrementalAlterableConfig(name=ASSIGNMENT_INTERVAL, config_operation=0, value="0")
        group = messages.IncrementalAlterConfigsResource(
            resource_type=GROUP, resource_name=self.topic, configs=[setting]
        )
        altered = self.target.send(messages.IncrementalAlterConfigsRequest(resources=[group]), 1)
        assert altered.responses[0].error_code == 0, altered
        deadline = self.target.now_ms() + LEADER_MS
        named = messages.DescribeConfigsResource(
            resource_type=GROUP, resource_name=self.topic, configuration_keys=[ASSIGNMENT_INTERVAL]
        )
        while True:
            found = self.target.send(messages.DescribeConfigsRequest(resources=[named]), 4).results[0]
            assert self.target.now_ms() < deadline, found
            if [one.value for one in found.configs] == ["0"]:
                return
            self.target.wait(2)

    def _latest(self, topic: str, partition: int) -> int:
        request = messages.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                messages.ListOffsetsTopic(
                    name=topic, partitions=[messages.ListOffsetsPartition(partition_index=partition, timestamp=-1)]
                )
            ],
        )
        found = self.target.send(request, 5).topics[0].partitions[0]
        return int(found.offset) if found.error_code == 0 else -1

    # Steps.

    def run(self, step: Step) -> Shown:
        """Run one step and return what is compared of its response."""
        arguments = dict(step.arguments)
        if step.kind == "wait":
            return self._wait(**arguments)
        sticks = bool(arguments.get("sticks")) and self._has_epoch_ahead(arguments["who"])
        request, version = getattr(self, step.kind)(**arguments)
        try:
            patience_ms = STUCK_MS if arguments.get("name") in self._stuck else RETRY_MS
            response = self.target.ask(request, version, _raw_codes, patience_ms)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{self.sequence.name}: {step}: {error}") from error
        self._learn(step, response)
        api = type(request).__name__.removesuffix("Request")
        for code in codes_of(response):
            self.codes[api, code] += 1
        if sticks and response.error_code == 0:
            self._stuck.add(arguments["name"])
            self._wait_for_other_markers(arguments["name"])
        if step.kind in ("init", "end"):
            self._wait_for_markers()
        return self.masks.response(response)

    def _wait(self, ms: int) -> Shown:
        """Let time pass; what came before must have been much faster."""
        self.check_speed()
        self.target.wait(ms)
        self._wait_for_markers()
        self._mark_ms = self.target.now_ms()
        return "waited"

    def check_speed(self) -> None:
        """Raise TooSlow if time-outs may have passed since the last wait."""
        limit = self.sequence.profile.most_ms_between_waits
        if limit and self.target.now_ms() - self._mark_ms > limit:
            raise TooSlow(self.sequence.name)

    def _learn(self, step: Step, response: Any) -> None:
        if step.kind in ("init", "end") and response.error_code == 0 and response.producer_id >= 0:
            self.target.learn(step.arguments["slot"], response.producer_id, response.producer_epoch)
        if step.kind == "join" and response.member_id and response.member_id not in self.target.members:
            self.target.members.append(response.member_id)
        if step.kind == "join" and response.error_code == 0:
            self.target.generation = response.generation_id
        if step.kind == "report" and response.error_code == 0:
            self.target.generation = response.member_epoch
        if step.kind == "fetch" and step.arguments.get("session") == "new" and response.session_id:
            self.target.session = response.session_id

    def _has_epoch_ahead(self, who: tuple[int, int, int]) -> bool:
        """Whether the marker of a tool could have a higher epoch than any marker of this producer's transaction."""
        return self.target.identity(*who).epoch + MARKER_AHEAD <= LAST_EPOCH

    def _wait_for_other_markers(self, slot: int) -> None:
        """Wait until only partition 0 of a transaction, whose marker is fenced, is without its marker."""
        request = messages.DescribeTransactionsRequest(transactional_ids=[self.sequence.ids[slot]])
        deadline = self.target.now_ms() + RETRY_MS
        while self.target.now_ms() < deadline:
            topics = self.target.send(request, 0).transaction_states[0].topics
            if [(topic.topic, topic.partitions) for topic in topics] == [(self.topic, [0])]:
                return
            self.target.wait(2)

    def _wait_for_markers(self) -> None:
        """Wait until no transaction of the sequence waits for markers."""
        deadline = self.target.now_ms() + RETRY_MS
        while names := {slot: self.sequence.ids[slot] for slot in range(2) if slot not in self._stuck}:
            request = messages.DescribeTransactionsRequest(transactional_ids=list(names.values()))
            found = {one.transactional_id: one for one in self.target.send(request, 0).transaction_states}
            waiting = {slot for slot, name in names.items() if found[name].transaction_state.startswith("Prepare")}
            if not waiting:
                return
            if self.target.now_ms() > deadline:
                self._stuck |= waiting
            self.target.wait(2)

    # Internal topics.

    def _internal_ends(self) -> dict[str, list[int]]:
        found = {}
        request = messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name=name) for name in INTERNAL])
        deadline = self.target.now_ms() + LEADER_MS
        topics = self.target.send(request, 12).topics
        while any(topic.error_code for topic in topics):
            assert self.target.now_ms() < deadline, topics
            self.target.wait(5)
            topics = self.target.send(request, 12).topics
        for topic in topics:
            count = len(topic.partitions)
            if topic.name == TRANSACTION_STATE_TOPIC:
                self.target.coordinator_epoch = topic.partitions[0].leader_epoch
            found[topic.name] = [self._latest(topic.name, number) for number in range(count)]
        return found

    def internal_log(self, topic: str) -> Shown:
        """Return the batches of a coordinator's log that came from this sequence, by partition."""
        count = len(self._internal[topic])
        own = {identity.producer_id for known in self.target.identities.values() for identity in known}
        keys = [self.topic] if topic == CONSUMER_OFFSETS_TOPIC else self.sequence.ids[:2]
        found = {}
        for name in keys:
            number = partition_for_key(name, count)
            data = self._read(topic, number, self._internal[topic][number])

            def is_own(batch: Any, pairs: list[tuple[Any, Any]], name: str = name) -> bool:
                if not pairs:
                    return batch.producer_id in own
                return any(name in (getattr(key, "transactional_id", ""), *_groups(key)) for key, _ in pairs)

            if topic == TRANSACTION_STATE_TOPIC:
                self._count_transitions(data, name)
            found[self.masks.text(name)] = list(self.masks.internal(data, is_own))
        return found

    def _read(self, topic: str, partition: int, offset: int) -> bytes:
        data = b""
        while True:
            wanted = messages.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_MANY_BYTES)
            request = messages.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=_MANY_BYTES,
                topics=[messages.FetchTopic(topic=topic, partitions=[wanted])],
            )
            found = self.target.send(request, 12).responses[0].partitions[0]
            assert found.error_code == 0, found
            part = bytes(found.records or b"")
            if not part:
                return data
            data += part
            offset = kcodec.batches(part)[-1].last_offset + 1

    def _count_transitions(self, data: bytes, name: str) -> None:
        prepared = dict(zip(self.sequence.ids, self.sequence.prepared, strict=False))
        before = State[prepared[name].state].title if name in prepared else "none"
        for batch in kcodec.batches(data):
            for record in batch.records():
                key = messages.TransactionLogKey.decode(bytes(record.key or b""), 0, 2)
                if key.transactional_id != name:
                    continue
                after = "none"
                if record.value is not None:
                    value = bytes(record.value)
                    decoded = messages.TransactionLogValue.decode(value, int.from_bytes(value[:2], "big"), 2)
                    after = State(decoded.transaction_status).title
                self.transitions[before, after] += 1
                before = after

    def clean(self) -> None:
        """Let the topics be deleted, so that a broker stays small."""
        self.check_speed()
        self.target.delete_later(self.topic, self.compacted)


def _groups(key: Any) -> tuple[str, ...]:
    return getattr(key, "group", ""), getattr(key, "group_id", "")


def _raw_codes(response: Any) -> set[int]:
    return {int(ErrorCode[name]) for name in codes_of(response)}
