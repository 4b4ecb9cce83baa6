# SPDX-License-Identifier: Apache-2.0
"""The oracle's rules, each by a case worked out by hand, and its agreement with what generated logs were meant."""

from __future__ import annotations

from typing import Any

import edits
import pytest
import reference
import strategies
from batch_writer import FLAVOURS, RecordSpec, build_batch, empty_batch, end_transaction_marker, fix_crc
from hypothesis import given
from reference import CorruptBatchError, Counts, DecodeError, LimitExceededError, Record, Result, UnsupportedError

ABORT, COMMIT = 0, 1


def data(base_offset: int, producer_id: int = -1, count: int = 2, **header: Any) -> bytes:
    """A batch of `count` records, of a transaction if it has a producer id."""
    records = [RecordSpec(value=b"%d" % (base_offset + at)) for at in range(count)]
    header = {"is_transactional": producer_id > -1, "producer_id": producer_id, **header}
    return build_batch(records, base_offset=base_offset, **header)


def marker(control_type: int, producer_id: int, base_offset: int) -> bytes:
    return end_transaction_marker(control_type, producer_id=producer_id, base_offset=base_offset)


def damaged(batch: bytes) -> bytes:
    """The last byte flipped: the CRC is wrong."""
    return batch[:-1] + bytes([batch[-1] ^ 1])


def offsets(result: Result) -> list[int]:
    return [record.offset for record in result.records]


def committed(*batches: bytes, **options: Any) -> Result:
    return reference.decode(b"".join(batches), isolation_level="read_committed", **options)


def test_an_open_transaction_holds_back_everything_from_its_first_offset() -> None:
    result = committed(data(0), data(2, 1), data(4), data(6, 2), marker(COMMIT, 2, 8))
    assert (offsets(result), result.limit, result.next_offset) == ([0, 1], 2, 2)
    assert result.counts == Counts(batches=5, records=2, undecided=7)


def test_a_lower_last_stable_offset_is_the_limit() -> None:
    result = committed(data(0), data(2, 1), last_stable_offset=1)
    assert (offsets(result), result.limit, result.next_offset) == ([0], 1, 1)
    assert result.counts == Counts(batches=2, records=1, undecided=3)


def test_an_empty_list_is_a_list() -> None:
    result = committed(data(0, 1), data(2), aborted_transactions=[])
    assert (offsets(result), result.limit, result.next_offset) == ([0, 1, 2, 3], None, 4)


def test_read_uncommitted_ignores_list_and_last_stable_offset() -> None:
    result = reference.decode(data(0, 1), aborted_transactions=[(1, 0)], last_stable_offset=0)
    assert (offsets(result), result.next_offset) == ([0, 1], 2)


def test_only_transactional_batches_of_the_producer_are_aborted() -> None:
    batches = (
        data(0, 1),
        data(2, 1, is_transactional=False),
        data(4, 2),
        marker(ABORT, 1, 6),
        data(7, 1),
        marker(COMMIT, 1, 9),
    )
    for reported in ([(1, 0)], [(1, 0, 6)]):
        result = committed(*batches, aborted_transactions=reported)
        assert offsets(result) == [2, 3, 4, 5, 7, 8]
        assert result.counts == Counts(batches=6, records=6, aborted=2, control=2)


def test_without_last_offset_an_entry_reaches_to_the_end_where_no_marker_is() -> None:
    batches = data(0, 1), data(2, 1), data(10, 1)
    assert offsets(committed(*batches, aborted_transactions=[(1, 2)])) == [0, 1]
    assert offsets(committed(*batches, aborted_transactions=[(1, 2, 4)])) == [0, 1, 10, 11]


def test_a_commit_marker_does_not_end_an_entry_of_the_list() -> None:
    result = committed(data(0, 1), marker(COMMIT, 1, 2), data(3, 1), aborted_transactions=[(1, 0)])
    assert offsets(result) == []


def test_an_entry_of_the_future_is_taken_up_when_its_offset_is_reached() -> None:
    batches = data(0, 1), marker(COMMIT, 1, 2), data(3, 1), marker(ABORT, 1, 5), data(6, 1), marker(COMMIT, 1, 8)
    result = committed(*batches, aborted_transactions=[(1, 3), (2, 0)])
    assert offsets(result) == [0, 1, 6, 7]


def test_control_batches_that_are_no_markers_resolve_nothing() -> None:
    other = build_batch([RecordSpec(key=b"\0\0\0\x05")], base_offset=2, producer_id=1, is_control_batch=True)
    for control in (other, empty_batch(base_offset=2, producer_id=1, is_control_batch=True)):
        assert committed(data(0, 1), control, data(3)).limit == 0
    unknown_marker = build_batch([RecordSpec(key=b"\0\0\0\x01")], base_offset=2, is_control_batch=True)
    assert committed(data(0, 1), unknown_marker, data(3)).limit == 0


def test_an_empty_transactional_batch_opens_no_transaction() -> None:
    kept = empty_batch(base_offset=0, last_offset_delta=1, producer_id=1, is_transactional=True)
    result = committed(kept, data(2))
    assert (offsets(result), result.limit, result.next_offset) == ([2, 3], None, 4)


def test_a_new_key_version_is_read_as_the_old_one() -> None:
    key = b"\x00\x09\x00\x00 more"
    newer = build_batch([RecordSpec(key=key, value=b"")], base_offset=2, producer_id=1, is_control_batch=True)
    assert offsets(committed(data(0, 1), newer, data(3))) == [3, 4]


@pytest.mark.parametrize("key", [None, b"\0\0\0", b"\xff\xff\0\0"])
def test_a_control_key_that_cannot_be_read_is_an_error_where_it_matters(key: bytes | None) -> None:
    control = build_batch([RecordSpec(key=key)], base_offset=2, producer_id=1, is_control_batch=True)
    with pytest.raises(DecodeError) as caught:
        committed(data(0), control)
    assert (caught.value.kind, caught.value.base_offset) == ("control_key", 2)
    assert offsets(reference.decode(data(0) + control)) == [0, 1]
    with pytest.raises(DecodeError):
        reference.decode(data(0) + control, control_records="include")


def test_included_control_records_are_records_of_every_outcome() -> None:
    result = committed(data(0, 1), marker(ABORT, 1, 2), data(3), control_records="include")
    assert [(record.offset, record.control_type) for record in result.records] == [(2, 0), (3, None), (4, None)]
    assert result.counts == Counts(batches=3, records=3, aborted=2)


def test_a_range_filters_each_record_and_batches_outside_are_not_opened() -> None:
    unreadable = build_batch([], base_offset=2, payload=b"?", records_count=3, last_offset_delta=2)
    result = reference.decode(data(0) + unreadable + data(5, count=4), start_offset=6, end_offset=8)
    assert (offsets(result), result.next_offset) == ([6, 7], 8)
    assert result.counts == Counts(batches=3, records=2, out_of_range=7)


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(None, 1, 1), (None, None, 4), (9, None, 9), (3, 2, 3), (None, 0, 0), (1, 99, 4)]
)
def test_next_offset(start: int | None, end: int | None, expected: int) -> None:
    assert reference.decode(data(0) + data(2), start_offset=start, end_offset=end).next_offset == expected


def test_next_offset_without_a_batch_is_the_start() -> None:
    assert reference.decode(b"").next_offset is None
    assert reference.decode(data(0)[:-1], start_offset=7, end_offset=3).next_offset == 7


def test_next_offset_passes_batches_that_yield_nothing() -> None:
    batches = data(0, 1), marker(ABORT, 1, 2), empty_batch(base_offset=3, last_offset_delta=6)
    assert committed(*batches, aborted_transactions=[(1, 0)]).next_offset == 10


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 20, 60, 61, 69])
def test_a_cut_tail_is_no_error(cut: int) -> None:
    whole, tail = data(0), data(2)
    result = reference.decode(whole + tail[:cut])
    assert (offsets(result), result.remaining_bytes) == ([0, 1], cut)
    assert result.bytes_needed == (61 if cut < 12 else len(tail))


REFUSED = {
    "length 13": (fix_crc(data(2)[:8] + b"\0\0\0\x0d" + data(2)[12:]), DecodeError, "batch_length"),
    "length 48": (data(2, batch_length=48), DecodeError, "batch_length"),
    "negative length": (data(2, batch_length=-1), DecodeError, "batch_length"),
    "magic 1, whose CRC is another": (data(2, magic=1), CorruptBatchError, "crc"),
    "magic 1 of 21 bytes": (data(2, magic=1, batch_length=21), DecodeError, "batch_length"),
    "magic 3": (data(2, magic=3), UnsupportedError, "magic"),
    "magic 3 in a cut batch": (data(2, magic=3)[:17], UnsupportedError, "magic"),
    "length above the limit, cut": (data(2, batch_length=(1 << 31) - 1), LimitExceededError, "max_batch_bytes"),
    "crc": (damaged(data(2)), CorruptBatchError, "crc"),
    "crc before codec": (data(2, unused_attributes=7, crc=1), CorruptBatchError, "crc"),
    "codec 5": (data(2, unused_attributes=5), UnsupportedError, "compression"),
    "codec 7": (data(2, unused_attributes=7), UnsupportedError, "compression"),
    "last offset delta": (data(2, last_offset_delta=-1), DecodeError, "last_offset_delta"),
    "count -1": (data(2, records_count=-1), DecodeError, "records_count"),
    "offset overflow": (data((1 << 63) - 1), DecodeError, "offset_overflow"),
    "count 0 with bytes": (data(2, records_count=0), DecodeError, "bytes_left"),
    "count too small": (data(2, records_count=1), DecodeError, "bytes_left"),
    "count too big": (data(2, count=9, records_count=10), DecodeError, "varint_cut"),
    "count beyond the bytes": (data(2, records_count=1 << 30), DecodeError, "records_count"),
    "offset delta above the last": (data(2, last_offset_delta=0), DecodeError, "offset_delta_range"),
    "empty gzip stream": (
        build_batch([], base_offset=2, compression="gzip", records_count=1),
        DecodeError,
        "records_count",
    ),
    "no stream": (build_batch([], base_offset=2, unused_attributes=4, records_count=1), DecodeError, "stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_batches_and_what_came_before_them(name: str) -> None:
    batch, error_class, kind = REFUSED[name]
    with pytest.raises(error_class) as caught:
        reference.decode(data(0) + batch)
    error = caught.value
    assert (type(error), error.kind, error.position) == (error_class, kind, len(data(0)))
    assert error.decoded is not None
    assert (offsets(error.decoded), error.decoded.next_offset) == ([0, 1], 2)
    stopped = reference.decode(data(0) + batch, on_error="stop")
    assert stopped.error is not None
    assert (stopped.error.kind, stopped.records, stopped.counts) == (kind, error.decoded.records, error.decoded.counts)


def test_equal_offset_deltas_are_accepted_uncompressed_only() -> None:
    twice = [RecordSpec(offset_delta=0), RecordSpec(offset_delta=0)]
    assert offsets(reference.decode(build_batch(twice))) == [0, 0]
    with pytest.raises(DecodeError, match="follows"):
        reference.decode(build_batch(twice, compression="lz4"))


def test_sequences_wrap_to_zero_and_timestamps_wrap_at_64_bits() -> None:
    batch = build_batch(
        [RecordSpec(timestamp_delta=1), RecordSpec()], base_sequence=(1 << 31) - 1, base_timestamp=(1 << 63) - 1
    )
    records = reference.decode(batch).records
    assert [record.sequence for record in records] == [(1 << 31) - 1, 0]
    assert [record.timestamp for record in records] == [-(1 << 63), (1 << 63) - 1]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_the_decompressed_limit_is_exact(compression: str) -> None:
    spec = [RecordSpec(value=b"a" * 1000)]
    size = len(build_batch(spec)) - 61
    batch = build_batch(spec, compression=compression)
    assert len(reference.decode(batch, max_decompressed_bytes=size).records) == 1
    with pytest.raises(LimitExceededError) as caught:
        reference.decode(batch, max_decompressed_bytes=size - 1)
    assert caught.value.kind == "max_decompressed_bytes"


# ------------------------------------------------------------------------------------------------------ stop and skip


def test_stop_resolves_by_what_stands_before_the_corruption() -> None:
    result = committed(data(0), data(2, 1), damaged(data(4)), marker(COMMIT, 1, 6), on_error="stop")
    assert (offsets(result), result.limit, result.next_offset) == ([0, 1], 2, 2)
    assert result.counts == Counts(batches=2, records=2, undecided=2)


def test_next_offset_ignores_the_header_of_a_corrupt_batch() -> None:
    result = reference.decode(data(5) + damaged(data(3)), on_error="stop")
    assert (offsets(result), result.next_offset) == ([5, 6], 7)
    assert result.error is not None
    assert result.error.next_offset is None


def test_skip_goes_on_where_a_provable_batch_stands() -> None:
    result = reference.decode(data(0) + damaged(data(2)) + data(4), on_error="skip")
    assert (offsets(result), result.next_offset) == ([0, 1, 4, 5], 6)
    assert result.counts == Counts(batches=3, skipped_batches=1, records=4)
    assert isinstance(result.error, CorruptBatchError)
    assert (result.error.position, result.error.next_offset) == (len(data(0)), 4)


@pytest.mark.parametrize("behind", [b"", data(4)[:-1], damaged(data(4)), data(1)], ids=["end", "cut", "crc", "offset"])
def test_skip_stops_where_none_stands(behind: bytes) -> None:
    result = reference.decode(data(0) + damaged(data(2)) + behind, on_error="skip", check_crcs=True)
    assert (offsets(result), result.next_offset) == ([0, 1], 2)
    assert result.counts == Counts(batches=1, records=2)
    assert result.error is not None


def test_what_lay_open_at_a_skipped_batch_is_undecided_and_sets_no_limit() -> None:
    result = committed(
        data(0, 1), data(2, 2), damaged(marker(COMMIT, 1, 4)), data(5, 1), marker(ABORT, 1, 7), data(8, 1),
        marker(COMMIT, 1, 10), data(11), on_error="skip",
    )  # fmt: skip
    assert (offsets(result), result.limit, result.next_offset) == ([8, 9, 11, 12], None, 13)
    assert result.counts == Counts(batches=8, skipped_batches=1, records=4, undecided=6, control=2)


def test_a_transaction_begun_after_a_skipped_batch_is_resolved_as_ever() -> None:
    result = committed(damaged(data(0)), data(2, 1), data(4, 2), marker(COMMIT, 1, 6), on_error="skip")
    assert (offsets(result), result.limit, result.next_offset) == ([2, 3], 4, 4)


def test_a_batch_that_is_ruled_out_is_not_opened_but_checked() -> None:
    unreadable = build_batch([], base_offset=0, payload=b"?", records_count=2, producer_id=1, is_transactional=True)
    assert committed(unreadable, marker(ABORT, 1, 2)).counts == Counts(batches=2, aborted=2, control=1)
    with pytest.raises(CorruptBatchError):
        committed(damaged(unreadable), marker(ABORT, 1, 2), aborted_transactions=[(1, 0)])


# -------------------------------------------------------------------------------------------- generated, and edited


@given(strategies.logs())
def test_markers_and_lists_agree_with_what_the_log_was_meant(log: strategies.Log) -> None:
    by_markers = committed(log.data)
    whole = [entry[:2] for entry in log.aborted]
    for reported in (log.aborted, list(reversed(log.aborted)), whole):
        by_list = committed(log.data, aborted_transactions=reported, last_stable_offset=log.last_stable_offset)
        assert by_list.records == by_markers.records
    expected: list[Record] = [
        record
        for record in reference.decode(log.data).records
        if record.offset < log.last_stable_offset
        and not (
            record.is_transactional
            and any(
                record.producer_id == producer_id and first <= record.offset < last
                for producer_id, first, last in log.aborted
            )
        )
    ]
    assert by_markers.records == expected


@given(strategies.decodings())
def test_every_answer_is_records_or_a_decode_error(case: tuple[str, bytes, dict[str, Any]]) -> None:
    _, edited, options = case
    try:
        result = reference.decode(edited, **options)
    except DecodeError as error:
        assert options["on_error"] == "raise"
        assert error.decoded is not None
        result, position = error.decoded, error.position
        assert 0 <= position < len(edited)
    counts = result.counts
    assert counts.records == len(result.records)
    assert 0 <= counts.skipped_batches <= counts.batches


@pytest.mark.parametrize(("compression", "flavour"), [(name, at) for name in FLAVOURS for at in FLAVOURS[name]])
def test_every_way_to_write_a_stream_is_read(compression: str, flavour: str) -> None:
    values = [b"", b"a", b"lorem ipsum " * 300, bytes(range(256)) * 3, b"lorem ipsum " * 6000]
    records = [RecordSpec(value=value) for value in values]
    result = reference.decode(build_batch(records, compression=compression, flavour=flavour))
    assert [record.value for record in result.records] == values


@pytest.mark.parametrize("compression", FLAVOURS)
def test_no_cut_and_no_flipped_bit_gives_a_record_under_the_old_crc(compression: str) -> None:
    batch = data(0, compression=compression)
    for name, edited in edits.every_cut(batch):
        assert reference.decode(edited).records == [], name
    whole = reference.decode(batch).records
    for name, edited in edits.every_bit(batch):
        result = reference.decode(edited, on_error="stop")
        values = [record.value for record in result.records]
        assert values in ([], [record.value for record in whole]), name
        place = int(name.split("byte ")[1].split()[0])
        assert not values or place < 8 or 12 <= place < 16, name


def test_edits_say_what_they_do() -> None:
    batch = data(0)
    assert all(edited != batch for _, edited in edits.every_bit(batch, repair=True))
    assert all(len(edited) == int.from_bytes(edited[8:12], "big") + 12 for _, edited in edits.every_length(batch))
    for _, edited in (*edits.every_payload_cut(batch), *edits.every_payload_bit(batch), *edits.every_length(batch)):
        assert edited == fix_crc(edited)
