# SPDX-License-Identifier: Apache-2.0
"""A consumer in a separate process, whose memory is measured: fetch_flood_client.py BOOTSTRAP PARTITIONS SECONDS.

It prints the peak increase of resident bytes while nothing is polled, and then the number of partitions that were read.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from kcodec import TopicPartition
from kcodec.client import Consumer

SECONDS_TO_READ = 60.0


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(servers: str, partitions: int, seconds: float) -> None:
    logging.basicConfig(level=logging.ERROR)
    with Consumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        fetch_ahead_max_bytes=8 << 20,
        fetch_max_bytes=1 << 20,
        request_timeout_ms=30_000,
    ) as consumer:
        consumer.assign([])
        before = most = resident()
        consumer.assign([TopicPartition("flood", number) for number in range(partitions)])
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            most = max(most, resident())
            time.sleep(0.005)
        print(most - before, flush=True)
        read: set[int | None] = set()
        end = time.monotonic() + SECONDS_TO_READ
        while len(read) < partitions and time.monotonic() < end:
            read |= {record.partition for record in consumer.poll(1.0)}
        print(len(read), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
