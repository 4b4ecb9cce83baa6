# SPDX-License-Identifier: Apache-2.0
"""The rebalance handler of a plain consumer: partitions are revoked while the application polls, never while it
processes records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from kcodec.cluster.metadata import Cluster
from kcodec.consumer.assignment import Assignment
from kcodec.consumer.callbacks import Callback, CallbackQueue, RebalanceListener
from kcodec.consumer.commits import Commits, named_text
from kcodec.consumer.options import ConsumerSettings
from kcodec.flow import Clock, Flow, Signal, wait
from kcodec.offsets import TopicPartition

Partitions = Iterable[TopicPartition]
log = logging.getLogger("kcodec.consumer")


def lost_text(gone: Collection[TopicPartition], settings: ConsumerSettings, cluster: Cluster) -> str:
    """Return the sentence for partitions that other members may own already: the consumer, its group and the cause."""
    group_id = settings.group_id or ""
    error = cluster.coordinators.errors.get(("group", group_id)) or cluster.last_error
    cause = (
        f"the coordinator of the group does not respond; last cause: {error}"
        if error is not None
        else "the group has gone on without this member, for example because session_timeout_ms or max_poll_interval_ms"
        " has passed"
    )
    return (
        f"consumer {settings.client_id!r} of group {group_id!r} has lost its partitions"
        f" {named_text(map(str, sorted(gone)))}, which other members may read now: {cause}"
    )


class Polls:
    """The polls of the application, as the loop sees them. `is_awaited` is set while a rebalance waits for the next
    poll."""

    def __init__(self, clock: Clock, interrupt: Callable[[], None]) -> None:
        self.is_awaited = False
        self._clock = clock
        self._interrupt = interrupt
        self._began = Signal()
        self._count = 0
        self._end_wait: Callable[[], None] | None = None
        self._polled_at = clock()

    def note(self) -> None:
        """Any thread: note that the application polls."""
        self._polled_at = self._clock()

    def polled_within(self, seconds: float) -> bool:
        """Return whether the application polls now, or did so within the last `seconds`."""
        return self.seconds_since() < seconds

    def seconds_since(self) -> float:
        """Return the time since the application polled last; 0 while it polls."""
        is_polling = self._count > 0 or self._end_wait is not None
        return 0.0 if is_polling else self._clock() - self._polled_at

    def begin_wait(self, end: Callable[[], None]) -> None:
        """On the thread or task that calls poll: note that the poll waits for records without a flow. `end_wait` must
        follow. `end` is called on the loop, possibly several times, when the poll must check again."""
        self._end_wait = end

    def end_wait(self) -> None:
        """On the thread or task that calls poll: note that it no longer waits."""
        self._end_wait = None
        self._polled_at = self._clock()

    def wake(self) -> None:
        """On the loop: let a poll that waits for records check again."""
        end = self._end_wait
        if end is not None:
            end()

    def begin(self) -> None:
        """On the loop: note that a poll, or a call that makes callbacks, waits in a flow. `end` must follow."""
        self._count += 1
        self._began.set()

    def end(self) -> None:
        """Note that the poll no longer waits."""
        self._count -= 1
        self._polled_at = self._clock()

    def until_polled(self) -> Flow[None]:
        """Wait for a poll, during which the application processes no records. Return immediately during a poll."""
        if self._count:
            return
        self.is_awaited = True
        self._interrupt()
        self.wake()  # it then waits in a flow, which calls `begin`
        try:
            while not self._count:
                yield from wait(self._began)
        finally:
            self.is_awaited = False


class ConsumerRebalanceHandler:
    """The RebalanceHandler of a plain consumer: its partitions change only while the application polls.

    add, remove: Start and stop reading partitions.
    lost_text:   Returns the sentence to log about lost partitions.
    """

    def __init__(
        self,
        assignment: Assignment,
        polls: Polls,
        callbacks: CallbackQueue,
        commits: Commits,
        *,
        add: Callable[..., None],
        remove: Callable[[Partitions], None],
        lost_text: Callable[[Collection[TopicPartition]], str],
    ) -> None:
        self.listener = RebalanceListener()
        self._assignment = assignment
        self._polls = polls
        self._callbacks = callbacks
        self._commits = commits
        self._add, self._remove, self._lost_text = add, remove, lost_text
        #: Being revoked: a call of the application and a rebalance may both give the same partitions away.
        self._going: frozenset[TopicPartition] = frozenset()
        self._gone = Signal()
        #: The calls of on_revoked for which a revocation waits.
        self._revoked: dict[Callback, frozenset[TopicPartition]] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the group has assigned."""
        return frozenset(name for name, state in self._assignment.partitions.items() if not state.is_added)

    def revoked_in(self, callbacks: Iterable[Callback]) -> frozenset[TopicPartition]:
        """Return the partitions of revocations that wait for one of these callbacks."""
        return frozenset[TopicPartition]().union(
            *(self._revoked.get(callback, ()) for callback in callbacks if not callback.is_completed)
        )

    def until_polled(self) -> Flow[None]:
        """Wait for the next poll. Return immediately during a poll."""
        return self._polls.until_polled()

    def revoke(self, partitions: Partitions, deadline: float | None = None) -> Flow[None]:
        """At the next poll: commit if commits are automatic, call on_revoked, and stop reading these partitions. Wait
        for commits in the background, because they cannot be sent later.

        deadline: Deadline of the call that revokes them; None for a rebalance.
        """
        yield from self._polls.until_polled()
        requested = frozenset(partitions)
        while requested & self._going:
            yield from wait(self._gone)
        going = requested & self.owned
        if not going:
            return
        self._going |= going
        try:
            self._assignment.set_revoking(going)
            yield from self._commits.commit_before_revocation(going, deadline)
            log.info("revoked: %s", ", ".join(map(str, sorted(going))))
            yield from self._call_on_revoked(going)
            yield from self._commits.drain_first(deadline)  # the commits that on_revoked has requested
        finally:
            self._going -= going
            self._remove(going)
            self._gone.set()

    def _call_on_revoked(self, going: frozenset[TopicPartition]) -> Flow[None]:
        if self.listener.on_revoked is None:
            return
        callback = self._callbacks.put(self.listener.on_revoked, going)
        self._revoked[callback] = going
        try:
            yield from self._callbacks.wait_for(callback)
        finally:
            del self._revoked[callback]

    def lose(self, partitions: Partitions) -> Flow[None]:
        """Deliver nothing more of these partitions. At the next poll, stop reading them and call on_lost.

        This waits for the poll, because the application may be processing records. Until then, positions and generation
        do not change (the rejoin waits for this), so the coordinator rejects commits of the application.
        """
        gone = frozenset(partitions) & self.owned
        if not gone:
            return
        log.warning("%s. What was not committed is read again", self._lost_text(gone))
        self._assignment.set_revoking(gone)
        yield from self._polls.until_polled()
        self._remove(gone)
        yield from self._callbacks.call(self.listener.on_lost or self.listener.on_revoked, gone)

    def assign(self, added: Partitions, owned: Partitions) -> Flow[None]:
        """Call on_assigned at the next poll, and start to read these partitions."""
        new = frozenset(added)
        log.info("assigned: %s", ", ".join(map(str, sorted(owned))) or "nothing")
        # They are added first, so that on_assigned can seek. Poll delivers nothing until on_assigned has returned.
        self._add(new, held_back=self.listener.on_assigned is not None)
        try:
            yield from self._callbacks.call(self.listener.on_assigned, new)
        finally:
            self._assignment.hold_back(new, False)
