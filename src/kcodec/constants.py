# SPDX-License-Identifier: Apache-2.0
"""Kafka's enumerations and sentinels.

A member has Kafka's number and the spelling of Kafka's configuration: ``Compression.ZSTD == 4``,
``Compression.ZSTD == "zstd"`` and ``Compression("zstd") is Compression.ZSTD`` are all true. Sources:
``CompressionType``, ``TimestampType``, ``IsolationLevel``, ``ControlRecordType``.
"""

from __future__ import annotations

from enum import IntEnum

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_PARTITION_LEADER_EPOCH = -1

# Names of Kafka's internal topics (`Topic`). Only brokers and controllers read the metadata log.
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

#: Of this package; brokers hear it in ApiVersions, pyproject.toml says the same.
__version__ = "0.1.0"


class _KafkaEnum(IntEnum):
    """An integer with Kafka's name: it compares equal to both, and prints as the name."""

    _label: str

    # The types are also those of a call for a member, by number or by label: Compression("zstd").
    def __new__(cls, number: int | str, label: str = "") -> _KafkaEnum:
        member = int.__new__(cls, number)
        member._value_ = int(member)
        member._label = label
        return member

    @property
    def label(self) -> str:
        """Kafka's spelling."""
        return self._label

    @classmethod
    def _missing_(cls, value: object) -> _KafkaEnum | None:
        for member in cls:
            if value == member.label:
                return member
        return None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.label == other
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Compression(_KafkaEnum):
    """Bits 0-2 of a batch's attributes; the names are those of ``compression.type``."""

    NONE = (0, "none")
    GZIP = (1, "gzip")
    SNAPPY = (2, "snappy")
    LZ4 = (3, "lz4")
    ZSTD = (4, "zstd")


class TimestampType(_KafkaEnum):
    """Bit 3 of a batch's attributes; the names are those of ``message.timestamp.type``."""

    NO_TIMESTAMP_TYPE = (-1, "NoTimestampType")
    CREATE_TIME = (0, "CreateTime")
    LOG_APPEND_TIME = (1, "LogAppendTime")


class IsolationLevel(_KafkaEnum):
    """The records that a reader receives; the names are those of ``isolation.level``."""

    READ_UNCOMMITTED = (0, "read_uncommitted")
    READ_COMMITTED = (1, "read_committed")


class ControlType(_KafkaEnum):
    """The type in the key of a control record. Types that are not listed are returned as numbers."""

    ABORT = (0, "ABORT")
    COMMIT = (1, "COMMIT")
    LEADER_CHANGE = (2, "LEADER_CHANGE")
    SNAPSHOT_HEADER = (3, "SNAPSHOT_HEADER")
    SNAPSHOT_FOOTER = (4, "SNAPSHOT_FOOTER")
    KRAFT_VERSION = (5, "KRAFT_VERSION")
    KRAFT_VOTERS = (6, "KRAFT_VOTERS")


class BatchRetention(_KafkaEnum):
    """What the log cleaner does with a batch (MemoryRecords.RecordFilter.BatchRetention); see filter_to."""

    DELETE = (0, "DELETE")
    RETAIN_EMPTY = (1, "RETAIN_EMPTY")
    DELETE_EMPTY = (2, "DELETE_EMPTY")
