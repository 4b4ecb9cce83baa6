# SPDX-License-Identifier: Apache-2.0
"""Every public call with a timeout ends within it and one second of real time, while a proxy withholds responses.

Exactly, in virtual time: test_call_timeouts.py. In the long form, and in prove_call_timeouts.py, asyncio too.
"""

from __future__ import annotations

import os
import time

import pytest
from prove_call_timeouts import STYLES, late, measure
from timed_calls import CALLS

import kcodec
from kcodec.client import Producer
from kcodec.errors import DeliveryTimeoutError, RequestTimedOutError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

TIMEOUT = 1.0
IS_LONG = os.environ.get("KCODEC_PROFILE", "short") == "long"
#: Calls of several steps, and one of each kind of the others: the rest differ in the request only.
CHOSEN = {name for name in CALLS if IS_LONG or not name.startswith("Admin") or "find" in name or "lag" in name}


@pytest.mark.parametrize("style", STYLES if IS_LONG else STYLES[:1])
def test_calls_end_within_their_timeout(apache_kafka: ApacheKafka, style: str) -> None:
    found = measure(apache_kafka, [style], TIMEOUT, CHOSEN)
    assert not [one.line() for one in late(found, TIMEOUT)]
    assert len(found) > 2 * len(CHOSEN)


@pytest.mark.parametrize("api", ["Metadata", "ListOffsets", "Fetch", None])
def test_read_topic_ends_where_a_broker_goes_silent(apache_kafka: ApacheKafka, api: str | None) -> None:
    """default_api_timeout_ms limits the time without progress, also where request_timeout_ms is longer."""
    topic = apache_kafka.create_topic(partitions=1)
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as producer:
        producer.send(topic, b"value")
    with KafkaProxy(apache_kafka.bootstrap_servers) as proxy:
        proxy.on_response(api, count=None).hold()
        began = time.monotonic()
        with (
            pytest.raises((DeliveryTimeoutError, RequestTimedOutError)),
            kcodec.read_topic(topic, bootstrap_servers=proxy.bootstrap_servers, default_api_timeout_ms=1000) as batches,
        ):
            list(batches)
        assert time.monotonic() - began < 2 * TIMEOUT + 1.0
        proxy.clear_rules()
