# SPDX-License-Identifier: Apache-2.0
"""`read_topic` for asyncio: the same API, awaited; batches are decoded on a thread next to the loop."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from kcodec._fast import ColumnsSchema, Counts, DecodedRecords
from kcodec.client.topic_base import TopicReading
from kcodec.errors import DecodeError
from kcodec.network.asyncio_loop import Carrier
from kcodec.offsets import TopicPartition
from kcodec.reading.engine import Range
from kcodec.reading.ranges import Places

if TYPE_CHECKING:
    from kcodec.client.options import ReadTopicOptions


def read_topic(
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    start: Places = "earliest",
    end: Places = "latest",
    max_rows: int | None = None,
    **options: Unpack[ReadTopicOptions],
) -> TopicRecords:
    """Read [start, end) of a topic as Arrow batches: `kcodec.read_topic` says what the arguments mean.

        async with kcodec.client.aio.read_topic("orders", bootstrap_servers="localhost:9092") as records:
            async for batch in records: ...

    Nobody is asked before the first batch is, or `async with` begins: "latest" is settled then.
    """
    return TopicRecords(TopicReading(topic, partitions, start, end, max_rows, options))


class TopicRecords(AsyncIterator[DecodedRecords]):
    """A reading under way, to be iterated over once. Its connections are closed at the end, by an error, by `close`
    and by `async with`."""

    def __init__(self, reading: TopicReading) -> None:
        self._reading = reading
        self._carrier = Carrier(reading.client)
        self._is_open = False
        self._is_done = False
        self._ready: deque[DecodedRecords] = deque()
        self._damage: DecodeError | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            try:
                await self._carrier.run(self._reading.open())
            except BaseException:
                await self.close()
                raise

    async def __anext__(self) -> DecodedRecords:
        await self._open()
        try:
            while not self._ready and not self._is_done:
                await self._more()
        except BaseException:
            await self.close()
            raise
        if not self._ready:
            await self.close()
            raise StopAsyncIteration
        return self._ready.popleft()

    async def _more(self) -> None:
        reading = self._reading
        if self._damage is not None:
            raise self._damage
        answer = None if reading.decoder.is_full else await self._carrier.run(reading.next_answer())
        if answer is None:
            reading.finished()
            self._is_done = True
        else:
            chunks, self._damage = await asyncio.to_thread(reading.decoded, answer)
            self._ready.extend(chunks)

    @property
    def schema(self) -> ColumnsSchema:
        """An object with ``__arrow_c_schema__``."""
        return self._reading.schema

    @property
    def offsets(self) -> dict[TopicPartition, Range]:
        """Of each partition start, end, and next_offset; empty before the first batch."""
        return self._reading.offsets

    @property
    def counts(self) -> Counts:
        """Of all that was decoded so far."""
        return self._reading.counts

    @property
    def bytes_fetched(self) -> int:
        """Bytes of batches that brokers sent so far."""
        return self._reading.bytes_fetched

    async def close(self) -> None:
        """End it. Idempotent."""
        self._is_done = True
        self._ready.clear()
        await self._carrier.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and self._is_open and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed, nor read to its end", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<TopicRecords {self._reading.describe()}>"


__all__ = ["Range", "TopicRecords", "read_topic"]
