# SPDX-License-Identifier: Apache-2.0
"""`kcodec.read_topic`: a topic, or a part of it, as Arrow batches; bounded, with no group."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from kcodec import _fast
from kcodec._fast import ColumnsSchema, Counts, DecodedRecords
from kcodec.client.topic_base import TopicReading
from kcodec.network.thread_loop import Carrier
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
    """Read [start, end) of a topic as Arrow batches, and end there. No group, nothing is committed.

        for batch in kcodec.read_topic("orders", bootstrap_servers="localhost:9092"):
            table = pyarrow.table(batch)                     # topic, partition, offset, timestamp, key, value, headers

        with kcodec.read_topic("orders", bootstrap_servers=..., start=datetime(2026, 11, 1, tzinfo=UTC)) as records:
            reader = pyarrow.RecordBatchReader.from_stream(records)

    partitions: numbers; None: all of them.
    start, end: "earliest"; "latest", which is settled when this is called (the last stable offset under read_committed,
                else the high watermark); an offset; a negative number, an offset counted from the latest; a `datetime`
                with a zone or `kcodec.Timestamp(ms)`, the first record at or after it; or a mapping of partitions to
                such, where the others are read whole.
    max_rows:   maximum number of records in all.
    options:    bootstrap_servers and all others of a client; isolation_level ("read_committed"), columns, binary_type,
                framing, on_corrupt ("raise", "skip"), check_crcs, limits, max_partition_fetch_bytes (1 MiB),
                fetch_ahead_max_bytes (32 MiB), fetch_max_bytes, fetch_max_wait_ms, client_rack
                (`kcodec.client.ReadTopicOptions`).

    Partitions are fetched together, a batch has the rows of one response for one partition: offsets rise within each
    partition. Memory is that of fetch_ahead_max_bytes and a batch, however long the topic. The end is exact: it is
    reached as well where markers, aborted records or nothing at all (compaction) lie before it.

    Raises at once: TypeError, ValueError; BrokerError (no such topic or partition, a start that is not in the log).
    While reading: DecodeError at a batch that cannot be read, after all records before it, with `topic_partition` and
    `next_offset`; BrokerError where the topic is deleted or cut meanwhile; DeliveryTimeoutError where a partition makes
    no progress for default_api_timeout_ms, as towards an end that is not written yet.
    """
    return TopicRecords.of(TopicReading(topic, partitions, start, end, max_rows, options))


class TopicRecords(Iterator[DecodedRecords]):
    """A reading under way: iterate over it, or give it to what takes ``__arrow_c_stream__``; it can be read once.

    Its connections are closed at the end, by an error, by `close`, and by `with`.
    """

    def __init__(self, reading: TopicReading) -> None:
        self._reading = reading
        self._carrier = Carrier(reading.client)
        # It knows nothing of this object, so that dropping it ends the reading at once.
        self._chunks = _chunks(reading, self._carrier)

    @classmethod
    def of(cls, reading: TopicReading) -> TopicRecords:
        """The records of a reading, which has begun."""
        records = cls(reading)
        try:
            records._carrier.run(reading.open())
        except BaseException:
            records.close()
            raise
        return records

    def __next__(self) -> DecodedRecords:
        return next(self._chunks)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        settings = self._reading.settings
        return _fast.stream_capsule(settings.columns, settings.binary_type, self, False, settings.framing)

    @property
    def schema(self) -> ColumnsSchema:
        """An object with ``__arrow_c_schema__``."""
        return self._reading.schema

    @property
    def offsets(self) -> dict[TopicPartition, Range]:
        """Of each partition start, end, and next_offset: behind what was given or passed over so far."""
        return self._reading.offsets

    @property
    def counts(self) -> Counts:
        """Of all that was decoded so far: batches, records, aborted, control, skipped_batches ..."""
        return self._reading.counts

    @property
    def bytes_fetched(self) -> int:
        """Bytes of batches that brokers sent so far."""
        return self._reading.bytes_fetched

    def close(self) -> None:
        """End it. Idempotent."""
        if not self._carrier.is_closed:
            self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None and not carrier.is_closed:
            warnings.warn(f"{self!r} was not closed, nor read to its end", ResourceWarning, stacklevel=2, source=self)
            carrier.close(0.0)

    def __repr__(self) -> str:
        return f"<TopicRecords {self._reading.describe()}>"


def _chunks(reading: TopicReading, carrier: Carrier) -> Iterator[DecodedRecords]:
    try:
        while not reading.decoder.is_full:
            answer = carrier.run(reading.next_answer())
            if answer is None:
                reading.finished()
                return
            chunks, damage = reading.decoded(answer)
            yield from chunks
            if damage is not None:
                raise damage
    finally:
        carrier.close()


__all__ = ["Range", "TopicRecords", "read_topic"]
