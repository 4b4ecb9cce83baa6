# SPDX-License-Identifier: Apache-2.0
"""Stream one segment file to pyarrow, drop each batch, and print time and peak memory as JSON.

run.py runs this in a new process, because VmHWM is the peak of the whole process, including imports.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa

import kcodec


def high_water_mark() -> float:
    """Return the peak resident memory of this process so far, in MB (10^6 bytes)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmHWM: this part needs Linux")


def main() -> None:
    before, begin = high_water_mark(), time.perf_counter()
    records = batches = 0
    for batch in pa.RecordBatchReader.from_stream(kcodec.open(sys.argv[1]).to_arrow()):
        records += batch.num_rows
        batches += 1
    seconds = time.perf_counter() - begin
    json.dump(
        {"records": records, "batches": batches, "seconds": seconds, "peak": high_water_mark(), "imports": before},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
