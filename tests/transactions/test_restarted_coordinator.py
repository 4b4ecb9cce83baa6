# SPDX-License-Identifier: Apache-2.0
"""A coordinator that was killed refuses the repetition of an InitProducerId that it has processed. The producer cannot
distinguish this from another producer, and ends with an error. See docs/design/transactions.md."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from transaction_cluster import TransactionCluster

from kcodec.errors import ProducerFencedError

OPTIONS: dict[str, Any] = {"request_timeout_ms": 2_000, "max_block_ms": 60_000, "delivery_timeout_ms": 60_000}


def test_a_producer_ends_if_its_coordinator_has_forgotten_the_last_epoch() -> None:
    with TransactionCluster("3.9.1", 0) as cluster:
        topic, proxy = cluster.kafka.create_topic(partitions=1), cluster.quiet_proxy()
        with cluster.producer("payments", **OPTIONS) as producer:

            def transact(value: bytes) -> None:
                producer.begin_transaction()
                producer.send(topic, value)
                producer.commit_transaction()

            transact(b"first")
            # The client requests a new epoch after the lost response. The coordinator is killed after it has processed
            # this request. Without the kill, it would recognize the repetition.
            proxy.on_response("EndTxn").cut()
            lost = proxy.on_response("InitProducerId", count=5).cut()
            killer = threading.Thread(target=_restart_when, args=(cluster, lost))
            killer.start()
            with pytest.raises(ProducerFencedError, match="a coordinator that was restarted meanwhile") as found:
                for value in (b"second", b"third"):
                    transact(value)
            killer.join()
        assert found.value.remedy == "recreate"
        with cluster.producer("payments", **OPTIONS) as successor:
            successor.begin_transaction()
            successor.send(topic, b"fourth")
            successor.commit_transaction()
        assert cluster.committed(topic) == [[b"first", b"second", b"fourth"]]


def _restart_when(cluster: TransactionCluster, lost: Any) -> None:
    while not lost.hits:
        time.sleep(0.001)
    cluster.kafka.kill()
    cluster.kafka.start()
