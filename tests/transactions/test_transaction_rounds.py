# SPDX-License-Identifier: Apache-2.0
"""Short transactions one after the other: the sender works for the records, and not for every change of the state."""

from __future__ import annotations

from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.flow import Flow
from kcodec.producer.sender import Sender

COUNT = 50


def test_a_short_transaction_takes_few_rounds_of_the_sender(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round sends the records. The response and the changes of the state find that a look for the next records is
    due anyway. `linger_ms` is long, so that a slow machine does not reach the time of that look."""
    kcodec_broker.create_topic("orders", partitions=3)
    rounds, begin_round = [0], Sender._round

    def counted(self: Any) -> Flow[float]:
        rounds[0] += 1
        return begin_round(self)

    monkeypatch.setattr(Sender, "_round", counted)
    options = {"transactional_id": "short", "linger_ms": 10_000}
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as producer:  # type: ignore[arg-type]
        for number in range(COUNT + 1):
            if number == 1:  # the first one obtains the metadata
                rounds[0] = 0
            with producer.transaction() as txn:
                for partition in range(3):
                    txn.send("orders", b"value", partition=partition)
            assert txn.committed
    assert rounds[0] <= 3 * COUNT


@pytest.mark.parametrize("linger_ms", [0, 5, 10_000])
def test_records_after_a_pause_are_sent_in_time(kcodec_broker: Broker, linger_ms: int) -> None:
    """Also between two transactions, when the sender has not begun a round since the last one."""
    kcodec_broker.create_topic("orders", partitions=1)
    options = {"transactional_id": "paused", "linger_ms": linger_ms}
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers, **options) as producer:  # type: ignore[arg-type]
        for number in range(10):
            producer.begin_transaction()
            delivery = producer.send("orders", b"value")
            if linger_ms < 1000:
                assert delivery.result(10.0).offset >= number
            producer.commit_transaction()
            assert delivery.result(0.0).offset >= number
