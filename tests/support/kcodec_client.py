# SPDX-License-Identifier: Apache-2.0
"""kcodec's transactional producer with the API of transaction_load.Client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from transaction_load import ABORTED, COMMITTED, GIVEN_UP, UNKNOWN, Records

from kcodec.errors import BrokerError, KcodecError

OUTCOMES = {True: COMMITTED, False: ABORTED, None: UNKNOWN}


class KcodecClient:
    """A producer used as documented: it applies the remedy of each error."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, topic: str, **options: Any) -> None:
        self.topic = topic
        self.options = {
            "bootstrap_servers": bootstrap_servers,
            "client_id": transactional_id,
            "transactional_id": transactional_id,
            "request_timeout_ms": 1_000,
            "retry_backoff_ms": 20,
            "linger_ms": 1,
            **options,
        }
        self.producer: Any = None

    def transact(self, records: Records, *, commit: bool, pause: float = 0.0) -> str:
        if self.producer is None:
            from kcodec.client import Producer

            self.producer = Producer(**self.options)
        transaction = None
        try:
            with self.producer.transaction() as transaction:
                for partition, values in records.items():
                    for value in values:
                        transaction.send(self.topic, value, partition=partition)
                    time.sleep(pause)
                if not commit:
                    transaction.abort()
        except KcodecError as error:
            if isinstance(error, BrokerError) and error.remedy in ("recreate", "stop"):
                self.close()
        return GIVEN_UP if transaction is None else OUTCOMES[transaction.committed]

    def close(self) -> None:
        if self.producer is not None:
            self.producer.close()
            self.producer = None


@contextlib.contextmanager
def without_spent_epochs() -> Iterator[None]:
    """The control: a producer that continues in the same epoch after a request without a response."""
    from kcodec.transactions.context import ProducerContext

    kept = ProducerContext.note_no_response
    ProducerContext.note_no_response = lambda self, api: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProducerContext.note_no_response = kept  # type: ignore[method-assign]
