# SPDX-License-Identifier: Apache-2.0
"""`commit` of a member that another one with the same group_instance_id has fenced: it has no partitions any more."""

from __future__ import annotations

from typing import Any

import pytest

from kcodec.client import Consumer, Producer
from kcodec.errors import BrokerError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.testing.kafka import ApacheKafka


def test_each_commit_raises_the_error_that_poll_raises(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic()
    options: Any = {
        "bootstrap_servers": apache_kafka.bootstrap_servers,
        "group_id": topic,
        "group_instance_id": "one",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 200,
    }
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.send(topic, b"1").result()
    with Consumer(**options) as old, Consumer(**options) as new:
        old.subscribe([topic])
        assert old.poll(30.0)
        new.subscribe([topic])
        assert new.poll(30.0)
        with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
            for _ in range(30):
                old.poll(1.0)
        for _ in range(2):
            with pytest.raises(BrokerError) as raised:
                old.commit()
            assert raised.value.code == ErrorCode.FENCED_INSTANCE_ID
        new.commit()
