# SPDX-License-Identifier: Apache-2.0
"""Storage of files: local, on a filesystem object (remote.py), or in one object of the caller.

A Storage lists directories and opens files; an OpenFile fills buffers with ranges of bytes. Nothing here depends on
batches: windows.py adds a SegmentFile. Failures raise OSError with the path, and FileNotFoundError for missing files.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

# Bytes of a file that one thread takes at a time.
LOCAL_RANGE_BYTES = 2 << 20
# The time of a change may be earlier than the clock by less than this.
CLOCK_NS = 50_000_000


# scheme://..., as pyarrow and fsspec write addresses; one letter is a drive.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def storage_at(path: Any, filesystem: Any = None) -> tuple[Storage, str]:
    """Return where `path` is, and its name there. What kcodec.open takes as path and filesystem.

    path: a path; an address (``s3://bucket/orders-0``), which pyarrow.fs resolves; a file object. filesystem: one of
    pyarrow.fs or fsspec, or a Storage. TypeError for anything else; ValueError for an
    empty path; ImportError if an address needs pyarrow.
    """
    if filesystem is None and not isinstance(path, str | os.PathLike):
        file = FileObject(path)
        return file, file.path
    path = os.fspath(path)
    if not isinstance(path, str):
        raise TypeError(f"a path must be a string, not {type(path).__name__}")
    if not path and filesystem is None:
        raise ValueError("the path is empty; name a file or a directory")
    storage: Storage = LOCAL
    if isinstance(filesystem, Storage):
        storage = filesystem
    elif filesystem is not None or ADDRESS.match(path):
        from kcodec.log import remote

        storage, path = remote.resolve(path) if filesystem is None else (remote.storage_of(filesystem), path)
    return storage, storage.within(path)


class FileVersion(NamedTuple):
    """What distinguishes a file from another one that has replaced it at the same path.

    device, number: Those of the file. A file that is created later may get the number of a deleted one.
    size, modified_ns: Size, and time of the last change. The log cleaner gives a new segment the time of an old one.
    seen_ns: Time at which this was read.
    """

    device: int
    number: int
    size: int
    modified_ns: int
    seen_ns: int

    def is_same(self, other: FileVersion | None) -> bool:
        """Return whether this is the same file, and was not changed."""
        return other is not None and self[:4] == other[:4]

    def is_replaced_by(self, other: FileVersion) -> bool:
        """Return whether `other`, which was seen later at the path, is another file. A file that was written or
        truncated in the meantime is the same one."""
        if self[:2] != other[:2]:
            return True
        return not self.is_same(other) and other.modified_ns < self.seen_ns - CLOCK_NS


def is_other_file(before: FileVersion | None, version: FileVersion | None) -> bool:
    """Return whether a file has replaced the one that had the version `before`. Unknown versions cannot show this."""
    return before is not None and version is not None and before.is_replaced_by(version)


def _version_of(found: os.stat_result) -> FileVersion | None:
    if not found.st_ino:  # Windows does not always report it
        return None
    return FileVersion(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, time.time_ns())


class Entry(NamedTuple):
    """One name in a directory. `size_in_bytes` is -1, and `version` None, if the storage does not report it."""

    name: str
    is_directory: bool
    size_in_bytes: int
    version: FileVersion | None = None


class OpenFile(ABC):
    """One file while it is read, by one thread at a time.

    likely_end: Hint that bytes from this position on are probably not needed. None: the end of the file.
    """

    likely_end: int | None = None

    @abstractmethod
    def size(self) -> int:
        """Return the number of bytes in the file: the present number if it is known, otherwise the number at the
        opening."""

    def version(self) -> FileVersion | None:
        """Return the version of the file; None if the storage does not report it."""
        return None

    @abstractmethod
    def read_into(self, window: memoryview, position: int) -> int:
        """Fill the window, or its first bytes, from `position`. Return the number of bytes, which is 0 only at the end
        of the file."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class Storage(ABC):
    """A storage of files. It is frozen, and can be pickled if its filesystem or file object can. Paths are strings, as
    in errors.

    range_bytes: Best number of bytes of a file that one of several threads reads at a time.
    """

    range_bytes: int = LOCAL_RANGE_BYTES

    @abstractmethod
    def entry(self, path: str) -> Entry | None:
        """Return what is at a path; None where nothing is."""

    @abstractmethod
    def list(self, directory: str) -> list[Entry]:
        """Return the entries of a directory, in no order. Raise FileNotFoundError if it does not exist."""

    @abstractmethod
    def open(self, path: str) -> OpenFile:
        """Open the file at a path. Raise FileNotFoundError if it does not exist."""

    def within(self, path: str) -> str:
        """Return the path of the caller in the form that this storage and errors use."""
        return path.rstrip("/") or path

    def join(self, directory: str, name: str) -> str:
        """Return the path of a name in a directory."""
        return posixpath.join(directory, name)

    def parent(self, path: str) -> str:
        """Return the directory that a path is in."""
        return posixpath.dirname(path.rstrip("/"))

    def name(self, path: str) -> str:
        """Return the last name of a path."""
        return posixpath.basename(path.rstrip("/"))

    def size(self, path: str) -> int:
        """Return the number of bytes in the file now."""
        found = self.entry(path)
        if found is None or found.is_directory:
            raise FileNotFoundError(f"{path}: no such file")
        if found.size_in_bytes < 0:
            raise OSError(f"{path}: the filesystem does not report the size of the file")
        return found.size_in_bytes

    def is_file(self, path: str) -> bool:
        """Return whether a file is there."""
        found = self.entry(path)
        return found is not None and not found.is_directory

    def is_directory(self, path: str) -> bool:
        """Return whether a directory is there."""
        found = self.entry(path)
        return found is not None and found.is_directory


# This machine


# Windows has neither these flags nor pread. With O_NONBLOCK, opening a FIFO without a writer returns; regular files
# ignore it.
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def _seek_and_read(descriptor: int, window: memoryview, position: int) -> int:
    """Read like pread on a system without it. This needs two calls, so only one thread may read at a time."""
    with _seeking:
        os.lseek(descriptor, position, os.SEEK_SET)
        data = os.read(descriptor, len(window))
    window[: len(data)] = data
    return len(data)


def _pread(descriptor: int, window: memoryview, position: int) -> int:
    return os.preadv(descriptor, [window], position)


_read_at = _pread if hasattr(os, "preadv") else _seek_and_read
_seeking = Lock()


def _not_regular(path: str, mode: int) -> OSError:
    """Return the error for an open file that is not a regular file, because reading a FIFO or a device may never
    end."""
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    return OSError(errno.EINVAL, f"expected a regular file, found {kind}", path)


class LocalFile(OpenFile):
    """A regular file, read by pread. It is not memory-mapped, because truncating a mapped file during a read causes a
    SIGBUS."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, OPEN_FLAGS)
        mode = os.fstat(self._descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(self._descriptor)
            raise _not_regular(path, mode)

    def size(self) -> int:
        """Return the number of bytes in the file now."""
        return os.fstat(self._descriptor).st_size

    def version(self) -> FileVersion | None:
        """Return the version of the file now."""
        return _version_of(os.fstat(self._descriptor))

    def read_into(self, window: memoryview, position: int) -> int:
        """Read with one call to the system."""
        try:
            return _read_at(self._descriptor, window, position)
        except OSError as error:
            error.filename = self._path
            raise

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


@dataclass(frozen=True)
class LocalStorage(Storage):
    """The local files. LOCAL is the only instance."""

    def __reduce__(self) -> str:
        return "LOCAL"

    def entry(self, path: str) -> Entry | None:
        """Return what is at a path; None where nothing is."""
        file = Path(path)
        try:
            found = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(file.name, stat.S_ISDIR(found.st_mode), found.st_size, _version_of(found))

    def list(self, directory: str) -> list[Entry]:
        """Return the entries of a directory. Leave out files that are removed meanwhile."""
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                    found.append(Entry(entry.name, entry.is_dir(), status.st_size, _version_of(status)))
                except FileNotFoundError:
                    continue
        return found

    def open(self, path: str) -> OpenFile:
        """Return the file at a path."""
        if sys.platform == "win32":
            return _Borrowed(FileObject(Path(path).open("rb", buffering=0)), is_owner=True)
        return LocalFile(path)

    def within(self, path: str) -> str:
        """Return the path without repeated and trailing separators."""
        return str(Path(path))

    def join(self, directory: str, name: str) -> str:
        """Return the path of a name in a directory."""
        return str(Path(directory, name))

    def parent(self, path: str) -> str:
        """Return the directory that a path is in, absolute."""
        return str(Path(path).absolute().parent)

    def name(self, path: str) -> str:
        """Return the last name of a path. For ``.``, return that of the working directory."""
        return Path(path).absolute().name


LOCAL = LocalStorage()


# One object


class FileObject(Storage):
    """A storage of one file: an object of the caller with ``seek`` and ``read``, or ``read_at(position, size)``.

    If it has both, ``read_at`` is used. The size is that of ``size`` (a number or a method), or is found by ``seek``.
    The object stays open, and reading moves its position. Threads take turns. The storage can be pickled if the object
    can. Raise TypeError if the object has neither.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        name = getattr(file, "name", None)
        self.path = name if isinstance(name, str) and name else f"<{type(file).__name__}>"
        self._prepare()

    def _prepare(self) -> None:
        self._lock = Lock()
        self._fill: Callable[[memoryview, int], int] = _filler(self.file)

    def __reduce__(self) -> tuple[type[FileObject], tuple[Any]]:
        return FileObject, (self.file,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileObject) and other.file is self.file

    def __hash__(self) -> int:
        return id(self.file)

    def entry(self, path: str) -> Entry | None:
        """Return the object, by its own name only."""
        return Entry(self.name(path), False, self.size_now()) if path == self.path else None

    def list(self, directory: str) -> list[Entry]:
        """Return no entries, because nothing is known next to the object."""
        return []

    def open(self, path: str) -> OpenFile:
        """Return the object."""
        if path != self.path:
            raise FileNotFoundError(f"{path}: the storage contains only {self.path}")
        return _Borrowed(self)

    def size_now(self) -> int:
        """Return the number of bytes in it."""
        with self._lock:
            size = getattr(self.file, "size", None)
            if callable(size):
                size = size()
            if size is None:
                size = self.file.seek(0, SEEK_END)
                size = self.file.tell() if size is None else size
        if not isinstance(size, int) or size < 0:
            raise TypeError(f"{self.path}: its size is {size!r}, not a number of bytes")
        return size

    def read_into(self, window: memoryview, position: int) -> int:
        """See OpenFile.read_into."""
        with self._lock:
            return with_place(reading(self.path, len(window), position), lambda: self._fill(window, position))


class _Borrowed(OpenFile):
    """A FileObject while it is read."""

    def __init__(self, storage: FileObject, *, is_owner: bool = False) -> None:
        self._storage = storage
        self._is_owner = is_owner

    def size(self) -> int:
        """Return the number of bytes in it now."""
        return self._storage.size_now()

    def read_into(self, window: memoryview, position: int) -> int:
        """Read from the object."""
        return self._storage.read_into(window, position)

    def close(self) -> None:
        """Leave the object open, unless it was opened here."""
        if self._is_owner:
            self._storage.file.close()


def _filler(file: Any) -> Callable[[memoryview, int], int]:
    """Return a function that fills a window from a position of an object."""
    read_at, seek, read = (getattr(file, name, None) for name in ("read_at", "seek", "read"))
    read_into = getattr(file, "readinto", None)
    has_seek = callable(seek) and (callable(read) or callable(read_into))
    # pyarrow's own files have a read_at of (size, position), and seek.
    is_arrow = has_seek and type(file).__module__.startswith("pyarrow")

    def fill_at(window: memoryview, position: int) -> int:
        return copy_into(window, file.read_at(position, len(window)))

    def fill_into(window: memoryview, position: int) -> int:
        file.seek(position)
        count = file.readinto(window)
        if not isinstance(count, int) or not 0 <= count <= len(window):
            raise TypeError(f"readinto() of the file returned {count!r}, expected at most {len(window)}")
        return count

    def fill(window: memoryview, position: int) -> int:
        file.seek(position)
        return copy_into(window, file.read(len(window)))

    if callable(read_at) and not is_arrow:
        return fill_at
    if not has_seek:
        raise TypeError(
            f"{type(file).__name__} is not a file: pass a path, or an object with seek and read, or read_at and size"
        )
    return fill_into if callable(read_into) else fill


def copy_into(window: memoryview, data: Any) -> int:
    """Copy data that was read into a window, and return its size. Raise TypeError if it is not bytes, or too long."""
    try:
        flat = memoryview(data).cast("B")
    except TypeError:
        raise TypeError(f"expected bytes, got {type(data).__name__}") from None
    if len(flat) > len(window):
        raise TypeError(f"the file returned {len(flat)} bytes, expected at most {len(window)}")
    window[: len(flat)] = flat
    return len(flat)


# The classes that an error of a foreign file keeps. All other errors become OSError.
_KEPT = (FileNotFoundError, PermissionError, TimeoutError)
Result = TypeVar("Result")


def with_place(place: str, call: Callable[[], Result]) -> Result:
    """Return the result of `call`. Convert its exceptions, except MemoryError, to an OSError that names path and
    position."""
    try:
        return call()
    except MemoryError:
        raise
    except Exception as error:
        kind = next((kept for kept in _KEPT if isinstance(error, kept)), OSError)
        raise kind(f"{place} failed: {error or type(error).__name__}") from error


def reading(path: str, size: int, position: int) -> str:
    """Return the text for path and position of a read, for with_place."""
    return f"{path}: reading {size} bytes from byte {position} on"
