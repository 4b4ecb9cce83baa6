# SPDX-License-Identifier: Apache-2.0
"""The protocol of the exactly-once sink without Spark: what a progress means, and batches on brokers of both flows."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from transaction_cluster import TransactionCluster

from kcodec import OffsetAndMetadata, TopicPartition, batches, partition_for
from kcodec.client import Admin, TransactionHandle, TransactionWriter, WriterReceipt
from kcodec.errors import BufferFullError, EncodeError, KcodecError, ProducerFencedError, TransactionTimedOutError
from kcodec.spark import CheckpointMismatchError, ExactlyOnceError
from kcodec.spark.sink_cells import CELL_BYTES, CellReader, RowPacker
from kcodec.spark.sink_protocol import VERSIONS, Batch, SinkProgress, is_committed, progress_of
from kcodec.spark.sink_tasks import TaskReport, TaskWriter, receipts_of, salts_for, spark_hash
from kcodec.spark.sink_transactions import SinkSettings, SinkTransactions

PARTITIONS = 2


# ------------------------------------------------------------------------------------------------ what a progress means

LAST = SinkProgress("q", 7, rows=5, offsets="aa", time=1)


@pytest.mark.parametrize(
    ("batch", "progress", "expected"),
    [
        (Batch("q", 0), None, False),
        (Batch("q", 8, "bb"), LAST, False),
        (Batch("q", 7, "aa"), LAST, True),
        (Batch("q", 7), LAST, True),
        (Batch("q", 7, "bb"), LAST, "other source offsets .digest aa, now bb"),
        (Batch("q", 6), LAST, "rolled back or copied: expected batch 7 or 8"),
        (Batch("q", 9), LAST, "last commit in Kafka is batch 7 of query q, expected batch 8"),
        (Batch("other", 0), LAST, "batch 7 of query q. Either the checkpoint was deleted"),
        (Batch("other", 8), LAST, "two queries use one application"),
        (Batch("q", 1), None, "found none"),
        (Batch(VERSIONS, 5), None, False),
        (Batch(VERSIONS, 8), dataclasses.replace(LAST, query=VERSIONS), False),
        (Batch(VERSIONS, 3), dataclasses.replace(LAST, query=VERSIONS), True),
        (Batch(VERSIONS, 8), LAST, "two queries use one application"),
    ],
)
def test_a_batch_is_next_or_done_or_refused(batch: Batch, progress: SinkProgress | None, expected: bool | str) -> None:
    if isinstance(expected, bool):
        assert is_committed(batch, progress, "copy", "refuse") is expected
        assert is_committed(batch, progress, "copy", "adopt") is expected
        return
    with pytest.raises(CheckpointMismatchError, match=expected) as caught:
        is_committed(batch, progress, "copy", "refuse")
    assert 'on_new_checkpoint="adopt"' in str(caught.value)
    assert (caught.value.application, caught.value.batch, caught.value.query) == ("copy", batch.number, batch.query)
    assert caught.value.found_batch == (None if progress is None else 7)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert is_committed(batch, progress, "copy", "adopt") is False


@pytest.mark.parametrize("metadata", ["", "x", "[]", '"x"', '{"query": 1, "batch": 4, "rows": 0}', '{"batch": 4}'])
def test_metadata_of_other_programs_is_refused(metadata: str) -> None:
    with pytest.raises(CheckpointMismatchError, match="another program commits offsets of that group"):
        progress_of(OffsetAndMetadata(5, metadata), "copy", Batch("q", 5))
    with pytest.raises(CheckpointMismatchError, match="found offset 9"):
        progress_of(OffsetAndMetadata(9, LAST.to_json()), "copy", Batch("q", 5))
    assert progress_of(LAST.committed, "copy", Batch("q", 5)) == LAST


def test_salts_reach_each_task_by_sparks_hash() -> None:
    # SELECT hash(0), hash(1), hash(-1), hash(123456789)
    assert [spark_hash(value) for value in (0, 1, -1)] == [933211791, -559580957, -1604776387]
    for tasks in (1, 2, 7, 64):
        assert [spark_hash(salt) % tasks for salt in salts_for(tasks)] == list(range(tasks))


def records_of(cells: pa.RecordBatch) -> dict[int, list[Any]]:
    """The records of each partition that cells have."""
    found: dict[int, list[Any]] = {}
    for partition, records, data in CellReader().read(cells):
        (batch,) = batches(data)
        assert (batch.records_count, batch.base_offset) == (records, 0)
        batch.ensure_valid()
        found.setdefault(partition, []).extend(batch.records())
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_are_packed_by_partition(compression: str) -> None:
    """The column decides, then the key as Java's producer, then each partition in turn; rows keep their order."""
    keys = [None if number % 5 == 0 else b"%d" % number for number in range(1000)]
    given = [3 if number % 7 == 0 else None for number in range(1000)]
    values = [b"%d" % number for number in range(1000)]
    arrays = [pa.array(keys, pa.string()), pa.array(values), pa.array(given, pa.int32())]
    batch = pa.record_batch(arrays, names=["key", "value", "partition"])
    packer = RowPacker("t", 4, by_key=True, encoding={"compression_type": compression})
    found = records_of(packer.pack([batch.slice(0, 300), batch.slice(300)], 0, itertools.count()))
    for partition, records in found.items():
        rows = [int(record.value) for record in records]
        assert rows == sorted(rows)
        assert [record.key for record in records] == [keys[row] for row in rows]
        for row in rows:
            by_key = partition_for([keys[row]], 4)[0]
            assert partition == (3 if row % 7 == 0 else partition if by_key is None else by_key)
    assert sum(map(len, found.values())) == 1000
    in_turn = sum(keys[int(record.value)] is None for record in found[0])
    assert 30 < in_turn < 60


def test_cells_are_small_in_any_order() -> None:
    """Spark holds up to 10,000 of them at once. Those of one record batch are put together, wherever they are."""
    values = [os.urandom(1000) for _ in range(1000)] + [bytes(1000)] * 1000
    arrays = [pa.array(values), pa.array([1] * 2000, pa.int32())]
    batch = pa.record_batch(arrays, names=["value", "partition"])
    cells = RowPacker("t", 4, by_key=False).pack([batch], 0, itertools.count())
    assert max(len(cell) for cell in cells["cell"].to_pylist()) <= CELL_BYTES
    assert cells["cell"].nbytes < 1_100_000  # zeros are compressed on their way
    backwards = cells.take(list(reversed(range(len(cells)))))
    found = records_of(backwards)
    assert sorted(record.value for record in found[1]) == sorted(values)
    reader = CellReader()
    assert list(reader.read(cells.slice(0, 1))) == []
    with pytest.raises(RuntimeError, match="1 record batches are incomplete"):
        reader.check_complete()
    assert len(list(reader.read(cells.slice(1)))) == len({*cells["batch"].to_pylist()})
    reader.check_complete()


def test_batches_have_the_sizes_of_the_producer() -> None:
    """max_request_size limits a record, and a larger one is an error that says so."""
    values = [bytes(200_000), b"small", bytes(300_000)]
    batch = pa.record_batch([pa.array(values)], names=["value"])

    def sizes(**encoding: Any) -> list[int]:
        packer = RowPacker("t", 1, by_key=True, encoding=encoding)
        return [len(each.data) for each in packer.encode(pa.Table.from_batches([batch]), 0)]

    assert [size // 100_000 for size in sizes()] == [5]
    assert [size // 100_000 for size in sizes(max_request_size=310_000)] == [2, 3]
    with pytest.raises(
        EncodeError, match=r"the record takes 3000.. bytes, above max_request_size 250000; send smaller"
    ):
        sizes(max_request_size=250_000)
    full = pa.record_batch([pa.array([bytes(1000)] * 1000)], names=["value"])
    found = list(RowPacker("t", 1, by_key=True).encode(pa.Table.from_batches([full]), 0))
    assert (len(found), sum(each.records for each in found)) == (4, 1000)
    assert max(len(each.data) for each in found) <= 256 * 1024


@pytest.mark.parametrize(
    ("partitions", "by_key", "text"),
    [
        ([0, 4], True, "topic 't': partition must be between 0 and 3, got 4 in column 'partition'; drop the column"),
        ([-1, None], True, "topic 't': partition must be between 0 and 3, got -1 in column 'partition'"),
        ([0, None], False, "topic 't': column 'partition' is NULL in 1 rows"),
    ],
)
def test_a_wrong_partition_reaches_the_driver(partitions: list[int | None], by_key: bool, text: str) -> None:
    """As the result of the task that writes, whichever task had the row; nothing is repeated then."""
    batch = pa.record_batch([pa.array([b"v"] * 2), pa.array(partitions, pa.int32())], names=["value", "partition"])
    packed = RowPacker("t", 4, by_key).pack([batch], 0, itertools.count())
    report = TaskWriter(TransactionHandle("a", 1, 0, 2), "t", 4, 2, {}).write(1, [packed])
    assert (report.receipt, type(report.error)) == (None, ValueError)
    assert text in str(report.error)


def test_missing_acknowledgments_are_not_committed() -> None:
    receipt = WriterReceipt({TopicPartition("t", 0): (3, 2)})
    assert receipts_of({0: TaskReport(3, receipt, None)}, "t", 2, 2)[1] == WriterReceipt(
        {TopicPartition("t", 1): (0, -1)}
    )
    with pytest.raises(ValueError, match="tasks were given 4 rows and brokers acknowledged 3"):
        receipts_of({0: TaskReport(4, receipt, None)}, "t", 1, 1)
    with pytest.raises(KeyError, match="first"):
        receipts_of({0: TaskReport(4, None, KeyError("first"))}, "t", 1, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"application": ""}, "application must be a string that is not empty"),
        ({"topic": None}, "topic must be a string that is not empty, got None"),
        ({"attempts": 0}, "attempts must be an int of at least 1, got 0"),
        ({"progress": "file"}, "progress must be one of group, topic, got 'file'"),
        ({"on_new_checkpoint": True}, "on_new_checkpoint must be one of refuse, adopt, got True"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SinkSettings(**{"application": "a", "topic": "t", "client": {}, **options})


def test_no_secret_is_shown() -> None:
    settings = SinkSettings("a", "t", {"sasl_plain_password": "hush"})
    assert "hush" not in repr(settings)


# ------------------------------------------------------------------------------------------------------ real brokers


class Sink:
    """A sink of one topic with two partitions, whose tasks write one record to each."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster = cluster
        self.topic, self.application = cluster.kafka.create_topic(partitions=PARTITIONS), cluster.new_id()
        self.servers = cluster.quiet_proxy().bootstrap_servers
        self.runs = 0

    def transactions(self, **settings: Any) -> SinkTransactions:
        client = {"bootstrap_servers": self.servers, "request_timeout_ms": 1000, "default_api_timeout_ms": 2000}
        return SinkTransactions(SinkSettings(self.application, self.topic, client, **settings))

    def writer(self, handle: TransactionHandle, partition: int) -> TransactionWriter:
        named = [TopicPartition(self.topic, partition)]
        return TransactionWriter(handle, named, must_be_first=True, bootstrap_servers=self.servers, linger_ms=0)

    def tasks(self, value: bytes, then: Callable[[int], None] = lambda run: None) -> Any:
        """What writes a batch of this value; calls `then` with the number of the run before it ends."""

        def write(handle: TransactionHandle, partitions: int) -> list[WriterReceipt]:
            self.runs += 1
            receipts = []
            for partition in range(partitions):
                with self.writer(handle, partition) as writer:
                    writer.send(self.topic, value)
                receipts.append(writer.receipt)
            then(self.runs)
            return receipts

        return write

    def committed(self) -> list[list[bytes | None]]:
        return self.cluster.committed(self.topic)


@pytest.fixture
def sink(transaction_cluster: TransactionCluster) -> Iterator[Sink]:
    yield Sink(transaction_cluster)
    transaction_cluster.quiet_proxy()


@pytest.mark.parametrize("progress", ["group", "topic"])
def test_a_new_process_skips_what_was_committed(sink: Sink, progress: str) -> None:
    for number in range(3):
        transactions = sink.transactions(progress=progress)
        for repeat in range(2):
            found = transactions.write(Batch("q", number), sink.tasks(b"%d" % number))
            assert (found.rows, found.is_skipped) == (PARTITIONS, repeat == 1)
        transactions.close()
    assert sink.committed() == [[b"0", b"1", b"2"]] * PARTITIONS


def test_a_lost_commit_is_found_out(sink: Sink) -> None:
    """Carried out or not: the next begin tells."""
    transactions = sink.transactions()
    for number, is_done in enumerate((True, False)):
        ends = sink.cluster.proxy.on_request("EndTxn", count=None)
        ends.deliver_and_cut() if is_done else ends.cut()
        sink.runs = 0

        def release(run: int) -> None:
            if run == 2:
                sink.cluster.proxy.clear_rules()

        found = transactions.write(Batch("q", number), sink.tasks(b"%d" % number, release))
        sink.cluster.proxy.clear_rules()
        assert found.is_skipped is is_done
        assert sink.runs == (1 if is_done else 2)
    assert sink.committed() == [[b"0", b"1"]] * PARTITIONS
    transactions.close()


def test_a_late_writer_of_a_failed_attempt_is_fenced(sink: Sink) -> None:
    """Also in a partition that it has not written to so far, and after the next attempt was committed."""
    late: list[TransactionWriter] = []

    def tasks(handle: TransactionHandle, partitions: int) -> list[WriterReceipt]:
        if not late:
            late.append(sink.writer(handle, 1))
            raise BufferFullError("as if a task were slow")
        return list(sink.tasks(b"x")(handle, partitions))

    transactions = sink.transactions()
    transactions.write(Batch("q", 0), tasks)
    late[0].send(sink.topic, b"late")
    with pytest.raises(ProducerFencedError):
        late[0].close()
    assert sink.committed() == [[b"x"]] * PARTITIONS
    transactions.close()


def test_two_timeouts_in_a_row_stop_a_batch(sink: Sink) -> None:
    transactions = sink.transactions(transaction_timeout_ms=1000, attempts=9)
    transactions.write(Batch("q", 0), sink.tasks(b"0", lambda run: time.sleep(1.6 * (run == 1))))
    assert sink.runs == 2
    with pytest.raises(TransactionTimedOutError, match="transaction_timeout_ms=1000 2 times in a row") as caught:
        transactions.write(Batch("q", 1), sink.tasks(b"1", lambda run: time.sleep(1.6)))
    assert caught.value.remedy == "stop"
    assert sink.runs == 4
    assert sink.committed() == [[b"0"]] * PARTITIONS


@pytest.mark.parametrize(
    ("error", "runs"), [(BufferFullError("full"), 3), (ValueError("row 7"), 1), (RuntimeError("a bug"), 1)]
)
def test_only_what_may_succeed_is_repeated(sink: Sink, error: Exception, runs: int) -> None:
    def fail(run: int) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        sink.transactions(attempts=3).write(Batch("q", 0), sink.tasks(b"x", fail))
    assert sink.runs == runs
    assert getattr(caught.value, "__notes__", [""])[0].endswith("visible to read_committed consumers") == (runs > 1)
    # Readers need not wait for the timeout of the transaction.
    assert sink.committed() == [[], []]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_becomes_an_error(sink: Sink, kind: type[BaseException]) -> None:
    def interrupt(run: int) -> None:
        raise kind

    with pytest.raises(ExactlyOnceError, match=f"batch 0: was interrupted by {kind.__name__} and is aborted"):
        sink.transactions().write(Batch("q", 0), sink.tasks(b"x", interrupt))
    assert sink.committed() == [[], []]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_a_batch_job(sink: Sink, kind: type[BaseException]) -> None:
    """A job with `version` in a thread may be called in foreachBatch, where only an Exception ends the query."""

    def interrupt(run: int) -> None:
        raise kind

    batch = Batch(VERSIONS, 0)
    with pytest.raises(kind) as caught:
        sink.transactions().write(batch, sink.tasks(b"x", interrupt))
    assert caught.value.__notes__[-1].endswith("version 0 is aborted")
    assert sink.committed() == [[], []]
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(sink.transactions().write, batch, sink.tasks(b"x", interrupt))
        with pytest.raises(ExactlyOnceError, match=f"version 0: was interrupted by {kind.__name__} and is aborted"):
            outcome.result()


def test_the_progress_goes_with_its_topic(sink: Sink) -> None:
    """A topic that was deleted and created again does not have the rows of the batches before."""
    transactions = sink.transactions()
    transactions.write(Batch("q", 0), sink.tasks(b"0"))
    with Admin(bootstrap_servers=sink.servers) as admin:
        admin.delete_topics([sink.topic])
    deadline = time.monotonic() + 20
    while True:
        try:
            sink.cluster.kafka.create_topic(sink.topic, partitions=PARTITIONS)
            break
        except KcodecError:  # it is still being deleted
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with pytest.raises(CheckpointMismatchError, match="the topic was created again"):
        sink.transactions().write(Batch("q", 1), sink.tasks(b"1"))
    transactions.close()


def test_a_process_that_was_replaced_stops(sink: Sink) -> None:
    first, second = sink.transactions(), sink.transactions()
    first.write(Batch("q", 0), sink.tasks(b"0"))
    second.write(Batch("q", 1), sink.tasks(b"1"))
    with pytest.raises(ExactlyOnceError, match="another process has taken over this application"):
        first.write(Batch("q", 2), sink.tasks(b"2"))
    second.write(Batch("q", 2), sink.tasks(b"2"))
    assert sink.committed() == [[b"0", b"1", b"2"]] * PARTITIONS
    second.close()
