# SPDX-License-Identifier: Apache-2.0
"""The retry driver of calls about many items: each is requested from its broker, and again where that helps.

Admin's calls, and a consumer's about offsets, have items (topics, partitions, groups, ids). `settle` finds the broker
of each item, sends one request for all items of a broker, takes the results, and requests the items with a retriable
error again (the controller, a leader or a coordinator has moved, a broker is starting) until the deadline. This is
KafkaAdminClient's Call and AdminApiDriver.

Nothing is swallowed: `Outcome` has a result or an error for each item. `Outcome.value()` gives the results, or raises:
the error itself where one item was asked for, else `AdminError`, an ExceptionGroup that also carries the results of the
items that went well. (`except* BrokerError` catches both.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from kcodec.cluster.metadata import Cluster
from kcodec.cluster.retry_routes import Route
from kcodec.errors import (
    AdminError,
    AuthenticationError,
    BrokerError,
    DeliveryTimeoutError,
    KcodecError,
    RequestTimedOutError,
    TransportError,
    UnsupportedError,
)
from kcodec.flow import Clock, Flow, Task, call, join, sleep, spawn
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# A broker knows a new topic some 100 ms after the controller made it: "unknown" is requested again for this time.
UNKNOWN_TOPIC_PATIENCE_SECONDS = 2.0
# Requests of one call that are under way at a time.
MAX_PARALLEL_REQUESTS = 32
# Errors that stand in the note of another, in words.
MAX_NOTED_ERRORS = 5


@dataclass
class Outcome(Generic[K, V]):
    """What came of the items of a call."""

    doing: str
    results: dict[K, V] = field(default_factory=dict)
    errors: dict[K, KcodecError] = field(default_factory=dict)

    def value(self) -> dict[K, V]:
        """The results; raises where there are errors."""
        if not self.errors:
            return self.results
        if len(self.errors) + len(self.results) == 1:
            raise next(iter(self.errors.values()))
        total = len(self.errors) + len(self.results)
        raise AdminError(f"{self.doing}: {len(self.errors)} of {total} failed", self.errors, self.results)

    def first_value(self) -> dict[K, V]:
        """The results; raises the first error, which has the others in a note."""
        if not self.errors:
            return self.results
        first, *others = self.errors.values()
        if others:
            more = "; ".join(map(str, others[:MAX_NOTED_ERRORS]))
            first.add_note(f"{len(others)} more of {len(self.errors) + len(self.results)} failed: {more}")
        raise first


class ItemResult(NamedTuple):
    """What a response says about an item: a result, or an error code and the broker's own words."""

    code: int
    value: Any = None
    message: str | None = None


@dataclass(frozen=True)
class CallContext:
    """What such flows work with.

    api_timeout: seconds for a call without a time of its own (Kafka: default.api.timeout.ms).
    now:         milliseconds since 1970, only to tell the age of transactions.
    late:        what is raised of an item that is not settled by then.
    """

    cluster: Cluster
    api_timeout: float
    now: Callable[[], int]
    late: type[RequestTimedOutError | DeliveryTimeoutError] = RequestTimedOutError

    @property
    def clock(self) -> Clock:
        """The cluster's."""
        return self.cluster.clock

    def deadline(self, timeout: float | None) -> Deadline:
        """The end of a call that begins now; `timeout` in seconds, None: `api_timeout`."""
        limit = self.api_timeout if timeout is None else timeout
        return Deadline(self.clock, self.clock() + limit, limit)

    def call_timeout(self, deadline: Deadline) -> float:
        """Seconds for one request: no request outlives the call that sends it."""
        return min(self.cluster.times.request, deadline.remaining)

    def pause(self, attempt: int, deadline: Deadline) -> Flow[None]:
        """Wait before the next attempt; `attempt` counts those that failed, from 0."""
        pause = self.cluster.times.backoff(attempt, self.cluster.random.random())
        yield from sleep(min(pause, max(deadline.left, 0.0)))


@dataclass(frozen=True)
class Deadline:
    """Until when; `limit` is what it was at the beginning, in seconds."""

    clock: Clock
    at: float
    limit: float

    @property
    def left(self) -> float:
        """Seconds left, maybe negative."""
        return self.at - self.clock()

    @property
    def remaining(self) -> float:
        """Seconds left, 0 once the deadline has passed: the `timeout` of the next step of the same call."""
        return max(self.left, 0.0)

    def share(self, steps: int) -> float:
        """Seconds that the next of `steps` steps of a call may take. A call that gives partial results must not spend
        all its time on the first broker that does not respond; what a quick step leaves, the following steps have."""
        return self.remaining / steps

    @property
    def left_ms(self) -> int:
        """For a request's own timeout_ms."""
        return max(int(self.left * 1000), 1)


@dataclass(frozen=True)
class ApiHandler(Generic[K, V]):
    """An API, asked about items.

    doing:     "delete topic"; errors say "delete topic 'orders': ...".
    route:     where an item is answered.
    request:   the message for some items; the deadline is for a timeout_ms inside it.
    read:      what a response says of each item.
    final:     codes that are not requested again here although Kafka calls them retriable.
    resource:  what an error is about, of an item.
    at_most:   items in one request, so that neither it nor the answer grows without bound.
    lowest, highest: bounds on the version.
    """

    doing: str
    route: Route[K]
    request: Callable[[list[K], Deadline], Any]
    read: Callable[[Any, list[K]], Iterable[tuple[K, ItemResult]]]
    final: frozenset[int] = frozenset()
    resource: Callable[[K], object] = lambda item: item
    named: Callable[[K], str] = lambda item: f"{item!r}" if isinstance(item, str) else f"{item}"
    at_most: int = 1000
    lowest: int = 0
    highest: int = 32767


def request_items(
    context: CallContext,
    items: Iterable[K],
    handler: ApiHandler[K, V],
    deadline: Deadline,
    *,
    on_result: Callable[[K, V], None] = lambda item, result: None,
    is_needed: Callable[[K], bool] = lambda item: True,
    causes: dict[K, KcodecError] | None = None,
) -> Generator[Any, Any, Outcome[K, V]]:
    """Ask until each item has a result or a final error, or the deadline is over.

    on_result: called with each result at once, before the others are there. is_wanted: called before an item is
    requested again; one that is wanted no more has neither a result nor an error. causes: takes the last error of each
    item that is requested again, and loses it with the item's result.
    """
    outcome: Outcome[K, V] = Outcome(handler.doing)
    last = {} if causes is None else causes
    driver = _RetryDriver(context, handler, deadline, outcome, on_result, last, context.clock())
    order = list(dict.fromkeys(items))
    pending, attempt = order, 0
    while pending:
        requests = yield from driver.route(pending)
        yield from driver.send_all(requests)
        pending = [item for item in pending if item not in outcome.results and item not in outcome.errors]
        pending = [item for item in pending if is_needed(item)]
        if pending:
            yield from context.pause(attempt, deadline)
            attempt += 1
            if deadline.left <= 0:
                driver.give_up(pending)
                break
    outcome.results = {item: outcome.results[item] for item in order if item in outcome.results}
    outcome.errors = {item: outcome.errors[item] for item in order if item in outcome.errors}
    return outcome


def results(
    context: CallContext, items: Iterable[K], handler: ApiHandler[K, V], timeout: float | None
) -> Generator[Any, Any, dict[K, V]]:
    """Call `request_items` for `timeout` seconds. Return the results by item, or raise as `Outcome.value` does."""
    outcome = yield from request_items(context, items, handler, context.deadline(timeout))
    return outcome.value()


@dataclass
class _RetryDriver(Generic[K, V]):
    """One run of `request_items`. last: the last error of each item that is requested again; begin: on the clock."""

    _context: CallContext
    _handler: ApiHandler[K, V]
    _deadline: Deadline
    _outcome: Outcome[K, V]
    _on_result: Callable[[K, V], None]
    _last: dict[K, KcodecError]
    _begin: float

    def route(self, items: list[K]) -> Flow[list[tuple[int, list[K]]]]:
        """Requests to be made: a node and the items to ask it about."""
        groups: dict[int, list[K]] = {}
        self._handler.route.prepare(items)
        for item in items:
            if self._deadline.left <= 0:
                break
            try:
                node = yield from self._handler.route.node(item, self._call_timeout())
            except KcodecError as error:
                self._failed([item], error)
            else:
                if node is None:
                    self._last[item] = KcodecError(f"{self._doing(item)}: no broker answers for it at the moment")
                else:
                    groups.setdefault(node, []).append(item)
        most = self._handler.at_most
        return [(node, some[at : at + most]) for node, some in groups.items() for at in range(0, len(some), most)]

    def send_all(self, requests: list[tuple[int, list[K]]]) -> Flow[None]:
        """All of them, side by side where there are several."""
        if len(requests) == 1:
            yield from self._send(*requests[0])
            return
        for at in range(0, len(requests), MAX_PARALLEL_REQUESTS):
            tasks: list[Task[None]] = []
            for node, items in requests[at : at + MAX_PARALLEL_REQUESTS]:
                tasks.append((yield from spawn(self._send(node, items), f"{self._handler.doing} at {node}")))
            for task in tasks:
                yield from join(task)

    def _send(self, node: int, items: list[K]) -> Flow[None]:
        handler = self._handler
        if self._deadline.left <= 0:
            return
        try:
            reply = yield from call(
                node,
                handler.request(items, self._deadline),
                timeout=self._call_timeout(),
                lowest=handler.lowest,
                highest=handler.highest,
            )
        except (TransportError, UnsupportedError) as error:
            self._failed(items, error)
            return
        missing = set(items)
        for item, result in handler.read(reply.message, items):
            if item in missing:  # asked for, and not answered already
                missing.remove(item)
                self._take(item, result)
        for item in items:
            if item in missing:
                self._outcome.errors[item] = KcodecError(
                    f"{self._doing(item)}: the broker's answer does not name it (node {node})"
                )

    def _take(self, item: K, result: ItemResult) -> None:
        if result.code == ErrorCode.NONE:
            self._outcome.results[item] = result.value
            self._last.pop(item, None)
            self._on_result(item, result.value)
            return
        is_passing = self._may_retry(result.code)
        is_gone = result.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_passing
        error = broker_error(
            result.code,
            self._doing(item),
            message=result.message,
            remedy="stop" if is_gone else None,
            text="there is no such topic or partition; check its name" if is_gone else None,
        )
        error.resource = self._handler.resource(item)
        if is_passing:
            self._last[item] = error
            self._handler.route.lost(item, result.code)
        else:
            self._outcome.errors[item] = error

    def _may_retry(self, code: int) -> bool:
        if code in self._handler.final or not error_code(code).retriable:
            return False
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            waited = self._context.clock() - self._begin
            return self._handler.route.may_lag and waited < UNKNOWN_TOPIC_PATIENCE_SECONDS
        return True

    def _failed(self, items: list[K], error: KcodecError) -> None:
        """No node, or no response: requested again, unless that cannot help."""
        if isinstance(error, BrokerError):
            is_passing = self._may_retry(error.code)
        else:
            is_passing = isinstance(error, TransportError) and not isinstance(error, AuthenticationError)
        for item in items:
            if is_passing:
                self._last[item] = error
                self._handler.route.lost(item, None)
            else:
                self._outcome.errors[item] = error

    def give_up(self, items: Iterable[K]) -> None:
        """The deadline is over."""
        for item in items:
            last = self._last.get(item)
            text = f"{self._doing(item)}: not done within {round(self._deadline.limit, 2):g} s"
            error = self._context.late(text if last is None else f"{text}; the last answer: {last}")
            error.__cause__ = last
            self._outcome.errors[item] = error

    def _doing(self, item: K) -> str:
        return f"{self._handler.doing} {self._handler.named(item)}"

    def _call_timeout(self) -> float:
        return self._context.call_timeout(self._deadline)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """topic -> its partitions, as most requests want them."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def whole(response: Any, items: list[K], value: Callable[[Any], Any]) -> Iterator[tuple[K, ItemResult]]:
    """Read a response that is about its only item. value: the item's result, given the response."""
    yield items[0], ItemResult(response.error_code, value(response), getattr(response, "error_message", None))


def entries(
    results: Iterable[Any], key: str, value: Callable[[Any], Any] = lambda result: None
) -> Iterator[tuple[Any, ItemResult]]:
    """Read a response that has a result for each item. key: the field with the item; value: what the result holds."""
    for result in results:
        yield getattr(result, key), ItemResult(result.error_code, value(result), getattr(result, "error_message", None))


def partition_codes(
    response: Any,
    partitions: list[TopicPartition],
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
    value: Callable[[Any], Any] = lambda result: None,
) -> Iterator[tuple[TopicPartition, ItemResult]]:
    """Read a response that has a code for each partition. name_of: a topic of it, where ids stand for it; value: what
    the result of a partition holds."""
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(name_of(topic), result.partition_index)
            yield partition, ItemResult(result.error_code, value(result), getattr(result, "error_message", None))
