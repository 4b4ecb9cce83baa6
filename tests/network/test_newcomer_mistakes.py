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


IMPOSSIBLE_NAMES = pytest.mark.parametrize("name", ["bad\udcff", "x" * 32768], ids=["surrogate", "too long"])


@IMPOSSIBLE_NAMES
def test_a_topic_that_no_request_can_hold_is_refused_at_the_call(kcodec_broker: Broker, name: str) -> None:
    """Such a name ended the flow that requests metadata: no call for another topic succeeded any more."""
    topic = kcodec_broker.create_topic(partitions=1)
    servers = kcodec_broker.bootstrap_servers
    with Consumer(bootstrap_servers=servers, group_id="g") as consumer, Producer(bootstrap_servers=servers) as producer:
        for call in (
            lambda: consumer.partitions_for(name, 5.0),
            lambda: consumer.subscribe([topic, name]),
            lambda: consumer.assign([TopicPartition(name, 0)]),
            lambda: consumer.commit({TopicPartition(name, 0): 1}),
            lambda: consumer.end_offsets([TopicPartition(name, 0)]),
            lambda: producer.partitions_for(name),
            lambda: producer.send(name, b"1"),
        ):
            with pytest.raises(ValueError, match=": the name of a topic must"):
                call()
        assert consumer.partitions_for(topic, 5.0) == 1
        assert producer.partitions_for(topic) == 1


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_partition_that_no_topic_can_have_is_refused_at_the_call(kcodec_broker: Broker, number: int) -> None:
    """Requests for such a partition were repeated without a pause, or without end."""
    partition = TopicPartition(kcodec_broker.create_topic(partitions=1), number)
    with Consumer(bootstrap_servers=kcodec_broker.bootstrap_servers, group_id="g") as consumer:
        for call in (
            lambda: consumer.assign([partition]),
            lambda: consumer.commit({partition: 1}),
            lambda: consumer.commit_async({partition: 1}),
            lambda: consumer.committed([partition]),
            lambda: consumer.offsets_for_times({partition: 1}),
        ):
            with pytest.raises(ValueError, match=rf"must be from 0 to 2147483647, got {number}; pass the number of"):
                call()
