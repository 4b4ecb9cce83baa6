# SPDX-License-Identifier: Apache-2.0
"""Random partitions with interleaved transactions, their batches written by Kafka's own classes.

A log is built as a broker would store it: offsets rise, markers end transactions, and there are gaps and emptied
batches as after compaction. It also has the aborted transactions and the last stable offset, as a broker knows them.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from functools import cache

import crc32c
from java_answers import Delivered, JudgedRecord
from java_judge import JavaJudge

ABORT, COMMIT = 0, 1
TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class StoredBatch:
    """The position and the offsets of a batch."""

    position: int
    size: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True)
class AbortedTransaction:
    """What a broker's transaction index holds: `last_offset` is the offset of the ABORT marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class TransactionLog:
    """The bytes of a partition and what its broker knows about them."""

    data: bytearray = field(default_factory=bytearray)
    batches: list[StoredBatch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the first transaction still open, else the end of the log."""
        return min([*self.open.values(), self.next_offset])

    def append(self, batch: bytes, last_offset: int) -> None:
        """Store a batch that begins at `next_offset`."""
        self.batches.append(StoredBatch(len(self.data), len(batch), self.next_offset, last_offset))
        self.data += batch
        self.next_offset = last_offset + 1

    def fetch(self, fetch_offset: int, end_offset: int | None = None) -> bytes:
        """Return the records of a Fetch response: whole batches from `fetch_offset` on and below `end_offset`."""
        kept = [batch for batch in self.batches if batch.last_offset >= fetch_offset]
        if end_offset is not None:
            kept = [batch for batch in kept if batch.base_offset < end_offset]
        return b"".join(bytes(self.data[batch.position : batch.position + batch.size]) for batch in kept)

    def aborted_in(self, fetch_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of such a response, whose marker is not below `fetch_offset`."""
        return [transaction for transaction in self.aborted if transaction.last_offset >= fetch_offset]


def set_crc(batch: bytearray) -> None:
    """Make the CRC-32C of a batch of magic 2 right again (bytes 21 to the end)."""
    batch[17:21] = struct.pack(">I", crc32c.crc32c(bytes(batch[21:])))


def random_bytes(rng: random.Random, longest: int) -> bytes | None:
    """Null, empty, or bytes that compress a little."""
    if rng.random() < 0.15:
        return None
    return bytes(rng.choices(b"abcdefgh\x00\xff", k=rng.randrange(longest)))


def random_records(rng: random.Random, base_offset: int, gaps: bool = True) -> list[JudgedRecord]:
    """One to six records from `base_offset` on, with gaps as compaction leaves them."""
    records = []
    offset = base_offset
    for _ in range(rng.randint(1, 6)):
        offset += rng.choice((0, 0, 0, 2)) if gaps else 0
        names = rng.choices(("", "name", "é", "trace-id"), k=rng.choice((0, 0, 1, 3)))
        headers = tuple((name, random_bytes(rng, 12)) for name in names)
        timestamp = TIMESTAMP + rng.randint(-5000, 5000)
        records.append(JudgedRecord(offset, timestamp, random_bytes(rng, 12), random_bytes(rng, 80), headers))
        offset += 1
    return records


class LogMaker:
    """Builds one random log. Every step is one event of a partition."""

    def __init__(self, judge: JavaJudge, rng: random.Random) -> None:
        self.judge = judge
        self.rng = rng
        self.log = TransactionLog(next_offset=rng.choice((0, 0, 1000, 2**40)))
        self.sequences = dict.fromkeys(range(9000, 9000 + rng.randint(1, 4)), 0)

    def make(self, steps: int) -> TransactionLog:
        """A log of about `steps` batches, at least one."""
        happenings = (self.data, self.end_transaction, self.plain, self.marker_alone, self.emptied, self.other_control)
        self.data()
        for _ in range(steps):
            self.rng.choices(happenings, weights=(12, 5, 1, 1, 1, 1))[0]()
        return self.log

    def data(self) -> None:
        """A batch of a producer, mostly in a transaction, which it opens if none is open."""
        producer_id = self.rng.choice(list(self.sequences))
        transactional = self.rng.random() < 0.9
        if transactional:
            self.log.open.setdefault(producer_id, self.log.next_offset)
        self._records(producer_id, transactional)

    def plain(self) -> None:
        """A batch of a producer without an id."""
        self._records(-1, False)

    def _records(self, producer_id: int, transactional: bool) -> None:
        records = random_records(self.rng, self.log.next_offset)
        last_offset = records[-1].offset + self.rng.choice((0, 0, 0, 3))
        batch = self.judge.batch(
            records,
            compression=self.rng.randrange(5),
            base_offset=self.log.next_offset,
            last_offset=last_offset,
            log_append_time=self.rng.choice((None, None, None, TIMESTAMP)),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self.sequences.get(producer_id, -1),
            is_transactional=transactional,
        )
        if producer_id >= 0:
            self.sequences[producer_id] += last_offset - self.log.next_offset + 1
        self.log.append(batch, last_offset)

    def end_transaction(self) -> None:
        """The marker of an open transaction, if one is open."""
        if self.log.open:
            producer_id = self.rng.choice(list(self.log.open))
            control_type = self.rng.choice((ABORT, COMMIT))
            first_offset = self.log.open.pop(producer_id)
            if control_type == ABORT:
                self.log.aborted.append(AbortedTransaction(producer_id, first_offset, self.log.next_offset))
            self._marker(producer_id, control_type)

    def marker_alone(self) -> None:
        """The marker of a transaction that wrote nothing here, or a second copy of a marker."""
        closed = [producer_id for producer_id in self.sequences if producer_id not in self.log.open]
        if closed:
            self._marker(self.rng.choice(closed), self.rng.choice((ABORT, COMMIT)))

    def emptied(self) -> None:
        """A batch of which compaction left the header alone, of a producer without an open transaction."""
        closed = [producer_id for producer_id in self.sequences if producer_id not in self.log.open]
        if closed:
            last_offset = self.log.next_offset + self.rng.randrange(4)
            batch = self.judge.emptied_batch(
                self.log.next_offset,
                last_offset,
                producer_id=self.rng.choice(closed),
                producer_epoch=0,
                is_transactional=True,
                is_control_batch=self.rng.random() < 0.5,
            )
            self.log.append(batch, last_offset)

    def other_control(self) -> None:
        """A control record of a type that ends no transaction, known (KRAFT_VERSION) or not yet invented."""
        producer_id = self.rng.choice(list(self.sequences))
        offset = self.log.next_offset
        marker = bytearray(self.judge.marker(offset, COMMIT, producer_id=producer_id, producer_epoch=0))
        key = marker.index(b"\x00\x00\x00\x01", 61)
        marker[key : key + 4] = struct.pack(">hh", 0, self.rng.choice((5, 77)))
        set_crc(marker)
        self.log.append(bytes(marker), offset)

    def _marker(self, producer_id: int, control_type: int) -> None:
        offset = self.log.next_offset
        marker = self.judge.marker(
            offset, control_type, producer_id=producer_id, producer_epoch=0, coordinator_epoch=self.rng.randrange(9)
        )
        self.log.append(marker, offset)


@cache
def random_log(judge: JavaJudge, seed: int) -> TransactionLog:
    """The log of one seed, made once."""
    rng = random.Random(seed)
    return LogMaker(judge, rng).make(rng.randint(3, 40))


def java_consumer(judge: JavaJudge, log: TransactionLog, start: int, end: int | None, shuffle: int = 0) -> Delivered:
    """Return what the Java consumer delivers for a fetch at `start` whose response ends at `end`."""
    aborted = [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted_in(start)]
    random.Random(shuffle).shuffle(aborted)
    delivered = judge.consumer(
        log.fetch(start, end), isolation_level="read_committed", aborted_transactions=aborted, fetch_offset=start
    )
    assert delivered.error is None
    return delivered
