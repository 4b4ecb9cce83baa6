# SPDX-License-Identifier: Apache-2.0
"""A sample of ranges of offsets: one response for each range, whatever the ranges contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kcodec.client.range_reading import RangeReading
from kcodec.client.range_records import RangeRecords, _clients
from kcodec.offsets import OffsetRange

__all__ = ["sample_ranges"]
#: Number of fetches that are in flight at the same time.
PARALLEL_FETCHES = 16


class SampleReading(RangeReading):
    """A read of ranges that ends after one response for each range.

    A range without a response that contains batches ends as in any other read, after two empty responses. Therefore the
    number of requests depends on the number of ranges, and not on their sizes.
    """

    is_sample = True


def sample_ranges(ranges: Iterable[OffsetRange], *, sample_bytes: int, **options: Any) -> RangeRecords:
    """Read the beginnings of ranges of different partitions, in Spark's layout. Offsets that are not in the log are
    skipped.

    sample_bytes: Bytes that one response for a range has at most, unless its first batch is larger.
    options:      Options of `read_ranges`.

    No range is read further than its first response, even if this response has no record that is returned (markers,
    aborted records). The errors are those of `read_ranges`.
    """
    limits = {"max_partition_fetch_bytes": sample_bytes, "fetch_ahead_max_bytes": PARALLEL_FETCHES * sample_bytes}
    return RangeRecords.of(SampleReading(ranges, True, "skip", {**options, **limits}, _clients))
