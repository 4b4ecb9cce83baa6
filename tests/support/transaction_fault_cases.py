# SPDX-License-Identifier: Apache-2.0
"""One fault at one wire step of a transaction, and what must hold whatever the fault was.

A case opens a producer that connects through the proxy, and writes one transaction of records and offsets with the
fault, and then one without. Every call must end by its deadline, and raise only errors of kcodec. The producer must be
usable afterwards, unless the remedy of its error is "recreate" or "stop". The log must agree with the reported
outcomes. A transient fault must have no effect that the program can see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_client import committed_offset, end_open_transactions, read_committed
from transaction_apis import APIS, Reported, Work
from transaction_load import COMMITTED, Findings, Written, judge, make_records

from kcodec.errors import BrokerError, KcodecError
from kcodec.offsets import ConsumerGroupMetadata, TopicPartition
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy
from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.rules import Rule, Selection

PARTITIONS = 2
CALL_SECONDS = 6.0  # maximum duration of a call according to its options
SLACK_SECONDS = 3.0  # two processors that others use, too
OPTIONS = {
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 6_000,
    "default_api_timeout_ms": 6_000,
    "max_block_ms": 6_000,
    "transaction_timeout_ms": 30_000,
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 10,
    "linger_ms": 0,
}

#: Transient error codes: the client repeats the request, and the program does not see them.
PASSING = {
    "FindCoordinator": (14, 15),
    "InitProducerId": (14, 15, 16, 51),
    "AddPartitionsToTxn": (3, 14, 15, 16, 51),
    "AddOffsetsToTxn": (14, 15, 16, 51),
    "Produce": (3, 5, 6, 7, 13, 19, 56),
    "TxnOffsetCommit": (3, 14, 15, 16, 100),
    "EndTxn": (14, 15, 16, 51),
    "Metadata": (3, 5),
    "ApiVersions": (35,),
}
#: Codes that end the transaction, or the producer.
ENDING = {
    "FindCoordinator": (53, -1),
    "InitProducerId": (35, 42, 47, 50, 53, 90, -1),
    "AddPartitionsToTxn": (29, 47, 48, 49, 53, 55, 90, 120, -1),
    "AddOffsetsToTxn": (30, 47, 48, 49, 53, 90, 120, -1),
    "Produce": (10, 29, 45, 47, 48, 49, 53, 59, 87, 90, 120, -1),
    "TxnOffsetCommit": (12, 22, 25, 30, 47, 48, 49, 53, 69, 82, 90, 113, 120, -1),
    "EndTxn": (47, 48, 49, 53, 59, 90, 120, -1),
    "Metadata": (29,),
}
#: Error codes that replace the response to a request that the broker has executed.
BEHIND = {"EndTxn": (14, 15, 16, 51), "Produce": (7, 19), "TxnOffsetCommit": (15, 16), "InitProducerId": (14, 16, 51)}
OLD_FLOW_ONLY = ("AddPartitionsToTxn", "AddOffsetsToTxn")

Arm = Callable[["Case", KafkaProxy, str], Rule]


@dataclass(frozen=True)
class Case:
    """A fault: where, what, how often (None: until the rule is removed).

    must_commit: it is transient, and the transaction must commit; must_fail: the transaction must fail; may_fence: the
    producer may be fenced later, in place of the next transaction.
    """

    api: str
    fault: str
    arm: Arm = field(repr=False, compare=False)
    must_commit: bool = False
    must_fail: bool = False
    may_fence: bool = False
    nth: int = 1
    count: int | None = 1

    @property
    def name(self) -> str:
        """Return a description of the fault."""
        often = "" if self.count == 1 else " always" if self.count is None else f" x{self.count}"
        return f"{self.api}{f' no. {self.nth}' if self.nth > 1 else ''}: {self.fault}{often}"


@dataclass
class Ended:
    """The result of a case: the records, the reported outcomes, and the violations."""

    case: Case
    written: list[Written] = field(default_factory=list)
    offsets: list[tuple[str, int]] = field(default_factory=list)  # group id, what was to be committed
    reported: list[Reported] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def _requests(case: Case, proxy: KafkaProxy, client_id: str) -> Selection:
    return proxy.on_request(case.api, nth=case.nth, count=case.count, client_id=client_id)


def _responses(case: Case, proxy: KafkaProxy, client_id: str) -> Selection:
    return proxy.on_response(case.api, nth=case.nth, count=case.count, client_id=client_id)


def _names_topics(exchange: Exchange) -> bool:
    return bool(exchange.request_message().topics)


LATE_SECONDS = 0.5
LATE_AND_CUT = f"request {LATE_SECONDS} s late, its connection cut"
CARRIED: dict[str, Arm] = {
    "cut before the broker got it": lambda *at: _requests(*at).cut(),
    "cut before the answer came": lambda *at: _responses(*at).cut(),
    "cut behind the answer": lambda *at: _responses(*at).deliver_and_cut(),
    "request 0.3 s late": lambda *at: _requests(*at).hold(0.3),
    "answer 0.3 s late": lambda *at: _responses(*at).hold(0.3),
    LATE_AND_CUT: lambda *at: _requests(*at).hold(LATE_SECONDS, cut_client=True),
    "never answered": lambda *at: _responses(*at).drop(),
    "never delivered": lambda *at: _requests(*at).drop(),
}


def _error(code: int) -> Arm:
    def arm(case: Case, proxy: KafkaProxy, client_id: str) -> Rule:
        if case.api == "Metadata":
            chosen = proxy.on_response(case.api, count=case.count, client_id=client_id, where=_names_topics)
            return chosen.replace(error=code)
        return _requests(case, proxy, client_id).answer(error=code)

    return arm


def _error_behind(code: int) -> Arm:
    return lambda *at: _responses(*at).replace(error=code)


def cases(transaction_version: int) -> Iterator[Case]:
    """Yield all faults at all steps of the flow of this level of transaction.version."""
    for api in PASSING:
        if transaction_version >= 2 and api in OLD_FLOW_ONLY:
            continue
        for fault, arm in CARRIED.items():
            # The first InitProducerId has no epoch: a late copy of it fences the producer that sent it.
            fences = api == "InitProducerId" and fault == LATE_AND_CUT
            yield Case(api, fault, arm, must_commit=not fences, may_fence=fences)
        yield Case(api, "cut before the broker got it", CARRIED["cut before the broker got it"], count=None)
        yield Case(api, "never answered", CARRIED["never answered"], count=None)
        for code in PASSING[api]:
            yield Case(api, f"error {code}", _error(code), must_commit=True)
            if api != "ApiVersions":  # brokers respond to an unsupported version of ApiVersions in version 0
                yield Case(api, f"error {code}", _error(code), must_commit=True, count=3)
        for code in PASSING[api][:2]:
            yield Case(api, f"error {code}", _error(code), count=None)
        for code in ENDING.get(api, ()):
            # A batch that is too large is split, and some requests are repeated after UNKNOWN_SERVER_ERROR.
            passes = (api, code) in {("Produce", 10), ("EndTxn", -1), ("FindCoordinator", -1), ("InitProducerId", -1)}
            count = None if api == "Metadata" else 1
            yield Case(api, f"error {code}", _error(code), must_fail=not passes, count=count)
        for code in BEHIND.get(api, ()):
            yield Case(api, f"carried out, error {code}", _error_behind(code), must_commit=True)
    yield Case("FindCoordinator", "error 30 of the group", _error(30), must_fail=True, nth=2)
    yield Case("FindCoordinator", "error 15 of the group", _error(15), must_commit=True, nth=2)


def run_case(case: Case, api_name: str, proxy: KafkaProxy, topic: str, name: str) -> Ended:
    """Run one case with a new transactional id, client id and group."""
    ended = Ended(case)
    rule = case.arm(case, proxy, name)
    options = {**OPTIONS, "bootstrap_servers": proxy.bootstrap_servers, "client_id": name, "transactional_id": name}
    open_producer = APIS[api_name]
    producer = open_producer(**options)
    try:
        reported = _transact(ended, producer, topic, name, 0)
        if not rule.hits:
            ended.faults.append("the fault never came about")
        rule.remove()
        if case.must_commit and (reported.outcome != COMMITTED or reported.error is not None):
            ended.faults.append(f"{reported.outcome} although this passes by itself: {reported.error!r}")
        if case.must_fail and (reported.outcome == COMMITTED or reported.error is None):
            ended.faults.append(f"{reported.outcome} without an error although this cannot succeed")
        if case.may_fence:
            time.sleep(2 * LATE_SECONDS)  # the late copy must not fence the last transaction
        for number in (1, 2) if case.may_fence else (1,):
            if isinstance(reported.error, BrokerError) and reported.error.remedy in ("recreate", "stop"):
                producer.close()
                producer = open_producer(**options)
            before, reported = reported, _transact(ended, producer, topic, name, number)
        again = reported
        if again.outcome != COMMITTED:
            ended.faults.append(f"the next transaction is {again.outcome} after {before.error!r}: {again.error!r}")
    finally:
        rule.remove()
        begin = time.monotonic()
        producer.close()
        if time.monotonic() - begin > CALL_SECONDS + SLACK_SECONDS:
            ended.faults.append(f"close took {time.monotonic() - begin:.1f} s")
    return ended


def _transact(ended: Ended, producer: Any, topic: str, name: str, number: int) -> Reported:
    records = make_records(name, number, range(PARTITIONS), 2)
    group = f"{name}-{number}"
    reported: Reported = producer.transact(
        Work(topic, records, {TopicPartition(topic, 0): 7 + number}, ConsumerGroupMetadata(group))
    )
    ended.reported.append(reported)
    ended.written.append(Written(name, number, records, reported.outcome))
    ended.offsets.append((group, 7 + number))
    if reported.error is not None and not isinstance(reported.error, KcodecError):
        ended.faults.append(f"an error that is not kcodec's: {reported.error!r}")
    if reported.error is not None and reported.outcome == COMMITTED:
        ended.faults.append(f"committed, and yet {reported.error!r}")
    for call, seconds in reported.seconds.items():
        # The end of a block is a commit, followed by an abort if it fails.
        limit = CALL_SECONDS * (2 if call == "end" else 1)
        if seconds > limit + SLACK_SECONDS:
            ended.faults.append(f"{call} took {seconds:.1f} s, by its options at most {limit} s")
    return reported


def _warm_up(kafka: ApacheKafka, topic: str) -> None:
    """Run the first transaction of a broker, which creates its internal topics and takes longer than the cases
    allow."""
    name = f"{topic}-first"
    first = APIS["blocking"](bootstrap_servers=kafka.admin_servers, transactional_id=name)
    try:
        reported = first.transact(Work(topic, {}, {TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(name)))
    finally:
        first.close()
    assert reported.outcome == COMMITTED, reported.error


def run_cases(
    chosen: Iterable[Case], api_name: str, kafka: ApacheKafka, proxy: KafkaProxy, at_once: int = 12
) -> tuple[list[Ended], Findings]:
    """Run cases at the same time, each with its own names, and compare the reports with the log."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    _warm_up(kafka, topic)
    with ThreadPoolExecutor(at_once) as pool:
        running = [
            pool.submit(run_case, case, api_name, proxy, topic, f"{topic}-{api_name}-{number}")
            for number, case in enumerate(chosen)
        ]
        ended = [one.result() for one in running]
    end_open_transactions(kafka.admin_servers, [one.written[0].producer for one in ended])
    found = read_committed(kafka.admin_servers, topic, PARTITIONS)
    seen = {value for values in found.values() for value in values}
    for one in ended:
        for (group, offset), written in zip(one.offsets, one.written, strict=True):
            is_there = committed_offset(kafka.admin_servers, group, topic, 0) == offset
            if is_there != (written.records[0][0] in seen):
                one.faults.append(f"offsets {'without' if is_there else 'missing next to'} their records")
    return ended, judge((written for one in ended for written in one.written), found)
