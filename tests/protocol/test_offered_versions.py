# SPDX-License-Identifier: Apache-2.0
"""The versions of the message tables compared with those that a real broker offers."""

from __future__ import annotations

from raw_broker import RawBroker

from kcodec.protocol import messages
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka

# Offered only by a broker with a plugin that receives client metrics.
NOT_OFFERED = {"GetTelemetrySubscriptionsRequest", "PushTelemetryRequest"}
# InitializeShareGroupState and the other requests to the share coordinator, which only brokers send.
BETWEEN_BROKERS = {83, 84, 85, 86, 87}


def test_the_tables_end_where_the_broker_does(apache_kafka: ApacheKafka) -> None:
    """An API that kcodec has, it has to the last version that the newest broker speaks, and from the first one on."""
    with RawBroker(apache_kafka.bootstrap_servers) as broker:
        offered = broker.ask(messages.ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)
    ranges = {one.api_key: (one.min_version, one.max_version) for one in offered.api_keys}
    requests = messages.all_requests()
    ends = {key: kind.versions.last for key, kind in requests.items() if key in ranges}
    offers = {key: ranges[key][1] for key in ends}
    if apache_kafka.version == KAFKA_VERSION:
        assert ends == offers
        assert {requests[key].__name__ for key in requests.keys() - ends} == NOT_OFFERED
        assert ranges.keys() - requests.keys() == BETWEEN_BROKERS
    assert [key for key, last in ends.items() if last < offers[key]] == []
    assert [kind for key, kind in requests.items() if key in ranges and kind.versions.first > ranges[key][0]] == []
