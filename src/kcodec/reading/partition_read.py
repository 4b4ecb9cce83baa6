# SPDX-License-Identifier: Apache-2.0
"""The progress of bounded reads: of one range, of its fetches, and as users see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from kcodec.errors import DecodeError, KcodecError
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.reading.preferred_replica import PreferredReplica


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The offsets [start, end) of a partition. `next_offset` is the offset after the last one that was delivered or
    skipped."""

    start: int
    end: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """A range of `read_ranges`.

    next_offset: Offset after the last one that was delivered or skipped.
    lost:        Number of its offsets that are not in the log, so that their records cannot be delivered.
    """

    range: OffsetRange
    next_offset: int
    lost: int


@dataclass(slots=True)
class FetchedResponse:
    """The response for one partition, which its reader decodes. `position` is the requested offset; the first batch may
    have records below it."""

    partition: PartitionRead
    position: int
    data: memoryview
    aborted: list[tuple[int, int]]
    last_stable_offset: int
    size: int = 0


@dataclass(slots=True, eq=False)
class PartitionRead:
    """The progress of one range: the loop has fetched up to `fetch_offset`, the caller has taken records up to
    `next_offset`.

    preferred:   Broker to fetch from, if it is not the leader.
    end:         Offset at which the read ends: lower than that of the range if the log ends before it.
    topic_id:    Id of the topic. `is_id_certain` is False if it comes from metadata that may be outdated.
    undelivered: Offset of the first decoded record below `next_offset` that the caller has not received.
    lost:        Number of offsets of the range that are not in the log.
    corruption:  Error that ended the fetches, because a header cannot be read and the next batch is unknown.
    """

    range: OffsetRange
    preferred: PreferredReplica
    topic_id: UUID | None
    fetch_bytes: int
    is_id_certain: bool
    topic_partition: TopicPartition = field(init=False)
    end: int = field(init=False)
    fetch_offset: int = field(init=False)
    next_offset: int = field(init=False)
    last_epoch: int = field(init=False)
    undelivered: int | None = None
    lost: int = 0
    is_end_checked: bool = False
    attempt: int = 0
    deadline: float = 0.0
    unknown_since: float | None = None
    is_empty_once: bool = False
    must_pause: bool = False
    last_error: KcodecError | None = None
    corruption: DecodeError | None = None

    def __post_init__(self) -> None:
        self.topic_partition = self.range.topic_partition
        self.fetch_offset = self.next_offset = self.range.start
        self.end = self.range.end
        self.last_epoch = self.range.leader_epoch

    @property
    def delivered_offset(self) -> int:
        """The offset at which another read continues without a gap."""
        return self.next_offset if self.undelivered is None else self.undelivered

    @property
    def read_range(self) -> ReadRange:
        """Return the progress in the form of read_topic."""
        return ReadRange(self.range.start, self.range.end, self.delivered_offset)

    @property
    def progress(self) -> RangeProgress:
        """Return the progress in the form of read_ranges."""
        return RangeProgress(self.range, self.delivered_offset, self.lost)
