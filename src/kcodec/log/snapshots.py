# SPDX-License-Identifier: Apache-2.0
"""Producer snapshots (``.snapshot``): the state of each producer at the offset in the file's name.

Layout (ProducerSnapshot.json, ProducerStateManager.writeSnapshot), big-endian: int16 version 1, uint32 CRC-32C of the
rest, int32 count, and for each producer int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset
delta, int64 timestamp, int32 coordinator epoch, int64 first offset of its open transaction or -1. All releases of Kafka
since 0.11 use this layout. A broker remembers five batches per producer; the file has only the last.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from kcodec._fast import crc32c
from kcodec.errors import CorruptBatchError, TruncatedError, UnsupportedError
from kcodec.log.indexes import named_offset
from kcodec.log.small_files import read_whole, write_whole
from kcodec.log.storage import LOCAL, Storage

VERSION = 1
HEAD = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")
CRC_FROM = 6
SEQUENCE_RANGE = 1 << 31


@dataclass(frozen=True)
class ProducerState:
    """The state of one producer, by which a broker recognizes duplicates and gaps.

    producer_id, producer_epoch: Identity of the producer.
    last_sequence, last_offset, offset_delta: Of its last data batch; -1, -1 and 0 if unknown, as after a marker that
                       raised the epoch.
    timestamp:         Of its last batch or marker, in ms.
    coordinator_epoch: Of its last marker; -1 without one.
    current_transaction_first_offset: First offset of the open transaction; None without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int | None

    @property
    def first_sequence(self) -> int:
        """First sequence number of its last data batch; -1 if unknown. 0 follows 2147483647."""
        if self.last_sequence < 0:
            return -1
        return (self.last_sequence - self.offset_delta) % SEQUENCE_RANGE

    def __repr__(self) -> str:
        last = "no batch" if self.last_offset < 0 else f"sequence {self.last_sequence} at offset {self.last_offset}"
        first = self.current_transaction_first_offset
        opened = "" if first is None else f", transaction open since offset {first}"
        return f"<ProducerState producer_id={self.producer_id}/{self.producer_epoch} {last}{opened}>"


_STORED = attrgetter(*(field.name for field in fields(ProducerState)[:-1]))


@dataclass(frozen=True)
class ProducerSnapshot:
    """A ``.snapshot`` file: the states of producers before an offset.

    path:         The file.
    offset:       From the file's name; None for another name.
    version, crc: Header fields of the file.
    producers:    A ProducerState for each producer.
    """

    path: str
    offset: int | None
    version: int
    crc: int
    producers: tuple[ProducerState, ...]

    def __repr__(self) -> str:
        return f"<ProducerSnapshot at offset {self.offset}: {len(self.producers)} producers>"


def read_snapshot(path: str | os.PathLike[str], storage: Storage = LOCAL) -> ProducerSnapshot:
    """Return the producers in a ``.snapshot`` file, whose CRC and size are verified.

    path, storage: As in `read_offset_index`.

    Raise TruncatedError if the file is too short, UnsupportedError for another version, and CorruptBatchError for a
    wrong CRC or extra bytes.
    """
    version, crc, states = snapshot_states(path, storage)
    name = os.fspath(path)
    return ProducerSnapshot(name, named_offset(name), version, crc, tuple(states))


def snapshot_states(path: str | os.PathLike[str], storage: Storage = LOCAL) -> tuple[int, int, Iterator[ProducerState]]:
    """Return the version, the CRC and the producers as `read_snapshot` reads them, the producers one by one.

    Raise the same errors at once: the whole file is verified before the first producer is made.
    """
    name, data = os.fspath(path), read_whole(path, storage, "MAX_SNAPSHOT_BYTES")
    if len(data) < HEAD.size:
        raise _cut(name, HEAD.size, len(data), "a snapshot")
    version, crc, count = HEAD.unpack_from(data)
    if version != VERSION:
        raise UnsupportedError(f"byte 0: version {version} of a snapshot, expected {VERSION}", path=name)
    computed = crc32c(memoryview(data)[CRC_FROM:])
    if computed != crc:
        reason = f"byte 2: the stored CRC {crc:#010x} does not match the CRC of the bytes, {computed:#010x}"
        raise CorruptBatchError(reason, stored_crc=crc, computed_crc=computed, path=name)
    size = HEAD.size + count * ENTRY.size
    if count < 0 or len(data) > size:
        reason = f"byte 6: {count} producers take {max(size, HEAD.size)} bytes, but the file has {len(data)}"
        raise CorruptBatchError(reason, stored_crc=crc, computed_crc=computed, path=name)
    if len(data) < size:
        raise _cut(name, size, len(data), f"a snapshot of {count} producers")
    return version, crc, map(_state, ENTRY.iter_unpack(memoryview(data)[HEAD.size :]))


def pack_snapshot(producers: Iterable[ProducerState]) -> bytes:
    """Return the bytes of a ``.snapshot`` file, with the producers in this order (Kafka's order is arbitrary)."""
    stored = ((*_STORED(state), state.current_transaction_first_offset) for state in producers)
    entries = [ENTRY.pack(*values, -1 if first_offset is None else first_offset) for *values, first_offset in stored]
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def write_snapshot(path: str | os.PathLike[str], producers: Iterable[ProducerState]) -> None:
    """Write a ``.snapshot`` file that a broker loads; it appears complete or not at all.

    path: The file. producers: A ProducerState for each producer.
    """
    write_whole(path, pack_snapshot(producers))


def _state(values: tuple[int, int, int, int, int, int, int, int]) -> ProducerState:
    return ProducerState(*values[:7], None if values[7] < 0 else values[7])


def _cut(path: str, needed: int, available: int, what: str) -> TruncatedError:
    reason = f"the file has {available} bytes, but {what} takes {needed}"
    return TruncatedError(reason, needed=needed, available=available, path=path)
