# SPDX-License-Identifier: Apache-2.0
"""Reading of segment files by byte ranges into buffers.

If a file shrinks while it is read, TruncatedError is raised; a buffer never contains stale bytes.
"""

from __future__ import annotations

from copy import copy
from types import TracebackType

from kcodec.errors import TruncatedError
from kcodec.log.storage import LOCAL, FileVersion, Storage

# Between these a window stays in the second-level cache together with what is made of it; 8 MB and more fall out of it.
WINDOW_BYTES = 1 << 20
# A walk over headers reads this little where batches are large, and whole windows where they are small.
HOP_BYTES = 4 << 10
HOP_FROM = 64 << 10


class WindowBuffer:
    """Memory for windows, used again from file to file; it grows to the largest batch."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def window(self, size: int) -> memoryview:
        """`size` bytes of it."""
        if size > len(self._memory):
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


class SegmentFile:
    """One open file. Use it in a ``with`` block.

    path: within `storage`, and as errors name it. fresh: a new buffer for each window, for views that outlive it; else
    `buffer`, or one of its own, is used again and again. likely_end: a hint for object stores: where reading will end.
    """

    def __init__(
        self,
        path: str,
        storage: Storage = LOCAL,
        *,
        fresh: bool = False,
        buffer: WindowBuffer | None = None,
        likely_end: int | None = None,
    ) -> None:
        self.path = path
        self.storage = storage
        self._file = storage.open(path)
        self._file.likely_end = likely_end
        self._fresh = fresh
        self._buffer = buffer or WindowBuffer()

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def apart(self) -> SegmentFile:
        """Return the same open file with memory of its own: windows of one outlive reads of the other."""
        other = copy(self)
        other._buffer = WindowBuffer()
        return other

    def size(self) -> int:
        """Return the number of bytes in the file now; in an object store, when it was opened."""
        return self._file.size()

    def version(self) -> FileVersion | None:
        """Return the version of the open file; None if the storage does not report it."""
        return self._file.version()

    def read(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from byte `position` on, valid until the next read. Raise TruncatedError past its end."""
        window = memoryview(bytearray(size)) if self._fresh else self._buffer.window(size)
        filled = 0
        while filled < size:
            count = self._file.read_into(window[filled:], position + filled)
            if count == 0:
                raise TruncatedError(
                    f"the file ends at byte {position + filled}: it became shorter while it was read",
                    needed=size,
                    available=filled,
                    position=position,
                    path=self.path,
                )
            filled += count
        return window


class HeaderWindows:
    """Windows for a walk over headers: whole ones while batches are small, a hop to each header if they are large."""

    def __init__(self, file: SegmentFile, end: int) -> None:
        self._file = file
        self._end = end
        self._size = HOP_FROM
        self._read_to = 0

    def at(self, position: int, needed: int) -> memoryview:
        """Return the bytes from `position` on: `needed` of them or more, but none past the end."""
        if position - self._read_to > HOP_FROM:
            self._size = HOP_BYTES
        else:
            self._size = min(self._size * 4, WINDOW_BYTES)
        size = min(max(self._size, needed), self._end - position)
        self._read_to = position + size
        return self._file.read(position, size)
