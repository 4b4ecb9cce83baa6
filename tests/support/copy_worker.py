# SPDX-License-Identifier: Apache-2.0
"""A process that copies a topic to another, partition to partition, until its input ends, and may be killed at any
time.

It is the counterpart of Kafka's TransactionalMessageCopier with a GroupTransactSession. Each transaction has a fixed
number of records, and a share of the transactions is aborted at random. It prints lines: `copied N` (a transaction of N
records was committed), `aborted N` (intentionally), `undone N` (by a rebalance), `error CLASS text`. After an error it
continues with the same session, or with a new one if the error requires that.

With --asyncio the session is that of kcodec.client.aio. With --by-hand it uses a Consumer and a Producer, as programs
with Kafka's clients do. With --stops it stops itself by SIGSTOP between poll and the first offsets that it sends, and
waits for a moment when it continues, as if its work took long.

Controls use a Consumer and a Producer incorrectly. --control outside commits offsets outside of the transactions, every
fourth time: a process that takes over after a kill copies records again. --control nameless sends offsets in the
transactions without the generation of the group (as before KIP-447), so that it is not fenced when its partitions are
assigned to another member.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Consumer, GroupTransactSession, Producer, aio
from kcodec.errors import AbortableTransactionError, FatalTransactionError, KcodecError, ProducerFencedError

POLL_SECONDS = 0.2
# A transaction ends after this time even if there are not enough records to copy.
TRANSACTION_SECONDS = 1.0
RECORDS_A_POLL = 250
CONTROL_COMMITS_EVERY = 4
WORK_SECONDS = 2.0


def say(*words: object) -> None:
    print(*words, flush=True)


def say_error(error: KcodecError) -> None:
    say("error", type(error).__name__, str(error).replace("\n", " "))


def consumer_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a member of the group. With KIP-848 the broker determines the session timeout."""
    options: dict[str, Any] = {
        "bootstrap_servers": arguments.servers,
        "client_id": arguments.id,
        "group_id": arguments.group,
        "group_protocol": arguments.protocol,
        "auto_offset_reset": "earliest",
        "max_poll_records": min(RECORDS_A_POLL, arguments.size),
    }
    if arguments.protocol == "classic":
        options["partition_assignment_strategy"] = [arguments.strategy]
        options |= {"session_timeout_ms": arguments.session_timeout_ms, "heartbeat_interval_ms": 500}
    return options


def producer_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of Kafka's system test: small batches, several in flight."""
    return {
        "transactional_id": arguments.id,
        "transaction_timeout_ms": arguments.transaction_timeout_ms,
        "batch_size": 4096,
    }


class Copier:
    """One life of the process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.is_over = threading.Event()
        self.chance = random.Random(arguments.seed)
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.is_over.set()

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                if self.arguments.control:
                    self.copy_wrongly()
                elif self.arguments.by_hand:
                    self.copy_by_hand()
                elif self.arguments.asyncio:
                    asyncio.run(self.copy_on_loop())
                else:
                    self.copy()
            except KcodecError as error:
                say_error(error)

    def copy(self) -> None:
        """Copy with one session, until the input ends or a new session is needed."""
        options = {**consumer_options(self.arguments), **producer_options(self.arguments)}
        with GroupTransactSession(topics=[self.arguments.source], **options) as session:
            while not self.is_over.is_set():
                try:
                    self.transact(session)
                except (ProducerFencedError, FatalTransactionError):
                    raise
                except KcodecError as error:
                    say_error(error)

    def transact(self, session: GroupTransactSession) -> None:
        """One transaction."""
        wants_abort = self.chance.random() < self.arguments.abort_share
        copied = 0
        with session.transaction() as txn:
            until = time.monotonic() + TRANSACTION_SECONDS
            while copied < self.arguments.size and time.monotonic() < until and not self.is_over.is_set():
                copied += self.send(txn, txn.poll(timeout=POLL_SECONDS))
            if wants_abort:
                txn.abort()
        if copied:
            say("aborted" if wants_abort else "copied" if txn.committed else "undone", copied)

    async def copy_on_loop(self) -> None:
        """`copy`, on an asyncio loop."""
        options = {**consumer_options(self.arguments), **producer_options(self.arguments)}
        async with aio.GroupTransactSession(topics=[self.arguments.source], **options) as session:
            while not self.is_over.is_set():
                try:
                    await self.transact_on_loop(session)
                except (ProducerFencedError, FatalTransactionError):
                    raise
                except KcodecError as error:
                    say_error(error)

    async def transact_on_loop(self, session: aio.GroupTransactSession) -> None:
        """`transact`, on an asyncio loop."""
        wants_abort = self.chance.random() < self.arguments.abort_share
        copied = 0
        async with session.transaction() as txn:
            until = time.monotonic() + TRANSACTION_SECONDS
            while copied < self.arguments.size and time.monotonic() < until and not self.is_over.is_set():
                for record in await txn.poll(timeout=POLL_SECONDS):
                    await txn.send(self.arguments.target, record.value, key=record.key, partition=record.partition)
                    copied += 1
            if wants_abort:
                await txn.abort()
        if copied:
            say("aborted" if wants_abort else "copied" if txn.committed else "undone", copied)

    def send(self, transaction: Any, records: Iterable[Any]) -> int:
        """Each record to the partition of its own number; how many."""
        count = 0
        for record in records:
            transaction.send(self.arguments.target, record.value, key=record.key, partition=record.partition)
            count += 1
        return count

    def copy_by_hand(self) -> None:
        """Copy with a Consumer and a Producer: offsets are the consumer's positions, sent with its group metadata."""
        own = {"bootstrap_servers": self.arguments.servers, "client_id": self.arguments.id}
        with (
            Consumer(enable_auto_commit=False, **consumer_options(self.arguments)) as consumer,
            Producer(**own, **producer_options(self.arguments)) as producer,
        ):
            producer.init_transactions()
            consumer.subscribe([self.arguments.source])
            while not self.is_over.is_set():
                records = consumer.poll(POLL_SECONDS)
                if not records:
                    continue
                try:
                    with producer.transaction() as txn:
                        copied = self.send(txn, records)
                        self.stop_once(producer)
                        offsets = {each: consumer.position(each) for each in consumer.assignment()}
                        txn.send_offsets(offsets, consumer.group_metadata())
                    say("copied", copied)
                except AbortableTransactionError as error:
                    say("undone", copied)
                    print(error, file=sys.stderr)
                    to_committed(consumer)

    def stop_once(self, producer: Producer) -> None:
        """With --stops: SIGSTOP, the first time."""
        if self.arguments.stops:
            self.arguments.stops = False
            producer.flush()
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(WORK_SECONDS)

    def copy_wrongly(self) -> None:
        """The controls."""
        is_nameless = self.arguments.control == "nameless"
        options = consumer_options(self.arguments)
        own = {
            "bootstrap_servers": self.arguments.servers,
            "client_id": self.arguments.id,
            **producer_options(self.arguments),
        }
        with Consumer(enable_auto_commit=False, **options) as consumer, Producer(**own) as producer:
            producer.init_transactions()
            consumer.subscribe([self.arguments.source])
            times = 0
            while not self.is_over.is_set():
                records = consumer.poll(POLL_SECONDS)
                if not records:
                    continue
                with producer.transaction() as txn:
                    copied = self.send(txn, records)
                    if is_nameless:
                        txn.send_offsets(ends_of(records), ConsumerGroupMetadata(self.arguments.group))
                    if self.chance.random() < self.arguments.abort_share:
                        txn.abort()
                if txn.committed:
                    say("copied", copied)
                    times += 1
                    if not is_nameless and times % CONTROL_COMMITS_EVERY == 0:
                        consumer.commit()
                else:
                    say("aborted", copied)
                    rewind(consumer, records)


def ends_of(records: Iterable[Any]) -> dict[TopicPartition, int]:
    """Return the offsets after these records."""
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


def to_committed(consumer: Consumer) -> None:
    """Seek to the committed offsets of the group."""
    for partition, offset in consumer.committed(list(consumer.assignment())).items():
        consumer.seek(partition, offset.offset if offset is not None else 0)


def rewind(consumer: Consumer, records: Iterable[Any]) -> None:
    """Seek to the first offsets of these records."""
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    for partition, offset in first.items():
        consumer.seek(partition, offset)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--id", required=True, help="the transactional id, and the client's")
    parser.add_argument("--protocol", default="classic", choices=("classic", "consumer"))
    parser.add_argument("--strategy", default="range", help="of a classic group: range, cooperative-sticky, ...")
    parser.add_argument("--size", type=int, default=750, help="records of a transaction")
    parser.add_argument("--abort-share", type=float, default=1 / 3)
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    parser.add_argument("--transaction-timeout-ms", type=int, default=20_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--asyncio", action="store_true")
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--control", choices=("outside", "nameless"))
    Copier(parser.parse_args()).run()


if __name__ == "__main__":
    main()
