# SPDX-License-Identifier: Apache-2.0
"""Cases for both adapters of kcodec.compat, for test_compat_aiokafka.py and test_compat_kafka_python.py.

Client(adapter, package, read, consume, errors)    one client with its adapter in place
aborted_below_stable(partition) -> (data, aborted)          a log as read_committed gets it from a broker
assert_faces_tell_the_truth, assert_consumer_delivers, ...  the cases, each for one client
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import edits
from batch_writer import RecordSpec, build_batch
from golden_data import Partition, Truth, same_bytes, same_headers

import kcodec
from kcodec.errors import KcodecError

Aborted = list[tuple[int, int]]
Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
TIMESTAMP = 1_750_000_000_000


@dataclass(frozen=True)
class Client:
    """One client with kcodec behind it.

    read(data):  its record set.
    consume(data, fetch_offset, isolation_level, aborted, check_crcs): the result of its consumer for the bytes of one
                 Fetch response, as (records, next position). Corruption is raised if nothing was delivered before it.
    errors:      exception classes that its consumer expects for corruption.
    """

    adapter: Any
    package: str
    read: Callable[[bytes], Any]
    consume: Callable[..., tuple[list[Any], int]]
    errors: tuple[type[Exception], ...]


# Reading.


def assert_record(record: Any, told: Truth, timestamp_type: str) -> None:
    """Check a record of either client, from a batch or from the consumer."""
    assert record.offset == told["offset"]
    assert record.timestamp == told["timestamp"]
    assert record.timestamp_type == ("CreateTime", "LogAppendTime").index(told.get("timestampType", timestamp_type))
    assert same_bytes(record.key, told["key"])
    assert same_bytes(record.value, told["value"])
    assert same_headers(record.headers, told["headers"])
    assert record.checksum is None


def assert_faces_tell_the_truth(client: Client, partition: Partition) -> None:
    """Check every header field and record of a log read by the client's own record classes."""
    for path in partition.segments:
        records = client.read(path.read_bytes())
        for told in (batch for batch in partition.batches if batch["file"] == path.name):
            assert records.has_next() is True
            batch = records.next_batch()
            assert (batch.base_offset, batch.next_offset) == (told["baseOffset"], told["lastOffset"] + 1)
            assert (batch.magic, batch.crc, batch.attributes) == (told["magic"], told["crc"], told["attributes"])
            assert batch.last_offset_delta == told["lastOffsetDelta"]
            assert (batch.first_timestamp, batch.max_timestamp) == (told["baseTimestampField"], told["maxTimestamp"])
            assert (batch.producer_id, batch.producer_epoch) == (told["producerId"], told["producerEpoch"])
            assert batch.base_sequence == told["baseSequence"]
            assert batch.is_transactional is told["isTransactional"]
            assert batch.is_control_batch is told["isControl"]
            assert batch.timestamp_type == ("CreateTime", "LogAppendTime").index(told["timestampType"])
            assert kcodec.Compression(batch.compression_type) == told["compression"]
            assert batch.validate_crc() is told["valid"]
            for record, told_record in zip(list(batch), told["records"], strict=True):
                assert_record(record, told_record, told["timestampType"])
        assert records.has_next() is False
        assert records.next_batch() is None


def assert_old_formats(client: Client, name: str, data: bytes, told: list[Truth]) -> None:
    """Check that the record classes and the consumer read mixed magic 0, 1 and 2 as Kafka's classes do."""
    errors = [line for line in told if "error" in line]
    expected = [(record, batch) for batch in told for record in batch.get("records", ())]
    found: list[Any] = []
    records = client.read(data)
    try:
        while records.has_next():
            batch = records.next_batch()
            if not batch.validate_crc():
                raise client.errors[0]("wrong CRC") from KcodecError()
            found += [(record, batch) for record in batch]
    except client.errors as error:
        assert errors and isinstance(error.__cause__, KcodecError), name
    else:
        assert not errors, name
    assert [record.offset for record, _ in found] == [record["offset"] for record, _ in expected]
    for (record, batch), (told_record, told_batch) in zip(found, expected, strict=True):
        is_old = told_batch["magic"] == 0
        if told_record["timestamp"] != -1:
            kinds = {"CreateTime": 0, "LogAppendTime": 1}
            assert record.timestamp == told_record["timestamp"]
            assert is_old or record.timestamp_type == kinds[told_batch["timestampType"]]
        else:
            assert record.timestamp is None or (not is_old and record.timestamp == -1)
        assert same_bytes(record.key, told_record["key"]) and same_bytes(record.value, told_record["value"])
        assert same_headers(record.headers, told_record["headers"])
        assert batch.next_offset == told_batch["lastOffset"] + 1
        if told_batch["magic"] < 2:
            assert batch.is_control_batch is batch.is_transactional is False
            assert record.checksum == told_batch["crc"] or told_batch["compression"] != "none"
    first = told[0].get("baseOffset", 0) if told else 0
    try:
        consumed, position = client.consume(data, first, "read_committed", [])
    except client.errors as error:
        assert errors and isinstance(error.__cause__, KcodecError), name
    else:
        offsets = [record["offset"] for record, _ in expected]
        rising = [at for place, at in enumerate(offsets) if at >= first and at > max([-1, *offsets[:place]])]
        assert [record.offset for record in consumed] == rising, name
        assert not rising or position > rising[-1]


def aborted_below_stable(partition: Partition) -> tuple[bytes, Aborted]:
    """Return what a broker sends under read_committed: the batches below the last stable offset, and the aborted
    transactions."""
    begun: dict[int, int] = {}
    aborted: Aborted = []
    for batch in partition.batches:
        if not batch["isTransactional"]:
            continue
        if batch["isControl"]:
            first = begun.pop(batch["producerId"], None)
            if first is not None and batch["records"][0]["control"]["typeId"] == 0:
                aborted.append((batch["producerId"], first))
        elif batch["count"]:
            begun.setdefault(batch["producerId"], batch["baseOffset"])
    stable = min(begun.values(), default=None)
    data = partition.log
    if stable is not None:
        data = data[: next(batch.position for batch in kcodec.batches(data) if batch.last_offset >= stable)]
    random.Random(partition.name).shuffle(aborted)
    return data, aborted


def assert_consumer_delivers(client: Client, partition: Partition, isolation_level: str) -> None:
    """Check that the client's consumer delivers the same records as Kafka's, and ends after the last batch."""
    told = partition.consumed(isolation_level)
    assert told is not None
    data, aborted = partition.log, None
    if isolation_level == "read_committed":
        data, aborted = aborted_below_stable(partition)
    records, position = client.consume(data, partition.log_start_offset, isolation_level, aborted)
    assert [record.offset for record in records] == [record["offset"] for record in told]
    for record, told_record in zip(records, told, strict=True):
        assert_record(record, told_record, "CreateTime")
        assert record.serialized_key_size == (-1 if record.key is None else len(record.key))
        assert record.serialized_value_size == (-1 if record.value is None else len(record.value))
    last = [batch.next_offset for batch in kcodec.batches(data)][-1:]
    assert position == (last[0] if last else partition.log_start_offset)


# Corruption.


def batch_of(*values: bytes, base_offset: int = 0, **header: Any) -> bytes:
    return build_batch([RecordSpec(value=value) for value in values], base_offset=base_offset, **header)


def read_all(records: Any) -> int:
    """Call everything that a consumer may call on a record set. Return the number of its records."""
    count = 0
    while records.has_next():
        batch = records.next_batch()
        batch.validate_crc()
        for record in batch:
            count += 1
            assert record.offset is not None and len(record.headers) >= 0
    assert records.next_batch() is None
    return count


def assert_hostile_bytes_raise_what_is_expected(client: Client, seed: int, count: int) -> None:
    """Check edited record sets: the record classes and the consumer return records or raise the client's own error, and
    agree about corruption."""
    draw = random.Random(seed)
    specs = [RecordSpec(key=b"k", value=b"v" * 40, headers=((b"name", b"x"), (b"n", None)))] * 3
    sets = [
        build_batch(specs, base_offset=5, compression=codec) + build_batch(specs, base_offset=20, compression=codec)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    ]
    for _ in range(count):
        name, data = edits.random_edit(draw, draw.choice(sets))
        whole = kcodec.decode(data, control_records="include", on_error="stop", check_crcs=False)
        try:
            assert read_all(client.read(data)) == len(whole) and whole.error is None, name
        except client.errors as error:
            assert isinstance(error.__cause__, KcodecError), name
            assert whole.error is not None or isinstance(error.__cause__, kcodec.CorruptBatchError), name
        try:
            records, position = client.consume(data, 5, draw.choice(["read_uncommitted", "read_committed"]), [])
        except client.errors as error:
            assert isinstance(error.__cause__, KcodecError), name
        else:
            assert position >= max([5, *(record.offset + 1 for record in records)]), name


def server(*batches: bytes) -> Callable[[int], bytes]:
    """Return what a broker sends for a fetch offset: the batch that contains it, and the following ones. Corrupt
    batches keep their offsets."""
    ends = [int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") for batch in batches]

    def fetch(offset: int) -> bytes:
        return b"".join(batch for batch, end in zip(batches, ends, strict=True) if end >= offset)

    return fetch


def damaged(batch: bytes) -> bytes:
    """Return the batch with a changed byte in its last record, so that its CRC is wrong."""
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


# Cases that other readers handle incorrectly.


def assert_odd_bytes_are_read_as_java_reads_them(client: Client) -> None:
    """Attribute bits of a record, header names that are not UTF-8, bytes behind a gzip stream."""
    odd = RecordSpec(key=b"k", value=b"v", attributes=0x80 - 0x100, headers=((b"\xff\xfe", b"x"),))
    (record,) = client.read(build_batch([odd])).next_batch()
    assert (record.key, record.value, record.headers) == (b"k", b"v", [("\udcff\udcfe", b"x")])
    plain = build_batch([RecordSpec(value=b"one"), RecordSpec(value=b"two")], compression="gzip")
    longer = build_batch(
        [], compression="gzip", payload=plain[61:] + b"behind", records_count=2, last_offset_delta=1, base_timestamp=0
    )
    assert [record.value for record in client.read(longer).next_batch()] == [b"one", b"two"]


def assert_batches_may_be_taken_in_any_order(client: Client) -> None:
    """Check that records decoded ahead belong to their batch, even if batches before it were skipped."""
    data = b"".join(
        build_batch(
            [RecordSpec(value=b"%d" % (at * 3 + record)) for record in range(3)],
            base_offset=at * 3,
            compression=codec,
        )
        for at, codec in enumerate(("none", "zstd", "none", "lz4", "none", "gzip"))
    )
    orders: list[list[int]] = [list(range(6)), [5, 4, 3, 2, 1, 0], [3, 0, 5, 1], [0, 5, 0, 2]]
    for order in orders:
        records = client.read(data)
        batches = [records.next_batch() for _ in range(6)]
        read: set[int] = set()
        for at in order:
            told = [] if at in read else [b"%d" % (at * 3 + record) for record in range(3)]
            assert [record.value for record in batches[at]] == told, order
            read.add(at)


# install().


def modules_of(package: str) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            yield module


def snapshot(package: str) -> dict[tuple[str, str], int]:
    """Return the objects of all names in the loaded modules of a package and in their classes."""
    found = {}
    for module in modules_of(package):
        for name, value in vars(module).items():
            found[module.__name__, name] = id(value)
            if isinstance(value, type) and value.__module__.startswith(package):
                found |= {(f"{value.__module__}.{value.__qualname__}", key): id(v) for key, v in vars(value).items()}
    return found


def rows_of(draw: random.Random, count: int) -> list[Row]:
    """Records as producers make them."""
    return [
        (
            at,
            TIMESTAMP + draw.randrange(-500, 5000),
            0,
            draw.choice([None, b"", draw.randbytes(draw.randrange(80))]),
            draw.choice([None, b"", draw.randbytes(draw.randrange(300))]),
            [
                (draw.choice(["", "h", "ä\u20ac"]), draw.choice([None, b"", b"x" * 70]))
                for _ in range(draw.randrange(4))
            ],
        )
        for at in range(count)
    ]


def read_rows(data: bytes) -> Sequence[Row]:
    return [
        (record.offset, record.timestamp, int(record.timestamp_type), record.key, record.value, list(record.headers))
        for record in kcodec.decode(data).records()
    ]
