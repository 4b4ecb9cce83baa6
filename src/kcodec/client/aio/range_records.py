# SPDX-License-Identifier: Apache-2.0
"""`read_ranges` of the asyncio API: ranges of partitions whose offsets are known, with a client that is kept."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Unpack

from kcodec.client.aio.topic_records import BoundedRecords
from kcodec.client.aio.waiting import IoLoop
from kcodec.client.client_pool import ClientPool, PooledClient
from kcodec.client.range_reading import RangeReading
from kcodec.errors import TransportError
from kcodec.offsets import OffsetRange
from kcodec.reading.bounded_read import RangeProgress

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
    # SYNC: "ValueError. With the block, or the first batch:" -> "ValueError;"
    # SYNC: "its event loop ends" -> "the process exits"
    """Read ranges of offsets, of any topics, as Arrow batches. It uses no group and commits nothing.

        planned = [OffsetRange("orders", 0, 500, 900), OffsetRange("payments", 3, 0, 120)]
        async with kcodec.client.aio.read_ranges(planned, bootstrap_servers="localhost:9092") as records:
            async for batch in records:
                table = pyarrow.table(batch)             # topic, partition, offset, timestamp, key, value, headers

    For coordinators that plan offsets in one place and read them in many (Spark, Ray, Dask). Ranges can be pickled.
    Their ends are given, so that no offsets are requested, and the client with its connections is kept for later calls
    with the same options. A small range then costs one Fetch request. A client is kept until its event loop ends, or
    until one of its connections fails; at most eight idle clients are kept.

    ranges:       `kcodec.OffsetRange` values, or one. They are fetched together. All rows of a batch belong to one
                  range, and offsets increase within a range.
    spark_layout: The columns of Spark's own Kafka source: key, value, topic, partition, offset, timestamp,
                  timestamp_type unless `columns` names others, all nullable, timestamps in microseconds, NULL for a
                  record without headers.
    on_missing:   What to do about offsets that are not in the log: a start below its start (retention,
                  DeleteRecords), an end above its end (truncation), a topic that was deleted, or that was deleted and
                  created again (`OffsetRange.topic_id`). "raise": an error that names the range and the bounds of the
                  log. "skip": read the rest of the range; missing offsets are logged as a warning and counted in
                  `ranges`.
    options:      Those of `read_topic` (`kcodec.client.ReadTopicOptions`).

    Raises at once: TypeError, ValueError. With the block, or the first batch: BrokerError (no such topic or partition).
    While reading: OffsetOutOfRangeError and LogTruncationError for missing offsets; otherwise as `read_topic`.
    """
    # SYNC: "RangeRecords(" -> "RangeRecords.of("
    return RangeRecords(RangeReading(ranges, spark_layout, on_missing, options, _clients))


class RangeRecords(BoundedRecords[RangeReading]):
    # SYNC: "iterate over it once." -> "iterate over it once, or give it to what takes ``__arrow_c_stream__``."
    """A read of ranges under way: iterate over it once.

    It ends with its last batch, by an error, by `close`, and by `async with`. Its connections are kept for other calls.
    """

    def __init__(self, reading: RangeReading) -> None:
        super().__init__(reading)
        self._pooled: PooledClient[IoLoop] | None = None

    async def _open_reading(self) -> None:
        reading = self._reading
        if True:  # ASYNC
            pooled, surplus = _clients.take(reading.client_options, reading.config, asyncio.get_running_loop())
            self._pooled = pooled
            if pooled.guard is None:
                pooled.guard = _close_with_event_loop(pooled.io_loop)
                await anext(pooled.guard)
        else:
            pooled, surplus = _clients.take(reading.client_options, reading.config)
            self._pooled = pooled
        self._io_loop = pooled.io_loop
        for other in surplus:
            await _close(other)
        await self._run(reading.open(pooled.io_loop.client))

    @property
    def ranges(self) -> tuple[RangeProgress, ...]:
        # SYNC: " Empty before the first batch." -> ""
        """Each range of the call, in that order, with `next_offset` (after what was delivered or skipped so far)
        and `lost` (number of its offsets that are not in the log). Empty before the first batch."""
        return self._reading.progress

    async def close(self) -> None:
        """End the read. Idempotent."""
        if True:  # ASYNC
            self._is_done = True
        pooled, self._pooled = self._pooled, None
        if pooled is not None and self._give_back(pooled):
            await _close(pooled)

    def _give_back(self, pooled: PooledClient[IoLoop]) -> bool:
        if not self._reading.is_finished and not pooled.io_loop.is_closed:
            with suppress(TransportError):  # closed meanwhile
                pooled.io_loop.post(self._reading.stop)
        return _clients.give_back(pooled, self._reading.has_failed_connection)

    def __del__(self) -> None:
        pooled = getattr(self, "_pooled", None)
        if pooled is not None and pooled.is_usable:
            warnings.warn(f"{self!r} {self._unclosed}", ResourceWarning, stacklevel=2, source=self)
            if True:  # ASYNC
                self._give_back(pooled)  # the guard closes the client, if that is to be done
            else:
                if self._give_back(pooled):
                    pooled.io_loop.close(0.0)


if True:  # ASYNC

    async def _close_with_event_loop(io_loop: IoLoop) -> AsyncGenerator[None]:
        """Wait until `asyncio.run` closes its asynchronous generators at its end, and close the clients."""
        try:
            yield
        finally:
            await io_loop.close()


async def _close(pooled: PooledClient[IoLoop]) -> None:
    if True:  # ASYNC
        await pooled.guard.aclose()
    else:
        pooled.io_loop.close()
