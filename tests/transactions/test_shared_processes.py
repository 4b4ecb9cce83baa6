# SPDX-License-Identifier: Apache-2.0
"""The short form of prove_shared_transaction.py: processes of their own under one handle, a writer killed, an owner
killed, the end from a fifth process.
"""

from __future__ import annotations

import random

import pytest
from shared_story import WRITERS, SharedStory
from transaction_cluster import TransactionCluster

from kcodec.testing.kafka import KAFKA_VERSION


# The other kinds are in the long form: each process costs a second.
@pytest.mark.parametrize(
    "transaction_cluster", [(KAFKA_VERSION, 2), ("3.9.1", 0)], indirect=True, ids=["version2", "3.9.1"]
)
def test_four_killed_writers_of_a_handle_and_the_end_from_a_fifth(
    transaction_cluster: TransactionCluster,
) -> None:
    cluster = transaction_cluster
    cluster.quiet_proxy()
    topic = cluster.kafka.create_topic(partitions=WRITERS)
    story = SharedStory(cluster.kafka, topic, cluster.kafka.bootstrap_servers, random.Random(3), count=50)
    for number in range(2):
        story.play(number)
    assert story.judge() == []
    assert list(story.rounds.values()) == [False, True]
    assert story.killed["writer"] == 1
