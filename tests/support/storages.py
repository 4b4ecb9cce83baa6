# SPDX-License-Identifier: Apache-2.0
"""Storages other than local files, for the tests of kcodec.log. Each counts its requests.

Store(root, most_bytes=None, latency=0.0)   a pyarrow.fs handler over a folder: .requests is a list of (path, position,
                                            size); most_bytes: no read gives more; latency: seconds a request takes;
                                            .fail(path, position, error) raises at the read that covers that byte
filesystem(store) -> pyarrow.fs.PyFileSystem
ReadAt(data, name=None)                     an object with read_at(position, size), size and .requests; pickles
SeekOnly(data)                              an object with seek, tell and read, and nothing else
Buckets(root)                               what kcodec uses of an fsspec filesystem
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow import PythonFile, fs


class _Opened(io.RawIOBase):
    """One file of a Store."""

    def __init__(self, store: Store, path: str) -> None:
        # `close` is also called if the file does not exist. Since Python 3.13, a warning appears if it fails.
        self._file: BinaryIO = io.BytesIO()
        super().__init__()
        self._store = store
        self._path = path
        self._file = Path(store.root, path).open("rb")  # noqa: SIM115  closed by close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def size(self) -> int:
        return Path(self._store.root, self._path).stat().st_size

    def read(self, size: int = -1) -> bytes:
        position = self._file.tell()
        self._store.asked(self._path, position, size)
        return self._file.read(size if self._store.most_bytes is None else min(size, self._store.most_bytes))

    def close(self) -> None:
        self._file.close()
        super().close()


class Store(fs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, root: Path, most_bytes: int | None = None, latency: float = 0.0) -> None:
        self.root = root
        self.most_bytes = most_bytes
        self.latency = latency
        self.requests: list[tuple[str, int, int]] = []
        self.failures: dict[str, tuple[int, Exception]] = {}
        self.closed = 0

    def fail(self, path: str, position: int, error: Exception) -> None:
        self.failures[path] = (position, error)

    def asked(self, path: str, position: int, size: int) -> None:
        self.requests.append((path, position, size))
        if self.latency:
            time.sleep(self.latency)
        at, error = self.failures.get(path, (-1, None))
        if error is not None and position <= at < position + size:
            raise error

    @property
    def bytes_read(self) -> int:
        return sum(size for _, _, size in self.requests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and other.root == self.root

    def get_type_name(self) -> str:
        return "store"

    def normalize_path(self, path: str) -> str:
        return path

    def _info(self, path: str) -> fs.FileInfo:
        place = self.root / path
        if place.is_dir():
            return fs.FileInfo(path, fs.FileType.Directory)
        if place.is_file():
            return fs.FileInfo(path, fs.FileType.File, size=place.stat().st_size)
        return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        folder = self.root / selector.base_dir
        if not folder.is_dir():
            raise FileNotFoundError(selector.base_dir)
        return [self._info(str(path.relative_to(self.root))) for path in folder.iterdir()]

    def open_input_file(self, path: str) -> PythonFile:
        return PythonFile(_Opened(self, path), mode="r")

    def _refuse(self, *given: Any, **named: Any) -> Any:
        raise OSError("a reader has no business here")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_input_stream = open_output_stream = open_append_stream = _refuse


def filesystem(store: Store) -> fs.PyFileSystem:
    return fs.PyFileSystem(store)


class ReadAt:
    def __init__(self, data: bytes, name: str | None = None) -> None:
        self.data = data
        self.size = len(data)
        if name is not None:
            self.name = name
        self.requests: list[tuple[int, int]] = []

    def read_at(self, position: int, size: int) -> bytes:
        self.requests.append((position, size))
        return self.data[position : position + size]


class SeekOnly:
    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int) -> bytes:
        return self._file.read(size)


class Buckets:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, int, int]] = []
        self.forgotten = 0

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.removeprefix("buckets://").rstrip("/")

    def invalidate_cache(self, path: str | None = None) -> None:
        self.forgotten += 1

    def info(self, path: str) -> dict[str, Any]:
        place = self.root / path
        if not place.exists():
            raise FileNotFoundError(path)
        if place.is_dir():
            return {"name": path, "type": "directory", "size": 0}
        return {"name": path, "type": "file", "size": place.stat().st_size}

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        return [self.info(f"{path}/{entry.name}".lstrip("/")) for entry in (self.root / path).iterdir()]

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.requests.append((path, start, end - start))
        with Path(self.root, path).open("rb") as file:
            file.seek(start)
            return file.read(end - start)
