# SPDX-License-Identifier: Apache-2.0
"""`read_ranges` of the asyncio API: a read of ranges of offsets, with a client that is kept for later calls."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Literal, Unpack

from kcodec.client.aio.topic_records import BoundedRecords
from kcodec.client.aio.waiting import IoLoop
from kcodec.client.client_pool import ClientPool, PooledClient
from kcodec.client.range_reading import RangeReading
from kcodec.errors import TransportError
from kcodec.offsets import OffsetRange
from kcodec.reading.partition_read import RangeProgress

if TYPE_CHECKING:
    from kcodec.client.options import ReadTopicOptions

__all__ = ["RangeProgress", "RangeRecords", "read_ranges"]
_clients: ClientPool[IoLoop] = ClientPool(IoLoop)


def read_ranges(
    ranges: OffsetRange | Iterable[OffsetRange],
    *,
    spark_layout: bool = False,
    on_missing: Literal["raise", "skip"] = "raise",
    **options: Unpack[ReadTopicOptions],
) -> RangeRecords:
    # SYNC: "kcodec.client.aio.read_ranges" -> "kcodec.read_ranges"
    # SYNC: "as records: async for batch in records:" -> "as records:\n            for batch in records:"
    # SYNC: "With the block, or the first batch, raise" -> "Raise"
    # SYNC: "its event loop ends" -> "the process exits"
    # SYNC: "One task iterates" -> "One thread iterates"
    """Read ranges of offsets, of any topics, as Arrow batches. No group is used, and no offset is committed.

        planned = [OffsetRange("orders", 0, 500, 900), OffsetRange("payments", 3, 0, 120)]
        async with kcodec.client.aio.read_ranges(planned, bootstrap_servers="localhost:9092") as records:
            async for batch in records:
                table = pyarrow.table(batch)             # topic, partition, offset, timestamp, key, value, headers

    This is for frameworks that plan offsets in one process and read them in many (Spark, Ray, Dask). Ranges can be
    pickled. The bounds of the ranges are given, so no offsets are requested. The client with its connections is kept
    for later calls with the same options. A small range then costs one Fetch request. A client is kept until
    its event loop ends, or until one of its connections fails. At most eight idle clients are kept.

    ranges:       One `kcodec.OffsetRange`, or several. They are fetched at the same time. All rows of a batch belong to
                  one range, and offsets increase within a range.
    spark_layout: Whether the batches have the layout of Spark's own Kafka source. All columns are nullable, timestamps
                  are in microseconds, and the headers of a record without headers are NULL. The columns are key,
                  value, topic, partition, offset, timestamp and timestamp_type unless `columns` names others.
    on_missing:   What to do if offsets are not in the log: the range begins before the start of the log (retention,
                  DeleteRecords), it ends after the end of the log (truncation), the topic was deleted, or it was
                  deleted and created again (`OffsetRange.topic_id`). "raise" raises an error that names the range and
                  the bounds of the log. "skip" reads the rest of the range. Missing offsets are then logged as a
                  warning and counted in `ranges`.
    options:      The options of `read_topic` (`kcodec.client.ReadTopicOptions`).

    Raise TypeError or ValueError if an argument is invalid.
    With the block, or the first batch, raise BrokerError if a topic or a partition does not exist.

    While reading, raise OffsetOutOfRangeError or LogTruncationError if offsets are missing, and the errors of
    `read_topic`. One task iterates over a read, as for `read_topic`.
    """
    # SYNC: "RangeRecords(" -> "RangeRecords.of("
    return RangeRecords(RangeReading(ranges, spark_layout, on_missing, options, _clients))


class RangeRecords(BoundedRecords[RangeReading]):
    # SYNC: "iterate over it once." -> "iterate over it once, or give it to what takes ``__arrow_c_stream__``."
    # SYNC: "One task iterates over it." -> "One thread iterates over it."
    # SYNC: "If another task requests" -> "If another thread requests"
    """A read of ranges in progress: iterate over it once.

    One task iterates over it. If another task requests a batch at the same time, this raises RuntimeError.

    It ends after the last batch, after an error, by `close`, and at the end of the `async with` block. Its connections
    are kept for other calls.
    """

    def __init__(self, reading: RangeReading) -> None:
        super().__init__(reading)
        self._pooled: PooledClient[IoLoop] | None = None

    async def _open_reading(self) -> None:
        reading = self._reading
        if self._pooled is None:
            if True:  # ASYNC
                pooled, surplus = _clients.take(reading.client_options, reading.config, asyncio.get_running_loop())
                self._pooled = pooled
                self._io_loop = pooled.io_loop
                if pooled.guard is None:
                    pooled.guard = _close_with_event_loop(pooled.io_loop)
                    await anext(pooled.guard)
            else:
                pooled, surplus = _clients.take(reading.client_options, reading.config)
                self._pooled = pooled
                self._io_loop = pooled.io_loop
            async with AsyncExitStack() as closing:  # closes all of them, even if one wait is interrupted
                for other in surplus:
                    closing.push_async_callback(_close, other)
        if not reading.is_begun:
            await self._run(reading.open(self._pooled.io_loop.client))

    @property
    def ranges(self) -> tuple[RangeProgress, ...]:
        # SYNC: "Empty before the first batch." -> ""
        """The ranges in the order of the call, with their progress: `next_offset` is the offset after the records that
        were delivered or skipped so far, and `lost` is the number of offsets that are not in the log. Empty before the
        first batch."""
        return self._reading.progress

    async def close(self) -> None:
        """End the read. Further calls have no effect."""
        if True:  # ASYNC
            self._is_done = True
        pooled, self._pooled = self._pooled, None
        if pooled is not None and self._give_back(pooled):
            await _close(pooled)

    def _give_back(self, pooled: PooledClient[IoLoop]) -> bool:
        if not self._reading.is_finished and not pooled.io_loop.is_closed:
            with suppress(TransportError):  # the client was closed meanwhile
                pooled.io_loop.post(self._reading.stop)
        return _clients.give_back(pooled, self._reading.has_failed_connection)

    def __del__(self) -> None:
        pooled = getattr(self, "_pooled", None)
        if pooled is not None and pooled.is_usable:
            warnings.warn(f"{self!r} {self._unclosed}", ResourceWarning, stacklevel=2, source=self)
            if True:  # ASYNC
                self._give_back(pooled)  # if the client must be closed, the guard closes it
            else:
                if self._give_back(pooled):
                    pooled.io_loop.close(0.0)


if True:  # ASYNC

    async def _close_with_event_loop(io_loop: IoLoop) -> AsyncGenerator[None]:
        """Close the client when `asyncio.run` closes the asynchronous generators at its end."""
        try:
            yield
        finally:
            await io_loop.close()


async def _close(pooled: PooledClient[IoLoop]) -> None:
    if True:  # ASYNC
        await pooled.guard.aclose()
    else:
        pooled.io_loop.close()
