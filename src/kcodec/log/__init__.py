# SPDX-License-Identifier: Apache-2.0
"""One log on disk: segments and partition directories, read at constant memory.

``kcodec.open(path)`` gives a Log; the other names are what it gives and what reads a part of it elsewhere:

    log = kcodec.open("orders-0")
    splits, verdict = log.splits(), log.verdict("read_committed")      # headers only; both pickle
    for decoded in read_split(splits[0], verdict, isolation_level="read_committed"): ...

windows.py reads files, segment.py tells a torn tail from damage, timeline.py settles transactions, chunks.py streams
records, splits.py cuts ranges, partition.py puts them together, opening.py finds what lies at a path.
"""

from kcodec.log.batches import Batches
from kcodec.log.chunks import Chunks, RecordsStream
from kcodec.log.opening import open, open_partition, open_segment  # noqa: A004  kcodec.open is the public name
from kcodec.log.partition import Log
from kcodec.log.segment import Segment, Tail
from kcodec.log.splits import Split, read_split
from kcodec.log.timeline import Transaction, Verdict

__all__ = [
    "Batches",
    "Chunks",
    "Log",
    "RecordsStream",
    "Segment",
    "Split",
    "Tail",
    "Transaction",
    "Verdict",
    "open",
    "open_partition",
    "open_segment",
    "read_split",
]
