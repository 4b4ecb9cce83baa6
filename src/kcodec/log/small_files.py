# SPDX-License-Identifier: Apache-2.0
"""Files beside a log that are read whole: indexes, snapshots, checkpoints. They have no records, and are small."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kcodec.errors import LimitExceededError
from kcodec.log.storage import LOCAL, Storage
from kcodec.log.windows import SegmentFile

# segment.index.bytes is 10 MiB by default, a snapshot has 46 bytes a producer, a checkpoint a line a partition: a file
# beyond this is none of them.
MAX_SMALL_FILE_BYTES = 256 << 20


def read_whole(path: str | os.PathLike[str], storage: Storage = LOCAL) -> bytes:
    """All bytes of a file. LimitExceededError above MAX_SMALL_FILE_BYTES."""
    name = os.fspath(path)
    with SegmentFile(name, storage) as file:
        size = file.size()
        if size > MAX_SMALL_FILE_BYTES:
            raise LimitExceededError(
                f"the file has {size} bytes, at most {MAX_SMALL_FILE_BYTES} are read",
                limit="MAX_SMALL_FILE_BYTES",
                value=MAX_SMALL_FILE_BYTES,
                claimed=size,
                path=name,
            )
        return bytes(file.read(0, size))


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that it is there whole or not at all: a temporary name beside it, then a rename."""
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
