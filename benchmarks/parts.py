# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench`, one for each kind of bar: decode, threads, isolation, views, segment, import.

Each takes the options and returns rows, which are dicts with figures, bars and whether they are met. run.py prints and
writes them. If kcodec is not built, only the other contestants are measured.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bars
import contestants
import floor
import measure
import numpy as np
import shapes
from measure import Ratio, Samples, ratio, spread

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The options: what is measured, and for how long."""

    shapes: str
    codecs: tuple[str, ...]
    builders: tuple[str, ...]
    names: tuple[str, ...]
    rounds: int
    seconds: float
    segment_bytes: int
    patience: int


def source_blob(builder: str, shape: str, codec: str) -> shapes.Blob:
    """Return the blob of one of the two builders."""
    return shapes.java_blob(shape, codec) if builder == "java" else shapes.blob(shape, codec)


def cells(options: Options) -> Iterator[tuple[str, str, str]]:
    """Yield (builder, codec, shape) of every requested blob, without Java's uncompressed ones, which are the same
    bytes."""
    for builder, codec, shape in itertools.product(options.builders, options.codecs, options.shapes):
        if builder == "aiokafka" or codec != "none":
            yield builder, codec, shape


def agree(found: list[contestants.Contestant], data: bytes, what: str) -> str:
    """Return the hash of all contestants' columns. Raise ValueError if they differ."""
    digests = {one.name: one.digest(one.decode(data)) for one in found}
    if len(set(digests.values())) != 1:
        raise ValueError(f"{what}: the contestants' columns differ: {digests}")
    return next(iter(digests.values()))


def judged(row: Row, name: str, value: float | None, bar: float | None, *, least: bool = False) -> None:
    """Add a figure, its bar and whether it is met to a row, if there is a figure.

    A row measured while other processes used too much of the machine is not judged.
    """
    if value is None:
        return
    row[name] = round(value, 3)
    if bar is not None:
        row[f"{name}_bar"] = round(bar, 3)
        found = measure.verdict(value, measure.Bar(bar, least), is_busy=row.get("is_busy", False))
        row[f"{name}_met"] = {"met": True, "missed": False}.get(found, found)


def against(row: Row, name: str, samples: Samples, slow: str, quick: str) -> float | None:
    """Return the ratio of two contestants as median of the rounds, if both were measured, and add its interval to the
    row."""
    if slow not in samples or quick not in samples:
        return None
    return with_interval(row, name, ratio(samples[slow], samples[quick]))


def with_interval(row: Row, name: str, found: Ratio) -> float:
    """Return the median of a ratio, and add its interval and the ratio of the minima to the row."""
    row[f"{name}_interval"] = [round(found.low, 3), round(found.high, 3)]
    row[f"{name}_of_minima"] = round(found.of_minima, 3)
    return found.median


def measured(
    row: Row,
    cases: dict[str, measure.Case],
    options: Options,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    others_may: float = measure.OTHERS_OF_ONE,
    busy_above: float | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Samples:
    """Return the samples of the cases, and add their spreads and the load of other processes to the row.

    Functions of one thread are measured by processor time, which does not include the time of other processes.
    """
    samples, others = measure.interleaved(
        cases,
        rounds or options.rounds,
        seconds or options.seconds,
        patience=options.patience,
        others_may=others_may,
        clock=clock,
    )
    row |= {"others": round(others, 2), "is_busy": others > (busy_above or others_may)}
    row |= {name: spread(values, row["records"]) for name, values in samples.items()}
    return samples


def zstd_way() -> str:
    """Return how kcodec decompresses zstd here once it has: "package", "system" or "library" (see `_fast.use_zstd`)."""
    if not contestants.has_kcodec():
        return "package"
    from kcodec import _fast

    contestants.decode_kcodec(shapes.blob("d", "zstd").data)  # kcodec looks for the library at the first batch
    return str(_fast.zstd_way())


def limits(blob: shapes.Blob) -> dict[str, measure.Case]:
    """Return CRC, memcpy and both as cases."""
    made = {what: floor.Limit(what, len(blob.data)) for what in floor.LIMITS}
    return {f"limit {what}": functools.partial(limit.run, blob.data) for what, limit in made.items()}


def decode(options: Options) -> list[Row]:
    """Measure all contestants on one thread, to Arrow with CRC checks, compared with aiokafka and the floor."""
    rows = []
    for builder, codec, shape in cells(options):
        blob = source_blob(builder, shape, codec)
        found = [one for one in contestants.contestants(options.names) if codec in one.codecs]
        row: Row = {
            "builder": builder,
            "codec": codec,
            "shape": shape,
            "records": blob.records,
            "bytes": len(blob.data),
        }
        row["columns_sha256"] = agree(found, blob.data, f"shape {shape}, {codec}, {builder}")[:16]
        cases: dict[str, measure.Case] = {one.name: functools.partial(one.decode, blob.data) for one in found}
        if codec == "none" and "floor" in options.names:
            cases |= limits(blob)
        samples = measured(row, cases, options)
        times = against(row, "times_aiokafka", samples, "aiokafka", "kcodec")
        bar = bars.times_aiokafka(shape, codec, calls_libzstd=zstd_way() != "package")
        judged(row, "times_aiokafka", times, bar, least=True)
        ratio = against(row, "over_floor", samples, "kcodec", "floor")
        judged(row, "over_floor", ratio, bars.over_floor(shape, codec))
        valid = against(row, "floor_over_limit", samples, "floor", "limit both")
        judged(row, "floor_over_limit", valid, bars.FLOOR_OVER_LIMIT.get(shape))
        rows.append(row)
    return rows


def cold(options: Options) -> list[Row]:
    """Measure as `decode` does, but with another copy of the blob in each call and more copies than fit into the
    caches."""
    rows = []
    for codec, shape in itertools.product(options.codecs, options.shapes):
        blob = shapes.blob(shape, codec)
        copies = [bytes(bytearray(blob.data)) for _ in range(math.ceil((128 << 20) / len(blob.data)))]
        found = [one for one in contestants.contestants(options.names) if codec in one.codecs]
        row: Row = {"codec": codec, "shape": shape, "records": blob.records, "copies": len(copies)}
        cases: dict[str, measure.Case] = {}
        for one in found:
            cases[one.name] = functools.partial(
                lambda decode, turn: decode(next(turn)), one.decode, itertools.cycle(copies)
            )
        samples = measured(row, cases, options)
        for name, slow, quick in (("times_aiokafka", "aiokafka", "kcodec"), ("over_floor", "kcodec", "floor")):
            both = against(row, name, samples, slow, quick)
            judged(row, name, both, None)
        rows.append(row)
    return rows


def views(options: Options) -> list[Row]:
    """Measure values as binary_view, shape b, compared with the floor, which copies them."""
    if "kcodec" not in options.names:
        return []
    import kcodec

    blob, own = shapes.blob("b", "none"), floor.Floor()
    row: Row = {"codec": "none", "shape": "b", "records": blob.records}
    cases: dict[str, measure.Case] = {
        "kcodec views": lambda: contestants.to_arrow(kcodec.decode(blob.data, binary_type="binary_view")),
        "floor": lambda: own.decode(blob.data),
        "kcodec": lambda: contestants.decode_kcodec(blob.data),
    }
    value = contestants.to_arrow(kcodec.decode(blob.data, binary_type="binary_view")).column("value")
    if value.to_pylist() != contestants.decode_kcodec(blob.data).column("value").to_pylist():
        raise ValueError("shape b: values as binary_view differ from values as binary")
    samples = measured(row, cases, options)
    found = against(row, "over_floor", samples, "kcodec views", "floor")
    judged(row, "over_floor", found, bars.VIEWS_OVER_FLOOR)
    return [row]


def two_thread_cases(options: Options, data: bytes, own: floor.Floor, pair: floor.FloorPair) -> dict[str, measure.Case]:
    """Return cases for one and two threads of the floor and, if it is measured, of kcodec."""
    cases: dict[str, measure.Case] = {"floor 1": lambda: own.decode(data), "floor 2": lambda: pair.decode(data)}
    if "kcodec" in options.names:
        import kcodec

        cases["kcodec 1"] = lambda: contestants.to_arrow(kcodec.decode(data, threads=1))
        cases["kcodec 2"] = lambda: contestants.to_arrow(kcodec.decode(data, threads=2))
    return cases


def check_two_threads(options: Options, data: bytes, own: floor.Floor, pair: floor.FloorPair) -> None:
    """Raise ValueError unless two threads give the same result as one."""
    if own.decode(data) != pair.decode(data) or not np.array_equal(own.offsets(), pair.offsets()):
        raise ValueError("the floor on two threads differs from the floor on one")
    if "kcodec" in options.names:
        import kcodec

        one, two = (contestants.to_arrow(kcodec.decode(data, threads=n)) for n in (1, 2))
        if contestants.digest(one) != contestants.digest(two):
            raise ValueError("kcodec on two threads differs from kcodec on one")


def threads(options: Options) -> list[Row]:
    """Compare two threads with one: on batches repeated until one thread needs 2 ms, and on the unchanged blob."""
    rows, own, pair = [], floor.Floor(), floor.FloorPair()
    for codec, shape in itertools.product(options.codecs, options.shapes):
        if codec not in floor.codecs() or shape not in "abcd":
            continue
        blob = shapes.blob(shape, codec)
        cases = two_thread_cases(options, blob.data, own, pair)
        alone = min(measure.one_slice(cases.get("kcodec 1", cases["floor 1"]), 0.003) for _ in range(5))
        for times in sorted({1, math.ceil(bars.ONE_THREAD_SECONDS / alone)}):
            many = shapes.repeated(blob, times)
            check_two_threads(options, many.data, own, pair)
            cases = two_thread_cases(options, many.data, own, pair)
            row: Row = {"codec": codec, "shape": shape, "times": times, "records": many.records}
            samples = measured(
                *(row, cases, options),
                rounds=options.rounds * 2,
                seconds=0.03,
                others_may=measure.OTHERS_OF_TWO,
                busy_above=measure.TOO_BUSY_FOR_TWO,
                clock=time.perf_counter,
            )
            row["floor_gain"] = round(
                with_interval(row, "floor_gain", ratio(samples["floor 1"], samples["floor 2"])), 3
            )
            gain = against(row, "gain", samples, "kcodec 1", "kcodec 2")
            if gain is not None:
                wanted = bars.TWO_THREADS_NEVER_BELOW
                if times > 1 and shape in bars.GAIN_SHAPES[codec]:
                    wanted = max(wanted, bars.TWO_THREADS_OF_FLOOR_GAIN * row["floor_gain"])
                judged(row, "gain", gain, wanted, least=True)
            rows.append(row)
    pair.close()
    return rows


def isolation(options: Options) -> list[Row]:
    """Compare read_committed with read_uncommitted on the same bytes, with half of the batches aborted and with
    none."""
    if "kcodec" not in options.names:
        return []
    import kcodec

    rows = []
    for codec, shape, abort in itertools.product(options.codecs, options.shapes, (True, False)):
        made = shapes.transactional_blob(shape, codec, abort=abort)
        data = made.blob.data
        aborted = [kcodec.AbortedTransaction(*entry) for entry in made.aborted]
        committed = functools.partial(
            kcodec.decode, data, isolation_level="read_committed", aborted_transactions=aborted
        )
        if len(committed()) != made.delivered:
            raise ValueError(f"shape {shape}, {codec}: {len(committed())} records committed, expected {made.delivered}")
        cases: dict[str, measure.Case] = {
            "read_committed": lambda committed=committed: contestants.to_arrow(committed()),
            "read_uncommitted": functools.partial(contestants.decode_kcodec, data),
        }
        row: Row = {"codec": codec, "shape": shape, "aborted": "half" if abort else "none"}
        row["records"] = made.blob.records
        samples = measured(row, cases, options, rounds=options.rounds * 2)
        found = against(row, "of_uncommitted", samples, "read_committed", "read_uncommitted")
        bar = bars.HALF_ABORTED.get(codec, {}).get(shape) if abort else bars.NOTHING_ABORTED
        judged(row, "of_uncommitted", found, bar)
        rows.append(row)
    return rows


def write_segment(path: Path, blob: shapes.Blob, size: int) -> tuple[int, int]:
    """Write a segment of at least `size` bytes with the blob's batches at rising offsets. Return (bytes, records)."""
    span, times = blob.records, math.ceil(size / len(blob.data))
    with path.open("wb") as file:
        for i in range(times):
            file.write(shapes.shifted(blob, i * span))
    return path.stat().st_size, blob.records * times


def segment(options: Options) -> list[Row]:
    """Measure the peak memory, and the time without a bar, of a new process that streams a large segment to pyarrow."""
    if "kcodec" not in options.names:
        return []
    rows = []
    for codec, shape in itertools.product(("none", "zstd"), "ab"):
        if codec not in options.codecs or shape not in options.shapes:
            continue
        with tempfile.TemporaryDirectory(prefix="kcodec-bench-") as folder:
            partition = Path(folder, "bench-0")
            partition.mkdir()
            path = partition / f"{0:020d}.log"
            size, records = write_segment(path, shapes.blob(shape, codec), options.segment_bytes)
            command = [sys.executable, str(HERE / "stream_segment.py"), str(path)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        reported = json.loads(done.stdout)
        if reported["records"] != records:
            raise ValueError(f"segment of shape {shape}, {codec}: {reported['records']} records, expected {records}")
        row: Row = {"codec": codec, "shape": shape, "megabytes": round(size / 1e6), "records": records}
        row |= {"seconds": round(reported["seconds"], 2), "ns_a_record": round(reported["seconds"] * 1e9 / records, 1)}
        row |= {"batches": reported["batches"], "peak_of_imports_MB": round(reported["imports"], 1)}
        judged(row, "peak_MB", reported["peak"], bars.SEGMENT_MEGABYTES)
        rows.append(row)
    return rows


def fresh_process(code: str) -> dict[str, float]:
    """Return the seconds that a new Python takes to run `code`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return {"seconds": time.perf_counter() - begin}


def import_time(options: Options) -> list[Row]:
    """Measure how much longer `import kcodec` takes than `python -c pass`, in pairs of new processes, and check which
    modules it does not import."""
    if "kcodec" not in options.names:
        return []
    programs = {"python": "pass", "kcodec": "import kcodec"}
    turns = {name: functools.partial(fresh_process, code) for name, code in programs.items()}
    rounds = measure.take_turns(turns, max(5, options.rounds * 4))
    pairs = [(one.figures["python"]["seconds"], one.figures["kcodec"]["seconds"]) for one in rounds]
    others = statistics.median(one.others for one in rounds)
    probe = f"import sys, kcodec; print(*(m for m in {bars.NOT_IMPORTED!r} if m in sys.modules))"
    brought = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout.split()
    row: Row = {"pairs": len(pairs), "python_ms": round(statistics.median(p for p, _ in pairs) * 1e3, 2)}
    row |= {"others": round(others, 2), "is_busy": others > measure.OTHERS_OF_ONE}
    row["brought_in"] = ", ".join(brought) or "nothing unwanted"
    row["brought_in_met"] = not brought
    above = statistics.median(imported - plain for plain, imported in pairs) * 1e3
    judged(row, "above_ms", above, bars.IMPORT_MILLISECONDS)
    return [row]


PARTS = {
    "decode": decode,
    "cold": cold,
    "views": views,
    "threads": threads,
    "isolation": isolation,
    "segment": segment,
    "import": import_time,
}
