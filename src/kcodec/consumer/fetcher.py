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
from typing import Any, Final

from kcodec.cluster.metadata import NO_UUID, Cluster, Partition
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.fetch_buffer import RESPONSES_AHEAD, FetchBuffer
from kcodec.consumer.fetch_responses import FetchBackoffs, FetchResponses, RequestedPartition
from kcodec.consumer.fetch_session import FIRST_WITH_TOPIC_IDS, FetchSession, PartitionRequest
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import AuthenticationError, KcodecError, LimitExceededError, TransportError, UnsupportedError
from kcodec.flow import ByVersion, Call, Flow, Reply, Signal, StartCall, Task, spawn, wait
from kcodec.network.metrics import Metrics
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.protocol.frame import RESPONSE_LIMIT
from kcodec.protocol.messages.fetch import FetchRequest

log = logging.getLogger("kcodec.consumer")
#: Requests that may be held at the broker; those that are not go where all others go.
CHANNEL: Final = "fetch"
ASIDE: Final = ""
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

#: What a response holds next to records, aborted transactions included: of the whole, and of each partition.
OVERHEAD_BYTES, PARTITION_OVERHEAD_BYTES = 64 * 1024, 512
#: A large response is set aside for in full at first, and then by this part less with each response.
SHRINK: Final = 16

Plan = dict[TopicPartition, RequestedPartition]
#: A partition to request: its metadata if any is known, the offset, and the leader epoch before it.
_Place = tuple[PartitionState, Partition | None, int, int]


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
        self._sessions: dict[int, FetchSession] = {}
        #: Requests under way, by broker and channel.
        self._flying: dict[tuple[int, str], Plan] = {}
        #: Bytes that are set aside for the responses of these requests.
        self._set_aside: dict[tuple[int, str], int] = {}
        #: By broker whose responses are larger than what is requested, as its batches are: what they claimed.
        self._large: dict[int, int] = {}
        #: By broker, the number of its last request, counted over all brokers.
        self._turns: dict[int, int] = {}
        self._turn = 0
        #: By broker: when the request under way was sent, and when the last response came. For messages.
        self.sent_at: dict[int, float] = {}
        self.responded_at: dict[int, float] = {}
        #: The last extra request of each partition that got no error: the broker, the state's version and the offset.
        self._requested_aside: dict[TopicPartition, tuple[int, int, int]] = {}
        #: Brokers whose last response was an error of the session.
        self._session_errors: set[int] = set()
        #: By broker whose response became too large: the partitions that are then requested one by one.
        self._one_by_one: dict[int, list[TopicPartition]] = {}
        #: What ended a request otherwise than by an error of Kafka.
        self._failure: BaseException | None = None
        self._is_ended = False
        self._signal = Signal()
        self._is_woken = False
        #: Whether the assignment or the metadata has changed since the last round.
        self._has_news = True
        #: Why the last round did not request more: a partition of each broker that has enough responses.
        self._enough: dict[int, PartitionState] = {}
        #: Likewise, if there was no memory for another response: the bytes of the responses that waited to be taken.
        self._short_with: int | None = None
        #: Whether the last round requested less because the application requests records of some partitions only.
        self._has_others = False
        self._is_taken_posted = False
        #: What was requested last of each partition; unchanged entries are used again.
        self._requested: Plan = {}

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
            return self.buffer.waiting_bytes() > self.settings.fetch_ahead_max_bytes // 2

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
            is_held_up = bool(self._enough) or self._short_with is not None or self._has_others
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

    def _listen(self, signal: Signal) -> Flow[None]:
        while True:
            yield from wait(signal)
            self._has_news = True
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
        is_held_up = bool(self._enough) or self._short_with is not None
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
            is_less = any(not self._has_enough(state) for state in self._enough.values())
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

    def _has_enough(self, state: PartitionState) -> bool:
        return state.is_fetchable and self._next(state)[2] and not self._is_other(state.topic_partition)

    def _is_other(self, partition: TopicPartition) -> bool:
        """Return whether the application does not request the records of a partition."""
        return self.buffer.only is not None and partition not in self.buffer.only

    # What to fetch

    def _round(self) -> Flow[float | None]:
        """Send the requests that are possible now. Return the seconds until more may be possible."""
        now = self._clock()
        with self.assignment.lock:
            plans, due = self._plan(now)
            waiting = self.buffer.waiting_bytes()
            if self.buffer.waiting_bytes(is_aside=True) > self.settings.fetch_ahead_max_bytes:
                self.buffer.drop_paused()
        # Half of the buffer space is for responses that are not polled yet. The requests share the rest, so that
        # brokers that delay their responses do not use all of it.
        half = self.settings.fetch_ahead_max_bytes // 2
        brokers = len({node for node, _ in plans.keys() | self._flying.keys()})
        self._short_with = waiting if plans and waiting > half else None
        for node, channel in sorted(plans, key=lambda key: self._turns.get(key[0], 0)) if waiting <= half else ():
            plan = self._alone(node, plans[node, channel])
            most = max(min(self.settings.fetch_max_bytes, half // (2 * brokers)), 1)
            size = max(most, self._large.get(node, 0)) + OVERHEAD_BYTES + PARTITION_OVERHEAD_BYTES * len(plan)
            if not self._has_space(size, waiting):
                self._short_with = waiting
                break  # the others wait, too; otherwise a large response would never get its space
            self._turns[node] = self._turn = self._turn + 1
            self._flying[node, channel], self._set_aside[node, channel] = plan, size
            if channel == ASIDE:
                for partition, requested in plan.items():
                    self._requested_aside[partition] = node, requested.version, requested.request.offset
            yield self._fetch(node, channel, plan, most, size)
        if self._short_with is not None:
            self._look_for_taken()
        return None if due is None else max(due - now, 0.0)

    def _has_space(self, size: int, waiting: int) -> bool:
        """Return whether there is free capacity for a response of `size` bytes."""
        held = waiting + sum(self._set_aside.values())
        return held == 0 or held + size <= self.settings.fetch_ahead_max_bytes

    def _alone(self, node: int, plan: Plan) -> Plan:
        """Return one of the partitions of a response that was too large; each gets its turn."""
        while alone := self._one_by_one.pop(node, None):
            partition = alone.pop(0)
            self._one_by_one[node] = alone
            if partition in plan:
                return {partition: plan[partition]}
        return plan

    def _plan(self, now: float) -> tuple[dict[tuple[int, str], Plan], float | None]:
        """Return the requests to send now, by broker and channel, and when more are due."""
        found: dict[int, list[_Place]] = {}
        due: list[float] = []
        partitions, brokers = self.assignment.partitions, self.cluster.brokers
        if self._has_news or self._backoffs:
            self._has_news = False
            self._forget_all_but(partitions, brokers)
        self._enough.clear()
        self._has_others = False
        for partition, state in partitions.items():
            if not state.is_fetchable:
                continue
            known = self.cluster.partition(partition)
            if state.preferred_replica is None:
                node = known.leader if known is not None and known.leader in brokers else None
            else:
                node = self._preferred(state, known, now)
            if self._backoffs:
                left_alone = max(self._backoffs.until(partition), 0.0 if node is None else self._backoffs.until(node))
                if left_alone > now:
                    due.append(left_alone)
                    continue
            if node is None:
                self.cluster.add_topics([partition.topic])
                self.cluster.request_update(f"{partition} has no leader")
                due.append(self._backoffs.put_off(partition).until)
                continue
            if partition in self.buffer:
                offset, epoch, is_full = self._next(state)
            else:
                offset, epoch, is_full = state.position or 0, state.position_epoch, False
            if is_full:
                if self._is_other(partition):
                    self._has_others = True  # the records that the application requests must not wait for it
                else:
                    self._enough[node] = state
            elif node not in self._enough:
                found.setdefault(node, []).append((state, known, offset, epoch))
        if self.buffer.only is not None:
            self._leave_out_others(found)
        free = {}
        for node, places in found.items():
            if node in self._enough:
                continue
            channel, under_way = CHANNEL, self._flying.get((node, CHANNEL))
            if under_way is not None:
                channel, places = ASIDE, self._news(node, places, under_way)
            if places and (node, channel) not in self._flying:
                free[node, channel] = self._requests(places)
        return free, min(due, default=None)

    def _leave_out_others(self, found: dict[int, list[_Place]]) -> None:
        """Leave out the partitions whose records the application does not request, if responses that it does not take
        use too much memory."""
        if self.buffer.waiting_bytes(is_aside=True) <= self.settings.fetch_ahead_max_bytes // 2:
            return
        for node, places in found.items():
            found[node] = [place for place in places if not self._is_other(place[0].topic_partition)]
            self._has_others = self._has_others or len(found[node]) < len(places)

    def _forget_all_but(self, partitions: Container[object], brokers: Container[object]) -> None:
        """Forget partitions that are no longer assigned, and brokers that no longer exist."""
        self._backoffs.keep(partitions, brokers)
        self._responses.keep(partitions)
        for requested in (self._requested_aside, self._requested):
            for unassigned in [one for one in requested if one not in partitions]:
                del requested[unassigned]
        self._session_errors = {node for node in self._session_errors if node in brokers}
        for known in (self._large, self._turns, self.responded_at, self._sessions):
            for gone in [node for node in known if node not in brokers]:
                del known[gone]

    def _news(self, node: int, places: list[_Place], under_way: Plan) -> list[_Place]:
        """Return partitions that the request in flight does not name. Return each only once, because there may be no
        data yet."""
        news = []
        for place in places:
            state, _, offset, _ = place
            known = under_way.get(state.topic_partition)
            if known is not None and known.request.offset == offset and known.version == state.version:
                continue
            if self._requested_aside.get(state.topic_partition) != (node, state.version, offset):
                news.append(place)
        return news

    def _next(self, state: PartitionState) -> tuple[int, int, bool]:
        """Return the offset to request, the leader epoch of the record before it, and whether records must be taken
        first."""
        ahead = self.buffer.ahead(state)
        if not ahead:
            assert state.position is not None
            return state.position, state.position_epoch, False
        offset = ahead[-1].next_offset
        return offset or 0, ahead[-1].last_epoch, offset is None or len(ahead) >= RESPONSES_AHEAD

    def _requests(self, places: list[_Place]) -> Plan:
        """Return the partitions of a request with their offsets and sizes."""
        without_epoch_at, larger = self._responses.without_epoch_at, self._responses.larger
        usual_bytes = self.settings.max_partition_fetch_bytes
        plan: Plan = {}
        for state, known, offset, last_epoch in places:
            partition = state.topic_partition
            # The position belongs to this topic, even if the metadata already contains a newer one of the same name.
            topic_id = state.topic_id or self.cluster.topic_id(partition.topic) or NO_UUID
            leader_epoch = -1 if known is None else known.leader_epoch
            if without_epoch_at and without_epoch_at.get(partition, -2) == leader_epoch:
                last_epoch = -1
            max_bytes = max(usual_bytes, larger.get(partition, 0)) if larger else usual_bytes
            values = topic_id, offset, leader_epoch, last_epoch, max_bytes
            before = self._requested.get(partition)
            if before is not None and before.request == values and before.version == state.version:
                plan[partition] = before
            else:
                plan[partition] = RequestedPartition(state, state.version, PartitionRequest(*values))
        self._requested.update(plan)
        return plan

    def _preferred(self, state: PartitionState, known: Partition | None, now: float) -> int | None:
        """Return the replica that the leader prefers for this consumer. Return the leader if no replica is
        preferred, or if it is out of date."""
        brokers, preferred = self.cluster.brokers, state.preferred_replica
        if now < state.preferred_replica_until and preferred in brokers:
            return preferred
        state.preferred_replica = None
        return known.leader if known is not None and known.leader in brokers else None

    # One request

    def _fetch(self, node: int, channel: str, plan: Plan, most: int, size: int) -> StartCall:
        """Return a flow that sends one request for these partitions, and handles its response."""
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
            except Exception as failure:  # noqa: BLE001  the flow raises it
                self._failure = failure
            finally:
                if not is_aside:
                    self.sent_at.pop(node, None)
                self._flying.pop((node, channel), None)
                self._set_aside.pop((node, channel), None)
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
        return StartCall(call, ended)

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
            self._shrink(node, reply.message)
            refused = self._received(node, session, plan, reply)
            if is_aside:
                self._request_aside_again(refused)
        except KcodecError as failure:
            session.fail()
            if is_aside:
                log.debug("an extra fetch from broker %d failed: %s", node, failure)
                self._backoffs.put_off(node, str(failure))
                self._request_aside_again(plan)
            else:
                self._failed(node, plan, failure)
            self._note_size(node, failure.__cause__)

    def _request_aside_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the next round request these partitions again after their backoff, because the response was an error."""
        for partition in partitions:
            self._requested_aside.pop(partition, None)

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

    def _note_size(self, node: int, cause: BaseException | None) -> None:
        """Note that a response declared more than was reserved, so that the next request reserves this size."""
        if isinstance(cause, LimitExceededError) and cause.limit == RESPONSE_LIMIT:
            self._large[node] = max(cause.claimed, self._large.get(node, 0))

    def _shrink(self, node: int, message: Any) -> None:
        """Reserve a little less after each response, down to the actual size, because there may have been only a few
        large batches."""
        if size := self._large.pop(node, 0):
            brought = sum(len(part.records or b"") for topic in message.responses for part in topic.partitions)
            smaller = max(size - max(size // SHRINK, 1), brought)
            if smaller > OVERHEAD_BYTES:
                self._large[node] = smaller

    def _too_large(self, node: int, plan: Plan, error: LimitExceededError) -> None:
        """Handle a response above max_response_bytes: with one partition alone, its next batch is too large."""
        if len(plan) > 1:
            self._one_by_one[node] = list(plan)
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
