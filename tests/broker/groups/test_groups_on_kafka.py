# SPDX-License-Identifier: Apache-2.0
"""Random requests of groups to Apache Kafka and to the embedded coordinator: codes, generations, states, records.

tests/prove/prove_group_coordinator.py takes more and longer walks, also with members of the consumer protocol alone.
"""

from __future__ import annotations

import uuid

import pytest
from group_pairs import ClassicWalk, wait_for_groups
from mixed_pairs import MixedWalk

from kcodec.testing.kafka import ApacheKafka

WALKS, STEPS = 15, 30
MIXED_WALKS, MIXED_STEPS = 20, 50


@pytest.fixture(scope="module")
def topics(apache_kafka: ApacheKafka) -> tuple[str, str]:
    """Create topics of 3 and of 12 partitions, on a broker with its __consumer_offsets."""
    three, twelve = apache_kafka.create_topic(partitions=3), apache_kafka.create_topic(partitions=12)
    wait_for_groups(apache_kafka.bootstrap_servers)
    return three, twelve


@pytest.mark.parametrize("seed", range(WALKS))
def test_classic_groups_respond_as_on_kafka(apache_kafka: ApacheKafka, topics: tuple[str, str], seed: int) -> None:
    """Known differences are left out: who leads after the leader has left, and a SyncGroup without a response."""
    walk = ClassicWalk(apache_kafka.bootstrap_servers, seed, f"walk-{uuid.uuid4()}", topics)
    try:
        walk.run(STEPS)
    finally:
        walk.close()
    assert not walk.differences, "\n".join([*walk.trace, *walk.differences])


@pytest.mark.parametrize("seed", range(MIXED_WALKS))
def test_mixed_groups_respond_as_on_kafka(apache_kafka: ApacheKafka, topics: tuple[str, str], seed: int) -> None:
    """Members of both protocols in one group, which is converted while it has members; and the records of the group."""
    walk = MixedWalk(apache_kafka.bootstrap_servers, seed, f"walk-{uuid.uuid4()}", topics)
    try:
        walk.run(MIXED_STEPS)
    finally:
        walk.close()
    assert not walk.differences, "\n".join([*walk.trace, *walk.differences])
