# SPDX-License-Identifier: Apache-2.0
"""The ranges of a batch query over topics, as the driver plans them. No Spark session is needed."""

from __future__ import annotations

import json

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.spark.planner import DataLossError
from kcodec.spark.topics import TopicSource


@pytest.mark.parametrize("end", [5, 9])
def test_an_end_beyond_the_last_stable_offset_is_not_a_truncated_log(kcodec_broker: Broker, end: int) -> None:
    broker = kcodec_broker
    broker.create_topic("orders", 1)
    broker.seed("orders", [b"0", b"1", b"2"])
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({"orders": {"0": end}}),
        "kafka.isolation.level": "read_committed",
    }
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer,
        producer.transaction() as txn,
    ):
        txn.send("orders", b"3").result()
        txn.send("orders", b"4").result()
        with pytest.raises(DataLossError, match="3 to 4 cannot be read: they are beyond the last stable") as caught:
            TopicSource.of(given).plan()
        assert len(caught.value.losses) == (1 if end == 5 else 2)
        planned = TopicSource.of({**given, "failOnDataLoss": "false"}).plan()
        assert [(one.start, one.end) for one in planned] == [(0, 3)]
    if end == 5:
        assert [(one.start, one.end) for one in TopicSource.of(given).plan()] == [(0, 5)]
