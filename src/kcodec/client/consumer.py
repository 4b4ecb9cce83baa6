# SPDX-License-Identifier: Apache-2.0
"""The consumer for threads: `kcodec.consumer.core` carried by a thread of its own.

Fetching, heartbeats and commits go on in the background; what `poll` gives is decoded on the thread that polls, and
the functions given to `subscribe` are called there.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from kcodec._fast import RecordIterator
from kcodec.client.consumer_base import ConsumerViews, OnCommitted, core_of, options_of, start
from kcodec.client.methods import dress
from kcodec.consumer import calls as flows
from kcodec.consumer.callbacks import Notice
from kcodec.consumer.core import ConsumerCore
from kcodec.consumer.options import checked_subscription
from kcodec.flow import Flow, join, spawn
from kcodec.network.option_names import NotPickled, refuse_positional
from kcodec.network.thread_loop import Carrier
from kcodec.offsets import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kcodec._fast import DecodedRecords, Delivery, Record
    from kcodec.client.options import ConsumerOptions

P = ParamSpec("P")
T = TypeVar("T")
Taken = TypeVar("Taken", bound="list[Record] | DecodedRecords | Delivery | None")
#: One wait of a poll without a time-out.
LONG_SECONDS = 3600.0


def _method(flow: Callable[Concatenate[ConsumerCore, P], Flow[T]]) -> Callable[Concatenate[Consumer, P], T]:
    def method(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._carrier.run(flow(self._core, *args, **kwargs))

    dress(method, flow)
    return method


class Consumer(NotPickled, ConsumerViews):
    """Reads records. One thread polls; all else may be called from any.

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            while True:
                for record in consumer.poll(1.0):
                    print(record.topic, record.partition, record.offset, record.key, record.value)

    Options: `kcodec.client.ConsumerOptions`, those of every client
    (`kcodec.client.ClientOptions`), TLS and SASL (docs/security.md). Unknown ones are a TypeError with a
    suggestion, impossible ones a ValueError. read_committed is the default.

    `for record in consumer` reads record by record. Automatic commits carry completed records: those before the last
    request. A rebalance waits for the next `poll`, or the next record of a loop. The functions given to `subscribe`
    are called within these, `unsubscribe` and `close`, and may call the consumer, all but these.

    A block that ends with an exception does not commit the current record of a loop, or the last poll.
    """

    def __init__(self, *positional: Never, **options: Unpack[ConsumerOptions]) -> None:
        refuse_positional(positional, "Consumer")
        self._options, self._client = options_of(options)
        self._carrier = Carrier(self._client)
        self._polling = threading.Lock()
        self._core = core_of(self._options, self._client, threading.Lock(), self._carrier.post)
        self._max_poll_records = self._options.max_poll_records
        self._carrier.post(partial(start, self._core, self._client))

    # What to read

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_revoked: Callable[[frozenset[TopicPartition]], Any] | None = None,
        on_assigned: Callable[[frozenset[TopicPartition]], Any] | None = None,
        on_lost: Callable[[frozenset[TopicPartition]], Any] | None = None,
    ) -> None:
        """Have the group give out the partitions of these topics, or of all whose whole name a pattern matches (with
        group_protocol="consumer" the broker matches it, by RE2).

        on_revoked:  partitions that are about to be given away; commit what was processed of them.
        on_assigned: partitions that are new; seek here, if anywhere.
        on_lost:     partitions that others may own already: nothing can be committed. Without it, on_revoked is called.

        Replaces the subscription there was. Raises ValueError after `assign`, or without a group_id.
        """
        names, text = checked_subscription(topics, pattern)
        self._carrier.run(self._core.subscribe(names, text, on_revoked, on_assigned, on_lost))

    def unsubscribe(self, timeout: float = 30.0) -> None:
        """Give all partitions away, and leave the group."""
        self._run_telling(self._core.unsubscribe(timeout), timeout)

    # Reading

    def poll(self, timeout: float | None = 1.0) -> list[Record]:
        """Up to max_poll_records records, as soon as there are any; [] after `timeout` seconds (None: never).

        Raises DecodeError for a batch that cannot be read, with `topic_partition` and `next_offset`: each poll does so
        until a `seek`, or on_corrupt="skip"; BrokerError, AuthorizationError and TransportError for what keeps a
        partition or the group from being read; what a function given to `subscribe` raised.
        """
        return self._poll(timeout, lambda: self._core.take(self._max_poll_records))

    def poll_arrow(self, timeout: float | None = 1.0) -> DecodedRecords:
        """All rows of one fetch response for one partition, as Arrow columns (`columns`), straight from the core;
        of no rows after `timeout` seconds. Give it to pyarrow, polars, duckdb. Raises as `poll`."""
        return self._poll(timeout, self._core.take_arrow)

    def _poll(self, timeout: float | None, take: Callable[[], Taken]) -> Taken:
        if not self._polling.acquire(blocking=False):
            raise RuntimeError("poll is under way: one thread polls a consumer, and none of the functions it calls")
        try:
            if self._carrier.is_closed:
                self._carrier.run(self._core.wait_for_work(0.0))  # says why
            self._core.begin_poll()
            try:
                deadline = None if timeout is None else time.monotonic() + timeout
                while True:
                    if not self._core.has_business and (taken := take()):
                        return taken
                    left = LONG_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
                    notice = self._carrier.run(self._core.wait_for_work(left))
                    if notice is not None:
                        self._tell(notice)
                    elif deadline is not None and time.monotonic() >= deadline:
                        return take()
            except BaseException:
                self._core.take_back()  # the application is not given what was taken for this poll
                raise
        finally:
            self._polling.release()

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records without end, and raise what `poll` raises.

        The position moves record by record: `seek`, `pause`, `unsubscribe`, a rebalance and `close` take effect before
        the next record. `commit` includes the current record; an automatic commit includes it once the next record is
        requested, or the consumer closes without an exception. Records that a loop leaves are delivered first by the
        next loop, `poll` or `poll_arrow`.
        """
        return RecordIterator(self._next_delivery)

    def _next_delivery(self) -> Delivery:
        while True:
            found = self._poll(None, lambda: self._core.take_delivery(self._max_poll_records))
            if found is not None:
                return found

    def _tell(self, notice: Notice) -> None:
        self._core.notices.begin(notice)
        try:
            notice.call()
        finally:
            self._carrier.post(notice.settle)

    def _run_telling(self, flow: Flow[T], timeout: float | None) -> T:
        """Run a call and the callbacks that it causes, these on this thread. The error of a callback is raised when
        the call has ended: a group is left also if `on_revoked` fails."""
        task = self._carrier.run(spawn(flow, "call"))
        failure: Exception | None = None
        while (notice := self._carrier.run(self._core.polls.with_notices(task))) is not None:
            try:
                self._tell(notice)
            except Exception as error:  # noqa: BLE001  raised below
                failure = failure or error
        try:
            result = self._carrier.run(join(task), timeout)
        except Exception as error:
            if failure is None:
                raise
            raise failure from error
        if failure is not None:
            raise failure
        return result

    # Offsets

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: OnCommitted | None = None,
    ) -> None:
        """As `commit`, in the background, in the order asked for. callback: called with the offsets and None or the
        error, within a later `poll` or `close`; without one errors are logged."""
        self._commit_async(offsets, callback)

    assign = _method(flows.assign)
    beginning_offsets = _method(flows.beginning_offsets)
    commit = _method(flows.commit)
    committed = _method(flows.committed)
    end_offsets = _method(flows.end_offsets)
    enforce_rebalance = _method(flows.enforce_rebalance)
    group_metadata = _method(flows.group_metadata)
    lag = _method(flows.lag)
    offsets_for_times = _method(flows.offsets_for_times)
    partitions_for = _method(flows.partitions_for)
    pause = _method(flows.pause)
    position = _method(flows.position)
    resume = _method(flows.resume)
    seek = _method(flows.seek)
    seek_to_beginning = _method(flows.seek_to_beginning)
    seek_to_end = _method(flows.seek_to_end)

    # Ending

    def close(self, timeout: float = 30.0) -> None:
        """Commit the positions where commits are automatic, give all partitions away, leave the group and end.

        All delivered records count as completed. Only the end of a `with` block that an exception leaves is different:
        it commits what was completed before, without the current record of a loop, or the last poll. Idempotent.
        """
        if self._carrier.is_closed:
            return
        try:
            self._run_telling(self._core.close(timeout), timeout)
        finally:
            self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._core.take_back_uncompleted()
        self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            carrier.close(0.0)

    def __repr__(self) -> str:
        state = "closed" if self._carrier.is_closed else "open"
        return f"<Consumer {self._client.options.client_id!r} of group {self._options.group_id!r} {state}>"
