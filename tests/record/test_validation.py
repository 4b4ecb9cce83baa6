# SPDX-License-Identifier: Apache-2.0
"""validate(): the verdict of Kafka's own leader, by ProduceRequest, UnifiedLog and LogValidator, code and records.

Where the two may differ is written down in `excuse`: it tells from the bytes, the settings and Kafka's answer alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import golden_data
import pytest
from batch_writer import RecordSpec, build_batch, control_batch, empty_batch, end_transaction_marker, fix_crc
from java_answers import JudgedBatch, ProduceResult, ProduceSettings
from java_comparison import STRICTER, reasons
from java_edits import HEADER, damaged, field
from java_judge import JavaJudge
from strategies import random_batch

import kcodec
from kcodec.protocol.error_codes import ErrorCode
from kcodec.record.validation import MAX_RECORD_INDEXES

LONG = os.environ.get("KCODEC_PROFILE") == "long"
SEEDS = range(200 if LONG else 6)
BATCHES_A_SEED = 500 if LONG else 100
NOW = 1_767_225_600_000
INT64_MAX = (1 << 63) - 1
TOO_LARGE = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
COMPRESSION_TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def judge(java_home: object) -> Iterator[JavaJudge]:
    with JavaJudge() as running:
        yield running


def options(settings: ProduceSettings) -> dict[str, Any]:
    """The settings as validate() spells them."""
    codec = settings.compression
    return {
        "cleanup_policy": "compact" if settings.compacted else "delete",
        "message_timestamp_type": "LogAppendTime" if settings.log_append_time else "CreateTime",
        "message_timestamp_before_max_ms": settings.before_max_ms,
        "message_timestamp_after_max_ms": settings.after_max_ms,
        "max_message_bytes": settings.max_message_bytes,
        "segment_bytes": settings.segment_bytes,
        "compression_type": "producer" if codec is None else COMPRESSION_TYPES[codec],
        "now": settings.now,
        "origin": settings.origin,
        "api_version": settings.api_version,
        "has_transactional_id": settings.has_transactional_id,
    }


def refusal(data: Any, settings: ProduceSettings) -> kcodec.RecordValidationError | None:
    try:
        kcodec.validate(data, **options(settings))
    except kcodec.RecordValidationError as error:
        return error
    return None


def random_settings(rng: random.Random) -> ProduceSettings:
    return ProduceSettings(
        origin="client" if rng.random() < 0.85 else "coordinator",
        api_version=rng.choice((13, 13, 9, 7, 6, 3)),
        has_transactional_id=rng.random() < 0.9,
        compacted=rng.random() < 0.3,
        log_append_time=rng.random() < 0.3,
        before_max_ms=rng.choice((INT64_MAX, INT64_MAX, 1000, 0)),
        after_max_ms=rng.choice((INT64_MAX, INT64_MAX, 3_600_000, 5)),
        now=NOW,
        max_message_bytes=rng.choice((1_048_588,) * 5 + (150,)),
        segment_bytes=rng.choice((1 << 30,) * 5 + (120,)),
        compression=rng.choice((None, None, None, 0, 1, 4)),
    )


def excuse(
    batch: JudgedBatch | None, data: bytes, settings: ProduceSettings, reported: ProduceResult, found: Any
) -> str | None:
    """Why our answer may differ from Kafka's here; None if it may not."""
    text = "" if reported.error is None else reported.error.message
    is_of_coordinator = settings.origin == "coordinator"
    if is_of_coordinator and ("EpochEntry" in text or "lastOffset" in text):
        return "a batch with gaps, or empty, at the beginning of a log, where its base offset would be below 0"
    if batch is None or field(data, "batch_length") < 49:
        return "a header cut short: refused, for one reason or another" if reported.code and found else None
    if is_of_coordinator and field(data, "records_count") <= 0:
        return "an empty batch of a coordinator, which never writes one"
    if is_of_coordinator and data[16] < 2 and found:
        return "a coordinator's batch of magic 0 or 1"
    codec = field(data, "attributes") & 7
    is_too_large_rewritten = reported.code in TOO_LARGE and settings.compression not in (None, codec)
    if found is None:
        return "the size of a rewritten batch" if is_too_large_rewritten else None
    if "stream is" in found.reason and (reported.code or reasons(STRICTER, batch, data)):
        return "a damaged stream: refused, if Kafka looks at it at all"
    if found.name == "INVALID_RECORD" and batch.records_error is not None:
        return "records that Kafka's own consumers cannot read: a leader skips keys and values unseen"
    if is_too_large_rewritten and found.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return "the size of a rewritten batch"
    return None


def compare(judge: JavaJudge, data: bytes, settings: ProduceSettings) -> tuple[int, bool]:
    """Kafka's code, and whether an excuse was needed."""
    reported = judge.produced(data, settings)
    try:
        found = refusal(data, settings)
    except kcodec.LimitExceededError:
        return reported.code, True
    code, indexes = (0, ()) if found is None else (found.code, found.record_indexes)
    if (reported.code, reported.record_indexes) == (code, indexes):
        assert found is None or found.name == reported.name
        return reported.code, False
    batches = judge.record_set(data).batches
    why = excuse(batches[0] if batches else None, data, settings, reported, found)
    assert why, f"{reported} but {found}, {settings}, {data.hex()}"
    return reported.code, True


# ------------------------------------------------------------------------------------------------------------ verdicts


def test_verdicts_are_those_of_kafkas_leader(judge: JavaJudge) -> None:
    codes: Counter[int] = Counter()
    excused = total = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        for _ in range(BATCHES_A_SEED):
            batch = bytearray(random_batch(rng))
            if rng.random() < 0.95:
                batch[:8] = bytes(8)
            data = bytes(batch)
            if rng.random() < 0.5:
                data = damaged(rng, data)
            code, needed = compare(judge, data, random_settings(rng))
            codes[code] += 1
            excused += needed
            total += 1
    assert set(codes) >= {0, -1, 2, 10, 18, 32, 76, 87}
    assert excused < total / 20


def test_what_brokers_stored_is_taken_or_refused_alike(judge: JavaJudge) -> None:
    """Real batches, offered again with offsets from 0: data of every client, markers, what the cleaner left."""
    codes: Counter[int] = Counter()
    for partition in golden_data.partitions(magic=2):
        whole = kcodec.batches(partition.log)
        for batch in whole[:: max(1, len(whole) // (len(whole) if LONG else 6))]:
            data = bytearray(batch.data)
            kcodec.set_base_offset(data, 0)
            for settings in (ProduceSettings(), ProduceSettings(compacted=True), ProduceSettings(origin="coordinator")):
                code, needed = compare(judge, bytes(data), settings)
                assert settings.origin == "coordinator" or not needed
                codes[code] += 1
    assert {0, 87} <= set(codes)


def test_setters_do_what_a_leader_does(judge: JavaJudge) -> None:
    """The bytes a leader stores are those of a batch that validate() passed and the setters changed."""
    compared = 0
    for seed in range(40):
        rng = random.Random(seed)
        buffer = bytearray(random_batch(rng))
        kcodec.set_base_offset(buffer, 0)
        settings = ProduceSettings(
            before_max_ms=INT64_MAX, after_max_ms=INT64_MAX, now=NOW, log_append_time=seed % 2 == 0
        )
        reported = judge.produced(bytes(buffer), settings)
        if reported.code:
            assert refusal(bytes(buffer), settings) is not None
            continue
        kcodec.validate(buffer, **options(settings))
        kcodec.set_partition_leader_epoch(buffer, 0)
        (batch,) = kcodec.batches(buffer)
        times = [record.timestamp for record in batch.records()]
        if settings.log_append_time:
            kcodec.set_log_append_time(buffer, NOW)
        else:
            kcodec.set_max_timestamp(buffer, max(-1, *times))
        assert bytes(buffer) == reported.data
        compared += 1
    assert compared > 5


def one(*records: RecordSpec, **header: Any) -> bytes:
    return build_batch(records or [RecordSpec()], **header)


TWICE: dict[str, Any] = {"last_offset_delta": 1, "records_count": 2}
EARLY = RecordSpec(timestamp_delta=-NOW - 95)
PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
SAME_OFFSETS = (RecordSpec(), RecordSpec(offset_delta=0))

# name: (bytes, settings, Kafka's code, part of our text)
CASES: dict[str, tuple[bytes, dict[str, Any], int, str]] = {
    "nothing": (b"", {}, 87, "no complete batch"),
    "nothing of a coordinator": (b"", {"origin": "coordinator"}, 0, ""),
    "cut": (one()[:-1], {}, 87, "no complete batch"),
    "two": (one() * 2, {}, 87, "a second batch follows at byte 68"),
    "a cut one behind": (one() + b"cut tail", {}, 0, ""),
    "magic 1": (one(magic=1), {}, 87, "magic 1 cannot be produced"),
    "magic 3": (one(magic=3), {}, 2, "magic 3"),
    "a second one of magic 0": (one() + one(magic=0), {}, 87, ""),
    "a second one of magic 9": (one() + one(magic=9), {}, 2, "magic 9"),
    "zstd by version 6": (one(compression="zstd"), {"api_version": 6}, 76, "zstd needs Produce version 7"),
    "zstd by version 7": (one(compression="zstd"), {"api_version": 7}, 0, ""),
    "codec 5": (one(unused_attributes=5), {}, -1, "compression id 5"),
    "base offset": (one(base_offset=7), {}, 87, "base_offset 7 must be 0"),
    "too large": (one(), {"max_message_bytes": 67}, 10, "the batch has 68 bytes"),
    "just not too large": (one(), {"max_message_bytes": 68}, 0, ""),
    "larger than a segment": (one(), {"segment_bytes": 67}, 18, "segment.bytes is 67"),
    "crc": (one(crc=1), {}, 2, "the stored CRC 0x00000001"),
    "count": (one(last_offset_delta=3), {}, 87, "does not match"),
    "no records": (empty_batch(), {}, 87, "records_count 0 is not positive"),
    "negative delta": (one(last_offset_delta=-1), {}, 87, "is negative"),
    "control batch": (control_batch(2, b""), {}, 87, "clients cannot write control batches"),
    "marker": (end_transaction_marker(1, producer_id=7, base_offset=0), {"origin": "coordinator"}, 0, ""),
    "no sequence": (one(**PRODUCER), {}, 87, "base_sequence -1"),
    "epoch below -1": (one(producer_id=7, producer_epoch=-2, base_sequence=0), {}, 47, "producer_epoch -2"),
    "no transactional id": (
        one(is_transactional=True, base_sequence=0, **PRODUCER),
        {"has_transactional_id": False},
        53,
        "has no transactional id",
    ),
    "no key": (one(RecordSpec(key=b"k"), RecordSpec()), {"compacted": True}, 87, "1 records have no key"),
    "too old": (one(), {"now": NOW + 11, "before_max_ms": 10}, 32, "around the leader's clock"),
    "just not too old": (one(), {"now": NOW + 10, "before_max_ms": 10}, 0, ""),
    "too new": (one(), {"now": NOW - 11, "after_max_ms": 10}, 32, "around the leader's clock"),
    "no timestamp": (one(base_timestamp=-1), {"before_max_ms": 0}, 0, ""),
    "stamped, to a topic of CreateTime": (one(timestamp_type=1), {}, 0, ""),
    "stamped, to one of LogAppendTime": (
        one(timestamp_type=1),
        {"log_append_time": True},
        32,
        "only the leader sets LogAppendTime",
    ),
    "an offset twice": (one(*SAME_OFFSETS, **TWICE), {}, 0, ""),
    "an offset twice, compressed": (one(*SAME_OFFSETS, compression="gzip", **TWICE), {}, -1, "must be 0, 1, 2"),
    "and compressed otherwise": (one(*SAME_OFFSETS, compression="gzip", **TWICE), {"compression": 3}, 0, ""),
    "linked blocks": (one(RecordSpec(value=bytes(200_000)), compression="lz4", flavour="linked"), {}, -1, "linked"),
    "a time below -1": (one(EARLY), {}, 0, ""),
    "a time below -1, to be compressed": (one(EARLY), {"compression": 1}, -1, "timestamp below -1"),
    "bytes behind an lz4 frame": (one(compression="lz4", flavour="behind"), {}, 0, ""),
    "bytes behind gzip": (one(compression="gzip", flavour="behind"), {}, 0, ""),
    "bytes left": (one(edit_payload=lambda payload: payload + b"x"), {}, 87, "bytes are left"),
}


@pytest.mark.parametrize(("data", "settings", "code", "text"), CASES.values(), ids=CASES)
def test_each_rule(judge: JavaJudge, data: bytes, settings: dict[str, Any], code: int, text: str) -> None:
    reported = judge.produced(data, ProduceSettings(**settings))
    assert reported.code == code, reported
    found = refusal(data, ProduceSettings(**settings))
    assert (0 if found is None else found.code) == code, found
    if found is not None:
        assert text in found.reason
        assert found.name == reported.name
        assert found.record_indexes == reported.record_indexes


# -------------------------------------------------------------------------------------------------- texts of errors


def test_the_first_records_at_fault_are_named() -> None:
    keys = [b"k" if at % 2 else None for at in range(4000)]
    data = build_batch([RecordSpec(key=key) for key in keys])
    with pytest.raises(kcodec.RecordValidationError, match="2000 records have no key") as caught:
        kcodec.validate(data, cleanup_policy="delete, compact", message_timestamp_before_max_ms=INT64_MAX)
    assert caught.value.record_indexes == tuple(range(0, 2 * MAX_RECORD_INDEXES, 2))
    assert len(str(caught.value)) < 200
    assert (caught.value.position, caught.value.base_offset) == (0, 0)


def test_a_batch_and_its_bytes_are_one() -> None:
    data = build_batch([RecordSpec(key=None)], base_offset=0)
    for given in (data, bytearray(data), memoryview(data), kcodec.batches(data)[0]):
        assert kcodec.validate(given) is None  # type: ignore[func-returns-value]
        with pytest.raises(kcodec.RecordValidationError, match="INVALID_RECORD, 87"):
            kcodec.validate(given, cleanup_policy="compact")
    encoded = kcodec.encode([(b"k", b"v")], timestamp=NOW)
    assert kcodec.validate(encoded, now=NOW) is None  # type: ignore[func-returns-value]


def test_the_clock_is_this_machines_by_default() -> None:
    import time

    data = kcodec.encode([(b"k", b"v")], timestamp=int(time.time() * 1000))
    kcodec.validate(data, message_timestamp_before_max_ms=60_000, message_timestamp_after_max_ms=60_000)
    with pytest.raises(kcodec.RecordValidationError, match="INVALID_TIMESTAMP"):
        kcodec.validate(data, message_timestamp_before_max_ms=60_000, now=int(time.time() * 1000) + 120_000)


def test_limits_are_no_verdict() -> None:
    data = build_batch([RecordSpec(value=bytes(100_000))], compression="gzip")
    with pytest.raises(kcodec.LimitExceededError):
        kcodec.validate(data, limits=kcodec.DecodeLimits(max_decompressed_bytes=1000), now=NOW)
    with pytest.raises(kcodec.LimitExceededError):
        kcodec.validate(data, limits=kcodec.DecodeLimits(max_batch_bytes=100), now=NOW)


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"cleanup_policy": "compacted"}, ValueError, "unknown cleanup_policy 'compacted'; possible: delete, compact"),
        ({"message_timestamp_type": "createtime"}, ValueError, "possible: CreateTime, LogAppendTime"),
        ({"compression_type": "brotli"}, ValueError, "possible: producer, uncompressed, none, gzip"),
        ({"origin": "replica"}, ValueError, "possible: client, coordinator"),
        ({"api_version": 2}, ValueError, "api_version must be at least 3"),
        ({"api_version": "13"}, TypeError, "api_version must be an int"),
        ({"now": 1.5}, TypeError, "now must be an int"),
        ({"max_message_bytes": None}, TypeError, "max_message_bytes must be an int"),
        ({"segment_bytes": 1 << 70}, ValueError, "segment_bytes must be a 64-bit number"),
        ({"limits": 5}, TypeError, "limits must be a DecodeLimits"),
    ],
    ids=str,
)
def test_a_setting_that_is_none_is_named(wrong: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        kcodec.validate(build_batch([RecordSpec()]), **wrong)
    assert not isinstance(caught.value, kcodec.KcodecError)


def test_every_cut_and_every_flipped_bit_is_answered() -> None:
    data = build_batch([RecordSpec(key=b"k", headers=((b"h", b"v"),))] * 2, compression="lz4")
    for size in range(len(data)):
        with pytest.raises(kcodec.RecordValidationError, match="no complete batch"):
            kcodec.validate(data[:size])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        for candidate in (bytes(flipped), fix_crc(bytes(flipped))):
            try:
                kcodec.validate(candidate, now=NOW)
            except (kcodec.RecordValidationError, kcodec.LimitExceededError):
                continue
            assert len(candidate) > HEADER
