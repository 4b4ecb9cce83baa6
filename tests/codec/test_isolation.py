# SPDX-License-Identifier: Apache-2.0
"""read_committed: what aborted list, markers, last stable offset and damage make of interleaved transactions.

Scenarios of Kafka's own tests (CompletedFetchTest, FetcherTest) and of known bugs elsewhere; what is generated at
random is compared with the oracle in test_decode_property.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch, control_batch, empty_batch, end_transaction_marker
from log_builder import ABORT, LogBuilder

import kcodec
from kcodec import AbortedTransaction, Counts, DecodedRecords, _fast
from kcodec.protocol import messages

NONE_REPORTED = None


def committed(log: LogBuilder, aborted: Sequence[Any] | None = None, **options: Any) -> DecodedRecords:
    return kcodec.decode(log.data, isolation_level="read_committed", aborted_transactions=aborted, **options)


def offsets(decoded: DecodedRecords) -> list[int]:
    found = list(decoded.column("offset"))
    assert [int(value) for value in decoded.column("value") if value is not None] == found
    return found


INTERLEAVED = (
    LogBuilder().write(1, 2).write(2, 2).commit(1).write(2, 1).write(1, 2).abort(2).write(2, 1).abort(1).commit(2)
)
# offsets: 1:0-1  2:2-3  commit1:4  2:5  1:6-7  abort2:8  2:9  abort1:10  commit2:11
INTERLEAVED_ABORTED = [AbortedTransaction(2, 2), AbortedTransaction(1, 6)]


@pytest.mark.parametrize("threads", [1, 2])
def test_interleaved_transactions_by_list_and_by_markers(threads: int) -> None:
    for reported in (NONE_REPORTED, INTERLEAVED_ABORTED, INTERLEAVED_ABORTED[::-1]):
        decoded = committed(INTERLEAVED, reported, threads=threads)
        assert offsets(decoded) == [0, 1, 9]
        assert decoded.counts == Counts(batches=9, records=3, aborted=5, control=4)
        assert decoded.next_offset == 12
    uncommitted = kcodec.decode(INTERLEAVED.data, aborted_transactions=INTERLEAVED_ABORTED, last_stable_offset=0)
    assert offsets(uncommitted) == [0, 1, 2, 3, 5, 6, 7, 9]


def test_entries_may_be_tuples_intervals_or_prebuilt() -> None:
    intervals = [AbortedTransaction(1, 6, 10), AbortedTransaction(2, 2, 8)]
    ways: tuple[Any, ...] = (
        intervals,
        _fast.AbortedTransactions(intervals),
        [(2, 2), (1, 6)],
        iter(INTERLEAVED_ABORTED),
    )
    for reported in ways:
        assert offsets(committed(INTERLEAVED, reported)) == [0, 1, 9]


def test_an_empty_list_says_that_nothing_was_aborted() -> None:
    assert offsets(committed(INTERLEAVED, [])) == [0, 1, 2, 3, 5, 6, 7, 9]


def test_a_second_abort_marker_without_data_ends_nothing() -> None:
    log = LogBuilder().write(1).abort(1).abort(1).write(1).commit(1).abort(1)
    assert offsets(committed(log)) == [3]
    assert offsets(committed(log, [(1, 0)])) == [3]


def test_an_abort_whose_data_the_cleaner_took() -> None:
    """Aborted from 0 on, only its marker at 5 left, committed 6 to 8."""
    log = LogBuilder(5).abort(1).write(1, 3).commit(1)
    assert offsets(committed(log, [(1, 0)])) == [6, 7, 8]
    assert offsets(committed(log)) == [6, 7, 8]


def test_a_compacted_topic_whose_list_is_out_of_order() -> None:
    log = LogBuilder(3).plain(2).gap(1).write(2).write(1).abort(1).abort(2).gap(20).plain(3)
    decoded = committed(log, [(2, 6), (1, 0)])
    assert offsets(decoded) == [3, 4, 30, 31, 32]


def test_the_first_control_record_of_a_producer_need_not_be_its_abort() -> None:
    log = LogBuilder().write(1).commit(1).write(1).abort(1).write(1).commit(1)
    for reported in (NONE_REPORTED, [(1, 2)]):
        assert offsets(committed(log, reported)) == [0, 4]


def test_a_control_batch_of_no_records_and_unknown_types_resolve_nothing() -> None:
    log = LogBuilder().write(1)
    log.add(empty_batch(base_offset=1, producer_id=1, is_transactional=True, is_control_batch=True))
    for control_type in (2, 5, 6, 99, -1):
        log.add(control_batch(control_type, b"", base_offset=log.next_offset, producer_id=1))
    assert offsets(committed(log)) == []
    assert committed(log).counts.undecided == 6
    log.abort(1).plain()
    assert offsets(committed(log)) == [8]
    assert offsets(committed(log, [(1, 0)])) == [8]


def test_a_marker_without_a_producer_id_is_none() -> None:
    log = LogBuilder().write(1)
    log.add(control_batch(ABORT, b"\x00" * 6, base_offset=1, producer_id=-1)).plain()
    assert offsets(committed(log)) == []
    assert offsets(committed(log, [(1, 0)])) == [2]


def test_only_transactional_batches_with_a_producer_id_are_filtered() -> None:
    log = LogBuilder().write(1, is_transactional=False).write(-1).write(1).abort(1)
    for reported in (NONE_REPORTED, [(1, 0), (-1, 0)], [(1, 0, 3), (-1, 0, 3)]):
        assert offsets(committed(log, reported)) == [0, 1]


# -------------------------------------------------------------------------------------------------- limit and position


def test_undecided_transactions_set_the_limit() -> None:
    log = LogBuilder().plain(2).write(1, 2).plain().write(2).commit(2)
    decoded = committed(log)
    assert offsets(decoded) == [0, 1]
    assert decoded.next_offset == 2
    assert decoded.counts == Counts(batches=5, records=2, undecided=5)
    reported = committed(log, [], last_stable_offset=2)
    assert (offsets(reported), reported.next_offset, reported.counts) == ([0, 1], 2, decoded.counts)


@pytest.mark.parametrize("last_stable_offset", range(9))
def test_the_lower_of_both_limits_counts(last_stable_offset: int) -> None:
    log = LogBuilder().plain(2).write(1, 2).plain().write(2).commit(2)
    decoded = committed(log, last_stable_offset=last_stable_offset)
    assert offsets(decoded) == list(range(min(2, last_stable_offset)))
    assert decoded.next_offset == min(2, last_stable_offset)
    by_list = committed(log, [], last_stable_offset=last_stable_offset)
    assert by_list.next_offset == min(last_stable_offset, 7)
    assert offsets(by_list) == [at for at in range(6) if at < last_stable_offset]


@pytest.mark.parametrize("aborted", [None, []])
def test_an_unreported_last_stable_offset_is_no_limit(aborted: list[object] | None) -> None:
    """-1 is Kafka's INVALID_LAST_STABLE_OFFSET, and the default of a response without the field."""
    assert messages.FetchPartitionData().last_stable_offset == -1
    log = LogBuilder().plain(2).write(1, 2).plain().commit(1)
    assert committed(log, aborted, last_stable_offset=-1) == committed(log, aborted)


def test_the_limit_cuts_within_a_batch() -> None:
    decoded = committed(LogBuilder().plain(10), last_stable_offset=4)
    assert offsets(decoded) == [0, 1, 2, 3]
    assert decoded.counts == Counts(batches=1, records=4, undecided=6)
    assert decoded.next_offset == 4


def test_the_position_moves_past_what_yields_nothing() -> None:
    log = LogBuilder().write(1, 2).abort(1)
    assert committed(log).next_offset == 3
    assert committed(log, [(1, 0)]).next_offset == 3
    log.add(empty_batch(base_offset=37, last_offset_delta=17))
    assert committed(log).next_offset == 55
    assert committed(LogBuilder()).next_offset is None
    assert committed(LogBuilder(), start_offset=7).next_offset == 7
    assert committed(log, start_offset=90).next_offset == 90
    assert committed(log, end_offset=2).next_offset == 2


@pytest.mark.parametrize("start", range(13))
def test_a_fetch_that_starts_inside_a_transaction(start: int) -> None:
    """The broker sends whole batches from the one that holds the offset; its list names transactions begun before."""
    for reported in (NONE_REPORTED, INTERLEAVED_ABORTED):
        decoded = committed(INTERLEAVED, reported, start_offset=start)
        assert offsets(decoded) == [at for at in (0, 1, 9) if at >= start]
        assert decoded.next_offset == max(12, start)


def test_a_list_without_the_transactions_marker_holds_to_the_end() -> None:
    log = LogBuilder().write(1, 2).plain().write(1)
    assert offsets(committed(log, [(1, 0)])) == [2]
    assert offsets(committed(log, [(1, 0, 1)])) == [2, 3]


def test_ranges_count_after_the_limit_and_before_control_and_aborted() -> None:
    decoded = committed(INTERLEAVED, INTERLEAVED_ABORTED, start_offset=5, end_offset=10, last_stable_offset=9)
    assert decoded.counts == Counts(batches=9, out_of_range=5, aborted=3, control=1, undecided=3)
    assert decoded.next_offset == 9


def test_markers_are_delivered_when_asked_for_whatever_their_outcome() -> None:
    decoded = committed(INTERLEAVED, INTERLEAVED_ABORTED, control_records="include", columns=kcodec.COLUMNS[:-2])
    records = list(decoded.records())
    assert [(record.offset, record.control_type) for record in records if record.control_type is not None] == [
        (4, kcodec.ControlType.COMMIT),
        (8, kcodec.ControlType.ABORT),
        (10, kcodec.ControlType.ABORT),
        (11, kcodec.ControlType.COMMIT),
    ]
    assert list(decoded.column("is_control")) == [False, False, True, True, False, True, True]
    assert decoded.counts == Counts(batches=9, records=7, aborted=5)
    assert committed(INTERLEAVED, None, control_records="include", last_stable_offset=5).counts.records == 3


# ------------------------------------------------------------------------------------------------------------- damage


def test_a_skipped_batch_may_have_been_a_marker() -> None:
    """What lay open there can no longer be settled, up to its producer's next marker, and sets no limit."""
    log = LogBuilder().write(1).write(2)
    log.add(end_transaction_marker(ABORT, producer_id=1, base_offset=2)[:-1] + b"\xff")
    log.write(1).commit(1).write(1).commit(1).abort(2).plain()
    decoded = committed(log, on_error="skip")
    assert isinstance(decoded.error, kcodec.CorruptBatchError)
    assert offsets(decoded) == [5, 8]
    assert decoded.counts == Counts(batches=9, skipped_batches=1, records=2, undecided=3, control=3)
    assert decoded.next_offset == 9


def test_markers_behind_corruption_resolve_nothing() -> None:
    log = LogBuilder().write(1)
    log.add(build_batch([RecordSpec()], base_offset=1, crc=1)).commit(1).plain()
    stopped = committed(log, on_error="stop")
    assert len(stopped) == 0
    assert (stopped.counts, stopped.next_offset) == (Counts(batches=1, undecided=1), 0)
    with pytest.raises(kcodec.CorruptBatchError) as raised:
        committed(log)
    assert raised.value.decoded is not None
    assert raised.value.decoded.counts == stopped.counts


def test_nothing_that_is_ruled_out_is_opened_but_its_crc_is_checked() -> None:
    def log(**header: Any) -> LogBuilder:
        wrong = build_batch(
            [RecordSpec(value=b"x")],
            compression="lz4",
            payload=b"no lz4",
            producer_id=1,
            is_transactional=True,
            records_count=3,
            last_offset_delta=2,
            **header,
        )
        return LogBuilder().add(wrong, 3).abort(1).plain()

    for reported in (NONE_REPORTED, [(1, 0)]):
        assert list(committed(log(), reported).column("offset")) == [4]
        assert committed(log(), reported).counts.aborted == 3
        with pytest.raises(kcodec.CorruptBatchError):
            committed(log(crc=1), reported)
    assert kcodec.decode(log().data, start_offset=3).counts.out_of_range == 3
    with pytest.raises(kcodec.DecodeError):
        kcodec.decode(log().data)


# -------------------------------------------------------------------------------------------------------------- scale


def test_many_aborted_transactions_of_many_producers() -> None:
    """Thousands of entries, shuffled: by list, by interval and by markers the same, and not in quadratic time."""
    log, reported, chooser = LogBuilder(), [], random.Random(1)
    kept = []
    for number in range(3000):
        producer_id = number % 50
        first = log.next_offset
        log.write(producer_id, 1)
        if number % 3:
            log.abort(producer_id)
            reported.append(AbortedTransaction(producer_id, first, first + 1))
        else:
            kept.append(first)
            log.commit(producer_id)
    chooser.shuffle(reported)
    without = [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in reported]
    for aborted in (NONE_REPORTED, reported, without):
        for threads in (1, 2):
            assert offsets(committed(log, aborted, threads=threads)) == kept


def test_aborted_transactions_of_a_fetch_response_are_accepted() -> None:
    """Objects with producer_id and first_offset, such as those of kcodec.protocol.messages."""
    response = messages.FetchResponse(
        responses=[
            messages.FetchableTopicResponse(
                partitions=[
                    messages.FetchPartitionData(
                        aborted_transactions=[
                            messages.AbortedTransaction(producer_id=2, first_offset=2),
                            messages.AbortedTransaction(producer_id=1, first_offset=6),
                        ]
                    )
                ]
            )
        ]
    )
    (partition,) = messages.FetchResponse.decode(response.encode(12), 12).responses[0].partitions
    aborted = partition.aborted_transactions
    assert aborted is not None
    found = committed(INTERLEAVED, aborted)
    assert offsets(found) == offsets(committed(INTERLEAVED, INTERLEAVED_ABORTED))
    assert _fast.AbortedTransactions(aborted).entries == tuple(INTERLEAVED_ABORTED)
    with pytest.raises(TypeError, match="aborted_transactions must hold AbortedTransaction values"):
        committed(INTERLEAVED, [5])
