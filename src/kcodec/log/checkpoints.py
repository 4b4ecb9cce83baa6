# SPDX-License-Identifier: Apache-2.0
"""``log-start-offset-checkpoint`` of a log directory: where DeleteRecords moved the start of a partition.

Text (CheckpointFile): a line with the version 0, a line with the number of entries, then "topic partition offset" each.
It lists only partitions whose start was moved that way. The other checkpoint files are not read: the high watermark of
``replication-offset-checkpoint`` lags by seconds.
"""

from __future__ import annotations

from pathlib import Path

LOG_START_OFFSETS = "log-start-offset-checkpoint"
VERSION = "0"


def read_offsets(path: Path) -> dict[tuple[str, int], int]:
    """The offsets in a checkpoint file by (topic, partition). ValueError, naming file and line, for what is none."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].strip() != VERSION:
        raise ValueError(
            f"{path}: line 1: version {lines[0] if lines else ''!r} of a checkpoint file, expected {VERSION}"
        )
    count = int(lines[1]) if len(lines) > 1 and lines[1].strip().isdecimal() else -1
    entries = [line for line in lines[2:] if line.strip()]
    if count != len(entries):
        raise ValueError(f"{path}: line 2: {lines[1] if len(lines) > 1 else ''!r} entries but {len(entries)} follow")
    offsets = {}
    for number, line in enumerate(entries, 3):
        fields = line.split()
        try:
            topic, partition, offset = fields
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise ValueError(f"{path}: line {number}: {line!r} is not 'topic partition offset'") from None
    return offsets


def log_start_offset(log_directory: Path, topic: str, partition: int) -> int | None:
    """What the log directory's checkpoint says of this partition; None if it says nothing, or there is no such file."""
    path = log_directory / LOG_START_OFFSETS
    return read_offsets(path).get((topic, partition)) if path.is_file() else None
