# SPDX-License-Identifier: Apache-2.0
"""Requests that are never sent: the broker refuses the connection that they wait for, or they cannot be encoded."""

from __future__ import annotations

from typing import Any

import pytest

from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.errors import DeliveryErrors, EncodeError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages.produce import ProduceRequest
from kcodec.testing.proxy import KafkaProxy

OPTIONS: dict[str, Any] = {"linger_ms": 0, "reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 50}


@pytest.fixture
def servers(kcodec_broker: Broker) -> str:
    kcodec_broker.create_topic("orders", partitions=1)
    return str(kcodec_broker.bootstrap_servers)


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_records_wait_for_a_broker_that_refuses_connections(servers: str, enable_idempotence: bool) -> None:
    """An error code in the response to ApiVersions is a failure of that connection, which is opened again."""
    refused = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    with KafkaProxy(servers) as proxy:
        options = OPTIONS | {"enable_idempotence": enable_idempotence}
        with Producer(bootstrap_servers=proxy.bootstrap_servers, **options) as producer:
            assert producer.send("orders", b"first").result(20).offset == 0
            for number in range(1, 4):
                proxy.on_request("ApiVersions", count=3).answer(error=refused)
                proxy.cut_connections()
                assert producer.send("orders", b"value").result(20).offset == number


def test_a_producer_id_is_requested_again_after_a_refused_connection(servers: str) -> None:
    with KafkaProxy(servers) as proxy:
        proxy.on_request("ApiVersions", count=5).answer(error=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        with Producer(bootstrap_servers=proxy.bootstrap_servers, **OPTIONS) as producer:
            assert producer.send("orders", b"first").result(20).offset == 0


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_a_request_that_cannot_be_encoded_fails_its_records(
    servers: str, enable_idempotence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fail at once with that error, and the records that follow are sent."""

    def refuse(*unused: Any) -> None:
        raise EncodeError("this version cannot hold the value", field="timeout_ms", value=-1)

    options = OPTIONS | {"enable_idempotence": enable_idempotence}
    expected = pytest.raises(DeliveryErrors, match="1 record failed with EncodeError")
    with expected, Producer(bootstrap_servers=servers, **options) as producer:
        assert producer.send("orders", b"first").result(20).offset == 0
        with monkeypatch.context() as patch:
            patch.setattr(ProduceRequest, "encode_frame_parts", refuse)
            producer.send("orders", b"not looked at")
            assert isinstance(producer.send("orders", b"retrieved").exception(20), EncodeError)
        assert producer.send("orders", b"second").result(20).offset == 1
