# SPDX-License-Identifier: Apache-2.0
"""Transactions under load for long tests: the outcomes that producers report, and the records of a read_committed
reader.

A producer writes numbered transactions, in which every record has a unique value. `judge` compares the reports with the
log. A client is an object with `transact(records, commit) -> outcome` and `close()`: see kcodec_client.py and
confluent_client.py.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

COMMITTED = "committed"
ABORTED = "aborted"
GIVEN_UP = "given_up"  # no commit was requested, and the abort did not succeed
UNKNOWN = "unknown"

Records = dict[int, list[bytes]]  # partition -> values


class Client(Protocol):
    """A transactional producer with the methods that the load calls."""

    def transact(self, records: Records, *, commit: bool, pause: float = 0.0) -> str:
        """Write the records in one transaction and end it: COMMITTED, ABORTED, GIVEN_UP or UNKNOWN.

        pause: seconds after the records of each partition.
        """

    def close(self) -> None:
        """Close the client."""


@dataclass(frozen=True)
class Written:
    """One transaction and the outcome that its producer reported."""

    producer: str
    number: int
    records: Records
    outcome: str


@dataclass
class Findings:
    """The results of a run. All but the first five are faults.

    lost:         records of transactions reported committed that no reader finds.
    aborted_read: transactions reported aborted of which a record is read.
    given_up_read: transactions for which no commit was requested and of which a record is read.
    torn:         transactions of which some records are read and some not.
    duplicated:   records read more than once.
    disordered:   records of a producer read before an earlier one of the same partition.
    strange:      records read that were not written.
    """

    transactions: int = 0
    committed: int = 0
    aborted: int = 0
    given_up: int = 0
    unknown: int = 0
    lost: int = 0
    aborted_read: int = 0
    given_up_read: int = 0
    torn: int = 0
    duplicated: int = 0
    disordered: int = 0
    strange: int = 0
    examples: list[str] = field(default_factory=list, repr=False)

    @property
    def faults(self) -> int:
        """Return the number of faults, which must be 0."""
        visible = self.aborted_read + self.given_up_read
        return self.lost + visible + self.torn + self.duplicated + self.disordered + self.strange

    def line(self) -> str:
        """Return a description for a results file."""
        return (
            f"{self.transactions} transactions: {self.committed} committed, {self.aborted} aborted, {self.given_up} "
            f"given up, {self.unknown} unknown | lost {self.lost} records, aborted read {self.aborted_read} (+ given "
            f"up {self.given_up_read}), torn {self.torn}, duplicated {self.duplicated}, disordered {self.disordered}"
            f"{f', strange {self.strange}' if self.strange else ''}"
        )


def value(producer: str, number: int, partition: int, index: int) -> bytes:
    """Return the value of one record, which is unique."""
    return f"{producer}/{number:06d}/{partition}/{index}".encode()


def make_records(producer: str, number: int, partitions: Iterable[int], each: int) -> Records:
    """The records of one transaction."""
    return {partition: [value(producer, number, partition, index) for index in range(each)] for partition in partitions}


def judge(written: Iterable[Written], found: dict[int, list[bytes]]) -> Findings:
    """Compare the reports of producers with the records of a read_committed reader, by partition."""
    findings = Findings()
    counts = {partition: Counter(values) for partition, values in found.items()}
    known: set[bytes] = set()
    for one in written:
        _judge_one(findings, one, counts)
        known.update(text for values in one.records.values() for text in values)
    for values in found.values():
        findings.strange += sum(text not in known for text in values)
        last: dict[bytes, bytes] = {}
        for text in values:
            producer = text.split(b"/", 1)[0]
            findings.disordered += text < last.get(producer, b"")
            last[producer] = text
    return findings


def _judge_one(findings: Findings, one: Written, counts: dict[int, Counter[bytes]]) -> None:
    seen = [counts.get(partition, Counter())[text] for partition, texts in one.records.items() for text in texts]
    there = sum(times > 0 for times in seen)
    findings.transactions += 1
    setattr(findings, one.outcome, getattr(findings, one.outcome) + 1)
    before = findings.faults
    findings.duplicated += sum(times - 1 for times in seen if times > 1)
    findings.torn += 0 < there < len(seen)
    if one.outcome == COMMITTED:
        findings.lost += len(seen) - there
    elif one.outcome == ABORTED:
        findings.aborted_read += there > 0
    elif one.outcome == GIVEN_UP:
        findings.given_up_read += there > 0
    if findings.faults > before and len(findings.examples) < 10:
        findings.examples.append(f"{one.producer}/{one.number} {one.outcome}: {there} of {len(seen)} records read")


def run_producers(
    open_client: Callable[[str], Client],
    *,
    producers: int,
    transactions: int,
    partitions: Iterable[int],
    seed: int,
    abort_share: float = 0.3,
    pause: float = 0.0,
    deadline: float,
) -> list[Written]:
    """Let a number of producers write a number of transactions each, or until the monotonic `deadline`.

    open_client: makes the client of a producer, given its name.
    pause:       seconds at most between the partitions of a transaction.
    """
    written: list[Written] = []
    errors: list[BaseException] = []

    def run(name: str, chance: random.Random) -> None:
        client = open_client(name)
        try:
            for number in range(transactions):
                if time.monotonic() > deadline:
                    break
                records = make_records(name, number, partitions, chance.randint(1, 3))
                outcome = client.transact(
                    records, commit=chance.random() >= abort_share, pause=chance.uniform(0, pause)
                )
                written.append(Written(name, number, records, outcome))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            client.close()

    threads = [
        threading.Thread(target=run, args=(f"p{one}", random.Random(seed * 1000 + one)), daemon=True)
        for one in range(producers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0) + 120)
        if thread.is_alive():
            errors.append(TimeoutError(f"{thread.name} did not end by its deadline and 120 s more"))
    if errors:
        raise errors[0]
    return written


def _serve(open_client: Callable[[], Client], pipe: Connection) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # librdkafka writes each fatal error to stderr, whatever its log level
    client = open_client()
    while (asked := pipe.recv()) is not None:
        records, commit, pause = asked
        try:
            pipe.send(client.transact(records, commit=commit, pause=pause))
        except Exception as error:  # noqa: BLE001 - raised in the calling process
            pipe.send(RuntimeError(repr(error)))


class InProcess:
    """A client in a separate process, because librdkafka may corrupt its memory after fatal errors.

    A process that dies leaves a transaction with an unknown outcome; the next one gets a new process.
    """

    def __init__(self, open_client: Callable[[], Client]) -> None:
        self._open_client = open_client
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.crashes = 0

    def transact(self, records: Records, *, commit: bool, pause: float = 0.0) -> str:
        if self._process is None or self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._open_client, other), daemon=True)
            self._process.start()
            other.close()
        try:
            self._pipe.send((records, commit, pause))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self.crashes += 1
            self._process.join()
            self._process = None
            return UNKNOWN
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def close(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._pipe.send(None)
            self._process.join(10)
            self._process.kill()


def add_results(folder: Path | None, name: str, lines: Iterable[str]) -> None:
    """Add lines to the results file with this name and the current date. Do nothing without a folder."""
    if folder is not None:
        path = folder / f"{name}-{datetime.date.today()}.txt"
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            print(*lines, sep="\n", file=file)
