# SPDX-License-Identifier: Apache-2.0
"""The generation of a consumer group fences offsets in transactions (KIP-447), on real brokers, with group members made
of raw JoinGroup and SyncGroup frames: what a stale one sends is refused, its transaction aborts, no offset is there.
"""

from __future__ import annotations

import pytest
from raw_broker import RawBroker
from raw_member import RawMember
from transaction_cluster import TransactionCluster
from transaction_kinds import offset_of

from kcodec import ConsumerGroupMetadata, TopicPartition
from kcodec.client import TransactionHandle, abort_transaction, commit_transaction
from kcodec.errors import AbortableTransactionError


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
