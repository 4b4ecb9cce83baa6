# SPDX-License-Identifier: Apache-2.0
"""A real broker for tests of transactions, a proxy in front of it that records and disturbs requests, and log
readers."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kcodec
from kcodec.client import Producer, aio
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

#: Kafka and the level of transaction.version, as VERSION/LEVEL, for the long tests by default.
PROVED_CLUSTERS = ("4.4.0/2", "4.4.0/0", "4.3.1/2", "3.9.1/0")
SECONDS = 20.0
TRANSACTION_APIS = frozenset(
    {"InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"}
)


class TransactionCluster:
    """One node, which aborts a transaction within a tenth of a second after its timeout."""

    def __init__(self, version: str, transaction_version: int, **options: Any) -> None:
        self.is_new_flow = transaction_version >= 2
        self.transaction_version = transaction_version
        self.kafka = ApacheKafka(
            version,
            transaction_version=transaction_version if version != "3.9.1" else None,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
            group_initial_rebalance_delay_ms=0,
            **options,
        )

    def __enter__(self) -> Self:
        self.kafka.start()
        self.proxy = KafkaProxy(self.kafka.bootstrap_servers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.proxy.close()
        self.kafka.close()

    def new_id(self) -> str:
        """Return a new transactional id."""
        return f"id-{uuid.uuid4().hex[:8]}"

    def quiet_proxy(self) -> KafkaProxy:
        """The proxy, with no rules and an empty log."""
        self.proxy.clear_rules()
        self.proxy.clear_log()
        return self.proxy

    def options(self, transactional_id: str | None = None, **options: Any) -> dict[str, Any]:
        """Return the options of a transactional producer that connects through the proxy."""
        return {
            "bootstrap_servers": self.proxy.bootstrap_servers,
            "transactional_id": transactional_id or self.new_id(),
            "linger_ms": 0,
            "request_timeout_ms": 5_000,
            **options,
        }

    def producer(self, transactional_id: str | None = None, **options: Any) -> Producer:
        """Return a producer with these options."""
        return Producer(**self.options(transactional_id, **options))

    def aio_producer(self, transactional_id: str | None = None, **options: Any) -> aio.Producer:
        """Return an asyncio producer with these options."""
        return aio.Producer(**self.options(transactional_id, **options))

    def spoken(self) -> list[str]:
        """The transactional requests on the wire, in the order they were sent, repeats of one kind as one."""
        found: list[str] = []
        for exchange in sorted(self.proxy.exchanges(), key=lambda one: one.time):
            if exchange.api in TRANSACTION_APIS and found[-1:] != [exchange.api]:
                found.append(exchange.api)
        return found

    def count(self, api: str) -> int:
        """Return the number of requests of an API."""
        return len(self.proxy.exchanges(api))

    def logs(self, topic: str) -> list[Any]:
        """Return the logs of the partitions on the broker's disk, when no transaction in them is open."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = sorted(Path(self.kafka.log_directory).glob(f"{topic}-*"), key=lambda path: path.name)
            logs: list[Any] = [kcodec.open(path) for path in found if path.name[len(topic) + 1 :].isdigit()]
            if logs and all(log.last_stable_offset == log.log_end_offset for log in logs):
                return logs
            assert time.monotonic() < deadline, f"{topic}: a transaction is still open"
            time.sleep(0.02)

    def committed(self, topic: str) -> list[list[bytes | None]]:
        """Return the values of a read_committed reader, by partition."""
        return [[record.value for record in log.records("read_committed")] for log in self.logs(topic)]

    def written(self, topic: str) -> list[list[bytes | None]]:
        """Return the values of a read_uncommitted reader, by partition."""
        return [[record.value for record in log.records()] for log in self.logs(topic)]
