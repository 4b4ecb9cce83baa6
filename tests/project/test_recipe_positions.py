# SPDX-License-Identifier: Apache-2.0
"""examples/offsets_in_database.py: positions that the log does not contain, and connections that do not commit.
examples/upsert.py: a key that moves to another partition."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer

from kcodec import TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer
from kcodec.errors import LogTruncationError, OffsetOutOfRangeError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import offsets_in_database
import upsert
from offsets_in_database import Positions, Reader

BALANCE = "CREATE TABLE balance (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.execute(BALANCE)
        yield opened


def read(broker: Broker, connection: sqlite3.Connection, topic: str, steps: int = 4) -> None:
    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
    add = offsets_in_database.add_to_balance
    with closing(Reader(connection, f"reader-{topic}", [topic], add, **options)) as reader:
        for _ in range(steps):
            reader.step(0.5)


def amount(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT amount FROM balance").fetchone()
    return 0 if found is None else int(found[0])


def test_a_position_after_the_end_of_the_log_counts_nothing_twice(
    kcodec_broker: Broker, connection: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may have lost records. A reader that went on at the beginning would count all of them again."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 10)
    read(kcodec_broker, connection, topic)
    with connection:
        connection.execute("UPDATE kafka_position SET position = 15")
    with pytest.raises(OffsetOutOfRangeError, match="was truncated: records below the position 15"):
        read(kcodec_broker, connection, topic)
    assert amount(connection) == 10
    assert not [record for record in caplog.records if "continuing" in record.getMessage()]


def test_deleted_records_are_not_skipped_without_an_error(
    kcodec_broker: Broker, connection: sqlite3.Connection
) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 10)
    read(kcodec_broker, connection, topic)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 10)
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 15})
    with pytest.raises(OffsetOutOfRangeError, match="offsets 15 to 20"):
        read(kcodec_broker, connection, topic)
    assert amount(connection) == 10
    with connection:
        connection.execute("UPDATE kafka_position SET position = 15")
    read(kcodec_broker, connection, topic)
    assert amount(connection) == 15


def test_a_position_of_a_former_topic_skips_nothing_of_the_new_one(
    kcodec_broker: Broker, connection: sqlite3.Connection
) -> None:
    """The topic is deleted and created again with more records than the stored position."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 10)
    read(kcodec_broker, connection, topic)
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])
    kcodec_broker.create_topic(topic, partitions=1)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 30)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match="created again, so the position 10 is a position in another"):
            read(kcodec_broker, connection, topic, steps=10)
    assert amount(connection) == 10
    with connection:
        connection.execute("DELETE FROM kafka_position")
    read(kcodec_broker, connection, topic)
    assert amount(connection) == 40


def test_records_that_an_unclean_election_has_replaced_are_not_skipped(
    kcodec_broker: Broker, connection: sqlite3.Connection
) -> None:
    """The former leader had more records of its epoch than the log has now, and the log is longer than the position."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 5)
    read(kcodec_broker, connection, topic)
    stored = connection.execute("SELECT position, leader_epoch FROM kafka_position").fetchone()
    kcodec_broker.change_leader_epoch(topic)
    kcodec_broker.seed(topic, [(b"alice", b"1")] * 5)
    with connection:
        connection.execute("UPDATE kafka_position SET position = 7")
    with pytest.raises(LogTruncationError) as raised:
        read(kcodec_broker, connection, topic)
    assert stored == (5, 0)
    assert raised.value.divergent_offset == 5
    assert amount(connection) == 5


def test_a_connection_that_commits_each_statement_is_refused() -> None:
    """The records would be committed before the position, and would not be rolled back with it."""
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
        pytest.raises(ValueError, match="commits each statement by itself"),
    ):
        Positions(connection, "ledger")


def test_a_connection_that_never_commits_is_refused(postgres_server: PostgresServer) -> None:
    """A block of psycopg is a savepoint if the connection has opened a transaction by itself."""
    with (
        closing(psycopg.connect(postgres_server.conninfo)) as connection,
        pytest.raises(ValueError, match="set autocommit=True"),
    ):
        Positions(connection, "ledger")


def test_an_upsert_follows_a_key_to_another_partition(kcodec_broker: Broker) -> None:
    """A topic has got more partitions. The offsets of the new partition are lower than those of the old one."""
    topic = kcodec_broker.create_topic(partitions=1)
    kcodec_broker.seed(topic, [(b"bread", b"%d" % price) for price in range(1, 11)])
    options: dict[str, Any] = {"bootstrap_servers": kcodec_broker.bootstrap_servers, "auto_offset_reset": "earliest"}
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(upsert.SCHEMA)
        with Consumer(group_id=topic, enable_auto_commit=False, metadata_max_age_ms=500, **options) as consumer:
            consumer.subscribe([topic])
            writer = upsert.Writer(consumer, connection)
            writer.step()
            with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
                admin.create_partitions({topic: 2})
            kcodec_broker.seed(topic, [(b"bread", b"20")], partition=1)
            for _ in range(15):
                writer.step()
                found = connection.execute("SELECT * FROM price").fetchall()
                if found == [("bread", 20, 1, 0)]:
                    break
            assert found == [("bread", 20, 1, 0)]
