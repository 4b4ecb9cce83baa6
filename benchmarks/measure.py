# SPDX-License-Identifier: Apache-2.0
"""How figures come about: contestants take turns in one run, so that what disturbs one disturbs all.

A round gives each contestant one slice of time, in an order that rotates; a slice is one untimed call and then calls
until `seconds` are over. What is kept is the mean of a slice. Ratios are taken of minima (what the code can do) and as
medians of the rounds' own ratios (what it did compared with the others).
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contestants
import floor

Case = Callable[[], object]
Timer = Callable[[float], float]
Samples = dict[str, list[float]]

# How many cores other processes may use in a round of one thread (of two there are) and in one of two threads.
OTHERS_OF_ONE, OTHERS_OF_TWO = 0.5, 0.1
# Above this a figure of two threads says nothing: they had no second core.
TOO_BUSY_FOR_TWO = 0.25


def one_slice(case: Case, seconds: float) -> float:
    """Mean seconds a call, over calls that take `seconds` together (one at least), after one untimed call."""
    case()
    calls, begin = 0, time.perf_counter()
    while True:
        case()
        calls += 1
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return spent / calls


def one_round(timers: Mapping[str, Timer], turn: int, seconds: float) -> dict[str, float]:
    """Each contestant's slice, in an order that rotates with `turn`."""
    gc.collect()
    names = list(timers)
    return {name: timers[name](seconds) for name in (names[(turn + i) % len(names)] for i in range(len(names)))}


def as_timers(cases: Mapping[str, Case]) -> dict[str, Timer]:
    """Cases of this process as timers; a worker in another process brings its own."""
    return {name: functools.partial(one_slice, case) for name, case in cases.items()}


def columns(rounds: list[dict[str, float]]) -> Samples:
    """Rounds turned into one list a contestant."""
    return {name: [one[name] for one in rounds] for name in rounds[0]}


def interleaved_timers(timers: Mapping[str, Timer], rounds: int, seconds: float) -> Samples:
    """Seconds a call for each timer, one figure a round."""
    return columns([one_round(timers, turn, seconds) for turn in range(rounds)])


def busy_seconds() -> float:
    """CPU seconds all cores have spent in anything but idling and waiting, since boot (/proc/stat, 10 ms steps)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def interleaved(
    cases: Mapping[str, Case], rounds: int, seconds: float, *, patience: int = 1, others_may: float = OTHERS_OF_ONE
) -> tuple[Samples, float]:
    """Seconds a call for each case, one figure a round; a round in which other processes used too much is made again.

    Too much is more than `others_may` cores. At most `patience` times `rounds` are made, and of those the quietest are
    kept. Also returned: how many cores others used in the worst round kept.
    """
    timers, quiet = as_timers(cases), 0
    made: list[tuple[float, dict[str, float]]] = []
    while quiet < rounds and len(made) < rounds * patience:
        begin, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
        samples = one_round(timers, len(made), seconds)
        used = busy_seconds() - busy - (time.process_time() - own)
        others = max(0.0, used / (time.perf_counter() - begin))
        made.append((others, samples))
        quiet += others <= others_may
    made.sort(key=lambda one: one[0])
    return columns([samples for _, samples in made[:rounds]]), made[min(rounds, len(made)) - 1][0]


@dataclass(frozen=True)
class Ratio:
    """How much longer `slow` takes than `quick`."""

    of_minima: float
    median: float


def ratio(slow: list[float], quick: list[float]) -> Ratio:
    """`slow` over `quick`, of the minima and as median of the rounds."""
    return Ratio(min(slow) / min(quick), statistics.median(s / q for s, q in zip(slow, quick, strict=True)))


def spread(samples: list[float], records: int) -> dict[str, float]:
    """Minimum, median and maximum in ns a record."""
    scale = 1e9 / records
    named = {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}
    return {name: round(value * scale, 2) for name, value in named.items()}


def library_version(name: str, function: str) -> str | None:
    """The version a system library tells of itself; None where it is not installed."""
    try:
        tell = getattr(ctypes.CDLL(name), function)
    except (OSError, AttributeError):
        return None
    tell.restype = ctypes.c_char_p
    text: bytes = tell()
    return text.decode()


def cpu_model() -> str:
    """The processor's name, from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the figures depend on, and nothing that names the machine."""
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
    """A result file: the machine, what was asked for, the load before and after, and the figures of each part."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "options": dict(options),
        "load_average_1_min": {"before": round(load[0], 2), "after": round(load[1], 2)},
        "unit": "ns a record unless a name says otherwise",
        "parts": dict(parts),
    }


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A result file, one row of figures a line so that two of them can be compared by eye."""

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
    """Rows as a table; an absent figure is a blank, bars that are missed are marked."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "met" if value else "MISSED"
        if isinstance(value, float):
            return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
        return str(value)

    grid = [shown, *(tuple(cell(row.get(name)) for name in shown) for row in rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(shown))]
    print(f"\n{title}")
    for line in grid:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()
