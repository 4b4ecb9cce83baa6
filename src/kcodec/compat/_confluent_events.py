# SPDX-License-Identifier: Apache-2.0
"""Events of a confluent_kafka client, which wait until the program calls `poll`, and the callbacks that they are for.

The I/O thread of kcodec adds events; the thread of the program calls the callbacks, as with librdkafka.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, ThrottleEvent

from kcodec.compat._confluent_options import Settings

#: One wait, after which Ctrl-C is noticed on all systems.
STEP_SECONDS = 0.2
#: Failed connections are reported to error_cb at most once in this time.
ERROR_SECONDS = 1.0


class Events:
    """Functions to call in the program's thread, in order.

    serve() calls them until none is left; an exception of a callback ends it, and the later ones stay.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Any]] = deque()
        self._arrived = threading.Condition()
        self._waiters = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Callable[[], Any]) -> None:
        """Add an event; from any thread."""
        self._waiting.append(call)
        if self._waiters:  # counted before the waiter looks at the queue
            with self._arrived:
                self._arrived.notify_all()

    def serve(self) -> int:
        """Call the waiting functions, and return their number."""
        count = 0
        for _ in range(len(self._waiting)):
            try:
                call = self._waiting.popleft()
            except IndexError:  # another thread has served it
                break
            count += 1
            call()
        return count

    def serve_within(self, timeout: float, look: Callable[[], None]) -> int:
        """As `serve`; wait up to `timeout` seconds for an event, without a limit if it is negative.

        look: called before each look, to add events that are due.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            look()
            if count := self.serve():
                return count
            left = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return 0
            self.wait(min(left, STEP_SECONDS))

    def wait(self, seconds: float) -> None:
        """Wait until an event is there, or the time has passed."""
        with self._arrived:
            self._waiters += 1
            try:
                if not self._waiting:
                    self._arrived.wait(seconds)
            finally:
                self._waiters -= 1


class Observer:
    """The `metrics=` of a client: what error_cb, throttle_cb and stats_cb report.

    Its methods run on the I/O thread.
    """

    def __init__(self, settings: Settings, events: Events, kind: str) -> None:
        self._settings = settings
        self._events = events
        self._kind = kind
        self._begun = time.monotonic()
        self._next_statistics = self._begun + settings.statistics_seconds
        self._last_error = -ERROR_SECONDS
        self._counts: dict[str, int] = {}
        self._lags: dict[tuple[str, int], int] = {}
        self._gauges: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Whether a callback needs it."""
        wanted = self._settings
        return any((wanted.error_cb, wanted.throttle_cb, wanted.stats_cb))

    def count(self, name: str, value: int = 1, **labels: object) -> None:
        """Count, and report a failed connection."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + value
        error_cb = self._settings.error_cb
        now = time.monotonic()
        if (
            name == "connection.failed"
            and error_cb is not None
            and self._settings.has_brokers
            and now - self._last_error >= ERROR_SECONDS
        ):
            self._last_error = now
            error = KafkaError(
                KafkaError._TRANSPORT, f"broker {labels.get('node')}: the connection failed; see the log of kcodec"
            )
            self._events.add(lambda: error_cb(error))

    def latency(self, name: str, seconds: float, **labels: object) -> None:
        """Report a response that was throttled."""
        throttle_cb = self._settings.throttle_cb
        if name == "throttle" and throttle_cb is not None and seconds > 0:
            event = ThrottleEvent(f"(any, {labels.get('api')})", -1, seconds)
            self._events.add(lambda: throttle_cb(event))

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Keep the last value."""
        with self._lock:
            if name == "consumer.lag":
                self._lags[str(labels["topic"]), int(str(labels["partition"]))] = int(value)
            elif not labels:
                self._gauges[name] = value

    def report_statistics(self, messages: int) -> None:
        """In the program's thread: add the event of stats_cb if it is due. messages: the length of the producer."""
        stats_cb, now = self._settings.stats_cb, time.monotonic()
        if stats_cb is None or not self._settings.statistics_seconds or now < self._next_statistics:
            return
        self._next_statistics = now + self._settings.statistics_seconds
        text = json.dumps(self._statistics(messages))
        self._events.add(lambda: stats_cb(text))

    def _statistics(self, messages: int) -> dict[str, Any]:
        """Return the fields of librdkafka's statistics that kcodec can fill."""
        with self._lock:
            counts, lags, gauges = dict(self._counts), dict(self._lags), dict(self._gauges)
        client_id = self._settings.options.get("client_id", "kcodec")
        topics: dict[str, Any] = {}
        for (topic, partition), lag in sorted(lags.items()):
            found = topics.setdefault(topic, {"topic": topic, "partitions": {}})
            found["partitions"][str(partition)] = {"partition": partition, "consumer_lag": lag}
        now = time.time()
        # kcodec does not count by broker, so the field is there only if it is known to be empty.
        brokers: dict[str, Any] = {} if self._settings.has_brokers else {"brokers": {}}
        return {
            **brokers,
            "name": client_id,
            "client_id": client_id,
            "type": self._kind,
            "ts": int(time.monotonic() * 1_000_000),
            "time": int(now),
            "age": int((time.monotonic() - self._begun) * 1_000_000),
            "replyq": len(self._events),
            "msg_cnt": messages,
            "msg_max": self._settings.max_messages,
            "msg_size": int(gauges.get("producer.buffered_bytes", 0)),
            "msg_size_max": self._settings.max_bytes,
            "tx": counts.get("request.sent", 0),
            "tx_bytes": counts.get("bytes.sent", 0),
            "rx_bytes": counts.get("bytes.received", 0),
            "txmsgs": counts.get("producer.records", 0),
            "rxmsgs": counts.get("consumer.records", 0),
            "topics": topics,
        }
