# SPDX-License-Identifier: Apache-2.0
"""A process that runs steps of a job with SharedTransactions and is killed in one, for test_shared_transactions.py.

SERVERS ID GROUP TOPIC before|after    runs one step, prints its number, kills itself -9 before or after the commit
SERVERS ID GROUP TOPIC COUNT           runs the remaining steps of COUNT; it may be killed at any time
"""

from __future__ import annotations

import os
import signal
import sys

from kcodec.client import SharedTransactions, TransactionWriter
from kcodec.errors import UnknownOutcomeError
from kcodec.offsets import OffsetAndMetadata, TopicPartition


def run_step(shared: SharedTransactions, servers: str, topic: str, dies: str) -> int:
    """Run a step, one record for each of two partitions; return the number of the next one."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    handle, progress = shared.begin(partitions)
    step = progress.offset if progress else 0
    if dies.isdigit() and step >= int(dies):
        shared.abort(handle)
        return step
    print(step, flush=True)
    with TransactionWriter(handle, partitions, bootstrap_servers=servers, linger_ms=0) as writer:
        for partition in (0, 1):
            writer.send(topic, b"step %d" % step, partition=partition)
    if dies != "before":
        shared.commit(handle, [writer.receipt], OffsetAndMetadata(step + 1, f"after step {step}"), timeout=2)
    if not dies.isdigit():
        os.kill(os.getpid(), signal.SIGKILL)
    return step + 1


def run(servers: str, name: str, group: str, topic: str, dies: str) -> None:
    """Run steps until one is the last."""
    with SharedTransactions(name, group, bootstrap_servers=servers) as shared:
        done = 0
        while done < int(dies) if dies.isdigit() else True:
            try:
                done = run_step(shared, servers, topic, dies)
            except UnknownOutcomeError as error:
                print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
