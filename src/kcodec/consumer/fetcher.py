# SPDX-License-Identifier: Apache-2.0
"""Fetches the assigned partitions ahead of the caller (Kafka: AbstractFetch, Fetcher).

One Fetch request is in flight to each broker, on a separate connection, because the broker may delay the response until
data arrives. It names all partitions to be read from that broker, so that its session (KIP-227) stays unchanged. If a
partition of a broker has enough responses, the broker gets no request until one of them is taken. Otherwise a request
without this partition would be in flight when it becomes ready, and would delay it. Partitions that are needed while a
request is in flight (after a seek, a new assignment or the end of a pause) are requested immediately by an additional
request, without a session and without a delay.

A round checks all partitions. When the caller takes records, a round follows only if a partition no longer has enough
responses, or if memory has become free for another request.

`fetch_ahead_max_bytes` limits the memory of all responses that are in flight or not taken yet, for all brokers
together. A request reserves the size of its response, and a response that declares a larger size is rejected before it
is received. Brokers send the whole first batch even if it is larger than the requested size, so such a request is
repeated with the declared size when there is space for it. One response of any size (up to max_response_bytes) may
always be in flight. Responses for paused partitions have a separate limit of the same size, so that they do not stop
the other partitions.

If the application requests records of some partitions only, the responses of the other partitions are kept for it, and
count as those of paused partitions. They do not prevent requests, and when they use half of this limit, the other
partitions are not requested any more.

A partition is read from its leader, or from the replica that the leader prefers for the rack of the client (KIP-392).
The replica is used until it fails, or until `metadata_max_age` has passed. `kcodec.consumer.fetch_responses` handles
errors.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Set
from contextlib import suppress
from typing import Final

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.values import NO_UUID
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetch_buffer import FetchBuffer
from kcodec.consumer.fetch_memory import FetchMemory, Request
from kcodec.consumer.fetch_plan import ASIDE, FetchPlanner, Plan
from kcodec.consumer.fetch_responses import FetchBackoffs, FetchResponses
from kcodec.consumer.fetch_session import FIRST_WITH_TOPIC_IDS, FetchSession
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, KcodecError, LimitExceededError, TransportError, UnsupportedError
from kcodec.flow import ByVersion, Call, CancelledFlow, Flow, Reply, Signal, StartCall, Task, spawn, wait
from kcodec.network.metrics import Metrics
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.protocol.frame import RESPONSE_LIMIT
from kcodec.protocol.messages.fetch import FetchRequest

log = logging.getLogger("kcodec.consumer")
#: The first version whose responses hold record batches; aborted transactions come with it.
LOWEST_VERSION, HIGHEST_VERSION = 4, 18
#: Errors of a whole response after which the session begins again: at once, and after a pause if that did not help.
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fetcher:
    """See the module.

    arrived: Set on the loop when there are new records, or an error to raise.
    buffer:  The fetched records, for the caller of poll.
    """

    def __init__(self, cluster: Cluster, assignment: Assignment, settings: ConsumerSettings, metrics: Metrics) -> None:
        self.cluster = cluster
        self.assignment = assignment
        self.settings = settings
        self.arrived = Signal()
        self._clock = cluster.clock
        self._metrics = metrics
        self.buffer = FetchBuffer(assignment, settings, self._note_taken)
        self._backoffs = FetchBackoffs(cluster.clock, cluster.random, settings.retry_backoff)
        self._responses = FetchResponses(
            cluster, assignment, settings, self.buffer, self._backoffs, self.arrived, metrics
        )
        self._planner = FetchPlanner(cluster, assignment, settings, self.buffer, self._backoffs, self._responses)
        self._memory = FetchMemory(settings)
        self._sessions: dict[int, FetchSession] = {}
        #: By broker: when the request in flight was sent, and when the last response came. For messages.
        self.sent_at: dict[int, float] = {}
        self.responded_at: dict[int, float] = {}
        #: Brokers whose last response was an error of the session.
        self._session_errors: set[int] = set()
        #: What ended a request otherwise than by an error of Kafka.
        self._failure: BaseException | None = None
        self._is_ended = False
        self._signal = Signal()
        self._is_woken = False
        #: If the last round had no memory for another response: the bytes of the responses that waited to be taken.
        self._short_with: int | None = None
        self._is_taken_posted = False

    def cause_of(self, state: PartitionState) -> str:
        """On the loop: return why the last fetch of a partition failed; "" if it succeeded."""
        partition = state.topic_partition
        node = state.preferred_replica
        cause = self._backoffs.cause(partition)
        if cause is None:
            cause = self._backoffs.cause(self.cluster.leader(*partition) if node is None else node)
        return cause or ""

    def rejection_of(self, state: PartitionState) -> tuple[int | None, str]:
        """On the loop: return the error code (None if there was no response) and the text of the last failure, or
        ""."""
        partition = state.topic_partition
        cause = self._backoffs.cause(partition)
        if cause:
            return self._backoffs.code(partition), cause
        return None, self.cause_of(state)

    def node_of(self, state: PartitionState) -> int | None:
        """On the loop: return the broker that the partition is read from."""
        return (
            self.cluster.leader(*state.topic_partition) if state.preferred_replica is None else state.preferred_replica
        )

    @property
    def is_buffer_full(self) -> bool:
        """On the loop: whether nothing is requested because the fetched records have not been taken."""
        with self.assignment.lock:
            return self.buffer.waiting_bytes() > self._memory.half

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the fetched records of these partitions."""
        with self.assignment.lock:
            self.buffer.drop(partitions)
        self.assignment.poke()

    def choose(self, only: Set[TopicPartition] | None) -> None:
        """Any thread: note that the application requests records of these partitions only, until the next call. None
        stands for all partitions."""
        if only == self.buffer.only:
            return
        with self.assignment.lock:
            self.buffer.only = only
            planner = self._planner
            is_held_up = bool(planner.enough) or self._short_with is not None or planner.has_others
        if is_held_up:
            with suppress(TransportError):  # closed: there is nothing to fetch for
                self.assignment.post(self._wake)

    # The flow

    def run(self) -> Flow[None]:
        """Fetch until the consumer is closed. Raise an exception of a request that is not an error of Kafka, as the
        request would fail again and again."""
        listeners: list[Task[None]] = []
        try:
            for signal in (self.assignment.changed, self.cluster.changed):
                listeners.append((yield from spawn(self._listen(signal), "fetcher: listener")))
                listeners[-1].when_done(self._listener_ended)
            while True:
                self._is_woken = False
                if self._failure is not None:
                    raise self._failure
                pause = yield from self._round()
                if not self._is_woken:
                    yield from wait(self._signal, pause)
        finally:
            self._is_ended = True
            for task in listeners:
                task.cancel()

    def _listener_ended(self, task: Task[None]) -> None:
        if task.error is not None and not isinstance(task.error, CancelledFlow):
            self._fail(task.error)

    def _fail(self, error: BaseException) -> None:
        """Let `run` raise an error of a listener, or of the handling of a response."""
        self._failure = error
        self._wake()

    def _listen(self, signal: Signal) -> Flow[None]:
        while True:
            yield from wait(signal)
            self._planner.has_news = True
            self._wake()
            if self.buffer.has_ready:
                self.arrived.set()  # a partition that failed, or was paused

    def _wake(self) -> None:
        self._is_woken = True
        self._signal.set()

    def _note_taken(self) -> None:
        """On the thread that calls poll: if the last round could not request more, let the loop check again soon.

        Records that were taken before that round do not matter, because the round has counted them.
        """
        is_held_up = bool(self._planner.enough) or self._short_with is not None
        if is_held_up and not self._is_taken_posted:
            self._is_taken_posted = True
            try:
                with suppress(TransportError):  # closed: there is nothing to fetch for
                    self.assignment.post(self._taken)
            except BaseException:  # such as that of Ctrl-C
                self._is_taken_posted = False
                raise

    def _taken(self) -> None:
        """Begin a round if records that were taken allow another request.

        A request in flight needs no change, because it names each partition of its broker, with the offset after the
        records in the buffer.
        """
        self._is_taken_posted = False
        with self.assignment.lock:
            planner = self._planner
            is_less = any(not planner.has_enough(state) for state in planner.enough.values())
            if self._short_with is not None and self.buffer.waiting_bytes() < self._short_with:
                is_less = True
        if is_less:
            self._wake()

    def _look_for_taken(self) -> None:
        """Start another round if records were taken during this one, which was short of memory. `_note_taken` did not
        notify the loop, because the shortage was not recorded yet."""
        with self.assignment.lock:
            if self._short_with is not None and self.buffer.waiting_bytes() < self._short_with:
                self._wake()

    # What to fetch

    def _round(self) -> Flow[float | None]:
        """Send the requests that are possible now. Return the seconds until more may be possible."""
        now, planner, memory = self._clock(), self._planner, self._memory
        with self.assignment.lock:
            if planner.has_news or self._backoffs:
                planner.has_news = False
                self._forget_all_but(self.assignment.partitions, self.cluster.brokers)
            plans, due = planner.plan(now)
            waiting = self.buffer.waiting_bytes()
            if self.buffer.waiting_bytes(is_aside=True) > self.settings.fetch_ahead_max_bytes:
                self.buffer.drop_paused()
        self._short_with = waiting if plans and waiting > memory.half else None
        if plans and self._short_with is None:
            most = memory.most_bytes(len({node for node, _ in plans.keys() | planner.in_flight.keys()}))
            for request in memory.in_turn(plans):
                plan = planner.alone(request[0], plans[request])
                size = memory.reserve(request, most, len(plan), waiting)
                if size is None:
                    self._short_with = waiting
                    break  # the others wait, too; otherwise a large response would never get its space
                planner.note_sent(request, plan)
                yield self._fetch(request, plan, most, size)
        if self._short_with is not None:
            self._look_for_taken()
        return None if due is None else max(due - now, 0.0)

    def _forget_all_but(self, partitions: Container[object], brokers: Container[object]) -> None:
        """Forget partitions that are no longer assigned, and brokers that no longer exist."""
        self._backoffs.keep(partitions, brokers)
        self._responses.keep(partitions)
        self._planner.keep(partitions)
        self._memory.keep(brokers)
        self._session_errors = {node for node in self._session_errors if node in brokers}
        for gone in [node for node in self.responded_at if node not in brokers]:
            del self.responded_at[gone]
        for gone in [node for node in self._sessions if node not in brokers]:
            del self._sessions[gone]

    # One request

    def _fetch(self, request: Request, plan: Plan, most: int, size: int) -> StartCall:
        """Return a flow that sends one request for these partitions, and handles its response.

        most: Maximum size of the records in the response, in bytes, except for a single larger batch.
        size: Maximum size of the whole response.
        """
        node, channel = request
        is_aside = channel == ASIDE
        session = FetchSession(is_kept=False) if is_aside else self._sessions.setdefault(node, FetchSession())
        settings = self.settings
        # The ids of a topic's partitions are usually one object.
        has_ids = NO_UUID not in {id(one.request.topic_id): one.request.topic_id for one in plan.values()}.values()

        def build(version: int) -> FetchRequest:
            return session.request(
                {partition: requested.request for partition, requested in plan.items()},
                version,
                max_wait_ms=0 if is_aside else int(settings.fetch_max_wait * 1000),
                min_bytes=settings.fetch_min_bytes,
                max_bytes=most,
                isolation_level=int(settings.is_committed_only),
                rack_id=settings.client_rack,
            )

        def ended(reply: Reply | None, error: BaseException | None) -> None:
            if self._is_ended:
                return
            try:
                self._ended(node, session, plan, reply, error, is_aside=is_aside)
            finally:
                if not is_aside:
                    self.sent_at.pop(node, None)
                self._planner.note_ended(request)
                self._memory.release(request)
                self._wake()

        if not is_aside:
            self.sent_at[node] = self._clock()
        call = Call(
            node,
            ByVersion(FetchRequest, build),
            settings.request_timeout,
            LOWEST_VERSION,
            HIGHEST_VERSION if has_ids else FIRST_WITH_TOPIC_IDS - 1,
            channel=channel,
            max_response_bytes=size,
        )
        return StartCall(call, ended, self._fail)

    def _ended(
        self,
        node: int,
        session: FetchSession,
        plan: Plan,
        reply: Reply | None,
        error: BaseException | None,
        *,
        is_aside: bool,
    ) -> None:
        """Handle the end of a request, with a response or without one. Raise an error that is not one of Kafka."""
        try:
            if error is not None:
                raise error
            assert reply is not None
            self.responded_at[node] = self._clock()
            self._memory.shrink(node, reply.message)
            refused = self._received(node, session, plan, reply)
            if is_aside:
                self._planner.request_aside_again(refused)
        except KcodecError as failure:
            session.fail()
            if is_aside:
                log.debug("an extra fetch from broker %d failed: %s", node, failure)
                self._backoffs.put_off(node, str(failure))
                self._planner.request_aside_again(plan)
            else:
                self._failed(node, plan, failure)
            self._memory.note_refused(node, failure.__cause__)

    def _failed(self, node: int, plan: Plan, error: KcodecError) -> None:
        """Handle a missing response: try another replica, or the same broker later."""
        log.info("a fetch from broker %d failed: %s", node, error)
        self._metrics.count("consumer.fetch_failed", node=node)
        self._backoffs.put_off(node, str(error))
        self.cluster.request_update(f"broker {node} did not respond to a Fetch")
        with self.assignment.lock:
            for requested in plan.values():
                if requested.state.preferred_replica == node:
                    requested.state.preferred_replica = None
        if isinstance(error, AuthenticationError | UnsupportedError):
            self._responses.pass_on(error)
        if isinstance(error.__cause__, LimitExceededError) and error.__cause__.limit != RESPONSE_LIMIT:
            self._too_large(node, plan, error.__cause__)

    def _too_large(self, node: int, plan: Plan, error: LimitExceededError) -> None:
        """Handle a response above max_response_bytes: with one partition alone, its next batch is too large."""
        if len(plan) > 1:
            self._planner.request_one_by_one(node, plan)
            return
        ((partition, requested),) = plan.items()
        failure = LimitExceededError(
            f"the batch at offset {requested.request.offset} is too large to read: {error.reason}; increase this limit",
            limit=error.limit,
            value=error.value,
            claimed=error.claimed,
            topic_partition=partition,
            next_offset=requested.request.offset + 1,
        )
        if requested.state.version == requested.version and requested.state.position == requested.request.offset:
            self.assignment.fail(requested.state, failure)
        self.arrived.set()

    def _received(self, node: int, session: FetchSession, plan: Plan, reply: Reply) -> Iterable[TopicPartition]:
        """Handle a response. Return the partitions for which it is an error."""
        message = reply.message
        if message.error_code:
            session.refuse(message.error_code)
            code = error_code(message.error_code)
            log.info("broker %d rejected a Fetch: %s (%s)", node, code.name, code.text)
            is_first = node not in self._session_errors
            self._session_errors.discard(node)
            if code in SESSION_ERRORS:
                self._session_errors.add(node)
            if code not in SESSION_ERRORS or not is_first:
                self._backoffs.put_off(node, f"broker {node} responded to Fetch with {code.name}")
                if not code.retriable:
                    self._responses.pass_on(broker_error(code, f"Fetch from broker {node}", remedy="stop"))
            return plan
        found, problem = session.accept(message)
        if problem is not None:
            log.info("the response of broker %d does not match its fetch session: %s", node, problem)
            self._backoffs.put_off(node, f"the Fetch response of broker {node} does not match its session: {problem}")
            return plan
        self._backoffs.over(node)
        self._session_errors.discard(node)
        if self._backoffs:
            for partition in plan.keys() - {partition for partition, _ in found}:
                self._backoffs.over(partition)  # nothing new there
        self.cluster.learn_brokers(message.node_endpoints)
        for partition, data in found:
            self._responses.take(node, partition, plan[partition], data)
        return [partition for partition, data in found if data.error_code]
