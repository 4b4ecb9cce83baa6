# SPDX-License-Identifier: Apache-2.0
"""What becomes of the partitions in an answer to a Fetch (Kafka: FetchCollector, AbstractFetch.handleFetchSuccess).

| code                        | then                                                                              |
| ---                         | ---                                                                               |
| 1                           | from another replica than the leader: the leader is asked; with a last epoch told |
|                             | (a leader that has not so high a one says 1, too): without it; else the reset     |
| 2                           | the partition's error, with a next_offset to go on from; or skipped               |
| 3 5 6 9 13 56 74 100 103    | new metadata, by 6 and 74 at once if they name the leader (KIP-951); again        |
| -1 7 14 75 78               | again after a pause; -1 is raised too, when it has lasted for `request_timeout`   |
| 29 and all others           | raised by poll, once each time it comes                                           |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from kcodec.consumer.assignment import RESET, VALIDATION, Assignment, PartitionState
from kcodec.consumer.fetch_session import Wanted
from kcodec.consumer.fetched import FetchBuffer, FetchedPartition
from kcodec.consumer.settings import ConsumerSettings
from kcodec.errors import DecodeError
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import broker_error, error_code
from kcodec.protocol.flow import Clock, Signal
from kcodec.txn.cluster import Cluster

log = logging.getLogger("kcodec.consumer")
NONE, UNKNOWN_SERVER_ERROR, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE = 0, -1, 1, 2
NOT_LEADER_OR_FOLLOWER, TOPIC_AUTHORIZATION_FAILED, FENCED_LEADER_EPOCH = 6, 29, 74
#: The leader is another one, or none, or does not know yet that it is; the topic is not there, or another one.
STALE_METADATA: Final = frozenset({3, 5, 6, 9, 13, 56, 74, 100, 103})
#: Passes by itself: an epoch the broker has not heard of yet (75), a new leader without a high watermark (78).
PASSING: Final = frozenset({UNKNOWN_SERVER_ERROR, 7, 14, 75, 78})
_MAX_ATTEMPT = 10
# Trouble that comes so long after the last one was waited out is another one.
_QUIET_SECONDS = 5.0


class Metrics(Protocol):
    """The part of `kcodec.client.metrics.Metrics` that is used here."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Something happened, `value` times."""


class Trouble:
    """A partition or a broker that did not answer well: how often in a row, since when, until when it is left alone."""

    __slots__ = ("attempts", "since", "until")

    def __init__(self, now: float) -> None:
        self.attempts = 0
        self.since = now
        self.until = now


class Troubles:
    """Who is left alone for a while: partitions, and brokers by their ids."""

    def __init__(self, clock: Clock, random: Random, backoff: Callable[[int, float], float]) -> None:
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._known: dict[TopicPartition | int, Trouble] = {}

    def put_off(self, key: TopicPartition | int) -> Trouble:
        """Leave it alone, longer each time."""
        now = self._clock()
        trouble = self._known.setdefault(key, Trouble(now))
        if now > trouble.until + _QUIET_SECONDS:
            trouble = self._known[key] = Trouble(now)
        trouble.until = now + self._backoff(min(trouble.attempts, _MAX_ATTEMPT), self._random.random())
        trouble.attempts += 1
        return trouble

    def until(self, key: TopicPartition | int) -> float:
        """The time of the clock until which it is left alone."""
        trouble = self._known.get(key)
        return trouble.until if trouble is not None else 0.0

    def over(self, key: TopicPartition | int) -> None:
        """It answered well."""
        self._known.pop(key, None)

    def keep(self, keys: Set[Any]) -> None:
        """Forget all but these."""
        for gone in self._known.keys() - keys:
            del self._known[gone]


class Asked(NamedTuple):
    """A partition in a request: its state, the version of that then, and what was asked for."""

    state: PartitionState
    version: int
    wanted: Wanted


class FetchAnswers:
    """See the module.

    larger:           what partitions are asked for whose next batch is above max_partition_fetch_bytes.
    without_epoch_at: partitions whose leader, of this epoch, is not told the leader epoch of what was read last.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        buffer: FetchBuffer,
        troubles: Troubles,
        *,
        arrived: Signal,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.cluster = cluster
        self.assignment = assignment
        self.settings = settings
        self.larger: dict[TopicPartition, int] = {}
        self.without_epoch_at: dict[TopicPartition, int] = {}
        self._buffer = buffer
        self._troubles = troubles
        self._arrived_signal = arrived
        self._clock = clock
        self._metrics = metrics

    def take(self, node: int, partition: TopicPartition, asked: Asked, data: Any) -> None:
        """One partition of an answer of broker `node`."""
        if data.error_code == NONE:
            self._arrived(node, partition, asked, data)
        elif asked.state.version == asked.version and asked.state.awaiting is None:
            self._refused(node, partition, asked, data)

    def _arrived(self, node: int, partition: TopicPartition, asked: Asked, data: Any) -> None:
        """A good answer: keep its records, and what it says of the log."""
        self._troubles.over(partition)
        state, version, wanted = asked
        entry = FetchedPartition(state, version, wanted.offset, data, self.settings) if data.records else None
        if entry is not None and entry.bytes_needed > wanted.max_bytes and self._asks_for_more(partition, entry):
            return
        with self.assignment.lock:
            if state.version != version:
                return
            state.high_watermark, state.last_stable_offset = data.high_watermark, data.last_stable_offset
            if data.log_start_offset >= 0:
                state.log_start_offset = data.log_start_offset
            if data.preferred_read_replica >= 0 and data.preferred_read_replica != node:
                state.preferred_replica = data.preferred_read_replica
                state.preferred_replica_until = self._clock() + self.settings.metadata_max_age
            self._look_for_divergence(node, state, data.diverging_epoch)
            is_kept = entry is not None and self._buffer.add(entry)
        if is_kept:
            self._metrics.count("consumer.fetched_bytes", len(data.records), node=node)
            self._arrived_signal.set()
        if state.awaiting is not None:
            self.assignment.changed.set()

    def _asks_for_more(self, partition: TopicPartition, entry: FetchedPartition) -> bool:
        """A batch that did not fit into max_partition_fetch_bytes, of a broker that cuts even the first one."""
        if not entry.is_cut or entry.bytes_needed > self.settings.limits.max_batch_bytes:
            return False
        self.larger[partition] = entry.bytes_needed
        return True

    def _look_for_divergence(self, node: int, state: PartitionState, diverging: Any) -> None:
        """The broker's log has not the leader epoch that we read last, up to where we read it (KIP-320, KIP-595)."""
        if diverging.epoch < 0 and diverging.end_offset < 0:
            return
        log.info("%s: the log of broker %d parts from what was read, %r", state.topic_partition, node, diverging)
        self._troubles.put_off(state.topic_partition)
        if state.awaiting is None and not self._buffer.ahead(state):  # else: once that is taken
            state.awaiting = VALIDATION

    def _refused(self, node: int, partition: TopicPartition, asked: Asked, data: Any) -> None:
        """An error for one partition: see the table at the top."""
        state, _, wanted = asked
        code, row = data.error_code, error_code(data.error_code)
        trouble = self._troubles.put_off(partition)
        log.info("%s at offset %d from broker %d: %s", partition, wanted.offset, node, row.name)
        self._metrics.count("consumer.fetch_errors", code=row.name)
        was_preferred, state.preferred_replica = state.preferred_replica == node, None
        if code == OFFSET_OUT_OF_RANGE:
            if wanted.last_epoch >= 0 and not was_preferred:
                self.without_epoch_at[partition] = wanted.leader_epoch
                self._troubles.over(partition)
            elif not was_preferred:
                self._out_of_range(state, wanted)
        elif code in STALE_METADATA:
            hint = data.current_leader
            if code in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH) and hint.leader_id >= 0:
                self.cluster.learn_leader(*partition, hint.leader_id, hint.leader_epoch)
                self._troubles.over(partition)
            self.cluster.request_update(f"{partition}: {row.name}")
        elif code == CORRUPT_MESSAGE:
            self._corrupt(node, partition, asked)
        elif code not in PASSING:
            resource = partition.topic if code == TOPIC_AUTHORIZATION_FAILED else partition
            self.pass_on(broker_error(code, f"Fetch from broker {node}", resource=resource))
        elif code == UNKNOWN_SERVER_ERROR and self._clock() - trouble.since > self.settings.request_timeout:
            trouble.since = self._clock()
            self.pass_on(broker_error(code, f"Fetch at offset {wanted.offset} from broker {node}", resource=partition))

    def pass_on(self, error: BaseException) -> None:
        """Have poll raise it once, and go on: what it is about may be cured meanwhile."""
        with self.assignment.lock:
            if str(error) not in map(str, self._buffer.passing):
                self._buffer.passing.append(error)
        self._arrived_signal.set()

    def _out_of_range(self, state: PartitionState, wanted: Wanted) -> None:
        with self.assignment.lock:
            if state.position != wanted.offset:
                return  # the records before it are still to be taken
            state.awaiting, state.reset_to = RESET, None
        log.warning(
            "%s: offset %d is not in the log; auto_offset_reset=%s decides where reading goes on",
            state.topic_partition,
            wanted.offset,
            self.settings.auto_offset_reset,
        )
        self.assignment.changed.set()

    def _corrupt(self, node: int, partition: TopicPartition, asked: Asked) -> None:
        """The broker itself finds its log damaged there."""
        state, _, wanted = asked
        failure = DecodeError(
            f"broker {node} finds the batch at offset {wanted.offset} corrupt and does not send it (CORRUPT_MESSAGE); "
            f"next_offset {wanted.offset + 1} is a guess: seek there to go on",
            topic_partition=partition,
            next_offset=wanted.offset + 1,
        )
        with self.assignment.lock:
            if state.position != wanted.offset:
                return
            self._buffer.fail(state, failure)
        if state.error is None:
            self._troubles.over(partition)  # it was skipped: on at once
        self.assignment.changed.set()
        self._arrived_signal.set()
