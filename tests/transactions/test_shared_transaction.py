# SPDX-License-Identifier: Apache-2.0
"""One transaction, many writers, on real brokers of four kinds: all or nothing, whoever ends it, and an honest word to
everybody else. Writers with processes of their own, and kills, are in prove_shared_transaction.py.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opened_logs import open_log
from transaction_cluster import TransactionCluster
from transaction_kinds import ALL_KINDS, offset_of

from kcodec import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kcodec.client import (
    Producer,
    SharedTransactions,
    Transaction,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    abort_transaction,
    aio,
    commit_transaction,
)
from kcodec.errors import (
    AbortableTransactionError,
    ProducerFencedError,
    TransactionStateError,
    TransactionTimedOutError,
)

HANDLE = TransactionHandle("orders", 7, 3, 2)


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


@contextmanager
def owned(
    cluster: TransactionCluster, topic: str, count: int, **options: object
) -> Iterator[tuple[Producer, Transaction, TransactionHandle]]:
    """An owner in its block, and the handle by way of JSON. At the end it is gone without a word, as if killed."""
    producer = cluster.producer(**options)  # type: ignore[arg-type]
    txn = producer.transaction(partitions=partitions_of(topic, count))
    txn.__enter__()
    try:
        yield producer, txn, TransactionHandle.from_json(txn.handle.to_json())
    finally:
        producer._io_loop.close()


def write(cluster: TransactionCluster, handle: TransactionHandle, topic: str, number: int, count: int) -> WriterReceipt:
    """What one writer does, on a connection of its own."""
    servers = cluster.proxy.bootstrap_servers
    with TransactionWriter(handle, [(topic, number)], bootstrap_servers=servers, linger_ms=0) as writer:  # type: ignore[list-item]
        for row in range(count):
            writer.send(topic, b"%d-%d" % (number, row))
    return pickle.loads(pickle.dumps(writer.receipt))  # type: ignore[no-any-return]


def write_all(
    cluster: TransactionCluster, handle: TransactionHandle, topic: str, count: int, rows: int = 200
) -> list[WriterReceipt]:
    """As many writers at once as there are partitions."""
    receipts: list[WriterReceipt] = []
    threads = [
        threading.Thread(target=lambda number=number: receipts.append(write(cluster, handle, topic, number, rows)))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(receipts) == count
    return receipts


def open_of(cluster: TransactionCluster, topic: str) -> list[int]:
    """How many records of each partition a read_committed reader gets while the transaction is open."""

    found = [open_log(cluster.kafka.log_directory / f"{topic}-{number}") for number in range(4)]
    return [len(list(log.records("read_committed"))) for log in found]


# ------------------------------------------------------------------------------------------------------ all or nothing


@ALL_KINDS
def test_four_writers_and_a_commit_from_elsewhere(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=4)
    group = ConsumerGroupMetadata(cluster.new_id())
    cluster.quiet_proxy()
    with owned(cluster, topic, 4) as (_, _txn, handle):
        receipts = write_all(cluster, handle, topic, 4)
        assert open_of(cluster, topic) == [0, 0, 0, 0]
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(17, "batch 17")}
    servers = cluster.proxy.bootstrap_servers
    for _ in range(2):  # whoever is not sure asks again
        commit_transaction(handle, bootstrap_servers=servers, receipts=receipts, offsets=offsets, group_metadata=group)
    assert cluster.committed(topic) == [[b"%d-%d" % (number, row) for row in range(200)] for number in range(4)]
    assert offset_of(cluster, group.group_id, topic) == 17
    assert cluster.spoken().count("InitProducerId") == 1, "only the owner's own"
    assert cluster.proxy.versions("EndTxn") == ({5} if cluster.is_new_flow else {4})
    with pytest.raises(AbortableTransactionError, match="committed by another process"):
        abort_transaction(handle, bootstrap_servers=servers)


def test_an_abort_from_elsewhere_leaves_nothing(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=4)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 4) as (_, _txn, handle):
        receipts = write_all(cluster, handle, topic, 4, rows=5)
    for _ in range(2):
        abort_transaction(handle, bootstrap_servers=servers)
    assert cluster.committed(topic) == [[], [], [], []]
    with pytest.raises(AbortableTransactionError):
        commit_transaction(handle, bootstrap_servers=servers, receipts=receipts)


def test_the_owner_commits_by_leaving_its_block_and_goes_on(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=4)
    with cluster.producer() as producer:
        for number in range(2):
            with producer.transaction(partitions=partitions_of(topic, 4)) as txn:
                write(cluster, txn.handle, topic, 1, 3)
                txn.send(topic, b"of the owner", partition=0).result(20)
                assert txn.receipt == WriterReceipt({TopicPartition(topic, 0): (1, 0)})
            assert txn.committed is True
            assert len(cluster.committed(topic)[1]) == 3 * (number + 1)
        with producer.transaction() as txn:
            txn.send(topic, b"alone", partition=2)
    assert [len(values) for values in cluster.committed(topic)] == [2, 6, 1, 0]


def test_asyncio_shares_alike(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.proxy.bootstrap_servers

    async def work() -> None:
        async with cluster.aio_producer() as producer:
            txn = producer.transaction(partitions=partitions_of(topic, 2))
            async with txn:
                handle = txn.handle

                async def write_one(number: int) -> aio.WriterReceipt:
                    partitions = [TopicPartition(topic, number)]
                    async with aio.TransactionWriter(handle, partitions, bootstrap_servers=servers) as writer:
                        for row in range(20):
                            await writer.send(topic, b"%d" % row)
                    return writer.receipt

                receipts = await asyncio.gather(write_one(0), write_one(1))
                await aio.commit_transaction(handle, bootstrap_servers=servers, receipts=receipts)
            assert txn.committed is True
            async with producer.transaction(partitions=partitions_of(topic, 2)) as other:
                other_handle = other.handle
                await write_one_more(other_handle)
                await aio.abort_transaction(other_handle, bootstrap_servers=servers)
                await other.abort()

    async def write_one_more(handle: TransactionHandle) -> None:
        partitions = [TopicPartition(topic, 0)]
        async with aio.TransactionWriter(handle, partitions, bootstrap_servers=servers) as writer:
            await writer.send(topic, b"aborted")

    asyncio.run(work())
    assert [len(values) for values in cluster.committed(topic)] == [20, 20]


def test_a_lost_end_is_repeated_from_elsewhere(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=4)
    with owned(cluster, topic, 4) as (_, _txn, handle):
        receipts = write_all(cluster, handle, topic, 4, rows=3)
    rule = cluster.quiet_proxy().on_request("EndTxn").deliver_and_cut()
    commit_transaction(handle, bootstrap_servers=cluster.proxy.bootstrap_servers, receipts=receipts)
    assert len(rule.hits) == 1
    assert [len(values) for values in cluster.committed(topic)] == [3, 3, 3, 3]


# ----------------------------------------------------------------------------------------------------- what is refused


def test_a_partition_without_a_receipt_is_not_committed(transaction_cluster: TransactionCluster) -> None:
    """Its writer died: what it wrote may be a part."""
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=4)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 2) as (_, _txn, handle):
        receipts = [write(cluster, handle, topic, number, 3) for number in range(2)]
    with pytest.raises(TransactionStateError, match=f"receipt covers {topic}-1"):
        commit_transaction(handle, bootstrap_servers=servers, receipts=receipts[:1])
    with pytest.raises(TransactionStateError, match=f"receipt covers {topic}-0, {topic}-1"):
        commit_transaction(handle, bootstrap_servers=servers, receipts=[])
    with (
        SharedTransactions(
            handle.transactional_id, topic, progress_partition=TopicPartition(topic, 0), bootstrap_servers=servers
        ) as shared,
        pytest.raises(TransactionStateError, match="receipt covers"),
    ):
        shared.commit(handle, [], 1)
    with pytest.raises(ValueError, match=f"two writers wrote to {topic}-0"):
        commit_transaction(handle, bootstrap_servers=servers, receipts=[*receipts, receipts[0]])
    abort_transaction(handle, bootstrap_servers=servers)
    assert cluster.committed(topic) == [[], [], [], []]


@pytest.mark.parametrize("handle", ["orders-0", b"{}", None])
def test_a_handle_of_another_type_raises_a_type_error(handle: Any) -> None:
    with SharedTransactions("orders-0", "progress", bootstrap_servers="localhost:1") as shared:
        for call in (
            lambda: commit_transaction(handle, bootstrap_servers="localhost:1"),
            lambda: abort_transaction(handle, bootstrap_servers="localhost:1"),
            lambda: TransactionWriter(handle, [("t", 0)], bootstrap_servers="localhost:1"),  # type: ignore[list-item]
            lambda: shared.commit(handle, [], 1),
            lambda: shared.abort(handle),
        ):
            with pytest.raises(TypeError, match=r"^handle must be a TransactionHandle, not "):
                call()


def test_a_commit_of_nothing_needs_receipts_that_say_so(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 2) as (_, _txn, handle):
        receipts = [write(cluster, handle, topic, number, 0) for number in range(2)]
    assert [receipt.records_count for receipt in receipts] == [0, 0]
    if cluster.is_new_flow:
        with pytest.raises(AbortableTransactionError, match="not committed"):
            commit_transaction(handle, bootstrap_servers=servers)
    commit_transaction(handle, bootstrap_servers=servers, receipts=receipts)


@pytest.mark.parametrize("how", ["committed", "aborted"])
def test_a_late_writer_gets_an_error_that_says_so(transaction_cluster: TransactionCluster, how: str) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 2) as (_, _txn, handle):
        write(cluster, handle, topic, 0, 1)
        (commit_transaction if how == "committed" else abort_transaction)(handle, bootstrap_servers=servers)
        with pytest.raises(AbortableTransactionError, match=f"{how} by another process"):
            write(cluster, handle, topic, 1, 1)
    assert cluster.committed(topic) == [[b"0-0"] if how == "committed" else [], []]


def test_a_transaction_over_its_time_is_said_to_be_over_its_time(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 2, transaction_timeout_ms=500) as (_, _txn, handle):
        receipt = write(cluster, handle, topic, 0, 1)
        time.sleep(1.0)
        with pytest.raises(TransactionTimedOutError):
            write(cluster, handle, topic, 1, 1)
        with pytest.raises(TransactionTimedOutError):
            commit_transaction(handle, bootstrap_servers=servers, receipts=[receipt])
        abort_transaction(handle, bootstrap_servers=servers)
    assert cluster.committed(topic) == [[], []]


def test_a_new_owner_fences_writers_and_enders_alike(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 2) as (_, _txn, handle):
        receipts = [write(cluster, handle, topic, number, 1) for number in range(2)]
        with cluster.producer(handle.transactional_id) as successor:
            with successor.transaction() as txn:
                txn.send(topic, b"of the successor", partition=0)
            with pytest.raises(ProducerFencedError, match=handle.transactional_id):
                write(cluster, handle, topic, 1, 1)
            ends: tuple[Callable[[], None], ...] = (
                lambda: commit_transaction(handle, bootstrap_servers=servers, receipts=receipts),
                lambda: abort_transaction(handle, bootstrap_servers=servers),
            )
            for end in ends:
                with pytest.raises(ProducerFencedError, match=handle.transactional_id):
                    end()
            with successor.transaction() as txn:
                txn.send(topic, b"again", partition=0)
    assert cluster.committed(topic) == [[b"of the successor", b"again"], []]


def test_a_writer_that_fails_has_no_receipt(transaction_cluster: TransactionCluster) -> None:
    cluster = transaction_cluster
    topic = cluster.kafka.create_topic(partitions=1, max_message_bytes=1000)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 1) as (_, _txn, handle):
        writer = TransactionWriter(handle, partitions_of(topic, 1), bootstrap_servers=servers)
        with pytest.raises(TransactionStateError):
            _ = writer.receipt
        writer.send(topic, bytes(range(256)) * 20)
        with pytest.raises(Exception, match=f"{topic}-0"):
            writer.close()
        with pytest.raises(TransactionStateError, match="this writer has no receipt"):
            _ = writer.receipt
        abort_transaction(handle, bootstrap_servers=servers)


def test_a_writer_writes_to_its_own_partitions_only(transaction_cluster: TransactionCluster) -> None:
    import pyarrow

    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=3)
    servers = cluster.proxy.bootstrap_servers
    with owned(cluster, topic, 3) as (_, _txn, handle):
        with TransactionWriter(handle, partitions_of(topic, 2), bootstrap_servers=servers) as writer:
            for wrong in (None, 2):
                with pytest.raises(ValueError, match="partition= must be one of this writer's partitions"):
                    writer.send(topic, b"x", partition=wrong)
            table = pyarrow.table({"value": [b"a", b"b"], "partition": pyarrow.array([0, 2], "int32")})
            with pytest.raises(ValueError, match="must be one of this writer's partitions"):
                writer.send_arrow(topic, table)
            writer.send_arrow(topic, table.set_column(1, "partition", pyarrow.array([0, 1], "int32")))
        with TransactionWriter(handle, [TopicPartition(topic, 2)], bootstrap_servers=servers) as other:
            other.send_arrow(topic, pyarrow.table({"value": [b"c"]}))
        assert writer.receipt.records_count == 2
        commit_transaction(handle, bootstrap_servers=servers, receipts=[writer.receipt, other.receipt])
    assert cluster.committed(topic) == [[b"a"], [b"b"], [b"c"]]


def test_a_table_with_keys_goes_to_the_only_partition(transaction_cluster: TransactionCluster) -> None:
    """Of its topic; in another one, of which the writer has two partitions, keys decide, and may decide wrongly."""
    import pyarrow

    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=3)
    other = cluster.kafka.create_topic(partitions=3)
    named = [TopicPartition(topic, 1), *partitions_of(other, 2)]
    keys = [b"%d" % row for row in range(50)]
    table = pyarrow.table({"key": keys, "value": keys, "partition": pyarrow.array([None, 1] * 25, "int32")})
    servers = cluster.proxy.bootstrap_servers
    with cluster.producer() as producer, producer.transaction(partitions=named) as txn:
        with TransactionWriter(txn.handle, named, bootstrap_servers=servers) as writer:
            writer.send_arrow(topic, table.select(["key", "value"]))
            writer.send_arrow(topic, table)
            with pytest.raises(ValueError, match=f"got {other}-2"):
                writer.send_arrow(other, table.select(["key", "value"]))
        assert {where: records for where, (records, _) in writer.receipt.items()} == {
            TopicPartition(topic, 1): 100,
            TopicPartition(other, 0): 0,
            TopicPartition(other, 1): 0,
        }
    assert cluster.committed(topic) == [[], keys + keys, []]


# ---------------------------------------------------------------------------------------------------- without a broker


def test_a_handle_survives_json_and_pickle() -> None:
    assert TransactionHandle.from_json(HANDLE.to_json()) == HANDLE
    assert pickle.loads(pickle.dumps(HANDLE)) == HANDLE
    assert len({HANDLE, TransactionHandle.from_json(HANDLE.to_json())}) == 1
    with pytest.raises(AttributeError):
        HANDLE.producer_id = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"transactional_id": "x"}',
        HANDLE.to_json().replace("7", "-1"),
        HANDLE.to_json().replace("3", "true"),
        HANDLE.to_json().replace('"orders"', "5"),
        HANDLE.to_json()[:-1] + ', "more": 1}',
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"handle|must be"):
        TransactionHandle.from_json(text)


def test_a_receipt_says_what_it_cannot_be() -> None:
    partition = TopicPartition("orders", 0)
    assert WriterReceipt({partition: (3, 2)})[partition] == (3, 2)
    assert WriterReceipt({partition: ((1 << 31) + 1, 0)}).records_count == (1 << 31) + 1, "sequences begin again"
    for records, last in ((3, 3), (0, 0), (-1, -1), (1, -1)):
        with pytest.raises(ValueError, match="orders-0"):
            WriterReceipt({partition: (records, last)})


def test_options_that_the_handle_decides_are_refused() -> None:
    with pytest.raises(TypeError, match="transactional_id"):
        TransactionWriter(HANDLE, [TopicPartition("orders", 0)], bootstrap_servers="127.0.0.1:1", transactional_id="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="partitions is empty"):
        TransactionWriter(HANDLE, [], bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TypeError, match=r"bootstrap_servers|no option"):
        commit_transaction(HANDLE, bootstrap_server="127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="group_metadata"):
        commit_transaction(HANDLE, bootstrap_servers="127.0.0.1:1", offsets={TopicPartition("orders", 0): 1})
