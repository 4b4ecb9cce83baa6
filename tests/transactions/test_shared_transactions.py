# SPDX-License-Identifier: Apache-2.0
"""Transactions without a producer, and the progress of a job in them, on real brokers of four kinds: begun, written and
ended in different places, with the beginner killed and the commit left without a response.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transaction_cluster import TransactionCluster
from transaction_kinds import ALL_KINDS

import kcodec.client
from kcodec import OffsetAndMetadata, TopicPartition
from kcodec.client import (
    SharedTransactions,
    TransactionHandle,
    TransactionWriter,
    WriterReceipt,
    abort_transaction,
    aio,
    begin_transaction,
    commit_transaction,
)
from kcodec.errors import (
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionStateError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)

WORKER = Path(__file__).parent.parent / "support" / "shared_steps_worker.py"
SECONDS = 60


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def nothing(topic: str) -> list[WriterReceipt]:
    """The receipts of writers that had no records."""
    return [WriterReceipt(dict.fromkeys(partitions_of(topic), (0, -1)))]


def write(cluster: TransactionCluster, handle: TransactionHandle, topic: str, value: bytes) -> list[WriterReceipt]:
    """One writer for each of two partitions, a record each."""
    receipts = []
    for partition in partitions_of(topic):
        servers = cluster.proxy.bootstrap_servers
        with TransactionWriter(handle, [partition], bootstrap_servers=servers, linger_ms=0) as writer:
            writer.send(topic, value)
        receipts.append(pickle.loads(pickle.dumps(writer.receipt)))
    return receipts


@pytest.fixture
def job(transaction_cluster: TransactionCluster) -> Iterator[tuple[TransactionCluster, str, dict[str, Any]]]:
    """A cluster, a topic with two partitions, and the arguments of SharedTransactions."""
    cluster = transaction_cluster
    cluster.quiet_proxy()
    topic = cluster.kafka.create_topic(partitions=2)
    yield (
        cluster,
        topic,
        {
            "transactional_id": cluster.new_id(),
            "group": cluster.new_id(),
            "bootstrap_servers": cluster.proxy.bootstrap_servers,
        },
    )
    cluster.quiet_proxy()


Job = tuple[TransactionCluster, str, dict[str, Any]]

# -------------------------------------------------------------------------------------------------- begin_transaction


@ALL_KINDS
def test_a_transaction_without_a_producer_is_committed(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.quiet_proxy().bootstrap_servers
    handle = begin_transaction(cluster.new_id(), partitions=partitions_of(topic), bootstrap_servers=servers)
    assert handle.transaction_version == cluster.transaction_version
    adds = [] if cluster.is_new_flow else ["AddPartitionsToTxn"]
    assert cluster.spoken() == ["InitProducerId", *adds]
    receipts = write(cluster, TransactionHandle.from_json(handle.to_json()), topic, b"x")
    commit_transaction(handle, receipts=receipts, bootstrap_servers=servers)
    assert cluster.spoken() == ["InitProducerId", *adds, "Produce", "EndTxn"]
    assert cluster.committed(topic) == [[b"x"], [b"x"]]


@ALL_KINDS
def test_a_begin_aborts_and_fences_what_was_open(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers, name = cluster.quiet_proxy().bootstrap_servers, cluster.new_id()
    old = begin_transaction(name, partitions=partitions_of(topic), bootstrap_servers=servers)
    with TransactionWriter(old, [TopicPartition(topic, 0)], bootstrap_servers=servers) as writer:
        writer.send(topic, b"old")
    new = begin_transaction(name, partitions=partitions_of(topic), bootstrap_servers=servers)
    assert new.producer_epoch > old.producer_epoch
    # Also in a partition that the old transaction had not written to.
    with (
        pytest.raises(ProducerFencedError, match=name),
        TransactionWriter(old, [TopicPartition(topic, 1)], bootstrap_servers=servers) as late,
    ):
        late.send(topic, b"late")
    with pytest.raises(ProducerFencedError, match=name):
        commit_transaction(old, receipts=[writer.receipt], bootstrap_servers=servers)
    receipts = write(cluster, new, topic, b"new")
    commit_transaction(new, receipts=receipts, bootstrap_servers=servers)
    assert cluster.committed(topic) == [[b"new"], [b"new"]]


def test_a_begin_takes_an_id_over_from_a_producer(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.quiet_proxy().bootstrap_servers
    with cluster.producer() as producer:
        name = producer._manager().transactional_id
        with pytest.raises(ProducerFencedError, match=name), producer.transaction() as txn:
            txn.send(topic, b"fenced", partition=0).result(20)
            handle = begin_transaction(name, partitions=partitions_of(topic), bootstrap_servers=servers)
    abort_transaction(handle, bootstrap_servers=servers)
    assert cluster.committed(topic) == [[], []]


def test_a_begin_needs_partitions_in_the_old_flow_only(transaction_cluster: TransactionCluster) -> None:
    cluster, servers = transaction_cluster, transaction_cluster.quiet_proxy().bootstrap_servers
    if cluster.is_new_flow:
        abort_transaction(begin_transaction(cluster.new_id(), bootstrap_servers=servers), bootstrap_servers=servers)
    else:
        with pytest.raises(TransactionStateError, match="partitions is empty"):
            begin_transaction(cluster.new_id(), bootstrap_servers=servers)


def test_a_begin_names_what_the_broker_refuses(transaction_cluster: TransactionCluster) -> None:
    cluster, servers = transaction_cluster, transaction_cluster.quiet_proxy().bootstrap_servers
    with pytest.raises(FatalTransactionError, match=r"transaction_timeout_ms=3600000.*transaction\.max\.timeout\.ms"):
        begin_transaction(cluster.new_id(), transaction_timeout_ms=3_600_000, bootstrap_servers=servers)


def test_a_begun_transaction_ends_by_its_timeout(transaction_cluster: TransactionCluster) -> None:
    cluster, topic = transaction_cluster, transaction_cluster.kafka.create_topic(partitions=2)
    servers = cluster.quiet_proxy().bootstrap_servers
    handle = begin_transaction(
        cluster.new_id(), partitions=partitions_of(topic), transaction_timeout_ms=500, bootstrap_servers=servers
    )
    receipts = write(cluster, handle, topic, b"x")
    assert cluster.committed(topic) == [[], []]  # waits until nothing is open
    with pytest.raises(TransactionTimedOutError):
        commit_transaction(handle, receipts=receipts, bootstrap_servers=servers)


# ------------------------------------------------------------------------------------------------- SharedTransactions


@ALL_KINDS
def test_each_step_finds_the_progress_of_the_last(job: Job) -> None:
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        for step in range(4):
            handle, progress = shared.begin(partitions_of(topic))
            assert progress == (OffsetAndMetadata(step, f"after {step - 1}") if step else None)
            receipts = write(cluster, handle, topic, b"%d" % step)
            shared.commit(handle, receipts, OffsetAndMetadata(step + 1, f"after {step}"))
        handle, progress = shared.begin(partitions_of(topic))
        write(cluster, handle, topic, b"aborted")
        shared.abort(handle)
        assert shared.begin(partitions_of(topic))[1] == progress
    assert cluster.committed(topic) == [[b"0", b"1", b"2", b"3"]] * 2


@ALL_KINDS
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_killed_beginner_loses_and_repeats_nothing(job: Job, dies: str) -> None:
    cluster, topic, arguments = job
    command = [sys.executable, str(WORKER), arguments["bootstrap_servers"], arguments["transactional_id"]]
    died = subprocess.run(
        [*command, arguments["group"], topic, dies], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "0\n"), died.stderr
    with SharedTransactions(**arguments) as shared:
        handle, progress = shared.begin(partitions_of(topic))
        assert progress == (OffsetAndMetadata(1, "after step 0") if dies == "after" else None)
        if progress is None:
            shared.commit(handle, write(cluster, handle, topic, b"step 0"), 1)
        else:
            shared.abort(handle)
    assert cluster.committed(topic) == [[b"step 0"]] * 2


@ALL_KINDS
def test_kills_at_any_time_lose_and_repeat_nothing(job: Job) -> None:
    """A process runs steps until it is killed, and another goes on; every third EndTxn is not answered, or not done."""
    cluster, topic, arguments = job
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown if the test fails
    chance, count = random.Random(seed), 40
    command = [sys.executable, str(WORKER), arguments["bootstrap_servers"], arguments["transactional_id"]]
    command += [arguments["group"], topic, str(count)]
    for nth in range(3, 60, 6):
        cluster.proxy.on_request("EndTxn", nth=nth).deliver_and_cut()
        cluster.proxy.on_request("EndTxn", nth=nth + 3).cut()
    for _ in range(6):
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(chance.random() * 0.5)
        worker.kill()
        worker.communicate(timeout=SECONDS)
    last = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert last.returncode == 0, last.stderr
    assert cluster.committed(topic) == [[b"step %d" % step for step in range(count)]] * 2


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_a_begin_returns_what_a_lost_commit_did(job: Job, is_done: bool) -> None:
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        handle, _ = shared.begin(partitions_of(topic))
        receipts = write(cluster, handle, topic, b"x")
        rule = cluster.proxy.on_request("EndTxn", count=None)
        if is_done:
            rule.deliver_and_cut()
        else:
            rule.cut()
        with pytest.raises(UnknownOutcomeError):
            shared.commit(handle, receipts, 1, timeout=2.0)
        cluster.proxy.clear_rules()
        handle, progress = shared.begin(partitions_of(topic))
        assert progress == (OffsetAndMetadata(1) if is_done else None)
        if not is_done:
            shared.commit(handle, write(cluster, handle, topic, b"x"), 1)
    assert cluster.committed(topic) == [[b"x"]] * 2


def test_a_commit_is_not_done_twice(job: Job) -> None:
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        handle, _ = shared.begin(partitions_of(topic))
        receipts = write(cluster, handle, topic, b"x")
        for _ in range(2):
            shared.commit(handle, receipts, 1)
        assert shared.begin(partitions_of(topic))[1] == OffsetAndMetadata(1)
    assert cluster.committed(topic) == [[b"x"]] * 2


@ALL_KINDS
def test_of_two_jobs_with_one_id_the_later_goes_on(job: Job) -> None:
    """A coordinator aborts what the later one has open when it refuses the begin of the first one, in the old flow."""
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as first, SharedTransactions(**arguments) as second:
        handle, _ = first.begin(partitions_of(topic))
        receipts = write(cluster, handle, topic, b"of the first")
        second.begin(partitions_of(topic))
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match=arguments["transactional_id"]):
                first.begin(partitions_of(topic))
        with pytest.raises(ProducerFencedError):
            first.commit(handle, receipts, 7)
        other, progress = second.begin(partitions_of(topic))
        assert progress is None
        second.commit(other, write(cluster, other, topic, b"x"), 1)
        assert second.begin(partitions_of(topic))[1] == OffsetAndMetadata(1)
    assert cluster.committed(topic) == [[b"x"]] * 2


def test_a_step_that_was_left_open_is_aborted_by_the_next(job: Job) -> None:
    """As when a task of it was killed, and the step is done again."""
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        for attempt in range(3):
            handle, progress = shared.begin(partitions_of(topic))
            assert progress is None
            receipts = write(cluster, handle, topic, b"attempt %d" % attempt)
        shared.commit(handle, receipts, 1)
    assert cluster.committed(topic) == [[b"attempt 2"]] * 2


def test_a_step_over_its_time_is_aborted_and_done_again(job: Job) -> None:
    cluster, topic, arguments = job
    with SharedTransactions(**arguments, transaction_timeout_ms=500) as shared:
        handle, _ = shared.begin(partitions_of(topic))
        receipts = write(cluster, handle, topic, b"late")
        assert cluster.committed(topic) == [[], []]  # waits until the coordinator has ended it
        with pytest.raises(TransactionTimedOutError):
            shared.commit(handle, receipts, 1)
        handle, progress = shared.begin(partitions_of(topic))
        assert progress is None
        shared.commit(handle, write(cluster, handle, topic, b"in time"), 1)
    assert cluster.committed(topic) == [[b"in time"]] * 2


def test_a_handle_of_a_step_is_ended_by_functions_too(job: Job) -> None:
    cluster, topic, arguments = job
    servers = arguments["bootstrap_servers"]
    with SharedTransactions(**arguments) as shared:
        for end in ("commit", "abort"):
            handle, _ = shared.begin(partitions_of(topic))
            receipts = write(cluster, handle, topic, end.encode())
            if end == "commit":
                commit_transaction(handle, receipts=receipts, bootstrap_servers=servers)
            else:
                abort_transaction(handle, bootstrap_servers=servers)
        shared.abort(shared.begin(partitions_of(topic))[0])
    assert cluster.committed(topic) == [[b"commit"]] * 2


def test_a_step_needs_no_new_connection(job: Job) -> None:
    """Nor does it look anything up: begin and commit are 5 requests in the new flow, 7 in the old one."""
    cluster, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        shared.commit(shared.begin(partitions_of(topic))[0], nothing(topic), 1)
        cluster.proxy.clear_log()
        handle, _ = shared.begin(partitions_of(topic))
        shared.commit(handle, nothing(topic), 2)
        found = [one.api for one in sorted(cluster.proxy.exchanges(), key=lambda one: one.time)]
    # InitProducerId is repeated while the markers of the last transaction are written.
    spoken = [api for number, api in enumerate(found) if number == 0 or api != found[number - 1]]
    old_flow = ["AddPartitionsToTxn"], ["AddOffsetsToTxn"]
    added, offsets = ([], []) if cluster.is_new_flow else old_flow
    begun = ["InitProducerId", *added, "OffsetFetch"]
    assert spoken == [*begun, "DescribeTransactions", *offsets, "TxnOffsetCommit", "EndTxn"]


def test_metadata_of_progress_is_bounded_by_the_broker(job: Job) -> None:
    _, topic, arguments = job
    with SharedTransactions(**arguments) as shared:
        handle, _ = shared.begin(partitions_of(topic))
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            shared.commit(handle, nothing(topic), OffsetAndMetadata(1, "x" * 4097))
        handle, progress = shared.begin(partitions_of(topic))
        assert progress is None
        shared.commit(handle, nothing(topic), OffsetAndMetadata(1, "x" * 4096))
        assert shared.begin(partitions_of(topic))[1] == OffsetAndMetadata(1, "x" * 4096)


def test_asyncio_runs_steps_alike(job: Job) -> None:
    cluster, topic, arguments = job
    servers = arguments["bootstrap_servers"]

    async def write_one(handle: aio.TransactionHandle, partition: TopicPartition) -> aio.WriterReceipt:
        async with aio.TransactionWriter(handle, [partition], bootstrap_servers=servers) as writer:
            await writer.send(topic, b"x")
        return writer.receipt

    async def work() -> None:
        async with aio.SharedTransactions(**arguments) as shared:
            for step in range(2):
                handle, progress = await shared.begin(partitions_of(topic))
                assert progress == (OffsetAndMetadata(step) if step else None)
                receipts = await asyncio.gather(*(write_one(handle, each) for each in partitions_of(topic)))
                await shared.commit(handle, receipts, step + 1)
        named = partitions_of(topic)
        handle = await aio.begin_transaction(cluster.new_id(), partitions=named, bootstrap_servers=servers)
        receipts = await asyncio.gather(*(write_one(handle, each) for each in named))
        await aio.commit_transaction(handle, receipts=receipts, bootstrap_servers=servers)

    asyncio.run(work())
    assert cluster.committed(topic) == [[b"x"] * 3] * 2


# ---------------------------------------------------------------------------------------------------- without a broker

NOWHERE: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}


@pytest.mark.parametrize("name", ["", None, 5])
def test_what_is_no_transactional_id_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="transactional_id must be a non-empty string"):
        begin_transaction(name, **NOWHERE)
    with pytest.raises(ValueError, match="transactional_id must be a non-empty string"):
        SharedTransactions(name, "group", **NOWHERE)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="group must be a non-empty string"):
        SharedTransactions("id", "", **NOWHERE)
    with pytest.raises(ValueError, match="transaction_timeout_ms"):
        SharedTransactions("id", "group", transaction_timeout_ms=0, **NOWHERE)
    with pytest.raises(TypeError, match="progress_partition"):
        SharedTransactions("id", "group", progress_partition="orders-0", **NOWHERE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="linger_ms"):
        SharedTransactions("id", "group", linger_ms=5, **NOWHERE)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="linger_ms"):
        begin_transaction("id", linger_ms=5, **NOWHERE)  # type: ignore[call-arg]
    with SharedTransactions("id", "group", **NOWHERE) as shared:
        with pytest.raises(ValueError, match="progress_partition="):
            shared.begin()
        with pytest.raises(TypeError, match="partitions: expected"):
            shared.begin("orders")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(shared)
        assert repr(shared) == "<SharedTransactions of 'id'>"


def test_the_names_are_public() -> None:
    for module in (kcodec.client, aio):
        assert {"SharedTransactions", "begin_transaction"} <= set(module.__all__)
