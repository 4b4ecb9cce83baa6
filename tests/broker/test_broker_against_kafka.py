# SPDX-License-Identifier: Apache-2.0
"""The embedded broker and Apache Kafka get the same random requests and give the same responses.

tests/prove/prove_broker.py runs more sequences.
"""

from __future__ import annotations

from collections import Counter

from broker_sequences import Target, compare

from kcodec.broker import Broker
from kcodec.testing.kafka import ApacheKafka

SEQUENCES = 20


def test_random_requests_get_the_responses_of_kafka(apache_kafka: ApacheKafka) -> None:
    coverage: Counter[tuple[str, str]] = Counter()
    with Broker() as broker:
        kafka, ours = Target("Kafka", apache_kafka.bootstrap_servers), Target("ours", broker.bootstrap_servers)
        found = [compare(1000 + seed, kafka, ours, coverage) for seed in range(SEQUENCES)]
    assert [difference for difference in found if difference is not None] == []
    codes = {code for _, code in coverage}
    assert codes >= {"NONE", "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_TXN_STATE"}
