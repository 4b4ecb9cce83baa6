# SPDX-License-Identifier: Apache-2.0
"""Storage on filesystem objects of pyarrow.fs and fsspec. Files of object stores are read by ranges.

A request to an object store takes as long as the transfer of some megabytes, and one connection has a fraction of the
bandwidth of several. A file is therefore read in blocks of 1 MB, then 4 MB while they are consecutive. Gaps smaller
than a block are read too, and up to three blocks of a file that is read sequentially are fetched ahead in parallel. For
each open file this takes at most four blocks of memory and one window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcodec.log.storage import LOCAL, Entry, OpenFile, Storage, reading, with_place
from kcodec.log.windows import WINDOW_BYTES

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

FIRST_BLOCK_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20
BLOCK_GROWTH = 4
AHEAD_BLOCKS = 3

Fetch = Callable[[int, int], Any]


def storage_of(filesystem: Any) -> Storage:
    """Return the storage on a filesystem of pyarrow.fs or fsspec. Raise TypeError for anything else."""
    if type(filesystem).__module__.startswith("pyarrow"):
        from pyarrow import fs

        if isinstance(filesystem, fs.FileSystem):
            return LOCAL if type(filesystem) is fs.LocalFileSystem else ArrowStorage(filesystem)
    if all(callable(getattr(filesystem, name, None)) for name in ("info", "ls", "cat_file", "_strip_protocol")):
        return FsspecStorage(filesystem)
    raise TypeError(f"filesystem must be one of pyarrow.fs or fsspec, not {type(filesystem).__name__}")


def resolve(address: str) -> tuple[Storage, str]:
    """Resolve an address such as ``s3://bucket/orders-0`` with pyarrow. Return the storage, and the path in it."""
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(address)
    return storage_of(filesystem), path


# Blocks


class BlockFile(OpenFile):
    """A file that is read in blocks. `fetch(position, size)` returns its bytes, fewer at the end of the file. Its size
    is fixed.

    Raise TypeError, as an OSError with path and position, if `fetch` returns something else than bytes, or too many
    bytes.
    """

    def __init__(self, path: str, size: int, fetch: Fetch, close: Callable[[], None] | None = None) -> None:
        self._path = path
        self._size = size
        self._fetch = fetch
        self._close = close
        self._kept = self._block = memoryview(b"")
        self._begin = 0  # of the block; the kept rest of the previous block ends here
        self._step = 0
        self._ahead: deque[tuple[int, Future[memoryview]]] = deque()  # (begin, block), one behind the other
        self._executor: ThreadPoolExecutor | None = None

    def size(self) -> int:
        """Return the number of bytes in the file when it was opened."""
        return self._size

    def read_into(self, window: memoryview, position: int) -> int:
        """Read from the current block, or from the next one."""
        if position >= self._size or not len(window):
            return 0
        if not self._begin - len(self._kept) <= position < self._begin + len(self._block):
            self._load(position, len(window))
        at = position - self._begin
        part = (self._block[at:] if at >= 0 else self._kept[len(self._kept) + at :])[: len(window)]
        window[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Wait for requests in flight, and close the file."""
        self._kept = self._block = memoryview(b"")
        self._ahead.clear()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        if self._close is not None:
            self._close()

    def _load(self, position: int, wanted: int) -> None:
        """Load the block that begins at `position`, or use a block fetched ahead that contains it."""
        end = self._begin + len(self._block)
        follows = 0 <= position - end < BLOCK_BYTES
        self._step = min(self._step * BLOCK_GROWTH, BLOCK_BYTES) if follows and self._step else FIRST_BLOCK_BYTES
        # A batch that is cut off at the end of a block is requested again together with the next block.
        self._kept = memoryview(bytes(self._block[-WINDOW_BYTES:])) if position == end else memoryview(b"")
        self._block = memoryview(b"")
        if not self._take_ahead(position):
            length = self._length(position, wanted)
            if self._ahead:
                length = min(length, self._ahead[0][0] - position)
            self._block, self._begin = self._read(position, length), position
        if self._begin != end:
            self._kept = memoryview(b"")
        if follows and self._step == BLOCK_BYTES:
            self._read_ahead()

    def _take_ahead(self, position: int) -> bool:
        """Return whether a block fetched ahead contains this position. Drop blocks before it, and blocks far from
        it."""
        while self._ahead and not position < self._ahead[0][0] <= position + BLOCK_BYTES:
            begin, request = self._ahead.popleft()
            if begin <= position < begin + BLOCK_BYTES:
                block = request.result()
                if position - begin < len(block):
                    self._block, self._begin = block, begin
                    return True
            request.cancel()
        return False

    def _read_ahead(self) -> None:
        """Fetch one block more ahead than before, up to AHEAD_BLOCKS."""
        begin = self._begin + len(self._block)
        if self._ahead:
            begin = self._ahead[-1][0] + BLOCK_BYTES
        end = self._size if self.likely_end is None else min(self._size, self.likely_end)
        for _ in range(2):
            if begin >= end or len(self._ahead) == AHEAD_BLOCKS or not len(self._block):
                return
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self._executor = ThreadPoolExecutor(AHEAD_BLOCKS, thread_name_prefix="kcodec-read-ahead")
            size = min(BLOCK_BYTES, end - begin)
            self._ahead.append((begin, self._executor.submit(self._read, begin, size)))
            begin += size

    def _length(self, position: int, wanted: int) -> int:
        """Return the number of bytes to fetch from here: all bytes that are likely to be needed if they are at most a
        block, otherwise a step."""
        end = self._size if self.likely_end is None else min(self._size, self.likely_end)
        rest = end - position
        if self.likely_end is not None and 0 < rest <= BLOCK_BYTES:
            return rest
        return min(max(self._step, min(wanted, BLOCK_BYTES)), rest if rest > 0 else self._size - position)

    def _read(self, position: int, size: int) -> memoryview:
        def read() -> memoryview:
            data = self._fetch(position, size)
            try:
                block = memoryview(data).cast("B")
            except TypeError:
                raise TypeError(f"expected bytes, got {type(data).__name__}") from None
            if len(block) > size:
                raise ValueError(f"the filesystem returned {len(block)} bytes, expected at most {size}")
            return block

        return with_place(reading(self._path, size, position), read)


# Filesystems


def _from_root(path: str) -> str:
    """Return a path in the form of these filesystems, whose root is the empty path."""
    return "" if path == "." else path


@dataclass(frozen=True)
class ArrowStorage(Storage):
    """A filesystem of pyarrow.fs: S3, Azure, GCS, HDFS, a subtree of one, or a Python one."""

    filesystem: Any = field(hash=False)
    range_bytes = BLOCK_BYTES

    def entry(self, path: str) -> Entry | None:
        """Return what is at a path; None where nothing is."""
        found = with_place(f"{path}: looking for it", lambda: self.filesystem.get_file_info(_from_root(path)))
        return None if found.type.name == "NotFound" else self._entry(found)

    def list(self, directory: str) -> list[Entry]:
        """Return what is in a directory."""
        from pyarrow import fs

        selector = fs.FileSelector(_from_root(directory))
        found = with_place(f"{directory}: listing it", lambda: self.filesystem.get_file_info(selector))
        return [self._entry(info) for info in found]

    def open(self, path: str) -> OpenFile:
        """Return the file at a path, its size taken now."""
        file = with_place(f"{path}: opening it", lambda: self.filesystem.open_input_file(path))
        return BlockFile(path, file.size(), lambda position, size: file.read_at(size, position), file.close)

    def _entry(self, info: Any) -> Entry:
        return Entry(info.base_name, info.type.name == "Directory", info.size or 0)


@dataclass(frozen=True)
class FsspecStorage(Storage):
    """A filesystem of fsspec. Its cache of listings is dropped before each look-up."""

    filesystem: Any = field(hash=False)
    range_bytes = BLOCK_BYTES

    def within(self, path: str) -> str:
        """Return the path without its ``s3://``."""
        return str(self.filesystem._strip_protocol(path))

    def entry(self, path: str) -> Entry | None:
        """Return what is at a path; None where nothing is."""
        try:
            return self._entry(self._asked(self.filesystem.info, path, "looking for it"))
        except FileNotFoundError:
            return None

    def list(self, directory: str) -> list[Entry]:
        """Return what is in a directory."""
        return [self._entry(info) for info in self._asked(self.filesystem.ls, directory, "listing it", detail=True)]

    def open(self, path: str) -> OpenFile:
        """Return the file at a path, its size taken now."""
        size = self.size(path)
        return BlockFile(
            path, size, lambda position, count: self.filesystem.cat_file(path, start=position, end=position + count)
        )

    def _asked(self, ask: Callable[..., Any], path: str, what: str, **options: Any) -> Any:
        forget = getattr(self.filesystem, "invalidate_cache", None)
        if callable(forget):
            forget(path)
        return with_place(f"{path}: {what}", lambda: ask(_from_root(path), **options))

    def _entry(self, info: dict[str, Any]) -> Entry:
        size = info.get("size")
        return Entry(self.name(info["name"]), info["type"] == "directory", size if isinstance(size, int) else -1)
