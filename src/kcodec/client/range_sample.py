# SPDX-License-Identifier: Apache-2.0
"""A sample of ranges of offsets: about one response for each range, whatever the ranges contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kcodec.client.range_reading import RangeReading
from kcodec.client.range_records import RangeRecords, _clients
from kcodec.flow import Flow
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.reading.partition_read import FetchedResponse

__all__ = ["sample_ranges"]


class SampleReading(RangeReading):
    """A read of ranges that ends after one response for each range, or as soon as a range gets a second response.

    Fetches whose responses do not fit into fetch_ahead_max_bytes wait in a queue. If only one fetch fits, a range gets
    its second response after all other ranges had a turn. A range whose fetch returned no records is then left out.
    Therefore the number of requests depends on the number of ranges, and not on their sizes.
    """

    def __init__(self, ranges: Iterable[OffsetRange], options: dict[str, Any]) -> None:
        super().__init__(ranges, True, "skip", options, _clients)
        self._sampled: set[TopicPartition] = set()

    def next_response(self) -> Flow[FetchedResponse | None]:
        """Return the next response to decode, or None if there are enough responses."""
        if len(self._sampled) < len(self.ranges):
            response = yield from super().next_response()
            if response is None:
                return None
            if response.partition.topic_partition not in self._sampled:
                self._sampled.add(response.partition.topic_partition)
                return response
        self.stop()
        return None


def sample_ranges(ranges: Iterable[OffsetRange], *, sample_bytes: int, **options: Any) -> RangeRecords:
    """Read the beginnings of ranges of different partitions, in Spark's layout. Offsets that are not in the log are
    skipped.

    sample_bytes: Bytes that one response for a range has at most, unless its first batch is larger.
    options:      Options of `read_ranges`.

    No range is read further than its first response, even if this response has no record that is returned (markers,
    aborted records). The errors are those of `read_ranges`.
    """
    limits = {"max_partition_fetch_bytes": sample_bytes, "fetch_ahead_max_bytes": sample_bytes}
    return RangeRecords.of(SampleReading(ranges, {**options, **limits}))
