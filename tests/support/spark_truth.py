# SPDX-License-Identifier: Apache-2.0
"""Compares rows of Spark with the records of Kafka's own consumer, and writes logs that Spark reads."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from golden_data import Partition, Truth, partitions, same_bytes, same_headers

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def golden(name: str, cluster: str = "tv2") -> Partition:
    """The captured partition of this name."""
    (found,) = (each for each in partitions() if each.name == name and each.cluster == cluster)
    return found


def consumed(partition: Partition, isolation_level: str) -> list[Truth]:
    """Return the records of the consumer. Raise an error if no consumer ran."""
    truth = partition.consumed(isolation_level)
    assert truth is not None, f"no consumer read {partition}"
    return truth


def milliseconds(shown: datetime) -> float:
    """A timestamp collected from a Spark whose session is in UTC, back as Kafka's number."""
    aware = shown if shown.tzinfo else shown.astimezone(UTC)
    return (aware - EPOCH) / timedelta(milliseconds=1)


def differences(rows: Sequence[Any], truth: Sequence[Truth], partition: Partition) -> list[str]:
    """What is not equal, row by row: key, value, topic, partition, offset, timestamp, timestampType, headers."""
    if len(rows) != len(truth):
        return [f"{partition}: {len(rows)} rows, Kafka's consumer delivered {len(truth)}"]
    wrong = []
    for row, reported in zip(rows, truth, strict=True):
        headers = [(header.key, header.value) for header in row.headers or ()]
        equal = {
            "offset": row.offset == reported["offset"],
            "timestamp": milliseconds(row.timestamp) == reported["timestamp"],
            "timestampType": row.timestampType == TIMESTAMP_TYPES[reported["timestampType"]],
            "key": same_bytes(row.key, reported["key"]),
            "value": same_bytes(row.value, reported["value"]),
            "headers": same_headers(headers, reported["headers"])
            and (row.headers is None) == (not reported["headers"]),
            "topic": row.topic == partition.topic,
            "partition": row.partition == partition.partition,
        }
        wrong += [f"{partition} at offset {reported['offset']}: {name}" for name, same in equal.items() if not same]
    return wrong


def by_partition(rows: Iterable[Any]) -> dict[tuple[str, int], list[Any]]:
    """Rows by topic and partition, each in order of arrival."""
    found: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        found.setdefault((row.topic, row.partition), []).append(row)
    return found


def batch_positions(data: bytes | bytearray) -> list[int]:
    """Where each batch of a log begins, and its end."""
    positions = [0]
    while positions[-1] < len(data):
        (length,) = struct.unpack_from(">i", data, positions[-1] + 8)
        positions.append(positions[-1] + 12 + length)
    return positions


def write_log(folder: Path, segments: dict[int, bytes]) -> Path:
    """A partition directory whose segments begin at these offsets."""
    folder.mkdir(parents=True)
    for base_offset, data in segments.items():
        (folder / f"{base_offset:020d}.log").write_bytes(data)
    return folder


def repeated(data: bytes, times: int) -> bytes:
    """A log's batches `times` over, base offsets rising (no checksum covers them)."""
    positions = batch_positions(data)
    offset, delta = (struct.unpack_from(f, data, positions[-2] + at)[0] for f, at in ((">q", 0), (">i", 23)))
    span = offset + delta + 1
    pieces = []
    for turn in range(times):
        for begin, end in itertools.pairwise(positions):
            batch = bytearray(data[begin:end])
            struct.pack_into(">q", batch, 0, struct.unpack_from(">q", batch)[0] + turn * span)
            pieces.append(bytes(batch))
    return b"".join(pieces)
