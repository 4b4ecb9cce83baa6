# SPDX-License-Identifier: Apache-2.0
"""A member of a group on a real broker, without a consumer around it: a client's thread, a membership, a handler.

lock: shared by members that are checked together; on_change: called with it held after each change of an assignment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from client_runners import options

from kcodec.consumer.group.classic.membership import ClassicMembership
from kcodec.consumer.group.modern.membership import ConsumerMembership
from kcodec.consumer.group.rebalance import Membership
from kcodec.consumer.options import ConsumerSettings
from kcodec.flow import Flow, sleep
from kcodec.network.client import Client
from kcodec.network.thread_loop import ThreadLoop
from kcodec.offsets import TopicPartition

#: makes a membership: (client, settings, handler).
Make = Callable[[Client, ConsumerSettings, Any], Membership]
Change = Callable[[set[TopicPartition]], None]
WAIT_SECONDS = 20.0


def make_classic(client: Client, settings: ConsumerSettings, handler: Any) -> Membership:
    return ClassicMembership(client.cluster, settings, handler)


def make_consumer(client: Client, settings: ConsumerSettings, handler: Any) -> Membership:
    return ConsumerMembership(client.cluster, settings, handler)


class GroupMember:
    """One member, which polls continuously while `is_polling`. events: (time, what, partitions, generation)."""

    def __init__(
        self,
        servers: str,
        group: str,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        make: Make = make_classic,
        client: dict[str, Any] | None = None,
        lock: threading.RLock | None = None,
        on_change: Callable[[GroupMember], None] = lambda member: None,
        **settings: Any,
    ) -> None:
        self.client = Client(options(servers, **{"request_timeout_ms": 5000, **(client or {})}))
        self.io_loop = ThreadLoop(self.client)
        self.lock = lock or threading.RLock()
        self.on_change = on_change
        self.has: set[TopicPartition] = set()
        self.events: list[tuple[float, str, frozenset[TopicPartition], int]] = []
        self.is_polling = True
        self.revoke_seconds = 0.0
        self.is_slow_to_stop = False
        settings.setdefault("heartbeat_interval", 0.2)
        settings.setdefault("request_timeout", 5.0)
        settings.setdefault("retry_backoff", lambda attempt, random: 0.05)
        self.membership = make(self.client, ConsumerSettings(group_id=group, **settings), self)
        topics = list(topics)

        def begin() -> None:
            self.membership.subscribe(topics, pattern)
            self.task = self.client.scheduler.spawn(self.membership.run(), "membership")
            self.client.scheduler.spawn(self._poll(), "polls")
            self.client.scheduler.spawn(self._poll(), "polls")

        self.io_loop.post(begin)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        with self.lock:
            return frozenset(self.has)

    @property
    def is_stable(self) -> bool:
        return self.membership.is_stable

    def _poll(self) -> Flow[None]:
        while True:
            if self.is_polling:
                self.membership.note_poll(self.client.clock())
            yield from sleep(0.05)

    def until_polled(self) -> Flow[None]:
        while not self.is_polling:
            yield from sleep(0.02)
        self.membership.note_poll(self.client.clock())

    def _note(
        self, what: str, partitions: Iterable[TopicPartition], change: Callable[[set[TopicPartition]], None]
    ) -> None:
        with self.lock:
            named = set(partitions)
            change(named)
            generation = self.membership.group_metadata.generation_id
            self.events.append((time.monotonic(), what, frozenset(named), generation))
            self.on_change(self)

    def revoke(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        yield from sleep(self.revoke_seconds)
        if self.is_slow_to_stop:  # a deliberate defect, which the test must detect
            given_up = list(partitions)
            later = self.client.clock() + 1.0
            self.client.scheduler.call_at(later, lambda: self._note("stop", given_up, self.has.difference_update))
            return
        self._note("revoke", partitions, self.has.difference_update)

    def lose(self, partitions: Iterable[TopicPartition]) -> Flow[None]:
        yield from ()
        self._note("lose", partitions, self.has.difference_update)

    def assign(self, added: Iterable[TopicPartition], owned: Iterable[TopicPartition]) -> Flow[None]:
        yield from ()
        self._note("assign", added, self.has.update)

    def reported(self, what: str) -> list[frozenset[TopicPartition]]:
        with self.lock:
            return [partitions for _, name, partitions, _ in self.events if name == what]

    def post(self, action: Callable[[], None]) -> None:
        """On the client's thread."""
        self.io_loop.post(action)

    def run(self, flow: Flow[Any], timeout: float = WAIT_SECONDS) -> Any:
        return self.io_loop.run(flow, timeout)

    def close(self, reason: str = "the consumer is being closed") -> None:
        """Give up everything, leave, and end."""
        if not self.io_loop.is_closed:
            self.run(self.revoke(self.owned))
            self.run(self.membership.leave(5.0, reason))
            self.io_loop.close()

    def kill(self) -> None:
        """Stop as a killed process does, without a request to the group."""
        with self.lock:
            self.has.clear()
        self.io_loop.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Raises AssertionError when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def partitions_of(**topics: int) -> list[TopicPartition]:
    return sorted(TopicPartition(topic, number) for topic, count in topics.items() for number in range(count))


def wait_until_stable(
    members: Iterable[GroupMember], wanted: Iterable[TopicPartition], seconds: float = WAIT_SECONDS
) -> None:
    """Wait until all members are stable and together own the expected partitions, each once."""
    members, wanted = list(members), sorted(wanted)

    def is_reconciled() -> bool:
        for member in members:
            if member.membership.error is not None:
                raise member.membership.error
        return all(one.is_stable for one in members) and sorted(p for one in members for p in one.owned) == wanted

    wait_until(is_reconciled, "the group is stable and everything is owned once", seconds)
