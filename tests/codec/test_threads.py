# SPDX-License-Identifier: Apache-2.0
"""Threads of ours in one decode, of Python's around it, forks after it: the same records, and nobody waits long."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from batch_writer import FLAVOURS, RecordSpec, build_batch
from bombs import batch_of
from compare import COLUMNS
from large_batches import RECORDS_IN_A_BATCH, blob, template

import kcodec
from kcodec import DecodedRecords, _fast


def assert_same(answer: DecodedRecords, reported: DecodedRecords) -> None:
    assert pa.table(answer).combine_chunks().equals(pa.table(reported).combine_chunks())
    assert answer.counts == reported.counts
    assert (answer.next_offset, answer.remaining_bytes) == (reported.next_offset, reported.remaining_bytes)


def place_of(error: kcodec.DecodeError | None) -> Any:
    return error and (type(error), str(error), error.position, error.base_offset, error.record, error.next_offset)


@pytest.fixture(params=["package", "library"])
def way_of_zstd(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _fast.zstd_way()
    _fast.use_zstd(request.param)
    yield request.param
    _fast.use_zstd(before)


# ---------------------------------------------------------------------------------------------------- threads of ours


@pytest.mark.parametrize("codec", FLAVOURS)
def test_two_four_and_more_threads_give_what_one_gives(codec: str, way_of_zstd: str) -> None:
    data = blob(codec)
    for binary_type in ("binary", "large_binary", "binary_view"):
        one = kcodec.decode(data, columns=COLUMNS, binary_type=binary_type)
        assert len(one) == 40 * RECORDS_IN_A_BATCH
        for threads in (2, 4, 64, 1000):
            many = kcodec.decode(data, columns=COLUMNS, binary_type=binary_type, threads=threads)
            assert_same(many, one)
            assert 1 < len(many.chunks) <= 41  # it was worth threads, and they shared the work
            assert list(many.records()) == list(one.records())


def option_sets() -> list[dict[str, Any]]:
    committed = {"isolation_level": "read_committed"}
    return [
        committed,
        {**committed, "aborted_transactions": [(1, 0, 900)]},
        {**committed, "aborted_transactions": [(1, 3000)], "control_records": "include"},
        {**committed, "aborted_transactions": [], "last_stable_offset": 4000},
        {"start_offset": 1000, "end_offset": 5001},
        {"check_crcs": False, "columns": ("value",)},
    ]


@pytest.mark.parametrize("options", option_sets(), ids=lambda options: ",".join(options))
def test_threads_under_every_kind_of_option(options: dict[str, Any]) -> None:
    for codec in ("none", "lz4"):
        data = blob(codec)
        assert_same(kcodec.decode(data, threads=2, **options), kcodec.decode(data, **options))


def damaged(data: bytes, batch: int, kind: str) -> bytes:
    size = len(template("lz4"))
    position = batch * size
    if kind == "crc":
        return data[: position + 17] + b"none" + data[position + 21 :]
    if kind == "magic":
        return data[: position + 16] + b"\x09" + data[position + 17 :]
    wrong = batch_of(data[position + 61 : position + size], RECORDS_IN_A_BATCH + 1, "lz4")
    return data[:position] + data[position : position + 8] + wrong[8:] + data[position + size :]


@pytest.mark.parametrize("kind", ["crc", "magic", "records"])
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_corruption_is_reported_the_same(kind: str, isolation_level: Any) -> None:
    for batches in ([0], [39], [17], [5, 6, 30]):
        data = blob("lz4")
        for batch in batches:
            data = damaged(data, batch, kind)
        for on_error in ("stop", "skip"):
            one, *others = (
                kcodec.decode(data, on_error=on_error, isolation_level=isolation_level, threads=threads)
                for threads in (1, 2, 4)
            )
            assert one.error is not None
            for other in others:
                assert_same(other, one)
                assert place_of(other.error) == place_of(one.error)


def test_threads_must_be_one_at_least() -> None:
    for wrong in (0, -1, 1.5, None):
        with pytest.raises((ValueError, TypeError), match="threads"):
            kcodec.decode(b"", threads=wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ threads of Python's


def test_many_python_threads_at_once(way_of_zstd: str) -> None:
    """Each its own bytes: a decompressor shared by two threads would mix them up."""
    blobs = {(codec, seed): blob(codec, 12, seed) for codec in FLAVOURS for seed in range(2)}
    reported = {name: pa.table(kcodec.decode(data)).combine_chunks() for name, data in blobs.items()}

    def decode_some(number: int) -> int:
        chooser = random.Random(number)
        for _ in range(12):
            name = chooser.choice(sorted(blobs))
            decoded = kcodec.decode(blobs[name], threads=chooser.choice((1, 1, 2)))
            assert pa.table(decoded).combine_chunks().equals(reported[name]), name
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(decode_some, range(16))) == list(range(16))


def test_one_buffer_and_one_result_in_many_threads() -> None:
    data = blob("lz4")
    decoded = kcodec.decode(data, threads=2)
    reported = pa.table(decoded).combine_chunks()
    values = list(decoded.column("value"))

    def read(number: int) -> bool:
        if number % 3 == 0:
            return bool(pa.table(decoded).combine_chunks().equals(reported))
        if number % 3 == 1:
            return list(decoded.column("value")) == values
        return bool(pa.table(kcodec.decode(data, threads=2)).combine_chunks().equals(reported))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(30)))


class Ticker(threading.Thread):
    """Runs Python code all the time and knows the longest time it could not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self.is_ended = False

    def run(self) -> None:
        before = time.perf_counter()
        while not self.is_ended:
            time.sleep(0.0002)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before)
            before = now


def longest_stall(data: bytes, **options: Any) -> float:
    """Seconds the other thread stood still at most during a decode."""
    ticker = Ticker()
    ticker.start()
    time.sleep(0.005)
    ticker.longest = 0.0
    kcodec.decode(data, **options)
    longest = ticker.longest
    ticker.is_ended = True
    ticker.join()
    return longest


def assert_no_stall(data: bytes, **options: Any) -> None:
    """Ten milliseconds at most, in one round of some: other programs run here too, but a held GIL is in each round."""
    rounds = []
    for _ in range(50):
        rounds.append(longest_stall(data, **options))
        if rounds[-1] < 0.010:
            return
    pytest.fail(f"the other thread stood still for {[round(stall * 1000) for stall in rounds]} ms")


@cache
def heavy(codec: str) -> bytes:
    """What takes a decode tens of milliseconds: one batch of 16 MiB and many of 100 KiB."""
    from batch_writer import build_record, compress

    noise = random.Random(1).randbytes(1 << 16)
    value = b"".join(noise[at : at + 3000] + bytes(1000) for at in range(0, 1 << 16, 4096)) * 256
    one = batch_of(compress(codec, build_record(RecordSpec(value=value), 0)), 1, codec)
    return one + blob(codec, 100)


def many_small_batches() -> bytes:
    """A million rows' worth of headers: the table of batches is walked and settled too."""
    one = build_batch([RecordSpec(value=b"v")], is_transactional=True, producer_id=1, producer_epoch=0)
    return b"".join(struct.pack(">q", offset) + one[8:] for offset in range(250_000))


@pytest.mark.parametrize("codec", FLAVOURS)
def test_other_python_threads_go_on_while_we_decode(codec: str) -> None:
    data = heavy(codec)
    assert_no_stall(data)
    assert_no_stall(data, threads=2)


def test_other_python_threads_go_on_while_we_walk_many_batches() -> None:
    data = many_small_batches()
    assert_no_stall(data)
    assert_no_stall(data, isolation_level="read_committed", on_error="skip")


# --------------------------------------------------------------------------------------------------------------- forks


def _digest(codec: str, threads: int) -> tuple[int, int, int]:
    decoded = kcodec.decode(blob(codec), threads=threads)
    values = list(decoded.column("value"))
    return len(decoded), sum(map(len, filter(None, values))), hash(tuple(decoded.column("offset")))


def forked(function: Any, *arguments: Any) -> Any:
    """What the function gives in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(function(*arguments), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pickle.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    return answer


@pytest.mark.parametrize("codec", FLAVOURS)
def test_a_forked_child_decodes_with_threads(codec: str, way_of_zstd: str) -> None:
    reported = _digest(codec, 2)
    assert forked(_digest, codec, 2) == reported
    assert forked(forked, _digest, codec, 2) == reported
    assert _digest(codec, 2) == reported


def test_multiprocessing_by_fork_after_a_threaded_decode() -> None:
    reported = _digest("zstd", 2)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(_digest, [("zstd", 2)] * 6) == [reported] * 6


def test_forks_while_other_threads_decode() -> None:
    """No lock may stay locked in the child."""
    ended = threading.Event()

    def decode_on() -> None:
        while not ended.is_set():
            _digest("lz4", 2)

    others = [threading.Thread(target=decode_on) for _ in range(2)]
    reported = _digest("lz4", 1)
    for other in others:
        other.start()
    try:
        for _ in range(15):
            assert forked(_digest, "lz4", 2) == reported
    finally:
        ended.set()
        for other in others:
            other.join()


def test_results_and_errors_travel_between_processes() -> None:
    data = damaged(blob("lz4"), 20, "crc")
    with pytest.raises(kcodec.CorruptBatchError) as raised:
        kcodec.decode(data, threads=2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        error, whole = pool.apply(_as_it_came, ((raised.value, kcodec.decode(blob("lz4"), threads=2)),))
    assert place_of(error) == place_of(raised.value)
    assert (error.stored_crc, error.computed_crc) == (raised.value.stored_crc, raised.value.computed_crc)
    assert raised.value.decoded is not None
    assert_same(error.decoded, raised.value.decoded)
    assert_same(whole, kcodec.decode(blob("lz4")))


def _as_it_came(value: Any) -> Any:
    return value
