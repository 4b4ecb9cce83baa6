# SPDX-License-Identifier: Apache-2.0
"""Inputs and readers that tests of the recipes share."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
from recipe_worker import example
from recipes import (
    SHORT,
    Amounts,
    log_ends,
    wait_for,
)

from kcodec import TopicPartition
from kcodec.client import Consumer
from kcodec.testing.kafka import ApacheKafka


class Bank:
    """A database of either kind, with the results of the recipe."""

    def __init__(self, place: list[object]) -> None:
        self.place = place

    def connect(self) -> Any:
        kind, where = self.place
        return (
            sqlite3.connect(str(where), timeout=30)
            if kind == "--sqlite"
            else psycopg.connect(str(where), autocommit=True)
        )

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            found: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
            return found

    def balances(self) -> dict[bytes, int]:
        return {account.encode(): amount for account, amount in self.rows("SELECT account, amount FROM balance")}

    def positions(self) -> list[int]:
        return [position for (position,) in self.rows("SELECT position FROM kafka_position ORDER BY partition")]


def read_until(kafka: ApacheKafka, bank: Bank, name: str, amounts: Amounts) -> None:
    """Run a reader in this process until all amounts are counted and every position is at the end."""
    module = example("offsets_in_database")
    with closing(bank.connect()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)")
        reader = module.Reader(
            connection, name, [amounts.topic], module.add_to_balance, bootstrap_servers=kafka.bootstrap_servers, **SHORT
        )
        try:
            ends = log_ends(kafka, amounts.topic)
            wait_for(lambda: [reader.step(0.2), bank.positions() == ends][1], lambda: (bank.positions(), ends))
        finally:
            reader.close()


COUNTING = """
    INSERT INTO price VALUES (?, ?, ?, ?)
    ON CONFLICT (item) DO UPDATE SET amount = price.amount + excluded.amount, source_offset = excluded.source_offset"""


def read_prices(kafka: ApacheKafka, group: str, topic: str, connection: sqlite3.Connection, statement: str) -> None:
    module = example("upsert")
    with Consumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe([topic])
        partitions = [TopicPartition(topic, number) for number in range(2)]
        ends = dict(zip(partitions, log_ends(kafka, topic), strict=True))
        reached = dict.fromkeys(partitions, 0)
        writer = module.Writer(consumer, connection, statement)
        while reached != ends:
            writer.step()
            reached |= {partition: consumer.position(partition) for partition in consumer.assignment()}


def prices(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT item, amount FROM price").fetchall())
