# SPDX-License-Identifier: Apache-2.0
"""The producer on a real Apache Kafka: what is stored, and where."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from producer_apis import MakeClient, stored, stored_values

import kcodec
from kcodec.client import Producer
from kcodec.errors import BrokerError, DeliveryErrors
from kcodec.flow import ANY_NODE, call
from kcodec.network.connections import Trace
from kcodec.protocol.messages.produce import ProduceRequest
from kcodec.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from kcodec.testing.kafka import ApacheKafka

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def watch(producer: Any) -> list[bytes]:
    """The record sets of every Produce request that goes out, from now on."""
    seen: list[bytes] = []

    def look(trace: Trace) -> None:
        if trace.kind == "request" and isinstance(trace.message, ProduceRequest):
            for topic in trace.message.topic_data:
                seen.extend(bytes(part.records) for part in topic.partition_data if part.records is not None)

    producer._client.network.watchers.append(look)
    return seen


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_sent_is_stored_byte_for_byte(make_client: MakeClient, apache_kafka: ApacheKafka, codec: str) -> None:
    """But for base offset and leader epoch, which are the broker's."""
    topic = apache_kafka.create_topic(partitions=1)
    client = make_client(apache_kafka.bootstrap_servers, compression_type=codec, linger_ms=20)
    sent = watch(client.producer)
    records = [
        {"value": b"value-%d " % number * 20, "key": b"key-%d" % number, "headers": (("name", b"x"), ("null", None))}
        for number in range(1000)
    ]
    deliveries = client.send_all(topic, records)
    client.flush()  # all of them may be one batch
    deliveries += client.send_all(topic, [{"value": None, "key": b"k"}, {"value": b"", "headers": ()}])
    client.flush()
    log = stored(apache_kafka, topic)
    found = [bytearray(batch.data) for batch in log.batches]
    assert len(found) == len(sent) > 1
    for kept, gone in zip(found, sent, strict=True):
        kcodec.set_base_offset(kept, 0)
        kcodec.set_partition_leader_epoch(kept, -1)
        assert bytes(kept) == gone
    assert [record.value for record in log.records()][:1000] == [record["value"] for record in records]
    assert [delivery.offset for delivery in deliveries] == list(range(1002))
    assert {str(batch.compression) for batch in log.batches} == {codec}


@pytest.mark.parametrize("codec", CODECS)
def test_tables_arrive_as_they_were(make_client: MakeClient, apache_kafka: ApacheKafka, codec: str) -> None:
    import pyarrow

    topic = apache_kafka.create_topic(partitions=3)
    keys = [b"key-%d" % (number % 100) if number % 3 else None for number in range(20_000)]
    table = pyarrow.table(
        {
            "key": pyarrow.array(keys, pyarrow.binary()),
            "value": pyarrow.array([b"value-%d" % number for number in range(20_000)], pyarrow.binary()),
            "timestamp": pyarrow.array([1_700_000_000_000 + number for number in range(20_000)], pyarrow.int64()),
        }
    )
    client = make_client(apache_kafka.bootstrap_servers, compression_type=codec)
    batches = client.outcome(client.send_arrow(topic, table))
    assert sum(batch.records_count for batch in batches) == 20_000
    found = {}
    for partition in range(3):
        for record in stored(apache_kafka, topic, partition).records():
            found[record.value] = partition, record.key, record.timestamp
    wanted = kcodec.partition_for(table["key"], 3)
    for number in range(20_000):
        partition, key, timestamp = found[b"value-%d" % number]
        assert key == keys[number] and timestamp == 1_700_000_000_000 + number
        assert wanted[number] in (None, partition)
    for batch in batches:
        first = next(stored(apache_kafka, topic, batch.partition).records(start_offset=batch.base_offset))
        assert first.offset == batch.base_offset


def test_a_column_decides_the_partition_a_wrong_row_sends_nothing(
    make_client: MakeClient, apache_kafka: ApacheKafka
) -> None:
    import pyarrow

    topic = apache_kafka.create_topic(partitions=3)
    client = make_client(apache_kafka.bootstrap_servers)
    values = [b"%d" % number for number in range(300)]
    table = pyarrow.table({"value": values, "partition": [number * 7 % 3 for number in range(300)]})
    client.outcome(client.send_arrow(topic, table))
    for partition in range(3):
        wanted = [value for number, value in enumerate(values) if number * 7 % 3 == partition]
        assert stored_values(apache_kafka, topic, partition) == wanted
    for column in ([0] * 299 + [3], [0] * 299 + [-1]):
        with pytest.raises(kcodec.EncodeError, match=r"row 299: partition -?\d does not exist") as caught:
            client.send_arrow(topic, pyarrow.table({"value": values, "partition": column}))
        assert caught.value.row == 299
    with pytest.raises(ValueError, match="send_arrow: unknown column 'offset'"):
        client.send_arrow(topic, pyarrow.table({"value": values, "offset": range(300)}))
    assert sum(len(stored_values(apache_kafka, topic, partition)) for partition in range(3)) == 300


def test_keys_go_where_partition_for_says_and_the_rest_is_spread(
    make_client: MakeClient, apache_kafka: ApacheKafka
) -> None:
    topic = apache_kafka.create_topic(partitions=5)
    client = make_client(apache_kafka.bootstrap_servers, batch_size=1000)
    keys = [b"key-%d" % number for number in range(500)]
    keyed = client.send_all(topic, [{"value": b"x", "key": key} for key in keys])
    client.flush()
    assert [delivery.partition for delivery in keyed] == list(kcodec.partition_for(keys, 5))
    loose = client.send_all(topic, [{"value": b"x" * 100} for _ in range(2000)])
    chosen = client.send_all(topic, [{"value": b"x", "key": b"any", "partition": number % 5} for number in range(10)])
    client.flush()
    counts = [[delivery.partition for delivery in loose].count(partition) for partition in range(5)]
    assert min(counts) > 100
    changes = sum(first.partition != second.partition for first, second in itertools.pairwise(loose))
    assert changes < 2000 * 100 / 500, "sticky: a partition gets a batch, not a record"
    assert [delivery.partition for delivery in chosen] == [number % 5 for number in range(10)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks(make_client: MakeClient, apache_kafka: ApacheKafka, acks: int | str) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    client = make_client(apache_kafka.bootstrap_servers, acks=acks, enable_idempotence=False)
    deliveries = client.send_all(topic, [{"value": b"%d" % number} for number in range(100)])
    client.flush()
    assert [delivery.offset for delivery in deliveries] == ([-1] * 100 if acks == 0 else list(range(100)))
    deadline = time.monotonic() + 5
    while len(stored_values(apache_kafka, topic)) < 100 and time.monotonic() < deadline:
        time.sleep(0.05)  # with acks=0 nobody says when it is written
    assert stored_values(apache_kafka, topic) == [b"%d" % number for number in range(100)]
    assert {batch.producer_id for batch in stored(apache_kafka, topic).batches} == {-1}


def test_a_batch_above_the_topics_limit_is_split(make_client: MakeClient, apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1, max_message_bytes=2000)
    client = make_client(apache_kafka.bootstrap_servers, linger_ms=50)
    values = [b"%03d" % number + os.urandom(200) for number in range(60)]
    values[30] = b"large" + os.urandom(3000)
    deliveries = client.send_all(topic, [{"value": value} for value in values])
    with pytest.raises(DeliveryErrors, match="1 record not delivered"):
        client.flush()
    failed = [number for number, delivery in enumerate(deliveries) if delivery.error is not None]
    assert failed == [30]
    error = deliveries[30].error
    assert isinstance(error, BrokerError) and error.name == "MESSAGE_TOO_LARGE" and error.resource == (topic, 0)
    assert stored_values(apache_kafka, topic) == values[:30] + values[31:]
    assert {batch.producer_epoch for batch in stored(apache_kafka, topic).batches} == {0}


def test_a_topic_deleted_and_made_again_gets_what_follows(make_client: MakeClient, apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    client = make_client(apache_kafka.bootstrap_servers, linger_ms=0, delivery_timeout_ms=60_000)
    client.send_all(topic, [{"value": b"old"}])
    client.flush()
    with Producer(bootstrap_servers=apache_kafka.bootstrap_servers) as other:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], topic_names=[topic], timeout_ms=10_000)
        other._io_loop.run(call(ANY_NODE, request, timeout=15.0), 20.0)
    apache_kafka.create_topic(topic, partitions=1)
    values = [b"%d" % number for number in range(200)]
    deliveries = client.send_all(topic, [{"value": value} for value in values])
    client.flush(60.0)
    assert [delivery.error for delivery in deliveries] == [None] * 200
    assert stored_values(apache_kafka, topic) == values


def test_an_unknown_topic_and_a_record_refused_for_itself(make_client: MakeClient, apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=1, cleanup_policy="compact")
    client = make_client(apache_kafka.bootstrap_servers, linger_ms=50, max_block_ms=1500)
    (invalid,) = client.send_all("no such topic!", [{"value": b"x"}])
    good, bad = client.send_all(topic, [{"value": b"x", "key": b"k"}, {"value": b"x"}])
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        client.outcome(invalid)
    with pytest.raises(BrokerError, match=rf"{topic}-0\).*record 1"):
        client.outcome(bad)
    with pytest.raises(BrokerError, match="record 1"):  # one batch, one fate
        client.outcome(good)


def test_headers_in_every_form(make_client: MakeClient, apache_kafka: ApacheKafka) -> None:
    """Also as a generator that sends by the same producer."""
    topic = apache_kafka.create_topic(partitions=1)
    client = make_client(apache_kafka.bootstrap_servers)

    def pairs() -> Iterator[tuple[str, bytes]]:
        yield "name", b"x"

    for turn in range(2):  # before and after the topic is known
        for headers in ([("name", b"x")], {"name": b"x"}, pairs(), (("name", b"x"),)):
            client.outcome(client.send_all(topic, [{"value": b"%d" % turn, "headers": headers}])[0])
        client.outcome(client.send_all(topic, [{"value": b"none", "headers": None}])[0])
        for wrong in ("text", 5, [("name",)], [(None, b"x")]):
            with pytest.raises((kcodec.EncodeError, TypeError, ValueError), match="header"):
                client.send_all(topic, [{"value": b"x", "headers": wrong}])
    found = [record.headers for record in stored(apache_kafka, topic).records()]
    assert found == ([(("name", b"x"),)] * 4 + [()]) * 2


def test_callbacks_are_called_once_and_their_errors_are_kept_apart(
    make_client: MakeClient, apache_kafka: ApacheKafka
) -> None:
    topic = apache_kafka.create_topic(partitions=1)
    client = make_client(apache_kafka.bootstrap_servers, linger_ms=100)
    heard: list[Any] = []
    first, second = client.send_all(topic, [{"value": b"a"}, {"value": b"b"}])
    first.add_done_callback(lambda _: 1 / 0)
    first.add_done_callback(heard.append)
    second.add_done_callback(heard.append)
    client.flush()
    second.add_done_callback(heard.append)
    assert heard == [first, second, second]
