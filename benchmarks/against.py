# SPDX-License-Identifier: Apache-2.0
"""Compare this checkout with another one, cell by cell, in interleaved pairs.

    git worktree add ../before COMMIT && make -C ../before build
    python benchmarks/against.py ../before [--pairs 9] [--cells decode,encode,send] [--json FILE]

Each checkout runs in a process of its own, which stays alive. In each pair both measure the same cell one after the
other, in an order that changes with each pair, so that whatever disturbs the machine disturbs both. Measured is
processor time of the process, for a record or a call. Shown are the median of the ratios here / there, and the interval
of the ratios without the lowest and the highest one. A cell whose interval is wholly above 1.03 is marked: it is
slower now. The clients' cells use one Apache Kafka for both checkouts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from against_worker import CELLS, needs_broker

HERE = Path(__file__).resolve().parent.parent
#: A cell is slower if its whole interval is above this ratio.
LIMIT = 1.03
PRODUCED = 200_000


class Worker:
    """A process that measures cells with the kcodec of one checkout."""

    def __init__(self, checkout: Path, servers: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
        command = [sys.executable, str(Path(__file__).with_name("against_worker.py")), str(checkout), servers]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure(self, cell: str) -> float:
        """Return processor seconds for a record or a call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{cell}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that measures {cell!r} ended with status {self._process.wait()}")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def compare(here: Worker, there: Worker, cell: str, pairs: int) -> dict[str, Any]:
    """Measure one cell in pairs, after one pair that is not counted."""
    here.measure(cell), there.measure(cell)
    times: list[tuple[float, float]] = []
    for turn in range(pairs):
        if turn % 2:
            before, now = there.measure(cell), here.measure(cell)
        else:
            now, before = here.measure(cell), there.measure(cell)
        times.append((now, before))
    ratios = sorted(now / before for now, before in times)
    inner = ratios[1:-1] or ratios
    return {
        "cell": cell,
        "here_us": min(now for now, _ in times) * 1e6,
        "there_us": min(before for _, before in times) * 1e6,
        "ratio": statistics.median(ratios),
        "low": inner[0],
        "high": inner[-1],
        "pairs": pairs,
        "is_slower": inner[0] > LIMIT,
    }


def line_of(row: dict[str, Any]) -> str:
    """Return a cell as a line of the table."""
    mark = "  slower" if row["is_slower"] else ""
    return (
        f"{row['cell']:28} {row['here_us']:10.3f} {row['there_us']:10.3f} {row['ratio']:7.3f} "
        f"{row['low']:6.3f} to {row['high']:6.3f}{mark}"
    )


def commit_of(checkout: Path) -> str:
    """Return the short name of the commit that is checked out."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a cell has become slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other checkout, built")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--cells", default="", help="only cells whose name contains one of these, with commas between")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    wanted = [word for word in options.cells.split(",") if word]
    cells = [cell for cell in CELLS if not wanted or any(word in cell for word in wanted)]
    with ExitStack() as stack:
        servers = ""
        if any(needs_broker(cell) for cell in cells):
            from against_worker import fill

            from kcodec.testing.kafka import ApacheKafka

            servers = stack.enter_context(ApacheKafka()).bootstrap_servers
            fill(servers, PRODUCED)
        here, there = Worker(HERE, servers), Worker(options.checkout.resolve(), servers)
        stack.callback(here.close)
        stack.callback(there.close)
        print(f"{'cell':28} {'here us':>10} {'there us':>10} {'ratio':>7} interval (load {os.getloadavg()[0]:.1f})")
        rows = []
        for cell in cells:
            rows.append(compare(here, there, cell, options.pairs))
            print(line_of(rows[-1]), flush=True)
    slower = [row["cell"] for row in rows if row["is_slower"]]
    print(f"{len(rows)} cells, load {os.getloadavg()[0]:.1f}; slower: {', '.join(slower) or 'none'}")
    if options.json is not None:
        result = {"here": commit_of(HERE), "there": commit_of(options.checkout), "cells": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
