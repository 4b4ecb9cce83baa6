# SPDX-License-Identifier: Apache-2.0
"""`read_topic` of the asyncio API: a bounded read of a topic, or a part of it, as Arrow batches, without a group."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

from kcodec import _fast
from kcodec._fast import AsyncRecordIterator, ColumnsSchema, Counts, DecodedRecords, Delivery, Record
from kcodec.client.aio.waiting import ClientBase, IoLoop
from kcodec.client.topic_reading import BoundedReading, TopicReading
from kcodec.errors import DecodeError
from kcodec.offsets import TopicPartition
from kcodec.reading.partition_read import FetchedResponse, ReadRange
from kcodec.reading.ranges import RangeBounds

if TYPE_CHECKING:
    from kcodec.client.options import ReadTopicOptions

__all__ = ["ReadRange", "TopicRecords", "read_topic"]
R = TypeVar("R", bound=BoundedReading)


def read_topic(
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    start: RangeBounds = "earliest",
    end: RangeBounds = "latest",
    max_rows: int | None = None,
    **options: Unpack[ReadTopicOptions],
) -> TopicRecords:
    # SYNC: "kcodec.client.aio.read_topic" -> "kcodec.read_topic"
    # SYNC: "as records: async for batch in records:" -> "as records:\n            for batch in records:"
    # SYNC: "when the block begins, or with the first batch" -> "when this is called"
    # SYNC: "One task iterates" -> "One thread iterates"
    # SYNC: "After the cancellation or the timeout of a request for a batch, the next request continues." -> ""
    # SYNC: "With the block, or the first batch, raise" -> "Raise"
    """Read a range of a topic as Arrow batches, and stop at its end. No group is used, and no offset is committed.

        async with kcodec.client.aio.read_topic("orders", bootstrap_servers="localhost:9092") as records:
            async for batch in records:
                table = pyarrow.table(batch)             # topic, partition, offset, timestamp, key, value, headers

    partitions: Numbers of the partitions to read. None: all partitions of the topic.
    start:      The first record to read. One of these values, or a mapping of partitions to them:
                - "earliest";
                - "latest": the last stable offset with read_committed, else the high watermark. It is resolved
                  when the block begins, or with the first batch;
                - an offset. A negative number is counted from the latest offset;
                - a `datetime` with a time zone or a `kcodec.Timestamp(ms)`: the first record at or after that time.
                A partition that the mapping does not name is read from its earliest offset.
    end:        The end of the range, which is not read itself. The same values as `start`. A partition that the mapping
                does not name is read up to its latest offset.
    max_rows:   Maximum number of records in total.
    options:    The options of a client (bootstrap_servers ...) and of a read: isolation_level ("read_committed" by
                default), columns, binary_type, framing, on_error ("raise", "skip"), check_crcs, limits,
                key_deserializer and value_deserializer (for `rows`), max_partition_fetch_bytes (1 MiB),
                fetch_ahead_max_bytes (32 MiB), fetch_max_bytes, fetch_max_wait_ms
                and client_rack. `kcodec.client.ReadTopicOptions` describes them.

    The client fetches all partitions at the same time. A batch contains the rows of one response for one partition.
    Offsets increase within each partition. The memory used is at most fetch_ahead_max_bytes and one batch. The read
    ends exactly at `end`, even if only markers, aborted records or compacted offsets precede it.

    One task iterates over a read. To share the work among several, call `read_topic` for each of them, with different
    partitions. After the cancellation or the timeout of a request for a batch, the next request continues.

    Raise TypeError or ValueError if an argument is invalid.
    With the block, or the first batch, raise BrokerError if the topic or a partition does not exist, or if `start` is
    not in the log.

    While reading, raise
    - DecodeError at a batch that cannot be read, after all records that precede it. The error has the attributes
      `topic_partition` and `next_offset`;
    - BrokerError if the topic is deleted or truncated;
    - DeliveryTimeoutError if a partition makes no progress for default_api_timeout_ms, for example because the end has
      not been written yet.
    """
    # SYNC: "TopicRecords(" -> "TopicRecords.of("
    return TopicRecords(TopicReading(topic, partitions, start, end, max_rows, options))


class BoundedRecords(ClientBase, AsyncIterator[DecodedRecords], Generic[R]):
    # SYNC: "iterate over it once." -> "iterate over it once, or give it to what takes ``__arrow_c_stream__``."
    """A bounded read in progress: iterate over it once."""

    _unclosed = "was not closed, and not read to its end"

    def __init__(self, reading: R) -> None:
        self._reading = reading
        self._is_done = False
        self._error: DecodeError | None = None
        self._iterating = threading.Lock()
        if True:  # ASYNC
            self._is_open = False
            #: The response that a thread decodes. If a call is cancelled, the next call waits for the thread.
            self._decoding: asyncio.Future[DecodeError | None] | None = None

    if True:  # ASYNC

        async def __aenter__(self) -> Self:
            self._check_alone()
            with self._iterating:
                try:
                    await self._open()
                except BaseException as error:  # also a cancellation, because no block will close the read
                    await self._fail(error)
                    raise
            return self

        async def _open(self) -> None:
            if not self._is_open and not self._is_done:
                await self._open_reading()
                self._is_open = True
    else:

        @classmethod
        def of(cls, reading: R) -> Self:
            """Return the records of a reading that has begun."""
            records = cls(reading)
            try:
                records._open_reading()
            except BaseException as error:
                records._fail(error)
                raise
            return records

    async def _open_reading(self) -> None:
        # SYNC: "A call after a cancelled one continues." -> ""
        """Determine the ranges to read, and start the fetches. A call after a cancelled one continues."""
        raise NotImplementedError

    async def _fail(self, error: BaseException) -> None:
        """Close the read because of an error."""
        self._is_done = True
        self._reading.failure = error
        await self.close()

    def _check_alone(self) -> None:
        """Raise RuntimeError while another call for the next batch is in progress."""
        if self._iterating.locked():
            # SYNC: "one task can iterate" -> "one thread can iterate"
            raise RuntimeError(
                "another call waits for the next batch: only one task can iterate over a read; to share the work "
                "among several, call read_topic or read_ranges for each of them, with different partitions or ranges"
            )

    async def __anext__(self) -> DecodedRecords:
        reading = self._reading
        if reading.has_rows:
            raise RuntimeError(
                f"rows() has not returned all records of a batch of {reading.describe()}: call rows() again for the "
                "rest of the batch, as the next batch begins after them"
            )
        self._check_alone()
        with self._iterating:  # no signal, such as that of Ctrl-C, is handled between the lock and its block
            try:
                if True:  # ASYNC
                    await self._open()
                while not reading.ready and not self._is_done:
                    await self._read_more()
            except BaseException as error:
                if True:  # ASYNC
                    if isinstance(error, asyncio.CancelledError):
                        raise  # the next call continues where this one was cancelled
                await self._fail(error)
                raise
            if not reading.ready:
                await self.close()
                if (early := reading.closed_early()) is not None:
                    raise early
                raise StopAsyncIteration
            return reading.ready.popleft()

    def rows(self) -> AsyncIterator[Record]:
        # SYNC: "`break` or a cancellation" -> "`break`"
        """Iterate over the records instead of the batches, with keys and values as the deserializers return them.

        Raise the same errors as the iteration over batches. Raise DeserializationError if the deserializer of a record
        fails, after all records before it. With on_error="skip" the record is logged and skipped instead. An error ends
        the read. After a `break` or a cancellation, another call continues with the next record.
        """
        return AsyncRecordIterator(self._next_rows)

    async def _next_rows(self) -> Delivery:
        reading = self._reading
        if not reading.has_rows:
            if reading.row_error is not None:
                await self._fail(reading.row_error)
                raise reading.row_error
            reading.take_rows(await self.__anext__())
        found = Delivery()
        found.records = reading.rows
        return found

    @property
    def skipped_records(self) -> int:
        """The number of records whose deserializer failed and that `rows` has skipped."""
        return self._reading.deserializer.skipped

    async def _read_more(self) -> None:
        reading = self._reading
        if True:  # ASYNC
            if self._decoding is not None:  # since a call that was cancelled
                await self._decoded(self._decoding)
                return
        if self._error is not None:
            raise self._error
        response = None if reading.decoder.is_full else await self._run(reading.next_response())
        if response is None:
            reading.finished()
            self._is_done = True
            return
        if True:  # ASYNC
            context = copy_context()

            def decode(fetched: FetchedResponse) -> DecodeError | None:
                return context.run(reading.decode, fetched)

            decoding = asyncio.get_running_loop().run_in_executor(None, decode, response)
            self._decoding = decoding
            await self._decoded(decoding)
        else:
            self._error = reading.decode(response)

    if True:  # ASYNC

        async def _decoded(self, decoding: asyncio.Future[DecodeError | None]) -> None:
            """Wait for the thread that decodes. A cancellation of this call does not end the thread."""
            await asyncio.wait([decoding])
            self._decoding = None
            self._error = decoding.result()

    if False:  # SYNC

        def __arrow_c_schema__(self) -> object:
            return self.schema.__arrow_c_schema__()

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            reading = self._reading
            settings = reading.settings
            return _fast.stream_capsule(
                settings.columns, settings.binary_type, self, reading.spark_layout, settings.framing
            )

    @property
    def schema(self) -> ColumnsSchema:
        """The Arrow schema of the batches, as an object with ``__arrow_c_schema__``."""
        return self._reading.schema

    @property
    def counts(self) -> Counts:
        """The counts of what was decoded so far: batches, records, aborted, control, skipped_batches ..."""
        return self._reading.counts

    @property
    def bytes_fetched(self) -> int:
        """The number of bytes of record batches received so far."""
        return self._reading.bytes_fetched

    async def close(self) -> None:
        """End the read. Further calls have no effect."""
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._reading.describe()}>"


class TopicRecords(BoundedRecords[TopicReading]):
    # SYNC: "iterate over it once." -> "iterate over it once, or give it to what takes ``__arrow_c_stream__``."
    # SYNC: "One task iterates over it." -> "One thread iterates over it."
    # SYNC: "If another task requests" -> "If another thread requests"
    """A read of a topic in progress: iterate over it once.

    One task iterates over it. If another task requests a batch at the same time, this raises RuntimeError.

    Its connections are closed after the last batch, after an error, by `close`, and at the end of the `async with`
    block.
    """

    def __init__(self, reading: TopicReading) -> None:
        super().__init__(reading)
        self._io_loop = IoLoop(reading.client)

    async def _open_reading(self) -> None:
        if not self._reading.is_begun:
            await self._run(self._reading.open())

    @property
    def offsets(self) -> dict[TopicPartition, ReadRange]:
        # SYNC: "Empty before the first batch." -> ""
        """Start, end and next_offset of each partition. The next_offset is the one after the records that were
        delivered or skipped so far. Empty before the first batch."""
        return self._reading.offsets

    async def close(self) -> None:
        """End the read and close the connections. Further calls have no effect."""
        if True:  # ASYNC
            self._is_done = True
        if not self._io_loop.is_closed:
            await self._io_loop.close()
