# SPDX-License-Identifier: Apache-2.0
"""The topics of the kit. Each has expected rows and an expected end for both isolation levels.

The expected rows follow from what was written, and not from a reader. The producer reports the offset of each record.
The end of a transaction adds one marker to each of its partitions. Before the active segment, the log cleaner keeps the
last committed record of each key, and no aborted record. DeleteRecords removes the records before an offset. When a
topic is complete, its expected ends are compared with those that the broker reports.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import kcodec
from kcodec.client import Admin, NewTopic, Producer
from kcodec.offsets import TopicPartition
from kcodec.testing.bounded_reads.rows import ISOLATION_LEVELS, Row

__all__ = ["CASES", "BoundedTopic", "bounded_topics"]

#: How long the log cleaner may take. The default of log.cleaner.backoff.ms is 15 seconds.
COMPACTION_SECONDS = 90.0
#: How long brokers may take to write the markers of a transaction.
MARKER_SECONDS = 20.0
#: Kafka's default of transaction.max.timeout.ms, so that no open transaction times out during a check.
OPEN_TRANSACTION_MS = 900_000
#: The next record with a later timestamp than this begins a new segment.
SEGMENT_MS = 3_600_000
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


@dataclass(frozen=True)
class BoundedTopic:
    """A topic of the kit.

    case: Name of the case, a key of CASES.
    topic: Name of the topic.
    rows: The expected rows, by isolation level, ordered by partition and offset.
    ends: The expected end of each partition, by isolation level: the offset at which a bounded read is complete.
    """

    case: str
    topic: str
    rows: Mapping[str, tuple[Row, ...]]
    ends: Mapping[str, Mapping[int, int]]


@dataclass
class _Entry:
    """An offset of the log. `state` is committed, aborted, open, marker or removed."""

    row: Row
    state: str


@dataclass
class _Log:
    """What a topic contains, kept while it is written."""

    name: str
    partitions: dict[int, list[_Entry]] = field(default_factory=dict)
    #: The offset at which the active segment begins, if the topic is compacted.
    active: int | None = None

    def add(self, row: Row, state: str) -> _Entry:
        """Add a record. Raise RuntimeError if another client writes to the topic."""
        entries = self.partitions[row.partition]
        if row.offset != len(entries):
            raise RuntimeError(
                f"topic {self.name!r}, partition {row.partition}: expected the record at offset {len(entries)}, the "
                f"broker stored it at {row.offset}; does another client write to the topic?"
            )
        entries.append(_Entry(row, state))
        return entries[-1]

    def end_transaction(self, entries: Iterable[_Entry], state: str) -> None:
        """Set the outcome of these records and add the marker of each partition."""
        changed = list(entries)
        for entry in changed:
            entry.state = state
        for number in {entry.row.partition for entry in changed}:
            log = self.partitions[number]
            log.append(_Entry(Row(number, len(log), None, None), "marker"))

    def compact(self, before: int) -> None:
        """Remove from partition 0 what the log cleaner removes below the active segment, which begins at `before`."""
        cleaned = self.partitions[0][:before]
        last = {entry.row.key: entry for entry in cleaned if entry.state == "committed"}
        for entry in cleaned:
            if entry.state == "aborted" or (entry.state == "committed" and last[entry.row.key] is not entry):
                entry.state = "removed"

    def truncate_start(self, before: int) -> None:
        """Remove from partition 0 what DeleteRecords removes."""
        for entry in self.partitions[0][:before]:
            entry.state = "removed"

    def rows(self, isolation_level: str) -> tuple[Row, ...]:
        """Return the rows that a reader returns."""
        states = {"committed"} if isolation_level == "read_committed" else {"committed", "aborted", "open"}
        ends = self.ends(isolation_level)
        return tuple(
            entry.row
            for number, log in sorted(self.partitions.items())
            for entry in log[: ends[number]]
            if entry.state in states
        )

    def ends(self, isolation_level: str) -> dict[int, int]:
        """Return the last stable offset, or the high watermark, of each partition."""
        found = {number: len(log) for number, log in self.partitions.items()}
        if isolation_level == "read_committed":
            for number, log in self.partitions.items():
                still_open = [entry.row.offset for entry in log if entry.state == "open"]
                found[number] = min([*still_open, found[number]])
        return found


class _Builder:
    """Creates topics and writes to them, for the functions of CASES."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], stack: ExitStack) -> None:
        self.options: dict[str, Any] = {**options, "bootstrap_servers": bootstrap_servers}
        self._stack = stack
        self._prefix = f"bounded-{uuid.uuid4().hex[:8]}"
        self.admin = stack.enter_context(Admin(**self.options))
        self.plain = stack.enter_context(Producer(**self.options))
        self.first, self.second = self.transactional("first"), self.transactional("second")

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function at the end of the kit, before the clients are closed."""
        self._stack.callback(function)

    def transactional(self, name: str) -> Producer:
        """Return a producer with a transactional id."""
        producer = Producer(
            transactional_id=f"{self._prefix}-{name}", transaction_timeout_ms=OPEN_TRANSACTION_MS, **self.options
        )
        return self._stack.enter_context(producer)

    def create(self, case: str, partitions: int = 1, configs: Mapping[str, str | None] | None = None) -> _Log:
        """Create the topic of a case, which is deleted at the end of the kit."""
        name = f"{self._prefix}-{case}"
        self.admin.create_topics([NewTopic(name, partitions, configs=configs or {})])
        self._stack.callback(self.admin.delete_topics, [name])
        return _Log(name, {number: [] for number in range(partitions)})

    def send(
        self,
        log: _Log,
        producer: Producer,
        keys: str,
        state: str = "committed",
        partition: int = 0,
        at: int | None = None,
    ) -> list[_Entry]:
        """Send one record for each key, as one record batch, and wait until the broker has stored it.

        keys: Separated by spaces. at: Timestamp of the records in ms; None: now.
        """
        begin = len(log.partitions[partition])
        values = [(key.encode(), f"{key}-{begin + index}".encode()) for index, key in enumerate(keys.split())]
        sent = [producer.send(log.name, value, key, partition=partition, timestamp=at) for key, value in values]
        producer.flush()
        return [
            log.add(Row(partition, delivery.result().offset, key, value), state)
            for delivery, (key, value) in zip(sent, values, strict=True)
        ]

    def transaction(
        self, log: _Log, keys: str, state: str = "committed", partition: int = 0, at: int | None = None
    ) -> None:
        """Write a transaction with one record for each key. Its outcome is `state`: committed or aborted."""
        self.first.begin_transaction()
        entries = self.send(log, self.first, keys, "open", partition, at)
        self.end(log, self.first, entries, state)

    def end(self, log: _Log, producer: Producer, entries: Iterable[_Entry], state: str) -> None:
        """End the transaction of a producer, and wait for its markers, which brokers write after their response."""
        if state == "committed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        log.end_transaction(entries, state)
        for isolation_level in ISOLATION_LEVELS:
            self.wait_for_ends(log, isolation_level)

    def wait_for_ends(self, log: _Log, isolation_level: str) -> None:
        """Wait until the brokers report the expected ends. Raise RuntimeError if they do not."""
        expected = log.ends(isolation_level)
        latest = dict.fromkeys((TopicPartition(log.name, number) for number in expected), "latest")
        deadline = time.monotonic() + MARKER_SECONDS
        while True:
            listed = self.admin.list_offsets(latest, isolation_level=isolation_level)
            found = {place.partition: each.offset for place, each in listed.items()}
            if found == expected:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"topic {log.name!r}: with {isolation_level} it ends at {found}, expected {expected}"
                )
            time.sleep(0.01)


def _plain(build: _Builder, log: _Log) -> None:
    """records without a transaction"""
    build.send(log, build.plain, "a b c")
    build.send(log, build.plain, "d e")


def _empty(build: _Builder, log: _Log) -> None:
    """no records"""


def _commit_marker(build: _Builder, log: _Log) -> None:
    """the last offset is a commit marker"""
    build.transaction(log, "a b c")
    build.transaction(log, "d e")


def _abort_marker(build: _Builder, log: _Log) -> None:
    """the last offsets are aborted records and an abort marker"""
    build.transaction(log, "a b c")
    build.transaction(log, "d e f", "aborted")


def _aborted_middle(build: _Builder, log: _Log) -> None:
    """aborted records between committed records; the last offset is a record"""
    build.transaction(log, "a b")
    build.transaction(log, "c d e", "aborted")
    build.send(log, build.plain, "f g")


def _all_aborted(build: _Builder, log: _Log) -> None:
    """only aborted records and their marker"""
    build.transaction(log, "a b c", "aborted")


def _only_markers(build: _Builder, log: _Log) -> None:
    """only a commit marker is left, after DeleteRecords"""
    build.transaction(log, "a b c")
    _delete_records(build, log, 3)


def _log_start(build: _Builder, log: _Log) -> None:
    """the log starts above 0, in the middle of a record batch, after DeleteRecords"""
    build.transaction(log, "a b c d e f")
    _delete_records(build, log, 4)


def _compacted_middle(build: _Builder, log: _Log) -> None:
    """compaction has removed whole record batches in the middle"""
    old = _old_time()
    for keys in ("once a b", "a b", "a b", "a b"):
        build.send(log, build.plain, keys, at=old)
    log.active = len(log.partitions[0])
    build.send(log, build.plain, "tail a")


def _compacted_end(build: _Builder, log: _Log) -> None:
    """compaction has removed the aborted records before the last marker, and records in the middle"""
    old = _old_time()
    build.send(log, build.plain, "a b c", at=old)
    build.send(log, build.plain, "a b c", at=old)
    build.transaction(log, "a b c", "aborted", at=old)
    log.active = len(log.partitions[0]) - 1  # the marker


def _open_transaction(build: _Builder, log: _Log) -> None:
    """an open transaction, and records after it: read_committed ends before them"""
    build.transaction(log, "a b c")
    producer = build.transactional("open")
    producer.begin_transaction()
    build.at_end(producer.abort_transaction)
    build.send(log, producer, "d e", "open")
    build.send(log, build.plain, "f g")


def _spanning(build: _Builder, log: _Log) -> None:
    """a transaction over two partitions, between and around other transactions"""
    build.first.begin_transaction()
    entries = build.send(log, build.first, "a b", "open")
    build.send(log, build.plain, "c")
    build.second.begin_transaction()
    aborted = build.send(log, build.second, "d e", "open")
    entries += build.send(log, build.first, "f g", "open", partition=1)
    build.end(log, build.second, aborted, "aborted")
    entries += build.send(log, build.first, "h", "open")
    build.end(log, build.first, entries, "committed")
    build.transaction(log, "i j", "aborted", partition=1)


#: The cases, by name: the functions that write their topics.
CASES: dict[str, Callable[[_Builder, _Log], None]] = {
    # The log cleaner works on these two while the others are written.
    "compacted-middle": _compacted_middle,
    "compacted-end": _compacted_end,
    "plain": _plain,
    "empty": _empty,
    "commit-marker": _commit_marker,
    "abort-marker": _abort_marker,
    "aborted-middle": _aborted_middle,
    "all-aborted": _all_aborted,
    "only-markers": _only_markers,
    "log-start": _log_start,
    "open-transaction": _open_transaction,
    "spanning": _spanning,
}
_PARTITIONS = {"spanning": 2}


@contextmanager
def bounded_topics(
    bootstrap_servers: str, cases: Iterable[str] | None = None, **options: Any
) -> Iterator[list[BoundedTopic]]:
    """Build the topics of the kit on a cluster, and delete them at the end of the block.

    bootstrap_servers: Addresses of brokers, host:port, separated by commas.
    cases: Names of cases, keys of CASES; None: all.
    options: Options of every client of kcodec, such as those for TLS and SASL.

    The log cleaner must be enabled. With the default of log.cleaner.backoff.ms, the two compacted topics take up to
    15 seconds each. Raise ValueError for an unknown case, TimeoutError if the log cleaner does not compact a topic,
    RuntimeError if a topic does not end where it should, and the errors of the clients.
    """
    names = list(CASES) if cases is None else list(cases)
    for name in names:
        if name not in CASES:
            raise ValueError(f"unknown case {name!r}; expected one of {', '.join(CASES)}")
    with ExitStack() as stack:
        build = _Builder(bootstrap_servers, options, stack)
        written = [_written(build, name) for name in sorted(names, key=list(CASES).index)]
        yield [_finished(build, case, log) for case, log in written]


def _written(build: _Builder, case: str) -> tuple[str, _Log]:
    configs: Mapping[str, str | None] = COMPACTED if case.startswith("compacted") else {}
    log = build.create(case, _PARTITIONS.get(case, 1), configs)
    CASES[case](build, log)
    return case, log


def _finished(build: _Builder, case: str, log: _Log) -> BoundedTopic:
    if log.active is not None:
        _wait_for_cleaner(build, log, log.active)
    for isolation_level in ISOLATION_LEVELS:
        build.wait_for_ends(log, isolation_level)
    return BoundedTopic(
        case,
        log.name,
        {isolation_level: log.rows(isolation_level) for isolation_level in ISOLATION_LEVELS},
        {isolation_level: log.ends(isolation_level) for isolation_level in ISOLATION_LEVELS},
    )


def _delete_records(build: _Builder, log: _Log, before: int) -> None:
    build.admin.delete_records({TopicPartition(log.name, 0): before})
    log.truncate_start(before)


def _old_time() -> int:
    """Return a timestamp after which a record of now begins a new segment."""
    return time.time_ns() // 1_000_000 - 2 * SEGMENT_MS


def _wait_for_cleaner(build: _Builder, log: _Log, active: int) -> None:
    """Wait until the log cleaner has compacted the segments below offset `active`."""
    log.compact(active)
    expected = [row.offset for row in log.rows("read_uncommitted")]
    deadline = time.monotonic() + COMPACTION_SECONDS
    while True:
        with kcodec.read_topic(log.name, isolation_level="read_uncommitted", **build.options) as records:
            found = [row.offset for row in records.rows()]
        if found == expected:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"topic {log.name!r}: after {COMPACTION_SECONDS:g} s, the log contains the offsets {found}, and after "
                f"compaction it would contain {expected}; log.cleaner.enable must be true, and log.cleaner.backoff.ms "
                "below that time"
            )
        time.sleep(0.1)
