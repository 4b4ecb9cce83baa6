# SPDX-License-Identifier: Apache-2.0
"""Fetched records that the application has not taken yet (Kafka: FetchBuffer, CompletedFetch, FetchCollector).

The loop adds responses. The caller of poll takes records out of them on its own thread. The assignment's lock protects
the shared state; decoding, which takes most of the time, is done without the lock. A response is valid only while the
partition has the state of the request and the position at which the response begins. A seek therefore makes it
obsolete.

A partition has up to `RESPONSES_AHEAD` responses in the buffer, so that the next one arrives while the records of one
are taken. Its records are returned in order, and partitions take turns, response by response.

An iteration gets a `Chunk` of decoded records. Only delivered records move the position. The next request first
delivers the rest of the chunk: `take` continues with the chunk, and `take_arrow` decodes the response again from the
position.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import InitVar, dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from kcodec._fast import DecodedRecords, Delivery, FetchedRecords, Record, batches, decode_fetch
from kcodec.consumer.assignment import Assignment, PartitionState
from kcodec.consumer.corruption import explain_corruption
from kcodec.consumer.delivery import Chunk, LogPosition
from kcodec.consumer.deserializing import RecordDeserializer
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError, DeserializationError, TruncatedError
from kcodec.offsets import TopicPartition

log = logging.getLogger("kcodec.consumer")
#: Responses of one partition that may wait: the one being taken, and the next.
RESPONSES_AHEAD: Final = 2
_RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_SCHEMA_IDS = ("key_schema_id", "value_schema_id")


class _Stop(NamedTuple):
    """The end of a response at a record whose deserializer failed, as after an error of `FetchedRecords`."""

    position: int
    leader_epoch: int
    error: DeserializationError
    is_done: bool = True


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """The records of one partition in one response, and how many of them were taken.

    next_offset, last_epoch: Offset after the last complete batch and its leader epoch; None if its header is invalid.
    is_cut:         Whether the response does not contain even one complete batch.
    bytes_needed:   Size of the first batch.
    response_bytes: Size of the whole response, which `owner` identifies.
    chunk:          Records of this response that an iteration delivers; `position` is before them.
    """

    state: PartitionState
    version: int
    position: int
    response: InitVar[Any]
    settings: ConsumerSettings
    chunk: Chunk | None = None
    next_offset: int | None = None
    last_epoch: int = -1
    is_cut: bool = False
    bytes_needed: int = 0
    data: Any = field(init=False)
    size: int = field(init=False)
    owner: int = field(init=False)
    response_bytes: int = field(init=False)
    high_watermark: int = field(init=False)
    _begin: int = field(init=False)
    _aborted: list[tuple[int, int]] = field(init=False)
    _fetched: FetchedRecords | None = None
    _stop: _Stop | None = None
    _is_arrow: bool = False

    def __post_init__(self, response: Any) -> None:
        self._begin = self.position
        self.data = response.records
        self.size = len(self.data)
        owner = self.data.obj if isinstance(self.data, memoryview) else self.data
        self.owner, self.response_bytes = id(owner), memoryview(owner).nbytes
        self.high_watermark = response.high_watermark
        self._aborted = [(one.producer_id, one.first_offset) for one in response.aborted_transactions or ()]
        self._walk()

    def _walk(self) -> None:
        """Read the end of the response from the batch headers, before anything is decoded."""
        try:
            headers = batches(self.data, limits=self.settings.limits)
            if not len(headers):
                self.is_cut = self.size > 0
                self.bytes_needed = headers.bytes_needed
                return
            self.bytes_needed = headers[0].size_in_bytes
            last = headers[-1]
        except DecodeError:
            return  # found again, and raised, when the records are taken
        if last.magic >= 2:
            self.next_offset = max(last.next_offset, self.position)
            self.last_epoch = last.partition_leader_epoch

    @property
    def is_current(self) -> bool:
        """Return whether the consumer still reads this response next."""
        state = self.state
        return state.version == self.version and state.decoded_from == self.position and state.chunk is self.chunk

    def _opened(self, is_arrow: bool) -> FetchedRecords:
        # Records that were decoded and not delivered, because a poll was interrupted or an iteration ended, are decoded
        # again.
        if self._fetched is None or self._is_arrow is not is_arrow or self._fetched.position != self.position:
            settings, name = self.settings, self.state.topic_partition
            columns = _RECORD_COLUMNS if settings.framing is None else _RECORD_COLUMNS + _SCHEMA_IDS
            self._is_arrow = is_arrow
            self._fetched = FetchedRecords(
                self.data,
                topic=name.topic,
                partition=name.partition,
                start_offset=self.position,
                columns=settings.columns if is_arrow else columns,
                isolation_level=settings.isolation_level,
                aborted_transactions=self._aborted,
                check_crcs=settings.check_crcs,
                limits=settings.limits,
                binary_type=settings.binary_type if is_arrow else "binary",
                framing=settings.framing,
            )
        return self._fetched

    def take(self, count: int, deserializer: RecordDeserializer | None = None) -> list[Record]:
        """Return the next records, at most `count`; if fewer are returned, none are left, or some were skipped."""
        records = self._opened(False).take(count)
        self._stop = None
        if deserializer is not None:
            error = deserializer.apply(records, self.state.topic_partition)
            if error is not None:
                epoch = records[-1].leader_epoch if records else None
                self._stop = _Stop(error.offset, -1 if epoch is None else epoch, error)
        return records

    def take_arrow(self) -> DecodedRecords:
        """Return the next records as columns."""
        return self._opened(True).take_decoded()

    @property
    def taken(self) -> FetchedRecords | _Stop:
        """Return the position after `take` or `take_arrow`."""
        assert self._fetched is not None
        return self._stop or self._fetched

    def failure(self) -> Exception | None:
        """Return the error that ended it, once all readable records were taken: corruption, or a response without a
        whole batch from the requested offset on."""
        taken = self.taken
        error: Exception | None = taken.error
        if isinstance(error, DeserializationError):
            return error
        if error is None and self.is_cut:
            error = TruncatedError(
                f"the response has only {self.size} of the {self.bytes_needed} bytes of its first batch",
                position=0,
                needed=self.bytes_needed,
                available=self.size,
            )
        elif error is None and taken.position == self._begin:
            error = DecodeError(
                f"the response of {self.size} bytes has no record at or after the requested offset {self._begin}"
            )
        if isinstance(error, DecodeError):
            name, limits = self.state.topic_partition, self.settings.limits
            return explain_corruption(error, name, self.data, taken.position, self.high_watermark, limits)
        return error


class FetchBuffer:
    """See the module.

    on_taken: Called on the caller's thread when all records of a response were taken, so that more can be fetched. If
              records must be fetched again, or from another offset, `Assignment.poke` is called instead.
    """

    def __init__(self, assignment: Assignment, settings: ConsumerSettings, on_taken: Callable[[], None]) -> None:
        self._assignment = assignment
        self._settings = settings
        self._on_taken = on_taken
        self._queues: dict[TopicPartition, deque[FetchedPartition]] = {}
        #: Errors that are raised once each, in addition to those of partitions, which stay until a seek.
        self.passing: deque[BaseException] = deque()
        #: The partitions whose records the application requests; None for all. See `Fetcher.choose`.
        self.only: Set[TopicPartition] | None = None
        self.skipped_batches = 0
        #: Records that were given to the application, or to its iteration; for metrics.
        self.taken_records = 0
        deserializer = RecordDeserializer(
            settings.key_deserializer, settings.value_deserializer, settings.on_error == "skip"
        )
        self.deserializer = deserializer if deserializer.is_needed else None

    @property
    def skipped_records(self) -> int:
        """The number of records whose deserializer failed and that were left out."""
        return 0 if self.deserializer is None else self.deserializer.skipped

    # For the loop, under the lock

    def add(self, entry: FetchedPartition) -> bool:
        """Keep a response if it is the next one of its partition."""
        queue = self._current(entry.state.topic_partition)
        if not queue:
            # Usually, there is no chunk then. An interruption, such as Ctrl-C, may have left a chunk that belongs to no
            # response.
            entry.state.leave_chunk()
        expected = queue[-1].next_offset if queue else entry.state.position
        if entry.state.version != entry.version or entry.position != expected:
            return False
        self._queues.setdefault(entry.state.topic_partition, queue).append(entry)
        return True

    def __contains__(self, partition: TopicPartition) -> bool:
        """Return whether there may be responses of a partition; some may be obsolete."""
        return partition in self._queues

    def ahead(self, state: PartitionState) -> deque[FetchedPartition]:
        """Return the responses of a partition that are not used up."""
        return self._current(state.topic_partition)

    def _current(self, partition: TopicPartition) -> deque[FetchedPartition]:
        """Return the responses of a partition, without obsolete ones."""
        queue = self._queues.get(partition)
        if queue is None:
            return deque()
        while not queue[0].is_current:
            if len(queue) == 1:  # an interruption, such as Ctrl-C, must not leave an empty queue
                del self._queues[partition]
                return deque()
            queue.popleft()
        return queue

    def waiting_bytes(self, *, is_aside: bool = False) -> int:
        """Return the memory of the responses in the buffer. A response stays in memory as long as one of its partitions
        needs it.

        is_aside: Return the memory of responses that only paused partitions need, and partitions whose records the
                  application does not request, instead of that of all others.
        """
        # Counted each time: an interruption, such as Ctrl-C, would leave a sum wrong.
        only = self.only
        if only is None and not self._assignment.has_paused():
            return 0 if is_aside else sum({one.owner: one.response_bytes for one in self._entries()}.values())
        memory = {True: dict[int, int](), False: dict[int, int]()}
        for entry in self._entries():
            state = entry.state
            is_other = state.is_paused or (only is not None and state.topic_partition not in only)
            memory[is_other][entry.owner] = entry.response_bytes
        counted = memory[is_aside]
        return sum(size for owner, size in counted.items() if not is_aside or owner not in memory[False])

    def _entries(self) -> Iterator[FetchedPartition]:
        return chain.from_iterable(self._queues.values())

    def drop_paused(self) -> None:
        """Drop the records of paused partitions; they are fetched again after resume."""
        self.drop([name for name, queue in self._queues.items() if queue and queue[0].state.is_paused])

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the records of these partitions."""
        for partition in partitions:
            if (queue := self._queues.pop(partition, None)) is not None:
                queue[0].state.leave_chunk()

    # For the caller of poll

    @property
    def has_ready(self) -> bool:
        """Return whether there are records to take, or an error to raise."""
        return self.has_ready_of(None)

    def has_ready_of(self, only: Set[TopicPartition] | None) -> bool:
        """Return whether these partitions have records to take, or an error to raise. None stands for all
        partitions."""
        with self._assignment.lock:
            if self.passing or self._failed(only) is not None:
                return True
            return any(
                queue[0].state.is_fetchable and queue[0].is_current
                for partition, queue in self._queues.items()
                if only is None or partition in only
            )

    def _failed(self, only: Set[TopicPartition] | None = None) -> PartitionState | None:
        for partition, state in self._assignment.failed().items():
            if not (state.is_error_reported or state.is_paused) and (only is None or partition in only):
                return state
        return None

    def raise_failed(self, only: Set[TopicPartition] | None = None) -> None:
        """Raise the error of a partition that cannot be read, if there is one. For `only`, see `take`."""
        is_passing = False
        with self._assignment.lock:
            error = self.passing.popleft() if self.passing else None
            if error is None and (state := self._failed(only)) is not None:
                error, is_passing = state.error, state.is_error_passing
                if is_passing:
                    state.error = None
        if is_passing:
            self._assignment.poke()  # the position is requested again
        if error is not None:
            raise error.with_traceback(None)

    def raise_passing(self, state: PartitionState) -> None:
        """Raise the error of a partition, if there is one. It is raised once, and the position is then requested
        again."""
        with self._assignment.lock:
            error, state.error = state.error, None
        self._assignment.poke()
        if error is not None:
            raise error.with_traceback(None)

    def take(self, max_records: int, only: Set[TopicPartition] | None = None) -> list[Record]:
        """Return at most `max_records` fetched records. Positions move past them, and past markers, aborted records and
        empty batches.

        only: Partitions whose records are returned, and whose errors are raised; None for all.

        Raise the error of a partition that cannot be read, after the records before it were returned, in every call
        until a seek: DecodeError with `topic_partition` and `next_offset`, OffsetOutOfRangeError, BrokerError.
        """
        records: list[Record] = []
        self.raise_failed(only)
        try:
            while (left := max_records - len(records)) > 0:
                entry = self._next(only)
                if entry is None:
                    break
                if entry.chunk is not None:
                    records += self._rest(entry, left)
                    continue
                try:
                    more = entry.take(left, self.deserializer)
                except BaseException as error:
                    self._discard(entry)
                    if records and isinstance(error, Exception):
                        break  # the rest is fetched again, and fails again if it must
                    raise
                if self._taken(entry, is_given=bool(more)):
                    records += more
                    self.taken_records += len(more)
        except BaseException:
            self._assignment.take_back_request()
            raise
        if not records:
            self.raise_failed(only)
        return records

    def take_arrow(self) -> DecodedRecords:
        """Return the next records of one partition as columns, without rows if there are none. Raise the errors of
        `take`."""
        self.raise_failed()
        try:
            while (entry := self._next()) is not None:
                if entry.chunk is not None:
                    self._leave_chunk(entry)
                    continue
                try:
                    found = entry.take_arrow()
                except BaseException:
                    self._discard(entry)
                    raise
                if self._taken(entry, is_given=bool(len(found))) and len(found):
                    self.taken_records += len(found)
                    return found
        except BaseException:
            self._assignment.take_back_request()
            raise
        self.raise_failed()
        return self.no_rows()

    def take_delivery(self, max_records: int, only: Set[TopicPartition] | None = None) -> Delivery | None:
        """Return at most `max_records` records of one partition, to be delivered one by one. Only delivered records
        move the position. Return None if there are none. For `only`, see `take`."""
        self.raise_failed(only)
        while (entry := self._next(only)) is not None:
            chunk = entry.chunk
            if chunk is None:
                try:
                    chunk = self._begin_chunk(entry, entry.take(max_records, self.deserializer))
                except BaseException:
                    self._discard(entry)
                    raise
            if chunk is None:
                continue
            if chunk.is_used_up:
                self._taken(entry, is_given=False)
                continue
            with self._assignment.lock:
                self._assignment.note_given(entry.state)
            delivery = self._assignment.delivery
            delivery.records = chunk.iterator
            return delivery
        self.raise_failed(only)
        return None

    def _begin_chunk(self, entry: FetchedPartition, records: list[Record]) -> Chunk | None:
        """Start to deliver these records one by one; None if there are none, or they must not be delivered."""
        taken, state = entry.taken, entry.state
        if not records:
            self._taken(entry, is_given=False)
            return None
        with self._assignment.lock:
            start = state.log_position
            if start is None or not entry.is_current or state.is_leaving:
                self.drop([state.topic_partition])
                return None
            self.taken_records += len(records)
            epoch = taken.leader_epoch if taken.leader_epoch >= 0 else start.leader_epoch
            entry.chunk = state.chunk = Chunk(records, start, LogPosition(taken.position, epoch))
            return entry.chunk

    def _rest(self, entry: FetchedPartition, most: int) -> list[Record]:
        """Return the rest of an iteration's chunk, at most `max_records` records."""
        with self._assignment.lock:
            chunk = entry.chunk
            if chunk is None or not entry.is_current or not entry.state.is_fetchable:
                return []
            entry.state.note_delivery()
            self._assignment.note_given(entry.state)
            records = list(islice(chunk.iterator, most))
        if chunk.is_used_up:
            self._taken(entry, is_given=False)
        return records

    def _leave_chunk(self, entry: FetchedPartition) -> None:
        """Decode the rest of an iteration's chunk again, as columns."""
        with self._assignment.lock:
            chunk = entry.chunk
            if chunk is not None and entry.is_current and not chunk.is_used_up:
                entry.state.leave_chunk()
                entry.chunk, entry.position = None, chunk.position.offset
                return
        self._taken(entry, is_given=False)

    def no_rows(self) -> DecodedRecords:
        """Return the result of `take_arrow` if there are no records."""
        settings = self._settings
        return decode_fetch(
            b"",
            topic="",
            partition=0,
            start_offset=0,
            columns=settings.columns,
            binary_type=settings.binary_type,
            framing=settings.framing,
        )

    def _next(self, only: Set[TopicPartition] | None = None) -> FetchedPartition | None:
        """Return the response to take from."""
        with self._assignment.lock:
            for partition in list(self._queues):
                if only is not None and partition not in only:
                    continue
                queue = self._current(partition)
                if queue and queue[0].state.is_fetchable:
                    return queue[0]
        return None

    def _discard(self, entry: FetchedPartition) -> None:
        with self._assignment.lock:
            self.drop([entry.state.topic_partition])
        self._assignment.poke()

    def _taken(self, entry: FetchedPartition, *, is_given: bool) -> bool:
        """Move the position after records were taken, unless it has changed meanwhile. Return False if the records must
        not be delivered. With `is_given`, the application completes them later."""
        taken, state = entry.taken, entry.state
        failure = entry.failure() if taken.is_done else None
        with self._assignment.lock:
            if not entry.is_current or state.is_leaving:
                self.drop([state.topic_partition])
                return False
            if is_given:
                state.note_delivery()
                self._assignment.note_given(state)
            entry.chunk = None
            entry.position = state.position = taken.position
            state.has_moved = True
            if taken.leader_epoch >= 0:
                state.position_epoch = taken.leader_epoch
            if not taken.is_done:
                return True
            self._used_up(entry)
            if failure is not None:
                self.fail(state, failure)
        if failure is None:
            self._on_taken()
        else:
            self._assignment.poke()
        return True

    def _used_up(self, entry: FetchedPartition) -> None:
        """Give the next partition its turn."""
        partition = entry.state.topic_partition
        queue = self._queues.pop(partition, None)
        if queue is not None:
            queue.popleft()
            if queue:
                self._queues[partition] = queue

    def fail(self, state: PartitionState, failure: Exception) -> None:
        """Under the lock: with on_error="skip", skip the unreadable records. Otherwise, raise the error until a
        seek."""
        if not isinstance(failure, DecodeError):
            self.passing.append(failure)  # for example a lack of memory: the rest is fetched again
        elif self._settings.on_error == "skip" and not isinstance(failure, TruncatedError):
            self.skipped_batches += 1
            log.warning("skipped records up to offset %s: %s", state.position, failure)
            state.position, state.position_epoch = failure.next_offset, -1
        else:
            self._assignment.note_error(state, failure)
