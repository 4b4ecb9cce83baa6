# SPDX-License-Identifier: Apache-2.0
"""Settings that librdkafka accepts: each test runs with the clients of confluent_kafka and with those of the facade."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

import kcodec.compat.confluent as facade
from kcodec.broker import Broker
from kcodec.client import Producer
from kcodec.testing.certificates import Certificates

SECONDS = 15.0


@pytest.fixture(params=[confluent_kafka, facade], ids=["confluent", "kcodec"])
def clients(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    found = Certificates()
    found.keep_in(tmp_path_factory.mktemp("certificates"))
    return found


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Broker]:
    pair = certificates.broker()
    listeners = {"PLAINTEXT": 0, "SSL": 0}
    with Broker(listeners=listeners, ssl_certfile=pair.certificate, ssl_keyfile=pair.key) as found:
        yield found


def reports_of_record(clients: Any, broker: Broker, protocol: str, settings: dict[str, Any]) -> list[Any]:
    """Send a record. Return the errors of its reports; None means that it was delivered."""
    reports: list[Any] = []
    servers = broker.client_options(protocol=protocol)["bootstrap_servers"]
    producer = clients.Producer({"bootstrap.servers": servers, "message.timeout.ms": 3000, **settings})
    producer.produce(broker.create_topic(), b"v", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(SECONDS) == 0
    return reports


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl.ca.location": "/no/such/file", "ssl.endpoint.identification.algorithm": "none"},
        {"sasl.mechanisms": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"},
        {"security.protocol": "plaintext", "sasl.mechanism": "SCRAM-SHA-256"},
        {"enable.ssl.certificate.verification": False},
        {"ssl.key.location": "", "transactional.id": ""},
    ],
)
def test_settings_that_the_protocol_does_not_use_are_ignored(
    clients: Any, broker: Broker, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Programs often have one configuration for several environments, of which one has no TLS and no SASL."""
    assert reports_of_record(clients, broker, "PLAINTEXT", settings) == [None]
    if clients is facade and {"sasl.mechanism", "sasl.mechanisms", "ssl.ca.location"} & settings.keys():
        assert "have no effect on this producer, because its security.protocol is PLAINTEXT" in caplog.text


def test_certificates_are_not_verified_on_request(clients: Any, broker: Broker, caplog: Any) -> None:
    settings = {"security.protocol": "SSL", "ssl.certificate.location": ""}
    caplog.set_level(logging.CRITICAL)
    [refused] = reports_of_record(clients, broker, "SSL", settings)
    assert refused.name() in {"_MSG_TIMED_OUT", "_SSL"}
    unverified = {**settings, "enable.ssl.certificate.verification": False}
    assert reports_of_record(clients, broker, "SSL", unverified) == [None]


@pytest.mark.parametrize("location", ["probe", ""])
def test_the_authorities_of_the_system_can_be_requested(clients: Any, location: str) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": location}
    assert clients.Producer(settings).poll(0) >= 0


def test_properties_may_request_the_authorities_of_the_system() -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": "probe"}
    Producer.from_properties(properties).close(0)


@pytest.mark.parametrize("value", ["true", "1", "T"])
def test_properties_may_confirm_that_certificates_are_verified(value: str) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "enable.ssl.certificate.verification": value}
    Producer.from_properties(properties).close(0)


@pytest.mark.parametrize(
    ("value", "text"), [("0", "cannot be 0: pass an ssl_context="), ("yes", "must be true or false")]
)
def test_properties_cannot_switch_the_verification_off(value: str, text: str) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "enable.ssl.certificate.verification": value}
    with pytest.raises(ValueError, match=f"enable.ssl.certificate.verification {text}"):
        Producer.from_properties(properties)


def test_an_empty_path_is_named_as_such() -> None:
    text = "ssl_cafile must be a path, got an empty string; omit it, or pass None"
    with pytest.raises(ValueError, match=text):
        Producer(bootstrap_servers="127.0.0.1:1", security_protocol="SSL", ssl_cafile="")


@pytest.mark.parametrize(("value", "is_on"), [(0, False), ("f", False), ("1", True), (True, True)])
def test_short_forms_of_truth_values_are_accepted(clients: Any, broker: Broker, value: Any, is_on: bool) -> None:
    """Values from environment variables are often 0 and 1."""
    topic = broker.create_topic(partitions=1)
    broker.seed(topic, [b"1"])
    settings = {
        "bootstrap.servers": broker.client_options(protocol="PLAINTEXT")["bootstrap_servers"],
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": value,
        "enable.partition.eof": value,
        "group.instance.id": "",
        "offset.store.method": "broker",
    }
    consumer = clients.Consumer(settings)
    consumer.subscribe([topic])
    assert consumer.poll(SECONDS).value() == b"1"
    end = consumer.poll(SECONDS if is_on else 0.1)
    assert (end is not None) is is_on
    consumer.close()
    reader = clients.Consumer({**settings, "enable.auto.commit": False})
    [committed] = reader.committed([confluent_kafka.TopicPartition(topic, 0)], SECONDS)
    reader.close()
    assert committed.offset == (1 if is_on else confluent_kafka.OFFSET_INVALID)


@pytest.mark.parametrize("interval", [6000, "60000"])
def test_an_interval_of_heartbeats_above_the_session_timeout_is_accepted(
    clients: Any, broker: Broker, interval: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka sends heartbeats as requested, and the group removes the member."""
    settings = {
        "bootstrap.servers": broker.client_options(protocol="PLAINTEXT")["bootstrap_servers"],
        "group.id": "g",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": interval,
    }
    consumer = clients.Consumer(settings)
    consumer.subscribe([broker.create_topic()])
    limit = time.monotonic() + SECONDS
    while not consumer.assignment():
        assert time.monotonic() < limit
        consumer.poll(0.1)
    consumer.close()
    if clients is facade:
        text = f"heartbeat.interval.ms ({interval}) should be less than session.timeout.ms (6000); a third of the"
        assert text in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "topic.blacklist",
            "private",
            "must be empty, got 'private': kcodec has no such list; subscribe with a pattern",
        ),
    ],
)
def test_the_refusal_of_a_setting_says_what_to_do(name: str, value: str, text: str) -> None:
    """kcodec has no counterpart, and without the setting a program would read more topics."""
    with pytest.raises(confluent_kafka.KafkaException, match=re.escape(text)):
        facade.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("broker.address.family", family) for family in ("any", "v4", "v6")),
        ("topic.blacklist", ""),
        ("topic.blacklist", None),
    ],
)
def test_a_setting_with_a_supported_value_is_accepted(clients: Any, name: str, value: str | None) -> None:
    clients.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", name: value}).close()


def test_a_setting_that_is_not_a_list_cannot_be_none(clients: Any) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match=r"offset\.store\.method"):
        clients.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "offset.store.method": None})


def test_eager_and_cooperative_assignors_together_are_refused(clients: Any) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with pytest.raises(confluent_kafka.KafkaException, match=r"partition\.assignment\.strategy"):
        clients.Consumer({**settings, "partition.assignment.strategy": "range,cooperative-sticky"})
