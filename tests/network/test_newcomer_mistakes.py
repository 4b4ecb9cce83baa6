# SPDX-License-Identifier: Apache-2.0
"""Mistakes that newcomers make in arguments: each is refused by an error that names the argument and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcodec import EncodeError
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, Producer
from kcodec.offsets import TopicPartition

SERVERS = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("client", "option"),
    [(Consumer, "enable_auto_commit"), (Consumer, "check_crcs"), (Producer, "partitioner_ignore_keys")],
)
def test_the_text_false_is_not_taken_for_true(client: Callable[..., Any], option: str) -> None:
    """Kafka's properties files have texts: `enable_auto_commit="false"` switched automatic commits on."""
    with pytest.raises(ValueError, match=f"{option} must be True or False, not 'false'"):
        client(bootstrap_servers=SERVERS, **{option: "false"})


@pytest.mark.parametrize("name", ["bootstrap_server", "metadata_broker_list"])
def test_a_misspelled_bootstrap_servers_is_named(name: str) -> None:
    options: dict[str, Any] = {name: SERVERS}
    with pytest.raises(TypeError, match=f"bootstrap_servers is missing.*'{name}' is not an option, write bootstrap_s"):
        Admin(**options)


@pytest.mark.parametrize("offsets", [5, "orders", [TopicPartition("orders", 0)]])
def test_offsets_that_are_not_a_mapping_are_refused(offsets: Any) -> None:
    with Consumer(bootstrap_servers=SERVERS, group_id="g") as consumer:
        with pytest.raises(TypeError, match=r"offsets: expected \{TopicPartition\(topic, partition\): offset\}, got"):
            consumer.commit(offsets)
        with pytest.raises(TypeError, match=r"timestamps: expected \{TopicPartition\(topic, partition\): ms since"):
            consumer.offsets_for_times(offsets)


@pytest.mark.parametrize("partitions", [["orders"], {"orders": "latest"}])
def test_list_offsets_names_what_it_expects(partitions: Any) -> None:
    expected = r"partitions: expected .*TopicPartition\(topic, partition\)"
    with Admin(bootstrap_servers=SERVERS) as admin, pytest.raises(TypeError, match=expected):
        admin.list_offsets(partitions)


def test_list_offsets_accepts_pairs(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    pair: Any = (topic, 0)
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        assert admin.list_offsets({pair: "latest"})[TopicPartition(topic, 0)].offset == 0


def test_a_too_large_record_names_its_topic(kcodec_broker: Broker) -> None:
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(bootstrap_servers=kcodec_broker.bootstrap_servers) as producer:
        producer.partitions_for(topic)
        expected = f"topic '{topic}': the record takes .* above max_request_size 1048576; send smaller records"
        with pytest.raises(EncodeError, match=expected):
            producer.send(topic, bytes(2_000_000))


def test_records_that_fail_name_the_refused_connection(kcodec_broker: Broker) -> None:
    """While no broker can be reached, the cause is the connection that was refused, not the metadata without it."""
    topic = kcodec_broker.create_topic(partitions=1)
    with Producer(
        bootstrap_servers=kcodec_broker.bootstrap_servers, delivery_timeout_ms=4000, request_timeout_ms=1000
    ) as producer:
        producer.send(topic, b"delivered").result()
        kcodec_broker.close()
        error = producer.send(topic, b"failed").exception()
        assert "Connection refused" in str(error), error
