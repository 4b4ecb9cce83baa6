# SPDX-License-Identifier: Apache-2.0
"""Fetches what is assigned, ahead of the caller (Kafka: AbstractFetch, Fetcher).

One Fetch is under way to each broker, on a connection of its own, as it may be held there until data comes. It names
all partitions to be read from that broker, so that its session (KIP-227) stays as it is; a broker one of whose
partitions has answers enough is left alone until that is taken, or a partition that comes free meanwhile would have to
wait for a request that does not name it. What comes to be wanted while a request is under way, by a seek, a new
assignment or the end of a pause, is asked for at once on the side, without session and without waiting there.

The memory of responses, under way and not taken, is bounded by `fetch_ahead_max_bytes` over all brokers together: a
request sets the size of its response aside, and a response that claims more is refused before it is received. Brokers
send a batch that is larger than what was requested whole, so such a request is repeated with what the response claimed,
when there is space for it. One response may always be under way, however large (up to max_response_bytes). What is kept
for paused partitions is not counted, as it would hold up the others; it has the same bound of its own.

A partition is read from its leader, or from the replica that the leader prefers for our rack (KIP-392) until that
fails, or `metadata_max_age` is over. What errors lead to: `kcodec.consumer.fetch_responses`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from kcodec._fast import DecodedRecords, Delivery, Record
from kcodec.cluster.metadata import NO_UUID, Cluster
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetch_buffer import ANSWERS_AHEAD, FetchBuffer
from kcodec.consumer.fetch_responses import Asked, FetchAnswers, Metrics, Troubles
from kcodec.consumer.fetch_session import FIRST_WITH_SESSIONS, FIRST_WITH_TOPIC_IDS, FetchSession, Wanted
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, KcodecError, LimitExceededError, UnsupportedError
from kcodec.flow import ByVersion, Clock, Flow, Reply, Signal, Task, call, spawn, wait
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import broker_error, error_code
from kcodec.protocol.frame import RESPONSE_LIMIT
from kcodec.protocol.messages.fetch import FetchRequest

log = logging.getLogger("kcodec.consumer")
#: Requests that may be held at the broker; those that are not go where all others go.
CHANNEL: Final = "fetch"
ASIDE: Final = ""
#: 4 is the first whose answers hold record batches; aborted transactions come with it.
LOWEST_VERSION, HIGHEST_VERSION = 4, 18
#: Errors of a whole response that say that the session is to begin again: 70 FETCH_SESSION_ID_NOT_FOUND, 71
#: INVALID_FETCH_SESSION_EPOCH, 106 FETCH_SESSION_TOPIC_ID_ERROR. At once, and after a pause where that did not help.
SESSION_ERRORS: Final = frozenset({70, 71, 106})

#: What a response holds next to records, aborted transactions included: of the whole, and of each partition.
OVERHEAD_BYTES, PARTITION_OVERHEAD_BYTES = 64 * 1024, 512
#: A large response is set aside for in full at first, and then by this part less with each response.
SHRINK: Final = 16

Plan = dict[TopicPartition, Asked]


class Fetcher:
    """See the module.

    arrived: set on the loop when there is something new to take, or to raise.
    """

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        random: Random,
        metrics: Metrics,
    ) -> None:
        self.cluster = cluster
        self.assignment = assignment
        self.settings = settings
        self.arrived = Signal()
        self._clock = clock
        self._metrics = metrics
        self._buffer = FetchBuffer(assignment, settings, assignment.poke)
        self._troubles = Troubles(clock, random, settings.retry_backoff)
        self._answers = FetchAnswers(
            *(cluster, assignment, settings, self._buffer, self._troubles),
            arrived=self.arrived,
            clock=clock,
            metrics=metrics,
        )
        self._sessions: dict[int, FetchSession] = {}
        #: Requests under way, by broker and channel.
        self._flying: dict[tuple[int, str], Plan] = {}
        self._tasks: dict[tuple[int, str], Task[None]] = {}
        #: Bytes that are set aside for the responses of these requests.
        self._set_aside: dict[tuple[int, str], int] = {}
        #: By broker whose responses are larger than what is requested, as its batches are: what they claimed.
        self._large: dict[int, int] = {}
        #: By broker, the number of its last request, counted over all brokers.
        self._turns: dict[int, int] = {}
        self._turn = 0
        #: What was asked for on the side last: state and offset.
        self._asked_aside: dict[TopicPartition, tuple[int, int]] = {}
        #: Brokers whose last response was an error of the session.
        self._session_errors: dict[int, int] = {}
        #: By broker whose answer became too large: the partitions that it is then asked for one by one.
        self._one_by_one: dict[int, list[TopicPartition]] = {}
        self._signal = Signal()
        self._is_woken = False

    # For the caller of poll, on any thread

    @property
    def has_ready(self) -> bool:
        """Whether there is something to take, or to raise."""
        return self._buffer.has_ready

    @property
    def skipped_batches(self) -> int:
        """Damaged batches that were passed over (on_corrupt="skip")."""
        return self._buffer.skipped_batches

    def take(self, max_records: int) -> list[Record]:
        """At most `max_records` records of those that were fetched; positions are moved past them, and past markers,
        aborted records and empty batches.

        Raises what keeps a partition from being read, once the records before it were given, at every call until a
        seek: DecodeError with `topic_partition` and `next_offset`, OffsetOutOfRangeError, BrokerError.
        """
        return self._buffer.take(max_records)

    def take_delivery(self, max_records: int) -> Delivery | None:
        """The next records of one partition, to be delivered one by one; None where there are none. Raises as
        `take`."""
        return self._buffer.take_delivery(max_records)

    def take_arrow(self) -> DecodedRecords:
        """The next records of one partition, as columns; no rows where there are none. Raises as `take`."""
        found = self._buffer.take_arrow()
        return self._buffer.empty() if found is None else found

    def cause_of(self, state: PartitionState) -> str:
        """On the loop: why a partition could not be fetched the last time; "" if it could."""
        partition = state.topic_partition
        node = state.preferred_replica
        known = self._troubles.known(partition)
        if known is None:
            known = self._troubles.known(self.cluster.leader(*partition) if node is None else node)
        return "" if known is None else known.cause

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was fetched of them."""
        with self.assignment.lock:
            self._buffer.drop(partitions)
        self.assignment.poke()

    # The flow

    def run(self) -> Flow[None]:
        """Fetch, for as long as the consumer lives."""
        listeners: list[Task[None]] = []
        try:
            for signal in (self.assignment.changed, self.cluster.changed):
                listeners.append((yield from spawn(self._listen(signal), "fetcher: listener")))
            while True:
                self._is_woken = False
                pause = yield from self._round()
                if not self._is_woken:
                    yield from wait(self._signal, pause)
        finally:
            for task in [*listeners, *self._tasks.values()]:
                task.cancel()

    def _listen(self, signal: Signal) -> Flow[None]:
        while True:
            yield from wait(signal)
            self._wake()
            if self._buffer.has_ready:
                self.arrived.set()  # a partition that failed, or was paused

    def _wake(self) -> None:
        self._is_woken = True
        self._signal.set()

    def close(self, timeout: float) -> Flow[None]:
        """End the sessions, so that brokers need not keep them; whatever goes wrong is of no matter."""
        deadline = self._clock() + timeout
        for node, session in self._sessions.items():
            request, left = session.farewell(), deadline - self._clock()
            if request is None or node not in self.cluster.brokers or left <= 0:
                continue
            try:  # not behind the request that may still be held there
                yield from call(node, request, timeout=left, lowest=FIRST_WITH_SESSIONS)
            except KcodecError as error:
                log.debug("the fetch session with broker %d was not ended: %s", node, error)
        self._sessions.clear()

    # What to fetch

    def _round(self) -> Flow[float | None]:
        """Begin what may begin; the result is after how long there may be more."""
        now = self._clock()
        with self.assignment.lock:
            plans, due = self._plan(now)
            waiting = self._buffer.waiting_bytes()
            if self._buffer.waiting_bytes(is_paused=True) > self.settings.fetch_ahead_max_bytes:
                self._buffer.drop_paused()
        # Half of the room is for what waits, the rest is shared out to requests: were it given to the first that ask,
        # brokers that hold theirs for long would leave nothing to others.
        half = self.settings.fetch_ahead_max_bytes // 2
        brokers = len({node for node, _ in plans.keys() | self._flying.keys()})
        for node, channel in sorted(plans, key=lambda key: self._turns.get(key[0], 0)) if waiting <= half else ():
            plan = self._alone(node, plans[node, channel])
            most = max(min(self.settings.fetch_max_bytes, half // (2 * brokers)), 1)
            size = max(most, self._large.get(node, 0)) + OVERHEAD_BYTES + PARTITION_OVERHEAD_BYTES * len(plan)
            if not self._has_space(size, waiting):
                break  # the others wait as well, or a large response would never get its space
            self._turns[node] = self._turn = self._turn + 1
            self._flying[node, channel], self._set_aside[node, channel] = plan, size
            flow = self._fetch(node, channel, plan, most, size)
            self._tasks[node, channel] = yield from spawn(flow, f"fetch from broker {node}")
        return None if due is None else max(due - now, 0.0)

    def _has_space(self, size: int, waiting: int) -> bool:
        """Whether a response of `size` bytes may come now."""
        held = waiting + sum(self._set_aside.values())
        return held == 0 or held + size <= self.settings.fetch_ahead_max_bytes

    def _alone(self, node: int, plan: Plan) -> Plan:
        """After an answer that was too large, one of its partitions, in turn."""
        while alone := self._one_by_one.pop(node, None):
            partition = alone.pop(0)
            self._one_by_one[node] = alone
            if partition in plan:
                return {partition: plan[partition]}
        return plan

    def _plan(self, now: float) -> tuple[dict[tuple[int, str], Plan], float | None]:
        """By broker and channel, what is to be asked for now; and when something else comes due."""
        plans: dict[int, Plan] = {}
        busy: set[int] = set()
        due: list[float] = []
        self._troubles.keep(self.assignment.partitions.keys() | self.cluster.brokers.keys())
        self._answers.keep_refusals(self.assignment.partitions.keys())
        for known in (self._large, self._turns, self._session_errors):
            for gone in known.keys() - self.cluster.brokers.keys():
                del known[gone]
        for partition, state in self.assignment.partitions.items():
            if not state.is_fetchable:
                continue
            node = self._node(state, now)
            left_alone = max(self._troubles.until(partition), 0.0 if node is None else self._troubles.until(node))
            if left_alone > now:
                due.append(left_alone)
                continue
            if node is None:
                self.cluster.topics_wanted([partition.topic])
                self.cluster.request_update(f"{partition} has no leader")
                due.append(self._troubles.put_off(partition).until)
                continue
            offset, epoch, is_full = self._next(state)
            if is_full:
                busy.add(node)
            else:
                asked = Asked(state, state.version, self._wanted(partition, offset, epoch))
                plans.setdefault(node, {})[partition] = asked
        free = {}
        for node, plan in plans.items():
            channel, under_way = CHANNEL, self._flying.get((node, CHANNEL))
            if under_way is not None:
                channel, plan = ASIDE, self._news(plan, under_way)
            if plan and node not in busy and (node, channel) not in self._flying:
                free[node, channel] = plan
        return free, min(due, default=None)

    def _news(self, plan: Plan, under_way: Plan) -> Plan:
        """What the request under way does not ask for; each once, as there may be nothing yet."""
        news = {}
        for partition, asked in plan.items():
            known, key = under_way.get(partition), (asked.version, asked.wanted.offset)
            is_named = known is not None and (known.version, known.wanted.offset) == key
            if not is_named and self._asked_aside.get(partition) != key:
                self._asked_aside[partition] = key
                news[partition] = asked
        return news

    def _next(self, state: PartitionState) -> tuple[int, int, bool]:
        """The offset to ask for and the leader epoch before it; and whether it has to be taken from first."""
        assert state.position is not None
        ahead = self._buffer.ahead(state)
        if not ahead:
            return state.position, state.position_epoch, False
        offset = ahead[-1].next_offset
        return offset or 0, ahead[-1].last_epoch, offset is None or len(ahead) >= ANSWERS_AHEAD

    def _wanted(self, partition: TopicPartition, offset: int, last_epoch: int) -> Wanted:
        leader_epoch = self.cluster.leader_epoch(*partition)
        is_told = self._answers.without_epoch_at.get(partition, -2) != leader_epoch
        return Wanted(
            self.cluster.topic_id(partition.topic) or NO_UUID,
            offset,
            leader_epoch,
            last_epoch if is_told else -1,
            max(self.settings.max_partition_fetch_bytes, self._answers.larger.get(partition, 0)),
        )

    def _node(self, state: PartitionState, now: float) -> int | None:
        """The broker to read from."""
        preferred = state.preferred_replica
        if preferred is not None:
            if now < state.preferred_replica_until and preferred in self.cluster.brokers:
                return preferred
            state.preferred_replica = None
        leader = self.cluster.leader(*state.topic_partition)
        return leader if leader in self.cluster.brokers else None

    # One request

    def _fetch(self, node: int, channel: str, plan: Plan, most: int, size: int) -> Flow[None]:
        is_aside = channel == ASIDE
        session = FetchSession(is_kept=False) if is_aside else self._sessions.setdefault(node, FetchSession())
        settings = self.settings
        has_ids = all(asked.wanted.topic_id != NO_UUID for asked in plan.values())

        def build(version: int) -> FetchRequest:
            return session.request(
                {partition: asked.wanted for partition, asked in plan.items()},
                version,
                max_wait_ms=0 if is_aside else int(settings.fetch_max_wait * 1000),
                min_bytes=settings.fetch_min_bytes,
                max_bytes=most,
                isolation_level=int(settings.is_committed_only),
                rack_id=settings.client_rack,
            )

        try:
            reply = yield from call(
                node,
                ByVersion(FetchRequest, build),
                timeout=settings.request_timeout,
                lowest=LOWEST_VERSION,
                highest=HIGHEST_VERSION if has_ids else FIRST_WITH_TOPIC_IDS - 1,
                channel=channel,
                max_response_bytes=size,
            )
            self._shrink(node, reply.message)
            self._answered(node, session, plan, reply)
        except KcodecError as error:
            session.fail()
            if is_aside:
                log.debug("fetching from broker %d on the side: %s", node, error)
            else:
                self._failed(node, plan, error)
            self._note_size(node, error.__cause__)
        finally:
            self._flying.pop((node, channel), None)
            self._set_aside.pop((node, channel), None)
            self._tasks.pop((node, channel), None)
            self._wake()

    def _failed(self, node: int, plan: Plan, error: KcodecError) -> None:
        """No answer: another replica, or the same broker later."""
        log.info("fetching from broker %d: %s", node, error)
        self._metrics.count("consumer.fetch_failed", node=node)
        self._troubles.put_off(node, str(error))
        self.cluster.request_update(f"broker {node} did not answer a Fetch")
        with self.assignment.lock:
            for asked in plan.values():
                if asked.state.preferred_replica == node:
                    asked.state.preferred_replica = None
        if isinstance(error, AuthenticationError | UnsupportedError):
            self._answers.pass_on(error)
        if isinstance(error.__cause__, LimitExceededError) and error.__cause__.limit != RESPONSE_LIMIT:
            self._too_large(node, plan, error.__cause__)

    def _note_size(self, node: int, cause: BaseException | None) -> None:
        """A response claimed more than was set aside for it: the next request sets that aside."""
        if isinstance(cause, LimitExceededError) and cause.limit == RESPONSE_LIMIT:
            self._large[node] = max(cause.claimed, self._large.get(node, 0))

    def _shrink(self, node: int, message: Any) -> None:
        """Large batches may have been few: set a little less aside with each response, down to what they bring."""
        if size := self._large.pop(node, 0):
            brought = sum(len(part.records or b"") for topic in message.responses for part in topic.partitions)
            smaller = max(size - max(size // SHRINK, 1), brought)
            if smaller > OVERHEAD_BYTES:
                self._large[node] = smaller

    def _too_large(self, node: int, plan: Plan, error: LimitExceededError) -> None:
        """The answer is above max_response_bytes: with one partition alone, its next batch is."""
        if len(plan) > 1:
            self._one_by_one[node] = list(plan)
            return
        ((partition, asked),) = plan.items()
        failure = LimitExceededError(
            f"the batch at offset {asked.wanted.offset} comes in {error.reason}: raise that to read it",
            limit=error.limit,
            value=error.value,
            claimed=error.claimed,
            topic_partition=partition,
            next_offset=asked.wanted.offset + 1,
        )
        if asked.state.version == asked.version and asked.state.position == asked.wanted.offset:
            self.assignment.fail(asked.state, failure)
        self.arrived.set()

    def _answered(self, node: int, session: FetchSession, plan: Plan, reply: Reply) -> None:
        message = reply.message
        if message.error_code:
            session.refuse(message.error_code)
            row = error_code(message.error_code)
            log.info("broker %d refused a Fetch: %s (%s)", node, row.name, row.text)
            is_first = self._session_errors.pop(node, 0) == 0
            if message.error_code in SESSION_ERRORS:
                self._session_errors[node] = message.error_code
            if message.error_code not in SESSION_ERRORS or not is_first:
                self._troubles.put_off(node, f"broker {node} responded to Fetch with {row.name}")
                if not row.retriable:
                    self._answers.pass_on(broker_error(message.error_code, f"Fetch from broker {node}", remedy="stop"))
            return
        found, problem = session.accept(message)
        if problem is not None:
            log.info("the response of broker %d does not match its fetch session: %s", node, problem)
            self._troubles.put_off(node, f"the Fetch response of broker {node} does not fit its session: {problem}")
            return
        self._troubles.over(node)
        self._session_errors.pop(node, None)
        for partition in plan.keys() - {partition for partition, _ in found}:
            self._troubles.over(partition)  # nothing new there
        self.cluster.learn_brokers(message.node_endpoints)
        for partition, data in found:
            self._answers.take(node, partition, plan[partition], data)
