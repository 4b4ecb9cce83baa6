# SPDX-License-Identifier: Apache-2.0
"""A writer of ``.index`` and ``.timeindex`` files with the same entries as a broker; it uses nothing of kcodec.

    write_indexes(log_file, base_offset=None, *, interval=4096, preallocated=0)

One append a batch (LogSegment.append): an entry is due once more than `interval` bytes came since the last one, before
the batch it points to; a time index entry with it if the largest timestamp has grown; and one at the end
(LogSegment.onBecomeInactiveSegment). preallocated: bytes that both files are filled up to with zeros, as while in use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

HEADER = struct.Struct(">qi4xb4xhiqq")


def headers(file: IO[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """(position, size, last offset, largest timestamp) of each batch of magic 2."""
    position = 0
    while len(head := file.read(61)) == 61:
        base_offset, length, _magic, _attributes, last_delta, _base_timestamp, latest = HEADER.unpack_from(head)
        yield position, length + 12, base_offset + last_delta, latest
        position += length + 12
        file.seek(position)


def write_indexes(
    log_file: Path, base_offset: int | None = None, *, interval: int = 4096, preallocated: int = 0
) -> tuple[int, int]:
    """Write both files next to a ``.log``; how many entries each has."""
    base = int(log_file.stem) if base_offset is None else base_offset
    offsets, times = bytearray(), bytearray()
    since, latest, latest_offset, noted = 0, -1, base, -1
    with log_file.open("rb") as file:
        for position, size, last_offset, timestamp in headers(file):
            if timestamp > latest:
                latest, latest_offset = timestamp, last_offset
            if since > interval:
                offsets += struct.pack(">ii", last_offset - base, position)
                if latest > noted:
                    times += struct.pack(">qi", latest, latest_offset - base)
                    noted = latest
                since = 0
            since += size
    if latest > noted:
        times += struct.pack(">qi", latest, latest_offset - base)
    found = len(offsets) // 8, len(times) // 12
    for data, suffix in ((offsets, ".index"), (times, ".timeindex")):
        data += bytes(max(0, preallocated - len(data)))
        log_file.with_suffix(suffix).write_bytes(data)
    return found
