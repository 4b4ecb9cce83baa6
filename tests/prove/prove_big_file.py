# SPDX-License-Identifier: Apache-2.0
"""Logs larger than memory should be: written, streamed to their end in a fresh process each, and measured.

    python tests/prove/prove_big_file.py FOLDER [--gigabytes 1.0]

Writes a segment of that size for each shape below into FOLDER and removes it again: large and small batches, plain,
compressed, and compressed to a hundredth; all of one transaction. Each is read by kcodec.open(...).to_arrow() under
both isolation levels, then through a filesystem object, and with follow=True. One line a reading; the exit status is 0
if all records came and VmHWM stayed below 200 MB, and 250 MB where blocks are fetched ahead.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from batch_writer import RecordSpec, build_batch, end_transaction_marker

MOST_RESIDENT = 200_000_000
# Four blocks of 4 MB, a window, and what pyarrow.fs holds.
MOST_RESIDENT_REMOTE = 250_000_000

READ = """
import json, sys
import pyarrow as pa
from pyarrow import fs
import kcodec
rows = batches = 0
path, level, way = sys.argv[1:]
root = fs.SubTreeFileSystem("/", fs.LocalFileSystem()) if way == "filesystem" else None
log = kcodec.open(path.lstrip("/") if root else path, filesystem=root)
following = {"follow": True, "timeout": 0} if way == "follow" else {}
for batch in pa.RecordBatchReader.from_stream(log.to_arrow(isolation_level=level, **following)):
    rows += batch.num_rows
    batches += 1
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"rows": rows, "batches": batches, "peak": int(peak) * 1024}))
"""


def shapes() -> dict[str, tuple[int, bytes]]:
    """Name -> (records in a batch, the batch)."""
    noise = random.Random(1).randbytes(1 << 20)

    def records(count: int, size: int, repeated: bool = False) -> list[RecordSpec]:
        def value(at: int) -> bytes:
            begin = 0 if repeated or size > 1 << 16 else at * 1009 % (len(noise) - size)
            return (noise[begin : begin + size] * (size // len(noise) + 1))[:size]

        return [RecordSpec(key=b"key-%06d" % at, value=value(at)) for at in range(count)]

    producer: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True}
    zstd = {**producer, "compression": "zstd"}
    return {
        "1000 records of 100 bytes": (1000, build_batch(records(1000, 100), **producer)),
        "10 records of 30 bytes": (10, build_batch(records(10, 30), **producer)),
        "500 records of 1 KiB, zstd": (500, build_batch(records(500, 1024), **zstd)),
        "500 records of the same KiB, zstd": (
            500,
            build_batch(records(500, 1024, True), **zstd),
        ),
        "one record of 8 MB": (1, build_batch(records(1, 8_000_000), **producer)),
    }


def batches(count: int, batch: bytes, size: int) -> Iterator[bytes]:
    """The batch at rising offsets up to `size` bytes; at the end COMMIT."""
    offset = 0
    for _ in range(size // len(batch)):
        yield struct.pack(">q", offset) + batch[8:]
        offset += count
    yield end_transaction_marker(1, producer_id=1, base_offset=offset)


WAYS = (
    ("read_uncommitted", ""),
    ("read_committed", ""),
    ("read_committed", "filesystem"),
    ("read_committed", "follow"),
)


def prove(path: Path, rows: int, isolation_level: str, way: str) -> str | None:
    """What is wrong with one reading, or None; prints its line."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path.absolute()), isolation_level, way],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(f"  {isolation_level} {way}: {found['rows']:,} rows, {found['peak'] / 1e6:.0f} MB resident at most")
    if found["rows"] != rows:
        return f"{found['rows']} rows instead of {rows}"
    most = MOST_RESIDENT_REMOTE if way == "filesystem" else MOST_RESIDENT
    return f"{found['peak']} bytes resident" if found["peak"] >= most else None


def main() -> int:
    """Writes, reads, removes; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="a large log at constant memory")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    arguments = parser.parse_args()
    size = int(arguments.gigabytes * 1e9)
    wrong = []
    for name, (count, batch) in shapes().items():
        print(f"{name}, {arguments.gigabytes} GB")
        path = arguments.folder / "big-0" / "00000000000000000000.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb", buffering=1 << 20) as file:
                file.writelines(batches(count, batch, size))
            for isolation_level, way in WAYS:
                found = prove(path, size // len(batch) * count, isolation_level, way)
                if found is not None:
                    wrong.append(f"{name}, {isolation_level} {way}: {found}")
        finally:
            path.unlink()
    for text in wrong:
        print(text)
    print(f"{len(WAYS) * len(shapes())} readings of {arguments.gigabytes} GB, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
