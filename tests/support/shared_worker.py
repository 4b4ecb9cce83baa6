# SPDX-License-Identifier: Apache-2.0
"""A process that takes part in a shared transaction, to be killed; for prove_shared_transaction.py.

own SERVERS ID TOPIC PARTITIONS          begins, prints the handle, waits to be killed or for the line "leave"
write SERVERS HANDLE TOPIC PARTITION ROUND COUNT DIES_AFTER
                                         writes, prints its receipt; kills itself after DIES_AFTER records (-1: never)
end SERVERS HANDLE commit|abort RECEIPTS ends it, from a process that did not write; twice, as after a lost response
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from kcodec.client import (
    Producer,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    abort_transaction,
    commit_transaction,
)
from kcodec.offsets import TopicPartition


def value(number: int, partition: int, row: int) -> bytes:
    """Return the value of one record, which is unique."""
    return b"%06d/%d/%06d" % (number, partition, row)


def own(servers: str, name: str, topic: str, count: str) -> None:
    """Run the owner, which prints the handle and writes nothing."""
    producer = Producer(bootstrap_servers=servers, transactional_id=name)
    with producer.transaction(partitions=[TopicPartition(topic, number) for number in range(int(count))]) as txn:
        print(txn.handle.to_json(), flush=True)
        sys.stdin.readline()
        os._exit(0)  # it exits without ending the transaction, which a process with the handle will do


def write(servers: str, handle: str, topic: str, partition: str, number: str, count: str, dies_after: str) -> None:
    """One writer."""
    own_partition = TopicPartition(topic, int(partition))
    with TransactionWriter(
        TransactionHandle.from_json(handle), [own_partition], bootstrap_servers=servers, linger_ms=1
    ) as writer:
        for row in range(int(count)):
            delivery = writer.send(topic, value(int(number), int(partition), row))
            if row == int(dies_after):
                delivery.result(60)
                os.kill(os.getpid(), signal.SIGKILL)
    records, last_sequence = writer.receipt[own_partition]
    print(json.dumps([*own_partition, records, last_sequence]), flush=True)


def end(servers: str, handle: str, how: str, receipts: str) -> None:
    """Run the process that ends the transaction."""
    known = TransactionHandle.from_json(handle)
    rows = json.loads(receipts)
    for _ in range(2):
        if how == "commit":
            found = [WriterReceipt({TopicPartition(topic, part): (count, last)}) for topic, part, count, last in rows]
            commit_transaction(known, bootstrap_servers=servers, receipts=found)
        else:
            abort_transaction(known, bootstrap_servers=servers)


if __name__ == "__main__":
    steps: dict[str, Callable[..., None]] = {"own": own, "write": write, "end": end}
    steps[sys.argv[1]](*sys.argv[2:])
