# SPDX-License-Identifier: Apache-2.0
"""examples/outbox.py: a position of another database, rows that are added in a wrong way, and options of a relay."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer

from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Consumer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import outbox
from outbox import PostgresOutbox, Relay, SqliteOutbox, TopicProgress


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """A new database."""
    return postgres_server.new_database()


@pytest.fixture
def sqlite_outbox(tmp_path: Path) -> Iterator[SqliteOutbox]:
    with closing(SqliteOutbox(str(tmp_path / "shop.db"))) as source:
        yield source


def make_relay(broker: Broker, source: outbox.Outbox, topic: str, **options: Any) -> Relay:
    progress = TopicProgress(topic + "-relays")
    return Relay(source, "relay-" + topic, progress, bootstrap_servers=broker.bootstrap_servers, **options)


@pytest.fixture
def topic(kcodec_broker: Broker) -> str:
    name = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.create_topic(name + "-relays", partitions=1)
    return name


def values(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[bytes | None] = []
        for _ in range(6):
            found += [record.value for record in consumer.poll(0.5)]
            if len(found) >= count:
                break
    return found


# ------------------------------------------------------------------------------------------------- another database


def fill_sqlite(path: Path, topic: str, texts: list[bytes]) -> None:
    SqliteOutbox(str(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for text in texts:
            SqliteOutbox.add(connection, topic, key=None, value=text)


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("SELECT count(*) FROM outbox").fetchone()[0]
    return found


def publish(broker: Broker, path: Path, topic: str) -> int:
    with closing(SqliteOutbox(str(path))) as source, closing(make_relay(broker, source, topic)) as relay:
        return relay.publish()


def test_a_new_sqlite_file_under_an_old_name_is_an_error_and_loses_no_rows(
    kcodec_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Its ids begin at 1 again. Rows with ids before the position would be deleted, and never sent."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    fill_sqlite(old, topic, [b"1", b"2", b"3"])
    assert publish(kcodec_broker, old, topic) == 3
    fill_sqlite(new, topic, [b"4", b"5", b"6", b"7", b"8"])
    with pytest.raises(RuntimeError, match=r"belongs to the database [0-9a-f]{16}, and this is the database"):
        publish(kcodec_broker, new, topic)
    assert count(new) == 5


def test_an_older_copy_of_a_sqlite_file_is_an_error_and_loses_no_rows(
    kcodec_broker: Broker, topic: str, tmp_path: Path
) -> None:
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    fill_sqlite(path, topic, [b"1"])
    assert publish(kcodec_broker, path, topic) == 1
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    fill_sqlite(path, topic, [b"2", b"3", b"4"])
    assert publish(kcodec_broker, path, topic) == 3
    shutil.copy(copy, path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fill_sqlite(path, topic, [b"5", b"6"])
    with pytest.raises(RuntimeError, match="row with id 5, but the next row of the database gets id 4"):
        publish(kcodec_broker, path, topic)
    assert count(path) == 2


@pytest.mark.parametrize("in_window", [False, True])
def test_a_position_of_another_postgresql_database_is_an_error_and_loses_no_rows(
    in_window: bool, postgres: str, postgres_server: PostgresServer
) -> None:
    """Both databases have the same transaction ids. The rows would count as sent, and be deleted."""
    other = postgres_server.new_database()
    with closing(PostgresOutbox(postgres)) as ours, closing(PostgresOutbox(other)) as theirs:
        for conninfo in (other, postgres):
            with psycopg.connect(conninfo) as connection:
                for _ in range(3):
                    PostgresOutbox.add(connection, "t", key=None, value=b"1")
        rows, position = ours.rows_after(outbox.START, 2 if in_window else 3)
        assert len(rows) == (2 if in_window else 3)
        with pytest.raises(RuntimeError, match="start the relay with a new name"):
            theirs.forget(position)
        with pytest.raises(RuntimeError, match="start the relay with a new name"):
            theirs.rows_after(position, 10)
        with psycopg.connect(other) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (3,)
        ours.forget(position)
        assert len(ours.rows_after(position, 10)[0]) == (1 if in_window else 0)


def test_transaction_ids_that_do_not_exist_yet_are_an_error(postgres: str) -> None:
    """Rows of pg_restore would not be sent until the server has reached their transaction ids."""
    PostgresOutbox(postgres).close()
    with psycopg.connect(postgres) as connection:
        connection.execute("INSERT INTO outbox (topic, transaction_id) VALUES ('t', '1000000')")
    with pytest.raises(RuntimeError, match="has not assigned yet"):
        PostgresOutbox(postgres)
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE outbox SET transaction_id = pg_current_xact_id()")
    with closing(PostgresOutbox(postgres)) as source:
        assert len(source.rows_after(outbox.START, 10)[0]) == 1


def test_a_relay_with_another_name_is_refused_while_the_first_one_runs(
    kcodec_broker: Broker, topic: str, postgres: str
) -> None:
    """Each of them would send all rows. A relay with the same name takes over."""
    with closing(PostgresOutbox(postgres)) as first, closing(PostgresOutbox(postgres)) as second:
        relay = make_relay(kcodec_broker, first, topic)
        other = Relay(second, "other", relay.progress, bootstrap_servers=kcodec_broker.bootstrap_servers)
        again = make_relay(kcodec_broker, second, topic)
        with closing(relay), closing(other), closing(again):
            relay.open()
            with pytest.raises(RuntimeError, match="a relay with another name than 'other' sends the rows"):
                other.open()
            with psycopg.connect(postgres) as connection:
                PostgresOutbox.add(connection, topic, key=None, value=b"1")
            assert relay.publish() == 1
            relay.close()
            relay.open()
            again.open()
    with closing(PostgresOutbox(postgres)) as third:
        third.claim("other")


def test_a_table_that_the_relay_creates_is_logged(postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    """A relay with another search_path than the service would wait for rows in an empty table."""
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE SCHEMA shop")
    PostgresOutbox(postgres).close()
    PostgresOutbox(postgres).close()
    PostgresOutbox(postgres + " options='-c search_path=shop'").close()
    name = postgres.rpartition("=")[2]
    assert [message.split(":")[0] for message in caplog.messages] == [
        f"created the table outbox or its index in {name}.{schema}" for schema in ("public", "shop")
    ]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_rows_of_a_database_with_another_encoding_are_sent(encoding: str, postgres_server: PostgresServer) -> None:
    """SQL_ASCII is the encoding of a server that was initialized with the locale C."""
    name = f"encoded_{encoding.lower()}"
    with psycopg.connect(postgres_server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    conninfo = postgres_server.conninfo.replace("dbname=postgres", f"dbname={name}")
    with closing(PostgresOutbox(conninfo)) as source:
        with psycopg.connect(conninfo) as connection:
            PostgresOutbox.add(connection, "payments", key=b"\xff", value=b"\x00")
        rows, position = source.rows_after(outbox.START, 10)
        assert rows == [outbox.Row("payments", b"\xff", b"\x00")]
        source.forget(position)
        assert source.rows_after(position, 10) == ([], position)


# -------------------------------------------------------------------------------------------- rows of an application


@pytest.mark.parametrize("kind", [PostgresOutbox, SqliteOutbox])
@pytest.mark.parametrize("wrong", [{"key": "alice", "value": None}, {"key": None, "value": '{"path": "c:\\\\new"}'}])
def test_a_text_is_not_added(
    kind: type[PostgresOutbox | SqliteOutbox], wrong: dict[str, Any], postgres: str, tmp_path: Path
) -> None:
    """PostgreSQL would remove backslashes from it."""
    PostgresOutbox(postgres).close()
    path = str(tmp_path / "shop.db")
    SqliteOutbox(path).close()
    connection: Any = psycopg.connect(postgres) if kind is PostgresOutbox else sqlite3.connect(path)
    with closing(connection):
        with pytest.raises(TypeError, match=r"expected bytes or None, got str; encode the (key|value) first"):
            kind.add(connection, "t", **wrong)
        with pytest.raises(ValueError, match="topic must not be empty"):
            kind.add(connection, "", key=None, value=None)
        given: list[Any] = [None, b"", b"\xff\x00", bytearray(b"a"), memoryview(b"b")]
        for value in given:
            kind.add(connection, "t", key=None, value=value)
        connection.commit()
    with closing(kind(postgres if kind is PostgresOutbox else path)) as source:
        rows = source.rows_after(outbox.START, 10)[0]
    assert [row.value for row in rows] == [None, b"", b"\xff\x00", b"a", b"b"]


def test_a_row_outside_of_a_transaction_is_refused(postgres: str, tmp_path: Path) -> None:
    """It would be committed although the change fails, or the change without it."""
    PostgresOutbox(postgres).close()
    path = str(tmp_path / "shop.db")
    SqliteOutbox(path).close()
    with closing(psycopg.connect(postgres, autocommit=True)) as connection:
        with pytest.raises(RuntimeError, match="no transaction is open"):
            PostgresOutbox.add(connection, "t", key=None, value=b"1")
        with connection.transaction():
            PostgresOutbox.add(connection, "t", key=None, value=b"1")
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        with pytest.raises(RuntimeError, match="no transaction is open"):
            SqliteOutbox.add(file, "t", key=None, value=b"1")
        file.execute("BEGIN")
        SqliteOutbox.add(file, "t", key=None, value=b"1")
        file.execute("COMMIT")
        assert file.execute("SELECT count(*) FROM outbox").fetchone() == (1,)


def test_an_asynchronous_connection_is_refused() -> None:
    """Its execute only returns a coroutine, so no row would be added."""

    class Connection:
        autocommit = False

        async def execute(self, query: str, values: object) -> None:
            raise AssertionError("must not run")

    with warnings.catch_warnings(), pytest.raises(TypeError, match="await connection"):
        warnings.simplefilter("error")
        PostgresOutbox.add(Connection(), "t", key=None, value=b"1")


# ------------------------------------------------------------------------------------------------- errors of a database


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database is locked"), KeyboardInterrupt()])
def test_a_relay_that_goes_on_after_an_error_sends_no_row_twice(
    error: BaseException, kcodec_broker: Broker, topic: str, tmp_path: Path, sqlite_outbox: SqliteOutbox
) -> None:
    """The error comes after the commit, when the rows are deleted. The program catches it and calls publish again."""
    fill_sqlite(tmp_path / "shop.db", topic, [b"1", b"2"])
    forget = sqlite_outbox.forget

    def failing(position: OffsetAndMetadata) -> None:
        if position != outbox.START:
            sqlite_outbox.forget = forget  # type: ignore[method-assign]
            raise error

    sqlite_outbox.forget = failing  # type: ignore[method-assign]
    with closing(make_relay(kcodec_broker, sqlite_outbox, topic)) as relay:
        with pytest.raises(type(error)):
            relay.publish()
        assert relay.publish() == 0
    assert values(kcodec_broker, topic, 3) == [b"1", b"2"]
    assert count(tmp_path / "shop.db") == 0


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_without_rows_is_refused(limit: int, sqlite_outbox: SqliteOutbox) -> None:
    """A relay with this limit would send no rows, and its position would pass them."""
    with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
        Relay(sqlite_outbox, "relay", TopicProgress("relays"), limit=limit)


def test_options_of_the_producer_do_not_reach_other_clients(
    kcodec_broker: Broker, topic: str, tmp_path: Path, sqlite_outbox: SqliteOutbox
) -> None:
    """An Admin and a Consumer have no max_request_size."""
    fill_sqlite(tmp_path / "shop.db", topic, [bytes(2_000)])
    with (
        closing(make_relay(kcodec_broker, sqlite_outbox, topic, producer_options={"max_request_size": 1_000})) as relay,
        pytest.raises(ValueError, match="above max_request_size 1000"),
    ):
        relay.publish()
    options = {"max_request_size": 3_000, "compression_type": "lz4"}
    with closing(make_relay(kcodec_broker, sqlite_outbox, topic, producer_options=options)) as relay:
        assert relay.publish() == 1
    assert values(kcodec_broker, topic, 1) == [bytes(2_000)]
