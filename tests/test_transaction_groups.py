# SPDX-License-Identifier: Apache-2.0
"""The generation of a consumer group fences offsets in transactions (KIP-447), on real brokers, with group members made
of raw JoinGroup and SyncGroup frames: what a stale one sends is refused, its transaction aborts, no offset is there.
"""

from __future__ import annotations

import pytest
from raw_broker import RawBroker
from test_transactions import offset_of
from transaction_cluster import TransactionCluster

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import TransactionHandle, abort_transaction, commit_transaction
from kcodec.errors import AbortableTransactionError
from kcodec.protocol import messages


class RawMember:
    """A member of a group that is alone in it, and its leader."""

    def __init__(self, broker: RawBroker, group: str, instance: str | None = None) -> None:
        self.broker, self.group, self.instance = broker, group, instance
        self.member_id = ""
        self.generation = -1
        self.times = 0

    def join(self) -> ConsumerGroupMetadata:
        """Join, or join again with something new to say, which makes the next generation."""
        self.times += 1
        protocol = messages.JoinGroupRequestProtocol(name="range", metadata=b"%d" % self.times)
        find = messages.FindCoordinatorRequest(key=self.group, key_type=0)
        self.broker.ask_until(find, 3, lambda answer: answer.error_code)
        while True:
            request = messages.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = self.broker.ask_until(request, 5, lambda answer: answer.error_code)
            self.member_id = joined.member_id
            if joined.error_code != 79:  # MEMBER_ID_REQUIRED
                break
        assert joined.error_code == 0
        self.generation = joined.generation_id
        assigned = messages.SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all")
        sync = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[assigned],
        )
        assert self.broker.ask_until(sync, 3, lambda answer: answer.error_code).error_code == 0
        return ConsumerGroupMetadata(self.group, self.generation, self.member_id, self.instance)


@pytest.mark.parametrize("how", ["generation", "member", "instance"])
def test_who_has_left_the_group_commits_nothing(transaction_cluster: TransactionCluster, how: str) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    group, partition = cluster.new_id(), TopicPartition(topic, 0)
    with RawBroker(cluster.kafka.bootstrap_servers) as broker, cluster.producer() as producer:
        member = RawMember(broker, group, "static" if how == "instance" else None)
        fresh = member.join()
        with producer.transaction() as txn:
            txn.send(topic, b"in time")
            txn.send_offsets({partition: 1}, fresh)
        if how == "generation":
            stale, current = fresh, member.join()
        elif how == "member":
            stale, current = ConsumerGroupMetadata(group, fresh.generation_id, "nobody"), fresh
        else:
            stale, current = fresh, RawMember(broker, group, "static").join()
        with (
            pytest.raises(AbortableTransactionError) as raised,
            producer.transaction() as zombie,
        ):
            zombie.send(topic, b"of a zombie")
            zombie.send_offsets({partition: 9}, stale)
        assert (raised.value.name, raised.value.resource, raised.value.remedy) == (
            {"generation": "ILLEGAL_GENERATION", "member": "UNKNOWN_MEMBER_ID", "instance": "FENCED_INSTANCE_ID"}[how],
            group,
            "abort",
        )
        assert zombie.committed is False
        assert offset_of(cluster, group, topic) == 1
        with producer.transaction() as txn:
            txn.send(topic, b"again")
            txn.send_offsets({partition: 2}, current)
        assert offset_of(cluster, group, topic) == 2
    assert cluster.committed(topic) == [[b"in time", b"again"]]


def test_the_generation_fences_a_commit_from_elsewhere_too(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=1)
    group, partition = cluster.new_id(), TopicPartition(topic, 0)
    servers = cluster.proxy.bootstrap_servers
    with RawBroker(cluster.kafka.bootstrap_servers) as broker, cluster.producer() as producer:
        member = RawMember(broker, group)
        stale = member.join()
        member.join()
        with producer.transaction(partitions=[partition]) as txn:
            txn.send(topic, b"of a zombie").result(20)
            handle: TransactionHandle = txn.handle
            with pytest.raises(AbortableTransactionError, match="ILLEGAL_GENERATION"):
                commit_transaction(handle, bootstrap_servers=servers, offsets={partition: 9}, group_metadata=stale)
            abort_transaction(handle, bootstrap_servers=servers)
            txn.abort()
        assert offset_of(cluster, group, topic) == -1
    assert cluster.committed(topic) == [[]]
