# SPDX-License-Identifier: Apache-2.0
"""What the application is told while it polls: partitions revoked, assigned, lost; commits that ended.

Its functions are called where it polls, never on the loop, so that they may use the consumer (as Java's
ConsumerRebalanceListenerInvoker has it); the flow that has something to tell waits until they have returned.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kcodec.flow import Flow, Signal, wait
from kcodec.offsets import TopicPartition

if TYPE_CHECKING:
    from kcodec.consumer.core import ConsumerCore

Partitions = Iterable[TopicPartition]
log = logging.getLogger("kcodec.consumer")


class Notice:
    """One call of a function of the application's. told: when it has returned, or was given up."""

    __slots__ = ("arguments", "function", "is_settled", "told")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.is_settled = False
        self.told = Signal()

    def call(self) -> Any:
        """Call it, where the application polls; the result may be something to await."""
        return self.function(*self.arguments)

    def settle(self) -> None:
        """On the loop: it has returned, or raised what poll raises."""
        self.is_settled = True
        self.told.set()


class Notices:
    """The callbacks to make, in order. posted: set on the loop when there are any; interrupt: called then, too, as an
    iteration may not wait for anything."""

    def __init__(self, posted: Signal, interrupt: Callable[[], None] = lambda: None) -> None:
        self.waiting: deque[Notice] = deque()
        self._posted = posted
        self._interrupt = interrupt
        self._current: Notice | None = None

    @property
    def is_telling(self) -> bool:
        """Whether a function of the application's runs now."""
        return self._current is not None and not self._current.is_settled

    def put(self, function: Callable[..., Any], *arguments: Any) -> Notice:
        """Have it told; nobody waits for that."""
        notice = Notice(function, arguments)
        self.waiting.append(notice)
        self._interrupt()
        self._posted.set()
        return notice

    def begin(self, notice: Notice) -> None:
        """Any thread, right before it is told. Until here it stays, so that a poll that is interrupted loses none."""
        self._current = notice
        with suppress(ValueError):  # told at close, which takes them out itself
            self.waiting.remove(notice)

    def tell(self, function: Callable[..., Any] | None, *arguments: Any) -> Flow[None]:
        """Have it told, and wait until it is."""
        if function is None:
            return
        notice = self.put(function, *arguments)
        try:
            while not notice.is_settled:
                yield from wait(notice.told)
        finally:
            if not notice.is_settled and notice in self.waiting:
                self.waiting.remove(notice)


class PollingHandler:
    """The RebalanceHandler of a plain consumer: what it owns changes only while the application polls.

    on_revoked, on_assigned, on_lost: called with a frozenset of TopicPartition; without on_lost, on_revoked is (as in
    Java).
    """

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self.on_revoked: Callable[..., Any] | None = None
        self.on_assigned: Callable[..., Any] | None = None
        self.on_lost: Callable[..., Any] | None = None
        #: Revoked, and not told yet: a call of the user's and a rebalance may both want to give them away.
        self._going: frozenset[TopicPartition] = frozenset()
        self._gone = Signal()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What is assigned now."""
        return frozenset(self._core.assignment.partitions)

    def until_polled(self) -> Flow[None]:
        """Wait for the next poll; none if the application is in one."""
        yield from self._core.polls.until_polled()

    def revoke(self, partitions: Partitions, deadline: float | None = None) -> Flow[None]:
        """At the next poll: commit where that is automatic, call on_revoked, and read these no more.

        deadline: of the call that gives them away; None for a rebalance.
        """
        yield from self._core.polls.until_polled()
        wanted = frozenset(partitions)
        while wanted & self._going:
            yield from wait(self._gone)
        going = wanted & self.owned
        if not going:
            return
        self._going |= going
        try:
            self._core.assignment.set_revoking(going)
            yield from self._core.commit_before_revocation(going, deadline)
            log.info("revoked: %s", ", ".join(map(str, sorted(going))))
            yield from self._core.notices.tell(self.on_revoked, going)
        finally:
            self._going -= going
            self._core.remove(going)
            self._gone.set()

    def lose(self, partitions: Partitions) -> Flow[None]:
        """Deliver nothing more of these; at the next poll read them no more, and tell.

        Not before: the application may be at work on what it polled. Its positions, and its generation, as the rejoin
        waits for this, are to stay what they were then, so that the coordinator refuses what it commits.
        """
        gone = frozenset(partitions) & self.owned
        if not gone:
            return
        log.warning("lost: %s", ", ".join(map(str, sorted(gone))))
        self._core.assignment.set_revoking(gone)
        yield from self._core.polls.until_polled()
        self._core.remove(gone)
        yield from self._core.notices.tell(self.on_lost or self.on_revoked, gone)

    def assign(self, added: Partitions, owned: Partitions) -> Flow[None]:
        """Tell at the next poll, and read these."""
        new = frozenset(added)
        log.info("assigned: %s", ", ".join(map(str, sorted(owned))) or "nothing")
        # Added first, so that on_assigned can seek, and kept back from poll until it has.
        self._core.add(new, held_back=self.on_assigned is not None)
        try:
            yield from self._core.notices.tell(self.on_assigned, new)
        finally:
            self._core.assignment.hold_back(new, False)
