# SPDX-License-Identifier: Apache-2.0
"""Commits of a consumer: requested commits use the positions, automatic commits the completed positions. See
`kcodec.consumer.assignment` for the difference. Without enable_auto_offset_store, both use what the application has
stored."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from kcodec.cluster.flow_lock import FlowLock
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.callbacks import CallbackQueue
from kcodec.consumer.committed_offsets import REMOVAL_CAUSES, REMOVED_CODES, CommittedOffsets
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import BrokerError, DeliveryTimeoutError, KcodecError
from kcodec.flow import Clock, Flow, Signal, wait
from kcodec.offsets import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error
from kcodec.quantities import seconds_text

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
#: The states of the partitions at the time of the request for a commit.
States = Mapping[TopicPartition, PartitionState]
#: Called with the offsets and None, or an error.
OnCommitted = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]
log = logging.getLogger("kcodec.consumer")
#: Longest time that a rebalance waits for the commit before it; a call with a timeout waits no longer than that.
REVOCATION_SECONDS = 10.0
#: Automatic commits repeat unchanged offsets after this time if the broker may delete them. It is half of the shortest
#: retention (offsets.retention.minutes=1). Each repetition costs one small request, and the broker writes a record for
#: each partition.
REPEAT_SECONDS = 30.0
#: Partitions that a log line names.
MAX_NAMED_PARTITIONS = 20


def named_text(names: Iterable[str]) -> str:
    """Return a text for a log line or an error that names at most MAX_NAMED_PARTITIONS partitions."""
    all_names = list(names)
    more = f" and {len(all_names) - MAX_NAMED_PARTITIONS} more" if len(all_names) > MAX_NAMED_PARTITIONS else ""
    return ", ".join(all_names[:MAX_NAMED_PARTITIONS]) + more


@dataclass(slots=True, eq=False)
class _Turn:
    """A commit in the queue whose caller waits for it. If no other commit is queued or in flight, it begins
    immediately.

    has_begun: Whether the commits before it have ended.
    is_over:   Whether the next commit may begin.
    changed:   Set when one of these changes.
    """

    has_begun: bool = False
    is_over: bool = False
    changed: Signal = field(default_factory=Signal)


@dataclass(slots=True, eq=False)
class _CommitRequest:
    """A requested commit.

    callbacks: Callbacks, each with the offsets of its call.
    states:    States of the partitions that were assigned at the time of the request.
    """

    offsets: dict[TopicPartition, OffsetAndMetadata]
    callbacks: list[tuple[OnCommitted, dict[TopicPartition, OffsetAndMetadata]]]
    is_forced: bool
    states: dict[TopicPartition, PartitionState]
    is_over: bool = False

    def merge(self, newer: _CommitRequest) -> bool:
        """Add the next request to this one. Its offsets replace those of this request. Return False if the requests
        cannot be merged, because a callback would get the error of a partition that its call did not name."""
        if (self.callbacks or newer.callbacks) and self.offsets.keys() != newer.offsets.keys():
            return False
        self.offsets.update(newer.offsets)
        self.callbacks += newer.callbacks
        self.is_forced |= newer.is_forced
        for partition in newer.offsets:  # these may have been assigned again, or are not assigned at all
            self.states.pop(partition, None)
        self.states.update(newer.states)
        return True


def _still_ours(offsets: Offsets, states: States) -> Offsets:
    """Remove partitions that were revoked since the request for a commit, because a commit of another generation must
    not include them. Also remove partitions whose topic was created again, because the offsets belong to the deleted
    topic.

    states: See `_CommitRequest`.
    """
    return {
        partition: offset
        for partition, offset in offsets.items()
        if partition not in states or states[partition].is_assigned
    }


class Commits:
    """The commits of one consumer, in order, one at a time.

    committed: The committed offsets; None for a consumer without a group.
    member:    Returns the current identity for a commit.
    is_obsolete: Returns whether the position of a partition is that of a topic that was deleted.
    on_commit: Called with the offsets of a commit, and the states to which they belong, before it is sent.
    """

    def __init__(
        self,
        committed: CommittedOffsets | None,
        assignment: Assignment,
        callbacks: CallbackQueue,
        settings: ConsumerSettings,
        clock: Clock,
        member: Callable[[], ConsumerGroupMetadata],
        is_obsolete: Callable[[PartitionState], bool] = lambda state: False,
        on_commit: Callable[[Offsets, States], None] = lambda offsets, states: None,
    ) -> None:
        self._committed = committed
        self._assignment = assignment
        self._callbacks = callbacks
        self._settings = settings
        self._clock = clock
        self._member = member
        self.queue: deque[_CommitRequest | _Turn] = deque()
        self._is_obsolete = is_obsolete
        self._on_commit = on_commit
        self._commit_lock = FlowLock(clock)
        self._requested = Signal()
        #: Set when the commit under way has ended.
        self._ended = Signal()
        #: The element of the queue that is being processed.
        self._current: _CommitRequest | _Turn | None = None
        #: Commits in flight that did not have to wait in the queue.
        self._direct: list[_Turn] = []
        self._due: float | None = None
        self._last: dict[TopicPartition, OffsetAndMetadata] = {}
        self._last_at = clock()

    @property
    def is_automatic(self) -> bool:
        """Whether positions are committed automatically."""
        return self._settings.enable_auto_commit and self._committed is not None

    def requested(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the offsets for a commit that names none: the positions, or the stored offsets."""
        assignment = self._assignment
        return assignment.consumed() if self._settings.enable_auto_offset_store else assignment.stored()

    def _automatic(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_kept: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Any thread: return the offsets of automatic commits: those of completed records, or those that the
        application has stored. Offsets of deleted topics are left out, because they must not become the committed
        offsets of a new topic with the same name."""
        assignment = self._assignment
        source = assignment.completed if self._settings.enable_auto_offset_store else assignment.stored
        found = source(partitions, is_kept=is_kept)
        return self._without_obsolete(found, assignment.states(found))

    def _without_obsolete(self, offsets: Offsets, states: States) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            name: offset
            for name, offset in offsets.items()
            if (state := states.get(name)) is None or not self._is_obsolete(state)
        }

    def forget(self) -> None:
        """Forget the last commit, as other members may have committed since."""
        self._last = {}

    def note_poll(self, now: float) -> None:
        """Any thread: note that a call requests records, or still waits for them. If an automatic commit is due, commit
        the completed records, which are those that were delivered before the call."""
        if not self.is_automatic:
            return
        if self._due is None:
            self._due = now + self._settings.auto_commit_interval
        elif now >= self._due:
            self._due = now + self._settings.auto_commit_interval
            states = self._assignment.states()
            self._put(self._automatic(is_kept=True), states)

    def is_due(self, now: float) -> bool:
        """Return whether the next request for records commits."""
        return self.is_automatic and self._due is not None and now >= self._due

    def seconds_until_due(self, now: float) -> float:
        """Any thread: return the time until the next automatic commit: 0 or less if it is due, and infinity if there
        will be none."""
        return self._due - now if self.is_automatic and self._due is not None else inf

    def put(self, offsets: Offsets | None, on_committed: OnCommitted | None, *, is_forced: bool = False) -> None:
        """Any thread: commit in the background. Without offsets, commit those of `requested`. With `is_forced`, also
        commit offsets that are equal to those of the last commit."""
        states = self._assignment.states(offsets)
        self._put(self.requested() if offsets is None else offsets, states, on_committed, is_forced=is_forced)

    def _put(
        self, offsets: Offsets, before: States, on_committed: OnCommitted | None = None, *, is_forced: bool = False
    ) -> None:
        """See `put`. `before` has the states before the offsets were read. If a partition got another state since then,
        its offset could belong to a former topic, and is not committed."""
        with self._assignment.lock:
            states = {partition: before[partition] for partition in offsets if partition in before}
            callbacks = [] if on_committed is None else [(on_committed, dict(offsets))]
            request = _CommitRequest(dict(offsets), callbacks, is_forced, states)
            last = self.queue[-1] if self.queue else None
            if not isinstance(last, _CommitRequest) or not last.merge(request):
                self.queue.append(request)
        self._assignment.post(self._requested.set)

    def run(self) -> Flow[None]:
        """Commit in the background."""
        while True:
            while self.queue:
                with self._assignment.lock:
                    self._current = request = self.queue.popleft()
                if isinstance(request, _Turn):
                    yield from self._give_turn(request)
                else:
                    yield from self._background(request)
                    request.is_over = True
                self._current = None
                self._ended.set()
            yield from wait(self._requested)

    def _give_turn(self, turn: _Turn) -> Flow[None]:
        """Let a caller commit. Wait until it has committed or has given up."""
        turn.has_begun = True
        turn.changed.set()
        while not turn.is_over:
            yield from wait(turn.changed)

    def _pending(self) -> list[_CommitRequest | _Turn]:
        """Return the requests that are in flight or queued."""
        with self._assignment.lock:
            current = [] if self._current is None else [self._current]
            return [*self._direct, *current, *self.queue]

    def _background(self, request: _CommitRequest) -> Flow[None]:
        error: BaseException | None = None
        try:
            # Offsets of a deleted topic are committed only if the application asks for it.
            offsets = request.offsets if request.is_forced else self._without_obsolete(request.offsets, request.states)
            gone: Collection[TopicPartition] = ()
            if request.is_forced or _still_ours(offsets, request.states) != self._last or self._must_repeat():
                gone = yield from self._commit(offsets, request.states, self._settings.default_api_timeout)
            if request.is_forced and gone:
                error = self._not_sent(gone)
                if not request.callbacks:
                    log.warning("a commit in the background failed: %s", error.reason)
        except KcodecError as failed:
            error = failed
            if not request.callbacks:
                log.warning("a commit in the background failed: %s", _reason(failed))
        self._call_back(request, error)

    def _not_sent(self, gone: Iterable[TopicPartition]) -> BrokerError:
        return broker_error(
            ErrorCode.ILLEGAL_GENERATION,
            f"the commit of {named_text(map(str, sorted(gone)))} was not sent",
            resource=self._settings.group_id,
            text="the consumer had lost the partitions, for example because the program did not poll within"
            " max_poll_interval_ms, or their topic was created again; the records are read again",
        )

    def _must_repeat(self) -> bool:
        """Return whether to commit unchanged offsets again, because otherwise the broker deletes them after
        offsets.retention.minutes. It keeps the offsets of a topic to which a member of the group is subscribed, but not
        those of partitions that the application has chosen."""
        if self._clock() < self._last_at + REPEAT_SECONDS:
            return False
        return not self._member().member_id or bool(self._assignment.chosen(lambda state: state.is_added))

    def _call_back(self, request: _CommitRequest, error: BaseException | None) -> None:
        for on_committed, offsets in request.callbacks:
            self._callbacks.put(on_committed, offsets, error)
        request.callbacks = []

    def commit_in_turn(self, offsets: Offsets, timeout: float) -> Flow[None]:
        """Commit after the background commits that were requested before, and before those that are requested later.
        Otherwise older offsets could replace newer ones. Wait for the response.

        Raise BrokerError if a rebalance has revoked the partitions, or DeliveryTimeoutError.
        """
        deadline, turn = self._clock() + timeout, _Turn()
        turn.has_begun = not self._pending()
        states = self._assignment.states(offsets)
        with self._assignment.lock:
            (self._direct if turn.has_begun else self.queue).append(turn)
        if not turn.has_begun:
            self._requested.set()
        try:
            while not turn.has_begun:
                left = deadline - self._clock()
                if left <= 0:
                    raise _previous_commit_late(timeout)
                yield from wait(turn.changed, left)
            gone = yield from self._commit(offsets, states, max(deadline - self._clock(), 0.0), timeout)
            if gone:
                raise self._not_sent(gone)
        finally:
            turn.is_over = True
            turn.changed.set()
            if turn in self._direct:
                self._direct.remove(turn)
                self._ended.set()

    def _commit(
        self, offsets: Offsets, states: States, timeout: float, limit: float | None = None
    ) -> Flow[Collection[TopicPartition]]:
        """Commit, and wait for the response. Return the partitions that were left out, because they were revoked since
        the request. Raise BrokerError if a rebalance has revoked the partitions, or DeliveryTimeoutError.

        states: See `_CommitRequest`.
        limit:  Time limit of the whole call in seconds, for messages.
        """
        if self._committed is None:
            raise ValueError("commit needs a consumer with group_id=, as offsets are committed for a group")
        if not offsets:
            return ()
        deadline = self._clock() + timeout
        limit = timeout if limit is None else limit
        # The repeat of an older commit must not follow a newer commit.
        if not (yield from self._commit_lock.acquire(timeout)):
            raise _previous_commit_late(limit)
        try:
            requested, offsets = offsets, _still_ours(offsets, states)
            gone = requested.keys() - offsets.keys()
            if not offsets:
                return gone
            # Until the response arrives, the committed offsets are unknown.
            self._last = {}
            # The epoch of a member can change while its partitions stay, so a repeated commit uses the new epoch. With
            # the classic protocol, it keeps the generation: in the next one, another member may own the partitions.
            is_epoch = self._settings.group_protocol == "consumer"
            owned = [states[partition] for partition in offsets if partition in states]
            member = self._owner_of(owned) if is_epoch else self._member()
            left = max(deadline - self._clock(), 0.0)
            self._on_commit(offsets, states)
            # The topic of a partition may be replaced while the commit waits, or is in flight.
            topic_ids = {name: state.topic_id for name, state in states.items() if state.topic_id is not None}
            yield from self._committed.commit(offsets, member, left, limit, topic_ids=topic_ids)
            there = self._assignment.partitions
            self._last = {name: one for name, one in offsets.items() if there.get(name) is states.get(name)}
            self._last_at = self._clock()
            self._assignment.note_committed(offsets, states)
            return gone
        finally:
            self._commit_lock.release()

    def _owner_of(self, states: list[PartitionState]) -> Callable[[], ConsumerGroupMetadata]:
        """Return a function that returns the identity with which to commit offsets of these partitions. Once one of
        them is revoked, it no longer follows the epoch of the member, because a request with the next epoch could
        replace the offset of the next owner."""
        last = self._member()

        def owner() -> ConsumerGroupMetadata:
            nonlocal last
            if all(state.is_assigned for state in states):
                last = self._member()
            return last

        return owner

    def commit_before_revocation(
        self, partitions: Iterable[TopicPartition], deadline: float | None = None
    ) -> Flow[None]:
        """Wait for the commits in the background. If commits are automatic, commit the completed positions or stored
        offsets of these partitions. Log a failure; the next owner then reads the uncommitted records again.

        deadline: Deadline of the call that revokes them, by the client's clock; None for a rebalance.
        """
        # A coordinator refuses commits of a member that has left, and revoked partitions cannot be committed.
        yield from self.drain_first(deadline)
        if not self.is_automatic:
            return
        offsets = self._automatic(partitions)
        if all(self._last.get(partition) == offset for partition, offset in offsets.items()):
            return
        try:
            timeout = min(self._settings.default_api_timeout, REVOCATION_SECONDS)
            if deadline is not None:  # half of the remaining time, because on_revoked is called next
                timeout = max(min(timeout, (deadline - self._clock()) / 2), 0.0)
            yield from self.commit_in_turn(offsets, timeout)
        except KcodecError as error:
            log.warning("the commit before a revocation failed, so records will be read again: %s", _reason(error))

    def drain(self, deadline: float | None = None) -> Flow[None]:
        """Wait until the commits that are now queued or in flight have ended. `deadline` is a time of the client's
        clock; None: wait for at most REVOCATION_SECONDS. Do not wait for later requests, because they may never
        stop."""
        until = self._clock() + REVOCATION_SECONDS if deadline is None else deadline
        pending = self._pending()
        # Check all of them: if the caller of a turn has given up, the turn is over before the commits ahead of it.
        while not all(one.is_over for one in pending):
            left = until - self._clock()
            if left <= 0:
                return
            yield from wait(self._ended, left)

    def drain_first(self, deadline: float | None) -> Flow[None]:
        """Wait as `drain` does, for at most half of the remaining time, because the next steps need time, too."""
        now = self._clock()
        yield from self.drain(None if deadline is None else now + (deadline - now) / 2)

    def end(self) -> None:
        """Log the commits that are still queued or in flight when the consumer closes, and report them to the
        callbacks."""
        with self._assignment.lock:
            pending = [self._current, *self.queue]
            requests = [one for one in pending if isinstance(one, _CommitRequest)]
            for turn in pending:
                if isinstance(turn, _Turn):  # its caller gets the error of the commit at once
                    turn.has_begun = True
                    turn.changed.set()
            self.queue.clear()
            self._current = None
        if not requests:
            return
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for request in requests:
            offsets |= request.offsets
        text = (
            f"the commit of {named_text(f'{name} at {one.offset}' for name, one in sorted(offsets.items()))} was not"
            " confirmed before the consumer closed, so the next owners of the partitions may read records again"
        )
        log.warning("%s", text)
        error = DeliveryTimeoutError(text)
        for request in requests:
            self._call_back(request, error)


def _previous_commit_late(timeout: float) -> DeliveryTimeoutError:
    return DeliveryTimeoutError(f"the previous commit got no response within {seconds_text(timeout)}")


def _reason(error: KcodecError) -> object:
    """Return what to log about a failed commit. The remedy of a broker error is that of a transaction."""
    if isinstance(error, BrokerError) and error.code in REMOVED_CODES:
        return (
            f"the group has removed this consumer ({error.name}); {REMOVAL_CAUSES}. The next owners of the partitions"
            " read the records after the last commit again; a consumer that polls joins again"
        )
    return error
