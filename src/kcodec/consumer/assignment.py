# SPDX-License-Identifier: Apache-2.0
"""The assigned partitions of a consumer and its position in each of them (Kafka: SubscriptionState).

A partition is read from `position`. Fetched records and responses to offset requests arrive later. Each of them belongs
to the `version` that the state had at the time of the request. After a seek or a new assignment, it is dropped.

Automatic commits use the completed position. The records that the application got last are not completed yet, so the
completed position is before them. They count as completed when the application requests the next records. A call that
requests records several times before it returns them (`consume` of confluent_kafka) keeps the completed positions
before its records until it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final
from uuid import UUID

from kcodec._fast import Delivery
from kcodec.consumer.delivery import Chunk, LogPosition
from kcodec.errors import TransportError
from kcodec.flow import Signal
from kcodec.offsets import OffsetAndMetadata, TopicPartition

#: What a partition without a usable position waits for.
COMMITTED: Final = "committed"
RESET: Final = "reset"
VALIDATION: Final = "validation"
#: What a partition awaits, for messages.
AWAITED: Final[dict[str | None, str]] = {
    COMMITTED: "the committed offset of its group",
    RESET: "the offset to which it is reset",
    VALIDATION: "the validation of its leader epoch",
}


@dataclass(slots=True, eq=False)
class PartitionState:
    """The position of a consumer in one partition. It is changed on the loop's thread, or by the caller of poll under
    the lock of the assignment.

    position:       Next offset to read; None while it is unknown.
    position_epoch: Leader epoch of the record before the position (KIP-320); -1 if it is unknown.
    chunk:          Decoded records that an iteration delivers one by one. They then determine the position. Setting
                    another position ends the chunk.
    version:        Number that changes after each seek; 0 when the partition is no longer assigned.
    awaiting:       COMMITTED, RESET or VALIDATION while the partition cannot be read for that reason, otherwise None.
    reset_to:       Target of a RESET: "earliest", "latest" or a time in ms. None: see auto_offset_reset.
    reset_from:     Position to be replaced by a RESET, because the log does not contain it; otherwise None.
    is_paused:      The user has paused the partition: nothing is delivered, fetched data is kept.
    is_held_back:   on_assigned runs, and may seek: nothing is delivered yet.
    is_suspended:   The topic may have been deleted and created again: nothing is fetched until this is known.
    is_revoking:    The partition is about to be revoked: nothing more is delivered.
    is_unsubscribed: A later subscription does not contain the topic: nothing more is delivered until the rebalance.
    preferred_replica: Broker to fetch from until `preferred_replica_until`, instead of the leader (KIP-392).
    error:          Error that poll raises until a seek.
    is_error_passing: Whether poll raises `error` only once, and the position is then requested again.
    is_error_reported: Whether poll has raised `error`, and continues with other partitions.
    stored:         Offset that the application has stored for a commit (`store_offsets`), or None.
    is_added:       Whether the application added it to the partitions of the group, so that no rebalance revokes it.
    is_skipped:     Whether the application does not read it although the group assigns it. It then has no position.
    has_moved:      Whether the position has moved past records, markers or aborted records since it was set.
    topic_id:       Id of the topic to which the position belongs; None while it is unknown.
    is_id_given:    Whether the application has passed `topic_id`, and it was not found in the metadata yet.
    former_topic_ids: Ids that the topic had before that one while the partition was assigned.
    high_watermark, last_stable_offset, log_start_offset: Values of the last response; -1 if unknown.
    """

    topic_partition: TopicPartition
    version: int
    awaiting: str | None = COMMITTED
    reset_to: str | int | None = None
    reset_from: int | None = None
    chunk: Chunk | None = None
    is_paused: bool = False
    is_held_back: bool = False
    is_suspended: bool = False
    is_revoking: bool = False
    is_unsubscribed: bool = False
    preferred_replica: int | None = None
    preferred_replica_until: float = 0.0
    error: BaseException | None = None
    is_error_passing: bool = False
    is_error_reported: bool = False
    stored: OffsetAndMetadata | None = None
    is_added: bool = False
    is_skipped: bool = False
    has_moved: bool = False
    topic_id: UUID | None = None
    is_id_given: bool = False
    former_topic_ids: frozenset[UUID] = frozenset()
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    _offset: int | None = None
    _epoch: int = -1
    #: The position before what was delivered last, as long as that is not completed.
    _before: LogPosition | None = None

    @property
    def position(self) -> int | None:
        """The next offset to read."""
        return self._offset if self.chunk is None else self.chunk.position.offset

    @position.setter
    def position(self, offset: int | None) -> None:
        chunk = self.chunk
        if chunk is None:
            self._offset = offset
            return
        if self._before is None and chunk.completed_position != chunk.position:
            self._before = chunk.completed_position
        delivered = chunk.delivered
        # Python runs the handlers of signals when it calls a function, and after a call. The only call from here on is
        # the last step, so an interruption such as Ctrl-C finds all of this done, or nothing.
        self._offset, self.chunk, chunk.stopped_at = offset, None, delivered
        deque(chunk.iterator, maxlen=0)  # any remaining user of the iterator gets no more records

    @property
    def position_epoch(self) -> int:
        """The leader epoch of the record before the position."""
        return self._epoch if self.chunk is None else self.chunk.position.leader_epoch

    @position_epoch.setter
    def position_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    @property
    def log_position(self) -> LogPosition | None:
        """The position and its epoch, read together; None while it is unknown."""
        if self.chunk is not None:
            return self.chunk.position
        return None if self._offset is None else LogPosition(self._offset, self._epoch)

    @property
    def completed_position(self) -> LogPosition | None:
        """The position after the records that the application has completed. None if it is unknown."""
        here = self.log_position
        if self._before is not None:
            return self._before if here is None else min(self._before, here, key=lambda each: each.offset)
        return here if self.chunk is None else self.chunk.completed_position

    @property
    def decoded_from(self) -> int | None:
        """The position without the records that the chunk has delivered: fetched data continues here."""
        return self._offset

    def note_delivery(self) -> None:
        """Call this before the position moves past records that the application gets, because they are not completed
        yet."""
        if self._before is None:
            self._before = self.log_position

    def complete(self) -> None:
        """Count everything that was delivered as completed."""
        self._before = None
        if self.chunk is not None:
            self.chunk.complete()

    def complete_to(self, offset: int, leader_epoch: int) -> None:
        """Count records delivered below `offset` as completed, as the application has committed it."""
        if self.chunk is not None:
            self.chunk.complete_to(offset)
        here = self.log_position
        if self._before is not None and here is not None and offset > self._before.offset:
            self._before = None if offset >= here.offset else LogPosition(offset, leader_epoch)

    def take_back(self) -> None:
        """Move the position back to the completed position, because later records were not processed or not
        received."""
        back, here = self.completed_position, self.log_position
        if back is None or here is None:
            return
        if back != here:
            self.position, self.position_epoch = back
        self._before = None

    def leave_chunk(self) -> None:
        """End the chunk; its position stays."""
        if self.chunk is not None:
            self.position, self.position_epoch = self.chunk.position

    @property
    def is_fetchable(self) -> bool:
        """Whether records are to be fetched and delivered now."""
        return (
            self._offset is not None
            and self.awaiting is None
            and self.error is None
            and not self.is_paused
            and not self.is_held_back
            and not self.is_suspended
            and not self.is_revoking
            and not self.is_unsubscribed
        )

    def is_of_other_topic(self, topic_id: UUID | None) -> bool:
        """Return whether the position does not belong to the topic with this id. None: the id is unknown, so return
        False. Also return False for a former id, because a broker with older metadata can respond with it."""
        return (
            topic_id is not None
            and self.topic_id is not None
            and topic_id != self.topic_id
            and topic_id not in self.former_topic_ids
        )

    @property
    def is_leaving(self) -> bool:
        """Whether nothing more is delivered until the partition is revoked, or subscribed to again."""
        return self.is_revoking or self.is_unsubscribed

    @property
    def is_assigned(self) -> bool:
        """Whether it is still assigned."""
        return self.version != 0

    def __repr__(self) -> str:
        return f"<{self.topic_partition} at {self.position} version {self.version} awaiting {self.awaiting}>"


class Assignment:
    """The assigned partitions.

    lock:     A threading lock in the sync API, a null context in asyncio. It is held while states change.
    post:     Runs a function on the loop's thread. It may be called from any thread.
    changed:  Set on the loop after any change that fetcher and positions must check.
    delivery: Result of the last request for records of an iteration.
    on_reset: Called on the loop, under the lock, when another position has replaced one that the log does not contain:
              with the state, the former offset and the new one.
    """

    def __init__(self, lock: AbstractContextManager[Any], post: Callable[[Callable[[], None]], None]) -> None:
        self.lock = lock
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.changed = Signal()
        self.post = post
        self._is_poked = False
        self._versions = count(1)
        self.delivery = Delivery()
        self.on_reset: Callable[[PartitionState, int, int], None] = lambda state, before, after: None
        #: Whether a partition may be paused, or have an error. Otherwise, the partitions are not searched for one.
        self._may_be_paused = self._may_have_failed = False
        #: The partitions of the records that the last request gave.
        self._given: list[PartitionState] = []
        #: During a call between `hold` and `release`: the positions before the records of this call.
        self._held: dict[PartitionState, LogPosition] | None = None

    # Requests for records, on the thread of the application

    def begin_request(self) -> None:
        """Begin a request of the application for records, which completes the records of the previous request."""
        self.delivery.is_over = True
        self.delivery = Delivery()
        self.complete()

    def complete(self) -> None:
        """Count all delivered records as completed."""
        with self.lock:
            for state in self._given:
                state.complete()
            self._given.clear()

    def hold(self) -> None:
        """Begin a call that requests records several times. Complete the records that were delivered before it. The
        records of the call itself are not completed before `release`."""
        with self.lock:
            self._held = {}
            for state in self._given:
                state.complete()
                if state.chunk is not None:  # its next records need no request
                    self._held[state] = state.chunk.position

    def release(self) -> None:
        """End the call, whose records the application gets now."""
        with self.lock:
            self._held = None

    def note_given(self, state: PartitionState) -> None:
        """Under the lock: call this before the position moves past records, or an iteration delivers them."""
        self._given.append(state)
        if self._held is not None and state not in self._held and (here := state.log_position) is not None:
            self._held[state] = here

    def take_back_request(self) -> None:
        """Undo an interrupted request, because the application did not get its records.

        The application must request the next record again: the next request completes only records that were given for
        a request.
        """
        self.interrupt()
        with self.lock:
            for state in self._given:
                state.take_back()
            self._given.clear()
        self.poke()  # the records that were taken are fetched again

    def take_back(self) -> None:
        """Any thread: move positions back to the completed positions, because the application failed while it processed
        the last records."""
        with self.lock:
            for state in self.partitions.values():
                state.take_back()
            self._given.clear()
        self.interrupt()

    def interrupt(self) -> None:
        """Any thread: make an iteration request again before it takes the next record."""
        self.delivery.is_over = True

    def poke(self) -> None:
        """Any thread: set `changed` on the loop, soon. After the client is closed this has no effect."""
        if not self._is_poked:
            self._is_poked = True
            try:
                with suppress(TransportError):  # closed: flows that end now must not fail because of it
                    self.post(self._set)
            except BaseException:  # such as that of Ctrl-C: the next change is posted again
                self._is_poked = False
                raise

    def _set(self) -> None:
        self._is_poked = False
        self.changed.set()

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition. Raise ValueError if it is not assigned."""
        found = self.partitions.get(partition)
        if found is None:
            assigned = ", ".join(map(str, sorted(self.partitions)[:5])) or "nothing"
            raise ValueError(f"{partition} is not assigned to this consumer; assigned: {assigned}")
        return found

    def consumed(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the positions for a commit: the next offsets to read. With `is_kept`, leave out partitions
        that are being revoked or are lost."""
        return self._offsets(lambda state: state.log_position, partitions, is_kept)

    def completed(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the completed positions, for automatic commits."""
        return self._offsets(self._completed_position, partitions, is_kept)

    def _completed_position(self, state: PartitionState) -> LogPosition | None:
        here = state.completed_position
        held = None if self._held is None else self._held.get(state)
        return here if here is None or held is None else min(here, held, key=lambda each: each.offset)

    def passed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the positions as `consumed` does, but only those that have moved past all records of a
        chunk, and past the markers and aborted records that follow. Leave out the partitions of a call that holds the
        completed positions."""
        held = self._held or ()

        def passed(state: PartitionState) -> LogPosition | None:
            return state.log_position if state.has_moved and state.chunk is None and state not in held else None

        return self._offsets(passed, partitions, False)

    def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Any thread: store these offsets for a commit. If a partition is not assigned, raise ValueError and store none
        of them."""
        with self.lock:
            for state, stored in [(self.state(partition), stored) for partition, stored in offsets.items()]:
                state.stored = stored

    def stored(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the offsets that the application has stored."""
        with self.lock:
            chosen = self.partitions if partitions is None else frozenset(partitions)
            return {
                name: state.stored
                for name, state in self.partitions.items()
                if name in chosen and state.stored is not None and not (is_kept and state.is_revoking)
            }

    def _offsets(
        self,
        position_of: Callable[[PartitionState], LogPosition | None],
        partitions: Iterable[TopicPartition] | None,
        is_kept: bool,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        with self.lock:
            chosen = self.partitions if partitions is None else frozenset(partitions)
            return {
                name: OffsetAndMetadata(found.offset, "", found.leader_epoch)
                for name, state in self.partitions.items()
                if name in chosen and state.awaiting != RESET and (found := position_of(state)) is not None
                if not (is_kept and state.is_revoking)
            }

    # On the loop's thread

    def _has_changed(self) -> None:
        self.interrupt()
        self.changed.set()

    def add(self, partitions: Iterable[TopicPartition], *, is_added: bool = False) -> None:
        """Add partitions, which are read from the committed offsets. Partitions that are already assigned keep their
        state.

        is_added: See `PartitionState`.
        """
        with self.lock:
            for partition in partitions:
                state = self.partitions.get(partition)
                if state is None:
                    state = PartitionState(partition, next(self._versions), is_added=is_added)
                    self.partitions[partition] = state
                elif not is_added:
                    state.is_added = False  # from now on its group assigns it
        self._has_changed()

    def skip(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not read these partitions, which were just added and have no position."""
        with self.lock:
            for state in self._assigned(partitions):
                state.is_skipped, state.awaiting = True, None

    def chosen(self, is_chosen: Callable[[PartitionState], bool]) -> frozenset[TopicPartition]:
        """Any thread: return the partitions whose state the function chooses."""
        with self.lock:
            return frozenset(name for name, state in self.partitions.items() if is_chosen(state))

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions. Those that are not assigned are ignored."""
        with self.lock:
            for partition in partitions:
                if (state := self.partitions.pop(partition, None)) is not None:
                    state.version = 0
                    state.leave_chunk()
        self._has_changed()

    def seek(
        self, partition: TopicPartition, offset: int, leader_epoch: int = -1, topic_id: UUID | None = None
    ) -> None:
        """Continue at `offset`. Responses to earlier requests for this partition are dropped when they arrive.

        leader_epoch: Epoch of the record before it, or -1 if unknown. If it is known, the position is validated first
                      (KIP-320).
        topic_id:     Id of the topic to which the offset belongs. None: the topic that is read now. Another id is first
                      compared with the metadata (`kcodec.consumer.topic_ids`).
        """
        with self.lock:
            state = self._renewed(partition)
            if topic_id is not None and topic_id != state.topic_id:
                state.topic_id, state.is_id_given, state.is_suspended = topic_id, True, True
            state.position, state.position_epoch = offset, leader_epoch
            state.awaiting = VALIDATION if leader_epoch >= 0 else None
        self._has_changed()

    def reset(self, partition: TopicPartition, to: str | int | None = None) -> None:
        """Look up where to continue: "earliest", "latest" or a time in ms. With None, auto_offset_reset decides."""
        with self.lock:
            state = self._renewed(partition)
            state.position, state.position_epoch = None, -1
            state.awaiting, state.reset_to = RESET, to
        self._has_changed()

    def suspend(self, state: PartitionState, is_suspended: bool) -> None:
        """Suspend a partition, or continue with it."""
        with self.lock:
            state.is_suspended = is_suspended
        self._has_changed()

    def begin_again(self, state: PartitionState, topic_id: UUID, error: BaseException | None = None) -> None:
        """Read a partition from its first offset, because its topic was deleted and created again. With an error, read
        nothing until a seek.

        The partition gets a new state, as after another assignment. Offsets of the former topic are then not committed.
        """
        former = state.former_topic_ids
        if state.topic_id is not None and not state.is_id_given:
            former |= {state.topic_id}
        with self.lock:
            state.version = 0
            state.leave_chunk()
            new = self.partitions[state.topic_partition] = PartitionState(
                state.topic_partition,
                next(self._versions),
                RESET,
                "earliest",
                is_paused=state.is_paused,
                is_held_back=state.is_held_back,
                is_revoking=state.is_revoking,
                is_unsubscribed=state.is_unsubscribed,
                is_added=state.is_added,
                topic_id=topic_id,
                former_topic_ids=former,
            )
            if error is not None:
                self.note_error(new, error)
        self._has_changed()

    def _renewed(self, partition: TopicPartition) -> PartitionState:
        state = self.state(partition)
        state.version = next(self._versions)
        state.reset_to = state.reset_from = state.error = None
        state.has_moved = state.is_error_reported = False
        if state.is_id_given:  # it belongs to the position that is replaced
            state.topic_id, state.is_id_given = None, False
        return state

    def fail(self, state: PartitionState, error: BaseException, *, is_passing: bool = False) -> None:
        """Stop reading the partition. Poll raises `error` until a seek. With `is_passing`, poll raises it once, and
        then the position is requested again."""
        with self.lock:
            self.note_error(state, error, is_passing=is_passing)
        self._has_changed()

    def note_error(self, state: PartitionState, error: BaseException, *, is_passing: bool = False) -> None:
        """Under the lock, from any thread: set the error as `fail` does. The caller must call `poke` afterwards."""
        state.error, state.is_error_passing = error, is_passing
        self._may_have_failed = True

    def failed(self) -> dict[TopicPartition, PartitionState]:
        """Under the lock: return the partitions that have an error."""
        if not self._may_have_failed:
            return {}
        found = {name: state for name, state in self.partitions.items() if state.error is not None}
        self._may_have_failed = bool(found)
        return found

    def has_paused(self) -> bool:
        """Under the lock: return whether the user has paused a partition."""
        if self._may_be_paused:
            self._may_be_paused = any(state.is_paused for state in self.partitions.values())
        return self._may_be_paused

    def note_error_reported(self, partition: TopicPartition) -> None:
        """Any thread: do not let poll raise the error of this partition again, until a seek."""
        with self.lock:
            for state in self._assigned([partition]):
                state.is_error_reported = True

    def pause(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        """Pause or resume delivery. Raise ValueError for a partition that is not assigned."""
        with self.lock:
            for state in [self.state(partition) for partition in partitions]:
                state.is_paused = is_paused
            self._may_be_paused = self._may_be_paused or is_paused
        self._has_changed()

    def _assigned(self, partitions: Iterable[TopicPartition]) -> Iterator[PartitionState]:
        return (self.partitions[partition] for partition in partitions if partition in self.partitions)

    def hold_back(self, partitions: Iterable[TopicPartition], is_held_back: bool) -> None:
        """Hold back the delivery of these partitions, or start it."""
        with self.lock:
            for state in self._assigned(partitions):
                state.is_held_back = is_held_back
        self._has_changed()

    def set_revoking(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing more of these partitions, which are about to be revoked."""
        with self.lock:
            for state in self._assigned(partitions):
                state.is_revoking = True
        self._has_changed()

    def states(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, PartitionState]:
        """Any thread: return the states of these partitions, or of all. Leave out those that are not assigned."""
        with self.lock:
            chosen = self.partitions if partitions is None else partitions
            return {state.topic_partition: state for state in self._assigned(chosen)}

    def note_subscription(self, accepts: Callable[[str], Any]) -> list[TopicPartition]:
        """Deliver nothing more of partitions whose topics the new subscription does not contain, and return them. What
        is committed when they are revoked does not change."""
        with self.lock:
            for state in self.partitions.values():
                state.is_unsubscribed = not (state.is_added or accepts(state.topic_partition.topic))
            gone = [name for name, state in self.partitions.items() if state.is_unsubscribed]
        self._has_changed()
        return gone

    def note_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], states: Mapping[TopicPartition, PartitionState]
    ) -> None:
        """Count committed records as completed. The offsets belong to these states. A partition that has got another
        state since then is ignored."""
        with self.lock:
            for state in self._assigned(offsets):
                committed = offsets[state.topic_partition]
                if states.get(state.topic_partition) is state:
                    state.complete_to(committed.offset, committed.leader_epoch)
