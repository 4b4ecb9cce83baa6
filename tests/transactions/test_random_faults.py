# SPDX-License-Identifier: Apache-2.0
"""The short form of prove_random_faults.py, and that its judge finds what is not as reported."""

from __future__ import annotations

import random

from prove_random_faults import Hunt

from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy


def test_under_random_faults_the_log_says_what_was_reported(apache_kafka: ApacheKafka) -> None:
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        hunt = Hunt(apache_kafka, proxy, random.Random(5))
        hunt.run(seconds=6.0)
    hunt.judge()
    assert hunt.faults == []
    whole = [number for number, reported in hunt.reported.items() if reported.committed and reported.sent]
    assert whole

    hunt.reported[whole[0]].committed = False
    hunt.reported[whole[1]].sent[0] = 99
    hunt.judge()
    assert [fault.partition(":")[0] for fault in hunt.faults] == [f"transaction {number}" for number in whole[:2]]
