# SPDX-License-Identifier: Apache-2.0
"""What a consumer delivers is what Java's delivers: of every golden log, and of random transactions on a real broker.

The golden logs are served by a script here, each compared with what Java's consumer delivered of it when it was
recorded; from the disk of a real broker they are served in tests/prove/prove_consumer_equality.py.
"""

from __future__ import annotations

import golden_data
import pytest
from consumer_equality import difference, random_workload
from fetch_script import FetchScript
from opened_logs import open_log

import kcodec
from kcodec import IsolationLevel
from kcodec.testing.kafka import ApacheKafka

PARTITIONS = [
    partition
    for partition in golden_data.partitions(2)
    if partition.offsets is not None and partition.consumed("read_committed") is not None
]


def served(partition: golden_data.Partition, isolation_level: str) -> FetchScript:
    """A world that serves this log as a broker does, to a consumer that stands at its start."""
    offsets = partition.offsets
    assert offsets is not None
    level = IsolationLevel(isolation_level)  # by its name
    world = FetchScript(isolation_level=level, max_partition_fetch_bytes=5000)
    log = world.log(partition.topic)
    for batch in kcodec.batches(partition.log):
        log.batches.append((batch.base_offset, batch.last_offset, bytes(batch.data)))
        log.end = batch.next_offset
    log.start = offsets["logStartOffset"]
    if isolation_level == "read_committed":
        log.stable = offsets["lastStableOffset"]
        every = open_log(partition.path, high_watermark=offsets["highWatermark"]).transactions
        log.aborted = [
            (one.producer_id, one.first_offset, one.marker_offset or 0)
            for one in every
            if one.state == "aborted" and one.first_offset is not None
        ]
    world.assign((partition.topic, 0), offset=log.start)
    return world


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_every_golden_log_is_delivered_as_java_delivered_it(isolation_level: str) -> None:
    compared = 0
    for partition in PARTITIONS:
        truth = partition.consumed(isolation_level)
        assert truth is not None
        world = served(partition, isolation_level)
        found = []
        for _ in range(400):
            world.run(0.02)
            found += world.fetcher.buffer.take(100)
            end = world.logs(partition.topic)[0]
            if world.state(partition.topic).position == (end.end if end.stable is None else end.stable):
                break
        assert [record.offset for record in found] == [reported["offset"] for reported in truth], str(partition)
        for record, reported in zip(found, truth, strict=True):
            assert record.timestamp == reported["timestamp"], str(partition)
            assert golden_data.same_bytes(record.key, reported["key"])
            assert golden_data.same_bytes(record.value, reported["value"])
            assert golden_data.same_headers(record.headers, reported["headers"])
        compared += len(found)
    assert compared > 4000


def test_random_transactions_are_delivered_as_java_delivers_them(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.create_topic(partitions=2)
    random_workload(apache_kafka, topic, 2, seed=1, steps=60)
    count, reported = difference(
        apache_kafka.bootstrap_servers, [topic], "read_committed", max_partition_fetch_bytes=2000, max_poll_records=17
    )
    assert reported is None, reported
    assert count > 50
