# SPDX-License-Identifier: Apache-2.0
"""Messages of magic 0 and 1 (golden legacy/, and made ones): records, headers, offsets, what is refused."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import golden_data
import pyarrow as pa
import pytest
from batch_writer import RecordSpec, build_batch, end_transaction_marker
from compare import BINARY_TYPES, COLUMNS, Way, difference_of
from edits import every_bit, every_cut, every_header_value
from golden_data import Truth, same_bytes
from legacy_strategies import damaged_message, random_messages, random_wrapper, random_wrong_wrapper
from legacy_writer import MessageSpec, build_message, build_wrapper
from opened_logs import open_log
from strategies import Log, random_options

import kcodec
from kcodec import Compression, DecodeLimits, TimestampType

GOLDEN = golden_data.legacy()
FIELDS = {
    "position": "position",
    "size": "size_in_bytes",
    "magic": "magic",
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "crc": "crc",
    "compression": "compression",
    "timestampType": "timestamp_type",
    "maxTimestamp": "max_timestamp",
    "deleteHorizonMs": "delete_horizon_ms",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "lastSequence": "last_sequence",
    "isTransactional": "is_transactional",
    "isControl": "is_control_batch",
    "partitionLeaderEpoch": "partition_leader_epoch",
    "count": "records_count",
}
# What Kafka says, and the class and words of ours.
REFUSED: dict[str, tuple[type[kcodec.DecodeError], str]] = {
    "bad-empty-inner": (kcodec.DecodeError, "contains no whole message"),
    "bad-inner-crc": (kcodec.CorruptBatchError, "in a message inside"),
    "bad-nested": (kcodec.DecodeError, "itself compressed"),
    "bad-null-wrapper": (kcodec.DecodeError, "has no value"),
    "bad-offset-below-inner": (kcodec.DecodeError, "offset 2 of a compressed message is below 4"),
    "bad-v1-crc": (
        kcodec.CorruptBatchError,
        "does not match the CRC of the bytes, 0x22423f53",
    ),
    "bad-v1-gzip-crc": (kcodec.CorruptBatchError, "the stored CRC 0x49063c46 does not match"),
    "bad-zstd": (kcodec.UnsupportedError, "compression id 4"),
}
BATCH = build_batch([RecordSpec(value=b"of magic 2")], base_offset=500)
SPECS = [MessageSpec(b"k%d" % at, b"value %d" % at * 3, timestamp=1000 + at) for at in range(4)]


def same_record(record: kcodec.Record, reported: Truth) -> bool:
    return (
        (record.offset, record.timestamp, record.sequence, record.headers)
        == (reported["offset"], reported["timestamp"], reported["sequence"], ())
        and same_bytes(record.key, reported["key"])
        and same_bytes(record.value, reported["value"])
    )


@pytest.mark.parametrize("name, data, truth", GOLDEN, ids=[name for name, _, _ in GOLDEN])
def test_golden_sets_are_read_as_kafka_reads_them(name: str, data: bytes, truth: list[Truth]) -> None:
    whole = [line for line in truth if "records" in line]
    records = [record for line in whole for record in line["records"]]
    decoded = kcodec.decode(data, columns=COLUMNS, on_error="stop")
    assert len(decoded) == len(records)
    assert all(map(same_record, decoded.records(), records))
    types = [line["timestampType"] for line in whole for _ in line["records"]]
    assert [str(record.timestamp_type) for record in decoded.records()] == types
    numbers = [int(TimestampType(kind)) for kind in types]
    assert list(decoded.column("timestamp_type")) == numbers
    assert list(decoded.column("base_offset")) == [line["baseOffset"] for line in whole for _ in line["records"]]
    trailing = [line["trailingBytes"] for line in truth if "trailingBytes" in line]
    refused = [line for line in truth if "error" in line]
    assert (name in REFUSED) == bool(refused)
    if refused:
        kind, words = REFUSED[name]
        assert type(decoded.error) is kind
        assert words in str(decoded.error)
        assert decoded.error.position == refused[0]["position"] == len(data) - decoded.remaining_bytes
    else:
        assert decoded.error is None
        assert decoded.remaining_bytes == sum(trailing)
        assert decoded.next_offset == max(record["offset"] for record in records) + 1


@pytest.mark.parametrize("name, data, truth", GOLDEN, ids=[name for name, _, _ in GOLDEN])
def test_headers_are_those_of_kafka(name: str, data: bytes, truth: list[Truth]) -> None:
    batches = kcodec.batches(data)
    reported = [line for line in truth if "records" in line]
    for batch, line in zip(batches, reported, strict=False):
        assert {key: getattr(batch, mine) for key, mine in FIELDS.items() if key in line} == {
            key: line[key] for key in FIELDS if key in line
        }
        assert batch.is_valid()
        assert batch.next_offset == batch.last_offset + 1
        assert batch.base_timestamp == batch.max_timestamp or batch.magic == 2
        assert all(map(same_record, batch.records(), line["records"]))
        assert pickle.loads(pickle.dumps(batch)) == batch
        assert f"..{batch.last_offset} " in repr(batch)
    assert len(batches) == len(reported) + any("error" in line for line in truth)


def test_what_old_formats_do_not_know() -> None:
    plain, wrapper = kcodec.batches(build_message(SPECS[0], 7) + build_wrapper(SPECS, base_offset=8, attributes=0x78))
    assert (plain.records_count, plain.attributes, plain.base_offset) == (None, 0, 7)
    assert (wrapper.records_count, wrapper.attributes, wrapper.last_offset_delta) == (None, 0x79, 3)
    assert (wrapper.base_offset, wrapper.last_offset) == (8, 11)
    assert wrapper.compression is Compression.GZIP
    assert wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in wrapper.records()] == [1003] * 4
    table = kcodec.batches(build_message(SPECS[0], 7) + BATCH).to_numpy()
    assert list(table["records_count"]) == [-1, 1]
    assert list(table["magic"]) == [1, 2]


def test_the_base_offset_of_a_wrapper_takes_opening_it() -> None:
    batch = kcodec.batches(build_message(MessageSpec(None, b"no stream", attributes=1), 9))[0]
    assert (batch.base_offset, batch.last_offset) == (9, 9)  # this one cannot be
    header = kcodec._fast.header_at(build_wrapper(SPECS, base_offset=5)[:40])
    assert header is not None and header.last_offset == 8
    with pytest.raises(kcodec.TruncatedError):
        header.base_offset  # noqa: B018  it is the reading that is refused


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_layout_and_way_of_asking_gives_the_same(codec: str, magic: int) -> None:
    specs = [MessageSpec(None, b"x" * 700, magic), MessageSpec(b"", None, magic), MessageSpec(b"k" * 13, b"", magic)]
    data = build_message(specs[0], 4) + build_wrapper(specs, magic=magic, compression=codec, base_offset=5) + BATCH
    data *= 3
    ways = [Way(binary_type=kind, through_arrow=through) for kind in BINARY_TYPES for through in (False, True)]
    ways += [Way(threads=2), Way(columns=("value",)), Way(columns=("timestamp_type", "offset"), buffer="slice")]
    assert difference_of(data, {}, ways) is None
    columns = kcodec.decode(data, columns=COLUMNS)
    assert list(columns.column("producer_id"))[:4] == [-1] * 4
    assert list(columns.column("sequence"))[:4] == [-1] * 4
    assert list(columns.column("headers"))[:4] == [()] * 4
    assert pickle.loads(pickle.dumps(columns)) == columns


def test_many_wrappers_on_threads_give_the_same_in_order() -> None:
    chooser = random.Random(3)
    specs = [MessageSpec(None, chooser.randbytes(30_000)) for _ in range(8)]
    data = b"".join(build_wrapper(specs, compression="lz4", base_offset=8 * at) for at in range(12))
    data += b"".join(build_message(spec, 96 + at) for at, spec in enumerate(specs))
    one, two = kcodec.decode(data, columns=COLUMNS), kcodec.decode(data, columns=COLUMNS, threads=2)
    assert list(one.column("offset")) == list(range(104))
    assert pa.table(one).equals(pa.table(two))
    assert (one.counts, one.next_offset) == (two.counts, two.next_offset) == (kcodec.Counts(20, records=104), 104)


# ------------------------------------------------------------------------------------------------------------- offsets


def test_a_wrapper_of_offset_0_takes_no_reader_back() -> None:
    says_nothing = build_wrapper(SPECS, offset=0)
    for before, expected in ((b"", 4), (build_message(SPECS[0], 70), 71), (BATCH, 501)):
        for threads in (1, 2):
            decoded = kcodec.decode(before + says_nothing, threads=threads)
            assert decoded.next_offset == expected
            assert list(decoded.column("offset"))[-4:] == [0, 1, 2, 3]
    assert kcodec.decode(says_nothing + build_message(SPECS[0], 4)).next_offset == 5
    assert kcodec.decode(BATCH + build_message(SPECS[0], 4)).next_offset == 501
    batch = kcodec.batches(says_nothing)[0]
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (0, 0, 1)  # as Kafka's class has it
    decoder = kcodec._fast.Decoder(keep_position=True)
    reached = []
    for data in (build_message(SPECS[0], 70), says_nothing, build_message(SPECS[0], 71)):
        assert decoder.feed(data) == len(data)
        reached.append(decoder.next_offset)
    assert reached == [71, 71, 72]
    assert [record.offset for chunk in decoder.take(True) for record in chunk.records()] == [70, 71]


def test_nothing_is_known_behind_a_corrupt_wrapper_of_offset_0() -> None:
    wrong = build_wrapper([MessageSpec(attributes=1)], offset=0)
    decoded = kcodec.decode(build_message(SPECS[0], 70) + wrong + build_message(SPECS[0], 71), on_error="stop")
    assert decoded.error is not None
    assert (decoded.error.base_offset, decoded.error.next_offset, decoded.next_offset) == (0, None, 71)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_range_inside_a_wrapper(magic: int) -> None:
    specs = [MessageSpec(None, b"v", magic)] * 6
    data = build_message(specs[0], 9) + build_wrapper(specs, magic=magic, base_offset=10) + build_message(specs[0], 16)
    decoded = kcodec.decode(data, start_offset=12, end_offset=15)
    assert list(decoded.column("offset")) == [12, 13, 14]
    assert decoded.counts == kcodec.Counts(batches=3, records=3, out_of_range=5)
    assert decoded.next_offset == 15
    limited = kcodec.decode(data, isolation_level="read_committed", last_stable_offset=13)
    assert list(limited.column("offset")) == [9, 10, 11, 12]
    assert limited.counts == kcodec.Counts(batches=3, records=4, undecided=4)
    assert limited.next_offset == 13


def test_old_messages_among_transactions() -> None:
    data = b"".join(
        (
            build_message(SPECS[0], 0),
            build_batch([RecordSpec(value=b"aborted")], base_offset=1, producer_id=5, is_transactional=True),
            build_wrapper(SPECS[:2], base_offset=2),
            end_transaction_marker(0, producer_id=5, base_offset=4),
            build_message(SPECS[1], 5),
        )
    )
    for aborted in (None, [kcodec.AbortedTransaction(5, 1)], [kcodec.AbortedTransaction(5, 1, 4)]):
        decoded = kcodec.decode(data, isolation_level="read_committed", aborted_transactions=aborted)
        assert list(decoded.column("offset")) == [0, 2, 3, 5]
        assert decoded.counts == kcodec.Counts(batches=5, records=4, aborted=1, control=1)


# -------------------------------------------------------------------------------------------------------------- hostile


def test_a_bomb_in_a_wrapper_stops_at_the_limit() -> None:
    limits = DecodeLimits(max_decompressed_bytes=1 << 20)
    for codec in ("gzip", "snappy", "lz4"):
        bomb = build_wrapper([MessageSpec(None, bytes(4 << 20))], compression=codec)
        with pytest.raises(kcodec.LimitExceededError) as caught:
            kcodec.decode(bomb, limits=limits)
        assert (caught.value.limit, caught.value.value) == ("max_decompressed_bytes", 1 << 20)
    with pytest.raises(kcodec.LimitExceededError, match="max_batch_bytes"):
        kcodec.decode(build_message(MessageSpec(None, bytes(1000))), limits=DecodeLimits(max_batch_bytes=500))


def test_the_crc_is_asked_before_anything_is_opened() -> None:
    bomb = bytearray(build_wrapper([MessageSpec(None, bytes(4 << 20))]))
    bomb[12:16] = b"none"
    with pytest.raises(kcodec.CorruptBatchError):
        kcodec.decode(bytes(bomb), limits=DecodeLimits(max_decompressed_bytes=1 << 20))
    inside = build_wrapper([MessageSpec(b"k", b"v", crc=1)])
    assert [record.value for record in kcodec.decode(inside, check_crcs=False).records()] == [b"v"]


@pytest.mark.parametrize("magic", [2, 3, 127, -1])
def test_a_message_of_another_magic_inside_is_unsupported(magic: int) -> None:
    data = build_wrapper([SPECS[0], MessageSpec(None, b"v" * 60, magic)])
    with pytest.raises(kcodec.UnsupportedError, match=rf"record 1: magic {magic} is not supported inside"):
        kcodec.decode(data)


def test_sizes_that_lie_are_refused_with_their_names() -> None:
    def with_size(place: int, size: int) -> bytes:
        from legacy_writer import fix_message_crc

        message = bytearray(build_message(MessageSpec(b"key", b"value")))
        message[place : place + 4] = struct.pack(">i", size)
        return fix_message_crc(bytes(message))

    for place, size, words in (
        (26, 4, "value_size"),
        (26, 1 << 20, "key_size is 1048576, but 12 bytes remain"),
        (33, 6, "value_size is 6, but 5 bytes remain"),
        (33, (1 << 31) - 1, "value_size is 2147483647, but 5"),
    ):
        with pytest.raises(kcodec.DecodeError, match=words) as caught:
            kcodec.decode(with_size(place, size))
        assert caught.value.record == 0
    with pytest.raises(kcodec.DecodeError, match="batch_length 21 is below 22"):
        kcodec.decode(struct.pack(">qiIb", 0, 21, 0, 1) + bytes(20))


def small_sets() -> list[bytes]:
    magics = [[MessageSpec(b"key", b"value", magic), MessageSpec(None, b"", magic)] for magic in (0, 1)]
    return [
        build_message(specs[0], 5) + build_wrapper(specs, magic=magic, compression=codec, base_offset=6)
        for magic, specs in enumerate(magics)
        for codec in ("gzip", "snappy", "lz4")
    ]


@pytest.mark.parametrize("data", small_sets(), ids=range(6))
@pytest.mark.parametrize("repair", [False, True])
def test_every_bit_and_cut_gives_the_oracles_answer(data: bytes, repair: bool) -> None:
    ways = [Way(binary_type=kind) for kind in BINARY_TYPES]
    found: list[tuple[str, bytes]] = [*every_bit(data, repair), *every_header_value(data, repair)]
    found += [] if repair else every_cut(data)
    for number, (name, edited) in enumerate(found):
        options = {"on_error": "skip"} if number % 2 else {}
        assert difference_of(edited + BATCH, options, [ways[number % 3]]) is None, name


@pytest.mark.parametrize("seed", range(150))
def test_any_set_and_corruption_gives_the_oracles_answer(seed: int) -> None:
    chooser = random.Random(seed)
    for _ in range(4):
        data, next_offset = random_messages(chooser, chooser.choice((0, 90)))
        magic = chooser.randrange(2)
        damaged = damaged_message(chooser, random_wrapper(chooser, magic, next_offset)[0])
        data += chooser.choice((b"", damaged, random_wrong_wrapper(chooser, magic, next_offset)))
        log = Log(data + BATCH, next_offset=next_offset + 6)
        options: dict[str, Any] = random_options(chooser, log)
        assert difference_of(log.data, options, [Way(), Way(binary_type="binary_view", threads=2)]) is None


# ----------------------------------------------------------------------------------------------------------------- logs


def segment(folder: Path, data: bytes, name: str = "00000000000000000100.log") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_log_that_begins_inside_a_wrapper_gives_all_of_it(tmp_path: Path) -> None:
    """Only the last offset of a wrapper is told outside; a reader that took it for the first would lose the rest."""
    data = build_wrapper(SPECS, base_offset=100) + build_message(SPECS[0], 104) + BATCH
    for path in (segment(tmp_path / "old-0", data), segment(tmp_path, data, "copy.log")):
        log = open_log(path)
        assert log.log_start_offset == 100
        for level in ("read_uncommitted", "read_committed"):
            assert [record.offset for record in log.records(level)] == [100, 101, 102, 103, 104, 500]
        assert [record.offset for record in log.records(start_offset=102, end_offset=104)] == [102, 103]
        assert [(split.first_offset, split.next_offset) for split in log.splits(max_bytes=1)] == [
            (100, 104),
            (104, 105),
            (105, 501),
        ]
        assert log.log_end_offset == 501
        assert log.offset_for_timestamp(1002) == 102
        assert [batch.last_offset for batch in log.batches] == [103, 104, 500]
        assert [batch.base_offset for batch in log.batches] == [100, 104, 500]


@pytest.mark.parametrize("magic", [0, 1])
def test_small_messages_at_the_end_of_a_segment_are_whole_and_cut_ones_torn(tmp_path: Path, magic: int) -> None:
    """A message of 26 bytes is smaller than any header of magic 2."""
    whole = BATCH + build_message(MessageSpec(None, None, magic), 501)
    last = build_message(MessageSpec(None, b"v" * 20, magic), 502)
    for cut in range(len(last)):
        log = open_log(segment(tmp_path, whole + last[:cut]))
        assert [record.offset for record in log.records()] == [500, 501]
        assert [batch.last_offset for batch in log.batches] == [500, 501]
        assert log.log_end_offset == 502
        assert (log.tail is None) == (cut == 0)
        assert log.tail is None or log.tail[:2] == (len(whole), cut)
    damaged = last[:-1] + b"w"
    log = open_log(segment(tmp_path, whole + damaged))
    assert [record.offset for record in log.records()] == [500, 501]
    assert log.tail is not None and "wrong CRC" in log.tail.reason
    with pytest.raises(kcodec.CorruptBatchError) as caught:
        list(open_log(segment(tmp_path, whole + damaged + build_message(SPECS[0], 503))).records())
    assert (caught.value.position, caught.value.next_offset) == (len(whole), 503)


def test_a_valid_message_behind_a_cut_one_is_corruption(tmp_path: Path) -> None:
    cut = build_message(MessageSpec(None, bytes(3000)), 501)[:200]
    for behind in (build_message(SPECS[0], 502), build_wrapper(SPECS, base_offset=502)):
        with pytest.raises(kcodec.DecodeError, match="a valid batch follows"):
            list(open_log(segment(tmp_path, BATCH + cut + behind)).records())


def test_skip_goes_on_at_a_message_that_can_be_proved(tmp_path: Path) -> None:
    bad = build_message(MessageSpec(None, b"v", crc=1), 501)
    data = BATCH + bad + build_wrapper(SPECS, base_offset=502)
    expected = [500, 502, 503, 504, 505]
    assert list(kcodec.decode(data, on_error="skip").column("offset")) == expected
    log = open_log(segment(tmp_path, data + build_message(SPECS[0], 506)))
    assert [record.offset for record in log.records(on_error="skip")] == [*expected, 506]
