# SPDX-License-Identifier: Apache-2.0
"""Partitions and the offsets committed in them, as Kafka's clients name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kcodec.integers import INT64_MAX, as_integer, shown

if TYPE_CHECKING:
    from uuid import UUID

#: The protocol has the length of a name in an int16, and the number of a partition in an int32.
LONGEST_NAME_BYTES, HIGHEST_PARTITION = 2**15 - 1, 2**31 - 1
#: Characters of a wrong name that an error shows.
SHOWN_CHARACTERS = 60


class TopicPartition(NamedTuple):
    """A partition of a topic; as text ``orders-0``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Timestamp(NamedTuple):
    """A time in place of an offset: `ms`, milliseconds since 1970, as in records."""

    ms: int


@dataclass(frozen=True)
class OffsetAndMetadata:
    """A committed offset, at which a consumer continues.

    leader_epoch: Of the last record consumed; -1 if unknown. metadata: Any text.
    topic_id:     Id of the topic to which the offset belongs, by which `Consumer.seek` detects a topic that was deleted
                  and created again. None: any topic of that name. Kafka does not return it for a committed offset.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of a partition, for `kcodec.read_ranges`; as text ``orders-0 [5, 10)``. It can be pickled.

    topic_id:     Id of the topic (`Admin.describe_topics`), by which a topic that was deleted and created again under
                  its name is detected. None: any topic of that name.
    leader_epoch: Epoch of the record before `start`, as in OffsetAndMetadata, by which a log that was truncated below
                  `start` is detected (KIP-320). -1 if unknown.

    Raise TypeError or ValueError if an argument is invalid.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: UUID | None = None
    leader_epoch: int = -1

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise TypeError(f"OffsetRange: topic must be a name, not {self.topic!r}")
        for name, least in (("partition", 0), ("start", 0), ("end", 0), ("leader_epoch", -1)):
            value = getattr(self, name)
            number = as_integer(value)
            if number is None:
                raise TypeError(f"OffsetRange: {name} must be an int, not {shown(value)}")
            if not least <= number <= INT64_MAX:
                bounds = f"at least {least}" if number < least else f"at most {INT64_MAX}"
                raise ValueError(f"OffsetRange: {name} must be {bounds}, not {shown(number)}")
            object.__setattr__(self, name, number)
        if self.end < self.start:
            raise ValueError(f"OffsetRange: end must be at least start ({self.start}), not {self.end}")
        if not _is_id(self.topic_id):
            raise TypeError(f"OffsetRange: topic_id must be a uuid.UUID or None, not {self.topic_id!r}")

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, including those of markers and aborted records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """The group member that commits offsets in a transaction; the coordinator refuses an old generation (KIP-447).

    group_id:          Name of the group.
    generation_id:     Of the member's last rebalance (its member epoch in KIP-848). -1 with an empty member_id disables
                       the check, for partitions that are assigned manually.
    group_instance_id: Of a static member, else None.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def check_topic(name: object, parameter: str) -> None:
    """Raise TypeError for a topic name that is not a str, ValueError for one that no request can hold. Brokers
    refuse names that are invalid for another reason."""
    if not isinstance(name, str):
        raise TypeError(f"{parameter}: expected the name of a topic, got {name!r:.100} of type {type(name).__name__}")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError as error:
        shown = name[max(error.start - SHOWN_CHARACTERS // 2, 0) :][:SHOWN_CHARACTERS]
        raise ValueError(
            f"{parameter}: the name of a topic must be text that UTF-8 can encode, got {shown!r}, whose character"
            f" {name[error.start]!r} is a surrogate; decode the name without the error handler surrogateescape"
        ) from None
    if size > LONGEST_NAME_BYTES:
        raise ValueError(
            f"{parameter}: the name of a topic must have at most {LONGEST_NAME_BYTES} bytes in UTF-8, got {size} bytes"
            f" that begin with {name[:SHOWN_CHARACTERS]!r}; names that brokers accept have at most 249 characters"
        )


def check_partition(number: int, topic: str, parameter: str) -> None:
    """Raise ValueError for the number of a partition that no topic can have."""
    if not 0 <= number <= HIGHEST_PARTITION:
        raise ValueError(
            f"{parameter}: a partition of topic {topic!r:.100} must be from 0 to {HIGHEST_PARTITION}, got"
            f" {shown(number)};"
            " pass the number of a partition that the topic has"
        )


def _is_id(value: object) -> bool:
    """Return whether a value is the id of a topic, or None."""
    from uuid import UUID

    return value is None or isinstance(value, UUID)


def _hint(value: Any) -> str:
    """Return what to do about a value that is not an offset, as the end of a sentence. Empty for most values."""
    kind = type(value)
    if kind.__name__ == OffsetAndMetadata.__name__ and not isinstance(value, OffsetAndMetadata):
        return f" of {kind.__module__}; import it from kcodec"
    if kind.__name__ == "ListedOffset":  # of kcodec.cluster, which this module does not import
        if value.offset < 0:
            return ", which means that no record was found; call seek_to_end() to continue at the end"
        return f"; pass its attribute offset, which is {value.offset}"
    if value is None:
        return (
            "; offsets_for_times() returns None for a partition that has no record at or after the time; leave the"
            " partition out, or call seek_to_end() to continue at the end"
        )
    return ""


def check_offsets(offsets: Mapping[Any, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check a mapping {(topic, partition): offset or OffsetAndMetadata}. Raise TypeError or ValueError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets: expected {{TopicPartition(topic, partition): offset}}, got {offsets!r}; the offset is that of"
            " the next record to read, so one more than that of the last record"
        )
    checked = {}
    for key, value in offsets.items():
        try:
            topic, partition = key
        except (TypeError, ValueError):
            raise TypeError(f"offsets: expected a TopicPartition, got {key!r}") from None
        number = as_integer(partition)
        if not isinstance(topic, str) or number is None:
            raise TypeError(f"offsets: expected a TopicPartition, got {key!r}")
        check_topic(topic, "offsets")
        check_partition(number, topic, "offsets")
        found = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        offset = as_integer(found.offset)
        if offset is None:
            raise TypeError(
                f"offsets[{topic}-{number}]: expected an int or an OffsetAndMetadata, got {shown(value)}{_hint(value)}"
            )
        if not 0 <= offset <= INT64_MAX:
            bounds = "of 0 or more" if offset < 0 else f"of at most {INT64_MAX}"
            raise ValueError(f"offsets[{topic}-{number}]: expected an offset {bounds}, got {shown(offset)}")
        if not _is_id(found.topic_id):
            raise TypeError(f"offsets[{topic}-{number}]: topic_id must be a uuid.UUID or None, not {found.topic_id!r}")
        checked[TopicPartition(topic, number)] = found if type(found.offset) is int else replace(found, offset=offset)
    return checked
