# SPDX-License-Identifier: Apache-2.0
"""What the Python readers of files are fuzzed with: a function over bytes that raises where a property does not hold.

    small_files    the first byte chooses the file; read as that, bytes give a value or one of kcodec's errors
    lying_index    an offset index of any bytes next to a log: each offset is found where it is without the index

`TARGETS` maps a name to its function, `SEEDS` to what it starts from.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from batch_writer import RecordSpec, build_batch

import kcodec
from kcodec import log
from kcodec.errors import DecodeError
from kcodec.log.seek import position_of_offset
from kcodec.log.segment import Segment

BASE_OFFSET = 1000
OFFSETS = range(BASE_OFFSET - 1, BASE_OFFSET + 95)
OFFSET_STEP = 16


@cache
def folder() -> Path:
    """A place for files, in memory where there is one; gone with the process."""
    shared = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="kcodec-fuzz-", dir=shared if shared.is_dir() else None)
    import atexit

    atexit.register(shutil.rmtree, made, True)
    return Path(made)


def _written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------------------------------------------------- small files


def _offset_index(data: bytes) -> None:
    index = log.read_offset_index(_written("00000000000000000042.index", data))
    assert len(list(index)) == len(index) <= len(data) // 8
    for entry, (relative, position) in zip(index, struct.iter_unpack(">ii", data[: 8 * len(index)]), strict=True):
        assert entry == (42 + relative, position)
    assert not data[8 * len(index) : len(data) // 8 * 8].strip(b"\0")


def _time_index(data: bytes) -> None:
    index = log.read_time_index(_written("00000000000000000042.timeindex", data))
    for entry, (timestamp, relative) in zip(index, struct.iter_unpack(">qi", data[: 12 * len(index)]), strict=True):
        assert entry == (timestamp, 42 + relative)


def _transaction_index(data: bytes) -> None:
    index = log.read_transaction_index(_written("00000000000000000042.txnindex", data))
    for entry, values in zip(index, struct.iter_unpack(">hqqqq", data[: 34 * len(index)]), strict=True):
        assert tuple(entry) == values
        assert entry.version == 0


def _snapshot(data: bytes) -> None:
    snapshot = log.read_snapshot(_written("00000000000000000042.snapshot", with_snapshot_crc(data)))
    again = log.pack_snapshot(
        snapshot.producers
    )  # any negative first offset means that no offset is set, and is written as -1
    assert log.read_snapshot(_written("00000000000000000042.snapshot", again)).producers == snapshot.producers
    assert len(again) == len(data)


def with_snapshot_crc(data: bytes) -> bytes:
    """The CRC made right, so that what is behind it is reached."""
    if len(data) < 6:
        return data
    import crc32c

    return data[:2] + struct.pack(">I", crc32c.crc32c(data[6:])) + data[6:]


def _leader_epochs(data: bytes) -> None:
    for entry in log.read_leader_epochs(_written("leader-epoch-checkpoint", data)):
        assert isinstance(entry.epoch, int)
        assert isinstance(entry.start_offset, int)


def _offsets(data: bytes) -> None:
    for (topic, partition), offset in log.read_offsets(_written("replication-offset-checkpoint", data)).items():
        assert isinstance(topic, str)
        assert isinstance(partition, int)
        assert isinstance(offset, int)


def _partition_metadata(data: bytes) -> None:
    repr(log.read_partition_metadata(_written("partition.metadata", data)))


def _meta_properties(data: bytes) -> None:
    repr(log.read_meta_properties(_written("meta.properties", data)))


KINDS: tuple[Callable[[bytes], None], ...] = (
    _offset_index,
    _time_index,
    _transaction_index,
    _snapshot,
    _leader_epochs,
    _offsets,
    _partition_metadata,
    _meta_properties,
)


def small_files(data: bytes) -> None:
    """See the module."""
    if not data:
        return
    try:
        KINDS[data[0] % len(KINDS)](data[1:])
    except DecodeError as error:
        assert str(error)
        assert error.path is not None


def _small_file_seeds() -> Iterator[bytes]:
    yield b"\x00" + struct.pack(">iiii", 5, 100, 9, 200) + bytes(16)
    yield b"\x01" + struct.pack(">qiqi", 1_767_225_600_000, 5, 1_767_225_600_009, 9)
    yield b"\x02" + struct.pack(">hqqqq", 0, 9001, 1, 5, 6) * 2
    states = [log.ProducerState(9001, 3, 7, 41, 2, 1_767_225_600_000, 5, 40)] * 2
    yield b"\x03" + log.pack_snapshot(states)
    yield b"\x04" + b"0\n2\n0 0\n3 17\n"
    yield b"\x05" + b"0\n2\norders 0 12\nnaive-topic 1 9223372036854775807\n"
    yield b"\x06" + b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"
    yield (
        b"\x07"
        + b"#Thu Jan 01\nnode.id=1\nversion=1\ncluster.id=a\\u0041\\tb\\\n  more\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n"
    )


# -------------------------------------------------------------------------------------------------------- lying indexes


@cache
def _log() -> tuple[bytes, tuple[int, ...]]:
    """A log of batches, one of which holds in a value what looks like another log, and where its batches begin."""
    inner = b"".join(build_batch([RecordSpec(value=b"in")] * 3, base_offset=BASE_OFFSET + at) for at in (20, 40, 60))
    parts, positions, size = [], [], 0
    for number in range(12):
        value = inner if number == 5 else b"value %d" % number
        batch = build_batch([RecordSpec(value=value)] * (1 + number % 4), base_offset=BASE_OFFSET + 8 * number)
        positions.append(size)
        parts.append(batch)
        size += len(batch)
    return b"".join(parts), tuple(positions)


@cache
def _places() -> dict[int, tuple[int, int]]:
    """Where each offset lies, found by walking alone."""
    data, _ = _log()
    places = {}
    for offset in OFFSETS:
        found = next((batch for batch in kcodec.batches(data) if batch.last_offset >= offset), None)
        assert found is not None or offset > BASE_OFFSET + 88
        if found is not None:
            places[offset] = (found.position, found.base_offset)
    return places


@cache
def _segment() -> Segment:
    path = _written(f"{BASE_OFFSET:020}.log", _log()[0])
    return Segment(str(path), BASE_OFFSET, False)


def lying_index(data: bytes) -> None:
    """See the module. The first byte chooses which offsets are asked for."""
    segment = _segment()
    _written(f"{BASE_OFFSET:020}.index", data[1:])
    first = OFFSETS.start + (data[0] if data else 0) % OFFSET_STEP
    for offset in range(first, OFFSETS.stop, OFFSET_STEP):
        place = _places().get(offset)
        if place is not None:
            assert tuple(position_of_offset(segment, offset, kcodec.DEFAULT_LIMITS)) == place, offset


def _lying_seeds() -> Iterator[bytes]:
    data, positions = _log()
    true = b"".join(struct.pack(">ii", 8 * at, place) for at, place in enumerate(positions))
    inner = data.find(b"in") - 70
    yield b"\x00" + true
    yield b"\x01" + true[:40] + bytes(40)
    yield b"\x02" + b"".join(struct.pack(">ii", 8 * at, inner + at) for at in range(6))
    yield b"\x03" + true[:48] + struct.pack(">ii", 44, positions[5] + 61)


TARGETS: dict[str, Callable[[bytes], None]] = {"small_files": small_files, "lying_index": lying_index}
SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {"small_files": _small_file_seeds, "lying_index": _lying_seeds}
