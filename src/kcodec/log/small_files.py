# SPDX-License-Identifier: Apache-2.0
"""Small files of a partition that are read as a whole: indexes, snapshots and checkpoints."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

from kcodec.errors import LimitExceededError
from kcodec.log.storage import LOCAL, Storage
from kcodec.log.windows import SegmentFile

# Limits of one file, by what Kafka can write into it. An index is preallocated with segment.index.bytes, 10 MiB by
# default; even the largest segment (2 GiB) with an entry for every 256 bytes stays below 64 MiB. A snapshot has 46
# bytes a producer: 1.4 million producers of one partition. A checkpoint has a line for each partition of the broker:
# 16 MiB are 60,000 lines with the longest names, or 400,000 usual ones. leader-epoch-checkpoint has a line of about
# 12 bytes for each leader whose records are still in the log: 1 MiB are 80,000 leaders. partition.metadata and
# meta.properties have a few lines.
LIMITS = {
    "MAX_INDEX_BYTES": 64 << 20,
    "MAX_SNAPSHOT_BYTES": 64 << 20,
    "MAX_CHECKPOINT_BYTES": 16 << 20,
    "MAX_LEADER_EPOCHS_BYTES": 1 << 20,
    "MAX_PROPERTIES_BYTES": 64 << 10,
}
PIECE_BYTES = 1 << 20


def read_whole(path: str | os.PathLike[str], storage: Storage = LOCAL, limit: str = "MAX_INDEX_BYTES") -> bytes:
    """Return all bytes of a file. Raise LimitExceededError above the limit of that name in LIMITS."""
    name, most = os.fspath(path), LIMITS[limit]
    with SegmentFile(name, storage) as file:
        size = file.size()
        if size > most:
            raise LimitExceededError(
                f"the file has {size} bytes, expected at most {most} ({limit})",
                limit=limit,
                value=most,
                claimed=size,
                path=name,
            )
        whole = io.BytesIO()  # in pieces: a buffer of this size and its copy would need twice the memory
        for position in range(0, size, PIECE_BYTES):
            whole.write(file.read(position, min(PIECE_BYTES, size - position)))
        return whole.getvalue()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file atomically: it gets a temporary name in the same directory, and is then renamed."""
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
