# SPDX-License-Identifier: Apache-2.0
"""Decoding of responses of a `BoundedRead`, on the caller's thread, up to the end offset and max_rows."""

from __future__ import annotations

import logging

from kcodec import _fast
from kcodec._fast import Counts, DecodedRecords, RecordBatch
from kcodec.constants import ControlType
from kcodec.consumer.options import ConsumerSettings
from kcodec.errors import DecodeError
from kcodec.reading.partition_read import FetchedResponse

log = logging.getLogger("kcodec.reading")


class RangeDecoder:
    """Decodes responses in the order in which they arrived.

    max_rows:     Maximum number of records in total; None for no limit. `is_full` is True when they were returned.
    spark_layout: See `kcodec._fast.decode_fetch`.
    counts:       Counts of all records decoded so far.
    """

    def __init__(self, settings: ConsumerSettings, max_rows: int | None = None, spark_layout: bool = False) -> None:
        self._settings = settings
        self._spark_layout = spark_layout
        self._left = max_rows
        self.counts = Counts()

    @property
    def is_full(self) -> bool:
        """Whether max_rows records were returned."""
        return self._left is not None and self._left <= 0

    def decode(self, response: FetchedResponse) -> tuple[list[DecodedRecords], DecodeError | None]:
        """Return the records in the range, and the corruption after them, which ends the response.

        The partition's next_offset moves past everything returned or skipped: markers, aborted records, gaps. Under
        on_error="skip" a corrupt batch is skipped by its length, and counted. Corruption is then only returned if the
        position of the next batch is unknown.
        """
        found: list[DecodedRecords] = []
        # Records below a log start that was skipped to may still be in its first batch.
        response.partition.next_offset = max(response.partition.next_offset, response.position)
        rest: memoryview | None = response.data
        corruption = None
        while rest is not None and not self.is_full:
            decoded, corruption = self._attempt(response, rest, self._settings.columns, response.partition.end)
            if self._left is not None and len(decoded) > self._left:
                end = self._offset_of(response, rest, self._left)
                decoded, corruption = self._attempt(response, rest, self._settings.columns, end)
            self._count(response, decoded)
            found += decoded.chunks if len(decoded) else ()
            rest = None if corruption is None else self._skipped(response, rest, corruption)
            corruption = None if rest is not None else corruption
        return found, corruption

    def _count(self, response: FetchedResponse, decoded: DecodedRecords) -> None:
        if self._left is not None:
            self._left -= len(decoded)
        self.counts = _sum(self.counts, decoded.counts)
        if decoded.next_offset is not None:
            response.partition.next_offset = max(response.partition.next_offset, decoded.next_offset)

    def _skipped(self, response: FetchedResponse, data: memoryview, corruption: DecodeError) -> memoryview | None:
        """Return the data after a corrupt batch, if it can be skipped. Set next_offset of the error.

        The header of a corrupt batch contains the offset after it, but the header may be corrupt, too. A following
        batch is better evidence, and the core has searched for one.
        """
        if corruption.position is None:
            return None
        try:
            batch = _fast.header_at(data[corruption.position :], limits=self._settings.limits)
        except DecodeError:
            return None
        if batch is None or batch.base_offset > batch.last_offset:
            return None
        if corruption.next_offset is None and batch.last_offset >= response.partition.next_offset:
            corruption.next_offset = batch.last_offset + 1
        if self._settings.on_error != "skip":
            return None
        self.counts = _sum(self.counts, Counts(batches=1, skipped_batches=1))
        log.warning("skipped a batch of %s: %s", response.partition.topic_partition, corruption)
        _end_aborted(response.aborted, data[: corruption.position], batch)
        if corruption.next_offset is not None:
            response.partition.next_offset = max(response.partition.next_offset, corruption.next_offset)
        return data[corruption.position + batch.size_in_bytes :]

    def _offset_of(self, response: FetchedResponse, data: memoryview, row: int) -> int:
        """Return the offset of a row, an end with that number of records before it."""
        decoded, _ = self._attempt(response, data, ("offset",), response.partition.end)
        offset: int = decoded.column("offset")[row]
        return offset

    def _attempt(
        self, response: FetchedResponse, data: memoryview, columns: tuple[str, ...], end: int
    ) -> tuple[DecodedRecords, DecodeError | None]:
        """Return the records up to corruption, and the corruption."""
        settings, partition = self._settings, response.partition
        topic, number = partition.topic_partition
        try:
            decoded = _fast.decode_fetch(
                data,
                topic=topic,
                partition=number,
                start_offset=partition.next_offset,
                end_offset=end,
                columns=columns,
                isolation_level=settings.isolation_level,
                aborted_transactions=response.aborted,
                last_stable_offset=response.last_stable_offset if settings.is_committed_only else None,
                check_crcs=settings.check_crcs,
                limits=settings.limits,
                binary_type=settings.binary_type,
                framing=settings.framing,
                spark_layout=self._spark_layout,
            )
        except DecodeError as error:
            if error.decoded is None:
                raise
            error.topic_partition = partition.topic_partition
            return error.decoded, error
        return decoded, None


def _sum(one: Counts, more: Counts) -> Counts:
    return Counts(*(here + there for here, there in zip(one, more, strict=True)))


def _end_aborted(aborted: list[tuple[int, int]], passed: memoryview, corrupt: RecordBatch) -> None:
    """Remove the aborted transactions that ended before or in a corrupt batch. The data after this batch is decoded
    separately, and later transactions of their producers would otherwise count as aborted."""
    markers = [
        (batch.producer_id, record.offset)
        for batch in _fast.batches(passed)
        if batch.is_control_batch
        for record in batch.records()
        if record.control_type is ControlType.ABORT
    ]
    if corrupt.is_control_batch:
        markers.append((corrupt.producer_id, corrupt.last_offset))
    for producer_id, offset in markers:
        begun = [one for one in aborted if one[0] == producer_id and one[1] <= offset]
        if begun:
            aborted.remove(min(begun))
