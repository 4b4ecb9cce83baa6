# SPDX-License-Identifier: Apache-2.0
"""Partitions that come into being while a consumer runs: of a topic that was created again, added to a topic, or of a
new topic that a pattern matches. No record in them is skipped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.broker import Broker
from kcodec.client import Admin, Consumer, GroupTransactSession, NewTopic, Producer
from kcodec.errors import AbortableTransactionError, BrokerError, OffsetOutOfRangeError
from kcodec.testing.kafka import ApacheKafka

PATIENCE_SECONDS = 30.0
OLD, NEW = [b"old %d" % number for number in range(3)], [b"new %d" % number for number in range(6)]


class Cluster:
    """A broker with what the tests do to its topics."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers, self.topic = servers, name
        self.admin = Admin(bootstrap_servers=servers)

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, also if a topic of this name is being deleted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.admin.create_topics([NewTopic(topic, num_partitions=partitions)])
                return
            except BrokerError as error:
                assert error.name == "TOPIC_ALREADY_EXISTS" and time.monotonic() < deadline
                time.sleep(0.02)

    def create_again(self) -> None:
        """Delete the topic, and create it with new records."""
        self.admin.delete_topics([self.topic])
        self.create(self.topic)
        self.write(self.topic, NEW)

    def write(self, topic: str, values: list[bytes], partition: int = 0) -> None:
        """Write records with another producer for each call, which knows the present topic."""
        with Producer(bootstrap_servers=self.servers) as producer:
            for value in values:
                producer.send(topic, value, partition=partition)

    def consumer(self, **options: Any) -> Consumer:
        """Return a consumer that notices changes within half a second."""
        return Consumer(**{"bootstrap_servers": self.servers, "metadata_max_age_ms": 500, **options})


@pytest.fixture(params=["embedded", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    name = f"topic-{time.monotonic_ns()}"
    if request.param == "embedded":
        with Broker(auto_create_topics=False) as broker:
            found = Cluster(broker.bootstrap_servers, name)
            with found.admin:
                yield found
    else:
        kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
        found = Cluster(kafka.bootstrap_servers, name)
        with found.admin:
            yield found


def read(poll: Callable[[float], Any], count: int) -> list[bytes]:
    """Poll until this number of records has arrived."""
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [record.value for record in poll(0.5)]
    return found


@pytest.mark.parametrize("auto_offset_reset", ["earliest", "latest"])
@pytest.mark.parametrize("how", ["classic", "consumer", "assign", "no group"])
def test_a_topic_that_is_created_again_is_read_from_its_start(
    cluster: Cluster, how: str, auto_offset_reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(cluster.topic)
    options: dict[str, Any] = {"auto_offset_reset": auto_offset_reset}
    if how != "no group":
        options["group_id"] = f"group-{cluster.topic}"
    if how == "consumer":
        options["group_protocol"] = "consumer"
    with cluster.consumer(**options) as consumer:
        if how in ("classic", "consumer"):
            consumer.subscribe(cluster.topic)
        else:
            consumer.assign([TopicPartition(cluster.topic, 0)])
        consumer.poll(0.0)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        consumer.position(TopicPartition(cluster.topic, 0), PATIENCE_SECONDS)
        cluster.write(cluster.topic, OLD)
        assert read(consumer.poll, len(OLD)) == OLD
        cluster.create_again()
        assert read(consumer.poll, len(NEW)) == NEW
        if "group_id" in options:
            consumer.commit()
            committed = consumer.committed([TopicPartition(cluster.topic, 0)])[TopicPartition(cluster.topic, 0)]
            assert committed is not None and committed.offset == len(NEW)
    if how in ("assign", "no group"):  # with a group, a rebalance may have been first
        assert "the topic was deleted and created again. Reading continues at the first offset" in caplog.text


def test_without_a_reset_a_topic_that_is_created_again_is_an_error(cluster: Cluster) -> None:
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition = TopicPartition(cluster.topic, 0)
    with cluster.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert read(consumer.poll, len(OLD)) == OLD
        cluster.create_again()
        with pytest.raises(OffsetOutOfRangeError, match="was deleted and created again, so the position 3 is"):
            read(consumer.poll, len(NEW))
        consumer.seek(partition, 1)
        assert read(consumer.poll, len(NEW) - 1) == NEW[1:]


def test_a_paused_partition_of_a_topic_that_is_created_again_stays_paused(cluster: Cluster) -> None:
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition = TopicPartition(cluster.topic, 0)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert read(consumer.poll, len(OLD)) == OLD
        consumer.pause(partition)
        cluster.create_again()
        state = consumer._core.assignment.partitions[partition]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while consumer._core.assignment.partitions[partition] is state and time.monotonic() < deadline:
            assert not consumer.poll(0.1)
        assert consumer.paused() == {partition} and not consumer.poll(0.5)
        consumer.resume(partition)
        assert read(consumer.poll, len(NEW)) == NEW


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_partitions_that_are_added_are_read_from_their_start(cluster: Cluster, group_protocol: str) -> None:
    """Producers write to them before the consumer knows them, and "latest" is for the time of the subscription."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    with cluster.consumer(group_id=f"group-{cluster.topic}", group_protocol=group_protocol) as consumer:
        consumer.subscribe(cluster.topic)
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.position(TopicPartition(cluster.topic, 0), PATIENCE_SECONDS)
        cluster.admin.create_partitions({cluster.topic: 3})
        for partition in range(3):
            cluster.write(cluster.topic, NEW[2 * partition : 2 * partition + 2], partition)
        assert sorted(read(consumer.poll, len(NEW))) == NEW  # and none of OLD, which were there before


def test_a_new_topic_of_a_pattern_is_read_from_its_start(cluster: Cluster) -> None:
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    with cluster.consumer(group_id=f"group-{cluster.topic}") as consumer:
        consumer.subscribe(pattern=cluster.topic + ".*")
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.position(TopicPartition(cluster.topic, 0), PATIENCE_SECONDS)
        other = cluster.topic + "-other"
        cluster.create(other)
        cluster.write(other, NEW)
        assert read(consumer.poll, len(NEW)) == NEW


def test_a_session_reads_a_topic_that_is_created_again_from_its_start(cluster: Cluster) -> None:
    """Also after an abort: the session returns to positions of the new topic only. A transaction is aborted if the
    topic is created again while the broker gets its offsets."""
    cluster.create(cluster.topic)
    cluster.create(cluster.topic + "-out")
    cluster.write(cluster.topic, OLD)
    options: Any = {"metadata_max_age_ms": 500, "bootstrap_servers": cluster.servers, "topics": [cluster.topic]}
    name = f"session-{cluster.topic}"
    found: list[bytes] = []
    with GroupTransactSession(group_id=name, transactional_id=name, **options) as session:
        deadline = time.monotonic() + PATIENCE_SECONDS
        is_created_again = False
        while not set(NEW) <= set(found) and time.monotonic() < deadline:
            transaction = session.transaction()
            with contextlib.suppress(AbortableTransactionError), transaction:
                records = transaction.poll(0.5)
                for record in records:
                    transaction.send(cluster.topic + "-out", record.value)
                if records and not is_created_again:
                    is_created_again = True
                    cluster.create_again()
            if transaction.committed:
                found += [record.value or b"" for record in records]
    assert set(NEW) <= set(found) and len(found) == len(set(found))


def test_an_explicit_commit_of_an_old_position_is_refused(cluster: Cluster) -> None:
    """From version 10 on, OffsetCommit contains the id of the topic. A repeat with the new id would store it there."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition, group = TopicPartition(cluster.topic, 0), f"group-{cluster.topic}"
    options: Any = {"group_id": group, "auto_offset_reset": "earliest", "metadata_max_age_ms": 300_000}
    with cluster.consumer(**options, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.pause(partition)  # a fetch request would find the new topic
        assert consumer.end_offsets([partition]) == {partition: len(OLD)}
        cluster.create_again()
        with pytest.raises(BrokerError, match="the offset is that of the former topic"):
            consumer.commit({partition: 3})
    assert cluster.admin.list_group_offsets(group, [partition]) == {partition: None}


def test_a_commit_of_a_suspended_partition_is_not_stored_for_the_new_topic(cluster: Cluster) -> None:
    """The metadata contains the new topic, but the position still belongs to the former one."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition, group = TopicPartition(cluster.topic, 0), f"group-{cluster.topic}"
    options: Any = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with cluster.consumer(**options) as consumer:
        consumer.assign([partition])
        assert read(consumer.poll, len(OLD)) == OLD
        state = consumer._core.assignment.partitions[partition]
        cluster.create_again()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not state.is_suspended:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(BrokerError, match="the offset is that of the former topic"):
            consumer.commit()
        assert read(consumer.poll, len(NEW)) == NEW
    assert cluster.admin.list_group_offsets(group, [partition]) == {partition: None}


def test_without_a_reset_no_old_position_is_committed_for_a_new_topic(cluster: Cluster) -> None:
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition, group = TopicPartition(cluster.topic, 0), f"group-{cluster.topic}"
    with cluster.consumer(group_id=group, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert read(consumer.poll, len(OLD)) == OLD
        cluster.create_again()
        with pytest.raises(OffsetOutOfRangeError):
            read(consumer.poll, len(NEW))
    assert cluster.admin.list_group_offsets(group, [partition]) == {partition: None}


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_repeated_subscription_keeps_what_is_known(cluster: Cluster, group_protocol: str) -> None:
    cluster.create(cluster.topic)
    with cluster.consumer(group_id=f"group-{cluster.topic}", group_protocol=group_protocol) as consumer:
        consumer.subscribe(cluster.topic)
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.position(TopicPartition(cluster.topic, 0), PATIENCE_SECONDS)
        consumer.subscribe([cluster.topic])
        cluster.admin.create_partitions({cluster.topic: 2})
        cluster.write(cluster.topic, NEW, 1)
        assert read(consumer.poll, len(NEW)) == NEW


@pytest.mark.parametrize("auto_offset_reset", ["latest", "none"])
def test_a_stored_position_of_a_former_topic_is_not_used(
    cluster: Cluster, auto_offset_reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The application keeps the position with the id of the topic. The new topic has more records than the position."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition = TopicPartition(cluster.topic, 0)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert read(consumer.poll, len(OLD)) == OLD
        stored = consumer.positions()[partition]
        assert (stored.offset, stored.topic_id) == (
            len(OLD),
            cluster.admin.describe_topics([cluster.topic])[cluster.topic].topic_id,
        )
    with cluster.consumer(auto_offset_reset="none") as consumer:  # nothing has changed
        consumer.assign([partition])
        consumer.seek(partition, stored)
        cluster.write(cluster.topic, [b"later"])
        assert read(consumer.poll, 1) == [b"later"]
    cluster.create_again()
    with cluster.consumer(auto_offset_reset=auto_offset_reset) as consumer:
        consumer.assign([partition])
        for _ in range(2):  # the id of the former topic is detected each time
            consumer.seek(partition, stored)
            if auto_offset_reset == "none":
                with pytest.raises(OffsetOutOfRangeError, match="was deleted and created again, so the position 3 is"):
                    read(consumer.poll, len(NEW))
            else:
                assert read(consumer.poll, len(NEW)) == NEW
        consumer.seek(partition, OffsetAndMetadata(4))
        assert read(consumer.poll, 2) == NEW[4:]
        here = consumer.positions([partition])[partition]
        consumer.seek(partition, OffsetAndMetadata(5, topic_id=here.topic_id))
        assert read(consumer.poll, 1) == NEW[5:]
        assert here.offset == len(NEW) and here.topic_id != stored.topic_id


def test_no_commit_stores_a_position_of_a_former_topic(cluster: Cluster) -> None:
    """The offset has the id of the former topic. The clients know only the new one."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition, group = TopicPartition(cluster.topic, 0), f"group-{cluster.topic}"
    former = cluster.admin.describe_topics([cluster.topic])[cluster.topic].topic_id
    cluster.create_again()
    stored = {partition: OffsetAndMetadata(2, topic_id=former)}
    with cluster.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        assert consumer.end_offsets([partition]) == {partition: len(NEW)}
        with pytest.raises(BrokerError, match="the offset is that of the former topic"):
            consumer.commit(stored)
    with Producer(bootstrap_servers=cluster.servers, transactional_id=group) as producer:
        pattern = "was deleted and created again, so these offsets are of a topic that no longer exists"
        with pytest.raises(AbortableTransactionError, match=pattern), producer.transaction() as transaction:
            transaction.send_offsets(stored, ConsumerGroupMetadata(group))
    assert cluster.admin.list_group_offsets(group, [partition]) == {partition: None}


def test_a_session_returns_to_a_position_with_its_topic(cluster: Cluster) -> None:
    """An abort returns to the topic that the session read before, whatever id a `seek` has named."""
    cluster.create(cluster.topic)
    cluster.write(cluster.topic, OLD)
    partition, group = TopicPartition(cluster.topic, 0), f"group-{cluster.topic}"
    with GroupTransactSession(
        bootstrap_servers=cluster.servers, group_id=group, transactional_id=group, topics=[cluster.topic]
    ) as session:
        with session.transaction() as transaction:
            assert read(transaction.poll, 3) == OLD
        cluster.write(cluster.topic, NEW)
        with contextlib.suppress(KeyError), session.transaction() as transaction:
            assert read(transaction.poll, len(NEW)) == NEW
            transaction.seek(partition, OffsetAndMetadata(0, topic_id=UUID(int=7)))
            raise KeyError
        with session.transaction() as transaction:
            assert read(transaction.poll, len(NEW)) == NEW
