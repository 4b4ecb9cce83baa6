# SPDX-License-Identifier: Apache-2.0
"""Where a consumer can continue after a batch that cannot be read.

Kafka's consumers leave that to the user, who can only guess. Here the error contains the offset and how it was found,
by the strongest available evidence:

1. the corrupt batch's own header, if it is plausible and the following data agrees with it: after its last offset;
2. the next batch in the same response that its checksum confirms: its first offset;
3. otherwise the next offset, and the text says that this is a guess.
"""

from __future__ import annotations

from typing import Any

from kcodec._fast import find_provable, header_at
from kcodec.errors import DecodeError
from kcodec.limits import DecodeLimits
from kcodec.offsets import TopicPartition

# Limit of the bytes that are checksummed in search of a valid batch, as a multiple of max_batch_bytes. Without it,
# crafted bytes could require any amount of work.
_SEARCH_BATCHES = 4


def explain_corruption(
    error: DecodeError,
    partition: TopicPartition,
    data: Any,
    position: int,
    high_watermark: int,
    limits: DecodeLimits,
) -> DecodeError:
    """Set `topic_partition` and `next_offset` of the error, and add to its text how that offset was found.

    data: the records of the response; position: the consumer's position; high_watermark: -1 if unknown.
    """
    end = high_watermark if high_watermark > position else 1 << 63
    at = error.position or 0
    found = _behind_header(data, at, position, end, limits)
    how = "the end of this batch"
    if found is None:
        found = _next_provable(data, at, position, end, limits)
        how = "the next batch with a valid checksum"
    if found is None:
        found = position + 1
        how = "a guess, as no later batch with a valid checksum was found"
    error.topic_partition = partition
    error.next_offset = found
    error.reason += f"; next_offset {found} is {how}: seek there to continue"
    return error


def _behind_header(data: Any, at: int, position: int, end: int, limits: DecodeLimits) -> int | None:
    """Return the offset after the batch by its header; None if the header is not credible."""
    try:
        batch = header_at(data[at:], at, limits=limits)
    except DecodeError:
        return None
    if batch is None or batch.magic < 2 or batch.last_offset_delta < 0 or batch.base_offset < 0:
        return None
    behind = batch.last_offset + 1
    if not position < behind <= end:
        return None
    if at + batch.size_in_bytes <= len(data) and batch.is_valid():
        return behind  # the checksum covers the number of offsets
    following = at + batch.size_in_bytes
    if following >= len(data):
        is_usual = batch.records_count == batch.last_offset_delta + 1
        return behind if is_usual and following == len(data) else None
    return behind if _agrees(data[following:], behind, limits) else None


def _agrees(rest: Any, behind: int, limits: DecodeLimits) -> bool:
    """Return whether a batch follows from `behind` on: a valid one, or the incomplete one that ends a response."""
    try:
        after = header_at(rest, limits=limits)
    except DecodeError:
        return False
    if after is None:
        return True
    if after.magic < 2 or after.base_offset < behind:
        return False
    return after.size_in_bytes > len(rest) or after.is_valid()


def _next_provable(data: Any, at: int, position: int, end: int, limits: DecodeLimits) -> int | None:
    """Return the first offset of the next batch in the response that its checksum confirms."""
    rest = data[at + 1 :]
    found = find_provable(rest, position, limits, _SEARCH_BATCHES * limits.max_batch_bytes)
    if found < 0:
        return None
    batch = header_at(rest[found:], limits=limits)
    return batch.base_offset if batch is not None and position < batch.base_offset < end else None
