# SPDX-License-Identifier: Apache-2.0
"""A remedy that is followed leads out: each error code of each API that a client handles, by the public API.

A program runs against a scripted broker in virtual time, and does what the errors that it meets advise: "retry" calls
again, "abort" goes on with the next transaction (or poll), "recreate" makes another client, "stop" ends. The broker
gives the code once, or always.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from virtual_broker import OUT, RECORDS, TOPIC, VirtualBroker, virtual_time

from kcodec.client.aio import Consumer, GroupTransactSession, Producer
from kcodec.errors import DecodeError, DeliveryTimeoutError, KcodecError, UnknownOutcomeError
from kcodec.protocol.error_codes import ERRORS

#: Codes that kcodec's tables treat on their own, and every code whose remedy is something else than "stop".
CODES = sorted(
    {code for code, row in ERRORS.items() if code and row.remedy != "stop"}
    | {-1, 1, 10, 12, 17, 23, 24, 26, 28, 29, 30, 31, 35, 42, 43, 46, 50, 52, 53, 55, 68, 69, 79, 81, 87, 90, 111, 112}
    | {128, 129, 999}
)
#: Codes that come always: all of them with the long seeds, else every third, from another one on for each API.
STEP = 1 if os.environ.get("KCODEC_PROFILE") == "long" else 3
SERVERS = "broker:9092"
FENCED_INSTANCE_ID, STALE_MEMBER_EPOCH = 82, 113
#: Virtual seconds for one program.
SECONDS = 30.0
#: What a client may ask of a broker in a second without a busy loop, and what a program may for one of its steps.
REQUESTS_PER_SECOND, REQUESTS_PER_STEP = 25, 15
#: A program that goes on although the broker always refuses is ended after this number of errors.
MOST_ERRORS = 60
#: The same error again, although the program did what it advises, and without another request to the broker.
MOST_REPEATS = 2
#: A client that is made again comes after this time, as under a supervisor.
RESTART_SECONDS = 1.0
#: A consumer goes on for this time at least, so that it sends heartbeats.
LEAST_SECONDS = 8.0
#: What is advised where an exception of kcodec's has no remedy of its own.
WITHOUT_REMEDY: dict[type[KcodecError], str] = {
    DeliveryTimeoutError: "abort",
    UnknownOutcomeError: "abort",
    DecodeError: "stop",
}


class Run:
    """What became of a program. outcome: "done", "stopped", or "refused" where the time was over first."""

    def __init__(self) -> None:
        self.outcome = "refused"
        self.errors: list[KcodecError] = []
        self.broker: VirtualBroker
        #: Errors in a row between which nothing was asked of the broker; what it was asked up to the last one.
        self.repeats = self.requests = 0

    def follow(self, error: KcodecError) -> str:
        """The remedy of an error."""
        self.errors.append(error)
        requests = len(self.broker.requests)
        self.repeats = self.repeats + 1 if requests == self.requests else 0
        self.requests = requests
        if len(self.errors) > MOST_ERRORS or self.repeats > MOST_REPEATS:
            return "stop"
        if isinstance(error, ExceptionGroup):
            error = error.exceptions[0]  # type: ignore[assignment]
        remedy = getattr(error, "remedy", None)
        if remedy is None:
            remedy = next((text for kind, text in WITHOUT_REMEDY.items() if isinstance(error, kind)), None)
        assert remedy in ("retry", "abort", "recreate", "stop"), f"{error!r} has remedy {remedy!r}"
        return str(remedy)


async def consumes(run: Run, protocol: Literal["classic", "consumer"]) -> None:
    """Read all records, and commit."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "group_protocol": protocol}
    if protocol == "classic":
        options |= {"group_instance_id": "one"}
    values: set[bytes | None] = set()
    began = time.monotonic()
    while run.outcome == "refused":
        consumer = Consumer(bootstrap_servers=SERVERS, group_id="billing", **options)
        try:
            await consumer.subscribe([TOPIC])
            remedy = ""
            while remedy != "recreate" and run.outcome == "refused":
                try:
                    values |= {record.value for record in await consumer.poll(1.0)}
                    await consumer.commit()
                    if len(values) == RECORDS and time.monotonic() > began + LEAST_SECONDS:
                        run.outcome = "done"
                except KcodecError as error:
                    remedy = run.follow(error)
                    if remedy == "stop":
                        run.outcome = "stopped"
        finally:
            await consumer.close(1.0)
            await asyncio.sleep(RESTART_SECONDS)


async def writes(run: Run, options: dict[str, Any], block: Callable[[Any], Awaitable[None]]) -> None:
    """A producer that writes one record, until that is acknowledged or committed."""
    while run.outcome == "refused":
        producer = Producer(bootstrap_servers=SERVERS, **options)
        try:
            remedy = ""
            while remedy != "recreate" and run.outcome == "refused":
                try:
                    await block(producer)
                    run.outcome = "done"
                except KcodecError as error:
                    remedy = run.follow(error)
                    if remedy == "stop":
                        run.outcome = "stopped"
        finally:
            await closed(producer)
            await asyncio.sleep(RESTART_SECONDS)


async def closed(client: Any) -> None:
    """Close a client whose last failures were met before."""
    try:
        await client.close(1.0)
    except KcodecError:
        assert True  # what close raises was raised by the calls, too


async def send_one(producer: Any) -> None:
    await (await producer.send(OUT, b"x"))


async def send_in_transaction(producer: Any) -> None:
    async with producer.transaction() as transaction:
        await producer.send(OUT, b"x")
        group = await grouped()
        await transaction.send_offsets({(TOPIC, 0): 5}, group)


async def grouped() -> Any:
    from kcodec import ConsumerGroupMetadata

    return ConsumerGroupMetadata("billing", 1, "m-1")


async def copies(run: Run, protocol: Literal["classic", "consumer"]) -> None:
    """A group transact session, until all records are committed."""
    committed = 0
    while run.outcome == "refused":
        session = GroupTransactSession(
            bootstrap_servers=SERVERS,
            transactional_id="copy",
            group_id="billing",
            topics=[TOPIC],
            group_protocol=protocol,
            group_instance_id="one" if protocol == "classic" else None,
        )
        try:
            remedy = ""
            while remedy != "recreate" and run.outcome == "refused":
                try:
                    count = 0
                    async with session.transaction() as transaction:
                        for record in await transaction.poll(1.0):
                            await transaction.send(OUT, record.value)
                            count += 1
                    committed += count if transaction.committed else 0
                    if committed >= RECORDS:
                        run.outcome = "done"
                except KcodecError as error:
                    remedy = run.follow(error)
                    if remedy == "stop":
                        run.outcome = "stopped"
        finally:
            await closed(session)
            await asyncio.sleep(RESTART_SECONDS)


PROGRAMS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "classic consumer": lambda run: consumes(run, "classic"),
    "consumer of KIP-848": lambda run: consumes(run, "consumer"),
    "producer": lambda run: writes(run, {"delivery_timeout_ms": 10_000, "request_timeout_ms": 2_000}, send_one),
    "transaction": lambda run: writes(
        run,
        {"transactional_id": "t", "delivery_timeout_ms": 10_000, "request_timeout_ms": 2_000, "max_block_ms": 10_000},
        send_in_transaction,
    ),
    "classic session": lambda run: copies(run, "classic"),
    "session of KIP-848": lambda run: copies(run, "consumer"),
}
_CONSUMED = ["Metadata", "FindCoordinator", "OffsetFetch", "OffsetFetch:top", "ListOffsets", "Fetch", "Fetch:top"]
_CLASSIC = ["JoinGroup", "SyncGroup", "Heartbeat"]
_TRANSACTION = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "Produce"]
#: Program -> the APIs that it uses.
APIS = {
    "classic consumer": [*_CONSUMED, *_CLASSIC, "OffsetCommit"],
    "consumer of KIP-848": [*_CONSUMED, "ConsumerGroupHeartbeat", "OffsetCommit"],
    "producer": ["Metadata", "InitProducerId", "Produce"],
    "transaction": ["Metadata", "FindCoordinator", *_TRANSACTION],
    "classic session": [*_CLASSIC, "OffsetFetch", "Fetch", *_TRANSACTION],
    "session of KIP-848": ["ConsumerGroupHeartbeat", "TxnOffsetCommit", "Fetch", "EndTxn"],
}
CASES = [
    (program, api, version)
    for program, apis in APIS.items()
    for api in apis
    for version in ((1, 2) if api in _TRANSACTION[1:] and program == "transaction" else (2,))
]


def run_program(program: str, faults: Callable[[str], int], version: int) -> Run:
    """Run a program against these faults, for SECONDS at most."""

    async def bounded() -> None:
        task = asyncio.ensure_future(PROGRAMS[program](run))
        _, pending = await asyncio.wait([task], timeout=SECONDS)
        if pending:
            task.cancel()
            await asyncio.wait([task])
        else:
            task.result()

    run = Run()
    with virtual_time(version) as broker:
        broker.faults, run.broker = faults, broker
        broker.run(bounded())
        assert time.monotonic() == broker.now
    return run


def check(run: Run, what: str) -> None:
    """No step of the program was without an effect, and none made the client loop."""
    what = f"{what}: {run.outcome}, {len(run.broker.requests)} requests, {len(run.errors)} errors, {run.errors[-1:]}"
    assert run.repeats <= MOST_REPEATS, f"raised again and again without a request: {what}"
    most = REQUESTS_PER_SECOND * SECONDS + REQUESTS_PER_STEP * len(run.errors)
    assert len(run.broker.requests) < most, f"a busy loop: {what}"


def _once(api: str, left: list[int]) -> Callable[[str], int]:
    return lambda asked: left.pop() if left and asked == api else 0


def _always(api: str, code: int) -> Callable[[str], int]:
    return lambda asked: code if asked == api else 0


@pytest.mark.parametrize(("program", "api", "version"), CASES)
def test_a_remedy_after_one_error_leads_out(program: str, api: str, version: int) -> None:
    """The program goes on to its end, or is stopped by the first errors."""
    for code in CODES:
        left = [code]
        run = run_program(program, _once(api, left), version)
        check(run, f"{program}, {api} {code} once")
        assert run.outcome in ("done", "stopped"), f"{program}, {api} {code} once: {run.outcome}, {run.errors}"
        assert len(run.errors) <= 5, f"{program}, {api} {code} once: {run.errors}"


@pytest.mark.parametrize(("program", "api", "version"), CASES)
def test_a_remedy_that_does_not_help_is_no_busy_loop(program: str, api: str, version: int) -> None:
    """A code that comes always: the program is stopped, or each of its steps asks the broker again, at its own pace."""
    for code in CODES[len(api) % STEP :: STEP]:
        run = run_program(program, _always(api, code), version)
        check(run, f"{program}, {api} {code} always")


@pytest.mark.parametrize("program", ["classic consumer", "classic session"])
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
def test_a_replaced_static_member_gets_the_remedy_stop(program: str, api: str) -> None:
    """FENCED_INSTANCE_ID: another member has the group_instance_id, and no abort gives it back."""
    left = [FENCED_INSTANCE_ID]
    run = run_program(program, lambda asked: left.pop() if left and asked == api else 0, 2)
    error: Any = run.errors[-1]
    assert (run.outcome, error.code, error.remedy, error.resource) == ("stopped", FENCED_INSTANCE_ID, "stop", "billing")
    assert "group_instance_id" in str(error)


def test_offsets_of_a_replaced_member_abort_the_transaction() -> None:
    """FENCED_INSTANCE_ID in TxnOffsetCommit fences the offsets, not the producer."""
    left = [FENCED_INSTANCE_ID]
    run = run_program("transaction", lambda asked: left.pop() if left and asked == "TxnOffsetCommit" else 0, 2)
    (error,) = run.errors
    assert (run.outcome, getattr(error, "remedy", None)) == ("done", "abort")


def test_a_stale_member_epoch_makes_the_member_join_again() -> None:
    left = [STALE_MEMBER_EPOCH]
    run = run_program(
        "consumer of KIP-848", lambda asked: left.pop() if left and asked == "ConsumerGroupHeartbeat" else 0, 2
    )
    assert (run.outcome, run.errors) == ("done", [])
