# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ that docs/recipes.md tells of, killed and stopped at steps of their way on a real broker;
each compared with a control that does it the obvious way, and fails. The outbox has a file of its own.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from recipe_inputs import COUNTING, Bank, prices, read_prices, read_until
from recipe_worker import STEPS, example
from recipes import (
    Amounts,
    StoreCase,
    add_amounts,
    assert_killed,
    committed,
    end,
    log_ends,
    producer,
    reader_arguments,
    start_worker,
    wait_for,
    wait_stopped,
    write_amounts,
)

from kcodec import Record, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer
from kcodec.client.session import SessionTransaction
from kcodec.errors import UnknownOutcomeError
from kcodec.testing.kafka import ApacheKafka

LONG = os.environ.get("KCODEC_PROFILE") == "long"
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def amounts(apache_kafka: ApacheKafka) -> Amounts:
    """Nobody adds to it."""
    return write_amounts(apache_kafka)


# ------------------------------------------------------------------------------------- consume, transform, produce


def test_consume_transform_produce_in_thirty_lines(apache_kafka: ApacheKafka) -> None:
    source = apache_kafka.create_topic(partitions=2)
    with producer(apache_kafka, transactional_id=f"to-{source}") as sender:
        for number in range(9):
            with sender.transaction() as txn:
                txn.send(source, b"value-%d" % number, key=b"k%d" % (number % 3))
                if number % 3 == 2:
                    txn.abort()
    programs: dict[str, subprocess.Popen[bytes]] = {}
    for name in ("transform.py", "transform_asyncio.py", "transform_arrow.py"):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 30
        target = apache_kafka.create_topic(partitions=2)
        for before, after in (("in", source), ("out", target), ("transform", f"transform-{target}")):
            text = text.replace(f'"{before}"', f'"{after}"')
        command = [sys.executable, "-c", text, apache_kafka.bootstrap_servers, f"id-{target}"]
        programs[target] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    told = []
    try:
        for target, program in programs.items():

            def is_done(target: str = target, program: subprocess.Popen[bytes] = program) -> bool:
                return program.poll() is not None or sum(map(len, committed(apache_kafka, target).values())) >= 6

            wait_for(is_done)
    finally:
        told = [end(program) for program in programs.values()]
    for target in programs:
        expected = {b"k%d" % key: [b"VALUE-%d" % (key + 3 * turn) for turn in range(3)] for key in range(2)}
        assert committed(apache_kafka, target) == expected, told


# ------------------------------------------------------------------------------------------------------- local store


def test_a_local_store_is_exact_whatever_step_it_is_killed_at(
    apache_kafka: ApacheKafka, amounts: Amounts, tmp_path: Path
) -> None:
    steps = STEPS["local_store"] if LONG else ("sent", "committed")
    cases = {step: StoreCase(apache_kafka, tmp_path, step, amounts) for step in steps}
    workers = [start_worker("local_store", step, case.arguments()) for step, case in cases.items()]
    for worker in workers:
        assert_killed(worker)
    for case in cases.values():
        case.drain()
        case.assert_exact(tmp_path)


def test_a_store_forgets_what_was_aborted(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    case = StoreCase(apache_kafka, tmp_path, "aborted")
    totals = case.totals()
    try:
        with pytest.raises(ZeroDivisionError), totals.session.transaction() as txn:
            records = wait_for(lambda: txn.poll(1.0))
            totals.store.put(txn, records[0].partition, b"k", b"1")
            assert totals.store.get(records[0].partition, b"k") == b"1"
            raise ZeroDivisionError
        totals.store.rollback()
        assert case.state(totals.store) == {}
    finally:
        totals.close()
    case.drain()
    case.assert_exact(tmp_path)


def test_a_store_whose_restore_failed_is_restored_before_it_is_used(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = StoreCase(apache_kafka, tmp_path, "unrestored")
    totals = case.totals()
    restore = totals.store.restore
    calls: list[set[TopicPartition]] = []

    def fail_once(partitions: Iterable[TopicPartition]) -> None:
        calls.append(set(partitions))
        if len(calls) == 1:
            raise TimeoutError("the changelog cannot be read")
        restore(calls[-1])

    monkeypatch.setattr(totals.store, "restore", fail_once)
    try:
        with pytest.raises(TimeoutError):
            wait_for(totals.step)
        assert len(calls) == 1
        wait_for(totals.step)
        assert calls[1] >= calls[0] != set()
    finally:
        totals.close()
    case.drain()
    case.assert_exact(tmp_path)


def test_the_changelog_records_an_unknown_outcome(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = StoreCase(apache_kafka, tmp_path, "unknown")
    end_transaction = SessionTransaction.__exit__

    def unanswered(self: SessionTransaction, *error: Any) -> None:
        end_transaction(self, *error)
        raise UnknownOutcomeError("EndTxn was not answered")

    with closing(case.totals()) as totals:
        monkeypatch.setattr(SessionTransaction, "__exit__", unanswered)
        wait_for(lambda: [totals.step(0.2), case.state(totals.store) == case.amounts.totals][1])
    case.assert_exact(tmp_path)


def test_state_goes_with_its_partition_to_another_store_and_back(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    case = StoreCase(apache_kafka, tmp_path, "moving")
    options: dict[str, Any] = {"group_instance_id": None, "heartbeat_interval_ms": 200}
    first = case.totals(**options)
    done = threading.Event()

    def second() -> None:
        with closing(case.totals(tmp_path / "second.db", "-second", **options)) as totals:
            totals.run(done.is_set)

    def go_on_until(is_so: Callable[[], bool]) -> None:
        wait_for(lambda: [first.step(0.2), is_so()][1])

    stepping = threading.Thread(target=second)
    try:
        go_on_until(lambda: case.state(first.store) == case.amounts.totals)
        stepping.start()
        go_on_until(lambda: len(first.session.assignment()) == 1)
        add_amounts(apache_kafka, case.amounts, 4, seed=2)
        expected = sum(map(len, case.amounts.history.values()))
        go_on_until(lambda: sum(map(len, committed(apache_kafka, case.target).values())) == expected)
        assert case.state(first.store) != case.amounts.totals
        done.set()
        add_amounts(apache_kafka, case.amounts, 2, seed=3)
        go_on_until(lambda: case.state(first.store) == case.amounts.totals)
    finally:
        done.set()
        if stepping.ident is not None:
            stepping.join()
        first.close()
    case.assert_exact(tmp_path)


def test_a_restore_waits_for_unreadable_commits_of_its_last_owner(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Up to the end of the log. The control goes up to what can be read at once, and misses it."""
    case = StoreCase(apache_kafka, tmp_path, "pending", Amounts("source", {}))
    inputs = [TopicPartition("source", 0)]
    with producer(apache_kafka, transactional_id=f"last-owner-{case.id}") as owner, closing(case.store()) as store:
        with owner.transaction() as txn:
            txn.send(case.changelog, b"17", key=b"a", partition=0).result(20)
            with Consumer(bootstrap_servers=apache_kafka.bootstrap_servers) as control:
                partition = TopicPartition(case.changelog, 0)
                assert control.end_offsets([partition]) == {partition: 0}
            restoring = threading.Thread(target=restore_elsewhere, args=(case, inputs))
            restoring.start()
            restoring.join(0.3)
            assert restoring.is_alive()
        restoring.join()
        assert store.get(0, b"a") == b"17"


def restore_elsewhere(case: StoreCase, inputs: list[TopicPartition]) -> None:
    with closing(case.store()) as store:
        store.restore(inputs)


def test_a_store_that_was_away_for_long_begins_again(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion may be gone from the changelog: here it never was there."""
    case = StoreCase(apache_kafka, tmp_path, "away", Amounts("source", {}))
    with closing(case.store()) as store:
        store._connection.execute("INSERT INTO state VALUES (0, 'deleted since', '1')")
        store._connection.execute("INSERT INTO changelog VALUES (0, 0, 0.0)")
        store.restore([TopicPartition("source", 0)])
        assert case.state(store) == {}


# ---------------------------------------------------------------------------------------- the position in a database


def banks(folder: Path, server: PostgresServer, name: str) -> dict[str, Bank]:
    return {
        f"{name}-sqlite": Bank(["--sqlite", folder / f"{name}.db"]),
        f"{name}-postgres": Bank(["--postgres", server.new_database()]),
    }


def test_records_and_position_in_one_transaction_of_a_database_whatever_step_it_is_killed_at(
    apache_kafka: ApacheKafka, amounts: Amounts, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    steps = STEPS["offsets_in_database"] if LONG else ("moved",)
    workers = []
    found: dict[str, Bank] = {}
    for step in steps:
        for name, bank in banks(tmp_path, postgres_server, f"{step}-{amounts.topic}").items():
            arguments = reader_arguments(apache_kafka, bank.place, name, amounts.topic)
            workers.append(start_worker("offsets_in_database", step, arguments))
            found[name] = bank
    for worker in workers:
        assert_killed(worker)
    for name, bank in found.items():
        read_until(apache_kafka, bank, name, amounts)
        assert bank.balances() == amounts.totals


def test_of_two_owners_of_a_partition_one_is_rolled_back(
    apache_kafka: ApacheKafka, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """The first is stopped with what it has polled, before its transaction, and woken when the group has given its
    partitions to the second. The control, which writes its position unconditionally, counts twice."""
    amounts = write_amounts(apache_kafka)
    found = banks(tmp_path, postgres_server, f"owners-{amounts.topic}")
    control = f"careless-{amounts.topic}"
    found[control] = Bank(["--sqlite", tmp_path / "careless.db"])
    owners = {
        name: start_worker(
            "offsets_in_database",
            "careless" if name == control else "ready",
            reader_arguments(apache_kafka, bank.place, name, amounts.topic),
            "SIGSTOP",
        )
        for name, bank in found.items()
    }
    try:
        for owner in owners.values():
            wait_stopped(owner)
        for name, bank in found.items():
            read_until(apache_kafka, bank, name, amounts)
            assert bank.balances() == amounts.totals
        for name, owner in owners.items():
            owner.send_signal(signal.SIGCONT)
            assert owner.stderr is not None
            if name != control:
                assert any(b"rolled back" in line for line in owner.stderr)
        wait_for(lambda: found[control].balances() != amounts.totals)
    finally:
        for owner in owners.values():
            end(owner)
    careless = found.pop(control).balances()
    assert sum(careless.values()) > sum(amounts.totals.values())
    assert [bank.balances() for bank in found.values()] == [amounts.totals] * 2


def test_what_is_stored_is_the_position_and_not_a_number_made_of_offsets(
    apache_kafka: ApacheKafka, amounts: Amounts, tmp_path: Path
) -> None:
    """The last offset + 1 stands in front of markers and aborted records; an offset + a count anywhere."""
    with Consumer(bootstrap_servers=apache_kafka.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(amounts.topic, number) for number in range(2)]
        consumer.assign(partitions)
        ends = dict(zip(partitions, log_ends(apache_kafka, amounts.topic), strict=True))
        last, count = dict.fromkeys(partitions, -1), dict.fromkeys(partitions, 0)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(0.2):
                assert record.topic is not None and record.partition is not None
                partition = TopicPartition(record.topic, record.partition)
                last[partition] = record.offset
                count[partition] += 1
        for partition, end in ends.items():
            assert consumer.position(partition) == end
            assert count[partition] < last[partition] + 1 < end


def interrupt_first(consumer: Consumer) -> None:
    """Let Ctrl-C come just after the first poll that returns records."""
    poll = consumer.poll

    def interrupted(timeout: float) -> list[Record]:
        records = poll(timeout)
        if records:
            consumer.poll = poll  # type: ignore[method-assign]
            raise KeyboardInterrupt
        return records

    consumer.poll = interrupted  # type: ignore[method-assign, assignment]


def test_records_come_again_if_the_program_goes_on_after_an_exception(kcodec_broker: Broker) -> None:
    """The database rolls back, but the consumer has polled the records. Ctrl-C may also come just after a poll."""
    topic = kcodec_broker.create_topic(partitions=2)
    for partition in range(2):
        kcodec_broker.seed(
            topic, [(b"alice", b"%d" % (10 ** (3 * partition + n))) for n in range(3)], partition=partition
        )
    module = example("offsets_in_database")
    failures = iter([None, OSError("the disk is full"), KeyboardInterrupt()])

    def apply(connection: sqlite3.Connection, record: Record) -> None:
        connection.execute("INSERT INTO seen VALUES (?)", (int(record.value or 0),))
        if (failure := next(failures, None)) is not None:
            raise failure

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE seen (amount INTEGER)")
        servers = kcodec_broker.bootstrap_servers
        with closing(module.Reader(connection, "ledger", [topic], apply, bootstrap_servers=servers)) as reader:
            interrupt_first(reader.consumer)
            read = reader.positions.read

            def failing(partition: TopicPartition) -> Any:
                reader.positions.read = read
                raise OSError(f"the database cannot be read for {partition}")

            reader.positions.read = failing
            raised: list[type[BaseException]] = []
            seen: list[int] = []
            for _ in range(20):
                try:
                    reader.step(0.5)
                except (OSError, KeyboardInterrupt) as error:
                    raised.append(type(error))
                seen = sorted(row[0] for row in connection.execute("SELECT amount FROM seen"))
                if len(raised) == 4 and len(seen) >= 6:
                    break
        wanted = [OSError, KeyboardInterrupt, OSError, KeyboardInterrupt]
        assert (raised, seen) == (wanted, [10**number for number in range(6)])


# ------------------------------------------------------------------------------------------------------------ upsert


class Killed(Exception):
    """Instead of a commit."""


def latest_prices(kafka: ApacheKafka, amounts: Amounts) -> dict[str, int]:
    return {key.decode(): int(values[-1] or 0) for key, values in committed(kafka, amounts.topic).items()}


def test_an_upsert_may_come_twice_and_a_sum_may_not(
    apache_kafka: ApacheKafka, amounts: Amounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("upsert")
    found = {}
    for name, statement in {"upsert": module.UPSERT, "counting": COUNTING}.items():
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute(module.SCHEMA)
            group = f"{name}-{amounts.topic}"
            with monkeypatch.context() as patch:
                patch.setattr(Consumer, "commit", not_committing)
                with pytest.raises(Killed):
                    read_prices(apache_kafka, group, amounts.topic, connection, statement)
            assert prices(connection)
            read_prices(apache_kafka, group, amounts.topic, connection, statement)
            found[name] = prices(connection)
    assert found["upsert"] == latest_prices(apache_kafka, amounts)
    assert sum(found["counting"].values()) > sum(amounts.totals.values())


def not_committing(consumer: Consumer) -> None:
    raise Killed


def test_an_upsert_that_goes_on_after_an_exception_loses_nothing(kcodec_broker: Broker) -> None:
    """A database that fails, a commit that fails, and Ctrl-C before a commit and just after a poll: each one is
    caught, and the next step gets the records again."""
    topic = kcodec_broker.create_topic(partitions=2)
    for partition in range(2):
        records = [(b"item-%d-%d" % (partition, number), b"%d" % number) for number in range(5)]
        kcodec_broker.seed(topic, records, partition=partition)
    module, failures = example("upsert"), iter([OSError("no answer"), None, KeyboardInterrupt()])
    options: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "max_poll_records": 2}
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(module.SCHEMA)
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON price BEGIN SELECT RAISE(ABORT, 'full'); END")

        class Failing(Consumer):
            written = 0

            def commit(self, *given: Any, **named: Any) -> None:
                before, self.written = self.written, connection.total_changes
                if self.written > before and (failure := next(failures, None)) is not None:
                    raise failure
                super().commit(*given, **named)

        with Failing(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id=topic, **options) as consumer:
            consumer.subscribe(topic)
            raised: list[type[BaseException]] = []
            interrupt_first(consumer)
            writer, deadline = module.Writer(consumer, connection), time.monotonic() + 20
            while len(prices(connection)) < 10:
                assert time.monotonic() < deadline, raised
                try:
                    writer.step()
                except (sqlite3.Error, OSError, KeyboardInterrupt) as error:
                    raised.append(type(error))
                    if isinstance(error, sqlite3.Error):
                        connection.execute("DROP TRIGGER full")
            ends = {TopicPartition(topic, number): 5 for number in range(2)}
            assert {one: consumer.position(one) for one in ends} == ends
        found = prices(connection)
        assert found == {f"item-{partition}-{number}": number for partition in range(2) for number in range(5)}
        assert raised == [KeyboardInterrupt, sqlite3.IntegrityError, OSError, KeyboardInterrupt]


def test_an_upsert_killed_between_both_commits_writes_the_same_again(
    apache_kafka: ApacheKafka, amounts: Amounts, tmp_path: Path
) -> None:
    path, group = tmp_path / "prices.db", f"killed-{amounts.topic}"
    assert_killed(start_worker("upsert", "written", [path, apache_kafka.bootstrap_servers, group, amounts.topic]))
    with closing(sqlite3.connect(path)) as connection:
        assert prices(connection)
        read_prices(apache_kafka, f"{group}-again", amounts.topic, connection, example("upsert").UPSERT)
        assert prices(connection) == latest_prices(apache_kafka, amounts)
