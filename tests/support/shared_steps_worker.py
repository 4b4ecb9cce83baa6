# SPDX-License-Identifier: Apache-2.0
"""A process that runs one step of a job with SharedTransactions and is killed in it; for test_shared_transactions.py.

SERVERS ID GROUP TOPIC DIES    prints the progress that it found; kills itself -9 "before" or "after" the commit
"""

from __future__ import annotations

import os
import signal
import sys

from kcodec.client import SharedTransactions, TransactionWriter
from kcodec.offsets import OffsetAndMetadata, TopicPartition


def run_step(servers: str, name: str, group: str, topic: str, dies: str) -> None:
    """Begin, write one record to each of two partitions, and be killed."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    shared = SharedTransactions(name, group, bootstrap_servers=servers)
    handle, progress = shared.begin(partitions)
    step = progress.offset if progress else 0
    print(step, flush=True)
    with TransactionWriter(handle, partitions, bootstrap_servers=servers, linger_ms=0) as writer:
        for partition in (0, 1):
            writer.send(topic, b"step %d" % step, partition=partition)
    if dies == "after":
        shared.commit(handle, [writer.receipt], OffsetAndMetadata(step + 1, f"after step {step}"))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_step(*sys.argv[1:])
