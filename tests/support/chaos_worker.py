# SPDX-License-Identifier: Apache-2.0
"""An application that is killed repeatedly. It writes the numbers 0, 1, 2 ... to a topic, each once.

Its progress is the committed offset of a group, which it sends in the transaction with the records, as in
consume-transform-produce. It can therefore be started again without any other state. Every second transaction is first
aborted at its end. It prints lines: `committed N` (all numbers below N are committed), `aborted N`, `error CLASS text`,
`done`.

With --without-transactions it is the control: the numbers are sent by an idempotent producer, and the progress is a
file that is written when a chunk has been acknowledged. Records acknowledged but not yet in the file are sent again.

The number n goes to partition n % partitions; the value is "n attempt kind padding", kind C for data meant to be
committed and A for data meant to be aborted. An attempt has an id that no other has.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from pathlib import Path

from kcodec import TopicPartition
from kcodec.client import Admin, Producer
from kcodec.errors import AbortableTransactionError, KcodecError
from kcodec.offsets import ConsumerGroupMetadata

VALUE_BYTES = 100
# Small, so that a transaction has several batches in a partition, several of which are in flight when a process is
# killed.
BATCH_BYTES = 1000
DEADLINE_SECONDS = 60.0


class Abort(Exception):
    """Raised by the application to abort a transaction."""


def say(*words: object) -> None:
    print(*words, flush=True)


def committed_offset(servers: str, group: str, source: TopicPartition) -> int:
    """Return the committed offset of the group, when no open transaction can change it; 0 if there is none."""
    with Admin(bootstrap_servers=servers) as admin:
        offsets = admin.list_group_offsets(group, [source], require_stable=True, timeout=DEADLINE_SECONDS)
    found = offsets.get(source)
    return found.offset if found is not None else 0


class Application:
    """One life of the application."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.source = TopicPartition(arguments.topic, 0)
        self.life = uuid.uuid4().hex[:8]
        self.attempts = 0

    def values(self, first: int, end: int, kind: str) -> list[tuple[int, bytes]]:
        """(partition, value) of the numbers of one attempt."""
        self.attempts += 1
        attempt = f"{self.life}-{self.attempts}"
        return [
            (number % self.arguments.partitions, f"{number} {attempt} {kind} ".encode().ljust(VALUE_BYTES, b"."))
            for number in range(first, end)
        ]

    def run(self) -> None:
        """Write all numbers. A producer that cannot be used any more is replaced."""
        done = False
        while not done:
            try:
                with Producer(
                    bootstrap_servers=self.arguments.servers,
                    transactional_id=self.arguments.id,
                    compression_type="lz4",
                    batch_size=BATCH_BYTES,
                    max_block_ms=30_000,
                ) as producer:
                    producer.init_transactions()
                    done = self.write(producer)
            except KcodecError as error:
                say("error", type(error).__name__, str(error).replace("\n", " "))

    def write(self, producer: Producer) -> bool:
        """Run transactions with this producer. Return whether all numbers are written. Raise an error that requires a
        new producer."""
        arguments = self.arguments
        group = ConsumerGroupMetadata(arguments.group)
        first = committed_offset(arguments.servers, arguments.group, self.source)
        while first < arguments.count:
            end = min(first + arguments.chunk, arguments.count)
            try:
                if first // arguments.chunk % 2:
                    self.transact(producer, first, end, "A", group)
                    say("aborted", end)
                self.transact(producer, first, end, "C", group)
            except AbortableTransactionError as error:  # it is aborted, and the producer can be used again
                say("error", type(error).__name__, str(error).replace("\n", " "))
                first = committed_offset(arguments.servers, arguments.group, self.source)
            else:
                say("committed", end)
                first = end
        return True

    def transact(self, producer: Producer, first: int, end: int, kind: str, group: ConsumerGroupMetadata) -> None:
        """One transaction: commit, or for kind A abort by an exception."""
        try:
            with producer.transaction() as txn:
                for partition, value in self.values(first, end, kind):
                    txn.send(self.arguments.topic, value, partition=partition)
                txn.send_offsets({self.source: end}, group)
                if kind == "A":
                    producer.flush()  # so that there is something to abort in the log
                    raise Abort
        except Abort:
            return

    def run_without_transactions(self) -> None:
        """The control."""
        progress = Path(self.arguments.progress)
        first = int(progress.read_text()) if progress.exists() else 0
        with Producer(
            bootstrap_servers=self.arguments.servers, compression_type="lz4", batch_size=BATCH_BYTES
        ) as producer:
            while first < self.arguments.count:
                end = min(first + self.arguments.chunk, self.arguments.count)
                deliveries = [
                    producer.send(self.arguments.topic, value, partition=partition)
                    for partition, value in self.values(first, end, "C")
                ]
                for delivery in deliveries:
                    delivery.result()
                scratch = progress.with_suffix(".new")
                scratch.write_text(str(end))
                os.replace(scratch, progress)  # noqa: PTH105 (the call that is atomic, by name)
                say("committed", end)
                first = end


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--chunk", type=int, required=True)
    parser.add_argument("--id", default="chaos")
    parser.add_argument("--group", default="chaos-progress")
    parser.add_argument("--without-transactions", action="store_true")
    parser.add_argument("--progress", help="the control's file")
    application = Application(parser.parse_args())
    if application.arguments.without_transactions:
        application.run_without_transactions()
    else:
        application.run()
    say("done")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
