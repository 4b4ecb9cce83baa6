# SPDX-License-Identifier: Apache-2.0
"""Consumers that lose their partitions in the middle of a transaction (KIP-447), on a real broker.

    with Stage(KAFKA_VERSION, 2) as stage:
        outcome = CASES["a"](stage, "classic")
        assert outcome.faults() == []

Each case has a topic of 20 records to copy, a copier A (copy_worker.py, a process) in which a fault is injected at a
certain step of its transaction, and a copier B that joins the group and takes over. A proxy in front of the broker
delays or drops A's requests, and another one in front of the listener between brokers does this with markers.
Afterwards more records are written, to check where B continues. Kafka's own consumer reads the copies.
"""

from __future__ import annotations

import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from copy_processes import Worker, session_command, wait_until
from java_clients import consume, end_offsets

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import Admin, Producer
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.rules import Rule

COUNT, MORE = 20, 5
SESSION_SECONDS = 1.5
TRANSACTION_SECONDS = 4.0
WAIT_SECONDS = 30.0
UNSTABLE_OFFSET_COMMIT = 88
# Minimum number of UNSTABLE_OFFSET_COMMIT responses to B that show that it waits.
UNSTABLE_ANSWERS = 2


class Stage:
    """A broker between two proxies: `front` for the clients, `between` for the requests of the broker to itself."""

    def __init__(self, version: str, transaction_version: int) -> None:
        session_ms = int(SESSION_SECONDS * 1000)
        self.between = KafkaProxy()
        self.kafka = ApacheKafka(
            version,
            transaction_version=transaction_version,
            advertise=lambda listener: self.between.advertise(listener) if listener.name == "BROKER" else None,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
            group_consumer_session_timeout_ms=session_ms,
            group_consumer_min_session_timeout_ms=session_ms,
            group_consumer_heartbeat_interval_ms=300,
            group_consumer_min_heartbeat_interval_ms=100,
        )

    def __enter__(self) -> Self:
        self.kafka.start()
        self.front = KafkaProxy(self.kafka.bootstrap_servers, keep_bytes=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.front.close()
        self.kafka.close()
        self.between.close()

    def hold_markers(self, topic: str) -> Rule:
        """Delay the markers of transactions that wrote to this topic."""

        def names(exchange: Exchange) -> bool:
            request = exchange.request_message()
            return any(one.name == topic for marker in request.markers for one in marker.topics)

        return self.between.on_request("WriteTxnMarkers", count=None, where=names).hold()


@dataclass
class Outcome:
    """The outcome of a case. reported: counts of A's output; waited: number of UNSTABLE_OFFSET_COMMIT responses to
    B."""

    name: str
    protocol: str
    is_control: bool = False
    lost: int = 0
    duplicates: int = 0
    open: int = 0
    waited: int = 0
    reported: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Return the faults. It is a fault of a control if there are no duplicates."""
        if self.is_control:
            return self.wrong + ([] if self.duplicates else ["a control without duplicates"])
        names = ("lost", "duplicates", "open")
        return self.wrong + [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]

    def line(self) -> str:
        """Return a description for a results file."""
        reported = ", ".join(f"{word} x{times}" for word, times in sorted(self.reported.items())) or "nothing"
        outcome_text = "FAILED: " + ", ".join(self.faults()) if self.faults() else "ok"
        return (
            f"{self.name:<34}{self.protocol:<10}{self.lost:>6}{self.duplicates:>12}{self.waited:>10}"
            f"{self.seconds:>9.1f}  {outcome_text}  (A said: {reported})"
        )


class Case:
    """One copy with its topics, group and processes; `with` ends those."""

    def __init__(self, stage: Stage, name: str, protocol: str, *, is_control: bool = False) -> None:
        self.stage = stage
        own = uuid.uuid4().hex[:8]
        self.a, self.b, self.group = f"a-{own}", f"b-{own}", f"group-{own}"
        self.source, self.target = (stage.kafka.create_topic(partitions=1) for _ in range(2))
        self.outcome = Outcome(name, protocol, is_control)
        self.values: list[bytes] = []
        self.workers: dict[str, Worker] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="kcodec-kip447-")
        self._began = time.monotonic()
        self.write(COUNT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers.values():
            worker.signal(signal.SIGCONT)
            worker.end()
        self._scratch.cleanup()

    def write(self, count: int) -> None:
        """More records to copy."""
        new = [b"%d" % number for number in range(len(self.values), len(self.values) + count)]
        with Producer(bootstrap_servers=self.stage.kafka.admin_servers) as producer:
            for value in new:
                producer.send(self.source, value)
        self.values += new

    def start(self, name: str, flags: Sequence[str] = (), **options: object) -> Worker:
        """A copier: `name` is its transactional id and client id."""
        fixed = {"--servers": self.stage.front.bootstrap_servers, "--source": self.source, "--target": self.target}
        fixed |= {"--group": self.group, "--id": name, "--protocol": self.outcome.protocol, "--size": str(COUNT)}
        fixed |= {"--session-timeout-ms": str(int(SESSION_SECONDS * 1000)), "--abort-share": "0"}
        fixed |= {"--transaction-timeout-ms": str(int(TRANSACTION_SECONDS * 1000))}
        fixed |= {f"--{option.replace('_', '-')}": str(value) for option, value in options.items()}
        command = [*session_command(fixed), *flags]
        self.workers[name] = Worker(name, lambda _: command, Path(self._scratch.name, name))
        self.workers[name].start()
        return self.workers[name]

    def expect(self, what: str, condition: Callable[[], bool]) -> None:
        """Add a fault if the condition does not become true."""
        if not wait_until(condition, WAIT_SECONDS):
            self.outcome.wrong.append(f"not within {WAIT_SECONDS:g} s: {what}")

    def copied(self, name: str) -> int:
        """Return the number of records that this copier reported as copied."""
        return self.workers[name].records["copied"]

    def is_answered(self, api: str, name: str) -> bool:
        """Return whether a request of this copier got a response."""
        return any(one.response_time is not None for one in self.stage.front.exchanges(api, client_id=name))

    def unstable_answers(self) -> int:
        """Return the number of UNSTABLE_OFFSET_COMMIT responses to B, which make it wait for an open transaction."""
        found = [one for one in self.stage.front.exchanges("OffsetFetch", client_id=self.b) if one.response is not None]
        return sum(UNSTABLE_OFFSET_COMMIT in offset_codes(one.response_message()) for one in found)

    def expect_waiting(self, *, times_out: bool = False) -> None:
        """Check that B requests the committed offsets, gets UNSTABLE_OFFSET_COMMIT, and copies nothing meanwhile.

        times_out: A's transaction times out, on a busy machine perhaps before B requests the offsets.
        """

        def waits() -> bool:
            return self.unstable_answers() >= UNSTABLE_ANSWERS or (times_out and self.copied(self.b) > 0)

        self.expect("B is told to wait (88)", waits)
        if self.copied(self.b) and not times_out:
            self.outcome.wrong.append("B copied before it could know where to begin")

    def expect_onward(self, begins_at: int) -> None:
        """Check that B continues at this record, and copies records that are written now."""
        self.expect(f"B copied from {begins_at} on", lambda: self.copied(self.b) == COUNT - begins_at)
        self.write(MORE)
        self.expect(f"B copied {MORE} more", lambda: self.copied(self.b) == COUNT - begins_at + MORE)

    def judge(self) -> Outcome:
        """End the processes and count what Kafka's consumer finds."""
        for worker in self.workers.values():
            worker.end()
        servers, outcome = self.stage.kafka.admin_servers, self.outcome

        def is_closed() -> bool:
            stable, end = (end_offsets(servers, self.target, level) for level in ("read_committed", "read_uncommitted"))
            return stable == end

        outcome.open = int(not wait_until(is_closed, WAIT_SECONDS))
        times = Counter(record.value for record in consume(servers, self.target))
        outcome.lost = sum(value not in times for value in self.values)
        outcome.duplicates = times.total() - len(times)
        outcome.waited = self.unstable_answers()
        outcome.reported = self.workers[self.a].said if self.a in self.workers else Counter()
        outcome.seconds = time.monotonic() - self._began
        return outcome


def offset_codes(answer: Any) -> set[int]:
    """All error codes of an OffsetFetch response of any version."""
    groups = answer.groups or [answer]
    return {partition.error_code for group in groups for topic in group.topics for partition in topic.partitions}


# The cases.


def late_commit(stage: Stage, protocol: str, *, control: str = "") -> Outcome:
    """a: A stops before its TxnOffsetCommit, and B takes over and copies. The broker then rejects A's commit."""
    name = f"a: commits late{', no generation' if control else ''}"
    with Case(stage, name, protocol, is_control=bool(control)) as case:
        late = stage.front.on_request("TxnOffsetCommit", client_id=case.a).hold()
        a = case.start(case.a, transaction_timeout_ms=60_000, **({"control": control} if control else {}))
        late.wait_hit(WAIT_SECONDS)
        a.signal(signal.SIGSTOP)
        case.start(case.b)
        case.expect("B copied all", lambda: case.copied(case.b) == COUNT)
        late.remove()
        a.signal(signal.SIGCONT)
        case.expect("A says what came of it", lambda: a.said.total() > 0)
        if not control and case.copied(case.a):
            case.outcome.wrong.append("A was told that it committed")
        return case.judge()


def late_by_hand(stage: Stage, protocol: str) -> Outcome:
    """a, with Consumer and Producer: A stops while processing its records until B owns the partitions, and then
    continues for a while. Its positions and its generation are still those of its last poll, and are rejected."""
    with Case(stage, "a: commits late, by hand", protocol) as case:
        a = case.start(case.a, flags=("--by-hand", "--stops"), transaction_timeout_ms=60_000)
        case.expect("A stopped", lambda: a.is_stopped)
        case.start(case.b)
        case.expect("B copied all", lambda: case.copied(case.b) == COUNT)
        a.signal(signal.SIGCONT)
        case.expect("A says what came of it", lambda: a.said.total() > 0)
        if case.copied(case.a):
            case.outcome.wrong.append("A was told that it committed")
        return case.judge()


def died_before_markers(stage: Stage, protocol: str) -> Outcome:
    """b: A is killed after the response to EndTxn and before its markers are written. B waits for the markers, and then
    continues after the transaction."""
    with Case(stage, "b: died before the markers", protocol) as case:
        markers = stage.hold_markers(case.target)
        a = case.start(case.a)
        case.expect("EndTxn is answered", lambda: case.is_answered("EndTxn", case.a))
        a.signal(signal.SIGKILL)
        case.start(case.b)
        case.expect_waiting()
        markers.remove()
        case.expect_onward(COUNT)
        return case.judge()


def unstable_takeover(stage: Stage, protocol: str) -> Outcome:
    """b, control: the member that takes over requests offsets without RequireStable, so it does not wait."""
    with Case(stage, "b: without RequireStable", protocol, is_control=True) as case:
        markers = stage.hold_markers(case.target)
        a = case.start(case.a)
        case.expect("EndTxn is answered", lambda: case.is_answered("EndTxn", case.a))
        a.signal(signal.SIGKILL)
        partition = TopicPartition(case.source, 0)
        servers = stage.kafka.admin_servers
        with Admin(bootstrap_servers=servers) as admin:
            found = admin.list_group_offsets(case.group, [partition], require_stable=False)[partition]
        begins_at = found.offset if found is not None else 0
        markers.remove()
        with Producer(bootstrap_servers=servers, transactional_id=case.b) as producer:
            producer.init_transactions()
            with producer.transaction() as txn:
                for value in case.values[begins_at:]:
                    txn.send(case.target, value)
                txn.send_offsets({partition: COUNT}, ConsumerGroupMetadata(case.group))
        return case.judge()


def died_before_end(stage: Stage, protocol: str, *, is_fenced: bool) -> Outcome:
    """c: A is killed before its EndTxn. B waits until the transaction is aborted, and then begins before it."""
    with Case(stage, f"c: died before EndTxn, {'fenced' if is_fenced else 'timed out'}", protocol) as case:
        lost = stage.front.on_request("EndTxn", client_id=case.a).drop()
        options: dict[str, Any] = {"transaction_timeout_ms": 60_000} if is_fenced else {}
        a = case.start(case.a, **options)
        lost.wait_hit(WAIT_SECONDS)
        a.signal(signal.SIGKILL)
        case.start(case.b)
        case.expect_waiting(times_out=not is_fenced)
        if is_fenced:
            with Producer(bootstrap_servers=stage.kafka.admin_servers, transactional_id=case.a) as successor:
                successor.init_transactions()
        case.expect_onward(0)
        return case.judge()


def comes_back_late(stage: Stage, protocol: str) -> Outcome:
    """d: A stops before its EndTxn until the transaction has timed out and B has copied. It is then fenced."""
    with Case(stage, "d: comes back after the time-out", protocol) as case:
        late = stage.front.on_request("EndTxn", client_id=case.a).hold()
        a = case.start(case.a)
        late.wait_hit(WAIT_SECONDS)
        a.signal(signal.SIGSTOP)
        case.start(case.b)
        case.expect_waiting(times_out=True)
        case.expect("B copied all", lambda: case.copied(case.b) == COUNT)
        late.remove()
        a.signal(signal.SIGCONT)
        case.expect("A says what came of it", lambda: a.said.total() > 0)
        if case.copied(case.a):
            case.outcome.wrong.append("A was told that it committed")
        return case.judge()


def held_markers(stage: Stage, protocol: str, *, seconds: float = 5.0) -> Outcome:
    """A commits and leaves, and its markers are delayed. B gets UNSTABLE_OFFSET_COMMIT until then, and waits."""
    with Case(stage, f"markers {seconds:g} s late", protocol) as case:
        markers = stage.hold_markers(case.target)
        a = case.start(case.a)
        case.expect("A committed", lambda: case.copied(case.a) == COUNT)
        held_at = time.monotonic()
        case.start(case.b)
        a.end()
        case.expect_waiting()
        wait_until(lambda: bool(case.copied(case.b)), held_at + seconds - time.monotonic())
        case.expect_waiting()
        markers.remove()
        case.expect_onward(COUNT)
        return case.judge()


CASES: Mapping[str, Callable[[Stage, str], Outcome]] = {
    "a": late_commit,
    "a control": lambda stage, protocol: late_commit(stage, protocol, control="nameless"),
    "a by hand": late_by_hand,
    "b": died_before_markers,
    "b control": unstable_takeover,
    "c fenced": lambda stage, protocol: died_before_end(stage, protocol, is_fenced=True),
    "c timed out": lambda stage, protocol: died_before_end(stage, protocol, is_fenced=False),
    "d": comes_back_late,
    "markers": held_markers,
}
