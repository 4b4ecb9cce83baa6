# SPDX-License-Identifier: Apache-2.0
"""What becomes of the partitions in an answer to a Fetch (Kafka: FetchCollector, AbstractFetch.handleFetchSuccess).

| code                        | then                                                                              |
| ---                         | ---                                                                               |
| 1                           | from another replica than the leader: the leader is asked; with a last epoch told |
|                             | (a leader that has not so high a one says 1, too): without it; else the reset     |
| 2                           | again after a pause; when the broker has refused the offset for long enough (see  |
|                             | `_corrupt`), raised by poll each time it comes; or skipped, offset by offset      |
| 3 5 6 9 13 56 74 100 103    | new metadata, by 6 and 74 at once if they name the leader (KIP-951); again        |
| -1 and all other retriable  | again after a pause; -1 is raised too, when it has lasted for `request_timeout`   |
| 29 and all others           | raised by poll, once each time it comes; their remedy is "stop", as the same      |
|                             | request gets the same response until something is changed                         |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import RESET, VALIDATION, Assignment, PartitionState
from kcodec.consumer.fetch_buffer import FetchBuffer, FetchedPartition
from kcodec.consumer.fetch_session import Wanted
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError
from kcodec.flow import Clock, Signal
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import broker_error, error_code

log = logging.getLogger("kcodec.consumer")
NONE, UNKNOWN_SERVER_ERROR, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE = 0, -1, 1, 2
NOT_LEADER_OR_FOLLOWER, TOPIC_AUTHORIZATION_FAILED, FENCED_LEADER_EPOCH = 6, 29, 74
#: The leader is another one, or none, or does not know yet that it is; the topic is not there, or another one.
STALE_METADATA: Final = frozenset({3, 5, 6, 9, 13, 56, 74, 100, 103})
#: An offset that the broker refuses with CORRUPT_MESSAGE is called corrupt after this number of refusals in a row ...
CORRUPT_REFUSALS: Final = 5
#: ... and not before this time has passed since the first of them.
CORRUPT_SECONDS: Final = 10.0
#: on_corrupt="skip": refusals of an offset that directly follows one that was called corrupt and left out.
NEXT_CORRUPT_REFUSALS: Final = 2
_MAX_ATTEMPT = 10
# Trouble that comes so long after the last one was waited out is another one.
_QUIET_SECONDS = 5.0


class Metrics(Protocol):
    """The part of `kcodec.network.metrics.Metrics` that is used here."""

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Something happened, `value` times."""


class Trouble:
    """A partition or a broker that did not answer well: how often in a row, since when, until when it is left alone.

    cause: what it was the last time, for people.
    """

    __slots__ = ("attempts", "cause", "since", "until")

    def __init__(self, now: float) -> None:
        self.attempts = 0
        self.cause = ""
        self.since = now
        self.until = now


class Troubles:
    """Who is left alone for a while: partitions, and brokers by their ids."""

    def __init__(self, clock: Clock, random: Random, backoff: Callable[[int, float], float]) -> None:
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._known: dict[TopicPartition | int, Trouble] = {}

    def put_off(self, key: TopicPartition | int, cause: str = "") -> Trouble:
        """Leave it alone, longer each time."""
        now = self._clock()
        trouble = self._known.setdefault(key, Trouble(now))
        if now > trouble.until + _QUIET_SECONDS:
            trouble = self._known[key] = Trouble(now)
        trouble.until = now + self._backoff(min(trouble.attempts, _MAX_ATTEMPT), self._random.random())
        trouble.attempts += 1
        trouble.cause = cause or trouble.cause
        return trouble

    def known(self, key: TopicPartition | int | None) -> Trouble | None:
        """The trouble that a partition or a broker is in; None for one that responded well the last time."""
        return None if key is None else self._known.get(key)

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


class Refusals:
    """An offset that brokers refuse with CORRUPT_MESSAGE. version: of the state when it was requested.

    begin: the first of consecutive offsets that were refused as corrupt; None if there is none.
    """

    __slots__ = ("begin", "count", "offset", "since", "version")

    def __init__(self, version: int, offset: int, now: float, begin: int | None = None) -> None:
        self.version = version
        self.offset = offset
        self.since = now
        self.begin = begin
        self.count = 0

    def is_corrupt(self, now: float) -> bool:
        """Whether the offset was refused long enough to call it corrupt."""
        if self.begin is not None:
            return self.count >= NEXT_CORRUPT_REFUSALS
        return self.count >= CORRUPT_REFUSALS and now - self.since >= CORRUPT_SECONDS


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
        self._refusals: dict[TopicPartition, Refusals] = {}
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
        self._read_again(partition, asked)
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
        cause = f"broker {node} responded to Fetch at offset {wanted.offset} with {row.name}"
        trouble = self._troubles.put_off(partition, cause)
        log.info("%s: %s", partition, cause)
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
        elif not row.retriable and code != UNKNOWN_SERVER_ERROR:
            resource = partition.topic if code == TOPIC_AUTHORIZATION_FAILED else partition
            self.pass_on(broker_error(code, f"Fetch from broker {node}", resource=resource, remedy="stop"))
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
        """The broker refuses the offset with CORRUPT_MESSAGE: its own log is corrupt there, or reading it failed once.

        The code is retriable, and no byte of the batch was sent: nothing may be left out for one such response. The
        offset is requested again after a pause, from the leader that the metadata then names. What was refused
        CORRUPT_REFUSALS times in CORRUPT_SECONDS counts as corrupt: poll raises that, and the request is repeated all
        the same. With on_corrupt="skip" that one offset is left out; where the next one is refused, too, it follows
        after NEXT_CORRUPT_REFUSALS, until the broker sends records again.
        """
        state, version, wanted = asked
        if state.position != wanted.offset:
            return  # the records before it are still to be taken
        now, refused = self._clock(), self._refusals.get(partition)
        if refused is None or (refused.version, refused.offset) != (version, wanted.offset):
            refused = self._refusals[partition] = self._refused_next(refused, asked, now)
        refused.count += 1
        self.cluster.request_update(f"{partition}: CORRUPT_MESSAGE")
        if not refused.is_corrupt(now):
            return
        if self.settings.on_corrupt == "skip":
            self._leave_out(node, state, refused)
            return
        refused.begin = wanted.offset if refused.begin is None else refused.begin
        self.assignment.fail(state, _refused_error(node, partition, wanted.offset), is_passing=True)
        self._arrived_signal.set()

    def keep_refusals(self, partitions: Set[TopicPartition]) -> None:
        """Forget the refused offsets of all partitions but these."""
        for gone in self._refusals.keys() - partitions:
            del self._refusals[gone]

    def _refused_next(self, before: Refusals | None, asked: Asked, now: float) -> Refusals:
        """Begin to count the refusals of an offset. One behind an offset that is called corrupt is so sooner: with
        on_corrupt="skip" only the one that follows directly, as it may be left out; else any further one."""
        _, version, wanted = asked
        is_skip = self.settings.on_corrupt == "skip"
        is_behind = before is not None and (before.version == version if is_skip else before.offset < wanted.offset)
        return Refusals(version, wanted.offset, now, before.begin if before is not None and is_behind else None)

    def _leave_out(self, node: int, state: PartitionState, refused: Refusals) -> None:
        """on_corrupt="skip": go on one offset behind one that was refused long enough."""
        with self.assignment.lock:
            if state.version != refused.version or state.position != refused.offset:
                return
            state.position, state.position_epoch = refused.offset + 1, -1
            if refused.begin is None:
                refused.begin = refused.offset
                self._buffer.skipped_batches += 1
        if refused.begin == refused.offset:
            log.warning(
                "%s: left out offset %d, whose bytes were never received: broker %d refused it with CORRUPT_MESSAGE "
                'for at least %g s (on_corrupt="skip")',
                state.topic_partition,
                refused.offset,
                node,
                CORRUPT_SECONDS,
            )
        self._troubles.over(state.topic_partition)
        self.assignment.changed.set()

    def _read_again(self, partition: TopicPartition, asked: Asked) -> None:
        """The broker sends records, or says that there are none yet: what it refused before is over."""
        refused = self._refusals.pop(partition, None)
        if self.settings.on_corrupt != "skip" or refused is None or refused.begin is None:
            return
        if refused.version == asked.version and refused.begin < asked.wanted.offset:
            log.warning(
                "%s: offsets %d to %d were left out, as the broker refused them with CORRUPT_MESSAGE; reading "
                "continues at offset %d",
                partition,
                refused.begin,
                asked.wanted.offset - 1,
                asked.wanted.offset,
            )


def _refused_error(node: int, partition: TopicPartition, offset: int) -> DecodeError:
    """For on_corrupt="raise"; it is not raised here."""
    return DecodeError(
        f"broker {node} refuses offset {offset} with CORRUPT_MESSAGE (at least {CORRUPT_REFUSALS} requests in "
        f"{CORRUPT_SECONDS:g} s), so its log is probably corrupt there. The bytes were never received, so next_offset "
        "is None: where the next intact record begins is not known. The offset is requested again while the "
        f"application polls; seek to {offset + 1} or further to leave records out, or have the broker's disk repaired",
        topic_partition=partition,
    )
