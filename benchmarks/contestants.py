# SPDX-License-Identifier: Apache-2.0
"""The contestants: each reads the bytes of a fetch, checks every CRC, and returns five columns.

kcodec, aiokafka and kafka-python return a pyarrow record batch or table, whose creation is included in their time. The
C floor returns its own columns. `digest` hashes columns in one canonical order, so that all of them can be compared:
offset, timestamp; then validity, lengths and bytes of key, value, header name and header value; and list lengths.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import floor
import numpy as np
import pyarrow as pa

TIMESTAMP = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])


@dataclass(frozen=True)
class Contestant:
    """A contestant. `decode` is measured; `digest` hashes its result afterwards."""

    name: str
    decode: Callable[[bytes], Any]
    digest: Callable[[Any], str]
    codecs: frozenset[str] = frozenset(("none", "gzip", "snappy", "lz4", "zstd"))


def flat(records: Any) -> pa.RecordBatch:
    """Convert a client's MemoryRecords (aiokafka and kafka-python share its API) to Arrow, and check every CRC.

    The fields of each record are appended to lists at once, and header lists are flattened. This is the quickest of the
    simple methods tried: collecting the records first, with one comprehension for each column, takes 10 % to 40 %
    longer, mostly because of garbage collection.
    """
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    ends, names = [0], list[str]()
    contents: list[bytes | None] = []
    add_offset, add_timestamp, add_key, add_value = offsets.append, timestamps.append, keys.append, values.append
    add_end, add_name, add_content = ends.append, names.append, contents.append
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise ValueError(f"wrong CRC in the batch at offset {batch.base_offset}")
        for record in batch:
            add_offset(record.offset)
            add_timestamp(record.timestamp)
            add_key(record.key)
            add_value(record.value)
            for name, content in record.headers:
                add_name(name)
                add_content(content)
            add_end(len(names))
    entries = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(contents, pa.binary())], fields=list(HEADER)
    )
    columns = [
        pa.array(offsets, pa.int64()),
        pa.array(timestamps, TIMESTAMP),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["offset", "timestamp", "key", "value", "headers"])


def decode_aiokafka(data: bytes) -> pa.RecordBatch:
    from aiokafka.record.memory_records import MemoryRecords

    return flat(MemoryRecords(data))


def decode_kafka_python(data: bytes) -> pa.RecordBatch:
    from kafka.record import MemoryRecords

    return flat(MemoryRecords(data))


def to_arrow(decoded: Any) -> pa.RecordBatch | pa.Table:
    """Convert a decoded result of kcodec to pyarrow: a record batch, or a table if there are several chunks."""
    return pa.record_batch(decoded) if len(decoded.chunks) == 1 else pa.table(decoded)


def decode_kcodec(data: bytes) -> pa.RecordBatch | pa.Table:
    import kcodec

    return to_arrow(kcodec.decode(data))


def binary_parts(array: Any) -> Iterable[bytes]:
    """Yield validity, lengths and bytes of a binary or string array, where nulls have length 0."""
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype="u1")
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.binary())
    buffers = array.buffers()
    ends = np.frombuffer(buffers[1], "i4", len(array) + 1, array.offset * 4) if len(array) else np.zeros(1, "i4")
    data = buffers[2].to_pybytes()[ends[0] : ends[-1]] if buffers[2] is not None else b""
    return valid.tobytes(), np.diff(ends).astype("i4").tobytes(), data


def whole(table: pa.Table, name: str) -> Any:
    """Return a column as one array."""
    column = table.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def digest(result: pa.RecordBatch | pa.Table) -> str:
    """Return the hash of an Arrow result, which is equal for all contestants with equal columns."""
    table = pa.Table.from_batches([result]) if isinstance(result, pa.RecordBatch) else result
    hashed = hashlib.sha256()
    for name in ("offset", "timestamp"):
        hashed.update(np.asarray(whole(table, name).cast(pa.int64()), dtype="i8").tobytes())
    headers = whole(table, "headers")
    entries = headers.flatten()
    for part in (*binary_parts(whole(table, "key")), *binary_parts(whole(table, "value"))):
        hashed.update(part)
    lengths = np.diff(np.asarray(headers.offsets, dtype="i4")) if len(headers) else np.zeros(0, "i4")
    hashed.update(lengths.astype("i4").tobytes())
    for field in ("key", "value"):
        for part in binary_parts(entries.field(field)):
            hashed.update(part)
    return hashed.hexdigest()


def floor_contestant() -> Contestant:
    """Return the C floor as a contestant."""
    own = floor.Floor()
    return Contestant("floor", own.decode, lambda _: own.digest(), frozenset(floor.codecs()))


def kafka_python_contestant() -> Contestant:
    """Return kafka-python, with the codecs whose packages are installed (for snappy it needs python-snappy)."""
    from kafka import codec

    found = {name for name in ("gzip", "snappy", "lz4", "zstd") if getattr(codec, f"has_{name}")()}
    return Contestant("kafka-python", decode_kafka_python, digest, frozenset({"none", *found}))


def has_kcodec() -> bool:
    """Return whether kcodec is built. The other contestants can be measured without it."""
    return importlib.util.find_spec("kcodec") is not None and importlib.util.find_spec("kcodec._fast") is not None


def contestants(names: Iterable[str]) -> list[Contestant]:
    """Return the contestants of these names, in this order. Raise ValueError for an unknown name."""
    known: dict[str, Callable[[], Contestant]] = {
        "kcodec": lambda: Contestant("kcodec", decode_kcodec, digest),
        "floor": floor_contestant,
        "aiokafka": lambda: Contestant("aiokafka", decode_aiokafka, digest),
        "kafka-python": kafka_python_contestant,
    }
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no contestant {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name]() for name in names]


def versions() -> dict[str, str]:
    """Return the versions of the packages and libraries that are installed."""
    found = {}
    for name in (
        "kcodec",
        "aiokafka",
        "kafka-python",
        "confluent-kafka",
        "pyspark",
        "cramjam",
        "pyarrow",
        "zstandard",
        "lz4",
        "isal",
        "crc32c",
        "numpy",
    ):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
