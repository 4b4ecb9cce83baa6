# SPDX-License-Identifier: Apache-2.0
"""`land` in processes that die by SIGKILL before a random line of its modules, one after the other, in one folder.

    python tests/support/landing_kills.py SERVERS TOPIC FOLDER [--kills N] [--seed SEED]

Tasks run in the process of the driver, as this needs no Java and kills quickly; everything else is real. Prints the
seed, the lines, and at last a JSON object. The last run, which is not killed, lands what is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pyarrow as pa

from kcodec.spark import landing, landing_folder, parquet_files, topic_source, topic_stream  # noqa: F401, before processes are forked

FILES = {str(module.__file__) for module in (landing, landing_folder, parquet_files)}
LIMITS = {"maxOffsetsPerTrigger": 40}


class Tasks:
    """The methods of a SparkSession and of a DataFrame that `land` uses, in this process."""

    def range(self, start: int, end: int, step: int, partitions: int) -> Tasks:
        self.numbers = range(start, end, step)
        return self

    def mapInArrow(self, function: Callable[[Any], Iterator[pa.RecordBatch]], schema: str) -> Tasks:
        self.function = function
        return self

    def collect(self) -> list[Any]:
        tasks = (pa.record_batch([[number]], names=["id"]) for number in self.numbers)
        return [SimpleNamespace(**row) for batch in self.function(tasks) for row in batch.to_pylist()]


def land(servers: str, topic: str, folder: Path, **limits: Any) -> landing.Landing:
    tasks: Any = Tasks()
    return landing.land(tasks, topic, folder / "land", bootstrap_servers=servers, **limits)


def lines_of(run: Callable[[], object]) -> int:
    """The number of lines of `land` that a run executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in FILES:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


def run_until(line: int, run: Callable[[], object]) -> None:
    """Run, and kill this process before the line of this number."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in FILES:
            return None
        count += event == "line"
        if event == "line" and count >= line:
            print(f"killed before {Path(frame.f_code.co_filename).name}:{frame.f_lineno}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    run()


def in_child(run: Callable[[], object]) -> int:
    """The wait status of a process that runs it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException as error:  # noqa: BLE001, for the parent to report
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    print(f"seed {given.seed}")
    chosen = random.Random(given.seed)
    lengths = given.folder / "lengths"

    def first() -> None:
        count = lines_of(lambda: land(given.servers, given.topic, given.folder / "counted", **LIMITS))
        lengths.write_text(str(count))

    if in_child(first) != 0:
        return 1
    count = int(lengths.read_text())
    kills = 0
    while kills < given.kills:
        # A landing that finishes another one executes more lines than the one that was counted.
        line = chosen.randrange(1, count + count // 4)
        status = in_child(partial(run_until, line, partial(land, given.servers, given.topic, given.folder, **LIMITS)))
        if os.WIFSIGNALED(status):
            kills += 1
        elif status != 0:
            return 1
    if in_child(lambda: land(given.servers, given.topic, given.folder)) != 0:
        return 1
    print(json.dumps({"kills": kills, "lines": count, "landings": len(landing.landings(given.folder / "land"))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
