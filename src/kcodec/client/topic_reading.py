# SPDX-License-Identifier: Apache-2.0
"""The common part of the sync and async `read_topic` and `read_ranges`: the options, the flows of one read, and its
progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any

from kcodec import _fast
from kcodec._fast import ColumnsSchema, Counts, DecodedRecords, Record
from kcodec.cluster.broker_report import reported
from kcodec.cluster.retry_driver import CallContext
from kcodec.consumer.deserializing import RecordDeserializer
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError, DeserializationError, TransportError
from kcodec.flow import Flow
from kcodec.integers import as_integer, shown
from kcodec.network.client import Client
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.reading.bounded_read import BoundedRead
from kcodec.reading.decoding import RangeDecoder
from kcodec.reading.options import take_options
from kcodec.reading.partition_read import FetchedResponse, PartitionRead, ReadRange
from kcodec.reading.ranges import RangeBounds, TopicRange


class BoundedReading:
    """One bounded read: its progress, and the conversion of responses to records."""

    def __init__(self, settings: ConsumerSettings, decoder: RangeDecoder, spark_layout: bool = False) -> None:
        self.settings = settings
        self.decoder = decoder
        self.spark_layout = spark_layout
        self.deserializer = RecordDeserializer(
            settings.key_deserializer, settings.value_deserializer, settings.on_error == "skip"
        )
        #: The error that ended the read, if any.
        self.failure: BaseException | None = None
        self.is_finished = False
        #: Decoded batches of one response that the caller has not received yet.
        self.ready: deque[DecodedRecords] = deque()
        #: The rows of the last batch that `rows` has not returned yet, and the error to raise after them.
        self.rows: Iterator[Record] = iter(())
        self.row_error: DeserializationError | None = None
        self._records: list[Record] = []
        self._read: BoundedRead | None = None
        #: The response to decode. It is kept until then, because a call that gets it may be cancelled.
        self._response: FetchedResponse | None = None
        #: The partition of the last response, the offset at which its records begin, and whether it is being decoded.
        self._partition: PartitionRead | None = None
        self._decoded_from = 0
        self._is_decoding = False

    @property
    def schema(self) -> ColumnsSchema:
        """The Arrow schema of the batches."""
        settings = self.settings
        return _fast.schema_of(settings.columns, settings.binary_type, self.spark_layout, settings.framing)

    def next_response(self) -> Flow[FetchedResponse | None]:
        """Return the next response to decode, or None at the end."""
        assert self._read is not None
        if self._response is None:
            self._response = yield from self._read.next_response()
        return self._response

    @property
    def is_begun(self) -> bool:
        """Whether the fetches were started."""
        return self._read is not None

    def decode(self, response: FetchedResponse) -> DecodeError | None:
        """Add the chunks of a response to `ready`, and return the error to raise after them.

        The cancellation of a call does not end the thread that decodes. The chunks are added to `ready` nevertheless,
        and until then they do not count as progress.
        """
        self._response = None
        if self._partition is not None:
            self._partition.undelivered = None
        self._partition = partition = response.partition
        self._decoded_from = max(partition.next_offset, response.position)
        self._is_decoding = True
        chunks, error = self.decoder.decode(response)
        self.ready.extend(chunks)
        self._is_decoding = False
        return error

    def take_rows(self, batch: DecodedRecords) -> None:
        """Deserialize the rows of a batch, for `rows`. If an exception such as KeyboardInterrupt interrupts a
        deserializer, the batch is put back into `ready`."""
        try:
            records = list(batch.records())
            partition = TopicPartition(batch.topic or "", batch.partition or 0)
            self.row_error = self.deserializer.apply(records, partition)
        except BaseException:
            self.ready.appendleft(batch)
            raise
        self._records, self.rows = records, iter(records)

    @property
    def has_rows(self) -> bool:
        """Whether `rows` has not returned all rows of the current batch yet."""
        return length_hint(self.rows) > 0

    def closed_early(self) -> Exception | None:
        """Return the error to raise at the end if the read was closed before it was complete, or None."""
        if self.failure is None and self.is_finished:
            return None
        if isinstance(self.failure, Exception):
            return self.failure
        return TransportError(f"the read of {self.describe()} was closed before it was complete")

    def _note_undelivered(self) -> None:
        """Note the first record that the caller has not received yet. Call this before the progress is reported."""
        if self._partition is not None:
            self._partition.undelivered = self._first_undelivered()

    def _first_undelivered(self) -> int | None:
        if self._is_decoding:
            return self._decoded_from
        if "offset" not in self.settings.columns:
            return self._decoded_from if self.has_rows or self.ready else None
        if left := length_hint(self.rows):
            return self._records[-left].offset
        if self.row_error is not None:
            return self.row_error.offset
        return int(self.ready[0].column("offset")[0]) if self.ready else None

    def finished(self) -> None:
        """Note that everything was fetched and decoded, so that there are no records between the last one and the end
        of the range."""
        self.is_finished = True
        if not self.decoder.is_full:
            for partition in self.partitions:
                partition.next_offset = partition.range.end

    @property
    def partitions(self) -> list[PartitionRead]:
        """The partitions to read. The list is empty before the read begins."""
        return [] if self._read is None else self._read.partitions

    @property
    def bytes_fetched(self) -> int:
        """The number of bytes of record batches received so far."""
        return 0 if self._read is None else self._read.bytes_fetched

    @property
    def counts(self) -> Counts:
        """The counts of what was decoded so far."""
        return self.decoder.counts

    def describe(self) -> str:
        """Return a text for `repr`."""
        raise NotImplementedError

    def _describe(self, of: str) -> str:
        self._note_undelivered()
        read = sum(one.delivered_offset - one.range.start for one in self.partitions)
        total = sum(one.range.end - one.range.start for one in self.partitions)
        return f"{of}, {read} of {total} offsets"


class TopicReading(BoundedReading):
    """A read of a topic, with a separate client.

    Raise TypeError or ValueError if an option or a bound of the range is invalid, before any request.
    """

    def __init__(
        self,
        topic: str,
        partitions: Iterable[int] | None,
        start: RangeBounds,
        end: RangeBounds,
        max_rows: int | None,
        options: Mapping[str, Any],
    ) -> None:
        if max_rows is not None:
            rows = as_integer(max_rows)
            if rows is None or rows < 0:
                raise ValueError(f"max_rows must be an int of 0 or more, not {shown(max_rows)}")
            max_rows = rows
        self.range = TopicRange(topic, partitions, start, end)
        own, client_options = take_options(options)
        settings = own.settings(client_options)
        super().__init__(settings, RangeDecoder(settings, max_rows))
        self.client = Client(client_options)
        self.client.cluster.allow_auto_topic_creation = False

    def open(self) -> Flow[None]:
        """Determine the ranges to read, and start the fetches."""
        settings = self.settings
        return reported(
            self._open(),
            self.client.cluster,
            f"read of {self.range.topic!r}",
            settings.default_api_timeout,
            "kcodec.reading",
        )

    def _open(self) -> Flow[None]:
        cluster = self.client.cluster
        topic = self.range.topic
        context = CallContext(cluster, self.settings.default_api_timeout, lambda: time.time_ns() // 1_000_000)
        ranges = yield from self.range.resolve(context, self.settings.isolation_level)
        # The flows below need the topic id and the leaders.
        yield from cluster.ensure_topic(topic, self.settings.default_api_timeout)
        found = [OffsetRange(topic, number, start, end) for number, (start, end) in ranges.items()]
        self._read = BoundedRead(cluster, found, self.settings)
        if not self.decoder.is_full:
            yield from self._read.start()

    @property
    def offsets(self) -> dict[TopicPartition, ReadRange]:
        """The range and the progress of each partition."""
        self._note_undelivered()
        return {partition.topic_partition: partition.read_range for partition in self.partitions}

    def describe(self) -> str:
        """Return a text for `repr`."""
        return self._describe(f"{self.range.topic!r}, {len(self.partitions)} partitions")
