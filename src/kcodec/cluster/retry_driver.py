# SPDX-License-Identifier: Apache-2.0
"""The retry driver of calls with many items: it requests each item from its broker and repeats retriable failures.

The items of Admin's calls, and of a consumer's calls about offsets, are topics, partitions, groups or ids.
`request_items` finds the broker of each item and sends one request for all items of a broker. Until the deadline, it
requests items with a retriable error again, for example if a leader has moved or a broker is starting. In Kafka, Call
and AdminApiDriver of KafkaAdminClient do this.

A request may take effect although its response is lost. `ApiHandler.is_reached` then recognizes the error of the
repeated request that means that nothing is left to do. `ApiHandler.is_repeatable` excludes requests that do more if
they are repeated.

No error is dropped: `Outcome` has a result or an error for each item. `Outcome.value()` returns the results or raises.
It raises the error itself if there was one item, otherwise `AdminError`, an ExceptionGroup that also has the results of
the successful items. (`except* BrokerError` catches both.)
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
    UnknownOutcomeError,
    UnsupportedError,
)
from kcodec.flow import Clock, Flow, Task, call, join, sleep, spawn
from kcodec.offsets import TopicPartition
from kcodec.protocol.error_codes import ErrorCode, broker_error, error_code
from kcodec.quantities import seconds_text

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# A broker learns of a new topic a little after the controller has created it, so an unknown topic is requested again
# for this time.
UNKNOWN_TOPIC_PATIENCE_SECONDS = 2.0
# Maximum number of requests of one call that are in flight at a time.
MAX_PARALLEL_REQUESTS = 32
# Maximum number of other errors that the note of an error lists.
MAX_NOTED_ERRORS = 5


@dataclass
class Outcome(Generic[K, V]):
    """The results and errors of the items of a call.

    repeated: Items that were requested again although an earlier request may have taken effect.
    """

    doing: str
    results: dict[K, V] = field(default_factory=dict)
    errors: dict[K, KcodecError] = field(default_factory=dict)
    repeated: set[K] = field(default_factory=set)

    def repeated_with(self, code: int) -> list[K]:
        """Return the repeated items that have this error. An earlier request of the call may be its cause."""
        return [
            item
            for item, error in self.errors.items()
            if item in self.repeated and isinstance(error, BrokerError) and error.code == code
        ]

    def succeed(self, item: K, value: V) -> None:
        """Replace the error of an item with a result."""
        del self.errors[item]
        self.results[item] = value

    def value(self) -> dict[K, V]:
        """Return the results; raise if there are errors."""
        if not self.errors:
            return self.results
        if len(self.errors) + len(self.results) == 1:
            raise next(iter(self.errors.values()))
        total = len(self.errors) + len(self.results)
        doing = self.doing.removesuffix(" of").removesuffix(" in")
        raise AdminError(f"{doing}: {len(self.errors)} of {total} failed", self.errors, self.results)

    def first_value(self) -> dict[K, V]:
        """Return the results; raise the first error, with a note on the others."""
        if not self.errors:
            return self.results
        first, *others = self.errors.values()
        if others:
            more = "; ".join(map(str, others[:MAX_NOTED_ERRORS]))
            first.add_note(f"{len(others)} more of {len(self.errors) + len(self.results)} failed: {more}")
        raise first


class ItemResult(NamedTuple):
    """The result of an item in a response, or an error code and the broker's message."""

    code: int
    value: Any = None
    message: str | None = None


@dataclass(frozen=True)
class CallContext:
    """The context of flows that use the retry driver.

    api_timeout: Timeout in seconds of a call without a `timeout` (Kafka: default.api.timeout.ms).
    now:         Returns the time in ms since 1970. It is only used for the age of transactions.
    late:        Class of the error of an item without a result at the deadline.
    """

    cluster: Cluster
    api_timeout: float
    now: Callable[[], int]
    late: type[RequestTimedOutError | DeliveryTimeoutError] = RequestTimedOutError

    @property
    def clock(self) -> Clock:
        """The clock of the cluster."""
        return self.cluster.clock

    def deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline of a call that begins now. `timeout` is in seconds; None stands for `api_timeout`."""
        limit = self.api_timeout if timeout is None else timeout
        return Deadline(self.clock, self.clock() + limit, limit)

    def call_timeout(self, deadline: Deadline) -> float:
        """Return the seconds for one request, which must not outlive its call."""
        return min(self.cluster.times.request, deadline.remaining)

    def pause(self, attempt: int, deadline: Deadline) -> Flow[None]:
        """Wait before the next attempt. `attempt` is the number of the failed attempt, from 0."""
        pause = self.cluster.times.backoff(attempt, self.cluster.random.random())
        yield from sleep(min(pause, max(deadline.left, 0.0)))


@dataclass(frozen=True)
class Deadline:
    """The deadline of a call. `limit` is the time limit of the whole call in seconds."""

    clock: Clock
    at: float
    limit: float

    @property
    def left(self) -> float:
        """The remaining seconds; negative after the deadline."""
        return self.at - self.clock()

    @property
    def remaining(self) -> float:
        """The remaining seconds, or 0 after the deadline: the `timeout` of the next step of the same call."""
        return max(self.left, 0.0)

    def share(self, steps: int) -> float:
        """Return the seconds for the next step of a call with `steps` remaining steps. A call with partial results must
        not spend all its time on the first broker that does not respond. A step that finishes early leaves its time to
        the next steps."""
        return self.remaining / steps

    @property
    def left_ms(self) -> int:
        """The remaining milliseconds, for the timeout_ms of a request."""
        return max(int(self.left * 1000), 1)


@dataclass(frozen=True)
class ApiHandler(Generic[K, V]):
    """The parts of a request for items that depend on the API (Kafka: AdminApiHandler).

    doing:     Text such as "delete topic". Errors begin with "delete topic 'orders'".
    route:     Selects the broker of an item.
    request:   Returns the request for some items. The deadline is for its timeout_ms.
    read:      Returns the result of each item in a response.
    final:     Retriable codes that are not retried here.
    resource:  Returns the resource that the error of an item names.
    at_most:   Maximum number of items in one request, which limits the size of request and response.
    is_reached: Whether this error of an item means that an earlier request has taken effect whose response was lost.
                The result of the item is then the value in the response with the error.
    is_repeatable: Whether an item may be requested again after a request that may have taken effect.
    unknown_effect: Errors of brokers after which the request may have taken effect, or may still do so.
    lowest, highest: Bounds of the version.
    """

    doing: str
    route: Route[K]
    request: Callable[[list[K], Deadline], Any]
    read: Callable[[Any, list[K]], Iterable[tuple[K, ItemResult]]]
    final: frozenset[int] = frozenset()
    resource: Callable[[K], object] = lambda item: item
    named: Callable[[K], str] = lambda item: f"{item!r}" if isinstance(item, str) else f"{item}"
    at_most: int = 1000
    is_reached: Callable[[K, int], bool] = lambda item, code: False
    is_repeatable: Callable[[K], bool] = lambda item: True
    unknown_effect: frozenset[int] = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})
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
    """Request items until each has a result or a final error, or the deadline has passed.

    on_result: Called with each result when it arrives.
    is_needed: Called before an item is requested again. An item that is no longer needed gets neither a result nor an
               error.
    causes:    Receives the last error of each item that is requested again, until the item has a result.
    """
    outcome: Outcome[K, V] = Outcome(handler.doing)
    last = {} if causes is None else causes
    driver = _RetryDriver(context, handler, deadline, outcome, on_result, last, context.clock())
    order = list(dict.fromkeys(items))
    pending, attempt = order, 0
    while pending:
        yield from driver.request(pending)
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
    """One run of `request_items`.

    last:  Last error of each item to be requested again.
    begin: Start of the run, by the clock.
    """

    _context: CallContext
    _handler: ApiHandler[K, V]
    _deadline: Deadline
    _outcome: Outcome[K, V]
    _on_result: Callable[[K, V], None]
    _last: dict[K, KcodecError]
    _begin: float

    def request(self, items: list[K]) -> Flow[None]:
        """Request items once. Items whose broker is known do not wait for the look-up of other brokers."""
        if self._deadline.left <= 0:
            return
        route = self._handler.route
        route.prepare(items)
        unknown = [item for item in items if route.known(item) is None]
        requests = self._requests(items)
        if not unknown or not requests:
            yield from self._look_up(unknown) if unknown else self._send_all(requests)
            return
        task = yield from spawn(self._look_up(unknown), f"look-up for {self._handler.doing}")
        try:
            yield from self._send_all(requests)
            yield from join(task)
        finally:
            task.cancel()

    def _look_up(self, items: list[K]) -> Flow[None]:
        """Find the brokers of these items, and request the items that have one."""
        route = self._handler.route
        errors = yield from route.look_up(items, self._call_timeout())
        for item, error in errors.items():
            self._failed([item], error)
        found = [item for item in items if item not in errors]
        for item in found:
            if route.known(item) is None:
                try:
                    route.check_missing(item)
                except KcodecError as error:
                    self._failed([item], error)
                else:
                    cause = self._context.cluster.last_error
                    self._last[item] = KcodecError(
                        f"{self._doing(item)}: {route.unknown_error(item)}"
                        + ("" if cause is None else f"; the last request for metadata failed: {cause}")
                    )
        yield from self._send_all(self._requests(found))

    def _requests(self, items: list[K]) -> list[tuple[int, list[K]]]:
        """Return the requests to send for the items whose broker is known: a node and its items."""
        groups: dict[int, list[K]] = {}
        for item in items:
            node = self._handler.route.known(item)
            if node is not None:
                groups.setdefault(node, []).append(item)
        most = self._handler.at_most
        return [(node, some[at : at + most]) for node, some in groups.items() for at in range(0, len(some), most)]

    def _send_all(self, requests: list[tuple[int, list[K]]]) -> Flow[None]:
        """Send all requests, in parallel if there are several."""
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
            if isinstance(error, TransportError) and error.possibly_sent:
                items = self._note_lost(items, error)
            self._failed(items, error)
            return
        missing = set(items)
        for item, result in handler.read(reply.message, items):
            if item in missing:  # requested, and without a result so far
                missing.remove(item)
                self._take(item, result)
        for item in items:
            if item in missing:
                self._outcome.errors[item] = KcodecError(
                    f"{self._doing(item)}: the response of broker {node} has no result for {self._handler.named(item)}"
                )

    def _note_lost(self, items: list[K], error: KcodecError) -> list[K]:
        """Note that a request may have taken effect. Return the items that may be requested again."""
        repeatable = [item for item in items if self._handler.is_repeatable(item)]
        self._outcome.repeated.update(repeatable)
        for item in items:
            if item not in self._outcome.repeated:
                unknown = UnknownOutcomeError(
                    f"{self._doing(item)}: the outcome is unknown, as the request may have taken effect, and it is not "
                    f"repeated; check the state of the cluster before the next call; the error: {error}",
                    possibly_sent=True,
                )
                unknown.__cause__ = error
                self._outcome.errors[item] = unknown
        return repeatable

    def _take(self, item: K, result: ItemResult) -> None:
        is_reached = item in self._outcome.repeated and self._handler.is_reached(item, result.code)
        if result.code == ErrorCode.NONE or is_reached:
            self._outcome.results[item] = result.value
            self._last.pop(item, None)
            self._on_result(item, result.value)
            return
        is_passing = self._may_retry(result.code)
        error = self._error(item, result.code, result.message, is_passing)
        if not is_passing:
            self._outcome.errors[item] = error
        elif result.code not in self._handler.unknown_effect or self._note_lost([item], error):
            self._last[item] = error
            self._handler.route.lost(item, result.code)

    def _error(self, item: K, code: int, message: str | None, is_passing: bool) -> BrokerError:
        """Return the error of an item. If a topic is still unknown after the retries, another call does not help."""
        is_gone = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_passing
        error = broker_error(
            code,
            self._doing(item),
            message=message,
            remedy="stop" if is_gone else None,
            text="the topic or partition does not exist; check its name" if is_gone else None,
        )
        error.resource = self._handler.resource(item)
        return error

    def _may_retry(self, code: int) -> bool:
        if code in self._handler.final or not error_code(code).retriable:
            return False
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            waited = self._context.clock() - self._begin
            return self._handler.route.may_lag and waited < UNKNOWN_TOPIC_PATIENCE_SECONDS
        return True

    def _failed(self, items: list[K], error: KcodecError) -> None:
        """Handle a missing node or response: request the items again, unless a repeat cannot help."""
        if isinstance(error, BrokerError):
            is_passing = self._may_retry(error.code)
        else:
            is_passing = isinstance(error, TransportError) and not isinstance(error, AuthenticationError)
            if is_passing:  # the brokers may have other addresses now
                doing = self._doing(items[0]) if items else self._handler.doing  # no items: none of them is repeated
                self._context.cluster.request_update(f"{doing}: the request got no response")
        for item in items:
            if is_passing:
                self._last[item] = error
                self._handler.route.lost(item, None)
            elif (
                isinstance(error, BrokerError)
                and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                and error.remedy == "retry"
            ):  # the look-up of a leader did not find the topic
                self._outcome.errors[item] = self._error(item, error.code, None, is_passing)
            else:
                self._outcome.errors[item] = error

    def give_up(self, items: Iterable[K]) -> None:
        """Record an error for each item that has no result at the deadline."""
        for item in items:
            last = self._last.get(item)
            text = f"{self._doing(item)}: not finished within {seconds_text(self._deadline.limit)}"
            error = self._context.late(
                text if last is None else f"{text}; last error: {last}", possibly_sent=item in self._outcome.repeated
            )
            error.__cause__ = last
            self._outcome.errors[item] = error

    def _doing(self, item: K) -> str:
        return f"{self._handler.doing} {self._handler.named(item)}"

    def _call_timeout(self) -> float:
        return self._context.call_timeout(self._deadline)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of each topic, in the form that most requests need."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def whole(response: Any, items: list[K], value: Callable[[Any], Any]) -> Iterator[tuple[K, ItemResult]]:
    """Read a response about its only item. value: returns the result of the item."""
    yield items[0], ItemResult(response.error_code, value(response), getattr(response, "error_message", None))


def entries(
    results: Iterable[Any], key: str, value: Callable[[Any], Any] = lambda result: None
) -> Iterator[tuple[Any, ItemResult]]:
    """Read a response with a result for each item. key: the field with the item; value: returns the item's result."""
    for result in results:
        yield getattr(result, key), ItemResult(result.error_code, value(result), getattr(result, "error_message", None))


def partition_codes(
    response: Any,
    partitions: list[TopicPartition],
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
    value: Callable[[Any], Any] = lambda result: None,
) -> Iterator[tuple[TopicPartition, ItemResult]]:
    """Read a response with a code for each partition. name_of: returns the topic's name, for a response with topic ids;
    value: returns the partition's result."""
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(name_of(topic), result.partition_index)
            yield partition, ItemResult(result.error_code, value(result), getattr(result, "error_message", None))
