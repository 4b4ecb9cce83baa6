# SPDX-License-Identifier: Apache-2.0
"""kafka-python on kcodec: its record classes, consumer and producer give what Kafka's own give."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import compat_cases as cases
import golden_data as golden
import kafka.consumer.fetcher as fetcher_module
import kafka.producer.record_accumulator as accumulator_module
import kafka.record.default_records as default_records
import kafka.record.memory_records as memory_records
import pytest
from batch_writer import RecordSpec, build_batch, control_batch, end_transaction_marker, fix_crc
from compat_cases import Client, batch_of, damaged, server
from kafka.consumer.subscription_state import SubscriptionState
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.consumer import FetchResponse, IsolationLevel
from kafka.structs import TopicPartition

import kcodec
import kcodec.compat.kafka_python as adapter
from kcodec import _fast

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
PATIENCE = 10  # seconds, for what must not hang


def consume(
    data: bytes, fetch_offset: int, isolation_level: str, aborted: cases.Aborted | None, check_crcs: bool = True
) -> tuple[list[Any], int]:
    """As kafka-python's Fetcher does with a response."""
    entries = [SimpleNamespace(producer_id=producer, first_offset=first) for producer, first in aborted or []]
    part = fetcher_module.Fetcher.PartitionRecords(
        fetch_offset,
        TP,
        memory_records.MemoryRecords(data),
        check_crcs=check_crcs,
        isolation_level=IsolationLevel.build_from(isolation_level),
        aborted_transactions=entries,
    )
    found: list[Any] = []
    while part:
        taken = part.take(7)
        found += taken
        if not taken:
            break
    return found, part.next_fetch_offset


@pytest.fixture
def client() -> Iterator[Client]:
    adapter.install()
    try:
        yield Client(
            adapter,
            "kafka",
            lambda data: memory_records.MemoryRecords(data),
            consume,
            (CorruptRecordError, UnsupportedCodecError),
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
    cases.assert_hostile_bytes_raise_what_is_expected(client, seed=12, count=2000)


def test_an_unknown_codec_has_its_own_error(client: Client) -> None:
    data = bytearray(batch_of(b"value"))
    data[22] = 6
    with pytest.raises(UnsupportedCodecError, match="compression id 6"):
        list(client.read(fix_crc(bytes(data))).next_batch())


def test_what_only_kafka_pythons_classes_have(client: Client) -> None:
    data = batch_of(b"one", b"three", producer_id=9, producer_epoch=1, base_sequence=2147483647)
    records = client.read(data + data[:20])
    assert (records.size_in_bytes(), records.valid_bytes()) == (len(data) + 20, len(data))
    (batch,) = records
    assert (batch.size_in_bytes, batch.leader_epoch, batch.last_offset, batch.records_count) == (len(data), 0, 1, 2)
    assert (batch.has_producer_id(), batch.has_sequence, batch.last_sequence) == (True, True, 0)
    first, second = batch
    assert (first.size_in_bytes, second.size_in_bytes) == (9, 11)
    assert first.validate_crc() is True
    assert isinstance(first, default_records.DefaultRecord)
    assert isinstance(batch, default_records.DefaultRecordBatch)
    assert pickle.loads(pickle.dumps(second)).value == b"three"
    plain = client.read(batch_of(b"x")).next_batch()
    assert (plain.has_producer_id(), plain.has_sequence, plain.last_sequence) == (False, False, -1)


def test_control_records_say_what_they_are(client: Client) -> None:
    for kind, commits in ((0, False), (1, True)):
        (record,) = client.read(end_transaction_marker(kind, producer_id=1, base_offset=0)).next_batch()
        assert (record.version, record.type, record.abort, record.commit) == (0, kind, not commits, commits)
    (other,) = client.read(control_batch(5, b"")).next_batch()
    assert (other.type, other.abort, other.commit) == (5, False, False)


def test_code_that_a_collection_runs_may_read_another_batch(client: Client) -> None:
    """Batches that were decoded together share the names of their headers, which are remembered from row to row."""
    random_rows = random.Random(0)
    headers = [tuple((b"%s%d" % (kind, place), b"v" * 40) for place in range(4)) for kind in (b"a", b"b")]
    rows = [RecordSpec(value=b"%d" % kind, headers=headers[kind]) for kind in random_rows.choices((0, 1), k=900)]
    records = client.read(b"".join(build_batch(rows[first : first + 300]) for first in (0, 300, 600)))
    outer, inner = iter(records.next_batch()), iter(records.next_batch())
    read_inside: list[tuple[bytes, list[str]]] = []

    def read_some(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            for record in itertools.islice(inner, random_rows.randrange(4)):
                read_inside.append((record.value, [name for name, _ in record.headers]))

    threshold = gc.get_threshold()
    gc.callbacks.append(read_some)
    gc.set_threshold(5)
    try:
        found = [(record.value, [name for name, _ in record.headers]) for record in outer]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(read_some)
    names = {b"%d" % kind: [name.decode() for name, _ in headers[kind]] for kind in (0, 1)}
    assert len(found) == 300 and read_inside
    assert [value for value, known in found + read_inside if known != names[value]] == []


# ---------------------------------------------------------------------------------------------- its consumer, running


class Consumer:
    """kafka-python's Fetcher with a broker that is a function of the fetch offset."""

    def __init__(self, logs: dict[TopicPartition, Callable[[int], bytes]]) -> None:
        self.logs = logs
        self.subscriptions = SubscriptionState()
        self.subscriptions.assign_from_user(list(logs))
        for tp in logs:
            self.subscriptions.seek(tp, 0)
        self.fetcher = fetcher_module.Fetcher(MagicMock(), self.subscriptions)

    def position(self, tp: TopicPartition) -> int:
        return int(self.subscriptions.assignment[tp].position.offset)

    def fetch(self) -> None:
        """A response for every partition of which nothing is in hand."""
        in_hand = (
            {self.fetcher._next_partition_records.topic_partition} if self.fetcher._next_partition_records else set()
        )
        in_hand |= {completed.topic_partition for completed in self.fetcher._completed_fetches}
        for tp, log in self.logs.items():
            if tp not in in_hand:
                data = FetchResponse.FetchableTopicResponse.PartitionData(
                    error_code=0, high_watermark=999, records=log(self.position(tp))
                )
                completed = fetcher_module.CompletedFetch(tp, self.position(tp), 11, data, None)
                self.fetcher._completed_fetches.append(completed)

    def poll(self, **options: Any) -> dict[TopicPartition, list[bytes]]:
        """One fetch and one poll, which has to come back."""
        self.fetch()
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(self.fetcher.fetched_records(**options)[0])
            except Exception as error:  # noqa: BLE001  raised again where the test looks for it
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert outcome, f"poll() did not come back in {PATIENCE} s"
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return {tp: [record.value for record in records] for tp, records in outcome[0].items()}


@pytest.mark.parametrize("most", [1, 500])
def test_records_before_corruption_come_and_then_it_is_raised_each_time(client: Client, most: int) -> None:
    good, bad, behind = batch_of(b"a", b"b"), damaged(batch_of(b"c", base_offset=2)), batch_of(b"d", base_offset=3)
    consumer = Consumer({TP: server(good, bad, behind)})
    found: list[bytes] = []
    while len(found) < 2:
        found += consumer.poll(max_records=most).get(TP, [])
    assert found == [b"a", b"b"]
    raised = 0
    for _ in range(6):
        try:
            assert consumer.poll(max_records=most) == {}
        except CorruptRecordError as error:
            raised += 1
            assert isinstance(error.__cause__, kcodec.CorruptBatchError)
        assert consumer.position(TP) == 2
    assert raised >= 3
    consumer.subscriptions.seek(TP, 3)
    delivered = [consumer.poll(max_records=most) for _ in range(3)]
    assert {TP: [b"d"]} in delivered


def test_corruption_in_one_partition_costs_another_nothing(client: Client) -> None:
    log = [batch_of(b"x%d" % at, base_offset=at) for at in range(3)]
    consumer = Consumer({TP: server(damaged(batch_of(b"c"))), OTHER: server(*log)})
    found, raised = [], 0
    for _ in range(12):
        try:
            for records in consumer.poll(max_records=1).values():
                found += records
        except CorruptRecordError:
            raised += 1
    assert found == [b"x0", b"x1", b"x2"]
    assert raised >= 2


def test_a_failing_deserializer_does_not_hang_the_consumer(client: Client) -> None:
    class Failing:
        def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
            if data == b"b":
                raise ValueError("not for me")
            return data

    consumer = Consumer({TP: server(batch_of(b"a", b"b", b"c"))})
    consumer.fetcher.config["value_deserializer"] = Failing()
    assert consumer.poll() == {TP: [b"a"]}
    with pytest.raises(ValueError, match="not for me"):
        consumer.poll()
    assert consumer.position(TP) == 1


def test_the_position_knows_its_leader_epoch_and_moves_past_what_gives_no_records(client: Client) -> None:
    marker = end_transaction_marker(1, producer_id=1, base_offset=2, partition_leader_epoch=8)
    consumer = Consumer({TP: server(batch_of(b"a", b"b", partition_leader_epoch=7), marker)})
    assert consumer.poll() == {TP: [b"a", b"b"]}
    position = consumer.subscriptions.assignment[TP].position
    assert (position.offset, position.leader_epoch) == (3, 8)


def test_consumer_records_hold_what_kafka_pythons_own_hold() -> None:
    data = b"".join(
        build_batch(golden_specs(), base_offset=at * 4, compression=codec, partition_leader_epoch=at)
        for at, codec in enumerate(("none", "gzip", "lz4"))
    )
    theirs, there = consume(data, 2, "read_uncommitted", None)
    adapter.install()
    try:
        ours, here = consume(data, 2, "read_uncommitted", None)
    finally:
        adapter.uninstall()
    assert (ours, here) == (theirs, there)
    assert [type(record) for record in ours] == [type(record) for record in theirs]


def golden_specs() -> list[Any]:
    from batch_writer import RecordSpec

    return [
        RecordSpec(key=None, value=b"v", timestamp_delta=-5),
        RecordSpec(key=b"", value=None, headers=((b"h", None), (b"\xc3\xa4", b"xyz"))),
        RecordSpec(key=b"k" * 70, value=b""),
        RecordSpec(key=b"k", value=b"v" * 9000, headers=((b"", b""),), timestamp_delta=1 << 40),
    ]


def test_bytes_read_are_those_of_the_records(client: Client) -> None:
    part = fetcher_module.Fetcher.PartitionRecords(0, TP, memory_records.MemoryRecords(batch_of(b"one", b"three")))
    assert len(part.take()) == 2
    assert (part.bytes_read, part.records_read) == (9 + 11, 2)


# ----------------------------------------------------------------------------------------------------------- writing


def build(rows: list[cases.Row], codec: int, *, batch_size: int = 1 << 20, producer: bool = False) -> bytes:
    builder = memory_records.MemoryRecordsBuilder(2, codec, batch_size)
    for at, (_, timestamp, _, key, value, headers) in enumerate(rows):
        before = builder.size_in_bytes()
        metadata = builder.append(timestamp, key, value, headers)
        if metadata is None:
            break
        assert (metadata.offset, metadata.timestamp, metadata.crc) == (at, timestamp, None)
        assert builder.size_in_bytes() == before + metadata.size
        delta = default_records.DefaultRecordBatchBuilder.size_in_bytes(at, timestamp - rows[0][1], key, value, headers)
        assert metadata.size == delta
    if producer:
        builder.set_producer_state(4000, 3, 17, True)
    builder.close()
    assert (builder.producer_id, builder.producer_epoch, builder.base_sequence) == (
        (4000, 3, 17) if producer else (-1, -1, -1)
    )
    return bytes(builder.buffer())


@pytest.mark.parametrize("producer", [False, True])
@pytest.mark.parametrize("batch_size", [1 << 20, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_has_the_bytes_that_kafka_pythons_own_builder_makes(seed: int, batch_size: int, producer: bool) -> None:
    rows = cases.rows_of(random.Random(seed), 30)
    theirs = build(rows, 0, batch_size=batch_size, producer=producer)
    adapter.install()
    try:
        ours = build(rows, 0, batch_size=batch_size, producer=producer)
    finally:
        adapter.uninstall()
    # theirs says leader epoch 0, Kafka's writer and ours -1; the broker writes its own there, and no CRC covers it
    assert ours == theirs[:12] + b"\xff\xff\xff\xff" + theirs[16:]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_written(codec: int, client: Client) -> None:
    rows = cases.rows_of(random.Random(codec), 200)
    data = build(rows, codec)
    assert cases.read_rows(data) == rows
    assert kcodec.batches(data)[0].compression == codec


def test_a_batch_that_compression_makes_larger_stays_as_it_is(client: Client) -> None:
    data = build([(0, cases.TIMESTAMP, 0, None, b"x", [])], 4)
    assert str(kcodec.batches(data)[0].compression) == "none"


def test_the_accumulator_fills_batches_hands_them_over_and_splits_them(client: Client) -> None:
    accumulator = accumulator_module.RecordAccumulator(batch_size=1 << 14, compression_attrs=4, message_version=2)
    for at in range(50):
        accumulator.append(TP, cases.TIMESTAMP + at, b"k", b"v%d" % at, [("h", b"x")])
    cluster = SimpleNamespace(partitions_for_broker=lambda node: [TP], leader_for_partition=lambda tp: 0)
    (batch,) = accumulator.drain(cluster, [0], 1 << 20)[0]
    assert [row[4] for row in cases.read_rows(batch.records.buffer())] == [b"v%d" % at for at in range(50)]
    assert accumulator.split_and_reenqueue(batch) == 2
    halves = []
    for _ in range(2):
        (half,) = accumulator.drain(cluster, [0], 1 << 20)[0]
        halves.append([row[4] for row in cases.read_rows(half.records.buffer())])
    assert halves == [[b"v%d" % at for at in range(25)], [b"v%d" % at for at in range(25, 50)]]


@pytest.mark.parametrize(
    "wrong", [{"key": "text"}, {"value": 5}, {"timestamp": "1"}, {"offset": "0"}, {"headers": [("h", "text")]}]
)
def test_a_value_of_a_wrong_type_is_a_type_error_and_leaves_the_batch_as_it_was(
    wrong: dict[str, Any], client: Client
) -> None:
    builder = default_records.DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1000)
    row = {"offset": 0, "timestamp": 5, "key": b"k", "value": b"v", "headers": [("h", b"x")]}
    with pytest.raises(TypeError):
        builder.append(**{**row, **wrong})
    builder.append(**row)
    assert len(kcodec.decode(builder.build())) == 1


# ----------------------------------------------------------------------------------------------------------- install


def test_install_and_uninstall_leave_no_trace() -> None:
    before = cases.snapshot("kafka")
    adapter.install()
    adapter.install()
    assert adapter.installed()
    assert memory_records.MemoryRecords is fetcher_module.MemoryRecords is accumulator_module.MemoryRecords
    assert issubclass(fetcher_module.MemoryRecords, _fast.ClientRecords)
    assert issubclass(memory_records.DefaultRecordBatchBuilder, _fast.ClientBatchBuilder)
    adapter.uninstall()
    adapter.uninstall()
    assert not adapter.installed()
    assert cases.snapshot("kafka") == before


def test_a_module_that_is_imported_in_between_is_put_right_too(monkeypatch: pytest.MonkeyPatch) -> None:
    original = memory_records.MemoryRecords
    late: Any = ModuleType("kafka.imported_late")
    adapter.install()
    try:
        exec("from kafka.record import MemoryRecords", vars(late))
        monkeypatch.setitem(sys.modules, late.__name__, late)
        assert late.MemoryRecords is memory_records.MemoryRecords is not original
    finally:
        adapter.uninstall()
    assert late.MemoryRecords is original


def test_a_client_that_is_not_there_or_is_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def __init__(self, buffer: Any, limits: Any) -> None: ...

    monkeypatch.setattr(default_records, "DefaultRecordBatch", Changed)
    with pytest.raises(
        ImportError, match=r"takes \(buffer, limits\) instead of .*pip install 'kafka-python==3\.0\.12'"
    ):
        adapter.install()
    assert not adapter.installed()
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(ImportError, match="pip install kafka-python"):
        adapter.install()


def test_importing_the_adapter_imports_no_client() -> None:
    code = "import sys, kcodec.compat.kafka_python; sys.exit('kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
