# SPDX-License-Identifier: Apache-2.0
"""The common part of all benchmarks: rounds, the load of other processes, ratios with intervals, and result files.

A round measures every contestant once, in an order that rotates. What disturbs the machine for longer than a slice
disturbs all contestants of the round, so each round gives a ratio of its own. Reported are the median of these ratios
and its interval. A round in which other processes used too much of the machine is busy and does not count, as long as
at least half of the rounds are quiet. Otherwise all rounds count, and the bar is not judged.

The interval is the rank interval of the median (the confidence interval of the sign test). It needs no assumption about
the distribution. It leaves out as many of the lowest and highest values as 95 % confidence permits. With fewer than six
rounds it is the lowest to the highest value, and the confidence is lower; each result contains it.

`interleaved` is for functions of this process that take microseconds. `take_turns` is for slices that take seconds and
run in other processes. `compare` makes one row of a result from the rounds of `take_turns`.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Case = Callable[[], object]
Timer = Callable[[float], float]
Samples = dict[str, list[float]]
Row = dict[str, Any]

# Maximum number of cores (of two) that other processes may use in a round of one thread, and in a round of two threads.
OTHERS_OF_ONE, OTHERS_OF_TWO = 0.5, 0.1
# Above this load a figure of two threads is meaningless, because they had no second core.
TOO_BUSY_FOR_TWO = 0.25
#: The confidence of intervals, if there are enough rounds.
CONFIDENCE = 0.95
NOT_JUDGED = "not judged"


def one_slice(case: Case, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return mean seconds per call, over calls that take `seconds` together (at least one), after one untimed call.

    `clock` may be `time.process_time`, which other processes change little. It takes longer to read than a short call
    does, and is therefore read only after each doubling of the number of calls.
    """
    case()
    calls, step, begin = 0, 1, clock()
    while True:
        for _ in range(step):
            case()
        calls += step
        spent = clock() - begin
        if spent >= seconds:
            return spent / calls
        step = max(1, min(calls, int(calls * (seconds - spent) / spent))) if spent else calls


def one_round(timers: Mapping[str, Timer], turn: int, seconds: float) -> dict[str, float]:
    """Measure a slice of each contestant, in an order that rotates with `turn`."""
    gc.collect()
    names = list(timers)
    return {name: timers[name](seconds) for name in (names[(turn + i) % len(names)] for i in range(len(names)))}


def as_timers(cases: Mapping[str, Case], clock: Callable[[], float] = time.perf_counter) -> dict[str, Timer]:
    """Return timers for cases of this process."""
    return {name: functools.partial(one_slice, case, clock=clock) for name, case in cases.items()}


def columns(rounds: list[dict[str, float]]) -> Samples:
    """Return one list of figures for each contestant."""
    return {name: [one[name] for one in rounds] for name in rounds[0]}


def interleaved_timers(timers: Mapping[str, Timer], rounds: int, seconds: float) -> Samples:
    """Return seconds per call for each timer, one figure for each round."""
    return columns([one_round(timers, turn, seconds) for turn in range(rounds)])


# The load of other processes.


def busy_seconds() -> float:
    """Return the CPU seconds of all cores since boot without idle and waiting time (/proc/stat, in steps of 10 ms)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def tree_seconds(root: int | None = None, without: Iterable[int | None] = ()) -> float:
    """Return CPU seconds of a process and its descendants, including those that have ended and were waited for.

    `root` is this process if it is not given. Processes in `without` and their descendants are left out. The time of
    other processes is known in steps of 10 ms, that of this process exactly.
    """
    here, left_out = os.getpid(), set(without)
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            process = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(process)
            spent[process] = sum(map(int, fields[13 if process == here else 11 : 15]))
    total, waiting = 0, [root or here]
    for process in waiting:
        if process not in left_out:
            total += spent.get(process, 0)
            waiting += children.get(process, ())
    exact = time.process_time() if here in waiting and here not in left_out else 0.0
    return total / os.sysconf("SC_CLK_TCK") + exact


class OtherLoad:
    """The load since the object was created of all processes except this one and its descendants."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.perf_counter(), busy_seconds(), tree_seconds()

    def cores(self) -> float:
        """Return how many cores other processes have used on average."""
        seconds = time.perf_counter() - self._began
        used = busy_seconds() - self._busy - (tree_seconds() - self._own)
        return max(0.0, used / seconds)


# Rounds.


def interleaved(
    cases: Mapping[str, Case],
    rounds: int,
    seconds: float,
    *,
    patience: int = 1,
    others_may: float = OTHERS_OF_ONE,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Samples, float]:
    """Return seconds per call for each case, one figure for each round, and the cores that other processes used in the
    worst round.

    A round in which other processes used more than `others_may` cores is repeated. There are at most `patience` times
    `rounds` rounds, of which the quietest are used.
    """
    timers, quiet = as_timers(cases, clock), 0
    made: list[tuple[float, dict[str, float]]] = []
    while quiet < rounds and len(made) < rounds * patience:
        load = OtherLoad()
        samples = one_round(timers, len(made), seconds)
        made.append((load.cores(), samples))
        quiet += made[-1][0] <= others_may
    made.sort(key=lambda one: one[0])
    return columns([samples for _, samples in made[:rounds]]), made[min(rounds, len(made)) - 1][0]


@dataclass(frozen=True)
class Round:
    """The results of one round: the figures of each contestant by name, and the cores that other processes used."""

    figures: Mapping[str, Mapping[str, float]]
    others: float
    is_busy: bool


def take_turns(
    contestants: Mapping[str, Callable[[], Mapping[str, float]]],
    rounds: int,
    *,
    warm_up: int = 0,
    others_may: float = OTHERS_OF_ONE,
) -> list[Round]:
    """Measure every contestant once in each round, after some rounds that are not counted. The order rotates, and is
    reversed in every second round: a client in the same process may still work in the background while the next one is
    measured, so each of them must follow different ones.

    A contestant is a function that does its work once and returns its figures. Processes that it uses, such as the
    broker, must be descendants of this process: all others count as other load.
    """
    found, names = [], list(contestants)
    for turn in range(-warm_up, rounds):
        first, load = turn // 2 % len(names), OtherLoad()
        order = names[first:] + names[:first]
        figures = {name: contestants[name]() for name in (reversed(order) if turn % 2 else order)}
        others = load.cores()
        if turn >= 0:
            found.append(Round(figures, others, others > others_may))
    return found


def run_child(file: str, *arguments: object, source: Path | None = None) -> Any:
    """Run a benchmark's own file in a new process, and return the JSON that it prints; exit if it fails.

    source: the directory that kcodec is imported from, if it is not the one of this process.
    """
    command = [sys.executable, file, *map(str, arguments)]
    environment = os.environ if source is None else {**os.environ, "PYTHONPATH": str(source.resolve())}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    if done.returncode or not done.stdout:
        raise SystemExit(f"{' '.join(command[1:])}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


# Statistics.


class Bar(NamedTuple):
    """The maximum of a figure or a ratio, or its minimum if `is_least` is true."""

    value: float
    is_least: bool = False


def rank_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the ends of the rank interval of the median, and the confidence that the median is between them."""
    ordered, number = sorted(values), len(values)
    outside, left_out = 2 / 2**number, 0  # the probability that the median is below or above all values
    while outside + 2 * math.comb(number, left_out + 1) / 2**number <= 1 - CONFIDENCE:
        left_out += 1
        outside += 2 * math.comb(number, left_out) / 2**number
    return ordered[left_out], ordered[-1 - left_out], max(0.0, 1 - outside)


@dataclass(frozen=True)
class Ratio:
    """The ratio of the times of two contestants: of the minima, and of the rounds with its interval."""

    of_minima: float
    median: float
    low: float
    high: float
    confidence: float


def ratio(slow: list[float], quick: list[float]) -> Ratio:
    """Return the ratio of `slow` to `quick`, of the minima and as median of the rounds."""
    of_rounds = [s / q for s, q in zip(slow, quick, strict=True)]
    return Ratio(min(slow) / min(quick), statistics.median(of_rounds), *rank_interval(of_rounds))


def verdict(value: float, bar: Bar, *, is_busy: bool = False) -> str:
    """Return whether a bar is met; it is not judged if other processes used too much of the machine."""
    if is_busy:
        return NOT_JUDGED
    return "met" if (value >= bar.value if bar.is_least else value <= bar.value) else "missed"


def compare(
    rounds: Sequence[Round],
    figure: str,
    first: str,
    second: str | None = None,
    *,
    case: str,
    unit: str,
    bar: Bar | None = None,
) -> Row:
    """Return one row of a result: the ratio of a figure, first / second, or the figure itself if there is no second.

    Rounds in which the second figure is 0 are left out. `others` is the load of the worst round that counts.
    """
    used = [one for one in rounds if not one.is_busy]
    is_busy = 2 * len(used) < len(rounds)
    if is_busy:
        used = list(rounds)
    if second is not None:
        used = [one for one in used if one.figures[second][figure]]
    if not used:
        raise ValueError(f"{case}: no round measured {figure!r} above 0 for {second}")
    samples = {name: [one.figures[name][figure] for one in used] for name in (first, second) if name is not None}
    divisors = samples[second] if second is not None else [1.0] * len(used)
    values = [one / other for one, other in zip(samples[first], divisors, strict=True)]
    value, (low, high, confidence) = statistics.median(values), rank_interval(values)
    row: Row = {"case": case, "figure": figure, "unit": unit, "first": first, "second": second}
    row |= {"medians": {name: short(statistics.median(each)) for name, each in samples.items()}}
    row |= {"value": short(value), "low": short(low), "high": short(high), "confidence": round(confidence, 3)}
    row |= {"rounds": len(rounds), "busy_rounds": sum(one.is_busy for one in rounds)}
    row["others"] = round(max(one.others for one in used), 2)
    if bar is not None:
        row |= {"bar": bar.value, "bar_is": "at least" if bar.is_least else "at most"}
        row["verdict"] = verdict(value, bar, is_busy=is_busy)
    return row | {"samples": {name: [short(value) for value in each] for name, each in samples.items()}}


def short(value: float) -> float:
    """Return a measured value with five significant digits."""
    return float(f"{value:.5g}")


def spread(samples: list[float], records: int) -> dict[str, float]:
    """Return minimum, median and maximum in ns per record."""
    scale = 1e9 / records
    named = {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}
    return {name: round(value * scale, 2) for name, value in named.items()}


def library_version(name: str, function: str) -> str | None:
    """Return the version that a system library reports; None if it is not installed."""
    try:
        tell = getattr(ctypes.CDLL(name), function)
    except (OSError, AttributeError):
        return None
    tell.restype = ctypes.c_char_p
    text: bytes = tell()
    return text.decode()


def cpu_model() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Return the commit of this checkout, with `-dirty` if files are changed; None if git is not available."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() or None
    return None


def machine() -> dict[str, Any]:
    """Return the properties of the machine on which the figures depend, without its name."""
    import contestants  # imported here, because the child processes of benchmarks do not need it
    import floor

    gcc = subprocess.run([floor.compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    systems = {
        "liblz4": library_version("liblz4.so.1", "LZ4_versionString"),
        "libzstd": library_version("libzstd.so.1", "ZSTD_versionString"),
        "libisal": "2" if "gzip" in floor.codecs() else None,
    }
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "compiler": gcc.splitlines()[0],
        "floor_crc": floor.crc_kind(),
        "system_libraries": {name: version for name, version in systems.items() if version},
        "versions": contestants.versions(),
    }


def report(parts: Mapping[str, Any], options: Mapping[str, Any], load: tuple[float, float]) -> dict[str, Any]:
    """Return the contents of a result file: the machine, the options, the load before and after, and the figures."""
    date, revision = datetime.datetime.now(datetime.UTC).date().isoformat(), commit()
    return {
        "date": date,
        "commit": revision,
        "machine": machine(),
        "options": dict(options),
        "load_average_1_min": {"before": round(load[0], 2), "after": round(load[1], 2)},
        "unit": "ns a record unless a name says otherwise",
        "measured": {name: {"date": date, "commit": revision} for name in parts},
        "parts": dict(parts),
    }


def save(path: Path | None, parts: Mapping[str, Any], options: Mapping[str, Any], load: float, **more: Any) -> None:
    """Write a result file, if there is a path; parts that are in the file and were not measured now stay in it.

    `load` is the load average before the run. `measured` in the file has the date and the commit of each part.
    """
    if path is None:
        return
    written = report(parts, options, (load, os.getloadavg()[0])) | more
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name, measured in before.get("measured", {}).items():
            written["measured"].setdefault(name, measured)
            written["parts"].setdefault(name, before["parts"][name])
    write_json(path, written)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a result file with one row of figures in each line, so that two files can be compared."""

    def lines(item: Any, depth: int) -> str:
        if depth and isinstance(item, dict) and item and any(isinstance(v, (dict, list)) for v in item.values()):
            pad = "  " * (4 - depth)
            inner = ",\n".join(f"{pad}{json.dumps(k)}: {lines(v, depth - 1)}" for k, v in item.items())
            return "{\n" + inner + "\n" + pad[2:] + "}"
        if depth and isinstance(item, list) and item and isinstance(item[0], dict):
            pad = "  " * (4 - depth)
            return "[\n" + ",\n".join(pad + json.dumps(v) for v in item) + "\n" + pad[2:] + "]"
        return json.dumps(item)

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(value, 3) + "\n", encoding="utf-8")


def print_table(title: str, rows: list[dict[str, Any]], shown: tuple[str, ...]) -> None:
    """Print rows as a table. An absent figure is blank, and bars that are missed are marked."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "met" if value else "MISSED"
        if isinstance(value, list):
            return " to ".join(map(cell, value))
        if isinstance(value, float):
            return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
        return str(value)

    grid = [shown, *(tuple(cell(row.get(name)) for name in shown) for row in rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(shown))]
    print(f"\n{title}")
    for line in grid:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def figure(value: float) -> str:
    """Return a measured value with four significant digits, and all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def value_text(row: Row) -> str:
    """Return the value of a comparison with its interval."""
    return f"{row['value']:.3g} ({row['low']:.3g} to {row['high']:.3g})"


def print_comparisons(title: str, rows: list[Row]) -> None:
    """Print rows of `compare` as a table: medians, the value with its interval, other load, and the bar."""
    print_table(title, [shown(row) for row in rows], SHOWN)


SHOWN = ("case", "figure", "unit", "first", "second", "compared", "value", "busy rounds", "others", "bar", "verdict")


def shown(row: Row) -> Row:
    """Return a row of `compare` as it is printed."""
    first, second = (figure(row["medians"][name]) if name else "" for name in (row["first"], row["second"]))
    bar = f"{row['bar_is']} {row['bar']:g}" if "bar" in row else ""
    compared = f"{row['first']} / {row['second']}" if row["second"] else row["first"]
    result = row.get("verdict", "")
    cells = {"first": first, "second": second, "compared": compared, "value": value_text(row), "bar": bar}
    cells["busy rounds"] = f"{row['busy_rounds']} of {row['rounds']}"
    return {**row, **cells, "verdict": result.upper() if result == "missed" else result}
