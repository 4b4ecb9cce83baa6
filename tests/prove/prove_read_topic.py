# SPDX-License-Identifier: Apache-2.0
"""read_topic of two gigabytes, in a fresh process: memory below 300 MB, and the same for an eighth of the topic.

    python tests/prove/prove_read_topic.py [--megabytes 2048] [--results FOLDER]

A real broker gets a topic of four partitions with values of 1 KiB that do not compress, nine of ten transactions
committed, and another of small, compressible records in lz4. Each is read whole and in part by `kcodec.read_topic` as a
stream of pyarrow batches; VmHWM is what Linux says of the reader's memory at its highest, Python and pyarrow included.
Records are counted and compared with what was written. Written to read-topic.txt in tests/results (or FOLDER).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow

from kcodec.client import Producer
from kcodec.testing.kafka import ApacheKafka

MOST_MEGABYTES = 300
PARTITIONS = 4
READER = """
import json, sys, time
import pyarrow
import kcodec

servers, topic = sys.argv[1:3]
end = {int(number): offset for number, offset in json.loads(sys.argv[3]).items()} or "latest"
begun = time.monotonic()
rows = size = 0
with kcodec.read_topic(topic, bootstrap_servers=servers, end=end) as records:
    for batch in pyarrow.RecordBatchReader.from_stream(records):
        rows += batch.num_rows
        size += batch.nbytes
    told = {str(partition): [one.start, one.end, one.next_offset] for partition, one in records.offsets.items()}
    counts, fetched = list(records.counts), records.bytes_fetched
seconds = time.monotonic() - begun
peak = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps({"rows": rows, "size": size, "offsets": told, "counts": counts, "fetched": fetched,
                  "seconds": seconds, "peak": peak / 1024}))
"""


@dataclass
class Written:
    """What a topic holds: records committed and in all, and how many of the latter each transaction brought."""

    topic: str
    committed: int = 0
    total: int = 0


def write(kafka: ApacheKafka, megabytes: int, value_bytes: int, compression: Any) -> Written:
    """Transactions of about 32 MB until so much is stored, counted before compression."""
    written = Written(kafka.create_topic(partitions=PARTITIONS))
    random = Random(7)
    noise = random.randbytes(1 << 20) if compression == "none" else random.randbytes(1 << 19).hex().encode()
    rows = (32 << 20) // value_bytes
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers,
        transactional_id=f"write-{written.topic}",
        compression_type=compression,
        batch_size=256 << 10,
        linger_ms=5,
        buffer_memory=64 << 20,
    ) as producer:
        for number in range(max(1, megabytes // 32)):
            begins = [random.randrange(len(noise) - value_bytes) for _ in range(rows)]
            table = pyarrow.table(
                {
                    "value": pyarrow.array([noise[at : at + value_bytes] for at in begins], pyarrow.binary()),
                    "partition": pyarrow.array([at % PARTITIONS for at in range(rows)], pyarrow.int32()),
                }
            )
            with producer.transaction() as transaction:
                transaction.send_arrow(written.topic, table)
                if number % 10 == 9:
                    transaction.abort()
            written.total += rows
            written.committed += 0 if number % 10 == 9 else rows
    return written


def read(kafka: ApacheKafka, topic: str, end: dict[int, int]) -> dict[str, object]:
    """In a process of its own."""
    command = [sys.executable, "-c", READER, kafka.bootstrap_servers, topic, json.dumps(end)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> int:
    """Both topics, whole and an eighth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    arguments = parser.parse_args()
    lines = [f"tests/prove/prove_read_topic.py --megabytes {arguments.megabytes}; bar: VmHWM < {MOST_MEGABYTES} MB", ""]
    failed = False
    with ApacheKafka() as kafka:
        for name, value_bytes, compression, megabytes in (
            ("1 KiB, not compressed", 1024, "none", arguments.megabytes),
            ("100 B in lz4", 100, "lz4", arguments.megabytes // 4),
        ):
            begun = time.monotonic()
            written = write(kafka, megabytes, value_bytes, compression)
            wrote = time.monotonic() - begun
            whole = read(kafka, written.topic, {})
            part = read(kafka, written.topic, dict.fromkeys(range(PARTITIONS), written.total // PARTITIONS // 8))
            wrong = (
                [] if whole["rows"] == written.committed else [f"{whole['rows']} of {written.committed} records read"]
            )
            if any(following != end for _, end, following in whole["offsets"].values()):  # type: ignore[attr-defined]
                wrong.append("a partition was not read to its end")
            wrong += [
                f"VmHWM {one['peak']:.0f} MB" for one in (whole, part) if float(str(one["peak"])) >= MOST_MEGABYTES
            ]
            failed = failed or bool(wrong)
            lines.append(
                f"{name:<24} {float(str(whole['fetched'])) / 1e6:.0f} MB of batches, {written.committed} records "
                f"committed of {written.total}, written in {wrote:.0f} s; read in {whole['seconds']:.1f} s, "
                f"VmHWM {whole['peak']:.0f} MB; an eighth of it VmHWM {part['peak']:.0f} MB: "
                f"{'; '.join(wrong) or 'ok'}"
            )
            print(lines[-1], flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "read-topic.txt").write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
