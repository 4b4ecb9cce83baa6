# SPDX-License-Identifier: Apache-2.0
"""One fault at one wire step of a group transact session, in one direction, and what must hold whatever the fault was.

A case copies a few records from its own partitions, behind a proxy that closes connections and delays or drops requests
and responses. Every call must end by its deadline, and raise only errors of kcodec. The session must be usable
afterwards, unless the remedy of its error is "recreate" or "stop". Every record must be copied once and in order, and
the reported outcomes must agree with the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from producer_apis import stored
from session_apis import APIS

from kcodec.client import Producer
from kcodec.errors import BrokerError, KcodecError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.rules import Rule

PARTITIONS, RECORDS = 2, 12
POLL_SECONDS, CALL_SECONDS, CLOSE_SECONDS = 0.5, 5.0, 5.0
SLACK_SECONDS = 4.0  # two processors that others use, too
CASE_SECONDS = 45.0
OPTIONS = {
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 5_000,
    "default_api_timeout_ms": 5_000,
    "max_block_ms": 5_000,
    "transaction_timeout_ms": 8_000,
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 10,
    "fetch_max_wait_ms": 100,
    "linger_ms": 0,
    "max_poll_records": 4,
    "max_poll_interval_ms": 8_000,  # the response to JoinGroup may take as long as a rebalance
}
CLASSIC = {"session_timeout_ms": 4_000, "heartbeat_interval_ms": 300}
STEPS = {
    "classic": ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    "consumer": ("ConsumerGroupHeartbeat",),
    "both": (
        "ApiVersions",
        "Metadata",
        "FindCoordinator",
        "OffsetFetch",
        "ListOffsets",
        "Fetch",
        "InitProducerId",
        "Produce",
        "TxnOffsetCommit",
        "EndTxn",
    ),
    "old flow": ("AddPartitionsToTxn", "AddOffsetsToTxn"),
}
Arm = Callable[["Case", KafkaProxy, str], Rule]


@dataclass(frozen=True)
class Case:
    """A fault: the API, the number of the first affected request, and their count (None: for the time `hold`)."""

    api: str
    fault: str
    arm: Arm = field(repr=False, compare=False)
    nth: int = 1
    count: int | None = 1

    @property
    def name(self) -> str:
        """Return a description of the fault."""
        often = "" if self.count == 1 else " for 2.5 s"
        return f"{self.api}{f' no. {self.nth}' if self.nth > 1 else ''}: {self.fault}{often}"


def _request(case: Case, proxy: KafkaProxy, client_id: str) -> Any:
    return proxy.on_request(case.api, nth=case.nth, count=case.count, client_id=client_id)


def _response(case: Case, proxy: KafkaProxy, client_id: str) -> Any:
    return proxy.on_response(case.api, nth=case.nth, count=case.count, client_id=client_id)


FAULTS: dict[str, Arm] = {
    "cut before the broker got it": lambda *at: _request(*at).cut(),
    "cut before the answer came": lambda *at: _response(*at).cut(),
    "cut behind the answer": lambda *at: _response(*at).deliver_and_cut(),
    "request 0.4 s late": lambda *at: _request(*at).hold(0.4),
    "answer 0.4 s late": lambda *at: _response(*at).hold(0.4),
    "request 1.5 s late, its connection cut": lambda *at: _request(*at).hold(1.5, cut_client=True),
    "never delivered": lambda *at: _request(*at).drop(),
    "never answered": lambda *at: _response(*at).drop(),
}
LASTING = ("cut before the broker got it", "cut before the answer came", "never delivered", "never answered")


def cases(transaction_version: int, protocol: str) -> Iterator[Case]:
    """All faults at all steps, the first time and in the middle of the work."""
    steps = STEPS["both"] + STEPS[protocol] + (STEPS["old flow"] if transaction_version < 2 else ())
    for api in steps:
        for fault, arm in FAULTS.items():
            yield Case(api, fault, arm)
            if api in {"TxnOffsetCommit", "EndTxn", "Heartbeat", "ConsumerGroupHeartbeat", "Produce"}:
                yield Case(api, fault, arm, nth=2)
        for fault in LASTING:
            yield Case(api, fault, FAULTS[fault], count=None)


@dataclass
class Ended:
    """The outcome of a case. outcomes: reported outcomes of its transactions; slowest: most seconds after a
    deadline."""

    case: Case
    outcomes: list[str] = field(default_factory=list)
    sessions: int = 1
    faults: list[str] = field(default_factory=list)


class Run:
    """One case: its own input, output, group and ids."""

    def __init__(
        self, case: Case, api_name: str, protocol: str, kafka: ApacheKafka, proxy: KafkaProxy, name: str
    ) -> None:
        self.ended = Ended(case)
        self.session_class = APIS[api_name]
        self.kafka, self.proxy, self.name = kafka, proxy, name
        self.source, self.target = _topic(kafka), _topic(kafka)
        with Producer(bootstrap_servers=kafka.admin_servers) as producer:
            for number in range(RECORDS):
                producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)
        self.options = {
            **OPTIONS,
            **(CLASSIC if protocol == "classic" else {}),
            "bootstrap_servers": proxy.bootstrap_servers,
            "client_id": name,
            "group_id": name,
            "transactional_id": name,
            "topics": [self.source],
            "group_protocol": protocol,
        }

    def run(self) -> Ended:
        """Inject the fault, copy, close the session, and check the results."""
        case = self.ended.case
        rule = case.arm(case, self.proxy, self.name)
        session: Any = None
        try:
            session = self._copy(rule)
        except AssertionError as error:
            self.ended.faults.append(str(error))
        finally:
            if session is not None:
                with self._timed("close", CLOSE_SECONDS):
                    session.close(CLOSE_SECONDS)
            hits = len(rule.hits)
            rule.remove()
        if not hits:
            self.ended.faults.append("the fault never came about")
        self._judge()
        return self.ended

    def _copy(self, rule: Rule) -> Any:
        deadline = time.monotonic() + CASE_SECONDS
        session = self.session_class(**self.options)
        first_hit = None
        while self._count() < RECORDS:
            assert time.monotonic() < deadline, f"{self._count()} of {RECORDS} records after {CASE_SECONDS:g} s"
            if first_hit is None and rule.hits:
                first_hit = time.monotonic()
            if self.ended.case.count is None and first_hit is not None and time.monotonic() - first_hit > 2.5:
                rule.remove()
            error = self._transact(session)
            if isinstance(error, BrokerError) and error.remedy in ("recreate", "stop"):
                session.close(CLOSE_SECONDS)
                session = self.session_class(**self.options)
                self.ended.sessions += 1
        return session

    def _transact(self, session: Any) -> BaseException | None:
        txn = session.transaction()
        error: BaseException | None = None
        try:
            with self._timed("begin", CALL_SECONDS):
                txn.__enter__()
            try:
                with self._timed("poll", POLL_SECONDS):
                    records = txn.poll(POLL_SECONDS)
                for record in records:
                    txn.send(self.target, record.value, partition=record.partition)
            except Exception as failed:
                with self._timed("end after an error", CALL_SECONDS):
                    txn.__exit__(type(failed), failed, failed.__traceback__)
                raise
            with self._timed("end", 2 * CALL_SECONDS):
                txn.__exit__(None, None, None)
        except Exception as failed:  # noqa: BLE001 - judged here
            error = failed
            if not isinstance(failed, KcodecError):
                self.ended.faults.append(f"an error that is not kcodec's: {failed!r}")
        self.ended.outcomes.append(str(txn.committed))
        return error

    @contextmanager
    def _timed(self, call: str, limit: float) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            if (seconds := time.monotonic() - begin) > limit + SLACK_SECONDS:
                self.ended.faults.append(f"{call} took {seconds:.1f} s, by its options at most {limit:g} s")

    def _found(self) -> list[list[bytes]]:
        logs = [stored(self.kafka, self.target, partition) for partition in range(PARTITIONS)]
        return [[record.value or b"" for record in log.records("read_committed")] for log in logs]

    def _count(self) -> int:
        return sum(map(len, self._found()))

    def _judge(self) -> None:
        wanted = [[b"%d" % number for number in range(start, RECORDS, PARTITIONS)] for start in range(PARTITIONS)]
        if (found := self._found()) != wanted:
            self.ended.faults.append(f"the output is {found}, wanted {wanted}")


def _topic(kafka: ApacheKafka) -> str:
    """Run a case, up to three times, because a broker may be slow on a busy machine."""
    for attempt in range(3):
        try:
            return kafka.create_topic(partitions=PARTITIONS)
        except TimeoutError:
            time.sleep(2.0**attempt)
    return kafka.create_topic(partitions=PARTITIONS)


def run_cases(
    chosen: Iterable[Case], api_name: str, protocol: str, kafka: ApacheKafka, proxy: KafkaProxy, at_once: int
) -> list[Ended]:
    """Run cases at the same time."""

    def one(numbered: tuple[int, Case]) -> Ended:
        number, case = numbered
        return Run(case, api_name, protocol, kafka, proxy, f"{api_name}-{protocol}-{number}").run()

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, enumerate(chosen)))
