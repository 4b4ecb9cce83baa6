# SPDX-License-Identifier: Apache-2.0
"""examples/outbox.py on real databases and a real Kafka: each row once, in order, whatever is killed when; and what
becomes of rows where the trap of PostgreSQL's sequences is not known.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from outbox_relay import STEPS
from outbox_rows import GreaterThanTheLast, by_key, delivered
from postgres_server import MissingPostgres, PostgresServer, binaries

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.client import Admin, Producer
from kcodec.errors import EncodeError, ProducerFencedError
from kcodec.testing.kafka import ApacheKafka

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import outbox  # noqa: E402
from outbox import GroupProgress, PostgresOutbox, Relay, Snapshot, SqliteOutbox, TopicProgress, Window  # noqa: E402


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """A database of one's own."""
    return postgres_server.new_database()


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.create_topic(partitions=3)


def make_relay(kafka: ApacheKafka, source: outbox.Outbox, topic: str, **options: Any) -> Relay:
    progress = GroupProgress(TopicPartition(topic, 0))
    return Relay(source, f"relay-{topic}", progress, bootstrap_servers=kafka.bootstrap_servers, **options)


def drain(relay: Relay) -> int:
    sent = 0
    while more := relay.publish():
        sent += more
    return sent


# ----------------------------------------------------------------------------------------------------------- the trap


@pytest.mark.parametrize(("kind", "arrived"), [(PostgresOutbox, [b"1", b"2"]), (GreaterThanTheLast, [b"2"])])
def test_a_row_that_becomes_visible_late_is_not_lost(
    kind: type[PostgresOutbox], arrived: list[bytes], apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    """The first number is taken first and committed last. The control loses it."""
    with closing(kind(postgres)) as source, closing(make_relay(apache_kafka, source, topic)) as relay:
        with psycopg.connect(postgres) as slow, psycopg.connect(postgres) as quick:
            PostgresOutbox.add(slow, topic, key=b"a", value=b"1")
            PostgresOutbox.add(quick, topic, key=b"b", value=b"2")
            quick.commit()
            drain(relay)
            slow.commit()
        drain(relay)
    assert sorted(value for _, value in delivered(apache_kafka, topic)) == arrived


def test_rows_of_one_key_keep_the_order_of_their_commits(apache_kafka: ApacheKafka, topic: str, postgres: str) -> None:
    """A transaction may get its id first, by another write, and wait for the row that a later one holds: it comes
    behind that one. The order of transaction ids would be the wrong one."""
    with closing(PostgresOutbox(postgres)) as source, closing(make_relay(apache_kafka, source, topic)) as relay:
        with psycopg.connect(postgres) as early, psycopg.connect(postgres) as late:
            early.execute("CREATE TABLE account (id int PRIMARY KEY, sum int); INSERT INTO account VALUES (1, 0)")
            early.commit()
            early.execute("SELECT pg_current_xact_id()")
            late.execute("UPDATE account SET sum = sum + 1 WHERE id = 1")
            PostgresOutbox.add(late, topic, key=b"account", value=b"1")
            late.commit()
            early.execute("UPDATE account SET sum = sum + 1 WHERE id = 1")
            PostgresOutbox.add(early, topic, key=b"account", value=b"2")
            early.commit()
        drain(relay)
    assert by_key(delivered(apache_kafka, topic)) == {b"account": [1, 2]}


def test_an_open_transaction_keeps_no_other_rows_back(apache_kafka: ApacheKafka, topic: str, postgres: str) -> None:
    """As above, while a third transaction stays open, whose id is between those of the other two. Their rows arrive,
    and its own row, with the lowest number, arrives later."""
    with closing(PostgresOutbox(postgres)) as source, closing(make_relay(apache_kafka, source, topic)) as relay:
        with (
            psycopg.connect(postgres) as early,
            psycopg.connect(postgres) as open_one,
            psycopg.connect(postgres) as late,
        ):
            early.execute("SELECT pg_current_xact_id()")
            PostgresOutbox.add(open_one, topic, key=b"open", value=b"0")
            for connection, value in ((late, b"1"), (early, b"2")):
                PostgresOutbox.add(connection, topic, key=b"account", value=value)
                connection.commit()
            assert drain(relay) == 2
            PostgresOutbox.add(early, topic, key=b"other", value=b"3")
            early.commit()
            assert drain(relay) == 1
            assert by_key(delivered(apache_kafka, topic)) == {b"account": [1, 2], b"other": [3]}
            open_one.commit()
        assert drain(relay) == 1
    assert by_key(delivered(apache_kafka, topic)) == {b"account": [1, 2], b"other": [3], b"open": [0]}


def test_transactions_that_always_overlap_do_not_stop_the_relay(
    apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    """Each transaction inserts its row behind that of a transaction with a higher id, and the next one is open by then.
    No transaction id ever divides the rows by transaction and by number alike."""
    with (
        closing(PostgresOutbox(postgres)) as source,
        closing(make_relay(apache_kafka, source, topic)) as relay,
        psycopg.connect(postgres) as holder,
        psycopg.connect(postgres) as next_holder,
        psycopg.connect(postgres) as quick,
    ):
        holder.execute("SELECT pg_current_xact_id()")
        for number in range(1, 11):
            next_holder.execute("SELECT pg_current_xact_id()")
            for connection, value in ((quick, 2 * number - 1), (holder, 2 * number)):
                PostgresOutbox.add(connection, topic, key=b"k", value=str(value).encode())
                connection.commit()
            assert relay.publish() == 2
            holder, next_holder = next_holder, holder
    assert by_key(delivered(apache_kafka, topic)) == {b"k": list(range(1, 21))}


class Accounts:
    """Steadily concurrent writers. Each transaction gets its id at its start, works for a while, waits for the lock of
    an account, and adds a row with the account's number of changes."""

    def __init__(self, conninfo: str, topic: str, *, writers: int, accounts: int, gap: float) -> None:
        self._conninfo, self._topic, self._accounts, self._gap = conninfo, topic, accounts, gap
        with psycopg.connect(conninfo) as connection:
            connection.execute("CREATE TABLE account (id int PRIMARY KEY, changes int NOT NULL)")
            connection.execute("INSERT INTO account SELECT id, 0 FROM generate_series(1, %s) AS id", (accounts,))
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]
        self.errors: list[BaseException] = []

    def __enter__(self) -> Accounts:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors

    def changes(self) -> dict[bytes, list[int]]:
        with psycopg.connect(self._conninfo) as connection:
            rows = connection.execute("SELECT id, changes FROM account").fetchall()
        return {str(account).encode(): list(range(1, changes + 1)) for account, changes in rows}

    def _write(self, writer: int) -> None:
        rng = random.Random(writer)
        try:
            with closing(psycopg.connect(self._conninfo)) as connection:
                while not self._is_over.is_set():
                    connection.execute("SELECT pg_current_xact_id()")
                    time.sleep(rng.expovariate(1 / self._gap))
                    row = connection.execute(
                        "UPDATE account SET changes = changes + 1 WHERE id = %s RETURNING id, changes",
                        (rng.randint(1, self._accounts),),
                    ).fetchone()
                    assert row is not None
                    key, value = (str(part).encode() for part in row)
                    PostgresOutbox.add(connection, self._topic, key=key, value=value)
                    connection.rollback() if rng.random() < 0.1 else connection.commit()
        except BaseException as error:
            self.errors.append(error)
            raise


@pytest.mark.parametrize("limit", [500, 3])
def test_steady_concurrent_writers_do_not_stop_the_relay(
    limit: int, apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    """There is never a moment without an open transaction. Rows arrive nevertheless, in the order of the commits of
    each account; with the small limit, most windows are sent in chunks."""
    with (
        closing(PostgresOutbox(postgres)) as source,
        closing(make_relay(apache_kafka, source, topic, limit=limit)) as relay,
    ):
        with Accounts(postgres, topic, writers=12, accounts=4, gap=0.03) as accounts:
            sent, until = 0, time.monotonic() + 4
            while time.monotonic() < until:
                sent += relay.publish()
                time.sleep(0.01)
            committed = sum(map(len, accounts.changes().values()))
            assert sent > (committed / 2 if limit == 500 else 20), (sent, committed)
        drain(relay)
    assert by_key(delivered(apache_kafka, topic)) == accounts.changes()


def committed_position(kafka: ApacheKafka, topic: str) -> OffsetAndMetadata:
    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        partition = TopicPartition(topic, 0)
        found = admin.list_group_offsets(f"relay-{topic}", [partition], require_stable=True)[partition]
    assert found is not None
    return found


def test_a_window_is_cut_by_the_limit_and_gone_on_with(apache_kafka: ApacheKafka, topic: str, postgres: str) -> None:
    with closing(PostgresOutbox(postgres)) as source:
        with psycopg.connect(postgres) as connection:
            for number in range(25):
                PostgresOutbox.add(connection, topic, key=b"k", value=str(number).encode())
        first = make_relay(apache_kafka, source, topic, limit=10)
        assert first.publish() == 10
        first.close()
        assert committed_position(apache_kafka, topic).metadata.endswith(";10")
        second = make_relay(apache_kafka, source, topic, limit=10)
        assert [second.publish(), second.publish(), second.publish()] == [10, 5, 0]
        second.close()
        with psycopg.connect(postgres) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert by_key(delivered(apache_kafka, topic)) == {b"k": list(range(25))}


def test_a_row_that_appears_between_two_chunks_is_in_a_later_window(
    apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    """The relay is killed behind each chunk. Meanwhile a transaction commits whose row has a number that was passed,
    and another one whose row would be next. The window stays as it was, and both rows come behind it."""
    with closing(PostgresOutbox(postgres)) as source:
        with psycopg.connect(postgres) as writer, psycopg.connect(postgres) as slow:
            for number in range(20):
                PostgresOutbox.add(writer, topic, key=b"k", value=str(number).encode())
                if number in (2, 10):
                    PostgresOutbox.add(slow, topic, key=b"slow", value=str(number).encode())
            writer.commit()
            kill_at(["committed"], apache_kafka, topic, ["--postgres", postgres])
            slow.commit()
            PostgresOutbox.add(writer, topic, key=b"k", value=b"20")
            writer.commit()
        kill_at(["forgotten"], apache_kafka, topic, ["--postgres", postgres])
        with closing(make_relay(apache_kafka, source, topic, limit=7)) as relay:
            assert [relay.publish(), relay.publish(), relay.publish()] == [6, 3, 0]
        with psycopg.connect(postgres) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert by_key(delivered(apache_kafka, topic)) == {b"k": list(range(21)), b"slow": [2, 10]}


@pytest.mark.parametrize(("in_window", "arrived"), [(False, [3, 4, 5]), (True, [2, 3, 4, 5])])
def test_a_position_of_an_earlier_version_is_gone_on_with(
    in_window: bool, arrived: list[int], apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    """It has a transaction id as its offset, and within a window "upper id:last number" as its metadata."""
    with closing(PostgresOutbox(postgres)) as source, psycopg.connect(postgres) as connection:
        horizon = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        low = connection.execute(horizon).fetchone()
        for number in range(3):
            PostgresOutbox.add(connection, topic, key=b"k", value=str(number).encode())
        connection.commit()
        high = connection.execute(horizon).fetchone()
        assert low is not None and high is not None
        for number in range(3, 6):
            PostgresOutbox.add(connection, topic, key=b"k", value=str(number).encode())
            connection.commit()
        position = OffsetAndMetadata(low[0], f"{high[0]}:2") if in_window else OffsetAndMetadata(high[0])
        with Producer(transactional_id=f"relay-{topic}", bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
            producer.init_transactions()
            with producer.transaction() as transaction:
                GroupProgress(TopicPartition(topic, 0)).write(transaction, f"relay-{topic}", position)
        with closing(make_relay(apache_kafka, source, topic, limit=2)) as relay:
            drain(relay)
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert by_key(delivered(apache_kafka, topic)) == {b"k": arrived}


def test_a_position_with_hundreds_of_transactions_fits_into_kafkas_metadata(
    apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    rng, first = random.Random(1), 5_000_000_000
    old = Snapshot(first, first + 200_000, tuple(sorted({first, *rng.sample(range(first, first + 200_000), 700)})))
    new = Snapshot(first, first + 900_000, tuple(sorted({first, *rng.sample(range(first, first + 900_000), 650)})))
    window = Window(old, new, 2**63 - 1, f"{2**63}/{2**32 - 1}")
    position = window.position()
    assert max(len(old.pack()), len(new.pack())) <= PostgresOutbox.LONGEST
    assert Window.at(position) == window
    with Producer(transactional_id=f"relay-{topic}", bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.init_transactions()
        with producer.transaction() as transaction:
            GroupProgress(TopicPartition(topic, 0)).write(transaction, f"relay-{topic}", position)
    assert committed_position(apache_kafka, topic) == position
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT %s::text::pg_snapshot::text", (str(old),)).fetchone() == (str(old),)


@pytest.mark.parametrize("running", [(), (7,), (7, 8, 135, 263, 16_647, 2**40)])
def test_a_snapshot_is_the_same_behind_its_text(running: tuple[int, ...]) -> None:
    snapshot = Snapshot(7, 2**41, running)
    assert Snapshot.unpack(snapshot.pack()) == Snapshot.parse(str(snapshot)) == snapshot


def test_a_snapshot_that_no_position_can_hold_is_logged(
    postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay waits for a shorter one."""
    monkeypatch.setattr(PostgresOutbox, "LONGEST", 24)
    with closing(PostgresOutbox(postgres)) as source, psycopg.connect(postgres) as writer, ExitStack() as stack:
        others = [stack.enter_context(psycopg.connect(postgres)) for _ in range(40)]
        for other in others:
            other.execute("SELECT pg_current_xact_id()")
        PostgresOutbox.add(writer, "t", key=None, value=b"1")
        writer.commit()
        for _ in range(2):
            assert source.rows_after(outbox.START, 10) == ([], outbox.START)
        logged = [message for message in caplog.messages if message.startswith("the relay sends no rows")]
        assert [message.split(":")[1] for message in logged] == [
            " 40 transactions of the PostgreSQL server are in progress, and the position of the relay cannot contain "
            "all of their ids; the relay continues when fewer transactions are in progress"
        ]
        for other in others:
            other.rollback()
        assert len(source.rows_after(outbox.START, 10)[0]) == 1


@pytest.mark.parametrize("metadata", ["", "s;1000000:1000000:", "s;9:9:;1000000:1000000:;5"])
def test_a_restored_database_is_an_error_and_loses_no_rows(metadata: str, postgres: str) -> None:
    """Transaction ids of the new server are lower than those in the position. They are not taken for rows that were
    sent."""
    position = OffsetAndMetadata(1_000_000, metadata)
    with closing(PostgresOutbox(postgres)) as source, psycopg.connect(postgres) as connection:
        PostgresOutbox.add(connection, "t", key=None, value=b"1")
        connection.commit()
        source.forget(position)
        with pytest.raises(RuntimeError, match="start the relay with a new name"):
            source.rows_after(position, 10)
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,)


def test_transaction_ids_that_a_crash_gives_out_again_hide_no_rows() -> None:
    """PostgreSQL forgets an id at a crash if nothing under it has reached the disk. The snapshot in the position
    contains such ids; their next owners must have others."""
    with PostgresServer() as server:
        conninfo = server.new_database()
        source = PostgresOutbox(conninfo)
        with psycopg.connect(conninfo) as writer, psycopg.connect(conninfo) as other:
            PostgresOutbox.add(writer, "t", key=None, value=b"1")
            writer.commit()
            for _ in range(5):
                other.execute("SELECT pg_current_xact_id()")
                other.rollback()
            rows, position = source.rows_after(outbox.START, 10)
            server.crash()
        source.close()
        with psycopg.connect(conninfo) as writer:
            PostgresOutbox.add(writer, "t", key=None, value=b"2")
        with closing(PostgresOutbox(conninfo)) as source:
            rows += source.rows_after(position, 10)[0]
    assert [row.value for row in rows] == [b"1", b"2"]


def test_sqlite_never_gives_a_number_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with closing(SqliteOutbox(path)) as source, closing(sqlite3.connect(path)) as connection:
        for _ in range(3):
            with connection:
                SqliteOutbox.add(connection, "t", key=None, value=b"x")
            rows, position = source.rows_after(outbox.START, 10)
            source.forget(position)
        assert (len(rows), position.offset) == (1, 4)


# -------------------------------------------------------------------------------------------- killed at any step


class Shop:
    """An application: business rows and outbox rows, some rolled back, several writers at a time."""

    def __init__(self, topic: str, writers: int, connect: Callable[[], Any], add: Callable[..., None]) -> None:
        self._topic = topic
        self._connect = connect
        self._add = add
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]
        self._is_over = threading.Event()
        self.committed: dict[bytes, list[int]] = {}
        self.errors: list[BaseException] = []

    def __enter__(self) -> Shop:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors

    def _write(self, writer: int) -> None:
        key, rng = f"writer-{writer}".encode(), random.Random(writer)
        done = self.committed.setdefault(key, [])
        try:
            with closing(self._connect()) as connection:
                number = 0
                while not self._is_over.wait(rng.uniform(0, 0.02)):
                    number += 1
                    self._add(connection, self._topic, key=key, value=str(number).encode())
                    time.sleep(rng.uniform(0, 0.02))
                    if rng.random() < 0.2:
                        connection.rollback()
                    else:
                        connection.commit()
                        done.append(number)
        except BaseException as error:
            self.errors.append(error)
            raise


def test_each_row_arrives_once_wherever_the_relay_is_killed(
    apache_kafka: ApacheKafka, topic: str, postgres: str
) -> None:
    with (
        closing(PostgresOutbox(postgres)) as source,
        Shop(topic, 4, lambda: psycopg.connect(postgres), PostgresOutbox.add) as shop,
    ):
        kill_at(STEPS, apache_kafka, topic, ["--postgres", postgres])
    with closing(PostgresOutbox(postgres)) as source, closing(make_relay(apache_kafka, source, topic)) as relay:
        drain(relay)
    assert by_key(delivered(apache_kafka, topic)) == shop.committed
    assert min(map(len, shop.committed.values())) > 20


def test_the_same_with_sqlite_and_progress_in_a_compacted_topic(
    apache_kafka: ApacheKafka, topic: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "shop.db")
    progress = apache_kafka.create_topic(partitions=1, cleanup_policy="compact")
    SqliteOutbox(path).close()
    with Shop(topic, 1, lambda: sqlite3.connect(path, timeout=30), SqliteOutbox.add) as shop:
        steps = ("offsets", "committing", "committed")
        kill_at(steps, apache_kafka, topic, ["--sqlite", path], ["--progress-topic", progress])
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers}
    with (
        closing(SqliteOutbox(path)) as source,
        closing(Relay(source, f"relay-{topic}", TopicProgress(progress), **options)) as relay,
    ):
        drain(relay)
        assert TopicProgress(progress).read(relay.name, options) == relay._position
    assert by_key(delivered(apache_kafka, topic)) == shop.committed


def test_a_position_behind_another_relays_transaction_is_awaited(apache_kafka: ApacheKafka, topic: str) -> None:
    """It cannot be read yet. Going on from the one before would send rows again."""
    progress = TopicProgress(apache_kafka.create_topic(partitions=1, cleanup_policy="compact"))
    options: dict[str, Any] = {"bootstrap_servers": apache_kafka.bootstrap_servers}
    found: list[OffsetAndMetadata | None] = []
    reading = threading.Thread(target=lambda: found.append(progress.read("ours", options)))
    with (
        Producer(transactional_id=f"ours-{topic}", **options) as ours,
        Producer(transactional_id=f"theirs-{topic}", **options) as theirs,
    ):
        for position in (7, 8):
            with theirs.transaction() as other:
                progress.write(other, "theirs", OffsetAndMetadata(1))
                theirs.flush()
                with ours.transaction() as txn:
                    progress.write(txn, "ours", OffsetAndMetadata(position, "9:1"))
                if position == 8:
                    reading.start()
                    reading.join(0.3)
                    assert reading.is_alive()
    reading.join()
    assert found == [OffsetAndMetadata(8, "9:1")]


def kill_at(
    steps: Iterable[str], kafka: ApacheKafka, topic: str, place: list[str], progress: Iterable[str] = ()
) -> None:
    command = [sys.executable, str(ROOT / "tests" / "support" / "outbox_relay.py")]
    names = ["-b", kafka.bootstrap_servers, "--name", f"relay-{topic}", "--limit", "7"]
    where = list(progress) or ["--progress", topic]
    for step in steps:
        ran = subprocess.run([*command, step, *place, *names, *where], capture_output=True, timeout=60)
        assert ran.returncode == -9, (step, ran.stderr.decode())


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_a_second_relay_takes_over_and_the_first_ends(apache_kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with closing(SqliteOutbox(path)) as source, closing(sqlite3.connect(path)) as connection:
        first, second = (make_relay(apache_kafka, source, topic) for _ in range(2))
        first.open()
        second.open()
        with connection:
            SqliteOutbox.add(connection, topic, key=b"k", value=b"1")
        with pytest.raises(ProducerFencedError):
            first.run()
        assert second.publish() == 1
        for relay in (first, second):
            relay.close()
    assert delivered(apache_kafka, topic) == [(b"k", b"1")]


def test_an_idle_relay_keeps_its_position(
    apache_kafka: ApacheKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of a group without members are forgotten by the broker some time after their last commit."""
    monkeypatch.setattr(outbox, "KEEP_SECONDS", 0.0)
    with (
        closing(SqliteOutbox(str(tmp_path / "shop.db"))) as source,
        closing(make_relay(apache_kafka, source, topic)) as relay,
    ):
        assert relay.publish() == 0
        with Admin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
            partition = TopicPartition(topic, 0)
            committed = admin.list_group_offsets(relay.name, [partition], require_stable=True)
        assert committed == {partition: outbox.START}


def test_a_row_that_no_record_can_hold_is_an_error_not_a_loop(
    apache_kafka: ApacheKafka, topic: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "shop.db")
    with closing(SqliteOutbox(path)) as source, closing(sqlite3.connect(path)) as connection:
        with connection:
            SqliteOutbox.add(connection, topic, key=b"k", value=bytes(2_000_000))
        with (
            closing(make_relay(apache_kafka, source, topic)) as relay,
            pytest.raises(EncodeError, match="max_request_size"),
        ):
            relay.run()


def test_without_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postgres_home.PLACES", ())
    monkeypatch.setattr("postgres_home.PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPostgres, match="apt-get install postgresql"):
        binaries()
