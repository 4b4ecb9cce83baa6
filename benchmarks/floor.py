# SPDX-License-Identifier: Apache-2.0
"""The C floor (floor.c, floor_encode.c), compiled on this machine and called through ctypes.

`Floor.decode(data)` fills columns that stay valid until the next call; `Floor.digest()` hashes them as
`contestants.digest` hashes an Arrow table. `FloorPair` decodes on two threads. `Limit` computes CRCs or copies bytes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / ".cache" / "bench"
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-shared", "-fPIC")
ERRORS = {-1: "structure", -2: "CRC", -3: "record", -4: "codec", -5: "memory"}
LIMITS = {"crc": 1, "memcpy": 2, "both": 3}

Bytes = npt.NDArray[np.uint8]


class FloorError(RuntimeError):
    """The floor cannot be built on this machine, or cannot decode the bytes."""


class Columns(ctypes.Structure):
    """struct columns of floor.c."""

    _fields_ = (
        ("records", ctypes.c_int64),
        ("headers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("offset", "timestamp")),
        *((name, ctypes.c_void_p) for name in ("key_offsets", "value_offsets", "header_lists")),
        *((name, ctypes.c_void_p) for name in ("name_offsets", "content_offsets")),
        *((name, ctypes.c_void_p) for name in ("key", "value", "name", "content")),
        *((name, ctypes.c_void_p) for name in ("key_valid", "value_valid", "content_valid")),
    )


class Input(ctypes.Structure):
    """struct input of floor_encode.c."""

    _fields_ = [
        ("records", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("timestamp", "key_ends", "value_ends")),
        *((name, ctypes.c_void_p) for name in ("key", "value", "key_valid", "value_valid")),
        *((name, ctypes.c_void_p) for name in ("lists", "name_ends", "content_ends")),
        *((name, ctypes.c_void_p) for name in ("name", "content", "content_valid")),
    ]


def compiler() -> str:
    """Return the C compiler: $CC, else gcc, by which the floor is defined, else cc."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        if name and shutil.which(name):
            return name
    raise FloorError("no C compiler found: install gcc")


@functools.cache
def library() -> ctypes.CDLL:
    """Return floor.c and floor_encode.c as a shared library, which is built again if a source is newer."""
    BUILD.mkdir(parents=True, exist_ok=True)
    sources, built = (HERE / "floor.c", HERE / "floor_encode.c"), BUILD / "floor.so"
    if not built.is_file() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        fresh = BUILD / f"floor.{os.getpid()}.so"
        subprocess.run([compiler(), *FLAGS, "-o", str(fresh), *map(str, sources), "-lpthread", "-ldl"], check=True)
        fresh.replace(built)
    loaded = ctypes.CDLL(str(built))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    prototypes: dict[str, tuple[object, list[object]]] = {
        "floor_new": (pointer, []),
        "floor_codecs": (ctypes.c_int, []),
        "floor_crc_kind": (ctypes.c_char_p, []),
        "floor_columns": (ctypes.POINTER(Columns), [pointer]),
        "floor_decode": (size, [pointer, ctypes.c_char_p, size]),
        "floor_limit": (size, [ctypes.c_char_p, size, pointer, ctypes.c_int]),
        "floor_pair_new": (pointer, []),
        "floor_pair_worker": (pointer, [pointer, ctypes.c_int]),
        "floor_decode_pair": (size, [pointer, ctypes.c_char_p, size]),
        "floor_pair_stop": (None, [pointer]),
        "floor_encode": (size, [ctypes.POINTER(Input), size, pointer]),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def codecs() -> set[str]:
    """Return the codecs whose library is installed on this machine."""
    bits = library().floor_codecs()
    return {name for i, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")) if bits >> i & 1}


def crc_kind() -> str:
    """Return a description of how the CRC is computed on this machine."""
    kind: bytes = library().floor_crc_kind()
    return kind.decode()


def checked(result: int) -> int:
    if result < 0:
        raise FloorError(f"the floor refuses these bytes: {ERRORS[result]}")
    return result


def view(address: int, dtype: str, count: int) -> npt.NDArray[np.generic]:
    """Return `count` items at an address, without a copy."""
    raw = (ctypes.c_char * (np.dtype(dtype).itemsize * count)).from_address(address) if count else b""
    return np.frombuffer(memoryview(raw), dtype=dtype, count=count)


def bits(address: int, count: int) -> Bytes:
    """Return an Arrow validity bitmap as one byte for each value."""
    packed = view(address, "u1", (count + 7) // 8)
    return np.unpackbits(packed.astype(np.uint8), count=count, bitorder="little")


def column_digest(columns: Columns) -> str:
    """Return the hash of the columns: see `contestants.digest`, which hashes the same sequence."""
    records, headers = columns.records, columns.headers
    digest = hashlib.sha256()
    for address in (columns.offset, columns.timestamp):
        digest.update(view(address, "i8", records).tobytes())

    def add(ends: int, data: int, valid: int | None, count: int) -> None:
        offsets = view(ends, "i4", count + 1)
        digest.update(np.ones(count, "u1").tobytes() if valid is None else bits(valid, count).tobytes())
        digest.update(np.diff(offsets.astype("i4")).astype("i4").tobytes())
        digest.update(view(data, "u1", int(offsets.astype("i8")[-1])).tobytes())

    add(columns.key_offsets, columns.key, columns.key_valid, records)
    add(columns.value_offsets, columns.value, columns.value_valid, records)
    digest.update(np.diff(view(columns.header_lists, "i4", records + 1).astype("i4")).tobytes())
    add(columns.name_offsets, columns.name, None, headers)
    add(columns.content_offsets, columns.content, columns.content_valid, headers)
    return digest.hexdigest()


class Floor:
    """The floor on one thread, with memory that is reused and kept until the process ends."""

    def __init__(self) -> None:
        self._library = library()
        self._worker = self._library.floor_new()
        self._decode = self._library.floor_decode

    def decode(self, data: bytes) -> int:
        """Decode all whole batches of `data` to the columns. Return the number of records."""
        return checked(self._decode(self._worker, data, len(data)))

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset column."""
        columns = self._library.floor_columns(self._worker).contents
        return view(columns.offset, "i8", columns.records).astype(np.int64)

    def digest(self) -> str:
        """Return the hash of the columns of the last call."""
        return column_digest(self._library.floor_columns(self._worker).contents)


class FloorPair:
    """The floor on two threads; the helper thread sleeps between calls and ends with `close`."""

    def __init__(self) -> None:
        self._library = library()
        self._pair = self._library.floor_pair_new()
        self._decode = self._library.floor_decode_pair

    def decode(self, data: bytes) -> int:
        """Decode as `Floor.decode` does. The columns of the two threads are not joined."""
        return checked(self._decode(self._pair, data, len(data)))

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset column of both threads, sorted."""
        parts = []
        for which in (0, 1):
            columns = self._library.floor_columns(self._library.floor_pair_worker(self._pair, which)).contents
            parts.append(view(columns.offset, "i8", columns.records).astype(np.int64))
        return np.sort(np.concatenate(parts))

    def close(self) -> None:
        """End the helper thread."""
        self._library.floor_pair_stop(self._pair)


class Limit:
    """The CRC of each batch, a memcpy of each batch into reused memory, or both: a lower bound for decoders to
    columns."""

    def __init__(self, what: str, size: int) -> None:
        self._what = LIMITS[what]
        self._limit = library().floor_limit
        self._target = ctypes.create_string_buffer(size + 64)
        self._address = ctypes.addressof(self._target)

    def run(self, data: bytes) -> int:
        """Run one pass over `data`."""
        result: int = self._limit(data, len(data), self._address, self._what)
        return result


class FloorEncoder:
    """Encodes Arrow columns to uncompressed batches of `per_batch` records with CRCs, into memory that it owns."""

    def __init__(self, table: Any, per_batch: int, room: int) -> None:
        self._kept: list[Any] = []
        self._input, self._per_batch = Input(records=len(table)), per_batch
        self._out = ctypes.create_string_buffer(room + 256)
        self._encode = library().floor_encode
        self._input.timestamp = self._address(table, "timestamp", 1)
        for name in ("key", "value"):
            self._column(table.column(name).combine_chunks(), name)
        if "headers" in table.column_names:
            lists = table.column("headers").combine_chunks()
            self._input.lists = lists.buffers()[1].address
            self._kept.append(lists)
            for name, child in (("name", lists.values.field(0)), ("content", lists.values.field(1))):
                self._column(child, name)

    def _address(self, table: Any, name: str, buffer: int) -> int:
        column = table.column(name).combine_chunks()
        self._kept.append(column)
        address: int = column.buffers()[buffer].address
        return address

    def _column(self, column: Any, name: str) -> None:
        valid, ends, data = column.buffers()
        padded = np.concatenate([np.frombuffer(data, "u1"), np.zeros(64, "u1")]) if data else np.zeros(64, "u1")
        self._kept += [column, padded]
        setattr(self._input, name, padded.ctypes.data)
        setattr(self._input, f"{name}_ends", ends.address)
        if name != "name" and column.null_count:
            setattr(self._input, f"{name}_valid", valid.address)

    def run(self) -> int:
        """Encode everything once. Return the number of bytes written."""
        written: int = self._encode(ctypes.byref(self._input), self._per_batch, self._out)
        return written

    def result(self) -> bytes:
        """Encode everything and return the bytes."""
        written = self.run()
        return self._out.raw[:written]
