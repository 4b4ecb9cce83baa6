# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documentation with the code that users draw theirs with.

    python tools/draw_pictures.py            write docs/images/timeline*.svg
    python tools/draw_pictures.py --check    exit with 1 if one of them is out of date; `make lint` runs this

Each picture shows the transactions of a partition that is made here, from a fixed seed: 3, 100 and 10,000 transactions.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import kcodec

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FIRST_TIMESTAMP = 1_767_225_600_000
# Name of the file: (transactions, producers, maximum number of records of a transaction, concurrent transactions).
PICTURES = {
    "timeline-3.svg": (3, 3, 20, 3),
    "timeline.svg": (16, 5, 14, 3),
    "timeline-100.svg": (100, 6, 30, 4),
    "timeline-10000.svg": (10_000, 300, 12, 8),
}


def write_partition(folder: Path, transactions: int, producers: int, records: int, concurrent: int) -> Path:
    """Write a partition directory with this number of transactions, of which the last is open, and return its path."""
    chance = random.Random(transactions)
    partition = folder / "orders-0"
    partition.mkdir()
    batches: list[bytes] = []
    open_transactions: dict[int, int] = {}
    offset = begun = 0

    def write(producer_id: int) -> None:
        nonlocal offset
        count = chance.randint(1, records)
        time = FIRST_TIMESTAMP + offset * 50
        rows = [(b"key", b"value", None, time)] * count
        encoded = kcodec.encode(
            rows,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        batches.append(bytes(encoded))
        offset += count
        open_transactions[producer_id] = open_transactions.get(producer_id, 0) + 1

    while begun < transactions or len(open_transactions) > 1:
        if begun < transactions and len(open_transactions) < concurrent:
            free = [number for number in range(producers) if 9001 + number not in open_transactions]
            # Producers come and go, as those of short-lived jobs do.
            at = min(int(begun / transactions * len(free) + chance.random() * 3), len(free) - 1)
            write(9001 + free[at])
            begun += 1
            continue
        producer_id = chance.choice(list(open_transactions)[: -1 if begun == transactions else None])
        if open_transactions[producer_id] < 3 and chance.random() < 0.5:
            write(producer_id)
            continue
        marker = kcodec.encode_end_transaction_marker(
            "ABORT" if chance.random() < 0.2 else "COMMIT",
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            base_offset=offset,
            timestamp=FIRST_TIMESTAMP + offset * 50,
        )
        batches.append(marker)
        offset += 1
        del open_transactions[producer_id]
    (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    return partition


def main() -> int:
    """Write or compare the pictures, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 if a picture is out of date")
    check: bool = parser.parse_args().check
    stale = []
    for name, (transactions, producers, records, concurrent) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            log = kcodec.open(write_partition(Path(folder), transactions, producers, records, concurrent))
            assert isinstance(log, kcodec.log.Log)
            svg = log.timeline().to_svg()
        path = IMAGES / name
        if check and (not path.exists() or path.read_text() != svg):
            stale.append(str(path.relative_to(IMAGES.parent.parent)))
        elif not check:
            path.write_text(svg)
    if stale:
        print(f"out of date: {', '.join(stale)}; run: python tools/draw_pictures.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
