# SPDX-License-Identifier: Apache-2.0
"""The kinds of brokers that transactions are tested on, and the committed offset of a group."""

from __future__ import annotations

import time

import pytest
from raw_broker import RawBroker
from transaction_cluster import TransactionCluster

from kcodec.protocol import messages
from kcodec.testing.kafka import KAFKA_VERSION


def offset_of(cluster: TransactionCluster, group: str, topic: str) -> int:
    """Return the committed offset of partition 0 of a group, when no open transaction contains one; -1: none."""
    with RawBroker(cluster.kafka.bootstrap_servers) as broker:
        broker.ask_until(messages.FindCoordinatorRequest(key=group, key_type=0), 3, lambda answer: answer.error_code)
        while True:
            asked = messages.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
            answer = broker.ask(messages.OffsetFetchRequest(group_id=group, topics=[asked], require_stable=True), 7)
            found = answer.topics[0].partitions[0]
            if answer.error_code not in (14, 15, 16) and found.error_code != 88:
                return int(found.committed_offset)
            time.sleep(0.02)


ALL_KINDS = pytest.mark.parametrize(
    "transaction_cluster",
    [(KAFKA_VERSION, 2), (KAFKA_VERSION, 1), (KAFKA_VERSION, 0), ("3.9.1", 0)],
    indirect=True,
    ids=lambda kind: f"{kind[0]}-version{kind[1]}",
)
