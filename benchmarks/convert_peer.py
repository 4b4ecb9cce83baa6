# SPDX-License-Identifier: Apache-2.0
"""kafka-python and pyarrow as a converter: a segment to Parquet, read in windows of whole batches, every CRC checked.

    python benchmarks/convert_peer.py SEGMENT OUT

Run in a fresh process by bench_cli.py. Row groups and compression are those of `kcodec convert`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from contestants import decode_kafka_python
from shapes import BATCH_LENGTH, LOG_OVERHEAD

WINDOW_BYTES = 1 << 20
ROW_GROUP_BYTES = 32 << 20


def windows(path: Path) -> Iterator[bytes]:
    """Yield whole batches, about WINDOW_BYTES at a time."""
    with path.open("rb", buffering=0) as file:
        rest = b""
        while piece := file.read(WINDOW_BYTES):
            rest += piece
            end = 0
            while end + LOG_OVERHEAD <= len(rest):
                size = LOG_OVERHEAD + int.from_bytes(rest[end + BATCH_LENGTH : end + LOG_OVERHEAD], "big")
                if end + size > len(rest):
                    break
                end += size
            yield rest[:end]
            rest = rest[end:]


def main() -> None:
    waiting: list[pa.RecordBatch] = []
    gathered = 0
    writer: pq.ParquetWriter | None = None
    for window in windows(Path(sys.argv[1])):
        batch = decode_kafka_python(window)
        writer = writer or pq.ParquetWriter(sys.argv[2], batch.schema, compression="zstd")
        waiting.append(batch)
        gathered += batch.get_total_buffer_size()
        if gathered >= ROW_GROUP_BYTES:
            table = pa.Table.from_batches(waiting)
            writer.write_table(table, row_group_size=table.num_rows)
            waiting, gathered = [], 0
    assert writer is not None
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    writer.close()


if __name__ == "__main__":
    main()
