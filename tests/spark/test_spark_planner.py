# SPDX-License-Identifier: Apache-2.0
"""The planner: its results are those of Spark's own Kafka source on the same tables."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kcodec import timestamps
from kcodec.offsets import OffsetRange, TopicPartition
from kcodec.spark import offset_options, planner
from kcodec.spark.file_options import parse_options
from kcodec.spark.offset_options import EARLIEST, LATEST, OffsetLimit
from kcodec.spark.planner import DataLossError, StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_source import SparkSource

ORDERS = [TopicPartition("orders", number) for number in range(3)]
FIRST = dict(zip(ORDERS, (0, 10, 20), strict=True))
LAST = dict(zip(ORDERS, (100, 10, 250), strict=True))


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSource:
    from spark_source import SparkSource

    return SparkSource(spark)


# ------------------------------------------------------------------------------------------------------ Spark's classes


def random_ranges(random: Random) -> list[OffsetRange]:
    ranges = []
    for number in range(random.randint(0, 8)):
        start = random.choice((0, 5, 1 << 40))
        size = random.choice((0, 1, 2, 7, 100, 1000, 999_999, random.randint(0, 1 << 45)))
        ranges.append(OffsetRange(random.choice("tu"), number, start, start + size))
    return ranges


@pytest.mark.spark
def test_ranges_are_cut_as_by_sparks_calculator(source: SparkSource) -> None:
    random = Random(17)
    for _ in range(150):
        ranges = random_ranges(random)
        records = random.choice((None, None, 1, 100, 250_000, 1 << 42))
        if records is not None and sum(each.size for each in ranges) / records > 500:
            records = None
        count = random.choice((None, 1, 2, 5, 8, 30, 100))
        options = {"minPartitions": count, "maxRecordsPerPartition": records}
        given = {name: str(value) for name, value in options.items() if value is not None}
        assert planner.cut_ranges(ranges, count, records) == source.cut(ranges, given), (ranges, given)


@pytest.mark.spark
def test_a_rate_limit_is_shared_as_by_spark(source: SparkSource) -> None:
    random = Random(18)
    for _ in range(60):
        start = {partition: random.choice((0, 3, 1 << 40)) for partition in ORDERS}
        sizes = [random.choice((-5, 0, 1, 10, 12_345, 1 << 33)) for _ in ORDERS]
        end = {partition: start[partition] + size for partition, size in zip(ORDERS, sizes, strict=True)}
        limit = random.choice((1, 2, 3, 10, 1000, 1 << 35))
        assert planner.limit_offsets(start, end, limit) == source.rate_limit(limit, start, end), (start, end, limit)


ACCEPTED = [
    '{"t":{"0":5}}',
    '{"t":{"0":-1,"7":-2},"u.v":{"0":9}}',
    '{"t":{}}',
    "{}",
    '{"t":{"0":5e2}}',
    '{"t":{"+1":5}}',
]
REFUSED = ["", "[]", '{"t":5}', '{"t":{"a":5}}', '{"t":{"0":"5"}}', '{"t":{"0":true}}', '{"t":[5]}', '{"t":{" 0":5}}']
REFUSED += ["{'t':{'0':5}}", '{"t":{"2147483648":1}}', '{"t":{"0":5},}']
# What Spark takes for 5, for 0, for another number, for {"t":{"0":5}}, for nothing at all.
MISREAD = ['{"t":{"0":5.7}}', '{"t":{"0":null}}', '{"t":{"0":99999999999999999999}}', '{"t":{"0":5}} x', "null"]
MISREAD += ['{"t":null}', '{"t":{"-1":5}}']


@pytest.mark.spark
def test_offsets_are_parsed_as_by_spark(source: SparkSource) -> None:
    for text in ACCEPTED:
        assert offset_options.parse_partition_numbers("startingOffsets", text) == source.partition_offsets(text), text
    for text in (*REFUSED, *MISREAD):
        assert (source.partition_offsets(text) is None) == (text in REFUSED), text
        with pytest.raises(ValueError, match=r"option 'startingOffsets' is .*: expected JSON like"):
            offset_options.parse_partition_numbers("startingOffsets", text)


@pytest.mark.spark
def test_assigned_partitions_are_parsed_as_by_spark(source: SparkSource) -> None:
    for text in ('{"t":[0,1]}', '{"t":[3],"u":[0,9]}'):
        assert list(offset_options.parse_source_topics({"assign": text}).assign) == source.partitions(text)
    for text in ("", "t", '{"t":["0"]}', '{"t":0}', "[]"):
        assert source.partitions(text) is None
        with pytest.raises(ValueError, match="option 'assign' is"):
            offset_options.parse_source_topics({"assign": text})


@pytest.mark.spark
def test_the_precedence_of_limits_is_that_of_spark(source: SparkSource) -> None:
    each = '{"t":{"0":5}}'
    cases: list[dict[str, str]] = [{}, {"startingOffsets": " Earliest "}, {"startingOffsets": each}]
    cases += [{"startingTimestamp": " 17 ", "startingOffsets": "earliest", "startingOffsetsByTimestamp": each}]
    cases += [{"startingOffsetsByTimestamp": each, "startingOffsets": "earliest"}, {"startingTimestamp": "x"}]
    cases += [
        {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "Latest"},
        {"startingOffsets": "ealiest"},
    ]
    for options in cases:
        theirs = source.limit(options, "starting", "latest")
        try:
            ours = offset_options.parse_offset_limit(options, "starting", is_stream=True)
        except ValueError:
            assert theirs == "IllegalArgumentException", options
            continue
        strategy = ours.strategy.upper()
        numbers = ", ".join(f"{partition} -> {number}" for partition, number in (ours.each or {}).items())
        texts = {
            "earliest": "EarliestOffsetRangeLimit",
            "latest": "LatestOffsetRangeLimit",
            "offsets": f"SpecificOffsetRangeLimit(Map({numbers}))",
            "timestamps": f"SpecificTimestampRangeLimit(Map({numbers}),{strategy})",
        }
        text = texts[ours.kind] if ours.timestamp is None else f"GlobalTimestampRangeLimit({ours.timestamp},{strategy})"
        assert text == theirs, options


# -------------------------------------------------------------------------------------------------------------- topics


def test_topics_are_those_of_one_strategy() -> None:
    topics = {"orders": 2, "orders-eu": 1, "other": 1}
    chosen = offset_options.parse_source_topics({"subscribe": " orders, other ,,"})
    assert list(map(str, chosen.partitions(topics))) == ["orders-0", "orders-1", "other-0"]
    chosen = offset_options.parse_source_topics({"subscribePattern": "orders.*"})
    assert list(map(str, chosen.partitions(topics))) == ["orders-0", "orders-1", "orders-eu-0"]
    chosen = offset_options.parse_source_topics({"subscribePattern": "order"})
    assert chosen.partitions(topics) == []
    chosen = offset_options.parse_source_topics({"assign": '{"orders":[1,1]}'})
    assert chosen.partitions(topics) == [TopicPartition("orders", 1)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of the options assign, subscribe, subscribePattern must be given, found none"),
        ({"subscribe": "a", "assign": "{}"}, "found assign, subscribe"),
        ({"subscribe": " , "}, "option 'subscribe' is ' , ': expected topics"),
        ({"subscribePattern": " "}, "option 'subscribePattern' is empty"),
        ({"subscribePattern": "("}, r"option 'subscribePattern' is '\(': missing"),
        ({"assign": '{"t":[]}'}, "option 'assign' is .*: no partition is named"),
    ],
)
def test_invalid_topics_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        offset_options.parse_source_topics(options)


# -------------------------------------------------------------------------------------------------------------- limits


def test_a_batch_reads_all_and_a_stream_what_comes() -> None:
    assert offset_options.parse_offset_limit({}, "starting").kind == "earliest"
    assert offset_options.parse_offset_limit({}, "ending").kind == "latest"
    assert offset_options.parse_offset_limit({}, "starting", is_stream=True).kind == "latest"


@pytest.mark.parametrize(
    ("side", "options", "text"),
    [
        ("starting", {"startingOffsets": "latest"}, "the starting offset of a batch query cannot be latest"),
        ("ending", {"endingOffsets": "EARLIEST"}, "the ending offset of a batch query cannot be earliest"),
        ("starting", {"startingOffsets": '{"t":{"0":-1}}'}, "the starting offset of t-0 cannot be latest"),
        ("ending", {"endingOffsets": '{"t":{"0":-2}}'}, "the ending offset of t-0 cannot be earliest"),
        ("starting", {"startingOffsets": '{"t":{"0":-3}}'}, "the offset of t-0 is -3; expected 0 or more"),
        ("starting", {"startingTimestamp": "99999999999999999999"}, "expected milliseconds as one whole number"),
        ("starting", {"startingOffsetsByTimestampStrategy": "none"}, "is 'none': expected error or latest"),
    ],
)
def test_invalid_limits_of_a_batch_are_refused(side: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        offset_options.parse_offset_limit(options, side)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ValueError, match=f"option '{name}': a stream has no end"):
        offset_options.parse_offset_limit({name: "latest"}, "ending", is_stream=True)


def resolved(limit: OffsetLimit, by_timestamp: dict[TopicPartition, int] | None = None, **sides: bool) -> list[int]:
    found = planner.resolve_offsets(limit, ORDERS, FIRST, LAST, by_timestamp, **{"is_start": True, **sides})
    return [found[partition] for partition in ORDERS]


def test_limits_become_offsets() -> None:
    assert resolved(OffsetLimit("earliest")) == [0, 10, 20]
    assert resolved(OffsetLimit("latest")) == [100, 10, 250]
    each = dict(zip(ORDERS, (5, LATEST, EARLIEST), strict=True))
    assert resolved(OffsetLimit("offsets", "startingOffsets", each)) == [5, 10, 20]
    at = OffsetLimit("timestamps", "endingTimestamp", timestamp=7)
    assert resolved(at, {ORDERS[0]: 3}, is_start=False) == [3, 10, 250]
    latest = OffsetLimit("timestamps", "startingTimestamp", timestamp=7, strategy="latest")
    assert resolved(latest, {ORDERS[0]: 3}) == [3, 10, 250]
    with pytest.raises(ValueError, match="'startingTimestamp': orders-1 has no record with the timestamp 7 or a later"):
        resolved(OffsetLimit("timestamps", "startingTimestamp", timestamp=7), {ORDERS[0]: 3})


@pytest.mark.parametrize(
    ("when", "unit"), [(1_700_000_000_000_000, "microseconds"), (1_700_000_000_000_000_000, "nanoseconds")]
)
def test_a_timestamp_in_another_unit_is_named(when: int, unit: str) -> None:
    limit = offset_options.parse_offset_limit({"startingTimestamp": str(when)}, "starting")
    with pytest.raises(ValueError, match=f"looks like {unit}; the same time in milliseconds is 1700000000000"):
        resolved(limit)


@pytest.mark.parametrize(
    ("when", "unit"),
    [(1_700_000_000, "seconds"), (1_700_000_000_000_000, "microseconds"), (1_700_000_000_000_000_000, "nanoseconds")],
)
def test_a_warning_names_the_unit_of_a_timestamp(
    when: int, unit: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a timestamp would silently select all records or none, as the start or the end of a query."""
    for option, value in (
        ("startingTimestamp", str(when)),
        ("endingTimestamp", str(when)),
        ("endingOffsetsByTimestamp", f'{{"orders":{{"0":{when}}}}}'),
    ):
        for parse in (
            lambda options, side: offset_options.parse_offset_limit(options, side),
            lambda options, side: parse_options({"path": "/logs", **options}),
        ):
            monkeypatch.setattr(timestamps, "_hinted", set())
            caplog.clear()
            parse({option: value}, "starting" if option.startswith("starting") else "ending")
            (record,) = caplog.records
            assert record.getMessage() == (
                f"option {option!r}: the timestamp {when} is used unchanged; timestamps are in milliseconds, and this "
                f"number looks like {unit}; the same time in milliseconds is 1700000000000"
            )


def test_timestamps_in_milliseconds_get_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    for when in (0, 7, 999_999_999, 10_000_000_000, 1_700_000_000_000, 99_999_999_999_999):
        offset_options.parse_offset_limit({"endingTimestamp": str(when)}, "ending")
    assert not caplog.records


def test_offsets_name_every_partition_that_is_read() -> None:
    each = dict.fromkeys(ORDERS, 5)
    with pytest.raises(ValueError, match="'startingOffsets' names other-0, which the query does not read"):
        resolved(OffsetLimit("offsets", "startingOffsets", {**each, TopicPartition("other", 0): 1}))
    del each[ORDERS[2]]
    with pytest.raises(ValueError, match="'startingOffsets' does not name orders-2"):
        resolved(OffsetLimit("offsets", "startingOffsets", each))


def test_a_range_may_be_empty() -> None:
    assert planner.ranges_between({ORDERS[0]: 3}, {ORDERS[0]: 3}) == [OffsetRange("orders", 0, 3, 3)]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", str(1 << 64)])
def test_a_number_above_0_is_expected(text: str) -> None:
    assert offset_options.parse_positive({}, "minPartitions") is None
    assert offset_options.parse_positive({"minPartitions": " 7 "}, "minPartitions") == 7
    with pytest.raises(ValueError, match=r"option 'minPartitions' is .*: expected a whole number above 0"):
        offset_options.parse_positive({"minPartitions": text}, "minPartitions")


def test_ranges_are_whole_after_cutting() -> None:
    """Whatever the limits, the parts of a range follow each other and cover it."""
    random = Random(19)
    for _ in range(300):
        ranges = random_ranges(random)
        records = random.choice((None, max(1, sum(each.size for each in ranges) // 50)))
        cut = planner.cut_ranges(ranges, random.choice((None, 3, 50)), records)
        whole = {each.topic_partition: [each.start, each.end] for each in ranges if each.size}
        joined: dict[tuple[str, int], list[int]] = {}
        for each in cut:
            assert each.size > 0
            assert records is None or each.size <= records
            bounds = joined.setdefault(each.topic_partition, [each.start, each.start])
            assert bounds[1] == each.start
            bounds[1] = each.end
        assert joined == whole


def test_a_byte_limit_follows_the_size_of_offsets() -> None:
    sizes = {ORDERS[0]: 100.0, ORDERS[2]: 1.0}
    limited = planner.limit_bytes(FIRST, LAST, 1023, sizes)
    assert [limited[partition] for partition in ORDERS] == [10, 10, 43]
    assert planner.limit_bytes(FIRST, LAST, 20_000, sizes) == LAST
    unknown = planner.limit_bytes(FIRST, LAST, 33 * planner.DEFAULT_BYTES_PER_OFFSET, {})
    assert [unknown[partition] for partition in ORDERS] == [10, 10, 43]
    assert [planner.limit_bytes(FIRST, LAST, 1, sizes)[partition] for partition in ORDERS] == [1, 10, 21]


def test_bytes_per_offset_follow_what_was_read() -> None:
    assert planner.updated_bytes_per_offset(None, 1000, 10) == 100
    assert planner.updated_bytes_per_offset(100, 3000, 10) == 200
    assert planner.updated_bytes_per_offset(100, 0, 0) == 100


def test_a_batch_waits_for_its_minimum_up_to_the_delay() -> None:
    start, end = {ORDERS[0]: 10}, {ORDERS[0]: 15, ORDERS[1]: 3}
    assert planner.is_batch_delayed(start, end, 9, 999, 1000)
    assert not planner.is_batch_delayed(start, end, 8, 0, 1000)
    assert not planner.is_batch_delayed(start, end, 9, 1000, 1000)
    assert not planner.is_batch_delayed(start, start, None, 0, 1000)


# ----------------------------------------------------------------------------------------------------------- data loss


RANGE = OffsetRange("orders", 0, 10, 50)


@pytest.mark.parametrize(
    ("first", "end", "kept", "text"),
    [
        (0, 90, (10, 50), None),
        (10, 50, (10, 50), None),
        (20, 90, (20, 50), "orders-0: offsets 10 to 19 .* the log has offsets 20 to 89: they were deleted"),
        (60, 90, (60, 60), "orders-0: offsets 10 to 49 cannot be read: the log has offsets 60 to 89"),
        (0, 30, (10, 30), "orders-0: offsets 30 to 49 .* the log has offsets 0 to 29: the log was truncated"),
        (0, 5, (5, 5), "orders-0: offsets 10 to 49 cannot be read: the log has offsets 0 to 4"),
        (0, 0, (0, 0), "the log is empty, it ends at 0: the log was truncated"),
        (50, 50, (50, 50), "the log is empty, it ends at 50: they were deleted"),
        (11, 12, (11, 12), "orders-0: offset 10 .*; orders-0: offsets 12 to 49"),
    ],
)
def test_what_a_log_lacks_is_a_loss(first: int, end: int, kept: tuple[int, int], text: str | None) -> None:
    log = ({ORDERS[0]: first}, {ORDERS[0]: end})
    found, losses = planner.readable_ranges([RANGE], *log, fail_on_data_loss=False)
    assert found == [replace(RANGE, start=kept[0], end=kept[1])]
    assert bool(losses) == (text is not None)
    if text is not None:
        with pytest.raises(DataLossError, match=text + ".*failOnDataLoss=false") as caught:
            planner.readable_ranges([RANGE], *log, fail_on_data_loss=True)
        assert caught.value.losses == tuple(losses)


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        (30, ["orders-0: offsets 30 to 49 cannot be read: the log has offsets 0 to 29: the log was truncated"]),
        (
            90,
            ["orders-0: offsets 30 to 49 cannot be read: they are beyond the last stable offset 30"],
        ),
        (
            40,
            [
                "orders-0: offsets 30 to 39 cannot be read: they are beyond the last stable offset 30",
                "orders-0: offsets 40 to 49 cannot be read: the log has offsets 0 to 39: the log was truncated",
            ],
        ),
    ],
)
def test_offsets_beyond_the_last_stable_offset_were_not_truncated(written: int, texts: list[str]) -> None:
    found, losses = planner.find_losses([RANGE], {ORDERS[0]: 0}, {ORDERS[0]: 30}, high_watermarks={ORDERS[0]: written})
    assert found == [replace(RANGE, end=30)]
    assert len(losses) == len(texts)
    assert all(str(loss).startswith(text) for loss, text in zip(losses, texts, strict=True))


def test_all_offsets_of_a_deleted_partition_are_lost() -> None:
    """A query that had read up to the end at that time does not know how many."""
    _, losses = planner.find_losses([replace(RANGE, start=23, end=23)], {}, {})
    assert [str(loss) for loss in losses] == [
        "orders-0: offsets from 23 on cannot be read: the partition does not exist any more"
    ]


def test_a_topic_that_is_gone_or_another_one_is_a_loss() -> None:
    found, losses = planner.find_losses([RANGE], {}, {})
    assert (found, [str(loss) for loss in losses]) == (
        [],
        ["orders-0: offsets 10 to 49 cannot be read: the partition does not exist any more"],
    )
    ids: dict[str, Any] = {"expected_ids": {"orders": "A"}, "found_ids": {"orders": "B"}}
    found, losses = planner.find_losses([RANGE], {ORDERS[0]: 0}, {ORDERS[0]: 30}, **ids)
    assert found == [OffsetRange("orders", 0, 0, 30)]
    assert "deleted and created again (its id was A and is B)" in str(losses[0])
    assert planner.find_losses([RANGE], {ORDERS[0]: 0}, {ORDERS[0]: 90}, expected_ids=ids["expected_ids"]) == (
        [RANGE],
        [],
    )


def test_a_new_partition_begins_at_its_first_offset() -> None:
    started, losses = planner.start_new_partitions({ORDERS[0]: 5}, LAST, FIRST)
    assert started == {ORDERS[0]: 5, ORDERS[1]: 10, ORDERS[2]: 20}
    assert [(loss.partition, loss.start, loss.end) for loss in losses] == [(ORDERS[1], 0, 10), (ORDERS[2], 0, 20)]


# -------------------------------------------------------------------------------------------------------------- offsets


def test_offsets_are_json_with_topic_ids() -> None:
    offsets = StreamOffsets({TopicPartition("orders", 0): 23, TopicPartition("v", 1): 2}, {"orders": "x9_-"})
    text = json.dumps(offsets.to_dict(), separators=(",", ":"))
    assert text == '{"v":1,"orders":{"id":"x9_-","0":23},"/v":{"1":2}}'
    assert StreamOffsets.from_dict(json.loads(text)) == offsets
    for value, message in (
        ({"orders": {"0": 1}}, r'got {"orders": {"0": 1}}: the checkpoint is that of another source.*offsets_of_chec'),
        (5, "got 5: the checkpoint is that of another source"),
        ({"v": 2}, "offsets of version 2"),
        ({"v": 1, "t": 3}, "3 is not a JSON object"),
        ({"v": 1, "t": {"x": 3}}, "'x' is not a partition"),
        ({"v": 1, "t": {"0": "3"}}, "'3' is not a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            StreamOffsets.from_dict(value)  # type: ignore[arg-type]
