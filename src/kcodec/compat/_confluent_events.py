# SPDX-License-Identifier: Apache-2.0
"""Events of a confluent_kafka client, and their callbacks. An event waits until the program calls `poll`.

The I/O thread of kcodec adds events. The thread of the program calls the callbacks, as with librdkafka.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, ThrottleEvent

from kcodec._fast import EventQueue, ReportQueue
from kcodec.compat._confluent_options import Settings

log = logging.getLogger("kcodec.compat")

#: Maximum duration of one wait, so that Ctrl-C is noticed on all systems.
STEP_SECONDS = 0.2
#: Minimum interval between two reports of failed connections to error_cb.
ERROR_SECONDS = 1.0
#: Errors of records that the program itself has discarded.
DISCARDED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class Events(EventQueue):
    """A queue of functions that are called in the program's thread, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = Waiting(self)

    def notify(self) -> None:
        """Wake all waiting threads."""
        self._waiting.notify()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for an event."""
        self._waiting.wait(seconds)

    def serve_within(self, timeout: float, look: Callable[[], None]) -> int:
        """Wait up to `timeout` seconds for an event, and call the functions as `serve` does. A negative timeout means
        no limit.

        look: Function that is called before each check of the queue, to add events that are due.
        """
        return self._waiting.serve_within(timeout, look)


class DeliveryEvents(ReportQueue):
    """The events of a producer: delivery reports, and functions like those of `Events`."""

    def __init__(self, settings: Settings, error_of: Callable[[BaseException], Any]) -> None:
        super().__init__(
            error_of,
            _log_lost,
            settings.max_messages,
            settings.max_bytes,
            settings.only_errors,
            settings.on_delivery,
        )
        self._waiting = Waiting(self)

    def notify(self) -> None:
        """Wake all waiting threads."""
        self._waiting.notify()

    def serve_within(self, timeout: float, look: Callable[[], None]) -> int:
        """See `Events.serve_within`."""
        return self._waiting.serve_within(timeout, look)


def serve_all(events: EventQueue, failed: list[Exception]) -> None:
    """Call the waiting functions when a client is closed. Add the first exception of a callback to `failed`, and log
    the others."""
    while not events.is_empty:
        try:
            events.serve()
        except Exception as error:
            if failed:
                log.exception("a callback failed as the client was closed")
            else:
                failed.append(error)


def _log_lost(topic: str, error: KafkaError) -> None:
    if error.code() in DISCARDED:  # the program has called abort_transaction() or purge()
        log.debug("records to topic %r without a callback were discarded: %s", topic, error.str())
        return
    log.warning("records to topic %r without a callback have failed: %s", topic, error.str())


class Waiting:
    """The threads that wait for an event of a queue.

    Each of them waits for its own lock, and not for a Condition. If a signal handler raises an exception in the Python
    code of a Condition, its lock stays held, and the I/O thread would wait for this lock.
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue = weakref.proxy(queue)
        self._locks: deque[Any] = deque()

    def notify(self) -> None:
        """Wake all waiting threads."""
        self._queue.is_awaited = False  # before the locks; a later thread finds the event, or sets this again
        with contextlib.suppress(IndexError):
            while True:
                self._locks.popleft().release()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for an event."""
        arrived = threading.Lock()
        arrived.acquire()
        try:
            self._locks.append(arrived)
            self._queue.is_awaited = True
            if self._queue.is_empty:
                arrived.acquire(timeout=seconds)
        finally:
            with contextlib.suppress(ValueError):  # `notify` has removed it
                self._locks.remove(arrived)

    def serve_within(self, timeout: float, look: Callable[[], None]) -> int:
        """See `Events.serve_within`."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            look()
            if count := int(self._queue.serve()):
                return count
            left = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return 0
            self.wait(min(left, STEP_SECONDS))


class Observer:
    """The `metrics=` of a client, for error_cb, throttle_cb and stats_cb.

    Its methods run on the I/O thread. The I/O thread refers to it, so it refers to the settings and the events only
    weakly. A client that the program no longer uses is then collected, even if a callback refers to the client.
    """

    def __init__(self, settings: Settings, events: EventQueue, kind: str) -> None:
        self._settings_of = weakref.ref(settings)
        self._events_of = weakref.ref(events)
        self._kind = kind
        self._has_brokers = settings.has_brokers
        self._begun = time.monotonic()
        self._next_statistics = self._begun
        self._schedule_statistics()
        #: The monotonic time of the last report of each code.
        self._reported_at: dict[int, float] = {}
        self._counts: dict[str, int] = {}
        self._is_closed = False
        #: Number of failed connections since the last successful one, and number of addresses in bootstrap.servers.
        self._failures = 0
        self._addresses = len(str(settings.options.get("bootstrap_servers", "")).split(","))
        self._lags: dict[tuple[str, int], int] = {}
        self._gauges: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Whether a callback needs this object."""
        wanted = self._settings_of()
        return wanted is not None and any((wanted.error_cb, wanted.throttle_cb, wanted.stats_cb))

    def _add(self, event: Callable[[], Any]) -> None:
        events = self._events_of()
        if events is not None:
            events.add(event)

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Update the counts. Report a failed connection, and a refused login with its own code."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + value
            if name == "connection.opened":
                self._failures = 0
        if name == "connection.refused" and self._has_brokers:
            text = f"broker {labels.get('node')}: the login was refused; see the log of kcodec"
            if self._report(KafkaError._AUTHENTICATION, text):
                self._reported_at[KafkaError._TRANSPORT] = time.monotonic()  # the failure of the same connection
        if name == "connection.failed" and self._has_brokers:
            self._report_failure(labels.get("node"))

    def _report_failure(self, node: object) -> None:
        """Report a failed connection. If connections to as many brokers as there are addresses have failed in
        succession, also report that all brokers are down."""
        with self._lock:
            self._failures += 1
            are_down = self._failures == self._addresses
        self._report(KafkaError._TRANSPORT, f"broker {node}: the connection failed; see the log of kcodec")
        if are_down:
            text = f"{self._addresses}/{self._addresses} brokers are down"
            self._report(KafkaError._ALL_BROKERS_DOWN, text, seconds=0.0)

    def _report(self, code: int, text: str, seconds: float = ERROR_SECONDS) -> bool:
        """Call error_cb, unless the last report with this code was less than `seconds` ago. Return whether it is
        called."""
        settings, now = self._settings_of(), time.monotonic()
        if settings is None or settings.error_cb is None or now - self._reported_at.get(code, -ERROR_SECONDS) < seconds:
            return False
        self._reported_at[code] = now
        self._add(partial(self._call_back, settings.error_cb, KafkaError(code, text)))
        return True

    def _call_back(self, error_cb: Callable[[Any], Any], error: KafkaError) -> None:
        if not self._is_closed:
            error_cb(error)

    def close(self) -> None:
        """Stop calling error_cb, because the client is closed."""
        self._is_closed = True

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Report a response that was throttled."""
        settings = self._settings_of()
        if name == "throttle" and settings is not None and settings.throttle_cb is not None and seconds > 0:
            event = ThrottleEvent(f"(any, {labels.get('api')})", -1, seconds)
            self._add(partial(settings.throttle_cb, event))

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Store the last value of a gauge."""
        with self._lock:
            if name == "consumer.lag":
                self._lags[str(labels["topic"]), int(str(labels["partition"]))] = int(value)
            elif not labels:
                self._gauges[name] = value

    def _schedule_statistics(self) -> None:
        settings, events = self._settings_of(), self._events_of()
        if (
            settings is not None
            and events is not None
            and settings.stats_cb is not None
            and settings.statistics_seconds
        ):
            self._next_statistics += settings.statistics_seconds
            left = self._next_statistics - time.monotonic()
            events.statistics_at = max(int((time.time() + left) * 1000), 1)

    def report_statistics(self, messages: int) -> None:
        """Add the event of stats_cb if it is due. Call this in the program's thread.

        messages: Number of messages in the producer's queue.
        """
        settings, now = self._settings_of(), time.monotonic()
        if settings is None or settings.stats_cb is None:
            return
        if not settings.statistics_seconds or now < self._next_statistics:
            return
        self._next_statistics = now
        self._schedule_statistics()
        text = json.dumps(self._statistics(messages, settings))
        self._add(partial(settings.stats_cb, text))

    def _statistics(self, messages: int, settings: Settings) -> dict[str, Any]:
        """Return the fields of librdkafka's statistics that kcodec can fill."""
        with self._lock:
            counts, lags, gauges = dict(self._counts), dict(self._lags), dict(self._gauges)
        client_id = settings.options.get("client_id", "kcodec")
        topics: dict[str, Any] = {}
        for (topic, partition), lag in sorted(lags.items()):
            found = topics.setdefault(topic, {"topic": topic, "partitions": {}})
            found["partitions"][str(partition)] = {"partition": partition, "consumer_lag": lag}
        now = time.time()
        # kcodec does not count by broker, so the result has this field only if there are no brokers.
        brokers: dict[str, Any] = {} if self._has_brokers else {"brokers": {}}
        return {
            **brokers,
            "name": client_id,
            "client_id": client_id,
            "type": self._kind,
            "ts": int(time.monotonic() * 1_000_000),
            "time": int(now),
            "age": int((time.monotonic() - self._begun) * 1_000_000),
            "replyq": len(self._events_of() or ()),
            "msg_cnt": messages,
            "msg_max": settings.max_messages,
            "msg_size": int(gauges.get("producer.buffered_bytes", 0)),
            "msg_size_max": settings.max_bytes,
            "tx": counts.get("request.sent", 0),
            "tx_bytes": counts.get("bytes.sent", 0),
            "rx_bytes": counts.get("bytes.received", 0),
            "txmsgs": counts.get("producer.records", 0),
            "rxmsgs": counts.get("consumer.records", 0),
            "topics": topics,
        }
