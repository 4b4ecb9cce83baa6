# SPDX-License-Identifier: Apache-2.0
"""Memory: nothing leaks, buffers come back to their pool and are capped there, what Arrow holds outlives all else."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import FLAVOURS, RecordSpec, build_batch
from bombs import batch_of, bomb, many_headers
from compare import BINARY_TYPES, COLUMNS, BinaryType
from large_batches import blob
from strategies import random_log

import kcodec
from kcodec import _fast

MIB = 1 << 20
POOL_MAX_RETAINED = 96 * MIB
LOG = random_log(random.Random(12), steps=40).data
DAMAGED = LOG + build_batch([RecordSpec()], base_offset=1 << 40, crc=1) + LOG


# On a busy machine a thread may come to work with the others for the first time late, and its context then keeps its
# scratch: one buffer a thread. A chunk that is lost holds more than these.
LATE_SCRATCH = 4


def outstanding(expected: int | None = None) -> int:
    """Buffers handed out and not yet back; if these are not as many as expected, once more without dead cycles."""
    found = _fast.pool_state()[2]
    if found != expected:
        gc.collect()
        found = _fast.pool_state()[2]
    return found


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


@pytest.fixture(scope="module", autouse=True)
def contexts_are_there() -> None:
    """Each thread's context keeps its scratch memory for good: brought about before anything is counted."""
    for _ in range(10):
        for codec in FLAVOURS:
            kcodec.decode(blob(codec, 80), threads=4)


@pytest.fixture(autouse=True)
def nothing_is_left(contexts_are_there: None) -> Iterator[None]:
    """Whatever a test does, the buffers it made are given back when its values are gone."""
    before = outstanding()
    yield
    assert abs(outstanding(before) - before) <= LATE_SCRATCH


# ------------------------------------------------------------------------------------------------------------ decoding


def exports(options: dict[str, Any]) -> list[Callable[[], object]]:
    """Everything that makes or exports buffers of these columns."""

    def decoded(**more: Any) -> kcodec.DecodedRecords:
        return kcodec.decode(LOG, **options, **more)

    return [
        decoded,
        lambda: pa.table(decoded()),
        lambda: pa.record_batch(decoded()),
        lambda: kcodec.decode(DAMAGED, on_error="stop", **options),
        lambda: kcodec.decode(DAMAGED, on_error="skip", isolation_level="read_committed", **options),
        lambda: list(decoded().records()),
        lambda: next(decoded().records(), None),
        lambda: [decoded().column(name).__arrow_c_stream__() for name in COLUMNS],
        lambda: decoded().__arrow_c_stream__(),
        lambda: decoded().__arrow_c_array__(),
        lambda: decoded().schema.__arrow_c_schema__(),
        lambda: pickle.loads(pickle.dumps(decoded())),
    ]


def asked_in_every_way() -> list[Callable[[], object]]:
    ways = [way for kind in BINARY_TYPES for way in exports({"columns": COLUMNS, "binary_type": kind})]
    small = kcodec.DecodeLimits(max_decompressed_bytes=MIB)
    return [
        *ways,
        lambda: kcodec.decode(LOG).to_numpy("timestamp"),
        lambda: memoryview(kcodec.decode(LOG).to_numpy("offset")),  # type: ignore[arg-type]
        lambda: [batch.is_valid() for batch in kcodec.batches(LOG)],
        lambda: [list(batch.records()) for batch in kcodec.batches(LOG)],
        lambda: pickle.loads(pickle.dumps(list(kcodec.batches(LOG)))),
        lambda: _refused(DAMAGED),
        *[lambda codec=codec: _refused(bomb(codec, 64 * MIB), limits=small) for codec in ("zstd", "lz4", "gzip")],
        lambda: pickle.loads(pickle.dumps(_refused(DAMAGED))),
    ]


def _refused(data: bytes | bytearray, **options: Any) -> kcodec.DecodeError:
    with pytest.raises(kcodec.DecodeError) as raised:
        kcodec.decode(data, **options)
    return raised.value


@pytest.mark.parametrize("way", asked_in_every_way())
def test_every_way_gives_its_buffers_back(way: Callable[[], object]) -> None:
    way()
    before = outstanding()
    for _ in range(5):
        value = way()
        del value
        assert outstanding(before) == before


def test_threads_give_their_buffers_back() -> None:
    data = blob("lz4")
    wrong = data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :]
    for sample in (data, wrong):
        for threads in (2, 4):
            before = outstanding()
            decoded = kcodec.decode(sample, threads=threads, on_error="stop")
            assert outstanding() > before + LATE_SCRATCH
            del decoded
            assert abs(outstanding(before) - before) <= LATE_SCRATCH


def grown_by(repeat: Callable[[], object], times: int) -> tuple[int, int]:
    """(bytes of Python objects, resident bytes) that so many repetitions left behind."""
    for _ in range(100):
        repeat()
    gc.collect()
    tracemalloc.start()
    repeat()
    traced, held = tracemalloc.get_traced_memory()[0], resident()
    for _ in range(times):
        repeat()
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - traced
    tracemalloc.stop()
    return left, resident() - held


def test_two_thousand_decodes_leave_nothing() -> None:
    def repeat() -> None:
        decoded = kcodec.decode(LOG, columns=COLUMNS, isolation_level="read_committed")
        pa.table(decoded)
        list(decoded.records())
        stopped = kcodec.decode(DAMAGED, on_error="stop")
        assert stopped.error is not None

    left, grown = grown_by(repeat, 2000)
    assert left < 40_000  # less than the smallest object each time
    assert grown < 4 * MIB


@pytest.mark.parametrize("codec", FLAVOURS)
def test_every_codec_leaves_nothing(codec: str) -> None:
    right = build_batch([RecordSpec(value=b"v" * 5000)] * 3, compression=codec)
    wrong = batch_of(right[61:-9], 3, codec)

    def repeat() -> None:
        kcodec.decode(right)
        assert kcodec.decode(wrong, on_error="stop").error is not None

    left, grown = grown_by(repeat, 2000)
    assert left < 40_000
    assert grown < 4 * MIB


# -------------------------------------------------------------------------------------------------------------- source


@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_the_source_is_held_only_by_views(binary_type: BinaryType) -> None:
    source = bytearray(build_batch([RecordSpec(value=b"longer than twelve bytes")]))
    before = sys.getrefcount(source)
    decoded = kcodec.decode(memoryview(source).toreadonly(), binary_type=binary_type)
    if binary_type == "binary_view":
        with pytest.raises(BufferError):
            source.append(0)
        table = pa.table(decoded)
        del decoded
        gc.collect()
        with pytest.raises(BufferError):
            source.append(0)
        del table
    gc.collect()
    source.append(0)
    assert sys.getrefcount(source) == before


def test_refused_bytes_are_let_go() -> None:
    source = bytearray(DAMAGED)
    before = sys.getrefcount(source)
    for binary_type in BINARY_TYPES:
        error = _refused(source, binary_type=binary_type)
        del error
        for threads in (1, 2):
            stopped = kcodec.decode(source, on_error="stop", binary_type=binary_type, threads=threads)
            del stopped
    gc.collect()
    assert sys.getrefcount(source) == before
    source.append(0)


def test_a_batch_holds_the_source_while_it_lives() -> None:
    source = bytearray(LOG)
    (batch, *_) = kcodec.batches(source)
    data = batch.data
    with pytest.raises(BufferError):
        source.append(0)
    assert bytes(data) == bytes(source[: batch.size_in_bytes])
    del batch, data, _
    gc.collect()
    source.append(0)


# -------------------------------------------------------------------------------------------------------- what outlives


def churn() -> None:
    """Uses the pool's buffers again, so that a dangling one would show other bytes."""
    for size in (100, 5000, 50_000):
        noise = batch_of(build_batch([RecordSpec(key=b"\xee" * size, value=b"\xdd" * size)])[61:], 1)
        held = [kcodec.decode(noise, columns=COLUMNS, binary_type=kind) for kind in BINARY_TYPES for _ in range(4)]
        del held


@pytest.mark.parametrize("codec", FLAVOURS)
@pytest.mark.parametrize("binary_type", BINARY_TYPES)
def test_arrow_arrays_outlive_source_and_result(codec: str, binary_type: BinaryType) -> None:
    def decoded() -> kcodec.DecodedRecords:
        # a source of its own, overwritten before it goes
        return kcodec.decode(bytes(bytearray(blob(codec, 3))), columns=COLUMNS, binary_type=binary_type)

    reported = pa.table(decoded()).to_pydict()
    whole = pa.table(decoded())
    batch = pa.record_batch(decoded())
    reader = pa.RecordBatchReader.from_stream(decoded())
    column = pa.chunked_array(decoded().column("value"))
    piece = whole.slice(17, 100)
    numbers = decoded().to_numpy("offset")
    value = next(decoded().records()).value
    gc.collect()
    churn()
    assert whole.to_pydict() == reported
    assert batch.to_pydict() == reported
    assert reader.read_all().to_pydict() == reported
    assert column.to_pylist() == reported["value"]
    assert list(numbers) == reported["offset"]
    assert value == reported["value"][0]
    del whole, batch, reader
    churn()
    assert piece["value"].to_pylist() == reported["value"][17:117]


def test_a_result_is_exported_as_often_as_asked() -> None:
    decoded = kcodec.decode(LOG, columns=COLUMNS)
    first = pa.table(decoded)
    assert all(pa.table(decoded).equals(first) for _ in range(5))
    assert pa.table(pickle.loads(pickle.dumps(decoded))).equals(first)


# ---------------------------------------------------------------------------------------------------------------- pool


def test_the_pool_is_capped_and_trimmed() -> None:
    held = [kcodec.decode(blob("none", 60), threads=2) for _ in range(30)]
    assert sum(len(decoded) for decoded in held) == 30 * 60 * 150
    del held
    gc.collect()
    retained_bytes, retained_buffers, _ = _fast.pool_state()
    assert 0 < retained_bytes <= POOL_MAX_RETAINED
    assert retained_buffers > 0
    before = resident()
    _fast.trim_pool()
    assert _fast.pool_state()[:2] == (0, 0)
    assert resident() < before - retained_bytes // 4  # not every page that counts as touched was resident


def test_a_very_large_result_is_not_kept() -> None:
    """One batch whose header columns take hundreds of megabytes: its buffers go back to the system, not to the pool."""
    _fast.trim_pool()
    before = resident()
    decoded = kcodec.decode(many_headers(64 * MIB))
    assert len(decoded) == 1
    assert resident() > before + 200 * MIB
    del decoded
    gc.collect()
    assert _fast.pool_state()[0] <= POOL_MAX_RETAINED
    _fast.trim_pool()
    assert resident() < before + 100 * MIB
