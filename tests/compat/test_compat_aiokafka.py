# SPDX-License-Identifier: Apache-2.0
"""aiokafka on kcodec: its record classes, consumer and producer give what Kafka's own give, and damage ends nothing."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiokafka.consumer.fetcher as fetcher_module
import aiokafka.producer.message_accumulator as accumulator_module
import aiokafka.record.default_records as default_records
import aiokafka.record.memory_records as memory_records
import compat_cases as cases
import golden_data as golden
import pytest
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.protocol.fetch import FetchResponse_v4
from aiokafka.structs import TopicPartition
from batch_writer import RecordSpec, build_batch, fix_crc
from compat_cases import Client, batch_of, damaged, server

import kcodec
import kcodec.compat.aiokafka as adapter
from kcodec import _fast

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


def consume(
    data: bytes, fetch_offset: int, isolation_level: str, aborted: cases.Aborted | None, check_crcs: bool = True
) -> tuple[list[Any], int]:
    """As aiokafka's Fetcher does with a response."""
    isolation = (
        fetcher_module.READ_COMMITTED if isolation_level == "read_committed" else fetcher_module.READ_UNCOMMITTED
    )
    records = memory_records.MemoryRecords(data)
    part = fetcher_module.PartitionRecords(TP, records, aborted, fetch_offset, None, None, check_crcs, isolation)
    return list(part), part.next_fetch_offset


@pytest.fixture
def client() -> Iterator[Client]:
    adapter.install()
    try:
        yield Client(
            adapter,
            "aiokafka",
            lambda data: memory_records.MemoryRecords(data),
            consume,
            (CorruptRecordException, UnsupportedCodecError),
        )
    finally:
        adapter.uninstall()


# ----------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("partition", golden.partitions(2) + golden.copies("killed"), ids=str)
def test_its_record_classes_tell_what_kafka_reads(partition: golden.Partition, client: Client) -> None:
    cases.assert_faces_tell_the_truth(client, partition)


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", [p for p in golden.partitions(2) if p.consumed("read_committed")], ids=str)
def test_its_consumer_delivers_what_kafkas_did(
    partition: golden.Partition, isolation_level: str, client: Client
) -> None:
    cases.assert_consumer_delivers(client, partition, isolation_level)


OLD_SETS = golden.legacy() + [
    (str(partition), path.read_bytes(), [batch for batch in partition.batches if batch["file"] == path.name])
    for partition in golden.partitions()
    if not partition.magics <= {2}
    for path in partition.segments
]


@pytest.mark.parametrize(("name", "data", "told"), OLD_SETS, ids=[f"{name}-{len(data)}" for name, data, _ in OLD_SETS])
def test_old_formats_and_mixtures(name: str, data: bytes, told: list[golden.Truth], client: Client) -> None:
    cases.assert_old_formats(client, name, data, told)


def test_what_other_readers_trip_over(client: Client) -> None:
    cases.assert_odd_bytes_are_read_as_java_reads_them(client)


def test_batches_in_any_order(client: Client) -> None:
    cases.assert_batches_may_be_taken_in_any_order(client)


def test_hostile_bytes(client: Client) -> None:
    cases.assert_hostile_bytes_raise_what_is_expected(client, seed=11, count=3000)


def test_consumer_records_have_the_fields_of_aiokafkas_own(client: Client) -> None:
    """They are made without ConsumerRecord.__init__: same class, same fields in the same order, equal and of equal
    types."""
    data = build_batch([RecordSpec(key=b"k", value=b"one", headers=((b"h", b"1"), (b"h", None))), RecordSpec()])
    (ours, _), _ = client.consume(data, 0, "read_uncommitted", None)
    adapter.uninstall()
    (theirs, _), _ = consume(data, 0, "read_uncommitted", None)
    assert type(ours) is type(theirs) and ours == theirs
    assert list(vars(ours)) == list(vars(theirs))
    assert [type(value) for value in vars(ours).values()] == [type(value) for value in vars(theirs).values()]


def test_the_consumer_gives_nothing_after_its_end(client: Client) -> None:
    """By `for` as by next(), from where the other one was."""
    records = memory_records.MemoryRecords(batch_of(b"one", b"two", b"three"))
    part = fetcher_module.PartitionRecords(TP, records, [], 0, None, None, True, fetcher_module.READ_UNCOMMITTED)
    assert next(part).value == b"one"
    for record in part:
        assert record.value == b"two" and part.next_fetch_offset == 2
        break
    assert next(part).value == b"three" and next(part, None) is None
    assert list(part) == [] and part.next_fetch_offset == 3


def test_records_with_headers_have_lists_of_their_own(client: Client) -> None:
    data = build_batch([RecordSpec(headers=((b"h", b"1"),)), RecordSpec(headers=((b"h", b"1"),))])
    one, two = list(client.read(data).next_batch())
    assert one.headers == [("h", b"1")] and one.headers is one.headers
    one.headers.append(("added", b""))
    assert one.headers == [("h", b"1"), ("added", b"")] and two.headers == [("h", b"1")]


#: Names of the headers of consecutive records, which differ in one way from those before.
HEADER_NAMES: list[list[str]] = [
    ["ab", "c"], ["a", "bc"], ["abc", ""], ["", "abc"], ["abc"], [], ["abd"], ["abc", "x"], ["abc", "y"], ["abc", "y"],
    ["traceparent", "source"], ["traceparent", "sourcd"], ["tracepArent", "source"], ["Traceparent", "source"],
    ["n" * 8], ["m" + "n" * 7], ["n" * 7 + "m"], ["n" * 16], ["n" * 8 + "m" + "n" * 7], ["n" * 17], ["n" * 16 + "m"],
    *(["n"] * count for count in (7, 8, 9, 8, 7)), ["naïve"], ["naive"], ["naive", "naive"],
]  # fmt: skip


def test_header_names_are_those_of_each_record(client: Client) -> None:
    """Names are found by one comparison with those of the record before."""
    rows = [[(name, b"%d" % at) for name in names] for at, names in enumerate(HEADER_NAMES * 2)]
    data = build_batch([RecordSpec(headers=tuple((name.encode(), value) for name, value in row)) for row in rows])
    assert [record.headers for record in client.read(data).next_batch()] == rows
    assert [list(record.headers) for record in client.consume(data, 0, "read_uncommitted", None)[0]] == rows


def test_each_record_without_headers_has_a_list_of_its_own(client: Client) -> None:
    one, two = client.read(batch_of(b"one", b"two")).next_batch()
    assert one.headers == two.headers == [] and one.headers is one.headers
    one.headers.append(("added", b""))
    assert one.headers == [("added", b"")] and two.headers == []


def test_an_unknown_codec_has_its_own_error(client: Client) -> None:
    edited = bytearray(batch_of(b"value"))
    edited[22] = 6
    data = fix_crc(bytes(edited))
    with pytest.raises(UnsupportedCodecError, match="compression id 6"):
        list(client.read(data).next_batch())
    with pytest.raises(UnsupportedCodecError, match="compression id 6"):
        client.consume(data, 0, "read_uncommitted", None)


def test_a_batch_from_its_bytes_alone(client: Client) -> None:
    batch = default_records.DefaultRecordBatch(bytearray(batch_of(b"one", b"two")))
    assert next(batch).value == b"one"
    assert [record.value for record in batch] == [b"two"]
    for cut in (b"", b"\x00" * 26, batch_of(b"one")[:60]):
        with pytest.raises(CorruptRecordException):
            default_records.DefaultRecordBatch(cut)


# ---------------------------------------------------------------------------------------------- its consumer, running


class Consumer:
    """aiokafka's Fetcher with a broker that is a function of the fetch offset."""

    def __init__(self, logs: dict[TopicPartition, Callable[[int], bytes]], **options: Any) -> None:
        self.logs = logs
        self.subscriptions = SubscriptionState()
        self.subscriptions.assign_from_user(set(logs))
        for tp in logs:
            self.subscriptions.seek(tp, 0)
        loop = asyncio.get_running_loop()
        client = SimpleNamespace(_loop=loop, _metadata_max_age_ms=1000, send=self.answer)
        self.fetcher = fetcher_module.Fetcher(client, self.subscriptions, prefetch_backoff=0, **options)
        self.fetcher._fetch_task.cancel()

    def position(self, tp: TopicPartition) -> int:
        return int(self.subscriptions.subscription.assignment.state_value(tp).position)

    async def answer(self, node: int, request: Any) -> Any:
        """The response, through aiokafka's own encoder and decoder."""
        partitions: list[tuple[Any, ...]] = [
            (tp.partition, 0, 999, 999, [], self.logs[tp](self.position(tp))) for tp in self.logs
        ]
        return FetchResponse_v4.decode(FetchResponse_v4(0, [("orders", partitions)]).encode())

    async def poll(self, **options: Any) -> dict[TopicPartition, list[bytes]]:
        """One fetch of what is not fetched yet, and one getmany()."""
        missing = [(tp.partition, self.position(tp), 1000) for tp in self.logs if tp not in self.fetcher._records]
        if missing:
            logs = self.logs
            self.logs = {tp: log for tp, log in logs.items() if tp not in self.fetcher._records}
            assignment = self.subscriptions.subscription.assignment
            await self.fetcher._proc_fetch_request(assignment, 0, SimpleNamespace(topics=[("orders", missing)]))
            self.logs = logs
        polled = await self.fetcher.fetched_records([], timeout=0, **options)
        return {tp: [record.value for record in records] for tp, records in polled.items()}


@pytest.mark.parametrize("by_one", [False, True])
def test_records_before_corruption_come_and_then_it_is_raised_each_time(client: Client, by_one: bool) -> None:
    async def run() -> None:
        good, bad, behind = batch_of(b"a", b"b"), damaged(batch_of(b"c", base_offset=2)), batch_of(b"d", base_offset=3)
        consumer = Consumer({TP: server(good, bad, behind)})
        if by_one:
            assert await consumer.poll(max_records=1) == {TP: [b"a"]}
            assert await consumer.poll(max_records=1) == {TP: [b"b"]}
            assert await consumer.poll(max_records=1) == {}
        else:
            assert await consumer.poll() == {TP: [b"a", b"b"]}
        for _ in range(3):
            with pytest.raises(CorruptRecordException) as caught:
                await consumer.poll()
            assert consumer.position(TP) == 2
        assert isinstance(caught.value.__cause__, kcodec.CorruptBatchError)
        consumer.subscriptions.seek(TP, 3)
        assert await consumer.poll() == {TP: [b"d"]}

    asyncio.run(run())


def test_corruption_in_one_partition_costs_another_nothing(client: Client) -> None:
    async def run() -> None:
        log = [batch_of(b"x%d" % at, base_offset=at) for at in range(3)]
        consumer = Consumer({OTHER: server(*log), TP: server(damaged(batch_of(b"c")))})
        found, raised = [], 0
        for _ in range(6):
            try:
                for records in (await consumer.poll(max_records=1)).values():
                    found += records
            except CorruptRecordException:
                raised += 1
        assert found == [b"x0", b"x1", b"x2"]
        assert raised >= 2

    asyncio.run(run())


def test_an_error_that_a_seek_has_made_stale_is_not_raised(client: Client) -> None:
    async def run() -> None:
        consumer = Consumer({TP: server(damaged(batch_of(b"c")), batch_of(b"d", base_offset=1))})
        await consumer.fetcher._proc_fetch_request(
            consumer.subscriptions.subscription.assignment, 0, SimpleNamespace(topics=[("orders", [(0, 0, 1000)])])
        )
        consumer.subscriptions.seek(TP, 1)
        assert await consumer.fetcher.fetched_records([], timeout=0) == {}
        assert await consumer.poll() == {TP: [b"d"]}

    asyncio.run(run())


def test_without_check_crcs_a_wrong_crc_is_delivered_as_before(client: Client) -> None:
    records, position = client.consume(damaged(batch_of(b"ab")), 0, "read_uncommitted", None, False)
    assert (len(records), position) == (1, 1)


def test_deserializers_are_called_once_a_record_and_sizes_are_of_the_bytes(client: Client) -> None:
    calls: list[bytes | None] = []

    def read(value: bytes | None) -> str:
        calls.append(value)
        return repr(value)

    data = memory_records.MemoryRecords(batch_of(b"a", b"bc"))
    (first, second) = fetcher_module.PartitionRecords(TP, data, [], 0, read, read, True, 0)
    assert (first.value, second.value, second.key, second.serialized_value_size) == ("b'a'", "b'bc'", "None", 2)
    assert calls == [None, b"a", None, b"bc"]


# ----------------------------------------------------------------------------------------------------------- writing


def build(rows: list[cases.Row], codec: int, *, batch_size: int = 1 << 20, producer: bool = False) -> tuple[Any, bytes]:
    builder = default_records.DefaultRecordBatchBuilder(2, codec, int(producer), -1, -1, 0, batch_size)
    for offset, timestamp, _, key, value, headers in rows:
        size = builder.size_in_bytes(offset, timestamp, key, value, headers)
        before = builder.size()
        metadata = builder.append(offset, timestamp, key, value, headers)
        if metadata is None:
            break
        assert (metadata.offset, metadata.size, metadata.timestamp, metadata.crc) == (offset, size, timestamp, None)
        assert builder.size() == before + size
    if producer:
        builder.set_producer_state(4000, 3, 17)
        assert (builder.producer_id, builder.producer_epoch, builder.base_sequence) == (4000, 3, 17)
    return builder, bytes(builder.build())


@pytest.mark.parametrize("producer", [False, True])
@pytest.mark.parametrize("batch_size", [1 << 20, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_has_the_bytes_that_aiokafkas_own_builder_makes(seed: int, batch_size: int, producer: bool) -> None:
    rows = cases.rows_of(random.Random(seed), 30)
    theirs = build(rows, 0, batch_size=batch_size, producer=producer)[1]
    adapter.install()
    try:
        ours = build(rows, 0, batch_size=batch_size, producer=producer)[1]
    finally:
        adapter.uninstall()
    assert ours == theirs


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_written(codec: int, client: Client) -> None:
    rows = cases.rows_of(random.Random(codec), 200)
    data = build(rows, codec)[1]
    assert cases.read_rows(data) == rows
    assert kcodec.batches(data)[0].compression == codec


def test_the_accumulator_fills_batches_and_hands_them_over(client: Client) -> None:
    async def run() -> None:
        cluster = SimpleNamespace(leader_for_partition=lambda tp: 0)
        transactions = SimpleNamespace(
            transactional_id="t",
            producer_id=7,
            producer_epoch=1,
            has_pid=lambda: True,
            sequence_number=lambda tp: 100,
            increment_sequence_number=lambda tp, count: None,
            maybe_add_partition_to_txn=lambda tp: None,
        )
        accumulator = accumulator_module.MessageAccumulator(cluster, 1 << 14, 4, 30, txn_manager=transactions)
        for at in range(50):
            await accumulator.add_message(TP, b"k", b"v%d" % at, timeout=1, headers=[("h", b"x")])
        nodes, _ = accumulator.drain_by_nodes(ignore_nodes=[])
        data = bytes(nodes[0][TP].get_data_buffer())
        decoded = list(kcodec.decode(data).records())
        assert [record.value for record in decoded] == [b"v%d" % at for at in range(50)]
        assert [record.sequence for record in decoded] == list(range(100, 150))
        batch = kcodec.batches(data)[0]
        assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (7, 1, True)
        nodes[0][TP].done_noack()

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong", [{"key": "text"}, {"value": 5}, {"timestamp": "1"}, {"offset": "0"}, {"headers": [("h", "text")]}]
)
def test_a_value_of_a_wrong_type_is_a_type_error_and_leaves_the_batch_as_it_was(
    wrong: dict[str, Any], client: Client
) -> None:
    builder = default_records.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1000)
    row = {"offset": 0, "timestamp": 5, "key": b"k", "value": b"v", "headers": [("h", b"x")]}
    with pytest.raises(TypeError):
        builder.append(**{**row, **wrong})
    builder.append(**row)
    assert len(kcodec.decode(builder.build())) == 1


# ----------------------------------------------------------------------------------------------------------- install


def test_install_and_uninstall_leave_no_trace() -> None:
    before = cases.snapshot("aiokafka")
    adapter.install()
    adapter.install()
    assert adapter.installed()
    assert memory_records.MemoryRecords is fetcher_module.MemoryRecords
    assert issubclass(fetcher_module.MemoryRecords, _fast.ClientRecords)
    assert issubclass(accumulator_module.DefaultRecordBatchBuilder, _fast.ClientBatchBuilder)
    adapter.uninstall()
    adapter.uninstall()
    assert not adapter.installed()
    assert cases.snapshot("aiokafka") == before


def test_a_client_that_is_not_there_or_is_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def __init__(self, tp: Any, batches: Any) -> None: ...

    monkeypatch.setattr(fetcher_module, "PartitionRecords", Changed)
    with pytest.raises(ImportError, match=r"takes \(tp, batches\) instead of .*pip install 'aiokafka==0\.14\.0'"):
        adapter.install()
    monkeypatch.delattr(fetcher_module, "PartitionRecords")
    with pytest.raises(ImportError, match=r"PartitionRecords.__init__ is missing"):
        adapter.install()
    assert not adapter.installed()
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(ImportError, match="pip install aiokafka"):
        adapter.install()


def test_importing_the_adapter_imports_no_client() -> None:
    code = "import sys, kcodec.compat.aiokafka; sys.exit('aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
