# SPDX-License-Identifier: Apache-2.0
"""kcodec's asyncio consumer with the background work of aiokafka's consumer. A task calls the rebalance listener, so
that a rebalance does not wait until the program requests records. Without a group, a task assigns all partitions of the
topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import time
from collections.abc import Iterable, Set
from typing import Any, NamedTuple, TypeVar

from aiokafka.structs import TopicPartition

from kcodec import Record, errors
from kcodec.client.aio import Consumer
from kcodec.compat._aiokafka_cluster import connect
from kcodec.offsets import TopicPartition as Place

T = TypeVar("T")
log = logging.getLogger("kcodec.compat")
#: Duration of one wait for records, and of one wait for the first assignment.
LONG_SECONDS, ASSIGNMENT_STEP_SECONDS = 3600.0, 0.2
#: Maximum number of records that are decoded together.
CHUNK_RECORDS = 500
LEAVE_SECONDS = 10.0
REBALANCE_STEP_SECONDS = 0.02
#: Maximum time that `begin` waits for the first positions.
POSITION_SECONDS = 1.0
#: Time after which a call that finds records immediately lets other tasks run.
SUSPEND_SECONDS = 0.05
_NOTHING: frozenset[Any] = frozenset()


class Followed(NamedTuple):
    """A subscription. `pattern` is a compiled pattern, or None."""

    topics: frozenset[str]
    pattern: re.Pattern[str] | None
    listener: Any

    @property
    def expression(self) -> str | None:
        """The pattern for kcodec. It matches whole names, while the pattern of aiokafka matches the beginning of a
        name."""
        if self.pattern is None:
            return None
        flags = "".join(letter for letter in "imsx" if self.pattern.flags & getattr(re, letter.upper()))
        text = re.sub(r"^\(\?[aiLmsux]+\)", "", self.pattern.pattern)
        return f"(?{flags}:{text})(?s:.*)"


def places(partitions: Iterable[TopicPartition]) -> list[Place]:
    """Return partitions as values of kcodec."""
    return [Place(one.topic, one.partition) for one in partitions]


class ServedConsumer(Consumer):
    """A consumer with the background work that the module describes. `follow` and `assign_now` may be called before
    `begin`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        deserializer = self._core.fetcher.buffer.deserializer
        if deserializer is not None:
            deserializer.takes_none = True
        self._followed: Followed | None = None
        self.is_manual = False
        self._is_begun = self._is_ending = self._has_revoked = False
        self._first_assignment = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._assigning: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._suspended_at = 0.0
        #: Number of assignments by the group.
        self.rebalances = 0
        self._failure: errors.KcodecError | None = None
        #: The partitions of each request that waits for records.
        self._awaited: list[Set[Place] | None] = []
        self._manual: frozenset[Place] = _NOTHING
        self._seeks: dict[Place, int] = {}

    @property
    def is_subscribed(self) -> bool:
        """Whether topics or a pattern are subscribed to."""
        return self._followed is not None

    # Beginning and end

    async def connect(self, seconds: float) -> None:
        """Connect. Raise TransportError if no broker can be reached. The consumer is then closed."""
        try:
            await connect(self, seconds)
        except BaseException:
            await self._io_loop.close()
            raise
        self._serving = asyncio.create_task(self._serve())

    def take_over(self, former: ServedConsumer) -> None:
        """Take over the subscription or the assignment of a consumer that could not connect."""
        self._followed = former._followed
        if former.is_manual:
            self.assign_now(list(former.assignment()))

    async def begin(self) -> None:
        """Begin to follow the subscription, and wait for its first partitions. Raise BrokerError if a topic is
        unknown."""
        self._is_begun = True
        for topic in {one.topic for one in self._manual} if self._followed is None else self._followed.topics:
            await self.partitions_for(topic)
        if self._followed is not None:
            await self._begin_to_follow()
        deadline = time.monotonic() + POSITION_SECONDS
        for place in self.assignment():
            # With auto_offset_reset="latest", records that are sent from now on are read.
            with contextlib.suppress(errors.KcodecError, ValueError):  # getone() raises errors that persist
                await self.position(place, max(deadline - time.monotonic(), 0.0))

    async def _begin_to_follow(self) -> None:
        """Wait for the first partitions of the subscription."""
        assert self._followed is not None
        if self._core.settings.group_id is None:
            if self._followed.pattern is not None:
                await self.learn_all_topics(self._core.settings.default_api_timeout)
            self._assign_followed()
        self._apply()
        while self._followed is not None and self._core.settings.group_id is not None:
            self._core.raise_errors()
            try:
                async with asyncio.timeout(ASSIGNMENT_STEP_SECONDS):
                    await self._first_assignment.wait()
                return
            except TimeoutError:
                continue

    async def end(self, error: BaseException | None) -> None:
        """Leave the group and close. `error` is the exception that ends the block of the consumer."""
        self._is_ending = True
        for task in (self._serving, self._assigning):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if error is None:
            await self.close()
        else:
            await self.__aexit__(type(error), error, error.__traceback__)

    def abandon(self) -> None:
        """End soon, because the program has dropped its consumer without `stop`. Any thread may call this. The
        background tasks refer to this object, so it is not garbage collected before they end."""
        loop = self._io_loop.loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
                loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._is_ending = True
        for task in (self._serving, self._assigning):
            if task is not None:
                task.cancel()
        self._io_loop.abandon()

    async def _serve(self) -> None:
        """Call the callbacks of rebalances."""
        while not self._io_loop.is_closed:
            try:
                callback = await self._run(self._core.wait_for_callback())
                if callback is None:
                    return
                await self._call_back(self._core.callbacks, callback)
            except errors.TransportError:
                # If the loop was closed, possibly by the listener, or has failed, this ends, and the next call of the
                # program raises the error. Otherwise, Ctrl-C has interrupted the flow.
                continue

    def _turn(self) -> None:
        """Run the background work that is ready after a change."""
        if self._is_started:
            self._io_loop.turn()

    def do(self, flow: Any) -> Any:
        """Run a flow that does not wait, and return its result."""
        self._start()
        task = self._client.scheduler.spawn(flow, "call")
        task.when_done(lambda ended: None)
        self._io_loop.turn()
        if task.error is not None:
            raise task.error
        assert task.done, "a flow that waits"
        return task.result

    # What is read

    def follow(self, topics: frozenset[str], pattern: re.Pattern[str] | None, listener: Any) -> None:
        """Subscribe. The group, or a task, assigns the partitions."""
        self._followed = Followed(topics, pattern, listener)
        if self._is_begun:
            self._apply()

    def _apply(self) -> None:
        if self._core.settings.group_id is None:
            if self._assigning is None:
                self._assigning = asyncio.create_task(self._keep_assigned())
            else:
                self._assign_followed()
        elif self._is_leaving:
            self._leaving = asyncio.create_task(self._apply_after(self._leaving))
        else:
            self._subscribe_now()

    async def _apply_after(self, leaving: asyncio.Task[None] | None) -> None:
        if leaving is not None:
            await asyncio.wait([leaving])
        if self.is_manual:
            self._assign_manual()
        else:
            self._subscribe_now()

    def _subscribe_now(self) -> None:
        wanted, membership = self._followed, self._core.selection.membership
        if wanted is not None and not self._is_ending:
            self.do(
                self._core.selection.subscribe(
                    wanted.topics, wanted.expression, self._on_revoked, self._on_assigned, self._on_revoked
                )
            )
            if membership is not None:
                membership.request_rejoin("subscribe() was called again")  # this calls the listener, as in aiokafka

    async def _on_revoked(self, partitions: frozenset[Place]) -> None:
        self._has_revoked = self._followed is not None  # at the end of a subscription, no listener is called
        await self._notify("on_partitions_revoked", partitions)

    async def _on_assigned(self, _: frozenset[Place]) -> None:
        if not self._has_revoked:  # aiokafka calls the listener before each join
            await self._notify("on_partitions_revoked", _NOTHING)
        self._has_revoked = False
        self.rebalances += 1
        await self._notify("on_partitions_assigned", self.assignment())
        self._first_assignment.set()

    async def _notify(self, name: str, partitions: frozenset[Place]) -> None:
        listener = self._followed.listener if self._followed is not None and not self._is_ending else None
        if listener is None:
            return
        try:
            result = getattr(listener, name)({TopicPartition(*one) for one in partitions})
            if inspect.isawaitable(result):
                await result
        except (KeyboardInterrupt, SystemExit):
            raise  # these exceptions end the event loop
        except BaseException:
            serving = asyncio.current_task()
            if serving is not None and serving.cancelling():
                raise  # `end` has cancelled this task; a CancelledError of the listener does not end it
            log.exception("%s of the listener %r failed", name, listener)

    async def _keep_assigned(self) -> None:
        """Assign all partitions of the topics, including new ones. This is for a consumer without a group."""
        while not self._io_loop.is_closed:
            self._assign_followed()
            with contextlib.suppress(errors.TransportError):  # as in `_serve`
                await self._run(self._core.wait_for_metadata())

    def _assign_followed(self) -> None:
        """Assign the partitions of the topics that are known."""
        wanted, core = self._followed, self._core
        needs_all = wanted is not None and wanted.pattern is not None
        if needs_all and not core.cluster.needs_all_topics:
            core.cluster.request_update("a pattern")
        core.cluster.needs_all_topics = needs_all
        if wanted is None:
            return
        core.cluster.add_topics(wanted.topics)
        found = set()
        for name, topic in list(core.cluster.topics.items()):
            if name in wanted.topics or self._is_matched(name, topic):
                found |= {Place(name, partition) for partition in topic.partitions}
        core.selection.remove(set(core.assignment.partitions) - found)
        core.selection.add(found - core.assignment.partitions.keys())
        self._turn()

    def assign_now(self, partitions: list[Place]) -> None:
        """Read exactly these partitions, after the consumer has left its group."""
        self.is_manual = True
        self._manual = frozenset(partitions)
        if self._is_leaving:
            self._leaving = asyncio.create_task(self._apply_after(self._leaving))
        else:
            self._assign_manual()

    def _assign_manual(self) -> None:
        core = self._core
        core.selection.remove(list(core.assignment.partitions))
        self.do(core.selection.assign(self._manual))
        for place, offset in self._seeks.items():
            if place in self._manual:
                core.assignment.seek(place, offset)
        self._seeks.clear()
        self._turn()

    @property
    def _is_leaving(self) -> bool:
        return self._leaving is not None and not self._leaving.done()

    async def until_left(self) -> None:
        """Wait until a leave in progress has ended."""
        while self._leaving is not None and not self._leaving.done():
            await asyncio.wait([self._leaving])

    async def until_rebalanced(self, rebalances: int) -> None:
        """Wait until the number of assignments by the group is no longer `rebalances`, or until the subscription
        ends."""
        await asyncio.sleep(0)
        while self._followed is not None and self.rebalances == rebalances and not self._is_ending:
            if self._core.settings.group_id is None:
                return
            self._core.raise_errors()
            await asyncio.sleep(REBALANCE_STEP_SECONDS)

    def unfollow(self) -> None:
        """End the subscription or the assignment. Leave the group in the background."""
        self._followed, self.is_manual, self._manual = None, False, _NOTHING
        if self._core.selection.membership is not None:
            self._leaving = asyncio.create_task(self._leave())
        else:
            self._core.selection.remove(list(self._core.assignment.partitions))
            self._turn()

    async def _leave(self) -> None:
        try:
            await self._run(self._core.selection.unsubscribe(LEAVE_SECONDS), LEAVE_SECONDS, "unsubscribe()")
        except errors.KcodecError as error:
            log.warning("the consumer did not leave its group: %s", error)

    def assignment(self) -> frozenset[Place]:
        """Return the partitions that are currently assigned. There are none after the end of the subscription."""
        if self.is_manual:
            return self._manual
        return super().assignment() if self._followed is not None else _NOTHING

    def known_assignment(self) -> list[Place]:
        """Return the assigned partitions that have a state, because a manual assignment may not be in effect yet."""
        return [one for one in self.assignment() if one in self._core.assignment.partitions]

    def followed_topics(self) -> frozenset[str]:
        """Return the topics that are subscribed to, or whose partitions are assigned."""
        wanted = self._followed
        if wanted is None:
            return frozenset(one.topic for one in self.assignment())
        if wanted.pattern is None:
            return wanted.topics
        known = self._core.cluster.topics.items()
        return frozenset(name for name, topic in known if self._is_matched(name, topic))

    def _is_matched(self, name: str, topic: Any) -> bool:
        """Return whether the subscribed pattern matches a topic."""
        if self._followed is None or self._followed.pattern is None:
            return False
        is_hidden = topic.is_internal and self._core.settings.exclude_internal_topics
        return not is_hidden and self._followed.pattern.match(name) is not None

    async def learn_all_topics(self, seconds: float) -> None:
        """Wait for metadata of all topics."""
        await self._run(self._core.cluster.refresh_all(seconds))

    # Records

    def next_delivered(self) -> Record | None:
        """Return the next decoded record, or None if no record is available or it may not be delivered."""
        delivery = self._core.assignment.delivery
        return None if delivery.is_over else self._core.next_record(delivery)

    async def next_record(self, only: Set[Place] | None) -> Record | None:
        """Wait for a record and return it, or return None if the program should try again.

        only: Partitions whose records may be returned. None: all partitions.
        """
        self._choose(only)
        await self._begin_request()
        found = self._core.fetcher.buffer.take_delivery(CHUNK_RECORDS, only)
        if found is not None:
            return self._core.next_record(found)
        await self._wait(LONG_SECONDS, only)
        return None

    async def next_records(self, only: Set[Place] | None, timeout: float) -> bool:
        """Wait for records for `take_chunk`, up to `timeout` seconds or until the consumer is closed. Return whether
        there are any."""
        self._choose(only)
        deadline = time.monotonic() + timeout
        while True:
            await self._begin_request()
            if self._failure is not None or self._core.fetcher.buffer.has_ready_of(only):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                await asyncio.sleep(0)  # a loop of calls that do not wait must not block other tasks
                return False
            await self._wait(left, only)
            if self._is_ending:
                return False

    def take_chunk(self, most: int, only: Set[Place] | None, is_first: bool) -> list[Record]:
        """Return some of the fetched records. An error after the first chunk is raised by the next request."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure.with_traceback(None)
        try:
            return self._core.fetcher.buffer.take(min(most, CHUNK_RECORDS), only)
        except errors.KcodecError as error:
            if is_first:
                raise
            if not any(state.error is error for state in self._core.assignment.partitions.values()):
                self._failure = error  # otherwise, the partition raises the error until a seek
            return []

    async def _begin_request(self) -> None:
        now = time.monotonic()
        if now - self._suspended_at > SUSPEND_SECONDS:
            await asyncio.sleep(0)
            self._suspended_at = now
        core = self._core
        core.check_open()
        core.raise_errors()
        core.assignment.begin_request()
        core.note_request()

    async def _wait(self, seconds: float, only: Set[Place] | None) -> None:
        self._awaited.append(only)
        try:
            self._choose(only)
            await self._run(self._core.wait_for_records(seconds, only))
        except errors.TransportError:
            if not self._is_ending:
                raise
        finally:
            self._awaited.remove(only)
            if self._awaited:
                self._choose(self._awaited[0])

    def _choose(self, only: Set[Place] | None) -> None:
        """Fetch for a request of these partitions, and for all requests of other tasks that wait."""
        if self._awaited and only is not None:
            only = None if None in self._awaited else frozenset[Place]().union(only, *filter(None, self._awaited))
        self._core.fetcher.choose(only)

    # Positions

    def seek_now(self, place: Place, offset: int) -> None:
        """Continue at an offset."""
        if self._is_leaving and self.is_manual:
            self._seeks[place] = offset  # kept until the partition is assigned
            return
        self._core.assignment.seek(place, offset)
        self._core.fetcher.drop([place])
        self._turn()

    def pause_now(self, partitions: list[Place], is_paused: bool) -> None:
        """Pause or resume partitions."""
        self._core.assignment.pause(partitions, is_paused)
        self._turn()

    def state_of(self, place: Place) -> Any:
        """Return the state of a partition according to the last responses."""
        return self._core.assignment.state(place)

    def seconds_since_fetch(self, place: Place) -> float | None:
        """Return the time in seconds since the last fetch response of a partition, or None before the first
        response."""
        if self.state_of(place).high_watermark < 0:
            return None
        seconds: float | None = self.do(self._core.health()).partitions[place].seconds_since_fetch
        return seconds

    def group_view(self) -> GroupView:
        """Return the attributes of aiokafka's coordinator and subscription that frameworks read."""
        membership = self._core.selection.membership
        found = "" if membership is None else membership.group_metadata.member_id
        return GroupView(found, self.followed_topics())


class GroupView(NamedTuple):
    """The attributes of private objects of aiokafka's consumer that frameworks read."""

    member_id: str
    topics: frozenset[str]
